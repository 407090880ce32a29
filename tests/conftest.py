"""The PostgreSQL of the tests: a local one in a folder of its own, shared by all processes of one test run.

It starts with the first test that wants a database; LocalPostgres sees to it that it starts once. The pytest process
that the user started stops it and removes the folder at the end, and first those that a killed test run left behind.
TEST_DATABASE_URL names another server for the tests; its role must be allowed to create databases.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from ganger.local_postgres import LocalPostgres

FOLDER_PREFIX = f"ganger-tests-{os.getuid()}-"  # only one's own are swept
FOLDER = "GANGER_TESTS_FOLDER"  # in the environment, for the processes of xdist

held = pytest.StashKey[IO[str]]()


# ----------------------------------------------------------------------------------------------------------------------
# The test run: its folder, and what is in the environment


def pytest_configure(config: pytest.Config) -> None:
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:  # by `nohup scripts/test &`, and what stories start inherits it
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if hasattr(config, "workerinput"):
        return
    for name in list(os.environ):
        if name.startswith(("PG", "GANGER_")) or name == "DATABASE_URL":
            del os.environ[name]  # the developer's own settings
    _sweep_folders()
    new = Path(tempfile.mkdtemp())
    new.chmod(0o711)  # as root, PostgreSQL has another account
    (new / "test-run").touch()
    config.stash[held] = _hold(new)
    folder = new.rename(new.with_name(FOLDER_PREFIX + new.name))  # held before anybody sweeping can see it
    os.environ[FOLDER] = str(folder)


def pytest_unconfigure(config: pytest.Config) -> None:
    if held in config.stash:
        _remove_folder(Path(os.environ[FOLDER]))
        config.stash[held].close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first, so that at the end no process waits for another's long one."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def _hold(folder: Path) -> IO[str]:
    """Hold the folder's lock as long as this process lives; BlockingIOError if another one does."""
    lock = open(folder / "test-run", "r+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise
    return lock


def _sweep_folders() -> None:
    for folder in Path(tempfile.gettempdir()).glob(FOLDER_PREFIX + "*"):
        try:
            with _hold(folder):
                _remove_folder(folder)
        except (BlockingIOError, FileNotFoundError):
            pass  # another test run goes on there, or has just ended


def _remove_folder(folder: Path) -> None:
    LocalPostgres(folder).reset()
    shutil.rmtree(folder)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every account may pass through: pytest's own tmp_path is closed to PostgreSQL's, as root."""
    made = Path(os.path.realpath(tempfile.mkdtemp(prefix="ganger-folder-")))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made)


# ----------------------------------------------------------------------------------------------------------------------
# Databases


@pytest.fixture(scope="session")
def postgres() -> str:
    """The conninfo of the server of this test run, as a role that may do everything. Never stop this server."""
    return os.environ.get("TEST_DATABASE_URL") or LocalPostgres(Path(os.environ[FOLDER]), durable=False).start()


@pytest.fixture(scope="session")
def template(postgres: str) -> str:
    """The name of a database with the schema, made once in a test run and copied for each test."""
    folder = Path(os.environ[FOLDER])
    name = folder.name
    with open(folder / "template.lock", "a") as lock, psycopg.connect(postgres, autocommit=True) as conn:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not conn.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone():
            from ganger.database import (
                connect,
                install,
            )  # not before somebody wants it: the tests below it need no schema

            unfinished = f"{name}-unfinished"
            conn.execute(sql.SQL("DROP DATABASE IF EXISTS {}").format(sql.Identifier(unfinished)))
            conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(unfinished)))
            with connect(make_conninfo(postgres, dbname=unfinished)) as target:
                install(target)
            rename = sql.SQL("ALTER DATABASE {} RENAME TO {}")
            conn.execute(rename.format(sql.Identifier(unfinished), sql.Identifier(name)))
    return name


@pytest.fixture
def database(postgres: str, template: str) -> Iterator[str]:
    """The conninfo of a fresh database with the schema, dropped after the test."""
    with _database(postgres, template) as conninfo:
        yield conninfo


@pytest.fixture
def bare_database(postgres: str) -> Iterator[str]:
    """The conninfo of a fresh database without the schema, dropped after the test."""
    with _database(postgres, "template1") as conninfo:
        yield conninfo


@contextmanager
def _database(postgres: str, template: str) -> Iterator[str]:
    name = f"test-{uuid4()}"
    create = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
    drop = sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name))
    with psycopg.connect(postgres, autocommit=True) as conn:
        conn.execute(create)
    try:
        yield make_conninfo(postgres, dbname=name)
    finally:
        with psycopg.connect(postgres, autocommit=True) as conn:
            conn.execute(drop)


# ----------------------------------------------------------------------------------------------------------------------
# The command

Ganger = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ganger(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ganger:
    """Call the command in this process, in an empty folder: (exit code, stdout, stderr), its processes included."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        from ganger import cli

        try:
            code = cli.main(arguments)
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 1
        return code, *capfd.readouterr()

    return call
