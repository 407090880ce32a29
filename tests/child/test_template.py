"""The template: boot, its own end in every way, and that nothing below the supervisor outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import psutil
import pytest

from ganger.core import messages as m
from tests.child.conftest import SLOT, DriverFactory
from tests.processes import alive, nothing_left, survivors, tree, wait_until

HANDLERS = """
import os, signal, subprocess, sys, time
from ganger_child import Handlers

handlers = Handlers()

def hide():
    '''Leave a process in a session of its own that ignores every request to end.'''
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            print("hidden", os.getpid())
            time.sleep(300)
        os._exit(0)

@handlers.job("hide and compute")
def hide_and_compute(job):
    hide()
    subprocess.Popen(["sleep", "300"], start_new_session=True)
    sum(range(10**11))

@handlers.job("kill my warden")
def kill_my_warden(job):
    hide()
    time.sleep(0.2)
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(300)

@handlers.job("echo")
def echo(job):
    return job.payload
"""


def hidden_pid(driver_lines: list[str]) -> int | None:
    return next((int(line.split()[1]) for line in driver_lines if line.startswith("hidden ")), None)


# ---------------------------------------------------------------------------------------------------------------------
# Boot


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def broken(:\n", ["SyntaxError", "handlers_of_test.py"]),
        ("import no_such_module_anywhere\n", ["no_such_module_anywhere"]),
        ("def deep():\n    raise RuntimeError('at import')\ndeep()\n", ["RuntimeError: at import", "in deep"]),
        ("raise SystemExit(3)\n", ["SystemExit"]),
        ("other = 1\n", ["handlers"]),
    ],
    ids=["syntax", "missing module", "raises", "exits", "no handlers"],
)
def test_a_module_that_does_not_load_is_told_with_its_traceback(
    make_driver: DriverFactory, source: str, words: list[str]
) -> None:
    driver = make_driver(source)
    driver.do(m.StartTemplate(1))
    failed = driver.expect(m.TemplateFailed, generation=1)
    for word in words:
        assert word in failed.error
    assert driver.expect(m.TemplateExited, generation=1).how == "exit code 1"


def test_a_module_that_ends_the_process_is_told_as_an_exit(make_driver: DriverFactory) -> None:
    driver = make_driver("import os\nos._exit(7)\n")
    driver.do(m.StartTemplate(1))
    assert driver.expect(m.TemplateExited, generation=1).how == "exit code 7"


def test_a_slow_import_is_stopped(make_driver: DriverFactory) -> None:
    driver = make_driver("print('importing', flush=True)\nsum(range(10**11))\n")
    driver.do(m.StartTemplate(1))
    driver.turn(0.3)
    driver.do(m.StopTemplate(1))
    driver.expect(m.TemplateExited, 2 * 3, generation=1)


def test_threads_of_the_import_are_named(make_driver: DriverFactory) -> None:
    driver = make_driver(
        HANDLERS + "\nimport threading\nthreading.Thread(target=time.sleep, args=(300,), name='my poller').start()\n"
    )
    assert driver.start_template().threads == ("my poller",)


def test_what_the_import_started_does_not_stay(make_driver: DriverFactory, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    driver = make_driver(HANDLERS + f"\nopen({str(note)!r}, 'w').write(str(subprocess.Popen(['sleep', '300']).pid))\n")
    driver.start_template()
    wait_until(lambda: not alive(int(note.read_text())), 6, "the import's process to be killed")


def test_a_module_that_replaces_what_the_loops_use_harms_nobody(make_driver: DriverFactory) -> None:
    """Correction 10: as gevent does, and worse: template and warden have bound what they use before."""
    hostile = """
import os, select, signal, time

def refuse(*arguments, **named):
    raise RuntimeError("replaced")

for module, names in {
    os: ("fork", "waitpid", "wait4", "kill", "pidfd_open", "setsid", "close", "listdir"),
    select: ("poll", "select", "epoll"),
    time: ("monotonic", "sleep", "clock_gettime"),
    signal: ("signal", "pidfd_send_signal", "pthread_sigmask"),
}.items():
    for name in names:
        setattr(module, name, refuse)
"""
    driver = make_driver(HANDLERS + hostile)
    driver.start_template()
    driver.start_warden()
    driver.child += 1
    driver.do(m.StartChild(SLOT, driver.child))
    driver.expect(m.ChildStarted, child=driver.child)
    driver.do(m.Kill(SLOT, driver.child))
    assert driver.expect(m.ChildExited, child=driver.child).exit.term_signal == signal.SIGKILL


def test_a_module_that_forks_while_it_is_imported_is_one_template(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS + "\nos.fork()\nos.fork() or os.write(1, b'twice\\n') and sys.exit('a copy')\n")
    driver.start_template()
    driver.turn(0.5)
    assert not driver.saw(m.TemplateReady)
    assert not driver.saw(m.TemplateFailed)
    warden = driver.start_warden()
    driver.start_child()
    assert psutil.Process(psutil.Process(warden).ppid()).children() == [psutil.Process(warden)]
    driver.begin("echo", "1")
    assert driver.expect(m.JobReturned).result == b"1"


def test_a_fork_hook_that_starts_threads_in_every_process_harms_nobody(make_driver: DriverFactory) -> None:
    """Correction 10: with such a hook of the module, warden and child have threads of the user's from the first."""
    hook = """
import threading

def begin():
    threading.Thread(target=time.sleep, args=(300,), daemon=True).start()

os.register_at_fork(after_in_child=begin)
"""
    driver = make_driver(HANDLERS + hook)
    driver.start_template()
    warden = driver.start_warden()
    driver.start_child()
    assert psutil.Process(warden).num_threads() == 2
    driver.begin("echo", "1")
    assert driver.expect(m.JobReturned).result == b"1"
    driver.begin("hide and compute")
    wait_until(lambda: len(tree(warden)) > 1, 10, "the hidden process")
    assert driver.kill().exit.leftovers >= 1
    driver.start_child()
    driver.do(m.StopWarden(SLOT))
    assert driver.expect(m.WardenExited).how == "exit code 0"


def test_signals_that_ask_to_end_are_not_obeyed(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS)
    driver.start_template()
    warden = driver.start_warden()
    template = psutil.Process(warden).ppid()
    for pid in (template, warden):
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(pid, signum)
    driver.start_child()
    driver.begin("echo", "1")
    assert driver.expect(m.JobReturned).result == b"1"


def test_sigchld_ignored_at_the_start_loses_no_exit(make_driver: DriverFactory) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        driver = make_driver(
            HANDLERS + "\n@handlers.job('exit')\ndef leave(job):\n"
            "    assert subprocess.run(['sh', '-c', 'exit 7']).returncode == 7\n    os._exit(9)\n"
        )
        driver.start()
        driver.begin("exit")
        assert driver.expect(m.ChildExited).exit.exit_code == 9
        driver.do(m.StopTemplate(1))
        assert driver.expect(m.TemplateExited).how == "exit code 0"
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_every_process_carries_the_cookie(make_driver: DriverFactory, cookie: UUID) -> None:
    driver = make_driver(HANDLERS + "\n@handlers.job('cookie')\ndef look(job): return os.environ['GANGER_COOKIE']\n")
    driver.start()
    assert len(survivors(cookie)) == 3
    driver.begin("cookie")
    assert driver.expect(m.JobReturned).result == f'"{cookie}"'.encode()


# ---------------------------------------------------------------------------------------------------------------------
# Ends


def test_a_killed_warden_is_buried_by_the_template(make_driver: DriverFactory) -> None:
    """Correction 4: a job that kills its own warden leaves what it has hidden to the template, which kills it."""
    driver = make_driver(HANDLERS)
    driver.start()
    driver.begin("kill my warden")
    assert driver.expect(m.WardenExited, slot=SLOT).how == "signal 9"
    hidden = hidden_pid([line.text for line in driver.lines])
    assert hidden is not None
    assert not alive(hidden), "the template had not killed what the warden left when it told of its end"
    driver.start_warden()
    driver.start_child()
    driver.begin("echo", "1")
    assert driver.expect(m.JobReturned).result == b"1"


def test_the_templates_death_harms_no_warden(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS)
    driver.start_template()
    warden = driver.start_warden()
    child = driver.start_child()
    os.kill(psutil.Process(warden).ppid(), signal.SIGKILL)
    assert driver.expect(m.TemplateExited, generation=1).how == "signal 9"
    driver.begin("echo", "1")
    assert driver.expect(m.JobReturned).result == b"1"
    driver.begin("hide and compute")
    wait_until(lambda: [each for each in tree(warden) if each.pid != child], 10, "the hidden process")
    assert driver.kill().exit.leftovers >= 1
    driver.do(m.StopWarden(SLOT))
    driver.expect(m.WardenExited, slot=SLOT)


def test_a_warden_killed_after_its_template_is_told(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS)
    driver.start_template()
    warden = driver.start_warden()
    child = driver.start_child()
    os.kill(psutil.Process(warden).ppid(), signal.SIGKILL)
    driver.expect(m.TemplateExited, generation=1)
    os.kill(warden, signal.SIGKILL)
    driver.expect(m.WardenExited, slot=SLOT)
    wait_until(lambda: not alive(child), 6, "the child to die with its warden")


def test_two_generations_live_side_by_side(make_driver: DriverFactory) -> None:
    driver = make_driver(HANDLERS)
    driver.start()
    driver.start_template(2)
    driver.start_warden("other/1", 2)
    driver.do(m.StopTemplate(1))
    assert driver.expect(m.TemplateExited, generation=1).how == "exit code 0"
    driver.begin("echo", "1")
    assert driver.expect(m.JobReturned).result == b"1"
    driver.do(m.StopWarden(SLOT))
    driver.expect(m.WardenExited, slot=SLOT)
    driver.start_warden(SLOT, 2)


@pytest.mark.parametrize("function", ["fork", "pidfd_open"])
def test_a_warden_that_cannot_be_forked_is_told(make_driver: DriverFactory, function: str) -> None:
    driver = make_driver(
        HANDLERS + "\nfrom ganger_child import template\n"
        "def refuse(*arguments): raise OSError(11, 'no more processes')\n"
        f"template.{function} = refuse\n"
    )
    driver.start_template()
    driver.do(m.StartWarden(SLOT, 1))
    assert "no more processes" in driver.expect(m.WardenExited, slot=SLOT).how


SUPERVISOR = """
import sys
from pathlib import Path
from selectors import DefaultSelector
from uuid import UUID

from ganger import incarnation
from ganger.core import messages as m
from ganger.gang import Gang, GangSettings
from ganger_child.options import Options
from tests.child.conftest import Driver

folder, cookie, adopt = sys.argv[1], UUID(sys.argv[2]), sys.argv[3] == "adopt"
lock = incarnation.create(cookie)
selector, events, lines = DefaultSelector(), [], []
options = Options("handlers_of_test:handlers", search_path=folder)
gang = Gang(GangSettings(options, cookie, lock.fd, adopt=adopt), selector, events.append, lines.append)
driver = Driver(gang, selector, events, lines)
driver.start()
driver.begin("hide and compute")
driver.turn_until(lambda: any(line.text.startswith("hidden") for line in lines), 10, "a hidden process")
print("running", flush=True)
while True:
    driver.turn(1)
    gang.reap()  # as the loop does: what a dead slot leaves may come to us a moment later than we hear of it
    for event in events:
        print(type(event).__name__, flush=True)
    events.clear()
"""


@contextmanager
def supervisor(folder: Path, cookie: UUID, adopt: str = "no") -> Iterator[subprocess.Popen[bytes]]:
    """A process with a gang in which a job computes and has hidden other processes."""
    (folder / "handlers_of_test.py").write_text(HANDLERS)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "XDG_RUNTIME_DIR": str(folder),
    }
    command = [sys.executable, "-c", SUPERVISOR, str(folder), str(cookie), adopt]
    root = Path(__file__).parent.parent.parent
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=root)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"running\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        nothing_left(cookie)


def named(pid: int, role: str) -> int:
    """The pid of the one process below with this role in its title."""
    (found,) = [process.pid for process in tree(pid) if f"ganger: {role}" in " ".join(process.cmdline())]
    return found


def test_nothing_outlives_a_killed_supervisor(tmp_path: Path, cookie: UUID) -> None:
    with supervisor(tmp_path, cookie) as process:
        assert len(survivors(cookie)) >= 5  # template, warden, child, and two that it hid; and the supervisor's lock
        process.kill()
        process.wait()
        nothing_left(cookie, 2 * 3)


def test_nor_where_the_warden_is_stopped(tmp_path: Path, cookie: UUID) -> None:
    with supervisor(tmp_path, cookie) as process:
        os.kill(named(process.pid, "warden"), signal.SIGSTOP)
        process.kill()
        process.wait()
        nothing_left(cookie, 2 * 3)


def test_nor_where_the_template_was_killed_before(tmp_path: Path, cookie: UUID) -> None:
    with supervisor(tmp_path, cookie) as process:
        os.kill(named(process.pid, "template"), signal.SIGKILL)
        assert process.stdout is not None
        assert process.stdout.readline() == b"TemplateExited\n"
        process.kill()
        process.wait()
        nothing_left(cookie, 2 * 3)


def test_a_supervisor_that_adopts_kills_what_nobody_else_can(tmp_path: Path, cookie: UUID) -> None:
    """Template and warden are killed: what the job hid comes to the supervisor, and is known by its cookie."""
    with supervisor(tmp_path, cookie, "adopt") as process:
        stranger = subprocess.Popen(["sleep", "300"])
        warden = named(process.pid, "warden")
        os.kill(named(process.pid, "template"), signal.SIGKILL)
        assert process.stdout is not None
        assert process.stdout.readline() == b"TemplateExited\n"
        os.kill(warden, signal.SIGKILL)
        assert process.stdout.readline() == b"OutputKept\n"
        assert process.stdout.readline() == b"WardenExited\n"
        wait_until(lambda: not tree(process.pid), 6, "everything below the supervisor to be gone")
        assert alive(process.pid)
        assert stranger.poll() is None
        stranger.kill()
        stranger.wait()
