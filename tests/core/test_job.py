"""The accounting: what each ending of a run means for its row."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from ganger.core import job as jobs
from ganger.core.job import ENDINGS, Run
from ganger.core.ladder import Ladder
from ganger.core.messages import Archive, Job, Limits, Release, Retry, Strategy, TypeFacts
from ganger.core.rules import LaneRules, Rules

RULES = Rules((LaneRules("default", ("default",), 1),), timeout=100.0, grace=5.0, memory=1 << 30, shutdown="wait")
JOB, RUN, CLAIM = UUID(int=1), UUID(int=2), UUID(int=3)
AGAIN = Strategy(9, (3.0,))


def run(**of_job: Any) -> Run:
    facts: dict[str, Any] = {"attempts": 1, **of_job}
    return Run(Job(JOB, RUN, CLAIM, "default", "render", b"{}", **facts), 1, Limits(None, 5.0, None, "wait"), 0.0, 0.0)


# ---- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["timeout", "grace", "memory", "shutdown"])
def test_the_job_stands_above_its_type_and_that_above_the_supervisor(name: str) -> None:
    of_job, of_type = ("finish", "interrupt") if name == "shutdown" else (7, 8)
    job = run(**{name: of_job}).job
    declared = TypeFacts(**{name: of_type})  # type: ignore[arg-type]
    assert getattr(jobs.limits(job, declared, RULES), name) == of_job
    assert getattr(jobs.limits(run().job, declared, RULES), name) == of_type
    assert getattr(jobs.limits(run().job, TypeFacts(), RULES), name) == getattr(RULES, name)
    assert getattr(jobs.limits(run().job, None, RULES), name) == getattr(RULES, name)


def test_a_grace_of_nothing_is_a_grace() -> None:
    assert jobs.limits(run(grace=0.0).job, TypeFacts(grace=8.0), RULES).grace == 0.0


# ---- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["exception", "bad-result", "unknown-job-type", "timeout", "memory", "crash"])
def test_a_failure_is_retried_as_the_strategy_says(reason: str) -> None:
    failure = jobs.failed(run(), reason, AGAIN, RULES)
    assert isinstance(failure.outcome, Retry)
    assert (failure.outcome.delay, failure.delay, failure.retries_left) == (3.0, 3.0, 9)
    assert failure.outcome.crash == (1 if reason == "crash" else 0)
    assert (failure.outcome.entry["attempt"], failure.outcome.entry["reason"]) == (1, reason)


@pytest.mark.parametrize("reason", ENDINGS)
def test_a_failure_without_a_strategy_is_archived(reason: str) -> None:
    failure = jobs.failed(run(), reason, None, RULES)
    assert isinstance(failure.outcome, Archive)
    assert (failure.outcome.status, failure.outcome.reason) == ("failure", reason)
    assert failure.delay is None


@pytest.mark.parametrize(("crashes", "retried"), [(0, True), (1, True), (2, False), (5, False)])
def test_at_max_crashes_no_strategy_helps(crashes: int, retried: bool) -> None:
    outcome = jobs.failed(run(crashes=crashes, attempts=crashes + 1), "crash", AGAIN, RULES).outcome
    assert isinstance(outcome, Retry) is retried
    assert outcome.crash == 1


def test_earlier_crashes_do_not_end_a_job_that_fails_otherwise() -> None:
    assert isinstance(jobs.failed(run(crashes=2, attempts=3), "timeout", AGAIN, RULES).outcome, Retry)


@pytest.mark.parametrize("reason", jobs.HOPELESS)
def test_what_is_hopeless_is_not_retried(reason: str) -> None:
    assert isinstance(jobs.failed(run(), reason, AGAIN, RULES).outcome, Archive)


# ---- what is no failure ----------------------------------------------------------------------------------------------


def test_success_and_cancel_are_archived() -> None:
    assert jobs.succeeded(run(), b"42") == Archive(JOB, RUN, "success", None, {}, b"42")
    assert jobs.cancelled(run(), "killed") == Archive(JOB, RUN, "cancelled", "killed", {})


RELEASES = [
    # how it ended, counts as interrupted, counts as lost, needs a fresh child
    (jobs.interrupted, True, False, False),
    (jobs.unstarted, False, False, False),
    (jobs.lost, False, True, False),
    (jobs.blamed_on_another, False, False, True),
]


@pytest.mark.parametrize(("ending", "interrupted", "loss", "fresh"), RELEASES)
def test_the_others_go_back_at_once(ending: Any, interrupted: bool, loss: bool, fresh: bool) -> None:
    release = ending(run())
    assert isinstance(release, Release)
    assert (release.interrupted, release.loss, release.fresh) == (interrupted, loss, fresh)
    assert (release.job_id, release.run_id) == (JOB, RUN)


@pytest.mark.parametrize("ending", [jobs.interrupted, jobs.unstarted, jobs.lost, jobs.blamed_on_another])
def test_a_job_that_needs_a_fresh_child_still_needs_one(ending: Any) -> None:
    assert ending(run(fresh=True)).fresh


# ---- the facts -------------------------------------------------------------------------------------------------------


def test_the_facts_say_how_far_the_ladder_went_and_for_whom() -> None:
    made = run()
    made.facts = {"wall_s": 3.0}
    made.error = {"type": "JobTimedOut"}
    made.reason = "timeout"
    made.ladder = Ladder.full(0.0, 0.0)
    made.ladder.due(0.0)
    facts = jobs.failed(made, "timeout", None, RULES).outcome
    assert isinstance(facts, Archive)
    assert facts.facts == {"wall_s": 3.0, "error": {"type": "JobTimedOut"}, "rung": "kill", "ended_by": "limit"}


@pytest.mark.parametrize(
    ("reason", "whom"),
    [("timeout", "limit"), ("memory", "limit"), ("cancelled", "operator"), ("killed", "operator"),
     ("shutdown", "shutdown"), (None, None), (jobs.FENCED, None)],
)  # fmt: skip
def test_ended_by(reason: str | None, whom: str | None) -> None:
    made = run()
    made.reason = reason
    assert jobs.succeeded(made, None).facts.get("ended_by") == whom


# ---- progress --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "left"),
    [
        ([(110.0, None)], None),
        ([(110.0, 0.0)], None),
        ([(100.0, 0.3)], None),  # no time has passed
        ([(110.0, 0.25)], 30.0 - 5.0),
        ([(110.0, 0.25), (120.0, 0.25)], 60.0 - 5.0),
        ([(120.0, 0.9), (130.0, 0.2), (140.0, 0.6)], 10.0 - 5.0),  # something new was begun
        ([(110.0, 1.0)], 0.0),
    ],
)
def test_what_is_left_is_told_by_the_speed_so_far(told: list[tuple[float, float | None]], left: float | None) -> None:
    made = run()
    made.started = 100.0
    for now, done in told:
        made.progress = jobs.progress(made, done, "", now)
    assert made.progress is not None
    assert made.progress.left(told[-1][0] + 5.0) == pytest.approx(left)
