"""From enqueue to the claim: due times, priorities, ids, queues and their slots; and how children are started."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from ganger import DuplicateJob, NewJob, enqueue, enqueue_many
from ganger.database import connect, install
from tests.processes import nothing_left, wait_until
from tests.stories.stage import ROOT, Stage

JOBS = """
    handlers = Handlers()
    @handlers.job("note")
    def note(job):
        with open(FOLDER / "noted", "a") as file: file.write(f"{job.payload}\\n")
        return {"at": time.time(), "queue": job.queue}
    @handlers.job("hold")
    def hold(job):
        with open(FOLDER / "held", "a") as file: file.write(f"{job.payload}\\n")
        while not (FOLDER / "go").exists(): time.sleep(0.02)
"""


def go(stage: Stage) -> None:
    (stage.folder / "go").touch()


# ---------------------------------------------------------------------------------------------------------------------
# Due times, priorities, ids


def test_the_most_urgent_ready_job_is_first_and_equals_keep_their_order(stage: Stage) -> None:
    stage.handlers(JOBS)
    for name, priority in (("c", 5), ("a", -5), ("b1", 0), ("b2", 0), ("d", 9), ("b3", 0)):
        stage.enqueue("note", name, priority=priority)
    last = stage.enqueue("note", "last", priority=100)
    stage.run("-c", "1")
    stage.archived(last)
    assert stage.lines("noted") == ["a", "b1", "b2", "b3", "c", "d", "last"]


def test_a_scheduled_job_runs_when_it_is_due_and_not_before_nor_a_poll_later(stage: Stage) -> None:
    stage.handlers(JOBS)
    stage.run("-c", "2", "--poll-interval", "30")
    now = stage.rows("SELECT now()")[0][0]
    ids = {
        "in 1 s": stage.enqueue("note", "in", process_in=1),
        "at 1.5 s": stage.enqueue("note", "at", process_at=now + timedelta(seconds=1.5)),
        "timedelta": stage.enqueue("note", "delta", process_in=timedelta(milliseconds=500)),
        "past": stage.enqueue("note", "past", process_at=now - timedelta(days=1)),
    }
    for name, due in (("past", 0.0), ("timedelta", 0.5), ("in 1 s", 1.0), ("at 1.5 s", 1.5)):
        row = stage.archived(ids[name])
        waited = (row["started_at"] - now).total_seconds()
        print(f"{name}: started after {waited:.2f} s")
        assert due <= waited < due + 6, name
    assert stage.lines("noted") == ["past", "delta", "in", "at"]


def test_the_database_clock_decides_what_is_due(stage: Stage) -> None:
    """Rows that were written by hand, with the original's columns only, run too."""
    stage.handlers(JOBS)
    stage.run("-c", "1")
    row = stage.rows(
        "INSERT INTO proletarian.job (job_id, queue, job_type, payload, attempts, enqueued_at, process_at)"
        " VALUES (gen_random_uuid(), 'default', 'note', '\"by hand\"', 0, now(), now()) RETURNING job_id"
    )
    assert stage.archived(row[0][0])["status"] == "success"


def test_a_job_is_seen_at_commit_and_gone_at_rollback(stage: Stage) -> None:
    stage.handlers(JOBS)
    supervisor = stage.run("-c", "1")
    with psycopg.connect(stage.conninfo) as conn:
        gone = enqueue(conn, "note", "rolled back")
        conn.rollback()
        kept = enqueue(conn, "note", "committed")
        marker = stage.archived(stage.enqueue("note", "meanwhile"))
        assert marker["status"] == "success"
        assert stage.job(kept) is None
        conn.commit()
    assert stage.archived(kept)["status"] == "success"
    assert stage.lines("noted") == ["meanwhile", "committed"]
    assert not [event for event in supervisor.events if event.get("job_id") == str(gone)]


def test_own_ids_are_remembered_while_the_job_is_archived(stage: Stage) -> None:
    stage.handlers(JOBS)
    stage.run("-c", "1")
    own = uuid4()
    assert stage.enqueue("note", "own", job_id=own) == own
    assert stage.archived(own)["status"] == "success"
    with pytest.raises(DuplicateJob):
        stage.enqueue("note", "again", job_id=own)
    assert stage.enqueue("note", "again", job_id=own, on_duplicate="ignore") == own
    key = [stage.enqueue("hold", "key", unique_key="one", on_duplicate="ignore") for _ in range(2)]
    assert key[0] == key[1]
    stage.wait_lines("held")
    with pytest.raises(DuplicateJob):
        stage.enqueue("hold", "key", unique_key="one")
    go(stage)
    stage.archived(key[0])
    assert stage.enqueue("note", "key", unique_key="one") != key[0]
    assert stage.lines("noted")[:1] == ["own"]
    assert stage.lines("held") == ["key"]


def test_many_jobs_are_enqueued_and_run_once_each(stage: Stage) -> None:
    stage.handlers(JOBS)
    with stage.conn.transaction():
        ids = enqueue_many(stage.conn, [NewJob("note", number) for number in range(300)])
    supervisor = stage.run("-c", "2", "--until-empty")
    assert supervisor.ended(60) == 0
    assert sorted(map(int, stage.lines("noted"))) == list(range(300))
    done = stage.rows("SELECT job_id FROM proletarian.archived_job WHERE status = 'success' AND attempts = 1")
    assert {job_id for (job_id,) in done} == set(ids)


# ---------------------------------------------------------------------------------------------------------------------
# Queues and slots


def test_a_queue_with_slots_of_its_own_is_not_starved_by_another(stage: Stage) -> None:
    stage.handlers(JOBS)
    supervisor = stage.run("-q", "a=2,b=1")
    for number in range(6):
        stage.enqueue("hold", f"a{number}", queue="a", priority=-9)
    stage.wait_lines("held", 2)
    in_b = [stage.archived(stage.enqueue("note", "b", queue="b")) for _ in range(3)]
    assert {row["result"]["queue"] for row in in_b} == {"b"}
    assert stage.lines("held") == ["a0", "a1"] or stage.lines("held") == ["a1", "a0"]
    slots = {event["slot"] for event in supervisor.named("handling-job", queue="a")}
    assert slots == {"a/1", "a/2"}
    assert {event["slot"] for event in supervisor.named("handling-job", queue="b")} == {"b/1"}
    go(stage)


def test_shared_slots_serve_queues_in_their_order_and_other_queues_not_at_all(stage: Stage) -> None:
    stage.handlers(JOBS)
    other = stage.enqueue("note", "other", queue="other")
    for number in range(3):
        stage.enqueue("note", f"second{number}", queue="second", priority=-9)
    for number in range(3):
        stage.enqueue("note", f"first{number}", queue="first", priority=9)
    supervisor = stage.run("-q", "first,second", "-c", "1", "--until-empty")
    assert supervisor.ended() == 0
    assert stage.lines("noted") == ["first0", "first1", "first2", "second0", "second1", "second2"]
    row = stage.job(other)
    assert row is not None
    assert row["starts"] == 0


def test_one_slot_runs_one_job_at_a_time_and_n_slots_run_n(stage: Stage) -> None:
    stage.handlers("""
        handlers = Handlers()
        @handlers.job("count")
        def count(job):
            mine = FOLDER / "running" / str(job.id)
            mine.touch()
            time.sleep(0.2)
            seen = len(list((FOLDER / "running").iterdir()))
            mine.unlink()
            return seen
    """)
    (stage.folder / "running").mkdir()
    supervisor = stage.run("-c", "3")
    ids = [stage.enqueue("count") for _ in range(12)]
    seen = [stage.archived(job_id, 40)["result"] for job_id in ids]
    assert max(seen) in (2, 3)
    assert len({event["slot"] for event in supervisor.named("handling-job")}) == 3


def test_another_schema_works_and_the_usual_one_is_left_alone(stage: Stage) -> None:
    stage.handlers(JOBS)
    with connect(stage.conninfo) as conn:
        install(conn, "Other_jobs")
    supervisor = stage.run("-c", "1", "--schema", "Other_jobs")
    usual = stage.enqueue("note", "usual")
    job_id = stage.enqueue("note", "other", schema="Other_jobs")
    query = 'SELECT status FROM "Other_jobs".archived_job WHERE job_id = %s'
    wait_until(lambda: stage.rows(query, job_id) == [("success",)], 15, supervisor.story)
    assert stage.lines("noted") == ["other"]
    assert stage.job(usual) is not None


def test_until_empty_waits_for_retries_and_scheduled_ones_are_left(stage: Stage) -> None:
    stage.handlers("""
        handlers = Handlers()
        @handlers.job("second-time", retry=Retry(1, delays=[1.5]))
        def second_time(job):
            if job.attempt == 1: raise ValueError
            return "done"
    """)
    retried = stage.enqueue("second-time")
    later = stage.enqueue("second-time", process_in=3600)
    supervisor = stage.run("-c", "1", "--until-empty")
    assert supervisor.ended() == 0
    assert stage.archived(retried)["result"] == "done"
    assert stage.job(later) is not None
    supervisor.order("retrying", "job-finished", "shutting-down", "completed-shutdown")
    again = stage.run("-c", "1", "--until-empty", wait=False)
    assert again.ended() == 0


# ---------------------------------------------------------------------------------------------------------------------
# Handlers: forms, and how children are started

FORMS = """
    import asyncio
    def default(job_type, payload):
        return ["default", job_type, payload]
    async def coroutine(job_type, payload):
        await asyncio.sleep(0.01)
        return ["async", job_type, payload]
    def advanced(job):
        return ["advanced", job.type, job.payload, job.attempt]
    def failing(job_type, payload):
        raise LookupError(payload)
    def strategy(job, exception):
        return Retry(1, delays=[0])
    async def gone(job, exception):
        (FOLDER / "gone").open("a").write(f"{job.type} {job.attempt} {type(exception).__name__}\\n")
"""


@pytest.mark.parametrize(
    ("target", "options", "expected"),
    [
        ("default", [], ["default", "any type", {"a": 1}]),
        ("coroutine", [], ["async", "any type", {"a": 1}]),
        ("advanced", ["--handler-mode", "advanced"], ["advanced", "any type", {"a": 1}, 1]),
    ],
)
def test_a_plain_function_takes_every_type(stage: Stage, target: str, options: list[str], expected: list[Any]) -> None:
    stage.handlers(FORMS)
    stage.run("-c", "1", *options, target=f"story:{target}")
    assert stage.archived(stage.enqueue("any type", {"a": 1}))["result"] == expected


def test_a_plain_functions_strategy_and_callbacks_are_named_in_the_config(stage: Stage) -> None:
    stage.handlers(FORMS)
    stage.run(
        "-c", "1", "--retry-strategy", "story:strategy", "--failed-job", "story:gone", "--failed-attempt", "story:gone",
        target="story:failing",
    )  # fmt: skip
    row = stage.archived(stage.enqueue("some", "key"))
    assert (row["status"], row["attempts"], row["error"]["type"]) == ("failure", 2, "LookupError")
    assert stage.lines("gone") == ["some 1 LookupError", "some 2 LookupError", "some 2 LookupError"]


SPAWN = """
    (FOLDER / "imports").open("a").write(f"{os.getpid()}\\n")
    def tell(job, exception):
        (FOLDER / "told").open("a").write(f"{job.type} {type(exception).__name__}\\n")
    handlers = Handlers(failed_job=tell)
    OPEN = []
    @handlers.child_start
    def start():
        OPEN.append(os.getpid())
    @handlers.job("pid", timeout=60)
    def pid(job):
        print("in", os.getpid())
        return [os.getpid(), OPEN, job.timeout]
    @handlers.job("raise", retry=Retry(1, delays=[0]))
    def fail(job):
        raise ValueError("raised")
    @handlers.job("die")
    def die(job):
        os.kill(os.getpid(), signal.SIGKILL)
    @handlers.job("hang", timeout=0.5, grace=0)
    def hang(job):
        sum(range(10**11))
    @handlers.job("leave")
    def leave(job):
        return subprocess.Popen(["sleep", "300"], start_new_session=True).pid
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_same_happens_whether_children_are_forked_or_spawned(stage: Stage, method: str) -> None:
    stage.handlers(SPAWN)
    supervisor = stage.run("-c", "1", "--start-method", method)
    job_id = stage.enqueue("pid")
    pid, opened, timeout = stage.archived(job_id, 40)["result"]
    assert opened == [pid], "child_start ran once, in the child"
    assert timeout == 60
    wait_until(lambda: (str(job_id), f"in {pid}") in supervisor.output, 10, supervisor.story)
    importers = {int(line) for line in stage.lines("imports")}
    assert (pid in importers) == (method == "spawn")
    for name, reason, attempts, told in (
        ("raise", "exception", 2, "raise ValueError"), ("die", "crash", 1, "die JobCrashed"),
        ("hang", "timeout", 1, "hang JobTimedOut"),
    ):  # fmt: skip
        row = stage.archived(stage.enqueue(name), 40)
        assert (row["status"], row["reason"], row["attempts"]) == ("failure", reason, attempts)
        assert told in stage.lines("told")
    left = stage.archived(stage.enqueue("leave"), 40)["result"]
    nothing_left([left], 0.5)
    assert supervisor.stop() == 0
    nothing_left(supervisor.cookie)


BROKEN = {
    "raises": ("raise RuntimeError('no such device')", "RuntimeError: no such device"),
    "does-not-compile": ("def x(:", "SyntaxError"),
    "exits": ("sys.exit(0)", "SystemExit"),
    "kills-itself": ("os.kill(os.getpid(), signal.SIGKILL)", "signal 9"),
    "has-no-handlers": ("other = 1", "handlers"),
    "is-no-handler": ("handlers = 3", "int"),
    "no-job-type": ("handlers = Handlers()", "no job type"),
    "imports-what-is-not-there": ("import there_is_no_such_module", "No module named 'there_is_no_such_module'"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_handlers_that_do_not_load_end_the_supervisor_and_no_row_is_touched(stage: Stage, name: str) -> None:
    code, expected = BROKEN[name]
    stage.handlers(code)
    job_id = stage.enqueue("note")
    before = stage.job(job_id)
    supervisor = stage.run("-c", "1", wait=False)
    assert supervisor.ended(40) == 2, supervisor.story()
    assert expected in str(supervisor.named("boot-failed")[0]["error"]), supervisor.story()
    assert stage.job(job_id) == before
    assert stage.rows("SELECT count(*) FROM proletarian.supervisor") == [(0,)]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_start_that_raises_ends_the_supervisor_and_no_row_is_touched(stage: Stage, method: str) -> None:
    stage.handlers("""
        handlers = Handlers()
        @handlers.child_start
        def start():
            raise RuntimeError("no such device")
        @handlers.job("note")
        def note(job):
            pass
    """)
    job_id = stage.enqueue("note")
    before = stage.job(job_id)
    supervisor = stage.run("-c", "2", "--start-method", method, wait=False)
    assert supervisor.ended(40) == 2, supervisor.story()
    assert "RuntimeError: no such device" in supervisor.named("boot-failed")[0]["error"]
    assert stage.job(job_id) == before


def test_an_import_or_a_child_start_that_does_not_end_ends_at_boot_timeout(stage: Stage) -> None:
    stage.handlers("time.sleep(600)", name="hangs")
    stage.handlers(
        """
        handlers = Handlers()
        @handlers.child_start
        def start():
            time.sleep(600)
        @handlers.job("note")
        def note(job):
            pass
        """,
        name="starts",
    )
    for module in ("hangs", "starts"):
        supervisor = stage.run("-c", "1", "--boot-timeout", "2", target=f"{module}:handlers", wait=False)
        assert supervisor.ended(40) == 2, supervisor.story()
        assert "within 2 s" in supervisor.named("boot-failed")[0]["error"]


def test_a_child_start_that_fails_later_is_tried_again_and_costs_no_attempt(stage: Stage) -> None:
    stage.handlers("""
        handlers = Handlers()
        @handlers.child_start
        def start():
            if (FOLDER / "broken").exists():
                (FOLDER / "tries").open("a").write("try\\n")
                raise RuntimeError("for a while")
        @handlers.job("note")
        def note(job):
            return job.attempt
    """)
    supervisor = stage.run("-c", "1", "--recycle-after", "0")
    (stage.folder / "broken").touch()
    assert stage.archived(stage.enqueue("note"))["status"] == "success"  # by the child that is there
    job_id = stage.enqueue("note")
    stage.wait_lines("tries", 2)
    (stage.folder / "broken").unlink()
    row = stage.archived(job_id)
    assert (row["status"], row["result"], row["attempts"]) == ("success", 1, 1)
    assert len(supervisor.named("boot-failed")) >= 2


def test_wrong_usage_exits_2_with_a_sentence(stage: Stage) -> None:
    stage.handlers(JOBS)
    for options, named in (
        (["-q", "a=1,b"], "queue"), (["-q", "a=1", "-c", "3"], "concurrency"), (["--timeout", "soon"], "timeout"),
        (["--shutdown", "later"], "shutdown"), (["--memory", "-1"], "memory"),
    ):  # fmt: skip
        command = [sys.executable, "-m", "ganger", "run", "story:handlers", *options]
        env = {**os.environ, "DATABASE_URL": stage.conninfo, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=stage.folder, env=env, text=True, capture_output=True, timeout=60)
        assert done.returncode in (2, 78), (options, done)
        assert named in done.stderr, (options, done.stderr)
        assert "Traceback" not in done.stderr


def test_ids_are_in_the_order_of_time(stage: Stage) -> None:
    ids = [stage.enqueue("note") for _ in range(20)]
    assert ids == sorted(ids)
    assert {UUID(str(job_id)).version for job_id in ids} == {7}
    made = datetime.fromtimestamp((ids[0].int >> 80) / 1000, UTC)
    assert abs((made - datetime.now(UTC)).total_seconds()) < 60
