"""The watermark of the claim: what it saves under a held snapshot, and that what it hides is soon found."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg import sql

from ganger import database as db
from ganger.client import NewJob, enqueue, enqueue_many
from ganger.core import messages as m
from ganger.database import Watermark
from ganger.database_threads import RESCAN, DatabaseThreads, Watermarks
from ganger.sql import statement
from tests.database.conftest import S, claim, facts, register, rows
from tests.database.test_threads import Running, Told, terminate

READY = """
    INSERT INTO proletarian.job (job_type, state, priority, process_at)
    SELECT 't', 1, %s, now() - make_interval(secs => %s) FROM generate_series(1, %s) RETURNING job_id"""
MARK = Watermark(0, "2026-01-01T00:00:00+00:00")


def ready(conn: db.Connection, ago: float = 0.0, *, priority: int = 0, number: int = 1) -> UUID:
    """Write ready rows that are due since so many seconds; return the first one's id."""
    (job_id,) = conn.execute(READY, [priority, ago, number]).fetchall()[0]
    assert isinstance(job_id, UUID)
    return job_id


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


# ---------------------------------------------------------------------------------------------------------------------
# The rule


def test_only_a_full_claim_leaves_a_watermark() -> None:
    """Correction 28."""
    marks = Watermarks(Clock())
    assert marks.before(["a", "b"]) == {}
    marks.after({"a": MARK, "b": None})
    assert marks.before(["a", "b", "c"]) == {"a": MARK}
    marks.after({"b": MARK})  # the claim did not come to "a": what was known of it holds
    assert marks.before(["a", "b"]) == {"a": MARK, "b": MARK}
    marks.after({"a": None, "b": MARK})
    assert marks.before(["a", "b"]) == {"b": MARK}


def test_every_few_seconds_a_claim_starts_from_the_start() -> None:
    """Correction 28: in a deep backlog every claim is full."""
    clock = Clock()
    marks = Watermarks(clock)
    from_the_start = []
    for tenth in range(150):
        clock.now = 1000 + tenth / 10
        if not marks.before(["a"]):
            from_the_start.append(tenth / 10)
        marks.after({"a": MARK})  # always full
    assert from_the_start == [0, RESCAN, 2 * RESCAN]


def test_each_queue_has_its_own_time() -> None:
    clock = Clock()
    marks = Watermarks(clock)
    marks.before(["a"])
    marks.after({"a": MARK})
    clock.now += RESCAN - 1
    marks.before(["b"])
    marks.after({"b": MARK})
    clock.now += 1
    assert marks.before(["a", "b"]) == {"b": MARK}


def test_what_is_forgotten_during_a_claim_stays_forgotten() -> None:
    """The claim under way may have looked before that which made us forget."""
    marks = Watermarks(Clock())
    marks.before(["a"])
    marks.after({"a": MARK})
    assert marks.before(["a"]) == {"a": MARK}
    marks.forget()
    marks.after({"a": MARK})
    assert marks.before(["a"]) == {}
    marks.after({"a": MARK})
    assert marks.before(["a"]) == {"a": MARK}


# ---------------------------------------------------------------------------------------------------------------------
# The claim


def claimed(conn: db.Connection, supervisor_id: int, free: int, start: Watermark | None = None) -> tuple[Any, Any]:
    """Claim from a watermark on: the jobs, and the next watermark."""
    order = m.Claim(uuid4(), supervisor_id, (m.Lane(("default",), free),))
    jobs, _, _, marks = db.claim(conn, S, order, {} if start is None else {"default": start})
    return jobs, marks["default"]


def marked(conn: db.Connection, supervisor_id: int, free: int, start: Watermark | None = None) -> tuple[Any, Any]:
    """The same, of the jobs the ids."""
    jobs, mark = claimed(conn, supervisor_id, free, start)
    return [job.job_id for job in jobs], mark


def test_a_full_claim_tells_how_far_it_got(conn: db.Connection) -> None:
    supervisor_id = register(conn)
    ready(conn, 20, priority=-3)
    ready(conn, 50)
    ready(conn, 40)
    due = dict(rows(conn, "seq, to_json(process_at) #>> '{}'"))
    assert marked(conn, supervisor_id, 2)[1] == Watermark(0, due[2], 2)
    assert marked(conn, supervisor_id, 1)[1] == Watermark(0, due[3], 3)
    assert marked(conn, supervisor_id, 1)[1] is None


def test_an_urgent_newcomer_is_seen_at_once(conn: db.Connection) -> None:
    supervisor_id = register(conn)
    ready(conn, 100, number=5)
    _, mark = marked(conn, supervisor_id, 1)
    urgent = enqueue(conn, "t", priority=-5)
    assert marked(conn, supervisor_id, 1, mark)[0] == [urgent]


def test_a_less_urgent_row_is_not_overtaken_by_one_like_it(conn: db.Connection) -> None:
    """The full claim got an urgent row that is younger than all others: none of those may seem to be gone."""
    supervisor_id = register(conn)
    oldest, old = ready(conn, 100), ready(conn, 50, priority=5)
    urgent = ready(conn, 10, priority=-5)
    ready(conn, 1, priority=5)
    found, mark = marked(conn, supervisor_id, 1)
    assert found == [urgent]
    found, mark = marked(conn, supervisor_id, 1, mark)
    assert found == [oldest]
    assert marked(conn, supervisor_id, 1, mark)[0] == [old]


def test_a_claim_that_falls_short_has_overlooked_nothing(conn: db.Connection) -> None:
    supervisor_id = register(conn)
    ready(conn, 10, number=3)
    _, mark = marked(conn, supervisor_id, 1)
    late = ready(conn, 100)
    found, reached = marked(conn, supervisor_id, 2, mark)
    assert late not in found  # full: hidden, for now
    assert len(found) == 2
    found, reached = marked(conn, supervisor_id, 2, reached)
    assert (found, reached) == ([late], None)


def test_rows_due_since_ever_and_for_ever(conn: db.Connection) -> None:
    supervisor_id = register(conn)
    for due in ("-infinity", "0044-03-15 00:00+00 BC", "infinity"):
        conn.execute("INSERT INTO proletarian.job (job_type, state, process_at) VALUES ('t', 1, %s)", [due])
    mark, found = None, []
    for _ in range(3):
        ids, mark = marked(conn, supervisor_id, 1, mark)
        found += ids
    assert found == [job_id for (job_id,) in rows(conn, "job_id")]


def test_nothing_is_lost(conn: db.Connection, other: db.Connection) -> None:
    """Late commits, back-dated and urgent rows between claims of every size: each is claimed, and once."""
    dice = random.Random(28)
    supervisor_id = register(conn)
    mark: Watermark | None = None
    claimed: list[UUID] = []
    short = 0
    for _ in range(60):
        number, priority, ago = dice.randint(0, 6), dice.choice([-1, 0, 0, 0, 1]), dice.choice([0, 0, 5, 60])
        with other.transaction():
            ready(other, ago, priority=priority, number=number + 1)
            ids, mark = marked(conn, supervisor_id, dice.randint(1, 8), mark)
            claimed += ids
        free = dice.randint(1, 8)
        ids, mark = marked(conn, supervisor_id, free, mark)
        claimed += ids
        assert (mark is None) == (len(ids) < free)
        if mark is None:
            assert rows(conn, "1", "job WHERE state = 1", "1") == []
            short += 1
    ids, mark = marked(conn, supervisor_id, 1000, mark)
    assert 0 < short < 60
    claimed += ids
    assert len(claimed) == len(set(claimed))
    assert {(job_id,) for job_id in claimed} == set(rows(conn, "job_id"))


# ---------------------------------------------------------------------------------------------------------------------
# What it saves


def pages(conn: db.Connection, supervisor_id: int, free: int, start: Watermark) -> int:
    """How many pages a claim touches to find its rows; it is undone."""

    def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield plan
        for child in plan.get("Plans", ()):
            yield from nodes(child)

    values = {
        "supervisor_id": supervisor_id,
        "claim_id": uuid4(),
        "queue": "default",
        "free": free,
        "job_types": None,
        "priority": start.priority,
        "process_at": start.process_at,
        "seq": start.seq,
    }
    query = statement("claim", S).decode()
    for number, name in enumerate(values, 1):  # EXPLAIN alone would see the values, which a generic plan does not
        query = query.replace(f"%({name})s", f"${number}")
    explain = sql.SQL("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE claim ({})")
    with conn.transaction(force_rollback=True):
        conn.execute(f"PREPARE claim AS {query}".encode())
        row = conn.execute(explain.format(sql.SQL(", ").join(map(sql.Literal, values.values())))).fetchone()
        conn.execute("DEALLOCATE claim")
    assert row is not None
    (scan,) = [node for node in nodes(row[0][0]["Plan"]) if node.get("Index Name") == "job_ready"]
    assert "process_at >=" in scan["Index Cond"]
    assert scan["Actual Rows"] == free
    return int(scan["Shared Hit Blocks"] + scan["Shared Read Blocks"])


@pytest.mark.parametrize("plan", ["force_custom_plan", "force_generic_plan"])
def test_a_claim_does_not_walk_over_dead_entries(
    conn: db.Connection, connect: Callable[..., db.Connection], plan: str
) -> None:
    """D68, https://github.com/que-rb/que/pull/131: an old transaction is open, so that vacuum removes nothing."""
    supervisor_id = register(conn)
    old = connect(statement_timeout=0)
    with old.transaction():
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM proletarian.job")
        ready(conn, 3000, number=10_000)
        conn.execute("DELETE FROM proletarian.job")  # what was claimed and has ended, as the index sees it
        ready(conn, 1000, number=50)
        conn.execute("ANALYZE proletarian.job")
        conn.execute(f"SET plan_cache_mode = {plan}".encode())
        _, mark = marked(conn, supervisor_id, 8)
        whole = pages(conn, supervisor_id, 8, Watermark(32767, "-infinity"))
        short = pages(conn, supervisor_id, 8, mark)
        assert short * 3 < whole, (short, whole)


def test_a_watermark_parts_rows_that_are_due_at_the_same_time(conn: db.Connection) -> None:
    """All that one transaction enqueues is due at once; it is claimed in its order, each row once, none left behind."""
    supervisor_id = register(conn)
    with conn.transaction():
        ids = [enqueue(conn, "t", priority=priority) for priority in (5, 0, 5, 0, 5, 5, 0, 5)]
    by_priority = [ids[1], ids[3], ids[6], ids[0], ids[2], ids[4], ids[5], ids[7]]
    mark, found = None, []
    for free in (1, 3, 2, 2):
        claimed_ids, mark = marked(conn, supervisor_id, free, mark)
        found += claimed_ids
    assert found == by_priority
    assert mark is not None
    assert mark.seq == 8


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1_000, 8_000])
def test_claims_do_not_slow_down_while_an_old_transaction_is_open(
    conn: db.Connection, connect: Callable[..., db.Connection], batch: int
) -> None:
    """D68, https://github.com/que-rb/que/pull/131: 8,000 jobs are claimed and finished under a held snapshot. What a
    claim reads in the end is what it read in the beginning, a few pages, and not what has passed; also where all were
    enqueued by one transaction, and so due at the same time."""
    supervisor_id = register(conn)
    conn.execute("SET statement_timeout = 0")
    conn.answer_limit = None
    read: list[int] = []
    old = connect(statement_timeout=0)
    with old.transaction():
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM proletarian.job")
        mark: Watermark | None = None
        for passed in range(0, 8_000, 1_000):
            if passed % batch == 0:
                enqueue_many(conn, [NewJob("t") for _ in range(batch)])
            for _ in range(4):
                jobs, mark = claimed(conn, supervisor_id, 200, mark)
                db.finish(conn, S, [m.Archive(job.job_id, job.run_id, "success", None, {}) for job in jobs])
            assert mark is not None
            read.append(pages(conn, supervisor_id, 8, mark))
            jobs, mark = claimed(conn, supervisor_id, 200, mark)
            db.finish(conn, S, [m.Archive(job.job_id, job.run_id, "success", None, {}) for job in jobs])
    assert db.counts(conn).archived == 8_000
    assert max(read) <= 2 * min(read) + 20, read


# ---------------------------------------------------------------------------------------------------------------------
# The threads: a row that is hidden is found


class Hiding(Running):
    """Threads whose last claim was full, so that a row which becomes ready in the past is hidden."""

    def __init__(self, conninfo: str) -> None:
        self.clock = Clock()
        self.told = Told()
        self.threads = DatabaseThreads(conninfo, S, self.told.post, self.clock, facts())
        self.do = self.threads.do
        self.wait = self.told.wait

    def ids(self, supervisor_id: int, free: int = 1) -> list[UUID]:
        return [job.job_id for job in self.claim(supervisor_id, free).jobs]


@pytest.fixture
def own(database: str) -> Iterator[Hiding]:
    own = Hiding(database)
    own.threads.start()
    yield own
    own.threads.close()


@pytest.fixture
def me(own: Hiding, conn: db.Connection) -> int:
    me = own.register()
    own.wait(m.Notified)  # what was said before it listened, nobody heard
    ready(conn, 50, number=20)
    assert len(own.ids(me)) == 1
    return me


@pytest.fixture
def hidden(own: Hiding, me: int, conn: db.Connection) -> UUID:
    hidden = ready(conn, 100)
    assert own.ids(me) != [hidden]
    return hidden


def test_found_after_some_seconds_of_full_claims(own: Hiding, me: int, hidden: UUID) -> None:
    own.clock.now += RESCAN - 0.1
    assert own.ids(me) != [hidden]
    own.clock.now += 0.2
    assert own.ids(me) == [hidden]


def test_found_by_a_claim_that_falls_short(own: Hiding, me: int, hidden: UUID, conn: db.Connection) -> None:
    claimed = own.claim(me, 100)
    assert claimed.more == (False,)
    assert hidden in [job.job_id for job in claimed.jobs]
    late = ready(conn, 200)
    ready(conn, 1)
    assert own.ids(me) == [late]


def test_found_after_a_notification(own: Hiding, me: int, hidden: UUID, conn: db.Connection) -> None:
    """Correction 28."""
    own.do(m.SayIdle(("default",), 30.0))
    own.wait(m.IdleSaid)
    before = len(own.told.of(m.Notified))
    enqueue(conn, "t")
    own.wait(m.Notified, before + 1)
    assert own.ids(me) == [hidden]


def test_found_after_a_promotion(own: Hiding, me: int, conn: db.Connection) -> None:
    job_id = ready(conn, 100)
    conn.execute("UPDATE proletarian.job SET state = 0 WHERE job_id = %s", [job_id])
    assert own.ids(me) == [job_id]


@pytest.mark.parametrize("how", ["release", "retry"])
def test_found_after_a_stored_return(own: Hiding, me: int, hidden: UUID, how: str) -> None:
    """Correction 28."""
    (job,) = own.claim(me).jobs
    outcomes: dict[str, m.Outcome] = {
        "release": m.Release(job.job_id, job.run_id, "shutdown"),
        "retry": m.Retry(job.job_id, job.run_id, 1000.0, 0, {"reason": "exception"}),
    }
    own.do(outcomes[how])
    own.stored(job.run_id)
    assert own.ids(me) == [hidden]


def test_found_after_a_sweep(own: Hiding, me: int, conn: db.Connection) -> None:
    dead = register(conn, "dead")
    job_id = ready(conn, 100)
    (lost,) = claim(conn, dead)
    assert lost.job_id == job_id
    assert own.ids(me) != [job_id]
    own.do(m.Sweep(dead, 0))
    own.wait(m.Swept)
    assert own.ids(me) == [job_id]


def test_found_after_a_reconnection(own: Hiding, me: int, hidden: UUID, conn: db.Connection) -> None:
    terminate(conn, "store")
    own.wait(m.DatabaseBack)
    assert own.ids(me) == [hidden]


def test_outcomes_alone_leave_the_watermark(own: Hiding, me: int, hidden: UUID) -> None:
    (job,) = own.claim(me).jobs
    own.do(m.Archive(job.job_id, job.run_id, "success", None, {}, None))
    own.stored(job.run_id)
    assert own.ids(me) != [hidden]
