"""The examples as a person runs them: two terminals, and Ctrl-C in the middle."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import psycopg
import pytest

from tests.processes import nothing_left, tree, wait_until
from tests.terminal import ROOT, Terminal


class Scene:
    """A database, and terminals that run the examples on it."""

    def __init__(self, conninfo: str) -> None:
        self.environ = {"DATABASE_URL": conninfo}
        self.conn = psycopg.connect(conninfo, autocommit=True)

    @contextmanager
    def worker(self, example: str, *options: str) -> Iterator[Terminal]:
        """A supervisor in a terminal, past its first words; nothing may be left of it afterwards."""
        with Terminal("-m", f"examples.{example}.worker", *options, environ=self.environ) as terminal:
            terminal.expect("polling-for-jobs", 60)
            pids = {terminal.process.pid, *(process.pid for process in tree(terminal.process.pid))}
            yield terminal
        nothing_left(pids)

    def enqueue_jobs(self, example: str, *arguments: str) -> Terminal:
        return Terminal("-m", f"examples.{example}.enqueue_jobs", *arguments, environ=self.environ)

    def enqueue(self, run: str, **changes: int) -> str:
        """Enqueue a job of example C; ``changes`` shorten it. Returns its timestamp."""
        with self.enqueue_jobs("example_c", run) as terminal:
            timestamp = terminal.expect(r"'timestamp': '(\S+)'").group(1)
            assert terminal.leave() == 0
        self.conn.execute("UPDATE proletarian.job SET payload = payload || %s::jsonb", [json.dumps(changes)])
        return str(timestamp)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self.conn.execute(query.encode()).fetchall()


@pytest.fixture
def scene(database: str) -> Iterator[Scene]:
    made = Scene(database)
    yield made
    made.conn.close()


def in_order(text: str, *words: str) -> None:
    """Fail unless the words stand in the text in this order."""
    at = 0
    for word in words:
        at = text.find(word, at)
        assert at >= 0, f"{word!r} is not there, or not in its place {words} in:\n{text}"
        at += len(word)


def test_example_a(scene: Scene) -> None:
    with scene.worker("example_a") as worker, scene.enqueue_jobs("example_a") as other:
        in_order(worker.shown, "default queue: 0", "job table: 0", "archived_job table: 0", "polling interval 5 s")
        for _ in range(2):
            other.expect("Adding a new job")
            other.expect(r"Press Enter to enqueue more jobs \(Ctrl-C to exit\)")
            worker.expect("handling-job")
            worker.expect("Running job example_a.echo")
            worker.expect("Hello world!")
            worker.expect("job-finished", 3)
            other.press("\n")
        other.expect("Press Enter")
        # Python shows the prompt before it reads; a Ctrl-C between the two is only seen with the next key.
        wait_until(lambda: psutil.Process(other.process.pid).status() == psutil.STATUS_SLEEPING, 10, "it reads")
        other.ctrl_c()
        assert other.leave() == 0
        assert "Traceback" not in other.shown
        worker.expect("job-finished")
        worker.ctrl_c()
        assert worker.leave() == 0
        in_order(worker.shown, "shutting-down", "completed-shutdown", "successful jobs: 3", "failed jobs: 0")


@pytest.mark.parametrize(
    ("run", "words"), [("run-1", "Sleeping 10000 ms"), ("run-2", "Waiting in asyncio for 10000 ms")]
)
def test_example_c_a_waiting_job_is_interrupted_and_runs_again(scene: Scene, run: str, words: str) -> None:
    timestamp = scene.enqueue(run)
    with scene.worker("example_c") as worker:
        worker.expect(words)
        worker.expect("won't be run again")
        worker.ctrl_c()
        assert worker.leave(9) == 0
        in_order(worker.shown, words, "shutting-down", "job-interrupted", "completed-shutdown", "successful jobs: 0")
        assert "Done." not in worker.shown
    assert scene.rows("SELECT state, attempts FROM proletarian.job") == [(1, 0)]
    assert scene.rows("SELECT * FROM proletarian.archived_job") == []

    scene.conn.execute("""UPDATE proletarian.job SET payload = payload || '{"sleep_ms": 500, "wait_ms": 500}'""")
    with scene.worker("example_c") as worker:
        worker.expect(timestamp.replace(".", r"\.").replace("+", r"\+"))
        worker.expect(r"Done\.")
        worker.expect("job-finished")
        worker.ctrl_c()
        assert worker.leave() == 0
        assert "Number of successful jobs: 1" in worker.shown
    assert scene.rows("SELECT status, attempts FROM proletarian.archived_job") == [("success", 1)]


def test_example_c_a_computing_job_is_awaited(scene: Scene) -> None:
    scene.enqueue("run-3", run_ms=4000)
    with scene.worker("example_c") as worker:
        worker.expect("A supervisor that shuts down lets it finish")
        worker.expect("A second Ctrl-C")
        worker.ctrl_c()
        assert worker.leave() == 0
        in_order(
            worker.shown, "Running for 4000 ms", "shutting-down", "Done.", "job-finished", "completed-shutdown",
            "successful jobs: 1",
        )  # fmt: skip
        assert "job-interrupted 2" not in worker.shown
    assert scene.rows("SELECT status, attempts FROM proletarian.archived_job") == [("success", 1)]


def test_example_c_with_terminate_a_computing_job_is_stopped(scene: Scene) -> None:
    scene.enqueue("run-3")
    with scene.worker("example_c", "--shutdown", "terminate") as worker:
        worker.expect("this supervisor terminates such processes when it shuts down")
        worker.expect("won't be run again")
        worker.ctrl_c()
        assert worker.leave(9) == 0
        in_order(worker.shown, "Running for 10000 ms", "shutting-down", "job-interrupted", "completed-shutdown")
        assert "Done." not in worker.shown
    assert scene.rows("SELECT state, attempts FROM proletarian.job") == [(1, 0)]


def test_example_c_a_second_ctrl_c_does_not_wait(scene: Scene) -> None:
    scene.enqueue("run-3")
    with scene.worker("example_c") as worker:
        worker.expect("A second Ctrl-C")
        worker.ctrl_c()
        worker.expect("shutting-down")
        with pytest.raises(subprocess.TimeoutExpired):  # it waits; and the second must come half a second later
            worker.process.wait(1)
        worker.ctrl_c()
        assert worker.leave() == 0
        in_order(worker.shown, "shutting-down", "job-interrupted", "completed-shutdown")
        assert "Done." not in worker.shown
    assert scene.rows("SELECT state, attempts FROM proletarian.job") == [(1, 0)]


def test_jobs_are_in_the_trace_of_who_enqueues_them(scene: Scene) -> None:
    """Each attempt is a span of it, below the enqueuer's: one that works, two that fail, one that is killed in its
    handler. They go out in batches, and before a child waits for another job, in which it may be killed."""
    with Terminal("-m", "examples.tracing.demo", environ=scene.environ) as demo:
        trace = demo.expect(r"enqueued in trace (\w{32})\.").group(1)
        assert demo.leave() == 0
    told = re.findall(
        r"span (\w{32}) (\w{16}) ([-\w]{16}) '([\w ]+)' (\w+)(?: ganger\.job\.type=(\S+) \S+=(\d))?", demo.shown
    )
    assert {span[0] for span in told} == {trace}, demo.shown
    by_name = {name: (span, above) for _, span, above, name, *_ in told}
    order, order_above = by_name["order"]
    assert order_above == "-" * 16
    attempts = {(job, attempt): (above, status) for _, _, above, name, status, job, attempt in told if job}
    assert attempts == {
        ("good", "1"): (order, "UNSET"),
        ("bad", "1"): (order, "ERROR"),
        ("bad", "2"): (order, "ERROR"),
        ("endless", "1"): (order, "ERROR"),
    }
    (good,) = (span for _, span, _, _, _, job, _ in told if job == "good")
    assert by_name["work"][1] == good


@pytest.mark.timeout(240)
def test_example_b_thirty_jobs_that_fail_half_the_time(scene: Scene) -> None:
    with (
        scene.worker("example_b", "--slots", "2", "--polling-interval", "1") as worker,
        scene.enqueue_jobs("example_b") as other,
    ):
        assert "Polling interval: 1 seconds. Slots: 2" in worker.shown
        for _ in range(3):
            other.expect("Adding 10 new jobs")
            for _ in range(10):
                other.expect("'counter': ")
            other.expect("Press Enter")
            other.press("\n" if other.shown.count("Adding") < 3 else "\x04")
        assert other.leave() == 0
        for _ in range(30):
            worker.expect("handling-job")
        worker.read_until(lambda: not scene.rows("SELECT 1 FROM proletarian.job LIMIT 1"), 90)
        worker.ctrl_c()
        assert worker.leave() == 0

    counts = dict(scene.rows("SELECT status, count(*) FROM proletarian.archived_job GROUP BY status"))
    attempts = scene.rows("SELECT status, attempts FROM proletarian.archived_job")
    assert sum(counts.values()) == 30
    assert all(tries == 3 for status, tries in attempts if status == "failure")
    assert all(tries <= 3 for _, tries in attempts)
    assert f"Number of successful jobs: {counts.get('success', 0)}" in worker.shown
    assert f"Number of failed jobs: {counts.get('failure', 0)}" in worker.shown
    assert worker.shown.count("Job failed after 3 attempts") == counts.get("failure", 0)
    assert worker.shown.count("Phew, it didn't fail. Done.") == counts.get("success", 0)
    assert "[  1/0 'Running job example_b.sometimes-failing. Payload:']" in worker.shown


def test_the_database_can_be_made_and_emptied(bare_database: str) -> None:
    def db(command: str) -> str:
        environ = {"DATABASE_URL": bare_database, "PYTHONPATH": f"{ROOT / 'supervisor'}:{ROOT / 'worker_child'}"}
        done = subprocess.run(
            [sys.executable, "-m", "examples.db", command],
            cwd=ROOT,
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "are there" in db("install")
    with psycopg.connect(bare_database, autocommit=True) as conn:
        conn.execute("INSERT INTO proletarian.job (job_type) VALUES ('x')")
        assert "and empty" in db("recreate")
        assert conn.execute("SELECT count(*) FROM proletarian.job").fetchone() == (0,)
