"""Least privilege: what the roles of ``ganger install --roles`` may do, and everything that they may not.

Roles belong to the whole server, which other tests use at the same time. So each test has logins of its own, and the
three roles themselves stay.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.errors import InsufficientPrivilege

from ganger import client
from ganger import database as db
from ganger.client import NewJob, enqueue, enqueue_many
from ganger.core.messages import Archive
from ganger.sql import newest_version
from tests.database.conftest import S, claim, facts, register, rows

ROLES = ("ganger_enqueuer", "ganger_supervisor", "ganger_viewer")
ALL = {"SELECT", "INSERT", "UPDATE", "DELETE"}
TABLES = ("archived_job", "idle", "job", "queue", "schema_version", "supervisor")

# All that the roles may do; what is not here they may not.
ON_TABLES = {
    "ganger_enqueuer": {"schema_version": {"SELECT"}},
    "ganger_supervisor": {
        "schema_version": {"SELECT"},
        "queue": {"SELECT"},
        "job": {"SELECT", "UPDATE", "DELETE"},
        "archived_job": ALL,
        "supervisor": ALL,
        "idle": ALL,
    },
    "ganger_viewer": {table: {"SELECT"} for table in TABLES},
}
FUNCTIONS = {
    "ganger_enqueuer": {"enqueue", "look_up"},
    "ganger_supervisor": {"look_up"},
    "ganger_viewer": {"look_up"},
}

Login = Callable[..., psycopg.Connection[Any]]


@pytest.fixture
def login(database: str) -> Iterator[Login]:
    """Connect as a new login that is a member of one of the roles, or of none."""
    made: list[tuple[str, psycopg.Connection[Any]]] = []
    with psycopg.connect(database, autocommit=True) as owner:
        with db.connect(database) as installer:
            db.install(installer, roles=True)

        def connect(role: str | None = None, **settings: Any) -> psycopg.Connection[Any]:
            name = f"login-{uuid4()}"
            owner.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
            if role:
                owner.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(role), sql.Identifier(name)))
            made.append((name, psycopg.connect(database, user=name, autocommit=True, **settings)))
            return made[-1][1]

        yield connect
        for name, conn in made:
            conn.close()
            for text in ("DROP OWNED BY {}", "DROP ROLE {}"):
                owner.execute(sql.SQL(text).format(sql.Identifier(name)))


def ours(conn: psycopg.Connection[Any]) -> db.Connection:
    """The same login, on a connection as the supervisor and the commands have it."""
    return db.connect(conn.info.dsn)


def refused(conn: psycopg.Connection[Any], *queries: str) -> None:
    for query in queries:
        with pytest.raises(InsufficientPrivilege):
            conn.execute(query.encode())


# ---------------------------------------------------------------------------------------------------------------------
# What each may do, and nothing else


@pytest.mark.parametrize("schema", [S, "Other_9"])
def test_the_roles_have_these_rights_and_no_others(bare_database: str, schema: str) -> None:
    with db.connect(bare_database) as conn:
        db.install(conn, schema, roles=True)
        privileges = [*ALL, "TRUNCATE", "REFERENCES", "TRIGGER"]
        tables = [name for (name,) in conn.execute("SELECT relname FROM pg_class WHERE relkind = 'r' AND "
            "relnamespace = quote_ident(%s)::regnamespace ORDER BY 1", [schema]).fetchall()]  # fmt: skip
        assert tables == list(TABLES)
        functions = conn.execute(
            "SELECT oid, proname, prosecdef, proconfig FROM pg_proc WHERE pronamespace = quote_ident(%s)::regnamespace",
            [schema],
        ).fetchall()
        for role in ROLES:
            for table in tables:
                may = {
                    privilege
                    for privilege in privileges
                    if conn.execute(
                        "SELECT has_table_privilege(%s, %s, %s)", [role, f'"{schema}".{table}', privilege]
                    ).fetchone() == (True,)
                }  # fmt: skip
                assert may == ON_TABLES[role].get(table, set()), (role, table)
            callable_ = {
                name
                for oid, name, _, _ in functions
                if conn.execute("SELECT has_function_privilege(%s, %s, 'EXECUTE')", [role, oid]).fetchone() == (True,)
            }
            assert callable_ == FUNCTIONS[role], role
            query = "SELECT has_schema_privilege(%s, %s, 'CREATE'), rolcanlogin, rolsuper, rolcreaterole"
            row = conn.execute(f"{query} FROM pg_roles WHERE rolname = %s".encode(), [role, schema, role]).fetchone()
            assert row == (False, False, False, False)
        for _, name, definer, settings in functions:  # else whoever calls it chooses what its names mean
            assert settings == ["search_path=pg_catalog, pg_temp"], name
            assert definer == (name in FUNCTIONS["ganger_enqueuer"]), name


def test_an_enqueuer_enqueues_as_everybody_does(login: Login, database: str, conn: db.Connection) -> None:
    app = login("ganger_enqueuer")
    ids = [
        enqueue(app, "t", {"n": 1}, process_in=60, timeout=5, unique_key="k"),
        *enqueue_many(app, [NewJob("t", 2), NewJob("t", 3, unique_key="other")]),
    ]
    with app.transaction():
        app.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        ids.append(enqueue(app, "t"))
        with pytest.raises(client.DuplicateJob):
            enqueue(app, "t", unique_key="k")
    assert enqueue(app, "t", unique_key="k", on_duplicate="ignore") == ids[0]
    with pytest.raises(psycopg.errors.CheckViolation):
        app.execute("SELECT proletarian.enqueue('t', timeout_s => -1)")
    assert sorted(rows(conn, "job_id, enqueued_by")) == sorted((job_id, app.info.user) for job_id in ids)
    conn.execute("SELECT proletarian.enqueue('t')")
    assert rows(conn, "enqueued_by", "job WHERE enqueued_by <> '" + app.info.user + "'", "1") == [(conn.info.user,)]
    with ours(app) as own:
        db.check_schema(own)  # as the command does


def test_an_enqueuer_wakes_a_supervisor_that_waits(login: Login, conn: db.Connection, other: db.Connection) -> None:
    db.listen(other, S)
    db.say_idle(conn, S, register(conn), ["default"], 30)
    enqueue(login("ganger_enqueuer"), "t")
    assert [notice.payload for notice in other.notifies(timeout=10, stop_after=1)] == ["default"]


def test_an_enqueuer_looks_up_its_own_jobs_only(login: Login, conn: db.Connection) -> None:
    app, neighbour, none = login("ganger_enqueuer"), login("ganger_enqueuer"), login()
    job_id, later = enqueue(app, "t", "secret"), enqueue(app, "t", process_in=60)

    def look(who: psycopg.Connection[Any], which: UUID = job_id) -> list[tuple[Any, ...]]:
        query = "SELECT job_id, status, reason, attempts, result, error FROM proletarian.look_up(%s)"
        return who.execute(query.encode(), [which]).fetchall()

    assert look(app) == [(job_id, "ready", None, 0, None, None)]
    assert look(app, later) == [(later, "scheduled", None, 0, None, None)]
    (job,) = claim(conn, register(conn))
    assert look(app) == [(job_id, "running", None, 1, None, None)]
    db.finish(conn, S, [Archive(job_id, job.run_id, "failure", "timeout", {"error": {"type": "T"}}, None)])
    assert look(app) == [(job_id, "failure", "timeout", 1, None, {"type": "T"})]
    client.cancel(conn, later)
    assert look(app, later) == [(later, "cancelled", "cancelled", 0, None, None)]
    assert look(neighbour) == look(app, uuid4()) == []
    refused(none, f"SELECT * FROM proletarian.look_up('{job_id}')", "SELECT proletarian.enqueue('t')")


def test_what_an_enqueuer_is_refused(login: Login, conn: db.Connection) -> None:
    app = login("ganger_enqueuer")
    job_id = enqueue(app, "t")
    for table in TABLES:
        if table != "schema_version":
            refused(app, f"SELECT FROM proletarian.{table}", f"SELECT FROM proletarian.{table} FOR UPDATE")
        refused(app, f"DELETE FROM proletarian.{table}", f"TRUNCATE proletarian.{table}")
    refused(
        app,
        "INSERT INTO proletarian.job (job_type) VALUES ('t')",
        "UPDATE proletarian.job SET priority = -9",
        f"SELECT proletarian.cancel('{job_id}')",
        "SELECT proletarian.wake(ARRAY['default'])",
        "COPY proletarian.job (job_type) FROM STDIN",
        "CREATE TABLE proletarian.mine (n int)",
        "DROP FUNCTION proletarian.cancel",
        "ALTER TABLE proletarian.job ADD COLUMN mine int",
    )
    with ours(app) as own, pytest.raises(db.NotAllowed, match=r"SELECT on job.*ganger install --roles"):
        db.check_rights(own)
    assert db.counts(conn).jobs == 1


def test_what_a_supervisor_is_refused(login: Login, conn: db.Connection) -> None:
    enqueue(conn, "t")
    supervisor = login("ganger_supervisor")
    with ours(supervisor) as own:
        db.check_schema(own)
        db.check_rights(own, prunes=True)
        with pytest.raises(InsufficientPrivilege):
            db.reset(own)
    refused(
        supervisor,
        "SELECT proletarian.enqueue('t')",
        "INSERT INTO proletarian.job (job_type) VALUES ('t')",
        "TRUNCATE proletarian.archived_job",
        "INSERT INTO proletarian.queue (queue) VALUES ('q')",
        "INSERT INTO proletarian.schema_version (version) VALUES (99)",
        "CREATE TABLE proletarian.mine (n int)",
        "ALTER TABLE proletarian.job ADD COLUMN mine int",
        "CREATE INDEX ON proletarian.job (job_type)",
        "CREATE TRIGGER t BEFORE INSERT ON proletarian.job EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "DROP TABLE proletarian.idle",
        "TRUNCATE proletarian.job",
        "DROP SCHEMA proletarian CASCADE",
    )
    assert db.counts(conn).jobs == 1
    conn.execute("REVOKE DELETE ON proletarian.archived_job FROM ganger_supervisor")  # as before there was --retention
    with ours(supervisor) as own:
        db.check_rights(own)
        with pytest.raises(db.NotAllowed, match=r"it lacks DELETE on archived_job\. .*ganger install --roles"):
            db.check_rights(own, prunes=True)


def test_what_a_viewer_sees_and_is_refused(login: Login, conn: db.Connection) -> None:
    enqueue(conn, "t")
    register(conn, "boss")
    viewer = login("ganger_viewer")
    with ours(viewer) as own:
        db.check_schema(own)
        seen = db.status(own)
        assert [queue.ready for queue in seen.queues] == [1]
        assert [one.name for one in seen.supervisors] == ["boss"]
        assert db.counts(own).jobs == 1
        with pytest.raises(db.NotAllowed, match="UPDATE on job"):
            db.check_rights(own)
        with pytest.raises(InsufficientPrivilege):
            db.register(own, S, facts(), None)
    for table in TABLES:
        refused(viewer, f"DELETE FROM proletarian.{table}", f"SELECT FROM proletarian.{table} FOR SHARE")
    refused(viewer, "SELECT proletarian.enqueue('t')", "UPDATE proletarian.job SET priority = 1")


@pytest.mark.parametrize("role", ["ganger_supervisor", "ganger_viewer"])
def test_what_monitoring_asks_may_be_asked_by_supervisors_and_viewers(
    login: Login, conn: db.Connection, other: db.Connection, role: str
) -> None:
    """Depth of the queues, dead rows, and how far back somebody's open snapshot reaches, whoever has it."""
    enqueue(conn, "t")
    other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    other.execute("SELECT count(*) FROM proletarian.job")
    for _ in range(3):
        enqueue(conn, "t")
    with ours(login(role)) as own:
        seen = db.backlog(own)
    assert [(queue.queue, queue.ready) for queue in seen.queues] == [("default", 4)]
    assert seen.horizon_transactions >= 3
    assert set(seen.dead_tuples) >= {"job", "archived_job"}


def test_a_login_without_rights_is_told_what_to_do(login: Login) -> None:
    with ours(login()) as own, pytest.raises(db.NotAllowed, match=r"ganger install --roles.*GRANT ganger_supervisor"):
        db.check_schema(own)


def test_a_function_of_the_owners_rights_does_nothing_for_a_hostile_caller(login: Login, conn: db.Connection) -> None:
    """Names and operators in it mean what they meant to its author, whatever stands in the caller's search_path."""
    app = login("ganger_enqueuer")
    conn.execute("CREATE TABLE public.caught (who text)")
    conn.execute(f'GRANT CREATE ON DATABASE "{conn.info.dbname}" TO "{app.info.user}"'.encode())
    conn.execute(f'GRANT INSERT ON public.caught TO "{app.info.user}"'.encode())
    trap = "LANGUAGE plpgsql AS $$BEGIN INSERT INTO public.caught VALUES (current_user); RETURN %s; END$$"
    for text in (
        "CREATE SCHEMA evil",
        "CREATE FUNCTION evil.now() RETURNS timestamptz " + trap % "clock_timestamp()",
        "CREATE FUNCTION evil.gen_random_uuid() RETURNS uuid " + trap % "NULL",
        "CREATE FUNCTION evil.current_setting(text) RETURNS text " + trap % "'read committed'",
        "CREATE FUNCTION evil.same(text, text) RETURNS boolean " + trap % "true",
        "CREATE OPERATOR evil.= (FUNCTION = evil.same, LEFTARG = text, RIGHTARG = text)",
        "CREATE OPERATOR evil.<> (FUNCTION = evil.same, LEFTARG = text, RIGHTARG = text)",
        "CREATE TEMPORARY TABLE job (job_id uuid, queue text, job_type text)",
        "SET search_path = evil, pg_temp, pg_catalog",
    ):
        app.execute(text.encode())
    job_id = enqueue(app, "t")
    assert app.execute("SELECT status FROM proletarian.look_up(%s)", [job_id]).fetchone() == ("ready",)
    assert conn.execute("SELECT who FROM public.caught").fetchall() == []


# ---------------------------------------------------------------------------------------------------------------------
# Installing them


def test_roles_are_granted_exactly_once_and_again(bare_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice is as once; what was granted by hand is taken back; an upgrade grants what the new version needs."""
    with db.connect(bare_database) as conn:
        newest = newest_version()
        assert db.install(conn) == list(range(1, newest + 1))
        granted = "SELECT count(*) FROM information_schema.table_privileges WHERE grantee LIKE 'ganger\\_%'"
        assert conn.execute(granted.encode()).fetchone() == (0,)
        assert db.install(conn, roles=True) == db.install(conn, roles=True) == []
        first = conn.execute(granted.encode()).fetchone()
        conn.execute("GRANT ALL ON ALL TABLES IN SCHEMA proletarian TO ganger_enqueuer")
        db.install(conn, roles=True)
        assert conn.execute(granted.encode()).fetchone() == first

        monkeypatch.setattr(db, "newest_version", lambda: newest + 2)
        tables = {newest + 1: "later", newest + 2: "last"}
        monkeypatch.setattr(db, "migration", lambda version, schema: f"CREATE TABLE {schema}.{tables[version]} (n int)")
        assert db.install(conn) == [newest + 1, newest + 2]
        for table in tables.values():
            row = conn.execute(f"SELECT has_table_privilege('ganger_viewer', 'proletarian.{table}', 'SELECT')".encode())
            assert row.fetchone() == (True,)


def test_an_upgrade_grants_nothing_where_nobody_asked_for_roles(
    bare_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with db.connect(bare_database) as conn:
        db.install(conn)
        newest = newest_version()
        monkeypatch.setattr(db, "newest_version", lambda: newest + 1)
        monkeypatch.setattr(db, "migration", lambda version, schema: "SELECT 1")
        assert db.install(conn) == [newest + 1]
        query = "SELECT count(*) FROM information_schema.table_privileges WHERE grantee LIKE 'ganger\\_%'"
        assert conn.execute(query.encode()).fetchone() == (0,)


@pytest.mark.parametrize("schema", [S, "other"])
def test_printed_sql_grants_the_same(bare_database: str, schema: str) -> None:
    with psycopg.connect(bare_database, autocommit=True) as plain:
        plain.execute(db.schema_sql(schema, roles=True).encode())
        query = "SELECT has_table_privilege('ganger_supervisor', %s, 'UPDATE')"
        assert plain.execute(query.encode(), [f"{schema}.job"]).fetchone() == (True,)
        assert db.schema_sql(schema, roles=True).startswith(db.schema_sql(schema).removesuffix("\nCOMMIT;\n"))


def test_many_installations_at_once_make_the_roles_once(bare_database: str) -> None:
    failed: list[BaseException] = []

    def install() -> None:
        try:
            with db.connect(bare_database, statement_timeout=60) as conn:
                db.install(conn, roles=True)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=install) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed


def test_an_owner_who_may_neither_create_schemas_nor_roles_installs(bare_database: str) -> None:
    """An administrator has made the schema for them, and the roles are there since another database's installation."""
    owner = f"owner-{uuid4()}"
    with psycopg.connect(bare_database, autocommit=True) as admin:
        with db.connect(bare_database) as conn:
            db.install(conn, "first", roles=True)
        admin.execute(f'CREATE ROLE "{owner}" LOGIN'.encode())
        try:
            admin.execute(f'CREATE SCHEMA proletarian AUTHORIZATION "{owner}"'.encode())
            with db.connect(bare_database, user=owner) as conn:
                db.install(conn, roles=True)
                assert client.enqueue(conn, "t")
                assert db.counts(conn).jobs == 1
        finally:
            admin.execute(f'DROP OWNED BY "{owner}" CASCADE'.encode())
            admin.execute(f'DROP ROLE "{owner}"'.encode())
