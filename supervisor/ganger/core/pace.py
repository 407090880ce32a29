"""How much to claim beyond the free slots: nothing, unless jobs are short; then what a round trip is worth.

A slot whose jobs take a millisecond would wait for the next claim's answer most of the time. So a lane whose jobs are
short claims ahead what its slots use up while one claim is under way, measured, twice: while one half is used up, the
next claim is on its way. A long job must never wait behind others here while another supervisor is idle, so what has
waited too long goes back.

Numbers only; seconds and bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf
from typing import Final

SHORT: Final = 0.05  # seconds; a lane whose jobs take longer claims nothing ahead
WAITS: Final = 0.25  # seconds that a job may wait here for a slot, before it goes back to its queue
MOST: Final = 256  # jobs ahead of one lane
BYTES: Final = 8 << 20  # payloads ahead of one lane
DEEPEST: Final = 32  # jobs in a child's socket
DEEP: Final = 0.02  # seconds that they may take together
LULL: Final = 0.01  # seconds, at most, that what children say may wait while all have jobs in their sockets
SOCKET: Final = 64 << 10  # bytes that their payloads may have together, far below what a socket holds
LEAST: Final = 0.0003  # seconds that a slot needs for the shortest job, with all that is around it
TURN: Final = 0.08  # seconds; claims that follow each other more closely cost more than they bring
_LATELY: Final = 1.0  # seconds between two claims after which what ended between them tells nothing
_NEW: Final = 0.2  # weight of a new measurement


@dataclass(slots=True)
class Pace:
    """The pace of one lane, as measured so far."""

    job_s: float | None = None  # a job's wall time; None: none has ended yet
    trip_s: float = 0.005  # a claim's, from the question to the answer
    each_s: float | None = None  # from one end to the next, of all slots, with all that is around a job; None: unknown
    payload: float = 0.0  # bytes of the larger ones lately
    careful: bool = False  # a job that was lost before comes next: it gets a slot, and waits nowhere else
    _ends: int = 0  # since the last answer
    _answered_at: float = -inf

    @property
    def short(self) -> bool:
        """Whether jobs are short enough to claim ahead."""
        return self.job_s is not None and self.job_s < SHORT

    @property
    def depth(self) -> int:
        """How many jobs may wait in a child's socket: one if jobs are short, more if they are very short and small."""
        if not self.short or self.job_s is None:
            return 0
        return max(1, min(DEEPEST, int(DEEP / max(self.job_s, LEAST)), int(SOCKET / max(self.payload, 1.0))))

    def lasts_for(self, jobs: int) -> float:
        """How long so many jobs take one after another, in seconds; 0 where that is not known."""
        return 0.0 if self.job_s is None else jobs * max(self.job_s, LEAST)

    def ended(self, wall_s: float) -> None:
        """A job has ended after so long."""
        self._ends += 1
        if self.job_s is None or wall_s >= SHORT:
            self.job_s = wall_s
        else:
            self.job_s += _NEW * (wall_s - self.job_s)

    def lasts(self, wall_s: float) -> None:
        """A job has lasted so long, and goes on."""
        self.job_s = max(self.job_s or 0.0, wall_s)

    def answered(self, trip_s: float, now: float) -> None:
        """A claim was answered; what it brought is looked at after this."""
        self.careful = False
        self.trip_s += _NEW * (trip_s - self.trip_s)
        if self._ends and now - self._answered_at < _LATELY:
            each_s = (now - self._answered_at) / self._ends
            self.each_s = each_s if self.each_s is None else self.each_s + _NEW * (each_s - self.each_s)
        self._ends, self._answered_at = 0, now

    def claimed(self, payload: int) -> None:
        """A job with a payload of so many bytes was claimed."""
        self.payload = max(float(payload), self.payload * (1 - _NEW))

    def ahead(self, slots: int) -> int:
        """How many jobs to have beyond those that the slots are at."""
        if self.careful or not self.short or self.job_s is None:
            return 0
        each_s = max(self.job_s, LEAST) / slots if self.each_s is None else max(self.each_s, LEAST / slots)
        used = 2 * max(self.trip_s, TURN) / each_s
        return min(slots + ceil(used), MOST, int(BYTES / max(self.payload, 1.0)))
