"""Huey on Redis: two processes. A job leaves the queue before it runs, so it runs at most once."""

from __future__ import annotations

import os
import time
from typing import Any

import huey as product

from tests.bench import jobs
from tests.bench.peers.base import RedisPeer
from tests.bench.rig import Rig, program
from tests.bench.servers import Servers

URL = "BENCH_HUEY_URL"


def instance(url: str) -> tuple[Any, Any]:
    """The queue at this address and its task."""
    made = product.RedisHuey("bench", url=url)
    return made, made.task(name="job")(jobs.run)


huey: Any = instance(os.environ[URL])[0] if URL in os.environ else None


class Runner(RedisPeer):
    name = "huey"
    packages = ("huey",)
    database = 4
    settings = "`huey_consumer -k process -w 2`, RedisHuey as it comes"

    def __init__(self, rig: Rig, servers: Servers) -> None:
        super().__init__(rig, servers)
        self.url = f"unix://{servers.redis}?db={self.database}"
        self._huey, self._task = instance(self.url)

    def commands(self) -> list[list[str]]:
        return [[program("huey_consumer"), "tests.bench.peers.huey.huey", "-k", "process", "-w", "2"]]

    def environ(self) -> dict[str, str]:
        return {URL: self.url}

    def enqueue(self, kind: str, number: int, *, limit: float | None = None) -> None:
        options = {} if limit is None else {"timeout": limit}
        self._huey.enqueue(self._task.s(kind, number, time.monotonic(), **options))

    def pending(self) -> int:
        return int(self._huey.pending_count())
