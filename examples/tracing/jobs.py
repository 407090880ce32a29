"""Handlers whose attempts are spans of the trace in which their jobs were enqueued. Needs opentelemetry-sdk.

ganger finds the trace by itself; where spans go is said here, as in any application. This example prints them; put the
exporter of your collector (OTLPSpanExporter, say) in its place.
"""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

from ganger_child import Handlers, Job, Retry

handlers = Handlers()
tracer = trace.get_tracer(__name__)


@handlers.child_start
def send_spans() -> None:
    """In each child, and not when the module is imported: wardens would have a thread that exports, too.

    A batch is exported each few seconds, when the child has nothing else to do, and when it ends by itself. In a flow
    of short jobs a killed child takes what was not exported yet with it; with SimpleSpanProcessor each span is exported
    when it ends, as a part of its job.
    """
    trace.set_tracer_provider(provider("workers"))


def provider(service: str) -> TracerProvider:
    made = TracerProvider(resource=Resource.create({"service.name": service}))
    made.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter(formatter=line)))
    return made


def line(span: ReadableSpan) -> str:
    """A span on one line: its trace, its own id, that of the span above it, name, status, and what it says of a job."""
    above = trace.format_span_id(span.parent.span_id) if span.parent else "-" * 16
    attributes = span.attributes or {}
    job = [f"{name}={attributes[name]!s}" for name in ("ganger.job.type", "ganger.job.attempt") if name in attributes]
    ids = trace.format_trace_id(span.context.trace_id), trace.format_span_id(span.context.span_id), above
    return " ".join(["span", *ids, repr(span.name), span.status.status_code.name, *job]) + "\n"


@handlers.job("good")
def good(job: Job) -> None:
    """Spans that a handler makes are below that of its attempt."""
    with tracer.start_as_current_span("work"):
        pass


@handlers.job("bad", retry=Retry(1))
def bad(job: Job) -> None:
    """Each attempt is a span of the same trace."""
    raise ValueError("it never works")


@handlers.job("endless", timeout=0.5, grace=0)
def endless(job: Job) -> None:
    """This child is killed, with the span that it had begun: the child that is asked about the job tells it."""
    while True:
        pass
