"""README, "What can happen to a job": each row has its tests, and they exist.

A row that is added or reworded needs an entry here, so that whoever changes it looks at what shows it. What the tests
themselves assert, only reading tells.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SHOWN = {
    "the transaction that enqueued it is rolled back": [
        "stories/test_enqueueing.py::test_a_job_is_seen_at_commit_and_gone_at_rollback",
    ],
    "the handler returns in time": ["stories/test_one_job.py::test_a_job_runs_and_its_result_is_archived"],
    "the handler raises, or exits by `SystemExit`": [
        "stories/test_failures.py::test_a_failing_job_is_retried_and_its_callbacks_get_the_real_exception",
        "stories/test_failures.py::test_every_way_a_job_can_end_its_process_is_told_truly_and_counted_once",
    ],
    "its result is no JSON, or too large": [
        "stories/test_limits.py::test_a_result_that_cannot_be_stored_fails_its_job_with_the_path_to_it",
        "stories/test_limits.py::test_results_come_whole_up_to_max_result",
    ],
    "nobody handles its type": [
        "stories/test_failures.py::test_an_unknown_job_type_is_a_failure_that_names_it",
        "stories/test_failures.py::test_with_leave_each_supervisor_of_a_mixed_fleet_takes_the_types_it_knows",
    ],
    "its row was written by hand with values that cannot be": [
        "stories/test_odd_rows.py::test_rows_written_by_hand_run_or_fail_and_none_stops_the_others",
        "stories/test_one_job.py::test_a_payload_over_the_supervisors_limit_fails_that_job",
    ],
    "its `timeout` passes": [
        "stories/test_limits.py::test_a_job_past_its_time_is_gone_in_time_whatever_it_does",
        "stories/test_endings.py::test_three_jobs_that_obey_differently_have_all_timed_out_and_the_rung_is_told",
        "stories/test_limits.py::test_a_tree_of_programs_dies_with_its_job",
    ],
    "it holds more than its `memory`": [
        "stories/test_limits.py::test_a_job_over_its_memory_is_interrupted_and_one_far_over_it_killed_at_once",
    ],
    "it dies: a signal, the kernel's OOM kill, an exit without a result": [
        "stories/test_failures.py::test_every_way_a_job_can_end_its_process_is_told_truly_and_counted_once",
        "stories/test_failures.py::test_a_poison_job_ends_at_max_crashes_whatever_its_strategy_says_and_others_flow_meanwhile",
        "stories/test_children_ended.py::test_a_job_that_the_kernel_kills_for_its_memory_costs_only_itself",
    ],
    "the same, in a child that had run other jobs": [
        "stories/test_failures.py::test_a_crash_in_a_reused_child_goes_back_once_uncounted_and_counts_in_a_fresh_one",
    ],
    "its child cannot be started, or does not begin it within 10 s": [
        "stories/test_enqueueing.py::test_a_child_start_that_fails_later_is_tried_again_and_costs_no_attempt",
        "stories/test_boot.py::test_a_start_hook_that_crashes_later_keeps_no_job_claimed",
        "core/test_machine.py::test_a_job_that_its_child_does_not_begin_goes_back_uncounted_and_the_child_is_replaced",
    ],
    "it has ended, and what it started has not": [
        "stories/test_limits.py::test_what_a_job_leaves_running_is_gone_before_its_outcome_is_stored",
        "stories/test_limits.py::test_what_a_job_has_started_is_gone_by_its_limit_while_its_callbacks_still_run",
        "core/test_gone_by.py::test_a_job_past_its_limit_that_has_left_something_is_asked_about_in_a_fresh_child",
    ],
    "no child can be started to ask strategy and callbacks": [
        "core/test_gone_by.py::test_a_job_that_no_child_can_be_asked_about_is_archived_with_a_sentence",
    ],
    "something of it survives SIGKILL": [
        "stories/test_endings.py::test_a_child_that_cannot_be_killed_costs_its_slot_and_shutdown_does_not_hang_on_it",
    ],
    "the strategy raises, hangs or answers nonsense": [
        "stories/test_failures.py::test_a_malformed_strategy_of_any_form_or_one_that_raises_costs_its_job_the_retries_and_nothing_else",
        "stories/test_failures.py::test_strategies_and_callbacks_that_hang_or_die_cost_no_other_call_and_failed_job_has_its_turn",
    ],
    "`failed_attempt` or `failed_job` raises or hangs": [
        "stories/test_failures.py::test_callbacks_that_raise_are_events_and_the_decision_stands",
        "stories/test_failures.py::test_strategies_and_callbacks_that_hang_or_die_cost_no_other_call_and_failed_job_has_its_turn",
    ],
    "somebody cancels or kills it": [
        "stories/test_limits.py::test_a_job_that_is_not_running_is_cancelled_at_once",
        "stories/test_limits.py::test_a_running_job_is_cancelled_by_the_ladder_and_killed_without_grace",
        "stories/test_limits.py::test_a_job_that_swallows_its_cancellation_is_cancelled_all_the_same",
    ],
    "shutdown interrupts or terminates it": [
        "stories/test_shutdown.py::test_a_waiting_job_is_interrupted_at_once",
        "stories/test_shutdown.py::test_each_policy",
    ],
    "it was claimed and not begun at a shutdown": [
        "stories/test_shutdown.py::test_a_job_that_was_sent_and_did_not_start_goes_back_at_once",
        "stories/test_shutdown.py::test_what_a_claim_brings_after_sigterm_goes_back",
    ],
    "its warden is killed": [
        "stories/test_wardens.py::test_a_killed_warden_costs_its_own_job_one_loss_and_nobody_else_anything",
    ],
    "the template is killed": [
        "stories/test_wardens.py::test_running_jobs_survive_their_template_and_new_ones_run_on_another",
    ],
    "its supervisor is killed, or the host is lost": [
        "stories/test_supervisor_lost.py::test_a_killed_supervisor_leaves_nothing_and_another_one_takes_its_jobs",
        "stories/test_takeover.py::test_a_supervisor_on_another_host_waits_until_the_lease_has_passed_unseen",
    ],
    "it was claimed ahead, and its supervisor is lost before its turn": [
        "stories/test_takeover.py::test_two_hundred_jobs_are_each_archived_once_though_one_of_two_supervisors_is_killed",
        "core/test_ahead.py::test_a_job_that_was_lost_before_waits_nowhere_but_in_its_queue",
    ],
    "it was lost five times (`--max-losses`)": [
        "stories/test_wardens.py::test_a_job_that_is_lost_too_often_fails_as_lost_and_failed_job_is_told",
    ],
    "the database is away for less than three quarters of a lease": [
        "stories/test_outage.py::test_jobs_run_on_while_the_server_is_away",
    ],
    "for longer, or its supervisor was stopped for so long": [
        "stories/test_outage.py::test_an_outage_longer_than_the_trust_costs_running_jobs_a_restart_and_no_attempt",
        "stories/test_takeover.py::test_the_jobs_of_a_stopped_supervisor_are_killed_before_anybody_else_runs_them",
    ],
    "the host was frozen as a whole for so long": [
        "core/test_simulation.py::test_promises_hold_in_random_schedules",
    ],
    "an asynchronous failover forgets its claim or its outcome": [
        "stories/test_takeover.py::test_what_a_failover_forgets_is_run_again_and_counted_once",
    ],
}  # fmt: skip


def test_the_rows_are_those_of_the_readme() -> None:
    section = (TESTS.parent / "README.md").read_text().partition("## What can happen to a job")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.*?) \|", section, re.MULTILINE)
    assert rows[0] == "what happens"
    assert rows[1:] == list(SHOWN)


@pytest.mark.parametrize("row", SHOWN)
def test_a_row_has_tests(row: str) -> None:
    for file, _, name in (test.partition("::") for test in SHOWN[row]):
        names = {node.name for node in ast.parse((TESTS / file).read_text()).body if isinstance(node, ast.FunctionDef)}
        assert name in names, f"tests/{file} has no {name}"
