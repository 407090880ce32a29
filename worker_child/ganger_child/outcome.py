"""What a handler left, as data: an exception as text, a result as JSON.

Never pickle: the parent must not run the user's code, and an exception that cannot be rebuilt must not hang anybody.
Everything asked of the user's objects may raise, lie or be enormous, so each step is guarded and each text bounded.
What leaves here, PostgreSQL can hold: NUL characters and lone surrogates of a text appear as ``\\x00`` and ``\\udc80``
(backslash escapes); a result that holds one is refused.
"""

from __future__ import annotations

import math
from json import dumps
from pathlib import Path
from traceback import TracebackException, format_tb
from types import TracebackType
from typing import Any, Final

from ganger_child.errors import BadResult, JobFailed
from ganger_child.words import guarded, shown

TEXT_LIMIT: Final = 64 * 1024  # bytes that a message or a traceback may have in JSON; head and tail are kept
_NAME_LIMIT: Final = 500
_OURS: Final = str(Path(__file__).resolve().parent)
_COMPLAINT_LIMIT: Final = 1000
_DEEPEST: Final = 900  # the encoder gives up a little later
_MOST_TOLD: Final = 10_000  # exceptions, with causes and members of groups, that a traceback is made of

Error = dict[str, str]


# ---------------------------------------------------------------------------------------------------------------------
# Exceptions


def describe(exception: BaseException, limit: int = TEXT_LIMIT) -> Error:
    """Tell an exception as ``type`` (qualified), ``message`` and ``traceback``, ``limit`` bytes each at most."""
    told = {"type": qualified(exception), "message": _message(exception), "traceback": _trace(exception)}
    if type(exception) is JobFailed:  # it stands for one that was described when it was there
        told |= {"type": exception.type or told["type"], "traceback": exception.traceback}
    return {name: bounded(text, _NAME_LIMIT if name == "type" else limit) for name, text in told.items()}


def qualified(exception: BaseException) -> str:
    """Name the type of an exception with its module, if that is not the builtins."""
    kind = type(exception)
    name = guarded(lambda: str(kind.__qualname__), "an exception")
    module = guarded(lambda: str(kind.__module__), "")
    return f"{module}.{name}" if module not in ("", "builtins", "__main__") else name


def bounded(text: str, limit: int) -> str:
    """Make a text storable, and cut out its middle where it has over ``limit`` bytes in JSON."""
    kept = limit
    while True:
        short = _scrubbed(text if len(text) <= kept else _cut(text, kept))
        size = len(dumps(short))
        if size <= limit + 2 or kept < 16:
            return short
        kept = min(kept - 1, len(text), kept * limit // size)


def _cut(text: str, kept: int) -> str:
    mark = f"\n… {len(text) - kept} characters left out …\n"
    half = max(0, kept - len(mark)) // 2
    return text[:half] + mark + text[len(text) - half :]


def _scrubbed(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def _message(exception: BaseException) -> str:
    return guarded(lambda: str(exception), "(the message cannot be shown: its __str__ raised)")


def _trace(exception: BaseException) -> str:
    """Format the traceback with its causes, notes and groups; where that fails, or would never end, only its lines."""

    def whole() -> str:
        if _is_endless(exception):
            return ""
        lines = TracebackException(type(exception), exception, _users(exception.__traceback__), compact=True).format()
        return "".join(lines)

    def frames() -> str:
        return "".join(format_tb(_users(exception.__traceback__))) + qualified(exception)

    return guarded(whole, "") or guarded(frames, "")


def _is_endless(exception: BaseException) -> bool:
    """Whether there is too much to tell: what is a member of several groups is told once for each of them."""
    waiting, seen, count = [exception], {id(exception)}, 0
    while waiting and count <= _MOST_TOLD:
        error = waiting.pop()
        count += 1
        for linked in (error.__cause__, error.__context__):
            if linked is not None and id(linked) not in seen:
                seen.add(id(linked))
                waiting.append(linked)
        if isinstance(error, BaseExceptionGroup):
            waiting += error.exceptions
    return count > _MOST_TOLD


def _users(trace: TracebackType | None) -> TracebackType | None:
    """Leave out our own frames above the handler's."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    return trace


# ---------------------------------------------------------------------------------------------------------------------
# Results


def encode(value: Any, limit: int) -> bytes | None:
    """Encode a result as JSON; None stays None.

    Raises BadResult with the path to what JSON or PostgreSQL cannot hold, or where it is over ``limit`` bytes.
    """
    return None if value is None else to_json(value, limit, "result", BadResult)


def to_json(value: Any, limit: int, name: str, refusal: type[Exception] = ValueError) -> bytes:
    """Encode a value of the user's, called ``name``, as JSON. What JSON or PostgreSQL cannot hold, or what is over
    ``limit`` bytes, raises a refusal that tells the place in the value."""
    try:
        text = _dumped(value, name)
        encoded = text.encode() if len(text) <= limit else None  # there are at least as many bytes as characters
    except BaseException as error:  # also what methods of the value raise
        complaint = guarded(lambda: _complaint_within(value, name), "") or f"{name}: {_message(error)}"
        raise refusal(f"the {name} cannot be stored: {bounded(complaint, _COMPLAINT_LIMIT)}") from error
    if encoded is None or len(encoded) > limit:
        size = f"over {len(text)}" if encoded is None else len(encoded)
        raise refusal(f"the {name} is too large: it has {size} bytes of JSON, {limit} are allowed")
    if b"\\u0000" in encoded:  # a NUL, or a backslash before "u0000"
        complaint = _complaint_within(value, name)
        if complaint:
            raise refusal(f"the {name} cannot be stored: {bounded(complaint, _COMPLAINT_LIMIT)}")
    return encoded


def _dumped(value: Any, name: str) -> str:
    """JSON with sorted keys, which costs little and shows those of two types: 1 and "1" would be one key in JSON."""
    try:
        return dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    except TypeError:
        complaint = _complaint_within(value, name)
        if complaint:
            raise
        return dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _complaint_within(value: Any, name: str) -> str:
    """Say what JSON or PostgreSQL cannot hold, with its path: the first such part, in the order of writing."""
    stack = [(name, value, 0)]
    while stack:
        path, part, depth = stack.pop()
        complaint = _complaint(part)
        if complaint:
            return f"{path} {complaint}"
        if depth == _DEEPEST:
            return f"{path} is nested too deeply, or contains itself"
        inner: list[tuple[str, Any, int]] = []
        if isinstance(part, dict):
            inner = [(f"{path}[{shown(key)}]", value, depth + 1) for key, value in part.items()]
        elif isinstance(part, list | tuple):
            inner = [(f"{path}[{index}]", value, depth + 1) for index, value in enumerate(part)]
        stack.extend(reversed(inner))
    return ""


def _complaint(part: Any) -> str:
    """Say what is wrong with a part itself, not with what it holds."""
    if isinstance(part, str):
        return _text_complaint(part)
    if isinstance(part, float):
        return "" if math.isfinite(part) else f"is {_not_finite(part)}: {_not_finite(part)} is not JSON"
    if isinstance(part, dict):
        return _key_complaint(part)
    if isinstance(part, int):
        return "" if guarded(lambda: int.__repr__(part), "") else "is a number of too many digits"
    if part is None or isinstance(part, list | tuple):
        return ""
    return f"is a {type(part).__qualname__}, which JSON cannot hold"


def _key_complaint(part: dict[Any, Any]) -> str:
    names = set()
    for key in part:
        if key is not None and not isinstance(key, str | int | float):
            return f"has the key {shown(key)}, which is no string"
        complaint = _complaint(key)
        if complaint:
            return f"has the key {shown(key)}, which {complaint}"
        name = key if isinstance(key, str) else dumps(key)
        if name in names:
            return f"has the key {shown(key)} twice, as text and not as text, which in JSON is the same"
        names.add(name)
    return ""


def _text_complaint(text: str) -> str:
    if "\0" in text:
        return "holds a NUL character, which PostgreSQL cannot store"
    if any("\ud800" <= character <= "\udfff" for character in text):
        return "holds a lone surrogate, which is no text"
    return ""


def _not_finite(number: float) -> str:
    return "NaN" if math.isnan(number) else "Infinity"
