"""``scripts/chaos``: supervisors on several hosts, thousands of jobs, a stream of faults, and a ledger that is checked.

The order of things: servers and hosts begin, the application enqueues, faults happen for the given seconds; then all is
mended, the queue has to run empty, the supervisors are told to stop, and what stands in the ledger is compared with the
archive. As root everything happens in namespaces of its own, so nothing of it can be left behind or meet another run.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import psycopg

from ganger import database as db
from tests.chaos import clock, hosts, ledger, report
from tests.chaos.application import Application
from tests.chaos.faults import Stream, World
from tests.chaos.hosts import Host, Namespaced
from tests.chaos.processes import title
from tests.chaos.servers import PAUSE, Cluster, Pauses

PACE: Final = 1.0  # seconds between two faults, on the average
DRAIN_LIMIT: Final = 70.0  # seconds after the last fault has begun, in which the queue has to run empty
STOP_LIMIT: Final = 15.0  # seconds in which supervisors have to stop
LEAVE_LIMIT: Final = 6.0  # seconds in which what a killed supervisor started has to be gone
STALL: Final = 1.0  # seconds that we ourselves were not scheduled: the whole machine stood still
WORLD: Final = "CHAOS_WORLD"  # in the environment of a run that has its namespaces

DESCRIPTION = """\
Break everything that can break, for so many seconds, and check that the promises hold.

Supervisors on several hosts (as root: namespaces for network, pids, mounts and names; otherwise folders) serve one
PostgreSQL with a streaming standby, while a seeded stream of faults happens: SIGKILL and SIGSTOP of child, warden,
template and supervisor, hosts that freeze or lose power, deployments, a network that drops everything for longer than
a lease, wall clocks that jump, full disks, cut connections, restarts, immediate stops and crashes of PostgreSQL,
failovers, and a transaction that blocks vacuum.

Every job notes its beginning and end in a file. At the end it is checked that every committed job ended exactly once,
that none ran whose transaction was rolled back, that no two runs of one job overlapped (each holds a lock), that
attempts, crashes, losses and refunds add up, and that no process and no claim is left. What the promises except (a host
frozen as a whole, a failover that forgets commits) is counted as excused."""

EPILOG = """\
The seed decides which jobs and faults come, in which order; their exact interleaving is the machine's. Ends within 90
seconds after its seconds. Exit code 0: every promise held; 1: one did not, and what was written stays for a look."""


def main() -> int:
    options = _options()
    if WORLD not in os.environ and hosts.has_namespaces():
        return _in_world()
    seed = options.seed if options.seed is not None else random.randrange(1 << 31)
    folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="ganger-chaos-")))
    folder.chmod(0o711)  # as root, PostgreSQL has another account
    print(f"chaos: seed {seed}, {options.seconds:g} s, {options.supervisors} supervisors, in {folder}", flush=True)
    violations = Chaos(folder, options, seed).run()
    for violation in violations:
        print(f"VIOLATION {violation}")
    if violations:
        again = f"scripts/chaos --seconds {options.seconds:g} --seed {seed} --supervisors {options.supervisors}"
        print(f"\n{len(violations)} violations of seed {seed}. To repeat: {again}\nWhat was written is in {folder}")
        return 1
    print("every promise held")
    if not options.keep:
        shutil.rmtree(folder)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "scripts/chaos", description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long faults happen (default 60)")
    parser.add_argument("--seed", type=int, help="which faults and jobs (default: a random one, which is printed)")
    parser.add_argument("--supervisors", type=int, default=2, help="how many, on as many hosts (default 2)")
    parser.add_argument("--lease", type=float, default=6.0, help="their lease in seconds (default 6)")
    parser.add_argument("--slots", type=int, default=8, help="slots of each (default 8)")
    parser.add_argument("--only", default="", help="only faults whose name has this in it, as in --only failover")
    parser.add_argument("--keep", action="store_true", help="keep the folder with ledger and logs in any case")
    options = parser.parse_args()
    for name, least, most in (("seconds", 1, 86400), ("supervisors", 2, 50), ("lease", 3, 600), ("slots", 1, 64)):
        if not least <= getattr(options, name) <= most:
            parser.error(f"--{name} is {getattr(options, name):g}: give from {least} to {most}.")
    return options


def _in_world() -> int:
    """Run it again in namespaces of its own: whatever ends it, or us, ends everything in it."""
    script = 'ip link set lo up; "$@"; exit $?'  # the shell reaps orphans
    world = ["setpriv", "--pdeathsig", "KILL", "unshare", *hosts.NAMESPACES, "sh", "-c", script, "sh"]
    again = [sys.executable, "-m", "tests.chaos", *sys.argv[1:]]
    process = subprocess.Popen([*world, *again], env={**os.environ, WORLD: "1"})
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            pass  # it was told too, and cleans up


class Chaos:
    """One run."""

    def __init__(self, folder: Path, options: argparse.Namespace, seed: int) -> None:
        self.folder, self.options, self.seed = folder, options, seed
        self.record = ledger.Record(lease=options.lease)
        self.violations: list[str] = []
        (folder / "locks").mkdir()
        self._looked = time.monotonic()

    def run(self) -> list[str]:
        with ExitStack() as stack:
            library = clock.build(self.folder)
            cluster = Cluster(self.folder, library)
            stack.callback(cluster.close)
            self._now(cluster.start())
            with db.connect(cluster.primary.conninfo) as conn:
                db.install(conn)
            places = [self._host(stack, number, cluster, library) for number in range(1, self.options.supervisors + 1)]
            rng = random.Random(self.seed)
            self.world = World(cluster, places, self.record, rng, self.options.lease, library is not None)
            self._tell_what_cannot_be(library)
            application = Application(cluster.conninfo, self.seed, len(places))
            for host in places:
                host.start()
            application.start()
            try:
                stream = self._storm()
            finally:
                application.stop()
            self.record.enqueued = application.jobs
            self._drain()
            self._stop()
            self._read_archive()
        self._judge(stream, application)
        return self.violations

    # ---- the acts ----------------------------------------------------------------------------------------------------

    def _host(self, stack: ExitStack, number: int, cluster: Cluster, library: Path | None) -> Host:
        options = (
            "--concurrency", str(self.options.slots), "--lease", str(self.options.lease), "--poll-interval", "0.5",
            "--grace", "1", "--database-wait", "600", "--log-format", "json", "-v",
        )  # fmt: skip
        kind = Namespaced if WORLD in os.environ else Host
        host = kind(f"h{number}", self.folder / f"h{number}", cluster, library, options)
        host.open()
        stack.callback(host.close)
        return host

    def _tell_what_cannot_be(self, library: Path | None) -> None:
        if not isinstance(self.world.hosts[0], Namespaced):
            print("hosts are folders, and disks are never full: namespaces take root, unshare, nsenter and ip")
        if library is None:
            print("wall clocks do not jump: that takes a C compiler")

    def _storm(self) -> Stream:
        """Faults, for the given seconds, and until all that was done is undone."""
        with open(self.folder / "faults", "w") as log:
            stream = Stream(self.world, PACE, self.options.only, log)
            self._end = time.monotonic() + self.options.seconds
            while time.monotonic() < self._end or not stream.quiet:
                stream.step(begin=time.monotonic() < self._end)
                self._watch()
                time.sleep(PAUSE)
        return stream

    def _watch(self) -> None:
        """A supervisor that nobody has ended runs; a machine that stood still is a host that was frozen."""
        now = time.monotonic()
        if now - self._looked > STALL:
            self.record.windows.append(ledger.Window("frozen", self._looked, now))
        self._looked = now
        for host in self.world.hosts:
            supervisor = host.supervisor
            if supervisor is not None and supervisor.code is not None and not supervisor.expected:
                self.violations.append(
                    f"a supervisor of {host.name} ended by itself ({supervisor.code}): {supervisor.log}"
                )
                host.start()

    def _drain(self) -> None:
        """All is well again, so every supervisor works and the queue runs empty."""
        while (self._queued() or not self._all_ready()) and time.monotonic() < self._end + DRAIN_LIMIT:
            self._watch()
            time.sleep(0.25)
        self.record.queued = self._queued()

    def _all_ready(self) -> bool:
        return all(host.supervisor is not None and host.supervisor.ready for host in self.world.hosts)

    def _queued(self) -> dict[str, str]:
        query = (
            "SELECT job_id::text, format('state %s, starts %s, attempts %s, losses %s, supervisor %s, due in %s', "
            "state, starts, attempts, losses, supervisor_id, process_at - now()) FROM proletarian.job"
        )
        with psycopg.connect(self.world.cluster.conninfo) as conn:
            return dict(conn.execute(query).fetchall())

    def _stop(self) -> None:
        """Told to stop, every supervisor ends well, and nothing is left of it: no process, no registration, no lock."""
        supervisors = [supervisor for host in self.world.hosts for supervisor in host.supervisors]
        for supervisor in supervisors:
            supervisor.signal(signal.SIGTERM)
        _within(STOP_LIMIT, lambda: all(supervisor.code is not None for supervisor in supervisors))
        for host in self.world.hosts:
            for supervisor in host.supervisors:
                if supervisor.code is None or (not supervisor.expected and supervisor.code != 0):
                    self.violations.append(
                        f"told to stop, a supervisor of {host.name} ended with {supervisor.code}: {supervisor.log}"
                    )
            if not _within(LEAVE_LIMIT, partial(_nobody, host)):
                left = [f"{pid} {title(pid)}" for pid in host.processes()]
                self.violations.append(f"processes are left on {host.name}: {left}")

    def _read_archive(self) -> None:
        query = (
            "SELECT job_id::text, status, reason, run_id::text, attempts, crashes, losses, interrupts, starts, "
            "history, result FROM proletarian.archived_job"
        )
        with psycopg.connect(self.world.cluster.conninfo) as conn:
            for row in conn.execute(query):
                self.record.archived[row[0]] = ledger.Archived(*row)
            registered = conn.execute("SELECT supervisor_id, name FROM proletarian.supervisor").fetchall()
        if registered:
            self.violations.append(f"registrations are left: {registered}")
        self.record.queued |= self._queued()

    def _judge(self, stream: Stream, application: Application) -> None:
        ledger.read((self.folder / "ledger").read_text().splitlines(), self.record)
        told, other = report.events(s.log for host in self.world.hosts for s in host.supervisors)
        self.record.unasked = {event["job_id"] for event in told if event["event"] == "callback-error"}
        findings = ledger.check(self.record)
        names = [host.name for host in self.world.hosts]
        print(report.page(stream.strikes, self.record, findings, told, application.transactions, names))
        self.violations += self.world.troubles + findings.violations
        self.violations += [f"a supervisor wrote: {line}" for line in other]

    @staticmethod
    def _now(pauses: Pauses) -> None:
        for pause in pauses:
            time.sleep(pause)


def _nobody(host: Host) -> bool:
    return not host.processes()


def _within(limit: float, condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


if __name__ == "__main__":
    sys.exit(main())
