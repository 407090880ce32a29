"""Processes by their pid, as /proc tells of them: whose children they are, what they call themselves."""

from __future__ import annotations

import os
from pathlib import Path


def send(pid: int, number: int) -> bool:
    """Signal a process; False where it is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def children(pid: int, command: str = "") -> list[int]:
    """The children of a process, those whose command line begins so; none where it is gone."""
    try:
        pids = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [each for each in pids if title(each).startswith(command)]


def title(pid: int) -> str:
    """What a process calls itself; empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
