"""PostgreSQL's text of values, as our own DataRows have it, back to raw values and to binary.

Rows that are kept ready are text in UTC. A client that wants a column in binary, or a time in another
zone, gets it from that text: here is what `text_columns` and `text_form` print, read again. Only
their own output is read: what a client writes is engine/values/parameter_codecs.py. Source:
docs/design/values.md, "Ready rows".
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from datetime import date
from functools import lru_cache

from . import arrow_values as av
from . import pgtypes
from .array_text import read_array
from .binary_form import FORMS, NULL_LENGTH, array_head, clock_us
from .duckdb_types import TYPES_CACHED, DuckType, read_type
from .text_form import CYCLE_DAYS, DAY_US, element_text, timestamptz_text

Turn = Callable[[bytes], bytes]

_MOMENT = re.compile(r"(\d{4,})-(\d\d)-(\d\d)(?: (\d\d:\d\d:\d\d(?:\.\d{1,6})?))?(?:\+00)?( BC)?", re.ASCII)
_PART = re.compile(r"([+-]?(?<!\d)\d++) (year|mon|day)s?", re.ASCII)
_CLOCK = re.compile(r"([+-]?)(?<!\d)(\d++:\d\d:\d\d(?:\.\d{1,6})?)$", re.ASCII)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
# Moments repeat: a transaction's commit time is on all of its rows.
_MOMENTS_CACHED = 4096
UTC_NAMES = frozenset({"UTC", "ETC/UTC", "GMT", "ETC/GMT"})


def _day(year: int, month: int, day: int) -> int:
    """Days from 1970 in the calendar that goes on for ever both ways."""
    cycles, inside = divmod(year - 2000, 400)
    return date(2000 + inside, month, day).toordinal() - _EPOCH_DAY + cycles * CYCLE_DAYS


def _infinite(text: str, edge: int) -> int | None:
    return {"infinity": edge, "-infinity": -edge}.get(text)


def raw_date(text: str) -> int:
    """Days from 1970."""
    edge = _infinite(text, av.DATE_INFINITY)
    return _parts(text)[0] if edge is None else edge


@lru_cache(_MOMENTS_CACHED)
def raw_timestamp(text: str) -> int:
    """Microseconds from 1970; with a zone, of UTC.

    >>> raw_timestamp("1970-01-02 00:00:00.5+00")
    86400500000
    """
    edge = _infinite(text, av.TIMESTAMP_INFINITY)
    if edge is not None:
        return edge
    day, clock = _parts(text)
    return day * DAY_US + clock


def _parts(text: str) -> tuple[int, int]:
    found = _MOMENT.fullmatch(text)
    assert found is not None, text
    year, month, day, clock, bc = found.groups()
    number = 1 - int(year) if bc else int(year)
    return _day(number, int(month), int(day)), clock_us(clock) if clock else 0


def raw_interval(text: str) -> av.Interval:
    """Months, days, microseconds.

    >>> raw_interval("-1 years -2 mons +3 days -04:05:06.5")
    (-14, 3, -14706500000)
    """
    months = days = us = 0
    for number, unit in _PART.findall(text):
        if unit == "day":
            days += int(number)
        else:
            months += int(number) * (12 if unit == "year" else 1)
    clock = _CLOCK.search(text)
    if clock:
        us = -clock_us(clock[2]) if clock[1] == "-" else clock_us(clock[2])
    return months, days, us


def _raw_bytes(text: str) -> bytes:
    return bytes.fromhex(text[2:])


# What a form of binary_form takes, from the text of a PostgreSQL type; others take the text itself.
_RAW: dict[int, Callable[[str], av.Raw]] = {
    pgtypes.BOOL: "t".__eq__,
    pgtypes.INT2: int,
    pgtypes.INT4: int,
    pgtypes.INT8: int,
    pgtypes.FLOAT4: float,
    pgtypes.FLOAT8: float,
    pgtypes.BYTEA: _raw_bytes,
    pgtypes.DATE: raw_date,
    pgtypes.TIME: clock_us,
    pgtypes.TIMESTAMP: raw_timestamp,
    pgtypes.TIMESTAMPTZ: raw_timestamp,
    pgtypes.INTERVAL: raw_interval,
    pgtypes.UUID: uuid.UUID,
}
# Text and json are the same bytes in both formats.
_SAME = frozenset({pgtypes.TEXT, pgtypes.JSON})


@lru_cache(TYPES_CACHED)
def turn_of(type_: str, format_: int, timezone: str) -> Turn | None:
    """What makes of a value's text, in UTC, the bytes that are asked for; None for nothing.

    Args:
        type_: the DuckDB type.
        format_: 0 text, 1 binary.
        timezone: of the session.
    """
    read = read_type(type_)
    if format_:
        return _array_to_binary(read.children[0]) if pgtypes.is_array(read) else _to_binary(read)
    if timezone.upper() in UTC_NAMES:
        return None
    element = read.children[0] if pgtypes.is_array(read) else read
    if pgtypes.pg_type_of(element).oid != pgtypes.TIMESTAMPTZ:
        return None
    if element is read:
        return lambda value: _moved(value.decode(), timezone).encode()

    def moved_array(value: bytes) -> bytes:
        items = read_array(value.decode(), lambda text: _moved(text, timezone))
        return f"{{{','.join('NULL' if i is None else element_text(i) for i in items)}}}".encode()

    return moved_array


@lru_cache(_MOMENTS_CACHED)
def _moved(text: str, timezone: str) -> str:
    return timestamptz_text(raw_timestamp(text), timezone)


def _to_binary(type_: DuckType) -> Turn | None:
    oid = pgtypes.pg_type_of(type_).oid
    if oid in _SAME:
        return None
    binary, raw = FORMS[oid].binary, _RAW.get(oid)
    if raw is None:
        return lambda value: binary(value.decode())
    return lambda value: binary(raw(value.decode()))


def _array_to_binary(element: DuckType) -> Turn:
    turn = _to_binary(element)
    oid = pgtypes.pg_type_of(element).oid

    def item(text: str) -> bytes:
        return text.encode() if turn is None else turn(text.encode())

    def array(value: bytes) -> bytes:
        items = read_array(value.decode(), item)
        parts = [array_head(len(items), None in items, oid)]
        for found in items:
            parts.append(NULL_LENGTH if found is None else len(found).to_bytes(4, "big") + found)
        return b"".join(parts)

    return array
