"""Every rule that is broken on purpose is noticed by a test: see ``tests/mutants.toml``."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.mutants import ROOT, Mutant, read, stale

MUTANTS = read()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_can_still_be_made(mutant: Mutant) -> None:
    """Its words stand in the source, it changes them, and the files of its tests are there."""
    assert stale(mutant) is None
    assert mutant.new != mutant.old
    for test in mutant.tests:
        assert (ROOT / test.partition("::")[0]).is_file(), f"there is no {test}"


def test_mutants_have_names_of_their_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 15


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_mutant_is_caught() -> None:
    ran = subprocess.run([sys.executable, "-m", "tests.mutants"], cwd=ROOT, text=True, stdout=subprocess.PIPE)
    assert ran.returncode == 0, f"\n{ran.stdout}"
