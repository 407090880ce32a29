"""A world for the core: hosts with clocks of their own, several supervisors on one queue, and mischief.

One seed makes one schedule. The world only lets things happen in the order of time; what may not happen is judged by
the observer. A schedule ends when every supervisor has left: because it was stopped early, in whatever manner, or
because every job was done, and then no job may be left.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from uuid import UUID

from ganger.core import messages as m
from tests.core.simulation.gang import FOREVER
from tests.core.simulation.observer import Observer, Violation
from tests.core.simulation.supervisor import Host, Supervisor
from tests.model import RUNNING, Queue

MISCHIEF = 40.0  # seconds during which things go wrong
RESTART = 5.0  # seconds until another supervisor is started in place of one that was killed
TAME = 60.0  # when handlers begin to behave, so that every schedule comes to an end
DONE = 1500.0  # when every job must be, in a schedule that is not stopped early
ENDS = 40_000.0  # when every schedule must be over
WOBBLE = 0.05  # how much a host's clock goes wrong; the lease allows for a seventh


class World:
    """``run`` raises Violation, or returns what happened."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.aside = random.Random(f"{seed}, beside the mischief")
        self.now = 0.0
        self.happenings: list[tuple[float, int, Callable[[], None]]] = []
        self.serial = 0
        self.queue = Queue()
        self.observer = Observer(self.queue)
        self.queue.left = self.observer.left
        self.hosts: list[Host] = []
        self.supervisors: list[Supervisor] = []
        self.registrations: dict[int, Supervisor] = {}
        self.short_until = 0.0  # most jobs are short until then, and there are many
        self.to_the_end = False  # nobody is stopped before every job is done

    def at(self, delay: float, act: Callable[[], None]) -> None:
        self.serial += 1
        heapq.heappush(self.happenings, (self.now + delay, self.serial, act))

    def new_id(self) -> UUID:
        return UUID(int=self.rng.getrandbits(128))

    def tame(self) -> bool:
        return self.now > TAME

    def told(self) -> set[str]:
        """The names of all events that supervisors logged."""
        return {name for supervisor in self.supervisors for _, name, _ in supervisor.told}

    # ---- the schedule ------------------------------------------------------------------------------------------------

    def run(self) -> World:
        self._plan()
        while self._alive() or self.now < MISCHIEF + RESTART or (self.to_the_end and not self._done()):
            self._step()
            if self.now > ENDS:
                raise Violation(f"not over after {ENDS:g} s")
        self._let_writes_arrive()
        self._judge()
        return self

    def _plan(self) -> None:
        rng = self.rng
        for _ in range(rng.choice([1, 1, 2])):
            self.hosts.append(Host(rng.uniform(0, 1e6), rng.uniform(1 - WOBBLE, 1 + WOBBLE)))
        for _ in range(rng.choice([1, 1, 2, 2, 3])):
            self.at(rng.choice([0.0, rng.uniform(0, 10)]), lambda: self._employ(rng.choice(self.hosts)))
        if rng.random() < 0.3:
            self.short_until = rng.uniform(5, 30)
            begins = rng.uniform(0, 10)
            for _ in range(rng.randint(20, 80)):
                self.at(begins + rng.expovariate(1.0), self._enqueue)
        for _ in range(rng.randint(1, 8)):
            self.at(rng.choice([0.0, rng.uniform(0, 30)]), self._enqueue)
        for most, mischief in (
            ([0, 0, 1], self._outage),
            ([0, 0, 1, 2], self._cut),
            ([0, 0, 0, 1], self._freeze),
            ([0, 0, 0, 1], self._sleep),
            ([0, 1, 3], self._disturb),
            ([0, 0, 2], self._cancel),
            ([0, 0, 0, 2], self._reload),
            ([0, 0, 1, 2], self._kill),
        ):
            for _ in range(rng.choice(most)):
                self.at(rng.uniform(0, MISCHIEF), mischief)
        for _ in range(self.aside.choice([0, 0, 1, 3, 6])):
            self.at(self.aside.uniform(0, MISCHIEF), self._resize)
        self.to_the_end = rng.random() < 0.5
        self.at(MISCHIEF + RESTART, self._stop_if_done if self.to_the_end else lambda: None)

    def _employ(self, host: Host) -> None:
        supervisor = Supervisor(self, host, len(self.supervisors))
        self.supervisors.append(supervisor)
        supervisor.start()
        if not self.to_the_end:
            early = self.rng.choice([self.rng.uniform(0, 5), self.rng.uniform(0, MISCHIEF)])
            self.at(early, lambda: self._stop(supervisor))

    def _alive(self) -> list[Supervisor]:
        return [supervisor for supervisor in self.supervisors if not supervisor.dead]

    def _done(self) -> bool:
        return self.observer.jobs > 0 and not self.queue.rows and self.now > MISCHIEF + RESTART

    def _stop(self, supervisor: Supervisor) -> None:
        rng = self.rng
        supervisor.stopping = True
        supervisor.post(m.Stop(rng.choice(["graceful", "graceful", "terminate", "kill"])))
        self.at(rng.uniform(0, 20), lambda: supervisor.post(m.Stop(rng.choice(["graceful", "terminate"]))))
        # Nobody waits for ever: a job that hangs under "wait" is ended by an operator.
        self.at(150.0, lambda: supervisor.post(m.Stop("terminate")))

    def _stop_if_done(self) -> None:
        """In the meantime, whoever died is replaced."""
        if self._done():
            for supervisor in self._alive():
                self._stop(supervisor)
            return
        if self.now > DONE:
            raise Violation(f"a job waits for ever: {next(iter(self.queue.rows.values()))}")
        if not self._alive():
            self._employ(self.rng.choice(self.hosts))
        self.at(2.0, self._stop_if_done)

    def _step(self) -> None:
        """Go to the next thing that happens, and give those supervisors their turn that it concerns."""
        awake = [supervisor for supervisor in self._alive() if not supervisor.frozen()]
        due = min((supervisor.due for supervisor in awake), default=FOREVER)
        at = self.happenings[0][0] if self.happenings else FOREVER
        if min(at, due) >= FOREVER:
            raise Violation("the core waits for an event that cannot come")
        if at <= due:
            self.now, _, act = heapq.heappop(self.happenings)
            act()
        else:
            self.now = max(self.now, due)
        for supervisor in self.supervisors:
            if supervisor.wants_a_turn():
                supervisor.turn()

    # ---- mischief ----------------------------------------------------------------------------------------------------

    def _someone(self) -> Supervisor | None:
        alive = self._alive()
        return self.rng.choice(alive) if alive else None

    def _enqueue(self) -> None:
        self.queue.enqueue(self.now, self.new_id(), delay=self.rng.choice([0.0, 0.0, 5.0]))
        self.observer.jobs += 1
        for supervisor in self._alive():
            if self.rng.random() < 0.5:
                supervisor.post(m.Notified())

    def _outage(self) -> None:
        """The database is away for all."""
        length = self.rng.choice([2.0, 10.0, 40.0])
        for supervisor in self._alive():
            self._cut_off(supervisor, length)

    def _cut(self) -> None:
        """The network between one supervisor and the database."""
        supervisor = self._someone()
        if supervisor is not None:
            self._cut_off(supervisor, self.rng.choice([2.0, 10.0, 40.0]))

    def _cut_off(self, supervisor: Supervisor, length: float) -> None:
        if not supervisor.link.cut:
            supervisor.link.breaks()
            self.at(length, supervisor.link.mends)

    def _freeze(self) -> None:
        supervisor = self._someone()
        if supervisor is not None:
            supervisor.freeze(self.rng.choice([1.0, 10.0, 60.0]))

    def _sleep(self) -> None:
        """A whole host is suspended."""
        host, length = self.rng.choice(self.hosts), self.rng.choice([1.0, 10.0, 60.0])
        if self.now < host.asleep_until:
            return
        host.asleep_until = self.now + length
        host.slept += length
        self.at(length, lambda: None)
        for supervisor in self._alive():
            if supervisor.host is host:
                supervisor.gang.wake_wardens()

    def _disturb(self) -> None:
        supervisor = self._someone()
        if supervisor is not None and self.now >= supervisor.host.asleep_until:
            supervisor.gang.disturb()

    def _cancel(self) -> None:
        if self.queue.rows:
            row = self.rng.choice(list(self.queue.rows.values()))
            self.observer.cancelled.add(row.job_id)
            self.queue.cancel(row.job_id, self.rng.choice(["cancelled", "killed"]))

    def _reload(self) -> None:
        supervisor = self._someone()
        if supervisor is not None:
            supervisor.post(m.Reload())

    def _resize(self) -> None:
        """Slots more and fewer, perhaps several times in a moment."""
        alive = self._alive()
        if alive:
            supervisor = self.aside.choice(alive)
            for _ in range(self.aside.choice([1, 1, 3])):
                if self.aside.random() < 0.7:
                    supervisor.post(m.MoreSlots(self.aside.choice([1, -1])))
                else:
                    supervisor.post(m.Resize(self.aside.randint(0, 4)))

    def _kill(self) -> None:
        """SIGKILL to a supervisor; often another one is started in its place."""
        supervisor = self._someone()
        if supervisor is not None and self.now >= supervisor.host.asleep_until:
            supervisor.kill()
            if self.rng.random() < 0.7:
                self.at(self.rng.uniform(0.1, RESTART), lambda: self._employ(supervisor.host))

    # ---- the end -----------------------------------------------------------------------------------------------------

    def _let_writes_arrive(self) -> None:
        for _ in range(1000):
            if not self.happenings or self.happenings[0][0] > self.now + 30:
                break
            self.now, _, act = heapq.heappop(self.happenings)
            act()

    def _judge(self) -> None:
        """Nothing of anybody may be left, and no job may be gone."""
        for supervisor in self.supervisors:
            if supervisor.gang.running():
                raise Violation("a child outlived its supervisor")
        for row in self.queue.rows.values():
            owner = self.registrations.get(row.owner or 0)
            if row.state == RUNNING and owner is not None and not owner.killed and owner.exit_code == 0:
                raise Violation(f"a supervisor that left with 0 holds a row: {row}")
        self.observer.judge()
