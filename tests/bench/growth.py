"""Growth: one database with 1, 2, 4 and 8 supervisors, and an archive that grows to five million rows.

The supervisors wait, idle and woken, before the jobs are enqueued in one transaction: so what is measured is how they
share them, not how long eight of them take to start on two CPUs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from tests.bench.peers.base import Peer
from tests.bench.peers.ganger import Runner as Ganger
from tests.bench.rig import await_
from tests.bench.scores import Goal, Metric
from tests.bench.throughput import CPUS, LIMIT, Values, no_ops
from tests.bench.workloads import Workload

SUPERVISORS: Final = (1, 2, 4, 8)
ARCHIVES: Final = (0, 1_000_000, 5_000_000)
STEADY: Final = 0.9  # of what fewer could do: less is a fall, more is the machine's own unrest

FILL_ARCHIVE: Final = """
INSERT INTO proletarian.archived_job (job_id, queue, job_type, payload, attempts, enqueued_at, process_at, status,
                                      finished_at)
SELECT gen_random_uuid(), 'default', 'job', '["noop", 0, 0.0]', 1, now(), now(), 'success', now()
FROM generate_series(1, %s)
"""


def _supervisors(kind: str, work: float, peer: Peer, jobs: int) -> Values:
    assert isinstance(peer, Ganger)
    values: Values = {}
    before: float | None = None
    for count in SUPERVISORS:
        rate, spread = _shared(peer, kind, jobs, count)
        values[f"jobs_s_{count}"] = rate
        values[f"spread_{count}"] = spread
        if work:
            values[f"share_{count}"] = 100 * rate * work / CPUS
        if before is not None:
            values["least"] = min(values.get("least") or 9.0, rate / before)
        before = max(rate, before or 0.0)
    return values


def _shared(peer: Ganger, kind: str, jobs: int, count: int) -> tuple[float, float]:
    """Jobs per second with so many supervisors, and the smallest share of one of them, as a part of its fair share."""
    peer.reset()
    peer.rig.records.clear()
    with peer.supervisors(*[peer.supervisor()] * count):
        idle = "SELECT count(*) FROM proletarian.idle WHERE idle_until > now()"
        await_(lambda: peer.number(idle) >= count, 60, f"{count} idle supervisors", 0.05)
        time.sleep(1)
        peer.enqueue_many(kind, range(jobs))
        peer.rig.records.await_count(2 * jobs, LIMIT)
        await_(lambda: peer.pending() == 0, LIMIT, "the last outcome stored", 0.002)
        taken = time.monotonic() - peer.rig.records.starts()[0].at
    query = "SELECT count(*) FROM proletarian.archived_job GROUP BY supervisor"
    shares = [int(row[0]) for row in peer.conn.execute(query)]
    return jobs / taken, (min(shares) * count / jobs if len(shares) == count else 0.0)


def _archive(peer: Peer, jobs: int) -> Values:
    """No-op jobs beside an archive of each size."""
    assert isinstance(peer, Ganger)
    values: Values = {}
    for rows in ARCHIVES:
        values[f"jobs_s_{rows}"] = no_ops(peer, jobs, before=partial(_fill_archive, peer, rows))["jobs_s"]
    first, last = values[f"jobs_s_{ARCHIVES[0]}"], values[f"jobs_s_{ARCHIVES[-1]}"]
    assert first is not None
    assert last is not None
    values["kept"] = last / first
    return values


def _fill_archive(peer: Ganger, rows: int) -> None:
    for _ in range(rows // 500_000):
        peer.conn.execute(FILL_ARCHIVE, [500_000])


def _metrics(*keys: tuple[str, str]) -> tuple[Metric, ...]:
    return tuple(Metric(key, title, "more") for key, title in keys)


def _by_supervisors(name: str, title: str, measure: Callable[[Peer, int], Values], jobs: int, *more: str) -> Workload:
    metrics = _metrics(
        *((f"jobs_s_{count}", f"jobs/s, {count}") for count in SUPERVISORS),
        *((f"{key}_{count}", f"% of 2 CPUs, {count}") for key in more for count in SUPERVISORS),
        *((f"spread_{count}", f"least share, {count}") for count in SUPERVISORS[1:]),
        ("least", "least gain of one more"),
    )
    return Workload(name, title, measure, jobs, metrics, (Goal("least", STEADY),), peers=())


GROWTH: Final = (
    _by_supervisors("g1", "no-op jobs with 1, 2, 4, 8 supervisors", partial(_supervisors, "noop", 0.0), 6000),
    _by_supervisors("g2", "the same with jobs of 5 ms", partial(_supervisors, "short", 0.005), 2000, "share"),
    Workload(
        "g3", "no-op jobs beside a growing archive", _archive, 3000,
        _metrics(*((f"jobs_s_{rows}", f"jobs/s, {rows:,} rows") for rows in ARCHIVES), ("kept", "of the first")),
        (Goal("kept", STEADY),), peers=(),
    ),
)  # fmt: skip
