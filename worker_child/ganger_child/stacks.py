"""Where a child is: the Python stacks of its threads, asked for by its warden and written by the child as it goes on.

There are two ways, and a signal for each. ``ASK`` is heard by the main thread as soon as it comes to Python code: it
holds the GIL then, so no thread moves, and all can be looked at. ``ASK_IN_C`` is for a main thread that stays in C,
with the GIL or without: the C library's handler writes, there and then, the stack of that one thread. It may not look
at the others, which can be in the middle of changing their frames: that has crashed processes.

Both write into the file of the page, behind the page. Warden and child share the place in it where the next byte goes,
and the file cannot grow, so what is written is bounded by the kernel. This file may not know of runs.
"""

from __future__ import annotations

import faulthandler
from collections.abc import Callable
from contextlib import suppress
from os import SEEK_CUR, SEEK_SET, fstat, kill, listdir, lseek, pread, stat, write
from signal import SIGRTMIN, signal
from time import monotonic, sleep
from types import FrameType
from typing import Final

from ganger_child.page import ROOM, SIZE, STACKS_ASKED, STACKS_FD, STACKS_TOLD, Page

ASK_IN_C: Final = SIGRTMIN + 5
ASK: Final = SIGRTMIN + 6  # below the interrupt's, so that of two that wait this one is heard first
LONGEST: Final = 16 * 1024  # characters
_PAUSE: Final = 0.0005  # seconds between two looks for the answer
_IN_C: Final = 0.1  # seconds, at least, for the second way: it answers as soon as the child gets a CPU
_FIRST, _AGAIN, _MAIN = "Stack ", "Current thread ", "Main thread "  # how the stack of one thread begins
_ALONE: Final = "The main thread is in C code; its other threads are not shown.\n"

_dump = faulthandler.dump_traceback
_register = faulthandler.register
_signal = signal


class Answering:
    """The child's side. ``fd`` is the file of the page."""

    def __init__(self, page: Page, fd: int) -> None:
        self._page = page
        self._fd = fd

    def install(self) -> None:
        """Begin to answer. In the main thread, before any user code that could take the signals."""
        _signal(ASK, self._answer)
        _register(ASK_IN_C, file=self._fd, all_threads=False, chain=False)
        self._page[STACKS_FD] = self._fd

    def _answer(self, number: int, frame: FrameType | None) -> None:
        asked = self._page[STACKS_ASKED]
        if asked != self._page[STACKS_TOLD]:  # else we come too late: it was answered in C
            _dump(self._fd, all_threads=False)  # ours first: of many threads the last ones are left out
            with suppress(OSError):  # the page is full: several looks came at once; nothing is to be raised in the job
                write(self._fd, b"\n")
            _dump(self._fd, all_threads=True)
            self._page[STACKS_TOLD] = asked


def take(pid: int, page: Page, fd: int, patience: float) -> str | None:
    """The warden's side: the stacks of its child, the main thread's first; None where they do not come.

    Waits up to ``patience`` seconds for the first way, and for the second a tenth of a second at least. Where the
    child has closed the file, or has put other handlers in place of ours, it is not asked: it would write elsewhere,
    or die.
    """
    told = page[STACKS_TOLD]
    if not _is_open_in(pid, page[STACKS_FD], fd):
        return None
    lseek(fd, SIZE, SEEK_SET)
    page[STACKS_ASKED] = told + 1
    in_python = _ask(pid, ASK, lambda: page[STACKS_TOLD] != told, patience)
    if not in_python:
        page[STACKS_ASKED] = told
        if not _ask(pid, ASK_IN_C, lambda: _written(fd) > 0 and not _is_held(pid, ASK_IN_C), max(patience, _IN_C)):
            return None
    text = pread(fd, _written(fd), SIZE).decode("utf-8", "backslashreplace").replace("\0", "\\x00")
    return _arranged(text, alone=not in_python and _threads(pid) > 1) or None


def _ask(pid: int, number: int, answered: Callable[[], bool], patience: float) -> bool:
    if not _mask(pid, "SigCgt") >> (number - 1) & 1:
        return False
    with suppress(ProcessLookupError, PermissionError):
        kill(pid, number)
    deadline = monotonic() + patience
    while not answered():
        if monotonic() >= deadline:
            return False
        sleep(_PAUSE)
    return True


def _written(fd: int) -> int:
    return min(max(lseek(fd, 0, SEEK_CUR) - SIZE, 0), ROOM)


def _is_held(pid: int, number: int) -> bool:
    """Whether the signal waits, or its handler is at work: it blocks its own signal for so long."""
    return bool((_mask(pid, "SigPnd") | _mask(pid, "ShdPnd") | _mask(pid, "SigBlk")) >> (number - 1) & 1)


def _mask(pid: int, name: str) -> int:
    try:
        with open(f"/proc/{pid}/status", "rb") as status:
            for line in status:
                if line.startswith(name.encode()):
                    return int(line.split()[1], 16)
    except (OSError, ValueError, IndexError):
        pass
    return 0


def _is_open_in(pid: int, number: int, fd: int) -> bool:
    try:
        theirs, ours = stat(f"/proc/{pid}/fd/{number}"), fstat(fd)
    except OSError:
        return False
    return number > 0 and (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino)


def _threads(pid: int) -> int:
    try:
        return len(listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def _arranged(text: str, *, alone: bool) -> str:
    """The main thread, without the frame that answered, then the others once each, as far as there is room."""
    own = f'File "{__file__}"'
    lines = [line for line in text.splitlines() if own not in line]
    threads = [thread for thread in "\n".join(lines).split("\n\n") if not thread.startswith(_AGAIN)]
    text = "\n\n".join(thread.strip("\n") for thread in threads).strip()
    text = (_ALONE if alone else "") + text.replace(_FIRST, _MAIN, 1)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}\n[… {len(text) - LONGEST} characters more]"
