"""Who may touch whose jobs: our own trust, and the patience with others."""

from __future__ import annotations

import pytest

from ganger.core.lease import BEATS_PER_LEASE, TRUSTED_PART, Lease, Watcher
from ganger.core.messages import OtherSupervisor

LENGTH = 120.0


def held(sent: float = 1000.0) -> Lease:
    lease = Lease(LENGTH)
    lease.hold(7, sent)
    return lease


# ---- our own ---------------------------------------------------------------------------------------------------------


def test_before_it_is_held_nothing_is_trusted() -> None:
    assert not Lease(LENGTH).trusted(0.0)


def test_trust_counts_from_the_sending_and_ends_before_the_lease() -> None:
    lease = held(sent=1000.0)
    assert lease.trusted(1000.0 + LENGTH * TRUSTED_PART - 0.001)
    assert not lease.trusted(1000.0 + LENGTH * TRUSTED_PART)
    assert TRUSTED_PART < 1


def test_a_beat_prolongs_it() -> None:
    lease = held(sent=1000.0)
    lease.renew(1050.0)
    assert lease.trusted_until == 1050.0 + LENGTH * TRUSTED_PART


def test_an_answer_that_comes_out_of_order_shortens_nothing() -> None:
    lease = held(sent=1000.0)
    lease.renew(1050.0)
    lease.renew(1040.0)
    assert lease.trusted_until == 1050.0 + LENGTH * TRUSTED_PART


def test_many_beats_may_fail_before_it_is_lost() -> None:
    lease = held(sent=1000.0)
    assert lease.next_beat == 1000.0 + LENGTH / BEATS_PER_LEASE
    assert LENGTH * TRUSTED_PART / lease.interval >= 9


def test_dropped_is_not_trusted() -> None:
    lease = held()
    lease.drop()
    assert not lease.trusted(1000.0)


# ---- the others' -----------------------------------------------------------------------------------------------------


def other(beat: int, *, number: int = 3, vacant: bool = False) -> OtherSupervisor:
    return OtherSupervisor(number, beat, LENGTH, vacant)


def test_a_supervisor_may_be_swept_after_a_whole_lease_of_the_same_beat() -> None:
    """Correction 19: by observation, on its own clock."""
    watcher = Watcher()
    assert watcher.look([other(5)], 0.0) == []
    assert watcher.look([other(5)], LENGTH - 0.1) == []
    assert watcher.look([other(5)], LENGTH) == [other(5)]


def test_the_first_look_says_nothing_however_old_the_beat_is() -> None:
    """Correction 19: a freshly started sweeper waits a lease."""
    assert Watcher().look([other(5)], 1e9) == []


def test_a_new_beat_begins_the_lease_anew() -> None:
    watcher = Watcher()
    watcher.look([other(5)], 0.0)
    watcher.look([other(6)], LENGTH - 1)
    assert watcher.look([other(6)], LENGTH + 1) == []
    assert watcher.look([other(6)], 2 * LENGTH) == [other(6)]


def test_a_beat_that_goes_backwards_is_a_change() -> None:
    """Correction 19: a standby was promoted that had not got the last beats."""
    watcher = Watcher()
    watcher.look([other(5)], 0.0)
    assert watcher.look([other(4)], LENGTH) == []


def test_after_an_outage_the_patience_begins_anew() -> None:
    """Correction 19: connected all the while."""
    watcher = Watcher()
    watcher.look([other(5)], 0.0)
    watcher.forget()
    assert watcher.look([other(5)], LENGTH) == []
    assert watcher.look([other(5)], 2 * LENGTH) == [other(5)]


def test_who_was_away_from_the_table_is_new() -> None:
    watcher = Watcher()
    watcher.look([other(5)], 0.0)
    watcher.look([], 10.0)
    assert watcher.look([other(5)], LENGTH) == []


def test_each_is_watched_for_itself() -> None:
    watcher = Watcher()
    watcher.look([other(5, number=1), other(5, number=2)], 0.0)
    assert watcher.look([other(5, number=1), other(6, number=2)], LENGTH) == [other(5, number=1)]


def test_a_vacant_one_is_taken_at_once_and_stays_vacant() -> None:
    watcher = Watcher()
    assert watcher.look([other(5, vacant=True)], 0.0) == [other(5, vacant=True)]
    watcher.forget()  # the sweep may have failed in an outage, and the lock file is gone by now
    assert watcher.look([other(5)], 1.0) == [other(5)]


@pytest.mark.parametrize("length", [1.0, 30.0])
def test_its_own_lease_counts_not_ours(length: float) -> None:
    watcher = Watcher()
    short = OtherSupervisor(3, 5, length)
    watcher.look([short], 0.0)
    assert watcher.look([short], length) == [short]
