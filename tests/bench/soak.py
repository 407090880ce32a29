"""The soak: full load for half an hour, in whose middle a transaction is held open, so that nothing can be vacuumed.

Throughput, dead rows and the table's size over time; and how long after the transaction's end the first minute's
throughput is back. The queue is kept full, so a supervisor never rests.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg

from tests.bench.peers.ganger import Runner as Ganger

DEPTH: Final = 20_000  # rows that wait; fewer are filled up
STEP: Final = 5.0  # seconds between two samples
BACK: Final = 0.95  # of the first minute's throughput: it is back
LIMIT: Final = 60.0  # seconds within which it is to be back

SIZES: Final = """
SELECT n_dead_tup, pg_relation_size(relid), pg_indexes_size(relid),
       pg_total_relation_size('proletarian.archived_job')
FROM pg_stat_user_tables WHERE schemaname = 'proletarian' AND relname = 'job'
"""


class Sample(NamedTuple):
    at: float  # seconds since the load began
    jobs_s: float
    dead: int
    table_mb: float
    index_mb: float
    archive_mb: float
    held: bool


def soak(peer: Ganger, minutes: float, say: Callable[[str], None]) -> list[Sample]:
    """Run the load and return its samples. The transaction is held in the middle third."""
    peer.reset()
    peer.rig.records.clear()
    with peer.running():
        return list(_samples(peer, minutes * 60, say))


def _samples(peer: Ganger, seconds: float, say: Callable[[str], None]) -> Iterator[Sample]:
    records = peer.rig.records
    peer.fill("noop", DEPTH)
    records.await_count(1000, 60)
    begin = last = time.monotonic()
    waiting = DEPTH - records.count() // 2  # reckoned, not counted: counting would walk over every dead row
    records.clear()
    held = False
    with ExitStack() as holding:
        while (now := time.monotonic()) - begin < seconds:
            if not held and seconds / 3 <= now - begin < seconds * 2 / 3:
                _hold(peer, holding)
                held = True
                say("a transaction is held open")
            if held and now - begin >= seconds * 2 / 3:
                holding.close()
                held = False
                say("the transaction has ended")
            if waiting - records.count() // 2 < DEPTH:
                peer.fill("noop", DEPTH)
                waiting += DEPTH
            time.sleep(0.2)
            if time.monotonic() - last >= STEP:
                now, starts = time.monotonic(), records.count() // 2
                records.clear()
                waiting -= starts
                yield _sample(peer, now - begin, starts / (now - last), held)
                last = now


def _hold(peer: Ganger, holding: ExitStack) -> None:
    conn = holding.enter_context(psycopg.connect(peer.url))
    conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    conn.execute("SELECT count(*) FROM proletarian.supervisor")


def _sample(peer: Ganger, at: float, rate: float, held: bool) -> Sample:
    row = peer.conn.execute(SIZES).fetchone()
    assert row is not None
    dead, table, index, archive = row
    return Sample(at, rate, dead, table / 1e6, index / 1e6, archive / 1e6, held)


def back_after(samples: Sequence[Sample]) -> float | None:
    """Seconds from the end of the held transaction until the first minute's throughput was back; None: never."""
    held = [sample.at for sample in samples if sample.held]
    if not held:
        return None
    first = statistics.median(sample.jobs_s for sample in samples if sample.at <= min(60, held[0]))
    ended = max(held)
    return next((s.at - ended for s in samples if s.at > ended and s.jobs_s >= BACK * first), None)


def tell(samples: Sequence[Sample]) -> str:
    """A line per minute, and what became of the goal."""
    lines = ["| minute | jobs/s | dead rows | table MB | indexes MB | archive MB |", "|---|---|---|---|---|---|"]
    for minute in range(int(samples[-1].at // 60) + 1):
        part = [sample for sample in samples if sample.at // 60 == minute]
        if part:
            rate, last = statistics.median(sample.jobs_s for sample in part), part[-1]
            cells = [f"{rate:,.0f}", f"{last.dead:,}", *(f"{size:,.0f}" for size in last[3:6])]
            lines.append(f"| {minute + 1}{' held' if last.held else ''} | {' | '.join(cells)} |")
    after = back_after(samples)
    lines.append(f"\n{_word(after)} the first minute's throughput is back {_shown(after)} (to reach: {LIMIT:.0f} s)")
    return "\n".join(lines)


def _word(after: float | None) -> str:
    return "met   " if after is not None and after <= LIMIT else "MISSED"


def _shown(after: float | None) -> str:
    return "never" if after is None else f"{after:.0f} s after the transaction's end"


def write(folder: Path, samples: Sequence[Sample]) -> int:
    """soak.json, soak.md; 0 if the goal is met, else 3."""
    document: dict[str, Any] = {"samples": [s._asdict() for s in samples], "back_after_s": back_after(samples)}
    (folder / "soak.json").write_text(json.dumps(document, indent=1) + "\n")
    text = tell(samples)
    (folder / "soak.md").write_text(text + "\n")
    print(text)
    return 0 if _word(back_after(samples)).startswith("met") else 3
