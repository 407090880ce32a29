"""How many slots there are: more or fewer of them at somebody's wish, while jobs run.

Slots are one number. Where queues have slots of their own, it is shared out in the proportion of the configuration
(``rules.shares``), so that one more and one less leads back to where it was.

No job is ended for a slot less. A slot that has no run goes at once; where all have one, the lane has a ``surplus``,
and whichever of its slots comes to the end of its run first goes: it is sent nothing ahead (``ahead``), and its child
does not stay (``endings``). A slot that goes is closed until its warden has left, and is forgotten then; no other has
its name before.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Final

from ganger.core import messages as m
from ganger.core.ahead import Ahead
from ganger.core.slot import Slot, State

_SPARE: Final = (State.VACANT, State.HIRING, State.BARE, State.BOOTING, State.IDLE)  # if it has no run


class Sizes(Ahead):
    """The part of ``Pool`` that makes slots and lets them go."""

    __slots__ = ()

    def resize(self, sizes: Sequence[int]) -> None:
        """Have so many slots, by lane."""
        for lane, size in enumerate(sizes):
            own = [slot for slot in self.slots.values() if slot.lane == lane]
            more = size - sum(slot.state is not State.CLOSED for slot in own)
            self.sizes[lane] = size
            self.surplus[lane] = max(0, -more)
            name = self.rules.lanes[lane].name
            unused = (number for number in count(1) if f"{name}/{number}" not in self.slots)
            for _, number in zip(range(more), unused, strict=False):
                self._make_slot(lane, number)
            if self.surplus[lane]:
                for slot in own:
                    self._revoke(slot)
        self.share_cores()
        self.shrink()

    def shrink(self) -> None:
        """Let go what is too many and has no run: rather what is not ready yet, and the last first."""
        if not any(self.surplus):
            return
        had = len(self.slots)
        spare = [slot for slot in reversed(self.slots.values()) if slot.run is None and slot.state in _SPARE]
        for slot in sorted(spare, key=lambda slot: slot.state is State.IDLE):
            if not self.surplus[slot.lane]:
                continue
            self.surplus[slot.lane] -= 1
            if slot.state is State.VACANT:
                self._forget_slot(slot)
            else:
                slot.move("close")
                self._dismiss(slot)
        if len(self.slots) != had:
            self.share_cores()

    def share_cores(self) -> None:
        """Whoever shares the machine out is to know the slots."""
        self.out(m.ShareCores(tuple(self.slots)))

    def _forget_slot(self, slot: Slot) -> None:
        self.counts[slot.lane] -= 1
        del self.slots[slot.name]
