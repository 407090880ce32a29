"""What the commands share: exit codes, the parser, the settings of a command line, and how a table is shown.

This file may not know any command.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import Field
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from ganger import config
from ganger.config import OPTIONS, ConfigError
from ganger.shortages import shortage

if TYPE_CHECKING:
    from ganger.database import Connection
    from ganger.locate import Place

OK, FAILED, USAGE, UNAVAILABLE, MISCONFIGURED = 0, 1, 2, 69, 78

CODES: Final = """exit codes:
  0   done; of run: stopped as asked, whatever that did to jobs
  1   stopped by an error
  2   wrong usage, or the handlers do not load
  69  the database cannot be reached
  78  its tables are missing, of another version or not for this role, or the settings are wrong"""

DATABASE: Final = ("database_url", "schema")
_TELL_LIMIT: Final = 5.0  # seconds that a sentence waits for somebody to read what was said before


class Failure(Exception):
    """What a command ends with: a sentence and an exit code."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


def tell(sentence: str) -> None:
    """Say a sentence on stderr. A pipe that is full and that nobody reads is given up: it is no reason to hang."""
    watch = select.poll()
    watch.register(2, select.POLLOUT)
    if watch.poll(_TELL_LIMIT * 1000):
        with suppress(OSError):  # the reader is gone
            print(f"ganger: {' '.join(sentence.split())}", file=sys.stderr, flush=True)


def explain(error: Exception) -> tuple[int, str]:
    """The exit code and the sentence for what the layers below raise; what nobody expected is raised again."""
    if sentence := shortage(error):
        return FAILED, sentence
    import psycopg

    from ganger.database import ALLOWING, DatabaseUnreachable, NotAllowed, SchemaBusy, SchemaMismatch, SchemaMissing
    from ganger.local_postgres import LocalPostgresError

    if isinstance(error, SchemaMissing | SchemaMismatch | NotAllowed):
        return MISCONFIGURED, str(error)
    if isinstance(error, SchemaBusy):
        return FAILED, str(error)
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return MISCONFIGURED, f"this role may not do this: {error.diag.message_primary}. {ALLOWING}"
    if isinstance(error, DatabaseUnreachable | LocalPostgresError):
        return UNAVAILABLE, str(error)
    if isinstance(error, psycopg.OperationalError):
        return UNAVAILABLE, f"the database cannot be used: {error}"
    if isinstance(error, psycopg.Error):
        return FAILED, f"the database refused: {error}"
    raise error


# ---------------------------------------------------------------------------------------------------------------------
# The command line


class Parser(argparse.ArgumentParser):
    """argparse with errors of one sentence, and with help that keeps its lines."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_Help, **keywords)

    def error(self, message: str) -> NoReturn:
        raise Failure(USAGE, f"{message} (see {self.prog} --help)")


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32)


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"


def add_command(
    to: Commands, name: str, function: Callable[[argparse.Namespace], int], help: str, epilog: str = ""
) -> Parser:
    """Make a command; ``function`` carries it out and returns the exit code."""
    made = to.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".", epilog=epilog)
    made.set_defaults(command=function)
    return made


def add_database(to: argparse._ActionsContainer) -> None:
    """The options that say which database."""
    add_settings(to, DATABASE)
    add_config(to)


def add_settings(to: argparse._ActionsContainer, names: Iterable[str]) -> None:
    for name in names:
        setting = OPTIONS[name]
        flags = [setting.metadata["short"]] if setting.metadata["short"] else []
        keywords: dict[str, Any] = {"dest": name, "default": None, "help": _setting_help(setting)}
        if setting.metadata["read"] is config.flag:
            keywords["action"] = argparse.BooleanOptionalAction
        else:
            keywords["metavar"] = _METAVARS.get(setting.metadata["read"], "N")
        to.add_argument(*flags, config.option_name(name), **keywords)


_METAVARS: Final = {
    config.seconds: "TIME",
    config.size: "SIZE",
    config.word: "WORD",
    config.text: "NAME",
    config.schema_name: "NAME",
    config.reference: "MODULE:FUNCTION",
    config.database_url: "URL",
    config.queue_list: "QUEUES",
    config.address: "[HOST:]PORT",
}


def _setting_help(setting: Field[Any]) -> str:
    text: str = setting.metadata["help"].removesuffix(".")
    default: Any = setting.default
    read = setting.metadata["read"]
    if default is None or default is False:
        return text
    if read is config.seconds:
        return f"{text} [{default:g} s]"
    if read is config.size:
        return f"{text} [{default >> 20} MiB]" if default >= 1 << 20 else f"{text} [{default >> 10} KiB]"
    return f"{text} [{default}]"


def add_config(to: argparse._ActionsContainer) -> None:
    to.add_argument("--config", metavar="FILE", help="a TOML file to read in place of ganger.toml")


def settings_of(options: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """The settings ``names`` from everywhere. A mistake on the command line is wrong usage."""
    given = {name: getattr(options, name, None) for name in names}
    try:
        for name, value in given.items():
            if value is not None:
                config.read(OPTIONS[name], value, config.option_name(name))
        config.check_slots(given.get("queues"), given.get("concurrency"))
    except ConfigError as error:
        raise Failure(USAGE, str(error)) from None
    return config.gather(given, os.environ, options.config, names)


def schema_of(settings: Mapping[str, Any]) -> str:
    schema: str = settings.get("schema", OPTIONS["schema"].default)
    return schema


def tell_if_local(settings: Mapping[str, Any]) -> None:
    from ganger.locate import named

    if named(settings.get("database_url")) is None:
        from ganger.local_postgres import LocalPostgres

        where = LocalPostgres().data_dir
        tell(f"no database is named, so this is the local PostgreSQL in {where}")


def locate(settings: Mapping[str, Any]) -> Place:
    """Find the database, and say so if it is the local one."""
    from ganger.locate import locate

    tell_if_local(settings)
    return locate(settings.get("database_url"))


# ---------------------------------------------------------------------------------------------------------------------
# Orders


def add_yes(to: argparse._ActionsContainer) -> None:
    to.add_argument("--yes", action="store_true", help="do it without asking")


def confirm(question: str, options: argparse.Namespace) -> None:
    """Ask on the terminal, unless --yes was said. Raises Failure where nobody can be asked, or the answer is no."""
    if options.yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Failure(USAGE, f"{question} Say --yes if that is meant.")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Failure(FAILED, "nothing was done.")


@contextmanager
def database_of(options: argparse.Namespace) -> Iterator[tuple[Connection, str]]:
    """A connection to the database of a command, whose tables fit, and the name of the schema."""
    from ganger import database

    settings = settings_of(options, DATABASE)
    with database.connect(locate(settings).conninfo) as conn:
        database.check_schema(conn, schema_of(settings))
        yield conn, schema_of(settings)
