"""What the processes below the parent are told about the handler and the rules of a run.

The parent sends it to the template in ``boot``; a child that is exec'd anew (start method "spawn") gets it on its
command line. It is made once, never changed, and every value is plain JSON.

This file may not import the handler or anything that knows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Options:
    """Durations are seconds, sizes bytes; names of functions are ``module:function``."""

    target: str
    handler_mode: str = "default"  # "default": handle(job_type, payload); "advanced": handle(job)
    retry_strategy: str | None = None
    failed_attempt: str | None = None
    failed_job: str | None = None
    start_method: str = "fork"  # "spawn": an interpreter of its own for each child
    max_result: int = 1 << 20
    max_checkpoint: int = 1 << 20
    callback_timeout: float = 30.0
    recycle_after: float = 1.0  # work after which a child gets no other job
    stall_after: float | None = None  # seconds without CPU use and progress until a run has stalled
    keep_environ: bool = False  # process titles leave /proc/PID/environ readable
    unknown_job_type: str = "fail"  # "leave": such jobs are not claimed
    search_path: str | None = None  # a folder to put first on sys.path

    def to_json(self) -> dict[str, Any]:
        """The fields as a dict that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Options:
        """The reverse of ``to_json``. Names it does not know are left out; raises TypeError without a target."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})
