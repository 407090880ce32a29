"""What is left of an attempt for whoever asks why: its last output, and where it was when its limit passed."""

from __future__ import annotations

import pytest

from tests.conftest import Ganger
from tests.processes import wait_until
from tests.stories.stage import Stage

PRINTING = """
    handlers = Handlers()

    @handlers.job("silent")
    def silent(job):
        return "done"

    @handlers.job("well")
    def well(job):
        print("all is well")
        os.write(2, b"even here\\n")
        subprocess.run(["echo", "and from a program"], check=True)

    @handlers.job("again", retry=Retry(1, delays=[0]))
    def again(job):
        print(f"this is attempt {job.attempt}")
        raise ValueError("no luck")

    @handlers.job("odd", timeout=1, grace=0)
    def odd(job):
        os.write(1, b"nul \\0 invalid \\xff\\xfe \\x1b[31m red\\nunfinished")
        time.sleep(60)

    @handlers.job("shot")
    def shot(job):
        print("before the shot")
        os.kill(os.getpid(), signal.SIGKILL)

    @handlers.job("flood")
    def flood(job):
        block = b"y" * 99 + b"\\n"
        for _ in range(job.payload * 10):
            os.write(1, block * 1000)
        print("the last line")
"""


def test_the_last_output_is_kept_with_each_attempt_however_it_ends(
    stage: Stage, ganger: Ganger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a job printed last stands with its attempt, in the archive and in its history, also where it was killed or
    printed what no database can hold; one that printed nothing has nothing there."""
    stage.handlers(PRINTING)
    stage.run("--concurrency", "2")
    silent, well, again, odd, shot, flood = (
        stage.enqueue(name, 2) for name in ("silent", "well", "again", "odd", "shot", "flood")
    )
    assert stage.archived(silent)["output"] is None
    assert stage.archived(well)["output"] == "all is well\neven here\nand from a program\n"
    row = stage.archived(again)
    assert [entry["output"] for entry in row["history"]] == ["this is attempt 1\n"]
    assert row["output"] == "this is attempt 2\n"
    assert stage.archived(odd)["output"] == "nul \\x00 invalid \\xff\\xfe \x1b[31m red\nunfinished"
    assert stage.archived(shot)["output"] == "before the shot\n"
    kept = stage.archived(flood)["output"]
    assert kept.startswith("[… ")
    assert kept.endswith(f"{'y' * 99}\nthe last line\n")
    assert len(kept) < 8300
    monkeypatch.setenv("DATABASE_URL", stage.conninfo)
    code, out, _ = ganger("jobs", "show", str(odd), str(again))
    assert code == 0
    assert "nul \\x00 invalid \\xff\\xfe \\x1b[31m red" in out
    assert "\x1b" not in out
    assert out.count("this is attempt") == 2


LIMITED = """
    handlers = Handlers()

    def here_it_waits():
        time.sleep(60)

    def here_it_computes_in_c():
        sum(range(10**12))

    @handlers.job("waits", timeout=1, retry=Retry(1, delays=[0]))
    def waits(job):
        here_it_waits()

    @handlers.job("computes", timeout=1, grace=0)
    def computes(job):
        here_it_computes_in_c()

    @handlers.job("swallows", timeout=1, grace=1)
    def swallows(job):
        for _ in range(100):
            try:
                here_it_waits()
            except BaseException:
                pass

    @handlers.job("fails")
    def fails(job):
        raise ValueError("no luck")
"""


def test_where_a_job_was_when_its_limit_passed_is_kept_with_the_attempt(
    stage: Stage, ganger: Ganger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stack is taken before the first step of the ladder, also in C code that holds the GIL and where there is no
    grace; the kill is as punctual as without."""
    stage.handlers(LIMITED)
    supervisor = stage.run("--concurrency", "4")
    waits, computes, swallows, fails = (stage.enqueue(name) for name in ("waits", "computes", "swallows", "fails"))
    row = stage.archived(waits)
    for attempt in (*row["history"], row):
        assert attempt["stack"].startswith("Main thread (most recent call first):\n")
        assert "in here_it_waits" in attempt["stack"]
    assert "in here_it_computes_in_c" in stage.archived(computes)["stack"]
    assert "in here_it_waits" in stage.archived(swallows)["stack"]
    assert stage.archived(fails)["stack"] is None
    (told,) = supervisor.named("job-timed-out", job_id=str(computes))
    assert told["wall_s"] < 1.5
    assert "stack" not in told
    monkeypatch.setenv("DATABASE_URL", stage.conninfo)
    code, out, _ = ganger("jobs", "show", str(computes))
    assert code == 0
    assert "    stack\n      Main thread (most recent call first):\n" in out
    assert "in here_it_computes_in_c" in out


def test_short_jobs_that_print_are_told_apart(stage: Stage) -> None:
    """Jobs of a millisecond follow one another in a child, sent ahead; each has its own lines, a silent one none."""
    stage.handlers("""
        handlers = Handlers()

        @handlers.job("say")
        def say(job):
            if job.payload % 3:
                print("line", job.payload, end="")
    """)
    supervisor = stage.run("--concurrency", "1")
    ids = [stage.enqueue("say", number) for number in range(300)]
    stage.archived(ids[-1], 60)
    for number, job_id in enumerate(ids):
        assert stage.archived(job_id)["output"] == (f"line {number}" if number % 3 else None)
    said = [(str(job_id), f"line {number}") for number, job_id in enumerate(ids) if number % 3]
    wait_until(lambda: len(supervisor.output) == len(said), 10, supervisor.story)
    assert sorted(supervisor.output) == sorted(said)
