"""Names that mean something to DuckDB or to ducktail: nobody makes a schema of them, no user a relation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest
from server_process import ServerProcess

import ducktail

Connection = psycopg.Connection[Any]

SETUP = """
CREATE USER ann PASSWORD 'x' SUPERUSER;
CREATE USER eve PASSWORD 'x';
CREATE SCHEMA eves;
GRANT CREATE ON SCHEMA eves TO eve;
GRANT CREATE ON SCHEMA main TO eve;
GRANT CREATE ON DATABASE TO eve;
"""


def set_up(server: ServerProcess) -> None:
    with server.connect() as first:
        for statement in filter(str.strip, SETUP.split(";")):
            first.execute(statement)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Tests leave it as it was."""
    with ServerProcess(tmp_path_factory.mktemp("reserved") / "shop.duckdb") as started:
        set_up(started)
        yield started


def sqlstate(connection: Connection, statement: str) -> str | None:
    with pytest.raises(psycopg.Error) as error:
        connection.execute(statement)
    return error.value.diag.sqlstate


NAMES = [
    "temp",
    '"TEMP"',
    "system",
    "pg_temp",
    "pg_catalog",
    "Information_Schema",
    "ducktail",
    "shop",
    "SHOP",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", ["CREATE SCHEMA {}", "CREATE OR REPLACE SCHEMA {}", "CREATE SCHEMA shop.{}"])
def test_a_reserved_schema_is_refused_to_everybody(
    ann: Connection, eve: Connection, text: str, name: str
) -> None:
    for connection in (ann, eve):
        assert sqlstate(connection, text.format(name)) == "42939"


def test_a_schema_under_ducktails_prefix_is_refused() -> None:
    with ducktail.connect(":memory:") as database:
        for name in ("__ducktail_pg", "__DUCKTAIL_other", "memory"):
            with pytest.raises(ducktail.Error) as error:
                database.execute(f"CREATE SCHEMA {name}")
            assert error.value.sqlstate == "42939"
        database.execute("CREATE SCHEMA IF NOT EXISTS main")
        # DuckDB ignores the case of ASCII alone.
        database.execute('CREATE SCHEMA "\u017fystem"')


RELATIONS = [
    "CREATE TABLE eves.{} (i INT)",
    "CREATE TABLE main.{} (i INT)",
    "CREATE TEMP TABLE {} (i INT)",
    "CREATE OR REPLACE TABLE {} AS SELECT 1 AS i",
    "CREATE VIEW eves.{} AS SELECT 1",
    "CREATE TEMP VIEW {} AS SELECT 1",
    "ALTER TABLE eves.mine RENAME TO {}",
    "ALTER VIEW eves.looked RENAME TO {}",
    "CREATE STREAM eves.{} ON eves.mine",
    "CREATE TOPIC eves.{}",
    "ALTER STREAM eves.feed RENAME TO {}",
]


@pytest.mark.parametrize("name", ["duckdb_tables", "DuckDB_Columns", '"duckdb_views"', "sqlite_master"])
@pytest.mark.parametrize("text", RELATIONS)
def test_a_relation_does_not_answer_for_duckdbs_own(eve: Connection, text: str, name: str) -> None:
    eve.execute("CREATE TABLE IF NOT EXISTS eves.mine (i INT)")
    eve.execute("CREATE OR REPLACE VIEW eves.looked AS SELECT 1 AS one")
    if "feed" in text:
        eve.execute("CREATE STREAM IF NOT EXISTS eves.feed ON eves.mine")
    assert sqlstate(eve, text.format(name)) == "42939"


def test_a_schema_that_is_there_all_the_same(tmp_path: Path) -> None:
    """Made past ducktail, or by an earlier version."""
    path = tmp_path / "shop.duckdb"
    with duckdb.connect(str(path)) as past:
        for name in ("temp", "system"):
            past.execute(f"CREATE SCHEMA {name}")
            past.execute(f"CREATE TABLE shop.{name}.hidden AS SELECT 'hidden' AS v")
    with ServerProcess(path) as server:
        set_up(server)
        with server.connect(user="eve", password="x") as eve:
            for name in ("temp", "system"):
                for text in (
                    "SELECT * FROM {}.hidden",
                    "SELECT * FROM shop.{}.hidden",
                    'SELECT * FROM shop."{}".hidden',
                    "COPY shop.{}.hidden TO STDOUT",
                    "INSERT INTO shop.{}.hidden VALUES ('x')",
                    "CREATE TABLE shop.{}.more (i INT)",
                    "DROP TABLE shop.{}.hidden",
                    "CREATE STREAM shop.{}.s ON shop.{}.hidden",
                    "EXPLAIN SELECT * FROM shop.{}.hidden",
                ):
                    state = sqlstate(eve, text.replace("{}", name))
                    assert state in ("0A000", "42501", "42P01"), (text, state)
                with pytest.raises(psycopg.Error):
                    eve.execute(f"SET search_path = {name}")
                    eve.execute("SELECT * FROM hidden")
                eve.execute("RESET search_path")
            eve.execute("CREATE TABLE eves.mine (i INT)")
        with server.connect(user="ann", password="x") as ann:
            for name in ("temp", "system"):
                ann.execute(f"DROP SCHEMA shop.{name} CASCADE")
        with server.connect(user="eve", password="x") as eve:
            eve.execute("CREATE TABLE eves.temp (i INT)")
            eve.execute("SELECT * FROM eves.temp")
