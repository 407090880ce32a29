"""The processes below this one, seen through /proc: who they are, whether they work, what they hold, and their end.

The caller is a subreaper, so whatever a job starts stays below it, in whatever session it hides. Three things are
done with that tree: *end* it to a fixpoint, *sample* whether it computes or waits, and *measure* the memory it holds
for itself. Nothing here sends messages or knows of jobs, and nothing is bound after user code could replace it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from os import (
    O_CLOEXEC,
    O_RDONLY,
    close,
    getpid,
    listdir,
    pidfd_open,
    read,
    sysconf,
)
from os import open as os_open
from os.path import exists
from signal import SIGKILL, SIGSTOP, pidfd_send_signal
from time import monotonic, sleep
from typing import Final, NamedTuple

_TICK: Final = 1.0 / sysconf("SC_CLK_TCK")
_PAGE: Final = sysconf("SC_PAGE_SIZE")
_KIB: Final = 1024
_HAS_CHILDREN: Final = exists(f"/proc/self/task/{getpid()}/children")  # not in every kernel
_SWEEPS: Final = 20  # a tree that grows while it is being stopped is looked through this often in one round


# ---------------------------------------------------------------------------------------------------------------------
# Who they are


class Stat(NamedTuple):
    """The part of /proc/PID/stat that matters here."""

    state: str
    parent: int
    major_faults: int
    cpu_s: float  # its own, and that of its children that were waited for
    waited_cpu_s: float  # only the latter
    stack: int  # where its stack starts: the same after a fork, another after an exec


def contents(path: str, folder: int | None = None) -> bytes:
    """Read a file that the kernel makes up, in an open folder or by its whole path. Raises OSError, also where what it
    tells of is gone."""
    fd = os_open(path, O_RDONLY | O_CLOEXEC, dir_fd=folder)
    try:
        parts = []
        while part := read(fd, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    finally:
        close(fd)


def stat(pid: int) -> Stat | None:
    """Look at one process; None where it is gone or cannot be read."""
    try:
        content = contents(f"/proc/{pid}/stat")
    except OSError:
        return None
    fields = content[content.rindex(b")") + 2 :].split()  # a command's name may hold blanks and parentheses
    user, system, waited_user, waited_system = (int(ticks) * _TICK for ticks in fields[11:15])
    waited = waited_user + waited_system
    return Stat(fields[0].decode(), int(fields[1]), int(fields[9]), user + system + waited, waited, int(fields[25]))


def children(pid: int) -> list[int]:
    """The children of a process, those of all its threads. Empty where it is gone."""
    if not _HAS_CHILDREN:
        return [other for other in _all_pids() if (seen := stat(other)) is not None and seen.parent == pid]
    found: list[int] = []
    try:
        for task in listdir(f"/proc/{pid}/task"):
            found.extend(map(int, contents(f"/proc/{pid}/task/{task}/children").split()))
    except OSError:
        pass  # it or one of its threads ended meanwhile: whoever needs certainty looks again
    return found


def descendants(pid: int, spare: Collection[int] = ()) -> list[int]:
    """Everything below a process, except ``spare`` and what is below those; parents before their children."""
    found: dict[int, None] = {}
    queue = [pid]
    while queue:
        for child in children(queue.pop()):
            if child not in found and child not in spare:
                found[child] = None
                queue.append(child)
    return list(found)


def _all_pids() -> list[int]:
    return [int(name) for name in listdir("/proc") if name.isdigit()]


# ---------------------------------------------------------------------------------------------------------------------
# Their end


@dataclass(slots=True)
class Ended:
    """What ending a tree came to: the pids that were killed, and those that are still there after the bound."""

    killed: set[int] = field(default_factory=set)
    survivors: tuple[int, ...] = ()


def end_all(reap: Callable[[], bool], bound: float, spare: Collection[int] = ()) -> Ended:
    """Kill everything below this process until nothing is left, for at most ``bound`` seconds.

    ``reap`` waits, without blocking, for whatever has ended, and tells whether nothing is left. One pass is not
    enough: a process may fork between being seen and being killed. So all are stopped first, looked for again until
    no new one shows up, then killed; their orphans come to us, and it begins again until there are none.
    """
    ended = Ended()
    me = getpid()
    deadline = monotonic() + bound
    pause = 0.0005
    while not reap():
        for pid in _stop_all(me, spare):
            if _signal(pid, SIGKILL):
                ended.killed.add(pid)
        if reap():
            break
        if monotonic() > deadline:
            ended.survivors = tuple(descendants(me, spare))
            break
        sleep(pause)
        pause = min(2 * pause, 0.01)
    return ended


def _stop_all(me: int, spare: Collection[int]) -> list[int]:
    """Stop everything below us, until a look finds nobody new. Returns all that were seen."""
    stopped: dict[int, None] = {}
    for _ in range(_SWEEPS):
        new = [pid for pid in descendants(me, spare) if pid not in stopped]
        if not new:
            break
        for pid in new:
            _signal(pid, SIGSTOP)
            stopped[pid] = None
    return list(stopped)


def _signal(pid: int, signum: int) -> bool:
    """Signal a process that was seen below us, unless it has ended; true if the signal was sent.

    Between the look and the signal it may end and its number go to a stranger. So the process is first held by a
    descriptor, and then looked at again: if a stranger has the number now, its ancestors do not lead to us.
    """
    try:
        held = pidfd_open(pid)
    except OSError:
        return False
    try:
        seen = stat(pid)
        if seen is None or seen.state in "ZX" or not _is_below_us(seen):
            return False
        pidfd_send_signal(held, signum)
        return True
    except OSError:  # gone, or (a setuid program) not ours to signal
        return False
    finally:
        close(held)


def _is_below_us(seen: Stat | None) -> bool:
    me = getpid()
    while seen is not None and seen.parent > 0:
        if seen.parent == me:
            return True
        seen = stat(seen.parent)
    return False


# ---------------------------------------------------------------------------------------------------------------------
# Whether they work

WINDOW: Final = 0.5  # seconds between two samples; under 0.3 the clock ticks of the kernel are noise
SETTLED: Final = 3  # so many windows in a row until a tree counts as blocked, and before anything is said at all
_BUSY: Final = 0.15  # of one core
_QUIET: Final = 0.05
_BUSY_BYTES: Final = 512 * _KIB  # per second, to or from a disk
_BUSY_FAULTS: Final = 20  # per second, that needed the disk


@dataclass(frozen=True, slots=True)
class _Sample:
    at: float
    tasks: dict[str, int]  # nanoseconds that each thread ran or waited for a core
    cpu_s: float
    faults: int
    disk_bytes: int
    waits_for_disk: bool  # a process in state D
    stopped: bool


class Sampler:
    """Says whether everything below this process computes or is blocked, from one sample each ``WINDOW`` seconds.

    A tree computes that used 15 % of a core, or was ready to use it and got none; 5 % and less is blocked, and
    between the two it stays what it was. Reading and writing at speed, and state D, count as work too. Work done
    elsewhere (in a database, on a GPU) looks blocked: that cannot be seen from here.
    """

    def __init__(self) -> None:
        self._last = _sample(monotonic())
        self._busy = True  # what the present stretch looks like
        self._since = self._last.at
        self._windows = 0  # of the present stretch
        self._seen = 0
        self._verdict: bool | None = None

    def sample(self) -> tuple[bool, float] | None:
        """Take a sample. Returns (computing, since) for the first verdict and each change, None otherwise.

        ``since`` is the monotonic time at which the busy or quiet stretch began.
        """
        now = _sample(monotonic())
        before, self._last = self._last, now
        if now.stopped:  # SIGSTOP: neither; it will be continued or killed
            return None
        busy = _is_busy(before, now)
        if busy is None:
            busy = self._busy
        if busy != self._busy:
            self._busy, self._since, self._windows = busy, before.at, 0
        self._windows += 1
        self._seen += 1
        verdict = self._judge()
        if verdict is None or verdict == self._verdict:
            return None
        self._verdict = verdict
        return verdict, self._since

    @property
    def quiet_since(self) -> float | None:
        """Since when (monotonic) nothing was computed; None while something is, and where that is not sure yet."""
        return None if self._busy or self._windows < SETTLED else self._since

    def _judge(self) -> bool | None:
        if self._seen < SETTLED:
            return None
        if self._busy:
            return True
        if self._windows >= SETTLED:
            return False
        return True if self._verdict is None else self._verdict


def _is_busy(before: _Sample, now: _Sample) -> bool | None:
    """Compare two samples: true for busy, false for quiet, None for between."""
    seconds = max(now.at - before.at, 0.001)
    # A thread that is new has done all its work in this window. One that has ended is missed here, but its time is in
    # its process's, and a process that was waited for is in its parent's: the sum over the tree only grows.
    ran = sum(ns - before.tasks.get(task, 0) for task, ns in now.tasks.items()) / 1e9
    share = max(ran, now.cpu_s - before.cpu_s) / seconds
    if (
        share >= _BUSY
        or now.waits_for_disk
        or now.disk_bytes - before.disk_bytes > _BUSY_BYTES * seconds
        or now.faults - before.faults > _BUSY_FAULTS * seconds
    ):
        return True
    return False if share <= _QUIET else None


def _sample(at: float) -> _Sample:
    me = getpid()
    own = stat(me)
    cpu_s = own.waited_cpu_s if own else 0.0  # of orphans that ended: they were ours to wait for
    tasks: dict[str, int] = {}
    faults = disk_bytes = 0
    waits_for_disk = False
    states = []
    for pid in descendants(me):
        seen = stat(pid)
        if seen is None:
            continue
        states.append(seen.state)
        cpu_s += seen.cpu_s
        faults += seen.major_faults
        waits_for_disk = waits_for_disk or seen.state == "D"
        disk_bytes += _disk_bytes(pid)
        _add_tasks(pid, tasks)
    alive = [state for state in states if state not in "ZX"]
    stopped = bool(alive) and all(state in "Tt" for state in alive)
    return _Sample(at, tasks, cpu_s, faults, disk_bytes, waits_for_disk, stopped)


def _add_tasks(pid: int, tasks: dict[str, int]) -> None:
    try:
        for task in listdir(f"/proc/{pid}/task"):
            ran, waited, _ = contents(f"/proc/{pid}/task/{task}/schedstat").split()
            tasks[task] = int(ran) + int(waited)
    except (OSError, ValueError):
        pass  # gone meanwhile, or a kernel without it: then the clock ticks alone decide


def _disk_bytes(pid: int) -> int:
    try:
        lines = contents(f"/proc/{pid}/io").splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith((b"read_bytes", b"write_bytes")))
    except (OSError, ValueError):
        return 0


# ---------------------------------------------------------------------------------------------------------------------
# What they hold


def resident(pids: Iterable[int]) -> int:
    """An upper bound, cheaply: resident and swapped bytes of the processes, with all that they share counted often."""
    total = 0
    for pid in pids:
        try:
            total += int(contents(f"/proc/{pid}/statm").split()[1]) * _PAGE + _swapped(pid)
        except (OSError, ValueError, IndexError):
            continue
    return total


def _swapped(pid: int) -> int:
    for line in contents(f"/proc/{pid}/status").splitlines():
        if line.startswith(b"VmSwap"):
            return int(line.split()[1]) * _KIB
    return 0


def held(limit: int) -> int:
    """The bytes that everything below this process holds for itself, not shared with template and warden.

    A page that is shared inside the tree is nobody's private page, and one shared with the template is not the job's.
    So it is the larger of the private pages, and of the proportional ones less what this process, which shares just
    those pages, has of them itself, once for each member that was forked and not exec'd. Reading that takes
    milliseconds: where even the plain resident size is under ``limit``, that is the answer.
    """
    me = getpid()
    members = descendants(me)
    plain = resident(members)
    if plain <= limit:
        return plain
    own = stat(me)
    own_share = _rollup(me)[1]
    private = proportional = 0
    for pid in members:
        its_private, its_share = _rollup(pid)
        private += its_private
        proportional += its_share
        seen = stat(pid)
        if own is not None and seen is not None and seen.stack == own.stack != 0:
            proportional -= min(own_share, its_share)
    return max(private, proportional)


def _rollup(pid: int) -> tuple[int, int]:
    """Private bytes, and proportional ones with swap."""
    values: dict[bytes, int] = {}
    try:
        for line in contents(f"/proc/{pid}/smaps_rollup").splitlines()[1:]:
            name, _, rest = line.partition(b":")
            values[name] = int(rest.split()[0]) * _KIB
    except (OSError, ValueError, IndexError):
        return 0, 0
    private = values.get(b"Private_Clean", 0) + values.get(b"Private_Dirty", 0)
    return private, values.get(b"Pss", 0) + values.get(b"SwapPss", 0)
