"""How people read what commands tell: ages, sizes, moments, tables. Nothing here knows what the values are of."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final
from unicodedata import combining, east_asian_width

# What a terminal would obey, spelt out; a tab is harmless.
CONTROL: Final = {code: repr(chr(code))[1:-1] for code in (*range(32), 127, *range(128, 160)) if chr(code) != "\t"}
_CONTROL_BUT_LINES: Final = {code: shown for code, shown in CONTROL.items() if chr(code) != "\n"}


def age(seconds: float | None) -> str:
    """A time as people read it: 42s, 12m, 3.5h, 2.1d."""
    if seconds is None:
        return ""
    for unit, length in (("d", 86400), ("h", 3600)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.1f}{unit}"
    return f"{seconds / 60:.0f}m" if seconds >= 120 else f"{max(seconds, 0):.0f}s"


def harmless(text: str) -> str:
    """Text of several lines with nothing in it that a terminal would obey."""
    return text.translate(_CONTROL_BUT_LINES)


def table(head: Sequence[str], rows: Sequence[Sequence[object]], empty: str) -> str:
    """Columns as wide as they must be; numbers to the right."""
    if not rows:
        return empty
    cells = [list(head), *([str(cell) for cell in row] for row in rows)]
    widths = [max(_width(row[column]) for row in cells) for column in range(len(head))]
    right = [all(isinstance(row[column], int) for row in rows) for column in range(len(head))]
    return "\n".join("  ".join(map(_filled, row, widths, right)).rstrip() for row in cells)


def _filled(cell: str, width: int, to_right: bool) -> str:
    blanks = " " * (width - _width(cell))
    return blanks + cell if to_right else cell + blanks


def _width(text: str) -> int:
    """How many columns of a terminal it takes: a CJK character takes two, one that is put onto another none."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(one) else 2 if east_asian_width(one) in "WF" else 1 for one in text)


def clock(text: object) -> str:
    """An ISO 8601 time as people read it, in UTC: to the second, with the day."""
    try:
        return f"{datetime.fromisoformat(str(text)).astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"
    except (ValueError, OverflowError):  # infinity, or a year that Python does not know
        return str(text)


def since(text: str | None) -> str:
    """How long ago an ISO 8601 time is."""
    try:
        return "" if text is None else age((datetime.now(UTC) - datetime.fromisoformat(text)).total_seconds())
    except (ValueError, OverflowError):
        return str(text)


def size(number: float | None) -> str:
    """Bytes as people read them: 512K, 3.4M, 2.0G."""
    if number is None:
        return ""
    for unit, length in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if number >= length:
            return f"{number / length:.1f}{unit}" if number < 10 * length else f"{number / length:.0f}{unit}"
    return f"{number:.0f}"


def lasting(seconds: float | None) -> str:
    """A duration as people read it, exact where it is short: 0.02s, 4.1s, 73s, 12m, 3.5h."""
    if seconds is None:
        return ""
    if seconds < 10:
        return f"{seconds:.2f}s" if seconds < 1 else f"{seconds:.1f}s"
    return age(seconds)
