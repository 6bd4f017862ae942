"""PostgreSQL's binary form of values: of one raw value, and of whole Arrow columns of fixed width.

What a type's `send` function puts on the wire, big-endian: drivers that ask for binary results
(asyncpg always, pgjdbc after a few uses, psycopg on request) decode nothing else. Keyed by the OID
that the client was told (engine/values/pgtypes.py). Source: docs/design/values.md, "Binary form";
PostgreSQL's src/backend/utils/adt, functions `*_send`.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import InternalError, NotSupported, NumericOutOfRange
from . import arrow_values as av
from . import number_cells, pgtypes
from .cells import Cell, Cells
from .duckdb_types import DuckType

# PostgreSQL counts from 2000-01-01.
EPOCH_DAYS = 10_957
EPOCH_US = EPOCH_DAYS * 86_400_000_000
INT16_MAX, INT32_MAX, INT64_MAX = 2**15 - 1, 2**31 - 1, 2**63 - 1

# numeric's sign words.
POSITIVE, NEGATIVE, NAN = 0x0000, 0x4000, 0xC000
BASE_DIGITS = 4
# Of a length word.
LENGTH_BYTES = 4


def numeric_binary(value: av.Raw) -> bytes:
    """A decimal as base-10000 digits: count, weight of the first, sign, digits after the point."""
    number = Decimal(value)
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)  # DuckDB's decimals have no NaN and no infinity
    scale = max(0, -exponent)
    padding = -scale % BASE_DIGITS
    text = "".join(map(str, digits)) + "0" * (max(0, exponent) + padding)
    text = "0" * (-len(text) % BASE_DIGITS) + text
    groups = [int(text[i : i + BASE_DIGITS]) for i in range(0, len(text), BASE_DIGITS)]
    weight = len(groups) - (scale + padding) // BASE_DIGITS - 1
    while groups and not groups[-1]:
        groups.pop()
    zeros = next((i for i, group in enumerate(groups) if group), 0)
    groups, weight = groups[zeros:], weight - zeros
    if max(len(groups), weight) > INT16_MAX:
        raise NumericOutOfRange("value overflows numeric format")
    weight = weight if groups else 0
    sign_word = NEGATIVE if sign and groups else POSITIVE
    return struct.pack(f"!hhHH{len(groups)}H", len(groups), weight, sign_word, scale, *groups)


def date_binary(days: av.Raw) -> bytes:
    """Days from 2000-01-01; PostgreSQL's own numbers for the infinities."""
    if abs(days) >= av.DATE_INFINITY:
        return struct.pack("!i", INT32_MAX if days > 0 else -INT32_MAX - 1)
    return struct.pack("!i", days - EPOCH_DAYS)


def timestamp_binary(us: av.Raw) -> bytes:
    """Microseconds from 2000-01-01 in UTC."""
    if abs(us) >= av.TIMESTAMP_INFINITY:
        return struct.pack("!q", INT64_MAX if us > 0 else -INT64_MAX - 1)
    if us - EPOCH_US <= -INT64_MAX:
        raise NumericOutOfRange("timestamp out of range")
    return struct.pack("!q", us - EPOCH_US)


def interval_binary(value: av.Raw) -> bytes:
    """Microseconds, days, months."""
    months, days, us = value
    return struct.pack("!qii", us, days, months)


def timetz_binary(text: av.Raw) -> bytes:
    """Microseconds of the clock and the zone in seconds west of UTC, from 12:00:00.5+02:30."""
    place = max(text.rfind("+"), text.rfind("-"))
    clock, offset = text[:place], text[place:]
    parts = [int(part) for part in offset[1:].split(":")] + [0, 0]
    seconds = parts[0] * 3600 + parts[1] * 60 + parts[2]
    return struct.pack("!qi", clock_us(clock), -seconds if offset[0] == "+" else seconds)


def clock_us(text: str) -> int:
    """Microseconds of HH:MM:SS[.ffffff]."""
    clock, _, fraction = text.partition(".")
    hours, minutes, seconds = (int(part) for part in clock.split(":"))
    return ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + int(fraction.ljust(6, "0")[:6] or 0)


def bits_binary(text: av.Raw) -> bytes:
    """The number of bits, then the bits from the left, filled with zeros."""
    size = -(-len(text) // 8)
    bits = int(text.ljust(size * 8, "0"), 2).to_bytes(size, "big") if text else b""
    return struct.pack("!i", len(text)) + bits


def text_binary(value: av.Raw) -> bytes:
    """Text in UTF-8; json is the same."""
    return str(value).encode()


def uuid_binary(value: av.Raw) -> bytes:
    """16 bytes."""
    return (value if isinstance(value, uuid.UUID) else uuid.UUID(value)).bytes


def _numbers(kind: str) -> Callable[[pa.Array], Cells]:
    width = int(kind[-1])
    return lambda column: Cells((Cell(kind, av.ints(column)),), width)


def _date_cells(column: pa.Array) -> Cells:
    values = av.ints(column).astype(np.int64)
    shifted = values - EPOCH_DAYS
    shifted = np.where(values >= av.DATE_INFINITY, INT32_MAX, shifted)
    shifted = np.where(values <= -av.DATE_INFINITY, -INT32_MAX - 1, shifted)
    return Cells((Cell(">i4", shifted),), 4)


def _time_cells(column: pa.Array) -> Cells:
    return Cells((Cell(">i8", av.microseconds(column)),), 8)


def _timestamp_cells(column: pa.Array) -> Cells:
    values = av.microseconds(column)
    infinite = np.abs(values) >= av.TIMESTAMP_INFINITY
    if infinite.any():
        edge = np.where(values > 0, INT64_MAX, -INT64_MAX - 1)
        shifted = np.where(infinite, edge, np.where(infinite, 0, values) - EPOCH_US)
    else:
        shifted = values - EPOCH_US
    return Cells((Cell(">i8", shifted),), 8)


@dataclass(frozen=True, slots=True)
class BinaryForm:
    """How values of a PostgreSQL type are sent in binary.

    Args:
        raw: the raw values of a column.
        binary: the bytes of one raw value.
        cells: the bytes of a column that is not empty, NULLs as anything; None where there are none such,
            or not of these values.
        bytes_column: whether the column's own bytes are the binary form (text, json, bytea).
    """

    raw: Callable[[pa.Array], list[av.Raw]]
    binary: Callable[[av.Raw], bytes]
    cells: Callable[[pa.Array], Cells | None] | None = None
    bytes_column: bool = False


def _packed(code: str) -> Callable[[av.Raw], bytes]:
    packer = struct.Struct(code)
    return packer.pack


def _vector(element: int, code: str) -> Callable[[av.Raw], bytes]:
    """int2vector and oidvector, from their text: arrays that count from 0."""
    packer = struct.Struct(code)

    def binary(text: av.Raw) -> bytes:
        items = [int(word) for word in str(text).split()]
        head = struct.pack("!iiIii", 1, 0, element, len(items), 0)
        return head + b"".join(packer.pack(packer.size - LENGTH_BYTES, item) for item in items)

    return binary


def _refused(value: av.Raw) -> bytes:
    raise NotSupported(
        "names of objects (regclass, regtype and the like) have no binary form here",
        hint="Cast the column to oid or to text.",
    )


WORDS = BinaryForm(av.raw_objects, text_binary, bytes_column=True)
# What shows a name has an oid in PostgreSQL's binary form, which is not at hand any more.
SHOWN = BinaryForm(av.raw_objects, _refused)
MOMENT = BinaryForm(av.raw_microseconds, timestamp_binary, _timestamp_cells)

FORMS: dict[int, BinaryForm] = {
    pgtypes.BOOL: BinaryForm(av.raw_objects, _packed("!?"), _numbers(">u1")),
    pgtypes.INT2: BinaryForm(av.raw_objects, _packed("!h"), _numbers(">i2")),
    pgtypes.INT4: BinaryForm(av.raw_objects, _packed("!i"), _numbers(">i4")),
    pgtypes.INT8: BinaryForm(av.raw_objects, _packed("!q"), _numbers(">i8")),
    pgtypes.FLOAT4: BinaryForm(av.raw_objects, _packed("!f"), _numbers(">f4")),
    pgtypes.FLOAT8: BinaryForm(av.raw_objects, _packed("!d"), _numbers(">f8")),
    pgtypes.NUMERIC: BinaryForm(av.raw_objects, numeric_binary, number_cells.numeric_binary),
    pgtypes.TEXT: WORDS,
    pgtypes.JSON: WORDS,
    pgtypes.BYTEA: BinaryForm(av.raw_objects, bytes, bytes_column=True),
    pgtypes.DATE: BinaryForm(av.raw_ints, date_binary, _date_cells),
    pgtypes.TIME: BinaryForm(av.raw_microseconds, _packed("!q"), _time_cells),
    pgtypes.TIMETZ: BinaryForm(av.raw_objects, timetz_binary),
    pgtypes.TIMESTAMP: MOMENT,
    pgtypes.TIMESTAMPTZ: MOMENT,
    pgtypes.INTERVAL: BinaryForm(av.raw_intervals, interval_binary),
    pgtypes.UUID: BinaryForm(av.raw_objects, uuid_binary),
    pgtypes.VARBIT: BinaryForm(av.raw_objects, bits_binary),
    **dict.fromkeys((pgtypes.OID, pgtypes.XID), BinaryForm(av.raw_objects, _packed("!I"))),
    **dict.fromkeys((pgtypes.NAME, pgtypes.VARCHAR, pgtypes.BPCHAR), BinaryForm(av.raw_objects, text_binary)),
    # One byte, always.
    pgtypes.CHAR: BinaryForm(av.raw_objects, lambda value: text_binary(value)[:1] or b"\0"),
    pgtypes.INT2VECTOR: BinaryForm(av.raw_objects, _vector(pgtypes.INT2, "!ih")),
    pgtypes.OIDVECTOR: BinaryForm(av.raw_objects, _vector(pgtypes.OID, "!iI")),
}


def form_of(type_: DuckType) -> BinaryForm:
    """The form of a type that is no array."""
    return FORMS.get(pgtypes.pg_type_of(type_).oid, SHOWN)


def values_binary(column: pa.Array, type_: DuckType) -> list[bytes | None]:
    """The bytes of each value, one by one."""
    if pgtypes.is_array(type_):
        return _arrays_binary(column, type_.children[0])
    form = form_of(type_)
    binary = form.binary
    try:
        return [None if value is None else binary(value) for value in form.raw(column)]
    except struct.error as error:
        raise InternalError(f"a {type_.text} does not fit its binary form") from error


def array_head(length: int, nulls: bool, oid: int) -> bytes:
    """The head of a binary array: dimensions, whether it has NULLs, element type, size and lower bound."""
    if not length:
        return struct.pack("!iiI", 0, 0, oid)
    return struct.pack("!iiIii", 1, int(nulls), oid, length, 1)


def _arrays_binary(column: pa.Array, element: DuckType) -> list[bytes | None]:
    oid = pgtypes.pg_type_of(element).oid
    rows: list[Any] = av.raw_list(column, lambda child: values_binary(child, element))
    return [None if row is None else _array(row, oid) for row in rows]


def _array(row: list[bytes | None], oid: int) -> bytes:
    parts = [array_head(len(row), None in row, oid)]
    for item in row:
        parts.append(NULL_LENGTH if item is None else struct.pack("!i", len(item)) + item)
    return b"".join(parts)


NULL_LENGTH = struct.pack("!i", -1)
