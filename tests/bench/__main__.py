"""``scripts/bench``: every workload for ganger and the chosen peers, in the same run, taking turns.

Exit codes: 0, all ran and everything to be reached was; 3, something to be reached was missed; 1, something broke;
2, wrong usage.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import psycopg

from tests.bench import report
from tests.bench.floor import Floor
from tests.bench.peers import PEERS, QUICK, load
from tests.bench.peers.base import Peer, PostgresPeer
from tests.bench.peers.ganger import Runner as Ganger
from tests.bench.report import Results
from tests.bench.rig import Broken, Rig
from tests.bench.servers import Servers, servers
from tests.bench.throughput import Values
from tests.bench.workloads import WORKLOADS, Workload

ROUNDS, QUICK_ROUNDS = 5, 3


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # servers and workers end with us
    out: Path = options.output
    out.mkdir(parents=True, exist_ok=True)
    with _stage(options.peers) as (rig, found, peers, notes):
        results = Results(
            versions={"postgresql": found.postgres_version, "redis": found.redis_version or "none"}
            | {peer.name: peer.version for peer in peers},
            settings={peer.name: peer.settings for peer in peers},
            postgres=frozenset(peer.name for peer in peers[1:] if isinstance(peer, PostgresPeer)),
            notes=notes,
        )
        floor = Floor(rig, found)
        for workload in options.only:
            _take_turns(workload, peers, floor, options, results)
    text = report.markdown(options.only, results)
    (out / "bench.md").write_text(text)
    report.write_json(out / "bench.json", options.only, results)
    print(text)
    _say(f"Written: {out}/bench.md and bench.json")
    return report.exit_code(options.only, results)


# ---------------------------------------------------------------------------------------------------------------------
# What is asked for


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Measure ganger beside other job queues.")
    names = ",".join(workload.name for workload in WORKLOADS)
    parser.add_argument("--peers", type=_peer_names, help=f"none, all, or some of {','.join(PEERS)} (default: all)")
    parser.add_argument("--only", type=_workloads, help=f"some of the workloads {names} (default: all)")
    parser.add_argument("--quick", action="store_true", help="a few small workloads beside two peers: minutes")
    parser.add_argument("--rounds", type=int, help=f"rounds (default: {ROUNDS}, with --quick {QUICK_ROUNDS})")
    parser.add_argument("--jobs", type=int, help="at most so many jobs, to see whether all of it runs")
    parser.add_argument("-o", "--output", type=Path, default=Path("bench"), help="folder for the report (bench)")
    options = parser.parse_args(arguments)
    quick = options.quick
    options.rounds = options.rounds or (QUICK_ROUNDS if quick else ROUNDS)
    options.peers = options.peers if options.peers is not None else list(QUICK if quick else PEERS)
    options.only = options.only or [workload for workload in WORKLOADS if workload.quick or not quick]
    return options


def _peer_names(text: str) -> list[str]:
    if text in ("none", ""):
        return []
    names = list(PEERS) if text == "all" else text.split(",")
    if unknown := set(names) - set(PEERS):
        raise argparse.ArgumentTypeError(f"no such peer: {', '.join(sorted(unknown))}")
    return names


def _workloads(text: str) -> list[Workload]:
    known = {workload.name: workload for workload in WORKLOADS}
    if unknown := set(text.split(",")) - set(known):
        raise argparse.ArgumentTypeError(f"no such workload: {', '.join(sorted(unknown))}")
    return [known[name] for name in text.split(",")]


# ---------------------------------------------------------------------------------------------------------------------
# The stage: a folder, servers, and the queues that can be measured here


@contextmanager
def _stage(names: Iterable[str]) -> Iterator[tuple[Rig, Servers, list[Peer], list[str]]]:
    notes: list[str] = []
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="ganger-bench-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o711)  # as root, PostgreSQL has another account
        rig = Rig(folder)
        stack.callback(rig.close)
        wanted: list[type[Peer]] = [Ganger, *_installed(names, notes)]
        found = stack.enter_context(servers(folder, redis=any(runner.needs_redis for runner in wanted)))
        if found.redis is None:
            notes += [f"skipped: {runner.name} needs redis-server on PATH" for runner in wanted if runner.needs_redis]
            wanted = [runner for runner in wanted if not runner.needs_redis]
        for note in notes:
            _say(note)
        peers = [runner(rig, found) for runner in wanted]
        for peer in peers:
            stack.callback(peer.close)
        yield rig, found, peers, notes


def _installed(names: Iterable[str], notes: list[str]) -> list[type[Peer]]:
    runners = []
    for name in names:
        try:
            runners.append(load(name))
        except ImportError as error:
            notes.append(f"skipped: {name} is not installed ({error})")
    return runners


# ---------------------------------------------------------------------------------------------------------------------
# Taking turns


def _take_turns(
    workload: Workload, peers: Sequence[Peer], floor: Floor, options: argparse.Namespace, results: Results
) -> None:
    """A B A B: each round measures everybody once, so that what changes on the machine meets all of them."""
    for round_ in range(options.rounds):
        for peer in peers:
            if not _takes_part(workload, peer, round_, results):
                continue
            values = _measured(workload, peer, options, results)
            if values is not None:
                results.add(workload.name, peer.name, values)
                _say(f"{workload.name} round {round_ + 1} {peer.name}: {report.line(values)}")
        values = floor.measure(workload.name)
        if values is not None:
            results.add(workload.name, floor.name, values)


def _takes_part(workload: Workload, peer: Peer, round_: int, results: Results) -> bool:
    if isinstance(peer, Ganger):
        return True
    if workload.peers is not None and peer.name not in workload.peers:
        return False
    if why := peer.lacks.get(workload.name):
        note = f"{workload.name}: {peer.name} {why}"
        if note not in results.notes:
            results.notes.append(note)
        return False
    return workload.peer_rounds is None or round_ < workload.peer_rounds


def _measured(workload: Workload, peer: Peer, options: argparse.Namespace, results: Results) -> Values | None:
    jobs = (workload.quick if options.quick else None) or workload.jobs
    try:
        return workload.measure(peer, min(jobs, peer.jobs.get(workload.name, jobs), options.jobs or jobs))
    except (Broken, psycopg.Error, psutil.Error, OSError) as error:
        results.broken.append(f"broken: {workload.name} of {peer.name}: {type(error).__name__}: {error}")
        _say(f"{results.broken[-1]}\n{peer.rig.tail()}")
        return None


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
