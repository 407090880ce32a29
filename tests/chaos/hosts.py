"""The hosts of a chaos run: where supervisors live, apart from each other.

As root a host is made of namespaces: pids, mounts, a name, and a network of its own with one wire to the database,
which can be cut so that packets just vanish, and a disk of a few megabytes, which can be full. Otherwise it is a folder
of its own for locks, and its wire is a proxy that can fall silent; its disk is everybody's and is never full.

A host is a place and does not know of faults; ``faults`` does things to it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import psutil
from psycopg.conninfo import conninfo_to_dict

from tests.chaos.clock import Clock
from tests.chaos.processes import children, send, title
from tests.chaos.servers import Cluster
from tests.processes import alive
from tests.stories.proxy import Proxy

ROOT: Final = Path(__file__).resolve().parents[2]
ROLES: Final = ("supervisor", "template", "warden", "child")  # by their depth in the tree
DISK: Final = "16m"
INIT: Final = 'hostname "$0"; mount -t tmpfs -o size="$1" tmpfs "$2"; echo ready; while :; do sleep 3600; done'
PROGRAMS: Final = ("unshare", "nsenter", "setpriv", "ip", "mount")
NAMESPACES: Final = ("--net", "--pid", "--fork", "--mount-proc", "--mount", "--uts", "--kill-child")


def has_namespaces() -> bool:
    """Whether hosts can be made of namespaces here."""
    if os.geteuid() != 0 or any(shutil.which(program) is None for program in PROGRAMS):
        return False
    return subprocess.run(["unshare", *NAMESPACES, "true"], capture_output=True).returncode == 0


class Supervisor:
    """One supervisor that was started on a host. ``pid`` is the one that we see."""

    def __init__(self, launched: subprocess.Popen[bytes], log: Path, *, entered: bool) -> None:
        self._launched, self.log, self._entered = launched, log, entered
        self._pid: int | None = None if entered else launched.pid
        self.expected = False  # a fault ends it, or has ended it

    @property
    def pid(self) -> int | None:
        """None where it does not run (yet, or any more)."""
        if self._pid is None:
            self._pid = next(iter(children(self._launched.pid)), None)
        return self._pid

    @property
    def code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._launched.poll()

    def signal(self, number: int) -> None:
        if self.code is None and self.pid is not None:
            send(self.pid, number)
        if self._entered and number in (signal.SIGCONT, signal.SIGKILL):
            send(self._launched.pid, signal.SIGCONT)  # nsenter stops with what it has started

    @property
    def ready(self) -> bool:
        """Whether it has loaded the handlers."""
        return bool(self.tree()["warden"])

    def tree(self) -> dict[str, list[int]]:
        """Its processes by role; what jobs have started is not among them."""
        level = [self.pid] if self.pid is not None and self.code is None else []
        found = {}
        for role in ROLES:
            found[role] = [pid for pid in level if role == "supervisor" or title(pid).startswith(f"ganger: {role}")]
            level = [child for pid in found[role] for child in children(pid)]
        return found


class Host:
    """A host without privileges; ``Namespaced`` does the same with more of the real thing."""

    def __init__(
        self, name: str, folder: Path, cluster: Cluster, library: Path | None, options: tuple[str, ...]
    ) -> None:
        self.name, self.folder, self._cluster, self._options = name, folder, cluster, options
        self.clock = Clock(library, folder.parent / f"clock-{name}")
        self.supervisors: list[Supervisor] = []
        self.supervisor: Supervisor | None = None  # the one that should be running
        self._wires = ExitStack()
        for part in ("run", "tmp", "logs"):
            (folder / part).mkdir(parents=True, mode=0o700)

    def open(self) -> None:
        servers = sorted(self._cluster.servers, key=lambda server: server.port)
        self._proxies = [self._wires.enter_context(Proxy(server.conninfo, server.address)) for server in servers]
        ends = [conninfo_to_dict(proxy.conninfo) for proxy in self._proxies]
        self.conninfo = self._join([str(end["host"]) for end in ends], [str(end["port"]) for end in ends])

    @staticmethod
    def _join(hosts: list[str], ports: list[str]) -> str:
        return f"host={','.join(hosts)} port={','.join(ports)} user=postgres dbname=postgres"

    def start(self) -> Supervisor:
        """Start a supervisor; the one before, if it still runs, is not waited for."""
        log = self.folder / "logs" / f"{len(self.supervisors)}.jsonl"
        command = [sys.executable, "-m", "ganger", "run", "tests.chaos.jobs:handlers", *self._options]
        with open(log, "wb") as output:
            launched = subprocess.Popen(
                [*self._enter(), *command], cwd=self.folder, env={**os.environ, **self._environ()},
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=output, start_new_session=True,
            )  # fmt: skip
        self.supervisor = Supervisor(launched, log, entered=bool(self._enter()))
        self.supervisors.append(self.supervisor)
        return self.supervisor

    def _enter(self) -> list[str]:
        return []

    def _environ(self) -> Mapping[str, str]:
        return {
            "CHAOS_FOLDER": str(self.folder.parent), "CHAOS_HOST": self.name, "DATABASE_URL": self.conninfo,
            "PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": str(self.folder / "run"), "TMPDIR": str(self.folder / "tmp"),
            **self.clock.environ,
        }  # fmt: skip

    def cut(self) -> None:
        """Nothing passes between this host and the database any more, and nobody is told."""
        for proxy in self._proxies:
            proxy.fall_silent()

    def mend(self) -> None:
        for proxy in self._proxies:
            proxy.mend()

    def processes(self) -> list[int]:
        """Everything alive on this host, whoever started it."""
        mark = f"CHAOS_HOST={self.name}".encode()
        folder = os.fsencode(self.folder.parent)
        return [pid for pid in psutil.pids() if pid != os.getpid() and _belongs(pid, mark, folder) and alive(pid)]

    def close(self) -> None:
        """Kill what is left of it."""
        for supervisor in self.supervisors:
            supervisor.signal(signal.SIGCONT)
            supervisor.signal(signal.SIGKILL)
        for pid in self.processes():
            send(pid, signal.SIGKILL)
        self._wires.close()


class Namespaced(Host):
    """A host made of namespaces. Host number ``n`` has the address 10.99.n.2, and the database is at 10.99.n.1."""

    def open(self) -> None:
        number = int(self.name[1:])
        self._wire, self._address = f"wire{number}", f"10.99.{number}"
        self._init = subprocess.Popen(
            ["unshare", *NAMESPACES, "sh", "-c", INIT, self.name, DISK, str(self.folder / "tmp")],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert self._init.stdout
        assert self._init.stdout.readline() == b"ready\n"
        (self._inside,) = children(self._init.pid)
        self._namespace = os.readlink(f"/proc/{self._inside}/ns/pid")
        inside = ("nsenter", "--net", "--target", str(self._inside))
        run("ip", "link", "add", self._wire, "type", "veth", "peer", "name", "eth0", "netns", str(self._inside))
        run("ip", "address", "add", f"{self._address}.1/24", "dev", self._wire)
        run("ip", "link", "set", self._wire, "up")
        run(*inside, "ip", "address", "add", f"{self._address}.2/24", "dev", "eth0")
        run(*inside, "ip", "link", "set", "eth0", "up")
        run(*inside, "ip", "link", "set", "lo", "up")
        ports = [str(server.port) for server in sorted(self._cluster.servers, key=lambda server: server.port)]
        self.conninfo = self._join([f"{self._address}.1"] * len(ports), ports)

    def _enter(self) -> list[str]:
        spaces = ("--net", "--pid", "--mount", "--uts")
        return ["nsenter", *spaces, "--target", str(self._inside), "env", "-C", str(self.folder)]

    def cut(self) -> None:
        run("ip", "link", "set", self._wire, "down")

    def mend(self) -> None:
        run("ip", "link", "set", self._wire, "up")

    @property
    def _disk(self) -> Path:
        return Path(f"/proc/{self._inside}/root{self.folder}/tmp")

    def fill(self) -> None:
        """Leave no room on its disk."""
        with open(self._disk / "full", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 16))
            except OSError:
                pass

    def free(self) -> None:
        (self._disk / "full").unlink()

    def processes(self) -> list[int]:
        own = {self._inside, *children(self._inside, command="sleep")}
        return [pid for pid in psutil.pids() if pid not in own and self._is_here(pid) and alive(pid)]

    def _is_here(self, pid: int) -> bool:
        try:
            return os.readlink(f"/proc/{pid}/ns/pid") == self._namespace
        except OSError:
            return False

    def close(self) -> None:
        super().close()
        self._init.kill()  # and with its first process everything on the host
        self._init.wait()


def run(*command: str) -> None:
    """Run a program that must succeed."""
    subprocess.run(command, check=True, capture_output=True)


def _belongs(pid: int, mark: bytes, folder: bytes) -> bool:
    """Whether it has our mark in its environment, or, where its title is in that place, a file of the host open."""
    process = Path("/proc") / str(pid)
    try:
        environ = (process / "environ").read_bytes()
        if mark in environ and folder in environ:
            return True
        opened = [os.fsencode(os.readlink(fd)) for fd in (process / "fd").iterdir()]
    except OSError:
        return False
    own = folder + b"/" + mark.partition(b"=")[2]
    return any(path.startswith(own) for path in opened)
