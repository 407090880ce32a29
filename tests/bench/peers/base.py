"""What a measurement needs of a queue. A peer says how it does each thing by its own public means and defaults."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import psycopg

from tests.bench.rig import Fleet, Rig
from tests.bench.servers import Servers


class Peer:
    """One queue. ``settings`` is told in the report; ``lacks`` says, per workload, why it cannot be measured."""

    name: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ()  # whose versions are told
    needs_redis: ClassVar[bool] = False
    settings: ClassVar[str] = ""
    lacks: ClassVar[Mapping[str, str]] = {}
    jobs: ClassVar[Mapping[str, int]] = {}  # at most so many in a workload, where all of them would take minutes

    def __init__(self, rig: Rig, servers: Servers) -> None:
        self.rig, self.servers = rig, servers

    # ---- by each peer ------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Empty the queue and everything about finished jobs."""
        raise NotImplementedError

    def commands(self) -> list[list[str]]:
        """Its worker with two slots, one or more programs."""
        raise NotImplementedError

    def environ(self) -> dict[str, str]:
        return {}

    def enqueue(self, kind: str, number: int, *, limit: float | None = None) -> None:
        """One job by the call that an application would use; ``limit`` is a time limit in seconds."""
        raise NotImplementedError

    def enqueue_many(self, kind: str, numbers: Sequence[int]) -> None:
        """Many jobs by the quickest public call; where there is none, one by one."""
        for number in numbers:
            self.enqueue(kind, number)

    def enqueue_together(self, kind: str, numbers: Sequence[int]) -> None:
        """One by one inside one transaction."""
        raise NotImplementedError

    def pending(self) -> int:
        """How many jobs are not finished and stored as such."""
        raise NotImplementedError

    def backlog(self, ready: int) -> None:
        """Fill the queue with no-op jobs, however that is quickest."""
        for first in range(0, ready, 5000):
            self.enqueue_many("noop", range(first, min(ready, first + 5000)))

    # ---- for all -----------------------------------------------------------------------------------------------------

    @property
    def has_bulk(self) -> bool:
        return type(self).enqueue_many is not Peer.enqueue_many

    @property
    def has_transactions(self) -> bool:
        return type(self).enqueue_together is not Peer.enqueue_together

    @property
    def stores(self) -> list[int]:
        """The pids of the servers it works with."""
        pid = self.servers.redis_pid if self.needs_redis else self.servers.postgres_pid
        assert pid is not None
        return [pid]

    @property
    def version(self) -> str:
        return ", ".join(f"{package} {importlib.metadata.version(package)}" for package in self.packages)

    def fill(self, kind: str, count: int) -> None:
        """Enqueue so many jobs, a thousand at a time."""
        for first in range(0, count, 1000):
            self.enqueue_many(kind, range(first, min(count, first + 1000)))

    def settle(self) -> None:
        """Have the store do now what it would otherwise do in the middle of the measurement."""

    def close(self) -> None:
        """Let go of connections."""

    @contextmanager
    def running(self) -> Iterator[Fleet]:
        with self.rig.running(self.commands(), self.environ()) as fleet:
            yield fleet

    @contextmanager
    def warm(self) -> Iterator[Fleet]:
        """A running worker whose slots have worked and are idle."""
        self.reset()
        self.rig.records.clear()
        with self.running() as fleet:
            for number in range(6):
                self.enqueue("nap", WARM + number)
            self.rig.records.await_count(12, 60)
            time.sleep(1.0)
            self.rig.records.clear()
            yield fleet


WARM = 900_000  # numbers of the jobs that only warm up


class PostgresPeer(Peer):
    """A peer that keeps its queue in PostgreSQL, in a database of its own."""

    def __init__(self, rig: Rig, servers: Servers) -> None:
        super().__init__(rig, servers)
        self.url = servers.database(f"bench_{self.name}")
        self.conn: psycopg.Connection[Any] = psycopg.connect(self.url, autocommit=True)

    def number(self, query: str) -> int:
        row = self.conn.execute(query.encode()).fetchone()
        assert row is not None
        return int(row[0])

    def settle(self) -> None:
        self.conn.execute("VACUUM (ANALYZE)")
        self.conn.execute("CHECKPOINT")

    def close(self) -> None:
        self.conn.close()


class RedisPeer(Peer):
    """A peer that keeps its queue in Redis, in a numbered database of its own."""

    needs_redis: ClassVar[bool] = True
    database: ClassVar[int]

    def __init__(self, rig: Rig, servers: Servers) -> None:
        super().__init__(rig, servers)
        import redis

        self.redis: Any = redis.Redis(unix_socket_path=servers.redis, db=self.database)

    def reset(self) -> None:
        self.redis.flushdb()

    def close(self) -> None:
        self.redis.close()
