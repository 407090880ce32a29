"""Jobs for ``test_odd_outcomes``: each runs the lines of its payload, which raise or return what no handler should."""

from __future__ import annotations

import enum
import sys
import types
from typing import Any

from ganger_child import Handlers

handlers = Handlers()


class Text(str):
    """Text whose every method is the application's."""

    def _hostile(self, *_: Any) -> Any:
        raise RuntimeError("a method of a text raised")

    encode = __len__ = __iter__ = __add__ = __radd__ = __format__ = __getitem__ = replace = splitlines = _hostile  # type: ignore[assignment]

    def __str__(self) -> str:
        return self


class Colour(enum.Enum):
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


class Word(enum.StrEnum):
    ONE = "one"


class Mapping(dict[Any, Any]):
    def items(self) -> Any:
        return iter(lambda: ("k", 1), None)  # without end, were it asked


def deep(depth: int, kind: type = list) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind is list else {"k": value}
    return value


def ring() -> list[Any]:
    value: list[Any] = []
    value.append({"k": value})
    return value


def groups(depth: int) -> BaseException:
    """Groups of the same group twice: 2 to the power of ``depth`` members, were each told."""
    made: Exception = ValueError("the innermost")
    for _ in range(depth):
        made = ExceptionGroup("twice", [made, made])
    return made


def chain(length: int) -> BaseException:
    made: BaseException = ValueError("the first")
    for number in range(length):
        following = ValueError(number)
        following.__cause__ = made
        made = following
    return made


def odd(base: type[BaseException] = Exception, /, **members: Any) -> BaseException:
    """An exception of a new class with these members."""
    made: BaseException = types.new_class("Odd", (base,), {}, lambda body: body.update(members))()
    return made


def fail(*_: Any) -> Any:
    raise ZeroDivisionError("a method of the application's raised")


@handlers.job("do")
def do(job: Any) -> Any:
    names: dict[str, Any] = {**globals(), "job": job}
    exec("def run():\n" + "\n".join("    " + line for line in job.payload.splitlines()), names)
    return names["run"]()


@handlers.job("fine")
def fine(job: Any) -> str:
    return f"fine {sys.getrecursionlimit()}"
