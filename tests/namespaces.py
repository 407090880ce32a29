"""Surroundings for a program that take root to make: other mounts, a PID namespace, a plain account, control groups.

Each function returns a prefix, the program and its arguments behind which another program is started. Where this
machine does not allow it, the test that asks is skipped, with a sentence.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

NOBODY = 64123  # an account that nobody has, so nobody else's processes are counted with it
ACCOUNT = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")


def prepared(setup: str, *flags: str) -> tuple[str, ...]:
    """Behind a shell that has carried out ``setup`` in namespaces of its own (``flags`` of unshare)."""
    if os.geteuid() != 0:
        pytest.skip("other mounts and namespaces take root")
    prefix = ("unshare", *flags, "sh", "-ec", setup + '\nexec "$@"', "sh")
    _try(prefix, "true")
    return prefix


def plain_account(setup: str = "") -> tuple[str, ...]:
    """As an account without privileges, after ``setup`` as root in mounts of its own."""
    if os.geteuid() != 0:
        if setup:
            pytest.skip("other mounts take root")
        return ()
    prefix = (*prepared(_open_way(Path(sys.base_prefix)) + setup, "--mount"), *ACCOUNT)
    _try(prefix, "sh", "-c", 'exec "$0" -c "import ganger, psycopg"', sys.executable)
    return prefix


def allow_processes(pid: int, count: int | None) -> None:
    """Limit how many processes there may be when this one, of a plain account, forks; None takes the limit away."""
    limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
    hard = next(line.split()[3] for line in limits if line.startswith("Max processes"))
    account = ACCOUNT if os.geteuid() == 0 else ()
    subprocess.run([*account, "prlimit", f"--pid={pid}", f"--nproc={hard if count is None else count}:"], check=True)


def control_group(kind: str, name: str) -> Path:
    """A new control group (version 1); whoever makes it removes it."""
    group = Path("/sys/fs/cgroup") / kind / name
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group for {kind} can be made here: {error}")
    return group


def _try(prefix: tuple[str, ...], *command: str) -> None:
    tried = subprocess.run([*prefix, *command], capture_output=True, text=True, cwd="/")
    if tried.returncode:
        pytest.skip(f"this machine does not allow it: {tried.stderr.strip()[-500:]}")


def _open_way(place: Path) -> str:
    """Where everybody may not enter a folder above ``place`` (root's home), put an empty one there that leads to it."""
    closed = next((folder for folder in reversed(place.parents) if not folder.stat().st_mode & 0o001), None)
    if closed is None:
        return ""
    there, above = shlex.quote(str(place)), shlex.quote(str(closed))
    return f"""
        held=$(mktemp -d)
        mount --bind {there} $held
        mount -t tmpfs -o mode=755 none {above}
        mkdir -p {there}
        mount --move $held {there}
        rmdir $held
    """
