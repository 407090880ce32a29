"""Whatever an administrator has set for the server, the database or the role: everything works as ever.

Our sessions say themselves what they rely on, and applications' sessions are theirs: enqueueing bears any of them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from ganger import NewJob, cancel, enqueue, enqueue_many
from tests.processes import wait_until
from tests.stories.stage import Stage

# What anybody may be given by ALTER ROLE or ALTER DATABASE. A server that does not know a setting is spared it.
HOSTILE = {
    "statement_timeout": "'30ms'",
    "lock_timeout": "'1ms'",
    "idle_in_transaction_session_timeout": "'50ms'",
    "idle_session_timeout": "'300ms'",
    "transaction_timeout": "'50ms'",
    "default_transaction_read_only": "on",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "search_path": "hostile, pg_catalog",
    "TimeZone": "'America/New_York'",
    "DateStyle": "'SQL, DMY'",
    "IntervalStyle": "iso_8601",
    "standard_conforming_strings": "off",
    "backslash_quote": "on",
    "array_nulls": "off",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "client_encoding": "'LATIN1'",
    "row_security": "off",
    "quote_all_identifiers": "on",
    "transform_null_equals": "on",
    "enable_indexscan": "off",
    "enable_nestloop": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit_above_cost": "0",
    "work_mem": "'64kB'",
    "client_min_messages": "debug1",
}

HANDLERS = """
    handlers = Handlers()
    @handlers.job("note")
    def note(job):
        return [job.payload, job.timeout, job.enqueued_at.isoformat()]
    @handlers.job("again", retry=Retry(1, delays=[0.1]))
    def again(job):
        if job.attempt == 1: raise ValueError("snowman \\u2603")
    @handlers.job("stuck")
    def stuck(job):
        with open(FOLDER / "began", "a") as file: file.write(f"{job.id}\\n")
        while True: pass
    @handlers.job("sleep")
    def sleep(job):
        time.sleep(job.payload)
"""


@pytest.fixture
def harassed(stage: Stage) -> Iterator[str]:
    """The conninfo of a login with all of these settings. Objects that shadow PostgreSQL's own are in its way too."""
    name = f"login-{uuid4()}"
    stage.handlers(HANDLERS)
    for text in (
        "CREATE SCHEMA hostile",
        "CREATE FUNCTION hostile.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT ''epoch''::timestamptz'",
        "CREATE FUNCTION hostile.unnest(uuid[]) RETURNS SETOF uuid LANGUAGE sql AS 'SELECT gen_random_uuid()'",
        f'CREATE ROLE "{name}" LOGIN SUPERUSER',
    ):
        stage.conn.execute(text.encode())
    known = {row[0].lower() for row in stage.rows("SELECT name FROM pg_settings")}
    for setting, value in HOSTILE.items():
        if setting.lower() in known:
            stage.conn.execute(f'ALTER ROLE "{name}" SET {setting} = {value}'.encode())
    yield make_conninfo(stage.conninfo, user=name)
    for running in stage.supervisors:
        if running.process.poll() is None:
            running.stop()
    stage.conn.execute(f'DROP ROLE "{name}"'.encode())


@pytest.mark.slow
def test_hostile_settings_change_nothing(stage: Stage, harassed: str) -> None:
    supervisor = stage.run("-c", "2", conninfo=harassed)
    with psycopg.connect(harassed) as app:
        app.read_only = False  # what an application's own transactions may do is up to the application
        limits = "SELECT set_config(name, '0', false) FROM pg_settings WHERE name LIKE '%timeout' AND context = 'user'"
        app.execute(limits.encode())
        app.commit()
        exact = enqueue(app, "note", "back\\slash 'n \" snow\u2603", timeout=3600.125)
        many = enqueue_many(app, [NewJob("note", number, process_in=0.2) for number in range(30)])
        again, stuck = enqueue(app, "again"), enqueue(app, "stuck", grace=0)
        late = enqueue(app, "stuck", timeout=1.25, grace=0)
        app.commit()
        stage.wait_lines("began", 2)
        assert cancel(app, stuck) == "ordered"
        app.commit()
    row = stage.archived(exact)
    payload, timeout, enqueued_at = row["result"]
    assert (payload, timeout) == ("back\\slash 'n \" snow\u2603", 3600.125)
    assert enqueued_at.endswith("+00:00")
    assert (row["timeout_s"], row["started_at"] >= row["enqueued_at"]) == (3600.125, True)
    assert [stage.archived(job_id)["status"] for job_id in many] == ["success"] * 30
    assert stage.archived(stuck)["status"] == "cancelled"
    assert stage.archived(late)["reason"] == "timeout"
    row = stage.archived(again)
    assert (row["status"], row["attempts"], row["history"][0]["error"]["message"]) == ("success", 2, "snowman \u2603")
    assert row["history"][0]["started_at"] < row["history"][0]["ended_at"]

    for arguments in (["enqueue", "note"], ["status"], ["install"], ["check", "story:handlers"], ["reset", "--yes"]):
        command = stage.launch(sys.executable, "-m", "ganger", *arguments, conninfo=harassed)
        assert command.ended() == 0, (arguments, command.story())
    told = [event for event in supervisor.events if event["event"] in ("job-worker-error", "database-lost")]
    assert not told, told
    assert supervisor.stop() == 0


def test_no_session_of_ours_stays_in_a_transaction(stage: Stage) -> None:
    """D67, https://github.com/msolli/proletarian/issues/26: the idle-in-transaction timeout cuts nothing, for no
    transaction of ours is open while a job runs."""
    stage.handlers(HANDLERS)
    ((name,),) = stage.rows("SELECT current_database()")
    stage.conn.execute(f"ALTER DATABASE \"{name}\" SET idle_in_transaction_session_timeout = '1s'".encode())
    supervisor = stage.run("-c", "1")
    job_id = stage.enqueue("sleep", 4)
    supervisor.expect("handling-job")
    query = """SELECT state, query, now() - state_change FROM pg_stat_activity
               WHERE starts_with(application_name, 'ganger ') AND datname = current_database()
                 AND (state = 'idle in transaction' AND now() - state_change > interval '0.5 s'
                      OR now() - xact_start > interval '1 s')"""
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE starts_with(application_name, 'ganger ')"
    end = time.monotonic() + 3
    while time.monotonic() < end:
        assert stage.rows(query) == []
        assert stage.rows(f"{sessions} AND datname = current_database()") == [(3,)]
        time.sleep(0.05)
    assert (stage.archived(job_id)["status"], stage.archived(job_id)["attempts"]) == ("success", 1)
    assert not supervisor.named("database-lost")
    wait_until(lambda: supervisor.named("job-finished"), 5, supervisor.story)
    assert supervisor.stop() == 0
