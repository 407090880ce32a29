"""Rows that were written by hand or by another program: the plain ones run like any other, the nonsensical fail as that
job, with a reason, and in front of them, behind them and between them all others run."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.processes import wait_until
from tests.stories.stage import Running, Stage

pytestmark = pytest.mark.slow

HANDLERS = """
    def gone(job, exception):
        with open(FOLDER / "gone", "a") as file: file.write(f"{job.id} {type(exception).__name__}\\n")
    handlers = Handlers(failed_job=gone)
    @handlers.job("note")
    def note(job):
        with open(FOLDER / "noted", "a") as file: file.write(f"{job.id}\\n")
        return [job.attempt, job.enqueued_at.isoformat(), job.process_at.isoformat()]
    @handlers.job("again", retry=Retry(1, delays=[0]))
    def again(job):
        if not (FOLDER / str(job.id)).exists():
            (FOLDER / str(job.id)).touch()
            raise ValueError("the first time")
    @handlers.job("die")
    def die(job):
        os._exit(3)
    @handlers.job("stuck")
    def stuck(job):
        with open(FOLDER / "began", "a") as file: file.write(f"{job.id}\\n")
        while True: pass
"""

INT = 2**31 - 1

# The columns of a row, and what becomes of it: None for a success, else (reason, words of the error).
Row = tuple[dict[str, Any], tuple[str, str] | None]
PLAIN: list[Row] = [
    ({"payload": "null"}, None),
    ({"payload": '{"a": {"b": []}}', "queue": "default"}, None),
    ({"enqueued_at": "infinity", "process_at": "-infinity"}, None),
    ({"enqueued_at": "-infinity", "process_at": "0044-03-15 12:00+00 BC"}, None),
    ({"enqueued_at": "294276-12-31 23:59:59+00"}, None),
    ({"attempts": 3}, None),
    ({"attempts": INT}, None),
]
NONSENSE: list[Row] = [
    ({"attempts": -5}, ("bad-row", "attempts was -5")),
    ({"attempts": -INT - 1}, ("bad-row", "attempts was")),
    ({"job_type": ""}, ("bad-row", "job_type is empty")),
    ({"job_type": "x" * 100_000}, ("bad-row", "100000 characters")),
    ({"job_type": "no such type"}, ("unknown-job-type", "no such type")),
    ({"job_type": "\x1b[31m\n\t\u202e%s {0} ' \" \\"}, ("unknown-job-type", "")),
    ({"payload": "1e400"}, ("exception", "too large")),
    ({"payload": "[1, -1.5e400]"}, ("exception", "too large")),
    ({"payload": "7" * 5000}, ("exception", "too large")),
    ({"payload": "[" * 10_000 + "]" * 10_000}, ("exception", "recursion")),
]
BEYOND: list[Row] = [  # the original's columns
    ({"priority": -32768}, None),
    ({"priority": 32767}, None),
    ({"timeout_s": 1e300, "grace_s": 1e300, "memory_bytes": 2**63 - 1}, None),
    ({"grace_s": 0, "timeout_s": 1e-300, "job_type": "stuck"}, ("timeout", "")),
    ({"starts": INT, "interrupts": INT}, None),
    ({"crashes": INT, "job_type": "die"}, ("crash", "code 3")),
    ({"crashes": -1}, ("bad-row", "crashes is -1")),
    ({"losses": -1}, ("bad-row", "losses is -1")),
    ({"losses": INT}, ("lost", "")),
    ({"history": "{}", "job_type": "again"}, None),
    ({"history": '"x"', "job_type": "again", "crashes": INT}, None),
    ({"history": "null", "job_type": "again", "interrupts": INT, "attempts": 0}, None),
    ({"state": 1, "process_at": "infinity"}, None),
    ({"unique_key": "", "fresh": True, "checkpoint": "7"}, None),
]
REFUSED: list[dict[str, Any]] = [  # by the database, to whoever writes them
    {"priority": 100_000},
    {"timeout_s": "NaN"},
    {"timeout_s": "infinity"},
    {"timeout_s": 0},
    {"grace_s": -1},
    {"memory_bytes": 0},
    {"shutdown": "never"},
    {"state": 7},
    {"state": 2},
    {"payload": "NaN"},
    {"payload": '"\\u0000"'},
    {"attempts": 2**31},
    {"process_at": "yesterday or so"},
]


@pytest.fixture
def supervisor(stage: Stage) -> Running:
    stage.handlers(HANDLERS)
    return stage.run("-c", "2", "--timeout", "60", "--shutdown", "terminate")


def insert(stage: Stage, columns: dict[str, Any]) -> UUID:
    """What another program writes: the original's columns, and those."""
    row = {"queue": "default", "job_type": "note", "payload": "{}", "attempts": 0, **columns}
    names = ", ".join(row)
    query = f"INSERT INTO proletarian.job (job_id, {names}) VALUES (gen_random_uuid(), {', '.join(['%s'] * len(row))})"
    ((job_id,),) = stage.rows(query + " RETURNING job_id", *row.values())
    assert isinstance(job_id, UUID)
    return job_id


def ended(stage: Stage, job_id: UUID) -> tuple[str, str | None, str]:
    """How the job ended: the payloads of some cannot be read by this program either."""
    query = "SELECT status, reason, coalesce(error::text, '') FROM proletarian.archived_job WHERE job_id = %s"
    told = "\n".join(running.story() for running in stage.supervisors)
    ((status, reason, error),) = wait_until(lambda: stage.rows(query, job_id), 60, lambda: f"{job_id}: {told}")
    return status, reason, error


def test_rows_written_by_hand_run_or_fail_and_none_stops_the_others(stage: Stage, supervisor: Running) -> None:
    """D34, https://github.com/encode/django-rest-framework/issues/5235: numbers that are too large and nesting that is
    too deep, written by plain SQL, fail as that job."""
    rows = [(insert(stage, columns), columns, end) for columns, end in [*NONSENSE, *BEYOND, *PLAIN]]
    elsewhere = insert(stage, {"queue": "nobody's"})
    never = insert(stage, {"process_at": "infinity"})
    for job_id, columns, end in rows:
        status, reason, error = ended(stage, job_id)
        what = (str(columns)[:200], reason, error[:500])
        if end is None:
            assert status == "success", what
        else:
            assert (status, reason) == ("failure", end[0]), what
            assert end[1] in error, what
    failed = {str(job_id) for job_id, _, end in rows if end is not None}
    wait_until(lambda: {line.split()[0] for line in stage.lines("gone")} >= failed, 20, supervisor.story)
    query = "SELECT starts FROM proletarian.job WHERE job_id = ANY (%s)"
    assert stage.rows(query, [elsewhere, never]) == [(0,), (0,)]
    last = stage.archived(stage.enqueue("note"))
    assert last["status"] == "success"
    assert not supervisor.named("job-worker-error"), supervisor.story()
    assert not supervisor.named("database-lost")
    assert not supervisor.named("child-garbage")
    (again, *_) = stage.rows("SELECT history FROM proletarian.archived_job WHERE job_type = 'again' ORDER BY job_id")[0]
    assert [entry["reason"] for entry in again] == ["exception"]


def test_a_row_with_a_cancel_order_or_a_strangers_run_does_no_harm(stage: Stage, supervisor: Running) -> None:
    cancelled = insert(stage, {"state": 1, "cancel_at": "-infinity", "cancel_reason": "because"})
    assert stage.archived(cancelled)["status"] == "cancelled"
    ((ours,),) = stage.rows("SELECT supervisor_id FROM proletarian.supervisor")
    claimed = insert(stage, {"state": 2, "run_id": UUID(int=1), "supervisor_id": ours})
    assert stage.archived(claimed, 40)["status"] == "success", "a run that we do not know goes back to the queue"
    assert not supervisor.named("job-worker-error"), supervisor.story()


@pytest.mark.parametrize("columns", REFUSED, ids=str)
def test_what_no_row_can_hold_is_refused_to_whoever_writes_it(stage: Stage, columns: dict[str, Any]) -> None:
    with pytest.raises(psycopg.Error):
        insert(stage, columns)
    assert stage.rows("SELECT count(*) FROM proletarian.job") == [(0,)]
