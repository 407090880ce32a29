"""Libraries that start processes and threads of their own, or keep state that a fork copies: in handlers they work.

Each is used as its manual says, in the job, in the import of the handler module, or in both.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from tests.processes import survivors, wait_until
from tests.stories.stage import Running, Stage

pytestmark = pytest.mark.slow


def nothing_but_ours(supervisor: Running, slots: int) -> None:
    """Of this supervisor there are only its own processes: no helper of a library, no program of a job."""

    def strangers() -> list[str]:
        found = [process for process in survivors(supervisor.cookie) if process.pid != supervisor.pid]
        words = [" ".join(process.cmdline()) for process in found]
        return words if len(words) > 1 + 2 * slots else [each for each in words if not each.startswith("ganger: ")]

    wait_until(lambda: not strangers(), 9, lambda: f"beside our own processes: {strangers()}")


def results(stage: Stage, ids: list[UUID], limit: float = 60) -> list[Any]:
    rows = [stage.archived(job_id, limit) for job_id in ids]
    failed = [(row["job_type"], row["error"]) for row in rows if row["status"] != "success"]
    assert not failed, failed
    assert {row["attempts"] for row in rows} == {1}
    return [row["result"] for row in rows]


POOLS = """
    import multiprocessing, threading
    from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
    with open(FOLDER / "imports", "a") as file:
        file.write(f"{__name__} {os.getpid()}\\n")
    handlers = Handlers()

    def square(number):
        return number * number

    def with_a_pool(number):
        with multiprocessing.get_context("fork").Pool(2) as pool:
            return sum(pool.map(square, range(number)))

    def shout(lock, queue, number):
        with lock:
            queue.put(square(number))

    @handlers.job("pool")
    def pool(job):
        with multiprocessing.get_context(job.payload).Pool(2) as pool:
            return pool.map(square, range(5))

    @handlers.job("executor")
    def executor(job):
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(job.payload)) as executor:
            return list(executor.map(square, range(5)))

    @handlers.job("nested")
    def nested(job):
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(job.payload)) as executor:
            sums = list(executor.map(with_a_pool, range(1, 6)))
            return [after - before for before, after in zip([0, *sums], sums)]

    @handlers.job("shared")
    def shared(job):  # a named semaphore, a queue with its thread, a manager, shared memory: they have helpers
        context = multiprocessing.get_context(job.payload)
        lock, queue = context.Lock(), context.Queue()
        processes = [context.Process(target=shout, args=(lock, queue, n)) for n in range(5)]
        with context.Manager() as manager:
            for process in processes: process.start()
            listed = manager.list(sorted(queue.get(timeout=30) for _ in processes))
            for process in processes: process.join()
            return list(listed)

    @handlers.job("terminated")
    def terminated(job):  # as Pool does with those of its processes that have not ended yet
        process = multiprocessing.get_context(job.payload).Process(target=time.sleep, args=(600,))
        process.start()
        process.terminate()
        process.join(30)
        return [0, 1, 4, 9, 16] if process.exitcode == -signal.SIGTERM else process.exitcode

    @handlers.job("forgotten")
    def forgotten(job):  # neither closed nor joined
        context = multiprocessing.get_context(job.payload)
        pool, executor = context.Pool(2), ProcessPoolExecutor(2, mp_context=context)
        context.Process(target=time.sleep, args=(600,), daemon=True).start()
        return pool.map(square, range(3)) + list(executor.map(square, (3, 4)))

    @handlers.job("joblib")
    def joblib(job):
        from joblib import Parallel, delayed
        return Parallel(n_jobs=2, backend=job.payload)(delayed(square)(n) for n in range(5))
"""
METHODS = ("fork", "spawn", "forkserver")


def _pools(stage: Stage, start_method: str, jobs: list[tuple[str, str]]) -> None:
    stage.handlers(POOLS)
    supervisor = stage.run("-c", "1", "--start-method", start_method)
    for name, how in jobs:
        assert results(stage, [stage.enqueue(name, how)]) == [[0, 1, 4, 9, 16]], (name, how)
        nothing_but_ours(supervisor, 1)
    assert not supervisor.named("child-unkillable")
    assert len(supervisor.named("supervisor-started")) == 1, "a process of a job has become another supervisor"
    assert stage.rows("SELECT count(*) FROM proletarian.supervisor") == [(1,)]
    assert supervisor.stop() == 0


def test_pools_of_processes_work_in_a_job_and_their_helpers_go_with_it(stage: Stage) -> None:
    """D16, https://github.com/Koed00/django-q/issues/211: a child is no daemon, so Pool and ProcessPoolExecutor work,
    nested and forgotten ones too; no helper of theirs (the resource tracker included) is left.
    """
    names = ("pool", "executor", "nested", "shared", "terminated", "forgotten")
    _pools(stage, "fork", [(name, "fork") for name in names] + [("forgotten", "forkserver"), ("shared", "spawn")])


def test_spawned_processes_of_a_job_find_the_users_module_and_start_no_second_supervisor(stage: Stage) -> None:
    """D17, https://github.com/dask/distributed/issues/2142: start method spawn with a function of the handler module,
    and joblib: both work, and the main module is not run again as a second supervisor.
    """
    _pools(stage, "fork", [("pool", "spawn"), ("executor", "spawn"), ("joblib", "loky"), ("joblib", "multiprocessing")])
    assert {line.split()[0] for line in stage.lines("imports")} == {"story"}


@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_every_kind_of_pool_by_every_start_method(stage: Stage, start_method: str) -> None:
    """D16, https://github.com/Koed00/django-q/issues/211 and D17, https://github.com/dask/distributed/issues/2142, also
    where each child is an interpreter of its own.
    """
    names = ("pool", "executor", "nested", "shared", "terminated", "forgotten")
    jobs = [(name, method) for name in names for method in METHODS]
    _pools(stage, start_method, [*jobs, *(("joblib", how) for how in ("loky", "multiprocessing", "threading"))])


# ----------------------------------------------------------------------------------------------------------------------
# Threads and what a fork copies


def test_a_thread_that_logs_all_the_time_since_the_import_hangs_no_child(stage: Stage) -> None:
    """D18, https://github.com/DataDog/dd-trace-py/pull/18900: the thread may hold a lock of logging or of a stream at
    any fork. 200 jobs in 200 children each log and print a line: all finish; a warning at the start names the thread.
    """
    stage.handlers("""
        import logging, threading
        quiet = open(os.devnull, "w")
        logging.basicConfig(level=logging.INFO, handlers=[
            logging.StreamHandler(), logging.FileHandler(FOLDER / "log"), logging.StreamHandler(quiet)
        ])
        logging.getLogger().handlers[0].addFilter(lambda record: record.threadName != "chatterbox")
        logging.getLogger().handlers[1].addFilter(lambda record: record.threadName != "chatterbox")
        def chatter():
            while True:
                logging.info("chatter")
                sys.stderr.write("")
                sys.stderr.flush()
                sys.stdout.flush()
        threading.Thread(target=chatter, name="chatterbox", daemon=True).start()
        handlers = Handlers()
        @handlers.job("log")
        def log(job):
            logging.warning("job %s", job.payload)
            print("printed", job.payload)
            return os.getpid()
    """)
    supervisor = stage.run("-c", "8", "--recycle-after", "0")  # 8 wardens forked beside the thread, 200 children more
    assert "chatterbox" in supervisor.expect("template-threads")["threads"]
    ids = [stage.enqueue("log", number) for number in range(200)]
    assert len(set(results(stage, ids))) == 200
    assert len({line for line in stage.lines("log") if ":job " in line}) == 200
    assert supervisor.stop() == 0


@pytest.mark.parametrize("threads", ["4", pytest.param(None, marks=pytest.mark.slow)])
def test_a_matrix_product_at_import_hangs_none_in_a_job(stage: Stage, threads: str | None) -> None:
    """D19, https://github.com/OpenMathLib/OpenBLAS/issues/294: OpenBLAS starts its threads at the import, where it is
    allowed to, and a fork has none of them. 50 jobs multiply again: all finish within 30 s.
    """
    stage.handlers("""
        import numpy
        A = numpy.random.default_rng(1).random((500, 500))
        TRACE = float((A @ A).trace())
        handlers = Handlers()
        @handlers.job("multiply")
        def multiply(job):
            return abs(float((A @ A).trace()) - TRACE) < 1e-6
    """)
    environ = {} if threads is None else {"OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
    supervisor = stage.run("-c", "2", "--recycle-after", "0", environ=environ)
    ids = [stage.enqueue("multiply") for _ in range(50)]
    assert set(results(stage, ids, 30 * 3)) == {True}
    last = max(stage.archived(job_id)["finished_at"] for job_id in ids)
    assert (last - stage.archived(ids[0])["started_at"]).total_seconds() < 30 * 3
    assert supervisor.stop() == 0


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_no_two_children_draw_the_same_random_numbers(stage: Stage, start_method: str) -> None:
    """D20, https://github.com/numpy/numpy/issues/9650: 8 jobs in 8 children, and what the module seeded at its import:
    all their random numbers and tokens are pairwise different.
    """
    stage.handlers("""
        import random, secrets, tempfile, uuid
        import numpy, numpy.random
        random.seed(1)
        numpy.random.seed(1)
        handlers = Handlers()
        @handlers.job("draw")
        def draw(job):
            return [random.random(), float(numpy.random.rand()), str(uuid.uuid4()), secrets.token_hex(),
                    str(uuid.uuid1()), next(tempfile._get_candidate_names()), float(numpy.random.normal()),
                    random.SystemRandom().random(), float(numpy.random.default_rng().random()), os.getpid()]
    """)
    supervisor = stage.run("-c", "2", "--recycle-after", "0", "--start-method", start_method)
    drawn = results(stage, [stage.enqueue("draw") for _ in range(8)])
    for numbers in zip(*drawn, strict=True):
        assert len(set(numbers)) == 8, numbers
    assert supervisor.stop() == 0
