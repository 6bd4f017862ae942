"""Dates, times and intervals of clients: the readers of text and binary parameters.

Text is ISO 8601 with a blank or a T, as PostgreSQL prints it in DateStyle ISO and as every driver sends it;
fractions are rounded to microseconds. Other DateStyles are refused. The result is a Python object where
Python has the value, else (infinity, 24:00:00, years before 1 or after 9999) a duckdb.Value of the text as
DuckDB writes it. Source: PostgreSQL's documentation, section 8.5.
"""

from __future__ import annotations

import datetime
import re
import struct
from collections.abc import Callable

from duckdb import Value

from ..errors import DucktailError
from . import arrow_values as av
from .dates_times import (
    DAY_US,
    PG_EPOCH_DAYS,
    PG_EPOCH_US,
    SECOND_US,
    date_text,
    day_number,
    load_zone,
    offset_s,
    offset_text,
)
from .numbers import INT32_MAX, INT64_MAX
from .strings import client_type, invalid_syntax, typed

YEAR_MAX = 9999
DATE = r"(?P<year>\d{4,7})-(?P<month>\d{1,2})-(?P<day>\d{1,2})"
CLOCK = r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:\.(?P<fraction>\d{1,18}))?)?"
ZONE = r"(?P<zone>[zZ]|[+-]\d{1,2}(?::?\d{2}(?::?\d{2})?)?|(?!BC\b)[A-Za-z][A-Za-z0-9_+/-]{1,63})"
BC = r"(?P<bc>\s+BC)"
# No date, time or interval has a longer text.
TEXT_CHARS_MAX = 1000
MOMENT_RE = re.compile(rf"\s*{DATE}(?:(?:\s+|T){CLOCK})?(?:\s*{ZONE})?{BC}?\s*", re.ASCII)
TIME_RE = re.compile(rf"\s*{CLOCK}\s*{ZONE}?\s*", re.ASCII)
OFFSET_RE = re.compile(r"([+-])(\d{1,2}):?(\d{2})?:?(\d{2})?")
DATE_ZONE_RE = re.compile(r"(?<=\d)\s+[+-]\d\d(?::?\d\d)?\s*\Z", re.ASCII)
# The texts that PostgreSQL reads and DuckDB refuses or reads otherwise: moments and times with an offset of
# one digit, behind a blank or behind a time without seconds, moments before Christ, intervals with a plus
# sign and in ISO 8601's form.
_CLOCK = r"\d\d?+:\d\d(?::\d\d(?:\.\d{1,18}+)?+)?+"
_FAR_ZONE = r"(?:\s*+[+-]\d(?::?\d\d(?::?\d\d)?)?|\s++[+-]\d\d(?::?\d\d(?::?\d\d)?)?|\s++[zZ])"
UNREAD = (
    r"\d{4,7}+-\d\d?+-\d\d?+"
    rf"(?:[ T]++{_CLOCK}(?:{_FAR_ZONE}(?:\s++BC)?|(?:[zZ]|[+-][\d:]{{2,8}})?\s++BC)|\s++BC)"
    rf"|{_CLOCK}(?:[zZ]|{_FAR_ZONE})|\d\d?:\d\d[+-][\d:]{{2,8}}"
    r"|[^'+]{0,80}+(?<![^\s'])\+\d{1,9}:[\d:.]{2,20}|P[-\d.YMWDTHS]{1,80}(?<=[YMWDHS])"
)
UNREAD_RE = re.compile(UNREAD, re.ASCII)
INFINITIES = {"infinity": "infinity", "+infinity": "infinity", "-infinity": "-infinity"}
TIMESTAMPTZ = "TIMESTAMP WITH TIME ZONE"
# An interval's units: months, days and microseconds of one.
UNITS: dict[str, av.Interval] = {
    "year": (12, 0, 0), "yr": (12, 0, 0), "y": (12, 0, 0),
    "month": (1, 0, 0), "mon": (1, 0, 0),
    "week": (0, 7, 0), "w": (0, 7, 0),
    "day": (0, 1, 0), "d": (0, 1, 0),
    "hour": (0, 0, 3_600_000_000), "hr": (0, 0, 3_600_000_000), "h": (0, 0, 3_600_000_000),
    "minute": (0, 0, 60_000_000), "min": (0, 0, 60_000_000),
    "second": (0, 0, 1_000_000), "sec": (0, 0, 1_000_000), "s": (0, 0, 1_000_000),
    "millisecond": (0, 0, 1000), "ms": (0, 0, 1000),
    "microsecond": (0, 0, 1), "us": (0, 0, 1),
}  # fmt: skip
INTERVAL_PARTS_RE = re.compile(r"(-?\d+) months (-?\d+) days (-?\d+) microseconds")
PART_RE = re.compile(r"\s*([+-]?\d{1,18})(?:\.(\d{1,18}))?\s*([A-Za-z]+)", re.ASCII)
INTERVAL_CLOCK_RE = re.compile(r"\s*([+-]?)(\d{1,9}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,18}))?)?", re.ASCII)
ISO_RE = re.compile(
    r"P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)W)?(?:(-?\d+)D)?"
    r"(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?\d+(?:\.\d+)?)S)?)?",
    re.ASCII,
)
# Python's dates in PostgreSQL's days and microseconds from 2000-01-01.
PYTHON_EPOCH = datetime.datetime(2000, 1, 1)
PYTHON_DAY_MIN = (datetime.date.min - datetime.date(2000, 1, 1)).days
PYTHON_DAY_MAX = (datetime.date.max - datetime.date(2000, 1, 1)).days


# Texts of dates and times.


def read_date(text: str) -> object:
    """A date; the time of a whole timestamp is ignored, and so is a zone (pgjdbc sends `2026-01-02 +00`)."""
    text = DATE_ZONE_RE.sub("", text)
    if text.strip().lower() in INFINITIES:
        return typed(INFINITIES[text.strip().lower()], "DATE")
    found = _match(MOMENT_RE, text, "date")
    try:
        return datetime.date(_year(found), int(found["month"]), int(found["day"]))
    except ValueError:
        return typed(_day_text(found, text, "date"), "DATE")


def read_timestamp(text: str) -> object:
    """A timestamp without zone; a zone in the text is ignored, as in PostgreSQL."""
    if text.strip().lower() in INFINITIES:
        return typed(INFINITIES[text.strip().lower()], "TIMESTAMP")
    found = _match(MOMENT_RE, text, "timestamp")
    us = _clock_us(found, text, "timestamp")
    try:
        return _datetime(found, us)
    except (ValueError, OverflowError):
        return typed(f"{_day_text(found, text, 'timestamp')} {clock_text(us)}", "TIMESTAMP")


def read_timestamptz(text: str, timezone: str | None) -> object:
    """A timestamp with zone, in UTC.

    Args:
        text: a timestamp with an offset or a zone's name; without one it is in the session's zone.
        timezone: the session's time zone; None leaves a text without zone to DuckDB, which knows it.
    """
    if text.strip().lower() in INFINITIES:
        return typed(INFINITIES[text.strip().lower()], TIMESTAMPTZ)
    found = _match(MOMENT_RE, text, "timestamp with time zone")
    us = _clock_us(found, text, "timestamp with time zone")
    zone = found["zone"] or timezone
    if zone is None:
        return text
    offset = _offset_s(zone)
    try:
        local = _datetime(found, us)
        if offset is None:
            return local.replace(tzinfo=load_zone(zone)).astimezone(datetime.UTC)
        return (local - datetime.timedelta(seconds=offset)).replace(tzinfo=datetime.UTC)
    except (ValueError, OverflowError):
        day = _day_text(found, text, "timestamp with time zone")
        if offset is None:
            offset = _far_offset(found, us, zone)
        return typed(f"{day} {clock_text(us)}{offset_text(offset)}", TIMESTAMPTZ)


def _far_offset(found: re.Match[str], us: int, zone: str) -> int:
    """The seconds east of UTC of a zone at a local time that Python does not support."""
    year = 1 - int(found["year"]) if found["bc"] else int(found["year"])
    local = day_number(year, int(found["month"]), int(found["day"])) * DAY_US + us
    return offset_s(local - offset_s(local, zone) * SECOND_US, zone)


def read_time(text: str) -> object:
    """A time of day; an offset is ignored."""
    return time_value(_clock_us(_match(TIME_RE, text, "time"), text, "time"))


def read_timetz(text: str) -> object:
    """A time of day with its offset; UTC without one."""
    found = _match(TIME_RE, text, "time with time zone")
    offset = _offset_s(found["zone"] or "Z")
    if offset is None:
        raise invalid_syntax(text, "time with time zone")
    return timetz_value(_clock_us(found, text, "time with time zone"), offset)


def _match(pattern: re.Pattern[str], text: str, type_: str) -> re.Match[str]:
    found = pattern.fullmatch(text) if len(text) <= TEXT_CHARS_MAX else None
    if found is None:
        raise invalid_syntax(text, type_)
    return found


def _year(found: re.Match[str]) -> int:
    """The year if Python supports it, else 0."""
    return 0 if found["bc"] else int(found["year"])


def _day_text(found: re.Match[str], text: str, type_: str) -> str:
    """The date in DuckDB's spelling, for years that Python does not support."""
    year, month, day = int(found["year"]), int(found["month"]), int(found["day"])
    # A year of the same length, to check that the day exists: the calendar repeats after 400 years.
    proleptic = 1 - year if found["bc"] else year
    inside = proleptic % 400 + 2000
    if year == 0:
        raise invalid_syntax(text, type_)
    try:
        datetime.date(inside, month, day)
    except ValueError as error:
        raise invalid_syntax(text, type_) from error
    return f"{year:04}-{month:02}-{day:02}{' (BC)' if found['bc'] else ''}"


def _clock_us(found: re.Match[str], text: str, type_: str) -> int:
    """Microseconds from midnight, 24:00:00 included."""
    hour, minute, second = (int(found[part] or 0) for part in ("hour", "minute", "second"))
    fraction = (found["fraction"] or "0").ljust(7, "0")
    us = int(fraction[:6]) + (fraction[6] >= "5")
    total = ((hour * 60 + minute) * 60 + second) * 1_000_000 + us
    if minute > 59 or second > 59 or total > DAY_US:
        raise invalid_syntax(text, type_)
    return total


def _offset_s(zone: str) -> int | None:
    """The seconds east of UTC of a numeric offset; None for a zone's name."""
    if zone in ("z", "Z"):
        return 0
    found = OFFSET_RE.fullmatch(zone)
    if found is None:
        return None
    hours, minutes, seconds = (int(part or 0) for part in found.groups()[1:])
    total = hours * 3600 + minutes * 60 + seconds
    return -total if found[1] == "-" else total


def _datetime(found: re.Match[str], us: int) -> datetime.datetime:
    day = datetime.datetime(_year(found), int(found["month"]), int(found["day"]))
    return day + datetime.timedelta(microseconds=us)


def clock_text(us: int) -> str:
    """The text HH:MM:SS.ffffff of a time of day."""
    seconds, fraction = divmod(us, 1_000_000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:06}"


def time_value(us: int) -> object:
    """A time of day from microseconds since midnight; 24:00:00 is a text, as Python does not have it."""
    if us == DAY_US:
        return typed("24:00:00", "TIME")
    seconds, fraction = divmod(us, 1_000_000)
    return datetime.time(seconds // 3600, seconds // 60 % 60, seconds % 60, fraction)


def timetz_value(us: int, offset: int) -> Value:
    """A time of day with its offset in seconds east of UTC, as text: DuckDB's client takes no offset west."""
    return typed(f"{clock_text(us)}{offset_text(offset)}", "TIME WITH TIME ZONE")


def in_duckdb_form(text: str, type_: str) -> str | None:
    """The text of a literal as DuckDB reads it; None if DuckDB reads it as it is, or nobody does.

    Args:
        type_: the literal's DuckDB type.

    >>> in_duckdb_form("2000-01-01 00:00+2", "TIMESTAMP WITH TIME ZONE"), in_duckdb_form("10:20-7", "TIME")
    ('1999-12-31 22:00:00+00:00', '10:20:00')
    """
    if type_ not in _READERS or UNREAD_RE.fullmatch(text) is None:
        return None
    try:
        value = _READERS[type_](text)
    except DucktailError:
        return None
    return str(value.object if isinstance(value, Value) else value)


# Texts of intervals.


def read_interval(text: str) -> Value:
    """An interval in PostgreSQL's, ISO 8601's or the verbose form (1 mon 2 days 03:04:05)."""
    if len(text) > TEXT_CHARS_MAX:
        raise invalid_syntax(text, "interval")
    iso = ISO_RE.fullmatch(text.strip())
    if iso is not None and len(text.strip()) > 1:
        return _iso_interval(iso)
    totals = [0, 0, 0]
    place = 1 if text.startswith("@") else 0
    end = len(text.rstrip())
    back = text[:end].endswith(" ago")
    end -= 4 if back else 0
    seen = False
    while place < end:
        match = INTERVAL_CLOCK_RE.match(text, place, end)
        if match is not None:
            totals[2] += _interval_clock(match)
        else:
            match = PART_RE.match(text, place, end)
            if match is None:
                raise invalid_syntax(text, "interval")
            _add_part(totals, match, text)
        seen = True
        place = match.end()
    if not seen:
        raise invalid_syntax(text, "interval")
    return interval_value(*((-total for total in totals) if back else totals))


def _interval_clock(match: re.Match[str]) -> int:
    sign, hours, minutes, seconds, fraction = match.groups()
    us = ((int(hours) * 60 + int(minutes)) * 60 + int(seconds or 0)) * 1_000_000
    us += int((fraction or "0").ljust(6, "0")[:6])
    return -us if sign == "-" else us


def _add_part(totals: list[int], match: re.Match[str], text: str) -> None:
    number, fraction, unit = match.groups()
    name = unit.lower()
    sizes = UNITS.get(name) or UNITS.get(name.removesuffix("s"))
    if sizes is None:
        raise invalid_syntax(text, "interval")
    for place, size in enumerate(sizes):
        totals[place] += int(number) * size
    if fraction:
        # A fraction of a day or a shorter unit; fractions of months have no fixed length.
        unit_us = sizes[1] * DAY_US + sizes[2]
        if not unit_us:
            raise invalid_syntax(text, "interval")
        part = unit_us * int(fraction) // 10 ** len(fraction)
        totals[2] += -part if number.startswith("-") else part


def _iso_interval(match: re.Match[str]) -> Value:
    years, months, weeks, days, hours, minutes = (int(part or 0) for part in match.groups()[:6])
    whole, _, fraction = (match[7] or "0").partition(".")
    part = int(fraction.ljust(6, "0")[:6] or 0)
    seconds = int(whole) * 1_000_000 + (-part if whole.startswith("-") else part)
    clock = (hours * 60 + minutes) * 60_000_000 + seconds
    return interval_value(years * 12 + months, weeks * 7 + days, clock)


def interval_value(months: int, days: int, us: int) -> Value:
    """An interval of these parts, none of them converted to another."""
    return typed(f"{months} months {days} days {us} microseconds", "INTERVAL")


def interval_parts(value: object) -> av.Interval | None:
    """The months, days and microseconds of a value of `interval_value`; None for any other value."""
    if not isinstance(value, Value) or value.type != client_type("INTERVAL"):
        return None
    months, days, us = INTERVAL_PARTS_RE.fullmatch(value.object).groups()  # type: ignore[union-attr]
    return int(months), int(days), int(us)


# The readers of literals.
_READERS: dict[str, Callable[[str], object]] = {
    "DATE": read_date,
    "TIME": read_time,
    "TIME WITH TIME ZONE": read_timetz,
    "TIMESTAMP": read_timestamp,
    TIMESTAMPTZ: lambda text: read_timestamptz(text, None),
    "INTERVAL": read_interval,
}


# Binary parameters; struct.error and ValueError are the caller's 22P03.


def receive_date(raw: bytes) -> object:
    """A date from days since 2000-01-01."""
    (days,) = struct.unpack("!i", raw)
    if days in (INT32_MAX, -INT32_MAX - 1):
        return typed("infinity" if days > 0 else "-infinity", "DATE")
    if PYTHON_DAY_MIN <= days <= PYTHON_DAY_MAX:
        return datetime.date(2000, 1, 1) + datetime.timedelta(days=days)
    return typed(_far_day(days + PG_EPOCH_DAYS), "DATE")


def timestamp_receiver(type_: str, zone: datetime.tzinfo | None) -> Callable[[bytes], object]:
    """The reader of microseconds since 2000-01-01 as a timestamp of a DuckDB type and zone."""

    def read(raw: bytes) -> object:
        (us,) = struct.unpack("!q", raw)
        if us in (INT64_MAX, -INT64_MAX - 1):
            return typed("infinity" if us > 0 else "-infinity", type_)
        if PYTHON_DAY_MIN * DAY_US <= us < (PYTHON_DAY_MAX + 1) * DAY_US:
            return (PYTHON_EPOCH + datetime.timedelta(microseconds=us)).replace(tzinfo=zone)
        if abs(us + PG_EPOCH_US) >= av.TIMESTAMP_INFINITY:
            raise ValueError("timestamp")
        days, clock = divmod(us + PG_EPOCH_US, DAY_US)
        return typed(f"{_far_day(days)} {clock_text(clock)}{'+00' if zone else ''}", type_)

    return read


def _far_day(days: int) -> str:
    """A day, counted from 1970, that Python does not support, in DuckDB's spelling."""
    if abs(days) >= av.DATE_INFINITY:
        raise ValueError("date")
    return date_text(days).replace(" BC", " (BC)")


def receive_time(raw: bytes) -> object:
    """A time of day from microseconds since midnight."""
    (us,) = struct.unpack("!q", raw)
    if not 0 <= us <= DAY_US:
        raise ValueError("time")
    return time_value(us)


def receive_timetz(raw: bytes) -> object:
    """A time of day from microseconds since midnight and seconds west of UTC."""
    us, west_s = struct.unpack("!qi", raw)
    if not 0 <= us <= DAY_US or abs(west_s) >= 16 * 3600:
        raise ValueError("timetz")
    return timetz_value(us, -west_s)


def receive_interval(raw: bytes) -> object:
    """An interval from microseconds, days and months."""
    us, days, months = struct.unpack("!qii", raw)
    return interval_value(months, days, us)
