"""Open files for slots. The limits are the test's own: ``resource`` is asked nothing and told nothing."""

from __future__ import annotations

import resource

import pytest

from ganger.config import MOST_SLOTS, ConfigError
from ganger.descriptors import EACH, Descriptors

NONE = resource.RLIM_INFINITY


class Limits:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> None:
        self.now = (soft, hard)
        monkeypatch.setattr(resource, "getrlimit", lambda which: self.now)
        monkeypatch.setattr(resource, "setrlimit", self._set)

    def _set(self, which: int, limits: tuple[int, int]) -> None:
        assert limits[0] <= limits[1] != NONE or limits[1] == NONE
        self.now = limits


def test_the_limit_grows_with_the_slots_as_far_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said to be the most is allowed, and one slot more is refused with a sentence."""
    limits = Limits(monkeypatch, 256, 2000)
    descriptors = Descriptors(http=True)
    most = descriptors.most_slots
    assert 250 < most < 330
    descriptors.allow(1)
    assert limits.now == (256, 2000), "there was room"
    descriptors.allow(most - 1)
    before = limits.now[0]
    descriptors.allow(most)
    assert limits.now == (before + EACH, 2000)
    with pytest.raises(ConfigError, match="2000 are allowed"):
        descriptors.allow(most + 1)


@pytest.mark.parametrize("soft", [256, NONE])
def test_without_a_hard_limit_there_are_as_many_as_can_be_configured(
    monkeypatch: pytest.MonkeyPatch, soft: int
) -> None:
    limits = Limits(monkeypatch, soft, NONE)
    descriptors = Descriptors()
    assert descriptors.most_slots == MOST_SLOTS
    descriptors.allow(MOST_SLOTS)
    assert limits.now[0] == NONE or limits.now[0] > EACH * MOST_SLOTS
