"""Signals to the supervisor: the handlers only ring a bell; what a signal means is a table.

Nothing is raised from a handler and nothing is done in one. Python writes the number of each signal to a socket, which
the loop (or whoever waits before there is a loop) reads like any other descriptor.

Two of them, for a slot more and a slot less, are also the kernel's: it sends them to a program in the background that
reads its terminal or (``stty tostop``) writes to it, and with a handler each line would cost a slot and be tried again
for ever. Where they are blocked the kernel does not send them: reading fails, writing works. So every thread has them
blocked, and one that does nothing else takes those that somebody sends.
"""

from __future__ import annotations

import select
import signal
import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from types import FrameType
from typing import Final

AGAIN: Final = 0.5  # seconds: a second SIGINT sooner than this is the same key press, or the same group signal

STOPS: Final = {signal.SIGTERM: "graceful", signal.SIGHUP: "graceful", signal.SIGQUIT: "kill"}
DUMP: Final = "dump"  # no stop, but to tell everything
RELOAD: Final = "reload"  # nor this: to load the handler module anew
MORE: Final = "more"  # nor this: one slot more
LESS: Final = "less"  # and one less
TELLS: Final = {signal.SIGUSR1: DUMP, signal.SIGUSR2: RELOAD, signal.SIGTTIN: MORE, signal.SIGTTOU: LESS}
OF_TERMINALS: Final = frozenset({signal.SIGTTIN, signal.SIGTTOU})
INTERRUPTS: Final = ("graceful", "terminate", "kill")  # the first, second and third SIGINT


class Signals:
    """Installed handlers (of these signals), as a context. To be used in the main thread only."""

    def __init__(self, numbers: Iterable[int] = (*STOPS, *TELLS, signal.SIGINT)) -> None:
        self._numbers = tuple(numbers)
        self._bell, self._ringer = socket.socketpair()
        for end in (self._bell, self._ringer):
            end.setblocking(False)
        self._former: dict[int, object] = {}
        self._former_fd = -1
        self._former_mask: set[int | signal.Signals] = set()
        self._interrupts = 0
        self._last_interrupt: float | None = None
        self._waiting: list[int] = []  # numbers read while waiting for something else
        self._blocked = OF_TERMINALS & set(self._numbers)
        self._listener: threading.Thread | None = None
        self._leaving = False
        self._held = threading.Lock()  # so that the listener lives while it is told to leave

    def __enter__(self) -> Signals:
        self._former_fd = signal.set_wakeup_fd(self._ringer.fileno(), warn_on_full_buffer=False)
        for number in self._numbers:
            # Started with nohup, SIGHUP is ignored and stays so.
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue
            self._former[number] = signal.signal(number, _ring)
        self._former_mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, self._numbers)  # our starter may block all
        if self._blocked:
            signal.pthread_sigmask(signal.SIG_BLOCK, self._blocked)  # before there is any thread, which all inherit it
            self._listener = threading.Thread(target=self._listen, name="ganger-signals", daemon=True)
            try:
                self._listener.start()
            except RuntimeError:  # no thread can be started: whoever needs one for more than this says so
                self._listener = None
        return self

    def _listen(self) -> None:
        while True:
            number = signal.sigwait(self._blocked)
            with self._held:
                if self._leaving:
                    return
            with suppress(BlockingIOError):  # it is full of others
                self._ringer.send(bytes([number]))

    def __exit__(self, *_: object) -> None:
        if self._listener is not None:
            assert self._listener.ident is not None
            with self._held:
                self._leaving = True
                signal.pthread_kill(self._listener.ident, signal.SIGTTIN)
            self._listener.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._former_mask)
        for number, handler in self._former.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._former_fd)
        self._bell.close()
        self._ringer.close()

    def fileno(self) -> int:
        return self._bell.fileno()

    @property
    def interrupted(self) -> bool:
        """Whether a SIGINT has come."""
        return self._interrupts > 0

    def wait(self, seconds: float) -> bool:
        """Sleep, but not longer than until a signal asks to stop; whether one did."""
        watch = select.poll()  # select cannot take a number over 1023
        watch.register(self._bell, select.POLLIN)
        watch.poll(seconds * 1000)
        self.hear()
        return any(number in STOPS or number == signal.SIGINT for number in self._waiting)

    def hear(self) -> None:
        """Read which signals have come; to be called when this is readable."""
        self._waiting += self._read()

    def asked(self, now: float) -> list[str]:
        """What was asked for since the last call: "graceful", "terminate", "kill" (ways to stop) or ``DUMP`` each."""
        numbers, self._waiting = self._waiting, []
        return [how for number in numbers if (how := self._meaning(number, now)) is not None]

    def _read(self) -> list[int]:
        numbers: list[int] = []
        try:
            while data := self._bell.recv(256):
                numbers += data
        except BlockingIOError:
            pass
        return numbers

    def _meaning(self, number: int, now: float) -> str | None:
        if number != signal.SIGINT:
            return {**STOPS, **TELLS}.get(signal.Signals(number))
        if self._last_interrupt is not None and now - self._last_interrupt <= AGAIN:
            return None
        self._last_interrupt = now
        self._interrupts += 1
        return INTERRUPTS[min(self._interrupts, len(INTERRUPTS)) - 1]


def _ring(number: int, frame: FrameType | None) -> None:
    """The byte in the socket is all."""
