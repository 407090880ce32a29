"""A computation that is terminated again and again, and how little of it is done twice.

It counts primes for some minutes in a job that saves a checkpoint after each step. A supervisor (``ganger run
--shutdown terminate``) is stopped by SIGTERM whenever it has got on by so many steps, and another one is started, until
the job is done:

python -m examples.checkpoints.demo [--below 5000000] [--step 5000] [--stop-after 60]
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from examples import common
from ganger import ArchivedJob, enqueue, get_job
from ganger.database import install

LOOK = 0.05  # seconds between two looks at what has been done
PATIENCE = 300.0  # seconds without any step, after which something is wrong


def main() -> int:
    """Run it and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.checkpoints.demo", description=__doc__.partition("\n")[0])
    parser.add_argument("--below", type=int, default=5_000_000, help="count the primes below this number")
    parser.add_argument("--step", type=int, default=5_000, help="look at so many numbers in a step")
    parser.add_argument("--stop-after", type=int, default=60, help="stop the supervisor after so many steps")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ganger-checkpoints-") as folder, common.connect() as conn:
        install(conn)
        ledger = Path(folder) / "steps"
        ledger.touch()
        payload = {"below": options.below, "step": options.step, "ledger": str(ledger)}
        job_id = enqueue(conn, "count-primes", payload)
        stops = 0
        while not isinstance(job := get_job(conn, job_id), ArchivedJob):
            stops += run(ledger, options.stop_after)
        begun = ledger.read_text().split()
    if job.status != "success":
        print(f"The job has failed: {job.error}", file=sys.stderr)
        return 1
    again = len(begun) - len(set(begun))
    print(f"There are {job.result} primes below {options.below}.")
    print(
        f"The supervisor was stopped {stops} times. Of {len(set(begun))} steps {again} were done twice, "
        f"which is {again / len(set(begun)):.1%} of the work."
    )
    return 0


def run(ledger: Path, stop_after: int) -> bool:
    """Run a supervisor until nothing is left to do, or stop it after so many steps; returns whether it was stopped."""
    command = [sys.executable, "-m", "ganger", "run", "examples.checkpoints.jobs:handlers", "-c", "1"]
    process = subprocess.Popen([*command, "--shutdown", "terminate", "--until-empty"])
    try:
        first = last = count(ledger)
        moved = time.monotonic()
        while process.poll() is None:
            done = count(ledger)
            if done != last:
                last, moved = done, time.monotonic()
            if time.monotonic() > moved + PATIENCE:
                raise TimeoutError(f"nothing was done for {PATIENCE:g} s")
            if done >= first + stop_after:
                process.send_signal(signal.SIGTERM)
                process.wait()
                return True
            time.sleep(LOOK)
        return False
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGQUIT)
            process.wait()


def count(ledger: Path) -> int:
    """How many steps have been begun."""
    return ledger.read_bytes().count(b"\n")


if __name__ == "__main__":
    sys.exit(main())
