"""What is said, and that saying it never harms or delays anybody."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ganger import events
from ganger.events import EVENTS, LEVELS, Events

JOB = {
    "job_id": UUID("01890000-0000-7000-8000-00009d3f01c2"),
    "job_type": "render-frame",
    "attempt": 2,
    "slot": "render/1",
}
DESIGNED = set(
    """polling-for-jobs handling-job job-finished job-interrupted handle-job-exception
    handle-job-exception-with-interrupt retrying not-retrying failed-attempt-error failed-job-error callback-error
    retry-strategy-error job-worker-error shutting-down already-shut-down completed-shutdown supervisor-started
    child-started child-exited job-timed-out job-out-of-memory job-crashed job-lost job-cancelled job-released
    job-output job-stalled ladder-step leftovers-killed child-unkillable lease-lost outcome-refused outcome-stored
    database-lost database-back boot-failed reloading state-dump""".split()  # noqa: SIM905
)


def said(
    do: Callable[[Events], None], format: str = "console", level: str = "debug", **options: Any
) -> tuple[str, str]:
    """Run ``do`` with an Events on streams in memory and return what came out: (data, events)."""
    out, err = io.StringIO(), io.StringIO()
    talk = Events(format, level, out=out, err=err, **options)
    do(talk)
    assert talk.close()
    return out.getvalue(), err.getvalue()


def test_the_table_has_every_name_of_the_contract_and_no_unknown_level() -> None:
    assert set(EVENTS) >= DESIGNED
    assert {wording.level for wording in EVENTS.values()} <= set(LEVELS)
    assert EVENTS["polling-for-jobs"].level == "debug"


def test_every_event_that_the_source_emits_is_in_the_table() -> None:
    emitted = set()
    for path in Path(events.__file__).parent.rglob("*.py"):
        emitted |= set(re.findall(r"""\b(?:Emit|emit|_emit)\(\s*f?["']([a-z-]+)["']""", path.read_text()))
    assert emitted <= set(EVENTS)


def test_console_one_aligned_line_per_event() -> None:
    def do(talk: Events) -> None:
        talk.emit("handling-job", **JOB, supervisor_id=7)
        talk.emit("job-finished", **JOB, wall_s=1.234, max_rss=200 << 20, extra="seen")

    _, err = said(do)
    first, second = err.splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3} handling-job +render-frame 9d3f01c2 attempt 2 on render/1", first)
    assert second.endswith("render-frame 9d3f01c2 attempt 2 in 1.23 s memory 200 MiB extra=seen")
    assert first.index("render-frame") == second.index("render-frame")


def test_console_a_traceback_is_indented_beneath_and_control_characters_are_shown() -> None:
    error = {
        "type": "ValueError",
        "message": "bad \x1b[2J",
        "traceback": "Traceback\n  File x\nValueError: bad \x1b[2J",
    }
    _, err = said(lambda talk: talk.emit("handle-job-exception", **JOB, error=error))
    head, *beneath = err.splitlines()
    assert head.endswith(r"ValueError: bad \x1b[2J")
    assert beneath == ["    Traceback", "      File x", r"    ValueError: bad \x1b[2J"]


def test_json_one_object_per_line() -> None:
    def do(talk: Events) -> None:
        talk.emit(
            "job-crashed", **JOB, term_signal=9, wall_s=float("nan"), nothing=None, error={"message": "é\n\ud800"}
        )
        talk.output(JOB["job_id"], "render-frame", "tile 3")

    out, err = said(do, format="json")
    event = json.loads(err)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", event.pop("ts"))
    facts = {"event": "job-crashed", "level": "error", "term_signal": 9, "wall_s": "nan"}
    assert event == {**JOB, **facts, "job_id": str(JOB["job_id"]), "error": {"message": "é\n\ud800"}}
    printed = json.loads(out)
    assert (printed["event"], printed["line"], printed["job_id"]) == ("job-output", "tile 3", str(JOB["job_id"]))


def test_what_a_job_prints_goes_to_stdout_with_its_job_id_and_cannot_look_like_another_line() -> None:
    out, err = said(lambda talk: talk.output(JOB["job_id"], "x", b"a\r\x1b[31mred\xff"))
    assert out == "9d3f01c2  a\\r\x1b[31mred\\xff\n"
    assert err == ""


def test_levels() -> None:
    def do(talk: Events) -> None:
        talk.emit("polling-for-jobs")
        talk.emit("database-lost", error="gone")

    _, err = said(do, level="error")
    assert "polling" not in err
    assert "database-lost" in err


def test_an_unknown_name_and_odd_data_are_said_all_the_same() -> None:
    _, err = said(lambda talk: talk.emit("never-heard-of", a=object, name={"b": 1}, term_signal=99, wall_s="soon"))
    assert "never-heard-of" in err
    assert "name=b=1" in err


def test_log_gets_the_events_in_place_of_stderr() -> None:
    got: list[tuple[str, Mapping[str, Any]]] = []
    out, err = said(lambda talk: talk.emit("handling-job", **JOB), log=lambda name, data: got.append((name, data)))
    assert got == [("handling-job", JOB)]
    assert (out, err) == ("", "")


def test_a_log_that_raises_is_told_and_its_event_is_not_lost() -> None:
    def log(name: str, data: Mapping[str, Any]) -> None:
        raise RuntimeError("no")

    _, err = said(lambda talk: talk.emit("handling-job", **JOB), log=log)
    assert "handling-job" in err
    assert "callback-error" in err
    assert "log raised RuntimeError: no" in err


def test_a_log_that_hangs_delays_nobody() -> None:
    release = threading.Event()
    talk = Events(out=io.StringIO(), err=io.StringIO(), log=lambda name, data: release.wait(30))
    started = time.monotonic()
    for _ in range(100):
        talk.emit("handling-job", **JOB)
    assert not talk.close(timeout=0.1)
    assert time.monotonic() - started < 3
    release.set()


def test_flush_waits_for_what_was_said() -> None:
    err = io.StringIO()
    talk = Events(out=io.StringIO(), err=err)
    for number in range(100):
        talk.emit("handling-job", number=number)
        assert talk.flush(30)
        assert err.getvalue().count("\n") == number + 1
    assert talk.close()


def test_a_pipe_that_nobody_reads_costs_lines_and_no_time_and_the_loss_is_told() -> None:
    reader, writer = os.pipe()
    with open(writer, "w") as err:
        talk = Events("json", out=io.StringIO(), err=err)
        # One batch fills the pipe and blocks the writer; what follows fills the queue.
        while talk._lines._dropped < 10:
            talk.emit("handling-job", **JOB, filler="x" * 1000)
        assert not talk.flush(timeout=0.05)
        assert not talk.close(timeout=0.05)

        received: list[bytes] = []
        drain = threading.Thread(target=lambda: received.extend(iter(lambda: os.read(reader, 1 << 16), b"")))
        drain.start()
        assert talk.close(timeout=30)
    drain.join()
    os.close(reader)
    last = json.loads(b"".join(received).splitlines()[-1])
    assert last["event"] == "events-dropped"
    assert last["count"] >= 10


def test_the_size_of_what_waits_is_bounded_too() -> None:
    reader, writer = os.pipe()
    with open(writer, "w") as out:
        talk = Events(out=out, err=io.StringIO())
        while talk._lines._dropped == 0:
            talk.output(JOB["job_id"], "x", "y" * (1 << 20))
        assert talk._lines._chars <= events.MOST_CHARS
        os.close(reader)  # the writer gets EPIPE and goes on
        assert talk.close(timeout=30)


def test_a_reader_that_left_harms_nobody() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as err:
        talk = Events(out=io.StringIO(), err=err)
        talk.emit("handling-job", **JOB)
        assert talk.close()


def test_a_full_disk_harms_nobody() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    with open("/dev/full", "w") as err:
        talk = Events(out=io.StringIO(), err=err)
        talk.emit("handling-job", **JOB)
        assert talk.close()


def test_lines_lost_on_a_full_disk_are_told_once_there_is_room_again(tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk: it too is met in the middle of a line."""
    script = """
import resource, signal, sys
from ganger.events import Events
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
talk = Events("json")
def say(*names):
    for name in names: talk.emit("job-finished", name=name); talk.flush()
say("first")
resource.setrlimit(resource.RLIMIT_FSIZE, (150, most))
say("torn", "lost", "lost too")
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
say("there again", "last")
talk.close()
"""
    log = tmp_path / "log"
    with log.open("w") as err:
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run([sys.executable, "-c", script], stderr=err, check=True, timeout=30, env=environ)
    first, torn, *rest = log.read_text().splitlines()
    assert json.loads(first)["name"] == "first"
    assert '"torn' not in first
    assert torn.startswith('{"ts"')
    with pytest.raises(ValueError):
        json.loads(torn)
    told = [json.loads(line) for line in rest]
    assert [line.get("name") or line["event"] for line in told] == ["there again", "events-dropped", "last"]
    assert (told[1]["count"], told[1]["why"]) == (3, "they could not be written")


def test_a_closed_stream_and_one_that_never_was_harm_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = io.StringIO()
    gone.close()
    monkeypatch.setattr(sys, "stdout", None)
    talk = Events(err=gone)
    talk.emit("handling-job", **JOB)
    talk.output(JOB["job_id"], "x", "line")
    assert talk.close()


def test_a_terminal_made_non_blocking_by_others_gets_every_line() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    received: list[bytes] = []
    with open(writer, "w") as err:
        talk = Events("json", out=io.StringIO(), err=err)
        for number in range(2000):
            talk.emit("handling-job", number=number, filler="x" * 100)
        drain = threading.Thread(target=lambda: received.extend(iter(lambda: os.read(reader, 4096), b"")))
        drain.start()
        assert talk.close(timeout=30)
    drain.join()
    os.close(reader)
    assert [json.loads(line)["number"] for line in b"".join(received).splitlines()] == list(range(2000))


def test_locale_c_and_order_between_the_two_streams() -> None:
    script = """
from ganger.events import Events
talk = Events()
print("printed by the application é".encode("ascii", "replace").decode())
for number in range(50):
    talk.emit("handling-job", job_type=f"é{number}")
    talk.output("0" * 8, "x", f"ü{number}")
assert talk.close()
"""
    environ = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60
    )
    assert done.returncode == 0, done.stdout
    first, *lines = done.stdout.decode("ascii").splitlines()
    assert first.startswith("printed by the application")
    assert [line.rpartition("\\x")[2] for line in lines] == [
        end for number in range(50) for end in (f"e9{number}", f"fc{number}")
    ]


def test_colours_only_on_a_terminal_and_not_with_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def shown() -> str:
        err = Terminal()
        talk = Events(out=io.StringIO(), err=err)
        talk.emit("database-lost", error="gone")
        assert talk.close()
        return err.getvalue()

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[31mdatabase-lost" in shown()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in shown()
