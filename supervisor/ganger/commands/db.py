"""``ganger db``: the PostgreSQL that starts by itself."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

from ganger.commands.common import FAILED, OK, USAGE, Commands, Failure, add_command


def add(commands: Commands) -> None:
    help = "start, stop and look at the PostgreSQL that starts by itself"
    to = add_command(commands, "db", lambda options: options.act(options), help)
    acts: dict[str, tuple[Callable[[argparse.Namespace], int], str]] = {
        "start": (_db_start, "start it; harmless when it runs"),
        "stop": (_db_stop, "stop it; harmless when it does not run"),
        "status": (_db_status, "say whether it runs (exit code 0) or not (exit code 1)"),
        "url": (_db_url, "print its URL, starting it if need be"),
        "reset": (_db_reset, "stop it and delete all its data"),
    }
    to.epilog = "Its data lies where GANGER_DATA_DIR says, else in the user's data folder."
    acting = to.add_subparsers(metavar="COMMAND", required=True, title="commands")
    for name, (act, help) in acts.items():
        made = acting.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".")
        made.set_defaults(act=act)
        if name == "status":
            made.add_argument("--json", action="store_true", help="as one JSON object")
        if name == "reset":
            made.add_argument("--yes", action="store_true", help="really do it")


def _db_start(options: argparse.Namespace) -> int:
    from ganger.local_postgres import LocalPostgres

    local = LocalPostgres()
    local.start()
    print(f"The local PostgreSQL in {local.data_dir} runs.")
    return OK


def _db_stop(options: argparse.Namespace) -> int:
    from ganger.local_postgres import LocalPostgres

    local = LocalPostgres()
    local.stop()
    print(f"The local PostgreSQL in {local.data_dir} does not run.")
    return OK


def _db_status(options: argparse.Namespace) -> int:
    from ganger.local_postgres import LocalPostgres

    local = LocalPostgres()
    running = local.running()
    if options.json:
        url = local.conninfo if running else None
        print(json.dumps({"running": running, "data_dir": str(local.data_dir), "url": url}))
    else:
        print(f"The local PostgreSQL in {local.data_dir} {'runs' if running else 'does not run'}.")
    return OK if running else FAILED


def _db_url(options: argparse.Namespace) -> int:
    from ganger.local_postgres import LocalPostgres

    print(LocalPostgres().start())
    return OK


def _db_reset(options: argparse.Namespace) -> int:
    if not options.yes:
        raise Failure(USAGE, "db reset deletes all data of the local PostgreSQL: say --yes if that is meant")
    from ganger.local_postgres import LocalPostgres

    local = LocalPostgres()
    local.reset()
    print(f"The local PostgreSQL in {local.data_dir} is stopped and its data deleted.")
    return OK
