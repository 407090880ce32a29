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


def commands(text: str) -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")]


COMMANDS = commands(README)
ELSEWHERE = {  # run by other tests, or what runs this one
    "scripts/demo": "test_demo.py",
    "scripts/test": "this test",
    "pip install 'ganger[local]'": "scripts/setup has installed it, with its local PostgreSQL",
    "ganger top": "test_top.py",
    "python -m examples.checkpoints.demo": "test_checkpoints.py",
    "ganger run myjobs:handlers --http 9464": "test_monitoring.py",
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
DAY = {  # in one shell, where $job keeps its value
    "ganger top --json": r'"host":',
    "ganger jobs list --state running,failure --since 1d": r"no such job",
    "job=$(ganger enqueue count-primes '{\"below\": 1000}' --process-in 1h)": r"",
    "ganger jobs show $job": r"(?m)^  state       scheduled$",
    "ganger pause default": r"Paused: default\.",
    "ganger jobs cancel $job": r" cancelled: ",
    "ganger jobs retry $job": r" retried: ",
    "ganger jobs kill --type count-primes --state running --yes": r"no such job",
    "ganger jobs retry --reason timeout --since 12h --yes": r"no such job",
    "ganger resume": r"Nothing is paused\.",
    "ganger report --since 7d": r"(?m)^count-primes +1 +1 +0 +0 ",
    "ganger report --since 7d -o week.png": r"",
    "ganger prune --older-than 30d --yes": r"0 jobs are deleted",
}


@pytest.fixture
def home(folder: Path) -> Path:
    """A folder with the README's handlers."""
    code = re.search(r"```python\n(from ganger_child.*?)```", README, re.DOTALL)
    assert code is not None
    (folder / "myjobs.py").write_text(code.group(1))
    return folder


def test_every_command_is_run_somewhere() -> None:
    assert sorted(COMMANDS) == sorted([*ELSEWHERE, *SHOWN, *DAY])
    for command in ("scripts/demo", "scripts/test"):
        assert os.access(ROOT / command, os.X_OK)


def test_the_first_job_and_the_day_after(home: Path) -> None:
    data = home / "data"
    environ = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    environ |= {"GANGER_DATA_DIR": str(data), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def run(script: str, limit: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            script, shell=True, cwd=home, env=environ, capture_output=True, text=True, timeout=limit,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    try:
        for command in COMMANDS:
            if command not in SHOWN:
                continue
            done = run(command, 90)
            assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
            said = done.stdout if command.startswith("ganger enqueue") else done.stdout + done.stderr
            assert re.search(SHOWN[command], said), f"{command}: {said}"
        day = [command for command in COMMANDS if command in DAY]
        done = run("set -e\n" + "\necho ----\n".join(day), 110)
        assert done.returncode == 0, done.stdout + done.stderr
        for command, said in zip(day, done.stdout.split("----\n"), strict=True):
            assert re.search(DAY[command], said), f"{command}: {said}"
        assert (home / "week.png").stat().st_size > 5000
    finally:
        LocalPostgres(data).reset()
