"""Put tiles together and write them as a PNG file: the format's three chunks, nothing more."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class Tile(NamedTuple):
    """A rectangle of RGB pixels, row by row, and where it lies."""

    left: int
    top: int
    columns: int
    rows: int
    pixels: bytes


def write(path: Path, width: int, height: int, tiles: Iterable[Tile]) -> None:
    """Write a picture; what no tile covers is black."""
    picture = bytearray(3 * width * height)
    for tile in tiles:
        for row in range(tile.rows):
            start = 3 * ((tile.top + row) * width + tile.left)
            line = tile.pixels[3 * row * tile.columns : 3 * (row + 1) * tile.columns]
            picture[start : start + len(line)] = line
    lines = b"".join(b"\0" + picture[3 * y * width : 3 * (y + 1) * width] for y in range(height))
    header = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)  # 8 bits a colour, RGB
    chunks = _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(lines, 9)) + _chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunks)


def _chunk(name: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(name + content)
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", checksum)
