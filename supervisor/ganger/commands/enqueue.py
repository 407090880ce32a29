"""``ganger enqueue``: the arguments of ``ganger.enqueue``, read from text."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any, Final, NoReturn

from ganger import config
from ganger.commands.common import (
    CODES,
    DATABASE,
    FAILED,
    OK,
    USAGE,
    Commands,
    Failure,
    add_command,
    add_config,
    add_settings,
    schema_of,
    settings_of,
)
from ganger.config import ConfigError
from ganger_child.words import message, shown

ENQUEUE_HELP: Final = """examples:
  ganger enqueue confirmation-email '{"account": 7}'
  ganger enqueue render '{"frame": 1}' -q render --timeout 10m --process-in 1h
  echo '{"frame": 2}' | ganger enqueue render -

The id of the job is printed and nothing else."""


def add(commands: Commands) -> None:
    to = add_command(commands, "enqueue", enqueue, "enqueue a job and print its id", ENQUEUE_HELP + "\n\n" + CODES)
    to.usage = "ganger enqueue TYPE [JSON] [options]"
    to.add_argument("job_type", metavar="TYPE", help="the job type")
    to.add_argument("payload", nargs="?", default="{}", metavar="JSON", help="the payload [{}]; - reads it from stdin")
    to.add_argument("-q", "--queue", default="default", metavar="NAME", help="the queue [default]")
    due = to.add_mutually_exclusive_group()
    due.add_argument("--process-at", metavar="WHEN", help="not before this moment, as in 2030-01-31T12:00:00+01:00")
    due.add_argument("--process-in", metavar="TIME", help="not before this time has passed, as in 90s, 10m, 1h")
    to.add_argument("--priority", metavar="N", help="a smaller number is more urgent [0]")
    to.add_argument("--timeout", metavar="TIME", help="its time limit")
    to.add_argument("--grace", metavar="TIME", help="time between asking it to stop and making it")
    to.add_argument("--memory", metavar="SIZE", help="its memory limit, as in 512MiB")
    to.add_argument("--shutdown", metavar="WORD", help=f"what a shutdown does with it: {', '.join(config.SHUTDOWNS)}")
    to.add_argument("--job-id", metavar="UUID", help="an id of your own")
    to.add_argument("--unique-key", metavar="KEY", help="at most one job with this key is in the queues at a time")
    to.add_argument(
        "--on-duplicate", choices=["raise", "ignore"], default="raise",
        help="where the id or the key is there already: fail (exit code 1), or print the id of that job [raise]",
    )  # fmt: skip
    to.add_argument("--no-notify", dest="notify", action="store_false", help="leave it to the supervisors' next poll")
    add_settings(to, (*DATABASE, "max_payload"))
    add_config(to)


def enqueue(options: argparse.Namespace) -> int:
    """ganger enqueue"""
    settings = settings_of(options, (*DATABASE, "max_payload"))
    job = _job(options)
    from ganger import client, database
    from ganger.locate import ready_database

    place = ready_database(settings.get("database_url"), schema_of(settings))
    with database.connect(place.conninfo) as conn:
        database.check_schema(conn, schema_of(settings))
        keywords = {name: settings[name] for name in ("schema", "max_payload") if name in settings}
        try:
            with database.transaction(conn):
                job_id = client.enqueue(conn, **job, **keywords)
        except client.DuplicateJob as error:
            raise Failure(FAILED, str(error)) from None
        except client.BadJob as error:
            raise Failure(USAGE, str(error)) from None
    print(job_id)
    return OK


def _job(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of ``enqueue``, read from text. A mistake is wrong usage."""
    from datetime import datetime
    from uuid import UUID

    readers: dict[str, Callable[[str], Any]] = {
        "payload": _json,
        "process_at": datetime.fromisoformat,
        "process_in": lambda text: config.seconds(text, "--process-in"),
        "priority": int,
        "timeout": lambda text: config.seconds(text, "--timeout"),
        "grace": lambda text: config.seconds(text, "--grace"),
        "memory": lambda text: config.size(text, "--memory"),
        "job_id": UUID,
    }
    names = ("job_type", "queue", "shutdown", "unique_key", "on_duplicate", "notify", *readers)
    job = {}
    for name in names:
        value = getattr(options, name)
        if value is None:
            continue
        try:
            job[name] = readers[name](value) if name in readers else value
        except ConfigError as error:
            raise Failure(USAGE, str(error)) from None
        except ValueError as error:
            label = "JSON" if name == "payload" else f"--{name.replace('_', '-')}"
            raise Failure(USAGE, f"{label} is {shown(value)}, which cannot be read: {message(error)}.") from None
    return job


def _json(text: str) -> Any:
    from ganger.client import object_of

    def refuse(word: str) -> NoReturn:
        raise ValueError(f"{word} is no JSON")

    if text == "-":
        text = sys.stdin.read() if sys.stdin is not None else ""
    try:
        return json.loads(text, parse_constant=refuse, object_pairs_hook=object_of)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
