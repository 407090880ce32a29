"""Process titles: what ``ps``, ``pgrep -af '^ganger:'`` and ``ganger top`` read, composed and parsed in this one file.

    ganger: supervisor web1:812 3/6 running default=4 render=2
    ganger: template myapp.jobs
    ganger: warden render/1 render-frame 9d3f01c2 attempt 2 41s/600s 42%
    ganger: warden render/2 idle
    ganger: child render/1 render-frame 9d3f01c2 attempt 2 since 12:03:44Z limit 600s

A title never holds payload. Words cannot break the line apart or turn it round: white space and percent signs are
percent-encoded, what is not printable (control characters, marks of the writing direction) is left out, long words are
cut, and a title has ``LONGEST`` characters at most. A process is never identified by its title: user code may set
another.

This file may not know where the numbers come from.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from time import gmtime, strftime
from typing import Final

LONGEST: Final = 200  # characters
PHASES: Final = ("running", "draining", "terminating")
_PREFIX: Final = "ganger: "
_WORD: Final = 60  # characters of a job type, a slot, a name: so that what follows still fits

_set_title: Callable[[str], object] | None = None
_prepared = False
_warn: Callable[[str], object] | None = None


@dataclass(frozen=True, slots=True)
class Title:
    """What a title says. What a role does not show, or what is not known, is None or empty.

    ``job_id`` is the last 8 hex digits; ``age`` and ``limit`` are seconds, ``progress`` percent, ``since`` is a time
    of day in UTC.
    """

    role: str  # supervisor, template, warden, child
    name: str  # of the supervisor, the target or the slot
    phase: str | None = None
    running: int | None = None
    slots: int | None = None
    lanes: tuple[tuple[str, int], ...] = ()
    job_type: str | None = None  # None: idle
    job_id: str | None = None
    attempt: int | None = None
    age: float | None = None
    since: str | None = None
    limit: float | None = None
    progress: int | None = None
    stalled: bool = False


# ---------------------------------------------------------------------------------------------------------------------
# Compose


def supervisor(name: str, phase: str, running: int, slots: int, lanes: Iterable[tuple[str, int]] = ()) -> str:
    """``lanes`` are names with their number of slots, as the operator gave them."""
    counts = [f"{_word(lane)}={count}" for lane, count in lanes]
    return _line("supervisor", _word(name), f"{running}/{slots}", phase, *counts)


def template(target: str) -> str:
    """The template, by what it loads: the module of ``module:name``."""
    return _line("template", _word(target.partition(":")[0]))


def warden(
    slot: str,
    job_type: str | None = None,
    job_id: str = "",
    attempt: int = 1,
    age: float = 0.0,
    limit: float | None = None,
    progress: int | None = None,
    stalled: bool = False,
) -> str:
    """A warden, and of the run below it its age and limit (seconds), its progress (percent), and if it has stalled."""
    if job_type is None:
        return _line("warden", _word(slot), "idle")
    time = f"{int(age)}s" if limit is None else f"{int(age)}s/{_seconds(limit)}"
    done = () if progress is None else (f"{progress}%",)
    halted = ("stalled",) if stalled else ()
    return _line("warden", _word(slot), *_run(job_type, job_id, attempt), time, *done, *halted)


def child(
    slot: str,
    job_type: str | None = None,
    job_id: str = "",
    attempt: int = 1,
    since: datetime | None = None,
    limit: float | None = None,
) -> str:
    """A child, and of its run the time of its start (now, if not given) and its limit (seconds)."""
    if job_type is None:
        return _line("child", _word(slot), "idle")
    began = gmtime() if since is None else since.utctimetuple()
    bound = () if limit is None else ("limit", _seconds(limit))
    return _line("child", _word(slot), *_run(job_type, job_id, attempt), "since", strftime("%H:%M:%SZ", began), *bound)


def short(job_id: object) -> str:
    """The last 8 hex digits of an id: the first ones of a UUIDv7 are its time."""
    return str(job_id).replace("-", "")[-8:]


def _line(*words: str) -> str:
    return (_PREFIX + " ".join(words))[:LONGEST]


def _run(job_type: str, job_id: str, attempt: int) -> tuple[str, ...]:
    return (_word(job_type), _word(short(job_id)), "attempt", str(attempt))


def _seconds(value: float) -> str:
    return f"{value:.10g}s" if value < 1e9 else f"{int(value)}s"


_PLAIN: Final = re.compile(r"[!-$&-~]+")


@lru_cache
def _word(text: str) -> str:
    """Make one word of a text, never empty."""
    if _PLAIN.fullmatch(text):
        return text[:_WORD]
    word = ""
    for character in text:
        if character.isspace() or character == "%":
            character = "".join(f"%{byte:02X}" for byte in character.encode())
        elif not character.isprintable():
            continue
        if len(word) + len(character) > _WORD:
            break
        word += character
    return word or "-"


# ---------------------------------------------------------------------------------------------------------------------
# Parse

_RUN: Final = r"(?P<job_type>\S+) (?P<job_id>\S+) attempt (?P<attempt>\d+)"
_SECONDS: Final = r"\d+(?:\.\d+)?(?:e[+-]\d+)?"
_PATTERNS: Final = tuple(
    re.compile(_PREFIX + pattern)
    for pattern in (
        r"(?P<role>supervisor) (?P<name>\S+) (?P<running>\d+)/(?P<slots>\d+) (?P<phase>\S+)(?P<lanes>(?: \S+=\d+)*)",
        r"(?P<role>template) (?P<name>\S+)",
        r"(?P<role>warden|child) (?P<name>\S+) idle",
        rf"(?P<role>warden) (?P<name>\S+) {_RUN} (?P<age>\d+)s(?:/(?P<limit>{_SECONDS})s)?(?: (?P<progress>\d+)%)?"
        r"(?: (?P<stalled>stalled))?",
        rf"(?P<role>child) (?P<name>\S+) {_RUN} since (?P<since>\d\d:\d\d:\d\dZ)(?: limit (?P<limit>{_SECONDS})s)?",
    )
)
_READERS: Final[dict[str, Callable[[str], object]]] = {
    **dict.fromkeys(("running", "slots", "attempt", "progress"), int),
    **dict.fromkeys(("age", "limit"), float),
    "stalled": bool,
}


def parse(title: str) -> Title | None:
    """Read a title. None for what is no title of ours."""
    for pattern in _PATTERNS:
        match = pattern.fullmatch(title.rstrip("\0 \n"))
        if match:
            found = {name: text for name, text in match.groupdict().items() if text is not None}
            lanes = tuple(lane.rpartition("=") for lane in found.pop("lanes", "").split())
            values = {name: _READERS.get(name, _decoded)(text) for name, text in found.items()}
            return Title(lanes=tuple((_decoded(name), int(count)) for name, _, count in lanes), **values)  # type: ignore[arg-type]
    return None


def _decoded(word: str) -> str:
    return re.sub(
        "(?:%[0-9A-F]{2})+", lambda run: bytes.fromhex(run[0].replace("%", "")).decode("utf-8", "replace"), word
    )


# ---------------------------------------------------------------------------------------------------------------------
# Show


def prepare(*, keep_environ: bool = False, warn: Callable[[str], object] | None = None) -> bool:
    """Load setproctitle, before any user code could hide it; ``show`` does so where it was not done.

    ``keep_environ`` leaves ``/proc/PID/environ`` as it is, at the price of shorter titles. Returns whether titles
    can be shown; where they cannot, ``warn`` is told why, once, and that is all. (The supervisor warns; the processes
    below it have the same setproctitle, or none, and are silent.)
    """
    global _set_title, _prepared, _warn
    if not _prepared:
        _prepared = True
        _warn = warn
        if keep_environ:
            os.environ["SPT_NOENV"] = "1"  # read by setproctitle when it first sets a title
        try:
            from setproctitle import setproctitle
        except Exception as error:
            _cannot(error)
        else:
            _set_title = setproctitle
    return _set_title is not None


def show(title: str) -> bool:
    """Give this process a title; returns whether it was set. Never raises."""
    if not prepare() or _set_title is None:
        return False
    try:
        _set_title(title)
    except Exception as error:
        _cannot(error)
    return _set_title is not None


def _cannot(error: Exception) -> None:
    global _set_title
    _set_title = None
    if _warn is not None:
        _warn(f"{type(error).__name__}: {error}")
