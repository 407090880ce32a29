"""The benchmark's arithmetic and its report: what stands in the table is what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench import jobs, report
from tests.bench.latency import quantile
from tests.bench.report import Results
from tests.bench.scores import Goal, Metric, judge, ratios, spread
from tests.bench.workloads import WORKLOADS, Workload

RATE = Metric("jobs_s", "jobs/s", "more")
LATE = Metric("late_s", "s late", "less")


def test_a_spread_is_of_what_was_measured() -> None:
    """A round that never came to an end has no value, and does not count as one."""
    assert spread([3.0, None, 1.0, 2.0]) == (2.0, 1.0, 3.0, 3)
    assert spread([None, None]) is None
    assert spread([]) is None


def test_ratios_are_taken_round_by_round() -> None:
    """Two quick rounds for one and two slow ones for the other do not make a median that no round has seen."""
    ours, theirs = [100.0, 50.0, 300.0], [50.0, 25.0, 100.0]
    assert ratios(ours, theirs, "more") == [2.0, 2.0, 3.0]
    assert ratios(ours, theirs, "less") == [0.5, 0.5, pytest.approx(1 / 3)]


def test_a_ratio_needs_both_of_a_round() -> None:
    assert ratios([1.0, None, 3.0], [None, 2.0, 1.5], "more") == [None, None, 2.0]
    assert ratios([1.0], [0.0], "more") == [None]
    assert ratios([1.0, 2.0, 3.0], [1.0], "more") == [1.0]  # a peer that takes part in one round only


@pytest.mark.parametrize(
    ("goal", "metric", "ours", "theirs", "met"),
    [
        (Goal("jobs_s", 2.0, "peer"), RATE, [200.0, 190.0, 210.0], [100.0, 90.0, 100.0], True),
        (Goal("jobs_s", 2.0, "peer"), RATE, [199.0, 190.0, 210.0], [100.0, 100.0, 106.0], False),
        (Goal("late_s", 2.0, "peer"), LATE, [1.0], [2.0], True),  # half as late is twice as good
        (Goal("late_s", 2.0, "peer"), LATE, [2.0], [1.0], False),
        (Goal("jobs_s", 100.0), RATE, [99.0, 100.0, 300.0], [1.0], True),
        (Goal("late_s", 0.1), LATE, [0.05, 0.1, 5.0], [1.0], True),
        (Goal("late_s", 0.1, worst=True), LATE, [0.05, 0.1, 0.11], [1.0], False),
        (Goal("jobs_s", 100.0, worst=True), RATE, [99.0, 100.0, 300.0], [1.0], False),
        (Goal("late_s", 0.1), LATE, [None], [1.0], False),  # never is not in time
        (Goal("late_s", 0.1, worst=True), LATE, [0.05, None], [1.0], False),
    ],
)
def test_a_goal_is_met_or_missed(
    goal: Goal, metric: Metric, ours: list[float | None], theirs: list[float | None], met: bool
) -> None:
    (verdict,) = judge(goal, metric, {"ganger": ours, "peer": theirs})
    assert verdict.met(metric.better) is met


def test_a_goal_without_its_peer_is_not_judged() -> None:
    """A peer that was skipped makes nothing met and nothing missed."""
    assert judge(Goal("jobs_s", 2.0, "peer"), RATE, {"ganger": [1.0]}) == []
    assert judge(Goal("jobs_s", 2.0, "peer"), RATE, {"ganger": [1.0], "peer": [None]}) == []
    assert judge(Goal("jobs_s", 2.0), RATE, {}) == []


def test_a_goal_against_several() -> None:
    verdicts = judge(
        Goal("jobs_s", 1.0, "any postgres"), RATE, {"ganger": [2.0], "a": [1.0], "b": [4.0], "c": [9.0]}, {"a", "b"}
    )
    assert [(verdict.against, verdict.reached) for verdict in verdicts] == [("a", 2.0), ("b", 0.5)]


def test_a_quantile_is_a_value_that_was_measured() -> None:
    values = [float(n) for n in range(1, 101)]
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile([7.0], 0.99)) == (51.0, 100.0, 7.0)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (0.01234, "0.0123"), (0.5, "0.500"), (3.14159, "3.14"), (42.42, "42.4"), (12345.6, "12,346")],
)
def test_numbers_have_three_digits(value: float, shown: str) -> None:
    assert report.number(value) == shown


# ---------------------------------------------------------------------------------------------------------------------
# The report

WORKLOAD = Workload(
    "w0", "a workload", lambda peer, jobs: {}, 1, (RATE, LATE), (Goal("jobs_s", 2.0, "peer"), Goal("late_s", 1.0))
)


def results() -> Results:
    made = Results()
    made.introduce("ganger", "1", "defaults", postgres=True)
    made.introduce("peer", "2", "its defaults", postgres=True)
    for rate in (100.0, 200.0, 300.0):
        made.add("w0", "ganger", {"jobs_s": rate, "late_s": 0.5, "foreign": 0.0})
        made.add("w0", "peer", {"jobs_s": rate / 4, "late_s": None, "foreign": 1.0})
        made.add("w0", "floor", {"jobs_s": 2 * rate, "commit_ms": 0.25})
    return made


def test_the_table() -> None:
    """Medians, ranges and ratios; a star where others used the machine; what the floor has beside."""
    assert report.table(WORKLOAD, results()) == [
        "### W0: a workload",
        "",
        "|  | jobs/s | s late |",
        "| --- | --- | --- |",
        "| ganger | 200 (100-300) | 0.500 |",
        "| peer * | 50.0 (25.0-75.0); 4.00 x | never |",
        "| floor | 400 (200-600); 0.500 x | - |",
        "",
        "Of the floor: commit_ms 0.250.",
        "",
    ]


def test_the_goals_and_the_exit_code() -> None:
    found = results()
    assert report.goals(WORKLOAD, found) == [
        "met    w0: jobs/s ÷ peer 4.00 (to reach ≥ 2.00)",
        "met    w0: s late 0.500 (to reach ≤ 1.00)",
    ]
    assert report.exit_code([WORKLOAD], found) == 0
    for values in found.rounds["w0"]["ganger"]:
        values["late_s"] = 2.0
    assert "MISSED w0: s late 2.00 (to reach ≤ 1.00)" in report.goals(WORKLOAD, found)
    assert report.exit_code([WORKLOAD], found) == 3
    found.broken.append("broken: w0 of peer")
    assert report.exit_code([WORKLOAD], found) == 1


def test_an_aim_is_told_and_decides_nothing() -> None:
    aimed = Workload("w0", "a workload", lambda peer, jobs: {}, 1, (RATE,), (Goal("jobs_s", None, "floor", aim=0.7),))
    assert report.goals(aimed, results()) == ["aim    w0: jobs/s ÷ floor 0.500 (aim 0.700)"]
    assert report.exit_code([aimed], results()) == 0


def test_a_broken_round_keeps_its_place() -> None:
    """What was measured in the third round is compared with the third round of the others."""
    found = results()
    found.rounds["w0"]["peer"][1] = {}
    series = found.series("w0", "jobs_s")
    assert ratios(series["ganger"], series["peer"], "more") == [4.0, None, 4.0]


def test_the_json_says_the_same(tmp_path: Path) -> None:
    report.write_json(tmp_path / "bench.json", [WORKLOAD], results())
    document = json.loads((tmp_path / "bench.json").read_text())
    assert [(goal["reached"], goal["met"]) for goal in document["goals"]] == [(4.0, True), (0.5, True)]
    assert document["rounds"]["w0"]["peer"][0] == {"jobs_s": 25.0, "late_s": None, "foreign": 1.0}
    assert document["settings"] == {"ganger": "defaults", "peer": "its defaults"}


def test_every_goal_names_a_metric_of_its_workload() -> None:
    names = [workload.name for workload in WORKLOADS]
    assert len(names) == len(set(names))
    for workload in WORKLOADS:
        for goal in workload.goals:
            assert workload.metric(goal.metric)


def test_a_record_that_is_being_written_is_left_for_later(tmp_path: Path) -> None:
    whole = jobs.RECORD.pack(b"S", 7, 4711, 1.5, 1.25)
    (tmp_path / "records").write_bytes(whole + whole[:5])
    assert jobs.read(tmp_path / "records") == [("S", 7, 4711, 1.5, 1.25)]
    assert jobs.count(tmp_path / "records") == 1
