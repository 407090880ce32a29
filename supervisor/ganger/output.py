"""What a child prints: read from its pipe a little at a time, cut into lines, and the last of it kept for the attempt.

Whose lines they are is told by ``begin`` and ``leave``; what is in the pipe before ``begin`` belongs to the run before.
Nothing here waits, and a child that prints without end gets its turn and no more.

This file may not know what a child says, nor what becomes of its run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from ganger.core import messages as m
from ganger.tail import Tail

AT_ONCE: Final = 16 * 1024  # bytes read per visit
PIPE_HOLDS: Final = 1 << 20  # the most that the kernel lets a pipe hold, so the most to drain before a last event
LINE: Final = 8 * 1024  # bytes; longer lines are cut into pieces


@dataclass(frozen=True, slots=True)
class Output:
    """One line that a child printed, or a piece of a long one. The job is None between jobs."""

    slot: str
    child: int
    job_id: UUID | None
    job_type: str | None
    text: str


class Printed:
    """What the child of a slot prints into the pipe ``fd``, which is taken over.

    ``output`` takes the lines; of each run ``keep`` bytes are kept. ``deafen`` is called with ``fd`` before it is
    closed.
    """

    def __init__(
        self,
        slot: str,
        child: int,
        fd: int,
        keep: int,
        output: Callable[[Output], object],
        deafen: Callable[[int], None],
    ) -> None:
        self.job: m.Job | None = None  # whose lines these are
        self.fd = fd  # -1 when it is closed
        self._slot = slot
        self._child = child
        self._output = output
        self._deafen = deafen
        self._tail = Tail(keep)
        self._partial = b""  # a line without its end

    def begin(self, job: m.Job) -> None:
        """What is read from now on is this job's."""
        self.job = job
        self._tail.clear()

    def leave(self) -> m.Job | None:
        """What is read from now on is nobody's; returns whose it was."""
        job, self.job = self.job, None
        return job

    def last(self) -> str | None:
        """The last that the present job has printed; None if it has printed nothing, or there is none."""
        return self._tail.text() if self.job is not None else None

    def last_lines(self) -> str:
        """The last whole lines that were printed so far."""
        text = self._tail.text() or ""
        return text[: text.rfind("\n") + 1] if self._partial else text

    def read(self, most: int = AT_ONCE) -> None:
        """Read what is there, up to so many bytes."""
        while most > 0 and self.fd >= 0:
            wanted = min(most, 1 << 16)
            try:
                data = os.read(self.fd, wanted)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:  # nobody holds the writing end any more
                self.close()
                return
            self._tail.add(data)
            self._cut(data)
            if len(data) < wanted:
                return
            most -= len(data)

    def drain(self) -> None:
        """Read all that is there, so that it comes before the event that follows."""
        self.read(PIPE_HOLDS)
        self.end_line()

    def end_line(self) -> None:
        """A line without its end is one all the same."""
        if self._partial:
            self._print(self._partial)
            self._partial = b""

    def close(self) -> None:
        """Read no more. Harmless twice."""
        if self.fd >= 0:
            self._deafen(self.fd)
            os.close(self.fd)
            self.fd = -1

    def _cut(self, data: bytes) -> None:
        *lines, rest = (self._partial + data).split(b"\n")
        for line in lines:
            self._print(line)
        while len(rest) > LINE:
            rest = self._print_piece(rest)
        self._partial = rest

    def _print(self, line: bytes) -> None:
        while len(line) > LINE:
            line = self._print_piece(line)
        job = self.job
        text = line.decode("utf-8", "backslashreplace")
        self._output(Output(self._slot, self._child, job.job_id if job else None, job.job_type if job else None, text))

    def _print_piece(self, line: bytes) -> bytes:
        """Print the beginning of a long line, not cutting through a character, and return the rest."""
        end = LINE
        while end > LINE - 4 and line[end] & 0xC0 == 0x80:
            end -= 1
        self._print(line[:end])
        return line[end:]
