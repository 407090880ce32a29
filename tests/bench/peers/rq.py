"""RQ on Redis: a fork per job, its default."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import rq

from tests.bench.peers.base import RedisPeer
from tests.bench.rig import Rig, program
from tests.bench.servers import Servers

BODY = "tests.bench.jobs.run"


class Runner(RedisPeer):
    name = "rq"
    packages = ("rq",)
    database = 2
    settings = "`rq worker-pool -n 2 -l WARNING`, the default worker"
    jobs: ClassVar[Mapping[str, int]] = {"w1": 600, "w1f": 600, "w2": 600, "w4": 500}

    def __init__(self, rig: Rig, servers: Servers) -> None:
        super().__init__(rig, servers)
        self._queue: Any = rq.Queue("default", connection=self.redis)

    def commands(self) -> list[list[str]]:
        url = f"unix://{self.servers.redis}?db={self.database}"
        return [[program("rq"), "worker-pool", "-n", "2", "-l", "WARNING", "-u", url, "default"]]

    def enqueue(self, kind: str, number: int, *, limit: float | None = None) -> None:
        self._queue.enqueue(BODY, args=(kind, number, time.monotonic()), job_timeout=limit and int(limit))

    def enqueue_many(self, kind: str, numbers: Sequence[int]) -> None:
        data = [rq.Queue.prepare_data(BODY, args=(kind, number, time.monotonic())) for number in numbers]
        self._queue.enqueue_many(data)

    def pending(self) -> int:
        return int(self.redis.llen("rq:queue:default")) + int(self.redis.zcard("rq:wip:default"))
