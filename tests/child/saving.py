"""Handlers that save checkpoints, each in another way."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from ganger_child import CheckpointRefused, Handlers, Job, JobInterrupted

handlers = Handlers()


def told(step: Callable[[], object]) -> str:
    """What came of a step, as text."""
    try:
        step()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def saved_by_failed_attempt(job: Job, exception: BaseException) -> None:
    print(told(lambda: job.save_checkpoint(1)))


@handlers.job("found")
def found(job: Job) -> Any:
    return [job.payload, job.checkpoint]


@handlers.job("save")
def save(job: Job) -> str:
    data, wait = job.payload
    return told(lambda: job.save_checkpoint(data, wait=wait))


@handlers.job("odd")
def odd(job: Job) -> str:
    what = {"a set": {1}, "nan": {"x": [float("nan")]}, "nul": "\0", "large": "x" * 2000, "deep": []}
    what["deep"] = [what["deep"]]
    for _ in range(1000):
        what["deep"] = [what["deep"]]
    return told(lambda: job.save_checkpoint(what[job.payload]))


@handlers.job("save each")
def save_each(job: Job) -> str:
    for number in job.payload:
        job.save_checkpoint(number)
        print("saved", number)
    return "done"


@handlers.job("save when interrupted")
def save_when_interrupted(job: Job) -> None:
    print("before")
    try:
        job.save_checkpoint("first", wait=True)
    except JobInterrupted:
        job.save_checkpoint("last", wait=True)
        raise


@handlers.job("save in a copy")
def save_in_a_copy(job: Job) -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(9 if told(lambda: job.save_checkpoint(1)).startswith("RuntimeError") else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@handlers.job("save in a thread")
def save_in_a_thread(job: Job) -> list[str]:
    said: list[str] = []
    threads = [
        threading.Thread(target=lambda: said.append(told(lambda: job.save_checkpoint(1, wait=True)))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return said


@handlers.job("leave a thread that saves")
def leave_a_thread(job: Job) -> str:
    thread = threading.Thread(target=lambda: print(told(lambda: job.save_checkpoint(1, wait=True))))
    thread.start()
    while "sent" not in job.payload or not os.path.exists(job.payload["sent"]):
        time.sleep(0.005)
    return "left"


@handlers.job("fail", failed_attempt=saved_by_failed_attempt)
def fail(job: Job) -> None:
    raise ValueError("on purpose")


def refused(job: Job) -> bool:
    try:
        job.save_checkpoint(1, wait=True)
    except CheckpointRefused as error:
        return "on purpose" in str(error)
    return False


handlers.job("refused")(refused)
