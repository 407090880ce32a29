"""The processes of this host: whose they are by their titles, and what they use.

On Linux this reads /proc itself: psutil took 80 ms for 290 processes where this takes 14, and a look each second may
take 50 at most. The whole of /proc is read only every few seconds; in between, only what is known to be ours. Elsewhere
psutil is asked. A process that ends while it is being looked at is not there.

This file may not know the database.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from ganger.top.model import Local, Process, Slot, Supervisor
from ganger_child import titles
from ganger_child.titles import Title

ALL_EVERY = 3.0  # seconds between two looks at all processes
YOUNG = 10.0  # seconds in which a process may still get its title
LONGEST_NAME = 120  # characters of a command line
CHANGING = ("supervisor", "warden")  # whose titles change from second to second


@dataclass(slots=True)
class _Seen:
    """A process as it was last looked at. ``born`` tells it from another one with the same pid."""

    pid: int
    parent: int
    born: float
    cpu_s: float
    rss: int
    at: float  # monotonic
    words: str = ""
    title: Title | None = None
    cpu: float | None = None  # percent of a core, between the last two looks
    below: list[_Seen] = field(default_factory=list)


class Processes:
    """Looks again and again; CPU is what was used since the look before."""

    def __init__(self) -> None:
        self.host = socket.gethostname()
        self._seen: dict[int, _Seen] = {}
        self._ours: set[int] = set()
        self._all_at = -ALL_EVERY

    def look(self) -> Local:
        now = time.monotonic()
        everything = now - self._all_at >= ALL_EVERY
        if everything:
            self._all_at = now
        self._read(_pids() if everything else list(self._ours), now, everything)
        roots = self._tree()
        self._ours = {seen.pid for root in roots for seen, _ in _walk(root)} | {
            seen.pid for seen in self._seen.values() if _age(seen.born) < YOUNG
        }
        return self._told(roots)

    # ---- read --------------------------------------------------------------------------------------------------------

    def _read(self, pids: Iterable[int], now: float, everything: bool) -> None:
        """Renew what is known of these pids, and forget the others."""
        known, self._seen = self._seen, {}
        for pid in pids:
            figures = _figures(pid)
            if figures is None:
                continue
            parent, cpu_s, born, rss = figures
            before = known.get(pid)
            if before is None or before.born != born:
                seen = _Seen(pid, parent, born, cpu_s, rss, now)
            else:
                seen = before
                if now > before.at:
                    seen.cpu = max(0.0, 100 * (cpu_s - before.cpu_s) / (now - before.at))
                seen.parent, seen.cpu_s, seen.rss, seen.at = parent, cpu_s, rss, now
            changes = _role(seen) in CHANGING or (everything and seen.title is not None)
            if seen is not before or changes or _age(born) < YOUNG:
                seen.words = _words(pid)
                seen.title = titles.parse(seen.words)
            self._seen[pid] = seen

    def _tree(self) -> list[_Seen]:
        """Who is below whom; the roots are the templates (whatever started them), and supervisors without one."""
        for seen in self._seen.values():
            seen.below = []
        for seen in self._seen.values():
            above = self._seen.get(seen.parent)
            if above is not None:
                above.below.append(seen)
        return [seen for seen in self._seen.values() if seen.title and seen.title.role in ("supervisor", "template")]

    # ---- tell --------------------------------------------------------------------------------------------------------

    def _told(self, roots: list[_Seen]) -> Local:
        supervisors = {seen.pid: _supervisor(seen, self.host) for seen in roots if _role(seen) == "supervisor"}
        slots, idle = [], 0
        busy: dict[int, int] = defaultdict(int)
        for seen in self._seen.values():
            if _role(seen) != "warden":
                continue
            by = self._supervisor_of(seen)
            if by is not None and by not in supervisors:  # an application that has one inside
                supervisors[by] = Supervisor(f"pid {by}", self.host, by, "embedded", 0, 0, seen=True)
            name = supervisors[by].name if by is not None else "none"
            title = seen.title
            assert title is not None
            if title.job_type is None:
                idle += 1
            else:
                slots.append(_slot(seen, title, name, self.host))
            if by is not None:
                busy[by] += title.job_type is not None
                if supervisors[by].phase == "embedded":
                    one = supervisors[by]
                    supervisors[by] = replace(one, running=busy[by], slots=one.slots + 1)
        return Local(self.host, tuple(supervisors.values()), tuple(slots), idle)

    def _supervisor_of(self, warden: _Seen) -> int | None:
        """The pid of the process that has started the template of a warden."""
        above = self._seen.get(warden.parent)
        while above is not None and _role(above) != "template":
            above = self._seen.get(above.parent)
        return None if above is None else above.parent


def _role(seen: _Seen) -> str | None:
    return seen.title.role if seen.title else None


def _supervisor(seen: _Seen, host: str) -> Supervisor:
    title = seen.title
    assert title is not None
    return Supervisor(
        name=title.name, host=host, pid=seen.pid, phase=title.phase or "?", running=title.running or 0,
        slots=title.slots or 0, lanes=title.lanes, seen=True,
    )  # fmt: skip


def _slot(warden: _Seen, title: Title, supervisor: str, host: str) -> Slot:
    below = [Process(seen.pid, depth - 1, _name(seen), seen.cpu, seen.rss) for seen, depth in _walk(warden) if depth]
    measured = [one.cpu for one in below if one.cpu is not None]
    return Slot(
        supervisor=supervisor, host=host, slot=title.name, job_type=title.job_type or "", short_id=title.job_id or "",
        attempt=title.attempt or 1, age=title.age or 0.0, limit=title.limit, progress=title.progress,
        stalled=title.stalled,
        cpu=sum(measured) if measured else None, rss=sum(one.rss for one in below), processes=tuple(below),
    )  # fmt: skip


def _name(seen: _Seen) -> str:
    return (seen.words or _words(seen.pid) or "?")[:LONGEST_NAME]


def _walk(root: _Seen, depth: int = 0) -> Iterator[tuple[_Seen, int]]:
    yield root, depth
    for seen in sorted(root.below, key=lambda one: one.pid):
        yield from _walk(seen, depth + 1)


# ---------------------------------------------------------------------------------------------------------------------
# One process: (parent, CPU seconds, birth, resident bytes), or None where it is gone or cannot be read

if sys.platform == "linux":
    _TICK = 1 / os.sysconf("SC_CLK_TCK")
    _PAGE = os.sysconf("SC_PAGE_SIZE")

    def _pids() -> list[int]:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]

    def _file(path: str) -> bytes:
        """What is in a small file of /proc; half the price of ``open``. Raises OSError."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, 4096)
        finally:
            os.close(fd)

    def _figures(pid: int) -> tuple[int, float, float, int] | None:
        try:
            text = _file(f"/proc/{pid}/stat")
        except OSError:
            return None
        words = text[text.rindex(b")") + 2 :].split(None, 22)  # the name before it may hold anything
        if words[0] in b"ZX":
            return None
        return int(words[1]), (int(words[11]) + int(words[12])) * _TICK, float(words[19]), int(words[21]) * _PAGE

    def _age(born: float) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME) - born * _TICK

    def _words(pid: int) -> str:
        try:
            return _line(_file(f"/proc/{pid}/cmdline"))
        except OSError:
            return ""

else:
    import psutil

    def _pids() -> list[int]:
        return psutil.pids()

    def _figures(pid: int) -> tuple[int, float, float, int] | None:
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                used = process.cpu_times()
                return process.ppid(), used.user + used.system, process.create_time(), process.memory_info().rss
        except psutil.Error:
            return None

    def _age(born: float) -> float:
        return time.time() - born

    def _words(pid: int) -> str:
        try:
            return _line(" ".join(psutil.Process(pid).cmdline()).encode())
        except psutil.Error:
            return ""


def _line(raw: bytes) -> str:
    """A command line as one line that a terminal can show."""
    text = raw.rstrip(b"\0 ").replace(b"\0", b" ").decode("utf-8", "replace")
    return "".join(character if character.isprintable() else "?" for character in text)
