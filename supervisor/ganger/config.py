"""What a supervisor can be told: one frozen dataclass, one line per setting, checked once.

The same lines make the options of ``ganger run`` and their help, the ``GANGER_*`` variables and the keys of
``ganger.toml``. Inside there are only seconds and bytes; "10m" and "512MiB" end here. Every ``ConfigError`` is a
sentence that names the setting, what is wrong with it and what to do.

This file may not open a connection, start a process or import a handler.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import Field, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from ganger_child import units
from ganger_child.units import LONGEST
from ganger_child.words import message, shown

SHUTDOWNS: Final = ("wait", "finish", "interrupt", "terminate")
LARGEST: Final = 1 << 30  # bytes that a payload or a result may have
MOST_SLOTS: Final = 4096
LOOPBACK: Final = "127.0.0.1"
LARGEST_FILE: Final = 1 << 20  # bytes of a file with settings

_FLAGS: Final = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}
_CGROUPS: Final = Path("/sys/fs/cgroup")
_MINE: Final = Path("/proc/self/cgroup")
_ADDRESS: Final = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,253}):)?(?P<port>[0-9]{1,5})", re.ASCII)
_SCHEMA: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # what ganger.sql takes too
_REFERENCE: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


class ConfigError(ValueError):
    """A setting is wrong; the message is a sentence that names it."""


class LaneConfig(NamedTuple):
    """Slots that serve the same queues, in this order. Its slots are named ``<name>/1`` … ``<name>/<slots>``."""

    name: str
    queues: tuple[str, ...]
    slots: int


# ---------------------------------------------------------------------------------------------------------------------
# One reader per kind of value: (value, label) -> the value in seconds, bytes, … or ConfigError


def seconds(value: object, label: str, *, low: float = 0.0, above: bool = False) -> float:
    """Read a duration: a number of seconds, or text such as "90", "90s", "10m", "1h"."""
    try:
        number = units.seconds(value, label)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if number < low or (above and number == low):
        least = f"more than {low:g}" if above else f"at least {low:g}"
        raise ConfigError(f"{label} is {shown(value)}: give {least} and at most {LONGEST:.0f} seconds.")
    return number


def size(value: object, label: str, *, high: int | None = None) -> int:
    """Read a size: a number of bytes, or text such as "512MiB" or "2GiB"."""
    try:
        number = units.size(value, label)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if number < 1 or (high is not None and number > high):
        raise ConfigError(
            f"{label} is {shown(value)}: give at least 1 byte{'' if high is None else f' and at most {high}'}."
        )
    return number


def whole(value: object, label: str, *, low: int, high: int) -> int:
    """Read a whole number from ``low`` to ``high``."""
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,9}\s*", value, re.ASCII):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{label} is {shown(value)}: give a whole number from {low} to {high}.")
    return value


def flag(value: object, label: str) -> bool:
    """Read a yes or no."""
    if isinstance(value, str):
        value = _FLAGS.get(value.strip().lower(), value)
    if not isinstance(value, bool):
        raise ConfigError(f"{label} is {shown(value)}: give true or false.")
    return value


def word(value: object, label: str, *, words: Sequence[str]) -> str:
    """Read one of several words."""
    if not isinstance(value, str) or value not in words:
        raise ConfigError(f"{label} is {shown(value)}: give one of {', '.join(words)}.{_suggestion(value, words)}")
    return value


def text(value: object, label: str, *, longest: int = 200) -> str:
    """Read a name: not empty, printable, of a bounded length, without a space at its ends."""
    if not isinstance(value, str):
        raise ConfigError(f"{label} is {shown(value)}: give text.")
    if not value.strip() or value != value.strip():
        raise ConfigError(f"{label} is {shown(value)}: give a name that is not empty and has no space at its ends.")
    if not value.isprintable():  # control characters, NUL and lone surrogates
        raise ConfigError(
            f"{label} is {shown(value)}, which holds a control character or another unprintable one: leave it out."
        )
    if len(value.encode()) > longest:
        raise ConfigError(f"{label} has {len(value.encode())} bytes: give at most {longest}.")
    return value


def reference(value: object, label: str) -> str:
    """Read the name of something in a module: ``package.module:name``."""
    value = text(value, label)
    if not _REFERENCE.fullmatch(value):
        raise ConfigError(f"{label} is {shown(value)}: give a module and a name in it, as in myapp.jobs:handlers.")
    return value


def database_url(value: object, label: str) -> str:
    """Read a PostgreSQL URL or libpq's ``key=value`` words. What is wrong is told without showing the value."""
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{label} is empty: give a PostgreSQL URL, or leave it out.")
    scheme, separator, _ = value.partition("://")
    if separator and "=" not in scheme and scheme not in ("postgres", "postgresql"):
        raise ConfigError(f"{label} begins with {scheme}://: give a URL that begins with postgresql://.")
    if "\0" in value or not (separator or "=" in value):
        raise ConfigError(f"{label} is neither a URL (postgresql://…) nor libpq's words (host=… dbname=…).")
    return value


def address(value: object, label: str) -> str:
    """Read a place to listen at: host:port, or a port of the loopback; the result is host:port."""
    told = str(value) if type(value) is int and 0 <= value <= 65535 else value
    match = _ADDRESS.fullmatch(told.strip()) if isinstance(told, str) else None
    if match is None or int(match["port"]) > 65535:
        raise ConfigError(f"{label} is {shown(value)}: give a port, or a host and a port, as in 127.0.0.1:9464.")
    return f"{match['host'] or LOOPBACK}:{int(match['port'])}"


def host_and_port(address: str) -> tuple[str, int]:
    """Take apart what ``address`` has read."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def schema_name(value: object, label: str) -> str:
    """Read the name of a schema."""
    value = text(value, label, longest=63)
    if not _SCHEMA.fullmatch(value):
        raise ConfigError(f"{label} is {shown(value)}: give letters, digits and underscores, and no digit first.")
    if value.lower().startswith("pg_"):
        raise ConfigError(f"{label} is {shown(value)}: PostgreSQL keeps names with pg_ at the front; give another.")
    return value


def queue_list(value: object, label: str) -> str:
    """Read the queues, as "a,b", "a=4,b=2", a list or a mapping; the result is text in one of the first two forms."""
    if isinstance(value, Mapping):
        value = ",".join(f"{_queue_name(name, label)}={_slots(name, slots, label)}" for name, slots in value.items())
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        value = ",".join(_queue_name(name, label) for name in value)
    if not isinstance(value, str):
        raise ConfigError(f"{label} is {shown(value)}: give names such as a,b, or names with slots such as a=4,b=2.")
    return ",".join(f"{name}={slots}" if slots else name for name, slots in _parse_queues(value, label))


def _parse_queues(value: str, label: str) -> list[tuple[str, int | None]]:
    parsed: list[tuple[str, int | None]] = []
    for part in value.split(","):
        name, equals, slots = part.partition("=")
        name = _queue_name(name.strip(), label)
        parsed.append((name, _slots(name, slots, label) if equals else None))
    names = [name for name, _ in parsed]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ConfigError(f"{label} names the queue {shown(min(twice))} twice: name each queue once.")
    if len({count is None for _, count in parsed}) > 1:
        raise ConfigError(f"{label} is {shown(value)}: give every queue its slots (a=4,b=2), or none of them (a,b).")
    return parsed


def _queue_name(value: object, label: str) -> str:
    name = text(value, f"a queue in {label}", longest=2000)
    if "," in name or "=" in name:
        raise ConfigError(f"a queue in {label} is {shown(name)}: here a name holds neither a comma nor an equals sign.")
    return name


def _slots(name: str, value: object, label: str) -> int:
    return whole(value, f"the number of slots of queue {shown(name)} in {label}", low=1, high=MOST_SLOTS)


def _callback(value: object, label: str) -> Callable[..., Any]:
    if not callable(value):
        raise ConfigError(f"{label} is {shown(value)}: give a function.")
    return value


def _suggestion(value: object, words: Iterable[str]) -> str:
    import difflib  # 10 ms that only a mistake costs

    close = difflib.get_close_matches(value[:50], list(words), n=1) if isinstance(value, str) else []
    return f" Did you mean {close[0]}?" if close else ""


# ---------------------------------------------------------------------------------------------------------------------
# The settings


def _setting(default: Any, read: Callable[..., Any], help: str, *, short: str = "", **bounds: Any) -> Any:
    """One setting: its default, the reader of its values, its help, a short flag, and the bounds for the reader."""
    help = help.format(words=", ".join(bounds.get("words", ())))
    metadata = {"read": read, "bounds": bounds, "help": help, "short": short}
    return field(default=default, repr=read is not database_url, metadata=metadata)  # which may hold a password


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything a supervisor can be told. Durations are seconds, sizes bytes; text such as "10m" or "512MiB" is read.

    Raises ConfigError. ``None`` is "no limit" or "as said in the help".
    """

    target: str = field(metadata={"read": reference, "bounds": {}, "help": "The handlers, as in myapp.jobs:handlers."})
    queues: str = _setting(
        "default",
        queue_list,
        "Queues: a,b served in that order by shared slots, or a=4,b=2 with slots of their own.",
        short="-q",
    )
    concurrency: int | None = _setting(
        None, whole, "Shared slots (by default one per CPU this process may use).", short="-c", low=1, high=MOST_SLOTS
    )
    name: str | None = _setting(None, text, "Name of this supervisor in titles and status (by default host:pid).")
    poll_interval: float = _setting(1.0, seconds, "Time between two polls, give or take 10 percent.", low=0.01)
    lease: float = _setting(120.0, seconds, "How long the jobs of a silent supervisor stay its own.", low=2.0)
    timeout: float | None = _setting(None, seconds, "Time limit of a job that has none of its own.", above=True)
    grace: float = _setting(5.0, seconds, "Time between asking a job to stop and making it.")
    memory: int | None = _setting(None, size, "Memory limit of a job, over all its processes.")
    stall_after: float | None = _setting(
        None, seconds, "Report a job that has used no CPU and made no progress for so long.", above=True
    )
    callback_timeout: float = _setting(
        30.0, seconds, "Time limit of retry_strategy, failed_attempt and failed_job.", above=True
    )
    shutdown: str = _setting("wait", word, "What a shutdown does with running jobs: {words}.", words=SHUTDOWNS)
    shutdown_timeout: float | None = _setting(None, seconds, "Time after which a shutdown terminates what still runs.")
    recycle_after: float = _setting(
        1.0, seconds, "A child is used again until it has worked so long; 0: a new one per job."
    )
    start_method: str = _setting("fork", word, "How a child is made: {words}.", words=("fork", "spawn"))
    boot_timeout: float = _setting(60.0, seconds, "Time limit for loading the handlers.", above=True)
    handler_mode: str = _setting(
        "default",
        word,
        "How a plain function is called: default (job_type, payload) or advanced (job).",
        words=("default", "advanced"),
    )
    retry_strategy: str | None = _setting(None, reference, "The function that says how to retry (module:function).")
    failed_attempt: str | None = _setting(None, reference, "The function called after each failed attempt.")
    failed_job: str | None = _setting(None, reference, "The function called when a job has failed for good.")
    interrupt_after: float = _setting(
        60.0, seconds, "At shutdown, a job that has begun to wait is interrupted after this."
    )
    unknown_job_type: str = _setting(
        "fail",
        word,
        "What to do with a job type that has no handler: fail it, or leave it to others.",
        words=("fail", "leave"),
    )
    max_crashes: int = _setting(3, whole, "A job that crashed its child so often fails for good.", low=1, high=1000)
    max_losses: int = _setting(
        5, whole, "A job that was lost with its supervisor so often fails for good.", low=1, high=1000
    )
    max_payload: int = _setting(16 << 20, size, "Largest payload, in JSON.", high=LARGEST)
    max_result: int = _setting(1 << 20, size, "Largest result, in JSON.", high=LARGEST)
    max_checkpoint: int = _setting(1 << 20, size, "Largest checkpoint, in JSON.", high=LARGEST)
    database_wait: float = _setting(30.0, seconds, "How long to wait for the database at the start.")
    store_timeout: float = _setting(60.0, seconds, "How long to try to store the last outcomes at the end.")
    retention: float | None = _setting(
        None, seconds, "Delete jobs from the archive that ended so long ago (by default they are kept).", above=True
    )
    nice: int = _setting(0, whole, "Niceness of the children.", low=-20, high=19)
    cpu_affinity: bool = _setting(False, flag, "Bind each slot to CPUs of its own.")
    http: str | None = _setting(
        None, address, "Serve /livez, /readyz and /metrics, without a host on the loopback; port 0 is any free one."
    )
    keep_environ: bool = _setting(False, flag, "Keep /proc/PID/environ readable; process titles are shorter then.")
    until_empty: bool = _setting(False, flag, "Stop when nothing is ready, running or waiting for a retry.")
    log_format: str = _setting(
        "console", word, "Events for people or for machines: {words}.", words=("console", "json")
    )
    output_tail: int = _setting(
        8 * 1024, size, "How much of what a job printed last is kept with its attempt.", high=64 * 1024
    )
    log_level: str = _setting(
        "info", word, "Least level of the events shown: {words}.", words=("debug", "info", "warning", "error")
    )
    database_url: str | None = _setting(
        None, database_url, "PostgreSQL, as a URL or key=value words (else DATABASE_URL, PG*, the local one)."
    )
    schema: str = _setting("proletarian", schema_name, "Schema of the tables.")

    # For embedding only; each runs in a thread of its own.
    on_polling_error: Callable[[Exception], bool | None] | None = field(default=None, metadata={"read": _callback})
    on_shutdown: Callable[[], object] | None = field(default=None, metadata={"read": _callback})
    log: Callable[[str, Mapping[str, Any]], object] | None = field(default=None, metadata={"read": _callback})

    def __post_init__(self) -> None:
        for setting in fields(self):
            object.__setattr__(self, setting.name, read(setting, getattr(self, setting.name), setting.name))
        check_slots(self.queues, self.concurrency)
        if self.lease < 2 * self.poll_interval:
            raise ConfigError(
                f"lease is {self.lease:g} s and poll_interval {self.poll_interval:g} s: "
                "give a lease of at least twice the poll interval."
            )

    @cached_property
    def lanes(self) -> tuple[LaneConfig, ...]:
        """The lanes that the queues are served in: one with shared slots, or one per queue."""
        parsed = _parse_queues(self.queues, "queues")
        if parsed[0][1] is not None:
            return tuple(LaneConfig(name, (name,), slots) for name, slots in parsed if slots)
        names = tuple(name for name, _ in parsed)
        return (LaneConfig(names[0] if len(names) == 1 else "any", names, self.concurrency or usable_cpus()),)


def check_slots(queues: object, concurrency: object) -> None:
    """Refuse two words on the number of slots. Raises ConfigError."""
    if "=" in str(queues) and concurrency is not None:
        raise ConfigError(
            "concurrency and queues with slots of their own exclude each other: "
            f"leave concurrency out, or the numbers in {shown(queues)}."
        )


OPTIONS: Final[dict[str, Field[Any]]] = {
    setting.name: setting for setting in fields(Config) if "help" in setting.metadata
}


def read(setting: Field[Any], value: object, label: str) -> Any:
    """Read one value of a setting. "none" is None where None is the default. Raises ConfigError naming ``label``."""
    if setting.default is None and (value is None or (isinstance(value, str) and value.strip().lower() == "none")):
        return None
    return setting.metadata["read"](value, label, **setting.metadata.get("bounds", {}))


# ---------------------------------------------------------------------------------------------------------------------
# Where settings come from


def gather(
    options: Mapping[str, object],
    environ: Mapping[str, str],
    config_file: str | None = None,
    names: Iterable[str] = OPTIONS,
) -> dict[str, Any]:
    """Collect the settings ``names``: option, else ``GANGER_*``, else file; others are left to their defaults.

    Every value is read here, so that a mistake is told with the place where it stands. Raises ConfigError.
    """
    path, table = _file(config_file)
    found: dict[str, Any] = {}
    nearness: dict[str, int] = {}
    for name in names:
        variable = f"GANGER_{name.upper()}"
        values = options.get(name), environ.get(variable) or None, table.get(name)
        labels = option_name(name), variable, f"{name} in {path}"
        for rank, (value, label) in enumerate(zip(values, labels, strict=True)):
            if value is not None:
                found[name], nearness[name] = read(OPTIONS[name], value, label), rank
                break
    # `-q a=4` on the command line stands above a concurrency in the file, and `-c 8` above the file's queues a=4,b=2.
    if "=" in str(found.get("queues")) and nearness.get("concurrency", nearness["queues"]) != nearness["queues"]:
        del found[max("queues", "concurrency", key=nearness.__getitem__)]
    return found


def option_name(name: str) -> str:
    """How a setting is called on the command line."""
    return "TARGET" if name == "target" else f"--{name.replace('_', '-')}"


def _file(config_file: str | None) -> tuple[str, dict[str, Any]]:
    """Find and read ``ganger.toml``, or ``[tool.ganger]`` of ``pyproject.toml``, in the current folder."""
    for path in ["ganger.toml", "pyproject.toml"] if config_file is None else [config_file]:
        content = _content(path)
        if content is not None:
            return path, _table(path, content)
    if config_file is not None:
        raise ConfigError(f"the configuration file {_plain(config_file)} does not exist.")
    return "", {}


def _content(path: str) -> dict[str, Any] | None:
    """What a TOML file holds; None where there is no such file."""
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:  # ValueError: a name with NUL
        raise ConfigError(f"the configuration file {_plain(path)} cannot be read: {message(error)}.") from error
    if len(data) > LARGEST_FILE:
        raise ConfigError(f"the configuration file {_plain(path)} has over {LARGEST_FILE} bytes: give another.")
    import tomllib  # 30 ms that only a file costs

    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the configuration file {_plain(path)} cannot be read: {message(error)}.") from error


def _table(path: str, content: dict[str, Any]) -> dict[str, Any]:
    """The settings of a file by their names, each of which may be written with dashes."""
    table: Any = content
    for name in ("tool", "ganger") if Path(path).name == "pyproject.toml" else ():
        table = table.get(name, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{name} in {path} is {shown(table)}: make it a table.")
    settings: dict[str, Any] = {}
    for written, value in table.items():
        name = written.replace("-", "_")
        if name not in OPTIONS:
            raise ConfigError(f"{_plain(written)} in {path} is no setting of ganger.{_suggestion(name, OPTIONS)}")
        if name in settings:
            raise ConfigError(f"{name} stands twice in {path}, with dashes and without: leave one out.")
        settings[name] = value
    return settings


def _plain(name: str) -> str:
    """A name that was given, in quotes only where it is a strange one."""
    return name if re.fullmatch(r"[\w./-]{1,200}", name) else shown(name)


def usable_cpus() -> int:
    """Count the CPUs this process may use: its affinity, and the quota of its control group (rounded up)."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([count, *(math.ceil(quota) for quota in _cpu_quotas())]))


def killed_as_a_whole(cgroups: Path = _CGROUPS, mine: Path = _MINE) -> Path | None:
    """The control group around us, if any, that the kernel kills with all its processes where memory runs out for one
    (memory.oom.group, which only version 2 has)."""
    for folder, version_2 in _control_groups("memory", cgroups, mine):
        with suppress(OSError):
            if version_2 and (folder / "memory.oom.group").read_text().strip() == "1":
                return folder
    return None


def _cpu_quotas(cgroups: Path = _CGROUPS, mine: Path = _MINE) -> list[float]:
    """Read the CPU quota of our control group and of those above it."""
    quotas = (_quota(folder, version_2=version_2) for folder, version_2 in _control_groups("cpu", cgroups, mine))
    return [quota for quota in quotas if quota]


def _control_groups(controller: str, cgroups: Path = _CGROUPS, mine: Path = _MINE) -> Iterator[tuple[Path, bool]]:
    """Our control group and those above it, from the inside to the outside; true for version 2, false for version 1."""
    try:
        lines = [line.split(":", 2) for line in mine.read_text().splitlines()]
    except OSError:
        return
    for _, controllers, path in lines:
        if controllers and controller not in controllers.split(","):
            continue
        root = cgroups / controller if controllers else cgroups
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            if root != folder and root not in folder.parents:
                break
            yield folder, not controllers


def _quota(folder: Path, *, version_2: bool) -> float | None:
    try:
        if version_2:
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # no such file, or "max"
        return None
