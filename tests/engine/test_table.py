"""What read_shape finds in DuckDB's catalog, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest
from local_client import Client

from ducktail.engine.database import Database
from ducktail.engine.duck.table_shape import Column, read_shape
from ducktail.engine.errors import NotSupported, UndefinedTable
from ducktail.engine.quoting import ident, literal


@pytest.fixture
def cursor() -> Iterator[duckdb.DuckDBPyConnection]:
    connection = duckdb.connect(":memory:")
    yield connection
    connection.close()


def test_columns_keys_and_unique_sets(cursor: duckdb.DuckDBPyConnection) -> None:
    cursor.execute(
        "create table t(b varchar not null default 'x', a int, v decimal(10,2) unique, "
        "g int generated always as (a * 2), primary key (b, a))"
    )
    cursor.execute("create unique index u on t(V, A)")
    cursor.execute("create index plain on t(v)")
    shape = read_shape(cursor, "MAIN", "T")
    assert (shape.schema, shape.name, shape.qualified) == ("main", "t", '"main"."t"')
    assert shape.stored == (
        Column("b", "VARCHAR", "'x'", True),
        Column("a", "INTEGER", None, True),
        Column("v", "DECIMAL(10,2)", None, False),
    )
    assert shape.generated == (("g", "INTEGER", "CAST((a * 2) AS INTEGER)"),)
    assert shape.column_order == ("b", "a", "v", "g")
    assert shape.primary_key == ("b", "a")
    assert set(shape.unique) == {("b", "a"), ("v",), ("v", "a")}
    assert not shape.unique_expressions
    assert shape.position("A") == 1
    assert shape.position("g") is None


def test_unique_index_on_an_expression(cursor: duckdb.DuckDBPyConnection) -> None:
    cursor.execute("create table t(a varchar, b int)")
    cursor.execute("create unique index u on t(lower(a), b)")
    shape = read_shape(cursor, "main", "t")
    assert shape.unique == ()
    assert shape.unique_expressions


@pytest.mark.parametrize("name", ["a.b", 'say "x"', "ünï;--", "select", "excluded", "n1", "o1", "a b", "lsn"])
def test_odd_names(cursor: duckdb.DuckDBPyConnection, name: str) -> None:
    quoted = ident(name)
    cursor.execute(f"create schema {quoted}")
    cursor.execute(f"create table {quoted}.{quoted}({quoted} int primary key, more int)")
    cursor.execute(f"create unique index u on {quoted}.{quoted}({quoted}, more)")
    shape = read_shape(cursor, name, name)
    assert (shape.schema, shape.name, shape.primary_key) == (name, name, (name,))
    assert shape.unique == ((name,), (name, "more"))
    assert cursor.execute(f"select count(*) from {shape.qualified}").fetchall() == [(0,)]


@pytest.mark.parametrize(
    ("ddl", "name", "words"),
    [
        ("create view x as select 1 as a", "x", "a view"),
        ("create temp table x(a int)", "x", "a temporary table"),
        ("attach ':memory:' as elsewhere; create table elsewhere.x(a int)", "x", "an attached table"),
        ('create table x(a int, "RowId" int)', "x", "hides the row id"),
        ("create table x(a int, __ducktail_v int)", "x", "__ducktail_v"),
    ],
)
def test_refused(cursor: duckdb.DuckDBPyConnection, ddl: str, name: str, words: str) -> None:
    cursor.execute(ddl)
    with pytest.raises(NotSupported, match=words) as caught:
        read_shape(cursor, "main", name)
    assert caught.value.hint


def test_a_temporary_table_does_not_hide_the_base_table(cursor: duckdb.DuckDBPyConnection) -> None:
    cursor.execute("create table x(a int primary key)")
    cursor.execute("create temp table x(b int)")
    assert read_shape(cursor, "main", "x").primary_key == ("a",)


def test_no_such_table(cursor: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(UndefinedTable, match=r'table "main.nope" does not exist'):
        read_shape(cursor, "main", "nope")


def test_quoting(cursor: duckdb.DuckDBPyConnection) -> None:
    odd = 'it\'s "a" \\ ; -- \n $$ /* é'
    assert cursor.execute(f"select {literal(odd)} as {ident(odd)}").fetchall() == [(odd,)]
    assert cursor.execute(f"select 1 as {ident(odd)}").description[0][0] == odd


@pytest.mark.parametrize("on", ["t", "ALL TABLES IN SCHEMA main"])
def test_a_constraint_may_spell_its_columns_in_other_letters(on: str) -> None:
    database = Database.open(":memory:")
    client = Client(database)
    if on != "t":
        client(f"CREATE STREAM s ON {on}")
    client("CREATE TABLE t (id INT, vAl TEXT, PRIMARY KEY (ID), UNIQUE (VaL))")
    if on == "t":
        client(f"CREATE STREAM s ON {on}")
    client("INSERT INTO t VALUES (1, 'x')")
    client("INSERT INTO t VALUES (1, 'y') ON CONFLICT (Id) DO UPDATE SET VAL = excluded.val")
    rows = client("SELECT op, key, after FROM STREAM s WHERE op <> 'schema'")
    assert rows == [
        ("insert", '{"id":1}', '{"id":1,"vAl":"x"}'),
        ("update", '{"id":1}', '{"id":1,"vAl":"y"}'),
    ]
    client.close()
    database.close()
