"""One supervisor of the simulation: the real core, on the clock of its host, between its fake gang and its fake link.

It is driven as the loop drives it: ticked after each batch of events and when its own deadline has come, so a deadline
that the core forgets is not made up for. It can be frozen (SIGSTOP: its wardens are not), killed, and cut off.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args
from uuid import UUID

from ganger.core import messages as m
from ganger.core.machine import Machine
from ganger.core.rules import LaneRules, Rules
from ganger.core.slot import State
from tests.core.simulation.gang import FOREVER, Behaviour, Gang
from tests.core.simulation.link import Link
from tests.core.simulation.observer import MAX_CRASHES, Violation

if TYPE_CHECKING:
    from tests.core.simulation.world import World

TICK = m.Tick()
GANG = get_args(m.GangCommand)
OUTCOMES = get_args(m.Outcome)
DATABASE = get_args(m.DatabaseCommand)
NOBODY_TO_ASK = ("no child", "no slot", "children died")
THAW = 1.0  # seconds in which the wardens of a thawed host notice that their time is over
BLINK = 1e-5  # seconds; a loop wakes a little late, never early
SPINS = 20  # Ticks in a row that are due at once: the loop would spin


@dataclass(slots=True)
class Host:
    """A clock of its own: it began at another moment, goes a little wrong, and counts sleep (boot) or not (mono)."""

    begun: float
    rate: float
    slept: float = 0.0  # seconds of the world
    asleep_until: float = 0.0

    def mono(self, now: float) -> float:
        return self.begun + self.rate * (now - self.slept)

    def boot(self, now: float) -> float:
        return self.begun / 2 + self.rate * now


class Supervisor:
    def __init__(self, world: World, host: Host, number: int) -> None:
        self.world, self.host = world, host
        self.rng = world.rng
        self.aside = random.Random(f"{world.seed}, beside the handlers of {number}")
        self.observer = world.observer
        self.rules = rules(self.rng)
        self.lease = self.rules.lease
        self.inbox: list[m.Event] = []
        self.told: list[tuple[float, str, dict[str, Any]]] = []
        self.frozen_until = 0.0
        self.due = 0.0  # when the core wants its next Tick
        self.spins = 0
        self.dead = False  # killed, or left
        self.killed = False
        self.stopping = False
        self.exit_code: int | None = None
        self.machine = Machine(self.rules, self.rng.random, self.new_id)
        self.gang = Gang(self)
        self.link = Link(self, world.queue, lambda: world.now, disorder=self.rng.random() < 0.3)

    # ---- the clock ---------------------------------------------------------------------------------------------------

    def clock(self) -> m.Now:
        return m.Now(self.host.mono(self.world.now), self.boot())

    def boot(self) -> float:
        return self.host.boot(self.world.now)

    def frozen(self) -> bool:
        return self.world.now < max(self.frozen_until, self.host.asleep_until)

    def at(self, delay: float, act: Callable[[], None]) -> None:
        """For what processes do: in seconds of the host, and not while it sleeps."""
        self.world.at(delay / self.host.rate, lambda: self._unless(self.host.asleep_until, act))

    def later(self, delay: float, act: Callable[[], None]) -> None:
        """For what the supervisor's own threads do: not while it is stopped either."""
        self.world.at(delay / self.host.rate, lambda: self.awake(act))

    def awake(self, act: Callable[[], None]) -> None:
        if not self.dead:
            self._unless(max(self.frozen_until, self.host.asleep_until), act)

    def _unless(self, until: float, act: Callable[[], None]) -> None:
        if self.world.now < until:
            self.world.at(until - self.world.now, lambda: self._unless(max(until, self.host.asleep_until), act))
        else:
            act()

    def soon(self, act: Callable[[], None], mean: float) -> None:
        self.world.at(self.rng.expovariate(1 / mean), act)

    # ---- the loop ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._do(self.machine.start(self.clock()))

    def post(self, event: m.Event) -> None:
        if not self.dead:
            self.inbox.append(event)

    def wants_a_turn(self) -> bool:
        return not self.dead and not self.frozen() and (bool(self.inbox) or self.world.now >= self.due)

    def turn(self) -> None:
        now = self.clock()
        inbox, self.inbox = self.inbox, []
        for event in inbox:
            if isinstance(event, m.Claimed):
                for job in event.jobs:
                    self.observer.runs[job.run_id].told = True
            self._do(self.machine.handle(event, now))
            self._look_for_late_slots()
        self._do(self.machine.handle(TICK, now))
        self._look_for_late_slots()
        self._count_slots()
        due = self.machine.deadline(now)
        self.due = FOREVER if due is None else self.world.now + due / self.host.rate + BLINK
        self.spins = self.spins + 1 if due is not None and due <= 0 else 0
        if self.spins > SPINS:
            raise Violation("the core is never done with what is due: the loop would spin")

    def _look_for_late_slots(self) -> None:
        """The core looks only at slots that something has happened to, or that are due: none may be due before that."""
        for slot in self.machine.pool.slots.values():
            if slot.due > self.machine.pool.due(slot):
                raise Violation(f"slot {slot.name} is due, and would be looked at too late")

    def _count_slots(self) -> None:
        """As many as are wanted stay, and of those that are too many only what has a run."""
        pool = self.machine.pool
        staying = [slot for slot in pool.slots.values() if slot.state is not State.CLOSED]
        if not pool.closing and len(staying) != sum(pool.sizes) + sum(pool.surplus):
            raise Violation(f"{len(staying)} slots stay, and {sum(pool.sizes)} are wanted")
        if any(pool.surplus) and any(slot.free for slot in staying):
            raise Violation("a slot is idle that is one too many")

    def _do(self, commands: list[m.Command]) -> None:
        for command in commands:
            if self.dead:
                return
            if isinstance(command, OUTCOMES):
                self.observer.decided(command, self._nobody_to_ask(command))
            elif isinstance(command, m.SaveCheckpoint):
                self.observer.passed_on(command)
            elif isinstance(command, m.Deregister):
                self._may_deregister(command)
            if isinstance(command, GANG):
                self.gang.do(command)
            elif isinstance(command, DATABASE):
                self.link.do(command)
            else:
                getattr(self, f"_{type(command).__name__.lower()}")(command)

    # ---- what the core says ------------------------------------------------------------------------------------------

    def _emit(self, command: m.Emit) -> None:
        self.told.append((self.world.now, command.name, dict(command.data)))
        if command.name == "lease-lost":
            self.observer.lease_lost(self)
        elif command.name == "callback-error":  # given up: all is decided, although its child has not said so
            row = self.world.queue.rows.get(UUID(command.data["job_id"]))
            if row is not None and row.run_id in self.observer.runs:
                self.observer.runs[row.run_id].over = True

    def _nobody_to_ask(self, outcome: m.Outcome) -> bool:
        """Whether it was told that there is no child in which failed_job could be called."""
        errors = [
            data["error"]["message"]
            for _, name, data in self.told
            if data.get("job_id") == str(outcome.job_id) and name in ("callback-error", "retry-strategy-error")
        ]
        return bool(errors) and any(word in errors[-1] for word in NOBODY_TO_ASK)

    def _may_deregister(self, command: m.Deregister) -> None:
        held = [row.run_id for row in self.world.queue.held(command.supervisor_id) if row.run_id is not None]
        if self.observer.unsettled(held):
            raise Violation("it took its registration away with jobs that it had neither settled nor lost")

    def _titlechanged(self, command: m.TitleChanged) -> None:
        if not 0 <= command.running <= command.slots:
            raise Violation(f"the title says {command.running} of {command.slots}")

    def _pollingerror(self, command: m.PollingError) -> None:
        pass

    def _finish(self, command: m.Finish) -> None:
        self.exit_code = command.exit_code
        if self.gang.running():
            raise Violation("it left a running child behind")
        if self.link.claims_in_flight() and command.exit_code == 0:
            raise Violation("it left with a claim in flight, and did not say so")
        self._ends()

    # ---- mischief ----------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        self.killed = True
        self._ends()

    def _ends(self) -> None:
        self.dead = True
        self.due = FOREVER
        self.gang.orphaned()

    def freeze(self, seconds: float) -> None:
        """SIGSTOP, which its wardens are spared."""
        self.gang.wake_wardens()
        self.frozen_until = self.world.now + seconds
        self.world.at(seconds, lambda: None)

    # ---- what gang and link ask --------------------------------------------------------------------------------------

    def new_id(self) -> UUID:
        return self.world.new_id()

    def in_order(self) -> bool:
        return not self.link.disorder

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def names(self, supervisor_id: int) -> None:
        self.world.registrations[supervisor_id] = self

    def excused(self) -> bool:
        """Whether nobody can end a handler here: the host sleeps, or has only just woken up."""
        return self.world.now < self.host.asleep_until + (THAW if self.host.slept else 0.0)

    def held_up(self, since: float) -> bool:
        """Whether it, or its whole host, stood still at some time since then (boot): then limits wait for it."""
        return self.host.boot(max(self.frozen_until, self.host.asleep_until)) > since

    def vacant(self, supervisor_id: int) -> bool:
        """Whether that registration's lock is on this host, and nobody holds it."""
        other = self.world.registrations[supervisor_id]
        return other.dead and not other.gang.wardens and other.host is self.host

    def condemned(self) -> set[int]:
        """The runs that a kill may hit which names none: those that are to end, and one that a child went on to from
        such a run by itself."""
        condemned = {run.nonce for _, run in self.machine.pool.runs if run.reason or run.outcome or run.death}
        return condemned | {run.nonce for slot in self.machine.pool.slots.values() for run in slot.next}

    def behaviour(self) -> Behaviour:
        rng = self.rng
        ends = rng.choice(["return"] * 5 + ["raise"] * 3 + ["crash", "hang"]) if not self.world.tame() else "return"
        if ends == "hang" and self.rules.timeout is None and (self.world.to_the_end or rng.random() < 0.5):
            ends = "return"  # nobody would end it before it is asked to stop
        seconds = rng.choice([0.01, 0.1, 1.0, 5.0, 40.0])
        if self.world.now < self.world.short_until and rng.random() < 0.9:
            ends, seconds = rng.choice(["return"] * 12 + ["raise", "crash"]), rng.choice([0.01, 0.001])
        return Behaviour(
            ends=ends,
            after=FOREVER if ends == "hang" else seconds * (0.5 + rng.random()),
            obeys=rng.choice(["interrupt", "interrupt", "terminate", "kill"]),
            computing=rng.random() < 0.5,
            strategy=rng.choice([None, m.Strategy(2, (0.5,)), m.Strategy(1, ()), m.Strategy(5, (0.1, 10.0))]),
            strategy_error=rng.random() < 0.1,
            callbacks=rng.choice(["fine"] * 6 + ["raise", "hang", "crash"]),
            clean=rng.random() < 0.9,
            leaves=rng.random() < 0.3,
        )


def rules(rng: random.Random) -> Rules:
    return Rules(
        (LaneRules("any", ("default",), rng.randint(1, 3)),),
        poll_interval=rng.choice([2.0, 10.0]),
        lease=rng.choice([12.0, 24.0]),
        timeout=rng.choice([None, None, 3.0, 20.0]),
        grace=rng.choice([0.0, 2.0, 5.0]),
        shutdown=rng.choice(["wait", "wait", "finish", "interrupt", "terminate"]),
        shutdown_timeout=rng.choice([None, 30.0]),
        interrupt_after=10.0,
        recycle_after=rng.choice([0.0, 1.0, 100.0]),
        callback_timeout=5.0,
        boot_timeout=20.0,
        store_timeout=200.0,
        max_crashes=MAX_CRASHES,
    )
