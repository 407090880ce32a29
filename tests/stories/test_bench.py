"""The benchmark itself runs: its own PostgreSQL, a workload, the floor, a report, and nothing left of any of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stories.stage import ROOT


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_small_workload_is_measured(folder: Path, tmp_path: Path) -> None:
    """One round of a few no-op jobs and of kills: the report has the values, the floor and whether goals were met."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "GANGER_"))}
    command = [sys.executable, "-m", "tests.bench", "--peers", "none", "--only", "w1,w6", "--jobs", "60"]
    run = subprocess.run(
        [*command, "--rounds", "1", "-o", str(tmp_path)], cwd=ROOT, env={**environ, "TMPDIR": str(folder)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode in (0, 3), run.stderr
    document = json.loads((tmp_path / "bench.json").read_text())
    (values,) = document["rounds"]["w1"]["ganger"]
    assert values["runs"] == 1.0
    assert values["jobs_s"] > 0
    assert document["rounds"]["w1"]["floor"][0]["jobs_s"] > 0
    assert [goal["met"] for goal in document["goals"] if goal["metric"] == "left"] == [True]
    assert "| ganger" in (tmp_path / "bench.md").read_text()
    assert list(folder.iterdir()) == []
