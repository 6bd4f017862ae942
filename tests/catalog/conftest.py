"""What the catalog's tests share: a database with a few objects, and queries as a client writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ducktail.engine.database import Database
from ducktail.pgwire_gateway import catalog

OBJECTS = """
    CREATE SCHEMA app;
    CREATE TYPE app.mood AS ENUM ('sad', 'glad');
    CREATE TABLE app.customers (id BIGINT PRIMARY KEY, name VARCHAR NOT NULL, email VARCHAR UNIQUE,
        created TIMESTAMPTZ DEFAULT now(), balance DECIMAL(12,2) DEFAULT 0, meta JSON, tags VARCHAR[]);
    CREATE TABLE app.orders (id BIGINT PRIMARY KEY, customer_id BIGINT REFERENCES app.customers (id),
        amount DECIMAL(10,2) CHECK (amount >= 0), placed DATE, double_amount AS (amount * 2));
    CREATE INDEX orders_customer ON app.orders (customer_id);
    CREATE VIEW app.names AS
        SELECT o.id, c.name FROM app.orders o JOIN app.customers c ON c.id = o.customer_id;
    CREATE SEQUENCE app.numbers START 7 INCREMENT BY 2;
    CREATE MACRO app.twice(a) AS a * 2;
    COMMENT ON TABLE app.orders IS 'what was bought';
    COMMENT ON COLUMN app.orders.amount IS 'with tax';
    CREATE TABLE "Odd ""name" ("Select" INTEGER PRIMARY KEY, "a b" VARCHAR);
    CREATE TABLE plain (i INTEGER, t VARCHAR)
"""

Ask = Callable[..., list[tuple[Any, ...]]]


class Home:
    """An open database with the catalog on it.

    Args:
        path: the database's file; objects are made in a new one.
    """

    def __init__(self, path: Path) -> None:
        fresh = not path.exists()
        self.database = Database.open(str(path))
        self.cursor = self.database.cursor(utc=True)
        for statement in OBJECTS.split(";") if fresh else ():
            self.cursor.execute(statement)
        catalog.install(self.database)

    def ask(self, text: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """The rows that a query in PostgreSQL's spelling has."""
        rows: list[tuple[Any, ...]] = self.cursor.execute(
            catalog.rewrite(text), list(parameters) or None
        ).fetchall()
        return rows

    def names(self, text: str) -> list[str]:
        """The names of a query's columns."""
        found = [column[0] for column in self.cursor.execute(catalog.rewrite(text)).description]
        self.cursor.fetchall()
        return found

    def close(self) -> None:
        self.cursor.close()
        self.database.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A database with a few objects and the catalog."""
    made = Home(tmp_path / "shop.duckdb")
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """The same for all tests of a file, which leave it as it is."""
    made = Home(tmp_path_factory.mktemp("home") / "shop.duckdb")
    yield made
    made.close()


@pytest.fixture
def ask(home: Home) -> Ask:
    """`ask("SELECT ... FROM pg_class")` are its rows."""
    return home.ask


@pytest.fixture
def open_home(tmp_path: Path) -> Callable[[str], Home]:
    """`open_home("shop.duckdb")` opens a file in tmp_path; the test closes it."""
    return lambda name: Home(tmp_path / name)
