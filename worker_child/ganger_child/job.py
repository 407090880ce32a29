"""The job as its handler sees it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from json import loads
from typing import Any
from uuid import UUID

from ganger_child.interrupt import Interrupt
from ganger_child.reports import Reports


@dataclass(frozen=True, eq=False)
class Job:
    """One run of a job.

    ``attempt`` counts this run too. ``timeout`` (seconds, None: no limit) and ``shutdown`` ("wait", "finish",
    "interrupt" or "terminate") are those in force. The times are aware. ``payload`` is what ``loads`` made of it;
    for strategy and callbacks of a job whose payload cannot be read, it is its text.
    """

    id: UUID
    run_id: UUID
    queue: str
    type: str
    payload: Any
    attempt: int
    enqueued_at: datetime
    process_at: datetime
    timeout: float | None = None
    shutdown: str = "wait"
    _interrupt: Interrupt | None = None
    _reports: Reports | None = None
    _checkpoint: str | None = None

    @property
    def attempts(self) -> int:
        """Proletarian's word for ``attempt``."""
        return self.attempt

    @property
    def checkpoint(self) -> Any:
        """What an earlier run of this job saved last, on whatever host; None if none did. It stays what it was when
        this run began, and each look reads it anew from its JSON."""
        return None if self._checkpoint is None else loads(self._checkpoint)

    @property
    def interrupted(self) -> bool:
        """Whether the job is asked to stop. To stop early, raise (``check`` does); returning means finished."""
        return self._interrupt is not None and self._interrupt.wanted

    def check(self) -> None:
        """Raise JobInterrupted (or the subclass that says why) if the job is asked to stop."""
        if self._interrupt is not None:
            self._interrupt.check()

    def progress(self, fraction: float | None = None, note: str | None = None) -> None:
        """Tell how much of the job is done (``fraction``, from 0 to 1), and in a few words what it is at (``note``).

        Shown within a second or so in process titles and ``ganger top``, within a twelfth of the lease (10 s) in
        ``ganger jobs show`` and on other hosts, with an estimated end. It costs a microsecond or two, so it may be told
        in every round of a loop; of a note the first 240 bytes are kept. None leaves what was told before. Told by
        callbacks, or by what goes on when its run is over, it has no effect. Raises ValueError where ``fraction`` is no
        number or ``note`` no text.
        """
        if self._reports is not None:
            self._reports.progress(fraction, note)

    def save_checkpoint(self, data: Any, *, wait: bool = False) -> None:
        """Keep ``data`` (JSON) with the job: the next run, wherever that is, finds it in ``job.checkpoint``.

        So a job that is interrupted, killed, lost or tried again goes on from there. With ``wait`` it returns when the
        data is in the database, however long that is away; else it is written soon (within about a second; of several
        the newest), in any case with what becomes of this run. Of a run that is not the job's any more nothing is
        written: with ``wait`` that raises CheckpointRefused.

        For the handler itself, in any of its threads; not for processes that it starts. Large things belong into files,
        and their names into the checkpoint: ``--max-checkpoint`` (1 MiB) is the limit. Raises ValueError for what JSON
        or PostgreSQL cannot hold, with the place in ``data``, and RuntimeError where it cannot be used.
        """
        if self._reports is None:
            raise RuntimeError("save_checkpoint is for a handler that a supervisor runs, and this job has none.")
        self._reports.save(data, wait=wait)

    def uninterruptible(self) -> AbstractContextManager[None]:
        """``with job.uninterruptible():`` is a section that a shutdown waits for; its interrupt comes at the end.

        For work that looks like waiting from outside (a GPU, a query, an upload). Limits and cancel orders are not
        held up, nor is a shutdown that terminates, whose kill comes after ``grace``.
        """
        return self._interrupt if self._interrupt is not None else nullcontext()

    def with_payload(self, payload: Any) -> Job:
        """The same job with what its payload was read as."""
        job = object.__new__(Job)
        job.__dict__.update(self.__dict__, payload=payload)
        return job

    @classmethod
    def from_wire(
        cls,
        facts: Mapping[str, Any],
        limits: Mapping[str, Any],
        payload: Any,
        interrupt: Interrupt | None = None,
        reports: Reports | None = None,
        checkpoint: str | None = None,
    ) -> Job:
        """Make it from the fields of a message."""
        return cls(
            id=UUID(facts["job_id"]),
            run_id=UUID(facts["run_id"]),
            queue=facts["queue"],
            type=facts["job_type"],
            payload=payload,
            attempt=facts["attempts"],
            enqueued_at=_time(facts.get("enqueued_at")),
            process_at=_time(facts.get("process_at")),
            timeout=limits.get("timeout"),
            shutdown=limits.get("shutdown") or "wait",
            _interrupt=interrupt,
            _reports=reports,
            _checkpoint=checkpoint,
        )


_current: Job | None = None


def current_job() -> Job | None:
    """The job that this process is running (its strategy and callbacks included), or None."""
    return _current


def set_current(job: Job | None) -> None:
    """Say which job runs from here on."""
    global _current
    _current = job


def _time(text: str | None) -> datetime:
    if not text:
        return datetime.now(UTC)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:  # PostgreSQL knows infinity, and years that datetime does not
        time = datetime.min if text.startswith("-") or text.endswith("BC") else datetime.max
    return time if time.tzinfo else time.replace(tzinfo=UTC)
