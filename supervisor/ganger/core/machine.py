"""The state machine of the supervisor: ``handle(event, now) -> [command]``.

It composes the pool (slots and runs), the book (the database) and the phases of shutdown, and owns the few decisions
that concern more than one of them: when to claim, what a policy does to a run, when everything is over and with which
exit code. The loop drives it in production, a fake clock in the tests.

An event is only taken in; whatever is *due* happens in ``Tick``, which the driver sends after each batch of events and
when ``deadline`` has come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar
from uuid import UUID

from ganger.core import messages as m
from ganger.core import rules as bounds
from ganger.core.book import Book
from ganger.core.job import AFTER_HANDLER, CANCELS, FENCED, Run
from ganger.core.job import Phase as RunPhase
from ganger.core.pool import Pool
from ganger.core.rules import Rules, shares
from ganger.core.shutdown import ASKED, TITLES, TOLD, Phase, interrupt_at
from ganger.core.slot import Slot


class Machine:
    """``rng`` gives numbers in [0, 1) for jitter, ``new_id`` names claims."""

    def __init__(self, rules: Rules, rng: Callable[[], float], new_id: Callable[[], UUID]) -> None:
        self.rules = rules
        self.commands: list[m.Command] = []
        self.book = Book(rules, rng, new_id, self.commands.append)
        self.pool = Pool(rules, rng, self.commands.append, self.book.store)
        self.phase = Phase.RUNNING
        self.asked: float | None = None  # when it was first asked to stop (mono)
        self.exit_code = 0
        self.template = 0  # generation of the template that was started last
        self.loaded = 0  # of the one that new wardens come from; 0: there is none
        self.outdated: set[int] = set()  # of those that have wardens still, at jobs that were begun with them
        self.reload_wanted = False  # asked for while a template was loading
        self.reloads = 0  # that were begun
        self.stale = False  # the newest code did not load, so jobs go on with the old
        self.template_ready = False  # one has been ready
        self.template_limit: float | None = None  # when the present one must be
        self.template_failures = 0
        self.template_at: float | None = None  # when to try the next template
        self.jobs_taken = 0
        self.settled_at: float | None = None  # when the last run was gone, at shutdown
        self.closing_at: float | None = None  # when wardens and template were told to leave
        self.finished = False
        self.title: m.TitleChanged | None = None

    # ---- the two doors ---------------------------------------------------------------------------------------------

    def start(self, now: m.Now) -> list[m.Command]:
        """Begin: load the handler module and register, side by side."""
        self.pool.share_cores()
        self._start_template(now)
        self.book.register(now)
        return self._take()

    def handle(self, event: m.Event, now: m.Now) -> list[m.Command]:
        """Take in one event and say what is to be done."""
        if self.finished:
            return []
        self._check_lease(now)
        kind = type(event)
        if kind in self.HANDLERS:
            self.HANDLERS[kind](self, event, now)
        else:
            Pool.HANDLERS[kind](self.pool, event, now)
        self.pool.stir(event)
        return self._take()

    def deadline(self, now: m.Now) -> float | None:
        """Seconds from ``now`` until a Tick is due; None: not before the next event."""
        dues = [*self.pool.deadlines(), *self.book.deadlines(now)]
        if self._claims():
            dues += self.book.claim_deadlines(now, *self._claimable())
        dues += [due for due in (self.template_limit, self.template_at) if due is not None]
        if self.phase is not Phase.RUNNING:
            dues += self._shutdown_deadlines()
        return max(0.0, min(dues) - now.mono) if dues else None

    def lull(self) -> float:
        """Seconds that whatever comes may wait, so that more of it is taken in together: a turn costs much of what it
        costs for one event or for many, and while jobs are short all CPUs are wanted for them."""
        return self.pool.lull() if self._claims() else 0.0

    def _take(self) -> list[m.Command]:
        taken = self.commands.copy()
        self.commands.clear()
        return taken

    def _emit(self, name: str, **data: Any) -> None:
        self.commands.append(m.Emit(name, data))

    # ---- time ------------------------------------------------------------------------------------------------------

    def _tick(self, _: m.Tick, now: m.Now) -> None:
        if self.template_at is not None and now.mono >= self.template_at:
            self._start_template(now)
        if self.template_limit is not None and now.mono >= self.template_limit:
            error = f"the handler module was not loaded within {self.rules.boot_timeout:g} s"
            self.commands.append(m.StopTemplate(self.template))
            self._template_failed(m.TemplateFailed(self.template, error), now)
        for generation in sorted(self.outdated):
            if not self.pool.has_wardens_of(generation):
                self.outdated.remove(generation)
                self.commands.append(m.StopTemplate(generation))
        if self.pool.booted_badly is not None:
            self._give_up(2, now)
        if self.phase is not Phase.RUNNING:
            self._drain(now)
        self.pool.tick(now)
        self._register_again(now)
        self.book.beat(now, TITLES[self.phase], lambda: self._info(now))
        if self._claims():
            types = tuple(self.pool.job_types) if self.rules.known_types_only and self.pool.job_types else None
            self.book.ask(now, *self._claimable(), types)
            if self._nothing_left():
                self._stop(m.Stop(), now)
        self.book.send(now, gather=self.lull() > 0)
        self._retitle()

    def _claims(self) -> bool:
        return self.template_ready and self.phase is Phase.RUNNING

    def _claimable(self) -> tuple[list[int], list[int]]:
        """Free slots per lane, and how many jobs to claim for it."""
        free = self.pool.free()
        wanted = self.pool.wanted(free)
        if self.rules.job_limit is not None:
            left = self.rules.job_limit - self.jobs_taken
            wanted = [min(count, max(0, left)) for count in free]
        return free, wanted

    def _nothing_left(self) -> bool:
        """Whether a supervisor that is to stop by itself has come to its end."""
        if self.pool.has_work or self.book.owed or self.book.claim is not None:
            return False
        if self.rules.job_limit is not None and self.jobs_taken >= self.rules.job_limit:
            return True
        return (self.rules.until_empty or self.rules.job_limit is not None) and self.book.empty

    # ---- the lease -------------------------------------------------------------------------------------------------

    def _check_lease(self, now: m.Now) -> None:
        """Before anything else: a run that may be somebody else's by now is killed and its outcome dropped. So a
        supervisor that was frozen does not take its wardens' kills for crashes."""
        if self.book.lease.supervisor_id is not None and not self.book.lease.trusted(now.boot):
            self._lose_lease("it could not be renewed in time", now)

    def _lose_lease(self, why: str, now: m.Now) -> None:
        self._emit("lease-lost", why=why, supervisor_id=self.book.lease.supervisor_id)
        self.book.lose(now, running=self.pool.has_work)
        for slot, _ in self.pool.runs:
            self.pool.order(slot, FENCED, now, grace=0.0)
        for run in list(self.pool.waiting()):
            self.pool.disown(run)

    def _register_again(self, now: m.Now) -> None:
        """After a lost lease, once nothing that ran under it is left."""
        if self.book.former is None or self.book.registering is not None or self.closing_at is not None:
            return
        if self.pool.has_work or self.book.owed or self.book.saving:
            return  # registering releases our former rows: first what was finished, and what is to be kept
        self.commands.append(m.Trust(float("inf")))  # nothing runs: the wardens need not kill
        self.book.register(now)

    # ---- events of the database ------------------------------------------------------------------------------------

    def _registered(self, event: m.Registered, now: m.Now) -> None:
        self.book.registered(event, now)
        if self.closing_at is not None:
            self.closing_at = now.mono
            self.commands.append(m.Deregister(event.supervisor_id))
            return
        told = {"slots": sum(self.pool.sizes), "released": event.released or None}
        self._emit("supervisor-started", supervisor_id=event.supervisor_id, **told)

    def _claimed(self, event: m.Claimed, now: m.Now) -> None:
        wanted = self.book.claimed(event, now) and self.phase is Phase.RUNNING and self.book.lease.trusted(now.boot)
        if wanted:
            for pace in self.pool.paces:
                pace.answered(now.mono - self.book.asked_at, now.mono)
        for job, lane in zip(event.jobs, event.lanes, strict=True):
            self.jobs_taken += 1
            run = Run(job, 0, m.Limits(None, 0, None, "wait"), now.boot, now.mono)
            if job.cancel:
                archive = m.Archive(job.job_id, job.run_id, "cancelled", "cancelled", {})
                self.book.store(archive, ("job-cancelled", run.about))
            elif not wanted or not self.pool.assign(job, lane, now):
                self._emit("job-released", **run.about)
                self.book.store(m.Release(job.job_id, job.run_id, "never-started", fresh=job.fresh))
        self.pool.spread(now)

    def _claim_lost(self, event: m.ClaimLost, now: m.Now) -> None:
        self.book.claim_lost(event, now)

    def _stored(self, event: m.Stored, now: m.Now) -> None:
        self.book.stored(event, now)

    def _checkpoint_given(self, event: m.CheckpointGiven, now: m.Now) -> None:
        run = self.pool.giver(event)
        if run is not None:
            self.book.save(run.job, event)

    def _checkpoint_stored(self, event: m.CheckpointStored, now: m.Now) -> None:
        self.book.saved(event)
        self.pool.answer(event)

    def _beaten(self, event: m.Beaten, now: m.Now) -> None:
        if event.supervisor_id != self.book.lease.supervisor_id:  # it waited through an outage that cost us the lease
            return
        if event.rows is None:
            self._lose_lease("another supervisor has taken our jobs", now)
            return
        held = [*(run for _, run in self.pool.runs), *self.pool.waiting()]
        running = {run.job.run_id: run.claimed for run in held}
        strangers, gone, cancels = self.book.beaten(event, now, running)
        for row in strangers:
            self._emit("job-released", job_id=str(row.job_id))
            self.book.store(m.Release(row.job_id, row.run_id, "claim-lost"))
        for slot, run in self.pool.runs:
            if run.job.run_id in gone:
                self._emit("outcome-refused", **run.about, run_id=str(run.job.run_id))
                self.pool.order(slot, FENCED, now, grace=0.0)
        for run in list(self.pool.waiting()):
            if run.job.run_id in gone:
                self._emit("outcome-refused", **run.about, run_id=str(run.job.run_id))
                self.pool.disown(run)
        self._cancel(cancels, now)

    def _looked(self, event: m.Looked, now: m.Now) -> None:
        if self.book.lease.supervisor_id is not None:
            self._cancel(event.cancels, now)
            self.book.looked(event, now)

    def _cancel(self, rows: list[m.HeldRow] | tuple[m.HeldRow, ...], now: m.Now) -> None:
        orders = {row.run_id: row.cancel for row in rows if row.cancel in CANCELS}
        for slot, run in self.pool.runs:
            reason = orders.get(run.job.run_id)
            if reason is not None and run.reason != reason:
                self.pool.order(slot, reason, now, grace=0.0 if reason == "killed" else None)

    def _swept(self, event: m.Swept, now: m.Now) -> None:
        self.book.swept(event, now)
        for job_id in event.jobs:
            self._emit("job-lost", job_id=str(job_id), from_supervisor=event.supervisor_id)

    def _idle_said(self, event: m.IdleSaid, now: m.Now) -> None:
        self.book.idle_said(event, now)

    def _notified(self, _: m.Notified, now: m.Now) -> None:
        self.book.hurry(now)

    def _notifications_off(self, _: m.NotificationsOff, now: m.Now) -> None:
        self._emit("notifications-off", poll_interval=self.rules.poll_interval)

    def _pruned(self, event: m.Pruned, now: m.Now) -> None:
        self._emit("archive-pruned", jobs=event.jobs)

    def _database_lost(self, event: m.DatabaseLost, now: m.Now) -> None:
        self.book.database_lost(event, now)

    def _database_back(self, event: m.DatabaseBack, now: m.Now) -> None:
        self.book.database_back(event, now)

    def _poll_failed(self, event: m.PollFailed, now: m.Now) -> None:
        self._emit("job-worker-error", error=event.error)
        self.book.complain(event.error)

    def _deregistered(self, _: m.Deregistered, now: m.Now) -> None:
        self.book.deregistered()

    # ---- events of the template ------------------------------------------------------------------------------------

    def _start_template(self, now: m.Now) -> None:
        self.template += 1
        self.template_at = None
        self.template_limit = now.mono + self.rules.boot_timeout
        self.commands.append(m.StartTemplate(self.template))

    def _reload(self, _: m.Reload, now: m.Now) -> None:
        """What runs ends on the old code, which stays in place until the new one is loaded."""
        if self.phase is not Phase.RUNNING:
            return
        if self.template_limit is not None:  # it may have read the old files already
            self.reload_wanted = True
            return
        self.reloads += 1
        self._emit("reloading")
        self._start_template(now)

    def _loads(self, generation: int) -> bool:
        return generation == self.template and self.template_limit is not None

    def _template_is_ready(self, event: m.TemplateReady, now: m.Now) -> None:
        if not self._loads(event.generation):
            return
        if self.loaded:
            self.outdated.add(self.loaded)
            self._emit("reloaded")
        self.loaded = event.generation
        self.stale = False
        self.template_ready = True
        self.template_failures = 0
        if event.threads:
            self._emit("template-threads", threads=list(event.threads))
        self.pool.template_ready(event, now)
        self.book.hurry(now)
        self._is_through(now)

    def _template_failed(self, event: m.TemplateFailed, now: m.Now) -> None:
        if not self._loads(event.generation):
            return
        self._emit("boot-failed", error=event.error)
        self.stale = bool(self.loaded)
        if not self.loaded:
            self._template_gone(now)
        self._is_through(now)

    def _template_exited(self, event: m.TemplateExited, now: m.Now) -> None:
        if self.closing_at is not None:
            return
        error = f"the template process ended ({event.how})"
        if event.generation == self.loaded:
            self.loaded = 0
            self.pool.template_alive = False
            self._emit("boot-failed", error=error)
            if self.template_limit is None:
                self._template_gone(now)
        else:
            self._template_failed(m.TemplateFailed(event.generation, error), now)

    def _is_through(self, now: m.Now) -> None:
        """A template is loaded, or will not be."""
        self.template_limit = None
        if self.reload_wanted:
            self.reload_wanted = False
            self._reload(m.Reload(), now)

    def _template_gone(self, now: m.Now) -> None:
        """There is none any more. The first one that fails ends the supervisor; a later one is tried again, ever more
        slowly. Wardens and children of the old one go on: their sockets do not pass through it."""
        self.pool.template_alive = False
        if not self.template_ready:
            self._give_up(2, now)
            return
        self.template_failures += 1
        self.template_at = now.mono + min(bounds.BACKOFF_LIMIT, 2.0 ** (self.template_failures - 1) - 1)

    # ---- slots -----------------------------------------------------------------------------------------------------

    def _resize(self, event: m.Resize, now: m.Now) -> None:
        """As many slots as somebody asks for; a lane without one would be a queue that nobody serves any more."""
        lanes, slots = self.rules.lanes, sum(self.pool.sizes)
        if self.phase is not Phase.RUNNING:
            self._emit("slots-not-changed", slots=slots, why="it is shutting down")
        elif event.slots < len(lanes):
            self._emit("slots-not-changed", slots=slots, why="one is the least for each lane")
        elif event.slots > self.rules.most_slots:
            self._emit("slots-not-changed", slots=slots, why=f"there may be {self.rules.most_slots} at most")
        elif event.slots != slots:
            self.pool.resize(shares(lanes, event.slots))
            sizes = {lane.name: size for lane, size in zip(lanes, self.pool.sizes, strict=True)}
            self._emit("slots-changed", slots=event.slots, was=slots, lanes=sizes, leaving=sum(self.pool.surplus))

    def _more_slots(self, event: m.MoreSlots, now: m.Now) -> None:
        self._resize(m.Resize(sum(self.pool.sizes) + event.count), now)

    # ---- shutdown --------------------------------------------------------------------------------------------------

    def _stop(self, event: m.Stop, now: m.Now) -> None:
        asked = ASKED[event.how]
        if self.phase is not Phase.RUNNING and asked <= self.phase:
            self._emit("already-shut-down")
            return
        if self.phase is Phase.RUNNING:
            self.asked = now.mono
            self.pool.draining = True
            self._emit("shutting-down", policy=self.rules.shutdown, running=len(self.pool.runs))
            for slot, run in self.pool.runs:
                run.undecided = run.verdict is None
                self.pool.watch(slot)
        self.phase = max(self.phase, asked)
        self._drain(now)

    def _stop_now(self, event: m.StopNow, now: m.Now) -> None:
        self._emit("job-worker-error", error=event.error)
        self._give_up(1, now)

    def _give_up(self, exit_code: int, now: m.Now) -> None:
        self.exit_code = self.exit_code or exit_code
        self._stop(m.Stop("kill"), now)

    def _drain(self, now: m.Now) -> None:
        assert self.asked is not None
        self.pool.recall()
        limit = self.rules.shutdown_timeout
        if self.phase is Phase.DRAINING and limit is not None and now.mono >= self.asked + limit:
            self.phase = Phase.TERMINATING
        for slot, run in self.pool.runs:
            if self.phase is not Phase.DRAINING:
                self.pool.order(slot, "shutdown", now, grace=0.0 if self.phase is Phase.KILLING else None)
            else:
                self._drain_run(slot, run, now)
        self._wind_up(now)

    def _drain_run(self, slot: Slot, run: Run, now: m.Now) -> None:
        """One run under its own policy."""
        assert self.asked is not None
        if run.limits.shutdown == "terminate":
            self.pool.order(slot, "shutdown", now)
            return
        if run.death is not None or run.phase in AFTER_HANDLER or run.reason is not None:
            return
        if run.phase is not RunPhase.RUNNING:
            self.pool.order(slot, "shutdown", now)
            return
        if run.limits.shutdown in TOLD and not run.told:
            run.told = True
            self.pool.tell(slot)
        due = self._interrupt_at(run)
        if due is not None and now.mono >= due:
            self.pool.order(slot, "shutdown", now, ask_only=True)

    def _interrupt_at(self, run: Run) -> float | None:
        """When to interrupt a handler that is awaited; None: not as far as is known now, or there is none."""
        assert self.asked is not None
        if run.phase is not RunPhase.RUNNING or run.reason is not None:
            return None
        return interrupt_at(run, self.asked, self.rules.interrupt_after)

    def _shutdown_deadlines(self) -> list[float]:
        assert self.asked is not None
        dues = []
        if self.phase is Phase.DRAINING and self.rules.shutdown_timeout is not None:
            dues.append(self.asked + self.rules.shutdown_timeout)
        if self.phase is Phase.DRAINING:
            dues += [due for _, run in self.pool.runs if (due := self._interrupt_at(run)) is not None]
        if self.closing_at is not None:
            dues.append(self._leaves_at())
        elif self.settled_at is not None:
            dues.append(self._gives_up_at())
        return dues

    def _wind_up(self, now: m.Now) -> None:
        """Leave, step by step: no run, no claim in flight, nothing owed, no process, no registration."""
        if self.pool.has_work or self.finished:
            return
        if self.settled_at is None:
            self.settled_at = now.mono
        if (self.book.owed or self.book.claim is not None) and now.mono < self._gives_up_at():
            return
        if self.closing_at is None:
            self.closing_at = now.mono
            self.pool.close()
            registration = self.book.lease.supervisor_id or self.book.former
            if registration is not None:
                self.commands.append(m.Deregister(registration))
        if now.mono < self._leaves_at() and (self.pool.wardens_left() or self.registered):
            return
        if self.book.owed or self.book.claim is not None or self.book.unsure is not None:
            self.exit_code = self.exit_code or 1
        self.finished = True
        assert self.asked is not None
        self._emit("completed-shutdown", wall_s=now.mono - self.asked, unstored=len(self.book.owed))
        self.commands += [m.StopTemplate(each) for each in sorted({self.template, self.loaded, *self.outdated} - {0})]
        self.commands.append(m.Finish(self.exit_code))

    def _gives_up_at(self) -> float:
        """Until when a database that is away is waited for; for somebody in a hurry no longer than for processes."""
        assert self.settled_at is not None
        patience = self.rules.store_timeout
        return self.settled_at + (min(patience, bounds.CLOSE_LIMIT) if self.phase is Phase.KILLING else patience)

    def _leaves_at(self) -> float:
        """When to leave whatever is left. Rows that only the end of our registration gives back are waited for like
        outcomes that are not stored."""
        assert self.closing_at is not None
        limit = self.closing_at + bounds.CLOSE_LIMIT
        return limit if self.book.unsure is None else max(limit, self._gives_up_at())

    @property
    def registered(self) -> bool:
        """Whether the database has, or may have, a registration of ours."""
        book = self.book
        return any(each is not None for each in (book.lease.supervisor_id, book.former, book.registering))

    # ---- what is shown ---------------------------------------------------------------------------------------------

    def _running(self) -> list[int]:
        counts = [0] * len(self.rules.lanes)
        for slot, _ in self.pool.runs:
            counts[slot.lane] += 1
        return counts

    def _info(self, now: m.Now) -> dict[str, Any]:
        """What the supervisor's row tells of it, and, by job id, of the progress of its runs and of those time limits
        that do not stand in their rows."""
        running = self._running()
        return {
            "slots": len(self.pool.slots),
            "running": sum(running),
            "lanes": {
                lane.name: {"queues": list(lane.queues), "slots": slots, "running": count}
                for lane, slots, count in zip(self.rules.lanes, self.pool.counts, running, strict=True)
            },
            "progress": {
                str(run.job.job_id): {"done": told.done, "note": told.note, "left": told.left(now.mono)}
                for _, run in self.pool.runs
                if (told := run.progress) is not None
            },
            "limits": {
                str(run.job.job_id): run.limits.timeout
                for _, run in self.pool.runs
                if run.limits.timeout != run.job.timeout
            },
        }

    def state(self, now: m.Now) -> dict[str, Any]:
        """How everything stands, for whoever looks for what is wrong. Times are seconds."""
        lease = self.book.lease
        return {
            "phase": TITLES[self.phase],
            "slots": {slot.name: self._standing(slot, now) for slot in self.pool.slots.values()},
            "waiting": sum(1 for _ in self.pool.waiting()),
            "owed": len(self.book.owed),
            "trusted": lease.trusted(now.boot),
            "template": self.template,
        }

    def _standing(self, slot: Slot, now: m.Now) -> str:
        run = slot.run
        words = [slot.state.value]
        if run is not None:
            words += [run.job.job_type, str(run.job.job_id), f"attempt {run.job.attempts}", run.phase.value]
            words.append(f"for {now.mono - run.since:.1f} s")
            words += [run.reason] if run.reason else []
        return " ".join(words)

    def _retitle(self) -> None:
        running = self._running()
        lanes = tuple((lane.name, count) for lane, count in zip(self.rules.lanes, self.pool.counts, strict=True))
        title = m.TitleChanged(TITLES[self.phase], sum(running), len(self.pool.slots), lanes)
        if title != self.title:
            self.title = title
            self.commands.append(title)

    HANDLERS: ClassVar[dict[type, Callable[[Any, Any, m.Now], None]]] = {
        m.Tick: _tick,
        m.Stop: _stop,
        m.StopNow: _stop_now,
        m.Reload: _reload,
        m.Resize: _resize,
        m.MoreSlots: _more_slots,
        m.Registered: _registered,
        m.Claimed: _claimed,
        m.ClaimLost: _claim_lost,
        m.Stored: _stored,
        m.CheckpointGiven: _checkpoint_given,
        m.CheckpointStored: _checkpoint_stored,
        m.Beaten: _beaten,
        m.Looked: _looked,
        m.Swept: _swept,
        m.IdleSaid: _idle_said,
        m.Notified: _notified,
        m.NotificationsOff: _notifications_off,
        m.Pruned: _pruned,
        m.DatabaseLost: _database_lost,
        m.DatabaseBack: _database_back,
        m.PollFailed: _poll_failed,
        m.Deregistered: _deregistered,
        m.TemplateReady: _template_is_ready,
        m.TemplateFailed: _template_failed,
        m.TemplateExited: _template_exited,
    }
