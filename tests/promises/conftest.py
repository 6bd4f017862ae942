"""A database of the test's own, and sessions on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from local_client import Client

from ducktail.engine.database import Database
from ducktail.engine.settings import Settings

Connect = Callable[..., Client]


@pytest.fixture
def bounds() -> Settings:
    """Settings of the test's database; a test module may have its own."""
    return Settings()


@pytest.fixture
def database(tmp_path: Path, bounds: Settings) -> Iterator[Database]:
    """An empty database file, open."""
    opened = Database.open(str(tmp_path / "promises.duckdb"), bounds)
    yield opened
    opened.close()


@pytest.fixture
def connect(database: Database) -> Iterator[Connect]:
    """Opens sessions on the database; they are closed at the end."""
    clients: list[Client] = []

    def make(**settings: str) -> Client:
        client = Client(database, **settings)
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()
