"""The pictures: bars with ranges for a run, lines over time for a soak. Needs matplotlib, of the bench group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot
from matplotlib.ticker import FuncFormatter

from tests.bench.report import Results, number
from tests.bench.scores import Metric, spread
from tests.bench.soak import Sample
from tests.bench.workloads import Workload

OURS, THEIRS, FLOOR = "#c2410c", "#94a3b8", "#e2e8f0"
COLUMNS = 4
WIDE = 20  # times between the longest and the shortest bar: more than that needs a logarithmic scale

matplotlib.use("Agg")


def bars(path: Path, workloads: Iterable[Workload], results: Results) -> None:
    """A panel for each metric that is to be drawn and that somebody else has a value of too; none, no picture."""
    panels = [
        (workload, metric)
        for workload in workloads
        for metric in workload.metrics
        if metric.drawn and len(results.series(workload.name, metric.key)) > 1
    ]
    if not panels:
        return
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    size = (4.4 * columns, 2.9 * rows + 0.3)
    figure, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    for axis, (workload, metric) in zip(axes.flat, panels, strict=False):
        _panel(axis, workload, metric, results)
    figure.suptitle("ganger beside other queues: median and range; one machine, one run, taking turns")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _panel(axis: Any, workload: Workload, metric: Metric, results: Results) -> None:
    found = {name: spread(rounds) for name, rounds in results.series(workload.name, metric.key).items()}
    there = {name: value for name, value in found.items() if value is not None}
    names = list(found)
    colours = {"ganger": OURS, "floor": FLOOR}
    for place, name in enumerate(names):
        if name not in there:
            axis.text(0, place, " never", va="center", fontsize=8)
            continue
        value = there[name]
        reach = [[value.median - value.low], [value.high - value.median]]
        axis.barh(place, value.median, color=colours.get(name, THEIRS), xerr=reach, ecolor="#334155", capsize=2)
        axis.annotate(
            number(value.median), (value.high, place), (4, 0), textcoords="offset points", va="center", fontsize=8
        )
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.invert_yaxis()
    medians = [value.median for value in there.values() if value.median > 0]
    wide = bool(medians) and max(medians) > WIDE * min(medians)
    if wide:
        axis.set_xscale("log")
    axis.margins(x=0.18)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:,g}"))
    axis.tick_params(axis="x", labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)
    notes = f"{metric.better} is better{', log scale' if wide else ''}"
    axis.set_title(f"{workload.name.upper()}  {metric.title}  ({notes})", fontsize=9, loc="left")


def soak(path: Path, samples: Sequence[Sample]) -> None:
    """Throughput, dead rows and sizes over time; the shaded part is the held transaction."""
    minutes = [sample.at / 60 for sample in samples]
    figure, axes = pyplot.subplots(3, 1, figsize=(10, 8), sharex=True, layout="constrained")
    lines: tuple[tuple[str, dict[str, Sequence[float]]], ...] = (
        ("jobs/s", {"": [s.jobs_s for s in samples]}),
        ("dead rows in job", {"": [s.dead for s in samples]}),
        ("MB", {"job": [s.table_mb for s in samples], "its indexes": [s.index_mb for s in samples]}),
    )
    held = [sample.at / 60 for sample in samples if sample.held]
    for axis, (title, series) in zip(axes, lines, strict=True):
        for name, values in series.items():
            axis.plot(minutes, values, label=name, color=None if name else OURS)
        if held:
            axis.axvspan(held[0], held[-1], color=FLOOR, label="a transaction is held open")
        axis.set_ylabel(title)
        axis.set_ylim(bottom=0)
        axis.spines[["top", "right"]].set_visible(False)
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:,g}"))
    axes[-1].set_xlabel("minutes")
    axes[-1].legend(fontsize=8)
    figure.suptitle("Full load, two slots, with a transaction held open in the middle")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
