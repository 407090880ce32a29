"""What operators ask a running supervisor itself: a job's output as it comes, where it is, how all stands."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from uuid import UUID

import pytest

from ganger import jobs, knock
from ganger.database import connect
from tests.conftest import Ganger
from tests.processes import wait_until
from tests.stories.stage import ROOT, Stage

TALKING = """
    handlers = Handlers()

    def here_it_waits(name):
        while not (FOLDER / name).exists():
            time.sleep(0.02)

    @handlers.job("talk")
    def talk(job):
        print("before anybody listened")
        here_it_waits("go on")
        print("\\x1b[2J", end="")
        for number in range(5):
            print("line", number)
        here_it_waits("end")
        print("the last words", end="")
        if job.payload == "fail":
            raise ValueError("no luck")

    @handlers.job("hold")
    def hold(job):
        print("holding")
        sum(range(10**12))

    @handlers.job("chatter")
    def chatter(job):
        block = b"y" * 99 + b"\\n"
        for _ in range(300):
            os.write(1, block * 1000)
"""


def run_by(stage: Stage, job_id: UUID) -> jobs.RunBy:
    with connect(stage.conninfo) as conn:
        found = jobs.run_by(conn, "proletarian", job_id)
    assert found is not None
    return found


def tail(stage: Stage, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ganger", "jobs", "tail", *words], cwd=stage.folder, text=True,
        env={**os.environ, "DATABASE_URL": stage.conninfo, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_output_is_followed_to_the_end_of_the_run_and_then_its_outcome_is_told(
    stage: Stage, ganger: Ganger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ganger jobs tail` shows what was printed before it came, then each line as it comes, and ends with the job."""
    stage.handlers(TALKING)
    supervisor = stage.run("--concurrency", "2")
    monkeypatch.setenv("DATABASE_URL", stage.conninfo)
    job_id = stage.enqueue("talk", "fail")
    supervisor.expect("job-output", line="before anybody listened")
    follower = tail(stage, str(job_id)[-8:])
    assert follower.stdout is not None
    assert follower.stdout.readline() == "before anybody listened\n"
    (stage.folder / "go on").touch()
    assert [follower.stdout.readline() for _ in range(5)] == [
        "\\x1b[2Jline 0\n", "line 1\n", "line 2\n", "line 3\n", "line 4\n",
    ]  # fmt: skip
    assert follower.poll() is None
    (stage.folder / "end").touch()
    out, err = follower.communicate(timeout=30)
    assert (follower.returncode, out) == (1, "the last words\n")
    assert f"job {job_id} attempt 1: an exception after" in err

    code, out, err = ganger("jobs", "tail", str(job_id))  # it has ended: what is kept of it
    assert (code, out.splitlines()[0]) == (1, "before anybody listened")
    well = stage.enqueue("talk")
    stage.archived(well)
    code, out, err = ganger("jobs", "tail", str(well), "--json")
    assert (code, json.loads(out.splitlines()[-1])) == (0, "the last words")
    waiting = stage.enqueue("talk", process_in=600)
    code, _, err = ganger("jobs", "tail", str(waiting))
    assert code == 1
    assert "does not run: it is scheduled" in err


@pytest.mark.slow
def test_who_does_not_read_costs_the_supervisor_nothing(stage: Stage) -> None:
    """30 MB of output and a follower that reads none of it: the job ends, and the follower is told what it missed."""
    stage.handlers(TALKING)
    supervisor = stage.run("--concurrency", "1")
    (stage.folder / "go on").touch()
    first = stage.enqueue("chatter")
    supervisor.expect("handling-job", job_id=str(first))
    wait_until(lambda: any(told == str(first) for told, _ in list(supervisor.output)), 10, supervisor.story)
    words = knock.ask(run_by(stage, first).incarnation, "tail", first, patience=60)
    assert "so_far" in next(words)
    stage.archived(first, 90)
    told = list(words)
    assert 0 < len(told) < 20_000
    assert not supervisor.named("job-worker-error")


def stalled(ganger: Ganger, *job_ids: UUID) -> list[bool]:
    """What `ganger top` tells of these jobs; it shows those of other tests too, which run on this host."""
    slots = {slot["job_id"]: slot["stalled"] for slot in json.loads(ganger("top", "--json")[1])["slots"]}
    return [slots[str(job_id)] for job_id in job_ids if str(job_id) in slots]


def test_where_everything_is_can_be_asked_while_it_runs_on(
    stage: Stage, ganger: Ganger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ganger jobs stacks`, and SIGUSR1 to the supervisor: its own state and threads, and the stack of each child, also
    of one in C code that holds the GIL. A job that neither computes nor gets on is reported, and not ended."""
    stage.handlers(TALKING)
    supervisor = stage.run("--concurrency", "2", "--stall-after", "2")
    monkeypatch.setenv("DATABASE_URL", stage.conninfo)
    talking, holding = stage.enqueue("talk"), stage.enqueue("hold")
    supervisor.expect("job-output", line="holding")
    supervisor.expect("job-output", line="before anybody listened")
    code, out, err = ganger("jobs", "stacks", str(talking), str(holding))
    assert (code, err) == (0, "")
    assert "in here_it_waits" in out.partition(f"job {holding}")[0]
    assert "in hold" in out.partition(f"job {holding}")[2]
    code, out, _ = ganger("jobs", "stacks", str(talking), "--json")
    assert json.loads(out)[0]["stack"].startswith("Main thread")

    os.kill(supervisor.pid, signal.SIGUSR1)
    for job_id, where in ((talking, "in here_it_waits"), (holding, "in hold")):
        told = supervisor.expect("state-dump", job_id=str(job_id))
        assert where in told["stack"]
    own = supervisor.expect("state-dump", phase="running")
    assert f"busy talk {talking} attempt 1 running" in " ".join(own["slots"].values())
    assert "Thread ganger-events" in own["stack"]
    assert supervisor.expect("job-stalled", job_id=str(talking))["seconds"] >= 2
    both = (talking, holding)
    wait_until(lambda: stalled(ganger, *both) == [True, False], 10, lambda: str(stalled(ganger, *both)))
    assert len(supervisor.named("job-stalled")) == 1
    (stage.folder / "go on").touch()
    (stage.folder / "end").touch()
    assert stage.archived(talking)["status"] == "success"
    code, _, err = ganger("jobs", "stacks", str(talking))
    assert code == 1
    assert "does not run: it is success" in err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_refused(stage: Stage) -> None:
    """The kernel tells who asks; what a job prints and where it is concerns its own user, and root."""
    stage.handlers(TALKING)
    supervisor = stage.run("--concurrency", "1")
    job_id = stage.enqueue("talk")
    supervisor.expect("job-output", line="before anybody listened")
    incarnation = run_by(stage, job_id).incarnation
    for question in ("tail", "stacks"):
        pid = os.fork()
        if pid == 0:
            code = 9
            try:
                os.setuid(65534)
                list(knock.ask(incarnation, question, job_id))
            except knock.NotHere as error:
                code = 3 if "another user's" in str(error) else 4
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 3
    assert next(iter(knock.ask(incarnation, "tail", job_id))) == {"so_far": "before anybody listened\n"}


def test_a_job_of_another_host_is_not_asked_but_named(
    stage: Stage, ganger: Ganger, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.handlers(TALKING)
    supervisor = stage.run("--concurrency", "1", "--name", "far-away")
    monkeypatch.setenv("DATABASE_URL", stage.conninfo)
    job_id = stage.enqueue("talk")
    supervisor.expect("job-output", line="before anybody listened")

    def nowhere(incarnation: UUID) -> str:
        return "\0ganger-nowhere"

    monkeypatch.setattr(knock, "address", nowhere)
    for command in ("tail", "stacks"):
        code, out, err = ganger("jobs", command, str(job_id))
        assert (code, out) == (1, "")
        assert f"job {job_id} runs on host " in err
        assert "under supervisor far-away, which cannot be asked: it is not on this host" in err


def test_nonsense_at_the_door_is_refused_and_harms_nobody(stage: Stage) -> None:
    stage.handlers(TALKING)
    supervisor = stage.run("--concurrency", "1")
    address = knock.address(UUID(supervisor.cookie))
    for said in (b"", b"x" * 2000, b"[]\n", b"null\n", b'{"ask": "tail", "job_id": 7}\n', b"\xff\n"):
        with socket.socket(socket.AF_UNIX) as door:
            door.settimeout(10)
            door.connect(address)
            door.sendall(said)
            if not said:
                door.shutdown(socket.SHUT_WR)
            answer = door.recv(4096)
        assert (b"refused" in answer) == bool(said)
    job_id = stage.enqueue("talk")
    for name in ("go on", "end"):
        (stage.folder / name).touch()
    stage.archived(job_id)
