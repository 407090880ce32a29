"""What the service manager is told (sd_notify): ready, status, watchdog, reloading, stopping, and that a shutdown takes
longer.

systemd gives the address of a datagram socket in NOTIFY_SOCKET. The loop calls ``turn`` whenever it turns, so that a
watchdog is only fed by a loop that lives. A send never waits, and whatever becomes of it disturbs nobody: a service
manager that does not listen is no reason to lose a job.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from typing import Final

from ganger.core.messages import Now
from ganger.health import TURN, Health

VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
BEFORE_READY: Final = 0.1  # seconds between looks whether it is ready
LEAST: Final = 0.05  # seconds between two signs of life, however short the watchdog's patience
EXTENSION: Final = 30.0  # seconds more that are asked for, while it drains or waits for its database
EXTEND_EVERY: Final = 5.0


class Notifier:
    """``address`` as in NOTIFY_SOCKET: a path, or @name for an abstract socket. ``watchdog``: seconds within which the
    service manager wants a sign of life; None: it does not."""

    def __init__(self, address: str, watchdog: float | None = None) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._beats = None if watchdog is None else max(LEAST, watchdog / 2)
        self._next = 0.0  # when (mono) there is something to look at
        self._beat_at = self._extend_at = 0.0
        self._ready = self._stopping = self._reloading = False
        self._reloads = 0  # of which was told
        self._status = ""

    def turn(self, now: Now, health: Health) -> float:
        """Say what is due. Returns the seconds until the next call is wanted."""
        if now.mono < self._next:
            return self._next - now.mono
        words: list[str] = []
        if not self._ready and health.not_ready(now) is None:
            self._ready = True
            self._reloads = health.reloads
            words.append("READY=1")
        if health.draining:
            words += self._leaving(now)
        elif self._ready:
            self._tell_reloads(now, health)
        if health.status != self._status:
            self._status = health.status
            words.append(f"STATUS={self._status}")
        if self._beats is not None and now.mono >= self._beat_at:
            self._beat_at = now.mono + self._beats
            words.append("WATCHDOG=1")
        self._send(words)
        self._next = now.mono + (TURN if self._ready else BEFORE_READY)
        if self._beats is not None:
            self._next = min(self._next, self._beat_at)
        return self._next - now.mono

    def waits(self, now: Now, status: str) -> None:
        """Say that the start takes longer, because of this."""
        if now.mono >= self._extend_at:
            self._extend_at = now.mono + EXTEND_EVERY
            self._send([_extend(), f"STATUS={status}"])

    def close(self) -> None:
        self._socket.close()

    def _leaving(self, now: Now) -> list[str]:
        words = [] if self._stopping else ["STOPPING=1"]
        if not self._stopping or now.mono >= self._extend_at:
            self._stopping = True
            self._extend_at = now.mono + EXTEND_EVERY
            words.append(_extend())
        return words

    def _tell_reloads(self, now: Now, health: Health) -> None:
        """That the handlers are loaded anew, and that this is over, whatever came of it. Each is a message of its own:
        in one, READY=1 may stand above the other and be taken for no answer."""
        if health.reloads != self._reloads:
            self._reloads = health.reloads
            self._reloading = True
            self._send(["RELOADING=1", f"MONOTONIC_USEC={now.mono * 1e6:.0f}"])
        if self._reloading and not health.loading:
            self._reloading = False
            self._send(["READY=1"])

    def _send(self, words: list[str]) -> None:
        if not words:
            return
        try:
            self._socket.sendto("\n".join(words).encode(), self._address)
        except (OSError, ValueError):  # nobody listens, its buffer is full, or this is no address
            pass


def _extend() -> str:
    return f"EXTEND_TIMEOUT_USEC={EXTENSION * 1e6:.0f}"


def take_notifier(environ: MutableMapping[str, str]) -> Notifier | None:
    """Make one from the environment, if a service manager wants to be told. The variables are taken out: what we start
    does not speak for us."""
    address, usec, pid = (environ.pop(name, "") for name in VARIABLES)
    if not address.startswith(("/", "@")):
        return None
    ours = usec.isdecimal() and int(usec) > 0 and pid in ("", str(os.getpid()))
    return Notifier(address, int(usec) / 1e6 if ours else None)
