"""A database file that a test opens, and opens again, with a session on it."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import duckdb
from hands import Hands
from local_client import Client, Row

from ducktail.engine.database import Database
from ducktail.engine.settings import Settings

# The thread of retention never looks by itself: a test says when.
QUIET = Settings(retention_interval_ms=3_600_000)


class Reopening:
    """Called, it opens the file (again) and gives a session on it; what was open is closed before."""

    def __init__(self, path: Path, clock: Hands) -> None:
        self.path = path
        self._clock = clock
        self._opened: tuple[Database, Client] | None = None

    def close(self) -> None:
        """Close what is open."""
        if self._opened is not None:
            database, client = self._opened
            self._opened = None
            client.close()
            database.close()

    def __call__(self) -> Client:
        self.close()
        database = Database.open(str(self.path), QUIET, self._clock)
        self._opened = database, Client(database)
        return self._opened[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Editable:
    """A database with a session, which runs what it is called with; plain DuckDB may edit it in between."""

    def __init__(self, path: Path, clock: Hands, settings: Settings = QUIET) -> None:
        self.path, self.clock, self.settings = path, clock, settings
        self._open()

    def _open(self) -> None:
        self.database = Database.open(str(self.path), self.settings, self.clock)
        self.client = Client(self.database)

    def __call__(self, text: str) -> list[Row]:
        return self.client(text)

    def close(self) -> None:
        self.client.close()
        self.database.close()

    def again(self, *behind: str) -> None:
        """Open it again; what plain DuckDB writes meanwhile."""
        self.close()
        if behind:
            with duckdb.connect(str(self.path)) as plain:
                for text in behind:
                    plain.execute(text)
        self._open()
