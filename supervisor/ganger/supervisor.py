"""The supervisor as an application or a command has it: set up, run, stop, take down.

Here the parts are put together for one incarnation and taken apart after it, in that order, whatever happens; the
running is the loop's. A Supervisor can be started again after it has stopped: each start is a new incarnation.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from selectors import EVENT_READ, DefaultSelector
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ganger import cores, database, incarnation, locate
from ganger.callbacks import Callbacks
from ganger.config import MOST_SLOTS, Config, usable_cpus, whole
from ganger.core import messages as m
from ganger.core.machine import Machine
from ganger.core.rules import LaneRules, Rules
from ganger.database_threads import DatabaseThreads
from ganger.descriptors import Descriptors
from ganger.door import Door
from ganger.events import Events
from ganger.gang import Gang, GangSettings
from ganger.health import TURN, Health
from ganger.loop import Inbox, Loop, clock
from ganger.notify import Notifier, take_notifier
from ganger.output import Output
from ganger.shortages import shortage
from ganger.signals import Signals
from ganger_child import launch, titles
from ganger_child.options import Options

if TYPE_CHECKING:
    from ganger.http import Http

EVENTS_LIMIT = 5.0  # seconds that the last events may take to be written


class Supervisor:
    """Runs the jobs of a configuration.

    ``run`` is for a program that does nothing else: it installs signal handlers and blocks. ``start`` and ``stop`` are
    for an application that embeds it: they run it in a thread and leave signals alone. ``run_until_empty`` and
    ``process_next_job`` are for tests and the REPL: they block, and in the main thread Ctrl-C stops them (as
    configured; a second one terminates, a third kills).

    All of them raise ganger.database.DatabaseUnreachable where the database does not answer within
    ``config.database_wait`` seconds, and SchemaMissing or SchemaMismatch where its tables do not fit.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self._lock = threading.Lock()
        self._telling = threading.Lock()  # held while ``_running`` is told something, or is set
        self._thread: threading.Thread | None = None
        self._running: Inbox | None = None
        self._exit_code: int | None = None
        self._last: m.Outcome | None = None

    def run(self, *, adopt: bool = False) -> int:
        """Run until a signal (or ``until_empty``) stops it, and return the exit code of the design: 0 stopped as
        asked, 1 stopped by an error, 2 the handlers do not load.

        To be called in the main thread. ``adopt`` lets it take in (and kill) what its children leave behind even when
        the processes between have died; only for a program that has no other child processes.
        """
        notifier = take_notifier(os.environ)
        with closing(notifier) if notifier is not None else nullcontext(), Signals() as signals:
            return self._run(signals, adopt=adopt, notifier=notifier)

    def start(self) -> None:
        """Start it in a thread. Raises RuntimeError if it has been started and not stopped."""
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                raise RuntimeError("This supervisor has been started already: stop it first, or make another one.")
            started = threading.Event()
            failed: list[BaseException] = []
            self._exit_code = None

            def live() -> None:
                try:
                    self._exit_code = self._run(None, started=started.set)
                except BaseException as error:
                    failed.append(error)
                finally:
                    started.set()

            self._thread = threading.Thread(target=live, name="ganger-supervisor")
            self._thread.start()
            started.wait()
            if failed:
                self._thread.join()
                self._thread = None
                raise failed[0]

    def stop(self, how: str = "graceful", timeout: float | None = None) -> int | None:
        """Stop it and wait until it has stopped; harmless if it was not started, or has stopped by itself. One that
        blocks another thread, because that called ``run`` or its like, is told to stop and not waited for.

        ``how`` is "graceful" (as configured), "terminate" or "kill"; ``timeout`` is in seconds. Returns the exit code,
        or None if it has not stopped in that time (it goes on stopping) or never ran.
        """
        if how not in ("graceful", "terminate", "kill"):
            raise ValueError(f"how is {how!r}: say 'graceful', 'terminate' or 'kill'.")
        thread = self._thread
        self._tell(m.Stop(how))
        if thread is None:
            return self._exit_code
        thread.join(timeout)
        if thread.is_alive():
            return None
        self._thread = None
        return self._exit_code

    def reload(self) -> bool:
        """Load the handlers anew, as SIGUSR2 does to one that ``run`` runs; may be called from any thread, also where
        another one is blocked by ``run`` or its like.

        Returns at once: False if it does not run (harmless), else True. The events tell the rest: ``reloading``, and
        then ``reloaded``, from where on jobs begin with the new code, or ``boot-failed``, and they go on with the old.
        One that is stopping does not load anything.
        """
        return self._tell(m.Reload())

    def resize(self, slots: int) -> bool:
        """Have so many slots from now on, as SIGTTIN (one more) and SIGTTOU (one less) do to one that ``run`` runs; may
        be called from any thread.

        Queues with slots of their own share them in the proportion of the configuration, and each keeps one. No job is
        ended: where too many are running, the next slots that are through with theirs go.

        Returns at once: False if it does not run (the configuration stands, also for the next start), else True. The
        event ``slots-changed`` tells of it, or ``slots-not-changed`` why not: it is stopping, or so many slots cannot
        be (each queue with slots of its own needs one; the machine has open files for so many only).

        Raises ConfigError, a ValueError, for what is no whole number from 1 to 4096.
        """
        return self._tell(m.Resize(whole(slots, "slots", low=1, high=MOST_SLOTS)))

    def _tell(self, event: m.Event) -> bool:
        """Tell the one that runs, from whichever thread. False: none does."""
        with self._telling:
            if self._running is None:
                return False
            self._running.post(event)
            return True

    def run_until_empty(self) -> int:
        """Run until nothing is ready, running or waiting for a retry; return the exit code. Raises KeyboardInterrupt
        once it has stopped because of Ctrl-C."""
        with _interruptible() as signals:
            exit_code = self._run(signals, until_empty=True)
        if signals is not None and signals.interrupted:
            raise KeyboardInterrupt
        return exit_code

    def process_next_job(self) -> bool | None:
        """Run one job in a child. True: it ran (well or not); False: it was interrupted; None: there was none.

        Raises RuntimeError where it cannot run anything (the handlers do not load, say)."""
        with _interruptible() as signals:
            exit_code = self._run(signals, job_limit=1)
        if exit_code != 0:
            raise RuntimeError("The supervisor could not run a job; its events say why.")
        return None if self._last is None else not isinstance(self._last, m.Release)

    # -----------------------------------------------------------------------------------------------------------------

    def _run(
        self,
        signals: Signals | None,
        *,
        adopt: bool = False,
        notifier: Notifier | None = None,
        started: Callable[[], object] = lambda: None,
        until_empty: bool = False,
        job_limit: int | None = None,
    ) -> int:
        if launch.is_ours():
            raise RuntimeError(
                "A supervisor cannot run in a process of another one, which runs this module for its handlers: "
                'what starts a supervisor belongs under `if __name__ == "__main__":`.'
            )
        config = self.config
        descriptors = Descriptors(http=config.http is not None)
        descriptors.allow(sum(lane.slots for lane in config.lanes))
        rules = _rules(
            config,
            until_empty=until_empty or config.until_empty,
            job_limit=job_limit,
            most_slots=descriptors.most_slots,
        )
        watchers = _Watchers(Health(), notifier)
        if config.http is not None:
            from ganger.http import Http  # 60 ms that only this costs

            watchers.http = Http(config.http, self.name, watchers.health, clock)
        heard = None if watchers.http is None else watchers.http.figures.said
        events = Events(config.log_format, config.log_level, log=config.log, heard=heard)
        callbacks = Callbacks(events)
        try:
            watchers.introduce(events)
            titles.prepare(
                keep_environ=config.keep_environ, warn=lambda error: events.emit("titles-not-shown", error=error)
            )
            place = self._reach_database(events, signals, watchers)
            if place is None:  # asked to stop while waiting for it
                return 0
            exit_code = self._live(rules, place, events, callbacks, signals, watchers, descriptors, adopt, started)
            if config.on_shutdown is not None:
                events.flush(EVENTS_LIMIT)  # what it prints comes after what we said
                callbacks.call("on_shutdown", config.on_shutdown, then=lambda _: None)
            callbacks.close(given_up=lambda: signals is not None and _hurried(signals))
            return exit_code
        finally:
            watchers.close()
            events.close(EVENTS_LIMIT)

    def _live(
        self,
        rules: Rules,
        place: locate.Place,
        events: Events,
        callbacks: Callbacks,
        signals: Signals | None,
        watchers: _Watchers,
        descriptors: Descriptors,
        adopt: bool,
        started: Callable[[], object],
    ) -> int:
        """One incarnation, from its lock to its last process. What is built up here is taken down in reverse."""
        config = self.config
        with ExitStack() as stack:
            lock = incarnation.create(uuid4())
            identity = lock.uuid if lock is not None else uuid4()
            if lock is not None:
                stack.callback(lock.close)
            inbox = Inbox()
            stack.callback(inbox.close)
            facts = database.SupervisorFacts(identity, self.name, socket.gethostname(), os.getpid(), config.lease)
            threads = DatabaseThreads(
                place.conninfo,
                config.schema,
                watchers.answers(inbox.post),
                lambda: clock().boot,
                facts,
                incarnation.vacant,
                config.retention,
            )
            selector = stack.enter_context(DefaultSelector())
            below = GangSettings(
                options=_options(config),
                incarnation=identity,
                lock_fd=lock.fd if lock is not None else None,
                adopt=adopt,
                nice=config.nice,
                output_tail=config.output_tail,
                share=partial(_share, config, descriptors),
            )
            shows: list[Callable[[Output], object]] = [partial(_print, events)]
            chores: list[Callable[[], object]] = []
            gang = Gang(below, selector, inbox.post, lambda line: [show(line) for show in shows])
            stack.callback(gang.close)
            with suppress(OSError):  # where no such socket may be made, nobody can ask, and jobs run all the same
                door = Door(identity, selector, gang)
                stack.callback(door.close)
                shows.append(door.printed)
                chores.append(door.open)
            threads.start()
            stack.callback(threads.close)
            watchers.health.machine = machine = Machine(rules, random.random, uuid4)
            loop = Loop(
                machine,
                gang,
                inbox,
                selector,
                events,
                store=watchers.commands(threads.do),
                ask=partial(self._ask, callbacks, inbox),
                name=self.name,
                told=_told(config, self.name, place.description),
                turned=watchers.turned if watchers.any else None,
                chores=chores,
            )
            if signals is not None:
                selector.register(signals, EVENT_READ, signals.hear)
            with self._telling:
                self._running = inbox
            try:
                return loop.run(signals.asked if signals is not None else _nobody, started)
            except Exception as error:
                events.emit("job-worker-error", error=shortage(error) or traceback.format_exc())
                return 1
            finally:
                with self._telling:
                    self._running = None
                watchers.health.turned = None  # nobody turns any more, and that is right
                self._last = loop.outcomes[-1] if loop.outcomes else None
                if lock is not None and not loop.machine.registered:
                    lock.remove()

    @property
    def name(self) -> str:
        return self.config.name or f"{socket.gethostname()}:{os.getpid()}"

    def _reach_database(self, events: Events, signals: Signals | None, watchers: _Watchers) -> locate.Place | None:
        """Wait for the database and see that its tables fit. None: asked to stop meanwhile."""

        def sleep(seconds: float) -> bool:
            if watchers.notifier is not None:
                watchers.notifier.waits(clock(), "waiting for the database")
            if signals is not None:
                return signals.wait(seconds)
            time.sleep(seconds)
            return False

        place = locate.ready_database(self.config.database_url, self.config.schema)
        try:
            database.wait_for_database(
                place.conninfo,
                self.config.schema,
                self.config.database_wait,
                prunes=self.config.retention is not None,
                on_wait=lambda error: events.emit("database-lost", error=error),
                stopped=sleep,
            ).close()
        except database.DatabaseUnreachable:
            if signals is not None and signals.wait(0):
                return None
            raise
        if watchers.http is not None:
            watchers.http.ask_database(place.conninfo, self.config.schema)
        return place

    def _ask(self, callbacks: Callbacks, inbox: Inbox, error: str) -> None:
        """Ask on_polling_error whether to give up."""
        if self.config.on_polling_error is not None:

            def take(answer: object) -> None:
                if answer:
                    inbox.post(m.StopNow(error))

            callbacks.call("on_polling_error", self.config.on_polling_error, PollingError(error), then=take)


@dataclass(slots=True)
class _Watchers:
    """Who looks at a running supervisor: its service manager, and whoever asks over HTTP."""

    health: Health
    notifier: Notifier | None
    http: Http | None = None

    @property
    def any(self) -> bool:
        return self.notifier is not None or self.http is not None

    def turned(self, now: m.Now) -> float:
        """The loop has turned; within so many seconds it is to do so again."""
        self.health.turned = now.mono
        return TURN if self.notifier is None else self.notifier.turn(now, self.health)

    def commands(self, do: Callable[..., None]) -> Callable[..., None]:
        return do if self.http is None else self.http.figures.watch_commands(do)

    def answers(self, post: Callable[[Any], None]) -> Callable[[Any], None]:
        return post if self.http is None else self.http.figures.watch_answers(post)

    def introduce(self, events: Events) -> None:
        if self.http is not None:
            events.emit("http-started", url=self.http.url)
            if self.http.open_to_others:
                events.emit("http-open-to-others", url=self.http.url)

    def close(self) -> None:
        if self.http is not None:
            self.http.close()


class PollingError(Exception):
    """What on_polling_error is given: the database is lost, or a claim failed; the message says why."""


def _share(config: Config, descriptors: Descriptors, slots: tuple[str, ...]) -> cores.Share:
    """What these slots have of the machine: open files too."""
    descriptors.allow(len(slots))
    cpus = cores.affinity(os.sched_getaffinity(0), slots) if config.cpu_affinity else {}
    return cores.Share(cores.threads(os.environ, usable_cpus(), len(slots)), cpus)


def _print(events: Events, line: Output) -> None:
    """Pass on what a child printed; between jobs it is the slot's."""
    events.output(line.job_id or line.slot, line.job_type or "", line.text)


def _interruptible() -> AbstractContextManager[Signals | None]:
    """Only SIGINT, and only where Python allows handlers; other signals stay the application's."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    return Signals([signal.SIGINT]) if in_main_thread else nullcontext()


def _hurried(signals: Signals) -> bool:
    """Whether somebody asks to stop for the second time."""
    signals.hear()
    return any(how in ("terminate", "kill") for how in signals.asked(time.monotonic()))


def _nobody(now: float) -> Iterable[str]:
    return ()


def _rules(config: Config, *, until_empty: bool, job_limit: int | None, most_slots: int) -> Rules:
    lanes = tuple(LaneRules(*lane) for lane in config.lanes)
    if job_limit is not None:  # whichever queue has them
        lanes = (LaneRules("any", tuple(queue for lane in lanes for queue in lane.queues), job_limit),)
    return Rules(
        lanes=lanes,
        poll_interval=config.poll_interval,
        lease=config.lease,
        timeout=config.timeout,
        grace=config.grace,
        memory=config.memory,
        shutdown=config.shutdown,
        shutdown_timeout=config.shutdown_timeout,
        interrupt_after=config.interrupt_after,
        callback_timeout=config.callback_timeout,
        recycle_after=config.recycle_after,
        boot_timeout=config.boot_timeout,
        store_timeout=config.store_timeout,
        max_payload=config.max_payload,
        max_crashes=config.max_crashes,
        max_losses=config.max_losses,
        known_types_only=config.unknown_job_type == "leave",
        until_empty=until_empty,
        job_limit=job_limit,
        most_slots=most_slots,
    )


def _options(config: Config) -> Options:
    return Options(
        recycle_after=config.recycle_after,
        target=config.target,
        handler_mode=config.handler_mode,
        retry_strategy=config.retry_strategy,
        failed_attempt=config.failed_attempt,
        failed_job=config.failed_job,
        start_method=config.start_method,
        max_result=config.max_result,
        max_checkpoint=config.max_checkpoint,
        callback_timeout=config.callback_timeout,
        stall_after=config.stall_after,
        keep_environ=config.keep_environ,
        unknown_job_type=config.unknown_job_type,
        search_path=os.getcwd(),
    )


def _told(config: Config, name: str, place: str) -> dict[str, dict[str, Any]]:
    """What the events say that the core does not know."""
    return {
        "supervisor-started": {
            "name": name,
            "queues": config.queues,
            "database": place,
        }
    }
