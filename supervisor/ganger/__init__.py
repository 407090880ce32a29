"""ganger: a job queue in PostgreSQL with a multiprocess supervisor for CPU-bound work.

This is the public API, re-exported; each name is imported from its home when it is first used, so that an
application that enqueues does not pay for the supervisor, nor ``ganger --help`` for the database driver.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ganger.client import BadJob, DuplicateJob, NewJob, cancel, enqueue, enqueue_async, enqueue_many
    from ganger.config import Config, ConfigError
    from ganger.results import ArchivedJob, JobRecord, UnknownJob, get_job, get_job_async, wait, wait_async
    from ganger.supervisor import Supervisor

__all__ = [
    "ArchivedJob",
    "BadJob",
    "Config",
    "ConfigError",
    "DuplicateJob",
    "JobRecord",
    "NewJob",
    "Supervisor",
    "UnknownJob",
    "cancel",
    "enqueue",
    "enqueue_async",
    "enqueue_many",
    "get_job",
    "get_job_async",
    "wait",
    "wait_async",
]

_HOMES: Final = {
    "ganger.client": ("BadJob", "DuplicateJob", "NewJob", "cancel", "enqueue", "enqueue_async", "enqueue_many"),
    "ganger.config": ("Config", "ConfigError"),
    "ganger.results": ("ArchivedJob", "JobRecord", "UnknownJob", "get_job", "get_job_async", "wait", "wait_async"),
    "ganger.supervisor": ("Supervisor",),
}
_HOME: Final = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'ganger' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
