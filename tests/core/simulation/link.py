"""The fake database threads of one supervisor, and the network between them and the queue.

A transaction arrives late, and its answer comes late. The connection breaks before it arrives, or after it was carried
out, and is noticed at once or only after the longest that a thread waits for an answer. What then becomes of the
commands is what ``ganger.database_threads`` promises: outcomes and the lease are tried again, claims and sweeps never.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from ganger.core import messages as m
from tests.core.simulation.observer import Observer
from tests.model import SCHEDULED, Queue, Row

MEAN = 0.02  # seconds each way
ANSWER_LIMIT = 14.0  # seconds that a thread waits for an answer
PROBE = 5.0  # seconds between signs of life
CLAIM_PATIENCE = 10.0  # seconds that a claim may have waited
QUEUE = "default"


@dataclass(slots=True)
class Order:
    """A command, what it does to the queue (given when it was sent, boot), and the answer if it is never carried out:
    with one, it is not tried again."""

    command: m.DatabaseCommand
    act: Callable[[float], m.Event | None]
    given_up: m.Event | None = None
    since: float = 0.0


class Owner(Protocol):
    """The supervisor as its link sees it."""

    observer: Observer
    lease: float

    def post(self, event: m.Event) -> None: ...
    def soon(self, act: Callable[[], None], mean: float) -> None: ...
    def later(self, delay: float, act: Callable[[], None]) -> None: ...
    def awake(self, act: Callable[[], None]) -> None: ...
    def chance(self, probability: float) -> bool: ...
    def boot(self) -> float: ...
    def excused(self) -> bool: ...
    def in_order(self) -> bool: ...
    def vacant(self, supervisor_id: int) -> bool: ...
    def new_id(self) -> UUID: ...
    def names(self, supervisor_id: int) -> None: ...


# What the thread that stores does first; what the one that renews the lease does.
OUTCOMES = (m.Archive, m.Retry, m.Release)
STORE = (m.SaveCheckpoint, *OUTCOMES, m.Sweep, m.Claim, m.SayIdle, m.Deregister)
LEASE = (m.Register, m.Beat, m.Look)
NEWEST = (m.Beat, m.Look, m.SayIdle)  # an older one that is still waiting is not worth sending


class Thread:
    """One connection: one transaction at a time, again until it is answered."""

    def __init__(self, link: Link, kinds: tuple[type, ...]) -> None:
        self.link, self.kinds = link, kinds
        self.orders: list[Order] = []
        self.at_work = False

    def hand(self, order: Order) -> None:
        if isinstance(order.command, NEWEST):
            waiting = self.orders[1:] if self.at_work else list(self.orders)
            for old in waiting:
                if type(old.command) is type(order.command):
                    self.orders.remove(old)
        if isinstance(order.command, m.SaveCheckpoint):
            for old in self.orders[1:] if self.at_work else list(self.orders):
                if isinstance(old.command, m.SaveCheckpoint) and old.command.run_id == order.command.run_id:
                    self.orders.remove(old)
        self.orders.append(order)
        self.go()

    def go(self) -> None:
        link = self.link
        if self.at_work or link.outage or not self.orders:
            return
        self.orders.sort(key=lambda order: self.kinds.index(type(order.command)))
        order, era, sent = self.orders[0], link.era, link.owner.boot()
        if isinstance(order.command, m.Claim) and sent - order.since > CLAIM_PATIENCE:
            self._is_done(order, order.given_up)
            return
        self.at_work = True
        link.owner.soon(lambda: self._arrives(order, era, sent), MEAN)

    def _arrives(self, order: Order, era: int, sent: float) -> None:
        """At the database, whatever has become of the supervisor meanwhile."""
        link = self.link
        if link.cut or era != link.era or link.owner.chance(0.003):
            link.owner.awake(self._breaks)
            return
        answer = order.act(sent)
        link.owner.soon(lambda: link.owner.awake(lambda: self._answers(order, era, answer)), 5 * MEAN)

    def _answers(self, order: Order, era: int, answer: m.Event | None) -> None:
        if self.link.cut or era != self.link.era or self.link.owner.chance(0.006):
            self._breaks()
        else:
            self._is_done(order, answer)

    def _is_done(self, order: Order, answer: m.Event | None) -> None:
        self.at_work = False
        self.orders.remove(order)
        if answer is not None:
            self.link.owner.post(answer)
        self.go()

    def _breaks(self) -> None:
        limit = ANSWER_LIMIT if self.link.owner.chance(0.3) else 0.0
        self.link.loses(limit)

    def fails(self) -> None:
        """The connection is known to be gone."""
        self.at_work = False
        for order in [order for order in self.orders if order.given_up is not None]:
            self.orders.remove(order)
            assert order.given_up is not None
            self.link.owner.post(order.given_up)


class Link:
    """``disorder``: each outcome has a connection of its own, so they overtake each other and the claims."""

    def __init__(self, owner: Owner, queue: Queue, now: Callable[[], float], disorder: bool) -> None:
        self.owner, self.queue, self.now, self.disorder = owner, queue, now, disorder
        self.cut = False  # nothing passes
        self.era = 0  # counts the cuts: a connection does not outlive one
        self.outage: float | None = None  # since when the supervisor knows of it (boot)
        self.outages = 0
        self.threads = [Thread(self, STORE), Thread(self, LEASE)]

    # ---- commands ----------------------------------------------------------------------------------------------------

    def do(self, command: m.DatabaseCommand) -> None:
        order = Order(command, lambda sent: None, since=self.owner.boot())
        order.act = getattr(self, f"_{type(command).__name__.lower()}")(command, order)
        if isinstance(command, m.Claim) and self.outage is not None:
            self.owner.post(m.ClaimLost(command.claim_id))
        else:
            self._thread_for(command).hand(order)

    def _thread_for(self, command: m.DatabaseCommand) -> Thread:
        store, lease, *others = self.threads
        if self.disorder and isinstance(command, OUTCOMES):
            self.threads = [store, lease, *(thread for thread in others if thread.orders), Thread(self, OUTCOMES)]
            return self.threads[-1]
        return lease if isinstance(command, LEASE) else store

    def claims_in_flight(self) -> bool:
        return any(isinstance(order.command, m.Claim) for order in self.threads[0].orders)

    # ---- the network -------------------------------------------------------------------------------------------------

    def breaks(self) -> None:
        """Nothing passes any more. With nothing under way it is only noticed at the next sign of life."""
        self.cut = True
        self.era += 1
        self.loses(PROBE)

    def mends(self) -> None:
        self.cut = False
        self.owner.soon(self._back, 5 * MEAN)

    def loses(self, limit: float) -> None:
        """The connection is broken, which is known after so many seconds at the latest."""
        era = self.era
        self.owner.later(limit, lambda: self._lost() if era == self.era and self.outage is None else None)

    def _lost(self) -> None:
        self.era += 1
        self.outage = self.owner.boot()
        self.outages += 1
        self.owner.post(m.DatabaseLost("gone"))
        for thread in self.threads:
            thread.fails()
        if not self.cut:
            self.owner.soon(self._back, 5 * MEAN)

    def _back(self) -> None:
        if self.cut or self.outage is None:
            return
        away, self.outage = self.owner.boot() - self.outage, None
        self.owner.post(m.DatabaseBack(away))
        for thread in self.threads:
            thread.go()

    # ---- what each command does to the queue -------------------------------------------------------------------------

    def _outcome(self, outcome: m.Outcome, order: Order) -> Callable[[float], m.Event]:
        outages = self.outages if self.outage is None else self.outages - 1

        def act(sent: float) -> m.Event:
            how = self.queue.store(self.now(), outcome)
            return m.Stored(outcome.run_id, how, late=self.outages > outages)

        return act

    _archive = _retry = _release = _outcome

    def _claim(self, claim: m.Claim, order: Order) -> Callable[[float], m.Event]:
        order.given_up = m.ClaimLost(claim.claim_id)

        def act(sent: float) -> m.Event:
            now, queue = self.now(), self.queue
            queue.promote(now)
            jobs, lanes, more = [], [], []
            for number, lane in enumerate(claim.lanes):
                rows = queue.claimable(claim.supervisor_id, QUEUE, lane.free)
                for row in rows:
                    queue.take(row, claim.supervisor_id, claim.claim_id, self.owner.new_id())
                    self.owner.observer.claimed(row, self.owner)
                jobs += [job_of(row) for row in rows]
                lanes += [number] * len(rows)
                more.append(len(rows) == lane.free > 0)
            due = queue.next_due([QUEUE])
            left = any(row.state != SCHEDULED or row.starts or row.due <= now for row in queue.rows.values())
            due = None if due is None else due - now
            return m.Claimed(claim.claim_id, tuple(jobs), tuple(lanes), tuple(more), due, 1, left)

        return act

    def _savecheckpoint(self, command: m.SaveCheckpoint, order: Order) -> Callable[[float], m.Event]:
        def act(sent: float) -> m.Event:
            if self.queue.save_checkpoint(command.job_id, command.run_id, command.data):
                self.owner.observer.written(command)
                return m.CheckpointStored(command.run_id, command.number)
            return m.CheckpointStored(command.run_id, command.number, "it is not this run's")

        return act

    def _sweep(self, sweep: m.Sweep, order: Order) -> Callable[[float], m.Event]:
        order.given_up = m.Swept(sweep.supervisor_id, ())
        return lambda sent: m.Swept(sweep.supervisor_id, tuple(self.queue.sweep(sweep.supervisor_id, sweep.beat)))

    def _sayidle(self, command: m.SayIdle, order: Order) -> Callable[[float], m.Event | None]:
        return lambda sent: m.IdleSaid(1) if command.seconds else None

    def _register(self, command: m.Register, order: Order) -> Callable[[float], m.Event]:
        def act(sent: float) -> m.Event:
            supervisor_id, released = self.queue.register(command.former, self.owner.lease)
            self.owner.names(supervisor_id)
            return m.Registered(supervisor_id, sent, released)

        return act

    def _deregister(self, command: m.Deregister, order: Order) -> Callable[[float], m.Event]:
        def act(sent: float) -> m.Event:
            self.queue.deregister(command.supervisor_id)
            return m.Deregistered()

        return act

    def _beat(self, command: m.Beat, order: Order) -> Callable[[float], m.Event]:
        def act(sent: float) -> m.Event:
            held = self.queue.beat(command.supervisor_id)
            return m.Beaten(command.supervisor_id, sent, None if held is None else tuple(held_row(row) for row in held))

        return act

    def _look(self, command: m.Look, order: Order) -> Callable[[float], m.Event]:
        def act(sent: float) -> m.Event:
            held = self.queue.held(command.supervisor_id)
            others = tuple(
                m.OtherSupervisor(other, seen.beat, seen.lease, self.owner.vacant(other))
                for other, seen in self.queue.supervisors.items()
                if other != command.supervisor_id
            )
            return m.Looked(tuple(held_row(row) for row in held if row.cancel), others)

        return act


def held_row(row: Row) -> m.HeldRow:
    assert row.run_id is not None
    return m.HeldRow(row.job_id, row.run_id, row.claim_id, row.cancel)


def job_of(row: Row) -> m.Job:
    assert row.run_id is not None
    assert row.claim_id is not None
    return m.Job(
        row.job_id, row.run_id, row.claim_id, row.queue, "job", b"{}", row.attempts, row.crashes, row.losses,
        fresh=row.fresh, cancel=row.cancel is not None,
    )  # fmt: skip
