"""Runs a retention pass and kills its own process, with SIGKILL, at the nth step of it; n is 0, 1, 2 ...

`python retention_child.py FILE COPIES [STRIDE]`, of the steps every STRIDE-th: each n has a copy of FILE of
its own, COPIES/n.duckdb, in a process of its own. The first pass that comes to its end is the last; how many
were killed is printed. A step is what the retention thread gives to DuckDB: a statement, a BEGIN, a COMMIT.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import duckdb
from hands import DAY_US, Hands
from reopening import QUIET

from ducktail.engine.database import Database
from ducktail.engine.retention import compaction, deleted_prefix

# Steps so small that the log is cut, and compacted, in several.
STEP_LSNS, STEP_ROWS = 60, 40


class Fatal:
    """The retention's cursor, until so many statements have been run on it."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, left: int) -> None:
        self._cursor = cursor
        self._left = left

    def execute(self, *arguments: Any) -> Any:
        """Run a statement, or end the process."""
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1
        return self._cursor.execute(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


def look(path: Path, steps: int) -> None:
    """One pass, a day after the file's events."""
    clock = Hands()
    clock.us += DAY_US
    database = Database.open(str(path), QUIET, clock)
    database.retention.steps.cursor = Fatal(database.retention.steps.cursor, steps)  # type: ignore[assignment]
    database.retention.look()
    os._exit(0)


def main(file: Path, copies: Path, stride: int) -> None:
    """Kill a pass at its steps."""
    deleted_prefix.STEP_LSNS = compaction.STEP_LSNS = STEP_LSNS
    compaction.STEP_ROWS = STEP_ROWS
    killed = 0
    while True:
        path = copies / f"{killed}.duckdb"
        shutil.copy(file, path)
        child = os.fork()
        if child == 0:
            look(path, killed * stride)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            sys.exit(f"the pass failed: {status}") if status else print(killed)
            return
        killed += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
