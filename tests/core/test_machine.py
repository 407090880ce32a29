"""The machine on a clock that stands still: what it says about leaving, one step at a time."""

from __future__ import annotations

from typing import Any, TypeVar
from uuid import UUID

import pytest

from ganger.core import messages as m
from ganger.core.machine import Machine
from ganger.core.rules import BOOT_CRASHES, CLOSE_LIMIT, KILL_PATIENCE, START_LIMIT, LaneRules, Rules
from ganger.core.slot import State

C = TypeVar("C", bound=m.Command)
SLOT = "default/1"


class Desk:
    """One supervisor with one slot (or more). It remembers every command."""

    def __init__(self, slots: int = 1, **rules: Any) -> None:
        self.now = 1000.0
        self.commands: list[m.Command] = []
        self.ids = 0
        given: dict[str, Any] = {"lease": 120.0, "store_timeout": 60.0, **rules}
        self.machine = Machine(Rules((LaneRules("default", ("default",), slots),), **given), lambda: 0.5, self.new_id)
        self.commands += self.machine.start(self._clock())

    def new_id(self) -> UUID:
        self.ids += 1
        return UUID(int=self.ids)

    def _clock(self) -> m.Now:
        return m.Now(self.now, self.now)

    def hear(self, *events: m.Event) -> None:
        """Take in what happened, and do what is due."""
        for event in (*events, m.Tick()):
            self.commands += self.machine.handle(event, self._clock())

    def wait(self, seconds: float) -> None:
        """Let time pass, with a Tick whenever one is due."""
        until = self.now + seconds
        for _ in range(10_000):
            due = self.machine.deadline(self._clock())
            if due is None or self.now + due > until or self.machine.finished:
                self.now = until
                return
            self.now += due
            self.hear()
        raise AssertionError(f"it is never done with what is due at {self.now:g}")

    def said(self, kind: type[C]) -> list[C]:
        return [command for command in self.commands if isinstance(command, kind)]

    def events(self) -> list[str]:
        return [command.name for command in self.said(m.Emit)]

    def registered(self) -> Desk:
        self.hear(m.TemplateReady(1), m.Registered(1, self.now), m.WardenStarted(SLOT, 10))
        self.hear(m.WardenStarted(SLOT, 10))
        return self

    def idle(self) -> Desk:
        """With a child that waits."""
        self.registered()
        child = self.said(m.StartChild)[-1].child
        self.hear(m.ChildStarted(SLOT, child, 11), m.ChildReady(SLOT, child))
        return self

    def claimed(self) -> UUID:
        """A job in answer to the last claim; its run."""
        claim = self.said(m.Claim)[-1]
        job = m.Job(self.new_id(), self.new_id(), claim.claim_id, "default", "job", b"{}", 1)
        self.hear(m.Claimed(claim.claim_id, (job,), (0,), (True,), None))
        return job.run_id

    def running(self) -> UUID:
        run_id = self.idle().claimed()
        sent = self.said(m.SendJob)[-1]
        self.hear(m.JobStarted(SLOT, sent.child, sent.nonce))
        return run_id

    def returned(self) -> None:
        sent = self.said(m.SendJob)[-1]
        self.hear(m.JobReturned(SLOT, sent.child, sent.nonce, b"1", 1.0, 1.0, 1, clean=False, worked_s=1.0))

    def child_ends(self, exit: m.Exit) -> None:
        self.hear(m.ChildExited(SLOT, self.said(m.StartChild)[-1].child, exit))

    def gang_leaves(self) -> None:
        assert self.said(m.StopWarden)
        self.hear(m.WardenExited(SLOT, "exit code 0"))

    @property
    def exit_code(self) -> int | None:
        finished = self.said(m.Finish)
        return finished[0].exit_code if finished else None


# ---- claims ----------------------------------------------------------------------------------------------------------


def test_nothing_is_claimed_before_a_child_is_ready() -> None:
    desk = Desk().registered()
    desk.wait(30)
    assert not desk.said(m.Claim)
    assert Desk().idle().said(m.Claim)


def test_a_beat_tells_of_the_progress_of_each_run_and_of_limits_that_are_not_its_own() -> None:
    desk = Desk(timeout=900.0)
    desk.running()
    sent = desk.said(m.SendJob)[-1]
    desk.wait(5.0)
    desk.hear(m.ProgressTold(SLOT, sent.child, sent.nonce + 1, 0.9, "of another run"))
    desk.hear(m.ProgressTold(SLOT, sent.child, sent.nonce, 0.5, "half"))
    desk.wait(desk.machine.book.lease.interval)
    told = {"done": 0.5, "note": "half", "left": pytest.approx(0.0, abs=6.0)}
    assert desk.said(m.Beat)[-1].info["progress"] == {str(sent.job.job_id): told}
    assert desk.said(m.Beat)[-1].info["limits"] == {str(sent.job.job_id): 900.0}, "which is the supervisor's"
    desk.returned()
    desk.child_ends(m.Exit(exit_code=0))
    desk.wait(desk.machine.book.lease.interval)
    assert desk.said(m.Beat)[-1].info["progress"] == {}


def test_what_the_janitor_has_deleted_is_told() -> None:
    desk = Desk().idle()
    desk.hear(m.Pruned(7))
    assert [told.data["jobs"] for told in desk.said(m.Emit) if told.name == "archive-pruned"] == [7]


def generations(desk: Desk) -> list[int]:
    return [command.generation for command in desk.said(m.StartTemplate)]


def test_a_reload_gives_new_jobs_to_new_code_and_lets_old_ones_end() -> None:
    desk = Desk(slots=2)
    desk.running()
    desk.hear(m.WardenStarted("default/2", 12))
    desk.hear(m.Reload())
    assert generations(desk) == [1, 2]
    desk.hear(m.Reload())  # while it loads, it may have read the old files
    assert generations(desk) == [1, 2]
    desk.hear(m.TemplateReady(2))
    assert generations(desk) == [1, 2, 3]
    desk.hear(m.TemplateReady(3))
    assert [stopped.generation for stopped in desk.said(m.StopTemplate)] == [2], "the first one has a job"
    assert "default/2" in [stopped.slot for stopped in desk.said(m.StopWarden)]
    assert SLOT not in [stopped.slot for stopped in desk.said(m.StopWarden)]
    desk.hear(m.WardenExited("default/2", "exit code 0"))
    assert desk.said(m.StartWarden)[-1].generation == 3
    desk.returned()
    desk.hear(m.ChildExited(SLOT, desk.said(m.SendJob)[-1].child, m.Exit(exit_code=0)))
    assert [stopped.slot for stopped in desk.said(m.StopWarden)][-1] == SLOT
    desk.hear(m.WardenExited(SLOT, "exit code 0"))
    assert [stopped.generation for stopped in desk.said(m.StopTemplate)] == [2, 1]
    assert desk.events().count("reloaded") == 2


@pytest.mark.parametrize("how", ["fails", "exits", "hangs"])
def test_a_template_that_does_not_load_leaves_the_old_one_in_place(how: str) -> None:
    desk = Desk(boot_timeout=20.0)
    desk.running()
    desk.hear(m.Reload())
    if how == "fails":
        desk.hear(m.TemplateFailed(2, "SyntaxError"), m.TemplateExited(2, "exit code 1"))
    elif how == "exits":
        desk.hear(m.TemplateExited(2, "signal 11"))
    else:
        desk.wait(desk.machine.rules.boot_timeout + 1)
        desk.hear(m.TemplateReady(2))  # too late
    assert desk.events().count("boot-failed") == 1
    desk.wait(30.0)
    assert generations(desk) == [1, 2]
    assert not desk.said(m.StopWarden)
    desk.returned()
    desk.child_ends(m.Exit(exit_code=0))
    assert desk.said(m.StartChild)[-1].child > 1, "the old warden goes on"
    desk.hear(m.TemplateExited(1, "signal 9"))
    assert generations(desk) == [1, 2, 3], "and if that one is lost, another is started"


def test_nothing_is_reloaded_after_shutting_down() -> None:
    desk = Desk()
    desk.running()
    desk.hear(m.Stop(), m.Reload())
    assert generations(desk) == [1]


def given(desk: Desk, number: int, *, wait: bool = False) -> m.CheckpointGiven:
    sent = desk.said(m.SendJob)[-1]
    return m.CheckpointGiven(SLOT, sent.child, sent.nonce, number, b"%d" % number, wait)


def test_a_checkpoint_is_passed_on_at_once_and_answered_while_its_handler_runs() -> None:
    desk = Desk()
    run_id = desk.running()
    desk.hear(given(desk, 1), given(desk, 2, wait=True))
    assert [(order.run_id, order.number, order.wait) for order in desk.said(m.SaveCheckpoint)] == [
        (run_id, 1, False),
        (run_id, 2, True),
    ]
    desk.hear(m.CheckpointStored(UUID(int=999), 2), m.CheckpointStored(run_id, 2, "not its own"))
    assert [(answer.number, answer.error) for answer in desk.said(m.SendAnswer)] == [(2, "not its own")]
    desk.hear(given(desk, 3))
    desk.returned()
    desk.hear(given(desk, 4))
    desk.child_ends(m.Exit(exit_code=0))
    desk.hear(m.CheckpointStored(run_id, 3))
    orders = [command for command in desk.commands if isinstance(command, m.SaveCheckpoint | m.Archive)]
    assert [getattr(order, "number", "outcome") for order in orders] == [1, 2, 3, "outcome"]
    assert len(desk.said(m.SendAnswer)) == 1


def test_its_rows_go_back_after_a_lost_lease_only_when_checkpoints_are_stored() -> None:
    """Registering anew gives the rows of the old registration back, and a checkpoint would come too late."""
    desk = Desk()
    run_id = desk.running()
    desk.hear(given(desk, 1), given(desk, 2), m.DatabaseLost("away"))
    desk.wait(desk.machine.book.lease.trusted_until - desk.now + 0.1)
    desk.hear(given(desk, 3))  # it is not ours any more
    desk.child_ends(m.Exit(term_signal=9))
    desk.hear(m.DatabaseBack(100.0), m.CheckpointStored(run_id, 1))
    assert [order.former for order in desk.said(m.Register)] == [None]
    assert [order.number for order in desk.said(m.SaveCheckpoint)] == [1, 2]
    desk.hear(m.CheckpointStored(run_id, 2))
    assert [order.former for order in desk.said(m.Register)] == [None, 1]


def test_nothing_is_claimed_after_shutting_down() -> None:
    desk = Desk()
    desk.running()
    claims = len(desk.said(m.Claim))
    desk.hear(m.Stop(), m.Notified())
    desk.wait(30)
    assert len(desk.said(m.Claim)) == claims
    assert "shutting-down" in desk.events()


def test_what_a_claim_brings_after_shutting_down_goes_back_and_is_waited_for() -> None:
    desk = Desk().idle()
    desk.hear(m.Stop())
    assert not desk.said(m.StopWarden), "the claim is in flight"
    run_id = desk.claimed()
    assert not desk.said(m.SendJob)
    assert [(release.run_id, release.reason) for release in desk.said(m.Release)] == [(run_id, "never-started")]
    assert not desk.said(m.Deregister), "the release is not stored yet"
    desk.hear(m.Stored(run_id, "stored"), m.Deregistered())
    desk.gang_leaves()
    assert desk.exit_code == 0


# ---- leaving ---------------------------------------------------------------------------------------------------------


def test_the_steps_of_leaving() -> None:
    desk = Desk()
    run_id = desk.running()
    desk.hear(m.Stop())
    desk.returned()
    assert not desk.said(m.Archive), "its child has not left yet"
    desk.child_ends(m.Exit(exit_code=0))
    assert [archive.status for archive in desk.said(m.Archive)] == ["success"]
    assert "job-finished" not in desk.events()
    assert not desk.said(m.StopWarden)
    desk.hear(m.Stored(run_id, "stored"))
    assert desk.events()[-1] == "job-finished"
    assert desk.exit_code is None
    desk.gang_leaves()
    assert desk.exit_code is None, "it is still registered"
    desk.hear(m.Deregistered())
    assert desk.events()[-1] == "completed-shutdown"
    assert desk.exit_code == 0


def test_a_repeated_stop_is_told_and_changes_nothing() -> None:
    desk = Desk()
    desk.running()
    desk.hear(m.Stop(), m.Stop())
    assert desk.events().count("shutting-down") == 1
    assert desk.events().count("already-shut-down") == 1


@pytest.mark.parametrize(("stored_after", "exit_code"), [(50.0, 0), (None, 1)])
def test_an_outcome_is_waited_for_until_the_store_timeout(stored_after: float | None, exit_code: int) -> None:
    desk = Desk(store_timeout=60.0)
    run_id = desk.running()
    desk.hear(m.DatabaseLost("gone"), m.Stop())
    desk.returned()
    desk.child_ends(m.Exit(exit_code=0))
    if stored_after is not None:
        desk.wait(stored_after)
        assert desk.exit_code is None
        desk.hear(m.DatabaseBack(50.0), m.Stored(run_id, "stored", late=True), m.Deregistered())
        desk.gang_leaves()
    else:
        desk.wait(59.0)
        assert not desk.said(m.StopWarden)
        desk.wait(1.0)
        desk.gang_leaves()
        desk.wait(CLOSE_LIMIT)
    assert desk.exit_code == exit_code


def test_an_outcome_that_is_stored_at_the_last_moment_is_stored() -> None:
    desk = Desk(store_timeout=60.0)
    run_id = desk.running()
    desk.hear(m.DatabaseLost("gone"), m.Stop())
    desk.returned()
    desk.child_ends(m.Exit(exit_code=0))
    desk.wait(60.0)
    desk.gang_leaves()
    desk.hear(m.DatabaseBack(60.0), m.Stored(run_id, "stored", late=True), m.Deregistered())
    assert desk.exit_code == 0


def test_whoever_asks_for_the_third_time_does_not_wait_for_the_database() -> None:
    desk = Desk(store_timeout=60.0)
    desk.running()
    desk.hear(m.DatabaseLost("gone"), m.Stop())
    desk.returned()
    desk.child_ends(m.Exit(exit_code=0))
    desk.wait(20.0)
    desk.hear(m.Stop("terminate"))
    desk.wait(20.0)
    assert not desk.said(m.StopWarden)
    desk.hear(m.Stop("kill"))
    desk.gang_leaves()
    desk.wait(CLOSE_LIMIT)
    assert desk.exit_code == 1


def test_without_anything_to_lose_it_does_not_wait_for_a_database_that_is_away() -> None:
    desk = Desk().idle()
    desk.hear(m.Claimed(desk.said(m.Claim)[-1].claim_id, (), (), (False,), None))
    desk.hear(m.DatabaseLost("gone"))
    desk.wait(100.0)
    assert "lease-lost" in desk.events()
    desk.hear(m.Stop())
    desk.gang_leaves()
    desk.wait(CLOSE_LIMIT)
    assert desk.exit_code == 0


@pytest.mark.parametrize(("back_after", "exit_code"), [(50.0, 0), (None, 1)])
def test_rows_that_only_the_end_of_the_registration_gives_back_are_waited_for(
    back_after: float | None, exit_code: int
) -> None:
    desk = Desk(store_timeout=60.0)
    desk.running()
    desk.hear(m.DatabaseLost("gone"), m.Stop())
    desk.wait(100.0)
    assert "lease-lost" in desk.events()
    assert desk.said(m.Kill)
    desk.child_ends(m.Exit(term_signal=9))
    assert not desk.said(m.Release), "what is not ours is not given back"
    desk.gang_leaves()
    if back_after is not None:
        desk.wait(back_after)
        assert desk.exit_code is None
        desk.hear(m.DatabaseBack(150.0), m.Deregistered())
    else:
        desk.wait(59.0)
        assert desk.exit_code is None
        desk.wait(1.0)
    assert desk.exit_code == exit_code


def test_a_claim_without_an_answer_may_have_taken_rows_too() -> None:
    desk = Desk(store_timeout=60.0).idle()
    desk.hear(m.Stop(), m.ClaimLost(desk.said(m.Claim)[-1].claim_id), m.DatabaseLost("gone"))
    desk.gang_leaves()
    desk.wait(59.0)
    assert desk.exit_code is None
    desk.hear(m.Deregistered())
    assert desk.exit_code == 0


# ---- policies --------------------------------------------------------------------------------------------------------


def test_a_postmortem_is_not_interrupted_and_not_looked_at_all_the_time() -> None:
    desk = Desk(shutdown="interrupt")
    desk.running()
    desk.child_ends(m.Exit(term_signal=11))
    child = desk.said(m.StartChild)[-1].child
    desk.hear(m.ChildStarted(SLOT, child, 12), m.ChildReady(SLOT, child))
    assert desk.said(m.SendPostmortem)
    desk.hear(m.Stop())
    desk.wait(5.0)
    assert not [order for order in desk.said(m.Interrupt) if order.child == child]


def test_a_second_stop_hardens_and_a_third_does_not_wait_for_the_grace() -> None:
    desk = Desk(grace=60.0)
    desk.running()
    desk.hear(m.Stop())
    assert not [order for order in desk.said(m.Interrupt) if order.signal]
    desk.hear(m.Stop("terminate"))
    assert [order.reason for order in desk.said(m.Interrupt) if order.signal] == ["shutdown"]
    assert not desk.said(m.Kill)
    desk.hear(m.Stop("kill"))
    assert desk.said(m.Kill)


# ---- the lease -------------------------------------------------------------------------------------------------------


def test_what_had_finished_is_stored_before_it_registers_anew() -> None:
    desk = Desk()
    run_id = desk.running()
    desk.returned()
    assert desk.said(m.Retire)
    desk.now += 1000.0  # frozen
    desk.hear()
    assert "lease-lost" in desk.events()
    assert len(desk.said(m.Register)) == 1, "a registration would release the row"
    desk.child_ends(m.Exit(exit_code=0))
    assert [archive.run_id for archive in desk.said(m.Archive)] == [run_id]
    assert len(desk.said(m.Register)) == 1
    desk.hear(m.Stored(run_id, "stored"))
    assert [register.former for register in desk.said(m.Register)] == [None, 1]


def test_a_row_of_a_claim_whose_answer_was_lost_goes_back() -> None:
    """Correction 18: the database thinks that we run it, nobody here does, and no claim is in flight that may tell of
    it."""
    desk = Desk().idle()
    claim = desk.said(m.Claim)[-1]
    row = m.HeldRow(desk.new_id(), desk.new_id(), claim.claim_id)
    desk.hear(m.Beaten(1, desk.now, (row,)))
    assert not desk.said(m.Release), "its answer may still come"
    desk.hear(m.ClaimLost(claim.claim_id))
    assert desk.said(m.Beat), "the rows come to light with a beat, so one is sent at once"
    desk.hear(m.Beaten(1, desk.now, (row,)))
    assert [(release.run_id, release.reason) for release in desk.said(m.Release)] == [(row.run_id, "claim-lost")]


def test_a_run_that_the_database_does_not_list_is_killed_and_settled_by_nobody() -> None:
    """Correction 18: somebody else took its row, or deleted it."""
    desk = Desk()
    run_id = desk.running()
    desk.hear(m.Beaten(1, desk.now - 1, ()))
    assert not desk.said(m.Kill), "that beat was sent before the claim"
    desk.wait(1)
    desk.hear(m.Beaten(1, desk.now, ()))
    assert len(desk.said(m.Kill)) == 1
    desk.child_ends(m.Exit(term_signal=9))
    assert "outcome-refused" in desk.events()
    outcomes: list[m.Outcome] = [*desk.said(m.Archive), *desk.said(m.Retry), *desk.said(m.Release)]
    assert run_id not in {outcome.run_id for outcome in outcomes}


def lost_and_registered_anew(desk: Desk) -> None:
    desk.now += 1000.0  # frozen
    desk.hear()
    assert "lease-lost" in desk.events()
    assert desk.said(m.Register)[-1].former == 1
    desk.hear(m.Registered(2, desk.now))


def test_the_answer_to_a_beat_of_the_lost_registration_costs_nothing() -> None:
    """It had waited through the outage: that the old registration is gone by now is no news."""
    desk = Desk().idle()
    lost_and_registered_anew(desk)
    desk.hear(m.Beaten(1, desk.now, None))
    assert desk.events().count("lease-lost") == 1
    desk.hear(m.Beaten(2, desk.now, None))
    assert desk.events().count("lease-lost") == 2


def test_jobs_of_a_claim_under_the_lost_registration_are_not_run_under_the_next() -> None:
    """Their rows went back when it registered anew, and may be claimed again by now, even by itself."""
    desk = Desk().idle()
    lost_and_registered_anew(desk)
    run_id = desk.claimed()
    assert not desk.said(m.SendJob)
    assert [release.run_id for release in desk.said(m.Release)] == [run_id]
    desk.hear(m.Stored(run_id, "refused"))
    desk.claimed()
    assert len(desk.said(m.SendJob)) == 1


# ---- a job at its limit ----------------------------------------------------------------------------------------------


def test_a_child_that_has_obeyed_its_limit_flushes_no_longer_than_the_ladder_lasts() -> None:
    """What the job has started lives until its child has gone: so that is bounded by the kill it has escaped."""
    desk = Desk(timeout=10.0, grace=1.0)
    desk.running()
    desk.wait(10.2)
    assert len(desk.said(m.Interrupt)) == 1
    desk.returned()
    assert len(desk.said(m.Retire)) == 1
    desk.wait(1.2)
    assert not desk.said(m.Kill)
    desk.wait(0.2)
    assert len(desk.said(m.Kill)) == 1


def test_where_a_run_was_is_asked_before_its_limit_is_enforced_and_kept_with_the_attempt() -> None:
    desk = Desk(timeout=10.0, grace=5.0)
    desk.running()
    desk.wait(9.9)
    assert not desk.said(m.TakeStack)
    sent = desk.said(m.SendJob)[-1]
    desk.hear(m.StackTaken(SLOT, sent.child, sent.nonce, "somebody just asked"))
    desk.wait(0.2)
    kinds = [type(command) for command in desk.commands]
    assert kinds.index(m.TakeStack) < kinds.index(m.Interrupt)
    desk.hear(m.StackTaken(SLOT, sent.child, sent.nonce, "in the loop"))
    desk.hear(m.OutputKept(SLOT, sent.child, sent.nonce, "the last words"))
    desk.wait(6)
    assert len(desk.said(m.TakeStack)) == 1
    desk.hear(m.ChildExited(SLOT, sent.child, m.Exit(term_signal=9)))
    (told,) = [emit for emit in desk.said(m.Emit) if emit.name == "job-timed-out"]
    assert not {"stack", "output"} & set(told.data)


@pytest.mark.parametrize("by_kernel", [True, False])
def test_a_kill_of_the_kernel_is_told_from_ours(by_kernel: bool) -> None:
    desk = Desk(timeout=10.0, grace=0.0, slots=1)
    desk.running()
    if not by_kernel:
        desk.wait(10.1)
    (run,) = [slot.run for slot in desk.machine.pool.slots.values()]
    desk.child_ends(m.Exit(term_signal=9, by_kernel=True))
    assert run is not None
    assert run.kept.get("ended_by") == ("kernel" if by_kernel else None)


def test_a_job_that_has_stalled_is_told_of_and_goes_on() -> None:
    desk = Desk()
    desk.running()
    sent = desk.said(m.SendJob)[-1]
    desk.hear(m.Stalled(SLOT, sent.child, sent.nonce, 60.5))
    (told,) = [emit for emit in desk.said(m.Emit) if emit.name == "job-stalled"]
    assert told.data["seconds"] == 60.5
    assert not desk.said(m.Interrupt)
    assert not desk.said(m.Kill)


def test_a_warden_that_does_not_acknowledge_a_kill_is_continued_and_then_killed_itself() -> None:
    desk = Desk(timeout=10.0, grace=0.0)
    desk.running()
    desk.wait(10.1)
    assert len(desk.said(m.Kill)) == 1
    desk.wait(KILL_PATIENCE)
    assert len(desk.said(m.ContinueWarden)) == 1
    assert not desk.said(m.KillDirectly)
    desk.wait(KILL_PATIENCE)
    assert len(desk.said(m.KillDirectly)) == 1
    desk.hear(m.WardenExited(SLOT, "signal 9"))
    assert "job-timed-out" in desk.events()
    assert "job-lost" not in desk.events(), "it was we who killed its warden"


# ---- children that do not boot ---------------------------------------------------------------------------------------


def boots_and_dies(desk: Desk, error: str | None = None) -> None:
    """The slot's next child ends before it is ready, perhaps with a word."""
    for _ in range(100):
        if desk.machine.pool.slots[SLOT].state is State.BOOTING:
            break
        desk.wait(0.5)
    child = desk.said(m.StartChild)[-1].child
    desk.hear(m.ChildStarted(SLOT, child, 11))
    if error is not None:
        desk.hear(m.ChildBootFailed(SLOT, child, error))
    desk.child_ends(m.Exit(term_signal=11) if error is None else m.Exit(exit_code=1))


def test_first_children_that_die_without_a_word_are_tried_a_few_times_and_then_end_the_supervisor() -> None:
    desk = Desk().registered()
    for count in range(1, BOOT_CRASHES + 1):
        assert desk.machine.exit_code == 0
        boots_and_dies(desk)
        assert desk.events().count("boot-failed") == count
    assert desk.machine.exit_code == 2
    assert "signal 11" in [each.data["error"] for each in desk.said(m.Emit) if each.name == "boot-failed"][-1]
    assert not desk.said(m.Claim)


def test_one_that_says_why_it_cannot_boot_is_told_once_and_ends_it_at_once() -> None:
    desk = Desk().registered()
    boots_and_dies(desk, "RuntimeError: no such device")
    assert desk.events().count("boot-failed") == 1
    assert desk.machine.exit_code == 2


def test_once_a_child_was_ready_later_ones_that_die_are_tried_again_for_ever() -> None:
    desk = Desk().idle()
    desk.hear(m.ChildExited(SLOT, desk.said(m.StartChild)[-1].child, m.Exit(term_signal=9)))
    for _ in range(BOOT_CRASHES + 1):
        boots_and_dies(desk)
    assert desk.machine.exit_code == 0
    assert len(desk.said(m.StartChild)) == BOOT_CRASHES + 2


# ---- a job that does not start ---------------------------------------------------------------------------------------


def test_a_job_that_its_child_does_not_begin_goes_back_uncounted_and_the_child_is_replaced() -> None:
    desk = Desk().idle()
    run_id = desk.claimed()
    desk.wait(START_LIMIT - 0.1)
    assert not desk.said(m.ReplaceIdle)
    desk.wait(0.2)
    assert len(desk.said(m.ReplaceIdle)) == 1
    desk.child_ends(m.Exit(term_signal=9))
    assert [(release.run_id, release.reason) for release in desk.said(m.Release)] == [(run_id, "never-started")]
    desk.wait(2.0)
    assert len(desk.said(m.StartChild)) == 2


def test_a_job_that_started_and_failed_just_before_its_child_was_replaced_goes_back_uncounted() -> None:
    desk = Desk().idle()
    run_id = desk.claimed()
    sent = desk.said(m.SendJob)[-1]
    desk.wait(START_LIMIT)
    assert desk.said(m.ReplaceIdle)
    about = (SLOT, sent.child, sent.nonce)
    error = {"type": "ValueError", "message": "no"}
    desk.hear(
        m.JobStarted(*about),
        m.JobRaised(*about, "exception", error, False, False, None, None, 0.1, 0.1, 1, True, 0.1),
        m.KillAcknowledged(SLOT, sent.child),
    )
    desk.child_ends(m.Exit(term_signal=9))
    assert [(release.run_id, release.reason) for release in desk.said(m.Release)] == [(run_id, "never-started")]
    assert "job-crashed" not in desk.events()


def test_one_that_started_just_then_is_spared_and_goes_on() -> None:
    desk = Desk().idle()
    run_id = desk.claimed()
    sent = desk.said(m.SendJob)[-1]
    desk.wait(START_LIMIT)
    desk.hear(m.RunSpared(SLOT, sent.child, sent.nonce))
    desk.child_ends(m.Exit(term_signal=11))
    assert "job-crashed" in desk.events()
    assert run_id not in [release.run_id for release in desk.said(m.Release)]
