"""The macros of a database are listed again after every change that may concern them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from local_client import Client, raises

from ducktail.engine.database import Database
from ducktail.engine.duck.macros import list_macros


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database.open(str(tmp_path / "a.duckdb"))
    yield database
    database.close()


def names(client: Client) -> set[str]:
    return {macro.name for macro in client.session.names.macros()}


def test_a_new_database_has_one(database: Database) -> None:
    cursor = database.cursor()
    known, listed = database.macros.latest(cursor), list_macros(cursor)
    assert [(m.catalog, m.name, m.kind) for m in known] == [(m.catalog, m.name, m.kind) for m in listed]
    # DuckDB writes an expression in its own way: a macro of the same text has the same there.
    for number, macro in enumerate(known):
        keys = ", ".join(f"k{n}" for n in range(1, number + 2))
        cursor.execute(f"CREATE MACRO one{number}(stream, {keys}) AS {macro.definition}")
    made = {m.name: m.definition for m in list_macros(cursor) if m.name.startswith("one")}
    assert [made[f"one{n}"] for n in range(len(known))] == [m.definition for m in listed]


def test_each_session_knows_what_another_makes_and_drops(database: Database) -> None:
    one, other = Client(database), Client(database)
    assert names(one) == names(other) == {"partition_of"}
    for make in ("CREATE MACRO m(a) AS a", "CREATE OR REPLACE MACRO m(a) AS TABLE SELECT a"):
        one(make)
        assert names(one) == names(other) == {"partition_of", "m"}
    queries = {macro.query for macro in other.session.names.macros() if macro.name == "m"}
    assert queries == {"SELECT (a)", "SELECT a"}
    other("CREATE TABLE t (a INT)")
    other("CREATE STREAM s ON t")
    assert names(one) == {"partition_of", "m"}
    one("DROP MACRO TABLE m")
    assert names(one) == {"partition_of", "m"}
    one("DROP MACRO m")
    assert names(one) == names(other) == {"partition_of"}
    one("CREATE SCHEMA x")
    one("CREATE MACRO x.m(a) AS a")
    assert names(other) == {"partition_of", "m"}
    other("DROP SCHEMA x CASCADE")
    assert names(one) == {"partition_of"}


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_block_knows_its_own_and_not_later_ones(database: Database, end: str) -> None:
    one, other = Client(database), Client(database)
    one("BEGIN")
    one("CREATE MACRO m(a) AS a")
    assert names(one) == {"partition_of", "m"}
    assert names(other) == {"partition_of"}
    other("BEGIN")
    other("SELECT 1 FROM ducktail.meta")
    assert names(other) == {"partition_of"}
    one(end)
    assert names(other) == {"partition_of"}
    other("ROLLBACK")
    assert names(other) == names(one) == {"partition_of"} | ({"m"} if end == "COMMIT" else set())


def test_a_temporary_one_is_its_sessions(database: Database) -> None:
    one, other = Client(database), Client(database)
    one("CREATE TEMP MACRO m(a) AS a")
    one("BEGIN")
    one("SELECT 1 FROM ducktail.meta")
    assert names(one) == {"partition_of", "m"}
    assert names(other) == {"partition_of"}


def test_a_stream_and_a_macro_under_the_name_of_a_function(tmp_path: Path) -> None:
    path = str(tmp_path / "b.duckdb")
    with duckdb.connect(path) as made:
        made.execute("CREATE MACRO lower(a) AS a")
        made.execute("CREATE TABLE t (a INT)")
    for _ in range(2):
        database = Database.open(path)
        client = Client(database)
        with raises("0A000"):
            client("CREATE STREAM s ON t")
        database.close()
    database = Database.open(path)
    client = Client(database)
    client("DROP MACRO lower")
    client("CREATE STREAM s ON t")
    with raises("0A000"):
        client("CREATE MACRO lower(a) AS a")
    database.close()
