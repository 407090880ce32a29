"""Fixtures of the stories."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stories.stage import Stage


@pytest.fixture
def stage(database: str, tmp_path: Path) -> Iterator[Stage]:
    made = Stage(database, tmp_path)
    yield made
    made.close()
