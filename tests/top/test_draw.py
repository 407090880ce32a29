"""The lines of the screen: as wide and as high as it is, the important rows first, whatever is in them."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from rich.cells import cell_len

from ganger.top.draw import KEYS, Chosen, Screen, draw
from ganger.top.model import Ended, Process, Queue, Slot, Supervisor, View


def view(slots: int = 3, error: str | None = None, job_type: str = "render-frame") -> View:
    runs = tuple(
        Slot(
            "web1", "here", f"default/{n}", job_type, f"{n:08x}", n, 30.0 * n, 600.0, n % 101, 99.4, 3 << 30,
            (Process(100 + n, 0, f"ganger: child default/{n}", 90.0, 1 << 20), Process(200 + n, 1, "gcc -O2", 9.4, 5)),
            UUID(int=n), "films", "cancelled" if n == 2 else None,
        )
        for n in range(1, slots + 1)
    )  # fmt: skip
    supervisors = tuple(
        Supervisor(f"web{n}", "here", 812 + n, "running", slots, slots + 1, (("default", slots + 1),), 40.0, 120.0)
        for n in (1, 2, 3)
    )
    queues = (Queue("films", 1234, 5, slots, 72.0, True), Queue("default", 0, 0, 0, None, False))
    ended = tuple(
        Ended(UUID(int=n << 64), "films", "fit", "failure", "timeout", 2, "box", 10.0, 61.0, 5 << 20)
        for n in range(1, 9)
    )
    return View("here", supervisors, runs, 4, queues, ended, error)


def shown(what: View, width: int, height: int, **more: object) -> list[str]:
    return [line.plain for line in draw(what, Screen(width, height, "12:00:00", **more))]  # type: ignore[arg-type]


@pytest.mark.parametrize("job_type", ["fit", "ein-sehr-langer-name-" * 9, "漢字" * 30, "e\u0301" * 9, "a\x1b[31m\n\tb"])
def test_no_line_is_wider_and_no_screen_higher_than_there_is_room(job_type: str) -> None:
    what = view(50, job_type=job_type)
    for width in (20, 80, 119, 160, 250):
        for height in (2, 5, 10, 24, 60):
            lines = shown(what, width, height)
            assert len(lines) <= height
            assert max(cell_len(line) for line in lines) <= width
            assert all(line.isprintable() for line in lines)


def test_eighty_columns_show_a_run_with_all_its_figures() -> None:
    lines = shown(view(), 80, 24)
    assert lines[0].startswith("ganger top 12:00:00 on here  3/7 slots busy")
    heads = [line.split()[0] for line in lines if line.split()[0].isupper()]
    assert heads == ["SUPERVISOR", "SLOT", "QUEUE", "ENDED"]
    (first,) = [line for line in lines if line.startswith("default/1 ")]
    assert first.split() == ["default/1", "render-frame", "00000001", "1", "30s/10m", "░░░░", "1%", "99", "3.0G", "2"]
    (second,) = [line for line in lines if line.startswith("default/2 ")]
    assert "render-frame (" in second
    assert any(line.startswith("films (paused)") for line in lines)
    assert any("failure timeout" in line for line in lines)
    assert lines[-1].startswith(KEYS[:20])


def test_what_is_cut_has_a_mark_and_the_number_of_a_slot_stays() -> None:
    run = replace(view(1).slots[0], slot="render-on-gpu/17", job_type="漢字" * 30)
    reasons = ("unknown-job-type", "timeout")
    ended = tuple(replace(view().ended[0], reason=reason, ago=999999.0) for reason in reasons)
    lines = shown(replace(view(), slots=(run,), ended=ended), 80, 24)
    (row,) = [line for line in lines if line.startswith("render-o…/17 ")]
    assert "漢字漢字漢字漢字… 00000001" in row
    assert [line.split()[:5] for line in lines if " ago " in line] == [
        ["11.6d", "ago", "fit", "00000000", "2"], ["11.6d", "ago", "fit", "00000000", "2"],
    ]  # fmt: skip
    assert [reason for reason in reasons if f" {reason} " in " ".join(lines)] == list(reasons)
    assert sum("failure" in line for line in lines) == 1, "where there is room for one of both"


def test_sixty_columns_leave_out_what_matters_least() -> None:
    lines = shown(view(), 60, 24)
    (first,) = [line for line in lines if line.startswith("default/1 ")]
    assert first.split() == ["default/1", "render-frame", "00000001", "30s/10m", "99", "3.0G"]
    (second,) = [line for line in shown(view(), 79, 24) if line.startswith("default/2 ")]
    assert "░░░░   2%" in second
    assert lines[-1].startswith("q quit")


def test_a_wide_screen_shows_more() -> None:
    lines = shown(view(), 160, 40)
    (third,) = [line for line in lines if line.startswith("default/3 ")]
    assert third.split()[-2:] == ["films", "web1"]
    assert "48m" in third  # what is left of it, by its progress
    assert any("box" in line and "fit" in line for line in lines)


def test_what_a_job_says_of_itself_is_beside_its_type_and_above_its_processes() -> None:
    run = replace(view(1).slots[0], note="tile 3\x1b[31m of 9", ends_in=7200.0)
    what = replace(view(1), slots=(run,))
    assert any("render-frame: tile 3?[31m of 9 " in line for line in shown(what, 160, 40))
    for width, told in ((80, "2.0h left"), (160, "2.0h left, tile 3?[31m of 9")):
        lines = shown(what, width, 40, chosen=Chosen.of(run), tree=True)
        assert any(f"PROCESSES of {run.job_id}, {told}" in line for line in lines)


def test_runs_come_first_where_there_is_no_room_for_all() -> None:
    lines = shown(view(50), 80, 24)
    assert sum(line.startswith("default/") for line in lines) >= 8
    assert any(line.startswith("SLOT") and " more" in line for line in lines)
    assert any("fit" in line for line in lines)
    lines = shown(view(50), 80, 8)
    assert sum(line.startswith("default/") for line in lines) >= 3
    lines = shown(view(0), 80, 40)
    assert not any(line.startswith("SLOT") for line in lines)
    assert sum("failure timeout" in line for line in lines) == 8


@pytest.mark.parametrize("number", [1, 25, 50])
def test_the_chosen_row_is_visible(number: int) -> None:
    chosen = Chosen(f"{number:08x}", number)
    drawn = draw(view(50), Screen(80, 24, "", chosen))
    marked = [line.plain for line in drawn if line.style == "reverse"]
    assert len(marked) == 1
    assert f"{number:08x}" in marked[0]
    ended = draw(view(50), Screen(80, 24, "", Chosen(job_id=UUID(int=8 << 64))))
    assert sum(line.style == "reverse" for line in ended) == 1


def test_the_tree_of_the_chosen_run() -> None:
    lines = shown(view(), 80, 24, chosen=Chosen("00000002", 2), tree=True)
    at = next(n for n, line in enumerate(lines) if f"PROCESSES of {UUID(int=2)}" in line)
    assert lines[at + 1].split()[:4] == ["102", "90", "1.0M", "ganger:"]
    assert lines[at + 2].endswith("  gcc -O2".ljust(len(lines[at + 2]) - lines[at + 2].index("  gcc -O2")))
    assert not any(line.startswith("QUEUE") for line in lines)
    assert any(line.startswith("QUEUE") for line in shown(view(), 80, 24, tree=True))  # nothing is chosen


def test_a_database_that_is_away_is_told_with_the_whole_reason() -> None:
    lines = shown(view(error="connection to a long name " * 8 + "refused"), 80, 24)
    assert lines[1].startswith("database: connection to a long name")
    assert lines[3].endswith("refused")
    assert lines[4].startswith("SUPERVISOR")
    assert shown(view(error="and so on " * 80), 80, 24)[3].endswith("…")
    assert shown(view(), 80, 24, footer="Cancel it? y/n")[-1] == "Cancel it? y/n"


def test_where_the_chosen_run_was_stands_in_place_of_the_queues() -> None:
    frame = '  File "/a b/c.py", line 12 in f'
    stacks = f"Main thread (most recent call first):\n{frame}\n\nThread 0x1:\n" + "  and so on\n" * 50
    lines = shown(view(), 80, 24, chosen=Chosen("00000001", 1), stacks=stacks)
    heads = [line.split()[0] for line in lines if line.split()[0].isupper()]
    assert heads == ["SUPERVISOR", "SLOT", "STACKS", "ENDED"]
    assert "  f:12  /a b/c.py" in [line.rstrip() for line in lines]
    assert len(lines) == 24
    assert any(line.rstrip().endswith(" more") for line in lines)
    assert not any(line.startswith("STACKS") for line in shown(view(), 80, 24, stacks=stacks)), "none is chosen"
