"""One run of one job, from the claim to the outcome, and the accounting of how it ended.

The table ``ENDINGS`` is the accounting of the design: what an ending is called, and whether it counts as a crash. Who
decides *that* something ended so is ``pool``; what follows from it for the row is decided here, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import Any, Final

from ganger.core import retry
from ganger.core.ladder import Ladder
from ganger.core.messages import Archive, Job, Limits, Outcome, Release, Retry, Strategy, TypeFacts, Verdict
from ganger.core.rules import Rules

FENCED: Final = "fenced"  # the reason of a run that is not ours any more: its outcome is nobody's business
CANCELS: Final = ("cancelled", "killed")
LIMITS: Final = ("timeout", "memory")
HOPELESS: Final = ("lost", "payload-too-large", "bad-row")  # another attempt would end the same, or kill another host
LONGEST_TYPE: Final = 500  # characters of a job type


class Phase(Enum):
    WAITING = "waiting"  # meant for a slot whose child is not ready
    SENT = "sent"
    RUNNING = "running"
    ASKING = "asking"  # the attempt failed, the strategy is being asked: in its own child or in a post-mortem
    CALLING = "calling"  # decided, the callbacks are being called
    OVER = "over"  # decided; the child still has to go


AFTER_HANDLER: Final = (Phase.ASKING, Phase.CALLING, Phase.OVER)


@dataclass(frozen=True, slots=True)
class Progress:
    """What a handler told last, ``at`` (mono): ``done`` from 0 to 1, and a note. ``since`` then it has come from
    ``first`` to there."""

    done: float | None
    note: str
    at: float
    first: float
    since: float

    def left(self, now: float) -> float | None:
        """Seconds to its end, if it goes on as it has gone; None while that cannot be told."""
        if self.done is None or self.done <= self.first or self.at <= self.since:
            return None
        return max(0.0, (1 - self.done) * (self.at - self.since) / (self.done - self.first) - (now - self.at))


@dataclass(slots=True)
class Run:
    """What is known of a run. Times are mono, except ``claimed``."""

    job: Job
    nonce: int
    limits: Limits
    claimed: float  # boot
    since: float  # when the phase began
    phase: Phase = Phase.WAITING
    started: float | None = None
    limit_at: float | None = None  # when its time limit passes
    reason: str | None = None  # why we ended it, recorded before the first signal
    ladder: Ladder | None = None
    gone_by: float = inf  # when nothing of it may be left any more, by its time limit or by an order
    leftovers: bool = False  # what its handler started goes on although that has ended, as long as its child lives
    ordered: bool = False  # a signal went to its child, which is therefore never used again
    given_up: bool = False  # it did not start in time, so its child is being replaced
    stays: bool = False  # the child found itself clean and has not worked long: it may have another job
    verdict: Verdict | None = None
    undecided: bool = False  # shutdown began before the first verdict: that one decides
    watched: bool = False
    progress: Progress | None = None
    told: bool = False  # the wish to stop was written down for a handler that looks
    death: Mapping[str, Any] | None = None  # its own child is dead or dirty: what a post-mortem has to tell
    failed: str | None = None  # the reason of the failed attempt, once that has been told
    calls: tuple[str, ...] = ()  # the callbacks that have not begun
    postmortems: int = 0
    error: Mapping[str, Any] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)  # for the record only, too long for an event: output, stack
    outcome: Outcome | None = None
    news: tuple[str, dict[str, Any]] | None = None  # to be told once the outcome is stored
    _about: dict[str, Any] | None = None

    def enter(self, phase: Phase, now: float) -> None:
        self.phase = phase
        self.since = now

    def ends_by(self, ladder: Ladder) -> None:
        """Nothing of it is to outlive this ladder, if that kills."""
        if ladder.kill_at is not None:
            self.gone_by = min(self.gone_by, ladder.kill_at)

    def asked_by(self, limit: float) -> float:
        """Until when (mono) its own child may be asked about it: for what it started, that is until it must be gone."""
        return min(limit, self.gone_by) if self.leftovers else limit

    @property
    def complete(self) -> bool:
        """Whether there is nothing left to ask or to call, whatever becomes of its child."""
        return self.outcome is not None and "failed_job" not in self.calls

    @property
    def about(self) -> dict[str, Any]:
        """What every event about the run says of it."""
        if self._about is None:
            self._about = {
                "job_id": str(self.job.job_id),
                "job_type": self.job.job_type,
                "queue": self.job.queue,
                "attempt": self.job.attempts,
            }
        return self._about


def progress(run: Run, done: float | None, note: str, now: float) -> Progress:
    """Take in what the handler tells. It began with nothing when it was started; but where it goes on from a
    checkpoint, or says that less is done than before, its speed is that from here on."""
    before = run.progress
    anew = run.job.checkpoint is not None if before is None or before.done is None else (done or 0.0) < before.done
    if anew:
        first, since = done or 0.0, now
    elif before is None:
        first, since = 0.0, now if run.started is None else run.started
    else:
        first, since = before.first, before.since
    return Progress(done, note, now, first, since)


def limits(job: Job, declared: TypeFacts | None, rules: Rules) -> Limits:
    """The limits in force: the job's own, else those of its type, else the supervisor's."""
    of_type = declared or _NOTHING_DECLARED
    return Limits(
        timeout=_first(job.timeout, of_type.timeout, rules.timeout),
        grace=_first(job.grace, of_type.grace, rules.grace),
        memory=_first(job.memory, of_type.memory, rules.memory),
        shutdown=_first(job.shutdown, of_type.shutdown, rules.shutdown),
    )


def _first(of_job: Any, of_type: Any, of_all: Any) -> Any:
    if of_job is not None:
        return of_job
    return of_all if of_type is None else of_type


_NOTHING_DECLARED: Final = TypeFacts()


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why a row cannot be run: its reason, and the error as the archive has it."""

    reason: str
    kind: str
    message: str


def unfit(job: Job, rules: Rules) -> Unfit | None:
    """What is wrong with a row that was written by hand; enqueue refuses the same. None: it may run."""
    if len(job.payload) > rules.max_payload:
        message = f"the payload has {len(job.payload)} bytes, over the supervisor's max_payload of {rules.max_payload}"
        return Unfit("payload-too-large", "PayloadTooLarge", message)
    if 0 < len(job.job_type) <= LONGEST_TYPE and job.attempts >= 1 and job.crashes >= 0 and job.losses >= 0:
        return None
    wrong = [
        (not job.job_type, "job_type is empty"),
        (len(job.job_type) > LONGEST_TYPE, f"job_type has {len(job.job_type)} characters, over {LONGEST_TYPE}"),
        (job.attempts < 1, f"attempts was {job.attempts - 1}, less than none"),
        (job.crashes < 0, f"crashes is {job.crashes}, less than none"),
        (job.losses < 0, f"losses is {job.losses}, less than none"),
    ]
    message = "; ".join(message for is_wrong, message in wrong if is_wrong)
    return Unfit("bad-row", "BadRow", f"the row was written with values that cannot be: {message}")


@dataclass(frozen=True, slots=True)
class Ending:
    """How an ending is told, and what it costs."""

    event: str
    crash: int = 0


ENDINGS: Final[dict[str, Ending]] = {
    "exception": Ending("handle-job-exception"),
    "bad-result": Ending("handle-job-exception"),
    "unknown-job-type": Ending("handle-job-exception"),
    "payload-too-large": Ending("handle-job-exception"),
    "bad-row": Ending("handle-job-exception"),
    "timeout": Ending("job-timed-out"),
    "memory": Ending("job-out-of-memory"),
    "crash": Ending("job-crashed", crash=1),
    "lost": Ending("job-lost"),
}


@dataclass(frozen=True, slots=True)
class Failure:
    """What a failed attempt leads to."""

    outcome: Archive | Retry
    retries_left: int | None
    delay: float | None  # None: not retried


def failed(run: Run, reason: str, strategy: Strategy | None, rules: Rules) -> Failure:
    """Settle a failed attempt: retry it, or archive the job.

    What a strategy says does not count where the job has crashed ``max_crashes`` times or was lost ``max_losses``
    times (such a job takes children or hosts with it), or can never run.
    """
    job, crash = run.job, ENDINGS[reason].crash
    exhausted = (crash and job.crashes + crash >= rules.max_crashes) or reason in HOPELESS
    verdict = retry.decide(None if exhausted else strategy, job.attempts, job.losses)
    if verdict.delay is None:
        archive = Archive(job.job_id, job.run_id, "failure", reason, _facts(run), crash=crash)
        return Failure(archive, verdict.retries_left, None)
    entry = {"attempt": job.attempts, "reason": reason, **_facts(run)}
    return Failure(Retry(job.job_id, job.run_id, verdict.delay, crash, entry), verdict.retries_left, verdict.delay)


def succeeded(run: Run, result: bytes | None) -> Archive:
    return Archive(run.job.job_id, run.job.run_id, "success", None, _facts(run), result)


def cancelled(run: Run, reason: str) -> Archive:
    return Archive(run.job.job_id, run.job.run_id, "cancelled", reason, _facts(run))


def interrupted(run: Run) -> Release:
    """Shutdown ended it: back at once, uncounted."""
    entry = {"attempt": run.job.attempts, "reason": "shutdown", **_facts(run)}
    return Release(run.job.job_id, run.job.run_id, "shutdown", fresh=run.job.fresh, interrupted=True, entry=entry)


def unstarted(run: Run, reason: str = "never-started") -> Release:
    return Release(run.job.job_id, run.job.run_id, reason, fresh=run.job.fresh)


def blamed_on_another(run: Run) -> Release:
    """It crashed in a child that had run another job before: once more, uncounted, in a child of its own."""
    entry = {"attempt": run.job.attempts, "reason": "blame", **_facts(run)}
    return Release(run.job.job_id, run.job.run_id, "blame", fresh=True, entry=entry)


def lost(run: Run) -> Release:
    """Our infrastructure died under it: back at once, counted as a loss."""
    entry = {"attempt": run.job.attempts, "reason": "lost", **_facts(run)}
    return Release(run.job.job_id, run.job.run_id, "lost", fresh=run.job.fresh, loss=True, entry=entry)


def _facts(run: Run) -> dict[str, Any]:
    """The columns of the archive that tell of this run."""
    facts = {**run.facts, **run.kept}
    if run.error is not None:
        facts["error"] = dict(run.error)
    if run.ladder is not None and run.ladder.highest is not None:
        facts["rung"] = run.ladder.highest.value
    if run.reason in ENDED_BY:
        facts["ended_by"] = ENDED_BY[run.reason]
    return facts


ENDED_BY: Final = {
    "timeout": "limit",
    "memory": "limit",
    "cancelled": "operator",
    "killed": "operator",
    "shutdown": "shutdown",
}
