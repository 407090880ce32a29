"""``scripts/bench``: every workload for ganger and the chosen peers, in the same run, taking turns.

Exit codes: 0, all ran and everything to be reached was; 3, something to be reached was missed; 1, something broke;
2, wrong usage.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.bench import report, soak
from tests.bench.floor import Floor
from tests.bench.growth import GROWTH
from tests.bench.peers import PEERS, QUICK, load
from tests.bench.peers.base import Peer
from tests.bench.peers.ganger import Runner as Ganger
from tests.bench.report import Results
from tests.bench.rig import FOLDER, Rig
from tests.bench.servers import Servers, servers, sweep
from tests.bench.throughput import Values
from tests.bench.workloads import WORKLOADS, Workload

ROUNDS, QUICK_ROUNDS = 5, 3


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # servers and workers end with us
    out: Path = options.output
    out.mkdir(parents=True, exist_ok=True)
    return _soak(options, out) if options.soak else _table(options, out)


def _table(options: argparse.Namespace, out: Path) -> int:
    results = Results()
    with _stage(options.peers, results) as (peers, floor):
        for workload in options.only:
            _take_turns(workload, peers, floor, options, results)
    text = report.markdown(options.only, results)
    (out / f"{options.name}.md").write_text(text)
    report.write_json(out / f"{options.name}.json", options.only, results)
    print(text)
    _draw(lambda picture: picture.bars(out / f"{options.name}.png", options.only, results))
    _say(f"Written: {out}/{options.name}.md, .json, .png")
    return report.exit_code(options.only, results)


def _soak(options: argparse.Namespace, out: Path) -> int:
    with _stage([], Results()) as (peers, _):
        assert isinstance(peers[0], Ganger)
        samples = soak.soak(peers[0], options.soak, _say)
    code = soak.write(out, samples)
    _draw(lambda picture: picture.soak(out / "soak.png", samples))
    _say(f"Written: {out}/soak.md, .json, .png")
    return code


def _draw(draw: Callable[[Any], None]) -> None:
    try:
        draw(importlib.import_module("tests.bench.picture"))
    except ImportError:
        _say("no picture: matplotlib is not installed here")


# ---------------------------------------------------------------------------------------------------------------------
# What is asked for


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Measure ganger beside other job queues.")
    names = ",".join(workload.name for workload in WORKLOADS)
    parser.add_argument("--peers", type=_peer_names, help=f"none, all, or some of {','.join(PEERS)} (default: all)")
    parser.add_argument("--only", type=_workloads, help=f"some of the workloads {names} (default: all)")
    parser.add_argument("--quick", action="store_true", help="a few small workloads beside two peers: minutes")
    parser.add_argument("--growth", action="store_true", help="more supervisors, a larger archive; no peers")
    soak_help = "full load for so long (30), with a transaction held open in the middle; no peers"
    parser.add_argument("--soak", type=float, nargs="?", const=30.0, metavar="MINUTES", help=soak_help)
    parser.add_argument("--rounds", type=int, help=f"rounds (default: {ROUNDS}, with --quick {QUICK_ROUNDS})")
    parser.add_argument("--jobs", type=int, help="at most so many jobs, to see whether all of it runs")
    parser.add_argument("-o", "--output", type=Path, default=Path("bench"), help="folder for the report (bench)")
    options = parser.parse_args(arguments)
    options.name, quick = "growth" if options.growth else "bench", options.quick
    if options.growth:
        options.peers, options.only = [], list(GROWTH)
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
def _stage(names: Iterable[str], results: Results) -> Iterator[tuple[list[Peer], Floor]]:
    sweep()
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER}{os.getpid()}-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o711)  # as root, PostgreSQL has another account
        rig = Rig(folder)
        stack.callback(rig.close)
        runners: list[type[Peer]] = [Ganger, *_installed(names, results)]
        found = stack.enter_context(servers(folder, redis=any(runner.needs_redis for runner in runners)))
        results.versions |= {"postgresql": found.postgres_version, "redis": found.redis_version or "none"}
        peers = []
        for runner in runners:
            if runner.needs_redis and found.redis is None:
                _note(results.notes, f"skipped: {runner.name} needs redis-server on PATH")
            elif peer := _made(runner, rig, found, results):
                stack.callback(peer.close)
                peers.append(peer)
                results.introduce(peer.name, peer.version, peer.settings, postgres=not peer.needs_redis)
        yield peers, Floor(found)


def _installed(names: Iterable[str], results: Results) -> Iterator[type[Peer]]:
    for name in names:
        try:
            yield load(name)
        except ImportError as error:
            _note(results.notes, f"skipped: {name} is not installed ({error})")


def _made(runner: type[Peer], rig: Rig, found: Servers, results: Results) -> Peer | None:
    try:
        return runner(rig, found)
    except Exception as error:  # whatever a peer raises, the others go on
        _note(results.broken, f"broken: {runner.name} cannot be set up: {type(error).__name__}: {error}")
        return None


def _note(notes: list[str], line: str) -> None:
    if line not in notes:
        notes.append(line)
        _say(line)


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
            results.add(workload.name, peer.name, values)
            _say(f"{workload.name} round {round_ + 1} {peer.name}: {report.line(values)}")
        if beneath := floor.measure(workload.name):
            results.add(workload.name, floor.name, beneath)


def _takes_part(workload: Workload, peer: Peer, round_: int, results: Results) -> bool:
    if isinstance(peer, Ganger):
        return True
    if workload.peers is not None and peer.name not in workload.peers:
        return False
    if why := peer.lacks.get(workload.name):
        _note(results.notes, f"{workload.name}: {peer.name} {why}")
        return False
    return workload.peer_rounds is None or round_ < workload.peer_rounds


def _measured(workload: Workload, peer: Peer, options: argparse.Namespace, results: Results) -> Values:
    """The values of one measurement; none if it broke, so that rounds stay in step."""
    jobs = (workload.quick if options.quick else None) or workload.jobs
    try:
        return workload.measure(peer, min(jobs, peer.jobs.get(workload.name, jobs), options.jobs or jobs))
    except Exception as error:  # whatever a peer raises, the others go on
        _note(results.broken, f"broken: {workload.name} of {peer.name}: {type(error).__name__}: {error}")
        _say(peer.rig.tail())
        return {}


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
