"""The bounded tail of a job's output, byte by byte."""

from __future__ import annotations

import json

import pytest

from ganger.tail import Tail


def tail(*pieces: bytes, most: int = 16) -> str | None:
    kept = Tail(most)
    for piece in pieces:
        kept.add(piece)
    return kept.text()


def test_nothing_printed_is_nothing_kept() -> None:
    assert tail() is None
    assert tail(b"") is None


def test_what_fits_is_kept_as_it_was_printed() -> None:
    assert tail(b"one\n", b"two") == "one\ntwo"


@pytest.mark.parametrize("size", [1, 3, 16, 17, 1000])
def test_the_end_stays_and_the_first_line_says_what_is_missing(size: int) -> None:
    printed = b"".join(b"line %d\n" % number for number in range(100))
    pieces = [printed[at : at + size] for at in range(0, len(printed), size)]
    assert tail(*pieces) == "[… 782 bytes before]\nline 99\n"


def test_a_line_without_an_end_is_cut_where_the_bound_is() -> None:
    assert tail(b"x" * 100) == f"[… 84 bytes before]\n{'x' * 16}"


def test_what_could_not_be_stored_is_spelt_out() -> None:
    text = tail(b"a\0b\xff\xed\xa0\x80")
    assert text == "a\\x00b\\xff\\xed\\xa0\\x80"
    assert "\\u0000" not in json.dumps(text)


def test_a_character_cut_in_two_is_spelt_out() -> None:
    assert tail("ä".encode() * 20, most=5) == "[… 35 bytes before]\n\\xa4ää"


def test_a_flood_leaves_no_more_than_the_bound() -> None:
    kept = Tail(8192)
    for _ in range(3000):
        kept.add(b"y" * 65536)
    text = kept.text()
    assert text is not None
    assert len(text) < 8300
    assert text.startswith(f"[… {3000 * 65536 - 8192} bytes before]")
