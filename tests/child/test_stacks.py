"""The stacks of a child: they come from Python code and from C code, and whoever is asked goes on undisturbed."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

import pytest

from ganger.core import messages as m
from ganger_child.stacks import ASK, ASK_IN_C, LONGEST
from tests.child.conftest import SLOT, Driver, DriverFactory
from tests.processes import wait_until

HANDLERS = """
import asyncio, hashlib, os, signal, sys, threading, time
from ganger_child import Handlers
from ganger_child.stacks import ASK, ASK_IN_C

handlers = Handlers()

@handlers.job("wait")
def wait(job):
    print("here")
    here_it_waits(job.payload)
    return "slept well"

def here_it_waits(seconds):
    time.sleep(seconds)

@handlers.job("wait async")
async def wait_async(job):
    print("here")
    await asyncio.sleep(job.payload)
    return "slept well"

@handlers.job("compute in threads")
def compute_in_threads(job):
    done = []
    def deep(n):
        return deep(n - 1) + 1 if n else 0
    def in_a_thread():
        while not done:
            deep(100)
    threads = [threading.Thread(target=in_a_thread) for _ in range(3)]
    for thread in threads:
        thread.start()
    print("here")
    until = time.monotonic() + job.payload
    while time.monotonic() < until:
        deep(100)
    done.append(1)
    for thread in threads:
        thread.join()
    return "computed"

@handlers.job("hold the GIL in C")
def hold(job):
    print("here")
    in_c_with_the_gil()

def in_c_with_the_gil():
    sum(range(10**12))

@handlers.job("wait in C while others compute")
def wait_in_c(job):
    def compute():
        while True:
            sum(range(1000))
    threading.Thread(target=compute, daemon=True).start()
    print("here")
    in_c_without_the_gil()

def in_c_without_the_gil():
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)

@handlers.job("close all files")
def close_all(job):
    os.closerange(3, 65536)
    mine = [os.open("/dev/null", os.O_RDWR) for _ in range(300)]
    print("here")
    time.sleep(60)

@handlers.job("take the signals")
def take_the_signals(job):
    signal.signal(ASK, signal.SIG_DFL)
    signal.signal(ASK_IN_C, signal.SIG_IGN)
    print("here")
    time.sleep(60)

@handlers.job("many threads")
def many_threads(job):
    for _ in range(120):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    print("here")
    here_it_waits(60)
"""


def begin(driver: Driver, job_type: str, payload: str = "null") -> None:
    driver.lines.clear()
    driver.begin(job_type, payload)
    driver.printed("here")


def ask(driver: Driver) -> str:
    """What the child tells. It is asked as before a kill, which waits for a moment only: on a busy machine, again."""
    for _ in range(20):
        driver.do(m.TakeStack(SLOT, driver.child, driver.nonce))
        with suppress(AssertionError):
            driver.turn_until(lambda: driver.saw(m.StackTaken), 1, "an answer")
            break
    return driver.expect(m.StackTaken, nonce=driver.nonce).text


def ask_in_vain(driver: Driver) -> None:
    driver.do(m.TakeStack(SLOT, driver.child, driver.nonce))
    driver.do(m.Kill(SLOT, driver.child, driver.nonce))
    driver.expect(m.ChildExited, child=driver.child)
    assert not driver.saw(m.StackTaken)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_job_that_waits_tells_where_and_goes_on(make_driver: DriverFactory, method: str) -> None:
    driver = make_driver(HANDLERS, start_method=method)
    pid = driver.start()
    for job_type in ("wait", "wait async"):
        began = time.monotonic()
        begin(driver, job_type, "1.0")
        where = "here_it_waits" if job_type == "wait" else "select"
        wait_until(lambda where=where: where in ask(driver), 10, "it does not wait")  # type: ignore[misc]
        texts = [ask(driver) for _ in range(20)]
        returned = driver.expect(m.JobReturned, nonce=driver.nonce)
        assert returned.result == b'"slept well"'
        assert returned.clean, "to be asked leaves no trace"
        assert 1.0 <= time.monotonic() - began < 10
        for text in texts:
            assert text.startswith("Main thread (most recent call first):\n")
            assert "stacks.py" not in text
            assert len(text) < LONGEST
            assert text.count("Main thread") == 1
            assert where in text
    begin(driver, "wait", "0")
    assert driver.expect(m.JobReturned, nonce=driver.nonce)
    assert os.path.exists(f"/proc/{pid}")


@pytest.mark.slow
def test_threads_that_compute_are_all_shown_and_none_is_harmed(make_driver: DriverFactory) -> None:
    """Looking at threads that are changing their frames has crashed one process in a hundred looks."""
    driver = make_driver(HANDLERS)
    driver.start()
    shown = 0
    while shown <= 20:  # a busy machine shows few at a time
        begin(driver, "compute in threads", "4")
        while not driver.saw(m.JobReturned):
            driver.do(m.TakeStack(SLOT, driver.child, driver.nonce))
            driver.turn_until(lambda: driver.saw(m.StackTaken) or driver.saw(m.JobReturned), 10, "an answer")
            taken = [event for event in driver.events if isinstance(event, m.StackTaken)]
            driver.events[:] = [event for event in driver.events if not isinstance(event, m.StackTaken)]
            shown += sum(event.text.count("in in_a_thread") == 3 for event in taken)
        assert driver.expect(m.JobReturned, nonce=driver.nonce).result == b'"computed"'


@pytest.mark.parametrize("how", ["hold the GIL in C", "wait in C while others compute"])
def test_a_job_in_c_code_tells_where_it_is(make_driver: DriverFactory, how: str) -> None:
    driver = make_driver(HANDLERS)
    driver.start()
    begin(driver, how)
    where = "in_c_with_the_gil" if how.startswith("hold") else "in_c_without_the_gil"
    wait_until(lambda: where in ask(driver).splitlines()[1 + how.startswith("wait")], 10, lambda: ask(driver))
    for _ in range(5):
        text = ask(driver)
        assert where in text
        assert ("The main thread is in C code" in text) == how.startswith("wait")
    driver.kill()


@pytest.mark.parametrize("how", ["close all files", "take the signals"])
def test_a_child_that_took_away_what_it_needs_is_not_asked(make_driver: DriverFactory, how: str) -> None:
    """It would write into a file of the user's, or die of the signal."""
    driver = make_driver(HANDLERS)
    driver.start()
    begin(driver, how)
    ask_in_vain(driver)


def test_a_stopped_child_delays_a_kill_by_a_moment_only(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS)
    pid = driver.start()
    begin(driver, "wait", "60")
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    ask_in_vain(driver)
    assert time.monotonic() - began < 3


def test_many_threads_are_cut_and_the_main_thread_comes_first(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS)
    driver.start()
    begin(driver, "many threads")
    wait_until(lambda: "here_it_waits" in ask(driver), 10, "it does not wait")
    text = ask(driver)
    assert text.startswith("Main thread (most recent call first):\n")
    assert "here_it_waits" in text.partition("\n\n")[0]
    assert "characters more]" in text[LONGEST:]
    assert len(text) < LONGEST + 100
    driver.kill()


def test_the_signals_are_heard_before_the_interrupt() -> None:
    from ganger_child.interrupt import SIGNAL

    assert ASK_IN_C < ASK < SIGNAL
