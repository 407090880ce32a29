"""Wall clocks that can jump, one per host and per server, without touching the machine's.

Setting the clock of a machine moves that of everybody on it, and a time namespace does not move CLOCK_REALTIME. So the
programs of a host are started with a small library before libc (clock.c, built here; needs a C compiler), which adds
what stands in the host's file. Where there is no compiler, clocks do not jump.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")


def build(folder: Path) -> Path | None:
    """Build the library; None where that cannot be done."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    library = folder / "clock.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
    if subprocess.run(command, capture_output=True).returncode:
        return None
    library.chmod(0o755)
    return library


class Clock:
    """One host's wall clock, as the seconds by which it differs from the machine's."""

    def __init__(self, library: Path | None, path: Path) -> None:
        self._library, self._path = library, path
        self.jumped = 0
        path.write_bytes(struct.pack("=q", 0))
        path.chmod(0o644)

    @property
    def environ(self) -> dict[str, str]:
        """What a program must have in its environment to go by this clock."""
        return {"LD_PRELOAD": str(self._library), "CHAOS_CLOCK": str(self._path)} if self._library else {}

    def jump(self, seconds: int) -> None:
        self.jumped += seconds
        with open(self._path, "r+b", buffering=0) as file:  # never truncated: others have it mapped
            file.write(struct.pack("=q", self.jumped))
