"""What an application asks about its jobs: how one is doing, and its result once it has ended.

On the application's own connection, with one function of the database for everybody: a role that may only enqueue is
told of its own jobs, a role that may read the tables of all. Nothing here begins, commits or aborts a transaction.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg.rows import tuple_row

from ganger.client import ABSENT, BadJob, cursor_on, missing, read_key, read_schema, read_seconds
from ganger.database import SCHEMA
from ganger.sql import statement
from ganger_child.words import shown

SOON: Final = 0.05  # seconds until a waiting application asks again, at first
AT_MOST: Final = 1.0  # and later
SLOWER: Final = 1.3

_VAIN: Final = {
    "snapshot": "its transaction is not READ COMMITTED, so it sees nothing that happens from now on",
    "uncommitted": "its transaction has written something, perhaps the job itself, which nobody sees before it commits",
}


@dataclass(frozen=True, slots=True)
class JobRecord:
    """How a job is doing. ``status`` is "scheduled", "ready" or "running", and of an ArchivedJob "success", "failure"
    or "cancelled". Times are in UTC; None where there is none, or an infinite one."""

    job_id: UUID
    queue: str
    job_type: str
    status: str
    reason: str | None
    attempts: int
    enqueued_at: datetime | None
    process_at: datetime | None
    started_at: datetime | None


@dataclass(frozen=True, slots=True)
class ArchivedJob(JobRecord):
    """How a job has ended. ``error`` has the keys type, message and traceback; ``result`` is what the handler returned.
    ``reason`` says why it failed or was cancelled ("exception", "timeout", "crash", …)."""

    finished_at: datetime | None
    error: dict[str, Any] | None
    result: Any


class UnknownJob(LookupError):
    """There is no such job, or this role may not know of it."""


def get_job(conn: psycopg.Connection[Any], job_id: UUID, *, schema: str = SCHEMA) -> JobRecord | None:
    """How a job is doing; an ArchivedJob if it has ended. None: there is no such job (or it is not this role's).

    Raises BadJob, SchemaMissing, and what psycopg raises.
    """
    values, text = _question(job_id, schema)
    cursor = cursor_on(conn)
    try:
        return _record(cursor.execute(text, values).fetchone())
    except ABSENT as error:
        raise missing(schema) from error


async def get_job_async(conn: psycopg.AsyncConnection[Any], job_id: UUID, *, schema: str = SCHEMA) -> JobRecord | None:
    """The same as ``get_job``, on an asynchronous connection."""
    values, text = _question(job_id, schema)
    cursor = _async_cursor(conn)
    try:
        await cursor.execute(text, values)
        return _record(await cursor.fetchone())
    except ABSENT as error:
        raise missing(schema) from error


def wait(
    conn: psycopg.Connection[Any], job_id: UUID, timeout: timedelta | float | None = None, *, schema: str = SCHEMA
) -> ArchivedJob:
    """Wait until a job has ended, however, and return it; ask its ``status``.

    ``timeout``: a timedelta or seconds; None waits for ever. It asks every 50 ms at first, every second later, best on
    a connection in autocommit mode: an open transaction stays open while it waits.

    Raises TimeoutError, UnknownJob, SchemaMissing, what psycopg raises, and BadJob, also where this transaction could
    never see the job end: because it is not READ COMMITTED, or has written something (the job?) that is not committed.
    """
    waiting = _Wait(job_id, timeout)
    cursor = cursor_on(conn)
    if not conn.autocommit or conn.info.transaction_status:
        _refuse_vain(cursor.execute(statement("waits_in_vain", read_schema(schema))).fetchone())
    while True:
        found = waiting.ended(get_job(conn, job_id, schema=schema))
        if found is not None:
            return found
        time.sleep(waiting.pause())


async def wait_async(
    conn: psycopg.AsyncConnection[Any], job_id: UUID, timeout: timedelta | float | None = None, *, schema: str = SCHEMA
) -> ArchivedJob:
    """The same as ``wait``, on an asynchronous connection."""
    waiting = _Wait(job_id, timeout)
    cursor = _async_cursor(conn)
    if not conn.autocommit or conn.info.transaction_status:
        await cursor.execute(statement("waits_in_vain", read_schema(schema)))
        _refuse_vain(await cursor.fetchone())
    while True:
        found = waiting.ended(await get_job_async(conn, job_id, schema=schema))
        if found is not None:
            return found
        await asyncio.sleep(waiting.pause())


class _Wait:
    """When to ask again, and when no more."""

    def __init__(self, job_id: UUID, timeout: timedelta | float | None) -> None:
        self.job_id = job_id
        self.limit = read_seconds("timeout", timeout)
        self.since = time.monotonic()
        self.next = SOON

    def ended(self, found: JobRecord | None) -> ArchivedJob | None:
        if isinstance(found, ArchivedJob):
            return found
        if found is None:
            raise UnknownJob(f"There is no job {self.job_id}, or it is not this role's.")
        if self.limit is not None and time.monotonic() - self.since >= self.limit:
            raise TimeoutError(f"Job {self.job_id} has not ended within {self.limit:g} s; it is {found.status}.")
        return None

    def pause(self) -> float:
        """Seconds until the next question; the last one is asked when the time is up."""
        pause, self.next = self.next, min(self.next * SLOWER, AT_MOST)
        return pause if self.limit is None else max(0.0, min(pause, self.since + self.limit - time.monotonic()))


def _question(job_id: object, schema: object) -> tuple[dict[str, Any], bytes]:
    return {"job_id": read_key("job_id", job_id)}, statement("look_up", read_schema(schema))


def _async_cursor(conn: object) -> psycopg.AsyncCursor[Any]:
    if not isinstance(conn, psycopg.AsyncConnection):
        raise BadJob(f"conn is {shown(conn)}: give an asynchronous connection of psycopg 3.")
    return psycopg.AsyncCursor(conn, row_factory=tuple_row)


def _refuse_vain(row: Sequence[Any] | None) -> None:
    if row is not None and row[0] is not None:
        raise BadJob(f"conn cannot wait for a job: {_VAIN[row[0]]}. Commit first, or give another connection.")


def _record(row: Sequence[Any] | None) -> JobRecord | None:
    if row is None:
        return None
    job_id, queue, job_type, status, reason, attempts, *times, error, result = row
    enqueued_at, process_at, started_at, finished_at = (_moment(text) for text in times)
    known = (UUID(job_id), queue, job_type, status, reason, attempts, enqueued_at, process_at, started_at)
    if status in ("scheduled", "ready", "running"):
        return JobRecord(*known)
    told = tuple(None if text is None else json.loads(text) for text in (error, result))
    return ArchivedJob(*known, finished_at, *told)


def _moment(text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError:  # infinity, or a year that Python does not know
        return None
