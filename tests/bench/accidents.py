"""W6 and W7: how late a job is killed at its limit, and how soon a job runs again after a death."""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Final

import psutil

from tests.bench import jobs
from tests.bench.peers.base import Peer
from tests.bench.peers.ganger import Runner as Ganger
from tests.bench.rig import Broken, Fleet, await_
from tests.bench.throughput import Values
from tests.processes import alive

TIME_LIMIT: Final = 1.0  # seconds that a job of W6 may take
WATCHED: Final = 4.0  # seconds after which we call a job not killed
LIMITED: Final = ("loop", "rest", "gil", "tree")


def limits(peer: Peer, rounds: int) -> Values:
    """Jobs that do not end, one after the other; late is what of a job lives longer than its limit.

    A job is over when the handler was left (by an exception of the limit) or its process is gone, and everything that
    it started is gone too. What survives ``WATCHED`` has no lateness, and takes its worker with it.
    """
    late: dict[str, float | None] = {}
    left = 0
    rest = list(LIMITED)
    while rest:
        with peer.warm() as fleet:
            while rest:
                kind = rest.pop(0)
                late[kind], survivors = _limited(peer, fleet, kind, 100 + len(rest))
                left += survivors
                if late[kind] is None:
                    break
    known = [value for value in late.values() if value is not None]
    return {
        "late_s": statistics.median(known) if known else None,
        "worst_s": max(known) if len(known) == len(LIMITED) else None,
        "left": float(left),
        **{f"late_{kind}_s": value for kind, value in late.items()},
    }


def _limited(peer: Peer, fleet: Fleet, kind: str, number: int) -> tuple[float | None, int]:
    records = peer.rig.records
    peer.enqueue(kind, number, limit=TIME_LIMIT)
    start = records.await_start(number, 20)
    pids = await_(lambda: _started(number), 5, "what the job starts", 0.02) if kind == "tree" else []
    fleet.processes()  # known now, to be found and killed at the end
    due = start.at + TIME_LIMIT
    time.sleep(max(0.0, due - 0.02 - time.monotonic()))
    while time.monotonic() < due + WATCHED:
        done = not alive(start.pid) or any(r.number == number and r.tag != "S" for r in records.all())
        if done and not any(map(alive, pids)):
            return time.monotonic() - due, 0
        time.sleep(0.001)
    survivors = [pid for pid in [start.pid, *pids] if alive(pid)]
    for pid in pids:
        _kill(pid)
    return None, len(survivors)


def _started(number: int) -> list[int]:
    """The processes by which a job of the kind "tree" is known, once all three are there."""
    mark = jobs.mark(number)
    found = [p.pid for p in psutil.process_iter(["cmdline"]) if any(mark in word for word in p.info["cmdline"] or [])]
    return found if len(found) >= 3 else []


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


# ---------------------------------------------------------------------------------------------------------------------
# W7

LEASE: Final = 4.0  # seconds; of the supervisors that see another host die
PATIENCE: Final = 45.0  # seconds that a peer is waited for


def recovery(peer: Peer, rounds: int) -> Values:
    """The child that runs a job is killed; then what started it; then, for ganger, its whole host is lost.

    A peer's own parent is the process that it says it runs jobs under, and a new worker is started 1 s after the kill,
    as any service manager does.
    """
    if isinstance(peer, Ganger):
        return {
            "child_s": _ganger_child(peer),
            "parent_s": _ganger_parent(peer, together=True),
            "host_s": _ganger_parent(peer, together=False),
            "orphans": 0.0,
        }
    child, _ = _peer_dies(peer, lambda pid: pid)
    parent, orphans = _peer_dies(peer, lambda pid: psutil.Process(pid).ppid())
    return {"child_s": child, "parent_s": parent, "orphans": float(orphans)}


def _ganger_child(peer: Ganger) -> float:
    with peer.warm():
        peer.enqueue("rest", 1, job_type="again")
        start = peer.rig.records.await_start(1, 10)
        return _killed(peer, [start.pid], 10)


def _ganger_parent(peer: Ganger, *, together: bool) -> float:
    """Two supervisors with a slot each; the one that runs the job is killed. ``together``: on one host, as both see it.

    What two hosts do not share is the folder of lock files; the result is what the wait exceeds the lease by.
    """
    peer.reset()
    peer.rig.records.clear()
    command = peer.supervisor("--lease", str(LEASE), slots=1)
    folders = [peer.rig.folder / name for name in ("host", "host" if together else "other-host")]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    with (
        peer.supervisors(command, environ={"XDG_RUNTIME_DIR": str(folders[0])}) as first,
        peer.supervisors(command, environ={"XDG_RUNTIME_DIR": str(folders[1])}) as second,
    ):
        for number in range(4):
            peer.enqueue("nap", 100 + number)
        peer.rig.records.await_count(8, 30)
        await_(lambda: len({r.pid for r in peer.rig.records.starts()}) > 1, 10, "both supervisors at work")
        time.sleep(LEASE)  # each has seen the other's beat
        peer.enqueue("rest", 1, job_type="again")
        start = peer.rig.records.await_start(1, 10)
        owner = next(f for f in (first, second) if any(p.pid == start.pid for p in f.processes()))
        waited = _killed(peer, [owner.programs[0].pid], 60)
        return waited if together else waited - LEASE


def _peer_dies(peer: Peer, victim: Callable[[int], int]) -> tuple[float | None, int]:
    """Seconds from the kill to the job's next start (None: not within PATIENCE), and the processes left alone."""
    with peer.warm() as fleet:
        peer.enqueue("rest", 1)
        start = peer.rig.records.await_start(1, 20)
        fleet.processes()
        target = victim(start.pid)
        programs = {program.pid for program in fleet.programs}
        if target not in {process.pid for process in fleet.processes()}:  # the program itself runs the job
            target = start.pid
        os.kill(target, signal.SIGKILL)
        killed = time.monotonic()
        time.sleep(1.0)
        orphans = sum(1 for p in fleet.processes() if not _under(p, programs))
        with peer.running():
            try:
                again = peer.rig.records.await_start(1, PATIENCE, nth=2)
            except Broken:
                return None, orphans
            return again.at - killed, orphans


def _under(process: psutil.Process, programs: set[int]) -> bool:
    try:
        return process.pid in programs or any(parent.pid in programs for parent in process.parents())
    except psutil.Error:
        return True


def _killed(peer: Peer, pids: Sequence[int], limit: float) -> float:
    """Kill, and wait for the second start of the job number 1."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    return peer.rig.records.await_start(1, limit, nth=2).at - killed
