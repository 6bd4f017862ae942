"""Type texts read, and DuckDB's types as PostgreSQL's and back."""

from __future__ import annotations

import duckdb
import pytest

from ducktail.engine.errors import InvalidParameterValue
from ducktail.engine.values import value_types
from ducktail.engine.values.duckdb_types import read_type
from ducktail.engine.values.value_types import duckdb_type, pg_type

# The table in docs/design/values.md: DuckDB type, oid, length, modifier, name.
MAPPING: list[tuple[str, int, int, int, str]] = [
    ("BOOLEAN", 16, 1, -1, "bool"),
    ("TINYINT", 21, 2, -1, "int2"),
    ("SMALLINT", 21, 2, -1, "int2"),
    ("INTEGER", 23, 4, -1, "int4"),
    ("BIGINT", 20, 8, -1, "int8"),
    ("HUGEINT", 1700, -1, -1, "numeric"),
    ("UTINYINT", 21, 2, -1, "int2"),
    ("USMALLINT", 23, 4, -1, "int4"),
    ("UINTEGER", 20, 8, -1, "int8"),
    ("UBIGINT", 1700, -1, -1, "numeric"),
    ("UHUGEINT", 1700, -1, -1, "numeric"),
    ("BIGNUM", 1700, -1, -1, "numeric"),
    ("DECIMAL(18,3)", 1700, -1, (18 << 16 | 3) + 4, "numeric"),
    ("FLOAT", 700, 4, -1, "float4"),
    ("DOUBLE", 701, 8, -1, "float8"),
    ("VARCHAR", 25, -1, -1, "text"),
    ("ENUM('a', 'it''s')", 25, -1, -1, "text"),
    ("BLOB", 17, -1, -1, "bytea"),
    ("GEOMETRY", 17, -1, -1, "bytea"),
    ("BIT", 1562, -1, -1, "varbit"),
    ("UUID", 2950, 16, -1, "uuid"),
    ("JSON", 3802, -1, -1, "jsonb"),
    ("DATE", 1082, 4, -1, "date"),
    ("TIME", 1083, 8, -1, "time"),
    ("TIME_NS", 1083, 8, -1, "time"),
    ("TIME WITH TIME ZONE", 1266, 12, -1, "timetz"),
    ("TIMESTAMP", 1114, 8, -1, "timestamp"),
    ("TIMESTAMP_S", 1114, 8, 0, "timestamp"),
    ("TIMESTAMP_MS", 1114, 8, 3, "timestamp"),
    ("TIMESTAMP_NS", 1114, 8, -1, "timestamp"),
    ("TIMESTAMP WITH TIME ZONE", 1184, 8, -1, "timestamptz"),
    ("TIMESTAMPTZ_NS", 1184, 8, -1, "timestamptz"),
    ("INTERVAL", 1186, 16, -1, "interval"),
    ("STRUCT(a INTEGER)", 114, -1, -1, "json"),
    ("TUPLE(INTEGER, VARCHAR)", 114, -1, -1, "json"),
    ("MAP(VARCHAR, INTEGER)", 114, -1, -1, "json"),
    ("UNION(a INTEGER, b VARCHAR)", 114, -1, -1, "json"),
    ("VARIANT", 114, -1, -1, "json"),
    ("INTEGER[]", 1007, -1, -1, "_int4"),
    ("INTEGER[3]", 1007, -1, -1, "_int4"),
    ("DECIMAL(5,2)[]", 1231, -1, (5 << 16 | 2) + 4, "_numeric"),
    ("ENUM('a')[]", 1009, -1, -1, "_text"),
    ("JSON[]", 3807, -1, -1, "_jsonb"),
    ("INTEGER[][]", 114, -1, -1, "json"),
    ("STRUCT(a INTEGER)[]", 114, -1, -1, "json"),
    ('"NULL"', 25, -1, -1, "text"),
]


@pytest.mark.parametrize("row", MAPPING, ids=[row[0] for row in MAPPING])
def test_mapping(row: tuple[str, int, int, int, str]) -> None:
    text, oid, length, modifier, name = row
    assert pg_type(text) == value_types.PgType(oid, length, modifier, name)


def test_duckdb_prints_what_we_read() -> None:
    """Each type's own text, printed by DuckDB itself, is read and gives the same mapping."""
    with duckdb.connect() as connection:
        for text, oid, _, _, _ in MAPPING:
            if text == '"NULL"':
                continue
            [printed] = connection.sql(f"SELECT CAST(NULL AS {text}) AS x").types
            assert str(printed) == read_type(str(printed)).text
            assert pg_type(str(printed)).oid == oid


def test_every_type_of_duckdb_has_a_row() -> None:
    with duckdb.connect() as connection:
        rows = connection.execute(
            "SELECT DISTINCT upper(type_name), logical_type FROM duckdb_types() WHERE schema_name = 'main'"
        ).fetchall()
    for name, logical in rows:
        if logical in ("LIST", "ARRAY"):
            continue
        assert read_type(name).name in value_types.OIDS, (name, logical)


def test_back() -> None:
    for oid, name in [(16, "BOOLEAN"), (20, "BIGINT"), (1043, "VARCHAR"), (3802, "JSON"), (1016, "BIGINT[]")]:
        assert duckdb_type(oid) == name
    # Without its digits a DECIMAL would round.
    assert [duckdb_type(oid) for oid in (0, 705, 869, 1700, 1231)] == [None] * 5


def test_reading_a_type() -> None:
    read = read_type(" struct(\"a \"\" b\" decimal( 5 , 2 )[], c MAP(VARCHAR, ENUM('x)', 'it''s'))) [3] ")
    assert (read.name, read.numbers) == ("ARRAY", (3,))
    [struct] = read.children
    assert struct.fields == ('a " b', "c")
    assert struct.children[0].children[0].numbers == (5, 2)
    assert struct.children[1].children[1].fields == ("x)", "it's")
    assert read_type("timestamp  with time zone").name == "TIMESTAMP WITH TIME ZONE"
    aliases = ("int8", "timestamptz", "varchar(10)", "numeric(4)", "real")
    assert [read_type(text).name for text in aliases] == [
        "BIGINT", "TIMESTAMP WITH TIME ZONE", "VARCHAR", "DECIMAL", "FLOAT"
    ]  # fmt: skip
    assert read_type("numeric(4)").numbers == (4, 0)
    assert read_type('STRUCT(interval INTERVAL, "map" MAP(DATE, DATE))').fields == ("interval", "map")


BAD = ["", "(", "INTEGER)", "INTEGER[", "INTEGER[x]", "STRUCT(a)", "DECIMAL(a,b)", "a'", "ENUM(a)"]


@pytest.mark.parametrize("text", [*BAD, "INTEGER[" * 100, "STRUCT(a " * 100, "INTEGER, INTEGER"])
def test_bad_types(text: str) -> None:
    with pytest.raises(InvalidParameterValue):
        read_type(text)
