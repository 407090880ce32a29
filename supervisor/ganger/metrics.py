"""The figures that a monitoring system collects, in the words of Prometheus; ``FAMILIES`` is all of them.

Counted is what passes the borders of the loop anyway: commands to the database, its answers, and events. Nobody there
knows of it, and where nobody asks for metrics none of this exists. States are read when somebody asks; how much is in
the queues is asked of the database then, in a thread and on a connection of their own: while it is away those figures
are absent, and nobody waits for them longer than ``PATIENCE``.

prometheus-client writes the page. It is an extra, and only imported where it is wanted.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args
from uuid import UUID

from ganger import database
from ganger.core import messages as m
from ganger.core.job import ENDED_BY
from ganger.core.ladder import Step
from ganger.core.messages import Now
from ganger.core.slot import State
from ganger.events import EVENTS
from ganger.health import Health

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

MOST_TYPES: Final = 100  # job types that are told apart; all further ones are counted together
OTHER: Final = "other"
FRESH: Final = 5.0  # seconds for which an answer of the database is not asked for again
STALE: Final = 60.0  # seconds after which one that was slow to be replaced is no longer shown
PATIENCE: Final = 2.0  # seconds that a scrape waits for the database
DATABASE_LIMIT: Final = 5.0  # seconds that each of its statements may take

_WAITS: Final = (0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0, 43200.0)
_WORK: Final = (0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0, 43200.0, 172800.0, 604800.0)
_CLAIMS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
_SIZES: Final = tuple(float(4**power << 20) for power in range(2, 10))  # 16 MiB to 256 GiB


_OUTCOMES: Final = get_args(m.Outcome)
_NUMBERS: Final = (int, float)
_COUNTED: Final = frozenset(name for name, wording in EVENTS.items() if wording.level != "debug")
_MEASURED: Final = (
    ("wall_s", "ganger_job_wall_seconds"),
    ("cpu_s", "ganger_job_cpu_seconds"),
    ("max_rss", "ganger_job_memory_bytes"),
)


class Family(NamedTuple):
    """One metric: what it is, and the labels of its samples; ``buckets`` makes it a histogram."""

    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


# Counters end in _total; what is neither a counter nor a histogram is a gauge.
FAMILIES: Final[dict[str, Family]] = {
    "ganger_supervisor_info": Family("1, with the supervisor's name and version.", ("name", "version")),
    "ganger_ready": Family("Whether it takes jobs: registered, lease trusted, database connected, not draining."),
    "ganger_draining": Family("Whether it is shutting down."),
    "ganger_slots": Family("Slots by what they are at; busy is at a job.", ("lane", "state")),
    "ganger_lease_slack_seconds": Family("Time for which the lease can still be trusted; absent without one."),
    "ganger_outcomes_waiting": Family("Outcomes that the database has not stored yet."),
    "ganger_jobs_total": Family(
        "Runs whose outcome is stored: success, failure, cancelled, retried or released, and why.",
        ("queue", "job_type", "outcome", "reason"),
    ),
    "ganger_job_wait_seconds": Family("From when a job was due until it was claimed.", ("queue",), _WAITS),
    "ganger_job_wall_seconds": Family("Time that a run took.", ("job_type",), _WORK),
    "ganger_job_cpu_seconds": Family("CPU time of a run, with all its processes.", ("job_type",), _WORK),
    "ganger_job_memory_bytes": Family("Peak memory of a run.", ("job_type",), _SIZES),
    "ganger_kills_total": Family(
        "Runs that the kill ladder ended, by why and by its last step: interrupt, terminate or kill.",
        ("reason", "rung"),
    ),
    "ganger_fenced_outcomes_total": Family("Outcomes refused because the job was no longer this supervisor's."),
    "ganger_claim_seconds": Family("Time from asking the database for jobs to its answer.", (), _CLAIMS),
    "ganger_events_total": Family("Events of the supervisor, by their names in its log.", ("event",)),
    # asked of the database
    "ganger_queue_jobs": Family("Jobs in a queue: ready, scheduled or running, anywhere.", ("queue", "state")),
    "ganger_queue_oldest_seconds": Family("For how long the oldest ready job of a queue has been due.", ("queue",)),
    "ganger_queue_paused": Family("Whether a queue is paused; the queue without a name stands for all.", ("queue",)),
    "ganger_dead_tuples": Family("Dead rows of a table, as PostgreSQL's statistics have them.", ("table",)),
    "ganger_horizon_transactions": Family("Age of the oldest snapshot that keeps dead rows, in transactions."),
    "ganger_oldest_transaction_seconds": Family("Age of the oldest open transaction that this role may see."),
}


class _Histogram:
    """How many values are at most as large as each bound, and their sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def take(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def shown(self) -> tuple[list[tuple[str, float]], float]:
        total, buckets = 0, []
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
        return buckets, self._sum


class Figures:
    """What is counted while it happens, by any thread. ``watch_commands`` and ``watch_answers`` are put before the
    database's door, ``said`` hears every event."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._types: set[str] = set()
        self._asked: dict[UUID, float] = {}  # claim_id -> when it was asked (mono)
        self._runs: dict[UUID, tuple[str, str]] = {}  # run_id -> queue and type, until its outcome is stored
        self._owed: dict[UUID, m.Outcome] = {}  # by run_id
        self._counts: defaultdict[str, Counter[tuple[str, ...]]] = defaultdict(Counter)
        self._histograms: defaultdict[str, dict[tuple[str, ...], _Histogram]] = defaultdict(dict)
        self._events: dict[str, int] = {}
        # What is to be alarmed at begins at zero: the first of a kind is no increase of a sample that was not there.
        for name, wording in EVENTS.items():
            if wording.level in ("warning", "error"):
                self._events[name] = 0
        for reason in ENDED_BY:
            for step in Step:
                self._count("ganger_kills_total", reason, step.value, by=0)

    def watch_commands(self, do: Callable[..., None]) -> Callable[..., None]:
        """``do``, with every command for the database seen before."""

        def watched(*commands: m.DatabaseCommand) -> None:
            with self._lock:
                for command in commands:
                    if isinstance(command, _OUTCOMES):
                        self._owed[command.run_id] = command
                    elif isinstance(command, m.Claim):
                        self._asked[command.claim_id] = time.monotonic()
            do(*commands)

        return watched

    def watch_answers(self, post: Callable[[m.DatabaseEvent], None]) -> Callable[[m.DatabaseEvent], None]:
        """``post``, with every answer of the database seen before."""

        def watched(event: m.DatabaseEvent) -> None:
            take = self._TAKE.get(type(event))
            if take is not None:
                with self._lock:
                    take(self, event)
            post(event)

        return watched

    def said(self, name: str) -> None:
        """Take in an event; those for debugging are too many to be worth it."""
        if name in _COUNTED:
            with self._lock:
                self._events[name] = self._events.get(name, 0) + 1

    def samples(self) -> dict[str, dict[tuple[str, ...], Any]]:
        """The values so far: by family and labels, a number or, of a histogram, its buckets and sum."""
        with self._lock:
            counts: dict[str, Any] = {name: dict(counter) for name, counter in self._counts.items()}
            counts["ganger_events_total"] = {(name,): count for name, count in self._events.items()}
            counts["ganger_fenced_outcomes_total"] = {(): self._events["outcome-refused"]}
            shown = {
                name: {labels: histogram.shown() for labels, histogram in histograms.items()}
                for name, histograms in self._histograms.items()
            }
        return {**counts, **shown}

    # ---- with the lock held ----------------------------------------------------------------------------------------

    def _claimed(self, event: m.Claimed) -> None:
        asked = self._asked.pop(event.claim_id, None)
        if asked is not None:
            self._observe("ganger_claim_seconds", time.monotonic() - asked, ())
        now = time.time()
        for job in event.jobs:
            self._runs[job.run_id] = job.queue, self._known(job.job_type)
            due = _moment(job.process_at)
            if due is not None:
                self._observe("ganger_job_wait_seconds", max(0.0, now - due), (job.queue,))

    def _claim_lost(self, event: m.ClaimLost) -> None:
        self._asked.pop(event.claim_id, None)

    def _registered(self, event: m.Registered) -> None:
        """What ran under a registration before this one has been fenced: no outcome of it will be stored."""
        self._runs.clear()
        self._owed.clear()

    def _stored(self, event: m.Stored) -> None:
        outcome = self._owed.pop(event.run_id, None)
        queue, job_type = self._runs.pop(event.run_id, (OTHER, OTHER))
        if outcome is None or event.how == "refused":
            return
        ending, reason, facts = _told(outcome)
        if event.how == "cancelled":
            ending, reason = "cancelled", "cancelled"
        self._count("ganger_jobs_total", queue, job_type, ending, reason)
        if ending != "success" and "rung" in facts:
            self._count("ganger_kills_total", reason, str(facts["rung"]))
        of_type = (job_type,)
        for fact, family in _MEASURED:
            value = facts.get(fact)
            if isinstance(value, _NUMBERS):
                self._observe(family, value, of_type)

    def _count(self, family: str, *labels: str, by: int = 1) -> None:
        self._counts[family][labels] += by

    def _observe(self, family: str, value: float, labels: tuple[str, ...]) -> None:
        histograms = self._histograms[family]
        histogram = histograms.get(labels)
        if histogram is None:
            histogram = histograms[labels] = _Histogram(FAMILIES[family].buckets)
        histogram.take(value)

    def _known(self, job_type: str) -> str:
        """The type, or OTHER where there are too many: each is kept for as long as we live."""
        if job_type not in self._types:
            if len(self._types) >= MOST_TYPES:
                return OTHER
            self._types.add(job_type)
        return job_type

    _TAKE: Final[dict[type, Callable[[Figures, Any], None]]] = {
        m.Claimed: _claimed,
        m.ClaimLost: _claim_lost,
        m.Registered: _registered,
        m.Stored: _stored,
    }


def _told(outcome: m.Outcome) -> tuple[str, str, Mapping[str, Any]]:
    """Outcome, reason and facts of a run."""
    match outcome:
        case m.Archive():
            return outcome.status, outcome.reason or "", outcome.facts
        case m.Retry():
            return "retried", str(outcome.entry.get("reason", "")), outcome.entry
        case m.Release():
            return "released", outcome.reason, outcome.entry or {}


def _moment(text: str) -> float | None:
    """Seconds since 1970, by the database's clock; None for what is no moment (infinity, say)."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


# ---------------------------------------------------------------------------------------------------------------------
# What only the database knows


class Backlog:
    """The queues' depth and PostgreSQL's state, asked when somebody wants to know, and kept for some seconds."""

    def __init__(self, conninfo: str, schema: str, name: str) -> None:
        self._conninfo, self._schema, self._name = conninfo, schema, name
        self._changed = threading.Condition()
        self._wanted = self._closed = False
        self._found: database.Backlog | None = None
        self._found_at = self._asked_at = float("-inf")
        threading.Thread(target=self._run, name="ganger-backlog", daemon=True).start()

    def ask(self) -> database.Backlog | None:
        """What the database says, or said a moment ago; None where it does not answer. Takes PATIENCE at most."""
        with self._changed:
            if time.monotonic() >= self._asked_at + FRESH and not self._closed:
                self._wanted = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: not self._wanted, PATIENCE)
            return self._found if time.monotonic() < self._found_at + STALE else None

    def close(self) -> None:
        """End the thread, after the statement it is at, which nobody waits for."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        conn: database.Connection | None = None
        while self._next():
            found = None
            try:
                if conn is None or conn.closed:
                    conn = database.connect(
                        self._conninfo, name=f"ganger {self._name} metrics", statement_timeout=DATABASE_LIMIT,
                        connect_timeout="3",
                    )  # fmt: skip
                found = database.backlog(conn, self._schema)
            except Exception:  # the figures are absent, which says it
                if conn is not None:
                    conn.close()
            with self._changed:
                self._found = found
                self._found_at = self._asked_at = time.monotonic()
                self._wanted = False
                self._changed.notify_all()
        if conn is not None:
            conn.close()

    def _next(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._wanted or self._closed)
            return not self._closed


# ---------------------------------------------------------------------------------------------------------------------
# The page


class Missing(Exception):
    """prometheus-client is not installed; the message says what to do."""


def load() -> None:
    """Import what the page needs, so that the first one is not late. Raises Missing."""
    try:
        import prometheus_client.exposition
        import prometheus_client.metrics_core  # noqa: F401
    except ImportError:
        raise Missing("The metrics need prometheus-client: pip install 'ganger[metrics]'.") from None


def page(collect: Callable[[], Iterator[Metric]], accept: str) -> tuple[str, bytes]:
    """The metrics in the format that the client accepts: (content type, text). Raises Missing."""
    load()
    from prometheus_client import ProcessCollector
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, choose_encoder, generate_latest
    from prometheus_client.registry import Collector, CollectorRegistry

    class Ours(Collector):
        def collect(self) -> Iterator[Metric]:
            return collect()

        def describe(self) -> list[Metric]:  # else it would be asked for everything, to learn the names
            return []

    registry = CollectorRegistry()
    registry.register(Ours())
    ProcessCollector(registry=registry)
    try:
        encode, content_type = choose_encoder(accept)
    except Exception:  # it reads a version that is none, and is not made for that
        encode, content_type = generate_latest, CONTENT_TYPE_LATEST
    return content_type, encode(registry)


def families(figures: Figures, health: Health, backlog: Backlog | None, name: str, now: Now) -> Iterator[Metric]:
    """Every family of the table, with its samples of this moment."""
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    samples = figures.samples() | _states(health, name, now) | _of_database(backlog, health)
    for family, (help, labels, bounds) in FAMILIES.items():
        if bounds:
            histogram = HistogramMetricFamily(family, help, labels=labels)
            for values, (buckets, total) in samples.get(family, {}).items():
                histogram.add_metric(values, buckets, total)
            yield histogram
            continue
        kind = CounterMetricFamily if family.endswith("_total") else GaugeMetricFamily
        metric = kind(family, help, labels=labels)
        for values, value in samples.get(family, {}).items():
            metric.add_metric(values, value)
        yield metric


def _states(health: Health, name: str, now: Now) -> dict[str, dict[tuple[str, ...], Any]]:
    """What the machine's state says at this moment."""
    found: dict[str, dict[tuple[str, ...], Any]] = {
        "ganger_supervisor_info": {(name, version("ganger")): 1},
        "ganger_ready": {(): int(health.not_ready(now) is None)},
        "ganger_draining": {(): int(health.draining)},
    }
    machine = health.machine
    if machine is None:
        return found
    lanes = machine.rules.lanes
    slots = Counter((lanes[slot.lane].name, slot.state.value) for slot in list(machine.pool.slots.values()))
    found["ganger_slots"] = {
        (lane.name, state.value): slots[lane.name, state.value] for lane in lanes for state in State
    }
    found["ganger_outcomes_waiting"] = {(): len(machine.book.owed)}
    if machine.book.lease.supervisor_id is not None:
        found["ganger_lease_slack_seconds"] = {(): max(0.0, machine.book.lease.trusted_until - now.boot)}
    return found


def _of_database(backlog: Backlog | None, health: Health) -> dict[str, dict[tuple[str, ...], Any]]:
    """What the database says, if it does. A queue of ours that it does not name is empty."""
    seen = backlog.ask() if backlog is not None else None
    if seen is None:
        return {}
    lanes = health.machine.rules.lanes if health.machine is not None else ()
    queues = {name: database.QueueStatus(name, 0, 0, 0, None, False) for lane in lanes for name in lane.queues}
    queues |= {queue.queue: queue for queue in seen.queues}
    states = ("ready", "scheduled", "running")
    return {
        "ganger_queue_jobs": {(name, state): getattr(q, state) for name, q in queues.items() for state in states},
        "ganger_queue_oldest_seconds": {(name,): q.oldest_ready_s or 0.0 for name, q in queues.items()},
        "ganger_queue_paused": {(name,): int(q.paused) for name, q in queues.items()},
        "ganger_dead_tuples": {(table,): count for table, count in seen.dead_tuples.items()},
        "ganger_horizon_transactions": {(): seen.horizon_transactions},
        "ganger_oldest_transaction_seconds": {(): seen.oldest_transaction_s},
    }
