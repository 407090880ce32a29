"""The floor: what the same machine does with the least that any queue has to do, measured in the same rounds.

Raw psycopg on two plain tables, a bare fork, a bare socket. Where a value has the key of a workload's metric, that
metric's goals can be told as shares of it; the others explain.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import time
import uuid
from collections.abc import Callable
from typing import Any, Final

import psycopg

from tests.bench.jobs import compute
from tests.bench.servers import Servers
from tests.bench.throughput import Values

TABLES: Final = """
CREATE TABLE job (job_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, priority int NOT NULL DEFAULT 0,
                  process_at timestamptz NOT NULL DEFAULT now(), state int NOT NULL DEFAULT 1, payload jsonb NOT NULL);
CREATE INDEX ON job (priority, process_at, job_id) WHERE state = 1;
CREATE TABLE archived_job (job_id bigint PRIMARY KEY, payload jsonb, finished_at timestamptz DEFAULT now());
"""
FILL: Final = "INSERT INTO job (payload) SELECT jsonb_build_object('n', n) FROM generate_series(1, %s) AS n"
CLAIM: Final = """UPDATE job SET state = 2 WHERE job_id IN (
    SELECT job_id FROM job WHERE state = 1 ORDER BY priority, process_at, job_id LIMIT %s FOR UPDATE SKIP LOCKED)
    RETURNING job_id, payload"""
FINISH: Final = """WITH gone AS (DELETE FROM job WHERE job_id = ANY (%s) RETURNING job_id, payload)
    INSERT INTO archived_job (job_id, payload) SELECT * FROM gone"""
INSERT: Final = "INSERT INTO job (payload) VALUES ('[\"noop\", 1, 1.0]')"
COPY: Final = "COPY job (payload) FROM STDIN"


class Floor:
    """Takes its turn like a peer."""

    name = "floor"
    settings = "raw psycopg on one connection, a bare fork, a bare socket pair"

    def __init__(self, servers: Servers) -> None:
        self.conn: psycopg.Connection[Any] = psycopg.connect(servers.database("bench_floor"), autocommit=True)
        self.conn.execute(TABLES)

    def close(self) -> None:
        self.conn.close()

    def measure(self, workload: str) -> Values | None:
        """The floor's values for a workload; None where there is nothing to compare."""
        measure = FLOORS.get(workload)
        return None if measure is None else measure(self)

    def claim_and_archive(self) -> Values:
        return {"jobs_s": self._drain(10_000, 50), "one_by_one_s": self._drain(500, 1)}

    def _drain(self, jobs: int, batch: int) -> float:
        """A claim and a finish of so many jobs, each a transaction of its own, as it has to be."""
        self.conn.execute("TRUNCATE job, archived_job")
        self.conn.execute(FILL, [jobs])
        self.conn.execute("VACUUM ANALYZE job")
        self.conn.execute("CHECKPOINT")
        begin = time.monotonic()
        for _ in range(jobs // batch):
            claimed = [row[0] for row in self.conn.execute(CLAIM, [batch])]
            self.conn.execute(FINISH, [claimed])
        return jobs / (time.monotonic() - begin)

    def fork_and_wait(self) -> Values:
        return {"jobs_s": 1 / _each(200, _fork)}

    def beside_a_job(self) -> Values:
        """What all of them pay who hand jobs to processes: a message, and caches that a job has left cold."""
        return {"message_us": self._message_and_back() * 1e6, "cold_x": _cold()}

    def _message_and_back(self) -> float:
        """To a child and back, in seconds."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            ours.close()
            while data := theirs.recv(100):
                theirs.send(data)
            os._exit(0)
        theirs.close()
        taken = _each(3000, lambda: (ours.send(b"job"), ours.recv(100)))
        ours.close()
        os.waitpid(pid, 0)
        return taken

    def round_trip_and_commit(self) -> Values:
        return {
            "round_trip_ms": _each(500, lambda: self.conn.execute("SELECT 1")) * 1000,
            "commit_ms": _each(300, lambda: self.conn.execute(INSERT)) * 1000,
        }

    def inserts(self) -> Values:
        return {"single_s": 1 / _each(1000, lambda: self.conn.execute(INSERT)), "bulk_s": 1000 / _each(20, self._copy)}

    def _copy(self) -> None:
        with self.conn.transaction(), self.conn.cursor().copy(COPY) as copy:
            for number in range(1000):
                copy.write_row([f'["noop", {number}, 1.0]'])


FLOORS: Final[dict[str, Callable[[Floor], Values]]] = {
    "w1": Floor.claim_and_archive,
    "w1f": Floor.fork_and_wait,
    "w2": Floor.beside_a_job,
    "w3": Floor.round_trip_and_commit,
    "w5": Floor.inserts,
}


def _fork() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _cold() -> float:
    """How many times longer some everyday code takes right after 5 ms of computing than over and over again."""
    warm = _each(300, _everyday)
    cold = 0.0
    for _ in range(100):
        compute(0.005)
        begin = time.monotonic()
        _everyday()
        cold += time.monotonic() - begin
    return cold / 100 / warm


def _everyday() -> None:
    """A little of what any queue in Python does beside a job; about 0.2 ms when it is warm."""
    for number in range(6):
        told = json.loads(json.dumps({"id": str(uuid.UUID(int=number)), "at": time.time(), "limits": [None, number]}))
        uuid.UUID(told["id"])
        os.getcwd()
        os.fstat(1)
        resource.getrusage(resource.RUSAGE_SELF)
        time.strftime("%H:%M:%S", time.gmtime(told["at"]))


def _each(times: int, call: Callable[[], object]) -> float:
    """Seconds per call."""
    begin = time.monotonic()
    for _ in range(times):
        call()
    return (time.monotonic() - begin) / times
