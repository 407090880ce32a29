"""What a job has started when its handler has ended: by when it is gone, and who is asked about the job instead.

The clock stands still; what the processes really do is seen in ``tests/child/test_leftovers`` and in the stories.
"""

from __future__ import annotations

from typing import Any

import pytest

from ganger.core import messages as m
from tests.core.test_machine import SLOT, Desk


def raised(
    desk: Desk, *, leftovers: bool = True, order: bool = False, strategy: m.Strategy | None = None, asking: bool = False
) -> None:
    """The handler has raised; its strategy is being asked, or was."""
    sent = desk.said(m.SendJob)[-1]
    about = (SLOT, sent.child, sent.nonce, "exception", {"type": "ValueError", "message": "in its cleanup"})
    if asking:
        desk.hear(m.StrategyAsked(*about, 1.0, 1.0, 1, leftovers))
    else:
        desk.hear(m.JobRaised(*about, order, order, strategy, None, 1.0, 1.0, 1, False, 1.0, leftovers))


def fresh_child(desk: Desk) -> m.SendPostmortem:
    """The next child is ready; what it is asked."""
    child = desk.said(m.StartChild)[-1].child
    desk.hear(m.ChildStarted(SLOT, child, 12), m.ChildReady(SLOT, child))
    return desk.said(m.SendPostmortem)[-1]


def answers(desk: Desk, strategy: m.Strategy | None = None) -> None:
    """The fresh child answers, and calls what it is told to."""
    asked = desk.said(m.SendPostmortem)[-1]
    error = {"type": "ganger_child.JobTimedOut", "message": "as a post-mortem tells it"}
    about = (SLOT, asked.child, asked.nonce)
    desk.hear(m.JobRaised(*about, "timeout", error, False, False, strategy, None, 0, 0, 1, False, 0, True))
    assert desk.said(m.SendCallbacks)[-1].nonce == asked.nonce
    desk.hear(m.CallbacksDone(*about))
    desk.wait(0.1)
    desk.child_ends(m.Exit(exit_code=0))


def ordered(timeout: float = 10.0, grace: float = 1.0) -> Desk:
    """A desk whose job was told that its time is over, a moment ago."""
    desk = Desk(timeout=timeout, grace=grace, callback_timeout=30.0)
    desk.running()
    desk.wait(timeout + 0.2)
    assert len(desk.said(m.Interrupt)) == 1
    return desk


def test_a_job_past_its_limit_that_has_left_something_is_asked_about_in_a_fresh_child() -> None:
    """Callbacks may take minutes, and what the job has started would live on beside them."""
    desk = ordered()
    raised(desk, order=True)
    assert not desk.said(m.SendCallbacks)
    assert len(desk.said(m.Retire)) == 1
    desk.wait(1.2)
    assert not desk.said(m.Kill)
    desk.wait(0.2)
    assert len(desk.said(m.Kill)) == 1, "its tree is to be gone when the ladder is over"
    desk.child_ends(m.Exit(term_signal=9, leftovers=2))
    assert fresh_child(desk).death["reason"] == "timeout"
    desk.wait(20.0)
    assert len(desk.said(m.Kill)) == 1, "the limit of the job is not that of its post-mortem"
    answers(desk, m.Strategy(1))
    retry = desk.said(m.Retry)[-1]
    assert retry.entry["reason"] == "timeout"
    assert retry.entry["error"]["message"] == "in its cleanup", "its own child knew best"
    assert desk.events().count("job-timed-out") == 1
    assert "retry-strategy-error" not in desk.events()


def test_one_that_has_left_nothing_is_asked_about_where_it_ran() -> None:
    desk = ordered()
    raised(desk, order=True, leftovers=False)
    assert desk.said(m.SendCallbacks)
    desk.wait(20.0)
    assert not desk.said(m.Kill)
    assert not desk.said(m.SendPostmortem)


def test_one_whose_strategy_is_asked_when_the_limit_is_seen_goes_at_once() -> None:
    """The order came just after the handler had raised: the child asks already."""
    desk = ordered()
    raised(desk, asking=True)
    assert len(desk.said(m.Kill)) == 1
    desk.child_ends(m.Exit(term_signal=9))
    assert fresh_child(desk).death.get("ask", True)
    answers(desk)
    assert desk.said(m.Archive)[-1].reason == "timeout"


@pytest.mark.parametrize("asking", [True, False])
def test_what_a_job_has_left_within_its_limit_lives_no_longer_than_that_beside_strategy_and_callbacks(
    asking: bool,
) -> None:
    desk = Desk(timeout=10.0, grace=1.0, callback_timeout=30.0)
    desk.running()
    desk.wait(5.0)
    raised(desk, asking=asking)
    if not asking:
        child, nonce = desk.said(m.SendCallbacks)[-1].child, desk.said(m.SendCallbacks)[-1].nonce
        desk.hear(m.CallbackBegun(SLOT, child, nonce, "failed_attempt"))
    desk.wait(6.4)
    assert not desk.said(m.Kill)
    desk.wait(0.2)
    assert len(desk.said(m.Kill)) == 1
    assert desk.events().count("callback-error") == (not asking)
    desk.child_ends(m.Exit(term_signal=9, leftovers=1))
    death = fresh_child(desk).death
    assert (death["reason"], death["error"]["message"]) == ("exception", "in its cleanup")
    assert death.get("ask", True) is asking, "the strategy is asked anew, and callbacks have their own turn"
    answers(desk)
    assert desk.said(m.SendCallbacks)[-1].names == (("failed_attempt", "failed_job") if asking else ("failed_job",))
    archive = desk.said(m.Archive)[-1]
    assert (archive.reason, archive.facts["error"]["message"]) == ("exception", "in its cleanup")


def test_without_a_limit_callbacks_have_their_time_beside_what_is_left() -> None:
    desk = Desk(callback_timeout=30.0)
    desk.running()
    raised(desk)
    desk.wait(29.0)
    assert not desk.said(m.Kill)


@pytest.mark.parametrize(("reason", "seconds"), [("cancelled", 1.5), ("killed", 0.0)])
def test_a_cancel_order_ends_what_is_left_of_a_job_whose_callbacks_are_being_called(
    reason: str, seconds: float
) -> None:
    """Storing the outcome cancels the job; what it has started goes by the order's ladder."""
    desk = Desk(grace=1.0, callback_timeout=30.0)
    run_id = desk.running()
    raised(desk)
    assert desk.said(m.SendCallbacks)
    row = m.HeldRow(desk.new_id(), run_id, None, reason)
    desk.hear(m.Looked((row,), ()))
    desk.wait(max(0.0, seconds - 0.1))
    assert len(desk.said(m.Kill)) == (seconds == 0.0)
    desk.hear(m.Looked((row,), ()))
    desk.wait(0.2)
    assert len(desk.said(m.Kill)) == 1


def test_a_child_that_leaves_is_killed_when_somebody_is_in_a_hurry() -> None:
    """It may flush for some seconds, and so long what its job has started would live."""
    desk = Desk()
    desk.running()
    desk.returned()
    assert desk.said(m.Retire)
    desk.hear(m.Stop())
    assert not desk.said(m.Kill)
    desk.hear(m.Stop("kill"))
    assert len(desk.said(m.Kill)) == 1


def test_a_child_flushes_no_longer_than_its_job_may_last() -> None:
    desk = Desk(timeout=10.0, grace=0.0)
    desk.running()
    desk.wait(9.0)
    desk.returned()
    desk.wait(0.9)
    assert not desk.said(m.Kill)
    desk.wait(0.2)
    assert len(desk.said(m.Kill)) == 1


@pytest.mark.parametrize(
    ("limits", "ends", "kind", "message"),
    [
        (
            {},
            m.Exit(term_signal=9),
            "JobCrashed",
            "the job's process ended before it had reported an outcome (signal 9)",
        ),
        (
            {},
            m.Exit(exit_code=3),
            "JobCrashed",
            "the job's process ended before it had reported an outcome (exit code 3)",
        ),
        (
            {"timeout": 2.0, "grace": 0.0},
            m.Exit(term_signal=9),
            "JobTimedOut",
            "the job ran longer than its timeout of 2 s",
        ),
    ],
)
def test_a_job_that_no_child_can_be_asked_about_is_archived_with_a_sentence(
    limits: dict[str, Any], ends: m.Exit, kind: str, message: str
) -> None:
    desk = Desk(boot_timeout=5.0, callback_timeout=5.0, **limits)
    desk.running()
    if limits:
        desk.wait(2.1)
    desk.child_ends(ends)
    child = desk.said(m.StartChild)[-1].child
    desk.hear(m.ChildBootFailed(SLOT, child, "no process could be made", forked=False))
    desk.wait(60.0)
    error = desk.said(m.Archive)[-1].facts["error"]
    assert error["type"] == f"ganger_child.{kind}"
    assert error["message"] == f"{message}; its retry strategy was not asked: no child could be started for it"
