"""The picture of the imports: only downward, and nothing that does not belong where it stands.

Read from the source, so that an import inside a function or under TYPE_CHECKING counts too: an arrow is an arrow.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted([*ROOT.glob("supervisor/ganger/**/*.py"), *ROOT.glob("worker_child/ganger_child/**/*.py")])

# The floors of the parent's side, top to bottom: a file imports only from floors below its own (in a package: freely).
FLOORS = (
    {"__main__"},
    {"cli"},
    {"commands"},
    {"top"},
    {"__init__"},
    {"supervisor"},
    {"loop", "door"},
    {"gang", "database_threads", "http", "locate", "callbacks", "signals"},
    {"metrics", "notify"},
    {"health", "plot", "results"},
    {"client", "jobs", "knock", "report"},
    {"database", "descriptors", "incarnation", "local_postgres", "events", "output"},
    {"config", "cores", "fields", "formats", "oom", "shortages", "sql", "tail"},
    {"core"},
)
PACKAGES = {"commands", "core", "top"}
FLOOR = {name: number for number, names in enumerate(reversed(FLOORS)) for name in names}

# What of the child's side the parent's side may import, and which of its files may: none of it runs a handler.
SHARED = {
    "guard": {"gang"},
    "launch": {"supervisor", "gang"},
    "options": {"supervisor", "gang"},
    "page": {"gang"},
    "titles": {"supervisor", "loop", "gang", "top"},
    "tree": {"gang"},
    "tracing": {"client"},
    "trust": {"gang"},
    "units": set(FLOOR),
    "wire": {"gang"},
    "words": set(FLOOR),
}

# The core computes and does nothing else: these modules, and of some of them these names.
PURE = {
    "__future__", "abc", "bisect", "collections", "contextlib", "copy", "dataclasses", "enum", "functools", "ganger",
    "heapq", "itertools", "math", "operator", "types", "typing",
}  # fmt: skip
PURE_NAMES = {"uuid": {"UUID"}, "random": {"Random"}, "datetime": {"timedelta"}}

DRIVERS = {"psycopg", "psycopg_pool", "asyncpg"}
NO_DRIVER = {"loop", "gang", "events", "config", "core"}  # what must go on while the database is away


class Import(NamedTuple):
    """One imported thing: ``from ganger.core import job`` is ("ganger.core", "job")."""

    module: str
    name: str | None
    line: int

    @property
    def path(self) -> list[str]:
        return [*self.module.split("."), *([self.name] if self.name else [])]


def imports(source: str, package: str) -> Iterator[Import]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, None, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            module = ".".join([*base, *(node.module.split(".") if node.module else [])])
            yield from (Import(module, alias.name, node.lineno) for alias in node.names)


def complaints(module: str, source: str) -> list[str]:
    """What is wrong with the imports of a module such as ``ganger.core.job``, one sentence each."""
    package, *rest = module.split(".")
    file = rest[0] if rest else "__init__"
    inside = module if module == package or (file in PACKAGES and len(rest) == 1) else module.rpartition(".")[0]
    found = []
    for imported in imports(source, inside):
        top, *below = imported.path
        wrong = {"ganger": wrong_in_parent, "ganger_child": wrong_in_child}[package](file, top, below)
        if wrong:
            found.append(f"{module}, line {imported.line}: {wrong}")
    return found


def wrong_in_parent(file: str, top: str, below: list[str]) -> str | None:
    if file not in FLOOR:
        return f"{file} stands on no floor: put it into FLOORS"
    if top == "ganger":
        target = below[0] if below and below[0] in FLOOR else "__init__"
        if FLOOR[target] >= FLOOR[file] and not (file == target and file in PACKAGES):
            return f"{file} must not import {target}, which is not below it"
    if top == "ganger_child" and file not in SHARED.get(below[0] if below else "", set()):
        return f"{file} must not import {'.'.join([top, *below])}"
    if top in DRIVERS and file in NO_DRIVER:
        return f"{file} must not import a database driver"
    if file == "core" and top not in PURE and not (below and below[-1] in PURE_NAMES.get(top, set())):
        return f"the core must not import {'.'.join([top, *below])}"
    return None


def wrong_in_child(file: str, top: str, below: list[str]) -> str | None:
    if top == "ganger":
        return "the child's side must not import the parent's"
    if top in sys.stdlib_module_names or top == "ganger_child":
        return None
    if top == "setproctitle" and file == "titles":
        return None
    return f"the child's side lives on the standard library, and must not import {top}"


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down_only(path: Path) -> None:
    assert complaints(module_of(path), path.read_text()) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ganger.gang", "from ganger.loop import Loop"),
        ("ganger.gang", "from ganger import loop"),
        ("ganger.gang", "from ganger import Supervisor"),
        ("ganger.gang", "import ganger.cli"),
        ("ganger.gang", "from . import loop"),
        ("ganger.gang", "def later():\n    from .supervisor import Supervisor"),
        ("ganger.gang", "import ganger.database_threads"),
        ("ganger.gang", "from ganger_child.handlers import Handlers"),
        ("ganger.gang", "import psycopg"),
        ("ganger.loop", "from ganger_child import wire"),
        ("ganger.database", "from ganger_child.wire import Message"),
        ("ganger.core.job", "from ganger.events import Log"),
        ("ganger.core.job", "from ..config import Config"),
        ("ganger.core", "from .. import config"),
        ("ganger.core.job", "import os"),
        ("ganger.core.job", "from time import monotonic"),
        ("ganger.core.job", "import psycopg"),
        ("ganger.core.job", "from random import random"),
        ("ganger.core.job", "from uuid import uuid4"),
        ("ganger.newcomer", "import os"),
        ("ganger_child.child", "import ganger"),
        ("ganger_child.child", "from ganger.core.messages import Job"),
        ("ganger_child.child", "import psycopg"),
        ("ganger_child.child", "from setproctitle import setproctitle"),
        ("ganger_child", "import psutil"),
    ],
)
def test_an_arrow_that_runs_up_is_seen(module: str, source: str) -> None:
    assert complaints(module, source)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ganger", "from ganger.supervisor import Supervisor"),
        ("ganger.loop", "from ganger.gang import Gang\nfrom ganger.core import messages as m"),
        ("ganger.gang", "from ganger_child.wire import Message\nfrom ganger_child import titles"),
        ("ganger.core.job", "from ganger.core.messages import Job\nfrom . import retry\nfrom uuid import UUID"),
        ("ganger_child.titles", "import os\nfrom setproctitle import setproctitle"),
        ("ganger_child.child", "from . import wire\nfrom ganger_child.page import Page"),
    ],
)
def test_an_arrow_that_runs_down_is_not(module: str, source: str) -> None:
    assert complaints(module, source) == []
