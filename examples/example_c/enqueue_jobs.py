"""Terminal 2 of example C: enqueues a job that waits (run-1, and run-2 in asyncio), or one that computes (run-3).

python -m examples.example_c.enqueue_jobs run-1
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import Any

from examples import common

RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "run-1": ("blocking", "example_c.blocking-job", {"sleep_ms": 10_000}),
    "run-2": ("asyncio blocking", "example_c.async-blocking-job", {"wait_ms": 10_000}),
    "run-3": ("time-consuming", "example_c.cpu-bound-job", {"run_ms": 10_000}),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m examples.example_c.enqueue_jobs", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("run", choices=RUNS, help="which job to enqueue")
    kind, job_type, payload = RUNS[parser.parse_args().run]

    common.preamble()
    print(f"Adding a new {kind} job to the {common.QUEUE} queue:")
    with common.connect() as conn:
        common.enqueue_and_show(conn, job_type, {**payload, "timestamp": datetime.now(UTC).isoformat()})


if __name__ == "__main__":
    main()
