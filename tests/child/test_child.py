"""The child over a real connection: what it reports of handlers, strategies and callbacks of every kind."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ganger_child.errors import CANNOT_REPORT
from ganger_child.page import PROGRESS
from ganger_child.wire import INLINE
from tests.child.driver import JOB_ID, RUN_ID, Driver, wait_until

CAP = 1 << 20


@pytest.fixture(scope="module")
def shared() -> Iterator[Driver]:
    """One child for all tests that leave it able to serve."""
    with Driver(max_result=CAP, callback_timeout=0.5) as driver:
        yield driver


@pytest.fixture
def fresh() -> Iterator[Driver]:
    with Driver() as driver:
        yield driver


# ---------------------------------------------------------------------------------------------------------------------
# Results


@pytest.mark.parametrize("job_type", ["echo", "aecho"])
@pytest.mark.parametrize("payload", [1, "é\N{SNOWMAN}", [], {"a": [None, 1.5]}, False])
def test_what_a_handler_returns_comes_back_as_json(shared: Driver, job_type: str, payload: Any) -> None:
    report = shared.run(job_type, payload)
    assert report.op == "returned"
    assert json.loads(report.body) == payload


def test_no_result_is_an_empty_body(shared: Driver) -> None:
    assert shared.run("echo", None).body == b""


@pytest.mark.parametrize("size", [1024, INLINE, INLINE + 1, CAP])
def test_results_of_every_size_come_back(shared: Driver, size: int) -> None:
    report = shared.run("text", size - 2)
    assert report.op == "returned"
    assert report.body == b'"' + b"x" * (size - 2) + b'"'


def test_a_result_over_the_cap_fails_the_job(shared: Driver) -> None:
    report = shared.run("text", CAP - 1)
    assert (report.op, report["reason"]) == ("raised", "bad-result")
    assert "too large" in report["error"]["message"]
    assert report["error"]["type"] == "ganger_child.BadResult"


@pytest.mark.parametrize(("payload", "told"), [("nan", "NaN is not JSON"), ("set", "is a set")])
def test_a_result_that_cannot_be_stored_fails_the_job_with_its_path(shared: Driver, payload: str, told: str) -> None:
    report = shared.run("odd-result", payload)
    assert report["reason"] == "bad-result"
    assert "result['items'][1]['bad'] " in report["error"]["message"]
    assert told in report["error"]["message"]


def test_the_job_tells_about_itself(shared: Driver) -> None:
    told = json.loads(shared.run("describe", timeout=7.5, shutdown="finish").body)
    assert told == {
        "id": str(JOB_ID),
        "run_id": str(RUN_ID),
        "queue": "default",
        "type": "describe",
        "attempt": 2,
        "attempts": 2,
        "enqueued_at": "2026-11-30T08:46:29.861920+00:00",
        "process_at": "2026-11-30T08:46:30+00:00",
        "timeout": 7.5,
        "shutdown": "finish",
        "interrupted": False,
    }


@pytest.mark.parametrize(
    ("fraction", "note", "told"),
    [
        (0.5, "half", (501, "half")),
        (-1, None, (1, "")),
        (7, "", (1001, "")),
        (None, "no end in sight", (0, "no end in sight")),
        (None, "\ud800", (0, "?")),
        (float("nan"), None, "ValueError: fraction is nan: give a number from 0 to 1."),
        ("a third", None, "ValueError: fraction is 'a third': give a number from 0 to 1."),
        (0.1, 17, "ValueError: note is 17: give a text."),
    ],
)
def test_progress_is_written_for_the_warden_or_refused(shared: Driver, fraction: Any, note: Any, told: Any) -> None:
    report = json.loads(shared.run("progress", [fraction, note]).body)
    given = (shared.page[PROGRESS], shared.page.read_note())
    assert (report or given) == told


@pytest.mark.parametrize(("mode", "function"), [("default", "plain"), ("advanced", "advanced"), ("default", "aplain")])
def test_a_plain_function_takes_every_type(mode: str, function: str) -> None:
    names = ("retry_strategy", "failed_attempt", "failed_job")
    reactions: dict[str, Any] = {name: f"tests.child.plain:{name}" for name in names}
    with Driver(f"tests.child.plain:{function}", handler_mode=mode, **reactions) as driver:
        assert driver.ready is not None
        assert driver.ready["job_types"] is None
        assert json.loads(driver.run("any type", {"n": 1}).body) == ["any type", {"n": 1}]
        driver.send("any type", "fail")
        driver.next("started")
        assert driver.next("raised")["strategy"] == {"retries": 1, "delays": [4.0]}
        assert driver.callbacks("failed_attempt", "failed_job") == {}
        driver.printed("failed_attempt of any type\nfailed_job of any type\n")


# ---------------------------------------------------------------------------------------------------------------------
# Failures


@pytest.mark.parametrize(
    ("payload", "kind", "message"),
    [
        ("value", "ValueError", "this operation failed"),
        ("exit", "SystemExit", "bad input"),
        ("exit-code", "SystemExit", "1"),
        ("generator-exit", "GeneratorExit", "g"),
        ("keyboard", "KeyboardInterrupt", "mine"),
        ("stop", "StopIteration", "s"),
        ("odd", "tests.child.jobs.Odd", "odd 1 2"),
        ("interrupted", "ganger_child.JobInterrupted", "by itself"),
        ("surrogate", "ValueError", "nul \\x00 and \\udc80"),
        ("group", "ExceptionGroup", "several (2 sub-exceptions)"),
    ],
)
def test_whatever_is_raised_is_a_failure_that_keeps_its_message(
    shared: Driver, payload: str, kind: str, message: str
) -> None:
    report = shared.run("raise", payload)
    assert (report.op, report["reason"]) == ("raised", "exception")
    assert (report["error"]["type"], report["error"]["message"]) == (kind, message)
    assert "in raise_" in report["error"]["traceback"]
    assert (report["interrupted"], report["clean_interrupt"]) == (False, False)
    assert report["strategy"] == {"retries": 2, "delays": [1.5, 0.0]}
    assert shared.run("echo", "still here").op == "returned"


def test_a_message_of_megabytes_is_cut_in_its_middle(shared: Driver) -> None:
    error = shared.run("raise", "long")["error"]
    assert len(error["message"]) < 66_000
    assert error["message"].startswith("xxx")
    assert error["message"].endswith("xxx")
    assert error["traceback"].startswith("Traceback")


def test_endless_recursion_is_a_failure(shared: Driver) -> None:
    assert shared.run("recurse")["error"]["type"] == "RecursionError"


def test_an_unknown_job_type_is_named(shared: Driver) -> None:
    report = shared.run("no such type")
    assert report["reason"] == "unknown-job-type"
    assert "'no such type'" in report["error"]["message"]
    assert shared.run("raise", "unknown")["reason"] == "unknown-job-type"


@pytest.mark.parametrize("body", [b"{", b"", b"nonsense", b"[" * 100_000])
def test_an_unreadable_payload_is_a_failure_of_the_job(shared: Driver, body: bytes) -> None:
    shared.send("echo", body=body)
    report = shared.finish()
    assert (report.op, report["reason"]) == ("raised", "exception")
    assert report["strategy"] == {"retries": 2, "delays": [1.5, 0.0]}


def test_an_exit_without_a_word_reports_nothing(fresh: Driver) -> None:
    fresh.send("exit-code", 7)
    fresh.next("started")
    assert fresh.exit_code() == 7
    assert fresh.silent()


@pytest.mark.parametrize("copy", ["return", "raise", "interrupt"])
def test_a_handler_that_forks_reports_once(shared: Driver, copy: str) -> None:
    report = shared.run("fork", copy)
    assert report.body == b'"parent"'
    assert shared.silent()
    assert shared.run("echo", 1).body == b"1"


def test_a_strategy_that_forks_is_answered_once(shared: Driver) -> None:
    report = shared.run("fork-in-strategy")
    assert report["strategy"] is None
    assert shared.run("echo", 1).body == b"1"
    assert shared.silent()


def test_closed_descriptors_end_the_child_and_nothing_is_written_into_the_jobs_own_files(
    fresh: Driver, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    fresh.send("close-all", str(data))
    fresh.next("started")
    assert fresh.exit_code() == CANNOT_REPORT
    assert data.read_bytes() == b""
    assert fresh.silent()


def test_a_tiny_recursion_limit_does_not_silence_the_child(shared: Driver) -> None:
    assert shared.run("low-recursion").op == "returned"


# ---------------------------------------------------------------------------------------------------------------------
# Strategy and callbacks

GOOD = {
    "none": None,
    "mapping": {"retries": 2, "delays": [0.5, 3.0]},
    "delay-none": {"retries": 2, "delays": [0.0]},
    "no-delays": {"retries": 2, "delays": []},
    "retry": {"retries": 3, "delays": [1.0]},
}
BAD = [
    *("negative", "missing", "false", "true", "float", "text", "huge", "list", "retry-negative", "raises", "exits"),
    *("delays-text", "delays-number", "delay-negative", "delay-nan", "delay-infinite", "delay-huge"),
]


@pytest.mark.parametrize("job_type", ["ask", "ask-hard"])
@pytest.mark.parametrize("answer", GOOD)
def test_a_strategy_is_evaluated(shared: Driver, job_type: str, answer: str) -> None:
    report = shared.run(job_type, answer)
    assert (report["strategy"], report["strategy_error"]) == (GOOD[answer], None)


@pytest.mark.parametrize("answer", BAD)
def test_a_strategy_that_raises_or_answers_nonsense_is_no_strategy(shared: Driver, answer: str) -> None:
    for job_type in ("ask", "ask-hard"):
        report = shared.run(job_type, answer)
        assert report["strategy"] is None
        assert report["strategy_error"]["message"]
        assert report["error"]["message"] == "ask"


@pytest.mark.parametrize("job_type", ["ask", "ask-hard"])
def test_a_strategy_that_does_not_answer_is_ended(shared: Driver, job_type: str) -> None:
    report = shared.run(job_type, "sleeps")
    assert report["strategy"] is None
    assert report["strategy_error"]["message"] == "the retry strategy took longer than 0.5 s"


def test_a_constant_retry_needs_no_function(shared: Driver) -> None:
    assert shared.run("constant")["strategy"] == {"retries": 2, "delays": [1.0, 5.0]}


def test_callbacks_are_called_as_asked_with_job_and_exception(fresh: Driver) -> None:
    fresh.send("raise", "value")
    fresh.next("started")
    assert fresh.next("raised")["clean"] is False  # what the callbacks will do is not known yet
    assert "failed_" not in fresh.output()
    assert fresh.callbacks("failed_attempt", "failed_job") == {}
    fresh.printed("failed_attempt raise value this operation failed\nfailed_job raise value this operation failed\n")


def test_a_callback_that_raises_is_told_and_the_others_are_called(shared: Driver) -> None:
    shared.send("raise", "the callback raises")
    shared.next("started")
    shared.next("raised")
    errors = shared.callbacks("failed_job", "failed_attempt")
    assert list(errors) == ["failed_job"]
    assert (errors["failed_job"]["type"], errors["failed_job"]["message"]) == ("RuntimeError", "from failed_job")
    shared.printed("failed_attempt raise the callback raises")
    assert shared.run("echo", 1).op == "returned"


def test_callbacks_that_nobody_declared_are_no_error(shared: Driver) -> None:
    shared.send("ask", "none")
    shared.next("started")
    shared.next("raised")
    assert shared.callbacks("failed_job", "failed_attempt", "__class__") == {}


# ---------------------------------------------------------------------------------------------------------------------
# Post-mortems


@pytest.mark.parametrize(
    ("death", "kind", "message"),
    [
        ({"reason": "timeout"}, "JobTimedOut", "the job ran longer than its timeout of 600 s"),
        ({"reason": "memory"}, "JobOutOfMemory", "the job held more memory than its limit of 1024 bytes"),
        (
            {"reason": "memory", "held": 4096},
            "JobOutOfMemory",
            "the job held more memory than its limit of 1024 bytes: it held 4096 bytes",
        ),
        ({"reason": "crash", "term_signal": 11}, "JobCrashed", "the job's process was killed by signal 11 (SIGSEGV)"),
        (
            {"reason": "crash", "term_signal": 9},
            "JobCrashed",
            "the job's process was killed by signal 9 (possibly OOM)",
        ),
        (
            {"reason": "crash", "exit_code": 0, "term_signal": None},
            "JobCrashed",
            "the job's process exited with code 0 before it had reported an outcome",
        ),
        (
            {"reason": "crash", "exit_code": CANNOT_REPORT},
            "JobCrashed",
            "the handler closed or replaced the descriptors through which its outcome is reported",
        ),
        ({"reason": "lost"}, "JobLost", "the job was lost with what ran it"),
        ({"reason": "lost", "message": "lost five times"}, "JobLost", "lost five times"),
        ({"reason": "bad-result", "message": "it was a set"}, "BadResult", "it was a set"),
        ({"reason": "unknown-job-type", "message": "no such"}, "UnknownJobType", "no such"),
    ],
)
def test_a_postmortem_asks_with_an_exception_that_tells_what_happened(
    shared: Driver, death: dict[str, Any], kind: str, message: str
) -> None:
    report = shared.postmortem(death, payload={"n": 1}, timeout=600.0, memory=1024)
    assert report["reason"] == death["reason"]
    assert report["error"]["type"] == f"ganger_child.{kind}"
    assert report["error"]["message"] == message
    assert report["strategy"] == {"retries": 2, "delays": [1.5, 0.0]}
    assert (report["wall_s"], report["interrupted"]) == (0.0, False)
    assert shared.callbacks("failed_job") == {}
    shared.printed(f"strategy {kind} {message}\n")
    shared.printed(f"failed_job echo {{'n': 1}} {message}\n")


def test_a_postmortem_of_an_exception_repeats_what_was_told(shared: Driver) -> None:
    error = {"type": "app.Broken", "message": "it broke", "traceback": "Traceback …"}
    report = shared.postmortem({"reason": "exception", "error": error})
    assert report["error"] == error
    shared.callbacks()
    shared.printed("strategy JobFailed it broke")


def test_a_postmortem_needs_no_readable_payload(shared: Driver) -> None:
    shared._nonce += 1
    facts = {"job_id": str(JOB_ID), "run_id": str(RUN_ID), "queue": "q", "job_type": "echo", "attempts": 1}
    shared.wire.send(
        "postmortem", b"{", nonce=shared._nonce, job=facts, limits={}, death={"reason": "crash", "exit_code": 1}
    )
    assert shared.next("raised")["strategy"]["retries"] == 2
    shared.callbacks("failed_job")
    shared.printed("failed_job echo { the job's process exited with code 1")


# ---------------------------------------------------------------------------------------------------------------------
# The process


@pytest.mark.parametrize("fork", [True, False])
def test_the_process_is_in_order(fork: bool) -> None:
    with Driver(fork=fork) as driver:
        driver.run("set")
        told = json.loads(driver.run("process").body)
        assert told["started"] == ["hook", "async hook"]
        assert told["random"] != pytest.approx(random.Random(1).random())  # the module seeds with 1 at its import
        assert told["numpy"] == 1
        assert told["stdin"] == ""
        assert told["session"]
        assert told["setting"] == "none"  # a context variable of another job
        assert told["term"] == -signal.SIGTERM  # what a job starts can be ended by TERM
        assert [fd for fd in told["fds"] if 10 < fd < 200] == []
        assert driver.ready is not None
        assert (driver.ready["job_types"] is None) == fork
        driver.wire.send("retire")
        if not fork:
            assert driver.exit_code() == 0
        else:
            wait_until(lambda: driver.wire.receive().closed, "the child retires")
        assert "inherited atexit" not in driver.output() or not fork


def test_output_comes_before_the_report(fresh: Driver) -> None:
    fresh.run("output")
    assert fresh.output() == "a line \\udc80 \N{SNOWMAN}\nto stderr\nraw\nno end of line"


@pytest.mark.parametrize("limit", [None, "no thread"])
def test_what_the_jobs_left_is_flushed_at_the_end(fresh: Driver, limit: str | None) -> None:
    """Also where a limit that the job has set leaves no thread to watch over it."""
    fresh.run("late-atexit", limit)
    fresh.wire.send("retire")
    assert fresh.exit_code() == 0
    assert "own atexit" in fresh.output()
    assert "buffered record" in fresh.output()


def test_the_end_does_not_wait_for_ever(fresh: Driver) -> None:
    fresh.run("late-atexit", 0.2)
    fresh.wire.send("retire")
    assert fresh.exit_code(limit=10) == 0


def test_a_child_whose_supervisor_is_gone_ends(fresh: Driver) -> None:
    fresh.wire.sock.shutdown(2)
    assert fresh.exit_code() == 0


def test_messages_that_mean_nothing_are_ignored(fresh: Driver) -> None:
    fresh.wire.sock.send(b"garbage")
    fresh.wire.sock.send(b"{}\n")
    fresh.wire.send("no-such-thing", nonce=1)
    fresh.wire.send("callbacks", nonce=99, names=["failed_job"])
    assert fresh.run("echo", 1).body == b"1"
    assert fresh.silent()


def test_the_facts_of_a_run_are_its_own() -> None:
    """Correction 14: a reused child's peak of memory would be that of the largest job before."""
    with Driver(fork=True) as driver:  # an exec'd process starts with the peak of the one that exec'd it
        spin = driver.run("spin", 0.2)
        assert 0.2 <= spin["cpu_s"] <= spin["wall_s"] * 1.5
        big = driver.run("allocate", 100)
        small = driver.run("echo", 1)
        assert big["max_rss"] > 100 << 20
        assert small["max_rss"] < 90 << 20
        assert small["cpu_s"] < 0.1
        assert small["worked_s"] == pytest.approx(spin["wall_s"] + big["wall_s"] + small["wall_s"])
        assert small["clean"]


def test_the_run_is_in_the_page_and_in_the_title(fresh: Driver) -> None:
    def title() -> str:
        return Path(f"/proc/{fresh.pid}/cmdline").read_bytes().rstrip(b"\0").decode()

    wait_until(lambda: title() == "ganger: child any/1 idle", "the title says idle")
    nonce = fresh.send("sleep", timeout=600.0)
    fresh.next("started")
    assert fresh.page[0] == nonce
    assert title().startswith("ganger: child any/1 sleep 9d3f01c2 attempt 2 since ")
    assert title().endswith("Z limit 600s")
    fresh.order("timeout")
    fresh.next("raised")
    assert fresh.page[0] == 0


def test_tasks_that_a_coroutine_leaves_are_cancelled(shared: Driver) -> None:
    assert shared.run("async-leaves-tasks").op == "returned"
    shared.printed("other cleaned")


def test_small_jobs_leave_the_child_clean_also_as_coroutines(fresh: Driver) -> None:
    for job_type in ("echo", "aecho", "constant", "echo"):
        assert fresh.run(job_type, 1)["clean"] is True


@pytest.mark.parametrize("payload", ["coroutine", "task", "callback", "thread", "stubborn"])
def test_an_exit_anywhere_in_a_coroutine_ends_the_job_and_nothing_of_it_goes_on(fresh: Driver, payload: str) -> None:
    """D04, https://github.com/DaehwanKimLab/hisat-genotype/issues/56: asyncio stops its loop for a SystemExit in any
    task or callback, in the middle of the job's own coroutine; that must not go on in the next job of this child.
    """
    began = time.monotonic()
    report = fresh.run("async-exit", payload)
    assert time.monotonic() - began < 3 * 1.0
    assert (report.op, report["reason"]) == ("raised", "exception")
    assert (report["error"]["type"], report["error"]["message"]) == ("SystemExit", "bad input")
    assert fresh.run("aecho", "next").op == "returned"
    assert fresh.output().count("cancelled by") == (0 if payload == "coroutine" else 1)


@pytest.mark.parametrize("payload", ["timer", "signals"])
def test_signal_handlers_of_a_job_end_with_it(fresh: Driver, payload: str) -> None:
    report = fresh.run("armed-signals", payload)
    assert report["clean"] is False
    assert report.op == "returned" or payload == "timer"
    fresh.signal(signal.SIGTERM)
    assert fresh.run("echo", 1)["clean"] is False


def test_times_that_python_does_not_know_are_no_obstacle(shared: Driver) -> None:
    facts = {"job_id": str(JOB_ID), "run_id": str(RUN_ID), "queue": "q", "job_type": "describe", "attempts": 1}
    shared._nonce += 1
    times = {"enqueued_at": "infinity", "process_at": "-infinity"}
    shared.wire.send("run", b"1", nonce=shared._nonce, job=facts | times, limits={})
    told = json.loads(shared.finish().body)
    assert told["enqueued_at"].startswith("9999-12-31")
    assert told["process_at"].startswith("0001-01-01")


# ---------------------------------------------------------------------------------------------------------------------
# Start


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("tests.child.nowhere:handlers", "there is no module 'tests.child.nowhere'"),
        ("tests.child.broken:handlers", "No module named 'no_such_dependency'"),
        ("tests.child.plain:nothing", "has no 'nothing'"),
        ("tests.child.plain:failing_start", "the hook raised this"),
    ],
)
def test_a_child_that_cannot_start_says_why(target: str, told: str) -> None:
    with Driver(target, boot=False) as driver:
        assert told in driver.next("boot-error")["error"]
        assert driver.exit_code() == 1


def test_the_driver_leaves_nothing() -> None:
    with Driver() as driver:
        pid = driver.pid
    assert not os.path.exists(f"/proc/{pid}")
