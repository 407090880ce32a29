"""Jobs that were claimed before a slot is free for them: the backlog of a lane, and some in each child's socket.

Only where jobs are short (``pace``). A child that has told of a run and may stay begins the next one at once, without
waiting for us: it goes by what it says itself (clean, and not used up). After a report that it does not stay, and after
a failure, whose callbacks come first, it drops what it was sent ahead; so we know by its words which run it begins. To
take one back that it may be about to begin, its warden writes that down and looks (Revoke).

What waits here costs its job nothing: it goes back unstarted and uncounted.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Final

from ganger.core import job as jobs
from ganger.core import messages as m
from ganger.core import pace
from ganger.core import rules as bounds
from ganger.core.job import FENCED, Run
from ganger.core.job import Phase as RunPhase
from ganger.core.slot import Slot, State
from ganger.core.steps import Steps

_GOING: Final = (RunPhase.SENT, RunPhase.RUNNING)


class Ahead(Steps):
    """The part of ``Pool`` that hands jobs to slots."""

    __slots__ = ()

    # ---- what others ask -------------------------------------------------------------------------------------------

    def waiting(self) -> Iterator[Run]:
        """The runs that no slot is at."""
        for backlog in self.backlog:
            yield from backlog
        for slot in self.slots.values():
            yield from slot.next

    def wanted(self, free: list[int]) -> list[int]:
        """How many jobs to claim, by lane: for free slots, and ahead once half of that is used up."""
        if not self.rules.recycle_after:
            return free
        wanted = free.copy()
        for lane, backlog in enumerate(self.backlog):
            ahead = self.paces[lane].ahead(self.sizes[lane])
            if ahead and not self.surplus[lane]:
                waiting = len(backlog) + sum(len(slot.next) for slot in self.slots.values() if slot.lane == lane)
                if 2 * waiting <= ahead or free[lane]:
                    wanted[lane] += max(0, ahead - waiting)
        return wanted

    def lull(self) -> float:
        """For how long, in seconds, what children say may wait, to be taken in together: half of the time that the
        jobs in the emptiest socket take; 0 where a slot is free, or at a long job, or has nothing behind its job."""
        lull = pace.LULL
        for slot in self.slots.values():
            if slot.state is not State.BUSY or not slot.next or slot.revoking:
                return 0.0
            lull = min(lull, self.paces[slot.lane].lasts_for(len(slot.next)) / 2)
        return lull

    def recall(self) -> None:
        """Give back what waits, and ask for what was sent ahead: none of it is to be started any more."""
        for backlog in self.backlog:
            while backlog:
                self._return(backlog.popleft())
        for slot in self.slots.values():
            self._revoke(slot)

    def disown(self, run: Run) -> None:
        """This run, for which no slot is free yet, is not ours any more."""
        run.reason = FENCED
        for backlog in self.backlog:
            if run in backlog:
                backlog.remove(run)

    # ---- a slot takes a job ----------------------------------------------------------------------------------------

    def _feed(self, slot: Slot, now: m.Now) -> None:
        """Give a slot what waits for its lane: a job, and others ahead."""
        backlog = self.backlog[slot.lane]
        if backlog and slot.free:
            self._give(slot, backlog.popleft(), now)
        while backlog and self._takes_another(slot, now) and not (backlog[0].job.fresh or backlog[0].death):
            run = backlog.popleft()
            after = slot.next[-1] if slot.next else slot.run
            slot.next.append(run)
            self.nonces += 1
            run.nonce = self.nonces
            run.enter(RunPhase.SENT, now.mono)
            self.out(m.SendJob(slot.name, slot.child, run.nonce, run.job, run.limits, after.nonce if after else 0))

    def spread(self, now: m.Now) -> None:
        """Send ahead what waits, first to the slots that have the least ahead."""
        if any(self.backlog):
            for slot in sorted(self.slots.values(), key=lambda slot: len(slot.next)):
                self._feed(slot, now)

    def _give(self, slot: Slot, run: Run, now: m.Now) -> None:
        """Make it the slot's run. A job that crashed in a used child waits for a fresh one."""
        slot.run = run
        if run.failed is not None:
            told = {key: (run.death or {}).get(key) for key in ("losses", "error")}
            told = {key: value for key, value in told.items() if value is not None}
            self.out(m.Emit(jobs.ENDINGS[run.failed].event, {**self._about(slot), **told}))
        if slot.state is State.IDLE and run.job.fresh and slot.jobs_run:
            self._retire(slot, now)
        elif slot.state is State.IDLE:
            self._send(slot, run, now)

    def _takes_another(self, slot: Slot, now: m.Now) -> bool:
        run = slot.run
        if slot.state is not State.BUSY or run is None or run.phase not in _GOING or slot.revoking:
            return False
        if run.reason is not None or run.death is not None or slot.tainted or slot.dismissed or self.draining:
            return False
        if self.surplus[slot.lane]:
            return False
        young = run.started is None or now.mono < run.started + pace.SHORT
        return young and slot.generation == self.generation and len(slot.next) < self.paces[slot.lane].depth

    def _promote(self, slot: Slot, now: m.Now) -> None:
        """The child has told of its run and goes on with the first that it was sent ahead."""
        run = slot.run = slot.next.popleft()
        slot.revoking = slot.revoking and bool(slot.next)
        run.enter(RunPhase.SENT, now.mono)
        if slot.state is State.BUSY:
            slot.limit_at = now.mono + bounds.START_LIMIT
        self.out(m.Emit("handling-job", self._about(slot)))
        if run.reason == FENCED and slot.state is State.BUSY:  # disowned while it waited
            self._replace_idle(slot, run, now)
        self._feed(slot, now)

    # ---- and back --------------------------------------------------------------------------------------------------

    def _revoke(self, slot: Slot) -> None:
        if slot.next and not slot.revoking:
            slot.revoking = True
            self.out(m.Revoke(slot.name, slot.child, tuple(run.nonce for run in slot.next)))

    def _take_back(self, slot: Slot, now: m.Now) -> None:
        """The slot's child will not begin what it was sent ahead. If it had begun one all the same, and was killed for
        the run before, that is not this job's fault, and the next child is its own."""
        slot.revoking = False
        while slot.next:
            run = slot.next.pop()
            if run.reason == FENCED:
                continue
            if run.phase is RunPhase.RUNNING:
                self.settle(jobs.blamed_on_another(run), None)
            else:
                self._wait_again(slot.lane, run, now)

    def _wait_again(self, lane: int, run: Run, now: m.Now) -> None:
        run.enter(RunPhase.WAITING, now.mono)
        if self.draining:
            self._return(run)
            return
        self.backlog[lane].appendleft(run)
        for slot in self.slots.values():
            if slot.lane == lane and slot.free and self.backlog[lane]:
                self._give(slot, self.backlog[lane].popleft(), now)

    def _return(self, run: Run) -> None:
        """Back to the queue, unstarted."""
        self.out(m.Emit("job-released", run.about))
        self.settle(jobs.unstarted(run), None)

    def run_revoked(self, event: m.RunRevoked, now: m.Now) -> None:
        """It may have become the slot's run meanwhile, as the child had ended the one before."""
        slot = self.slots[event.slot]
        if not slot.has(event.child):
            return
        run = slot.run
        waiting = next((ahead for ahead in slot.next if ahead.nonce == event.nonce), None)
        if waiting is not None:
            slot.next.remove(waiting)
            slot.revoking = slot.revoking and bool(slot.next)
            if waiting.reason != FENCED:
                self._wait_again(slot.lane, waiting, now)
        elif run is not None and run.nonce == event.nonce and run.phase is RunPhase.SENT and slot.state is State.BUSY:
            slot.run = None
            if slot.next:  # sent since then: the child goes on with that
                self._promote(slot, now)
            else:
                slot.move("keep")
            if run.reason != FENCED:
                self._wait_again(slot.lane, run, now)
            if slot.run is None:
                self._let_idle(slot, now)

    def _let_idle(self, slot: Slot, now: m.Now) -> None:
        """The slot's child waits: for the next job, or to be replaced."""
        self._renew_warden(slot)
        if slot.tainted and slot.state is State.IDLE:
            self._retire(slot, now)
        self._feed(slot, now)

    # ---- time ------------------------------------------------------------------------------------------------------

    def _tick_backlog(self, now: m.Now) -> None:
        """Nothing waits here for long."""
        for backlog in self.backlog:
            while backlog and now.mono >= backlog[0].since + pace.WAITS:
                self._return(backlog.popleft())

    def _tick_sent(self, slot: Slot, now: m.Now) -> None:
        """Nothing waits for long in a child whose job turns out to be long."""
        if now.mono >= self._patience(slot):
            self.paces[slot.lane].lasts(pace.SHORT)
            self._revoke(slot)

    def _patience(self, slot: Slot) -> float:
        """Until when a run may wait in the child's socket, if one does and was not asked for back."""
        run = slot.run
        if not slot.next or slot.revoking or run is None:
            return inf
        return (run.since if run.started is None else run.started) + pace.SHORT

    def _deadlines_of_backlog(self) -> Iterator[float]:
        for backlog in self.backlog:
            if backlog:
                yield backlog[0].since + pace.WAITS
