"""The handler of example C, in advanced mode: one argument, the job, with all its details.

It runs in child processes of the supervisor.
"""

from __future__ import annotations

import asyncio
import time
from pprint import pprint

from ganger_child import Job


def handle_job(job: Job) -> None:
    """The handler of all three job types."""
    print(f"Running job {job.type}. Payload:")
    pprint(job.payload, sort_dicts=False)
    match job.type:
        case "example_c.blocking-job":
            blocking(job)
        case "example_c.async-blocking-job":
            asyncio.run(async_blocking(job))
        case "example_c.cpu-bound-job":
            cpu_bound(job)
        case _:
            raise LookupError(f"there is no handler for the job type {job.type!r}")
    print("Done.")


def blocking(job: Job) -> None:
    milliseconds = job.payload["sleep_ms"]
    print(f"Sleeping {milliseconds} ms...")
    say_what_ctrl_c_does(job, "job-interrupted")
    time.sleep(milliseconds / 1000)


async def async_blocking(job: Job) -> None:
    milliseconds = job.payload["wait_ms"]
    print(f"Waiting in asyncio for {milliseconds} ms...")
    say_what_ctrl_c_does(job, "job-interrupted")
    await asyncio.sleep(milliseconds / 1000)


def cpu_bound(job: Job) -> None:
    milliseconds = job.payload["run_ms"]
    print(f"Running for {milliseconds} ms...")
    if job.shutdown == "terminate":
        print("This job is CPU-bound: it never waits for anything. It runs in a process of its own,")
        print("and this supervisor terminates such processes when it shuts down.")
        say_what_ctrl_c_does(job, "job-interrupted")
    else:
        print("This job is CPU-bound: it never waits for anything. A supervisor that shuts down lets it finish,")
        print("and picks up no other job meanwhile.")
        say_what_ctrl_c_does(job, "(Pause until the job finishes)", "job-finished")
        print("(A second Ctrl-C does not wait: the job is interrupted and goes back to the queue.)")
    until = time.monotonic() + milliseconds / 1000
    while time.monotonic() < until:
        pass


def say_what_ctrl_c_does(job: Job, *between: str) -> None:
    print("If you press Ctrl-C now, you should observe the following events:")
    for event in ("shutting-down", *between, "completed-shutdown"):
        print(f"  {event}")
    print()
    if "job-interrupted" in between:
        print(f"The current job (timestamp: {job.payload['timestamp']}) should then be picked up")
        print("again when the supervisor is started anew.")
        print("If you don't interrupt, then the job will finish and won't be run again.")
        print()
