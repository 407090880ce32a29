"""A program in a terminal of its own, as a person has it: what it shows is read, keys are pressed."""

from __future__ import annotations

import errno
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).parent.parent

# Run in the new process: the terminal becomes its controlling one, so that Ctrl-C is a signal to its foreground group.
_TAKE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)
_COLOUR = re.compile("\x1b\\[[0-9;]*m")


class Terminal:
    """``python ARGUMENTS`` in a terminal. ``shown`` is all it has shown so far, without colours."""

    def __init__(self, *arguments: str, environ: Mapping[str, str], stops_writers: bool = False) -> None:
        self.shown = ""
        self._read_up_to = 0
        self._screen, terminal = pty.openpty()
        if stops_writers:  # stty tostop: those in the background
            modes = termios.tcgetattr(terminal)
            modes[3] |= termios.TOSTOP
            termios.tcsetattr(terminal, termios.TCSANOW, modes)
        paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "supervisor"), str(ROOT / "worker_child")])}
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _TAKE_TERMINAL, sys.executable, *arguments],
                stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True, cwd=ROOT,
                env={**os.environ, "TERM": "xterm", **paths, **environ},
            )  # fmt: skip
        finally:
            os.close(terminal)

    def expect(self, pattern: str, limit: float = 30.0) -> re.Match[str]:
        """Wait until the program shows something that matches, after what was expected before."""
        until = time.monotonic() + limit
        while not (match := re.compile(pattern, re.M).search(self.shown, self._read_up_to)):
            more = self._read(until - time.monotonic())
            ended = (
                f"the program ended (exit code {self.process.poll()})" if time.monotonic() < until else f"{limit:g} s"
            )
            assert more, f"{pattern!r} did not come before {ended} in:\n{self.shown}"
        self._read_up_to = match.end()
        return match

    def read_until(self, condition: Callable[[], object], limit: float = 30.0) -> None:
        """Read on (a program whose words nobody reads stops at some point) until the condition is true."""
        until = time.monotonic() + limit
        while not condition():
            assert time.monotonic() < until, f"not within {limit:g} s, in:\n{self.shown}"
            self._read(0.1)

    def press(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    def ctrl_c(self) -> None:
        self.press("\x03")

    def hang_up(self, limit: float = 30.0) -> int:
        """Close the terminal and wait for the program's end; its exit code."""
        self.close_window()
        return self.process.wait(limit)

    def close_window(self) -> None:
        """Close the terminal under the program."""
        os.close(self._screen)
        self._screen = -1

    def leave(self, limit: float = 30.0) -> int:
        """Read on until the program has ended; its exit code."""
        until = time.monotonic() + limit
        while self._read(until - time.monotonic()):
            pass
        return self.process.wait(max(0.1, until - time.monotonic()))

    def _read(self, limit: float) -> bool:
        """Wait for more to be shown; False if nothing came in time, or the program has gone."""
        if not select.select([self._screen], [], [], max(0.0, limit))[0]:
            return False
        try:
            data = os.read(self._screen, 65536)
        except OSError as error:
            if error.errno != errno.EIO:  # Linux' word for: no process has the terminal open any more
                raise
            data = b""
        text = _COLOUR.sub("", data.decode("utf-8", "replace"))
        self.shown += text.replace("\r\n", "\n")
        return bool(data)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if self._screen >= 0:
            os.close(self._screen)
