"""What a process below the supervisor does to itself so that it can neither be lost nor harm its neighbours.

Sessions, signals on a parent's death, adoption of orphans, descriptors, signal handlers, the kernel's choice when
memory runs out. One function for each; the order in which they are called is the caller's.

Everything used here is bound when this file is imported, before any user code could replace it (gevent replaces parts
of ``os``, ``select`` and ``time``). This file may not know of jobs.
"""

from __future__ import annotations

import ctypes
import logging
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from fcntl import F_DUPFD_CLOEXEC, fcntl
from os import (
    O_CLOEXEC,
    O_RDWR,
    _exit,
    close,
    dup2,
    getpid,
    getppid,
    kill,
    listdir,
    read,
    set_inheritable,
    setsid,
    write,
)
from os import open as os_open
from types import FrameType
from typing import Final

HIGH: Final = 200  # our descriptors lie at this number or above: user code that counts from 3 does not meet them

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_SIGNAL: Final = signal.signal
_SIGMASK: Final = signal.pthread_sigmask
_SET_WAKEUP_FD: Final = signal.set_wakeup_fd
_HANDLERS: Final = logging._handlerList  # type: ignore[attr-defined]
_PATIENCE: Final = 1.0  # seconds for a thread that keeps a lock of logging
_ALL_SIGNALS: Final = frozenset(signal.valid_signals())
# Not ours to set, or (faults of the process itself) perhaps taken by a faulthandler that the user's module enabled.
_LEFT_ALONE: Final = frozenset(
    {signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
)
# Python itself ignores these at its start, and programs rely on the exceptions they get instead.
_IGNORED_BY_PYTHON: Final = frozenset({signal.SIGPIPE, signal.SIGXFSZ})

_libc = ctypes.CDLL(None, use_errno=True)
_prctl = _libc.prctl
_prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]


def _control(option: int, argument: int) -> None:
    if _prctl(option, argument, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {argument}) was refused by the kernel")


def new_session() -> None:
    """Lead a session of its own, so that a terminal's signals and a group's do not arrive. Harmless if it does."""
    with suppress(PermissionError):
        setsid()


def signal_at_parents_death(signum: int) -> None:
    """Have the kernel send ``signum`` when the *thread* that forked this process ends. Lost at the next fork."""
    _control(_PR_SET_PDEATHSIG, signum)


def die_with_parent(parent: int) -> None:
    """Be killed when the parent ends. ``parent`` is its pid, taken before the fork.

    Where the parent ended between the fork and this call, no signal will ever come: so look, and end at once.
    """
    signal_at_parents_death(signal.SIGKILL)
    if getppid() != parent:
        kill(getpid(), signal.SIGKILL)
        _exit(1)  # not reached


def adopt_orphans() -> None:
    """Become the new parent of every descendant whose own parent ends (a subreaper). Not inherited by a fork."""
    _control(_PR_SET_CHILD_SUBREAPER, 1)


def default_signals() -> None:
    """Give every signal the disposition it has in a freshly started Python."""
    _SET_WAKEUP_FD(-1)
    for signum in _ALL_SIGNALS - _LEFT_ALONE:
        with suppress(OSError, ValueError):  # the C library keeps some real-time signals for itself
            _SIGNAL(signum, signal.SIG_IGN if signum in _IGNORED_BY_PYTHON else signal.SIG_DFL)
    _SIGNAL(signal.SIGINT, signal.default_int_handler)


def hear_nothing_yet() -> None:
    """Do nothing on the signals that ask a program to stop, until this child has handlers of its own for them."""
    for signum in (signal.SIGTERM, signal.SIGINT):
        _SIGNAL(signum, _nothing)


def take_no_orders() -> None:
    """Do nothing on the signals that ask to stop: template and warden obey their socket and the lifeline alone.

    Handlers that do nothing, and not SIG_IGN: what is ignored stays ignored in everything that a job execs.
    """
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        _SIGNAL(signum, _nothing)
    _SIGNAL(signal.SIGCHLD, signal.SIG_DFL)  # inherited as ignored, wait would lose every exit status


def _nothing(signum: int, frame: FrameType | None) -> None:
    return None


def block_signals() -> None:
    """Hold all signals back: around a fork, so that no handler of the parent runs in the child."""
    _SIGMASK(signal.SIG_SETMASK, _ALL_SIGNALS)


def unblock_signals() -> None:
    """Let all signals through."""
    _SIGMASK(signal.SIG_SETMASK, ())


@contextmanager
def logging_at_rest() -> Iterator[None]:
    """Have no other thread in the middle of logging a line: around a fork.

    The copy has only the thread that forks. Python renews the locks of logging in it, but not the one inside a stream
    that another thread was just writing to: whoever writes there afterwards waits for ever. So we hold what a thread
    has to hold to get that far. In both processes they are let go (in the copy most of them are new already).
    """
    handlers = [handler for reference in list(_HANDLERS) if (handler := reference()) is not None]
    held = []
    for lock in (logging._lock, *(handler.lock for handler in handlers)):  # type: ignore[attr-defined]
        with suppress(Exception):  # none, or some other kind of lock
            if lock.acquire(timeout=_PATIENCE):
                held.append(lock)
    try:
        yield
    finally:
        for lock in reversed(held):
            with suppress(Exception):
                lock.release()


def move_fd_high(fd: int) -> int:
    """Move a descriptor to a number at or above ``HIGH``, close-on-exec, and return the new number.

    Where a low limit on descriptors has no such number, it stays where it is.
    """
    try:
        moved = fcntl(fd, F_DUPFD_CLOEXEC, HIGH)
    except OSError:
        set_inheritable(fd, False)
        return fd
    close(fd)
    return moved


def close_fds_except(keep: Iterable[int]) -> None:
    """Close every descriptor above 2 that is not in ``keep``."""
    for number in {int(name) for name in listdir("/proc/self/fd")}.difference(keep, (0, 1, 2)):
        with suppress(OSError):  # the one that the listing itself used
            close(number)


def empty_stdin() -> None:
    """Make descriptor 0 read as empty."""
    null = os_open("/dev/null", O_RDWR | O_CLOEXEC)
    dup2(null, 0, inheritable=True)
    if null != 0:
        close(null)


def prefer_when_memory_runs_out(more: int = 500) -> None:
    """Ask the kernel to end this process before others when memory runs out. Where that is refused, go without."""
    with suppress(OSError, ValueError):
        fd = os_open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC)
        try:
            write(fd, b"%d" % min(1000, int(read(fd, 16)) + more))
        finally:
            close(fd)
