"""SIGTTIN, SIGTTOU: slots more and fewer, while jobs run."""

from __future__ import annotations

import os
import random
import signal
import time

import psutil
import pytest

from ganger import NewJob, enqueue_many
from ganger.cores import FIRST, KIN
from tests.processes import wait_until
from tests.stories.stage import Running, Stage

HANDLERS = """
    os.environ["MKL_NUM_THREADS"] = "77"  # the module's own word

    handlers = Handlers()

    @handlers.job("hold")
    def hold(job):
        (FOLDER / f"begun-{job.payload}").touch()
        while not (FOLDER / f"go-{job.payload}").exists():
            time.sleep(0.01)
        threads = [os.environ[f"{name}_NUM_THREADS"] for name in ("OMP", "OPENBLAS", "MKL")]
        return {"threads": threads, "cpus": sorted(os.sched_getaffinity(0))}
"""


def title(supervisor: Running) -> str:
    return " ".join(psutil.Process(supervisor.pid).cmdline())


def shown(stage: Stage, supervisor: Running, slots: int, words: str) -> None:
    """Its title and its row tell of so many slots."""
    wait_until(lambda: words in title(supervisor), 10, lambda: f"{words}: {title(supervisor)}")
    query = "SELECT info->'slots', info->'lanes'->'default'->'slots' FROM proletarian.supervisor"
    wait_until(lambda: stage.rows(query) == [(slots, slots)], 10, lambda: stage.rows(query))


def test_slots_more_and_fewer_while_jobs_run(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """One slot more takes a job beside the one that runs. One less ends neither: the slot whose job is over first goes,
    although another job waits. Each child has the share of the cores of the slots that there were at its start; what
    the module has set itself stands."""
    for name in (FIRST, *KIN):
        monkeypatch.delenv(name, raising=False)
    stage.handlers(HANDLERS)
    supervisor = stage.run("-c", "1", "--lease", "4", "--cpu-affinity")
    first = stage.enqueue("hold", "first")
    wait_until((stage.folder / "begun-first").exists, 15, supervisor.story)

    supervisor.send(signal.SIGTTIN)
    assert supervisor.expect("slots-changed")["lanes"] == {"default": 2}
    second = stage.enqueue("hold", "second")
    wait_until((stage.folder / "begun-second").exists, 15, supervisor.story)
    shown(stage, supervisor, 2, "2/2 running default=2")

    supervisor.send(signal.SIGTTOU)
    assert supervisor.expect("slots-changed", count=2)["leaving"] == 1
    third = stage.enqueue("hold", "third")
    (stage.folder / "go-second").touch()
    of_second = stage.archived(second)["result"]
    wait_until(lambda: len(supervisor.processes("warden")) == 1, 10, supervisor.story)
    shown(stage, supervisor, 1, "1/1 running default=1")
    assert not (stage.folder / "begun-third").exists()

    (stage.folder / "go-third").touch()
    (stage.folder / "go-first").touch()
    seen = [stage.archived(first)["result"], of_second, stage.archived(third)["result"]]
    cpus = sorted(os.sched_getaffinity(0))
    half = max(1, len(cpus) // 2)
    assert [one["threads"] for one in seen] == [[str(n), str(n), "77"] for n in (len(cpus), half, len(cpus))]
    assert [len(one["cpus"]) for one in seen] == [len(cpus), half, len(cpus)]
    assert stage.rows("SELECT status, attempts FROM proletarian.archived_job") == [("success", 1)] * 3

    supervisor.send(signal.SIGTTOU)
    assert "least" in supervisor.expect("slots-not-changed")["why"]
    assert not supervisor.named("ladder-step")
    assert supervisor.stop() == 0


@pytest.mark.slow
def test_slots_come_and_go_under_a_flood_of_short_jobs(stage: Stage) -> None:
    """Jobs are claimed ahead and sent ahead to children that are to go: each is run once, none is lost or crashes, and
    at the end there are as many slots as the changes add up to."""
    stage.handlers("""
        handlers = Handlers()

        @handlers.job("short")
        def short(job):
            time.sleep(job.payload)
    """)
    with stage.conn.transaction():
        enqueue_many(stage.conn, (NewJob("short", seconds) for seconds in [0.0, 0.001, 0.02] * 800))
    supervisor = stage.run("-q", "default=2,other=2")
    draw = random.Random(8)
    changes = 0
    while stage.rows("SELECT count(*) FROM proletarian.job") != [(0,)]:
        supervisor.send(draw.choice([signal.SIGTTIN, signal.SIGTTOU]))
        changes += 1
        time.sleep(draw.choice([0.005, 0.1]))
    assert changes > 20
    rows = stage.rows("SELECT status, attempts, count(*) FROM proletarian.archived_job GROUP BY 1, 2")
    assert rows == [("success", 1, 2400)]
    assert not [name for name in ("job-lost", "job-crashed", "ladder-step", "boot-failed") if supervisor.named(name)]
    slots = [event["slots"] for event in supervisor.events if event["event"].startswith("slots-")][-1]
    wait_until(lambda: len(supervisor.processes("warden")) == slots, 15, supervisor.story)
    assert supervisor.stop() == 0
