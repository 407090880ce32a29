"""The template: imports the user's module once, then only forks wardens.

A process that has the module loaded forks in milliseconds what would take seconds to start, and its pages are shared.
It is exec'd by the supervisor, runs nothing but the import and this loop, and is a subreaper: when a warden is killed,
what its job left behind comes here and is killed. It dies with the supervisor; its own death harms no warden.

It decides nothing: the supervisor says which wardens there are. Everything that this loop uses is bound before the
user's module is imported.
"""

from __future__ import annotations

import argparse
import gc
import sys
import threading
from dataclasses import dataclass
from io import TextIOWrapper
from os import WNOHANG, _exit, close, fork, getpid, listdir, pidfd_open, waitpid, waitstatus_to_exitcode
from select import POLLIN, poll
from signal import SIGCONT
from socket import socket
from traceback import format_exception, print_exc
from typing import Final, NoReturn

from ganger_child import guard, titles, tree
from ganger_child.child import flush_logs
from ganger_child.handlers import load
from ganger_child.options import Options
from ganger_child.trust import TrustReader
from ganger_child.warden import Inheritance, Warden
from ganger_child.wire import Channel, Message

_BURY_BOUND: Final = 5.0  # seconds for what a dead warden left


@dataclass(frozen=True, slots=True)
class _Forked:
    """A warden as its parent knows it."""

    slot: str
    pid: int
    pidfd: int


class Template:
    """The loop: forks wardens when told to, waits for them, buries what they leave."""

    def __init__(self, control: Channel, lifeline: int, inheritance: Inheritance) -> None:
        self._control = control
        self._lifeline = lifeline
        self._inheritance = inheritance
        self._wardens: dict[int, _Forked] = {}  # by pid
        self._statuses: dict[int, int] = {}  # of wardens that were reaped and are not reported yet
        self._poll = poll()
        self._poll.register(control.fileno(), POLLIN)
        self._poll.register(lifeline, POLLIN)

    def run(self) -> NoReturn:
        """Serve until the supervisor says stop or is gone."""
        self._bury()  # what the import started would outlive us
        loaded = self._inheritance.loaded
        job_types = None if loaded is None else loaded.job_types
        self._control.send("ready", wait=True, job_types=job_types, threads=_threads())
        while True:
            ready = {fd for fd, _ in self._poll.poll()}
            if self._lifeline in ready:
                _exit(0)
            if self._control.fileno() in ready:
                self._obey()
            if ready - {self._lifeline, self._control.fileno()}:
                self._bury()

    def _obey(self) -> None:
        received = self._control.receive(limit=1)  # a warden would inherit what came for the next one
        for order in received.messages:
            if order.op == "warden" and len(order.fds) == 1:
                self._fork_warden(str(order["slot"]), order.fds[0])
            else:
                order.close()
            if order.op == "stop":
                self._bury()
                _exit(0)
        if received.closed:
            _exit(0)

    def _fork_warden(self, slot: str, control: int) -> None:
        guard.block_signals()
        try:
            with guard.logging_at_rest():  # the import may have left threads running
                pid = fork()
            if pid == 0:
                self._become_warden(slot, control)
            pidfd = pidfd_open(pid)
        except OSError as error:  # without a descriptor it would be a warden that nobody can hold: its socket closes
            self._control.send("warden-failed", wait=True, slot=slot, error=str(error))
            return
        finally:
            guard.unblock_signals()
            close(control)
        self._wardens[pid] = _Forked(slot, pid, pidfd)
        self._poll.register(pidfd, POLLIN)
        self._control.send("warden-started", fds=[pidfd], wait=True, slot=slot, pid=pid)

    def _become_warden(self, slot: str, control: int) -> NoReturn:
        """Go on as the warden. Nothing may unwind from here into the template's frames."""
        try:
            guard.new_session()
            guard.adopt_orphans()
            guard.signal_at_parents_death(SIGCONT)  # a stopped warden wakes to see the lifeline's end
            guard.unblock_signals()
            self._control.close()
            for sibling in self._wardens.values():
                close(sibling.pidfd)
            Warden(slot, Channel(socket(fileno=guard.move_fd_high(control))), self._lifeline, self._inheritance).run()
        except BaseException:
            print_exc()
        finally:
            _exit(1)

    def _bury(self) -> None:
        """Wait for wardens that ended, and kill what came to us from them, before they are reported."""
        tree.end_all(self._reap, _BURY_BOUND, spare=self._wardens.keys())
        for pid, status in self._statuses.items():
            dead = self._wardens.pop(pid)
            self._poll.unregister(dead.pidfd)
            close(dead.pidfd)
            self._control.send("warden-exited", wait=True, slot=dead.slot, pid=pid, how=how_it_ended(status))
        self._statuses.clear()

    def _reap(self) -> bool:
        try:
            while True:
                pid, status = waitpid(-1, WNOHANG)
                if pid == 0:
                    break
                if pid in self._wardens:
                    self._statuses[pid] = status
        except ChildProcessError:
            return True
        return self._wardens.keys() >= set(tree.children(getpid()))


def how_it_ended(status: int) -> str:
    """Say a wait status in words: "exit code 1", "signal 9"."""
    code = waitstatus_to_exitcode(status)
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def main() -> NoReturn:
    """Be the template. The arguments are descriptors that the supervisor left open, and its pid."""
    arguments = _arguments()
    guard.new_session()
    guard.die_with_parent(arguments.parent)
    guard.take_no_orders()
    guard.unblock_signals()
    guard.adopt_orphans()
    control = Channel(socket(fileno=guard.move_fd_high(arguments.control)))
    lifeline = guard.move_fd_high(arguments.lifeline)
    supervisor = guard.move_fd_high(arguments.supervisor)
    trust = TrustReader(arguments.trust)
    lock = None if arguments.lock is None else guard.move_fd_high(arguments.lock)
    for stream in (sys.stdout, sys.stderr):  # what the import prints is no error in locale C
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    me = getpid()
    try:
        options = Options.from_json(_boot(control).fields)
        titles.prepare(keep_environ=options.keep_environ)
        titles.show(titles.template(options.target))
        loaded = None if options.start_method == "spawn" else load(options)
        _settle()
    except BaseException as error:
        if getpid() == me:
            trace = "".join(format_exception(error))
            control.send("boot-error", wait=True, error=trace[-32_000:])
        _exit(1)
    if getpid() != me:  # a module that forks is imported twice
        _exit(0)
    Template(control, lifeline, Inheritance(options, loaded, trust, supervisor, lock)).run()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ganger_child.template", description="Started by ganger, not by hand.")
    for name in ("parent", "control", "lifeline", "supervisor", "trust"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--lock", type=int)
    return parser.parse_args()


def _boot(control: Channel) -> Message:
    """Wait for the first message. A supervisor that ends first takes us with it."""
    while True:
        received = control.receive(wait=True, limit=1)
        if received.messages:
            return received.messages[0]
        if received.closed:
            _exit(0)


def _settle() -> None:
    """Undo what the import did to this process, and make it cheap and safe to fork."""
    guard.take_no_orders()
    guard.unblock_signals()
    flush_logs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    gc.collect()
    gc.freeze()  # so that a child's collector does not touch, and so copy, every page


def _threads() -> list[str]:
    """Names of the threads that the import left running, also those that Python does not know."""
    known = {thread.native_id: thread.name for thread in threading.enumerate()}
    names = [known.get(int(task)) or f"thread {task} of a library" for task in listdir("/proc/self/task")]
    return sorted(name for name in names if name != threading.main_thread().name)


if __name__ == "__main__":
    main()
