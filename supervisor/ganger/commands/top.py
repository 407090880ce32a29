"""``ganger top``: live on a terminal, or as JSON: one object, or one a line."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Final

from ganger.commands.common import (
    CODES,
    DATABASE,
    OK,
    USAGE,
    Commands,
    Failure,
    add_command,
    add_database,
    schema_of,
    settings_of,
)

APART: Final = 0.5  # seconds between the two looks that CPU is measured by
EVERY: Final = 1.0  # seconds between two lines of --stream

HELP: Final = """keys:
  arrows, j, k   select a run, or a job that has ended
  enter          show the processes of the selected run
  s              show where in the code it is, if it runs on this host
  c, K           cancel or kill it
  r              retry a job that has ended
  p              pause its queue, or resume it
  q, Ctrl-C      quit

While the database is away it shows what the processes of this host tell. CPU is in percent of one core; it and memory
are those of a job's whole process tree."""


def add(to: Commands) -> None:
    made = add_command(to, "top", top, "watch what runs, and act on it", HELP + "\n\n" + CODES)
    how = made.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print one JSON object, and end")
    how.add_argument("--stream", action="store_true", help="print a JSON object a line, each second, until stopped")
    add_database(made)


def top(options: argparse.Namespace) -> int:
    """ganger top"""
    settings = settings_of(options, DATABASE)
    place = settings.get("database_url"), schema_of(settings)
    if options.json or options.stream:
        return _print(*place, stream=options.stream)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Failure(USAGE, "top needs a terminal; without one, say --json or --stream.")
    from rich.console import Console

    from ganger.top.screen import Top

    Top(*place).run(Console(highlight=False, markup=False, emoji=False))
    return OK


def _print(database_url: str | None, schema: str, *, stream: bool) -> int:
    from ganger.top.model import as_json, combine
    from ganger.top.processes import Processes
    from ganger.top.stored import read_once

    processes = Processes()
    processes.look()
    time.sleep(APART)
    while True:
        told = as_json(combine(processes.look(), read_once(database_url, schema)))
        told = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **told}
        print(json.dumps(told, indent=None if stream else 2), flush=True)
        if not stream:
            return OK
        time.sleep(EVERY)
