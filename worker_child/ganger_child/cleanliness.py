"""Is this process as it was before the job? Only then may it run another one.

A table of cheap looks at everything a job commonly alters and the next one would inherit (timers and signal handlers
are not only looked at but put back, by ``stop_timers`` and ``interrupt.Signals``). The whole table must cost
microseconds (``tests/child/test_cleanliness.py`` measures it), because it is read after every job, however small. A
look that fails is an alteration: a deleted current folder, for example.

What it cannot see (globals of modules, states of libraries) is why a child is replaced anyway once it has worked for
``recycle_after`` seconds.
"""

from __future__ import annotations

import _locale
import atexit
import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, Final

from ganger_child import tree
from ganger_child.guard import move_fd_high

_LIMITS: Final = tuple(
    getattr(resource, name)
    for name in ("RLIMIT_CPU", "RLIMIT_AS", "RLIMIT_DATA", "RLIMIT_FSIZE", "RLIMIT_NOFILE")
    if hasattr(resource, name)
)
_TIMERS: Final = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)

_setitimer = signal.setitimer
_sigmask = signal.pthread_sigmask
_getrlimit = resource.getrlimit
_setlocale = _locale.setlocale
_fstat, _pread, _umask, _getpriority = os.fstat, os.pread, os.umask, os.getpriority
_getpid, _listdir = os.getpid, os.listdir


def stop_timers() -> bool:
    """Stop the interval timers (an alarm of this job would kill the next); returns whether one was set."""
    left = [_setitimer(timer, 0.0) for timer in _TIMERS]
    return any(before[0] for before in left)


class Cleanliness:
    """The state of the process when this was made, compared with now by ``difference``.

    ``parent`` is the warden: an orphan of the job has become its child. Four files of /proc stay open for this, since
    finding them anew would cost more than reading them.
    """

    def __init__(self, parent: int) -> None:
        me = os.getpid()
        tasks, descriptors = _keep_open("/proc/self/task"), _keep_open("/proc/self/fd")
        children = _keep_open(f"/proc/{me}/task/{me}/children")
        orphans = _keep_open(f"/proc/{parent}/task/{parent}/children")
        self._table: tuple[tuple[str, Callable[[], Any]], ...] = (
            ("signal mask", lambda: _sigmask(signal.SIG_BLOCK, ())),
            ("threads", lambda: _fstat(tasks).st_nlink),
            ("descriptors", _count_descriptors(descriptors)),
            ("output", lambda: [_fstat(1).st_ino, _fstat(2).st_ino]),
            ("child processes", lambda: _pread(children, 4096, 0)),
            ("orphans", lambda: _pread(orphans, 4096, 0)),
            ("current folder", os.getcwd),
            ("umask", _mask),
            ("environment", _environment),
            ("sys.path", lambda: tuple(sys.path)),
            ("standard streams", lambda: (id(sys.stdout), id(sys.stderr), id(sys.unraisablehook))),
            ("locale", lambda: _setlocale(_locale.LC_ALL, None)),
            ("recursion limit", sys.getrecursionlimit),
            ("garbage collection", gc.isenabled),
            ("socket timeout", socket.getdefaulttimeout),
            ("resource limits", lambda: [_getrlimit(limit) for limit in _LIMITS]),
            ("priority", lambda: _getpriority(os.PRIO_PROCESS, 0)),
            ("user", os.geteuid),
            ("exit functions", atexit._ncallbacks),
        )
        self._parent = parent
        self.renew()

    def renew(self) -> None:
        """Take the state as it is now for the clean one."""
        self._state = [look() for _, look in self._table]
        self._there = _running(self._parent)

    def difference(self) -> str | None:
        """Name the first thing that is not as it was, or return None."""
        for (name, look), before in zip(self._table, self._state, strict=True):
            try:
                if look() != before:
                    return name
            except Exception:
                return name
        return None

    def leftovers(self) -> bool:
        """Whether what was started since this was made, a process below the warden or a thread of this one, still
        runs. True also where that cannot be seen. It takes longer than ``difference`` (about 100 microseconds)."""
        try:
            there = _running(self._parent)
            return _getpid() not in there or any(map(_goes_on, there - self._there))
        except Exception:
            return True


def _running(parent: int) -> set[int]:
    """The ids of all processes below the warden, this one among them, and of the threads of this one."""
    return {*tree.descendants(parent), *map(int, _listdir("/proc/self/task"))}


def _goes_on(process_or_thread: int) -> bool:
    """Whether it has not ended: one that nobody has waited for yet is no leftover."""
    seen = tree.stat(process_or_thread)
    return seen is not None and seen.state not in "ZX"


def _keep_open(path: str) -> int:
    return move_fd_high(os.open(path, os.O_RDONLY | os.O_CLOEXEC))


def _count_descriptors(folder: int) -> Callable[[], int]:
    """How to count the open descriptors: a kernel before 6.2 does not tell the number as the folder's size."""
    if _fstat(folder).st_size > 0:
        return lambda: _fstat(folder).st_size
    return lambda: len(os.listdir("/proc/self/fd"))


def _mask() -> int:
    mask = _umask(0o077)
    _umask(mask)
    return mask


def _environment() -> dict[Any, Any]:
    data = getattr(os.environ, "_data", None)
    return dict(data if data is not None else os.environ)
