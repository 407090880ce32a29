"""Clocks that disagree: the database's decides what is due, and no wall clock decides who is alive."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest

from ganger import database as db
from ganger import enqueue
from tests.processes import wait_until
from tests.stories.stage import ROOT, Stage

pytestmark = pytest.mark.slow

# Found by Python before everything else: from here on this process and all below it have another time of day.
OTHER_TIME = """
import datetime, os, time
SHIFT = float(os.environ["SHIFTED_BY"])
real_time, real_time_ns, real_gettime, RealDatetime = time.time, time.time_ns, time.clock_gettime, datetime.datetime
time.time = lambda: real_time() + SHIFT
time.time_ns = lambda: real_time_ns() + int(SHIFT * 1e9)
time.clock_gettime = lambda which: real_gettime(which) + (SHIFT if which == time.CLOCK_REALTIME else 0)
class Shifted(type(RealDatetime)):
    def __instancecheck__(cls, value): return isinstance(value, RealDatetime)
class datetime_(RealDatetime, metaclass=Shifted):
    @classmethod
    def now(cls, tz=None): return RealDatetime.now(tz) + datetime.timedelta(seconds=SHIFT)
    @classmethod
    def utcnow(cls): return RealDatetime.utcnow() + datetime.timedelta(seconds=SHIFT)
datetime.datetime = datetime_
"""

NOTE = """
    handlers = Handlers()
    @handlers.job("note")
    def note(job):
        with open(FOLDER / "noted", "a") as file: file.write(f"{job.id}\\n")
        time.sleep(job.payload or 0)
        return time.time()
    @handlers.job("again", retry=Retry(1, delays=[1]))
    def again(job):
        with open(FOLDER / "noted", "a") as file: file.write(f"{job.id}\\n")
        if job.attempt == 1: raise ValueError
"""


def elsewhen(stage: Stage, seconds: float) -> dict[str, str]:
    """The environment of a supervisor whose wall clock is so much ahead, in a zone with daylight saving."""
    folder = stage.folder / "clock"
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(OTHER_TIME)
    return {"PYTHONPATH": f"{folder}:{ROOT}", "SHIFTED_BY": str(seconds), "TZ": "America/New_York"}


@pytest.mark.slow
def test_hosts_whose_clocks_are_ten_minutes_off_claim_nothing_early_and_nothing_twice(stage: Stage) -> None:
    """D44, https://github.com/Koed00/django-q/issues/236: one host is ten minutes ahead of the database and another ten
    behind, with leases that are short beside that."""
    stage.handlers(NOTE)
    ahead = stage.run("-c", "1", "--lease", "3", environ=elsewhen(stage, 600))
    behind = stage.run("-c", "1", "--lease", "3", environ=elsewhen(stage, -600))
    now = stage.rows("SELECT now()")[0][0]
    due = {stage.enqueue("note", process_in=seconds): seconds for seconds in (0, 0.7, 1.5, 2)}
    again = stage.enqueue("again")
    lasting = [stage.enqueue("note", 7) for _ in range(2)]  # for more than two leases
    clocks = []
    for job_id, seconds in due.items():
        row = stage.archived(job_id)
        assert (row["started_at"] - now).total_seconds() >= seconds
        clocks.append(row["result"] - time.time())
    row = stage.archived(again)
    assert row["attempts"] == 2
    assert (row["started_at"] - datetime.fromisoformat(row["history"][0]["ended_at"])).total_seconds() >= 1
    for job_id in lasting:
        row = stage.archived(job_id)
        assert (row["status"], row["attempts"], row["losses"]) == ("success", 1, 0)
        clocks.append(row["result"] - time.time())
    assert {round(clock, -2) for clock in clocks} == {600, -600}, "both had their own time, and both had work"
    noted = stage.lines("noted")
    assert [noted.count(str(job_id)) for job_id in (*due, *lasting, again)] == [1] * 6 + [2]
    for supervisor in (ahead, behind):
        assert not supervisor.named("job-lost")
        assert not supervisor.named("lease-lost")
        assert supervisor.stop() == 0


EST, EDT = timezone(timedelta(hours=-5)), timezone(timedelta(hours=-4))
CHANGES = [  # a moment in New York, half an hour later there, and the same in UTC
    (datetime(2031, 3, 9, 1, 45, tzinfo=EST), datetime(2031, 3, 9, 3, 15, tzinfo=EDT), (7, 15)),
    (datetime(2031, 11, 2, 1, 45, tzinfo=EDT), datetime(2031, 11, 2, 1, 15, tzinfo=EST), (6, 15)),
]


@pytest.mark.parametrize(("before", "after", "utc"), CHANGES, ids=["in spring", "in autumn"])
def test_a_delay_across_a_change_of_daylight_saving_is_as_long_as_any(
    stage: Stage, before: datetime, after: datetime, utc: tuple[int, int]
) -> None:
    """D45, https://github.com/agronholm/apscheduler/issues/87: half an hour over the change of a zone is half an hour,
    whatever zone the application's session, its database and the supervisor are in."""
    ((name,),) = stage.rows("SELECT current_database()")
    stage.conn.execute(f"ALTER DATABASE \"{name}\" SET TimeZone = 'America/New_York'".encode())
    stage.conn.execute("SET TimeZone = 'America/New_York'")
    assert after - before == timedelta(minutes=30)

    def due(job_id: UUID) -> Any:
        query = "SELECT process_at, extract(epoch FROM process_at - enqueued_at)::float8 FROM proletarian.job"
        return stage.rows(f"{query} WHERE job_id = %s", job_id)[0]

    at, length = due(enqueue(stage.conn, "note", process_at=before.astimezone(UTC) + timedelta(minutes=30)))
    assert at.astimezone(UTC) == after.astimezone(UTC)  # two times of day of different zones are never equal in autumn
    assert (at.astimezone(UTC).hour, at.astimezone(UTC).minute) == utc
    for days in (1, 200, 365, 2000):  # over every change there is
        at, length = due(enqueue(stage.conn, "note", process_in=timedelta(days=days)))
        assert length == days * 86400.0
    with db.connect(stage.conninfo) as conn:  # as a supervisor sees it
        row = conn.execute("SELECT to_json(max(process_at)) #>> '{}' FROM proletarian.job").fetchone()
        assert row is not None
        assert datetime.fromisoformat(row[0]) == at.astimezone(UTC)


@pytest.mark.slow
def test_a_job_that_lasts_longer_than_the_lease_runs_once(stage: Stage) -> None:
    """D69, https://github.com/janbjorge/pgqueuer/issues/430: the lease is renewed at least three times in its time, and
    a second supervisor beside it never takes the job."""
    stage.handlers(NOTE)
    supervisor = stage.run("-c", "1", "--lease", "6")
    job_id = stage.enqueue("note", 20)
    stage.wait_lines("noted")
    other = stage.run("-c", "1", "--lease", "6")
    beats: list[datetime] = []
    query = "SELECT beat_at FROM proletarian.supervisor ORDER BY started_at LIMIT 1"

    def ended() -> bool:
        for (beat,) in stage.rows(query):
            if beat not in beats[-1:]:
                beats.append(beat)
        return bool(stage.rows("SELECT FROM proletarian.archived_job"))

    wait_until(ended, 40, supervisor.story)
    gaps = [(later - earlier).total_seconds() for earlier, later in pairwise(beats)]
    assert len(gaps) >= 15
    assert max(gaps) <= 6 / 3, gaps
    row = stage.archived(job_id)
    assert (row["status"], row["attempts"], stage.lines("noted")) == ("success", 1, [str(job_id)])
    assert not other.named("handling-job")
    assert supervisor.stop() == other.stop() == 0
