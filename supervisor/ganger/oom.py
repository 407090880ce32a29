"""Whether the kernel has just killed something of ours because memory ran out: the counter of our control group tells.

The counter is the group's, and children are in the group of their supervisor; so where it has grown in the last moment
and a child died of a SIGKILL that nobody here has sent, it was the kernel. Where there is no counter, nothing is known.
Where slots have groups of their own (``ganger_child.leaf``), their counters say it for certain.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")
OURS: Final = Path("/proc/self/cgroup")
_WORD: Final = "oom_kill"


class OomKills:
    """``look`` is to be called each second or so; ``just_now`` is about the time since the look before the last one."""

    def __init__(self, root: Path = ROOT, ours: Path = OURS) -> None:
        self._counter = next((path for path in _counters(root, ours) if _count(path) is not None), None)
        self._older = self._newer = self._now()

    def look(self) -> None:
        self._older, self._newer = self._newer, self._now()

    def just_now(self) -> bool:
        return self._now() > self._older

    def killed(self, told: bool | None) -> bool:
        """Whether the child that has just ended was killed so: as its slot's own counter told, if it has one."""
        return self.just_now() if told is None else told

    def _now(self) -> int:
        count = None if self._counter is None else _count(self._counter)
        return 0 if count is None else count


def _counters(root: Path, ours: Path) -> list[Path]:
    """Where the counter may be: of control groups version 2, else 1; in a container its own group is the root. It is
    that of the unit where the supervisor was put into one below (systemd's ``DelegateSubgroup=``)."""
    found = []
    try:
        groups = [parts for line in ours.read_text().splitlines() if len(parts := line.split(":", 2)) == 3]
    except OSError:
        return []
    for _, controllers, group in groups:
        for place in (group.lstrip("/"), group.lstrip("/").rpartition("/")[0], ""):
            if controllers == "":
                found.append(root / place / "memory.events")
            elif "memory" in controllers.split(","):
                found.append(root / "memory" / place / "memory.oom_control")
    return found


def _count(path: Path) -> int | None:
    try:
        for line in path.read_text().splitlines():
            word, _, number = line.partition(" ")
            if word == _WORD:
                return int(number)
    except (OSError, ValueError):
        pass
    return None
