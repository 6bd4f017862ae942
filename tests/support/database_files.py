"""The files of a database with acknowledged commits, to be copied and damaged."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from local_client import Client

from ducktail.engine.database import Database

KEYS = 30


@dataclass(frozen=True)
class Files:
    """A database file with everything beside it.

    Args:
        path: the database file.
        keys: how many rows were inserted, one a transaction, LSN = key; all acknowledged.
        offset: the last acknowledged offset of group g, partition 0.
    """

    path: Path
    keys: int = KEYS
    offset: int = KEYS - 5

    @property
    def wal(self) -> Path:
        """DuckDB's log."""
        return Path(f"{self.path}.wal")

    @property
    def side(self) -> Path:
        """The side file."""
        return Path(f"{self.path}.ducktail")

    def copy_to(self, directory: Path) -> Files:
        """The same files elsewhere."""
        directory.mkdir(parents=True, exist_ok=True)
        for path in (self.path, self.wal, self.side):
            if path.exists():
                shutil.copy(path, directory / path.name)
        return Files(directory / self.path.name, self.keys, self.offset)


def fill(path: Path) -> None:
    """The work behind `Files`: a checkpoint in the middle of nothing, then small transactions."""
    client = Client(Database.open(str(path)))
    client("create table t (id int primary key, v varchar)")
    client("create stream s on t with (partitions = 1)")
    client("create consumer group g on s")
    client.session.database.checkpoint()
    for key in range(1, KEYS + 1):
        client(f"insert into t values ({key}, 'value {key}')")
        if key == KEYS - 3:
            client(f"commit offset partition 0 at {KEYS - 5} on s consumer group g")


def make_killed(path: Path) -> Files:
    """Files of a process that was killed after its last acknowledgement."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            fill(path)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    return Files(path)
