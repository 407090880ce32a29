"""Break the product on purpose, one rule at a time, and see whether the tests notice: scripts/mutants.

``tests/mutants.toml`` says in which file which words are replaced by which, the rule that is broken by it, and the
smallest tests that must fail then. Each mutant gets a copy of the source and of the tests of its own. It counts as
caught where a test *failed*: an error on the way to a test, or a test that was stopped by its limit, is no proof. And
the same tests must pass where nothing is broken.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ganger.local_postgres import LocalPostgres

ROOT = Path(__file__).parent.parent
LIST = ROOT / "tests" / "mutants.toml"
COPIED = ("supervisor", "worker_child", "tests", "pyproject.toml")
NOT_COPIED = shutil.ignore_patterns("bench", "chaos", "child", "stories")  # tests that take processes
FAILED = re.compile(r"^FAILED \S*?([^/\s]+\.py::\S+)(?: - (.*))?$", re.MULTILINE)
SURVIVED = "it survived"
LIMIT = 600.0  # seconds for the tests of one mutant, on a busy machine


@dataclass(frozen=True, slots=True)
class Mutant:
    """``old`` stands exactly once in ``file``; ``tests`` are pytest's arguments."""

    name: str
    rule: str
    file: str
    old: str
    new: str
    tests: list[str]


@dataclass(frozen=True, slots=True)
class Verdict:
    """``caught`` by the test that ``word`` names; else ``word`` says what went wrong."""

    mutant: Mutant
    caught: bool
    word: str
    seconds: float


def read() -> list[Mutant]:
    """The mutants, in the order of the file."""
    return [Mutant(**entry) for entry in tomllib.loads(LIST.read_text())["mutant"]]


def stale(mutant: Mutant) -> str | None:
    """Why the mutant cannot be made any more; None if it can."""
    path = ROOT / mutant.file
    if not path.is_file():
        return f"there is no {mutant.file}"
    times = path.read_text().count(mutant.old)
    return None if times == 1 else f"its old words stand {times} times in {mutant.file}, not once: bring it up to date"


def judge(mutant: Mutant, database: str) -> Verdict:
    """Make the mutant in a copy, and run its tests there."""
    word = stale(mutant)
    return Verdict(mutant, False, word, 0.0) if word is not None else tried(mutant, database)


def tried(mutant: Mutant, database: str) -> Verdict:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ganger-mutant-") as folder:
        copy = Path(folder)
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, copy / name, ignore=NOT_COPIED)
            else:
                shutil.copy(ROOT / name, copy)
        if mutant.old:
            broken = copy / mutant.file
            broken.write_text(broken.read_text().replace(mutant.old, mutant.new))
            for compiled in (broken.parent / "__pycache__").glob(f"{broken.stem}.*"):
                compiled.unlink()  # what the others were compiled to is used again
        caught, word = run(copy, mutant, database)
    return Verdict(mutant, caught, word, time.monotonic() - started)


def run(copy: Path, mutant: Mutant, database: str) -> tuple[bool, str]:
    options = ["-q", "-x", "-n0", "-rf", "--no-header", "--tb=no", "-p", "no:cacheprovider"]
    options += ["-p", "no:hypothesispytest"]  # which takes a second to import; the tests that need hypothesis still do
    settings = {"COLUMNS": "300", "MUTANT": mutant.name}  # the summary in full; see test_stateful
    environment = {**os.environ, **settings, "TEST_DATABASE_URL": database, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *mutant.tests], cwd=copy, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False, f"its tests took longer than {LIMIT:g} s"
    failed = FAILED.search(ran.stdout)
    if failed:
        test, why = failed.groups()
        return "Failed: Timeout" not in (why or ""), f"{test}: {(why or '')[:120]}"
    last = (ran.stdout.strip().splitlines() or ["nothing was said"])[-1]
    return False, SURVIVED if ran.returncode == 0 else f"its tests could not be run: {last}"


def unbroken(mutants: list[Mutant], database: str) -> Verdict:
    """All their tests on a copy in which nothing is changed. ``caught`` means that one failed."""
    tests = dict.fromkeys(test for mutant in mutants for test in mutant.tests)
    return tried(Mutant("unbroken", "", "pyproject.toml", "", "", list(tests)), database)


def judge_all(mutants: list[Mutant], at_once: int) -> list[Verdict]:
    """All of them, on one PostgreSQL; each verdict is printed as it comes. Those that were not caught are returned, and
    the unbroken source if its tests fail."""
    folder = Path(tempfile.mkdtemp(prefix="ganger-mutants-"))
    folder.chmod(0o711)  # as root, PostgreSQL has another account
    try:
        database = LocalPostgres(folder, durable=False).start()

        def one(mutant: Mutant) -> Verdict:
            verdict = judge(mutant, database)
            mark = "caught by" if verdict.caught else "NOT CAUGHT:"
            lines = [f"{mutant.name}: {mutant.rule}", f"    {verdict.seconds:.1f} s, {mark} {verdict.word}"]
            print("\n".join(lines), flush=True)
            return verdict

        with ThreadPoolExecutor(at_once) as pool:
            control = pool.submit(unbroken, mutants, database)
            missed = [verdict for verdict in pool.map(one, mutants) if not verdict.caught]
            plain = control.result()
        if plain.word == SURVIVED:
            return missed
        print(f"Without any mutant the tests do not pass, so the above proves nothing: {plain.word}")
        return [*missed, plain]
    finally:
        LocalPostgres(folder).reset()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("names", nargs="*", help="only these, or those whose name begins so")
    parser.add_argument("--at-once", type=int, default=len(os.sched_getaffinity(0)), help="default: the CPUs there are")
    given = parser.parse_args()
    mutants = [mutant for mutant in read() if not given.names or mutant.name.startswith(tuple(given.names))]
    if not mutants:
        parser.error(f"no mutant is called {', '.join(given.names)}; {LIST.name} has their names")
    missed = judge_all(mutants, given.at_once)
    if missed:
        print(f"Not as it should be: {', '.join(verdict.mutant.name for verdict in missed)}")
    else:
        print(f"All {len(mutants)} mutants were caught.")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
