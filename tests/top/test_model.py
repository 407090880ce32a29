"""How the view of the processes and that of the database become one."""

from __future__ import annotations

import json
from dataclasses import replace
from uuid import UUID

import pytest

from ganger.top.model import Local, Process, Progress, Run, Slot, Stored, Supervisor, as_json, combine, natural

JOB = UUID("01a22cff-62f1-7446-91e5-873d246d4448")
HERE = Supervisor("web1", "here", 10, "draining", 1, 4, (("any", 4),), seen=True)
KNOWN = Supervisor("web1", "here", 10, "running", 2, 4, (("any", 4),), beat_age=3.0, lease=120.0, supervisor_id=7)
AWAY = Supervisor("web2", "away", 10, "running", 1, 2, (("any", 2),), beat_age=1.0, lease=120.0, supervisor_id=8)
SLOT = Slot(
    "web1", "here", "any/1", "fit", "246d4448", 2, 30.0, 60.0, 25, 99.0, 1 << 20, (Process(3, 0, "x", 99.0, 5),)
)
RUN = Run(JOB, "q", "fit", 2, 31.0, 60.0, "cancelled", 7)


def test_a_run_that_both_know_is_one_row() -> None:
    view = combine(Local("here", (HERE,), (SLOT,), 3), Stored((KNOWN,), (RUN,)))
    assert view.slots == (replace(SLOT, job_id=JOB, queue="q", cancel="cancelled"),)
    assert view.supervisors == (replace(KNOWN, phase="draining", running=1, seen=True),)
    assert (view.idle, view.slots[0].left) == (3, 90.0)


def test_progress_comes_from_the_title_and_the_rest_of_it_from_the_supervisor() -> None:
    told = Progress(20, "step 3", 55.0)
    view = combine(Local("here", (HERE,), (SLOT,)), Stored((KNOWN,), (replace(RUN, progress=told),)))
    (row,) = view.slots
    assert (row.progress, row.note, row.left) == (25, "step 3", 55.0)
    (row,) = combine(Local("away"), Stored((KNOWN,), (replace(RUN, progress=told),))).slots
    assert (row.progress, row.note, row.left) == (20, "step 3", 55.0)


@pytest.mark.parametrize("run", [replace(RUN, attempt=3), replace(RUN, job_id=UUID(int=JOB.int + 1))])
def test_another_attempt_or_another_job_is_another_row(run: Run) -> None:
    view = combine(Local("here", (HERE,), (SLOT,)), Stored((KNOWN,), (run,)))
    assert [(slot.slot, slot.job_id) for slot in view.slots] == [("-", run.job_id), ("any/1", None)]


def test_runs_of_other_hosts_come_from_the_database_alone() -> None:
    view = combine(
        Local("here", (HERE,), (SLOT,), 3), Stored((KNOWN, AWAY), (replace(RUN, supervisor_id=8, attempt=1),))
    )
    assert [(slot.host, slot.slot, slot.cpu) for slot in view.slots] == [("here", "any/1", 99.0), ("away", None, None)]
    assert [one.name for one in view.supervisors] == ["web1", "web2"]
    assert view.idle == 3 + 1
    (row,) = combine(Local("here"), Stored((), (replace(RUN, supervisor_id=9),))).slots
    assert (row.supervisor, row.host) == ("registration 9", "?")


def test_the_same_pid_on_another_host_is_another_supervisor() -> None:
    view = combine(Local("here", (HERE,), ()), Stored((AWAY,)))
    assert [(one.name, one.phase) for one in view.supervisors] == [("web1", "draining"), ("web2", "running")]


def test_a_supervisor_in_a_container_is_known_by_the_name_it_has_by_default() -> None:
    inside = Supervisor("box:5", "box", 5, "running", 0, 4, (), beat_age=1.0, lease=120.0, supervisor_id=7)
    view = combine(Local("here", (replace(HERE, name="box:5", pid=4711),), ()), Stored((inside,)))
    assert [(one.host, one.pid, one.phase, one.seen) for one in view.supervisors] == [("box", 5, "draining", True)]


def test_without_a_database_the_processes_tell_what_they_can() -> None:
    view = combine(Local("here", (HERE,), (SLOT,), 3), Stored(error="It is away."))
    assert (view.supervisors, view.slots, view.idle, view.error) == ((HERE,), (SLOT,), 3, "It is away.")


def test_slots_are_ordered_as_people_count() -> None:
    names = ["default/10", None, "default/2", "a/1", "-", "²/1"]
    assert sorted(names, key=natural)[-1] is None
    assert [name for name in sorted(names, key=natural) if name and "default" in name] == ["default/2", "default/10"]


def test_as_json_is_plain() -> None:
    told = as_json(combine(Local("here", (HERE,), (SLOT,)), Stored((KNOWN,), (RUN,))))
    assert json.loads(json.dumps(told)) == told
    assert (told["slots"][0]["job_id"], told["slots"][0]["left"]) == (str(JOB), 90.0)
    assert told["slots"][0]["processes"][0] == {"pid": 3, "depth": 0, "name": "x", "cpu": 99.0, "rss": 5}
