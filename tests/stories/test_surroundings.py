"""Where a supervisor may find itself: limits, missing folders, closed streams, odd accounts. It works, or says a
sentence and ends; it never hangs.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.namespaces import allow_processes, plain_account, prepared
from tests.processes import nothing_left, tree, wait_until
from tests.stories.proxy import Proxy
from tests.stories.stage import Running, Stage

pytestmark = pytest.mark.slow

HANDLERS = """
    handlers = Handlers()

    @handlers.job("fine")
    def fine(job):
        print("said")
        return subprocess.run(["sh", "-c", "exit 3"]).returncode

    @handlers.job("hang", timeout=0.5, grace=0)
    def hang(job):
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        time.sleep(600)

    @handlers.job("eat", memory="60MiB", grace=0)
    def eat(job):
        held = b"x" * (120 << 20)
        time.sleep(600)

    @handlers.job("compute")
    def compute(job):
        end = time.monotonic() + 2
        while time.monotonic() < end: pass

    @handlers.job("count")
    def count(job):
        (FOLDER / "ran").open("a").write(f"{job.id}\\n")

    @handlers.job("look")
    def look(job):
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        ignored = [number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN]
        open_files = len(os.listdir("/proc/self/fd"))
        return {"blocked": len(blocked), "ignored": sorted(ignored), "files": open_files, "umask": os.umask(0)}
"""


def works(stage: Stage, supervisor: Running) -> None:
    """Fail unless jobs run, print, are limited in time and memory, and are counted; then stop it."""
    ids = [stage.enqueue(job_type) for job_type in ("fine", "hang", "eat", "fine")]
    rows = [stage.archived(job_id) for job_id in ids]
    assert [(row["status"], row["reason"], row["attempts"]) for row in rows] == [
        ("success", None, 1), ("failure", "timeout", 1), ("failure", "memory", 1), ("success", None, 1),
    ], supervisor.story()  # fmt: skip
    assert {row["result"] for row in rows} == {3, None}
    assert (str(ids[0]), "said") in supervisor.output
    assert supervisor.stop() == 0
    nothing_left(supervisor.cookie)


def shell(setup: str) -> tuple[str, ...]:
    """Behind a shell that has done this."""
    return ("sh", "-c", setup + '; exec "$@"', "sh")


def python(setup: str) -> tuple[str, ...]:
    """Behind an interpreter that has done this."""
    imports = "import fcntl, os, resource, signal, sys"
    return (sys.executable, "-c", f"{imports}\n{setup}\nos.execv(sys.argv[1], sys.argv[1:])")


# ---------------------------------------------------------------------------------------------------------------------
# What a program inherits

MANY_DESCRIPTORS = """
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096), most))
null = os.open("/dev/null", os.O_RDWR)
for number in range(100, 1200): os.dup2(null, number)
"""
INHERITED = {
    "64 descriptors at most": shell("ulimit -n 64"),
    "1100 descriptors open": python(MANY_DESCRIPTORS),
    "all signals blocked": python("signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())"),
    "all signals ignored": shell('trap "" TERM INT QUIT CHLD ALRM USR1 USR2 PIPE'),
    "nothing allowed by the umask": shell("umask 0777"),
    "everything allowed by the umask": shell("umask 0"),
    "a gigabyte of addresses": shell("ulimit -v 1000000"),
    "no home and no words": ("env", "-u", "HOME", "-u", "TMPDIR", "-u", "USER", "LC_ALL=C", "PYTHONUTF8=0",
                             "PYTHONCOERCECLOCALE=0", "PYTHONIOENCODING=ascii:strict"),
    "stdin closed": shell("exec 0<&-"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("how", INHERITED)
def test_jobs_run_whatever_was_inherited(stage: Stage, how: str) -> None:
    """And what a job sees of it is what any program started by a shell sees, but for its limits and its umask."""
    stage.handlers(HANDLERS)
    supervisor = stage.run("-c", "1", prefix=INHERITED[how])
    seen = stage.archived(stage.enqueue("look"))["result"]
    assert seen["blocked"] == 0
    assert set(seen["ignored"]) <= {signal.SIGPIPE, signal.SIGXFSZ}, "only those that Python itself ignores"
    assert seen["files"] < 30
    if "umask" in how:
        assert seen["umask"] == (0o777 if "nothing" in how else 0)
    if how == "nothing allowed by the umask":  # whoever opens a file here makes one that he cannot read
        assert supervisor.stop() == 0
    else:
        works(stage, supervisor)


# ---------------------------------------------------------------------------------------------------------------------
# Limits that leave no room


def ends_with_a_sentence(supervisor: Running) -> None:
    """It works, or it says what is wrong and ends, by itself or when asked: no limit makes it hang."""
    wait_until(
        lambda: supervisor.process.poll() is not None or supervisor.named("boot-failed"), 30, supervisor.story
    )  # fmt: skip
    if supervisor.process.poll() is None:  # it goes on trying: somebody may raise the limit
        assert supervisor.named("boot-failed")[0]["error"]
        supervisor.send(signal.SIGTERM)
    if supervisor.ended() != 0:
        told = [*supervisor.named("boot-failed"), *supervisor.named("job-worker-error")]
        sentences = [line for line in supervisor.other if line.startswith("ganger: ")]
        assert sentences or any("Traceback" not in event["error"] for event in told), supervisor.story()


def test_too_few_descriptors_are_told_in_a_sentence(stage: Stage) -> None:
    stage.handlers(HANDLERS)
    supervisor = stage.run("-c", "2", prefix=shell("ulimit -n 30"), wait=False)
    assert supervisor.ended() == 78
    assert "30 are allowed: raise the hard limit" in supervisor.other[-1]
    supervisor = stage.run("-c", "2", prefix=shell("ulimit -S -n 30"), wait=False)
    supervisor.expect("polling-for-jobs", 40)
    assert stage.archived(stage.enqueue("fine"))["result"] == 3, "a soft limit is ours to raise"
    assert supervisor.stop() == 0


@pytest.mark.slow
def test_any_limit_on_addresses_ends_in_work_or_a_sentence(stage: Stage) -> None:
    stage.handlers(HANDLERS)
    for kilobytes in range(49_500, 112_000, 5_200):
        job_id = stage.enqueue("fine")
        supervisor = stage.run("-c", "1", "--until-empty", prefix=shell(f"ulimit -v {kilobytes}"), wait=False)
        ends_with_a_sentence(supervisor)
        row = stage.job(job_id)
        assert row is None or (row["state"], row["attempts"]) == (1, 0), kilobytes


@contextmanager
def plain_stage(database: str, folder: Path) -> Iterator[Stage]:
    """A stage for supervisors without privileges: the database's socket is closed to them, the folder open."""
    folder.chmod(0o777)
    with Proxy(database) as proxy:
        stage = Stage(database, folder)
        stage.handlers(HANDLERS)
        stage.supervised = proxy.conninfo
        yield stage
        stage.close()


@pytest.mark.slow
def test_any_limit_on_processes_ends_in_work_or_a_sentence(database: str, folder: Path) -> None:
    prefix = plain_account()
    with plain_stage(database, folder) as stage:
        for processes in (3, 6, 7, 12):
            job_id = stage.enqueue("fine")
            limited = (*prefix, "prlimit", f"--nproc={processes}")
            supervisor = stage.run("-c", "1", "--until-empty", prefix=limited, wait=False)
            ends_with_a_sentence(supervisor)
            row = stage.job(job_id)
            assert row is None or (row["state"], row["attempts"]) == (1, 0), processes


# ---------------------------------------------------------------------------------------------------------------------
# Nobody listens

FULL_PIPE = """
reader, writer = os.pipe()
os.set_inheritable(reader, True)
os.set_blocking(writer, False)
try:
    while os.write(writer, bytes(65536)): pass
except BlockingIOError:
    os.set_blocking(writer, True)
for number in (1, 2): os.dup2(writer, number)
"""
BROKEN_PIPE = """
reader, writer = os.pipe()
os.close(reader)
for number in (1, 2): os.dup2(writer, number)
"""
DEAF = {
    "closed": shell("exec >&- 2>&-"),
    "a full pipe": python(FULL_PIPE),
    "a broken pipe": python(BROKEN_PIPE),
}


@pytest.mark.parametrize("how", ["closed", *(pytest.param(how, marks=pytest.mark.slow) for how in [*DEAF][1:])])
def test_jobs_run_where_nobody_takes_what_is_said(stage: Stage, how: str) -> None:
    """Nor does a sentence at the end keep it: the database here cannot be reached by the second supervisor."""
    stage.handlers(HANDLERS)
    ids = [stage.enqueue(job_type) for job_type in ("fine", "hang", "fine")]
    supervisor = stage.run("-c", "1", prefix=DEAF[how], wait=False)
    wait_until(
        lambda: supervisor.process.poll() is not None or not stage.rows("SELECT 1 FROM proletarian.job LIMIT 1"), 60,
        lambda: f"jobs are left: {stage.rows('SELECT * FROM proletarian.job')}",
    )  # fmt: skip
    assert supervisor.process.poll() is None, f"it has ended with exit code {supervisor.process.returncode}"
    assert [stage.archived(job_id)["reason"] for job_id in ids] == [None, "timeout", None]
    assert supervisor.cookie
    assert supervisor.stop(limit=30) == 0
    nowhere = "postgresql://nobody@127.0.0.1:1/nothing"
    supervisor = stage.run("--database-wait", "0", prefix=DEAF[how], conninfo=nowhere, wait=False)
    assert supervisor.ended(limit=30) == 69


def test_a_hangup_while_every_write_fails_lets_running_jobs_finish(stage: Stage) -> None:
    """D53, https://github.com/celery/celery/issues/68: SIGHUP while stdout and stderr answer EPIPE. Two running jobs
    end once and are stored; it does not spin meanwhile."""
    stage.handlers(HANDLERS)
    supervisor = stage.run("-c", "2", prefix=DEAF["a broken pipe"], wait=False)
    ids = [stage.enqueue("compute") for _ in range(2)]
    wait_until(lambda: stage.rows("SELECT count(*) FROM proletarian.job WHERE state = 2") == [(2,)], 60, "not claimed")
    assert supervisor.cookie
    process = psutil.Process(supervisor.pid)
    before = sum(process.cpu_times()[:2])
    spent = 0.0
    supervisor.send(signal.SIGHUP)
    while supervisor.process.poll() is None:
        with suppress(psutil.Error):
            spent = max(spent, sum(process.cpu_times()[:2]) - before)
        time.sleep(0.02)
    assert supervisor.ended() == 0
    print(f"{spent:.2f} s of CPU while it was draining")
    assert spent < 1.0
    assert [(row["status"], row["attempts"]) for row in map(stage.archived, ids)] == [("success", 1)] * 2


def test_a_signal_is_heard_by_a_supervisor_with_many_descriptors_that_waits_for_its_database(stage: Stage) -> None:
    """A number over 1023 is more than select() can take."""
    stage.handlers(HANDLERS)
    nowhere = "postgresql://nobody@127.0.0.1:1/nothing"
    prefix = INHERITED["1100 descriptors open"]
    supervisor = stage.run("--database-wait", "60", prefix=prefix, conninfo=nowhere, wait=False)
    supervisor.expect("database-lost")
    supervisor.send(signal.SIGTERM)
    assert supervisor.ended(limit=6) == 0
    assert not supervisor.other, supervisor.other


@pytest.mark.slow
def test_a_log_on_a_full_disk_costs_its_lines_and_says_so_when_there_is_room(stage: Stage) -> None:
    """D75, https://github.com/wazuh/wazuh/issues/14734: the log is on a full tmpfs. Jobs run and are stored;
    there is one warning when space returns."""
    stage.handlers(HANDLERS)
    disk = stage.folder / "disk"
    disk.mkdir()
    place = shlex.quote(str(disk))
    prefix = prepared(f"mount -t tmpfs -o size=256k none {place}\nexec 2>{place}/log", "--mount")
    supervisor = stage.run("-c", "1", prefix=prefix, wait=False)
    first = stage.enqueue("fine")
    assert stage.archived(first, 40)["result"] == 3
    assert supervisor.cookie
    seen = Path(f"/proc/{supervisor.pid}/root{disk}")
    log = seen / "log"
    wait_until(lambda: str(first) in log.read_text(), 10, log.read_text)
    subprocess.run(["dd", "if=/dev/zero", f"of={seen}/ballast"], capture_output=True)  # until it is full
    while True:  # what is left of the log's last page
        size = log.stat().st_size
        ids = [stage.enqueue("fine") for _ in range(20)]
        assert {stage.archived(job_id)["result"] for job_id in ids} == {3}
        if log.stat().st_size == size:
            break
    (seen / "ballast").unlink()
    last = stage.enqueue("fine")
    assert stage.archived(last)["result"] == 3
    wait_until(lambda: "events-dropped" in log.read_text(), 10, log.read_text)
    wait_until(lambda: str(last) in log.read_text(), 10, log.read_text)
    told = [json.loads(line) for line in log.read_text().splitlines() if "events-dropped" in line]
    assert len(told) == 1
    assert told[0]["level"] == "warning"
    assert told[0]["count"] >= 40, "at least two lines for each job"
    assert supervisor.stop() == 0


# ---------------------------------------------------------------------------------------------------------------------
# Places that are not there

READ_ONLY = """
for place in / /tmp /var/tmp /run /dev/shm; do
    if mountpoint -q $place; then mount -o remount,bind,ro $place; fi
done
for place in / /tmp /var/tmp /run /dev/shm; do
    if touch $place/ganger-was-here 2>/dev/null; then exit 1; fi
done
"""
NO_SHARED_MEMORY = """
new=$(mktemp -d)
mount -t tmpfs -o mode=755 none $new
for name in null zero full random urandom; do touch $new/$name; mount --bind /dev/$name $new/$name; done
ln -s /proc/self/fd $new/fd
mount --move $new /dev
rmdir $new
if test -e /dev/shm; then exit 1; fi
"""


@pytest.mark.slow
def test_on_a_read_only_file_system_it_boots_and_runs_jobs(stage: Stage) -> None:
    """D76, https://github.com/benoitc/gunicorn/issues/2859: read-only root, no writable /tmp, HOME unset."""
    stage.handlers(HANDLERS)
    prefix = (*prepared(READ_ONLY, "--mount"), "env", "-u", "HOME", "-u", "TMPDIR")
    works(stage, stage.run("-c", "2", "--keep-environ", prefix=prefix))  # there is no lock file to know it by


@pytest.mark.slow
def test_without_shared_memory_it_boots_runs_and_shuts_down(stage: Stage) -> None:
    """D77, https://github.com/celery/celery/issues/124: there is no /dev/shm."""
    stage.handlers(HANDLERS)
    works(stage, stage.run("-c", "2", prefix=prepared(NO_SHARED_MEMORY, "--mount")))


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [1, 2])
def test_where_proc_hides_the_processes_of_others_limits_and_kills_work(
    database: str, folder: Path, hidden: int
) -> None:
    """D78, https://github.com/giampaolo/psutil/issues/2026: /proc with hidepid=1 and 2, without privileges. Timeouts,
    the kill of a tree and the measuring of memory work."""
    prefix = plain_account(f"mount -t proc -o hidepid={hidden} proc /proc\n")
    assert subprocess.run([*prefix, "cat", "/proc/1/stat"], capture_output=True).returncode, "nothing is hidden"
    with plain_stage(database, folder) as stage:
        supervisor = stage.run("-c", "2", prefix=prefix)
        works(stage, supervisor)
        assert not supervisor.other, supervisor.other


SPEECHLESS = {
    "locale C": (),
    "locale C and strict ASCII": ("PYTHONUTF8=0", "PYTHONCOERCECLOCALE=0", "PYTHONIOENCODING=ascii:strict"),
}


@pytest.mark.parametrize("how", SPEECHLESS)
def test_words_beyond_ascii_pass_through_a_locale_that_has_none(stage: Stage, how: str) -> None:
    """D79, https://github.com/Uninett/nav/issues/2111: ``env -i LANG=C``; a job type and log lines that are not ASCII.
    Nothing crashes, and the text is intact in the database."""
    stage.handlers("""
        handlers = Handlers()
        print("während des Ladens ☃")
        @handlers.job("größe-測る")
        def measure(job):
            print("Öl ☃", flush=True)
            if job.payload == "fehlt": raise ValueError("schön kaputt ☃")
            return job.payload
    """)
    clean = ("env", "-i", "LANG=C", f"PATH={os.environ['PATH']}", f"DATABASE_URL={stage.conninfo}", *SPEECHLESS[how])
    supervisor = stage.launch(
        *clean, sys.executable, "-m", "ganger", "run", "story:handlers", "-c", "1", "--name", "größer", "--until-empty",
    )  # fmt: skip
    ids = [stage.enqueue("größe-測る", payload) for payload in ("Ölstand", "fehlt")]
    rows = [stage.archived(job_id, 40) for job_id in ids]
    assert supervisor.ended() == 0
    assert [row["job_type"] for row in rows] == ["größe-測る"] * 2
    assert rows[0]["result"] == "Ölstand"
    assert rows[1]["error"]["message"] == "schön kaputt ☃"
    assert not [line for line in supervisor.other if "UnicodeEncodeError" in line]
    assert sum("job-finished" in line for line in supervisor.other) == 1
    assert sum("Öl" in line or "\\xd6l" in line for line in supervisor.other) == 2, supervisor.other


# ---------------------------------------------------------------------------------------------------------------------
# Descriptors and processes run out


@pytest.mark.slow
def test_no_descriptor_is_left_behind_by_any_number_of_jobs(stage: Stage) -> None:
    """D74, https://github.com/RolnickLab/ami-data-companion/issues/145: descriptors of parent and fork server stay as
    many as they were. A thousand tiny jobs in reused children and two hundred in fresh ones show a leak per job, per
    child and per failure."""
    stage.handlers("""
        handlers = Handlers()
        @handlers.job("tiny", retry=Retry(1))
        def tiny(job):
            if job.payload == "fail": raise ValueError
            if job.payload == "crash": os._exit(3)
            if job.payload == "dirty": os.environ["DIRTY"] = "1"
            return job.payload
    """)
    supervisor = stage.run("-c", "2", "--recycle-after", "60", "--log-level", "warning")

    def descriptors() -> dict[str, int]:
        counts: dict[str, int] = {}
        for process in (psutil.Process(supervisor.pid), *tree(supervisor.pid)):
            role = " ".join(process.cmdline()[:1]).split(" ")
            if role[:2] != ["ganger:", "child"]:
                counts[" ".join(role[1:3])] = len(os.listdir(f"/proc/{process.pid}/fd"))
        return counts

    def run(count: int, *payloads: str) -> None:
        for number in range(count):
            stage.enqueue("tiny", payloads[number % len(payloads)])
        wait_until(lambda: not stage.rows("SELECT 1 FROM proletarian.job LIMIT 1"), 90, supervisor.story)

    run(20, "fine", "fail", "crash", "dirty")
    before = descriptors()
    run(1000, "fine")
    run(200, "fail", "crash", "dirty", "dirty")
    wait_until(lambda: len(supervisor.processes("child")) == 2, 10, supervisor.story)
    after = descriptors()
    print(before, after)
    assert before.keys() == after.keys()
    assert all(abs(after[name] - before[name]) <= 5 for name in before), (before, after)
    assert supervisor.stop() == 0


@pytest.mark.slow
def test_while_no_process_can_be_forked_nothing_is_lost_and_then_it_goes_on(database: str, folder: Path) -> None:
    """D73, https://github.com/seomoz/qless-py/issues/32: a limit on processes makes every fork below the supervisor
    fail for several seconds. The parent lives, no attempt is counted, and it recovers."""
    prefix = plain_account()
    with plain_stage(database, folder) as stage:
        supervisor = stage.run("-c", "1", "--recycle-after", "0", prefix=prefix)
        below = [*supervisor.processes("template"), *supervisor.processes("warden")]
        for process in below:
            allow_processes(process.pid, 0)
        ids = [stage.enqueue("count") for _ in range(3)]  # the first has the child that is there
        assert stage.archived(ids[0])["status"] == "success"
        failed = supervisor.expect("boot-failed", count=3)
        assert "could not be forked" in failed["error"]
        (warden,) = supervisor.processes("warden")
        warden.kill()  # and no other can be forked either
        failed = supervisor.expect("boot-failed", 20, count=4)
        assert "warden could not be started" in failed["error"], failed
        for job_id in ids[1:]:
            row = stage.job(job_id)
            assert row is not None
            assert (row["attempts"], row["losses"]) == (0, 0)
        assert supervisor.process.poll() is None
        for process in supervisor.processes("template"):
            allow_processes(process.pid, None)
        for job_id in ids[1:]:
            row = stage.archived(job_id, 40)
            assert (row["status"], row["attempts"], row["losses"]) == ("success", 1, 0)
        assert Counter(stage.lines("ran")) == Counter(map(str, ids))
        assert supervisor.stop() == 0


# ---------------------------------------------------------------------------------------------------------------------
# Process 1


@pytest.mark.slow
def test_as_process_1_sigterm_is_heard(stage: Stage) -> None:
    """D55, https://github.com/OHF-Voice/wyoming-piper/pull/47: as PID 1 (where the kernel keeps a signal without a
    handler away) SIGTERM stops gracefully, and with nothing to do within 2 s."""
    stage.handlers(HANDLERS)
    prefix = prepared("", "--pid", "--fork", "--mount-proc", "--kill-child")
    for job_type, limit in ((None, 2.0), ("compute", 2.0 + 2.0)):
        supervisor = stage.run("-c", "1", prefix=prefix)
        (first,) = psutil.Process(supervisor.pid).children()
        job_id = stage.enqueue(job_type) if job_type else None
        if job_id:
            supervisor.expect("handling-job")
        began = time.monotonic()
        first.terminate()
        assert supervisor.ended(limit=3 * limit) == 0
        print(f"{job_type}: {time.monotonic() - began:.2f} s")
        supervisor.order("shutting-down", "completed-shutdown")
        if job_id:
            assert stage.archived(job_id)["status"] == "success"
