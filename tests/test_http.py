"""What is served over HTTP, by the server alone: the answers, and that no client can take it hostage."""

from __future__ import annotations

import http.client
import socket
import sys
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from ganger import http as ours
from ganger.config import Config, ConfigError
from ganger.core import messages as m
from ganger.core.messages import Now
from ganger.health import Health
from ganger.http import Http
from tests.core.test_machine import Desk
from tests.processes import wait_until


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> Now:
        return Now(self.seconds, self.seconds)


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(health: Health, clock: Clock) -> Iterator[Http]:
    made = Http("127.0.0.1:0", "web1:812", health, clock)
    yield made
    made.close()


def get(server: Http, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    place = urlsplit(server.url)
    assert place.hostname is not None
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=5)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def idle(server: Http, sends: bytes = b"") -> socket.socket:
    """A client that has connected and says no more than this."""
    place = urlsplit(server.url)
    client = socket.create_connection((place.hostname, place.port), timeout=5)
    client.sendall(sends)
    return client


def test_the_probes_tell_what_is_the_matter(server: Http, health: Health, clock: Clock) -> None:
    """Alive while the loop turns (and before it begins), ready only where there is work to be had."""
    assert get(server, "/livez") == (200, "ok\n")
    assert get(server, "/readyz") == (503, "starting\n")
    desk = Desk().idle()
    health.machine, health.turned = desk.machine, clock.seconds
    assert get(server, "/readyz?verbose") == (200, "ok\n")
    assert get(server, "/readyz", "HEAD") == (200, "")
    desk.hear(m.DatabaseLost("gone"))
    assert get(server, "/readyz") == (503, "database-lost\n")
    assert get(server, "/livez") == (200, "ok\n")
    clock.seconds += 11
    assert get(server, "/livez") == (503, "stalled\n")
    assert get(server, "/") == (200, "/livez /readyz /metrics\n")
    assert get(server, "/nothing")[0] == 404
    assert get(server, "/livez", "POST")[0] == 501


def test_without_prometheus_client_the_page_says_what_to_install(server: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("prometheus_client")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    status, text = get(server, "/metrics")
    assert (status, text) == (501, "The metrics need prometheus-client: pip install 'ganger[metrics]'.\n")
    assert get(server, "/livez") == (200, "ok\n")


def test_clients_that_say_nothing_hold_their_places_for_a_bounded_time(
    health: Health, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All places are held by clients that never finish their request, one of them by sending a byte now and then; once
    their time is over the next one is answered. The end of the server waits for none of them."""
    monkeypatch.setattr(ours, "LIMIT", 1.0)
    server = Http("127.0.0.1:0", "web1:812", health, clock)
    held = [idle(server, b"GET /livez HTTP/1.0\r\nX: ") for _ in range(ours.MOST)]
    wait_until(lambda: len(server._server._open) == ours.MOST, 5, "the places are not taken")
    late = idle(server, b"GET /livez HTTP/1.0\r\n\r\n")
    assert late.recv(100) == b""  # turned away

    def answered() -> bool:
        try:
            held[0].sendall(b"x")
        except OSError:
            pass
        try:
            return get(server, "/livez") == (200, "ok\n")
        except (OSError, http.client.HTTPException):
            return False

    wait_until(answered, 6, "no place was given up")
    begun = time.monotonic()
    server.close()
    assert time.monotonic() - begun < 2
    for client in (*held, late):
        client.close()


def test_many_bad_requests_are_nobodys_end(server: Http) -> None:
    for words in (b"\0\xff\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"A" * 70_000 + b"\r\n\r\n", b""):
        idle(server, words).close()
    assert get(server, "/livez") == (200, "ok\n")
    assert get(server, "/metrics", Accept="application/openmetrics-text; version=banana")[0] == 200
    assert get(server, "/metrics", Accept="text/plain; version=banana")[0] == 200


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("9464", "127.0.0.1:9464"),
        (9464, "127.0.0.1:9464"),
        ("0", "127.0.0.1:0"),
        ("0.0.0.0:9464", "0.0.0.0:9464"),
        ("[::1]:9464", "[::1]:9464"),
        (" localhost:09464 ", "localhost:9464"),
        (None, None),
        ("none", None),
    ],
)
def test_an_address_as_it_may_be_written(given: object, read: str | None) -> None:
    made = Config(target="story:handlers", http=given)  # type: ignore[arg-type]
    assert made.http == read
    assert Config(target="story:handlers", http=made.http).http == read


@pytest.mark.parametrize(
    "given", [":9464", "host:", "65536", "-1", "1.5", True, "a b:1", "::1:9464", "", b"9464", 9e3, 70000]
)
def test_an_address_that_is_none_is_refused(given: object) -> None:
    with pytest.raises(
        ConfigError, match=r"^http is .*: give a port, or a host and a port, as in 127\.0\.0\.1:9464\.$"
    ):
        Config(target="story:handlers", http=given)  # type: ignore[arg-type]


def test_an_address_that_cannot_be_listened_at_is_told(server: Http, health: Health, clock: Clock) -> None:
    taken = server.url.removeprefix("http://")
    with pytest.raises(ConfigError, match=rf"http is {taken}, where nothing can be listened: .*in use"):
        Http(taken, "web1:812", health, clock)
    with pytest.raises(ConfigError, match=r"http is 203\.0\.113\.7:0, where nothing can be listened"):
        Http("203.0.113.7:0", "web1:812", health, clock)


@pytest.mark.parametrize(("address", "others"), [("0.0.0.0:0", True), ("[::1]:0", False), ("localhost:0", False)])
def test_whether_others_may_come_is_known(address: str, others: bool, health: Health, clock: Clock) -> None:
    try:
        server = Http(address, "web1:812", health, clock)
    except ConfigError:
        pytest.skip(f"this machine has no {address}")
    assert server.open_to_others == others
    assert get(server, "/livez") == (200, "ok\n")
    server.close()
