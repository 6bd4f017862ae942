"""Dates and timestamps as cells of text: days, seconds of a day and fractions are looked up.

Right for the days of two centuries; of others it gives None, and the way of every day is taken.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .cells import Array, Cell, Cells, kept_first_table, take

# Days from 1970 that are looked up, 1900-01-01 to 2099-12-31.
FIRST_DAY, LAST_DAY = -25_567, 47_481
DAY_US, SECOND_US = 86_400_000_000, 1_000_000
DAY_S = 86_400
DATE_BYTES, CLOCK_BYTES, FRACTION_BYTES = 10, 8, 7
Ints = npt.NDArray[np.int64]


@lru_cache(1)
def _days() -> Array:
    return _texts(pa.array(np.arange(FIRST_DAY, LAST_DAY + 1, dtype=np.int32), pa.date32()), DATE_BYTES)


@lru_cache(1)
def _clocks() -> Array:
    return _texts(pa.array(np.arange(DAY_S, dtype=np.int32), pa.time32("s")), CLOCK_BYTES)


def _texts(values: pa.Array, width: int) -> Array:
    """What Arrow prints of values whose texts are of one width."""
    data = values.cast(pa.string()).buffers()[2]
    return np.frombuffer(data, f"V{width}", len(values))


@lru_cache(1)
def _thousands() -> tuple[Array, Array, Array]:
    """The first three digits of a fraction behind their point, the last three, and how many of three
    there are without zeros at the end."""
    firsts = np.array([f".{number:03}".encode() for number in range(1000)], "S4").view("V4")
    lasts = np.array([f"{number:03}".encode() for number in range(1000)], "S3").view("V3")
    counts = np.array([len(f"{number:03}".rstrip("0")) for number in range(1000)], np.int64)
    return firsts, lasts, counts


def date_text(days: Ints) -> Cells | None:
    """Days from 1970; what stands where the column is NULL must be a day as well."""
    if days.min() < FIRST_DAY or days.max() > LAST_DAY:
        return None
    return Cells((Cell(f"V{DATE_BYTES}", take(_days(), days - FIRST_DAY)),), DATE_BYTES)


def clock_text(us: Ints) -> Cells:
    """Times of a day in microseconds from midnight."""
    seconds = us // SECOND_US
    fraction = _fraction(us - seconds * SECOND_US)
    clock = Cell(f"V{CLOCK_BYTES}", take(_clocks(), seconds))
    return Cells((clock, *fraction.cells), CLOCK_BYTES + fraction.sizes)


def within(us: Ints) -> bool:
    """Whether timestamps are looked up, in whatever zone."""
    return bool(us.min() >= (FIRST_DAY + 1) * DAY_US and us.max() < LAST_DAY * DAY_US)


def moment_text(us: Ints, offsets: Cells | None = None) -> Cells | None:
    """Timestamps in microseconds from 1970, and the text of their zone's offset behind them."""
    days = us // DAY_US
    date = date_text(days)
    if date is None:
        return None
    clock, behind = clock_text(us - days * DAY_US), offsets or Cells((), 0)
    cells = (*date.cells, Cell("V1", b" "), *clock.cells, *behind.cells)
    return Cells(cells, DATE_BYTES + 1 + clock.sizes + behind.sizes)


def _fraction(us: Ints) -> Cells:
    """Point and digits of a fraction without zeros at their end."""
    if not us.any():
        return Cells((), 0)
    firsts, lasts, counts = _thousands()
    thousands = us // 1000
    rest = us - thousands * 1000
    sizes = np.where(rest > 0, 4 + take(counts, rest), 1 + take(counts, thousands))
    sizes[us == 0] = 0
    text = np.empty(len(us), np.dtype([("first", "V4"), ("last", "V3")]))
    text["first"], text["last"] = take(firsts, thousands), take(lasts, rest)
    kind = f"V{FRACTION_BYTES}"
    return Cells((Cell(kind, text.view(kind), take(kept_first_table(FRACTION_BYTES), sizes)),), sizes)
