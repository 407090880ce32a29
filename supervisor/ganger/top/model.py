"""What ``ganger top`` shows, as plain values, and how the two views of it are put together.

The processes of this host tell of its slots: their jobs, ages, progress, CPU and memory. The database tells of all
hosts, but nothing of a job's processes. A run that both know is one row: its id ends as the title says, and the attempt
is the same. This file is pure: nothing is read here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Process:
    """A process of a job: ``cpu`` in percent of one core (None: not measured yet), ``rss`` in bytes, ``depth`` below
    the child."""

    pid: int
    depth: int
    name: str
    cpu: float | None
    rss: int


@dataclass(frozen=True, slots=True)
class Slot:
    """A run in its slot. What is not known is None: a run elsewhere has no slot, and no figures of its processes.

    ``age``, ``limit`` and ``left`` (estimated from the progress) are seconds, ``progress`` percent, ``cpu`` percent of
    one core and ``rss`` bytes, both of the whole tree. ``cancel`` is the reason of an order to cancel it, ``note`` what
    the job says it is at, ``ends_in`` (seconds) the supervisor's estimate, which knows more than the progress alone.
    """

    supervisor: str
    host: str
    slot: str | None
    job_type: str
    short_id: str
    attempt: int
    age: float
    limit: float | None = None
    progress: int | None = None
    cpu: float | None = None
    rss: int | None = None
    processes: tuple[Process, ...] = ()
    job_id: UUID | None = None
    queue: str | None = None
    cancel: str | None = None
    note: str = ""
    stalled: bool = False
    ends_in: float | None = None

    @property
    def left(self) -> float | None:
        if self.ends_in is not None or not self.progress:
            return self.ends_in
        return self.age * (100 - self.progress) / self.progress


@dataclass(frozen=True, slots=True)
class Supervisor:
    """``lanes`` as its title has them, or as it tells the database. ``beat_age`` is None where only its title is known,
    ``pid`` and ``seen`` tell whether it was found on this host."""

    name: str
    host: str
    pid: int
    phase: str
    running: int
    slots: int
    lanes: tuple[tuple[str, int], ...] = ()
    beat_age: float | None = None
    lease: float | None = None
    seen: bool = False
    supervisor_id: int | None = None


@dataclass(frozen=True, slots=True)
class Queue:
    name: str
    ready: int
    scheduled: int
    running: int
    oldest: float | None
    paused: bool


@dataclass(frozen=True, slots=True)
class Ended:
    job_id: UUID
    queue: str
    job_type: str
    status: str
    reason: str | None
    attempts: int
    host: str | None
    ago: float
    wall: float | None
    rss: int | None


@dataclass(frozen=True, slots=True)
class Local:
    """What the processes of this host tell. ``idle``: slots without a job."""

    host: str
    supervisors: tuple[Supervisor, ...] = ()
    slots: tuple[Slot, ...] = ()
    idle: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """What a run tells of its progress, as its supervisor passes it on; ``left`` is seconds."""

    percent: int | None = None
    note: str = ""
    left: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """A run as the database knows it."""

    job_id: UUID
    queue: str
    job_type: str
    attempt: int
    age: float
    limit: float | None
    cancel: str | None
    supervisor_id: int
    progress: Progress = Progress()


@dataclass(frozen=True, slots=True)
class Stored:
    """What the database tells; or ``error``, a sentence, why it tells nothing."""

    supervisors: tuple[Supervisor, ...] = ()
    runs: tuple[Run, ...] = ()
    queues: tuple[Queue, ...] = ()
    ended: tuple[Ended, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class View:
    """All that is shown."""

    host: str
    supervisors: tuple[Supervisor, ...]
    slots: tuple[Slot, ...]
    idle: int
    queues: tuple[Queue, ...]
    ended: tuple[Ended, ...]
    error: str | None


def combine(local: Local, stored: Stored) -> View:
    """One view of both."""
    supervisors = _supervisors(local, stored)
    return View(
        host=local.host,
        supervisors=supervisors,
        slots=_slots(local, stored, supervisors),
        idle=local.idle + sum(max(one.slots - one.running, 0) for one in supervisors if not one.seen),
        queues=stored.queues,
        ended=stored.ended,
        error=stored.error,
    )


def _supervisors(local: Local, stored: Stored) -> tuple[Supervisor, ...]:
    """A supervisor that both know has its phase and counts from its title, which is newer. In a container on this host
    it has another host name and pid; if it was given no name of its own, its title tells them."""
    here = {one.pid: one for one in local.supervisors}
    named = {one.name: one.pid for one in local.supervisors}
    both = []
    for one in stored.supervisors:
        pid = one.pid if one.host == local.host else named.get(f"{one.host}:{one.pid}")
        title = here.pop(pid, None) if pid is not None else None
        if title is not None:
            one = replace(
                one, phase=title.phase, running=title.running, slots=title.slots, lanes=title.lanes, seen=True
            )
        both.append(one)
    return tuple(sorted([*both, *here.values()], key=lambda one: (one.host != local.host, one.host, one.name, one.pid)))


def _slots(local: Local, stored: Stored, supervisors: tuple[Supervisor, ...]) -> tuple[Slot, ...]:
    known = {(run.job_id.hex[-8:], run.attempt): run for run in stored.runs}
    rows = []
    for slot in local.slots:
        run = known.pop((slot.short_id, slot.attempt), None)
        if run is not None:
            told = run.progress
            slot = replace(
                slot, job_id=run.job_id, queue=run.queue, cancel=run.cancel, note=told.note, ends_in=told.left
            )
        rows.append(slot)
    names = {one.supervisor_id: one for one in supervisors}
    rows += [_elsewhere(run, names.get(run.supervisor_id)) for run in known.values()]
    return tuple(sorted(rows, key=lambda row: (row.host != local.host, row.host, row.supervisor, natural(row.slot))))


def _elsewhere(run: Run, by: Supervisor | None) -> Slot:
    """A run of which no process was found here: it is on another host, or begins or ends just now."""
    return Slot(
        supervisor=by.name if by else f"registration {run.supervisor_id}",
        host=by.host if by else "?",
        slot=None if by is None or not by.seen else "-",
        job_type=run.job_type,
        short_id=run.job_id.hex[-8:],
        attempt=run.attempt,
        age=run.age,
        limit=run.limit,
        job_id=run.job_id,
        queue=run.queue,
        cancel=run.cancel,
        progress=run.progress.percent,
        note=run.progress.note,
        ends_in=run.progress.left,
    )


def natural(slot: str | None) -> tuple[bool, list[tuple[int, str]]]:
    """Order as people count: default/2 before default/10; what has no slot comes last."""
    parts = re.findall(r"\d+|\D+", slot or "")
    return slot is None, [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def as_json(view: View) -> dict[str, Any]:
    """The view as one object: seconds, bytes and percent, as in the fields above."""
    from dataclasses import asdict

    told = asdict(view)
    for row, slot in zip(told["slots"], view.slots, strict=True):
        row["left"] = slot.left
    return _plain(told)  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, UUID):
        return str(value)
    return round(value, 3) if isinstance(value, float) else value
