"""The arithmetic of the report: medians and ranges, ratios pair by pair, and whether a goal is met. Pure.

A ratio is taken between two measurements of the same round, which had the same machine around them; its median is of
those quotients. It is always turned so that more than 1 is in ganger's favour.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Rounds = Sequence[float | None]  # one value per round; None: it was not measured, or never came to an end


@dataclass(frozen=True)
class Metric:
    """One number that a workload measures: its key, what is printed above it, which way is better, and whether it is
    drawn."""

    key: str
    title: str
    better: Literal["more", "less"]
    drawn: bool = False


class Spread(NamedTuple):
    median: float
    low: float
    high: float
    rounds: int


def spread(values: Rounds) -> Spread | None:
    """Median and range of what was measured; None if nothing was."""
    there = [value for value in values if value is not None]
    return Spread(statistics.median(there), min(there), max(there), len(there)) if there else None


def ratios(ours: Rounds, theirs: Rounds, better: Literal["more", "less"]) -> list[float | None]:
    """Round by round, how many times better ours is."""
    return [_ratio(a, b) if better == "more" else _ratio(b, a) for a, b in zip(ours, theirs, strict=False)]


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None or b <= 0 else a / b


@dataclass(frozen=True)
class Goal:
    """What is to be reached: a value of ganger's, or its ratio to a peer.

    ``limit`` is the least that is good enough (the most, for a value of which less is better; None: there is only an
    aim). ``against`` names a
    peer, the floor, or "any postgres" for each peer that keeps its queue in PostgreSQL. ``worst`` takes the worst round
    instead of the median. ``aim`` is told, and no more.
    """

    metric: str
    limit: float | None
    against: str | None = None
    worst: bool = False
    aim: float | None = None


class Verdict(NamedTuple):
    goal: Goal
    against: str | None
    reached: float | None  # None: ganger has no value, so the goal is missed

    def met(self, better: Literal["more", "less"]) -> bool:
        if self.goal.limit is None:
            return True
        if self.reached is None:
            return False
        if better == "more" or self.against:
            return self.reached >= self.goal.limit
        return self.reached <= self.goal.limit


def judge(goal: Goal, metric: Metric, measured: Mapping[str, Rounds], postgres: Collection[str] = ()) -> list[Verdict]:
    """What became of a goal, from the rounds of everybody by name; empty where it could not be tried at all."""
    ours = measured.get("ganger", ())
    if goal.against is None:
        return [Verdict(goal, None, _taken(ours, goal, metric.better))] if ours else []
    rivals = sorted(postgres) if goal.against == "any postgres" else [goal.against]
    return [
        Verdict(goal, rival, _taken(ratios(ours, measured[rival], metric.better), goal, "more"))
        for rival in rivals
        if ours and spread(measured.get(rival, ()))
    ]


def _taken(values: Rounds, goal: Goal, better: Literal["more", "less"]) -> float | None:
    found = spread(values)
    if found is None or (goal.worst and None in values):
        return None
    return found.median if not goal.worst else found.low if better == "more" else found.high
