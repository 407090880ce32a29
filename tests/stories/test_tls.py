"""The TLS options of a connection string hold for every connection of a supervisor and of the commands.

The tests' PostgreSQL need not know TLS: a front does, which speaks it to the client and plainly to the server.
"""

from __future__ import annotations

import select
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.stories.stage import Running, Stage

OPENSSL = shutil.which("openssl")
SSL_REQUEST = bytes((0, 0, 0, 8, 4, 210, 22, 47))  # what a client sends first if it may have TLS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(OPENSSL is None, reason="there is no openssl to make a certificate with"),
]


class Front:
    """Before the test's database. Counts the connections that came with TLS and those that came without."""

    def __init__(self, conninfo: str, certificate: Path | None, key: Path | None) -> None:
        facts = conninfo_to_dict(conninfo)
        self._server = f"{facts['host']}/.s.PGSQL.{facts['port']}"
        self._context = None
        if certificate is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(certificate, key)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.encrypted = self.plain = 0
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Front:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            client.settimeout(30)
            asked = client.recv(8, socket.MSG_PEEK) == SSL_REQUEST
            if asked:
                client.recv(8)
                client.sendall(b"S" if self._context else b"N")
            if asked and self._context:
                client = self._context.wrap_socket(client, server_side=True)
                self.encrypted += 1
            else:
                self.plain += 1
            with socket.socket(socket.AF_UNIX) as server:
                server.connect(self._server)
                self._pass_on(client, server)
        except OSError:  # a handshake that the client ended, a connection that is over
            pass
        finally:
            client.close()

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        while True:
            waiting = isinstance(client, ssl.SSLSocket) and client.pending() > 0
            for end in [client] if waiting else select.select([client, server], [], [])[0]:
                data = end.recv(1 << 16)
                if not data:
                    return
                (server if end is client else client).sendall(data)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a self-made certificate for 127.0.0.1 and one of somebody else."""
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("ours", "other"):
        subprocess.run(
            [str(OPENSSL), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
             "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:ganger.test",
             "-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.crt")],
            check=True, capture_output=True,
        )  # fmt: skip
    return folder


@pytest.fixture
def front(stage: Stage, certificates: Path) -> Iterator[Front]:
    stage.handlers("handlers = Handlers()\n@handlers.job('note')\ndef note(job): return 'done'")
    with Front(stage.conninfo, certificates / "ours.crt", certificates / "ours.key") as made:
        yield made
        for running in stage.supervisors:
            if running.process.poll() is None:
                running.stop()


def through(stage: Stage, front: Front, **options: Any) -> str:
    return make_conninfo(stage.conninfo, **{"host": "127.0.0.1", "port": front.port, **options})


def status(stage: Stage, conninfo: str, **environ: str) -> Running:
    command = stage.launch(sys.executable, "-m", "ganger", "status", conninfo=conninfo, environ=environ)
    command.ended()
    return command


def test_a_verified_connection_is_used_for_everything(stage: Stage, front: Front, certificates: Path) -> None:
    conninfo = through(stage, front, sslmode="verify-full", sslrootcert=certificates / "ours.crt")
    supervisor = stage.run("-c", "1", conninfo=conninfo)
    assert stage.archived(stage.enqueue("note"))["result"] == "done"
    assert front.encrypted >= 4, "one to see that the database is there, and the supervisor's three"
    assert front.plain == 0
    assert supervisor.stop() == 0
    by_environment = status(
        stage, through(stage, front), PGSSLMODE="verify-full", PGSSLROOTCERT=str(certificates / "ours.crt")
    )
    assert by_environment.process.returncode == 0, by_environment.story()
    assert front.plain == 0


def test_a_server_that_cannot_be_trusted_is_not_talked_to(stage: Stage, front: Front, certificates: Path) -> None:
    other = certificates / "other.crt"
    stranger = stage.run(
        "--database-wait", "0", wait=False,
        conninfo=through(stage, front, sslmode="verify-full", sslrootcert=other),
    )  # fmt: skip
    assert stranger.ended() == 69, stranger.story()
    assert "certificate" in stranger.story()
    misnamed = through(
        stage, front, hostaddr="127.0.0.1", host="elsewhere.test", sslmode="verify-full",
        sslrootcert=certificates / "ours.crt",
    )  # fmt: skip
    command = status(stage, misnamed)
    assert command.process.returncode == 69, command.story()
    assert "elsewhere.test" in command.story()
    assert front.plain == 0


def test_a_server_without_tls_is_refused_where_tls_is_required(stage: Stage) -> None:
    with Front(stage.conninfo, None, None) as plain:
        command = status(stage, through(stage, plain, sslmode="require"))
        assert command.process.returncode == 69, command.story()
        assert "SSL" in command.story()
        assert status(stage, through(stage, plain, sslmode="prefer")).process.returncode == 0
