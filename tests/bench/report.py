"""What a run tells: the table with ratios, what was to be reached, and bench.json."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.scores import Metric, Rounds, Spread, Verdict, judge, ratios, spread
from tests.bench.throughput import Values
from tests.bench.workloads import Workload

NOISY = 0.3  # cores that others used; such a measurement is disturbed


@dataclass
class Results:
    """The rounds of every workload by name of the measured, and what could not be measured."""

    versions: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    postgres: set[str] = field(default_factory=set)  # the peers whose queue is in PostgreSQL
    rounds: dict[str, dict[str, list[Values]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def introduce(self, name: str, version: str, settings: str, *, postgres: bool) -> None:
        self.versions[name] = version
        self.settings[name] = settings
        if postgres and name != "ganger":
            self.postgres.add(name)

    def add(self, workload: str, name: str, values: Values) -> None:
        self.rounds.setdefault(workload, {}).setdefault(name, []).append(values)

    def series(self, workload: str, key: str) -> dict[str, Rounds]:
        """One metric of everybody who has it, round by round."""
        measured = self.rounds.get(workload, {}).items()
        return {
            name: [values.get(key) for values in rounds] for name, rounds in measured if any(key in v for v in rounds)
        }

    def verdicts(self, workload: Workload) -> list[tuple[Metric, Verdict]]:
        found = []
        for goal in workload.goals:
            metric = workload.metric(goal.metric)
            series = self.series(workload.name, goal.metric)
            found += [(metric, verdict) for verdict in judge(goal, metric, series, self.postgres)]
        return found


def number(value: float) -> str:
    """Three digits, and no more than are known."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def told(found: Spread | None) -> str:
    if found is None:
        return "never"
    if found.rounds == 1 or found.low == found.high:
        return number(found.median)
    return f"{number(found.median)} ({number(found.low)}-{number(found.high)})"


def table(workload: Workload, results: Results) -> list[str]:
    """A workload's table in Markdown: a row per queue, with ganger's ratio to it behind each value."""
    series = {metric.key: results.series(workload.name, metric.key) for metric in workload.metrics}
    names = [name for name in results.rounds.get(workload.name, {}) if any(name in found for found in series.values())]
    metrics = [metric for metric in workload.metrics if series[metric.key]]
    extra = sorted(
        {key for values in results.rounds.get(workload.name, {}).get("floor", []) for key in values} - set(series)
    )
    lines = [f"### {workload.name.upper()}: {workload.title}", ""]
    lines += [_row(["", *(metric.title for metric in metrics)]), _row(["---"] * (len(metrics) + 1))]
    for name in names:
        cells = [_cell(metric, series[metric.key], name) for metric in metrics]
        lines.append(_row([_marked(name, results.rounds[workload.name][name]), *cells]))
    beside = ", ".join(f"{key} {told(spread(results.series(workload.name, key)['floor']))}" for key in extra)
    return [*lines, "", f"Of the floor: {beside}.", ""] if beside else [*lines, ""]


def _cell(metric: Metric, series: Mapping[str, Rounds], name: str) -> str:
    if name not in series:
        return "-"
    value = told(spread(series[name]))
    ratio = spread(ratios(series.get("ganger", ()), series[name], metric.better))
    return value if name == "ganger" or ratio is None else f"{value}; {told(ratio)} x"


def _marked(name: str, rounds: Sequence[Values]) -> str:
    """The name, with a star where other work on the machine disturbed more than half of the rounds."""
    disturbed = sum(1 for values in rounds if (values.get("foreign") or 0) > NOISY)
    return f"{name} *" if 2 * disturbed > len(rounds) else name


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def goals(workload: Workload, results: Results) -> list[str]:
    """A line for each goal that could be tried."""
    return [_goal(workload, metric, verdict) for metric, verdict in results.verdicts(workload)]


def _goal(workload: Workload, metric: Metric, verdict: Verdict) -> str:
    goal = verdict.goal
    word = "aim   " if goal.limit is None else "met   " if verdict.met(metric.better) else "MISSED"
    what = f"{metric.title} ÷ {verdict.against}" if verdict.against else metric.title
    sign = "≥" if verdict.against or metric.better == "more" else "≤"
    wanted = [f"to reach {sign} {number(goal.limit)}"] if goal.limit is not None else []
    wanted += [f"aim {number(goal.aim)}"] if goal.aim is not None else []
    reached = "never" if verdict.reached is None else number(verdict.reached)
    return f"{word} {workload.name}: {what}{', worst round' if goal.worst else ''} {reached} ({', '.join(wanted)})"


def machine() -> dict[str, Any]:
    """Where it was measured."""
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "processor": _first("/proc/cpuinfo", "model name"),
        "memory": _first("/proc/meminfo", "MemTotal"),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _first(path: str, key: str) -> str:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def markdown(workloads: Iterable[Workload], results: Results) -> str:
    """The whole report."""
    workloads = list(workloads)
    lines = ["Each cell: median (range) over the rounds; behind it how many times better ganger is, pair by pair.", ""]
    lines += [f"{key}: {value}  " for key, value in {**machine(), **results.versions}.items()] + [""]
    for workload in workloads:
        if workload.name in results.rounds:
            lines += table(workload, results)
    lines += [line for workload in workloads for line in goals(workload, results)]
    lines += ["", *results.notes, *results.broken]
    return "\n".join(lines).rstrip() + "\n"


def write_json(path: Path, workloads: Iterable[Workload], results: Results) -> None:
    document = {
        "machine": machine(),
        "versions": results.versions,
        "settings": results.settings,
        "rounds": results.rounds,
        "goals": [
            {
                "workload": workload.name, "metric": verdict.goal.metric, "against": verdict.against,
                "limit": verdict.goal.limit, "reached": verdict.reached, "met": verdict.met(metric.better),
            }
            for workload in workloads
            for metric, verdict in results.verdicts(workload)
        ],
        "notes": results.notes,
        "broken": results.broken,
    }  # fmt: skip
    path.write_text(json.dumps(document, indent=1) + "\n")


def exit_code(workloads: Iterable[Workload], results: Results) -> int:
    """0: everything to be reached was. 3: something was missed. 1: something could not be measured."""
    if results.broken:
        return 1
    verdicts = [pair for workload in workloads for pair in results.verdicts(workload)]
    return 0 if all(verdict.met(metric.better) for metric, verdict in verdicts) else 3


def line(values: Values) -> str:
    """The values of one measurement, for those who watch."""
    return ", ".join(f"{key} {'never' if value is None else number(value)}" for key, value in values.items())
