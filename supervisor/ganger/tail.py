"""The last of what a job printed, kept within a bound whatever it prints, for its attempt's record.

Bytes come as they were read and are cut at the front, so 200 MB cost what the bound says. The text that they become
can be stored: what is no UTF-8, and NUL, which PostgreSQL has no room for, are spelt out.

This file may not know whose bytes they are.
"""

from __future__ import annotations


class Tail:
    """The last ``most`` bytes of what is added."""

    __slots__ = ("_kept", "_most", "_size")

    def __init__(self, most: int) -> None:
        self._most = most
        self.clear()

    def clear(self) -> None:
        self._kept = b""
        self._size = 0

    def add(self, data: bytes) -> None:
        self._size += len(data)
        self._kept = (self._kept + data)[-self._most :] if len(data) < self._most else data[-self._most :]

    def text(self) -> str | None:
        """What was kept, or None if nothing was added. Where something is missing, its first line says how much."""
        if not self._size:
            return None
        kept, missing = self._kept, self._size - len(self._kept)
        if missing:
            _, end, rest = kept.partition(b"\n")
            if end and rest:  # begin with a whole line, where there is one
                missing, kept = self._size - len(rest), rest
        text = kept.decode("utf-8", "backslashreplace").replace("\0", "\\x00")
        return f"[… {missing} bytes before]\n{text}" if missing else text
