"""The job types of the demo: tiles of a picture, and three that need a supervisor which can kill and can wait."""

from __future__ import annotations

import base64
import time
from typing import Any

from examples.render.scene import render
from ganger_child import Handlers, Job, Retry

handlers = Handlers()


@handlers.job("render-tile", timeout=60, retry=Retry(2, delays=[0.5]))
def render_tile(job: Job) -> dict[str, Any]:
    """Render one tile; its pixels are the job's result."""
    tile = job.payload
    pixels = render(tile["width"], tile["height"], tile["left"], tile["top"], tile["columns"], tile["rows"])
    return {**tile, "pixels": base64.b64encode(pixels).decode()}


@handlers.job("stuck-in-c", timeout=2, grace=1)
def stuck_in_c(job: Job) -> None:
    """Never returns to the interpreter and holds its lock: no signal handler of Python's, no exception reaches it."""
    sum(range(10**11))


@handlers.job("killed-from-outside", retry=Retry(1))
def killed_from_outside(job: Job) -> None:
    """Computes long enough to be killed in the middle; the second attempt is left alone."""
    compute(3600.0 if job.attempt == 1 else 0.5)


@handlers.job("last-computation")
def last_computation(job: Job) -> None:
    """Computes while the supervisor shuts down: it is awaited."""
    compute(job.payload["seconds"])


@handlers.job("long-wait")
def long_wait(job: Job) -> None:
    """Waits while the supervisor shuts down: it is interrupted, and back in its queue."""
    time.sleep(3600)


def compute(seconds: float) -> None:
    """Keep a core busy for so many seconds of its time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        render(64, 64, 0, 40, 4, 4)
