"""The warden: stop, look, kill; what it sees of a run; and what it does when nobody tells it anything any more."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from ganger.core import messages as m
from ganger_child import tree
from tests.child.conftest import NO_LIMITS, SLOT, Driver, DriverFactory
from tests.processes import alive, nothing_left, wait_until

HANDLERS = """
import ctypes, os, signal, subprocess, sys, time
from ganger_child import Handlers

handlers = Handlers()

def hide(work=lambda: time.sleep(300)):
    '''Leave a process in a session of its own, an orphan.'''
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            print("hidden", os.getpid())
            work()
        os._exit(0)
    os.wait()

def chain():
    while True:
        time.sleep(0.005)
        if os.fork():
            os._exit(0)
        os.setsid()

@handlers.job("hold the GIL")
def hold_the_gil(job):
    for number in signal.valid_signals():
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    sum(range(10**12))

@handlers.job("hide and return")
def hide_and_return(job):
    hide()
    hide()
    return "done"

@handlers.job("hide and exit")
def hide_and_exit(job):
    hide()
    os._exit(job.payload)

@handlers.job("chain and exit")
def chain_and_exit(job):
    for _ in range(3):
        hide(chain)
    time.sleep(0.1)
    os._exit(5)

@handlers.job("hide and sleep")
def hide_and_sleep(job):
    hide()
    time.sleep(300)

@handlers.job("catch TERM")
def catch_term(job):
    signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b"TERM came"), os._exit(4)))
    print("ready")
    while True:
        time.sleep(300)

@handlers.job("stop myself")
def stop_myself(job):
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(300)

@handlers.job("sleep")
def sleep(job):
    time.sleep(300)

@handlers.job("tell")
def tell(job):
    for n in range(10000):
        job.progress(n / 9999 * 0.42, f"\\x1b[31m\\u202e{n} tiles \\N{HEAVY BLACK HEART}" + "x" * 400)
    while not os.path.exists(job.payload):
        time.sleep(0.01)

@handlers.job("stop and go")
def stop_and_go(job):
    for number in range(8):  # it gets on, though it computes nothing
        job.progress(number / 10)
        time.sleep(0.5)
    for name in job.payload:
        print(name)
        while not os.path.exists(name):
            time.sleep(0.05)
        end = time.monotonic() + 2
        while time.monotonic() < end:
            pass

@handlers.job("compute")
def compute(job):
    while True:
        pass

@handlers.job("compute, then sleep")
def compute_then_sleep(job):
    end = time.monotonic() + 3
    while time.monotonic() < end:
        pass
    time.sleep(300)

@handlers.job("short processes")
def short_processes(job):
    subprocess.run(["sh", "-c", "while true; do /bin/true; done"])

@handlers.job("hold memory")
def hold_memory(job):
    block = bytearray(job.payload)
    block[::4096] = os.urandom(len(block[::4096]))  # now every page is its own
    time.sleep(300)

@handlers.job("peak")
def peak(job):
    block = bytearray(os.urandom(4096) * (job.payload // 4096))
    os._exit(0)

@handlers.job("leave orphans")
def leave_orphans(job):
    for number in range(job.payload):
        if os.fork() == 0:
            if os.fork() == 0:
                time.sleep(0.01)
            os._exit(0)
        os.wait()
    print("left them")
    time.sleep(4)
    os._exit(7)

@handlers.job("echo")
def echo(job):
    return job.payload
"""


def hidden(driver: Driver) -> list[int]:
    return [int(line.text.split()[1]) for line in driver.lines if line.text.startswith("hidden ")]


def title(pid: int) -> str:
    return " ".join(psutil.Process(pid).cmdline()).strip()


def next_title(pid: int, before: str) -> str:
    wait_until(lambda: title(pid) != before, 6, lambda: title(pid))
    return title(pid)


# ---------------------------------------------------------------------------------------------------------------------
# The end of a child


def test_c_code_that_holds_the_gil_and_ignores_signals_is_killed(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS)
    driver.start()
    driver.begin("hold the GIL")
    driver.do(m.Terminate(SLOT, driver.child, driver.nonce))
    began = time.monotonic()
    ended = driver.kill().exit
    assert (ended.exit_code, ended.term_signal, ended.survivors) == (None, signal.SIGKILL, ())
    assert time.monotonic() - began < 3


def test_leftovers_are_gone_before_the_exit_is_told(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS)
    driver.start()
    driver.begin("hide and return")
    driver.expect(m.JobReturned)
    driver.turn_until(lambda: len(hidden(driver)) == 2, 10, "two hidden processes")
    driver.do(m.Retire(SLOT, driver.child))
    ended = driver.expect(m.ChildExited).exit
    assert not any(map(alive, hidden(driver)))
    assert (ended.exit_code, ended.leftovers) == (0, 2)


def test_orphans_of_a_run_that_have_ended_do_not_pile_up_as_zombies(make_driver: DriverFactory) -> None:
    """D06, https://github.com/dagucloud/dagu/issues/2237: not even while their job goes on, for hours perhaps; and the
    child's own end is told as it was.
    """
    driver = make_driver(HANDLERS)
    warden = psutil.Process(driver.start()).ppid()
    job = driver.begin("leave orphans", "100")
    driver.watch(job)
    driver.printed("left them")
    wait_until(lambda: len(psutil.Process(warden).children()) <= 1, 3, lambda: psutil.Process(warden).children())
    ended = driver.expect(m.ChildExited)
    assert (ended.exit.exit_code, ended.exit.leftovers) == (7, 0)


def test_an_exit_in_the_middle_is_told_as_it_was(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS)
    driver.start()
    for code in (0, 7):
        driver.begin("hide and exit", str(code))
        ended = driver.expect(m.ChildExited, child=driver.child).exit
        assert (ended.exit_code, ended.term_signal, ended.leftovers) == (code, None, 1)
        driver.start_child()
    assert not any(map(alive, hidden(driver)))


@pytest.mark.slow
def test_a_child_that_is_signalled_right_after_its_fork_takes_nobody_along(make_driver: DriverFactory) -> None:
    """D58, https://github.com/ansible/ansible/pull/87199: SIGTERM comes within a millisecond of the fork, while the
    child still has what its parent had for signals, 200 times. It takes no notice: each gets ready, each end is told,
    and warden and template live."""
    driver = make_driver(HANDLERS)
    warden = psutil.Process(driver.start()).ppid()
    driver.do(m.Kill(SLOT, driver.child))
    driver.expect(m.ChildExited)
    over = threading.Event()
    sent: set[int] = set()

    def terminate_children() -> None:
        while not over.is_set():
            for pid in set(tree.children(warden)) - sent:
                sent.add(pid)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)

    sender = threading.Thread(target=terminate_children)
    sender.start()
    try:
        for number in range(200):
            driver.start_child()
            if number % 2:
                driver.do(m.Retire(SLOT, driver.child))
            else:
                driver.do(m.Kill(SLOT, driver.child))
            ended = driver.expect(m.ChildExited, child=driver.child).exit
            assert (ended.exit_code, ended.term_signal) == ((0, None) if number % 2 else (None, signal.SIGKILL))
    finally:
        over.set()
        sender.join()
    assert len(sent) > 150
    assert alive(warden)
    assert not driver.saw(m.WardenExited)
    assert not driver.saw(m.TemplateExited)


def test_a_kill_from_outside_is_told_as_signal_9(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS)
    child = driver.start()
    driver.begin("hide and sleep")
    driver.turn_until(lambda: hidden(driver), 10, "a hidden process")
    os.kill(child, signal.SIGKILL)
    ended = driver.expect(m.ChildExited).exit
    assert (ended.exit_code, ended.term_signal) == (None, signal.SIGKILL)
    assert ended.leftovers >= 1
    assert not any(map(alive, hidden(driver)))


def test_chains_that_fork_every_5_ms_are_buried(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS)
    warden = psutil.Process(driver.start()).ppid()
    for _ in range(20):
        driver.begin("chain and exit")
        ended = driver.expect(m.ChildExited, child=driver.child).exit
        assert ended.leftovers >= 3
        assert psutil.Process(warden).children() == []
        driver.start_child()


def test_cpu_and_memory_of_the_whole_life_are_told(make_driver: DriverFactory) -> None:
    mib = 1 << 20
    driver = make_driver(HANDLERS + f"\nballast = bytearray(os.urandom(4096) * {200 * mib // 4096})\n")
    driver.start()
    driver.begin("peak", str(64 * mib))
    ended = driver.expect(m.ChildExited).exit
    assert 50 * mib < ended.max_rss < 150 * mib  # 64 of its own, nothing of the ballast
    assert ended.cpu_s > 0


def test_a_child_that_cannot_be_forked_is_told(make_driver: DriverFactory) -> None:
    driver = make_driver(
        HANDLERS + "\nfrom ganger_child import warden\n"
        "def refuse(*arguments): raise OSError(11, 'no more processes')\nwarden.fork = refuse\n"
    )
    driver.start_template()
    driver.start_warden()
    driver.do(m.StartChild(SLOT, 1))
    failed = driver.expect(m.ChildBootFailed, child=1)
    assert not failed.forked
    assert "no more processes" in failed.error


def test_a_start_hook_that_raises_is_told_with_its_traceback(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS + "\n@handlers.child_start\ndef connect(): raise RuntimeError('no database')\n")
    driver.start_template()
    driver.start_warden()
    driver.do(m.StartChild(SLOT, 1))
    failed = driver.expect(m.ChildBootFailed, child=1)
    assert failed.forked
    assert "no database" in failed.error
    assert driver.expect(m.ChildExited, child=1).exit.exit_code == 1


# ---------------------------------------------------------------------------------------------------------------------
# Stop, look, kill


@pytest.mark.parametrize("command", [m.Kill, m.Terminate])
def test_an_order_for_another_run_spares_the_child(
    make_driver: DriverFactory, command: type[m.Kill] | type[m.Terminate]
) -> None:
    """Correction 5: stop, look, and only then kill."""
    driver = make_driver(HANDLERS)
    child = driver.start()
    driver.begin("sleep")
    driver.do(command(SLOT, driver.child, driver.nonce - 1))
    assert driver.expect(m.RunSpared, child=driver.child).nonce == driver.nonce
    wait_until(lambda: psutil.Process(child).status() == psutil.STATUS_SLEEPING, 6, "the child to go on")
    driver.kill()


def test_a_kill_for_a_run_that_is_over_spares_the_idle_child(make_driver: DriverFactory) -> None:
    """Correction 5: the run may have ended while the order was under way."""
    driver = make_driver(HANDLERS)
    driver.start()
    driver.begin("echo", "1")
    driver.expect(m.JobReturned)
    driver.do(m.Kill(SLOT, driver.child, driver.nonce))
    assert driver.expect(m.RunSpared).nonce == 0
    driver.begin("echo", "2")
    assert driver.expect(m.JobReturned).result == b"2"


def test_a_kill_without_a_run_asks_nothing(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS)
    driver.start()
    driver.begin("sleep")
    driver.do(m.Kill(SLOT, driver.child))
    driver.expect(m.KillAcknowledged)
    assert driver.expect(m.ChildExited).exit.term_signal == signal.SIGKILL


def test_an_idle_child_is_replaced_and_one_in_the_run_is_not(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS)
    driver.start()
    driver.begin("sleep")
    driver.do(m.ReplaceIdle(SLOT, driver.child, driver.nonce))
    assert driver.expect(m.RunSpared).nonce == driver.nonce
    driver.kill()
    driver.start_child()
    driver.do(m.ReplaceIdle(SLOT, driver.child, driver.nonce + 1))
    driver.expect(m.KillAcknowledged)
    assert driver.expect(m.ChildExited).exit.term_signal == signal.SIGKILL


def test_terminate_sends_sigterm_and_continues_a_stopped_child(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS)
    child = driver.start()
    driver.begin("catch TERM")
    driver.printed("ready")
    os.kill(child, signal.SIGSTOP)
    driver.do(m.Terminate(SLOT, driver.child, driver.nonce))
    assert driver.expect(m.ChildExited).exit.exit_code == 4
    assert driver.lines[-1].text == "TERM came"


def test_a_child_that_stopped_itself_is_killed(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS)
    child = driver.start()
    driver.begin("stop myself")
    wait_until(lambda: psutil.Process(child).status() == psutil.STATUS_STOPPED, 6, "it to stop")
    assert driver.kill().exit.term_signal == signal.SIGKILL


def test_an_interrupt_is_raised_in_its_run_only(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS)
    driver.start()
    driver.begin("sleep")
    driver.do(m.Interrupt(SLOT, driver.child, driver.nonce - 1, "timeout"))
    driver.do(m.Interrupt(SLOT, driver.child, driver.nonce, "cancelled"))
    raised = driver.expect(m.JobRaised, nonce=driver.nonce)
    assert raised.interrupted
    assert raised.clean_interrupt
    assert raised.error["type"].endswith("JobCancelled")


def test_an_interrupt_without_a_signal_is_only_written_down(make_driver: DriverFactory) -> None:
    driver = make_driver(
        HANDLERS + "\n@handlers.job('look')\ndef look(job):\n"
        "    while not job.interrupted: time.sleep(0.01)\n    job.check()\n"
    )
    driver.start()
    driver.begin("sleep")
    driver.do(m.Interrupt(SLOT, driver.child, driver.nonce, "shutdown", signal=False))
    driver.turn(0.5)
    driver.turn(0.5)
    assert not driver.saw(m.JobRaised)
    driver.kill()
    driver.start_child()
    driver.begin("look")
    driver.do(m.Interrupt(SLOT, driver.child, driver.nonce, "shutdown", signal=False))
    assert driver.expect(m.JobRaised).clean_interrupt


def test_a_stopped_warden_is_continued(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS)
    warden = psutil.Process(driver.start()).ppid()
    driver.begin("sleep")
    os.kill(warden, signal.SIGSTOP)
    driver.do(m.Kill(SLOT, driver.child, driver.nonce))
    driver.turn(0.3)
    assert not driver.saw(m.KillAcknowledged)
    driver.do(m.ContinueWarden(SLOT))
    driver.expect(m.KillAcknowledged)
    driver.expect(m.ChildExited)


def test_child_and_warden_are_killed_directly_where_the_warden_is_no_help(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS)
    child = driver.start()
    warden = psutil.Process(child).ppid()
    driver.begin("hide and sleep")
    driver.turn_until(lambda: hidden(driver), 10, "a hidden process")
    os.kill(warden, signal.SIGSTOP)
    driver.do(m.KillDirectly(SLOT, driver.child))
    assert driver.expect(m.WardenExited).how == "signal 9"
    assert not any(map(alive, [child, warden, *hidden(driver)]))


def test_what_survives_is_told_and_tried_again(make_driver: DriverFactory, tmp_path: Path) -> None:
    mercy = tmp_path / "mercy"
    driver = make_driver(
        HANDLERS
        + f"""
from ganger_child import tree, warden
warden._BURY_BOUND = warden._BURY_AGAIN = 0.3
signal_in_earnest = tree._signal
tree._signal = lambda *what: os.path.exists({str(mercy)!r}) and signal_in_earnest(*what)
"""
    )
    child = driver.start()
    driver.begin("sleep")
    driver.do(m.Kill(SLOT, driver.child, driver.nonce))
    assert driver.expect(m.ChildUnkillable).survivors == (child,)
    driver.turn(0.5)
    driver.turn(0.5)
    assert not driver.saw(m.ChildUnkillable), "the same survivors are told once"
    assert not driver.saw(m.ChildExited)
    mercy.touch()
    ended = driver.expect(m.ChildExited).exit
    assert (ended.term_signal, ended.survivors) == (signal.SIGKILL, ())


def test_a_stopped_slot_takes_its_child_along(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS)
    child = driver.start()
    driver.begin("hide and sleep")
    driver.turn_until(lambda: hidden(driver), 10, "a hidden process")
    driver.do(m.StopWarden(SLOT))
    assert driver.expect(m.ChildExited).exit.term_signal == signal.SIGKILL
    assert driver.expect(m.WardenExited).how == "exit code 0"
    assert not any(map(alive, [child, *hidden(driver)]))


# ---------------------------------------------------------------------------------------------------------------------
# Alone


def test_a_run_is_killed_when_the_lease_can_no_longer_be_trusted(make_driver: DriverFactory) -> None:
    """Correction 3: the warden kills by itself."""
    driver = make_driver(HANDLERS)
    child = driver.start()
    driver.begin("hide and sleep")
    driver.turn_until(lambda: hidden(driver), 10, "a hidden process")
    end = time.clock_gettime(time.CLOCK_BOOTTIME) + 1.0
    driver.do(m.Trust(end))
    driver.turn(0.5)
    assert alive(child)
    nothing_left([child, *hidden(driver)], 1.0 + 1.0 * 3)  # without a turn of the loop: the supervisor may be stopped
    assert time.clock_gettime(time.CLOCK_BOOTTIME) >= end
    assert driver.expect(m.ChildExited).exit.term_signal == signal.SIGKILL


def test_a_renewed_trust_harms_nobody(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS)
    child = driver.start()
    driver.begin("sleep")
    for _ in range(20):
        driver.do(m.Trust(time.clock_gettime(time.CLOCK_BOOTTIME) + 1.5))
        driver.turn(0.1)
        driver.turn(0.1)
    assert alive(child)
    driver.do(m.Trust(float("inf")))
    driver.kill()


def test_without_trust_an_idle_child_may_start_but_not_run(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS)
    driver.do(m.Trust(1.0))
    child = driver.start()
    driver.turn(1.5)
    driver.turn(1.5)
    assert alive(child)
    driver.begin("sleep")
    driver.expect(m.ChildExited, 1.0 * 3, child=driver.child)


def test_what_the_supervisor_does_not_read_is_told_later(make_driver: DriverFactory) -> None:
    """The socket to the supervisor is full of verdicts and exits when it looks again."""
    driver = make_driver(HANDLERS)
    driver.start()
    count = 3000
    for child in range(100, 100 + count):  # each is refused, because the slot has a child: an answer each
        driver.gang._order(driver.gang._wardens[SLOT], "fork", child=child)
    driver.do(m.Kill(SLOT, driver.child))
    time.sleep(0.5)  # it answers, and nobody reads
    driver.expect(m.KillAcknowledged, child=driver.child)
    driver.expect(m.ChildExited, child=driver.child)


# ---------------------------------------------------------------------------------------------------------------------
# Watching


@pytest.mark.parametrize(
    ("job_type", "computing"),
    [("sleep", False), ("compute", True), ("hold the GIL", True), ("short processes", True)],
)
def test_the_verdict_on_a_run(make_driver: DriverFactory, job_type: str, computing: bool) -> None:
    driver = make_driver(HANDLERS)
    driver.start()
    job = driver.begin(job_type)
    began = time.monotonic()
    driver.watch(job)
    verdict = driver.expect(m.Verdict, nonce=driver.nonce)
    assert verdict.computing is computing
    assert began - 0.5 <= verdict.since <= began + 3.5
    assert time.monotonic() - began >= 1.4
    driver.kill()


def test_a_change_of_the_verdict_is_told_with_its_beginning(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS)
    driver.start()
    job = driver.begin("compute, then sleep")
    began = time.monotonic()
    driver.watch(job)
    assert driver.expect(m.Verdict).computing
    blocked = driver.expect(m.Verdict)
    assert not blocked.computing
    assert 2.0 < blocked.since - began < 5.5
    driver.kill()


def test_memory_over_the_limit_is_told(make_driver: DriverFactory) -> None:
    mib = 1 << 20
    driver = make_driver(HANDLERS + f"\nballast = bytearray(os.urandom(4096) * {120 * mib // 4096})\n")
    driver.start()
    limits = replace(NO_LIMITS, memory=64 * mib)
    job = driver.begin("hold memory", str(16 * mib))
    driver.watch(job, limits)
    for _ in range(15):
        driver.turn(0.1)
    assert not driver.saw(m.MemoryHeld), "what it shares with the template was counted"
    driver.kill()
    driver.start_child()
    job = driver.begin("hold memory", str(100 * mib))
    driver.watch(job, limits)
    told = driver.expect(m.MemoryHeld, nonce=driver.nonce)
    assert 64 * mib < told.held < 130 * mib
    driver.kill()


def test_the_wardens_title_is_true_while_the_child_is_deep_in_c_code(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS)
    warden = psutil.Process(driver.start()).ppid()
    assert title(warden) == f"ganger: warden {SLOT} idle"
    job = driver.begin("hold the GIL")
    driver.watch(job, replace(NO_LIMITS, timeout=600.0))
    digits = str(job.job_id).replace("-", "")[-8:]
    run = f"ganger: warden {SLOT} hold%20the%20GIL {digits} attempt 1 "
    seen = [next_title(warden, f"ganger: warden {SLOT} idle")]
    for _ in range(2):
        seen.append(next_title(warden, seen[-1]))
    ages = [int(shown.removeprefix(run).removesuffix("s/600s")) for shown in seen]
    assert ages == sorted(set(ages))
    assert ages[-1] - ages[0] <= 4
    driver.kill()
    wait_until(lambda: title(warden) == f"ganger: warden {SLOT} idle", 6, lambda: title(warden))


def test_progress_is_in_the_title_and_told_to_the_supervisor(make_driver: DriverFactory, tmp_path: Path) -> None:
    """What a loop tells ten thousand times is told on once a second at most, and only where it has changed. A note
    comes without what could do something to a terminal; and what the run before has said is not this run's."""
    driver = make_driver(HANDLERS)
    warden = psutil.Process(driver.start()).ppid()
    driver.watch(driver.begin("tell", json.dumps(str(tmp_path / "go"))))
    told = driver.expect(m.ProgressTold, done=0.42)
    assert told.note == "[31m9999 tiles \N{HEAVY BLACK HEART}" + "x" * 82
    wait_until(lambda: title(warden).endswith(" 42%"), 6, lambda: title(warden))
    first = title(warden)
    second = next_title(warden, first)
    assert next_title(warden, second).endswith(" 42%")
    (tmp_path / "go").touch()
    driver.turn_until(lambda: driver.saw(m.JobReturned), 15, "the end of the run")
    assert not driver.saw(m.ProgressTold)
    driver.watch(driver.begin("sleep"))
    wait_until(lambda: " sleep " in title(warden), 6, lambda: title(warden))
    assert not title(warden).endswith("%")
    driver.kill()
    assert not driver.saw(m.ProgressTold)


@pytest.mark.slow
def test_a_run_that_neither_computes_nor_gets_on_is_told_of_once_each_time(
    make_driver: DriverFactory, tmp_path: Path
) -> None:
    driver = make_driver(HANDLERS, stall_after=2.5)
    warden = psutil.Process(driver.start()).ppid()
    names = [str(tmp_path / name) for name in ("first", "second")]
    job = driver.begin("stop and go", json.dumps(names))
    driver.watch(job)
    for name in names:
        driver.printed(name)
        assert not driver.saw(m.Stalled)
        assert 2.5 <= driver.expect(m.Stalled, nonce=driver.nonce).seconds < 2.5 + 3 * 0.5
        wait_until(lambda: title(warden).endswith(" stalled"), 6, lambda: title(warden))
        Path(name).touch()
        wait_until(lambda: not title(warden).endswith(" stalled"), 6, lambda: title(warden))
    driver.expect(m.JobReturned, nonce=driver.nonce)
    assert not driver.saw(m.Stalled)


def test_after_a_minute_a_title_is_renewed_every_five_seconds(make_driver: DriverFactory) -> None:
    """Correction 17: hundreds of wardens that rewrite their titles each second would be real work."""
    driver = make_driver(HANDLERS)
    warden = psutil.Process(driver.start()).ppid()
    job = driver.begin("sleep")
    idle = title(warden)
    driver.do(m.Watch(SLOT, driver.child, driver.nonce, job, NO_LIMITS, time.monotonic() - 100))
    first = next_title(warden, idle)
    began = time.monotonic()
    second = wait_until(lambda: title(warden) if title(warden) != first else "", 5 * 3, lambda: title(warden))
    assert time.monotonic() - began > 4
    ages = [int(shown.rpartition(" ")[2].removesuffix("s")) for shown in (first, second)]
    assert 100 <= ages[0] < ages[1]
    driver.kill()


def test_a_watch_that_comes_after_the_run_changes_nothing(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS)
    warden = psutil.Process(driver.start()).ppid()
    job = driver.begin("echo", "1")
    driver.expect(m.JobReturned)
    driver.watch(job)
    driver.begin("echo", "2")
    driver.expect(m.JobReturned)
    assert title(warden) == f"ganger: warden {SLOT} idle"
    assert not driver.saw(m.Verdict)


def test_children_go_first_when_memory_runs_out(make_driver: DriverFactory) -> None:
    """Correction 16: a child is a likelier victim than its supervisor."""
    driver = make_driver(HANDLERS)
    child = driver.start()
    scores = [int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in (os.getpid(), child)]
    assert scores[1] == min(1000, scores[0] + 500)


def test_a_child_has_nothing_of_its_warden(make_driver: DriverFactory) -> None:
    """No lifeline, no control socket, no descriptor of another process, and not the page of trust."""
    driver = make_driver(HANDLERS)
    child = driver.start()
    links = {number: os.readlink(f"/proc/{child}/fd/{number}") for number in os.listdir(f"/proc/{child}/fd")}
    assert links["0"] == "/dev/null"
    assert links["1"] == links["2"]
    others = [link for number, link in links.items() if int(number) > 2 and link != links["1"]]  # its output, kept
    assert sum(link.startswith("socket:") for link in others) == 1, links  # its wire
    assert not any("pidfd" in link or link.startswith("pipe:") for link in others), links
    assert "ganger-trust" not in Path(f"/proc/{child}/maps").read_text()
