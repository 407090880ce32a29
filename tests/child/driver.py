"""Plays supervisor and warden for one child, over a real connection, page and pipe.

The child is a process of its own, exec'd as with start method "spawn"; what it does from there on is the same for a
forked one. Every wait has a limit, and ``close`` leaves no process.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final
from uuid import UUID

from ganger_child import page
from ganger_child.interrupt import SIGNAL
from ganger_child.options import Options
from ganger_child.page import ORDER, ORDER_RUN, ORDER_SERIAL, ORDERS, Page
from ganger_child.wire import Channel, Message, pair

ROOT: Final = Path(__file__).resolve().parents[2]
PATIENCE: Final = 20.0  # seconds until a wait is a failure
NOTICES: Final = ("asking", "calling")  # words that announce a call beside the handler
JOB_ID: Final = UUID("01890000-0000-7000-8000-00009d3f01c2")
RUN_ID: Final = UUID("01890000-0000-7000-8000-000000000001")

EXECED: Final = "from ganger_child.child import main; main()"
FORKING: Final = """
import json, os, socket, sys
from ganger_child.child import run_child
from ganger_child.handlers import load
from ganger_child.options import Options
wire, output, page = map(int, sys.argv[1:4])
options = Options.from_json(json.loads(sys.argv[4]))
loaded = load(options)
parent = os.getpid()
pid = os.fork()
if pid == 0:
    run_child(wire=socket.socket(fileno=wire), output_fd=output, page_fd=page, parent=parent, loaded=loaded,
              options=options, slot="any/1")
for fd in (wire, output, page):
    os.close(fd)
print(pid, flush=True)
sys.stdin.read()
os.kill(pid, 9)
_, status = os.waitpid(pid, 0)
sys.exit(0)
"""


class Driver:
    """A child and the other ends of everything it has. Made with ``boot=False`` it is not waited for."""

    def __init__(
        self, target: str = "tests.child.jobs:handlers", *, boot: bool = True, fork: bool = False, **options: Any
    ) -> None:
        ours, theirs = pair()
        self.wire = Channel(ours, credentials=True)
        page_fd = page.create()
        self.page = Page(page_fd)
        self._output, output = os.pipe()
        os.set_blocking(self._output, False)
        self._text = b""
        self._muted = False  # nobody can print any more
        self._nonce = 0
        self._serial = 0
        self._inbox: list[Message] = []
        self.notices: list[Message] = []  # of the calls beside the handler
        fds = (theirs.fileno(), output, page_fd)
        told = json.dumps(Options(target, **options).to_json())
        command = [sys.executable, "-c", FORKING, *map(str, fds), told]
        if not fork:
            names = zip(("--wire", "--output", "--page", "--parent"), map(str, (*fds, os.getpid())), strict=True)
            command = [sys.executable, "-c", EXECED, "--slot", "any/1", "--options", told]
            command += [word for name in names for word in name]
        search = os.pathsep.join(str(ROOT / name) for name in ("supervisor", "worker_child", "."))
        self.process = subprocess.Popen(
            command,
            pass_fds=fds,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": search},
            cwd=ROOT,
        )
        theirs.close()
        os.close(output)
        os.close(page_fd)
        self.pid = self.process.pid
        if fork and self.process.stdout is not None:
            self.pid = int(self.process.stdout.readline())
        self.ready = self.next("ready") if boot else None

    # What a supervisor does

    def send(
        self,
        job_type: str,
        payload: Any = None,
        *,
        body: bytes | None = None,
        checkpoint: int | None = None,
        trace: str | None = None,
        **limits: Any,
    ) -> int:
        """Send a job and return its nonce. ``checkpoint``: so many bytes at the end of the body are one."""
        self._nonce += 1
        text = json.dumps(payload).encode() if body is None else body
        facts: dict[str, Any] = {"job": _facts(job_type), "limits": _limits(limits), "checkpoint": checkpoint}
        facts["trace"] = trace
        assert self.wire.send("run", text, nonce=self._nonce, **facts)
        return self._nonce

    def run(self, job_type: str, payload: Any = None, **limits: Any) -> Message:
        """Send a job and return what the child reports of it, with the callbacks (none) done."""
        self.send(job_type, payload, **limits)
        return self.finish()

    def finish(self) -> Message:
        """Wait for the report of the run that was sent, and answer that no callback is wanted."""
        self.next("started")
        report = self.next()
        assert report.op in ("returned", "raised")
        if report.op == "raised":
            assert self.callbacks() == {}
        return report

    def postmortem(
        self,
        death: dict[str, Any],
        job_type: str = "echo",
        payload: Any = None,
        *,
        trace: str | None = None,
        **limits: Any,
    ) -> Message:
        """Ask about a job that died in another child."""
        self._nonce += 1
        self.wire.send(
            "postmortem",
            json.dumps(payload).encode(),
            nonce=self._nonce,
            job=_facts(job_type),
            limits=_limits(limits),
            death=death,
            trace=trace,
        )
        return self.next("raised")

    def callbacks(self, *names: str) -> dict[str, Any]:
        """Have callbacks called, and return the errors of those that raised."""
        self.wire.send("callbacks", nonce=self._nonce, names=list(names))
        done = self.next("callbacks-done")
        assert done["nonce"] == self._nonce
        errors = done["errors"]
        assert isinstance(errors, dict)
        return errors

    # What a warden does

    def order(self, reason: str, *, nonce: int | None = None, signalling: bool = True) -> None:
        """Write an order for the run (the one that was sent last) into the page, and signal the child."""
        self._serial += 1
        self.page[ORDER_RUN] = self._nonce if nonce is None else nonce
        self.page[ORDER] = ORDERS.index(reason)
        self.page[ORDER_SERIAL] = self._serial
        if signalling:
            self.signal(SIGNAL)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    # What both see

    def next(self, op: str | None = None, limit: float = PATIENCE) -> Message:
        """Wait for the next message, which must be this one."""
        deadline = time.monotonic() + limit
        while not self._inbox:
            watched: list[Any] = [self.wire] if self._muted else [self.wire, self._output]
            assert select.select(watched, [], [], max(0.0, deadline - time.monotonic()))[0], self._silence(op)
            self.output()  # a full pipe would stop the child
            received = self.wire.receive()
            assert received.garbage == 0
            assert received.messages or not received.closed, self._silence(op)
            assert time.monotonic() < deadline, self._silence(op)
            self._inbox += received.messages
        message = self._inbox.pop(0)
        assert message.sender == self.pid
        if message.op in NOTICES and op not in NOTICES:
            self.notices.append(message)
            return self.next(op, limit)
        assert op in (None, message.op), f"{op} was expected, and not {message}"
        return message

    def silent(self) -> bool:
        """Whether nothing has come that was not asked for."""
        self._inbox += self.wire.receive().messages
        return not self._inbox

    def printed(self, text: str) -> None:
        """Wait until the child has printed a text."""
        wait_until(lambda: text in self.output(), f"{text!r} was not printed")

    def output(self) -> str:
        """All that the child has printed so far."""
        while not self._muted and select.select([self._output], [], [], 0)[0]:
            part = os.read(self._output, 1 << 16)
            self._text += part
            self._muted = not part
        return self._text.decode()

    def exit_code(self, limit: float = PATIENCE) -> int:
        """Wait for the end of the child; negative for a signal."""
        return self.process.wait(limit)

    def close(self) -> None:
        """End the child; nothing is left of it."""
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        if self.pid == self.process.pid:
            self.process.kill()
        self.process.wait(PATIENCE)
        self.wire.close()
        self.page.close()
        os.close(self._output)
        assert not Path(f"/proc/{self.pid}").exists()

    def __enter__(self) -> Driver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _silence(self, op: str | None) -> str:
        return f"{op or 'a message'} did not come; exit {self.process.poll()}, output: {self.output()[-2000:]}"


def wait_until(condition: Callable[[], object], what: str, limit: float = PATIENCE) -> None:
    """Wait for a condition; a failure says ``what``."""
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def _facts(job_type: str) -> dict[str, Any]:
    return {
        "job_id": str(JOB_ID),
        "run_id": str(RUN_ID),
        "queue": "default",
        "job_type": job_type,
        "attempts": 2,
        "enqueued_at": "2026-11-30T08:46:29.861920+00:00",
        "process_at": "2026-11-30T08:46:30+00:00",
    }


def _limits(given: dict[str, Any]) -> dict[str, Any]:
    return {"timeout": None, "grace": 5.0, "memory": None, "shutdown": "wait", **given}
