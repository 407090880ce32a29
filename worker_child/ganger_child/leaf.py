"""A control group (version 2) for a slot, where the service manager has delegated ours (systemd: ``Delegate=yes``).

What runs in a slot is then in a group of its own, from before user code runs: one write kills all of it, also what
forks faster than a process tree can be walked and what a signal is not allowed to reach (setuid programs); and its
counter says whom the kernel has killed for memory. Elsewhere there is no group, and everything goes as it does without.

One group per slot and not per job or child: there is one child at a time, and a group costs the kernel memory. Its
warden holds a lock on it. So a group without a lock is that of a warden that was killed, of whatever supervisor: who
comes next kills what is left in it and removes it.

Everything used here is bound before the user's module was imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from os import (
    F_OK,
    O_CLOEXEC,
    O_DIRECTORY,
    O_RDONLY,
    O_WRONLY,
    W_OK,
    access,
    close,
    fstat,
    getpid,
    getxattr,
    listdir,
    mkdir,
    rmdir,
    stat,
    walk,
    write,
)
from os import open as os_open
from time import monotonic, monotonic_ns, sleep
from typing import Final

from ganger_child.tree import contents

_GROUPS: Final = "/proc/self/cgroup"
_MOUNTS: Final = "/proc/self/mountinfo"
_MARKS: Final = ("user.delegate", "trusted.delegate")  # the service manager's; the second is for root to read
_PREFIX: Final = "ganger-"
_EMPTY_BOUND: Final = 0.5  # seconds for what was killed to leave a group
_PAUSE: Final = 0.002


def delegated(groups: str = _GROUPS, mounts: str = _MOUNTS) -> str | None:
    """The folder of the group in which we may make others: ours, or (``DelegateSubgroup=``) the one around it."""
    try:
        ours = next(line[3:] for line in _text(groups).splitlines() if line.startswith("0::/"))
        mount = next(_mounts_of_version_2(_text(mounts)))
    except (OSError, StopIteration):
        return None
    folder = mount + ours.rstrip("/")
    around, _, name = folder.rpartition("/")
    if name.startswith(_PREFIX):  # we are a part of a job, and die with it
        return None
    return next((place for place in (folder, around) if len(place) > len(mount) and _is_delegated(place)), None)


def _mounts_of_version_2(mounts: str) -> Iterator[str]:
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if after.startswith("cgroup2 ") and fields[3] == "/":
            yield fields[4].replace(r"\040", " ")


def _is_delegated(folder: str) -> bool:
    if not access(folder, W_OK) or not access(f"{folder}/cgroup.kill", F_OK):  # in Linux since 5.14
        return False
    for mark in _MARKS:
        with suppress(OSError):
            if getxattr(folder, mark) == b"1":
                return True
    return False


def make() -> Leaf | None:
    """Make the group of this warden's slot; None where that cannot be."""
    folder = delegated()
    if folder is None:
        return None
    sweep(folder)
    _count_memory(folder)
    with suppress(OSError):
        return Leaf(folder)
    return None


def sweep(folder: str) -> None:
    """Kill what wardens that are gone have left in their groups, and remove those."""
    with suppress(OSError):
        for name in listdir(folder):
            if name.startswith(_PREFIX):
                with suppress(OSError):
                    _sweep(f"{folder}/{name}")


def _sweep(path: str) -> None:
    fd = os_open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    try:
        flock(fd, LOCK_EX | LOCK_NB)
        _kill(fd)
        _remove(path)
    finally:
        close(fd)


def _count_memory(folder: str) -> None:
    """Have the kernel count per group. It refuses while a process is in ``folder`` itself: then nothing is known."""
    with suppress(OSError):
        if "memory" in _text(f"{folder}/cgroup.controllers").split():
            _write(f"{folder}/cgroup.subtree_control", b"+memory")


class Leaf:
    """The group of a slot. Raises OSError where it cannot be made."""

    def __init__(self, folder: str) -> None:
        self._path = f"{folder}/{_PREFIX}{getpid()}-{monotonic_ns()}"
        mkdir(self._path)
        self._fd = os_open(self._path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
        self._entrance = -1
        try:
            flock(self._fd, LOCK_SH | LOCK_NB)
            if stat(self._path).st_ino != fstat(self._fd).st_ino:  # swept between being made and being locked
                raise FileNotFoundError(self._path)
            self._entrance = os_open("cgroup.procs", O_WRONLY | O_CLOEXEC, dir_fd=self._fd)
        except OSError:
            self.close()
            raise

    def enter(self) -> None:
        """Be in it, and whatever this process starts from now on. For a child, which keeps nothing of it open."""
        with suppress(OSError):  # a slot without a group is one, too
            write(self._entrance, b"0")
        self.close()

    def kill(self) -> set[int]:
        """Kill everything in it, at once and for certain, and return what it was."""
        there: set[int] = set()
        with suppress(OSError):
            there.update(map(int, contents("cgroup.procs", self._fd).split()))
            if there:
                _kill(self._fd)
        return there

    def oom_kills(self) -> int | None:
        """How many processes of it the kernel has killed for memory; None where it does not count that."""
        return _value(self._fd, "memory.events", "oom_kill")

    def remove(self) -> None:
        """Kill what is in it and remove it. What cannot be removed yet is left to whoever comes next."""
        with suppress(OSError):
            _kill(self._fd)
            _remove(self._path)
        self.close()

    def close(self) -> None:
        for fd in (self._fd, self._entrance):
            if fd >= 0:
                close(fd)
        self._fd = self._entrance = -1


def _kill(group: int) -> None:
    fd = os_open("cgroup.kill", O_WRONLY | O_CLOEXEC, dir_fd=group)
    try:
        write(fd, b"1")
    finally:
        close(fd)


def _remove(path: str) -> None:
    """Remove a group, with those that a job has made in it. Its processes were killed, and leave it a moment later."""
    deadline = monotonic() + _EMPTY_BOUND
    while True:
        try:
            for group, _, _ in walk(path, topdown=False):
                rmdir(group)
            return
        except OSError:
            if monotonic() > deadline:
                raise
        sleep(_PAUSE)


def _value(group: int, file: str, word: str) -> int | None:
    try:
        lines = contents(file, group).decode().splitlines()
        return next((int(line[len(word) + 1 :]) for line in lines if line.startswith(f"{word} ")), None)
    except (OSError, ValueError):
        return None


def _text(path: str) -> str:
    return contents(path).decode("utf-8", "surrogateescape")


def _write(path: str, data: bytes) -> None:
    fd = os_open(path, O_WRONLY | O_CLOEXEC)
    try:
        write(fd, data)
    finally:
        close(fd)
