"""What the database tells ``ganger top``, read in a thread of its own: a database that is slow or away stops no screen.

Orders are carried out there too, between two readings. After an error it connects anew; what it told last is not shown
on, because nobody knows whether it is still so.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from ganger import database, locate
from ganger.database import Connection
from ganger.sql import statement
from ganger.top.model import Ended, Progress, Queue, Run, Stored, Supervisor

EVERY = 1.0  # seconds between two readings
SHARE = 20  # a reading may take a twentieth of the time: where queues are long, it is done less often
MOST_RUNS = 2000
MOST_ENDED = 50
PATIENCE = 10.0  # seconds that the statement of a reading may take

Order = Callable[[Connection, str], str]


def read(conn: Connection, schema: str) -> Stored:
    """One reading, in one transaction."""
    with database.transaction(conn, limit=PATIENCE):

        def rows(name: str, **values: int) -> list[tuple[object, ...]]:
            return conn.execute(statement(name, schema), values or None).fetchall()

        supervisors = [database.SupervisorStatus(*row) for row in rows("status_supervisors")]  # type: ignore[arg-type]
        progress, limits = _progress(supervisors), _limits(supervisors)
        runs = tuple(
            Run(*row, progress.get(str(row[0]), Progress()))  # type: ignore[call-arg, arg-type]
            for row in rows("top_running", most=MOST_RUNS)
        )
        runs = tuple(replace(run, limit=limits.get(str(run.job_id), run.limit)) for run in runs)
        queues = tuple(Queue(*row) for row in rows("status_queues"))  # type: ignore[arg-type]
        ended = tuple(Ended(*row) for row in rows("top_ended", most=MOST_ENDED))  # type: ignore[arg-type]
    return Stored(tuple(_supervisor(one) for one in supervisors), runs, queues, ended)


def _progress(supervisors: Iterable[database.SupervisorStatus]) -> dict[str, Progress]:
    """What the runs have told of their progress, by job id. What is left has passed on since the supervisor said so."""
    return {
        job_id: Progress(
            percent=None if told.get("done") is None else int(told["done"] * 100),
            note=str(told.get("note") or ""),
            left=None if told.get("left") is None else max(0.0, told["left"] - one.beat_age_s),
        )
        for one in supervisors
        for job_id, told in one.info.get("progress", {}).items()
    }


def _limits(supervisors: Iterable[database.SupervisorStatus]) -> dict[str, float]:
    """Time limits that come from the job type or the supervisor, by job id."""
    return {job_id: seconds for one in supervisors for job_id, seconds in one.info.get("limits", {}).items()}


def _supervisor(one: database.SupervisorStatus) -> Supervisor:
    lanes = {name: int(lane.get("slots", 0)) for name, lane in one.info.get("lanes", {}).items()}
    return Supervisor(
        name=one.name, host=one.host, pid=one.pid, phase=one.phase, running=one.running, slots=sum(lanes.values()),
        lanes=tuple(lanes.items()), beat_age=one.beat_age_s, lease=one.lease_s, supervisor_id=one.supervisor_id,
    )  # fmt: skip


def read_once(database_url: str | None, schema: str) -> Stored:
    """One reading on a connection of its own. Never raises for a database that cannot be read."""
    try:
        with _connect(database_url, schema) as conn:
            return read(conn, schema)
    except Exception as error:
        return Stored(error=_sentence(error))


def _connect(database_url: str | None, schema: str) -> Connection:
    """As every command, but a local PostgreSQL that does not run is not started only to be looked at."""
    place = locate.named(database_url)
    if place is None:
        from ganger.local_postgres import LocalPostgres

        local = LocalPostgres()
        if not local.running():
            raise database.DatabaseUnreachable(f"The local PostgreSQL in {local.data_dir} does not run.")
        place = locate.locate(None)
    conn = database.connect(place.conninfo, name="ganger top")
    try:
        database.check_schema(conn, schema)
    except BaseException:
        conn.close()
        raise
    return conn


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


class Reader:
    """Reads again and again until it is closed. ``latest`` is None until the first reading has come."""

    def __init__(self, database_url: str | None, schema: str, on_news: Callable[[], object]) -> None:
        self.latest: Stored | None = None
        self.said = ""  # what came of the last order
        self._place = database_url, schema
        self._on_news = on_news
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="ganger top", daemon=True)
        self._thread.start()

    def order(self, order: Order) -> None:
        """Have something done; ``said`` tells what came of it."""
        self._orders.put(order)

    def close(self, limit: float = 0.5) -> None:
        """Stop. A database that does not answer is not waited for: the thread is a daemon."""
        self._closed = True
        self._orders.put(None)
        self._thread.join(limit)

    def _run(self) -> None:
        conn: Connection | None = None
        order: Order | None = None
        while not self._closed:
            began = time.monotonic()
            try:
                if conn is None:
                    conn = _connect(*self._place)
                if order is not None:
                    self.said = order(conn, self._place[1])
                self.latest = read(conn, self._place[1])
            except Exception as error:
                if order is not None:
                    self.said = f"Not done: {_sentence(error)}"
                else:
                    self.latest = Stored(error=_sentence(error))
                if conn is not None and database.lost(error, conn):
                    conn.close()
                    conn = None
            self._on_news()
            order = self._next_order(max(EVERY, SHARE * (time.monotonic() - began)))
        if conn is not None:
            conn.close()

    def _next_order(self, limit: float) -> Order | None:
        try:
            return self._orders.get(timeout=limit)
        except queue.Empty:
            return None
