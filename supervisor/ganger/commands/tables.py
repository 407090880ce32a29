"""``ganger install`` and ``ganger reset``: the tables are made, upgraded or emptied."""

from __future__ import annotations

import argparse

from ganger.commands.common import (
    DATABASE,
    OK,
    USAGE,
    Commands,
    Failure,
    add_command,
    add_database,
    locate,
    schema_of,
    settings_of,
)


def add(to: Commands) -> None:
    made = add_command(to, "install", install, "make or upgrade the tables; harmless when they are there")
    made.add_argument("--sql", action="store_true", help="print the SQL and change nothing")
    made.add_argument(
        "--roles", action="store_true",
        help="also make the roles ganger_enqueuer, ganger_supervisor and ganger_viewer, for logins with few rights",
    )  # fmt: skip
    add_database(made)
    made = add_command(to, "reset", reset, "delete all jobs and the whole archive")
    made.add_argument("--yes", action="store_true", help="really do it")
    add_database(made)


def install(options: argparse.Namespace) -> int:
    """ganger install"""
    settings = settings_of(options, DATABASE)
    schema = schema_of(settings)
    from ganger import database

    if options.sql:
        print(database.schema_sql(schema, roles=options.roles), end="")
        return OK
    with database.connect(locate(settings).conninfo, statement_timeout=0) as conn:
        applied = database.install(conn, schema, roles=options.roles)
    done = f"now has version {applied[-1]}" if applied else "is up to date"
    print(f"The schema {schema} {done}.")
    if options.roles:
        print(
            "ganger_enqueuer, ganger_supervisor and ganger_viewer may use it; GRANT them to the logins that need them."
        )
    return OK


def reset(options: argparse.Namespace) -> int:
    """ganger reset"""
    settings = settings_of(options, DATABASE)
    if not options.yes:
        raise Failure(USAGE, "reset deletes all jobs and the archive: say --yes if that is meant")
    from ganger import database

    with database.connect(locate(settings).conninfo, statement_timeout=0) as conn:
        database.check_schema(conn, schema_of(settings))
        database.reset(conn, schema_of(settings))
    print("All jobs and the archive are deleted.")
    return OK
