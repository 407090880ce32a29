"""When a lane claims: the poll, the quick steps after saying that it is idle, and taking that back."""

from __future__ import annotations

import itertools

import pytest

from ganger.core.wakeup import BUSY_FOR, FLAG_HOLDS, QUICK, Wakeup

POLL = 5.0


def wakeup(draw: float = 0.5) -> Wakeup:
    """At rest since 100.0; ``draw`` 0.5 means no jitter."""
    made = Wakeup(POLL, lambda: draw)
    made.asked(100.0)
    return made


def idle(made: Wakeup, now: float, *, horizon: int | None = None, next_due: float | None = None) -> bool:
    """Take in an answer that brought less than was asked for."""
    return made.answered(now, full=False, next_due=next_due, horizon=horizon)


@pytest.mark.parametrize(("draw", "pause"), [(0.0, 4.5), (0.5, 5.0), (0.999, 5.499)])
def test_polls_are_spread(draw: float, pause: float) -> None:
    made = wakeup(draw)
    idle(made, 100.0)
    assert made.at == pytest.approx(100.0 + pause)


def test_after_a_full_claim_there_may_be_more() -> None:
    made = wakeup()
    assert not made.answered(100.0, full=True, next_due=None, horizon=None)
    assert made.at == 100.0


@pytest.mark.parametrize(("next_due", "at"), [(0.3, 100.3), (60.0, 105.0), (-2.0, 100.0)])
def test_it_wakes_for_the_next_job_that_becomes_due(next_due: float, at: float) -> None:
    """Correction 26."""
    made = wakeup()
    idle(made, 100.0, next_due=next_due)
    assert made.at == pytest.approx(at)


def test_without_an_answer_it_asks_again_after_a_poll() -> None:
    assert wakeup().at == 105.0


def test_hurry_is_now_and_never_later() -> None:
    made = wakeup()
    made.hurry(101.0)
    assert made.at == 101.0
    made.hurry(102.0)
    assert made.at == 101.0


# ---- the idle flag ---------------------------------------------------------------------------------------------------


def test_what_wakes_it_while_a_claim_is_under_way_is_not_slept_over() -> None:
    """The claim may have looked before the job was there, whatever it answers."""
    made = wakeup()
    made.hurry(100.01)
    assert not idle(made, 100.02)
    assert made.at == 100.02
    made.asked(100.02)
    idle(made, 100.03)
    assert made.at > 104.0, "once is enough"


def test_an_idle_lane_says_so_and_says_it_again_at_half_time() -> None:
    made = wakeup()
    assert idle(made, 100.0)
    made.saying(100.0)
    assert not idle(made, 101.0)
    assert not idle(made, 100.0 + FLAG_HOLDS / 2)
    assert idle(made, 100.0 + FLAG_HOLDS / 2 + 0.1)


def test_it_claims_in_quick_steps_until_every_older_transaction_has_ended() -> None:
    """Correction 25."""
    made = wakeup()
    made.saying(100.0)
    made.said(100.0, horizon=740)
    now, steps = 100.0, []
    for _ in range(5):
        now = made.at
        idle(made, now, horizon=737)  # a transaction that may have seen us busy is still open
        steps.append(made.at - now)
    assert steps == pytest.approx(list(QUICK[:5]))
    idle(made, now, horizon=740)
    assert made.at == pytest.approx(now + POLL)


def test_an_answer_that_does_not_tell_its_horizon_ends_nothing() -> None:
    made = wakeup()
    made.saying(100.0)
    made.said(100.0, horizon=740)
    idle(made, 100.1, horizon=None)
    assert made.at < 100.1 + POLL


def test_quick_steps_are_never_slower_than_the_poll() -> None:
    made = Wakeup(0.05, lambda: 0.5)
    made.saying(100.0)
    made.said(100.0, horizon=740)
    for _ in range(10):
        idle(made, 101.0, horizon=1)
        assert made.at <= 101.0 + 0.05 + 1e-9


def test_the_flag_is_taken_back_after_a_second_without_a_free_slot() -> None:
    """Correction 25."""
    made = wakeup()
    made.saying(100.0)
    assert not made.busy(101.0, free=False)
    assert made.deadline(free=False) == 101.0 + BUSY_FOR
    assert not made.busy(101.0 + BUSY_FOR - 0.01, free=False)
    assert made.busy(101.0 + BUSY_FOR, free=False)
    assert not made.busy(101.0 + BUSY_FOR, free=False), "once"
    assert made.deadline(free=False) is None


def test_a_slot_that_is_free_now_and_then_keeps_the_flag() -> None:
    made = wakeup()
    made.saying(100.0)
    for tenth in range(100):
        assert not made.busy(100.0 + tenth / 10, free=tenth % 5 == 0)


def test_a_lane_that_never_said_it_was_idle_takes_nothing_back() -> None:
    made = wakeup()
    assert not any(made.busy(100.0 + second, free=False) for second in range(5))
    assert made.deadline(free=False) is None


def test_with_a_free_slot_the_deadline_is_the_next_claim() -> None:
    made = wakeup()
    assert made.deadline(free=True) == made.at == 105.0


def test_after_an_outage_it_says_that_it_is_idle_anew() -> None:
    made = wakeup()
    made.saying(100.0)
    made.forget()
    assert idle(made, 100.1)


def test_steps_grow() -> None:
    assert all(a < b for a, b in itertools.pairwise(QUICK))
