"""kill -9 of the supervisor: nothing of it is left, and its jobs go to another one as soon as its lock is free.

The lease is the default of two minutes here, so whatever is taken over within seconds was taken over by the lock.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from uuid import UUID

import psutil
import pytest

from tests.processes import alive, nothing_left, tree, wait_until
from tests.stories.stage import Running, Stage

GONE = 2.0 * 3  # seconds until nothing is left; the contract's time, for a loaded machine
TAKEN = 1.0 * 3  # seconds from a free lock to the take-over

# Four ways to be busy, none of which ends by itself. A second attempt ends at once.
HANDLERS = """
    handlers = Handlers()

    def begin(job):
        with open(FOLDER / "began", "a") as file:
            file.write(f"{job.id} {job.attempt}\\n")
        return job.attempt > 1

    @handlers.job("compute")
    def compute(job):
        if not begin(job):
            while True:
                pass

    @handlers.job("hold-the-gil")
    def hold_the_gil(job):
        if not begin(job):
            sum(range(10**11))

    @handlers.job("sleep")
    def sleep(job):
        if not begin(job):
            while True:
                try:
                    time.sleep(600)
                except KeyboardInterrupt:
                    pass

    @handlers.job("scatter")
    def scatter(job):
        # grandchildren in sessions of their own: one orphaned, one without any mark of ours, both deaf to SIGTERM
        if begin(job):
            return
        deaf = ["sh", "-c", f"trap '' TERM HUP INT; echo $$ >> {FOLDER}/grandchildren; while :; do sleep 600; done"]
        subprocess.run([sys.executable, "-c", f"import subprocess; subprocess.Popen({deaf!r})"], start_new_session=True)
        subprocess.Popen(deaf, start_new_session=True, env={"PATH": os.environ["PATH"]})
        time.sleep(600)
"""
BUSY = ("compute", "hold-the-gil", "sleep", "scatter")


def begin(stage: Stage, *options: str) -> tuple[Running, list[UUID]]:
    """A supervisor that is busy in all four ways."""
    stage.handlers(HANDLERS)
    supervisor = stage.run("-c", "4", *options)
    jobs = [stage.enqueue(job_type) for job_type in BUSY]
    stage.wait_lines("began", 4)
    stage.wait_lines("grandchildren", 2)
    return supervisor, jobs


def all_gone(stage: Stage, supervisor: Running) -> None:
    nothing_left(supervisor.cookie, GONE)
    nothing_left([int(pid) for pid in stage.lines("grandchildren")], GONE)


@pytest.mark.parametrize("second_comes", ["before", "after"])
def test_a_killed_supervisor_leaves_nothing_and_another_one_takes_its_jobs(stage: Stage, second_comes: str) -> None:
    """D07, https://github.com/blacklanternsecurity/bbot/pull/3207: the parent of 4 running jobs is killed by signal 9.
    Within 2 s no process of it exists, and each job is executed exactly once more, by another supervisor: as soon as
    the lock of the dead one is free (on another host when its lease is over: ``test_takeover``). Correction 2: that is
    when template, wardens and children are gone, and not when the supervisor is.
    """
    first, jobs = begin(stage)
    second = stage.run("-c", "4") if second_comes == "before" else None
    assert stage.rows("SELECT count(*) FROM proletarian.job WHERE state = 2") == [(4,)]
    first.send(signal.SIGKILL)
    all_gone(stage, first)
    second = second or stage.run("-c", "4")
    second.expect("job-lost", TAKEN, count=4)
    for job_id in jobs:
        row = stage.archived(job_id)
        assert (row["status"], row["attempts"], row["losses"], row["starts"]) == ("success", 2, 1, 2)
        assert [entry["reason"] for entry in row["history"]] == ["lost"]
    assert sorted(stage.lines("began")) == sorted(f"{job_id} {attempt}" for job_id in jobs for attempt in (1, 2))
    assert len(second.named("job-lost")) == 4
    assert stage.rows("SELECT count(*) FROM proletarian.supervisor") == [(1,)]
    assert second.stop() == 0


def await_tree(supervisor: Running, size: int) -> None:
    """Wait until a supervisor has so many processes below it."""
    wait_until(lambda: len(tree(supervisor.pid)) >= size, 15, supervisor.story)


def in_folder(folder: Path) -> list[int]:
    """The processes that work in a folder: whatever a supervisor has started there, be it ever so young."""
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()) == folder and alive(process.pid):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_fifty_supervisors_are_killed_at_some_moment_of_their_start_and_none_leaves_anybody(stage: Stage) -> None:
    """D08, https://github.com/aristanetworks/bst/pull/74: between a fork and the call that ties the process to its
    parent, that may die. 50 times, with work waiting: signal 9 after a random 0 to 300 ms, counted from the start, from
    the template's, or from the first child's. 3 s later nothing is left.
    """
    stage.handlers(HANDLERS)
    folder = Path(os.path.realpath(stage.folder))
    draw = random.Random(8)
    for round in range(50):
        stage.enqueue(BUSY[round % len(BUSY)])
        supervisor = stage.run("-c", "2", wait=False)
        await_tree(supervisor, (0, 1, 3)[round % 3])
        time.sleep(draw.uniform(0.0, 0.3))
        supervisor.send(signal.SIGKILL)
        supervisor.process.wait()
        wait_until(lambda: not in_folder(folder), 3 * 3, lambda: f"{in_folder(folder)}")
    assert stage.rows("SELECT count(*) FROM proletarian.job") != [(0,)]


@pytest.mark.parametrize("first_dies", ["supervisor", "template"])
def test_a_supervisor_killed_together_with_its_template_leaves_nothing(stage: Stage, first_dies: str) -> None:
    supervisor, _ = begin(stage)
    (template,) = supervisor.processes("template")
    pids = [supervisor.pid, template.pid]
    for pid in pids if first_dies == "supervisor" else reversed(pids):
        os.kill(pid, signal.SIGKILL)
    all_gone(stage, supervisor)


def test_stopped_wardens_wake_when_supervisor_and_template_are_killed(stage: Stage) -> None:
    """Correction 4: a stopped warden would keep its child alive for ever; its parent's death continues it."""
    supervisor, _ = begin(stage)
    (template,) = supervisor.processes("template")
    wardens = supervisor.processes("warden")
    assert len(wardens) == 4
    for warden in wardens:
        warden.suspend()
    wait_until(lambda: all(warden.status() == "stopped" for warden in wardens), 5, "the wardens are not stopped")
    supervisor.send(signal.SIGKILL)
    template.kill()
    all_gone(stage, supervisor)


def test_children_that_are_stopped_or_were_spawned_die_with_the_supervisor_too(stage: Stage) -> None:
    supervisor, _ = begin(stage, "--start-method", "spawn")
    for child in supervisor.processes("child")[::2]:
        child.suspend()
    supervisor.send(signal.SIGKILL)
    all_gone(stage, supervisor)


APPLICATION = """
import os, signal, time
from ganger import Config, Supervisor

Supervisor(Config(target="story:handlers", concurrency=4, log_format="json")).start()
if os.fork() == 0:  # a process of the application, with a copy of all that the supervisor has open
    time.sleep(600)
signal.pause()
"""


def test_a_fork_of_the_application_that_embeds_a_supervisor_keeps_nothing_of_it_alive(stage: Stage) -> None:
    stage.handlers(HANDLERS)
    (stage.folder / "application.py").write_text(APPLICATION)
    application = stage.launch(sys.executable, "application.py")
    try:
        for job_type in BUSY:
            stage.enqueue(job_type)
        stage.wait_lines("began", 4)
        stage.wait_lines("grandchildren", 2)
        (template,) = application.processes("template")
        (fork,) = (each for each in psutil.Process(application.pid).children() if each.pid != template.pid)
        below = [template.pid, *(process.pid for process in tree(template.pid))]
        application.send(signal.SIGKILL)
        nothing_left([*below, *(int(pid) for pid in stage.lines("grandchildren"))], GONE)
        assert alive(fork.pid)
    finally:
        os.killpg(application.pid, signal.SIGKILL)
