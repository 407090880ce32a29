"""Losing the database: jobs run on, nothing is lost, nothing runs twice, nobody has to start anything again.

Some of these stop a PostgreSQL of their own, others sit between the supervisor and its database (``proxy``).
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import psutil
import psycopg
import pytest

from ganger import cancel
from ganger import database as db
from ganger.local_postgres import LocalPostgres
from tests.processes import alive, wait_until
from tests.stories.proxy import Proxy
from tests.stories.stage import Running, Stage

HANDLERS = """
    handlers = Handlers()

    def note(job):
        with open(FOLDER / "began", "a") as file:
            file.write(f"{job.id}\\n")

    @handlers.job("gate")  # until somebody opens it
    def gate(job):
        note(job)
        while not (FOLDER / f"open-{job.payload}").exists():
            time.sleep(0.02)
        with open(FOLDER / "ended", "a") as file:
            file.write(f"{job.id}\\n")
        return os.getpid()

    @handlers.job("stuck")
    def stuck(job):
        note(job)
        while True:
            pass

    @handlers.job("short")
    def short(job):
        note(job)
        time.sleep(0.05)
"""


@pytest.fixture
def told(stage: Stage) -> Stage:
    stage.handlers(HANDLERS)
    return stage


@pytest.fixture(scope="module")
def kept_server() -> Iterator[LocalPostgres]:
    with tempfile.TemporaryDirectory(prefix="ganger-outage-") as folder:
        Path(folder).chmod(0o711)  # as root, PostgreSQL has another account
        server = LocalPostgres(Path(folder) / "server", durable=False)
        yield server
        server.reset()


@pytest.fixture
def server(kept_server: LocalPostgres) -> LocalPostgres:
    """A server with an empty queue, which the story may stop."""
    with db.connect(kept_server.start()) as conn:
        conn.execute("DROP SCHEMA IF EXISTS proletarian CASCADE")
        db.install(conn)
    return kept_server


@pytest.fixture
def own(server: LocalPostgres, tmp_path: Path) -> Iterator[Stage]:
    """A stage on that server."""
    made = Stage(server.conninfo, tmp_path)
    made.handlers(HANDLERS)
    yield made
    made.close()


def go_away(server: LocalPostgres, number: int) -> None:
    """Stop the server as ``pg_ctl stop`` does, with the signal for its mode."""
    (pid_file,) = server.data_dir.glob("pg*/postmaster.pid")
    postmaster = psutil.Process(int(pid_file.read_text().split()[0]))
    postmaster.send_signal(number)
    wait_until(lambda: not alive(postmaster.pid), 20, "the server does not stop")


def come_back(server: LocalPostgres, stage: Stage) -> None:
    server.start()
    stage.conn.close()
    stage.conn = psycopg.connect(stage.conninfo, autocommit=True)


def open_gate(stage: Stage, name: str) -> None:
    (stage.folder / f"open-{name}").touch()


def ran_once(stage: Stage, *jobs: UUID) -> None:
    """Fail unless each of the jobs ended well, at its first attempt, and its handler was called once."""
    for job_id in jobs:
        row = stage.archived(job_id)
        assert (row["status"], row["attempts"], row["losses"], row["crashes"]) == ("success", 1, 0, 0)
    began = stage.lines("began")
    assert {began.count(str(job_id)) for job_id in jobs} == {1}


def one_outage(supervisor: Running) -> None:
    supervisor.expect("database-back")
    assert [len(supervisor.named(name)) for name in ("database-lost", "database-back", "lease-lost")] == [1, 1, 0]
    assert len(supervisor.named("supervisor-started")) == 1
    assert not supervisor.named("outcome-refused")


# ----------------------------------------------------------------------------------------------------------------------
# The server is away


@pytest.mark.parametrize(
    ("mode", "seconds"),
    [
        pytest.param(signal.SIGINT, 10.0, id="fast, 10 s", marks=pytest.mark.slow),
        pytest.param(signal.SIGQUIT, 3.0, id="immediate, 3 s"),
        pytest.param(signal.SIGINT, 60.0, id="fast, 60 s", marks=pytest.mark.slow),
    ],
)
def test_jobs_run_on_while_the_server_is_away(server: LocalPostgres, own: Stage, mode: int, seconds: float) -> None:
    """D63, https://github.com/graphile/worker/issues/185: however long the outage, what ended meanwhile is stored after
    it, polling goes on within 10 s, and nobody has to restart anything."""
    supervisor = own.run("-c", "4")
    ends_meanwhile, ends_later = own.enqueue("gate", "meanwhile"), own.enqueue("gate", "later")
    too_long = own.enqueue("stuck", timeout=3, grace=0)
    fails_later = own.enqueue("stuck", timeout=60 + seconds, grace=0)
    own.wait_lines("began", 4)
    began = time.monotonic()
    go_away(server, mode)
    gone = time.monotonic()
    supervisor.expect("database-lost")
    open_gate(own, "meanwhile")
    own.wait_lines("ended")
    supervisor.expect("job-timed-out", job_id=str(too_long))
    assert time.monotonic() - began < 3 + 1.0 * 3, "the outage has delayed a kill"
    time.sleep(max(0.0, gone + seconds - time.monotonic()))
    assert len(supervisor.processes("child")) >= 2
    assert not supervisor.named("job-finished")

    come_back(server, own)
    supervisor.expect("database-back", 10)
    ran_once(own, ends_meanwhile)
    supervisor.expect("outcome-stored", job_id=str(ends_meanwhile))
    assert own.archived(too_long)["reason"] == "timeout"
    new = own.enqueue("short")
    own.wait_lines("began", 5, 1.0 * 3)
    open_gate(own, "later")
    ran_once(own, ends_later, new)
    assert not supervisor.named("outcome-stored", job_id=str(ends_later))
    one_outage(supervisor)
    cancel(own.conn, fails_later)
    assert own.archived(fails_later, 5)["status"] == "cancelled"
    assert supervisor.stop() == 0


def test_sessions_are_ended_again_and_again(told: Stage) -> None:
    supervisor = told.run("-c", "2")
    jobs = [told.enqueue("short") for _ in range(40)]
    told.wait_lines("began", 3)
    for _ in range(8):
        told.conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        time.sleep(0.15)  # in whatever it is doing then
    ran_once(told, *jobs)
    wait_until(
        lambda: len(supervisor.named("database-lost")) == len(supervisor.named("database-back")), 10, supervisor.story
    )
    assert supervisor.named("database-lost")
    supervisor.expect("job-finished", count=40)  # a row may be there before the answer that says so
    assert len(supervisor.named("job-finished")) == 40
    assert supervisor.stop() == 0


def test_an_outage_longer_than_the_trust_costs_running_jobs_a_restart_and_no_attempt(
    server: LocalPostgres, own: Stage
) -> None:
    supervisor = own.run("-c", "3", "--lease", "6", "--poll-interval", "1")
    done, cut = own.enqueue("gate", "done"), own.enqueue("gate", "cut")
    own.wait_lines("began", 2)
    go_away(server, signal.SIGINT)
    supervisor.expect("database-lost")
    open_gate(own, "done")
    own.wait_lines("ended")
    supervisor.expect("lease-lost", 4.5 + 3)
    wait_until(lambda: not runs_under(supervisor, cut), 3, lambda: f"the run lives on: {supervisor.story()}")
    assert not supervisor.named("job-crashed")

    come_back(server, own)
    supervisor.expect("supervisor-started", count=2)
    ran_once(own, done)  # decided while the lease was good, and nobody has taken it since
    supervisor.expect("outcome-stored", job_id=str(done))
    own.wait_lines("began", 3)
    open_gate(own, "cut")
    row = own.archived(cut)
    assert (row["status"], row["attempts"], row["losses"]) == ("success", 1, 0), supervisor.story()
    assert sorted(own.lines("began")) == sorted(map(str, [done, cut, cut])), supervisor.story()
    assert supervisor.stop() == 0
    assert own.rows("SELECT count(*) FROM proletarian.supervisor") == [(0,)]


def runs_under(supervisor: Running, job_id: UUID) -> bool:
    short = str(job_id)[-8:]
    return any(short in " ".join(process.cmdline()) for process in supervisor.processes("child"))


def test_a_server_that_is_read_only_for_a_while_is_an_outage(server: LocalPostgres, own: Stage) -> None:
    """D64, https://github.com/jobrunr/jobrunr/issues/1264: a job that ends while the database takes no writes is stored
    afterwards. As after a failover, when the address leads to a standby that is promoted a little later."""
    supervisor = own.run("-c", "2")
    job_id = own.enqueue("gate", "x")
    own.wait_lines("began")
    go_away(server, signal.SIGINT)
    (folder,) = server.data_dir.glob("pg*/global")
    (folder.parent / "standby.signal").touch()
    come_back(server, own)
    try:
        assert own.rows("SELECT pg_is_in_recovery()") == [(True,)]
        open_gate(own, "x")
        own.wait_lines("ended")
        sessions = "SELECT FROM pg_stat_activity WHERE starts_with(application_name, 'ganger ')"
        wait_until(lambda: own.rows(sessions), 40, lambda: f"it has not found the standby: {supervisor.story()}")
        assert not own.rows("SELECT FROM proletarian.archived_job")
    finally:
        own.rows("SELECT pg_promote()")
    ran_once(own, job_id)
    one_outage(supervisor)
    supervisor.expect("outcome-stored", job_id=str(job_id))
    assert supervisor.stop() == 0


def test_a_read_only_default_is_nothing_to_a_supervisor(told: Stage) -> None:
    ((name,),) = told.rows("SELECT current_database()")
    told.conn.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    supervisor = told.run("-c", "1")
    job_id = told.enqueue("short")  # this session is older than the setting
    ran_once(told, job_id)
    assert not supervisor.named("database-lost")
    assert supervisor.stop() == 0


# ----------------------------------------------------------------------------------------------------------------------
# At the start and at the end


@pytest.mark.slow
def test_a_database_that_is_away_at_the_end_is_awaited_for_store_timeout(server: LocalPostgres, own: Stage) -> None:
    supervisor = own.run("-c", "2", "--store-timeout", "2")
    job_id = own.enqueue("gate", "x")
    own.wait_lines("began")
    go_away(server, signal.SIGINT)
    supervisor.expect("database-lost")
    open_gate(own, "x")
    own.wait_lines("ended")
    began = time.monotonic()
    assert supervisor.stop() == 1
    assert time.monotonic() - began >= 2
    supervisor.expect("completed-shutdown", unstored=1)

    # Its lock is free, so the next one here takes over what it could not store, and does not wait for the lease.
    come_back(server, own)
    other = own.run("-c", "2")
    other.expect("job-lost", 1.0 * 3, job_id=str(job_id))
    row = own.archived(job_id)
    assert (row["status"], row["attempts"], row["losses"]) == ("success", 2, 1)
    assert other.stop() == 0


def test_outcomes_are_stored_at_the_end_when_the_database_is_back_in_time(server: LocalPostgres, own: Stage) -> None:
    supervisor = own.run("-c", "2")
    job_id = own.enqueue("gate", "x")
    own.wait_lines("began")
    go_away(server, signal.SIGINT)
    supervisor.expect("database-lost")
    open_gate(own, "x")
    own.wait_lines("ended")
    supervisor.send(signal.SIGTERM)
    supervisor.expect("shutting-down")
    come_back(server, own)
    assert supervisor.ended() == 0
    ran_once(own, job_id)
    supervisor.order("shutting-down", "outcome-stored", "job-finished", "completed-shutdown")
    assert own.rows("SELECT count(*) FROM proletarian.supervisor") == [(0,)]


def test_a_database_that_is_away_at_the_start_is_awaited(server: LocalPostgres, own: Stage) -> None:
    job_id = own.enqueue("short")
    go_away(server, signal.SIGINT)
    impatient = own.run("--database-wait", "1", wait=False)
    patient = own.run("--database-wait", "60", wait=False)
    assert impatient.ended() == 69
    assert "did not answer within 1 seconds" in impatient.story()
    patient.expect("database-lost")
    come_back(server, own)
    ran_once(own, job_id)
    assert patient.stop() == 0


def test_without_its_schema_a_supervisor_says_what_to_do(bare_database: str, tmp_path: Path) -> None:
    stage = Stage(bare_database, tmp_path)
    stage.handlers(HANDLERS)
    supervisor = stage.run(wait=False)
    assert supervisor.ended() == 78
    assert 'run "ganger install"' in supervisor.story()
    stage.close()


# ----------------------------------------------------------------------------------------------------------------------
# The network between


@pytest.fixture
def proxy(told: Stage) -> Iterator[Proxy]:
    with Proxy(told.conninfo) as made:
        yield made


@pytest.mark.parametrize("committed", [False, True], ids=["before it was committed", "after it was committed"])
def test_a_claim_whose_answer_is_lost_costs_no_attempt(told: Stage, proxy: Proxy, committed: bool) -> None:
    jobs = [told.enqueue("short") for _ in range(2)]
    (proxy.lose_answer if committed else proxy.lose_question)(b"claimed AS")
    supervisor = told.run("-c", "2", conninfo=proxy.conninfo, wait=False)
    ran_once(told, *jobs)
    assert proxy.lost.is_set()
    released = supervisor.named("job-released")
    assert bool(released) == committed, "only what was committed has to be given back"
    assert len(supervisor.named("job-finished")) == 2
    one_outage(supervisor)
    assert supervisor.stop() == 0


@pytest.mark.parametrize("committed", [False, True], ids=["uncommitted", "committed"])
def test_an_outcome_whose_answer_is_lost_is_stored_once(told: Stage, proxy: Proxy, committed: bool) -> None:
    job_id = told.enqueue("short")
    (proxy.lose_answer if committed else proxy.lose_question)(b"gone AS")
    supervisor = told.run("-c", "2", conninfo=proxy.conninfo, wait=False)
    ran_once(told, job_id)
    supervisor.expect("outcome-stored", job_id=str(job_id))
    supervisor.expect("job-finished", job_id=str(job_id))
    assert proxy.lost.is_set()
    one_outage(supervisor)
    assert supervisor.stop() == 0
    assert len(supervisor.named("job-finished")) == 1


def test_a_registration_whose_answer_is_lost_leaves_no_second_one_behind(told: Stage, proxy: Proxy) -> None:
    proxy.lose_answer(b"INSERT INTO", b"COMMIT")
    supervisor = told.run("-c", "2", "--lease", "3", conninfo=proxy.conninfo)
    assert proxy.lost.is_set()
    job_id = told.enqueue("short")
    ran_once(told, job_id)
    wait_until(lambda: told.rows("SELECT count(*) FROM proletarian.supervisor") == [(1,)], 15, supervisor.story)
    assert supervisor.stop() == 0
    assert told.rows("SELECT count(*) FROM proletarian.supervisor") == [(0,)]


def test_cancel_orders_reach_jobs_whose_supervisor_is_cut_off(told: Stage, proxy: Proxy) -> None:
    supervisor = told.run("-c", "2", conninfo=proxy.conninfo)
    stuck, done = told.enqueue("stuck", grace=0.2), told.enqueue("gate", "x")
    told.wait_lines("began", 2)
    waiting = told.enqueue("short")
    proxy.cut()
    supervisor.expect("database-lost")
    for job_id in (stuck, waiting, done):
        cancel(told.conn, job_id)
    assert told.archived(waiting)["status"] == "cancelled"
    open_gate(told, "x")  # too late for the order to find it running, and nobody has removed its row
    told.wait_lines("ended")
    proxy.mend()
    supervisor.expect("database-back", 10)
    row = told.archived(stuck, 1.0 * 3 + 1)
    assert (row["status"], row["reason"], row["attempts"]) == ("cancelled", "cancelled", 1)
    ran_once(told, done)
    one_outage(supervisor)
    later = told.enqueue("stuck", grace=0.2)
    told.wait_lines("began", 3)
    cancel(told.conn, later)
    assert told.archived(later, 1.0 * 3 + 1)["status"] == "cancelled"
    assert str(waiting) not in told.lines("began")
    assert supervisor.stop() == 0


def test_a_connection_that_falls_silent_is_noticed_and_delays_no_kill(told: Stage, proxy: Proxy) -> None:
    """What is sent is taken and never answered. That is noticed within 15 s, and limits hold meanwhile."""
    supervisor = told.run("-c", "3", conninfo=proxy.conninfo)
    stuck, done = told.enqueue("stuck", timeout=4, grace=0), told.enqueue("gate", "x")
    told.wait_lines("began", 2)
    began = time.monotonic()
    proxy.fall_silent()
    silent = time.monotonic()
    open_gate(told, "x")
    supervisor.expect("job-timed-out", job_id=str(stuck))
    assert time.monotonic() - began < 4 + 1.0 * 3
    supervisor.expect("database-lost", 15 * 3)
    noticed = time.monotonic() - silent
    proxy.mend()
    supervisor.expect("database-back", 20)
    ran_once(told, done)
    assert told.archived(stuck)["reason"] == "timeout"
    one_outage(supervisor)
    assert noticed < 15 * 1.5, f"noticed after {noticed:.0f} s"
    assert supervisor.stop() == 0


TICKS = """
    handlers = Handlers()
    @handlers.job("tick")
    def tick(job):
        while True:
            with open(FOLDER / "ticks", "a") as file: file.write(f"{job.attempt} {time.monotonic()}\\n")
            time.sleep(0.01)
"""


@pytest.mark.slow
def test_a_silent_connection_ends_its_runs_before_another_supervisor_may_take_them(told: Stage, proxy: Proxy) -> None:
    """The lease rule holds where a supervisor cannot even know yet that its connection is dead."""
    told.handlers(TICKS)
    cut_off = told.run("-c", "1", "--lease", "6", "--shutdown", "terminate", conninfo=proxy.conninfo)
    job_id = told.enqueue("tick")
    told.wait_lines("ticks")
    other = told.run("-c", "1", "--lease", "6", "--shutdown", "terminate")
    proxy.fall_silent()
    cut_off.expect("lease-lost", 4.5 + 1.0 * 3)
    other.expect("job-lost", 6.0 + 6.0 * 3, job_id=str(job_id))

    def ticks(attempt: int) -> list[float]:
        return [float(line.split()[1]) for line in told.lines("ticks") if line.startswith(f"{attempt} ")]

    wait_until(lambda: ticks(2), 15, other.story)
    assert ticks(1)[-1] < ticks(2)[0], "two runs of one job at a time"
    cancel(told.conn, job_id)
    assert told.archived(job_id)["status"] == "cancelled"
    proxy.mend()
    cut_off.expect("supervisor-started", 30, count=2)
    last = len(told.lines("ticks"))
    assert cut_off.stop() == other.stop() == 0
    assert len(told.lines("ticks")) == last
