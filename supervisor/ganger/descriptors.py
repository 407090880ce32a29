"""Open files: how many this process needs for its slots, and how many it may have.

The soft limit is ours to raise, to what is needed and no further: everything below inherits it, and there are programs
that cannot take high numbers, or close all numbers one by one.
"""

from __future__ import annotations

import os
import resource
from typing import Final

from ganger.config import MOST_SLOTS, ConfigError

OWN: Final = 40  # that a supervisor needs at most
EACH: Final = 6  # and for each slot in addition
HTTP: Final = 20  # and where it serves HTTP


class Descriptors:
    """What is open when this is made is somebody else's; ``http`` is whether we are to serve HTTP too."""

    def __init__(self, *, http: bool = False) -> None:
        self._beside_slots = len(os.listdir("/proc/self/fd")) + OWN + (HTTP if http else 0)

    @property
    def most_slots(self) -> int:
        """For how many slots there is room."""
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if most == resource.RLIM_INFINITY:
            return MOST_SLOTS
        return min(MOST_SLOTS, (most - self._beside_slots) // EACH)

    def allow(self, slots: int) -> None:
        """Raise our limit to what so many slots need. Raises ConfigError where that is not allowed."""
        needed = self._beside_slots + EACH * slots
        limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if needed <= limit or limit == resource.RLIM_INFINITY:
            return
        if needed > most != resource.RLIM_INFINITY:
            raise ConfigError(
                f"{slots} slots need up to {needed} open files, and {most} are allowed: "
                "raise the hard limit (ulimit -n), or give fewer slots."
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, most))
