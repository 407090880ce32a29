"""The slots and their runs: who gets which job, what a message from a child means, and which step is due.

A run is settled once: when its outcome is decided *and* nothing of it is left, which is the child's own word where it
stays for another job, and its warden's word where it goes.

Five files, each building on the next: here what happens and when something is due; ``endings`` what the end of a run
means; ``sizes`` how many slots there are; ``ahead`` which slot gets a job; ``steps`` what is done to a slot. The pool
knows nothing of the database: outcomes go to the book.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Any, ClassVar, Final

from ganger.core import job as jobs
from ganger.core import messages as m
from ganger.core import rules as bounds
from ganger.core.endings import Endings, how
from ganger.core.job import CANCELS, FENCED, LIMITS, Run
from ganger.core.job import Phase as RunPhase
from ganger.core.ladder import Ladder
from ganger.core.slot import Slot, State

_OfRun = (
    m.JobStarted
    | m.ProgressTold
    | m.CheckpointGiven
    | m.JobReturned
    | m.StrategyAsked
    | m.JobRaised
    | m.CallbackBegun
    | m.CallbacksDone
    | m.Verdict
    | m.MemoryHeld
    | m.Stalled
    | m.OutputKept
    | m.StackTaken
)

_STIRS_NOBODY: Final = frozenset({m.Tick, m.Stored, m.CheckpointStored, m.Notified, m.IdleSaid})


class Pool(Endings):
    """Messages of the gang come in through ``HANDLERS``, orders through the methods; its state is in ``Steps``."""

    __slots__ = ()

    # ---- what others ask of it -------------------------------------------------------------------------------------

    @property
    def runs(self) -> list[tuple[Slot, Run]]:
        return [(slot, slot.run) for slot in self.slots.values() if slot.run is not None]

    @property
    def has_work(self) -> bool:
        return any(slot.run is not None for slot in self.slots.values()) or any(self.waiting())

    def free(self) -> list[int]:
        """Free slots per lane."""
        counts = [0] * len(self.rules.lanes)
        for slot in self.slots.values():
            if slot.free:
                counts[slot.lane] += 1
        return counts

    def assign(self, job: m.Job, lane: int, now: m.Now) -> bool:
        """Give a claimed job to a slot of its lane, or let it wait for one. False: it does not wait here."""
        self.paces[lane].claimed(len(job.payload))
        declared = (self.job_types or {}).get(job.job_type)
        run = Run(job, 0, jobs.limits(job, declared, self.rules), now.boot, now.mono)
        if job.losses >= self.rules.max_losses:
            run.failed = "lost"
            run.death = {"reason": "lost", "losses": job.losses}
        elif unfit := jobs.unfit(job, self.rules):
            run.failed = unfit.reason
            run.error = {"type": unfit.kind, "message": unfit.message}
            run.death = {"reason": unfit.reason, "error": run.error}
        slot = self._place_for(job, lane)
        if slot is not None:
            self._give(slot, run, now)
        elif self.draining:
            return False
        elif job.losses:  # whatever took its host may do so again, and nobody is to be lost twice for having waited
            self.paces[lane].careful = True
            return False
        else:
            self.backlog[lane].append(run)
        return True

    def order(self, slot: Slot, reason: str, now: m.Now, *, grace: float | None = None, ask_only: bool = False) -> None:
        """End the slot's run for this reason: by the whole ladder, or by asking only.

        The first reason stands, with two exceptions: a run that was only asked to stop and did not still has its
        limits, and one that is not ours any more is nobody's.
        """
        run = slot.run
        slot.due = -inf
        if run is None or run.reason == FENCED:
            return
        if run.phase is RunPhase.OVER:
            if reason == FENCED and not run.complete:
                run.reason = FENCED  # what is still to be asked or called will not be
            self._hasten(slot, run, now, grace)
            return
        if run.phase is not RunPhase.RUNNING:
            self._order_beside_handler(slot, run, reason, now, grace)
            return
        grace = run.limits.grace if grace is None else grace
        only_asked = run.ladder is not None and run.ladder.only_asks
        if run.reason is None or reason == FENCED or (only_asked and not ask_only):
            run.reason = reason
            run.ladder = Ladder.asking(now.mono, grace) if ask_only else Ladder.full(now.mono, grace)
        elif run.ladder is not None and not ask_only:
            run.ladder.harden(now.mono, grace)
        if run.ladder is not None:
            run.ends_by(run.ladder)
        self._climb(slot, run, now)

    def _hasten(self, slot: Slot, run: Run, now: m.Now, grace: float | None) -> None:
        """The handler has ended, but what it has started may be there: that goes by the order's ladder too."""
        run.ends_by(Ladder.full(now.mono, run.limits.grace if grace is None else grace))
        if slot.limit_at is not None and (slot.state is State.LEAVING or (slot.state is State.BUSY and run.leftovers)):
            slot.limit_at = min(slot.limit_at, run.gone_by)

    def _order_beside_handler(self, slot: Slot, run: Run, reason: str, now: m.Now, grace: float | None) -> None:
        """An order for a run whose handler has not started, or has ended, or will not run at all."""
        if run.phase is RunPhase.SENT:
            run.reason = run.reason or reason
            if slot.state is State.BUSY:
                self._replace_idle(slot, run, now)
        elif run.phase is RunPhase.WAITING:
            self._order_waiting(slot, run, reason)
        elif reason == "shutdown" and isinstance(run.outcome, m.Release):
            return  # that is what it was ended for
        elif reason in CANCELS:  # too late: the attempt is over, and storing it will cancel it
            self._hasten(slot, run, now, grace)
        else:
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

    def tell(self, slot: Slot) -> None:
        """Write the wish to stop down for a handler that looks, without a signal."""
        run = slot.run
        if run is not None and run.phase is RunPhase.RUNNING and run.reason is None:
            self.out(m.Interrupt(slot.name, slot.child, run.nonce, "shutdown", signal=False))

    def giver(self, event: m.CheckpointGiven) -> Run | None:
        """The run whose handler gives a checkpoint, if it is still ours."""
        _, run = self._run_of(event)
        return run if run is not None and run.phase is RunPhase.RUNNING and run.reason != FENCED else None

    def answer(self, event: m.CheckpointStored) -> None:
        """Tell the handler, if it still runs."""
        for slot, run in self.runs:
            if run.job.run_id == event.run_id and run.phase is RunPhase.RUNNING:
                self.out(m.SendAnswer(slot.name, slot.child, run.nonce, event.number, event.error))

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

    def has_wardens_of(self, generation: int) -> bool:
        return any(slot.generation == generation and slot.state is not State.VACANT for slot in self.slots.values())

    def warden_started(self, event: m.WardenStarted, now: m.Now) -> None:
        slot = self.slots[event.slot]
        if slot.state is State.HIRING:
            slot.move("hired")

    def warden_exited(self, event: m.WardenExited, now: m.Now) -> None:
        """Expected, it was asked to leave or killed in place of its child; else it took its run with it."""
        slot = self.slots[event.slot]
        if slot.state is State.CLOSED and not self.closing:  # it was a slot too many
            self._forget_slot(slot)
            self.share_cores()
            return
        run, expected = slot.run, slot.dismissed
        if slot.state is State.HIRING and not expected:
            error = f"its warden could not be started ({event.how})"
            self.out(m.Emit("boot-failed", {"slot": slot.name, "error": error}))
        slot.move("warden-gone")
        self._take_back(slot, now)
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
            self._let_idle(slot, now)

    def child_boot_failed(self, event: m.ChildBootFailed, now: m.Now) -> None:
        slot = self.slots[event.slot]
        if not slot.has(event.child):
            return
        self.out(m.Emit("boot-failed", {"slot": slot.name, "error": event.error}))
        if not event.forked:
            slot.move("buried")
            self._pause(slot, now)
            return
        slot.complained = True
        if not self.ever_ready:
            self.booted_badly = event.error

    def child_exited(self, event: m.ChildExited, now: m.Now) -> None:
        slot = self.slots[event.slot]
        if not slot.has(event.child):
            return
        run, state = slot.run, slot.state
        self._tell_exit(slot, event.exit)
        slot.move("buried")
        self._take_back(slot, now)
        slot.pid = None
        if state is State.BOOTING or (run is not None and run.phase is RunPhase.SENT and run.reason is None):
            self._pause(slot, now)
        if state is State.BOOTING and not (slot.complained or slot.dismissed):
            self._died_booting(slot, event.exit)
        if run is not None and run.phase is not RunPhase.WAITING:
            self._after_child(slot, run, event.exit, now)

    def _died_booting(self, slot: Slot, exit: m.Exit) -> None:
        """A start hook took the child with it, or somebody killed it. Once may be bad luck, and later it is tried again
        ever more slowly; where no child was ever ready, some tries are enough to tell that none will be."""
        error = f"the child ended before it was ready ({how(exit)})"
        self.out(m.Emit("boot-failed", {"slot": slot.name, "error": error}))
        if not self.ever_ready and slot.failures >= bounds.BOOT_CRASHES:
            self.booted_badly = error

    def child_unkillable(self, event: m.ChildUnkillable, now: m.Now) -> None:
        """SIGKILL did not end it. Its job is settled, its slot is not used; a later burial frees the slot."""
        slot = self.slots[event.slot]
        if not slot.has(event.child) or not slot.can("unkillable"):
            return
        slot.move("unkillable")
        self._take_back(slot, now)
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
        elif slot.has(event.child) and slot.next and slot.next[0].nonce == event.nonce:
            slot.next[0].enter(RunPhase.RUNNING, now.mono)  # though we are ending the child for the run before

    def _started(self, slot: Slot, run: Run, now: m.Now) -> None:
        slot.jobs_run += 1
        run.enter(RunPhase.RUNNING, now.mono)
        run.started = now.mono
        run.facts["pid"] = slot.pid
        if slot.state is State.BUSY:
            slot.limit_at = None
        if run.limits.timeout is not None:
            run.limit_at = now.mono + run.limits.timeout
            run.ends_by(Ladder.full(run.limit_at, run.limits.grace))
        if run.limits.memory is not None:
            self.watch(slot)

    def strategy_asked(self, event: m.StrategyAsked, now: m.Now) -> None:
        """The handler has ended, so its limits are over; the strategy has one of its own."""
        slot, run = self._run_of(event)
        if run is None or slot.state is not State.BUSY or run.phase not in (RunPhase.RUNNING, RunPhase.ASKING):
            return
        if run.phase is RunPhase.RUNNING:
            self._note(run, event)
            if self._leaves_too_much(run):
                self._goes_with_leftovers(slot, run, now)
                self._kill(slot, now)
                return
            if run.reason in (None, *LIMITS):
                self._failed(slot, run, run.reason or event.reason)
            run.enter(RunPhase.ASKING, now.mono)
        slot.limit_at = run.asked_by(now.mono + self.rules.callback_timeout + bounds.ASK_SLACK)

    def job_returned(self, event: m.JobReturned, now: m.Now) -> None:
        slot, run = self._run_of(event)
        if run is None or run.phase is not RunPhase.RUNNING:
            return
        self._note(run, event)
        run.stays = self._may_stay(run, event)
        self.paces[slot.lane].ended(event.wall_s)
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
        self._take_back(slot, now)  # the child drops it: callbacks come first
        if slot.state is State.BUSY and self._leaves_too_much(run):
            self._goes_with_leftovers(slot, run, now)
            self._retire(slot, now)
            return
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
            slot.limit_at = run.asked_by(now.mono + self.rules.callback_timeout)
            self.out(m.SendCallbacks(slot.name, slot.child, run.nonce, run.calls))
        else:
            run.enter(RunPhase.OVER, now.mono)

    def callback_begun(self, event: m.CallbackBegun, now: m.Now) -> None:
        slot, run = self._run_of(event)
        if run is None or run.phase is not RunPhase.CALLING or slot.state is not State.BUSY:
            return
        run.calls = tuple(name for name in run.calls if name != event.name)
        slot.limit_at = run.asked_by(now.mono + self.rules.callback_timeout)

    def callbacks_done(self, event: m.CallbacksDone, now: m.Now) -> None:
        slot, run = self._run_of(event)
        if run is None or run.phase is not RunPhase.CALLING:
            return
        for name, error in event.errors.items():
            self.out(m.Emit(f"{name.replace('_', '-')}-error", {**self._about(slot), "error": error}))
        run.calls = ()
        run.enter(RunPhase.OVER, now.mono)
        self._let_go(slot, run, now)

    def progress_told(self, event: m.ProgressTold, now: m.Now) -> None:
        _, run = self._run_of(event)
        if run is not None:
            run.progress = jobs.progress(run, event.done, event.note, now.mono)

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

    def stalled(self, event: m.Stalled, now: m.Now) -> None:
        """Somebody is to know; it is not ended for that."""
        slot, run = self._run_of(event)
        if run is not None and run.phase is RunPhase.RUNNING and run.reason is None:
            self.out(m.Emit("job-stalled", {**self._about(slot, run), "seconds": event.seconds}))

    def output_kept(self, event: m.OutputKept, now: m.Now) -> None:
        _, run = self._run_of(event)
        if run is not None:
            run.kept["output"] = event.text

    def stack_taken(self, event: m.StackTaken, now: m.Now) -> None:
        """Where it was when its limit passed; what an operator asked for is the operator's."""
        _, run = self._run_of(event)
        if run is not None and run.reason in LIMITS:
            run.kept["stack"] = event.text

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
        if slot.next and slot.next[0].nonce == event.nonce:
            slot.move("spared")  # it had told of the run that was to be ended, and has gone on
            return
        if run is None or run.nonce != event.nonce or run.phase not in (RunPhase.SENT, RunPhase.RUNNING):
            self._kill(slot, now, again=True)
            return
        # It was sent a job, seemed not to start it, and had started it after all.
        slot.move("spared")
        run.given_up = False
        if run.phase is RunPhase.SENT:
            self._started(slot, run, now)
        run.ordered = slot.tainted = True
        reason, run.reason = run.reason, None
        if reason is not None and reason != "shutdown":  # at shutdown its policy says what to do with it
            self.order(slot, reason, now, grace=0.0 if reason == FENCED else None)

    # ---- time ------------------------------------------------------------------------------------------------------

    def stir(self, event: m.Event) -> None:
        """Have the slots looked at to which this may have done something. With those that are due, and those that were
        moved or given an order, they are all that a Tick looks at: a turn over many slots costs what one over two does.
        """
        name = getattr(event, "slot", None)
        if name is not None:
            stirred = [self.slots[name]] if name in self.slots else []
        else:
            stirred = [] if type(event) in _STIRS_NOBODY else list(self.slots.values())
        for slot in stirred:
            slot.due = -inf

    def tick(self, now: m.Now) -> None:
        self.shrink()
        self._tick_backlog(now)
        for slot in self.slots.values():
            if slot.due <= now.mono:
                self._tick_slot(slot, now)
                slot.due = self.due(slot)

    def _tick_slot(self, slot: Slot, now: m.Now) -> None:
        self._tick_sent(slot, now)
        if slot.run is not None:
            self._tick_run(slot, slot.run, now)
        if slot.limit_at is not None and now.mono >= slot.limit_at:
            self._too_long(slot, now)
        if not self._may_start(slot) or now.mono < slot.wait_until:
            return
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
        elif slot.state is State.BUSY and run is not None and run.phase in (RunPhase.ASKING, RunPhase.CALLING):
            self._asked_too_long(slot, run, now)
            self._kill(slot, now)
        elif slot.state is State.LEAVING:
            self._kill(slot, now)
        elif slot.state is State.DYING:
            self._kill_harder(slot, now)

    def deadlines(self) -> Iterable[float]:
        """When (mono) something of the pool is due."""
        yield from self._deadlines_of_backlog()
        due = min((slot.due for slot in self.slots.values()), default=inf)
        if due < inf:
            yield due

    def due(self, slot: Slot) -> float:
        """When (mono) the slot is to be looked at, unless something happens to it before."""
        due = self._patience(slot)
        if slot.limit_at is not None:
            due = min(due, slot.limit_at)
        if self._may_start(slot):
            due = min(due, slot.wait_until)
        run = slot.run
        if run is not None and run.phase is RunPhase.RUNNING:
            if run.limit_at is not None:
                due = min(due, run.limit_at)
            if run.ladder is not None and run.ladder.deadline is not None:
                due = min(due, run.ladder.deadline)
            if not run.watched and run.started is not None:
                due = min(due, run.started + bounds.WATCH_AFTER)
        elif run is not None and run.phase is RunPhase.WAITING:
            due = min(due, self._waits_until(run))
        return due

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
        m.ProgressTold: progress_told,
        m.Verdict: verdict,
        m.MemoryHeld: memory_held,
        m.Stalled: stalled,
        m.OutputKept: output_kept,
        m.StackTaken: stack_taken,
        m.Garbage: garbage,
        m.KillAcknowledged: kill_acknowledged,
        m.RunSpared: run_spared,
        m.RunRevoked: Endings.run_revoked,
    }
