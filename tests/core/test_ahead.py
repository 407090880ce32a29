"""Jobs that are claimed ahead: how many, how they reach a child, and how they come back."""

from __future__ import annotations

import pytest

from ganger.core import messages as m
from ganger.core.book import GATHER
from ganger.core.pace import BYTES, DEEPEST, LULL, MOST, SHORT, SOCKET, WAITS, Pace
from ganger.core.slot import State
from tests.core.test_machine import SLOT, Desk

JOB_S = 0.03  # seconds; only one such job waits in a child's socket


class Rush(Desk):
    """A desk whose jobs are short, with more of them than it can run."""

    def __init__(self, slots: int = 1) -> None:
        super().__init__(slots)
        self.idle()
        self.claim()
        self.begins(self.sent()[0])
        self.ends(self.sent()[0])

    def sent(self) -> list[m.SendJob]:
        return self.said(m.SendJob)

    def claim(self, count: int = 1, losses: int = 0) -> list[m.Job]:
        """Answer the claim that is due with so many jobs."""
        claim = self.said(m.Claim)[-1]
        jobs = tuple(
            m.Job(self.new_id(), self.new_id(), claim.claim_id, "default", "job", b"{}", 1 + losses, losses=losses)
            for _ in range(count)
        )
        self.now += 0.005
        self.hear(m.Claimed(claim.claim_id, jobs, (0,) * count, (True,), None))
        return list(jobs)

    def begins(self, sent: m.SendJob) -> None:
        self.hear(m.JobStarted(SLOT, sent.child, sent.nonce))

    def ends(self, sent: m.SendJob, *, clean: bool = True, begun: m.SendJob | None = None) -> None:
        self.now += JOB_S
        told = m.JobReturned(SLOT, sent.child, sent.nonce, b"1", JOB_S, JOB_S, 1, clean=clean, worked_s=JOB_S)
        self.hear(told, *([m.JobStarted(SLOT, begun.child, begun.nonce)] if begun else []))

    def begun(self, count: int = 2) -> tuple[m.SendJob, m.SendJob]:
        """Of so many jobs that were claimed, the first is begun and the second waits in the child's socket."""
        self.claim(count)
        first, second = self.sent()[1:]
        self.begins(first)
        return first, second

    def released(self) -> list[m.Release]:
        return self.said(m.Release)


# ---- how many --------------------------------------------------------------------------------------------------------


def test_nothing_is_claimed_ahead_before_jobs_are_known_to_be_short() -> None:
    assert Pace().ahead(4) == 0
    assert Desk().idle().said(m.Claim)[-1].lanes[0].free == 1


def test_what_is_claimed_ahead_is_what_a_round_trip_uses_up() -> None:
    pace = Pace(trip_s=0.1)
    pace.ended(0.005)
    assert pace.ahead(2) == 2 + 80  # twice 2 slots x 100 ms / 5 ms, and one for each slot
    pace.ended(1.0)  # one long job, and no more is claimed ahead
    assert pace.ahead(2) == 0


@pytest.mark.parametrize(("payload", "most"), [(10, MOST), (1 << 20, 8), (BYTES + 1, 0)])
def test_what_is_claimed_ahead_is_bounded_in_number_and_bytes(payload: int, most: int) -> None:
    pace = Pace(trip_s=10.0)
    pace.ended(0.0)
    pace.claimed(payload)
    assert pace.ahead(50) == most


def test_more_than_a_free_slot_is_claimed_once_jobs_are_short() -> None:
    assert Rush().said(m.Claim)[-1].lanes[0].free > 2


def test_a_trip_is_what_the_last_ones_took() -> None:
    pace = Pace(trip_s=0.01)
    for _ in range(50):
        pace.answered(0.02, 0.0)
    assert pace.trip_s == pytest.approx(0.02, rel=0.01)
    desk = Rush()
    before = desk.machine.pool.paces[0].trip_s
    desk.claim(1)
    assert desk.machine.pool.paces[0].trip_s != before


def test_a_slot_needs_more_for_a_job_than_the_job_itself_and_that_counts() -> None:
    """On a busy machine a job of no length at all may need 2 ms of both slots: then 256 of them would wait too long."""
    pace = Pace(trip_s=0.02)
    now = 0.0
    for _ in range(30):
        for _ in range(10):
            pace.ended(0.0001)
        pace.answered(0.02, now)
        now += 0.02
    assert pace.each_s == pytest.approx(0.002)
    assert pace.ahead(2) == 2 + 80
    pace.ended(0.0001)
    pace.answered(0.02, now + 60)  # nothing was there to do: that is no pace
    assert pace.each_s == pytest.approx(0.002)


def test_a_job_that_was_lost_before_waits_nowhere_but_in_its_queue() -> None:
    """What took its host may do so again: nobody is lost twice for having waited beside it."""
    desk = Rush()
    desk.claim(1)
    desk.begins(desk.sent()[-1])
    (lost,) = desk.claim(1, losses=1)
    assert [release.run_id for release in desk.released()] == [lost.run_id]
    claims = len(desk.said(m.Claim))
    desk.ends(desk.sent()[-1])
    assert len(desk.said(m.Claim)) == claims + 1
    assert desk.said(m.Claim)[-1].lanes[0].free == 1, "nothing more is claimed beside it"
    (lost,) = desk.claim(1, losses=1)
    assert desk.sent()[-1].job.run_id == lost.run_id


# ---- to a child ------------------------------------------------------------------------------------------------------


def test_one_job_waits_in_the_childs_socket_and_follows_at_once() -> None:
    desk = Rush()
    desk.claim(3)
    _, first, second = desk.sent()
    assert (first.after, second.after) == (0, first.nonce)
    desk.begins(first)
    desk.ends(first)
    assert desk.sent()[-1].after == second.nonce  # the third; the child is at the second already
    desk.begins(second)
    desk.ends(second)
    told = [(e.name, e.data["job_id"]) for e in desk.said(m.Emit) if e.name == "handling-job"]
    assert len(told) == len({job_id for _, job_id in told}) == 4
    assert [outcome.run_id for outcome in desk.said(m.Archive)[:1]] == [desk.sent()[0].job.run_id]


def test_more_jobs_wait_in_a_childs_socket_where_they_are_very_short_and_small() -> None:
    pace = Pace()
    assert pace.depth == 0
    pace.ended(0.03)
    assert pace.depth == 1
    pace.job_s = 0.0001
    assert pace.depth == DEEPEST
    pace.claimed(SOCKET // 2)
    assert pace.depth == 2
    desk = Rush()
    desk.machine.pool.paces[0].job_s = 0.001
    jobs = desk.claim(6)
    first, *ahead = desk.sent()[1:]
    assert [sent.job for sent in ahead] == jobs[1:]
    assert [sent.after for sent in ahead] == [first.nonce, *(sent.nonce for sent in ahead[:-1])]


def test_of_several_jobs_in_a_childs_socket_those_go_back_that_it_has_not_begun() -> None:
    desk = Rush()
    desk.machine.pool.paces[0].job_s = 0.001
    desk.claim(4)
    first, *ahead = desk.sent()[1:]
    desk.begins(first)
    desk.hear(m.Stop())
    assert [order.nonces for order in desk.said(m.Revoke)] == [tuple(sent.nonce for sent in ahead)]
    desk.ends(first, begun=ahead[0])
    for sent in reversed(ahead[1:]):
        desk.hear(m.RunRevoked(SLOT, sent.child, sent.nonce))
    desk.ends(ahead[0])
    assert {release.run_id for release in desk.released()} == {sent.job.run_id for sent in ahead[1:]}
    assert ahead[0].job.run_id in {outcome.run_id for outcome in desk.said(m.Archive)}


def test_a_child_that_does_not_stay_gets_its_next_job_back_to_others() -> None:
    desk = Rush()
    first, second = desk.begun()
    desk.ends(first, clean=False)
    assert desk.said(m.Retire)
    assert not desk.released()
    desk.child_ends(m.Exit(exit_code=0))
    child = desk.said(m.StartChild)[-1].child
    desk.hear(m.ChildStarted(SLOT, child, 12), m.ChildReady(SLOT, child))
    again = desk.sent()[-1]
    assert (again.child, again.job, again.after) == (child, second.job, 0)


def test_a_failure_calls_its_callbacks_before_the_next_job() -> None:
    desk = Rush()
    first, second = desk.begun()
    raised = m.JobRaised(
        SLOT, first.child, first.nonce, "exception", {"type": "X"}, False, False, None, None, 0.001, 0.0, 1, True, 0.01
    )
    desk.hear(raised)
    assert desk.said(m.SendCallbacks)[-1].nonce == first.nonce
    desk.hear(m.CallbacksDone(SLOT, first.child, first.nonce, {}))
    again = desk.sent()[-1]
    assert (again.job, again.after) == (second.job, 0)
    assert again.nonce > second.nonce


# ---- and back --------------------------------------------------------------------------------------------------------


def test_what_waits_behind_a_job_that_turns_out_long_goes_back() -> None:
    desk = Rush()
    _, second = desk.begun(3)
    desk.wait(SHORT + 0.01)
    assert [order.nonces for order in desk.said(m.Revoke)] == [(second.nonce,)]
    desk.hear(m.RunRevoked(SLOT, second.child, second.nonce))
    desk.wait(WAITS + 0.01)
    assert {release.job_id for release in desk.released()} >= {second.job.job_id}
    assert len(desk.released()) == 2
    assert {release.reason for release in desk.released()} == {"never-started"}


def test_a_run_that_was_begun_before_it_could_be_revoked_runs_on() -> None:
    desk = Rush()
    first, second = desk.begun()
    desk.wait(SHORT + 0.01)
    desk.ends(first)
    desk.begins(second)
    desk.hear(m.RunRevoked(SLOT, second.child, second.nonce + 7))  # about another
    desk.ends(second)
    assert not desk.released()
    assert {outcome.run_id for outcome in desk.said(m.Archive)} >= {first.job.run_id, second.job.run_id}


def test_a_run_that_was_revoked_after_its_child_was_free_for_it_is_sent_again() -> None:
    desk = Rush()
    first, second = desk.begun()
    desk.wait(SHORT + 0.01)
    desk.ends(first)
    desk.hear(m.RunRevoked(SLOT, second.child, second.nonce))
    again = desk.sent()[-1]
    assert (again.job, again.after) == (second.job, 0)


def test_what_was_sent_behind_a_revoked_run_is_what_its_child_goes_on_with() -> None:
    """The order to take it back was under way when it became the slot's run, and another was sent ahead."""
    desk = Rush()
    first, second = desk.begun()
    desk.wait(SHORT + 0.01)
    assert desk.said(m.Revoke)
    desk.ends(first)
    desk.machine.pool.paces[0].job_s = JOB_S
    desk.claim(1)
    third = desk.sent()[-1]
    assert third.after == second.nonce
    desk.hear(m.RunRevoked(SLOT, second.child, second.nonce))
    assert desk.sent()[-1].job != second.job or desk.sent()[-1].after == third.nonce, "its child is not idle"
    desk.begins(third)
    desk.ends(third)
    assert third.job.run_id in {outcome.run_id for outcome in desk.said(m.Archive)}
    assert desk.sent()[-1].job == second.job


def test_a_crash_costs_only_the_job_that_was_running() -> None:
    desk = Rush()
    first, second = desk.begun()
    desk.child_ends(m.Exit(term_signal=11))
    desk.wait(WAITS + 0.01)
    reasons = {release.job_id: release.reason for release in desk.released()}
    assert reasons == {first.job.job_id: "blame", second.job.job_id: "never-started"}


def test_a_job_that_comes_back_goes_to_a_slot_that_is_idle() -> None:
    desk = Rush(slots=2)
    desk.claim(2)
    first, second = desk.sent()[1:]
    assert first.slot == second.slot, "the other slot is not ready yet"
    other = next(name for name in desk.machine.pool.slots if name != first.slot)
    desk.hear(m.WardenStarted(other, 20))
    child = desk.said(m.StartChild)[-1].child
    desk.hear(m.ChildStarted(other, child, 21), m.ChildReady(other, child))
    desk.begins(first)
    desk.hear(m.ChildExited(SLOT, first.child, m.Exit(term_signal=11)))
    again = desk.sent()[-1]
    assert (again.slot, again.job) == (other, second.job)


def test_a_run_that_dies_with_the_child_of_the_run_before_is_not_to_blame() -> None:
    """The kill for one job's limit met its child in the moment after it, which the child had used to begin the next."""
    desk = Rush()
    _, second = desk.begun()
    slot = desk.machine.pool.slots[SLOT]
    desk.machine.pool.order(slot, "killed", m.Now(desk.now, desk.now), grace=0.0)
    desk.begins(second)  # read before the word that ended the first: it was lost with the child
    desk.child_ends(m.Exit(term_signal=9))
    assert [(release.job_id, release.reason, release.fresh) for release in desk.released()] == [
        (second.job.job_id, "blame", True)
    ]


def test_a_kill_that_finds_the_child_in_the_next_job_spares_it() -> None:
    desk = Rush()
    first, second = desk.begun()
    slot = desk.machine.pool.slots[SLOT]
    desk.machine.pool.order(slot, "killed", m.Now(desk.now, desk.now), grace=0.0)
    desk.hear(m.RunSpared(SLOT, second.child, second.nonce))
    desk.ends(first)
    desk.begins(second)
    desk.ends(second)
    assert slot.state is State.LEAVING  # it was signalled
    statuses = {outcome.run_id: outcome.status for outcome in desk.said(m.Archive)}
    assert statuses[first.job.run_id] == "cancelled"


def test_at_shutdown_what_was_claimed_ahead_goes_back_at_once() -> None:
    desk = Rush()
    first, second = desk.begun(4)
    desk.hear(m.Stop())
    assert len(desk.released()) == 2
    desk.hear(m.RunRevoked(SLOT, second.child, second.nonce))
    assert len(desk.released()) == 3
    assert desk.machine.pool.runs[0][1].job == first.job


def test_a_lost_lease_fences_what_waits() -> None:
    desk = Rush()
    desk.claim(4)
    desk.begins(desk.sent()[1])
    desk.commands.clear()
    desk.now += 200
    desk.hear()
    assert "lease-lost" in desk.events()
    desk.child_ends(m.Exit(term_signal=9)) if desk.said(m.StartChild) else desk.hear(
        m.ChildExited(SLOT, 1, m.Exit(term_signal=9))
    )
    desk.wait(1)
    assert not desk.released()
    assert not list(desk.machine.pool.waiting())


# ---- outcomes --------------------------------------------------------------------------------------------------------


def test_outcomes_are_gathered_while_every_slot_is_at_a_short_job() -> None:
    desk = Rush()
    desk.claim(desk.said(m.Claim)[-1].lanes[0].free)
    told = len(desk.said(m.Archive))
    for _ in range(2):
        sent = desk.sent()[-2]
        desk.begins(sent)
        desk.ends(sent)
    assert len(desk.said(m.Archive)) == told
    desk.wait(GATHER)
    assert len(desk.said(m.Archive)) == told + 2


def test_an_outcome_is_stored_at_once_where_a_slot_is_idle() -> None:
    desk = Desk()
    desk.running()
    desk.returned()
    desk.child_ends(m.Exit(exit_code=0))
    assert len(desk.said(m.Archive)) == 1


def test_what_children_say_may_wait_only_while_each_has_more_to_do_than_that() -> None:
    """While it waits no child waits, and no order is late that anybody could notice."""
    desk = Rush()
    lull = desk.machine.lull
    assert lull() == 0, "the slot is free"
    desk.claim(1)
    desk.begins(desk.sent()[-1])
    assert lull() == 0, "nothing waits behind its job"
    desk.claim(1)
    assert lull() == min(LULL, JOB_S / 2)
    desk.machine.pool.paces[0].job_s = 0.001
    assert lull() == 0.001 / 2
    desk.wait(SHORT + 0.01)
    assert lull() == 0, "its job turns out long"
    assert Desk(2).idle().machine.lull() == 0


def test_nothing_waits_at_shutdown() -> None:
    desk = Rush()
    desk.begun()
    assert desk.machine.lull() > 0
    desk.hear(m.Stop())
    assert desk.machine.lull() == 0
