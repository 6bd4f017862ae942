"""A PostgreSQL of a test's own whose changes are read: it is stopped, killed and started again."""

from __future__ import annotations

import contextlib
import getpass
import os
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
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self._program(
            "initdb", "-D", str(self._data), "-U", "postgres", "-A", "trust", "--locale=C", "-E", "UTF8",
            "--no-sync",
        )  # fmt: skip

    @property
    def conninfo(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"

    def _program(self, program: str, *words: str) -> None:
        command = [*self._prefix, str(programs() / program), *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=self.home)

    def start(self, *settings: str) -> None:
        """Start the server; later settings come before the usual ones."""
        given = [
            "listen_addresses=127.0.0.1", f"unix_socket_directories={self.home}", *SETTINGS, *settings
        ]  # fmt: skip
        words = " ".join([f"-p {self.port}", *(f"-c {setting}" for setting in given)])
        log = str(self.home / "log")
        ends_s = time.monotonic() + 60
        while True:
            # After a kill the last process of the old server may still have its shared memory.
            with contextlib.suppress(subprocess.CalledProcessError):
                self._program(
                    "pg_ctl", "-D", str(self._data), "-w", "-t", "120", "-o", words, "-l", log, "start"
                )
                return
            if time.monotonic() > ends_s:
                told = (self.home / "log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"the server does not start:\n{told}")
            time.sleep(0.1)

    def stop(self, mode: str = "fast") -> None:
        """Stop the server, and wait until it has ended."""
        self._program("pg_ctl", "-D", str(self._data), "-w", "-t", "120", "-m", mode, "stop")

    def kill(self) -> None:
        """Kill the server's first process with SIGKILL; the others end when they notice."""
        lines = (self._data / "postmaster.pid").read_text().splitlines()
        os.kill(int(lines[0]), signal.SIGKILL)
        # A new server waits for the shared memory of the old one, which its last process gives back.
        with contextlib.suppress(subprocess.CalledProcessError):
            self.stop("immediate")

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
            with contextlib.suppress(subprocess.CalledProcessError):
                source.stop("immediate")
