"""Runs a script that changes a captured table and kills its own process, with SIGKILL, at some steps of it.

`python schema_change_child.py FILE COPIES SCRIPT KILLS`: each has a copy of FILE, COPIES/n.duckdb, in a
process of its own. KILLS is a number, or `all`. The script that comes to its end is number 0; how many
were killed is printed. A step is what the session's cursor gives to DuckDB: a statement, a BEGIN, a COMMIT.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import duckdb
from local_client import Client

from ducktail.engine.database import Database
from ducktail.engine.settings import Settings


class Fatal:
    """A cursor, until so many statements have been run on it; None is until the end."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, left: int | None) -> None:
        self._cursor = cursor
        self._left = left
        self.steps = 0

    def execute(self, *arguments: Any) -> Any:
        """Run a statement, or end the process."""
        if self._left == self.steps:
            os.kill(os.getpid(), signal.SIGKILL)
        self.steps += 1
        return self._cursor.execute(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


def change(path: Path, script: str, left: int | None) -> None:
    """The statements of a session, one after the other; the last thing of this process."""
    client = Client(Database.open(str(path), Settings(retention_interval_ms=3_600_000)))
    cursor = Fatal(client.session.cursor, left)
    client.session.cursors.main = cursor  # type: ignore[assignment]
    for statement in script.split(";"):
        client(statement)
    os._exit(cursor.steps)


def main(file: Path, copies: Path, script: str, kills: str) -> None:
    """Kill the script at its steps, the first one and the last COMMIT among them."""

    def child(number: int, left: int | None) -> int:
        path = copies / f"{number}.duckdb"
        shutil.copy(file, path)
        pid = os.fork()
        if pid == 0:
            change(path, script, left)
        return os.waitpid(pid, 0)[1]

    status = child(0, None)
    steps = os.waitstatus_to_exitcode(status)
    assert steps > 10, f"the change failed: {status}"
    count = steps if kills == "all" else int(kills)
    for number in range(count):
        # The last one is at the COMMIT.
        status = child(number + 1, steps - 1 - number * steps // count)
        assert os.WIFSIGNALED(status), f"the change ended: {status}"
    print(count)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4])
