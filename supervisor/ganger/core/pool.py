"""The slots and their runs: who gets which job, what a message from a child means, and which step is due.

A run is settled once: when its outcome is decided *and* nothing of it is left, which is the child's own word where it
stays for another job, and its warden's word where it goes. Every failure passes through one place (``_fail``), asked
either in the child that failed or, where that is dead, in a post-mortem in a fresh one.

The pool knows nothing of the database: outcomes go to the book.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ganger.core import job as jobs
from ganger.core import messages as m
from ganger.core import rules as bounds
from ganger.core.job import CANCELS, FENCED, LIMITS, Run
from ganger.core.job import Phase as RunPhase
from ganger.core.ladder import Ladder, Step
from ganger.core.rules import Rules
from ganger.core.slot import Slot, State

_OfRun = (
    m.JobStarted
    | m.JobReturned
    | m.StrategyAsked
    | m.JobRaised
    | m.CallbackBegun
    | m.CallbacksDone
    | m.Verdict
    | m.MemoryHeld
)
Settle = Callable[[m.Outcome, "tuple[str, dict[str, Any]] | None"], None]


@dataclass(slots=True)
class Pool:
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

    def __post_init__(self) -> None:
        for lane, rule in enumerate(self.rules.lanes):
            for number in range(1, rule.slots + 1):
                slot = Slot(f"{rule.name}/{number}", lane)
                self.slots[slot.name] = slot

    # ---- what others ask of it -------------------------------------------------------------------------------------

    @property
    def runs(self) -> list[tuple[Slot, Run]]:
        return [(slot, slot.run) for slot in self.slots.values() if slot.run is not None]

    def free(self) -> list[int]:
        """Free slots per lane."""
        counts = [0] * len(self.rules.lanes)
        for slot in self.slots.values():
            if slot.free:
                counts[slot.lane] += 1
        return counts

    def assign(self, job: m.Job, lane: int, now: m.Now) -> bool:
        """Give a claimed job to a slot of its lane. False: there is none."""
        slot = self._place_for(job, lane)
        if slot is None:
            return False
        self.nonces += 1
        declared = (self.job_types or {}).get(job.job_type)
        run = Run(job, self.nonces, jobs.limits(job, declared, self.rules), now.boot, now.mono)
        slot.run = run
        if job.losses >= self.rules.max_losses:
            run.failed = "lost"
            run.death = {"reason": "lost", "losses": job.losses}
            self.out(m.Emit("job-lost", {**self._about(slot), "losses": job.losses}))
        elif len(job.payload) > self.rules.max_payload:  # enqueue refuses it; a row may be written without it
            limit = self.rules.max_payload
            message = f"the payload has {len(job.payload)} bytes, over the supervisor's max_payload of {limit}"
            run.error = {"type": "PayloadTooLarge", "message": message}
            run.death = {"reason": "payload-too-large", "error": run.error}
            self._failed(slot, run, "payload-too-large")
        if slot.state is State.IDLE and job.fresh and slot.jobs_run:
            self._retire(slot, now)
        elif slot.state is State.IDLE:
            self._send(slot, run, now)
        return True

    def _place_for(self, job: m.Job, lane: int) -> Slot | None:
        """An idle slot (for a job that wants a fresh child, one whose child is fresh), else one that will be."""
        own = [slot for slot in self.slots.values() if slot.lane == lane and slot.run is None]
        idle = [slot for slot in own if slot.free]
        if job.fresh:
            idle.sort(key=lambda slot: slot.jobs_run)
        coming = [slot for slot in own if slot.state in (State.BOOTING, State.LEAVING, State.BARE)]
        return next(iter(idle or coming), None)

    def order(self, slot: Slot, reason: str, now: m.Now, *, grace: float | None = None, ask_only: bool = False) -> None:
        """End the slot's run for this reason: by the whole ladder, or by asking only.

        The first reason stands, with two exceptions: a run that was only asked to stop and did not still has its
        limits, and one that is not ours any more is nobody's.
        """
        run = slot.run
        if run is None or run.reason == FENCED:
            return
        if run.phase is RunPhase.OVER:
            if reason == FENCED and not run.complete:
                run.reason = FENCED  # what is still to be asked or called will not be
            return
        if run.phase is not RunPhase.RUNNING:
            self._order_beside_handler(slot, run, reason, now)
            return
        grace = run.limits.grace if grace is None else grace
        only_asked = run.ladder is not None and run.ladder.only_asks
        if run.reason is None or reason == FENCED or (only_asked and not ask_only):
            run.reason = reason
            run.ladder = Ladder.asking(now.mono, grace) if ask_only else Ladder.full(now.mono, grace)
        elif run.ladder is not None and not ask_only:
            run.ladder.harden(now.mono, grace)
        self._climb(slot, run, now)

    def _order_beside_handler(self, slot: Slot, run: Run, reason: str, now: m.Now) -> None:
        """An order for a run whose handler has not started, or has ended, or will not run at all."""
        if run.phase is RunPhase.SENT:
            run.reason = run.reason or reason
            if slot.state is State.BUSY:
                self._replace_idle(slot, run, now)
        elif run.phase is RunPhase.WAITING:
            self._order_waiting(slot, run, reason)
        elif reason == "shutdown" and isinstance(run.outcome, m.Release):
            return  # that is what it was ended for
        elif reason not in CANCELS:  # a cancel comes too late: the attempt is over, and storing it will cancel it
            run.reason = reason
            run.outcome = jobs.interrupted(run)
            run.calls = ()
            run.enter(RunPhase.OVER, now.mono)
            if reason != FENCED:
                self._tell_interrupted(slot, run)
            self._kill(slot, now)

    def _order_waiting(self, slot: Slot, run: Run, reason: str) -> None:
        if reason == FENCED:
            run.reason = FENCED
        elif reason in CANCELS:
            self._cancel(slot, run, reason)
        elif run.death is not None:
            run.outcome = jobs.interrupted(run)
            run.calls = ()
            self._tell_interrupted(slot, run)
        else:
            self._release(slot, run)
            return
        self._settle(slot, run)

    def _release(self, slot: Slot, run: Run) -> None:
        """It was never started: back to the queue, uncounted."""
        run.outcome = jobs.unstarted(run)
        self.out(m.Emit("job-released", self._about(slot)))
        self._settle(slot, run)

    def tell(self, slot: Slot) -> None:
        """Write the wish to stop down for a handler that looks, without a signal."""
        run = slot.run
        if run is not None and run.phase is RunPhase.RUNNING and run.reason is None:
            self.out(m.Interrupt(slot.name, slot.child, run.nonce, "shutdown", signal=False))

    def close(self) -> None:
        """Nothing runs any more: let the wardens go, with the idle children."""
        self.closing = True
        for slot in self.slots.values():
            if slot.can("close"):
                slot.move("close")
                slot.dismissed = True
                self.out(m.StopWarden(slot.name))

    def wardens_left(self) -> bool:
        return any(slot.state is not State.VACANT for slot in self.slots.values())

    def watch(self, slot: Slot) -> None:
        """Have the warden look at the run: is it blocked, how much memory, which title."""
        run = slot.run
        if run is None or run.watched or run.started is None or run.phase is not RunPhase.RUNNING:
            return
        run.watched = True
        self.out(m.Watch(slot.name, slot.child, run.nonce, run.job, run.limits, run.started))

    # ---- template and wardens --------------------------------------------------------------------------------------

    def template_ready(self, event: m.TemplateReady, now: m.Now) -> None:
        if event.job_types is not None:
            self.job_types = event.job_types
        self.generation = event.generation
        self.template_alive = True
        for slot in self.slots.values():
            self._renew_warden(slot)

    def _renew_warden(self, slot: Slot) -> None:
        """Let a warden of an older template go, once it has nothing to do."""
        spare = slot.run is None and slot.state in (State.BARE, State.BOOTING, State.IDLE)
        if spare and slot.generation not in (0, self.generation) and not slot.dismissed:
            slot.dismissed = True
            self.out(m.StopWarden(slot.name))

    def warden_started(self, event: m.WardenStarted, now: m.Now) -> None:
        slot = self.slots[event.slot]
        if slot.state is State.HIRING:
            slot.move("hired")

    def warden_exited(self, event: m.WardenExited, now: m.Now) -> None:
        """Expected, it was asked to leave or killed in place of its child; else it took its run with it."""
        slot = self.slots[event.slot]
        run, expected = slot.run, slot.dismissed
        slot.move("warden-gone")
        slot.dismissed = False
        slot.pid = None
        if not expected:
            self._pause(slot, now)
        if run is None or run.phase is RunPhase.WAITING:  # it waits for the slot's next child
            return
        if expected or run.reason is not None or run.outcome is not None:
            self._after_child(slot, run, m.Exit(term_signal=9), now)
        else:
            self.out(m.Emit("job-lost", {**self._about(slot, run), "how": f"its warden is gone ({event.how})"}))
            run.outcome = jobs.lost(run) if run.phase is not RunPhase.SENT else jobs.unstarted(run)
            self._settle(slot, run)

    # ---- children --------------------------------------------------------------------------------------------------

    def child_started(self, event: m.ChildStarted, now: m.Now) -> None:
        slot = self.slots[event.slot]
        if slot.has(event.child):
            slot.pid = event.pid
            self.out(m.Emit("child-started", {"slot": slot.name, "pid": event.pid}))

    def child_ready(self, event: m.ChildReady, now: m.Now) -> None:
        slot = self.slots[event.slot]
        if not slot.has(event.child) or slot.state is not State.BOOTING:
            return
        slot.move("ready")
        slot.failures = 0
        self.ever_ready = True
        if event.job_types is not None:
            self.job_types = event.job_types
        if slot.run is not None and not slot.dismissed:
            self._send(slot, slot.run, now)
        else:
            self._renew_warden(slot)

    def child_boot_failed(self, event: m.ChildBootFailed, now: m.Now) -> None:
        slot = self.slots[event.slot]
        if not slot.has(event.child):
            return
        self.out(m.Emit("boot-failed", {"slot": slot.name, "error": event.error}))
        if not event.forked:
            slot.move("buried")
            self._pause(slot, now)
        elif not self.ever_ready:
            self.booted_badly = event.error

    def child_exited(self, event: m.ChildExited, now: m.Now) -> None:
        slot = self.slots[event.slot]
        if not slot.has(event.child):
            return
        run, state = slot.run, slot.state
        self._tell_exit(slot, event.exit)
        slot.move("buried")
        slot.pid = None
        if state is State.BOOTING or (run is not None and run.phase is RunPhase.SENT and run.reason is None):
            self._pause(slot, now)
        if run is not None and run.phase is not RunPhase.WAITING:
            self._after_child(slot, run, event.exit, now)

    def child_unkillable(self, event: m.ChildUnkillable, now: m.Now) -> None:
        """SIGKILL did not end it. Its job is settled, its slot is not used; a later burial frees the slot."""
        slot = self.slots[event.slot]
        if not slot.has(event.child) or not slot.can("unkillable"):
            return
        slot.move("unkillable")
        self.out(m.Emit("child-unkillable", {**self._about(slot), "pids": list(event.survivors)}))
        if slot.run is not None:
            self._after_child(slot, slot.run, m.Exit(term_signal=9, survivors=event.survivors), now)

    def _tell_exit(self, slot: Slot, exit: m.Exit) -> None:
        data = {"slot": slot.name, "pid": slot.pid, "exit_code": exit.exit_code, "term_signal": exit.term_signal}
        self.out(m.Emit("child-exited", data))
        if exit.leftovers:
            self.out(m.Emit("leftovers-killed", {**self._about(slot), "count": exit.leftovers}))

    # ---- runs: what the child says ---------------------------------------------------------------------------------

    def job_started(self, event: m.JobStarted, now: m.Now) -> None:
        slot, run = self._run_of(event)
        if run is not None and run.phase is RunPhase.SENT:
            self._started(slot, run, now)

    def _started(self, slot: Slot, run: Run, now: m.Now) -> None:
        slot.jobs_run += 1
        run.enter(RunPhase.RUNNING, now.mono)
        run.started = now.mono
        run.facts["pid"] = slot.pid
        if slot.state is State.BUSY:
            slot.limit_at = None
        if run.limits.timeout is not None:
            run.limit_at = now.mono + run.limits.timeout
        if run.limits.memory is not None:
            self.watch(slot)

    def strategy_asked(self, event: m.StrategyAsked, now: m.Now) -> None:
        """The handler has ended, so its limits are over; the strategy has one of its own."""
        slot, run = self._run_of(event)
        if run is None or slot.state is not State.BUSY or run.phase not in (RunPhase.RUNNING, RunPhase.ASKING):
            return
        if run.phase is RunPhase.RUNNING:
            self._note(run, event)
            if run.reason in (None, *LIMITS):
                self._failed(slot, run, run.reason or event.reason)
            run.enter(RunPhase.ASKING, now.mono)
        slot.limit_at = now.mono + self.rules.callback_timeout + bounds.ASK_SLACK

    def job_returned(self, event: m.JobReturned, now: m.Now) -> None:
        slot, run = self._run_of(event)
        if run is None or run.phase is not RunPhase.RUNNING:
            return
        self._note(run, event)
        run.stays = self._may_stay(run, event)
        if run.reason in LIMITS:
            # The limit passed before the result came; whether it is tried again, a fresh child says.
            run.death = self._death(run, run.reason)
            self._failed(slot, run, run.reason)
        elif run.reason in CANCELS:
            self._cancel(slot, run, run.reason)
        elif run.reason != FENCED:
            run.outcome = jobs.succeeded(run, event.result)
            run.news = ("job-finished", {**self._about(slot), **run.facts})
        run.enter(RunPhase.OVER, now.mono)
        self._let_go(slot, run, now)

    def job_raised(self, event: m.JobRaised, now: m.Now) -> None:
        slot, run = self._run_of(event)
        if run is None or run.phase not in (RunPhase.RUNNING, RunPhase.ASKING):
            return
        if slot.state is State.DYING and run.reason not in (*CANCELS, "shutdown"):
            return  # the kill is under way: a post-mortem will ask again
        if run.phase is RunPhase.RUNNING:
            self._note(run, event)
        run.stays = self._may_stay(run, event)
        if run.reason in CANCELS:
            self._cancel(slot, run, run.reason)
        elif run.reason == "shutdown" and event.interrupted and run.death is None:
            run.outcome = jobs.interrupted(run)
            self._tell_interrupted(slot, run, event)
        elif event.interrupted and event.clean_interrupt and run.reason is None and run.death is None:
            # It looked (job.check()) after the wish to stop was written down, and left.
            run.outcome = jobs.interrupted(run)
            self._tell_interrupted(slot, run, event)
        elif run.reason != FENCED:
            self._fail(slot, run, event)
        if slot.state is State.BUSY:
            run.enter(RunPhase.CALLING, now.mono)
            slot.limit_at = now.mono + self.rules.callback_timeout
            self.out(m.SendCallbacks(slot.name, slot.child, run.nonce, run.calls))
        else:
            run.enter(RunPhase.OVER, now.mono)

    def callback_begun(self, event: m.CallbackBegun, now: m.Now) -> None:
        slot, run = self._run_of(event)
        if run is None or run.phase is not RunPhase.CALLING or slot.state is not State.BUSY:
            return
        run.calls = tuple(name for name in run.calls if name != event.name)
        slot.limit_at = now.mono + self.rules.callback_timeout

    def callbacks_done(self, event: m.CallbacksDone, now: m.Now) -> None:
        slot, run = self._run_of(event)
        if run is None or run.phase is not RunPhase.CALLING:
            return
        for name, error in event.errors.items():
            self.out(m.Emit(f"{name.replace('_', '-')}-error", {**self._about(slot), "error": error}))
        run.calls = ()
        run.enter(RunPhase.OVER, now.mono)
        self._let_go(slot, run, now)

    def verdict(self, event: m.Verdict, now: m.Now) -> None:
        _, run = self._run_of(event)
        if run is not None:
            run.undecided = run.undecided and (run.verdict is None and not event.computing)
            run.verdict = event

    def memory_held(self, event: m.MemoryHeld, now: m.Now) -> None:
        """Over the limit: the ladder; a quarter over: at once, or it takes the machine with it."""
        slot, run = self._run_of(event)
        if run is None or run.phase is not RunPhase.RUNNING or run.limits.memory is None:
            return
        if run.reason is None:
            run.facts["held"] = event.held
        hard = event.held > run.limits.memory * 1.25
        self.order(slot, "memory", now, grace=0.0 if hard else None)

    def garbage(self, event: m.Garbage, now: m.Now) -> None:
        slot = self.slots[event.slot]
        if slot.has(event.child) and slot.can("kill"):
            self.out(m.Emit("child-garbage", self._about(slot)))
            self._kill(slot, now)

    def kill_acknowledged(self, event: m.KillAcknowledged, now: m.Now) -> None:
        slot = self.slots[event.slot]
        if slot.has(event.child) and slot.state is State.DYING:
            slot.limit_at = now.mono + bounds.BURY_LIMIT

    def run_spared(self, event: m.RunSpared, now: m.Now) -> None:
        """A kill for one run found the child in another, or in none. It was stopped, so it is not used again."""
        slot = self.slots[event.slot]
        if not slot.has(event.child) or slot.state is not State.DYING:
            return
        run = slot.run
        if run is None or run.nonce != event.nonce or run.phase not in (RunPhase.SENT, RunPhase.RUNNING):
            self._kill(slot, now, again=True)
            return
        # It was sent a job, seemed not to start it, and had started it after all.
        slot.move("spared")
        run.given_up = False
        if run.phase is RunPhase.SENT:
            self._started(slot, run, now)
        run.ordered = True
        reason, run.reason = run.reason, None
        if reason is not None and reason != "shutdown":  # at shutdown its policy says what to do with it
            self.order(slot, reason, now, grace=0.0 if reason == FENCED else None)

    # ---- time ------------------------------------------------------------------------------------------------------

    def tick(self, now: m.Now) -> None:
        for slot in self.slots.values():
            if slot.run is not None:
                self._tick_run(slot, slot.run, now)
            if slot.limit_at is not None and now.mono >= slot.limit_at:
                self._too_long(slot, now)
            if not self._may_start(slot) or now.mono < slot.wait_until:
                continue
            if slot.state is State.VACANT:
                slot.move("hire")
                slot.generation = self.generation
                slot.limit_at = now.mono + bounds.START_LIMIT
                self.out(m.StartWarden(slot.name, self.generation))
            else:
                self._start_child(slot, now)

    def _may_start(self, slot: Slot) -> bool:
        """Whether a warden or a child is wanted, apart from a pause."""
        if self.closing or (self.draining and slot.run is None):
            return False
        return self.template_alive if slot.state is State.VACANT else slot.state is State.BARE and not slot.dismissed

    def _tick_run(self, slot: Slot, run: Run, now: m.Now) -> None:
        if run.phase is RunPhase.RUNNING:
            if run.limit_at is not None and now.mono >= run.limit_at:
                run.limit_at = None
                self.order(slot, "timeout", now)
            if not run.watched and run.started is not None and now.mono >= run.started + bounds.WATCH_AFTER:
                self.watch(slot)
            self._climb(slot, run, now)
        elif run.phase is RunPhase.WAITING and now.mono >= self._waits_until(run):
            if run.death is None:
                self._release(slot, run)
            else:
                self._abandon(slot, run, "no child could be started for it")

    def _waits_until(self, run: Run) -> float:
        """How long a run may wait for a child; a post-mortem longer than a job, which another slot could take."""
        limit = bounds.START_LIMIT if run.death is None else self.rules.boot_timeout + self.rules.callback_timeout
        return run.since + limit

    def _too_long(self, slot: Slot, now: m.Now) -> None:
        """The slot's state has lasted longer than it may."""
        slot.limit_at = None
        run = slot.run
        if slot.state is State.HIRING:
            slot.limit_at = now.mono + bounds.START_LIMIT  # the template is slow or gone; its exit will tell
        elif slot.state is State.BOOTING:
            error = f"no child was ready within {self.rules.boot_timeout:g} s"
            self.out(m.Emit("boot-failed", {"slot": slot.name, "error": error}))
            if not self.ever_ready:
                self.booted_badly = error
            self._kill(slot, now)
        elif slot.state is State.BUSY and run is not None and run.phase is RunPhase.SENT:
            self._replace_idle(slot, run, now)
        elif slot.state is State.BUSY and run is not None and run.phase is RunPhase.CALLING:
            self._callback_lost(slot, run, f"it took longer than {self.rules.callback_timeout:g} s")
            run.enter(RunPhase.OVER, now.mono)
            self._kill(slot, now)
        elif slot.state is State.BUSY and run is not None and run.phase is RunPhase.ASKING:
            self._strategy_lost(slot, run, f"the retry strategy took longer than {self.rules.callback_timeout:g} s")
            run.enter(RunPhase.OVER, now.mono)
            self._kill(slot, now)
        elif slot.state is State.LEAVING:
            self._kill(slot, now)
        elif slot.state is State.DYING:
            self._kill_harder(slot, now)

    def deadlines(self) -> Iterable[float]:
        """When (mono) something of the pool is due."""
        for slot in self.slots.values():
            if slot.limit_at is not None:
                yield slot.limit_at
            if self._may_start(slot):
                yield slot.wait_until
            run = slot.run
            if run is None:
                continue
            if run.phase is RunPhase.RUNNING:
                if run.limit_at is not None:
                    yield run.limit_at
                if run.ladder is not None and run.ladder.deadline is not None:
                    yield run.ladder.deadline
                if not run.watched and run.started is not None:
                    yield run.started + bounds.WATCH_AFTER
            elif run.phase is RunPhase.WAITING:
                yield self._waits_until(run)

    # ---- steps -----------------------------------------------------------------------------------------------------

    def _start_child(self, slot: Slot, now: m.Now) -> None:
        slot.move("fork")
        self.children += 1
        slot.child = self.children
        slot.jobs_run = 0
        slot.kill_stage = 0
        slot.limit_at = now.mono + self.rules.boot_timeout
        self.out(m.StartChild(slot.name, slot.child))

    def _send(self, slot: Slot, run: Run, now: m.Now) -> None:
        slot.move("send")
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
        for step in run.ladder.due(now.mono):
            run.ordered = True
            self.out(m.Emit("ladder-step", {**self._about(slot), "step": step.value, "reason": run.reason}))
            if step is Step.INTERRUPT and run.reason != FENCED:
                self.out(m.Interrupt(slot.name, slot.child, run.nonce, str(run.reason)))
            elif step is Step.TERMINATE:
                self.out(m.Terminate(slot.name, slot.child, run.nonce))
            elif step is Step.KILL and slot.can("kill") and slot.state is not State.DYING:
                slot.move("kill")
                slot.limit_at = now.mono + bounds.KILL_PATIENCE
                self.out(m.Kill(slot.name, slot.child, run.nonce))

    def _kill(self, slot: Slot, now: m.Now, *, again: bool = False) -> None:
        """Kill the child whatever it is doing."""
        if not slot.can("kill") or (slot.state is State.DYING and not again):
            return
        slot.move("kill")
        slot.limit_at = now.mono + bounds.KILL_PATIENCE
        self.out(m.Kill(slot.name, slot.child))

    def _kill_harder(self, slot: Slot, now: m.Now) -> None:
        """The kill was not acknowledged, or the burial lasts too long."""
        slot.kill_stage += 1
        if slot.kill_stage == 1:
            slot.limit_at = now.mono + bounds.KILL_PATIENCE
            self.out(m.ContinueWarden(slot.name))
        elif slot.kill_stage == 2:
            slot.dismissed = True
            slot.limit_at = now.mono + bounds.BURY_LIMIT
            self.out(m.KillDirectly(slot.name, slot.child))
        else:
            self.child_unkillable(m.ChildUnkillable(slot.name, slot.child, ()), now)

    def _replace_idle(self, slot: Slot, run: Run, now: m.Now) -> None:
        run.given_up = True
        slot.move("kill")
        slot.limit_at = now.mono + bounds.KILL_PATIENCE
        self.out(m.ReplaceIdle(slot.name, slot.child, run.nonce))

    def _retire(self, slot: Slot, now: m.Now) -> None:
        slot.move("retire")
        slot.limit_at = now.mono + bounds.LEAVE_LIMIT
        self.out(m.Retire(slot.name, slot.child))

    def _pause(self, slot: Slot, now: m.Now) -> None:
        """Wait before the next boot: 1, 2, 4 … seconds, spread by up to a quarter."""
        slot.failures += 1
        seconds = min(bounds.BACKOFF_LIMIT, 2.0 ** min(slot.failures - 1, 10))
        slot.wait_until = now.mono + seconds * (1 + 0.25 * self.rng())

    # ---- endings ---------------------------------------------------------------------------------------------------

    def _note(self, run: Run, event: m.JobReturned | m.StrategyAsked | m.JobRaised) -> None:
        """Keep what the child tells of a handler that has ended."""
        run.limit_at = None
        if not isinstance(event, m.JobReturned):
            run.error = event.error
        run.facts |= {"wall_s": event.wall_s, "cpu_s": event.cpu_s, "max_rss": event.max_rss}

    def _may_stay(self, run: Run, event: m.JobReturned | m.JobRaised) -> bool:
        return event.clean and event.worked_s < self.rules.recycle_after and not run.ordered

    def _let_go(self, slot: Slot, run: Run, now: m.Now) -> None:
        """The child has said all: it stays for another job, and the outcome is settled; or it goes first."""
        if slot.state is not State.BUSY:
            return
        if run.stays and not run.ordered and run.outcome is not None and slot.generation == self.generation:
            slot.move("keep")
            self._settle(slot, run)
        else:
            self._retire(slot, now)

    def _after_child(self, slot: Slot, run: Run, exit: m.Exit, now: m.Now) -> None:
        """Nothing of the run's child is left. Settle, or find out what its death means."""
        if run.reason == FENCED:
            self._settle(slot, run)
        elif run.phase is RunPhase.SENT:
            self._died_unstarted(slot, run)
        elif run.phase is RunPhase.RUNNING:
            self._died_running(slot, run, exit, now)
        else:
            self._died_afterwards(slot, run, exit, now)

    def _cancel(self, slot: Slot, run: Run, reason: str) -> None:
        run.outcome = jobs.cancelled(run, reason)
        run.news = ("job-cancelled", {**self._about(slot), "reason": reason})

    def _died_unstarted(self, slot: Slot, run: Run) -> None:
        if run.reason in CANCELS:
            self._cancel(slot, run, run.reason)
            self._settle(slot, run)
        else:
            self._release(slot, run)

    def _died_running(self, slot: Slot, run: Run, exit: m.Exit, now: m.Now) -> None:
        assert run.started is not None
        run.facts |= {"wall_s": now.mono - run.started, "exit_code": exit.exit_code, "term_signal": exit.term_signal}
        if slot.jobs_run == 1:
            run.facts |= {"cpu_s": exit.cpu_s, "max_rss": exit.max_rss}
        if run.reason in CANCELS:
            self._cancel(slot, run, run.reason)
            self._settle(slot, run)
        elif run.reason == "shutdown":
            run.outcome = jobs.interrupted(run)
            self._tell_interrupted(slot, run)
            self._settle(slot, run)
        elif run.given_up:
            self._release(slot, run)  # it started at last, and ended, just before we killed its child for that
        elif run.reason is None and slot.jobs_run > 1:
            run.outcome = jobs.blamed_on_another(run)
            self.out(m.Emit("job-crashed", {**self._about(slot, run), **_end(exit), "goes": "to a fresh child"}))
            self._settle(slot, run)
        else:
            reason = run.reason or "crash"
            run.death = self._death(run, reason, exit)
            self._failed(slot, run, reason)
            self._ask_postmortem(slot, run, now)

    def _died_afterwards(self, slot: Slot, run: Run, exit: m.Exit, now: m.Now) -> None:
        """The handler had ended. What strategy or callback took with it gets another child."""
        if run.phase is RunPhase.ASKING and run.reason in CANCELS:
            self._cancel(slot, run, str(run.reason))
        elif run.phase is RunPhase.ASKING and run.reason == "shutdown":
            run.outcome = jobs.interrupted(run)
            self._tell_interrupted(slot, run)
        elif run.phase is RunPhase.ASKING:
            self._strategy_lost(slot, run, f"the child that asked the retry strategy died ({how(exit)})")
        elif run.phase is RunPhase.CALLING:
            self._callback_lost(slot, run, f"the child that called it died ({how(exit)})")
        if run.complete:
            self._settle(slot, run)
        elif run.postmortems < bounds.POSTMORTEMS:
            self._ask_postmortem(slot, run, now)
        else:
            self._abandon(slot, run, f"{run.postmortems} children died over it")

    def _ask_postmortem(self, slot: Slot, run: Run, now: m.Now) -> None:
        """The run stays in its slot, for the next child to be asked about it."""
        run.enter(RunPhase.WAITING, now.mono)
        run.postmortems += 1
        run.ordered = False
        if slot.state is not State.QUARANTINED:
            return
        slot.run = None
        other = self._place_for(run.job, slot.lane)
        if other is None:
            slot.run = run
            self._abandon(slot, run, "no slot is left for it")
            return
        other.run = run
        if other.state is State.IDLE:
            self._send(other, run, now)

    def _death(self, run: Run, reason: str, exit: m.Exit | None = None) -> dict[str, Any]:
        death: dict[str, Any] = {"reason": reason, "timeout": run.limits.timeout, "memory": run.limits.memory}
        death["held"] = run.facts.get("held")
        if exit is not None:
            death |= {"exit_code": exit.exit_code, "term_signal": exit.term_signal}
        return death

    def _failed(self, slot: Slot, run: Run, reason: str) -> None:
        """Tell how the attempt failed, and remember it."""
        run.failed = reason
        told: dict[str, Any] = {"wall_s": run.facts.get("wall_s"), "error": run.error}
        if reason in LIMITS:
            told[reason] = getattr(run.limits, reason)
        told |= {key: (run.death or {}).get(key) for key in ("exit_code", "term_signal")}
        told["held"] = run.facts.pop("held", None)
        told = {key: value for key, value in told.items() if value is not None}
        self.out(m.Emit(jobs.ENDINGS[reason].event, {**self._about(slot, run), **told}))

    def _fail(self, slot: Slot, run: Run, event: m.JobRaised) -> None:
        """A child has asked the strategy, or answers a post-mortem. Decide what follows and which callbacks run."""
        if run.outcome is not None:
            return  # decided before, in a child that died before it called failed_job
        if run.failed is None:
            self._failed(slot, run, run.reason if run.reason in LIMITS else event.reason)
        run.error = event.error
        if event.strategy_error is not None:
            self.out(m.Emit("retry-strategy-error", {**self._about(slot), "error": event.strategy_error}))
        self._decide(slot, run, event.strategy)
        retried = isinstance(run.outcome, m.Retry)
        run.calls = ("failed_attempt",) if retried else ("failed_attempt", "failed_job")

    def _strategy_lost(self, slot: Slot, run: Run, message: str) -> None:
        """The strategy hangs or took its child with it. It is not asked again; the callbacks still have their turn."""
        self.out(m.Emit("retry-strategy-error", {**self._about(slot), "error": {"message": message}}))
        self._ask_no_more(run)

    def _callback_lost(self, slot: Slot, run: Run, message: str) -> None:
        self.out(m.Emit("callback-error", {**self._about(slot), "error": {"message": message}}))
        self._ask_no_more(run)

    def _ask_no_more(self, run: Run) -> None:
        run.death = {**(run.death or {"reason": run.failed, "error": run.error}), "ask": False}

    def _abandon(self, slot: Slot, run: Run, message: str) -> None:
        """There is nobody to ask the strategy or to call failed_job."""
        name = "retry-strategy-error" if run.outcome is None else "callback-error"
        self.out(m.Emit(name, {**self._about(slot), "error": {"message": message}}))
        if run.outcome is None:
            self._decide(slot, run, None)
        self._settle(slot, run)

    def _decide(self, slot: Slot, run: Run, strategy: m.Strategy | None) -> None:
        assert run.failed is not None
        failure = jobs.failed(run, run.failed, strategy, self.rules)
        run.outcome = failure.outcome
        about = {**self._about(slot), "retries_left": failure.retries_left}
        if failure.delay is None:
            self.out(m.Emit("not-retrying", about))
        else:
            self.out(m.Emit("retrying", {**about, "retry_in": failure.delay}))

    def _settle(self, slot: Slot, run: Run) -> None:
        """The run is over and nothing of it is left."""
        slot.run = None
        if run.outcome is not None and run.reason != FENCED:
            self.settle(run.outcome, run.news)
        self._renew_warden(slot)

    # ---- words -----------------------------------------------------------------------------------------------------

    def _tell_interrupted(self, slot: Slot, run: Run, event: m.JobRaised | None = None) -> None:
        data = {**self._about(slot, run), "wall_s": run.facts.get("wall_s")}
        if event is None or event.clean_interrupt:
            self.out(m.Emit("job-interrupted", data))
        else:
            self.out(m.Emit("handle-job-exception-with-interrupt", {**data, "error": event.error}))

    def _about(self, slot: Slot, run: Run | None = None) -> dict[str, Any]:
        run = run or slot.run
        about = run.about if run is not None else {}
        pid = slot.pid if run is None else run.facts.get("pid", slot.pid)  # a post-mortem tells of another process
        return {**about, "slot": slot.name, "pid": pid}

    def _run_of(self, event: _OfRun) -> tuple[Slot, Run | None]:
        """The run that a message speaks of, if the slot still has it."""
        slot = self.slots[event.slot]
        run = slot.run
        if run is None or not slot.has(event.child) or run.nonce != event.nonce:
            return slot, None
        return slot, run

    HANDLERS: ClassVar[dict[type, Callable[[Any, Any, m.Now], None]]] = {
        m.WardenStarted: warden_started,
        m.WardenExited: warden_exited,
        m.ChildStarted: child_started,
        m.ChildReady: child_ready,
        m.ChildBootFailed: child_boot_failed,
        m.ChildExited: child_exited,
        m.ChildUnkillable: child_unkillable,
        m.JobStarted: job_started,
        m.JobReturned: job_returned,
        m.StrategyAsked: strategy_asked,
        m.JobRaised: job_raised,
        m.CallbackBegun: callback_begun,
        m.CallbacksDone: callbacks_done,
        m.Verdict: verdict,
        m.MemoryHeld: memory_held,
        m.Garbage: garbage,
        m.KillAcknowledged: kill_acknowledged,
        m.RunSpared: run_spared,
    }


def how(exit: m.Exit) -> str:
    """How a process ended, in words."""
    if exit.term_signal is not None:
        return f"signal {exit.term_signal}"
    return f"exit code {exit.exit_code}"


def _end(exit: m.Exit) -> dict[str, Any]:
    return {"exit_code": exit.exit_code, "term_signal": exit.term_signal}
