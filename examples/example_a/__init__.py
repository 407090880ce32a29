"""Example A: the basics. Start a supervisor, enqueue a job, watch it run."""
