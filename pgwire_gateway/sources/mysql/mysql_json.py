"""JSON of MySQL in its binary format, as text.

A document is a type and a value. A value of an object or array begins with the number of its members and its
size; the entries of keys (offset, length) and of values (type, offset) follow, then what they point to.
Offsets are relative to the value's begin. A literal or a short integer is in the entry itself, in the place
of the offset.

| type | value |
|---|---|
| 0, 1 | object with offsets of 2 or 4 bytes |
| 2, 3 | array with offsets of 2 or 4 bytes |
| 4 | literal: 0 null, 1 true, 2 false |
| 5 to 10 | integers of 2, 4 and 8 bytes, signed and unsigned in turn |
| 11 | double |
| 12 | string: length in groups of 7 bits, and the text |
| 15 | value of another type: its code, length and bytes |

The text is written as MySQL shows it, so that a document is the same in a copy and in the log.
Source: MySQL, sql-common/json_binary.h.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from decimal import Decimal

from ....engine.errors import DataError

_LITERALS = ("null", "true", "false")
_INTEGERS = {5: "<h", 6: "<H", 7: "<i", 8: "<I", 9: "<q", 10: "<Q"}
_DOUBLE, _STRING, _OPAQUE, _LITERAL = 11, 12, 15, 4
# MySQL accepts no deeper documents.
DEPTH_MAX = 101
# Types of opaque values: DECIMAL, DATE, TIME, DATETIME and TIMESTAMP.
_DECIMAL, _DATE, _TIME, _DATETIMES = 246, 10, 11, (12, 7)


def json_text(document: bytes) -> str:
    """The text of a document; that of the empty one, which MySQL stores for no value, is `null`.

    Raises:
        DataError: the bytes are no document.
    """
    if not document:
        return "null"
    try:
        return _text(document[0], document, 1, DEPTH_MAX)
    except (IndexError, struct.error, ValueError) as error:
        raise DataError(f"a JSON document in the binary log is malformed: {error}") from error


def _text(kind: int, data: bytes, at: int, depth: int) -> str:
    if depth == 0:
        raise ValueError("it is nested too deeply")
    if kind <= 3:
        return _members(kind, data, at, depth)
    if kind == _LITERAL:
        return _LITERALS[data[at]]
    form = _INTEGERS.get(kind)
    if form is not None:
        return str(struct.unpack_from(form, data, at)[0])
    if kind == _DOUBLE:
        return _double_text(struct.unpack_from("<d", data, at)[0])
    if kind == _STRING:
        size, at = _length(data, at)
        return json.dumps(_slice(data, at, size).decode(), ensure_ascii=False)
    if kind == _OPAQUE:
        size, begin = _length(data, at + 1)
        return _opaque(data[at], _slice(data, begin, size))
    raise ValueError(f"type {kind} is not known")


# Digits before the point, or zeros behind it, up to which MySQL shows a double without an exponent.
_PLAIN_DIGITS = 15


def _double_text(value: float) -> str:
    """A double with the fewest digits that identify it, as MySQL shows it."""
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int), "JSON has no NaN"
    point = len(digits) + exponent
    text = "".join(map(str, digits))
    if -_PLAIN_DIGITS < point <= _PLAIN_DIGITS:
        padded = text.rjust(len(text) + 1 - point, "0") if point <= 0 else text.ljust(point, "0")
        whole = max(point, 1)
        text = f"{padded[:whole]}.{padded[whole:] or '0'}"
    else:
        text = f"{text[0]}{'.' if text[1:] else ''}{text[1:]}e{point - 1}"
    return f"{'-' if sign else ''}{text}"


def _members(kind: int, data: bytes, begin: int, depth: int) -> str:
    """The text of an object or an array that begins at a place."""
    width, form = (4, "<I") if kind & 1 else (2, "<H")
    count = struct.unpack_from(form, data, begin)[0]
    is_object = kind <= 1
    keys = begin + 2 * width
    values = keys + (count * (width + 2) if is_object else 0)
    if values + count * (width + 1) > len(data):
        raise ValueError("it is too short")
    parts = []
    for place in range(count):
        entry = values + place * (width + 1)
        type_ = data[entry]
        inline = type_ in (_LITERAL, 5, 6) or (width == 4 and type_ in (7, 8))
        value_at = entry + 1 if inline else begin + struct.unpack_from(form, data, entry + 1)[0]
        text = _text(type_, data, value_at, depth - 1)
        if is_object:
            key_entry = keys + place * (width + 2)
            offset = struct.unpack_from(form, data, key_entry)[0]
            size = struct.unpack_from("<H", data, key_entry + width)[0]
            key = _slice(data, begin + offset, size).decode()
            text = f"{json.dumps(key, ensure_ascii=False)}: {text}"
        parts.append(text)
    return f"{{{', '.join(parts)}}}" if is_object else f"[{', '.join(parts)}]"


def _length(data: bytes, at: int) -> tuple[int, int]:
    """A length in groups of 7 bits, the lowest first; and the place behind it."""
    size = shift = 0
    while shift < 35:
        byte = data[at]
        size |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return size, at
    raise ValueError("a length has too many bytes")


def _slice(data: bytes, at: int, size: int) -> bytes:
    found = data[at : at + size]
    if len(found) != size:
        raise ValueError("it is too short")
    return found


def _opaque(kind: int, value: bytes) -> str:
    if kind == _DECIMAL:
        size, text = decimal_reader(value[0], value[1])
        return text(_slice(value, 2, size))
    if kind not in (_DATE, _TIME, *_DATETIMES):
        return json.dumps(f"base64:type{kind}:{base64.b64encode(value).decode()}")
    packed = struct.unpack("<q", value)[0]
    sign, packed = ("-", -packed) if packed < 0 else ("", packed)
    fraction, number = packed & 0xFFFFFF, packed >> 24
    second = number & 63
    if kind == _TIME:
        return f'"{sign}{number >> 12 & 1023:02}:{number >> 6 & 63:02}:{second:02}.{fraction:06}"'
    months, day = number >> 22, number >> 17 & 31
    date = f"{months // 13:04}-{months % 13:02}-{day:02}"
    if kind == _DATE:
        return f'"{date}"'
    return f'"{date} {number >> 12 & 31:02}:{number >> 6 & 63:02}:{second:02}.{fraction:06}"'


# Bytes of an incomplete group of digits, by their number.
_GROUP_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


def decimal_groups(precision: int, scale: int) -> tuple[tuple[int, int, int], ...]:
    """The groups of digits of a stored decimal, nine in four bytes each: begin, end and 10 ** digits."""
    groups: list[tuple[int, int, int]] = []
    at, whole = 0, precision - scale
    for digits in (whole % 9, *[9] * (whole // 9), *[9] * (scale // 9), scale % 9):
        if digits:
            groups.append((at, at + _GROUP_BYTES[digits], 10**digits))
            at += _GROUP_BYTES[digits]
    return tuple(groups)


def decimal_reader(precision: int, scale: int) -> tuple[int, Callable[[bytes], str]]:
    """The size of stored decimals, and the function to their texts.

    The first bit of one is set; of a negative one all bits are inverted.
    """
    groups = decimal_groups(precision, scale)
    size, divisor = groups[-1][1], 10**scale
    sign_bit, all_bits = 1 << (size * 8 - 1), (1 << size * 8) - 1
    # For each group the bits behind it, the mask of its own, and the factor of those before.
    parts = [((size - end) * 8, (1 << (end - begin) * 8) - 1, factor) for begin, end, factor in groups]

    def text(stored: bytes) -> str:
        number, sign = int.from_bytes(stored, "big") ^ sign_bit, ""
        if number & sign_bit:
            number, sign = number ^ all_bits, "-"
        value = 0
        for shift, mask, factor in parts:
            value = value * factor + (number >> shift & mask)
        if not scale:
            return f"{sign}{value}"
        return f"{sign}{value // divisor}.{value % divisor:0{scale}}"

    return size, text
