"""What the benchmark's jobs do, the same for every queue, and the record of when they did it.

A job writes its start and its end, with the machine's monotonic clock, into one file on a file system in memory: 1 to
2 µs each, in whichever process it runs, so that no queue is measured by what it says itself. Standard library only:
every peer's worker imports this file.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

FILE = "BENCH_RECORDS"  # in the environment of every worker
RECORD = struct.Struct("<4siidd")
BOUND = 100.0  # seconds; nothing here lasts longer where nobody ends it


class Record(NamedTuple):
    """``tag`` is S at the start, E at the end, X when the job was left by an exception."""

    tag: str
    number: int
    pid: int
    at: float  # monotonic seconds
    sent: float  # when the client enqueued it


# Opened with the import: to a queue that looks, a job that opened it would leave its process other than it was.
_file = os.open(os.environ[FILE], os.O_WRONLY | os.O_APPEND) if FILE in os.environ else -1


def _write(tag: bytes, number: int, sent: float) -> None:
    os.write(_file, RECORD.pack(tag, number, os.getpid(), time.monotonic(), sent))


def read(path: Path) -> list[Record]:
    """All records so far; one that is being written is left for the next time."""
    data = path.read_bytes()
    whole = data[: len(data) // RECORD.size * RECORD.size]
    return [Record(tag.rstrip(b"\0").decode(), *rest) for tag, *rest in RECORD.iter_unpack(whole)]


def count(path: Path) -> int:
    return path.stat().st_size // RECORD.size


def compute(seconds: float) -> None:
    """Use so much CPU time, not so much time: a job that has to wait for a CPU is not shorter for it."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def mark(number: int) -> str:
    """An argument for ``sleep`` by which the processes of one job are found again."""
    return f"{BOUND:.0f}.{number:06}"


def _loop() -> None:
    end = time.monotonic() + BOUND
    while time.monotonic() < end:
        pass


def _tree(number: int) -> None:
    """A child in a session of its own, and a grandchild that its parent's death does not end."""
    subprocess.Popen(["sleep", mark(number)], start_new_session=True)
    subprocess.run(["sh", "-c", f"sleep {mark(number)}; true"])


KINDS: dict[str, Callable[[int], object]] = {
    "noop": lambda number: None,
    "short": lambda number: compute(0.005),
    "long": lambda number: compute(2.0),
    "nap": lambda number: time.sleep(0.2),
    "second": lambda number: time.sleep(1.0),
    "rest": lambda number: time.sleep(BOUND),
    "loop": lambda number: _loop(),
    "gil": lambda number: sum(range(3_000_000_000)),  # C code that keeps the GIL and looks for no signal
    "tree": _tree,
    "suicide": lambda number: os.kill(os.getpid(), signal.SIGKILL),
}


def run(kind: str, number: int, sent: float) -> None:
    """The body of every job."""
    _write(b"S", number, sent)
    try:
        KINDS[kind](number)
    except BaseException:
        _write(b"X", number, sent)
        raise
    _write(b"E", number, sent)
