"""JSON images: each type's text, any nesting and name, the same in every session, valid JSON always."""

from __future__ import annotations

import json
import random
from decimal import Decimal

import duckdb
import pytest
from json_values import VALUES

from ducktail.engine.values.json_images import object_sql, value_sql


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
