"""Columns of a data frame as the gateway takes them: batches of an Arrow IPC stream for COPY ... FROM STDIN.

A column goes as it is where the table's type holds all its values; as PostgreSQL's text of its type where it
does not (a double for a DECIMAL, a number for a VARCHAR): the gateway then reads each value. What has no such
text (arrays, structs, maps) is JSON, and is cast where it is stored.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from .errors import ConnectorError

# Whole numbers of more bits are not all in a double.
EXACT_BITS = 32
# A batch's bytes, in which the gateway has a bound.
BATCH_BYTES_MAX = 16 * 1024 * 1024
# The mark of a stream's end.
END = b"\xff\xff\xff\xff\0\0\0\0"

# Arrow's types whose text is the same to Arrow and on the wire.
_AS_THEY_ARE = (
    pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_date,
    pa.types.is_string, pa.types.is_large_string, pa.types.is_timestamp, pa.types.is_time,
)  # fmt: skip
_NESTED = (pa.types.is_list, pa.types.is_large_list, pa.types.is_struct, pa.types.is_map)

# Arrow's types -> DuckDB's, for a topic's key.
_KEYS = (
    (pa.types.is_string, "VARCHAR"),
    (pa.types.is_large_string, "VARCHAR"),
    (pa.types.is_integer, "BIGINT"),
    (pa.types.is_boolean, "BOOLEAN"),
    (pa.types.is_date, "DATE"),
    (pa.types.is_binary, "BLOB"),
    (pa.types.is_large_binary, "BLOB"),
)


def is_nested(type_: pa.DataType) -> bool:
    """Whether its values are sent as JSON."""
    return any(is_one(type_) for is_one in _NESTED)


def can_be_sent(type_: pa.DataType) -> bool:
    """Whether there is a text for values of a type; for intervals there is none."""
    if pa.types.is_struct(type_):
        return all(can_be_sent(field.type) for field in type_)
    if pa.types.is_map(type_):
        return can_be_sent(type_.item_type)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return can_be_sent(type_.value_type)
    others = (pa.types.is_decimal, pa.types.is_binary, pa.types.is_large_binary, pa.types.is_null)
    return any(is_one(type_) for is_one in (*_AS_THEY_ARE, *others))


def has_inner_bytes(type_: pa.DataType) -> bool:
    """Whether there are bytes in its lists, structs or maps: JSON has them as base64, which no BLOB reads."""
    if not is_nested(type_):
        return False
    inner = [type_.field(at).type for at in range(type_.num_fields)]
    return any(
        pa.types.is_binary(one) or pa.types.is_large_binary(one) or has_inner_bytes(one) for one in inner
    )


def key_type(type_: pa.DataType) -> str | None:
    """DuckDB's type of a topic's key, None where such a key cannot be."""
    if pa.types.is_timestamp(type_):
        return "TIMESTAMP" if type_.tz is None else "TIMESTAMPTZ"
    return next((name for is_one, name in _KEYS if is_one(type_)), None)


def payload_type(type_: pa.DataType) -> str | None:
    """DuckDB's type of a payload: text or bytes; a nested one is JSON."""
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        return "BLOB"
    if pa.types.is_string(type_) or pa.types.is_large_string(type_) or is_nested(type_):
        return "VARCHAR"
    return None


def prepared(batch: pa.RecordBatch, names: list[str], wanted: pa.Schema) -> pa.RecordBatch:
    """The rows of a batch, of types that a COPY into columns of these types takes.

    Args:
        names: the columns that go; each `can_be_sent`.
        wanted: the table's columns in that order, as COPY ... TO STDOUT (FORMAT arrow) gives them.
    """
    columns = [
        _sent(batch.column(batch.schema.get_field_index(name)), field.type)
        for name, field in zip(names, wanted, strict=True)
    ]
    return pa.record_batch(columns, names=names)


def cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of a size that the gateway takes."""
    if batch.nbytes <= BATCH_BYTES_MAX or batch.num_rows < 2:
        yield batch
        return
    half = batch.num_rows // 2
    yield from cut(batch.slice(0, half))
    yield from cut(batch.slice(half))


def _sent(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    type_ = column.type
    if is_nested(type_):
        texts = (None if value is None else _json(_plain(value, type_)) for value in column.to_pylist())
        return pa.array(texts, pa.string())
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        # The session is in UTC.
        column = column.cast(pa.timestamp("us", "UTC"))
        type_ = column.type
    if _is_held(type_, wanted):
        return column
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        values = (None if value is None else "\\x" + value.hex() for value in column.to_pylist())
        return pa.array(values, pa.string())
    return column.cast(pa.string())


def _is_held(type_: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether COPY takes values of a type for a column of another: docs/sql.md, "COPY"."""
    if type_ == wanted or pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return True
    if pa.types.is_null(type_):
        return True
    if pa.types.is_integer(type_):
        exact = pa.types.is_float64(wanted) and type_.bit_width <= EXACT_BITS
        return bool(exact or pa.types.is_integer(wanted) or pa.types.is_decimal(wanted))
    if pa.types.is_decimal(type_) and pa.types.is_decimal(wanted):
        return bool(type_.scale <= wanted.scale)
    return bool(pa.types.is_float32(type_) and pa.types.is_float64(wanted))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=_scalar)


def _plain(value: Any, type_: pa.DataType) -> Any:
    """A nested value with maps as objects, which pyarrow gives as lists of pairs."""
    if value is None:
        return None
    if pa.types.is_map(type_):
        return {str(key): _plain(item, type_.item_type) for key, item in value}
    if pa.types.is_struct(type_):
        return {field.name: _plain(value[field.name], field.type) for field in type_}
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return [_plain(item, type_.value_type) for item in value]
    return value


def _scalar(value: Any) -> str:
    """What JSON has no literal for, as DuckDB's casts from JSON read it."""
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, decimal.Decimal | uuid.UUID):
        return str(value)
    raise ConnectorError(f"a value of type {type(value).__name__} cannot be written as JSON")
