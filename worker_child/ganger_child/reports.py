"""What a job tells while it runs: how far it is, and what is to be kept of it (checkpoints).

Progress goes into the page which the child shares with its warden, who looks at it when it renews its title: so it
costs the job no system call, and may be told in the tightest loop.

A checkpoint goes to the parent, over the socket that the outcome will take, so that it cannot come after that. The
parent answers twice: at once that it has it, and later that it is stored or refused. The next one is sent only after
the first of these answers: so a loop that saves without end is slowed to what the parent can take, and no more than one
is ever under way. What else comes while a handler reads here (a job sent ahead) is left for the child.

This file may not end, interrupt or fail a run.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from os import getpid
from select import POLLIN, poll
from threading import RLock
from typing import Any, Final, Protocol

from ganger_child.errors import CheckpointRefused
from ganger_child.interrupt import Interrupt
from ganger_child.outcome import to_json
from ganger_child.page import NOTE_MOST, NOTE_SERIAL, PROGRESS, RUN, Page
from ganger_child.wire import Channel, Message
from ganger_child.words import shown

_LOOK_EVERY: Final = 200  # milliseconds


class Say(Protocol):
    """Send a word to the parent, or end this process."""

    def __call__(self, op: str, body: bytes = b"", **fields: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class Desk:
    """What the child lends to its runs. ``left``: messages that a handler came upon and that are not for it."""

    page: Page
    channel: Channel
    say: Say
    limit: int  # bytes of a checkpoint
    pid: int
    left: deque[Message] = field(default_factory=deque)


class Reports:
    """The reports of one run."""

    def __init__(self, desk: Desk, nonce: int, interrupt: Interrupt) -> None:
        self._desk = desk
        self._nonce = nonce
        self._interrupt = interrupt
        self._note = ""
        desk.page[PROGRESS] = 0
        if desk.page[NOTE_SERIAL]:
            desk.page.write_note(b"")
        # Checkpoints are numbered. The newest of them that was sent, and those that the parent has answered for:
        self._sent = self._received = self._stored = self._refused = 0
        self._complaint = ""
        self._lock = RLock()

    # ---- progress --------------------------------------------------------------------------------------------------

    def progress(self, fraction: Any, note: Any) -> None:
        """See ``Job.progress``. Not for a copy of the handler that goes on when the child is at another job."""
        page = self._desk.page
        if page[RUN] != self._nonce:
            return
        if fraction is not None:
            try:
                done = int(fraction * 1000.0 + 1e-6)
            except (TypeError, ValueError, OverflowError):
                raise ValueError(f"fraction is {shown(fraction)}: give a number from 0 to 1.") from None
            page[PROGRESS] = min(max(done, 0), 1000) + 1
        if note is not None and note != self._note:
            if not isinstance(note, str):
                raise ValueError(f"note is {shown(note)}: give a text.")
            page.write_note(note[:NOTE_MOST].encode("utf-8", "replace"))
            self._note = note

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    def save(self, data: Any, *, wait: bool) -> None:
        """See ``Job.save_checkpoint``."""
        if getpid() != self._desk.pid:
            raise RuntimeError("save_checkpoint is for the job's own process, and not for those that it starts.")
        encoded = to_json(data, self._desk.limit, "data")
        with self._lock:
            self._check()
            while self._received < self._sent:
                self._listen()
            with self._interrupt.held():
                self._sent = number = self._sent + 1
                self._desk.say("checkpoint", encoded, nonce=self._nonce, number=number, awaited=wait)
            while wait and max(self._stored, self._refused) < number:
                self._listen()
            if wait and self._refused >= number:
                raise CheckpointRefused(self._complaint)

    def _check(self) -> None:
        if not self._interrupt.armed:
            raise RuntimeError("save_checkpoint is for a handler, and this one has ended.")

    def _listen(self) -> None:
        """Wait for an answer. The wait can be interrupted; what came is taken whole."""
        channel = self._desk.channel
        watch = poll()
        watch.register(channel.fileno(), POLLIN)
        while not watch.poll(_LOOK_EVERY):
            self._check()
        self._check()  # in a thread that outlives its handler: what comes now is the child's, and may be gone already
        with self._interrupt.held():
            received = channel.receive()
            for message in received.messages:
                if message.op == "checkpoint":
                    self._take(message)
                else:
                    self._desk.left.append(message)
        if received.closed:
            raise CheckpointRefused("the supervisor is gone")

    def _take(self, answer: Message) -> None:
        if answer["nonce"] != self._nonce:
            return
        self._received = max(self._received, answer["number"])
        if answer.get("error") is not None:
            self._refused, self._complaint = answer["number"], answer["error"]
        elif answer.get("stored"):
            self._stored = answer["number"]
