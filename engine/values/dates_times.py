"""Dates, times, timestamps and intervals in PostgreSQL's text and binary forms, and time zones.

Text is that of DateStyle ISO and IntervalStyle postgres; date_styles.py has the others. Functions of one
value accept every value. The faster functions of a column return None for a column with values that they
cannot print: `*_texts` (printed by Arrow) outside years 1 to 9999, `*_cells` (looked up) outside 1900 to
2099. temporal_input.py reads the texts of clients. Source: docs/design/values.md; PostgreSQL's documentation,
chapter 8.
"""

from __future__ import annotations

import datetime
import re
import struct
from collections.abc import Callable
from datetime import date
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import InvalidParameterValue, NumericOutOfRange
from . import arrow_values as av
from .cells import Array, Cell, Cells, constant, kept_first_table, take
from .numbers import INT32_MAX, INT64_MAX

DAY_US = 86_400_000_000
SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
DAY_S = 86_400
# Dates that every path prints alike: 0001-01-01 to 9999-12-31.
DATE_MIN, DATE_MAX = -719162, 2932896
# One day less than Arrow's range on either side, so that no zone's offset leaves it.
MOMENT_MIN, MOMENT_MAX = (DATE_MIN + 1) * DAY_US, DATE_MAX * DAY_US
EPOCH = datetime.datetime(1970, 1, 1)
# The Gregorian calendar repeats after 400 years, and with it the rules of a zone.
CYCLE_DAYS = 146_097
# PostgreSQL counts from 2000-01-01.
PG_EPOCH_DAYS = 10_957
PG_EPOCH_US = PG_EPOCH_DAYS * 86_400_000_000
EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
EPOCH_UTC = EPOCH.replace(tzinfo=datetime.UTC)
US = datetime.timedelta(microseconds=1)
# Column length up to which repeated values are not searched: the search costs more than it saves.
REPEATS_ROWS_MIN = 1024
# Rows that are sampled to see if values repeat.
SAMPLE_ROWS = 256
# Days from 1970 that are looked up, 1900-01-01 to 2099-12-31.
CELLS_FIRST_DAY, CELLS_LAST_DAY = -25_567, 47_481
DATE_BYTES, CLOCK_BYTES, FRACTION_BYTES = 10, 8, 7
# A timestamp that every table has, used for NULLs.
IN_RANGE_US = 946_684_800 * SECOND_US
# Time zones kept loaded; there are about 600.
ZONES_CACHED = 1024
# Zones whose offsets are kept day by day, 370 kB each.
OFFSET_TABLES_MAX = 64
# Days from 1970 that are looked up, 1972-01-01 to 2099-12-31; before, offsets have parts of a minute too.
FIRST_DAY, LAST_DAY = 730, 47_481
UNKNOWN = -(10**6)
_MOMENT = re.compile(r"(\d{4,})-(\d\d)-(\d\d)(?: (\d\d:\d\d:\d\d(?:\.\d{1,6})?))?(?:\+00)?( BC)?", re.ASCII)
_INTERVAL_PART = re.compile(r"([+-]?(?<!\d)\d++) (year|month|mon|day)s?", re.ASCII)
_INTERVAL_CLOCK = re.compile(r"([+-]?)(?<!\d)(\d++:\d\d:\d\d(?:\.\d{1,6})?)$", re.ASCII)
# Moments repeat: a transaction's commit time is on all of its rows.
_MOMENTS_CACHED = 4096


# The text of a value.


def date_text(days: av.Raw) -> str:
    """A date in ISO form, years before 1 with BC."""
    if abs(days) >= av.DATE_INFINITY:
        return "infinity" if days > 0 else "-infinity"
    text, before_christ = civil_day(days)
    return f"{text} BC" if before_christ else text


def civil_day(days: int) -> tuple[str, bool]:
    """The day as YYYY-MM-DD, and True if its year is before Christ."""
    cycles, inside = divmod(days - DATE_MIN, CYCLE_DAYS)
    day = datetime.date.fromordinal(inside + 1)
    year = day.year + 400 * cycles
    before_christ = year < 1
    if before_christ:
        year = 1 - year
    return f"{year:04}-{day.month:02}-{day.day:02}", before_christ


def time_text(us: av.Raw) -> str:
    """A time as HH:MM:SS with the digits of its fraction, without trailing zeros."""
    seconds, fraction = divmod(us, SECOND_US)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{fraction:06}".rstrip("0") if fraction else text


def timestamp_text(us: av.Raw) -> str:
    """A timestamp in ISO form with a blank, years before 1 with BC."""
    return _moment(us, "")


def _moment(us: int, suffix: str) -> str:
    if abs(us) >= av.TIMESTAMP_INFINITY:
        return "infinity" if us > 0 else "-infinity"
    days, clock = divmod(us, DAY_US)
    day, before_christ = civil_day(days)
    return f"{day} {time_text(clock)}{suffix}{' BC' if before_christ else ''}"


def timestamptz_text(us: av.Raw, zone: str) -> str:
    """A timestamp in the zone, with its offset: +00, +05:30, -00:01:15."""
    if abs(us) >= av.TIMESTAMP_INFINITY:
        return "infinity" if us > 0 else "-infinity"
    offset = offset_s(us, zone)
    return _moment(us + offset * SECOND_US, offset_text(offset))


def interval_text(value: av.Raw) -> str:
    """An interval in IntervalStyle postgres: a part after a negative one has a plus sign."""
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


def duration_text(us: int) -> str:
    """The text of a length in microseconds, at least 0.

    >>> duration_text(7 * DAY_US), duration_text(DAY_US + 90 * SECOND_US), duration_text(1500)
    ('7 days', '1 day 00:01:30', '00:00:00.0015')
    """
    days, rest = divmod(us, DAY_US)
    seconds, fraction = divmod(rest, SECOND_US)
    parts = [f"{days} day{'' if days == 1 else 's'}"] if days else []
    if rest or not days:
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        parts.append(clock + (f".{fraction:06}".rstrip("0") if fraction else ""))
    return " ".join(parts)


# Time zones.


def fixed_zone(minutes: int) -> str:
    """The name of a zone that is always so many minutes east of UTC, in POSIX's form as in PostgreSQL.

    >>> fixed_zone(330)
    '<+05:30>-05:30'
    """
    size = f"{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"
    east, west = ("+", "-") if minutes > 0 else ("-", "+")
    return f"<{east}{size}>{west}{size}"


def duckdb_zone(name: str) -> str:
    """DuckDB's name of a time zone: an offset has the sign to the east.

    >>> duckdb_zone("<+05:30>-05:30"), duckdb_zone("Asia/Kolkata")
    ('GMT+05:30', 'Asia/Kolkata')
    """
    return f"GMT{name[1:7]}" if name.startswith("<") else name


@lru_cache(ZONES_CACHED)
def load_zone(name: str) -> datetime.tzinfo:
    """The time zone of an IANA name, or of a name of `fixed_zone`.

    Raises:
        InvalidParameterValue: no zone has this name.
    """
    if name.upper() in ("UTC", "ETC/UTC", "GMT"):
        return datetime.UTC
    if name.startswith("<"):
        offset = datetime.timedelta(hours=int(name[2:4]), minutes=int(name[5:7]))
        return datetime.timezone(-offset if name[1] == "-" else offset, name[1:7])
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidParameterValue(f'invalid value for parameter "TimeZone": "{name[:100]}"') from error


def offset_s(us: int, zone: str) -> int:
    """The offset of a zone in seconds east of UTC at an instant of any year."""
    if load_zone(zone) is datetime.UTC:
        return 0
    offset = zone_moment(us, zone).utcoffset()
    return int(offset.total_seconds()) if offset is not None else 0


def zone_moment(us: int, zone: str) -> datetime.datetime:
    """An instant in a zone; an instant of the same rules for a year that Python lacks."""
    seconds = us // SECOND_US
    days, clock = divmod(seconds, 86_400)
    if not DATE_MIN + 400 <= days <= DATE_MAX - 400:
        # Before year 2 the zone's first offset holds; after 9998 its rules go on, as 400 years before.
        later = days > 0
        days = (days - DATE_MIN) % CYCLE_DAYS + DATE_MIN + CYCLE_DAYS * (20 if later else 1)
    moment = EPOCH + datetime.timedelta(days=days, seconds=clock)
    return moment.replace(tzinfo=datetime.UTC).astimezone(load_zone(zone))


def offset_text(seconds: int) -> str:
    """The text of an offset east of UTC, with minutes and seconds only where they are not 0.

    >>> offset_text(-16200)
    '-04:30'
    """
    sign, size = ("-" if seconds < 0 else "+"), abs(seconds)
    text = f"{sign}{size // 3600:02}"
    if size % 3600:
        text += f":{size // 60 % 60:02}"
    return f"{text}:{size % 60:02}" if size % 60 else text


def offsets_s(us: av.Ints, zone: str) -> av.Ints:
    """The offsets of a zone in seconds east of UTC at instants in microseconds from 1970."""
    days = us // DAY_US - FIRST_DAY
    if days.min() < 0 or days.max() > LAST_DAY - FIRST_DAY:
        return _distinct_offsets(us, zone, MINUTE_US if us.min() >= FIRST_DAY * DAY_US else SECOND_US)
    found, ends = _day_offsets(days, zone), _day_offsets(days + 1, zone)
    changing = found != ends
    if changing.any():
        found[changing] = _distinct_offsets(us[changing], zone, MINUTE_US)
    return found


def _day_offsets(days: av.Ints, zone: str) -> av.Ints:
    """The offsets at the beginnings of days; days are numbered from the first of the table."""
    table = _offset_table(zone)
    found: av.Ints = table[days]
    unknown = found == UNKNOWN
    if unknown.any():
        for day in np.unique(days[unknown]).tolist():
            table[day] = offset_s((day + FIRST_DAY) * DAY_US, zone)
        found = table[days]
    return found


@lru_cache(OFFSET_TABLES_MAX)
def _offset_table(zone: str) -> av.Ints:
    """The known offsets of a zone by day, filled on demand."""
    return np.full(LAST_DAY - FIRST_DAY + 2, UNKNOWN, np.int64)


def _distinct_offsets(us: av.Ints, zone: str, step: int) -> av.Ints:
    """The offsets at instants, computed once for each distinct step of time."""
    instants, places = np.unique(us // step, return_inverse=True)
    return np.fromiter((offset_s(instant * step, zone) for instant in instants.tolist()), np.int64)[places]


# The texts of a column.


def date_texts(column: pa.Array, zone: str) -> pa.Array | None:
    """The texts of days of years 1 to 9999, as Arrow prints them."""
    bounds = pc.min_max(column.cast(pa.int32()))
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is not None and (low < DATE_MIN or high > DATE_MAX):
        return None
    return column.cast(pa.string())


def time_texts(column: pa.Array, zone: str) -> pa.Array | None:
    """The texts of times before 24:00:00, as Arrow prints them."""
    if av.filled(column, av.microseconds(column)).max() >= DAY_US:
        return None
    return _trimmed(column.cast(pa.time64("us"), safe=False).cast(pa.string()))


def timestamp_texts(column: pa.Array, zone: str) -> pa.Array | None:
    """The texts of timestamps of years 1 to 9999."""
    return _moments(column, lambda values: _print_moments(values, ""))


def timestamptz_texts(column: pa.Array, zone: str) -> pa.Array | None:
    """The texts of timestamps of years 1 to 9999 in the zone, with its offset."""
    if load_zone(zone) is datetime.UTC:
        return _moments(column, lambda values: _print_moments(values, "+00"))
    return _moments(column, lambda values: _print_in_zone(values, zone))


def _moments(column: pa.Array, print_: Callable[[av.Ints], pa.Array]) -> pa.Array | None:
    """The texts of timestamps; repeated ones (an event's commit time) are printed once."""
    values = av.filled(column, av.microseconds(column))
    if values.min() < MOMENT_MIN or values.max() > MOMENT_MAX:
        return None
    if len(values) >= REPEATS_ROWS_MIN and len(np.unique(values[:SAMPLE_ROWS])) < SAMPLE_ROWS // 4:
        coded = pa.array(values).dictionary_encode()
        texts = print_(coded.dictionary.to_numpy()).take(coded.indices)
    else:
        texts = print_(values)
    return pc.if_else(pc.is_valid(column), texts, None) if column.null_count else texts


def _print_moments(values: av.Ints, suffix: str) -> pa.Array:
    if not (values % SECOND_US).any():
        texts = pa.array(values // SECOND_US, pa.timestamp("s")).cast(pa.string())
    else:
        texts = _trimmed(pa.array(values, pa.timestamp("us")).cast(pa.string()))
    return pc.binary_join_element_wise(texts, suffix, "") if suffix else texts


def _print_in_zone(values: av.Ints, zone: str) -> pa.Array:
    offsets = offsets_s(values, zone)
    local = _print_moments(values + offsets * SECOND_US, "")
    distinct, codes = np.unique(offsets, return_inverse=True)
    suffixes = pa.array([offset_text(offset) for offset in distinct.tolist()], pa.string())
    return pc.binary_join_element_wise(local, suffixes.take(pa.array(codes)), "")


def _trimmed(texts: pa.Array) -> pa.Array:
    """Times printed by Arrow with all digits of a fraction, without their trailing zeros."""
    return pc.ascii_rtrim(pc.ascii_rtrim(texts, "0"), ".")


# The texts of a column as cells.


def date_cells(column: pa.Array, zone: str) -> Cells | None:
    """Cells of days from 1900 to 2099."""
    return _day_cells(av.filled(column, av.ints(column)))


def time_cells(column: pa.Array, zone: str) -> Cells | None:
    """Cells of times before 24:00:00."""
    values = av.filled(column, av.microseconds(column))
    return _clock_cells(values) if values.max() < DAY_US else None


def timestamp_cells(column: pa.Array, zone: str) -> Cells | None:
    """Cells of timestamps from 1900 to 2099."""
    return _moment_cells(av.filled(column, av.microseconds(column)))


def timestamptz_cells(column: pa.Array, zone: str) -> Cells | None:
    """Cells of timestamps from 1900 to 2099 in the zone, with its offset."""
    values = av.filled(column, av.microseconds(column), IN_RANGE_US)
    if load_zone(zone) is datetime.UTC:
        return _moment_cells(values, constant(b"+00"))
    if not _in_cells_range(values):
        return None
    offsets = offsets_s(values, zone)
    return _moment_cells(values + offsets * SECOND_US, _offset_cells(offsets))


def _offset_cells(offsets: npt.NDArray[np.int64]) -> Cells:
    distinct = np.unique(offsets)
    texts = [offset_text(offset).encode() for offset in distinct.tolist()]
    if len(texts) == 1:
        return constant(texts[0])
    width = max(map(len, texts))
    codes = np.searchsorted(distinct, offsets)
    kind = f"V{width}"
    sizes = take(np.array(list(map(len, texts))), codes)
    text = take(np.array(texts, f"S{width}").view(kind), codes)
    return Cells((Cell(kind, text, take(kept_first_table(width), sizes)),), sizes)


def _day_cells(days: av.Ints) -> Cells | None:
    """Cells of days from 1970; the number at a NULL must be a valid day as well."""
    if days.min() < CELLS_FIRST_DAY or days.max() > CELLS_LAST_DAY:
        return None
    return Cells((Cell(f"V{DATE_BYTES}", take(_day_texts(), days - CELLS_FIRST_DAY)),), DATE_BYTES)


def _clock_cells(us: av.Ints) -> Cells:
    """Cells of times of day in microseconds from midnight."""
    seconds = us // SECOND_US
    fraction = _fraction(us - seconds * SECOND_US)
    clock = Cell(f"V{CLOCK_BYTES}", take(_clock_texts(), seconds))
    return Cells((clock, *fraction.cells), CLOCK_BYTES + fraction.sizes)


def _moment_cells(us: av.Ints, offsets: Cells | None = None) -> Cells | None:
    """Cells of timestamps in microseconds from 1970, followed by the cells of their zone's offset."""
    days = us // DAY_US
    date = _day_cells(days)
    if date is None:
        return None
    clock, behind = _clock_cells(us - days * DAY_US), offsets or Cells((), 0)
    cells = (*date.cells, Cell("V1", b" "), *clock.cells, *behind.cells)
    return Cells(cells, DATE_BYTES + 1 + clock.sizes + behind.sizes)


def _in_cells_range(us: av.Ints) -> bool:
    """True if all timestamps are in the lookup range, in any zone."""
    return bool(us.min() >= (CELLS_FIRST_DAY + 1) * DAY_US and us.max() < CELLS_LAST_DAY * DAY_US)


def _fraction(us: av.Ints) -> Cells:
    """Cells of the point and digits of a fraction without trailing zeros."""
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


@lru_cache(1)
def _day_texts() -> Array:
    return _printed(
        pa.array(np.arange(CELLS_FIRST_DAY, CELLS_LAST_DAY + 1, dtype=np.int32), pa.date32()), DATE_BYTES
    )


@lru_cache(1)
def _clock_texts() -> Array:
    return _printed(pa.array(np.arange(DAY_S, dtype=np.int32), pa.time32("s")), CLOCK_BYTES)


def _printed(values: pa.Array, width: int) -> Array:
    """The texts that Arrow prints for values of one width."""
    data = values.cast(pa.string()).buffers()[2]
    return np.frombuffer(data, f"V{width}", len(values))


@lru_cache(1)
def _thousands() -> tuple[Array, Array, Array]:
    """The point and first three digits of a fraction, its last three digits, and the number of
    digits that three have without trailing zeros.
    """
    firsts = np.array([f".{number:03}".encode() for number in range(1000)], "S4").view("V4")
    lasts = np.array([f"{number:03}".encode() for number in range(1000)], "S3").view("V3")
    counts = np.array([len(f"{number:03}".rstrip("0")) for number in range(1000)], np.int64)
    return firsts, lasts, counts


# The binary form of a value and of a column.


def date_binary(days: av.Raw) -> bytes:
    """The days from 2000-01-01; the infinities are PostgreSQL's numbers for them."""
    if abs(days) >= av.DATE_INFINITY:
        return struct.pack("!i", INT32_MAX if days > 0 else -INT32_MAX - 1)
    return struct.pack("!i", days - PG_EPOCH_DAYS)


def timestamp_binary(us: av.Raw) -> bytes:
    """The microseconds from 2000-01-01 in UTC."""
    if abs(us) >= av.TIMESTAMP_INFINITY:
        return struct.pack("!q", INT64_MAX if us > 0 else -INT64_MAX - 1)
    if us - PG_EPOCH_US <= -INT64_MAX:
        raise NumericOutOfRange("timestamp out of range")
    return struct.pack("!q", us - PG_EPOCH_US)


def timetz_binary(text: av.Raw) -> bytes:
    """The microseconds of the clock and the zone in seconds west of UTC, from a text (12:00:00.5+02:30)."""
    place = max(text.rfind("+"), text.rfind("-"))
    clock, offset = text[:place], text[place:]
    parts = [int(part) for part in offset[1:].split(":")] + [0, 0]
    seconds = parts[0] * 3600 + parts[1] * 60 + parts[2]
    return struct.pack("!qi", clock_us(clock), -seconds if offset[0] == "+" else seconds)


def interval_binary(value: av.Raw) -> bytes:
    """The microseconds, days and months of an interval."""
    months, days, us = value
    return struct.pack("!qii", us, days, months)


def date_binary_cells(column: pa.Array) -> Cells:
    """Cells of the days from 2000-01-01."""
    values = av.ints(column).astype(np.int64)
    shifted = values - PG_EPOCH_DAYS
    shifted = np.where(values >= av.DATE_INFINITY, INT32_MAX, shifted)
    shifted = np.where(values <= -av.DATE_INFINITY, -INT32_MAX - 1, shifted)
    return Cells((Cell(">i4", shifted),), 4)


def time_binary_cells(column: pa.Array) -> Cells:
    """Cells of the microseconds from midnight."""
    return Cells((Cell(">i8", av.microseconds(column)),), 8)


def timestamp_binary_cells(column: pa.Array) -> Cells:
    """Cells of the microseconds from 2000-01-01 in UTC."""
    values = av.microseconds(column)
    infinite = np.abs(values) >= av.TIMESTAMP_INFINITY
    if infinite.any():
        edge = np.where(values > 0, INT64_MAX, -INT64_MAX - 1)
        shifted = np.where(infinite, edge, np.where(infinite, 0, values) - PG_EPOCH_US)
    else:
        shifted = values - PG_EPOCH_US
    return Cells((Cell(">i8", shifted),), 8)


# Raw values of texts that are our own, and of an Arrow column of intervals.


def raw_date(text: str) -> int:
    """The days from 1970 of a date's text."""
    edge = _infinite(text, av.DATE_INFINITY)
    return _day_and_clock(text)[0] if edge is None else edge


@lru_cache(_MOMENTS_CACHED)
def raw_timestamp(text: str) -> int:
    """The microseconds from 1970 of a timestamp's text; in UTC if it has a zone.

    >>> raw_timestamp("1970-01-02 00:00:00.5+00")
    86400500000
    """
    edge = _infinite(text, av.TIMESTAMP_INFINITY)
    if edge is not None:
        return edge
    day, clock = _day_and_clock(text)
    return day * DAY_US + clock


def _day_and_clock(text: str) -> tuple[int, int]:
    found = _MOMENT.fullmatch(text)
    assert found is not None, text
    year, month, day, clock, bc = found.groups()
    number = 1 - int(year) if bc else int(year)
    return day_number(number, int(month), int(day)), clock_us(clock) if clock else 0


def day_number(year: int, month: int, day: int) -> int:
    """The days from 1970 of a date in the proleptic Gregorian calendar."""
    cycles, inside = divmod(year - 2000, 400)
    return date(2000 + inside, month, day).toordinal() - EPOCH_DAY + cycles * CYCLE_DAYS


def _infinite(text: str, edge: int) -> int | None:
    return {"infinity": edge, "-infinity": -edge}.get(text)


def clock_us(text: str) -> int:
    """The microseconds of HH:MM:SS[.ffffff]."""
    clock, _, fraction = text.partition(".")
    hours, minutes, seconds = (int(part) for part in clock.split(":"))
    return ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + int(fraction.ljust(6, "0")[:6] or 0)


def raw_interval(text: str) -> av.Interval:
    """The months, days and microseconds of an interval's text.

    >>> raw_interval("-1 years -2 mons +3 days -04:05:06.5")
    (-14, 3, -14706500000)
    """
    months = days = us = 0
    for number, unit in _INTERVAL_PART.findall(text):
        if unit == "day":
            days += int(number)
        else:
            months += int(number) * (12 if unit == "year" else 1)
    clock = _INTERVAL_CLOCK.search(text)
    if clock:
        us = -clock_us(clock[2]) if clock[1] == "-" else clock_us(clock[2])
    return months, days, us


def raw_intervals(column: pa.Array) -> list[av.Raw]:
    """The raw values of a column of intervals: DuckDB's text (a wrapped query) or Arrow's intervals."""
    if av.is_text(column.type):
        return [None if text is None else raw_interval(text) for text in column.to_pylist()]
    return [
        None if value is None else (value.months, value.days, value.nanoseconds // 1000)
        for value in column.to_pylist()
    ]


# Values of DuckDB's Python client.


def python_date(value: object) -> av.Raw:
    """The days from 1970; DuckDB's infinities are Python's first and last day, other years are text."""
    if type(value) is not datetime.date or value in (datetime.date.min, datetime.date.max):
        raise av.AmbiguousValue
    return value.toordinal() - EPOCH_DAY


def python_timestamp(value: object) -> av.Raw:
    """The microseconds from 1970; DuckDB's infinities are Python's first and last timestamp."""
    if type(value) is not datetime.datetime or value in (datetime.datetime.min, datetime.datetime.max):
        raise av.AmbiguousValue
    return (value - EPOCH) // US


def python_timestamptz(value: object) -> av.Raw:
    """The microseconds from 1970 in UTC; DuckDB's infinities have no zone in Python."""
    # The infinities have no zone.
    if type(value) is not datetime.datetime or value.tzinfo is None:
        raise av.AmbiguousValue
    return (value - EPOCH_UTC) // US
