"""Three jobs in one trace: one that works, one that fails twice, one that is killed. Needs opentelemetry-sdk.

python -m examples.tracing.demo
"""

from __future__ import annotations

import sys

from opentelemetry import trace

from examples import common
from examples.tracing.jobs import provider
from ganger import Config, Supervisor, enqueue
from ganger.database import install


def main() -> int:
    """Run it and return the exit code."""
    application = provider("application")
    tracer = application.get_tracer(__name__)
    with common.connect() as conn:
        install(conn)
        with tracer.start_as_current_span("order") as span, conn.transaction():
            for job_type in ("good", "bad", "endless"):
                enqueue(conn, job_type)
    print(f"The jobs were enqueued in trace {trace.format_trace_id(span.get_span_context().trace_id)}.", flush=True)
    application.shutdown()
    return Supervisor(Config(target="examples.tracing.jobs:handlers", concurrency=2)).run_until_empty()


if __name__ == "__main__":
    sys.exit(main())
