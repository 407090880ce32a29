"""Processes with titles of ours and nothing behind them: as many slots as a test likes, for the price of ``cat``."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ganger_child import titles
from tests.processes import wait_until

Tree = Mapping[str, "Tree"]


def gang(name: str, slots: Sequence[Mapping[str, Any] | None], spread: int = 0) -> Tree:
    """A supervisor, its template, and a warden for each slot: of what it runs (the arguments of ``titles.warden``), or
    None for an idle one. ``spread``: so many processes below each child."""
    running = sum(slot is not None for slot in slots)
    wardens: dict[str, Tree] = {}
    for number, run in enumerate(slots, 1):
        slot = f"default/{number}"
        below: Tree = {f"{name}-step {slot} {step}": {} for step in range(spread)}
        if run is None:
            wardens[titles.warden(slot)] = {titles.child(slot): {}}
        else:
            told = {key: run[key] for key in ("job_type", "job_id", "attempt") if key in run}
            wardens[titles.warden(slot, **run)] = {titles.child(slot, **told, limit=run.get("limit")): below}
    top = titles.supervisor(name, "running", running, len(slots), [("default", len(slots))])
    return {top: {titles.template("myapp:handlers"): wardens}}


@contextmanager
def forged(tree: Tree) -> Iterator[int]:
    """The processes of a tree; the pid of its root. They end with the block, or with this process."""
    (root,) = tree
    read, write = os.pipe()
    group = os.fork()
    if group == 0:
        try:
            os.setpgid(0, 0)
            os.close(write)
            os.dup2(read, 0)
            _become(root, tree[root])
        finally:
            os._exit(1)
    os.close(read)
    try:
        wait_until(lambda: _title(group) == root and _count(group) == _size(tree), 20, lambda: f"{_title(group)!r}")
        yield group
    finally:
        os.close(write)  # the end of their input ends them all
        os.kill(group, signal.SIGKILL)
        os.waitpid(group, 0)
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _become(title: str, below: Tree) -> None:
    for name, further in below.items():
        if os.fork() == 0:
            _become(name, further)
    os.execv("/bin/cat", [title])


def _title(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode()


def _size(tree: Tree) -> int:
    return sum(1 + _size(below) for below in tree.values())


def _count(group: int) -> int:
    """The processes of the group that have become what they shall be."""
    found = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text().rpartition(")")[2].split()
            if int(words[2]) == group and os.readlink(stat.with_name("exe")).endswith(("cat", "coreutils")):
                found += 1
        except OSError:
            continue
    return found


def burn(seconds: float) -> None:
    """Use so much CPU."""
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass
