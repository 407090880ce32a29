"""What an application sees: enqueue, enqueue_async, enqueue_many and cancel in its own transaction."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import IsolationLevel
from psycopg.rows import class_row, dict_row, namedtuple_row, scalar_row

from ganger import database as db
from ganger.client import BadJob, DuplicateJob, NewJob, cancel, enqueue, enqueue_async, enqueue_many
from ganger.core.messages import Archive
from tests.database.conftest import S, claim, register, rows

Plain = psycopg.Connection[Any]


@pytest.fixture
def plain(database: str) -> Any:
    """An application's connection, as psycopg gives it."""
    with psycopg.connect(database) as conn:
        yield conn


# ---------------------------------------------------------------------------------------------------------------------
# Transactions


def test_visible_at_commit_and_gone_at_rollback(plain: Plain, conn: db.Connection) -> None:
    enqueue(plain, "t")
    assert db.counts(conn).jobs == 0
    plain.rollback()
    assert db.counts(conn).jobs == 0
    job_id = enqueue(plain, "t", {"n": 1})
    plain.commit()
    assert rows(conn, "job_id, state, payload") == [(job_id, 1, {"n": 1})]


def test_in_a_block_and_in_autocommit(database: str, conn: db.Connection) -> None:
    with psycopg.connect(database, autocommit=True) as plain:
        with plain.transaction():
            enqueue(plain, "t")
            assert db.counts(conn).jobs == 0
        assert db.counts(conn).jobs == 1
        enqueue(plain, "t")
        assert db.counts(conn).jobs == 2


def test_enqueue_many_leaves_the_transaction_to_the_caller(plain: Plain, conn: db.Connection) -> None:
    enqueue_many(plain, [NewJob("t"), NewJob("t")])
    assert db.counts(conn).jobs == 0
    plain.rollback()
    enqueue_many(plain, [NewJob("t"), NewJob("t", unique_key="k")])
    assert db.counts(conn).jobs == 0
    plain.rollback()
    assert db.counts(conn).jobs == 0
    enqueue_many(plain, [NewJob("t")])
    plain.commit()
    assert db.counts(conn).jobs == 1


class _Row:
    def __init__(self, **columns: object) -> None: ...


@pytest.mark.parametrize("factory", [dict_row, namedtuple_row, scalar_row, class_row(_Row)])
def test_any_row_factory(plain: Plain, factory: Any) -> None:
    plain.row_factory = factory
    plain.cursor_factory = psycopg.RawCursor
    job_id = enqueue(plain, "t", job_id=uuid4())
    assert enqueue(plain, "t", job_id=job_id, on_duplicate="ignore") == job_id
    assert len(enqueue_many(plain, [NewJob("t"), NewJob("t")])) == 2
    assert cancel(plain, job_id) == "cancelled"


@pytest.mark.parametrize("level", list(IsolationLevel))
def test_any_isolation_level(plain: Plain, level: IsolationLevel) -> None:
    plain.isolation_level = level
    job_id = enqueue(plain, "t", unique_key="k")
    with pytest.raises(DuplicateJob) as caught:
        enqueue(plain, "t", unique_key="k")
    assert caught.value.job_id == job_id
    enqueue_many(plain, [NewJob("t")])
    assert cancel(plain, job_id) == "cancelled"
    plain.commit()


def test_async(database: str, conn: db.Connection) -> None:
    async def main() -> tuple[UUID, UUID]:
        async with await psycopg.AsyncConnection.connect(database) as plain:
            with pytest.raises(BadJob, match="priority"):
                await enqueue_async(plain, "t", priority=True)
            first = await enqueue_async(plain, "t", {"a": [1]}, unique_key="k", priority=-3)
            assert db.counts(conn).jobs == 0
            await plain.commit()
            with pytest.raises(DuplicateJob):
                await enqueue_async(plain, "t", unique_key="k")
            return first, await enqueue_async(plain, "t", unique_key="k", on_duplicate="ignore")

    first, second = asyncio.run(main())
    assert first == second
    assert rows(conn, "job_id, payload, priority") == [(first, {"a": [1]}, -3)]


# ---------------------------------------------------------------------------------------------------------------------
# What is stored


def test_every_option_is_stored(plain: Plain) -> None:
    job_id = uuid4()
    assert job_id == enqueue(
        plain, "type", {"a": "ü€😀"}, queue="q", priority=7, timeout=timedelta(minutes=1), grace=0, memory=1 << 31,
        shutdown="finish", job_id=job_id, unique_key="k",
    )  # fmt: skip
    columns = (
        "job_id, job_type, queue, payload, priority, timeout_s, grace_s, memory_bytes, shutdown, unique_key, attempts"
    )
    assert plain.execute(f"SELECT {columns} FROM proletarian.job".encode()).fetchone() == (
        job_id, "type", "q", {"a": "ü€😀"}, 7, 60.0, 0.0, 1 << 31, "finish", "k", 0,
    )  # fmt: skip


def test_enqueue_many_stores_the_same_as_enqueue(plain: Plain) -> None:
    """With COPY and without: a row has the same columns whichever way it came."""
    at = datetime(2100, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=5)))
    options: list[dict[str, Any]] = [
        {},
        {"payload": {"text": 'a\tb\\c\n"d"', "none": None}},
        {"queue": "q", "priority": -5, "timeout": 1.5, "grace": 2, "memory": 3, "shutdown": "wait"},
        {"process_at": at},
        {"process_at": datetime(2000, 1, 1, tzinfo=UTC)},
        {"process_in": timedelta(days=1)},
        {"process_in": 0.5},
    ]
    for number, option in enumerate(options):
        enqueue(plain, f"one {number}", **option)
    copied = enqueue_many(plain, [NewJob(f"copy {number}", **option) for number, option in enumerate(options)])
    keyed = enqueue_many(
        plain, [NewJob(f"key {number}", unique_key=str(-number), **o) for number, o in enumerate(options)]
    )
    columns = """queue, payload, priority, timeout_s, grace_s, memory_bytes, shutdown, state, process_at, attempts,
                 process_at = now(), enqueued_at = now(), history"""

    def stored(kind: str) -> list[tuple[Any, ...]]:
        query = f"SELECT {columns} FROM proletarian.job WHERE job_type LIKE '{kind} %' ORDER BY job_type"
        return plain.execute(query.encode()).fetchall()

    assert stored("one") == stored("copy") == stored("key")
    assert [row[7] for row in stored("one")] == [1, 1, 1, 0, 1, 0, 0]
    ids = plain.execute("SELECT job_id FROM proletarian.job WHERE job_type LIKE 'copy %' ORDER BY job_type").fetchall()
    assert [job_id for (job_id,) in ids] == copied
    ids = plain.execute("SELECT job_id FROM proletarian.job WHERE job_type LIKE 'key %' ORDER BY job_type").fetchall()
    assert [job_id for (job_id,) in ids] == keyed


def test_ids_are_version_7_and_plain(plain: Plain) -> None:
    ids = [enqueue(plain, "t"), *enqueue_many(plain, [NewJob("t"), NewJob("t")])]
    assert all(type(each) is UUID and each.version == 7 for each in ids)
    assert ids == sorted(ids)


def test_process_in_counts_from_the_databases_clock(plain: Plain) -> None:
    enqueue(plain, "t", process_in=timedelta(minutes=5))
    assert plain.execute("SELECT state, process_at - now() FROM proletarian.job").fetchone() == (
        0,
        timedelta(minutes=5),
    )


def test_a_payload_of_a_megabyte(plain: Plain) -> None:
    enqueue(plain, "t", "x" * (1 << 20))
    assert plain.execute("SELECT length(payload #>> '{}') FROM proletarian.job").fetchone() == (1 << 20,)


def test_own_dumps(plain: Plain) -> None:
    enqueue(plain, "t", {"d": Decimal("1.5")}, dumps=lambda value: json.dumps(value, default=str).encode())
    assert plain.execute("SELECT payload FROM proletarian.job").fetchone() == ({"d": "1.5"},)


def test_text_that_only_looks_like_nul_is_fine(plain: Plain) -> None:
    for payload in ("\\u0000", {"\\\\u0000": "\\ud800"}, "😀", "a\\"):
        enqueue(plain, "t", payload)
        enqueue(plain, "t", payload, dumps=lambda value: json.dumps(value, ensure_ascii=False))
    stored = [payload for (payload,) in plain.execute("SELECT payload FROM proletarian.job ORDER BY seq").fetchall()]
    assert stored == [p for p in ("\\u0000", {"\\\\u0000": "\\ud800"}, "😀", "a\\") for _ in range(2)]


# ---------------------------------------------------------------------------------------------------------------------
# What is refused


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def ring() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


BAD: list[tuple[str, dict[str, Any]]] = [
    ("job_type", {"job_type": ""}),
    ("job_type", {"job_type": None}),
    ("job_type", {"job_type": "a\0b"}),
    ("job_type", {"job_type": "\ud800"}),
    ("job_type", {"job_type": "x" * 501}),
    ("queue", {"queue": ""}),
    ("queue", {"queue": 3}),
    ("queue", {"queue": "q\0"}),
    ("unique_key", {"unique_key": ""}),
    ("unique_key", {"unique_key": "\0"}),
    ("unique_key", {"unique_key": "x" * 501}),
    ("process_at", {"process_at": datetime(2030, 1, 1)}),
    ("process_at", {"process_at": "2030-01-01T00:00:00Z"}),
    ("process_at", {"process_at": 0}),
    ("process_at", {"process_at": datetime.now(UTC), "process_in": 1}),
    ("process_in", {"process_in": -1}),
    ("process_in", {"process_in": timedelta(seconds=-1)}),
    ("process_in", {"process_in": float("nan")}),
    ("process_in", {"process_in": float("inf")}),
    ("process_in", {"process_in": True}),
    ("process_in", {"process_in": "5"}),
    ("process_in", {"process_in": 10**12}),
    ("timeout", {"timeout": 0}),
    ("timeout", {"timeout": -1}),
    ("timeout", {"timeout": float("inf")}),
    ("timeout", {"timeout": False}),
    ("grace", {"grace": -0.1}),
    ("grace", {"grace": "1"}),
    ("memory", {"memory": 0}),
    ("memory", {"memory": 1.5}),
    ("memory", {"memory": True}),
    ("memory", {"memory": 1 << 63}),
    ("priority", {"priority": 1.0}),
    ("priority", {"priority": True}),
    ("priority", {"priority": 1 << 15}),
    ("shutdown", {"shutdown": "later"}),
    ("shutdown", {"shutdown": ["wait"]}),
    ("job_id", {"job_id": "not a uuid"}),
    ("job_id", {"job_id": 0}),
    ("payload", {"payload": float("nan")}),
    ("payload", {"payload": {"a": [float("-inf")]}}),
    ("payload", {"payload": "a\0b"}),
    ("payload", {"payload": {"\0": 1}}),
    ("payload", {"payload": "\\\0"}),
    ("payload", {"payload": "\ud800"}),
    ("payload", {"payload": {"\udfff": 1}}),
    ("payload", {"payload": "\ud800", "dumps": lambda v: json.dumps(v, ensure_ascii=False)}),
    ("payload", {"payload": nested(201)}),
    ("payload", {"payload": nested(10_000)}),
    ("payload", {"payload": nested(100_000)}),
    ("payload", {"payload": {"n": 1e400}}),
    ("payload", {"payload": None, "dumps": lambda v: "9" * 5000}),
    ("payload", {"payload": None, "dumps": lambda v: '{"a": 1, "a": 2}'}),
    ("payload", {"payload": {1: "a", "1": "b"}}),
    ("payload", {"payload": None, "dumps": lambda v: "1e-20000"}),
    ("payload", {"payload": None, "dumps": lambda v: "0." + "1" * 20_000}),
    ("payload", {"payload": ring()}),
    ("payload", {"payload": object()}),
    ("payload", {"payload": b"bytes"}),
    ("payload", {"payload": 10**5000}),
    ("payload", {"payload": None, "dumps": lambda v: "1e400"}),
    ("payload", {"payload": None, "dumps": lambda v: "{not json"}),
    ("payload", {"payload": None, "dumps": lambda v: ""}),
    ("payload", {"payload": None, "dumps": lambda v: 5}),
    ("payload", {"payload": None, "dumps": lambda v: b"\xff"}),
    ("payload", {"payload": "x" * 100, "max_payload": 100}),
    ("payload", {"payload": "é" * 50, "max_payload": 100, "dumps": lambda v: json.dumps(v, ensure_ascii=False)}),
    ("on_duplicate", {"on_duplicate": "replace"}),
]


def test_a_bad_argument_is_named_and_nothing_is_written(plain: Plain) -> None:
    """D34, https://github.com/encode/django-rest-framework/issues/5235: an infinity, an integer of 5,000 digits, a
    payload that is nested too deep, and every other argument that PostgreSQL or a reader of JSON could not take."""
    plain.execute("CREATE TEMPORARY TABLE before (n int)")
    for argument, options in BAD:  # one test, because each would make a database of its own
        with pytest.raises(BadJob, match=argument):
            enqueue(plain, **({"job_type": "t"} | options))
        of_a_job = {name: value for name, value in options.items() if name in NewJob.__dataclass_fields__}
        rest = {name: value for name, value in options.items() if name not in of_a_job}
        with pytest.raises(BadJob, match=argument):
            enqueue_many(plain, [NewJob("good"), NewJob(**({"job_type": "t"} | of_a_job))], **rest)
    assert plain.execute("SELECT (SELECT count(*) FROM proletarian.job), (SELECT count(*) FROM before)").fetchone() == (
        0,
        0,
    )  # the transaction is not aborted either


def test_the_deepest_payload_that_is_taken_can_be_read_back(plain: Plain) -> None:
    enqueue(plain, "t", nested(200))
    assert plain.execute("SELECT payload FROM proletarian.job").fetchone() == (nested(200),)
    enqueue(plain, "t", ["[" * 1000])


# ---------------------------------------------------------------------------------------------------------------------
# Duplicates


@pytest.mark.parametrize("key", ["job_id", "unique_key"])
def test_a_duplicate_raises_and_the_transaction_goes_on(plain: Plain, key: str) -> None:
    options: dict[str, Any] = {key: uuid4() if key == "job_id" else "k"}
    job_id = enqueue(plain, "t", **options)
    with pytest.raises(DuplicateJob, match=key) as caught:
        enqueue(plain, "t", **options)
    assert caught.value.job_id == job_id
    assert enqueue(plain, "t", **options, on_duplicate="ignore") == job_id
    plain.commit()
    assert plain.execute("SELECT count(*) FROM proletarian.job").fetchone() == (1,)


def test_a_job_id_is_remembered_by_the_archive_and_a_unique_key_is_not(conn: db.Connection) -> None:
    """Correction 30."""
    job_id = uuid4()
    enqueue(conn, "t", job_id=job_id, unique_key="k")
    (job,) = claim(conn, register(conn))
    with pytest.raises(DuplicateJob):
        enqueue(conn, "t", unique_key="k")
    assert db.finish(conn, S, [Archive(job.job_id, job.run_id, "success", None, {})]) == {job.run_id}
    with pytest.raises(DuplicateJob) as caught:
        enqueue(conn, "t", job_id=job_id)
    assert caught.value.job_id == job_id
    assert enqueue(conn, "t", job_id=job_id, on_duplicate="ignore") == job_id
    assert db.counts(conn) == db.Counts(0, 0, 1)
    enqueue(conn, "t", unique_key="k")
    assert db.counts(conn).jobs == 1


def in_thread(act: Callable[[], Any]) -> Callable[[], Any]:
    """Start it, and return what waits for its end and returns or raises what it did."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(act())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def wait() -> Any:
        thread.join(30)
        assert outcome, "it still waits"
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]

    return wait


def wait_for_lock(conn: db.Connection, pid: int) -> None:
    while conn.execute("SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone() != ("Lock",):
        pass


@pytest.mark.parametrize("commit", [True, False])
def test_the_same_key_in_two_open_transactions(database: str, plain: Plain, conn: db.Connection, commit: bool) -> None:
    """The second waits for the first: it is a duplicate if that commits, and the job if not."""
    first = enqueue(plain, "t", unique_key="k")
    with psycopg.connect(database) as second:
        pid = second.info.backend_pid
        wait = in_thread(lambda: enqueue(second, "t", unique_key="k"))
        wait_for_lock(conn, pid)
        if commit:
            plain.commit()
            with pytest.raises(DuplicateJob) as caught:
                wait()
            assert caught.value.job_id == first
        else:
            plain.rollback()
            assert wait() != first


def test_the_holder_of_the_key_finishes_meanwhile(plain: Plain, conn: db.Connection, other: db.Connection) -> None:
    """A job id whose row leaves for the archive while we wait for it is a duplicate; a unique key is free."""
    job_id = enqueue(conn, "t", job_id=uuid4(), unique_key="k")
    (job,) = claim(conn, register(conn))
    for options in ({"job_id": job_id}, {"unique_key": "k"}):
        with other.transaction(force_rollback="unique_key" not in options):
            db._finish(other, S, [Archive(job.job_id, job.run_id, "success", None, {})])
            wait = in_thread(partial(enqueue, plain, "t", on_duplicate="ignore", **options))
            wait_for_lock(conn, plain.info.backend_pid)
        assert (wait() == job_id) == ("job_id" in options)
        plain.rollback()
    wait = in_thread(lambda: enqueue(plain, "t", job_id=job_id))
    with pytest.raises(DuplicateJob):
        wait()


def test_a_duplicate_that_the_snapshot_cannot_see(plain: Plain, conn: db.Connection) -> None:
    plain.isolation_level = IsolationLevel.REPEATABLE_READ
    plain.execute("SELECT count(*) FROM proletarian.job")
    enqueue(conn, "t", unique_key="k")
    for on_duplicate in ("raise", "ignore"):
        with pytest.raises(DuplicateJob) as caught:
            enqueue(plain, "t", unique_key="k", on_duplicate=on_duplicate)
        assert caught.value.job_id is None
    enqueue(plain, "t")
    plain.commit()
    assert db.counts(conn).jobs == 2


def test_enqueue_many_with_a_duplicate_writes_none(plain: Plain) -> None:
    there = enqueue(plain, "t", unique_key="k")
    batch = [NewJob("t", unique_key="a"), NewJob("t", unique_key="k"), NewJob("t")]
    with pytest.raises(DuplicateJob):
        enqueue_many(plain, batch)
    assert plain.execute("SELECT count(*) FROM proletarian.job").fetchone() == (1,)
    ids = enqueue_many(plain, batch, on_duplicate="ignore")
    assert ids[1] == there
    assert plain.execute("SELECT count(*) FROM proletarian.job").fetchone() == (3,)


def test_enqueue_many_with_the_same_key_twice(plain: Plain) -> None:
    first, second = enqueue_many(plain, [NewJob("t", unique_key="k")] * 2, on_duplicate="ignore")
    assert first == second


def test_many_in_two_orders_never_deadlock(database: str) -> None:
    """Correction 22."""
    keys = [str(number) for number in range(200)]

    def enqueue_in(order: list[str]) -> None:
        with psycopg.connect(database) as plain:
            for _ in range(5):
                enqueue_many(plain, [NewJob("t", unique_key=key) for key in order], on_duplicate="ignore")
                plain.rollback()

    waits = [in_thread(partial(enqueue_in, order)) for order in (keys, keys[::-1]) * 2]
    for wait in waits:
        wait()


def test_enqueue_many_without_the_right_to_copy(postgres: str, database: str, plain: Plain) -> None:
    """A role that may only call the function."""
    role = f"enqueuer-{plain.info.dbname}"
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute(f'CREATE ROLE "{role}" LOGIN'.encode())
        try:
            plain.execute(f'GRANT USAGE ON SCHEMA proletarian TO "{role}"'.encode())
            plain.execute(f'GRANT EXECUTE ON FUNCTION proletarian.enqueue TO "{role}"'.encode())
            plain.commit()
            with psycopg.connect(f"{database} user={role}") as limited:
                assert len(enqueue_many(limited, [NewJob("t"), NewJob("t")])) == 2
            assert plain.execute("SELECT count(*) FROM proletarian.job").fetchone() == (2,)
        finally:
            plain.rollback()
            plain.execute(f'DROP OWNED BY "{role}"'.encode())
            plain.commit()
            admin.execute(f'DROP ROLE "{role}"'.encode())


# ---------------------------------------------------------------------------------------------------------------------
# Notifications


def heard(listener: db.Connection) -> list[str]:
    return [notice.payload for notice in listener.notifies(timeout=0.2)]


@pytest.mark.parametrize("way", ["one", "copy", "keys"])
def test_notifies_only_a_queue_that_is_said_to_be_idle(way: str, conn: db.Connection, other: db.Connection) -> None:
    def put(queue: str, **options: Any) -> None:
        if way == "one":
            enqueue(conn, "t", queue=queue, **options)
        else:
            keys: list[Any] = [str(uuid4()), str(uuid4())] if way == "keys" else [None, None]
            enqueue_many(conn, [NewJob("t", queue=queue, unique_key=key) for key in keys], **options)

    db.listen(other, S)
    put("a")
    assert heard(other) == []
    one, two = register(conn), register(conn, "two")
    db.say_idle(conn, S, one, ["a", "b"], 30)
    put("c")
    assert heard(other) == []
    put("a")
    assert heard(other) == ["a"]
    put("a", notify=False)
    assert heard(other) == []
    db.say_idle(conn, S, two, ["a"], 30)
    db.say_idle(conn, S, one, ["a"], 0)
    put("a")
    assert heard(other) == ["a"]  # two still waits there
    db.deregister(conn, S, two)
    put("a")
    assert heard(other) == []
    put("b")
    assert heard(other) == ["b"]


def test_an_old_snapshot_always_notifies(plain: Plain, conn: db.Connection, other: db.Connection) -> None:
    """Correction 25."""
    db.listen(other, S)
    plain.isolation_level = IsolationLevel.REPEATABLE_READ
    enqueue(plain, "t", queue="a")
    plain.commit()
    assert heard(other) == ["a"]


def test_the_flag_is_read_after_the_insert(plain: Plain, conn: db.Connection, other: db.Connection) -> None:
    """Correction 25: the flag is set while the INSERT waits for a lock: the enqueuer sees it and notifies."""
    db.listen(other, S)
    supervisor_id = register(conn)
    with conn.transaction():
        enqueue(conn, "t", job_id=(job_id := uuid4()))
        wait = in_thread(lambda: enqueue(plain, "t", queue="a", job_id=job_id))
        wait_for_lock(other, plain.info.backend_pid)
        db.say_idle(conn, S, supervisor_id, ["a"], 30)
        conn.execute("DELETE FROM proletarian.job")
    wait()
    plain.commit()
    assert heard(other) == ["a"]


# ---------------------------------------------------------------------------------------------------------------------
# Cancel


def test_cancel_what_does_not_run(plain: Plain, conn: db.Connection) -> None:
    for options in ({}, {"process_in": 60}):
        job_id = enqueue(plain, "t", **options)  # type: ignore[arg-type]
        plain.commit()
        assert cancel(plain, job_id) == "cancelled"
        plain.rollback()
        assert db.counts(conn).jobs == 1
        assert cancel(plain, job_id) == "cancelled"
        plain.commit()
        assert cancel(plain, job_id) == "finished"
        assert rows(conn, "status, reason, attempts, run_id", "archived_job", "finished_at DESC")[0] == (
            "cancelled", "cancelled", 0, None,
        )  # fmt: skip
    assert cancel(plain, uuid4()) == "unknown"
    assert db.counts(conn).jobs == 0


def test_cancel_what_runs(plain: Plain, conn: db.Connection) -> None:
    job_id = enqueue(conn, "t")
    supervisor_id = register(conn)
    (job,) = claim(conn, supervisor_id)
    assert cancel(plain, job_id) == "ordered"
    assert db.look(conn, S, supervisor_id)[0] == ()
    plain.commit()
    (held,) = db.look(conn, S, supervisor_id)[0]
    assert (held.job_id, held.run_id, held.claim_id, held.cancel) == (job_id, job.run_id, job.claim_id, "cancelled")
    assert cancel(plain, job_id, reason="killed") == "ordered"
    assert cancel(plain, job_id) == "ordered"  # a kill is not softened
    plain.commit()
    assert db.look(conn, S, supervisor_id)[0][0].cancel == "killed"
    assert db.finish(conn, S, [Archive(job.job_id, job.run_id, "success", None, {})]) == {job.run_id}
    assert rows(conn, "status, reason", "archived_job") == [("success", None)]  # a success after the order stays one


def test_cancel_waits_for_a_claim_and_then_orders(plain: Plain, conn: db.Connection, other: db.Connection) -> None:
    """Correction 29."""
    job_id = enqueue(conn, "t")
    supervisor_id = register(conn)
    with conn.transaction():
        assert len(claim(conn, supervisor_id)) == 1
        wait = in_thread(lambda: cancel(plain, job_id))
        wait_for_lock(other, plain.info.backend_pid)
    assert wait() == "ordered"


@pytest.mark.parametrize("bad", [{"job_id": "x"}, {"reason": "bored"}])
def test_cancel_refuses_nonsense(plain: Plain, bad: dict[str, Any]) -> None:
    with pytest.raises(BadJob, match=next(iter(bad))):
        cancel(plain, **({"job_id": uuid4()} | bad))
