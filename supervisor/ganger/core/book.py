"""What the core has asked of the database and what is still owed: the lease, the claims, and outcomes not yet stored.

An outcome leaves this book only when the database has answered for it: stored, or refused because the row was not ours
any more. A claim without an answer may have taken rows; so every beat brings the rows that the database thinks we are
running, and those that we do not know are given back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from ganger.core import messages as m
from ganger.core.lease import LOOK_INTERVAL, Lease, Watcher
from ganger.core.rules import Rules
from ganger.core.wakeup import FLAG_HOLDS, Wakeup

GATHER: Final = 0.08  # seconds that outcomes wait for each other while all slots are at short jobs
GATHER_MOST: Final = 200


@dataclass(frozen=True, slots=True)
class Owed:
    """An outcome on its way to the database, and what to tell once it is there."""

    outcome: m.Outcome
    news: tuple[str, dict[str, Any]] | None


@dataclass(slots=True)
class Book:
    """Times are ``Now``; commands go out through ``out``."""

    rules: Rules
    rng: Callable[[], float]
    new_id: Callable[[], UUID]
    out: Callable[[m.Command], None]
    lease: Lease = field(init=False)
    watcher: Watcher = field(default_factory=Watcher)
    wakeups: list[Wakeup] = field(init=False)
    owed: dict[UUID, Owed] = field(default_factory=dict)  # by run_id
    unsent: list[m.Outcome] = field(default_factory=list)  # those of them that are not on their way yet
    unsent_since: float | None = None
    saving: dict[UUID, int] = field(default_factory=dict)  # run_id -> number of its newest checkpoint, not stored yet
    settled: dict[UUID, float] = field(default_factory=dict)  # run_id -> when it was stored (boot)
    claim: m.Claim | None = None  # the one in flight
    asked_at: float = 0.0  # when it was sent (mono)
    answered: dict[UUID, float] = field(default_factory=dict)  # claim_id -> when it was answered (boot)
    former: int | None = None  # the registration that was lost
    unsure: float | None = None  # since when (boot) the database may hold rows as ours that nothing here runs
    registering: float | None = None  # when Register was sent (boot)
    sweeping: set[int] = field(default_factory=set)
    lost_database: bool = False
    complained: bool = False  # on_polling_error was asked for this outage
    empty: bool = False  # until_empty: the last claim found nothing left

    def __post_init__(self) -> None:
        self.lease = Lease(self.rules.lease)
        self.wakeups = [Wakeup(self.rules.poll_interval, self.rng) for _ in self.rules.lanes]

    # ---- the lease ---------------------------------------------------------------------------------------------

    def register(self, now: m.Now) -> None:
        self.registering = now.boot
        self.out(m.Register(self.former))

    def registered(self, event: m.Registered, now: m.Now) -> None:
        self.registering = None
        self.former = self.unsure = None
        self.lease.hold(event.supervisor_id, event.sent)
        self.out(m.Trust(self.lease.trusted_until))
        for wakeup in self.wakeups:
            wakeup.hurry(now.mono)

    def lose(self, now: m.Now, *, running: bool) -> None:
        """The lease cannot be trusted any more: what we run may be somebody else's by now."""
        if running:
            self.unsure = now.boot
        self.former = self.lease.supervisor_id
        self.lease.drop()
        self.watcher.forget()
        self.sweeping.clear()

    def deregistered(self) -> None:
        self.lease.drop()
        self.former = self.registering = self.unsure = None

    def beat(self, now: m.Now, phase: str, info: Callable[[], Mapping[str, Any]]) -> None:
        """Renew and look, where due; register where we are nobody."""
        if self.lease.supervisor_id is None:
            return
        if now.boot >= self.lease.next_beat:
            self.lease.next_beat = now.boot + self.lease.interval
            self.out(m.Beat(self.lease.supervisor_id, phase, info()))
        if now.boot >= self.lease.next_look and not self.lost_database:
            self.lease.next_look = now.boot + LOOK_INTERVAL
            self.out(m.Look(self.lease.supervisor_id))

    def beaten(
        self, event: m.Beaten, now: m.Now, running: Mapping[UUID, float]
    ) -> tuple[list[m.HeldRow], list[UUID], list[m.HeldRow]]:
        """Reconcile. ``running`` maps our runs to when they were claimed (boot).

        Returns rows that nobody here runs (a claim whose answer was lost), runs that the database does not list any
        more, and rows with a cancel order.
        """
        self.lease.renew(event.sent)
        if self.unsure is not None and event.sent >= self.unsure:
            self.unsure = None
        self.out(m.Trust(self.lease.trusted_until))
        rows = event.rows or ()
        strangers = [row for row in rows if self._stranger(row, event.sent, running)]
        listed = {row.run_id for row in rows}
        gone = [run for run, claimed in running.items() if run not in listed and claimed < event.sent]
        self.settled = {run: at for run, at in self.settled.items() if at >= event.sent}
        self.answered = {claim: at for claim, at in self.answered.items() if at >= event.sent}
        return strangers, gone, [row for row in rows if row.cancel is not None]

    def _stranger(self, row: m.HeldRow, sent: float, running: Mapping[UUID, float]) -> bool:
        """Whether the row is ours by a claim of whose answer nothing will come. The beat may be older than what we
        know: a claim that was answered, or an outcome that was stored, since it was sent explains the row."""
        if row.run_id in running or row.run_id in self.owed or row.run_id in self.settled:
            return False
        if self.claim is not None and row.claim_id == self.claim.claim_id:
            return False
        return row.claim_id is None or row.claim_id not in self.answered

    # ---- others' leases ----------------------------------------------------------------------------------------

    def looked(self, event: m.Looked, now: m.Now) -> None:
        for other in self.watcher.look(event.others, now.boot):
            if other.supervisor_id not in self.sweeping:
                self.sweeping.add(other.supervisor_id)
                self.out(m.Sweep(other.supervisor_id, other.beat))

    def swept(self, event: m.Swept, now: m.Now) -> None:
        self.sweeping.discard(event.supervisor_id)
        if event.jobs:
            self.hurry(now)

    # ---- claims ------------------------------------------------------------------------------------------------

    def hurry(self, now: m.Now, lane: int | None = None) -> None:
        """Something may be there to claim, for one lane or for all."""
        for wakeup in self.wakeups if lane is None else [self.wakeups[lane]]:
            wakeup.hurry(now.mono)

    def ask(self, now: m.Now, free: list[int], wanted: list[int], job_types: tuple[str, ...] | None) -> None:
        """Claim as many jobs as are ``wanted`` by lane, if one is due; ``free`` slots tell whether a lane is idle."""
        for lane, wakeup in enumerate(self.wakeups):
            if wakeup.busy(now.mono, free[lane] > 0) and self.lease.supervisor_id is not None:
                self.out(m.SayIdle(self.rules.lanes[lane].queues, 0.0))
        if self.claim is not None or self.lost_database or not self.lease.trusted(now.boot):
            return
        assert self.lease.supervisor_id is not None
        if not any(count and wakeup.at <= now.mono for count, wakeup in zip(wanted, self.wakeups, strict=True)):
            return
        self.flush()  # outcomes and claim share one way to the database
        lanes = tuple(m.Lane(rule.queues, count) for rule, count in zip(self.rules.lanes, wanted, strict=True))
        self.claim = m.Claim(self.new_id(), self.lease.supervisor_id, lanes, job_types, ask_left=self.rules.until_empty)
        self.asked_at = now.mono
        for count, wakeup in zip(wanted, self.wakeups, strict=True):
            if count:
                wakeup.asked(now.mono)
        asked = [queue for lane in lanes for queue in lane.queues if lane.free]
        self.out(m.Emit("polling-for-jobs", {"queues": asked}))
        self.out(self.claim)

    def claimed(self, event: m.Claimed, now: m.Now) -> bool:
        """Take in an answer. False: it is to a claim that we have given up, or that was made under a registration which
        we have lost since, so its jobs go back: they may be somebody else's by now."""
        known = self.claim is not None and self.claim.claim_id == event.claim_id
        self.answered[event.claim_id] = now.boot
        if not known:
            return False
        assert self.claim is not None
        claim, self.claim = self.claim, None
        self.complained = False
        self.empty = not event.jobs and not (self.rules.until_empty and event.left)
        for lane, (asked, wakeup) in enumerate(zip(claim.lanes, self.wakeups, strict=True)):
            if not asked.free:
                continue
            idle = wakeup.answered(now.mono, full=event.more[lane], next_due=event.next_due, horizon=event.horizon)
            if idle and not self.rules.job_limit:
                wakeup.saying(now.mono)
                self.out(m.SayIdle(asked.queues, FLAG_HOLDS))
        return claim.supervisor_id == self.lease.supervisor_id

    def claim_lost(self, event: m.ClaimLost, now: m.Now) -> None:
        if self.claim is not None and self.claim.claim_id == event.claim_id:
            self.claim = None
            self.unsure = now.boot
            # The rows it may have taken come to light with the next beat; ask for one at once.
            self.lease.next_beat = min(self.lease.next_beat, now.boot)

    def idle_said(self, event: m.IdleSaid, now: m.Now) -> None:
        for wakeup in self.wakeups:
            if wakeup.flagged_until > now.mono:
                wakeup.said(now.mono, event.horizon)

    # ---- outcomes ----------------------------------------------------------------------------------------------

    def store(self, outcome: m.Outcome, news: tuple[str, dict[str, Any]] | None = None) -> None:
        self.owed[outcome.run_id] = Owed(outcome, news)
        self.unsent.append(outcome)

    def send(self, now: m.Now, *, gather: bool) -> None:
        """Send the outcomes that were decided: at once, or (``gather``) together with those of the next moment."""
        if self.unsent and self.unsent_since is None:
            self.unsent_since = now.mono
        waits = gather and not self.lost_database and self.lease.trusted(now.boot) and len(self.unsent) < GATHER_MOST
        if self.unsent_since is not None and not (waits and now.mono < self.unsent_since + GATHER):
            self.flush()

    def flush(self) -> None:
        for outcome in self.unsent:
            self.out(outcome)
        self.unsent.clear()
        self.unsent_since = None

    def stored(self, event: m.Stored, now: m.Now) -> None:
        owed = self.owed.pop(event.run_id, None)
        if owed is None:
            return
        self.settled[event.run_id] = now.boot
        about = {"job_id": str(owed.outcome.job_id)}
        if event.how == "refused":
            self.out(m.Emit("outcome-refused", {**about, "run_id": str(event.run_id)}))
            return
        if event.late:
            self.out(m.Emit("outcome-stored", about))
        if event.how == "cancelled":
            self.out(m.Emit("job-cancelled", about if owed.news is None else _named(owed.news[1])))
        elif owed.news is not None:
            self.out(m.Emit(*owed.news))
        if isinstance(owed.outcome, m.Retry | m.Release):
            self.hurry(now)

    # ---- checkpoints -------------------------------------------------------------------------------------------

    def save(self, job: m.Job, event: m.CheckpointGiven) -> None:
        """Send it at once: what the run comes to is sent later and must find it there."""
        self.saving[job.run_id] = event.number
        self.out(m.SaveCheckpoint(job.job_id, job.run_id, event.number, event.data, event.wait))

    def saved(self, event: m.CheckpointStored) -> None:
        if self.saving.get(event.run_id, 0) <= event.number:
            self.saving.pop(event.run_id, None)

    # ---- the database as a whole ---------------------------------------------------------------------------------

    def database_lost(self, event: m.DatabaseLost, now: m.Now) -> None:
        self.lost_database = True
        self.watcher.forget()
        self.sweeping.clear()
        for wakeup in self.wakeups:
            wakeup.forget()
        self.out(m.Emit("database-lost", {"error": event.error}))
        self.complain(event.error)

    def database_back(self, event: m.DatabaseBack, now: m.Now) -> None:
        self.lost_database = False
        self.complained = False
        self.lease.next_beat = min(self.lease.next_beat, now.boot)
        self.hurry(now)
        self.out(m.Emit("database-back", {"seconds": round(event.seconds, 1)}))

    def complain(self, error: str) -> None:
        """Ask on_polling_error, once per outage."""
        if not self.complained:
            self.complained = True
            self.out(m.PollingError(error))

    # ---- time ----------------------------------------------------------------------------------------------------

    def deadlines(self, now: m.Now) -> Iterable[float]:
        """When (mono) the lease needs something, or gathered outcomes are to be sent."""
        lease = self.lease
        if self.unsent_since is not None:
            yield self.unsent_since + GATHER
        if lease.supervisor_id is not None:
            dues = [lease.next_beat, lease.trusted_until]
            if not self.lost_database:
                dues.append(lease.next_look)
            yield from (now.mono + (due - now.boot) for due in dues)

    def claim_deadlines(self, now: m.Now, free: list[int], wanted: list[int]) -> Iterable[float]:
        """When (mono) a claim is due, or an idle flag to be taken back."""
        claimable = self.claim is None and not self.lost_database and self.lease.trusted(now.boot)
        for count, more, wakeup in zip(free, wanted, self.wakeups, strict=True):
            due = wakeup.deadline(count > 0)
            if due is not None and (claimable or not count):
                yield due
            if more and not count and claimable:
                yield wakeup.at


def _named(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: data[key] for key in ("job_id", "job_type", "queue", "attempt") if key in data}
