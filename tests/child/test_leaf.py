"""The control group of a slot: where one may be made, and what the kernel counts in it, in files like any other.

Real ones are in ``tests/stories/test_control_groups.py``; but few machines let a test have the kernel count memory.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ganger_child import leaf
from ganger_child.leaf import Leaf

MOUNTS = """\
24 1 0:22 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw
25 24 0:23 / {0}/memory rw - cgroup cgroup rw,memory
26 24 0:24 /else /elsewhere rw - cgroup2 cgroup2 rw
27 24 0:24 / {0} rw,relatime shared:9 - cgroup2 cgroup2 rw
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What looks like control groups: a unit that is delegated, with the supervisor in it or in a group below."""
    unit = tmp_path / "system.slice/a unit.service"
    for folder in (tmp_path, unit.parent, unit, unit / "supervisor"):
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.kill").touch()
    (tmp_path / "mounts").write_text(MOUNTS.format(str(tmp_path).replace(" ", r"\040")))

    def getxattr(folder: str, name: str) -> bytes:
        if (folder, name) != (str(unit), "trusted.delegate"):
            raise OSError
        return b"1"

    monkeypatch.setattr(leaf, "getxattr", getxattr)
    return tmp_path


@pytest.mark.parametrize(
    ("groups", "found"),
    [
        ("0::/system.slice/a unit.service\n", True),
        ("4:memory:/x\n0::/system.slice/a unit.service/supervisor\n", True),
        ("0::/system.slice/a unit.service/ganger-17-4\n", False),  # a supervisor that a job has started
        ("0::/system.slice\n", False),
        ("0::/system.slice/other.service\n", False),
        ("0::/\n", False),
        ("4:memory:/system.slice/a unit.service\n", False),
        ("", False),
    ],
)
def test_only_a_group_that_is_delegated_is_used(tree: Path, groups: str, found: bool) -> None:
    (tree / "groups").write_text(groups)
    expected = str(tree / "system.slice/a unit.service") if found else None
    assert leaf.delegated(str(tree / "groups"), str(tree / "mounts")) == expected


def test_where_there_is_no_cgroup_kill_or_no_version_2_there_is_none(tree: Path) -> None:
    (tree / "groups").write_text("0::/system.slice/a unit.service\n")
    (tree / "system.slice/a unit.service/cgroup.kill").unlink()
    assert leaf.delegated(str(tree / "groups"), str(tree / "mounts")) is None
    assert leaf.delegated(str(tree / "groups"), str(tree / "missing")) is None
    assert leaf.delegated(str(tree / "missing"), str(tree / "mounts")) is None


def test_kills_for_memory_are_counted_where_the_kernel_does(tmp_path: Path) -> None:
    made = object.__new__(Leaf)
    made._fd = os.open(tmp_path, os.O_RDONLY)
    try:
        assert made.oom_kills() is None
        (tmp_path / "memory.events").write_text("low 0\nmax 7\noom 2\noom_kill 3\noom_group_kill 0\n")
        assert made.oom_kills() == 3
        (tmp_path / "memory.events").write_text("nonsense\noom_kill many\n")
        assert made.oom_kills() is None
    finally:
        os.close(made._fd)
    for controllers, wanted in (("cpu memory pids\n", "+memory"), ("hugetlb\n", "")):
        (tmp_path / "cgroup.controllers").write_text(controllers)
        (tmp_path / "cgroup.subtree_control").write_text("")
        leaf._count_memory(str(tmp_path))
        assert (tmp_path / "cgroup.subtree_control").read_text() == wanted
