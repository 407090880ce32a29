"""The loop: the only place of the parent that waits. One wait, one deadline (and a lull, where all slots are at short
jobs with others behind them: then what comes is taken in together).

It carries what happens to the core and what the core commands to whoever does it, and decides nothing. Everything that
could take long has a thread of its own (the database, the callbacks, the writing of events), so a kill is never late
because something else is slow.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from selectors import EVENT_READ, BaseSelector
from typing import Any, Final, get_args

from ganger.core import messages as m
from ganger.core.machine import Machine
from ganger.events import Events
from ganger.gang import Gang, Stack
from ganger.signals import DUMP, LESS, MORE, RELOAD
from ganger_child import titles

GANG: Final = get_args(m.GangCommand)
DATABASE: Final = get_args(m.DatabaseCommand)
CHORES: Final = 1.0  # seconds at least between two rounds of what is done now and then
OUTCOMES: Final = get_args(m.Outcome)
TICK: Final = m.Tick()
ASKS: Final[dict[str, m.Event]] = {RELOAD: m.Reload(), MORE: m.MoreSlots(1), LESS: m.MoreSlots(-1)}
ROUNDS: Final = 100  # batches of events in a row before descriptors are looked at again


class Inbox:
    """Events on their way to the core, from this thread or any other. ``post`` never waits."""

    def __init__(self) -> None:
        self._events: deque[m.Event] = deque()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._rung = False

    def post(self, event: m.Event) -> None:
        self._events.append(event)
        if not self._rung:  # else whoever takes has still to look
            self._rung = True
            os.eventfd_write(self._bell, 1)

    def take(self) -> list[m.Event]:
        self._rung = False  # before looking: what comes after that rings again
        taken = []
        while self._events:
            taken.append(self._events.popleft())
        return taken

    @property
    def empty(self) -> bool:
        return not self._events

    def fileno(self) -> int:
        return self._bell

    def hush(self) -> None:
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:
            pass

    def close(self) -> None:
        os.close(self._bell)


class Loop:
    """Drives one machine until it finishes.

    ``store`` takes database commands, ``ask`` an error for on_polling_error; ``told`` holds facts that the core does
    not know, by event name. ``turned``, if given, is called whenever the loop has turned, and says within how many
    seconds it wants to be called again; it must not wait. ``chores`` are done each second or so, while it turns anyway.
    """

    def __init__(
        self,
        machine: Machine,
        gang: Gang,
        inbox: Inbox,
        selector: BaseSelector,
        events: Events,
        store: Callable[..., None],
        ask: Callable[[str], None],
        name: str,
        told: Mapping[str, Mapping[str, Any]],
        turned: Callable[[m.Now], float] | None = None,
        chores: Iterable[Callable[[], object]] = (),
    ) -> None:
        self.machine = machine
        self.gang = gang
        self.inbox = inbox
        self.selector = selector
        self.events = events
        self.store = store
        self.ask = ask
        self.name = name
        self.told = told
        self.turned = turned
        self.outcomes: deque[m.Outcome] = deque(maxlen=1)  # the last one
        self._exit_code: int | None = None
        self._for_database: list[m.DatabaseCommand] = []
        self._chores = (gang.reap, *chores)
        self._chores_at = 0.0
        self._ways: dict[type[m.Command], Callable[[Any], object]] = {
            **dict.fromkeys(GANG, gang.do),
            **dict.fromkeys(DATABASE, self._for_database.append),
            **dict.fromkeys(OUTCOMES, self._owe),
            m.Emit: self._emit,
            m.TitleChanged: self._show,
            m.PollingError: lambda command: ask(command.error),
            m.Finish: self._finish,
        }
        selector.register(inbox.fileno(), EVENT_READ, inbox.hush)

    def run(
        self,
        asked: Callable[[float], Iterable[str]] = lambda now: (),
        started: Callable[[], object] = lambda: None,
    ) -> int:
        """Run until the core says Finish, and return its exit code. ``asked`` is read after every wait.

        ``started`` is called when the template has been exec'd: an application that forks in the middle of that would
        keep the pipe open that subprocess reads until then, and so stop this thread for as long as its fork lives.
        """
        self._do(self.machine.start(clock()))
        self._hand_over()
        started()
        while self._exit_code is None:
            now = clock()
            due = self.machine.deadline(now)
            if self.turned is not None:
                patience = self.turned(now)
                due = patience if due is None else min(due, patience)
            lull = self.machine.lull()
            if lull and (due is None or due > lull):
                time.sleep(lull)
                due = None if due is None else due - lull
            for key, _ in self.selector.select(due):
                key.data()
            for how in asked(time.monotonic()):
                if how == DUMP:
                    self._dump()
                else:
                    self.inbox.post(ASKS.get(how) or m.Stop(how))
            self._turn()
        return self._exit_code

    def _turn(self) -> None:
        """Let the core take in what came, and then do what is due; both may bring more."""
        for _ in range(ROUNDS):
            now = clock()
            for event in self.inbox.take():
                self._do(self.machine.handle(event, now))
            self._do(self.machine.handle(TICK, clock()))
            self._hand_over()
            if self.inbox.empty:
                break
        if time.monotonic() >= self._chores_at:
            self._chores_at = time.monotonic() + CHORES
            for chore in self._chores:
                chore()

    def _do(self, commands: Iterable[m.Command]) -> None:
        for command in commands:
            self._ways[type(command)](command)

    def _owe(self, outcome: m.Outcome) -> None:
        self.outcomes.append(outcome)
        self._for_database.append(outcome)

    def _hand_over(self) -> None:
        """What one turn has brought goes to the database together: its threads make one batch of it."""
        if self._for_database:
            self.store(*self._for_database)
            self._for_database.clear()

    def _dump(self) -> None:
        """Tell how everything stands: first of this process, then of each run, as soon as it has told."""
        data = {**self.machine.state(clock()), "stack": _stacks()}
        self.events.emit("state-dump", supervisor_id=self.machine.book.lease.supervisor_id, **data)
        self.gang.ask_stacks(self._dump_run)

    def _dump_run(self, stack: Stack) -> None:
        job = stack.job
        self.events.emit(
            "state-dump",
            supervisor_id=self.machine.book.lease.supervisor_id,
            job_id=str(job.job_id),
            job_type=job.job_type,
            queue=job.queue,
            attempt=job.attempts,
            slot=stack.slot,
            pid=stack.pid,
            stack=stack.text or "It does not tell where it is.",
        )

    def _show(self, title: m.TitleChanged) -> None:
        titles.show(titles.supervisor(self.name, title.phase, title.running, title.slots, title.lanes))

    def _finish(self, command: m.Finish) -> None:
        self._exit_code = command.exit_code

    def _emit(self, command: m.Emit) -> None:
        data = {"supervisor_id": self.machine.book.lease.supervisor_id, **self.told.get(command.name, {})}
        data |= command.data
        if "retry_in" in data:
            data["retry_at"] = datetime.now(UTC) + timedelta(seconds=data["retry_in"])
        self.events.emit(command.name, **data)


def _stacks() -> str:
    """Where the threads of this process are."""
    frames = sys._current_frames()
    return "\n".join(
        f"Thread {thread.name}:\n{''.join(traceback.format_stack(frames[thread.ident]))}"
        for thread in threading.enumerate()
        if thread.ident in frames
    )


def clock() -> m.Now:
    return m.Now(time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME))
