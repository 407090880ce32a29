"""A whole supervisor and the commands under logins that may do no more than they must."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from ganger import NewJob, cancel, enqueue, enqueue_many
from ganger import database as db
from tests.stories.stage import Running, Stage

HANDLERS = """
    handlers = Handlers(retry_strategy=lambda job, exception: Retry(1, delays=[0.1]))
    @handlers.job("note")
    def note(job):
        return job.payload
    @handlers.job("fail")
    def fail(job):
        raise ValueError("it does")
    @handlers.job("die")
    def die(job):
        os.kill(os.getpid(), signal.SIGKILL)
    @handlers.job("stuck")
    def stuck(job):
        with open(FOLDER / "began", "a") as file: file.write(f"{job.id}\\n")
        while True: pass
"""

Logins = Callable[[str | None], str]


@pytest.fixture
def logins(stage: Stage) -> Iterator[Logins]:
    """The conninfo of a new login that is a member of the role (of none)."""
    names: list[str] = []
    with db.connect(stage.conninfo) as conn:
        db.install(conn, roles=True)

    def make(role: str | None) -> str:
        names.append(f"login-{uuid4()}")
        stage.conn.execute(f'CREATE ROLE "{names[-1]}" LOGIN {f"IN ROLE {role}" if role else ""}'.encode())
        return make_conninfo(stage.conninfo, user=names[-1])

    yield make
    with psycopg.connect(stage.conninfo, autocommit=True) as owner:
        for running in stage.supervisors:  # DROP OWNED waits for nobody, but a session of theirs would outlive it
            if running.process.poll() is None:
                running.stop()
        for name in names:
            owner.execute(f'DROP OWNED BY "{name}"'.encode())
            owner.execute(f'DROP ROLE "{name}"'.encode())


@pytest.mark.slow
def test_a_supervisor_lives_its_whole_life_without_rights_on_the_schema(stage: Stage, logins: Logins) -> None:
    """Register, claim, retry, crash, time out, cancel, be notified, take over a dead supervisor's jobs, deregister."""
    stage.handlers(HANDLERS)
    worker, app = logins("ganger_supervisor"), logins("ganger_enqueuer")
    doomed = stage.run("-c", "1", "--lease", "3", conninfo=worker)
    with psycopg.connect(app) as conn:
        lost = enqueue(conn, "stuck", timeout=60, grace=0)
        conn.commit()
        stage.wait_lines("began")
        doomed.process.kill()
        supervisor = stage.run("-c", "3", "--lease", "3", conninfo=worker)
        supervisor.expect("job-lost", 30, job_id=str(lost))
        stage.wait_lines("began", 2)
        cancel(stage.conn, lost)
        assert stage.archived(lost)["status"] == "cancelled"
        ids = enqueue_many(conn, [NewJob("note", number) for number in range(20)])
        failing, dying, late = enqueue(conn, "fail"), enqueue(conn, "die"), enqueue(conn, "note", "late", process_in=1)
        slow = enqueue(conn, "stuck", timeout=1, grace=0)
        conn.commit()
        assert [stage.archived(job_id)["status"] for job_id in ids] == ["success"] * 20
        for job_id, reason, attempts in ((failing, "exception", 2), (dying, "crash", 2), (slow, "timeout", 2)):
            row = stage.archived(job_id)
            assert (row["status"], row["reason"], row["attempts"]) == ("failure", reason, attempts), supervisor.story()
        assert stage.archived(late)["enqueued_by"] == conn.info.user
        told = conn.execute("SELECT status, result FROM proletarian.look_up(%s)", [ids[3]]).fetchone()
        assert told == ("success", 3)
    assert not supervisor.named("job-worker-error"), supervisor.story()
    assert supervisor.stop() == 0
    assert stage.rows("SELECT count(*) FROM proletarian.supervisor") == [(0,)]


@pytest.mark.slow
def test_commands_under_the_fitting_role_and_under_another(stage: Stage, logins: Logins) -> None:
    stage.handlers(HANDLERS)
    worker, app, viewer, nobody = map(logins, ("ganger_supervisor", "ganger_enqueuer", "ganger_viewer", None))

    def ganger(conninfo: str, *arguments: str) -> Running:
        return stage.launch(sys.executable, "-m", "ganger", *arguments, conninfo=conninfo)

    allowed = [
        ganger(app, "enqueue", "note", "1"),
        ganger(viewer, "status"),
        ganger(stage.conninfo, "install", "--roles"),
    ]
    refused = [
        ganger(app, "run", "story:handlers"),
        ganger(viewer, "run", "story:handlers"),
        ganger(nobody, "run", "story:handlers"),
        ganger(nobody, "status"),
        ganger(nobody, "enqueue", "note"),
        ganger(app, "status"),
        ganger(viewer, "enqueue", "note"),
        ganger(worker, "enqueue", "note"),
        ganger(worker, "reset", "--yes"),
        ganger(worker, "install", "--roles"),
    ]
    for command in allowed:
        assert command.ended() == 0, command.story()
    for command in refused:
        assert command.ended() == 78, command.story()
        assert "may not do this" in command.story()
        assert "ganger install --roles" in command.story()
    assert "no supervisor" in allowed[1].story()
    assert stage.rows("SELECT job_type FROM proletarian.job") == [("note",)]
