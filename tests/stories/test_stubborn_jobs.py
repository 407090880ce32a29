"""Jobs that do not listen, and jobs that are merely busy: the first are ended in time, the second are left alone.

``test_limits`` has the kinds of stubbornness one by one; here are those that were reported of other systems, with
their numbers. Times are those of the contract; a loaded machine gets three times as much.
"""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

import psutil
import pytest

from ganger import cancel
from tests.processes import alive, nothing_left, survivors, wait_until
from tests.stories.stage import Running, Stage

pytestmark = pytest.mark.slow

ALLOWANCE = 3.0


def pids(stage: Stage) -> list[int]:
    return [int(line) for line in stage.lines("pids")]


def ended(stage: Stage, job_id: UUID, limit: float) -> dict[str, Any]:
    """The row of a job that has timed out, within so many seconds of its start."""
    row = stage.archived(job_id, limit * ALLOWANCE + 15)
    assert (row["status"], row["reason"], row["ended_by"]) == ("failure", "timeout", "limit"), row
    assert (row["attempts"], row["crashes"]) == (1, 0)
    assert row["error"]["type"] in ("ganger_child.JobTimedOut", "SystemExit")  # the latter where it got so far
    lasted = (row["finished_at"] - row["started_at"]).total_seconds()
    assert lasted < limit * ALLOWANCE, f"{row['job_type']} lasted {lasted:.2f} s, not {limit:.2f} s"
    return row


# ----------------------------------------------------------------------------------------------------------------------
# Jobs that do not listen

EXITS = """
    import multiprocessing
    handlers = Handlers()

    def leave(number, frame):
        raise SystemExit("I leave at SIGTERM")

    def stay():
        with open(FOLDER / "pids", "a") as file:
            file.write(f"{os.getpid()}\\n")
        while True:
            try:
                time.sleep(600)
            except KeyboardInterrupt:
                pass

    @handlers.job("alone")
    def alone(job):
        signal.signal(signal.SIGTERM, leave)
        stay()

    @handlers.job("stays in the handler")
    def stays_in_the_handler(job):
        signal.signal(signal.SIGTERM, lambda number, frame: stay())
        stay()

    @handlers.job("in a finally")
    def in_a_finally(job):
        signal.signal(signal.SIGTERM, leave)
        try:
            stay()
        finally:
            time.sleep(600)

    @handlers.job("with processes")
    def with_processes(job):
        signal.signal(signal.SIGTERM, leave)
        for daemon in (True, False):
            multiprocessing.get_context("fork").Process(target=stay, daemon=daemon).start()
        stay()

    @handlers.job("with deaf processes")
    def with_deaf_processes(job):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for daemon in (True, False):
            multiprocessing.get_context("fork").Process(target=stay, daemon=daemon).start()
        signal.signal(signal.SIGTERM, leave)
        stay()

    @handlers.job("obeys, with deaf processes")
    def obeys_with_deaf_processes(job):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for daemon in (True, False):
            multiprocessing.get_context("fork").Process(target=stay, daemon=daemon).start()
        time.sleep(600)

    @handlers.job("threads that stay")
    def threads_that_stay(job):
        import threading
        signal.signal(signal.SIGTERM, leave)
        threading.Thread(target=time.sleep, args=(600,)).start()
        stay()
"""


def test_a_job_that_exits_at_sigterm_has_timed_out_and_leaves_nothing(stage: Stage) -> None:
    """D05, https://github.com/uqfoundation/multiprocess/issues/220: handlers of SIGTERM that raise SystemExit, stay, or
    are inherited by the job's own processes: the tree is gone by the time of the kill, and the job has timed out.
    """
    stage.handlers(EXITS)
    stage.run("-c", "2", "--timeout", "0.5", "--grace", "0.5")
    names = [line.split('"')[1] for line in EXITS.splitlines() if "handlers.job" in line]
    ids = {name: stage.enqueue(name) for name in names}
    for job_id in ids.values():
        ended(stage, job_id, 0.5 + 0.5 + 1)
    assert len(pids(stage)) >= len(names) + 2
    assert not [pid for pid in pids(stage) if alive(pid)], "alive when the outcome was stored"


def test_native_code_and_swallowed_exceptions_do_not_outlast_the_timeout(stage: Stage) -> None:
    """D09, https://github.com/rq/rq/issues/323 and D10, https://github.com/celery/billiard/issues/240: C code that runs
    for hours is dead by 4.5 s, a loop that swallows every Exception ends at the first rung, others are not disturbed.
    """
    stage.handlers("""
        import hashlib
        handlers = Handlers()

        @handlers.job("native")
        def native(job):
            hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 10**9)

        @handlers.job("swallow", timeout=1)
        def swallow(job):
            while True:
                try:
                    time.sleep(0.1)
                except Exception:
                    pass

        @handlers.job("fine")
        def fine(job):
            return os.getpid()
    """)
    supervisor = stage.run("-c", "3", "--timeout", "2", "--grace", "1")
    native, swallow = stage.enqueue("native"), stage.enqueue("swallow")
    others: list[UUID] = []
    while not supervisor.named("job-timed-out", job_id=str(native)):
        assert len(others) < 1000
        others.append(stage.enqueue("fine"))
        assert stage.archived(others[-1], 2 * ALLOWANCE)["status"] == "success"
    assert len(others) >= 3
    assert ended(stage, native, 4.5)["rung"] == "kill"
    assert ended(stage, swallow, 1 + 1)["rung"] == "interrupt"
    assert [each["step"] for each in supervisor.named("ladder-step", job_id=str(swallow))] == ["interrupt"]
    assert {stage.archived(job_id)["attempts"] for job_id in others} == {1}
    assert supervisor.stop() == 0


SHELL = """
    handlers = Handlers()

    @handlers.job("shell")
    def shell(job):
        subprocess.run(["sh", "-c", "echo $$ >> pids; sleep 300 & sleep 300"], cwd=FOLDER)

    @handlers.job("shell that is not waited for")
    def shell_that_is_not_waited_for(job):
        subprocess.Popen(["sh", "-c", "echo $$ >> pids; sleep 300 & sleep 300"], cwd=FOLDER, start_new_session=True)
        time.sleep(300)

    @handlers.job("fine")
    def fine(job):
        return os.getpid()
"""


def cancelled_shells(stage: Stage) -> Running:
    """A supervisor some of whose jobs were cancelled while they waited for programs."""
    stage.handlers(SHELL)
    supervisor = stage.run("-c", "1", "--grace", "1")
    for count, name in enumerate(("shell", "shell that is not waited for"), 1):
        job_id = stage.enqueue(name)
        stage.wait_lines("pids", count)
        shell = pids(stage)[-1]
        sleeps = wait_until(lambda shell=shell: _two_below(shell), 10, "two sleeps")  # type: ignore[misc]
        asked = time.monotonic()
        assert cancel(stage.conn, job_id) == "ordered"
        nothing_left([shell, *sleeps], (1 + 1) * ALLOWANCE)
        row = stage.archived(job_id)
        assert (row["status"], row["reason"], row["rung"]) == ("cancelled", "cancelled", "interrupt")
        print(f"{name}: gone {time.monotonic() - asked:.2f} s after the order, the contract says 2 s")
    return supervisor


def _two_below(pid: int) -> list[int]:
    below = [process.pid for process in psutil.Process(pid).children(recursive=True)]
    return below if len(below) == 2 else []


def test_programs_of_a_cancelled_job_are_gone_and_the_supervisor_serves_on(stage: Stage) -> None:
    """D13, https://github.com/apache/airflow/pull/65738: a shell and its two sleeps go with their cancelled job."""
    supervisor = cancelled_shells(stage)
    assert stage.archived(stage.enqueue("fine"))["status"] == "success"
    assert supervisor.stop() == 0


@pytest.mark.slow
def test_a_minute_after_such_a_cancel_the_supervisor_still_serves(stage: Stage) -> None:
    """D13, https://github.com/apache/airflow/pull/65738: 60 s later it has not closed anything that it still needs."""
    supervisor = cancelled_shells(stage)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        assert stage.archived(stage.enqueue("fine"))["status"] == "success"
        time.sleep(1)
    assert len(supervisor.named("supervisor-started")) == 1
    assert supervisor.stop() == 0


@pytest.mark.slow
def test_a_chain_of_new_sessions_is_ended_twenty_times_of_twenty(stage: Stage) -> None:
    """D15, https://github.com/dotnet/corefx/pull/31827: each process of the chain forks into a new session and exits
    every 5 ms, so whoever lists and then kills misses it. 0 survivors 3 s later, 20 of 20 runs.
    """
    stage.handlers("""
        handlers = Handlers()

        @handlers.job("chain")
        def chain(job):
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            if os.fork():
                time.sleep(600)
            links = 0
            while True:
                os.setsid()
                links += 1
                os.pwrite(os.open(FOLDER / str(job.payload), os.O_WRONLY | os.O_CREAT), b"%d" % links, 0)
                time.sleep(0.005)
                if os.fork():
                    os._exit(0)
    """)
    supervisor = stage.run("-c", "1", "--timeout", "0.5", "--grace", "0")
    ours = 3  # template, warden and child; the supervisor itself holds the lock too
    for run in range(20):
        row = ended(stage, stage.enqueue("chain", f"run {run}"), 0.5 + 0 + 1)
        assert row["rung"] == "kill"
        wait_until(
            lambda: len(survivors(supervisor.cookie)) <= ours + 1, 3 * ALLOWANCE,
            lambda: f"{survivors(supervisor.cookie)}",
        )  # fmt: skip
        assert int(stage.lines(f"run {run}")[0]) > 10, "there was no chain to speak of"
    assert supervisor.stop() == 0


# ----------------------------------------------------------------------------------------------------------------------
# Jobs that are merely busy

LEASE = 2.0

BUSY = """
    import ctypes
    handlers = Handlers()

    @handlers.job("compute")
    def compute(job):
        with open(FOLDER / "began", "a") as file:
            file.write(f"{job.id}\\n")
        until = time.monotonic() + job.payload
        while time.monotonic() < until:
            sum(range(10000))
        return "computed"

    @handlers.job("hold the GIL")
    def hold_the_gil(job):
        with open(FOLDER / "began", "a") as file:
            file.write(f"{job.id}\\n")
        left = ctypes.PyDLL(None).sleep(int(job.payload))  # one call, which keeps the GIL all the time
        return [left, "held"]
"""


def lost_nothing(stage: Stage, supervisor: Running, job_type: str, seconds: float, count: int) -> None:
    """So many jobs are busy for so long, while another supervisor waits for the lease to run out: it does not."""
    longest = 0.0
    rival = stage.run("-c", "1", "--lease", str(LEASE), "--queues", "other")
    jobs = [stage.enqueue(job_type, seconds) for _ in range(count)]
    stage.wait_lines("began", count, 30)
    busy = "SELECT count(*) FROM proletarian.job WHERE state = 2"
    beat = "SELECT beat FROM proletarian.supervisor WHERE pid = %s"
    (last,), since = stage.rows(beat, supervisor.pid)[0], time.monotonic()
    while stage.rows(busy) != [(0,)]:
        ((now,),) = stage.rows(beat, supervisor.pid)
        if now != last:
            longest = max(longest, time.monotonic() - since)
            last, since = now, time.monotonic()
        assert time.monotonic() - since < LEASE, "a lease was not renewed"
        time.sleep(0.02)
    print(f"the longest pause between two beats was {longest:.2f} s of a lease of {LEASE:g} s")
    for job_id in jobs:
        row = stage.archived(job_id)
        assert (row["status"], row["attempts"], row["starts"], row["losses"]) == ("success", 1, 1, 0)
        assert row["wall_s"] >= seconds
    assert len(stage.lines("began")) == count
    for each in (supervisor, rival):
        assert not each.named("lease-lost")
        assert not each.named("job-lost")
        assert not each.named("ladder-step")
        assert each.stop() == 0


@pytest.mark.slow
def test_eight_computing_jobs_on_fewer_cores_keep_their_leases_and_run_once(stage: Stage) -> None:
    """D11, https://github.com/agno-agi/agno/pull/9512: it is not the busy child that renews the lease: 8 CPU-bound jobs
    are busy for 3 lease periods, every lease is renewed, and each job is executed once.
    """
    stage.handlers(BUSY)
    lost_nothing(stage, stage.run("-c", "8", "--lease", str(LEASE)), "compute", 3 * LEASE, 8)


def test_a_job_that_holds_the_gil_for_four_leases_is_not_taken_for_dead(stage: Stage) -> None:
    """D12, https://github.com/dask/distributed/issues/6324: one C call that holds the GIL for 4 lease periods, without
    a timeout: it succeeds, is never declared lost and never run twice.
    """
    stage.handlers(BUSY)
    lost_nothing(stage, stage.run("-c", "1", "--lease", str(LEASE)), "hold the GIL", 4 * LEASE, 1)
