"""What signals to the supervisor mean. They are raised in this process, the clock is an argument."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from ganger.signals import AGAIN, DUMP, LESS, MORE, Signals
from tests.processes import wait_until
from tests.terminal import Terminal

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
SLOTS = (signal.SIGTTIN, signal.SIGTTOU)


@pytest.fixture
def signals() -> Iterator[Signals]:
    with Signals() as installed:
        yield installed


def asked(signals: Signals, *numbers: signal.Signals, now: float = 0.0) -> list[str]:
    for number in numbers:
        signal.raise_signal(number)
    signals.hear()
    return signals.asked(now)


@pytest.mark.parametrize(
    ("number", "how"),
    [(signal.SIGTERM, "graceful"), (signal.SIGHUP, "graceful"), (signal.SIGINT, "graceful"), (signal.SIGQUIT, "kill")],
)
def test_the_first_signal(signals: Signals, number: signal.Signals, how: str) -> None:
    assert asked(signals, number) == [how]
    assert asked(signals) == []


def test_ctrl_c_again_and_again_gets_harder(signals: Signals) -> None:
    said = [asked(signals, signal.SIGINT, now=10.0 * press) for press in range(5)]
    assert said == [["graceful"], ["terminate"], ["kill"], ["kill"], ["kill"]]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_others_do_not(signals: Signals, number: signal.Signals) -> None:
    assert [asked(signals, number, now=10.0 * times) for times in range(3)] == [["graceful"]] * 3


def test_two_ctrl_c_within_half_a_second_are_one(signals: Signals) -> None:
    assert asked(signals, signal.SIGINT, signal.SIGINT, now=10.0) == ["graceful"]
    assert asked(signals, signal.SIGINT, now=10.0 + AGAIN) == []
    assert asked(signals, signal.SIGINT, now=10.01 + AGAIN) == ["terminate"]
    assert asked(signals, signal.SIGINT, now=10.02 + AGAIN) == []


def test_sigterm_does_not_make_the_first_ctrl_c_the_second(signals: Signals) -> None:
    assert asked(signals, signal.SIGTERM, signal.SIGINT) == ["graceful", "graceful"]


def test_a_wait_ends_with_a_signal_and_the_signal_still_counts(signals: Signals) -> None:
    assert not signals.wait(0.01)
    signal.raise_signal(signal.SIGTERM)
    began = time.monotonic()
    assert signals.wait(60)
    assert time.monotonic() - began < 30
    assert signals.wait(0), "it is asked for until somebody has taken it"
    signals.hear()
    assert signals.asked(0.0) == ["graceful"]
    assert not signals.wait(0.01)


def test_many_signals_block_nobody(signals: Signals) -> None:
    for _ in range(100_000):
        signal.raise_signal(signal.SIGTERM)
    signals.hear()
    said = signals.asked(0.0)
    assert said
    assert set(said) == {"graceful"}


def test_what_was_there_before_is_there_again() -> None:
    before = [signal.getsignal(number) for number in (*HANDLED, *SLOTS)]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    threads = threading.active_count()
    with Signals():
        assert all(signal.getsignal(number) not in before for number in (*HANDLED, *SLOTS))
    assert [signal.getsignal(number) for number in (*HANDLED, *SLOTS)] == before
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask
    assert threading.active_count() == threads


def test_signals_that_the_starter_blocked_come_through() -> None:
    """A mask is inherited through exec: some service managers and threads start programs with everything blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    try:
        with Signals() as signals:
            assert asked(signals, signal.SIGTERM) == ["graceful"]
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before | set(HANDLED)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.fixture
def ignored_hangup() -> Iterator[None]:
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, former)


def test_a_hangup_that_was_ignored_stays_ignored(ignored_hangup: None) -> None:
    with Signals() as signals:
        assert asked(signals, signal.SIGHUP) == []
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


@pytest.mark.parametrize(("number", "how"), [(signal.SIGTTIN, MORE), (signal.SIGTTOU, LESS)])
def test_a_slot_more_and_a_slot_less(signals: Signals, number: signal.Signals, how: str) -> None:
    os.kill(os.getpid(), number)
    assert wait_until(lambda: asked(signals), 10, "nobody heard it") == [how]
    assert not signals.wait(0)


@pytest.fixture
def ignored_terminal() -> Iterator[None]:
    """As by a starter that wanted to be safe from its terminal."""
    former = [signal.signal(number, signal.SIG_IGN) for number in SLOTS]
    yield
    for number, handler in zip(SLOTS, former, strict=True):
        signal.signal(number, handler)


def test_signals_for_slots_that_were_ignored_count_all_the_same(ignored_terminal: None) -> None:
    """From a terminal none can come, so whoever sends one means it."""
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGTTOU)
        wait_until(lambda: LESS in asked(signals), 10, "nobody heard it")
    assert signal.getsignal(signal.SIGTTOU) == signal.SIG_IGN


IN_THE_BACKGROUND = """
import os, threading, time
from ganger.signals import Signals
told, telling = os.pipe()
terminal = os.open("/dev/tty", os.O_RDWR)
if os.fork() == 0:
    os.setpgid(0, 0)  # not the terminal's foreground group
    with Signals() as signals:
        thread = threading.Thread(target=os.write, args=(terminal, b"a line of a thread"))
        thread.start()
        thread.join()
        os.write(terminal, b"and one more")
        try:
            read = os.read(terminal, 1)
        except OSError as error:
            read = type(error).__name__, error.errno
        time.sleep(0.2)
        signals.hear()
        os.write(telling, repr((read, signals.asked(0.0))).encode())
    os._exit(0)
os.wait()
os.write(terminal, b"told: " + os.read(told, 1000))
"""


def test_a_terminal_takes_no_slots_from_who_uses_it_in_the_background() -> None:
    """With ``stty tostop`` the kernel sends SIGTTOU to a background process that writes, again and again, and SIGTTIN
    to one that reads: the first writes, the second fails, and nobody has asked for anything."""
    with Terminal("-c", IN_THE_BACKGROUND, environ={}, stops_writers=True) as terminal:
        told = terminal.expect("told: (.*)", 20)
        terminal.leave()
    assert told[1] == f"(('OSError', {errno.EIO}), [])"
    assert "a line of a thread" in terminal.shown
    assert "and one more" in terminal.shown


def test_who_asks_for_a_dump_does_not_ask_to_stop(signals: Signals) -> None:
    signal.raise_signal(signal.SIGUSR1)
    assert not signals.wait(0)
    assert signals.asked(0.0) == [DUMP]
