"""What can be raised in a handler, or be told to its retry strategy and callbacks.

``JobInterrupted`` and its subclasses are raised *in* a handler, to end it: at its time or memory limit, on an
operator's order, at shutdown. They derive from KeyboardInterrupt so that ``except Exception`` does not swallow them,
asyncio stops its loop for them, and psycopg cancels the running query.

The others are made afterwards, for those who ask why a job failed. An exception of a child that is dead is never
rebuilt: it is told as one of these.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any, Final

CANNOT_REPORT: Final = 113  # exit code of a child whose own descriptors were closed or replaced by the handler


class JobInterrupted(KeyboardInterrupt):
    """The job is asked to stop. As this class itself: because the supervisor is shutting down."""

    __module__ = "ganger_child"


class JobTimedOut(JobInterrupted):
    """The job ran longer than its ``timeout``."""

    __module__ = "ganger_child"


class JobOutOfMemory(JobInterrupted):
    """The job, with all processes it had started, held more than its ``memory``."""

    __module__ = "ganger_child"


class JobCancelled(JobInterrupted):
    """An operator cancelled or killed the job."""

    __module__ = "ganger_child"


class JobCrashed(Exception):
    """The job's process ended without a word: by a signal, or by an exit with no result.

    ``exit_code`` or ``term_signal`` says how, the other one is None; ``message`` is the whole sentence.
    """

    __module__ = "ganger_child"

    def __init__(self, message: str, exit_code: int | None = None, term_signal: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
        self.term_signal = term_signal


class JobLost(JobCrashed):
    """The job was lost, so often that it is given up, with what ran it: its supervisor, host or warden."""

    __module__ = "ganger_child"


class JobFailed(Exception):
    """The handler raised, and the process that could have shown the exception is gone.

    ``type``, ``message`` and ``traceback`` are what that process had told of it, as text.
    """

    __module__ = "ganger_child"

    def __init__(self, message: str, type: str = "", traceback: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.type = type
        self.traceback = traceback


class CheckpointRefused(Exception):
    """A checkpoint was not kept, because the run is not the job's any more: it was lost, and the job is another run's;
    or because the database cannot hold it. The message says which."""

    __module__ = "ganger_child"


class UnknownJobType(Exception):
    """No handler is declared for the job's type. A plain function may raise it too."""

    __module__ = "ganger_child"


class BadResult(Exception):
    """What the handler returned cannot be stored; the message has the path to the offending value."""

    __module__ = "ganger_child"


_INTERRUPTS: Final[Mapping[str, tuple[type[JobInterrupted], str]]] = {
    "shutdown": (JobInterrupted, "the supervisor is shutting down"),
    "timeout": (JobTimedOut, "the job ran longer than its timeout"),
    "memory": (JobOutOfMemory, "the job held more memory than its limit"),
    "cancelled": (JobCancelled, "the job was cancelled"),
    "killed": (JobCancelled, "the job was killed by an operator"),
}


def interruption(order: str, limits: Mapping[str, Any]) -> JobInterrupted:
    """Make the exception of an order (one of ``page.ORDERS``)."""
    kind, sentence = _INTERRUPTS[order]
    limit = limits.get(order)
    if limit is not None and order in ("timeout", "memory"):
        sentence += f" of {limit:g} s" if order == "timeout" else f" of {limit} bytes"
    return kind(sentence)


def postmortem(death: Mapping[str, Any], limits: Mapping[str, Any]) -> BaseException:
    """Make the exception that tells how a job ended in another child, from what the supervisor knows of it."""
    reason = str(death.get("reason"))
    told: Mapping[str, Any] = death.get("error") or death
    message = told.get("message") or death.get("message")
    if reason in _INTERRUPTS:
        exception = interruption(reason, limits)
        held = f"{exception}: it held {death['held']} bytes" if death.get("held") else None
        return type(exception)(message or held or exception)
    if reason in ("exception", "payload-too-large", "bad-row", "bad-result", "unknown-job-type"):
        message = message or "the job failed, and the process that knew why is gone"
        if reason in ("exception", "payload-too-large", "bad-row"):
            return JobFailed(message, told.get("type") or "", told.get("traceback") or "")
        return (BadResult if reason == "bad-result" else UnknownJobType)(message)
    exit_code, term_signal = death.get("exit_code"), death.get("term_signal")
    kind = JobLost if reason == "lost" else JobCrashed
    return kind(message or _crash(reason, exit_code, term_signal), exit_code, term_signal)


def _crash(reason: object, exit_code: int | None, term_signal: int | None) -> str:
    if term_signal is not None:
        return f"the job's process was killed by signal {term_signal} ({_signal_hint(term_signal)})"
    if exit_code == CANNOT_REPORT:
        return "the handler closed or replaced the descriptors through which its outcome is reported"
    if exit_code is not None:
        return f"the job's process exited with code {exit_code} before it had reported an outcome"
    return "the job was lost with what ran it" if reason == "lost" else "the job's process is gone"


def _signal_hint(number: int) -> str:
    """Name a signal; of SIGKILL say what most often sends it, for the kernel tells nobody but its own log."""
    if number == signal.SIGKILL:
        return "possibly OOM"
    try:
        return signal.Signals(number).name
    except ValueError:
        return "a real-time signal"
