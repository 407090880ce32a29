"""The commands of operators, as typed: jobs, pause, resume, prune. What they do to rows is tested elsewhere."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest

from ganger.client import enqueue
from ganger.commands.jobs import how
from tests.conftest import Ganger
from tests.terminal import Terminal


@pytest.fixture
def conn(database: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("DATABASE_URL", database)
    with psycopg.connect(database, autocommit=True) as made:
        yield made


@pytest.fixture
def ended(conn: psycopg.Connection[Any]) -> Callable[..., UUID]:
    """Write a row into the archive."""

    def write(**columns: Any) -> UUID:
        job_id = enqueue(conn, columns.pop("job_type", "fit"))
        conn.execute("DELETE FROM proletarian.job WHERE job_id = %s", [job_id])
        values = {
            "job_id": job_id, "queue": "default", "job_type": "fit", "payload": "{}", "attempts": 1, "host": "box",
            "status": "failure", "reason": "exception", "run_id": job_id, "pid": 77, "wall_s": 73.2, "cpu_s": 70.1,
            "max_rss": 3 << 30, "history": "[]", **columns,
        }  # fmt: skip
        names, places = ", ".join(values), ", ".join(["%s"] * len(values))
        conn.execute(
            f"INSERT INTO proletarian.archived_job ({names}, enqueued_at, process_at, started_at) "
            f"VALUES ({places}, now(), now(), now())".encode(),
            list(values.values()),
        )
        return job_id

    return write


def test_a_list_is_a_table_with_its_pages_or_json(
    ganger: Ganger, conn: psycopg.Connection[Any], ended: Callable[..., UUID]
) -> None:
    assert ganger("jobs", "list")[:2] == (0, "no such job\n")
    first = ended()
    second = enqueue(conn, "render-frame", queue="films", process_in=60)
    code, out, err = ganger("jobs", "list")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) == 3
    assert re.fullmatch(rf"{second} +render-frame +films +scheduled +0 +0s", lines[1])
    assert re.fullmatch(rf"{first} +fit +default +failure +exception +1 +box +0s +73s +3.0G", lines[2])
    out = ganger("jobs", "list", "--limit", "1")[1]
    assert str(first) not in out
    (below,) = re.findall(r"more: --before (\S+)", out)
    assert str(first) in ganger("jobs", "list", "--limit", "1", "--before", below)[1]
    told = json.loads(ganger("jobs", "list", "--limit", "1", "--json", "--state", "failure", "--since", "1h")[1])
    assert told["before"] is None
    assert [(job["job_id"], job["reason"], job["host"]) for job in told["jobs"]] == [(str(first), "exception", "box")]


def test_show_tells_the_whole_life(ganger: Ganger, ended: Callable[..., UUID]) -> None:
    error = {"type": "E", "message": "no way", "traceback": "Traceback …\n  line\nE: no way"}
    past = [
        {"attempt": 1, "reason": "timeout", "ended_by": "limit", "rung": "kill", "term_signal": 9, "host": "other",
         "pid": 5, "started_at": "2026-11-30T09:00:00+00:00", "ended_at": "2026-11-30T09:10:00.5+00:00", "wall_s": 600,
         "stack": "File x, line 1", "output": "tile 7\ntile 8"},
        {"attempt": 1, "reason": "killed", "status": "cancelled", "ended_by": "operator", "rung": "interrupt",
         "retried_at": "2026-11-30T10:00:00+01:00", "retried_by": "ann"},
    ]  # fmt: skip
    job_id = ended(
        history=json.dumps(past), error=json.dumps(error), timeout_s=600, memory_bytes=2 << 30, unique_key="k",
        enqueued_by="app", crashes=1, checkpoint='{"tile": 8}', payload=json.dumps({"name": "é" * 3000}),
    )  # fmt: skip
    code, out, err = ganger("jobs", "show", job_id.hex[-8:])
    assert (code, err) == (0, "")
    for line in (
        f"job {job_id}",
        r"  state       failure \(exception\)",
        r"  enqueued    \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ by app",
        "  attempts    1 crashes: 1",
        "  limits      timeout 10m, memory 2.0G",
        "  unique key  k",
        r"  payload     .*… \(3012 characters; --json has all\)",
        '  checkpoint  {"tile": 8}',
        r"  run 1, attempt 1: past its time limit \(ended by its limit: SIGKILL to its whole tree\)",
        "    where     host other, pid 5",
        "    when      2026-11-30 09:00:00Z to 2026-11-30 09:10:00Z",
        "    cost      wall 10m",
        "      File x, line 1",
        "      tile 8",
        r"  run 2, attempt 1: killed \(ended by an operator: the interrupt\)",
        "  given another life at 2026-11-30 09:00:00Z by ann",
        "  run 3, attempt 1: an exception",
        "    where     host box, pid 77",
        "    cost      wall 73s, CPU 70s, peak 3.0G",
        "    error     E: no way",
        "      E: no way",
    ):
        assert re.search(f"^{line}$", out, re.M), f"{line!r} is not in:\n{out}"
    told = json.loads(ganger("jobs", "show", str(job_id), "--json")[1])
    assert told["job_id"] == str(job_id)
    assert [run.get("reason") for run in told["runs"]] == ["timeout", "killed", "exception"]
    assert len(json.loads(ganger("jobs", "show", str(job_id), str(job_id), "--json")[1])) == 2


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({"status": "success"}, "success"),
        ({"reason": "crash", "term_signal": 9}, "its process died: SIGKILL (signal 9) from outside: the kernel"),
        ({"reason": "crash", "term_signal": 11}, "its process died: SIGSEGV (signal 11) from the kernel or somebody"),
        ({"reason": "crash", "term_signal": 99}, "its process died: signal 99"),
        ({"reason": "crash", "exit_code": 3}, "its process died: exit code 3"),
        (
            {"reason": "shutdown", "ended_by": "shutdown"},
            "interrupted by a shutdown, uncounted (ended by the shutdown)",
        ),
        ({"reason": "lost"}, "lost with its supervisor or host"),
        ({"reason": "something-new", "ended_by": "cosmic-rays"}, "something-new (ended by cosmic-rays)"),
        ({}, "ended"),
    ],
)
def test_how_an_attempt_ended_is_told_in_words(run: dict[str, Any], words: str) -> None:
    assert how(run).startswith(words)


def test_orders_for_ids_are_carried_out_and_answered(
    ganger: Ganger, conn: psycopg.Connection[Any], ended: Callable[..., UUID]
) -> None:
    first, second, failed = enqueue(conn, "t"), enqueue(conn, "t"), ended()
    code, out, _ = ganger("jobs", "cancel", str(first))
    assert (code, out) == (0, f"{first} cancelled: it did not run, and is archived as cancelled\n")
    code, out, _ = ganger("jobs", "kill", first.hex[-8:], second.hex[-8:])
    assert (code, out.splitlines()[0]) == (1, f"{first} finished: it had ended already")
    code, out, _ = ganger("jobs", "retry", str(failed), "--json")
    assert (code, json.loads(out)) == (0, [{"job_id": str(failed), "answer": "retried"}])
    code, out, err = ganger("jobs", "cancel", "ffffffff")
    assert (code, out, err) == (1, "", "ganger: There is no job whose id ends with ffffffff.\n")
    rows = conn.execute("SELECT job_id, reason FROM proletarian.archived_job ORDER BY job_id").fetchall()
    assert rows == sorted([(first, "cancelled"), (second, "killed")])


def test_orders_for_many_ask_first(ganger: Ganger, conn: psycopg.Connection[Any], ended: Callable[..., UUID]) -> None:
    for queue in ("a", "a", "b"):
        enqueue(conn, "t", queue=queue)
    code, out, err = ganger("jobs", "cancel", "--queue", "a")
    assert (code, out, err) == (2, "", "ganger: cancel 2 jobs? Say --yes if that is meant.\n")
    assert ganger("jobs", "cancel", "--queue", "a", "--yes")[:2] == (0, "2 jobs cancelled\n")
    assert ganger("jobs", "cancel", "--queue", "a")[:2] == (0, "no such job\n")
    for _ in range(3):
        ended(reason="timeout")
    ended(status="cancelled", reason="cancelled")
    ended(status="success", reason=None)
    assert ganger("jobs", "retry", "--type", "fit", "--yes")[:2] == (0, "3 jobs retried\n")  # failures, unless told
    assert ganger("jobs", "retry", "--all", "--state", "success,cancelled", "--yes")[1] == "4 jobs retried\n"
    assert conn.execute("SELECT count(*) FROM proletarian.job").fetchone() == (8,)


def test_a_person_is_asked_on_the_terminal(database: str, conn: psycopg.Connection[Any]) -> None:
    job_id = enqueue(conn, "t")
    for answer, code in (("n", 1), ("y", 0)):
        with Terminal("-m", "ganger", "jobs", "cancel", "--all", environ={"DATABASE_URL": database}) as terminal:
            terminal.expect(r"cancel 1 job\? \[y/N\] ")
            assert conn.execute("SELECT job_id FROM proletarian.job").fetchall() == [(job_id,)]
            terminal.press(f"{answer}\n")
            assert terminal.leave() == code, terminal.shown
    assert conn.execute("SELECT job_id FROM proletarian.job").fetchall() == []


def test_queues_stop_and_go(ganger: Ganger, conn: psycopg.Connection[Any]) -> None:
    assert ganger("pause", "films")[:2] == (0, "Paused: films.\n")
    assert ganger("pause")[:2] == (0, "Paused: all queues, films.\n")
    assert re.search(r"^all queues \(paused\)", ganger("status")[1], re.M)
    assert ganger("resume", "films")[:2] == (0, "Paused: all queues.\n")
    assert ganger("resume", "films")[0] == 1
    told = json.loads(ganger("pause", "films", "--yes", "--json")[1])
    assert told == {"all_paused": True, "paused": ["films"]}
    assert ganger("resume")[:2] == (0, "Nothing is paused.\n")


def test_the_archive_is_pruned_after_asking(ganger: Ganger, ended: Callable[..., UUID]) -> None:
    for _ in range(2):
        ended()
    assert ganger("prune", "--older-than", "1h")[:2] == (0, "0 jobs are deleted from the archive.\n")
    assert ganger("prune", "--older-than", "0") == (
        2, "", "ganger: Delete 2 jobs from the archive? Say --yes if that is meant.\n",
    )  # fmt: skip
    assert json.loads(ganger("prune", "--older-than", "0", "--yes", "--json")[1]) == {"deleted": 2}


def test_orders_that_a_role_may_not_give_are_refused_in_a_sentence(
    ganger: Ganger, database: str, conn: psycopg.Connection[Any]
) -> None:
    """A viewer sees everything and changes nothing."""
    ganger("install", "--roles")
    enqueue(conn, "t")
    name = f"login-{os.getpid()}-{os.urandom(4).hex()}"
    conn.execute(f'CREATE ROLE "{name}" LOGIN IN ROLE ganger_viewer'.encode())
    try:
        at = ("--database-url", psycopg.conninfo.make_conninfo(database, user=name))
        assert ganger("jobs", "list", *at)[0] == 0
        for command in (["jobs", "cancel", "--all", "--yes"], ["pause"], ["prune", "--older-than", "0", "--yes"]):
            code, out, err = ganger(*command, *at)
            assert (code, out, err.count("\n")) == (78, "", 1)
            assert "this role may not do this" in err
    finally:
        conn.execute(f'DROP ROLE "{name}"'.encode())
