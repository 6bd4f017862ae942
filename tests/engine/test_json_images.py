"""JSON images: each type's text, any nesting and name, the same in every session, valid JSON always."""

from __future__ import annotations

import json
import random
from decimal import Decimal

import duckdb
import pytest

from ducktail.engine.values.json_images import object_sql, value_sql

# (SQL literal, DuckDB type, JSON text or None for NULL): the table in docs/design/values.md.
VALUES: list[tuple[str, str, str | None]] = [
    ("true", "BOOLEAN", "true"),
    ("-128", "TINYINT", "-128"),
    ("9223372036854775807", "BIGINT", "9223372036854775807"),
    ("18446744073709551615", "UBIGINT", "18446744073709551615"),
    ("'-170141183460469231731687303715884105728'", "HUGEINT", "-170141183460469231731687303715884105728"),
    ("'340282366920938463463374607431768211455'", "UHUGEINT", "340282366920938463463374607431768211455"),
    ("'123456789012345678901234567890123456789012345'", "BIGNUM",
     "123456789012345678901234567890123456789012345"),
    ("1.5", "DECIMAL(5,2)", "1.50"),
    ("0", "DECIMAL(9,0)", "0"),
    ("'-0.05'", "DECIMAL(2,2)", "-0.05"),
    ("'0.00000001'", "DECIMAL(18,8)", "0.00000001"),
    ("'12345678901234567.12'", "DECIMAL(19,2)", "12345678901234567.12"),
    ("'0.5'", "DECIMAL(38,38)", "0.50000000000000000000000000000000000000"),
    ("'-99999999999999999999999999999999999.999'", "DECIMAL(38,3)",
     "-99999999999999999999999999999999999.999"),
    ("0.1", "DOUBLE", "0.1"),
    ("'-0.0'", "DOUBLE", "-0.0"),
    ("1e16", "DOUBLE", "10000000000000000.0"),
    ("1e22", "DOUBLE", "1e22"),
    ("'5e-324'", "DOUBLE", "5e-324"),
    ("'nan'", "DOUBLE", '"NaN"'),
    ("'-nan'", "DOUBLE", '"NaN"'),
    ("'inf'", "DOUBLE", '"Infinity"'),
    ("'-inf'", "FLOAT", '"-Infinity"'),
    ("0.1", "FLOAT", "0.1"),
    ("16777216", "FLOAT", "16777216.0"),
    ("'a\"b\\c/é😀' || chr(1) || chr(31) || chr(10)", "VARCHAR", '"a\\"b\\\\c/é😀\\u0001\\u001F\\n"'),
    ("'x'", "ENUM('x', 'y')", '"x"'),
    ("'\\xDE\\xAD'", "BLOB", '"\\\\xdead"'),
    ("'0101'", "BIT", '"0101"'),
    ("'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "UUID", '"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"'),
    ("'2026-01-01'", "DATE", '"2026-01-01"'),
    ("'12345-06-07'", "DATE", '"12345-06-07"'),
    ("'0044-03-15 (BC)'", "DATE", '"0044-03-15 (BC)"'),
    ("'infinity'", "DATE", '"infinity"'),
    ("'10:00:00.5'", "TIME", '"10:00:00.5"'),
    ("'10:00:00.123456789'", "TIME_NS", '"10:00:00.123456789"'),
    ("'24:00:00'", "TIME", '"24:00:00"'),
    ("'12:00:00+02:30'", "TIME WITH TIME ZONE", '"12:00:00+02:30"'),
    ("'2026-01-01 10:00:00'", "TIMESTAMP", '"2026-01-01T10:00:00"'),
    ("'2026-01-01 10:00:00.000001'", "TIMESTAMP", '"2026-01-01T10:00:00.000001"'),
    ("'0044-03-15 (BC) 01:02:03'", "TIMESTAMP", '"0044-03-15 (BC) 01:02:03"'),
    ("'-infinity'", "TIMESTAMP", '"-infinity"'),
    ("'2026-01-01 10:00:00'", "TIMESTAMP_S", '"2026-01-01T10:00:00"'),
    ("'2026-01-01 10:00:00.125'", "TIMESTAMP_MS", '"2026-01-01T10:00:00.125"'),
    ("'2026-01-01 10:00:00.123456789'", "TIMESTAMP_NS", '"2026-01-01T10:00:00.123456789"'),
    ("'2026-01-01 10:00:00.5+02'", "TIMESTAMP WITH TIME ZONE", '"2026-01-01T08:00:00.5+00:00"'),
    ("'infinity'", "TIMESTAMP WITH TIME ZONE", '"infinity"'),
    ("'2026-01-01 10:00:00.123456789+00'", "TIMESTAMPTZ_NS", '"2026-01-01T10:00:00.123456789+00:00"'),
    ("'1 year 2 months -3 days 04:05:06.5'", "INTERVAL", '"1 year 2 months -3 days 04:05:06.5"'),
    ("'{\"a\":  1.50, \"b\": 123456789012345678901234567890.5}'", "JSON",
     '{"a":  1.50, "b": 123456789012345678901234567890.5}'),
    ("'{\"a\":\"nan, infinity,]\"}'", "JSON", '{"a":"nan, infinity,]"}'),
    ("'[1, ]'", "JSON", '"[1, ]"'),
    ("'{\"a\":NaN}'", "JSON", '"{\\"a\\":NaN}"'),
    ("'-inf'", "JSON", '"-inf"'),
    ("NULL", "JSON", None),
    ("NULL", "DOUBLE", None),
    ("NULL", "TIMESTAMP", None),
    ("NULL", "TIMESTAMP WITH TIME ZONE", None),
    ("NULL", "DECIMAL(38,38)", None),
    ("NULL", '"NULL"', None),
    ("[1, NULL]", "INTEGER[]", "[1,null]"),
    ("[1, 2]", "INTEGER[2]", "[1,2]"),
    ("[1.5, NULL]", "DECIMAL(5,2)[]", "[1.50,null]"),
    ("[1.5, 2]", "DECIMAL(5,2)[2]", "[1.50,2.00]"),
    ("['nan', NULL]", "DOUBLE[]", '["NaN",null]'),
    ("['{\"a\": 1.50}', NULL]", "JSON[]", '[{"a": 1.50},null]'),
    ("[]", "JSON[]", "[]"),
    ("NULL", "JSON[]", None),
    ("[[1.5], NULL, []]", "DECIMAL(3,1)[][]", "[[1.5],null,[]]"),
    ("[['2026-01-01']]", "TIMESTAMP[][]", '[["2026-01-01T00:00:00"]]'),
    ("{'a': 1, 'b': NULL}", "STRUCT(a INTEGER, b VARCHAR)", '{"a":1,"b":null}'),
    ("{'a b': 1.5, 'q\"': '[1, 2.50]'}", 'STRUCT("a b" DECIMAL(5,2), "q""" JSON)',
     '{"a b":1.50,"q\\"":[1, 2.50]}'),
    ("NULL", "STRUCT(a JSON)", None),
    ("{'s': {'t': [{'u': 'inf'}]}}", "STRUCT(s STRUCT(t STRUCT(u DOUBLE)[]))",
     '{"s":{"t":[{"u":"Infinity"}]}}'),
    ("row(1, '2026-01-01')", "TUPLE(INTEGER, TIMESTAMP)", '[1,"2026-01-01T00:00:00"]'),
    ("row(1, 'a')", "TUPLE(INTEGER, VARCHAR)", '[1,"a"]'),
    ("MAP {'a': 1, 'b': NULL}", "MAP(VARCHAR, INTEGER)", '{"a":1,"b":null}'),
    ("MAP {'a\"': [1.5]}", "MAP(VARCHAR, DECIMAL(3,1)[])", '{"a\\"":[1.5]}'),
    ("MAP {1: 'x'}", "MAP(INTEGER, VARCHAR)", '[[1,"x"]]'),
    ("MAP {}", "MAP(INTEGER, INTEGER)", "[]"),
    ("NULL", "MAP(INTEGER, INTEGER)", None),
    ("MAP {'m': MAP {1: 'nan'}}", "MAP(VARCHAR, MAP(INTEGER, DOUBLE))", '{"m":[[1,"NaN"]]}'),
    ("union_value(a := 1)", "UNION(a INTEGER, b VARCHAR)", '{"a":1}'),
    ("union_value(b := 1.5::DECIMAL(3,1))", "UNION(a INTEGER, b DECIMAL(3,1))", '{"b":1.5}'),
    ("NULL", "UNION(a INTEGER, b DECIMAL(3,1))", None),
    ("{'a': [1::VARIANT, 'x'::VARIANT]}", "VARIANT", '{"a":[1,"x"]}'),
    ("'nan'::DOUBLE", "VARIANT", '"NaN"'),
]  # fmt: skip


@pytest.fixture(params=["UTC", "America/Caracas"])
def connection(request: pytest.FixtureRequest) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute(f"SET TimeZone = '{request.param}'")
    return connection


def source(value: str, type_: str) -> str:
    return "(SELECT NULL AS x)" if type_ == '"NULL"' else f"(SELECT CAST({value} AS {type_}) AS x)"


def test_every_type(connection: duckdb.DuckDBPyConnection) -> None:
    for value, type_, wanted in VALUES:
        found = connection.execute(f"SELECT {value_sql('x', type_)} FROM {source(value, type_)}").fetchone()
        assert found == (wanted,), (type_, value)
        row = object_sql([("a", "1", "INTEGER"), ("b", "x", type_), ("c", "x", type_)])
        query = f"SELECT {row}, typeof({row}) FROM {source(value, type_)}"
        text, typeof = connection.execute(query).fetchone() or ("", "")
        shown = "null" if wanted is None else wanted
        assert text == f'{{"a":1,"b":{shown},"c":{shown}}}'
        assert typeof == "JSON"
        assert list(json.loads(text, parse_constant=refuse)) == ["a", "b", "c"]


def refuse(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


NAMES = [
    'q"uote',
    "back\\slash",
    "é😀",
    "a.b",
    "SELECT",
    "with blank",
    "line\nbreak",
    "tab\t",
    "{x}",
    "'",
    "CamelCase",
]


@pytest.mark.parametrize("type_", ["INTEGER", "JSON"])
def test_any_name(connection: duckdb.DuckDBPyConnection, type_: str) -> None:
    row = object_sql([(name, "x", type_) for name in NAMES])
    [text] = connection.execute(f"SELECT {row} FROM (SELECT '7'::{type_} AS x)").fetchone() or [""]
    assert json.loads(text) == dict.fromkeys(NAMES, 7)


def test_round_trip_of_numbers(connection: duckdb.DuckDBPyConnection) -> None:
    generator = random.Random(11)
    columns = [
        ("h", "HUGEINT"),
        ("d", "DECIMAL(15,5)"),
        ("w", "DECIMAL(38,10)"),
        ("f", "DOUBLE"),
        ("r", "FLOAT"),
    ]
    rows = [
        (
            generator.randint(-(2**127), 2**127 - 1),
            Decimal(generator.randint(-(10**15) + 1, 10**15 - 1)).scaleb(-5),
            Decimal(generator.randint(-(10**18), 10**18)).scaleb(-10),
            generator.uniform(-1, 1) * 10.0 ** generator.randint(-300, 300),
            generator.uniform(-1, 1) * 10.0 ** generator.randint(-30, 30),
        )
        for _ in range(500)
    ]
    types = ", ".join(f"{name} {type_}" for name, type_ in columns)
    connection.execute(f"CREATE TABLE numbers ({types})")
    connection.executemany("INSERT INTO numbers VALUES (?, ?, ?, ?, ?)", rows)
    row = object_sql([(name, name, type_) for name, type_ in columns])
    for text, h, d, w, f, r in connection.execute(f"SELECT {row}, * FROM numbers").fetchall():
        found = json.loads(text, parse_float=Decimal)
        assert found["h"] == h
        assert (found["d"], found["w"]) == (d, w)
        assert str(found["d"]) == f"{d:.5f}" or d == 0
        assert float(found["f"]) == f
        assert duckdb_float(connection, found["r"]) == r


def duckdb_float(connection: duckdb.DuckDBPyConnection, value: object) -> object:
    [found] = connection.execute("SELECT ?::VARCHAR::FLOAT", [str(value)]).fetchone() or [None]
    return found


def test_ordinary_rows_are_one_call() -> None:
    """Planning time is in proportion to the text: ordinary columns add their names to it, no more."""
    row = object_sql([("id", "l.n1", "BIGINT"), ("name", "l.n2", "VARCHAR"), ("ok", "l.n3", "BOOLEAN")])
    assert row == 'to_json(struct_pack("id" := l.n1, "name" := l.n2, "ok" := l.n3))'
