"""The core in thousands of random schedules, and broken variants of it that the simulation must catch."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from ganger.core import job as jobs
from ganger.core import messages as m
from ganger.core.book import Book
from ganger.core.job import Run
from ganger.core.lease import Lease
from ganger.core.machine import Machine
from ganger.core.pool import Pool
from ganger.core.slot import Slot
from tests.core.simulation import Violation, World

SCHEDULES = int(os.environ.get("GANGER_SCHEDULES", "2400"))
PARTS = 8


@pytest.mark.parametrize("part", range(PARTS))
def test_promises_hold_in_random_schedules(part: int) -> None:
    for seed in range(part, SCHEDULES, PARTS):
        try:
            World(seed).run()
        except Violation as violation:
            pytest.fail(f"seed {seed}: {violation}")
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error


def test_schedules_meet_what_they_are_about() -> None:
    """A simulation in which nothing happens would find nothing."""
    told: set[str] = set()
    for seed in range(300):
        told |= {name for _, name, _ in World(seed).run().told}
    assert told >= {
        "job-finished", "handle-job-exception", "retrying", "not-retrying", "job-timed-out", "job-crashed",
        "job-interrupted", "job-lost", "job-cancelled", "job-released", "lease-lost", "database-lost",
        "database-back", "outcome-stored", "retry-strategy-error", "callback-error", "failed-job-error",
        "ladder-step", "boot-failed", "already-shut-down", "completed-shutdown",
    }  # fmt: skip


# ---- broken on purpose -----------------------------------------------------------------------------------------------


def settles_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def settle(self: Pool, slot: Slot, run: Run) -> None:
        slot.run = None
        if run.outcome is not None and run.reason != jobs.FENCED:
            self.settle(run.outcome, run.news)
            self.settle(run.outcome, run.news)

    monkeypatch.setattr(Pool, "_settle", settle)


def drops_a_release(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Book.store

    def forgetful(self: Book, outcome: m.Outcome, news: Any = None) -> None:
        if not (isinstance(outcome, m.Release) and outcome.reason == "never-started"):
            store(self, outcome, news)

    monkeypatch.setattr(Book, "store", forgetful)
    monkeypatch.setattr(Book, "_stranger", lambda *_: False)


def leaves_with_a_claim_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    wind_up = Machine._wind_up

    def hasty(self: Machine, now: m.Now) -> None:
        self.book.claim = None
        wind_up(self, now)

    monkeypatch.setattr(Machine, "_wind_up", hasty)


def settles_after_the_lease_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def settle(self: Pool, slot: Slot, run: Run) -> None:
        if run.reason == jobs.FENCED:
            self.settle(jobs.lost(run), None)
        slot.run = None
        if run.outcome is not None and run.reason != jobs.FENCED:
            self.settle(run.outcome, run.news)

    monkeypatch.setattr(Pool, "_settle", settle)


def trusts_the_lease_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lease, "trusted_until", property(lambda self: self.renewed + self.length * 1.5))


def counts_trust_from_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lease, "renew", lambda self, sent: setattr(self, "renewed", sent + self.length))


def never_reconciles_a_lost_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Book, "_stranger", lambda *_: False)
    monkeypatch.setattr(World, "_deregister", _deregister_without_release)


def _deregister_without_release(self: World, command: m.Deregister) -> None:
    """A database that only takes the registration away, so that nothing but reconciling can free a row."""
    rows = [row for row in self.rows.values() if row.owner == command.supervisor_id and row.state == 2]
    if rows and self.now > 60:
        raise Violation("a claimed row stayed with a supervisor that does not know of it")
    self._write(lambda: self._post(m.Deregistered()))


def kills_whatever_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replacement of a child that seemed idle does not ask whether it has started after all."""

    def replace(self: Pool, slot: Slot, run: Run, now: m.Now) -> None:
        run.reason = None
        self._kill(slot, now)

    monkeypatch.setattr(Pool, "_replace_idle", replace)


def settles_before_the_burial(monkeypatch: pytest.MonkeyPatch) -> None:
    climb = Pool._climb

    def hasty(self: Pool, slot: Slot, run: Run, now: m.Now) -> None:
        climb(self, slot, run, now)
        if run.reason == "timeout" and run.ordered:
            run.outcome = jobs.failed(run, "timeout", None, self.rules).outcome
            self._settle(slot, run)

    monkeypatch.setattr(Pool, "_climb", hasty)


def does_not_count_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(jobs.ENDINGS, "crash", jobs.Ending("job-crashed", crash=0))


def forgets_failed_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that dies in failed_attempt takes the call of failed_job with it."""

    def lose(self: Pool, slot: Slot, run: Run, message: str) -> None:
        run.calls = ()

    monkeypatch.setattr(Pool, "_callback_lost", lose)


def blames_the_job_for_its_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Pool.HANDLERS, m.StrategyAsked, lambda *_: None)


BROKEN: list[Callable[[pytest.MonkeyPatch], None]] = [
    settles_twice,
    drops_a_release,
    leaves_with_a_claim_in_flight,
    settles_after_the_lease_is_lost,
    trusts_the_lease_too_long,
    counts_trust_from_the_answer,
    never_reconciles_a_lost_claim,
    kills_whatever_runs,
    settles_before_the_burial,
    does_not_count_crashes,
    forgets_failed_job,
    blames_the_job_for_its_strategy,
]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_broken_core_is_caught(broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    for seed in range(SCHEDULES):
        try:
            World(seed).run()
        except Violation:
            return
    pytest.fail(f"{broken.__name__} went unnoticed in {SCHEDULES} schedules")
