"""Literals of dates and times in PostgreSQL's forms by the type of their place, and offsets as time zones.

Literals with a type are in tests/clients/functions.tsv, with PostgreSQL's answers.
"""

from __future__ import annotations

import datetime
import io
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from server_process import ServerProcess

Connection = psycopg.Connection[Any]

TABLE = """CREATE TABLE moments (id integer, z timestamptz, t timetz, u time, v interval, s timestamp,
    d date, x text)"""
ROW = (
    "'2000-01-01 00:00+2', '10:20+2', '10:20+2', '1 day +02:03:04', '0044-03-15 01:02:03 BC', '0044-03-15 BC'"
)


@pytest.mark.parametrize("captured", [False, True], ids=["plain", "captured"])
def test_literals_are_read_by_their_place(shared: ServerProcess, captured: bool) -> None:
    with shared.connect() as con:
        con.execute(TABLE)
        if captured:
            con.execute("CREATE STREAM moments_stream ON moments")
        try:
            con.execute(f"INSERT INTO moments VALUES (1, {ROW}, '10:20+2')")
            con.execute("INSERT INTO moments (id, z, x) VALUES (2, '2000-01-01 00:00:01.5 -7:08', 'P1D')")
            con.execute("UPDATE moments SET v = 'P1Y2M3DT4H5M6S', t = '11:00:00Z', x = '1 BC' WHERE id = 2")
            found = con.execute(
                "SELECT z::text, t::text, u::text, v::text, x FROM moments ORDER BY id"
            ).fetchall()
            assert found == [
                ("1999-12-31 22:00:00+00", "10:20:00+02", "10:20:00", "1 day 02:03:04", "10:20+2"),
                ("2000-01-01 07:08:01.5+00", "11:00:00+00", None, "1 year 2 months 3 days 04:05:06", "1 BC"),
            ]
            count = "SELECT count(*) FROM moments WHERE"
            for condition in (
                "z = '2000-01-01 00:00+2'",
                "s = '0044-03-15 01:02:03 BC'",
                "d <= '0044-03-15 BC'",
            ):
                assert con.execute(f"{count} {condition}").fetchone() == (1,), condition
        finally:
            con.execute("DROP TABLE moments CASCADE")


def test_far_moments_as_parameters(shared: ServerProcess) -> None:
    texts = [
        ("9999-12-31 23:59:59-06", "10000-01-01 05:59:59+00"),
        ("0001-01-01 00:00:00+09:18:59", "0001-12-31 14:41:01+00 BC"),
        ("12345-01-01 00:00:00 America/Chicago", "12345-01-01 06:00:00+00"),
        ("9999-12-31 24:00:00+00", "10000-01-01 00:00:00+00"),
    ]
    with shared.connect() as con:
        for text, shown in texts:
            result = con.execute("SELECT %t::timestamptz", [text]).pgresult
            assert result is not None and result.get_value(0, 0) == shown.encode(), text
        for text in ("9999-02-30 00:00:00-06", "0000-01-01 00:00+00"):
            with pytest.raises(psycopg.DataError):
                con.execute("SELECT %t::timestamptz", [text])


def test_offsets_as_time_zones(shared: ServerProcess) -> None:
    east = datetime.timezone(datetime.timedelta(hours=5, minutes=30))
    with shared.connect() as con:
        for text in (
            "'-05:30'",
            "5.5",
            "INTERVAL '+05:30' HOUR TO MINUTE",
            "'ABC-05:30'",
            "'<+05:30>-05:30'",
        ):
            con.execute(f"SET TIME ZONE {text}".encode())
            assert con.info.parameter_status("TimeZone") == "<+05:30>-05:30", text
            result = con.execute("SELECT '2000-01-01 00:00'::timestamptz, '03:04:05'::timetz").pgresult
            assert result is not None
            assert result.get_value(0, 0) == b"2000-01-01 00:00:00+05:30"
            assert result.get_value(0, 1) == b"03:04:05+05:30"
        text = "COPY (SELECT '2000-01-01 00:00'::timestamptz AS z) TO STDOUT (FORMAT arrow)"
        with con.cursor() as cursor, cursor.copy(text.encode()) as copy:
            data = b"".join(bytes(piece) for piece in copy)
        found = pa.ipc.open_stream(io.BytesIO(data)).read_all()
        assert found.to_pydict() == {"z": [datetime.datetime(2000, 1, 1, tzinfo=east)]}
        for text in ("'+16:30'", "5.001", "'+05:30:15'"):
            with pytest.raises(psycopg.errors.InvalidParameterValue):
                con.execute(f"SET TIME ZONE {text}".encode())


def test_digits_are_described(shared: ServerProcess) -> None:
    """The names and modifiers are PostgreSQL's."""
    text = """SELECT NULL::time(2) AS a, '10:00'::time(6) b, CAST(NULL AS timestamp(2) with time zone),
        NULL::interval(3), now()::timestamptz(0), NULL::timestamp(3), 1 AS x, x.y::time(1)
        FROM (SELECT '10:00'::time(3)) x(y)"""
    described = [
        ("a", "time(2)"), ("b", "time(6)"), ("timestamptz", "timestamptz(2)"), ("interval", "interval(3)"),
        ("now", "timestamptz(0)"), ("timestamp", "timestamp(3)"), ("x", "int4"), ("y", "time(1)"),
    ]  # fmt: skip
    with shared.connect() as con:
        for prepared in (False, True):
            cursor = con.execute(text, prepare=prepared)
            assert [(column.name, column.type_display) for column in cursor.description or ()] == described
        con.execute("CREATE TABLE described (a timestamp(3), b timestamp(0)[])")
        result = con.execute("SELECT * FROM described").pgresult
        assert result is not None and [result.fmod(at) for at in (0, 1)] == [3, 0]
        shown = con.execute(
            "SELECT format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = 'described'::regclass AND attnum > 0 ORDER BY attnum"
        ).fetchall()
        assert shown == [("timestamp(3) without time zone",), ("timestamp(0) without time zone[]",)]
        con.execute("DROP TABLE described")
        con.execute("SET DateStyle = German")
        result = con.execute("SELECT '2000-01-02 03:04:05.678'::timestamp(2), '-1.5 s'::interval(0)").pgresult
        assert result is not None
        assert [result.get_value(0, at) for at in (0, 1)] == [b"02.01.2000 03:04:05.68", b"-00:00:02"]
        assert [result.fmod(at) for at in (0, 1)] == [2, 0x7FFF << 16]


def test_digits_beside_another_parameter(shared: ServerProcess) -> None:
    with shared.connect() as con:
        found = con.execute("SELECT %t, %t::time(2), %t::timestamp(1)", ["1", "10:11:12.345", "2024-01-02"])
        assert found.fetchone() == ("1", datetime.time(10, 11, 12, 350000), datetime.datetime(2024, 1, 2))
