"""Runs an ALTER TABLE of a captured table and kills its own process, with SIGKILL, at some steps of it.

`python schema_change_child.py FILE COPIES DDL KILLS`: each has a copy of FILE, COPIES/n.duckdb, in a
process of its own. KILLS is a number, or `all`. The change that comes to its end is number 0; how many
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
from ducktail.engine.schema_changes import Alteration, alter_table
from ducktail.engine.settings import Settings
from ducktail.engine.waiting import run


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


def change(path: Path, ddl: str, left: int | None) -> None:
    """One ALTER TABLE; the last thing of this process."""
    client = Client(Database.open(str(path), Settings(retention_interval_ms=3_600_000)))
    session = client.session
    cursor = Fatal(session.cursor, left)
    renamed = ddl.split()[-1] if " RENAME TO " in ddl else None
    asked = Alteration(ddl, renamed, None)
    run(alter_table(session.database, session.id, cursor, ("main", "t"), asked, 10_000))  # type: ignore[arg-type]
    os._exit(cursor.steps)


def main(file: Path, copies: Path, ddl: str, kills: str) -> None:
    """Kill the change at its steps, the first one and the COMMIT among them."""

    def child(number: int, left: int | None) -> int:
        path = copies / f"{number}.duckdb"
        shutil.copy(file, path)
        pid = os.fork()
        if pid == 0:
            change(path, ddl, left)
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
