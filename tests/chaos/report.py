"""What a chaos run has shown: what supervisors told, how long recoveries took, and the page at the end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.chaos.faults import Strike
from tests.chaos.ledger import Findings, Record

SHOWN = (
    "job-lost", "job-crashed", "job-released", "job-interrupted", "lease-lost", "outcome-refused", "database-lost",
    "callback-error", "retry-strategy-error", "job-worker-error", "boot-failed", "child-unkillable",
)  # fmt: skip


def events(logs: Iterable[Path]) -> tuple[list[Mapping[str, Any]], list[str]]:
    """What supervisors told, and what stands in their logs that is no event."""
    told, other = [], []
    for log in logs:
        for line in log.read_text(errors="replace").splitlines():
            try:
                event = json.loads(line)
                event["event"]
            except (ValueError, KeyError, TypeError):
                other.append(f"{log}: {line}")
            else:
                told.append(event)
    return told, other


def recoveries(strikes: list[Strike], record: Record, hosts: Iterable[str]) -> Iterator[tuple[str, float]]:
    """For each fault, the seconds from its end until every host it concerned had begun another job.

    Only of faults that no other one disturbed: where a second one came before that, the second one counts.
    """
    begins: dict[str, list[float]] = {host: [] for host in hosts}
    for run in record.runs.values():
        begins[run.host].append(run.began)
    for runs in begins.values():
        runs.sort()
    for strike in strikes:
        if strike.over is None:
            continue
        concerned = [strike.host.name] if strike.host else list(begins)
        first = [next((began for began in begins[host] if began > strike.over), None) for host in concerned]
        if any(began is None for began in first):
            continue  # there was no work any more
        back = max(began for began in first if began is not None)
        if not any(_disturbs(other, strike, back) for other in strikes):
            yield strike.name, back - strike.over


def _disturbs(other: Strike, strike: Strike, back: float) -> bool:
    elsewhere = other.host is not None and strike.host is not None and other.host is not strike.host
    if other is strike or elsewhere or not other.stops:
        return False
    assert strike.over is not None
    return other.began < back and (other.over is None or other.over > strike.over)


def page(
    strikes: list[Strike],
    record: Record,
    findings: Findings,
    told: list[Mapping[str, Any]],
    transactions: Counter[str],
    hosts: Iterable[str],
) -> str:
    """The figures, for people."""
    times = Counter(strike.name for strike in strikes)
    worst: dict[str, float] = {}
    for name, seconds in recoveries(strikes, record, hosts):
        worst[name] = max(worst.get(name, 0.0), seconds)
    lines = [f"{'fault':28}{'times':>6}{'worst recovery':>18}"]
    for name, count in sorted(times.items()):
        lines.append(f"{name:28}{count:>6}{f'{worst[name]:.2f} s' if name in worst else '':>18}")
    total = f"{max(worst.values(), default=0):.2f} s"
    lines.append(f"{'all':28}{sum(times.values()):>6}{total:>18}")
    fates = Counter(job.fate for job in record.enqueued.values())
    rows = record.archived.values()
    lines += [
        "",
        f"transactions  {_words(transactions)}",
        f"jobs          {len(record.enqueued)}: {_words(fates)}",
        f"  of a kind   {_words(Counter(job.kind for job in record.enqueued.values()))}",
        f"runs          {len(record.runs)} of {len({run.job_id for run in record.runs.values()})} jobs",
        f"ended         {_words(Counter(row.reason or row.status for row in rows))}",
        f"accounts      attempts {sum(row.attempts for row in rows)}, claims {sum(row.starts for row in rows)}, "
        f"refunds {sum(row.starts - row.attempts for row in rows)}, losses {sum(row.losses for row in rows)}, "
        f"crashes {sum(row.crashes for row in rows)}, interruptions {sum(row.interrupts for row in rows)}",
        f"events        {_words(Counter(e['event'] for e in told if e['event'] in SHOWN))}",
        f"excused       {_words(findings.excused) or 'nothing'}",
    ]
    return "\n".join(lines)


def _words(counts: Mapping[Any, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in Counter(counts).most_common())
