"""Slots more and fewer: how they are shared out, which one goes and when, and what is told of it."""

from __future__ import annotations

from itertools import pairwise
from uuid import UUID

import pytest

from ganger.core import messages as m
from ganger.core.machine import Machine
from ganger.core.rules import LaneRules, Rules, shares
from ganger.core.slot import State
from tests.core.test_ahead import Rush
from tests.core.test_machine import SLOT, Desk

TWO = "default/2"


def lanes(*slots: int) -> tuple[LaneRules, ...]:
    return tuple(LaneRules(f"lane{number}", (f"queue{number}",), size) for number, size in enumerate(slots))


def slots(desk: Desk) -> dict[str, str]:
    return {slot.name: slot.state.value for slot in desk.machine.pool.slots.values()}


def told(desk: Desk, name: str) -> list[dict[str, object]]:
    return [dict(command.data) for command in desk.said(m.Emit) if command.name == name]


def boots(desk: Desk, slot: str) -> int:
    """Its warden is started, and its child ready; the child."""
    desk.hear(m.WardenStarted(slot, 20))
    child = next(started.child for started in reversed(desk.said(m.StartChild)) if started.slot == slot)
    desk.hear(m.ChildStarted(slot, child, 21), m.ChildReady(slot, child))
    return child


def stopped(desk: Desk) -> list[str]:
    return [command.slot for command in desk.said(m.StopWarden)]


def two_idle() -> Desk:
    desk = Desk(slots=2).idle()
    boots(desk, TWO)
    return desk


def two_running() -> Desk:
    desk = two_idle()
    claim = desk.said(m.Claim)[-1]
    desk.hear(m.ClaimLost(claim.claim_id))
    desk.wait(2.0)
    claim = desk.said(m.Claim)[-1]
    jobs = tuple(m.Job(desk.new_id(), desk.new_id(), claim.claim_id, "default", "job", b"{}", 1) for _ in range(2))
    desk.hear(m.Claimed(claim.claim_id, jobs, (0, 0), (True,), None))
    desk.hear(*(m.JobStarted(sent.slot, sent.child, sent.nonce) for sent in desk.said(m.SendJob)))
    return desk


def returns(desk: Desk, slot: str) -> None:
    sent = next(sent for sent in reversed(desk.said(m.SendJob)) if sent.slot == slot)
    desk.hear(m.JobReturned(slot, sent.child, sent.nonce, b"1", 0.5, 0.5, 1, clean=True, worked_s=0.5))


# ---- shares ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "total", "expected"),
    [
        ((3,), 1, [1]),
        ((3,), 9, [9]),
        ((4, 2), 2, [1, 1]),
        ((4, 2), 5, [3, 2]),
        ((4, 2), 6, [4, 2]),
        ((4, 2), 7, [5, 2]),
        ((4, 2), 9, [6, 3]),
        ((4, 2), 12, [8, 4]),
        ((1, 100), 3, [1, 2]),
        ((1, 1, 1), 4, [2, 1, 1]),
    ],
)
def test_lanes_keep_their_proportion(own: tuple[int, ...], total: int, expected: list[int]) -> None:
    assert shares(lanes(*own), total) == expected


@pytest.mark.parametrize("own", [(4, 2), (1, 100), (7, 3, 3, 1), (1, 1), (5,)])
def test_one_slot_more_is_one_of_one_lane_and_the_configuration_is_one_of_the_steps(own: tuple[int, ...]) -> None:
    steps = [shares(lanes(*own), total) for total in range(len(own), 3 * sum(own))]
    for fewer, more in pairwise(steps):
        assert sorted(after - before for before, after in zip(fewer, more, strict=True)) == [0] * (len(own) - 1) + [1]
    assert steps[sum(own) - len(own)] == list(own)


def test_a_queue_with_slots_of_its_own_has_its_part_of_what_is_changed() -> None:
    machine = Machine(Rules(lanes(4, 2)), lambda: 0.5, lambda: UUID(int=1))
    machine.start(m.Now(0.0, 0.0))
    counts = []
    for event in (m.MoreSlots(1), m.Resize(9), m.Resize(2), m.MoreSlots(-1), m.MoreSlots(4)):
        machine.handle(event, m.Now(0.0, 0.0))
        counts.append(machine.pool.counts.copy())
    assert counts == [[5, 2], [6, 3], [1, 1], [1, 1], [4, 2]]
    assert list(machine.pool.slots) == ["lane0/1", "lane1/1", "lane0/2", "lane0/3", "lane0/4", "lane1/2"]


# ---- more ------------------------------------------------------------------------------------------------------------


def test_one_slot_more_is_started_at_once_and_told() -> None:
    desk = Desk()
    desk.running()
    desk.hear(m.MoreSlots(1))
    assert desk.said(m.StartWarden)[-1].slot == TWO
    assert desk.said(m.ShareCores)[-1].slots == (SLOT, TWO)
    changed = {"slots": 2, "was": 1, "lanes": {"default": 2}, "leaving": 0}
    assert told(desk, "slots-changed") == [changed]
    assert desk.said(m.TitleChanged)[-1] == m.TitleChanged("running", 1, 2, (("default", 2),))
    claims = len(desk.said(m.Claim))
    boots(desk, TWO)
    desk.wait(1.5)
    assert len(desk.said(m.Claim)) > claims, "it has a free slot now"
    desk.wait(desk.machine.book.lease.interval)
    told_of = desk.said(m.Beat)[-1].info
    assert (told_of["slots"], told_of["lanes"]["default"]["slots"]) == (2, 2)


def test_one_slot_more_before_the_handlers_are_loaded_is_there_with_the_others() -> None:
    desk = Desk()
    desk.hear(m.MoreSlots(1))
    assert not desk.said(m.StartWarden)
    desk.hear(m.TemplateReady(1))
    assert [started.slot for started in desk.said(m.StartWarden)] == [SLOT, TWO]


def test_as_many_as_somebody_asks_for() -> None:
    desk = Desk().idle()
    desk.hear(m.Resize(3))
    assert list(slots(desk)) == [SLOT, TWO, "default/3"]
    desk.hear(m.Resize(3))
    assert len(told(desk, "slots-changed")) == 1, "nothing has changed"


# ---- fewer -----------------------------------------------------------------------------------------------------------


def test_of_two_idle_slots_one_goes_at_once_and_is_forgotten_when_its_warden_has_left() -> None:
    desk = two_idle()
    desk.hear(m.MoreSlots(-1))
    assert stopped(desk) == [TWO]
    assert slots(desk) == {SLOT: "idle", TWO: "closed"}
    assert desk.said(m.TitleChanged)[-1].slots == 2, "it is still there"
    child = desk.machine.pool.slots[TWO].child
    desk.hear(m.ChildExited(TWO, child, m.Exit(term_signal=9)), m.WardenExited(TWO, "exit code 0"))
    assert slots(desk) == {SLOT: "idle"}
    assert desk.said(m.TitleChanged)[-1].slots == 1
    assert desk.said(m.ShareCores)[-1].slots == (SLOT,)
    assert not told(desk, "job-lost")


def test_a_slot_that_is_not_ready_goes_before_one_that_is() -> None:
    desk = Desk(slots=2).registered()
    boots(desk, TWO)
    assert slots(desk) == {SLOT: "booting", TWO: "idle"}
    desk.hear(m.MoreSlots(-1))
    assert stopped(desk) == [SLOT]


def test_fewer_while_wardens_are_being_forked() -> None:
    desk = Desk(slots=3)
    desk.hear(m.MoreSlots(-1), m.TemplateReady(1))
    desk.hear(m.MoreSlots(-1))
    assert slots(desk) == {SLOT: "hiring", TWO: "closed"}
    desk.hear(m.WardenStarted(TWO, 20), m.WardenExited(TWO, "exit code 0"))
    assert slots(desk) == {SLOT: "hiring"}
    assert "default/3" not in [started.slot for started in desk.said(m.StartWarden)]


def test_a_job_is_never_ended_for_it_and_the_next_slot_that_is_through_goes() -> None:
    """Although the other one would be asked first, and although there are more jobs to claim."""
    desk = two_running()
    desk.hear(m.MoreSlots(-1))
    assert told(desk, "slots-changed")[-1]["leaving"] == 1
    desk.wait(60.0)
    assert not stopped(desk)
    assert not desk.said(m.Interrupt)
    returns(desk, SLOT)
    assert slots(desk) == {SLOT: "leaving", TWO: "busy"}
    child = desk.machine.pool.slots[SLOT].child
    desk.hear(m.ChildExited(SLOT, child, m.Exit(exit_code=0)))
    assert len(desk.said(m.Archive)) == 1
    assert stopped(desk) == [SLOT]
    desk.hear(m.WardenExited(SLOT, "exit code 0"))
    assert slots(desk) == {TWO: "busy"}


def test_one_more_takes_one_less_back() -> None:
    desk = two_running()
    desk.hear(m.MoreSlots(-1), m.MoreSlots(1))
    returns(desk, SLOT)
    assert slots(desk) == {SLOT: "idle", TWO: "busy"}
    assert [change["slots"] for change in told(desk, "slots-changed")] == [1, 2]


def test_one_more_while_a_slot_leaves_is_another_one() -> None:
    """No two wardens have one name."""
    desk = two_idle()
    desk.hear(m.MoreSlots(-1), m.MoreSlots(1))
    assert slots(desk) == {SLOT: "idle", TWO: "closed", "default/3": "hiring"}
    desk.hear(m.WardenExited(TWO, "exit code 0"), m.MoreSlots(1))
    assert slots(desk) == {SLOT: "idle", "default/3": "hiring", TWO: "hiring"}


def test_what_was_claimed_ahead_for_a_slot_too_many_goes_back_or_is_run() -> None:
    """Both slots' children were sent short jobs ahead. They are asked for; one that its child has begun is run."""
    desk = Rush(slots=2)
    child = boots(desk, TWO)
    desk.claim(4)
    ours = [sent for sent in desk.sent() if sent.slot == TWO]
    assert [bool(sent.after) for sent in ours] == [False, True], "one runs, and one waits"
    desk.hear(m.JobStarted(TWO, child, ours[0].nonce))
    desk.hear(m.MoreSlots(-1))
    assert {revoked.slot for revoked in desk.said(m.Revoke)} >= {TWO}
    desk.hear(
        m.JobReturned(TWO, child, ours[0].nonce, b"1", 0.0025, 0.0025, 1, clean=True, worked_s=0.0025),
        m.JobStarted(TWO, child, ours[1].nonce),
    )
    assert slots(desk)[TWO] == "busy"
    before = len(desk.sent())
    desk.hear(m.JobReturned(TWO, child, ours[1].nonce, b"1", 0.0025, 0.0025, 1, clean=True, worked_s=0.005))
    assert slots(desk)[TWO] == "leaving"
    assert TWO not in [sent.slot for sent in desk.sent()[before:]]
    desk.hear(m.ChildExited(TWO, child, m.Exit(exit_code=0)), m.WardenExited(TWO, "exit code 0"))
    assert list(slots(desk)) == [SLOT]


def test_a_slot_that_is_quarantined_is_not_the_one_that_goes() -> None:
    """It is of no use to anybody, and what is meant is one job fewer at a time."""
    desk = two_running()
    child = desk.machine.pool.slots[TWO].child
    desk.machine.pool.order(desk.machine.pool.slots[TWO], "killed", m.Now(desk.now, desk.now), grace=0.0)
    desk.hear(m.ChildUnkillable(TWO, child, (5,)))
    assert slots(desk)[TWO] == "quarantined"
    desk.hear(m.MoreSlots(-1))
    returns(desk, SLOT)
    assert slots(desk) == {SLOT: "leaving", TWO: "quarantined"}


# ---- not at all ------------------------------------------------------------------------------------------------------


def test_each_lane_keeps_one_slot_and_there_is_a_most() -> None:
    desk = Desk(most_slots=2).idle()
    desk.hear(m.MoreSlots(-1), m.Resize(0), m.Resize(3))
    assert [refused["slots"] for refused in told(desk, "slots-not-changed")] == [1, 1, 1]
    assert slots(desk) == {SLOT: "idle"}
    assert not told(desk, "slots-changed")


@pytest.mark.parametrize("more", [1, -1])
def test_nothing_changes_at_shutdown(more: int) -> None:
    desk = two_running()
    desk.hear(m.Stop(), m.MoreSlots(more))
    assert "shutting down" in str(told(desk, "slots-not-changed")[0]["why"])
    assert slots(desk) == {SLOT: "busy", TWO: "busy"}


def test_a_shutdown_while_a_slot_leaves_waits_for_it() -> None:
    desk = two_idle()
    desk.hear(m.ClaimLost(desk.said(m.Claim)[-1].claim_id), m.MoreSlots(-1), m.Stop())
    assert set(stopped(desk)) == {SLOT, TWO}
    desk.hear(m.Deregistered(), m.WardenExited(SLOT, "exit code 0"))
    assert desk.exit_code is None
    desk.hear(m.WardenExited(TWO, "exit code 0"))
    assert desk.exit_code == 0


def test_a_slot_whose_run_waits_for_a_child_is_at_its_job_too() -> None:
    """A crash has taken its child, and the next one is to be asked about it."""
    desk = two_running()
    desk.hear(m.ChildExited(TWO, desk.machine.pool.slots[TWO].child, m.Exit(term_signal=11)))
    assert desk.machine.pool.slots[TWO].state is State.BOOTING
    desk.hear(m.MoreSlots(-1))
    assert not stopped(desk)
    assert [slot.name for slot, _ in desk.machine.pool.runs] == [SLOT, TWO]
