"""A real MariaDB server for a test: a process on loopback with a directory, a port and settings of its own.

The server is Debian's `mariadb-server-core`, which installs programs and no service. It ends with its block,
and is killed with SIGKILL. Several may run beside each other.
"""

from __future__ import annotations

import getpass
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import pymysql

# The user of the tests, with all rights; its password has what a URL must encode.
USER, PASSWORD = "shop", "s3cret:/@%"
# The same password in a URL.
QUOTED = "s3cret%3A%2F%40%25"
START_TIMEOUT_S = 60.0
# Small buffers, no durability beyond the process: tests kill the process, not the machine.
SETTINGS = {
    "server-id": "1",
    "log-bin": "binlog",
    "binlog-format": "ROW",
    "bind-address": "127.0.0.1",
    "innodb-buffer-pool-size": "32M",
    "innodb-log-file-size": "16M",
    "innodb-flush-log-at-trx-commit": "2",
    "sync-binlog": "0",
    "key-buffer-size": "1M",
    "performance-schema": "OFF",
    "max-connections": "60",
    "character-set-server": "utf8mb4",
    "collation-server": "utf8mb4_general_ci",
}


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


class MariadbServer:
    """One server, running until the end of the block.

    Args:
        root: a directory, empty or of an earlier run.
        settings: settings that differ from SETTINGS; None removes one.
    """

    def __init__(self, root: Path, settings: dict[str, str | None] | None = None) -> None:
        self._root = root
        self.port = _free_port()
        self.settings: dict[str, str | None] = {**SETTINGS, **(settings or {})}
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> MariadbServer:
        if not (self._root / "data").exists():
            self.install()
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def install(self) -> None:
        """Make the data directory, with a user on all hosts."""
        self._root.mkdir(parents=True, exist_ok=True)
        program = shutil.which("mariadb-install-db")
        assert program is not None
        command = [
            program, "--no-defaults", f"--datadir={self._root / 'data'}",
            "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve",
            f"--user={getpass.getuser()}",
            "--innodb-buffer-pool-size=32M", "--innodb-log-file-size=16M",
        ]  # fmt: skip
        made = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert made.returncode == 0, made.stdout + made.stderr
        quoted = PASSWORD.replace("'", "''")
        (self._root / "users.sql").write_text(
            f"CREATE USER IF NOT EXISTS {USER}@'%' IDENTIFIED BY '{quoted}';\n"
            f"GRANT ALL ON *.* TO {USER}@'%' WITH GRANT OPTION;\n"
            "CREATE DATABASE IF NOT EXISTS shop;\n"
        )

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
        assert self.process is None
        program = shutil.which("mariadbd") or "/usr/sbin/mariadbd"
        command = [
            program, "--no-defaults", f"--datadir={self._root / 'data'}", f"--port={self.port}",
            f"--socket={self._root / 's'}", f"--pid-file={self._root / 'pid'}", f"--user={getpass.getuser()}",
            f"--init-file={self._root / 'users.sql'}", "--skip-name-resolve",
            *(f"--{name}={value}" for name, value in self.settings.items() if value is not None),
        ]  # fmt: skip
        with (self._root / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        ends_s = time.monotonic() + START_TIMEOUT_S
        while True:
            ended = self.process.poll()
            try:
                self.connect().close()
                return
            except pymysql.OperationalError:
                if ended is not None or time.monotonic() > ends_s:
                    tail = (self._root / "log").read_text(errors="replace")[-3000:]
                    raise RuntimeError(f"the server does not start (status {ended}):\n{tail}") from None
                time.sleep(0.02)

    def kill(self) -> None:
        """End it with SIGKILL."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def restart(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()

    @property
    def url(self) -> str:
        """The URL of its database `shop` for a connector."""
        return f"mysql://{USER}:{QUOTED}@127.0.0.1:{self.port}/shop"

    def connect(self, database: str | None = None) -> pymysql.Connection:
        """A connection of the user of the tests, with autocommit."""
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user=USER, password=PASSWORD, database=database,
            autocommit=True, charset="utf8mb4",
        )  # fmt: skip

    def ask(self, *statements: str, database: str | None = "shop") -> Sequence[tuple[object, ...]]:
        """The rows of the last of some statements, on a connection of their own."""
        connection = self.connect(database)
        try:
            rows: Sequence[tuple[object, ...]] = ()
            for statement in statements:
                with connection.cursor() as cursor:
                    cursor.execute(statement)
                    rows = cursor.fetchall()
            return rows
        finally:
            connection.close()
