"""The processes of this host as titles and figures: whose they are, and what becomes of them from look to look."""

from __future__ import annotations

import os
import subprocess
import sys
from uuid import uuid4

import pytest

from ganger.top import processes as module
from ganger.top.model import Local
from ganger.top.processes import Processes
from tests.processes import wait_until
from tests.top.forged import burn, forged, gang

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="titles are forged by exec and read from /proc")


def of(local: Local, name: str) -> tuple[list[str], list[str]]:
    """The supervisors of this name, as they are shown, and the slots of their runs."""
    supervisors = [
        f"{one.phase} {one.running}/{one.slots} {one.lanes}" for one in local.supervisors if one.name == name
    ]
    return supervisors, sorted(str(slot.slot) for slot in local.slots if slot.supervisor == name)


def test_runs_are_found_by_their_titles_with_their_whole_tree() -> None:
    name, run = f"web-{uuid4()}"[:12], {"job_type": "fit it", "job_id": "9d3f01c2", "attempt": 2, "age": 41.0}
    looking = Processes()
    before = looking.look()
    with forged(gang(name, [{**run, "limit": 600.0, "progress": 42}, None, run], spread=3)) as root:
        looking = Processes()
        local = looking.look()
        assert of(local, name) == (["running 2/3 (('default', 3),)"], ["default/1", "default/3"])
        assert local.idle >= 1
        (first, _) = sorted((slot for slot in local.slots if slot.supervisor == name), key=lambda slot: slot.slot or "")
        assert (first.job_type, first.short_id, first.attempt) == ("fit it", "9d3f01c2", 2)
        assert (first.age, first.limit, first.progress, first.cpu) == (41.0, 600.0, 42, None)
        assert [process.depth for process in first.processes] == [0, 1, 1, 1]
        assert first.processes[0].name.startswith("ganger: child default/1 fit%20it 9d3f01c2 attempt 2 since ")
        assert first.processes[1].name.startswith(f"{name}-step default/1")
        assert first.rss == sum(process.rss for process in first.processes) > 0
        again = looking.look()
        assert all(slot.cpu is not None and slot.cpu < 50 for slot in again.slots if slot.supervisor == name)
        assert root in [one.pid for one in again.supervisors]
    wait_until(lambda: of(looking.look(), name) == ([], []), 20, "what has ended is still shown")
    assert of(before, name) == ([], [])


def test_cpu_is_what_was_used_since_the_look_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALL_EVERY", 0.0)  # this process has no title of ours
    looking = Processes()
    looking.look()
    assert looking._seen[os.getpid()].cpu is None
    burn(0.3)
    looking.look()
    used = looking._seen[os.getpid()].cpu
    assert used is not None
    assert 5 < used < 110


def test_a_process_that_comes_later_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a look at all processes, or, where it is not due yet, in a later one."""
    monkeypatch.setattr(module, "ALL_EVERY", 0.2)
    name = f"late-{uuid4()}"[:12]
    looking = Processes()
    looking.look()
    with forged(gang(name, [{"job_type": "t", "job_id": "1"}])):
        wait_until(lambda: of(looking.look(), name)[1] == ["default/1"], 20, "it is not seen")


def test_an_application_with_a_supervisor_inside() -> None:
    """Its process has no title of ours; its template and wardens have."""
    (tree,) = gang("any", [{"job_type": "t", "job_id": "77ab90e1"}, None]).values()
    with forged({"my-application": tree}) as root:
        local = Processes().look()
        (one,) = [one for one in local.supervisors if one.pid == root]
        assert (one.phase, one.running, one.slots) == ("embedded", 1, 2)
        assert [slot.supervisor for slot in local.slots if slot.short_id == "77ab90e1"] == [f"pid {root}"]


def test_odd_names_of_processes_break_nothing() -> None:
    """A name may hold blanks, parentheses, escapes and bytes that are no text; a process may be a zombie, or gone."""
    odd = subprocess.Popen(
        [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()", ") R 1 (", "\x1b[31m", b"\xff\xfe"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert odd.stdin is not None
    assert odd.stdout is not None
    odd.stdout.readline()
    looking = Processes()
    looking.look()
    words = looking._seen[odd.pid].words
    assert words.isprintable()
    assert words.endswith(") R 1 ( ?[31m \ufffd\ufffd")
    odd.stdin.close()
    os.waitid(os.P_PID, odd.pid, os.WEXITED | os.WNOWAIT)  # a zombie now
    looking._all_at = -module.ALL_EVERY
    looking.look()
    assert odd.pid not in looking._seen
    odd.wait()
