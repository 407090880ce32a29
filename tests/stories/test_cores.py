"""What of the machine a job may use."""

from __future__ import annotations

import os

from tests.stories.stage import Stage


def test_slots_have_threads_and_cpus_of_their_own(stage: Stage) -> None:
    """Two jobs at a time: each is bound to CPUs that the other has not (where there are two), as are the programs it
    starts, and libraries are told to start as many threads as that; what the user has set stands."""
    stage.handlers("""
        handlers = Handlers()

        @handlers.job("look")
        def look(job):
            (FOLDER / f"there-{job.payload}").touch()
            while not (FOLDER / f"there-{1 - job.payload}").exists():
                time.sleep(0.01)
            program = subprocess.run(["nproc"], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True)
            threads = [os.environ.get(f"{name}_NUM_THREADS") for name in ("OMP", "NUMBA", "MKL")]
            return {"cpus": sorted(os.sched_getaffinity(0)), "nproc": int(program.stdout), "threads": threads}
    """)
    environ = {"OMP_NUM_THREADS": "3,2", "MKL_NUM_THREADS": "7"}
    stage.run("--concurrency", "2", "--cpu-affinity", environ=environ)
    seen = [stage.archived(job_id)["result"] for job_id in [stage.enqueue("look", number) for number in range(2)]]
    usable = sorted(os.sched_getaffinity(0))
    share = max(1, len(usable) // 2)
    for one in seen:
        assert one["nproc"] == len(one["cpus"]) == share
        assert one["threads"] == ["3,2", "3", "7"]
    if len(usable) > 1:
        assert not set(seen[0]["cpus"]) & set(seen[1]["cpus"])
