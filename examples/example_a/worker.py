"""Terminal 1 of example A: a supervisor that looks for jobs every 5 seconds, or at once when one is enqueued.

python -m examples.example_a.worker
"""

from __future__ import annotations

import sys

from examples import common
from ganger import Config, Supervisor


def main() -> int:
    common.preamble()
    print(f"Starting a supervisor for the {common.QUEUE} queue with polling interval 5 s", flush=True)
    config = Config(
        target="examples.example_a.jobs:handlers",
        poll_interval=5,
        concurrency=1,
        log_level="debug",
        on_polling_error=common.on_polling_error,
        on_shutdown=common.summary,
    )
    return Supervisor(config).run()


if __name__ == "__main__":
    sys.exit(main())
