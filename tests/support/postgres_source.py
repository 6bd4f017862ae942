"""A PostgreSQL of a test's own whose changes are read: it is stopped, killed and started again."""

from __future__ import annotations

import contextlib
import getpass
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
from postgres_server import programs

SETTINGS = (
    "wal_level=logical",
    "fsync=off",
    "logical_decoding_work_mem=64kB",
    "max_wal_senders=12",
    "max_replication_slots=12",
    "wal_sender_timeout=20s",
    "log_line_prefix=%m[%p]",
    "shared_buffers=32MB",
)

START_S = 120.0
STOP_S = 120.0


class PostgresSource:
    """A server on loopback.

    Args:
        home: a directory for it alone, outside of pytest's, which are root's alone where root runs the tests.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self._prefix: list[str] = []
        if getpass.getuser() == "root":  # PostgreSQL refuses to run as root.
            self._prefix = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
            shutil.chown(home, "postgres", "postgres")
        self._data = home / "data"
        self._server: subprocess.Popen[bytes] | None = None
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        initdb = [
            str(programs() / "initdb"), "-D", str(self._data), "-U", "postgres", "-A", "trust", "--locale=C",
            "-E", "UTF8", "--no-sync",
        ]  # fmt: skip
        subprocess.run([*self._prefix, *initdb], check=True, stdout=subprocess.DEVNULL, cwd=home)

    @property
    def conninfo(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"

    def start(self, *settings: str) -> None:
        """Start the server; later settings come before the usual ones."""
        given = [
            "listen_addresses=127.0.0.1", f"unix_socket_directories={self.home}", *SETTINGS, *settings
        ]  # fmt: skip
        words = ["-D", str(self._data), "-p", str(self.port)]
        for setting in given:
            words += ["-c", setting]
        ends_s = time.monotonic() + START_S
        while not self._starts([*self._prefix, str(programs() / "postgres"), *words], ends_s):
            # After a kill the last process of the old server may still have its shared memory.
            if time.monotonic() > ends_s:
                told = (self.home / "log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"the server does not start:\n{told}")
            time.sleep(0.1)

    def _starts(self, command: list[str], ends_s: float) -> bool:
        """Whether the server came up. It is a child of this process, which alone can see it end.

        pg_ctl would leave it to the first process of the machine. Where that one collects no children,
        a killed server keeps its number for ever, and the next one takes it for running.
        """
        with (self.home / "log").open("ab") as log:
            self._server = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.home)
        while self._server.poll() is None and time.monotonic() < ends_s:
            with contextlib.suppress(OSError, IndexError):  # It is being written.
                lines = (self._data / "postmaster.pid").read_text().splitlines()
                if lines[0] == str(self._server.pid) and lines[7].strip() in ("ready", "standby"):
                    return True
            time.sleep(0.02)
        self._end(signal.SIGQUIT)
        return False

    def stop(self, mode: str = "fast") -> None:
        """Stop the server, and wait until it has ended."""
        self._end(signal.SIGINT if mode == "fast" else signal.SIGQUIT)

    def kill(self) -> None:
        """Kill the server's first process with SIGKILL; the others end when they notice."""
        self._end(signal.SIGKILL)

    def _end(self, what: signal.Signals) -> None:
        if self._server is not None:
            self._server.send_signal(what)
            self._server.wait(STOP_S)
            self._server = None

    def standby(self, wanted: bool) -> None:
        """Let the server start as a standby, or no longer."""
        mark = self._data / "standby.signal"
        if wanted:
            mark.touch()
        else:
            mark.unlink(missing_ok=True)

    def hba(self, *lines: str) -> None:
        """Replace pg_hba.conf."""
        (self._data / "pg_hba.conf").write_text("".join(f"{line}\n" for line in lines))
        self.run("SELECT pg_reload_conf()")

    def connect(self, **parameters: Any) -> psycopg.Connection[Any]:
        return psycopg.connect(self.conninfo, autocommit=True, **parameters)

    def run(self, *statements: str) -> list[Any]:
        """Run statements, each for itself; the rows of the last."""
        with self.connect() as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def transaction(self, statements: Sequence[str]) -> None:
        """Run statements in one transaction."""
        with self.connect() as connection, connection.transaction():
            for statement in statements:
                connection.execute(statement.encode())


@contextlib.contextmanager
def running_source(*settings: str) -> Iterator[PostgresSource]:
    """A new server, which runs until the block ends."""
    with tempfile.TemporaryDirectory(prefix="ducktail-source-") as home:
        source = PostgresSource(Path(home))
        source.start(*settings)
        try:
            yield source
        finally:
            source.stop("immediate")
