"""Behind PgBouncer in transaction mode, where each transaction may get another server connection.

The pooler has fewer server connections than it has clients, and hands them out in turn: whatever a session of ours
relied on beyond its transaction would be missing in the next one, or turn up in somebody else's.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ganger import NewJob, cancel, enqueue, enqueue_many
from ganger import database as db
from tests.processes import wait_until
from tests.stories.stage import Stage

PGBOUNCER = shutil.which("pgbouncer", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin")))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PGBOUNCER is None, reason="PgBouncer is not installed (Debian's package: pgbouncer)"),
]

SERVERS = 2  # connections of the pooler to the database; a supervisor alone has three to the pooler

HANDLERS = """
    handlers = Handlers(retry_strategy=lambda job, exception: Retry(1, delays=[0.1]))
    @handlers.job("note")
    def note(job):
        with open(FOLDER / "noted", "a") as file: file.write(f"{job.id}\\n")
    @handlers.job("fail-once")
    def fail_once(job):
        if job.attempt == 1: raise ValueError
    @handlers.job("stuck")
    def stuck(job):
        with open(FOLDER / "began", "a") as file: file.write(f"{job.id}\\n")
        while True: pass
"""


class Pooler:
    """A PgBouncer before the test's database. ``conninfo`` leads through it."""

    def __init__(self, conninfo: str, folder: Path) -> None:
        upstream = conninfo_to_dict(conninfo)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._config = folder / "pgbouncer.ini"
        self._config.write_text(
            f"""[databases]
* = host={upstream["host"]} port={upstream["port"]} user={upstream["user"]}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self._port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {SERVERS}
server_round_robin = 1
"""
        )
        self._config.chmod(0o644)
        self.conninfo = make_conninfo(conninfo, host="127.0.0.1", port=self._port, sslmode="disable")
        socket_owner = Path(f"{upstream['host']}/.s.PGSQL.{upstream['port']}").stat().st_uid
        self._account = pwd.getpwuid(socket_owner)  # it may use the socket, and PgBouncer refuses to be root
        self._log = open(folder / "pgbouncer.log", "ab")
        self.start()

    def start(self) -> None:
        assert PGBOUNCER is not None
        account = self._account.pw_uid if os.geteuid() == 0 else None
        self._process = subprocess.Popen(
            [PGBOUNCER, str(self._config)], user=account, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
            cwd="/",
        )  # fmt: skip
        wait_until(self._answers, 10, lambda: Path(self._log.name).read_text())

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.conninfo, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.stop()
        self._log.close()


@pytest.fixture
def pooler(stage: Stage, folder: Path) -> Iterator[Pooler]:
    stage.handlers(HANDLERS)
    made = Pooler(stage.conninfo, folder)
    yield made
    for running in stage.supervisors:
        if running.process.poll() is None:
            running.stop()
    made.close()


def test_500_jobs_through_a_pooler_that_shares_its_connections(stage: Stage, pooler: Pooler) -> None:
    """D66, https://github.com/bensheldon/good_job/issues/269: nothing needs a session. One warning says that
    notifications are off, and the settings that we need meet nobody else on the shared connections."""
    ((name,),) = stage.rows("SELECT current_database()")
    for setting in ("default_transaction_read_only = on", "DateStyle = German", "search_path = nowhere",
                    "default_transaction_isolation = serializable", "extra_float_digits = -15"):  # fmt: skip
        stage.conn.execute(f'ALTER DATABASE "{name}" SET {setting}'.encode())
    pooler.stop()
    pooler.start()  # its server connections are as old as the settings
    with psycopg.connect(pooler.conninfo, prepare_threshold=None) as app:
        app.read_only = False
        ids = enqueue_many(app, [NewJob("note", number) for number in range(400)])
        ids += [enqueue(app, "note", number, unique_key=f"key {number}") for number in range(50)]
        failing = enqueue(app, "fail-once", timeout=3600.5)
        app.commit()
    supervisor = stage.run("-c", "2", "--lease", "6", conninfo=pooler.conninfo)
    supervisor.expect("notifications-off")
    command = [sys.executable, "-m", "ganger", "enqueue", "note"]
    commands = [stage.launch(*command, conninfo=pooler.conninfo) for _ in range(2)]
    for each in commands:
        assert each.ended() == 0, each.story()
    with psycopg.connect(pooler.conninfo, prepare_threshold=None) as app:
        app.read_only = False
        ids += enqueue_many(app, [NewJob("note", process_in=0.5, unique_key=f"later {n}") for n in range(48)])
        stuck = enqueue(app, "stuck", grace=0)
        app.commit()
        stage.wait_lines("began", 1, 60)
        assert cancel(app, stuck) == "ordered"
        app.commit()
    total = "SELECT count(*) FROM proletarian.archived_job WHERE status = 'success'"
    wait_until(lambda: stage.rows(total) == [(501,)], 60, supervisor.story)
    assert stage.archived(stuck)["status"] == "cancelled"
    row = stage.archived(failing)
    assert (row["attempts"], row["timeout_s"]) == (2, 3600.5)
    assert len(stage.lines("noted")) == len(set(stage.lines("noted"))) == 500
    assert set(map(str, ids)) < set(stage.lines("noted"))
    assert len(supervisor.named("notifications-off")) == 1
    assert not [event for event in supervisor.events if event["event"] in ("job-worker-error", "database-lost")]
    with stage.conn.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM proletarian.idle")
        assert cursor.fetchone() == (0,), "nobody asks for notifications that nobody hears"
    for _ in range(2 * SERVERS):
        with psycopg.connect(pooler.conninfo, autocommit=True, prepare_threshold=None) as stranger:
            shown = [
                stranger.execute(f"SHOW {setting}".encode()).fetchone()
                for setting in ("search_path", "enable_seqscan", "statement_timeout")
            ]
            assert shown == [("nowhere",), ("on",), ("0",)], shown
            assert stranger.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)
    assert supervisor.stop() == 0


def test_a_pooler_that_goes_away_is_an_outage(stage: Stage, pooler: Pooler) -> None:
    supervisor = stage.run("-c", "2", conninfo=pooler.conninfo)
    first = enqueue(stage.conn, "note")
    stage.archived(first)
    pooler.stop()
    supervisor.expect("database-lost")
    second = enqueue(stage.conn, "note")
    pooler.start()
    supervisor.expect("database-back")
    assert stage.archived(second)["attempts"] == 1
    assert len(supervisor.named("notifications-off")) == 1
    assert supervisor.stop() == 0


def test_the_schema_is_made_and_looked_at_through_a_pooler(bare_database: str, stage: Stage, pooler: Pooler) -> None:
    through = make_conninfo(pooler.conninfo, dbname=conninfo_to_dict(bare_database)["dbname"])
    with db.connect(through) as conn:
        assert conn.pooled
        assert db.install(conn, roles=True)
        assert db.status(conn).queues == ()
    with db.connect(bare_database) as conn:
        assert not conn.pooled
        db.check_schema(conn)
