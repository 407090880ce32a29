"""Terminal 1 of example C: a supervisor to press Ctrl-C on while a job runs.

python -m examples.example_c.worker [--shutdown terminate]
"""

from __future__ import annotations

import argparse
import sys

from examples import common
from ganger import Config, Supervisor


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.example_c.worker", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--shutdown", choices=["wait", "terminate"], default="wait", help="what Ctrl-C does to a computing job"
    )
    options = parser.parse_args()

    common.preamble()
    print(f"Starting a supervisor for the {common.QUEUE} queue with polling interval 1 s", flush=True)
    config = Config(
        target="examples.example_c.jobs:handle_job",
        handler_mode="advanced",
        poll_interval=1,
        concurrency=1,
        shutdown=options.shutdown,
        log_level="debug",
        on_polling_error=common.on_polling_error,
        on_shutdown=common.summary,
    )
    return Supervisor(config).run()


if __name__ == "__main__":
    sys.exit(main())
