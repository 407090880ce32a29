"""Handlers of a child whose user has configured OpenTelemetry, or has loaded it and configured nothing."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from ganger_child import Handlers, Job, Retry

handlers = Handlers()


@handlers.child_start
def configure() -> None:
    if os.environ.get("CONFIGURED"):
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=line)))
        trace.set_tracer_provider(provider)


def line(span: ReadableSpan) -> str:
    told: dict[str, Any] = json.loads(span.to_json(indent=None))
    return "span " + json.dumps(told) + "\n"


def here() -> str:
    context = trace.get_current_span().get_span_context()
    return f"{context.trace_id:032x} {context.span_id:016x}"


def ask(job: Job, exception: BaseException) -> Retry | None:
    print("asked in", here())
    return None


@handlers.job("where", retry_strategy=ask)
def where(job: Job) -> str:
    if job.payload == "fail":
        raise ValueError("it failed")
    return here()


@handlers.job("awhere")
async def awhere(job: Job) -> str:
    await asyncio.sleep(0)
    return await asyncio.create_task(there())


async def there() -> str:
    return here()


@handlers.job("sleep")
def sleep(job: Job) -> None:
    import time

    print("asleep", flush=True)
    time.sleep(60)
