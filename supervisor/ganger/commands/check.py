"""``ganger check``: what would keep a supervisor from running, one line per thing."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from ganger import config
from ganger.commands.common import (
    CODES,
    MISCONFIGURED,
    OK,
    USAGE,
    Commands,
    Failure,
    add_command,
    add_database,
    explain,
    schema_of,
)
from ganger.config import OPTIONS, Config, ConfigError

_OOM_GROUP: Final = (
    "where memory runs out, the kernel kills the supervisor together with the one job that took it; "
    "give jobs a memory limit well below the container's."
)
_LOADER: Final = """
import json, os, sys
from ganger_child.handlers import load
from ganger_child.options import Options
loaded = load(Options.from_json(json.loads(sys.argv[1])))
types = loaded.job_types
os.write(int(sys.argv[2]), json.dumps(None if types is None else sorted(types)).encode())
os._exit(0)
"""


def add(to: Commands) -> None:
    made = add_command(to, "check", check, "check that handlers load, tables fit and settings hold", CODES)
    made.add_argument("target", nargs="?", metavar="TARGET", help="the handlers: myapp.jobs:handlers")
    add_database(made)


def check(options: argparse.Namespace) -> int:
    """ganger check: one line per thing; the exit code is that of the first that is wrong."""
    codes = []

    def say(what: str, look: Callable[[], str]) -> None:
        try:
            verdict = "ok", look()
            codes.append(OK)
        except Failure as failure:
            verdict = "WRONG", str(failure)
            codes.append(failure.code)
        except ConfigError as error:
            verdict = "WRONG", str(error)
            codes.append(MISCONFIGURED)
        except Exception as error:
            code, sentence = explain(error)
            verdict = "WRONG", sentence
            codes.append(code)
        show(what, *verdict)

    def show(what: str, verdict: str, sentence: str) -> None:
        print(f"{what:<9} {verdict:<6} {' '.join(sentence.split())}", flush=True)

    settings: dict[str, Any] = {}
    given = {name: getattr(options, name, None) for name in OPTIONS}

    def look_at_settings() -> str:
        settings.update(config.gather(given, os.environ, options.config))
        Config(**{"target": "none:none", **settings})
        return f"{len(settings)} are not the defaults" if settings else "all are the defaults"

    say("settings", look_at_settings)
    if "target" in settings:
        say("handlers", lambda: _look_at_handlers(Config(**settings)))
    say("database", lambda: _look_at_database(settings))
    group = config.killed_as_a_whole()
    if group is not None:
        show("memory", "note", f"{group}/memory.oom.group is 1: {_OOM_GROUP}")
    return next((code for code in codes if code), OK)


def _look_at_handlers(made: Config) -> str:
    """Load the handlers in a process of their own, as a supervisor does: never in this one."""
    import subprocess

    names = ("target", "handler_mode", "retry_strategy", "failed_attempt", "failed_job", "unknown_job_type")
    told = json.dumps({name: getattr(made, name) for name in names})
    reader, writer = os.pipe()
    with os.fdopen(reader) as answer:
        try:
            done = subprocess.run(
                [sys.executable, "-c", _LOADER, told, str(writer)],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                pass_fds=[writer], timeout=made.boot_timeout,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Failure(USAGE, f"{made.target} did not load within {made.boot_timeout:g} s") from None
        finally:
            os.close(writer)
        loaded = answer.read()
    if done.returncode or not loaded:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise Failure(USAGE, f"{made.target} does not load: {lines[-1]}")
    types = json.loads(loaded)
    return f"{made.target} loads; {'it takes every job type' if types is None else 'job types: ' + ', '.join(types)}"


def _look_at_database(settings: Mapping[str, Any]) -> str:
    from ganger import database
    from ganger.locate import locate

    place = locate(settings.get("database_url"))
    with database.connect(place.conninfo) as conn:
        try:
            database.check_schema(conn, schema_of(settings))
        except database.SchemaMissing:
            if not place.local:  # the local one gets its tables from whoever needs them first
                raise
    return f"{place.description} answers, and its tables fit"
