"""A world for the core: a fake clock, a fake gang of processes and a fake database, all of them unreliable.

One seed makes one schedule: jobs that return, raise, crash, hang, swallow interrupts or never start; wardens and
templates that die; claims whose answers are late or lost; outages; a frozen supervisor; cancel orders; a rival
supervisor that takes what looks abandoned; and a shutdown of some kind at some moment. The world checks the promises
while it runs (``Violation``) and once everything is over.

The world knows nothing of how the core decides. It sees commands, and judges them by what its own processes and rows
are doing at that moment.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from ganger.core import messages as m
from ganger.core.machine import Machine
from ganger.core.rules import LaneRules, Rules

FOREVER = 1e9
TICK = m.Tick()
ENDS = 40_000.0  # seconds of fake time within which every schedule must be over


class Violation(AssertionError):
    """The core broke a promise."""


@dataclass
class Behaviour:
    """What one run of a job does, drawn when it starts."""

    ends: str  # return, raise, crash, hang
    after: float  # seconds until it does
    obeys: str  # which step ends it early: interrupt, terminate, kill
    computing: bool
    strategy: m.Strategy | None
    strategy_error: bool = False
    callbacks: str = "fine"  # fine, raise, hang, crash
    clean: bool = True


@dataclass
class Child:
    number: int
    nonce: int = 0  # of the handler that runs, 0 between
    behaviour: Behaviour | None = None
    job: m.Job | None = None
    limits: m.Limits | None = None
    began: float = 0.0
    alive: bool = True
    dying: bool = False
    jobs: int = 0  # that it has run
    asked: bool = False  # an order has reached it


@dataclass
class Warden:
    slot: str
    alive: bool = True
    stopped: bool = False
    child: Child | None = None


@dataclass
class Row:
    job_id: UUID
    state: int = 1
    due: float = 0.0
    attempts: int = 0
    crashes: int = 0
    losses: int = 0
    interrupts: int = 0
    fresh: bool = False
    cancel: str | None = None
    run_id: UUID | None = None
    claim_id: UUID | None = None
    owner: int | None = None
    starts: int = 0


class World:
    """One schedule. ``run`` raises Violation, or returns what happened."""

    def __init__(self, seed: int, machine: type[Machine] = Machine) -> None:
        self.rng = random.Random(seed)
        self.aside = random.Random(f"{seed}, beside the handlers")  # what strategies and callbacks do
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.serial = 0
        self.rules = self._rules()
        self.machine = machine(self.rules, self.rng.random, self._uuid)
        self.told: list[tuple[float, str, dict[str, Any]]] = []
        self.inbox: list[m.Event] = []
        # processes
        self.template: int | None = None
        self.wardens: dict[str, Warden] = {}
        self.trusted_until = FOREVER
        # database
        self.rows: dict[UUID, Row] = {}
        self.archive: dict[UUID, m.Archive] = {}
        self.registrations: dict[int, int] = {}  # id -> beat
        self.registered = 0
        self.down = False
        self.down_since = 0.0
        self.outcomes: dict[UUID, m.Outcome] = {}  # every outcome that the core decided, by run
        self.claims_in_flight: set[UUID] = set()
        self.given: set[UUID] = set()  # runs that the core was told of and has not settled
        self.sent: set[UUID] = set()  # runs that were sent to a child
        self.crashed: set[UUID] = set()  # runs that ended their child by themselves, which had run nothing else
        self.raised: set[UUID] = set()  # runs whose handler raised, and whose strategy began to be asked
        self.called: set[UUID] = set()  # runs whose failed_job began
        self.over: set[UUID] = set()  # runs of which it had heard the end
        self.lost: set[UUID] = set()  # runs that it had when it lost its lease
        self.forfeited: set[UUID] = set()  # those of them that were not over
        self.waiting_writes: list[Callable[[], None]] = []
        self.frozen_until = 0.0
        self.finish: m.Finish | None = None
        self.rival = (0, 0.0)
        self.total = 0
        self.due = 0.0  # when the core wants its next Tick
        self.turn = 0.0  # of the thread that renews the lease
        self.spins = 0  # Ticks in a row that were due at once

    # ---- the schedule ------------------------------------------------------------------------------------------------

    def _rules(self) -> Rules:
        rng = self.rng
        lanes = [LaneRules("any", ("default",), rng.randint(1, 3))]
        return Rules(
            tuple(lanes),
            lease=24.0,
            timeout=rng.choice([None, None, 3.0, 20.0]),
            grace=rng.choice([0.0, 2.0, 5.0]),
            shutdown=rng.choice(["wait", "wait", "finish", "interrupt", "terminate"]),
            shutdown_timeout=rng.choice([None, 30.0]),
            interrupt_after=10.0,
            recycle_after=rng.choice([0.0, 1.0, 100.0]),
            callback_timeout=5.0,
            boot_timeout=20.0,
            store_timeout=200.0,
        )

    def _behaviour(self) -> Behaviour:
        rng = self.rng
        tame = self.now > 100  # later, so that every schedule comes to an end
        ends = rng.choice(["return"] * 5 + ["raise"] * 3 + ["crash", "hang"]) if not tame else "return"
        forgiving = self.rules.timeout is not None or rng.random() < 0.5
        if ends == "hang" and not forgiving:
            ends = "return"
        return Behaviour(
            ends=ends,
            after=FOREVER if ends == "hang" else rng.choice([0.01, 0.1, 1.0, 5.0, 40.0]) * (0.5 + rng.random()),
            obeys=rng.choice(["interrupt", "interrupt", "terminate", "kill"]),
            computing=rng.random() < 0.5,
            strategy=rng.choice([None, m.Strategy(2, (0.5,)), m.Strategy(1, ()), m.Strategy(5, (0.1, 10.0))]),
            strategy_error=rng.random() < 0.1,
            callbacks=rng.choice(["fine"] * 6 + ["raise", "hang", "crash"]),
            clean=rng.random() < 0.9,
        )

    def at(self, delay: float, act: Callable[[], None]) -> None:
        self.serial += 1
        heapq.heappush(self.events, (self.now + delay, self.serial, act))

    def soon(self, act: Callable[[], None], mean: float = 0.02) -> None:
        self.at(self.rng.expovariate(1 / mean), act)

    def _in_turn(self, act: Callable[[], None], mean: float = 0.02) -> None:
        """Like ``soon`` for what one thread does: nothing overtakes what was before it."""
        self.turn = max(self.turn, self.now + self.rng.expovariate(1 / mean))
        self.at(self.turn - self.now, act)

    def _uuid(self) -> UUID:
        return UUID(int=self.rng.getrandbits(128))

    def run(self) -> World:
        rng = self.rng
        for _ in range(rng.randint(1, 8)):
            self.at(rng.choice([0.0, rng.uniform(0, 30)]), self._enqueue)
        for _ in range(rng.choice([0, 0, 1, 2])):
            self.at(rng.uniform(0, 50), self._outage)
        for _ in range(rng.choice([0, 0, 0, 1])):
            self.at(rng.uniform(0, 50), self._freeze)
        for _ in range(rng.choice([0, 1, 3])):
            self.at(rng.uniform(0, 50), self._disturb)
        for _ in range(rng.choice([0, 0, 2])):
            self.at(rng.uniform(0, 60), self._cancel)
        stop = rng.choice([rng.uniform(0, 5), rng.uniform(0, 60), None])
        if stop is None:
            self.at(60.0, self._stop_when_all_is_done)
        else:
            self.at(stop, self._stop)
        self.at(1.0, self._rival_looks)
        self._do(self.machine.start(self._clock()))
        while self.finish is None:
            self._step()
            if self.now > ENDS:
                raise Violation(f"not over after {ENDS:g} s of fake time")
        self._judge_end()
        return self

    def _stop(self) -> None:
        rng = self.rng
        self._post(m.Stop(rng.choice(["graceful", "graceful", "terminate", "kill"])))
        self.at(rng.uniform(0, 20), lambda: self._post(m.Stop(rng.choice(["graceful", "terminate"]))))
        # Nobody waits for ever: a job that hangs under "wait" is ended by an operator.
        self.at(150.0, lambda: self._post(m.Stop("terminate")))

    def _stop_when_all_is_done(self) -> None:
        if not self.rows or self.now >= 200.0:
            self._stop()
        else:
            self.at(2.0, self._stop_when_all_is_done)

    def _step(self) -> None:
        """Go to the next thing that happens. The core hears of it only if it posts an event, and is ticked then and
        when its own deadline has come, as the loop does it: a deadline that it forgets is not made up for."""
        tick_at = FOREVER if self._frozen() else self.due
        at = self.events[0][0] if self.events else FOREVER
        if min(at, tick_at) >= FOREVER:
            raise Violation("the core waits for an event that cannot come")
        if at <= tick_at:
            self.now, _, act = heapq.heappop(self.events)
            act()
        else:
            self.now = tick_at
        if self._frozen() or (not self.inbox and self.now < self.due):
            return
        now = self._clock()
        for event in self.inbox:
            self._do(self.machine.handle(event, now))
        self.inbox.clear()
        self._do(self.machine.handle(TICK, now))
        due = self.machine.deadline(now)
        self.due = FOREVER if due is None else self.now + due
        self.spins = self.spins + 1 if self.due <= self.now else 0
        if self.spins > 20:
            raise Violation("the core is never done with what is due: the loop would spin")

    def _clock(self) -> m.Now:
        return m.Now(self.now, self.now)

    def _frozen(self) -> bool:
        return self.now < self.frozen_until

    def _post(self, event: m.Event) -> None:
        self.inbox.append(event)

    def _do(self, commands: list[m.Command]) -> None:
        for command in commands:
            getattr(self, f"_{type(command).__name__.lower()}")(command)

    # ---- mischief ----------------------------------------------------------------------------------------------------

    def _enqueue(self) -> None:
        job_id = self._uuid()
        self.rows[job_id] = Row(job_id, due=self.now)
        self.total += 1
        if self.rng.random() < 0.5:
            self._post(m.Notified())

    def _outage(self) -> None:
        if self.down:
            return
        self.down, self.down_since = True, self.now
        self.soon(lambda: self._post(m.DatabaseLost("gone")))
        self.at(self.rng.choice([2.0, 10.0, 40.0]), self._recover)

    def _recover(self) -> None:
        self.down = False
        away = self.now - self.down_since
        self._post(m.DatabaseBack(away))
        writes, self.waiting_writes = self.waiting_writes, []
        for write in writes:
            self.soon(write)

    def _freeze(self) -> None:
        """The supervisor is stopped, its wardens are not."""
        self.frozen_until = self.now + self.rng.choice([1.0, 10.0, 60.0])
        self.at(self.frozen_until - self.now, lambda: None)

    def _disturb(self) -> None:
        """Somebody kills a process, or stops a warden."""
        warden = self.rng.choice(list(self.wardens.values())) if self.wardens else None
        what = self.rng.choice(["child", "child", "warden", "template", "stop-warden"])
        if what == "template" and self.template is not None:
            self._template_dies()
        elif warden is None or not warden.alive:
            return
        elif what == "child" and warden.child is not None:
            self._child_ends(warden, m.Exit(term_signal=9))
        elif what == "warden":
            self._warden_dies(warden)
        elif what == "stop-warden":
            warden.stopped = True

    def _cancel(self) -> None:
        if self.rows and not self.down:
            row = self.rng.choice(list(self.rows.values()))
            reason = self.rng.choice(["cancelled", "killed"])
            if row.state == 2:
                row.cancel = reason
            else:
                self._archive_row(row, m.Archive(row.job_id, UUID(int=0), "cancelled", reason, {}))

    def _rival_looks(self) -> None:
        """Another supervisor: it takes what has shown the same beat for a whole lease, and runs it elsewhere."""
        if self.finish is None:
            self.at(2.0, self._rival_looks)
        if self.down:
            self.rival = (-1, self.now)
            return
        mine = max(self.registrations, default=0)
        beat = self.registrations.get(mine, 0)
        key = mine * 1_000_000 + beat
        if self.rival[0] != key:
            self.rival = (key, self.now)
        elif mine and self.now - self.rival[1] >= self.rules.lease:
            del self.registrations[mine]
            for row in self.rows.values():
                if row.owner == mine and row.state == 2:
                    self._check_not_running(row, "was taken by another supervisor")
                    self._give_back(row, loss=1)

    # ---- commands to the gang ----------------------------------------------------------------------------------------

    def _starttemplate(self, command: m.StartTemplate) -> None:
        def ready() -> None:
            if self.rng.random() < 0.02 and command.generation > 1:
                self._post(m.TemplateFailed(command.generation, "no such module"))
                return
            self.template = command.generation
            self._post(m.TemplateReady(command.generation, {"job": m.TypeFacts()}))

        self.soon(ready, 0.3)

    def _stoptemplate(self, command: m.StopTemplate) -> None:
        self.template = None

    def _template_dies(self) -> None:
        generation, self.template = self.template, None
        self._post(m.TemplateExited(generation or 0, "signal 9"))

    def _startwarden(self, command: m.StartWarden) -> None:
        def started() -> None:
            if self.template is None:
                self._post(m.WardenExited(command.slot, "no template"))
                return
            self.wardens[command.slot] = Warden(command.slot)
            self._post(m.WardenStarted(command.slot, 1))

        self.soon(started)

    def _stopwarden(self, command: m.StopWarden) -> None:
        def stop() -> None:
            warden = self.wardens.get(command.slot)
            if warden is None:
                self.soon(stop, 0.1)  # it is only being forked
            elif warden.alive:
                self._warden_dies(warden)

        self.soon(stop)

    def _warden_dies(self, warden: Warden) -> None:
        warden.alive = False
        child, warden.child = warden.child, None
        if child is not None:
            child.alive = False
            child.nonce = 0
        del self.wardens[warden.slot]
        self.soon(lambda: self._post(m.WardenExited(warden.slot, "signal 9")))

    def _startchild(self, command: m.StartChild) -> None:
        warden = self.wardens.get(command.slot)
        if warden is None:
            return
        child = Child(command.child)

        def boot() -> None:
            if not warden.alive:
                return
            if self.rng.random() < 0.03:
                self._post(m.ChildBootFailed(command.slot, command.child, "EAGAIN", forked=False))
                return
            warden.child = child
            self._post(m.ChildStarted(command.slot, command.child, 100 + command.child))
            self.soon(ready, 0.1)

        def ready() -> None:
            if child.alive:
                self._post(m.ChildReady(command.slot, command.child))

        self.soon(boot)

    def _child(self, command: Any) -> tuple[Warden | None, Child | None]:
        warden = self.wardens.get(command.slot)
        child = warden.child if warden is not None else None
        if child is None or child.number != command.child or not child.alive:
            return warden, None
        return warden, child

    def _sendjob(self, command: m.SendJob) -> None:
        warden, child = self._child(command)
        if child is None or warden is None:
            return
        if child.nonce or child.job is not None:
            raise Violation(f"child {child.number} was sent a job while it had another")
        child.job, child.limits = command.job, command.limits
        self.sent.add(command.job.run_id)
        wait = 0.02
        if self.rng.random() < 0.03:  # it is stuck before it starts, or starts when it is just being given up
            wait = self.rng.choice([FOREVER, 10.0])
        if self.rng.random() < 0.02:
            self.soon(lambda: self._child_ends(warden, m.Exit(exit_code=1)) if warden.child is child else None)
            return

        def start() -> None:
            if not child.alive or child.dying:
                return
            child.nonce = command.nonce
            child.began = self.now
            child.jobs += 1
            child.asked = False
            child.behaviour = behaviour = self._behaviour()
            self._post(m.JobStarted(command.slot, command.child, command.nonce))
            self.at(behaviour.after, lambda: self._handler_ends(warden, child, command.nonce))

        if wait < FOREVER:
            self.at(max(0.0, self.rng.gauss(wait, 0.01)), start)

    def _handler_ends(self, warden: Warden, child: Child, nonce: int, interrupted: bool = False) -> None:
        if not child.alive or child.dying or child.nonce != nonce or child.behaviour is None:
            return
        behaviour, job = child.behaviour, child.job
        assert job is not None
        if behaviour.ends == "crash" and not interrupted:
            if child.jobs == 1 and not child.asked:
                self.crashed.add(job.run_id)
            self._child_ends(warden, m.Exit(term_signal=11))
            return
        wall = self.now - child.began
        child.nonce = 0
        if behaviour.ends == "raise" or interrupted:
            raised = self._raised(warden.slot, child, nonce, behaviour, interrupted, wall)
            if not interrupted and self.aside.random() < 0.7:
                self._ask_strategy(warden, child, raised)
            else:
                self._post(raised)
        else:
            child.job = None
            clean = behaviour.clean
            self._note_end(job)
            self._post(m.JobReturned(warden.slot, child.number, nonce, b"1", wall, wall, 1, clean, wall))

    def _raised(
        self, slot: str, child: Child, nonce: int, behaviour: Behaviour, interrupted: bool, wall: float
    ) -> m.JobRaised:
        strategy = None if behaviour.strategy_error else behaviour.strategy
        error = {"type": "X", "message": "x", "traceback": ""}
        wrong = {"type": "Y", "message": "y"} if behaviour.strategy_error else None
        return m.JobRaised(
            slot, child.number, nonce, "exception", error, interrupted, interrupted and self.rng.random() < 0.8,
            strategy, wrong, wall, wall, 1, behaviour.clean, wall,
        )  # fmt: skip

    def _ask_strategy(self, warden: Warden, child: Child, raised: m.JobRaised) -> None:
        assert child.job is not None
        self.raised.add(child.job.run_id)
        about = (raised.slot, raised.child, raised.nonce, raised.reason, raised.error)
        self._post(m.StrategyAsked(*about, raised.wall_s, raised.cpu_s, raised.max_rss))
        how = self.aside.choice(["fine"] * 8 + ["hang", "crash"])
        if how == "crash":
            self._dies_soon(warden, child)
        elif how == "fine":
            self._post(raised)

    def _dies_soon(self, warden: Warden, child: Child) -> None:
        self.soon(lambda: self._child_ends(warden, m.Exit(exit_code=3)) if warden.child is child else None)

    def _note_end(self, job: m.Job) -> None:
        if not self._frozen():
            self.over.add(job.run_id)

    def _sendpostmortem(self, command: m.SendPostmortem) -> None:
        warden, child = self._child(command)
        if child is None or warden is None:
            return
        behaviour = self._behaviour()
        child.job = command.job
        child.behaviour = behaviour

        def answer() -> None:
            if child.alive and not child.dying:
                self._post(self._raised(command.slot, child, command.nonce, behaviour, False, 0.0))

        if command.death.get("ask") is False:  # strategies are what hangs and crashes here
            behaviour.strategy = None
            behaviour.strategy_error = False
            self.soon(answer)
        elif behaviour.callbacks == "crash" and self.rng.random() < 0.3:
            self._dies_soon(warden, child)
        elif behaviour.callbacks != "hang":
            self.soon(answer)

    def _sendcallbacks(self, command: m.SendCallbacks) -> None:
        warden, child = self._child(command)
        if child is None or warden is None:
            return
        how = child.behaviour.callbacks if child.behaviour is not None and command.names else "fine"
        bad = self.aside.choice(command.names) if command.names else ""
        names = list(command.names)

        def go_on() -> None:
            if not child.alive or child.dying:
                return
            if names:
                self._begin_callback(command, child, names[0])
            if names and names[0] == bad and how == "crash":
                self._dies_soon(warden, child)
            elif names and names.pop(0) == bad and how == "hang":
                pass
            elif names:
                self.soon(go_on)
            else:
                self.soon(done)

        def done() -> None:
            if child.alive and not child.dying:
                if child.job is not None:
                    self._note_end(child.job)
                child.job = None
                errors = {name: {"message": "z"} for name in command.names} if how == "raise" else {}
                self._post(m.CallbacksDone(command.slot, child.number, command.nonce, errors))

        self.soon(go_on)

    def _begin_callback(self, command: m.SendCallbacks, child: Child, name: str) -> None:
        assert child.job is not None
        self._post(m.CallbackBegun(command.slot, child.number, command.nonce, name))
        if name == "failed_job":
            if child.job.run_id in self.called:
                raise Violation("failed_job was called twice")
            self.called.add(child.job.run_id)

    def _watch(self, command: m.Watch) -> None:
        _, child = self._child(command)
        if child is None or child.behaviour is None:
            return
        computing = child.behaviour.computing

        def look() -> None:
            if child.alive and child.nonce == command.nonce:
                self._post(m.Verdict(command.slot, child.number, command.nonce, computing, command.started))

        self.at(1.5, look)

    def _interrupt(self, command: m.Interrupt) -> None:
        warden, child = self._child(command)
        if child is None or warden is None or warden.stopped:
            return
        child.asked = child.asked or command.signal

        def reach() -> None:
            hit = child.nonce == command.nonce and child.behaviour is not None and command.signal
            if hit and child.behaviour is not None and child.behaviour.obeys == "interrupt":
                self._handler_ends(warden, child, command.nonce, interrupted=True)

        self.soon(reach)

    def _terminate(self, command: m.Terminate) -> None:
        warden, child = self._child(command)
        if child is None or warden is None or warden.stopped:
            return
        child.asked = True
        if child.nonce == command.nonce and child.behaviour is not None and child.behaviour.obeys == "terminate":
            self._child_ends(warden, m.Exit(term_signal=15))

    def _kill(self, command: m.Kill) -> None:
        _, ordered = self._child(command)
        if ordered is not None:
            ordered.asked = True

        def arrive() -> None:
            warden, child = self._child(command)
            if child is None or warden is None or child.dying:
                return
            if warden.stopped:
                self.at(0.2, arrive)
                return
            if command.nonce is not None and command.nonce != child.nonce:
                self._post(m.RunSpared(command.slot, command.child, child.nonce))
                return
            if command.nonce is None and child.nonce:
                self._check_deserved(child)
            self._bury(warden, child)

        self.soon(arrive)

    def _check_deserved(self, child: Child) -> None:
        """A kill that names no run hit one: was that run condemned?"""
        condemned = {run.nonce for _, run in self.machine.pool.runs if run.reason or run.outcome or run.death}
        if child.nonce not in condemned:
            raise Violation(f"a kill that was meant for another run hit run {child.nonce}")

    def _replaceidle(self, command: m.ReplaceIdle) -> None:
        def arrive() -> None:
            warden, child = self._child(command)
            if child is None or warden is None or child.dying:
                return
            if warden.stopped:
                self.at(0.2, arrive)
            elif child.nonce == command.nonce:
                self._post(m.RunSpared(command.slot, command.child, child.nonce))
            else:
                self._bury(warden, child)

        self.soon(arrive)

    def _bury(self, warden: Warden, child: Child) -> None:
        child.dying = True
        self._post(m.KillAcknowledged(warden.slot, child.number))
        self.soon(lambda: self._child_ends(warden, m.Exit(term_signal=9)) if warden.child is child else None, 0.05)

    def _continuewarden(self, command: m.ContinueWarden) -> None:
        if command.slot in self.wardens and self.rng.random() < 0.7:
            self.wardens[command.slot].stopped = False

    def _killdirectly(self, command: m.KillDirectly) -> None:
        if command.slot in self.wardens:
            self._warden_dies(self.wardens[command.slot])

    def _retire(self, command: m.Retire) -> None:
        warden, child = self._child(command)
        if child is not None and warden is not None:
            if child.nonce:
                raise Violation("a child was retired in the middle of a run")
            if self.rng.random() < 0.95:
                self.soon(lambda: self._child_ends(warden, m.Exit(exit_code=0)) if warden.child is child else None)

    def _child_ends(self, warden: Warden, exit: m.Exit) -> None:
        child, warden.child = warden.child, None
        if child is None:
            return
        child.alive = False
        child.nonce = 0
        self.soon(lambda: self._post(m.ChildExited(warden.slot, child.number, exit)))

    def _trust(self, command: m.Trust) -> None:
        self.trusted_until = command.until
        if command.until < FOREVER:
            self.at(max(0.0, command.until - self.now), lambda: self._trust_ends(command.until))

    def _trust_ends(self, until: float) -> None:
        """What the wardens do by themselves."""
        if until < self.trusted_until:
            return
        for warden in list(self.wardens.values()):
            if warden.child is not None and (warden.child.nonce or warden.child.job is not None):
                self._child_ends(warden, m.Exit(term_signal=9))

    # ---- commands to the database ------------------------------------------------------------------------------------

    def _write(self, write: Callable[[], None]) -> None:
        """A write that is kept through an outage until it is done."""

        def attempt() -> None:
            if self.down:
                self.waiting_writes.append(attempt)
            else:
                write()

        self.soon(attempt)

    def _register(self, command: m.Register) -> None:
        def write() -> None:
            released = 0
            for row in self.rows.values():
                if command.former is not None and row.owner == command.former and row.state == 2:
                    self._check_not_running(row, "was released at a new registration")
                    self._give_back(row, refund=1)
                    released += 1
            self.registrations.pop(command.former or 0, None)
            self.registered += 1
            new, sent = self.registered, self.now
            self.registrations[new] = 0
            self.soon(lambda: self._post(m.Registered(new, sent, released)))

        self._write(write)

    def _deregister(self, command: m.Deregister) -> None:
        held = {row.run_id for row in self.rows.values() if row.owner == command.supervisor_id and row.state == 2}
        if held & self.given - self.lost:
            raise Violation("it took its registration away with jobs that it had neither settled nor lost")

        def write() -> None:
            self.registrations.pop(command.supervisor_id, None)
            for row in self.rows.values():
                if row.owner == command.supervisor_id and row.state == 2:
                    self._check_not_running(row, "was released at the end")
                    self._give_back(row, refund=1)
            self._post(m.Deregistered())

        self._write(write)

    def _claim(self, command: m.Claim) -> None:
        self.claims_in_flight.add(command.claim_id)
        lost = self.rng.random() < 0.05

        def answer(event: m.Event) -> None:
            self.claims_in_flight.discard(command.claim_id)
            self._post(event)

        def execute() -> None:
            if self.down or (lost and self.rng.random() < 0.5):
                self.soon(lambda: answer(m.ClaimLost(command.claim_id)))
                return
            jobs, lanes = self._claim_rows(command)
            more = tuple(len([n for n in lanes if n == i]) == lane.free for i, lane in enumerate(command.lanes))
            dues = [row.due - self.now for row in self.rows.values() if row.state == 0]
            event: m.Event = m.Claimed(command.claim_id, jobs, lanes, more, min(dues, default=None), 1)
            if not lost:
                self.given |= {job.run_id for job in jobs}
            self.soon(lambda: answer(m.ClaimLost(command.claim_id) if lost else event), 0.1)

        self.soon(execute)

    def _claim_rows(self, command: m.Claim) -> tuple[tuple[m.Job, ...], tuple[int, ...]]:
        jobs: list[m.Job] = []
        lanes: list[int] = []
        if command.supervisor_id not in self.registrations:
            return (), ()
        for index, lane in enumerate(command.lanes):
            ready = [r for r in self.rows.values() if r.state == 1 or (r.state == 0 and r.due <= self.now)]
            for row in ready[: lane.free]:
                row.state, row.owner = 2, command.supervisor_id
                row.claim_id, row.run_id = command.claim_id, self._uuid()
                row.attempts += 1
                row.starts += 1
                jobs.append(
                    m.Job(row.job_id, row.run_id, command.claim_id, "default", "job", b"{}", row.attempts,
                          row.crashes, row.losses, fresh=row.fresh, cancel=row.cancel is not None)
                )  # fmt: skip
                lanes.append(index)
        return tuple(jobs), tuple(lanes)

    def _beat(self, command: m.Beat) -> None:
        sent = self.now

        def execute() -> None:
            if self.down:
                return
            if command.supervisor_id not in self.registrations:
                self._in_turn(lambda: self._post(m.Beaten(command.supervisor_id, sent, None)))
                return
            self.registrations[command.supervisor_id] += 1
            held = tuple(
                m.HeldRow(row.job_id, row.run_id, row.claim_id, row.cancel)
                for row in self.rows.values()
                if row.owner == command.supervisor_id and row.state == 2 and row.run_id is not None
            )
            self._in_turn(lambda: self._post(m.Beaten(command.supervisor_id, sent, held)), 0.1)

        self._in_turn(execute)

    def _look(self, command: m.Look) -> None:
        def execute() -> None:
            if self.down:
                return
            cancels = tuple(
                m.HeldRow(row.job_id, row.run_id, row.claim_id, row.cancel)
                for row in self.rows.values()
                if row.owner == command.supervisor_id and row.state == 2 and row.cancel and row.run_id is not None
            )
            others = tuple(
                m.OtherSupervisor(number, beat, self.rules.lease)
                for number, beat in self.registrations.items()
                if number != command.supervisor_id
            )
            self._post(m.Looked(cancels, others))

        self.soon(execute)

    def _sweep(self, command: m.Sweep) -> None:
        def execute() -> None:
            if self.down or self.registrations.get(command.supervisor_id) != command.beat:
                return
            del self.registrations[command.supervisor_id]
            taken = []
            for row in self.rows.values():
                if row.owner == command.supervisor_id and row.state == 2:
                    self._check_not_running(row, "was swept")
                    self._give_back(row, loss=1)
                    taken.append(row.job_id)
            self._post(m.Swept(command.supervisor_id, tuple(taken)))

        self.soon(execute)

    def _sayidle(self, command: m.SayIdle) -> None:
        if command.seconds:
            self._write(lambda: self._post(m.IdleSaid(1)))

    def _archive(self, command: m.Archive) -> None:
        if command.status == "failure" and command.run_id not in self.called and not self._nobody_to_ask(command):
            raise Violation("a job has failed, and failed_job was not called")
        if command.run_id in self.raised and command.reason == "crash":
            raise Violation("a crash of its strategy was blamed on the job")
        self._outcome(command, lambda row: self._archive_row(row, command))

    def _nobody_to_ask(self, command: m.Archive) -> bool:
        """Whether it was told that there is no child in which failed_job could be called."""
        errors = [
            data["error"]["message"]
            for _, name, data in self.told
            if data.get("job_id") == str(command.job_id) and name in ("callback-error", "retry-strategy-error")
        ]
        return bool(errors) and any(word in errors[-1] for word in ("no child", "no slot", "children died"))

    def _retry(self, command: m.Retry) -> None:
        by_limit = command.entry["reason"] in ("timeout", "memory")  # ordered before it crashed
        if command.run_id in self.crashed and command.crash != 1 and not by_limit:
            raise Violation("a crash was not counted")

        def write(row: Row) -> None:
            row.crashes += command.crash
            row.fresh = False
            self._give_back(row, due=self.now + command.delay)

        self._outcome(command, write)

    def _release(self, command: m.Release) -> None:
        def write(row: Row) -> None:
            row.fresh = command.fresh
            row.interrupts += command.interrupted
            self._give_back(row, loss=int(command.loss), refund=int(not command.loss))

        self._outcome(command, write)

    def _outcome(self, command: m.Outcome, act: Callable[[Row], None]) -> None:
        if command.run_id in self.outcomes:
            raise Violation(f"run {command.run_id} was settled twice")
        self.outcomes[command.run_id] = command
        self.given.discard(command.run_id)
        if command.run_id in self.forfeited & self.sent:
            raise Violation("an outcome was decided after the lease was lost")
        self._check_run_gone(command.run_id, "was settled")
        if isinstance(command, m.Archive):
            self._check_archive(command)
        since_outage = self.down

        def write() -> None:
            row = self.rows.get(command.job_id)
            if row is None or row.run_id != command.run_id:
                self._post(m.Stored(command.run_id, "refused"))
                return
            if row.cancel and not isinstance(command, m.Archive):
                self._archive_row(row, m.Archive(row.job_id, command.run_id, "cancelled", row.cancel, {}))
                self.soon(lambda: self._post(m.Stored(command.run_id, "cancelled", since_outage)))
                return
            act(row)
            self.soon(lambda: self._post(m.Stored(command.run_id, "stored", since_outage)))

        self._write(write)

    # ---- rows --------------------------------------------------------------------------------------------------------

    def _give_back(self, row: Row, *, due: float | None = None, loss: int = 0, refund: int = 0) -> None:
        row.state = 0 if due is not None and due > self.now else 1
        row.due = self.now if due is None else due
        row.owner = row.run_id = row.claim_id = None
        row.losses += loss
        row.attempts -= refund
        if row.cancel:
            self._archive_row(row, m.Archive(row.job_id, UUID(int=0), "cancelled", row.cancel, {}))

    def _archive_row(self, row: Row, command: m.Archive) -> None:
        self.archive[row.job_id] = command
        self.rows = {job_id: other for job_id, other in self.rows.items() if other is not row}

    # ---- the promises ------------------------------------------------------------------------------------------------

    def _check_not_running(self, row: Row, what: str) -> None:
        if row.run_id is not None:
            self._check_run_gone(row.run_id, what)

    def _check_run_gone(self, run_id: UUID, what: str) -> None:
        for warden in self.wardens.values():
            child = warden.child
            if child is not None and child.nonce and child.job is not None and child.job.run_id == run_id:
                raise Violation(f"run {run_id} {what} while its handler was still running")

    def _check_archive(self, command: m.Archive) -> None:
        row = self.rows.get(command.job_id)
        if row is None or row.run_id != command.run_id:
            return
        if command.status == "failure" and command.reason == "crash" and self.rules.max_crashes < row.crashes + 1:
            raise Violation("a job crashed more often than max_crashes allows")
        if command.status == "cancelled" and row.cancel is None:
            raise Violation("a job was archived as cancelled that nobody cancelled")

    def _emit(self, command: m.Emit) -> None:
        self.told.append((self.now, command.name, dict(command.data)))
        if command.name == "lease-lost":
            self.lost |= self.given
            self.forfeited |= self.given - self.over
        elif command.name == "callback-error":
            self._note_late_callback(UUID(command.data["job_id"]))

    def _note_late_callback(self, job_id: UUID) -> None:
        """It was given up, so all is decided, although its child has not said so."""
        row = self.rows.get(job_id)
        if row is not None and row.run_id is not None:
            self.over.add(row.run_id)

    def _titlechanged(self, command: m.TitleChanged) -> None:
        if not 0 <= command.running <= command.slots:
            raise Violation(f"the title says {command.running} of {command.slots}")

    def _pollingerror(self, command: m.PollingError) -> None:
        pass

    def _finish(self, command: m.Finish) -> None:
        self.finish = command

    def _judge_end(self) -> None:
        """The supervisor has left. Nothing of it may be left, and no job may be gone."""
        assert self.finish is not None
        if self.claims_in_flight and not self.down:
            raise Violation("it left with a claim in flight")
        for warden in self.wardens.values():
            if warden.child is not None and warden.child.nonce:
                raise Violation("it left a running child behind")
        for _ in range(1000):  # let writes that are on their way arrive
            if not self.events or self.events[0][0] > self.now + 5 or self.down:
                break
            self.now, _, act = heapq.heappop(self.events)
            act()
        held = [row for row in self.rows.values() if row.state == 2 and row.owner in self.registrations]
        if held and self.finish.exit_code == 0:
            raise Violation(f"it left {len(held)} claimed rows behind")
        if len(self.rows) + len(self.archive) != self.total - self._unborn():
            raise Violation("a job is gone")
        for row in self.rows.values():
            if row.attempts < 0 or row.losses > row.attempts:
                raise Violation(f"the attempts do not add up: {row}")

    def _unborn(self) -> int:
        return self.total - len(self.rows) - len(self.archive) if self.down else 0
