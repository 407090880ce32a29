"""Signals and limits hit whom and when they are meant to: not a stranger with a used number, not the supervisor or its
group, and not a job that has time left although the wall clock says otherwise.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from ganger_child import page
from ganger_child.options import Options
from ganger_child.page import BEGUN, RUN, Page
from ganger_child.trust import TrustReader, TrustWriter
from ganger_child.warden import Inheritance, Warden, _Child
from ganger_child.wire import Channel, Message, pair
from tests.processes import alive, wait_until
from tests.stories.stage import Stage

ALLOWANCE = 3.0

# ---------------------------------------------------------------------------------------------------------------------
# A number that has gone to a stranger


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with us, in a group of its own."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        yield process
        process.kill()


def test_a_child_that_was_waited_for_is_never_signalled(stranger: subprocess.Popen[bytes]) -> None:
    """D46, https://github.com/msei99/pbgui/issues/207: between two rungs of the ladder the child has ended and been
    waited for, its end is not reported yet, and its number, its group's too, is a stranger's."""
    ours, theirs = pair()
    trust, lifeline = TrustWriter(), os.pipe()
    memory = page.create()
    inheritance = Inheritance(
        Options("a:b"), None, TrustReader(os.dup(trust.reading_end)), os.pidfd_open(os.getpid()), None
    )
    warden = Warden("any/1", Channel(theirs), lifeline[0], inheritance)
    child = _Child(1, stranger.pid, -1, Page(memory), memory, 0, trusted_at_start=True, status=0)
    child.page[RUN] = 7
    order = Message("order", {"child": 1, "nonce": 7, "reason": "timeout", "signal": True})
    try:
        for act in (warden._interrupt, warden._terminate, lambda child, _: warden._halt(child)):
            act(child, order)
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL):
            for group in (False, True):
                warden._signal(child, number, group=group)
        time.sleep(0.05)  # a signal would have arrived
        assert stranger.poll() is None
        assert psutil.Process(stranger.pid).status() == psutil.STATUS_SLEEPING
    finally:
        for channel in (ours, theirs):
            channel.close()
        for fd in (*lifeline, memory, inheritance.supervisor):
            os.close(fd)
        child.page.close()
        inheritance.trust.close()
        trust.close()


def test_a_child_that_has_ended_its_run_and_is_about_to_tell_is_not_replaced_as_idle(
    stranger: subprocess.Popen[bytes],
) -> None:
    """It was sent a job and seemed not to begin it; killed between the job's end and the word about it, a job that was
    done would go back as one that never began."""
    ours, theirs = pair()
    trust, lifeline, memory = TrustWriter(), os.pipe(), page.create()
    inheritance = Inheritance(
        Options("a:b"), None, TrustReader(os.dup(trust.reading_end)), os.pidfd_open(os.getpid()), None
    )
    warden = Warden("any/1", Channel(theirs), lifeline[0], inheritance)
    child = _Child(1, stranger.pid, -1, Page(memory), memory, 0, trusted_at_start=True)
    words = Channel(ours)
    try:
        for begun, run, told in ((7, 7, 7), (7, 0, 7), (8, 8, 8), (8, 0, 7)):
            child.page[BEGUN], child.page[RUN] = begun, run
            warden._replace_idle(child, Message("replace-idle", {"child": 1, "nonce": 7}))
            (word,) = words.receive().messages
            assert (word.op, word["nonce"]) == ("spared", told)
            wait_until(
                lambda: psutil.Process(stranger.pid).status() == psutil.STATUS_SLEEPING, 5, "it was stopped for good"
            )
    finally:
        words.close()
        theirs.close()
        for fd in (*lifeline, memory, inheritance.supervisor):
            os.close(fd)
        child.page.close()
        inheritance.trust.close()
        trust.close()


# Run beside the supervisor in its PID namespace: strangers come and go, so that every number is soon somebody else's.
# It writes down each one that did not end by itself.
STRANGERS = """
    import os, subprocess, sys, time, random
    folder, rng, living = sys.argv[1], random.Random(7), []
    born = 0
    while not os.path.exists(folder + "/enough"):
        while len(living) < 12:
            seconds = str(rng.uniform(0.05, 0.6))
            living.append(subprocess.Popen(["sleep", seconds], start_new_session=rng.random() < 0.5))
            born += 1
        time.sleep(0.01)
        for process in list(living):
            if process.poll() is not None:
                living.remove(process)
                if process.returncode:
                    with open(folder + "/harmed", "a") as file: file.write(f"{process.pid} {process.returncode}\\n")
    for process in living: process.wait()
    open(folder + "/strangers", "w").write(str(born))
"""
SMALL = """
    echo 360 > /proc/sys/kernel/pid_max
    "$PYTHON" "$FOLDER/strangers.py" "$FOLDER" &
    exec "$@"
"""
UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def _kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="making a PID namespace takes root")
@pytest.mark.skipif(_kernel() < (6, 14), reason="before Linux 6.14 pid_max is the whole machine's")
def test_where_numbers_are_used_again_at_once_no_stranger_is_harmed(stage: Stage) -> None:
    """D46, https://github.com/msei99/pbgui/issues/207: 60 process numbers for all; children end at every rung of the
    ladder, by themselves or by others' hands, while strangers take their numbers."""
    if subprocess.run([*UNSHARE, "true"], capture_output=True).returncode:
        pytest.skip("the kernel refuses a PID namespace here")
    stage.handlers("""
        handlers = Handlers()

        @handlers.job("end", timeout=0.3, grace=0.3)
        def end(job):
            subprocess.Popen(["sh", "-c", "sleep 0.4 & sleep 0.2"])
            if job.payload == "at once": os._exit(0)
            if job.payload == "by a kill": os.kill(os.getpid(), signal.SIGKILL)
            try: time.sleep(60)
            except JobTimedOut:
                if job.payload == "at the interrupt": os._exit(1)
            try: time.sleep(60)
            except BaseException:
                if job.payload == "at the end": os._exit(2)
            while True:
                try: time.sleep(60)
                except BaseException: pass
    """)
    (stage.folder / "strangers.py").write_text(textwrap.dedent(STRANGERS))
    supervisor = stage.run(
        "-c", "2", "--recycle-after", "0", prefix=(*UNSHARE, "sh", "-ec", textwrap.dedent(SMALL), "sh"),
        environ={"PYTHON": sys.executable, "FOLDER": str(stage.folder)},
    )  # fmt: skip
    ways = ("at once", "by a kill", "at the interrupt", "at the end", "never")
    ids = [stage.enqueue("end", way) for _ in range(6) for way in ways]
    for job_id in ids:
        row = stage.archived(job_id, 90)
        assert row["status"] == "failure"
        assert row["attempts"] == 1
    (stage.folder / "enough").touch()
    wait_until(lambda: (stage.folder / "strangers").exists(), 20, supervisor.story)
    born = int((stage.folder / "strangers").read_text())
    print(f"{born} strangers beside {len(ids)} jobs")
    assert born > 120, "the numbers came round less than twice"
    assert stage.lines("harmed") == []
    (supervising,) = [p.pid for p in psutil.Process(supervisor.pid).children() if "strangers" not in str(p.cmdline())]
    os.kill(supervising, signal.SIGTERM)
    assert supervisor.ended() == 0


# ---------------------------------------------------------------------------------------------------------------------
# A cancel right after the claim

# In the server: the row is looked at without a pause, so the order comes within a millisecond of the claim.
CANCEL_AT_ONCE = """
    CREATE PROCEDURE cancel_at_once(wanted uuid) LANGUAGE plpgsql AS $$
    DECLARE running boolean := false;
    BEGIN
      WHILE running IS FALSE LOOP
        COMMIT;
        SELECT state = 2 INTO running FROM proletarian.job WHERE job_id = wanted;
      END LOOP;
      PERFORM proletarian.cancel(wanted);
    END $$
"""


@pytest.mark.slow
def test_a_cancel_at_the_moment_of_the_claim_hits_the_job_alone(stage: Stage) -> None:
    """D47, https://github.com/apache/airflow/issues/17507: cancelled within a millisecond of the claim, 100 times.
    Neither the supervisor nor anybody in its group is signalled, and each job ends once."""
    stage.handlers("""
        handlers = Handlers()

        @handlers.job("wait")
        def wait(job):
            with open(FOLDER / "runs", "a") as file: file.write(f"{job.id}\\n")
            time.sleep(600)

        @handlers.job("fine")
        def fine(job): return "fine"
    """)
    canary = stage.folder / "canary"
    supervisor = stage.run(
        "-c", "10", "--recycle-after", "0",
        prefix=("sh", "-c", f'sleep 600 & echo $! > {canary}; exec "$@"', "sh"),
    )  # fmt: skip
    sleeper = int(canary.read_text())
    assert os.getpgid(sleeper) == os.getpgid(supervisor.pid)
    stage.conn.execute(CANCEL_AT_ONCE.encode())
    ids = []
    for _ in range(100):
        job_id = stage.enqueue("wait")
        stage.conn.execute("CALL cancel_at_once(%s)", [job_id])
        ids.append(job_id)
    for job_id in ids:
        row = stage.archived(job_id, 60)
        assert (row["status"], row["reason"], row["attempts"]) == ("cancelled", "cancelled", 1)
    runs = stage.lines("runs")
    assert len(runs) == len(set(runs)), "a job ran twice"
    assert stage.rows("SELECT count(*), sum(starts) FROM proletarian.archived_job") == [(100, 100)]
    for job_id in ids:
        ends = [event["event"] for event in supervisor.events if event.get("job_id") == str(job_id)]
        assert ends.count("job-cancelled") == 1, ends
    assert stage.archived(stage.enqueue("fine"))["result"] == "fine"
    assert alive(sleeper)
    assert psutil.Process(sleeper).status() == psutil.STATUS_SLEEPING
    assert not supervisor.named("shutting-down")
    os.kill(sleeper, signal.SIGKILL)
    assert supervisor.stop() == 0


# ---------------------------------------------------------------------------------------------------------------------
# The wall clock

CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *ahead; /* seconds, in a file that the test writes */

__attribute__((constructor)) static void look(void) {
  const char *name = getenv("TEST_CLOCK");
  int fd = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
  if (fd < 0) return;
  void *mapped = mmap(0, sizeof *ahead, PROT_READ, MAP_SHARED, fd, 0);
  if (mapped != MAP_FAILED) ahead = mapped;
  close(fd);
}

int clock_gettime(clockid_t id, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int failed = real(id, now);
  if (!failed && ahead && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += *ahead;
  return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec exact;
  if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *out) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  if (out) *out = exact.tv_sec;
  return exact.tv_sec;
}
"""


class WallClock:
    """The wall clock of the programs that have its ``environ``; monotonic clocks stay as they are."""

    def __init__(self, folder: Path) -> None:
        source, library, self._file = folder / "clock.c", folder / "clock.so", folder / "ahead"
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            pytest.skip("setting a clock takes a C compiler")
        source.write_text(CLOCK)
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        self._file.write_bytes(bytes(8))
        self.environ = {"LD_PRELOAD": str(library), "TEST_CLOCK": str(self._file)}

    def set(self, seconds: int) -> None:
        """Let it be so many seconds ahead of the true time."""
        with open(self._file, "r+b") as file:
            file.write(seconds.to_bytes(8, sys.byteorder, signed=True))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_jump_of_the_wall_clock_neither_ends_a_job_nor_spares_one(stage: Stage, method: str) -> None:
    """D43, https://github.com/benoitc/gunicorn/issues/1709: one hour ahead, then two hours back: a job with 60 s stays,
    one with 5 s ends at 5 s, and no lease is lost."""
    clock = WallClock(stage.folder)
    stage.handlers("""
        handlers = Handlers()

        @handlers.job("work", timeout=60)
        def work(job):
            (FOLDER / "seen").write_text(f"{time.time()}\\n")
            while not (FOLDER / "go").exists(): time.sleep(0.05)
            with open(FOLDER / "seen", "a") as file: file.write(f"{time.time()}\\n")
            return "done"

        @handlers.job("long", timeout=5, grace=0)
        def long(job): time.sleep(600)
    """)
    supervisor = stage.run("-c", "2", "--lease", "4", "--start-method", method, environ=clock.environ)
    work = stage.enqueue("work")
    stage.wait_lines("seen")
    long = stage.enqueue("long")
    supervisor.expect("handling-job", job_id=str(long))
    time.sleep(1)  # in the middle of its five seconds
    clock.set(3600)
    time.sleep(1.5)
    clock.set(-3600)
    row = stage.archived(long, 30)
    assert (row["status"], row["reason"]) == ("failure", "timeout")
    assert 4.9 < row["wall_s"] < 5 + (0 + 1) * ALLOWANCE
    (stage.folder / "go").touch()
    row = stage.archived(work)
    assert (row["status"], row["result"], row["attempts"], row["starts"]) == ("success", "done", 1, 1)
    assert 0 < row["wall_s"] < 60
    before, after = map(float, stage.lines("seen"))
    assert after < before - 3000, "the clock was not set"
    told = datetime.fromisoformat(supervisor.named("job-timed-out")[0]["ts"])
    assert (datetime.now(UTC) - told).total_seconds() > 3000, json.dumps(supervisor.named("job-timed-out"))
    assert not supervisor.named("lease-lost")
    assert supervisor.stop() == 0
