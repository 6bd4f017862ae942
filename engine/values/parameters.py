"""Parameters of Bind: conversion of a client's text or binary value of $1 to a value for DuckDB.

The type is the one that the client declared in Parse, else the one of ParameterDescription (the described
DuckDB type's). Text without a declared type for a VARCHAR stays text. No text is evaluated, every size is
checked before it is used, and a number keeps all its digits: a number that DuckDB could read only as a DOUBLE
is refused (22003). Source: docs/design/values.md, "Parameters"; PostgreSQL's src/backend/utils/adt, functions
`*_in` and `*_recv`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache

from ..errors import InvalidBinaryRepresentation, NotSupported, NumericOutOfRange, ProtocolViolation
from . import value_types
from .arrays import ARRAY_DIMENSION, ARRAY_HEAD, DIMENSIONS_MAX, LENGTH, read_array
from .duckdb_types import TYPES_CACHED, DuckType, read_type
from .encoding import BINARY, TEXT
from .numbers import NUMBER_TEXT_MAX, decimal_digits, read_numeric
from .records import read_binary_record, read_record
from .strings import JSONB_PREFIX, receive_json, typed, utf8
from .temporal_input import read_timestamptz

# Most digits of a DECIMAL; for more, DuckDB's client would silently use a DOUBLE.
DECIMAL_DIGITS_MAX = 38
# Types whose values need no further conversion; `_fitted` converts the others.
AS_READ = frozenset({"VARCHAR", "BOOLEAN", "SMALLINT", "INTEGER", "BIGINT"})
# Layout of the elements of one size in an array, each behind its length.
FIXED = {
    value_types.INT2: struct.Struct("!ih"), value_types.INT4: struct.Struct("!ii"),
    value_types.INT8: struct.Struct("!iq"), value_types.FLOAT8: struct.Struct("!id"),
}  # fmt: skip
# Integer types that are numeric on the wire.
NUMERIC_INTEGERS = frozenset({"UBIGINT", "HUGEINT", "UHUGEINT"})
# Their least and largest value, and their digits.
INTEGER_MIN, INTEGER_MAX = -(2**127), 2**128 - 1
INTEGER_DIGITS_MAX = 39


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
        duckdb_type: the type of ParameterDescription, None where it is unknown.
        timezone: the session's time zone, for a timestamptz in text without an offset.

    Raises:
        InvalidTextRepresentation, InvalidBinaryRepresentation: the value is invalid for the type.
        NumericOutOfRange: a number is out of the type's range.
        CharacterNotInRepertoire: the text is not UTF-8 or has a zero byte.
        NotSupported: the binary form of the type is not known here.
        ProtocolViolation: the format is neither 0 nor 1.
    """
    if raw is None:
        return None
    if format_ not in (TEXT, BINARY):
        raise ProtocolViolation(f"unsupported format code: {format_}")
    code, type_ = _resolved(oid, duckdb_type)
    if format_ == TEXT:
        value = _from_text(utf8(bytes(raw)), code, type_, timezone)
    else:
        value = _from_binary(bytes(raw), code, type_)
    if type_ is not None and isinstance(value, list) and value_types.is_array(type_):
        _check_flat(value, type_)
    if type_ is not None and type_.name == "UHUGEINT" and isinstance(value, int) and value >= 0:
        return typed(str(value), "UHUGEINT")  # DuckDB would treat a UHUGEINT beside an INTEGER as a BIGINT.
    return value


def as_numeric(value: object, oid: int) -> object:
    """The value of a parameter that is cast to numeric or numeric[]; a float has PostgreSQL's digits.

    Args:
        oid: the type of the parameter.

    Raises:
        InvalidTextRepresentation: a text is no number.
        NumericOutOfRange: it has too many digits.
    """
    if isinstance(value, list):
        return [as_numeric(item, value_types.ELEMENT_OF.get(oid, oid)) for item in value]
    if isinstance(value, float) and math.isfinite(value):
        return Decimal(f"{value:.{6 if oid == value_types.FLOAT4 else 15}g}")
    if isinstance(value, str):
        return _fitted(read_numeric(value), None)
    return Decimal(value) if isinstance(value, int) else value


def _check_flat(items: list[object], type_: DuckType) -> None:
    """Refuse an array of several dimensions for a list of one, in which DuckDB would print the inner lists.

    The first element decides: the elements of an array are all arrays, or none is.
    """
    if items and isinstance(items[0], list):
        raise NotSupported(
            f"an array of several dimensions is no value of type {type_.text}",
            hint=f"Cast the parameter to a list of lists: $1::{type_.text}[]",
        )


def text_reader(duckdb_type: str, timezone: str | None) -> Callable[[str], object]:
    """The reader of PostgreSQL's text form of a type, with the errors of `decode`.

    Args:
        duckdb_type: the type of a column.
        timezone: the session's time zone, for a timestamptz without an offset.
    """
    target = _target(duckdb_type)
    oid = _described_oid(target)
    return lambda text: _from_text(text, oid, target, timezone)


def binary_reader(duckdb_type: str) -> Callable[[bytes], object]:
    """The reader of PostgreSQL's binary form of a type, with the errors of `decode`.

    A JSON column is read in the form of json too, which never begins with jsonb's prefix.

    Args:
        duckdb_type: the type of a column.
    """
    target = _target(duckdb_type)
    oid = _described_oid(target)
    if oid == value_types.JSONB:
        return lambda raw: receive_json(raw.removeprefix(JSONB_PREFIX))
    return lambda raw: _from_binary(raw, oid, target)


@lru_cache(TYPES_CACHED)
def _resolved(oid: int, duckdb_type: str | None) -> tuple[int, DuckType | None]:
    """The OID that decides a value's form, and the described type if it belongs to that OID."""
    target = _target(duckdb_type)
    described = _described_oid(target)
    if target is not None and oid >= value_types.USER_OID_FIRST:
        return described, target
    code = value_types.known(oid) if oid and oid != value_types.UNKNOWN else described
    # A type that the client chose overrides the described type; repeating ParameterDescription's does not.
    return code, target if code == described else None


def _target(duckdb_type: str | None) -> DuckType | None:
    """The described type, unless it carries no information."""
    if not duckdb_type or duckdb_type.upper() in ("UNKNOWN", "ANY", '"NULL"', "NULL"):
        return None
    return read_type(duckdb_type)


def _described_oid(target: DuckType | None) -> int:
    return value_types.TEXT if target is None else value_types.pg_type_of(target).oid


def _from_text(text: str, oid: int, type_: DuckType | None, timezone: str | None) -> object:
    if type_ is not None and (type_.nested and not value_types.is_array(type_)):
        return _nested(text, type_)
    if oid in value_types.ELEMENT_OF:
        element = type_.children[0] if type_ is not None else None
        return read_array(text, _element_reader(value_types.ELEMENT_OF[oid], element, timezone))
    if oid == value_types.TIMESTAMPTZ:
        return read_timestamptz(text, timezone)
    scalar = value_types.SCALARS.get(oid)
    if scalar is None or scalar.read is None:  # inet, a range: only the text of the value is available
        return text
    return _fitted(scalar.read(text), type_)


def _element_reader(oid: int, type_: DuckType | None, timezone: str | None) -> Callable[[str], object]:
    """The reader of many values of one type: decisions that depend on the type alone are made once."""
    scalar = value_types.SCALARS.get(oid)
    read = None if scalar is None else scalar.read
    if read is None or oid == value_types.TIMESTAMPTZ or (type_ is not None and type_.nested):
        return lambda item: _from_text(item, oid, type_, timezone)
    if oid != value_types.NUMERIC and (type_ is None or type_.name in AS_READ):
        return read
    return lambda item: _fitted(read(item), type_)


def _nested(text: str, type_: DuckType) -> object:
    """A STRUCT, MAP, UNION, VARIANT or list of lists, whose type is json for clients.

    A list may also arrive as a PostgreSQL array, and a struct as a record, which have other first characters.
    """
    if type_.name == "STRUCT" and text.lstrip().startswith("("):
        fields = zip(type_.fields, read_record(text, len(type_.children)), type_.children, strict=True)
        return {
            name: None if field is None else _from_text(field, _described_oid(child), child, None)
            for name, field, child in fields
        }
    if type_.name in ("LIST", "ARRAY") and text.lstrip().startswith("{"):
        element = type_
        while element.name in ("LIST", "ARRAY"):
            element = element.children[0]
        code = _described_oid(element)
        return read_array(text, lambda item: _from_text(item, code, element, None))
    return typed(text, "JSON")


def _from_binary(raw: bytes, oid: int, type_: DuckType | None) -> object:
    if type_ is not None and (type_.nested and not value_types.is_array(type_)):
        return _nested_from_binary(raw, type_)
    if oid in value_types.ELEMENT_OF:
        return _array_from_binary(raw, type_.children[0] if type_ is not None else None)
    scalar = value_types.SCALARS.get(oid)
    if scalar is None or scalar.read is None:
        raise NotSupported(
            f"binary parameters of type {oid} are not supported",
            hint="Send the parameter as text.",
        )
    try:
        value = scalar.receive(raw)
    except (struct.error, ValueError, OverflowError, IndexError) as error:
        raise InvalidBinaryRepresentation(f"incorrect binary data for type {scalar.name}") from error
    return _fitted(value, type_)


def _nested_from_binary(raw: bytes, type_: DuckType) -> object:
    """A nested value as text, or as a binary array or record, which begins with a zero byte."""
    if not raw.startswith(b"\0"):
        return _nested(utf8(raw), type_)
    if type_.name in ("LIST", "ARRAY"):
        return _array_from_binary(raw, type_.children[0])
    if type_.name != "STRUCT":
        raise InvalidBinaryRepresentation(f"incorrect binary data for type {type_.name.lower()}")
    fields = zip(type_.fields, read_binary_record(raw, len(type_.children)), type_.children, strict=True)
    return {name: decode(value, BINARY, oid, child.text) for name, (oid, value), child in fields}


def _array_from_binary(raw: bytes, element: DuckType | None) -> object:
    """An array from its binary form: dimensions, NULL flag, element type, sizes, lower bounds, elements."""
    try:
        dimensions, _, code = ARRAY_HEAD.unpack_from(raw)
        code = value_types.known(code)
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
        # Each element has a length word: more elements than the bytes can hold are refused unread.
        if min(sizes, default=0) < 0 or count * LENGTH.size > len(raw) - place:
            raise ValueError("size")
        items: list[object] = []
        if element is None or element.name in AS_READ:
            items = _fixed_elements(raw, place, count, code)
        if items:
            place, count = len(raw), 0
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


def _fixed_elements(raw: bytes, place: int, count: int, oid: int) -> list[object]:
    """The elements of an array if all have one size and none is NULL; else an empty list."""
    form = FIXED.get(oid)
    if form is None or len(raw) - place != count * form.size:
        return []
    size = form.size - LENGTH.size
    pairs = list(form.iter_unpack(memoryview(raw)[place:]))
    return [value for _, value in pairs] if all(length == size for length, _ in pairs) else []


# The described DuckDB type is more precise than its PostgreSQL type: UBIGINT is numeric on the wire.


def _fitted(value: object, type_: DuckType | None) -> object:
    """The value in the form that the described type needs, checked against its range."""
    name = type_.name if type_ is not None else ""
    if name in NUMERIC_INTEGERS and isinstance(value, Decimal):
        # A number outside the type's range is still a value: it may be part of a comparison.
        whole = _integer(value)
        return _exact(value, name) if whole is None else whole
    bounds = None if type_ is None else value_types.value_type(type_).bounds
    if bounds is not None and isinstance(value, int) and not bounds[0] <= value <= bounds[1]:
        raise _out_of_range(name)
    if isinstance(value, Decimal):
        return _exact(value, name)
    return value


def _integer(value: Decimal) -> int | None:
    """The value as an integer of DuckDB's range, else None."""
    if (
        not value.is_finite()
        or decimal_digits(value) > INTEGER_DIGITS_MAX
        or value != value.to_integral_value()
    ):
        return None
    return int(value) if INTEGER_MIN <= value <= INTEGER_MAX else None


def _exact(value: Decimal, name: str) -> object:
    """A Decimal that DuckDB accepts without rounding."""
    if not value.is_finite() or name in ("FLOAT", "DOUBLE"):
        return float(value)
    digits = decimal_digits(value)
    if name == "BIGNUM" or (digits > DECIMAL_DIGITS_MAX and value.as_tuple().exponent == 0):
        if digits > NUMBER_TEXT_MAX or value != value.to_integral_value():
            raise _out_of_range("numeric")
        return typed(f"{value:f}", "BIGNUM")
    if digits > DECIMAL_DIGITS_MAX:
        raise _out_of_range("numeric")
    return value


def _out_of_range(type_: str) -> NumericOutOfRange:
    return NumericOutOfRange(f"value is out of range for type {type_.lower()}")
