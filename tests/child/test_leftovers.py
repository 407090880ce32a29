"""What a handler has started and left: its child sees it, and past a limit it asks nobody while that lives on."""

from __future__ import annotations

import pytest

from ganger.core import messages as m
from tests.child.conftest import SLOT, Driver, DriverFactory

HANDLERS = """
import os, subprocess, threading, time
from ganger_child import Handlers, Retry

def strategy(job, exception):
    print("asked about", job.payload)
    return Retry(1)

handlers = Handlers(retry_strategy=strategy)
kept = []

@handlers.child_start
def helper():
    '''It is the child's own, and no job's.'''
    subprocess.Popen(["sleep", "300"])
    threading.Thread(target=time.sleep, args=(300,), daemon=True).start()

def orphan():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(300)
        os._exit(0)
    os.wait()

def by_thread():
    thread = threading.Thread(target=program)
    thread.start()
    thread.join()

def program():
    subprocess.Popen(["sleep", "300"])

def ended():
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    kept.append(process)  # else it is waited for when nobody refers to it any more

def exhaust():
    '''Without a descriptor the child cannot look.'''
    try:
        while True:
            kept.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass

STARTS = {
    "nothing": lambda: None,
    "ended": ended,
    "program": program,
    "program-of-a-thread": by_thread,
    "orphan": orphan,
    "thread": lambda: threading.Thread(target=time.sleep, args=(300,), daemon=True).start(),
    "no-descriptors": exhaust,
}
@handlers.job("leave")
def leave(job):
    STARTS[job.payload]()
    print("left", job.payload)
    time.sleep(300)

@handlers.job("leave and raise")
def leave_and_raise(job):
    STARTS[job.payload]()
    raise ValueError(job.payload)
"""
LEAVES = {
    "nothing": False, "ended": False, "program": True, "program-of-a-thread": True, "orphan": True, "thread": True,
    "no-descriptors": True,
}  # fmt: skip


@pytest.fixture
def driver(make_driver: DriverFactory) -> Driver:
    driver = make_driver(HANDLERS)
    driver.start_template()
    driver.start_warden()
    return driver


def interrupted(driver: Driver, starts: str, reason: str) -> tuple[bool, m.JobRaised]:
    """Run a job in a fresh child, order it to end, and kill the child. Was a strategy asked, and what was reported?"""
    driver.start_child()
    job = driver.begin("leave", f'"{starts}"')
    driver.turn_until(lambda: any(line.job_id == job.job_id for line in driver.lines), 15, "it began")
    driver.do(m.Interrupt(SLOT, driver.child, driver.nonce, reason))
    driver.turn_until(lambda: driver.saw(m.JobRaised), 15, "its report")
    asked = driver.saw(m.StrategyAsked)
    raised = driver.expect(m.JobRaised)
    driver.do(m.Kill(SLOT, driver.child))
    driver.expect(m.ChildExited, child=driver.child)
    return asked, raised


def test_past_a_limit_a_child_asks_nobody_while_something_of_its_job_is_there(driver: Driver) -> None:
    """README, promise 3: processes, orphans and threads are left; what has ended and what a start hook has started are
    not. A child that cannot look does not ask either."""
    for starts, leaves in LEAVES.items():
        asked, raised = interrupted(driver, starts, "timeout")
        assert (raised.leftovers, asked, raised.strategy is None) == (leaves, not leaves, leaves), starts
        assert raised.error["type"] == "ganger_child.JobTimedOut"
    assert interrupted(driver, "program", "memory")[0] is False


def test_a_failure_within_the_limits_is_asked_about_and_told_with_what_is_left(driver: Driver) -> None:
    for starts, leaves in {"program": True, "nothing": False}.items():
        driver.start_child()
        driver.begin("leave and raise", f'"{starts}"')
        assert driver.expect(m.StrategyAsked).leftovers is leaves
        raised = driver.expect(m.JobRaised)
        assert (raised.leftovers, raised.strategy) == (leaves, m.Strategy(1))
        driver.do(m.Kill(SLOT, driver.child))
        assert driver.expect(m.ChildExited, child=driver.child).exit.leftovers >= leaves
