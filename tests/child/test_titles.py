"""Titles say what the design's examples say, and what was composed can be parsed."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ganger_child import titles
from ganger_child.titles import LONGEST, Title, parse
from tests.child.driver import ROOT

JOB_ID = "01890000-0000-7000-8000-00009d3f01c2"
NOON = datetime(2026, 11, 30, 12, 3, 44, tzinfo=UTC)


@pytest.mark.parametrize(
    ("title", "line", "parsed"),
    [
        (
            titles.supervisor("web1:812", "running", 3, 6, [("default", 4), ("render", 2)]),
            "ganger: supervisor web1:812 3/6 running default=4 render=2",
            Title(
                "supervisor",
                "web1:812",
                phase="running",
                running=3,
                slots=6,
                lanes=(("default", 4), ("render", 2)),
            ),
        ),
        (
            titles.template("myapp.jobs:handlers"),
            "ganger: template myapp.jobs",
            Title("template", "myapp.jobs"),
        ),
        (
            titles.warden("render/1", "render-frame", JOB_ID, 2, age=41.9, limit=600.0, progress=42),
            "ganger: warden render/1 render-frame 9d3f01c2 attempt 2 41s/600s 42%",
            Title(
                "warden",
                "render/1",
                job_type="render-frame",
                job_id="9d3f01c2",
                attempt=2,
                age=41.0,
                limit=600.0,
                progress=42,
            ),
        ),
        (
            titles.warden("render/1", "fit", JOB_ID, 1, age=41.9, stalled=True),
            "ganger: warden render/1 fit 9d3f01c2 attempt 1 41s stalled",
            Title("warden", "render/1", job_type="fit", job_id="9d3f01c2", attempt=1, age=41.0, stalled=True),
        ),
        (titles.warden("render/2"), "ganger: warden render/2 idle", Title("warden", "render/2")),
        (
            titles.child("render/1", "render-frame", JOB_ID, 2, since=NOON, limit=600),
            "ganger: child render/1 render-frame 9d3f01c2 attempt 2 since 12:03:44Z limit 600s",
            Title(
                "child",
                "render/1",
                job_type="render-frame",
                job_id="9d3f01c2",
                attempt=2,
                since="12:03:44Z",
                limit=600.0,
            ),
        ),
        (
            titles.warden("any/1", "fit", "77ab90e1", 1, age=12),
            "ganger: warden any/1 fit 77ab90e1 attempt 1 12s",
            Title("warden", "any/1", job_type="fit", job_id="77ab90e1", attempt=1, age=12.0),
        ),
        (titles.child("any/1"), "ganger: child any/1 idle", Title("child", "any/1")),
        (
            titles.child("any/1", "fit", "77ab90e1", 1, since=NOON, limit=0.5),
            "ganger: child any/1 fit 77ab90e1 attempt 1 since 12:03:44Z limit 0.5s",
            Title("child", "any/1", job_type="fit", job_id="77ab90e1", attempt=1, since="12:03:44Z", limit=0.5),
        ),
    ],
)
def test_titles_are_as_documented_and_parse_back(title: str, line: str, parsed: Title) -> None:
    assert title == line
    assert parse(title) == parsed


@pytest.mark.parametrize(
    ("job_type", "word", "back"),
    [
        ("send mail", "send%20mail", "send mail"),
        ("a\tb\nc\u00a0d\u2003e", "a%09b%0Ac%C2%A0d%E2%80%83e", "a\tb\nc\u00a0d\u2003e"),
        ("100%", "100%25", "100%"),
        ("a\0b\x1bc\x7fd\x9be\udc80f", "abcdef", "abcdef"),
        ("größe", "größe", "größe"),
        ("a\u202eb\u200fc\u2066d\ufeffe\u200bf", "abcdef", "abcdef"),  # marks that would turn the line round
        ("\U0001f600" * 100, "\U0001f600" * 60, "\U0001f600" * 60),
        ("%s%n%(x)d{0}$HOME`ls`", "%25s%25n%25(x)d{0}$HOME`ls`", "%s%n%(x)d{0}$HOME`ls`"),
        ("\u2028a\u2029\x1c", "%E2%80%A8a%E2%80%A9%1C", "\u2028a\u2029\x1c"),
        ("\u3042\u0300" * 5000, "\u3042\u0300" * 30, "\u3042\u0300" * 30),
        ("", "-", "-"),
        ("idle", "idle", "idle"),
        ("x" * 500, "x" * 60, "x" * 60),
    ],
)
def test_a_job_type_stays_one_word(job_type: str, word: str, back: str) -> None:
    line = titles.warden("any/1", job_type, JOB_ID, 3, age=5, limit=7)
    assert line == f"ganger: warden any/1 {word} 9d3f01c2 attempt 3 5s/7s"
    assert line.isprintable()
    parsed = parse(line)
    assert parsed is not None
    assert parsed.job_type == back


@settings(deadline=None, max_examples=50)
@given(st.text(st.characters(), max_size=100), st.text(st.characters(), max_size=100), st.integers(0, 10**6))
def test_any_words_make_a_title_that_parses(slot: str, job_type: str, age: int) -> None:
    for line in (
        titles.warden(slot, job_type, JOB_ID, 1, age=age, limit=1e12, progress=100),
        titles.child(slot, job_type, JOB_ID, 1, since=NOON, limit=1e12),
        titles.supervisor(slot, "draining", 1, 2, [(job_type, 3)]),
        titles.template(job_type),
    ):
        assert len(line) <= LONGEST
        assert line.isprintable()
        assert parse(line) is not None
        line.encode()


@pytest.mark.parametrize(
    "line",
    ["", "ganger: ", "python -m ganger", "ganger: warden", "ganger: warden a b", "ganger: child a b c attempt x since",
     "ganger: supervisor a 1/x running", "xganger: template a"],
)  # fmt: skip
def test_what_is_no_title_is_none(line: str) -> None:
    assert parse(line) is None


def test_many_lanes_are_cut_at_the_end() -> None:
    assert len(titles.supervisor("s", "running", 1, 2, [(f"queue-{n}", n) for n in range(100)])) == LONGEST


def python(code: str, **environ: str) -> str:
    """Run a few lines in an interpreter of their own; what they print."""
    search = f"{ROOT / 'worker_child'}"
    done: Any = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": search, **environ}, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return str(done.stdout.decode() + done.stderr.decode())


def test_a_title_is_shown() -> None:
    code = "from ganger_child import titles as t; print(t.show('ganger: x'), open('/proc/self/cmdline').read())"
    assert python(code).startswith("True ganger: x\0")


@pytest.mark.parametrize(
    "without",
    [
        "sys.modules['setproctitle'] = None",
        "sys.modules['setproctitle'] = type(sys)('setproctitle'); sys.modules['setproctitle'].setproctitle = broken",
    ],
)
def test_without_setproctitle_there_is_one_warning(without: str) -> None:
    code = (
        "import sys\n"
        "def broken(title): raise OSError('no')\n"
        f"{without}\n"
        "from ganger_child import titles as t\n"
        "print([t.prepare(warn=lambda error: print('told', error)), t.show('a'), t.show('b'), t.prepare(warn=print)])\n"
    )
    told = python(code)
    assert told.count("told ") == 1
    assert told.count("False") >= 3


@pytest.mark.parametrize("title", ["nul \\0 here", "lone \\udc80"])
def test_a_title_that_cannot_be_shown_raises_nothing(title: str) -> None:
    assert "False" in python(f"from ganger_child import titles as t; print(t.show('{title}'))")


@pytest.mark.parametrize("keep", [True, False])
def test_the_environment_stays_readable_if_asked(keep: bool) -> None:
    code = (
        "from ganger_child import titles as t\n"
        f"t.prepare(keep_environ={keep})\n"
        "t.show('ganger: ' + 'x' * 150)\n"
        "print('GANGER_COOKIE=abc' in open('/proc/self/environ').read())\n"
    )
    assert python(code, GANGER_COOKIE="abc", FILL="y" * 300) == f"{keep}\n"
