"""PostgreSQL's functions and operators: its answers in functions.tsv, and ducktail's.

A line of functions.tsv has a statement, the types and the rows of PostgreSQL 15's answer. A statement in
functions_different.tsv is answered otherwise; that file has the reason, and a statement that has become equal
may not stay in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from postgres_server import postgres
from psycopg import pq
from server_process import ServerProcess

from ducktail.pgwire_gateway.catalog import rewrite

HERE = Path(__file__).parent
JSON, NUMERIC, FLOATS = (114, 3802), 1700, (700, 701)


def lines(name: str) -> list[list[str]]:
    return [line.split("\t") for line in HERE.joinpath(name).read_text("utf-8").splitlines()]


ANSWERS = {
    statement: (json.loads(types), json.loads(rows)) for statement, types, rows in lines("functions.tsv")
}
DIFFERENT = {statement: why for why, statement in lines("functions_different.tsv")}


def answer(connection: psycopg.Connection[Any], statement: str) -> Any:
    """The types and the rows as text, or the message of an error."""
    result = connection.pgconn.exec_(statement.encode())
    if result.status != pq.ExecStatus.TUPLES_OK:
        return result.error_message.decode()
    columns = range(result.nfields)
    rows = [[result.get_value(row, at) for at in columns] for row in range(result.ntuples)]
    texts = [[None if value is None else value.decode() for value in row] for row in rows]
    return [result.ftype(at) for at in columns], texts


def compared(found: Any) -> Any:
    """Rows in a form in which json without regard to spaces, and numbers by value, can be compared."""
    if isinstance(found, str):
        return found
    types, rows = found
    return [[_value(value, type_) for value, type_ in zip(row, types, strict=True)] for row in rows]


def _value(value: str | None, type_: int) -> Any:
    if value is None:
        return None
    if type_ in JSON:
        return json.loads(value)
    return Decimal(value) if type_ in (NUMERIC, *FLOATS, 20, 21, 23) else value


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[psycopg.Connection[Any]]:
    path = tmp_path_factory.mktemp("functions") / "f.duckdb"
    with ServerProcess(path) as server, server.connect() as found:
        yield found


def test_the_functions_answer_as_in_postgresql(connection: psycopg.Connection[Any]) -> None:
    wrong, equal = [], []
    for statement, there in ANSWERS.items():
        here = answer(connection, statement)
        same = compared(here) == compared(there)
        if statement in DIFFERENT:
            equal += [statement] if same else []
        elif not same:
            wrong.append(
                f"{statement}\n    there {there[1]}\n    here  {here if isinstance(here, str) else here[1]}"
            )
    assert not wrong, "\n".join(wrong)
    assert not equal, f"no longer different: {equal}"
    assert DIFFERENT.keys() <= ANSWERS.keys()


@pytest.mark.postgres
def test_the_table_has_postgresqls_answers(tmp_path: Path) -> None:
    with postgres(tmp_path) as info, psycopg.connect(info, autocommit=True) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        wrong = [
            statement for statement, there in ANSWERS.items() if answer(connection, statement) != tuple(there)
        ]
    assert not wrong


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 18, 31, 32, 33, 49, 50])
def test_any_number_of_arguments(connection: psycopg.Connection[Any], count: int) -> None:
    """Up to PostgreSQL's 100; the last ones may be NULL."""
    numbers, null = [str(number) for number in range(count)], count % 2 == 0
    values: list[Any] = [*range(1, count), None] if null and count else list(range(1, count + 1))
    texts = ["NULL" if value is None else str(value) for value in values]
    pairs = ", ".join(f"'{number}', {text}" for number, text in zip(numbers, texts, strict=True))
    for kind in ("json", "jsonb"):
        made = f"{kind}_build_array({', '.join(texts)}), {kind}_build_object({pairs})"
        assert connection.execute(f"SELECT {made}").fetchall() == [
            (values, dict(zip(numbers, values, strict=True)))
        ]
    if count > 1:
        with pytest.raises(psycopg.Error, match=r"even number|does not exist|does not support"):
            connection.execute(f"SELECT json_build_object({pairs}, 'odd')")
    if 0 < count <= 32:
        counted = f"num_nulls({', '.join(texts)}), num_nonnulls({', '.join(texts)})"
        assert connection.execute(f"SELECT {counted}").fetchall() == [(int(null), count - null)]
    if 0 < count < 32:
        path = ", ".join(["'a'"] * count)
        nested = '{"a":' * count + '"b"' + "}" * count
        found = f"jsonb_extract_path('{nested}', {path}), jsonb_extract_path_text('{nested}', {path})"
        assert connection.execute(f"SELECT {found}").fetchall() == [("b", "b")]


def test_the_sequences_of_the_catalogs_rows(connection: psycopg.Connection[Any]) -> None:
    """As SQLAlchemy asks for each column: the row has the answer, and no relation is looked up."""
    connection.execute(
        'CREATE SCHEMA odd; CREATE TABLE odd."T t" ("I d" BIGINT GENERATED ALWAYS AS IDENTITY)'
    )
    connection.execute("CREATE TABLE odd.plain (id SERIAL PRIMARY KEY, v VARCHAR)")
    sequence = "pg_get_serial_sequence(a.attrelid::regclass::text, a.attname)"
    rows = connection.execute(
        f"SELECT a.attname, {sequence}, s.seqrelid = {sequence}::regclass::oid FROM pg_attribute a "
        f"JOIN pg_class c ON c.oid = a.attrelid LEFT JOIN pg_sequence s ON s.seqrelid = {sequence}::regclass "
        "WHERE c.relkind = 'r' AND c.relnamespace = 'odd'::regnamespace ORDER BY 1"
    ).fetchall()
    assert rows == [
        ("I d", 'odd."T t_I d_seq"', True), ("id", "odd.plain_id_seq", True), ("v", None, None),
    ]  # fmt: skip
    assert "sequences()" not in rewrite(f"SELECT {sequence} FROM pg_attribute a")


def test_a_captured_write_may_call_them(connection: psycopg.Connection[Any]) -> None:
    connection.execute("CREATE TABLE shown (id INTEGER PRIMARY KEY, moment TIMESTAMP, shown VARCHAR)")
    connection.execute("CREATE STREAM shown_stream ON shown")
    connection.execute(
        "INSERT INTO shown VALUES (1, '2024-03-05', btrim(' a ')), (2, '2025-03-05', initcap('b'))"
    )
    update = "UPDATE shown SET shown = to_char(moment, 'YYYY-MM') WHERE to_char(moment, 'YYYY') = %s "
    update += "RETURNING shown"
    assert connection.execute(update, ["2024"]).fetchall() == [("2024-03",)]
    connection.execute("UPDATE shown SET shown = clock_timestamp()::VARCHAR WHERE id = 2")
    connection.execute("DELETE FROM shown WHERE date_bin('1 day', moment, moment) = moment AND id = 1")
    (text,) = connection.execute("SELECT shown FROM shown").fetchall()[0]
    rows = connection.execute("SELECT op, after->>'shown' FROM STREAM shown_stream AFTER 0").fetchall()
    assert rows == [
        ("insert", "a"), ("insert", "B"), ("update", "2024-03"), ("update", text), ("delete", None),
    ]  # fmt: skip


def test_they_are_stored_in_views_only(connection: psycopg.Connection[Any]) -> None:
    connection.execute("CREATE VIEW months AS SELECT to_char(DATE '2024-03-05', 'FMMonth') AS month")
    assert connection.execute("SELECT month FROM months").fetchall() == [("March",)]
    for definition in (
        "CREATE TABLE kept (a INTEGER, b VARCHAR DEFAULT to_char(now(), 'YYYY'))",
        "CREATE TABLE kept (a VARCHAR CHECK (btrim(a) <> ''))",
    ):
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            connection.execute(definition)


def test_a_macro_of_the_users_comes_first(connection: psycopg.Connection[Any]) -> None:
    connection.execute("CREATE MACRO initcap(z) AS 'mine'")
    assert connection.execute("SELECT initcap('x')").fetchall() == [("mine",)]
    connection.execute("DROP MACRO initcap")
    assert connection.execute("SELECT initcap('x')").fetchall() == [("X",)]


def test_the_search_path_does_not_show_them(connection: psycopg.Connection[Any]) -> None:
    connection.execute("CREATE SCHEMA app")
    connection.execute("SET search_path = app, main")
    assert connection.execute("SELECT btrim(' a '), current_schemas(false)").fetchall() == [
        ("a", ["app", "main"])
    ]
    assert connection.execute("SHOW search_path").fetchall() == [("app, main",)]
    connection.execute("RESET search_path")
    assert connection.execute("SELECT btrim(' a '), current_schemas(false)").fetchall() == [("a", ["main"])]


def test_pg_sleep_ends_with_statement_timeout(connection: psycopg.Connection[Any]) -> None:
    connection.execute("SET statement_timeout = 50")
    with pytest.raises(psycopg.errors.QueryCanceled):
        connection.execute("SELECT pg_sleep(60)")
    connection.execute("RESET statement_timeout")
    assert connection.execute("SELECT pg_sleep(0)").fetchall() == [("",)]
