"""Chancy on PostgreSQL: one worker with two processes, and eager polling, without which it takes two jobs in 5 s."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import chancy as product

from tests.bench import jobs
from tests.bench.peers.base import PostgresPeer
from tests.bench.rig import Rig, program
from tests.bench.servers import Servers

URL = "BENCH_CHANCY_URL"


def run(*, kind: str, number: int, sent: float) -> None:
    jobs.run(kind, number, sent)


def _app(url: str) -> Any:
    log = logging.getLogger("chancy")
    log.setLevel(logging.WARNING)
    return product.Chancy(url, log=log)


app: Any = _app(os.environ[URL]) if URL in os.environ else None


class Runner(PostgresPeer):
    name = "chancy"
    packages = ("chancy",)
    settings = "`chancy worker start`, Queue(concurrency=2, eager_polling=True), defaults otherwise"
    jobs: ClassVar[Mapping[str, int]] = {"w1": 1000, "w2": 600, "w4": 500}

    def __init__(self, rig: Rig, servers: Servers) -> None:
        super().__init__(rig, servers)

        async def prepare() -> None:
            async with product.Chancy(self.url) as made:
                await made.migrate()
                await made.declare(product.Queue("default", concurrency=2, eager_polling=True), upsert=True)

        asyncio.run(prepare())
        self._app = _app(self.url)
        self._app.__enter__()

    def reset(self) -> None:
        self.conn.execute("TRUNCATE chancy_jobs")
        self.conn.execute("DELETE FROM chancy_workers")

    def commands(self) -> list[list[str]]:
        return [[program("chancy"), "--app", "tests.bench.peers.chancy.app", "worker", "start"]]

    def environ(self) -> dict[str, str]:
        return {URL: self.url}

    def _job(self, kind: str, number: int, limit: float | None = None) -> Any:
        limits = [] if limit is None else [product.Limit(product.Limit.Type.TIME, int(limit))]
        arguments = {"kind": kind, "number": number, "sent": time.monotonic()}
        return product.Job(func="tests.bench.peers.chancy.run", kwargs=arguments, limits=limits)

    def enqueue(self, kind: str, number: int, *, limit: float | None = None) -> None:
        self._app.sync_push(self._job(kind, number, limit))

    def enqueue_many(self, kind: str, numbers: Sequence[int]) -> None:
        list(self._app.sync_push_many([self._job(kind, number) for number in numbers]))

    def backlog(self, ready: int) -> None:
        """One job by its own call, then copies of the row: its bulk call inserts row by row."""
        self.enqueue("noop", 0)
        query = "SELECT column_name FROM information_schema.columns WHERE table_name = 'chancy_jobs'"
        columns = [row[0] for row in self.conn.execute(query)]
        values = ["gen_random_uuid()" if column == "id" else column for column in columns]
        self.conn.execute(
            f"INSERT INTO chancy_jobs ({', '.join(columns)}) SELECT {', '.join(values)} "
            f"FROM chancy_jobs, generate_series(2, {ready})".encode()
        )

    def pending(self) -> int:
        return self.number("SELECT count(*) FROM chancy_jobs WHERE state IN ('pending', 'running', 'retrying')")

    def close(self) -> None:
        self._app.__exit__(None, None, None)
        super().close()
