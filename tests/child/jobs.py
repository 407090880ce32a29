"""Handlers for the tests of the child: well-behaved ones, and one for each way to misbehave."""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import logging
import logging.handlers
import os
import random
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import ganger_child.child
from ganger_child import Handlers, Job, JobInterrupted, Retry, UnknownJobType, current_job

random.seed(1)
atexit.register(print, "inherited atexit")
started: list[str] = []
setting = contextvars.ContextVar("setting", default="none")


class Numpy:
    """Stands for numpy's legacy generator: a child has to seed it."""

    seeded = 0

    def seed(self) -> None:
        self.seeded += 1


numpy = Numpy()
sys.modules.setdefault("numpy.random", numpy)  # type: ignore[arg-type]


class Odd(BaseException):
    """Neither an Exception nor anything that can be made without its two arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"odd {one} {two}")


def strategy(job: Job, exception: BaseException) -> Any:
    print("strategy", type(exception).__name__, str(exception)[:200])
    return Retry(2, [1.5, None])


def failed_attempt(job: Job, exception: BaseException) -> None:
    print("failed_attempt", job.type, job.payload, exception)


def failed_job(job: Job, exception: BaseException) -> None:
    print("failed_job", job.type, job.payload, exception)
    if job.payload == "the callback raises":
        raise RuntimeError("from failed_job")


handlers = Handlers()
careful: dict[str, Any] = {"retry_strategy": strategy, "failed_attempt": failed_attempt, "failed_job": failed_job}


@handlers.child_start
def hook() -> None:
    started.append("hook")


@handlers.child_start
async def async_hook() -> None:
    await asyncio.sleep(0)
    started.append("async hook")


# ---------------------------------------------------------------------------------------------------------------------
# Results


@handlers.job("echo", **careful)
def echo(job: Job) -> Any:
    return job.payload


@handlers.job("aecho")
async def aecho(job: Job) -> Any:
    await asyncio.sleep(0)
    return job.payload


@handlers.job("describe")
def describe(job: Job) -> Any:
    assert current_job() is job
    return {
        "id": str(job.id),
        "run_id": str(job.run_id),
        "queue": job.queue,
        "type": job.type,
        "attempt": job.attempt,
        "attempts": job.attempts,
        "enqueued_at": job.enqueued_at.isoformat(),
        "process_at": job.process_at.isoformat(),
        "timeout": job.timeout,
        "shutdown": job.shutdown,
        "interrupted": job.interrupted,
    }


@handlers.job("progress")
def progress(job: Job) -> str:
    try:
        job.progress(*job.payload)
    except ValueError as error:
        return f"ValueError: {error}"
    return ""


@handlers.job("text")
def text(job: Job) -> str:
    return "x" * int(job.payload)


@handlers.job("odd-result")
def odd_result(job: Job) -> Any:
    return {"items": [1, {"bad": float("nan") if job.payload == "nan" else {1, 2}}]}


@handlers.job("process")
def process(job: Job) -> Any:
    """What the process is like."""
    return {
        "started": started,
        "random": random.random(),
        "numpy": numpy.seeded,
        "stdin": sys.stdin.read(),
        "session": os.getsid(0) == os.getpid(),
        "fds": sorted(map(int, os.listdir("/proc/self/fd"))),
        "setting": setting.get(),
        "term": subprocess.run(["sh", "-c", "kill -TERM $$; sleep 5"]).returncode,
    }


@handlers.job("output")
def output(job: Job) -> None:
    print("a line \udc80 \N{SNOWMAN}")
    print("to stderr", file=sys.stderr)
    os.write(1, b"raw\n")
    print("no end of line", end="")


@handlers.job("set")
def set_context(job: Job) -> None:
    setting.set("set by a job")


@handlers.job("allocate")
def allocate(job: Job) -> int:
    return len(bytearray(b"x") * (int(job.payload) << 20))


@handlers.job("spin")
def spin(job: Job) -> None:
    end = time.process_time() + job.payload
    while time.process_time() < end:
        pass


# ---------------------------------------------------------------------------------------------------------------------
# Ends


@handlers.job("raise", **careful)
def raise_(job: Job) -> None:
    """Raise what the payload names."""
    exceptions: dict[str, Any] = {
        "value": lambda: ValueError("this operation failed"),
        "exit": lambda: SystemExit("bad input"),
        "exit-code": lambda: SystemExit(1),
        "generator-exit": lambda: GeneratorExit("g"),
        "keyboard": lambda: KeyboardInterrupt("mine"),
        "stop": lambda: StopIteration("s"),
        "odd": lambda: Odd(1, 2),
        "interrupted": lambda: JobInterrupted("by itself"),
        "unknown": lambda: UnknownJobType("of that kind"),
        "long": lambda: ValueError("x" * 5_000_000),
        "surrogate": lambda: ValueError("nul \0 and \udc80"),
        "group": lambda: ExceptionGroup("several", [ValueError("one"), OSError("two")]),
        "the callback raises": lambda: ValueError("this operation failed"),
    }
    raise exceptions[job.payload]()


@handlers.job("recurse", **careful)
def recurse(job: Job) -> None:
    recurse(job)


@handlers.job("araise", **careful)
async def araise(job: Job) -> None:
    await asyncio.sleep(0)
    raise ValueError("from a coroutine")


@handlers.job("exit-code")
def exit_code(job: Job) -> None:
    os._exit(job.payload)


@handlers.job("fork")
def fork(job: Job) -> str:
    """Leave the handler twice."""
    pid = os.fork()
    if pid == 0 and job.payload == "raise":
        raise RuntimeError("the copy raises")
    if pid == 0 and job.payload == "interrupt":
        raise KeyboardInterrupt
    if pid:
        os.waitpid(pid, 0)
    return "parent" if pid else "copy"


@handlers.job("close-all")
def close_all(job: Job) -> None:
    """Close every descriptor and open a file of one's own in the place of each."""
    os.closerange(3, 4096)
    for _ in range(400):
        os.open(job.payload, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


@handlers.job("fork-in-strategy", retry_strategy=lambda job, exception: os.fork() and None, failed_job=failed_job)
def fork_in_strategy(job: Job) -> None:
    raise ValueError("ask")


@handlers.job("low-recursion")
def low_recursion(job: Job) -> None:
    sys.setrecursionlimit(60)


def _refuse(*arguments: Any) -> int:
    raise RuntimeError("can't start new thread")


@handlers.job("late-atexit")
def late_atexit(job: Job) -> None:
    """Leave work for the end of the process: an exit function, a buffered log record, half a line."""
    atexit.register(print, "own atexit")
    target = logging.StreamHandler(sys.stdout)
    logging.getLogger().addHandler(logging.handlers.MemoryHandler(100, target=target))
    logging.getLogger().error("buffered record")
    if job.payload == "no thread":
        ganger_child.child.start_new_thread = _refuse  # type: ignore[attr-defined]
    elif job.payload is not None:
        ganger_child.child._RETIRE_BOUND = job.payload  # type: ignore[misc]
        atexit.register(time.sleep, 60)


# ---------------------------------------------------------------------------------------------------------------------
# Strategies: one for each odd answer

ANSWERS: dict[str, Any] = {
    "negative": lambda: {"retries": -1},
    "missing": dict,
    "false": lambda: False,
    "true": lambda: {"retries": True},
    "float": lambda: {"retries": 1.5},
    "text": lambda: {"retries": "2"},
    "delays-text": lambda: {"retries": 2, "delays": "12"},
    "delays-number": lambda: {"retries": 2, "delays": 5},
    "delay-negative": lambda: {"retries": 2, "delays": [1, -1]},
    "delay-nan": lambda: {"retries": 2, "delays": [float("nan")]},
    "delay-infinite": lambda: {"retries": 2, "delays": [float("inf")]},
    "delay-huge": lambda: {"retries": 2, "delays": [10**400]},
    "huge": lambda: {"retries": 10**5000},
    "list": lambda: [2],
    "retry-negative": lambda: Retry(-1),
    "raises": lambda: 1 / 0,
    "exits": lambda: sys.exit("from the strategy"),
    "sleeps": lambda: time.sleep(60),
    # and good ones
    "none": lambda: None,
    "mapping": lambda: {"retries": 2, "delays": (0.5, 3), "other": 1},
    "delay-none": lambda: {"retries": 2, "delays": [None]},
    "no-delays": lambda: {"retries": 2, "delays": None},
    "retry": lambda: Retry(3, [1]),
}


async def answer(job: Job, exception: BaseException) -> Any:
    return ANSWERS[job.payload]()


@handlers.job("ask", retry_strategy=answer)
def ask(job: Job) -> None:
    raise ValueError("ask")


@handlers.job("ask-hard", retry_strategy=lambda job, exception: ANSWERS[job.payload]())
def ask_hard(job: Job) -> None:
    raise ValueError("ask")


@handlers.job("constant", retry=Retry(2, delays=[1, 5]))
def constant(job: Job) -> None:
    raise ValueError("constant")


# ---------------------------------------------------------------------------------------------------------------------
# Interrupts


def say(word: str) -> None:
    print(word, flush=True)


@handlers.job("sleep", **careful)
def sleep(job: Job) -> None:
    say("sleeping")
    time.sleep(60)


@handlers.job("stubborn")
def stubborn(job: Job) -> str:
    """Swallow every Exception, as broad loops do."""
    say("looping")
    while True:
        try:
            time.sleep(0.01)
        except Exception:
            say("swallowed")


@handlers.job("swallow", **careful)
def swallow(job: Job) -> str:
    """Swallow so many interrupts, then return (or raise)."""
    say("sleeping")
    for count in range(job.payload["times"]):
        try:
            time.sleep(60)
        except JobInterrupted as interrupt:
            say(f"swallowed {count} {type(interrupt).__name__}")
    if job.payload.get("raise"):
        raise ValueError("something else")
    return "all the same"


@handlers.job("cleanup")
def cleanup(job: Job) -> None:
    """Clean up for as long as a file is there."""
    say("sleeping")
    try:
        time.sleep(60)
    finally:
        say("cleaning")
        while os.path.exists(job.payload):
            time.sleep(0.005)
        say("cleaned")


class Dropping:
    """Waits in its destructor, where Python drops what is raised."""

    def __del__(self) -> None:
        say("in del")
        time.sleep(60)


@handlers.job("del")
def in_del(job: Job) -> None:
    dropping = Dropping()
    del dropping
    say("after del")
    time.sleep(60)


@handlers.job("async")
async def async_job(job: Job) -> str:
    """Wait; when cancelled, clean up with awaits; then go on as the payload says."""
    say("waiting")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        if job.payload != "swallow":
            raise
    finally:
        for _ in range(3):
            await asyncio.sleep(0.01)
        say("cleaned")
    if job.payload == "swallow":
        return "swallowed"
    raise AssertionError("not reached")


@handlers.job("async-stubborn")
async def async_stubborn(job: Job) -> None:
    """Swallow so many cancellations."""
    task = asyncio.create_task(other())
    await asyncio.sleep(0)
    say("waiting")
    for _ in range(job.payload):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            say("cancelled")
    try:
        await task
    finally:
        say("left")


async def other() -> None:
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0)
        say("other cleaned")


@handlers.job("async-leaves-tasks")
async def async_leaves_tasks(job: Job) -> int:
    task = asyncio.create_task(other())
    await asyncio.sleep(0)
    return len(asyncio.all_tasks() - {task})


@handlers.job("async-exit")
async def async_exit(job: Job) -> None:
    """Leave by SystemExit, from one of the places in which asyncio stops its whole loop for it."""

    async def leave() -> None:
        sys.exit("bad input")

    if job.payload == "callback":
        asyncio.get_running_loop().call_soon(sys.exit, "bad input")
    elif job.payload in ("task", "stubborn", "thread"):
        held = asyncio.create_task(leave(), name="leaves")
        assert held
    else:
        await leave()
    while True:
        try:
            await (asyncio.to_thread(time.sleep, 60) if job.payload == "thread" else asyncio.sleep(60))
        except asyncio.CancelledError:
            print("cancelled by", job.payload)
            if job.payload != "stubborn":
                raise


@handlers.job("asyncio-run")
def asyncio_run(job: Job) -> None:
    async def main() -> None:
        say("waiting")
        try:
            await asyncio.sleep(60)
        finally:
            say("finally")

    asyncio.run(main())


@handlers.job("shelter")
def shelter(job: Job) -> str:
    """Be in a section that a shutdown waits for, until a file is gone."""
    with job.uninterruptible(), job.uninterruptible():
        say("inside")
        while os.path.exists(job.payload):
            time.sleep(0.005)
        say("still inside")
    say("outside")
    return "done"


@handlers.job("async-shelter")
async def async_shelter(job: Job) -> str:
    with job.uninterruptible():
        say("inside")
        while os.path.exists(job.payload):
            await asyncio.sleep(0.005)
        say("still inside")
    await asyncio.sleep(60)
    return "done"


@handlers.job("poll")
def poll(job: Job) -> str:
    """Look between chunks, and do as the payload says."""
    say("polling")
    while not job.interrupted:
        time.sleep(0.005)
    if job.payload == "check":
        try:
            job.check()
        finally:
            say("finally")
    if job.payload == "thread":
        seen: list[str] = []

        def look() -> None:
            try:
                job.check()
            except JobInterrupted:
                seen.append("interrupted")

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        return seen[0]
    if job.payload == "raise":
        raise ValueError("something else")
    return "seen"


@handlers.job("chunk")
def chunk(job: Job) -> int:
    """A little Python for each job: something to hit."""
    return sum(i * i for i in range(int(job.payload)))


@handlers.job("own-term")
def own_term(job: Job) -> str:
    got: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
    say("waiting")
    while not got:
        time.sleep(0.005)
    return "term"


@handlers.job("armed-signals")
def armed_signals(job: Job) -> None:
    """Leave signal handlers and a timer that raise after the handler has returned."""

    def leave(number: int, frame: object) -> None:
        sys.exit("from a signal handler of the job")

    for name in ("SIGTERM", "SIGALRM", "SIGUSR1"):
        signal.signal(getattr(signal, name), leave)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001) if job.payload == "timer" else None
    try:
        for _ in range(20):
            time.sleep(0.001)
    except SystemExit:
        pass


@handlers.job("c-code")
def c_code(job: Job) -> int:
    """C that holds the GIL for a while: the interrupt comes when it is over."""
    say("computing")
    return sum(range(20_000_000))
