"""OpenTelemetry: the trace in which a job was enqueued goes on in its handler, and each attempt is a span of it.

Only an application that has loaded OpenTelemetry can be in a trace, and only a child whose handlers have loaded it has
somebody who wants spans. So nothing is imported here where nobody has done that before, and nothing is looked for but
a name in ``sys.modules``. Who samples, propagates and exports is the user's to say, and their code: what it raises
costs a span, never a job.

With a job travels one text: a JSON object of the fields that the user's propagator makes, by default ``traceparent``,
``tracestate`` and ``baggage``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import copy_context
from importlib import import_module
from json import dumps, loads
from threading import Thread
from time import time_ns
from typing import TYPE_CHECKING, Any, Final

from ganger_child.errors import JobCancelled, JobInterrupted
from ganger_child.outcome import qualified
from ganger_child.words import message

if TYPE_CHECKING:
    from ganger_child.job import Job

LONGEST: Final = 8192  # characters of the text that travels with a job
_FLUSH_BOUND: Final = 0.5  # seconds that a child waits for an exporter between two jobs
_API: Final = "opentelemetry.trace"
_W3C: Final = ("traceparent", "tracestate")
_NO_FAILURE: Final = (JobInterrupted, JobCancelled)  # themselves: a limit's are subclasses and failures


def current() -> str | None:
    """The trace that is current here, as it travels with a job; empty for none, None where nobody could be in one."""
    if _API not in sys.modules:
        return None
    try:
        fields: dict[str, str] = {}
        _module("propagate").inject(fields)
        text = _text(fields)
        if len(text) > LONGEST:  # baggage without measure is left behind
            text = _text({name: value for name, value in fields.items() if name in _W3C})
        return text if len(text) <= LONGEST else ""
    except Exception:
        return ""


def follow(job: Job, trace: str | None) -> Attempt:
    """What is to be done about the trace of a run: nothing, where nobody in this process could want to know."""
    if _API not in sys.modules:
        return UNTRACED
    try:
        return _Traced(job, _fields(trace))
    except Exception:
        return UNTRACED


class Exports:
    """The spans of a child that its exporter may still have: they go out before the child waits for another job."""

    def __init__(self) -> None:
        self.due = False
        self._thread: Thread | None = None

    def flush(self) -> bool:
        """Have them exported, and wait for that for half a second; whether it is done. An exporter that still hangs
        from the last time is not asked again."""
        self.due = False
        if self._thread is None or not self._thread.is_alive():
            with suppress(Exception):
                provider = _module("trace").get_tracer_provider()
                self._thread = Thread(target=_flush, args=(provider,), name="ganger-flush", daemon=True)
                self._thread.start()
        if self._thread is None:
            return True
        self._thread.join(_FLUSH_BOUND)
        return not self._thread.is_alive()


def _flush(provider: Any) -> None:
    with suppress(BaseException):  # a provider that is none of the SDK's may have no such method
        provider.force_flush()


class Attempt:
    """An attempt that is not traced."""

    def begin(self, ago: float = 0.0) -> None:
        """Begin its span, ``ago`` seconds before now."""

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function inside the trace: below the attempt's span, ended or not."""
        return function(*arguments)

    def end(self, exception: BaseException | None) -> None:
        """End its span. An interrupt at a shutdown or by an operator is no failure."""


UNTRACED: Final = Attempt()


class _Traced(Attempt):
    """The names of span and attributes are those of OpenTelemetry's conventions for messaging systems."""

    def __init__(self, job: Job, fields: Mapping[str, str]) -> None:
        self._api = _module("trace")
        self._job = job
        self._span: Any = None
        # A context of its own: an interrupt can come at any place, and nothing of one job is to be seen by the next.
        self._context = copy_context()
        self._context.run(_enter, fields)

    def begin(self, ago: float = 0.0) -> None:
        with suppress(Exception):
            self._span = self._context.run(self._begin, time_ns() - int(ago * 1e9))

    def _begin(self, since: int) -> Any:
        job, kind = self._job, self._api.SpanKind.CONSUMER
        attributes = {
            "messaging.system": "ganger",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": job.queue,
            "messaging.message.id": str(job.id),
            "ganger.job.type": job.type,
            "ganger.job.attempt": job.attempt,
            "ganger.run.id": str(job.run_id),
        }
        tracer = self._api.get_tracer("ganger")
        span = tracer.start_span(f"process {job.queue}", kind=kind, attributes=attributes, start_time=since)
        _module("context").attach(self._api.set_span_in_context(span))
        return span

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._context.run(function, *arguments)

    def end(self, exception: BaseException | None) -> None:
        span, self._span = self._span, None
        if span is None:
            return
        with suppress(BaseException):  # of the user's exporter, or of the exception's own methods
            if exception is not None:
                self._tell(span, exception)
        with suppress(BaseException):
            span.end()

    def _tell(self, span: Any, exception: BaseException) -> None:
        span.record_exception(exception)
        if type(exception) not in _NO_FAILURE:
            span.set_attribute("error.type", qualified(exception))
            span.set_status(self._api.Status(self._api.StatusCode.ERROR, message(exception)))


def _enter(fields: Mapping[str, str]) -> None:
    """Make the trace of an enqueuer current, in place of any other."""
    context = _module("context")
    context.attach(_module("propagate").extract(fields, context=context.Context()))


def _module(name: str) -> Any:
    return import_module(f"opentelemetry.{name}")


def _text(fields: Mapping[str, str]) -> str:
    return dumps(fields) if fields else ""


def _fields(trace: str | None) -> dict[str, str]:
    """Read what travelled with a job; whoever wrote the row may have written anything."""
    with suppress(ValueError, RecursionError):
        fields = loads(trace or "{}")
        if isinstance(fields, dict) and all(isinstance(value, str) for value in fields.values()):
            return fields
    return {}
