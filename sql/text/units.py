"""Intervals and sizes as people write them: `'7d'`, `'1 day 02:00:00'`, `'64 MiB'`.

A number without a unit is refused: half of its readers would take it for seconds and the other half for
milliseconds. Sizes are the exception: their unit is the byte.
"""

from __future__ import annotations

import re
from fractions import Fraction

from ...engine.errors import InvalidParameterValue

# The longest accepted interval: some thousand years; a longer one is a mistake.
INTERVAL_MS_MAX = 1 << 47
# The largest accepted size: an exbibyte, larger than any disk and far below the end of an int8.
BYTES_MAX = 1 << 60

_SECOND = 1000
_DAY = 86_400 * _SECOND

# PostgreSQL's conversion of lengths: a month has 30 days, a year 12 months.
_UNITS_MS = {
    ("us", "usec", "usecs", "microsecond", "microseconds"): Fraction(1, 1000),
    ("ms", "msec", "msecs", "millisecond", "milliseconds"): Fraction(1),
    ("s", "sec", "secs", "second", "seconds"): Fraction(_SECOND),
    ("m", "min", "mins", "minute", "minutes"): Fraction(60 * _SECOND),
    ("h", "hr", "hrs", "hour", "hours"): Fraction(3600 * _SECOND),
    ("d", "day", "days"): Fraction(_DAY),
    ("w", "week", "weeks"): Fraction(7 * _DAY),
    ("mon", "mons", "month", "months"): Fraction(30 * _DAY),
    ("y", "yr", "yrs", "year", "years"): Fraction(360 * _DAY),
}
_UNIT_MS = {word: length for words, length in _UNITS_MS.items() for word in words}

_UNIT_BYTES = {
    "b": 1,
    "byte": 1,
    "bytes": 1,
    "k": 1000,
    "kb": 1000,
    "kib": 1 << 10,
    "m": 1000**2,
    "mb": 1000**2,
    "mib": 1 << 20,
    "g": 1000**3,
    "gb": 1000**3,
    "gib": 1 << 30,
    "t": 1000**4,
    "tb": 1000**4,
    "tib": 1 << 40,
}

# The maximum length of the text of an interval or size.
_CHARS_MAX = 200
_NUMBER = r"\d{1,18}(?:\.\d{0,9})?|\.\d{1,9}"
_AMOUNT = re.compile(rf"\s*({_NUMBER})\s*([a-zA-Zµ]+)\s*,?", re.ASCII)
_CLOCK = re.compile(r"\s*(\d{1,9}):([0-5]?\d)(?::([0-5]?\d(?:\.\d{0,6})?))?\s*$", re.ASCII)
_ISO = re.compile(
    r"P(?=.)(?:(\d+)Y)?(?:(\d+)M)?(?:(\d+)W)?(?:(\d+)D)?"
    r"(?:T(?=.)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d{1,6})?)S)?)?$",
    re.ASCII,
)
_ISO_UNITS = ("y", "mon", "w", "d", "h", "m", "s")
_BARE = re.compile(rf"\s*[+-]?(?:{_NUMBER})\s*$", re.ASCII)
_BYTES = re.compile(rf"\s*({_NUMBER})\s*([a-zA-Z]*)\s*$", re.ASCII)

_INTERVAL_HINT = "Intervals look like '500 ms', '30 s', '5 min', '7d' or '1 day 02:00:00'."
_BYTES_HINT = "Sizes look like 67108864, '64 MiB' or '10 GB'."


def parse_interval_ms(text: str) -> int:
    """The length of an interval in milliseconds, rounded down.

    >>> parse_interval_ms('1 day 02:00:00'), parse_interval_ms('500ms'), parse_interval_ms('PT1H')
    (93600000, 500, 3600000)

    Raises:
        InvalidParameterValue: the text is no interval, is negative, or is a number without a unit.
    """
    if len(text) > _CHARS_MAX:
        raise InvalidParameterValue(f'invalid interval: "{text[:_CHARS_MAX]}..."', hint=_INTERVAL_HINT)
    if _BARE.match(text):
        raise InvalidParameterValue(f'invalid interval: "{text}"', hint=f"Give a unit. {_INTERVAL_HINT}")
    total = _iso_ms(text.strip()) or _amounts_ms(text)
    if total is None:
        raise InvalidParameterValue(f'invalid interval: "{text}"', hint=_INTERVAL_HINT)
    if total > INTERVAL_MS_MAX:
        raise InvalidParameterValue(f'interval is too long: "{text}"', hint=_INTERVAL_HINT)
    return int(total)


def _amounts_ms(text: str) -> Fraction | None:
    total, place = Fraction(0), 0
    while place < len(text) and not text[place:].isspace():
        amount = _AMOUNT.match(text, place)
        if amount is not None:
            unit = _UNIT_MS.get(amount[2].lower())
            if unit is None:
                return None
            total += Fraction(amount[1]) * unit
            place = amount.end()
            continue
        clock = _CLOCK.match(text, place)
        if clock is None:
            return None
        return total + _clock_ms(clock)
    return total if place else None


def _clock_ms(clock: re.Match[str]) -> Fraction:
    hours, minutes, seconds = clock.groups(default="0")
    return (int(hours) * 3600 + int(minutes) * 60 + Fraction(seconds)) * _SECOND


def _iso_ms(text: str) -> Fraction | None:
    found = _ISO.match(text)
    if found is None:
        return None
    parts = zip(found.groups(default="0"), _ISO_UNITS, strict=True)
    return sum((Fraction(amount) * _UNIT_MS[unit] for amount, unit in parts), Fraction(0))


def parse_bytes(text: str) -> int:
    """A size in bytes; KB, MB, GB, TB are powers of 1000, KiB, MiB, GiB, TiB powers of 1024.

    >>> parse_bytes('64 MiB'), parse_bytes('10 GB'), parse_bytes('1024')
    (67108864, 10000000000, 1024)

    Raises:
        InvalidParameterValue: the text is no size.
    """
    if len(text) > _CHARS_MAX:
        raise InvalidParameterValue(f'invalid size: "{text[:_CHARS_MAX]}..."', hint=_BYTES_HINT)
    found = _BYTES.match(text)
    unit = _UNIT_BYTES.get(found[2].lower() or "b") if found else None
    if found is None or unit is None:
        raise InvalidParameterValue(f'invalid size: "{text}"', hint=_BYTES_HINT)
    size = Fraction(found[1]) * unit
    if size > BYTES_MAX:
        raise InvalidParameterValue(f'size is too large: "{text}"', hint=_BYTES_HINT)
    return int(size)
