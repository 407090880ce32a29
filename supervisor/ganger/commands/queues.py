"""``ganger pause``, ``resume`` and ``prune``: queues stop and go, and the archive is kept within bounds."""

from __future__ import annotations

import argparse
import json

from ganger import config
from ganger.commands.common import (
    FAILED,
    OK,
    USAGE,
    Commands,
    Failure,
    add_command,
    add_database,
    add_yes,
    confirm,
    database_of,
)
from ganger.config import ConfigError


def add(to: Commands) -> None:
    made = add_command(to, "pause", pause, "let nothing more be started from a queue, or from any")
    made.epilog = "What runs goes on. Jobs can still be enqueued."
    made.add_argument("queue", nargs="?", metavar="QUEUE", help="the queue [all, also those that come later]")
    resuming = add_command(to, "resume", resume, "undo pause for a queue, or for all")
    resuming.add_argument("queue", nargs="?", metavar="QUEUE", help="the queue [whatever is paused]")
    pruning = add_command(to, "prune", prune, "delete jobs from the archive that ended long ago")
    pruning.add_argument("--older-than", required=True, metavar="TIME", help="that ended so long ago, as in 12h, 30d")
    pruning.add_argument("--state", metavar="WORDS", help="only these: success, failure, cancelled")
    for one in (made, resuming, pruning):
        add_yes(one)
        one.add_argument("--json", action="store_true", help="as one JSON object")
        add_database(one)


def pause(options: argparse.Namespace) -> int:
    """ganger pause"""
    from ganger import jobs

    queue = jobs.ALL_QUEUES if options.queue is None else _name(options.queue)
    with database_of(options) as (conn, schema):
        jobs.pause(conn, schema, queue)
        _tell(options, jobs.paused(conn, schema))
    return OK


def resume(options: argparse.Namespace) -> int:
    """ganger resume"""
    from ganger import jobs

    queue = None if options.queue is None else _name(options.queue)
    with database_of(options) as (conn, schema):
        was = jobs.resume(conn, schema, queue)
        left = jobs.paused(conn, schema)
        _tell(options, left)
    if options.queue is not None and not was:
        raise Failure(FAILED, f"the queue {options.queue[:100]!r} was not paused by itself.")
    return OK


def _name(queue: str) -> str:
    if not queue:
        raise Failure(USAGE, "QUEUE is empty: give a name, or leave it out for all queues.")
    return queue


def _tell(options: argparse.Namespace, paused: list[str]) -> None:
    from ganger.jobs import ALL_QUEUES

    named = [queue for queue in paused if queue != ALL_QUEUES]
    if options.json:
        print(json.dumps({"all_paused": ALL_QUEUES in paused, "paused": named}))
        return
    words = (["all queues"] if ALL_QUEUES in paused else []) + named
    print(f"Paused: {', '.join(words)}." if words else "Nothing is paused.")


def prune(options: argparse.Namespace) -> int:
    """ganger prune"""
    from ganger import jobs

    try:
        older = config.seconds(options.older_than, "--older-than")
    except ConfigError as error:
        raise Failure(USAGE, str(error)) from None
    states = None if options.state is None else [word.strip() for word in options.state.split(",")]
    if states is not None and not set(states) <= set(jobs.ENDED):
        raise Failure(USAGE, f"--state is {options.state[:100]!r}: give some of {', '.join(jobs.ENDED)}.")
    with database_of(options) as (conn, schema):
        if not options.yes:
            found = jobs.prunable(conn, schema, older, states)
            if found:
                confirm(f"Delete {found} {'job' if found == 1 else 'jobs'} from the archive?", options)
        deleted = jobs.prune(conn, schema, older, states)
    if options.json:
        print(json.dumps({"deleted": deleted}))
    else:
        print(f"{deleted} {'job is' if deleted == 1 else 'jobs are'} deleted from the archive.")
    return OK
