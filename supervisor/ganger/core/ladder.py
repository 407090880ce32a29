"""The kill ladder: interrupt, SIGTERM, SIGKILL to the whole tree; for a limit, a cancel order and a shutdown alike.

A ladder only says which step is due at which time. Why it was begun is recorded in the run before the first step and
decides the outcome, whatever the job then does about it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

TERM_TO_KILL = 0.5  # seconds between SIGTERM and the kill


class Step(Enum):
    INTERRUPT = "interrupt"
    TERMINATE = "terminate"
    KILL = "kill"


def full(grace: float) -> tuple[tuple[float, Step], ...]:
    """All steps. The interrupt is repeated at half the grace, in case it was swallowed; without grace there is only
    the kill."""
    if grace <= 0:
        return ((0.0, Step.KILL),)
    return (
        (0.0, Step.INTERRUPT),
        (grace / 2, Step.INTERRUPT),
        (grace, Step.TERMINATE),
        (grace + TERM_TO_KILL, Step.KILL),
    )


def ask(grace: float) -> tuple[tuple[float, Step], ...]:
    """Only the interrupt, and once more: who ignores it is awaited (shutdown policies wait and interrupt)."""
    return ((0.0, Step.INTERRUPT), (max(grace, 1.0) / 2, Step.INTERRUPT))


@dataclass(slots=True)
class Ladder:
    """Steps still to climb, each with its time (mono)."""

    steps: list[tuple[float, Step]] = field(default_factory=list)
    highest: Step | None = None  # the last step taken
    only_asks: bool = False

    @classmethod
    def full(cls, now: float, grace: float) -> Ladder:
        return cls(_at(now, full(grace)))

    @classmethod
    def asking(cls, now: float, grace: float) -> Ladder:
        return cls(_at(now, ask(grace)), only_asks=True)

    def harden(self, now: float, grace: float) -> None:
        """Replace the steps to come by the full ladder with this grace, if that ends sooner. The reason stays."""
        if self.highest is Step.KILL:
            return
        steps = _at(now, full(grace))
        if self.kill_at is None or steps[-1][0] < self.kill_at:
            self.steps = steps

    def due(self, now: float) -> list[Step]:
        """Take the steps whose time has come. After a long pause only the highest of them makes sense."""
        taken = []
        while self.steps and self.steps[0][0] <= now:
            taken.append(self.steps.pop(0)[1])
        if not taken:
            return []
        self.highest = taken[-1]
        return taken[-1:]

    @property
    def deadline(self) -> float | None:
        return self.steps[0][0] if self.steps else None

    @property
    def kill_at(self) -> float | None:
        """When the kill is due, if it is still to come."""
        return next((at for at, step in self.steps if step is Step.KILL), None)


def _at(now: float, steps: tuple[tuple[float, Step], ...]) -> list[tuple[float, Step]]:
    return [(now + offset, step) for offset, step in steps]
