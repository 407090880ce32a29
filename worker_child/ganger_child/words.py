"""A value in a sentence, whatever it is: for every refusal that says "NAME is VALUE".

The value may be the user's object: its methods may raise, lie or be enormous. So nothing is asked of it unguarded, and
what comes out is plain text of a bounded length, on one line.

This file may not know who is told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

LONGEST: Final = 200  # characters of a value that a sentence shows


def guarded(step: Callable[[], str], otherwise: str) -> str:
    """The plain text that a step makes of the user's object, or other words where it raises anything or makes none."""
    try:
        return str.__str__(step())  # of a subclass of str, too, it makes a text that has no methods of the user's
    except BaseException:  # and here nobody can use it
        return otherwise


def shown(value: object) -> str:
    """A value as it would be written in a program, but for its middle where that is long."""
    told = guarded(lambda: repr(value), "an object that cannot be shown")
    line = " ".join(told.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 20]} … {line[-17:]}"


def plain(text: str, most: int = LONGEST) -> str:
    """A text that any terminal can show on one line, cut to so many characters: control characters and marks of the
    writing direction are left out."""
    return "".join(character for character in text[:most] if character.isprintable())


def message(error: BaseException) -> str:
    """What an exception says, on one line."""
    told = guarded(lambda: str(error), "") or type(error).__name__
    return " ".join(told.split())
