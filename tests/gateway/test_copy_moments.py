"""Dates and timestamps of COPY: what Arrow reads by itself is what the decoder reads."""

from __future__ import annotations

from dataclasses import replace

import duckdb
import pyarrow as pa
import pytest

from ducktail.engine.values.copy_columns import BadValue, ColumnLoader, column_loader

DAYS = ("2024-01-02", "2024-02-29", "2023-02-29", "0002-01-01", "0000-01-01", "9998-12-31", "2024-1-2", "x")
CLOCKS = (
    "", " 12:34:56", "T12:34:56.1", " 23:59:59.999999", " 24:00:00", " 12:60:00", " 12:34",
    " 00:00:00.12345678",
)  # fmt: skip
ZONES = ("", "Z", "+00", "-05", "+05:30", "+0530", "+15:59", "+99", " UTC")


def told(loader: ColumnLoader, text: str, connection: duckdb.DuckDBPyConnection) -> str:
    """What a text becomes, or with which error."""
    try:
        column = loader.load([text, None])
    except BadValue as bad:
        return bad.error.sqlstate
    connection.register("rows", pa.table({"c": column}))
    try:
        found = connection.execute(f"SELECT {loader.cast('c')}::VARCHAR FROM rows").fetchall()
    except duckdb.Error as error:
        return type(error).__name__
    assert found[1] == (None,)
    return str(found[0][0])


@pytest.mark.parametrize("type_", ["DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE"])
def test_the_quick_way_reads_what_the_decoder_reads(type_: str) -> None:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'Europe/Paris'")
    quick = column_loader(type_, "Europe/Paris")
    slow = replace(quick, moment=None)
    assert quick.moment is not None
    for day in DAYS:
        for clock in CLOCKS:
            for zone in ZONES:
                text = day + clock + zone
                assert told(quick, text, connection) == told(slow, text, connection), text


def test_the_quick_way_is_taken() -> None:
    assert column_loader("TIMESTAMP", "UTC").load(["2024-01-02 03:04:05", None]).type == pa.timestamp("us")
    assert column_loader("DATE", "UTC").load(["2024-01-02"]).type == pa.date32()
    assert column_loader("DATE", "UTC").load(["2024-01-02", "infinity"]).type == pa.string()
