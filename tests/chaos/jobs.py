"""The jobs of a chaos run, and what they write into the ledger: a file that no database knows of.

Every run notes its beginning and its end, with the monotonic clock that all processes of the machine share, and holds a
lock on a file named by its job for as long as any process of it lives. So an overlap of two runs of one job is not
guessed from times: the later one finds the lock taken, whatever became of the earlier, and says so.

A handler module like any other: it imports nothing of the rest of this folder.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ganger_child import Handlers, Job, Retry

FOLDER = Path(os.environ["CHAOS_FOLDER"])
HOST = os.environ["CHAOS_HOST"]
TICK = 0.1  # seconds between two signs of life
OFTEN = Retry(8, delays=[0.1, 0.3, 1.0])
MIB = 1 << 20


def note(what: str, job: Job, *more: object) -> None:
    """One line in the ledger; a single short write, so that lines of many processes never mix."""
    line = " ".join(map(str, (what, time.monotonic(), job.id, job.run_id, *more)))
    fd = os.open(FOLDER / "ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(fd, f"{line}\n".encode())
    finally:
        os.close(fd)


@contextmanager
def recorded(job: Job) -> Iterator[int]:
    """The ledger's entry of a run. Gives the descriptor that holds the lock, for programs that are part of the run."""
    lock = os.open(FOLDER / "locks" / str(job.id), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note("O", job, os.pread(lock, 36, 0).decode() or "unknown", HOST)
        else:
            os.pwrite(lock, str(job.run_id).encode(), 0)
        note("S", job, job.attempt, job.type, HOST)
        yield lock
        note("E", job, "returned")
    except BaseException as error:
        note("E", job, type(error).__name__)
        raise
    finally:
        os.close(lock)


def wait(job: Job, seconds: float) -> None:
    """Sleep, with signs of life."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(TICK, left))
        note("T", job)


def failed(job: Job, exception: BaseException) -> None:
    note("F", job)


handlers = Handlers(failed_job=failed)


@handlers.job("short", retry=OFTEN)
def short(job: Job) -> str:
    with recorded(job):
        return str(job.run_id)


@handlers.job("cpu", retry=OFTEN)
def cpu(job: Job) -> str:
    with recorded(job):
        end = time.process_time() + job.payload["seconds"]
        while time.process_time() < end:
            sum(range(10_000))
        return str(job.run_id)


@handlers.job("sleep", timeout=30, grace=0.5, retry=OFTEN)
def sleep(job: Job) -> str:
    with recorded(job):
        wait(job, job.payload["seconds"])
        return str(job.run_id)


@handlers.job("long", timeout=60, grace=0.5, retry=OFTEN)
def long(job: Job) -> str:
    """Still running when others may take it from a host that is cut off."""
    with recorded(job):
        wait(job, job.payload["seconds"])
        return str(job.run_id)


@handlers.job("gil", retry=OFTEN)
def gil(job: Job) -> str:
    """In C, where no signal handler of Python's runs and no other thread either."""
    with recorded(job):
        sum(itertools.repeat(1, job.payload["rounds"]))
        return str(job.run_id)


@handlers.job("stuck", timeout=0.5, grace=0)
def stuck(job: Job) -> None:
    """In C for ever: only its time limit ends it."""
    with recorded(job):
        sum(itertools.repeat(0))


@handlers.job("fork", retry=OFTEN)
def fork(job: Job) -> str:
    """Leaves processes behind, in sessions of their own, that go on writing: nobody but the warden ends them."""
    with recorded(job) as lock:
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            try:
                wait(job, 60)
            finally:
                os._exit(0)
        subprocess.Popen(["sleep", "60"], pass_fds=(lock,), start_new_session=True)
        wait(job, job.payload["seconds"])
        return str(job.run_id)


@handlers.job("memory", memory=60 * MIB, retry=Retry(1, delays=[0.1]))
def memory(job: Job) -> str:
    with recorded(job):
        held = bytearray(job.payload["mib"] * MIB)
        for page in range(0, len(held), 4096):
            held[page] = 1
        wait(job, 1.0)
        return str(job.run_id)


@handlers.job("fail", retry=Retry(2, delays=[0.1, 0.5]))
def fail(job: Job) -> str:
    with recorded(job):
        if job.attempt <= job.payload["times"]:
            raise ValueError(f"attempt {job.attempt} of {job.payload['times']} that fail")
        return str(job.run_id)


@handlers.job("crash", retry=OFTEN)
def crash(job: Job) -> str:
    with recorded(job):
        if job.attempt <= job.payload["times"]:
            os.kill(os.getpid(), job.payload["signal"])
            wait(job, 5)
        return str(job.run_id)


@handlers.job("spool", retry=Retry(30, delays=[0.5]))
def spool(job: Job) -> str:
    """Needs room on the disk of its host for a moment."""
    with recorded(job):
        path = Path(os.environ["TMPDIR"]) / str(job.run_id)
        try:
            path.write_bytes(b"x" * 300_000)
        finally:
            path.unlink(missing_ok=True)
        return str(job.run_id)
