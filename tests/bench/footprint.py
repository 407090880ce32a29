"""W8, W9 and W10: what ganger costs while it does nothing, and what many slots cost.

Memory is USS, the pages that a process has for itself: what would be free if the tree were gone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Final

import psutil

from tests.bench.peers.base import Peer
from tests.bench.peers.ganger import Runner as Ganger
from tests.bench.rig import Fleet, await_, exact_cpu
from tests.bench.throughput import Values

WATCHED: Final = 10.0  # seconds over which idle or waiting processes are watched
HEAVY: Final = "tests.bench.heavy:handlers"


def uss_mb(fleet: Fleet) -> float:
    return sum(_uss(process) for process in fleet.processes()) / 1e6


def _uss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().uss)
    except psutil.Error:
        return 0


def at_rest(peer: Peer, rounds: int) -> Values:
    """Start to the first job's start; then memory and CPU of the idle tree whose slots have both worked."""
    peer.reset()
    peer.rig.records.clear()
    peer.enqueue("noop", 1)
    begin = time.monotonic()
    with peer.running() as fleet:
        first = peer.rig.records.await_start(1, 60).at - begin
        for number in range(6):
            peer.enqueue("nap", 100 + number)
        peer.rig.records.await_count(14, 60)
        time.sleep(3)
        memory = uss_mb(fleet)
        return {"first_s": first, "uss_mb": memory, "idle_cpu": _cpu_percent([p.pid for p in fleet.processes()])}


def _cpu_percent(pids: list[int]) -> float:
    before, begin = exact_cpu(pids), time.monotonic()
    time.sleep(WATCHED)
    return 100 * (exact_cpu(pids) - before) / (time.monotonic() - begin)


def heavy_imports(peer: Peer, rounds: int) -> Values:
    """A child is killed and replaced; eight idle children beside one; and what the import alone takes."""
    assert isinstance(peer, Ganger)
    begin = time.monotonic()
    subprocess.run([sys.executable, "-c", "import tests.bench.heavy"], check=True)
    imported = (time.monotonic() - begin) * 1000
    replaced, following = _replacement(peer)
    return {
        "replaced_ms": replaced,
        "next_ms": following,
        "child_mb": (_memory(peer, 8) - _memory(peer, 1)) / 7,
        "import_ms": imported,
    }


def _replacement(peer: Ganger) -> tuple[float, float]:
    """Milliseconds from the kill of a child to the next process in its slot, and to the start of the next job there."""
    peer.reset()
    peer.rig.records.clear()
    with peer.supervisors(peer.supervisor(slots=1, target=HEAVY)):
        peer.enqueue("rest", 1)
        start = peer.rig.records.await_start(1, 60)
        peer.enqueue("noop", 2)
        warden = psutil.Process(psutil.Process(start.pid).ppid())
        time.sleep(0.5)
        os.kill(start.pid, signal.SIGKILL)
        killed = time.monotonic()
        await_(lambda: _children(warden.pid) - {start.pid}, 10, "another child", 0.0005)
        replaced = time.monotonic() - killed
        following = peer.rig.records.await_start(2, 20).at - killed
    return replaced * 1000, following * 1000


def _children(pid: int) -> set[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return set(map(int, file.read().split()))


def _memory(peer: Ganger, slots: int) -> float:
    """USS of a tree with so many slots, all of whose children have run a job."""
    peer.reset()
    peer.rig.records.clear()
    with peer.supervisors(peer.supervisor(slots=slots, target=HEAVY)) as fleet:
        peer.fill("nap", 3 * slots)
        peer.rig.records.await_count(6 * slots, 60)
        time.sleep(2)
        return uss_mb(fleet)


def many_slots(peer: Peer, rounds: int) -> Values:
    assert isinstance(peer, Ganger)
    return {"cpu_64": _supervisor_cpu(peer, 64, "second", 64 * 40), "cpu_500": _supervisor_cpu(peer, 500, "rest", 500)}


def _supervisor_cpu(peer: Ganger, slots: int, kind: str, jobs: int) -> float:
    """The supervisor's own CPU, all its threads, while all slots are at work; a percentage of one core."""
    peer.reset()
    peer.rig.records.clear()
    peer.fill(kind, jobs)
    with peer.supervisors(peer.supervisor(slots=slots)) as fleet:
        peer.rig.records.await_count(slots, 120)
        time.sleep(3)
        return _cpu_percent([fleet.programs[0].pid])
