"""The lock file: free only when the last process that inherited it is gone, and never made by who looks for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from ganger import incarnation
from tests.processes import wait_until


@pytest.fixture(autouse=True)
def runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "ganger"


def test_it_is_not_vacant_while_it_is_held(runtime_folder: Path) -> None:
    held = incarnation.create(uuid4())
    assert held is not None
    assert held.path.parent == runtime_folder
    assert not incarnation.vacant(held.uuid)
    assert held.path.exists()
    held.remove()
    assert not held.path.exists()
    held.close()


def test_one_that_let_go_and_left_its_file_is_vacant() -> None:
    held = incarnation.create(uuid4())
    assert held is not None
    held.close()
    assert incarnation.vacant(held.uuid)
    assert not held.path.exists()


def test_it_is_vacant_once_all_that_inherited_it_are_gone() -> None:
    """Corrections 1 and 2: the lock tells, whatever the pids were; and a supervisor that is gone is not all of it."""
    held = incarnation.create(uuid4())
    assert held is not None
    heir = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[held.fd])
    os.close(held.fd)  # as the kernel does when the supervisor is killed
    assert not incarnation.vacant(held.uuid)
    heir.kill()
    heir.wait()
    if heir.stdin is not None:
        heir.stdin.close()
    assert incarnation.vacant(held.uuid)
    assert not held.path.exists()


@pytest.mark.parametrize("umask", [0o777, 0])
def test_whatever_the_umask_is_its_owner_and_nobody_else_may_use_it(runtime_folder: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        held = incarnation.create(uuid4())
    finally:
        os.umask(before)
    assert held is not None
    assert [path.stat().st_mode & 0o777 for path in (runtime_folder, held.path)] == [0o700, 0o600]
    held.close()


def test_who_looks_creates_nothing(runtime_folder: Path) -> None:
    assert not incarnation.vacant(uuid4())
    assert not runtime_folder.exists() or not list(runtime_folder.iterdir())


def test_after_one_sweeper_took_it_another_finds_nothing() -> None:
    held = incarnation.create(uuid4())
    assert held is not None
    held.close()
    assert incarnation.vacant(held.uuid)
    assert not incarnation.vacant(held.uuid)


def test_a_folder_that_others_may_write_is_passed_over(runtime_folder: Path) -> None:
    runtime_folder.mkdir()
    runtime_folder.chmod(0o777)
    held = incarnation.create(uuid4())
    if held is not None:  # in the next folder, where that can be written
        assert held.path.parent != runtime_folder
        held.remove()
        held.close()
    name = uuid4()
    planted = runtime_folder / str(name)
    planted.touch()
    assert not incarnation.vacant(name)
    assert planted.exists()


def test_a_link_is_not_followed(runtime_folder: Path, tmp_path: Path) -> None:
    runtime_folder.mkdir(mode=0o700)
    target = tmp_path / "precious"
    target.touch()
    name = uuid4()
    (runtime_folder / str(name)).symlink_to(target)
    assert not incarnation.vacant(name)
    assert target.exists()


def test_a_killed_holder_frees_it(runtime_folder: Path) -> None:
    name = uuid4()
    code = (
        "import sys, uuid\nfrom ganger import incarnation\n"
        "held = incarnation.create(uuid.UUID(sys.argv[1]))\nprint('held', flush=True)\ninput()"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(name)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    with holder.stdout, holder.stdin:
        assert holder.stdout.readline() == b"held\n"
        assert not incarnation.vacant(name)
        holder.kill()
        holder.wait()
    wait_until(lambda: incarnation.vacant(name), 3, "the lock to be free")
