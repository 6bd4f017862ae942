"""Columns of Arrow types into columns of DuckDB's: which go as they are, by a cast, or not at all.

A value arrives as it is, or the COPY fails: what a cast would round is refused by its type (a DOUBLE into a
DECIMAL, nanoseconds into a TIMESTAMP), what may be too large is looked at value by value (a BIGINT into an
INTEGER). Text goes into a column of any type, read as COPY's text format reads it.
Source: docs/sql.md, "COPY".
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from ..quoting import fold, ident
from .arrow_form import carrier
from .duckdb_types import INTEGERS, DuckType, read_type
from .text_loading import ColumnLoader, column_loader

# Arrow's types -> DuckDB's, as DuckDB reads them.
_NAMES: dict[pa.DataType, str] = {
    pa.null(): '"NULL"', pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INTEGER", pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT", pa.uint16(): "USMALLINT", pa.uint32(): "UINTEGER", pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT", pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR", pa.large_string(): "VARCHAR", pa.string_view(): "VARCHAR",
    pa.binary(): "BLOB", pa.large_binary(): "BLOB", pa.binary_view(): "BLOB",
    pa.date32(): "DATE",
    pa.time32("s"): "TIME", pa.time32("ms"): "TIME", pa.time64("us"): "TIME", pa.time64("ns"): "TIME_NS",
    pa.timestamp("s"): "TIMESTAMP_S", pa.timestamp("ms"): "TIMESTAMP_MS",
    pa.timestamp("us"): "TIMESTAMP", pa.timestamp("ns"): "TIMESTAMP_NS",
}  # fmt: skip
# Bits of whole numbers that a floating point number holds.
_EXACT_BITS = {"FLOAT": 24, "DOUBLE": 53}
_BITS = {
    "TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64,
    "UTINYINT": 8, "USMALLINT": 16, "UINTEGER": 32, "UBIGINT": 64,
}  # fmt: skip
# From the coarsest unit to the finest.
_TIMESTAMPS = ("TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP", "TIMESTAMP_NS")
_FINER = frozenset(
    {(source, target) for at, source in enumerate(_TIMESTAMPS) for target in _TIMESTAMPS[at + 1 :]}
    | {("TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ_NS"), ("TIME", "TIME_NS"), ("FLOAT", "DOUBLE")}
)
# What DuckDB's own cast from text refuses as well as COPY's decoder does.
_CAST_FROM_TEXT = frozenset({"JSON", "UUID"})


def arrow_loader(source: pa.DataType, target: str | None, timezone: str | None) -> ColumnLoader | None:
    """How a column gets into one of a DuckDB type; None where that would lose something.

    Args:
        source: of those that `arrow_stream` gives.
        target: None for what takes every type as it is.
        timezone: the session's, for texts without an offset.
    """
    if target is None:
        return ColumnLoader(source, str)
    found, wanted = read_type(duck_type(source)), read_type(target)
    if found.text == wanted.text:
        return ColumnLoader(source, str)
    if found.name == "VARCHAR":
        if wanted.name in _CAST_FROM_TEXT:
            return ColumnLoader(source, str, target)
        return column_loader(target, timezone)
    return ColumnLoader(source, str, target) if _is_kept(found, wanted) else None


def first_nul(column: pa.ChunkedArray) -> int | None:
    """The place of the first value with a NUL character in a text, where PostgreSQL has none."""
    if not _has_text(column.type) or not _any_nul(column):
        return None
    # The shortest beginning that has one.
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _any_nul(column.slice(low, middle - low)) else (middle, high)
    return low


def _has_text(type_: pa.DataType) -> bool:
    """Whether values of a type are texts, or hold some."""
    if pa.types.is_nested(type_):
        return any(_has_text(type_.field(place).type) for place in range(type_.num_fields))
    return type_ in (pa.string(), pa.large_string(), pa.string_view())


def _any_nul(values: pa.ChunkedArray | pa.Array) -> bool:
    if isinstance(values, pa.ChunkedArray):
        return any(map(_any_nul, values.chunks))
    if not _has_text(values.type):
        return False
    if isinstance(values, pa.StructArray):
        return any(map(_any_nul, values.flatten()))
    if isinstance(values, pa.MapArray):
        first, last = values.offsets[0].as_py(), values.offsets[-1].as_py()
        return any(_any_nul(part.slice(first, last - first)) for part in (values.keys, values.items))
    if pa.types.is_nested(values.type):
        return _any_nul(values.flatten())
    if pa.types.is_string_view(values.type):
        values = values.cast(pa.large_string())
    return bool(pc.any(pc.match_substring(values, "\0")).as_py())


def duck_type(type_: pa.DataType) -> str:
    """The DuckDB type as which DuckDB reads an Arrow type.

    >>> duck_type(pa.list_(pa.struct({"a": pa.decimal128(5, 2)})))
    'STRUCT("a" DECIMAL(5,2))[]'
    """
    name = _NAMES.get(type_)
    if name is not None:
        return name
    if pa.types.is_decimal(type_):
        return f"DECIMAL({type_.precision},{type_.scale})"
    if pa.types.is_timestamp(type_):
        return "TIMESTAMPTZ_NS" if type_.unit == "ns" else "TIMESTAMP WITH TIME ZONE"
    if pa.types.is_struct(type_):
        members = ", ".join(f"{ident(field.name)} {duck_type(field.type)}" for field in type_)
        return f"STRUCT({members})"
    if pa.types.is_map(type_):
        return f"MAP({duck_type(type_.key_type)}, {duck_type(type_.item_type)})"
    if pa.types.is_fixed_size_list(type_):
        return f"{duck_type(type_.value_type)}[{type_.list_size}]"
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return f"{duck_type(type_.value_type)}[]"
    assert pa.types.is_fixed_size_binary(type_), type_
    return "BLOB"


def _is_kept(source: DuckType, target: DuckType) -> bool:
    """Whether a cast gives each value as it was, or an error."""
    if source.name == "NULL":
        return True
    if source.name in INTEGERS:
        exact = _EXACT_BITS.get(target.name)
        if exact is not None:
            return _BITS[source.name] <= exact
        return target.name in INTEGERS or target.name == "DECIMAL"
    if source.name == target.name == "DECIMAL":
        return target.scale >= source.scale
    if source.name in ("LIST", "ARRAY") and target.name in ("LIST", "ARRAY"):
        return _is_inner_kept(source, target)
    if source.name == target.name and source.name in ("STRUCT", "MAP"):
        names, wanted = ([fold(name) for name in type_.fields] for type_ in (source, target))
        return names == wanted and _is_inner_kept(source, target)
    if (source.name, target.name) in _FINER:
        return True
    return source.name == target.name and source.numbers == target.numbers and not source.children


def _is_inner_kept(source: DuckType, target: DuckType) -> bool:
    pairs = list(zip(source.children, target.children, strict=False))
    return len(source.children) == len(target.children) and all(
        _is_inner_text(one, other) or _is_kept(one, other) for one, other in pairs
    )


def _is_inner_text(source: DuckType, target: DuckType) -> bool:
    """Whether it is what COPY TO sends of such a value: its text."""
    return source.name == "VARCHAR" and carrier(target.text) == "VARCHAR"
