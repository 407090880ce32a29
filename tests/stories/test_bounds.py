"""What is bounded at the database, and what is not: payloads and notifications, connections, a server that is full."""

from __future__ import annotations

import time
from collections.abc import Iterator
from uuid import uuid4

import pytest
from psycopg.conninfo import make_conninfo

from tests.processes import wait_until
from tests.stories.proxy import Proxy
from tests.stories.stage import Stage

HANDLERS = """
    handlers = Handlers()
    @handlers.job("size")
    def size(job):
        return len(job.payload)
    @handlers.job("gate")
    def gate(job):
        with open(FOLDER / "began", "a") as file: file.write(f"{job.id}\\n")
        while not (FOLDER / "open").exists(): time.sleep(0.02)
        return os.getpid()
"""
OURS = """SELECT count(*) FROM pg_stat_activity
          WHERE starts_with(application_name, 'ganger ') AND datname = current_database()"""


def test_a_payload_of_a_megabyte_is_notified_and_run(stage: Stage) -> None:
    """D70, https://github.com/saurabhnanda/odd-jobs/issues/42: a notification names the queue, not the job, so that
    PostgreSQL's limit of 8,000 bytes bounds nothing."""
    stage.handlers(HANDLERS)
    supervisor = stage.run("-c", "1", "--poll-interval", "30")
    wait_until(lambda: stage.rows("SELECT FROM proletarian.idle WHERE idle_until > now()"), 15, supervisor.story)
    for length in (8_000, 1_000_000):
        row = stage.archived(stage.enqueue("size", "x" * length), 20)
        assert row["result"] == length
    assert supervisor.stop() == 0


@pytest.mark.slow
def test_fifty_slots_need_three_connections(stage: Stage) -> None:
    """D71, https://github.com/graphile/worker/issues/564: a supervisor has three connections, however many slots."""
    stage.handlers(HANDLERS)
    supervisor = stage.run("-c", "50")
    for _ in range(50):
        stage.enqueue("gate")
    most = 0

    def all_began() -> bool:
        nonlocal most
        most = max(most, stage.rows(OURS)[0][0])
        return len(stage.lines("began")) == 50

    wait_until(all_began, 60, supervisor.story)
    (stage.folder / "open").touch()
    wait_until(lambda: len(supervisor.named("job-finished")) == 50, 60, supervisor.story)
    assert max(most, stage.rows(OURS)[0][0]) == 3
    assert supervisor.stop() == 0


@pytest.fixture
def crowded(stage: Stage) -> Iterator[str]:
    """The conninfo of a login that is allowed no connection yet; its name is the login's."""
    name = f"login-{uuid4()}"
    stage.handlers(HANDLERS)
    stage.conn.execute(f'CREATE ROLE "{name}" LOGIN CONNECTION LIMIT 0'.encode())
    stage.conn.execute(f'GRANT USAGE ON SCHEMA proletarian TO "{name}"'.encode())
    stage.conn.execute(f'GRANT ALL ON ALL TABLES IN SCHEMA proletarian TO "{name}"'.encode())
    yield name
    for running in stage.supervisors:
        if running.process.poll() is None:
            running.stop()
    stage.conn.execute(f'DROP OWNED BY "{name}"'.encode())
    stage.conn.execute(f'DROP ROLE "{name}"'.encode())


@pytest.mark.slow
def test_too_many_clients_at_the_start_and_in_mid_run(stage: Stage, crowded: str) -> None:
    """D72, https://github.com/PostHog/posthog/issues/4709: a server that has no connection left is waited for, at the
    start even beyond ``database_wait``, without hammering it, and costs running jobs nothing."""

    def allow(connections: int) -> None:
        stage.conn.execute(f'ALTER ROLE "{crowded}" CONNECTION LIMIT {connections}'.encode())

    with Proxy(stage.conninfo) as proxy:
        conninfo = make_conninfo(proxy.conninfo, user=crowded)
        began = time.monotonic()
        supervisor = stage.run("-c", "2", "--database-wait", "1", conninfo=conninfo, wait=False)
        supervisor.expect("database-lost")
        first = stage.enqueue("gate")
        time.sleep(4)  # four times as long as it would wait for a server that does not answer
        assert supervisor.process.poll() is None, supervisor.story()
        assert proxy.accepted <= 2 + (time.monotonic() - began) / 0.25, "it hammers the server"
        allow(3)
        supervisor.expect("supervisor-started", 20)
        stage.wait_lines("began")

        allow(0)
        tried = proxy.accepted
        stage.conn.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [crowded])
        supervisor.expect("database-lost", count=2)
        lost = time.monotonic()
        (stage.folder / "open").touch()
        second = stage.enqueue("size", "abc")
        time.sleep(4)
        assert supervisor.process.poll() is None, supervisor.story()
        assert proxy.accepted - tried <= 3 * (5 + (time.monotonic() - lost) / 0.5), "it hammers the server"
        allow(3)
        supervisor.expect("database-back", 20)
        row = stage.archived(first)
        assert (row["status"], row["attempts"], row["losses"]) == ("success", 1, 0)
        assert stage.archived(second)["result"] == 3
        assert stage.lines("began") == [str(first)]
        supervisor.expect("outcome-stored", job_id=str(first))
        assert supervisor.stop() == 0
