"""From a strategy to the next run: Proletarian's arithmetic, and losses that do not count against the job."""

from __future__ import annotations

import pytest

from ganger.core.messages import Strategy
from ganger.core.retry import Verdict, decide

NO_STRATEGY = Verdict(None, None)

TABLE = [
    # retries, delays, attempts, losses, delay, retries left
    (0, (), 1, 0, None, 0),
    (1, (), 1, 0, 0.0, 1),
    (1, (), 2, 0, None, 0),
    (2, (1.0, 5.0), 1, 0, 1.0, 2),
    (2, (1.0, 5.0), 2, 0, 5.0, 1),
    (2, (1.0, 5.0), 3, 0, None, 0),
    (4, (1.0, 5.0), 3, 0, 5.0, 2),  # the last delay repeats
    (4, (1.0, 5.0), 4, 0, 5.0, 1),
    (1, (1.0, 5.0, 9.0), 1, 0, 1.0, 1),  # more delays than retries
    (1, (1.0,), 7, 0, None, 0),  # the strategy has become stricter since
    (2, (1.0, 5.0), 3, 2, 1.0, 2),  # two of three attempts were lost with their supervisors
    (2, (1.0, 5.0), 4, 2, 5.0, 1),
    (1, (1.0,), 3, 3, 1.0, 1),  # nothing but losses: the failure at hand is the first
]


@pytest.mark.parametrize(("retries", "delays", "attempts", "losses", "delay", "left"), TABLE)
def test_decide(
    retries: int, delays: tuple[float, ...], attempts: int, losses: int, delay: float | None, left: int
) -> None:
    assert decide(Strategy(retries, delays), attempts, losses) == Verdict(delay, left)


@pytest.mark.parametrize("attempts", [1, 2, 100])
def test_without_a_strategy_there_is_no_retry(attempts: int) -> None:
    assert decide(None, attempts, 0) == NO_STRATEGY


@pytest.mark.parametrize("retries", range(6))
def test_a_job_that_always_fails_runs_once_more_than_it_has_retries(retries: int) -> None:
    runs = 1
    while decide(Strategy(retries, (1.0,)), runs, 0).delay is not None:
        runs += 1
    assert runs == retries + 1
