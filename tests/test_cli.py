"""The command ``ganger``: what it prints where, with which exit code, and that a mistake is one sentence."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from ganger import cli, config
from ganger.commands.run import GROUPS
from ganger.config import OPTIONS, ConfigError
from ganger.locate import named
from ganger.sql import newest_version
from tests.conftest import Ganger


def in_a_process(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "ganger", *arguments]
    return subprocess.run(command, env=environ, text=True, capture_output=True, timeout=100, **options)  # type: ignore[call-overload,no-any-return]


# ---------------------------------------------------------------------------------------------------------------------
# Without a database


def test_every_setting_is_an_option_of_run_in_one_group() -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted([*grouped, "target"]) == sorted(OPTIONS)


COMMANDS = [
    (), ("run",), ("enqueue",), ("install",), ("reset",), ("status",), ("check",), ("db",), ("db", "reset"), ("jobs",),
    ("jobs", "list"), ("jobs", "show"), ("jobs", "tail"), ("jobs", "stacks"), ("jobs", "cancel"), ("jobs", "kill"),
    ("jobs", "retry"), ("pause",),
    ("resume",), ("prune",), ("top",), ("report",),
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command(ganger: Ganger, command: tuple[str, ...]) -> None:
    code, out, err = ganger(*command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: {' '.join(('ganger', *command))}")


def test_every_option_has_help() -> None:
    def walk(parser: argparse.ArgumentParser) -> None:
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for below in action.choices.values():
                    walk(below)
            else:
                assert action.help, action.option_strings

    walk(cli.parser())


def test_version(ganger: Ganger) -> None:
    assert re.fullmatch(r"ganger \d+\.\d+.*\n", ganger("--version")[1])


WRONG_USAGE: list[tuple[tuple[str, ...], str]] = [
    ((), "COMMAND"),
    (("bogus",), "invalid choice: 'bogus'"),
    (("run",), "run needs a TARGET"),
    (("run", "myapp"), "TARGET is 'myapp'"),
    (("run", "a:b", "-c", "3", "-q", "x=4"), "exclude each other"),
    (("run", "a:b", "--timeout", "0"), "--timeout is '0'"),
    (("run", "a:b", "--tim", "3"), "unrecognized arguments: --tim"),
    (("run", "a:b", "--shutdown", "never"), "--shutdown is 'never'"),
    (("reset",), "--yes"),
    (("db", "reset"), "--yes"),
    (("enqueue",), "TYPE"),
    (("enqueue", "x", "{bad"), "JSON is '{bad'"),
    (("enqueue", "x", "NaN"), "NaN is no JSON"),
    (("enqueue", "x", "[" * 100_000), "nested too deep"),
    (("enqueue", "x", "--process-at", "tomorrow"), "--process-at is 'tomorrow'"),
    (("enqueue", "x", "--process-in", "-1"), "--process-in is '-1'"),
    (("enqueue", "x", "--process-in", "1", "--process-at", "2030-01-01"), "not allowed with"),
    (("enqueue", "x", "--job-id", "7"), "--job-id is '7'"),
    (("enqueue", "x", "--memory", "much"), "--memory is 'much'"),
    (("jobs",), "COMMAND"),
    (("jobs", "list", "--state", "ready,bogus"), "--state is 'ready,bogus': give some of scheduled, ready"),
    (("jobs", "list", "--since", "yesterday"), "--since is 'yesterday'"),
    (("jobs", "list", "--limit", "0"), "--limit is 0"),
    (("jobs", "cancel"), "cancel needs ids, or filters"),
    (("jobs", "kill", "9d3f01c2", "--queue", "q"), "not ids and filters both"),
    (("jobs", "retry", "--state", "running"), "give some of success, failure, cancelled"),
    (("pause", ""), "QUEUE is empty"),
    (("top",), "top needs a terminal"),
    (("report", "--since", "ever"), "--since is 'ever'"),
    (("report", "-o", "r.docx"), "-o is 'r.docx'"),
    (("top", "--json", "--stream"), "not allowed with"),
    (("prune",), "--older-than"),
    (("prune", "--older-than", "old"), "--older-than is 'old'"),
    (("prune", "--older-than", "1d", "--state", "ready"), "--state is 'ready'"),
]


@pytest.mark.parametrize(("arguments", "sentence"), WRONG_USAGE)
def test_wrong_usage_is_one_sentence_and_exit_code_2(ganger: Ganger, arguments: tuple[str, ...], sentence: str) -> None:
    code, out, err = ganger(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("ganger: ")
    assert sentence in err
    assert err.count("\n") == 1


def test_wrong_settings_elsewhere_are_exit_code_78(
    ganger: Ganger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "ganger.toml").write_text("grcae = 3")
    assert ganger("run", "a:b")[::2] == (
        78,
        "ganger: grcae in ganger.toml is no setting of ganger. Did you mean grace?\n",
    )
    (tmp_path / "ganger.toml").unlink()
    monkeypatch.setenv("GANGER_LEASE", "x")
    code, _, err = ganger("run", "a:b")
    assert code == 78
    assert "GANGER_LEASE is 'x'" in err


def test_a_setting_of_another_command_does_not_disturb(ganger: Ganger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GANGER_LEASE", "x")
    assert ganger("install", "--sql")[0] == 0


def test_the_sql_can_be_printed_without_a_database(ganger: Ganger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://localhost:1/none")
    code, out, err = ganger("install", "--sql", "--schema", "other")
    assert (code, err) == (0, "")
    assert '"other".job' in out


def test_a_database_that_is_not_there_is_exit_code_69(ganger: Ganger) -> None:
    for command in (["status"], ["install"], ["reset", "--yes"], ["enqueue", "x"], ["check"]):
        code, out, err = ganger(*command, "--database-url", "postgresql://localhost:1/none")
        assert code == 69
        assert "refused" in out + err
        assert "Traceback" not in err


def test_check_tells_what_does_not_load_without_loading_it_here(ganger: Ganger, tmp_path: Path, postgres: str) -> None:
    (tmp_path / "badjobs.py").write_text("import sys\nprint('noise')\nraise RuntimeError('no such device')\n")
    (tmp_path / "goodjobs.py").write_text(
        "from ganger_child import Handlers\nprint('noise')\nhandlers = Handlers()\n"
        "@handlers.job('x')\ndef x(job): ...\n"
    )
    code, out, err = ganger("check", "badjobs:handlers", "--database-url", "postgresql://localhost:1/none")
    assert (code, err) == (2, "")
    assert re.search(r"^handlers  WRONG +badjobs:handlers does not load: .*no such device", out, re.M)
    assert re.search(r"^database  WRONG", out, re.M)
    assert re.search(r"^settings  ok", out, re.M)
    assert "noise" not in out
    code, out, err = ganger("check", "goodjobs:handlers", "--database-url", postgres)
    assert re.search(r"^handlers  ok +goodjobs:handlers loads; job types: x$", out, re.M)
    assert not {"badjobs", "goodjobs"} & set(sys.modules)


def test_check_notes_a_container_that_is_killed_as_a_whole(
    ganger: Ganger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Correction 16: with memory.oom.group one job's memory costs the whole container; it is no mistake, so no code."""
    code, out, _ = ganger("check", "--database-url", "postgresql://localhost:1/none")
    assert str(tmp_path) not in out
    monkeypatch.setattr(config, "killed_as_a_whole", lambda: tmp_path / "pod")
    noted, out, _ = ganger("check", "--database-url", "postgresql://localhost:1/none")
    assert noted == code
    assert re.search(r"^memory    note   .*/pod/memory.oom.group is 1: .*memory limit", out, re.M)


def test_check_gives_up_on_handlers_that_do_not_end_loading(ganger: Ganger, tmp_path: Path) -> None:
    (tmp_path / "slowjobs.py").write_text("import time\ntime.sleep(1000)\n")
    (tmp_path / "ganger.toml").write_text("boot-timeout = 1\n")
    code, out, _ = ganger("check", "slowjobs:handlers", "--database-url", "postgresql://localhost:1/none")
    assert code == 2
    assert "slowjobs:handlers did not load within 1 s" in out


def test_closed_standard_streams_harm_nobody() -> None:
    script = 'exec "$0" -m ganger install --sql 0<&- 1>&- 2>&-'
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(["/bin/sh", "-c", script, sys.executable], env=environ, timeout=60)
    assert done.returncode == 0


def test_a_reader_that_leaves_early_gets_no_traceback() -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    script = '"$0" -m ganger install --sql | head -c 1'
    done = subprocess.run(["/bin/sh", "-c", script, sys.executable], env=environ, capture_output=True, timeout=60)
    assert done.stderr == b""


def test_a_full_disk_is_one_sentence() -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "ganger", "install", "--sql"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, env=environ, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("ganger: ")
    assert done.stderr.count("\n") == 1


def test_help_does_not_import_the_database_driver() -> None:
    script = "import sys; from ganger import cli; cli.parser().format_help(); print('psycopg' in sys.modules)"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr


# ---------------------------------------------------------------------------------------------------------------------
# Which database


def test_the_nearest_word_on_the_database_stands() -> None:
    def conninfo(database_url: str | None, environ: dict[str, str]) -> str | None:
        place = named(database_url, environ)
        return place and place.conninfo

    environ = {"DATABASE_URL": "postgresql://url/x", "PGHOST": "pg"}
    assert conninfo("postgresql://option/x", environ) == "postgresql://option/x"
    assert conninfo(None, environ) == "postgresql://url/x"
    assert conninfo(None, {"PGHOST": "pg", "DATABASE_URL": ""}) == ""
    assert conninfo(None, {"DATABASE_URL": "host=h dbname=d"}) == "host=h dbname=d"
    assert conninfo(None, {"PGPASSWORD": "x", "PGAPPNAME": "y"}) is None
    with pytest.raises(ConfigError, match="DATABASE_URL begins with mysql"):
        conninfo(None, {"DATABASE_URL": "mysql://h/d"})


# ---------------------------------------------------------------------------------------------------------------------
# With a database


def test_missing_tables_are_exit_code_78_until_installed(ganger: Ganger, bare_database: str) -> None:
    for command in (["status"], ["reset", "--yes"], ["enqueue", "x"], ["check"]):
        code, out, err = ganger(*command, "--database-url", bare_database)
        assert code == 78
        assert 'run "ganger install"' in out + err
    assert ganger("install", "--database-url", bare_database)[1] == (
        f"The schema proletarian now has version {newest_version()}.\n"
    )
    assert ganger("install", "--database-url", bare_database)[1] == "The schema proletarian is up to date.\n"
    assert ganger("status", "--database-url", bare_database)[0] == 0


def test_the_printed_sql_installs(ganger: Ganger, bare_database: str) -> None:
    with psycopg.connect(bare_database, autocommit=True) as conn:
        conn.execute(ganger("install", "--sql")[1].encode())
    assert ganger("check", "--database-url", bare_database)[0] == 0


def test_enqueue_prints_the_id_and_nothing_else(ganger: Ganger, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", database)
    code, out, err = ganger(
        "enqueue", "render", '{"frame": 1}', "-q", "films", "--priority", "-3", "--timeout", "10m", "--grace", "2",
        "--memory", "1GiB", "--shutdown", "finish", "--unique-key", "k", "--process-in", "1h",
    )  # fmt: skip
    assert (code, err) == (0, "")
    with psycopg.connect(database) as conn:
        row = conn.execute(
            "SELECT job_id, job_type, payload, queue, priority, timeout_s, grace_s, memory_bytes, shutdown, unique_key,"
            " process_at > now() + interval '59 min' FROM proletarian.job"
        ).fetchone()
    assert row == (
        UUID(out.strip()), "render", {"frame": 1}, "films", -3, 600.0, 2.0, 1 << 30, "finish", "k", True,
    )  # fmt: skip
    assert out == f"{row[0]}\n"


def test_enqueue_tells_of_duplicates(ganger: Ganger, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", database)
    first = ganger("enqueue", "x", "--unique-key", "k")[1]
    code, out, err = ganger("enqueue", "x", "--unique-key", "k")
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert ganger("enqueue", "x", "--unique-key", "k", "--on-duplicate", "ignore")[:2] == (0, first)


def test_enqueue_refuses_what_the_client_refuses_as_wrong_usage(ganger: Ganger, database: str) -> None:
    refused = (["--process-at", "2030-01-01T00:00:00"], ["--priority", "99999999"], ["--shutdown", "never"])
    for options in refused:
        code, out, err = ganger("enqueue", "x", *options, "--database-url", database)
        assert (code, out, err.count("\n")) == (2, "", 1), (options, err)
    assert ganger("enqueue", "x", '"\\u0000"', "--database-url", database)[0] == 2


def test_the_payload_may_come_from_stdin(database: str) -> None:
    done = in_a_process("enqueue", "x", "-", "--database-url", database, input='{"from": "é"}')
    assert done.returncode == 0, done.stderr
    with psycopg.connect(database) as conn:
        assert conn.execute("SELECT payload FROM proletarian.job").fetchone() == ({"from": "é"},)


def test_status_and_reset(ganger: Ganger, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", database)
    assert ganger("status")[1] == "no job in any queue\n\nno supervisor\n\nno job in the archive\n"
    ganger("enqueue", "x")
    ganger("enqueue", "x", "--process-in", "1h")
    with psycopg.connect(database) as conn:
        conn.execute(
            "INSERT INTO proletarian.supervisor (incarnation, name, host, pid, lease_s, info) VALUES"
            ' (gen_random_uuid(), \'web1\', \'box\', 7, 120, \'{"lanes": {"any": {"slots": 3, "running": 1}}}\')'
        )
    seen = json.loads(ganger("status", "--json")[1])
    assert {name: seen["queues"][0][name] for name in ("queue", "ready", "scheduled", "running")} == {
        "queue": "default", "ready": 1, "scheduled": 1, "running": 0,
    }  # fmt: skip
    assert seen["supervisors"][0]["info"]["lanes"]["any"]["slots"] == 3
    shown = ganger("status")[1]
    assert re.search(r"^default +1 +1 +0 +\ds$", shown, re.M)
    assert re.search(r"web1 +box +running +0 +any=1/3", shown)
    assert ganger("reset", "--yes")[0] == 0
    assert json.loads(ganger("status", "--json")[1])["queues"] == []


def test_pg_variables_name_the_database(ganger: Ganger, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "dbname": "PGDATABASE", "password": "PGPASSWORD"}
    for key, value in conninfo_to_dict(database).items():
        monkeypatch.setenv(names[key], str(value))
    code, _, err = ganger("status", "--json")
    assert (code, err) == (0, "")


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A data folder for a local PostgreSQL of the test's own. As root, PostgreSQL has another account."""
    with tempfile.TemporaryDirectory(prefix="ganger-cli-") as folder:
        Path(folder).chmod(0o711)
        yield Path(folder, "data")


def test_the_local_postgresql_is_named_and_gets_its_tables(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From nothing: enqueue starts and installs, status names it, db stops and deletes it, each harmless twice."""
    monkeypatch.setenv("GANGER_DATA_DIR", str(data_dir))
    try:
        missing = in_a_process("status")
        assert missing.returncode == 78
        enqueued = in_a_process("enqueue", "x")
        assert (enqueued.returncode, enqueued.stderr) == (0, "")
        assert UUID(enqueued.stdout.strip())
        seen = in_a_process("status", "--json")
        assert json.loads(seen.stdout)["queues"][0]["ready"] == 1
        assert seen.stderr == f"ganger: no database is named, so this is the local PostgreSQL in {data_dir}\n"
        url = in_a_process("db", "url").stdout.strip()
        with psycopg.connect(url) as conn:
            assert conn.execute("SELECT count(*) FROM proletarian.job").fetchone() == (1,)
        assert in_a_process("db", "status").returncode == 0
        assert [in_a_process("db", "start").returncode for _ in range(2)] == [0, 0]
        assert [in_a_process("db", "stop").returncode for _ in range(2)] == [0, 0]
        assert json.loads(in_a_process("db", "status", "--json").stdout)["running"] is False
    finally:
        assert [in_a_process("db", "reset", "--yes").returncode for _ in range(2)] == [0, 0]


# ---------------------------------------------------------------------------------------------------------------------
# run


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """A folder with handlers."""
    (tmp_path / "goodjobs.py").write_text(
        "from ganger_child import Handlers\nhandlers = Handlers()\n"
        "@handlers.job('double')\ndef double(job):\n    print('doubling', job.payload)\n    return 2 * job.payload\n"
    )
    (tmp_path / "badjobs.py").write_text("raise RuntimeError('no such device')\n")
    return tmp_path


def test_run_until_empty(jobs: Path, database: str) -> None:
    with psycopg.connect(database) as conn:
        conn.execute("INSERT INTO proletarian.job (job_type, payload) VALUES ('double', '21')")
    done = in_a_process("run", "goodjobs:handlers", "--until-empty", "--database-url", database, cwd=jobs)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"[0-9a-f]{8}  doubling 21\n", done.stdout)
    words = ["supervisor-started", "handling-job", "job-finished", "shutting-down", "completed-shutdown"]
    assert [line.split()[1] for line in done.stderr.splitlines()] == words
    with psycopg.connect(database) as conn:
        assert conn.execute("SELECT status, result FROM proletarian.archived_job").fetchall() == [("success", 42)]


def test_run_in_json(jobs: Path, database: str) -> None:
    with psycopg.connect(database) as conn:
        conn.execute("INSERT INTO proletarian.job (job_type, payload) VALUES ('double', '21')")
    done = in_a_process(
        "run", "goodjobs:handlers", "--until-empty", "--database-url", database, "--log-format", "json", cwd=jobs
    )
    assert [json.loads(line)["line"] for line in done.stdout.splitlines()] == ["doubling 21"]
    finished = next(event for event in map(json.loads, done.stderr.splitlines()) if event["event"] == "job-finished")
    assert {"job_id", "job_type", "queue", "attempt", "slot", "pid", "wall_s", "cpu_s", "max_rss"} <= finished.keys()


def test_run_with_handlers_that_do_not_load_is_exit_code_2_and_touches_no_row(jobs: Path, database: str) -> None:
    with psycopg.connect(database) as conn:
        conn.execute("INSERT INTO proletarian.job (job_type, payload) VALUES ('double', '21')")
        conn.commit()
        done = in_a_process("run", "badjobs:handlers", "--database-url", database, cwd=jobs)
        assert done.returncode == 2
        assert re.search("boot-failed .*no such device", done.stderr)
        assert "Traceback" in done.stderr
        assert conn.execute("SELECT state, attempts, starts FROM proletarian.job").fetchall() == [(0, 0, 0)]


def test_run_without_a_database_or_tables(jobs: Path, bare_database: str) -> None:
    where = ["--database-url", "postgresql://localhost:1/none", "--database-wait", "0.5"]
    done = in_a_process("run", "goodjobs:handlers", *where, cwd=jobs)
    assert done.returncode == 69
    assert "did not answer within 0.5 seconds" in done.stderr
    done = in_a_process("run", "goodjobs:handlers", "--database-url", bare_database, cwd=jobs)
    assert done.returncode == 78
    assert 'run "ganger install"' in done.stderr
    assert "Traceback" not in done.stderr


def test_the_public_names_are_there_and_the_star_import_works() -> None:
    import ganger

    assert all(hasattr(ganger, name) for name in ganger.__all__)
    assert set(ganger.__all__) <= set(dir(ganger))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ganger.nothing  # noqa: B018
