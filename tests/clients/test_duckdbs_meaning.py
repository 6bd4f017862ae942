"""DuckDB's statements over the wire: words with another meaning in PostgreSQL keep DuckDB's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import psycopg
import pytest
from server_process import ServerProcess

from ducktail.pgwire_gateway.catalog.operators import respell_operators

TABLES = [
    "CREATE TABLE meant (id INTEGER PRIMARY KEY, name VARCHAR, l INTEGER[])",
    "INSERT INTO meant VALUES (1, 'a', [1, 2]), (2, 'b', [3])",
    "CREATE TABLE unkeyed (id INTEGER, name VARCHAR)",
    "INSERT INTO unkeyed VALUES (1, 'a'), (1, 'b')",
    "CREATE TABLE every (a INTEGER, b INTEGER)",
    "INSERT INTO every (a, b) VALUES (1, 2)",
    "CREATE TABLE IF NOT EXISTS decode (a INTEGER, b INTEGER)",
    "INSERT INTO decode (a, b) VALUES (3, 4)",
]
SAME = [
    r"SELECT ARRAY[1, 2] AS text, ARRAY['a'] AS varchar, '\x00ff' AS bytea, '{a}' AS x",
    "SELECT name AS jsonb, id AS float FROM meant",
    "SELECT * FROM every",
    "SELECT * FROM decode",
    "WITH every(a) AS (SELECT 1), encode(a, b) AS (SELECT 1, 2) SELECT * FROM every, encode",
    "SELECT x.* FROM (SELECT 1, 2) AS decode(a, b), (SELECT decode.b) AS x",
    "SELECT name, id, count(*) FROM meant GROUP BY id, GROUPING SETS ((name), ()) ORDER BY ALL",
    "SELECT list_filter([1, 2, 3], LAMBDA x: 2 < x), [x * 2 FOR x IN l IF x > 1] FROM meant ORDER BY ALL",
]


@pytest.fixture(scope="module")
def both(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[psycopg.Connection[Any], duckdb.DuckDBPyConnection]]:
    with (
        ServerProcess(tmp_path_factory.mktemp("meant") / "shop.duckdb") as server,
        server.connect() as wire,
        duckdb.connect() as plain,
    ):
        for statement in TABLES:
            wire.execute(statement)
            plain.execute(statement)
        yield wire, plain


@pytest.mark.parametrize("statement", SAME)
def test_the_answer_is_duckdbs(both: Any, statement: str) -> None:
    wire, plain = both
    assert wire.execute(statement).fetchall() == plain.execute(statement).fetchall()


def test_names_of_columns_that_are_types(both: Any) -> None:
    wire, _ = both
    found = wire.execute("SELECT *, unnest({'x': 1, 'y': 2}), 1 + 1, id AS jsonb FROM unkeyed")
    assert [column.name for column in found.description] == ["id", "name", "x", "y", "?column?", "jsonb"]


def test_a_query_of_with_has_no_key(both: Any) -> None:
    wire, _ = both
    with pytest.raises(psycopg.errors.GroupingError):
        wire.execute("WITH meant AS (FROM unkeyed) SELECT id, name, count(*) FROM meant GROUP BY id")


def test_a_macro_takes_no_name_that_is_rewritten(both: Any) -> None:
    wire, _ = both
    for head in ("decode(x, y)", "every(x)", "json_agg(x)"):
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            wire.execute(f"CREATE MACRO {head} AS x")


def test_an_index_on_a_table_with_the_name_of_a_function() -> None:
    text = "CREATE INDEX i ON decode (a, b)"
    assert respell_operators(text) == text


def test_bytes_without_digits(both: Any) -> None:
    wire, _ = both
    assert wire.execute(r"SELECT '\x'::bytea, CAST('\x' AS bytea), bytea '\x'").fetchone() == (b"", b"", b"")


@pytest.mark.parametrize(
    ("statement", "sqlstate"),
    [
        ("SELECT to_number('1.12345678901', '9.99999999999')", "0A000"),
        ("SELECT ['1'] @> '[1]'", "0A000"),
        ("SELECT array_fill(7, ARRAY[2, 2])", "0A000"),
        ("SELECT jsonb_set('[1, 2]', '{5}', '9')", "0A000"),
        ("SELECT to_date('2024-13-01', 'YYYY-MM-DD')", "22023"),
        ("SELECT to_number('abc', '999')", "22P02"),
        ("SELECT decode('abc', 'hex')", "22023"),
        ("SELECT trim_array(ARRAY[1], 2)", "22023"),
    ],
)
def test_another_answer_than_postgresqls_is_an_error(both: Any, statement: str, sqlstate: str) -> None:
    wire, _ = both
    with pytest.raises(psycopg.Error) as caught:
        wire.execute(statement)
    assert caught.value.sqlstate == sqlstate
    assert "UDF" not in str(caught.value)
