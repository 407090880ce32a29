"""The queues that are measured, one file each: how its worker is started, and how a client enqueues and looks."""

from __future__ import annotations

import importlib

from tests.bench.peers.base import Peer

PEERS = ("procrastinate", "pgqueuer", "chancy", "celery", "rq", "dramatiq", "huey")
QUICK = ("pgqueuer", "celery")


def load(name: str) -> type[Peer]:
    """The peer's class. Raises ImportError where the queue is not installed."""
    found: type[Peer] = importlib.import_module(f"tests.bench.peers.{name}").Runner
    return found
