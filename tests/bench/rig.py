"""What every measurement stands on: the folder, the records of the jobs, the workers' processes, and CPU meters.

Processes are watched from outside only. Whatever a measurement started is killed at its end and awaited: a worker that
is still dying takes the next measurement's first job with it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import psutil

from ganger_child.guard import die_with_parent
from tests.bench import jobs
from tests.bench.jobs import Record
from tests.processes import alive

ROOT = Path(__file__).resolve().parents[2]
MEMORY = Path("/dev/shm")  # where records are kept if it is there
FOLDER = "ganger-bench-"  # what a run's folders are called, before its pid
T = TypeVar("T")


class Broken(Exception):
    """A measurement did not come to its end; the message says what was waited for."""


def await_(condition: Callable[[], T], limit: float, what: str, step: float = 0.005) -> T:
    """What the condition returns, once that is true. Raises Broken after ``limit`` seconds."""
    deadline = time.monotonic() + limit
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise Broken(f"{what}: not within {limit:g} s")
        time.sleep(step)
    return result


class Records:
    """The file that jobs write into."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clear()

    def clear(self) -> None:
        self.path.write_bytes(b"")

    def all(self) -> list[Record]:
        return jobs.read(self.path)

    def count(self) -> int:
        return jobs.count(self.path)

    def starts(self, number: int | None = None) -> list[Record]:
        """The starts, of one job or of all, in the order of time."""
        found = [r for r in self.all() if r.tag == "S" and number in (None, r.number)]
        return sorted(found, key=lambda record: record.at)

    def await_count(self, count: int, limit: float) -> None:
        await_(lambda: self.count() >= count, limit, f"{count} records of jobs, {self.count()} are there", 0.01)

    def await_start(self, number: int, limit: float, nth: int = 1) -> Record:
        """The n-th start of a job."""
        found = await_(
            lambda: self.starts(number)[nth - 1 : nth], limit, f"start {nth} of the job {number}", step=0.001
        )
        return found[0]


class Fleet:
    """The workers of one measurement: programs, and all that ever came from them."""

    def __init__(self, commands: Iterable[Sequence[str]], environ: Mapping[str, str], log: Path) -> None:
        with open(log, "ab") as output:
            self.programs = [
                subprocess.Popen(
                    command, cwd=ROOT, env={**os.environ, **environ}, stdin=subprocess.DEVNULL, stdout=output,
                    stderr=output, start_new_session=True, preexec_fn=partial(die_with_parent, os.getpid()),
                )
                for command in commands
            ]  # fmt: skip
        self._known = {program.pid: psutil.Process(program.pid) for program in self.programs}

    def processes(self) -> list[psutil.Process]:
        """Those that live now. Those that were seen once are known for ever, also when their parents have died."""
        for program in self.programs:
            program.poll()
        children: dict[int, list[psutil.Process]] = {}
        for process in psutil.process_iter(["ppid"]):
            children.setdefault(process.info["ppid"], []).append(process)
        found = [pid for pid, process in self._known.items() if process.is_running()]
        while found:
            for process in children.pop(found.pop(), ()):
                self._known[process.pid] = process
                found.append(process.pid)
        return [process for process in self._known.values() if process.is_running() and alive(process.pid)]

    def end(self) -> None:
        """Kill all of it and wait until it is gone."""
        deadline = time.monotonic() + 15
        while left := self.processes():
            for process in left:
                try:
                    process.send_signal(signal.SIGKILL)
                except psutil.Error:
                    pass
            if time.monotonic() > deadline:
                raise Broken(f"processes that do not end: {left}")
            time.sleep(0.02)
        for program in self.programs:
            program.wait()


class Meter:
    """CPU used since it was made: by the measured (workers, store, this client), and by anything else here."""

    def __init__(self, fleet: Fleet, stores: Sequence[int]) -> None:
        self._fleet, self._stores = fleet, stores
        self._before = self._own(), _busy(), time.monotonic()

    def read(self) -> tuple[float, float]:
        """CPU seconds of the measured, and the cores that others used on average."""
        own, busy, now = self._own(), _busy(), time.monotonic()
        used = own - self._before[0]
        return used, max(0.0, busy - self._before[1] - used) / (now - self._before[2])

    def _own(self) -> float:
        processes = [*self._fleet.processes(), psutil.Process()]
        for pid in self._stores:
            store = psutil.Process(pid)
            processes += [store, *store.children(recursive=True)]
        return sum(map(cpu_with_children, processes))


def cpu_with_children(process: psutil.Process) -> float:
    """CPU seconds of a process and of those that it has reaped; 0 if it is gone (then its parent has them)."""
    try:
        times = process.cpu_times()
        return float(times.user + times.system + times.children_user + times.children_system)
    except psutil.Error:
        return 0.0


def exact_cpu(pids: Iterable[int]) -> float:
    """CPU seconds of living processes, to the nanosecond where the kernel counts so."""
    total = 0.0
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            try:
                total += int(thread.read_text().split()[0]) / 1e9
            except (OSError, IndexError):
                continue
    return total


def _busy() -> float:
    user, nice, system, _, _, interrupts, soft = map(int, Path("/proc/stat").read_text().split(maxsplit=8)[1:8])
    return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK")


def program(name: str) -> str:
    """A program of the environment that this Python runs in."""
    return str(Path(sys.executable).parent / name)


class Rig:
    """Where one run of the benchmark works."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._records = Path(
            tempfile.mkdtemp(prefix=f"{FOLDER}{os.getpid()}-", dir=MEMORY if MEMORY.is_dir() else folder)
        )
        self.records = Records(self._records / "records")
        self._log = folder / "workers.log"

    def close(self) -> None:
        shutil.rmtree(self._records)

    def fleet(self, commands: Iterable[Sequence[str]], environ: Mapping[str, str]) -> Fleet:
        given = {jobs.FILE: str(self.records.path), "PYTHONPATH": str(ROOT)}
        return Fleet(commands, {**given, **environ}, self._log)

    @contextmanager
    def running(self, commands: Iterable[Sequence[str]], environ: Mapping[str, str]) -> Iterator[Fleet]:
        """A fleet for one measurement."""
        fleet = self.fleet(commands, environ)
        try:
            yield fleet
        finally:
            fleet.end()

    def tail(self) -> str:
        """What workers printed last."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-15:]) if self._log.exists() else ""
