"""Columns of values in PostgreSQL's text and binary forms, by the table of types (value_types.py).

A column is encoded as cells, as an Arrow column of texts, or value by value; the bytes are the same. Rows
that are kept ready hold text in UTC. A `Recoder` reads that text, which this package has always written
itself, and converts it to binary or to another time zone. Source: docs/design/values.md, "Text form", "Binary
form", "Ready rows".
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import InternalError
from . import arrow_values as av
from . import value_types
from .arrays import NULL_LENGTH, array_binary, array_head, array_text, element_text, element_texts, read_array
from .cells import Array, Cells
from .dates_times import _MOMENTS_CACHED, raw_timestamp, timestamptz_text
from .duckdb_types import TYPES_CACHED, DuckType, read_type
from .records import ToText, is_record, record_binary, record_text

TEXT, BINARY = 0, 1


# Text.


def values_text(column: pa.Array, type_: DuckType, zone: str) -> list[str | None]:
    """The text of each value, one by one: for short columns, and correct for every value."""
    if is_record(type_):
        return [None if raw is None else record_text(raw, type_, _in(zone)) for raw in column.to_pylist()]
    if value_types.is_array(type_):
        return _arrays_text(column, type_.children[0], zone)
    form = value_types.value_type(type_)
    text = form.text
    if form.zoned:
        return [None if value is None else text(value, zone) for value in form.raw(column)]
    return [None if value is None else text(value) for value in form.raw(column)]


def _arrays_text(column: pa.Array, element: DuckType, zone: str) -> list[str | None]:
    plain = value_types.value_type(element).plain

    def elements(child: pa.Array) -> list[av.Raw]:
        texts = values_text(child, element, zone)
        return ["NULL" if t is None else t if plain else element_text(t) for t in texts]

    rows = av.raw_list(column, elements)
    return [None if row is None else f"{{{','.join(row)}}}" for row in rows]


def column_text(column: pa.Array, type_: DuckType, zone: str) -> pa.Array:
    """The texts of a whole column as an Arrow column of strings, NULL where it is NULL.

    Args:
        column: a column of DuckDB's result (of the wrapped query where datarow.wrapped returns one).
        type_: its DuckDB type.
        zone: the session's time zone, an IANA name.
    """
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), pa.string())
    if is_record(type_):
        return pa.array(values_text(column, type_, zone), pa.string())
    if value_types.is_array(type_):
        return _array_column(column, type_.children[0], zone)
    form = value_types.value_type(type_)
    texts = form.texts(column, zone) if form.texts is not None and len(column) else None
    if texts is None:
        return pa.array(values_text(column, type_, zone), pa.string())
    return texts


def _array_column(column: pa.Array, element: DuckType, zone: str) -> pa.Array:
    bounds, child = av.list_parts(column)
    texts = column_text(child, element, zone)
    if texts.type != pa.string():
        texts = texts.cast(pa.string())
    if not value_types.value_type(element).plain:
        texts = element_texts(texts)
    texts = texts.fill_null("NULL")
    rows = pa.ListArray.from_arrays(pa.array(bounds.astype(np.int32)), texts)
    joined = pc.binary_join_element_wise("{", pc.binary_join(rows, ","), "}", "")
    return pc.if_else(pc.is_valid(column), joined, None) if column.null_count else joined


def text_cells(column: pa.Array, type_: DuckType, zone: str) -> tuple[Cells, Array | None] | None:
    """The texts of a column as cells, and a bool for each that is not NULL (None for all).

    Returns None where the column's texts cannot be cells.

    Args:
        column, type_, zone: as in `column_text`.
    """
    form = value_types.value_type(type_).cells
    if form is None or not len(column) or pa.types.is_null(column.type):
        return None
    found = form(column, zone)
    return None if found is None else (found, av.valid(column))


# Binary.


def values_binary(column: pa.Array, type_: DuckType) -> list[bytes | None]:
    """The binary form of each value, one by one."""
    if is_record(type_):
        return [None if raw is None else record_binary(raw, type_, _own_binary) for raw in column.to_pylist()]
    if value_types.is_array(type_):
        return _arrays_binary(column, type_.children[0])
    form = value_types.value_type(type_)
    binary = form.scalar.binary
    try:
        return [None if value is None else binary(value) for value in form.raw(column)]
    except struct.error as error:
        raise InternalError(f"a {type_.text} does not fit its binary form") from error


def _arrays_binary(column: pa.Array, element: DuckType) -> list[bytes | None]:
    oid = value_types.pg_type_of(element).oid
    rows: list[Any] = av.raw_list(column, lambda child: values_binary(child, element))
    return [None if row is None else array_binary(row, oid) for row in rows]


# Ready rows.


Recoder = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class Prefixed:
    """The recoder of a type whose binary form is its text behind a prefix."""

    prefix: bytes

    def __call__(self, value: bytes) -> bytes:
        """The binary form of one value."""
        return self.prefix + value

    def column(self, values: pa.Array) -> pa.Array:
        """The binary forms of a column of bytes, NULL where it is NULL."""
        return pc.binary_join_element_wise(self.prefix, values, b"")


UTC_NAMES = frozenset({"UTC", "ETC/UTC", "GMT", "ETC/GMT"})


@lru_cache(TYPES_CACHED)
def recoder(type_: str, format_: int, timezone: str) -> Recoder | None:
    """The function from a value's text in UTC to the bytes of a format; None where they are equal.

    Args:
        type_: the DuckDB type, in the session's styles (value_types.Styles).
        format_: 0 text, 1 binary.
        timezone: the session's time zone.
    """
    read = read_type(type_)
    if format_:
        return _array_to_binary(read.children[0]) if value_types.is_array(read) else _to_binary(read)
    element = read.children[0] if value_types.is_array(read) else read
    turned = _text_turner(element, timezone)
    if turned is None:
        return None
    if element is read:
        return lambda value: turned(value.decode()).encode()

    def moved_array(value: bytes) -> bytes:
        return array_text(read_array(value.decode(), turned)).encode()

    return moved_array


def _text_turner(type_: DuckType, timezone: str) -> Callable[[str], str] | None:
    """The function from a text in UTC and the default styles to that of a session; None if they are equal."""
    row = value_types.value_type(type_)
    raw, text = row.scalar.own, row.text
    if row.styled and raw is not None:
        return (lambda value: text(raw(value), timezone)) if row.zoned else lambda value: text(raw(value))
    if row.oid != value_types.TIMESTAMPTZ or timezone.upper() in UTC_NAMES:
        return None
    return lambda value: _in_zone(value, timezone)


@lru_cache(_MOMENTS_CACHED)
def _in_zone(text: str, timezone: str) -> str:
    return timestamptz_text(raw_timestamp(text), timezone)


def _in(timezone: str) -> ToText:
    """The text of a value in a record, from its text in UTC."""

    def text(own: str, type_: DuckType) -> str:
        turn = recoder(type_.text, TEXT, timezone)
        return own if turn is None else turn(own.encode()).decode()

    return text


def _own_binary(own: str, type_: DuckType) -> bytes:
    """The binary form of a value in a record, from its text in UTC."""
    turn = recoder(type_.text, BINARY, "UTC")
    return own.encode() if turn is None else turn(own.encode())


def _to_binary(type_: DuckType) -> Recoder | None:
    scalar = value_types.value_type(type_).scalar
    binary, raw, prefix = scalar.binary, scalar.own, scalar.prefix
    if raw is None:
        if prefix is not None:
            return Prefixed(prefix) if prefix else None
        return lambda value: binary(value.decode())
    return lambda value: binary(raw(value.decode()))


def _array_to_binary(element: DuckType) -> Recoder:
    turn = _to_binary(element)
    oid = value_types.pg_type_of(element).oid

    def item(text: str) -> bytes:
        return text.encode() if turn is None else turn(text.encode())

    def array(value: bytes) -> bytes:
        items = read_array(value.decode(), item)
        parts = [array_head(len(items), None in items, oid)]
        for found in items:
            parts.append(NULL_LENGTH if found is None else len(found).to_bytes(4, "big") + found)
        return b"".join(parts)

    return array
