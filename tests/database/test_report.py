"""``ganger report``: figures that can be reckoned by hand, and a picture that is one."""

from __future__ import annotations

import json
import math
import random
import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ganger import database as db
from ganger import plot
from ganger.client import enqueue
from ganger.report import Run, Scope, Spread, packed, read, read_runs, suggested
from tests.conftest import Ganger
from tests.database.conftest import S

FIRST = 1_790_000_000.0  # seconds of the epoch


def archived(conn: db.Connection, job_type: str = "fit", **columns: Any) -> None:
    """A job that was due 2 s before it began and ran for ``wall_s``, ``after`` seconds after the first one."""
    values = {
        "job_id": uuid4(), "queue": "default", "job_type": job_type, "payload": "{}", "attempts": 1, "wall_s": 10.0,
        "status": "success", "cpu_s": 5.0, "max_rss": 100 << 20, "history": "[]", "supervisor": "web1", "after": 0.0,
        "due": 2.0, **columns,
    }  # fmt: skip
    after, due = FIRST + values.pop("after"), values.pop("due")
    times = {"process_at": after - due, "started_at": after, "finished_at": after + (values["wall_s"] or 0)}
    if values.pop("never_ran", False):
        times["started_at"] = None
    names = ", ".join([*values, *times, "enqueued_at"])
    places = ", ".join([*(["%s"] * len(values)), *(["to_timestamp(%s)"] * len(times)), "now()"])
    query = f"INSERT INTO proletarian.archived_job ({names}) VALUES ({places})"
    conn.execute(query.encode(), [*values.values(), *times.values()])


def test_each_type_is_told_by_all_its_runs(conn: db.Connection) -> None:
    """Those in the histories count, and their CPU is wasted; one by hand that is no number counts as not measured."""
    history = [
        {"reason": "timeout", "wall_s": 30.0, "cpu_s": 30.0, "max_rss": 1 << 30, "supervisor": "web2",
         "started_at": "2020-01-01T12:00:00.5+00:00", "ended_at": "2020-01-01T12:00:30+00:00"},
        {"reason": "lost"},
        {"reason": "by hand", "wall_s": "long", "cpu_s": None, "max_rss": [], "started_at": 7, "ended_at": "soon"},
        {"status": "success", "wall_s": 20.0, "cpu_s": 20.0},
    ]  # fmt: skip
    archived(conn, history=json.dumps(history))
    for _ in range(3):
        archived(conn, due=4.0)
    archived(conn, status="failure", reason="exception", wall_s=50.0, cpu_s=45.0)
    archived(conn, status="failure", reason="crash", wall_s=None, cpu_s=None, max_rss=None, history='"by hand"')
    archived(conn, "never", status="cancelled", reason="cancelled", never_ran=True, wall_s=None, cpu_s=None)
    enqueue(conn, "fit")
    fit, never = read(conn, S, Scope())
    assert (fit.job_type, fit.jobs, fit.success, fit.failure, fit.cancelled, fit.runs) == ("fit", 6, 4, 2, 0, 10)
    assert fit.reasons == {"crash": 1, "exception": 1}
    assert fit.wait_s is not None
    assert (fit.wait_s.p50, fit.wait_s.max) == (3.0, 4.0)
    assert fit.wall_s is not None  # of 10, 10, 10, 10, 20, 30, 50
    assert (fit.wall_s.p50, fit.wall_s.max) == (10.0, 50.0)
    assert fit.wall_s.p95 == pytest.approx(30 + 0.7 * 20)
    assert fit.max_rss == Spread(100 << 20, pytest.approx((100 << 20) + 0.75 * (924 << 20)), 1 << 30)  # type: ignore[arg-type]
    assert (fit.cpu_total_s, fit.cpu_wasted_s) == (5 * 4 + 20 + 30 + 45, 30 + 45)
    assert fit.efficiency == pytest.approx(115 / 140)
    assert (fit.timeout_s, fit.memory_bytes) == (45.0, 128 << 20)  # five good ones: of 10 s and one of 20 s
    assert (never.jobs, never.cancelled, never.runs) == (1, 1, 0)
    assert (never.wait_s, never.wall_s, never.efficiency) == (None, None, None)
    assert never.reasons == {"cancelled": 1}
    runs = read_runs(conn, S, Scope())
    assert runs[0] == Run("fit", "web2", "None", 1577880000.5, 1577880030.0, 30.0)
    assert len(runs) == 7, "the picture shows those of whose times is told"


def test_only_what_is_asked_for_is_reported(conn: db.Connection) -> None:
    archived(conn, queue="q")
    archived(conn, "render", wall_s=1.0)
    conn.execute(
        "UPDATE proletarian.archived_job SET finished_at = now() - interval '1 hour' WHERE job_type = 'render'"
    )
    conn.execute("UPDATE proletarian.archived_job SET finished_at = now() - interval '1 minute' WHERE job_type = 'fit'")
    for scope, wanted in (
        (Scope(), ["fit", "render"]), (Scope(since=600), ["fit"]), (Scope(queue="q"), ["fit"]),
        (Scope(job_type="render"), ["render"]), (Scope(queue="none"), []),
    ):  # fmt: skip
        assert [one.job_type for one in read(conn, S, scope)] == wanted
        assert sorted(run.job_type for run in read_runs(conn, S, scope)) == wanted


@pytest.mark.parametrize(
    ("good", "wall", "rss", "wanted"),
    [
        (4, Spread(1, 1, 1), Spread(1, 1, 1), (None, None)),
        (5, None, None, (None, None)),
        (5, Spread(0.01, 0.02, 0.03), Spread(0, 0, 0), (1.0, 64 << 20)),
        (9, Spread(10, 20, 90), Spread(1, 1, 900 << 20), (120.0, 1280 << 20)),
        (9, Spread(10, 40 * 60, 45 * 60), Spread(1, 1, 20 << 30), (2 * 3600.0, 25 << 30)),
        (9, Spread(1, 86400, 100000), Spread(1, 1, 1), (48 * 3600.0, 64 << 20)),
    ],
)
def test_suggested_limits_are_above_what_was_seen_and_round(
    good: int, wall: Spread | None, rss: Spread | None, wanted: tuple[float | None, int | None]
) -> None:
    assert suggested(good, wall, rss) == wanted


def test_runs_are_packed_into_as_few_rows_as_ran_at_a_time() -> None:
    rng = random.Random(7)
    starts = [rng.uniform(0, 100) for _ in range(200)]
    runs = [Run("t", rng.choice("ab"), "success", start, start + rng.uniform(0, 20), None) for start in starts]
    rows = packed(runs)
    assert sorted((run.supervisor, run.started) for _, row in rows for run in row) == sorted(
        (run.supervisor, run.started) for run in runs
    )
    for name, row in rows:
        assert {run.supervisor for run in row} == {name.split()[0]}
        assert all(before.ended <= after.started for before, after in pairwise(row))
    for supervisor in "ab":
        own = [run for run in runs if run.supervisor == supervisor]
        most = max(sum(one.started <= at.started < one.ended for one in own) for at in own)
        assert sum(name.split()[0] == supervisor for name, _ in rows) == most


def a_day(conn: db.Connection) -> None:
    """Four slots for an hour and a half, with everything that can happen."""
    rng = random.Random(3)
    for slot in range(4):
        at = 0.0
        while at < 5400:
            job_type, usual = rng.choice([("render-frame", 60), ("render-frame", 60), ("fit", 300), ("thumbnail", 4)])
            wall = usual * math.exp(rng.gauss(0, 0.5))
            status, reason = rng.choice([("success", None)] * 8 + [("failure", "timeout"), ("cancelled", "killed")])
            archived(conn, job_type, wall_s=wall, cpu_s=wall * 0.8, after=at, status=status, reason=reason,
                     supervisor=f"web{slot // 3 + 1}", max_rss=int(wall * (1 << 20)))  # fmt: skip
            at += wall + rng.uniform(0, 60)


def test_the_command_tells_it_as_tables_as_json_and_as_a_picture(
    ganger: Ganger, conn: db.Connection, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database)
    assert ganger("report")[:2] == (0, "no job has ended\n")
    assert ganger("report", "-o", "empty.png")[0] == 0
    a_day(conn)
    archived(conn, "_odd-$\\frac$-処理-" + "name" * 40, supervisor="$web$")
    code, out, err = ganger("report")
    assert (code, err) == (0, "")
    assert re.search(r"^fit +\d+ +\d+ +\d+ +\d+ +\d+ +\S+ +80% +\S+ +(killed|timeout) \d+", out, re.M)
    assert re.search(r"^render-frame +2.0s +2.0s +2.0s +\S+ +\S+ +\S+", out, re.M)
    assert re.search(r"^fit +(\d+m|\d\.\dh) +[\d.]+[MG]$", out, re.M)
    told = json.loads(ganger("report", "--json", "--type", "fit")[1])
    assert [one["job_type"] for one in told["types"]] == ["fit"]
    assert ganger("report", "-o", "r.json") == (0, "", "")
    assert len(json.loads((tmp_path / "r.json").read_text())["types"]) == 4
    for name, begins in (("r.png", b"\x89PNG"), ("r.svg", b"<?xml"), ("r.PDF", b"%PDF")):
        assert ganger("report", "-o", name) == (0, "", "")
        assert (tmp_path / name).read_bytes().startswith(begins)
    assert (tmp_path / "r.png").stat().st_size > 20_000
    code, out, err = ganger("report", "-o", "r.docx")
    assert (code, out) == (2, "")
    assert "ends with .png" in err
    assert ganger("report", "-o", "/nowhere/at/all.png")[0] == 1


def test_without_matplotlib_a_picture_is_refused_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(plot.NoPlotter, match=r"ganger\[plot\]"):
        plot.draw([], [], tmp_path / "r.png", "")
