"""The warden: forks its slot's children one after another, watches them, signals them, and buries what they leave.

It is the child's real parent, so its word about a child's end is the kernel's; it is a subreaper, so whatever the job
starts stays below it and can be killed. It runs no user code and decides nothing: it carries out the supervisor's
orders, and acts by itself in two cases only: the supervisor is gone, or its lease can no longer be trusted.

Before it signals, it *stops, looks, and only then kills*: the order is for a run, and a reused child may have gone on
to the next one. Everything used here is bound before the user's module was imported.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from json import dumps
from math import ceil, inf
from os import (
    WNOHANG,
    _exit,
    close,
    dup,
    environ,
    execv,
    fork,
    getpgid,
    getpid,
    kill,
    killpg,
    pidfd_open,
    set_inheritable,
    wait4,
    waitstatus_to_exitcode,
)
from select import POLLIN, POLLOUT, poll
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM
from socket import socket
from time import monotonic, sleep
from traceback import print_exc
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ganger_child import guard, launch, leaf, page, stacks, titles, tree
from ganger_child.child import run_child
from ganger_child.interrupt import SIGNAL as INTERRUPT
from ganger_child.options import Options
from ganger_child.page import (
    BEGUN,
    NOBODY,
    NOTE_SERIAL,
    ORDER,
    ORDER_RUN,
    ORDER_SERIAL,
    ORDERS,
    PROGRESS,
    REVOKED,
    RUN,
    Page,
)
from ganger_child.trust import TrustReader
from ganger_child.wire import Channel, Message

if TYPE_CHECKING:
    from ganger_child.handlers import Loaded

_WALL: Final = 0x40000000  # wait also for children that were cloned with another signal than SIGCHLD
_SEEN_AFTER: Final = 0.001  # seconds after which the child sees what we wrote, and we what it wrote
_HALT_BOUND: Final = 0.5  # seconds for a SIGSTOP to take effect; a child in state D cannot leave the kernel anyway
_BURY_BOUND: Final = 5.0  # seconds until what will not die is reported
_BURY_AGAIN: Final = 1.0
_TRUST_LOOK: Final = 1.0  # seconds between two looks at the trust page while there is a child
_TITLE_FAST: Final = 1.0  # seconds between two titles, in a run's first minute
_TITLE_SLOW: Final = 5.0
_MEMORY_SLOW: Final = 0.5  # seconds between two measurements, far from the limit
_MEMORY_FAST: Final = 0.1
_MEMORY_SHARE: Final = 0.05  # of a core at most for measuring


@dataclass(frozen=True, slots=True)
class Inheritance:
    """What a warden has from its template."""

    options: Options
    loaded: Loaded | None  # None where each child imports for itself (start method "spawn")
    trust: TrustReader
    supervisor: int  # pidfd of it: an application that forks may hold the lifeline open
    lock: int | None  # nobody uses it; held until the last of us is gone


@dataclass(slots=True)
class _Watch:
    """A run that has lasted long enough to be looked at."""

    order: Message
    sampler: tree.Sampler
    next_sample: float
    next_title: float
    next_memory: float
    note: str = ""
    progress: tuple[int, int] = (0, 0)  # as the page has it
    moved: float = 0.0  # when that has changed last
    stalled: bool = False
    told: tuple[int, str] = (0, "")  # what the supervisor knows of its progress

    @property
    def nonce(self) -> int:
        return int(self.order["nonce"])

    def due(self) -> float:
        return min(self.next_sample, self.next_title, self.next_memory)


@dataclass(slots=True)
class _Child:
    """The one child that a warden has at a time."""

    number: int
    pid: int
    pidfd: int
    page: Page
    page_fd: int
    inherited_rss: int  # bytes that it shared with us at its start
    trusted_at_start: bool
    oom_kills: int | None = None  # in the slot's control group before it was started
    status: int | None = None  # as wait gave it
    cpu_s: float = 0.0
    max_rss: int = 0
    killed: set[int] = field(default_factory=set)
    watch: _Watch | None = None
    bury_again: float = inf
    unkillable: tuple[int, ...] = ()


class Warden:
    """One slot. ``run`` never returns."""

    def __init__(self, slot: str, control: Channel, lifeline: int, inheritance: Inheritance) -> None:
        self._slot = slot
        self._control = control
        self._lifeline = lifeline
        self._inherited = inheritance
        self._child: _Child | None = None
        self._leaf = leaf.make()
        self._outbox: deque[tuple[str, dict[str, Any], tuple[int, ...]]] = deque()
        self._poll = poll()
        for fd in (control.fileno(), lifeline, inheritance.supervisor):
            self._poll.register(fd, POLLIN)
        self._orders: dict[str, Callable[[_Child, Message], None]] = {
            "watch": self._watch,
            "interrupt": self._interrupt,
            "terminate": self._terminate,
            "kill": self._kill,
            "replace-idle": self._replace_idle,
            "revoke": self._revoke,
            "stack": self._take_stack,
        }

    def run(self) -> NoReturn:
        """Serve until told to stop, or until the supervisor is gone."""
        self._show_idle()
        while True:
            ready = {fd for fd, _ in self._poll.poll(self._patience())}
            if self._lifeline in ready or self._inherited.supervisor in ready:
                self._leave()
            child = self._child
            if child is not None and child.pidfd in ready:
                self._bury(child)
            if self._control.fileno() in ready:
                if self._outbox:
                    self._flush()
                self._obey()
            self._act_by_itself()

    def _patience(self) -> int | None:
        """Milliseconds until there is something to do unasked."""
        child = self._child
        if child is None:
            return None
        now = monotonic()
        due = min(now + _TRUST_LOOK, child.bury_again)
        remaining = self._inherited.trust.remaining()
        if remaining > 0:
            due = min(due, now + remaining)
        if child.watch is not None:
            due = min(due, child.watch.due())
        return max(0, ceil((due - now) * 1000))

    def _act_by_itself(self) -> None:
        child = self._child
        if child is None:
            return
        now = monotonic()
        if now >= child.bury_again or self._has_lost_trust(child):
            self._bury(child)
        elif child.watch is not None and now >= child.watch.due():
            self._look(child, child.watch, now)

    def _has_lost_trust(self, child: _Child) -> bool:
        """Past the lease's trust a run may be somebody else's. A child started since then has none yet."""
        if self._inherited.trust.remaining() > 0 or child.bury_again < inf:
            return False
        return child.trusted_at_start or child.page[RUN] != NOBODY

    # -----------------------------------------------------------------------------------------------------------------
    # Words to the supervisor

    def _send(self, op: str, *fds: int, **fields: Any) -> None:
        """Send, or keep it until the supervisor reads again."""
        if self._outbox or not self._control.send(op, fds=fds, **fields):
            self._outbox.append((op, fields, tuple(map(dup, fds))))
            self._poll.modify(self._control.fileno(), POLLIN | POLLOUT)

    def _say(self, op: str, **fields: Any) -> bool:
        """Send what is worth nothing later; whether it was sent."""
        return not self._outbox and self._control.send(op, **fields)

    def _flush(self) -> None:
        while self._outbox:
            op, fields, fds = self._outbox[0]
            if not self._control.send(op, fds=fds, **fields):
                return
            self._outbox.popleft()
            for fd in fds:
                close(fd)
        self._poll.modify(self._control.fileno(), POLLIN)

    # -----------------------------------------------------------------------------------------------------------------
    # Orders

    def _obey(self) -> None:
        received = self._control.receive()
        for order in received.messages:
            child = self._child
            if order.op == "stop":
                self._leave()
            elif order.op == "fork":
                self._fork(order)
            elif child is not None and order.get("child") == child.number and order.op in self._orders:
                self._orders[order.op](child, order)
            else:
                order.close()  # for a child that has ended meanwhile: its end is on its way
        if received.closed:
            self._leave()

    def _leave(self) -> NoReturn:
        """End the child and everything below, however long that takes, and then this process."""
        while True:
            child = self._child
            if child is not None:
                self._bury(child)
            elif not self._end_all().survivors:
                if self._leaf is not None:
                    self._leaf.remove()
                _exit(0)
            if self._child is not None:
                sleep(_BURY_AGAIN)

    def _fork(self, order: Message) -> None:
        number = int(order["child"])
        if self._child is not None or len(order.fds) != 2:
            order.close()
            self._send("fork-failed", child=number, error="the slot's warden still has a child")
            return
        wire, output = order.fds
        try:
            shared = page.create()
            try:
                child = self._fork_child(number, wire, output, shared, order.get("environ", {}))
            except OSError:
                close(shared)
                raise
        except OSError as error:
            self._send("fork-failed", child=number, error=f"the child could not be forked: {error}")
            return
        finally:
            for fd in (wire, output):
                close(fd)
        self._child = child
        self._poll.register(child.pidfd, POLLIN)
        self._send("child-started", child.pidfd, child=number, pid=child.pid)

    def _fork_child(self, number: int, wire: int, output: int, shared: int, news: Mapping[str, list[str]]) -> _Child:
        mapped = Page(shared)
        parent = getpid()
        oom_kills = self._oom_kills()
        guard.block_signals()
        try:
            pid = fork()
            if pid == 0:
                self._become_child(parent, wire, output, shared, mapped, news)
        except OSError:
            mapped.close()
            raise
        finally:
            guard.unblock_signals()
        try:
            pidfd = pidfd_open(pid)
        except OSError:
            kill(pid, SIGKILL)
            self._end_all()
            mapped.close()
            raise
        inherited = 0 if self._inherited.loaded is None else tree.resident([parent])
        return _Child(number, pid, pidfd, mapped, shared, inherited, self._inherited.trust.remaining() > 0, oom_kills)

    def _become_child(
        self, parent: int, wire: int, output: int, shared: int, mapped: Page, news: Mapping[str, list[str]]
    ) -> NoReturn:
        """Go on as the child, with nothing of the warden's. Nothing may unwind from here into the warden's frames."""
        try:
            _hear(news)
            if self._leaf is not None:
                self._leaf.enter()
            mapped.close()
            self._inherited.trust.close()
            self._control.close()
            close(self._lifeline)
            close(self._inherited.supervisor)
            for _, _, fds in self._outbox:
                for fd in fds:
                    close(fd)
            guard.prefer_when_memory_runs_out()
            if self._inherited.options.start_method == "spawn":
                self._exec_child(parent, wire, output, shared)
            run_child(
                wire=socket(fileno=wire),
                output_fd=output,
                page_fd=shared,
                parent=parent,
                loaded=self._inherited.loaded,
                options=self._inherited.options,
                slot=self._slot,
            )
        except BaseException:
            print_exc()
        finally:
            _exit(70)

    def _exec_child(self, parent: int, wire: int, output: int, shared: int) -> NoReturn:
        lock = self._inherited.lock
        for fd in (wire, output, shared, lock):
            if fd is not None:
                set_inheritable(fd, True)
        guard.default_signals()
        options = dumps(self._inherited.options.to_json())
        numbers = {"wire": wire, "output": output, "page": shared, "parent": parent}
        command = launch.command("child", **numbers, slot=self._slot, options=options)
        execv(command[0], command)

    def _interrupt(self, child: _Child, order: Message) -> None:
        """Write the order down, then ring, unless it is only to be written. A child in another run, or not in one yet,
        is not rung: it may have no handler for the bell. It looks for an order of its own when it begins a run."""
        child.page[ORDER_RUN] = order["nonce"]
        child.page[ORDER] = ORDERS.index(order["reason"])
        child.page[ORDER_SERIAL] += 1
        if order["signal"] and child.page[RUN] == order["nonce"]:
            self._signal(child, INTERRUPT)
            self._signal(child, SIGCONT)  # somebody may have stopped it

    def _terminate(self, child: _Child, order: Message) -> None:
        self._halt(child)
        if child.page[RUN] != order["nonce"]:
            self._spare(child, child.page[RUN])
            return
        self._signal(child, SIGTERM, group=True)
        self._signal(child, SIGCONT, group=True)

    def _kill(self, child: _Child, order: Message) -> None:
        nonce = order.get("nonce")
        self._halt(child)
        if nonce is not None and child.page[RUN] != nonce:
            self._spare(child, child.page[RUN])
            return
        self._acknowledge_and_bury(child)

    def _replace_idle(self, child: _Child, order: Message) -> None:
        """Kill a child that has not begun the run. One that has also ended it is between runs, and about to tell."""
        self._halt(child)
        if child.page[BEGUN] >= order["nonce"]:
            self._spare(child, child.page[RUN] or order["nonce"])
            return
        self._acknowledge_and_bury(child)

    def _revoke(self, child: _Child, order: Message) -> None:
        """Take back the runs that wait in the child's socket, without disturbing the one that it is in.

        The child writes which run it is about to begin and then looks here; we write here and then look there. So one
        of us sees the other, provided that a write is seen before what follows it is read: the pause is far longer
        than a processor keeps a write to itself.
        """
        nonces = order["nonces"]
        child.page[REVOKED] = max(nonces)
        sleep(_SEEN_AFTER)
        begun = max(child.page[RUN], child.page[BEGUN])
        for nonce in sorted(nonces, reverse=True):
            if nonce > begun:
                self._send("revoked", child=child.number, nonce=nonce)

    def _signal(self, child: _Child, signum: int, *, group: bool = False) -> None:
        """Signal the child, or the group that it leads. Its number is its own until we have waited for it."""
        if child.status is not None:
            return
        with suppress(ProcessLookupError, PermissionError):  # a child may have become a setuid program
            if group and getpgid(child.pid) == child.pid:  # else it has not left our session yet, and the group is ours
                killpg(child.pid, signum)
            else:
                kill(child.pid, signum)

    def _halt(self, child: _Child) -> None:
        """Stop the child, so that what its page says stays true. One that is in the kernel for longer cannot leave it
        without stopping, so its page is still too."""
        self._signal(child, SIGSTOP)
        deadline = monotonic() + _HALT_BOUND
        while child.status is None and monotonic() < deadline:
            seen = tree.stat(child.pid)
            if seen is None or seen.state in "TtZX":
                break
            sleep(0.0002)

    def _take_stack(self, child: _Child, order: Message) -> None:
        """Look where the run is. The answer is on its way before anything that is ordered after this."""
        text = None
        if child.page[RUN] == order["nonce"] and child.status is None:
            text = stacks.take(child.pid, child.page, child.page_fd, order["patience"])
        self._send("stack", child=child.number, nonce=order["nonce"], text=text)

    def _spare(self, child: _Child, nonce: int) -> None:
        self._signal(child, SIGCONT)
        self._send("spared", child=child.number, nonce=nonce)

    # -----------------------------------------------------------------------------------------------------------------
    # The end of a child

    def _acknowledge_and_bury(self, child: _Child) -> None:
        self._send("kill-acknowledged", child=child.number)
        self._bury(child)

    def _bury(self, child: _Child) -> None:
        """Kill what is left of the child and of all it started, and report its end, or that it does not end."""
        ended = self._end_all()
        child.killed |= ended.killed
        if ended.survivors:
            child.bury_again = monotonic() + _BURY_AGAIN
            child.watch = None
            if ended.survivors != child.unkillable:
                child.unkillable = ended.survivors
                self._send("unkillable", child=child.number, survivors=ended.survivors)
            if child.status is not None:
                self._forget_pidfd(child)
            return
        self._report_exit(child)

    def _end_all(self) -> tree.Ended:
        """Kill everything below. What is in the slot's control group goes first: where the cores are taken by what
        forks without end, a walk through its tree may take us many seconds."""
        killed = set() if self._leaf is None else self._leaf.kill()
        ended = tree.end_all(self._reap, _BURY_BOUND)
        ended.killed |= killed
        return ended

    def _oom_kills(self) -> int | None:
        return None if self._leaf is None else self._leaf.oom_kills()

    def _was_killed_for_memory(self, child: _Child) -> bool | None:
        """Whether the kernel has killed something of it for memory; None where that is not counted for the slot."""
        count = self._oom_kills()
        return None if count is None or child.oom_kills is None else count > child.oom_kills

    def _reap(self) -> bool:
        """Wait for all that has ended; true if nothing is below us any more."""
        child = self._child
        try:
            while True:
                pid, status, usage = wait4(-1, WNOHANG | _WALL)
                if pid == 0:
                    return False
                if child is None:
                    continue
                child.cpu_s += usage.ru_utime + usage.ru_stime
                if pid == child.pid:
                    child.status = status
                    child.max_rss = max(0, usage.ru_maxrss * 1024 - child.inherited_rss)
        except ChildProcessError:
            return True

    def _report_exit(self, child: _Child) -> None:
        code = None if child.status is None else waitstatus_to_exitcode(child.status)
        self._send(
            "child-exited",
            child=child.number,
            exit_code=code if code is not None and code >= 0 else None,
            term_signal=-code if code is not None and code < 0 else None,
            cpu_s=child.cpu_s,
            max_rss=child.max_rss,
            leftovers=len(child.killed - {child.pid}),
            out_of_memory=self._was_killed_for_memory(child),
            survivors=[],
        )
        self._forget_pidfd(child)
        child.page.close()
        close(child.page_fd)
        self._child = None
        self._show_idle()

    def _forget_pidfd(self, child: _Child) -> None:
        """Stop polling a child that has ended: its descriptor stays ready."""
        if child.pidfd >= 0:
            self._poll.unregister(child.pidfd)
            close(child.pidfd)
            child.pidfd = -1

    # -----------------------------------------------------------------------------------------------------------------
    # Watching a run

    def _watch(self, child: _Child, order: Message) -> None:
        if child.page[RUN] != order["nonce"]:
            return  # it has ended meanwhile
        now = monotonic()
        memory = inf if order.get("memory") is None else now
        child.watch = _Watch(order, tree.Sampler(), now + tree.WINDOW, now, memory)
        self._look(child, child.watch, now)

    def _look(self, child: _Child, watch: _Watch, now: float) -> None:
        """Do what is due: sample, measure, and renew the title."""
        if child.page[RUN] != watch.nonce:
            child.watch = None
            self._show_idle()
            return
        self._reap()  # orphans of the run that have ended: a job of hours could leave as many as there are pids
        if now >= watch.next_sample:
            watch.next_sample = now + tree.WINDOW
            self._sample(child, watch)
        if now >= watch.next_memory:
            watch.next_memory = now + self._measure(child, watch)
        if now >= watch.next_title:
            age = now - float(watch.order["started"])
            watch.next_title = now + (_TITLE_FAST if age < 60 else _TITLE_SLOW)
            self._show_run(child, watch, age)

    def _sample(self, child: _Child, watch: _Watch) -> None:
        verdict = watch.sampler.sample()
        if verdict is not None:
            computing, since = verdict
            self._say("verdict", child=child.number, nonce=watch.nonce, computing=computing, since=since)
        if self._inherited.options.stall_after is not None:
            self._look_for_stall(child, watch, self._inherited.options.stall_after)

    def _look_for_stall(self, child: _Child, watch: _Watch, after: float) -> None:
        """A run that neither computes nor gets on has stalled. Told once, until it does something again."""
        now = monotonic()
        progress = (child.page[PROGRESS], child.page[NOTE_SERIAL])
        if progress != watch.progress:
            watch.progress, watch.moved = progress, now
        quiet = watch.sampler.quiet_since
        stalled = quiet is not None and now - max(quiet, watch.moved) >= after
        if stalled and not watch.stalled and quiet is not None:
            self._send("stalled", child=child.number, nonce=watch.nonce, seconds=now - max(quiet, watch.moved))
        if stalled != watch.stalled:
            watch.stalled = stalled
            watch.next_title = now

    def _measure(self, child: _Child, watch: _Watch) -> float:
        """Measure the memory; returns the seconds until the next time."""
        limit = int(watch.order["memory"])
        began = monotonic()
        held = tree.held(limit)
        cost = monotonic() - began
        if held > limit:
            self._say("memory", child=child.number, nonce=watch.nonce, held=held)
        return max(_MEMORY_FAST if held > limit // 2 else _MEMORY_SLOW, cost / _MEMORY_SHARE)

    def _show_run(self, child: _Child, watch: _Watch, age: float) -> None:
        order = watch.order
        given = child.page[PROGRESS]
        given = given if given <= 1001 else 0
        watch.note = watch.note if (note := child.page.read_note()) is None else note
        news = (given, watch.note)
        if news != watch.told:
            done = given - 1 if given else None
            if self._say("progress", child=child.number, nonce=watch.nonce, done=done, note=watch.note):
                watch.told = news
        titles.show(
            titles.warden(
                self._slot,
                job_type=order["job_type"],
                job_id=order["job_id"],
                attempt=order["attempt"],
                age=age,
                limit=order.get("limit"),
                progress=(given - 1) // 10 if given else None,
                stalled=watch.stalled,
            )
        )

    def _show_idle(self) -> None:
        titles.show(titles.warden(self._slot))


def _hear(news: Mapping[str, list[str]]) -> None:
    """Take over what has changed in the environment since the template was started, unless the module has."""
    for name, (told, now) in news.items():
        if environ.get(name) == told:
            environ[name] = now
