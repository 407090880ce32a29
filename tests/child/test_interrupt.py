"""Orders to stop, as the warden gives them: they reach the run they are for, once, and no other."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ganger_child.wire import Message
from tests.child.driver import Driver, wait_until


@pytest.fixture(scope="module")
def child() -> Iterator[Driver]:
    """One child for all: what a signal did to it is gone with the run, except that it is not clean any more."""
    with Driver() as driver:
        yield driver


@pytest.fixture
def flag(tmp_path: Path) -> Path:
    """A file that a handler waits for to be gone."""
    file = tmp_path / "flag"
    file.touch()
    return file


def report(child: Driver) -> Message:
    """The report of the run that was begun."""
    message = child.next()
    if message.op == "raised":
        child.callbacks()
    return message


def begin(child: Driver, job_type: str, payload: Any = None, *, word: str, **limits: Any) -> None:
    """Send a job and wait until it has printed a word."""
    before = child.output().count(word)
    child.send(job_type, payload, **limits)
    child.next("started")
    printed(child, word, before + 1)


def printed(child: Driver, word: str, times: int) -> None:
    wait_until(lambda: child.output().count(word) >= times, f"{word} was not printed {times} times")


# ---------------------------------------------------------------------------------------------------------------------
# What is raised


@pytest.mark.parametrize(
    ("order", "kind", "message", "asks"),
    [
        ("shutdown", "JobInterrupted", "the supervisor is shutting down", False),
        ("timeout", "JobTimedOut", "the job ran longer than its timeout of 2.5 s", True),
        ("memory", "JobOutOfMemory", "the job held more memory than its limit of 1048576 bytes", True),
        ("cancelled", "JobCancelled", "the job was cancelled", False),
        ("killed", "JobCancelled", "the job was killed by an operator", False),
    ],
)
def test_an_order_is_raised_in_the_handler(child: Driver, order: str, kind: str, message: str, asks: bool) -> None:
    begin(child, "sleep", word="sleeping", timeout=2.5, memory=1 << 20)
    child.order(order)
    raised = report(child)
    assert (raised["error"]["type"], raised["error"]["message"]) == (f"ganger_child.{kind}", message)
    assert "time.sleep(60)" in raised["error"]["traceback"]
    assert (raised["interrupted"], raised["clean_interrupt"], raised["clean"]) == (True, True, False)
    assert (raised["strategy"] is not None) == asks
    assert child.run("echo", 1).body == b"1"


def test_a_broad_except_does_not_swallow_it(child: Driver) -> None:
    begin(child, "stubborn", word="looping")
    child.order("timeout")
    assert report(child)["error"]["type"] == "ganger_child.JobTimedOut"
    assert "swallowed" not in child.output().rpartition("looping")[2]


def test_c_code_is_interrupted_when_it_is_over(child: Driver) -> None:
    begin(child, "c-code", word="computing")
    child.order("timeout")
    assert report(child)["error"]["type"] == "ganger_child.JobTimedOut"


# ---------------------------------------------------------------------------------------------------------------------
# Whom it reaches


def test_an_order_for_another_run_hits_nobody(child: Driver) -> None:
    first = child.send("echo", 1)
    assert child.finish().body == b"1"
    begin(child, "poll", "seen", word="polling")
    child.order("timeout", nonce=first)
    child.order("timeout", nonce=first)
    child.order("shutdown")
    assert report(child)["error"]["type"] == "ganger_child.JobInterrupted"


def test_an_order_between_two_runs_hits_nobody(child: Driver) -> None:
    """Correction 5: a signal has no addressee; the page says for which run it is."""
    child.run("echo", 1)
    child.order("timeout")
    assert child.run("echo", 2).body == b"2"


def test_late_orders_never_hit_the_next_run() -> None:
    """The order of each run is sent as soon as its report is there, with the next run already on its way."""
    with Driver() as child:
        child.send("chunk", 3000)
        for _ in range(300):
            nonce = child._nonce
            child.next("started")
            assert child.next().op == "returned"
            child.send("chunk", 3000)
            child.order("timeout", nonce=nonce)
        assert child.finish().op == "returned"


def test_an_order_at_any_moment_ends_in_one_report() -> None:
    """Orders that meet the handler at its beginning, its middle, its end: returned or raised, and the child lives."""
    seen = set()
    with Driver() as child:
        for size in range(0, 20_000, 100):
            child.send("chunk", size)
            child.next("started")
            if size % 200:  # on a busy machine the word "started" may wake us before the child goes on
                time.sleep(0.001)
            child.order("shutdown")
            message = child.next()
            seen.add(message.op)
            if message.op == "raised":
                assert message["error"]["type"] == "ganger_child.JobInterrupted"
                assert message["interrupted"]
                child.callbacks()
            assert child.silent()
        assert child.run("echo", 1).body == b"1"
    assert seen == {"returned", "raised"}


# ---------------------------------------------------------------------------------------------------------------------
# Once


def test_the_same_order_is_raised_once(child: Driver, flag: Path) -> None:
    """Correction 9: an interrupt that is repeated would destroy the finally blocks it meets."""
    begin(child, "cleanup", str(flag), word="sleeping")
    cleaned = child.output().count("cleaned")
    child.order("timeout")
    printed(child, "cleaning", child.output().count("cleaning") or 1)
    for _ in range(20):
        child.signal(signal.SIGRTMIN + 7)
    flag.unlink()
    assert report(child)["clean_interrupt"]
    assert child.output().count("cleaned") == cleaned + 1


def test_a_second_order_is_raised_again(child: Driver) -> None:
    begin(child, "swallow", {"times": 2}, word="sleeping")
    child.order("timeout")
    printed(child, "swallowed 0 JobTimedOut", 1)
    child.order("timeout")
    printed(child, "swallowed 1 JobTimedOut", 1)
    assert report(child).op == "raised"


def test_an_interrupt_that_python_drops_is_raised_again(child: Driver) -> None:
    """Correction 9: in a __del__ it is lost, and only there it is raised again."""
    begin(child, "del", word="in del")
    child.order("timeout")
    raised = report(child)
    assert raised["error"]["type"] == "ganger_child.JobTimedOut"
    assert raised["clean_interrupt"]
    assert "after del" in child.output()
    assert "Exception ignored" not in child.output()


# ---------------------------------------------------------------------------------------------------------------------
# What it means


def test_a_limit_that_was_swallowed_has_passed_all_the_same(child: Driver) -> None:
    begin(child, "swallow", {"times": 1}, word="sleeping", timeout=3.0)
    child.order("timeout")
    raised = report(child)
    assert raised.op == "raised"
    assert raised["error"]["type"] == "ganger_child.JobTimedOut"
    assert raised["error"]["message"].endswith("timeout of 3 s; the handler swallowed the interrupt and returned")
    assert (raised["interrupted"], raised["clean_interrupt"]) == (True, False)
    assert raised["strategy"]["retries"] == 2


def test_at_shutdown_a_complete_result_wins(child: Driver) -> None:
    begin(child, "swallow", {"times": 1}, word="sleeping")
    child.order("shutdown")
    returned = report(child)
    assert (returned.op, returned.body) == ("returned", b'"all the same"')
    assert returned["clean"] is False


def test_a_limit_stands_above_a_shutdown_whatever_the_order(child: Driver) -> None:
    for first, second in (("shutdown", "timeout"), ("timeout", "shutdown")):
        begin(child, "swallow", {"times": 2}, word="sleeping")
        count = child.output().count("swallowed 0")
        child.order(first)
        printed(child, "swallowed 0", count + 1)
        child.order(second)
        assert report(child)["error"]["type"] == "ganger_child.JobTimedOut"


def test_another_exception_after_an_interrupt_is_told_as_both(child: Driver) -> None:
    begin(child, "swallow", {"times": 1, "raise": True}, word="sleeping")
    child.order("shutdown")
    raised = report(child)
    assert raised["error"]["message"] == "something else"
    assert (raised["interrupted"], raised["clean_interrupt"]) == (True, False)
    assert raised["strategy"] is None


# ---------------------------------------------------------------------------------------------------------------------
# Coroutines


def test_a_coroutine_is_cancelled_and_its_finally_may_await(child: Driver) -> None:
    """Correction 9: an order cancels the task first."""
    begin(child, "async", word="waiting")
    cleaned = child.output().count("cleaned")
    child.order("timeout")
    raised = report(child)
    assert raised["error"]["type"] == "ganger_child.JobTimedOut"
    assert (raised["interrupted"], raised["clean_interrupt"]) == (True, True)
    assert "CancelledError" in raised["error"]["traceback"]
    assert child.output().count("cleaned") == cleaned + 1


def test_a_coroutine_that_returns_at_shutdown_has_returned(child: Driver) -> None:
    begin(child, "async", "swallow", word="waiting")
    child.order("shutdown")
    assert report(child).body == b'"swallowed"'


def test_a_coroutine_that_swallows_its_timeout_has_timed_out(child: Driver) -> None:
    begin(child, "async", "swallow", word="waiting")
    child.order("timeout")
    assert "swallowed the interrupt" in report(child)["error"]["message"]


def test_a_coroutine_that_swallows_its_cancellation_is_interrupted_hard(child: Driver) -> None:
    begin(child, "async-stubborn", 1, word="waiting")
    child.order("timeout")
    printed(child, "cancelled", 1)
    child.order("timeout")
    raised = report(child)
    assert (raised["error"]["type"], raised["clean_interrupt"]) == ("ganger_child.JobTimedOut", True)
    child.printed("left")
    child.printed("other cleaned")
    assert child.run("aecho", 1).body == b"1"  # in a new loop


def test_a_coroutine_that_swallows_even_that_is_left_at_the_last_word(child: Driver) -> None:
    begin(child, "async-stubborn", 1000, word="waiting")
    count = child.output().count("cancelled")
    child.order("timeout")
    printed(child, "cancelled", count + 1)
    child.order("timeout")
    printed(child, "cancelled", count + 2)
    child.signal(signal.SIGTERM)
    assert report(child)["error"]["type"] == "ganger_child.JobTimedOut"
    assert child.run("aecho", 1).body == b"1"


def test_a_loop_of_the_jobs_own_is_left(child: Driver) -> None:
    begin(child, "asyncio-run", word="waiting")
    child.order("timeout")
    assert report(child)["error"]["type"] == "ganger_child.JobTimedOut"
    child.printed("finally")


# ---------------------------------------------------------------------------------------------------------------------
# Sections and looks


@pytest.mark.parametrize(("job_type", "order"), [("shelter", "shutdown"), ("async-shelter", "shutdown")])
def test_a_shutdown_waits_for_an_uninterruptible_section(child: Driver, flag: Path, job_type: str, order: str) -> None:
    begin(child, job_type, str(flag), word="inside")
    still, outside = child.output().count("still inside"), child.output().count("outside")
    child.order("shutdown")
    flag.unlink()
    assert report(child)["error"]["type"] == "ganger_child.JobInterrupted"
    assert child.output().count("still inside") == still + 1
    assert child.output().count("outside") == outside


def test_a_limit_does_not_wait_for_it(child: Driver, flag: Path) -> None:
    begin(child, "shelter", str(flag), word="inside")
    still = child.output().count("still inside")
    child.order("timeout")
    assert report(child)["error"]["type"] == "ganger_child.JobTimedOut"
    assert child.output().count("still inside") == still


@pytest.mark.parametrize(
    ("payload", "op", "body"), [("seen", "returned", b'"seen"'), ("thread", "returned", b'"interrupted"')]
)
def test_a_handler_that_looks_sees_a_wish_that_interrupts_nobody(
    child: Driver, payload: str, op: str, body: bytes
) -> None:
    begin(child, "poll", payload, word="polling")
    child.order("shutdown", signalling=False)
    message = report(child)
    assert (message.op, message.body) == (op, body)


def test_a_handler_stops_early_by_raising(child: Driver) -> None:
    begin(child, "poll", "check", word="polling")
    child.order("shutdown", signalling=False)
    raised = report(child)
    assert raised["error"]["type"] == "ganger_child.JobInterrupted"
    assert (raised["interrupted"], raised["clean_interrupt"]) == (True, True)
    child.printed("finally")


def test_a_failure_after_a_mere_wish_is_a_failure_with_a_strategy(child: Driver) -> None:
    begin(child, "poll", "raise", word="polling")
    child.order("shutdown", signalling=False)
    raised = report(child)
    assert (raised["error"]["message"], raised["clean_interrupt"]) == ("something else", False)


def test_a_wish_is_not_raised(child: Driver, flag: Path) -> None:
    begin(child, "shelter", str(flag), word="inside")
    child.order("shutdown", signalling=False)
    flag.unlink()
    assert report(child).body == b'"done"'


# ---------------------------------------------------------------------------------------------------------------------
# Other signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_of_others_mean_nothing(flag: Path, number: int) -> None:
    """Correction 5: but a child that was signalled at all is not clean, so it is not used again."""
    with Driver() as child:
        begin(child, "shelter", str(flag), word="inside")
        child.order("shutdown", signalling=False)
        child.signal(number)
        flag.unlink()
        returned = report(child)
        assert (returned.op, returned.body, returned["clean"]) == ("returned", b'"done"', False)
        child.signal(number)
        assert child.run("echo", 1).body == b"1"


def test_term_after_an_interrupt_is_the_last_word(child: Driver) -> None:
    begin(child, "swallow", {"times": 2}, word="sleeping")
    count = child.output().count("swallowed 0")
    child.order("timeout")
    printed(child, "swallowed 0", count + 1)
    child.signal(signal.SIGTERM)
    assert report(child)["error"]["type"] == "ganger_child.JobTimedOut"


def test_a_job_may_handle_term_itself_and_its_child_is_not_clean() -> None:
    with Driver() as child:
        begin(child, "own-term", word="waiting")
        child.order("shutdown", signalling=False)
        child.signal(signal.SIGTERM)
        returned = report(child)
        assert (returned.body, returned["clean"]) == (b'"term"', False)
