"""Whole numbers and decimals as cells: PostgreSQL's text of them, and numeric's binary form.

Digits are looked up four at a time. A number is as wide as the widest of its column, and each row
leaves out the digits that it does not have.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from . import arrow_values as av
from .cells import Array, Cell, Cells, Sizes, kept_table, take

BASE, BASE_DIGITS = 10_000, 4
NEGATIVE = 0x4000
# The digits of each number that has up to so many of them.
SHORT_DIGITS: dict[int, Array] = {
    digits: np.array([f"{number:0{digits}}".encode() for number in range(10**digits)]).view(f"V{digits}")
    for digits in range(1, BASE_DIGITS + 1)
}
DIGITS = SHORT_DIGITS[BASE_DIGITS]
POWERS = 10 ** np.arange(1, 19, dtype=np.int64)
INT64_MIN = -(2**63)
# Digits behind the point that fit an integer.
SCALE_MAX = 18
NUMERIC_HEAD_BYTES = 8


def unscaled_integers(column: pa.Array) -> npt.NDArray[np.int64] | None:
    """The values of a column of integers or decimals, without their point; 0 where NULL.

    None for other types, and where one does not fit 64 bits with its sign.
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


def number_text(column: pa.Array) -> Cells | None:
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
        found = _whole_text(values)
        return Cells((*cells, *found.cells), sizes + found.sizes)
    power = int(POWERS[scale - 1])
    before = values // power
    found = _whole_text(before)
    cells += [*found.cells, Cell("V1", b"."), *_last_digits(values - before * power, scale)]
    return Cells(tuple(cells), sizes + found.sizes + 1 + scale)


def scale_of(column: pa.Array) -> int:
    """Digits behind the point."""
    return int(column.type.scale) if pa.types.is_decimal(column.type) else 0


def _whole_text(values: npt.NDArray[np.int64]) -> Cells:
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
    return Cells((Cell(kind, text.view(kind), take(kept_table(width), sizes)),), sizes)


def _last_digits(values: npt.NDArray[np.int64], digits: int) -> list[Cell]:
    """So many digits of each."""
    groups = _groups(values, -(-digits // BASE_DIGITS))
    first = digits - BASE_DIGITS * (len(groups) - 1)
    tables = [SHORT_DIGITS[first], *[DIGITS] * (len(groups) - 1)]
    taken = [take(table, group) for table, group in zip(tables, groups, strict=True)]
    return [Cell(text.dtype.str, text) for text in taken]


def _groups(values: npt.NDArray[np.int64], count: int) -> list[npt.NDArray[np.int64]]:
    """The last `count` digits in base 10,000, the first of them first."""
    found = []
    for _ in range(count - 1):
        rest = values // BASE
        found.append(values - rest * BASE)
        values = rest
    return [values, *reversed(found)]


def numeric_binary(column: pa.Array) -> Cells | None:
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
        values, behind = before, _groups_behind(values - before * power, scale)
    whole_groups = _groups(values, -(-len(str(int(values.max()))) // BASE_DIGITS))
    groups = [*whole_groups, *behind]
    there = [group != 0 for group in groups]
    begun = list(accumulate(there, np.logical_or))
    unended = list(accumulate(reversed(there), np.logical_or))[::-1]
    kept = [one & other for one, other in zip(begun, unended, strict=True)]
    count: npt.NDArray[np.int64] = np.stack(kept).sum(axis=0, dtype=np.int64)
    # What the first group counts: one less for each group of zeros before it.
    weight = len(whole_groups) - 1 - len(groups) + np.stack(begun).sum(axis=0)
    cells = (
        Cell(">i2", count),
        Cell(">i2", np.where(count > 0, weight, 0)),
        Cell(">u2", np.where(negative, NEGATIVE, 0) if negative.any() else 0),
        Cell(">u2", scale),
        *(Cell(">u2", group, which) for group, which in zip(groups, kept, strict=True)),
    )
    return Cells(cells, NUMERIC_HEAD_BYTES + 2 * count)


def _groups_behind(fraction: npt.NDArray[np.int64], scale: int) -> list[npt.NDArray[np.int64]]:
    """The groups behind the point; the last one is filled with zeros at its end."""
    full, rest = divmod(scale, BASE_DIGITS)
    if not rest:
        return _groups(fraction, full)
    head = fraction // 10**rest
    last = (fraction - head * 10**rest) * 10 ** (BASE_DIGITS - rest)
    return [*(_groups(head, full) if full else ()), last]
