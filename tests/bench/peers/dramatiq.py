"""Dramatiq on Redis: two processes with a thread each."""

from __future__ import annotations

import os
import time
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from tests.bench import jobs
from tests.bench.peers.base import RedisPeer
from tests.bench.rig import Rig, program
from tests.bench.servers import Servers

URL = "BENCH_DRAMATIQ_URL"


def actor(url: str) -> Any:
    """The actor on a broker at this address; the worker looks for the broker at ``broker``."""
    global broker
    broker = RedisBroker(url=url)
    dramatiq.set_broker(broker)
    return dramatiq.actor(jobs.run, actor_name="run", max_retries=0)


broker: Any = None
if URL in os.environ:
    actor(os.environ[URL])


class Runner(RedisPeer):
    name = "dramatiq"
    packages = ("dramatiq",)
    database = 3
    settings = "`dramatiq --processes 2 --threads 1`, broker and middleware as they come, max_retries=0"

    def __init__(self, rig: Rig, servers: Servers) -> None:
        super().__init__(rig, servers)
        self.url = f"unix://{servers.redis}?db={self.database}"
        self._actor = actor(self.url)

    def commands(self) -> list[list[str]]:
        return [[program("dramatiq"), "tests.bench.peers.dramatiq", "--processes", "2", "--threads", "1"]]

    def environ(self) -> dict[str, str]:
        return {URL: self.url}

    def enqueue(self, kind: str, number: int, *, limit: float | None = None) -> None:
        options = {} if limit is None else {"time_limit": 1000 * limit}
        self._actor.send_with_options(args=(kind, number, time.monotonic()), **options)

    def pending(self) -> int:
        return int(self.redis.hlen("dramatiq:default.msgs"))
