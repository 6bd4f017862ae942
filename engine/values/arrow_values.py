"""Raw values of Arrow columns, from which the text and the binary forms are produced.

A *raw* value is the argument of a form function: int, float, str, bytes, bool, Decimal unchanged, a date as
days from 1970, a time as microseconds from midnight, a timestamp as microseconds from 1970 in UTC (DuckDB's
largest and smallest int for the infinities), an interval as (months, days, microseconds). Python's own dates
and times are not used: they end at year 9999 and know no infinity. A timestamp's nanoseconds are cut off:
PostgreSQL's types have microseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Raw = Any
Ints = npt.NDArray[np.int64]
Interval = tuple[int, int, int]

DATE_INFINITY = 2**31 - 1
TIMESTAMP_INFINITY = 2**63 - 1
# Microseconds of one unit of an Arrow time or timestamp; nanoseconds are divided instead.
UNIT_US = {"s": 1_000_000, "ms": 1000, "us": 1}


class AmbiguousValue(Exception):
    """The error for a value of DuckDB's Python client that may represent another value."""


def ints(column: pa.Array) -> npt.NDArray[Any]:
    """The integers of a column of fixed width (numbers, dates, times); the numbers of NULLs are undefined."""
    if pa.types.is_boolean(column.type):
        values: npt.NDArray[Any] = column.fill_null(False).to_numpy(zero_copy_only=False).view(np.uint8)
        return values
    width = column.type.bit_width // 8
    kind = column.type.to_pandas_dtype() if _is_number(column.type) else f"i{width}"
    buffer = column.buffers()[1]
    if buffer is None or not len(column):
        return np.zeros(len(column), kind)
    return np.frombuffer(buffer, kind, len(column), column.offset * width)


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_))


def microseconds(column: pa.Array) -> Ints:
    """A time or timestamp column in microseconds, infinities kept."""
    values = ints(column).astype(np.int64, copy=False)
    unit = column.type.unit
    if unit == "us":
        return values
    infinite = np.abs(values) >= TIMESTAMP_INFINITY
    scaled: Ints = values // 1000 if unit == "ns" else values * UNIT_US[unit]
    return np.where(infinite, values, scaled) if infinite.any() else scaled


def valid(column: pa.Array) -> npt.NDArray[np.bool_] | None:
    """True for each value that is not NULL; None if the column has no NULLs."""
    if not column.null_count:
        return None
    found: npt.NDArray[np.bool_] = pc.is_valid(column).to_numpy(zero_copy_only=False)
    return found


def filled(column: pa.Array, values: npt.NDArray[Any], null: int = 0) -> npt.NDArray[Any]:
    """A column's numbers with `null` where it is NULL: Arrow does not define the number there."""
    there = valid(column)
    return values if there is None else np.where(there, values, null)


def _with_nulls(column: pa.Array, values: list[Any]) -> list[Raw]:
    if not column.null_count:
        return values
    valid = pc.is_valid(column).to_pylist()
    return [value if there else None for value, there in zip(values, valid, strict=True)]


def raw_ints(column: pa.Array) -> list[Raw]:
    """The raw values of dates and of all other types that Arrow stores as integers."""
    return _with_nulls(column, ints(column).tolist())


def raw_microseconds(column: pa.Array) -> list[Raw]:
    """The raw values of times and timestamps."""
    return _with_nulls(column, microseconds(column).tolist())


def raw_objects(column: pa.Array) -> list[Raw]:
    """The raw values of numbers, texts, bytes and decimals, as Python objects."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    values: list[Raw] = column.to_pylist()
    return values


def raw_list(column: pa.Array, element: Callable[[pa.Array], list[Raw]]) -> list[Raw]:
    """The raw values of lists and arrays: a Python list of raw elements for each row."""
    starts, child = list_parts(column)
    values = element(child)
    bounds = starts.tolist()
    rows = [values[start:end] for start, end in pairwise(bounds)]
    return _with_nulls(column, rows)


def list_parts(column: pa.Array) -> tuple[Ints, pa.Array]:
    """A list column as the bounds of its rows (one more than there are rows) and its elements.

    A NULL row has no elements.
    """
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    bounds = np.zeros(len(column) + 1, np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return bounds, column.flatten()


def is_text(type_: pa.DataType) -> bool:
    """True if an Arrow type is text, of any offset width."""
    return any(is_(type_) for is_ in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))
