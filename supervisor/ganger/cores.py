"""The share of this machine's CPUs that a slot has: how many threads libraries start in it, and which CPUs it may use.

Every child would otherwise start a thread for every core of the machine, and so as many times too many as there are
slots. What the user has set stands; this file only fills in, and only computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

FIRST: Final = "OMP_NUM_THREADS"  # the one that most libraries read: what it says is meant for its kin too
KIN: Final = (
    "BLIS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "POLARS_MAX_THREADS",
    "RAYON_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


@dataclass(frozen=True, slots=True)
class Share:
    """What slots have of the machine."""

    environ: Mapping[str, str] = field(default_factory=dict)  # for all of them, where nothing else is said of it
    cpus: Mapping[str, frozenset[int]] = field(default_factory=dict)  # that a slot is bound to; others are not bound


def threads(environ: Mapping[str, str], cpus: int, slots: int) -> dict[str, str]:
    """The variables to add to this environment, of a supervisor that may use so many CPUs for so many slots."""
    share = environ.get(FIRST, "").split(",")[0].strip() or str(max(1, cpus // slots))
    return {name: share for name in (FIRST, *KIN) if name not in environ}


def affinity(cpus: Iterable[int], slots: Sequence[str]) -> dict[str, frozenset[int]]:
    """CPUs for each slot, of its own as far as there are enough: as many as each can have, neighbours together."""
    numbers = sorted(cpus)
    each = max(1, len(numbers) // len(slots))
    return {
        slot: frozenset(numbers[(first * each + n) % len(numbers)] for n in range(each))
        for first, slot in enumerate(slots)
    }
