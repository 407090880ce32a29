"""The real statements against the model of the queue: in any order, from several connections, hypothesis chooses.

After each step the tables must hold what the model holds, and each answer must be the one that the model gives. One of
the connections may be in the middle of a claim that commits or rolls back later; outcomes are sent again, and by runs
that lost their rows long ago; the schema is upgraded under prepared statements.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, Literal
from unittest.mock import patch
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from psycopg.pq import TransactionStatus

from ganger import client
from ganger import database as db
from ganger.core.messages import (
    Archive,
    Claim,
    HeldRow,
    Job,
    Lane,
    OtherSupervisor,
    Outcome,
    Release,
    Retry,
    SaveCheckpoint,
)
from ganger.database_threads import _write
from ganger.sql import newest_version
from tests.database.conftest import S, facts
from tests.model import SCHEDULED, Queue, Row

QUICK: Final = "MUTANT" in os.environ  # scripts/mutants: the same examples each time, and one that fails is enough
LATER: Final = 3600.0  # seconds; nothing becomes due by itself
QUEUES: Final = ("a", "b")
REASONS: Final[tuple[Literal["cancelled", "killed"], ...]] = ("cancelled", "killed")
KEYS: Final = (None, None, None, "k", "l")

JOB = """job_id, queue, priority, unique_key, state, attempts, crashes, losses, interrupts, starts, fresh, run_id,
         claim_id, supervisor_id, last_run_id, CASE WHEN cancel_at IS NOT NULL THEN cancel_reason END,
         checkpoint::text"""
ENDED = """job_id, queue, priority, unique_key, attempts, crashes, losses, interrupts, starts, run_id, last_run_id,
           status, reason"""

OUTCOMES: Final[tuple[Callable[[UUID, UUID], Outcome], ...]] = (
    lambda job, run: Archive(job, run, "success", None, {}, b"1"),
    lambda job, run: Archive(job, run, "failure", "exception", {}),
    lambda job, run: Archive(job, run, "failure", "crash", {}, crash=1),
    lambda job, run: Archive(job, run, "cancelled", "killed", {}),
    lambda job, run: Retry(job, run, 0.0, 0, {"reason": "exception"}),
    lambda job, run: Retry(job, run, LATER, 1, {"reason": "crash"}),
    lambda job, run: Release(job, run, "never-started"),
    lambda job, run: Release(job, run, "shutdown", interrupted=True, entry={"reason": "shutdown"}),
    lambda job, run: Release(job, run, "blame", fresh=True),
    lambda job, run: Release(job, run, "lost", loss=True, entry={"reason": "lost"}),
)


def job_row(row: Row) -> tuple[Any, ...]:
    return (
        row.job_id, row.queue, row.priority, row.unique_key, row.state, row.attempts, row.crashes, row.losses,
        row.interrupts, row.starts, row.fresh, row.run_id, row.claim_id, row.owner, row.last_run_id, row.cancel,
        None if row.checkpoint is None else row.checkpoint.decode(),
    )  # fmt: skip


class QueueMachine(RuleBasedStateMachine):
    """``conns`` do whole transactions; ``slow`` may be in the middle of one."""

    def __init__(self, conns: list[db.Connection], slow: db.Connection) -> None:
        super().__init__()
        self.conns, self.slow = conns, slow
        self.model = Queue()
        self.ids: dict[int, int] = {}  # of supervisors: the model's to the database's
        self.now = 0.0
        self.jobs: list[UUID] = []  # every job there ever was
        self.runs: list[tuple[UUID, UUID]] = []  # every run, as (job_id, run_id)
        self.open: tuple[int, list[Job]] | None = None  # the claim in progress
        self.versions = newest_version()
        self.named = 0  # ids given so far

    @initialize()
    def nothing_is_there(self) -> None:
        db.reset(self.conns[0], S)
        self.conns[0].execute("DELETE FROM proletarian.supervisor; DELETE FROM proletarian.queue")

    def teardown(self) -> None:
        if self.slow.info.transaction_status != TransactionStatus.IDLE:
            self.slow.execute("ROLLBACK")
        for version in range(newest_version() + 1, self.versions + 1):
            self.conns[0].execute(f"ALTER TABLE proletarian.job DROP COLUMN added_{version}".encode())
            self.conns[0].execute("DELETE FROM proletarian.schema_version WHERE version = %s", [version])

    # ---- draws -----------------------------------------------------------------------------------------------------

    def conn(self, data: st.DataObject) -> db.Connection:
        return self.conns[data.draw(st.integers(0, len(self.conns) - 1))]

    def supervisor(self, data: st.DataObject) -> int:
        """One that is registered, or now and then one that was."""
        present = list(self.model.supervisors)
        gone: bool = data.draw(st.sampled_from([False, False, False, True]))
        if present and not gone:
            return data.draw(st.sampled_from(present))
        return data.draw(st.integers(1, self.model.registered))

    def real(self, number: int) -> int:
        return self.ids[number]

    def has_supervisors(self) -> bool:
        return self.model.registered > 0

    def has_jobs(self) -> bool:
        return bool(self.jobs)

    def has_runs(self) -> bool:
        return bool(self.runs)

    def is_open(self) -> bool:
        return self.open is not None

    def locked(self) -> set[UUID]:
        return set() if self.open is None else {job.job_id for job in self.open[1]}

    def in_open_claim(self, number: int) -> bool:
        """Its registration is locked until the claim is over."""
        return self.open is not None and self.open[0] == number and number in self.model.supervisors

    def new_id(self) -> UUID:
        """The same ones in each repetition of an example."""
        self.named += 1
        return UUID(int=self.named)

    def tick(self) -> float:
        self.now += 1
        return self.now

    # ---- clients -----------------------------------------------------------------------------------------------------

    @rule(data=st.data(), delay=st.sampled_from([0.0, 0.0, LATER]), queue=st.sampled_from(QUEUES),
          priority=st.sampled_from([0, 0, -1, 1]), key=st.sampled_from(KEYS))  # fmt: skip
    def enqueue(self, data: st.DataObject, delay: float, queue: str, priority: int, key: str | None) -> None:
        job_id = self.new_id()
        if self.jobs and data.draw(st.integers(0, 3)) == 0:
            job_id = data.draw(st.sampled_from(self.jobs))
        if job_id in self.locked() or any(self.model.rows[locked].unique_key == key for locked in self.locked() if key):
            return  # it would wait for the end of that claim
        there, duplicate = self.model.enqueue(
            self.tick(), job_id, queue=queue, priority=priority, delay=delay, unique_key=key
        )

        def act() -> UUID:
            options: dict[str, Any] = {"queue": queue, "priority": priority, "unique_key": key, "job_id": job_id}
            return client.enqueue(self.conn(data), "t", process_in=delay or None, **options)

        if duplicate:
            with pytest.raises(client.DuplicateJob) as raised:
                act()
            assert raised.value.job_id == there
        else:
            assert act() == job_id
            self.jobs.append(job_id)

    @rule(data=st.data())
    def enqueue_and_roll_back(self, data: st.DataObject) -> None:
        conn = self.conn(data)
        with conn.transaction(force_rollback=True):
            client.enqueue(conn, "t", queue="a", priority=-1)

    @precondition(has_jobs)
    @rule(data=st.data(), reason=st.sampled_from(REASONS))
    def cancel(self, data: st.DataObject, reason: Literal["cancelled", "killed"]) -> None:
        job_id = data.draw(st.sampled_from(self.jobs))
        if job_id not in self.locked():
            assert client.cancel(self.conn(data), job_id, reason=reason) == self.model.cancel(job_id, reason)

    @rule(data=st.data(), queue=st.sampled_from(QUEUES))
    def pause_or_resume(self, data: st.DataObject, queue: str) -> None:
        self.model.paused ^= {queue}
        self.conn(data).execute(
            """INSERT INTO proletarian.queue AS q VALUES (%s, now()) ON CONFLICT (queue)
               DO UPDATE SET paused_at = CASE WHEN q.paused_at IS NULL THEN now() END""",
            [queue],
        )

    # ---- time --------------------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def what_was_for_later_is_due(self, data: st.DataObject) -> None:
        now = self.tick()
        for row in self.model.rows.values():
            row.due = now if row.state == SCHEDULED else row.due
        self.conn(data).execute("UPDATE proletarian.job SET process_at = now() WHERE state = 0")

    @rule(data=st.data())
    def promote(self, data: st.DataObject) -> None:
        self.model.promote(self.tick())
        assert db.promote(self.conn(data), S)

    @rule(data=st.data())
    def look_ahead(self, data: st.DataObject) -> None:
        due = self.model.next_due(QUEUES)
        seen = db.outlook(self.conn(data), S, QUEUES).next_due
        assert (seen is None) == (due is None)
        assert due is None or (seen == 0) == (due <= self.now)

    # ---- supervisors -------------------------------------------------------------------------------------------------

    @rule(data=st.data(), again=st.booleans())
    def register(self, data: st.DataObject, again: bool) -> None:
        former = self.supervisor(data) if again and self.model.registered else None
        if former is None and len(self.model.supervisors) == 3:
            return
        if former is not None and self.in_open_claim(former):
            return  # it would wait
        number, released = self.model.register(former)
        real_former = None if former is None else self.real(former)
        self.ids[number], really_released = db.register(self.conn(data), S, facts(), real_former)
        assert really_released == released

    @precondition(has_supervisors)
    @rule(data=st.data())
    def deregister(self, data: st.DataObject) -> None:
        number = self.supervisor(data)
        if not self.in_open_claim(number):
            assert db.deregister(self.conn(data), S, self.real(number)) == self.model.deregister(number)

    @precondition(has_supervisors)
    @rule(data=st.data())
    def beat_and_look(self, data: st.DataObject) -> None:
        number, conn = self.supervisor(data), self.conn(data)
        held = self.model.beat(number)
        seen = db.beat(conn, S, self.real(number), "running", {})
        assert seen == (None if held is None else tuple(self._held(row) for row in held))
        cancels, others = db.look(conn, S, self.real(number))
        assert cancels == tuple(self._held(row) for row in self.model.held(number) if row.cancel)
        expected = [
            OtherSupervisor(self.real(other), registration.beat, registration.lease)
            for other, registration in self.model.supervisors.items()
            if other != number
        ]
        assert len(others) == len(expected)
        assert all(other in expected for other in others)

    def _held(self, row: Row) -> HeldRow:
        assert row.run_id is not None
        return HeldRow(row.job_id, row.run_id, row.claim_id, row.cancel)

    @precondition(has_supervisors)
    @rule(data=st.data(), late=st.sampled_from([0, 0, 1]))
    def sweep(self, data: st.DataObject, late: int) -> None:
        number = self.supervisor(data)
        registration = self.model.supervisors.get(number)
        beat = registration.beat - late if registration is not None else 0
        expected = [] if self.in_open_claim(number) else self.model.sweep(number, beat)
        assert list(db.sweep(self.conn(data), S, self.real(number), beat).jobs) == expected

    @precondition(has_supervisors)
    @rule(data=st.data())
    def registration_lost_and_orphans_swept(self, data: st.DataObject) -> None:
        """What nothing of ours does: somebody deletes a supervisor's row."""
        number, conn = self.supervisor(data), self.conn(data)
        if self.in_open_claim(number):
            return
        self.model.supervisors.pop(number, None)
        conn.execute("DELETE FROM proletarian.supervisor WHERE supervisor_id = %s", [self.real(number)])
        assert list(db.sweep_orphans(conn, S)) == self.model.sweep_orphans()

    # ---- runs --------------------------------------------------------------------------------------------------------

    @precondition(has_supervisors)
    @rule(data=st.data(), queue=st.sampled_from(QUEUES), free=st.integers(1, 3))
    def claim(self, data: st.DataObject, queue: str, free: int) -> None:
        number = self.supervisor(data)
        expected = self.model.claimable(number, queue, free, self.locked())
        jobs = self._claim(self.conn(data), number, queue, free)
        assert [job.job_id for job in jobs] == [row.job_id for row in expected]
        self._taken(number, jobs)

    def _claim(self, conn: db.Connection, number: int, queue: str, free: int) -> list[Job]:
        order = Claim(self.new_id(), self.real(number), (Lane((queue,), free),))
        jobs, _, (full,), _ = db.claim(conn, S, order)
        assert full == (len(jobs) == free)
        return list(jobs)

    def _taken(self, number: int, jobs: list[Job]) -> None:
        for job in jobs:
            row = self.model.rows[job.job_id]
            self.model.take(row, number, job.claim_id, job.run_id)
            counts = (row.attempts, row.crashes, row.losses, row.fresh)
            assert (job.attempts, job.crashes, job.losses, job.fresh) == counts
            self.runs.append((job.job_id, job.run_id))

    @precondition(lambda self: self.open is None and self.model.supervisors)
    @rule(data=st.data(), queue=st.sampled_from(QUEUES), free=st.integers(1, 3))
    def begin_a_claim(self, data: st.DataObject, queue: str, free: int) -> None:
        number = data.draw(st.sampled_from(list(self.model.supervisors)))
        expected = self.model.claimable(number, queue, free)
        self.slow.execute("BEGIN")
        jobs = self._claim(self.slow, number, queue, free)
        assert [job.job_id for job in jobs] == [row.job_id for row in expected]
        self.open = (number, jobs)

    @precondition(is_open)
    @rule(commit=st.booleans())
    def end_the_claim(self, commit: bool) -> None:
        assert self.open is not None
        number, jobs = self.open
        self.open = None
        self.slow.execute("COMMIT" if commit else "ROLLBACK")
        if commit:
            self._taken(number, jobs)

    @precondition(has_runs)
    @rule(data=st.data(), kinds=st.lists(st.sampled_from(OUTCOMES), min_size=1, max_size=3))
    def store(self, data: st.DataObject, kinds: list[Callable[[UUID, UUID], Outcome]]) -> None:
        """Outcomes of runs that have their row, and of others that lost it, or had stored it already."""
        live = [(row.job_id, row.run_id) for row in self.model.rows.values() if row.run_id is not None]
        runs: dict[UUID, UUID] = {}  # one of a job
        for _ in kinds:
            stale: bool = data.draw(st.booleans())
            job_id, run_id = data.draw(st.sampled_from(self.runs if stale or not live else live))
            runs[job_id] = run_id
        batch = [kind(job_id, run_id) for kind, (job_id, run_id) in zip(kinds, runs.items(), strict=False)]
        now = self.tick()
        expected = {outcome.run_id: self.model.store(now, outcome) for outcome in batch}
        assert _write(self.conn(data), S, batch) == expected

    @precondition(has_runs)
    @rule(data=st.data(), number=st.integers(1, 99))
    def save_a_checkpoint(self, data: st.DataObject, number: int) -> None:
        """Of a run that has its row, or has lost it."""
        job_id, run_id = data.draw(st.sampled_from(self.runs))
        order = SaveCheckpoint(job_id, run_id, 1, b"%d" % number, wait=True)
        expected = self.model.save_checkpoint(job_id, run_id, order.data)
        assert db.save_checkpoint(self.conn(data), S, order) == expected

    # ---- the schema --------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.open is None)
    @rule(data=st.data())
    def install_again(self, data: st.DataObject) -> None:
        if self.versions == newest_version():
            assert db.install(self.conn(data), S) == []

    @precondition(lambda self: self.open is None and self.versions < newest_version() + 2)
    @rule(data=st.data())
    def upgrade(self, data: st.DataObject) -> None:
        """To a version that adds a column, while everybody has prepared statements."""
        self.versions += 1
        migration = f"ALTER TABLE proletarian.job ADD COLUMN added_{self.versions} int DEFAULT 7"
        with (
            patch.object(db, "newest_version", lambda: self.versions),
            patch.object(db, "migration", lambda version, schema: migration),
        ):
            assert db.install(self.conn(data), S) == [self.versions]

    # ---- what everybody sees -----------------------------------------------------------------------------------------

    @invariant()
    def tables_hold_what_the_model_holds(self) -> None:
        conn, model = self.conns[0], self.model
        real = {row[0]: row for row in conn.execute(f"SELECT {JOB} FROM proletarian.job".encode())}
        owners = {number: self.ids[number] for number in self.ids}
        for row in model.rows.values():
            expected = list(job_row(row))
            expected[13] = owners.get(row.owner or 0)
            assert real.pop(row.job_id, None) == tuple(expected)
        assert not real
        archived = {row[0]: row for row in conn.execute(f"SELECT {ENDED} FROM proletarian.archived_job".encode())}
        for job_id, ended in model.archive.items():
            at_end = ended.row
            assert archived.pop(job_id, None) == (
                job_id, at_end.queue, at_end.priority, at_end.unique_key, at_end.attempts, at_end.crashes,
                at_end.losses, at_end.interrupts, at_end.starts, ended.run_id, at_end.last_run_id, ended.status,
                ended.reason,
            )  # fmt: skip
        assert not archived
        beats = conn.execute("SELECT supervisor_id, beat FROM proletarian.supervisor").fetchall()
        assert dict(beats) == {owners[number]: registration.beat for number, registration in model.supervisors.items()}


def play(connect: Callable[..., db.Connection], examples: int, steps: int) -> None:
    conns, slow = [connect(), connect()], connect()
    for conn in (*conns, slow):
        conn.execute("SET statement_timeout = 20000")  # what waits for a lock would wait for ever
    run_state_machine_as_test(
        lambda: QueueMachine(conns, slow),  # type: ignore[arg-type]  # a factory serves as well
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            derandomize=QUICK,
            phases=[Phase.generate] if QUICK else list(Phase),
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(300)
def test_statements_do_what_the_model_does(connect: Callable[..., db.Connection]) -> None:
    """Corrections 18, 24, 26, 29 and 30: claims, outcomes sent twice, cancel orders, due times and ids of one's own."""
    play(connect, examples=25, steps=50)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_statements_do_what_the_model_does_in_many_more_orders(connect: Callable[..., db.Connection]) -> None:
    play(connect, examples=250, steps=50)
