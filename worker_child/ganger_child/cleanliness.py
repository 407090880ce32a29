"""Is this process as it was before the job? Only then may it run another one.

A table of cheap looks at everything a job commonly alters and the next one would inherit. The whole table must cost
microseconds (``tests/child/test_cleanliness.py`` measures it), because it is read after every job, however small. A
look that fails is an alteration: a deleted current folder, for example.

What it cannot see (globals of modules, states of libraries) is why a child is replaced anyway once it has worked for
``recycle_after`` seconds.
"""

from __future__ import annotations

import _locale
import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, Final

_SIGNALS: Final = tuple(sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}))
_LIMITS: Final = tuple(
    getattr(resource, name)
    for name in ("RLIMIT_CPU", "RLIMIT_AS", "RLIMIT_DATA", "RLIMIT_FSIZE", "RLIMIT_NOFILE")
    if hasattr(resource, name)
)
_TIMERS: Final = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)

_getsignal = sys.modules["_signal"].getsignal  # the one in ``signal`` makes enumerations: 300 microseconds for all
_setitimer = signal.setitimer
_getrlimit = resource.getrlimit
_setlocale = _locale.setlocale
_stat = os.stat
_fstat = os.fstat
_umask = os.umask
_open, _read, _close = os.open, os.read, os.close


def stop_timers() -> bool:
    """Stop the interval timers (an alarm of this job would kill the next); returns whether one was set."""
    left = [_setitimer(timer, 0.0) for timer in _TIMERS]
    return any(before[0] for before in left)


class Cleanliness:
    """The state of the process when it was made, compared with now by ``difference``.

    ``parent`` is the warden: an orphan of the job has become its child.
    """

    def __init__(self, parent: int) -> None:
        me = os.getpid()
        self._tables: tuple[tuple[str, Callable[[], Any]], ...] = (
            ("signal handlers", lambda: [_getsignal(number) for number in _SIGNALS]),
            ("signal mask", lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ())),
            ("threads", lambda: _stat("/proc/self/task").st_nlink),
            ("descriptors", _descriptor_look()),
            ("output", lambda: [_fstat(fd)[1:3] for fd in (0, 1, 2)]),
            ("child processes", lambda: _children(f"/proc/self/task/{me}/children")),
            ("orphans", lambda: _children(f"/proc/{parent}/task/{parent}/children")),
            ("current folder", os.getcwd),
            ("umask", _umask_look),
            ("environment", _environment),
            ("sys.path", lambda: tuple(sys.path)),
            ("standard streams", lambda: (id(sys.stdout), id(sys.stderr), id(sys.unraisablehook))),
            ("locale", lambda: _setlocale(_locale.LC_ALL, None)),
            ("recursion limit", sys.getrecursionlimit),
            ("garbage collection", gc.isenabled),
            ("socket timeout", socket.getdefaulttimeout),
            ("resource limits", lambda: [_getrlimit(limit) for limit in _LIMITS]),
            ("priority", lambda: os.getpriority(os.PRIO_PROCESS, 0)),
            ("user", os.geteuid),
        )
        self._state = [look() for _, look in self._tables]

    def difference(self) -> str | None:
        """Name the first thing that is not as it was, or return None."""
        for (name, look), before in zip(self._tables, self._state, strict=True):
            try:
                if look() != before:
                    return name
            except Exception:
                return name
        return None


def _children(path: str) -> bytes:
    fd = _open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _read(fd, 4096)
    finally:
        _close(fd)


def _descriptor_look() -> Callable[[], int]:
    """Count the open descriptors; a kernel before 6.2 does not tell the number as the folder's size."""
    if _stat("/proc/self/fd").st_size > 0:
        return lambda: _stat("/proc/self/fd").st_size
    return lambda: len(os.listdir("/proc/self/fd"))


def _umask_look() -> int:
    mask = _umask(0o077)
    _umask(mask)
    return mask


def _environment() -> dict[Any, Any]:
    data = getattr(os.environ, "_data", None)
    return dict(data if data is not None else os.environ)
