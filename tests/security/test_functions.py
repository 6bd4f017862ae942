"""The functions that everybody may call, against those that this DuckDB has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from server_process import ServerProcess

import ducktail
from ducktail.pgwire_gateway.catalog import postgres_functions
from ducktail.sql.rights import functions

LISTED = "SELECT DISTINCT lower(function_name) FROM duckdb_functions() WHERE internal AND function_type "
# What the parser makes of syntax, and DuckDB does not list.
OF_THE_PARSER = {"unnest", "->"}


@pytest.fixture(scope="module")
def database() -> Iterator[ducktail.Connection]:
    with ducktail.connect(":memory:") as connection:
        yield connection


def names(database: ducktail.Connection, kinds: str) -> set[str]:
    found = database.execute(LISTED + kinds).fetchall()
    return {name for (name,) in found if not functions.is_internal(name)}


def test_every_function_was_looked_at(database: ducktail.Connection) -> None:
    there = names(database, "NOT IN ('table', 'table_macro', 'pragma')") | OF_THE_PARSER
    looked_at = (functions.FUNCTIONS - functions.POSTGRES_MACROS) | functions.REFUSED
    assert sorted(there - looked_at) == [], "new in this DuckDB: list each in sql/rights/functions.py"
    assert sorted(looked_at - there) == [], "gone from this DuckDB"
    assert not functions.FUNCTIONS & functions.REFUSED


def test_every_table_function_was_looked_at(database: ducktail.Connection) -> None:
    there = names(database, "IN ('table', 'table_macro')")
    looked_at = functions.TABLE_FUNCTIONS | functions.REFUSED_TABLE_FUNCTIONS
    assert sorted(there - looked_at) == [], "new in this DuckDB: list each in sql/rights/functions.py"
    assert sorted(looked_at - there) == [], "gone from this DuckDB"
    assert not functions.TABLE_FUNCTIONS & functions.REFUSED_TABLE_FUNCTIONS


def test_no_word_of_syntax_is_a_function_that_is_refused() -> None:
    calls_nothing = functions.SYNTAX - functions.DEFINITION_FUNCTIONS
    assert not calls_nothing & (functions.REFUSED | functions.SESSION_FUNCTIONS)


def test_no_word_of_syntax_is_a_function_that_is_not_listed(database: ducktail.Connection) -> None:
    there = names(database, "NOT IN ('table', 'table_macro', 'pragma')")
    assert functions.SYNTAX & there <= functions.DEFINITION_FUNCTIONS


SETUP = """
CREATE USER ann PASSWORD 'x' SUPERUSER;
CREATE USER eve PASSWORD 'x';
CREATE USER bob PASSWORD 'x';
CREATE SCHEMA eves;
GRANT CREATE ON SCHEMA eves TO eve;
CREATE SCHEMA enum;
GRANT CREATE ON SCHEMA enum TO eve;
CREATE TABLE hidden (v TEXT);
INSERT INTO hidden VALUES ('hidden label');
CREATE MACRO plus_one(a) AS a + 1;
CREATE MACRO telling() AS getvariable('secret');
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Tests leave it as it was, but for the tables of schema eves."""
    with ServerProcess(tmp_path_factory.mktemp("functions") / "shop.duckdb") as started:
        with started.connect() as first:
            for statement in filter(str.strip, SETUP.split(";")):
                first.execute(statement)
        with started.connect(user="eve", password="x") as eve:
            eve.execute("CREATE TABLE eves.mine (id INT PRIMARY KEY, v TEXT)")
        yield started


def sqlstate(connection: psycopg.Connection[Any], statement: str) -> str | None:
    """The SQLSTATE of a statement that must fail."""
    with pytest.raises(psycopg.Error) as error:
        connection.execute(statement)
    return error.value.diag.sqlstate


# The catalog for clients has these in a form of its own.
FOR_CLIENTS = {*functions.REFUSED_FOR["reads the catalog"].split(), "current_setting"} - {"in_search_path"}


@pytest.mark.parametrize("name", sorted(functions.REFUSED - FOR_CLIENTS))
def test_a_function_that_is_not_listed_is_refused(eve: psycopg.Connection[Any], name: str) -> None:
    assert sqlstate(eve, f"SELECT {name}(1)") == "42501"


def test_a_function_that_duckdb_does_not_have_is_missing(eve: psycopg.Connection[Any]) -> None:
    assert sqlstate(eve, "SELECT no_such_function(1)") == "42883"
    assert sqlstate(eve, "ALTER TABLE eves.mine ALTER v SET DEFAULT no_such_function(1)") == "42883"


def test_syntax_that_becomes_calls_is_allowed(eve: psycopg.Connection[Any]) -> None:
    eve.execute(
        "SELECT [1, 2][1], {'a': 1}.a, MAP {'a': 1}['a'], ROW(1, 2), [x + 1 FOR x IN [1] IF x > 0], "
        "'a' LIKE 'b' ESCAPE '$', 'a' NOT ILIKE 'b', 'a' SIMILAR TO 'b', 'a' ~ 'b', 'a' GLOB 'b', "
        "EXTRACT(year FROM now()), SUBSTRING('abc' FROM 1 FOR 2), POSITION('a' IN 'b'), "
        "TRIM(BOTH 'x' FROM 'x'), now() AT TIME ZONE 'UTC', INTERVAL '1' DAY, INTERVAL 3 YEARS, 4 ** 2, "
        "1 = ANY([1, 2]), ARRAY(SELECT 1), current_date, current_timestamp, current_user, TRY(1 / 0), "
        "CASE 1 WHEN 2 THEN 3 END, 1 BETWEEN 0 AND 2, 1 IS DISTINCT FROM 2, COALESCE(NULL, 1), NULLIF(1, 2), "
        "'{\"a\": 1}'::JSON->>'a', 'a' || 'b', getvariable('x'), plus_one(1)"
    )
    eve.execute(
        "SELECT count(*), string_agg(v, ',' ORDER BY id), percentile_cont(0.5) WITHIN GROUP (ORDER BY id), "
        "sum(id) FILTER (WHERE id > 1), GROUPING(v) FROM eves.mine GROUP BY ROLLUP (v)"
    )
    eve.execute("SELECT lag(id IGNORE NULLS) OVER (ORDER BY v) FROM eves.mine")
    eve.execute("SELECT v COLLATE de_at FROM eves.mine ORDER BY v COLLATE NOCASE.NOACCENT")


DEFINITIONS = [
    "CREATE TABLE eves.t (id INT, v VARCHAR DEFAULT {})",
    "CREATE TABLE eves.t (id INT, v VARCHAR DEFAULT upper(({})::VARCHAR))",
    "CREATE OR REPLACE TABLE eves.t (id INT, v VARCHAR DEFAULT {})",
    "CREATE TEMP TABLE t (id INT, v VARCHAR DEFAULT {})",
    "ALTER TABLE eves.mine ADD COLUMN w VARCHAR DEFAULT {}",
    "ALTER TABLE eves.mine ALTER v SET DEFAULT {}",
]
# Columns may stand there, so that a name alone is one.
WITH_COLUMNS = [
    "CREATE TABLE eves.t (id INT, CHECK ({} IS NOT NULL))",
    "CREATE TABLE eves.t (id INT, v VARCHAR GENERATED ALWAYS AS ({}))",
    "CREATE INDEX i ON eves.mine (({}))",
    "ALTER TABLE eves.mine ALTER v TYPE VARCHAR USING {}",
    "CREATE STREAM eves.s ON eves.mine WHERE {} IS NULL",
]
CALLS = [
    "getvariable('secret')",
    "\"getvariable\" /* */ ('secret')",
    "'secret'.getvariable()",
    "current_query()",
    "main.current_query()",
    "current_user()",
    "telling()",
    "txid_current()",
    "current_schema()",
]
NAMES = ["current_user", "CURRENT_SCHEMA", "session_user", '"user"', "(current_role)"]


@pytest.mark.parametrize(
    ("definition", "call"),
    [
        *((definition, call) for definition in DEFINITIONS + WITH_COLUMNS for call in CALLS),
        *((definition, name) for definition in DEFINITIONS for name in NAMES),
    ],
)
def test_a_definition_tells_nothing_of_the_sessions_that_run_it(
    eve: psycopg.Connection[Any], definition: str, call: str
) -> None:
    assert sqlstate(eve, definition.format(call)) == "42501"


def test_a_definition_may_call_what_depends_on_no_session(eve: psycopg.Connection[Any]) -> None:
    eve.execute(
        "CREATE TABLE eves.plain (id INT DEFAULT plus_one(1) CHECK (id IN (1, 2) OR id BETWEEN (3) AND (4)), "
        "price DECIMAL(10, 2), b INT AS (id + 1), made TIMESTAMPTZ DEFAULT now(), user VARCHAR DEFAULT 'x' "
        "CHECK (user <> 'y'), kind ENUM('a', 'b') DEFAULT CAST('a' AS ENUM('a', 'b')), UNIQUE (price))"
    )
    eve.execute("INSERT INTO eves.plain (price) VALUES (1)")
    assert eve.execute("SELECT id, b FROM eves.plain").fetchall() == [(2, 3)]
    eve.execute("DROP TABLE eves.plain")


def test_the_query_of_a_definition_is_a_query(eve: psycopg.Connection[Any]) -> None:
    eve.execute("CREATE TABLE eves.t AS WITH w(a, b) AS (SELECT getvariable('x'), 2) SELECT a FROM w")
    eve.execute("DROP TABLE eves.t")
    eve.execute("CREATE VIEW eves.t AS SELECT getvariable('x') AS x")
    eve.execute("DROP VIEW eves.t")


def test_labels_are_judged_in_a_schema_called_enum(eve: psycopg.Connection[Any]) -> None:
    assert sqlstate(eve, "CREATE TYPE enum.labels AS ENUM (SELECT v FROM hidden)") == "42P01"


def test_the_listed_macros_are_those_of_the_wire() -> None:
    # pg_sleep blocks a thread, and the macros that others call are no functions of PostgreSQL.
    listed = functions.POSTGRES_MACROS | functions.POSTGRES_TABLE_MACROS
    assert listed <= postgres_functions.names()
    assert {head.partition("(")[0] for head in postgres_functions.TABLES} == functions.POSTGRES_TABLE_MACROS
    assert not functions.POSTGRES_MACROS & functions.REFUSED
