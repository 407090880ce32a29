"""A long computation in steps. After each it saves where it is, and it begins where an earlier run has saved last."""

from __future__ import annotations

from math import isqrt
from pathlib import Path

from ganger_child import Handlers, Job

handlers = Handlers()


@handlers.job("count-primes", shutdown="terminate")
def count_primes(job: Job) -> int:
    """Count the primes below a number; each step that is begun is noted in a file, for whoever wants to know."""
    below, step, ledger = job.payload["below"], job.payload["step"], Path(job.payload["ledger"])
    begin, found = job.checkpoint or (2, 0)
    while begin < below:
        with ledger.open("a") as notes:
            notes.write(f"{begin}\n")
        end = min(begin + step, below)
        found += sum(is_prime(number) for number in range(begin, end))
        begin = end
        job.save_checkpoint([begin, found])
        job.progress(begin / below, f"{found} primes below {begin}")
    return found


def is_prime(number: int) -> bool:
    return all(number % divisor for divisor in range(2, isqrt(number) + 1))
