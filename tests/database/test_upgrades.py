"""Every schema that was ever released comes forward, with what is in it.

``schemas/`` holds a database of each earlier version. Who writes the next migration puts one of the version before
there: this file fails until it is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ganger import database as db
from ganger.client import enqueue
from ganger.sql import newest_version
from tests.database.conftest import S, claim, facts, rows

THERE = {int(path.stem): path for path in sorted((Path(__file__).parent / "schemas").glob("*.sql"))}
SCHEMAS = {version: path for version, path in THERE.items() if version < newest_version()}


def restore(conninfo: str, version: int) -> None:
    with psycopg.connect(conninfo, autocommit=True) as plain:
        plain.execute(SCHEMAS[version].read_text().encode())


def shape(conn: db.Connection) -> list[Any]:
    """All that makes up the schema: columns, constraints, indexes, options, functions and rights."""
    queries = (
        """SELECT table_name, column_name, data_type, column_default, is_nullable, is_identity
           FROM information_schema.columns WHERE table_schema = 'proletarian' ORDER BY table_name, column_name""",
        """SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
           WHERE connamespace = 'proletarian'::regnamespace AND contype <> 'n' ORDER BY 1, 2""",
        "SELECT indexdef FROM pg_indexes WHERE schemaname = 'proletarian' ORDER BY 1",
        """SELECT relname, reloptions, relacl::text FROM pg_class
           WHERE relnamespace = 'proletarian'::regnamespace AND relkind = 'r' ORDER BY 1""",
        """SELECT pg_get_functiondef(oid), proacl::text FROM pg_proc
           WHERE pronamespace = 'proletarian'::regnamespace ORDER BY 1""",
    )
    return [conn.execute(query.encode()).fetchall() for query in queries]


def test_there_is_a_database_of_each_earlier_version() -> None:
    assert list(SCHEMAS) == list(range(1, newest_version()))


@pytest.mark.parametrize("version", SCHEMAS)
def test_an_upgraded_schema_is_like_a_new_one_and_keeps_every_job(
    bare_database: str, database: str, version: int
) -> None:
    restore(bare_database, version)
    with db.connect(bare_database) as conn, db.connect(database) as fresh:
        with pytest.raises(db.SchemaMismatch, match=rf'has version {version}.*run "ganger install" to upgrade'):
            db.check_schema(conn)
        columns = "job_id, queue, job_type, payload, attempts, enqueued_at, process_at"
        before = rows(conn, columns, "job", "1"), rows(conn, f"{columns}, status, finished_at", "archived_job", "1")
        assert len(before[0]) >= 7
        assert len(before[1]) >= 2
        assert db.install(conn) == list(range(version + 1, newest_version() + 1))
        db.check_schema(conn)
        after = rows(conn, columns, "job", "1"), rows(conn, f"{columns}, status, finished_at", "archived_job", "1")
        assert after == before
        assert shape(conn) == shape(fresh)
        enqueue(conn, "t", queue="new")
        supervisor_id, _ = db.register(conn, S, facts(), None)
        assert [job.job_type for job in claim(conn, supervisor_id, 5, "new")] == ["t"]


@pytest.fixture
def next_version(monkeypatch: pytest.MonkeyPatch) -> int:
    """There is a version after the newest, which needs the job table for itself."""
    newest = newest_version()
    monkeypatch.setattr(db, "newest_version", lambda: newest + 1)
    monkeypatch.setattr(db, "migration", lambda version, schema: f"ALTER TABLE {schema}.job ADD COLUMN later int")
    return newest + 1


def test_an_upgrade_lets_others_pass_while_it_waits_for_an_open_transaction(
    conn: db.Connection, connect: Callable[..., db.Connection], next_version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that is waited for stops everybody behind it: here for a moment at a time, whatever is open in front."""
    monkeypatch.setattr(db, "LOCK_TIMEOUT", 0.2)
    monkeypatch.setattr(db, "LOCK_PAUSE", 0.1)
    applied: list[int] = []
    upgrading, application = connect(statement_timeout=0), connect()
    thread = threading.Thread(target=lambda: applied.extend(db.install(upgrading)))
    with application.transaction():
        enqueue(application, "t")
        thread.start()
        limit = time.monotonic() + 20
        blocked = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        while not conn.execute(blocked.encode(), [upgrading.info.backend_pid]).fetchall():
            assert time.monotonic() < limit
        conn.execute("SET statement_timeout = '5s'")
        for _ in range(20):
            enqueue(conn, "t", process_in=60)
        assert not applied
    thread.join(30)
    assert applied == [next_version]
    assert db.counts(conn).jobs == 21


def test_an_upgrade_that_never_gets_the_table_changes_nothing_and_says_so(
    conn: db.Connection, other: db.Connection, next_version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db, "LOCK_TIMEOUT", 0.05)
    monkeypatch.setattr(db, "LOCK_PAUSE", 0.0)
    monkeypatch.setattr(db, "LOCK_TRIES", 3)
    with other.transaction():
        enqueue(other, "t")
        with pytest.raises(db.SchemaBusy, match="nothing was changed"):
            db.install(conn)
    assert db.install(conn) == [next_version]
