"""What a shutdown policy means for one run: when it is interrupted, if at all."""

from __future__ import annotations

from uuid import UUID

import pytest

from ganger.core.job import Run
from ganger.core.messages import Job, Limits, Verdict
from ganger.core.shutdown import ASKED, NOISE, TITLES, Phase, interrupt_at

ASKED_AT = 1000.0
AFTER = 60.0
NOBODY = UUID(int=0)


def run(policy: str, verdict: tuple[bool, float] | None, *, undecided: bool = False) -> Run:
    """A run with this policy that looks so from outside: (computing, since)."""
    job = Job(NOBODY, NOBODY, NOBODY, "default", "job", b"{}", 1)
    made = Run(job, 1, Limits(None, 5.0, None, policy), 0.0, 0.0, undecided=undecided)
    if verdict is not None:
        made.verdict = Verdict("default/1", 1, 1, *verdict)
    return made


TABLE = [
    # policy, (computing, since), no verdict before the shutdown, interrupted at
    ("wait", None, False, None),
    ("wait", (True, 900.0), False, None),
    ("wait", (False, 900.0), False, ASKED_AT),  # blocked before
    ("wait", (False, ASKED_AT), False, ASKED_AT),
    ("wait", (False, ASKED_AT + NOISE), False, ASKED_AT),  # one sampling window is no difference
    ("wait", (False, ASKED_AT + 10.0), False, ASKED_AT + 10.0 + AFTER),  # it computed then, and is blocked now
    ("wait", None, True, None),  # it began just before the signal, and is being looked at
    ("wait", (False, ASKED_AT + 1.0), True, ASKED_AT),  # the first look finds it blocked
    ("wait", (True, ASKED_AT + 1.0), True, None),
    ("interrupt", None, False, ASKED_AT),
    ("interrupt", (True, 900.0), False, ASKED_AT),
    ("interrupt", (False, 900.0), False, ASKED_AT),
    ("finish", None, False, None),
    ("finish", (False, 900.0), False, None),
    ("finish", (True, 900.0), False, None),
]


@pytest.mark.parametrize(("policy", "verdict", "undecided", "at"), TABLE)
def test_interrupt_at(policy: str, verdict: tuple[bool, float] | None, undecided: bool, at: float | None) -> None:
    assert interrupt_at(run(policy, verdict, undecided=undecided), ASKED_AT, AFTER) == at


def test_phases_only_get_harder() -> None:
    order = [Phase.RUNNING, ASKED["graceful"], ASKED["terminate"], ASKED["kill"]]
    assert order == sorted(order)
    assert len(set(order)) == len(order)
    assert set(TITLES) == set(Phase)
