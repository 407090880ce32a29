"""The door at which operators on this host ask a running supervisor: follow a job's output, and where is it now.

It is served by the loop like any other descriptor and never waits for anybody: who does not read loses lines (and is
told how many), and only the same user, or root, is let in. It tells, and takes no orders: those go by the database.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from selectors import EVENT_READ, EVENT_WRITE, BaseSelector
from typing import Any, Final
from uuid import UUID

from ganger.gang import Gang, Stack
from ganger.knock import address, user_of
from ganger.output import Output

MOST_VISITORS: Final = 8
MOST_WAITING: Final = 256 * 1024  # bytes that wait for one visitor to read
LONGEST_QUESTION: Final = 1024  # bytes


@dataclass(slots=True, eq=False)
class _Visitor:
    sock: socket.socket
    heard: bytes = b""
    asked: bool = False
    follows: UUID | None = None
    waiting: bytearray = field(default_factory=bytearray)
    missed: int = 0  # lines
    leaves: bool = False  # once it has read what waits


class Door:
    """Listens from when it is made until ``close``. ``printed`` is to be told each line of output."""

    def __init__(self, incarnation: UUID, selector: BaseSelector, gang: Gang) -> None:
        self._selector = selector
        self._gang = gang
        self._visitors: list[_Visitor] = []
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.setblocking(False)
        self._sock.bind(address(incarnation))
        self._sock.listen(MOST_VISITORS)
        self._opened = False
        self.open()
        gang.over = self._over

    def open(self) -> None:
        """Let visitors in; harmless where they are. To be called now and then: see ``_welcome``."""
        if not self._opened:
            self._opened = True
            self._selector.register(self._sock, EVENT_READ, self._welcome)

    def close(self) -> None:
        for visitor in list(self._visitors):
            self._dismiss(visitor)
        self._shut()
        self._sock.close()

    def _shut(self) -> None:
        if self._opened:
            self._opened = False
            self._selector.unregister(self._sock)

    def printed(self, line: Output) -> None:
        for visitor in list(self._visitors):
            if visitor.follows is not None and visitor.follows == line.job_id:
                self._tell(visitor, line=line.text)

    def _over(self, job_id: UUID) -> None:
        """The run of this job is over, and everything that it printed was told."""
        for visitor in list(self._visitors):
            if visitor.follows == job_id:
                self._end(visitor)

    # ---- visitors ----------------------------------------------------------------------------------------------------

    def _welcome(self) -> None:
        try:
            sock, _ = self._sock.accept()
        except (BlockingIOError, ConnectionAbortedError):  # gone again
            return
        except OSError:  # out of descriptors: who knocks would wake the loop without end, and waits until it is opened
            self._shut()
            return
        sock.setblocking(False)
        visitor = _Visitor(sock)
        self._visitors.append(visitor)
        self._selector.register(sock, EVENT_READ, partial(self._serve, visitor))
        if user_of(sock) not in (0, os.geteuid()):
            self._end(visitor, refused=f"it is another user's (uid {os.geteuid()}): ask as that user, or as root")
        elif len(self._visitors) > MOST_VISITORS:
            self._end(visitor, refused=f"{MOST_VISITORS} others are asking it just now")

    def _serve(self, visitor: _Visitor) -> None:
        if visitor.waiting:
            self._flush(visitor)
        if visitor not in self._visitors:
            return
        try:
            data = visitor.sock.recv(LONGEST_QUESTION)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._dismiss(visitor)
            return
        if visitor.asked:
            return
        visitor.heard += data
        if b"\n" in visitor.heard or len(visitor.heard) > LONGEST_QUESTION:
            visitor.asked = True
            self._answer(visitor)

    def _answer(self, visitor: _Visitor) -> None:
        try:
            question = json.loads(visitor.heard)
            asked, job_id = question["ask"], UUID(question["job_id"])
        except (ValueError, KeyError, TypeError, AttributeError):
            asked, job_id = "", UUID(int=0)
        if asked == "tail":
            self._follow(visitor, job_id)
        elif asked == "stacks":
            if not self._gang.ask_stacks(partial(self._tell_stack, visitor), job_id):
                self._end(visitor, refused="the job does not run there any more")
        else:
            self._end(visitor, refused="that is no question it knows")

    def _follow(self, visitor: _Visitor, job_id: UUID) -> None:
        printed = self._gang.printed(job_id)
        if printed is None:
            self._end(visitor, refused="the job does not run there any more")
            return
        visitor.follows = job_id
        self._tell(visitor, so_far=printed)

    def _tell_stack(self, visitor: _Visitor, stack: Stack) -> None:
        if visitor in self._visitors:
            self._end(visitor, stack=stack.text, slot=stack.slot, pid=stack.pid)

    # ---- what they are told ------------------------------------------------------------------------------------------

    def _tell(self, visitor: _Visitor, **word: Any) -> None:
        if len(visitor.waiting) > MOST_WAITING:
            visitor.missed += 1
            return
        if visitor.missed:
            word["missed"], visitor.missed = visitor.missed, 0
        visitor.waiting += json.dumps(word).encode() + b"\n"
        self._flush(visitor)

    def _end(self, visitor: _Visitor, **word: Any) -> None:
        """Let it go once it has read everything; it is no longer told anything else."""
        visitor.follows = None
        visitor.leaves = True
        self._tell(visitor, **word)

    def _flush(self, visitor: _Visitor) -> None:
        try:
            del visitor.waiting[: visitor.sock.send(visitor.waiting)]
        except BlockingIOError:
            pass
        except OSError:
            self._dismiss(visitor)
            return
        if visitor.leaves and not visitor.waiting:
            self._dismiss(visitor)
            return
        wanted = EVENT_READ | EVENT_WRITE if visitor.waiting else EVENT_READ
        if self._selector.get_key(visitor.sock).events != wanted:
            self._selector.modify(visitor.sock, wanted, partial(self._serve, visitor))

    def _dismiss(self, visitor: _Visitor) -> None:
        self._visitors.remove(visitor)
        with suppress(KeyError):
            self._selector.unregister(visitor.sock)
        visitor.sock.close()
