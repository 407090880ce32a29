"""Settings: what is accepted, what it becomes, and with what sentence the rest is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger import config
from ganger.config import Config, ConfigError, LaneConfig, gather


def make(**settings: Any) -> Config:
    return Config(**{"target": "myapp.jobs:handlers", **settings})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 90),
        ("90s", 90),
        ("1.5 s", 1.5),
        ("10m", 600),
        ("1h", 3600),
        ("2d", 172800),
        ("500ms", 0.5),
        (7, 7),
        (0.25, 0.25),
    ],
)
def test_durations_become_seconds(text: object, expected: float) -> None:
    assert make(timeout=text).timeout == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("512MiB", 512 << 20),
        ("2GiB", 2 << 30),
        ("1GB", 10**9),
        ("64k", 64 << 10),
        ("1.5 GiB", 3 << 29),
        (4096, 4096),
        ("10B", 10),
    ],
)
def test_sizes_become_bytes(text: object, expected: int) -> None:
    assert make(memory=text).memory == expected


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"timeout": 0}, "timeout is 0: give more than 0"),
    ({"timeout": True}, "timeout is True: give a number of seconds"),
    ({"timeout": math.nan}, "timeout is nan: give a number of seconds"),
    ({"timeout": math.inf}, "timeout is inf: give a number of seconds"),
    ({"timeout": 10**400}, ": give a number of seconds"),
    ({"timeout": "10 parsecs"}, "timeout is '10 parsecs': give a number of seconds"),
    ({"timeout": "1e3"}, ": give a number of seconds"),
    ({"timeout": "99999d"}, "at most 315360000 seconds"),
    ({"grace": -1}, "grace is -1: give a number of seconds"),
    ({"grace": None}, "grace is None"),
    ({"grace": "none"}, "grace is 'none'"),
    ({"poll_interval": 0}, "poll_interval is 0: give at least 0.01"),
    ({"memory": "0.3KiB"}, "whole number of bytes"),
    ({"memory": 0}, "at least 1"),
    ({"max_result": "2GiB"}, "at most 1073741824"),
    ({"concurrency": 0}, "concurrency is 0: give a whole number from 1"),
    ({"concurrency": True}, "concurrency is True"),
    ({"concurrency": 2.0}, "concurrency is 2.0"),
    ({"nice": 20}, "from -20 to 19"),
    ({"queues": "a,a"}, "names the queue 'a' twice"),
    ({"queues": "a=1,b"}, "give every queue its slots"),
    ({"queues": "a=0"}, "the number of slots of queue 'a' in queues is 0"),
    ({"queues": "a="}, "the number of slots of queue 'a'"),
    ({"queues": ""}, "not empty"),
    ({"queues": "a,,b"}, "not empty"),
    ({"queues": []}, "not empty"),
    ({"queues": ["a,b"]}, "neither a comma nor an equals sign"),
    ({"queues": 3}, "queues is 3"),
    ({"queues": "a\0b"}, "unprintable"),
    ({"queues": "a=4", "concurrency": 3}, "exclude each other: leave concurrency out"),
    ({"name": "\ud800"}, "unprintable"),
    ({"name": " x"}, "no space at its ends"),
    ({"name": "x" * 201}, "at most 200"),
    ({"shutdown": "wiat"}, "give one of wait, finish, interrupt, terminate. Did you mean wait?"),
    ({"start_method": "forkserver"}, "give one of fork, spawn"),
    ({"until_empty": "maybe"}, "give true or false"),
    ({"until_empty": 1}, "give true or false"),
    ({"target": "myapp.jobs"}, "as in myapp.jobs:handlers"),
    ({"target": "my app:x"}, "as in myapp.jobs:handlers"),
    ({"target": ":x"}, "as in myapp.jobs:handlers"),
    ({"retry_strategy": print}, "retry_strategy is"),
    ({"schema": "pg_jobs"}, "PostgreSQL keeps"),
    ({"schema": "PG_jobs"}, "PostgreSQL keeps"),
    ({"schema": "my jobs"}, "letters, digits and underscores"),
    ({"schema": "1st"}, "no digit first"),
    ({"schema": "x" * 64}, "at most 63"),
    ({"lease": 4, "poll_interval": 3}, "at least twice the poll interval"),
    ({"lease": 1}, "lease is 1: give at least 2"),
    ({"log": "print"}, "give a function"),
]


@pytest.mark.parametrize(("settings", "sentence"), REFUSED)
def test_what_is_wrong_is_told_in_a_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(**settings)
    message = str(caught.value)
    assert sentence in message
    assert message.endswith((".", "?"))
    assert "\n" not in message


@pytest.mark.parametrize(
    "url", ["mysql://user:hunter2@host/db", "hunter2", "postgresql+psycopg2://u:hunter2@h/d", "", "host=x\0hunter2"]
)
def test_a_wrong_database_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(database_url=url)
    assert "hunter2" not in str(caught.value)


def test_the_password_is_not_in_the_repr() -> None:
    assert "hunter2" not in repr(make(database_url="postgresql://u:hunter2@h/d"))


@pytest.mark.parametrize(
    ("settings", "lanes"),
    [
        ({"concurrency": 3}, (LaneConfig("default", ("default",), 3),)),
        ({"queues": "b,a", "concurrency": 2}, (LaneConfig("any", ("b", "a"), 2),)),
        ({"queues": ["a", "b"], "concurrency": 1}, (LaneConfig("any", ("a", "b"), 1),)),
        ({"queues": "a=4, b=2"}, (LaneConfig("a", ("a",), 4), LaneConfig("b", ("b",), 2))),
        ({"queues": {"a": 4}}, (LaneConfig("a", ("a",), 4),)),
    ],
)
def test_lanes(settings: dict[str, Any], lanes: tuple[LaneConfig, ...]) -> None:
    assert make(**settings).lanes == lanes


@given(st.dictionaries(st.text("abc:/.é-", min_size=1), st.integers(1, 50), min_size=1, max_size=5))
def test_queues_with_slots_are_read_back_as_they_were_given(slots: dict[str, int]) -> None:
    assert {lane.name: lane.slots for lane in make(queues=make(queues=slots).queues).lanes} == slots


def test_by_default_there_is_a_slot_per_usable_cpu() -> None:
    assert make().lanes[0].slots == config.usable_cpus() >= 1


def test_the_quota_of_a_control_group_above_ours_counts(tmp_path: Path) -> None:
    (tmp_path / "pod/box").mkdir(parents=True)
    (tmp_path / "pod/cpu.max").write_text("150000 100000\n")
    (tmp_path / "pod/box/cpu.max").write_text("max 100000\n")
    mine = tmp_path / "mine"
    mine.write_text("0::/pod/box\n")
    assert config._cpu_quotas(tmp_path, mine) == [1.5]


def test_a_control_group_that_is_killed_as_a_whole_is_found(tmp_path: Path) -> None:
    (tmp_path / "pod/box").mkdir(parents=True)
    (tmp_path / "pod/box/memory.oom.group").write_text("0\n")
    mine = tmp_path / "mine"
    mine.write_text("4:memory:/pod\n0::/pod/box\n")
    assert config.killed_as_a_whole(tmp_path, mine) is None
    (tmp_path / "pod/memory.oom.group").write_text("1\n")
    assert config.killed_as_a_whole(tmp_path, mine) == tmp_path / "pod"
    mine.write_text("4:memory:/pod\n")
    assert config.killed_as_a_whole(tmp_path, mine) is None
    assert config.killed_as_a_whole(tmp_path, tmp_path / "none") is None


def test_the_quota_of_version_1(tmp_path: Path) -> None:
    (tmp_path / "cpu/box").mkdir(parents=True)
    (tmp_path / "cpu/box/cpu.cfs_quota_us").write_text("200000\n")
    (tmp_path / "cpu/box/cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("-1\n")
    mine = tmp_path / "mine"
    mine.write_text("4:cpu,cpuacct:/box\n3:memory:/elsewhere\n")
    assert config._cpu_quotas(tmp_path, mine) == [2.0]


# ---------------------------------------------------------------------------------------------------------------------
# Where settings come from


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_option_above_environment_above_file_above_default(folder: Path) -> None:
    (folder / "ganger.toml").write_text('grace = "1m"\ntimeout = 10\nlease = 30\nuntil-empty = true\n')
    found = gather({"grace": "2s"}, {"GANGER_GRACE": "3", "GANGER_TIMEOUT": "4", "GANGER_LEASE": ""})
    assert found == {"grace": 2.0, "timeout": 4.0, "lease": 30.0, "until_empty": True}


def test_pyproject_is_read_where_there_is_no_ganger_toml(folder: Path) -> None:
    (folder / "pyproject.toml").write_text('[tool.ganger]\ntarget = "a:b"\nqueues = { x = 2 }\n[tool.other]\nz = 1\n')
    assert gather({}, {}) == {"target": "a:b", "queues": "x=2"}
    (folder / "ganger.toml").write_text("")
    assert gather({}, {}) == {}


def test_a_file_of_ones_own(folder: Path) -> None:
    (folder / "other.toml").write_text("nice = 5\n")
    (folder / "ganger.toml").write_text("nice = 7\n")
    assert gather({}, {}, "other.toml") == {"nice": 5}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("grcae = 5", "grcae in ganger.toml is no setting of ganger. Did you mean grace?"),
        ("grace = -5", "grace in ganger.toml is -5"),
        ("grace = ", "the configuration file ganger.toml cannot be read"),
        ("log = 'x'", "log in ganger.toml is no setting"),
    ],
)
def test_a_mistake_in_the_file_is_told_with_its_place(folder: Path, content: str, sentence: str) -> None:
    (folder / "ganger.toml").write_text(content)
    with pytest.raises(ConfigError, match=sentence.replace("?", "[?]")):
        gather({}, {})


def test_mistakes_elsewhere_are_told_with_their_place(folder: Path) -> None:
    with pytest.raises(ConfigError, match="GANGER_MAX_CRASHES is 'many'"):
        gather({}, {"GANGER_MAX_CRASHES": "many"})
    with pytest.raises(ConfigError, match="--max-crashes is 'many'"):
        gather({"max_crashes": "many"}, {})
    with pytest.raises(ConfigError, match=r"nowhere\.toml does not exist"):
        gather({}, {}, "nowhere.toml")


def test_the_nearer_word_on_slots_stands(folder: Path) -> None:
    (folder / "ganger.toml").write_text('queues = "a=4,b=2"\n')
    assert gather({"concurrency": 8}, {}) == {"concurrency": 8}
    assert gather({"queues": "c=1"}, {"GANGER_CONCURRENCY": "8"}) == {"queues": "c=1"}
    with pytest.raises(ConfigError, match="exclude each other"):
        Config(target="a:b", **gather({"queues": "c=1", "concurrency": 8}, {}))


def test_none_takes_away_what_the_file_gives(folder: Path) -> None:
    (folder / "ganger.toml").write_text('timeout = "10m"\n')
    assert gather({"timeout": "none"}, {}) == {"timeout": None}
