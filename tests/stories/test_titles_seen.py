"""What ps and pgrep show of a supervisor at work."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ganger_child import titles
from ganger_child.titles import Title
from tests.processes import survivors, tree, wait_until
from tests.stories.stage import ROOT, Running, Stage

HANDLERS = """
    handlers = Handlers()

    @handlers.job("compute-in-c", timeout=600, grace=60)
    def compute_in_c(job):
        (FOLDER / "ledger").write_text("begin\\n")
        sum(range(10**11))

    @handlers.job("sleep")
    def sleep(job):
        (FOLDER / "ledger").write_text("begin\\n")
        time.sleep(60)

    @handlers.job("quick")
    def quick(job):
        return dict(os.environ)
"""


def shown(supervisor: Running) -> list[str]:
    """The titles of a supervisor and everything below it, but for what has none of ours, as ``ps`` reads them."""
    lines = []
    for pid in [supervisor.pid, *(process.pid for process in tree(supervisor.pid))]:
        with suppress(OSError):  # it ended meanwhile
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            lines.append(b" ".join(arguments).decode())
    return [line for line in lines if line.startswith("ganger:")]


def picture(supervisor: Running) -> dict[str, list[Title]]:
    """The titles by role; every line of ours can be read."""
    by_role: dict[str, list[Title]] = {"supervisor": [], "template": [], "warden": [], "child": []}
    for line in shown(supervisor):
        title = titles.parse(line)
        assert title is not None, line
        by_role[title.role].append(title)
    return by_role


def see(supervisor: Running, role: str, limit: float = 10.0, **facts: Any) -> Title:
    """Wait until a process of this role shows these facts."""

    def find() -> Title | None:
        found = picture(supervisor)[role]
        return next((t for t in found if all(getattr(t, key) == value for key, value in facts.items())), None)

    title = wait_until(find, limit, lambda: f"{role} {facts} in {shown(supervisor)}")
    assert title is not None
    return title


def test_the_whole_picture(stage: Stage) -> None:
    stage.handlers(HANDLERS)
    supervisor = stage.run("-q", "default=2,render=1", "--name", "web1:812")
    job_id = stage.enqueue("compute-in-c", queue="render")
    stage.wait_lines("ledger")
    see(supervisor, "warden", name="render/1", job_type="compute-in-c")
    found = picture(supervisor)
    assert {role: len(of_role) for role, of_role in found.items()} == {
        "supervisor": 1, "template": 1, "warden": 3, "child": 3,
    }  # fmt: skip
    top = found["supervisor"][0]
    assert (top.name, top.running, top.slots, top.phase) == ("web1:812", 1, 3, "running")
    assert top.lanes == (("default", 2), ("render", 1))
    assert found["template"][0].name == "story"
    assert {title.name for title in found["warden"]} == {"default/1", "default/2", "render/1"}
    for title in (see(supervisor, "warden", name="render/1"), see(supervisor, "child", name="render/1")):
        assert (title.job_type, title.job_id, title.attempt, title.limit) == (
            "compute-in-c", str(job_id)[-8:], 1, 600,
        )  # fmt: skip
    assert see(supervisor, "child", name="render/1").since
    for role in ("warden", "child"):
        assert see(supervisor, role, name="default/1").job_type is None
    if shutil.which("pgrep"):
        listed = subprocess.run(["pgrep", "-af", "^ganger:"], capture_output=True, text=True).stdout
        assert f"{supervisor.pid} ganger: supervisor web1:812 1/3 running default=2 render=1\n" in listed
    if shutil.which("ps"):
        tree = subprocess.run(["ps", "xfww"], capture_output=True, text=True).stdout
        assert f"\\_ ganger: child render/1 compute-in-c {str(job_id)[-8:]} attempt 1 since " in tree


def test_a_warden_shows_the_age_while_its_child_is_deep_in_c_code(stage: Stage) -> None:
    stage.handlers(HANDLERS)
    supervisor = stage.run("-c", "1")
    stage.enqueue("compute-in-c")
    ages: list[float] = []

    def three_more() -> bool:
        for title in picture(supervisor)["warden"]:
            if title.age is not None and title.age not in ages:
                assert title.limit == 600
                ages.append(title.age)
        return len(ages) >= 4

    wait_until(three_more, 15, lambda: f"ages {ages}")
    assert ages == sorted(ages)
    assert ages[-1] - ages[0] <= 9  # each second, threefold


def test_phases_of_a_shutdown(stage: Stage) -> None:
    stage.handlers(HANDLERS)
    supervisor = stage.run("-c", "1")
    stage.enqueue("compute-in-c")
    stage.wait_lines("ledger")
    see(supervisor, "supervisor", phase="running", running=1)
    supervisor.send(signal.SIGTERM)
    see(supervisor, "supervisor", phase="draining", running=1)
    see(supervisor, "warden", job_type="compute-in-c")
    supervisor.send(signal.SIGINT)
    supervisor.expect("already-shut-down")
    wait_until(lambda: _ask_to_terminate(supervisor), 10, supervisor.story)
    see(supervisor, "supervisor", phase="terminating", running=1)
    assert supervisor.stop(signal.SIGQUIT) == 0


def _ask_to_terminate(supervisor: Running) -> bool:
    """A SIGINT counts as the second one only half a second after the first."""
    supervisor.send(signal.SIGINT)
    return bool(supervisor.named("ladder-step"))


def test_idle_again_after_a_job(stage: Stage) -> None:
    stage.handlers(HANDLERS)
    supervisor = stage.run("-c", "1")
    stage.archived(stage.enqueue("quick"))
    for role in ("warden", "child"):
        see(supervisor, role, name="default/1", job_type=None)
    see(supervisor, "supervisor", running=0)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_strange_job_types_cannot_break_a_line_and_payload_is_never_shown(stage: Stage, method: str) -> None:
    job_type = "render \x1b[31m frame\n100% \x85\tdone ü"
    stage.handlers("""
        def handle(job_type, payload):
            (FOLDER / "ledger").write_text("begin\\n")
            sum(range(10**11))
    """)
    supervisor = stage.run("-c", "1", "--start-method", method, target="story:handle")
    stage.enqueue(job_type, {"password": "hunter-two"})
    stage.wait_lines("ledger")
    for role in ("warden", "child"):
        wait_until(lambda role=role: picture(supervisor)[role][0].job_type, 10, lambda: str(shown(supervisor)))  # type: ignore[misc]
        assert picture(supervisor)[role][0].job_type == "render [31m frame\n100% \x85\tdone ü"
    lines = shown(supervisor)
    assert len(lines) == 4
    assert all(line.isprintable() and "hunter" not in line for line in lines), lines
    for process in tree(supervisor.pid):
        assert b"hunter" not in Path(f"/proc/{process.pid}/cmdline").read_bytes()


def test_the_longest_and_oddest_job_types_run_and_are_shown_shortly(stage: Stage) -> None:
    """Among them marks that turn the line round, 4-byte characters, percent signs, and nothing that can be shown."""
    stage.handlers("""
        def handle(job_type, payload):
            with open(FOLDER / "ledger", "a") as file: file.write("begin\\n")
            while not (FOLDER / "go").exists(): time.sleep(0.05)
            return len(job_type)
    """)
    supervisor = stage.run("-c", "4", target="story:handle")
    kinds = ("\U0001f600" * 500, "\u202e\u2066 %s\n\x1b[2J\U0001f600" * 45, "\x01\u200f", "x" * 499)
    for kind in kinds:
        stage.enqueue(kind)
    stage.wait_lines("ledger", 4)
    wait_until(lambda: sum(t.job_type is not None for t in picture(supervisor)["warden"]) == 4, 10, supervisor.story)
    for line in shown(supervisor):
        assert line.isprintable()
        assert len(line) <= 200
    (stage.folder / "go").touch()
    lengths = "SELECT (result #>> '{}')::int FROM proletarian.archived_job WHERE status = 'success' ORDER BY 1"
    wait_until(lambda: len(stage.rows(lengths)) == 4, 15, supervisor.story)
    assert [length for (length,) in stage.rows(lengths)] == sorted(map(len, kinds))


def test_a_title_has_200_characters_at_most(stage: Stage) -> None:
    queues = ",".join(f"a-queue-with-a-rather-long-name-{number}=1" for number in range(10))
    stage.handlers("""
        def handle(job_type, payload):
            (FOLDER / "ledger").write_text("begin\\n")
            sum(range(10**11))
    """)
    supervisor = stage.run("-q", queues, "--name", "n" * 200, target="story:handle")
    stage.enqueue("\u6f22" * 300, queue="a-queue-with-a-rather-long-name-3")
    stage.wait_lines("ledger")
    wait_until(lambda: any(title.job_type for title in picture(supervisor)["warden"]), 10, supervisor.story)
    lines = shown(supervisor)
    assert len(lines) == 1 + 1 + 10 + 10
    assert max(map(len, lines)) <= 200, lines
    assert any(" running " in line for line in lines)
    assert sum(" attempt 1 " in line for line in lines) == 2


def environ(pid: int) -> Mapping[bytes, bytes]:
    data = Path(f"/proc/{pid}/environ").read_bytes()
    return dict(entry.split(b"=", 1) for entry in data.split(b"\0") if b"=" in entry)


def test_titles_leave_every_process_its_environment(stage: Stage) -> None:
    """D41, https://github.com/dvarrazzo/py-setproctitle/issues/166: what a title overwrites is the kernel's copy. Jobs
    and the programs they start have their variables, and each of our processes is found all the same."""
    stage.handlers("""
        handlers = Handlers()

        @handlers.job("look")
        def look(job):
            there = subprocess.run(["sh", "-c", 'echo "$A_MARK $GANGER_COOKIE"'], capture_output=True, text=True).stdout
            return [os.environ["A_MARK"], os.environ["GANGER_COOKIE"], *there.split()]
    """)
    supervisor = stage.run("-c", "2", environ={"A_MARK": "kept"})
    mark, cookie, mark_of_program, cookie_of_program = stage.archived(stage.enqueue("look"))["result"]
    assert mark == mark_of_program == "kept"
    assert cookie == cookie_of_program == supervisor.cookie
    titled = see(supervisor, "child", name="default/1").name
    assert titled == "default/1"
    everybody = {supervisor.pid, *(process.pid for process in tree(supervisor.pid))}
    assert len(everybody) == 1 + 1 + 2 + 2
    wait_until(lambda: {process.pid for process in survivors(cookie)} == everybody, 10, lambda: survivors(cookie))


def test_keep_environ_leaves_the_environment_readable(stage: Stage) -> None:
    """D41, https://github.com/dvarrazzo/py-setproctitle/issues/166: the switch for who reads it from outside."""
    stage.handlers(HANDLERS)
    supervisor = stage.run("-c", "1", "--keep-environ", environ={"A_MARK": "readable"})
    stage.enqueue("sleep")
    stage.wait_lines("ledger")
    see(supervisor, "child", job_type="sleep")
    everybody = [supervisor.pid, *(process.pid for process in tree(supervisor.pid))]
    assert len(everybody) == 4
    for pid in everybody:
        assert environ(pid)[b"A_MARK"] == b"readable"
    assert len(shown(supervisor)) == 4


@pytest.mark.parametrize(
    ("method", "source", "error"),
    [
        ("fork", "raise ImportError('not here')", "ImportError: not here"),
        ("spawn", "raise ImportError('not here')", "ImportError: not here"),
        ("fork", "def setproctitle(title): raise OSError('not on this system')", "OSError: not on this system"),
        ("fork", "def setproctitle(title): raise RuntimeError(title[:7])", "RuntimeError: ganger:"),
    ],
)
def test_without_setproctitle_there_is_one_warning_and_jobs_run(
    stage: Stage, method: str, source: str, error: str
) -> None:
    """D42, https://github.com/celery/celery/issues/9894: it is missing, or it raises: jobs run untitled."""
    fake = stage.folder / "fake"
    fake.mkdir()
    (fake / "setproctitle.py").write_text(source + "\n")
    stage.handlers(HANDLERS)
    path = os.pathsep.join([str(fake), str(ROOT)])
    supervisor = stage.run("-c", "2", "--start-method", method, environ={"PYTHONPATH": path})
    rows = [stage.archived(stage.enqueue("quick")) for _ in range(3)]
    assert {row["status"] for row in rows} == {"success"}
    assert supervisor.stop() == 0
    assert [event["error"] for event in supervisor.named("titles-not-shown")] == [error]
    assert not supervisor.other
