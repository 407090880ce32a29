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


def spoken(text: str) -> list[str]:
    """The commands that stand in the text between, once each."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return list(dict.fromkeys(re.findall(r"`((?:ganger|scripts/\w+|pip|pgrep|ps) [^`]+)`", prose)))


COMMANDS = commands(README)
INSTALLED = "scripts/setup has installed all extras"
ELSEWHERE = {  # run by other tests, or before all of them
    "scripts/demo": "stories/test_demo.py::test_the_demo_shows_what_it_promises_and_leaves_nothing",
    "scripts/test": "this test is run by it",
    "pip install 'ganger[local]'": INSTALLED,
    "ganger top": "stories/test_top.py::test_top_shows_runs_and_takes_orders",
    "python -m examples.checkpoints.demo":
        "stories/test_checkpoints.py::test_the_example_repeats_less_than_a_twentieth",
    "python -m examples.tracing.demo": "stories/test_examples.py::test_jobs_are_in_the_trace_of_who_enqueues_them",
    "ganger run myjobs:handlers --http 9464":
        "stories/test_monitoring.py::test_a_life_under_a_service_manager_and_a_prometheus",
    "python -m examples.example_c.worker": "stories/test_examples.py::test_example_c_a_computing_job_is_awaited",
    "python -m examples.example_c.enqueue_jobs run-3":
        "stories/test_examples.py::test_example_c_a_computing_job_is_awaited",
}  # fmt: skip
SPOKEN = {
    "ganger install --sql": "test_cli.py::test_the_printed_sql_installs",
    "ganger db start": "test_cli.py::test_the_local_postgresql_is_named_and_gets_its_tables",
    "ganger install --roles": "test_cli_jobs.py::test_orders_that_a_role_may_not_give_are_refused_in_a_sentence",
    "pgrep -af '^ganger:'": "stories/test_titles_seen.py::test_the_whole_picture",
    "ps xf": "stories/test_titles_seen.py::test_the_whole_picture",
    "ganger jobs tail ID":
        "stories/test_asking.py::test_output_is_followed_to_the_end_of_the_run_and_then_its_outcome_is_told",
    "ganger jobs stacks ID": "stories/test_asking.py::test_where_everything_is_can_be_asked_while_it_runs_on",
    "pip install 'ganger[plot]'": INSTALLED,
    "ganger run … --retention 30d": "stories/test_one_job.py::test_a_job_runs_and_its_result_is_archived",
    "pip install 'ganger[metrics]'": INSTALLED,
    "pip install 'ganger[otel]'": INSTALLED,
}  # fmt: skip
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
    """Those that are shown, and those that the text between speaks of."""
    assert sorted(COMMANDS) == sorted([*ELSEWHERE, *SHOWN, *DAY])
    plain = {" ".join(command.split()[:depth]) for command in COMMANDS for depth in (2, 3)}
    assert [command for command in spoken(README) if command not in plain] == list(SPOKEN)
    for command in ("scripts/demo", "scripts/test"):
        assert os.access(ROOT / command, os.X_OK)
    for file, found, name in (where.partition("::") for where in [*ELSEWHERE.values(), *SPOKEN.values()]):
        assert not found or f"def {name}(" in (ROOT / "tests" / file).read_text(), f"tests/{file} has no {name}"


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
