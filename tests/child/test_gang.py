"""The gang as the core sees it: jobs go down, their outcomes and what they print come up, in order."""

from __future__ import annotations

import json
import os
import time
from typing import get_args

from ganger.core import messages as m
from ganger.output import LINE
from tests.child.conftest import NO_LIMITS, SLOT, DriverFactory, job_of

HANDLERS = """
import os, sys, time
from ganger_child import Handlers, Retry

handlers = Handlers()

@handlers.job("echo", timeout=7, memory="1MiB")
def echo(job):
    return job.payload

@handlers.job("say")
def say(job):
    for line in job.payload:
        print(line)

@handlers.job("fail", retry=Retry(2, delays=[1, 5]))
def fail(job):
    print("about to fail", end="")
    raise ValueError("no luck")

@handlers.job("flood")
def flood(job):
    block = b"x" * 99 + b"\\n"
    for _ in range(job.payload):
        os.write(1, block * 1000)

@handlers.job("bytes")
def raw(job):
    os.write(1, bytes(job.payload))

@handlers.job("fork")
def fork(job):
    if os.fork() == 0:
        print("the copy goes on")
    else:
        os.wait()
    return "once"

@handlers.job("say-and-wait")
def say_and_wait(job):
    print("waiting")
    time.sleep(60)

@handlers.job("sleep")
def sleep(job):
    time.sleep(60)
"""


def test_a_job_goes_down_and_its_result_comes_up(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS)
    ready = driver.start_template()
    assert ready.job_types is not None
    assert ready.job_types["echo"] == m.TypeFacts(timeout=7.0, memory=1 << 20)
    driver.start_warden()
    driver.start_child()
    for payload in ({"a": [1, "ü"]}, "x" * 300_000, None):
        driver.send("echo", json.dumps(payload))
        driver.expect(m.JobStarted, nonce=driver.nonce)
        returned = driver.expect(m.JobReturned, nonce=driver.nonce)
        assert returned.clean
        assert (None if returned.result is None else json.loads(returned.result)) == payload


def test_thousands_of_job_types_are_told(make_driver: DriverFactory) -> None:
    """More than fit into one datagram."""
    driver = make_driver(HANDLERS + "\nfor number in range(4000): handlers.job(f'type-{number}', timeout=60)(echo)\n")
    ready = driver.start_template()
    assert ready.job_types is not None
    assert len(ready.job_types) > 4000
    driver.start_warden()
    driver.start_child()
    driver.begin("type-3999", "7")
    assert driver.expect(m.JobReturned).result == b"7"


def test_a_retired_child_exits_by_itself(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS)
    driver.start()
    driver.do(m.Retire(SLOT, driver.child))
    ended = driver.expect(m.ChildExited, child=driver.child).exit
    assert (ended.exit_code, ended.term_signal, ended.leftovers) == (0, None, 0)


def test_what_a_job_raises_comes_up_with_its_strategy_and_the_callbacks_answer(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS)
    driver.start()
    driver.begin("fail")
    raised = driver.expect(m.JobRaised, nonce=driver.nonce)
    assert raised.reason == "exception"
    assert raised.error["message"] == "no luck"
    assert raised.strategy == m.Strategy(2, (1.0, 5.0))
    assert driver.lines[-1].text == "about to fail"
    driver.do(m.SendCallbacks(SLOT, driver.child, driver.nonce, ("failed_attempt",)))
    assert driver.expect(m.CallbacksDone, nonce=driver.nonce).errors == {}


def test_each_line_belongs_to_the_job_that_printed_it_and_comes_before_its_end(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS)
    driver.start()
    for number in range(20):
        job = driver.send("say", json.dumps([f"{number}.{line}" for line in range(50)]))
        driver.expect(m.JobReturned, nonce=driver.nonce)
        assert [line.text for line in driver.lines] == [f"{number}.{line}" for line in range(50)]
        assert {line.job_id for line in driver.lines} == {job.job_id}
        driver.lines.clear()


def test_a_flood_of_output_is_read_in_small_bites(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS)
    driver.start()
    driver.begin("flood", "400")  # 40 MB
    count, longest = 0, 0.0
    while not driver.saw(m.JobReturned):
        began = time.monotonic()
        driver.turn()
        longest = max(longest, time.monotonic() - began)
        count += len(driver.lines)
        driver.lines.clear()
    assert count == 400_000
    assert longest < 0.5, "one round of the loop took too long"


def test_long_lines_are_cut_and_odd_bytes_shown(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS)
    driver.start()
    content = b"\xff\x00odd\n" + "ü".encode() * LINE + b"\nlast"
    driver.send("bytes", json.dumps(list(content)))
    driver.expect(m.JobReturned)
    first, *pieces, last = [line.text for line in driver.lines]
    assert first == "\\xff\x00odd"
    assert last == "last"
    assert "".join(pieces) == "ü" * LINE
    assert max(len(piece.encode()) for piece in pieces) <= LINE


def test_the_last_of_what_a_job_printed_comes_before_its_end_and_nothing_of_one_that_was_silent(
    make_driver: DriverFactory,
) -> None:
    driver = make_driver(HANDLERS)
    driver.start()
    driver.send("flood", "1")
    kept = driver.expect(m.OutputKept, nonce=driver.nonce)
    driver.expect(m.JobReturned, nonce=driver.nonce)
    first, _, rest = kept.text.partition("\n")
    assert first == f"[… {100_000 - len(rest)} bytes before]"
    assert set(rest.splitlines()) == {"x" * 99}
    assert 8000 < len(rest) <= 8192
    driver.send("echo", "1")
    driver.expect(m.JobReturned, nonce=driver.nonce)
    assert not driver.saw(m.OutputKept)
    driver.send("fail")
    assert driver.expect(m.OutputKept, nonce=driver.nonce).text == "about to fail"
    driver.expect(m.JobRaised, nonce=driver.nonce)
    driver.do(m.SendCallbacks(SLOT, driver.child, driver.nonce, ()))
    driver.expect(m.CallbacksDone, nonce=driver.nonce)
    driver.begin("say-and-wait")
    driver.printed("waiting")
    driver.do(m.Kill(SLOT, driver.child, driver.nonce))
    assert driver.expect(m.OutputKept, nonce=driver.nonce).text == "waiting\n"
    driver.expect(m.ChildExited, child=driver.child)


def test_a_handler_that_forks_reports_once(make_driver: DriverFactory) -> None:
    """Correction 6: the handler returns twice, in two processes."""
    driver = make_driver(HANDLERS)
    driver.start()
    driver.begin("fork")
    returned = driver.expect(m.JobReturned, nonce=driver.nonce)
    assert returned.result == b'"once"'
    driver.begin("echo", "1")
    driver.expect(m.JobReturned, nonce=driver.nonce)
    assert not driver.saw(m.JobReturned)


FORGER = """
import glob, os, socket, threading, time
from ganger_child import Handlers

handlers = Handlers()

def sockets():
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                yield socket.socket(fileno=os.dup(int(name)))
        except OSError:
            pass

@handlers.job("copy lies")
def copy_lies(job):
    if os.fork() == 0:
        for wire in sockets():
            wire.send(b'{"op":"returned","nonce":1,"wall_s":0,"cpu_s":0,"max_rss":0,"clean":true,"worked_s":0}\\n"forged"')
        os._exit(0)
    os.wait()
    return "true"

@handlers.job("nonsense")
def nonsense(job):
    for wire in sockets():
        for _ in range(40):
            wire.send(b"no message")
            wire.send(b'{"op":"returned","nonce":"x"}\\n')
            wire.send(b'{"op":"made up"}\\n')
    time.sleep(60)
"""


def test_a_message_from_another_process_than_the_child_is_dropped(make_driver: DriverFactory) -> None:
    """Correction 6: the kernel says who has sent it."""
    driver = make_driver(FORGER)
    driver.start()
    driver.begin("copy lies")
    assert driver.expect(m.JobReturned, nonce=1).result == b'"true"'


def test_too_much_nonsense_is_told_once(make_driver: DriverFactory) -> None:
    driver = make_driver(FORGER)
    driver.start()
    driver.begin("nonsense")
    driver.expect(m.Garbage, child=driver.child)
    driver.kill()
    assert not driver.saw(m.Garbage)


def test_the_loop_is_at_rest_when_nothing_happens(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS)
    driver.start()
    driver.begin("echo", "1")
    driver.expect(m.JobReturned)
    driver.do(m.Retire(SLOT, driver.child))
    driver.expect(m.ChildExited)
    driver.start_child()
    before, end = driver.visits, time.monotonic() + 0.5
    while time.monotonic() < end:
        driver.turn()
    assert driver.visits - before <= 2


def test_an_order_to_a_warden_that_does_not_read_is_kept(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS)
    driver.start_template()
    warden = driver.start_warden()
    driver.start_child()
    driver.begin("sleep")
    os.kill(warden, 19)  # SIGSTOP: it reads no more, and its socket fills
    job = job_of("x" * 190, "null")
    for _ in range(5_000):
        driver.do(m.Watch(SLOT, driver.child, 99, job, NO_LIMITS, 0.0))
    driver.do(m.Kill(SLOT, driver.child, driver.nonce))
    driver.turn(0)
    driver.do(m.ContinueWarden(SLOT))
    driver.expect(m.KillAcknowledged, child=driver.child)
    assert driver.expect(m.ChildExited, child=driver.child).exit.term_signal == 9


def test_commands_for_what_is_gone_are_passed_over(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS)
    driver.start()
    job = job_of("echo", "1")
    for slot, child in (("other/1", 1), (SLOT, 99)):
        driver.do(m.SendJob(slot, child, 1, job, NO_LIMITS))
        driver.do(m.SendCallbacks(slot, child, 1, ()))
        driver.do(m.Watch(slot, child, 1, job, NO_LIMITS, 0.0))
        driver.do(m.TakeStack(slot, child, 1))
        driver.do(m.Interrupt(slot, child, 1, "timeout"))
        driver.do(m.Terminate(slot, child, 1))
        driver.do(m.Kill(slot, child))
        driver.do(m.ReplaceIdle(slot, child, 1))
        driver.do(m.KillDirectly("other/1", child))
        driver.do(m.Retire(slot, child))
    driver.do(m.ContinueWarden("other/1"))
    driver.do(m.StopWarden("other/1"))
    driver.do(m.StartChild("other/1", 5))
    driver.do(m.StopTemplate(7))
    driver.begin("echo", "1")
    assert driver.expect(m.JobReturned).result == b"1"
    driver.do(m.StartWarden("late/1", 7))
    assert "no template" in driver.expect(m.WardenExited, slot="late/1").how


def test_a_child_with_an_interpreter_of_its_own(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS, start_method="spawn")
    assert driver.start_template().job_types is None
    driver.start_warden()
    driver.child += 1
    driver.do(m.StartChild(SLOT, driver.child))
    ready = driver.expect(m.ChildReady, 30, child=driver.child)
    assert ready.job_types is not None
    assert "echo" in ready.job_types
    driver.begin("echo", "[1]")
    assert driver.expect(m.JobReturned).result == b"[1]"
    driver.begin("sleep")
    assert driver.kill().exit.term_signal == 9


def test_every_command_to_the_gang_is_carried_out(make_driver: DriverFactory) -> None:
    assert set(make_driver(HANDLERS).gang._commands) == set(get_args(m.GangCommand))


def test_many_short_jobs_cost_little(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS)
    driver.start()
    count, began = 500, time.monotonic()
    for _ in range(count):
        driver.send("echo", "1")
        driver.expect(m.JobReturned, nonce=driver.nonce)
    assert (time.monotonic() - began) / count < 0.015  # 0.5 ms where nothing else runs
