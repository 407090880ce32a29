"""The service manager is told the truth, and whatever becomes of its socket disturbs nobody."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ganger.core import messages as m
from ganger.core.messages import Now
from ganger.health import LIVE, Health
from ganger.notify import Notifier, take_notifier
from tests.core.test_machine import Desk


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A socket as systemd has one, and its address as NOTIFY_SOCKET names it."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@ganger-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(name.replace("@", "\0"))
        listening.setblocking(False)
        yield listening, name


def told(listening: socket.socket) -> list[str]:
    lines = []
    while True:
        try:
            lines += listening.recv(4096).decode().split("\n")
        except BlockingIOError:
            return lines


def at(seconds: float) -> Now:
    return Now(seconds, seconds)


def test_what_a_service_manager_hears_of_a_whole_life(manager: tuple[socket.socket, str]) -> None:
    """Ready once there is a child and a registration; the watchdog is fed at half its time; a status changes when it
    changes; a shutdown is told and asks for more time for as long as it lasts."""
    listening, name = manager
    environ = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
    notifier = take_notifier(environ)
    assert notifier is not None
    assert environ == {"HOME": "/"}

    notifier.waits(at(0), "waiting for the database")
    assert told(listening) == ["EXTEND_TIMEOUT_USEC=30000000", "STATUS=waiting for the database"]
    notifier.waits(at(1), "waiting for the database")
    assert told(listening) == []

    health, desk = Health(), Desk()
    health.machine = desk.machine
    assert notifier.turn(at(1000), health) == pytest.approx(0.1)
    assert "READY=1" not in told(listening)
    desk.idle()
    notifier.turn(at(1000.2), health)
    first = told(listening)
    assert first[0] == "READY=1"
    assert "STATUS=running, 0/1 running, default=1" in first

    assert notifier.turn(at(1000.3), health) > 0
    assert told(listening) == []
    assert notifier.turn(at(1001.5), health) <= 1.0
    assert told(listening) == ["WATCHDOG=1"]
    desk.claimed()
    notifier.turn(at(1002.6), health)
    assert told(listening) == ["STATUS=running, 1/1 running, default=1"]

    desk.hear(m.Stop())
    notifier.turn(at(1003.7), health)
    leaving = told(listening)
    assert leaving[:2] == ["STOPPING=1", "EXTEND_TIMEOUT_USEC=30000000"]
    notifier.turn(at(1004.8), health)
    assert not {"STOPPING=1", "EXTEND_TIMEOUT_USEC=30000000"} & set(told(listening))
    notifier.turn(at(1009.9), health)
    assert "EXTEND_TIMEOUT_USEC=30000000" in told(listening)
    notifier.close()


def test_a_reload_is_told_from_its_begin_to_its_end_whatever_comes_of_it(tmp_path: Path) -> None:
    """Also one that was over before the next look; the time is that of the monotonic clock, in microseconds."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.setblocking(False)
        notifier = Notifier(str(tmp_path / "notify"))
        health, desk = Health(), Desk()
        health.machine = desk.idle().machine
        notifier.turn(at(1000), health)
        assert told(listening)[0] == "READY=1"

        desk.hear(m.Reload())
        notifier.turn(at(1001.5), health)
        assert told(listening) == ["RELOADING=1", "MONOTONIC_USEC=1001500000"]
        notifier.turn(at(1003), health)
        assert told(listening) == []
        desk.hear(m.TemplateFailed(2, "SyntaxError"))
        notifier.turn(at(1004.5), health)
        stale = "STATUS=running, 0/1 running, default=1, on the old code, because the new one did not load"
        assert told(listening) == ["READY=1", stale]

        desk.hear(m.Reload(), m.TemplateReady(3))
        notifier.turn(at(1006), health)
        assert [listening.recv(4096).decode() for _ in range(3)] == [
            "RELOADING=1\nMONOTONIC_USEC=1006000000", "READY=1", "STATUS=running, 0/1 running, default=1",
        ]  # fmt: skip
        desk.hear(m.Reload(), m.Stop())
        notifier.turn(at(1008), health)
        assert told(listening)[0] == "STOPPING=1"
        notifier.close()


def test_only_what_is_meant_for_us_is_heeded() -> None:
    """A watchdog for another process is not ours to feed; what is no address is none."""
    ours = {"NOTIFY_SOCKET": "@nobody", "WATCHDOG_USEC": "2000000", "WATCHDOG_PID": str(os.getpid() + 1)}
    notifier = take_notifier(ours)
    assert notifier is not None
    assert notifier.turn(at(5), Health()) == pytest.approx(0.1)
    notifier.close()
    for address in ("", "vsock:2:1234", "notify"):
        assert take_notifier({"NOTIFY_SOCKET": address}) is None
    for usec in ("0", "-1", "soon", ""):
        notifier = take_notifier({"NOTIFY_SOCKET": "@nobody", "WATCHDOG_USEC": usec})
        assert notifier is not None
        notifier.close()


@pytest.mark.parametrize("address", ["/no/such/socket", "/" + "long" * 100, "@" + "long" * 100, "/nul\0", "@nobody"])
def test_a_socket_that_fails_disturbs_nobody(address: str) -> None:
    notifier = Notifier(address, watchdog=1e-6)
    assert notifier.turn(at(5), Health()) == pytest.approx(0.05)
    notifier.close()


def test_a_service_manager_that_does_not_read_is_not_waited_for(tmp_path: Path) -> None:
    """Its buffer is full after some messages; each turn still comes back at once, and says how long it is good for."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        notifier = Notifier(str(tmp_path / "notify"), watchdog=0.1)
        for turn in range(2000):
            assert notifier.turn(at(turn), Health()) > 0
        notifier.close()


def test_health_in_a_word() -> None:
    """Every reason why there is no work to be had from a supervisor has a word of its own."""
    health, desk = Health(), Desk()
    assert health.not_ready(at(1000)) == "starting"
    assert health.status == "starting"
    health.machine = desk.machine
    assert health.not_ready(at(1000)) == "not-registered"
    desk.registered()
    assert health.not_ready(at(1000)) == "no-child-yet"
    child = desk.said(m.StartChild)[-1].child
    desk.hear(m.ChildStarted("default/1", child, 11), m.ChildReady("default/1", child))
    assert health.not_ready(at(1000)) is None
    health.turned = 1000.0
    assert health.not_ready(at(1000 + LIVE + 1)) == health.not_live(at(1000 + LIVE + 1)) == "stalled"
    assert health.not_live(at(1000 + LIVE)) is None
    health.turned = None
    assert health.not_ready(at(1095)) == "lease-not-trusted"
    desk.hear(m.DatabaseLost("gone"))
    assert health.not_ready(at(1000)) == "database-lost"
    desk.hear(m.Stop())
    assert health.not_ready(at(1000)) == "draining"
    desk.hear(m.Stop("terminate"))
    assert health.not_ready(at(1000)) == "terminating"
    assert health.not_live(at(1e9)) is None
