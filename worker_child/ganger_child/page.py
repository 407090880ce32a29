"""The page that a warden and its child share: which run the child is in, and which order is meant for it.

A signal carries no addressee. A reused child may have gone on to the next job between the decision to interrupt and
the signal's arrival; so the order names the run (its nonce), and the child's handler acts only if that is the run it
is in. The warden, before it kills, stops the child and looks here (corrections: *stop, look, kill*).

Every field is one aligned 64-bit word, written by one side only, so no lock is needed and a reader never sees half of
a value. (The note on a run's progress is longer: a serial number tells that it is being written.) The memory file is
sealed against shrinking: a child that truncates it would otherwise kill its warden with SIGBUS.
"""

from __future__ import annotations

from fcntl import F_ADD_SEALS, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, fcntl
from mmap import mmap
from os import MFD_ALLOW_SEALING, MFD_CLOEXEC, ftruncate, memfd_create
from typing import Final

SIZE: Final = 4096
ROOM: Final = 256 * 1024  # bytes of the file behind the page, for stacks; they take memory only when they are written
NOBODY: Final = 0  # the nonce of no run

# Words, by index. Written by the child:
RUN: Final = 0  # nonce of the run it is in, NOBODY between runs
PROGRESS: Final = 1  # per mille, plus one; 0 = none given
BEGUN: Final = 2  # nonce of the run that it began last
NOTE_SERIAL: Final = 3  # odd while the note is being written, another one afterwards
STACKS_FD: Final = 4  # number of the descriptor of this file in the child, 0 = it does not tell its stacks yet
STACKS_TOLD: Final = 5  # number of the question after its stacks that it answered last
# Written by the warden:
ORDER_RUN: Final = 8  # nonce of the run that the order is for
ORDER: Final = 9  # code of the order, an index into ORDERS
ORDER_SERIAL: Final = 10  # grows by one with every order, so that a second one can be told from the first
REVOKED: Final = 11  # runs up to this nonce are not to be begun any more
STACKS_ASKED: Final = 12  # number of the question after its stacks

_NOTE: Final = 1024  # where the note begins, a text in UTF-8 with NULs after it
NOTE_MOST: Final = 240  # bytes of a note

ORDERS: Final = ("none", "shutdown", "timeout", "memory", "cancelled", "killed")


def create() -> int:
    """Make the memory file of a page and return its descriptor (close-on-exec)."""
    fd = memfd_create("ganger-page", MFD_CLOEXEC | MFD_ALLOW_SEALING)
    ftruncate(fd, SIZE + ROOM)
    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
    return fd


class Page:
    """The page, mapped. ``page[RUN]`` reads a word, ``page[RUN] = n`` writes it."""

    def __init__(self, fd: int) -> None:
        self._map = mmap(fd, SIZE)
        self._words = memoryview(self._map).cast("Q")

    def __getitem__(self, word: int) -> int:
        return self._words[word]

    def __setitem__(self, word: int, value: int) -> None:
        self._words[word] = value

    def write_note(self, note: bytes) -> None:
        """Say what is being done; what is over ``NOTE_MOST`` bytes is left out."""
        serial = self._words[NOTE_SERIAL] | 1
        self._words[NOTE_SERIAL] = serial
        self._map[_NOTE : _NOTE + NOTE_MOST] = note[:NOTE_MOST].ljust(NOTE_MOST, b"\0")
        self._words[NOTE_SERIAL] = serial + 1

    def read_note(self) -> str | None:
        """What was said last; None while it is being written."""
        serial = self._words[NOTE_SERIAL]
        note = self._map[_NOTE : _NOTE + NOTE_MOST]
        if serial & 1 or self._words[NOTE_SERIAL] != serial:
            return None
        return note.partition(b"\0")[0].decode("utf-8", "ignore")

    def close(self) -> None:
        self._words.release()
        self._map.close()
