"""The core in thousands of random schedules: several supervisors, each with its own clock and its own bad luck.

A failing seed repeats with ``World(seed).run()``. That the simulation would notice a broken core, ``scripts/mutants``
shows.
"""

from __future__ import annotations

import os

import pytest

from tests.core.simulation import Violation, World

SCHEDULES = int(os.environ.get("SCHEDULES", "2000"))
PARTS = 20


@pytest.mark.parametrize("part", range(PARTS))
def test_promises_hold_in_random_schedules(part: int) -> None:
    """Corrections 18, 19 and 20: whatever is delayed, lost, frozen, suspended or killed, no job is lost, no two runs of
    one overlap (but on a host that nobody can schedule), and attempts, crashes and losses add up."""
    for seed in range(part, SCHEDULES, PARTS):
        play(seed)


def play(seed: int) -> World:
    try:
        return World(seed).run()
    except Violation as violation:
        pytest.fail(f"seed {seed}: {violation}")
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error


def test_schedules_meet_what_they_are_about() -> None:
    """A simulation in which nothing happens would find nothing."""
    told: set[str] = set()
    swept = killed = ended = 0
    for seed in range(200):
        world = play(seed)
        told |= world.told()
        swept += sum(run.loss for run in world.observer.runs.values())
        killed += sum(supervisor.killed for supervisor in world.supervisors)
        ended += world.to_the_end
    assert told >= {
        "job-finished", "handle-job-exception", "retrying", "not-retrying", "job-timed-out", "job-crashed",
        "job-interrupted", "job-lost", "job-cancelled", "job-released", "lease-lost", "database-lost",
        "database-back", "outcome-stored", "outcome-refused", "retry-strategy-error", "callback-error",
        "failed-job-error", "ladder-step", "boot-failed", "already-shut-down", "completed-shutdown", "slots-changed",
        "slots-not-changed",
    }  # fmt: skip
    assert swept > 5
    assert killed > 20
    assert 50 < ended < 150


def test_a_schedule_is_the_same_each_time() -> None:
    """A seed would be worth nothing otherwise."""
    for seed in range(5):
        one, two = play(seed), play(seed)
        assert one.now == two.now
        assert [supervisor.told for supervisor in one.supervisors] == [
            supervisor.told for supervisor in two.supervisors
        ]
