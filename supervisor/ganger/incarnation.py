"""The lock file by which an incarnation of the supervisor is known to be gone, all of it.

Supervisor, template, wardens and children hold the same ``flock``, taken once and inherited as a descriptor. Whoever
on this host finds the file and can lock it knows that none of them is left, whatever their pids were; so it may take
their jobs at once and need not wait for the lease. A file that is not found says nothing: another host, container or
user. Hence only its owner ever creates it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Incarnation:
    """A held lock. ``fd`` is close-on-exec; it is passed to the template, and on from there."""

    uuid: UUID
    path: Path
    fd: int

    def remove(self) -> None:
        """Take the file away: no job in the database is this incarnation's any more."""
        with suppress(FileNotFoundError):
            self.path.unlink()

    def close(self) -> None:
        """Let go of the lock. Where the file was not removed, who finds it may take the jobs at once."""
        os.close(self.fd)


def create(uuid: UUID) -> Incarnation | None:
    """Make and lock the file of this incarnation; None where no folder for it can be written."""
    for folder in _folders():
        with suppress(OSError):
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
                folder.chmod(0o700)  # whatever our umask is
            if not _is_ours(folder):
                continue
            path = folder / str(uuid)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.fchmod(fd, 0o600)
                flock(fd, LOCK_EX | LOCK_NB)
            except OSError:  # a file system without locks
                os.close(fd)
                path.unlink()
                raise
            return Incarnation(uuid, path, fd)
    return None


def vacant(uuid: UUID) -> bool:
    """Tell whether that incarnation was on this host and is gone to its last process. If so, its file is removed."""
    for folder in _folders():
        path = folder / str(uuid)
        with suppress(OSError):
            if not _is_ours(folder):
                continue
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                flock(fd, LOCK_EX | LOCK_NB)  # fails while anybody of them lives
                path.unlink()
                return True
            finally:
                os.close(fd)
    return False


def _folders() -> Iterator[Path]:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        yield Path(runtime) / "ganger"
    yield Path("/run/ganger")
    yield Path(f"/tmp/ganger-{os.geteuid()}")


def _is_ours(folder: Path) -> bool:
    """A folder that another user made, or may write, could hold anything."""
    seen = folder.lstat()
    return stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid() and not seen.st_mode & 0o077
