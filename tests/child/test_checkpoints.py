"""Checkpoints as the child gives them: one at a time, in order, and nothing that cannot be stored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ganger_child.wire import INLINE, Message
from tests.child.driver import Driver
from tests.processes import wait_until


@pytest.fixture
def child() -> Iterator[Driver]:
    with Driver("tests.child.saving:handlers", max_checkpoint=1000) as driver:
        yield driver


def begin(child: Driver, job_type: str, payload: Any = None) -> int:
    nonce = child.send(job_type, payload)
    child.next("started")
    return nonce


def answer(child: Driver, given: Message, **what: Any) -> None:
    """Say that it was received, and perhaps what became of it."""
    assert child.wire.send("checkpoint", nonce=given["nonce"], number=given["number"], **what)


def returned(child: Driver) -> Any:
    return json.loads(child.next("returned").body)


def test_a_checkpoint_comes_with_the_job(child: Driver) -> None:
    payload, kept = b'{"n": 1}', '{"step": [1, "é"]}'.encode()
    nonce = child.send("found", body=payload + kept, checkpoint=len(kept))
    assert child.finish()["nonce"] == nonce
    child.send("found", body=payload)
    assert json.loads(child.finish().body) == [{"n": 1}, None]
    large = json.dumps("x" * INLINE).encode()
    child.send("found", body=payload + large, checkpoint=len(large))
    assert json.loads(child.finish().body) == [{"n": 1}, json.loads(large)]


def test_who_waits_goes_on_when_it_is_stored(child: Driver) -> None:
    nonce = begin(child, "save", [{"step": 7}, True])
    given = child.next("checkpoint")
    assert (given["nonce"], given["number"], given["awaited"]) == (nonce, 1, True)
    assert json.loads(given.body) == {"step": 7}
    answer(child, given)
    answer(child, given, stored=False, error=None)
    assert child.wire.send("checkpoint", nonce=nonce + 1, number=9, stored=True, error=None)  # of no run of ours
    assert child.silent()
    answer(child, given, stored=True, error=None)
    assert returned(child) == "done"


def test_a_refusal_is_raised_where_it_is_waited_for(child: Driver) -> None:
    begin(child, "refused")
    answer(child, child.next("checkpoint"), stored=False, error="on purpose")
    assert returned(child) is True
    begin(child, "save", [1, False])
    answer(child, child.next("checkpoint"), stored=False, error="on purpose")
    assert returned(child) == "done"


def test_the_next_one_is_sent_only_when_the_parent_has_the_last_one(child: Driver) -> None:
    """A loop that saves without end is slowed to what the parent takes; a job that was sent ahead has its turn."""
    begin(child, "save each", [1, 2])
    first = child.next("checkpoint")
    child.printed("saved 1")
    child.send("found", "ahead")
    assert child.silent()
    answer(child, first)
    second = child.next("checkpoint")
    assert (second["number"], second.body) == (2, b"2")
    child.printed("saved 2")
    report = child.next("returned")
    assert json.loads(report.body) == "done"
    if not report.get("begun"):
        child.next("started")
    assert returned(child) == ["ahead", None]


def test_an_interrupt_ends_the_wait_and_the_last_word_is_still_taken(child: Driver) -> None:
    begin(child, "save when interrupted")
    first = child.next("checkpoint")
    answer(child, first)
    child.order("shutdown")
    last = child.next("checkpoint")
    assert (last["number"], last.body) == (2, b'"last"')
    answer(child, last)
    answer(child, last, stored=True, error=None)
    report = child.next("raised")
    assert report["clean_interrupt"]


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("a set", "ValueError: the data cannot be stored: data is a set, which JSON cannot hold"),
        ("nan", "ValueError: the data cannot be stored: data['x'][0] is NaN: NaN is not JSON"),
        ("nul", "ValueError: the data cannot be stored: data holds a NUL character, which PostgreSQL cannot store"),
        ("large", "ValueError: the data is too large: it has over 2002 bytes of JSON, 1000 are allowed"),
        ("deep", "ValueError: the data cannot be stored: data"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_its_place(child: Driver, what: str, told: str) -> None:
    begin(child, "odd", what)
    assert returned(child).startswith(told)


def test_it_is_for_the_job_itself(child: Driver, tmp_path: Path) -> None:
    """A process that the job starts, a callback and a thread that outlives its handler are told so; any thread of the
    handler may save."""
    begin(child, "save in a copy")
    assert returned(child) == 9
    begin(child, "save in a thread")
    for _ in range(3):
        answer(child, child.next("checkpoint"), stored=True, error=None)
    assert returned(child) == ["done"] * 3
    begin(child, "fail")
    child.next("raised")
    assert child.callbacks("failed_attempt") == {}
    child.printed("RuntimeError: save_checkpoint is for a handler, and this one has ended.")
    begin(child, "leave a thread that saves", {"sent": str(tmp_path / "sent")})
    given = child.next("checkpoint")
    (tmp_path / "sent").touch()
    assert returned(child) == "left"
    before = child.output().count("has ended")
    answer(child, given)
    begin(child, "found", "after")
    assert returned(child) == ["after", None]
    wait_until(lambda: child.output().count("has ended") == before + 1, 10, child.output)
