"""Boots that fail, hang, crash or are stopped in their middle: the supervisor ends with a reason, or goes on.

A handler module that does not load ends the supervisor at once: nothing that it could do later would make it better.
A child that dies at its start later on is tried again, ever more slowly. In no case does a job stay claimed.
"""

from __future__ import annotations

import os
import signal
import textwrap
import time

import pytest

from tests.processes import nothing_left, tree, wait_until
from tests.stories.stage import Running, Stage

pytestmark = pytest.mark.slow

ALLOWANCE = 3.0


def cpu_of(supervisor: Running) -> float:
    """Wait for a supervisor that ends by itself; the CPU seconds of it and of all that it has waited for."""
    _, status, usage = os.wait4(supervisor.pid, 0)
    supervisor.process.returncode = os.waitstatus_to_exitcode(status)
    return float(usage.ru_utime + usage.ru_stime)


def test_a_missing_dependency_ends_the_supervisor_soon_with_its_traceback(stage: Stage) -> None:
    """D21, https://github.com/benoitc/gunicorn/issues/508: no restart loop at full CPU. The parent ends within 10 s,
    non-zero and with less than 2 s of CPU, tells the traceback, and has touched no row.
    """
    stage.handlers("""
        def setting_up():
            import there_is_no_such_package
        setting_up()
        handlers = Handlers()
    """)
    job_id = stage.enqueue("note")
    before = stage.job(job_id)
    began = time.monotonic()
    supervisor = stage.run("-c", "4", wait=False)
    cpu_s = cpu_of(supervisor)
    lasted = time.monotonic() - began
    assert supervisor.ended() == 2, supervisor.story()
    assert lasted < 10 * ALLOWANCE
    assert cpu_s < 2 * ALLOWANCE, f"{cpu_s:.2f} s of CPU"
    print(f"it ended after {lasted:.2f} s and {cpu_s:.2f} s of CPU")
    (failed,) = supervisor.named("boot-failed")
    for words in ("Traceback", "in setting_up", "No module named 'there_is_no_such_package'", "story:handlers"):
        assert words in failed["error"]
    assert stage.job(job_id) == before


def test_of_two_modules_the_one_that_fails_is_named_with_the_nested_cause(stage: Stage) -> None:
    """D22, https://github.com/python/cpython/issues/117378: two modules are listed, and the second raises ImportError
    from a nested import. It is not passed over: the start fails and names the second and the cause.
    """
    (stage.folder / "innermost.py").write_text("import json\nfrom json import nothing_of_that_name\n")
    (stage.folder / "second.py").write_text("import innermost\ndef strategy(job, exception): ...\n")
    stage.handlers("def handle(job_type, payload): ...", name="first")
    job_id = stage.enqueue("note")
    before = stage.job(job_id)
    supervisor = stage.run("--retry-strategy", "second:strategy", target="first:handle", wait=False)
    assert supervisor.ended() == 2, supervisor.story()
    (failed,) = supervisor.named("boot-failed")
    assert "second:strategy" in failed["error"]
    assert "cannot import name 'nothing_of_that_name' from 'json'" in failed["error"]
    assert 'innermost.py", line 2' in failed["error"]
    assert stage.job(job_id) == before


HOOKS = """
    import ctypes
    handlers = Handlers()

    @handlers.child_start
    def start():
        if (FOLDER / "broken").exists():
            with open(FOLDER / "tries", "a") as file:
                file.write(f"{os.getpid()}\\n")
            %s

    @handlers.job("once")
    def once(job):
        (FOLDER / "broken").touch()
        if job.payload == "die":
            os._exit(3)
        return job.attempt

    @handlers.job("fine")
    def fine(job):
        return job.attempt
"""
CRASHES = {
    "segfaults": "ctypes.string_at(0)",
    "is-killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "exits-with-0": "os._exit(0)",
}


@pytest.mark.parametrize("how", ["segfaults", *(pytest.param(how, marks=pytest.mark.slow) for how in [*CRASHES][1:])])
def test_a_start_hook_that_crashes_later_keeps_no_job_claimed(stage: Stage, how: str) -> None:
    """D23, https://github.com/kevoreilly/CAPEv2/pull/3142: the hook takes the next child with it while a job waits.
    That job stays as it was, unclaimed, and runs once the hook works again; what has crashed is recorded meanwhile.
    """
    stage.handlers(HOOKS % CRASHES[how])
    supervisor = stage.run("-c", "1", "--recycle-after", "0", "--boot-timeout", "3", "--callback-timeout", "2")
    assert stage.archived(stage.enqueue("once"))["status"] == "success"
    waiting = stage.enqueue("fine")
    before = stage.job(waiting)
    stage.wait_lines("tries", 2, 20)
    assert stage.job(waiting) == before
    assert "before it was ready" in supervisor.named("boot-failed")[0]["error"]
    (stage.folder / "broken").unlink()
    row = stage.archived(waiting)
    assert (row["status"], row["attempts"], row["crashes"], row["starts"]) == ("success", 1, 0, 1)
    if how == "segfaults":  # and no child can be asked about a job that has crashed: it is recorded all the same
        row = stage.archived(stage.enqueue("once", "die"), 40)
        assert (row["status"], row["reason"], row["exit_code"], row["attempts"]) == ("failure", "crash", 3, 1)
        assert stage.rows("SELECT * FROM proletarian.job") == []
    assert supervisor.process.poll() is None
    assert supervisor.stop() == 0


@pytest.mark.parametrize("start_method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_start_hook_that_always_crashes_ends_the_supervisor(stage: Stage, start_method: str) -> None:
    """D23, https://github.com/kevoreilly/CAPEv2/pull/3142 and D21, https://github.com/benoitc/gunicorn/issues/508:
    where no child was ever ready, three crashes are enough: no endless loop, no job is touched, and it says why.
    """
    stage.handlers(HOOKS % CRASHES["segfaults"])
    (stage.folder / "broken").touch()
    job_id = stage.enqueue("fine")
    before = stage.job(job_id)
    supervisor = stage.run("-c", "2", "--start-method", start_method, wait=False)
    assert supervisor.ended(40) == 2, supervisor.story()
    assert "signal 11" in supervisor.named("boot-failed")[-1]["error"]
    assert 3 <= len(stage.lines("tries")) <= 6
    assert stage.job(job_id) == before


SLOW = {  # beside those of test_signals
    "import that ignores signals": """
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            try: signal.signal(number, signal.SIG_IGN)
            except OSError: pass
        program = subprocess.Popen(["sh", "-c", "trap '' TERM INT HUP QUIT; sleep 300 & sleep 300"])
        time.sleep(10)
    """,
}
SLOW_HOOK = """
    handlers = Handlers()
    @handlers.child_start
    def start():
        (FOLDER / "booting").touch()
        try: time.sleep(10)
        except BaseException: time.sleep(10)
    @handlers.job("fine")
    def fine(job): ...
"""


@pytest.mark.parametrize("slow", [*SLOW, "start hook"])
def test_sigterm_during_a_long_start_ends_everything_at_once(stage: Stage, slow: str) -> None:
    """D24, https://github.com/circus-tent/circus/issues/935: SIGTERM during an import (or start hook) of 10 s: all is
    gone within 2 s, also what the import has started, and the exit code is that of a stop as asked.
    """
    if slow == "start hook":
        stage.handlers(SLOW_HOOK)
    else:
        stage.handlers("(FOLDER / 'booting').touch()\n" + textwrap.dedent(SLOW[slow]) + "\nhandlers = Handlers()\n")
    job_id = stage.enqueue("fine")
    before = stage.job(job_id)
    supervisor = stage.run("-c", "2", wait=False)
    wait_until((stage.folder / "booting").exists, 20, supervisor.story)
    assert supervisor.cookie
    everybody = [process.pid for process in tree(supervisor.pid)]
    asked = time.monotonic()
    supervisor.send(signal.SIGTERM)
    assert supervisor.ended(2 * ALLOWANCE) == 0, supervisor.story()
    nothing_left(everybody, max(0.1, asked + 2 * ALLOWANCE - time.monotonic()))
    nothing_left(supervisor.cookie, 1)
    assert not supervisor.named("boot-failed")
    assert stage.job(job_id) == before
