"""W3 and W5: how soon a job starts on an idle system, and how many jobs one client enqueues in a second."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.bench.peers.base import Peer
from tests.bench.rig import Meter
from tests.bench.throughput import Values

PAUSE = 0.05  # seconds between two jobs of W3


def start_latency(peer: Peer, jobs: int) -> Values:
    """From just before the enqueueing call to the first line of the handler, in milliseconds."""
    with peer.warm() as fleet:
        meter = Meter(fleet, peer.stores)
        due = time.monotonic()
        for number in range(jobs):
            due += PAUSE
            time.sleep(max(0.0, due - time.monotonic()))
            peer.enqueue("noop", number)
        peer.rig.records.await_count(2 * jobs, 30)
        _, foreign = meter.read()
        taken = sorted((record.at - record.sent) * 1000 for record in peer.rig.records.starts())
    return {"p50_ms": quantile(taken, 0.5), "p99_ms": quantile(taken, 0.99), "worst_ms": taken[-1], "foreign": foreign}


def quantile(ordered: list[float], share: float) -> float:
    """The value that this share of them does not exceed (the nearest rank)."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def enqueueing(peer: Peer, jobs: int) -> Values:
    """One call and one commit per job; a hundred calls per commit; a thousand jobs per call."""
    peer.reset()
    peer.fill("noop", 20)  # connections, caches
    values: Values = {"single_s": _rate(lambda numbers: peer.enqueue("noop", numbers[0]), jobs, 1)}
    if peer.has_transactions:
        values["together_s"] = _rate(lambda numbers: peer.enqueue_together("noop", numbers), 5 * jobs, 100)
    if peer.has_bulk:
        values["bulk_s"] = _rate(lambda numbers: peer.enqueue_many("noop", numbers), 20 * jobs, 1000)
    peer.reset()
    return values


def _rate(call: Callable[[range], object], jobs: int, at_once: int) -> float:
    begin = time.monotonic()
    for first in range(0, jobs, at_once):
        call(range(first, first + at_once))
    return jobs / (time.monotonic() - begin)
