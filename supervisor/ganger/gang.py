"""The gang: template, wardens and children as seen from the parent. It carries out commands and tells events.

It is driven by the loop: it registers descriptors in the loop's selector, each with a function to call when it is
ready, and never waits itself. A child's messages are taken from the child alone (the kernel vouches for the sender)
and from nobody's word but the warden's that it has ended. What a job printed comes out before its last event.

It decides nothing, never decodes a payload or a result, and signals processes only through descriptors that their own
parent has handed over.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from select import POLLIN, poll
from selectors import EVENT_READ, EVENT_WRITE, BaseSelector
from time import monotonic
from typing import Any, Final
from uuid import UUID

from ganger import fields
from ganger.core import messages as m
from ganger.cores import Share
from ganger.notify import VARIABLES
from ganger.oom import OomKills
from ganger.output import Output, Printed
from ganger_child import guard, launch, tree
from ganger_child.options import Options
from ganger_child.trust import TrustWriter
from ganger_child.wire import Channel, Message, WireError, pair
from ganger_child.words import plain

RESULT_SLACK: Final = 64 * 1024  # bytes that a message may have beside its result
TOO_MUCH_GARBAGE: Final = 100
LONGEST_TYPE: Final = 200  # characters of a job type that a process title can use
LONGEST_NOTE: Final = 100  # characters of a note on a run's progress
STACK_BEFORE_KILL: Final = 0.02  # seconds that a child whose limit has passed gets for telling where it is
STACK_PATIENCE: Final = 0.2  # the same for whoever just asks: its machine may be busy
_CLOSE_BOUND: Final = 2.0  # seconds until what should be gone at the end is killed
_BURY_BOUND: Final = 0.25  # seconds that the loop may stand still when template and warden are both dead


@dataclass(frozen=True, slots=True)
class GangSettings:
    """``incarnation`` names this run of the supervisor: every process below carries it in GANGER_COOKIE."""

    options: Options
    incarnation: UUID
    lock_fd: int | None = None  # of the incarnation's lock file; passed on, closed by its owner
    adopt: bool = False  # be a subreaper: only where every process below this one is ours (``ganger run``)
    nice: int = 0  # niceness of everything below, added to our own
    output_tail: int = 8 * 1024  # bytes of a job's output that are kept with its attempt
    share: Callable[[tuple[str, ...]], Share] = lambda slots: Share()  # of the machine's cores, for these slots


@dataclass(frozen=True, slots=True)
class Stack:
    """Where a run is. ``text`` is None where that cannot be told: it has just ended, or its code does not let it."""

    slot: str
    pid: int
    job: m.Job
    text: str | None


@dataclass(slots=True, eq=False)
class _Template:
    generation: int
    process: subprocess.Popen[bytes]
    pidfd: int
    channel: Channel
    told: Mapping[str, str]  # of the share of a slot, by its environment
    ready: bool = False
    asked_to_stop: bool = False


@dataclass(slots=True, eq=False)
class _Child:
    number: int
    wire: Channel
    printed: Printed
    pid: int = 0
    pidfd: int = -1
    jobs: dict[int, m.Job] = field(default_factory=dict)  # sent and not over, by nonce
    run: int = 0  # the nonce of the one whose output this is
    stacks: int = 0  # questions after its stacks that are not answered
    askers: list[tuple[m.Job, Callable[[Stack], object]]] = field(default_factory=list)  # and who has asked them
    garbage: int = 0
    gone: bool = False


@dataclass(slots=True, eq=False)
class _Warden:
    slot: str
    template: _Template | None
    channel: Channel
    queue: deque[tuple[str, dict[str, Any], tuple[int, ...]]] = field(default_factory=deque)
    pid: int = 0
    pidfd: int = -1
    child: _Child | None = None
    hung_up: bool = False
    gone: bool = False


class Gang:
    """Everything below the supervisor.

    ``post`` takes the events (also from inside ``do``), ``output`` the lines that children print. Everything happens
    in the thread that calls ``do`` and the registered functions; it has to live as long as the gang, because the
    template dies with the thread that started it.
    """

    def __init__(
        self,
        settings: GangSettings,
        selector: BaseSelector,
        post: Callable[[m.GangEvent], None],
        output: Callable[[Output], object],
    ) -> None:
        self._settings = settings
        self._selector = selector
        self._post = post
        self._output = output
        self._templates: dict[int, _Template] = {}
        self._wardens: dict[str, _Warden] = {}
        self._share = Share()
        self._strange_zombies: set[int] = set()
        self._lifeline, self._lifeline_end = os.pipe2(os.O_CLOEXEC)
        self._self = os.pidfd_open(os.getpid())
        self._trust = TrustWriter()
        self._oom_kills = OomKills()
        self.over: Callable[[UUID], object] = lambda job_id: None  # told of each run that has printed its last line
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # inherited as ignored, no exit status would ever be known
        if settings.adopt:
            guard.adopt_orphans()
        self._commands: dict[type[m.GangCommand], Callable[[Any], None]] = {
            m.StartTemplate: self._start_template,
            m.StopTemplate: self._stop_template,
            m.ShareCores: self._share_cores,
            m.StartWarden: self._start_warden,
            m.StopWarden: self._stop_warden,
            m.StartChild: self._start_child,
            m.SendJob: self._send_job,
            m.SendPostmortem: self._send_postmortem,
            m.SendCallbacks: self._send_callbacks,
            m.SendAnswer: self._send_answer,
            m.Watch: self._watch,
            m.TakeStack: self._take_stack,
            m.Interrupt: self._interrupt,
            m.Terminate: self._terminate,
            m.Kill: self._kill,
            m.ReplaceIdle: self._replace_idle,
            m.Revoke: self._revoke,
            m.ContinueWarden: self._continue_warden,
            m.KillDirectly: self._kill_directly,
            m.Retire: self._retire,
            m.Trust: self._set_trust,
        }
        self._words_of_template: dict[str, Callable[[_Template, Message], None]] = {
            "ready": self._template_ready,
            "boot-error": self._boot_error,
            "warden-started": self._warden_started,
            "warden-failed": self._warden_failed,
            "warden-exited": self._warden_exited,
        }
        self._words_of_warden: dict[str, Callable[[_Warden, _Child, Message], None]] = {
            "child-started": self._child_started,
            "fork-failed": self._fork_failed,
            "child-exited": self._child_exited,
            "unkillable": self._unkillable,
            "spared": self._spared,
            "revoked": self._revoked,
            "kill-acknowledged": self._kill_acknowledged,
            "verdict": self._verdict,
            "memory": self._memory,
            "stack": self._stack,
            "stalled": self._stalled,
            "progress": self._progress,
        }
        self._words_of_child: dict[str, Callable[[_Warden, _Child, Message], None]] = {
            "ready": self._child_ready,
            "boot-error": self._child_boot_error,
            "started": self._job_started,
            "checkpoint": self._checkpoint_given,
            "revoked": self._revoked,
            "returned": self._job_returned,
            "asking": self._strategy_asked,
            "raised": self._job_raised,
            "calling": self._callback_begun,
            "callbacks-done": self._callbacks_done,
        }

    def do(self, command: m.GangCommand) -> None:
        """Carry out one command. Never blocks; what it names and is not there any more is passed over."""
        self._commands[type(command)](command)

    def printed(self, job_id: UUID) -> str | None:
        """The last whole lines that a job has printed so far; None where it does not run here."""
        for _, child in self._running(job_id):
            return child.printed.last_lines()
        return None

    def ask_stacks(self, then: Callable[[Stack], object], job_id: UUID | None = None) -> bool:
        """Have a job, or each, tell where it is, and give that to ``then``. False: it does not run here."""
        asked = self._running(job_id)
        for warden, child in asked:
            assert child.printed.job is not None
            child.askers.append((child.printed.job, then))
            self._ask_stack(warden.slot, child.number, child.run, STACK_PATIENCE)
        return bool(asked)

    def _running(self, job_id: UUID | None) -> list[tuple[_Warden, _Child]]:
        return [
            (warden, child)
            for warden in self._wardens.values()
            if (child := warden.child) is not None
            and child.printed.job is not None
            and job_id in (None, child.printed.job.job_id)
        ]

    def reap(self) -> None:
        """Kill what came to us of a slot whose warden and template are dead (it may come a moment later than we heard
        of that), and, as PID 1, wait for strangers that ended here. To be called now and then.

        A stranger that somebody else in this process waits for (``subprocess``) has time from one call to the next.
        """
        self._bury_adopted()
        self._oom_kills.look()
        if os.getpid() != 1:
            return
        zombies = {pid for pid in tree.children(1) if (seen := tree.stat(pid)) and seen.state == "Z"}
        for pid in zombies & self._strange_zombies - self._known_pids():
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        self._strange_zombies = zombies

    def close(self) -> None:
        """End everything that is left and let go of every descriptor. Takes up to two seconds."""
        os.close(self._lifeline_end)
        for template in list(self._templates.values()):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(template.pidfd, signal.SIGKILL)
            template.process.wait()
            self._forget_template(template)
        self._await_wardens()
        for warden in list(self._wardens.values()):
            self._forget_warden(warden)
        self._bury_adopted()
        os.close(self._lifeline)
        os.close(self._self)
        self._trust.close()

    def _await_wardens(self) -> None:
        """They have seen the lifeline's end and bury their trees. Who does not is killed, and its child too."""
        deadline = monotonic() + _CLOSE_BOUND
        for warden in self._wardens.values():
            _signal(warden.pidfd, signal.SIGCONT)
        for warden in self._wardens.values():
            if warden.pidfd >= 0 and not _has_ended(warden.pidfd, deadline - monotonic()):
                if warden.child is not None:
                    _signal(warden.child.pidfd, signal.SIGKILL)
                _signal(warden.pidfd, signal.SIGKILL)
                _has_ended(warden.pidfd, 1.0)
            _wait_for(warden)

    # -----------------------------------------------------------------------------------------------------------------
    # Templates

    def _start_template(self, command: m.StartTemplate) -> None:
        ours, theirs = pair()
        try:
            process = self._exec_template(theirs.fileno())
            pidfd = os.pidfd_open(process.pid)
        except OSError as error:
            ours.close()
            self._post(m.TemplateFailed(command.generation, f"the template could not be started: {error}"))
            self._post(m.TemplateExited(command.generation, "not started"))
            return
        finally:
            theirs.close()
        template = _Template(command.generation, process, pidfd, Channel(ours), self._share.environ)
        self._templates[command.generation] = template
        self._listen(ours.fileno(), partial(self._on_template, template))
        self._listen(pidfd, partial(self._on_template_exit, template))
        template.channel.send("boot", **self._settings.options.to_json())

    def _exec_template(self, control: int) -> subprocess.Popen[bytes]:
        given = {
            "control": control,
            "lifeline": self._lifeline,
            "supervisor": self._self,
            "trust": self._trust.reading_end,
            "lock": self._settings.lock_fd,
        }
        process = subprocess.Popen(
            launch.command("template", parent=os.getpid(), **given),
            stdin=subprocess.DEVNULL,
            pass_fds=[fd for fd in given.values() if fd is not None],
            env=self._environment(),
            start_new_session=True,
        )
        if self._settings.nice:
            os.setpriority(os.PRIO_PROCESS, process.pid, os.getpriority(os.PRIO_PROCESS, 0) + self._settings.nice)
        return process

    def _environment(self) -> dict[str, str]:
        """Ours, with what is to be filled in, and without what only this process may say to the service manager."""
        own = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        return {**self._share.environ, **own, "GANGER_COOKIE": str(self._settings.incarnation)}

    def _stop_template(self, command: m.StopTemplate) -> None:
        """Ask it to go. One that is still importing cannot hear, and one that was asked before does not: killed."""
        template = self._templates.get(command.generation)
        if template is None:
            return
        if template.ready and not template.asked_to_stop and template.channel.send("stop"):
            template.asked_to_stop = True
            _signal(template.pidfd, signal.SIGCONT)
        else:
            _signal(template.pidfd, signal.SIGKILL)

    def _on_template(self, template: _Template) -> None:
        if self._templates.get(template.generation) is not template:
            return
        received = template.channel.receive()
        for word in received.messages:
            handle = self._words_of_template.get(word.op)
            try:
                if handle is not None:
                    handle(template, word)
            except (*fields.NO_WORD, OSError):
                pass  # the module that it imports can write here too; OSError: we are out of descriptors
            finally:
                word.close()
        if received.closed:
            self._deafen(template.channel.fileno())

    def _template_ready(self, template: _Template, word: Message) -> None:
        template.ready = True
        threads = tuple(str(name) for name in word["threads"])
        self._post(m.TemplateReady(template.generation, fields.job_types(word["job_types"]), threads))

    def _boot_error(self, template: _Template, word: Message) -> None:
        self._post(m.TemplateFailed(template.generation, str(word["error"])))

    def _on_template_exit(self, template: _Template) -> None:
        """It is gone, its wardens are not: from now on each one's own descriptor tells of its end."""
        if self._templates.get(template.generation) is not template:
            return
        self._on_template(template)
        how = _how(template.process.wait())
        self._forget_template(template)
        self._post(m.TemplateExited(template.generation, how))
        for warden in [warden for warden in self._wardens.values() if warden.template is template]:
            warden.template = None
            if warden.pidfd >= 0:
                self._listen(warden.pidfd, partial(self._on_warden_exit, warden))
            else:  # not started, or it hears that our end of its socket is closed
                self._end_warden(warden, "its template ended")

    def _forget_template(self, template: _Template) -> None:
        self._deafen(template.channel.fileno())
        self._deafen(template.pidfd)
        template.channel.close()
        os.close(template.pidfd)
        del self._templates[template.generation]

    # -----------------------------------------------------------------------------------------------------------------
    # Wardens

    def _start_warden(self, command: m.StartWarden) -> None:
        template = self._templates.get(command.generation)
        ours, theirs = pair()
        warden = _Warden(command.slot, template, Channel(ours))
        try:
            if template is None or not template.channel.send("warden", fds=[theirs.fileno()], slot=command.slot):
                ours.close()
                self._post(m.WardenExited(command.slot, "there is no template to fork it"))
                return
        finally:
            theirs.close()
        self._wardens[command.slot] = warden
        self._listen(ours.fileno(), partial(self._on_warden, warden))

    def _share_cores(self, command: m.ShareCores) -> None:
        """What runs keeps its CPUs to its end, and what the template has loaded the threads that it has started with;
        children that are started from now on have the new share."""
        self._share = self._settings.share(command.slots)
        open_files = resource.getrlimit(resource.RLIMIT_NOFILE)
        for template in self._templates.values():
            with suppress(OSError):  # it has ended
                resource.prlimit(template.process.pid, resource.RLIMIT_NOFILE, open_files)
        for warden in self._wardens.values():
            self._bind(warden.slot, warden.pid)
            if warden.child is not None and not warden.child.jobs:
                self._bind(warden.slot, warden.child.pid)

    def _bind(self, slot: str, pid: int) -> None:
        """Bind a process of a slot, and what it forks later, to the slot's CPUs."""
        if pid and slot in self._share.cpus:
            with suppress(OSError):  # it has ended, or those CPUs were taken from us meanwhile
                os.sched_setaffinity(pid, self._share.cpus[slot])

    def _news_of_cores(self, template: _Template | None) -> dict[str, tuple[str, str]]:
        """What its environment told the template of a slot's share, and what is true now, where that has changed."""
        told = template.told if template is not None else {}
        now = self._share.environ
        return {name: (said, now[name]) for name, said in told.items() if now.get(name, said) != said}

    def _stop_warden(self, command: m.StopWarden) -> None:
        warden = self._wardens.get(command.slot)
        if warden is not None:
            self._order(warden, "stop")

    def _order(self, warden: _Warden, op: str, *fds: int, **facts: Any) -> None:
        """Send an order, or keep it until the warden reads again. Takes the descriptors."""
        if not warden.hung_up and (warden.queue or not warden.channel.send(op, fds=fds, **facts)):
            warden.queue.append((op, facts, fds))
            self._selector.modify(warden.channel, EVENT_READ | EVENT_WRITE, partial(self._on_warden, warden))
            return
        for fd in fds:
            os.close(fd)

    def _flush(self, warden: _Warden) -> None:
        while warden.queue:
            op, facts, fds = warden.queue[0]
            if not warden.channel.send(op, fds=fds, **facts):
                return
            warden.queue.popleft()
            for fd in fds:
                os.close(fd)
        self._selector.modify(warden.channel, EVENT_READ, partial(self._on_warden, warden))

    def _on_warden(self, warden: _Warden) -> None:
        if warden.gone or warden.hung_up:
            return
        received = warden.channel.receive()
        for word in received.messages:
            child, handle = warden.child, self._words_of_warden.get(word.op)
            try:
                if child is not None and handle is not None and word["child"] == child.number:
                    handle(warden, child, word)
            except (*fields.NO_WORD, OSError):
                pass  # as for the template; a child that is not known to have started is given up by the core
            finally:
                word.close()
        if received.closed:
            warden.hung_up = True
            self._deafen(warden.channel.fileno())
            self._drop_queue(warden)
        elif warden.queue:
            self._flush(warden)

    def _warden_started(self, template: _Template, word: Message) -> None:
        warden = self._wardens.get(word["slot"])
        if warden is None or warden.template is not template or warden.pidfd >= 0:
            return
        (pidfd,) = word.fds
        warden.pid, warden.pidfd = int(word["pid"]), os.dup(pidfd)
        self._bind(warden.slot, warden.pid)
        self._post(m.WardenStarted(warden.slot, warden.pid))

    def _warden_failed(self, template: _Template, word: Message) -> None:
        warden = self._wardens.get(word["slot"])
        if warden is not None and warden.template is template:
            self._end_warden(warden, f"it could not be forked: {word['error']}")

    def _warden_exited(self, template: _Template, word: Message) -> None:
        warden = self._wardens.get(word["slot"])
        if warden is not None and warden.template is template and warden.pid == word["pid"]:
            self._end_warden(warden, str(word["how"]))

    def _on_warden_exit(self, warden: _Warden) -> None:
        """A warden ended whose template is gone."""
        if warden.gone:
            return
        how = _wait_for(warden)
        self._bury_adopted()
        self._end_warden(warden, how)

    def _bury_adopted(self) -> None:
        """Kill what came to us because its warden and its template are both dead, if it carries our cookie."""
        if not self._settings.adopt:
            return
        me = os.getpid()
        known = self._known_pids()
        mark = str(self._settings.incarnation)
        ours = {pid for pid in tree.children(me) if pid not in known and _carries(pid, mark)}

        def reap() -> bool:
            for pid in ours:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            ours.update(pid for pid in tree.children(me) if pid not in known and _carries(pid, mark))
            return not ours & set(tree.children(me))

        tree.end_all(reap, _BURY_BOUND, spare={pid for pid in tree.children(me) if pid not in ours})

    def _known_pids(self) -> set[int]:
        templates = {template.process.pid for template in self._templates.values()}
        return templates | {warden.pid for warden in self._wardens.values()}

    def _end_warden(self, warden: _Warden, how: str) -> None:
        """Tell of its end, after the last words of the two."""
        self._on_warden(warden)
        if warden.child is not None:
            self._last_words(warden, warden.child)
        self._forget_warden(warden)
        self._post(m.WardenExited(warden.slot, how))

    def _forget_warden(self, warden: _Warden) -> None:
        warden.gone = True
        if warden.child is not None:
            self._forget_child(warden)
        self._drop_queue(warden)
        self._deafen(warden.channel.fileno())
        warden.channel.close()
        if warden.pidfd >= 0:
            self._deafen(warden.pidfd)
            os.close(warden.pidfd)
        if self._wardens.get(warden.slot) is warden:
            del self._wardens[warden.slot]

    def _drop_queue(self, warden: _Warden) -> None:
        for _, _, fds in warden.queue:
            for fd in fds:
                os.close(fd)
        warden.queue.clear()

    def _continue_warden(self, command: m.ContinueWarden) -> None:
        warden = self._wardens.get(command.slot)
        if warden is not None:
            _signal(warden.pidfd, signal.SIGCONT)

    def _kill_directly(self, command: m.KillDirectly) -> None:
        warden, child = self._find(command.slot, command.child)
        if child is not None:
            _signal(child.pidfd, signal.SIGKILL)
        if warden is not None:
            _signal(warden.pidfd, signal.SIGKILL)
            if warden.template is not None:
                _signal(warden.template.pidfd, signal.SIGCONT)  # it has to bury, and may be stopped too

    # -----------------------------------------------------------------------------------------------------------------
    # Children: orders

    def _find(self, slot: str, number: int) -> tuple[_Warden | None, _Child | None]:
        warden = self._wardens.get(slot)
        child = warden.child if warden is not None else None
        return warden, child if child is not None and child.number == number else None

    def _tell_warden(self, slot: str, number: int, op: str, **facts: Any) -> None:
        warden, child = self._find(slot, number)
        if warden is not None and child is not None:
            self._order(warden, op, child=number, **facts)

    def _tell_child(self, child: _Child, op: str, body: bytes = b"", **facts: Any) -> None:
        """Send. What does not arrive (it is gone, or takes nothing any more) is noticed by the core: nothing starts."""
        with suppress(WireError, OSError):
            child.wire.send(op, body, **facts)

    def _start_child(self, command: m.StartChild) -> None:
        warden = self._wardens.get(command.slot)
        if warden is None:
            return  # its end is told already
        if warden.child is not None:
            raise RuntimeError(f"slot {command.slot} has child {warden.child.number} and cannot have another")
        try:
            reading, writing = os.pipe2(os.O_CLOEXEC)
            ours, theirs = pair()
        except OSError as error:
            self._post(m.ChildBootFailed(command.slot, command.child, f"no descriptors for it: {error}", forked=False))
            return
        os.set_blocking(reading, False)
        limit = max(self._settings.options.max_result, self._settings.options.max_checkpoint) + RESULT_SLACK
        keep = self._settings.output_tail
        printed = Printed(command.slot, command.child, reading, keep, self._output, self._deafen)
        warden.child = _Child(command.child, Channel(ours, limit=limit, credentials=True), printed)
        news = self._news_of_cores(warden.template)
        told = {"environ": news} if news else {}
        self._order(warden, "fork", theirs.detach(), writing, child=command.child, **told)

    def _send_job(self, command: m.SendJob) -> None:
        _, child = self._find(command.slot, command.child)
        if child is not None:
            child.jobs[command.nonce] = command.job
            self._tell_child(child, "run", fields.body(command.job), **fields.run(command), after=command.after)

    def _send_postmortem(self, command: m.SendPostmortem) -> None:
        _, child = self._find(command.slot, command.child)
        if child is not None:
            child.jobs[command.nonce] = command.job
            self._tell_child(
                child, "postmortem", fields.body(command.job), **fields.run(command), death=dict(command.death)
            )

    def _send_callbacks(self, command: m.SendCallbacks) -> None:
        _, child = self._find(command.slot, command.child)
        if child is not None:
            self._tell_child(child, "callbacks", nonce=command.nonce, names=command.names)

    def _send_answer(self, command: m.SendAnswer) -> None:
        _, child = self._find(command.slot, command.child)
        if child is not None:
            what = {"number": command.number, "stored": command.error is None, "error": command.error}
            self._tell_child(child, "checkpoint", b"", nonce=command.nonce, **what)

    def _retire(self, command: m.Retire) -> None:
        _, child = self._find(command.slot, command.child)
        if child is not None:
            self._tell_child(child, "retire")

    def _watch(self, command: m.Watch) -> None:
        self._tell_warden(
            command.slot,
            command.child,
            "watch",
            nonce=command.nonce,
            job_type=command.job.job_type[:LONGEST_TYPE],
            job_id=str(command.job.job_id),
            attempt=command.job.attempts,
            limit=command.limits.timeout,
            memory=command.limits.memory,
            started=command.started,
        )

    def _take_stack(self, command: m.TakeStack) -> None:
        self._ask_stack(command.slot, command.child, command.nonce, STACK_BEFORE_KILL)

    def _ask_stack(self, slot: str, number: int, nonce: int, patience: float) -> None:
        _, child = self._find(slot, number)
        if child is not None:
            child.stacks += 1
            self._tell_warden(slot, number, "stack", nonce=nonce, patience=patience)

    def _interrupt(self, command: m.Interrupt) -> None:
        order = {"nonce": command.nonce, "reason": command.reason, "signal": command.signal}
        self._tell_warden(command.slot, command.child, "interrupt", **order)

    def _terminate(self, command: m.Terminate) -> None:
        self._tell_warden(command.slot, command.child, "terminate", nonce=command.nonce)

    def _kill(self, command: m.Kill) -> None:
        self._tell_warden(command.slot, command.child, "kill", nonce=command.nonce)

    def _replace_idle(self, command: m.ReplaceIdle) -> None:
        self._tell_warden(command.slot, command.child, "replace-idle", nonce=command.nonce)

    def _revoke(self, command: m.Revoke) -> None:
        self._tell_warden(command.slot, command.child, "revoke", nonces=command.nonces)

    def _set_trust(self, command: m.Trust) -> None:
        self._trust.until(command.until)

    # -----------------------------------------------------------------------------------------------------------------
    # Children: what their warden says

    def _child_started(self, warden: _Warden, child: _Child, word: Message) -> None:
        """Only now is the child listened to: its messages are known by its pid."""
        (pidfd,) = word.fds
        child.pid, child.pidfd = int(word["pid"]), os.dup(pidfd)
        self._listen(child.wire.fileno(), partial(self._on_child, warden, child))
        self._listen(child.printed.fd, partial(self._on_output, warden, child))
        self._post(m.ChildStarted(warden.slot, child.number, child.pid))

    def _fork_failed(self, warden: _Warden, child: _Child, word: Message) -> None:
        self._forget_child(warden)
        self._post(m.ChildBootFailed(warden.slot, child.number, str(word["error"]), forked=False))

    def _child_exited(self, warden: _Warden, child: _Child, word: Message) -> None:
        ended = m.Exit(
            exit_code=word["exit_code"],
            term_signal=word["term_signal"],
            cpu_s=word["cpu_s"],
            max_rss=word["max_rss"],
            leftovers=word["leftovers"],
            survivors=tuple(word["survivors"]),
            by_kernel=word["term_signal"] == signal.SIGKILL and self._oom_kills.killed(word["out_of_memory"]),
        )
        self._last_words(warden, child)
        self._forget_child(warden)
        self._post(m.ChildExited(warden.slot, child.number, ended))

    def _unkillable(self, warden: _Warden, child: _Child, word: Message) -> None:
        self._keep_output(warden, child)
        self._post(m.ChildUnkillable(warden.slot, child.number, tuple(word["survivors"])))

    def _spared(self, warden: _Warden, child: _Child, word: Message) -> None:
        self._post(m.RunSpared(warden.slot, child.number, word["nonce"]))

    def _revoked(self, warden: _Warden, child: _Child, word: Message) -> None:
        nonce = fields.whole(word["nonce"])
        child.jobs.pop(nonce, None)
        self._post(m.RunRevoked(warden.slot, child.number, nonce))

    def _kill_acknowledged(self, warden: _Warden, child: _Child, word: Message) -> None:
        self._post(m.KillAcknowledged(warden.slot, child.number))

    def _verdict(self, warden: _Warden, child: _Child, word: Message) -> None:
        self._post(m.Verdict(warden.slot, child.number, word["nonce"], word["computing"], word["since"]))

    def _stack(self, warden: _Warden, child: _Child, word: Message) -> None:
        child.stacks -= 1
        self._answer(warden, child, word["text"])
        if word["text"] is not None:
            self._post(m.StackTaken(warden.slot, child.number, word["nonce"], word["text"]))

    def _stalled(self, warden: _Warden, child: _Child, word: Message) -> None:
        self._post(m.Stalled(warden.slot, child.number, word["nonce"], word["seconds"]))

    def _answer(self, warden: _Warden, child: _Child, text: str | None) -> None:
        askers, child.askers = child.askers, []
        for job, then in askers:
            then(Stack(warden.slot, child.pid, job, text))

    def _memory(self, warden: _Warden, child: _Child, word: Message) -> None:
        self._post(m.MemoryHeld(warden.slot, child.number, word["nonce"], word["held"]))

    def _progress(self, warden: _Warden, child: _Child, word: Message) -> None:
        done = None if word["done"] is None else fields.number(word["done"], 1000) / 1000
        note = plain(fields.text(word["note"]), LONGEST_NOTE)
        self._post(m.ProgressTold(warden.slot, child.number, word["nonce"], done, note))

    # -----------------------------------------------------------------------------------------------------------------
    # Children: what they say

    def _on_child(self, warden: _Warden, child: _Child) -> bool:
        """Take what the child has sent; true if there may be more."""
        if child.stacks:  # the warden has told where it was before it rang, and that is to be heard first
            self._on_warden(warden)
        if child.gone:
            return False
        received = child.wire.receive()
        garbage = received.garbage
        for word in received.messages:
            handle = self._words_of_child.get(word.op)
            word.close()
            try:
                if word.sender != child.pid:
                    raise ValueError("it comes from a process that the job forked, and is not the child's word")
                if handle is None:
                    raise ValueError("no message is called so")
                handle(warden, child, word)
            except fields.NO_WORD:
                garbage += 1
        if garbage:
            self._count_garbage(warden, child, garbage)
        if received.closed:
            self._deafen(child.wire.fileno())
        return bool(received.messages or received.garbage)

    def _count_garbage(self, warden: _Warden, child: _Child, count: int) -> None:
        before, child.garbage = child.garbage, child.garbage + count
        if before < TOO_MUCH_GARBAGE <= child.garbage:
            self._post(m.Garbage(warden.slot, child.number))

    def _last_words(self, warden: _Warden, child: _Child) -> None:
        """Take what is still under way from a child that has ended."""
        child.stacks = 0
        visits = TOO_MUCH_GARBAGE
        while visits and self._on_child(warden, child):
            visits -= 1
        child.printed.drain()
        self._keep_output(warden, child)

    def _forget_child(self, warden: _Warden) -> None:
        child, warden.child = warden.child, None
        if child is None:
            return
        child.gone = True
        self._leave_run(child)
        self._answer(warden, child, None)
        child.printed.close()
        self._deafen(child.wire.fileno())
        child.wire.close()
        if child.pidfd >= 0:
            os.close(child.pidfd)

    def _child_ready(self, warden: _Warden, child: _Child, word: Message) -> None:
        self._post(m.ChildReady(warden.slot, child.number, fields.job_types(word.get("job_types"))))

    def _child_boot_error(self, warden: _Warden, child: _Child, word: Message) -> None:
        error = fields.text(word["error"])
        child.printed.drain()
        self._post(m.ChildBootFailed(warden.slot, child.number, error))

    def _job_started(self, warden: _Warden, child: _Child, word: Message) -> None:
        self._begin(warden, child, _nonce(child, word["nonce"]))

    def _begin(self, warden: _Warden, child: _Child, nonce: int) -> None:
        child.printed.begin(child.jobs[nonce])
        child.run = nonce
        self._post(m.JobStarted(warden.slot, child.number, nonce))

    def _checkpoint_given(self, warden: _Warden, child: _Child, word: Message) -> None:
        """That we have it is said at once: the child sends no other before it hears that."""
        nonce, number = _nonce(child, word["nonce"]), fields.whole(word["number"])
        if not 0 < len(word.body) <= self._settings.options.max_checkpoint:
            raise ValueError("it is no checkpoint")
        self._tell_child(child, "checkpoint", nonce=nonce, number=number)
        self._post(m.CheckpointGiven(warden.slot, child.number, nonce, number, word.body, word["awaited"] is True))

    def _job_returned(self, warden: _Warden, child: _Child, word: Message) -> None:
        event = m.JobReturned(
            warden.slot,
            child.number,
            _nonce(child, word["nonce"]),
            word.body or None,
            fields.number(word["wall_s"]),
            fields.number(word["cpu_s"]),
            fields.whole(word["max_rss"]),
            word["clean"] is True,
            fields.number(word["worked_s"]),
        )
        if word["unread"] is True:
            child.printed.drain()
        else:  # it is all here, and what is in the pipe by now is of the next run
            child.printed.end_line()
        self._keep_output(warden, child)
        begun = fields.whole(word.get("begun", 0))
        if begun:
            _nonce(child, begun)
        child.jobs.pop(event.nonce, None)
        self._leave_run(child)
        self._post(event)
        if begun:
            self._begin(warden, child, begun)

    def _strategy_asked(self, warden: _Warden, child: _Child, word: Message) -> None:
        event = m.StrategyAsked(
            warden.slot,
            child.number,
            nonce=_nonce(child, word["nonce"]),
            reason=fields.reason(word["reason"]),
            error=fields.error(word["error"]),
            wall_s=fields.number(word["wall_s"]),
            cpu_s=fields.number(word["cpu_s"]),
            max_rss=fields.whole(word["max_rss"]),
            leftovers=word["leftovers"] is True,
        )
        child.printed.drain()
        self._keep_output(warden, child)
        self._post(event)

    def _job_raised(self, warden: _Warden, child: _Child, word: Message) -> None:
        event = m.JobRaised(
            warden.slot,
            child.number,
            nonce=_nonce(child, word["nonce"]),
            reason=fields.reason(word["reason"]),
            error=fields.error(word["error"]),
            interrupted=word["interrupted"] is True,
            clean_interrupt=word["clean_interrupt"] is True,
            strategy=fields.strategy(word["strategy"]),
            strategy_error=None if word["strategy_error"] is None else fields.error(word["strategy_error"]),
            wall_s=fields.number(word["wall_s"]),
            cpu_s=fields.number(word["cpu_s"]),
            max_rss=fields.whole(word["max_rss"]),
            clean=word["clean"] is True,
            worked_s=fields.number(word["worked_s"]),
            leftovers=word["leftovers"] is True,
        )
        child.printed.drain()
        self._keep_output(warden, child)
        self._post(event)

    def _callback_begun(self, warden: _Warden, child: _Child, word: Message) -> None:
        self._post(
            m.CallbackBegun(warden.slot, child.number, _nonce(child, word["nonce"]), fields.callback(word["name"]))
        )

    def _callbacks_done(self, warden: _Warden, child: _Child, word: Message) -> None:
        nonce = _nonce(child, word["nonce"])
        errors = {fields.callback(name): fields.error(error) for name, error in fields.mapping(word["errors"]).items()}
        child.printed.drain()
        child.jobs.pop(nonce, None)
        self._leave_run(child)
        self._post(m.CallbacksDone(warden.slot, child.number, nonce, errors))

    # -----------------------------------------------------------------------------------------------------------------
    # Children: what they print

    def _on_output(self, warden: _Warden, child: _Child) -> None:
        """Read a little. First what the child has said: ``started`` tells whose lines these are."""
        if not child.gone:
            self._on_child(warden, child)
        if not child.gone:
            child.printed.read()

    def _leave_run(self, child: _Child) -> None:
        job = child.printed.leave()
        if job is not None:
            self.over(job.job_id)

    def _keep_output(self, warden: _Warden, child: _Child) -> None:
        """Tell what the job printed last, before the event that says how it ended."""
        text = child.printed.last()
        if text is not None:
            self._post(m.OutputKept(warden.slot, child.number, child.run, text))

    # -----------------------------------------------------------------------------------------------------------------
    # The selector

    def _listen(self, fd: int, call: Callable[[], Any]) -> None:
        self._selector.register(fd, EVENT_READ, call)

    def _deafen(self, fd: int) -> None:
        """Stop listening; nothing where that is done already."""
        with suppress(KeyError):
            self._selector.unregister(fd)


# ---------------------------------------------------------------------------------------------------------------------
# Processes


def _signal(pidfd: int, signum: int) -> None:
    if pidfd >= 0:
        with suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(pidfd, signum)


def _has_ended(pidfd: int, seconds: float) -> bool:
    watch = poll()
    watch.register(pidfd, POLLIN)
    return bool(watch.poll(max(0.0, seconds) * 1000))


def _wait_for(warden: _Warden) -> str:
    """Wait for a warden whose template is gone: it may have come to us, and then we learn how it ended."""
    if warden.pidfd < 0:
        return "it was not started"
    try:
        found = os.waitid(os.P_PIDFD, warden.pidfd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return "it ended after its template"
    if found is None:
        return "it does not end"
    return f"exit code {found.si_status}" if found.si_code == os.CLD_EXITED else f"signal {found.si_status}"


def _how(returncode: int) -> str:
    return f"signal {-returncode}" if returncode < 0 else f"exit code {returncode}"


def _carries(pid: int, mark: str) -> bool:
    """Tell whether a process belongs to this incarnation: by its cookie, or (a process title overwrites that) by the
    lock file that it holds."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ:
            if f"GANGER_COOKIE={mark}".encode() in environ.read():
                return True
        fds = f"/proc/{pid}/fd"
        return any(mark in os.readlink(f"{fds}/{number}") for number in os.listdir(fds))
    except OSError:
        return False


def _nonce(child: _Child, value: Any) -> int:
    """The run that a child's message is about: one that it was sent, and has not reported the end of."""
    nonce = fields.whole(value)
    if nonce not in child.jobs:
        raise ValueError("the child has no such run")
    return nonce
