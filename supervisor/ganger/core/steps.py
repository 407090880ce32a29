"""The slots, and what is done to one of them: a child started, a job sent, a step of a ladder, a kill, a settled run.

Each function here is one move of a slot with the command that goes with it. Nothing is decided: what has happened is
told in ``pool``, and what follows from an ending in ``endings``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ganger.core import messages as m
from ganger.core import rules as bounds
from ganger.core.job import FENCED, LIMITS, Run
from ganger.core.job import Phase as RunPhase
from ganger.core.ladder import Step
from ganger.core.pace import Pace
from ganger.core.rules import Rules
from ganger.core.slot import Slot, State

Settle = Callable[[m.Outcome, "tuple[str, dict[str, Any]] | None"], None]


@dataclass(slots=True)
class Steps:
    """``out`` takes commands, ``settle`` takes outcomes with what is to be told when they are stored."""

    rules: Rules
    rng: Callable[[], float]
    out: Callable[[m.Command], None]
    settle: Settle
    slots: dict[str, Slot] = field(default_factory=dict)
    job_types: Mapping[str, m.TypeFacts] | None = None
    generation: int = 0  # of the template that new wardens are forked from
    children: int = 0  # numbers given so far
    nonces: int = 0
    template_alive: bool = False
    ever_ready: bool = False  # some child has been ready
    draining: bool = False  # a child is only started for a run that waits for one
    closing: bool = False  # no child is started any more
    booted_badly: str | None = None  # the first child of all could not boot: why
    sizes: list[int] = field(init=False)  # how many slots each lane is to have
    counts: list[int] = field(init=False)  # and how many it has, with those that are leaving
    surplus: list[int] = field(init=False)  # how many have still to go, once they have no run
    backlog: list[deque[Run]] = field(init=False)  # claimed ahead, by lane: they wait for a slot
    paces: list[Pace] = field(init=False)

    def __post_init__(self) -> None:
        self.backlog = [deque() for _ in self.rules.lanes]
        self.paces = [Pace() for _ in self.rules.lanes]
        self.sizes = [rule.slots for rule in self.rules.lanes]
        self.counts = [0 for _ in self.rules.lanes]
        self.surplus = [0 for _ in self.rules.lanes]
        for lane, size in enumerate(self.sizes):
            for number in range(1, size + 1):
                self._make_slot(lane, number)

    def _make_slot(self, lane: int, number: int) -> None:
        slot = Slot(f"{self.rules.lanes[lane].name}/{number}", lane)
        self.slots[slot.name] = slot
        self.counts[lane] += 1

    def _place_for(self, job: m.Job, lane: int) -> Slot | None:
        """An idle slot (for a job that wants a fresh child, one whose child is fresh), else one that will be."""
        own = [slot for slot in self.slots.values() if slot.lane == lane and slot.run is None]
        idle = [slot for slot in own if slot.free]
        if job.fresh:
            idle.sort(key=lambda slot: slot.jobs_run)
        coming = [slot for slot in own if slot.state in (State.BOOTING, State.LEAVING, State.BARE)]
        return next(iter(idle or coming), None)

    # ---- wardens and children --------------------------------------------------------------------------------------

    def _renew_warden(self, slot: Slot) -> None:
        """Let a warden of an older template go, once it has nothing to do."""
        spare = slot.run is None and slot.state in (State.BARE, State.BOOTING, State.IDLE)
        if spare and slot.generation not in (0, self.generation):
            self._dismiss(slot)

    def _dismiss(self, slot: Slot) -> None:
        """Let its warden go, with the idle child that it may have."""
        if not slot.dismissed:
            slot.dismissed = True
            self.out(m.StopWarden(slot.name))

    def _start_child(self, slot: Slot, now: m.Now) -> None:
        slot.move("fork")
        self.children += 1
        slot.child = self.children
        slot.jobs_run = 0
        slot.kill_stage = 0
        slot.complained = slot.tainted = slot.revoking = False
        slot.limit_at = now.mono + self.rules.boot_timeout
        self.out(m.StartChild(slot.name, slot.child))

    def _retire(self, slot: Slot, now: m.Now) -> None:
        """Let the child flush and close. It has no longer for that than its job may last, for what that has started
        lives as long as it does."""
        slot.move("retire")
        slot.limit_at = now.mono + bounds.LEAVE_LIMIT
        if slot.run is not None:
            slot.limit_at = min(slot.limit_at, slot.run.gone_by)
        self.out(m.Retire(slot.name, slot.child))

    def _pause(self, slot: Slot, now: m.Now) -> None:
        """Wait before the next boot: 1, 2, 4 … seconds, spread by up to a quarter."""
        slot.failures += 1
        seconds = min(bounds.BACKOFF_LIMIT, 2.0 ** min(slot.failures - 1, 10))
        slot.wait_until = now.mono + seconds * (1 + 0.25 * self.rng())

    # ---- runs ------------------------------------------------------------------------------------------------------

    def _send(self, slot: Slot, run: Run, now: m.Now) -> None:
        slot.move("send")
        self.nonces += 1
        run.nonce = self.nonces
        run.enter(RunPhase.SENT, now.mono)
        slot.limit_at = now.mono + bounds.START_LIMIT
        if run.death is None:
            self.out(m.Emit("handling-job", self._about(slot)))
            self.out(m.SendJob(slot.name, slot.child, run.nonce, run.job, run.limits))
        else:
            run.enter(RunPhase.ASKING, now.mono)
            slot.jobs_run += 1
            slot.limit_at = now.mono + self.rules.callback_timeout + bounds.ASK_SLACK
            self.out(m.SendPostmortem(slot.name, slot.child, run.nonce, run.job, run.limits, run.death))

    def _climb(self, slot: Slot, run: Run, now: m.Now) -> None:
        """Take the steps of the run's ladder that are due."""
        if run.ladder is None:
            return
        begins = run.ladder.highest is None
        for step in run.ladder.due(now.mono):
            run.ordered = slot.tainted = True
            if begins and run.reason in LIMITS:
                self.out(m.TakeStack(slot.name, slot.child, run.nonce))
            self.out(m.Emit("ladder-step", {**self._about(slot), "step": step.value, "reason": run.reason}))
            if step is Step.INTERRUPT and run.reason != FENCED:
                self.out(m.Interrupt(slot.name, slot.child, run.nonce, str(run.reason)))
            elif step is Step.TERMINATE:
                self.out(m.Terminate(slot.name, slot.child, run.nonce))
            elif step is Step.KILL and slot.can("kill") and slot.state is not State.DYING:
                slot.move("kill")
                slot.limit_at = now.mono + bounds.KILL_PATIENCE
                self.out(m.Kill(slot.name, slot.child, run.nonce))

    def _settle(self, slot: Slot, run: Run) -> None:
        """The run is over and nothing of it is left."""
        slot.run = None
        if run.outcome is not None and run.reason != FENCED:
            self.settle(run.outcome, run.news)
        self._renew_warden(slot)

    # ---- kills -----------------------------------------------------------------------------------------------------

    def _kill(self, slot: Slot, now: m.Now, *, again: bool = False) -> None:
        """Kill the child whatever it is doing."""
        if not slot.can("kill") or (slot.state is State.DYING and not again):
            return
        slot.move("kill")
        slot.limit_at = now.mono + bounds.KILL_PATIENCE
        self.out(m.Kill(slot.name, slot.child))

    def _replace_idle(self, slot: Slot, run: Run, now: m.Now) -> None:
        run.given_up = True
        slot.move("kill")
        slot.limit_at = now.mono + bounds.KILL_PATIENCE
        self.out(m.ReplaceIdle(slot.name, slot.child, run.nonce))

    # ---- words -----------------------------------------------------------------------------------------------------

    def _about(self, slot: Slot, run: Run | None = None) -> dict[str, Any]:
        run = run or slot.run
        about = run.about if run is not None else {}
        pid = slot.pid if run is None else run.facts.get("pid", slot.pid)  # a post-mortem tells of another process
        return {**about, "slot": slot.name, "pid": pid}
