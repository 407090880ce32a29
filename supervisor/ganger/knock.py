"""How a command on this host asks a running supervisor itself, without the database in between.

A supervisor listens on an abstract Unix socket, named by its incarnation: no folder is needed, and nothing of it can
be left behind. Both sides look at who the kernel says the other one is. A question is one line of JSON, the answer is
as many as it takes, and then the end. What is said to whom is in ``door``.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

PATIENCE: Final = 5.0  # seconds until a supervisor must have answered, where it does not wait for a job
_CREDENTIALS: Final = struct.Struct("3i")


class NotHere(Exception):
    """No such supervisor can be asked from here; the message says why."""


def address(incarnation: UUID) -> str:
    """Where a supervisor listens, in the network namespace that it runs in."""
    return f"\0ganger-{incarnation}"


def user_of(peer: socket.socket) -> int:
    """The number of the user at the other end, as the kernel knows it."""
    seen = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(seen)[1])


def ask(
    incarnation: UUID, question: str, job_id: UUID, *, patience: float | None = PATIENCE
) -> Iterator[dict[str, Any]]:
    """Ask, and give the words of the answer as they come. ``patience`` (seconds) is between two words; None: no limit.

    Raises NotHere, also for what the supervisor refuses.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.settimeout(PATIENCE)
        try:
            door.connect(address(incarnation))
        except OSError:
            raise NotHere("it is not on this host, or in another container or network namespace of it") from None
        if os.geteuid() not in (0, user_of(door)) and user_of(door) != 0:
            raise NotHere(f"something of another user (uid {user_of(door)}) listens in its place")
        with suppress(OSError):  # it has refused already, and says why
            door.sendall(json.dumps({"ask": question, "job_id": str(job_id)}).encode() + b"\n")
        door.settimeout(patience)
        try:
            with door.makefile("r", encoding="utf-8", newline="\n") as words:
                for line in words:
                    word = json.loads(line)
                    if "refused" in word:
                        raise NotHere(str(word["refused"]))
                    yield word
        except TimeoutError:
            raise NotHere(f"it has not answered within {PATIENCE:g} s") from None
        except (OSError, ValueError):  # it ended in the middle of a word
            return
