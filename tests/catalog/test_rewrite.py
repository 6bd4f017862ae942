"""The rewriter by itself: what it leaves alone, and what it makes of a text."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from ducktail.engine.errors import InsufficientPrivilege
from ducktail.pgwire_gateway.catalog import rewrite

UNTOUCHED = [
    "SELECT * FROM orders WHERE id = $1",
    "INSERT INTO orders VALUES (1, current_user)",
    "INSERT INTO names SELECT relname FROM pg_class",
    "UPDATE t SET a = 'pg_class'",
    "CREATE VIEW v AS SELECT version()",
    "CREATE TABLE t (a VARCHAR DEFAULT current_user)",
    "WITH x AS (INSERT INTO t VALUES (1) RETURNING *) SELECT version() FROM x",
    "SELECT 'version()', 'pg_class' -- pg_class",
    'SELECT "version" FROM pg_stuff',
    "SELECT * EXCLUDE (a) FROM pg_stuff",
    "SELECT t.current_user, 1 AS session_user FROM t",
    "FROM orders SELECT array_to_string(tags, ',')",
    "SELECT array_to_string(tags, ',') FROM orders",
    "SELECT 'open",
    "SELECT 1; SELECT version()",
    "SELECT * FROM STREAM orders_stream LIMIT 10",
    "",
]


@pytest.mark.parametrize("text", UNTOUCHED)
def test_ordinary_sql_is_not_touched(text: str) -> None:
    assert rewrite(text) == text


@pytest.mark.parametrize(
    "text",
    ["DROP SCHEMA __ducktail_pg.pg CASCADE", 'USE "__DUCKTAIL_pg"', "SELECT __ducktail_pg.pg.version()",
     f"SELECT '{'x' * 70_000}' FROM __ducktail_pg.pg.fixed_types"],
)  # fmt: skip
def test_our_own_database_is_not_for_clients(text: str) -> None:
    with pytest.raises(InsufficientPrivilege):
        rewrite(text)
    assert rewrite("SELECT '__ducktail_pg'") == "SELECT '__ducktail_pg'"


def test_a_long_text_is_not_looked_at() -> None:
    text = f"SELECT '{'x' * 70_000}', version()"
    assert rewrite(text) is text


def test_only_the_name_of_a_function_changes_in_ordinary_sql() -> None:
    text = "SELECT  version() ,*  EXCLUDE (b) FROM STREAM s -- as it was\n WHERE a = current_user"
    home = "__ducktail_pg.pg"
    assert rewrite(text) == (
        f'SELECT  {home}.version() AS "version" ,*  EXCLUDE (b) FROM STREAM s -- as it was\n'
        f" WHERE a = {home}.current_user()"
    )


def test_a_session_s_temporary_schema_has_duckdb_s_name() -> None:
    assert rewrite("SELECT * FROM pg_temp.t") == "SELECT * FROM temp.t"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("SELECT version(), current_user, pg_backend_pid() AS pid", ["version", "current_user", "pid"]),
        ("SELECT current_schema, 1 FROM pg_am", ["current_schema", "?column?"]),
        ("SELECT c.relname::text, c.oid::regclass FROM pg_class c", ["relname", "oid"]),
        ("SELECT CASE WHEN true THEN 'x' ELSE relkind END, CASE 1 WHEN 2 THEN 3 END FROM pg_class",
         ["relkind", "case"]),
        ("SELECT count(*), max(relname) AS Last FROM pg_class", ["count", "last"]),
        ("SELECT 'pg_class'::regclass::oid, ARRAY[1], (SELECT amname FROM pg_am LIMIT 1)",
         ["oid", "array", "amname"]),
        ("SELECT s.max FROM (SELECT max(oid) FROM pg_class) s", ["max"]),
    ],
)  # fmt: skip
def test_columns_have_postgresql_s_names(home: Any, text: str, names: list[str]) -> None:
    assert home.names(text) == names


def test_a_parameter_that_says_nothing_stays_one(ask: Callable[..., Any]) -> None:
    text = "SELECT pg_get_constraintdef(oid, $1) FROM pg_constraint WHERE contype = $2 AND conname LIKE $3"
    assert ask(text, [True, "c", "orders%"]) == [("CHECK (amount >= 0)",)]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        # PostgreSQL's ~ looks for a part, DuckDB's for the whole.
        ("SELECT relname FROM pg_catalog.pg_class WHERE relname OPERATOR(pg_catalog.~) 'rder' "
         "COLLATE pg_catalog.default AND relkind = 'r'", [("orders",)]),
        ("SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|info|duck)' AND nspname ~* 'MA'",
         [("main",)]),
        # A backslash escapes in LIKE, unless told otherwise.
        (r"SELECT nspname FROM pg_namespace WHERE nspname LIKE 'pg\_c%'", [("pg_catalog",)]),
        ("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'pg#_c%' ESCAPE '#'", [("pg_catalog",)]),
        (r"SELECT nspname FROM pg_namespace WHERE nspname LIKE E'pg\\_c%'", [("pg_catalog",)]),
        ("SELECT relname FROM pg_class WHERE oid = 'app.orders'::regclass", [("orders",)]),
        ("SELECT 'app.orders'::regclass", [("app.orders",)]),
        ("SELECT 'pg_class'::regclass::oid, 1259::regclass::text", [(1259, "pg_class")]),
        ("SELECT '\"Odd \"\"name\"'::regclass", [('"Odd ""name"',)]),
        ("SELECT to_regclass('nowhere'), to_regtype('int4'), 'text'::regtype::oid", [(None, 23, 25)]),
        ("SELECT typname::text FROM pg_type WHERE oid = ANY ('{16,20}'::oid[]) ORDER BY 1",
         [("bool",), ("int8",)]),
        ("SELECT attname FROM pg_attribute WHERE attrelid = 'app.orders'::regclass AND attnum = ANY "
         "((SELECT conkey FROM pg_constraint WHERE contype = 'f')::int2[])", [("customer_id",)]),
        ("SELECT x FROM pg_am, pg_catalog.unnest(ARRAY[5]) x LIMIT 1", [(5,)]),
        ("SELECT s FROM pg_am, generate_series(1, 2) s WHERE amname = 'art'", [(1,), (2,)]),
        ("SELECT relname FROM pg_class WHERE tableoid = 1259 AND oid = 1259", [("pg_class",)]),
        ("SELECT format('%I.%s is 100%%', relname, relkind) FROM pg_class WHERE relname LIKE 'Odd%name' "
         "AND relkind = 'r'", [('"Odd ""name".r is 100%',)]),
        ("WITH pg_class AS (SELECT 1 AS mine) SELECT mine FROM pg_class", [(1,)]),
    ],
)  # fmt: skip
def test_postgresql_s_spellings(ask: Callable[..., Any], text: str, rows: list[Any]) -> None:
    assert ask(text) == rows


def test_it_is_quick(home: Any) -> None:
    home.ask("SELECT oid FROM pg_class")
    ordinary, known = "SELECT a, b FROM orders WHERE id = 1", "SELECT relname FROM pg_class WHERE oid = 1"
    rewrite(known)
    began = time.perf_counter()
    for _ in range(100):
        rewrite(ordinary)
        rewrite(known)
    assert (time.perf_counter() - began) / 200 < 100e-6
    began = time.perf_counter()
    for at in range(10):
        rewrite(f"SELECT c.relname, n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = {at}")
    assert (time.perf_counter() - began) / 10 < 50e-3
