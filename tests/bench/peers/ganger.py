"""ganger itself: one supervisor with two slots, settings as they come; the events of single jobs are not logged."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from psycopg.types.json import Jsonb

from ganger import NewJob, enqueue, enqueue_many
from ganger.database import connect, install
from tests.bench.peers.base import PostgresPeer
from tests.bench.rig import Fleet, Rig
from tests.bench.servers import Servers


class Runner(PostgresPeer):
    name = "ganger"
    packages = ("ganger", "psycopg")
    settings = "`ganger run … -c 2 --log-level warning`, defaults otherwise"

    def __init__(self, rig: Rig, servers: Servers) -> None:
        super().__init__(rig, servers)
        with connect(self.url) as conn:
            install(conn)

    def reset(self) -> None:
        tables = ", ".join(f"proletarian.{table}" for table in ("job", "archived_job", "supervisor", "idle"))
        self.conn.execute(f"TRUNCATE {tables}".encode())

    def commands(self) -> list[list[str]]:
        return [self.supervisor()]

    def environ(self) -> dict[str, str]:
        return {"DATABASE_URL": self.url, "XDG_RUNTIME_DIR": str(self.rig.folder)}

    def enqueue(self, kind: str, number: int, *, limit: float | None = None, job_type: str = "job") -> None:
        grace = None if limit is None else 0.0
        enqueue(self.conn, job_type, [kind, number, time.monotonic()], timeout=limit, grace=grace)

    def enqueue_many(self, kind: str, numbers: Sequence[int]) -> None:
        sent = time.monotonic()
        enqueue_many(self.conn, [NewJob("job", [kind, number, sent]) for number in numbers])

    def enqueue_together(self, kind: str, numbers: Sequence[int]) -> None:
        with self.conn.transaction():
            for number in numbers:
                self.enqueue(kind, number)

    def pending(self) -> int:
        return self.number("SELECT count(*) FROM proletarian.job")

    def backlog(self, ready: int) -> None:
        self.rows(ready, "now() - interval '1 hour'", 1)

    def schedule(self, count: int) -> None:
        """Rows that become due long after the measurement."""
        self.rows(count, "now() + interval '1 day'", 0)

    def rows(self, count: int, due: str, state: int) -> None:
        query = f"""INSERT INTO proletarian.job (job_type, payload, process_at, state)
                    SELECT 'job', %s, {due} + n * interval '1 ms', {state} FROM generate_series(1, {count}) AS n"""
        self.conn.execute(query.encode(), [Jsonb(["noop", 0, 0.0])])

    # ---- what only ganger is asked ----------------------------------------------------------------------------------

    @staticmethod
    def supervisor(*options: str, slots: int = 2, target: str = "tests.bench.handlers:handlers") -> list[str]:
        return [sys.executable, "-m", "ganger", "run", target, "-c", str(slots), "--log-level", "warning", *options]

    @contextmanager
    def supervisors(self, *commands: list[str], environ: dict[str, str] | None = None) -> Iterator[Fleet]:
        with self.rig.running(commands, {**self.environ(), **(environ or {})}) as fleet:
            yield fleet
