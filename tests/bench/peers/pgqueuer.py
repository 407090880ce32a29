"""pgqueuer: PostgreSQL and asyncio. One process per CPU, as its documentation says; nothing isolates the jobs in it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

from tests.bench import jobs
from tests.bench.peers.base import PostgresPeer
from tests.bench.rig import Rig, program
from tests.bench.servers import Servers

URL = "BENCH_PGQUEUER_URL"


@asynccontextmanager
async def worker() -> AsyncIterator[Any]:
    """What `pgq run` is given."""
    conn = await asyncpg.connect(os.environ[URL])
    queuer = PgQueuer(AsyncpgDriver(conn))

    async def job(job: Any) -> None:
        await asyncio.to_thread(jobs.run, *json.loads(job.payload))  # its documentation: blocking code into a thread

    queuer.entrypoint("job")(job)
    try:
        yield queuer
    finally:
        await conn.close()


class Runner(PostgresPeer):
    name = "pgqueuer"
    packages = ("pgqueuer", "asyncpg")
    settings = "2 x `pgq run --shutdown-on-listener-failure`, batch size 10, unlimited tasks, durable (defaults)"
    lacks: ClassVar[Mapping[str, str]] = {"w6": "has no time limit for a job"}

    def __init__(self, rig: Rig, servers: Servers) -> None:
        super().__init__(rig, servers)
        subprocess.run([program("pgq"), "--pg-dsn", self.url, "install"], check=True, capture_output=True)
        self._loop = asyncio.new_event_loop()
        self._conn = self._run(asyncpg.connect(self.url))
        self._queries = Queries(AsyncpgDriver(self._conn))

    def _run(self, awaitable: Awaitable[Any]) -> Any:
        return self._loop.run_until_complete(awaitable)

    def reset(self) -> None:
        self.conn.execute("TRUNCATE pgqueuer, pgqueuer_log, pgqueuer_statistics RESTART IDENTITY")

    def commands(self) -> list[list[str]]:
        return [[program("pgq"), "run", "tests.bench.peers.pgqueuer:worker", "--shutdown-on-listener-failure"]] * 2

    def environ(self) -> dict[str, str]:
        return {URL: self.url}

    def enqueue(self, kind: str, number: int, *, limit: float | None = None) -> None:
        self._run(self._queries.enqueue("job", json.dumps([kind, number, time.monotonic()]).encode()))

    def enqueue_many(self, kind: str, numbers: Sequence[int]) -> None:
        payloads = [json.dumps([kind, number, time.monotonic()]).encode() for number in numbers]
        self._run(self._queries.enqueue(["job"] * len(payloads), payloads, [0] * len(payloads)))

    def enqueue_together(self, kind: str, numbers: Sequence[int]) -> None:
        async def together() -> None:
            async with self._conn.transaction():
                for number in numbers:
                    await self._queries.enqueue("job", json.dumps([kind, number, time.monotonic()]).encode())

        self._run(together())

    def pending(self) -> int:
        return self.number("SELECT count(*) FROM pgqueuer")

    def close(self) -> None:
        self._run(self._conn.close())
        self._loop.close()
        super().close()
