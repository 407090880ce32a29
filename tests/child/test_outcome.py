"""Exceptions as text and results as JSON: nothing that a handler raises or returns gets past as something else."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ganger_child import BadResult, JobFailed, JobTimedOut
from ganger_child.outcome import TEXT_LIMIT, bounded, describe, encode


def raised(exception: BaseException) -> BaseException:
    """The exception, with a traceback."""
    try:
        raise exception
    except BaseException as error:
        return error


class BadText(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError("in __str__")


class ExitingText(Exception):
    def __str__(self) -> str:
        raise SystemExit("in __str__")


class NotText(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


class BadEverything(Exception):
    __notes__ = property(lambda self: 1 / 0)
    args = property(lambda self: 1 / 0)

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __str__(self) -> str:
        raise RuntimeError("str")

    def __repr__(self) -> str:
        raise RuntimeError("repr")


class TwoArguments(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__("rebuilt by nobody")


# ---------------------------------------------------------------------------------------------------------------------
# Exceptions


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: ValueError("no"), "ValueError", "no"),
        (lambda: ValueError(), "ValueError", ""),
        (lambda: KeyError("key"), "KeyError", "'key'"),
        (lambda: TwoArguments(1, 2), f"{__name__}.TwoArguments", "rebuilt by nobody"),
        (BadText, f"{__name__}.BadText", "(the message cannot be shown: its __str__ raised)"),
        (ExitingText, f"{__name__}.ExitingText", "(the message cannot be shown: its __str__ raised)"),
        (NotText, f"{__name__}.NotText", "(the message cannot be shown: its __str__ raised)"),
        (BadEverything, f"{__name__}.BadEverything", "(the message cannot be shown: its __str__ raised)"),
        (lambda: JobTimedOut("late"), "ganger_child.JobTimedOut", "late"),
        (lambda: ValueError("nul \0 lone \udcff \U0001f600"), "ValueError", "nul \\x00 lone \\udcff \U0001f600"),
    ],
)
def test_type_and_message_are_told_whatever_the_exception_does(
    make: Callable[[], BaseException], kind: str, message: str
) -> None:
    told = describe(raised(make()))
    assert (told["type"], told["message"]) == (kind, message)
    assert "in raised" in told["traceback"] or kind.endswith("BadEverything")
    json.dumps(told).encode()
    assert "\0" not in "".join(told.values())


def test_the_traceback_has_causes_contexts_notes_and_groups() -> None:
    def fail() -> None:
        try:
            try:
                raise OSError("the cause")
            except OSError as error:
                raise ValueError("the middle") from error
        except ValueError as error:
            error.add_note("a note")
            raise ExceptionGroup("the group", [error, KeyError("the other")]) from error

    with pytest.raises(ExceptionGroup) as caught:
        fail()
    trace = describe(caught.value)["traceback"]
    for part in ("OSError: the cause", "ValueError: the middle", "a note", "the group", "KeyError: 'the other'"):
        assert part in trace


def test_a_chain_without_end_is_told() -> None:
    error: BaseException = ValueError("first")
    for n in range(3000):
        following = ValueError(f"{n}")
        following.__cause__ = error
        error = following
    error.__context__ = error
    told = describe(error)
    assert told["message"] == "2999"
    assert len(json.dumps(told["traceback"])) <= TEXT_LIMIT + 2


def test_a_recursion_error_is_told_at_the_edge_of_the_stack() -> None:
    def deeper() -> None:
        deeper()

    with pytest.raises(RecursionError) as caught:
        deeper()
    assert describe(caught.value)["type"] == "RecursionError"


def test_an_exception_of_a_dead_child_is_told_as_it_was_told() -> None:
    told = describe(JobFailed("it broke", "app.Broken", "Traceback …"))
    assert told == {"type": "app.Broken", "message": "it broke", "traceback": "Traceback …"}


@pytest.mark.parametrize("character", ["x", "é", "\N{SNOWMAN}", "\U0001f600", "\0", "\udc80", '"'])
@pytest.mark.parametrize("length", [0, 1, 60_000, 5_000_000])
def test_texts_are_bounded_and_keep_head_and_tail(character: str, length: int) -> None:
    text = "head" + character * length + "tail"
    short = bounded(text, TEXT_LIMIT)
    assert len(json.dumps(short)) <= TEXT_LIMIT + 2
    assert short.startswith("head")
    assert short.endswith("tail")
    if length > TEXT_LIMIT:
        assert "characters left out" in short
        assert len(json.dumps(short)) > TEXT_LIMIT // 4  # not more than needed is cut


@given(st.text(st.characters(), max_size=300), st.integers(200, 1000))
@settings(deadline=None, max_examples=50)
def test_any_text_becomes_storable(text: str, limit: int) -> None:
    short = bounded(text, limit)
    assert "\0" not in short
    assert len(json.dumps(short)) <= limit + 2
    short.encode()


# ---------------------------------------------------------------------------------------------------------------------
# Results


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text("aé\\u0"),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("kü\\", max_size=3), inner, max_size=4),
        max_leaves=12,
    )
)
@settings(deadline=None, max_examples=50)
def test_what_json_can_hold_is_held(value: Any) -> None:
    encoded = encode(value, 1 << 20)
    assert (None if encoded is None else json.loads(encoded)) == value


def generator() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"m": float("nan")}, "result['m'] is NaN: NaN is not JSON"),
        ([0, [float("-inf")]], "result[1][0] is Infinity: Infinity is not JSON"),
        ({"a": generator()}, "result['a'] is a generator, which JSON cannot hold"),
        ({1, 2}, "result is a set, which JSON cannot hold"),
        ({"f": lambda: 1}, "result['f'] is a function, which JSON cannot hold"),
        ({"a": [b"bytes"]}, "result['a'][0] is a bytes, which JSON cannot hold"),
        ({"a": {(1, 2): 3}}, "result['a'] has the key (1, 2), which is no string"),
        ({"a": {float("nan"): 3}}, "result['a'] has the key nan, which is NaN: NaN is not JSON"),
        (["x\0y"], "result[0] holds a NUL character, which PostgreSQL cannot store"),
        ({"k\0": 1}, "result has the key 'k\\x00', which holds a NUL character, which PostgreSQL cannot store"),
        ({"a": "lone \udc80"}, "result['a'] holds a lone surrogate, which is no text"),
        ({"\udc80": 1}, "result has the key '\\udc80', which holds a lone surrogate, which is no text"),
        (SimpleNamespace(a=1), "result is a SimpleNamespace, which JSON cannot hold"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_its_path(value: Any, told: str) -> None:
    with pytest.raises(BadResult) as caught:
        encode(value, 1000)
    assert str(caught.value) == f"the result cannot be stored: {told}"


def test_an_open_file_is_refused() -> None:
    with open(Path(__file__)) as file, pytest.raises(BadResult, match="is a TextIOWrapper, which JSON cannot hold"):
        encode(file, 1000)


def test_what_contains_itself_or_is_endlessly_deep_is_refused() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    for value in (loop, deep):
        with pytest.raises(BadResult, match="nested too deeply, or contains itself"):
            encode(value, 1 << 20)
    while isinstance(deep, list):  # taken apart from outside: its end would recurse too
        deep = deep.pop()


def test_values_whose_methods_raise_are_refused() -> None:
    class Hostile(dict[str, Any]):
        def items(self) -> Any:
            raise SystemExit("hostile")

        def __iter__(self) -> Any:
            raise SystemExit("hostile")

        def __bool__(self) -> bool:
            return True

    with pytest.raises(BadResult, match="hostile"):
        encode(Hostile(a=1), 1000)


def test_a_backslash_before_u0000_is_no_nul() -> None:
    assert json.loads(encode(["\\u0000"], 1000) or b"") == ["\\u0000"]


@pytest.mark.parametrize("character", ["x", "é"])
def test_the_size_counts_in_bytes(character: str) -> None:
    size = len(character.encode())
    assert encode(character * 10, 10 * size + 2) is not None
    with pytest.raises(BadResult, match="too large"):
        encode(character * 10, 10 * size + 1)


def test_a_huge_result_is_refused_without_being_built_twice() -> None:
    tracemalloc = pytest.importorskip("tracemalloc")
    value = "x" * 20_000_000
    gc.collect()
    tracemalloc.start()
    try:
        with pytest.raises(BadResult, match="too large"):
            encode(value, 1 << 20)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.9 * len(value)


def test_huge_numbers_are_refused_not_stored_wrongly() -> None:
    with pytest.raises(BadResult):
        encode({"n": 10**5000}, 1 << 20)
