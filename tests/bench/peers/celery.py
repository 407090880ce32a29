"""Celery on Redis, set so that it loses no job when a child dies: late acknowledgement, one job fetched at a time."""

from __future__ import annotations

import base64
import json
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import celery

from tests.bench import jobs
from tests.bench.peers.base import RedisPeer
from tests.bench.rig import Rig, program
from tests.bench.servers import Servers

BROKER = "BENCH_CELERY_BROKER"

app: Any = celery.Celery("bench", broker=os.environ.get(BROKER, "memory://"))
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)
job: Any = app.task(name="job")(jobs.run)


class Runner(RedisPeer):
    name = "celery"
    packages = ("celery", "kombu")
    database = 1
    jobs: ClassVar[Mapping[str, int]] = {"w1": 1500, "w2": 1000}
    settings = (
        "`celery worker -P prefork -c 2 -l WARNING`, acks_late, reject_on_worker_lost, prefetch multiplier 1, "
        "no result backend"
    )

    def __init__(self, rig: Rig, servers: Servers) -> None:
        super().__init__(rig, servers)
        self.broker = f"redis+socket://{servers.redis}?virtual_host={self.database}"
        app.conf.broker_url = self.broker
        self._producer: Any = app.amqp.Producer(app.connection_for_write())

    def commands(self) -> list[list[str]]:
        return [
            [program("celery"), "-A", "tests.bench.peers.celery", "worker", "-P", "prefork", "-c", "2", "-l", "WARNING"]
        ]

    def environ(self) -> dict[str, str]:
        return {BROKER: self.broker}

    def enqueue(self, kind: str, number: int, *, limit: float | None = None) -> None:
        job.apply_async((kind, number, time.monotonic()), **({} if limit is None else {"time_limit": limit}))

    def fill(self, kind: str, count: int) -> None:
        for number in range(count):
            job.apply_async((kind, number, time.monotonic()), producer=self._producer)

    def backlog(self, ready: int) -> None:
        """No bulk call: one message is published, and copies of it with ids of their own are pushed behind it."""
        self.enqueue("noop", 0)
        first = self.redis.lindex("celery", 0).decode()
        task = json.loads(first)["properties"]["correlation_id"]
        arguments = [[], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]
        for begin in range(1, ready, 2000):
            self.redis.lpush("celery", *(_copy(first, task, arguments, n) for n in range(begin, begin + 2000)))

    def pending(self) -> int:
        return int(self.redis.llen("celery")) + int(self.redis.hlen("unacked"))


def _copy(first: str, task: str, arguments: Sequence[Any], number: int) -> str:
    message = json.loads(first.replace(task, str(uuid.uuid4())))
    message["properties"]["delivery_tag"] = str(uuid.uuid4())
    body = json.dumps([["noop", number, time.monotonic()], *arguments[1:]])
    message["body"] = base64.b64encode(body.encode()).decode()
    return json.dumps(message)
