"""Losses below the supervisor: of a warden, of the template. And a supervisor that is process 1 of its container."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress

import psutil
import pytest

from tests.processes import alive, wait_until
from tests.stories.stage import Running, Stage

HANDLERS = """
    handlers = Handlers(failed_job=lambda job, error: note("failed", job, error))

    def note(word, job, error=None):
        with open(FOLDER / "notes", "a") as file:
            file.write(" ".join([word, str(job.payload), str(job.attempt), *([type(error).__name__] if error else [])]))
            file.write("\\n")

    @handlers.job("once")  # computes for ever at the first attempt
    def once(job):
        note("began", job)
        while job.attempt == 1:
            pass

    @handlers.job("wait")  # until it is told to go on
    def wait(job):
        note("began", job)
        while not (FOLDER / "go").exists():
            time.sleep(0.02)
        return os.getpid()

    @handlers.job("always")
    def always(job):
        note("began", job)
        while True:
            pass

    @handlers.job("double fork")  # leaves a process that ends a moment after the job
    def double_fork(job):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(0.05)
            os._exit(0)

    @handlers.job("litter")  # leaves processes of its own that end soon, orphaned twice over
    def litter(job):
        for _ in range(5):
            subprocess.run(["sh", "-c", "(sh -c 'sleep 0.2 & sleep 0.1' &) & sleep 0.05"], start_new_session=True)
"""


@pytest.fixture
def told(stage: Stage) -> Stage:
    stage.handlers(HANDLERS)
    return stage


def slot_of(supervisor: Running, role: str, words: str) -> psutil.Process:
    """The warden or child whose title has these words."""
    found = wait_until(
        lambda: next((p for p in supervisor.processes(role) if words in " ".join(p.cmdline())), None), 10,
        lambda: f"no {role} of {words}",
    )  # fmt: skip
    assert found is not None
    return found


# ----------------------------------------------------------------------------------------------------------------------
# A warden


def test_a_killed_warden_costs_its_own_job_one_loss_and_nobody_else_anything(told: Stage) -> None:
    """Correction 4: the death of a warden is no crash of its job but a loss."""
    supervisor = told.run("-c", "2")
    other = told.enqueue("wait", "other")
    told.wait_lines("notes", 1)
    mine = told.enqueue("once", "mine")
    told.wait_lines("notes", 2)
    warden, child = (slot_of(supervisor, role, "once") for role in ("warden", "child"))
    warden.kill()
    wait_until(lambda: not alive(child.pid), 6, "the child has outlived its warden")
    supervisor.expect("job-lost", job_id=str(mine))

    row = told.archived(mine)  # again, in the other warden that the slot got, for the first slot is busy
    assert (row["status"], row["attempts"], row["losses"], row["crashes"]) == ("success", 2, 1, 0)
    assert told.lines("notes") == ["began other 1", "began mine 1", "began mine 2"]
    (told.folder / "go").touch()
    row = told.archived(other)
    assert (row["status"], row["attempts"], row["losses"], row["starts"]) == ("success", 1, 0, 1)
    assert len(supervisor.named("job-lost")) == 1
    assert supervisor.stop() == 0


def test_a_job_that_is_lost_too_often_fails_as_lost_and_failed_job_is_told(told: Stage) -> None:
    supervisor = told.run("-c", "1", "--max-losses", "2")
    job_id = told.enqueue("always", "poison")
    for loss in (1, 2):
        told.wait_lines("notes", loss, 20)
        slot_of(supervisor, "warden", "always").kill()
        supervisor.expect("job-lost", count=loss)
    row = told.archived(job_id)
    assert (row["status"], row["reason"], row["losses"], row["attempts"]) == ("failure", "lost", 2, 3)
    assert told.lines("notes") == ["began poison 1", "began poison 2", "failed poison 3 JobLost"]
    supervisor.expect("not-retrying", job_id=str(job_id))
    (told.folder / "go").touch()
    assert told.archived(told.enqueue("wait"))["status"] == "success"
    assert supervisor.stop() == 0


@pytest.mark.parametrize("what", ["warden", "warden and child", "warden, child and template"])
def test_a_timeout_reaches_a_child_whose_warden_is_stopped(told: Stage, what: str) -> None:
    """Correction 4: no word from the warden for half a second: it is continued, then killed together with its child."""
    supervisor = told.run("-c", "1")
    job_id = told.enqueue("always", "slow", timeout=1.5, grace=0)
    told.wait_lines("notes")
    began = time.monotonic()
    warden, child = (slot_of(supervisor, role, "always") for role in ("warden", "child"))
    (template,) = supervisor.processes("template")
    for name, process in {"warden": warden, "child": child, "template": template}.items():
        if name in what:
            process.suspend()
    wait_until(lambda: not alive(child.pid), 10, "the child lives on")
    assert time.monotonic() - began < 1.5 + 1.0 * 3
    row = told.archived(job_id)
    assert (row["status"], row["reason"], row["attempts"], row["losses"]) == ("failure", "timeout", 1, 0)
    assert told.lines("notes") == ["began slow 1", "failed slow 1 JobTimedOut"]
    (told.folder / "go").touch()
    assert told.archived(told.enqueue("wait"))["status"] == "success"
    assert supervisor.stop() == 0


# ----------------------------------------------------------------------------------------------------------------------
# The template


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_running_jobs_survive_their_template_and_new_ones_run_on_another(told: Stage, number: int) -> None:
    """Correction 10: a warden belongs to a template; that of an older one goes after its job."""
    supervisor = told.run("-c", "2")
    job_id = told.enqueue("wait", "old")
    told.wait_lines("notes")
    child = slot_of(supervisor, "child", "wait")
    (template,) = supervisor.processes("template")
    template.send_signal(number)
    supervisor.expect("boot-failed")
    other = wait_until(lambda: next(iter(supervisor.processes("template")), None), 15, "no other template")
    assert other is not None
    assert other.pid != template.pid
    assert alive(child.pid)
    (told.folder / "go").touch()
    row = told.archived(job_id)
    assert (row["status"], row["attempts"], row["losses"], row["result"]) == ("success", 1, 0, child.pid)

    # Two at a time need both slots: the one that was busy has to change over to the new template.
    (told.folder / "go").unlink()
    jobs = [told.enqueue("wait", "new") for _ in range(2)]
    told.wait_lines("notes", 3)
    wait_until(
        lambda: {p.ppid() for p in supervisor.processes("warden")} == {other.pid}, 10,
        lambda: f"wardens of the template before: {supervisor.processes('warden')}",
    )  # fmt: skip
    (told.folder / "go").touch()
    assert {told.archived(job_id)["status"] for job_id in jobs} == {"success"}
    assert supervisor.stop() == 0


# ----------------------------------------------------------------------------------------------------------------------
# Process 1


def below(pid: int) -> list[str]:
    """What is below a process: the states of its descendants, and their names."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found.append(f"{process.status()} {process.name()}")
    return found


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="making a PID namespace takes root")
def test_as_process_1_it_leaves_no_zombies(told: Stage) -> None:
    """D06, https://github.com/dagucloud/dagu/issues/2237: a supervisor that is process 1 of its container, 200 jobs
    that each leave short-lived double-forked processes, and strangers that are orphaned beside them: at most one zombie
    afterwards, and it stays so.
    """
    unshare = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    if subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("the kernel refuses a PID namespace here")
    supervisor = told.run("-c", "2", prefix=unshare)
    (first,) = psutil.Process(supervisor.pid).children()
    jobs = [told.enqueue("litter") for _ in range(6)] + [told.enqueue("double fork") for _ in range(200)]
    assert {told.archived(job_id, 90)["status"] for job_id in jobs} == {"success"}
    # Strangers: orphaned in the supervisor's container but not started by it, as `docker exec` does.
    for _ in range(5):
        orphans = "(sleep 0.1 &) & (sleep 0.2 &) &"
        subprocess.run(["nsenter", "--target", str(first.pid), "--pid", "sh", "-c", orphans], check=True)

    def clean() -> bool:
        states = below(first.pid)
        return sum(state.startswith("zombie") for state in states) <= 1 and not any(
            each.endswith(" sleep") for each in states
        )

    wait_until(clean, 8, lambda: below(first.pid))  # it looks once a second, and reaps at the second look
    until = time.monotonic() + 3
    while time.monotonic() < until:
        assert clean(), below(first.pid)
        time.sleep(0.1)
    first.terminate()
    assert supervisor.ended() == 0
