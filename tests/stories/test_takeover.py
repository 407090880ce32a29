"""Whose jobs may be taken, and when: a supervisor on another host, one that is stopped, two that share 200 jobs.

Where it matters, jobs keep a ledger: every 20 ms a line with the job, its attempt and the time on a clock that all
processes share. So a story can tell whether two runs of a job have overlapped, whoever ran them.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ganger import cancel
from tests.processes import alive, nothing_left, wait_until
from tests.stories.stage import ROOT, Stage

LEASE = 6.0  # seconds; a run is killed by its warden after three quarters of it

HANDLERS = """
    handlers = Handlers()

    def ledger(job):
        with open(FOLDER / "ledger", "a") as file:
            file.write(f"{job.id} {job.attempt} {time.clock_gettime(time.CLOCK_BOOTTIME)}\\n")

    @handlers.job("write")  # for ever at the first attempt
    def write(job):
        ledger(job)
        while job.attempt == 1:
            ledger(job)
            time.sleep(0.02)

    @handlers.job("delegate")  # a grandchild in a session of its own does the writing
    def delegate(job):
        ledger(job)
        if job.attempt == 1:
            line = f"echo {job.id} {job.attempt} $up >> {FOLDER}/ledger"
            script = f"trap '' TERM INT; while read up rest < /proc/uptime; do {line}; sleep 0.02; done"
            subprocess.run(["sh", "-c", script], start_new_session=True)

    @handlers.job("gate")  # until somebody opens it
    def gate(job):
        ledger(job)
        while not (FOLDER / "open").exists():
            time.sleep(0.02)
        ledger(job)
        return job.attempt

    @handlers.job("short")
    def short(job):
        ledger(job)
        time.sleep(0.01)
"""


@pytest.fixture
def told(stage: Stage) -> Stage:
    stage.handlers(HANDLERS)
    return stage


def runs(stage: Stage) -> dict[tuple[str, int], tuple[float, float]]:
    """The first and the last line of each attempt, by job and attempt."""
    seen: dict[tuple[str, int], tuple[float, float]] = {}
    for line in stage.lines("ledger"):
        job_id, attempt, at = line.split()
        first, _ = seen.get((job_id, int(attempt)), (float(at), 0.0))
        seen[job_id, int(attempt)] = (first, float(at))
    return seen


# ----------------------------------------------------------------------------------------------------------------------
# Another host


ELSEWHERE = """
set -e
for own in /tmp /run; do
  new=/mnt
  mount -n -t tmpfs tmpfs "$new"
  for keep in $KEEP; do
    case $keep in $own/*) mkdir -p "$new/${keep#$own/}"; mount -n --rbind "$keep" "$new/${keep#$own/}";; esac
  done
  mount -n --move "$new" $own
done
exec "$@"
"""
UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--mount", "--kill-child")


@pytest.fixture
def elsewhere(stage: Stage) -> tuple[str, ...]:
    """The prefix of a command that makes it run as in another container: pids, /tmp and /run of its own."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("making namespaces takes root and unshare")
    host = stage.conn.info.host
    kept = [
        stage.folder,
        ROOT,
        Path(sys.prefix),
        Path(sys.base_prefix),
        *([Path(host)] if host.startswith("/") else []),
    ]
    prefix = (*UNSHARE, "env", f"KEEP={' '.join(map(str, kept))}", "sh", "-c", ELSEWHERE, "sh")
    if subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("the kernel refuses namespaces here")
    return prefix


@pytest.mark.slow
def test_a_supervisor_on_another_host_waits_until_the_lease_has_passed_unseen(
    told: Stage, elsewhere: tuple[str, ...]
) -> None:
    """Correction 1: it shares boot id and clock with the first and sees none of its processes, so it asks no pids."""
    first = told.run("-c", "1", "--lease", str(LEASE))
    job_id = told.enqueue("gate")
    told.wait_lines("ledger")
    other = told.run("-c", "1", "--lease", str(LEASE), prefix=elsewhere, environ={"XDG_RUNTIME_DIR": "/run/user/0"})
    time.sleep(LEASE + 2)  # it had all the time to take it
    assert not other.named("job-lost")

    first.send(signal.SIGKILL)
    nothing_left(first.cookie)
    ((killed, beat_at),) = told.rows(
        "SELECT supervisor_id, extract(epoch FROM beat_at)::float FROM proletarian.supervisor WHERE supervisor_id = %s",
        first.named("supervisor-started")[0]["supervisor_id"],
    )
    other.expect("job-lost", 3 * (LEASE + 2), job_id=str(job_id), from_supervisor=killed)
    assert time.time() >= beat_at + LEASE
    (told.folder / "open").touch()
    row = told.archived(job_id)
    assert (row["status"], row["attempts"], row["losses"], row["starts"]) == ("success", 2, 1, 2)
    inside = int(Path(f"/proc/{other.pid}/task/{other.pid}/children").read_text())
    os.kill(inside, signal.SIGTERM)
    assert other.ended() == 0


# ----------------------------------------------------------------------------------------------------------------------
# A supervisor that is stopped


def test_the_jobs_of_a_stopped_supervisor_are_killed_before_anybody_else_runs_them(told: Stage) -> None:
    """Correction 3: who is stopped kills nobody; the wardens know until when the lease can be trusted."""
    first = told.run("-c", "4", "--lease", str(LEASE))
    jobs = [told.enqueue(job_type) for job_type in ("write", "delegate", "gate")]
    wait_until(lambda: len(runs(told)) == 3, 10, "not all jobs have begun")
    second = told.run("-c", "4", "--lease", str(LEASE))
    first.send(signal.SIGSTOP)
    (told.folder / "open").touch()  # so one of them returns, and nobody hears it
    wait_until(
        lambda: not first.processes("child"), 3 * LEASE,
        lambda: f"children of a stopped supervisor: {first.processes('child')}",
    )  # fmt: skip
    second.expect("job-lost", 3 * (LEASE + 2), count=3)
    for job_id in jobs:
        row = told.archived(job_id)
        assert (row["status"], row["attempts"], row["losses"], row["starts"]) == ("success", 2, 1, 2)
    ledger = runs(told)
    for job in map(str, jobs):
        assert ledger[job, 1][1] < ledger[job, 2][0], "two runs of a job have overlapped"
    assert len(ledger) == 6

    first.send(signal.SIGCONT)
    first.expect("lease-lost")
    first.expect("supervisor-started", count=2)
    assert second.stop() == 0
    job_id = told.enqueue("short")
    assert told.archived(job_id)["attempts"] == 1
    first.expect("job-finished", job_id=str(job_id))
    # What it had to say about the runs of before, if anything, was refused.
    assert {row["job_id"] for row in first.named("job-finished")} == {str(job_id)}
    assert not first.named("job-crashed")
    assert first.stop() == 0
    assert told.rows("SELECT count(*) FROM proletarian.supervisor") == [(0,)]


def test_a_supervisor_stopped_for_less_than_its_trust_goes_on_as_if_nothing_had_been(told: Stage) -> None:
    first = told.run("-c", "2", "--lease", str(LEASE))
    jobs = [told.enqueue("gate"), told.enqueue("gate")]
    told.wait_lines("ledger", 2)
    first.send(signal.SIGSTOP)
    (told.folder / "open").touch()
    told.wait_lines("ledger", 4)  # they are done, and it has not heard
    first.send(signal.SIGCONT)
    for job_id in jobs:
        row = told.archived(job_id)
        assert (row["status"], row["attempts"], row["losses"], row["result"]) == ("success", 1, 0, 1)
    assert not first.named("lease-lost")
    assert first.stop() == 0


# ----------------------------------------------------------------------------------------------------------------------
# Runs that nobody wants any more


def test_a_cancelled_job_of_a_lost_supervisor_is_archived_and_not_run_again(told: Stage) -> None:
    first = told.run("-c", "1")
    job_id = told.enqueue("write")
    told.wait_lines("ledger")
    first.send(signal.SIGSTOP)
    assert cancel(told.conn, job_id) == "ordered"
    first.send(signal.SIGKILL)
    second = told.run("-c", "1")
    row = told.archived(job_id)
    assert (row["status"], row["reason"], row["attempts"], row["starts"]) == ("cancelled", "cancelled", 1, 1)
    assert second.stop() == 0
    assert {attempt for _, attempt in runs(told)} == {1}


def test_a_run_that_the_database_does_not_know_any_more_is_killed(told: Stage) -> None:
    supervisor = told.run("-c", "1", "--lease", str(LEASE))
    job_id = told.enqueue("write")
    told.wait_lines("ledger")
    child = supervisor.child()
    told.conn.execute("DELETE FROM proletarian.job")
    wait_until(lambda: not alive(child.pid), 0.5 * 3 + 1, "a run without a row goes on")  # at the next beat
    supervisor.expect("outcome-refused", job_id=str(job_id))
    assert told.archived(told.enqueue("short"))["status"] == "success"
    assert not supervisor.named("lease-lost")
    assert supervisor.stop() == 0


def test_what_a_failover_forgets_is_run_again_and_counted_once(told: Stage) -> None:
    """Corrections 18 and 20: the database is as it was before an outcome was stored, or before a claim. (The second
    run may begin while the first is still there: nobody can know.)"""
    stored, claimed = told.enqueue("short"), told.enqueue("gate")
    told.conn.execute("CREATE TABLE before_claims AS SELECT * FROM proletarian.job")
    supervisor = told.run("-c", "2", "--lease", str(LEASE))
    told.archived(stored)
    told.wait_lines("ledger", 2)
    with told.conn.transaction():
        told.conn.execute("DELETE FROM proletarian.job")
        told.conn.execute("DELETE FROM proletarian.archived_job")
        told.conn.execute("INSERT INTO proletarian.job OVERRIDING SYSTEM VALUE SELECT * FROM before_claims")
    supervisor.expect("outcome-refused", job_id=str(claimed))
    told.wait_lines("ledger", 4)
    (told.folder / "open").touch()
    for job_id in (stored, claimed):
        row = told.archived(job_id)
        assert (row["status"], row["attempts"], row["losses"], row["crashes"]) == ("success", 1, 0, 0)
        assert len(supervisor.named("handling-job", job_id=str(job_id))) == 2
    assert supervisor.stop() == 0


# ----------------------------------------------------------------------------------------------------------------------
# Two at work


def test_two_hundred_jobs_are_each_archived_once_though_one_of_two_supervisors_is_killed(told: Stage) -> None:
    first, second = (told.run("-c", "2") for _ in range(2))
    jobs = {str(told.enqueue("short")) for _ in range(200)}

    def archived() -> int:
        ((count,),) = told.rows("SELECT count(*) FROM proletarian.archived_job")
        return int(count)

    wait_until(lambda: archived() >= 50, 30, lambda: f"{archived()} archived")
    assert first.named("job-finished")
    assert second.named("job-finished")
    first.send(signal.SIGKILL)
    wait_until(lambda: archived() == 200, 30, lambda: f"{archived()} archived\n{second.story()}")
    assert told.rows("SELECT count(*) FROM proletarian.job") == [(0,)]
    rows = told.rows("SELECT job_id::text, status, attempts, losses, crashes, starts FROM proletarian.archived_job")
    assert {row[0] for row in rows} == jobs
    assert {row[1] for row in rows} == {"success"}
    assert all(
        (attempts, crashes) == (losses + 1, 0) and starts >= attempts
        for _, _, attempts, losses, crashes, starts in rows
    ), "starts counts claims, also of what was claimed ahead and went back"
    lost = {event["job_id"] for event in second.named("job-lost")}
    assert {row[0] for row in rows if row[3]} == lost
    assert {row[3] for row in rows} <= {0, 1}, "a job was lost twice though one supervisor was killed"
    finished = [event["job_id"] for running in (first, second) for event in running.named("job-finished")]
    assert len(finished) == len(set(finished))
    assert second.stop() == 0
