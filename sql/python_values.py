"""The rows of a result as Python values, and as one Arrow table.

Arrow's own conversion does most of it; the table below says what the other types become: a HUGEINT
is an int, a UUID a uuid.UUID, an INTERVAL a timedelta (a month counts thirty days, as in DuckDB's
own client), JSON stays text. STRUCT, MAP, UNION and lists of lists come as JSON (engine/datarow.py,
`wrapped`) and are decoded, as a client does that gets them over the wire. A date or timestamp that
Python cannot hold (infinity, years beyond 9999) is the nearest one that it can.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from ..engine.arrow_values import read_interval
from ..engine.duckdb_types import read_type
from ..engine.pgtypes import is_array
from .results import Result, ResultColumn

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
    read = read_type(type_)
    if is_array(read):
        inner = CONVERSIONS.get(read.children[0].name)
        if inner is None:
            return None
        return lambda items: [None if item is None else inner(item) for item in items]
    return json.loads if read.nested else CONVERSIONS.get(read.name)


def _interval(text: str) -> datetime.timedelta:
    months, days, microseconds = read_interval(text)
    return datetime.timedelta(days=months * DAYS_A_MONTH + days, microseconds=microseconds)


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
    "UHUGEINT": int,
    "BIGNUM": int,
    "UUID": UUID,
    "INTERVAL": _interval,
    "TIME WITH TIME ZONE": datetime.time.fromisoformat,
}
