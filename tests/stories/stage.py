"""A stage for stories: a database, a handler module, and supervisors that run as programs of their own.

A supervisor is told to speak JSON, so a story reads its events instead of guessing times. Whatever a story does to
it, at the end nothing of it may be left (looked at from outside, by the cookie that everything of it carries).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import psycopg

from ganger import enqueue
from tests.processes import nothing_left, survivors, tree, wait_until

ROOT = Path(__file__).resolve().parents[2]


class Running:
    """One supervisor, as its events, its processes and its end tell of it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.pid = process.pid
        self.events: list[dict[str, Any]] = []
        self.output: list[tuple[str, str]] = []  # (job_id, line)
        self.other: list[str] = []  # lines on stderr that are no events
        self._cookie: str | None = None
        self._readers = [
            threading.Thread(target=self._read, args=(stream,), daemon=True)
            for stream in (process.stdout, process.stderr)
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: Any) -> None:
        for raw in stream:
            line = raw.decode("utf-8", "backslashreplace").rstrip("\n")
            try:
                event = json.loads(line)
                name = event["event"]
            except (ValueError, KeyError, TypeError):
                self.other.append(line)
                continue
            if name == "job-output":
                self.output.append((event["job_id"], event["line"]))
            self.events.append(event)

    # ---- what it says ------------------------------------------------------------------------------------------------

    def named(self, name: str, **facts: Any) -> list[dict[str, Any]]:
        """The events of this name that have these facts."""
        return [
            event
            for event in list(self.events)
            if event["event"] == name and all(event.get(key) == value for key, value in facts.items())
        ]

    def expect(self, name: str, limit: float = 15.0, *, count: int = 1, **facts: Any) -> dict[str, Any]:
        """Wait for an event (for so many of them) and return the last one."""
        wait_until(lambda: len(self.named(name, **facts)) >= count, limit, lambda: f"{name} {facts}: {self.story()}")
        return self.named(name, **facts)[count - 1]

    def order(self, *names: str) -> None:
        """Fail unless events of these names came in this order (others may stand between)."""
        said = [event["event"] for event in self.events]
        at = 0
        for name in names:
            assert name in said[at:], f"{name!r} is not there, or not in its place: {said}"
            at = said.index(name, at) + 1

    def story(self) -> str:
        """All that was said, for the message of a failing test."""
        return "\n".join([*(json.dumps(event) for event in self.events), *self.other])

    # ---- its processes -----------------------------------------------------------------------------------------------

    @property
    def cookie(self) -> str:
        """The incarnation, read from the template's environment."""
        if self._cookie is None:

            def find() -> str | None:
                for process in tree(self.pid):
                    try:
                        found = process.environ().get("GANGER_COOKIE")
                    except psutil.Error:
                        continue
                    if found:
                        return found
                    for file in _open_files(process.pid):
                        if "/ganger" in file and len(Path(file).name) == 36:
                            return Path(file).name
                return None

            self._cookie = wait_until(find, 15, lambda: f"no process with a cookie: {self.story()}")
        assert self._cookie is not None
        return self._cookie

    def processes(self, role: str) -> list[psutil.Process]:
        """Its living processes of a role: template, warden, child."""
        found = []
        for process in survivors(self.cookie):
            try:
                if " ".join(process.cmdline()).startswith(f"ganger: {role}"):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def child(self, slot: str = "default/1") -> psutil.Process:
        """The child of a slot."""

        def find() -> psutil.Process | None:
            return next((p for p in self.processes("child") if f" {slot} " in " ".join(p.cmdline()) + " "), None)

        found = wait_until(find, 10, lambda: f"no child in {slot}: {self.story()}")
        assert found is not None
        return found

    # ---- what is done to it ------------------------------------------------------------------------------------------

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def stop(self, number: int = signal.SIGTERM, limit: float = 30.0) -> int:
        """Send a signal and wait for its end."""
        self.send(number)
        return self.ended(limit)

    def ended(self, limit: float = 30.0) -> int:
        """Wait for its end, read what it said last, and return its exit code."""
        code = wait_until(lambda: self.process.poll() is not None, limit, lambda: f"it has not ended: {self.story()}")
        assert code
        for reader in self._readers:
            reader.join(5)
        return int(self.process.returncode)


def _open_files(pid: int) -> list[str]:
    try:
        return [os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return []


class Stage:
    """``stage.handlers(source)`` writes the module, ``stage.run()`` starts a supervisor on it."""

    def __init__(self, conninfo: str, folder: Path) -> None:
        self.conninfo = conninfo
        self.supervised = conninfo  # as the supervisors are told
        self.folder = folder
        self.conn = psycopg.connect(conninfo, autocommit=True)
        self.supervisors: list[Running] = []

    def handlers(self, source: str, name: str = "story") -> None:
        """Write the handler module; ``handlers`` and the usual imports are there already."""
        head = "import os, signal, subprocess, sys, time\nfrom pathlib import Path\nfrom ganger_child import *\n"
        head += f"FOLDER = Path({str(self.folder)!r})\n"
        (self.folder / f"{name}.py").write_text(head + textwrap.dedent(source))

    def run(
        self,
        *options: str,
        target: str = "story:handlers",
        environ: Mapping[str, str] | None = None,
        prefix: tuple[str, ...] = (),
        wait: bool = True,
        conninfo: str | None = None,
    ) -> Running:
        """Start a supervisor (``prefix``: behind another program) and wait until it has registered and is ready."""
        command = [*prefix, sys.executable, "-m", "ganger", "run", target, "--log-format", "json", "-v", *options]
        running = self.launch(*command, environ=environ, conninfo=conninfo)
        if wait:
            running.expect("supervisor-started", 40)
            running.expect("polling-for-jobs", 40)
            assert running.cookie
        return running

    def launch(self, *command: str, environ: Mapping[str, str] | None = None, conninfo: str | None = None) -> Running:
        """Start a program in the folder; the database and the project are in its environment."""
        given = {
            "DATABASE_URL": conninfo or self.supervised,
            "PYTHONPATH": str(ROOT),
            "XDG_RUNTIME_DIR": str(self.folder),  # where lock files of killed supervisors stay
        }
        process = subprocess.Popen(
            command, cwd=self.folder, env={**os.environ, **given, **(environ or {})}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        running = Running(process)
        self.supervisors.append(running)
        return running

    def enqueue(self, job_type: str, payload: Any = None, **options: Any) -> UUID:
        return enqueue(self.conn, job_type, payload, **options)

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        return self.conn.execute(query.encode(), values).fetchall()

    def job(self, job_id: UUID) -> dict[str, Any] | None:
        """The row in the queue."""
        return self._row("job", job_id)

    def archived(self, job_id: UUID, limit: float = 20.0) -> dict[str, Any]:
        """Wait for the row in the archive."""
        row = wait_until(lambda: self._row("archived_job", job_id), limit, lambda: self._why(job_id))
        assert row is not None
        return row

    def _row(self, table: str, job_id: UUID) -> dict[str, Any] | None:
        with self.conn.cursor(row_factory=psycopg.rows.dict_row) as cursor:
            query = f"SELECT * FROM proletarian.{table} WHERE job_id = %s".encode()
            return cursor.execute(query, [job_id]).fetchone()

    def _why(self, job_id: UUID) -> str:
        told = "\n\n".join(running.story() for running in self.supervisors)
        return f"job {job_id} is not archived: {self.job(job_id)}\n{told}"

    def lines(self, name: str) -> list[str]:
        """What handlers wrote to a file in FOLDER, line by line."""
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def wait_lines(self, name: str, count: int = 1, limit: float = 15.0) -> list[str]:
        wait_until(
            lambda: len(self.lines(name)) >= count, limit,
            lambda: f"{name} has {self.lines(name)}: " + "\n".join(r.story() for r in self.supervisors),
        )  # fmt: skip
        return self.lines(name)

    def close(self) -> None:
        """End what the story left running, and fail if anything of any supervisor is left."""
        self.conn.close()
        cookies = [running._cookie for running in self.supervisors if running._cookie]
        for running in self.supervisors:
            if running.process.poll() is None:
                for act in (lambda r: os.kill(r.pid, signal.SIGCONT), lambda r: os.kill(r.pid, signal.SIGQUIT)):
                    _try(act, running)
                try:
                    running.process.wait(15)
                except subprocess.TimeoutExpired:
                    running.process.kill()
                    running.process.wait()
        for cookie in cookies:
            nothing_left(cookie)


def _try(act: Callable[[Running], None], running: Running) -> None:
    try:
        act(running)
    except ProcessLookupError:
        pass
