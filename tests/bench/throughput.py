"""W1, W1f, W2, W2h and W4: how many jobs a second, and which share of two CPUs goes into jobs.

Measured from the start of the first job to the moment the store holds no unfinished job. While jobs run, nobody asks
the store: only the size of the records' file is looked at.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import psycopg

from tests.bench.peers.base import Peer
from tests.bench.peers.ganger import Runner as Ganger
from tests.bench.rig import Fleet, Meter, await_

CPUS = 2
LIMIT = 180.0  # seconds for one measurement
Values = dict[str, float | None]


def no_ops(peer: Peer, jobs: int, *, before: Callable[[], object] | None = None) -> Values:
    """``before`` is called when the queue is empty."""
    return _drain(peer, "noop", jobs, peer.running(), before)


def no_ops_fresh(peer: Peer, jobs: int) -> Values:
    """Each job in a child of its own; rq does so by default."""
    if isinstance(peer, Ganger):
        return _drain(peer, "noop", jobs, peer.supervisors(peer.supervisor("--recycle-after", "0")))
    return _drain(peer, "noop", jobs, peer.running())


def short_jobs(peer: Peer, jobs: int) -> Values:
    return _with_share(_drain(peer, "short", jobs, peer.running()), 0.005)


def long_jobs(peer: Peer, jobs: int) -> Values:
    assert isinstance(peer, Ganger)
    return _with_share(_drain(peer, "long", jobs, peer.supervisors(peer.supervisor("--recycle-after", "0"))), 2.0)


def _with_share(values: Values, work: float) -> Values:
    rate = values["jobs_s"]
    assert rate is not None
    return {"share": 100 * rate * work / CPUS, **values}


def _drain(
    peer: Peer,
    kind: str,
    count: int,
    workers: AbstractContextManager[Fleet],
    before: Callable[[], object] | None = None,
) -> Values:
    """Run ``count`` jobs that wait already when the worker starts."""
    records = peer.rig.records
    peer.reset()
    if before is not None:
        before()
    records.clear()
    peer.fill(kind, count)
    peer.settle()
    with workers as fleet:
        records.await_count(1, 60)
        meter = Meter(fleet, peer.stores)
        records.await_count(2 * count, LIMIT)
        await_(lambda: peer.pending() == 0, LIMIT, "the last outcome stored", 0.002)
        end = time.monotonic()
        cpu, foreign = meter.read()
        starts = records.starts()
    return {
        "jobs_s": count / (end - starts[0].at),
        "cpu_ms": cpu * 1000 / count,
        "runs": len(starts) / count,
        "foreign": foreign,
    }


# ---------------------------------------------------------------------------------------------------------------------
# W4


def start_rate(peer: Peer, count: int) -> float:
    """Starts per second over the first ``count`` starts of a fresh worker."""
    peer.rig.records.clear()
    with peer.running():
        peer.rig.records.await_count(2 * count + 10, LIMIT)
        starts = peer.rig.records.starts()
    return (count - 1) / (starts[count - 1].at - starts[0].at)


def shallow(peer: Peer, count: int) -> float:
    peer.reset()
    peer.fill("noop", count + 1000)
    peer.settle()
    return start_rate(peer, count)


def deep_backlog(peer: Peer, count: int) -> Values:
    """The first jobs of a deep backlog against those of a queue that holds little more, and behind a held horizon."""
    before = shallow(peer, count)
    peer.reset()
    if isinstance(peer, Ganger):
        peer.backlog(DEEP)
        peer.schedule(DEEP)
    else:
        peer.backlog(DEEP_FOR_PEERS)
    peer.settle()
    rate = start_rate(peer, count)
    values: Values = {"jobs_s": rate, "kept": rate / before}
    if isinstance(peer, Ganger):
        values["kept_held"] = held_rate(peer, count, HELD) / before
    peer.reset()
    return values


DEEP = 1_000_000  # rows that are ready, and as many that are scheduled
DEEP_FOR_PEERS = 200_000  # most of them take minutes to be given more
HELD = 30_000  # jobs that run, and leave dead rows, under the held transaction before it is measured


def held_rate(peer: Ganger, count: int, first: int) -> float:
    """The rate of ``count`` starts after ``first`` jobs, while a transaction is held open all the time."""
    with psycopg.connect(peer.url) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM proletarian.supervisor")
        peer.rig.records.clear()
        with peer.running():
            peer.rig.records.await_count(2 * (first + count) + 10, 3 * LIMIT)
            starts = peer.rig.records.starts()
        return (count - 1) / (starts[first + count - 1].at - starts[first].at)
