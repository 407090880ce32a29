"""The queue in PostgreSQL as plain functions: one per statement or transaction, on a connection made by ``connect``.

Each function is one transaction, READ COMMITTED and READ WRITE whatever the server's defaults are (a sweep under an
older snapshot would leave orphans), and either does what it says or raises psycopg's error with nothing done. The
statements and what they guarantee are in ``ganger.sql``. Nothing here waits, retries or decides: ``database_threads``
retries, the core decides. ``schema`` is always the name of the schema.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg import IsolationLevel, errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import PGconn, Ping
from psycopg.rows import TupleRow

from ganger.core.messages import (
    Archive,
    Claim,
    HeldRow,
    Job,
    OtherSupervisor,
    Release,
    Retry,
    SaveCheckpoint,
    Swept,
)
from ganger.sql import migration, newest_version, statement

SCHEMA: Final = "proletarian"
OLDEST_SERVER: Final = 130000  # PostgreSQL 13
STATEMENT_TIMEOUT: Final = 10.0  # seconds, on the server
ANSWER_MARGIN: Final = 2.0  # seconds; an answer that is later than the server's own limit by so much will not come
PATIENCE: Final = 600.0  # seconds that a question of people, over the whole archive, may take
LOCK_TIMEOUT: Final = 2.0  # seconds that an upgrade waits for a table, and others behind it
LOCK_TRIES: Final = 30
LOCK_PAUSE: Final = 1.0  # seconds in which those others get on
SESSION_TRIES: Final = 5
WAIT: Final = 0.25  # seconds between tries to reach a database at start
ID_BITS: Final = 48  # of a registration's id
PROMOTE_MOST: Final = 500  # rows a promotion takes at once
PROMOTE_LIMIT: Final = 0.5  # seconds for all of them; outcomes are waiting to be stored
GIVE_BACK_MOST: Final = 500  # rows given back by one statement of a sweep
LONGEST_DELAY: Final = 3650 * 86400.0  # seconds; a retry later than that is meant as never
ALLOWING: Final = (
    'Do it as the owner of the schema, or let the owner run "ganger install --roles" and GRANT ganger_supervisor, '
    "ganger_enqueuer or ganger_viewer to this role."
)
CROWDED: Final = ("too many clients", "too many connections", "connection slots")
_NOT_STORABLE: Final = re.compile("[\\0\\ud800-\\udfff]")

# What a connection has unless the caller's conninfo says otherwise: a peer that is gone is noticed within 15 s.
_CONNECTION: Final = {
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
    "client_encoding": "utf8",
    "target_session_attrs": "primary",  # after a failover the old address may lead to a standby, which is read-only
}


class DatabaseUnreachable(Exception):
    """The database did not answer in time; the message says where it was looked for and what came back."""


class SchemaMissing(Exception):
    """There is nothing of ours in the schema; the message says what to do."""


class SchemaMismatch(Exception):
    """The schema is of another version, or somebody else's; the message says what to do."""


class SchemaBusy(Exception):
    """The tables were in use all the time, so nothing was changed; the message says by whom."""


class NotAllowed(Exception):
    """The role may not do this; the message says what its owner can grant."""


# ---------------------------------------------------------------------------------------------------------------------
# Connections


class Connection(psycopg.Connection[TupleRow]):
    """A psycopg connection on which every statement has a deadline of our own.

    ``statement_timeout`` is the server's, and TCP's own timeouts are about the peer's kernel: neither helps against a
    frozen server, or against a proxy that has lost the other side.

    ``pooled``: something stands between that lends us another server connection for each transaction. Settings are
    then made in each transaction, nothing is prepared, and notifications do not come.
    """

    pooled = False
    answer_limit: float | None = None  # seconds
    limits: Mapping[str, int] = MappingProxyType({})  # of the server, for the statement "session"

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **keywords: Any) -> Any:
        if self.answer_limit is not None:
            gen = _limited(gen, self.answer_limit)
        try:
            return super().wait(gen, *args, **keywords)
        except Unanswered:
            self.close()  # what it would say next answers a question that nobody asks any more
            raise


class Unanswered(psycopg.OperationalError):
    """The answer to a statement did not come in time. It may have been carried out or not."""


def _limited(gen: Generator[Any, Any, Any], limit: float) -> Generator[Any, Any, Any]:
    """What psycopg does for one statement, given up when ``limit`` seconds have passed: it asks ten times a second."""
    end = time.monotonic() + limit
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() >= end:
                raise Unanswered(f"The database has not answered for {limit:g} seconds.")
            wanted = gen.send(ready)
    except StopIteration as done:
        return done.value


def connect(
    conninfo: str, *, name: str = "ganger", statement_timeout: float = STATEMENT_TIMEOUT, **settings: Any
) -> Connection:
    """Open a connection that the other functions can rely on.

    ``name`` is shown by ``pg_stat_activity``; ``statement_timeout`` is in seconds, 0 for none; ``settings`` are
    libpq's keywords and stand above the conninfo. Raises psycopg.OperationalError.
    """
    given = {**_CONNECTION, "application_name": name[:63], **conninfo_to_dict(conninfo), **settings}
    conn = Connection.connect(make_conninfo(**given), autocommit=True)
    try:
        conn.isolation_level = IsolationLevel.READ_COMMITTED
        conn.read_only = False
        conn.deferrable = False
        conn.answer_limit = STATEMENT_TIMEOUT + ANSWER_MARGIN
        conn.limits = {"statement_ms": round(statement_timeout * 1000), "idle_ms": round(statement_timeout * 3000)}
        _settle(conn)
        conn.answer_limit = statement_timeout + ANSWER_MARGIN if statement_timeout else None
    except BaseException:
        conn.close()
        raise
    return conn


def _settle(conn: Connection) -> None:
    """Find out whose connection it is, and make our settings on one that is ours alone.

    A pooler tells itself by its behaviour: it cannot know which server process will answer, so the one that it names
    at the start of a session is not the one that answers.
    """
    for last in (*[False] * (SESSION_TRIES - 1), True):
        try:
            row = conn.execute(statement("probe", SCHEMA)).fetchone()
            assert row is not None
            conn.pooled = row[0] != conn.info.backend_pid
            if conn.pooled:
                conn.prepare_threshold = None
            else:
                conn.execute(statement("session", SCHEMA), {**conn.limits, "local": False})
            return
        except errors.QueryCanceled:  # by somebody's statement_timeout, which leaves hardly the time to change it
            if last:
                raise


def wait_for_database(
    conninfo: str,
    schema: str = SCHEMA,
    limit: float = 30.0,
    *,
    name: str = "ganger",
    prunes: bool = False,
    on_wait: Callable[[str], object] = lambda error: None,
    stopped: Callable[[float], bool] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Connection:
    """Return a connection to a database whose schema fits.

    Tries for ``limit`` seconds; a server that is starting up or has too many clients is alive, and waited for without
    limit. ``on_wait`` is told the error of the first failure; ``stopped(seconds)`` replaces the sleep between two
    tries, and ends the waiting by returning true. Raises DatabaseUnreachable, SchemaMissing, SchemaMismatch, or
    NotAllowed where the role may not do what a supervisor does, of which ``prunes`` is a part only with --retention.
    """
    since, told = clock(), False
    while True:
        conn = None
        try:
            conn = connect(conninfo, name=name)
            check_schema(conn, schema)
            check_rights(conn, schema, prunes=prunes)
            return conn
        except BaseException as error:
            # One that goes away between the connection and the last look has not answered either.
            away = conn is None or lost(error, conn) or passing(error)
            if conn is not None:
                conn.close()
            if not away or not isinstance(error, psycopg.Error):
                raise
            reason = _first_line(error)
            if clock() - since >= limit and not alive(conninfo, error):
                raise DatabaseUnreachable(
                    f"The database at {where(conninfo)} did not answer within {limit:g} seconds: {reason} "
                    "Is the server running, and are the database URL, the user and the password right?"
                ) from error
            if not told:
                on_wait(reason)
            told = True
        if stopped is None:
            time.sleep(WAIT)
        elif stopped(WAIT):
            raise DatabaseUnreachable(f"Stopped while waiting for the database at {where(conninfo)}: {reason}")


def alive(conninfo: str, error: psycopg.Error) -> bool:
    """Whether a connection was refused by a server that is there and will take one soon."""
    if any(words in str(error) for words in CROWDED):  # libpq passes no code on when it cannot connect
        return True
    return PGconn.ping(make_conninfo(conninfo, connect_timeout="5").encode()) == Ping.REJECT


def where(conninfo: str) -> str:
    """Name a database for people, without its password."""
    known = conninfo_to_dict(conninfo)
    host = known.get("host") or known.get("hostaddr") or "the default host"
    return f"{host}, port {known.get('port') or 'default'}, database {known.get('dbname') or 'default'}"


@contextlib.contextmanager
def transaction(conn: Connection, *, limit: float | None = None) -> Iterator[None]:
    """A transaction of ours, with all that its statements rely on. ``limit``: seconds for each of them in place of the
    connection's, 0 for none."""
    usual = conn.answer_limit
    try:
        with conn.transaction():
            if conn.pooled:
                conn.execute(statement("session", SCHEMA), {**conn.limits, "local": True})
            if limit is not None:
                conn.execute(f"SET LOCAL statement_timeout = {round(limit * 1000)}")
                conn.answer_limit = limit + ANSWER_MARGIN if limit else None
            yield
    finally:
        conn.answer_limit = usual


@contextlib.contextmanager
def single(conn: Connection) -> Iterator[None]:
    """The same for one statement alone: PostgreSQL makes it a transaction by itself, under the settings of our session,
    with one way there and back in place of three. Behind a pooler it is like any other."""
    if conn.pooled:
        with transaction(conn):
            yield
    else:
        yield


def _row(conn: Connection, name: str, schema: str, values: Mapping[str, Any] | None = None) -> TupleRow | None:
    return conn.execute(statement(name, schema), values).fetchone()


def _rows(conn: Connection, name: str, schema: str, values: Mapping[str, Any] | None = None) -> list[TupleRow]:
    return conn.execute(statement(name, schema), values).fetchall()


def _first_line(error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0]
    return text if text.endswith((".", "?", "!")) else f"{text}."


# ---------------------------------------------------------------------------------------------------------------------
# Schema


def install(conn: Connection, schema: str = SCHEMA, *, roles: bool = False) -> list[int]:
    """Create the schema or bring it up to date, and return the versions that were applied.

    Does nothing where all is there; any number of installations may run at once. One transaction per version.
    ``roles`` also makes the roles for enqueuing, supervising and viewing, and grants them what they may do here; where
    they were granted it before, an upgrade grants it anew. Raises SchemaMismatch where the schema is newer than this
    code or belongs to something else, and SchemaBusy.
    """
    applied: list[int] = []
    while True:
        version = _unblocked(lambda: _install_next(conn, schema, roles))
        if version is None:
            return applied
        applied.append(version)


def _install_next(conn: Connection, schema: str, roles: bool) -> int | None:
    """Apply the next version, or with the last one there, None, the roles."""
    with transaction(conn, limit=0):
        _row(conn, "install_lock", schema)
        conn.execute(f"SET LOCAL lock_timeout = {round(LOCK_TIMEOUT * 1000)}")
        version = (_installed(conn, schema) or 0) + 1
        missing = version <= newest_version()
        if missing:
            if version == 1:
                conn.execute(statement("create_schema", schema))
            conn.execute(migration(version, schema).encode())
            conn.execute(statement("record_version", schema), {"version": version})
        if version >= newest_version() and (roles or (missing and _has_roles(conn, schema))):
            conn.execute(statement("roles", schema))
    return version if missing else None


def _has_roles(conn: Connection, schema: str) -> bool:
    row = _row(conn, "has_roles", schema)
    assert row is not None
    return bool(row[0])


def _unblocked(transaction: Callable[[], int | None]) -> int | None:
    """Carry out what needs a table for itself. It gives up quickly where it must wait, again and again: behind a
    waiting one every claim and every enqueue would wait too, for as long as anybody's transaction is open."""
    for tried in range(1, LOCK_TRIES + 1):
        try:
            return transaction()
        except errors.LockNotAvailable as error:
            if tried == LOCK_TRIES:
                raise SchemaBusy(
                    "The tables were in use all the time by transactions that stay open, so nothing was changed. "
                    "pg_stat_activity shows them, by xact_start; end them and try again."
                ) from error
        time.sleep(LOCK_PAUSE)
    raise AssertionError


def schema_sql(schema: str = SCHEMA, *, roles: bool = False) -> str:
    """Return what ``install`` would run on an empty database, for psql."""
    parts = [statement("create_schema", schema).decode() + ";\n"]
    for version in range(1, newest_version() + 1):
        record = statement("record_version", schema).decode() % {"version": version}
        parts.append(f"{migration(version, schema)}\n{record};\n")
    if roles:
        parts.append(statement("roles", schema).decode() + "\n")
    return "BEGIN;\n\n" + "\n".join(parts) + "\nCOMMIT;\n"


def check_schema(conn: Connection, schema: str = SCHEMA) -> None:
    """Return if the schema fits this code. Raises SchemaMissing, SchemaMismatch or NotAllowed."""
    try:
        with transaction(conn):
            version = _installed(conn, schema)
    except errors.InsufficientPrivilege as error:
        raise not_allowed(conn, schema, error) from error
    if version is None:
        raise SchemaMissing(
            f'The schema "{schema}" is not installed in this database: run "ganger install{_option(schema)}".'
        )
    if version < newest_version():
        raise SchemaMismatch(
            f'The schema "{schema}" has version {version}, this ganger needs version {newest_version()}: '
            f'run "ganger install{_option(schema)}" to upgrade it.'
        )


def check_rights(conn: Connection, schema: str = SCHEMA, *, prunes: bool = False) -> None:
    """Return if the role may do what a supervisor does (``prunes``: with a retention). Raises NotAllowed."""
    with transaction(conn):
        lacks = [what for (what,) in _rows(conn, "rights", schema, {"prunes": prunes})]
    if lacks:
        raise not_allowed(conn, schema, f"it lacks {', '.join(lacks)}")


def not_allowed(conn: Connection, schema: str, why: object) -> NotAllowed:
    """What to tell a role that may not do what it wants to do in our schema."""
    said = why.diag.message_primary if isinstance(why, psycopg.Error) else why
    return NotAllowed(f'The role {conn.info.user} may not do this in the schema "{schema}": {said}. {ALLOWING}')


def _installed(conn: Connection, schema: str) -> int | None:
    """The version that stands in the database; None for nothing of ours. Raises SchemaMismatch."""
    row = _row(conn, "version", schema)
    assert row is not None
    versioned, has_jobs, server, encoding = row
    if server < OLDEST_SERVER:
        raise SchemaMismatch(
            f"The server is PostgreSQL {server // 10000}, ganger needs PostgreSQL 13 or later: upgrade the server."
        )
    if encoding != "UTF8":
        raise SchemaMismatch(
            f"The database has the encoding {encoding}, which cannot hold every payload: "
            "create one with ENCODING 'UTF8'."
        )
    if not versioned:
        if has_jobs:
            raise SchemaMismatch(
                f'The schema "{schema}" has a table "job" that is not ganger\'s: choose another schema with --schema.'
            )
        return None
    version = _row(conn, "applied", schema)
    assert version is not None
    if version[0] > newest_version():
        raise SchemaMismatch(
            f'The schema "{schema}" has version {version[0]}, newer than version {newest_version()} of this ganger: '
            "install a newer ganger."
        )
    return int(version[0])


def _option(schema: str) -> str:
    return "" if schema == SCHEMA else f" --schema {schema}"


def reset(conn: Connection, schema: str = SCHEMA) -> None:
    """Delete every job and the whole archive. Supervisors go on; runs of theirs are killed."""
    with transaction(conn, limit=PATIENCE):
        conn.execute(statement("reset", schema))


# ---------------------------------------------------------------------------------------------------------------------
# Lease


@dataclass(frozen=True, slots=True)
class SupervisorFacts:
    """What a supervisor's row says of it. ``incarnation`` names its lock file."""

    incarnation: UUID
    name: str
    host: str
    pid: int
    lease_s: float


def register(conn: Connection, schema: str, facts: SupervisorFacts, former: int | None) -> tuple[int, int]:
    """Make a new registration, and release the rows of a former one of ours, uncounted, if nobody took them.

    Returns the id and how many rows went back.
    """
    values = {
        "supervisor_id": secrets.randbits(ID_BITS),
        "incarnation": facts.incarnation,
        "name": facts.name,
        "host": facts.host,
        "pid": facts.pid,
        "lease_s": facts.lease_s,
    }
    with transaction(conn):
        released = _abandon(conn, schema, former) if former is not None else 0
        row = _row(conn, "register", schema, values)
    assert row is not None
    return row[0], released


def deregister(conn: Connection, schema: str, supervisor_id: int) -> int:
    """Remove a registration; what it still holds goes back, uncounted. Returns how many rows that were."""
    with transaction(conn):
        return _abandon(conn, schema, supervisor_id)


def _abandon(conn: Connection, schema: str, supervisor_id: int) -> int:
    if _row(conn, "lock_own", schema, {"supervisor_id": supervisor_id}) is None:
        return 0
    runs = _evict(conn, schema, supervisor_id, Release(_NOBODY, _NOBODY, "lease-lost"))
    return len(runs)


def beat(
    conn: Connection, schema: str, supervisor_id: int, phase: str, info: Mapping[str, Any]
) -> tuple[HeldRow, ...] | None:
    """Renew the lease; return every run that the database thinks is ours, or None if the registration is gone.

    The beat is a transaction by itself: were our connection to fall silent in the middle of a longer one, the server
    would keep the registration locked for us, and nobody could sweep it.
    """
    values = {"supervisor_id": supervisor_id, "phase": phase, "info": _json(info)}
    with single(conn):
        if _row(conn, "beat", schema, values) is None:
            return None
    with single(conn):
        return tuple(HeldRow(*row) for row in _rows(conn, "held", schema, values))


def look(
    conn: Connection, schema: str, supervisor_id: int, vacant: Callable[[UUID], bool] = lambda incarnation: False
) -> tuple[tuple[HeldRow, ...], tuple[OtherSupervisor, ...]]:
    """Return the cancel orders on our runs, and the other registrations.

    ``vacant`` tells whether an incarnation's lock was found on this host and nobody holds it.
    """
    values = {"supervisor_id": supervisor_id}
    with transaction(conn):
        cancels = tuple(HeldRow(*row) for row in _rows(conn, "cancels", schema, values))
        others = _rows(conn, "others", schema, values)
    return cancels, tuple(
        OtherSupervisor(other, n, lease, vacant(incarnation)) for other, n, lease, incarnation in others
    )


def sweep(conn: Connection, schema: str, supervisor_id: int, beat: int) -> Swept:
    """Take a dead supervisor's rows back to the queue, each counted as a loss, if its beat is still ``beat``.

    Does nothing if it has beaten since, is gone, or somebody else is sweeping it.
    """
    with transaction(conn):
        if _row(conn, "lock_supervisor", schema, {"supervisor_id": supervisor_id, "beat": beat}) is None:
            return Swept(supervisor_id, ())
        runs = _evict(conn, schema, supervisor_id, _LOSS)
    return Swept(supervisor_id, tuple(job_id for job_id, _ in runs))


def sweep_orphans(conn: Connection, schema: str) -> tuple[UUID, ...]:
    """The janitor: runs under no registration go back to the queue, counted as lost. Returns the job ids."""
    with transaction(conn):
        runs = [(job_id, run_id) for job_id, run_id in _rows(conn, "orphans", schema)]
        _return(conn, schema, runs, _LOSS)
    return tuple(job_id for job_id, _ in runs)


def _evict(conn: Connection, schema: str, supervisor_id: int, manner: Release) -> list[tuple[UUID, UUID]]:
    """Give everything of a locked registration back, and remove it."""
    values = {"supervisor_id": supervisor_id}
    runs = [(job_id, run_id) for job_id, run_id in _rows(conn, "runs_of", schema, values)]
    _return(conn, schema, runs, manner)
    conn.execute(statement("drop_supervisor", schema), values)
    return runs


def _return(conn: Connection, schema: str, runs: Sequence[tuple[UUID, UUID]], manner: Release) -> None:
    for start in range(0, len(runs), GIVE_BACK_MOST):
        part = runs[start : start + GIVE_BACK_MOST]
        _give_back(
            conn,
            schema,
            [Release(job_id, run_id, manner.reason, loss=manner.loss, entry=manner.entry) for job_id, run_id in part],
        )


_NOBODY: Final = UUID(int=0)
_LOSS: Final = Release(_NOBODY, _NOBODY, "lost", loss=True, entry={"reason": "lost"})


# ---------------------------------------------------------------------------------------------------------------------
# Claim


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is known just before a claim. ``next_due``: seconds, None for no scheduled row in these queues."""

    horizon: int
    next_due: float | None


def outlook(conn: Connection, schema: str, queues: Sequence[str]) -> Outlook:
    """Return the oldest transaction that may still commit, and when the next scheduled row is due."""
    with single(conn):
        row = _row(conn, "outlook", schema, {"queues": list(queues)})
    assert row is not None
    return Outlook(*row)


def promote(conn: Connection, schema: str, most: int = PROMOTE_MOST, limit: float = PROMOTE_LIMIT) -> bool:
    """Make due rows ready, the urgent first, ``most`` at a time, until none is left or ``limit`` seconds have passed.

    False: another supervisor is at it.
    """
    end = time.monotonic() + limit
    while True:
        with transaction(conn):
            row = _row(conn, "promote", schema, {"most": most})
        if row is None or row[0] is None:
            return False
        if row[0] < most or time.monotonic() >= end:
            return True


@dataclass(frozen=True, slots=True)
class Watermark:
    """How far a claim of a queue got: to this priority, and nothing it took was due before ``process_at``; of the rows
    of this priority that were due just then (all that one transaction enqueued) it took those up to ``seq``.

    The next claim may pass over what lies before, which vacuum cannot remove while somebody holds an old snapshot: it
    looks only at rows as urgent as ``priority`` or more that are due after that. Whatever was ready before
    has been taken or is less urgent, so only a newcomer that is due in the past can be hidden: one that was committed
    late, back-dated, or given back. A new row is due now and is seen at once, however deep the backlog. A less urgent
    row waits while more urgent ones fill every claim, as it would anyway: it is never overtaken by one like it.
    """

    priority: int
    process_at: str
    seq: int = 0


_FROM_THE_START: Final = Watermark(32767, "-infinity")


def claim(
    conn: Connection, schema: str, order: Claim, watermarks: Mapping[str, Watermark] = MappingProxyType({})
) -> tuple[tuple[Job, ...], tuple[int, ...], tuple[bool, ...], dict[str, Watermark | None]]:
    """Claim for every lane what is free, from its queues in their order, in one transaction where there are several.

    A queue with a watermark is claimed from there on, the others from the start. Returns the jobs, the lane of each,
    for each lane whether it got all it asked for, and for each queue it claimed from the next watermark: None if the
    queue had less than was asked for.
    """
    jobs: list[Job] = []
    lanes: list[int] = []
    more: list[bool] = []
    marks: dict[str, Watermark | None] = {}
    asked = sum(len(lane.queues) for lane in order.lanes if lane.free)
    # What a claim took whose second half failed comes to light like the rows of any claim whose answer was lost.
    with single(conn) if asked == 1 else transaction(conn):
        for number, lane in enumerate(order.lanes):
            free = lane.free
            for queue in lane.queues if free else ():
                found, marks[queue] = _claim_queue(conn, schema, order, queue, free, watermarks.get(queue))
                jobs.extend(found)
                lanes.extend([number] * len(found))
                free -= len(found)
                if not free:
                    break
            more.append(free == 0 < lane.free)
    return tuple(jobs), tuple(lanes), tuple(more), marks


def _claim_queue(
    conn: Connection, schema: str, order: Claim, queue: str, free: int, start: Watermark | None
) -> tuple[list[Job], Watermark | None]:
    """Claim from a queue. Where the watermark leaves slots free, they are filled from the start: no claim that falls
    short has overlooked anything."""
    mark = start or _FROM_THE_START
    values = {
        "supervisor_id": order.supervisor_id,
        "claim_id": order.claim_id,
        "queue": queue,
        "free": free,
        "job_types": None if order.job_types is None else list(order.job_types),
        "priority": mark.priority,
        "process_at": mark.process_at,
        "seq": mark.seq,
    }
    rows = _rows(conn, "claim", schema, values)
    jobs = [_job(row) for row in rows]
    if len(rows) == free:
        return jobs, Watermark(*rows[0][-3:])
    if start is None:
        return jobs, None
    rest, reached = _claim_queue(conn, schema, order, queue, free - len(rows), None)
    return jobs + rest, reached


def _job(row: TupleRow) -> Job:
    job_id, run_id, claim_id, queue, job_type, payload, *rest, checkpoint, trace, _, _, _ = row
    rest += [None if checkpoint is None else checkpoint.encode(), trace]
    return Job(job_id, run_id, claim_id, queue, job_type, payload.encode(), *rest)


def something_left(conn: Connection, schema: str, queues: Sequence[str]) -> bool:
    """Whether the queues hold a row that is ready, running, or waiting for a retry."""
    with transaction(conn):
        row = _row(conn, "left", schema, {"queues": list(queues)})
    assert row is not None
    return bool(row[0])


def say_idle(conn: Connection, schema: str, supervisor_id: int, queues: Sequence[str], seconds: float) -> int:
    """Say that we wait for work in these queues (0 seconds: not any more). Returns the horizon.

    Transactions below the horizon may not have seen the flag. It is asked after the flag was committed.
    """
    values = {"supervisor_id": supervisor_id, "queues": list(queues), "seconds": seconds}
    with transaction(conn):
        conn.execute(statement("say_idle", schema), values)
    with transaction(conn):
        row = _row(conn, "horizon", schema)
    assert row is not None
    return int(row[0])


def listen(conn: Connection, schema: str) -> None:
    """Hear notifications on this connection; their payload is the name of a queue, its first 500 characters."""
    conn.execute(statement("listen", schema))


def probe(conn: Connection) -> None:
    """Ask for a sign of life."""
    conn.execute(statement("probe", SCHEMA))


# ---------------------------------------------------------------------------------------------------------------------
# Outcomes


def save_checkpoint(conn: Connection, schema: str, order: SaveCheckpoint) -> bool:
    """Keep what a run has given with its job. False: the row is not this run's any more, and nothing was written."""
    values = {"job_id": order.job_id, "run_id": order.run_id, "data": order.data.decode()}
    with transaction(conn):
        return _row(conn, "save_checkpoint", schema, values) is not None


def finish(conn: Connection, schema: str, outcomes: Sequence[Archive]) -> set[UUID]:
    """Archive jobs that are over. Returns the run ids that were stored; the others' rows were not theirs any more."""
    with single(conn):
        return _finish(conn, schema, outcomes)


def give_back(conn: Connection, schema: str, outcomes: Sequence[Retry | Release]) -> tuple[set[UUID], set[UUID]]:
    """Put retries and releases back into the queue; where a cancel order is on the row, archive it as cancelled.

    Returns the run ids that went back, and those that were cancelled.
    """
    with transaction(conn):
        return _give_back(conn, schema, outcomes)


def find_outcomes(conn: Connection, schema: str, runs: Sequence[tuple[UUID, UUID]]) -> dict[UUID, str]:
    """For runs, as (job_id, run_id), whose row is not theirs: the archived status, or "back" if they gave it back."""
    if not runs:
        return {}
    values = {"job_ids": [job_id for job_id, _ in runs], "run_ids": [run_id for _, run_id in runs]}
    with transaction(conn):
        return dict(reversed(_rows(conn, "find_outcomes", schema, values)))


def _finish(conn: Connection, schema: str, outcomes: Sequence[Archive]) -> set[UUID]:
    told = [
        {
            "job_id": o.job_id,
            "run_id": o.run_id,
            "status": o.status,
            "reason": o.reason,
            "crash": o.crash,
            "facts": o.facts,
            "result": None if o.result is None else o.result.decode("utf-8", "replace"),
        }
        for o in outcomes
    ]
    return {run_id for (run_id,) in _rows(conn, "finish", schema, {"outcomes": _json(told)})}


def _give_back(conn: Connection, schema: str, outcomes: Sequence[Retry | Release]) -> tuple[set[UUID], set[UUID]]:
    rows = [_Back.of(outcome) for outcome in outcomes]
    values = {
        "job_ids": [o.job_id for o in outcomes],
        "run_ids": [o.run_id for o in outcomes],
        "delays": [row.delay for row in rows],
        "refunds": [row.refund for row in rows],
        "interrupts": [row.interrupt for row in rows],
        "crashes": [row.crash for row in rows],
        "losses": [row.loss for row in rows],
        "fresh": [row.fresh for row in rows],
        "entries": [None if o.entry is None else _json(o.entry) for o in outcomes],
    }
    back = {run_id for (run_id,) in _rows(conn, "give_back", schema, values)}
    left = [Archive(o.job_id, o.run_id, "cancelled", None, o.entry or {}) for o in outcomes if o.run_id not in back]
    return back, _finish(conn, schema, left) if left else set()


@dataclass(frozen=True, slots=True)
class _Back:
    """How a row goes back: the accounting of the design."""

    delay: float | None
    refund: int = 0
    interrupt: int = 0
    crash: int = 0
    loss: int = 0
    fresh: bool = False

    @staticmethod
    def of(outcome: Retry | Release) -> _Back:
        if isinstance(outcome, Retry):
            return _Back(min(max(outcome.delay, 0.0), LONGEST_DELAY), crash=outcome.crash)
        if outcome.loss:
            return _Back(None, loss=1, fresh=outcome.fresh)
        return _Back(None, refund=1, interrupt=int(outcome.interrupted), fresh=outcome.fresh)


def _json(value: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> str:
    """JSON text that PostgreSQL can hold: NUL and lone surrogates, which it cannot, become U+FFFD."""
    text = json.dumps(value, default=str)
    if "\\u0000" in text or "\\ud" in text:
        text = json.dumps(_storable(json.loads(text)))
    return text


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return _NOT_STORABLE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_storable(item) for item in value]
    if isinstance(value, dict):
        return {_storable(key): _storable(item) for key, item in value.items()}
    return value


# ---------------------------------------------------------------------------------------------------------------------
# What people ask


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """``oldest_ready_s``: for how long the oldest ready row has been due, in seconds; None where none is."""

    queue: str
    ready: int
    scheduled: int
    running: int
    oldest_ready_s: float | None
    paused: bool


@dataclass(frozen=True, slots=True)
class SupervisorStatus:
    """``info`` is what the supervisor says of itself with each beat (its slots); ages are seconds."""

    supervisor_id: int
    name: str
    host: str
    pid: int
    phase: str
    info: Mapping[str, Any]
    beat: int
    beat_age_s: float
    lease_s: float
    age_s: float
    running: int


@dataclass(frozen=True, slots=True)
class ArchiveTotal:
    status: str
    reason: str | None
    jobs: int


@dataclass(frozen=True, slots=True)
class Status:
    queues: tuple[QueueStatus, ...]
    supervisors: tuple[SupervisorStatus, ...]
    archive: tuple[ArchiveTotal, ...]


@dataclass(frozen=True, slots=True)
class Backlog:
    """What monitoring asks: the queues, dead rows by table, and what keeps them from being removed."""

    queues: tuple[QueueStatus, ...]
    dead_tuples: Mapping[str, int]
    horizon_transactions: int
    oldest_transaction_s: float


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows of one queue, of the job table, and of the archive."""

    queue: int
    jobs: int
    archived: int


def status(conn: Connection, schema: str = SCHEMA) -> Status:
    """What ``ganger status`` shows."""
    with transaction(conn, limit=PATIENCE):
        queues = tuple(QueueStatus(*row) for row in _rows(conn, "status_queues", schema))
        supervisors = tuple(SupervisorStatus(*row) for row in _rows(conn, "status_supervisors", schema))
        archive = tuple(ArchiveTotal(*row) for row in _rows(conn, "status_archive", schema))
    return Status(queues, supervisors, archive)


def backlog(conn: Connection, schema: str = SCHEMA) -> Backlog:
    """What monitoring asks, within the connection's own limit."""
    with transaction(conn):
        queues = tuple(QueueStatus(*row) for row in _rows(conn, "status_queues", schema))
        row = _row(conn, "pressure", schema)
    assert row is not None
    return Backlog(queues, *row)


def counts(conn: Connection, schema: str = SCHEMA, queue: str = "default") -> Counts:
    """The three numbers that the examples begin with."""
    with transaction(conn, limit=PATIENCE):
        row = _row(conn, "counts", schema, {"queue": queue})
    assert row is not None
    return Counts(*row)


# ---------------------------------------------------------------------------------------------------------------------
# What an error means


def lost(error: BaseException, conn: Connection | None) -> bool:
    """Whether the connection is gone or of no use: the statement may or may not have been carried out."""
    if conn is None or conn.closed:
        return True
    if not isinstance(error, psycopg.Error):
        return False
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError)
    return state[:2] == "08" or state in ("57P01", "57P02", "57P03", "57P04", "57P05", "25P03", "25006", "53300")


def passing(error: BaseException) -> bool:
    """Whether the same transaction, tried again, may well succeed: a deadlock, a lock, a cancelled statement."""
    return isinstance(
        error,
        errors.DeadlockDetected | errors.SerializationFailure | errors.LockNotAvailable | errors.QueryCanceled,
    )


def bad_data(error: BaseException) -> bool:
    """Whether a value in the batch cannot be stored, now or ever."""
    return isinstance(error, UnicodeError | psycopg.DataError | psycopg.IntegrityError) or (
        isinstance(error, psycopg.Error) and (error.sqlstate or "")[:2] == "54"
    )
