"""What the examples share: the database, the counts at the start and at the end, and the prompt."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pprint import pprint
from typing import Any

from ganger import database, enqueue
from ganger.locate import ready_database

QUEUE = "default"


def connect() -> database.Connection:
    """Connect to the examples' database: the one that DATABASE_URL or PG* names, else the local PostgreSQL."""
    return database.connect(ready_database().conninfo)


def preamble() -> None:
    """Say how many jobs there are before the example begins."""
    with connect() as conn:
        try:
            database.check_schema(conn)
        except database.SchemaMissing:
            sys.exit("The database has no tables of ganger yet. Make them: python -m examples.db install")
        count = database.counts(conn, queue=QUEUE)
    print(f"Number of jobs in the {QUEUE} queue: {count.queue}")
    print(f"Number of jobs in the proletarian.job table: {count.jobs}")
    print(f"Number of jobs in the proletarian.archived_job table: {count.archived}")
    if count.archived:
        print("(For summary counts of this example alone, start fresh: python -m examples.db recreate)")
    print()


def summary() -> None:
    """Say how many jobs have succeeded and failed."""
    with connect() as conn:
        rows = conn.execute("SELECT status, count(*) FROM proletarian.archived_job GROUP BY status").fetchall()
    jobs: dict[str, int] = dict(rows)
    print(f"Number of successful jobs: {jobs.get('success', 0)}")
    print(f"Number of failed jobs: {jobs.get('failure', 0)}", flush=True)


def on_polling_error(error: Exception) -> bool:
    """Say that the database could not be asked. False: go on, and ask again."""
    print(f"Polling error (will retry): [{type(error).__name__}] {error}", flush=True)
    return False


def enqueue_and_show(conn: database.Connection, job_type: str, payload: Mapping[str, Any]) -> None:
    """Enqueue one job and show what was enqueued."""
    job_id = enqueue(conn, job_type, payload, queue=QUEUE)
    pprint({"job_id": str(job_id), "job_type": job_type, "payload": dict(payload)}, sort_dicts=False, width=100)


def until_ctrl_c(step: Callable[[], object]) -> None:
    """Take ``step`` again at each press of Enter; Ctrl-C, or the end of the input, is the way out."""
    try:
        while True:
            step()
            print()
            input("Press Enter to enqueue more jobs (Ctrl-C to exit)\n")
    except (KeyboardInterrupt, EOFError):
        print()
