"""The table of workloads: what is measured, how many jobs, for whom, and what is to be reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.bench import accidents, footprint, latency, throughput
from tests.bench.peers.base import Peer
from tests.bench.scores import Goal, Metric
from tests.bench.throughput import Values


@dataclass(frozen=True)
class Workload:
    """``quick`` is the number of jobs with --quick, where it is a part of that; ``peers`` who is measured beside ganger
    (None: everybody); ``peer_rounds`` how many rounds a peer takes part in (what it does then takes minutes).
    """

    name: str
    title: str
    measure: Callable[[Peer, int], Values]
    jobs: int
    metrics: tuple[Metric, ...]
    goals: tuple[Goal, ...] = ()
    quick: int | None = None
    peers: tuple[str, ...] | None = None
    peer_rounds: int | None = None

    def metric(self, key: str) -> Metric:
        return next(metric for metric in self.metrics if metric.key == key)


RATE: Final = Metric("jobs_s", "jobs/s", "more", drawn=True)
CPU: Final = Metric("cpu_ms", "CPU ms/job", "less")  # of workers, store and client; hardly moves with other load
SHARE: Final = Metric("share", "% of 2 CPUs in jobs", "more", drawn=True)

WORKLOADS: Final = (
    Workload(
        "w1", "no-op jobs, the queue full at the start", throughput.no_ops, 3000,
        (RATE, CPU), (
            Goal("jobs_s", 2.0, "pgqueuer", aim=3.0),
            Goal("jobs_s", 10.0, "celery"),
            Goal("jobs_s", None, "floor", aim=0.7),
        ), quick=2000,
    ),
    Workload(
        "w1f", "the same, a fresh child per job", throughput.no_ops_fresh, 1000,
        (RATE, CPU), (Goal("jobs_s", 5.0, "rq"),), peers=("rq",),
    ),
    Workload(
        "w2", "jobs of 5 ms of CPU", throughput.short_jobs, 2000,
        (SHARE, RATE, CPU), (Goal("share", 88.0, aim=93.0),), quick=800,
    ),
    Workload(
        "w2h", "40 jobs of 2 s of CPU, a fresh child each", throughput.long_jobs, 40,
        (SHARE,), (Goal("share", 98.5),), peers=(),
    ),
    Workload(
        "w3", "enqueue to start of the handler, idle system", latency.start_latency, 200,
        (
            Metric("p50_ms", "p50 ms", "less", drawn=True), Metric("p99_ms", "p99 ms", "less", drawn=True),
            Metric("worst_ms", "worst ms", "less"),
        ),
        (Goal("p50_ms", 3.0), Goal("p99_ms", 10.0)), quick=60,
    ),
    Workload(
        "w4", "the first jobs of a backlog of a million", throughput.deep_backlog, 2000,
        (
            RATE, Metric("kept", "of the shallow rate", "more", drawn=True),
            Metric("kept_held", "with a held transaction", "more"),
        ),
        (Goal("kept", 0.95), Goal("kept_held", 0.7)),
    ),
    Workload(
        "w5", "enqueueing by one client", latency.enqueueing, 1000,
        (
            Metric("single_s", "single/s", "more", drawn=True), Metric("together_s", "100 per transaction/s", "more"),
            Metric("bulk_s", "bulk/s", "more", drawn=True),
        ),
        (Goal("single_s", 1.0, "any postgres"), Goal("bulk_s", 40_000.0)),
    ),
    Workload(
        "w6", "lateness of a kill at a limit of 1 s", accidents.limits, 1,
        (
            Metric("late_s", "median s late", "less", drawn=True), Metric("worst_s", "worst s late", "less"),
            Metric("left", "processes left", "less"), *(
                Metric(f"late_{kind}_s", kind, "less") for kind in accidents.LIMITED
            ),
        ),
        (Goal("late_s", 0.1), Goal("worst_s", 0.3, worst=True), Goal("left", 0.0, worst=True)), quick=1,
    ),
    Workload(
        "w7", "death to the next attempt", accidents.recovery, 1,
        (
            Metric("child_s", "child killed, s", "less", drawn=True),
            Metric("parent_s", "parent killed, s", "less", drawn=True),
            Metric("host_s", "host lost, s over the lease", "less"), Metric("orphans", "processes left", "less"),
        ),
        (Goal("child_s", 0.1), Goal("parent_s", 1.0), Goal("host_s", 2.0)), peer_rounds=1,
    ),
    Workload(
        "w8", "at rest: memory, start, idle CPU", footprint.at_rest, 1,
        (
            Metric("uss_mb", "USS MB", "less", drawn=True),
            Metric("first_s", "start to first job, s", "less", drawn=True),
            Metric("idle_cpu", "idle % of a core", "less"),
        ),
        (Goal("uss_mb", 40.0), Goal("first_s", 0.6), Goal("idle_cpu", 0.3)),
    ),
    Workload(
        "w9", "handlers that import numpy and scipy", footprint.heavy_imports, 1,
        (
            Metric("replaced_ms", "child replaced, ms", "less"), Metric("next_ms", "kill to next start, ms", "less"),
            Metric("child_mb", "MB per further child", "less"), Metric("import_ms", "the import alone, ms", "less"),
        ),
        (Goal("replaced_ms", 30.0), Goal("child_mb", 5.0)), peers=(),
    ),
    Workload(
        "w10", "many slots: CPU of the supervisor", footprint.many_slots, 1,
        (
            Metric("cpu_64", "64 slots, 1 s jobs, % of a core", "less"),
            Metric("cpu_500", "500 slots asleep, % of a core", "less"),
        ),
        (Goal("cpu_64", 3.0), Goal("cpu_500", 5.0)), peers=(),
    ),
)  # fmt: skip
