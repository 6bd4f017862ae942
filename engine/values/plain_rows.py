"""Rows as DuckDB's client hands them out, a Python value a cell, as DataRow messages: for a few rows.

Where the answer is a row or ten, an Arrow reader takes longer than the query. Python's values do for
types whose whole value they carry. A date or a timestamp may not be told by them: DuckDB's infinities
come as Python's first and last moment, and what lies outside Python's years comes as text. Such rows
are not encoded here; whoever asked for them asks again for Arrow.

Source: docs/design/values.md; PostgreSQL's protocol, section 55.7, DataRow.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache

from ..errors import InternalError
from . import arrow_values as av
from . import binary_form, text_columns
from .datarow import BINARY, DATA_ROW, HEAD, LENGTH, NULL, ROW_BYTES_MAX, plan_of, too_long
from .duckdb_types import TYPES_CACHED, DuckType, read_type

Row = tuple[object, ...]
Reader = Callable[[object], av.Raw]
Encoder = Callable[[av.Raw], bytes]

EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
EPOCH = datetime.datetime(1970, 1, 1)
EPOCH_UTC = EPOCH.replace(tzinfo=datetime.UTC)
US = datetime.timedelta(microseconds=1)
HUGEINT_BOUND = 10**38


class Untold(Exception):
    """A value whose Python form may stand for another one."""


def _hugeint(value: object) -> av.Raw:
    # Arrow has it as a decimal of 38 digits.
    if not isinstance(value, int) or abs(value) >= HUGEINT_BOUND:
        raise Untold
    return value


def _date(value: object) -> av.Raw:
    if type(value) is not datetime.date or value in (datetime.date.min, datetime.date.max):
        raise Untold
    return value.toordinal() - EPOCH_DAY


def _timestamp(value: object) -> av.Raw:
    if type(value) is not datetime.datetime or value in (datetime.datetime.min, datetime.datetime.max):
        raise Untold
    return (value - EPOCH) // US


def _timestamptz(value: object) -> av.Raw:
    # The infinities have no zone.
    if type(value) is not datetime.datetime or value.tzinfo is None:
        raise Untold
    return (value - EPOCH_UTC) // US


# DuckDB type -> how its raw value (arrow_values.py) is made from Python's; None: they are the same.
READERS: dict[str, Reader | None] = {
    **dict.fromkeys(("BOOLEAN", "VARCHAR", "JSON", "ENUM", "BLOB", "FLOAT", "DOUBLE", "DECIMAL")),
    **dict.fromkeys(("TINYINT", "SMALLINT", "INTEGER", "BIGINT")),
    **dict.fromkeys(("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")),
    "HUGEINT": _hugeint,
    "UUID": str,
    "DATE": _date,
    "TIMESTAMP": _timestamp,
    "TIMESTAMP WITH TIME ZONE": _timestamptz,
}


def carried(types: Sequence[str]) -> bool:
    """Whether rows of these DuckDB types can be read here."""
    return all(read_type(type_).name in READERS for type_ in types)


def raw_rows(rows: Sequence[Row], types: Sequence[str]) -> list[Row]:
    """The rows as raw values.

    Args:
        types: the DuckDB types of their columns, all `carried`.

    Raises:
        Untold: a value whose Python form may stand for another one.
    """
    readers = _readers(tuple(types))
    if not readers:
        return list(rows)
    return [_raw(row, readers) for row in rows]


@lru_cache(TYPES_CACHED)
def _readers(types: tuple[str, ...]) -> tuple[tuple[int, Reader], ...]:
    """The places whose values are not raw as they come, with their readers."""
    found = ((place, READERS[read_type(type_).name]) for place, type_ in enumerate(types))
    return tuple((place, reader) for place, reader in found if reader is not None)


def _raw(row: Row, readers: tuple[tuple[int, Reader], ...]) -> Row:
    values = list(row)
    for place, reader in readers:
        if values[place] is not None:
            values[place] = reader(values[place])
    return tuple(values)


def encode(rows: Sequence[Row], types: Sequence[str], formats: Sequence[int], timezone: str) -> bytes:
    """Raw rows as DataRow messages, one after the other; the same bytes as `datarow.encode` of them.

    Args:
        formats: 0 text, 1 binary: one a column, one for all, or none for text, as in Bind.
        timezone: the session's, for TIMESTAMP WITH TIME ZONE in text.

    Raises:
        ProtocolViolation: formats that fit neither the columns nor the protocol (08P01).
        ProgramLimitExceeded: a row of 1 GiB or more (54000).
    """
    return b"".join(encoded(rows, types, formats, timezone))


def encoded(
    rows: Sequence[Row], types: Sequence[str], formats: Sequence[int] = (), timezone: str = "UTC"
) -> list[bytes]:
    """The same, one bytes object a row."""
    encoders = _encoders(tuple(types), tuple(formats), timezone)
    try:
        return [_encoded(row, encoders) for row in rows]
    except struct.error as error:
        raise InternalError("a value does not fit its type's binary form") from error


def _encoded(row: Row, encoders: tuple[Encoder, ...]) -> bytes:
    parts = []
    for value, encoder in zip(row, encoders, strict=True):
        if value is None:
            parts.append(NULL)
        else:
            data = encoder(value)
            parts += (LENGTH.pack(len(data)), data)
    body = b"".join(parts)
    if len(body) > ROW_BYTES_MAX:
        raise too_long()
    return HEAD.pack(DATA_ROW, len(body) + HEAD.size - 1, len(encoders)) + body


@lru_cache(TYPES_CACHED)
def _encoders(types: tuple[str, ...], formats: tuple[int, ...], timezone: str) -> tuple[Encoder, ...]:
    return tuple(_encoder(type_, format_, timezone) for type_, format_ in plan_of(types, formats).columns)


def _encoder(type_: DuckType, format_: int, timezone: str) -> Encoder:
    if format_ == BINARY:
        return binary_form.form_of(type_).binary
    form = text_columns.form_of(type_)
    text = form.text
    if form.zoned:
        return lambda value: text(value, timezone).encode()
    return lambda value: text(value).encode()
