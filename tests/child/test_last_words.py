"""The end of a connection: what a peer said before it was gone is heard, whatever the socket says first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ganger_child.wire import Channel, pair

ROOT = Path(__file__).resolve().parents[2]
PEER = """
import os, socket, sys
from ganger_child.wire import Channel
wire = Channel(socket.socket(fileno=int(sys.argv[1])))
wire.send("first")
wire.send("last", b"x" * 200_000)
os._exit(0)
"""


def test_a_peer_that_ended_with_something_unread_is_heard_to_its_last_word() -> None:
    """Correction 8: its exit makes the first receive fail with ECONNRESET, while its result is still queued; only then
    comes the end, and the end says nothing about the result.
    """
    one, other = pair()
    ours = Channel(one)
    ours.send("never read")
    ours.send("nor this")
    done = subprocess.run(
        [sys.executable, "-c", PEER, str(other.fileno())],
        pass_fds=[other.fileno()],
        env={**os.environ, "PYTHONPATH": str(ROOT / "worker_child")},
        timeout=60,
    )
    assert done.returncode == 0
    other.close()
    received = ours.receive()
    assert [(message.op, len(message.body)) for message in received.messages] == [("first", 0), ("last", 200_000)]
    assert received.closed
    assert ours.receive().closed
    assert not ours.send("to nobody")
    ours.close()
