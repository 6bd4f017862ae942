"""Every DuckDB type as a Python value, beside what DuckDB's own client has for it."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

import duckdb
import pytest

import ducktail
from ducktail.sql.pipeline.long_lists import ELEMENTS_MAX

VALUES = [
    "NULL",
    "true",
    *("(-128)::TINYINT", "1::SMALLINT", "1::INTEGER", "9223372036854775807::BIGINT"),
    *("1::UTINYINT", "1::USMALLINT", "1::UINTEGER", "18446744073709551615::UBIGINT"),
    "(-170141183460469231731687303715884105727)::HUGEINT",
    "340282366920938463463374607431768211455::UHUGEINT",
    "123456789012345678901234567890123456789012345678901234567890::BIGNUM",
    *("0.1::FLOAT", "'-Infinity'::DOUBLE", "1.50::DECIMAL(9, 2)", "1.5::DECIMAL(38, 10)"),
    *("'é'", "'[1,2]'::JSON", "'\\x00\\xff'::BLOB", "'101'::BIT", "'b'::ENUM ('a', 'b')"),
    "'6f9619ff-8b86-d011-b42d-00c04fc964ff'::UUID",
    *("DATE '2024-02-29'", "'infinity'::DATE", "'-infinity'::DATE", "DATE '12000-01-01'"),
    "'0044-03-15 (BC)'::DATE",
    *("TIME '01:02:03.5'", "'24:00:00'::TIME", "'01:02:03.123456789'::TIME_NS"),
    *("'01:02:03+02'::TIMETZ", "'01:02:03.5-15:59:59'::TIMETZ"),
    *("TIMESTAMP '2024-01-01 01:02:03.000004'", "'-infinity'::TIMESTAMP", "TIMESTAMP '12000-01-01'"),
    *("'2024-01-01 00:00:00'::TIMESTAMP_S", "'2024-01-01 00:00:00.123'::TIMESTAMP_MS"),
    "'infinity'::TIMESTAMP_MS",
    *("'2024-01-01 00:00:00.123456789'::TIMESTAMP_NS", "'infinity'::TIMESTAMP_NS"),
    *("TIMESTAMPTZ '2024-07-01 01:02:03+00'", "'infinity'::TIMESTAMPTZ"),
    "TIMESTAMPTZ '12000-01-01 00:00:00+00'",
    "'2024-01-01 00:00:00.123456789+00'::TIMESTAMPTZ_NS",
    *("INTERVAL '1 month 2 days 3 seconds'", "INTERVAL '-5 days -0.5 seconds'", "INTERVAL '2000000 hours'"),
    *("1::VARIANT", "{'a': 1, 'b': [1, NULL], 'c': DATE '2024-01-01'}::VARIANT", "NULL::VARIANT"),
    *("[1, NULL]", "{'a': 1}", "row(1, 'x')", "MAP {'a': 1}", "array_value(1, 2)", "'POINT (1 2)'::GEOMETRY"),
    *("map {[1]: 2}", "map {{'k': 1}: 2}", "map {row(1, 2): 2}", "map {array_value(1): 2}", "MAP {}", "[]"),
    *("union_value(n := 1)", "NULL::UNION(n INT, s VARCHAR)", "union_value(n := NULL::INT)"),
    "'x' COLLATE NOCASE",
]
NESTINGS = {
    "alone": "{0}",
    "list": "[{0}, NULL]",
    "struct": "{{'a': {0}, 'b': 1}}",
    "map": "map {{1: {0}}}",
    "key": "map {{{0}: 1}}",
    "array": "array_value({0}, NULL)",
    "union": "union_value(u := {0})",
    "tuple": "row({0}, 1)",
    "list of structs": "[{{'a': [{0}]}}]",
}
ZONE = "SET TimeZone = 'Europe/Berlin'"


@pytest.fixture(scope="module")
def own() -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB's own client."""
    with duckdb.connect() as connection:
        connection.execute(ZONE)
        yield connection


@pytest.fixture(scope="module")
def con() -> Iterator[ducktail.Connection]:
    """A connection with a plain table, and one that has a stream."""
    with ducktail.connect() as connection:
        connection.execute(ZONE)
        connection.execute("CREATE TABLE plain (id INT PRIMARY KEY)")
        connection.execute("CREATE TABLE captured (id INT PRIMARY KEY)")
        connection.execute("CREATE STREAM s ON captured")
        yield connection


# DuckDB's client makes no keys of these, and Arrow none of a member's NULL.
NO_KEYS = ("BIGNUM", "TIME_NS", "union_value(n := NULL")


@pytest.mark.parametrize("value", VALUES)
def test_a_value_is_what_duckdbs_own_client_has(
    con: ducktail.Connection, own: duckdb.DuckDBPyConnection, value: str
) -> None:
    forms = {name: form for name, form in NESTINGS.items() if name != "key" or not _is_null(own, value)}
    if any(word in value for word in NO_KEYS):
        del forms["key"]
    listed = ", ".join(form.format(value) for form in forms.values())
    # Its text tells the types, too.
    rows = repr(own.execute(f"SELECT {listed}").fetchall())
    assert repr(con.execute(f"SELECT {listed}").fetchall()) == rows
    for table in ("plain", "captured"):
        found = con.execute(f"INSERT INTO {table} VALUES (1) RETURNING {listed}").fetchall()
        con.execute(f"DELETE FROM {table}")
        assert (table, repr(found)) == (table, rows)


def _is_null(own: duckdb.DuckDBPyConnection, value: str) -> bool:
    return own.execute(f"SELECT ({value}) IS NULL").fetchone() == (True,)


@pytest.mark.parametrize("value", VALUES)
def test_an_arrow_table_has_duckdbs_own_types(
    con: ducktail.Connection, own: duckdb.DuckDBPyConnection, value: str
) -> None:
    text = f"SELECT {value} AS a, [{value}] AS b, {{'c': {value}}} AS c"
    expected = own.sql(text).to_arrow_table()
    found = con.execute(text).fetch_arrow_table()
    assert found.schema == expected.schema
    assert found.equals(expected)
    if value != "NULL":  # Without rows its column is text, as a client is told.
        empty = con.execute(f"FROM ({text}) WHERE false").fetch_arrow_table()
        assert (empty.num_rows, empty.schema) == (0, expected.schema)


@pytest.mark.parametrize("form", ["{}", "[{}]", "union_value(n := {})"])
def test_an_interval_that_python_cannot_hold_is_text(con: ducktail.Connection, form: str) -> None:
    value = form.format("INTERVAL '178000000 years'")
    text = f"SELECT {value}, '24:00:00'::TIME, INTERVAL '1 day' UNION ALL SELECT NULL, NULL, NULL"
    rows = con.execute(text).fetchall()
    found = "178000000 years"
    assert rows[0] == ([found] if form == "[{}]" else found, "24:00:00", datetime.timedelta(days=1))
    assert rows[1] == (None, None, None)


def test_a_key_that_duckdbs_client_cannot_make_is_text(con: ducktail.Connection) -> None:
    text = "SELECT map {'01:02:03.5'::TIME_NS: 1}, map {12::BIGNUM: 2}, INTERVAL '1 day'"
    assert con.execute(text).fetchall() == [({"01:02:03.5": 1}, {"12": 2}, datetime.timedelta(days=1))]


REFUSED = [
    *("INTERVAL '1 day'::VARIANT", "[{'a': INTERVAL '1 day'}::VARIANT]"),
    *("get_type(1)", "[get_type(1)]"),
]


@pytest.mark.parametrize("table", ["plain", "captured"])
@pytest.mark.parametrize("value", REFUSED)
def test_what_cannot_be_given_is_refused_before_a_row_is_written(
    con: ducktail.Connection, table: str, value: str
) -> None:
    texts = [f"INSERT INTO {table} VALUES (1) RETURNING {value} AS x"]
    if table == "plain":
        texts.append(f"WITH w AS (INSERT INTO plain VALUES (1) RETURNING {value} AS x) SELECT x FROM w")
    for text in texts:
        with pytest.raises(ducktail.NotSupportedError) as caught:
            con.execute(text)
        assert caught.value.sqlstate == "0A000"
        assert con.execute(f"SELECT count(*) FROM {table}").fetchall() == [(0,)]


def test_rows_are_the_same_however_they_are_fetched(
    con: ducktail.Connection, own: duckdb.DuckDBPyConnection
) -> None:
    text = (
        "SELECT i, '01:02:03+02'::TIMETZ, i::UHUGEINT, i::VARIANT,"
        " CASE i WHEN 3 THEN 'infinity' ELSE '2024-01-01' END::DATE FROM range(5) t(i)"
    )
    rows = own.execute(text).fetchall()
    cursor = con.execute(text)
    assert [cursor.fetchone(), *cursor.fetchmany(2), *cursor.fetchall()] == rows
    con.execute("BEGIN")
    con.execute(f"DECLARE c CURSOR FOR {text}")
    assert con.execute("FETCH 2 FROM c").fetchall() == rows[:2]
    assert con.execute("FETCH ALL FROM c").fetchall() == rows[2:]
    con.rollback()


def test_typed_events_have_the_same_values(con: ducktail.Connection) -> None:
    con.execute(
        "CREATE TABLE typed (id INT PRIMARY KEY, z TIMETZ, u UHUGEINT, v VARIANT, b BIT[],"
        " m MAP(INT[], BIGNUM), n UNION(i INT, t TIME), d DATE[2], e INTERVAL, f ENUM ('x', 'y')[],"
        " g ROW(a BIT, b UUID))"
    )
    con.execute("CREATE STREAM typed_s ON typed")
    con.execute(
        "INSERT INTO typed VALUES (1, '01:02:03+02', 1, {'a': DATE '2024-01-01'}, ['1'], map {[1]: 2},"
        " TIME '01:02:03', ['infinity', '-infinity'], INTERVAL '1 day', ['y'], {'a': '101', 'b': uuid()})"
    )
    [(*columns,)] = con.execute("SELECT * FROM typed").fetchall()
    types = [int, datetime.time, int, dict, list, dict, datetime.time, tuple, datetime.timedelta, list, dict]
    assert [type(value) for value in columns] == types
    events = con.execute("SELECT id, z, u, v, b, m, n, d, e, f, g FROM STREAM typed_s ENVELOPE CHANGES")
    assert events.fetchall() == [tuple(columns)]


def test_a_long_list_has_the_type_of_its_values(con: ducktail.Connection) -> None:
    """As a short one has, before and after it."""
    for count in (1, ELEMENTS_MAX + 1, 1):
        for values, type_ in (([1], "INTEGER[]"), ([2**40], "BIGINT[]"), (["a"], "VARCHAR[]")):
            asked = con.execute("SELECT typeof(?), len(?), ?[1]", (values * count,) * 3)
            assert asked.fetchall() == [(type_, count, values[0])]
