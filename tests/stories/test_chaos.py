"""Two minutes of chaos: see tests/CHAOS.md and ``scripts/chaos --help``."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.stories.stage import ROOT

SECONDS = 120
BEFORE = 60  # seconds that servers and supervisors may take to start, on a loaded machine
AFTERWARDS = 90  # seconds that a run may take to end


@pytest.mark.slow
@pytest.mark.timeout(BEFORE + SECONDS + AFTERWARDS + 30)
def test_every_promise_holds_through_two_minutes_of_chaos() -> None:
    """Correction 20: whatever is done to hosts, processes and database, each job ends once and none is lost."""
    command = [str(ROOT / "scripts" / "chaos"), "--seconds", str(SECONDS), "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BEFORE + SECONDS + AFTERWARDS)
    assert done.returncode == 0, done.stdout + done.stderr
    runs = re.search(r"^runs +(\d+)", done.stdout, re.MULTILINE)
    assert runs, done.stdout
    assert int(runs.group(1)) > 500, done.stdout
