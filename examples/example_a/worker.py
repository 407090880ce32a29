"""Terminal 1 of example A: a supervisor that looks for jobs every 5 seconds, or at once when one is enqueued.

python -m examples.example_a.worker
"""

from __future__ import annotations

import sys

from examples import common


def main() -> int:
    common.preamble()
    print(f"Starting a supervisor for the {common.QUEUE} queue with polling interval 5 s")
    return common.run(target="examples.example_a.jobs:handlers", poll_interval=5, concurrency=1)


if __name__ == "__main__":
    sys.exit(main())
