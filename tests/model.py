"""The queue as a small model: rows, archive and registrations, and what each transaction of ganger does to them.

Written from the promises of the design, not from the SQL: no locks, no plans, one transaction after the other. Two
tests lean on it. ``tests/database/test_stateful.py`` holds the real statements against it; and the simulation of the
core runs on it in place of PostgreSQL, so what is shown there is shown of a queue that behaves like the real one.

``now`` comes with each call and only ever grows; its unit is the caller's. ``left`` is told of every run that loses its
row, just before it does, and whether that counts as a loss.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from uuid import UUID

from ganger.core.messages import Archive, Outcome, Retry

SCHEDULED, READY, RUNNING = 0, 1, 2


@dataclass(slots=True)
class Row:
    """A job in the queue."""

    job_id: UUID
    seq: int
    queue: str = "default"
    priority: int = 0
    due: float = 0.0
    unique_key: str | None = None
    state: int = READY
    attempts: int = 0
    crashes: int = 0
    losses: int = 0
    interrupts: int = 0
    starts: int = 0
    fresh: bool = False
    run_id: UUID | None = None
    claim_id: UUID | None = None
    owner: int | None = None
    last_run_id: UUID | None = None
    cancel: str | None = None
    checkpoint: bytes | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """A job in the archive. ``row`` is what it was at the end; ``run_id`` None: cancelled when it did not run."""

    row: Row
    status: str
    reason: str | None
    run_id: UUID | None


@dataclass(slots=True)
class Registration:
    beat: int = 0
    lease: float = 120.0


@dataclass(slots=True)
class Queue:
    left: Callable[[Row, bool], None] = lambda row, lost: None
    rows: dict[UUID, Row] = field(default_factory=dict)
    archive: dict[UUID, Ended] = field(default_factory=dict)
    supervisors: dict[int, Registration] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    registered: int = 0  # ids given so far
    enqueued: int = 0

    # ---- clients -------------------------------------------------------------------------------------------------

    def enqueue(
        self,
        now: float,
        job_id: UUID,
        *,
        queue: str = "default",
        priority: int = 0,
        delay: float = 0.0,
        unique_key: str | None = None,
    ) -> tuple[UUID, bool]:
        """Returns the id of the job that is there now, and whether it was there before."""
        there = self.rows.get(job_id) or next(
            (row for row in self.rows.values() if unique_key is not None and row.unique_key == unique_key), None
        )
        if there is not None:
            return there.job_id, True
        if job_id in self.archive:
            return job_id, True
        self.enqueued += 1
        state = SCHEDULED if delay > 0 else READY
        self.rows[job_id] = Row(job_id, self.enqueued, queue, priority, now + delay, unique_key, state)
        return job_id, False

    def cancel(self, job_id: UUID, reason: str) -> str:
        row = self.rows.get(job_id)
        if row is None:
            return "finished" if job_id in self.archive else "unknown"
        if row.state == RUNNING:
            row.cancel = row.cancel if row.cancel == "killed" else reason
            return "ordered"
        self._end(row, "cancelled", reason)
        return "cancelled"

    # ---- claims --------------------------------------------------------------------------------------------------

    def promote(self, now: float) -> None:
        for row in self.rows.values():
            if row.state == SCHEDULED and row.due <= now:
                row.state = READY

    def next_due(self, queues: Collection[str]) -> float | None:
        return min(
            (row.due for row in self.rows.values() if row.state == SCHEDULED and row.queue in queues), default=None
        )

    def claimable(self, supervisor_id: int, queue: str, free: int, locked: Collection[UUID] = ()) -> list[Row]:
        """What a claim gets, in its order. ``locked``: jobs in another claim that has not committed."""
        if supervisor_id not in self.supervisors or queue in self.paused:
            return []
        rows = [row for row in self.rows.values() if row.state == READY and row.queue == queue]
        rows.sort(key=lambda row: (row.priority, row.due, row.seq))
        return [row for row in rows if row.job_id not in locked][:free]

    def take(self, row: Row, supervisor_id: int, claim_id: UUID, run_id: UUID) -> None:
        row.state, row.owner, row.claim_id, row.run_id = RUNNING, supervisor_id, claim_id, run_id
        row.attempts += 1
        row.starts += 1

    # ---- outcomes ------------------------------------------------------------------------------------------------

    def save_checkpoint(self, job_id: UUID, run_id: UUID, data: bytes) -> bool:
        row = self.rows.get(job_id)
        if row is None or row.run_id != run_id:
            return False
        row.checkpoint = data
        return True

    def store(self, now: float, outcome: Outcome) -> str:
        """An outcome that is sent again is answered as it was the first time."""
        row = self.rows.get(outcome.job_id)
        if row is None or row.run_id != outcome.run_id:
            return self._found(outcome)
        if isinstance(outcome, Archive):
            row.crashes += outcome.crash
            reason = outcome.reason or row.cancel if outcome.status == "cancelled" else outcome.reason
            self._end(row, outcome.status, reason)
        elif row.cancel is not None:
            self._end(row, "cancelled", row.cancel)
            return "cancelled"
        elif isinstance(outcome, Retry):
            row.crashes += outcome.crash
            row.fresh = False
            self._back(row, now + outcome.delay, SCHEDULED if outcome.delay > 0 else READY)
        elif outcome.loss:
            row.fresh |= outcome.fresh
            self._lose(row)
        else:
            row.attempts -= 1
            row.interrupts += outcome.interrupted
            row.fresh |= outcome.fresh
            self._back(row, row.due)
        return "stored"

    def _found(self, outcome: Outcome) -> str:
        """A row that is not there under this run may have been settled by it before."""
        row, ended = self.rows.get(outcome.job_id), self.archive.get(outcome.job_id)
        if ended is not None and ended.run_id == outcome.run_id:
            wanted = isinstance(outcome, Archive) and ended.status == outcome.status
            return "stored" if wanted else "cancelled" if ended.status == "cancelled" else "refused"
        there = row or (ended.row if ended is not None else None)
        was_back = there is not None and there.last_run_id == outcome.run_id
        return "stored" if was_back and not isinstance(outcome, Archive) else "refused"

    # ---- registrations -------------------------------------------------------------------------------------------

    def register(self, former: int | None = None, lease: float = 120.0) -> tuple[int, int]:
        """Returns the new id, and how many rows of the former went back."""
        released = self.deregister(former) if former is not None else 0
        self.registered += 1
        self.supervisors[self.registered] = Registration(lease=lease)
        return self.registered, released

    def deregister(self, supervisor_id: int) -> int:
        if self.supervisors.pop(supervisor_id, None) is None:
            return 0
        held = self.held(supervisor_id)
        for row in held:
            if row.cancel is not None:
                self._end(row, "cancelled", row.cancel)
            else:
                row.attempts -= 1
                self._back(row, row.due)
        return len(held)

    def beat(self, supervisor_id: int) -> list[Row] | None:
        if supervisor_id not in self.supervisors:
            return None
        self.supervisors[supervisor_id].beat += 1
        return self.held(supervisor_id)

    def held(self, supervisor_id: int) -> list[Row]:
        rows = [row for row in self.rows.values() if row.state == RUNNING and row.owner == supervisor_id]
        return sorted(rows, key=lambda row: row.job_id)

    def sweep(self, supervisor_id: int, beat: int) -> list[UUID]:
        """Returns the jobs that were running; nothing happens if it has beaten since."""
        registration = self.supervisors.get(supervisor_id)
        if registration is None or registration.beat != beat:
            return []
        del self.supervisors[supervisor_id]
        return self._sweep(self.held(supervisor_id))

    def sweep_orphans(self) -> list[UUID]:
        orphans = [row for row in self.rows.values() if row.state == RUNNING and row.owner not in self.supervisors]
        return self._sweep(sorted(orphans, key=lambda row: row.job_id))

    def _sweep(self, rows: list[Row]) -> list[UUID]:
        for row in rows:
            if row.cancel is not None:
                self._end(row, "cancelled", row.cancel)
            else:
                self._lose(row)
        return [row.job_id for row in rows]

    # ---- rows ----------------------------------------------------------------------------------------------------

    def _lose(self, row: Row) -> None:
        """The attempt counts, and counts as nobody's failure. A loss is nobody's outcome either."""
        row.losses += 1
        last = row.last_run_id
        self._back(row, row.due, lost=True)
        row.last_run_id = last

    def _back(self, row: Row, due: float, state: int = READY, *, lost: bool = False) -> None:
        self.left(row, lost)
        row.last_run_id = row.run_id
        row.state, row.due = state, due
        row.run_id = row.claim_id = row.owner = None

    def _end(self, row: Row, status: str, reason: str | None) -> None:
        if row.state == RUNNING:
            self.left(row, False)
        self.archive[row.job_id] = Ended(replace(row), status, reason, row.run_id)
        del self.rows[row.job_id]
