"""The command ``ganger``: finds the command, carries it out, and tells what goes wrong.

Data goes to stdout, everything else to stderr; what goes wrong is one sentence and an exit code. argparse, because a
command line built by a richer library took 210 ms of the 600 that a supervisor may need from its start to its first
job.

The commands are in ``ganger.commands``, a file each; what is slow to import, they import where it is used.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from ganger.commands import check, db, enqueue, jobs, queues, report, run, status, tables, top
from ganger.commands.common import CODES, FAILED, MISCONFIGURED, OK, Failure, Parser, explain, tell
from ganger.config import ConfigError
from ganger.shortages import NO_MEMORY, shortage

COMMANDS = (run, enqueue, status, top, jobs, report, queues, tables, check, db)  # in the order of the help


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    _open_standard_streams()
    try:
        options = parser().parse_args(_words() if arguments is None else arguments)
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
        return _fail(FAILED, shortage(error) or f"{error}.")
    except Exception as error:
        return _explained(error)
    return code


def _words() -> list[str]:
    """The command line. Words that the locale could not read (C has no é) are UTF-8."""
    return [os.fsencode(word).decode("utf-8", "surrogateescape") if _is_unread(word) else word for word in sys.argv[1:]]


def _is_unread(word: str) -> bool:
    return any("\udc80" <= character <= "\udcff" for character in word)


def _forget_stdout() -> None:
    """What Python still holds for stdout is lost, and must not fail once more at the exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _fail(code: int, sentence: str) -> int:
    tell(sentence)
    return code


def _explained(error: Exception) -> int:
    try:
        return _fail(*explain(error))
    except MemoryError:  # to explain it takes imports, and to print it a buffer
        os.write(2, f"ganger: {NO_MEMORY}\n".encode())
        return FAILED


def _open_standard_streams() -> None:
    """Open what is closed of the descriptors 0 to 2: no socket of ours may get such a number and be printed to."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number: this one
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
    for command in COMMANDS:
        command.add(commands)
    return top
