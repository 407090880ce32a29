"""The commands of operators against two supervisors on two hosts: namespaces with names and processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.conftest import Ganger
from tests.namespaces import prepared
from tests.processes import wait_until
from tests.stories.stage import ROOT, Running, Stage

HANDLERS = """
    handlers = Handlers()
    @handlers.job("sleep", grace=0.2)
    def sleep(job):
        time.sleep(600)
    @handlers.job("quick")
    def quick(job):
        return job.payload
"""


def host(name: str) -> tuple[str, ...]:
    return prepared(f"hostname {name}", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_command_sees_and_moves_the_jobs_of_both_hosts(
    stage: Stage, ganger: Ganger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", stage.conninfo)

    def asked(*words: str) -> Any:
        code, out, err = ganger(*words, "--json")
        assert code == 0, (words, out, err)
        return json.loads(out)

    stage.handlers(HANDLERS)
    boxes = {name: stage.run("-q", f"{name}=2", "--lease", "24", prefix=host(name)) for name in ("box1", "box2")}
    jobs = {name: stage.enqueue("sleep", queue=name) for name in boxes}
    done = stage.enqueue("quick", {"n": 1}, queue="box2")
    assert stage.archived(done)["host"] == "box2"

    def listed(*words: str) -> dict[str, str]:
        return {job["job_id"]: job["host"] for job in asked("jobs", "list", *words)["jobs"]}

    running = {str(job_id): name for name, job_id in jobs.items()}
    wait_until(lambda: listed("--state", "running") == running, 30, lambda: stage._why(jobs["box1"]))
    assert listed("--host", "box2") == {str(jobs["box2"]): "box2", str(done): "box2"}
    shown = asked("jobs", "show", jobs["box1"].hex[-8:])
    assert (shown["status"], shown["host"], shown["runs"][0]["host"]) == ("running", "box1", "box1")

    def told(seen: Any) -> list[tuple[str, int, int]]:
        return [(one["host"], one["running"], one["slots"]) for one in seen["supervisors"]]

    both = [("box1", 1, 2), ("box2", 1, 2)]
    wait_until(lambda: told(_top(stage, host("box3"))) == both, 40, "the slots are told with the second beat")
    here = _top(stage, host("box3"))  # it sees no process of theirs
    assert {slot["host"]: slot["job_id"] for slot in here["slots"]} == {name: str(job) for name, job in jobs.items()}
    outside = asked("top")  # it sees their processes, as one does from outside of containers
    ours = {slot["short_id"]: slot for slot in outside["slots"] if slot["job_id"] in running}
    assert {slot["processes"] != [] for slot in ours.values()} == {True}
    seen = [(one["host"], one["seen"]) for one in outside["supervisors"] if one["supervisor_id"]]
    assert seen == [("box1", True), ("box2", True)]

    assert asked("pause", "box1")["paused"] == ["box1"]
    assert asked("jobs", "cancel", "--host", "box1", "--yes") == [{"job_id": str(jobs["box1"]), "answer": "ordered"}]
    assert asked("jobs", "kill", str(jobs["box2"]))[0]["answer"] == "ordered"
    assert (stage.archived(jobs["box1"])["reason"], stage.archived(jobs["box1"])["host"]) == ("cancelled", "box1")
    assert (stage.archived(jobs["box2"])["reason"], stage.archived(jobs["box2"])["rung"]) == ("killed", "kill")
    assert asked("jobs", "retry", "--state", "cancelled", "--type", "sleep", "--yes")[0]["answer"] == "retried"
    again = {str(jobs["box2"]): "box2"}
    wait_until(lambda: listed("--state", "running") == again, 30, lambda: stage._why(jobs["box2"]))
    assert listed("--state", "ready") == {str(jobs["box1"]): None}  # its queue is paused
    asked("resume")
    wait_until(lambda: listed("--state", "running") == running, 30, lambda: stage._why(jobs["box1"]))
    report = {one["job_type"]: one for one in asked("report", "--since", "1h")["types"]}
    assert (report["quick"]["success"], sorted(report)) == (1, ["quick"])
    asked("jobs", "kill", "--all", "--yes")
    for job_id in jobs.values():
        assert stage.archived(job_id)["reason"] == "killed"
        assert len(asked("jobs", "show", str(job_id))["runs"]) == 2
    assert asked("prune", "--older-than", "0", "--yes") == {"deleted": 3}
    for box in boxes.values():
        _stop(box)


def _top(stage: Stage, prefix: tuple[str, ...]) -> Any:
    """What top tells on another host."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "DATABASE_URL": stage.conninfo}
    command = [*prefix, sys.executable, "-m", "ganger", "top", "--json"]
    return json.loads(subprocess.run(command, env=environ, capture_output=True, check=True, timeout=60).stdout)


def _stop(box: Running) -> None:
    (supervisor,) = box.processes("supervisor")
    os.kill(supervisor.pid, signal.SIGTERM)
    assert box.ended() == 0
