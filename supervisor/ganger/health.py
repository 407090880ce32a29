"""Whether the supervisor lives, and whether it is ready for work, in a word: what probes and the service manager ask.

It is read from the machine's state as that stands, by any thread: each look is at single values, so it costs the loop
nothing and may be a turn late. It decides and changes nothing.
"""

from __future__ import annotations

from typing import Final

from ganger.core.machine import Machine
from ganger.core.messages import Now
from ganger.core.shutdown import TITLES, Phase

LIVE: Final = 10.0  # seconds within which a loop that lives has turned
TURN: Final = 1.0  # seconds that the loop may wait at most while somebody watches it


class Health:
    """``machine`` is None until there is one; ``turned`` is when the loop has turned last (mono), None before that."""

    def __init__(self) -> None:
        self.machine: Machine | None = None
        self.turned: float | None = None

    def not_live(self, now: Now) -> str | None:
        """Why the supervisor is not to be called alive; None: it is. One that still waits for its database is."""
        if self.turned is None or now.mono - self.turned <= LIVE:
            return None
        return "stalled"

    def not_ready(self, now: Now) -> str | None:
        """Why it takes no jobs at this moment; None: it does."""
        machine = self.machine
        if machine is None:
            return "starting"
        if machine.phase is not Phase.RUNNING:
            return TITLES[machine.phase]
        if machine.book.lost_database:
            return "database-lost"
        if machine.book.lease.supervisor_id is None:
            return "not-registered"
        if not machine.book.lease.trusted(now.boot):
            return "lease-not-trusted"
        if not machine.pool.ever_ready:
            return "no-child-yet"
        return self.not_live(now)

    @property
    def draining(self) -> bool:
        return self.machine is not None and self.machine.phase is not Phase.RUNNING

    @property
    def reloads(self) -> int:
        """How many times the handlers have begun to be loaded anew."""
        return 0 if self.machine is None else self.machine.reloads

    @property
    def loading(self) -> bool:
        return self.machine is not None and self.machine.template_limit is not None

    @property
    def status(self) -> str:
        """One line for people, as in the process title: the phase, and how many slots run something."""
        machine = self.machine
        title = machine.title if machine is not None else None
        if machine is None or title is None:
            return "starting"
        lanes = " ".join(f"{name}={slots}" for name, slots in title.lanes)
        stale = ", on the old code, because the new one did not load" if machine.stale else ""
        return f"{title.phase}, {title.running}/{title.slots} running, {lanes}{stale}"
