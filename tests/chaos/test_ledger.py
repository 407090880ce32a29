"""The ledger of chaos runs sees each kind of broken promise, and excuses only what the promises except."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.chaos.ledger import Archived, Enqueued, Record, Window, check, read

JOB, FIRST, SECOND = "job-1", "run-1", "run-2"
LOST = {"reason": "lost"}
RAN_TWICE = f"""\
S 10.0 {JOB} {FIRST} 1 sleep h1
T 11.0 {JOB} {FIRST}
S 20.0 {JOB} {SECOND} 2 sleep h2
E 21.0 {JOB} {SECOND} returned
"""
OVERLAPPED = f"""\
S 10.0 {JOB} {FIRST} 1 sleep h1
O 20.0 {JOB} {SECOND} {FIRST} h2
S 20.0 {JOB} {SECOND} 2 sleep h2
E 21.0 {JOB} {SECOND} returned
T 26.5 {JOB} {FIRST}
"""
ROW = Archived(JOB, "success", None, SECOND, 2, 0, 1, 0, 2, [LOST], SECOND)


def record(lines: str = RAN_TWICE, row: Archived | None = ROW) -> Record:
    """A job that was lost with its first host and ended well on another."""
    made = Record(enqueued={JOB: Enqueued(JOB, "sleep", "committed", 9.0)})
    read(lines.splitlines(), made)
    if row is not None:
        made.archived[JOB] = row
    return made


def violations(made: Record) -> str:
    return "\n".join(check(made).violations)


def test_what_was_promised_is_no_violation() -> None:
    findings = check(record())
    assert not findings.violations
    assert not findings.excused


def rolled_back(made: Record) -> None:
    made.enqueued[JOB] = replace(made.enqueued[JOB], fate="rolled back")


def in_queue(made: Record) -> None:
    made.queued[JOB] = "state 2"


def unknown(made: Record) -> None:
    made.enqueued[JOB] = replace(made.enqueued[JOB], fate="unknown")
    made.archived.clear()


def ran_again(made: Record) -> None:
    read([f"S 30.0 {JOB} run-3 2 sleep h1"], made)


def started_twice(made: Record) -> None:
    read([f"S 20.5 {JOB} {SECOND} 2 sleep h2"], made)


def archive(**changes: object) -> Callable[[Record], None]:
    def change(made: Record) -> None:
        made.archived[JOB] = replace(made.archived[JOB], **changes)  # type: ignore[arg-type]

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda made: made.archived.clear(), "it is lost"),
        (lambda made: made.enqueued.clear(), "nobody enqueued it"),
        (rolled_back, "was rolled back"),
        (in_queue, "it has not ended"),
        (unknown, "neither in the queue nor in the archive"),
        (ran_again, "ran again after the run that ended it"),
        (started_twice, "was started 2 times"),
        (archive(run_id=FIRST), "which did not return"),
        (archive(result=FIRST), "which is not what run"),
        (archive(status="cancelled"), "nobody cancelled it"),
        (archive(status="failure", reason="exception"), "failed_job was not called"),
        (archive(attempts=1), "attempts do not add up"),
        (archive(losses=0), "losses do not add up"),
        (archive(crashes=1), "crashes do not add up"),
        (archive(interrupts=1), "interruptions do not add up"),
        (archive(starts=1), "refunds do not add up"),
        (archive(history=[LOST, {"reason": "exception"}], attempts=3, starts=3), "ended less often"),
        (archive(history=[{"reason": "crash"}], crashes=1, losses=0), "1 crashes are told, and only 0"),
        (archive(history=[LOST, {"reason": "blame"}], starts=3), "1 crashes are told, and only 0"),
    ],
)
def test_a_broken_promise_is_seen(change: Callable[[Record], None], words: str) -> None:
    made = record()
    change(made)
    assert words in violations(made)


def test_two_runs_of_one_job_at_a_time_are_seen() -> None:
    assert f"run {SECOND} began while run {FIRST} was alive" in violations(record(OVERLAPPED))


def test_a_frozen_host_excuses_an_overlap_as_long_as_its_run_ends_soon_after_the_thaw() -> None:
    made = record(OVERLAPPED)
    made.windows = [Window("frozen", 11.0, 25.0, "h1")]
    findings = check(made)
    assert not findings.violations
    assert findings.excused == {"the host was frozen": 1}
    made.windows = [Window("frozen", 11.0, 22.0, "h1")]
    assert "was seen 4.5 s after its host thawed" in violations(made)
    for elsewhere in (Window("frozen", 11.0, 25.0, "h2"), Window("frozen", 12.0, 16.0, "h1")):
        made.windows = [elsewhere]
        assert "was alive" in violations(made)


def test_a_failover_that_forgot_commits_excuses_what_was_committed_meanwhile_and_nothing_else() -> None:
    row = replace(ROW, attempts=1, losses=0, history=[], starts=1)
    made = record(OVERLAPPED, row)
    made.runs[FIRST].seen = 20.5  # it was killed once the database was seen not to know it
    made.windows = [Window("forgot", 9.5, 15.5)]
    findings = check(made)
    assert not findings.violations
    assert findings.excused == {"a failover forgot commits": 1, "a failover forgot a claim": 1}
    made.windows = [Window("forgot", 60.0, 61.0)]
    assert "was alive" in violations(made)
    assert "ran more often than it was claimed" in violations(made)
    made = record(OVERLAPPED, row)  # it went on
    made.windows = [Window("forgot", 9.5, 15.5)]
    assert "was alive" in violations(made)


def test_a_job_that_was_forgotten_before_it_ran_is_excused() -> None:
    made = record("", None)
    assert "it is lost" in violations(made)
    made.windows = [Window("forgot", 8.0, 10.0)]
    assert not check(made).violations


def test_a_commit_without_an_answer_may_have_been_or_not() -> None:
    made = record("", None)
    made.enqueued[JOB] = replace(made.enqueued[JOB], fate="unknown")
    assert not check(made).violations
    made = record()
    made.enqueued[JOB] = replace(made.enqueued[JOB], fate="unknown")
    assert not check(made).violations
