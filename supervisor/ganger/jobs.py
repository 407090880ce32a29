"""Jobs and queues as their operators see and move them: find, show, cancel, retry, pause, resume, prune.

One function per question or order, on a connection made by ``database.connect``; the statements and what they guarantee
are in ``ganger.sql``. What concerns many jobs is done to a list of ids, some at a time and in their order, so that it
neither holds rows for long nor waits in a circle for somebody else's. Nothing here asks, prints or touches a process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from ganger.database import PATIENCE, Connection, transaction
from ganger.sql import statement

LIVE: Final = ("scheduled", "ready", "running")
ENDED: Final = ("success", "failure", "cancelled")
STATES: Final = (*LIVE, *ENDED)
ALL_QUEUES: Final = ""  # stands in the table of queues for all of them
PAGE: Final = 1000  # rows that a search over all pages takes at a time
BATCH: Final = 200  # jobs that are moved in one transaction
PRUNED: Final = 1000  # rows that are deleted in one transaction
SHORTEST: Final = 6  # hex digits that may stand for an id


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs. None: whichever. ``since`` (seconds): enqueued, started or ended in that time."""

    queue: str | None = None
    job_type: str | None = None
    states: tuple[str, ...] | None = None
    reason: str | None = None
    since: float | None = None
    host: str | None = None

    @property
    def values(self) -> dict[str, Any]:
        wanted = set(STATES if self.states is None else self.states)
        return {
            "queue": self.queue,
            "job_type": self.job_type,
            "states": None if self.states is None else list(self.states),
            "reason": self.reason,
            "since": self.since,
            "host": self.host,
            "live": not wanted.isdisjoint(LIVE),
            "archive": not wanted.isdisjoint(ENDED),
        }


@dataclass(frozen=True, slots=True)
class Found:
    """One job in a list. Times are ISO 8601 in UTC, or None; seconds and bytes are those of its last ended run."""

    job_id: UUID
    queue: str
    job_type: str
    status: str
    reason: str | None
    attempts: int
    supervisor: str | None
    host: str | None
    enqueued_at: str | None
    process_at: str | None
    started_at: str | None
    finished_at: str | None
    wall_s: float | None
    cpu_s: float | None
    max_rss: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class RunBy:
    """A run that is under way, and the supervisor that has it."""

    run_id: UUID
    attempt: int
    incarnation: UUID
    supervisor: str
    host: str


class NotOneJob(LookupError):
    """The words of an id are those of no job, or of several; the message says so."""


# ---------------------------------------------------------------------------------------------------------------------
# See


def find(
    conn: Connection, schema: str, which: Filter, most: int, before: UUID | None = None
) -> tuple[tuple[Found, ...], UUID | None]:
    """A page of jobs, the newest id first, and the id that the next page begins below; None where there is no more."""
    values = {**which.values, "before": before, "most": most + 1}
    with transaction(conn, limit=PATIENCE):
        rows = conn.execute(statement("find_jobs", schema), values).fetchall()
    page = tuple(Found(*row) for row in rows[:most])
    return page, page[-1].job_id if len(rows) > most else None


def find_ids(conn: Connection, schema: str, which: Filter) -> list[UUID]:
    """The ids of all of them."""
    ids: list[UUID] = []
    before = None
    while True:
        page, before = find(conn, schema, which, PAGE, before)
        ids.extend(found.job_id for found in page)
        if before is None:
            return ids


def resolve(conn: Connection, schema: str, words: str) -> UUID:
    """The id that is meant: a UUID, or its last hex digits as process titles show them (the archive is read through
    for those). Raises NotOneJob."""
    digits = words.strip().lower().replace("-", "")
    if not digits or digits.strip("0123456789abcdef") or not SHORTEST <= len(digits) <= 32:
        raise NotOneJob(f"{words[:60]!r} is no job id: give a UUID, or the last 8 hex digits of one.")
    if len(digits) == 32:
        return UUID(digits)
    values = {"digits": digits, "length": len(digits)}
    with transaction(conn, limit=PATIENCE):
        rows = conn.execute(statement("find_short", schema), values).fetchall()
    if not rows:
        raise NotOneJob(f"There is no job whose id ends with {digits}.")
    if len(rows) > 1:
        raise NotOneJob(f"Several jobs have ids that end with {digits}: {', '.join(str(row[0]) for row in rows)}.")
    found: UUID = rows[0][0]
    return found


def show(conn: Connection, schema: str, job_id: UUID) -> dict[str, Any] | None:
    """Everything that is known of a job: the columns of its row, and under ``runs`` its whole life, one entry per
    attempt, the last one last. None: there is no such job."""
    with transaction(conn):
        row = conn.execute(statement("show_job", schema), {"job_id": job_id}).fetchone()
    return None if row is None else with_runs(json.loads(row[0]))


def run_by(conn: Connection, schema: str, job_id: UUID) -> RunBy | None:
    """The run that a job is in; None where it does not run."""
    with transaction(conn):
        row = conn.execute(statement("run_by", schema), {"job_id": job_id}).fetchone()
    return None if row is None else RunBy(*row)


_OF_A_RUN: Final = (
    "supervisor", "host", "pid", "started_at", "status", "reason", "ended_by", "rung", "exit_code", "term_signal",
    "wall_s", "cpu_s", "max_rss", "error", "stack", "output",
)  # fmt: skip


def with_runs(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with ``runs`` in place of its history: the earlier attempts, and the one that the row itself tells of."""
    told = dict(row)
    past = told.pop("history", None)
    runs = [entry for entry in past if isinstance(entry, dict)] if isinstance(past, list) else []
    if told.get("started_at") is not None or told.get("run_id") is not None:
        last = {"attempt": told["attempts"], **{name: told.get(name) for name in _OF_A_RUN}}
        runs = [*runs, {**last, "ended_at": told.get("finished_at")}]
    told["runs"] = [{name: value for name, value in run.items() if value is not None} for run in runs]
    return told


# ---------------------------------------------------------------------------------------------------------------------
# Act


def cancel(conn: Connection, schema: str, job_ids: Sequence[UUID], reason: str = "cancelled") -> dict[UUID, str]:
    """Cancel jobs ("killed": without grace where they run). Says of each what ``client.cancel`` says."""
    return _each(conn, schema, "cancel_many", job_ids, {"reason": reason})


def retry(conn: Connection, schema: str, job_ids: Sequence[UUID]) -> dict[UUID, str]:
    """Give jobs of the archive another life, due now: the same id, history and checkpoint, a new budget of attempts.

    Says of each: "retried", "queued" (it is in a queue already), "duplicate" (another live job has its unique key) or
    "unknown".
    """
    return _each(conn, schema, "retry_many", job_ids, {})


def _each(
    conn: Connection, schema: str, name: str, job_ids: Sequence[UUID], values: Mapping[str, Any]
) -> dict[UUID, str]:
    answers: dict[UUID, str] = {}
    for batch in _batches(sorted(set(job_ids))):
        with transaction(conn):
            rows = conn.execute(statement(name, schema), {**values, "job_ids": batch}).fetchall()
        answers.update((job_id, answer) for job_id, answer in rows)
    return {job_id: answers[job_id] for job_id in job_ids}


def _batches(ids: list[UUID]) -> Iterator[list[UUID]]:
    for start in range(0, len(ids), BATCH):
        yield ids[start : start + BATCH]


def pause(conn: Connection, schema: str, queue: str = ALL_QUEUES) -> None:
    """Let nothing more be claimed from a queue, or from any. What runs goes on."""
    with transaction(conn):
        conn.execute(statement("pause", schema), {"queue": queue})


def resume(conn: Connection, schema: str, queue: str | None = None) -> list[str]:
    """Undo ``pause`` for a queue (ALL_QUEUES: for the pause of all); None: whatever is paused. Wakes who waits.

    Returns what was paused.
    """
    with transaction(conn):
        rows = conn.execute(statement("resume", schema), {"queue": queue}).fetchall()
    with transaction(conn):
        conn.execute(statement("wake_idle", schema))
    return sorted(name for (name,) in rows)


def paused(conn: Connection, schema: str) -> list[str]:
    """The paused queues; ALL_QUEUES among them means that all are."""
    with transaction(conn):
        return [name for (name,) in conn.execute(statement("paused", schema)).fetchall()]


def prunable(conn: Connection, schema: str, older: float, states: Sequence[str] | None = None) -> int:
    """How many jobs of the archive ended more than ``older`` seconds ago."""
    values = {"older": older, "states": None if states is None else list(states)}
    with transaction(conn, limit=PATIENCE):
        row = conn.execute(statement("prunable", schema), values).fetchone()
    assert row is not None
    return int(row[0])


def prune(conn: Connection, schema: str, older: float, states: Sequence[str] | None = None) -> int:
    """Delete the jobs of the archive that ended more than ``older`` seconds ago, and return how many they were."""
    deleted = 0
    while True:
        some = prune_some(conn, schema, older, states)
        deleted += some
        if some < PRUNED:
            return deleted


def prune_some(conn: Connection, schema: str, older: float, states: Sequence[str] | None = None) -> int:
    """The same for the oldest of them, in one transaction. Where fewer than ``PRUNED`` are deleted, no more are left,
    or somebody else is at them."""
    values = {"older": older, "states": None if states is None else list(states), "most": PRUNED}
    with transaction(conn):
        row = conn.execute(statement("prune", schema), values).fetchone()
    assert row is not None
    return int(row[0])
