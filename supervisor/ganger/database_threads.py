"""The threads that own the supervisor's connections, so that the loop never waits for the database.

Three, because their waits must not add up: *store* claims jobs and stores outcomes, *lease* renews the lease and looks
at the others, *listen* hears notifications and prunes the archive. A stalled outcome thus never starves the lease.
Commands come in through ``do``, which never blocks; answers go out through ``post``, called from any of the threads.

Losing the database is normal here. Outcomes are kept until the database has answered for them; a claim is never
carried out late, because its rows would be ours without anybody waiting for them: it is answered with ClaimLost, as is
every claim whose answer did not come. Beats and looks are only worth sending fresh, so only the newest is kept; so is
the newest checkpoint of a run, which is written before whatever becomes of the run.

This file decides nothing about jobs. A thread ends only in ``close``.
"""

from __future__ import annotations

import contextlib
import random
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar
from uuid import UUID

import psycopg

from ganger import database, jobs
from ganger.core.messages import (
    Archive,
    Beat,
    Beaten,
    CheckpointStored,
    Claim,
    Claimed,
    ClaimLost,
    DatabaseBack,
    DatabaseCommand,
    DatabaseEvent,
    DatabaseLost,
    Deregister,
    Deregistered,
    IdleSaid,
    Look,
    Looked,
    NotificationsOff,
    Notified,
    Outcome,
    PollFailed,
    Pruned,
    Register,
    Registered,
    Release,
    Retry,
    SaveCheckpoint,
    SayIdle,
    Stored,
    Sweep,
    Swept,
)
from ganger.database import Connection, SupervisorFacts, Watermark

BATCH_ROWS: Final = 200  # outcomes stored by one statement
BATCH_BYTES: Final = 8 << 20  # of results stored by one statement, unless one alone has more
CHECKPOINTS: Final = 0.5  # seconds between two checkpoints of a run for which nobody waits
CLAIM_PATIENCE: Final = 10.0  # seconds; a claim that waited longer behind other work is not carried out
TRIES: Final = 3  # of a transaction that met a deadlock or a lock
BACKOFF: Final = (0.1, 0.2, 0.5, 1.0, 2.0)  # seconds between tries after a failure; the last one repeats
RESCAN: Final = 5.0  # seconds; a queue is claimed from the start at least as often
TURN: Final = 0.05  # seconds after which to claim again while another supervisor promotes
PROBE: Final = 5.0  # seconds between signs of life of the listening connection
JANITOR: Final = 60.0  # seconds between looks for runs under no registration, and for jobs to be pruned
NOBODY: Final = 0  # the registration that the janitor's finds belonged to: none
CLOSE_LIMIT: Final = 5.0  # seconds that close waits for the threads

_T = TypeVar("_T")


class DatabaseThreads:
    """The database as the loop sees it: commands in, events out.

    ``post`` is called from other threads and must not block. ``boot_clock`` tells the time that counts suspension, in
    seconds. ``vacant(incarnation)`` tells whether that incarnation's lock is on this host and nobody holds it. What
    ended more than ``retention`` seconds ago is deleted from the archive; None: nothing is.
    """

    def __init__(
        self,
        conninfo: str,
        schema: str,
        post: Callable[[DatabaseEvent], None],
        boot_clock: Callable[[], float],
        facts: SupervisorFacts,
        vacant: Callable[[UUID], bool] = lambda incarnation: False,
        retention: float | None = None,
    ) -> None:
        outage, watermarks = _Outage(post), Watermarks(boot_clock)
        self._shared = _Shared(conninfo, schema, post, boot_clock, facts, vacant, retention, outage, watermarks)
        self._store = _Store(self._shared)
        self._lease = _Lease(self._shared)
        self._listen = _Listen(self._shared)
        self._owners = (self._store, self._lease, self._listen)

    def start(self) -> None:
        """Start the threads. They connect by themselves, and again whenever they must."""
        for owner in self._owners:
            owner.start()

    def do(self, *commands: DatabaseCommand) -> None:
        """Hand over commands; those that are handed over together are carried out together where they can be. Never
        blocks; may be called from any thread."""
        lease: list[DatabaseCommand] = []
        store: list[DatabaseCommand] = []
        for command in commands:
            if isinstance(command, Claim) and self._shared.outage.on:
                self._shared.post(ClaimLost(command.claim_id))
            else:
                (lease if isinstance(command, Beat | Look | Register) else store).append(command)
        self._lease.hand(lease)
        self._store.hand(store)

    def close(self) -> None:
        """End the threads, each after the statement it is at. What is still waiting is dropped. Harmless twice."""
        for owner in self._owners:
            owner.stop()
        limit = time.monotonic() + CLOSE_LIMIT
        for owner in self._owners:
            owner.join(limit - time.monotonic())


# ---------------------------------------------------------------------------------------------------------------------
# What the threads share


class _Outage:
    """Tells of an outage once, whichever thread notices it first and however many do.

    ``era`` counts outages. A connection of an earlier era that turns out to be broken is a late sight of an outage
    that is over: its owner connects again without a word.
    """

    def __init__(self, post: Callable[[DatabaseEvent], None]) -> None:
        self.era = 0
        self._post = post
        self._lock = threading.Lock()
        self._since: float | None = None
        self._without: set[object] = set()  # the threads that have no connection

    @property
    def on(self) -> bool:
        return self._since is not None

    def lost(self, who: object, error: BaseException, era: int) -> bool:
        """Take in that ``who`` has lost a connection of that era. False: it is old news."""
        with self._lock:
            if self._since is None and era < self.era:
                return False
            self._without.add(who)
            if self._since is None:
                self.era += 1
                self._since = time.monotonic()
                self._post(DatabaseLost(_sentence(error)))
            return True

    def back(self, who: object) -> int:
        """Take in that ``who`` has a connection, and return the era it belongs to."""
        with self._lock:
            self._without.discard(who)
            if self._since is not None and not self._without:
                away, self._since = time.monotonic() - self._since, None
                self._post(DatabaseBack(away))
            return self.era


class Watermarks:
    """Where the next claim of each queue may start, so that it does not walk over all that was claimed before.

    The rule: a claim may start at the watermark only right after a full claim of its queue, one that got all it asked
    for. Once something may have become ready behind a watermark (a notification, a promotion, a sweep, a stored retry
    or release, a reconnection), all are forgotten, and the next claim starts from the start. So does one every
    ``RESCAN`` seconds, for what nobody tells of: in a deep backlog every claim is full.

    ``forget`` may be called from any thread, the rest only by the one that claims. ``clock`` is in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._marks: dict[str, Watermark] = {}
        self._scanned: dict[str, float] = {}  # when each queue was last claimed from the start
        self._claiming: dict[str, float] | None = None  # since the last ``before``: what becomes of _scanned

    def before(self, queues: Sequence[str]) -> dict[str, Watermark]:
        """Return where a claim of these queues may start; those that are not named start from the start."""
        now = self._clock()
        with self._lock:
            marks = {q: self._marks[q] for q in queues if q in self._marks and now - self._scanned[q] < RESCAN}
            self._claiming = {q: self._scanned[q] if q in marks else now for q in queues}
            return marks

    def after(self, reached: Mapping[str, Watermark | None]) -> None:
        """Take in how far that claim got, unless something was forgotten meanwhile: it may not have seen it."""
        with self._lock:
            if self._claiming is None:
                return
            for queue, mark in reached.items():
                self._marks.pop(queue, None)
                if mark is not None:
                    self._marks[queue], self._scanned[queue] = mark, self._claiming[queue]

    def forget(self) -> None:
        """Let the next claim of every queue start from the start."""
        with self._lock:
            self._marks.clear()
            self._claiming = None


@dataclass(slots=True)
class _Shared:
    conninfo: str
    schema: str
    post: Callable[[DatabaseEvent], None]
    boot_clock: Callable[[], float]
    facts: SupervisorFacts
    vacant: Callable[[UUID], bool]
    retention: float | None
    outage: _Outage
    watermarks: Watermarks
    supervisor_id: int | None = None  # our newest registration
    heeded: frozenset[str] = frozenset()  # queues whose notifications are for us


@dataclass(frozen=True, slots=True)
class _Order:
    """A command and when it was handed over (boot)."""

    command: DatabaseCommand
    at: float


class _Owner:
    """A thread that owns one connection: it works while it has one, and gets a new one when it is lost."""

    name = ""

    def __init__(self, shared: _Shared) -> None:
        self.shared = shared
        self.schema = shared.schema
        self.post = shared.post
        self.conn: Connection | None = None
        self.stopping = False
        self._era = 0
        self._failures = 0
        self._next_try = 0.0  # monotonic
        self._complaint = ""
        self._spoken_to = False  # the server has sent something unasked
        self._orders: list[_Order] = []
        self._lock = threading.Lock()
        self._bell, self._ringer = socket.socketpair()  # a byte: look. Unlike a condition, it can be polled
        self._bell.setblocking(False)
        self._ringer.setblocking(False)
        self._thread = threading.Thread(target=self._run, name=f"ganger-{self.name}", daemon=True)

    # ---- from outside ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def hand(self, commands: Sequence[DatabaseCommand]) -> None:
        if not commands:
            return
        now = self.shared.boot_clock()
        with self._lock:
            self._orders += [_Order(command, now) for command in commands]
        self._ring()

    def stop(self) -> None:
        self.stopping = True
        self._ring()

    def join(self, limit: float) -> None:
        if self._thread.ident is not None:
            self._thread.join(max(0.0, limit))
        else:
            self._hang_up()

    def _ring(self) -> None:
        with contextlib.suppress(OSError):  # full: it is ringing; closed: the thread has ended
            self._ringer.send(b"\0")

    # ---- what the three differ in ----------------------------------------------------------------------------------

    def take(self, orders: Sequence[_Order]) -> None:
        """Sort what came in."""

    def work(self, conn: Connection) -> None:
        """Do what is waiting. May raise at any point, and is then called again."""
        raise NotImplementedError

    def cut(self) -> None:
        """The database is lost, or does not do what it should: answer what must not wait."""

    def connected(self, conn: Connection) -> None:
        """A new connection is there."""

    def listen(self, conn: Connection) -> None:
        """The server has sent something unasked: that it goes, most likely, and then this raises."""
        database.probe(conn)

    def busy(self) -> bool:
        """Whether something is waiting for the next try."""
        return False

    def due(self) -> float | None:
        """When there will be something to do without an order (monotonic)."""
        return None

    # ---- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self.stopping:
                self.take(self._taken())
                if time.monotonic() >= self._next_try:
                    self._try()
                self._wait()
        finally:
            self._drop()
            self._hang_up()

    def _hang_up(self) -> None:
        self._bell.close()
        self._ringer.close()

    def _taken(self) -> list[_Order]:
        with self._lock:
            orders, self._orders = self._orders, []
        return orders

    def _try(self) -> None:
        try:
            if self.conn is None:
                name = f"ganger {self.shared.facts.name} {self.name}"
                self.conn = database.connect(self.shared.conninfo, name=name)
                self._era = self.shared.outage.back(self)
                self.connected(self.conn)
            if self._spoken_to:
                self._spoken_to = False
                self.listen(self.conn)
            self.work(self.conn)
            self._failures = 0
            self._complaint = ""
        except Exception as error:  # whatever it is, this thread goes on
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        old_news = False
        if database.lost(error, self.conn):
            era = self.shared.outage.era if self.conn is None else self._era
            self._drop()
            old_news = not self.shared.outage.lost(self, error, era)
        elif str(error) != self._complaint:
            self._complaint = str(error)
            self.post(PollFailed(_sentence(error)))
        self.cut()
        pause = 0.0 if old_news else BACKOFF[min(self._failures, len(BACKOFF) - 1)] * random.uniform(0.8, 1.2)
        self._failures += 1
        self._next_try = time.monotonic() + pause

    def _drop(self) -> None:
        if self.conn is not None:
            with contextlib.suppress(Exception):
                self.conn.close()
        self.conn = None

    def _wait(self) -> None:
        """Wait until there is something to do: besides the database itself, the only place where the thread waits."""
        now = time.monotonic()
        until = self._next_try if self.conn is None or self.busy() or now < self._next_try else self.due()
        patience = None if until is None else max(0.0, until - now)
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        if self.conn is not None and not self.conn.closed:
            poll.register(self.conn, select.POLLIN)
        ready = poll.poll(None if patience is None else patience * 1000 + 1)
        self._spoken_to = any(fd != self._bell.fileno() for fd, _ in ready)
        with contextlib.suppress(BlockingIOError):
            while self._bell.recv(4096):
                pass


# ---------------------------------------------------------------------------------------------------------------------
# Store: claims and outcomes


@dataclass(slots=True)
class _Owed:
    """An outcome that the database has not answered for. ``late``: it has waited through an outage."""

    outcome: Outcome
    late: bool


class _Store(_Owner):
    name = "store"

    def __init__(self, shared: _Shared) -> None:
        super().__init__(shared)
        self._owed: dict[UUID, _Owed] = {}  # by run_id, in the order they came
        self._given: dict[UUID, SaveCheckpoint] = {}  # checkpoints that came since the last look
        self._checkpoints: dict[UUID, SaveCheckpoint] = {}  # the newest of each run
        self._written: dict[UUID, float] = {}  # when (monotonic) a checkpoint of a run was written, a moment ago
        self._claims: list[_Order] = []
        self._sweeps: dict[int, Sweep] = {}
        self._idle: dict[tuple[str, ...], SayIdle] = {}
        self._deregister: Deregister | None = None

    def hand(self, commands: Sequence[DatabaseCommand]) -> None:
        """A checkpoint stands for the older ones of its run at once: a statement may take long, and they are large."""
        given = [command for command in commands if isinstance(command, SaveCheckpoint)]
        if given:
            with self._lock:
                for checkpoint in given:
                    _put(self._given, checkpoint)
            self._ring()
        super().hand([command for command in commands if not isinstance(command, SaveCheckpoint)])

    def take(self, orders: Sequence[_Order]) -> None:
        with self._lock:  # after the orders were taken: what was given before an outcome is not left behind it
            given, self._given = self._given, {}
        for checkpoint in given.values():
            _put(self._checkpoints, checkpoint)
        for order in orders:
            match order.command:
                case Archive() | Retry() | Release() as outcome:
                    self._owed[outcome.run_id] = _Owed(outcome, late=self.shared.outage.on)
                case Claim():
                    self._claims.append(order)
                case Sweep() as sweep:
                    self._sweeps[sweep.supervisor_id] = sweep
                case SayIdle() as idle:
                    self._idle[idle.queues] = idle
                case Deregister() as deregister:
                    self._deregister = deregister
        if self.conn is None and self.shared.outage.on:
            self.cut()

    def busy(self) -> bool:
        return bool(self._owed or self._deregister)

    def connected(self, conn: Connection) -> None:
        self.shared.watermarks.forget()

    def cut(self) -> None:
        self.shared.watermarks.forget()
        for owed in self._owed.values():
            owed.late = True
        for order in self._claims:
            if isinstance(order.command, Claim):
                self.post(ClaimLost(order.command.claim_id))
        for supervisor_id in self._sweeps:
            self.post(Swept(supervisor_id, ()))
        self._claims.clear()
        self._sweeps.clear()

    def due(self) -> float | None:
        return min((self._checkpoint_due(order) for order in self._checkpoints.values()), default=None)

    def work(self, conn: Connection) -> None:
        self._save_checkpoints(conn)
        self._store(conn)
        self._sweep(conn)
        self._claim(conn)
        self._say_idle(conn)
        if self._deregister is not None:
            database.deregister(conn, self.schema, self._deregister.supervisor_id)
            self._deregister = None
            self.post(Deregistered())

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    def _checkpoint_due(self, order: SaveCheckpoint) -> float:
        """When (monotonic) it is to be written: at once, but for a loop that saves without end and without waiting."""
        hurried = order.wait or order.run_id in self._owed or self._deregister is not None
        return 0.0 if hurried else self._written.get(order.run_id, 0.0) + CHECKPOINTS

    def _save_checkpoints(self, conn: Connection) -> None:
        now = time.monotonic()
        self._written = {run: at for run, at in self._written.items() if now < at + CHECKPOINTS}
        for order in [order for order in self._checkpoints.values() if self._checkpoint_due(order) <= now]:
            error = self._saved(conn, order)
            del self._checkpoints[order.run_id]
            self._written[order.run_id] = now
            self.post(CheckpointStored(order.run_id, order.number, error))

    def _saved(self, conn: Connection, order: SaveCheckpoint) -> str | None:
        """Write it; returns why it cannot be kept, if so."""
        try:
            if _again(partial(database.save_checkpoint, conn, self.schema, order)):
                return None
        except (psycopg.Error, UnicodeError) as error:
            if database.bad_data(error):
                return f"data cannot be stored: {_sentence(error)}"
            raise
        return "this run is not the job's any more: it was lost, or taken for lost, and nothing was written"

    # ---- outcomes --------------------------------------------------------------------------------------------------

    def _store(self, conn: Connection) -> None:
        while self._owed and not self.stopping:
            batch = self._batch()
            stored = self._stored(conn, batch)
            if not all(isinstance(outcome, Archive) for outcome in batch):
                self.shared.watermarks.forget()
            for run_id, how in stored.items():
                self.post(Stored(run_id, how, self._owed.pop(run_id).late))

    def _batch(self) -> list[Outcome]:
        batch: list[Outcome] = []
        size = 0
        for owed in self._owed.values():
            size += len(owed.outcome.result or b"") if isinstance(owed.outcome, Archive) else 0
            if batch and (len(batch) == BATCH_ROWS or size > BATCH_BYTES):
                break
            batch.append(owed.outcome)
        return batch

    def _stored(self, conn: Connection, batch: Sequence[Outcome]) -> Mapping[UUID, str]:
        """Store a batch; where a value in it cannot be stored, halve it until the bad one stands alone."""
        try:
            return _again(lambda: _write(conn, self.schema, batch))
        except (psycopg.Error, UnicodeError) as error:
            if not database.bad_data(error):
                raise
            if len(batch) == 1:
                minimal = _minimal(batch[0], error)
                return _again(lambda: _write(conn, self.schema, [minimal]))
        middle = len(batch) // 2
        return {**self._stored(conn, batch[:middle]), **self._stored(conn, batch[middle:])}

    # ---- claims ----------------------------------------------------------------------------------------------------

    def _claim(self, conn: Connection) -> None:
        while self._claims:
            order = self._claims[0]
            assert isinstance(order.command, Claim)
            if self.shared.boot_clock() - order.at > CLAIM_PATIENCE:
                answer: DatabaseEvent = ClaimLost(order.command.claim_id)
            else:
                answer = self._claimed(conn, order.command)  # where it raises, cut() answers
            del self._claims[0]
            self.post(answer)

    def _claimed(self, conn: Connection, order: Claim) -> Claimed:
        queues = list(dict.fromkeys(name for lane in order.lanes for name in lane.queues))
        before = database.outlook(conn, self.schema, queues)
        next_due = before.next_due
        if next_due == 0:
            mine = _again(lambda: database.promote(conn, self.schema))
            self.shared.watermarks.forget()
            next_due = database.outlook(conn, self.schema, queues).next_due
            if next_due is not None and not mine:
                next_due = max(next_due, TURN)
        marks = self.shared.watermarks.before(queues)
        jobs, lanes, more, reached = _again(lambda: database.claim(conn, self.schema, order, marks))
        self.shared.watermarks.after(reached)
        left = not order.ask_left or bool(jobs) or database.something_left(conn, self.schema, queues)
        return Claimed(order.claim_id, jobs, lanes, more, next_due, before.horizon, left)

    # ---- the rest --------------------------------------------------------------------------------------------------

    def _sweep(self, conn: Connection) -> None:
        while self._sweeps:
            order = next(iter(self._sweeps.values()))
            swept = _again(partial(database.sweep, conn, self.schema, order.supervisor_id, order.beat))
            del self._sweeps[order.supervisor_id]
            self.shared.watermarks.forget()
            self.post(swept)

    def _say_idle(self, conn: Connection) -> None:
        if conn.pooled:  # nobody would hear what we ask for
            self._idle.clear()
        while self._idle:
            order = next(iter(self._idle.values()))
            supervisor_id = self.shared.supervisor_id
            if supervisor_id is not None:
                self.shared.heeded |= frozenset(order.queues)
                horizon = database.say_idle(conn, self.schema, supervisor_id, order.queues, order.seconds)
                if order.seconds > 0:
                    self.post(IdleSaid(horizon))
            del self._idle[order.queues]


def _put(among: dict[UUID, SaveCheckpoint], newest: SaveCheckpoint) -> None:
    """In place of an older one, whose waiting handler waits for this one now."""
    older = among.get(newest.run_id)
    among[newest.run_id] = replace(newest, wait=newest.wait or (older is not None and older.wait))


def _write(conn: Connection, schema: str, batch: Sequence[Outcome]) -> dict[UUID, str]:
    """Store outcomes, and say for each run how it ended: "stored", "cancelled" or "refused".

    A row that is not there under its run may have been stored by an earlier try whose answer was lost.
    """
    ends = [outcome for outcome in batch if isinstance(outcome, Archive)]
    returns = [outcome for outcome in batch if not isinstance(outcome, Archive)]
    stored = database.finish(conn, schema, ends) if ends else set()
    back, cancelled = database.give_back(conn, schema, returns) if returns else (set(), set())
    how = dict.fromkeys(stored | back, "stored") | dict.fromkeys(cancelled, "cancelled")
    missing = [outcome for outcome in batch if outcome.run_id not in how]
    found = database.find_outcomes(conn, schema, [(outcome.job_id, outcome.run_id) for outcome in missing])
    for outcome in missing:
        wanted = outcome.status if isinstance(outcome, Archive) else "back"
        there = found.get(outcome.run_id)
        how[outcome.run_id] = "stored" if there == wanted else "cancelled" if there == "cancelled" else "refused"
    return how


def _minimal(outcome: Outcome, error: BaseException) -> Outcome:
    """What can be stored of an outcome that cannot: a success without its result is a failure."""
    message = _sentence(error).encode("ascii", "backslashreplace").decode()
    facts = {
        "error": {"type": type(error).__name__, "message": f"The outcome could not be stored as it was: {message}"}
    }
    if not isinstance(outcome, Archive):
        return replace(outcome, entry={**facts, "reason": "unstorable"})
    if outcome.result is not None:
        return replace(outcome, status="failure", reason="bad-result", facts=facts, result=None)
    return replace(outcome, facts=facts)


# ---------------------------------------------------------------------------------------------------------------------
# Lease: registration, beats, looks


class _Lease(_Owner):
    name = "lease"

    def __init__(self, shared: _Shared) -> None:
        super().__init__(shared)
        self._register: _Order | None = None
        self._beat: Beat | None = None
        self._look: Look | None = None
        self._registered_at = float("-inf")  # boot
        self._swept_at = time.monotonic()

    def take(self, orders: Sequence[_Order]) -> None:
        for order in orders:
            match order.command:
                case Register():
                    self._register = order
                case Beat() as beat:
                    self._beat = beat
                case Look() as look:
                    self._look = look

    def busy(self) -> bool:
        return bool(self._register or self._beat or self._look)

    def work(self, conn: Connection) -> None:
        if self._register is not None:
            self._do_register(conn, self._register)
            self._register = None
        if self._beat is not None:
            self._do_beat(conn, self._beat)
            self._beat = None
        if self._look is not None:
            self._do_look(conn, self._look)
            self._look = None

    def _do_register(self, conn: Connection, order: _Order) -> None:
        assert isinstance(order.command, Register)
        former = order.command.former
        if order.at <= self._registered_at:  # asked again while we were at it: one registration is enough
            return
        sent = self.shared.boot_clock()
        supervisor_id, released = _again(lambda: database.register(conn, self.schema, self.shared.facts, former))
        self.shared.supervisor_id = supervisor_id
        self._registered_at = self.shared.boot_clock()
        self.shared.watermarks.forget()
        self.post(Registered(supervisor_id, sent, released))

    def _do_beat(self, conn: Connection, order: Beat) -> None:
        def renew() -> Beaten:
            sent = self.shared.boot_clock()
            held = database.beat(conn, self.schema, order.supervisor_id, order.phase, order.info)
            return Beaten(order.supervisor_id, sent, held)

        self.post(_again(renew))

    def _do_look(self, conn: Connection, order: Look) -> None:
        cancels, others = _again(lambda: database.look(conn, self.schema, order.supervisor_id, self.shared.vacant))
        self.post(Looked(cancels, others))
        if time.monotonic() - self._swept_at >= JANITOR:
            self._swept_at = time.monotonic()
            orphans = _again(lambda: database.sweep_orphans(conn, self.schema))
            if orphans:
                self.shared.watermarks.forget()
                self.post(Swept(NOBODY, orphans))


# ---------------------------------------------------------------------------------------------------------------------
# Listen


class _Listen(_Owner):
    name = "listen"

    def __init__(self, shared: _Shared) -> None:
        super().__init__(shared)
        self._probe_at = 0.0  # monotonic
        self._told_off = False  # that notifications are
        self._prune_at = float("inf") if shared.retention is None else 0.0  # monotonic
        self._pruned = 0  # jobs, in this round

    def due(self) -> float | None:
        return min(self._probe_at, self._prune_at)

    def connected(self, conn: Connection) -> None:
        if not conn.pooled:
            database.listen(conn, self.schema)
        elif not self._told_off:
            self._told_off = True
            self.post(NotificationsOff())
        self._notified()  # what was said until now, nobody heard

    def listen(self, conn: Connection) -> None:
        heard = [notice.payload for notice in conn.notifies(timeout=0)]
        if not self.shared.heeded.isdisjoint(heard):
            self._notified()

    def _notified(self) -> None:
        self.shared.watermarks.forget()  # before the claim that this leads to
        self.post(Notified())

    def work(self, conn: Connection) -> None:
        if time.monotonic() >= self._probe_at:
            database.probe(conn)
            self._probe_at = time.monotonic() + PROBE
            self.listen(conn)  # what came while it waited for the answer
        if time.monotonic() >= self._prune_at:
            self._prune(conn)
            self.listen(conn)

    def _prune(self, conn: Connection) -> None:
        """Delete some jobs whose retention is over, and soon more, where there are: after a pause as long as that took.
        So no notification waits for more than one batch, and the server has time for others."""
        assert self.shared.retention is not None
        began = time.monotonic()
        self._prune_at = began + JANITOR  # also where it fails
        some = jobs.prune_some(conn, self.schema, self.shared.retention)
        self._pruned += some
        if some == jobs.PRUNED:
            now = time.monotonic()
            self._prune_at = now + (now - began)
        elif self._pruned:
            self.post(Pruned(self._pruned))
            self._pruned = 0


# ---------------------------------------------------------------------------------------------------------------------


def _again(transaction: Callable[[], _T]) -> _T:
    """Carry out a transaction, again if it met a deadlock or a lock."""
    for _ in range(TRIES - 1):
        try:
            return transaction()
        except psycopg.Error as error:
            if not database.passing(error):
                raise
            time.sleep(random.uniform(0.001, 0.02))
    return transaction()


def _sentence(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if text.endswith((".", "?", "!")) else f"{text}."
