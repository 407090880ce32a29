"""What an outside observer may never see, whatever goes wrong: the promises, kept as a ledger.

The observer stands beside the processes and the queue. It notes what really happens to each run (its handler begins,
raises, ends its own child, is given up), hears of every run that loses its row, and raises ``Violation``. It knows
nothing of how the core decides.

It knows the honest limits: while a host is suspended nobody can kill there, and the thawed wardens take up to a second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from ganger.core import messages as m
from tests.model import RUNNING, Queue, Row

LIMITS = ("timeout", "memory")
MAX_CRASHES = 3


class Violation(AssertionError):
    """The core broke a promise."""


class Owner(Protocol):
    """A supervisor."""

    def excused(self) -> bool:
        """Whether its host may run a handler longer than the lease allows."""

    def in_order(self) -> bool:
        """Whether what it sends to the database arrives in the order of sending."""


@dataclass(slots=True)
class Seen:
    """One run. Everything in it really happened, whether or not the core knows."""

    job_id: UUID
    owner: Owner
    in_order: bool  # what its supervisor sends to the database arrives in the order of sending
    told: bool = False  # its supervisor heard of it
    sent: bool = False  # to a child
    started: bool = False
    alive: bool = False  # the handler is running
    died: bool = False  # its child, which had run nothing before, ended in it without being told to
    crashed: bool = False  # and the run ended it by itself
    raised: bool = False  # the handler raised, and its strategy began to be asked
    returned: bool = False
    called: bool = False  # failed_job began
    over: bool = False  # handler and callbacks are through, or were given up
    lost: bool = False  # its supervisor had it when it lost its lease
    fenced: bool = False  # and it was not over
    outcome: m.Outcome | None = None  # what the core decided
    loss: bool = False  # its row counted a loss
    given: int = 0  # number of the checkpoint that its handler gave last
    passed: int = 0  # and of the one that the core passed on last
    saved: int = 0  # and of the one that was written last


class Observer:
    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.runs: dict[UUID, Seen] = {}
        self.cancelled: set[UUID] = set()  # jobs that somebody cancelled
        self.jobs = 0

    # ---- the queue ---------------------------------------------------------------------------------------------------

    def claimed(self, row: Row, owner: Owner) -> None:
        assert row.run_id is not None
        self.runs[row.run_id] = Seen(row.job_id, owner, owner.in_order())

    def left(self, row: Row, lost: bool) -> None:
        """A run loses its row: settled, given back, swept or cancelled."""
        assert row.run_id is not None
        run = self.runs[row.run_id]
        if run.alive and not run.owner.excused():
            raise Violation(f"run {row.run_id} lost its row while its handler was still running")
        run.loss = lost
        swept = lost or row.cancel is not None  # a sweep by others archives what is cancelled
        if run.outcome is not None and not swept and run.in_order and run.saved < run.passed:
            raise Violation("an outcome was stored before the run's last checkpoint")

    # ---- the processes -----------------------------------------------------------------------------------------------

    def started(self, run_id: UUID) -> None:
        run = self.runs[run_id]
        if run.job_id in self.queue.archive and not run.owner.excused():
            raise Violation("a job ran that was in the archive")
        for other_id, other in self.runs.items():
            if other.alive and other.job_id == run.job_id and not (other.owner.excused() or run.owner.excused()):
                raise Violation(f"runs {other_id} and {run_id} of one job at once")
        run.started = run.alive = True

    def failed_job_begins(self, run_id: UUID) -> None:
        run = self.runs[run_id]
        if run.called:
            raise Violation("failed_job was called twice")
        run.called = True

    # ---- the core ----------------------------------------------------------------------------------------------------

    def passed_on(self, order: m.SaveCheckpoint) -> None:
        run = self.runs[order.run_id]
        if run.outcome is not None:
            raise Violation("a checkpoint was passed on after the outcome of its run")
        if order.job_id != run.job_id or not run.passed < order.number <= run.given:
            raise Violation(f"checkpoint {order.number} of run {order.run_id} was passed on, {run.given} is its newest")
        run.passed = order.number

    def written(self, order: m.SaveCheckpoint) -> None:
        self.runs[order.run_id].saved = order.number

    def answered(self, run_id: UUID, answer: m.SendAnswer) -> None:
        if answer.error is None and answer.number > self.runs[run_id].saved:
            raise Violation("a handler was told that its checkpoint is stored, and it is not")

    def decided(self, outcome: m.Outcome, nobody_to_ask: bool) -> None:
        run = self.runs[outcome.run_id]
        if run.outcome is not None:
            raise Violation(f"run {outcome.run_id} was settled twice")
        if run.fenced and run.sent:
            raise Violation("an outcome was decided after the lease was lost")
        if run.alive:
            raise Violation(f"run {outcome.run_id} was settled while its handler was still running")
        run.outcome = outcome
        unbegun = isinstance(outcome, m.Release) and outcome.reason in ("blame", "never-started")
        if run.passed < run.given and not unbegun:
            raise Violation("a run was settled, and its last checkpoint not passed on")
        if isinstance(outcome, m.Archive):
            self._archives(run, outcome, nobody_to_ask)
        elif isinstance(outcome, m.Retry):
            by_limit = outcome.entry["reason"] in LIMITS  # ordered before it crashed
            if run.crashed and outcome.crash != 1 and not by_limit:
                raise Violation("a crash was not counted")
            if not run.started:
                raise Violation("a run that never started was counted as an attempt")

    def _archives(self, run: Seen, outcome: m.Archive, nobody_to_ask: bool) -> None:
        if outcome.status == "failure" and not run.called and not nobody_to_ask:
            raise Violation("a job has failed, and failed_job was not called")
        if outcome.status == "success" and not run.returned:
            raise Violation("a success of a handler that has not returned")
        if outcome.status == "cancelled" and outcome.job_id not in self.cancelled:
            raise Violation("a job was archived as cancelled that nobody cancelled")
        if run.raised and outcome.reason == "crash":
            raise Violation("a crash of its strategy was blamed on the job")

    def lease_lost(self, owner: Owner) -> None:
        """What was not over when its supervisor knew that the lease was lost is nobody's business any more."""
        for run in self.runs.values():
            if run.owner is owner and run.told and run.outcome is None:
                run.lost = True
                run.fenced |= not run.over

    def unsettled(self, run_ids: list[UUID]) -> list[UUID]:
        """Those of them that their supervisor knew of, and has neither settled nor lost with its lease."""
        runs = [(run_id, self.runs[run_id]) for run_id in run_ids]
        return [run_id for run_id, run in runs if run.told and run.outcome is None and not run.lost]

    # ---- at the end --------------------------------------------------------------------------------------------------

    def judge(self) -> None:
        queue = self.queue
        if queue.rows.keys() & queue.archive.keys() or len(queue.rows) + len(queue.archive) != self.jobs:
            raise Violation("a job is gone, or is there twice")
        of_job: dict[UUID, list[Seen]] = {job_id: [] for job_id in [*queue.rows, *queue.archive]}
        for run in self.runs.values():
            of_job[run.job_id].append(run)
        for job_id, runs in of_job.items():
            ended = queue.archive.get(job_id)
            if ended is None:
                self._adds_up(queue.rows[job_id], runs)
            else:
                self._adds_up(ended.row, runs, cancelled=ended.status == "cancelled")

    def _adds_up(self, row: Row, runs: list[Seen], *, cancelled: bool = False) -> None:
        """The counters of a row against what was seen of its runs. (A cancelled job's stay as they stood.)"""

        def count(what: Callable[[Seen], Any]) -> int:
            return sum(bool(what(run)) for run in runs)

        still_runs = row.job_id in self.queue.rows and row.state == RUNNING
        attempts = row.attempts - row.losses - still_runs
        wrong = {
            "starts": row.starts != len(runs),
            "attempts": not 0 <= attempts <= count(lambda run: run.started or run.called or cancelled),
            "crashes": row.crashes > min(MAX_CRASHES, count(lambda run: run.died)),
            "losses": row.losses != count(lambda run: run.loss),
        }
        if any(wrong.values()):
            names = ", ".join(name for name in wrong if wrong[name])
            raise Violation(f"the {names} of job {row.job_id} do not add up: {row}")
