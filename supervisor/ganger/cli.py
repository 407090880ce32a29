"""The command ``ganger``: reads the command line, calls what does the work, shows the answer.

Data goes to stdout, everything else to stderr; what goes wrong is one sentence and an exit code. The options of
``run`` come from the settings in ``config.py``. argparse, because a command line built by a richer library took 210 ms
of the 600 that a supervisor may need from its start to its first job.

This file may not decide anything about jobs or processes. What is slow to import is imported where it is used.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import select
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import Field
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ganger import config
from ganger.config import OPTIONS, Config, ConfigError

if TYPE_CHECKING:
    from ganger.database import Status
    from ganger.locate import Place

OK, FAILED, USAGE, UNAVAILABLE, MISCONFIGURED = 0, 1, 2, 69, 78

CODES: Final = """exit codes:
  0   done; of run: stopped as asked, whatever that did to jobs
  1   stopped by an error
  2   wrong usage, or the handlers do not load
  69  the database cannot be reached
  78  its tables are missing, of another version or not for this role, or the settings are wrong"""

RUN_HELP: Final = """examples:
  ganger run myapp.jobs:handlers
  ganger run myapp.jobs:handlers -c 4 --timeout 10m --memory 2GiB
  ganger run myapp.jobs:handlers -q mail=2,render=6 --shutdown terminate

Every option is also read from GANGER_<OPTION> in the environment and from ganger.toml, or [tool.ganger] in
pyproject.toml, in the current folder; an option stands above the environment, the environment above the file.

signals: TERM, INT and HUP shut down as --shutdown says; a second INT terminates the jobs, a third kills them;
QUIT kills them at once. Interrupted jobs go back to their queues."""

# The settings as the help of `run` shows them; each stands in one group.
GROUPS: Final = {
    "what to run": ("queues", "concurrency", "until_empty", "name"),
    "limits of a job that has none of its own": ("timeout", "grace", "memory", "max_crashes", "max_losses"),
    "shutdown": ("shutdown", "shutdown_timeout", "interrupt_after"),
    "handlers": (
        "handler_mode",
        "retry_strategy",
        "failed_attempt",
        "failed_job",
        "callback_timeout",
        "unknown_job_type",
        "max_payload",
        "max_result",
    ),
    "processes": ("start_method", "recycle_after", "boot_timeout", "nice", "keep_environ"),
    "database": ("database_url", "schema", "poll_interval", "lease", "database_wait", "store_timeout"),
    "output": ("log_format", "log_level"),
}
DATABASE: Final = ("database_url", "schema")
_TELL_LIMIT: Final = 5.0  # seconds that a sentence waits for somebody to read what was said before


class Failure(Exception):
    """What a command ends with: a sentence and an exit code."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    _open_standard_streams()
    try:
        options = parser().parse_args(arguments)
        code: int = options.command(options)
        sys.stdout.flush()
    except Failure as failure:
        return _fail(failure.code, str(failure))
    except ConfigError as error:
        return _fail(MISCONFIGURED, str(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `ganger status | head`: the reader has seen enough
        _forget_stdout()
        return FAILED
    except OSError as error:  # a full disk, say
        _forget_stdout()
        return _fail(FAILED, f"{error}.")
    except Exception as error:
        return _fail(*_explain(error))
    return code


def _forget_stdout() -> None:
    """What Python still holds for stdout is lost, and must not fail once more at the exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _fail(code: int, sentence: str) -> int:
    _tell(sentence)
    return code


def _tell(sentence: str) -> None:
    """Say a sentence on stderr. A pipe that is full and that nobody reads is given up: it is no reason to hang."""
    watch = select.poll()
    watch.register(2, select.POLLOUT)
    if watch.poll(_TELL_LIMIT * 1000):
        with suppress(OSError):  # the reader is gone
            print(f"ganger: {' '.join(sentence.split())}", file=sys.stderr, flush=True)


# What Python and the loader of libraries say where a limit of this process is reached, which has no type of its own.
_MEMORY: Final = "there is not enough memory for it: raise the limit on it (ulimit -v, or that of the container)."
_SHORTAGES: Final = (
    (MemoryError, "", _MEMORY),
    (ImportError, "failed to map segment", _MEMORY),
    (
        RuntimeError,
        "can't start new thread",
        "no thread can be started: raise the limit on them (ulimit -u) or on memory (ulimit -v).",
    ),
)


def _explain(error: Exception) -> tuple[int, str]:
    """The exit code and the sentence for what the layers below raise; what nobody expected is raised again."""
    for kind, words, sentence in _SHORTAGES:
        if isinstance(error, kind) and words in str(error):
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


def _open_standard_streams() -> None:
    """Open what is closed of the descriptors 0 to 2: no socket of ours may get such a number and be printed to."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
    sys.stdout = sys.stdout or open(os.devnull, "w")
    sys.stderr = sys.stderr or open(os.devnull, "w")
    # Neither locale C nor PYTHONIOENCODING may make an error of what is said; and JSON is UTF-8.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8")


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


class _Version(argparse.Action):
    def __call__(self, *_: object) -> NoReturn:
        from importlib.metadata import version  # 20 ms that only this costs

        print(f"ganger {version('ganger')}")
        sys.exit(OK)


def parser() -> Parser:
    """The whole command line."""
    top = Parser(
        prog="ganger",
        description="A job queue in PostgreSQL with a multiprocess supervisor for CPU-bound work.",
        epilog="ganger COMMAND --help says more about a command.\n\n" + CODES,
    )
    top.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = top.add_subparsers(metavar="COMMAND", required=True, title="commands")

    def command(name: str, function: Callable[[argparse.Namespace], int], help: str, epilog: str = "") -> Parser:
        description = help[0].upper() + help[1:] + "."
        made = commands.add_parser(name, help=help, description=description, epilog=epilog)
        made.set_defaults(command=function)
        return made

    running = command("run", run, "run jobs until stopped", RUN_HELP + "\n\n" + CODES)
    running.usage = "ganger run TARGET [options]"
    running.add_argument("target", nargs="?", metavar="TARGET", help="the handlers: myapp.jobs:handlers")
    for title, names in GROUPS.items():
        _add_settings(running.add_argument_group(title), names)
    output = next(group for group in running._action_groups if group.title == "output")
    output.add_argument("-v", "--verbose", action="store_true", help="the same as --log-level debug")
    _add_config(output)

    enqueueing = command("enqueue", enqueue, "enqueue a job and print its id", ENQUEUE_HELP + "\n\n" + CODES)
    enqueueing.usage = "ganger enqueue TYPE [JSON] [options]"
    _enqueue_options(enqueueing)

    installing = command("install", install, "make or upgrade the tables; harmless when they are there")
    installing.add_argument("--sql", action="store_true", help="print the SQL and change nothing")
    installing.add_argument(
        "--roles", action="store_true",
        help="also make the roles ganger_enqueuer, ganger_supervisor and ganger_viewer, for logins with few rights",
    )  # fmt: skip
    resetting = command("reset", reset, "delete all jobs and the whole archive")
    resetting.add_argument("--yes", action="store_true", help="really do it")
    showing = command("status", status, "show queues, supervisors with their slots, and the archive's totals")
    showing.add_argument("--json", action="store_true", help="as one JSON object")
    for made in (installing, resetting, showing):
        _add_settings(made, DATABASE)
        _add_config(made)

    checking = command("check", check, "check that handlers load, tables fit and settings hold", CODES)
    checking.add_argument("target", nargs="?", metavar="TARGET", help="the handlers: myapp.jobs:handlers")
    _add_settings(checking, DATABASE)
    _add_config(checking)

    _db_commands(
        command(
            "db", lambda options: options.act(options), "start, stop and look at the PostgreSQL that starts by itself"
        )
    )
    return top


def _add_settings(to: argparse._ActionsContainer, names: Iterable[str]) -> None:
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
}


def _setting_help(setting: Field[Any]) -> str:
    text: str = setting.metadata["help"].removesuffix(".")
    default: Any = setting.default
    read = setting.metadata["read"]
    if default is None or default is False:
        return text
    if read is config.seconds:
        return f"{text} [{default:g} s]"
    return f"{text} [{default >> 20} MiB]" if read is config.size else f"{text} [{default}]"


def _add_config(to: argparse._ActionsContainer) -> None:
    to.add_argument("--config", metavar="FILE", help="a TOML file to read in place of ganger.toml")


def _settings(options: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
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


def _schema(settings: Mapping[str, Any]) -> str:
    schema: str = settings.get("schema", OPTIONS["schema"].default)
    return schema


def _tell_if_local(settings: Mapping[str, Any]) -> None:
    from ganger.locate import named

    if named(settings.get("database_url")) is None:
        from ganger.local_postgres import LocalPostgres

        where = LocalPostgres().data_dir
        _tell(f"no database is named, so this is the local PostgreSQL in {where}")


def _locate(settings: Mapping[str, Any]) -> Place:
    """Find the database, and say so if it is the local one."""
    from ganger.locate import locate

    _tell_if_local(settings)
    return locate(settings.get("database_url"))


# ---------------------------------------------------------------------------------------------------------------------
# run


def run(options: argparse.Namespace) -> int:
    """ganger run"""
    settings = _settings(options, OPTIONS)
    if options.verbose:
        settings["log_level"] = "debug"
    if "target" not in settings:
        raise Failure(USAGE, "run needs a TARGET, as in: ganger run myapp.jobs:handlers (see ganger run --help)")
    made = Config(**settings)
    _tell_if_local(settings)
    from ganger.supervisor import Supervisor

    return Supervisor(made).run(adopt=True)


# ---------------------------------------------------------------------------------------------------------------------
# enqueue

ENQUEUE_HELP: Final = """examples:
  ganger enqueue confirmation-email '{"account": 7}'
  ganger enqueue render '{"frame": 1}' -q render --timeout 10m --process-in 1h
  echo '{"frame": 2}' | ganger enqueue render -

The id of the job is printed and nothing else."""


def _enqueue_options(to: Parser) -> None:
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
    _add_settings(to, (*DATABASE, "max_payload"))
    _add_config(to)


def enqueue(options: argparse.Namespace) -> int:
    """ganger enqueue"""
    settings = _settings(options, (*DATABASE, "max_payload"))
    job = _job(options)
    from ganger import client, database
    from ganger.locate import ready_database

    place = ready_database(settings.get("database_url"), _schema(settings))
    with database.connect(place.conninfo) as conn:
        database.check_schema(conn, _schema(settings))
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
            raise Failure(USAGE, f"{label} is {value[:200]!r}, which cannot be read: {error}.") from None
    return job


def _json(text: str) -> Any:
    def refuse(word: str) -> NoReturn:
        raise ValueError(f"{word} is no JSON")

    try:
        return json.loads(sys.stdin.read() if text == "-" else text, parse_constant=refuse)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


# ---------------------------------------------------------------------------------------------------------------------
# install, reset, status


def install(options: argparse.Namespace) -> int:
    """ganger install"""
    settings = _settings(options, DATABASE)
    schema = _schema(settings)
    from ganger import database

    if options.sql:
        print(database.schema_sql(schema, roles=options.roles), end="")
        return OK
    with database.connect(_locate(settings).conninfo, statement_timeout=0) as conn:
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
    settings = _settings(options, DATABASE)
    if not options.yes:
        raise Failure(USAGE, "reset deletes all jobs and the archive: say --yes if that is meant")
    from ganger import database

    with database.connect(_locate(settings).conninfo, statement_timeout=0) as conn:
        database.check_schema(conn, _schema(settings))
        database.reset(conn, _schema(settings))
    print("All jobs and the archive are deleted.")
    return OK


def status(options: argparse.Namespace) -> int:
    """ganger status"""
    settings = _settings(options, DATABASE)
    from dataclasses import asdict

    from ganger import database

    with database.connect(_locate(settings).conninfo) as conn:
        database.check_schema(conn, _schema(settings))
        seen = database.status(conn, _schema(settings))
    print(json.dumps(asdict(seen), indent=2) if options.json else _status_text(seen))
    return OK


def _status_text(seen: Status) -> str:
    queues = [
        (
            one.queue + (" (paused)" if one.paused else ""),
            one.ready,
            one.scheduled,
            one.running,
            _age(one.oldest_ready_s),
        )
        for one in seen.queues
    ]
    supervisors = [
        (one.supervisor_id, one.name, one.phase, one.running, _slots(one.info), _age(one.age_s), _age(one.beat_age_s))
        for one in seen.supervisors
    ]
    archive = [(total.status, total.reason or "", total.jobs) for total in seen.archive]
    return "\n\n".join(
        (
            _table(("QUEUE", "READY", "SCHEDULED", "RUNNING", "OLDEST READY"), queues, "no job in any queue"),
            _table(
                ("SUPERVISOR", "NAME", "PHASE", "RUNNING", "SLOTS", "UP", "LAST BEAT"), supervisors, "no supervisor"
            ),
            _table(("ARCHIVE", "REASON", "JOBS"), archive, "no job in the archive"),
        )
    )


def _slots(info: Mapping[str, Any]) -> str:
    """Busy slots and slots of each lane, as the supervisor told them with its last beat."""
    lanes = info.get("lanes", {})
    return " ".join(f"{name}={lane.get('running', '?')}/{lane.get('slots', '?')}" for name, lane in lanes.items())


def _age(seconds: float | None) -> str:
    """A time as people read it: 42s, 12m, 3.5h, 2.1d."""
    if seconds is None:
        return ""
    for unit, length in (("d", 86400), ("h", 3600)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.1f}{unit}"
    return f"{seconds / 60:.0f}m" if seconds >= 120 else f"{max(seconds, 0):.0f}s"


def _table(head: Sequence[str], rows: Sequence[Sequence[object]], empty: str) -> str:
    """Columns as wide as they must be; numbers to the right."""
    if not rows:
        return empty
    cells = [list(head), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    right = [all(isinstance(row[column], int) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in cells
    )


# ---------------------------------------------------------------------------------------------------------------------
# check

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
            code, sentence = _explain(error)
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
            database.check_schema(conn, _schema(settings))
        except database.SchemaMissing:
            if not place.local:  # the local one gets its tables from whoever needs them first
                raise
    return f"{place.description} answers, and its tables fit"


# ---------------------------------------------------------------------------------------------------------------------
# db


def _db_commands(to: Parser) -> None:
    acts: dict[str, tuple[Callable[[argparse.Namespace], int], str]] = {
        "start": (_db_start, "start it; harmless when it runs"),
        "stop": (_db_stop, "stop it; harmless when it does not run"),
        "status": (_db_status, "say whether it runs (exit code 0) or not (exit code 1)"),
        "url": (_db_url, "print its URL, starting it if need be"),
        "reset": (_db_reset, "stop it and delete all its data"),
    }
    to.epilog = "Its data lies where GANGER_DATA_DIR says, else in the user's data folder."
    commands = to.add_subparsers(metavar="COMMAND", required=True, title="commands")
    for name, (act, help) in acts.items():
        made = commands.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".")
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
