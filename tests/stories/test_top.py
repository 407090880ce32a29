"""``ganger top`` on a supervisor that works: as JSON, on a terminal with its keys, and while the database is away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.processes import wait_until
from tests.stories.stage import ROOT, Stage
from tests.terminal import Terminal

NAME = "!here"  # comes before all others of this host, which top shows, too
HANDLERS = """
    handlers = Handlers()
    @handlers.job("compute", timeout=600)
    def compute(job):
        child = subprocess.Popen(["sleep", "600"])
        (FOLDER / "computes").touch()
        while True:
            sum(range(10000))
    @handlers.job("wait", grace=0.2)
    def wait(job):
        (FOLDER / "waits").touch()
        time.sleep(600)
    @handlers.job("fail")
    def fail(job):
        raise ValueError
"""


def told(stage: Stage, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "ganger", "top", "--json", *options]
    path = {"PYTHONPATH": str(ROOT), "DATABASE_URL": stage.conninfo}
    done = subprocess.run(command, env={**os.environ, **path}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


@pytest.mark.slow
def test_top_shows_runs_and_takes_orders(stage: Stage) -> None:
    """With the database and without it; a run is cancelled, a failed job retried and a queue paused by keys."""
    stage.handlers(HANDLERS)
    failed = stage.enqueue("fail", queue="b")
    supervisor = stage.run("-q", "a=2,b=1", "--name", NAME)
    assert stage.archived(failed)["reason"] == "exception"
    computing, waiting = stage.enqueue("compute", queue="a"), stage.enqueue("wait", queue="a")
    stage.enqueue("wait", queue="never")
    wait_until(lambda: stage.lines("computes") == [] and (stage.folder / "waits").exists(), 15, supervisor.story)

    def runs(seen: dict[str, Any]) -> dict[str, dict[str, Any]]:
        return {slot["short_id"]: slot for slot in seen["slots"] if slot["supervisor"] == NAME}

    ours = {computing.hex[-8:], waiting.hex[-8:]}
    wait_until(lambda: ours <= runs(told(stage)).keys(), 30, supervisor.story)  # the titles follow within a second
    seen = told(stage)
    computes = runs(seen)[computing.hex[-8:]]
    assert (computes["job_id"], computes["queue"], computes["job_type"]) == (str(computing), "a", "compute")
    assert (computes["limit"], computes["attempt"], len(computes["processes"])) == (600.0, 1, 2)
    assert computes["cpu"] > 3
    assert computes["rss"] > 1 << 20
    assert computes["processes"][1]["name"] == "sleep 600"
    assert {(queue["name"], queue["ready"]) for queue in seen["queues"]} >= {("never", 1)}
    assert [(job["job_id"], job["reason"]) for job in seen["ended"]] == [(str(failed), "exception")]
    assert [one["supervisor_id"] is not None for one in seen["supervisors"] if one["name"] == NAME] == [True]

    away = told(stage, "--database-url", "postgresql://localhost:1/none")
    assert "refused" in away["error"]
    assert runs(away)[computing.hex[-8:]]["job_id"] is None
    assert (away["queues"], away["ended"]) == ([], [])

    with Terminal("-m", "ganger", "top", environ={"DATABASE_URL": stage.conninfo}) as terminal:
        terminal.expect("never", 40)  # the database has answered
        terminal.press("j" * (1 + list(runs(seen)).index(waiting.hex[-8:])))
        terminal.press("s")
        terminal.expect(f"STACKS of {waiting}")
        terminal.expect("  wait:[0-9]+  /")
        terminal.press("c")
        terminal.expect(f"Cancel wait {waiting}\\? y/n")
        terminal.press("y")
        terminal.expect(f"cancel {waiting}: ordered")
        terminal.read_until(lambda: stage._row("archived_job", waiting))
        terminal.expect(f"cancelled +{waiting.hex[-8:]}|{waiting.hex[-8:]} +1 cancelled")
        terminal.press("j" * 500)  # the last row is what ended first
        terminal.press("K")
        terminal.expect("It has ended.")
        terminal.press("p")
        terminal.expect("Pause the queue b\\? y/n")
        terminal.press("y")
        terminal.expect("The queue b is paused.")
        terminal.press("r")
        terminal.expect(f"Retry fail {failed}\\? y/n")
        terminal.press("n")
        terminal.press("r")
        terminal.expect(f"Retry fail {failed}\\? y/n")
        terminal.press("y")
        terminal.expect(f"retry {failed}: retried")
        terminal.press("q")
        assert terminal.leave() == 0
    row = stage.job(failed)
    assert row is not None
    assert (row["state"], row["attempts"]) == (1, 0)  # it waits in its paused queue
    assert (stage.archived(waiting)["status"], stage.archived(waiting)["ended_by"]) == ("cancelled", "operator")
    stage.conn.execute("SELECT proletarian.cancel(%s, 'killed')", [computing])
    assert stage.archived(computing)["reason"] == "killed"
    assert supervisor.stop() == 0
