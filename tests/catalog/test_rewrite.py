"""The rewriter by itself: what it leaves alone, and what it makes of a text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import pytest

from ducktail.engine.errors import InsufficientPrivilege
from ducktail.pgwire_gateway.catalog import respelt, rewrite, shown_names


@pytest.fixture
def home(shared_home: Any) -> Iterator[Any]:
    """A database with a few objects, of several tests."""
    yield shared_home
    shared_home.cursor.execute("RESET search_path")


UNTOUCHED = [
    "SELECT * FROM orders WHERE id = $1",
    "INSERT INTO names SELECT relname FROM pg_class",
    "UPDATE t SET a = 'pg_class'",
    "CREATE VIEW v AS SELECT version()",
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
    ("text", "rewritten"),
    [
        ("INSERT INTO orders VALUES (1, current_user)", "INSERT INTO orders VALUES (1, {user})"),
        ("CREATE TABLE t (a VARCHAR DEFAULT current_user)", "CREATE TABLE t (a VARCHAR DEFAULT {user})"),
        ("UPDATE t SET a = t.session_user, b = current_role", "UPDATE t SET a = t.session_user, b = {user}"),
        ("CREATE VIEW v AS SELECT pg_catalog.lower(a) FROM t", "CREATE VIEW v AS SELECT lower(a) FROM t"),
    ],
)
def test_a_write_names_nothing_of_the_catalog(text: str, rewritten: str) -> None:
    user = "coalesce(getvariable('__ducktail_user')::VARCHAR, 'ducktail')"
    assert rewrite(text) == rewritten.format(user=user)


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
        ("SELECT current_setting('block_size')::int / 100, oid::float8 / 2 FROM pg_am WHERE oid = 2",
         [(81, 1.0)]),
        ("WITH pg_class AS (SELECT 1 AS mine) SELECT mine FROM pg_class", [(1,)]),
    ],
)  # fmt: skip
def test_postgresql_s_spellings(ask: Callable[..., Any], text: str, rows: list[Any]) -> None:
    assert ask(text) == rows


def test_it_is_quick(home: Any) -> None:
    home.ask("SELECT oid FROM pg_class")
    ordinary, known = "SELECT a, b FROM orders WHERE id = 1", "SELECT relname FROM pg_class WHERE oid = 1"
    rewrite(known)
    began = time.thread_time()  # CPU of this thread: others may have the machine
    for _ in range(100):
        rewrite(ordinary)
        rewrite(known)
    assert (time.thread_time() - began) / 200 < 100e-6
    began = time.thread_time()
    for at in range(10):
        rewrite(f"SELECT c.relname, n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = {at}")
    assert (time.thread_time() - began) / 10 < 50e-3


@pytest.mark.parametrize(
    ("text", "spelt"),
    [
        (r"SELECT '\x00ff'::bytea", r"SELECT '\x00\xFF'::bytea"),
        (r"INSERT INTO t VALUES (E'\\xC3'::bytea, CAST('\x0102' AS bytea), bytea '\x03')",
         r"INSERT INTO t VALUES ('\xC3'::bytea, CAST('\x01\x02' AS bytea), bytea '\x03')"),
        (r"SELECT '\x00ff'::blob, 'abc'::bytea, '\x0'::bytea, '\400'::bytea, '\x61\x62'::bytea", None),
        (r"SELECT '\001\\''a'::bytea, 'é'::bytea, '{\\001,a}'::bytea[]",
         r"SELECT '\x01\x5C\x27\x61'::bytea, '\xC3\xA9'::bytea, ['\x01', 'a']::bytea[]"),
        ("UPDATE t SET j = $1::jsonb, k = CAST(x AS JSONB)",
         "UPDATE t SET j = $1::JSON, k = CAST(x AS JSON)"),
        ("SELECT jsonb FROM t", None),
        ("SELECT '{}'::int[], '{a,\"b c\",NULL}'::varchar(3)[], '{{1},{2}}'::int[][]",
         "SELECT []::int[], ['a', 'b c', NULL]::varchar(3)[], [['1'], ['2']]::int[][]"),
        ("SELECT a = ANY('{1,-2}'), b = ANY(('{\"a b\",2}'))",
         "SELECT a = ANY([1, -2]), b = ANY((['a b', 2]))"),
        ("SELECT ('2026-01-02 +00')::date, '2026-01-02'::date",
         "SELECT ('2026-01-02')::date, '2026-01-02'::date"),
        ("SELECT '{}'::json, a['x'], '[1]'::int[]", None),
        ("TRUNCATE TABLE ONLY app.t", "TRUNCATE TABLE app.t"),
        ('TRUNCATE ONLY "t"', 'TRUNCATE "t"'),
        ("TRUNCATE only", None),
        ('CREATE LOCAL TEMPORARY TABLE "#x" (a INTEGER)', 'CREATE TEMPORARY TABLE "#x" (a INTEGER)'),
        ("create or replace global temp table x (a INTEGER)", "create or replace temp table x (a INTEGER)"),
        ("SELECT 'local temp' AS local", None),
    ],
)  # fmt: skip
def test_postgresql_s_literals(text: str, spelt: str | None) -> None:
    assert rewrite(text) == (text if spelt is None else spelt)


@pytest.mark.parametrize(
    ("text", "names", "shown"),
    [
        ("SELECT 1, 'a', NULL", ["1", "'a'", "NULL"], ["?column?"] * 3),
        ("WITH x AS (SELECT count(*) FROM t) SELECT max(a), sum(b) FILTER (c) FROM x",
         ["max(a)", "sum(b)"], ["max", "sum"]),
        ("SELECT DISTINCT upper(a), a::int, $1::date FROM STREAM s CONSUMER GROUP g",
         ["upper(a)", "a", "CAST"], ["upper", "a", "date"]),
        ("SELECT CASE WHEN a THEN 1 END, (SELECT 1 AS x), a b, \"c(\" FROM t", ["CASE", "x", "b", "c("],
         ["case", "x", "b", "c("]),
        ("SELECT *, count(*) OVER () FROM t", ["a", "b", "count_star()"],
         ["a", "b", "count"]),
        ("SELECT now(), date_trunc('day', x), x IS DISTINCT FROM 1, true, interval '1 day', x ~ 'a', 2 ^ 3",
         ["now()", "date_trunc('day', x)", "(x IS DISTINCT FROM 1)", "CAST", "1 day", "(x ~ 'a')", "(2 ^ 3)"],
         ["now", "date_trunc", "?column?", "?column?", "interval", "?column?", "?column?"]),
        ("VALUES (1, 2)", ["col0", "col1"], ["column1", "column2"]),
        ("SELECT struct_pack(a := 1) FROM t", ["struct_pack(a := 1)"], ["struct_pack"]),
        ("SELECT ducktail.partition_of('t', 1), (s).\"B c\" FROM t",
         ["main.partition_of('t', 1)", "B c"], ["partition_of", "B c"]),
        ("FROM t SELECT count(*)", ["count_star()"], ["count_star()"]),
        ("INSERT INTO t SELECT 1 FROM u RETURNING a, upper(b)", ["a", "upper(b)"], ["a", "upper"]),
        ("SELECT a, b FROM t", ["a", "b"], ["a", "b"]),
        ("SELECT 'open", ["'open"], ["'open"]),
    ],
)  # fmt: skip
def test_columns_without_a_name_have_postgresql_s(text: str, names: list[str], shown: list[str]) -> None:
    assert list(shown_names(text, names)) == shown


@pytest.mark.parametrize(
    ("text", "types"),
    [
        ("SELECT oid, relname, relkind, relacl, reltuples, relnatts FROM pg_class",
         ["oid", "name", "char", "_aclitem", "float4", "int2"]),
        ("SELECT indkey, indkey[0], typinput, oid::regclass, proargnames FROM pg_index, pg_type, pg_proc",
         ["int2vector", "int2", "regproc", "regclass", "_text"]),
        ("SELECT n.nspname, c.* FROM pg_namespace n JOIN pg_am c ON true",
         ["name", "oid", "name", "regproc", "char"]),
        ("SELECT 1, 'a', NULL, true, count(*), max(relname), array_agg(oid) FROM pg_class",
         ["int4", "text", "text", "bool", "int8", "text", "_oid"]),
        ("SELECT CASE relkind WHEN 'r' THEN 'x' ELSE relname END, coalesce(oid, 0), -relnatts FROM pg_class",
         ["name", "oid", "int2"]),
        ("SELECT relname FROM pg_class UNION ALL SELECT 'x'::text", ["name"]),
        ("WITH RECURSIVE t(a, b) AS (SELECT oid, 0 FROM pg_am UNION ALL SELECT a, b + 1 FROM t WHERE b < 3) "
         "SELECT * FROM t", ["oid", "int4"]),
        ("SELECT s.x, s.n, pg_backend_pid(), current_schemas(true), pg_get_userbyid(10) FROM "
         "(SELECT format_type(oid, -1) AS x, (SELECT nspname FROM pg_namespace LIMIT 1) AS n FROM pg_type) s",
         ["text", "name", "int4", "_name", "name"]),
        ("SELECT column_name, ordinal_position, is_nullable, data_type FROM information_schema.columns",
         ["name", "int4", "varchar", "varchar"]),
        ("SELECT x.mine FROM pg_am, mine x", [None]),
    ],
)  # fmt: skip
def test_columns_have_postgresql_s_types(text: str, types: list[str | None]) -> None:
    assert list(respelt(text).types) == types


def test_parameters_have_the_types_that_they_are_cast_to() -> None:
    text = "SELECT $1::oid[], $2::int4, $3::regclass, $4, $5::text FROM pg_class WHERE relkind = ANY($6)"
    assert respelt(text).parameters == (1028, 23, 25, 0, 25, 0)


NAMES = ["app.orders", '"app"."orders"', '"app" . "orders"', " APP.Orders ", "orders"]


@pytest.mark.parametrize("name", NAMES)
def test_names_are_read_as_postgresql_reads_them(home: Any, name: str) -> None:
    home.cursor.execute("SET search_path = 'app'")
    same = "SELECT $1::regclass::oid = 'app.orders'::regclass::oid FROM pg_am LIMIT 1"
    assert home.ask(same, [name]) == [(True,)]


def test_set_config_among_others_answers_what_is_set_already(ask: Callable[..., Any]) -> None:
    assert ask("SELECT 1, set_config('block_size', '8192', false)") == [(1, "8192")]
    for name, message in (("block_size", "use SET"), ("no.such", "unrecognized")):
        with pytest.raises(duckdb.InvalidInputException, match=message):
            ask(f"SELECT 1, set_config('{name}', '1', false)")


@pytest.mark.parametrize(
    "text",
    [
        "ALTER TYPE name ADD VALUE 'x'", "CREATE TYPE name AS ENUM ('a')", "ALTER TABLE t ADD name VARCHAR",
        "CREATE TABLE t (id INT, name VARCHAR, CONSTRAINT name UNIQUE (name))",
        "CREATE INDEX name ON t (name)", "ALTER TABLE t ADD COLUMN name VARCHAR",
        "ALTER TABLE IF EXISTS name RENAME COLUMN name TO names",
        "CREATE VIEW v AS SELECT name AS name, b name FROM t", "CREATE STREAM name ON t", "SELECT name 'x'",
    ],
)  # fmt: skip
def test_a_name_that_is_no_type_stays(text: str) -> None:
    assert rewrite(text) == text


def test_the_type_name() -> None:
    text = 'CREATE TABLE name (name name, b "name"[], s STRUCT(name name), c INT DEFAULT 1)'
    assert rewrite(text) == text.replace(" name,", " VARCHAR,").replace('"name"', "VARCHAR").replace(
        " name)", " VARCHAR)"
    )
    assert rewrite("ALTER TABLE t ADD COLUMN a name") == "ALTER TABLE t ADD COLUMN a VARCHAR"
    assert rewrite("INSERT INTO t SELECT CAST(a AS name) FROM name") == (
        "INSERT INTO t SELECT CAST(a AS VARCHAR) FROM name"
    )
