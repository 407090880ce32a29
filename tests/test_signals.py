"""What signals to the supervisor mean. They are raised in this process, the clock is an argument."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from ganger.signals import AGAIN, DUMP, Signals

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


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
    before = [signal.getsignal(number) for number in HANDLED]
    with Signals():
        assert all(signal.getsignal(number) not in before for number in HANDLED)
    assert [signal.getsignal(number) for number in HANDLED] == before


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


def test_who_asks_for_a_dump_does_not_ask_to_stop(signals: Signals) -> None:
    signal.raise_signal(signal.SIGUSR1)
    assert not signals.wait(0)
    assert signals.asked(0.0) == [DUMP]
