"""A gang of real processes, driven as the loop drives it, and no database: what the tests of the processes share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from selectors import DefaultSelector
from typing import Any, TypeVar
from uuid import UUID, uuid4

import pytest

from ganger import incarnation
from ganger.core import messages as m
from ganger.gang import Gang, GangSettings
from ganger.output import Output
from ganger_child.options import Options
from tests.processes import nothing_left

E = TypeVar("E")
NO_LIMITS = m.Limits(timeout=None, grace=5.0, memory=None, shutdown="wait")
SLOT = "any/1"


class Driver:
    """The part of the loop and the core that a test plays itself: one slot, one child after another."""

    def __init__(self, gang: Gang, selector: DefaultSelector, events: list[m.GangEvent], lines: list[Output]) -> None:
        self.gang = gang
        self.selector = selector
        self.events = events  # not yet expected
        self.lines = lines
        self.child = 0
        self.nonce = 0
        self.visits = 0  # calls that the selector led to

    def do(self, command: m.GangCommand) -> None:
        self.gang.do(command)

    def turn(self, timeout: float = 0.05) -> None:
        """One round of the loop."""
        for key, _ in self.selector.select(timeout):
            self.visits += 1
            key.data()

    def turn_until(self, condition: Callable[[], Any], limit: float, what: str) -> None:
        deadline = time.monotonic() + limit
        while not condition():
            assert time.monotonic() < deadline, f"not within {limit} s: {what}; events: {self.events}"
            self.turn()

    def expect(self, kind: type[E], limit: float = 15.0, **fields: Any) -> E:
        """Wait for an event of this kind with these fields, and take it out of the list with all before it."""

        def found() -> int | None:
            for number, event in enumerate(self.events):
                if isinstance(event, kind) and all(getattr(event, name) == value for name, value in fields.items()):
                    return number
            return None

        self.turn_until(lambda: found() is not None, limit, f"{kind.__name__} {fields}")
        number = found()
        assert number is not None
        event = self.events[number]
        del self.events[: number + 1]
        return event  # type: ignore[return-value]

    def saw(self, kind: type[m.GangEvent]) -> bool:
        return any(isinstance(event, kind) for event in self.events)

    def start_template(self, generation: int = 1) -> m.TemplateReady:
        self.do(m.StartTemplate(generation))
        return self.expect(m.TemplateReady, 30, generation=generation)

    def start_warden(self, slot: str = SLOT, generation: int = 1) -> int:
        self.do(m.StartWarden(slot, generation))
        return self.expect(m.WardenStarted, slot=slot).pid

    def start_child(self, slot: str = SLOT) -> int:
        """Start the next child; returns its pid once it is ready."""
        self.child += 1
        self.do(m.StartChild(slot, self.child))
        pid = self.expect(m.ChildStarted, slot=slot, child=self.child).pid
        self.expect(m.ChildReady, slot=slot, child=self.child)
        return pid

    def start(self) -> int:
        """Template, warden and child; returns the child's pid."""
        self.start_template()
        self.start_warden()
        return self.start_child()

    def send(self, job_type: str, payload: str = "null", limits: m.Limits = NO_LIMITS, **fields: Any) -> m.Job:
        """Send the next job to the child, without waiting for it."""
        self.nonce += 1
        job = replace(job_of(job_type, payload), **fields)
        self.do(m.SendJob(SLOT, self.child, self.nonce, job, limits))
        return job

    def begin(self, job_type: str, payload: str = "null", limits: m.Limits = NO_LIMITS) -> m.Job:
        """Send the next job and wait until the child says that it has started."""
        job = self.send(job_type, payload, limits)
        self.expect(m.JobStarted, nonce=self.nonce)
        return job

    def watch(self, job: m.Job, limits: m.Limits = NO_LIMITS) -> None:
        self.do(m.Watch(SLOT, self.child, self.nonce, job, limits, time.monotonic()))

    def kill(self) -> m.ChildExited:
        self.do(m.Kill(SLOT, self.child, self.nonce))
        self.expect(m.KillAcknowledged, child=self.child)
        return self.expect(m.ChildExited, child=self.child)

    def printed(self, text: str) -> None:
        """Wait until some child has printed this line."""
        self.turn_until(lambda: any(line.text == text for line in self.lines), 15, f"the line {text!r}")


def job_of(job_type: str, payload: str) -> m.Job:
    return m.Job(uuid4(), uuid4(), uuid4(), "default", job_type, payload.encode(), attempts=1)


DriverFactory = Callable[..., Driver]


@pytest.fixture
def cookie() -> UUID:
    """The incarnation of the gang of this test."""
    return uuid4()


@pytest.fixture
def make_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cookie: UUID) -> Iterator[DriverFactory]:
    """Make a gang whose handlers are this source; afterwards nothing of it may be left."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    made: list[Gang] = []
    selectors: list[DefaultSelector] = []
    lock = incarnation.create(cookie)
    assert lock is not None

    def make(source: str, **options: Any) -> Driver:
        (tmp_path / "handlers_of_test.py").write_text(source)
        given: dict[str, Any] = {"target": "handlers_of_test:handlers", "search_path": str(tmp_path), **options}
        selector = DefaultSelector()
        events: list[m.GangEvent] = []
        lines: list[Output] = []
        selectors.append(selector)
        settings = GangSettings(Options(**given), cookie, lock_fd=lock.fd)
        made.append(Gang(settings, selector, events.append, lines.append))
        return Driver(made[-1], selector, events, lines)

    yield make
    for gang in made:
        gang.close()
    for selector in selectors:
        assert not selector.get_map(), "descriptors are left in the selector"
        selector.close()
    nothing_left(cookie)
    lock.close()
