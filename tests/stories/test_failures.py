"""What follows when a job fails: strategy, callbacks, events and rows; and what its failure must not do to others.

Where the original loses attempts, loops for ever or stops for good, the name of the test says what happens here.
"""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from tests.processes import wait_until
from tests.stories.stage import Running, Stage

# Callbacks and a strategy that write down what they are told: one JSON line per call in the file "told".
TELL = """
    import json, ctypes
    def shown(exception):
        try:
            return str(exception)
        except ZeroDivisionError:
            return "not to be shown"
    def tell(call, job, exception):
        line = {"call": call, "type": job.type, "attempt": job.attempt, "pid": os.getpid(),
                "exception": type(exception).__name__, "message": shown(exception),
                "exit_code": getattr(exception, "exit_code", None), "signal": getattr(exception, "term_signal", None),
                "extra": getattr(exception, "extra", None), "job_id": str(job.id), "payload": job.payload}
        with open(FOLDER / "told", "a") as file:
            file.write(json.dumps(line) + "\\n")
    def strategy(job, exception):
        tell("strategy", job, exception)
        return Retry(job.payload.get("retries", 0) if isinstance(job.payload, dict) else 0, delays=[0.05])
    def failed_attempt(job, exception):
        tell("failed_attempt", job, exception)
    def failed_job(job, exception):
        tell("failed_job", job, exception)
    handlers = Handlers(retry_strategy=strategy, failed_attempt=failed_attempt, failed_job=failed_job)
    @handlers.job("fine")
    def fine(job):
        return "fine"
"""


def handlers(stage: Stage, source: str) -> None:
    """Write a handler module that begins with TELL."""
    stage.handlers(TELL + source)


def told(stage: Stage, job_id: object) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in stage.lines("told")]
    return [line for line in lines if line["job_id"] == str(job_id)]


def calls(stage: Stage, job_id: object) -> list[tuple[str, int]]:
    return [(line["call"], line["attempt"]) for line in told(stage, job_id)]


def of_job(supervisor: Running, job_id: object) -> list[str]:
    """The names of the events about a job (what it printed comes over another pipe, in an order of its own)."""
    about = [event["event"] for event in supervisor.events if event.get("job_id") == str(job_id)]
    return [name for name in about if name != "job-output"]


# ---------------------------------------------------------------------------------------------------------------------
# The ordinary way


def test_a_failing_job_is_retried_and_its_callbacks_get_the_real_exception(stage: Stage) -> None:
    handlers(
        stage,
        """
    class Refused(Exception):
        def __init__(self, message, extra):
            super().__init__(message)
            self.extra = extra
    @handlers.job("refuse")
    def refuse(job):
        tell("handler", job, None)
        raise Refused("no way", {"code": 7})
    """,
    )
    supervisor = stage.run("-c", "1")
    job_id = stage.enqueue("refuse", {"retries": 2})
    row = stage.archived(job_id)
    assert (row["status"], row["reason"], row["attempts"], row["crashes"], row["losses"]) == (
        "failure", "exception", 3, 0, 0,
    )  # fmt: skip
    assert row["error"]["type"].endswith("Refused")
    assert row["error"]["message"] == "no way"
    assert 'raise Refused("no way"' in row["error"]["traceback"]
    each = ["handler", "strategy", "failed_attempt"]
    expected = [(call, attempt) for attempt in (1, 2, 3) for call in each] + [("failed_job", 3)]
    assert calls(stage, job_id) == expected
    pids = {call["attempt"]: call["pid"] for call in told(stage, job_id) if call["call"] == "handler"}
    for call in told(stage, job_id):
        assert call["pid"] == pids[call["attempt"]], "asked in the child that failed"
        if call["call"] != "handler":
            assert (call["exception"], call["message"], call["extra"]) == ("Refused", "no way", {"code": 7})
    supervisor.expect("not-retrying", job_id=str(job_id))
    attempt = ["handling-job", "handle-job-exception"]
    assert of_job(supervisor, job_id) == [*attempt, "retrying", *attempt, "retrying", *attempt, "not-retrying"]
    retries = supervisor.named("retrying")
    assert [event["retries_left"] for event in retries] == [2, 1]
    assert all(event["retry_at"] > event["ts"] for event in retries)
    assert supervisor.named("not-retrying")[0]["retries_left"] == 0
    assert supervisor.named("handle-job-exception")[0]["error"]["message"] == "no way"
    assert [(entry["attempt"], entry["reason"]) for entry in row["history"]] == [(1, "exception"), (2, "exception")]
    assert row["history"][0]["error"]["message"] == "no way"
    assert row["history"][0]["wall_s"] >= 0


# What is done to the child, and what is then true: reason, exit code, signal, the exception that the callbacks get.
ENDS: dict[str, tuple[str, str, int | None, int | None, str]] = {
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", "crash", None, signal.SIGKILL, "JobCrashed"),
    "terminated": (
        "signal.signal(signal.SIGTERM, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGTERM)",
        "crash", None, signal.SIGTERM, "JobCrashed",
    ),
    "segmentation-fault": ("ctypes.string_at(0)", "crash", None, signal.SIGSEGV, "JobCrashed"),
    "aborted": ("os.abort()", "crash", None, signal.SIGABRT, "JobCrashed"),
    "bus-error": ("signal.raise_signal(signal.SIGBUS)", "crash", None, signal.SIGBUS, "JobCrashed"),
    "real-time-signal": ("os.kill(os.getpid(), signal.SIGRTMIN + 1)", "crash", None, signal.SIGRTMIN + 1, "JobCrashed"),
    "killed-group": ("os.killpg(0, signal.SIGKILL)", "crash", None, signal.SIGKILL, "JobCrashed"),
    "cpu-limit": (
        "import resource; resource.setrlimit(resource.RLIMIT_CPU, (1, 1)); sum(range(10**11))",
        "crash", None, signal.SIGKILL, "JobCrashed",
    ),
    "exit-0": ("os._exit(0)", "crash", 0, None, "JobCrashed"),
    "exit-0-of-a-thread": (
        "import threading; threading.Thread(target=os._exit, args=(0,)).start(); time.sleep(600)",
        "crash", 0, None, "JobCrashed",
    ),
    "another-program": ("os.execvp('true', ['true'])", "crash", 0, None, "JobCrashed"),
    "another-program-that-fails": ("os.execvp('sh', ['sh', '-c', 'exit 7'])", "crash", 7, None, "JobCrashed"),
    "exit-11": ("os._exit(11)", "crash", 11, None, "JobCrashed"),
    "descriptors-closed": ("os.closerange(0, 4096)", "crash", 113, None, "JobCrashed"),
    "sys-exit": ('sys.exit("bad input")', "exception", None, None, "SystemExit"),
    "exit-1": ("exit(1)", "exception", None, None, "SystemExit"),
    "exit-without-a-word": ("sys.exit()", "exception", None, None, "SystemExit"),
    "exit-in-a-pool-of-threads": (
        "from concurrent.futures import ThreadPoolExecutor as Pool; list(Pool().map(sys.exit, ['bad input']))",
        "exception", None, None, "SystemExit",
    ),
    "interrupt-of-its-own": ("raise KeyboardInterrupt()", "exception", None, None, "KeyboardInterrupt"),
}  # fmt: skip


def test_every_way_a_job_can_end_its_process_is_told_truly_and_counted_once(stage: Stage) -> None:
    """D03, https://github.com/rq/rq/issues/1517: signal 11 and exit code 11 are not taken for each other. D04,
    https://github.com/DaehwanKimLab/hisat-genotype/issues/56: an exit in a handler is a failure within 1 s that keeps
    its message, and exit 0 without a result is never a success. Neither affects the siblings.
    """
    source = "\n".join(
        f"""
    @handlers.job({name!r})
    def _(job):
        {act}
    """
        for name, (act, *_) in ENDS.items()
    )
    handlers(stage, source)
    supervisor = stage.run("-c", "2", "--recycle-after", "0")
    ids = {name: stage.enqueue(name, {"retries": 0}) for name in ENDS}
    fine = stage.enqueue("fine")
    for name, (_, reason, exit_code, term_signal, exception) in ENDS.items():
        row = stage.archived(ids[name], 60)
        found = (row["status"], row["reason"], row["exit_code"], row["term_signal"], row["attempts"], row["crashes"])
        assert found == ("failure", reason, exit_code, term_signal, 1, int(reason == "crash")), name
        assert row["error"]["type"].endswith(exception), name
        took = (row["finished_at"] - row["started_at"]).total_seconds()
        assert took < 3 * (1 if name != "cpu-limit" else 2), f"{name} was recorded after {took:.2f} s"
        assert calls(stage, ids[name]) == [("strategy", 1), ("failed_attempt", 1), ("failed_job", 1)], name
        for call in told(stage, ids[name]):
            assert call["exception"] == exception, name
            assert call["payload"] == {"retries": 0}
            if reason == "crash":
                assert (call["exit_code"], call["signal"]) == (exit_code, term_signal), name
                assert call["pid"] != row["pid"], "asked in a fresh child"
            else:
                assert call["pid"] == row["pid"]
        ending = "job-crashed" if reason == "crash" else "handle-job-exception"
        assert of_job(supervisor, ids[name]) == ["handling-job", ending, "not-retrying"], name
    for name, words in {
        "segmentation-fault": "signal 11 (SIGSEGV)", "exit-11": "code 11", "exit-0": "code 0",
        "killed": "signal 9 (possibly OOM)", "sys-exit": "bad input", "exit-1": "1",
        "exit-in-a-pool-of-threads": "bad input",
    }.items():  # fmt: skip
        assert words in told(stage, ids[name])[0]["message"]
        assert words in stage.archived(ids[name])["error"]["message"]
    assert stage.archived(fine)["status"] == "success"
    assert supervisor.stop() == 0


def test_the_archive_tells_what_a_run_cost_and_where(stage: Stage) -> None:
    handlers(
        stage,
        """
    @handlers.job("costly")
    def costly(job):
        held = bytearray(80 << 20)
        end = time.process_time() + 0.4
        while time.process_time() < end: pass
        time.sleep(0.3)
        if (job.payload or {}).get("dies"): os._exit(3)
        return os.getpid()
    """,
    )
    supervisor = stage.run("-c", "1", "--name", "the-host:1")
    ids = [stage.enqueue("costly"), stage.enqueue("costly", {"dies": True})]
    for job_id in ids:
        row = stage.archived(job_id)
        assert 0.7 <= row["wall_s"] < 20
        assert 0.39 <= row["cpu_s"] < 5
        assert 70 << 20 <= row["max_rss"] < 400 << 20
        assert row["host"]
        assert row["supervisor"] == "the-host:1"
        assert row["pid"] > 1
        assert row["enqueued_at"] <= row["started_at"] <= row["finished_at"]
        assert row["rung"] is None
        assert row["ended_by"] is None
    assert stage.archived(ids[0])["result"] == stage.archived(ids[0])["pid"]
    assert stage.archived(ids[1])["exit_code"] == 3
    finished = supervisor.expect("job-finished", job_id=str(ids[0]))
    assert finished["max_rss"] == stage.archived(ids[0])["max_rss"]


# ---------------------------------------------------------------------------------------------------------------------
# What the original does wrong


def test_a_poison_job_ends_at_max_crashes_whatever_its_strategy_says_and_others_flow_meanwhile(stage: Stage) -> None:
    """D61, https://github.com/activepieces/activepieces/issues/15130: a handler kills its process. It runs exactly
    three times, then it is final with the reason; other jobs flow."""
    handlers(
        stage,
        """
    @handlers.job("poison", retry=Retry(1000, delays=[0.5]))
    def poison(job):
        os.kill(os.getpid(), signal.SIGKILL)
    """,
    )
    supervisor = stage.run("-c", "1", "--recycle-after", "0")
    poison = stage.enqueue("poison", priority=-10)  # at the head of the queue each time
    fine = [stage.enqueue("fine") for _ in range(5)]
    row = stage.archived(poison, 40)
    assert (row["status"], row["reason"], row["attempts"], row["crashes"]) == ("failure", "crash", 3, 3)
    assert [(entry["attempt"], entry["reason"], entry["term_signal"]) for entry in row["history"]] == [
        (1, "crash", 9), (2, "crash", 9),
    ]  # fmt: skip
    assert [call for call, _ in calls(stage, poison)].count("failed_job") == 1
    assert len(supervisor.named("job-crashed", job_id=str(poison))) == 3
    assert {stage.archived(job_id)["status"] for job_id in fine} == {"success"}
    first = min(stage.archived(job_id)["finished_at"] for job_id in fine)
    assert first < row["finished_at"], "the others waited for the poison"


def test_max_crashes_can_be_chosen_and_fewer_retries_end_it_sooner(stage: Stage) -> None:
    handlers(
        stage,
        """
    @handlers.job("crash")
    def crash(job):
        os._exit(1)
    """,
    )
    stage.run("-c", "1", "--max-crashes", "2")
    many, few = stage.enqueue("crash", {"retries": 9}), stage.enqueue("crash", {"retries": 0})
    rows = [stage.archived(many, 40), stage.archived(few, 40)]
    assert [(row["attempts"], row["crashes"]) for row in rows] == [(2, 2), (1, 1)]


def test_attempts_that_the_original_never_counts_count(stage: Stage) -> None:
    """Error, StackOverflowError, OutOfMemoryError, assert: there they stop the worker, and the row stays as it was."""
    acts = {
        "base-exception": "raise BaseException('not an Exception')",
        "recursion": "def f(): f()\n        f()",
        "assertion": "assert not job, 'it is there'",
        "memory-error": "bytearray(1 << 60)",
        "generator-exit": "raise GeneratorExit",
        "group": "raise ExceptionGroup('several', [ValueError(1), KeyError(2)])",
        "interrupt-by-name": "raise JobInterrupted('I stop by myself')",
        "not-to-be-shown": "raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})()",
    }
    source = "\n".join(f"""
    @handlers.job({name!r})
    def _(job):
        {act}
    """ for name, act in acts.items())  # fmt: skip
    handlers(stage, source)
    supervisor = stage.run("-c", "2")
    ids = {name: stage.enqueue(name, {"retries": 1}) for name in acts}
    for name, job_id in ids.items():
        row = stage.archived(job_id, 40)
        assert (row["status"], row["reason"], row["attempts"], row["crashes"]) == ("failure", "exception", 2, 0), name
        expected = [("strategy", 1), ("failed_attempt", 1), ("strategy", 2), ("failed_attempt", 2), ("failed_job", 2)]
        assert calls(stage, job_id) == expected, name
    assert stage.archived(stage.enqueue("fine"))["status"] == "success"
    assert not supervisor.named("job-worker-error")


MALFORMED = {
    "negative": '{"retries": -1}',
    "float": '{"retries": 1.5}',
    "text": '{"retries": "2"}',
    "truth": '{"retries": True}',
    "no-retries": '{"delays": [1]}',
    "empty": "{}",
    "false": "False",
    "number": "3",
    "word": "'twice'",
    "pair": "(2, [1])",
    "class": "Retry",
    "huge": '{"retries": 10**30}',
    "negative-delay": '{"retries": 2, "delays": [-1]}',
    "text-delay": '{"retries": 2, "delays": ["1s"]}',
    "delays-a-text": '{"retries": 2, "delays": "12"}',
    "delays-a-number": '{"retries": 2, "delays": 5}',
    "infinite-delay": '{"retries": 2, "delays": [float("inf")]}',
    "no-number": '{"retries": 2, "delays": [float("nan")]}',
    "bad-retry": "Retry(-3)",
    "coroutine-made-wrongly": "__import__('asyncio').sleep(0, result=object())",
    "raises": "1 / 0",
    "exits": "sys.exit(3)",
    "raises-base": "(_ for _ in ()).throw(BaseException('base'))",
    "lies": "type('Liar', (dict,), {'__getitem__': lambda s, k: 1 / 0, '__contains__': lambda s, k: True})()",
}


def test_a_malformed_strategy_of_any_form_or_one_that_raises_costs_its_job_the_retries_and_nothing_else(
    stage: Stage,
) -> None:
    source = "\n".join(f"""
    @handlers.job({name!r}, retry_strategy=lambda job, exception: {answer})
    def _(job):
        raise ValueError("the real one")
    """ for name, answer in MALFORMED.items())  # fmt: skip
    handlers(stage, source)
    supervisor = stage.run("-c", "2")
    ids = {name: stage.enqueue(name) for name in MALFORMED}
    fine = stage.enqueue("fine")
    for name, job_id in ids.items():
        row = stage.archived(job_id, 40)
        assert (row["status"], row["reason"], row["attempts"]) == ("failure", "exception", 1), name
        assert row["error"]["message"] == "the real one", name
        assert calls(stage, job_id) == [("failed_attempt", 1), ("failed_job", 1)], name
        expected = ["handling-job", "handle-job-exception", "retry-strategy-error", "not-retrying"]
        assert of_job(supervisor, job_id) == expected, name
        error = supervisor.named("retry-strategy-error", job_id=str(job_id))[0]["error"]
        assert {"type", "message", "traceback"} <= error.keys(), name
    assert stage.archived(fine)["status"] == "success"
    assert supervisor.stop() == 0


def test_a_delay_of_none_as_example_b_gives_it_is_no_delay(stage: Stage) -> None:
    handlers(
        stage,
        """
    @handlers.job("fail", retry_strategy=lambda job, exception: {"retries": 2, "delays": [None], "more": "ignored"})
    def fail(job):
        raise ValueError
    """,
    )
    stage.run("-c", "1")
    assert stage.archived(stage.enqueue("fail"))["attempts"] == 3


def test_callbacks_that_raise_are_events_and_the_decision_stands(stage: Stage) -> None:
    handlers(
        stage,
        """
    def bad(job, exception):
        tell("bad", job, exception)
        raise LookupError("bad callback") from exception
    def worse(job, exception):
        tell("worse", job, exception)
        sys.exit("worse callback")
    def deadly(job, exception):
        tell("deadly", job, exception)
        os.kill(os.getpid(), signal.SIGKILL)
    @handlers.job("bad", failed_attempt=bad, failed_job=worse)
    def one(job):
        raise ValueError("the real one")
    @handlers.job("crashed", failed_attempt=bad, failed_job=worse)
    def two(job):
        os._exit(5)
    @handlers.job("deadly", failed_job=deadly)
    def three(job):
        raise ValueError("the real one")
    """,
    )
    supervisor = stage.run("-c", "1")
    ids = [stage.enqueue("bad", {"retries": 1}), stage.enqueue("crashed", {"retries": 0})]
    deadly = stage.enqueue("deadly", {"retries": 0})
    rows = [stage.archived(job_id) for job_id in ids]
    assert [(row["status"], row["reason"], row["attempts"]) for row in rows] == [
        ("failure", "exception", 2), ("failure", "crash", 1),
    ]  # fmt: skip
    for job_id in ids:
        supervisor.expect("failed-job-error", job_id=str(job_id))
        assert [call for call, _ in calls(stage, job_id)].count("worse") == 1
    assert len(supervisor.named("failed-attempt-error", job_id=str(ids[0]))) == 2
    assert supervisor.named("failed-attempt-error")[0]["error"]["message"] == "bad callback"
    row = stage.archived(deadly)
    assert (row["status"], row["reason"], row["attempts"], row["crashes"]) == ("failure", "exception", 1, 0)
    assert "signal 9" in supervisor.expect("callback-error", job_id=str(deadly))["error"]["message"]
    assert [call for call, _ in calls(stage, deadly)].count("deadly") == 1
    assert stage.archived(stage.enqueue("fine"))["status"] == "success"


# What a strategy or callback does to its child; "in-c" holds the GIL, so that nothing in the child can end it.
HARM = {
    "sleeps": "time.sleep(600)",
    "catches-all": """
        while True:
            try: time.sleep(600)
            except BaseException: pass""",
    "in-c": "sum(range(10**11))",
    "dies": "os.kill(os.getpid(), signal.SIGKILL)",
    "exits": "os._exit(0)",
}


@pytest.mark.slow
@pytest.mark.parametrize("harm", HARM)
def test_strategies_and_callbacks_that_hang_or_die_cost_no_other_call_and_failed_job_has_its_turn(
    stage: Stage, harm: str
) -> None:
    """They have callback_timeout; what happens to them is no attempt and no crash of the job."""
    handlers(
        stage,
        f"""
    def harm(call, job, exception):
        tell(call, job, exception)
        {HARM[harm].strip()}
    def bad_strategy(job, exception): harm("strategy", job, exception)
    def bad_attempt(job, exception): harm("failed_attempt", job, exception)
    def bad_job(job, exception): harm("failed_job", job, exception)
    @handlers.job("strategy", retry_strategy=bad_strategy)
    def one(job):
        raise ValueError("the real one")
    @handlers.job("strategy-of-a-crash", retry_strategy=bad_strategy)
    def two(job):
        os._exit(5)
    @handlers.job("attempt", failed_attempt=bad_attempt)
    def three(job):
        raise ValueError("the real one")
    @handlers.job("all", retry_strategy=bad_strategy, failed_attempt=bad_attempt, failed_job=bad_job)
    def four(job):
        raise ValueError("the real one")
    """,
    )
    supervisor = stage.run("-c", "2", "--callback-timeout", "2")
    ids = {name: stage.enqueue(name) for name in ("strategy", "strategy-of-a-crash", "attempt", "all")}
    for name, job_id in ids.items():
        row = stage.archived(job_id, 60)
        crash = name == "strategy-of-a-crash"
        found = (row["status"], row["reason"], row["attempts"], row["crashes"], row["exit_code"], row["term_signal"])
        assert found == ("failure", *(("crash", 1, 1, 5, None) if crash else ("exception", 1, 0, None, None))), name
        assert row["error"]["type"] == ("ganger_child.JobCrashed" if crash else "ValueError"), name
        assert calls(stage, job_id) == [("strategy", 1), ("failed_attempt", 1), ("failed_job", 1)], name
        last = told(stage, job_id)[-1]
        assert "the real one" in last["message"] or crash
        lost = {"strategy": 1, "strategy-of-a-crash": 1, "all": 1}.get(name, 0)
        assert len(supervisor.named("retry-strategy-error", job_id=str(job_id))) == lost, name
        lost = {"attempt": 1, "all": 2}.get(name, 0)
        assert len(supervisor.named("callback-error", job_id=str(job_id))) == lost, name
        ending = "job-crashed" if crash else "handle-job-exception"
        assert len(supervisor.named(ending, job_id=str(job_id))) == 1
        assert len(supervisor.named("not-retrying", job_id=str(job_id))) == 1
    assert stage.archived(stage.enqueue("fine"))["status"] == "success"
    assert not supervisor.named("job-crashed", job_id=str(ids["attempt"]))


def test_the_limits_of_a_job_are_not_those_of_its_strategy(stage: Stage) -> None:
    handlers(
        stage,
        """
    def slow(job, exception):
        tell("strategy", job, exception)
        time.sleep(2)
        return Retry(1, delays=[0])
    @handlers.job("fails", timeout=1, grace=0.2, retry_strategy=slow)
    def fails(job):
        if job.payload == "in time" or job.attempt == 2: raise ValueError("mine")
        time.sleep(600)
    """,
    )
    supervisor = stage.run("-c", "2")
    ids = [stage.enqueue("fails", "in time"), stage.enqueue("fails", "too late")]
    for job_id, first in zip(ids, ("exception", "timeout"), strict=True):
        row = stage.archived(job_id, 40)
        assert (row["reason"], row["attempts"], row["crashes"]) == ("exception", 2, 0)
        assert [entry["reason"] for entry in row["history"]] == [first]
        assert [call for call, _ in calls(stage, job_id)].count("strategy") == 2
    assert not supervisor.named("retry-strategy-error")


def test_a_payload_that_the_handlers_loads_cannot_read_fails_its_job_only(stage: Stage) -> None:
    handlers(
        stage,
        """
    def loads(text):
        raise UnicodeError("cannot read " + text)
    @handlers.job("unreadable", loads=loads)
    def unreadable(job):
        raise AssertionError("never called")
    """,
    )
    supervisor = stage.run("-c", "1")
    job_id, fine = stage.enqueue("unreadable", {"a": 1}), stage.enqueue("fine")
    row = stage.archived(job_id)
    assert (row["status"], row["reason"], row["attempts"]) == ("failure", "exception", 1)
    assert row["error"]["message"] == 'cannot read {"a": 1}'
    supervisor.expect("not-retrying", job_id=str(job_id))
    assert of_job(supervisor, job_id) == ["handling-job", "handle-job-exception", "not-retrying"]
    assert stage.archived(fine)["status"] == "success"


def test_an_unknown_job_type_is_a_failure_that_names_it(stage: Stage) -> None:
    handlers(stage, "")
    supervisor = stage.run("-c", "1")
    job_id, fine = stage.enqueue("] no such type", {"retries": 1}), stage.enqueue("fine")
    row = stage.archived(job_id)
    assert (row["status"], row["reason"], row["attempts"]) == ("failure", "unknown-job-type", 2)
    assert [(line["call"], line["exception"]) for line in told(stage, job_id)][-1] == ("failed_job", "UnknownJobType")
    assert "'] no such type'" in row["error"]["message"]
    assert supervisor.named("handle-job-exception")[0]["error"]["message"] == row["error"]["message"]
    assert stage.archived(fine)["status"] == "success"


def test_with_leave_each_supervisor_of_a_mixed_fleet_takes_the_types_it_knows(stage: Stage) -> None:
    for name in ("old", "new"):
        stage.handlers(
            f"""
            handlers = Handlers()
            @handlers.job("{name}-type")
            def run(job):
                return "{name}"
            """,
            name=f"{name}_code",
        )
    old = stage.run("-c", "1", "--unknown-job-type", "leave", target="old_code:handlers")
    ids = {name: [stage.enqueue(f"{name}-type") for _ in range(3)] for name in ("new", "old")}
    nobody = stage.enqueue("of-nobody")
    assert {stage.archived(job_id)["result"] for job_id in ids["old"]} == {"old"}
    assert [stage.job(job_id)["attempts"] for job_id in ids["new"]] == [0, 0, 0]  # type: ignore[index]
    stage.run("-c", "1", "--unknown-job-type", "leave", target="new_code:handlers")
    assert {stage.archived(job_id)["result"] for job_id in ids["new"]} == {"new"}
    row = stage.job(nobody)
    assert row is not None
    assert (row["attempts"], row["starts"]) == (0, 0)
    assert not [event for event in old.events if event.get("job_type") in ("new-type", "of-nobody")]


# ---------------------------------------------------------------------------------------------------------------------
# Whose crash it is


def test_a_crash_in_a_reused_child_goes_back_once_uncounted_and_counts_in_a_fresh_one(stage: Stage) -> None:
    """Correction 13: the job before may be to blame."""
    handlers(
        stage,
        """
    RAN = []
    @handlers.job("after")
    def after(job):
        (FOLDER / "ran").open("a").write(f"{os.getpid()} {job.attempt}\\n")
        if job.payload.get("always") or RAN: os.kill(os.getpid(), signal.SIGKILL)
        return "alone"
    @handlers.job("before")
    def before(job):
        RAN.append(job)
        return os.getpid()
    """,
    )
    supervisor = stage.run("-c", "1", "--recycle-after", "60")
    for always in (False, True):
        before = stage.enqueue("before")
        reused = stage.archived(before)["result"]
        job_id = stage.enqueue("after", {"always": always, "retries": 0})
        row = stage.archived(job_id)
        first, second = [line.split() for line in stage.lines("ran")[-2:]]
        assert int(first[0]) == reused != int(second[0])
        assert (first[1], second[1]) == ("1", "1"), "the first run was counted"
        assert [entry["reason"] for entry in row["history"]] == ["blame"]
        crashed = supervisor.named("job-crashed", job_id=str(job_id))
        if always:
            assert (row["status"], row["attempts"], row["crashes"]) == ("failure", 1, 1)
            assert calls(stage, job_id) == [("strategy", 1), ("failed_attempt", 1), ("failed_job", 1)]
            assert len(crashed) == 2
        else:
            assert (row["status"], row["attempts"], row["crashes"]) == ("success", 1, 0)
            assert len(crashed) == 1
            assert crashed[0]["goes"] == "to a fresh child"


def test_short_jobs_share_a_child_and_one_that_leaves_it_altered_does_not(stage: Stage) -> None:
    stage.handlers("""
        import threading
        handlers = Handlers()
        @handlers.job("alter")
        def alter(job):
            exec(job.payload or "")
            return os.getpid()
    """)
    stage.run("-c", "1", "--recycle-after", "60")
    usual = [stage.archived(stage.enqueue("alter"))["result"] for _ in range(3)]
    assert len(set(usual)) == 1
    for code in (
        "os.chdir('/')", "os.environ['NEW'] = '1'", "os.umask(0)", "sys.path.append('x')",
        "threading.Thread(target=time.sleep, args=[60], daemon=True).start()", "signal.alarm(60)",
        "os.open('/dev/null', os.O_RDONLY)", "signal.signal(signal.SIGUSR1, signal.SIG_IGN)",
        "subprocess.Popen(['sleep', '60'])",
    ):  # fmt: skip
        altered = stage.archived(stage.enqueue("alter", code))["result"]
        assert stage.archived(stage.enqueue("alter"))["result"] != altered, code


@pytest.mark.parametrize("recycle", ["0", "1"])
def test_heavy_jobs_have_a_child_of_their_own(stage: Stage, recycle: str) -> None:
    stage.handlers("""
        handlers = Handlers()
        @handlers.job("run")
        def run(job):
            time.sleep(job.payload)
            return os.getpid()
    """)
    stage.run("-c", "1", "--recycle-after", recycle)
    seconds = 0.0 if recycle == "0" else 1.1
    pids = [stage.archived(stage.enqueue("run", seconds))["result"] for _ in range(3)]
    assert len(set(pids)) == 3


def test_a_failed_attempt_never_waits_in_the_way_of_others(stage: Stage) -> None:
    """A job that waits for its retry holds no slot."""
    handlers(
        stage,
        """
    @handlers.job("later", retry=Retry(1, delays=[3600]))
    def later(job):
        raise ValueError
    """,
    )
    supervisor = stage.run("-c", "1")
    later = stage.enqueue("later")
    supervisor.expect("retrying", job_id=str(later))
    wait_until(lambda: (stage.job(later) or {}).get("state") == 0, 10, lambda: stage.job(later))
    assert stage.archived(stage.enqueue("fine"))["status"] == "success"
    row = stage.job(later)
    assert row is not None
    assert (row["attempts"], row["crashes"], len(row["history"])) == (1, 0, 1)
