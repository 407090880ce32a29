"""Everything that is done to a chaos run: one table, ``FAULTS``.

A fault is a generator. It does something, yields the seconds after which it wants to go on, and undoes what it did;
meanwhile others happen. Two faults that need the same thing (``holds``) exclude each other: a database that is stopped
cannot be promoted, and a supervisor *and* its warden stopped for longer than a lease is a frozen host, whose runs may
overlap: that is a fault of its own here, and the ledger is told of it.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Final

import psycopg

from tests.chaos.hosts import Host, Namespaced
from tests.chaos.ledger import Record, Window
from tests.chaos.processes import send
from tests.chaos.servers import PAUSE, Cluster, Pauses

LONGER: Final = 1.4  # leases that count as longer than a lease
DEPLOY_LIMIT: Final = 25.0  # seconds: the longest job, and what a shutdown may wait for the database
HOLD: Final = 10.0  # seconds that a transaction is held open


@dataclass(slots=True)
class World:
    """What faults are done to, and where they are noted."""

    cluster: Cluster
    hosts: list[Host]
    record: Record
    rng: random.Random
    lease: float
    clocks: bool  # they can jump
    troubles: list[str] = field(default_factory=list)  # what must not happen, seen while it did


@dataclass(slots=True)
class Strike:
    """One fault as it happened. ``host`` is None for the database."""

    name: str
    host: Host | None
    began: float
    held: frozenset[str]
    stops: bool  # nothing goes on at that place meanwhile
    over: float | None = None


Act = Callable[[World, Host], Pauses]


@dataclass(frozen=True, slots=True)
class Fault:
    """``holds`` names what it needs for itself; a name with {host} is one per host."""

    name: str
    share: float
    act: Act
    holds: tuple[str, ...] = ()
    possible: Callable[[World], bool] = lambda world: True

    @property
    def stops(self) -> bool:
        """Whether it brings its whole host, or all of them, to a halt, and not just a slot."""
        return any(name.startswith(("supervisor", "wire", "database")) for name in self.holds)

    @property
    def on_host(self) -> bool:
        return "database" not in self.holds and "transaction" not in self.holds

    def held(self, host: Host) -> frozenset[str]:
        return frozenset(name.format(host=host.name) for name in self.holds)


# ----------------------------------------------------------------------------------------------------------------------
# Processes


def _one(world: World, host: Host, role: str) -> int | None:
    """One of its processes of a role. A template that loads the handlers for the first time is spared: it may end the
    supervisor, as handlers do that cannot be loaded."""
    if host.supervisor is None or not (host.supervisor.ready or role == "supervisor"):
        return None
    pids = host.supervisor.tree()[role]
    return world.rng.choice(pids) if pids else None


def killed(role: str) -> Act:
    def act(world: World, host: Host) -> Pauses:
        pid = _one(world, host, role)
        if pid is not None and send(pid, signal.SIGKILL):
            world.record.child_kills += role == "child"
        yield 0

    return act


def stopped(role: str) -> Act:
    """For a moment, or for longer than a lease."""

    def act(world: World, host: Host) -> Pauses:
        pid = _one(world, host, role)
        if pid is not None:
            send(pid, signal.SIGSTOP)
            yield world.rng.choice([0.2, 1.0, 3.0, LONGER * world.lease])
            send(pid, signal.SIGCONT)
            if host.supervisor and role == "supervisor":
                host.supervisor.signal(signal.SIGCONT)

    return act


def supervisor_killed(world: World, host: Host) -> Pauses:
    """Another takes its place, at once or after longer than a lease."""
    supervisor = host.supervisor
    if supervisor is not None:
        supervisor.expected = True
        supervisor.signal(signal.SIGKILL)
        host.supervisor = None
        yield world.rng.choice([0, 0.5, 2, LONGER * world.lease])
        host.start()


def _freeze(host: Host) -> list[int]:
    """Stop all its processes, the jobs' own too, until there is none that we have not stopped."""
    frozen: list[int] = []
    while new := [pid for pid in host.processes() if pid not in frozen]:
        for pid in new:
            send(pid, signal.SIGSTOP)
        frozen += new
    return frozen


def host_frozen(world: World, host: Host) -> Pauses:
    supervisor = host.supervisor
    if supervisor is not None:
        began = time.monotonic()
        frozen = _freeze(host)
        yield world.rng.choice([1.0, LONGER * world.lease, 2 * world.lease])
        for pid in frozen:
            send(pid, signal.SIGCONT)
        supervisor.signal(signal.SIGCONT)
        world.record.windows.append(Window("frozen", began, time.monotonic(), host.name))


def host_lost(world: World, host: Host) -> Pauses:
    """As by the power: everything at once, and it comes up again."""
    supervisor = host.supervisor
    if supervisor is not None:
        supervisor.expected = True
        frozen = _freeze(host)
        host.supervisor = None
        for pid in frozen:
            send(pid, signal.SIGKILL)
        supervisor.signal(signal.SIGKILL)
        yield world.rng.choice([0, 1, LONGER * world.lease])
        host.start()


def deployed(world: World, host: Host) -> Pauses:
    """A new supervisor beside the old one, which is told to stop."""
    old = host.supervisor
    if old is not None and old.ready:
        host.start()
        yield 1.5
        old.expected = True
        old.signal(signal.SIGTERM)
        deadline = time.monotonic() + DEPLOY_LIMIT
        while old.code is None:
            if time.monotonic() > deadline:
                world.troubles.append(
                    f"a supervisor of {host.name} did not stop within {DEPLOY_LIMIT:.0f} s: {old.log}"
                )
                old.signal(signal.SIGKILL)
                return
            yield PAUSE
        if old.code != 0:
            world.troubles.append(f"a supervisor of {host.name} was told to stop and ended with {old.code}: {old.log}")


# ----------------------------------------------------------------------------------------------------------------------
# Around a host


def network_cut(world: World, host: Host) -> Pauses:
    host.cut()
    yield world.rng.choice([1.0, LONGER * world.lease, 2 * world.lease])
    host.mend()


def clock_jumped(world: World, host: Host) -> Pauses:
    host.clock.jump(world.rng.choice([-86400, -3600, -30, 30, 3600, 86400]))
    yield 0


def disk_full(world: World, host: Host) -> Pauses:
    assert isinstance(host, Namespaced)
    host.fill()
    yield world.rng.uniform(1, 5)
    host.free()


# ----------------------------------------------------------------------------------------------------------------------
# The database


def connections_cut(world: World, host: Host) -> Pauses:
    """Some of the supervisors' connections, or all."""
    share = world.rng.choice([0.2, 0.5, 1.0])
    try:
        with psycopg.connect(world.cluster.primary.conninfo, autocommit=True) as conn:
            conn.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND random() <= %s",
                [share],
            )
    except psycopg.Error:
        pass  # it is just being stopped
    yield 0


def restarted(number: int) -> Act:
    def act(world: World, host: Host) -> Pauses:
        yield from world.cluster.restart(number)

    return act


def backend_crashed(world: World, host: Host) -> Pauses:
    yield from world.cluster.crash_backend(world.rng.random())


def database_frozen(world: World, host: Host) -> Pauses:
    """It answers nobody for a while, as on a machine that swaps."""
    server = world.cluster.primary
    pids = server.backends()
    server.signal(signal.SIGSTOP)
    for pid in pids:
        send(pid, signal.SIGSTOP)
    yield world.rng.uniform(0.5, 3)
    server.signal(signal.SIGCONT)
    for pid in pids:
        send(pid, signal.SIGCONT)


def failed_over(world: World, host: Host) -> Pauses:
    """The standby has everything; some seconds later there is a new one."""
    for _ in range(100):
        if world.cluster.caught_up():
            yield from world.cluster.fail_over()
            break
        yield PAUSE
    yield world.rng.uniform(1, 5)
    yield from world.cluster.restart(signal.SIGINT)


def failed_over_forgetting(world: World, host: Host) -> Pauses:
    """The standby has lagged behind: what was committed meanwhile is forgotten, claims and jobs too."""
    began = time.monotonic()
    world.cluster.forget()
    yield world.rng.uniform(0.3, 2)
    yield from world.cluster.fail_over()
    world.record.windows.append(Window("forgot", began, time.monotonic()))
    yield world.rng.uniform(1, 3)
    yield from world.cluster.restart(signal.SIGINT)


def database_clock_jumped(world: World, host: Host) -> Pauses:
    """Forwards by much; backwards only a little, for a row that is scheduled waits as long as the clock went back. So
    the servers jump together, and differ by seconds."""
    seconds = world.rng.choice([-3, -2, 5, 60, 3600])
    for server in world.cluster.servers:
        server.clock.jump(seconds + world.rng.choice([-1, 0, 1]))
    yield 0


def vacuum_blocked(world: World, host: Host) -> Pauses:
    """Somebody holds a snapshot, so that no dead row can be removed."""
    try:
        with psycopg.connect(world.cluster.primary.conninfo) as conn:
            conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            conn.execute("SELECT count(*) FROM proletarian.job")
            yield HOLD
    except psycopg.Error:
        pass  # the database went away under it


def _with_standby(world: World) -> bool:
    return world.cluster.standby is not None and world.cluster.caught_up()


FAULTS: Final = (
    Fault("child killed", 12, killed("child")),
    Fault("warden killed", 6, killed("warden")),
    Fault("template killed", 4, killed("template")),
    Fault("supervisor killed", 6, supervisor_killed, ("supervisor {host}",)),
    Fault("child stopped", 5, stopped("child"), ("stop {host}",)),
    Fault("warden stopped", 5, stopped("warden"), ("stop {host}",)),
    Fault("template stopped", 3, stopped("template"), ("stop {host}",)),
    Fault("supervisor stopped", 5, stopped("supervisor"), ("stop {host}", "supervisor {host}")),
    Fault("host frozen", 2, host_frozen, ("stop {host}", "supervisor {host}")),
    Fault("host lost", 2, host_lost, ("stop {host}", "supervisor {host}")),
    Fault("supervisor deployed", 3, deployed, ("stop {host}", "supervisor {host}", "wire {host}", "database stays")),
    Fault("network cut", 4, network_cut, ("wire {host}",)),
    Fault("clock jumped", 4, clock_jumped, (), lambda world: world.clocks),
    Fault("disk full", 3, disk_full, ("disk {host}",), lambda world: isinstance(world.hosts[0], Namespaced)),
    Fault("connections cut", 6, connections_cut, ("database",)),
    Fault("database restarted", 2, restarted(signal.SIGINT), ("database", "database stays")),
    Fault("database stopped at once", 2, restarted(signal.SIGQUIT), ("database", "database stays")),
    Fault("database killed", 2, restarted(signal.SIGKILL), ("database", "database stays")),
    Fault("backend crashed", 2, backend_crashed, ("database", "database stays")),
    Fault("database frozen", 2, database_frozen, ("database", "database stays")),
    Fault("failover", 3, failed_over, ("database", "database stays"), _with_standby),
    Fault("failover that forgets", 1, failed_over_forgetting, ("database", "database stays"), _with_standby),
    Fault("database clock jumped", 2, database_clock_jumped, ("database",), lambda world: world.clocks),
    Fault("vacuum blocked", 2, vacuum_blocked, ("transaction",)),
)


class Stream:
    """The seeded stream of faults: what happens next, what goes on, what has happened. ``log`` is told each."""

    def __init__(self, world: World, pace: float, only: str, log: IO[str]) -> None:
        self.world = world
        self._log = log
        self._faults = [fault for fault in FAULTS if only in fault.name]
        self.strikes: list[Strike] = []
        self._pace = pace  # seconds between two faults, on the average
        self._going: list[tuple[float, Strike, Pauses]] = []
        self._next = time.monotonic() + 2

    @property
    def quiet(self) -> bool:
        return not self._going

    def step(self, *, begin: bool) -> None:
        """Go on with what is due, and begin the next fault if it is time for one."""
        now = time.monotonic()
        due = [each for each in self._going if each[0] <= now]
        self._going = [each for each in self._going if each[0] > now]
        for _, strike, pauses in due:
            self._go_on(strike, pauses)
        if begin and now >= self._next:
            self._next = now + self.world.rng.expovariate(1 / self._pace)
            self._begin()

    def _begin(self) -> None:
        """One of those that are possible now, on one of the hosts."""
        world = self.world
        busy = frozenset[str]().union(*(strike.held for _, strike, _ in self._going))
        host = world.rng.choice(world.hosts)
        faults = [fault for fault in self._faults if not fault.held(host) & busy and fault.possible(world)]
        if not faults:
            return
        (fault,) = world.rng.choices(faults, [fault.share for fault in faults])
        strike = Strike(fault.name, host if fault.on_host else None, time.monotonic(), fault.held(host), fault.stops)
        self.strikes.append(strike)
        self._note(strike, "begins")
        self._go_on(strike, fault.act(world, host))

    def _go_on(self, strike: Strike, pauses: Pauses) -> None:
        try:
            self._going.append((time.monotonic() + next(pauses), strike, pauses))
        except StopIteration:
            strike.over = time.monotonic()
            self._note(strike, "is over")

    def _note(self, strike: Strike, what: str) -> None:
        where = f" on {strike.host.name}" if strike.host else ""
        self._log.write(f"{time.monotonic():.3f} {strike.name}{where} {what}\n")
        self._log.flush()
