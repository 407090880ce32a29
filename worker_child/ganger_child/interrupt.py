"""The interrupt: an order to stop, raised as an exception in the handler, once, and only in the run it is meant for.

The warden writes an order into the page (which run, which order, a serial number), then sends ``SIGNAL`` to the child
only; without the signal an order is a wish that a handler may look for (``job.interrupted``, ``job.check()``). The
signal's handler compares the run of the order with the run it is in, so an order that comes late hits nobody. It
raises once for each serial: an exception that is raised again and again destroys the ``finally`` blocks it meets. It
is raised anew without a new order only if Python dropped it (in a ``__del__`` or a weakref callback), which
``sys.unraisablehook`` tells.

SIGTERM comes from the warden half a second before the kill, or from anybody who signals every process by name. After
an interrupt in the run it raises the exception once more; else, and for SIGINT, it does nothing. Those are Python
handlers, not SIG_IGN, which the programs that a job starts would inherit.

This file may not report anything: what an interrupted run means is decided in ``child`` and in the parent.
"""

from __future__ import annotations

import signal
import sys
from _thread import start_new_thread
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from os import register_at_fork
from threading import get_ident, main_thread
from time import sleep
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ganger_child.errors import JobInterrupted, JobTimedOut, interruption
from ganger_child.page import NOBODY, ORDER, ORDER_RUN, ORDER_SERIAL, ORDERS, RUN, Page

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

SIGNAL: Final = signal.SIGRTMIN + 7
_REPEAT_AFTER: Final = 0.01  # seconds from a lost interrupt to the next: time to leave the __del__ that dropped it

_SIGNALS: Final = tuple(sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}))

_HELD: Final = (signal.SIGTERM, signal.SIGINT)

_signal = signal.signal
_sigmask = signal.pthread_sigmask
_getsignal = sys.modules["_signal"].getsignal  # the one in ``signal`` makes enumerations: 300 microseconds for all
_setitimer = signal.setitimer
_pthread_kill = signal.pthread_kill


class Ended(NamedTuple):
    """How a guarded call ended: it returned a value, or raised."""

    value: Any
    exception: BaseException | None


class Armed:
    """Something that may raise in the main thread from a signal handler, but only within the call that it guards."""

    def __init__(self) -> None:
        self.armed = False

    def run(self, call: Callable[[], Any]) -> Ended:
        """Call while armed; afterwards it is disarmed, whatever happened."""
        value: Any = None
        exception: BaseException | None = None
        returned = False
        try:
            try:
                self.armed = True
                self.deliver()  # what came before we were armed
                value = call()
                returned = True
            finally:
                self.armed = False
        except BaseException as error:
            self.armed = False  # it can still be raised on the way into the finally, and ends here
            exception = None if returned else error
        return Ended(value, exception)

    def deliver(self) -> None:
        """Raise what is due, if it may be raised now."""


class Alarm(Armed):
    """A time limit that the child sets itself, on a strategy: its parent does not know that it is being asked.

    It ends what waits and what loops in Python. What loops in C is ended by the job's own limit.
    """

    def __init__(self, limit: float, what: str) -> None:
        super().__init__()
        self._limit = limit
        self._what = what

    def run(self, call: Callable[[], Any]) -> Ended:
        former = _signal(signal.SIGALRM, self._ring)
        _setitimer(signal.ITIMER_REAL, self._limit)
        try:
            return super().run(call)
        finally:
            _setitimer(signal.ITIMER_REAL, 0.0)
            _signal(signal.SIGALRM, signal.SIG_DFL if former is None else former)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        if self.armed:
            raise JobTimedOut(f"{self._what} took longer than {self._limit:g} s")


class Interrupt(Armed):
    """The orders for one run. Armed only while the handler has control."""

    def __init__(self, page: Page, nonce: int, limits: Mapping[str, Any]) -> None:
        super().__init__()
        self.limits = limits
        self.asked = False  # the signal came, for this run
        self.raised: JobInterrupted | None = None
        self.cancel: Callable[[], None] | None = None  # set while a coroutine runs: how to cancel it
        self._page = page
        self._nonce = nonce
        self._order: str | None = None
        self._serial = 0  # of the order that was raised last; serials begin with 1
        self._lost = False
        self._sheltered = 0
        self._held = 0

    def begin(self) -> None:
        """Enter the run: from here on orders for it are heard, and a kill for it finds it."""
        self._page[RUN] = self._nonce

    def end(self) -> None:
        """Leave the run: what is ordered from now on is too late."""
        self._look()
        self._page[RUN] = NOBODY
        self._nonce = NOBODY

    @property
    def order(self) -> str | None:
        """The order given for this run, if any; what ends the job outright stands above a shutdown."""
        self._look()
        return self._order

    def _look(self) -> None:
        page = self._page
        if self._nonce != NOBODY and page[ORDER_RUN] == self._nonce and self._order in (None, "shutdown"):
            code = page[ORDER]
            if 0 < code < len(ORDERS):
                self._order = ORDERS[code]

    def signalled(self) -> None:
        """The signal came. An order that is only written down, without one, is for a handler that looks."""
        self.asked = self.asked or self.order is not None
        self.deliver()

    def terminated(self) -> None:
        """SIGTERM came: the last word before the kill, if an interrupt came before it; else somebody's mistake."""
        self._deliver(again=True)

    def deliver(self) -> None:
        """Raise the order that was signalled, if it was not raised yet, and it may be now."""
        self._deliver()

    def _deliver(self, *, again: bool = False) -> None:
        if self._held or not (self.armed and self.asked):
            return
        order = self.order
        serial = self._page[ORDER_SERIAL]
        if order is None or (order == "shutdown" and self._sheltered):
            return
        if serial == self._serial and not self._lost and not again:
            return
        first = self.raised is None
        self._serial, self._lost = serial, False
        self.raised = interruption(order, self.limits)
        if first and self.cancel is not None:
            self.cancel()  # a coroutine is cancelled first, and interrupted hard only the second time
        else:
            raise self.raised

    @property
    def wanted(self) -> bool:
        """Whether the handler is asked to stop. False once it has ended: callbacks have nothing to stop."""
        return self.armed and self.order is not None

    def check(self) -> None:
        """Raise the standing order here and now; done in the main thread, the signal will not raise it again."""
        order = self.order
        if order is None or not self.armed:
            return
        exception = interruption(order, self.limits)
        if _in_main_thread():
            self._serial, self._lost, self.raised = self._page[ORDER_SERIAL], False, exception
        raise exception

    def lost(self) -> None:
        """Python dropped the exception: raise it again, a moment later and from outside the code that dropped it."""
        self._lost = True
        start_new_thread(_signal_main_thread, (_REPEAT_AFTER,))

    @contextmanager
    def held(self) -> Iterator[None]:
        """A short section of our own, in the midst of the handler, that an exception would tear apart: what is ordered
        meanwhile is raised at its end. To be entered by one thread at a time."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            if _in_main_thread():
                self.deliver()
            elif self.asked:
                _signal_main_thread()

    def __enter__(self) -> None:
        """Begin a section that a shutdown does not interrupt. (No call in here: an interrupt could come between.)"""
        self._sheltered += 1

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._sheltered -= 1
        if _in_main_thread():
            self.deliver()
        elif self.asked:
            _signal_main_thread()


class Signals:
    """The child's signal handlers, and which run they serve at present."""

    def __init__(self) -> None:
        self.current: Interrupt | None = None
        self.signalled = False  # a child that was signalled at all is never used again
        self._inherited_hook: Callable[[UnraisableHookArgs], Any] = sys.unraisablehook
        self._handlers: list[Any] = []
        self._masks: dict[int, Any] = {}  # of threads that are forking, by ident

    def install(self) -> None:
        """Install the handlers: before any user code of the child, which may put others in their place."""
        _signal(signal.SIGTERM, self._on_term)
        _signal(signal.SIGINT, self._on_nothing)
        register_at_fork(before=self._hold, after_in_parent=self._go_on, after_in_child=self._let_go)
        self._inherited_hook = sys.unraisablehook
        sys.unraisablehook = self._on_unraisable

    def remember(self) -> None:
        """Begin to listen for orders, and take the handlers that there are now for those that a job finds."""
        _signal(SIGNAL, self._on_order)
        self._handlers = [_getsignal(number) for number in _SIGNALS]

    def _hold(self) -> None:
        """Before user code forks: a SIGTERM for a copy that still has our handlers would be lost in it."""
        self._masks[get_ident()] = _sigmask(signal.SIG_BLOCK, _HELD)

    def _go_on(self) -> None:
        mask = self._masks.pop(get_ident(), None)
        if mask is not None:
            _sigmask(signal.SIG_SETMASK, mask)

    def _let_go(self) -> None:
        """In the copy signals mean what they mean anywhere: ``terminate()`` ends it."""
        for number, ours, usual in (
            (signal.SIGTERM, self._on_term, signal.SIG_DFL),
            (signal.SIGINT, self._on_nothing, signal.default_int_handler),
            (SIGNAL, self._on_order, signal.SIG_DFL),
        ):
            if _getsignal(number) == ours:
                _signal(number, usual)
        self._go_on()

    def restore(self) -> bool:
        """Put back the handlers that a job replaced, which would run in our own code; returns whether it did."""
        now = [_getsignal(number) for number in _SIGNALS]
        if now == self._handlers:
            return False
        for number, before, after in zip(_SIGNALS, self._handlers, now, strict=True):
            if before is not after and before is not None:
                _signal(number, before)
        return True

    def _on_order(self, number: int, frame: FrameType | None) -> None:
        self.signalled = True
        if self.current is not None:
            self.current.signalled()

    def _on_term(self, number: int, frame: FrameType | None) -> None:
        self.signalled = True
        if self.current is not None:
            self.current.terminated()

    def _on_nothing(self, number: int, frame: FrameType | None) -> None:
        self.signalled = True

    def _on_unraisable(self, unraisable: UnraisableHookArgs) -> None:
        current = self.current
        if current is not None and current.raised is not None and unraisable.exc_value is current.raised:
            current.lost()
        else:
            self._inherited_hook(unraisable)


def _in_main_thread() -> bool:
    return get_ident() == main_thread().ident


def _signal_main_thread(delay: float = 0.0) -> None:
    sleep(delay)
    ident = main_thread().ident
    if ident is not None:
        _pthread_kill(ident, SIGNAL)
