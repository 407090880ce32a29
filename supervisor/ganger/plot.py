"""The picture of ``ganger report``: what ran when, and how long the runs of each type took.

Needs matplotlib (the extra ``plot``), and no screen.
"""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from ganger.report import Run, TypeReport, packed

FORMATS: Final = ("png", "svg", "pdf")
COLOURS: Final = ("C0", "C1", "C2", "C4", "C5", "C6", "C8", "C9")  # matplotlib's, but for its red and its grey
MOST_TYPES: Final = len(COLOURS)  # that have a histogram of their own
MOST_ROWS: Final = 60  # of the chart
COLUMNS: Final = 3  # of histograms
BINS: Final = 24
UNITS: Final = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (0.001, "ms"))
WIDTH: Final = 12.0  # inches
OTHERS: Final = "#999999"
FAILED: Final = "#c00000"
LONGEST: Final = 28  # characters of a name; a longer one would take the room of what is drawn
FONTS: Final = ("Noto Sans CJK JP", "Noto Sans CJK SC", "WenQuanYi Zen Hei", "IPAGothic", "Droid Sans Fallback")


class NoPlotter(Exception):
    """matplotlib is not installed; the message says what to do."""


def draw(types: Sequence[TypeReport], runs: Sequence[Run], path: Path, title: str) -> None:
    """Write the picture; the end of the path is its format. Raises NoPlotter, OSError."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
        from matplotlib.font_manager import fontManager
    except ImportError:
        raise NoPlotter(
            "A picture needs matplotlib: install ganger with its extra (pip install 'ganger[plot]')."
        ) from None
    shown = [one.job_type for one in types[:MOST_TYPES]]
    colours = dict(zip(shown, COLOURS, strict=False))
    rows = packed(runs)
    hidden = rows[MOST_ROWS:]
    rows = rows[:MOST_ROWS]
    below = math.ceil(len(shown) / COLUMNS)
    heights = [1.2 + 0.22 * max(len(rows), 4), *[2.1] * below]
    durations = defaultdict(list)
    for run in runs:
        durations[run.job_type].append(run)
    there = {font.name for font in fontManager.ttflist}
    with rc_context({"font.family": ["DejaVu Sans", *(font for font in FONTS if font in there)]}):
        figure = Figure(figsize=(WIDTH, sum(heights) + 0.8), layout="constrained")
        figure.suptitle(_plain(title))
        grid = figure.add_gridspec(1 + below, COLUMNS, height_ratios=heights)
        _chart(figure.add_subplot(grid[0, :]), rows, colours, len(hidden))
        for number, job_type in enumerate(shown):
            axes = figure.add_subplot(grid[1 + number // COLUMNS, number % COLUMNS])
            _histogram(axes, job_type, durations[job_type], colours[job_type])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # a box stands in its place
            figure.savefig(path, dpi=110)


def _plain(text: str) -> str:
    """matplotlib takes what stands between dollars for a formula, and a first underscore for not to be shown."""
    return f" {text}".replace("$", r"\$") if text.startswith("_") else text.replace("$", r"\$")


def _named(text: str) -> str:
    return _plain(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…")


def _chart(axes: Any, rows: Sequence[tuple[str, Sequence[Run]]], colours: dict[str, Any], hidden: int) -> None:
    """A bar for each run, from its start to its end; failed and cancelled ones with an edge."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
    from matplotlib.patches import Patch

    day = 86400.0
    for number, (_, runs) in enumerate(rows):
        starts = [date2num(datetime.fromtimestamp(run.started, UTC)) for run in runs]
        bars = [(start, max(run.ended - run.started, 0.01) / day) for start, run in zip(starts, runs, strict=True)]
        faces = [colours.get(run.job_type, OTHERS) for run in runs]
        edges = ["none" if run.status == "success" else FAILED for run in runs]
        axes.broken_barh(bars, (number - 0.4, 0.8), facecolors=faces, edgecolors=edges, linewidth=1.4)
    if not rows:
        axes.text(0.5, 0.5, "no job has ended", ha="center", va="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    axes.set_yticks(range(len(rows)), [_plain(name) for name, _ in rows], fontsize=7)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    locator = AutoDateLocator(tz=UTC)
    axes.xaxis_date(tz=UTC)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))
    axes.set_xlabel("UTC")
    axes.set_title("what ran when" + (f" ({hidden} more rows)" if hidden else ""), fontsize=10)
    marks = [Patch(facecolor=colour, label=_named(job_type)) for job_type, colour in colours.items()]
    if any(run.job_type not in colours for _, runs in rows for run in runs):
        marks.append(Patch(facecolor=OTHERS, label="others"))
    marks.append(Patch(facecolor="none", edgecolor=FAILED, label="not a success"))
    axes.legend(handles=marks, fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _histogram(axes: Any, job_type: str, runs: Sequence[Run], colour: Any) -> None:
    """How long the runs took: the successful ones in their colour, the others above them."""
    good = [run.wall_s for run in runs if run.wall_s is not None and run.status == "success"]
    others = [run.wall_s for run in runs if run.wall_s is not None and run.status != "success"]
    longest = max([*good, *others], default=1.0) or 1.0
    unit, name = next((unit, name) for unit, name in UNITS if longest >= 3 * unit or name == "ms")
    scaled = [[value / unit for value in values] for values in (good, others)]
    axes.hist(scaled, bins=BINS, range=(0, longest / unit), stacked=True, color=[colour, FAILED])
    axes.set_title(f"{_named(job_type)}\n{len(good)} good, {len(others)} not", fontsize=9)
    axes.set_xlabel(f"wall time, {name}", fontsize=8)
    axes.set_ylabel("runs", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.yaxis.get_major_locator().set_params(integer=True)
