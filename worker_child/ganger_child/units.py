"""Durations and sizes as people write them: "10m", "2GiB". Inside there are only seconds and bytes."""

from __future__ import annotations

import math
import re
from typing import Final

from ganger_child.words import shown

LONGEST: Final = 3650 * 86400.0  # seconds; more than this is a slip of the pen
LARGEST: Final = (1 << 63) - 1  # bytes; PostgreSQL can hold no larger number
_LONGEST_TEXT: Final = 50  # characters

_QUANTITY: Final = re.compile(r"([0-9]*\.?[0-9]+)\s*([a-z]*)", re.IGNORECASE | re.ASCII)
_SECONDS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DECIMAL: Final = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_BINARY: Final = {f"{letter}{end}": 1024**power for power, letter in enumerate("kmgt", 1) for end in ("", "ib")}
_BYTES: Final = _DECIMAL | _BINARY


def seconds(value: object, name: str) -> float:
    """Read a duration: a number of seconds, or text such as "90", "90s", "10m", "1h".

    Raises ValueError, naming ``name``, for what is none, is negative or over ``LONGEST``.
    """
    number = _read(value, name, _SECONDS, 'a number of seconds, or text such as "90s", "10m" or "1h"')
    if number > LONGEST:
        raise ValueError(f"{name} is {shown(value)}: give at most {LONGEST:.0f} seconds.")
    return number


def size(value: object, name: str) -> int:
    """Read a size: a whole number of bytes, or text such as "512MiB" or "2GiB". Raises ValueError, naming ``name``."""
    number = _read(value, name, _BYTES, 'a number of bytes, or text such as "512MiB" or "2GiB"')
    if number != int(number):
        raise ValueError(f"{name} is {shown(value)}: give a whole number of bytes.")
    if number > LARGEST:
        raise ValueError(f"{name} is {shown(value)}: give at most {LARGEST} bytes.")
    return int(number)


def _read(value: object, name: str, units: dict[str, float] | dict[str, int], hint: str) -> float:
    number = math.nan
    if isinstance(value, str) and len(value) <= _LONGEST_TEXT:
        match = _QUANTITY.fullmatch(value.strip())
        if match and match[2].lower() in units:
            number = float(match[1]) * units[match[2].lower()]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value) if abs(value) < 1e300 else math.inf
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{name} is {shown(value)}: give {hint}.")
    return number
