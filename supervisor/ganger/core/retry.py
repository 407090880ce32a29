"""From a strategy to the next run: whether there is one, and after how many seconds.

The arithmetic is Proletarian's (``retries-left = retries + 1 - attempts``; the last delay repeats), except that an
attempt which was lost with its supervisor does not count against the job.
"""

from __future__ import annotations

from dataclasses import dataclass

from ganger.core.messages import Strategy


@dataclass(frozen=True, slots=True)
class Verdict:
    """``delay`` is None where the job is not retried; ``retries_left`` is None where there was no strategy."""

    delay: float | None
    retries_left: int | None


def decide(strategy: Strategy | None, attempts: int, losses: int) -> Verdict:
    """Say whether a job that has failed its ``attempts``-th attempt runs again.

    ``losses`` of the attempts were ended by the death of a supervisor, host or warden: they are nobody's failure.
    """
    if strategy is None:
        return Verdict(None, None)
    failed = max(1, attempts - losses)
    left = strategy.retries + 1 - failed
    if left <= 0:
        return Verdict(None, max(0, left))
    delays = strategy.delays or (0.0,)
    return Verdict(delays[min(failed, len(delays)) - 1], left)
