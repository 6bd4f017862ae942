"""The rows of a result as Python values, and as one Arrow table.

A value has the form of DuckDB's own Python client: a HUGEINT is an int, a BIGNUM text, a UUID a uuid.UUID, an
INTERVAL a timedelta (a month counts thirty days), an ARRAY a tuple, a STRUCT and a MAP a dict; JSON stays
text. An infinite date is the first or last date of Python; other values that Python cannot hold (years beyond
9999, 24:00:00, a long INTERVAL) are DuckDB's text, and so are keys of a MAP that DuckDB's client cannot make.

Arrow's own conversion does most of it, with the table below for some types. DuckDB's client converts the
other values (VARIANT, UNION, TIME WITH TIME ZONE, dates that Python cannot hold) from the Arrow rows: that
takes a millisecond or two for each fetch.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from uuid import UUID

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from ...engine.duck.duckdb_errors import translated
from ...engine.values.arrow_types import plain_type, restored_type
from ...engine.values.dates_times import raw_interval
from ...engine.values.duckdb_types import DuckType, read_type
from ..results.results import Result, ResultColumn

Row = tuple[Any, ...]
Convert = Callable[[Any], Any]

DAYS_A_MONTH = 30
DAY_US = 86_400_000_000
# Types whose values Arrow converts, as they are or through CONVERSIONS; also within other values.
DIRECT = frozenset(
    {"NULL", "BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT"}
    | {"UINTEGER", "UBIGINT", "UHUGEINT", "FLOAT", "DOUBLE", "DECIMAL", "VARCHAR", "JSON", "ENUM", "BLOB"}
    | {"UUID", "BIT", "INTERVAL", "DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "TYPE"}
)
# Errors of DuckDB's client for an INTERVAL beyond a timedelta, and for a key of a type that it cannot make.
UNHELD = (OverflowError, duckdb.NotImplementedException)
AS_TEXT = frozenset({"INTERVAL", "BIGNUM", "TIME_NS"})


@dataclass(frozen=True, slots=True)
class ColumnReader:
    """The conversion of the values of a type.

    Args:
        direct: True if Arrow's conversion is used; else DuckDB's client.
        convert: a further conversion of Arrow's value; None for none.
    """

    direct: bool
    convert: Convert | None = None


def rows(
    batch: pa.RecordBatch, columns: Sequence[ResultColumn], cursor: duckdb.DuckDBPyConnection
) -> list[Row]:
    """The rows of a batch as tuples.

    Args:
        cursor: a cursor with the session's settings, for the conversions of DuckDB's client.

    Raises:
        DucktailError: the translated error of DuckDB.
    """
    ways = [way_of(column.type) for column in columns]
    if not columns:
        return [()] * batch.num_rows
    if all(way.direct for way in ways):
        try:
            direct = [_values(array, way) for array, way in zip(batch.columns, ways, strict=True)]
        except (OverflowError, ValueError):
            pass  # A date or time that Python cannot represent.
        else:
            return list(zip(*direct, strict=True))
    with _told():
        return _by_duckdb(pa.Table.from_batches([batch]), [column.type for column in columns], cursor)


def arrow_table(result: Result, cursor: duckdb.DuckDBPyConnection) -> pa.Table:
    """All remaining rows of a result, as one Arrow table with DuckDB's own Arrow types."""
    assert result.columns is not None
    names, types = [column.name for column in result.columns], [column.type for column in result.columns]
    batches = []
    while (batch := result.fetch(None)) is not None:
        batches.append(batch.record_batch())
    if not batches:
        nulls = ", ".join(f"NULL::{type_}" for type_ in types)
        with _told():
            return cursor.sql(f"SELECT {nulls} WHERE false").to_arrow_table().rename_columns(names)
    table = pa.Table.from_batches(batches)
    if any(map(plain_type, types)):
        with _told():
            table = _cast(table, list(map(restored_type, types)), cursor).to_arrow_table()
    return table.rename_columns(names)


@contextmanager
def _told() -> Iterator[None]:
    """Context in which DuckDB's errors are translated."""
    try:
        yield
    except duckdb.Error as error:
        raise translated(error) from error


def _by_duckdb(table: pa.Table, types: Sequence[str], cursor: duckdb.DuckDBPyConnection) -> list[Row]:
    """The rows as DuckDB's client converts them; a value without an equivalent is DuckDB's text."""
    try:
        return _cast(table, list(map(restored_type, types)), cursor).fetchall()
    except UNHELD:
        if table.num_rows > 1:
            return [_by_duckdb(table.slice(row, 1), types, cursor)[0] for row in range(table.num_rows)]
        if len(types) == 1:
            return _cast(table, [restored_type(types[0], AS_TEXT)], cursor).fetchall()
    single = [_by_duckdb(table.select([place]), [type_], cursor) for place, type_ in enumerate(types)]
    return [tuple(value for [(value,)] in single)]


def _cast(
    table: pa.Table, types: Sequence[str], cursor: duckdb.DuckDBPyConnection
) -> duckdb.DuckDBPyRelation:
    places = [f"c{place}" for place in range(len(types))]
    items = [f"{place}::{type_} AS {place}" for place, type_ in zip(places, types, strict=True)]
    return cursor.from_arrow(table.rename_columns(places)).project(", ".join(items))


@lru_cache(maxsize=1024)
def way_of(type_: str) -> ColumnReader:
    """The conversion of the values of a DuckDB type."""
    read = read_type(type_)
    return ColumnReader(direct=True) if read.name == "TIME" else _of(read)


def _values(array: pa.Array, way: ColumnReader) -> list[Any]:
    """The values of one column."""
    if pa.types.is_time64(array.type) and pc.max(array.cast(pa.int64())).as_py() == DAY_US:
        raise OverflowError("24:00:00")
    values: list[Any] = array.to_pylist()
    if way.convert is None:
        return values
    return [_through(way.convert, value) for value in values]


def _of(read: DuckType) -> ColumnReader:
    nested = NESTED.get(read.name)
    if nested is None:
        return ColumnReader(read.name in DIRECT, CONVERSIONS.get(read.name))
    children = [_of(child) for child in read.children]
    # A dict cannot have lists and dicts as keys.
    if not all(child.direct for child in children) or (read.name == "MAP" and read.children[0].nested):
        return ColumnReader(direct=False)
    return ColumnReader(direct=True, convert=nested(read, [child.convert for child in children]))


def _list(read: DuckType, children: list[Convert | None]) -> Convert | None:
    [inner] = children
    if inner is None:
        return None
    return lambda items: [_through(inner, item) for item in items]


def _array(read: DuckType, children: list[Convert | None]) -> Convert:
    [inner] = children
    return lambda items: tuple(_through(inner, item) for item in items)


def _struct(read: DuckType, children: list[Convert | None]) -> Convert | None:
    if not any(children):
        return None
    inner = dict(zip(read.fields, children, strict=True))
    return lambda value: {name: _through(inner[name], item) for name, item in value.items()}


def _tuple(read: DuckType, children: list[Convert | None]) -> Convert:
    def convert(value: dict[str, Any]) -> Row:
        return tuple(_through(inner, item) for inner, item in zip(children, value.values(), strict=True))

    return convert


def _map(read: DuckType, children: list[Convert | None]) -> Convert:
    of_key, of_value = children
    return lambda pairs: {_through(of_key, key): _through(of_value, value) for key, value in pairs}


def _through(convert: Convert | None, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)


def _interval(text: str) -> datetime.timedelta:
    months, days, microseconds = raw_interval(text)
    return datetime.timedelta(days=months * DAYS_A_MONTH + days, microseconds=microseconds)


CONVERSIONS: dict[str, Convert] = {
    "HUGEINT": int,
    "UHUGEINT": int,
    "UUID": UUID,
    "INTERVAL": _interval,
}
NESTED: dict[str, Callable[[DuckType, list[Convert | None]], Convert | None]] = {
    "LIST": _list,
    "ARRAY": _array,
    "STRUCT": _struct,
    "TUPLE": _tuple,
    "MAP": _map,
}
