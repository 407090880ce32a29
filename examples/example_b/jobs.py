"""The handler of example B, its retry strategy and its callback. They run in child processes of the supervisor."""

from __future__ import annotations

import random
import time
from typing import Any

from ganger_child import Job, Retry


class OperationFailed(Exception):
    """Says after how many seconds the operation may be tried again, as many web services do."""

    def __init__(self, retry_after: float) -> None:
        super().__init__("This operation failed for some reason")
        self.retry_after = retry_after


def do_possibly_failing_thing() -> None:
    """Take half a second to one and a half, and then fail every other time."""
    time.sleep(random.uniform(0.5, 1.5))
    if random.random() < 0.5:
        raise OperationFailed(retry_after=round(random.uniform(0, 1), 3))


def log(payload: dict[str, Any], message: object) -> None:
    print(f"[{payload['batch_no']:3}/{payload['counter']} {message!r}]")


def handle_job(job_type: str, payload: dict[str, Any]) -> None:
    """The handler, in default mode: it gets the job's type and its payload."""
    log(payload, f"Running job {job_type}. Payload:")
    log(payload, payload)
    log(payload, "This will fail 50 % of the time and take on average a second:")
    do_possibly_failing_thing()
    log(payload, "Phew, it didn't fail. Done.")


def retry_strategy(job: Job, exception: BaseException) -> Retry:
    """Two retries, after as long as the exception says.

    A job that was killed comes here too, with an exception that knows nothing of ``retry_after``; it is retried after
    a second.
    """
    return Retry(2, delays=[getattr(exception, "retry_after", 1.0)])


def handle_failed_job(job: Job, exception: BaseException) -> None:
    """Called once, when all attempts are spent."""
    log(job.payload, f"Job failed after {job.attempt} attempts (exception message: '{exception}')")
