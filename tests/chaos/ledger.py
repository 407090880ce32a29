"""What happened, told by others than the database, and whether it is what was promised.

The record has four sources: what the application enqueued (and whether its transaction was committed), what the jobs
wrote while they ran, what was done to the processes, and in the end the rows of the archive. ``check`` compares them.
It knows the two limits that the product admits: a host that was frozen as a whole, and a failover that forgot commits.
What they explain is counted as excused and is no violation.

Pure: no file, no clock, no database. Times are seconds of the machine's monotonic clock.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Fate = Literal["committed", "rolled back", "unknown"]

THAW = 1.0 * 3  # seconds that user code may run on after a thaw: the promise, with the allowance for a loaded machine
KEPT = 20  # entries that a job's history holds
UNCOUNTED = ("shutdown", "blame")  # entries of the history whose attempt was given back
OWN_CRASHES = ("crash",)  # job types that kill their own child


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A job as the application knows it. ``unknown``: the connection was lost in the commit."""

    job_id: str
    kind: str
    fate: Fate
    at: float  # when its transaction ended
    cancelled: bool = False  # a cancel order was given, or may have been


@dataclass(slots=True)
class Run:
    """What one run wrote."""

    job_id: str
    run_id: str
    attempt: int
    kind: str
    host: str
    began: float
    seen: float  # the last sign of it, of whatever process
    ends: list[str] = field(default_factory=list)  # "returned", or what was raised
    starts: int = 1


@dataclass(frozen=True, slots=True)
class Overlap:
    """A run found another process of its job alive."""

    at: float
    job_id: str
    run_id: str
    other: str  # the run that held the lock


@dataclass(frozen=True, slots=True)
class Archived:
    """A row of the archive."""

    job_id: str
    status: str
    reason: str | None
    run_id: str | None
    attempts: int
    crashes: int
    losses: int
    interrupts: int
    starts: int
    history: list[Mapping[str, Any]]
    result: str | None


@dataclass(frozen=True, slots=True)
class Window:
    """A time in which a limit of the promises held: a host that was ``frozen``, commits that a failover ``forgot``."""

    what: Literal["frozen", "forgot"]
    start: float
    end: float
    host: str | None = None


@dataclass(slots=True)
class Record:
    """Everything that is known at the end."""

    enqueued: dict[str, Enqueued] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    overlaps: list[Overlap] = field(default_factory=list)
    failed_jobs: set[str] = field(default_factory=set)  # whose failed_job was called
    unasked: set[str] = field(default_factory=set)  # whose callback could not be called, as an event told
    archived: dict[str, Archived] = field(default_factory=dict)
    queued: dict[str, str] = field(default_factory=dict)  # what is still in the queue: a description of the row
    windows: list[Window] = field(default_factory=list)
    child_kills: int = 0  # children that a fault killed
    lease: float = 6.0


@dataclass(slots=True)
class Findings:
    violations: list[str] = field(default_factory=list)
    excused: Counter[str] = field(default_factory=Counter)


def read(lines: Iterable[str], record: Record) -> None:
    """Take in what the jobs wrote."""
    for line in lines:
        what, at, job_id, run_id, *more = line.split()
        if what == "O":
            record.overlaps.append(Overlap(float(at), job_id, run_id, more[0]))
        elif what == "F":
            record.failed_jobs.add(job_id)
        elif what == "S" and run_id not in record.runs:
            attempt, kind, host = more
            record.runs[run_id] = Run(job_id, run_id, int(attempt), kind, host, float(at), float(at))
        elif run_id in record.runs:
            run = record.runs[run_id]
            run.seen = max(run.seen, float(at))
            run.starts += what == "S"
            run.ends += more[:1] if what == "E" else []


def check(record: Record) -> Findings:
    """Compare what happened with what was promised."""
    findings = Findings()
    by_job: dict[str, list[Run]] = defaultdict(list)
    for run in record.runs.values():
        by_job[run.job_id].append(run)
    for runs in by_job.values():
        runs.sort(key=lambda run: run.began)
    for job_id in {*record.enqueued, *by_job, *record.archived, *record.queued}:
        told = list(_job(record, job_id, by_job[job_id]))
        if told and _forgotten(record, job_id, by_job[job_id]):
            findings.excused["a failover forgot commits"] += 1
        else:
            findings.violations += [f"job {job_id} ({_kind(record, job_id)}): {each}" for each in told]
    _overlaps(record, by_job, findings)
    _blame(record, findings)
    return findings


def _kind(record: Record, job_id: str) -> str:
    job = record.enqueued.get(job_id)
    return job.kind if job else "nobody's"


def _job(record: Record, job_id: str, runs: list[Run]) -> Iterator[str]:
    """What is wrong with one job."""
    job, row = record.enqueued.get(job_id), record.archived.get(job_id)
    if job is None:
        yield "nobody enqueued it"
        return
    if job_id in record.queued:
        yield f"it has not ended: {record.queued[job_id]}"
    if job.fate == "rolled back" and (runs or row or job_id in record.queued):
        yield f"its transaction was rolled back, and it ran {len(runs)} times, archived: {row}"
    if row is None:
        if job.fate == "committed" and job_id not in record.queued:
            yield f"it is lost: neither in the queue nor in the archive; it ran {len(runs)} times"
        elif job.fate == "unknown" and runs and job_id not in record.queued:
            yield f"it ran {len(runs)} times and is neither in the queue nor in the archive"
        return
    for run in runs:
        if run.starts > 1:
            yield f"run {run.run_id} was started {run.starts} times"
    yield from _ending(record, job, row, runs)
    if len(row.history) < KEPT:
        yield from _sums(row, runs)


def _ending(record: Record, job: Enqueued, row: Archived, runs: list[Run]) -> Iterator[str]:
    """It ended once, by its last run, as the archive says."""
    last = runs[-1] if runs else None
    own = next((run for run in runs if run.run_id == row.run_id), None)
    if row.status == "success":
        if own is None or "returned" not in own.ends:
            yield f"it is archived as a success of run {row.run_id}, which did not return: {own}"
        elif row.result != row.run_id:
            yield f"its result is {row.result!r}, which is not what run {row.run_id} returned"
    if own is not None and last is not own:
        yield f"it ran again after the run that ended it: {last}"
    if row.status == "cancelled" and not job.cancelled:
        yield "it is archived as cancelled, and nobody cancelled it"
    if row.status == "failure" and row.job_id not in record.failed_jobs | record.unasked:
        yield f"it failed ({row.reason}), and failed_job was not called"


def _sums(row: Archived, runs: list[Run]) -> Iterator[str]:
    """Attempts, crashes, losses and refunds add up."""
    reasons = Counter(str(entry.get("reason")) for entry in row.history)
    counted = sum(reasons.values()) - sum(reasons[each] for each in UNCOUNTED)
    told = f"{row}, history {dict(reasons)}, {len(runs)} runs"
    if row.attempts != counted + (row.run_id is not None):
        yield f"attempts do not add up: {told}"
    if row.crashes != reasons["crash"] + (row.reason == "crash"):
        yield f"crashes do not add up: {told}"
    if row.losses != reasons["lost"]:
        yield f"losses do not add up: {told}"
    if row.interrupts != reasons["shutdown"]:
        yield f"interruptions do not add up: {told}"
    if row.starts - row.attempts < sum(reasons[each] for each in UNCOUNTED):
        yield f"refunds do not add up: {told}"
    if len(runs) > row.starts:
        yield f"it ran more often than it was claimed: {told}"
    ended = sum(bool(run.ends) for run in runs)
    if ended < reasons["exception"] + (row.reason == "exception") + (row.status == "success"):
        yield f"it ended less often than is told: {told}"


def _forgotten(record: Record, job_id: str, runs: list[Run]) -> bool:
    """Whether something of the job may have been committed in a time that a failover forgot."""
    job = record.enqueued.get(job_id)
    for window in record.windows:
        if window.what != "forgot":
            continue
        if job is not None and window.start <= job.at and job.at - record.lease <= window.end:
            return True
        if any(run.began <= window.end and run.seen + record.lease >= window.start for run in runs):
            return True
    return False


def _overlaps(record: Record, by_job: Mapping[str, list[Run]], findings: Findings) -> None:
    for overlap in record.overlaps:
        earlier = record.runs.get(overlap.other)
        thaw = _frozen_until(record, earlier, overlap.at)
        if earlier is not None and thaw is not None:
            if earlier.seen > thaw + THAW:
                late = earlier.seen - thaw
                findings.violations.append(
                    f"job {overlap.job_id}: run {overlap.other} was seen {late:.1f} s after its host thawed"
                )
            findings.excused["the host was frozen"] += 1
        elif _claim_forgotten(record, earlier):
            findings.excused["a failover forgot a claim"] += 1
        else:
            findings.violations.append(
                f"job {overlap.job_id}: run {overlap.run_id} began while run {overlap.other} was alive, "
                f"at {overlap.at:.3f}: {by_job[overlap.job_id]}"
            )


def _frozen_until(record: Record, earlier: Run | None, at: float) -> float | None:
    """The end of the freeze that explains why this run was still there."""
    for window in record.windows:
        ours = window.what == "frozen" and earlier is not None and window.host in (None, earlier.host)
        if ours and earlier and earlier.began <= window.end and window.start <= at <= window.end + THAW:
            return window.end
    return None


def _claim_forgotten(record: Record, earlier: Run | None) -> bool:
    """Whether a failover may have forgotten the claim of this run, which was then killed within a lease."""
    return earlier is not None and any(
        window.what == "forgot"
        and window.start - record.lease <= earlier.began <= window.end
        and earlier.seen <= window.end + record.lease
        for window in record.windows
    )


def _blame(record: Record, findings: Findings) -> None:
    """One death harms one job: no more crashes than children were killed, besides those of jobs that kill their own."""
    crashes = sum(
        row.crashes + sum(entry.get("reason") == "blame" for entry in row.history)
        for row in record.archived.values()
        if _kind(record, row.job_id) not in OWN_CRASHES
    )
    if crashes > record.child_kills:
        findings.violations.append(f"{crashes} crashes are told, and only {record.child_kills} children were killed")
