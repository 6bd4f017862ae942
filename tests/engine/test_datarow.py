"""DataRow messages: against PostgreSQL itself, short against long batches, NULLs, odd columns."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import duckdb
import psycopg
import pyarrow as pa
import pytest

from ducktail.engine.errors import InternalError, NumericOutOfRange, ProtocolViolation
from ducktail.engine.values import datarow
from ducktail.engine.values.numbers import numeric_binary
from ducktail.engine.values.value_types import pg_type

# (DuckDB type, PostgreSQL type, text that both cast). DuckDB's own spelling stands after a bar.
VALUES: list[tuple[str, str, str]] = [
    ("BOOLEAN", "bool", "true"),
    ("BOOLEAN", "bool", "false"),
    ("TINYINT", "int2", "-128"),
    ("SMALLINT", "int2", "32767"),
    ("INTEGER", "int4", "-2147483648"),
    ("BIGINT", "int8", "9223372036854775807"),
    ("UTINYINT", "int2", "255"),
    ("USMALLINT", "int4", "65535"),
    ("UINTEGER", "int8", "4294967295"),
    ("UBIGINT", "numeric", "18446744073709551615"),
    ("HUGEINT", "numeric", "-170141183460469231731687303715884105728"),
    ("UHUGEINT", "numeric", "340282366920938463463374607431768211455"),
    ("BIGNUM", "numeric", "123456789012345678901234567890123456789012345"),
    ("DECIMAL(5,2)", "numeric(5,2)", "1.5"),
    ("DECIMAL(5,2)", "numeric(5,2)", "-0.01"),
    ("DECIMAL(5,2)", "numeric(5,2)", "0"),
    ("DECIMAL(2,2)", "numeric(2,2)", "0.5"),
    ("DECIMAL(18,8)", "numeric(18,8)", "0.00000001"),
    ("DECIMAL(18,8)", "numeric(18,8)", "10000"),
    ("DECIMAL(38,10)", "numeric(38,10)", "-1234567890123456789012345678.0987654321"),
    ("DECIMAL(9,0)", "numeric(9,0)", "100000000"),
    ("FLOAT", "float4", "0.1"),
    ("FLOAT", "float4", "1000000"),
    ("FLOAT", "float4", "999999.94"),
    ("FLOAT", "float4", "3.4028235e38"),
    ("FLOAT", "float4", "-60520712"),
    ("DOUBLE", "float8", "1"),
    ("DOUBLE", "float8", "-0.0"),
    ("DOUBLE", "float8", "0.1"),
    ("DOUBLE", "float8", "123456789012345.6"),
    ("DOUBLE", "float8", "1e15"),
    ("DOUBLE", "float8", "1e16"),
    ("DOUBLE", "float8", "0.0001"),
    ("DOUBLE", "float8", "0.00001"),
    ("DOUBLE", "float8", "5e-324"),
    ("DOUBLE", "float8", "1.7976931348623157e308"),
    ("DOUBLE", "float8", "-2.524629406124535e+16"),
    ("DOUBLE", "float8", "nan"),
    ("DOUBLE", "float8", "-infinity"),
    ("VARCHAR", "text", "a\"b\\c é😀\n"),
    ("VARCHAR", "text", ""),
    ("ENUM('x', 'y')", "text", "y"),
    ("JSON", "jsonb", '{"a": 1.50}'),
    ("UUID", "uuid", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"),
    ("BLOB", "bytea", "\\xDE\\xAD\\x00|\\xdead00"),
    ("BIT", "varbit", "1011001"),
    ("BIT", "varbit", "10110010111"),
    ("DATE", "date", "2026-01-01"),
    ("DATE", "date", "0044-03-15 (BC)|0044-03-15 BC"),
    ("DATE", "date", "12345-06-07"),
    ("DATE", "date", "infinity"),
    ("DATE", "date", "-infinity"),
    ("TIME", "time", "10:00:00.000010"),
    ("TIME", "time", "24:00:00"),
    ("TIME WITH TIME ZONE", "timetz", "12:00:00.5+02:30"),
    ("TIME WITH TIME ZONE", "timetz", "12:00:00-15:59:59"),
    ("TIMESTAMP", "timestamp", "2026-01-01 10:00:00"),
    ("TIMESTAMP", "timestamp", "1969-12-31 23:59:59.999999"),
    ("TIMESTAMP", "timestamp", "2026-01-01 10:00:00.120000"),
    ("TIMESTAMP", "timestamp", "0044-03-15 (BC) 01:02:03.5|0044-03-15 01:02:03.5 BC"),
    ("TIMESTAMP", "timestamp", "12345-06-07 08:09:10"),
    ("TIMESTAMP", "timestamp", "infinity"),
    ("TIMESTAMP_S", "timestamp", "2026-01-01 10:00:00"),
    ("TIMESTAMP_MS", "timestamp", "2026-01-01 10:00:00.125"),
    ("TIMESTAMP_NS", "timestamp", "2026-01-01 10:00:00.123456"),
    ("TIMESTAMP WITH TIME ZONE", "timestamptz", "2026-07-01 10:00:00+00"),
    ("TIMESTAMP WITH TIME ZONE", "timestamptz", "2050-07-01 10:00:00.5+00"),
    ("TIMESTAMP WITH TIME ZONE", "timestamptz", "1800-01-01 00:00:00+00"),
    ("TIMESTAMP WITH TIME ZONE", "timestamptz", "-infinity"),
    ("INTERVAL", "interval", "1 year 2 months 3 days 04:05:06.5"),
    ("INTERVAL", "interval", "-14 months 3 days -04:05:06"),
    ("INTERVAL", "interval", "-1 days 01:00:00"),
    ("INTERVAL", "interval", "100000000 hours 1 microsecond"),
    ("INTERVAL", "interval", "0 days"),
    ("INTEGER[]", "int4[]", "[1, NULL, -3]|{1,NULL,-3}"),
    ("INTEGER[]", "int4[]", "[]|{}"),
    ("INTEGER[2]", "int4[]", "[1, 2]|{1,2}"),
    ("BOOLEAN[]", "bool[]", "[true, false]|{t,f}"),
    ("DOUBLE[]", "float8[]", "[1.5, nan]|{1.5,NaN}"),
    ("DECIMAL(5,2)[]", "numeric(5,2)[]", "[1.50, NULL]|{1.50,NULL}"),
    ("DATE[]", "date[]", "[2026-01-01, NULL]|{2026-01-01,NULL}"),
    ("TIMESTAMP[]", "timestamp[]", "[2026-01-01 10:00:00]|{\"2026-01-01 10:00:00\"}"),
    ("UUID[]", "uuid[]", "[a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11]|{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}"),
    ("INTERVAL[]", "interval[]", "[1 day]|{1 day}"),
]  # fmt: skip
TEXT_ARRAYS = [["a", "", "NULL", "null", "with blank", 'quo"te', "back\\slash", "{", ",", "é", None]]
ZONES = ["UTC", "Europe/Berlin", "Asia/Kolkata", "America/St_Johns"]


@pytest.fixture(scope="module")
def postgres() -> Iterator[psycopg.Connection]:
    """A PostgreSQL server of our own, with everything off that costs time."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    found = shutil.which("initdb") or (places and str(places[-1] / "initdb"))
    if not found:
        pytest.skip("no PostgreSQL programs")
    programs = Path(found).parent
    folder = Path(tempfile.mkdtemp(prefix="ducktail-pg-"))
    # initdb refuses to run as root.
    person = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}
    if person:
        shutil.chown(folder, "postgres", "postgres")
    data = folder / "data"
    options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off"

    def run(*command: str) -> None:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder, **person)  # type: ignore[call-overload]

    run(str(programs / "initdb"), "-D", str(data), "-A", "trust", "-U", "postgres", "--no-sync",
        "-E", "UTF8", "--locale=C")  # fmt: skip
    run(str(programs / "pg_ctl"), "-D", str(data), "-o", options, "-w", "-l", str(folder / "log"), "start")
    try:
        with psycopg.connect(host=str(folder), user="postgres", dbname="postgres") as connection:
            yield connection
    finally:
        run(str(programs / "pg_ctl"), "-D", str(data), "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


def batch_of(query: str, types: list[str], copies: int = 1) -> pa.RecordBatch:
    """One batch of a query's rows, each `copies` times; wrapped where it must be."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        text = datarow.wrapped(query, types) or query
        if copies > 1:
            text = f"SELECT x.* FROM ({text}) AS x, range({copies})"
        table = connection.sql(text).to_arrow_table()
    return table.combine_chunks().to_batches()[0]


def sql(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


@pytest.mark.postgres
@pytest.mark.parametrize("zone", ZONES)
def test_bytes_are_those_of_postgres(postgres: psycopg.Connection, zone: str) -> None:
    postgres.execute(f"SET TimeZone = '{zone}'")
    wanted: dict[int, list[bytes | None]] = {}
    query = ", ".join(f"{sql(value.split('|')[-1])}::{type_}" for _, type_, value in VALUES)
    for format_ in (0, 1):
        result = postgres.cursor(binary=bool(format_)).execute(f"SELECT {query}").pgresult
        assert result is not None
        wanted[format_] = [result.get_value(0, place) for place in range(len(VALUES))]
    types = [type_ for type_, _, _ in VALUES]
    columns = ", ".join(f"CAST({sql(v.split('|')[0])} AS {t}) AS c{i}" for i, (t, _, v) in enumerate(VALUES))
    for copies in (1, 100):  # value by value, column by column
        batch = batch_of(f"SELECT {columns}", types, copies)
        for format_ in (0, 1):
            rows = datarow.messages(batch, types, [format_], zone)
            assert len(rows) == copies
            for (type_, _, value), ours, theirs in zip(
                VALUES, datarow.fields(rows[-1]), wanted[format_], strict=True
            ):
                assert ours == theirs, (type_, value, format_, copies)


@pytest.mark.postgres
def test_text_arrays_and_types(postgres: psycopg.Connection) -> None:
    for format_ in (0, 1):
        result = postgres.cursor(binary=bool(format_)).execute("SELECT %s::text[]", TEXT_ARRAYS).pgresult
        assert result is not None
        for copies in (1, 500):
            column = pa.array(TEXT_ARRAYS * copies, pa.list_(pa.string()))
            batch = pa.RecordBatch.from_arrays([column], ["a"])
            row = datarow.messages(batch, ["VARCHAR[]"], [format_])[-1]
            assert datarow.fields(row) == [result.get_value(0, 0)]
    for type_, name, _ in VALUES:
        told = pg_type(type_)
        found = postgres.execute(
            "SELECT oid, typlen, typname FROM pg_type WHERE oid = %s::regtype", [name]
        ).fetchone()
        assert found == (told.oid, told.length, told.name), type_


@pytest.mark.parametrize("format_", [0, 1])
@pytest.mark.parametrize("zone", ["UTC", "America/St_Johns"])
def test_short_and_long_batches_agree(format_: int, zone: str) -> None:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        types = ["BIGINT", "DOUBLE", "FLOAT", "DECIMAL(12,4)", "VARCHAR", "BLOB", "DATE", "TIME", "TIMESTAMP",
                 "TIMESTAMP WITH TIME ZONE", "BOOLEAN", "INTEGER[]", "VARCHAR[]", "TIMESTAMP_NS", "INTERVAL",
                 "TIMESTAMP WITH TIME ZONE[]", "UUID", "JSON"]  # fmt: skip
        made = [
            "i * 7919 - 500", "i / 7.0", "(i / 7.0)::FLOAT",
            "(i / 7.0)::DECIMAL(12,4)", "repeat('é', (i % 5)::INTEGER)",
            "encode(repeat('b', (i % 7)::INTEGER))",
            "DATE '1990-01-01' + i::INTEGER", "TIME '00:00:00' + to_microseconds(i * 7654321)",
            "TIMESTAMP '1950-01-01' + to_microseconds(i * 98765432109)",
            "TIMESTAMPTZ '1850-01-01 00:00:00+00' + to_seconds(i * 10000019)", "i % 3 = 0",
            "[i, NULL, 2]::INTEGER[]", "['a b', NULL, i::VARCHAR, '']",
            "(TIMESTAMP '1990-01-01' + to_seconds(i))::TIMESTAMP_NS",
            "to_days(i::INTEGER) + to_microseconds(i)",
            "[TIMESTAMPTZ '2020-01-01 00:00:00+00' + to_hours(i)]", "md5(i::VARCHAR)::UUID", "to_json(i)",
        ]  # fmt: skip
        columns = ", ".join(
            f"CASE WHEN (i + {place}) % 5 <> 0 THEN CAST({x} AS {t}) END AS c{place}"
            for place, (x, t) in enumerate(zip(made, types, strict=True))
        )
        query = f"SELECT {columns} FROM range(600) AS r(i)"
        text = datarow.wrapped(query, types)
        assert text is not None
        batch = connection.sql(text).to_arrow_table().combine_chunks().to_batches()[0]
    whole = datarow.messages(batch, types, [format_], zone)
    assert b"".join(whole) == bytes(datarow.encode(batch, types, [format_], zone))
    pieces = [datarow.messages(batch.slice(start, 10), types, [format_], zone) for start in range(0, 600, 10)]
    assert [row for piece in pieces for row in piece] == whole
    # A slice that does not begin at the buffers' beginning.
    assert datarow.messages(batch.slice(100, 300), types, [format_], zone) == whole[100:400]


def test_events_in_text() -> None:
    types = ["BIGINT", "INTEGER", "VARCHAR", "JSON", "TIMESTAMP WITH TIME ZONE", "BOOLEAN", "JSON"]
    query = (
        "SELECT 7::BIGINT, 3::INTEGER, 'insert', '{\"id\": 1}'::JSON, "
        "TIMESTAMPTZ '2026-01-01 10:00:00.5+00', true, NULL::JSON"
    )
    assert datarow.wrapped(query, types) is None
    [row] = datarow.messages(batch_of(query, types), types)
    assert row[:1] == b"D"
    assert struct.unpack("!i", row[1:5])[0] == len(row) - 1
    assert datarow.fields(row) == [
        b"7", b"3", b"insert", b'{"id": 1}', b"2026-01-01 10:00:00.5+00", b"t", None
    ]  # fmt: skip


def test_nested_values_go_as_json() -> None:
    types = ["STRUCT(a INTEGER, b VARCHAR)", "MAP(INTEGER, VARCHAR)", "INTEGER[][]", "UNION(u INTEGER)",
             "VARIANT", "STRUCT(a INTEGER)[]", "JSON[]"]  # fmt: skip
    query = (
        "SELECT {'a': 1, 'b': 'x'}, MAP {1: 'y'}, [[1], NULL], union_value(u := 5), 5::VARIANT, "
        "[{'a': 2}], ['{\"k\": 1.50}'::JSON] -- a comment"
    )
    for format_ in (0, 1):
        [row] = datarow.messages(batch_of(query, types), types, [format_])
        found = datarow.fields(row)
        assert found[:6] == [b'{"a":1,"b":"x"}', b'[[1,"y"]]', b"[[1],null]", b'{"u":5}', b"5", b'[{"a":2}]']
        assert found[6] is not None
        assert (b'{"{\\"k\\": 1.50}"}' if not format_ else b'{"k": 1.50}') in found[6]


def test_unwrapped_odd_columns_are_refused() -> None:
    with duckdb.connect() as connection:
        for query, type_ in [
            ("SELECT {'a': 1}", "STRUCT(a INTEGER)"),
            ("SELECT '12:00:00+02'::TIMETZ", "TIME WITH TIME ZONE"),
            ("SELECT INTERVAL '1 day'", "INTERVAL"),
            ("SELECT ['12:00:00+02'::TIMETZ]", "TIME WITH TIME ZONE[]"),
        ]:
            batch = connection.sql(query).to_arrow_table().to_batches()[0]
            with pytest.raises(InternalError):
                datarow.messages(batch, [type_])


def test_same_column_names_and_no_columns() -> None:
    types = ["INTEGER", "INTERVAL"]
    batch = batch_of("SELECT 1 AS a, INTERVAL '1 day' AS a", types)
    assert datarow.fields(datarow.messages(batch, types)[0]) == [b"1", b"1 day"]
    assert datarow.encode(pa.RecordBatch.from_arrays([pa.nulls(0)], ["x"]), ['"NULL"']) == b""
    nulls = pa.RecordBatch.from_arrays([pa.nulls(1000)], ["x"])
    assert set(datarow.messages(nulls, ['"NULL"'], [1])) == {b"D\x00\x00\x00\x0a\x00\x01\xff\xff\xff\xff"}


def test_formats() -> None:
    batch = batch_of("SELECT 1 AS a, 2 AS b", ["INTEGER", "INTEGER"])
    [row] = datarow.messages(batch, ["INTEGER", "INTEGER"], [0, 1])
    assert datarow.fields(row) == [b"1", b"\0\0\0\2"]
    with pytest.raises(ProtocolViolation):
        datarow.messages(batch, ["INTEGER", "INTEGER"], [0, 1, 0])
    with pytest.raises(ProtocolViolation):
        datarow.messages(batch, ["INTEGER", "INTEGER"], [2])


def test_fields_refuse_what_is_no_row() -> None:
    batch = batch_of("SELECT 1 AS a, 'text' AS b", ["INTEGER", "VARCHAR"])
    [row] = datarow.messages(batch, ["INTEGER", "VARCHAR"])
    assert datarow.fields(memoryview(row)) == [b"1", b"text"]
    for end in range(len(row)):
        with pytest.raises(ProtocolViolation):
            datarow.fields(row[:end])
    with pytest.raises(ProtocolViolation):
        datarow.fields(row + b"x")


def test_a_whole_number_of_many_digits_has_a_binary_form() -> None:
    binary = numeric_binary("-" + "12345678" * 10_000)
    assert binary[:8] == struct.pack("!hhHH", 20_000, 19_999, 0x4000, 0)
    assert binary[8:] == struct.pack("!HH", 1234, 5678) * 10_000
    with pytest.raises(NumericOutOfRange):
        numeric_binary("9" * 140_000)
