"""Procrastinate on PostgreSQL: two workers with one job each; it logs and keeps what it has done."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import procrastinate

from tests.bench import jobs
from tests.bench.peers.base import PostgresPeer
from tests.bench.rig import Rig, program
from tests.bench.servers import Servers

URL = "BENCH_PROCRASTINATE_URL"


def _with_task(made: Any) -> tuple[Any, Any]:
    return made, made.task(name="job", queue="default")(jobs.run)


# What the worker is given.
app: Any = _with_task(procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=os.environ.get(URL, ""))))[0]


class Runner(PostgresPeer):
    name = "procrastinate"
    packages = ("procrastinate",)
    settings = "2 x `procrastinate worker --concurrency 1`, defaults otherwise"
    lacks: ClassVar[Mapping[str, str]] = {
        "w6": "has no time limit for a job",
        "w7": "needs a periodic task for that",
    }

    def __init__(self, rig: Rig, servers: Servers) -> None:
        super().__init__(rig, servers)
        connector = procrastinate.SyncPsycopgConnector(conninfo=self.url, min_size=1, max_size=1)
        self._app, self._task = _with_task(procrastinate.App(connector=connector))
        self._app.open()
        self._app.schema_manager.apply_schema()

    def reset(self) -> None:
        tables = ", ".join(f"procrastinate_{name}" for name in ("jobs", "events", "periodic_defers", "workers"))
        self.conn.execute(f"TRUNCATE {tables} RESTART IDENTITY CASCADE".encode())

    def commands(self) -> list[list[str]]:
        command = [
            program("procrastinate"),
            "--app",
            "tests.bench.peers.procrastinate.app",
            "worker",
            "--concurrency",
            "1",
        ]
        return [command] * 2

    def environ(self) -> dict[str, str]:
        return {URL: self.url}

    def enqueue(self, kind: str, number: int, *, limit: float | None = None) -> None:
        self._task.defer(kind=kind, number=number, sent=time.monotonic())

    def enqueue_many(self, kind: str, numbers: Sequence[int]) -> None:
        self._task.batch_defer(*[{"kind": kind, "number": n, "sent": time.monotonic()} for n in numbers])

    def pending(self) -> int:
        return self.number("SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')")

    def close(self) -> None:
        self._app.close()
        super().close()
