"""Columns of a data frame as the gateway takes them: Arrow batches as CSV for COPY ... FROM STDIN.

CSV that pyarrow writes is several times faster than values one by one in Python. Each value is PostgreSQL's
text of its type; NULL is an empty field without quotes, an empty text one with quotes, which is how pyarrow
and COPY have it by themselves. What has no such text (arrays, structs, maps) is JSON, and is cast where it is
stored.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import io
import json
import uuid
from typing import Any

import pyarrow as pa
import pyarrow.csv

from .errors import ConnectorError

CSV = pyarrow.csv.WriteOptions(include_header=False)

# Arrow's types whose text is the same in CSV and on the wire.
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


def as_csv(batch: pa.RecordBatch, names: list[str]) -> bytes:
    """The rows of a batch as CSV.

    Args:
        names: the columns, in the order of the COPY; each `can_be_sent`.
    """
    columns = [_sent(batch.column(batch.schema.get_field_index(name))) for name in names]
    sink = io.BytesIO()
    pyarrow.csv.write_csv(pa.table(columns, names=names), sink, CSV)
    return sink.getvalue()


def _sent(column: pa.Array) -> pa.Array:
    type_ = column.type
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        return column.cast(pa.timestamp("us", "UTC"))
    if any(is_one(type_) for is_one in _AS_THEY_ARE):
        return column
    if pa.types.is_decimal(type_):
        return column.cast(pa.string())
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        values = (None if value is None else "\\x" + value.hex() for value in column.to_pylist())
        return pa.array(values, pa.string())
    if is_nested(type_):
        texts = (None if value is None else _json(_plain(value, type_)) for value in column.to_pylist())
        return pa.array(texts, pa.string())
    return column.cast(pa.string())


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
