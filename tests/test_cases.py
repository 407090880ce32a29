"""CASES.md is true: every case has its tests, they exist, and each says in its docstring which case it tells.

A renamed test or a docstring without its number and address fails here.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
LINE = re.compile(r"^- ([CD]\d+) (.*)$", re.MULTILINE)
NODE = re.compile(r"tests/(\S+\.py)::(\w+)(?:::(\w+))?")
PAGE = (TESTS / "CASES.md").read_text()
CASES = dict(LINE.findall(PAGE))
EXPECTED = [f"D{number:02}" for number in range(1, 85)] + [f"C{number}" for number in range(1, 31)]


def test_every_case_has_one_line() -> None:
    assert [case for case, _ in LINE.findall(PAGE)] == EXPECTED


@pytest.mark.parametrize("case", EXPECTED)
def test_a_case_has_tests_that_say_so(case: str) -> None:
    """The docstring of each test of a case names it: D cases with an address, C cases as "correction 5"."""
    if CASES[case] == "open":
        pytest.skip("no test tells this case yet")
    nodes = NODE.findall(CASES[case])
    assert nodes, f"{case} names no test"
    for file, *names in nodes:
        told = _docstrings(file).get(".".join(filter(None, names)))
        assert told is not None, f"{case}: tests/{file} has no test {names}, or it has no docstring"
        if case.startswith("C"):
            assert re.search(rf"[Cc]orrections? ([\d, and]+ )?{case[1:]}\b", told), f"{case} is not in: {told!r}"
        else:
            assert re.search(rf"\b{case}\b", told), f"{case} is not in: {told!r}"
            assert "https://" in told, f"{case} has no address in: {told!r}"


@cache
def _docstrings(file: str) -> dict[str, str]:
    """The docstrings of a file's tests, by name (``Class.name`` in a class)."""
    found: dict[str, str] = {}

    def look(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                look(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef) and (told := ast.get_docstring(node)):
                found[prefix + node.name] = " ".join(told.split())

    look(ast.parse((TESTS / file).read_text()).body, "")
    return found
