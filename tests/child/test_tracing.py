"""A job's trace in the child: what travels is followed, each attempt is a span, and nothing of it ever costs a job."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from datetime import UTC, datetime
from typing import Any

import pytest
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ganger_child import Job, JobCancelled, JobInterrupted, JobTimedOut, tracing
from tests.child.driver import JOB_ID, ROOT, RUN_ID, Driver, wait_until

TRACE, ABOVE = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRAVELS = json.dumps({"traceparent": f"00-{TRACE}-{ABOVE}-01", "tracestate": "vendor=1"})
NOW = datetime(2026, 11, 30, tzinfo=UTC)
JOB = Job(JOB_ID, RUN_ID, "renders", "frame", None, 2, NOW, NOW)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """The spans that have ended; the user has configured the SDK."""
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter


def test_an_attempt_is_a_span_below_the_enqueuers_and_what_it_calls_is_below_it(spans: InMemorySpanExporter) -> None:
    attempt = tracing.follow(JOB, TRAVELS)
    attempt.begin()
    inside = attempt.call(trace.get_current_span)
    assert trace.get_current_span() is not inside
    attempt.end(None)
    assert attempt.call(trace.get_current_span) is inside, "callbacks are in the trace too"
    (span,) = spans.get_finished_spans()
    assert span.context == inside.get_span_context()
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, ABOVE)  # type: ignore[union-attr]
    assert span.context.trace_state == {"vendor": "1"}
    assert (span.name, span.kind, span.status.status_code) == (
        "process renders", trace.SpanKind.CONSUMER, trace.StatusCode.UNSET,
    )  # fmt: skip
    assert span.attributes == {
        "messaging.system": "ganger",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "renders",
        "messaging.message.id": str(JOB_ID),
        "ganger.job.type": "frame",
        "ganger.job.attempt": 2,
        "ganger.run.id": str(RUN_ID),
    }


@pytest.mark.parametrize(
    ("exception", "failure"),
    [
        (ValueError("no"), "ValueError"),
        (JobTimedOut("late"), "ganger_child.JobTimedOut"),
        (JobInterrupted("shutdown"), None),
        (JobCancelled("by hand"), None),
    ],
)
def test_what_a_limit_or_the_handler_ends_is_a_failure_and_an_interrupt_is_not(
    spans: InMemorySpanExporter, exception: BaseException, failure: str | None
) -> None:
    attempt = tracing.follow(JOB, TRAVELS)
    attempt.begin(ago=90.0)
    attempt.end(exception)
    (span,) = spans.get_finished_spans()
    assert [event.name for event in span.events] == ["exception"]
    assert (span.attributes or {}).get("error.type") == failure
    assert span.status.is_ok is (failure is None)
    assert span.start_time is not None
    assert span.end_time is not None
    assert 89 < (span.end_time - span.start_time) / 1e9 < 100


@pytest.mark.parametrize(
    "text", [None, "", "nonsense", "[1]", '{"traceparent": 7}', '{"traceparent": "00-zz-zz-01"}', "[" * 8000, "{}"]
)
def test_whatever_stands_in_a_row_an_attempt_without_a_trace_begins_one(spans: InMemorySpanExporter, text: Any) -> None:
    attempt = tracing.follow(JOB, text)
    attempt.begin()
    attempt.end(None)
    assert [span.parent for span in spans.get_finished_spans()] == [None]


def test_code_of_the_users_tracing_that_raises_costs_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sampler, an exporter and a propagator that raise, one after another."""

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("broken")

    provider = TracerProvider()
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    for owner, name in ((provider.sampler, "should_sample"), (provider._active_span_processor, "on_end")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail)
            attempt = tracing.follow(JOB, TRAVELS)
            attempt.begin()
            assert attempt.call(str.upper, "done") == "DONE"
            attempt.end(ValueError("x"))
    monkeypatch.setattr(propagate, "extract", fail)
    monkeypatch.setattr(propagate, "inject", fail)
    attempt = tracing.follow(JOB, TRAVELS)
    attempt.begin()
    assert attempt.call(str.upper, "done") == "DONE"
    assert tracing.current() == ""


def test_an_exporter_that_hangs_holds_a_child_up_once_for_half_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    flushed, go_on = [], threading.Event()

    class Provider:
        def force_flush(self) -> None:
            flushed.append(1)
            assert go_on.wait(30)

    monkeypatch.setattr(trace, "get_tracer_provider", Provider)
    exports = tracing.Exports()
    exports.due = True
    assert not exports.flush()
    assert not exports.due
    assert not exports.flush()
    assert len(flushed) == 1
    go_on.set()
    wait_until(exports.flush, "it is done")
    monkeypatch.setattr(trace, "get_tracer_provider", object)
    assert exports.flush(), "a provider that is none of the SDK's has nothing to flush"


def test_the_current_trace_travels_and_baggage_without_measure_stays_behind() -> None:
    assert tracing.current() == ""
    above = propagate.extract(json.loads(TRAVELS), context=baggage.set_baggage("tenant", "a b"))
    token = context.attach(above)
    try:
        assert json.loads(tracing.current() or "") == {**json.loads(TRAVELS), "baggage": "tenant=a+b"}
        for number in range(100):
            context.attach(baggage.set_baggage(f"name-{number}", "x" * 100))
        assert json.loads(tracing.current() or "") == json.loads(TRAVELS)
    finally:
        context.detach(token)


def test_where_nobody_has_loaded_opentelemetry_nothing_does() -> None:
    """Not the application that enqueues, and not the child."""
    code = (
        "import sys, ganger, ganger_child.child; from ganger_child import tracing;"
        "assert tracing.current() is None; assert tracing.follow(None, '{}') is tracing.UNTRACED;"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    search = os.pathsep.join(str(ROOT / name) for name in ("supervisor", "worker_child"))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": search},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "[]\n", done.stderr


def spans_of(driver: Driver) -> list[dict[str, Any]]:
    return [json.loads(text) for text in re.findall(r"(?m)^span (.*)$", driver.output())]


def test_jobs_of_one_child_are_each_in_a_trace_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handlers, plain and async, strategies, and a handler that a limit interrupts; then what a post-mortem tells."""
    monkeypatch.setenv("CONFIGURED", "yes")
    with Driver("tests.child.traced:handlers") as driver:
        for job_type in ("where", "awhere"):
            driver.send(job_type, trace=TRAVELS)
            seen = json.loads(driver.finish().body).split()
            driver.printed(seen[1])
            assert (seen[0], spans_of(driver)[-1]["context"]["span_id"]) == (TRACE, f"0x{seen[1]}")
        other = json.loads(driver.run("where").body).split()
        assert other[0] != TRACE

        driver.send("where", "fail", trace=TRAVELS)
        driver.finish()
        failed = spans_of(driver)[-1]
        assert failed["status"] == {"status_code": "ERROR", "description": "it failed"}
        assert f"asked in {TRACE} {failed['context']['span_id'][2:]}" in driver.output()

        driver.send("sleep", trace=TRAVELS, timeout=0.1)
        driver.next("started")
        driver.printed("asleep")
        driver.order("timeout")
        assert driver.next("raised")["reason"] == "exception"
        assert spans_of(driver)[-1]["attributes"]["error.type"] == "ganger_child.JobTimedOut"
        assert driver.callbacks() == {}

        before = len(spans_of(driver))
        driver.postmortem({"reason": "crash", "term_signal": 11, "wall_s": 30.0}, "where", trace=TRAVELS)
        (killed,) = spans_of(driver)[before:]
        assert killed["attributes"]["error.type"] == "ganger_child.JobCrashed"
        assert (killed["context"]["trace_id"], killed["parent_id"]) == (f"0x{TRACE}", f"0x{ABOVE}")
        assert f"asked in {TRACE} {killed['context']['span_id'][2:]}" in driver.output()
        began, ended = (datetime.fromisoformat(killed[name]) for name in ("start_time", "end_time"))
        assert 29 < (ended - began).total_seconds() < 35
        driver.postmortem({"reason": "exception", "error": {"message": "m"}}, "where", trace=TRAVELS)
        assert len(spans_of(driver)) == before + 1, "its own child has told that one"


def test_without_an_sdk_a_handler_still_sees_where_its_job_comes_from() -> None:
    with Driver("tests.child.traced:handlers") as driver:
        driver.send("where", trace=TRAVELS)
        assert json.loads(driver.finish().body) == f"{TRACE} {ABOVE}"
