"""A database file that a test opens, and opens again, with a session on it."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from hands import Hands
from local_client import Client

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
