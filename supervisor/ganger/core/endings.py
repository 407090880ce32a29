"""What the end of a run means: from a child's last word, or from its death, to the outcome.

Every failure passes through one place (``_fail``), asked either in the child that failed or, where that is dead, in a
post-mortem in a fresh one. What an outcome costs the job is the accounting of ``job``; that it is settled only when
nothing of the run is left is the order of the calls in ``pool``.
"""

from __future__ import annotations

from math import inf
from typing import Any, Final

from ganger.core import job as jobs
from ganger.core import messages as m
from ganger.core import rules as bounds
from ganger.core.job import CANCELS, FENCED, LIMITS, Run
from ganger.core.job import Phase as RunPhase
from ganger.core.sizes import Sizes
from ganger.core.slot import Slot, State


class Endings(Sizes):
    """The part of ``Pool`` that judges how a run ended."""

    __slots__ = ()

    # ---- the child has said all ------------------------------------------------------------------------------------

    def _note(self, run: Run, event: m.JobReturned | m.StrategyAsked | m.JobRaised) -> None:
        """Keep what the child tells of a handler that has ended."""
        run.limit_at = None
        if not isinstance(event, m.JobReturned):
            run.error = event.error
            run.leftovers = event.leftovers
        run.facts |= {"wall_s": event.wall_s, "cpu_s": event.cpu_s, "max_rss": event.max_rss}

    def _leaves_too_much(self, run: Run) -> bool:
        """Whether it is past a limit, and what it has started lives on with its child: that is not asked then."""
        return run.leftovers and run.reason in LIMITS

    def _goes_with_leftovers(self, slot: Slot, run: Run, now: m.Now) -> None:
        """Its child goes, and with it what the job has started; a fresh one is asked about it."""
        reason = run.failed or str(run.reason)
        run.death = self._death(run, reason)
        if reason not in LIMITS:
            run.death["error"] = run.error
        if run.failed is None:
            self._failed(slot, run, reason)
        run.enter(RunPhase.OVER, now.mono)

    def _may_stay(self, run: Run, event: m.JobReturned | m.JobRaised) -> bool:
        """The child's own rule (``ganger_child.child``), by what it said."""
        return event.clean and event.worked_s < self.rules.recycle_after

    def _let_go(self, slot: Slot, run: Run, now: m.Now) -> None:
        """The child has said all: it stays for another job, and the outcome is settled; or it goes first."""
        settled = run.outcome is not None
        if run.stays and slot.next and settled:
            self._settle(slot, run)
            self._promote(slot, now)
        elif slot.state is not State.BUSY:
            return
        elif run.stays and slot.next:  # it goes on, though this run needs a fresh child
            self._kill(slot, now)
        elif run.stays and settled and self._is_to_stay(slot):
            slot.move("keep")
            self._settle(slot, run)
            self._feed(slot, now)
        else:
            self._take_back(slot, now)
            self._retire(slot, now)

    def _is_to_stay(self, slot: Slot) -> bool:
        return not slot.tainted and slot.generation == self.generation and not self.surplus[slot.lane]

    # ---- nothing is left of the child ------------------------------------------------------------------------------

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
        if exit.by_kernel and run.reason is None and not run.given_up:
            run.kept["ended_by"] = "kernel"
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
            run.death = {**self._death(run, reason, exit), "wall_s": run.facts["wall_s"]}
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

    def _death(self, run: Run, reason: str, exit: m.Exit | None = None) -> dict[str, Any]:
        death: dict[str, Any] = {"reason": reason, "timeout": run.limits.timeout, "memory": run.limits.memory}
        death["held"] = run.facts.get("held")
        if exit is not None:
            death |= {"exit_code": exit.exit_code, "term_signal": exit.term_signal}
        return death

    def _ask_postmortem(self, slot: Slot, run: Run, now: m.Now) -> None:
        """The run stays in its slot, for the next child to be asked about it."""
        run.enter(RunPhase.WAITING, now.mono)
        run.postmortems += 1
        run.ordered = run.leftovers = False
        run.gone_by = inf  # nothing of it is left
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

    def _abandon(self, slot: Slot, run: Run, message: str) -> None:
        """There is nobody to ask the strategy or to call failed_job."""
        name = "retry-strategy-error" if run.outcome is None else "callback-error"
        self.out(m.Emit(name, {**self._about(slot), "error": {"message": message}}))
        if run.outcome is None:
            run.error = run.error or _untold(run, message)
            self._decide(slot, run, None)
        self._settle(slot, run)

    # ---- a failed attempt ------------------------------------------------------------------------------------------

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
        if run.death is None or run.error is None:  # else its own child has told, and a post-mortem knows less
            run.error = event.error
        if event.strategy_error is not None:
            self.out(m.Emit("retry-strategy-error", {**self._about(slot), "error": event.strategy_error}))
        self._decide(slot, run, event.strategy)
        retried = isinstance(run.outcome, m.Retry)
        run.calls = ("failed_attempt",) if retried else ("failed_attempt", "failed_job")

    def _decide(self, slot: Slot, run: Run, strategy: m.Strategy | None) -> None:
        assert run.failed is not None
        failure = jobs.failed(run, run.failed, strategy, self.rules)
        run.outcome = failure.outcome
        about = {**self._about(slot), "retries_left": failure.retries_left}
        if failure.delay is None:
            self.out(m.Emit("not-retrying", about))
        else:
            self.out(m.Emit("retrying", {**about, "retry_in": failure.delay}))

    def _asked_too_long(self, slot: Slot, run: Run, now: m.Now) -> None:
        """It hangs in its strategy or a callback, or what its handler started must be gone now."""
        if run.phase is RunPhase.ASKING and run.failed is None:
            return  # it is cancelled or goes back, so nobody needs the answer
        limit = f"{self.rules.callback_timeout:g} s"
        due = run.leftovers and now.mono >= run.gone_by
        if due and run.phase is RunPhase.ASKING:
            self._goes_with_leftovers(slot, run, now)
        elif due:
            self._callback_lost(slot, run, "it was not over when what the job had left had to be gone")
        elif run.phase is RunPhase.ASKING:
            self._strategy_lost(slot, run, f"the retry strategy took longer than {limit}")
        else:
            self._callback_lost(slot, run, f"it took longer than {limit}")
        run.enter(RunPhase.OVER, now.mono)

    def _strategy_lost(self, slot: Slot, run: Run, message: str) -> None:
        """The strategy hangs or took its child with it. It is not asked again; the callbacks still have their turn."""
        self.out(m.Emit("retry-strategy-error", {**self._about(slot), "error": {"message": message}}))
        self._ask_no_more(run)

    def _callback_lost(self, slot: Slot, run: Run, message: str) -> None:
        self.out(m.Emit("callback-error", {**self._about(slot), "error": {"message": message}}))
        self._ask_no_more(run)

    def _ask_no_more(self, run: Run) -> None:
        run.death = {**(run.death or {"reason": run.failed, "error": run.error}), "ask": False}

    # ---- the others ------------------------------------------------------------------------------------------------

    def _cancel(self, slot: Slot, run: Run, reason: str) -> None:
        run.outcome = jobs.cancelled(run, reason)
        run.news = ("job-cancelled", {**self._about(slot), "reason": reason})

    def _release(self, slot: Slot, run: Run) -> None:
        """It was never started: back to the queue, uncounted."""
        run.outcome = jobs.unstarted(run)
        self.out(m.Emit("job-released", self._about(slot)))
        self._settle(slot, run)

    def _tell_interrupted(self, slot: Slot, run: Run, event: m.JobRaised | None = None) -> None:
        data = {**self._about(slot, run), "wall_s": run.facts.get("wall_s")}
        if event is None or event.clean_interrupt:
            self.out(m.Emit("job-interrupted", data))
        else:
            self.out(m.Emit("handle-job-exception-with-interrupt", {**data, "error": event.error}))


def how(exit: m.Exit) -> str:
    """How a process ended, in words."""
    if exit.term_signal is not None:
        return f"signal {exit.term_signal}"
    return f"exit code {exit.exit_code}"


# What a post-mortem would have told of an ending, for the record of one that nobody could be asked about.
_UNTOLD: Final = {
    "timeout": ("JobTimedOut", "the job ran longer than its timeout of {timeout:g} s"),
    "memory": ("JobOutOfMemory", "the job held more memory than its limit of {memory} bytes"),
    "crash": ("JobCrashed", "the job's process ended before it had reported an outcome ({how})"),
    "lost": ("JobLost", "the job was lost {losses} times with what ran it"),
}


def _untold(run: Run, why: str) -> dict[str, Any]:
    """The error of a run that its own child has not told of, and no other child could."""
    assert run.failed is not None
    assert run.death is not None
    kind, sentence = _UNTOLD[run.failed]
    facts = {**run.death, "how": how(m.Exit(run.death.get("exit_code"), run.death.get("term_signal")))}
    message = f"{sentence.format(**facts)}; its retry strategy was not asked: {why}"
    return {"type": f"ganger_child.{kind}", "message": message, "traceback": ""}


def _end(exit: m.Exit) -> dict[str, Any]:
    return {"exit_code": exit.exit_code, "term_signal": exit.term_signal}
