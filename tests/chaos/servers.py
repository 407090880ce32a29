"""Two PostgreSQL servers of a chaos run: a primary and a standby that streams from it.

The programs are those that LocalPostgres finds; the rest is done here with the data folders alone, so that it works
with the few that come in a wheel: the standby begins as a copy of the primary's folder, taken while that is stopped.
Replication is synchronous whenever there is a standby, so a failover forgets nothing, except after ``forget``.

What takes time is a generator of pauses (seconds), so that other faults go on meanwhile.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import psutil
import psycopg

from ganger.local_postgres import LocalPostgres
from tests.chaos.clock import Clock
from tests.chaos.processes import children, send
from tests.processes import alive

Pauses = Iterator[float]

PAUSE: Final = 0.05  # seconds between two looks
SERVER_LIMIT: Final = 60.0  # seconds that a start or stop may take
SETTINGS: Final = {
    "listen_addresses": "*",
    "unix_socket_directories": "",
    "max_connections": "100",
    "fsync": "off",
    "full_page_writes": "off",
    "wal_keep_size": "1GB",
    "wal_receiver_timeout": "5s",
    "wal_retrieve_retry_interval": "200ms",
    "shared_buffers": "64MB",
    "logging_collector": "off",
}


class ServerTrouble(Exception):
    """A server did not do what it was told. The message says which, and where its log is."""


def wait_for(condition: Callable[[], bool], what: str) -> Pauses:
    """Pause until the condition is true."""
    deadline = time.monotonic() + SERVER_LIMIT
    while not condition():
        if time.monotonic() > deadline:
            raise ServerTrouble(f"not within {SERVER_LIMIT:.0f} s: {what}")
        yield PAUSE


class Server:
    """One data folder and, while it runs, its postmaster."""

    def __init__(self, name: str, data: Path, port: int, program: str, clock: Clock) -> None:
        self.name, self.data, self.port, self.clock = name, data, port, clock
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self.address = "127.0.0.1", port
        self.conninfo = f"host=127.0.0.1 port={port} user=postgres dbname=postgres connect_timeout=10"

    def configure(self, **settings: str) -> None:
        """Write the settings that can change; a running server reads them at once."""
        (self.data / "postgresql.auto.conf").write_text(
            "".join(f"{key} = '{value}'\n" for key, value in settings.items())
        )
        if self.running:
            self.signal(signal.SIGHUP)

    def start(self) -> None:
        owner = self.data.stat()
        as_owner = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []} if os.geteuid() == 0 else {}
        options = [
            word for key, value in {**SETTINGS, "port": str(self.port)}.items() for word in ("-c", f"{key}={value}")
        ]
        (self.data / "postmaster.pid").unlink(missing_ok=True)  # whoever it names is gone: we have waited
        with open(self.data.parent / f"{self.name}.log", "ab") as log:
            self._process = subprocess.Popen(
                [self._program, "-D", str(self.data), *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd="/", env={"LC_ALL": "C", "PATH": os.environ.get("PATH", ""), **self.clock.environ},
                start_new_session=True, **as_owner,
            )  # type: ignore[call-overload]  # fmt: skip

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def answers(self, query: str = "SELECT true") -> bool:
        """Whether the server answers, and with something true."""
        try:
            with psycopg.connect(self.conninfo, autocommit=True) as conn:
                row = conn.execute(query.encode()).fetchone()
                return row is not None and bool(row[0])
        except psycopg.Error:
            return False

    def signal(self, number: int) -> None:
        if self.running:
            assert self._process
            self._process.send_signal(number)

    def backends(self) -> list[int]:
        """The processes below the postmaster."""
        return children(self._process.pid) if self._process else []

    def stop(self, number: int) -> Pauses:
        """Stop it by a signal for the postmaster: SIGINT is fast, SIGQUIT immediate, SIGKILL a crash of everything."""
        processes = self.backends()
        self.signal(number)
        if number == signal.SIGKILL:
            for pid in processes:
                send(pid, number)
        yield from wait_for(lambda: not self.running, f"the end of server {self.name}")
        yield from wait_for(
            lambda: not any(alive(pid) for pid in processes), f"the end of what server {self.name} had started"
        )


class Cluster:
    """``primary`` takes writes; ``standby`` is None between a failover and the next copy."""

    def __init__(self, folder: Path, library: Path | None) -> None:
        local = LocalPostgres(folder / "local", durable=False)
        local.start()
        (data,) = local.data_dir.glob("pg[0-9]*")
        postmaster = psutil.Process(int((data / "postmaster.pid").read_text().split()[0]))
        program = postmaster.exe()
        local.stop()
        with open(data / "pg_hba.conf", "a") as rules:
            rules.write("host all,replication all 0.0.0.0/0 trust\n")
        clocks = [Clock(library, folder / f"clock-{name}") for name in "ab"]
        a = Server("a", data, 5433, program, clocks[0])
        b = Server("b", data.with_name("copy"), 5434, program, clocks[1])
        self.primary = a
        self.standby: Server | None = None
        self._spare: Server | None = b

    @property
    def servers(self) -> list[Server]:
        return [server for server in (self.primary, self.standby, self._spare) if server is not None]

    @property
    def conninfo(self) -> str:
        """The primary's, whichever server it is."""
        ports = ",".join(str(server.port) for server in sorted(self.servers, key=lambda server: server.port))
        return (
            f"host=127.0.0.1,127.0.0.1 port={ports} user=postgres dbname=postgres connect_timeout=10 "
            "target_session_attrs=primary"
        )

    def start(self) -> Pauses:
        """Start the primary, with a standby: a new copy where there is none."""
        if self.standby is None:
            self._copy()
        standby = self.standby
        assert standby is not None
        self.primary.configure(synchronous_standby_names="standby", synchronous_commit="on")
        self.primary.start()
        if not standby.running:
            self._follow(standby)
            standby.start()
        yield from wait_for(self.caught_up, "a standby that follows the primary")

    def _copy(self) -> None:
        assert self._spare is not None
        assert not self.primary.running
        self.standby, self._spare = self._spare, None
        shutil.rmtree(self.standby.data, ignore_errors=True)
        subprocess.run(["cp", "-a", str(self.primary.data), str(self.standby.data)], check=True)
        (self.standby.data / "standby.signal").touch()

    def _follow(self, standby: Server, *, stream: bool = True) -> None:
        source = f"host=127.0.0.1 port={self.primary.port} user=postgres application_name=standby"
        standby.configure(primary_conninfo=source if stream else "")

    def restart(self, number: int) -> Pauses:
        """Stop the primary in the manner of a signal, and start it again; a standby that is missing is made."""
        yield from self.primary.stop(number)
        if self.standby is None and number != signal.SIGINT:  # only a clean shutdown leaves something to copy
            self.primary.start()
            yield from wait_for(self.primary.answers, "an answer of the primary")
            yield from self.primary.stop(signal.SIGINT)
        yield from self.start()

    def crash_backend(self, which: float) -> Pauses:
        """Kill one of the primary's processes: PostgreSQL ends all others and recovers."""
        backends = self.primary.backends()
        if backends:
            send(backends[int(which * len(backends))], signal.SIGKILL)
        yield 0.3
        yield from wait_for(self.primary.answers, "an answer of the primary")

    def caught_up(self) -> bool:
        """Whether the standby has everything that is committed, and every commit waits for it."""
        return self.primary.answers(
            "SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync' AND state = 'streaming' "
            "AND pg_wal_lsn_diff(pg_current_wal_lsn(), flush_lsn) < 100000"
        )

    def forget(self) -> None:
        """From now on nothing that is committed reaches the standby, and nobody waits for it."""
        assert self.standby is not None
        self._follow(self.standby, stream=False)
        self.primary.configure(synchronous_standby_names="", synchronous_commit="on")

    def fail_over(self) -> Pauses:
        """The primary is lost with its data, and the standby takes its place, alone."""
        standby = self.standby
        assert standby is not None
        yield from self.primary.stop(signal.SIGKILL)
        standby.configure(synchronous_standby_names="", synchronous_commit="on")
        self._spare, self.primary, self.standby = self.primary, standby, None
        with psycopg.connect(standby.conninfo, autocommit=True) as conn:
            conn.execute("SELECT pg_promote(false)")
        yield from wait_for(
            lambda: standby.answers("SELECT NOT pg_is_in_recovery()"), f"the promotion of server {standby.name}"
        )

    def close(self) -> None:
        for server in self.servers:
            for _ in server.stop(signal.SIGQUIT):
                time.sleep(PAUSE)
