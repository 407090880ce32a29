"""Signals to a supervisor, from a shell, a service manager, a terminal or nohup, and what becomes of its jobs."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from uuid import UUID

import psutil
import pytest

from tests.processes import nothing_left, tree, wait_until
from tests.stories.stage import ROOT, Running, Stage
from tests.terminal import Terminal

HANDLERS = """
    handlers = Handlers()

    def mark(word):
        with open(FOLDER / "ledger", "a") as file:
            file.write(word + "\\n")

    @handlers.job("compute")
    def compute(job):
        mark("begin")
        end = time.monotonic() + job.payload["seconds"]
        while time.monotonic() < end:
            pass
        mark("end")
        return job.payload["seconds"]

    @handlers.job("compute-in-c")
    def compute_in_c(job):
        mark("begin")
        sum(range(10**11))

    @handlers.job("sleep", shutdown="finish")
    def sleep(job):
        mark("begin")
        time.sleep(job.payload["seconds"])
        mark("end")

    @handlers.job("program", shutdown="finish")
    def program(job):
        subprocess.run(["sh", "-c", "echo begin >> ledger; exec sleep 600"], cwd=FOLDER, check=True)

    @handlers.job("ask")
    def ask(job):
        eval(job.payload)
"""


def started(stage: Stage, job_type: str, payload: object, *options: str, prefix: tuple[str, ...] = ()) -> Running:
    """A supervisor whose only slot runs this job."""
    stage.handlers(HANDLERS)
    supervisor = stage.run("-c", "1", *options, prefix=prefix)
    stage.enqueue(job_type, payload)
    stage.wait_lines("ledger")
    return supervisor


def after(supervisor: Running, name: str, seconds: float) -> None:
    """Wait until so much time has passed since the event was said."""
    since = supervisor.expect(name)["ts"]
    assert isinstance(since, str)
    time.sleep(seconds)


# ---- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_one_signal_stops_as_configured(stage: Stage, number: int) -> None:
    supervisor = started(stage, "compute", {"seconds": 2})
    assert supervisor.stop(number) == 0
    supervisor.order("shutting-down", "job-finished", "completed-shutdown")
    assert stage.lines("ledger") == ["begin", "end"]


def test_a_repeated_sigterm_changes_nothing(stage: Stage) -> None:
    """D51, https://github.com/cockroachdb/cockroach/issues/48070: SIGTERM twice, a second apart, is still graceful."""
    supervisor = started(stage, "compute", {"seconds": 2.5})
    supervisor.send(signal.SIGTERM)
    after(supervisor, "shutting-down", 1.0)
    supervisor.send(signal.SIGTERM)
    supervisor.expect("already-shut-down")
    assert supervisor.ended() == 0
    supervisor.order("shutting-down", "already-shut-down", "job-finished", "completed-shutdown")
    assert not supervisor.named("ladder-step")


def test_a_second_ctrl_c_terminates(stage: Stage) -> None:
    supervisor = started(stage, "compute", {"seconds": 60}, "--grace", "30")
    supervisor.send(signal.SIGINT)
    after(supervisor, "shutting-down", 0.6)
    supervisor.send(signal.SIGINT)
    assert supervisor.ended() == 0
    supervisor.order("shutting-down", "ladder-step", "job-interrupted", "completed-shutdown")
    assert supervisor.named("ladder-step")[0]["step"] == "interrupt"
    assert stage.rows("SELECT state, attempts, interrupts FROM proletarian.job") == [(1, 0, 1)]


def test_sigint_twice_a_second_apart_is_hard_and_bounded(stage: Stage) -> None:
    """D51, https://github.com/cockroachdb/cockroach/issues/48070: the second SIGINT terminates; the exit comes within
    5 s after the bound of the kill, and nothing is left."""
    supervisor = started(stage, "compute-in-c", None, "--grace", "1")
    supervisor.send(signal.SIGINT)
    after(supervisor, "shutting-down", 1.0)
    supervisor.send(signal.SIGINT)
    assert supervisor.ended(limit=3 * (1 + 0.5 + 5)) == 0
    nothing_left(supervisor.cookie, limit=1)
    assert [event["step"] for event in supervisor.named("ladder-step")][-1] == "kill"


def test_a_third_ctrl_c_does_not_wait_for_the_grace(stage: Stage) -> None:
    supervisor = started(stage, "compute-in-c", None, "--grace", "60")
    supervisor.send(signal.SIGINT)
    after(supervisor, "shutting-down", 0.6)
    supervisor.send(signal.SIGINT)
    after(supervisor, "ladder-step", 0.6)
    supervisor.send(signal.SIGINT)
    assert supervisor.ended(limit=9) == 0  # 1 s and what closing takes, threefold
    assert [event["step"] for event in supervisor.named("ladder-step")] == ["interrupt", "kill"]
    assert stage.rows("SELECT state, attempts, interrupts FROM proletarian.job") == [(1, 0, 1)]


def test_two_ctrl_c_at_once_count_as_one(stage: Stage) -> None:
    supervisor = started(stage, "compute", {"seconds": 2.5})
    supervisor.send(signal.SIGINT)
    supervisor.expect("shutting-down")
    supervisor.send(signal.SIGINT)
    assert supervisor.ended() == 0
    supervisor.order("shutting-down", "job-finished", "completed-shutdown")
    assert not supervisor.named("ladder-step")


@pytest.mark.parametrize("before", [(), (signal.SIGTERM,)], ids=["first", "after-sigterm"])
def test_sigquit_ends_everything_at_once(stage: Stage, before: tuple[int, ...]) -> None:
    supervisor = started(stage, "compute-in-c", None, "--grace", "60", "--shutdown", "finish")
    for number in before:
        supervisor.send(number)
        supervisor.expect("shutting-down")
    assert supervisor.stop(signal.SIGQUIT, limit=9) == 0
    assert [event["step"] for event in supervisor.named("ladder-step")] == ["kill"]
    supervisor.order("shutting-down", "job-interrupted", "completed-shutdown")
    assert stage.rows("SELECT state, attempts, interrupts FROM proletarian.job") == [(1, 0, 1)]


def test_a_callback_that_does_not_end_can_be_given_up(stage: Stage) -> None:
    stage.handlers(HANDLERS)
    (stage.folder / "app.py").write_text("""
import os, sys, time
from ganger import Config, Supervisor

def on_shutdown():
    print("this takes long", flush=True)
    time.sleep(600)

options = {"target": "story:handlers", "database_url": os.environ["DATABASE_URL"], "log_format": "json"}
sys.exit(Supervisor(Config(concurrency=1, on_shutdown=on_shutdown, **options)).run())
""")
    supervisor = stage.launch(sys.executable, "app.py")
    supervisor.expect("supervisor-started", 40)
    supervisor.send(signal.SIGINT)
    wait_until(lambda: "this takes long" in supervisor.other, 20, supervisor.story)
    time.sleep(0.6)  # sooner it is the same key press
    assert supervisor.process.poll() is None
    supervisor.send(signal.SIGINT)
    assert supervisor.ended(limit=9) == 0


def test_under_nohup_a_hangup_is_nothing(stage: Stage) -> None:
    supervisor = started(stage, "compute", {"seconds": 1.5}, prefix=("nohup",))
    supervisor.send(signal.SIGHUP)
    supervisor.expect("job-finished")
    assert not supervisor.named("shutting-down")
    assert supervisor.stop() == 0


# ---- a service manager -----------------------------------------------------------------------------------------------


def terminate_everybody(supervisor: Running) -> int:
    """What systemd does with a control group; how many there were."""
    everybody = [supervisor.pid, *(process.pid for process in tree(supervisor.pid))]
    for pid in everybody:
        with suppress(ProcessLookupError):  # the first ones end the others
            os.kill(pid, signal.SIGTERM)
    return len(everybody)


def test_sigterm_to_every_process_lets_running_jobs_finish(stage: Stage) -> None:
    """D49, https://github.com/celery/celery/issues/2700, and D50, https://github.com/caktus/margarita/pull/126: a
    service manager signals the whole tree at once. Jobs finish; a program that one of them waits for dies of it, which
    is that job's failure, under the program's name."""
    stage.handlers(HANDLERS)
    supervisor = stage.run("-c", "3")
    finishing = [stage.enqueue("compute", {"seconds": 3}), stage.enqueue("sleep", {"seconds": 2})]
    failing = stage.enqueue("program")
    stage.wait_lines("ledger", 3)
    assert terminate_everybody(supervisor) >= 1 + 1 + 3 + 3 + 1
    assert supervisor.ended() == 0
    for job_id in finishing:
        assert stage.archived(job_id)["status"] == "success"
    row = stage.archived(failing)
    assert (row["status"], row["reason"]) == ("failure", "exception")
    assert row["error"]["type"] == "subprocess.CalledProcessError"
    assert "sleep" in row["error"]["message"]


def test_sigterm_to_every_process_between_jobs(stage: Stage) -> None:
    stage.handlers(HANDLERS)
    supervisor = stage.run("-c", "2")
    wait_until(lambda: len(supervisor.processes("child")) == 2, 10, supervisor.story)
    terminate_everybody(supervisor)
    assert supervisor.ended() == 0
    supervisor.order("shutting-down", "completed-shutdown")


def test_a_supervisor_whose_starter_ignores_sigchld(stage: Stage) -> None:
    """D82, https://github.com/rq/rq/issues/1966: ``trap "" CHLD; exec …``. Then the kernel reaps by itself, unless
    somebody says otherwise. Signals and exit codes are right, and those that a handler asks for too."""
    prefix = ("sh", "-c", 'trap "" CHLD; exec "$@"', "sh")
    stage.handlers("""
        handlers = Handlers()

        @handlers.job("program")
        def program(job):
            return subprocess.run(["sh", "-c", "exit 3"]).returncode

        @handlers.job("exit")
        def exit(job):
            os._exit(7)

        @handlers.job("signal")
        def signalled(job):
            os.kill(os.getpid(), signal.SIGSEGV)
    """)
    supervisor = stage.run("-c", "1", prefix=prefix)
    assert stage.archived(stage.enqueue("program"))["result"] == 3
    row = stage.archived(stage.enqueue("exit"))
    assert (row["reason"], row["exit_code"], row["term_signal"]) == ("crash", 7, None)
    row = stage.archived(stage.enqueue("signal"))
    assert (row["reason"], row["exit_code"], row["term_signal"]) == ("crash", None, signal.SIGSEGV)
    assert supervisor.stop() == 0


# ---- before there is anything to stop --------------------------------------------------------------------------------


SLOW_IMPORTS = {"waits": "time.sleep(10)", "computes in C": "sum(range(10**11))"}


@pytest.mark.parametrize("slow", SLOW_IMPORTS.values(), ids=SLOW_IMPORTS.keys())
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_a_long_import(stage: Stage, slow: str, number: int) -> None:
    """D24, https://github.com/circus-tent/circus/issues/935: SIGTERM during an import of 10 s (or of hours, in C):
    everything is gone within 2 s, and the exit code is that of a stop as asked.
    """
    stage.handlers(f"""
        (FOLDER / "ledger").write_text("importing\\n")
        {slow}
        handlers = Handlers()
    """)
    supervisor = stage.run("-c", "1", wait=False)
    stage.wait_lines("ledger")
    assert supervisor.cookie
    supervisor.send(number)
    assert supervisor.ended(limit=6) == 0  # 2 s, threefold
    nothing_left(supervisor.cookie, limit=1)
    assert not supervisor.named("boot-failed")


def test_sigterm_at_any_moment_of_the_start(stage: Stage) -> None:
    stage.handlers(HANDLERS)
    supervisors = [(stage.run("-c", "1", wait=False), delay / 4) for delay in range(12)]
    began = time.monotonic()
    everybody: set[int] = set()
    for supervisor, delay in supervisors:
        time.sleep(max(0.0, began + delay - time.monotonic()))
        everybody |= {process.pid for process in tree(supervisor.pid)}
        supervisor.send(signal.SIGTERM)
    for supervisor, _ in supervisors:
        # -15: it was not yet more than an interpreter that starts
        assert supervisor.ended() in (0, -signal.SIGTERM), supervisor.story()
        assert not supervisor.other, supervisor.story()
    nothing_left(everybody)
    assert stage.rows("SELECT count(*) FROM proletarian.supervisor") == [(0,)]


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port where nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_while_it_waits_for_the_database(stage: Stage, silent_port: int, number: int) -> None:
    stage.handlers(HANDLERS)
    nowhere = f"postgresql://nobody@127.0.0.1:{silent_port}/nothing"
    supervisor = stage.run("-c", "1", "--database-wait", "60", conninfo=nowhere, wait=False)
    supervisor.expect("database-lost")
    supervisor.send(number)
    assert supervisor.ended(limit=6) == 0
    assert not supervisor.other, supervisor.other


# ---- a terminal ------------------------------------------------------------------------------------------------------


def in_terminal(stage: Stage, *options: str) -> Terminal:
    """A supervisor as a person starts it; it logs one line of JSON for each event."""
    stage.handlers(HANDLERS)
    paths = [stage.folder, ROOT, ROOT / "supervisor", ROOT / "worker_child"]
    environ = {
        "DATABASE_URL": stage.conninfo,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "XDG_RUNTIME_DIR": str(stage.folder),
    }
    return Terminal("-m", "ganger", "run", "story:handlers", "--log-format", "json", "-c", "1", *options,
                    environ=environ)  # fmt: skip


def said(name: str) -> str:
    return rf'"event": ?"{name}"'


def running_in(stage: Stage, terminal: Terminal, job_type: str, payload: object) -> tuple[UUID, list[int]]:
    """Have it run a job; the job's id and all processes below the terminal."""
    terminal.expect(said("supervisor-started"))
    job_id = stage.enqueue(job_type, payload)
    stage.wait_lines("ledger")
    return job_id, [terminal.process.pid, *(process.pid for process in tree(terminal.process.pid))]


def test_ctrl_c_reaches_the_supervisor_only(stage: Stage) -> None:
    with in_terminal(stage) as terminal:
        job_id, everybody = running_in(stage, terminal, "program", None)
        terminal.ctrl_c()
        terminal.expect(said("shutting-down"))
        program = next(pid for pid in everybody if _name(pid) == "sleep")
        os.kill(program, signal.SIGKILL)  # so far it lived
        terminal.expect(said("completed-shutdown"))
        assert terminal.leave() == 0
        nothing_left(everybody)
    assert "-9" in terminal.shown or "SIGKILL" in terminal.shown
    assert stage.archived(job_id)["reason"] == "exception"


def test_ctrl_c_in_a_terminal_lets_running_jobs_finish(stage: Stage) -> None:
    """D48, https://github.com/gc3pie/gc3pie/issues/633: the terminal signals its foreground group, and the children
    are in none of it: what they compute is stored."""
    with in_terminal(stage, "-c", "2") as terminal:
        terminal.expect(said("supervisor-started"))
        ids = [stage.enqueue("compute", {"seconds": seconds}) for seconds in (2, 2.5)]
        terminal.read_until(lambda: len(stage.lines("ledger")) == 2)
        everybody = [terminal.process.pid, *(process.pid for process in tree(terminal.process.pid))]
        terminal.ctrl_c()
        terminal.expect(said("shutting-down"))
        terminal.expect(said("completed-shutdown"))
        assert terminal.leave() == 0
        nothing_left(everybody)
    assert "Traceback" not in terminal.shown
    for job_id, seconds in zip(ids, (2, 2.5), strict=True):
        row = stage.archived(job_id)
        assert (row["status"], row["result"], row["attempts"], row["interrupts"]) == ("success", seconds, 1, 0)


def test_ctrl_c_twice_in_a_terminal(stage: Stage) -> None:
    with in_terminal(stage, "--grace", "1") as terminal:
        job_id, everybody = running_in(stage, terminal, "compute-in-c", None)
        terminal.ctrl_c()
        terminal.expect(said("shutting-down"))
        time.sleep(0.6)  # sooner it is the same key press
        terminal.ctrl_c()
        terminal.expect(said("job-interrupted"))
        terminal.expect(said("completed-shutdown"))
        assert terminal.leave() == 0
        nothing_left(everybody)
    assert "Traceback" not in terminal.shown
    row = stage.job(job_id)
    assert row is not None
    assert (row["attempts"], row["interrupts"]) == (0, 1)


def test_a_terminal_that_is_closed_is_a_hangup(stage: Stage) -> None:
    """D52, https://github.com/benoitc/gunicorn/issues/594, and D53, https://github.com/celery/celery/issues/68: the
    terminal under it is closed, and every write fails with EIO. It stops gracefully: both running jobs end once and are
    stored; and it does not spin meanwhile."""
    with in_terminal(stage, "-c", "2") as terminal:
        running_in(stage, terminal, "compute", {"seconds": 3})
        stage.enqueue("compute", {"seconds": 3})
        stage.wait_lines("ledger", 2)
        supervisor = psutil.Process(terminal.process.pid)
        everybody = [supervisor.pid, *(process.pid for process in tree(supervisor.pid))]
        before = sum(supervisor.cpu_times()[:2])
        spent = 0.0
        terminal.close_window()
        while terminal.process.poll() is None:
            with suppress(psutil.Error):
                spent = max(spent, sum(supervisor.cpu_times()[:2]) - before)
            time.sleep(0.02)
        assert terminal.process.returncode == 0
        nothing_left(everybody)
    print(f"{spent:.2f} s of CPU while it was draining")
    assert spent < 1.0
    assert stage.lines("ledger") == ["begin"] * 2 + ["end"] * 2
    rows = stage.rows("SELECT status, attempts FROM proletarian.archived_job")
    assert rows == [("success", 1)] * 2
    assert stage.rows("SELECT count(*) FROM proletarian.supervisor") == [(0,)]


ASKING = {
    "input": "input('your name? ')",
    "read": "sys.stdin.readline() or (_ for _ in ()).throw(EOFError())",
    "terminal": "open('/dev/tty').readline()",
    "getpass": "__import__('getpass').getpass()",
    "breakpoint": "breakpoint()",
    "program": "subprocess.run(['sh', '-c', 'read name || exit 9'], check=True)",
}
ANSWERS = {"terminal": "OSError", "breakpoint": "bdb.BdbQuit", "program": "subprocess.CalledProcessError"}


def test_a_handler_has_nobody_to_ask(stage: Stage) -> None:
    """D54, https://github.com/anomalyco/sst/pull/6497: in a terminal, a handler asks for input in every way there is.
    Each time it is an error at once (which the debugger calls BdbQuit), and nothing is ever stopped."""
    with in_terminal(stage) as terminal:
        terminal.expect(said("supervisor-started"))
        seen: set[str] = set()

        def archived(job_id: UUID) -> bool:
            for process in tree(terminal.process.pid):
                with suppress(psutil.Error):
                    seen.add(process.status())
            return bool(stage.rows("SELECT 1 FROM proletarian.archived_job WHERE job_id = %s", job_id))

        for name, how in ASKING.items():
            job_id = stage.enqueue("ask", how)
            terminal.read_until(partial(archived, job_id), 10)
            row = stage.archived(job_id)
            assert (row["status"], row["error"]["type"]) == ("failure", ANSWERS.get(name, "EOFError")), row["error"]
            assert row["wall_s"] < 3
        assert not seen & {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}
        terminal.ctrl_c()
        assert terminal.leave() == 0


def _name(pid: int) -> str:
    with suppress(psutil.Error):
        return psutil.Process(pid).name()
    return ""
