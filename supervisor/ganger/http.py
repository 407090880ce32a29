"""What a supervisor shows over HTTP: /livez and /readyz for probes, /metrics for Prometheus. Nothing can be changed.

One thread accepts, and a few more answer, each for a bounded time: a client that sends nothing, or never reads, costs
one of ``MOST`` places for ``LIMIT`` seconds and nothing else. All threads are daemons, and the end of the supervisor
waits for none of them. The loop takes no part: its state is looked at from here.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Final, NamedTuple

from ganger import metrics
from ganger.config import ConfigError, host_and_port
from ganger.core.messages import Now
from ganger.health import Health
from ganger_child.words import message

MOST: Final = 16  # requests at a time; further ones are turned away
LIMIT: Final = 10.0  # seconds that one may take
LOOK: Final = 0.5  # seconds between looks for those that take longer, and whether to end
PAUSE: Final = 0.1  # seconds after a connection that could not be taken, for want of descriptors, say


class Page(NamedTuple):
    status: int
    text: bytes
    content_type: str = "text/plain; charset=utf-8"


class Http:
    """Serves from now on at ``address`` (host:port, port 0: any free one) until ``close``.

    ``clock`` tells the time. Raises ConfigError where the address cannot be listened at.
    """

    def __init__(self, address: str, name: str, health: Health, clock: Callable[[], Now]) -> None:
        self.figures = metrics.Figures()
        self._name, self._health, self._clock = name, health, clock
        self._backlog: metrics.Backlog | None = None
        self._closed = False
        pages = {"/": self._index, "/livez": self._livez, "/readyz": self._readyz, "/metrics": self._metrics}
        self._server = _listen(address, pages)
        self._thread = threading.Thread(target=self._serve, name="ganger-http", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it is found, with the port that was taken."""
        host, port = self._server.server_address[:2]
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    @property
    def open_to_others(self) -> bool:
        """Whether other hosts may reach it."""
        return not ipaddress.ip_address(str(self._server.server_address[0])).is_loopback

    def ask_database(self, conninfo: str, schema: str) -> None:
        """From now on the metrics tell of the queues too."""
        self._backlog = metrics.Backlog(conninfo, schema, self._name)

    def close(self) -> None:
        self._closed = True
        if self._backlog is not None:
            self._backlog.close()
        with suppress(OSError):
            self._server.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join(2 * LOOK)
        self._server.server_close()

    def _serve(self) -> None:
        with suppress(metrics.Missing):
            metrics.load()
        while not self._closed:
            self._server.handle_request()
            self._server.hang_up_on_the_slow()

    # ---- the pages -------------------------------------------------------------------------------------------------

    def _index(self, _: str) -> Page:
        return Page(200, b"/livez /readyz /metrics\n")

    def _livez(self, _: str) -> Page:
        return _probe(self._health.not_live(self._clock()))

    def _readyz(self, _: str) -> Page:
        return _probe(self._health.not_ready(self._clock()))

    def _metrics(self, accept: str) -> Page:
        def collect() -> Any:
            return metrics.families(self.figures, self._health, self._backlog, self._name, self._clock())

        try:
            content_type, text = metrics.page(collect, accept)
        except metrics.Missing as missing:
            return Page(501, f"{missing}\n".encode())
        return Page(200, text, content_type)


def _probe(why_not: str | None) -> Page:
    return Page(200, b"ok\n") if why_not is None else Page(503, f"{why_not}\n".encode())


def _listen(address: str, pages: dict[str, Callable[[str], Page]]) -> _Server:
    host, port = host_and_port(address)
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return _Server(family, place, pages)
    except OSError as error:
        raise ConfigError(
            f"http is {address}, where nothing can be listened: {message(error)}. Give another address."
        ) from None


class _Server(ThreadingMixIn, TCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = MOST
    timeout = LOOK

    def __init__(self, family: int, place: Any, pages: dict[str, Callable[[str], Page]]) -> None:
        self.address_family = family
        self.pages = pages
        self._open: dict[socket.socket, float] = {}  # requests and since when (mono)
        self._lock = threading.Lock()
        super().__init__(place, _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError:
            time.sleep(PAUSE)  # it stays readable, and must not be tried again at once
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            welcome = len(self._open) < MOST
            if welcome:
                self._open[request] = time.monotonic()
        if welcome:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def hang_up_on_the_slow(self) -> None:
        now = time.monotonic()
        with self._lock:
            slow = [request for request, since in self._open.items() if now - since > LIMIT]
        for request in slow:
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)  # its thread then finds it closed, and ends

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The client is gone, which is its own affair."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "ganger"
    sys_version = ""
    timeout = LIMIT

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        try:
            page = self.server.pages.get(path, _unknown)(self.headers.get("Accept", ""))
        except Exception as error:  # of the library that writes the metrics, say
            page = Page(500, f"{path} cannot be shown: {message(error)}\n".encode())
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.text)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.text)

    do_HEAD = do_GET

    def log_message(self, format: str, *_: Any) -> None:
        """Probes are not worth a line."""


def _unknown(_: str) -> Page:
    return Page(404, b"there are /livez, /readyz and /metrics\n")
