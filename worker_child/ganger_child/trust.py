"""The page on which the supervisor tells its wardens until when the lease on its jobs can be trusted.

One number, a time on CLOCK_BOOTTIME (it runs on while the host is suspended), infinite until there is a lease. The
supervisor writes it after each renewal; past it, a warden kills its run by itself, so a supervisor that is stopped or
hangs cannot keep a run that somebody else may take. The wardens can only read it.
"""

from __future__ import annotations

from fcntl import F_ADD_SEALS, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, fcntl
from math import inf
from mmap import PROT_READ, mmap
from os import MFD_ALLOW_SEALING, MFD_CLOEXEC, O_CLOEXEC, O_RDONLY, close, ftruncate, memfd_create
from os import open as os_open
from time import CLOCK_BOOTTIME, clock_gettime
from typing import Final

_SIZE: Final = 4096


class TrustWriter:
    """The supervisor's side. ``reading_end`` is a descriptor that can only be read (close-on-exec)."""

    def __init__(self) -> None:
        fd = memfd_create("ganger-trust", MFD_CLOEXEC | MFD_ALLOW_SEALING)
        try:
            ftruncate(fd, _SIZE)
            fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
            self._map = mmap(fd, _SIZE)
            self.reading_end = os_open(f"/proc/self/fd/{fd}", O_RDONLY | O_CLOEXEC)
        finally:
            close(fd)
        self._word = memoryview(self._map).cast("d")
        self.until(inf)

    def until(self, boot: float) -> None:
        """Trust the lease until this time on CLOCK_BOOTTIME, in seconds."""
        self._word[0] = boot

    def close(self) -> None:
        close(self.reading_end)
        self._word.release()
        self._map.close()


class TrustReader:
    """A warden's side. Takes the descriptor and closes it: what is mapped is enough."""

    def __init__(self, fd: int) -> None:
        self._map = mmap(fd, _SIZE, prot=PROT_READ)
        close(fd)
        self._word = memoryview(self._map).cast("d")

    def remaining(self) -> float:
        """Seconds of trust that are left; negative where it has ended."""
        return self._word[0] - clock_gettime(CLOCK_BOOTTIME)

    def close(self) -> None:
        self._word.release()
        self._map.close()
