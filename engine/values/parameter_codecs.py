"""How a client's parameter of each PostgreSQL type is read, in text and in binary.

The counterpart of text_columns.py and binary_form.py beside it: what a type's `in` and `recv`
functions take. A binary reader raises struct.error or ValueError for bytes that are no value; the
caller makes 22P03 of it. Source: docs/design/values.md, "Parameters".
"""

from __future__ import annotations

import datetime
import re
import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from ..errors import CharacterNotInRepertoire, NumericOutOfRange
from . import pgtypes
from .arrow_values import DATE_INFINITY, TIMESTAMP_INFINITY
from .binary_form import BASE_DIGITS, EPOCH_DAYS, EPOCH_US, INT32_MAX, INT64_MAX, NAN, NEGATIVE
from .temporal_text import (
    TIMESTAMPTZ,
    bad,
    clock_text,
    interval_of,
    read_date,
    read_interval,
    read_time,
    read_timestamp,
    read_timestamptz,
    read_timetz,
    time_of,
    timetz_of,
    typed,
)
from .text_form import DAY_US, date_text

# A text longer than this is no number: reading digits takes time that grows with their square.
NUMBER_TEXT_MAX = 5000
# jsonb's only version.
JSONB_VERSION = 1
# Python's dates in PostgreSQL's days and microseconds from 2000-01-01.
PYTHON_EPOCH = datetime.datetime(2000, 1, 1)
DAY_MIN = (datetime.date.min - datetime.date(2000, 1, 1)).days
DAY_MAX = (datetime.date.max - datetime.date(2000, 1, 1)).days


def utf8(raw: bytes) -> str:
    """Text as PostgreSQL takes it: UTF-8 without a zero byte."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise CharacterNotInRepertoire('invalid byte sequence for encoding "UTF8"') from error
    if "\0" in text:
        raise CharacterNotInRepertoire('invalid byte sequence for encoding "UTF8": 0x00')
    return text


def digits_of(value: Decimal) -> int:
    """Digits that it takes to write a finite number without an exponent."""
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    return max(len(digits) + max(exponent, 0), -exponent)


# Text, one function a type.

BLANKS = " \t\n\r\v\f"
INTEGER_RE = re.compile(r"[+-]?\d{1,50}", re.ASCII)
NUMBER_RE = re.compile(r"[+-]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d{1,6})?", re.ASCII)
NUMBER_WORDS = {"nan": "nan", "infinity": "inf", "inf": "inf"}


def _integer(bits: int, name: str) -> Callable[[str], object]:
    def read(text: str) -> object:
        stripped = text.strip(BLANKS)
        if not INTEGER_RE.fullmatch(stripped):
            raise bad(text, name)
        value = int(stripped)
        if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            raise NumericOutOfRange(f'value "{text[:50]}" is out of range for type {name}')
        return value

    return read


def _oid(text: str) -> object:
    stripped = text.strip(BLANKS)
    if not INTEGER_RE.fullmatch(stripped):
        raise bad(text, "oid")
    return int(stripped)


def _number_text(text: str, name: str) -> str:
    """The text of a number in Python's spelling."""
    stripped = text.strip(BLANKS)
    sign = stripped[0] if stripped[:1] in ("+", "-") else ""
    word = NUMBER_WORDS.get(stripped[len(sign) :].lower())
    if word is not None:
        return sign + word
    if len(stripped) > NUMBER_TEXT_MAX or not NUMBER_RE.fullmatch(stripped):
        raise bad(text, name)
    return stripped


def _float(text: str) -> object:
    stripped = _number_text(text, "double precision")
    value = float(stripped)
    if value in (float("inf"), float("-inf")) and "inf" not in stripped:
        raise NumericOutOfRange(f'"{text[:50]}" is out of range for type double precision')
    return value


def _numeric(text: str) -> object:
    value = Decimal(_number_text(text, "numeric"))
    return value


BOOLEANS = {
    **dict.fromkeys(("t", "tr", "tru", "true", "y", "ye", "yes", "on", "1"), True),
    **dict.fromkeys(("f", "fa", "fal", "fals", "false", "n", "no", "of", "off", "0"), False),
}


def _boolean(text: str) -> object:
    value = BOOLEANS.get(text.strip(BLANKS).lower())
    if value is None:
        raise bad(text, "boolean")
    return value


HEX_RE = re.compile(r"\\x((?:\s*+[0-9a-fA-F]{2})*+)\s*+", re.ASCII)
ESCAPED_RE = re.compile(r"\\(?:(\\)|([0-3][0-7]{2}))|([^\\]+)", re.DOTALL)


def _bytea(text: str) -> object:
    """The hex format, or the old escape format."""
    if text.startswith("\\x"):
        found = HEX_RE.fullmatch(text)
        if found is None:
            raise bad(text, "bytea")
        return bytes.fromhex(found[1])
    parts = []
    place = 0
    while place < len(text):
        piece = ESCAPED_RE.match(text, place)
        if piece is None:
            raise bad(text, "bytea")
        backslash, octal, plain = piece.groups()
        parts.append(b"\\" if backslash else bytes([int(octal, 8)]) if octal else plain.encode())
        place = piece.end()
    return b"".join(parts)


UUID_RE = re.compile(r"\{?([0-9a-fA-F]{4}(?:-?[0-9a-fA-F]{4}){7})\}?", re.ASCII)


def _uuid(text: str) -> object:
    found = UUID_RE.fullmatch(text.strip(BLANKS))
    if found is None:
        raise bad(text, "uuid")
    return uuid.UUID(found[1])


def _bits(text: str) -> object:
    stripped = text.strip(BLANKS)
    if not stripped or set(stripped) - {"0", "1"}:
        raise bad(text, "bit varying")
    return typed(stripped, "BIT")


def _json(text: str) -> object:
    return typed(text, "JSON")


# Binary, one function a type. struct.error and ValueError are the caller's 22P03.


def _unpacked(code: str) -> Callable[[bytes], object]:
    packer = struct.Struct(code)

    def read(raw: bytes) -> object:
        (value,) = packer.unpack(raw)
        return value

    return read


def _boolean_binary(raw: bytes) -> object:
    if len(raw) != 1:
        raise ValueError("length")
    return raw != b"\0"


def _numeric_binary(raw: bytes) -> object:
    count, weight, sign, scale = struct.unpack_from("!HhHH", raw)
    if sign not in NUMERIC_SIGNS or len(raw) != 8 + 2 * count:
        raise ValueError("numeric")
    if sign in NUMERIC_WORDS:
        return Decimal(NUMERIC_WORDS[sign])
    groups = struct.unpack_from(f"!{count}H", raw, 8)
    if any(group > 9999 for group in groups):
        raise ValueError("digit")
    if count > NUMBER_TEXT_MAX:
        raise NumericOutOfRange("value is out of range for type numeric")
    digits = "".join(f"{group:04}" for group in groups).lstrip("0") or "0"
    # The last group's own power of ten; then exactly `scale` digits after the point.
    exponent = (weight - count + 1) * BASE_DIGITS
    number = Decimal((0, tuple(map(int, digits)), exponent if digits != "0" else 0))
    if max(digits_of(number), scale) > NUMBER_TEXT_MAX:
        raise NumericOutOfRange("value is out of range for type numeric")
    whole = f"{number:f}"
    integer, _, fraction = whole.partition(".")
    text = f"{integer}.{fraction.ljust(scale, '0')[:scale]}" if scale else integer
    return Decimal(f"-{text}" if sign == NEGATIVE else text)


NUMERIC_WORDS = {NAN: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}
NUMERIC_SIGNS = {0, NEGATIVE, *NUMERIC_WORDS}


def _date_binary(raw: bytes) -> object:
    (days,) = struct.unpack("!i", raw)
    if days in (INT32_MAX, -INT32_MAX - 1):
        return typed("infinity" if days > 0 else "-infinity", "DATE")
    if DAY_MIN <= days <= DAY_MAX:
        return datetime.date(2000, 1, 1) + datetime.timedelta(days=days)
    return typed(_far_day(days + EPOCH_DAYS), "DATE")


def _far_day(days: int) -> str:
    """A day that Python does not have, from 1970, in DuckDB's spelling."""
    if abs(days) >= DATE_INFINITY:
        raise ValueError("date")
    return date_text(days).replace(" BC", " (BC)")


def _timestamp_binary(type_: str, zone: datetime.tzinfo | None) -> Callable[[bytes], object]:
    def read(raw: bytes) -> object:
        (us,) = struct.unpack("!q", raw)
        if us in (INT64_MAX, -INT64_MAX - 1):
            return typed("infinity" if us > 0 else "-infinity", type_)
        if DAY_MIN * DAY_US <= us < (DAY_MAX + 1) * DAY_US:
            return (PYTHON_EPOCH + datetime.timedelta(microseconds=us)).replace(tzinfo=zone)
        if abs(us + EPOCH_US) >= TIMESTAMP_INFINITY:
            raise ValueError("timestamp")
        days, clock = divmod(us + EPOCH_US, DAY_US)
        return typed(f"{_far_day(days)} {clock_text(clock)}{'+00' if zone else ''}", type_)

    return read


def _time_binary(raw: bytes) -> object:
    (us,) = struct.unpack("!q", raw)
    if not 0 <= us <= DAY_US:
        raise ValueError("time")
    return time_of(us)


def _timetz_binary(raw: bytes) -> object:
    us, west_s = struct.unpack("!qi", raw)
    if not 0 <= us <= DAY_US or abs(west_s) >= 16 * 3600:
        raise ValueError("timetz")
    return timetz_of(us, -west_s)


def _interval_binary(raw: bytes) -> object:
    us, days, months = struct.unpack("!qii", raw)
    return interval_of(months, days, us)


def _uuid_binary(raw: bytes) -> object:
    return uuid.UUID(bytes=raw)


def _bits_binary(raw: bytes) -> object:
    (length,) = struct.unpack_from("!i", raw)
    if length < 1 or len(raw) - 4 != -(-length // 8):
        raise ValueError("bits")
    return typed("".join(f"{byte:08b}" for byte in raw[4:])[:length], "BIT")


def _jsonb_binary(raw: bytes) -> object:
    if raw[:1] != bytes([JSONB_VERSION]):
        raise ValueError("version")
    return _json(utf8(raw[1:]))


@dataclass(frozen=True, slots=True)
class Codec:
    """How values of one PostgreSQL type are read."""

    text: Callable[[str], object]
    binary: Callable[[bytes], object]


WORDS = Codec(str, utf8)
BITS = Codec(_bits, _bits_binary)

CODECS: dict[int, Codec] = {
    pgtypes.BOOL: Codec(_boolean, _boolean_binary),
    pgtypes.INT2: Codec(_integer(16, "smallint"), _unpacked("!h")),
    pgtypes.INT4: Codec(_integer(32, "integer"), _unpacked("!i")),
    pgtypes.INT8: Codec(_integer(64, "bigint"), _unpacked("!q")),
    pgtypes.OID: Codec(_oid, _unpacked("!I")),
    pgtypes.FLOAT4: Codec(_float, _unpacked("!f")),
    pgtypes.FLOAT8: Codec(_float, _unpacked("!d")),
    pgtypes.NUMERIC: Codec(_numeric, _numeric_binary),
    **dict.fromkeys((pgtypes.TEXT, pgtypes.VARCHAR, pgtypes.BPCHAR, pgtypes.NAME, pgtypes.CHAR), WORDS),
    pgtypes.BYTEA: Codec(_bytea, bytes),
    pgtypes.JSON: Codec(_json, lambda raw: _json(utf8(raw))),
    pgtypes.JSONB: Codec(_json, _jsonb_binary),
    pgtypes.UUID: Codec(_uuid, _uuid_binary),
    pgtypes.DATE: Codec(read_date, _date_binary),
    pgtypes.TIME: Codec(read_time, _time_binary),
    pgtypes.TIMETZ: Codec(read_timetz, _timetz_binary),
    pgtypes.TIMESTAMP: Codec(read_timestamp, _timestamp_binary("TIMESTAMP", None)),
    pgtypes.TIMESTAMPTZ: Codec(
        lambda text: read_timestamptz(text, None), _timestamp_binary(TIMESTAMPTZ, datetime.UTC)
    ),
    pgtypes.INTERVAL: Codec(read_interval, _interval_binary),
    pgtypes.BIT: BITS,
    pgtypes.VARBIT: BITS,
}
