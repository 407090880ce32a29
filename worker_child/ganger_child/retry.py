"""What a retry strategy says: how often to try again, and after how long.

The child asks the user's strategy, checks the answer here, and reports plain numbers; whether the job runs again is
decided in the parent. So a strategy that raises or answers nonsense costs its job the retries, and nothing else.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ganger_child.words import shown

MOST_RETRIES: Final = 2**31 - 1
MOST_DELAYS: Final = 1000
LONGEST: Final = 100 * 366 * 86400.0  # seconds; longer is a slip of the pen


@dataclass(frozen=True)
class Retry:
    """Try again up to ``retries`` times (the first attempt not counted), after ``delays``.

    ``delays`` are seconds, one for each retry; the last one repeats; none at all means at once, and a delay of None
    counts as 0. ``jitter``: each time the strategy is asked, each delay is multiplied by a random factor between
    1 - jitter and 1, so that jobs which failed together do not come back together.

    Raises ValueError or TypeError where a number is negative, not finite, or no number.
    """

    retries: int
    delays: Iterable[float | None] | None = ()
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.retries, bool) or not isinstance(self.retries, int):
            raise TypeError(f"retries is {shown(self.retries)}: give a whole number.")
        if not 0 <= self.retries <= MOST_RETRIES:
            raise ValueError(f"retries is {shown(self.retries)}: give a whole number from 0 to {MOST_RETRIES}.")
        object.__setattr__(self, "delays", _delays(self.delays))
        if _number(self.jitter, "jitter") > 1:
            raise ValueError(f"jitter is {shown(self.jitter)}: give a number from 0 to 1.")

    @classmethod
    def exponential(
        cls, retries: int, base: float = 1.0, factor: float = 2.0, limit: float = 3600.0, jitter: float = 0.25
    ) -> Retry:
        """Wait ``base`` seconds, then ``factor`` times as long before each further retry, ``limit`` at most.

        The delays are spread downwards by ``jitter`` (a quarter by default), so ``limit`` is never passed.
        """
        for name, value in (("base", base), ("factor", factor), ("limit", limit)):
            _number(value, name)
        first = cls(retries)  # checks it
        delays: list[float | None] = []
        delay = float(base)
        while len(delays) < min(first.retries, MOST_DELAYS):
            delays.append(min(delay, limit))
            if delay >= limit or delay == 0:
                break
            delay *= factor
        return cls(retries, delays, jitter)

    def to_wire(self) -> dict[str, Any]:
        """The strategy as plain numbers, with the jitter drawn anew."""
        return {
            "retries": self.retries,
            "delays": [delay * (1 - self.jitter * random.random()) for delay in _delays(self.delays)],
        }


def checked(answer: object) -> Retry | None:
    """Check what a strategy returned: a Retry, None (no retry), or a mapping with "retries" and perhaps "delays".

    Raises TypeError or ValueError, saying what is wrong with it. Other keys of a mapping are ignored.
    """
    if answer is None:
        return None
    if isinstance(answer, Retry):
        return Retry(answer.retries, answer.delays, answer.jitter)  # anew, because a subclass may say anything
    if not isinstance(answer, Mapping):
        raise TypeError(
            f"the retry strategy returned {shown(answer)}: "
            'give a Retry, None, or a mapping such as {"retries": 2, "delays": [1, 5]}.'
        )
    if "retries" not in answer:
        raise ValueError(f'the retry strategy returned {shown(answer)}, in which "retries" is missing.')
    return Retry(answer["retries"], answer.get("delays"))


def to_wire(answer: object) -> dict[str, Any] | None:
    """What a strategy returned, checked, as plain numbers."""
    strategy = checked(answer)
    return None if strategy is None else strategy.to_wire()


def _delays(delays: object) -> tuple[float, ...]:
    if delays is None:
        return ()
    if isinstance(delays, str | bytes | Mapping) or not isinstance(delays, Iterable):
        raise TypeError(f"delays is {shown(delays)}: give a list of seconds.")
    read: list[float] = []
    for delay in delays:
        if len(read) == MOST_DELAYS:
            raise ValueError(f"delays has more than {MOST_DELAYS} entries: leave out the rest, the last one repeats.")
        read.append(0.0 if delay is None else _number(delay, f"delays[{len(read)}]"))
    return tuple(read)


def _number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is {shown(value)}: give a number.")
    number = float(value) if abs(value) < 1e300 else math.inf
    if not 0 <= number <= LONGEST:
        raise ValueError(f"{name} is {shown(value)}: give a number that is not negative, at most {LONGEST:.0f}.")
    return number
