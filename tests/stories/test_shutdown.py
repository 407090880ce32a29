"""Stopping a supervisor while jobs run: what each policy does to a job that waits and to one that computes."""

from __future__ import annotations

import signal
import time
from typing import Any
from uuid import UUID

import psycopg
import pytest

from ganger import NewJob, cancel, enqueue_many
from tests.processes import wait_until
from tests.stories.stage import Running, Stage

HANDLERS = """
    import asyncio, socket, threading

    handlers = Handlers()

    def mark(word):
        with open(FOLDER / "ledger", "a") as file:
            file.write(word + "\\n")

    def compute(seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass

    @handlers.job("sleep")
    def sleep(job):
        mark("begin")
        time.sleep(job.payload.get("seconds", 60))
        mark("end")

    @handlers.job("wait-async")
    async def wait_async(job):
        mark("begin")
        try:
            await asyncio.gather(asyncio.sleep(60), asyncio.Event().wait())
        finally:
            await asyncio.sleep(0.1)
            mark("cleanup")

    @handlers.job("wait-sql")
    def wait_sql(job):
        import psycopg
        with psycopg.connect(os.environ["DATABASE_URL"], application_name="the job") as conn:
            mark("begin")
            conn.execute("SELECT pg_sleep(60)")

    @handlers.job("wait-socket")
    def wait_socket(job):
        ours, theirs = socket.socketpair()
        mark("begin")
        ours.recv(1)

    @handlers.job("wait-lock")
    def wait_lock(job):
        lock = threading.Lock()
        lock.acquire()
        mark("begin")
        lock.acquire()

    @handlers.job("compute")
    def computing(job):
        mark("begin")
        compute(job.payload["seconds"])
        mark("end")

    @handlers.job("compute-in-c")
    def computing_in_c(job):
        mark("begin")
        sum(range(job.payload.get("numbers", 10**11)))
        compute(60)

    @handlers.job("compute-then-sleep")
    def compute_then_sleep(job):
        mark("begin")
        compute(2)
        mark("waits")
        time.sleep(60)

    @handlers.job("sheltered")
    def sheltered(job):
        with job.uninterruptible():
            mark("begin")
            time.sleep(2.5)
            mark("out")
        time.sleep(60)

    @handlers.job("looks")
    def looks(job):
        mark("begin")
        for _ in range(600):
            compute(0.1)
            job.check()
        mark("end")

    @handlers.job("swallows")
    def swallows(job):
        try:
            mark("begin")
            time.sleep(60)
        except JobInterrupted:
            mark("cleanup")
        return "kept"

    @handlers.job("turns")
    def turns(job):
        try:
            mark("begin")
            time.sleep(60)
        except JobInterrupted:
            raise RuntimeError("half done")

    @handlers.job("looks-and-stops")
    def looks_and_stops(job):
        mark("begin")
        while not job.interrupted:
            compute(0.1)
        mark("saw it")
        if job.payload["how"] == "raise":
            raise JobInterrupted("enough")
        return "as far as I came"

    @handlers.job("typed", shutdown="terminate", grace=0.5)
    def typed(job):
        assert job.shutdown == job.payload["shutdown"]
        mark("begin")
        compute(job.payload.get("seconds", 60))
        mark("end")

    @handlers.job("waits-for-a-thread")
    def waits_for_a_thread(job):
        thread = threading.Thread(target=compute, args=(2.5,))
        thread.start()
        mark("begin")
        thread.join()
        mark("end")

    @handlers.job("waits-for-a-program")
    def waits_for_a_program(job):
        with subprocess.Popen([sys.executable, "-c", f"sum(range({job.payload['numbers']}))"]) as program:
            mark("begin")
            assert program.wait() == 0
        mark("end")

    def failed_attempt(job, exception):
        mark("callback begins")
        time.sleep(job.payload["seconds"])
        mark("callback ends")

    @handlers.job("fails", failed_attempt=failed_attempt)
    def fails(job):
        raise ValueError("no")

    @handlers.job("ignores")
    def ignores(job):
        mark("begin")
        end = time.monotonic() + 3.5  # longer than half the grace
        while time.monotonic() < end:
            try:
                time.sleep(0.2)
            except BaseException:
                mark("ignored")
        return "all of it"
"""


def started(stage: Stage, job_type: str, payload: Any = None, *options: str, **of_job: Any) -> tuple[Running, UUID]:
    """A supervisor whose only slot runs this job."""
    stage.handlers(HANDLERS)
    supervisor = stage.run("-c", "1", *options)
    job_id = stage.enqueue(job_type, payload or {}, **of_job)
    stage.wait_lines("ledger", 1)
    return supervisor, job_id


def is_back(stage: Stage, job_id: UUID) -> None:
    """It is in its queue, ready and uncounted; and it runs to its end at the next start."""
    row = stage.job(job_id)
    assert row is not None
    assert (row["state"], row["attempts"], row["interrupts"], row["crashes"], row["losses"]) == (1, 0, 1, 0, 0)
    assert stage.rows("SELECT count(*) FROM proletarian.archived_job") == [(0,)]


@pytest.mark.parametrize("kind", ["sleep", "wait-async", "wait-socket", "wait-lock", "wait-sql"])
def test_a_waiting_job_is_interrupted_at_once(stage: Stage, kind: str) -> None:
    """Although it began to wait just before, so that its warden has hardly looked at it."""
    supervisor, job_id = started(stage, kind)
    assert supervisor.stop(limit=9) == 0  # 3 s, threefold
    supervisor.order("handling-job", "shutting-down", "job-interrupted", "completed-shutdown")
    assert supervisor.named("job-interrupted")[0]["wall_s"] < 9
    assert supervisor.named("completed-shutdown")[0]["wall_s"] < 9
    assert stage.lines("ledger") == (["begin", "cleanup"] if kind == "wait-async" else ["begin"])
    assert stage.rows("SELECT query FROM pg_stat_activity WHERE application_name = 'the job'") == []
    is_back(stage, job_id)


def test_the_same_where_each_child_is_an_interpreter_of_its_own(stage: Stage) -> None:
    supervisor, job_id = started(stage, "sleep", None, "--start-method", "spawn")
    assert supervisor.stop(limit=9) == 0
    supervisor.order("handling-job", "shutting-down", "job-interrupted", "completed-shutdown")
    is_back(stage, job_id)


def test_an_interrupted_job_runs_to_its_end_at_the_next_start(stage: Stage) -> None:
    supervisor, job_id = started(stage, "sleep")
    assert supervisor.stop() == 0
    stage.rows("UPDATE proletarian.job SET payload = '{\"seconds\": 0.1}' RETURNING 1")
    stage.run("-c", "1")
    assert stage.archived(job_id)["attempts"] == 1
    assert stage.lines("ledger") == ["begin", "begin", "end"]


def test_a_computing_job_is_awaited_and_nothing_new_begins(stage: Stage) -> None:
    supervisor, job_id = started(stage, "compute", {"seconds": 3})
    waiting = stage.enqueue("compute", {"seconds": 0})
    supervisor.send(signal.SIGTERM)
    supervisor.expect("shutting-down")
    later = stage.enqueue("compute", {"seconds": 0})
    assert supervisor.ended() == 0
    supervisor.order("shutting-down", "job-finished", "completed-shutdown")
    assert stage.archived(job_id)["status"] == "success"
    for other in (waiting, later):
        row = stage.job(other)
        assert row is not None
        assert (row["state"], row["attempts"], row["starts"]) == (1, 0, 0)
    assert not supervisor.named("job-interrupted")


POLICIES = [
    # policy, kind of job, outcome
    ("finish", "sleep", "job-finished"),
    ("finish", "compute", "job-finished"),
    ("interrupt", "sleep", "job-interrupted"),
    ("interrupt", "compute", "job-interrupted"),
    ("terminate", "sleep", "job-interrupted"),
    ("terminate", "compute", "job-interrupted"),
    ("terminate", "compute-in-c", "job-interrupted"),
]


@pytest.mark.parametrize(("policy", "kind", "outcome"), POLICIES)
def test_each_policy(stage: Stage, policy: str, kind: str, outcome: str) -> None:
    seconds = 2 if outcome == "job-finished" else 60
    supervisor, job_id = started(stage, kind, {"seconds": seconds}, "--shutdown", policy, "--grace", "1")
    assert supervisor.stop() == 0
    supervisor.order("shutting-down", outcome, "completed-shutdown")
    assert len(supervisor.named(outcome)) == 1
    if outcome == "job-finished":
        assert stage.archived(job_id)["status"] == "success"
    else:
        is_back(stage, job_id)


def test_a_jobs_own_policy_stands_above_the_supervisors(stage: Stage) -> None:
    supervisor, job_id = started(stage, "sleep", {"seconds": 2.5}, "--shutdown", "terminate", shutdown="finish")
    assert supervisor.stop() == 0
    assert stage.archived(job_id)["status"] == "success"


def test_a_computing_job_that_then_waits_is_interrupted_after_a_while(stage: Stage) -> None:
    supervisor, job_id = started(stage, "compute-then-sleep", None, "--interrupt-after", "2")
    supervisor.send(signal.SIGTERM)
    stage.wait_lines("ledger", 2)
    assert not supervisor.named("job-interrupted")
    assert supervisor.ended() == 0
    supervisor.order("shutting-down", "job-interrupted", "completed-shutdown")
    is_back(stage, job_id)


def test_what_computes_in_c_is_interrupted_when_it_comes_back(stage: Stage) -> None:
    supervisor, job_id = started(stage, "compute-in-c", {"numbers": 5 * 10**7}, "--shutdown", "interrupt")
    assert supervisor.stop() == 0
    supervisor.order("shutting-down", "job-interrupted", "completed-shutdown")
    is_back(stage, job_id)


def test_a_section_may_be_sheltered_from_shutdown(stage: Stage) -> None:
    supervisor, job_id = started(stage, "sheltered")
    assert supervisor.stop() == 0
    assert stage.lines("ledger") == ["begin", "out"]
    is_back(stage, job_id)


def test_but_not_from_a_second_ctrl_c(stage: Stage) -> None:
    supervisor, job_id = started(stage, "sheltered", None, "--grace", "0.5")
    supervisor.send(signal.SIGINT)
    supervisor.expect("shutting-down")
    time.sleep(0.6)  # sooner it is the same key press
    assert supervisor.stop(signal.SIGINT, limit=9) == 0
    assert stage.lines("ledger") == ["begin"]
    is_back(stage, job_id)


def test_a_computing_job_that_looks_may_leave(stage: Stage) -> None:
    supervisor, job_id = started(stage, "looks")
    assert supervisor.stop(limit=9) == 0
    supervisor.order("shutting-down", "job-interrupted", "completed-shutdown")
    assert stage.lines("ledger") == ["begin"]
    is_back(stage, job_id)


def test_a_complete_result_wins_over_the_interrupt(stage: Stage) -> None:
    supervisor, job_id = started(stage, "swallows")
    assert supervisor.stop() == 0
    row = stage.archived(job_id)
    assert (row["status"], row["result"], row["attempts"]) == ("success", "kept", 1)
    assert stage.lines("ledger") == ["begin", "cleanup"]


def test_an_interrupt_that_is_turned_into_an_error_is_still_an_interrupt(stage: Stage) -> None:
    supervisor, job_id = started(stage, "turns")
    assert supervisor.stop() == 0
    supervisor.order("shutting-down", "handle-job-exception-with-interrupt", "completed-shutdown")
    is_back(stage, job_id)


def test_a_job_that_ignores_the_interrupt_is_awaited(stage: Stage) -> None:
    supervisor, job_id = started(stage, "ignores")
    assert supervisor.stop() == 0
    row = stage.archived(job_id)
    assert (row["status"], row["result"]) == ("success", "all of it")
    assert 1 <= stage.lines("ledger").count("ignored") <= 2  # once, and again after half the grace


@pytest.mark.parametrize("policy", ["wait", "finish"])
def test_shutdown_timeout_bounds_the_waiting(stage: Stage, policy: str) -> None:
    options = ("--shutdown-timeout", "1", "--grace", "0.5")
    supervisor, job_id = started(stage, "compute-in-c", None, *options, shutdown=policy)
    assert supervisor.stop(limit=12) == 0  # 1 + 0.5 + 1 and what closing takes, threefold
    supervisor.order("shutting-down", "job-interrupted", "completed-shutdown")
    assert supervisor.named("ladder-step", step="kill", reason="shutdown")
    is_back(stage, job_id)


def test_many_slots_are_each_treated_by_their_own_kind(stage: Stage) -> None:
    """D59, https://github.com/celery/celery/issues/2807: a job in a long sleep is interrupted within 3 s, one that
    computes completes, and one that is to be terminated is."""
    stage.handlers(HANDLERS)
    supervisor = stage.run("-c", "3")
    waiting = stage.enqueue("sleep", {"seconds": 600})
    computing = stage.enqueue("compute", {"seconds": 6})
    own = stage.enqueue("compute", {"seconds": 60}, shutdown="terminate", grace=0.5)
    stage.wait_lines("ledger", 3)
    supervisor.send(signal.SIGTERM)
    supervisor.expect("shutting-down")
    supervisor.expect("job-interrupted", 9, job_id=str(waiting))  # 3 s, threefold
    assert supervisor.ended() == 0
    assert stage.archived(computing)["status"] == "success"
    for job_id in (waiting, own):
        row = stage.job(job_id)
        assert row is not None
        assert (row["state"], row["attempts"]) == (1, 0)


def test_a_job_types_policy_stands_between_the_jobs_and_the_supervisors(stage: Stage) -> None:
    stage.handlers(HANDLERS)
    supervisor = stage.run("-c", "2", "--shutdown", "interrupt")
    of_type = stage.enqueue("typed", {"shutdown": "terminate"})
    of_job = stage.enqueue("typed", {"shutdown": "finish", "seconds": 2.5}, shutdown="finish")
    stage.wait_lines("ledger", 2)
    assert supervisor.stop() == 0
    assert stage.archived(of_job)["status"] == "success"
    row = stage.job(of_type)
    assert row is not None
    assert (row["attempts"], row["interrupts"]) == (0, 1)


def test_a_computing_job_may_see_that_it_is_asked_to_stop(stage: Stage) -> None:
    supervisor, job_id = started(stage, "looks-and-stops", {"how": "raise"})
    assert supervisor.stop(limit=9) == 0
    supervisor.order("shutting-down", "job-interrupted", "completed-shutdown")
    assert stage.lines("ledger") == ["begin", "saw it"]
    is_back(stage, job_id)


def test_to_return_is_to_have_finished(stage: Stage) -> None:
    supervisor, job_id = started(stage, "looks-and-stops", {"how": "return"})
    assert supervisor.stop(limit=9) == 0
    assert stage.archived(job_id)["result"] == "as far as I came"


@pytest.mark.parametrize("kind", ["waits-for-a-thread", "waits-for-a-program"])
def test_a_job_computes_as_long_as_anything_of_it_does(stage: Stage, kind: str) -> None:
    supervisor, job_id = started(stage, kind, {"numbers": 8 * 10**7})
    assert supervisor.stop() == 0
    assert stage.archived(job_id)["status"] == "success"


def test_what_an_interrupted_job_waited_for_is_ended_with_it(stage: Stage) -> None:
    supervisor, job_id = started(stage, "waits-for-a-program", {"numbers": 10**12}, "--shutdown", "interrupt")
    assert supervisor.stop(limit=9) == 0
    is_back(stage, job_id)


def test_a_handler_that_ignores_the_interrupt_is_awaited_under_interrupt_too(stage: Stage) -> None:
    supervisor, job_id = started(stage, "ignores", None, "--shutdown", "interrupt")
    assert supervisor.stop() == 0
    assert stage.archived(job_id)["result"] == "all of it"


def test_under_terminate_it_is_not(stage: Stage) -> None:
    supervisor, job_id = started(stage, "ignores", None, "--shutdown", "terminate", "--grace", "1")
    assert supervisor.stop(limit=9) == 0
    steps = [event["step"] for event in supervisor.named("ladder-step")]
    assert steps == ["interrupt", "interrupt", "terminate", "kill"]
    supervisor.order("shutting-down", "ladder-step", "job-interrupted", "completed-shutdown")
    is_back(stage, job_id)


def test_callbacks_run_to_their_end(stage: Stage) -> None:
    stage.handlers(HANDLERS)
    supervisor = stage.run("-c", "1")
    job_id = stage.enqueue("fails", {"seconds": 2})
    stage.wait_lines("ledger")
    assert supervisor.stop() == 0
    assert stage.lines("ledger") == ["callback begins", "callback ends"]
    row = stage.archived(job_id)
    assert (row["status"], row["reason"], row["attempts"]) == ("failure", "exception", 1)
    supervisor.order("handle-job-exception", "not-retrying", "shutting-down", "completed-shutdown")
    assert not supervisor.named("job-interrupted")


@pytest.mark.parametrize("how", ["configured", "of the job", "second Ctrl-C"])
def test_callbacks_are_cut_short_under_terminate(stage: Stage, how: str) -> None:
    stage.handlers(HANDLERS)
    supervisor = stage.run("-c", "1", *(("--shutdown", "terminate") if how == "configured" else ()))
    job_id = stage.enqueue("fails", {"seconds": 25}, shutdown="terminate" if how == "of the job" else None)
    stage.wait_lines("ledger")
    supervisor.send(signal.SIGINT)
    if how == "second Ctrl-C":
        supervisor.expect("shutting-down")
        time.sleep(0.6)  # sooner it is the same key press
        assert not supervisor.named("completed-shutdown")
        supervisor.send(signal.SIGINT)
    assert supervisor.ended(limit=9) == 0
    supervisor.order("handle-job-exception", "shutting-down", "job-interrupted", "completed-shutdown")
    is_back(stage, job_id)


def test_a_job_that_was_sent_and_did_not_start_goes_back_at_once(stage: Stage) -> None:
    """Correction 13: without a word that it has started it never was, and costs no attempt."""
    stage.handlers(HANDLERS)
    supervisor = stage.run("-c", "1")
    supervisor.child().suspend()
    job_id = stage.enqueue("sleep", {})
    supervisor.expect("handling-job")
    assert supervisor.stop(limit=9) == 0
    supervisor.order("handling-job", "shutting-down", "job-released", "completed-shutdown")
    assert stage.lines("ledger") == []
    row = stage.job(job_id)
    assert row is not None
    assert (row["state"], row["attempts"], row["interrupts"]) == (1, 0, 0)


def test_limits_hold_while_a_job_is_awaited(stage: Stage) -> None:
    supervisor, job_id = started(stage, "compute", {"seconds": 60}, timeout=2, grace=0.5)
    assert supervisor.stop() == 0
    supervisor.order("shutting-down", "job-timed-out", "completed-shutdown")
    row = stage.archived(job_id)
    assert (row["status"], row["reason"], row["attempts"]) == ("failure", "timeout", 1)


def test_a_job_that_is_awaited_may_be_cancelled(stage: Stage) -> None:
    supervisor, job_id = started(stage, "compute", {"seconds": 60}, "--grace", "0.5")
    supervisor.send(signal.SIGTERM)
    supervisor.expect("shutting-down")
    cancel(stage.conn, job_id)
    assert supervisor.ended() == 0
    supervisor.order("shutting-down", "job-cancelled", "completed-shutdown")
    assert stage.archived(job_id)["status"] == "cancelled"


def test_a_child_that_is_still_booting_is_not_waited_for(stage: Stage) -> None:
    stage.handlers("""
        handlers = Handlers()

        @handlers.child_start
        def load_a_model():
            (FOLDER / "ledger").write_text("loading\\n")
            time.sleep(60)

        @handlers.job("sleep")
        def sleep(job):
            pass
    """)
    supervisor = stage.run("-c", "1", wait=False)
    job_id = stage.enqueue("sleep")
    stage.wait_lines("ledger")
    assert supervisor.cookie
    assert supervisor.stop(limit=9) == 0
    row = stage.job(job_id)
    assert row is not None
    assert (row["state"], row["attempts"]) == (1, 0)


def test_an_interrupted_job_goes_on_at_another_supervisor_at_once(stage: Stage) -> None:
    stage.handlers("""
        handlers = Handlers()

        @handlers.job("sleep")
        def sleep(job):
            with open(FOLDER / "ledger", "a") as file:
                file.write("begin\\n")
            time.sleep(60 if len((FOLDER / "ledger").read_text()) < 8 else 0)
    """)
    first = stage.run("-c", "1")
    job_id = stage.enqueue("sleep")
    stage.wait_lines("ledger")
    second = stage.run("-c", "1", "--poll-interval", "0.5")
    assert first.stop(limit=9) == 0
    assert stage.archived(job_id)["attempts"] == 1
    second.expect("job-finished", job_id=str(job_id))
    assert stage.lines("ledger") == ["begin", "begin"]


def test_a_flood_is_stopped_in_its_middle(stage: Stage) -> None:
    stage.handlers("""
        handlers = Handlers()

        @handlers.job("tiny")
        def tiny(job):
            with open(FOLDER / "ledger", "a") as file:
                file.write(f"{job.payload}\\n")
    """)
    enqueue_many(stage.conn, [NewJob("tiny", number) for number in range(900)])
    for at in (150, 450):
        supervisor = stage.run("-c", "3", wait=False)
        stage.wait_lines("ledger", at, limit=40)
        assert supervisor.cookie
        assert supervisor.stop() == 0
        assert stage.rows("SELECT count(*) FROM proletarian.job WHERE state = 2 OR attempts > 0") == [(0,)]
        done, left = len(stage.lines("ledger")), stage.rows("SELECT count(*) FROM proletarian.job")[0][0]
        assert stage.rows("SELECT count(*) FROM proletarian.archived_job WHERE status = 'success'") == [(done,)]
        assert done + left == 900
    stage.run("-c", "3", "--until-empty", wait=False).ended(60)
    assert sorted(map(int, stage.lines("ledger"))) == list(range(900))


def test_what_a_claim_brings_after_sigterm_goes_back(stage: Stage) -> None:
    """D56, https://github.com/collectiveidea/delayed_job/issues/812: SIGTERM comes while a claim is under way, which
    the database holds up for a second. Its rows go back without an attempt and are never started."""
    stage.handlers(HANDLERS)
    supervisor = stage.run("-c", "4")
    supervisor.expect("child-started", count=4)  # so that the claim is for all of them
    claiming = """SELECT count(*) FROM pg_stat_activity
                  WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE %s"""
    with psycopg.connect(stage.conninfo) as conn:
        conn.execute("LOCK TABLE proletarian.job IN EXCLUSIVE MODE")
        enqueue_many(conn, [NewJob("compute", {"seconds": 0})] * 4)
        wait_until(lambda: stage.rows(claiming, "%claim_id%") == [(1,)], 10, supervisor.story)
        supervisor.send(signal.SIGTERM)
        supervisor.expect("shutting-down")
        time.sleep(1.0)  # the delay itself
    assert supervisor.ended() == 0
    assert stage.lines("ledger") == []
    assert not supervisor.named("handling-job")
    assert len(supervisor.named("job-released")) == 4
    assert stage.rows("SELECT state, attempts, supervisor_id FROM proletarian.job") == [(1, 0, None)] * 4


def test_after_its_exit_no_row_is_held(stage: Stage) -> None:
    """D57, https://github.com/janbjorge/pgqueuer/issues/630: four jobs run and four are claimed and not started (their
    children are stopped). After SIGTERM no row is held, and a second supervisor takes all of them at once."""
    stage.handlers(HANDLERS)
    supervisor = stage.run("-c", "8", "--grace", "3")
    wait_until(lambda: len(supervisor.processes("child")) == 8, 15, supervisor.story)
    ids = [stage.enqueue("sleep", {"seconds": 600}) for _ in range(4)]
    stage.wait_lines("ledger", 4)
    idle = [child for child in supervisor.processes("child") if "sleep" not in " ".join(child.cmdline())]
    assert len(idle) == 4
    for child in idle:
        child.suspend()
    ids += [stage.enqueue("sleep", {"seconds": 600}) for _ in range(4)]
    supervisor.expect("handling-job", count=8)
    assert supervisor.stop(limit=3 * 5) == 0
    rows = "SELECT state, attempts, supervisor_id FROM proletarian.job"
    assert stage.rows(rows) == [(1, 0, None)] * 8
    assert len(stage.lines("ledger")) == 4
    second = stage.run("-c", "8")
    second.expect("handling-job", 3, count=8)
    assert second.stop() == 0
