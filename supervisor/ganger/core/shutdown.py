"""Stopping: the phases, which only get harder, and what a policy means for one run.

A blocked job (it sleeps, it waits for a socket) can be interrupted at once and loses little; a computing one would
lose its work, so ``wait`` awaits it. Which of the two a job is, its warden sees from outside. A virtual machine can
only wait for a computing thread; here ``terminate`` is a choice.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from ganger.core.job import Run

NOISE: Final = 0.5  # seconds: one sampling window of the wardens; a stretch that began within it began before


class Phase(IntEnum):
    """Of the supervisor. It only ever grows."""

    RUNNING = 0
    DRAINING = 1  # each run by its own policy
    TERMINATING = 2  # the ladder for every run
    KILLING = 3  # the ladder without grace


TITLES: Final = {
    Phase.RUNNING: "running",
    Phase.DRAINING: "draining",
    Phase.TERMINATING: "terminating",
    Phase.KILLING: "terminating",
}

ASKED: Final = {"graceful": Phase.DRAINING, "terminate": Phase.TERMINATING, "kill": Phase.KILLING}

TOLD: Final = ("wait", "interrupt")  # policies under which job.interrupted becomes true at once


def interrupt_at(run: Run, asked: float, interrupt_after: float) -> float | None:
    """When (mono) to interrupt a run that is awaited since ``asked``; None: not as far as is known now.

    Under ``wait``, a run that was already blocked is interrupted at once, and so is one whose first verdict comes
    only now and is "blocked". A run that was computing is interrupted once it has been blocked without a break for
    ``interrupt_after`` seconds.
    """
    policy = run.limits.shutdown
    if policy == "interrupt":
        return asked
    if policy != "wait" or run.verdict is None or run.verdict.computing:
        return None
    if run.undecided or run.verdict.since <= asked + NOISE:
        return asked
    return run.verdict.since + interrupt_after
