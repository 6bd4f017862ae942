"""Numbers and booleans in PostgreSQL's text and binary forms: of a value, a column or a parameter.

Text is that of extra_float_digits 1. A column of integers or decimals becomes cells: digits are looked up
four at a time, a number is as wide as the widest of its column, and each row leaves out the digits that it
does not have. A parameter keeps all its digits. Binary readers raise struct.error or ValueError for invalid
bytes, which the caller turns into 22P03. Source: docs/design/values.md; PostgreSQL's src/backend/utils/adt.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import NumericOutOfRange
from . import arrow_values as av
from .cells import Array, Cell, Cells, Sizes, kept_last_table, take
from .strings import BLANKS, invalid_syntax

BASE, BASE_DIGITS = 10_000, 4
INT16_MAX, INT32_MAX, INT64_MAX = 2**15 - 1, 2**31 - 1, 2**63 - 1
POWERS = 10 ** np.arange(1, 19, dtype=np.int64)
INT64_MIN = -(2**63)
# Number of digits behind the point that fit an integer.
SCALE_MAX = 18
NUMERIC_HEAD_BYTES = 8
# The digits of each number of up to this length.
SHORT_DIGITS: dict[int, Array] = {
    digits: np.array([f"{number:0{digits}}".encode() for number in range(10**digits)]).view(f"V{digits}")
    for digits in range(1, BASE_DIGITS + 1)
}
DIGITS = SHORT_DIGITS[BASE_DIGITS]
# From this value a float is an integer, and so is the middle between two floats: it may have few digits.
FLOAT8_WHOLE, FLOAT4_WHOLE = 2.0**53, 2.0**24
FLOAT_NAMES = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
# numeric's sign words.
POSITIVE, NEGATIVE, NAN = 0x0000, 0x4000, 0xC000
# Infinity and minus infinity, and the scale that PostgreSQL sends with them.
INFINITY, INFINITY_SCALE = (0xD000, 0xF000), 32
NUMERIC_SPECIALS = {NAN: "NaN", INFINITY[0]: "Infinity", INFINITY[1]: "-Infinity"}
NUMERIC_SIGNS = {0, NEGATIVE, *NUMERIC_SPECIALS}
# A longer text is refused: reading digits takes time that grows with the square of their number.
NUMBER_TEXT_MAX = 5000
INTEGER_RE = re.compile(r"[+-]?\d{1,50}", re.ASCII)
NUMBER_RE = re.compile(r"[+-]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d{1,6})?", re.ASCII)
NUMBER_NAMES = {"nan": "nan", "infinity": "inf", "inf": "inf"}
BOOLEANS = {
    **dict.fromkeys(("t", "tr", "tru", "true", "y", "ye", "yes", "on", "1"), True),
    **dict.fromkeys(("f", "fa", "fal", "fals", "false", "n", "no", "of", "off", "0"), False),
}
HUGEINT_BOUND = 10**38


# The text of a value.


def bool_text(value: av.Raw) -> str:
    """The text of a boolean, t or f."""
    return "t" if value else "f"


def float8_text(value: av.Raw) -> str:
    """The shortest text that reads back as the same double; an exponent below -4 and from 15."""
    number = float(value)
    text = repr(number)
    if FLOAT8_WHOLE <= abs(number) < math.inf:
        near = math.nextafter(number, -math.inf), math.nextafter(number, math.inf)
        text = _strictly_between(number, text, near)
    return _shortest(text, 15)


def float4_text(value: av.Raw) -> str:
    """The shortest text that reads back as the same 32-bit float; an exponent below -4 and from 6."""
    number = np.float32(value)
    text = np.format_float_scientific(number, trim="-")
    if FLOAT4_WHOLE <= abs(number) < math.inf:
        with np.errstate(over="ignore"):  # the largest float's neighbour is infinity
            near = np.nextafter(number, np.array([-math.inf, math.inf], np.float32))
        text = _strictly_between(float(number), text, (float(near[0]), float(near[1])))
    return _shortest(text, 6)


def _strictly_between(number: float, text: str, near: tuple[float, float]) -> str:
    """The shortest text that is nearer to a float than the middle to either neighbour.

    Python accepts the middle itself if it reads back as the same float; PostgreSQL does not.
    """
    low, high = (
        (Fraction(number) + (Fraction(f) if math.isfinite(f) else 2 * Fraction(number))) / 2 for f in near
    )
    digits = len(_scientific(text)[1])
    while not low < Fraction(text) < high:
        digits += 1
        text = f"{number:.{digits - 1}e}"
    return text


def _shortest(text: str, exponent_from: int) -> str:
    """The shortest digits in PostgreSQL's layout."""
    if text in FLOAT_NAMES:
        return FLOAT_NAMES[text]
    sign, digits, exponent = _scientific(text)
    if -4 <= exponent < exponent_from:
        if exponent < 0:
            return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
        whole = digits[: exponent + 1].ljust(exponent + 1, "0")
        fraction = digits[exponent + 1 :]
        return f"{sign}{whole}.{fraction}" if fraction else f"{sign}{whole}"
    mantissa = f"{digits[0]}.{digits[1:]}" if len(digits) > 1 else digits
    return f"{sign}{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent):02}"


def _scientific(text: str) -> tuple[str, str, int]:
    """The sign, the digits without outer zeros and the exponent of the first digit of a float's repr."""
    sign = "-" if text[0] == "-" else ""
    mantissa, _, exponent = text.lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    power = int(exponent or "0") + len(whole) - 1
    digits = whole + fraction
    stripped = digits.lstrip("0")
    power -= len(digits) - len(stripped)
    stripped = stripped.rstrip("0")
    return (sign, stripped, power) if stripped else (sign, "0", 0)


def decimal_text(value: av.Raw) -> str:
    """A decimal's digits with the column's scale, never with an exponent."""
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


# The texts of a column.


def cast_texts(column: pa.Array, zone: str) -> pa.Array | None:
    """The texts of a column as Arrow prints them."""
    return column.cast(pa.string())


def bool_texts(column: pa.Array, zone: str) -> pa.Array | None:
    """The texts of a column of booleans, t or f."""
    return pc.if_else(column, "t", "f")


def float_texts(below: float, text: Callable[[av.Raw], str]) -> Callable[[pa.Array, str], pa.Array]:
    """The writer of floats: Arrow prints numbers from 1e-4 to `below`, and `text` prints all others."""

    def texts(column: pa.Array, zone: str) -> pa.Array:
        sizes = np.abs(av.filled(column, av.ints(column)))
        # NaN fails both comparisons, and with them all().
        ordinary = ((sizes >= 1e-4) & (sizes < below)) | (sizes == 0)
        printed = column.cast(pa.string())
        if ordinary.all():
            return printed
        odd = pa.array(~ordinary)
        return pc.replace_with_mask(
            printed, odd, pa.array([text(value) for value in column.filter(odd).to_pylist()], pa.string())
        )

    return texts


def decimal_texts(column: pa.Array, zone: str) -> pa.Array | None:
    """The texts of decimals as Arrow prints them; None if it prints one with an exponent."""
    texts = column.cast(pa.string())
    if column.type.scale > 6 and pc.any(pc.match_substring(texts, "E")).as_py():
        return None
    return texts


def bool_cells(column: pa.Array, zone: str) -> Cells:
    """Cells of booleans, t or f."""
    return Cells((Cell("u1", np.where(av.ints(column), ord("t"), ord("f"))),), 1)


def number_cells(column: pa.Array, zone: str) -> Cells | None:
    """The text of integers, or of decimals with all digits of their scale behind the point."""
    values, scale = unscaled_integers(column), scale_of(column)
    if values is None:
        return None
    cells: list[Cell] = []
    sizes: Sizes = 0
    negative = values < 0
    if negative.any():
        values = np.abs(values)
        cells.append(Cell("V1", b"-", negative))
        sizes = negative.astype(np.int64)
    if not scale:
        found = _integer_cells(values)
        return Cells((*cells, *found.cells), sizes + found.sizes)
    power = int(POWERS[scale - 1])
    before = values // power
    found = _integer_cells(before)
    cells += [*found.cells, Cell("V1", b"."), *_last_digits(values - before * power, scale)]
    return Cells(tuple(cells), sizes + found.sizes + 1 + scale)


def scale_of(column: pa.Array) -> int:
    """The number of digits behind the point."""
    return int(column.type.scale) if pa.types.is_decimal(column.type) else 0


def unscaled_integers(column: pa.Array) -> npt.NDArray[np.int64] | None:
    """The values of a column of integers or decimals, without their point; 0 where NULL.

    Returns None for other types, and if a value does not fit a signed 64-bit integer.
    """
    if pa.types.is_decimal128(column.type) and column.type.scale <= SCALE_MAX:
        words = np.frombuffer(column.buffers()[1], np.int64, 2 * len(column), column.offset * 16)
        values, high = words[::2], words[1::2]
        values, high = av.filled(column, values), av.filled(column, high)
        if (high != values >> 63).any():
            return None
    elif pa.types.is_integer(column.type) and column.type != pa.uint64():
        values = av.filled(column, av.ints(column).astype(np.int64))
    else:
        return None
    return None if not len(values) or values.min() == INT64_MIN else values


def _integer_cells(values: npt.NDArray[np.int64]) -> Cells:
    low, high = int(values.min()), int(values.max())
    digits = len(str(high))
    if len(str(low)) == digits:
        return Cells(tuple(_last_digits(values, digits)), digits)
    sizes = np.searchsorted(POWERS[:digits], values, "right") + 1
    groups = _groups(values, -(-digits // BASE_DIGITS))
    width = BASE_DIGITS * len(groups)
    text = np.empty(len(values), np.dtype([(str(place), "V4") for place in range(len(groups))]))
    for place, group in enumerate(groups):
        text[str(place)] = take(DIGITS, group)
    kind = f"V{width}"
    return Cells((Cell(kind, text.view(kind), take(kept_last_table(width), sizes)),), sizes)


def _last_digits(values: npt.NDArray[np.int64], digits: int) -> list[Cell]:
    """Cells of the last `digits` digits of each value."""
    groups = _groups(values, -(-digits // BASE_DIGITS))
    first = digits - BASE_DIGITS * (len(groups) - 1)
    tables = [SHORT_DIGITS[first], *[DIGITS] * (len(groups) - 1)]
    taken = [take(table, group) for table, group in zip(tables, groups, strict=True)]
    return [Cell(text.dtype.str, text) for text in taken]


def _groups(values: npt.NDArray[np.int64], count: int) -> list[npt.NDArray[np.int64]]:
    """The last `count` digits in base 10,000, the most significant first."""
    found = []
    for _ in range(count - 1):
        rest = values // BASE
        found.append(values - rest * BASE)
        values = rest
    return [values, *reversed(found)]


# The binary form of a value and of a column.


def packer(code: str) -> Callable[[av.Raw], bytes]:
    """The writer of numbers of one width, by struct's code."""
    packer = struct.Struct(code)
    return packer.pack


def numeric_binary(value: av.Raw) -> bytes:
    """A decimal as base-10000 digits: count, weight of the first, sign, digits after the point."""
    number = Decimal(value)
    sign, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int):
        # DuckDB's numbers are finite: it is a client's own value, passed through as text.
        word = NAN if number.is_nan() else INFINITY[sign]
        return struct.pack("!hhHH", 0, 0, word, 0 if word == NAN else INFINITY_SCALE)
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


def fixed_cells(kind: str) -> Callable[[pa.Array], Cells]:
    """The writer of a column of numbers of one width, by numpy's name of their type."""
    width = int(kind[-1])
    return lambda column: Cells((Cell(kind, av.ints(column)),), width)


def numeric_binary_cells(column: pa.Array) -> Cells | None:
    """numeric's binary form of integers or decimals: groups of four digits around the point.

    Groups of zeros at either end are left out, and so is the sign of a zero.
    """
    values, scale = unscaled_integers(column), scale_of(column)
    if values is None:
        return None
    negative = values < 0
    values = np.abs(values)
    behind: list[npt.NDArray[np.int64]] = []
    if scale:
        power = int(POWERS[scale - 1])
        before = values // power
        values, behind = before, _fraction_groups(values - before * power, scale)
    whole_groups = _groups(values, -(-len(str(int(values.max()))) // BASE_DIGITS))
    groups = [*whole_groups, *behind]
    there = [group != 0 for group in groups]
    begun = list(accumulate(there, np.logical_or))
    unended = list(accumulate(reversed(there), np.logical_or))[::-1]
    kept = [one & other for one, other in zip(begun, unended, strict=True)]
    count: npt.NDArray[np.int64] = np.stack(kept).sum(axis=0, dtype=np.int64)
    # Weight of the first group: one less for each group of zeros before it.
    weight = len(whole_groups) - 1 - len(groups) + np.stack(begun).sum(axis=0)
    cells = (
        Cell(">i2", count),
        Cell(">i2", np.where(count > 0, weight, 0)),
        Cell(">u2", np.where(negative, NEGATIVE, 0) if negative.any() else 0),
        Cell(">u2", scale),
        *(Cell(">u2", group, which) for group, which in zip(groups, kept, strict=True)),
    )
    return Cells(cells, NUMERIC_HEAD_BYTES + 2 * count)


def _fraction_groups(fraction: npt.NDArray[np.int64], scale: int) -> list[npt.NDArray[np.int64]]:
    """The groups behind the point; the last one is filled with zeros at its end."""
    full, rest = divmod(scale, BASE_DIGITS)
    if not rest:
        return _groups(fraction, full)
    head = fraction // 10**rest
    last = (fraction - head * 10**rest) * 10 ** (BASE_DIGITS - rest)
    return [*(_groups(head, full) if full else ()), last]


# A client's text and binary parameters.


def read_bool(text: str) -> object:
    """A boolean from PostgreSQL's spellings of true and false, or a prefix of one."""
    value = BOOLEANS.get(text.strip(BLANKS).lower())
    if value is None:
        raise invalid_syntax(text, "boolean")
    return value


def integer_reader(bits: int, name: str) -> Callable[[str], object]:
    """The reader of integers of `bits` bits; errors name PostgreSQL's type."""

    def read(text: str) -> object:
        stripped = text.strip(BLANKS)
        if not INTEGER_RE.fullmatch(stripped):
            raise invalid_syntax(text, name)
        value = int(stripped)
        if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            raise NumericOutOfRange(f'value "{text[:50]}" is out of range for type {name}')
        return value

    return read


def read_oid(text: str) -> object:
    """An oid; its range is that of the catalog's column."""
    stripped = text.strip(BLANKS)
    if not INTEGER_RE.fullmatch(stripped):
        raise invalid_syntax(text, "oid")
    return int(stripped)


def read_float(text: str) -> object:
    """A double, or NaN or Infinity."""
    stripped = _number_text(text, "double precision")
    value = float(stripped)
    if value in (float("inf"), float("-inf")) and "inf" not in stripped:
        raise NumericOutOfRange(f'"{text[:50]}" is out of range for type double precision')
    return value


def read_numeric(text: str) -> object:
    """A Decimal with all digits, or NaN or Infinity."""
    value = Decimal(_number_text(text, "numeric"))
    return value


def _number_text(text: str, name: str) -> str:
    """The text of a number in Python's spelling."""
    stripped = text.strip(BLANKS)
    sign = stripped[0] if stripped[:1] in ("+", "-") else ""
    word = NUMBER_NAMES.get(stripped[len(sign) :].lower())
    if word is not None:
        return sign + word
    if len(stripped) > NUMBER_TEXT_MAX or not NUMBER_RE.fullmatch(stripped):
        raise invalid_syntax(text, name)
    return stripped


def receive_bool(raw: bytes) -> object:
    """A boolean from one byte."""
    if len(raw) != 1:
        raise ValueError("length")
    return raw != b"\0"


def receiver(code: str) -> Callable[[bytes], object]:
    """The reader of binary numbers of one width, by struct's code."""
    packer = struct.Struct(code)

    def read(raw: bytes) -> object:
        (value,) = packer.unpack(raw)
        return value

    return read


def receive_numeric(raw: bytes) -> object:
    """A numeric from base-10000 digits, or from a sign word for NaN or Infinity."""
    count, weight, sign, scale = struct.unpack_from("!HhHH", raw)
    if sign not in NUMERIC_SIGNS or len(raw) != 8 + 2 * count:
        raise ValueError("numeric")
    if sign in NUMERIC_SPECIALS:
        return Decimal(NUMERIC_SPECIALS[sign])
    groups = struct.unpack_from(f"!{count}H", raw, 8)
    if any(group > 9999 for group in groups):
        raise ValueError("digit")
    if count > NUMBER_TEXT_MAX:
        raise NumericOutOfRange("value is out of range for type numeric")
    digits = "".join(f"{group:04}" for group in groups).lstrip("0") or "0"
    # The last group's own power of ten; then exactly `scale` digits after the point.
    exponent = (weight - count + 1) * BASE_DIGITS
    number = Decimal((0, tuple(map(int, digits)), exponent if digits != "0" else 0))
    if max(decimal_digits(number), scale) > NUMBER_TEXT_MAX:
        raise NumericOutOfRange("value is out of range for type numeric")
    whole = f"{number:f}"
    integer, _, fraction = whole.partition(".")
    text = f"{integer}.{fraction.ljust(scale, '0')[:scale]}" if scale else integer
    return Decimal(f"-{text}" if sign == NEGATIVE else text)


def decimal_digits(value: Decimal) -> int:
    """The number of digits needed to write a finite number without an exponent."""
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    return max(len(digits) + max(exponent, 0), -exponent)


# Values of DuckDB's Python client.


def python_hugeint(value: object) -> av.Raw:
    """An integer of up to 38 digits as the Decimal that Arrow uses for it."""
    # Arrow has it as a decimal of 38 digits.
    if not isinstance(value, int) or abs(value) >= HUGEINT_BOUND:
        raise av.AmbiguousValue
    return value
