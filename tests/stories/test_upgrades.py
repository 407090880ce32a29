"""From one version to the next: what is in the database comes along, and who is still of the old one finishes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ganger import database as db
from ganger.sql import newest_version
from tests.database.test_upgrades import SCHEMAS, restore
from tests.stories.stage import Stage

pytestmark = pytest.mark.slow

NOTE = """
    handlers = Handlers()
    @handlers.job("note")
    def note(job):
        with open(FOLDER / "noted", "a") as file: file.write(f"{job.payload}\\n")
    @handlers.job("gate")
    def gate(job):
        with open(FOLDER / "began", "a") as file: file.write(f"{job.id}\\n")
        while not (FOLDER / "open").exists(): pass
"""


@pytest.mark.parametrize("version", SCHEMAS)
def test_the_jobs_of_an_earlier_version_run_after_the_upgrade(bare_database: str, tmp_path: Path, version: int) -> None:
    restore(bare_database, version)
    stage = Stage(bare_database, tmp_path)
    stage.handlers(NOTE)
    early = stage.run(wait=False)
    assert early.ended() == 78
    assert f"has version {version}" in early.story()
    assert 'run "ganger install" to upgrade it' in early.story()
    command = stage.launch(sys.executable, "-m", "ganger", "install")
    assert command.ended() == 0, command.story()
    assert f"now has version {newest_version()}" in command.story()

    supervisor = stage.run("-c", "2", "--until-empty", "--lease", "3")
    assert supervisor.ended(60) == 0, supervisor.story()
    assert sorted(stage.lines("noted")) == ["limited", "plain", "ready", "retried", "running", "scheduled"]
    assert stage.rows("SELECT count(*) FROM proletarian.job") == [(0,)]
    query = "SELECT payload #>> '{}', status, attempts, crashes, losses FROM proletarian.archived_job ORDER BY job_id"
    assert stage.rows(query) == [
        ("plain", "success", 1, 0, 0),
        ("ready", "success", 1, 0, 0),
        ("limited", "success", 1, 0, 0),
        ("scheduled", "success", 1, 0, 0),
        ("retried", "success", 2, 1, 0),
        ("running", "success", 2, 0, 1),
        ("cancelled", "cancelled", 1, 0, 0),
        ("done", "success", 1, 0, 0),
        ("failed", "failure", 3, 0, 0),
    ]
    stage.close()


ADDS = """
    ALTER TABLE "{0}".job ADD COLUMN later text DEFAULT 'x', ADD COLUMN more jsonb;
    ALTER TABLE "{0}".archived_job ADD COLUMN later text;
    CREATE INDEX job_later ON "{0}".job (later) WHERE state = 1;
    CREATE OR REPLACE FUNCTION "{0}".wake(queues text[]) RETURNS void LANGUAGE sql AS 'SELECT';
"""


def test_an_old_supervisor_goes_on_during_an_upgrade_and_drains(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A migration only adds. So the running one, whose statements are prepared, does not notice; a new one of the old
    version is told to be upgraded."""
    stage.handlers(NOTE)
    stage.conn.prepare_threshold = None  # it looks at whole rows, whose columns will be others
    supervisor = stage.run("-c", "2")
    gate = stage.enqueue("gate")
    stage.wait_lines("began")
    for number in range(15):  # so often that its statements are prepared
        stage.archived(stage.enqueue("note", f"before {number}"))
    newest = newest_version()
    with monkeypatch.context() as patch, db.connect(stage.conninfo) as conn:
        patch.setattr(db, "newest_version", lambda: newest + 1)
        patch.setattr(db, "migration", lambda version, schema: ADDS.format(schema))
        assert db.install(conn) == [newest + 1]
    for number in range(10):
        assert stage.archived(stage.enqueue("note", f"after {number}"))["status"] == "success"
    stage.conn.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE starts_with(application_name, 'ganger ') AND datname = current_database()"
    )
    supervisor.expect("database-back")
    assert stage.archived(stage.enqueue("note", "and connected anew"))["status"] == "success"

    late = stage.run(wait=False)
    assert late.ended() == 78
    assert f"has version {newest + 1}, newer than version {newest} of this ganger" in late.story()
    (stage.folder / "open").touch()
    assert supervisor.stop() == 0
    assert stage.archived(gate)["status"] == "success"
    assert not supervisor.named("job-worker-error"), supervisor.story()
    assert stage.rows("SELECT count(*) FROM proletarian.archived_job WHERE attempts <> 1") == [(0,)]
