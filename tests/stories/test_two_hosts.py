"""The commands of operators against two supervisors on two hosts: namespaces with names, processes and networks of
their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest

from tests.conftest import Ganger
from tests.namespaces import prepared
from tests.processes import wait_until
from tests.stories.stage import ROOT, Running, Stage

HANDLERS = """
    handlers = Handlers()
    @handlers.job("sleep", grace=0.2, timeout=900)
    def sleep(job):
        print("it sleeps")
        time.sleep(600)
    @handlers.job("quick")
    def quick(job):
        return job.payload
"""
CONSOLE = """
import contextlib, io, json, sys
from ganger import cli
for line in sys.stdin.buffer:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(json.loads(line))
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""


def host(name: str) -> tuple[str, ...]:
    return prepared(f"hostname {name}", "--uts", "--net", "--pid", "--fork", "--mount-proc", "--kill-child")


@contextmanager
def console(stage: Stage, box: Running) -> Iterator[Ganger]:
    """The command as it is typed on the host of a supervisor: (exit code, stdout, stderr)."""
    (supervisor,) = box.processes("supervisor")
    process = subprocess.Popen(
        ["nsenter", "-t", str(supervisor.pid), "--uts", "--net", "--pid", "--mount", sys.executable, "-c", CONSOLE],
        env={**os.environ, "PYTHONPATH": str(ROOT), "DATABASE_URL": stage.conninfo},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    asking, answering = process.stdin, process.stdout

    def call(*words: str) -> tuple[int, str, str]:
        print(json.dumps(words), file=asking, flush=True)
        code, out, err = json.loads(answering.readline())
        return code, out, err

    try:
        yield call
    finally:
        asking.close()
        process.wait(30)
        answering.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_command_sees_and_moves_the_jobs_of_both_hosts(
    stage: Stage, ganger: Ganger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Typed on one of them, about its own jobs and those of the other; what only its own host can tell (what a job
    prints, where it is) is refused for the other in a sentence. And from outside of both, as outside of containers."""
    monkeypatch.setenv("DATABASE_URL", stage.conninfo)
    stage.handlers(HANDLERS)
    boxes = {name: stage.run("-q", f"{name}=2", "--lease", "24", prefix=host(name)) for name in ("box1", "box2")}
    jobs = {name: stage.enqueue("sleep", queue=name) for name in boxes}
    done = stage.enqueue("quick", {"n": 1}, queue="box2")
    assert stage.archived(done)["host"] == "box2"
    with console(stage, boxes["box1"]) as on_box1:
        _see(stage, on_box1, ganger, jobs, done)
        _act(stage, on_box1, jobs)
    for box in boxes.values():
        (supervisor,) = box.processes("supervisor")
        os.kill(supervisor.pid, signal.SIGTERM)
        assert box.ended() == 0


def asked(ganger: Ganger, *words: str) -> Any:
    code, out, err = ganger(*words, "--json")
    assert code == 0, (words, out, err)
    return json.loads(out)


def listed(ganger: Ganger, *words: str) -> dict[str, str]:
    return {job["job_id"]: job["host"] for job in asked(ganger, "jobs", "list", *words)["jobs"]}


def _see(stage: Stage, on_box1: Ganger, outside: Ganger, jobs: dict[str, UUID], done: UUID) -> None:
    running = {str(job_id): name for name, job_id in jobs.items()}
    wait_until(lambda: listed(on_box1, "--state", "running") == running, 30, lambda: stage._why(jobs["box1"]))
    assert listed(on_box1, "--host", "box2") == {str(jobs["box2"]): "box2", str(done): "box2"}
    for name, job_id in jobs.items():
        shown = asked(on_box1, "jobs", "show", job_id.hex[-8:])
        assert (shown["status"], shown["host"], shown["runs"][0]["host"]) == ("running", name, name)
    report = {one["job_type"]: one for one in asked(on_box1, "report", "--since", "1h")["types"]}
    assert (report["quick"]["success"], sorted(report)) == (1, ["quick"])

    def told(seen: Any) -> list[tuple[str, int, int]]:
        return [(one["host"], one["running"], one["slots"]) for one in seen["supervisors"]]

    both = [("box1", 1, 2), ("box2", 1, 2)]
    wait_until(lambda: told(asked(on_box1, "top")) == both, 40, "the slots are told with the second beat")
    slots = {slot["host"]: slot for slot in asked(on_box1, "top")["slots"]}
    assert {name: slot["job_id"] for name, slot in slots.items()} == {name: str(job) for name, job in jobs.items()}
    assert (len(slots["box1"]["processes"]), slots["box1"]["slot"]) == (1, "box1/1")
    assert (slots["box2"]["processes"], slots["box2"]["slot"]) == ([], None)
    assert [slots[name]["limit"] for name in ("box1", "box2")] == [900.0, 900.0]
    told_by_status = asked(on_box1, "status")
    assert sorted((one["host"], one["running"]) for one in told_by_status["supervisors"]) == [("box1", 1), ("box2", 1)]

    seen = asked(outside, "top")
    assert [(one["host"], one["seen"]) for one in seen["supervisors"] if one["supervisor_id"]] == [
        ("box1", True), ("box2", True),
    ]  # fmt: skip
    assert {slot["processes"] != [] for slot in seen["slots"] if slot["job_id"] in running} == {True}

    assert "in sleep" in asked(on_box1, "jobs", "stacks", str(jobs["box1"]))[0]["stack"]
    for command in ("stacks", "tail"):
        code, out, err = on_box1("jobs", command, str(jobs["box2"]))
        assert (code, out) == (1, "")
        assert f"job {jobs['box2']} runs on host box2 under supervisor box2:" in err
        assert "which cannot be asked: it is not on this host" in err


def _act(stage: Stage, on_box1: Ganger, jobs: dict[str, UUID]) -> None:
    assert asked(on_box1, "pause", "box1")["paused"] == ["box1"]
    cancelled = asked(on_box1, "jobs", "cancel", "--host", "box1", "--yes")
    assert cancelled == [{"job_id": str(jobs["box1"]), "answer": "ordered"}]
    assert asked(on_box1, "jobs", "kill", str(jobs["box2"]))[0]["answer"] == "ordered"
    assert (stage.archived(jobs["box1"])["reason"], stage.archived(jobs["box1"])["host"]) == ("cancelled", "box1")
    assert (stage.archived(jobs["box2"])["reason"], stage.archived(jobs["box2"])["rung"]) == ("killed", "kill")
    for job_id in jobs.values():  # of one that has ended, every host tells what it printed
        code, out, err = on_box1("jobs", "tail", str(job_id))
        assert (code, out) == (1, "it sleeps\n")
        assert f"job {job_id} attempt 1: " in err

    assert asked(on_box1, "jobs", "retry", "--state", "cancelled", "--type", "sleep", "--yes")[0]["answer"] == "retried"
    again = {str(jobs["box2"]): "box2"}
    wait_until(lambda: listed(on_box1, "--state", "running") == again, 30, lambda: stage._why(jobs["box2"]))
    assert listed(on_box1, "--state", "ready") == {str(jobs["box1"]): None}  # its queue is paused
    assert asked(on_box1, "resume") == {"all_paused": False, "paused": []}
    again[str(jobs["box1"])] = "box1"
    wait_until(lambda: listed(on_box1, "--state", "running") == again, 30, lambda: stage._why(jobs["box1"]))
    asked(on_box1, "jobs", "kill", "--all", "--yes")
    for job_id in jobs.values():
        assert stage.archived(job_id)["reason"] == "killed"
        assert len(asked(on_box1, "jobs", "show", str(job_id))["runs"]) == 2
    assert asked(on_box1, "prune", "--older-than", "0", "--yes") == {"deleted": 3}
