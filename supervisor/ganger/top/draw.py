"""The lines of ``ganger top``: a view, cut to a screen of so many columns and rows.

Only rows that are visible are made. Columns have fixed widths, but for the one that takes what is left; what does not
fit is cut, with a mark, and a narrow screen has fewer columns. Nothing is read here, and no time is asked.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.text import Text

from ganger.formats import age, lasting, size
from ganger.top.model import Ended, Process, Queue, Slot, Supervisor, View

WIDE: Final = 120  # columns from which on there is room for more
CUT: Final = "…"
ERROR_LINES: Final = 3
KEYS: Final = "q quit  ↑↓ select  enter tree  s stacks  c cancel  K kill  r retry  p pause"
HEAD: Final = "bold reverse"
PHASES: Final = {"running": "green", "draining": "yellow", "terminating": "red"}
STATUSES: Final = {"success": "green", "failure": "red", "cancelled": "yellow"}


@dataclass(frozen=True, slots=True)
class Chosen:
    """A row that a key is about: a run by its short id and attempt, or an ended job by its id."""

    short_id: str = ""
    attempt: int = 0
    job_id: UUID | None = None

    @staticmethod
    def of(row: Slot | Ended) -> Chosen:
        return Chosen(row.short_id, row.attempt) if isinstance(row, Slot) else Chosen(job_id=row.job_id)


@dataclass(frozen=True, slots=True)
class Screen:
    """What is drawn beside the view. ``footer``: what is asked or told, in place of the keys; ``stacks``: where the
    chosen run was when it was asked, in place of the queues."""

    width: int
    height: int
    clock: str
    chosen: Chosen | None = None
    tree: bool = False
    footer: str = ""
    stacks: str = ""


class Lines:
    """Lines that fit already, for rich to show: it need not look where to wrap them, which took half of its time."""

    def __init__(self, lines: Sequence[Text]) -> None:
        self.lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for number, line in enumerate(self.lines, 1):
            yield from line.render(console, "\n" if number < len(self.lines) else "")


class Column(NamedTuple):
    head: str
    width: int  # 0: what is left
    cell: Callable[[Any], object]
    right: bool = False
    at_least: int = 0  # cells that a screen must have for it
    style: Callable[[Any], str] = lambda row: ""


def selectable(view: View) -> list[Slot | Ended]:
    """The rows that can be chosen, in their order on the screen."""
    return [*view.slots, *view.ended]


def draw(view: View, screen: Screen) -> list[Text]:
    """``screen.height`` lines at most."""
    chosen = next((row for row in selectable(view) if Chosen.of(row) == screen.chosen), None)
    tree = _tree(chosen) if screen.tree and isinstance(chosen, Slot) else None
    if screen.stacks and isinstance(chosen, Slot):
        tree = _stacks(chosen, screen.stacks)
    sections = [
        _Section(_SUPERVISORS, view.supervisors, 2),
        _Section(_SLOTS, view.slots, 3),
        tree or _Section(_QUEUES, view.queues, 2),
        _Section(_ENDED, view.ended, 3),
    ]
    lines = [_title(view, screen), *_error(view, screen.width)]
    room = screen.height - 1 - len(lines)
    shares = _share([len(section.rows) for section in sections], [s.least for s in sections], room)
    for section, share in zip(sections, shares, strict=True):
        lines += section.draw(share, screen, chosen)
    lines = lines[: screen.height - 1]
    return [*lines, _cut(Text(screen.footer or KEYS, "bold yellow" if screen.footer else "dim"), screen.width)]


def _share(counts: Sequence[int], least: Sequence[int], height: int) -> list[int]:
    """How many rows each section shows: its least first, then the runs, then the others. A section without rows takes
    no line, one with rows takes a line for its head."""
    shares = [0] * len(counts)
    for number in (1, 3, 2, 0):  # where there is no room at all, runs stand above the rest
        head = 1 if counts[number] else 0
        shares[number] = max(0, min(counts[number], least[number], height - head))
        height -= shares[number] + (head if shares[number] else 0)
    for number in (1, 3, 2, 0):
        more = max(0, min(counts[number] - shares[number], height)) if shares[number] else 0
        shares[number] += more
        height -= more
    return shares


@dataclass(frozen=True, slots=True)
class _Section:
    columns: Sequence[Column]
    rows: Sequence[Any]
    least: int

    def draw(self, share: int, screen: Screen, chosen: object) -> list[Text]:
        """The head and ``share`` rows: the first ones, or those around the chosen one."""
        if not share:
            return []
        columns = [column for column in self.columns if screen.width >= column.at_least]
        fixed = sum(column.width for column in columns) + len(columns) - 1
        widths = [column.width or max(screen.width - fixed, 4) for column in columns]
        first = 0
        if chosen in self.rows:
            first = min(max(0, list(self.rows).index(chosen) - share // 2), len(self.rows) - share)
        hidden = len(self.rows) - share
        lines = [_head(columns, widths, screen.width, f" {hidden} more" if hidden else "")]
        for row in self.rows[first : first + share]:
            lines.append(_row(columns, widths, row, screen.width, marked=row is chosen))
        return lines


def _head(columns: Sequence[Column], widths: Sequence[int], width: int, note: str) -> Text:
    words = (_fit(column.head, cells, column.right, mark="") for column, cells in zip(columns, widths, strict=True))
    text = set_cell_size(" ".join(words), width)
    if note:
        kept = text[: -len(note)]
        if text[len(kept)] != " ":  # of a word that is hidden in part, nothing stays
            kept = kept[: kept.rfind(" ") + 1].ljust(len(kept))
        text = kept + note
    return Text(text, HEAD)


def _row(columns: Sequence[Column], widths: Sequence[int], row: Any, width: int, *, marked: bool) -> Text:
    text, spans = "", []
    for column, cells in zip(columns, widths, strict=True):
        cell = _fit(str(column.cell(row)), cells, column.right)
        style = column.style(row)
        if style and not marked:
            spans.append((style, len(text), len(text) + len(cell)))
        text += cell + " "
    made = Text(set_cell_size(text[:-1], width), "reverse" if marked else "")
    for style, start, end in spans:
        made.stylize(style, start, end)
    return made


def _fit(text: str, width: int, right: bool = False, mark: str = CUT) -> str:
    """Exactly ``width`` cells of a text, whatever characters it has."""
    text = _printable(text)
    short = width - cell_len(text)
    if short < 0:
        return set_cell_size(text, width - len(mark)) + mark
    return " " * short + text if right else text + " " * short


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "?" for character in text)


def _cut(text: Text, width: int) -> Text:
    text.truncate(width, overflow="ellipsis")
    return text


# ---------------------------------------------------------------------------------------------------------------------
# The title


def _title(view: View, screen: Screen) -> Text:
    text = Text("ganger top ", "bold")
    slots = len(view.slots) + view.idle
    text.append(f"{screen.clock} on {view.host}  {len(view.slots)}/{slots} slots busy", "")
    if any(queue.paused and not queue.name for queue in view.queues):
        text.append("  all queues are paused", "bold yellow")
    return _cut(text, screen.width)


def _error(view: View, width: int) -> list[Text]:
    """Why the database tells nothing: the reason often stands at the end of the sentence."""
    if view.error is None:
        return []
    lines = textwrap.wrap(_printable(f"database: {view.error}"), width, max_lines=ERROR_LINES, placeholder=CUT)
    return [_cut(Text(line, "bold red"), width) for line in lines]


# ---------------------------------------------------------------------------------------------------------------------
# Supervisors

_LATE: Final = 0.25  # of a lease without a beat: worth a colour


def _beat(one: Supervisor) -> str:
    return "" if one.beat_age is None else age(one.beat_age)


def _beat_style(one: Supervisor) -> str:
    late = one.beat_age is not None and one.lease is not None and one.beat_age > _LATE * one.lease
    return "bold red" if late else ""


_SUPERVISORS: Final = (
    Column("SUPERVISOR", 24, lambda one: one.name),
    Column("HOST", 16, lambda one: one.host, at_least=WIDE),
    Column("PID", 8, lambda one: one.pid, right=True, at_least=WIDE),
    Column("PHASE", 11, lambda one: one.phase, style=lambda one: PHASES.get(one.phase, "")),
    Column("BUSY", 7, lambda one: f"{one.running}/{one.slots or '?'}", right=True),
    Column("BEAT", 5, _beat, right=True, style=_beat_style),
    Column("SLOTS", 0, lambda one: " ".join(f"{name}={slots}" for name, slots in one.lanes)),
)


# ---------------------------------------------------------------------------------------------------------------------
# Runs

PLACE: Final = 12  # cells for the name of a slot


def _place(slot: Slot) -> str:
    """Of a lane with a long name the number is seen all the same."""
    if slot.slot is None:
        return f"@{slot.host}"
    lane, stroke, number = slot.slot.rpartition("/")
    room = PLACE - len(stroke) - len(number)
    return slot.slot if cell_len(lane) <= room else f"{set_cell_size(lane, room - 1)}{CUT}{stroke}{number}"


def _limit(slot: Slot) -> str:
    return age(slot.age) if slot.limit is None else f"{age(slot.age)}/{age(slot.limit)}"


def _limit_style(slot: Slot) -> str:
    share = slot.age / slot.limit if slot.limit else 0.0
    return "bold red" if share > 1 else "yellow" if share > 0.9 else ""


def _bar(slot: Slot, width: int) -> str:
    """The progress as a bar and a number."""
    if slot.progress is None:
        return ""
    filled = round(min(slot.progress, 100) * width / 100)
    return f"{'█' * filled}{'░' * (width - filled)}{slot.progress:>4}%"


def _state(slot: Slot) -> str:
    word = slot.cancel or ("stalled" if slot.stalled else "")
    state = f"{slot.job_type} ({word})" if word else slot.job_type
    return f"{state}: {slot.note}" if slot.note else state


_SLOTS: Final = (
    Column("SLOT", PLACE, _place),
    Column("JOB TYPE", 0, _state, style=lambda slot: "yellow" if slot.cancel or slot.stalled else "bold"),
    Column("JOB", 8, lambda slot: slot.short_id),
    Column("TRY", 3, lambda slot: slot.attempt, right=True, at_least=76),
    Column("AGE/LIMIT", 10, _limit, right=True, style=_limit_style),
    Column("DONE", 9, lambda slot: _bar(slot, 4), style=lambda slot: "cyan", at_least=70),
    Column("LEFT", 5, lambda slot: "" if slot.left is None else age(slot.left), right=True, at_least=WIDE),
    Column("CPU%", 5, lambda slot: "" if slot.cpu is None else f"{slot.cpu:.0f}", right=True),
    Column("MEM", 5, lambda slot: size(slot.rss), right=True, at_least=50),
    Column("PR", 3, lambda slot: len(slot.processes) or "", right=True, at_least=80),
    Column("QUEUE", 14, lambda slot: slot.queue or "", at_least=WIDE),
    Column("SUPERVISOR", 24, lambda slot: slot.supervisor, at_least=WIDE),
)


def _tree(slot: Slot) -> _Section:
    """The processes of a run, below what is known of its job."""
    columns = (
        Column("PID", 7, lambda one: one.pid, right=True),
        Column("CPU%", 5, lambda one: "" if one.cpu is None else f"{one.cpu:.0f}", right=True),
        Column("MEM", 5, lambda one: size(one.rss), right=True),
        Column(_known(slot), 0, _indented),
    )
    return _Section(columns, slot.processes or (Process(0, 0, "not on this host", None, 0),), 6)


_FRAME: Final = re.compile(r'^ *File "(.*)", line (\d+) in (.*)$')


def _stacks(slot: Slot, stacks: str) -> _Section:
    """Functions and lines first: a narrow screen has no room for long paths before them."""
    lines = [_FRAME.sub(r"  \3:\2  \1", line) for line in stacks.splitlines() if line.strip()]
    return _Section((Column(f"STACKS of {slot.job_id or slot.short_id}", 0, lambda line: line),), lines, 10)


def _known(slot: Slot) -> str:
    """The head of the processes: whose they are, and of its progress what a narrow screen has no column for."""
    left = "" if slot.left is None else f"{age(slot.left)} left"
    return ", ".join(word for word in (f"PROCESSES of {slot.job_id or slot.short_id}", left, slot.note) if word)


def _indented(process: Process) -> str:
    return "  " * process.depth + process.name


# ---------------------------------------------------------------------------------------------------------------------
# Queues, and what ended


def _queue_name(queue: Queue) -> str:
    return (queue.name or "all queues") + (" (paused)" if queue.paused else "")


_QUEUES: Final = (
    Column("QUEUE", 0, _queue_name, style=lambda queue: "bold yellow" if queue.paused else ""),
    Column("READY", 9, lambda queue: queue.ready, right=True),
    Column("SCHEDULED", 9, lambda queue: queue.scheduled, right=True, at_least=60),
    Column("RUNNING", 9, lambda queue: queue.running, right=True),
    Column("OLDEST", 7, lambda queue: "" if queue.oldest is None else age(queue.oldest), right=True),
)


HOW: Final = 20  # cells for how a job ended


def _how(ended: Ended) -> str:
    """Of a reason that is long the status can be told."""
    if not ended.reason or ended.reason == ended.status:
        return ended.status
    both = f"{ended.status} {ended.reason}"
    return both if len(both) <= HOW else ended.reason


_ENDED: Final = (
    Column("ENDED", 9, lambda ended: f"{age(ended.ago)} ago", right=True),
    Column("JOB TYPE", 0, lambda ended: ended.job_type),
    Column("JOB", 8, lambda ended: ended.job_id.hex[-8:]),
    Column("TRY", 3, lambda ended: ended.attempts, right=True, at_least=76),
    Column("HOW", HOW, _how, style=lambda ended: STATUSES.get(ended.status, "")),
    Column("WALL", 6, lambda ended: lasting(ended.wall), right=True, at_least=60),
    Column("MEM", 5, lambda ended: size(ended.rss), right=True, at_least=70),
    Column("QUEUE", 14, lambda ended: ended.queue, at_least=WIDE),
    Column("HOST", 16, lambda ended: ended.host or "", at_least=WIDE),
)
