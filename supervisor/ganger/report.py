"""What the archive tells of each job type: counts, reasons, what its runs took and wasted, and limits that would fit.

Everything is counted by the database, over all runs including those in the histories; only the runs of the picture are
fetched. ``suggested`` and ``packed`` are pure. This file may not draw or print.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from ganger.database import PATIENCE, Connection, transaction
from ganger.sql import statement

ENOUGH: Final = 5  # successful runs before a limit is suggested
MOST_RUNS: Final = 5000  # of the picture
_TIMES: Final = (1, 2, 5, 10, 15, 20, 30, 45, *(60 * m for m in (1, 2, 3, 5, 10, 15, 20, 30, 45)))
_HOUR: Final = 3600
_STEPS: Final = ((64 << 20, 1 << 30), (256 << 20, 8 << 30), (1 << 30, 1 << 62))  # a step, and up to which size


@dataclass(frozen=True, slots=True)
class Spread:
    """The median, the 95th percentile and the most."""

    p50: float
    p95: float
    max: float


@dataclass(frozen=True, slots=True)
class TypeReport:
    """One job type. Seconds and bytes; None where nothing was measured. ``wait_s`` is from due to the last start;
    ``efficiency`` is CPU by wall time; ``timeout_s`` and ``memory_bytes`` are suggestions."""

    job_type: str
    jobs: int
    success: int
    failure: int
    cancelled: int
    wait_s: Spread | None
    runs: int
    wall_s: Spread | None
    cpu_s: Spread | None
    max_rss: Spread | None
    cpu_total_s: float
    cpu_wasted_s: float
    efficiency: float | None
    timeout_s: float | None
    memory_bytes: int | None
    reasons: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Run:
    """One run, for the picture. Times are seconds of the epoch."""

    job_type: str
    supervisor: str
    status: str
    started: float
    ended: float
    wall_s: float | None


@dataclass(frozen=True, slots=True)
class Scope:
    """Which jobs: those that ended in the last ``since`` seconds, of a type, of a queue. None: all."""

    since: float | None = None
    job_type: str | None = None
    queue: str | None = None

    @property
    def values(self) -> dict[str, Any]:
        return {"since": self.since, "job_type": self.job_type, "queue": self.queue}


def read(conn: Connection, schema: str, scope: Scope) -> tuple[TypeReport, ...]:
    """Every job type in the scope, those that used most CPU first."""
    reasons: dict[str, dict[str, int]] = defaultdict(dict)
    with transaction(conn, limit=PATIENCE):
        rows = conn.execute(statement("report_types", schema), scope.values).fetchall()
        for job_type, reason, jobs in conn.execute(statement("report_reasons", schema), scope.values).fetchall():
            reasons[job_type][reason] = jobs
    return tuple(_type(row, reasons[row[0]]) for row in rows)


def read_runs(conn: Connection, schema: str, scope: Scope) -> list[Run]:
    """All runs of the newest jobs in the scope, ``MOST_RUNS`` at most, in the order in which they began."""
    with transaction(conn, limit=PATIENCE):
        rows = conn.execute(statement("report_runs", schema), {**scope.values, "most": MOST_RUNS}).fetchall()
    runs = [run for *last, history in rows for run in (Run(*last), *_earlier(last[0], history))]
    return sorted(runs, key=lambda run: run.started)[-MOST_RUNS:]


def _earlier(job_type: str, history: Any) -> Iterator[Run]:
    """The runs that a history tells of. What somebody wrote into it by hand, and that is none, is passed over."""
    for entry in history if isinstance(history, list) else ():
        try:
            started, ended = (datetime.fromisoformat(entry[name]).timestamp() for name in ("started_at", "ended_at"))
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
        if ended >= started:
            where = str(entry.get("supervisor") or entry.get("host") or "?")
            wall = entry.get("wall_s")
            measured = wall if type(wall) in (int, float) else None
            yield Run(job_type, where, str(entry.get("status")), started, ended, measured)


def _type(row: Sequence[Any], reasons: Mapping[str, int]) -> TypeReport:
    job_type, jobs, success, failure, cancelled, wait, runs, wall, cpu, rss, good, *rest = row
    good_wall, good_rss, total, wasted, efficiency = rest
    timeout, memory = suggested(good, _spread(good_wall), _spread(good_rss))
    return TypeReport(
        job_type, jobs, success, failure, cancelled, _spread(wait), runs, _spread(wall), _spread(cpu), _spread(rss),
        total, wasted, efficiency, timeout, memory, reasons,
    )  # fmt: skip


def _spread(values: Sequence[float | None] | None) -> Spread | None:
    if values is None or any(value is None or not math.isfinite(value) for value in values):
        return None
    return Spread(*values)  # type: ignore[arg-type]


def suggested(good: int, wall_s: Spread | None, max_rss: Spread | None) -> tuple[float | None, int | None]:
    """A timeout and a memory limit that successful runs would not have met: twice what nearly all took, and a quarter
    above the most. Of a handful of runs nothing is concluded."""
    if good < ENOUGH:
        return None, None
    timeout = None if wall_s is None else _round_time(max(2 * wall_s.p95, 1.25 * wall_s.max))
    memory = None if max_rss is None else _round_size(1.25 * max_rss.max)
    return timeout, memory


def _round_time(seconds: float) -> float:
    """Up, to a time that people would write."""
    return next((float(time) for time in _TIMES if time >= seconds), math.ceil(seconds / _HOUR) * float(_HOUR))


def _round_size(size: float) -> int:
    step = next(step for step, most in _STEPS if size <= most)
    return max(1, math.ceil(size / step)) * step


def packed(runs: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    """Rows for a chart: the runs of a supervisor, in as few rows as there were runs at a time, in the order of their
    start. (The archive does not say in which slot a run was.)"""
    rows: list[tuple[str, list[Run]]] = []
    by_supervisor: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_supervisor[run.supervisor].append(run)
    for supervisor, own in sorted(by_supervisor.items()):
        free: list[tuple[float, int]] = []  # when a row's last run ended, and which row
        first = len(rows)
        for run in sorted(own, key=lambda one: one.started):
            if free and free[0][0] <= run.started:
                _, number = heapq.heappop(free)
            else:
                number = len(rows)
                rows.append((f"{supervisor} {number - first + 1}", []))
            rows[number][1].append(run)
            heapq.heappush(free, (run.ended, number))
    return rows
