"""Processes as seen from outside: who is alive, who belongs to whom, and whether nobody is left.

A process belongs to a supervisor if it carries the supervisor's incarnation (a UUID, its *cookie*): in its environment
as GANGER_COOKIE, or, where a process title has overwritten that, in the name of the lock file it holds open.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import psutil

T = TypeVar("T")


def wait_until(condition: Callable[[], T], limit: float, what: str | Callable[[], object]) -> T:
    """What the condition returns, once that is true. After ``limit`` seconds: an AssertionError that tells ``what``."""
    deadline = time.monotonic() + limit
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {limit} s: {what() if callable(what) else what}")
        time.sleep(0.02)
    return result


def alive(pid: int) -> bool:
    """Whether the process runs (or is stopped); a zombie is dead."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def tree(pid: int) -> list[psutil.Process]:
    """The living descendants of a process, parents before children; empty if it is gone itself."""
    try:
        return [process for process in psutil.Process(pid).children(recursive=True) if alive(process.pid)]
    except psutil.NoSuchProcess:
        return []


def survivors(cookie: object) -> list[psutil.Process]:
    """The living processes, anywhere on this machine, that belong to the supervisor with this cookie."""
    mark = str(cookie).encode()
    found = []
    for pid in psutil.pids():
        if pid != os.getpid() and _carries(pid, mark) and alive(pid):
            with suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(pid))
    return found


def nothing_left(whose: object | Iterable[int], limit: float = 6.0) -> None:
    """Fail unless, within ``limit`` seconds, nothing is left of a supervisor (its cookie) or of some pids."""

    def left() -> list[str]:
        if isinstance(whose, Iterable) and not isinstance(whose, str):
            return [describe(pid) for pid in whose if alive(pid)]
        return [describe(process.pid) for process in survivors(whose)]

    wait_until(lambda: not left(), limit, lambda: f"processes left: {left()}")


def describe(pid: int) -> str:
    """Pid, parent, state and title (else the command line) of a process, for the message of a failing test."""
    try:
        process = psutil.Process(pid)
        return f"{pid} (parent {process.ppid()}, {process.status()}) {' '.join(process.cmdline()).strip()}"
    except psutil.Error:
        return f"{pid} (gone)"


def _carries(pid: int, mark: bytes) -> bool:
    process = Path("/proc") / str(pid)
    try:
        if b"GANGER_COOKIE=" + mark in (process / "environ").read_bytes():
            return True
        return any(mark in os.fsencode(os.readlink(fd)) for fd in (process / "fd").iterdir())
    except OSError:  # it ended meanwhile, or is somebody else's
        return False
