"""Plain functions as targets, and a Handlers object whose start hook raises."""

from __future__ import annotations

from typing import Any

from ganger_child import Handlers, Job


def plain(job_type: str, payload: Any) -> Any:
    if payload == "fail":
        raise ValueError("as asked")
    return [job_type, payload]


async def aplain(job_type: str, payload: Any) -> Any:
    return plain(job_type, payload)


def advanced(job: Job) -> Any:
    return plain(job.type, job.payload)


def retry_strategy(job: Job, exception: BaseException) -> Any:
    return {"retries": 1, "delays": [4]}


async def failed_attempt(job: Job, exception: BaseException) -> None:
    print("failed_attempt of", job.type)


def failed_job(job: Job, exception: BaseException) -> None:
    print("failed_job of", job.type)


failing_start = Handlers()


@failing_start.job("any")
def any_job(job: Job) -> None:
    return None


@failing_start.child_start
def hook() -> None:
    raise OSError("the hook raised this")
