"""Messages between supervisor, template, warden and child: one datagram each, on SOCK_SEQPACKET sockets.

A message is one line of JSON (its fields, with the operation under "op"), a newline, and a body of raw bytes. A
payload or a result is a body: it passes through the parent as bytes and is never decoded there. A message whose body
has over ``INLINE`` bytes, or that is longer than a datagram, travels as a whole in a sealed memfd, and its datagram is
the newline alone. So neither side can block on a full socket, and a file that is still being written cannot be sent.

Nothing here trusts the sender: user code may find a descriptor and write what it likes. A datagram that is no
message is counted, its descriptors are closed, and that is all.

This file may not know what the operations mean. It imports only the standard library, bound before any user code
could replace it.
"""

from __future__ import annotations

import array
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from fcntl import F_ADD_SEALS, F_GET_SEALS, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_WRITE, fcntl
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from os import MFD_ALLOW_SEALING, MFD_CLOEXEC, close, fstat, memfd_create, pread
from os import write as os_write
from select import POLLHUP, poll
from socket import (
    AF_UNIX,
    CMSG_SPACE,
    MSG_CMSG_CLOEXEC,
    MSG_CTRUNC,
    MSG_DONTWAIT,
    MSG_NOSIGNAL,
    MSG_TRUNC,
    SCM_RIGHTS,
    SO_PASSCRED,
    SO_SNDBUF,
    SOCK_SEQPACKET,
    SOL_SOCKET,
    socket,
    socketpair,
)
from typing import Any, Final

INLINE: Final = 64 * 1024  # bytes of body that travel in the datagram itself
DATAGRAM: Final = INLINE + 128 * 1024  # the largest datagram: a body and its fields
LIMIT: Final = (1 << 30) + (1 << 20)  # bytes of a message in a memfd; callers give the limit that is theirs
_SCM_CREDENTIALS: Final = 0x02
_SEALS: Final = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL
_CREDENTIALS: Final = struct.Struct("3i")
_MOST_FDS: Final = 4  # that come with a message, with room to spare; the kernel closes what is over
# Numbers, since an enumeration makes an object of each combination, which shows where messages are small and many.
_RECEIVE: Final = int(MSG_CMSG_CLOEXEC)
_RECEIVE_NOW: Final = int(MSG_CMSG_CLOEXEC) | int(MSG_DONTWAIT)
_SEND: Final = int(MSG_NOSIGNAL)
_SEND_NOW: Final = int(MSG_NOSIGNAL) | int(MSG_DONTWAIT)
_CUT: Final = int(MSG_CTRUNC) | int(MSG_TRUNC)
_encode: Final = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
_decode: Final = json.JSONDecoder().raw_decode
_ANCILLARY: Final = CMSG_SPACE(_CREDENTIALS.size) + CMSG_SPACE(_MOST_FDS * array.array("i").itemsize)


class WireError(Exception):
    """What came, or what was to be sent, is no message."""


@dataclass(slots=True)
class Message:
    """One operation, its fields, its body and the descriptors that came with it (the receiver owns them)."""

    op: str
    fields: dict[str, Any]
    body: bytes = b""
    fds: tuple[int, ...] = ()
    sender: int | None = None  # pid of the sender, where the kernel vouches for it

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self.fields.get(name, default)

    def close(self) -> None:
        """Close the descriptors that came with it."""
        for fd in self.fds:
            close(fd)


@dataclass(slots=True)
class Received:
    """What one visit to a channel brought: the messages, how much was garbage, and whether the other end is gone."""

    messages: list[Message] = field(default_factory=list)
    garbage: int = 0
    closed: bool = False


def pair() -> tuple[socket, socket]:
    """Make two connected ends. Both are close-on-exec; neither is set non-blocking (that flag would be shared)."""
    ends = socketpair(AF_UNIX, SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(SOL_SOCKET, SO_SNDBUF, 2 * DATAGRAM)
    return ends


class Channel:
    """One end of a connection."""

    def __init__(self, sock: socket, *, limit: int = LIMIT, credentials: bool = False) -> None:
        self.sock = sock
        self.limit = limit
        # One place for all that comes, of which only what is used takes memory: a new one each time costs a mapping.
        self._buffer = mmap(-1, DATAGRAM, flags=MAP_PRIVATE | MAP_ANONYMOUS)
        if credentials:
            sock.setsockopt(SOL_SOCKET, SO_PASSCRED, 1)

    def fileno(self) -> int:
        return self.sock.fileno()

    def close(self) -> None:
        self.sock.close()

    def send(self, op: str, body: bytes = b"", fds: Sequence[int] = (), *, wait: bool = False, **fields: Any) -> bool:
        """Send one message.

        Returns False where the other end is gone, or where its queue is full and ``wait`` is not set. Raises
        WireError for fields that JSON cannot hold, and OSError where there is no descriptor or memory for a long one.
        """
        try:
            head = _encode({"op": op, **fields}).encode("ascii") + b"\n"
        except (ValueError, TypeError, RecursionError) as error:
            raise WireError(f"a message {op!r} cannot be encoded: {error}") from error
        if len(body) <= INLINE and len(head) + len(body) <= DATAGRAM:
            return self._send(head + body, fds, wait=wait)
        spill = sealed(head, body)
        try:
            return self._send(b"\n", [*fds, spill], wait=wait)
        finally:
            close(spill)

    def _send(self, datagram: bytes, fds: Sequence[int], *, wait: bool) -> bool:
        flags = _SEND if wait else _SEND_NOW
        try:
            if fds:
                self.sock.sendmsg([datagram], [(SOL_SOCKET, SCM_RIGHTS, array.array("i", fds))], flags)
            else:
                self.sock.send(datagram, flags)
        except OSError:  # full, or the other end is gone: its end is learnt from the warden, not from here
            return False
        return True

    def receive(self, *, wait: bool = False, limit: int = 64) -> Received:
        """Receive up to ``limit`` messages; with ``wait``, block for the first one.

        A peer that exits with something unread makes the first receive fail with ECONNRESET while its last words
        are still queued, and a datagram of no bytes looks like the end. So an error is followed by another try, and
        only a hang-up seen by poll counts as closed.
        """
        got = Received()
        errors = 0
        while len(got.messages) + got.garbage < limit:
            try:
                flags = _RECEIVE if wait and not got.messages and not got.garbage else _RECEIVE_NOW
                size, ancillary, msg_flags, _ = self.sock.recvmsg_into([self._buffer], _ANCILLARY, flags)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                errors += 1
                if errors > 2:
                    got.closed = True
                    break
                continue
            if not size and not ancillary and self._hung_up():
                got.closed = True
                break
            message = _parse(self._buffer[:size], ancillary, msg_flags, self.limit)
            if message is None:
                got.garbage += 1
            else:
                got.messages.append(message)
        return got

    def _hung_up(self) -> bool:
        watch = poll()
        watch.register(self.sock.fileno(), 0)
        return any(events & POLLHUP for _, events in watch.poll(0))


def sealed(*parts: bytes) -> int:
    """Write bytes to a memory file that nobody can change any more, and return its descriptor."""
    fd = memfd_create("ganger", MFD_CLOEXEC | MFD_ALLOW_SEALING)
    try:
        for part in parts:
            view = memoryview(part)
            while view:
                view = view[os_write(fd, view) :]
        fcntl(fd, F_ADD_SEALS, _SEALS)
    except BaseException:
        close(fd)
        raise
    return fd


def unseal(fd: int, limit: int) -> bytes:
    """Read a private copy of a sealed memory file. Raises WireError if it is none, or over ``limit`` bytes.

    Never mapped: a file that can shrink would kill its reader with SIGBUS. The seals say that this one cannot.
    """
    try:
        if fcntl(fd, F_GET_SEALS) & _SEALS != _SEALS:
            raise WireError("the message is not sealed")
        size = fstat(fd).st_size
        if size > limit:
            raise WireError(f"the message has {size} bytes, over the limit of {limit}")
        parts, offset = [], 0
        while offset < size:
            part = pread(fd, min(1 << 20, size - offset), offset)
            if not part:
                raise WireError("the message ends early")
            parts.append(part)
            offset += len(part)
        return b"".join(parts)
    except OSError as error:
        raise WireError(f"the message is in no memory file: {error}") from error


def _parse(data: bytes, ancillary: list[tuple[int, int, bytes]], flags: int, limit: int) -> Message | None:
    """Turn one datagram into a message, or close what came with it and return None."""
    fds: list[int] = []
    sender: int | None = None
    for level, kind, content in ancillary:
        if level != SOL_SOCKET:
            continue
        if kind == SCM_RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
            fds.extend(numbers)
        elif kind == _SCM_CREDENTIALS and len(content) == _CREDENTIALS.size:
            sender = _CREDENTIALS.unpack(content)[0]
    try:
        if flags & _CUT:
            raise WireError("it was cut off")
        if data == b"\n":
            spill = fds.pop()
            try:
                data = unseal(spill, limit)
            finally:
                close(spill)
        head, newline, body = data.partition(b"\n")
        text = head.decode("ascii")
        fields, end = _decode(text)
        op = fields.pop("op")
        if end != len(text) or not newline or not isinstance(op, str):
            raise WireError("no operation")
        return Message(op, fields, body, tuple(fds), sender)
    except (WireError, ValueError, KeyError, AttributeError, IndexError, TypeError, RecursionError):
        for fd in fds:
            close(fd)
        return None
