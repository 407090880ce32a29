"""The child: from right after the fork to its end. It runs handlers and reports.

One job after another comes over a socket of its own, and what became of it goes back there: an explicit record, or it
did not happen. Strategy and callbacks are the user's code too, so they run here, with the exception at hand. Whatever
user code does to this process, it must not make two reports of one, or a report into a file of its own: so before
each word we look whether this is still our process and still our socket.

This file decides nothing about a job's fate, and may not unwind into the frames of whoever forked it.
"""

from __future__ import annotations

import argparse
import atexit
import json
import logging
import resource
import sys
import weakref
from _thread import start_new_thread
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fcntl import ioctl
from os import O_CLOEXEC, O_WRONLY, _exit, close, dup, dup2, fstat, getpid, write
from os import open as os_open
from socket import socket
from termios import FIONREAD
from time import monotonic, sleep
from traceback import print_exc
from typing import Any, Final, NamedTuple, NoReturn

from ganger_child import guard, outcome, retry, titles, tracing, tree
from ganger_child.cleanliness import Cleanliness, stop_timers
from ganger_child.coroutines import Coroutines
from ganger_child.errors import (
    CANNOT_REPORT,
    BadResult,
    JobInterrupted,
    UnknownJobType,
    interruption,
    postmortem,
)
from ganger_child.handlers import JobType, Loaded, RetryStrategy, load
from ganger_child.interrupt import Alarm, Ended, Interrupt, Signals
from ganger_child.job import Job, set_current
from ganger_child.options import Options
from ganger_child.page import BEGUN, NOBODY, REVOKED, RUN, Page
from ganger_child.reports import Desk, Reports
from ganger_child.stacks import Answering
from ganger_child.wire import Channel, Message, Received

_RETIRE_BOUND: Final = 5.0  # seconds to flush and close
_READ_BOUND: Final = 0.1  # seconds that a report waits for what was printed to be read
_READ_PAUSE: Final = 0.0002
_NOTHING: Final = bytes(4)  # bytes to read, as the kernel tells it
_SMALL: Final = 16 * 1024  # bytes per text of an error that travels beside another one
_LEAST_RECURSION: Final = 1000
_PERSISTENCE: Final = 1000  # tries against signal handlers of a job that raise
_OUTRIGHT: Final = ("timeout", "memory", "cancelled", "killed")  # orders that a late return does not undo
_DRAWING: Final = ("random", "numpy.random", "torch")
_CALLBACKS: Final = ("failed_attempt", "failed_job")


class _Meter:
    """Measures what runs cost, one after another: wall, CPU of this process and of those it waited for, peak memory."""

    def __init__(self) -> None:
        self._began = 0.0
        self._cpu_began = 0.0
        self._peak = -1  # of this process, when it was last brought down to what it holds

    def start(self) -> None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        if usage.ru_maxrss != self._peak:  # an earlier job has raised it
            with suppress(OSError):  # without it, the peak of that job may show
                fd = os_open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC)
                try:
                    write(fd, b"5")
                finally:
                    close(fd)
            usage = resource.getrusage(resource.RUSAGE_SELF)
            self._peak = usage.ru_maxrss
        self._began, self._cpu_began = monotonic(), _cpu_s(usage)

    def stop(self) -> _Cost:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        wall_s, cpu_s = monotonic() - self._began, _cpu_s(usage) - self._cpu_began
        return _Cost(max(0.0, wall_s), max(0.0, cpu_s), usage.ru_maxrss * 1024)


class _Cost(NamedTuple):
    """What a run cost: seconds, and bytes with what the process has from its template."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    max_rss: int = 0


@dataclass(slots=True)
class _Run:
    """A run, or what a post-mortem is about. ``exception`` is what its callbacks are told."""

    nonce: int
    job: Job
    job_type: JobType
    interrupt: Interrupt
    trace: tracing.Attempt
    cost: _Cost = field(default_factory=_Cost)
    exception: BaseException | None = None
    leftovers: bool = False  # something that the handler started goes on


class Child:
    """The child, once its process is in order."""

    def __init__(
        self, channel: Channel, page: Page, parent: int, loaded: Loaded, options: Options, slot: str, *, spawned: bool
    ) -> None:
        self._channel = channel
        self._page = page
        self._parent = parent
        self._loaded = loaded
        self._options = options
        self._slot = slot
        self._pid = getpid()
        self._socket = _identity(channel.fileno())
        self._output = guard.move_fd_high(dup(1))  # what is printed goes through this, whatever becomes of our own
        self._signals = Signals()
        self._coroutines = Coroutines()
        self._meter = _Meter()
        self._cleanliness: Cleanliness | None = None
        self._exports = tracing.Exports()
        self._desk = Desk(page, channel, self._say, options.max_checkpoint, self._pid)
        self._report: tuple[bytes, dict[str, Any]] | None = None  # of a run that returned, not told yet
        self._failed: _Run | None = None
        self._altered = False
        self._worked_s = 0.0
        self._stays = True  # for another job, by what was said of the last one
        self._inherited_rss = 0 if spawned else tree.resident([self._pid])  # the template's pages are not the job's
        self._operations: dict[str, Callable[[Message], None]] = {
            "run": self._run,
            "postmortem": self._postmortem,
            "callbacks": self._callbacks,
        }

    def start(self, job_types: Mapping[str, Any] | None) -> None:
        """Call the start hooks, remember what a clean process looks like, and say ready. Raises what a hook raises."""
        self._signals.install()
        if self._loaded.has_coroutines:
            self._coroutines.open()
        for hook in self._loaded.start_hooks:
            self._coroutines.call(hook, keep_tasks=True)
            self._still_ours()
        self._signals.remember()
        with suppress(OSError):  # where /proc does not tell enough, no child is ever clean
            self._cleanliness = Cleanliness(self._parent)
        _flush()
        self._rest()
        self._say("ready", job_types=job_types)

    def serve(self) -> None:
        """Serve until told to retire, or until nobody is there to tell.

        What a run returned is told in one message with the beginning of the next run, where that waits already.
        """
        while True:
            received = self._receive()
            message = received.messages[0] if received.messages else None
            if message is None or message.op != "run":
                self._tell_report()
            if received.closed or (message is not None and message.op == "retire"):
                return
            if message is not None and message.op in self._operations:
                self._operations[message.op](message)

    def _receive(self) -> Received:
        """The next message; first those that a handler came upon when it waited for an answer."""
        if self._desk.left:
            return Received([self._desk.left.popleft()])
        wait = self._report is None
        if wait and self._exports.due:
            received = self._channel.receive(wait=False, limit=1)
            if received.messages or received.closed:
                return received
            self._export()
        return self._channel.receive(wait=wait, limit=1)

    def _export(self) -> None:
        """Bring spans out while nothing else is to be done. The connection that an exporter opens is no job's."""
        if self._exports.flush() and self._stays and self._cleanliness is not None:
            with suppress(OSError):
                self._cleanliness.renew()

    def retire(self) -> None:
        """Flush and close what the jobs left open, as far as ``_RETIRE_BOUND`` seconds allow."""
        with suppress(RuntimeError):  # a limit of the job on processes or memory: then the supervisor ends us
            start_new_thread(_exit_later, (_RETIRE_BOUND,))
        for step in (self._coroutines.close, atexit._run_exitfuncs, logging.shutdown, _flush):
            with suppress(BaseException):
                step()

    # -----------------------------------------------------------------------------------------------------------------
    # What is asked

    def _run(self, message: Message) -> None:
        if not self._may_begin(message["nonce"], sent_ahead=bool(message.get("after"))):
            return
        run = self._begin(message)
        run.interrupt.begin()
        self._begun(run.nonce)
        self._meter.start()
        ended = run.interrupt.run(lambda: self._handle(run))
        if ended.exception is not None:
            self._put_back()  # it may have come from a signal handler of the job, just before this was done
        self._still_ours()
        run.cost = self._meter.stop()
        self._worked_s += run.cost.wall_s
        self._recover()
        result, run.exception = self._judge(run, ended)
        run.trace.end(run.exception)
        if run.exception is None:
            run.interrupt.end()
            self._forget()
            self._report = result or b"", {"nonce": run.nonce, **self._facts(run)}
        else:
            came_out = ended.exception is not None and _is_interrupt(ended.exception)
            run.leftovers = self._cleanliness is None or self._cleanliness.leftovers()
            self._report_failure(run, run.exception, _reason(run.exception), is_interrupt=came_out)

    def _may_begin(self, nonce: int, *, sent_ahead: bool) -> bool:
        """Whether a job may be begun.

        One that was sent ahead, before the parent knew how the last one ended, is dropped after a report that this
        child does not stay, or of a failure, whose callbacks come first: the parent goes by the same words. And a
        warden may have taken it back: we tell which run we are about to begin and then look; it writes and then looks.
        """
        if sent_ahead and (not self._stays or self._failed is not None):
            return False
        self._page[RUN] = nonce
        if nonce <= self._page[REVOKED]:
            self._page[RUN] = NOBODY
            self._tell_report()
            self._say("revoked", nonce=nonce)
            return False
        self._page[BEGUN] = nonce
        return True

    def _postmortem(self, message: Message) -> None:
        """Ask about a job whose own child is dead, with an exception that tells how it died."""
        run = self._begin(message)
        with suppress(BaseException):  # strategy and callbacks get the text of what cannot be read
            run.job = run.job.with_payload(run.job_type.loads(run.job.payload))
        set_current(run.job)
        death = message["death"]
        run.exception = postmortem(death, message["limits"])
        if "wall_s" in death and death.get("ask", True):  # it died in its handler, and its span with it
            run.trace.begin(death["wall_s"])
            run.trace.end(run.exception)
        self._report_failure(run, run.exception, str(death.get("reason", "crash")), ask=death.get("ask", True))

    def _callbacks(self, message: Message) -> None:
        """Call what the parent, having decided, names."""
        run = self._failed
        if run is None or run.nonce != message["nonce"]:
            return
        errors = {}
        for name in message["names"]:
            callback = getattr(run.job_type.reactions, name) if name in _CALLBACKS else None
            if callback is None:
                continue
            self._say("calling", nonce=run.nonce, name=name)
            ended = self._call(callback, run)
            if ended.exception is not None:
                errors[name] = outcome.describe(ended.exception, _SMALL)
        self._recover()
        self._rest()
        self._say("callbacks-done", nonce=run.nonce, errors=errors)

    # -----------------------------------------------------------------------------------------------------------------
    # Steps of a run

    def _begin(self, message: Message) -> _Run:
        facts, limits = message["job"], message["limits"]
        nonce, timeout = message["nonce"], limits.get("timeout")
        interrupt = Interrupt(self._page, nonce, limits)
        payload, checkpoint = _texts(message)
        job = Job.from_wire(facts, limits, payload, interrupt, Reports(self._desk, nonce, interrupt), checkpoint)
        self._failed = None
        self._signals.current = interrupt
        set_current(job)
        titles.show(titles.child(self._slot, job.type, str(job.id), job.attempt, limit=timeout))
        trace = tracing.follow(job, message.get("trace"))
        self._exports.due = trace is not tracing.UNTRACED
        return _Run(nonce, job, self._loaded.find(job.type), interrupt, trace)

    def _handle(self, run: _Run) -> Any:
        """Read the payload and call the handler: both are the user's, and can be interrupted."""
        try:
            run.trace.begin()
            run.job = run.job.with_payload(run.job_type.loads(run.job.payload))
            set_current(run.job)
            call = self._coroutines.call_interruptibly
            return run.trace.call(call, run.interrupt, run.job_type.call, run.job)
        finally:
            self._put_back()

    def _judge(self, run: _Run, ended: Ended) -> tuple[bytes | None, BaseException | None]:
        """Say what the run came to: a result, or an exception.

        A limit or a cancel order that came before the end stands, though the handler swallowed it and returned. At
        shutdown it is the other way round: a complete result wins.
        """
        if ended.exception is not None:
            return None, ended.exception
        order = run.interrupt.order
        if order in _OUTRIGHT:
            late = interruption(order, run.interrupt.limits)
            return None, type(late)(f"{late}; the handler swallowed the interrupt and returned")
        try:
            return outcome.encode(ended.value, self._options.max_result), None
        except BadResult as error:
            return None, error
        finally:
            self._still_ours()  # encoding may call the value's methods

    def _report_failure(
        self, run: _Run, exception: BaseException, reason: str, *, is_interrupt: bool = False, ask: bool = True
    ) -> None:
        order = run.interrupt.order
        stopped = order is not None and is_interrupt
        error = outcome.describe(exception)
        strategy, strategy_error = None, None
        # Nobody would read the answer about a job that is cancelled, or goes back because of a shutdown. And one that
        # is past its limit has had its time: what it has left goes with this process, and a fresh one is asked.
        idle = order in ("cancelled", "killed") or (order == "shutdown" and (stopped or run.interrupt.asked))
        idle = idle or (run.leftovers and order in _OUTRIGHT)
        if ask and not idle and run.job_type.reactions.retry_strategy is not None:
            cost = {**self._cost(run), "leftovers": run.leftovers}
            self._say("asking", nonce=run.nonce, reason=reason, error=error, **cost)
            strategy, strategy_error = self._ask_strategy(run, run.job_type.reactions.retry_strategy)
        run.interrupt.end()
        self._failed = run
        facts = self._facts(run)
        if run.job_type.reactions.failed_attempt or run.job_type.reactions.failed_job:
            facts["clean"] = self._stays = False  # what they will do to this process is not known yet
        self._say(
            "raised",
            nonce=run.nonce,
            reason=reason,
            error=error,
            interrupted=order is not None,
            clean_interrupt=stopped,
            strategy=strategy,
            strategy_error=strategy_error,
            leftovers=run.leftovers,
            **facts,
        )

    def _ask_strategy(self, run: _Run, ask: RetryStrategy) -> tuple[dict[str, Any] | None, outcome.Error | None]:
        alarm = Alarm(self._options.callback_timeout, "the retry strategy")
        answer = alarm.run(lambda: retry.to_wire(run.trace.call(self._coroutines.call, ask, run.job, run.exception)))
        self._still_ours()
        self._put_back()
        self._recover()
        if answer.exception is not None:
            return None, outcome.describe(answer.exception, _SMALL)
        return answer.value, None

    def _call(self, callback: Callable[..., Any], run: _Run) -> Ended:
        try:
            return Ended(run.trace.call(self._coroutines.call, callback, run.job, run.exception), None)
        except BaseException as error:
            return Ended(None, error)
        finally:
            self._still_ours()
            self._put_back()

    def _cost(self, run: _Run) -> dict[str, Any]:
        max_rss = max(0, run.cost.max_rss - self._inherited_rss)
        return {"wall_s": run.cost.wall_s, "cpu_s": run.cost.cpu_s, "max_rss": max_rss}

    def _facts(self, run: _Run) -> dict[str, Any]:
        clean = self._is_clean()
        self._stays = clean and self._worked_s < self._options.recycle_after
        return {**self._cost(run), "clean": clean, "worked_s": self._worked_s}

    def _is_clean(self) -> bool:
        if self._signals.signalled or self._altered or self._cleanliness is None:
            return False
        return self._cleanliness.difference() is None

    def _put_back(self) -> None:
        """Stop the timers and take away the signal handlers that user code left: they would act in our own code.

        What such a handler raises meanwhile is dropped; an interrupt of ours is kept until that is done.
        """
        interrupt: JobInterrupted | None = None
        for _ in range(_PERSISTENCE):
            try:
                for undo in (stop_timers, self._signals.restore):
                    self._altered = undo() or self._altered
                break
            except JobInterrupted as error:
                interrupt = error
            except BaseException:
                self._altered = True
        if interrupt is not None:
            raise interrupt

    def _recover(self) -> None:
        """Bring out what was printed and logged, and undo what would fail our own next steps."""
        flush_logs()
        _flush()
        with suppress(Exception):
            if sys.getrecursionlimit() < _LEAST_RECURSION:
                sys.setrecursionlimit(_LEAST_RECURSION)

    def _rest(self) -> None:
        self._forget()
        titles.show(titles.child(self._slot))

    def _forget(self) -> None:
        set_current(None)
        self._failed = None
        self._signals.current = None

    # -----------------------------------------------------------------------------------------------------------------
    # Words to the parent

    def _begun(self, nonce: int) -> None:
        if self._report is None:
            self._say("started", nonce=nonce)
        else:
            self._tell_report(begun=nonce)

    def _tell_report(self, begun: int = NOBODY) -> None:
        """Tell what the last run returned, if that is not told yet, and which one was begun after it."""
        if self._report is None:
            return
        (body, fields), self._report = self._report, None
        if begun == NOBODY:
            titles.show(titles.child(self._slot))
        self._say("returned", body, **fields, begun=begun, unread=self._unread())

    def _unread(self) -> bool:
        """Whether something that was printed is not read yet, after some patience. Who reads it before the report
        knows whose it is; afterwards it could as well be the next run's."""
        deadline = 0.0
        while self._has_printed():
            now = monotonic()
            deadline = deadline or now + _READ_BOUND
            if now >= deadline:
                return True
            sleep(_READ_PAUSE)
        return False

    def _has_printed(self) -> bool:
        try:
            return ioctl(self._output, FIONREAD, _NOTHING) != _NOTHING
        except OSError:  # a job has closed it
            return True

    def _say(self, op: str, body: bytes = b"", **fields: Any) -> None:
        """Send, unless this is a copy of our process, or not our socket any more: then end."""
        self._still_ours()
        try:
            ours = _identity(self._channel.fileno()) == self._socket
            sent = ours and self._channel.send(op, body, wait=True, **fields)
        except OSError:  # the descriptor is closed, or there is none left for a large body
            sent = False
        if not sent:
            _exit(CANNOT_REPORT)

    def _still_ours(self) -> None:
        """A handler that forks returns twice: the copy ends here."""
        if getpid() != self._pid:
            _exit(0)


def _texts(message: Message) -> tuple[str, str | None]:
    """Payload and checkpoint of a job: the body is the one, or both."""
    body, size = message.body, message.get("checkpoint")
    if size is None:
        return body.decode("utf-8", "surrogateescape"), None
    return body[:-size].decode("utf-8", "surrogateescape"), body[-size:].decode()


def _reason(exception: BaseException) -> str:
    if _is_a(exception, UnknownJobType):
        return "unknown-job-type"
    return "bad-result" if _is_a(exception, BadResult) else "exception"


def _is_interrupt(exception: BaseException) -> bool:
    """Whether what came out of a handler is the interrupt itself, perhaps in a group of its like."""
    waiting: list[Any] = [exception]
    seen = set()
    with suppress(BaseException):  # a group may be of the user's class
        while waiting:
            error = waiting.pop()
            if not _is_a(error, BaseExceptionGroup):
                if not _is_a(error, JobInterrupted):
                    return False
            elif id(error) not in seen:
                seen.add(id(error))  # a member of many groups is looked at once
                waiting += error.exceptions
        return True
    return False


def _is_a(exception: BaseException, kind: type[BaseException]) -> bool:
    return issubclass(type(exception), kind)  # isinstance would ask the exception, which may raise


def _cpu_s(own: resource.struct_rusage) -> float:
    waited_for = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + waited_for.ru_utime + waited_for.ru_stime


def _identity(fd: int) -> tuple[int, int]:
    status = fstat(fd)
    return status.st_dev, status.st_ino


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(BaseException):  # the user's object, perhaps closed, perhaps no stream at all
            stream.flush()


def flush_logs() -> None:
    """Have those handlers of the standard library's logging that hold records back let them go."""
    library: Any = sys.modules.get("logging.handlers")
    for known in getattr(logging, "_handlerList", ())[:] if library is not None else ():
        with suppress(BaseException):  # the user's object
            handler = known()
            if isinstance(handler, library.BufferingHandler):
                handler.flush()


def _exit_later(bound: float) -> None:
    sleep(bound)
    _exit(0)


# ---------------------------------------------------------------------------------------------------------------------
# From the fork to the first job


def run_child(
    *, wire: socket, output_fd: int, page_fd: int, parent: int, loaded: Loaded | None, options: Options, slot: str
) -> NoReturn:
    """Be a child, from right after the fork (or exec) to the end of the process.

    ``wire`` is its end of the connection to the supervisor, ``output_fd`` what its output goes to, ``page_fd`` the
    page it shares with its warden, whose pid is ``parent``. Where ``loaded`` is None it loads the handlers itself.
    """
    code = 1
    try:
        channel, page = _settle(wire, output_fd, page_fd, parent)
        stacks = Answering(page, guard.move_fd_high(page_fd))
        titles.prepare(keep_environ=options.keep_environ)
        child = _boot(channel, page, stacks, parent, loaded, options, slot)
        child.serve()
        code = 0
        child.retire()
    except BaseException:
        print_exc()
        _flush()
    finally:
        _exit(code)


def _boot(
    channel: Channel, page: Page, stacks: Answering, parent: int, loaded: Loaded | None, options: Options, slot: str
) -> Child:
    """Load what is not loaded, call the start hooks, and say that the child is ready, or why it is not."""
    try:
        if loaded is None:
            guard.default_signals()  # for what the import starts
        found = loaded if loaded is not None else load(options)
        stacks.install()
        _reseed()
        child = Child(channel, page, parent, found, options, slot, spawned=loaded is None)
        child.start(None if loaded is not None else found.job_types)
    except BaseException as error:
        channel.send("boot-error", wait=True, error=outcome.describe(error)["traceback"])
        raise
    return child


def _settle(wire: socket, output_fd: int, page_fd: int, parent: int) -> tuple[Channel, Page]:
    """Put the process in order: its session, descriptors, signals, streams, and what a fork must not copy."""
    guard.new_session()
    guard.die_with_parent(parent)
    guard.default_signals()
    guard.hear_nothing_yet()
    guard.unblock_signals()
    guard.empty_stdin()
    for standard in (1, 2):
        dup2(output_fd, standard, inheritable=True)
    if output_fd > 2:
        close(output_fd)
    channel = Channel(socket(fileno=guard.move_fd_high(wire.detach())))
    page = Page(page_fd)
    sys.stdout, sys.stderr = _stream(sys.stdout, 1), _stream(sys.stderr, 2)
    _begin_exit_anew()
    return channel, page


def _begin_exit_anew() -> None:
    """Forget what the template registered for its exit: a copy would, say, remove the template's temporary folders.
    What jobs register is done when this process ends (``Child.retire``), the finalizers of two libraries included."""
    atexit._clear()
    finalize: Any = weakref.finalize
    for info in finalize._registry.values():
        info.atexit = False
    finalize._registered_with_atexit = True
    atexit.register(finalize._exitfunc)
    processes: Any = sys.modules.get("multiprocessing.util")
    if processes is not None:
        processes._finalizer_registry.clear()
        atexit.register(processes._run_finalizers)  # and not its whole exit function, which waits for what a job left


def _reseed() -> None:
    """Give this child random numbers of its own: a fork, or a seed set at import, would give all children the same.

    That is for the generator which a library shares among all; one that the user has made is seeded as they like it.
    """
    for name in _DRAWING:
        seed = getattr(sys.modules.get(name), "seed", None)
        if seed is not None:
            seed()


def _stream(stream: Any, fd: int) -> Any:
    """Make a text stream that shows each line at once and can hold any character; the one that is there, if it can."""
    try:
        if stream.fileno() == fd:
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
            return stream
    except Exception:  # none, replaced, or closed: an import did that
        pass
    return open(fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def main() -> NoReturn:
    """Be a child with an interpreter of its own (start method "spawn")."""
    parser = argparse.ArgumentParser(prog="ganger_child.child", description="Started by ganger, not by hand.")
    for name in ("wire", "output", "page", "parent"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("slot", "options"):
        parser.add_argument(f"--{name}", required=True)
    arguments = parser.parse_args()
    run_child(
        wire=socket(fileno=arguments.wire),
        output_fd=arguments.output,
        page_fd=arguments.page,
        parent=arguments.parent,
        loaded=None,
        options=Options.from_json(json.loads(arguments.options)),
        slot=arguments.slot,
    )


if __name__ == "__main__":
    main()
