"""The settings that the core decides by: plain numbers and words, validated by ``ganger.config`` before."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LaneRules:
    """So many slots that serve these queues, in this order."""

    name: str
    queues: tuple[str, ...]
    slots: int


@dataclass(frozen=True, slots=True)
class Rules:
    """Seconds and bytes; the defaults are those of ``ganger run``."""

    lanes: tuple[LaneRules, ...]
    poll_interval: float = 1.0
    lease: float = 120.0
    timeout: float | None = None
    grace: float = 5.0
    memory: int | None = None
    shutdown: str = "wait"
    shutdown_timeout: float | None = None
    interrupt_after: float = 60.0
    callback_timeout: float = 30.0
    recycle_after: float = 1.0
    boot_timeout: float = 60.0
    store_timeout: float = 60.0
    max_payload: int = 16 << 20
    max_crashes: int = 3
    max_losses: int = 5
    known_types_only: bool = False  # unknown_job_type = "leave"
    until_empty: bool = False
    job_limit: int | None = None  # stop after so many jobs (process_next_job: 1)
    most_slots: int = 4096  # however many are asked for later


def shares(lanes: tuple[LaneRules, ...], slots: int) -> list[int]:
    """So many slots, shared out among the lanes in the proportion of their own; each has at least one.

    They are given out one by one, each to the lane that is furthest behind (Sainte-Laguë): so as many as the lanes have
    together are shared out as they are, and one slot more or less is one of one lane.
    """
    sizes = [1] * len(lanes)
    for _ in range(slots - len(lanes)):
        sizes[max(range(len(lanes)), key=lambda lane: lanes[lane].slots / (2 * sizes[lane] + 1))] += 1
    return sizes


# How long things may take that no user sets. Each is a bound on ourselves or on one system call, not on a job.
START_LIMIT = 10.0  # a job sent to an idle child must have started
WATCH_AFTER = 0.25  # a run this old is worth watching; a shorter one never wakes its warden
LEAVE_LIMIT = 6.0  # a retired child flushes (5 s at most) and exits
BOOT_CRASHES = 3  # of a slot, where no child was ever ready: nobody would be any wiser by trying once more
POSTMORTEMS = 3  # of one run: a strategy, then a callback may take the child with them, then failed_job has its turn
ASK_SLACK = 1.0  # a strategy that can be interrupted ends by itself at callback_timeout
KILL_PATIENCE = 0.5  # a warden acknowledges a kill, then gets SIGCONT, then is killed itself
BURY_LIMIT = 10.0  # what is then still there is unkillable
CLOSE_LIMIT = 5.0  # wardens and template leave when asked
BACKOFF_LIMIT = 60.0  # between attempts to boot a child: 1, 2, 4 … seconds
