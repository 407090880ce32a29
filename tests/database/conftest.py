"""Connections to the test's database, and a supervisor's row for those that need to be somebody."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from ganger import database as db
from ganger.core.messages import Claim, Job, Lane

S = db.SCHEMA


@pytest.fixture
def connect(database: str) -> Iterator[Callable[..., db.Connection]]:
    """Open as many connections as the test likes; they are closed after it."""
    opened: list[db.Connection] = []

    def open_one(**settings: Any) -> db.Connection:
        opened.append(db.connect(database, **settings))
        return opened[-1]

    yield open_one
    for conn in opened:
        conn.close()


@pytest.fixture
def conn(connect: Callable[..., db.Connection]) -> db.Connection:
    return connect()


@pytest.fixture
def other(connect: Callable[..., db.Connection]) -> db.Connection:
    """A second connection to the same database."""
    return connect()


def facts(name: str = "one", incarnation: UUID | None = None, lease_s: float = 120.0) -> db.SupervisorFacts:
    return db.SupervisorFacts(incarnation or uuid4(), name, "here", 4711, lease_s)


def register(conn: db.Connection, name: str = "one", former: int | None = None) -> int:
    return db.register(conn, S, facts(name), former)[0]


def claim(
    conn: db.Connection, supervisor_id: int, free: int = 1, *queues: str, job_types: tuple[str, ...] | None = None
) -> tuple[Job, ...]:
    """Claim from the queues (of none: ``default``), in one lane."""
    order = Claim(uuid4(), supervisor_id, (Lane(queues or ("default",), free),), job_types)
    return db.claim(conn, S, order)[0]


def rows(conn: db.Connection, columns: str, table: str = "job", order: str = "seq") -> list[tuple[Any, ...]]:
    if table != "job" and order == "seq":
        order = "job_id"
    return conn.execute(f"SELECT {columns} FROM proletarian.{table} ORDER BY {order}".encode()).fetchall()
