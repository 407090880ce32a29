"""Control groups of version 2, for real: a slot has one where that is delegated, and all that is in it dies.

It needs root, to make a group that looks delegated, and Linux 5.14.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from ganger_child import leaf
from tests.processes import wait_until
from tests.stories.stage import Running, Stage

pytestmark = pytest.mark.slow


@pytest.fixture
def unit() -> Iterator[Path]:
    """A delegated control group of our own."""
    mount = next(leaf._mounts_of_version_2(Path("/proc/self/mountinfo").read_text()), None)
    if os.geteuid() != 0 or mount is None:
        pytest.skip("needs root and control groups of version 2")
    folder = Path(mount) / f"tests-of-ganger-{os.getpid()}"
    try:
        folder.mkdir()
        os.setxattr(folder, "user.delegate", b"1")
    except OSError as error:
        with suppress(OSError):
            folder.rmdir()
        pytest.skip(f"no control group can be made and marked as delegated here: {error}")
    if not (folder / "cgroup.kill").exists():
        folder.rmdir()
        pytest.skip("needs Linux 5.14, for cgroup.kill")
    yield folder
    (folder / "cgroup.kill").write_text("1")
    left = [path.name for path in folder.iterdir() if path.is_dir()]
    for name in left:
        leaf._remove(f"{folder}/{name}")
    leaf._remove(str(folder))
    assert left == []


def pids(group: Path) -> set[int]:
    return set(map(int, (group / "cgroup.procs").read_text().split()))


def leaves(unit: Path) -> list[Path]:
    return sorted(path for path in unit.iterdir() if path.is_dir())


def start(stage: Stage, unit: Path, *options: str) -> Running:
    """A supervisor in the unit's group."""
    prefix = ("sh", "-c", 'echo $$ > "$0"/cgroup.procs && exec "$@"', str(unit))
    return stage.run("-c", "1", *options, prefix=prefix)


JOBS = """
    handlers = Handlers()
    @handlers.job("group")
    def group(job):
        return Path("/proc/self/cgroup").read_text()
    @handlers.job("wait")
    def wait(job):
        os.mkdir(f"/{job.payload}/made by a job")
        (FOLDER / "waits").touch()
        time.sleep(300)
    @handlers.job("bomb")
    def bomb(job):
        for _ in range(8):
            if os.fork() == 0: break
        else:
            time.sleep(300)
        while True:  # each a chain of processes, of which one lives, for a moment, in a session of its own
            os.setsid()
            if os.fork(): os._exit(0)
    @handlers.job("leave")
    def leave(job):
        program = subprocess.Popen(["sleep", "300"], start_new_session=True)
        (FOLDER / "left").write_text(str(program.pid))
        time.sleep(300)
"""


def test_each_slot_has_a_group_that_dies_with_its_job(stage: Stage, unit: Path) -> None:
    """Whoever is in it when a job has ended is killed, even one that no process tree leads to; and a fork bomb."""
    stage.handlers(JOBS)
    supervisor = start(stage, unit)
    (slot,) = leaves(unit)
    ended = [stage.archived(stage.enqueue("group"))["result"] for _ in range(2)]
    assert all(f"/{unit.name}/{slot.name}\n" in text for text in ended)
    assert pids(slot) == {supervisor.child().pid}
    assert supervisor.pid in pids(unit)

    with subprocess.Popen(["sleep", "300"]) as stranger:
        (slot / "cgroup.procs").write_text(str(stranger.pid))
        job = stage.enqueue("wait", str(slot), timeout=0.5, grace=0)
        assert stage.archived(job)["reason"] == "timeout"
        assert stranger.wait(5) == -signal.SIGKILL

    job = stage.enqueue("bomb", timeout=1, grace=0)
    row = stage.archived(job, 60)
    assert row["reason"] == "timeout"
    assert row["wall_s"] < 1 + 3 * 1.0
    wait_until(lambda: pids(slot) == {supervisor.child().pid}, 10, lambda: f"{pids(slot)}: {supervisor.story()}")
    assert supervisor.stop() == 0
    assert leaves(unit) == []


def test_what_outlives_a_supervisor_that_is_killed_with_all_its_wardens_is_killed_by_the_next(
    stage: Stage, unit: Path
) -> None:
    stage.handlers(JOBS)
    first = start(stage, unit, "--lease", "3")
    stage.enqueue("leave")
    stage.wait_lines("left")
    program = psutil.Process(int((stage.folder / "left").read_text()))
    victims = [psutil.Process(first.pid), *first.processes("template"), *first.processes("warden")]
    for victim in victims:
        victim.send_signal(signal.SIGSTOP)
    for victim in victims:
        victim.send_signal(signal.SIGKILL)
    first.ended()
    assert program.is_running(), "nobody is there who could kill it"
    (old,) = leaves(unit)
    assert program.pid in pids(old)

    second = start(stage, unit)
    wait_until(lambda: not program.is_running() or program.status() == psutil.STATUS_ZOMBIE, 10, second.story)
    wait_until(lambda: not old.exists(), 10, lambda: str(leaves(unit)))
    assert len(leaves(unit)) == 1
    assert second.stop() == 0
