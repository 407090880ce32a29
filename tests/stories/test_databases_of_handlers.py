"""Handlers that use the same database as the supervisor, well and badly."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.processes import wait_until
from tests.stories.stage import Stage

pytestmark = pytest.mark.slow

SLEEPERS = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%%' AND state = 'active'"


def sockets(pid: int) -> set[str]:
    """The sockets that a process has open, by their inodes."""
    links = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.add(os.readlink(fd))
        except OSError:  # closed meanwhile
            continue
    return {link for link in links if link.startswith("socket:")}


@pytest.mark.slow
def test_a_connection_that_all_children_inherit_is_their_harm_alone(stage: Stage) -> None:
    """D25, https://github.com/celery/celery/issues/1564: the module opens a connection at its import, and 20 jobs in
    several children talk over it at once. The supervisor's own sessions are nowhere among a child's descriptors."""
    stage.handlers("""
        import psycopg
        SHARED = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)
        handlers = Handlers()
        @handlers.job("shared")
        def shared(job):
            links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                     if os.path.exists(f"/proc/self/fd/{fd}")]
            with open(FOLDER / "sockets", "a") as file: file.write("\\n".join(links) + "\\n")
            for number in range(20):
                answer = SHARED.execute("SELECT %s::int", [number]).fetchone()
                if answer != (number,): raise ValueError(f"asked {number}, was told {answer}")
        @handlers.job("note")
        def note(job):
            return "well"
    """)
    supervisor = stage.run("-c", "4", "--recycle-after", "0")
    jobs = [stage.enqueue("shared", timeout=2, grace=0) for _ in range(20)]
    for job_id in jobs:
        row = stage.archived(job_id, 60)
        assert row["status"] in ("success", "failure")
        assert row["reason"] in (None, "exception", "timeout", "crash")
    assert stage.archived(stage.enqueue("note"))["result"] == "well"
    seen = {line for line in stage.lines("sockets") if line.startswith("socket:")}
    assert seen
    assert not seen & sockets(supervisor.pid)
    assert not supervisor.named("database-lost"), supervisor.story()
    assert not supervisor.named("job-worker-error"), supervisor.story()
    assert supervisor.stop() == 0


@pytest.mark.parametrize("how", ["timeout", "shutdown"])
def test_a_query_that_a_handler_waits_for_ends_with_its_interrupt(stage: Stage, how: str) -> None:
    """D65, https://github.com/psycopg/psycopg/issues/231: the server's query ends too, and the handler's cleanup can
    still use its connection."""
    stage.handlers("""
        import psycopg
        handlers = Handlers()
        @handlers.job("ask", grace=10)
        def ask(job):
            with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as conn:
                (FOLDER / "began").touch()
                try:
                    conn.execute("SELECT pg_sleep(60)")
                except JobInterrupted as error:
                    (answer,) = conn.execute("SELECT 6 * 7").fetchone()
                    (FOLDER / "cleaned").write_text(f"{type(error).__name__} {answer}\\n")
                    raise
    """)
    supervisor = stage.run("-c", "1")
    job_id = stage.enqueue("ask", timeout=1.5 if how == "timeout" else None)
    wait_until(lambda: stage.rows(SLEEPERS) == [(1,)], 15, supervisor.story)
    if how == "shutdown":
        assert supervisor.stop() == 0
        supervisor.expect("job-interrupted", job_id=str(job_id))
        row = stage.job(job_id)
        assert row is not None
        assert (row["state"], row["attempts"], row["interrupts"]) == (1, 0, 1)
    else:
        wait_until(lambda: stage.rows(SLEEPERS) == [(0,)], 1.5 + 2.0 * 3, "the query goes on")
        row = stage.archived(job_id)
        assert (row["status"], row["reason"], row["rung"]) == ("failure", "timeout", "interrupt")
        assert supervisor.stop() == 0
    assert stage.rows(SLEEPERS) == [(0,)]
    assert stage.lines("cleaned") == [f"{'JobTimedOut' if how == 'timeout' else 'JobInterrupted'} 42"]
