"""The application of a chaos run: it enqueues, rolls back, cancels, and remembers what it did.

It keeps a backlog, so that there is always work for who recovers. What it remembers is the truth that the archive is
compared with: a job whose commit was answered is committed; one whose connection broke in the commit is unknown.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

import psycopg

from ganger import NewJob, cancel, enqueue_many
from tests.chaos.ledger import Enqueued, Fate

BACKLOG: Final = 80  # jobs that wait, at least
LONG: Final = 2  # jobs that last longer than a lease, for each host
ROLLED_BACK: Final = 0.1  # of the transactions
CANCELLED: Final = 0.1  # of the sleeping jobs

# Each kind of job: its share, and a payload.
KINDS: Final[dict[str, tuple[float, Callable[[random.Random], dict[str, Any]]]]] = {
    "short": (80, lambda rng: {}),
    "cpu": (8, lambda rng: {"seconds": rng.uniform(0.01, 0.1)}),
    "sleep": (6, lambda rng: {"seconds": rng.choice([0.05, 0.3, 1, 3])}),
    "gil": (5, lambda rng: {"rounds": rng.randrange(10_000, 5_000_000)}),
    "stuck": (1, lambda rng: {}),
    "fork": (4, lambda rng: {"seconds": rng.choice([0, 0.1, 1])}),
    "memory": (2, lambda rng: {"mib": rng.choice([8, 8, 120])}),
    "fail": (6, lambda rng: {"times": rng.choice([1, 2, 3])}),
    "crash": (2, lambda rng: {"times": rng.choice([1, 2, 3]), "signal": rng.choice([signal.SIGKILL, signal.SIGSEGV])}),
    "spool": (5, lambda rng: {}),
}


WAITING: Final = (
    "SELECT count(*) FILTER (WHERE state < 2), count(*) FILTER (WHERE job_type = 'long') FROM proletarian.job"
)


class _RolledBackError(Exception):
    pass


class Application(threading.Thread):
    """``jobs`` and ``transactions`` may be read once it was joined."""

    def __init__(self, conninfo: str, seed: int, hosts: int) -> None:
        super().__init__(name="application")
        self.jobs: dict[str, Enqueued] = {}
        self.transactions: Counter[str] = Counter()
        self._conninfo = conninfo
        self._long = LONG * hosts
        self._rng = random.Random(seed)
        self._orders: deque[tuple[float, str]] = deque()  # cancel orders to come: when, which job
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.is_set():
            try:
                with psycopg.connect(self._conninfo, autocommit=True, options="-c statement_timeout=10s") as conn:
                    while not self._over.is_set():
                        self._work(conn)
            except psycopg.Error:
                self._over.wait(0.2)

    def stop(self) -> None:
        self._over.set()
        self.join()

    def _work(self, conn: psycopg.Connection[Any]) -> None:
        while self._orders and self._orders[0][0] <= time.monotonic():
            _, job_id = self._orders.popleft()
            self.jobs[job_id] = replace(self.jobs[job_id], cancelled=True)
            cancel(conn, UUID(job_id))
        row = conn.execute(WAITING).fetchone()
        assert row is not None
        waiting, long = row
        if long < self._long:
            self._enqueue(conn, [NewJob("long", {"seconds": self._rng.uniform(10, 20)}, priority=-2)])
        elif waiting < BACKLOG:
            keyed = self._rng.random() < 0.3
            self._enqueue(conn, [self._new(keyed) for _ in range(self._rng.choice([1, 5, 20, 40]))])
        else:
            self._over.wait(0.1)

    def _enqueue(self, conn: psycopg.Connection[Any], jobs: list[NewJob]) -> None:
        """One transaction: by COPY, or one by one where the jobs have ids of their own."""
        rng = self._rng
        rolled_back = rng.random() < ROLLED_BACK
        ids: list[str] = []
        fate: Fate = "unknown"
        try:
            with conn.transaction():
                ids = [str(job_id) for job_id in enqueue_many(conn, jobs)]
                if rolled_back:
                    raise _RolledBackError
            fate = "committed"
        except _RolledBackError:
            fate = "rolled back"
        finally:
            self.transactions[fate] += 1
            now = time.monotonic()
            for job_id, job in zip(ids or [str(job.job_id) for job in jobs if job.job_id], jobs, strict=False):
                self.jobs[job_id] = Enqueued(job_id, job.job_type, fate, now)
                if fate == "committed" and job.job_type == "sleep" and rng.random() < CANCELLED:
                    self._orders.append((now + 1, job_id))

    def _new(self, keyed: bool) -> NewJob:
        rng = self._rng
        kind = rng.choices(list(KINDS), [share for share, _ in KINDS.values()])[0]
        return NewJob(
            kind,
            KINDS[kind][1](rng),
            job_id=UUID(int=rng.getrandbits(128), version=4) if keyed else None,
            process_in=rng.uniform(0, 2) if rng.random() < 0.1 else None,
            priority=rng.choice([0, 0, 0, -1, 1]),
        )
