"""Terminal 2 of example A: enqueues a job each time you press Enter.

python -m examples.example_a.enqueue_jobs
"""

from __future__ import annotations

from datetime import UTC, datetime

from examples import common


def main() -> None:
    common.preamble()
    with common.connect() as conn:

        def enqueue_one() -> None:
            print(f"Adding a new job to the {common.QUEUE} queue:")
            payload = {"message": "Hello world!", "timestamp": datetime.now(UTC).isoformat()}
            common.enqueue_and_show(conn, "example_a.echo", payload)

        common.until_ctrl_c(enqueue_one)


if __name__ == "__main__":
    main()
