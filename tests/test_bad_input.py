"""Bad input at every door: arguments of ``enqueue``, words of the commands, settings from everywhere.

Each is taken, or refused in one sentence that names it; nothing is written then, no transaction is aborted, and no
exception is anything else than a refusal.
"""

from __future__ import annotations

import asyncio
import enum
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.pq import TransactionStatus

from ganger import config
from ganger.client import BadJob, NewJob, cancel, enqueue, enqueue_async, enqueue_many
from ganger.config import OPTIONS, Config, ConfigError, gather
from tests.child.odd_jobs import Text, deep, fail, ring
from tests.conftest import Ganger

bounded = settings(
    deadline=None, derandomize=True, database=None, max_examples=80,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip

# ---------------------------------------------------------------------------------------------------------------------
# Arguments of enqueue


class Level(enum.IntEnum):
    HIGH = 3


class Name(enum.StrEnum):
    MAIL = "mail"


class Moment(datetime):
    """As pendulum's and pandas' are."""

    def __str__(self) -> str:
        return "not for a database"

    isoformat = __format__ = fail  # type: ignore[assignment]


class NotATime(datetime):
    """As pandas.NaT is."""

    def utcoffset(self) -> Any:
        return self


class Zone(tzinfo):
    def __init__(self, offset: Any) -> None:
        self._offset = offset

    def utcoffset(self, moment: datetime | None) -> Any:
        return self._offset() if callable(self._offset) else self._offset

    def dst(self, moment: datetime | None) -> None:
        return None

    def tzname(self, moment: datetime | None) -> str:
        return "zone"


class Unwilling:
    """Asked anything, it raises."""

    __repr__ = __str__ = __eq__ = __hash__ = __bool__ = __len__ = __iter__ = fail


class Whole(int):
    __repr__ = __str__ = __index__ = __eq__ = __hash__ = fail


class Amount(float):
    __repr__ = __str__ = __float__ = __lt__ = __le__ = fail


NOON = datetime(2100, 6, 1, 12, tzinfo=UTC)


def at(zone: tzinfo, moment: datetime = NOON) -> datetime:
    return moment.replace(tzinfo=zone)


HOSTILE: list[Any] = [Unwilling(), Unwilling, object(), b"bytes", [], {}, (), fail, 1j, ring(), deep(300), 10**5000]

GOOD: dict[str, list[Any]] = {
    "job_type": ["t", "größe", "a\nb\x1b", "\u202e", "%s%(x)s", "\U0001f600" * 500, Name.MAIL, Text("text"), "'; DROP"],
    "payload": [None, 0, "text", "\\u0000", [1.5, {"k": [True]}], {1: 2}, Level.HIGH, Name.MAIL, {}, "\U0001f600",
                10**300],
    "queue": ["q", Name.MAIL, Text("text"), "a,b=c", " "],
    "process_at": [NOON, datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC),
                   Moment(2100, 1, 1, tzinfo=UTC), at(timezone(timedelta(hours=23, minutes=59))),
                   at(Zone(timedelta(hours=-20))), at(timezone(timedelta(seconds=1)))],
    "process_in": [0, 0.5, timedelta(days=1), 10**8, Amount(5.0), Level.HIGH],
    "priority": [0, -(2**15), 2**15 - 1, Level.HIGH, Whole(7)],
    "timeout": [1, 0.001, timedelta(hours=1), Amount(5.0)],
    "grace": [0, 5.5, timedelta(0)],
    "memory": [1, 2**63 - 1, Level.HIGH, Whole(7)],
    "shutdown": ["wait", "finish", "interrupt", "terminate", Text("wait")],
    "job_id": [],  # made anew for each
    "unique_key": [],
    "on_duplicate": ["raise", "ignore"],
    "notify": [True, False],
}  # fmt: skip
BAD: dict[str, list[Any]] = {
    "job_type": ["", None, 0, "\0", "\ud800", "x" * 501, "x" * 10_000_000, Text("")],
    "payload": [float("nan"), {"a": float("inf")}, "\0", "\ud800", {"\0": 1}, {1: 1, "1": 2}, {(1,): 2}, {1, 2},
                "x" * (17 << 20)],
    "queue": ["", None, "\0", "\udfff", "x" * 501],
    "process_at": ["2030-01-01T00:00:00Z", 0, True, datetime(2030, 1, 1), NotATime(2030, 1, 1, tzinfo=UTC),
                   at(timezone(timedelta(hours=-12)), datetime.max), at(timezone(timedelta(hours=12)), datetime.min),
                   at(Zone(fail)), at(Zone(5)), at(Zone(timedelta(days=2)))],
    "process_in": [-1, float("nan"), float("inf"), -float("inf"), True, "5", 10**12, timedelta.max, timedelta.min,
                   Amount("nan")],
    "priority": [1.0, True, None, "1", 2**15, -(2**15) - 1, Whole(10**6), float("nan")],
    "timeout": [0, -1, float("inf"), False, "1", Amount(0.0), timedelta(0), -0.0],
    "grace": [-0.1, "1", float("nan"), True],
    "memory": [0, -1, 1.5, True, 2**63, "1GiB", Whole(0), float("inf")],
    "shutdown": ["later", "", 0, ["wait"], Text("nothing")],
    "job_id": ["7", 0, str(uuid4()), b"0" * 16, uuid4],
    "unique_key": ["", 0, "\0", "\ud800", "x" * 501],
    "on_duplicate": ["replace", None, "", True, ["raise"]],
    "notify": [None, 0, 1, "yes"],
    "dumps": [None, "json", 5, lambda value: 5, lambda value: "{", lambda value: b"\xff", lambda value: None, fail,
              lambda value: '{"a":1,"a":1}', lambda value: "NaN", lambda value: "", lambda value: "1e999999",
              lambda value: "[" * 10_000],
    "schema": [None, "", "pg_x", "a b", "1", "x" * 64, 5, ["s"], {}, 'a"; DROP', "\0"],
    "max_payload": [None, 0, -1, "1", 1.5, True, 2**40, float("nan")],
}  # fmt: skip
FOR_ALL = ("on_duplicate", "notify", "dumps", "schema", "max_payload")  # not of one job


def bad_of(argument: str) -> list[Any]:
    of_any_type = [] if argument in ("payload", "dumps") else HOSTILE
    unserialisable = (
        [Unwilling(), object(), b"bytes", fail, 1j, ring(), deep(300), 10**5000] if argument == "payload" else []
    )
    return [*BAD[argument], *of_any_type, *unserialisable]


# By number: what cannot be shown cannot be sampled.
good = st.fixed_dictionaries({}, optional={name: st.integers(0, len(GOOD[name]) - 1) for name in GOOD if GOOD[name]})
bad = st.lists(
    st.sampled_from([(name, number) for name in BAD for number in range(len(bad_of(name)))]),
    max_size=3,
    unique_by=lambda each: each[0],
)


def arguments(goods: dict[str, int], bads: list[tuple[str, int]]) -> dict[str, Any]:
    given = {name: GOOD[name][number] for name, number in goods.items()}
    given |= {name: bad_of(name)[number] for name, number in bads}
    if (
        "process_at" in given
        and "process_in" in given
        and not {"process_at", "process_in"} & {name for name, _ in bads}
    ):
        del given["process_in"]
    return {"job_type": "t", **given}


@pytest.fixture
def conn(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database) as made:
        yield made


def written(conn: psycopg.Connection[Any]) -> int:
    row = conn.execute("SELECT count(*) FROM proletarian.job").fetchone()
    assert row is not None
    return int(row[0])


@bounded
@given(good, bad, st.booleans())
def test_an_enqueue_is_done_or_refused_by_name(
    conn: psycopg.Connection[Any], goods: dict[str, int], bads: list[tuple[str, int]], many: bool
) -> None:
    """Whatever is given, however hostile its class: the transaction goes on, and holds the job or nothing."""
    given = arguments(goods, bads)
    before = written(conn)
    wrong = {name for name, _ in bads}
    try:
        if many:
            of_all = {name: given.pop(name) for name in FOR_ALL if name in given}
            (job_id,) = enqueue_many(conn, [NewJob(**given)], **of_all)
        else:
            job_id = enqueue(conn, **given)
    except BadJob as error:
        told = str(error).removeprefix("jobs[0]: ")
        assert wrong, told
        named = "payload" if told.startswith("payload") else told.split(" ")[0]
        assert named in wrong | ({"payload"} if "dumps" in wrong else set()) | (
            {"process_at"} if "process_in" in wrong else set()
        )
        assert len(told) < 1000
        assert "\n" not in told
        assert written(conn) == before
    else:
        assert not wrong, f"{wrong} was taken"
        assert type(job_id) is UUID
        assert written(conn) == before + 1
    assert conn.info.transaction_status == TransactionStatus.INTRANS


def test_every_bad_argument_alone_is_refused_by_its_name(conn: psycopg.Connection[Any]) -> None:
    for name in BAD:
        for value in bad_of(name):
            with pytest.raises(BadJob) as caught:
                enqueue(conn, **{"job_type": "t", name: value})
            told = str(caught.value)
            assert told.startswith((f"{name} ", "payload ") if name == "dumps" else f"{name} "), told
    assert written(conn) == 0


def test_what_is_no_connection_no_job_no_reason_is_refused(conn: psycopg.Connection[Any], database: str) -> None:
    async def asynchronously() -> None:
        async with await psycopg.AsyncConnection.connect(database) as other:
            with pytest.raises(BadJob, match=r"^conn is .*: give a connection of psycopg 3"):
                enqueue(other, "t")  # type: ignore[arg-type]
            with pytest.raises(BadJob, match=r"^conn is .*: give an asynchronous connection"):
                await enqueue_async(conn, "t")  # type: ignore[arg-type]
            with pytest.raises(BadJob, match=r"^priority is True"):
                await enqueue_async(other, "t", priority=True)

    asyncio.run(asynchronously())
    for wrong in (None, conn.cursor(), database, Unwilling()):
        for call in (lambda c: enqueue(c, "t"), lambda c: enqueue_many(c, []), lambda c: cancel(c, uuid4())):
            with pytest.raises(BadJob, match=r"^conn is "):
                call(wrong)
    for jobs, told in (
        ([NewJob("t"), "t"], r"jobs\[1\] is 't'"),
        ([NewJob("t")] * 2 + [NewJob("")], r"jobs\[2\]: job_type is ''"),
    ):
        with pytest.raises(BadJob, match=told):
            enqueue_many(conn, jobs)  # type: ignore[arg-type]
    for options, told in (({"job_id": "x"}, "job_id"), ({"reason": Unwilling()}, "reason"), ({"schema": []}, "schema")):
        with pytest.raises(BadJob, match=rf"^{told} is"):
            cancel(conn, **({"job_id": uuid4()} | options))
    assert written(conn) == 0


# ---------------------------------------------------------------------------------------------------------------------
# Words of the command


NASTY = [
    "", " ", "-", "--", "-1", "0", "1", "1.5", "1e3", "nan", "inf", "none", "true", "10m", "2GiB", "\ud800\udcff",
    "\x1b[31m", "a\nb", "x" * 3000, "9" * 5000, "1" + "0" * 400, "\u0661\u0662", "½", "\u202e", "%s", "{}", "[]",
    '{"a":1,"a":2}', "1e400", "wait", "raise", str(UUID(int=7)), "2030-01-01", "2030-01-01T00:00:00Z",
    "9999-12-31T23:59:59-23:59", "[" * 5000, '"\\u0000"', '"\\ud800"', "99999999999d", "0.0000001", "=", "a=b", "../..",
    "$(id)", "'",
]  # fmt: skip
FLAGS = ["--queue", "--process-at", "--process-in", "--priority", "--timeout", "--grace", "--memory", "--shutdown",
         "--job-id", "--unique-key", "--on-duplicate", "--max-payload", "--schema", "--config", "--none"]  # fmt: skip


@pytest.mark.slow
@bounded
@given(
    st.lists(st.sampled_from(NASTY), min_size=0, max_size=2),
    st.lists(st.tuples(st.sampled_from(FLAGS), st.sampled_from(NASTY)), max_size=3),
)
def test_the_enqueue_command_prints_an_id_or_one_sentence(
    ganger: Ganger, conn: psycopg.Connection[Any], database: str, words: list[str], options: list[tuple[str, str]]
) -> None:
    before = written(conn)
    conn.rollback()
    given = [f"{flag}={value}" for flag, value in options]
    code, out, err = ganger("enqueue", f"--database-url={database}", *given, "--", *words)
    if code == 0:
        assert UUID(out.strip())
        assert err == ""
        assert written(conn) == before + 1 or "--on-duplicate=ignore" in given
    else:
        assert code in (1, 2, 78), err  # 1: the job_id or key is there; 78: another schema, a file that is none
        assert out == ""
        assert err.startswith("ganger: ")
        assert err.count("\n") == 1
        assert len(err) < 7000
        assert written(conn) == before
    conn.rollback()


@pytest.mark.slow
def test_a_payload_from_a_stdin_that_is_closed_or_no_text(database: str) -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    script = f'exec "$0" -m ganger enqueue t - --database-url "{database}"'
    for redirect, data in (
        ("<&-", b""),
        ("</dev/null", b""),
        ("", b"\xff\xfe{}"),
        ("", b"[" * 100_000),
        ("", b"\0"),
    ):
        command = ["/bin/sh", "-c", f"{script} {redirect}", sys.executable]
        done = subprocess.run(command, env=environ, input=data, capture_output=True, timeout=60)
        assert done.returncode in (1, 2), (redirect, data[:20], done)
        assert done.stdout == b""
        assert done.stderr.startswith(b"ganger: "), done.stderr
        assert done.stderr.count(b"\n") == 1


# ---------------------------------------------------------------------------------------------------------------------
# Settings: options, environment, files

EMPTY = " \t"  # no value of any setting
WRONG_IN_A_FILE = (
    "1979-05-27T07:32:00Z",
    "inf",
    "{ '' = [] }",
    '"\\u0000"',
    "-99" + "9" * 5000,
    '"\\u001b[31m\\n"',
    "[[1]]",
)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_wrong_setting_is_told_with_its_place(
    ganger: Ganger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """On the command line exit code 2, elsewhere 78; one sentence, and nothing is written."""
    option = config.option_name(name)
    if OPTIONS[name].metadata["read"] is not config.flag:
        words = ["run", EMPTY] if name == "target" else ["run", "a:b", f"{option}={EMPTY}"]
        code, out, err = ganger(*words)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert f"{option} is " in err or f"queue in {option}" in err
    monkeypatch.setenv(f"GANGER_{name.upper()}", EMPTY)
    code, out, err = ganger("run", *([] if name == "target" else ["a:b"]))
    assert (code, out, err.count("\n")) == (78, "", 1), err
    assert f"GANGER_{name.upper()} is " in err or f"queue in GANGER_{name.upper()}" in err
    monkeypatch.delenv(f"GANGER_{name.upper()}")
    for value in WRONG_IN_A_FILE:
        (tmp_path / "ganger.toml").write_text(f"{name} = {value}\n")
        with pytest.raises(ConfigError, match=f"{name} in ganger.toml|cannot be read") as caught:
            gather({}, {})
        assert str(caught.value).isprintable()
    code, out, err = ganger("run", *([] if name == "target" else ["a:b"]))
    assert (code, out, err.count("\n")) == (78, "", 1), err
    assert f"{name} in ganger.toml" in err
    assert sorted(os.listdir(tmp_path)) == ["ganger.toml"]


FILES: dict[str, tuple[bytes, str]] = {
    "no TOML": (b"grace = ", "cannot be read"),
    "twice": (b"grace = 1\ngrace = 2\n", "cannot be read"),
    "twice, in two spellings": (b"until-empty = true\nuntil_empty = false\n", "until_empty stands twice"),
    "unknown": (b"grcae = 1\n", "Did you mean grace?"),
    "unknown and strange": (b'"a\\nb\\u001b" = 1\n', "is no setting"),
    "unknown and long": (b'"' + b"x" * 100_000 + b'" = 1\n', "is no setting"),
    "a table too many": (b"[run]\ngrace = 1\n", "run in ganger.toml is no setting"),
    "NUL": (b"grace = 1\0\n", "cannot be read"),
    "Latin-1": ("name = 'größe'\n".encode("latin-1"), "cannot be read"),
    "UTF-16": ("grace = 1\n".encode("utf-16"), "cannot be read"),
    "random": (bytes(range(256)), "cannot be read"),
    "deep": (b"grace = " + b"[" * 100_000, "cannot be read"),
    "deep tables": (b"[" + b"a." * 500 + b"b]\n", ""),
    "a long number": (b"grace = " + b"9" * 5000, "cannot be read"),
    "large": (b"#" * (2 << 20), "has over 1048576 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_is_none_is_one_sentence(ganger: Ganger, tmp_path: Path, kind: str) -> None:
    content, told = FILES[kind]
    (tmp_path / "ganger.toml").write_bytes(content)
    for command in (["run", "a:b"], ["enqueue", "t"], ["install"], ["status"]):
        code, out, err = ganger(*command)
        assert (code, out, err.count("\n")) == (78, "", 1), err[:500]
        assert "ganger.toml" in err
        assert told in err
        assert len(err) < 1000
        assert "\x1b" not in err
    assert os.listdir(tmp_path) == ["ganger.toml"]


def test_a_byte_order_mark_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ganger.toml").write_bytes(b"\xef\xbb\xbfgrace = 7\n")
    assert gather({}, {}) == {"grace": 7.0}


def test_a_file_that_is_not_there_or_cannot_be_opened(ganger: Ganger, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("link")
    (tmp_path / "pyproject.toml").write_text("tool = 5\n")
    for name, told in (
        ("", "does not exist"), ("missing.toml", "does not exist"), ("folder/x/y", "does not exist"),
        ("pyproject.toml/x", "does not exist"), ("folder", "directory"), ("link", "cannot be read"),
        ("x" * 5000, "cannot be read"), ("pyproject.toml", "tool in pyproject.toml is 5"), ("/dev/zero", "has over"),
    ):  # fmt: skip
        code, out, err = ganger("run", "a:b", f"--config={name}")
        assert (code, out, err.count("\n")) == (78, "", 1), (name, err)
        assert told in err, (name, err)
    assert ganger("run", "a:b")[0] == 78  # the pyproject.toml of this folder
    for content in ("[tool]\nganger = []\n", "[[tool]]\n", "[tool.ganger]\nx = 1\n"):
        (tmp_path / "pyproject.toml").write_text(content)
        code, _, err = ganger("run", "a:b")
        assert (code, err.count("\n")) == (78, 1)
        assert "pyproject.toml" in err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read(ganger: Ganger, tmp_path: Path) -> None:
    (tmp_path / "ganger.toml").write_text("grace = 1\n")
    (tmp_path / "ganger.toml").chmod(0)
    code, out, err = ganger("run", "a:b")
    assert (code, out, err.count("\n")) == (78, "", 1)
    assert "ganger.toml cannot be read: [Errno 13]" in err


leaves = st.sampled_from([*NASTY, None, True, False, 0, 1, -1, 1.5, 10**30, float("nan"), float("inf"), NOON])
keys = st.sampled_from(["a", "", "b=1", "\0"])
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=2), max_leaves=4
)


@bounded
@given(st.dictionaries(st.sampled_from(sorted(OPTIONS)), values, max_size=4))
def test_any_settings_make_a_configuration_or_one_sentence(given: dict[str, Any]) -> None:
    try:
        made = Config(**{"target": "a:b", **given})
    except ConfigError as error:
        told = str(error)
        assert any(name in told for name in given)
        assert len(told) < 1000
        assert "\n" not in told
        assert told.endswith((".", "?"))
    else:
        again = {name: getattr(made, name) for name in OPTIONS}
        assert Config(**again) == made
        assert made.lanes
        json.dumps(again)


def test_hostile_values_are_refused_by_name_too() -> None:
    for name in OPTIONS:
        for value in HOSTILE:
            with pytest.raises(ConfigError, match=name):
                Config(**{"target": "a:b", name: value})


@pytest.mark.parametrize(
    "url",
    ["host=h hunter2", "host=h password", "postgresql://u:hunter2@h:port/d", "postgresql://u:hunter2@h:1/d?nonsense=1",
     "postgresql://u:hunter2@[h/d", "host='h", "dbname=d hunter2=5", "postgresql://u:hunter2@h:99999999/d"],
)  # fmt: skip
def test_a_database_url_that_libpq_cannot_read_is_one_sentence_without_it(ganger: Ganger, url: str) -> None:
    for command in (["status"], ["enqueue", "t"], ["run", "a:b", "--database-wait=0"]):
        code, out, err = ganger(*command, f"--database-url={url}")
        assert code in (2, 69, 78), err
        assert (out, err.count("\n")) == ("", 1), err
        assert "hunter2" not in err
