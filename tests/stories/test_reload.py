"""SIGUSR2: new code for new jobs, while what runs ends on the old code."""

from __future__ import annotations

import signal

from tests.processes import wait_until
from tests.stories.stage import Stage

HANDLERS = """
    handlers = Handlers()

    @handlers.job("version")
    def version(job):
        return VERSION

    @handlers.job("waits")
    def waits(job):
        (FOLDER / "begun").touch()
        while not (FOLDER / "go").exists():
            time.sleep(0.01)
        return VERSION
"""


def test_a_reload_changes_what_begins_and_not_what_runs(stage: Stage) -> None:
    """The supervisor, its registration and the running job stay; a module that does not load changes nothing."""
    stage.handlers("    VERSION = 1" + HANDLERS)
    supervisor = stage.run("-c", "2")
    running = stage.enqueue("waits")
    wait_until((stage.folder / "begun").exists, 15, supervisor.story)
    assert stage.archived(stage.enqueue("version"))["result"] == 1

    stage.handlers("    VERSION = 2, syntax error(" + HANDLERS)
    supervisor.send(signal.SIGUSR2)
    assert "SyntaxError" in supervisor.expect("boot-failed")["error"]
    assert stage.archived(stage.enqueue("version"))["result"] == 1

    stage.handlers("    VERSION = 3" + HANDLERS)
    supervisor.send(signal.SIGUSR2)
    supervisor.expect("reloaded")
    assert stage.archived(stage.enqueue("version"))["result"] == 3
    assert len(supervisor.processes("template")) == 2, "the old one stays for the wardens that it has"

    (stage.folder / "go").touch()
    assert stage.archived(running)["result"] == 1
    wait_until(lambda: len(supervisor.processes("template")) == 1, 15, supervisor.story)
    assert stage.archived(stage.enqueue("waits"))["result"] == 3
    assert [len(supervisor.named(name)) for name in ("reloading", "reloaded", "supervisor-started")] == [2, 1, 1]
    assert supervisor.stop() == 0
