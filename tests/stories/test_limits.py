"""Limits: a job past its time or memory is gone with its whole tree, in time, whatever it does; and the row tells why.

The times here are those of the contract (``timeout + grace + 1 s``). A loaded machine gets three times as much before
a test fails; how late it was is printed.
"""

from __future__ import annotations

import json
import signal
import time
from datetime import datetime
from typing import Any
from uuid import UUID

import psutil
import pytest

from ganger import cancel
from tests.processes import alive, nothing_left, wait_until
from tests.stories.stage import Running, Stage

ALLOWANCE = 3.0  # a loaded machine may take so many times as long


def lasted(row: dict[str, Any]) -> float:
    """Seconds from the start of a run until it was over, as the child's end was seen."""
    return float(row["wall_s"])


def in_time(row: dict[str, Any], limit: float) -> None:
    """Fail if a run lasted longer than the contract allows it, with the allowance for load."""
    print(f"{row['job_type']}: {lasted(row):.2f} s, the contract says {limit:.2f} s")
    assert lasted(row) < limit * ALLOWANCE, f"{row['job_type']} lasted {lasted(row):.2f} s, not {limit:.2f} s"


def moment(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["ts"]).timestamp()


def pids(stage: Stage, name: str = "pids") -> list[int]:
    return [int(line) for line in stage.lines(name) if line.strip()]


# ---------------------------------------------------------------------------------------------------------------------
# Time

# What a job does for ever, and the rung of the ladder that ends it.
STUBBORN: dict[str, tuple[str, str]] = {
    "sleep": ("time.sleep(600)", "interrupt"),
    "loop-that-catches-exceptions": (
        """
        while True:
            try: sum(range(1000))
            except Exception: pass
        """,
        "interrupt",
    ),
    "loop-that-catches-everything": (
        """
        while True:
            try: time.sleep(0.01)
            except BaseException: pass
        """,
        "kill",
    ),
    "gil-held-in-c": ("sum(range(10**11))", "kill"),
    "gil-released-in-c": ("hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)", "kill"),
    "ignores-all-signals": (
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True: time.sleep(1)
        """,
        "kill",
    ),
    "ignores-all-handlers": (
        """
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            try: signal.signal(number, signal.SIG_IGN)
            except OSError: pass
        while True: time.sleep(1)
        """,
        "kill",
    ),
    "stopped": ("os.kill(os.getpid(), signal.SIGSTOP)", "interrupt"),
    "waits-for-a-lock": ("lock = threading.Lock(); lock.acquire(); lock.acquire()", "interrupt"),
    "waits-for-a-thread": (
        """
        thread = threading.Thread(target=sum, args=[range(10**11)])
        thread.start(); thread.join()
        """,
        "kill",
    ),
    "waits-for-a-program": ("subprocess.run(['sleep', '600'])", "interrupt"),
}


def _handlers(acts: dict[str, str], head: str = "") -> str:
    functions = []
    for name, act in acts.items():
        body = "\n".join("        " + line.removeprefix("        ") for line in act.strip("\n").splitlines())
        if "\n" not in act.strip("\n"):
            body = "        " + act.strip()
        functions.append(f"    @handlers.job({name!r})\n    def _(job):\n{body}\n")
    return (
        "    import hashlib, json, threading, traceback\n"
        "    def failed_job(job, exception):\n"
        "        (FOLDER / 'failed').open('a').write(f'{job.id} {type(exception).__name__} {exception}\\n')\n"
        "    handlers = Handlers(failed_job=failed_job)\n" + head + "\n" + "\n".join(functions)
    )


def failed(stage: Stage, job_id: UUID) -> list[str]:
    """What failed_job was told of a job."""
    lines = [line.split(" ", 1) for line in stage.lines("failed")]
    return [text for told_id, text in lines if told_id == str(job_id)]


def test_a_job_past_its_time_is_gone_in_time_whatever_it_does(stage: Stage) -> None:
    stage.handlers(_handlers({name: act for name, (act, _) in STUBBORN.items()}))
    supervisor = stage.run("-c", "2", "--timeout", "1", "--grace", "1")
    ids = {name: stage.enqueue(name) for name in STUBBORN}
    for name, (_, rung) in STUBBORN.items():
        row = stage.archived(ids[name], 90)
        assert (row["status"], row["reason"], row["attempts"], row["crashes"]) == ("failure", "timeout", 1, 0), name
        assert (row["rung"], row["ended_by"]) == (rung, "limit"), name
        assert row["error"]["type"] == "ganger_child.JobTimedOut", name
        in_time(row, 1 + 1 + 1)
        assert lasted(row) >= 0.9
        assert failed(stage, ids[name]) == [f"JobTimedOut {row['error']['message']}"], name
        assert "1 s" in row["error"]["message"]
        supervisor.expect("job-timed-out", job_id=str(ids[name]))
    assert supervisor.stop() == 0


def test_the_interrupt_lets_a_job_clean_up_and_asyncio_cancel_its_tasks(stage: Stage) -> None:
    stage.handlers(_handlers({
        "cleans-up": """
        try:
            try: time.sleep(600)
            except JobTimedOut as error:
                (FOLDER / "seen").open("a").write(f"{type(error).__name__} {job.interrupted}\\n"); raise
        finally:
            (FOLDER / "seen").open("a").write("cleaned\\n")
        """,
        "swallows-and-returns-late": """
        try: time.sleep(600)
        except BaseException: time.sleep(0.2)
        return "late"
        """,
        "raises-another": """
        try: time.sleep(600)
        except JobInterrupted as error: raise ValueError("mine") from error
        """,
    }, head="""
    import asyncio
    @handlers.job("asyncio")
    async def asynchronous(job):
        async def other():
            try: await asyncio.sleep(600)
            finally: (FOLDER / "seen").open("a").write("other cancelled\\n")
        task = asyncio.create_task(other())
        try: await asyncio.sleep(600)
        except asyncio.CancelledError:
            (FOLDER / "seen").open("a").write("cancelled\\n"); raise
    """))  # fmt: skip
    stage.run("-c", "1", "--timeout", "0.5", "--grace", "5")
    rows = {name: stage.archived(stage.enqueue(name)) for name in (
        "cleans-up", "swallows-and-returns-late", "raises-another", "asyncio",
    )}  # fmt: skip
    for row in rows.values():
        assert (row["status"], row["reason"], row["rung"]) == ("failure", "timeout", "interrupt"), row["job_type"]
        assert row["result"] is None
        assert row["exit_code"] is None
        assert row["term_signal"] is None
    assert stage.lines("seen") == ["JobTimedOut True", "cleaned", "cancelled", "other cancelled"]
    assert "swallowed" in rows["swallows-and-returns-late"]["error"]["message"]
    assert "mine" in rows["raises-another"]["error"]["traceback"]


def test_with_grace_0_there_is_only_the_kill(stage: Stage) -> None:
    stage.handlers(_handlers({
        "sleep": """
        try: time.sleep(600)
        except BaseException: (FOLDER / "seen").write_text("interrupted")
        """
    }))  # fmt: skip
    supervisor = stage.run("-c", "1", "--timeout", "0.5")
    job_id = stage.enqueue("sleep", grace=0)
    row = stage.archived(job_id)
    assert (row["reason"], row["rung"], row["term_signal"]) == ("timeout", "kill", signal.SIGKILL)
    in_time(row, 0.5 + 0 + 1)
    assert stage.lines("seen") == []
    assert [event["step"] for event in supervisor.named("ladder-step")] == ["kill"]


def test_the_ladder_has_its_steps_at_their_times(stage: Stage) -> None:
    stage.handlers(_handlers({"loop": STUBBORN["loop-that-catches-everything"][0]}))
    supervisor = stage.run("-c", "1", "--timeout", "0.5", "--grace", "1")
    job_id = stage.enqueue("loop")
    stage.archived(job_id)
    steps = supervisor.named("ladder-step", job_id=str(job_id))
    assert [step["step"] for step in steps] == ["interrupt", "interrupt", "terminate", "kill"]
    assert {step["reason"] for step in steps} == {"timeout"}
    since = [moment(step) - moment(steps[0]) for step in steps]
    for found, planned in zip(since, (0, 0.5, 1.0, 1.5), strict=True):
        assert planned - 0.05 <= found < planned * ALLOWANCE + 0.5
    supervisor.order("handling-job", "ladder-step", "job-timed-out", "not-retrying")


def test_the_limits_of_a_job_stand_above_those_of_its_type_and_these_above_the_supervisors(stage: Stage) -> None:
    stage.handlers(_handlers({"plain": "time.sleep(60)"}, head="""
    @handlers.job("limited", timeout=1, grace="1s", memory="1GiB", shutdown="finish")
    def limited(job):
        if job.payload: return [job.timeout, job.shutdown]
        time.sleep(60)
    @handlers.job("show")
    def show(job):
        return [job.timeout, job.shutdown]
    """))  # fmt: skip
    supervisor = stage.run("-c", "1", "--timeout", "2", "--grace", "3", "--shutdown", "interrupt")
    of_job = stage.archived(stage.enqueue("limited", timeout=0.4, grace=0))
    of_type = stage.archived(stage.enqueue("limited"))
    of_supervisor = stage.archived(stage.enqueue("plain"))
    for row, timeout in ((of_job, 0.4), (of_type, 1), (of_supervisor, 2)):
        assert row["reason"] == "timeout"
        assert f"{timeout:g} s" in row["error"]["message"]
        assert 0.9 * timeout <= lasted(row) < timeout * ALLOWANCE + 3
    assert (of_job["rung"], of_type["rung"]) == ("kill", "interrupt")
    assert of_job["timeout_s"] == 0.4
    shown = [
        stage.archived(stage.enqueue(*arguments, **options))["result"]  # type: ignore[arg-type]
        for arguments, options in (
            (("show",), {}), (("limited", 1), {}), (("limited", 1), {"timeout": 9, "shutdown": "terminate"}),
        )
    ]  # fmt: skip
    assert shown == [[2, "interrupt"], [1, "finish"], [9, "terminate"]]
    assert supervisor.stop() == 0


def test_a_timed_out_job_is_retried_like_any_other(stage: Stage) -> None:
    stage.handlers(_handlers({}, head="""
    def strategy(job, exception):
        (FOLDER / "asked").open("a").write(f"{type(exception).__name__} {job.attempt} {os.getpid()}\\n")
        return Retry(1, delays=[0.1])
    @handlers.job("second-time", timeout=0.5, grace=0, retry_strategy=strategy)
    def second_time(job):
        if job.attempt == 1: time.sleep(60)
        return "done"
    """))  # fmt: skip
    supervisor = stage.run("-c", "1")
    job_id = stage.enqueue("second-time")
    row = stage.archived(job_id)
    assert (row["status"], row["attempts"], row["crashes"], row["result"]) == ("success", 2, 0, "done")
    assert [(entry["reason"], entry["rung"], entry["ended_by"]) for entry in row["history"]] == [
        ("timeout", "kill", "limit")
    ]
    assert [line.split()[:2] for line in stage.lines("asked")] == [["JobTimedOut", "1"]]
    supervisor.expect("job-finished")  # a moment after its row is there
    supervisor.order("job-timed-out", "retrying", "handling-job", "job-finished")


# ---------------------------------------------------------------------------------------------------------------------
# Trees

TREES = {
    "shell-with-two-sleeps": "subprocess.run(['sh', '-c', 'echo $$ >> pids; sleep 300 & sleep 300'], cwd=FOLDER)",
    "double-fork": """
        if os.fork() == 0:
            os.setsid()
            if os.fork(): os._exit(0)
            (FOLDER / "pids").open("a").write(f"{os.getpid()}\\n")
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            while True: time.sleep(60)
        time.sleep(600)
    """,
}


def test_a_tree_of_programs_dies_with_its_job(stage: Stage) -> None:
    stage.handlers(_handlers({name: TREES[name] for name in ("shell-with-two-sleeps", "double-fork")}))
    supervisor = stage.run("-c", "1", "--timeout", "0.7", "--grace", "0")
    for count, name in enumerate(("shell-with-two-sleeps", "double-fork"), 1):
        job_id = stage.enqueue(name)
        stage.wait_lines("pids", count)
        below = [process.pid for process in psutil.Process(pids(stage)[-1]).children(recursive=True)]
        row = stage.archived(job_id)
        assert (row["reason"], row["rung"]) == ("timeout", "kill")
        assert not [pid for pid in (*pids(stage), *below) if alive(pid)], "alive when the outcome was stored"
        assert supervisor.named("leftovers-killed", job_id=str(job_id))
        in_time(row, 0.7 + 0 + 1)


@pytest.mark.parametrize("grace", ["0", "0.3"])
def test_a_job_that_forks_into_new_sessions_every_5_ms_leaves_nobody(stage: Stage, grace: str) -> None:
    stage.handlers(_handlers({"spread": """
        pids = os.open(FOLDER / "pids", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        def begin():
            os.setsid()
            os.write(pids, b"%d\\n" % os.getpid())
        def spread():  # each lives for 20 ms and leaves a successor: four of these are a new session every 5 ms
            while True:
                begin()
                time.sleep(0.02)
                if os.fork(): os._exit(0)
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        for _ in range(4):
            if os.fork() == 0: spread()
        for _ in range(150):  # and these stay
            time.sleep(0.005)
            if os.fork() == 0:
                begin()
                time.sleep(600)
        time.sleep(600)
        """}))  # fmt: skip
    supervisor = stage.run("-c", "1", "--timeout", "1", "--grace", grace)
    for round in range(3):
        job_id = stage.enqueue("spread")
        row = stage.archived(job_id, 40)
        left = [pid for pid in pids(stage) if alive(pid)]
        assert not left, f"round {round}: {left} of {len(pids(stage))} are alive"
        assert (row["reason"], row["rung"]) == ("timeout", "kill")
        assert len(pids(stage)) > 100 * (round + 1)
        in_time(row, 1 + float(grace) + 1)
    assert not supervisor.named("child-unkillable")
    assert supervisor.stop() == 0
    nothing_left(supervisor.cookie)


def test_what_a_job_leaves_running_is_gone_before_its_outcome_is_stored(stage: Stage) -> None:
    """Correction 11: what was orphaned is the warden's child, so it is seen there and buried."""
    stage.handlers(_handlers({
        "leaves": """
        for _ in range(3):
            child = subprocess.Popen(["sleep", "300"], start_new_session=True)
            (FOLDER / "pids").open("a").write(f"{child.pid}\\n")
        pid = os.fork()
        if pid == 0:
            os.setsid()
            if os.fork(): os._exit(0)
            (FOLDER / "pids").open("a").write(f"{os.getpid()}\\n")
            time.sleep(300)
        os.waitpid(pid, 0)
        while len((FOLDER / "pids").read_text().splitlines()) % 4: time.sleep(0.01)
        if job.payload == "raise": raise ValueError("after all")
        if job.payload == "die": os._exit(4)
        return "left"
        """,
        "forks-and-returns": """
        os.fork()
        return "once"
        """,
    }))  # fmt: skip
    supervisor = stage.run("-c", "1")
    for count, (how, status) in enumerate({"return": "success", "raise": "failure", "die": "failure"}.items(), 1):
        job_id = stage.enqueue("leaves", how)
        row = stage.archived(job_id)
        assert row["status"] == status
        assert len(pids(stage)) == 4 * count
        assert not [pid for pid in pids(stage) if alive(pid)]
        assert supervisor.expect("leftovers-killed", job_id=str(job_id))["count"] == 4
    row = stage.archived(stage.enqueue("forks-and-returns"))
    assert (row["status"], row["result"], row["attempts"]) == ("success", "once", 1)


def test_what_a_job_has_started_is_gone_by_its_limit_while_its_callbacks_still_run(stage: Stage) -> None:
    """README, promise 3: programs that ignore SIGTERM do not outlive the limit beside a slow failed_attempt, whether
    the handler obeys, returns late, is a coroutine, or had failed before; and a cancel order ends them too."""
    stage.handlers("""
        import asyncio
        def waits(job, exception):
            (FOLDER / "called").open("a").write(f"{job.type} {type(exception).__name__}\\n")
            while not (FOLDER / "go").exists(): time.sleep(0.02)
        handlers = Handlers(failed_attempt=waits, failed_job=waits)
        def start(job):
            script = f"trap '' TERM INT HUP; sleep 600 & echo $$ $! >> {FOLDER}/{job.type}; wait"
            subprocess.Popen(["sh", "-c", script], start_new_session=True)
            while not (FOLDER / job.type).exists(): time.sleep(0.01)
        @handlers.job("obeys")
        def obeys(job):
            start(job)
            time.sleep(600)
        @handlers.job("returns-late")
        def returns_late(job):
            start(job)
            try: time.sleep(600)
            except BaseException: return "late"
        @handlers.job("coroutine")
        async def coroutine(job):
            start(job)
            await asyncio.to_thread(time.sleep, 600)
        @handlers.job("failed-before")
        def failed_before(job):
            start(job)
            raise ValueError("in time")
        @handlers.job("cancelled")
        def cancelled(job):
            failed_before(job)
    """)
    names = ("obeys", "returns-late", "coroutine", "failed-before", "cancelled")
    supervisor = stage.run("-c", str(len(names)), "--timeout", "1", "--grace", "1")
    ids = {name: stage.enqueue(name, timeout=600 if name == "cancelled" else None) for name in names}
    started = [int(pid) for name in names for pid in stage.wait_lines(name)[0].split()]
    began = time.monotonic()
    stage.wait_lines("called", 1)
    assert cancel(stage.conn, ids["cancelled"])
    nothing_left(started, (1 + 1 + 1) * ALLOWANCE)
    print(f"all was gone after {time.monotonic() - began:.2f} s, the contract says 3 s")
    wait_until(lambda: len({line.split()[0] for line in stage.lines("called")}) == len(names), 15, "all are called")
    assert stage.rows("SELECT count(*) FROM proletarian.archived_job") == [(0,)], "the callbacks still run"
    (stage.folder / "go").touch()
    rows = {name: stage.archived(ids[name]) for name in names}
    assert {name: row["reason"] for name, row in rows.items()} == {
        **dict.fromkeys(("obeys", "returns-late", "coroutine"), "timeout"),
        **dict.fromkeys(("failed-before", "cancelled"), "exception"),
    }
    assert {name: row["error"]["type"] for name, row in rows.items()} == {
        **dict.fromkeys(("obeys", "returns-late", "coroutine"), "ganger_child.JobTimedOut"),
        **dict.fromkeys(("failed-before", "cancelled"), "ValueError"),
    }
    called = stage.lines("called")
    for name in ("obeys", "returns-late", "coroutine"):
        assert [line for line in called if line.startswith(f"{name} ")] == [f"{name} JobTimedOut"] * 2
        assert not supervisor.named("callback-error", job_id=str(ids[name]))
        assert supervisor.named("leftovers-killed", job_id=str(ids[name]))
    for name in ("failed-before", "cancelled"):
        assert supervisor.named("callback-error", job_id=str(ids[name])), "failed_attempt ran beside what had to go"
    assert supervisor.stop() == 0


def test_pools_of_processes_work_and_leave_nothing(stage: Stage) -> None:
    stage.handlers("""
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor
        handlers = Handlers()
        def square(number):
            (FOLDER / "pids").open("a").write(f"{os.getpid()}\\n")
            return number * number
        @handlers.job("pool")
        def pool(job):
            context = multiprocessing.get_context(job.payload)
            with context.Pool(2) as pool:
                return pool.map(square, range(5))
        @handlers.job("executor")
        def executor(job):
            context = multiprocessing.get_context(job.payload)
            with ProcessPoolExecutor(2, mp_context=context) as executor:
                return list(executor.map(square, range(5)))
        @handlers.job("forgotten")
        def forgotten(job):
            pool = multiprocessing.get_context(job.payload).Pool(2)
            return pool.map(square, range(5))
    """)
    supervisor = stage.run("-c", "1")
    for method in ("fork", "spawn", "forkserver"):
        for name in ("pool", "executor", "forgotten"):
            row = stage.archived(stage.enqueue(name, method), 60)
            assert (row["status"], row["result"]) == ("success", [0, 1, 4, 9, 16]), (method, name, row["error"])
            assert not [pid for pid in pids(stage) if alive(pid)], (method, name)
    assert supervisor.stop() == 0


# ---------------------------------------------------------------------------------------------------------------------
# Memory


def test_a_job_over_its_memory_is_interrupted_and_one_far_over_it_killed_at_once(stage: Stage) -> None:
    """Correction 15: memory is sampled over the whole tree, in each form that a tree can take."""
    stage.handlers(_handlers({
        "somewhat-over": """
        held = bytearray(110 << 20)
        for at in range(0, len(held), 4096): held[at] = 1
        try: time.sleep(60)
        except JobOutOfMemory as error:
            (FOLDER / "seen").write_text(str(error)); raise
        """,
        "far-over": """
        while True:  # it ignores the interrupt, and its grace is long: only the kill at once ends it in time
            try:
                held = b"x" * (400 << 20)
                time.sleep(600)
            except BaseException: pass
        """,
        "tree": """
        held = bytearray(150 << 20)
        for at in range(0, len(held), 4096): held[at] = 1
        for _ in range(2):
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
        time.sleep(60)
        """,
        "tree-of-programs": """
        code = "import time; held = bytes(range(256)) * (40 << 12); time.sleep(60)"
        for _ in range(3): subprocess.Popen([sys.executable, "-c", code])
        time.sleep(60)
        """,
        "within": """
        held = bytearray(60 << 20)
        for at in range(0, len(held), 4096): held[at] = 1
        time.sleep(2)
        return len(held)
        """,
    }, head="""
    def strategy(job, exception):
        (FOLDER / "asked").open("a").write(f"{job.type} {type(exception).__name__}\\n")
    handlers.reactions = type(handlers.reactions)(strategy, None, failed_job)
    """))  # fmt: skip
    supervisor = stage.run("-c", "2", "--memory", "100MiB", "--grace", "60")
    ids = {name: stage.enqueue(name) for name in ("somewhat-over", "far-over", "tree", "tree-of-programs", "within")}
    rungs = {"somewhat-over": "interrupt", "far-over": "kill", "tree": None, "tree-of-programs": None}
    for name, rung in rungs.items():
        row = stage.archived(ids[name], 60)
        assert (row["status"], row["reason"], row["attempts"], row["crashes"]) == ("failure", "memory", 1, 0), name
        assert row["ended_by"] == "limit"
        assert rung is None or row["rung"] == rung, (name, row["rung"])
        assert lasted(row) < 30, "not noticed in time"
        assert row["error"]["type"] == "ganger_child.JobOutOfMemory"
        assert len(failed(stage, ids[name])) == 1
        assert failed(stage, ids[name])[0].startswith("JobOutOfMemory")
        event = supervisor.named("job-out-of-memory", job_id=str(ids[name]))[0]
        assert event["held"] > event["memory"] == 100 << 20, event
    assert sorted(stage.lines("asked")) == sorted(f"{name} JobOutOfMemory" for name in rungs)
    assert "104857600" in stage.lines("seen")[0]
    row = stage.archived(ids["within"], 60)
    assert (row["status"], row["result"]) == ("success", 60 << 20)


# ---------------------------------------------------------------------------------------------------------------------
# Cancel


def test_a_job_that_is_not_running_is_cancelled_at_once(stage: Stage) -> None:
    stage.handlers(_handlers({"wait": "time.sleep(600)", "fine": "return 1"}))
    scheduled = stage.enqueue("fine", process_in=3600)
    ready = stage.enqueue("fine")
    assert [cancel(stage.conn, job_id) for job_id in (scheduled, ready)] == ["cancelled", "cancelled"]
    supervisor = stage.run("-c", "1")
    for job_id in (scheduled, ready):
        row = stage.archived(job_id)
        assert (row["status"], row["reason"], row["attempts"]) == ("cancelled", "cancelled", 0)
        assert row["started_at"] is None
        assert row["wall_s"] is None
        assert cancel(stage.conn, job_id) == "finished"
    assert not [event for event in supervisor.events if event.get("job_id") in (str(scheduled), str(ready))]
    assert stage.lines("failed") == []


@pytest.mark.parametrize("reason", ["cancelled", "killed"])
def test_a_running_job_is_cancelled_by_the_ladder_and_killed_without_grace(stage: Stage, reason: Any) -> None:
    stage.handlers(_handlers({
        "wait": """
        (FOLDER / "running").write_text(str(os.getpid()))
        try: time.sleep(600)
        except JobCancelled: (FOLDER / "seen").write_text("interrupted"); raise
        """
    }))  # fmt: skip
    supervisor = stage.run("-c", "1")
    job_id = stage.enqueue("wait")
    stage.wait_lines("running")
    assert cancel(stage.conn, job_id, reason=reason) == "ordered"
    row = stage.archived(job_id, 3 * ALLOWANCE)
    assert (row["status"], row["reason"], row["ended_by"], row["attempts"]) == ("cancelled", reason, "operator", 1)
    assert row["rung"] == ("interrupt" if reason == "cancelled" else "kill")
    assert stage.lines("seen") == (["interrupted"] if reason == "cancelled" else [])
    supervisor.expect("job-cancelled", job_id=str(job_id))
    assert not supervisor.named("not-retrying")
    assert stage.lines("failed") == [], "failed_job is for failures"
    assert not alive(int(stage.lines("running")[0]))
    assert cancel(stage.conn, job_id) == "finished"


def test_a_job_that_swallows_its_cancellation_is_cancelled_all_the_same(stage: Stage) -> None:
    stage.handlers(_handlers({
        "swallow": """
        (FOLDER / "running").write_text("yes")
        try: time.sleep(600)
        except BaseException: return "I go on"
        """,
        "ignore": """
        (FOLDER / "ignoring").write_text("yes")
        while True:
            try: time.sleep(600)
            except BaseException: pass
        """,
        "raise": """
        (FOLDER / "raising").write_text("yes")
        try: time.sleep(600)
        except BaseException: raise ValueError("mine")
        """,
    }))  # fmt: skip
    stage.run("-c", "3", "--grace", "1")
    ids = {name: stage.enqueue(name) for name in ("swallow", "ignore", "raise")}
    for file in ("running", "ignoring", "raising"):
        stage.wait_lines(file)
    assert {cancel(stage.conn, job_id) for job_id in ids.values()} == {"ordered"}
    rows = {name: stage.archived(job_id) for name, job_id in ids.items()}
    assert {(row["status"], row["reason"]) for row in rows.values()} == {("cancelled", "cancelled")}
    assert (rows["swallow"]["rung"], rows["ignore"]["rung"]) == ("interrupt", "kill")
    assert stage.lines("failed") == []


def test_a_job_that_waits_for_its_retry_is_cancelled_and_tells_of_its_attempt(stage: Stage) -> None:
    stage.handlers(_handlers({}, head="""
    @handlers.job("later", retry=Retry(5, delays=[3600]))
    def later(job):
        raise ValueError("first")
    """))  # fmt: skip
    stage.run("-c", "1")
    job_id = stage.enqueue("later")
    wait_until(lambda: (stage.job(job_id) or {}).get("history"), 15, lambda: stage.job(job_id))
    assert cancel(stage.conn, job_id) == "cancelled"
    row = stage.archived(job_id)
    assert (row["status"], row["attempts"], row["history"][0]["error"]["message"]) == ("cancelled", 1, "first")
    assert stage.lines("failed") == []


# ---------------------------------------------------------------------------------------------------------------------
# Output and results


def _printed(supervisor: Running, job_id: UUID) -> str:
    return "".join(line for told_id, line in list(supervisor.output) if told_id == str(job_id))


def test_a_megabyte_without_an_end_of_line_by_any_way_arrives_and_the_result_is_exact(stage: Stage) -> None:
    """D35, https://github.com/glslang/windbg-mcp/issues/65: outcomes have a way of their own, so what is printed, by
    Python, by the system call or by a program, without an end of line or looking like a message, harms none."""
    stage.handlers(_handlers({
        "print": "print('x' * (1 << 20), end=''); return [1, 'print']",
        "write": """
        left = b'x' * (1 << 20)
        while left: left = left[os.write(1, left):]
        return [2, "write"]
        """,
        "program": """
        subprocess.run([sys.executable, "-c", "print('x' * (1 << 20), end='')"], check=True)
        return [3, "program"]
        """,
        "c-code": """
        import ctypes
        libc = ctypes.CDLL(None)
        for _ in range(1 << 10): libc.printf(b"x" * 1024)
        libc.fflush(None)
        return [4, "c-code"]
        """,
        "stderr": """
        print('x' * (1 << 20), end='', file=sys.stderr)
        return [5, "stderr"]
        """,
        "like-a-message": """
        os.write(1, b'{"op":"returned","nonce":1}\\n' * 100)
        return [6, "like-a-message"]
        """,
    }))  # fmt: skip
    supervisor = stage.run("-c", "1")
    for number, name in enumerate(("print", "write", "program", "c-code", "stderr", "like-a-message"), 1):
        job_id = stage.enqueue(name)
        row = stage.archived(job_id)
        assert (row["status"], row["result"]) == ("success", [number, name])
        if name != "like-a-message":
            wait_until(lambda job_id=job_id: len(_printed(supervisor, job_id)) >= 1 << 20, 15, name)  # type: ignore[misc]
            assert _printed(supervisor, job_id) == "x" * (1 << 20)


def test_output_comes_before_the_final_event_also_of_a_job_that_is_killed(stage: Stage) -> None:
    stage.handlers(_handlers({
        "dies": """
        os.write(1, b"last words")
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        "hangs": """
        print("printed, and no newline", end="")
        sys.stdout.flush()
        time.sleep(600)
        """,
        "two": "print('one'); print('two')",
    }))  # fmt: skip
    log = stage.folder / "log"
    supervisor = stage.run(
        "-c", "1", "--timeout", "0.5", "--grace", "0",
        prefix=("sh", "-c", f'exec "$@" >{log} 2>&1', "sh"), wait=False,
    )  # fmt: skip
    ids = {name: stage.enqueue(name) for name in ("dies", "hangs", "two")}
    for job_id in ids.values():
        stage.archived(job_id, 40)
    assert supervisor.stop() == 0
    events = [json.loads(line) for line in log.read_text().splitlines()]
    for name, ending, lines in (
        ("dies", "job-crashed", ["last words"]), ("hangs", "job-timed-out", ["printed, and no newline"]),
        ("two", "job-finished", ["one", "two"]),
    ):  # fmt: skip
        about = [event for event in events if event.get("job_id") == str(ids[name])]
        names = [event["event"] for event in about if event["event"] in ("job-output", ending)]
        assert names == ["job-output"] * len(lines) + [ending]
        assert [event["line"] for event in about if event["event"] == "job-output"] == lines


def test_twenty_megabytes_to_stderr_stall_neither_the_job_nor_its_siblings(stage: Stage) -> None:
    stage.handlers(_handlers({
        "loud": """
        line = "x" * 99 + "\\n"
        for _ in range(20): sys.stderr.write(line * 10486)
        return "done"
        """,
        "short": "return time.time()",
    }))  # fmt: skip
    supervisor = stage.run("-c", "2")
    loud = stage.enqueue("loud")
    supervisor.expect("handling-job", job_id=str(loud))
    short = [stage.archived(stage.enqueue("short")) for _ in range(3)]
    row = stage.archived(loud, 60)
    assert (row["status"], row["result"]) == ("success", "done")
    assert {each["status"] for each in short} == {"success"}
    print(f"20 MB took {lasted(row):.2f} s; short jobs beside it {[round(lasted(each), 3) for each in short]}")


RESULTS = {
    "set": ("{'deep': [1, {2, 3}]}", "result['deep'][1]"),
    "nan": ("[0, float('nan')]", "result[1]"),
    "nul": ("{'text': 'a\\0b'}", "result['text']"),
    "surrogate": ("'\\ud800'", "result"),
    "key": ("{(1, 2): 3}", "result"),
    "circle": ("circle()", "result"),
    "deep": ("deep()", "result"),
    "bytes": ("b'bytes'", "result"),
    "object": ("{'a': object()}", "result['a']"),
    "decimal": ("[__import__('decimal').Decimal(1)]", "result[0]"),
}


def test_a_result_that_cannot_be_stored_fails_its_job_with_the_path_to_it(stage: Stage) -> None:
    acts = {name: f"return {value}" for name, (value, _) in RESULTS.items()}
    stage.handlers(_handlers(acts, head="""
    def circle():
        ring = []; ring.append(ring); return ring
    def deep():
        value = 0
        for _ in range(100000): value = [value]
        return value
    @handlers.job("retried", retry=Retry(1, delays=[0]))
    def retried(job):
        return {1, 2} if job.attempt == 1 else [1, 2]
    """))  # fmt: skip
    supervisor = stage.run("-c", "2")
    ids = {name: stage.enqueue(name) for name in RESULTS}
    for name, (_, path) in RESULTS.items():
        row = stage.archived(ids[name], 40)
        assert (row["status"], row["reason"], row["attempts"]) == ("failure", "bad-result", 1), name
        assert path in row["error"]["message"], (name, row["error"]["message"])
        assert row["result"] is None
        assert failed(stage, ids[name])[0].startswith("BadResult "), name
    row = stage.archived(stage.enqueue("retried"))
    assert (row["status"], row["attempts"], row["result"]) == ("success", 2, [1, 2])
    assert supervisor.stop() == 0


def test_results_come_whole_up_to_max_result(stage: Stage) -> None:
    stage.handlers(_handlers({"text": "return 'é' * job.payload", "nothing": "return None", "null": "return [None]"}))
    supervisor = stage.run("-c", "1")
    for characters in (0, 1, 32 * 1024 - 2, 32 * 1024, 512 * 1024 - 1):
        row = stage.archived(stage.enqueue("text", characters))
        assert row["result"] == "é" * characters, characters
    row = stage.archived(stage.enqueue("text", 512 * 1024))
    assert (row["status"], row["reason"]) == ("failure", "bad-result")
    assert "1048578" in row["error"]["message"]
    assert "1048576" in row["error"]["message"]
    assert stage.archived(stage.enqueue("nothing"))["result"] is None
    assert stage.archived(stage.enqueue("null"))["result"] == [None]
    assert supervisor.stop() == 0
