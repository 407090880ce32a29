"""The kernel's counter of what it killed for memory, in control groups of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from ganger.oom import OomKills

V2 = "0::/app/box\n"
V1 = "5:devices:/\n4:cpu,memory:/app/box\n0::/\n"


@pytest.mark.parametrize(
    ("ours", "counter"),
    [
        (V2, "app/box/memory.events"),
        (V2, "app/memory.events"),  # the supervisor was put into a group below that of its unit
        (V2, "memory.events"),  # in a container the group is the root
        (V1, "memory/app/box/memory.oom_control"),
        (V1, "memory/memory.oom_control"),
    ],
)
def test_a_kill_is_seen_for_a_moment(tmp_path: Path, ours: str, counter: str) -> None:
    (tmp_path / "ours").write_text(ours)
    path = tmp_path / counter
    path.parent.mkdir(parents=True, exist_ok=True)

    def killed(count: int) -> None:
        path.write_text(f"low 0\noom_kill_disable 0\noom 9\noom_kill {count}\n")

    killed(3)
    kills = OomKills(tmp_path, tmp_path / "ours")
    assert not kills.just_now()
    killed(4)
    assert kills.just_now()
    kills.look()
    assert kills.just_now(), "the child's end may be heard after the look that counted its kill"
    kills.look()
    assert not kills.just_now()
    assert [kills.killed(told) for told in (None, True, False)] == [False, True, False]
    killed(5)
    assert [kills.killed(told) for told in (None, True, False)] == [True, True, False], "a slot's own counter is surer"


@pytest.mark.parametrize("ours", [None, "", "nonsense\n", V2])
def test_without_a_counter_nothing_is_known(tmp_path: Path, ours: str | None) -> None:
    if ours is not None:
        (tmp_path / "ours").write_text(ours)
    kills = OomKills(tmp_path, tmp_path / "ours")
    kills.look()
    assert not kills.just_now()
