"""Progress and checkpoints, in the whole product: what a job saves survives whatever becomes of the run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from ganger import database
from ganger.jobs import retry
from tests.conftest import Ganger
from tests.processes import wait_until
from tests.stories.proxy import Proxy
from tests.stories.stage import ROOT, Stage

S = "proletarian"

HANDLERS = """
    handlers = Handlers()

    def note(*words):
        with (FOLDER / "notes").open("a") as notes:
            notes.write(" ".join(map(str, words)) + "\\n")

    @handlers.job("steps", grace=1, retry=Retry(9, delays=[1]))
    def steps(job):
        note("found", job.checkpoint)
        number = (job.checkpoint or 0) + 1
        for _ in range(100):
            job.save_checkpoint(number - 1)
        job.save_checkpoint(number)
        job.progress(number / 10, f"step {number}")
        note("saved", number)
        how = job.payload["ends"][number - 1]
        if how == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "raise":
            raise ValueError("on purpose")
        elif how == "sleep":
            time.sleep(300)
        elif how == "compute":
            while True:
                pass
        return number

    @handlers.job("refused")
    def refused(job):
        job.save_checkpoint("mine", wait=True)
        note("saved")
        while not (FOLDER / "go").exists():
            time.sleep(0.01)
        try:
            job.save_checkpoint("not mine", wait=True)
        except CheckpointRefused as error:
            note(error)

    @handlers.job("outage")
    def outage(job):
        if job.checkpoint:
            return job.checkpoint
        job.save_checkpoint("before", wait=True)
        note("before")
        while not (FOLDER / "go").exists():
            time.sleep(0.01)
        for number in range(200):
            job.save_checkpoint(["x" * 10000, number])
        note("given")
        try:
            job.save_checkpoint("waits", wait=True)
        except JobInterrupted:
            job.save_checkpoint("last words")
            raise
"""


def test_a_checkpoint_survives_every_end_of_a_run(stage: Stage) -> None:
    """A crash, an exception, a time limit, a shutdown that terminates, a killed supervisor and another life from the
    archive: each next run goes on where the last one has saved, though nobody had waited for that."""
    stage.handlers(HANDLERS)
    job_id = stage.enqueue(
        "steps", {"ends": ["crash", "raise", "compute", "sleep", "compute", "return", "return"]}, timeout=1.5
    )
    first = stage.run("-c", "1", "--shutdown", "terminate")
    first.expect("job-timed-out", 30)
    stage.conn.execute("UPDATE proletarian.job SET timeout_s = NULL")  # it is tried again a second later
    stage.wait_lines("notes", 8)
    assert first.stop() == 0
    second = stage.run("-c", "1")
    stage.wait_lines("notes", 10)
    wait_until(lambda: stage.rows("SELECT checkpoint FROM proletarian.job") == [(5,)], 10, second.story)
    os.kill(second.pid, signal.SIGKILL)
    third = stage.run("-c", "1")
    assert stage.archived(job_id)["result"] == 6
    with database.connect(stage.conninfo) as conn:
        assert retry(conn, S, [job_id]) == {job_id: "retried"}
    third.expect("job-finished", count=2)
    assert stage.archived(job_id)["checkpoint"] == 7
    assert stage.lines("notes") == [line for n in range(7) for line in (f"found {n or None}", f"saved {n + 1}")]
    assert third.stop() == 0


def test_a_run_that_is_not_the_jobs_any_more_is_told_so(stage: Stage) -> None:
    """Its row is another run's, as after a lease that was lost: it can keep nothing there."""
    stage.handlers(HANDLERS)
    stage.enqueue("refused")
    supervisor = stage.run("-c", "1")
    stage.wait_lines("notes", 1)
    stage.conn.execute("UPDATE proletarian.job SET run_id = gen_random_uuid()")
    (stage.folder / "go").touch()
    told = stage.wait_lines("notes", 2)[1]
    assert told == "this run is not the job's any more: it was lost, or taken for lost, and nothing was written"
    assert stage.rows("SELECT checkpoint FROM proletarian.job") == [("mine",)]
    supervisor.stop(signal.SIGQUIT)


def test_last_words_are_stored_when_the_database_is_back(stage: Stage) -> None:
    """While it is away a checkpoint for which nobody waits costs its job no time; one that is waited for can be
    interrupted; and the newest of all is stored with what becomes of the run."""
    stage.handlers(HANDLERS)
    job_id = stage.enqueue("outage")
    with Proxy(stage.conninfo) as proxy:
        supervisor = stage.run("-c", "1", "--shutdown", "terminate", conninfo=proxy.conninfo)
        stage.wait_lines("notes", 1)
        proxy.cut()
        supervisor.expect("database-lost")
        (stage.folder / "go").touch()
        stage.wait_lines("notes", 2)
        supervisor.send(signal.SIGTERM)
        supervisor.expect("job-interrupted")
        assert stage.rows("SELECT checkpoint FROM proletarian.job") == [("before",)]
        proxy.mend()
        assert supervisor.ended() == 0
    assert stage.rows("SELECT checkpoint, attempts FROM proletarian.job") == [("last words", 0)]
    again = stage.run("-c", "1", "--until-empty")
    assert stage.archived(job_id)["result"] == "last words"
    assert again.ended() == 0


def test_progress_is_seen_from_anywhere(stage: Stage, ganger: Ganger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", stage.conninfo)
    stage.handlers(HANDLERS)
    job_id = stage.enqueue("steps", {"ends": ["sleep"]})
    supervisor = stage.run("-c", "1", "--lease", "3")

    def shown() -> str:
        return ganger("jobs", "show", str(job_id))[1]

    wait_until(lambda: "10%, ends in " in shown(), 15, shown)
    assert ", step 1\n" in shown()
    (slot,) = [slot for slot in json.loads(ganger("top", "--json")[1])["slots"] if slot["job_id"] == str(job_id)]
    assert (slot["progress"], slot["note"]) == (10, "step 1")
    assert slot["left"] > 0
    assert supervisor.stop(signal.SIGQUIT) == 0


@pytest.mark.slow
def test_the_example_repeats_less_than_a_twentieth(stage: Stage) -> None:
    """Terminated again and again, it ends with the right number and with next to nothing done twice."""
    environ = {**os.environ, "DATABASE_URL": stage.conninfo}
    done = subprocess.run(
        [sys.executable, "-m", "examples.checkpoints.demo", "--below", "400000", "--step", "2000", "--stop-after",
         "50"], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "There are 33860 primes below 400000." in done.stdout
    told = re.search(r"stopped (\d+) times. Of 200 steps (\d+) were done twice, which is ([\d.]+)% of", done.stdout)
    assert told is not None, done.stdout
    stops, again, share = int(told[1]), int(told[2]), float(told[3])
    assert stops >= 2
    assert again <= 2 * stops
    assert share < 5
    assert 2 <= done.stderr.count("job-interrupted") <= stops, "a stop may come before the job has begun again"
