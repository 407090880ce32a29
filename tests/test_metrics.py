"""The figures: what is counted when, that they stay bounded, and that the page is what Prometheus reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read

from ganger import metrics
from ganger.core import messages as m
from ganger.core.messages import Now
from ganger.health import Health
from ganger.metrics import FAMILIES, MOST_TYPES, Backlog, Figures
from tests.core.test_machine import Desk


class Border:
    """A loop and a database with the figures between them."""

    def __init__(self) -> None:
        self.figures = Figures()
        self.passed: list[object] = []
        self.do: Callable[..., None] = self.figures.watch_commands(lambda *all: self.passed.extend(all))
        self.post = self.figures.watch_answers(self.passed.append)

    def claim(self, job_type: str = "fit", waited: float = 3.0) -> m.Job:
        claim = m.Claim(uuid4(), 1, (m.Lane(("default",), 1),))
        due = (datetime.now(UTC) - timedelta(seconds=waited)).isoformat()
        job = m.Job(uuid4(), uuid4(), claim.claim_id, "default", job_type, b"{}", 1, process_at=due)
        self.do(claim)
        self.post(m.Claimed(claim.claim_id, (job,), (0,), (True,), None))
        return job

    def store(self, outcome: m.Outcome, how: str = "stored") -> None:
        self.do(outcome)
        self.post(m.Stored(outcome.run_id, how))

    def value(self, family: str, *labels: str) -> Any:
        return self.figures.samples().get(family, {}).get(labels)


def archive(job: m.Job, status: str, reason: str | None = None, **facts: Any) -> m.Archive:
    return m.Archive(job.job_id, job.run_id, status, reason, facts)


def test_every_ending_is_counted_once_it_is_stored() -> None:
    """By queue, type, outcome and reason; what ended it by reason and rung; what it took into the histograms."""
    border = Border()
    border.store(archive(border.claim(), "success", wall_s=2.0, cpu_s=1.5, max_rss=20 << 20, rung="interrupt"))
    border.store(archive(border.claim(), "failure", "timeout", wall_s=2.0, rung="kill"))
    job = border.claim()
    border.store(m.Retry(job.job_id, job.run_id, 1.0, 0, {"reason": "memory", "rung": "terminate", "max_rss": 1 << 30}))
    job = border.claim("other type")
    border.store(m.Release(job.job_id, job.run_id, "never-started"))
    job = border.claim()
    border.store(m.Retry(job.job_id, job.run_id, 1.0, 0, {"reason": "exception"}), "cancelled")
    border.store(archive(border.claim(), "success"), "refused")

    total = {labels[1:]: count for labels, count in border.figures.samples()["ganger_jobs_total"].items()}
    assert total == {
        ("fit", "success", ""): 1,
        ("fit", "failure", "timeout"): 1,
        ("fit", "retried", "memory"): 1,
        ("other type", "released", "never-started"): 1,
        ("fit", "cancelled", "cancelled"): 1,
    }
    kills = {labels: count for labels, count in border.figures.samples()["ganger_kills_total"].items() if count}
    assert kills == {("timeout", "kill"): 1, ("memory", "terminate"): 1}
    buckets, total_s = border.value("ganger_job_wall_seconds", "fit")
    assert dict(buckets)["1.0"] == 0
    assert dict(buckets)["5.0"] == dict(buckets)["+Inf"] == 2
    assert total_s == 4.0
    assert dict(border.value("ganger_job_memory_bytes", "fit")[0])[str(float(64 << 20))] == 1
    waited = dict(border.value("ganger_job_wait_seconds", "default")[0])
    assert (waited["1.0"], waited["15.0"]) == (0, 6)
    assert dict(border.value("ganger_claim_seconds")[0])["+Inf"] == 6
    assert len(border.passed) == 6 * 4  # nothing is kept from those whom it concerns


def test_an_answer_that_never_comes_is_not_remembered_for_ever() -> None:
    """A lost claim, runs of a registration that is lost, an outcome that nobody knows: nothing of them stays."""
    border = Border()
    claim = m.Claim(uuid4(), 1, ())
    border.do(claim)
    border.post(m.ClaimLost(claim.claim_id))
    border.do(archive(border.claim(), "success"))
    border.claim()
    border.post(m.Registered(2, 0.0))
    border.post(m.Stored(UUID(int=1), "stored"))
    figures = border.figures
    assert [*figures._asked, *figures._runs, *figures._owed] == []
    assert "ganger_jobs_total" not in figures.samples()


def test_job_types_are_bounded_in_number() -> None:
    """Whoever makes a type of each job costs one more sample, not one each."""
    border = Border()
    for number in range(MOST_TYPES + 50):
        border.store(archive(border.claim(f"type-{number}"), "success", wall_s=0.1))
    counted = border.figures.samples()["ganger_jobs_total"]
    assert len(counted) == MOST_TYPES + 1
    assert counted["default", "other", "success", ""] == 50
    assert len(border.figures.samples()["ganger_job_wall_seconds"]) == MOST_TYPES + 1


def test_a_due_time_that_is_none_is_left_out() -> None:
    border = Border()
    job = border.claim()
    for due in ("infinity", "", "99999-01-01T00:00:00+00:00"):
        odd = m.Job(uuid4(), uuid4(), uuid4(), "q", "t", b"", 1, process_at=due)
        border.post(m.Claimed(uuid4(), (odd,), (0,), (), None))
    assert border.value("ganger_job_wait_seconds", job.queue) is not None
    assert border.value("ganger_job_wait_seconds", "q") is None


def test_events_are_counted_but_those_for_debugging() -> None:
    figures = Figures()
    for name in ("outcome-refused", "outcome-refused", "boot-failed", "polling-for-jobs", "no-such-event"):
        figures.said(name)
    counted = {labels: count for labels, count in figures.samples()["ganger_events_total"].items() if count}
    assert counted == {("outcome-refused",): 2, ("boot-failed",): 1}
    assert ("child-unkillable",) in figures.samples()["ganger_events_total"]  # an alarm sees the first one, too
    assert figures.samples()["ganger_fenced_outcomes_total"] == {(): 2}


def scrape(border: Border, health: Health, backlog: Backlog | None = None, accept: str = "") -> tuple[str, str]:
    content_type, text = metrics.page(
        lambda: metrics.families(border.figures, health, backlog, 'web"1\n', Now(1000.0, 1000.0)), accept
    )
    return content_type, text.decode()


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
def test_the_page_is_read_back_as_it_was_meant(accept: str) -> None:
    """Both formats, with labels that need escaping; a family without a sample is declared and absent."""
    border, health, desk = Border(), Health(), Desk(slots=2)
    border.store(archive(border.claim('ty\\pe"\n'), "success", wall_s=2.0))
    health.machine = desk.idle().machine
    content_type, text = scrape(border, health, accept=accept)
    assert ("openmetrics" in content_type) == bool(accept)
    families = {family.name: family for family in (read_openmetrics if accept else read)(text)}
    assert {name.removesuffix("_total") for name in FAMILIES} <= set(families)

    def samples(name: str) -> list[tuple[Mapping[str, str], float]]:
        return [(sample.labels, sample.value) for sample in families[name].samples]

    assert samples("ganger_jobs")[0][0]["job_type"] == 'ty\\pe"\n'
    assert ({"lane": "default", "state": "idle"}, 1.0) in samples("ganger_slots")
    assert sum(value for _, value in samples("ganger_slots")) == 2
    assert samples("ganger_ready") == [({}, 1.0)]
    assert samples("ganger_lease_slack_seconds") == [({}, 90.0)]
    assert samples("ganger_supervisor_info")[0][0]["name"] == 'web"1\n'
    assert samples("ganger_queue_jobs") == []


def test_before_there_is_a_loop_there_is_a_page() -> None:
    _, text = scrape(Border(), Health())
    assert "ganger_ready 0.0" in text
    assert "\nganger_slots{" not in text
    assert "\nganger_lease_slack_seconds " not in text


def test_the_database_is_asked_once_in_a_while_and_then_tells_of_queues(database: str) -> None:
    """Queues of ours that are empty count as zero; a database that is gone leaves the figures out, at once."""
    health = Health()
    health.machine = Desk().machine
    backlog = Backlog(database, "proletarian", "web1:812")
    try:
        _, text = scrape(Border(), health, backlog)
        assert 'ganger_queue_jobs{queue="default",state="ready"} 0.0' in text
        assert 'ganger_dead_tuples{table="job"}' in text
        assert "\nganger_horizon_transactions " in text
        assert backlog.ask() is backlog.ask()
    finally:
        backlog.close()
    nowhere = Backlog("host=127.0.0.1 port=1 dbname=x", "proletarian", "web1:812")
    _, text = scrape(Border(), health, nowhere)
    nowhere.close()
    assert "\nganger_queue_jobs{" not in text
    assert "\nganger_slots{" in text
