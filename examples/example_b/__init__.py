"""Example B: retries. Jobs that fail half the time, a retry strategy, callbacks, and a summary at the end."""
