"""Queries with which an ORM reads tables: sequences, names of constraints, elements of indexes, comments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from server_process import ServerProcess

DEFINITIONS = (
    'CREATE TABLE t (id SERIAL, a INT, b INT CONSTRAINT "It\'s" CHECK (b > 1), '
    "n INT GENERATED ALWAYS AS (a * 2) STORED, CONSTRAINT tp PRIMARY KEY (id), "
    "CONSTRAINT ab UNIQUE (a, b), CONSTRAINT ba UNIQUE (b, a))",
    "CREATE INDEX mixed ON t (a, (b + 1), id)",
    "CREATE TABLE r (t INT CONSTRAINT f REFERENCES t (id))",
    "COMMENT ON TABLE t IS 'a table'",
    "COMMENT ON COLUMN t.a IS 'a column'",
    "CREATE TABLE tree (id INT PRIMARY KEY, parent INT REFERENCES tree (id))",
)


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[psycopg.Connection[Any]]:
    home = Path(tmp_path_factory.mktemp("reflection"))
    with ServerProcess(home / "shop.duckdb") as server, server.connect() as connection:
        for text in DEFINITIONS:
            connection.execute(text)
        yield connection


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("SELECT c.conname, pg_get_constraintdef(c.oid) FROM pg_constraint c "
         "WHERE c.conrelid IN ('t'::regclass, 'r'::regclass) ORDER BY c.conname COLLATE \"C\"",
         [("It's", "CHECK (b > 1)"), ("ab", "UNIQUE (a, b)"), ("ba", "UNIQUE (b, a)"),
          ("f", "FOREIGN KEY (t) REFERENCES t(id)"), ("tp", "PRIMARY KEY (id)")]),
        # Subscripts of a vector begin at 0.
        ("SELECT pg_get_indexdef(s.indexrelid, s.ord + 1, true), s.attnum FROM (SELECT indexrelid, "
         "unnest(indkey) AS attnum, generate_subscripts(indkey, 1) AS ord FROM pg_index) s "
         "WHERE s.indexrelid = 'mixed'::regclass ORDER BY s.ord", [("a", 2), ("((b + 1))", 0), ("id", 1)]),
        ("SELECT a.attname, q.seqstart FROM pg_attribute a JOIN pg_sequence q ON q.seqrelid = "
         "pg_get_serial_sequence(a.attrelid::regclass::text, a.attname)::regclass::oid", [("id", 1)]),
        ("SELECT c.relname, d.description FROM pg_class c JOIN pg_description d ON d.objoid = c.oid "
         "ORDER BY d.objsubid", [("t", "a table"), ("t", "a column")]),
        ("SELECT c.conname FROM pg_constraint c JOIN pg_description d ON d.objoid = c.oid", []),
        ("SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adnum = 4", [("(a * 2)",)]),
    ],
)  # fmt: skip
def test_the_answer_is_postgresqls(
    connection: psycopg.Connection[Any], text: str, rows: list[tuple[object, ...]]
) -> None:
    assert connection.execute(text).fetchall() == rows


def test_the_class_of_a_comment_is_a_parameter(connection: psycopg.Connection[Any]) -> None:
    text = "SELECT description FROM pg_description WHERE classoid = CAST(%s AS regclass) AND objsubid = 0"
    assert connection.execute(text, ["pg_catalog.pg_class"]).fetchall() == [("a table",)]
    with pytest.raises(psycopg.errors.UndefinedTable):
        connection.execute(text, ["nowhere"])


def test_a_batch_may_insert_a_row_and_rows_that_refer_to_it(connection: psycopg.Connection[Any]) -> None:
    connection.cursor().executemany("INSERT INTO tree VALUES (%s, %s)", [(1, None), (2, 1), (3, 2)])
    assert connection.execute("SELECT count(*) FROM tree").fetchall() == [(3,)]
