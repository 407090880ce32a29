"""Installing the schema, the session, and who is told what when it does not fit."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
import pytest

from ganger import client
from ganger import database as db
from ganger.sql import BadSchemaName, migration, newest_version, statement
from tests.database.conftest import claim


def test_install_is_idempotent(bare_database: str) -> None:
    with db.connect(bare_database) as conn:
        assert db.install(conn) == list(range(1, newest_version() + 1))
        client.enqueue(conn, "t")
        assert db.install(conn) == []
        assert db.counts(conn).jobs == 1
        db.check_schema(conn)


def test_installations_at_once(bare_database: str) -> None:
    applied: list[list[int]] = []

    def install() -> None:
        with db.connect(bare_database, statement_timeout=60) as conn:
            applied.append(db.install(conn))

    threads = [threading.Thread(target=install) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(applied) == 6
    assert sorted(version for versions in applied for version in versions) == list(range(1, newest_version() + 1))


def test_an_upgrade_applies_what_is_missing(bare_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with db.connect(bare_database) as conn:
        db.install(conn)
        newest = newest_version()
        monkeypatch.setattr(db, "newest_version", lambda: newest + 1)
        with pytest.raises(db.SchemaMismatch, match='run "ganger install"'):
            db.check_schema(conn)
        monkeypatch.setattr(
            db, "migration", lambda version, schema: "BROKEN" if version == newest + 1 else migration(version, schema)
        )
        with pytest.raises(psycopg.errors.SyntaxError):
            db.install(conn)
        monkeypatch.setattr(db, "migration", lambda version, schema: f'CREATE TABLE "{schema}".added (n int)')
        assert db.install(conn) == [newest + 1]
        db.check_schema(conn)
        monkeypatch.undo()
        with pytest.raises(db.SchemaMismatch, match="newer"):
            db.check_schema(conn)
        with pytest.raises(db.SchemaMismatch, match="newer"):
            db.install(conn)


def test_missing(bare_database: str) -> None:
    with db.connect(bare_database) as conn:
        with pytest.raises(db.SchemaMissing, match='run "ganger install --schema elsewhere"'):
            db.check_schema(conn, "elsewhere")
        with pytest.raises(db.SchemaMissing):
            client.enqueue(conn, "t")
        with pytest.raises(db.SchemaMissing):
            client.enqueue_many(conn, [client.NewJob("t")])


def test_somebody_elses_tables(bare_database: str) -> None:
    with db.connect(bare_database) as conn:
        conn.execute("CREATE SCHEMA proletarian")
        conn.execute("CREATE TABLE proletarian.job (job_id uuid)")
        for act in (db.check_schema, db.install):
            with pytest.raises(db.SchemaMismatch, match="choose another schema"):
                act(conn)


@pytest.mark.parametrize("schema", ["other", "Mixed_Case9", "select"])
def test_another_schema(bare_database: str, schema: str) -> None:
    with db.connect(bare_database) as conn:
        db.install(conn)
        db.install(conn, schema)
        job_id = client.enqueue(conn, "t", schema=schema)
        client.enqueue_many(conn, [client.NewJob("t")], schema=schema)
        assert db.counts(conn).jobs == 0
        assert db.counts(conn, schema).jobs == 2
        assert client.cancel(conn, job_id, schema=schema) == "cancelled"
        db.reset(conn, schema)
        assert db.counts(conn, schema) == db.Counts(0, 0, 0)


@pytest.mark.parametrize("schema", ["", "a b", 'a"; DROP SCHEMA public; --', "9a", "é", "x" * 64, "pg_x", "a%s", None])
def test_a_schema_name_that_cannot_be(schema: str) -> None:
    with pytest.raises(BadSchemaName, match="schema is"):
        statement("claim", schema)


@pytest.mark.parametrize("schema", [db.SCHEMA, "other"])
def test_printed_sql_installs_the_same(bare_database: str, schema: str) -> None:
    with psycopg.connect(bare_database, autocommit=True) as plain:
        plain.execute(db.schema_sql(schema).encode())
    with db.connect(bare_database) as conn:
        db.check_schema(conn, schema)
        assert db.install(conn, schema) == []


def test_the_session_does_not_depend_on_defaults(database: str) -> None:
    """Whatever the database has set: our transactions are READ COMMITTED and READ WRITE, on our names and in UTC."""
    settings = {
        "default_transaction_isolation": "serializable",
        "default_transaction_read_only": "on",
        "search_path": "hostile, pg_catalog",
        "TimeZone": "Pacific/Kiritimati",
        "DateStyle": "German",
        "enable_indexscan": "off",
        "lock_timeout": "1ms",
    }
    with psycopg.connect(database, autocommit=True) as plain:
        name = plain.info.dbname
        plain.execute("CREATE SCHEMA hostile")
        plain.execute(
            "CREATE FUNCTION hostile.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT ''epoch''::timestamptz'"
        )
        for setting, value in settings.items():
            listed = value if setting == "search_path" else f"'{value}'"
            plain.execute(f'ALTER DATABASE "{name}" SET {setting} = {listed}'.encode())
    with db.connect(database) as conn:
        supervisor_id, _ = db.register(
            conn, db.SCHEMA, db.SupervisorFacts(client.uuid7(), "n", "h", 1, 120.0), former=None
        )
        job_id = client.enqueue(conn, "t")
        with conn.transaction():
            shown = [
                conn.execute(f"SHOW {setting}".encode()).fetchone()
                for setting in ("transaction_isolation", "transaction_read_only", "TimeZone", "enable_seqscan", "jit")
            ]
        assert shown == [("read committed",), ("off",), ("UTC",), ("off",), ("off",)]
        (job,) = claim(conn, supervisor_id)
        assert job.job_id == job_id
        assert job.enqueued_at.endswith("+00:00")
        assert job.enqueued_at > "2020"


def test_functions_ignore_a_hostile_search_path(database: str) -> None:
    with psycopg.connect(database) as plain:
        plain.execute("CREATE SCHEMA hostile")
        plain.execute(
            "CREATE FUNCTION hostile.never(timestamptz, timestamptz) RETURNS boolean LANGUAGE sql AS 'SELECT false'"
        )
        plain.execute(
            "CREATE OPERATOR hostile.<= (FUNCTION = hostile.never, LEFTARG = timestamptz, RIGHTARG = timestamptz)"
        )
        plain.execute("SET search_path = hostile, pg_catalog")
        job_id = client.enqueue(plain, "t")
        assert plain.execute("SELECT state FROM proletarian.job WHERE job_id = %s", [job_id]).fetchone() == (1,)


def test_waiting_for_a_database_that_is_not_there(tmp_path: object) -> None:
    told: list[str] = []
    with pytest.raises(db.DatabaseUnreachable, match=r"did not answer within 0\.3 seconds"):
        db.wait_for_database(f"host={tmp_path} dbname=x", limit=0.3, on_wait=told.append)
    assert len(told) == 1


def test_waiting_for_a_database_can_be_stopped(tmp_path: object) -> None:
    with pytest.raises(db.DatabaseUnreachable, match="Stopped"):
        db.wait_for_database(f"host={tmp_path} dbname=x", limit=60, stopped=lambda seconds: True)


def test_waiting_ends_with_a_connection(database: str, bare_database: str) -> None:
    db.wait_for_database(database, limit=5).close()
    with pytest.raises(db.SchemaMissing):
        db.wait_for_database(bare_database, limit=5)


def test_a_database_that_goes_away_while_it_is_looked_at_is_waited_for(
    database: str, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by scripts/chaos: a supervisor that started just then ended with exit code 69, whatever --database-wait."""
    look, looks = db.check_schema, []

    def looked_at(conn: db.Connection, schema: str = db.SCHEMA) -> None:
        looks.append(conn.info.backend_pid)
        if len(looks) < 3:
            with psycopg.connect(postgres, autocommit=True) as admin:
                admin.execute("SELECT pg_terminate_backend(%s, 5000)", [conn.info.backend_pid])
        look(conn, schema)

    monkeypatch.setattr(db, "check_schema", looked_at)
    told: list[str] = []
    db.wait_for_database(database, limit=30, on_wait=told.append).close()
    assert (len(looks), len(told)) == (3, 1)


def test_too_many_clients_is_waited_for_without_limit(postgres: str, database: str) -> None:
    """A server that refuses for want of a free connection is there: ``limit`` does not count."""
    with psycopg.connect(postgres, autocommit=True) as admin, psycopg.connect(database) as plain:
        dbname = plain.info.dbname
        role = f"few-{dbname}"
        admin.execute(f'CREATE ROLE "{role}" LOGIN CONNECTION LIMIT 0'.encode())
        try:
            plain.execute(f'GRANT ALL ON SCHEMA proletarian TO "{role}"'.encode())
            plain.execute(f'GRANT ALL ON ALL TABLES IN SCHEMA proletarian TO "{role}"'.encode())
            plain.commit()
            waits: list[float] = []

            def stopped(seconds: float) -> bool:
                waits.append(seconds)
                if len(waits) == 3:
                    admin.execute(f'ALTER ROLE "{role}" CONNECTION LIMIT 5'.encode())
                return len(waits) > 20

            db.wait_for_database(f"{database} user={role}", limit=0, stopped=stopped).close()
            assert len(waits) == 3
        finally:
            plain.execute(f'DROP OWNED BY "{role}"'.encode())
            plain.commit()
            admin.execute(f'DROP ROLE "{role}"'.encode())


def test_errors_are_told_apart(connect: Callable[..., db.Connection]) -> None:
    conn, other = connect(statement_timeout=0.05), connect()

    def error_of(query: str) -> psycopg.Error:
        with pytest.raises(psycopg.Error) as caught:
            conn.execute(query.encode())
        return caught.value

    slow = error_of("SELECT pg_sleep(5)")
    assert db.passing(slow)
    assert not db.lost(slow, conn)
    bad = error_of("SELECT '\"\\u0000\"'::jsonb")
    assert db.bad_data(bad)
    assert not db.lost(bad, conn)
    assert not db.bad_data(error_of("SELECT * FROM nowhere"))
    conn.execute("SET default_transaction_read_only = on")
    conn.read_only = None
    assert db.lost(error_of("CREATE TABLE public.t (n int)"), conn)
    other.execute("SELECT pg_terminate_backend(%s)", [conn.info.backend_pid])
    assert db.lost(error_of("SELECT 1"), conn)
