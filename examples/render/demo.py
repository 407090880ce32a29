"""The demo: a picture is rendered while jobs are killed, limits pass and the supervisor is told to stop.

It plays the application (enqueues), the operator (looks at the process tree, sends a SIGTERM) and the accident (a
SIGKILL from outside) around a ``ganger run`` that is a program of its own, as in production. Its PostgreSQL lies in
GANGER_DATA_DIR, or in a folder that is removed at the end.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import psycopg

from examples.render import png
from ganger import NewJob, enqueue, enqueue_many
from ganger.client import cancel
from ganger.database import connect, install
from ganger.local_postgres import LocalPostgres, LocalPostgresError
from ganger_child import titles

WIDTH, HEIGHT = 420, 280
COLUMNS, ROWS = 6, 5  # of tiles
SLOTS = 3
LIMIT = 50.0  # seconds that any step may take before the demo gives up
PICTURE = Path("render.png")


class DemoError(Exception):
    """Something did not come as announced."""


def main() -> int:
    """Run the demo and return its exit code."""
    try:
        with local_postgres() as conninfo, connect(conninfo) as conn:
            install(conn)
            say(f"Enqueueing {COLUMNS * ROWS} tiles of a picture, and two jobs that will not go well")
            stuck, victim = enqueue_all(conn)
            with supervisor(conninfo) as process:
                show(conn, process, stuck, victim)
            write_picture(conn)
            summarise(conn)
    except (DemoError, LocalPostgresError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


def show(conn: psycopg.Connection[Any], process: subprocess.Popen[bytes], stuck: UUID, victim: UUID) -> None:
    """What is to be seen, in order."""
    pid = wait_for(lambda: running(process.pid, "child", victim), "the job that is to be killed runs")
    for job in (stuck, victim):
        wait_for(partial(running, process.pid, "warden", job), "two jobs have run for a moment")
    say("The process tree, as ps shows it: each title says what runs, since when and against which limit")
    print_tree(process.pid)
    say(f"SIGKILL from outside to child {pid}: its job is tried again, nobody else notices")
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: archived(conn, "job_id = %s", stuck), "the job in C is killed at its limit")
    wait_for(lambda: archived(conn, "job_id = %s", victim), "the killed job has run again")
    tiles = COLUMNS * ROWS
    wait_for(lambda: archived(conn, "job_type = 'render-tile'") == tiles, "all tiles are rendered")
    say("A graceful shutdown, with one job that computes and one that waits")
    with conn.transaction():
        computing = enqueue(conn, "last-computation", {"seconds": 2.0})
        waiting = enqueue(conn, "long-wait", {})
    for job in (computing, waiting):
        wait_for(partial(running, process.pid, "warden", job), "both have run for a moment")
    process.send_signal(signal.SIGTERM)
    code = wait_for(lambda: process.poll() is not None and [process.returncode], "the supervisor has stopped")
    if code != [0]:
        raise DemoError(f"the supervisor ended with exit code {code[0]}")
    say("The computation was awaited; the wait was interrupted and is back in its queue, uncounted:")
    for row in conn.execute("SELECT job_type, attempts, interrupts FROM proletarian.job").fetchall():
        print(f"  {row[0]}: attempts {row[1]}, interrupts {row[2]}", flush=True)
    with conn.transaction():
        cancel(conn, waiting)


# ----------------------------------------------------------------------------------------------------------------------
# The parts


@contextmanager
def local_postgres() -> Iterator[str]:
    """A PostgreSQL for the demo, stopped at the end."""
    given = os.environ.get("GANGER_DATA_DIR")
    folder = Path(given) if given else Path(tempfile.mkdtemp(prefix="ganger-demo-"))
    if not given:
        folder.chmod(0o711)  # as root, PostgreSQL runs under another account, which has to get through
    server = LocalPostgres(folder)
    try:
        say(f"Starting a PostgreSQL of its own in {folder}")
        yield server.start()
    finally:
        server.stop()
        if not given:
            shutil.rmtree(folder, ignore_errors=True)


def enqueue_all(conn: psycopg.Connection[Any]) -> tuple[UUID, UUID]:
    """Enqueue in one transaction: all of it is there at once, or nothing."""
    width, height = WIDTH // COLUMNS, HEIGHT // ROWS
    with conn.transaction():
        stuck = enqueue(conn, "stuck-in-c", {}, priority=-1)
        victim = enqueue(conn, "killed-from-outside", {}, priority=-1)
        enqueue_many(
            conn,
            [
                NewJob("render-tile", {
                    "width": WIDTH, "height": HEIGHT, "left": x * width, "top": y * height,
                    "columns": width, "rows": height,
                })
                for y in range(ROWS)
                for x in range(COLUMNS)
            ],
        )  # fmt: skip
    return stuck, victim


@contextmanager
def supervisor(conninfo: str) -> Iterator[subprocess.Popen[bytes]]:
    """``ganger run``, with its events on this terminal; killed if the demo fails."""
    command = [sys.executable, "-m", "ganger", "run", "examples.render.jobs:handlers", "-c", str(SLOTS)]
    say("$ ganger run examples.render.jobs:handlers -c 3")
    process = subprocess.Popen(command, env={**os.environ, "DATABASE_URL": conninfo}, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGQUIT)
            process.wait()


def running(supervisor: int, role: str, job_id: UUID) -> int | None:
    """The pid of the child that runs a job (or of its warden), found by the title."""
    for process in psutil.Process(supervisor).children(recursive=True):
        try:
            seen = titles.parse(" ".join(process.cmdline()))
        except psutil.Error:
            continue
        if seen is not None and seen.role == role and seen.job_id == titles.short(job_id):
            return process.pid
    return None


def print_tree(pid: int, depth: int = 0) -> None:
    try:
        process = psutil.Process(pid)
        print(f"  {process.pid:>7} {'   ' * depth}{' '.join(process.cmdline()).strip()}", flush=True)
        for child in process.children():
            print_tree(child.pid, depth + 1)
    except psutil.NoSuchProcess:
        pass


def archived(conn: psycopg.Connection[Any], condition: str, *values: Any) -> int:
    row = conn.execute(f"SELECT count(*) FROM proletarian.archived_job WHERE {condition}".encode(), values).fetchone()
    return int(row[0]) if row else 0


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """What the condition returns, once that is true."""
    end = time.monotonic() + LIMIT
    while not (found := condition()):
        if time.monotonic() > end:
            raise DemoError(f"it has not come within {LIMIT:g} s that {what}")
        time.sleep(0.05)
    return found


def write_picture(conn: psycopg.Connection[Any]) -> None:
    rows = conn.execute(
        "SELECT result FROM proletarian.archived_job WHERE job_type = 'render-tile' AND status = 'success'"
    ).fetchall()
    tiles = [
        png.Tile(tile["left"], tile["top"], tile["columns"], tile["rows"], base64.b64decode(tile["pixels"]))
        for (tile,) in rows
    ]
    png.write(PICTURE, WIDTH, HEIGHT, tiles)
    say(f"The picture: {PICTURE.resolve()}")


SUMMARY = """
    SELECT job_type, status, coalesce(reason, ''), count(*), max(attempts), sum(wall_s), sum(cpu_s), max(max_rss)
    FROM proletarian.archived_job GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""


def summarise(conn: psycopg.Connection[Any]) -> None:
    """The archive, as a table."""
    say("What the archive says")
    print(f"  {'job type':<20} {'status':<10} {'reason':<10} jobs attempts     wall      cpu     peak")
    for kind, status, reason, count, attempts, wall, cpu, peak in conn.execute(SUMMARY).fetchall():
        memory = f"{(peak or 0) / 2**20:.1f} MiB"
        print(
            f"  {kind:<20} {status:<10} {reason:<10} {count:>4} {attempts:>8}"
            f" {wall or 0:>6.1f} s {cpu or 0:>6.1f} s {memory:>8}"
        )


def say(text: str) -> None:
    print(f"\n── {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
