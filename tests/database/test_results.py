"""What an application asks after: how its job is doing, and its result once it has ended."""

from __future__ import annotations

import asyncio
import json
import time
from threading import Timer
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

import ganger
from ganger import ArchivedJob, BadJob, JobRecord, UnknownJob, enqueue, get_job, get_job_async, wait, wait_async
from ganger import database as db
from ganger.core.messages import Archive
from tests.database.conftest import S, claim, register


@pytest.fixture
def app(database: str) -> Any:
    """An application's connection, which is not like ours: dict rows, another date style and zone."""
    with psycopg.connect(
        database, autocommit=True, row_factory=psycopg.rows.dict_row,
        options="-c DateStyle=German -c TimeZone=Asia/Kolkata -c IntervalStyle=sql_standard",
    ) as conn:  # fmt: skip
        yield conn


def end(conn: db.Connection, supervisor_id: int, status: str = "success", result: object = None) -> None:
    (job,) = claim(conn, supervisor_id)
    facts = {} if status == "success" else {"error": {"type": "E", "message": "m"}}
    reason = None if status == "success" else "exception"
    db.finish(conn, S, [Archive(job.job_id, job.run_id, status, reason, facts, json.dumps(result).encode())])


def test_a_job_is_told_of_from_its_queue_to_its_end(app: psycopg.Connection[Any], conn: db.Connection) -> None:
    me = register(conn)
    job_id = enqueue(app, "t", queue="default")
    job = get_job(app, job_id)
    assert job is not None
    assert type(job) is JobRecord
    assert (job.job_id, job.job_type, job.status, job.attempts, job.started_at) == (job_id, "t", "ready", 0, None)
    assert job.enqueued_at is not None
    assert job.enqueued_at.utcoffset() is not None
    assert abs(job.enqueued_at.timestamp() - time.time()) < 60
    end(conn, me, result={"pi": 3.14})
    job = get_job(app, job_id)
    assert isinstance(job, ArchivedJob)
    assert (job.status, job.result, job.error, job.reason, job.attempts) == ("success", {"pi": 3.14}, None, None, 1)
    assert job.finished_at is not None
    assert get_job(app, uuid4()) is None
    conn.execute("UPDATE proletarian.archived_job SET process_at = 'infinity'")
    job = get_job(app, job_id)
    assert job is not None
    assert job.process_at is None


def test_an_application_waits_for_a_result(app: psycopg.Connection[Any], conn: db.Connection) -> None:
    me = register(conn)
    job_id = enqueue(app, "t")
    timer = Timer(0.2, end, [conn, me, "failure"])
    timer.start()
    try:
        job = wait(app, job_id, timeout=20)
    finally:
        timer.join()
    assert (job.status, job.reason, job.error) == ("failure", "exception", {"type": "E", "message": "m"})
    assert wait(app, job_id, 0) == job


def test_an_application_waits_in_vain(app: psycopg.Connection[Any]) -> None:
    job_id = enqueue(app, "t")
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"has not ended within 0.1 s; it is ready"):
        wait(app, job_id, 0.1)
    assert time.monotonic() - began >= 0.1
    nobody = uuid4()
    with pytest.raises(UnknownJob, match=str(nobody)):
        wait(app, nobody, 5)
    for bad in ({"timeout": -1}, {"timeout": "soon"}, {"schema": "no schema"}):
        with pytest.raises(BadJob, match=next(iter(bad))):
            wait(app, job_id, **bad)
    with pytest.raises(BadJob, match="conn is None"):
        wait(None, job_id)  # type: ignore[arg-type]
    with pytest.raises(BadJob, match="job_id is 'x'"):
        get_job(app, "x")  # type: ignore[arg-type]
    with pytest.raises(db.SchemaMissing):
        get_job(app, job_id, schema="elsewhere")


def test_a_wait_that_could_never_end_is_refused(database: str) -> None:
    """The job of a transaction that is still open runs for nobody, and an old snapshot sees no end."""
    with psycopg.connect(database) as conn:
        job_id = enqueue(conn, "t")
        with pytest.raises(BadJob, match=r"written something.*Commit first"):
            wait(conn, job_id, 5)
        conn.commit()
        with pytest.raises(TimeoutError):
            wait(conn, job_id, 0)
        conn.rollback()
        conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(BadJob, match="not READ COMMITTED"):
            wait(conn, job_id, 5)
        assert conn.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS  # refused, not aborted


def test_the_same_on_an_asynchronous_connection(database: str, conn: db.Connection) -> None:
    me = register(conn)

    async def ask() -> tuple[UUID, ArchivedJob]:
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as own:
            job_id = await ganger.enqueue_async(own, "t")
            assert await get_job_async(own, uuid4()) is None
            first, _ = await asyncio.gather(wait_async(own, job_id, 20), asyncio.to_thread(end, conn, me, result=[1]))
            with pytest.raises(UnknownJob):
                await wait_async(own, uuid4(), 5)
            async with own.transaction():
                other = await ganger.enqueue_async(own, "t")
                with pytest.raises(BadJob, match="Commit first"):
                    await wait_async(own, other)
            with pytest.raises(TimeoutError):
                await wait_async(own, other, 0)
            return job_id, first

    job_id, job = asyncio.run(ask())
    assert (job.job_id, job.status, job.result) == (job_id, "success", [1])


def test_a_role_is_told_of_what_it_may_know(database: str, conn: db.Connection) -> None:
    """An enqueuer of its own jobs, a viewer and a supervisor of all."""
    db.install(conn, roles=True)
    job_id = enqueue(conn, "t")
    for role in ("ganger_enqueuer", "ganger_viewer", "ganger_supervisor"):
        name = f"login-{uuid4()}"
        conn.execute(f'CREATE ROLE "{name}" LOGIN IN ROLE {role}'.encode())
        try:
            with psycopg.connect(database, user=name, autocommit=True) as login:
                told = get_job(login, job_id)
                if role == "ganger_enqueuer":
                    assert told is None
                    own = enqueue(login, "t")
                    assert isinstance(get_job(login, own), JobRecord)
                    assert get_job(login, own) == get_job(conn, own)
                else:
                    assert told == get_job(conn, job_id)
        finally:
            conn.execute(f'DROP ROLE "{name}"'.encode())
