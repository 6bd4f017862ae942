"""A server with the HTTP API, and clients of it; each test has names of its own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from http_client import HttpClient, http_port
from server_process import ServerProcess

_numbers = count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    path = tmp_path_factory.mktemp("http") / "shop.duckdb"
    with ServerProcess(path, ("--port", "0", "--http", "127.0.0.1:0")) as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> HttpClient:
    return HttpClient(http_port(server))


@pytest.fixture
def wire(server: ServerProcess) -> Iterator[psycopg.Connection[Any]]:
    with server.connect() as connection:
        yield connection


@pytest.fixture
def table(client: HttpClient) -> str:
    """The name of a new table with a stream `<name>_s` and a consumer group g."""
    name = f"t{next(_numbers)}"
    client.sql(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, v VARCHAR, price DECIMAL(20,4))")
    client.sql(f"CREATE STREAM {name}_s ON {name} WITH (partitions = 4)")
    client.sql(f"CREATE CONSUMER GROUP g ON {name}_s")
    return name


@pytest.fixture
def topic(client: HttpClient) -> str:
    name = f"p{next(_numbers)}"
    client.sql(f"CREATE TOPIC {name} WITH (partitions = 4)")
    client.sql(f"CREATE CONSUMER GROUP g ON {name}")
    return name


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The file of a server of a test's own."""
    return tmp_path / "own.duckdb"
