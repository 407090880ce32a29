"""Who may touch whose jobs, and until when.

A supervisor renews its lease with a beat every twelfth of it. It trusts the lease until three quarters have passed
since the last successful beat *was sent*; then it kills its own runs, before anybody else may take them. Another
supervisor may take them only after it has itself seen the same beat for a whole lease, connected all the while, on
its own clock: no clock is ever compared with another's, so a clock step or a promoted standby expires nobody. (The
idea to count trust from the sending is River's, from its leader election.)

All times here are on the clock that counts suspension (``Now.boot``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ganger.core.messages import OtherSupervisor

BEATS_PER_LEASE = 12
TRUSTED_PART = 0.75
LOOK_INTERVAL = 1.0  # seconds between looks for cancel orders and for the others' beats


@dataclass(slots=True)
class Lease:
    """Our own registration: none, held, or lost."""

    length: float
    supervisor_id: int | None = None
    renewed: float = 0.0  # when the last beat that was answered had been sent
    next_beat: float = 0.0
    next_look: float = 0.0

    def hold(self, supervisor_id: int, sent: float) -> None:
        self.supervisor_id = supervisor_id
        self.renewed = sent
        self.next_beat = sent + self.interval
        self.next_look = sent

    def renew(self, sent: float) -> None:
        self.renewed = max(self.renewed, sent)

    def drop(self) -> None:
        self.supervisor_id = None

    @property
    def interval(self) -> float:
        return self.length / BEATS_PER_LEASE

    @property
    def trusted_until(self) -> float:
        return self.renewed + self.length * TRUSTED_PART

    def trusted(self, now: float) -> bool:
        return self.supervisor_id is not None and now < self.trusted_until


@dataclass(slots=True)
class Watcher:
    """What we have seen of the other registrations, and since when."""

    seen: dict[int, tuple[int, float]] = field(default_factory=dict)  # id -> beat, first seen at
    vacant: set[int] = field(default_factory=set)  # whose lock was found free; finding removes the lock file

    def forget(self) -> None:
        """The database was away: silence in that time says nothing."""
        self.seen.clear()

    def look(self, others: Iterable[OtherSupervisor], now: float) -> list[OtherSupervisor]:
        """Take in one look and return those whose jobs may be taken."""
        dead = []
        seen: dict[int, tuple[int, float]] = {}
        for other in others:
            beat, since = self.seen.get(other.supervisor_id, (None, now))
            if beat != other.beat:
                since = now
            seen[other.supervisor_id] = (other.beat, since)
            if other.vacant:
                self.vacant.add(other.supervisor_id)
            if other.supervisor_id in self.vacant or now - since >= other.lease_s:
                dead.append(other)
        self.seen = seen
        self.vacant &= seen.keys()
        return dead
