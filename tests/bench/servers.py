"""The servers of one run: a PostgreSQL of its own with all durability defaults, and a Redis where a peer needs one.

Redis is taken from PATH and runs with its defaults too (snapshots, no append-only file): what it has acknowledged is in
memory, not on disk, which is a lighter promise than PostgreSQL's. Both live in the run's folder and end with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import psycopg
from psycopg import sql

from ganger.local_postgres import LocalPostgres
from ganger_child.guard import die_with_parent
from tests.bench.rig import FOLDER, MEMORY, await_


@dataclass(frozen=True)
class Servers:
    """How they are reached, and their pids, whose CPU counts as the queue's."""

    postgres: str
    postgres_pid: int
    postgres_version: str
    redis: str | None = None  # a Unix socket
    redis_pid: int | None = None
    redis_version: str = ""

    def database(self, name: str) -> str:
        """Make a new database and return its URL."""
        with psycopg.connect(self.postgres, autocommit=True) as conn:
            conn.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
            conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.postgres.replace("/postgres?", f"/{name}?", 1)


def sweep() -> None:
    """Stop and remove what killed runs left: their programs died with them, but PostgreSQL belongs to nobody."""
    for place in (Path(tempfile.gettempdir()), MEMORY):
        for folder in place.glob(f"{FOLDER}*"):
            pid = folder.name.removeprefix(FOLDER).partition("-")[0]
            if pid.isdigit() and not psutil.pid_exists(int(pid)):
                LocalPostgres(folder / "postgres").reset()
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def servers(folder: Path, *, redis: bool) -> Iterator[Servers]:
    """Start PostgreSQL, and Redis if it is wanted and there is one."""
    local = LocalPostgres(folder / "postgres", durable=True)
    try:
        url = local.start()
        with psycopg.connect(url) as conn:
            row = conn.execute("SELECT current_setting('server_version'), current_setting('data_directory')").fetchone()
        assert row is not None
        pid = int((Path(row[1]) / "postmaster.pid").read_text().split()[0])
        with _redis(folder) if redis else _nothing() as found:
            yield Servers(url, pid, row[0].split()[0], *found)
    finally:
        local.stop()


@contextmanager
def _nothing() -> Iterator[tuple[()]]:
    yield ()


@contextmanager
def _redis(folder: Path) -> Iterator[tuple[str, int, str] | tuple[()]]:
    program = shutil.which("redis-server")
    if program is None:
        yield ()
        return
    socket = folder / "redis.sock"
    options = ["--port", "0", "--unixsocket", str(socket), "--dir", str(folder), "--daemonize", "no"]
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    with open(folder / "redis.log", "ab") as log:
        process = subprocess.Popen(
            [program, *options], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )  # fmt: skip
    try:
        await_(socket.exists, 10, f"the socket of {program}")
        yield str(socket), process.pid, version.partition("v=")[2].split()[0]
    finally:
        process.terminate()
        process.wait()
