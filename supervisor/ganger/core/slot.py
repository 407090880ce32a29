"""One slot: a warden, at most one child under it, and at most one run; others may wait in the child's socket.

The table below is every move that a slot can make; whatever a message makes of a slot goes through ``Slot.move``. A
message about a child that the slot no longer has never gets that far (``Slot.has``).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import Final

from ganger.core.job import Run


class State(Enum):
    VACANT = "vacant"  # no warden
    HIRING = "hiring"  # a warden is being forked
    BARE = "bare"  # a warden without a child
    BOOTING = "booting"  # a child is being forked and runs its start hooks
    IDLE = "idle"  # a child waits for a job
    BUSY = "busy"  # a child has a run
    LEAVING = "leaving"  # a child was told to exit
    DYING = "dying"  # a kill was ordered
    QUARANTINED = "quarantined"  # something in it survived SIGKILL
    CLOSED = "closed"  # its warden was told to leave


class ImpossibleMoveError(Exception):
    """A slot was to make a move that its table does not have: a fault of ours, never of a job."""


_WITH_CHILD: Final = (State.BOOTING, State.IDLE, State.BUSY, State.LEAVING, State.DYING)

MOVES: Final[dict[str, dict[State, State]]] = {
    "hire": {State.VACANT: State.HIRING},
    "hired": {State.HIRING: State.BARE},
    "fork": {State.BARE: State.BOOTING},
    "ready": {State.BOOTING: State.IDLE},
    "send": {State.IDLE: State.BUSY},
    "keep": {State.BUSY: State.IDLE},
    "retire": {State.IDLE: State.LEAVING, State.BUSY: State.LEAVING},
    "kill": dict.fromkeys(_WITH_CHILD, State.DYING),
    "spared": {State.DYING: State.BUSY},
    "buried": {**dict.fromkeys(_WITH_CHILD, State.BARE), State.QUARANTINED: State.BARE},
    "unkillable": {State.DYING: State.QUARANTINED, State.LEAVING: State.QUARANTINED, State.BUSY: State.QUARANTINED},
    "warden-gone": dict.fromkeys(State, State.VACANT),
    "close": {state: State.CLOSED for state in State if state is not State.VACANT},
}


@dataclass(slots=True)
class Slot:
    """What the core knows of a slot. Times are mono."""

    name: str
    lane: int
    state: State = State.VACANT
    generation: int = 0  # of the template that its warden was forked from
    child: int = 0  # number of the child it has, or had last
    pid: int | None = None
    jobs_run: int = 0  # by this child
    run: Run | None = None
    next: deque[Run] = field(default_factory=deque)  # sent ahead: the child begins the first once it has ended ``run``
    revoking: bool = False  # they were asked for back
    tainted: bool = False  # an order went to this child, which gets no other job therefore
    failures: int = 0  # boots in a row that failed
    complained: bool = False  # its child has said why it cannot boot
    wait_until: float = 0.0  # a pause between such boots
    limit_at: float | None = None  # when the present state has lasted too long
    kill_stage: int = 0  # how far the kill of this child has got: ordered, continued, killed directly
    dismissed: bool = False  # its warden was told to leave, or was killed by us
    due: float = -inf  # when it is to be looked at; at once, where something has happened to it

    def move(self, happening: str) -> None:
        """Make a move of the table."""
        try:
            self.state = MOVES[happening][self.state]
        except KeyError:
            raise ImpossibleMoveError(f"slot {self.name} is {self.state.value} and cannot {happening!r}") from None
        self.limit_at = None
        self.due = -inf

    def can(self, happening: str) -> bool:
        return self.state in MOVES[happening]

    def has(self, child: int) -> bool:
        """Whether a message about this child still concerns the slot."""
        return self.child == child and (self.state in _WITH_CHILD or self.state is State.QUARANTINED)

    @property
    def free(self) -> bool:
        """A child is ready, will stay, and nothing is meant for it."""
        return self.state is State.IDLE and self.run is None and not (self.dismissed or self.tainted)
