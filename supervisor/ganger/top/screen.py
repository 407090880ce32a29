"""``ganger top`` on a terminal: a screen that is renewed each second, and the keys.

One thread draws and listens; it waits for a key, for news from the database or for the next second, and never for the
database. An order is carried out by the reader's thread, and what came of it is shown in the last line. The terminal is
given back as it was, whatever happens.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from typing import Final
from uuid import UUID

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ganger import jobs, knock
from ganger.database import Connection
from ganger.formats import harmless
from ganger.top.draw import Chosen, Lines, Screen, draw, selectable
from ganger.top.model import Ended, Slot, Stored, View, combine
from ganger.top.processes import Processes
from ganger.top.stored import Order, Reader

EVERY: Final = 1.0  # seconds between two looks
TOLD: Final = 5.0  # seconds that the last line tells what came of an order
ESCAPES: Final = {b"\x1b[A": "up", b"\x1bOA": "up", b"\x1b[B": "down", b"\x1bOB": "down"}
KEYS: Final = {"k": "up", "j": "down", "\r": "tree", "\n": "tree", "q": "quit", "\x03": "quit"}
_ORDERS: Final = {"c": "cancel", "K": "kill", "r": "retry", "p": "pause"}


class Top:
    """The state of the screen. ``pressed`` takes a key, ``lines`` are what is to be seen."""

    def __init__(self, database_url: str | None, schema: str) -> None:
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self.processes = Processes()
        self.reader = Reader(database_url, schema, self._wake)
        self.view = self._look()
        self.chosen: Chosen | None = None
        self.tree = False
        self.stacks: tuple[Chosen, str] | None = None  # of a run that was asked, until another key
        self.asked: tuple[str, Order] | None = None  # a question, and what is done after a yes
        self.said = ""
        self.said_at = 0.0

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b".")

    def _look(self) -> View:
        return combine(self.processes.look(), self.reader.latest or Stored(error="not reached yet"))

    # ---- the loop ----------------------------------------------------------------------------------------------------

    def run(self, console: Console) -> None:
        """Until q, Ctrl-C or the end of the terminal."""
        old = {number: signal.getsignal(number) for number in (signal.SIGWINCH, signal.SIGTERM, signal.SIGHUP)}
        signal.signal(signal.SIGWINCH, lambda *_: self._wake())
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _leave)  # the terminal is not left as we have made it
        try:
            with _keys() as keyboard, Live(console=console, screen=True, auto_refresh=False) as live:
                look_at = 0.0
                while True:
                    now = time.monotonic()
                    if now >= look_at:
                        self.view = self._look()
                        look_at = now + EVERY
                    live.update(Lines(self.lines(console.width, console.height)), refresh=True)
                    ready, _, _ = select.select([keyboard, self._wake_read], [], [], max(0.0, look_at - now))
                    if self._wake_read in ready:
                        os.read(self._wake_read, 4096)
                    if keyboard in ready:
                        raw = os.read(keyboard, 64)
                        if not raw or "quit" in [self.pressed(key) for key in _decoded(raw)]:
                            return
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)
            self.reader.close()

    def lines(self, width: int, height: int) -> list[Text]:
        if self.reader.said:
            self.said, self.reader.said, self.said_at = self.reader.said, "", time.monotonic()
        footer = self.said if time.monotonic() - self.said_at < TOLD else ""
        if self.asked is not None:
            footer = f"{self.asked[0]} y/n"
        clock = time.strftime("%H:%M:%S")
        stacks = self.stacks[1] if self.stacks is not None and self.stacks[0] == self.chosen else ""
        return draw(self.view, Screen(width, height, clock, self.chosen, self.tree, footer, stacks))

    # ---- keys --------------------------------------------------------------------------------------------------------

    def pressed(self, key: str) -> str | None:
        """Do what a key says; "quit" is for the caller."""
        if self.asked is not None:
            _, order = self.asked
            self.asked = None
            if key in ("y", "Y"):
                self.reader.order(order)
            return None
        act = KEYS.get(key, key)
        self.stacks = None
        if act in ("up", "down"):
            self._move(1 if act == "down" else -1)
        elif act == "tree":
            self.tree = not self.tree
        elif act == "s":
            self._ask_stacks()
        elif act in _ORDERS:
            self._ask(_ORDERS[act])
        return act if act == "quit" else None

    def _rows(self) -> list[Chosen]:
        return [Chosen.of(row) for row in selectable(self.view)]

    def _move(self, by: int) -> None:
        rows = self._rows()
        if not rows:
            self.chosen = None
        elif self.chosen in rows:
            self.chosen = rows[min(max(rows.index(self.chosen) + by, 0), len(rows) - 1)]
        else:
            self.chosen = rows[0] if by > 0 else rows[-1]

    def _row(self) -> Slot | Ended | None:
        return next((row for row in selectable(self.view) if Chosen.of(row) == self.chosen), None)

    def _ask(self, what: str) -> None:
        """Ask whether an order about the chosen row is meant, or say why it cannot be given."""
        row = self._row()
        refusal = self._refusal(what, row)
        if row is None or refusal:
            self.said, self.said_at = refusal, time.monotonic()
        elif what == "pause":
            queue = row.queue or ""
            paused = any(one.name == queue and one.paused for one in self.view.queues)
            word = "Resume" if paused else "Pause"
            self.asked = f"{word} the queue {queue}?", _resume(queue) if paused else _pause(queue)
        else:
            assert row.job_id is not None
            self.asked = f"{what.capitalize()} {row.job_type} {row.job_id}?", _order(what, row.job_id)

    def _ask_stacks(self) -> None:
        """Have the chosen run tell where it is, if its supervisor can be asked from here."""
        row = self._row()
        if not isinstance(row, Slot) or row.job_id is None:
            self.said, self.said_at = "Select a run first, with the arrow keys.", time.monotonic()
            return
        chosen, job_id = Chosen.of(row), row.job_id

        def ask(conn: Connection, schema: str) -> str:
            run = jobs.run_by(conn, schema, job_id)
            if run is None:
                return "It has ended."
            try:
                words = list(knock.ask(run.incarnation, "stacks", job_id))
            except knock.NotHere as error:
                return f"It runs on {run.host}, whose supervisor cannot be asked: {error}."
            told = next((word["stack"] for word in words if word.get("stack")), "")
            self.stacks = (chosen, harmless(told)) if told else None
            return "" if told else "It does not tell where it is."

        self.reader.order(ask)

    def _refusal(self, what: str, row: Slot | Ended | None) -> str:
        if row is None:
            return "Select a job first, with the arrow keys."
        if row.job_id is None or row.queue is None:
            return "The database does not tell of this run, so nothing can be ordered."
        if what == "retry" and isinstance(row, Slot):
            return "It runs. Only a job that has ended can be retried."
        if what in ("cancel", "kill") and isinstance(row, Ended):
            return "It has ended."
        return ""


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _order(what: str, job_id: UUID) -> Order:
    def do(conn: Connection, schema: str) -> str:
        if what == "retry":
            answer = jobs.retry(conn, schema, [job_id])[job_id]
        else:
            answer = jobs.cancel(conn, schema, [job_id], "killed" if what == "kill" else "cancelled")[job_id]
        return f"{what} {job_id}: {answer}"

    return do


def _pause(queue: str) -> Order:
    def do(conn: Connection, schema: str) -> str:
        jobs.pause(conn, schema, queue)
        return f"The queue {queue} is paused."

    return do


def _resume(queue: str) -> Order:
    def do(conn: Connection, schema: str) -> str:
        jobs.resume(conn, schema, queue)
        return f"The queue {queue} is resumed."

    return do


def _decoded(raw: bytes) -> Iterator[str]:
    """The keys in what a terminal has sent: arrows are several bytes."""
    while raw:
        for code, name in ESCAPES.items():
            if raw.startswith(code):
                yield name
                raw = raw[len(code) :]
                break
        else:
            yield chr(raw[0])
            raw = raw[1:]


@contextlib.contextmanager
def _keys() -> Iterator[int]:
    """Keys one by one and unechoed. Ctrl-C is one of them, so that it never comes in the middle of something."""
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    try:
        tty.setraw(keyboard, termios.TCSADRAIN)
        changed = termios.tcgetattr(keyboard)
        changed[1] = before[1]  # what is printed stays as it was
        termios.tcsetattr(keyboard, termios.TCSADRAIN, changed)
        yield keyboard
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
