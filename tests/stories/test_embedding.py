"""The supervisor inside an application: started and stopped by it, asked for one job, telling it things.

Each story is a program of its own, since a supervisor names its process and, with ``run``, takes its signals.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import pytest

from ganger.database import connect, install
from ganger.local_postgres import LocalPostgres
from tests.processes import alive, nothing_left, wait_until
from tests.stories.stage import ROOT, Running, Stage

HEAD = """
import json, os, signal, subprocess, sys, threading, time
import psycopg
from ganger import Config, Supervisor, enqueue
CONNINFO = os.environ["DATABASE_URL"]
conn = psycopg.connect(CONNINFO, autocommit=True)
def say(*what):
    print(json.dumps(["said", *what]), flush=True)
def config(**options):
    options = {"target": "story:handlers", "database_url": CONNINFO, "concurrency": 1, "log_format": "json",
               "log_level": "debug", **options}
    return Config(**options)
def wait(condition, limit=30):
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end: sys.exit("waited in vain")
        time.sleep(0.02)
def archived():
    return conn.execute("SELECT count(*) FROM proletarian.archived_job").fetchone()[0]
"""

JOBS = """
    handlers = Handlers()
    def processes():
        parent = int(Path(f"/proc/{os.getppid()}/stat").read_text().rsplit(")", 1)[1].split()[1])
        (FOLDER / "pids").open("a").write(f"{os.getpid()}\\n{os.getppid()}\\n{parent}\\n")
    @handlers.job("note")
    def note(job):
        processes()
        return job.payload
    @handlers.job("fail", retry=Retry(1, delays=[0.3]))
    def fail(job):
        processes()
        raise ValueError("no")
    @handlers.job("wait")
    def wait(job):
        processes()
        (FOLDER / "waiting").touch()
        time.sleep(600)
"""


def program(stage: Stage, source: str, *, conninfo: str | None = None, handlers: str = JOBS) -> Running:
    """Start an application beside its handler module."""
    stage.handlers(handlers)
    (stage.folder / "app.py").write_text(HEAD + textwrap.dedent(source))
    process = subprocess.Popen(
        [sys.executable, "app.py"],
        cwd=stage.folder,
        env={**os.environ, "DATABASE_URL": conninfo or stage.conninfo, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    running = Running(process)
    stage.supervisors.append(running)
    return running


def said(running: Running) -> list[Any]:
    """What the application printed with ``say``."""
    lines = [line for line in list(running.other) if line.startswith('["said"')]
    found = [json.loads(line)[1:] for line in lines]
    return [what[0] if len(what) == 1 else what for what in found]


def well(stage: Stage, running: Running, limit: float = 60) -> list[Any]:
    """Wait for the application's good end and see that nothing of its supervisors is left; what it said."""
    assert running.ended(limit) == 0, running.story()
    nothing_left([int(line) for line in stage.lines("pids")])
    return said(running)


def test_it_is_started_stopped_and_started_again_and_leaves_the_applications_signals_and_processes_alone(
    stage: Stage,
) -> None:
    running = program(stage, """
        caught = []
        signal.signal(signal.SIGTERM, lambda *_: caught.append("TERM"))
        before = [signal.getsignal(number) for number in signal.valid_signals()]
        own = subprocess.Popen(["sleep", "600"])
        supervisor = Supervisor(config())
        say("before start", supervisor.stop(), supervisor.reload(), supervisor.resize(2))
        supervisor.start()
        try: supervisor.start()
        except RuntimeError as error: say("twice", str(error))
        say("same handlers", [signal.getsignal(number) for number in signal.valid_signals()] == before)
        enqueue(conn, "note", 1)
        wait(lambda: archived() == 1)
        os.kill(os.getpid(), signal.SIGTERM)
        enqueue(conn, "note", 2)
        wait(lambda: archived() == 2)
        say("caught", caught)
        open("story.py", "a").write("\\nopen('loaded', 'w')\\n")
        say("reload", supervisor.reload())
        wait(lambda: os.path.exists("loaded"))
        say("resize", supervisor.resize(2))
        say("stopped", supervisor.stop(), supervisor.stop())
        enqueue(conn, "note", 3)
        supervisor.start()
        wait(lambda: archived() == 3)
        say("stopped again", supervisor.stop(), threading.active_count())
        say("own process", own.poll())
        own.kill()
        own.wait()
    """)  # fmt: skip
    what = well(stage, running)
    twice = next(text for name, text in [each for each in what if each[0] == "twice"])
    assert "has been started already" in twice
    assert [each for each in what if each[0] != "twice"] == [
        ["before start", None, False, False], ["same handlers", True], ["caught", ["TERM"]], ["reload", True],
        ["resize", True], ["stopped", 0, 0], ["stopped again", 0, 1], ["own process", None],
    ]  # fmt: skip
    assert [started["slots"] for started in running.named("supervisor-started")] == [1, 1]
    assert [changed["slots"] for changed in running.named("slots-changed")] == [2]
    assert len(running.named("completed-shutdown")) == 2
    assert not running.named("already-shut-down")
    assert stage.rows("SELECT count(*) FROM proletarian.supervisor") == [(0,)]


def test_an_embedded_one_serves_from_each_start_to_its_stop_and_leaves_the_service_manager_to_the_application(
    stage: Stage,
) -> None:
    """The same port serves again after a stop. NOTIFY_SOCKET is the application's: it is kept, and not used."""
    running = program(stage, """
        import socket, urllib.request
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        manager.bind(os.path.abspath("notify"))
        manager.setblocking(False)
        os.environ["NOTIFY_SOCKET"] = os.path.abspath("notify")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        supervisor = Supervisor(config(http=port))

        def ready():
            try:
                return urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5).status == 200
            except OSError:
                return False

        for _ in range(2):
            supervisor.start()
            wait(ready)
            say("stopped", supervisor.stop(), ready())
            wait(lambda: threading.active_count() == 1)
        try: say("told", manager.recv(100).decode())
        except BlockingIOError: say("told", None)
        say("kept", "NOTIFY_SOCKET" in os.environ)
    """)  # fmt: skip
    assert well(stage, running) == [["stopped", 0, False]] * 2 + [["told", None], ["kept", True]]


@pytest.mark.parametrize(("how", "seconds"), [("terminate", 0.5), ("kill", 60.0)])
def test_stop_can_terminate_and_can_be_waited_for_in_part(stage: Stage, how: str, seconds: float) -> None:
    running = program(stage, f"""
        supervisor = Supervisor(config(shutdown="finish", grace={seconds}))
        supervisor.start()
        enqueue(conn, "wait")
        wait(lambda: os.path.exists("waiting"))
        say("in part", supervisor.stop(timeout=0.5))
        began = time.monotonic()
        say("in full", supervisor.stop({how!r}))
        say("in time", time.monotonic() - began < 20)
        try: supervisor.stop("now")
        except ValueError as error: say("wrong", "now" in str(error))
    """)  # fmt: skip
    expected = [["in part", None], ["in full", 0], ["in time", True], ["wrong", True]]
    assert well(stage, running) == expected
    assert stage.rows("SELECT state, attempts, interrupts FROM proletarian.job") == [(1, 0, 1)]
    running.order("shutting-down", "job-interrupted", "completed-shutdown")


def test_it_runs_until_nothing_is_left_not_even_a_retry(stage: Stage) -> None:
    running = program(stage, """
        supervisor = Supervisor(config())
        say("empty", supervisor.run_until_empty())
        enqueue(conn, "note", 1)
        enqueue(conn, "fail")
        enqueue(conn, "note", 2, process_in=3600)
        say("done", supervisor.run_until_empty(), archived())
        enqueue(conn, "note", 3)
        codes = []
        thread = threading.Thread(target=lambda: codes.append(supervisor.run_until_empty()))
        thread.start()
        thread.join()
        say("in a thread", codes, archived())
    """)  # fmt: skip
    assert well(stage, running) == [["empty", 0], ["done", 0, 2], ["in a thread", [0], 3]]


def test_one_job_is_processed_in_a_child_from_whichever_queue(stage: Stage) -> None:
    running = program(stage, """
        supervisor = Supervisor(config(queues="a=2,b=1", concurrency=None))
        say("none", supervisor.process_next_job())
        for queue in "abb": enqueue(conn, "note", queue, queue=queue)
        enqueue(conn, "fail", queue="a", priority=-1)
        while (answer := supervisor.process_next_job()) is not None:
            say(answer, archived())
            time.sleep(0.4)
        say("handler in", os.getpid())
    """)  # fmt: skip
    what = well(stage, running)
    assert what[:-1] == [["none", None], [True, 0], [True, 1], [True, 2], [True, 3], [True, 4]]
    assert what[-1][1] not in [int(line) for line in stage.lines("pids")], "a handler ran in the application"
    row = stage.rows("SELECT attempts, status FROM proletarian.archived_job WHERE job_type = 'fail'")
    assert row == [(2, "failure")]


def test_ctrl_c_interrupts_the_one_job_and_raises_where_all_were_wanted(stage: Stage) -> None:
    running = program(stage, """
        enqueue(conn, "wait")
        supervisor = Supervisor(config())
        say("interrupted", supervisor.process_next_job())
        say("handler", signal.getsignal(signal.SIGINT) is signal.default_int_handler)
        os.unlink("waiting")
        try: supervisor.run_until_empty()
        except KeyboardInterrupt: say("raised")
    """)  # fmt: skip
    for count in (1, 2):
        running.expect("handling-job", 30, count=count)
        wait_until(lambda: (stage.folder / "waiting").exists(), 15, running.story)
        running.send(signal.SIGINT)
        running.expect("completed-shutdown", count=count)
    assert well(stage, running) == [["interrupted", False], ["handler", True], "raised"]
    assert stage.rows("SELECT state, attempts, interrupts FROM proletarian.job") == [(1, 0, 2)]


def test_another_thread_stops_a_supervisor_that_blocks(stage: Stage) -> None:
    running = program(stage, """
        supervisor = Supervisor(config())
        def stop_later():
            wait(lambda: os.path.exists("waiting"))
            say("told", supervisor.stop())
        enqueue(conn, "wait")
        threading.Thread(target=stop_later).start()
        say("stopped", supervisor.run())
        say("handler", signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    """)  # fmt: skip
    assert well(stage, running) == [["told", None], ["stopped", 0], ["handler", True]]


def test_a_program_that_is_its_own_handler_module_is_not_run_again_as_a_second_supervisor(stage: Stage) -> None:
    """D17, https://github.com/dask/distributed/issues/2142: the template imports the program for its handlers; without
    its guard that would start a supervisor whose template starts a supervisor, and so on.
    """
    stage.handlers(
        """
        from ganger import Config, Supervisor
        handlers = Handlers()
        @handlers.job("note")
        def note(job): return os.getppid()
        (FOLDER / "imports").open("a").write(f"{__name__}\\n")
        if os.environ.get("GUARD") != "yes" or __name__ == "__main__":
            config = Config(target="application:handlers", concurrency=1, log_format="json", until_empty=True)
            sys.exit(Supervisor(config).run())
        """,
        name="application",
    )
    job_id = stage.enqueue("note")
    running = stage.launch(sys.executable, "application.py")
    assert running.ended() == 2, running.story()
    assert '__name__ == "__main__"' in running.named("boot-failed")[0]["error"]
    assert stage.lines("imports") == ["__main__", "application"]
    assert stage.launch(sys.executable, "application.py", environ={"GUARD": "yes"}).ended() == 0
    assert stage.archived(job_id)["status"] == "success"


def test_handlers_that_do_not_load_are_told_to_whoever_runs_them(stage: Stage) -> None:
    running = program(
        stage,
        """
        supervisor = Supervisor(config())
        say("run", supervisor.run_until_empty())
        try: supervisor.process_next_job()
        except RuntimeError as error: say("raised", str(error))
        supervisor.start()
        wait(lambda: not supervisor._thread.is_alive())
        say("stop", supervisor.stop())
        """,
        handlers="raise RuntimeError('no such device')",
    )
    assert well(stage, running) == [
        ["run", 2], ["raised", "The supervisor could not run a job; its events say why."], ["stop", 2],
    ]  # fmt: skip
    assert all("no such device" in event["error"] for event in running.named("boot-failed"))


def test_a_database_that_is_not_there_or_has_no_tables_is_raised_where_it_is_started(
    stage: Stage, bare_database: str
) -> None:
    running = program(stage, f"""
        for url in ("postgresql://localhost:1/none", {bare_database!r}):
            supervisor = Supervisor(config(database_url=url, database_wait=0.3))
            for call in (supervisor.start, supervisor.run, supervisor.run_until_empty, supervisor.process_next_job):
                try: call()
                except Exception as error: say(type(error).__name__)
            say(supervisor.stop())
    """)  # fmt: skip
    assert well(stage, running) == [*["DatabaseUnreachable"] * 4, None, *["SchemaMissing"] * 4, None]


# ---------------------------------------------------------------------------------------------------------------------
# Callbacks


def test_on_shutdown_is_called_after_completed_shutdown_and_log_gets_every_event(stage: Stage) -> None:
    running = program(stage, """
        told = []
        def log(event, data):
            told.append(event)
            if event == "job-finished": say("finished", data["attempt"], data["job_type"])
        def on_shutdown():
            say("on_shutdown", told[-1], threading.current_thread() is threading.main_thread())
        supervisor = Supervisor(config(log=log, on_shutdown=on_shutdown))
        enqueue(conn, "note")
        say("run", supervisor.run_until_empty())
        say("told", [name for name in told if name in (
            "supervisor-started", "handling-job", "job-finished", "shutting-down", "completed-shutdown")])
    """)  # fmt: skip
    assert well(stage, running) == [
        ["finished", 1, "note"], ["on_shutdown", "completed-shutdown", False], ["run", 0],
        ["told", ["supervisor-started", "handling-job", "job-finished", "shutting-down", "completed-shutdown"]],
    ]  # fmt: skip
    assert not running.events, "events went to stderr although log was given"


def test_a_log_callback_that_raises_is_told_and_stops_nobody(stage: Stage) -> None:
    """There it kills the thread silently, or counts as a failure of the job."""
    running = program(stage, """
        def log(event, data):
            if event != "job-finished": raise LookupError("log is broken at " + event)
        enqueue(conn, "note", 1)
        enqueue(conn, "note", 2)
        say("run", Supervisor(config(log=log)).run_until_empty(), archived())
    """)  # fmt: skip
    assert well(stage, running) == [["run", 0, 2]]
    assert stage.rows("SELECT DISTINCT status, attempts FROM proletarian.archived_job") == [("success", 1)]
    errors = [event for event in running.named("callback-error") if event["callback"] == "log"]
    assert errors[0]["error"]["type"] == "LookupError"
    assert len(running.named("handling-job")) == 2, "the event that could not be told is on stderr"


def test_callbacks_that_raise_or_hang_stop_no_job(stage: Stage) -> None:
    running = program(stage, """
        hung = threading.Event()
        def log(event, data):
            hung.wait(3)
        def on_shutdown():
            raise LookupError("at shutdown")
        enqueue(conn, "note", 1)
        done = []
        def look():
            wait(lambda: archived() == 1)
            done.append(hung.is_set())
            hung.set()
        watcher = threading.Thread(target=look)
        watcher.start()
        code = Supervisor(config(log=log, on_shutdown=on_shutdown)).run_until_empty()
        watcher.join()
        say("run", code, done)
    """)  # fmt: skip
    assert well(stage, running) == [["run", 0, [False]]]


@pytest.mark.slow
@pytest.mark.parametrize("stops", [False, True])
def test_on_polling_error_is_asked_once_per_outage_and_true_stops_with_1(stage: Stage, stops: bool) -> None:
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o711)  # as root, PostgreSQL has another account
    postgres = LocalPostgres(folder, durable=False)
    conninfo = postgres.start()
    try:
        _outages(stage, postgres, conninfo, stops)
    finally:
        postgres.reset()
        shutil.rmtree(folder)


def _outages(stage: Stage, postgres: LocalPostgres, conninfo: str, stops: bool) -> None:
    with connect(conninfo) as conn:
        install(conn)
    running = program(stage, f"""
        def on_polling_error(exception):
            say("asked", type(exception).__name__, str(exception) != "")
            return {stops}
        conn.close()
        supervisor = Supervisor(config(on_polling_error=on_polling_error, poll_interval=0.1, shutdown_timeout=1))
        say("run", supervisor.run())
    """, conninfo=conninfo)  # fmt: skip
    running.expect("supervisor-started", 30)
    assert running.cookie
    for outage in range(1 if stops else 2):
        postgres.stop()
        running.expect("database-lost", 20, count=outage + 1)
        wait_until(lambda outage=outage: len(said(running)) > outage, 10, running.story)  # type: ignore[misc]
        if stops:
            break
        postgres.start()
        running.expect("database-back", 60, count=outage + 1)
    if stops:
        assert running.ended(90) == 0, running.story()
        assert said(running) == [["asked", "PollingError", True], ["run", 1]]
    else:
        assert alive(running.pid)
        assert running.stop() == 0
        assert said(running) == [["asked", "PollingError", True], ["asked", "PollingError", True], ["run", 0]]
    assert len(running.named("database-lost")) == len(said(running)) - 1
