"""A child that says what it likes: the supervisor's loop goes on, and no other job is touched.

Loop, core and gang are the real ones. The hostile child is the other end of its connection, held by the test; a second
slot runs a job of which the first must not know.
"""

from __future__ import annotations

import io
import json
import os
import socket
from collections.abc import Iterator
from selectors import DefaultSelector
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ganger.core import messages as m
from ganger.core.job import ENDINGS, Phase
from ganger.core.machine import Machine
from ganger.core.rules import LaneRules, Rules
from ganger.core.slot import State
from ganger.events import Events
from ganger.gang import TOO_MUCH_GARBAGE, Gang, GangSettings, _Child, _Warden
from ganger.loop import Inbox, Loop, clock
from ganger.output import Printed
from ganger_child.options import Options
from ganger_child.wire import Channel, pair
from tests.child.conftest import job_of

HOSTILE, VICTIM = "default/1", "default/2"
OUTCOMES = (m.Archive, m.Retry, m.Release)


class Scene:
    """A loop with two running jobs, and the hostile child's end of its connection in the test's hand."""

    def __init__(self, log_format: str = "console") -> None:
        self.said = io.StringIO()
        self.events = Events(log_format, "debug", out=self.said, err=self.said)
        self.stored: list[m.DatabaseCommand] = []
        self.inbox, self.selector = Inbox(), DefaultSelector()
        self.gang = Gang(GangSettings(Options("a:b"), uuid4()), self.selector, self.inbox.post, lambda line: None)
        machine = Machine(Rules((LaneRules("default", ("default",), 2),)), lambda: 0.5, uuid4)
        self.loop = Loop(
            machine, self.gang, self.inbox, self.selector, self.events,
            store=self.stored.append, ask=lambda error: None, name="test", told={},
        )  # fmt: skip
        self.pool = machine.pool
        self._run_two_jobs(machine)

    def _run_two_jobs(self, machine: Machine) -> None:
        def hear(*events: m.Event) -> list[m.Command]:
            return [command for event in (*events, m.Tick()) for command in machine.handle(event, clock())]

        machine.start(clock())
        hear(m.TemplateReady(1), m.Registered(1, clock().boot))
        said = hear(*(m.WardenStarted(slot, 10) for slot in (HOSTILE, VICTIM)))
        children = {command.slot: command.child for command in said if isinstance(command, m.StartChild)}
        said = hear(*(m.ChildReady(slot, child) for slot, child in children.items()))
        claim = next(command for command in said if isinstance(command, m.Claim))
        jobs = (job_of("hostile", "{}"), job_of("victim", "{}"))
        sent = {
            command.slot: command
            for command in hear(m.Claimed(claim.claim_id, jobs, (0, 0), (False,), None))
            if isinstance(command, m.SendJob)
        }
        hear(*(m.JobStarted(slot, send.child, send.nonce) for slot, send in sent.items()))
        self.victim, self.of_victim = self.pool.slots[VICTIM].run, sent[VICTIM]
        self.nonce = sent[HOSTILE].nonce
        self.job_id = sent[HOSTILE].job.job_id
        wire, self.end = pair()
        self.end.settimeout(5)
        control, self._warden_end = pair()
        reading, writing = os.pipe2(os.O_CLOEXEC)
        os.close(writing)
        channel = Channel(wire, limit=1 << 20, credentials=True)
        printed = Printed(HOSTILE, children[HOSTILE], reading, 8192, lambda line: None, self.gang._deafen)
        self.child = _Child(children[HOSTILE], channel, printed, pid=os.getpid())
        self.child.jobs[self.nonce] = sent[HOSTILE].job
        self.warden = _Warden(HOSTILE, None, Channel(control), child=self.child)
        self.gang._wardens[HOSTILE] = self.warden
        self.selector.register(wire, 1, lambda: self.gang._on_child(self.warden, self.child))

    def hear(self, *datagrams: bytes) -> None:
        """The child says these, and the loop takes them in."""
        for datagram in datagrams:
            self.end.send(datagram)
            while self.selector.select(0):
                for key, _ in self.selector.select(0):
                    key.data()
                self.loop._turn()

    def outcomes(self) -> list[UUID]:
        return [command.job_id for command in self.stored if isinstance(command, OUTCOMES)]

    def untouched(self) -> None:
        """The other job still runs, and what is stored is not about it; then it ends well."""
        slot = self.pool.slots[VICTIM]
        assert slot.run is self.victim
        assert self.victim is not None
        assert (slot.state, self.victim.phase, self.victim.reason, self.victim.outcome) == (
            State.BUSY, Phase.RUNNING, None, None,
        )  # fmt: skip
        assert set(self.outcomes()) <= {self.job_id}
        assert self.outcomes().count(self.job_id) <= 1
        sent = self.of_victim
        self.inbox.post(m.JobReturned(VICTIM, sent.child, sent.nonce, b"1", 1.0, 1.0, 1, clean=True, worked_s=0.1))
        self.loop._turn()
        assert self.outcomes()[-1] == sent.job.job_id
        assert self.loop._exit_code is None

    def close(self) -> None:
        self.gang.close()
        self._warden_end.close()
        self.end.close()
        self.inbox.close()
        self.selector.close()
        assert self.events.close(5), "the thread that writes events has ended, or hangs"


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.close()


# ---------------------------------------------------------------------------------------------------------------------
# Words of a child, and what can be wrong with them

ERROR = {"type": "ValueError", "message": "no", "traceback": "Traceback …"}
COST = {"wall_s": 1.0, "cpu_s": 0.5, "max_rss": 1 << 20}
STAY = {"clean": True, "worked_s": 0.1}
STRATEGY = {"retries": 2, "delays": [1.0, 5.0]}


def words(nonce: int) -> dict[str, dict[str, Any]]:
    """Every message of a child, as it should be."""
    run = {"nonce": nonce}
    failure = {**run, **COST, "reason": "exception", "error": ERROR, "leftovers": False}
    return {
        "ready": {"job_types": {"victim": {"timeout": 1e-9, "grace": 0, "memory": 1, "shutdown": "terminate"}}},
        "boot-error": {"error": "Traceback …"},
        "started": run,
        "returned": {**run, **COST, **STAY},
        "asking": failure,
        "raised": {
            **failure, **STAY, "interrupted": False, "clean_interrupt": False, "strategy": STRATEGY,
            "strategy_error": None,
        },
        "calling": {**run, "name": "failed_job"},
        "callbacks-done": {**run, "errors": {"failed_job": ERROR}},
    }  # fmt: skip


DEEP: Any = []
for _ in range(600):
    DEEP = [DEEP]

ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2, 3, 1.0, 0.5, -0.0, 1e308, -1e308, 10**18, 2**63, 2**64, 10**400,
    float("nan"), float("inf"), "", "x", "1", "exception", "crash", "lost", "shutdown", "fenced", "\0", "\ud800",
    "x" * 70_000, [], [1], [[]], {}, {"type": 1}, {"type": DEEP, "message": "", "traceback": ""}, DEEP, {"x": DEEP},
    {"retries": 2**62, "delays": [1e300]}, {"retries": 0, "delays": "12"}, {"retries": -1, "delays": []},
    {"retries": 1, "delays": {"1": 1}}, {"on-shutdown": ERROR}, {"failed_job": {"type": [], "message": 1}},
    {"type": "\0", "message": "\ud800", "traceback": "x" * 50_000},
]  # fmt: skip

bounded = settings(deadline=None, derandomize=True, database=None, max_examples=150)


@st.composite
def utterances(draw: st.DrawFn) -> list[tuple[str, dict[str, Any], bytes]]:
    """Some messages, each with a few fields that are odd, gone, or of another run."""
    said = []
    for _ in range(draw(st.integers(1, 6))):
        op = draw(st.sampled_from(sorted(words(0))))
        fields = dict(words(-7)[op])  # -7 stands for the child's own run
        for name in draw(st.lists(st.sampled_from(sorted(fields)), max_size=3)):
            if draw(st.booleans()):
                fields[name] = draw(st.sampled_from(ODD))
            else:
                fields.pop(name, None)
        said.append((op, fields, draw(st.sampled_from([b"", b"1", b"{", b"\xff", b'"\\u0000"']))))
    return said


@bounded
@given(utterances(), st.sampled_from(["console", "json"]))
def test_nonsense_of_a_child_harms_nobody_else(said: list[tuple[str, dict[str, Any], bytes]], log_format: str) -> None:
    scene = Scene(log_format)
    try:
        for op, fields, body in said:
            if fields.get("nonce") == -7:
                fields = {**fields, "nonce": scene.nonce}
            scene.hear(json.dumps({"op": op, **fields}).encode() + b"\n" + body)
        scene.untouched()
    finally:
        scene.close()


def test_what_it_says_of_another_run_is_not_heard(scene: Scene) -> None:
    """Its nonce is no secret, and does not help: only what a child was sent is the child's."""
    other = scene.of_victim.nonce
    for op, fields in words(other).items():
        scene.hear(json.dumps({"op": op, **fields}).encode() + b"\nforged")
    for nonce in (0, 99, True, float(scene.nonce), str(scene.nonce), None, [scene.nonce]):
        scene.hear(json.dumps({"op": "returned", **COST, **STAY, "nonce": nonce}).encode() + b"\nforged")
    run = scene.pool.slots[HOSTILE].run
    assert run is not None
    assert run.phase is Phase.RUNNING
    scene.untouched()


@pytest.mark.parametrize("reason", [*ENDINGS, "shutdown", "cancelled", "none"])
def test_a_reason_of_its_own_making_is_its_own(scene: Scene, reason: str) -> None:
    message = {"op": "raised", **words(scene.nonce)["raised"], "reason": reason}
    scene.hear(json.dumps(message).encode() + b"\n")
    scene.hear(json.dumps({"op": "callbacks-done", "nonce": scene.nonce, "errors": {}}).encode() + b"\n")
    assert scene.child.garbage == (reason not in ENDINGS)
    scene.untouched()


@pytest.mark.parametrize(
    "datagram", [b"", b"\n", b"no message", b'{"op":"made up"}\n', b'{"op":"started","nonce":5}\n']
)
def test_a_flood_of_nonsense_ends_the_child_and_the_loop_has_other_turns(scene: Scene, datagram: bytes) -> None:
    for _ in range(TOO_MUCH_GARBAGE + 20):
        scene.end.send(datagram)
        for key, _ in scene.selector.select(0):
            key.data()
    scene.loop._turn()
    assert scene.pool.slots[HOSTILE].state is State.DYING
    scene.untouched()


def test_words_of_a_copy_of_the_child_are_not_the_childs(scene: Scene) -> None:
    scene.child.pid = 1  # so that what the test sends comes from another process
    for op, fields in words(scene.nonce).items():
        scene.hear(json.dumps({"op": op, **fields}).encode() + b"\n")
    assert scene.child.garbage == len(words(0))
    assert scene.outcomes() == []
    scene.untouched()


def test_a_child_that_hangs_up_in_the_middle_is_not_listened_to_for_ever(scene: Scene) -> None:
    scene.end.send(b"{")
    scene.end.shutdown(socket.SHUT_RDWR)
    for _ in range(5):
        for key, _ in scene.selector.select(0):
            key.data()
    assert not scene.selector.select(0)
    scene.untouched()
