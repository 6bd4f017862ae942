"""What the clients' tests share: one server with a shop, and what a test may write to."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import shop as shops
from server_process import ServerProcess

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server for all of the clients' tests; they leave schema app and its rows as they are."""
    with ServerProcess(tmp_path_factory.mktemp("shop") / "shop.duckdb") as server:
        shops.fill(server)
        yield server


@pytest.fixture
def look(shop: ServerProcess) -> Iterator[psycopg.Connection[Any]]:
    """A connection beside the client's own, that sees what it has done."""
    with shop.connect() as connection:
        yield connection


@pytest.fixture
def table(look: psycopg.Connection[Any]) -> Iterator[str]:
    """An empty table of the test's own: (i INTEGER PRIMARY KEY, txt VARCHAR)."""
    name = f"t{next(_numbers)}"
    look.execute(f"CREATE TABLE {name} (i INTEGER PRIMARY KEY, txt VARCHAR)")
    yield name
    look.execute(f"DROP TABLE {name}")


@pytest.fixture
def group(look: psycopg.Connection[Any]) -> Iterator[str]:
    """A consumer group of the test's own on orders_stream, which has one event an order."""
    name = f"g{next(_numbers)}"
    look.execute(f"CREATE CONSUMER GROUP {name} ON orders_stream")
    yield name
    look.execute(f"DROP CONSUMER GROUP {name} ON orders_stream")


@pytest.fixture
def url(shop: ServerProcess) -> str:
    """The shop as a URL."""
    return f"postgresql://ducktail@{shop.host}:{shop.port}/shop"
