"""Example A through all floors: a job is enqueued, claimed, run in a child, archived."""

from __future__ import annotations

from tests.stories.stage import Stage


def test_a_job_runs_and_its_result_is_archived(stage: Stage) -> None:
    stage.handlers("""
        handlers = Handlers()
        @handlers.job("greet")
        def greet(job):
            print("hello", job.payload["name"])
            return {"greeted": job.payload["name"], "pid": os.getpid()}
    """)
    stage.conn.execute(
        "INSERT INTO proletarian.archived_job (job_id, queue, job_type, payload, attempts, enqueued_at, process_at,"
        " status, finished_at) SELECT gen_random_uuid(), 'q', 't', '1', 1, ended, ended, 'success', ended"
        " FROM (VALUES (now() - interval '59 min'), (now() - interval '61 min')) AS old(ended)"
    )
    supervisor = stage.run("-c", "2", "--retention", "1h")
    assert supervisor.expect("archive-pruned")["jobs"] == 1
    job_id = stage.enqueue("greet", {"name": "world"})
    row = stage.archived(job_id)
    assert (row["status"], row["attempts"], row["result"]["greeted"]) == ("success", 1, "world")
    assert row["result"]["pid"] != supervisor.pid
    finished = supervisor.expect("job-finished", job_id=str(job_id))
    assert {"wall_s", "cpu_s", "max_rss", "slot", "pid", "supervisor_id", "queue", "attempt"} <= finished.keys()
    assert (str(job_id), "hello world") in supervisor.output
    supervisor.order("supervisor-started", "handling-job", "job-output", "job-finished")
    assert supervisor.stop() == 0
    supervisor.order("shutting-down", "completed-shutdown")
    assert stage.rows("SELECT count(*) FROM proletarian.supervisor") == [(0,)]
    assert stage.rows("SELECT count(*) FROM proletarian.archived_job") == [(2,)]


def test_a_payload_over_the_supervisors_limit_fails_that_job(stage: Stage) -> None:
    stage.handlers("""
        def failed_job(job, exception):
            with open(FOLDER / "failed", "a") as file:
                file.write(f"{job.type} {exception}\\n")

        handlers = Handlers(failed_job=failed_job, retry_strategy=lambda job, exception: Retry(5))
        @handlers.job("measure")
        def measure(job):
            return len(job.payload["text"])
    """)
    stage.run("-c", "1", "--max-payload", "1KiB")
    large = stage.enqueue("measure", {"text": "x" * 2000})
    small = stage.enqueue("measure", {"text": "x" * 500})
    assert stage.archived(small)["result"] == 500
    row = stage.archived(large)
    assert (row["status"], row["reason"], row["attempts"]) == ("failure", "payload-too-large", 1)
    assert "max_payload of 1024" in row["error"]["message"]
    (told,) = stage.lines("failed")
    assert told.startswith("measure the payload has 20")
