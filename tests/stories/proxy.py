"""A proxy between a supervisor and its database, for what networks do: cut, fall silent, lose a question or its answer.

It forwards bytes and understands one thing of them: that a client has sent a certain text, and that the server has
answered since.
"""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass, field
from select import select
from types import TracebackType

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo


@dataclass(eq=False)
class _Pair:
    """One connection: a client's end and the server's."""

    client: socket.socket
    server: socket.socket
    heard: list[bytes] = field(default_factory=list)  # of the texts that are waited for, in order


class Proxy:
    """``conninfo`` is the database's, by way of the proxy. To be used as a context.

    ``upstream`` is the server's host and port; without it, who answers to the conninfo is asked for them.
    """

    def __init__(self, conninfo: str, upstream: tuple[str, int] | None = None) -> None:
        if upstream is None:
            with psycopg.connect(conninfo) as conn:
                upstream = conn.info.host, conn.info.port
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.conninfo = make_conninfo(
            **{**conninfo_to_dict(conninfo), "host": "127.0.0.1", "port": self._listener.getsockname()[1]},
            sslmode="disable",
            gssencmode="disable",
        )
        self._bell, self._ringer = socket.socketpair()
        self._lock = threading.Lock()
        self._pairs: list[_Pair] = []
        self._words: tuple[bytes, ...] = ()
        self._silent = False
        self._open = True
        self._closing = False
        self._answers = True  # whether it is the answer to them that is to be lost, or they themselves
        self.lost = threading.Event()  # that was lost
        self.accepted = 0  # connections that clients have tried to make
        self._thread = threading.Thread(target=self._run, name="proxy")

    # ---- what it is told ---------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Close all connections and refuse new ones."""
        self._set(open=False)

    def fall_silent(self) -> None:
        """Take everything and pass nothing on, as a router does that has forgotten its connections."""
        self._set(silent=True)

    def mend(self) -> None:
        """Be a good proxy again. Connections that met the silence are closed."""
        self._set(silent=False, open=True)

    def lose_answer(self, *words: bytes) -> None:
        """Once: when a client has sent these texts, in order, let the server do its work, then swallow its answer and
        cut the connection."""
        self._lose(words, answers=True)

    def lose_question(self, *words: bytes) -> None:
        """Once: when a client has sent these texts, in order, swallow the last and cut the connection."""
        self._lose(words, answers=False)

    def _lose(self, words: tuple[bytes, ...], *, answers: bool) -> None:
        with self._lock:
            self._words, self._answers = words, answers
            self.lost.clear()
            for pair in self._pairs:
                pair.heard.clear()

    # ---- at work -----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        self._ringer.send(b"\0")
        self._thread.join(10)
        self._drop(*self._pairs)
        for each in (self._listener, self._bell, self._ringer):
            each.close()

    def _set(self, *, silent: bool | None = None, open: bool | None = None) -> None:
        with self._lock:
            was_silent = self._silent
            self._silent = self._silent if silent is None else silent
            self._open = self._open if open is None else open
            if not self._open or (was_silent and not self._silent):
                self._drop(*self._pairs)
        self._ringer.send(b"\0")

    def _drop(self, *pairs: _Pair) -> None:
        for pair in pairs:
            pair.client.close()
            pair.server.close()
            self._pairs.remove(pair)

    def _run(self) -> None:
        while not self._closing:
            with self._lock:
                ends = {end: pair for pair in self._pairs for end in (pair.client, pair.server)}
                listened = [] if self._silent else [self._listener, *ends]
            try:
                ready, _, _ = select([self._bell, *listened], [], [])
            except (OSError, ValueError):  # a connection that was closed meanwhile
                continue
            with self._lock:
                for end in ready:
                    if end is self._bell:
                        self._bell.recv(100)
                    elif end is self._listener:
                        self._accept()
                    elif ends[end] in self._pairs and not self._silent:
                        self._forward(ends[end], end)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        self.accepted += 1
        if not self._open:
            client.close()
            return
        try:
            server = self._connect()
        except OSError:
            client.close()
            return
        self._pairs.append(_Pair(client, server))

    def _connect(self) -> socket.socket:
        host, port = self._upstream
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server

    def _forward(self, pair: _Pair, end: socket.socket) -> None:
        try:
            data = end.recv(1 << 16)
            if not data or self._is_lost(pair, end, data):
                self._drop(pair)
            else:
                (pair.server if end is pair.client else pair.client).sendall(data)
        except OSError:
            self._drop(pair)

    def _is_lost(self, pair: _Pair, end: socket.socket, data: bytes) -> bool:
        """Whether this is what is to be lost."""
        if not self._words:
            return False
        if end is pair.client:
            while len(pair.heard) < len(self._words) and self._words[len(pair.heard)] in data:
                pair.heard.append(self._words[len(pair.heard)])
        if (end is pair.client) is self._answers or len(pair.heard) < len(self._words):
            return False
        self._words = ()
        self.lost.set()
        return True
