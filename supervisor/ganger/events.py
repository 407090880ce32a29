"""Every event: its name, its level, its wording; and the one writer of what a supervisor says.

Events go to stderr, what jobs print goes to stdout. Whoever emits never waits: a line is put into a bounded queue,
and one thread formats and writes. A terminal that was stopped, a pipe that nobody reads or a full disk costs lines
(counted, and told as ``events-dropped`` once there is room again), never a job and never the loop's time.

This file decides nothing: it may not call anything of the supervisor.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, Protocol, TextIO

from ganger.formats import CONTROL

LEVELS: Final = ("debug", "info", "warning", "error")
MOST_LINES: Final = 10_000  # that wait to be written
MOST_CHARS: Final = 4 << 20
LONGEST_VALUE: Final = 1000  # characters of one value that people are shown


class Wording(NamedTuple):
    """How an event is shown: its level, and the pieces of its line. A piece whose data is missing is left out."""

    level: str
    pieces: str = "{job}"


EVENTS: Final[dict[str, Wording]] = {
    # the supervisor
    "supervisor-started": Wording(
        "info",
        "{name}|serves {queues}|with {slots} slots|from {database}|as {supervisor_id}|taking back {released} jobs",
    ),
    "polling-for-jobs": Wording("debug", "{queues}|{free} free"),
    "shutting-down": Wording("info", "{policy}|({reason})|{running} running"),
    "already-shut-down": Wording("info", ""),
    "completed-shutdown": Wording("info", "after {wall_s}|outcomes not stored: {unstored}"),
    "reloading": Wording("info", "the handlers are loaded anew"),
    "reloaded": Wording("info", "jobs that begin now are run by the new code"),
    "slots-changed": Wording("info", "{slots} slots|in place of {was}|({lanes})|{leaving} more until a job has ended"),
    "slots-not-changed": Wording("warning", "{slots} slots as before|{why}"),
    "state-dump": Wording("info", "{job}|attempt {attempt}|on {slot}|pid {pid}|{phase}"),
    "titles-not-shown": Wording("warning", "{error}"),
    "callback-error": Wording("error", "{callback} raised|{error}"),
    "http-started": Wording("info", "{url}|with livez, readyz and metrics"),
    "http-open-to-others": Wording("warning", "{url} is not on the loopback: whoever reaches it may read it"),
    "events-dropped": Wording("warning", "{count} lines|because {why}"),
    # a job's life
    "handling-job": Wording("info", "{job}|attempt {attempt}|on {slot}|pid {pid}"),
    "job-finished": Wording("info", "{job}|attempt {attempt}|in {wall_s}|cpu {cpu_s}|memory {max_rss}"),
    "job-interrupted": Wording("info", "{job}|attempt {attempt}|after {wall_s}|({reason})|and is back in its queue"),
    "job-released": Wording("info", "{job}|({reason})"),
    "job-cancelled": Wording("info", "{job}|attempt {attempt}|({reason})"),
    "job-output": Wording("info", "{job}|{line}"),
    "job-stalled": Wording(
        "warning", "{job}|attempt {attempt}|on {slot}|has neither computed nor got on for {seconds}"
    ),
    # a job's failures
    "handle-job-exception": Wording("error", "{job}|attempt {attempt}|{error}"),
    "handle-job-exception-with-interrupt": Wording("warning", "{job}|attempt {attempt}|after {wall_s}|{error}"),
    "job-timed-out": Wording("error", "{job}|attempt {attempt}|after {wall_s}|limit {timeout}"),
    "job-out-of-memory": Wording("error", "{job}|attempt {attempt}|held {held}|limit {memory}"),
    "job-crashed": Wording("error", "{job}|attempt {attempt}|{term_signal}|exit code {exit_code}|goes {goes}"),
    "job-lost": Wording("warning", "{job}|attempt {attempt}|of supervisor {from_supervisor}|{how}"),
    "retrying": Wording(
        "info", "{job}|attempt {attempt} failed|again in {retry_in}|at {retry_at}|retries left {retries_left}"
    ),
    "not-retrying": Wording("warning", "{job}|attempt {attempt} was the last|retries left {retries_left}"),
    "retry-strategy-error": Wording("error", "{job}|{error}"),
    "failed-attempt-error": Wording("error", "{job}|{error}"),
    "failed-job-error": Wording("error", "{job}|{error}"),
    # processes
    "child-started": Wording("debug", "{slot}|pid {pid}"),
    "child-exited": Wording("debug", "{slot}|pid {pid}|{term_signal}|exit code {exit_code}"),
    "ladder-step": Wording("warning", "{job}|attempt {attempt}|{step}|on {slot}|({reason})"),
    "leftovers-killed": Wording("warning", "{job}|left {count} processes|on {slot}"),
    "child-unkillable": Wording("error", "{job}|{slot}|survives SIGKILL: {pids}"),
    "child-garbage": Wording("error", "{job}|{slot}|sends what is no message and is replaced"),
    "template-threads": Wording("warning", "the handlers' import left threads running, which no child has: {threads}"),
    "boot-failed": Wording("error", "{slot}|{error}"),
    # the database
    "database-lost": Wording("error", "{error}"),
    "database-back": Wording("info", "after {seconds}"),
    "notifications-off": Wording(
        "warning", "a pooler stands before the database, so new jobs are found by polling|every {poll_interval} s"
    ),
    "archive-pruned": Wording("info", "jobs deleted whose retention is over: {jobs}"),
    "job-worker-error": Wording("error", "{error}"),
    "lease-lost": Wording("error", "{why}"),
    "outcome-stored": Wording("info", "{job}|attempt {attempt}|{status}"),
    "outcome-refused": Wording("warning", "{job}|attempt {attempt}|its row was no longer ours"),
}
_UNKNOWN: Final = Wording("info")

# Keys that people are not shown unless a wording asks for them.
_FOR_MACHINES: Final = frozenset({"supervisor_id", "run_id", "queue", "job_id", "job_type", "slot", "pid", "stack"})
_SHOWN_IF_ANY: Final = frozenset({"released", "unstored", "leaving"})
_SECONDS: Final = frozenset({"wall_s", "cpu_s", "timeout", "grace", "retry_in", "seconds"})
_SIZES: Final = frozenset({"max_rss", "memory", "held"})

_COLOURS: Final = {
    "debug": "2",
    "info": "0",
    "warning": "33",
    "error": "31",
    "job-finished": "32",
    "handling-job": "36",
}
_CONTROL_BUT_COLOUR: Final = {code: shown for code, shown in CONTROL.items() if code != 27}


class _Entry(NamedTuple):
    """One thing to be said. ``name`` is empty for a line that a job printed."""

    ts: float
    name: str
    level: str
    data: Mapping[str, Any]


class Events:
    """Says what happens, to people (``format`` "console") or to machines ("json").

    ``level`` is the least level shown. ``log``, if given, gets ``(name, data)`` of each event in place of stderr, in a
    thread of its own; where it raises, the event and a ``callback-error`` go to stderr. ``out`` and ``err`` are the
    streams for data and events (default: sys.stdout and sys.stderr). ``heard`` is told the name of each event, shown or
    not, by whoever emits it: it must be quick.
    """

    def __init__(
        self,
        format: str = "console",
        level: str = "info",
        *,
        out: TextIO | None = None,
        err: TextIO | None = None,
        log: Callable[[str, Mapping[str, Any]], object] | None = None,
        heard: Callable[[str], object] | None = None,
    ) -> None:
        self._heard = heard
        self._least = LEVELS.index(level)
        self._out = _Stream(out if out is not None else sys.stdout)
        self._err = _Stream(err if err is not None else sys.stderr)
        self._render: _Renderer = _json_line if format == "json" else _console_line
        self._lines = _Queue(self._write, "ganger-events")
        self._log = log
        self._calls = _Queue(self._call, "ganger-log") if log else None

    def emit(self, name: str, /, **data: Any) -> None:
        """Say that ``name`` happened. Never waits, never raises."""
        if self._heard is not None:
            self._heard(name)
        level = EVENTS.get(name, _UNKNOWN).level
        if LEVELS.index(level) >= self._least:
            (self._calls or self._lines).put(_Entry(time.time(), name, level, data))

    def output(self, job_id: object, job_type: str, line: str | bytes) -> None:
        """Pass on one line that a job printed, without its end."""
        if isinstance(line, bytes):
            line = line.decode("utf-8", "backslashreplace")
        data = {"job_id": job_id, "job_type": job_type, "line": line}
        self._lines.put(_Entry(time.time(), "", "info", data), size=len(line))

    def flush(self, timeout: float = 1.0) -> bool:
        """Wait until what was said so far is written, at most ``timeout`` seconds. Not for the loop's thread."""
        until = time.monotonic() + timeout
        return all(queue.flush(until - time.monotonic()) for queue in filter(None, (self._calls, self._lines)))

    def close(self, timeout: float = 5.0) -> bool:
        """Write what waits and stop; what is not written after ``timeout`` seconds is given up (False then)."""
        until = time.monotonic() + timeout
        complete = True
        for queue in filter(None, (self._calls, self._lines)):  # in this order: the first may write to the second
            complete = queue.close(until - time.monotonic()) and complete
        return complete

    # In the writer's thread ------------------------------------------------------------------------------------------

    def _write(self, entries: Iterable[_Entry]) -> None:
        for other in (self._out, self._err):
            other.flush()  # what the application itself printed before stands before it
        stream, lines = self._err, list[str]()
        for entry in entries:
            wanted = self._err if entry.name else self._out
            if wanted is not stream:
                self._put(stream, lines)
                stream, lines = wanted, []
            lines.append(self._render(entry, wanted.colour) + "\n")
        self._put(stream, lines)

    def _put(self, stream: _Stream, lines: list[str]) -> None:
        lost = stream.write("".join(lines))
        if lost:
            self._lines.put(_dropped(lost, "they could not be written"))

    def _call(self, entries: Iterable[_Entry]) -> None:
        assert self._log is not None
        for entry in entries:
            try:
                self._log(entry.name, dict(entry.data))
            except Exception as error:
                told = {"callback": "log", "error": {"type": type(error).__name__, "message": str(error)}}
                self._lines.put(entry)
                self._lines.put(_Entry(time.time(), "callback-error", "error", told))


# ---------------------------------------------------------------------------------------------------------------------
# One line of text for one entry


class _Renderer(Protocol):
    def __call__(self, entry: _Entry, colour: bool, /) -> str: ...


def _json_line(entry: _Entry, colour: bool) -> str:
    head = {
        "ts": _iso(datetime.fromtimestamp(entry.ts, UTC)),
        "event": entry.name or "job-output",
        "level": entry.level,
    }
    data = {key: _plain(value) for key, value in entry.data.items() if value is not None}
    return json.dumps({**head, **data, **head}, separators=(",", ":"))


def _plain(value: Any) -> Any:
    """Make of any value one that JSON can hold."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)  # no NaN and no infinity in JSON
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, datetime):
        return _iso(value)
    return str(value)


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _console_line(entry: _Entry, colour: bool) -> str:
    if not entry.name:
        printed = str(entry.data["line"]).translate(_CONTROL_BUT_COLOUR)
        return f"{_paint(short_id(entry.data['job_id']), '2', colour)}  {printed}"
    wording = EVENTS.get(entry.name, _UNKNOWN)
    clock = time.strftime("%H:%M:%S", time.localtime(entry.ts)) + f".{int(entry.ts % 1 * 1000):03d}"
    shown = _COLOURS.get(entry.name, _COLOURS[entry.level])
    head = f"{_paint(clock, '2', colour)} {_paint(f'{entry.name:<20}', shown, colour)}"
    return f"{head} {_facts(wording, entry.data)}".rstrip() + _beneath(entry.data)


def _facts(wording: Wording, data: Mapping[str, Any]) -> str:
    values = {
        key: _shown(key, value)
        for key, value in data.items()
        if value is not None and value != "" and not (key in _SHOWN_IF_ANY and not value)
    }
    if "job_type" in data or "job_id" in data:
        values["job"] = f"{values.get('job_type', '')} {short_id(data.get('job_id', ''))}".strip()
    used = set(_FOR_MACHINES)
    words = []
    for piece in wording.pieces.split("|"):
        keys = [key.partition("}")[0] for key in piece.split("{")[1:]]
        if all(key in values for key in keys):
            words.append(piece.format_map(values))
        used.update(keys)
    words += [f"{key}={value}" for key, value in values.items() if key not in used and key != "job"]
    return " ".join(word for word in words if word)


def _shown(key: str, value: Any) -> str:
    """One value as people read it, without control characters."""
    if key == "error":
        text = _error(value)[0]
    elif key == "term_signal" and value in set(signal.Signals):
        text = f"signal {value} ({signal.Signals(value).name})"
    elif key in _SECONDS and isinstance(value, int | float):
        text = f"{value:.2f} s" if value < 60 else f"{value:.0f} s"
    elif key in _SIZES and isinstance(value, int | float):
        text = f"{value / 1048576:.{0 if value >= 10 << 20 else 1}f} MiB"
    elif isinstance(value, datetime):
        text = value.astimezone().strftime("%H:%M:%S")
    elif isinstance(value, Mapping):
        text = ", ".join(f"{name}={item}" for name, item in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        text = ", ".join(map(str, value))
    elif isinstance(value, float):
        text = f"{value:.3f}"
    else:
        text = str(value)
    return (text if len(text) <= LONGEST_VALUE else text[:LONGEST_VALUE] + " …").translate(CONTROL)


def _error(value: Any) -> tuple[str, str]:
    """Split an error into its first line and what follows: it is text, or has type, message and traceback."""
    if isinstance(value, Mapping):
        kind, message = str(value.get("type", "error")), str(value.get("message", ""))
        traceback = str(value.get("traceback") or "")
        first, _, rest = message.partition("\n")
        return (f"{kind}: {first}" if first else kind), traceback or rest
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}".partition("\n")[0], ""
    text = str(value).strip()
    if text.startswith("Traceback"):  # which says at its end what is wrong
        return text.rpartition("\n")[2], text
    first, _, rest = text.partition("\n")
    return first, rest


def _beneath(data: Mapping[str, Any]) -> str:
    rest = _error(data["error"])[1] if data.get("error") else str(data.get("stack") or "")
    return "".join(f"\n    {line.translate(CONTROL)}" for line in rest.rstrip().split("\n")) if rest.strip() else ""


def _paint(text: str, code: str, colour: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if colour and code != "0" else text


def short_id(job_id: object) -> str:
    """A job id as people see it: its last 8 hex digits (the first ones of a UUIDv7 are its time)."""
    return str(job_id)[-8:]


# ---------------------------------------------------------------------------------------------------------------------
# A bounded queue with one thread at its end, and a stream that may fail


class _Queue:
    """Entries that wait for one thread. ``put`` never waits; what finds no room is dropped and counted."""

    def __init__(self, sink: Callable[[Iterable[_Entry]], None], name: str) -> None:
        self._sink = sink
        self._waiting: deque[_Entry] = deque()
        self._chars = 0
        self._dropped = 0
        self._closed = False
        self._busy = False  # the thread has taken entries and is not done with them
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, entry: _Entry, size: int = 0) -> None:
        with self._changed:
            if self._closed or len(self._waiting) >= MOST_LINES or self._chars + size > MOST_CHARS:
                self._dropped += 1
                return
            self._chars += size
            self._waiting.append(entry)
            if len(self._waiting) == 1:
                self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._busy, max(0.0, timeout))

    def close(self, timeout: float) -> bool:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(max(0.0, timeout))
        return not self._thread.is_alive()

    def _run(self) -> None:
        while batch := self._take():
            self._sink(batch)

    def _take(self) -> list[_Entry]:
        """Wait for entries and take them all; an empty list once the queue is closed and nothing is left."""
        with self._changed:
            self._busy = False
            self._changed.notify_all()  # whoever flushes
            while not self._waiting and not self._closed:
                self._changed.wait()
            self._busy = True
            batch = list(self._waiting)
            self._waiting.clear()
            self._chars = 0
            if self._dropped:
                batch.append(_dropped(self._dropped, "nobody read them in time"))
                self._dropped = 0
            return batch


def _dropped(count: int, why: str) -> _Entry:
    return _Entry(time.time(), "events-dropped", EVENTS["events-dropped"].level, {"count": count, "why": why})


class _Stream:
    """A stream to write whole lines to. What it cannot take (gone, full, closed, never there) is lost, no more."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self.colour = _wants_colour(stream)
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        self._lost = 0  # lines that it could not take
        self._torn = False  # what it took last ends in the middle of a line

    def write(self, text: str) -> int:
        """Write lines. Returns how many were lost before, when it takes some again (a disk was full, say)."""
        if not text or self._stream is None:
            return 0
        data = text.encode(self._encoding, "backslashreplace")  # locale C has no é, and nothing has a lone surrogate
        start = b"\n" if self._torn else b""
        written = self._take(start + data)
        if written:
            self._torn = (start + data)[written - 1] != ord("\n")
        self._lost += data.count(b"\n", max(0, written - len(start)))
        lost = 0
        if written == len(start + data):
            lost, self._lost = self._lost, 0
        return lost

    def _take(self, data: bytes) -> int:
        """Write as much as can be written; so many bytes."""
        try:
            fd = self._descriptor()
            if fd is not None:
                return _write_all(fd, data)
            if self._stream is not None:
                self._stream.write(data.decode(self._encoding))
            return len(data)
        except (OSError, ValueError):
            return 0

    def flush(self) -> None:
        try:
            if self._stream is not None:
                self._stream.flush()
        except (OSError, ValueError):
            pass

    def _descriptor(self) -> int | None:
        try:
            return self._stream.fileno() if self._stream else None
        except OSError:  # io.UnsupportedOperation: it lives in memory
            return None


def _write_all(fd: int, data: bytes) -> int:
    """Write everything, or what can be written: returns the number of bytes."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:  # somebody who shares the terminal made it non-blocking
            watch = select.poll()
            watch.register(fd, select.POLLOUT)
            watch.poll()
        except OSError:
            break
    return len(data) - len(rest)


def _wants_colour(stream: TextIO | None) -> bool:
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False
