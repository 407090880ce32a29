"""The kill ladder: which step is due when."""

from __future__ import annotations

import pytest

from ganger.core.ladder import TERM_TO_KILL, Ladder, Step

INT, TERM, KILL = Step.INTERRUPT, Step.TERMINATE, Step.KILL


def climbed(ladder: Ladder, *, until: float = 1000.0) -> list[tuple[float, Step]]:
    """Take every step at its own time."""
    taken = []
    while ladder.deadline is not None and ladder.deadline <= until:
        now = ladder.deadline
        taken += [(now, step) for step in ladder.due(now)]
    return taken


def test_all_steps_with_grace() -> None:
    steps = climbed(Ladder.full(100.0, 4.0))
    assert steps == [(100.0, INT), (102.0, INT), (104.0, TERM), (104.0 + TERM_TO_KILL, KILL)]


@pytest.mark.parametrize("grace", [0.0, -1.0])
def test_without_grace_there_is_only_the_kill(grace: float) -> None:
    assert climbed(Ladder.full(100.0, grace)) == [(100.0, KILL)]


@pytest.mark.parametrize(("grace", "again"), [(4.0, 2.0), (0.0, 0.5), (0.2, 0.5)])
def test_asking_never_kills(grace: float, again: float) -> None:
    ladder = Ladder.asking(100.0, grace)
    assert ladder.only_asks
    assert climbed(ladder) == [(100.0, INT), (100.0 + again, INT)]


def test_nothing_is_due_before_its_time() -> None:
    ladder = Ladder.full(100.0, 4.0)
    assert ladder.due(99.9) == []
    assert ladder.highest is None
    assert ladder.due(100.0) == [INT]
    assert ladder.due(100.0) == []
    assert ladder.highest is INT


@pytest.mark.parametrize(("pause", "step"), [(2.5, INT), (4.2, TERM), (60.0, KILL)])
def test_after_a_pause_only_the_highest_step_is_taken(pause: float, step: Step) -> None:
    ladder = Ladder.full(100.0, 4.0)
    assert ladder.due(100.0 + pause) == [step]
    assert all(other is not INT or step is INT for _, other in climbed(ladder))


def test_hardening_brings_the_kill_forward() -> None:
    ladder = Ladder.full(100.0, 60.0)
    ladder.due(100.0)
    ladder.harden(110.0, 0.0)
    assert climbed(ladder) == [(110.0, KILL)]


def test_hardening_never_puts_the_kill_off() -> None:
    ladder = Ladder.full(100.0, 4.0)
    ladder.due(100.0)
    before = list(ladder.steps)
    ladder.harden(101.0, 60.0)
    ladder.harden(101.0, 4.0)
    assert ladder.steps == before


def test_hardening_gives_a_ladder_that_only_asks_an_end() -> None:
    ladder = Ladder.asking(100.0, 4.0)
    climbed(ladder)
    ladder.harden(110.0, 4.0)
    assert climbed(ladder)[-1] == (114.0 + TERM_TO_KILL, KILL)


def test_nothing_comes_after_the_kill() -> None:
    ladder = Ladder.full(100.0, 0.0)
    assert ladder.due(100.0) == [KILL]
    ladder.harden(101.0, 0.0)
    assert ladder.deadline is None
    assert ladder.due(1000.0) == []
