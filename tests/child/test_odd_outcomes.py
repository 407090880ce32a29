"""Whatever a handler returns or raises is told as an outcome that PostgreSQL can hold, and the child goes on.

First thousands of made-up values against the two functions that tell outcomes, then the worst ones in a real child.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ganger_child.errors import BadResult
from ganger_child.outcome import TEXT_LIMIT, describe, encode
from tests.child import odd_jobs
from tests.child.driver import Driver
from tests.child.odd_jobs import Colour, Number, Text, Word, chain, deep, fail, groups, odd, ring

bounded = settings(deadline=None, derandomize=True, database=None, max_examples=120)


def storable(text: str) -> None:
    """Fail if PostgreSQL could not hold it."""
    assert type(text) is str
    assert "\0" not in text
    text.encode()


# ---------------------------------------------------------------------------------------------------------------------
# What is returned


class Whole(int):
    """Not in JSON as it shows itself."""

    def __repr__(self) -> str:
        return "nonsense"

    __str__ = __repr__


class Fraction(float):
    def __repr__(self) -> str:
        return "nonsense"


class Ordered(dict[Any, Any]):
    pass


class Unwilling:
    __class__ = property(fail)
    __getattr__ = __iter__ = __len__ = __eq__ = __hash__ = __repr__ = fail


good_leaves = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text("aé\\u0\n")
) | st.sampled_from([Number.ONE, Word.ONE, Whole(7), Fraction(1.5), True, 10**300, -0.0, 5e-324, 1e308, "\U0001f600"])
ODD: list[Any] = [
    float("nan"), float("inf"), "\0", "\ud800", "\udc80x", b"bytes", {1}, object(), Colour.RED, 1j, 10**5000, fail,
    iter([]), range(3), Unwilling(), Text("text"), type, Ellipsis, memoryview(b""), ring(), deep(2000),
    deep(2000, dict), {Unwilling: 1}, {(1, 2): 3}, {"\0": 1}, {"\ud800": 1}, {float("nan"): 1}, {b"k": 1},
    {1: "a", "1": "b"}, {None: 1, "null": 2}, {True: 1, "true": 2}, {1.5: 1, "1.5": 2},
]  # fmt: skip
odd_leaves = st.integers(0, len(ODD) - 1).map(lambda number: ODD[number])  # not sampled: some cannot be shown
keys = st.text("k\\é1", max_size=3) | st.integers(-3, 3) | st.booleans() | st.none() | st.sampled_from([Word.ONE, 1.5])


def inside(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    mappings = st.dictionaries(keys, inner, max_size=3)
    return st.lists(inner, max_size=3) | st.tuples(inner, inner) | mappings | mappings.map(Ordered)


def as_json(value: Any) -> Any:
    """The value that a reader of JSON gets; KeyError where two keys become one."""
    if isinstance(value, dict):
        told: dict[str, Any] = {}
        for key, item in value.items():
            name = key if isinstance(key, str) else json.dumps(key)
            if name in told:
                raise KeyError(name)
            told[str.__str__(name)] = as_json(item)
        return told
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    return value


@bounded
@given(st.recursive(good_leaves, inside, max_leaves=12))
def test_what_json_can_hold_comes_back_as_it_was(value: Any) -> None:
    try:
        expected = as_json(value)
    except KeyError:
        with pytest.raises(BadResult, match="twice"):
            encode(value, 1 << 20)
        return
    encoded = encode(value, 1 << 20)
    if value is None:
        assert encoded is None
    else:
        assert encoded is not None
        assert json.loads(encoded) == expected


@bounded
@given(st.recursive(good_leaves | odd_leaves, inside, max_leaves=8), st.sampled_from([10, 1 << 20]))
def test_what_it_cannot_hold_is_refused_with_a_sentence(value: Any, limit: int) -> None:
    try:
        encoded = encode(value, limit)
    except BadResult as error:
        message = str(error)
        storable(message)
        assert message.startswith(("the result cannot be stored: result", "the result is too large: it has"))
        assert len(message) < 1200
        return
    if encoded is not None:
        assert len(encoded) <= limit
        json.dumps(json.loads(encoded), ensure_ascii=False).encode()
        assert b"\\u0000" not in encoded or b"\\\\u0000" in encoded


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"a": {1: "x", "1": "y"}}, "result['a'] has the key '1' twice"),
        ([{None: 1, "null": 2}], "result[0] has the key 'null' twice"),
        ({"n": [10**5000]}, "result['n'][0] is a number of too many digits"),
        ({"e": Colour.RED}, "result['e'] is a Colour, which JSON cannot hold"),
    ],
)
def test_the_path_leads_to_it(value: Any, told: str) -> None:
    with pytest.raises(BadResult) as caught:
        encode(value, 1 << 20)
    assert told in str(caught.value)


def test_numbers_of_numpy() -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    assert encode([numpy.float64(1.5)], 100) == b"[1.5]"  # it is a float
    for value in (numpy.int64(1), numpy.float32(1.5), numpy.array([1]), numpy.bool_(True)):
        with pytest.raises(BadResult, match=r"result\['n'\] is a "):
            encode({"n": value}, 100)


# ---------------------------------------------------------------------------------------------------------------------
# What is raised

odd_members = st.dictionaries(
    st.sampled_from(["__str__", "__repr__", "__reduce__", "__notes__", "args", "__module__", "__qualname__", "__doc__",
                     "__traceback__", "__cause__", "__context__", "__suppress_context__", "__eq__", "__hash__",
                     "__getattribute__", "__getattr__", "__class__", "filename", "lineno", "text", "offset", "msg",
                     "exceptions", "message", "name", "obj", "errno", "strerror"]),
    st.sampled_from([fail, property(fail), None, 7, "text", "\0\ud800", Text("hostile"), "x" * 300_000, [], [7, "note"],
                     ["\0\ud800"], lambda self: "said", lambda self: 7, lambda self: Text("hostile"), lambda self: None,
                     property(lambda self: self), property(lambda self: Text("hostile"))]),
    max_size=5,
)  # fmt: skip
bases = st.sampled_from([
    BaseException, Exception, ValueError, KeyError, OSError, SyntaxError, ImportError, NameError, AttributeError,
    UnicodeDecodeError, SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, BadResult,
])  # fmt: skip


@st.composite
def exceptions(draw: st.DrawFn) -> BaseException:
    """One of a class with odd members, perhaps with causes (or in a circle of them), perhaps in a group."""

    def one() -> BaseException:
        base, members = draw(bases), draw(odd_members)
        try:
            return odd(base, **members)
        except Exception:  # no such class can be made, or it cannot be called
            return ValueError("plain")

    made = [one() for _ in range(draw(st.integers(1, 3)))]
    for error, cause in zip(made, made[1:] + made[:1], strict=True):
        getattr(BaseException, draw(st.sampled_from(["__cause__", "__context__"]))).__set__(error, cause)
    try:
        return BaseExceptionGroup("several \0 \ud800", made) if draw(st.booleans()) else made[0]
    except Exception:  # their class says that they are no exceptions
        return made[0]


@bounded
@given(exceptions(), st.booleans())
def test_any_exception_is_told(exception: BaseException, raised: bool) -> None:
    if raised:
        try:
            raise exception
        except BaseException:
            pass
    told = describe(exception)
    assert set(told) == {"type", "message", "traceback"}
    for text in told.values():
        storable(text)
        assert len(json.dumps(text)) <= TEXT_LIMIT + 2
    assert told["type"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "exception", [groups(40), chain(200_000), ExceptionGroup("g", [ValueError(n) for n in range(20_000)])]
)
def test_what_would_take_for_ever_to_tell_is_told_shortly(exception: BaseException) -> None:
    """A group of 2 to the power of 40 members is a kilobyte of memory."""
    told = describe(exception)
    assert told["type"] in ("ExceptionGroup", "ValueError")
    assert told["message"]
    assert told["traceback"]


# ---------------------------------------------------------------------------------------------------------------------
# In a child

RETURNED: dict[str, str | None] = {  # what is returned, and of what its result is told to be bad; None: it is good
    "return Number.ONE": None,
    "return [Word.ONE]": None,
    "return {1: 2, None: 3, True: 4}": None,
    "return deep(500)": None,
    "return deep(100000)": "nested too deeply",
    "return deep(5000, dict)": "nested too deeply",
    "return ring()": "contains itself",
    "return Colour.RED": "is a Colour",
    "return {'a': 10 ** 5000}": "result['a'] is a number of too many digits",
    "return {1: 1, '1': 2}": "twice",
    "return {'m': float('nan')}": "NaN is not JSON",
    "return lambda: 1": "is a function",
    "return (n for n in [1])": "is a generator",
    "return open('/dev/null')": "is a TextIOWrapper",
    "return {1, 2}": "is a set",
    "return '\\ud800'": "lone surrogate",
    "return ['x', 'a\\0b']": "result[1] holds a NUL character",
    "return Text('text')": None,
    "return sys": "is a module",
}
RAISED = [
    "raise odd(__str__=fail)",
    "raise odd(__str__=lambda self: Text('hostile'))",
    "raise odd(__str__=fail, __repr__=fail, __reduce__=fail, args=property(fail))",
    "raise odd(__getattribute__=fail)",
    "raise odd(BaseException, __class__=property(fail))",
    "raise odd(BaseException, __traceback__=7)",
    "raise odd(SyntaxError, filename=Text('x'), lineno='nine', text=object(), offset=-1)",
    "raise odd(OSError, errno=Text('x'), strerror=fail)",
    "raise odd(KeyboardInterrupt)",
    "raise odd(GeneratorExit)",
    "raise odd(SystemExit, code=property(fail))",
    "sys.exit(Text('hostile'))",
    "raise groups(40)",
    "raise BaseExceptionGroup('g', [KeyboardInterrupt(), SystemExit(3)])",
    "raise chain(50000)",
    "e = ValueError('self'); e.__cause__ = e; raise e",
    "raise ValueError('x' * 50_000_000)",
    "raise ValueError('\\0\\ud800' * 1000)",
    "raise StopIteration(7)",
    "raise odd(__init_subclass__=fail)",
    "raise type('N\\ud800', (Exception,), {'__module__': 7, '__qualname__': 'q' * 10000})('named')",
    "raise type('E', (Exception,), {'__eq__': fail, '__hash__': None, '__bool__': fail})()",
    "def f(): f()\nf()",
    "assert not job, Text('hostile')",
    "raise 7",
    "del sys.modules['json']; raise ValueError('and a module gone')",
    "sys.setrecursionlimit(60); return deep(30)[0][1]",
]


@pytest.fixture(scope="module")
def shared() -> Iterator[Driver]:
    """One child for all: what one job does to it, the next must not feel."""
    with Driver(f"{odd_jobs.__name__}:handlers") as driver:
        yield driver


@pytest.mark.parametrize("lines", RETURNED)
def test_a_child_survives_what_its_handler_returns(shared: Driver, lines: str) -> None:
    report = shared.run("do", lines)
    bad = RETURNED[lines]
    if bad is None:
        assert report.op == "returned"
        json.loads(report.body)
    else:
        assert (report.op, report["reason"]) == ("raised", "bad-result")
        assert bad in report["error"]["message"]
    assert shared.run("fine").op == "returned"


@pytest.mark.parametrize("lines", RAISED)
def test_a_child_survives_what_its_handler_raises(shared: Driver, lines: str) -> None:
    report = shared.run("do", lines)
    assert (report.op, report["reason"]) == ("raised", "exception")
    for text in report["error"].values():
        storable(text)
    assert report["error"]["type"]
    assert shared.run("fine").op == "returned"
