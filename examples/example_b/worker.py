"""Terminal 1 of example B: a supervisor with a retry strategy and a callback for jobs that have failed for good.

python -m examples.example_b.worker [--slots 2] [--polling-interval 1]
"""

from __future__ import annotations

import argparse
import sys

from examples import common
from ganger import Config, Supervisor

JOBS = "examples.example_b.jobs"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.example_b.worker", description=__doc__.partition("\n")[0])
    parser.add_argument("--slots", type=int, default=1, help="jobs at a time (default: 1)")
    parser.add_argument("--polling-interval", type=int, default=5, help="seconds between two polls (default: 5)")
    options = parser.parse_args()

    common.preamble()
    print(f"Starting a supervisor for the {common.QUEUE} queue")
    print(f"Polling interval: {options.polling_interval} seconds. Slots: {options.slots}", flush=True)
    config = Config(
        target=f"{JOBS}:handle_job",
        retry_strategy=f"{JOBS}:retry_strategy",
        failed_job=f"{JOBS}:handle_failed_job",
        poll_interval=options.polling_interval,
        concurrency=options.slots,
        log_level="debug",
        on_polling_error=common.on_polling_error,
        on_shutdown=common.summary,
    )
    return Supervisor(config).run()


if __name__ == "__main__":
    sys.exit(main())
