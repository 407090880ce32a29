"""ganger_child: what a module of job handlers imports.

    from ganger_child import Handlers, Retry

    handlers = Handlers()

    @handlers.job("resize", timeout="10m", memory="2GiB", retry=Retry(2, delays=[1, 5]))
    def resize(job):
        ...

Everything below the supervisor process lives in this package; it imports neither a database driver nor ``ganger``.
"""

from ganger_child.errors import (
    BadResult,
    CheckpointRefused,
    JobCancelled,
    JobCrashed,
    JobFailed,
    JobInterrupted,
    JobLost,
    JobOutOfMemory,
    JobTimedOut,
    UnknownJobType,
)
from ganger_child.handlers import Handlers
from ganger_child.job import Job, current_job
from ganger_child.retry import Retry

__all__ = [
    "BadResult",
    "CheckpointRefused",
    "Handlers",
    "Job",
    "JobCancelled",
    "JobCrashed",
    "JobFailed",
    "JobInterrupted",
    "JobLost",
    "JobOutOfMemory",
    "JobTimedOut",
    "Retry",
    "UnknownJobType",
    "current_job",
]
