"""What an application does with the queue: enqueue and cancel, on its own connection and in its own transaction.

Nothing here begins, commits or aborts a transaction of the caller's (``enqueue_many`` uses a savepoint). So everything
that PostgreSQL would refuse is refused before it is sent: an argument by ``BadJob``, which names it, and a second job
of the same key by ``DuplicateJob``, which the database finds without an error. Works on any psycopg 3 connection,
whatever its row factory, isolation level or autocommit.
"""

from __future__ import annotations

import json
import math
import operator
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal
from uuid import UUID

import psycopg
from psycopg import errors
from psycopg.rows import tuple_row

from ganger.config import LARGEST, SHUTDOWNS
from ganger.database import SCHEMA, SchemaMissing
from ganger.sql import BadSchemaName, check_schema_name, statement
from ganger_child import tracing
from ganger_child.units import LONGEST
from ganger_child.words import message, shown

if sys.version_info >= (3, 14):
    from uuid import uuid7
else:
    import uuid_utils

    def uuid7() -> UUID:
        return UUID(int=uuid_utils.uuid7().int)


OnDuplicate = Literal["raise", "ignore"]
Cancelled = Literal["cancelled", "ordered", "finished", "unknown"]
Dumps = Callable[[Any], str | bytes]

MAX_PAYLOAD: Final = 16 << 20  # bytes
MAX_DEPTH: Final = 200  # arrays and objects inside each other: every JSON reader on the way can follow
MAX_NAME: Final = 500  # characters of a queue, a job type or a unique key: they stand in indexes
_SMALLINT: Final = range(-(1 << 15), 1 << 15)
_BIGINT: Final = range(1, 1 << 63)
_LONGEST_NUMBER: Final = 1000  # digits of one with a point or an exponent

ABSENT: Final = (errors.InvalidSchemaName, errors.UndefinedFunction, errors.UndefinedTable)
_ESCAPED_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


class BadJob(ValueError):
    """An argument cannot be that of a job; the message names it. Nothing was written."""


class DuplicateJob(Exception):
    """There is a job of this job_id or unique_key. Nothing was written, and the transaction is as it was.

    ``job_id`` is the job that is there. It is None where that job was enqueued after this transaction took its snapshot
    (REPEATABLE READ or SERIALIZABLE) and cannot be seen from it.
    """

    def __init__(self, job_id: UUID | None, key: str) -> None:
        there = f"as job {job_id}" if job_id else "by a transaction that this one's snapshot cannot see"
        super().__init__(f"A job with {key} was enqueued before, {there}.")
        self.job_id = job_id


@dataclass(frozen=True, slots=True)
class NewJob:
    """One job for ``enqueue_many``; the fields mean what they mean for ``enqueue``."""

    job_type: str
    payload: Any = None
    _: KW_ONLY
    queue: str = "default"
    process_at: datetime | None = None
    process_in: timedelta | float | None = None
    priority: int = 0
    timeout: timedelta | float | None = None
    grace: timedelta | float | None = None
    memory: int | None = None
    shutdown: str | None = None
    job_id: UUID | None = None
    unique_key: str | None = None


def enqueue(
    conn: psycopg.Connection[Any],
    job_type: str,
    payload: Any = None,
    *,
    queue: str = "default",
    process_at: datetime | None = None,
    process_in: timedelta | float | None = None,
    priority: int = 0,
    timeout: timedelta | float | None = None,
    grace: timedelta | float | None = None,
    memory: int | None = None,
    shutdown: str | None = None,
    job_id: UUID | None = None,
    unique_key: str | None = None,
    on_duplicate: OnDuplicate = "raise",
    notify: bool = True,
    dumps: Dumps = json.dumps,
    schema: str = SCHEMA,
    max_payload: int = MAX_PAYLOAD,
) -> UUID:
    """Enqueue a job in the connection's transaction, and return its id. It can be claimed once that has committed.

    ``payload`` is what ``dumps`` makes JSON of, ``max_payload`` bytes at most. The job is due at once, or at
    ``process_at`` (with a time zone), or ``process_in`` (a timedelta, or seconds) from now on the database's clock;
    among due jobs a smaller ``priority`` is more urgent. ``timeout`` and ``grace`` (seconds), ``memory`` (bytes) and
    ``shutdown`` ("wait", "finish", "interrupt", "terminate") stand above those of the job type and the supervisor.

    ``job_id`` is the caller's own id, remembered as long as the job is in the archive; ``unique_key`` allows one live
    job at a time. A second one of either raises DuplicateJob, or with ``on_duplicate="ignore"`` returns the id of the
    job that is there. ``notify=False`` is for transactions that are to be PREPAREd, and leaves it to the next poll.
    The trace that is current in OpenTelemetry goes with the job.

    Raises BadJob for an argument that cannot be, DuplicateJob, SchemaMissing, and what psycopg raises.
    """
    job = NewJob(
        job_type=job_type,
        payload=payload,
        queue=queue,
        process_at=process_at,
        process_in=process_in,
        priority=priority,
        timeout=timeout,
        grace=grace,
        memory=memory,
        shutdown=shutdown,
        job_id=job_id,
        unique_key=unique_key,
    )
    call = _Enqueue.checked(job, _Manner.checked(on_duplicate, notify, dumps, schema, max_payload))
    cursor = cursor_on(conn)
    try:
        return call.answer(cursor.execute(call.text, call.values).fetchone())
    except ABSENT as error:
        raise missing(schema) from error


async def enqueue_async(
    conn: psycopg.AsyncConnection[Any],
    job_type: str,
    payload: Any = None,
    *,
    queue: str = "default",
    process_at: datetime | None = None,
    process_in: timedelta | float | None = None,
    priority: int = 0,
    timeout: timedelta | float | None = None,
    grace: timedelta | float | None = None,
    memory: int | None = None,
    shutdown: str | None = None,
    job_id: UUID | None = None,
    unique_key: str | None = None,
    on_duplicate: OnDuplicate = "raise",
    notify: bool = True,
    dumps: Dumps = json.dumps,
    schema: str = SCHEMA,
    max_payload: int = MAX_PAYLOAD,
) -> UUID:
    """The same as ``enqueue``, on an asynchronous connection."""
    job = NewJob(
        job_type=job_type,
        payload=payload,
        queue=queue,
        process_at=process_at,
        process_in=process_in,
        priority=priority,
        timeout=timeout,
        grace=grace,
        memory=memory,
        shutdown=shutdown,
        job_id=job_id,
        unique_key=unique_key,
    )
    call = _Enqueue.checked(job, _Manner.checked(on_duplicate, notify, dumps, schema, max_payload))
    if not isinstance(conn, psycopg.AsyncConnection):
        raise BadJob(f"conn is {shown(conn)}: give an asynchronous connection of psycopg 3.")
    cursor = psycopg.AsyncCursor(conn, row_factory=tuple_row)
    try:
        await cursor.execute(call.text, call.values)
        return call.answer(await cursor.fetchone())
    except ABSENT as error:
        raise missing(schema) from error


def enqueue_many(
    conn: psycopg.Connection[Any],
    jobs: Iterable[NewJob],
    *,
    on_duplicate: OnDuplicate = "raise",
    notify: bool = True,
    dumps: Dumps = json.dumps,
    schema: str = SCHEMA,
    max_payload: int = MAX_PAYLOAD,
) -> list[UUID]:
    """Enqueue all of them or none, and return their ids in the order given. Otherwise as ``enqueue``.

    Where no job has a key of its own this is one COPY, and an order of magnitude faster than one by one.
    """
    manner = _Manner.checked(on_duplicate, notify, dumps, schema, max_payload)
    calls = _all_checked(jobs, manner)
    cursor = cursor_on(conn)
    if not calls:
        return []
    try:
        # Outside a transaction and without autocommit, psycopg begins one here and leaves it to the caller; the block
        # below is then a savepoint. Without this statement it would be the block's, and committed at its end.
        cursor.execute("SELECT")
        with conn.transaction():
            row = cursor.execute(statement("enqueue_prepare", schema), {"trace": manner.trace}).fetchone()
            assert row is not None
            now, may_copy = datetime.fromisoformat(row[0]), row[1]
            if may_copy and not any(call.keyed for call in calls):
                return _copy(cursor, calls, now, manner)
            return _one_by_one(cursor, calls, manner)
    except ABSENT as error:
        raise missing(schema) from error


def cancel(
    conn: psycopg.Connection[Any],
    job_id: UUID,
    *,
    reason: Literal["cancelled", "killed"] = "cancelled",
    schema: str = SCHEMA,
) -> Cancelled:
    """Cancel a job in the connection's transaction, and tell what came of it.

    "cancelled": it was not running, and is archived. "ordered": it is running, and its supervisor will interrupt it
    within seconds of the commit, and archive it; it may still end before that by itself. "finished": it was over.
    "unknown": there is no such job. Raises BadJob, SchemaMissing, and what psycopg raises (under REPEATABLE READ a
    serialization failure, if the job changed since the snapshot).
    """
    values = {"job_id": read_key("job_id", job_id), "reason": _word("reason", reason, ("cancelled", "killed"))}
    cursor, text = cursor_on(conn), statement("cancel", read_schema(schema))
    try:
        row = cursor.execute(text, values).fetchone()
    except ABSENT as error:
        raise missing(schema) from error
    assert row is not None
    result: Cancelled = row[0]
    return result


# ---------------------------------------------------------------------------------------------------------------------
# One call of the database's function, checked


@dataclass(frozen=True, slots=True)
class _Manner:
    """How jobs are enqueued, the same for all of a call."""

    on_duplicate: OnDuplicate
    notify: bool
    dumps: Dumps
    schema: str
    max_payload: int
    trace: str | None  # for the rows' default; None: nothing is known of traces here

    @staticmethod
    def checked(on_duplicate: object, notify: object, dumps: object, schema: object, max_payload: object) -> _Manner:
        """Check what is the same for all jobs. Raises BadJob."""
        if not isinstance(notify, bool):
            raise BadJob(f"notify is {shown(notify)}: give True or False.")
        if not callable(dumps):
            raise BadJob(f"dumps is {shown(dumps)}: give a function that makes JSON of a value.")
        wanted: Any = _word("on_duplicate", on_duplicate, ("raise", "ignore"))
        most = _whole("max_payload", max_payload, range(1, LARGEST + 1))
        return _Manner(wanted, notify, dumps, read_schema(schema), most, tracing.current())


@dataclass(frozen=True, slots=True)
class _Enqueue:
    text: bytes
    values: Mapping[str, Any]
    key: str  # for people; empty for a job without a key of its own
    ignore: bool

    @staticmethod
    def checked(job: NewJob, manner: _Manner) -> _Enqueue:
        """Check everything and return what to send. Raises BadJob."""
        job_id = None if job.job_id is None else read_key("job_id", job.job_id)
        unique_key = None if job.unique_key is None else _name("unique_key", job.unique_key)
        keys = [f"job_id {job_id}"] if job_id is not None else []
        keys += [f"unique_key {unique_key!r}"] if unique_key is not None else []
        values = {
            "job_type": _name("job_type", job.job_type),
            "payload": _payload(job.payload, manner),
            "queue": _name("queue", job.queue),
            "process_at": _moment(job),
            "process_in": read_seconds("process_in", job.process_in),
            "priority": _whole("priority", job.priority, _SMALLINT),
            "timeout": read_seconds("timeout", job.timeout, above=True),
            "grace": read_seconds("grace", job.grace),
            "memory": None if job.memory is None else _whole("memory", job.memory, _BIGINT),
            "shutdown": None if job.shutdown is None else _word("shutdown", job.shutdown, SHUTDOWNS),
            "job_id": uuid7() if job_id is None else job_id,
            "unique_key": unique_key,
            "notify": manner.notify,
            "trace": manner.trace,
        }
        text = statement("enqueue", manner.schema)
        return _Enqueue(text, values, " or ".join(keys), manner.on_duplicate == "ignore")

    @property
    def keyed(self) -> bool:
        return bool(self.key)

    @property
    def order(self) -> tuple[str, UUID]:
        """Two transactions that insert the same keys in this order never wait for each other in a circle."""
        return (self.values["unique_key"] or "", self.values["job_id"])

    def answer(self, row: Sequence[Any] | None) -> UUID:
        assert row is not None
        job_id = None if row[0] is None else UUID(row[0])
        if job_id is None or (row[1] and not self.ignore):
            raise DuplicateJob(job_id, self.key)
        return job_id


def _all_checked(jobs: Iterable[NewJob], manner: _Manner) -> list[_Enqueue]:
    """Check all jobs before the first is sent. Raises BadJob, which says the number of the bad one."""
    calls = []
    for number, job in enumerate(jobs):
        if not isinstance(job, NewJob):
            raise BadJob(f"jobs[{number}] is {shown(job)}: give a NewJob.")
        try:
            calls.append(_Enqueue.checked(job, manner))
        except BadJob as error:
            raise BadJob(f"jobs[{number}]: {error}") from error.__cause__
    return calls


def _copy(cursor: psycopg.Cursor[Any], calls: Sequence[_Enqueue], now: datetime, manner: _Manner) -> list[UUID]:
    with cursor.copy(statement("enqueue_copy", manner.schema)) as copy:
        for call in calls:  # their ids are UUIDv7, in order already
            v = call.values
            due = max(now, v["process_at"] or now + timedelta(seconds=v["process_in"] or 0))
            state = 1 if due == now else 0
            limits = (v["timeout"], v["grace"], v["memory"], v["shutdown"])
            copy.write_row((v["job_id"], v["queue"], v["job_type"], v["payload"], due, v["priority"], state, *limits))
    if manner.notify:
        cursor.execute(statement("wake", manner.schema), {"queues": sorted({call.values["queue"] for call in calls})})
    return [call.values["job_id"] for call in calls]


def _one_by_one(cursor: psycopg.Cursor[Any], calls: Sequence[_Enqueue], manner: _Manner) -> list[UUID]:
    ordered = sorted(range(len(calls)), key=lambda number: calls[number].order)
    cursor.executemany(calls[0].text, [calls[number].values for number in ordered], returning=True)
    ids: dict[int, UUID] = {}
    for number in ordered:
        ids[number] = calls[number].answer(cursor.fetchone())
        cursor.nextset()
    return [ids[number] for number in range(len(calls))]


def cursor_on(conn: object) -> psycopg.Cursor[Any]:
    if not isinstance(conn, psycopg.Connection):
        raise BadJob(f"conn is {shown(conn)}: give a connection of psycopg 3.")
    return psycopg.Cursor(conn, row_factory=tuple_row)


def missing(schema: str) -> SchemaMissing:
    return SchemaMissing(f'The schema "{schema}" is not installed in this database: run "ganger install" for it.')


# ---------------------------------------------------------------------------------------------------------------------
# One check per kind of argument. What comes out is of the plain type: the driver, and what it asks, meet no subclass.


def _name(argument: str, value: object) -> str:
    if not isinstance(value, str) or not (name := str.__str__(value)):
        raise BadJob(f"{argument} is {shown(value)}: give a text that is not empty.")
    if len(name) > MAX_NAME:
        raise BadJob(f"{argument} has {len(name)} characters: give {MAX_NAME} at most.")
    if "\0" in name or not _encodable(name):
        raise BadJob(f"{argument} is {shown(value)}: PostgreSQL can hold neither NUL nor lone surrogates.")
    return name


def _word(argument: str, value: object, words: Sequence[str]) -> str:
    if not isinstance(value, str) or (word := str.__str__(value)) not in words:
        raise BadJob(f"{argument} is {shown(value)}: give one of {', '.join(words)}.")
    return word


def read_schema(value: object) -> str:
    try:
        return check_schema_name(value)
    except BadSchemaName as error:
        raise BadJob(str(error)) from None


def read_key(argument: str, value: object) -> UUID:
    if not isinstance(value, UUID):
        raise BadJob(f"{argument} is {shown(value)}: give a uuid.UUID.")
    return UUID(int=value.int)


def _moment(job: NewJob) -> datetime | None:
    """The due time in UTC: PostgreSQL does not know every time zone that Python does."""
    value: object = job.process_at
    if value is None:
        return None
    if job.process_in is not None:
        raise BadJob("process_at and process_in exclude each other: give one of them.")
    if not isinstance(value, datetime):
        raise BadJob(f"process_at is {shown(value)}: give a datetime with a time zone.")
    try:
        has_zone = isinstance(value.utcoffset(), timedelta)  # a pandas.NaT's is neither that nor None
        utc = datetime.astimezone(value, UTC)
    except Exception as error:  # a time zone that raises, or a moment outside the calendar
        raise BadJob(f"process_at is {shown(value)}, which is no moment: {message(error)}.") from error
    if not has_zone:
        raise BadJob(f"process_at is {shown(value)}, without a time zone: give a datetime with one.")
    return datetime(utc.year, utc.month, utc.day, utc.hour, utc.minute, utc.second, utc.microsecond, UTC)


def read_seconds(argument: str, value: object, *, above: bool = False) -> float | None:
    if value is None:
        return None
    number = timedelta.total_seconds(value) if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise BadJob(f"{argument} is {shown(value)}: give a timedelta or a number of seconds.")
    number = _plain(number)
    if not 0 <= number <= LONGEST or (above and number == 0):
        least = "more than 0" if above else "at least 0"
        raise BadJob(f"{argument} is {shown(value)}: give {least} and at most {LONGEST:.0f} seconds.")
    return float(number)


def _whole(argument: str, value: object, allowed: range) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or (number := _plain(value)) not in allowed:
        raise BadJob(f"{argument} is {shown(value)}: give a whole number from {allowed[0]} to {allowed[-1]}.")
    return int(number)


def _plain(number: float) -> float:
    """The number itself, of an IntEnum, of numpy's float64: a range would count its way to what is no plain number."""
    return operator.index(number) if isinstance(number, int) else float.__float__(number)


def _payload(value: object, manner: _Manner) -> str:
    """Return the payload as JSON text that PostgreSQL can hold and every reader can read."""
    try:
        raw = manner.dumps(value)
        text = raw.decode() if isinstance(raw, bytes) else raw
        if not isinstance(text, str):
            raise TypeError(f"dumps returned {shown(raw)}, not text")
        text = str.__str__(text)
        size = len(text) if text.isascii() else len(text.encode())
        if size > manner.max_payload:
            raise ValueError(f"it has {size} bytes, over max_payload of {manner.max_payload}")
        if _depth(text) > MAX_DEPTH:
            raise ValueError(f"it is nested deeper than {MAX_DEPTH}")
        read = json.loads(
            text, parse_constant=_no_number, parse_float=_finite, parse_int=_finite_int, object_pairs_hook=object_of
        )
        if "\\u" in text:
            if _ESCAPED_NUL.search(text):
                raise ValueError("it holds the character NUL")
            json.dumps(read, ensure_ascii=False).encode()
    except UnicodeError:
        raise BadJob("payload cannot be stored: it holds a lone surrogate.") from None
    except Exception as error:  # also what methods of the value raise
        raise BadJob(f"payload cannot be stored: {message(error)}.") from error
    return text


def _depth(text: str) -> int:
    """How deep arrays and objects are nested in JSON text."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return 0
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", _STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number) or len(digits) > _LONGEST_NUMBER or (number == 0 and re.match("[-0.]*[1-9]", digits)):
        raise ValueError(f"the number {shown(digits)} is too large, too small or too long")
    return number


def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, or ValueError: of two values under one key PostgreSQL would keep one; nobody would know."""
    made = dict(pairs)
    if len(made) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {shown(twice)} is in an object twice")
    return made


def _finite_int(digits: str) -> int:
    if len(digits) > sys.float_info.max_10_exp:
        _finite(digits)  # so that 10**400 is what 1e400 is, in whichever language the job is read
    return int(digits)


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
