"""Every command of the README is run, in the README's own order, on the README's own code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ganger.local_postgres import LocalPostgres
from tests.stories.stage import ROOT

README = (ROOT / "README.md").read_text()
COMMANDS = [
    line.removeprefix("$ ")
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("$ ")
]
ELSEWHERE = {  # run by other tests, or what runs this one
    "scripts/demo": "test_demo.py",
    "scripts/test": "this test",
    "pip install 'ganger[local]'": "scripts/setup has installed it, with its local PostgreSQL",
    "python -m examples.example_c.worker": "test_examples.py",
    "python -m examples.example_c.enqueue_jobs run-3": "test_examples.py",
}
SHOWN = {
    "ganger enqueue count-primes '{\"below\": 200000}'": r"^[0-9a-f-]{36}\n$",
    "ganger run myjobs:handlers --until-empty": r"job-finished +count-primes",
    "ganger status": r"success +1",
    "ganger install": r"",
    "ganger check myjobs:handlers": r"job types: count-primes",
}


@pytest.fixture
def home(folder: Path) -> Path:
    """A folder with the README's handlers."""
    code = re.search(r"```python\n(from ganger_child.*?)```", README, re.DOTALL)
    assert code is not None
    (folder / "myjobs.py").write_text(code.group(1))
    return folder


def test_every_command_is_run_somewhere() -> None:
    assert sorted(COMMANDS) == sorted([*ELSEWHERE, *SHOWN])
    for command in ("scripts/demo", "scripts/test"):
        assert os.access(ROOT / command, os.X_OK)


def test_the_first_job(home: Path) -> None:
    data = home / "data"
    environ = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    environ |= {"GANGER_DATA_DIR": str(data), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    try:
        for command in COMMANDS:
            if command in ELSEWHERE:
                continue
            done = subprocess.run(
                command, shell=True, cwd=home, env=environ, capture_output=True, text=True, timeout=90,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
            assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
            said = done.stdout if command.startswith("ganger enqueue") else done.stdout + done.stderr
            assert re.search(SHOWN[command], said), f"{command}: {said}"
    finally:
        LocalPostgres(data).reset()
