"""The moves of a slot: its table is complete, and nothing outside it can happen."""

from __future__ import annotations

import pytest

from ganger.core.slot import MOVES, ImpossibleMoveError, Slot, State

ALL = [(move, state) for move in MOVES for state in State]


def in_state(state: State) -> Slot:
    return Slot("default/1", 0, state=state, child=4, limit_at=9.0)


@pytest.mark.parametrize(("move", "state"), ALL, ids=lambda each: getattr(each, "value", each))
def test_a_move_is_in_the_table_or_impossible(move: str, state: State) -> None:
    slot = in_state(state)
    if slot.can(move):
        slot.move(move)
        assert slot.state is MOVES[move][state]
        assert slot.limit_at is None, "what bounded the former state does not bound the new one"
    else:
        with pytest.raises(ImpossibleMoveError, match=f"default/1 is {state.value} and cannot '{move}'"):
            slot.move(move)
        assert slot.state is state


def test_every_state_can_be_reached_from_vacant_and_left() -> None:
    reached = {State.VACANT}
    while more := {new for table in MOVES.values() for old, new in table.items() if old in reached} - reached:
        reached |= more
    assert reached == set(State)
    assert all(any(old is state and new is not state for t in MOVES.values() for old, new in t.items())
               for state in State)  # fmt: skip


def test_the_way_of_a_job_and_of_its_child() -> None:
    slot = Slot("default/1", 0)
    way = ["hire", "hired", "fork", "ready", "send", "keep", "send", "retire", "buried", "fork", "ready", "send",
           "kill", "buried", "close", "warden-gone"]  # fmt: skip
    for move in way:
        slot.move(move)
    assert slot.state is State.VACANT


def test_a_slot_with_a_survivor_is_used_again_only_after_its_burial() -> None:
    slot = in_state(State.DYING)
    slot.move("unkillable")
    assert not slot.free
    assert [move for move in MOVES if slot.can(move)] == ["buried", "warden-gone", "close"]


@pytest.mark.parametrize("state", State)
def test_a_message_concerns_the_slot_only_from_the_child_it_has(state: State) -> None:
    with_child = state not in (State.VACANT, State.HIRING, State.BARE, State.CLOSED)
    slot = in_state(state)
    assert slot.has(4) is with_child
    assert not slot.has(3)


@pytest.mark.parametrize("state", State)
def test_only_an_idle_child_is_free(state: State) -> None:
    assert in_state(state).free is (state is State.IDLE)
