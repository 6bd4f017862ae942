"""Parameters of Bind: psycopg's own dumpers, DuckDB as the judge; bad bytes of every kind."""

from __future__ import annotations

import datetime
import random
import struct
import uuid
from decimal import Decimal

import duckdb
import psycopg
import pytest
from psycopg.adapt import PyFormat, Transformer
from psycopg.types.json import Json, Jsonb

from ducktail.engine.errors import (
    CharacterNotInRepertoire,
    DucktailError,
    InvalidBinaryRepresentation,
    InvalidTextRepresentation,
    NotSupported,
    NumericOutOfRange,
    ProtocolViolation,
)
from ducktail.engine.values import value_types
from ducktail.engine.values.parameters import decode

UTC = datetime.UTC
EAST = datetime.timezone(datetime.timedelta(hours=2, minutes=30))

# (Python value, DuckDB type, the value's text there)
DUMPED: list[tuple[object, str, str]] = [
    (True, "BOOLEAN", "true"),
    (5, "INTEGER", "5"),
    (-(2**31), "BIGINT", "-2147483648"),
    (2**63 - 1, "BIGINT", "9223372036854775807"),
    (2**64 - 1, "UBIGINT", "18446744073709551615"),
    (2**100, "HUGEINT", str(2**100)),
    (0.1, "DOUBLE", "0.1"),
    (float("inf"), "DOUBLE", "inf"),
    (Decimal("1.50"), "DECIMAL(5,2)", "1.50"),
    (Decimal("-12345678901234567890.000000001"), "DECIMAL(38,9)", "-12345678901234567890.000000001"),
    (Decimal("0.0001"), "DECIMAL(9,4)", "0.0001"),
    (Decimal("10000"), "DECIMAL(9,4)", "10000.0000"),
    (Decimal("0E-4"), "DECIMAL(9,4)", "0.0000"),
    ("text é😀", "VARCHAR", "text é😀"),
    (b"\x00\xde\xad\\", "BLOB", "\\x00\\xDE\\xAD\\x5C"),
    (uuid.UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"), "UUID", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    (datetime.date(2026, 1, 2), "DATE", "2026-01-02"),
    (datetime.date(1, 1, 1), "DATE", "0001-01-01"),
    (datetime.date(9999, 12, 31), "DATE", "9999-12-31"),
    (datetime.time(10, 0, 0, 10), "TIME", "10:00:00.00001"),
    (datetime.time(12, 0, 0, 500000, EAST), "TIME WITH TIME ZONE", "12:00:00.5+02:30"),
    (datetime.datetime(2026, 1, 2, 3, 4, 5, 6), "TIMESTAMP", "2026-01-02 03:04:05.000006"),
    (datetime.datetime(2026, 1, 2, 3, tzinfo=EAST), "TIMESTAMP WITH TIME ZONE", "2026-01-02 00:30:00+00"),
    (datetime.datetime(1, 1, 1, tzinfo=UTC), "TIMESTAMP WITH TIME ZONE", "0001-01-01 00:00:00+00"),
    (datetime.timedelta(days=3, seconds=5, microseconds=7), "INTERVAL", "3 days 00:00:05.000007"),
    (datetime.timedelta(days=-3, seconds=5), "INTERVAL", "-3 days 00:00:05"),
    (Json({"a": [1, None]}), "JSON", '{"a": [1, null]}'),
    (Jsonb({"a": 1}), "JSON", '{"a": 1}'),
    ([1, None, 3], "INTEGER[]", "[1, NULL, 3]"),
    ([2**40, 1], "BIGINT[]", "[1099511627776, 1]"),
    ([[1, 2], [3, 4]], "INTEGER[][]", "[[1, 2], [3, 4]]"),
    (["a", 'b"c\\', "", "NULL", None, "{x,y}"], "VARCHAR[]", ""),
    ([Decimal("1.5"), None], "DECIMAL(5,2)[]", "[1.50, NULL]"),
    ([datetime.date(2026, 1, 1)], "DATE[]", "[2026-01-01]"),
    ([True, False], "BOOLEAN[]", "[true, false]"),
    ([0.5], "DOUBLE[]", "[0.5]"),
]


@pytest.fixture(scope="module")
def connection() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def dumped(value: object, format_: PyFormat) -> tuple[bytes | None, int, int]:
    """(bytes, format, oid) as psycopg would send it; no connection is needed."""
    transformer = Transformer()
    [raw] = transformer.dump_sequence([value], [format_])
    assert transformer.types is not None and transformer.formats is not None
    return None if raw is None else bytes(raw), transformer.formats[0], transformer.types[0]


@pytest.mark.parametrize("format_", [PyFormat.TEXT, PyFormat.BINARY])
@pytest.mark.parametrize("declared", [True, False])
def test_what_psycopg_dumps(connection: duckdb.DuckDBPyConnection, format_: PyFormat, declared: bool) -> None:
    for value, type_, text in DUMPED:
        if isinstance(value, bytes) and format_ == PyFormat.TEXT:
            continue  # without a connection libpq escapes for old servers
        raw, code, oid = dumped(value, format_)
        told = value_types.pg_type(type_).oid
        if not declared:
            if code == 1 and oid != told:
                continue  # a client that declares nothing sends what it was told
            oid = 0
        decoded = decode(raw, code, oid, type_)
        found = connection.execute(f"SELECT CAST($1 AS {type_}) AS x, x::VARCHAR", [decoded]).fetchone()
        assert found is not None
        if type_ == "VARCHAR[]":
            assert found[0] == value
        else:
            assert found[1] == text, (value, raw, decoded)


def test_null_and_untyped_text() -> None:
    assert decode(None, 0, 23, "INTEGER") is None
    assert decode(b"5", 0, 0, "VARCHAR") == "5"
    assert decode(b"5", 0, 0, None) == "5"
    assert decode(b"5", 0, 0, "UNKNOWN") == "5"
    assert decode(b"5", 0, 705, "INTEGER") == 5
    assert decode(b"5", 0, 25, "INTEGER") == "5"
    assert decode(b"x", 0, 0, "ENUM('x', 'y')") == "x"
    assert decode(b"192.168.0.1", 0, 869, None) == "192.168.0.1"
    assert decode(memoryview(b"abc"), 1, 25, None) == "abc"


def test_described_type_counts() -> None:
    assert decode(b"18446744073709551615", 0, 0, "UBIGINT") == 2**64 - 1
    assert decode(b"18446744073709551615", 0, value_types.NUMERIC, "UBIGINT") == 2**64 - 1
    with pytest.raises(NumericOutOfRange):
        decode(b"256", 0, 0, "UTINYINT")
    # Other values of a numeric stand in comparisons.
    assert decode(b"-1", 0, value_types.NUMERIC, "UBIGINT") == -1
    assert decode(b"42.4", 0, value_types.NUMERIC, "HUGEINT") == Decimal("42.4")
    assert decode(str(2**128 - 1).encode(), 0, 0, "HUGEINT") == 2**128 - 1
    assert decode(b"1.5", 0, value_types.NUMERIC, "DOUBLE") == Decimal("1.5")
    assert decode(b"1.5", 0, 0, "DOUBLE") == 1.5


# (oid, text, DuckDB type, the value's text there): what other clients write.
WRITTEN: list[tuple[int, str, str, str]] = [
    (16, " YES ", "BOOLEAN", "true"),
    (16, "off", "BOOLEAN", "false"),
    (23, " +7 ", "INTEGER", "7"),
    (701, "-Infinity", "DOUBLE", "-inf"),
    (701, ".5e1", "DOUBLE", "5.0"),
    (1700, "123.4500", "DECIMAL(9,4)", "123.4500"),
    (17, "a\\\\b\\001\\303\\251", "BLOB", "a\\x5Cb\\x01\\xC3\\xA9"),
    (17, "\\x DE ad", "BLOB", "\\xDE\\xAD"),
    (2950, "{A0EEBC999C0B4EF8BB6D6BB9BD380A11}", "UUID", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    (1082, "1970-01-01 +00", "DATE", "1970-01-01"),
    (1082, "0044-03-15 BC", "DATE", "0044-03-15 (BC)"),
    (1082, "12345-06-07", "DATE", "12345-06-07"),
    (1082, "infinity", "DATE", "infinity"),
    (1083, "24:00:00", "TIME", "24:00:00"),
    (1083, "10:20", "TIME", "10:20:00"),
    (1266, "10:20:30.1234567-0430", "TIME WITH TIME ZONE", "10:20:30.123457-04:30"),
    (1114, "2026-01-01T10:00:00Z", "TIMESTAMP", "2026-01-01 10:00:00"),
    (1114, "2026-01-01", "TIMESTAMP", "2026-01-01 00:00:00"),
    (1114, "2026-01-01 24:00", "TIMESTAMP", "2026-01-02 00:00:00"),
    (1114, "0044-03-15 01:02:03 BC", "TIMESTAMP", "0044-03-15 (BC) 01:02:03"),
    (1184, "2026-01-01 10:00:00+02", "TIMESTAMP WITH TIME ZONE", "2026-01-01 08:00:00+00"),
    (1184, "2026-07-01 10:00:00 Europe/Berlin", "TIMESTAMP WITH TIME ZONE", "2026-07-01 08:00:00+00"),
    (1184, "12345-01-01 10:00:00+02", "TIMESTAMP WITH TIME ZONE", "12345-01-01 08:00:00+00"),
    (1184, "-infinity", "TIMESTAMP WITH TIME ZONE", "-infinity"),
    (1186, "1 year 2 mons -3 days 04:05:06.5", "INTERVAL", "1 year 2 months -3 days 04:05:06.5"),
    (1186, "P1Y2M3DT4H5M6.5S", "INTERVAL", "1 year 2 months 3 days 04:05:06.5"),
    (1186, "0 years 1 mons 2 days 3 hours 4 mins 5.25 secs", "INTERVAL", "1 month 2 days 03:04:05.25"),
    (1186, "@ 1 day 2 hours ago", "INTERVAL", "-1 day -02:00:00"),
    (1186, "-00:00:00.5", "INTERVAL", "-00:00:00.5"),
    (1562, "0101", "BIT", "0101"),
    (1007, '{1, NULL ,"3"}', "INTEGER[]", "[1, NULL, 3]"),
    (1007, "[0:2]={1,2,3}", "INTEGER[]", "[1, 2, 3]"),
    (1007, "{}", "INTEGER[]", "[]"),
    (1007, "{{1,2},{3,4}}", "INTEGER[][]", "[[1, 2], [3, 4]]"),
]


def test_what_others_write(connection: duckdb.DuckDBPyConnection) -> None:
    for oid, text, type_, wanted in WRITTEN:
        decoded = decode(text.encode(), 0, oid, None)
        found = connection.execute(f"SELECT CAST($1 AS {type_})::VARCHAR", [decoded]).fetchone()
        assert found == (wanted,), (text, decoded)


def test_time_zone_of_the_session() -> None:
    text = b"2026-07-01 10:00:00"
    assert decode(text, 0, 1184, None) == text.decode()
    wanted = datetime.datetime(2026, 7, 1, 8, tzinfo=UTC)
    assert decode(text, 0, 1184, None, "Europe/Berlin") == wanted


def test_json_for_nested_columns(connection: duckdb.DuckDBPyConnection) -> None:
    for type_, text, wanted in [
        ("STRUCT(a INTEGER, b VARCHAR)", '{"a":1,"b":"x"}', {"a": 1, "b": "x"}),
        ("MAP(VARCHAR, INTEGER)", '{"a":1}', {"a": 1}),
        ("INTEGER[][]", "[[1],null,[2,3]]", [[1], None, [2, 3]]),
    ]:
        value = decode(text.encode(), 0, 0, type_)
        connection.execute(f"CREATE OR REPLACE TABLE nested (x {type_})")
        connection.execute("INSERT INTO nested VALUES ($1)", [value])
        assert connection.execute("FROM nested").fetchall() == [(wanted,)]


BAD_TEXT: list[tuple[int, str]] = [
    (16, "maybe"), (23, "1.5"), (23, ""), (23, "1_000"), (23, "٣"), (20, "0x1"), (701, "1e"), (701, "1_0.0"),
    (1700, "abc"), (1700, "1" * 6000), (17, "\\xabc"), (17, "\\9"), (2950, "a0eebc99"), (1082, "2026-02-30"),
    (1082, "yesterday"), (1082, "0000-01-01"), (1082, "0044-02-30 BC"), (1083, "25:00:00"), (1083, "10"),
    (1114, "2026-01-01 10:61:00"), (1184, "tomorrow"), (1186, "1 parsec"), (1186, ""), (1186, "P"),
    (1562, "012"), (1007, "1,2"), (1007, "{1"), (1007, "{1,}"), (1007, "{1}}"), (1007, "{a}"), (1007, '{"1}'),
    (1007, "{" * 10 + "}" * 10),
]  # fmt: skip


@pytest.mark.parametrize(("oid", "text"), BAD_TEXT)
def test_bad_text(oid: int, text: str) -> None:
    with pytest.raises(InvalidTextRepresentation):
        decode(text.encode(), 0, oid, None)


def test_ranges_and_encoding() -> None:
    for oid, text in [(21, "32768"), (23, "2147483648"), (20, "9223372036854775808"), (701, "1e400")]:
        with pytest.raises(NumericOutOfRange):
            decode(text.encode(), 0, oid, None)
    for text in ["0." + "1" * 39, "1" * 30 + "." + "1" * 30, "1e-50"]:
        with pytest.raises(NumericOutOfRange):
            decode(text.encode(), 0, 1700, None)
    assert decode(b"1e-50", 0, 0, "DOUBLE") == 1e-50
    for raw in [b"\xff", b"a\0b"]:
        with pytest.raises(CharacterNotInRepertoire):
            decode(raw, 0, 25, None)
    with pytest.raises(ProtocolViolation):
        decode(b"1", 2, 23, None)
    with pytest.raises(NotSupported):
        decode(b"\0", 1, 869, None)


NUMERIC_HEAD = struct.Struct("!HhHH")
ARRAY_HEAD = struct.Struct("!iiiii")
BAD_BINARY: list[tuple[int, bytes]] = [
    (16, b""), (16, b"\0\0"), (21, b"\0"), (23, b"\0" * 8), (20, b""), (700, b"\0"), (1082, b"\0"),
    (1083, struct.pack("!q", -1)), (1083, struct.pack("!q", 86_400_000_001)),
    (1266, b"\0" * 8), (1186, b"\0" * 15),
    (2950, b"\0" * 15), (1562, struct.pack("!i", 9) + b"\0"), (1562, struct.pack("!i", -1)),
    (3802, b"\2{}"),
    (1700, b"\0"), (1700, NUMERIC_HEAD.pack(1, 0, 0, 0)), (1700, NUMERIC_HEAD.pack(1, 0, 1, 0) + b"\0\1"),
    (1700, NUMERIC_HEAD.pack(1, 0, 0, 0) + b"\xff\xff"),
    (1007, b"\0" * 8), (1007, struct.pack("!iii", 7, 0, 23)), (1007, ARRAY_HEAD.pack(1, 0, 23, 2**30, 1)),
    (1007, ARRAY_HEAD.pack(1, 0, 23, -1, 1)),
    (1007, ARRAY_HEAD.pack(1, 0, 23, 1, 1) + struct.pack("!i", 100)),
    (1007, ARRAY_HEAD.pack(1, 0, 23, 1, 1) + struct.pack("!ii", 4, 1) + b"x"),
]  # fmt: skip


@pytest.mark.parametrize(("oid", "raw"), BAD_BINARY)
def test_bad_binary(oid: int, raw: bytes) -> None:
    with pytest.raises(InvalidBinaryRepresentation):
        decode(raw, 1, oid, None)


def test_huge_numerics_are_refused_at_once() -> None:
    for raw in [
        NUMERIC_HEAD.pack(1, 32767, 0, 0) + b"\0\1",
        NUMERIC_HEAD.pack(1, -32768, 0, 16383) + b"\0\1",
    ]:
        with pytest.raises(NumericOutOfRange):
            decode(raw, 1, 1700, None)
    for text in ["1e999999", "1e-999999"]:
        with pytest.raises(NumericOutOfRange):
            decode(text.encode(), 0, 1700, None)


def test_any_bytes_give_a_value_or_an_error() -> None:
    generator = random.Random(5)
    oids = [*value_types.ELEMENT_OF.values(), *value_types.ELEMENT_OF, 0, 869]
    alphabet = b'0123456789-+:. {}\\",xeTZNUL\x00\xff\x01'
    for _ in range(20_000):
        raw = bytes(generator.choices(alphabet, k=generator.randint(0, 24)))
        try:
            decode(raw, generator.randint(0, 1), generator.choice(oids), None)
        except DucktailError:
            pass


def test_psycopg_is_the_tested_one() -> None:
    # The dumpers are psycopg's internal interface: a new minor version is looked at first.
    assert psycopg.__version__.startswith("3.")
