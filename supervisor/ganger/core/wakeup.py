"""When a lane asks the database for jobs.

Polling is the rule and the safety net. To be quick without asking often, an idle lane says so in the database, and
enqueue then sends a notification (a busy system sends none: its commit lock is what makes notifications dear). A
transaction that was open when we said it may have seen us busy and commit without a word; so after saying it we
claim in quick steps until every transaction that old has ended, which the claim's snapshot tells, and only then sleep
for a whole poll interval.

Times are ``Now.mono``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

QUICK = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # seconds between claims while old transactions may still commit
FLAG_HOLDS = 30.0  # seconds that an idle flag is valid; renewed at half
BUSY_FOR = 1.0  # seconds without a free slot until the flag is taken back
JITTER = 0.1


@dataclass(slots=True)
class Wakeup:
    """One lane's next claim and its idle flag."""

    poll_interval: float
    rng: Callable[[], float]  # uniform in [0, 1)
    at: float = 0.0  # when to claim next, if a slot is free
    hurried: bool = False  # since the last claim was sent: its answer may have overlooked what we were woken for
    flagged_until: float = 0.0
    horizon: int | None = None  # transactions below it may not know that we are idle
    quick: int = 0
    busy_since: float | None = None

    def hurry(self, now: float) -> None:
        """A slot became free, somebody notified, or the database is back: claim at once."""
        self.at = min(self.at, now)
        self.hurried = True

    def asked(self, now: float) -> None:
        """A claim is on its way; without an answer ask again after a poll interval."""
        self.at = now + self._pause()
        self.hurried = False

    def answered(self, now: float, *, full: bool, next_due: float | None, horizon: int | None) -> bool:
        """Take in the answer to a claim. True: say that we are idle."""
        if full or self.hurried:
            self.at = now
            return False
        pause = self._pause()
        if next_due is not None:
            pause = min(pause, max(0.0, next_due))
        idle_said = self.flagged_until > now
        if idle_said and self.horizon is not None:
            if horizon is not None and horizon >= self.horizon:
                self.horizon = None
            else:
                pause = min(pause, QUICK[min(self.quick, len(QUICK) - 1)])
                self.quick += 1
        self.at = now + pause
        return self.flagged_until - now < FLAG_HOLDS / 2

    def saying(self, now: float) -> None:
        """The flag is being set; it counts from here, so that it is never thought to hold longer than it does."""
        self.flagged_until = now + FLAG_HOLDS

    def said(self, now: float, horizon: int) -> None:
        """The flag is set, and transactions below ``horizon`` may not have seen it."""
        self.horizon = horizon
        self.quick = 0
        self.at = min(self.at, now + QUICK[0])

    def busy(self, now: float, free: bool) -> bool:
        """Tell whether a slot is free. True: take the flag back, we have been busy for a while."""
        if free:
            self.busy_since = None
            return False
        if self.busy_since is None:
            self.busy_since = now
        if now < self.busy_since + BUSY_FOR:
            return False
        flagged = self.flagged_until > now
        self.forget()
        return flagged

    def deadline(self, free: bool) -> float | None:
        """When ``busy`` or a claim is due."""
        if free:
            return self.at
        if self.busy_since is not None and self.flagged_until > self.busy_since + BUSY_FOR:
            return self.busy_since + BUSY_FOR
        return None

    def forget(self) -> None:
        """The database was away: the flag may have run out or never been set."""
        self.flagged_until = 0.0
        self.horizon = None

    def _pause(self) -> float:
        return self.poll_interval * (1 - JITTER + 2 * JITTER * self.rng())
