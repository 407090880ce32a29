"""What an application does with the queue: enqueue and cancel, on its own connection and in its own transaction.

Nothing here begins, commits or aborts a transaction of the caller's (``enqueue_many`` uses a savepoint). So everything
that PostgreSQL would refuse is refused before it is sent: an argument by ``BadJob``, which names it, and a second job
of the same key by ``DuplicateJob``, which the database finds without an error. Works on any psycopg 3 connection,
whatever its row factory, isolation level or autocommit.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal
from uuid import UUID

import psycopg
from psycopg import errors
from psycopg.rows import tuple_row

from ganger.config import LONGEST, SHUTDOWNS
from ganger.database import SCHEMA, SchemaMissing
from ganger.sql import statement

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

_ABSENT: Final = (errors.InvalidSchemaName, errors.UndefinedFunction, errors.UndefinedTable)
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
    call = _Enqueue.checked(job, _Manner(on_duplicate, notify, dumps, schema, max_payload))
    cursor = psycopg.Cursor(conn, row_factory=tuple_row)
    try:
        return call.answer(cursor.execute(call.text, call.values).fetchone())
    except _ABSENT as error:
        raise _missing(schema) from error


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
    call = _Enqueue.checked(job, _Manner(on_duplicate, notify, dumps, schema, max_payload))
    cursor = psycopg.AsyncCursor(conn, row_factory=tuple_row)
    try:
        await cursor.execute(call.text, call.values)
        return call.answer(await cursor.fetchone())
    except _ABSENT as error:
        raise _missing(schema) from error


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
    manner = _Manner(on_duplicate, notify, dumps, schema, max_payload)
    calls = [_Enqueue.checked(job, manner) for job in jobs]
    if not calls:
        return []
    cursor = psycopg.Cursor(conn, row_factory=tuple_row)
    try:
        # Outside a transaction and without autocommit, psycopg begins one here and leaves it to the caller; the block
        # below is then a savepoint. Without this statement it would be the block's, and committed at its end.
        cursor.execute("SELECT")
        with conn.transaction():
            row = cursor.execute(statement("enqueue_prepare", schema)).fetchone()
            assert row is not None
            now, may_copy = datetime.fromisoformat(row[0]), row[1]
            if may_copy and not any(call.keyed for call in calls):
                return _copy(cursor, calls, now, manner)
            return _one_by_one(cursor, calls, manner)
    except _ABSENT as error:
        raise _missing(schema) from error


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
    _check_key("job_id", job_id)
    if reason not in ("cancelled", "killed"):
        raise BadJob(f'reason is {reason!r}: give "cancelled" or "killed".')
    cursor = psycopg.Cursor(conn, row_factory=tuple_row)
    try:
        row = cursor.execute(statement("cancel", schema), {"job_id": job_id, "reason": reason}).fetchone()
    except _ABSENT as error:
        raise _missing(schema) from error
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


@dataclass(frozen=True, slots=True)
class _Enqueue:
    text: bytes
    values: Mapping[str, Any]
    key: str  # for people; empty for a job without a key of its own
    ignore: bool

    @staticmethod
    def checked(job: NewJob, manner: _Manner) -> _Enqueue:
        """Check everything and return what to send. Raises BadJob."""
        if manner.on_duplicate not in ("raise", "ignore"):
            raise BadJob(f'on_duplicate is {manner.on_duplicate!r}: give "raise" or "ignore".')
        text = statement("enqueue", manner.schema)
        if job.job_id is not None:
            _check_key("job_id", job.job_id)
        keys = [f"job_id {job.job_id}"] if job.job_id else []
        keys += [f"unique_key {job.unique_key!r}"] if job.unique_key is not None else []
        values = {
            "job_type": _name("job_type", job.job_type),
            "payload": _payload(job.payload, manner),
            "queue": _name("queue", job.queue),
            "process_at": _moment(job),
            "process_in": _seconds("process_in", job.process_in),
            "priority": _whole("priority", job.priority, _SMALLINT),
            "timeout": _seconds("timeout", job.timeout, above=True),
            "grace": _seconds("grace", job.grace),
            "memory": None if job.memory is None else _whole("memory", job.memory, _BIGINT),
            "shutdown": _shutdown(job.shutdown),
            "job_id": job.job_id or uuid7(),
            "unique_key": None if job.unique_key is None else _name("unique_key", job.unique_key),
            "notify": bool(manner.notify),
        }
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


def _missing(schema: str) -> SchemaMissing:
    return SchemaMissing(f'The schema "{schema}" is not installed in this database: run "ganger install" for it.')


# ---------------------------------------------------------------------------------------------------------------------
# One check per kind of argument


def _name(argument: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise BadJob(f"{argument} is {value!r}: give a text that is not empty.")
    if len(value) > MAX_NAME:
        raise BadJob(f"{argument} has {len(value)} characters: give {MAX_NAME} at most.")
    if "\0" in value or not _encodable(value):
        raise BadJob(f"{argument} is {value!r}: PostgreSQL can hold neither NUL nor lone surrogates.")
    return value


def _check_key(argument: str, value: object) -> None:
    if not isinstance(value, UUID):
        raise BadJob(f"{argument} is {value!r}: give a uuid.UUID.")


def _moment(job: NewJob) -> datetime | None:
    value: object = job.process_at
    if value is None:
        return None
    if job.process_in is not None:
        raise BadJob("process_at and process_in exclude each other: give one of them.")
    if not isinstance(value, datetime):
        raise BadJob(f"process_at is {value!r}: give a datetime with a time zone.")
    if value.utcoffset() is None:
        raise BadJob(f"process_at is {value.isoformat()}, without a time zone: give a datetime with one.")
    return value


def _seconds(argument: str, value: object, *, above: bool = False) -> float | None:
    if value is None:
        return None
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise BadJob(f"{argument} is {value!r}: give a timedelta or a number of seconds.")
    if not 0 <= number <= LONGEST or (above and number == 0):
        least = "more than 0" if above else "at least 0"
        raise BadJob(f"{argument} is {value!r}: give {least} and at most {LONGEST:.0f} seconds.")
    return float(number)


def _whole(argument: str, value: object, allowed: range) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value not in allowed:
        raise BadJob(f"{argument} is {value!r}: give a whole number from {allowed[0]} to {allowed[-1]}.")
    return value


def _shutdown(value: object) -> str | None:
    if value is not None and (not isinstance(value, str) or value not in SHUTDOWNS):
        raise BadJob(f"shutdown is {value!r}: give one of {', '.join(SHUTDOWNS)}.")
    return value


def _payload(value: object, manner: _Manner) -> str:
    """Return the payload as JSON text that PostgreSQL can hold and every reader can read."""
    try:
        raw = manner.dumps(value)
        text = raw.decode() if isinstance(raw, bytes) else raw
        if not isinstance(text, str):
            raise TypeError(f"dumps returned {type(raw).__name__}, not text")
        size = len(text) if text.isascii() else len(text.encode())
        if size > manner.max_payload:
            raise ValueError(f"it has {size} bytes, over max_payload of {manner.max_payload}")
        if _depth(text) > MAX_DEPTH:
            raise ValueError(f"it is nested deeper than {MAX_DEPTH}")
        read = json.loads(text, parse_constant=_no_number, parse_float=_finite)
        if "\\u" in text:
            if _ESCAPED_NUL.search(text):
                raise ValueError("it holds the character NUL")
            json.dumps(read, ensure_ascii=False).encode()
    except UnicodeError:
        raise BadJob("payload cannot be stored: it holds a lone surrogate.") from None
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise BadJob(f"payload cannot be stored: {error}.") from error
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
    if math.isinf(number):
        raise ValueError(f"the number {digits[:40]} is too large")
    return number


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
