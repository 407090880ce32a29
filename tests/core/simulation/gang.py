"""The fake processes of one supervisor: template, wardens and children, all of them unreliable.

Children whose handlers return, raise, crash, hang, swallow interrupts or never start; wardens that are stopped or die;
orders that reach a child which has gone on to another run. The gang judges each command by what its own processes are
doing at that moment, and tells the observer what really happens.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from ganger.core import messages as m
from ganger.core.pace import DEEPEST
from ganger.core.rules import Rules
from tests.core.simulation.observer import Observer, Violation

FOREVER = 1e9
LIMITS = ("timeout", "memory")
SLOW = 2.0  # seconds: the contract says 1, and some of the delays here have a long tail


@dataclass(slots=True)
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
    leaves: bool = False  # processes that go on when the handler has ended, for ever


@dataclass(slots=True)
class Child:
    number: int
    nonce: int = 0  # of the handler that runs, 0 between
    given: int = 0  # of the run that it read last
    begun: int = 0  # of the run that it began last
    behaviour: Behaviour | None = None
    job: m.Job | None = None
    began: float = 0.0
    alive: bool = True
    dying: bool = False
    jobs: int = 0  # that it has run
    asked: bool = False  # an order has reached it
    order: str = ""  # the order that has ended its handler
    stays: bool = True  # by its own rule, after its last job
    failing: bool = False  # the handler raised, and the callbacks are not through
    left: int = 0  # the run whose processes go on although its handler has ended
    ahead: list[m.SendJob] = field(default_factory=list)  # sent to it while it had another
    revoked: int = 0  # runs up to this one are not to be begun


@dataclass(slots=True)
class Warden:
    slot: str
    alive: bool = True
    stopped: bool = False
    delayed: bool = False  # it was stopped once: what it has to kill may live longer
    child: Child | None = None
    words: list[m.Event] = field(default_factory=list)  # that are on their way, in this order


class Owner(Protocol):
    """The supervisor as its gang sees it. Seconds are those of its host, which may sleep."""

    rng: random.Random
    aside: random.Random  # what strategies and callbacks do
    observer: Observer
    rules: Rules

    def post(self, event: m.Event) -> None: ...
    def at(self, delay: float, act: Callable[[], None]) -> None: ...
    def boot(self) -> float: ...
    def frozen(self) -> bool: ...
    def held_up(self, since: float) -> bool: ...
    def behaviour(self) -> Behaviour: ...
    def condemned(self) -> set[int]: ...


class Gang:
    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.rng, self.aside, self.observer = owner.rng, owner.aside, owner.observer
        self.post, self.at = owner.post, owner.at
        self.templates: set[int] = set()
        self.wardens: dict[str, Warden] = {}
        self.unwanted: set[str] = set()  # slots whose warden is to leave as soon as it is there
        self.trusted_until = FOREVER

    def do(self, command: m.GangCommand) -> None:
        getattr(self, f"_{type(command).__name__.lower()}")(command)

    def soon(self, act: Callable[[], None], mean: float = 0.02) -> None:
        self.at(self.rng.expovariate(1 / mean), act)

    def running(self) -> list[Child]:
        children = [warden.child for warden in self.wardens.values()]
        return [child for child in children if child is not None and child.nonce]

    # ---- mischief ----------------------------------------------------------------------------------------------------

    def disturb(self) -> None:
        """Somebody kills a process, or stops a warden (not while the supervisor is stopped: one of them must be there
        to end what the lease does not allow any more)."""
        warden = self.rng.choice(list(self.wardens.values())) if self.wardens else None
        what = self.rng.choice(["child", "child", "warden", "template", "stop-warden"])
        if what == "template" and self.templates:
            generation = max(self.templates)
            self.templates.remove(generation)
            self.post(m.TemplateExited(generation, "signal 9"))
        elif warden is None or not warden.alive:
            return
        elif what == "child" and warden.child is not None:
            self._dies(warden, m.Exit(term_signal=9))
        elif what == "warden":
            self._warden_dies(warden)
        elif what == "stop-warden":
            warden.stopped = warden.delayed = not self.owner.frozen()

    def wake_wardens(self) -> None:
        for warden in self.wardens.values():
            warden.stopped = False
        self._look_at_trust()

    def orphaned(self) -> None:
        """The supervisor is gone: its wardens kill what they have, and leave."""
        self.templates.clear()
        for warden in list(self.wardens.values()):
            self.at(self.rng.uniform(0, 0.5), lambda warden=warden: self._warden_dies(warden))  # type: ignore[misc]

    # ---- template and wardens ----------------------------------------------------------------------------------------

    def _starttemplate(self, command: m.StartTemplate) -> None:
        def ready() -> None:
            if self.rng.random() < 0.02 and command.generation > 1:
                self.post(m.TemplateFailed(command.generation, "no such module"))
                return
            self.templates.add(command.generation)
            self.post(m.TemplateReady(command.generation, {"job": m.TypeFacts()}))

        self.soon(ready, 0.3)

    def _stoptemplate(self, command: m.StopTemplate) -> None:
        self.templates.discard(command.generation)

    def _startwarden(self, command: m.StartWarden) -> None:
        def started() -> None:
            unwanted = command.slot in self.unwanted
            self.unwanted.discard(command.slot)
            if command.generation not in self.templates:
                self.post(m.WardenExited(command.slot, "no template"))
                return
            warden = self.wardens[command.slot] = Warden(command.slot)
            self.post(m.WardenStarted(command.slot, 1))
            if unwanted:
                self.soon(lambda: self._warden_dies(warden))

        self.soon(started)

    def _stopwarden(self, command: m.StopWarden) -> None:
        warden = self.wardens.get(command.slot)
        if warden is None:
            self.unwanted.add(command.slot)  # it is only being forked, or its end is on its way
            return
        if warden.child is not None and warden.child.nonce:
            raise Violation(f"the warden of {command.slot} was told to leave in the middle of a run")
        self.soon(lambda: self._warden_dies(warden))

    def _sharecores(self, command: m.ShareCores) -> None:
        pass

    def _warden_dies(self, warden: Warden) -> None:
        if not warden.alive:
            return
        warden.alive = False
        self._ends(warden)
        del self.wardens[warden.slot]

        def exited() -> None:
            self._tell(warden)
            self.unwanted.discard(warden.slot)
            self.post(m.WardenExited(warden.slot, "signal 9"))

        self.soon(exited)

    def _tell(self, warden: Warden) -> None:
        while warden.words:
            self.post(warden.words.pop(0))

    def _trust(self, command: m.Trust) -> None:
        self.trusted_until = command.until
        if command.until < FOREVER:
            self.at(max(0.0, command.until - self.owner.boot()) + 0.001, self._look_at_trust)

    def _look_at_trust(self) -> None:
        """What the wardens do by themselves."""
        if self.owner.boot() < self.trusted_until:
            return
        for warden in list(self.wardens.values()):
            child = warden.child
            if child is not None and (child.nonce or child.job is not None) and not warden.stopped:
                child.asked = True
                self._dies(warden, m.Exit(term_signal=9))

    # ---- children ----------------------------------------------------------------------------------------------------

    def _startchild(self, command: m.StartChild) -> None:
        warden = self.wardens.get(command.slot)
        if warden is None:
            return
        child = Child(command.child)

        def boot() -> None:
            if not warden.alive:
                return
            if self.rng.random() < 0.03:
                self.post(m.ChildBootFailed(command.slot, command.child, "EAGAIN", forked=False))
                return
            warden.child = child
            self.post(m.ChildStarted(command.slot, command.child, 100 + command.child))
            self.soon(ready, 0.1)

        def ready() -> None:
            if child.alive:
                self.post(m.ChildReady(command.slot, command.child))

        self.soon(boot)

    def _child(self, command: Any) -> tuple[Warden, Child] | None:
        """The child that the command is for, and its warden, if it still lives."""
        warden = self.wardens.get(command.slot)
        child = warden.child if warden is not None else None
        if warden is None or child is None or child.number != command.child:
            return None
        return warden, child

    def _retire(self, command: m.Retire) -> None:
        there = self._child(command)
        if there is None:
            return
        if there[1].nonce:
            raise Violation("a child was retired in the middle of a run")
        if self.rng.random() < 0.95:
            self._dies_soon(*there, m.Exit(exit_code=0))

    def _dies_soon(self, warden: Warden, child: Child, exit: m.Exit, mean: float = 0.02) -> None:
        self.soon(lambda: self._dies(warden, exit) if warden.child is child else None, mean)

    def _dies(self, warden: Warden, exit: m.Exit) -> None:
        child = self._ends(warden)
        if child is not None:
            warden.words.append(m.ChildExited(warden.slot, child.number, exit))
            self.soon(lambda: self._tell(warden))

    def _ends(self, warden: Warden) -> Child | None:
        """Nothing is left of the warden's child, whoever ended it."""
        child, warden.child = warden.child, None
        if child is None:
            return None
        if child.nonce and child.job is not None:
            run = self.observer.runs[child.job.run_id]
            run.alive = False
            run.died = child.jobs == 1 and not child.asked
        child.alive = False
        child.nonce = 0
        return child

    # ---- runs --------------------------------------------------------------------------------------------------------

    def _sendjob(self, command: m.SendJob) -> None:
        there = self._child(command)
        if there is None:
            return
        warden, child = there
        if len(child.ahead) >= DEEPEST:
            raise Violation(f"child {child.number} was sent a job while {len(child.ahead)} were waiting there")
        if child.asked:
            raise Violation(f"child {child.number} was used again although it was signalled")
        self.observer.runs[command.job.run_id].sent = True
        if child.failing or not child.stays:
            if not command.after:
                raise Violation(f"child {child.number} was used again although it was not to be")
            return  # it reads this only after a report that tells so
        if child.job is not None and not command.after:
            raise Violation(f"child {child.number} was sent a job while it had another")
        if child.job is not None:
            child.ahead.append(command)
        else:
            self._begins(warden, child, command)

    def _begins(self, warden: Warden, child: Child, command: m.SendJob) -> None:
        child.job, child.given = command.job, command.nonce
        if self.rng.random() < 0.02:
            self._dies_soon(warden, child, m.Exit(exit_code=1))
            return
        wait = 0.02
        if self.rng.random() < 0.03:  # it is stuck before it starts, or starts when it is just being given up
            wait = self.rng.choice([FOREVER, 10.0])

        def start() -> None:
            if not child.alive or child.dying:
                return
            if command.nonce <= child.revoked:
                return
            child.nonce = child.begun = command.nonce
            child.began = began = self.owner.boot()
            child.jobs += 1
            child.behaviour = behaviour = self.owner.behaviour()
            self.observer.started(command.job.run_id)
            self.post(m.JobStarted(command.slot, command.child, command.nonce))
            self._saves(warden, child, command.nonce, 1)
            if command.limits.timeout is not None:
                limit = command.limits.timeout + command.limits.grace + SLOW
                self.at(limit, lambda: self._must_be_gone(warden, child, command.nonce, began))
            self.at(behaviour.after, lambda: self._handler_ends(warden, child, command.nonce))

        if wait < FOREVER:
            self.at(max(0.0, self.rng.gauss(wait, 0.01)), start)

    def _must_be_gone(self, warden: Warden, child: Child, nonce: int, began: float) -> None:
        there = child.alive and nonce in (child.nonce, child.left)
        if there and not (warden.delayed or self.owner.held_up(began)):
            raise Violation(f"run {nonce}, or what it has started, lives on after its limit")

    def _saves(self, warden: Warden, child: Child, nonce: int, number: int) -> None:
        """Some handlers give checkpoints, the last of them perhaps just before they end."""
        if not child.alive or child.dying or child.nonce != nonce or child.job is None:
            return
        if number > 1 or self.aside.random() < 0.5:
            self.observer.runs[child.job.run_id].given = number
            self.post(
                m.CheckpointGiven(warden.slot, child.number, nonce, number, b"%d" % number, self.aside.random() < 0.5)
            )
        if self.aside.random() < 0.7:
            self.at(self.aside.choice([0.0, 0.5, 3.0]), lambda: self._saves(warden, child, nonce, number + 1))

    def _sendanswer(self, command: m.SendAnswer) -> None:
        there = self._child(command)
        if there is not None and there[1].nonce == command.nonce and there[1].job is not None:
            self.observer.answered(there[1].job.run_id, command)

    def _goes_on(self, warden: Warden, child: Child) -> None:
        """With what it was sent ahead, or it waits."""
        child.job = None
        if child.ahead:
            self._begins(warden, child, child.ahead.pop(0))

    def _handler_ends(self, warden: Warden, child: Child, nonce: int, interrupted: bool = False) -> None:
        if not child.alive or child.dying or child.nonce != nonce or child.behaviour is None:
            return
        behaviour, job = child.behaviour, child.job
        assert job is not None
        run = self.observer.runs[job.run_id]
        if behaviour.ends == "crash" and not interrupted:
            run.crashed = child.jobs == 1 and not child.asked
            self._dies(warden, m.Exit(term_signal=11))
            return
        wall = self.owner.boot() - child.began
        child.nonce = 0
        child.left = nonce if behaviour.leaves else 0
        clean = behaviour.clean and not behaviour.leaves
        child.stays = clean and wall < self.owner.rules.recycle_after
        run.alive = False
        if behaviour.ends == "raise" or interrupted:
            raised = self._raised(warden.slot, child, nonce, behaviour, interrupted, wall)
            child.failing = True
            child.ahead.clear()
            if not interrupted and self.aside.random() < 0.7:
                self._ask_strategy(warden, child, raised)
            else:
                self.post(raised)
        else:
            run.returned = True
            self._is_over(job)
            self.post(m.JobReturned(warden.slot, child.number, nonce, b"1", wall, wall, 1, clean, wall))
            if not child.stays:
                child.ahead.clear()
            self._goes_on(warden, child)

    def _raised(
        self, slot: str, child: Child, nonce: int, behaviour: Behaviour, interrupted: bool, wall: float
    ) -> m.JobRaised:
        left = child.left == nonce
        asked = not (left and interrupted and child.order in LIMITS)
        strategy = behaviour.strategy if asked and not behaviour.strategy_error else None
        error = {"type": "X", "message": "x", "traceback": ""}
        wrong = {"type": "Y", "message": "y"} if asked and behaviour.strategy_error else None
        return m.JobRaised(
            slot, child.number, nonce, "exception", error, interrupted, interrupted and self.rng.random() < 0.8,
            strategy, wrong, wall, wall, 1, behaviour.clean and not left, wall, left,
        )  # fmt: skip

    def _ask_strategy(self, warden: Warden, child: Child, raised: m.JobRaised) -> None:
        assert child.job is not None
        self.observer.runs[child.job.run_id].raised = True
        about = (raised.slot, raised.child, raised.nonce, raised.reason, raised.error)
        self.post(m.StrategyAsked(*about, raised.wall_s, raised.cpu_s, raised.max_rss, raised.leftovers))
        how = self.aside.choice(["fine"] * 8 + ["hang", "crash"])
        if how == "crash":
            self._dies_soon(warden, child, m.Exit(exit_code=3))
        elif how == "fine":
            self.post(raised)

    def _is_over(self, job: m.Job) -> None:
        if not self.owner.frozen():
            self.observer.runs[job.run_id].over = True

    def _sendpostmortem(self, command: m.SendPostmortem) -> None:
        there = self._child(command)
        if there is None:
            return
        warden, child = there
        behaviour = self.owner.behaviour()
        child.job = command.job
        child.behaviour = behaviour

        def answer() -> None:
            if child.alive and not child.dying:
                self.post(self._raised(command.slot, child, command.nonce, behaviour, False, 0.0))

        if command.death.get("ask") is False:  # strategies are what hangs and crashes here
            behaviour.strategy = None
            behaviour.strategy_error = False
            self.soon(answer)
        elif behaviour.callbacks == "crash" and self.rng.random() < 0.3:
            self._dies_soon(warden, child, m.Exit(exit_code=3))
        elif behaviour.callbacks != "hang":
            self.soon(answer)

    def _sendcallbacks(self, command: m.SendCallbacks) -> None:
        there = self._child(command)
        if there is None:
            return
        warden, child = there
        how = child.behaviour.callbacks if child.behaviour is not None and command.names else "fine"
        bad = self.aside.choice(command.names) if command.names else ""
        names = list(command.names)

        def go_on() -> None:
            if not child.alive or child.dying:
                return
            if names:
                self.post(m.CallbackBegun(command.slot, child.number, command.nonce, names[0]))
                if names[0] == "failed_job" and child.job is not None:
                    self.observer.failed_job_begins(child.job.run_id)
            if names and names[0] == bad and how == "crash":
                self._dies_soon(warden, child, m.Exit(exit_code=3))
            elif names and names.pop(0) == bad and how == "hang":
                pass
            elif names:
                self.soon(go_on)
            else:
                self.soon(done)

        def done() -> None:
            if not child.alive or child.dying:
                return
            if child.job is not None:
                self._is_over(child.job)
            child.job = None
            child.failing = False
            errors = {name: {"message": "z"} for name in command.names} if how == "raise" else {}
            self.post(m.CallbacksDone(command.slot, child.number, command.nonce, errors))

        self.soon(go_on)

    def _watch(self, command: m.Watch) -> None:
        there = self._child(command)
        if there is None or there[1].behaviour is None:
            return
        child, computing = there[1], there[1].behaviour.computing

        def look() -> None:
            if child.alive and child.nonce == command.nonce:
                self.post(m.Verdict(command.slot, child.number, command.nonce, computing, command.started))

        self.at(1.5, look)

    # ---- the ladder --------------------------------------------------------------------------------------------------

    def _takestack(self, command: m.TakeStack) -> None:
        there = self._child(command)
        if there is not None and not there[0].stopped and there[1].nonce == command.nonce:
            self.post(m.StackTaken(command.slot, command.child, command.nonce, "in the handler"))

    def _interrupt(self, command: m.Interrupt) -> None:
        there = self._child(command)
        if there is None or there[0].stopped:
            return
        warden, child = there
        child.asked = child.asked or command.signal

        def reach() -> None:
            hit = child.nonce == command.nonce and command.signal
            if hit and child.behaviour is not None and child.behaviour.obeys == "interrupt":
                child.order = command.reason
                self._handler_ends(warden, child, command.nonce, interrupted=True)

        self.soon(reach)

    def _terminate(self, command: m.Terminate) -> None:
        there = self._child(command)
        if there is None or there[0].stopped:
            return
        warden, child = there
        child.asked = True
        if child.nonce == command.nonce and child.behaviour is not None and child.behaviour.obeys == "terminate":
            self._dies(warden, m.Exit(term_signal=15))

    def _reaches(self, command: Any, act: Callable[[Warden, Child], None]) -> None:
        """What the warden does about its child once the order is there, and once it is not stopped itself."""

        def arrive() -> None:
            there = self._child(command)
            if there is None or there[1].dying:
                return
            if there[0].stopped:
                self.at(0.2, arrive)
            else:
                act(*there)

        self.soon(arrive)

    def _kill(self, command: m.Kill) -> None:
        ordered = self._child(command)
        if ordered is not None:
            ordered[1].asked = True

        def act(warden: Warden, child: Child) -> None:
            if command.nonce is not None and command.nonce != child.nonce:
                self.post(m.RunSpared(command.slot, command.child, child.nonce))
                return
            if command.nonce is None and child.nonce and child.nonce not in self.owner.condemned():
                raise Violation(f"a kill that was meant for another run hit run {child.nonce}")
            self._bury(warden, child)

        self._reaches(command, act)

    def _replaceidle(self, command: m.ReplaceIdle) -> None:
        def act(warden: Warden, child: Child) -> None:
            if child.nonce == command.nonce:
                self.post(m.RunSpared(command.slot, command.child, child.nonce))
            else:
                self._bury(warden, child)

        self._reaches(command, act)

    def _revoke(self, command: m.Revoke) -> None:
        def act(warden: Warden, child: Child) -> None:
            child.revoked = max(command.nonces)
            child.ahead = [sent for sent in child.ahead if sent.nonce > child.revoked]
            if child.begun < child.given <= child.revoked:
                self.post(m.RunRevoked(command.slot, command.child, child.given))  # its own word, also of one before
                self._goes_on(warden, child)
            for nonce in reversed(command.nonces):
                if nonce > child.begun:
                    self.post(m.RunRevoked(command.slot, command.child, nonce))

        self._reaches(command, act)

    def _bury(self, warden: Warden, child: Child) -> None:
        child.dying = child.asked = True
        self.post(m.KillAcknowledged(warden.slot, child.number))
        self._dies_soon(warden, child, m.Exit(term_signal=9), 0.05)

    def _continuewarden(self, command: m.ContinueWarden) -> None:
        if command.slot in self.wardens and self.rng.random() < 0.7:
            self.wardens[command.slot].stopped = False
            self._look_at_trust()

    def _killdirectly(self, command: m.KillDirectly) -> None:
        there = self._child(command)
        if there is not None:
            there[1].asked = True
        if command.slot in self.wardens:
            self._warden_dies(self.wardens[command.slot])
