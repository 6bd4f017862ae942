"""Parameters of Bind: what a client sends for $1, in text or binary, as a value for DuckDB.

The type is the one that the client declared in Parse, else the one that ParameterDescription told
it (the described DuckDB type's). Text without a declared type for a VARCHAR stays text. Nothing is
evaluated, every size is checked before it is used, and a number keeps all its digits: what DuckDB
could take only as a DOUBLE is refused (22003). Source: docs/design/values.md, "Parameters";
PostgreSQL's src/backend/utils/adt, functions `*_in` and `*_recv`.
"""

from __future__ import annotations

import datetime
import re
import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from . import pgtypes
from .array_text import DIMENSIONS_MAX, read_array
from .arrow_values import DATE_INFINITY, TIMESTAMP_INFINITY
from .binary_form import BASE_DIGITS, EPOCH_DAYS, EPOCH_US, INT32_MAX, INT64_MAX, NAN, NEGATIVE
from .duckdb_types import DuckType, read_type
from .errors import (
    CharacterNotInRepertoire,
    InvalidBinaryRepresentation,
    NotSupported,
    NumericOutOfRange,
    ProtocolViolation,
)
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
from .text_form import date_text

TEXT, BINARY = 0, 1
# Digits of a DECIMAL; beyond it DuckDB's client would silently take a DOUBLE.
DECIMAL_DIGITS_MAX = 38
# A text longer than this is no number: reading digits takes time that grows with their square.
NUMBER_TEXT_MAX = 5000
# jsonb's only version.
JSONB_VERSION = 1
# Python's dates in PostgreSQL's days and microseconds from 2000-01-01.
PYTHON_EPOCH = datetime.datetime(2000, 1, 1)
DAY_MIN = (datetime.date.min - datetime.date(2000, 1, 1)).days
DAY_MAX = (datetime.date.max - datetime.date(2000, 1, 1)).days
DAY_US = 86_400_000_000


def decode(
    raw: bytes | memoryview | None,
    format_: int,
    oid: int,
    duckdb_type: str | None,
    timezone: str | None = None,
) -> object:
    """One parameter as a value for cursor.execute.

    Args:
        raw: the bytes of Bind, None for NULL.
        format_: 0 text, 1 binary.
        oid: the type that the client declared, 0 for none.
        duckdb_type: the type that was described for it, None where it is not known.
        timezone: the session's, for a timestamptz in text without an offset.

    Raises:
        InvalidTextRepresentation, InvalidBinaryRepresentation: not a value of the type (22P02, 22P03).
        NumericOutOfRange: a number that its type does not hold (22003).
        CharacterNotInRepertoire: text that is not UTF-8 or has a zero byte (22021).
        NotSupported: a binary value of a type that is not known here (0A000).
        ProtocolViolation: a format that is neither 0 nor 1 (08P01).
    """
    if raw is None:
        return None
    if format_ not in (TEXT, BINARY):
        raise ProtocolViolation(f"unsupported format code: {format_}")
    target = _target(duckdb_type)
    described = _described_oid(target)
    code = oid if oid and oid != pgtypes.UNKNOWN else described
    # A declared type of its own overrides what was described; the one that was told does not.
    type_ = target if code == described else None
    if format_ == TEXT:
        return _from_text(_text(bytes(raw)), code, type_, timezone)
    return _from_binary(bytes(raw), code, type_)


def _target(duckdb_type: str | None) -> DuckType | None:
    """The described type, where it says something."""
    if not duckdb_type or duckdb_type.upper() in ("UNKNOWN", "ANY", '"NULL"', "NULL"):
        return None
    return read_type(duckdb_type)


def _described_oid(target: DuckType | None) -> int:
    return pgtypes.TEXT if target is None else pgtypes.of(target).oid


def _text(raw: bytes) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise CharacterNotInRepertoire('invalid byte sequence for encoding "UTF8"') from error
    if "\0" in text:
        raise CharacterNotInRepertoire('invalid byte sequence for encoding "UTF8": 0x00')
    return text


def _from_text(text: str, oid: int, type_: DuckType | None, timezone: str | None) -> object:
    if type_ is not None and (type_.nested and not pgtypes.is_array(type_)):
        return _nested(text, type_)
    if oid in pgtypes.ELEMENT_OF:
        element = type_.children[0] if type_ is not None else None
        code = pgtypes.ELEMENT_OF[oid]
        return read_array(text, lambda item: _from_text(item, code, element, timezone))
    if oid == pgtypes.TIMESTAMPTZ:
        return read_timestamptz(text, timezone)
    codec = CODECS.get(oid)
    if codec is None:  # a type that we do not have (inet, a range): its text is what we have of it
        return text
    return _fitted(codec.text(text), type_)


def _nested(text: str, type_: DuckType) -> object:
    """A STRUCT, MAP, UNION, VARIANT or list of lists, which the client knows as json."""
    return typed(text, "JSON")


def _from_binary(raw: bytes, oid: int, type_: DuckType | None) -> object:
    if type_ is not None and (type_.nested and not pgtypes.is_array(type_)):
        return _nested(_text(raw), type_)
    if oid in pgtypes.ELEMENT_OF:
        return _array_from_binary(raw, type_.children[0] if type_ is not None else None)
    codec = CODECS.get(oid)
    if codec is None:
        raise NotSupported(
            f"binary parameters of type {oid} are not supported",
            hint="Send the parameter as text.",
        )
    try:
        value = codec.binary(raw)
    except (struct.error, ValueError, OverflowError, IndexError) as error:
        name = pgtypes.SCALARS[oid][0] if oid in pgtypes.SCALARS else str(oid)
        raise InvalidBinaryRepresentation(f"incorrect binary data for type {name}") from error
    return _fitted(value, type_)


ARRAY_HEAD = struct.Struct("!iii")
ARRAY_DIMENSION = struct.Struct("!ii")
LENGTH = struct.Struct("!i")


def _array_from_binary(raw: bytes, element: DuckType | None) -> object:
    """An array: dimensions, a NULL flag, the element type, sizes and lower bounds, elements."""
    try:
        dimensions, _, code = ARRAY_HEAD.unpack_from(raw)
        if not 0 <= dimensions <= DIMENSIONS_MAX:
            raise ValueError("dimensions")
        place = ARRAY_HEAD.size
        sizes = []
        for _ in range(dimensions):
            size, _ = ARRAY_DIMENSION.unpack_from(raw, place)
            place += ARRAY_DIMENSION.size
            sizes.append(size)
        count = 1 if sizes else 0
        for size in sizes:
            count *= size
        # Each element has its length word: what is announced beyond the bytes is refused unread.
        if min(sizes, default=0) < 0 or count * LENGTH.size > len(raw) - place:
            raise ValueError("size")
        items: list[object] = []
        for _ in range(count):
            (length,) = LENGTH.unpack_from(raw, place)
            place += LENGTH.size
            if length < -1 or place + max(length, 0) > len(raw):
                raise ValueError("length")
            if length < 0:
                items.append(None)
            else:
                items.append(_from_binary(raw[place : place + length], code, element))
                place += length
        if place != len(raw):
            raise ValueError("trailing bytes")
    except (struct.error, ValueError) as error:
        raise InvalidBinaryRepresentation("incorrect binary data for an array") from error
    for size in reversed(sizes[1:]):
        items = [items[start : start + size] for start in range(0, len(items), size)] if size else []
    return items


# What the described DuckDB type says beyond its PostgreSQL type: UBIGINT is numeric on the wire.

INTEGER_RANGES: dict[str, tuple[int, int]] = {
    "TINYINT": (-(2**7), 2**7 - 1),
    "SMALLINT": (-(2**15), 2**15 - 1),
    "INTEGER": (-(2**31), 2**31 - 1),
    "BIGINT": (-(2**63), 2**63 - 1),
    "HUGEINT": (-(2**127), 2**127 - 1),
    "UTINYINT": (0, 2**8 - 1),
    "USMALLINT": (0, 2**16 - 1),
    "UINTEGER": (0, 2**32 - 1),
    "UBIGINT": (0, 2**64 - 1),
    "UHUGEINT": (0, 2**128 - 1),
}


def _fitted(value: object, type_: DuckType | None) -> object:
    """The value as the described type wants it, checked against its range."""
    name = type_.name if type_ is not None else ""
    if name in INTEGER_RANGES and isinstance(value, (int, Decimal)):
        low, high = INTEGER_RANGES[name]
        if isinstance(value, Decimal) and _digits(value) > DECIMAL_DIGITS_MAX + 1:
            raise _out_of_range(name)
        if value == int(value):
            value = int(value)
            if not low <= value <= high:
                raise _out_of_range(name)
        return value
    if isinstance(value, Decimal):
        return _exact(value, name)
    return value


def _exact(value: Decimal, name: str) -> object:
    """A Decimal that DuckDB takes as it is."""
    if not value.is_finite() or name in ("FLOAT", "DOUBLE"):
        return float(value)
    digits = _digits(value)
    if name == "BIGNUM" or (digits > DECIMAL_DIGITS_MAX and value.as_tuple().exponent == 0):
        if digits > NUMBER_TEXT_MAX or value != value.to_integral_value():
            raise _out_of_range("numeric")
        return typed(f"{value:f}", "BIGNUM")
    if digits > DECIMAL_DIGITS_MAX:
        raise _out_of_range("numeric")
    return value


def _digits(value: Decimal) -> int:
    """Digits that it takes to write a finite number without an exponent."""
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    return max(len(digits) + max(exponent, 0), -exponent)


def _out_of_range(type_: str) -> NumericOutOfRange:
    return NumericOutOfRange(f"value is out of range for type {type_.lower()}")


# Text, one function a type.

BLANKS = " \t\n\r\v\f"
INTEGER_RE = re.compile(r"[+-]?\d{1,50}", re.ASCII)
NUMBER_RE = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,6})?", re.ASCII)
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


HEX_RE = re.compile(r"\\x((?:\s*[0-9a-fA-F]{2})*)\s*", re.ASCII)
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
    if max(_digits(number), scale) > NUMBER_TEXT_MAX:
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
    return _json(_text(raw[1:]))


@dataclass(frozen=True, slots=True)
class Codec:
    """How values of one PostgreSQL type are read."""

    text: Callable[[str], object]
    binary: Callable[[bytes], object]


WORDS = Codec(str, _text)
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
    pgtypes.JSON: Codec(_json, lambda raw: _json(_text(raw))),
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
