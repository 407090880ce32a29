"""``ganger report``: what the archive tells of each job type, as tables, as JSON or as a picture."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ganger import config
from ganger.commands.common import CODES, FAILED, OK, USAGE, Commands, Failure, add_command, add_database, database_of
from ganger.config import ConfigError
from ganger.formats import lasting, size, table

if TYPE_CHECKING:
    from ganger.report import Scope, Spread, TypeReport

HELP = """examples:
  ganger report --since 7d
  ganger report --type fit --json
  ganger report --since 1d -o yesterday.png

WAIT is from due to the last start. CPU is that of all runs; EFFICIENCY is CPU by wall time; WASTED is the CPU of runs
that were no success. Limits are suggested from at least 5 successful runs: twice the time that nearly all took, and a
quarter above the most memory."""


def add(to: Commands) -> None:
    made = add_command(
        to, "report", report, "tell of each job type how it ended and what it cost", HELP + "\n\n" + CODES
    )
    made.add_argument("--since", metavar="TIME", help="of jobs that ended in this time, as in 90s, 1h, 7d [all]")
    made.add_argument("--type", dest="job_type", metavar="TYPE", help="of this job type")
    made.add_argument("-q", "--queue", metavar="NAME", help="of this queue")
    made.add_argument("-o", "--output", metavar="FILE", help="a .png, .svg or .pdf: draw it; a .json: write it as JSON")
    made.add_argument("--json", action="store_true", help="as JSON")
    add_database(made)


def report(options: argparse.Namespace) -> int:
    """ganger report"""
    from ganger import plot
    from ganger.report import Scope, read, read_runs

    try:
        seconds = None if options.since is None else config.seconds(options.since, "--since")
    except ConfigError as error:
        raise Failure(USAGE, str(error)) from None
    path = None if options.output is None else Path(options.output)
    kind = "" if path is None else path.suffix.lower().removeprefix(".")
    if path is not None and kind not in (*plot.FORMATS, "json"):
        raise Failure(USAGE, f"-o is {options.output[:200]!r}: give a name that ends with .png, .svg, .pdf or .json.")
    scope = Scope(seconds, options.job_type, options.queue)
    with database_of(options) as (conn, schema):
        types = read(conn, schema, scope)
        runs = read_runs(conn, schema, scope) if kind in plot.FORMATS else []
    if path is not None and kind == "json":
        path.write_text(_json(types) + "\n", encoding="utf-8")
    elif path is not None:
        try:
            plot.draw(types, runs, path, _title(scope))
        except plot.NoPlotter as error:
            raise Failure(FAILED, str(error)) from None
    elif options.json:
        print(_json(types))
    else:
        print(_tables(types))
    return OK


def _json(types: Sequence[TypeReport]) -> str:
    return json.dumps({"types": [asdict(one) for one in types]}, indent=2)


def _title(scope: Scope) -> str:
    words = ["ganger: jobs" if scope.job_type is None else f"ganger: jobs of type {scope.job_type}"]
    words += [] if scope.queue is None else [f"of queue {scope.queue}"]
    words += ["that have ended" if scope.since is None else f"that ended in the last {lasting(scope.since)}"]
    return " ".join(words)


def _tables(types: Sequence[TypeReport]) -> str:
    counts = [
        (
            one.job_type, one.jobs, one.success, one.failure, one.cancelled, one.runs, lasting(one.cpu_total_s),
            "" if one.efficiency is None else f"{one.efficiency:.0%}", lasting(one.cpu_wasted_s), _reasons(one.reasons),
        )
        for one in types
    ]  # fmt: skip
    spreads = [
        (one.job_type, _times(one.wait_s), _times(one.wall_s), _times(one.cpu_s), _sizes(one.max_rss)) for one in types
    ]
    limits = [
        (one.job_type, lasting(one.timeout_s), size(one.memory_bytes))
        for one in types
        if one.timeout_s is not None or one.memory_bytes is not None
    ]
    head = ("JOB TYPE", "JOBS", "SUCCESS", "FAILURE", "CANCELLED", "RUNS", "CPU", "EFFICIENCY", "WASTED", "REASONS")
    parts = [table(head, counts, "no job has ended")]
    if types:
        parts.append(table(("JOB TYPE", *(f"{what} p50 p95 max" for what in _MEASURES)), spreads, ""))
        parts.append(table(("JOB TYPE", "SUGGESTED TIMEOUT", "SUGGESTED MEMORY"), limits, "too few runs for a limit"))
    return "\n\n".join(parts)


_MEASURES = ("WAIT", "WALL", "CPU", "MEMORY")


def _reasons(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {jobs}" for reason, jobs in reasons.items())


def _times(spread: Spread | None) -> str:
    return "" if spread is None else " ".join(lasting(value).rjust(5) for value in (spread.p50, spread.p95, spread.max))


def _sizes(spread: Spread | None) -> str:
    return "" if spread is None else " ".join(size(value).rjust(5) for value in (spread.p50, spread.p95, spread.max))
