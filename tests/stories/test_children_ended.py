"""Children that end in the middle of a job: killed from outside or by the kernel, and what they take with them.

Whatever ends one, it costs that job one attempt and nobody else anything, and the row says what it was. (How a job
ends its own process, and what is then told, stands in ``test_failures``.)
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import UUID, uuid4

import psutil
import pytest

from tests.processes import alive, nothing_left, wait_until
from tests.stories.stage import Running, Stage

pytestmark = pytest.mark.slow

ALLOWANCE = 3.0  # a loaded machine may take so many times as long

HANDLERS = """
    import multiprocessing
    handlers = Handlers()

    @handlers.job("wait")
    def wait(job):
        with open(FOLDER / "began", "a") as file:
            file.write(f"{job.id} {os.getpid()}\\n")
        while not (FOLDER / "go").exists():
            time.sleep(0.02)
        return job.attempt

    @handlers.job("eat")
    def eat(job):
        eaten = []
        while True:
            eaten.append(bytes(range(256)) * (4 << 12))  # 4 MB, each page of it touched

    @handlers.job("family")
    def family(job):
        children = [multiprocessing.get_context(method).Process(target=time.sleep, args=(600,), daemon=daemon)
                    for method in ("fork", "spawn", "forkserver") for daemon in (True, False)]
        for child in children:
            child.start()
        program = subprocess.Popen(["sleep", "600"], start_new_session=True)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
                while True:
                    time.sleep(600)
            os._exit(0)
        with open(FOLDER / "began", "a") as file:
            file.write(f"{job.id} {os.getpid()}\\n")
        time.sleep(600)
"""


@pytest.fixture
def busy(stage: Stage) -> Stage:
    stage.handlers(HANDLERS)
    return stage


def pid_of(stage: Stage, job_id: UUID) -> int:
    """The process in which a job has begun last."""

    def find() -> int | None:
        found = [line.split()[1] for line in stage.lines("began") if line.startswith(str(job_id))]
        return int(found[-1]) if found else None

    pid = wait_until(find, 15, lambda: f"{job_id} has not begun: {stage.lines('began')}")
    assert pid is not None
    return pid


def all_well(stage: Stage, supervisor: Running, others: list[UUID]) -> None:
    """The other jobs succeed at their first attempt, no row is left running, and it is still the same supervisor."""
    (stage.folder / "go").touch()
    for job_id in others:
        row = stage.archived(job_id, 40)
        assert (row["status"], row["attempts"], row["starts"], row["result"]) == ("success", 1, 1, 1)
    assert stage.rows("SELECT * FROM proletarian.job") == []
    assert supervisor.process.poll() is None
    assert len(supervisor.named("supervisor-started")) == 1
    assert supervisor.stop() == 0


def test_one_of_eight_jobs_is_killed_and_the_others_do_not_notice(busy: Stage) -> None:
    """D01, https://github.com/celery/celery/issues/2011 and D02, https://github.com/celery/billiard/issues/408: a
    child is killed with signal 9. That job has failed within 2 s, log and row say why, and its slot goes on working.
    """
    supervisor = busy.run("-c", "4")
    jobs = [busy.enqueue("wait", number) for number in range(8)]
    busy.wait_lines("began", 4)
    victim, *others = jobs
    killed = time.time()
    os.kill(pid_of(busy, victim), signal.SIGKILL)
    row = busy.archived(victim, 2 * ALLOWANCE)
    assert row["finished_at"].timestamp() - killed < 2 * ALLOWANCE
    assert (row["status"], row["reason"], row["term_signal"]) == ("failure", "crash", 9)
    assert (row["attempts"], row["crashes"]) == (1, 1)
    assert "signal 9 (possibly OOM)" in row["error"]["message"]
    assert row["ended_by"] is None, "nobody knows"
    assert supervisor.named("job-crashed", job_id=str(victim))[0]["term_signal"] == 9
    busy.wait_lines("began", 5, 2 * ALLOWANCE)  # the slot has taken the next job
    assert len(supervisor.named("child-exited", term_signal=9)) == 1
    all_well(busy, supervisor, others)


# Where the kernel has control groups with memory limits: version 2, else version 1.
CONTROLLERS = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.swap.max", "0"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", None),
)


@contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    """A control group that may hold so many bytes; skips the test where none can be made."""
    for root, memory, swap, no_swap in CONTROLLERS:
        group = root / f"ganger-tests-{uuid4()}"
        if not (root / "cgroup.procs").exists():
            continue
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if not (group / memory).exists():
                continue
            (group / memory).write_text(str(limit))
            with suppress(OSError):  # a kernel that does not account for swap
                (group / swap).write_text(no_swap or str(limit))
            yield group
            return
        finally:
            wait_until(lambda group=group: _removed(group), 10, f"{group} is in use")  # type: ignore[misc]
    pytest.skip("a control group with a memory limit takes root and a writable /sys/fs/cgroup")


def _removed(group: Path) -> bool:
    with suppress(OSError):
        group.rmdir()
    return not group.exists()


@pytest.mark.slow
def test_a_job_that_the_kernel_kills_for_its_memory_costs_only_itself(busy: Stage) -> None:
    """D01, https://github.com/celery/celery/issues/2011: the kernel's OOM killer takes the child that eats (children
    are likelier victims than the supervisor: correction 16), and jobs that come later run too.
    """
    with memory_group(400 << 20) as group:
        inside = ("sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh")
        supervisor = busy.run("-c", "4", prefix=inside)
        assert str(supervisor.pid) in (group / "cgroup.procs").read_text().split()
        others = [busy.enqueue("wait", number) for number in range(3)]
        busy.wait_lines("began", 3)
        eater = busy.enqueue("eat")
        others += [busy.enqueue("wait", number) for number in range(4)]
        row = busy.archived(eater, 60)
        assert (row["status"], row["reason"], row["term_signal"], row["crashes"]) == ("failure", "crash", 9, 1)
        assert "signal 9 (possibly OOM)" in row["error"]["message"]
        killed = supervisor.expect("job-crashed", job_id=str(eater))
        assert killed["wall_s"] < 60
        assert row["ended_by"] == "kernel"
        all_well(busy, supervisor, others)


def test_what_a_killed_child_had_started_dies_with_it(busy: Stage) -> None:
    """D14, https://github.com/ray-project/ray/issues/42861: the job's process is killed from outside; its own
    processes, however they were started and wherever they went, are gone within 2 s.
    """
    supervisor = busy.run("-c", "1")
    job_id = busy.enqueue("family")
    pid = pid_of(busy, job_id)
    warden = psutil.Process(pid).ppid()
    family = [process.pid for process in psutil.Process(warden).children(recursive=True)]
    assert len(family) >= 1 + 6 + 1 + 1  # itself, its processes, a program, an orphan; and helpers
    os.kill(pid, signal.SIGKILL)
    nothing_left(family, 2 * ALLOWANCE)
    row = busy.archived(job_id)
    assert (row["reason"], row["term_signal"], row["attempts"]) == ("crash", 9, 1)
    assert supervisor.expect("leftovers-killed", job_id=str(job_id))["count"] >= 8
    assert not alive(pid)
    assert supervisor.stop() == 0
