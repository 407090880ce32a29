"""What comes over the wire may be anything: it is a message or it is counted, and no descriptor stays open."""

from __future__ import annotations

import array
import json
import os
import socket
from collections.abc import Iterator
from fcntl import F_ADD_SEALS, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, fcntl
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ganger_child.wire import DATAGRAM, INLINE, Channel, Message, Received, WireError, pair, sealed

bounded = settings(deadline=None, derandomize=True, database=None, max_examples=150)


class Wire:
    """Two ends: one sends what it likes, the other receives as the parent does."""

    def __init__(self, limit: int = 1 << 20) -> None:
        ours, self.theirs = pair()
        self.channel = Channel(ours, limit=limit, credentials=True)

    def raw(self, data: bytes, *fds: int) -> None:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.theirs.sendmsg([data], ancillary)

    def take(self) -> Received:
        """Receive, and close what came as the receiver has to."""
        received = self.channel.receive()
        for message in received.messages:
            message.close()
        return received

    def message(self) -> Message:
        received = self.channel.receive()
        assert (len(received.messages), received.garbage) == (1, 0)
        return received.messages[0]

    def close(self) -> None:
        self.theirs.close()
        self.channel.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[Wire]:
    """For many examples; each leaves it empty."""
    made = Wire()
    yield made
    made.close()


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def no_descriptor_stays(request: pytest.FixtureRequest) -> Iterator[None]:
    """As many as before; the two of a wire are open at both times, or at neither."""
    if "shared" in request.fixturenames:
        request.getfixturevalue("shared")
    if "wire" in request.fixturenames:
        request.getfixturevalue("wire")
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) == before


# ---------------------------------------------------------------------------------------------------------------------
# What is sent arrives


@pytest.mark.parametrize("body", [0, 1, INLINE, INLINE + 1, 1_000_000])
@pytest.mark.parametrize("field", [0, 1000, DATAGRAM, 500_000])
def test_every_length_of_body_and_fields_arrives(body: int, field: int) -> None:
    """A job type of 500 kB, or a template with thousands of job types, is no reason to lose the message."""
    one = Wire(limit=2 << 20)
    try:
        sender = Channel(one.theirs)
        assert sender.send("run", b"b" * body, text="é" * (field // 6), n=[1, None])
        got = one.message()
        assert (got.op, got["text"], got["n"], got.body) == ("run", "é" * (field // 6), [1, None], b"b" * body)
        assert got.fds == ()
    finally:
        one.close()


def test_what_json_cannot_hold_is_not_sent(wire: Wire) -> None:
    ring: list[Any] = []
    ring.append(ring)
    for value in (float("nan"), object(), ring, {1: {2}}):
        with pytest.raises(WireError):
            Channel(wire.theirs).send("op", value=value)
    assert wire.take().messages == []


# ---------------------------------------------------------------------------------------------------------------------
# What is no message

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@bounded
@given(st.binary(max_size=300))
def test_random_bytes_are_counted(shared: Wire, data: bytes) -> None:
    """No exception, one message or one piece of garbage, and the next message arrives."""
    shared.raw(data)
    got = shared.take()
    assert len(got.messages) + got.garbage == 1
    assert not got.closed
    Channel(shared.theirs).send("next")
    assert shared.message().op == "next"


@bounded
@given(json_values, st.binary(max_size=20), st.booleans())
def test_any_json_is_a_message_or_counted(shared: Wire, value: Any, body: bytes, newline: bool) -> None:
    shared.raw(json.dumps(value).encode() + (b"\n" if newline else b"") + body)
    got = shared.take()
    assert len(got.messages) + got.garbage == 1
    if isinstance(value, dict) and isinstance(value.get("op"), str) and newline:
        assert got.messages[0].body == body


@pytest.mark.parametrize("depth", [100, 900, 1100, 30_000])
def test_deep_nesting_is_a_message_or_counted(wire: Wire, depth: int) -> None:
    wire.raw(b'{"op":"x","y":' + b"[" * depth + b"]" * depth + b"}\n")
    got = wire.take()
    assert len(got.messages) + got.garbage == 1


def test_a_datagram_that_is_too_long_is_not_taken_for_its_beginning(wire: Wire) -> None:
    wire.theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * DATAGRAM)
    wire.raw(b'{"op":"returned"}\n' + b"x" * DATAGRAM)
    got = wire.take()
    assert (got.messages, got.garbage) == ([], 1)


def test_an_empty_datagram_is_not_the_end(wire: Wire) -> None:
    for data in (b"", b"\n", b'{"op":"x"}\n'):
        wire.raw(data)
    got = wire.take()
    assert (len(got.messages), got.garbage, got.closed) == (1, 2, False)
    wire.theirs.shutdown(socket.SHUT_RDWR)
    assert wire.take().closed


# ---------------------------------------------------------------------------------------------------------------------
# Descriptors


@pytest.mark.parametrize("data", [b"", b"\n", b"nonsense", b'{"op":"x"}\n', b'{"op":5}\n'])
@pytest.mark.parametrize("count", [1, 4, 5, 40, 253])
def test_descriptors_by_the_hundred_are_closed(wire: Wire, data: bytes, count: int) -> None:
    """Never more than a few are open at a time: a hundred messages with 253 each would leave none for the parent."""
    reading, writing = os.pipe()
    try:
        for _ in range(10):
            wire.raw(data, *[reading] * count)
        before = len(os.listdir("/proc/self/fd"))
        received = wire.channel.receive()
        assert len(os.listdir("/proc/self/fd")) - before <= 10 * 4
        for message in received.messages:
            message.close()
        assert len(received.messages) + received.garbage == 10
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        os.close(reading)
        os.close(writing)


def memory_file(content: bytes, seals: int) -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, content)
    if seals:
        fcntl(fd, F_ADD_SEALS, seals)
    return fd


GOOD = b'{"op":"x"}\nbody'


def wrong_files() -> Iterator[int]:
    yield os.open("/dev/null", os.O_RDONLY)
    yield os.open("/dev/zero", os.O_RDONLY)
    yield os.open("/", os.O_RDONLY)
    yield os.open(__file__, os.O_RDONLY)
    yield os.open("/proc/self/mem", os.O_RDONLY)
    yield os.open("/proc/self", os.O_PATH)
    yield os.eventfd(0)
    yield os.pidfd_open(os.getpid())
    yield socket.socket().detach()
    yield memory_file(GOOD, 0)
    yield memory_file(GOOD, F_SEAL_SHRINK)
    yield memory_file(GOOD, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)  # it can still be written to
    yield sealed(b"")
    yield sealed(b"\n")
    yield sealed(b"no message\n")
    yield sealed(b'{"op":"x"}')
    yield sealed(b"x" * ((1 << 20) + 1))  # over the limit


def test_a_wrong_file_instead_of_a_sealed_one_is_counted(wire: Wire) -> None:
    for fd in wrong_files():
        wire.raw(b"\n", fd)
        os.close(fd)
        got = wire.take()
        assert (got.messages, got.garbage) == ([], 1)


def test_a_file_that_is_cut_after_it_was_sent_is_counted(wire: Wire) -> None:
    """Correction 7: what is not sealed could shrink while it is read; it is refused, and nothing is mapped."""
    fd = memory_file(GOOD, F_SEAL_GROW)
    wire.raw(b"\n", fd)
    os.ftruncate(fd, 0)
    os.close(fd)
    assert wire.take().garbage == 1
    fd = sealed(GOOD)
    wire.raw(b"\n", fd)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    os.close(fd)
    assert wire.message().body == b"body"


def test_a_file_beside_a_whole_message_is_not_read(wire: Wire) -> None:
    fd = sealed(b'{"op":"other"}\n')
    wire.raw(b'{"op":"x","spilled":true}\nbody', fd)
    os.close(fd)
    got = wire.message()
    assert (got.op, got.body, len(got.fds)) == ("x", b"body", 1)
    got.close()
