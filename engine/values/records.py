"""Records in PostgreSQL's text form, (1,"a, b",) and in its binary form.

DuckDB's structs and tuples arrive as JSON (json_images.py). The types of a client's columns (value_types.py)
tell which of them are records: those of composite types, which CREATE TYPE has made, and tuples, which are
what ROW(...) makes. Other structs within a record remain JSON. The binary form of a value in a record is that
of its text in UTC, which the recoders of ready rows read (encoding.py).
Source: PostgreSQL documentation, section 8.16.6, "Composite Type Input and Output Syntax"; its functions
record_in, record_out, record_recv and record_send.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from json import JSONDecoder
from typing import Any

import pyarrow as pa

from ..errors import InvalidBinaryRepresentation, InvalidTextRepresentation
from . import value_types
from .arrays import array_binary, array_text
from .duckdb_types import RECORD, DuckType

COUNT = struct.Struct("!i")
FIELD_HEAD = struct.Struct("!Ii")
# Numbers keep their digits.
_JSON = JSONDecoder(parse_float=str, parse_int=str, parse_constant=str)
_BLANKS = re.compile(r"[ \t\n\r]*")
# Characters of a time with microseconds: DuckDB's nanoseconds have no form.
_CLOCK_CHARS = len("00:00:00.000000")
# Values that PostgreSQL puts into quotes.
_QUOTED_FIELD = re.compile(r'^$|[(),"\\\s]', re.ASCII)
_FIELD = re.compile(r'(?:"(?:[^"\\]|\\.|"")*+"|\\.|[^,)"\\])*+', re.DOTALL)
_PART = re.compile(r'"((?:[^"\\]|\\.|"")*+)"|\\(.)|([^"\\]+)', re.DOTALL)
_ESCAPED = re.compile(r'\\(.)|"(")', re.DOTALL)

ToText = Callable[[str, DuckType], str]
ToBinary = Callable[[str, DuckType], bytes]


def is_record(type_: DuckType) -> bool:
    """True if values of the type are records, or arrays of them, and arrive as JSON."""
    return type_.name == RECORD or (value_types.is_array(type_) and type_.children[0].name == RECORD)


# From JSON.


def record_text(raw: str, type_: DuckType, scalar: ToText) -> str:
    """The text of a record, or of an array of records.

    Args:
        raw: its JSON.
        scalar: the text of another value, from the text that its JSON has.
    """
    if type_.name != RECORD:
        items = (_text(item, value, type_.children[0], scalar) for item, value in _items(raw))
        return array_text(items)
    fields = (
        _text(item, value, child, scalar)
        for (item, value), child in zip(_items(raw), type_.children, strict=True)
    )
    return f"({','.join('' if field is None else _field_text(field) for field in fields)})"


def record_binary(raw: str, type_: DuckType, scalar: ToBinary) -> bytes:
    """The binary form of a record, or of an array of records; arguments as in `record_text`."""
    if type_.name != RECORD:
        oid = value_types.pg_type_of(type_.children[0]).oid
        return array_binary(
            [_binary(item, value, type_.children[0], scalar) for item, value in _items(raw)], oid
        )
    parts = [COUNT.pack(len(type_.children))]
    for (item, value), child in zip(_items(raw), type_.children, strict=True):
        data = _binary(item, value, child, scalar)
        oid = value_types.pg_type_of(child).oid
        parts += (FIELD_HEAD.pack(oid, -1), b"") if data is None else (FIELD_HEAD.pack(oid, len(data)), data)
    return b"".join(parts)


def _text(raw: str, value: Any, type_: DuckType, scalar: ToText) -> str | None:
    if value is None:
        return None
    if is_record(type_):
        return record_text(raw, type_, scalar)
    return scalar(_own_text(raw, value, type_), type_)


def _binary(raw: str, value: Any, type_: DuckType, scalar: ToBinary) -> bytes | None:
    if value is None:
        return None
    if is_record(type_):
        return record_binary(raw, type_, scalar)
    return scalar(_own_text(raw, value, type_), type_)


def _items(raw: str) -> Iterator[tuple[str, Any]]:
    """The values of an object or array, each as it is written and as Python has it."""
    is_object, place = raw.startswith("{"), _skip(raw, 1)
    while raw[place] not in "}]":
        if is_object:
            _, place = _JSON.raw_decode(raw, place)
            place = _skip(raw, _skip(raw, place) + 1)
        value, end = _JSON.raw_decode(raw, place)
        yield raw[place:end], value
        place = _skip(raw, end)
        if raw[place] == ",":
            place = _skip(raw, place + 1)


def _skip(raw: str, place: int) -> int:
    found = _BLANKS.match(raw, place)
    assert found is not None, "it matches the empty text"
    return found.end()


def _own_text(raw: str, value: Any, type_: DuckType) -> str:
    """PostgreSQL's text of a value in UTC, as DataRows have it, from its JSON."""
    if value_types.is_array(type_):
        element = type_.children[0]
        items = [None if one is None else _own_text(item, one, element) for item, one in _items(raw)]
        return array_text(items)
    if type_.nested or type_.name == "JSON":
        return raw
    form = value_types.value_type(type_)
    if isinstance(value, bool):
        return form.text(value)
    if form.oid in (value_types.FLOAT4, value_types.FLOAT8):
        return form.text(float(value))
    if form.oid in _MOMENTS:
        return _moment(value) + ("+00" if form.zoned and value[-1:].isdigit() else "")
    if form.oid == value_types.INTERVAL:
        (interval,) = form.raw(pa.array([value]))
        return form.text(interval)
    return str(value)


_MOMENTS = frozenset({value_types.DATE, value_types.TIME, value_types.TIMESTAMP, value_types.TIMESTAMPTZ})


def _moment(value: str) -> str:
    """PostgreSQL's text of a date, time or timestamp, from the one in JSON."""
    text = value.removesuffix("+00:00")
    bc = " BC" if " (BC)" in text else ""
    day, _, clock = text.replace(" (BC)", "").replace("T", " ").rpartition(" ")
    if "." in clock:
        clock = clock[:_CLOCK_CHARS].rstrip("0").rstrip(".")
    return f"{day} {clock}{bc}" if day else f"{clock}{bc}"


# Text.


def _field_text(text: str) -> str:
    """The text of a field in a record, quoted where it must be."""
    if not _QUOTED_FIELD.search(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '""')
    return f'"{escaped}"'


def read_record(text: str, count: int) -> list[str | None]:
    """The fields of a record's text.

    Raises:
        InvalidTextRepresentation: the text is malformed, or has another number of fields.

    >>> read_record('(1,"a, ""b",)', 3)
    ['1', 'a, "b', None]
    """
    stripped = text.strip()
    if not stripped.startswith("("):
        raise _malformed(text, "Missing left parenthesis.")
    found: list[str | None] = []
    place = 1
    while stripped != "()":
        field = _FIELD.match(stripped, place)
        assert field is not None, "it matches the empty text"
        place = field.end()
        found.append(_PART.sub(_unquoted, field.group()) if field.group() else None)
        if stripped[place : place + 1] != ",":
            break
        place += 1
    if stripped != "()" and stripped[place:] != ")":
        raise _malformed(text, "Junk after right parenthesis." if ")" in stripped[place:] else None)
    if stripped == "()" and count == 1:
        found = [None]
    if len(found) != count:
        raise _malformed(text, "Too few columns." if len(found) < count else "Too many columns.")
    return found


def _unquoted(part: re.Match[str]) -> str:
    quoted, escaped, plain = part.groups()
    return escaped or plain or _ESCAPED.sub(r"\1\2", quoted or "")


def _malformed(text: str, detail: str | None) -> InvalidTextRepresentation:
    return InvalidTextRepresentation(f'malformed record literal: "{text[:100]}"', detail=detail)


# Binary.


def read_binary_record(raw: bytes, count: int) -> list[tuple[int, bytes | None]]:
    """OID and value of each field of a binary record.

    Raises:
        InvalidBinaryRepresentation: the bytes are no record, or one with another number of fields.
    """
    try:
        (given,) = COUNT.unpack_from(raw)
        if given != count:
            raise ValueError("columns")
        place, found = COUNT.size, []
        for _ in range(count):
            oid, size = FIELD_HEAD.unpack_from(raw, place)
            place += FIELD_HEAD.size
            end = place + max(size, 0)
            if size < -1 or end > len(raw):
                raise ValueError("length")
            found.append((oid, None if size < 0 else raw[place:end]))
            place = end
        if place != len(raw):
            raise ValueError("trailing bytes")
    except (struct.error, ValueError) as error:
        raise InvalidBinaryRepresentation("incorrect binary data for a record") from error
    return found
