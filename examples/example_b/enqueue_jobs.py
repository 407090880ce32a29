"""Terminal 2 of example B: enqueues ten jobs that fail half the time, and ten more each time you press Enter.

python -m examples.example_b.enqueue_jobs
"""

from __future__ import annotations

from itertools import count

from examples import common

JOB_TYPE = "example_b.sometimes-failing"


def main() -> None:
    common.preamble()
    batches = count(1)
    with common.connect() as conn:

        def enqueue_batch() -> None:
            batch_no = next(batches)
            print(f"Adding 10 new jobs to the {common.QUEUE} queue:")
            for counter in range(10):
                common.enqueue_and_show(conn, JOB_TYPE, {"batch_no": batch_no, "counter": counter})

        common.until_ctrl_c(enqueue_batch)


if __name__ == "__main__":
    main()
