"""How children and their jobs come to an end: what is flushed and kept, what is counted, what is told."""

from __future__ import annotations

import signal
import time
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from ganger import NewJob, enqueue_many
from tests.namespaces import control_group
from tests.processes import alive, wait_until
from tests.stories.stage import Stage

pytestmark = pytest.mark.slow

# ---------------------------------------------------------------------------------------------------------------------
# What a child leaves behind


@pytest.mark.slow
def test_what_a_job_holds_back_is_flushed(stage: Stage) -> None:
    """D83, https://github.com/frappe/frappe/pull/43036: a MemoryHandler, a print without a newline, and a record
    in a queue whose listener has a thread: all come out, with the job or when its child ends. An end that does not come
    is given up after 5 s."""
    stage.handlers("""
        import atexit, logging, logging.handlers, queue
        handlers = Handlers()
        log = logging.getLogger("story")

        @handlers.job("holds")
        def holds(job):
            log.addHandler(logging.handlers.MemoryHandler(100, target=logging.StreamHandler(sys.stdout)))
            log.error("from memory")
            print("no newline", end="")

        @handlers.job("queues")
        def queues(job):
            records = queue.Queue()
            listener = logging.handlers.QueueListener(records, logging.StreamHandler(sys.stdout))
            listener.start()
            atexit.register(listener.stop)
            log.addHandler(logging.handlers.QueueHandler(records))
            log.error("from a queue")

        @handlers.job("never")
        def never(job):
            atexit.register(time.sleep, 600)
            atexit.register(sum, range(10**11))
    """)
    supervisor = stage.run("-c", "1", "--recycle-after", "60")
    holds = stage.enqueue("holds")
    stage.archived(holds)
    queues = stage.enqueue("queues")
    stage.archived(queues)
    wait_until(lambda: any(line == "from a queue" for _, line in supervisor.output), 5, supervisor.story)
    lines = [line for job_id, line in supervisor.output if job_id == str(holds)]
    assert sorted(lines) == ["from memory", "no newline"], supervisor.output
    began = time.monotonic()
    stage.archived(stage.enqueue("never"), 30)
    fine = stage.enqueue("holds")
    stage.archived(fine, 30)
    assert time.monotonic() - began < 3 * 6.5, "5 s to flush, and what the kill takes"
    assert supervisor.stop() == 0


def test_a_temporary_folder_of_the_module_outlives_its_children(stage: Stage) -> None:
    """D84, https://github.com/Macaulay2/M2/issues/296: the module holds a TemporaryDirectory. Children end, each in
    another way, and it is still there for the next job; one that a job made is gone with its child."""
    stage.handlers("""
        import tempfile
        handlers = Handlers()
        shared = tempfile.TemporaryDirectory(dir=FOLDER)
        kept = []

        @handlers.job("look")
        def look(job):
            assert os.path.isdir(shared.name)
            (Path(shared.name) / str(job.id)).touch()
            if job.payload == "crash": os._exit(0)
            if job.payload == "sys.exit": sys.exit(0)
            if job.payload == "hang": time.sleep(600)
            kept.append(tempfile.TemporaryDirectory(dir=FOLDER, prefix="own-"))
            return [kept[-1].name, sorted(os.listdir(shared.name))]
    """)
    supervisor = stage.run("-c", "1", "--recycle-after", "0")
    for payload, timeout in (("", None), ("crash", None), ("sys.exit", None), ("hang", 0.5), ("", None)):
        stage.archived(stage.enqueue("look", payload, timeout=timeout, grace=1))
    row = stage.archived(stage.enqueue("look"))
    assert row["status"] == "success", row["error"]
    own, seen = row["result"]
    assert len(seen) == 6
    wait_until(lambda: not Path(own).exists(), 5, "the folder of the job is still there")
    assert not list(stage.folder.glob("own-*"))
    assert supervisor.stop() == 0


# ---------------------------------------------------------------------------------------------------------------------
# Limits


def test_what_was_loaded_before_does_not_count_against_a_jobs_memory(stage: Stage) -> None:
    """D60, https://github.com/celery/celery/issues/4125: 300 MB preloaded, a limit of 200 MB. A small job is not
    killed, and its peak is told without the base; one that takes 250 MB itself is."""
    stage.handlers("""
        ballast = b"x" * (300 << 20)
        handlers = Handlers()

        @handlers.job("takes", memory="200MiB", grace=0)
        def takes(job):
            own = b"y" * (job.payload << 20)
            time.sleep(1.2 if job.payload < 200 else 60)  # two looks at least
            return len(ballast)
    """)
    supervisor = stage.run("-c", "2")
    small, large = stage.enqueue("takes", 10), stage.enqueue("takes", 250)
    row = stage.archived(small)
    assert (row["status"], row["result"]) == ("success", 300 << 20)
    assert 10 << 20 <= row["max_rss"] < 40 << 20
    row = stage.archived(large)
    assert (row["reason"], row["rung"]) == ("memory", "kill")
    assert 240 << 20 <= supervisor.named("job-out-of-memory")[0]["held"] < 320 << 20


def test_three_jobs_that_obey_differently_have_all_timed_out_and_the_rung_is_told(stage: Stage) -> None:
    """D80, https://github.com/Netflix/genie/issues/546: one obeys the interrupt, one SIGTERM, one nothing. All are
    "timeout" whichever signal ended them, with the rung of the ladder beside it."""
    stage.handlers("""
        handlers = Handlers()

        @handlers.job("obeys the interrupt")
        def interrupt(job):
            time.sleep(600)

        @handlers.job("obeys SIGTERM")
        def terminate(job):
            signal.signal(signal.SIGTERM, lambda number, frame: os._exit(5))
            while True:
                try: time.sleep(600)
                except BaseException: pass

        @handlers.job("obeys nothing")
        def nothing(job):
            sum(range(10**11))
    """)
    supervisor = stage.run("-c", "3", "--timeout", "0.7", "--grace", "0.7")
    ids = [stage.enqueue(f"obeys {what}") for what in ("the interrupt", "SIGTERM", "nothing")]
    rows = [stage.archived(job_id) for job_id in ids]
    assert {(row["status"], row["reason"], row["attempts"], row["crashes"]) for row in rows} == {
        ("failure", "timeout", 1, 0)
    }
    assert [(row["rung"], row["exit_code"], row["term_signal"]) for row in rows] == [
        ("interrupt", None, None), ("terminate", 5, None), ("kill", None, signal.SIGKILL),
    ]  # fmt: skip
    assert len(supervisor.named("job-timed-out")) == 3


# ---------------------------------------------------------------------------------------------------------------------
# Retries


def test_jobs_that_failed_together_do_not_come_back_together(stage: Stage) -> None:
    """D62, https://github.com/payloadcms/payload/issues/16318: 200 jobs fail within a second or so. Their next runs are
    spread as ``Retry.exponential`` says, a quarter downwards; attempt 60 of another is capped and overflows nothing."""
    stage.handlers("""
        handlers = Handlers()
        @handlers.job("fails", retry=Retry.exponential(100, base=100, factor=3, limit=1800))
        def fails(job):
            raise ValueError
    """)
    with stage.conn.transaction():
        enqueue_many(stage.conn, [NewJob("fails", number) for number in range(200)])
        late = stage.enqueue("fails")
        stage.conn.execute("UPDATE proletarian.job SET attempts = 59 WHERE job_id = %s", [late])
    supervisor = stage.run("-c", "2", "--log-level", "error")
    wait_until(
        lambda: stage.rows("SELECT count(*) FROM proletarian.job WHERE state = 0 AND attempts > 0") == [(201,)], 60,
        supervisor.story,
    )  # fmt: skip
    failed = "(history -> -1 ->> 'ended_at')::timestamptz"
    query = f"SELECT process_at - {failed} FROM proletarian.job WHERE attempts = %s"
    waits = sorted(wait for (wait,) in stage.rows(query, 1))
    assert timedelta(seconds=74) < waits[0]
    assert waits[-1] < timedelta(seconds=101)
    quarters = [
        sum(low <= wait / timedelta(seconds=1) < low + 6.25 for wait in waits) for low in (75, 81.25, 87.5, 93.75)
    ]
    assert all(count > 20 for count in quarters), f"not spread: {quarters}"
    ((wait,),) = stage.rows(query, 60)
    assert timedelta(seconds=1349) < wait < timedelta(seconds=1801)
    assert supervisor.stop() == 0


# ---------------------------------------------------------------------------------------------------------------------
# What cannot be killed

INJECTED = """
    from ganger_child import tree, warden
    warden._BURY_BOUND = warden._BURY_AGAIN = 0.3
    kill = tree._signal
    def spare(pid, number):
        stuck = FOLDER / "stuck"
        return False if stuck.exists() and stuck.read_text() == str(pid) else kill(pid, number)
    tree._signal = spare
"""


@pytest.mark.parametrize("how", [pytest.param("frozen", marks=pytest.mark.slow), "injected"])
def test_a_child_that_cannot_be_killed_costs_its_slot_and_shutdown_does_not_hang_on_it(stage: Stage, how: str) -> None:
    """D81, https://github.com/circus-tent/circus/issues/1023: a child in a frozen control group, which SIGKILL does not
    end (elsewhere one that nobody signals). It is reported, its slot is withheld, shutdown is bounded; it dies when
    it can."""
    stage.handlers(
        (INJECTED if how == "injected" else "")
        + """
    handlers = Handlers()
    @handlers.job("stuck", timeout=1, grace=0)
    def stuck(job):
        (FOLDER / "stuck").write_text(str(os.getpid()))
        time.sleep(600)
    @handlers.job("fine")
    def fine(job):
        return os.getppid()
    """
    )
    group = control_group("freezer", f"ganger-{stage.folder.name}") if how == "frozen" else None
    supervisor = stage.run("-c", "2")
    job_id = stage.enqueue("stuck")
    pid = int(stage.wait_lines("stuck")[0])
    warden = psutil.Process(pid).ppid()
    try:
        if group is not None:
            (group / "cgroup.procs").write_text(str(pid))
            (group / "freezer.state").write_text("FROZEN")
        told = supervisor.expect("child-unkillable", 20)
        assert told["pids"] == [pid]
        row = stage.archived(job_id)
        assert (row["status"], row["reason"], row["attempts"]) == ("failure", "timeout", 1)
        wardens = {stage.archived(stage.enqueue("fine"))["result"] for _ in range(6)}
        assert len(wardens) == 1, "the slot of the survivor is used"
        assert warden not in wardens
        assert supervisor.stop(limit=30) == 0
        supervisor.order("child-unkillable", "shutting-down", "completed-shutdown")
        assert (how != "frozen") or alive(pid)
    finally:
        (stage.folder / "stuck").unlink(missing_ok=True)
        if group is not None:
            (group / "freezer.state").write_text("THAWED")
            wait_until(lambda: not (group / "cgroup.procs").read_text(), 10, "thawed, it is not gone")
            group.rmdir()
