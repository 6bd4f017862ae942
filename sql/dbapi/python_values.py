"""The rows of a result as Python values, and as one Arrow table.

Arrow's own conversion does most of it; the table below says what the other types become, after
DuckDB's own Python client: a HUGEINT is an int, a UUID a uuid.UUID, an INTERVAL a timedelta (a month
counts thirty days), a STRUCT and a MAP a dict; JSON stays text. A date or timestamp that Python
cannot hold (infinity, years beyond 9999) is the nearest one that it can. Some types are not whole in
Arrow (TIME WITH TIME ZONE loses its zone): they come as text or are refused, never as another value.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from ...engine.errors import NotSupported
from ...engine.values.arrow_values import read_interval
from ...engine.values.duckdb_types import DuckType, read_type
from ..results.results import Result, ResultColumn

Row = tuple[Any, ...]
Convert = Callable[[Any], Any]

DAYS_A_MONTH = 30


def rows(batch: pa.RecordBatch, columns: Sequence[ResultColumn]) -> list[Row]:
    """The rows of a batch, a tuple each."""
    taken = [values(array, column.type) for array, column in zip(batch.columns, columns, strict=True)]
    return list(zip(*taken, strict=True)) if taken else [()] * batch.num_rows


def values(array: pa.Array, type_: str) -> list[Any]:
    """The values of one column."""
    if pa.types.is_timestamp(array.type) and array.type.unit == "ns":
        array = pc.cast(array, pa.timestamp("us", array.type.tz), safe=False)
    elif pa.types.is_time64(array.type) and array.type.unit == "ns":
        array = pc.cast(array, pa.time64("us"), safe=False)
    try:
        taken: list[Any] = array.to_pylist()
    except (OverflowError, ValueError):
        taken = [_nearest(value) for value in array]
    convert = conversion(type_)
    if convert is None:
        return taken
    return [None if value is None else convert(value) for value in taken]


def arrow_table(result: Result) -> pa.Table:
    """All rows of a result that are left, as one Arrow table."""
    assert result.columns is not None
    names = [column.name for column in result.columns]
    batches = []
    while (batch := result.fetch(None)) is not None:
        batches.append(batch.record_batch())
    if not batches:
        return pa.table([pa.nulls(0)] * len(names), names=names)
    return pa.Table.from_batches(batches).rename_columns(names)


@lru_cache(maxsize=1024)
def conversion(type_: str) -> Convert | None:
    """What Arrow's Python value of a DuckDB type still has to go through; None for nothing."""
    return _of(read_type(type_))


def _of(read: DuckType) -> Convert | None:
    nested = NESTED.get(read.name)
    if nested is None:
        return CONVERSIONS.get(read.name)
    return nested(read, [_of(child) for child in read.children])


def _list(read: DuckType, children: list[Convert | None]) -> Convert | None:
    [inner] = children
    if inner is None:
        return None
    return lambda items: [_through(inner, item) for item in items]


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


def _interval(value: Any) -> datetime.timedelta:
    if isinstance(value, str):
        months, days, microseconds = read_interval(value)
    else:
        months, days, microseconds = value.months, value.days, value.nanoseconds // 1000
    return datetime.timedelta(days=months * DAYS_A_MONTH + days, microseconds=microseconds)


def _bits(value: bytes | str) -> str:
    """DuckDB's bits: the first byte says how many bits of padding the next one begins with."""
    if isinstance(value, str):
        return value
    return "".join(f"{byte:08b}" for byte in value[1:])[value[0] :]


def _from_text(type_: str, read: Callable[[str], Any]) -> Convert:
    """Of a type that Arrow does not carry whole: read from text, and from nothing else."""

    def convert(value: Any) -> Any:
        if not isinstance(value, str):
            raise NotSupported(
                f"a value of type {type_} cannot be fetched in process",
                detail="Arrow, which carries the rows, would change it.",
                hint="Cast it: value::VARCHAR.",
            )
        return read(value)

    return convert


def _nearest(scalar: pa.Scalar) -> Any:
    """A date or timestamp as Python has it, or the first or last one that Python can hold."""
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        late = scalar.value > 0
        if pa.types.is_date(scalar.type):
            return datetime.date.max if late else datetime.date.min
        edge = datetime.datetime.max if late else datetime.datetime.min
        return edge.replace(tzinfo=datetime.UTC) if scalar.type.tz else edge


CONVERSIONS: dict[str, Convert] = {
    "HUGEINT": int,
    "UHUGEINT": _from_text("UHUGEINT", int),
    "BIGNUM": _from_text("BIGNUM", int),
    "UUID": UUID,
    "INTERVAL": _interval,
    "BIT": _bits,
    "TIME WITH TIME ZONE": _from_text("TIME WITH TIME ZONE", datetime.time.fromisoformat),
}
NESTED: dict[str, Callable[[DuckType, list[Convert | None]], Convert | None]] = {
    "LIST": _list,
    "ARRAY": _list,
    "STRUCT": _struct,
    "TUPLE": _tuple,
    "MAP": _map,
}
