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
    supervisor = stage.run("-c", "2")
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
