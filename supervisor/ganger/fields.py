"""The fields of the messages between parent and child: as they are sent, and checked when they come.

Whoever sends as a child runs user code and may say anything. So each field is looked at before the core hears of it;
what reading nonsense raises is in ``NO_WORD``.

This file may not send or receive, and may not know which message a field is of.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite
from typing import Any, Final

from ganger.core import messages as m
from ganger.core.job import ENDINGS

LONGEST_DELAY: Final = 100 * 366 * 86400.0  # seconds; the child lets no strategy say more
NO_WORD: Final = (KeyError, TypeError, ValueError, OverflowError, RecursionError)
_ERROR: Final = ("type", "message", "traceback")
_CALLBACKS: Final = ("failed_attempt", "failed_job")


def body(job: m.Job) -> bytes:
    """The payload, and behind it the checkpoint."""
    return job.payload if job.checkpoint is None else job.payload + job.checkpoint


def run(command: m.SendJob | m.SendPostmortem) -> dict[str, Any]:
    """The fields that tell a child of a run."""
    job, limits = command.job, command.limits
    checkpoint = {} if job.checkpoint is None else {"checkpoint": len(job.checkpoint)}  # the end of the body
    trace = {} if job.trace is None else {"trace": job.trace}
    return {
        **checkpoint,
        **trace,
        "nonce": command.nonce,
        "job": {
            "job_id": str(job.job_id),
            "run_id": str(job.run_id),
            "queue": job.queue,
            "job_type": job.job_type,
            "attempts": job.attempts,
            "enqueued_at": job.enqueued_at,
            "process_at": job.process_at,
        },
        "limits": {
            "timeout": limits.timeout,
            "grace": limits.grace,
            "memory": limits.memory,
            "shutdown": limits.shutdown,
        },
    }


def number(value: Any, most: float = inf) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or not 0 <= value <= most:
        raise ValueError("it is no amount")
    return float(value)


def whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise ValueError("it is no whole number that PostgreSQL can hold")
    return value


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("it is no text")
    return value


def mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("it has no fields")
    return value


def reason(value: Any) -> str:
    if value not in ENDINGS:
        raise ValueError("nothing ends so")
    return text(value)


def error(value: Any) -> Mapping[str, str]:
    told = mapping(value)
    return {name: text(told[name]) for name in _ERROR}


def callback(value: Any) -> str:
    if value not in _CALLBACKS:
        raise ValueError("no callback is called so")
    return text(value)


def strategy(value: Any) -> m.Strategy | None:
    if value is None:
        return None
    fields = mapping(value)
    return m.Strategy(whole(fields["retries"]), tuple(number(delay, LONGEST_DELAY) for delay in fields["delays"]))


def job_types(value: Any) -> Mapping[str, m.TypeFacts] | None:
    if value is None:
        return None
    return {name: _type_facts(mapping(facts)) for name, facts in mapping(value).items()}


def _type_facts(facts: Mapping[str, Any]) -> m.TypeFacts:
    timeout, grace, memory, shutdown = (facts.get(name) for name in ("timeout", "grace", "memory", "shutdown"))
    return m.TypeFacts(
        timeout=None if timeout is None else number(timeout),
        grace=None if grace is None else number(grace),
        memory=None if memory is None else whole(memory),
        shutdown=None if shutdown is None else text(shutdown),
    )
