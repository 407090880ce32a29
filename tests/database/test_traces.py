"""The trace that a job was enqueued in: it is in the row, whoever enqueues, and a claim passes it on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import psycopg
import pytest
from opentelemetry import context, propagate

from ganger import database as db
from ganger.client import NewJob, enqueue, enqueue_async, enqueue_many
from ganger_child import tracing
from tests.database.conftest import claim, register, rows

FIELDS = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
TEXT = json.dumps(FIELDS)


@pytest.fixture
def traced() -> Iterator[None]:
    """The application is in a trace."""
    token = context.attach(propagate.extract(FIELDS))
    yield
    context.detach(token)


@pytest.mark.usefixtures("traced")
def test_every_way_to_enqueue_takes_the_trace_along(database: str, conn: db.Connection) -> None:
    """Alone and in a transaction, async, many by COPY and one by one; and it stays with the row from run to run."""

    async def alone() -> None:
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as plain:
            await enqueue_async(plain, "async")

    enqueue(conn, "autocommit", notify=False)
    with conn.transaction():
        enqueue(conn, "transaction")
    asyncio.run(alone())
    enqueue_many(conn, [NewJob("copy"), NewJob("copy")])
    enqueue_many(conn, [NewJob("keyed", unique_key="k"), NewJob("keyed")])
    assert rows(conn, "job_type, trace") == [
        (name, TEXT) for name in ("autocommit", "transaction", "async", "copy", "copy", "keyed", "keyed")
    ]
    assert {job.trace for job in claim(conn, register(conn), 10)} == {TEXT}
    conn.execute("UPDATE proletarian.job SET state = 1, run_id = NULL, supervisor_id = NULL")
    assert {job.trace for job in claim(conn, register(conn, "two"), 10)} == {TEXT}


def test_what_is_enqueued_outside_of_a_trace_has_none(conn: db.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does one transaction's trace, or one job's, get into the next."""
    with conn.transaction():
        token = context.attach(propagate.extract(FIELDS))
        enqueue(conn, "in")
        context.detach(token)
        enqueue(conn, "out")
        enqueue_many(conn, [NewJob("out")])
    conn.execute("INSERT INTO proletarian.job (job_type) VALUES ('out')")
    monkeypatch.setattr(tracing, "current", lambda: None)  # an application without OpenTelemetry
    enqueue(conn, "out")
    enqueue_many(conn, [NewJob("out"), NewJob("out", unique_key="k")])
    assert rows(conn, "job_type, trace") == [("in", TEXT)] + 6 * [("out", None)]


def test_other_clients_say_it_in_a_setting_of_their_transaction(
    conn: db.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function, an INSERT written for the original, and our own client where it knows nothing of traces."""
    monkeypatch.setattr(tracing, "current", lambda: None)
    with conn.transaction():
        conn.execute("SELECT set_config('ganger.trace', %s, true)", [TEXT])
        conn.execute("SELECT proletarian.enqueue('function')")
        conn.execute("INSERT INTO proletarian.job (job_type, payload) VALUES ('insert', '{}')")
        enqueue(conn, "client")
    conn.execute("INSERT INTO proletarian.job (job_type, trace) VALUES ('long', repeat('x', 1000000))")
    conn.execute("UPDATE proletarian.job SET state = 1")
    jobs = claim(conn, register(conn), 10)
    assert {job.job_type: job.trace for job in jobs} == {
        "function": TEXT, "insert": TEXT, "client": TEXT, "long": "x" * tracing.LONGEST,
    }  # fmt: skip
