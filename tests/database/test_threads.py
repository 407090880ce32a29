"""The threads that own the connections: answers, outages, lost answers, bad rows."""

from __future__ import annotations

import os
import select
import socket
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ganger import database as db
from ganger import database_threads, jobs
from ganger.client import NewJob, cancel, enqueue, enqueue_many
from ganger.core import messages as m
from ganger.database_threads import DatabaseThreads
from ganger.local_postgres import LocalPostgres
from tests.database.conftest import S, claim, facts, register, rows

E = TypeVar("E", bound=m.DatabaseEvent)
LIMIT = 30.0  # seconds for what takes milliseconds


class Told:
    """What the threads have posted, in order."""

    def __init__(self) -> None:
        self.events: list[m.DatabaseEvent] = []
        self._changed = threading.Condition()

    def post(self, event: m.DatabaseEvent) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def wait(self, kind: type[E], number: int = 1, where: Callable[[E], bool] = lambda event: True) -> E:
        """Wait for the so-manyth event of a kind, and return it."""

        def found() -> list[E]:
            return [event for event in self.events if isinstance(event, kind) and where(event)]

        with self._changed:
            assert self._changed.wait_for(lambda: len(found()) >= number, LIMIT), self.events
            return found()[number - 1]

    def of(self, kind: type[E]) -> list[E]:
        with self._changed:
            return [event for event in self.events if isinstance(event, kind)]


class Running:
    """Threads at work, and what they told."""

    def __init__(self, conninfo: str, **options: Any) -> None:
        self.told = Told()
        self.threads = DatabaseThreads(conninfo, S, self.told.post, time.monotonic, facts(), **options)
        self.do = self.threads.do
        self.wait = self.told.wait

    def register(self) -> int:
        self.do(m.Register(None))
        return self.wait(m.Registered).supervisor_id

    def claim(self, supervisor_id: int, free: int = 1, **options: Any) -> m.Claimed:
        order = m.Claim(uuid4(), supervisor_id, (m.Lane(("default",), free),), **options)
        self.do(order)
        return self.wait(m.Claimed, where=lambda event: event.claim_id == order.claim_id)

    def lost_claim(self, supervisor_id: int) -> None:
        order = m.Claim(uuid4(), supervisor_id, (m.Lane(("default",), 1),))
        self.do(order)
        self.wait(m.ClaimLost, where=lambda event: event.claim_id == order.claim_id)

    def stored(self, run_id: UUID) -> m.Stored:
        return self.wait(m.Stored, where=lambda event: event.run_id == run_id)


@contextmanager
def running(conninfo: str, **options: Any) -> Iterator[Running]:
    before = set(threading.enumerate())
    own = Running(conninfo, **options)
    own.threads.start()
    try:
        yield own
    finally:
        own.threads.close()
    left = {thread for thread in set(threading.enumerate()) - before if thread.name.startswith("ganger-")}
    assert not left


@pytest.fixture
def own(database: str) -> Iterator[Running]:
    with running(database) as own:
        yield own


def success(job: m.Job, result: bytes | None = None) -> m.Archive:
    return m.Archive(job.job_id, job.run_id, "success", None, {}, result)


def cpu_seconds() -> float:
    return time.clock_gettime(time.CLOCK_PROCESS_CPUTIME_ID)


def backends(conn: psycopg.Connection[Any], thread: str = "") -> list[int]:
    query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE %s"
    return [pid for (pid,) in conn.execute(query, [f"ganger one {thread}%"]).fetchall()]


def terminate(conn: psycopg.Connection[Any], thread: str = "") -> None:
    for pid in backends(conn, thread):
        conn.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])


# ---------------------------------------------------------------------------------------------------------------------
# One answer for each command


def test_the_way_of_a_job(own: Running, conn: db.Connection) -> None:
    supervisor_id = own.register()
    job_id = enqueue(conn, "t")
    claimed = own.claim(supervisor_id, 1)
    (job,) = claimed.jobs
    assert (job.job_id, claimed.lanes, claimed.more, claimed.next_due) == (job_id, (0,), (True,), None)
    assert claimed.horizon
    own.do(m.Beat(supervisor_id, "running", {"slots": 1}))
    beaten = own.wait(m.Beaten)
    assert beaten.rows == (m.HeldRow(job.job_id, job.run_id, job.claim_id, None),)
    assert beaten.sent <= time.monotonic()
    own.do(success(job, b"[1]"))
    assert own.stored(job.run_id) == m.Stored(job.run_id, "stored", late=False)
    assert rows(conn, "job_id, status, result", "archived_job") == [(job_id, "success", [1])]
    own.do(m.Deregister(supervisor_id))
    own.wait(m.Deregistered)
    own.do(m.Beat(supervisor_id, "running", {}))
    assert own.wait(m.Beaten, 2).rows is None
    assert own.told.of(m.DatabaseLost) == []


def test_hand_written_rows_are_promoted_and_a_due_time_is_told(own: Running, conn: db.Connection) -> None:
    supervisor_id = own.register()
    conn.execute("INSERT INTO proletarian.job (job_type) VALUES ('t')")
    enqueue(conn, "t", process_in=100)
    claimed = own.claim(supervisor_id, 2)
    assert len(claimed.jobs) == 1
    assert claimed.more == (False,)
    assert claimed.next_due is not None
    assert 50 < claimed.next_due <= 100


def test_left(own: Running, conn: db.Connection) -> None:
    supervisor_id = own.register()
    enqueue(conn, "t", process_in=100)
    assert own.claim(supervisor_id, 1).left  # not asked
    assert not own.claim(supervisor_id, 1, ask_left=True).left
    enqueue(conn, "t")
    assert own.claim(supervisor_id, 1, ask_left=True).left
    assert own.claim(supervisor_id, 1, ask_left=True).left  # it runs


def test_cancel_orders_and_a_vacant_supervisor(database: str, conn: db.Connection) -> None:
    with running(database, vacant=lambda incarnation: True) as own:
        supervisor_id = own.register()
        dead = register(conn, "dead")
        enqueue_many(conn, [NewJob("t"), NewJob("t")])
        (lost,) = claim(conn, dead)
        (job,) = own.claim(supervisor_id).jobs
        cancel(conn, job.job_id, reason="killed")
        own.do(m.Look(supervisor_id))
        looked = own.wait(m.Looked)
        assert looked.cancels == (m.HeldRow(job.job_id, job.run_id, job.claim_id, "killed"),)
        assert looked.others == (m.OtherSupervisor(dead, 0, 120.0, vacant=True),)
        own.do(m.Sweep(dead, 5))
        assert own.wait(m.Swept).jobs == ()
        own.do(m.Sweep(dead, 0))
        assert own.wait(m.Swept, 2) == m.Swept(dead, (lost.job_id,))
        own.do(m.Release(job.job_id, job.run_id, "shutdown", interrupted=True))
        assert own.stored(job.run_id).how == "cancelled"


def test_the_janitor(own: Running, conn: db.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_threads, "JANITOR", 0.0)
    supervisor_id = own.register()
    gone = register(conn, "gone")
    enqueue(conn, "t")
    (job,) = claim(conn, gone)
    conn.execute("DELETE FROM proletarian.supervisor WHERE supervisor_id = %s", [gone])
    own.do(m.Look(supervisor_id))
    assert own.wait(m.Swept) == m.Swept(0, (job.job_id,))


def test_the_janitor_prunes_the_archive_some_at_a_time_and_hears_what_is_notified(
    database: str, conn: db.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ended longer ago than the retention goes, without one nothing does; a failure is told and tried again."""
    monkeypatch.setattr(jobs, "PRUNED", 3)
    monkeypatch.setattr(database_threads, "JANITOR", 0.1)
    me = register(conn)
    ids = enqueue_many(conn, [NewJob("t")] * 9)
    db.finish(conn, S, [success(job) for job in claim(conn, me, 9)])
    old = "UPDATE proletarian.archived_job SET finished_at = now() - interval '2 days' WHERE job_id = ANY (%s)"
    conn.execute(old, [ids[:7]])
    deleted: list[int] = []
    prune = jobs.prune_some

    def counted(*args: Any) -> int:
        if not deleted:
            deleted.append(0)
            raise psycopg.errors.QueryCanceled("by somebody")
        deleted.append(prune(*args))
        return deleted[-1]

    monkeypatch.setattr(jobs, "prune_some", counted)
    with running(database) as own:
        own.register()
        own.wait(m.Notified)
    assert deleted == []
    with running(database, retention=86400.0) as own:
        assert own.wait(m.PollFailed).error == "by somebody."
        assert own.wait(m.Pruned) == m.Pruned(7)
        supervisor_id = own.register()
        own.do(m.SayIdle(("default",), 30.0))
        own.wait(m.IdleSaid)
        before = len(own.told.of(m.Notified))
        enqueue(conn, "t")
        own.wait(m.Notified, before + 1)
        assert len(own.claim(supervisor_id).jobs) == 1
        assert len(own.told.of(m.Pruned)) == 1
    assert deleted[:4] == [0, 3, 3, 1]
    assert not any(deleted[4:])
    assert rows(conn, "job_id", "archived_job") == [(job_id,) for job_id in sorted(ids[7:])]


def test_idle_is_said_and_heard(own: Running, conn: db.Connection) -> None:
    supervisor_id = own.register()
    own.wait(m.Notified)  # listening now; what was said before, nobody heard
    own.do(m.SayIdle(("default",), 30.0))
    said = own.wait(m.IdleSaid)
    assert said.horizon > 0
    before = len(own.told.of(m.Notified))
    enqueue(conn, "t")
    own.wait(m.Notified, before + 1)
    assert len(own.claim(supervisor_id).jobs) == 1
    own.do(m.SayIdle(("default",), 0.0))
    limit = time.monotonic() + LIMIT
    while rows(conn, "idle_until", "idle", "queue") != [(None,)]:
        assert time.monotonic() < limit


def test_a_second_register_that_waited_is_not_carried_out(own: Running, conn: db.Connection) -> None:
    """Asked again while the answer was on its way: two registrations would fight about the rows."""
    with conn.transaction():
        conn.execute("LOCK proletarian.supervisor IN ACCESS EXCLUSIVE MODE")
        own.do(m.Register(None))
        own.do(m.Register(None))
    own.wait(m.Registered)
    own.do(m.Beat(own.told.of(m.Registered)[0].supervisor_id, "running", {}))
    own.wait(m.Beaten)
    assert len(own.told.of(m.Registered)) == 1
    assert len(rows(conn, "1", "supervisor", "1")) == 1


def test_do_never_blocks_and_close_is_quick(database: str, conn: db.Connection) -> None:
    with running(database) as own:
        supervisor_id = own.register()
        enqueue(conn, "t")
        (job,) = own.claim(supervisor_id).jobs
        with conn.transaction():
            conn.execute("LOCK proletarian.job IN ACCESS EXCLUSIVE MODE")
            started = time.monotonic()
            own.do(success(job))
            own.do(m.Sweep(99, 0))
            own.do(m.Beat(supervisor_id, "running", {}))
            assert time.monotonic() - started < 1
            conn.execute("SELECT pg_sleep(0.1)")
        own.stored(job.run_id)
        started = time.monotonic()
    assert time.monotonic() - started < 3


def test_a_stalled_outcome_does_not_starve_the_lease(own: Running, conn: db.Connection) -> None:
    supervisor_id = own.register()
    enqueue(conn, "t")
    (job,) = own.claim(supervisor_id).jobs
    with conn.transaction():
        conn.execute("LOCK proletarian.archived_job IN ACCESS EXCLUSIVE MODE")
        own.do(success(job))
        own.do(m.Beat(supervisor_id, "running", {}))
        own.wait(m.Beaten)
        assert own.told.of(m.Stored) == []
    own.stored(job.run_id)


# ---------------------------------------------------------------------------------------------------------------------
# Outcomes


def test_waiting_outcomes_go_in_one_batch(own: Running, conn: db.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor_id = own.register()
    enqueue_many(conn, [NewJob("t") for _ in range(450)])
    jobs = own.claim(supervisor_id, 450).jobs
    sizes: list[int] = []
    write = database_threads._write

    def counted(*args: Any) -> dict[UUID, str]:
        sizes.append(len(args[2]))
        return write(*args)

    monkeypatch.setattr(database_threads, "_write", counted)
    with conn.transaction():
        conn.execute("LOCK proletarian.job IN ACCESS EXCLUSIVE MODE")
        for job in jobs:
            own.do(success(job))
    own.wait(m.Stored, 450)
    assert all(stored.how == "stored" for stored in own.told.of(m.Stored))
    assert sum(sizes) == 450
    assert len(sizes) <= 5


def test_a_bad_row_does_not_poison_its_batch(own: Running, conn: db.Connection) -> None:
    """Correction 24."""
    supervisor_id = own.register()
    enqueue_many(conn, [NewJob("t") for _ in range(12)])
    jobs = own.claim(supervisor_id, 12).jobs
    outcomes: list[m.Outcome] = [success(job) for job in jobs[:6]]
    outcomes += [
        success(jobs[6], b'"\\u0000"'),
        success(jobs[7], b"NaN"),
        success(jobs[8], b"\xff\xfe"),
        m.Archive(jobs[9].job_id, jobs[9].run_id, "failure", "crash", {"exit_code": "many", "max_rss": 1}),
        m.Retry(jobs[10].job_id, jobs[10].run_id, float("inf"), 10**10, {"reason": "x"}),
        m.Retry(jobs[11].job_id, jobs[11].run_id, 1e300, 0, {"number": float("nan")}),
    ]
    with conn.transaction():
        conn.execute("LOCK proletarian.job IN ACCESS EXCLUSIVE MODE")
        for outcome in outcomes[:10] + outcomes[11:]:
            own.do(outcome)
    own.wait(m.Stored, 11)
    assert {stored.how for stored in own.told.of(m.Stored)} == {"stored"}
    seen = {row[0]: row[1:] for row in rows(conn, "job_id, status, reason, error ->> 'message'", "archived_job")}
    assert [seen[job.job_id][:2] for job in jobs[:6]] == [("success", None)] * 6
    for job in jobs[6:9]:
        status, reason, message = seen[job.job_id]
        assert (status, reason) == ("failure", "bad-result")
        assert message.isascii()
    assert seen[jobs[9].job_id][:2] == ("failure", "crash")
    assert "could not be stored" in seen[jobs[9].job_id][2]
    (state, history) = rows(conn, "state, history", "job WHERE state = 0")[0]
    assert state == 0
    assert history[0]["reason"] == "unstorable"


def save(job: m.Job, number: int, data: bytes = b"1", *, wait: bool = False) -> m.SaveCheckpoint:
    return m.SaveCheckpoint(job.job_id, job.run_id, number, data, wait)


def test_the_newest_checkpoint_is_written_and_before_the_outcome(own: Running, conn: db.Connection) -> None:
    """Of what comes too quickly only the newest is written, soon; at once where somebody waits, and with what the run
    comes to; and the next run finds it."""
    supervisor_id = own.register()
    enqueue(conn, "t")
    (job,) = own.claim(supervisor_id).jobs
    assert job.checkpoint is None
    own.do(save(job, 1, b"[1]"))
    assert own.wait(m.CheckpointStored) == m.CheckpointStored(job.run_id, 1)
    own.do(save(job, 2, b"[2]"), save(job, 3, b"[3]"))
    own.wait(m.CheckpointStored, 2)
    own.do(save(job, 4, b"[4]"))
    own.do(save(job, 5, b"[5]", wait=True))
    own.wait(m.CheckpointStored, where=lambda event: event.number == 5)
    own.do(save(job, 6, b"[6]"))
    own.do(m.Release(job.job_id, job.run_id, "shutdown"))
    assert own.stored(job.run_id).how == "stored"
    assert [event.number for event in own.told.of(m.CheckpointStored)][1:] in ([3, 5, 6], [3, 4, 5, 6])
    (again,) = own.claim(supervisor_id).jobs
    assert again.checkpoint == b"[6]"


def test_checkpoints_that_wait_behind_a_statement_take_the_memory_of_one(own: Running, conn: db.Connection) -> None:
    supervisor_id = own.register()
    enqueue(conn, "t")
    (job,) = own.claim(supervisor_id).jobs
    tracemalloc.start()
    try:
        with conn.transaction():
            conn.execute("LOCK TABLE proletarian.job")
            own.do(save(job, 1))
            for number in range(2, 100):
                own.do(save(job, number, b'"' + b"x" * (1 << 20) + b'"'))
            held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 20 << 20
    own.wait(m.CheckpointStored, where=lambda event: event.number == 99)


def test_a_checkpoint_of_another_run_or_of_no_json_is_refused(own: Running, conn: db.Connection) -> None:
    supervisor_id = own.register()
    enqueue(conn, "t")
    (job,) = own.claim(supervisor_id).jobs
    own.do(save(job, 1, b"[1]", wait=True))
    own.wait(m.CheckpointStored)
    own.do(save(job, 2, b'{"broken', wait=True))
    error = own.wait(m.CheckpointStored, 2).error
    assert error is not None
    assert "invalid input syntax for type json" in error
    conn.execute("UPDATE proletarian.job SET run_id = gen_random_uuid()")
    own.do(save(job, 3, b"[3]", wait=True))
    error = own.wait(m.CheckpointStored, 3).error
    assert error is not None
    assert error.startswith("this run is not the job's any more")
    assert rows(conn, "checkpoint") == [([1],)]


def test_checkpoints_wait_through_an_outage_the_newest_of_each_run(own: Running, conn: db.Connection) -> None:
    supervisor_id = own.register()
    enqueue_many(conn, [NewJob("t"), NewJob("t")])
    one, two = own.claim(supervisor_id, 2).jobs
    with conn.transaction():
        conn.execute("LOCK TABLE proletarian.job")  # so that it is at the first one when its connection is gone
        own.do(save(one, 1, wait=True))
        terminate(conn, "store")
        own.wait(m.DatabaseLost)
        own.do(*[save(run, number, b"%d" % number) for number in range(2, 50) for run in (one, two)])
    own.wait(m.DatabaseBack)
    own.do(success(two))
    own.stored(two.run_id)
    own.wait(m.CheckpointStored, where=lambda event: event.run_id == one.run_id and event.number == 49)
    assert rows(conn, "checkpoint") == [(49,)]
    assert rows(conn, "checkpoint", "archived_job") == [(49,)]
    numbers = [event.number for event in own.told.of(m.CheckpointStored)]
    assert set(numbers) <= {1, 49}, "of those that came during the outage the newest"


def test_a_stale_outcome_is_refused(own: Running, conn: db.Connection) -> None:
    supervisor_id = own.register()
    enqueue(conn, "t")
    (stale,) = own.claim(supervisor_id).jobs
    own.do(m.Release(stale.job_id, stale.run_id, "shutdown"))
    own.stored(stale.run_id)
    (job,) = own.claim(supervisor_id).jobs
    run = uuid4()
    own.do(m.Archive(job.job_id, run, "failure", "crash", {}))
    assert own.stored(run).how == "refused"
    own.do(success(job))
    assert own.stored(job.run_id).how == "stored"


@pytest.mark.parametrize("how", ["archive", "retry", "release", "cancelled"])
def test_an_outcome_whose_answer_was_lost(
    own: Running, conn: db.Connection, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Correction 24: the statement commits, the connection dies before the answer: stored once, and told as stored,
    not refused."""
    supervisor_id = own.register()
    enqueue(conn, "t")
    (job,) = own.claim(supervisor_id).jobs
    outcomes: dict[str, m.Outcome] = {
        "archive": success(job),
        "retry": m.Retry(job.job_id, job.run_id, 60.0, 0, {"reason": "exception"}),
        "release": m.Release(job.job_id, job.run_id, "shutdown"),
        "cancelled": m.Release(job.job_id, job.run_id, "shutdown"),
    }
    if how == "cancelled":
        cancel(conn, job.job_id)
    for name in ("finish", "give_back"):
        monkeypatch.setattr(db, name, losing_the_answer(getattr(db, name)))
    own.do(outcomes[how])
    assert own.stored(job.run_id) == m.Stored(job.run_id, "cancelled" if how == "cancelled" else "stored", late=True)
    assert db.counts(conn).jobs + db.counts(conn).archived == 1
    assert rows(conn, "starts, attempts") in ([], [(1, 1)], [(1, 0)])


def losing_the_answer(function: Callable[..., Any]) -> Callable[..., Any]:
    """The first call does its work and then breaks the connection."""
    calls: list[int] = []

    def call(conn: db.Connection, *args: Any) -> Any:
        answer = function(conn, *args)
        calls.append(1)
        if len(calls) == 1:
            with socket.socket(fileno=os.dup(conn.fileno())) as raw:
                raw.shutdown(socket.SHUT_RDWR)
            conn.execute("SELECT 1")
        return answer

    return call


def test_a_deadlock_is_tried_again(own: Running, conn: db.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Correction 22."""
    supervisor_id = own.register()
    enqueue(conn, "t")
    (job,) = own.claim(supervisor_id).jobs
    finish = db.finish
    raised = [psycopg.errors.DeadlockDetected("1"), psycopg.errors.SerializationFailure("2")]

    def sometimes(*args: Any) -> set[UUID]:
        if raised:
            raise raised.pop()
        return finish(*args)

    monkeypatch.setattr(db, "finish", sometimes)
    own.do(success(job))
    assert own.stored(job.run_id) == m.Stored(job.run_id, "stored", late=False)


def test_an_error_of_another_kind_is_told_once_and_the_outcome_kept(own: Running, conn: db.Connection) -> None:
    supervisor_id = own.register()
    enqueue_many(conn, [NewJob("t"), NewJob("t")])
    (job,) = own.claim(supervisor_id).jobs
    conn.execute("ALTER TABLE proletarian.archived_job RENAME TO elsewhere")
    own.do(success(job))
    own.wait(m.PollFailed)
    own.lost_claim(supervisor_id)  # answered, although the outcome before it is stuck
    assert len(own.told.of(m.PollFailed)) == 1
    conn.execute("ALTER TABLE proletarian.elsewhere RENAME TO archived_job")
    assert own.stored(job.run_id).how == "stored"
    assert len(own.claim(supervisor_id).jobs) == 1
    assert own.told.of(m.DatabaseLost) == []


def test_a_claim_that_fails_is_told_and_answered(own: Running, conn: db.Connection) -> None:
    supervisor_id = own.register()
    conn.execute("ALTER TABLE proletarian.queue RENAME TO elsewhere")
    own.lost_claim(supervisor_id)
    assert "does not exist" in own.wait(m.PollFailed).error
    conn.execute("ALTER TABLE proletarian.elsewhere RENAME TO queue")
    own.claim(supervisor_id)


# ---------------------------------------------------------------------------------------------------------------------
# Outages


def test_a_claim_whose_answer_was_lost(own: Running, conn: db.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Correction 18: the rows are ours and nobody runs them: the claim is answered as lost, and the next beat shows
    them."""
    supervisor_id = own.register()
    job_id = enqueue(conn, "t")
    monkeypatch.setattr(db, "claim", losing_the_answer(db.claim))
    order = m.Claim(uuid4(), supervisor_id, (m.Lane(("default",), 1),))
    own.do(order)
    own.wait(m.ClaimLost, where=lambda event: event.claim_id == order.claim_id)
    own.do(m.Beat(supervisor_id, "running", {}))
    rows_ = own.wait(m.Beaten).rows
    assert rows_ is not None
    (held,) = rows_
    assert (held.job_id, held.claim_id) == (job_id, order.claim_id)
    own.do(m.Release(held.job_id, held.run_id, "claim-lost"))
    assert own.stored(held.run_id).how == "stored"
    assert rows(conn, "state, attempts") == [(1, 0)]
    assert own.told.of(m.Claimed) == []


def test_terminated_backends_are_one_outage(own: Running, conn: db.Connection) -> None:
    supervisor_id = own.register()
    own.claim(supervisor_id)
    own.wait(m.Notified)
    terminate(conn)
    own.wait(m.DatabaseBack)
    enqueue(conn, "t")
    own.do(m.Beat(supervisor_id, "running", {}))
    own.wait(m.Beaten)
    own.do(m.SayIdle(("default",), 30.0))
    own.wait(m.IdleSaid)
    while not own.told.of(m.Claimed)[-1].jobs:
        order = m.Claim(uuid4(), supervisor_id, (m.Lane(("default",), 1),))
        own.do(order)
        own.wait(m.Claimed, len(own.told.of(m.Claimed)) + 1)
    assert len(own.told.of(m.DatabaseLost)) == 1
    assert len(own.told.of(m.DatabaseBack)) == 1
    own.wait(m.Notified, 2)  # the listener is back too


def test_an_idle_thread_whose_connection_is_gone_does_not_spin(own: Running, conn: db.Connection) -> None:
    own.register()
    own.wait(m.Notified)
    before = backends(conn, "store")
    terminate(conn, "store")
    own.wait(m.DatabaseBack)
    limit = time.monotonic() + LIMIT
    while (
        not (after := backends(conn, "store")) or after == before
    ):  # it has noticed without being asked to do anything
        assert time.monotonic() < limit
    used = cpu_seconds()
    time.sleep(0.5)
    assert cpu_seconds() - used < 0.25


@pytest.fixture(scope="module")
def kept_server() -> Iterator[LocalPostgres]:
    with tempfile.TemporaryDirectory(prefix="ganger-outage-") as folder:
        Path(folder).chmod(0o711)
        server = LocalPostgres(Path(folder) / "server", durable=False)
        yield server
        server.reset()


@pytest.fixture
def server(kept_server: LocalPostgres) -> LocalPostgres:
    """A server that the test may stop and kill."""
    with db.connect(kept_server.start()) as conn:
        conn.execute("DROP SCHEMA IF EXISTS proletarian CASCADE")
        db.install(conn)
    return kept_server


def test_an_outage_of_the_server(server: LocalPostgres) -> None:
    """Stopped and started: outcomes are kept and stored late, claims are answered as lost at once, told once."""
    with running(server.conninfo) as own:
        supervisor_id = own.register()
        own.wait(m.Notified)
        with db.connect(server.conninfo) as conn:
            enqueue_many(conn, [NewJob("t") for _ in range(4)])
        done, failed, cut, _ = jobs = own.claim(supervisor_id, 4).jobs
        server.stop()
        own.wait(m.DatabaseLost)
        for _ in range(3):
            started = time.monotonic()
            own.lost_claim(supervisor_id)
            assert time.monotonic() - started < 1
        own.do(success(done))
        own.do(m.Retry(failed.job_id, failed.run_id, 60.0, 0, {"reason": "exception"}))
        own.do(m.Release(cut.job_id, cut.run_id, "shutdown", interrupted=True))
        own.do(m.Sweep(99, 0))
        assert own.wait(m.Swept).jobs == ()
        own.do(m.Beat(supervisor_id, "running", {}))
        own.do(m.Look(supervisor_id))
        assert own.told.of(m.Stored) == []
        server.start()
        for job in jobs[:3]:
            assert own.stored(job.run_id) == m.Stored(job.run_id, "stored", late=True)
        back = own.wait(m.DatabaseBack)
        assert back.seconds > 0
        beaten = own.wait(m.Beaten)
        assert beaten.rows is not None
        assert len(beaten.rows) <= 4
        assert len(own.claim(supervisor_id, 4).jobs) == 1  # the released one; the other waits for its retry
        assert len(own.told.of(m.DatabaseLost)) == 1
        assert len(own.told.of(m.DatabaseBack)) == 1
        with db.connect(server.conninfo) as conn:
            assert rows(conn, "state, attempts, interrupts", order="state, seq") == [(0, 1, 0), (2, 1, 1), (2, 1, 0)]
            assert rows(conn, "status", "archived_job") == [("success",)]


def test_close_in_an_outage_is_quick(server: LocalPostgres) -> None:
    with running(server.conninfo) as own:
        own.register()
        server.stop()
        own.wait(m.DatabaseLost)
        own.do(m.Archive(uuid4(), uuid4(), "success", None, {}))
        started = time.monotonic()
    assert time.monotonic() - started < 3


def test_a_database_that_is_not_there_at_the_start(server: LocalPostgres) -> None:
    server.stop()
    with running(server.conninfo) as own:
        own.wait(m.DatabaseLost)
        own.do(m.Register(None))
        server.start()
        own.wait(m.Registered)
        own.wait(m.DatabaseBack)


def test_a_read_only_database_is_an_outage(server: LocalPostgres) -> None:
    """After a failover the old address may lead to a standby: 25006. The outcome waits until it can be written."""
    with running(server.conninfo) as own:
        supervisor_id = own.register()
        with db.connect(server.conninfo) as conn:
            enqueue(conn, "t")
        (job,) = own.claim(supervisor_id).jobs
        # A session's default can be overruled, and is; so the refusal itself is provoked here.
        with pytest.MonkeyPatch.context() as patch:
            refused = psycopg.errors.lookup("25006")

            def finish(*args: Any) -> set[UUID]:
                raise refused("cannot execute DELETE in a read-only transaction")

            patch.setattr(refused, "sqlstate", "25006")
            patch.setattr(db, "finish", finish)
            own.do(success(job))
            own.wait(m.DatabaseLost)
            own.wait(m.DatabaseLost, 2)  # a new connection changes nothing yet
        assert own.stored(job.run_id) == m.Stored(job.run_id, "stored", late=True)


def test_a_peer_that_says_nothing_more(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy takes everything and passes nothing on, its kernel acknowledging: noticed by our own limit."""
    monkeypatch.setattr(db, "ANSWER_MARGIN", 0.5 - db.STATEMENT_TIMEOUT)
    with Proxy(database) as proxy, running(proxy.conninfo) as own:
        supervisor_id = own.register()
        own.claim(supervisor_id)
        own.wait(m.Notified)
        proxy.frozen.set()
        order = m.Claim(uuid4(), supervisor_id, (m.Lane(("default",), 1),))
        own.do(order)
        limit = time.monotonic() + LIMIT
        while order.claim_id not in [event.claim_id for event in own.told.of(m.ClaimLost)]:
            time.sleep(0.05)
            assert time.monotonic() < limit
        own.wait(m.DatabaseLost)
        proxy.frozen.clear()
        own.wait(m.DatabaseBack)
        own.claim(supervisor_id)
        assert len(own.told.of(m.DatabaseLost)) == 1


class Proxy:
    """Between a client and the test's database, over TCP. While it is frozen it takes no new connection either."""

    def __init__(self, database: str) -> None:
        facts = conninfo_to_dict(database)
        self._server = f"{facts['host']}/.s.PGSQL.{facts['port']}"
        self._listener = socket.create_server(("127.0.0.1", 0))
        host, port = self._listener.getsockname()
        self.conninfo = make_conninfo(database, host=host, port=port, sslmode="disable", gssencmode="disable")
        self.frozen = threading.Event()
        self._closing = False
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self._thread.join(10)
        for each in [self._listener, *self._pairs]:
            each.close()

    def _run(self) -> None:
        while not self._closing:
            ready, _, _ = select.select([self._listener, *self._pairs], [], [], 0.02)
            for each in [] if self.frozen.is_set() else ready:
                if each is self._listener:
                    self._accept()
                elif each in self._pairs:
                    self._pass_on(each)

    def _accept(self) -> None:
        client, server = self._listener.accept()[0], socket.socket(socket.AF_UNIX)
        server.connect(self._server)
        self._pairs |= {client: server, server: client}

    def _pass_on(self, source: socket.socket) -> None:
        try:
            data = source.recv(65536)
            self._pairs[source].sendall(data)
        except OSError:
            data = b""
        if not data:
            for each in (self._pairs.pop(source), source):
                self._pairs.pop(each, None)
                each.close()
