"""ganger's handlers for the benchmark's jobs. One of them is retried at once, for what a lost child costs."""

from __future__ import annotations

from ganger_child import Handlers, Job, Retry
from tests.bench import jobs

handlers = Handlers()


@handlers.job("job")
def job(job: Job) -> None:
    jobs.run(*job.payload)


@handlers.job("again", retry=Retry(3))
def again(job: Job) -> None:
    jobs.run(*job.payload)
