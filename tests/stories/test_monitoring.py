"""A supervisor as monitoring and a service manager see it: one story from its start to its end."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ganger.metrics import FAMILIES
from tests.processes import wait_until
from tests.stories.proxy import Proxy
from tests.stories.stage import Running, Stage

HANDLERS = """
    handlers = Handlers()

    @handlers.job("quick")
    def quick(job):
        return {name: os.environ.get(name) for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")}

    @handlers.job("bad")
    def bad(job):
        raise ValueError("no")

    @handlers.job("endless", timeout=0.2, grace=0)
    def endless(job):
        while True:
            pass

    @handlers.job("gate", shutdown="finish")
    def gate(job):
        (FOLDER / "began").touch()
        while not (FOLDER / "open").exists():
            time.sleep(0.02)
"""


class Manager:
    """A service manager's socket; it remembers what it was told."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.told: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while data := self._socket.recv(4096):
            self.told += data.decode().split("\n")

    def expect(self, word: str, *, count: int = 1, limit: float = 15.0) -> None:
        wait_until(lambda: self.told.count(word) >= count, limit, lambda: f"{word} x {count}: {self.told}")

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"", str(self.path))


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(tmp_path / "notify")
    yield made
    made.close()


def get(url: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url + path, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def figures(url: str) -> dict[str, float]:
    """What a scrape brings: name and labels in their order, and the value."""
    status, text = get(url, "/metrics")
    assert status == 200
    return {
        " ".join([sample.name, *(value for _, value in sorted(sample.labels.items()))]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.parametrize("how", ["cut", pytest.param("silent", marks=pytest.mark.slow)])
def test_a_life_under_a_service_manager_and_a_prometheus(
    stage: Stage, manager: Manager, database: str, how: str
) -> None:
    """Ready is said when there is a child; each ending of a job is counted; while the database is away (its connections
    cut, or silent) the supervisor lives, is not ready, and a scrape comes back without the queues; a shutdown is told
    and asks for time for as long as a job lasts, and what runs under it knows nothing of the service manager."""
    stage.handlers(HANDLERS)
    with Proxy(database) as proxy:
        stage.supervised = proxy.conninfo
        environ = {"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": ""}
        running = stage.run("--http", "0", "--queues", "default=2,other=1", "--lease", "30", environ=environ)
        url = running.expect("http-started")["url"]
        manager.expect("READY=1")
        assert get(url, "/readyz") == get(url, "/livez") == (200, "ok\n")
        manager.expect("WATCHDOG=1", count=manager.told.count("WATCHDOG=1") + 2)
        running.send(signal.SIGUSR2)
        manager.expect("READY=1", count=2)
        assert manager.told.index("RELOADING=1") > manager.told.index("READY=1")
        _jobs_are_counted(stage, url)

        if how == "cut":
            proxy.cut()
        else:
            proxy.fall_silent()
        began = time.monotonic()
        assert "ganger_slots default idle" in figures(url)  # however long the database takes for its part
        assert time.monotonic() - began < 3 * 3
        wait_until(lambda: get(url, "/readyz") == (503, "database-lost\n"), 40, running.story)
        wait_until(lambda: "ganger_queue_jobs default ready" not in figures(url), 20, "the queues are still shown")
        assert get(url, "/livez") == (200, "ok\n")
        proxy.mend()
        wait_until(lambda: get(url, "/readyz")[0] == 200, 40, running.story)
        if how == "silent":  # the other is to be quick, and figures are kept for some seconds
            wait_until(lambda: figures(url).get("ganger_queue_jobs default ready") == 0, 20, "no queues are shown")

        _it_leaves(stage, running, manager, url)


def _jobs_are_counted(stage: Stage, url: str) -> None:
    stage.enqueue("quick", queue="nobody's")
    quick = stage.enqueue("quick")
    for job_id in (stage.enqueue("bad"), stage.enqueue("endless")):
        assert stage.archived(job_id)["status"] == "failure"
    assert set(stage.archived(quick)["result"].values()) == {None}
    wait_until(lambda: "ganger_jobs_total endless failure default timeout" in figures(url), 15, lambda: figures(url))
    seen = figures(url)
    assert seen["ganger_jobs_total quick success default "] == 1
    assert seen["ganger_jobs_total bad failure default exception"] == 1
    assert seen["ganger_kills_total timeout kill"] == 1
    assert seen["ganger_job_wall_seconds_count endless"] == 1
    assert seen["ganger_job_wall_seconds_bucket endless +Inf"] == 1
    assert seen["ganger_job_wait_seconds_count default"] == 3
    assert seen["ganger_claim_seconds_count"] >= 1
    assert 0 < seen["ganger_lease_slack_seconds"] <= 22.5
    assert seen["ganger_queue_jobs nobody's ready"] == 1
    names = {name.split()[0] for name in seen}
    for family, (_, _, buckets) in FAMILIES.items():
        assert (f"{family}_count" if buckets else family) in names


def _it_leaves(stage: Stage, running: Running, manager: Manager, url: str) -> None:
    stage.enqueue("gate")
    wait_until((stage.folder / "began").exists, 15, running.story)
    running.send(signal.SIGTERM)
    manager.expect("STOPPING=1")
    manager.expect("EXTEND_TIMEOUT_USEC=30000000")
    assert get(url, "/readyz") == (503, "draining\n")
    assert get(url, "/livez") == (200, "ok\n")
    assert figures(url)["ganger_draining"] == 1
    (stage.folder / "open").touch()
    held = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))  # and says nothing
    assert running.ended() == 0
    held.close()
    assert [manager.told.count(word) for word in ("READY=1", "RELOADING=1", "STOPPING=1")] == [2, 1, 1]
    status = [word for word in manager.told if word.startswith("STATUS=")]
    assert "STATUS=running, 0/3 running, default=2 other=1" in status
    assert "STATUS=draining, 1/3 running, default=2 other=1" in status


def test_an_address_that_is_taken_ends_the_start(stage: Stage) -> None:
    """Exit code 78 and a sentence, before anything was started."""
    stage.handlers(HANDLERS)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        running = stage.run("--http", str(port), wait=False)
        assert running.ended() == os.EX_CONFIG
    assert f"http is 127.0.0.1:{port}, where nothing can be listened" in running.story()
    assert running.events == []
