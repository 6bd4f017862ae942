"""PostgreSQL's text form of one raw value, right for every value (text_columns.py is the fast way).

The forms are those of PostgreSQL 12 and later with DateStyle ISO, IntervalStyle postgres,
bytea_output hex, extra_float_digits 1. Source: docs/design/values.md, "Text form"; PostgreSQL's
documentation, chapter 8; compared with PostgreSQL itself in tests/engine/test_datarow.py.
"""

from __future__ import annotations

import datetime
import math
import re
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from ..errors import InvalidParameterValue
from . import arrow_values as av

DAY_US = 86_400_000_000
SECOND_US = 1_000_000
# Dates that every path prints alike: 0001-01-01 to 9999-12-31.
DATE_MIN, DATE_MAX = -719162, 2932896
EPOCH = datetime.datetime(1970, 1, 1)
# The Gregorian calendar repeats after 400 years, and with it the rules of a zone.
CYCLE_DAYS = 146_097
# Time zones kept loaded; there are about 600.
ZONES_CACHED = 1024


def bool_text(value: av.Raw) -> str:
    """t or f."""
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
    """The same for a 32-bit float; an exponent below -4 and from 6."""
    number = np.float32(value)
    text = np.format_float_scientific(number, trim="-")
    if FLOAT4_WHOLE <= abs(number) < math.inf:
        with np.errstate(over="ignore"):  # the largest float's neighbour is infinity
            near = np.nextafter(number, np.array([-math.inf, math.inf], np.float32))
        text = _strictly_between(float(number), text, (float(near[0]), float(near[1])))
    return _shortest(text, 6)


# From here on a float is a whole number, and so is the middle between two: it may have few digits.
FLOAT8_WHOLE, FLOAT4_WHOLE = 2.0**53, 2.0**24


def _strictly_between(number: float, text: str, near: tuple[float, float]) -> str:
    """The shortest text that is nearer to a float than the middle to either neighbour.

    Python takes the middle itself where reading it back gives the same float; PostgreSQL does not.
    """
    low, high = (
        (Fraction(number) + (Fraction(f) if math.isfinite(f) else 2 * Fraction(number))) / 2 for f in near
    )
    digits = len(_scientific(text)[1])
    while not low < Fraction(text) < high:
        digits += 1
        text = f"{number:.{digits - 1}e}"
    return text


FLOAT_WORDS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _shortest(text: str, exponent_from: int) -> str:
    """Shortest digits as PostgreSQL lays them out."""
    if text in FLOAT_WORDS:
        return FLOAT_WORDS[text]
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
    """(sign, digits without zeros at either end, exponent of the first digit) of a float's repr."""
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
    """Digits with the column's scale, never an exponent."""
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def blob_text(value: av.Raw) -> str:
    """bytea's hex format."""
    return "\\x" + bytes(value).hex()


def date_text(days: av.Raw) -> str:
    """ISO, years before 1 as BC."""
    if abs(days) >= av.DATE_INFINITY:
        return "infinity" if days > 0 else "-infinity"
    text, before_christ = _civil(days)
    return f"{text} BC" if before_christ else text


def _civil(days: int) -> tuple[str, bool]:
    """A day as YYYY-MM-DD and whether its year is counted before Christ."""
    cycles, inside = divmod(days - DATE_MIN, CYCLE_DAYS)
    day = datetime.date.fromordinal(inside + 1)
    year = day.year + 400 * cycles
    before_christ = year < 1
    if before_christ:
        year = 1 - year
    return f"{year:04}-{day.month:02}-{day.day:02}", before_christ


def time_text(us: av.Raw) -> str:
    """HH:MM:SS with as many digits of a fraction as there are."""
    seconds, fraction = divmod(us, SECOND_US)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{fraction:06}".rstrip("0") if fraction else text


def timestamp_text(us: av.Raw) -> str:
    """ISO with a blank, years before 1 as BC."""
    return _moment(us, "")


def _moment(us: int, suffix: str) -> str:
    if abs(us) >= av.TIMESTAMP_INFINITY:
        return "infinity" if us > 0 else "-infinity"
    days, clock = divmod(us, DAY_US)
    day, before_christ = _civil(days)
    return f"{day} {time_text(clock)}{suffix}{' BC' if before_christ else ''}"


def timestamptz_text(us: av.Raw, zone: str) -> str:
    """A timestamp in the zone, with its offset: +00, +05:30, -00:01:15."""
    if abs(us) >= av.TIMESTAMP_INFINITY:
        return "infinity" if us > 0 else "-infinity"
    offset = offset_s(us, zone)
    return _moment(us + offset * SECOND_US, offset_text(offset))


def offset_text(seconds: int) -> str:
    """An offset east of UTC, with minutes and seconds only where there are some.

    >>> offset_text(-16200)
    '-04:30'
    """
    sign, size = ("-" if seconds < 0 else "+"), abs(seconds)
    text = f"{sign}{size // 3600:02}"
    if size % 3600:
        text += f":{size // 60 % 60:02}"
    return f"{text}:{size % 60:02}" if size % 60 else text


@lru_cache(ZONES_CACHED)
def load_zone(name: str) -> datetime.tzinfo:
    """A time zone by its IANA name.

    Raises:
        InvalidParameterValue: there is none of this name (22023).
    """
    if name.upper() in ("UTC", "ETC/UTC", "GMT"):
        return datetime.UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidParameterValue(f'invalid value for parameter "TimeZone": "{name[:100]}"') from error


def offset_s(us: int, zone: str) -> int:
    """Seconds that a zone is east of UTC at an instant, in whatever year."""
    found = load_zone(zone)
    if found is datetime.UTC:
        return 0
    seconds = us // SECOND_US
    days, clock = divmod(seconds, 86_400)
    if not DATE_MIN + 400 <= days <= DATE_MAX - 400:
        # Before year 2 the zone's first offset holds; after 9998 its rules go on, as 400 years before.
        later = days > 0
        days = (days - DATE_MIN) % CYCLE_DAYS + DATE_MIN + CYCLE_DAYS * (20 if later else 1)
    moment = EPOCH + datetime.timedelta(days=days, seconds=clock)
    offset = moment.replace(tzinfo=datetime.UTC).astimezone(found).utcoffset()
    return int(offset.total_seconds()) if offset is not None else 0


def interval_text(value: av.Raw) -> str:
    """IntervalStyle postgres: a part after a negative one shows its plus sign."""
    months, days, us = value
    sign = -1 if months < 0 else 1
    years, months = sign * (abs(months) // 12), sign * (abs(months) % 12)
    parts: list[str] = []
    negative = False
    for number, unit in ((years, "year"), (months, "mon"), (days, "day")):
        if number:
            plus = "+" if negative and number > 0 else ""
            parts.append(f"{plus}{number} {unit}{'' if number == 1 else 's'}")
            negative = number < 0
    if us or not parts:
        plus = "-" if us < 0 else "+" if negative else ""
        parts.append(plus + time_text(abs(us)))
    return " ".join(parts)


# What makes PostgreSQL put an array's element into quotes.
QUOTED_ELEMENT = r'^$|[{},"\\\s]|^(?i:null)$'
QUOTED_ELEMENT_RE = re.compile(QUOTED_ELEMENT, re.ASCII)


def element_text(text: str) -> str:
    """An element as it stands in an array's text."""
    if not QUOTED_ELEMENT_RE.search(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
