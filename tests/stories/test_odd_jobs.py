"""Jobs that raise, return, print or do to their process what nobody expects: each has its outcome, the slot goes on.

One supervisor serves several cases, one after another in the same slot: what one job did, the next must not feel.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.processes import alive, nothing_left, wait_until
from tests.stories.stage import Running, Stage

pytestmark = pytest.mark.slow

ALLOWANCE = 3.0  # a loaded machine may take so many times as long
MIB = 1 << 20


def lasted(row: dict[str, Any]) -> float:
    """Seconds from the start of the run until its outcome was stored."""
    return float((row["finished_at"] - row["started_at"]).total_seconds())


def done(stage: Stage, job_type: str, payload: Any = None, **options: Any) -> dict[str, Any]:
    """Enqueue a job and wait for its row in the archive; nothing of it is left then."""
    row = stage.archived(stage.enqueue(job_type, payload, **options), 60)
    for line in stage.lines("pids"):
        assert not alive(int(line)), f"{job_type} is archived, and process {line} lives"
    return row


def peak(pid: int) -> int:
    """The most memory that a process has held since the last ``reset_peak``, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def reset_peak(pid: int) -> int:
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return peak(pid)


# ---------------------------------------------------------------------------------------------------------------------
# What is raised and returned

RESULTS = {"lambda": "lambda: 1", "generator": "(n for n in [1])", "file": "open('/dev/null')", "set": "{1, 2}"}


def test_outcomes_that_are_hard_to_deliver_are_delivered(stage: Stage) -> None:
    """Exceptions and results that cannot be rebuilt, encoded, stored or held:
    D27, https://github.com/python/cpython/issues/79492
    D28, https://github.com/noxdafox/pebble/issues/146
    D29, https://github.com/ZettaAI/zetta_utils/issues/547
    D30, https://github.com/jonatanjacobsson/ifcpipeline/pull/28
    D31, https://github.com/GIScience/sketch-map-tool/issues/399
    D32, https://github.com/kestra-io/kestra/pull/15647
    D33, https://github.com/ZJU-REAL/Polaris/issues/287
    """
    stage.handlers("""
        import threading
        handlers = Handlers()

        class TwoArguments(Exception):
            def __init__(self, code, place):
                super().__init__(f"{code} at {place}")

        def deeper(depth, message):
            if not depth: raise RecursionError(message)
            deeper(depth - 1, message)

        @handlers.job("raise")
        def fail(job): raise TwoArguments(7, "home")

        @handlers.job("raise-chained")
        def chained(job):
            try: raise TwoArguments(threading.Lock(), fail)
            except TwoArguments as error: raise TwoArguments(8, "work") from error

        @handlers.job("return")
        def give(job): return {"here": [0, eval(job.payload)]}

        @handlers.job("long")
        def long(job): deeper(500, "head " + "x" * 5_000_000 + " tail")

        @handlers.job("text")
        def text(job): return "x" * (job.payload - 2)

        @handlers.job("odd-text")
        def odd(job): raise ValueError("nul \\0 lone \\udc80 end")

        @handlers.job("odd-result")
        def odd_result(job): return {"text": job.payload.encode().decode("unicode_escape")}

        @handlers.job("nan")
        def nan(job): return {"m": float("nan")}

        @handlers.job("fine")
        def fine(job): return "fine"
    """)
    supervisor = stage.run("-c", "1", "--max-result", "2MiB")

    def fine() -> None:
        assert done(stage, "fine")["result"] == "fine"

    row = done(stage, "raise")
    assert (row["status"], row["reason"], row["attempts"]) == ("failure", "exception", 1)
    assert (row["error"]["type"], row["error"]["message"]) == ("story.TwoArguments", "7 at home")
    assert "raise TwoArguments(7" in row["error"]["traceback"]
    row = done(stage, "raise-chained")
    assert row["error"]["message"] == "8 at work"
    assert "direct cause" in row["error"]["traceback"]
    fine()

    for name, value in RESULTS.items():
        row = done(stage, "return", value)
        assert (row["status"], row["reason"], row["result"]) == ("failure", "bad-result", None), name
        assert "the result cannot be stored: result['here'][1] is a" in row["error"]["message"], name
    fine()

    error = done(stage, "long")["error"]
    assert error["type"] == "RecursionError"
    for text in (error["message"], error["traceback"]):
        assert "characters left out" in text
        assert len(text) < 66_000
    assert error["message"].startswith("head xxx")
    assert error["message"].endswith("xxx tail")
    assert error["traceback"].startswith("Traceback (most recent call last)")
    assert error["traceback"].rstrip().endswith("xxx tail")
    fine()

    cap = 2 * MIB
    for size in (1024, 64 * 1024, 64 * 1024 + 1, MIB, cap):
        assert done(stage, "text", size)["result"] == "x" * (size - 2), size
    row = done(stage, "text", cap + 1)
    assert (row["status"], row["reason"]) == ("failure", "bad-result")
    assert "too large" in row["error"]["message"]
    fine()

    before = reset_peak(supervisor.pid)
    row = done(stage, "text", 300_000_000)
    assert (row["status"], row["reason"]) == ("failure", "bad-result")
    assert row["error"]["message"] == (
        f"the result is too large: it has over 300000000 bytes of JSON, {cap} are allowed"
    )
    assert peak(supervisor.pid) - before < 50 * MIB
    fine()

    row = done(stage, "odd-text")
    assert (row["status"], row["error"]["message"]) == ("failure", "nul \\x00 lone \\udc80 end")
    for text, why in (("a\\x00b", "NUL"), ("a\\udc80b", "lone surrogate")):
        row = done(stage, "odd-result", text)
        assert (row["status"], row["reason"]) == ("failure", "bad-result")
        assert f"result['text'] holds a {why}" in row["error"]["message"]
    row = done(stage, "nan")
    assert (row["status"], row["reason"]) == ("failure", "bad-result")
    assert "result['m'] is NaN: NaN is not JSON" in row["error"]["message"]
    assert lasted(row) < 1 * ALLOWANCE
    fine()
    assert stage.rows("SELECT count(*) FROM proletarian.job") == [(0,)]
    assert supervisor.stop() == 0
    assert not supervisor.named("job-worker-error")


# ---------------------------------------------------------------------------------------------------------------------
# What is done to the process


def test_what_a_job_does_to_its_process_ends_with_it(stage: Stage) -> None:
    """Signal handlers, folder, umask, environment, locale, import path and descriptors:
    D37, https://github.com/josiahcarlson/jobs/issues/3
    D38, https://github.com/HEPData/hepdata/issues/319
    D39, https://github.com/globus/globus-compute/pull/2106
    D40, https://github.com/ray-project/ray/issues/66231
    """
    stage.handlers("""
        import locale, shutil, tempfile
        handlers = Handlers()
        IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)

        @handlers.job("look")
        def look(job):
            mask = os.umask(0o77); os.umask(mask)
            program = subprocess.run(["sh", "-c", "grep ^Sig /proc/self/status"], capture_output=True, text=True).stdout
            return {
                "signals": {number.name: repr(signal.getsignal(number)).partition(" at 0x")[0] for number in IGNORED},
                "signals of a program": [line for line in program.splitlines() if line[:6] in ("SigBlk", "SigIgn")],
                "folder": os.getcwd(), "umask": mask, "environment": os.environ.get("MARK"),
                "locale": locale.setlocale(locale.LC_ALL), "path": sys.path, "recursion": sys.getrecursionlimit(),
                "descriptors": len(os.listdir("/proc/self/fd")),
            }

        @handlers.job("ignore", timeout=1, grace=0.5)
        def ignore(job):
            for number in IGNORED: signal.signal(number, signal.SIG_IGN)
            if job.payload == "return": return "returned"
            while True:
                try: time.sleep(1)
                except BaseException: pass

        @handlers.job("alter")
        def alter(job):
            folder = tempfile.mkdtemp()
            os.chdir(folder)
            shutil.rmtree(folder)
            os.umask(0)
            os.environ["MARK"] = "altered"
            os.environ.pop("PATH")
            for name in ("C", "C.UTF-8", "POSIX"):
                if name != locale.setlocale(locale.LC_ALL): locale.setlocale(locale.LC_CTYPE, name)
            sys.path[:] = ["/nowhere"]
            sys.setrecursionlimit(5000)
            if job.payload == "die": os._exit(3)

        @handlers.job("close")
        def close(job):
            os.closerange(3, 65536)
            data = [open(FOLDER / f"data-{number}", "w+b", buffering=0) for number in range(10)]
            if job.payload == "replace":
                for number in range(data[-1].fileno() + 1, 400): os.dup2(data[0].fileno(), number)
            return "returned"

        @handlers.job("leave")
        def leave(job):
            child = subprocess.Popen(["sleep", "600"], close_fds=False, **(job.payload or {}))
            (FOLDER / "pids").open("a").write(f"{child.pid}\\n")
            return "left"

        @handlers.job("leave-with-all")
        def leave_with_all(job):
            for number in os.listdir("/proc/self/fd"):
                try: os.set_inheritable(int(number), True)
                except OSError: pass
            return leave(job)
    """)
    supervisor = stage.run("-c", "1", environ={"MARK": "original"})
    original = done(stage, "look")["result"]
    assert original["signals"] == {
        **original["signals"], "SIGUSR1": "<Handlers.SIG_DFL: 0>", "SIGUSR2": "<Handlers.SIG_DFL: 0>",
        "SIGALRM": "<Handlers.SIG_DFL: 0>",
    }  # fmt: skip
    assert "SIG_IGN" not in str(original["signals"])
    assert original["environment"] == "original"

    def same() -> None:
        assert done(stage, "look")["result"] == original

    same()
    row = done(stage, "ignore")
    assert (row["status"], row["reason"], row["rung"]) == ("failure", "timeout", "kill")
    assert 1.5 < row["wall_s"] < (1 + 0.5 + 1) * ALLOWANCE
    same()
    assert done(stage, "ignore", "return")["result"] == "returned"
    same()
    for how, status in (("return", "success"), ("die", "failure")):
        assert done(stage, "alter", how)["status"] == status
        same()

    for how in ("close", "replace"):
        row = done(stage, "close", how)
        assert (row["status"], row["reason"], row["exit_code"]) == ("failure", "crash", 113)
        assert "descriptors through which its outcome is reported" in row["error"]["message"]
        assert [path.read_bytes() for path in sorted(stage.folder.glob("data-*"))] == [b""] * 10
        same()

    for job_type in ("leave", "leave-with-all"):
        for options in ({}, {"start_new_session": True}):
            row = done(stage, job_type, options)  # looks that the program is gone
            assert row["result"] == "left"
            assert lasted(row) < 1 * ALLOWANCE
            same()
    assert len(stage.lines("pids")) == 4
    assert supervisor.stop() == 0


def test_a_supervisor_restarts_at_once_beside_a_daemon_of_its_job(stage: Stage) -> None:
    """D26, https://github.com/tenstorrent/tt-inference-server/pull/3640: neither an address nor a lock is held by what
    a job has started; a daemon has no descriptor of ours."""
    stage.handlers("""
        handlers = Handlers()

        @handlers.job("daemon", shutdown="finish")
        def daemon(job):
            if os.fork() == 0:
                os.setsid()
                if os.fork(): os._exit(0)
                (FOLDER / "pids").open("a").write(f"{os.getpid()}\\n")
                os.execvp("sleep", ["sleep", "600"])
            os.wait()
            subprocess.Popen(["sh", "-c", "echo $$ >> pids; exec sleep 600"], cwd=FOLDER, close_fds=False)
            while not (FOLDER / "go").exists(): time.sleep(0.05)
            return "done"

        @handlers.job("sockets")
        def sockets(job):
            links = subprocess.run(["ls", "-l", f"/proc/{os.getpid()}/fd"], capture_output=True, text=True).stdout
            return links.count("socket:")

        @handlers.job("fine")
        def fine(job): return "fine"
    """)
    options = ("-c", "2", "--name", "the-one")
    first = stage.run(*options)
    job_id = stage.enqueue("daemon")
    daemons = [int(line) for line in stage.wait_lines("pids", 2)]
    for pid in daemons:
        wait_until(lambda pid=pid: "sleep" in Path(f"/proc/{pid}/cmdline").read_text(), 10, "it does not exec")  # type: ignore[misc]
        held = {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()}
        assert all(name == "/dev/null" or name.startswith("pipe:") for name in held), held  # it prints for the job
        assert len(list(Path(f"/proc/{pid}/fd").iterdir())) == 3
    assert [stage.archived(stage.enqueue("sockets"))["result"] for _ in range(3)] == [1, 1, 1]
    first.send(signal.SIGTERM)
    (stage.folder / "go").touch()
    assert first.ended() == 0
    second = stage.run(*options)
    assert stage.archived(job_id)["result"] == "done"
    assert done(stage, "fine")["result"] == "fine"
    nothing_left(daemons, limit=1)
    nothing_left(first.cookie, limit=1)
    for each in (first, second):
        assert not each.other, each.other
        complaints = {event["event"] for event in each.events if event.get("level") in ("warning", "error")}
        assert complaints <= {"leftovers-killed"}, each.story()


# ---------------------------------------------------------------------------------------------------------------------
# What is printed


@pytest.mark.slow
def test_two_hundred_megabytes_to_stderr_cost_the_parent_nothing(stage: Stage) -> None:
    """D36, https://github.com/humanmade/Cavalcade/issues/37: output is drained, whoever reads it or not."""
    stage.handlers("""
        handlers = Handlers()

        @handlers.job("loud")
        def loud(job):
            line = ("x" * 999 + "\\n") * 1000
            for _ in range(200): sys.stderr.write(line)
            return "said"

        @handlers.job("fine")
        def fine(job): return "fine"
    """)
    supervisor = stage.run("-c", "2")
    done(stage, "fine")
    before = reset_peak(supervisor.pid)
    loud = stage.enqueue("loud")
    supervisor.expect("handling-job", job_id=str(loud))
    assert done(stage, "fine")["result"] == "fine"
    row = stage.archived(loud, 100)
    assert (row["status"], row["result"]) == ("success", "said")
    assert peak(supervisor.pid) - before < 50 * MIB
    assert supervisor.stop() == 0


# ---------------------------------------------------------------------------------------------------------------------
# A child that lies

HOSTILE = """
    import array, random, socket
    handlers = Handlers()

    def wires():
        for name in os.listdir("/proc/self/fd"):
            try:
                if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    yield socket.socket(fileno=os.dup(int(name)))
            except OSError:
                pass

    def say(*datagrams, fds=()):
        for wire in wires():
            for datagram in datagrams:
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
                try: wire.sendmsg([datagram], ancillary)
                except OSError: pass

    RETURNED = b'{"op":"returned","nonce":%d,"wall_s":1,"cpu_s":1,"max_rss":1,"clean":true,"worked_s":0}\\n"forged"'

    @handlers.job("lie")
    def lie(job):
        if job.payload == "bytes":
            rng = random.Random(7)
            for _ in range(60): say(rng.randbytes(rng.randrange(2000)))
        elif job.payload == "flood":
            for _ in range(20_000): say(b'{"op":"calling","nonce":1,"name":"failed_job"}\\n')
        elif job.payload == "descriptors":
            for _ in range(90): say(b'{"op":"x"}\\n', fds=[0] * 250)
        elif job.payload == "files":
            for size in (0, 1, 1 << 40):
                fd = os.memfd_create("hostile", os.MFD_ALLOW_SEALING)
                os.ftruncate(fd, size)
                say(b"\\n", fds=[fd])
                os.ftruncate(fd, 0)
        elif job.payload == "others":
            for nonce in range(60): say(RETURNED % nonce)
        elif job.payload == "strategy":
            say(b'{"op":"raised","nonce":1,"reason":"none","strategy":{"retries":9,"delays":[1e300]}}\\n')
        elif job.payload == "deep":
            for depth in (500, 900, 1000, 5000, 60000):
                say(b'{"op":"boot-error","error":' + b"[" * depth + b"]" * depth + b"}\\n")
        elif job.payload == "copies":
            for _ in range(3):
                if os.fork() == 0:
                    for _ in range(20): say(RETURNED % 1)
                    os._exit(0)
            for _ in range(3): os.wait()
        return "said"

    @handlers.job("bystander")
    def bystander(job):
        while not (FOLDER / "go").exists(): time.sleep(0.05)
        return "untouched"

    @handlers.job("fine")
    def fine(job): return "fine"
"""
KINDS = ("bytes", "flood", "descriptors", "files", "strategy", "deep", "copies", "others")


def descriptors(supervisor: Running) -> int:
    return len(os.listdir(f"/proc/{supervisor.pid}/fd"))


def test_a_job_that_writes_to_our_socket_harms_only_itself(stage: Stage) -> None:
    """It found the descriptor and says what it likes; the supervisor, its descriptors and the other job stay."""
    stage.handlers(HOSTILE)
    supervisor = stage.run("-c", "2")
    bystander = stage.enqueue("bystander")
    supervisor.expect("handling-job", job_id=str(bystander))
    done(stage, "fine")
    before = descriptors(supervisor)
    ids: dict[str, UUID] = {kind: stage.enqueue("lie", kind) for kind in KINDS}
    for kind, job_id in ids.items():
        row = stage.archived(job_id, 60)
        print(kind, json.dumps([row["status"], row["reason"], row["attempts"], row["crashes"]]))
        assert supervisor.process.poll() is None
    done(stage, "fine")
    wait_until(lambda: descriptors(supervisor) <= before, 15, lambda: f"{before} and now {descriptors(supervisor)}")
    (stage.folder / "go").touch()
    row = stage.archived(bystander)
    assert (row["status"], row["result"], row["attempts"], row["starts"]) == ("success", "untouched", 1, 1)
    for kind in ("bytes", "files", "strategy", "deep", "copies"):
        assert stage.archived(ids[kind])["status"] == "success", kind
    assert supervisor.stop() == 0
    assert not supervisor.named("job-worker-error")
