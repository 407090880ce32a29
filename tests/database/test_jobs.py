"""What operators ask of the queue and do to it: lists and their pages, a job's whole life, another life, pauses."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from threading import Thread
from uuid import UUID, uuid4

import pytest

from ganger import database as db
from ganger import jobs
from ganger.client import NewJob, cancel, enqueue, enqueue_many
from ganger.core.messages import Archive, Job, Release, Retry
from ganger.jobs import Filter
from tests.database.conftest import S, claim, register, rows


def archive(job: Job, status: str = "success", reason: str | None = None, **facts: object) -> Archive:
    return Archive(job.job_id, job.run_id, status, reason, facts)


def failed(conn: db.Connection, supervisor_id: int, job_type: str = "t", **options: object) -> UUID:
    """A job that has run once and failed."""
    job_id = enqueue(conn, job_type, **options)  # type: ignore[arg-type]
    (job,) = claim(conn, supervisor_id, 1, str(options.get("queue", "default")))
    facts = {"pid": 7, "wall_s": 2.0, "cpu_s": 1.5, "max_rss": 1 << 20, "error": {"type": "E", "message": "no way"}}
    db.finish(conn, S, [archive(job, "failure", "exception", **facts)])
    return job_id


def ids(conn: db.Connection, which: Filter) -> set[UUID]:
    return set(jobs.find_ids(conn, S, which))


# ---------------------------------------------------------------------------------------------------------------------
# See


def test_every_filter_finds_what_it_says(conn: db.Connection) -> None:
    me = register(conn)
    was_failed = failed(conn, me)
    done = enqueue(conn, "u", queue="q")
    db.finish(conn, S, [archive(claim(conn, me, 1, "q")[0])])
    gone = enqueue(conn, "t")
    cancel(conn, gone)
    running = enqueue(conn, "u")
    claim(conn, me)
    ready = enqueue(conn, "t", queue="q")
    scheduled = enqueue(conn, "t", process_in=3600)
    due = enqueue(conn, "t", process_in=3600)
    conn.execute("UPDATE proletarian.job SET process_at = now() WHERE job_id = %s", [due])
    everything = {was_failed, done, gone, running, ready, scheduled, due}

    assert ids(conn, Filter()) == everything
    assert ids(conn, Filter(queue="q")) == {done, ready}
    assert ids(conn, Filter(job_type="u")) == {done, running}
    for state, wanted in {
        "failure": {was_failed}, "success": {done}, "cancelled": {gone}, "running": {running}, "ready": {ready, due},
        "scheduled": {scheduled},
    }.items():  # fmt: skip
        assert ids(conn, Filter(states=(state,))) == wanted
    assert ids(conn, Filter(states=("ready", "failure"), job_type="t")) == {ready, due, was_failed}
    assert ids(conn, Filter(reason="exception")) == {was_failed}
    assert ids(conn, Filter(host="here")) == {was_failed, done, running}
    assert ids(conn, Filter(host="elsewhere")) == set()
    conn.execute("UPDATE proletarian.archived_job SET finished_at = now() - interval '2 hours'")
    conn.execute("UPDATE proletarian.job SET enqueued_at = '-infinity' WHERE job_id = %s", [scheduled])
    assert ids(conn, Filter(since=3600)) == {running, ready, due}
    assert ids(conn, Filter(since=3 * 3600)) == everything - {scheduled}


def test_pages_follow_each_other_by_key(conn: db.Connection) -> None:
    """Each job once, however many are added or taken away in between."""
    made = enqueue_many(conn, [NewJob("t") for _ in range(25)])
    me = register(conn)
    db.finish(conn, S, [archive(job) for job in claim(conn, me, 10)])
    seen, before = [], None
    while True:
        page, before = jobs.find(conn, S, Filter(), 7, before)
        assert len(page) <= 7
        seen += [found.job_id for found in page]
        enqueue(conn, "newer")
        if before is None:
            break
    assert seen == sorted(made, reverse=True)


def test_a_list_reads_no_more_of_a_large_archive_than_its_page(conn: db.Connection) -> None:
    conn.execute(
        "INSERT INTO proletarian.archived_job (job_id, queue, job_type, payload, attempts, enqueued_at, process_at, "
        "status) SELECT gen_random_uuid(), 'q', 't', '{}', 1, now(), now(), 'success' FROM generate_series(1, 20000)"
    )
    conn.execute("ANALYZE proletarian.archived_job")
    from ganger.sql import statement

    values = {**Filter(states=("success",)).values, "before": None, "most": 51}
    plan = "\n".join(
        line for (line,) in conn.execute(b"EXPLAIN (ANALYZE) " + statement("find_jobs", S), values).fetchall()
    )
    assert "archived_job_pkey" in plan, plan
    assert "Seq Scan on archived_job" not in plan, plan


def test_an_id_may_be_the_end_of_it(conn: db.Connection) -> None:
    job_id = enqueue(conn, "t")
    old = failed(conn, register(conn)) if cancel(conn, job_id) else None
    assert old is not None
    for one in (job_id, old):
        for words in (str(one), str(one).upper(), one.hex, one.hex[-8:]):
            assert jobs.resolve(conn, S, words) == one
    twins = [UUID(int=(n << 64) + 0xABCDEF1234) for n in (1, 2)]
    for twin in twins:
        enqueue(conn, "t", job_id=twin)
    with pytest.raises(jobs.NotOneJob, match=r"Several jobs have ids that end with cdef1234: 0"):
        jobs.resolve(conn, S, "cdef1234")
    with pytest.raises(jobs.NotOneJob, match="no job whose id ends with 00000000"):
        jobs.resolve(conn, S, "00000000")
    for words in ("", "12345", "render-frame", "x" * 100):
        with pytest.raises(jobs.NotOneJob, match="is no job id"):
            jobs.resolve(conn, S, words)


def test_the_life_of_a_job_is_every_attempt_in_its_order(conn: db.Connection) -> None:
    me = register(conn)
    job_id = enqueue(conn, "t")
    (job,) = claim(conn, me)
    entry = {"attempt": 1, "reason": "exception", "pid": 11, "wall_s": 0.5, "error": {"type": "E", "message": "m"}}
    db.give_back(conn, S, [Retry(job.job_id, job.run_id, 0.0, 0, entry)])
    (job,) = claim(conn, me)
    db.give_back(conn, S, [Release(job.job_id, job.run_id, "shutdown", interrupted=True, entry={"reason": "shutdown"})])
    claim(conn, me)

    told = jobs.show(conn, S, job_id)
    assert told is not None
    assert (told["status"], told["host"], told["supervisor"]) == ("running", "here", "one")
    assert [(run["attempt"], run.get("reason"), run["host"], run["supervisor"]) for run in told["runs"]] == [
        (1, "exception", "here", "one"), (2, "shutdown", "here", "one"), (2, None, "here", "one"),
    ]  # fmt: skip
    assert told["runs"][0]["pid"] == 11
    assert [("started_at" in run, "ended_at" in run) for run in told["runs"]] == [
        (True, True),
        (True, True),
        (True, False),
    ]
    assert jobs.show(conn, S, uuid4()) is None
    conn.execute("UPDATE proletarian.job SET history = '\"by hand\"'")
    told = jobs.show(conn, S, job_id)
    assert told is not None
    assert len(told["runs"]) == 1


# ---------------------------------------------------------------------------------------------------------------------
# Act


def test_many_are_cancelled_each_with_its_answer(conn: db.Connection) -> None:
    me = register(conn)
    running = enqueue(conn, "t")
    claim(conn, me)
    ended = failed(conn, me, queue="q")
    others = enqueue_many(conn, [NewJob("t", process_in=n * 60) for n in range(450)])
    nobody = uuid4()
    answers = jobs.cancel(conn, S, [running, ended, nobody, *others], "killed")
    assert answers == {
        running: "ordered", ended: "finished", nobody: "unknown", **dict.fromkeys(others, "cancelled"),
    }  # fmt: skip
    assert rows(conn, "job_id, cancel_reason") == [(running, "killed")]
    assert ids(conn, Filter(states=("cancelled",), reason="killed")) == set(others)


def test_another_life_has_the_same_id_and_history_and_a_new_budget(conn: db.Connection) -> None:
    me = register(conn)
    job_id = failed(conn, me, timeout=5, priority=3, unique_key="k", memory=1 << 30, shutdown="finish")
    conn.execute("UPDATE proletarian.archived_job SET checkpoint = '7', crashes = 2, losses = 1, starts = 4")
    before = rows(conn, "payload, enqueued_at, priority, timeout_s, memory_bytes, shutdown, unique_key, checkpoint",
                  "archived_job")  # fmt: skip
    assert jobs.retry(conn, S, [job_id]) == {job_id: "retried"}
    assert rows(conn, "1", "archived_job") == []
    assert before == rows(
        conn, "payload, enqueued_at, priority, timeout_s, memory_bytes, shutdown, unique_key, checkpoint"
    )
    assert rows(conn, "attempts, crashes, losses, starts, state, process_at <= now()") == [(0, 0, 0, 4, 1, True)]
    (job,) = claim(conn, me)
    assert (job.job_id, job.attempts) == (job_id, 1)
    told = jobs.show(conn, S, job_id)
    assert told is not None
    first, second = told["runs"]
    assert (first["status"], first["reason"], first["pid"], first["wall_s"]) == ("failure", "exception", 7, 2.0)
    assert (first["error"]["message"], first["host"]) == ("no way", "here")
    assert first["retried_by"] == conn.info.user
    assert datetime.fromisoformat(first["retried_at"]) > datetime.now(UTC) - timedelta(minutes=5)
    assert second["attempt"] == 1
    db.finish(conn, S, [archive(job)])
    assert rows(conn, "status, attempts, jsonb_array_length(history)", "archived_job") == [("success", 1, 1)]


def test_what_cannot_have_another_life_says_why(conn: db.Connection) -> None:
    me = register(conn)
    taken = failed(conn, me, unique_key="k")
    enqueue(conn, "t", unique_key="k", queue="other")
    queued, nobody = enqueue(conn, "t", queue="other"), uuid4()
    assert jobs.retry(conn, S, [taken, queued, nobody]) == {taken: "duplicate", queued: "queued", nobody: "unknown"}
    assert ids(conn, Filter(states=("failure",))) == {taken}


def test_one_of_two_who_retry_at_once_does_it(connect: Callable[..., db.Connection]) -> None:
    conn, other = connect(), connect()
    job_id = failed(conn, register(conn))
    answers: list[str] = []
    with conn.transaction():
        conn.execute("SELECT proletarian.retry(%s)", [job_id])
        thread = Thread(target=lambda: answers.extend(jobs.retry(other, S, [job_id]).values()))
        thread.start()
        thread.join(0.3)  # it waits for the row, or has not begun: both are well
    thread.join(20)
    assert answers == ["queued"]
    assert len(rows(conn, "1")) == 1


def test_history_of_many_lives_stays_within_bounds(conn: db.Connection) -> None:
    me = register(conn)
    job_id = failed(conn, me)
    for number in range(25):
        assert jobs.retry(conn, S, [job_id]) == {job_id: "retried"}
        (job,) = claim(conn, me)
        db.finish(conn, S, [archive(job, "failure", f"life {number}")])
    ((history,),) = rows(conn, "history", "archived_job")
    assert [entry["reason"] for entry in history] == [f"life {number}" for number in range(4, 24)]


def test_a_late_answer_to_the_former_life_is_known(conn: db.Connection) -> None:
    """A repeated FINISH of the run that was archived before the job got another life is told that it was stored."""
    me = register(conn)
    job_id = enqueue(conn, "t")
    (job,) = claim(conn, me)
    outcome = archive(job, "failure", "exception")
    db.finish(conn, S, [outcome])
    jobs.retry(conn, S, [job_id])
    assert db.finish(conn, S, [outcome]) == set()
    assert db.find_outcomes(conn, S, [(job_id, job.run_id)]) == {job.run_id: "back"}


def test_another_life_wakes_who_waits(conn: db.Connection, other: db.Connection) -> None:
    me = register(conn)
    job_id = failed(conn, me)
    db.listen(other, S)
    db.say_idle(conn, S, me, ["default"], 30)
    jobs.retry(conn, S, [job_id])
    assert [notice.payload for notice in other.notifies(timeout=10, stop_after=1)] == ["default"]


def test_a_paused_queue_gives_nothing_until_it_is_resumed(conn: db.Connection, other: db.Connection) -> None:
    me = register(conn)
    enqueue(conn, "t", queue="a")
    enqueue(conn, "t", queue="b")
    jobs.pause(conn, S, "a")
    jobs.pause(conn, S, "a")
    assert claim(conn, me, 1, "a") == ()
    assert jobs.paused(conn, S) == ["a"]
    db.listen(other, S)
    db.say_idle(conn, S, me, ["a"], 30)
    assert jobs.resume(conn, S, "a") == ["a"]
    assert [notice.payload for notice in other.notifies(timeout=10, stop_after=1)] == ["a"]
    assert jobs.resume(conn, S, "a") == []
    assert len(claim(conn, me, 1, "a")) == 1
    assert len(claim(conn, me, 1, "b")) == 1


def test_all_queues_are_paused_also_those_that_come_later(conn: db.Connection) -> None:
    me = register(conn)
    jobs.pause(conn, S, "a")
    jobs.pause(conn, S)
    for queue in ("a", "b", "new"):
        enqueue(conn, "t", queue=queue)
        assert claim(conn, me, 1, queue) == ()
    told = db.status(conn, S).queues
    assert [(one.queue, one.paused) for one in told if one.paused] == [("", True), ("a", True)]
    assert jobs.resume(conn, S, "a") == ["a"]
    assert claim(conn, me, 1, "a") == ()
    assert jobs.resume(conn, S) == [""]
    assert [len(claim(conn, me, 1, queue)) for queue in ("a", "b", "new")] == [1, 1, 1]


def test_what_is_old_enough_is_pruned(conn: db.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "PRUNED", 3)
    me = register(conn)
    made = [failed(conn, me) for _ in range(8)]
    done = enqueue(conn, "t")
    db.finish(conn, S, [archive(claim(conn, me)[0])])
    old = "UPDATE proletarian.archived_job SET finished_at = now() - interval '2 days' WHERE job_id = ANY (%s)"
    conn.execute(old, [[*made[:7], done]])
    assert jobs.prunable(conn, S, 86400) == 8
    assert jobs.prunable(conn, S, 86400, ["failure"]) == 7
    assert jobs.prune(conn, S, 86400, ["failure"]) == 7
    assert ids(conn, Filter()) == {made[7], done}
    assert jobs.prune(conn, S, 86400) == 1
    assert ids(conn, Filter()) == {made[7]}
