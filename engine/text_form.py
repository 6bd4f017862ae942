"""PostgreSQL's text form of values: of one raw value, and of a whole Arrow column at once.

Each type has one function that gives the text of one value, in Python and right for every value,
and may have a vectorised one that is right for ordinary values and gives None where the column
holds others (infinities, years before 1 or after 9999, floats with an exponent): then the first
is used. The forms are those of PostgreSQL 12 and later with DateStyle ISO, IntervalStyle postgres,
bytea_output hex, extra_float_digits 1. Source: docs/design/values.md, "Text form"; PostgreSQL's
documentation, chapter 8; compared with PostgreSQL itself in tests/engine/test_datarow.py.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from . import arrow_values as av
from .duckdb_types import DuckType
from .errors import InvalidParameterValue
from .pgtypes import is_array

DAY_US = 86_400_000_000
SECOND_US = 1_000_000
# Dates that every path prints alike: 0001-01-01 to 9999-12-31.
DATE_MIN, DATE_MAX = -719162, 2932896
EPOCH = datetime.datetime(1970, 1, 1)
# The Gregorian calendar repeats after 400 years, and with it the rules of a zone.
CYCLE_DAYS = 146_097
# Column lengths up to which repeated values are not looked for: finding them costs more than it saves.
REPEATS_ROWS_MIN = 1024
# Rows that tell whether values repeat.
SAMPLE_ROWS = 256
# 1972-01-01: from then on no zone is off UTC by a part of a minute.
WHOLE_MINUTES_FROM = 730 * DAY_US
# Time zones kept loaded; there are about 600.
ZONES_CACHED = 1024


# One value at a time.


def bool_text(value: av.Raw) -> str:
    """t or f."""
    return "t" if value else "f"


def float8_text(value: av.Raw) -> str:
    """The shortest text that reads back as the same double; an exponent below -4 and from 15."""
    return _shortest(repr(float(value)), 15)


def float4_text(value: av.Raw) -> str:
    """The same for a 32-bit float; an exponent below -4 and from 6."""
    return _shortest(np.format_float_scientific(np.float32(value), trim="-"), 6)


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


# A column at a time. Each gives None where the column holds values that it cannot print.

Vector = Callable[[pa.Array, str], "pa.Array | None"]


def _cast_vector(column: pa.Array, zone: str) -> pa.Array | None:
    return column.cast(pa.string())


def _bool_vector(column: pa.Array, zone: str) -> pa.Array | None:
    return pc.if_else(column, "t", "f")


def _float_vector(below: float) -> Vector:
    def vector(column: pa.Array, zone: str) -> pa.Array | None:
        sizes = np.abs(av.ints(column))
        if column.null_count:
            sizes = np.where(pc.is_valid(column).to_numpy(zero_copy_only=False), sizes, 0)
        # NaN fails both comparisons, and with them all().
        ordinary = ((sizes >= 1e-4) & (sizes < below)) | (sizes == 0)
        return column.cast(pa.string()) if ordinary.all() else None

    return vector


def _decimal_vector(column: pa.Array, zone: str) -> pa.Array | None:
    texts = column.cast(pa.string())
    if column.type.scale > 6 and pc.any(pc.match_substring(texts, "E")).as_py():
        return None
    return texts


def _text_vector(column: pa.Array, zone: str) -> pa.Array | None:
    if pa.types.is_dictionary(column.type):
        return column.dictionary_decode()
    return column


def _blob_vector(column: pa.Array, zone: str) -> pa.Array | None:
    column = column.cast(pa.binary())
    if not len(column) or column.buffers()[2] is None:
        return None
    bounds = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)
    first, last = int(bounds[0]), int(bounds[-1])
    if last - first > BLOB_HEX_BYTES_MAX:
        return None
    digits = memoryview(column.buffers()[2])[first:last].hex().encode()
    doubled = pa.py_buffer(((bounds - first) * 2).astype(np.int32))
    texts = pa.Array.from_buffers(pa.string(), len(column), [None, doubled, pa.py_buffer(digits)])
    texts = pc.binary_join_element_wise("\\x", texts, "")
    return pc.if_else(pc.is_valid(column), texts, None) if column.null_count else texts


# Bytes of a BLOB column that are turned to hex at once: twice as many must be counted in 32 bits.
BLOB_HEX_BYTES_MAX = 2**30 - 1


def _date_vector(column: pa.Array, zone: str) -> pa.Array | None:
    bounds = pc.min_max(column.cast(pa.int32()))
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is not None and (low < DATE_MIN or high > DATE_MAX):
        return None
    return column.cast(pa.string())


def _trimmed(texts: pa.Array) -> pa.Array:
    """Times that Arrow printed with all digits of a fraction, without the zeros at its end."""
    return pc.ascii_rtrim(pc.ascii_rtrim(texts, "0"), ".")


def _time_vector(column: pa.Array, zone: str) -> pa.Array | None:
    values = av.microseconds(column)
    if len(values) and not column.null_count and values.max() >= DAY_US:
        return None
    if column.null_count:
        high = pc.max(column.cast(pa.int64())).as_py()
        if high is not None and high >= DAY_US * (1000 if column.type.unit == "ns" else 1):
            return None
    return _trimmed(column.cast(pa.time64("us"), safe=False).cast(pa.string()))


def _timestamp_vector(column: pa.Array, zone: str) -> pa.Array | None:
    return _moments(column, lambda values: _print_moments(values, ""))


def _timestamptz_vector(column: pa.Array, zone: str) -> pa.Array | None:
    if load_zone(zone) is datetime.UTC:
        return _moments(column, lambda values: _print_moments(values, "+00"))
    return _moments(column, lambda values: _print_in_zone(values, zone))


def _moments(column: pa.Array, print_: Callable[[av.Ints], pa.Array]) -> pa.Array | None:
    """Timestamps as text; repeated ones (an event's commit time) are printed once."""
    values = av.microseconds(column)
    valid = None
    if column.null_count:
        valid = pc.is_valid(column).to_numpy(zero_copy_only=False)
        values = np.where(valid, values, 0)
    if values.min() < MOMENT_MIN or values.max() > MOMENT_MAX:
        return None
    if len(values) >= REPEATS_ROWS_MIN and len(np.unique(values[:SAMPLE_ROWS])) < SAMPLE_ROWS // 4:
        coded = pa.array(values).dictionary_encode()
        texts = print_(coded.dictionary.to_numpy()).take(coded.indices)
    else:
        texts = print_(values)
    return texts if valid is None else pc.if_else(pa.array(valid), texts, None)


# A day inside what Arrow prints, so that no zone's offset leads out of it.
MOMENT_MIN, MOMENT_MAX = (DATE_MIN + 1) * DAY_US, DATE_MAX * DAY_US


def _print_moments(values: av.Ints, suffix: str) -> pa.Array:
    if not (values % SECOND_US).any():
        texts = pa.array(values // SECOND_US, pa.timestamp("s")).cast(pa.string())
    else:
        texts = _trimmed(pa.array(values, pa.timestamp("us")).cast(pa.string()))
    return pc.binary_join_element_wise(texts, suffix, "") if suffix else texts


def _print_in_zone(values: av.Ints, zone: str) -> pa.Array:
    # Since 1972 a zone's offset changes at whole minutes of UTC: ask once for each that occurs.
    step = 60 * SECOND_US if values.min() >= WHOLE_MINUTES_FROM else SECOND_US
    instants, places = np.unique(values // step, return_inverse=True)
    offsets = np.fromiter((offset_s(instant * step, zone) for instant in instants.tolist()), np.int64)
    local = _print_moments(values + offsets[places] * SECOND_US, "")
    distinct, codes = np.unique(offsets, return_inverse=True)
    suffixes = pa.array([offset_text(offset) for offset in distinct.tolist()], pa.string())
    return pc.binary_join_element_wise(local, suffixes.take(pa.array(codes[places])), "")


@dataclass(frozen=True, slots=True)
class TextForm:
    """How a DuckDB type's values are printed.

    Args:
        raw: the raw values of a column.
        text: the text of one raw value (and the session's time zone, where `zoned`).
        vector: the texts of a whole column, or None where there is no faster way.
        zoned: whether the text depends on the session's time zone.
        plain: whether an array's element of this type never needs quotes.
    """

    raw: Callable[[pa.Array], list[av.Raw]]
    text: Callable[..., str]
    vector: Vector | None = None
    zoned: bool = False
    plain: bool = False


WORDS = TextForm(av.raw_objects, str, _text_vector)
WHOLE = TextForm(av.raw_objects, str, _cast_vector, plain=True)
TIMESTAMP_FORM = TextForm(av.raw_microseconds, timestamp_text, _timestamp_vector)
TIMESTAMPTZ_FORM = TextForm(av.raw_microseconds, timestamptz_text, _timestamptz_vector, zoned=True)
FLOAT4_FORM = TextForm(av.raw_objects, float4_text, _float_vector(1e5), plain=True)
FLOAT8_FORM = TextForm(av.raw_objects, float8_text, _float_vector(1e9), plain=True)
TIME_FORM = TextForm(av.raw_microseconds, time_text, _time_vector, plain=True)

# DuckDB type -> form; every other type arrives as text (a wrapped query) and is sent as it is.
FORMS: dict[str, TextForm] = {
    "BOOLEAN": TextForm(av.raw_objects, bool_text, _bool_vector, plain=True),
    **dict.fromkeys(("TINYINT", "SMALLINT", "INTEGER", "BIGINT"), WHOLE),
    **dict.fromkeys(("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"), WHOLE),
    "HUGEINT": TextForm(av.raw_objects, decimal_text, _cast_vector, plain=True),
    "DECIMAL": TextForm(av.raw_objects, decimal_text, _decimal_vector, plain=True),
    "FLOAT": FLOAT4_FORM,
    "DOUBLE": FLOAT8_FORM,
    "BLOB": TextForm(av.raw_objects, blob_text, _blob_vector),
    "GEOMETRY": TextForm(av.raw_objects, blob_text, _blob_vector),
    "DATE": TextForm(av.raw_ints, date_text, _date_vector),
    "TIME": TIME_FORM,
    "TIME_NS": TIME_FORM,
    "TIMESTAMP": TIMESTAMP_FORM,
    "TIMESTAMP_S": TIMESTAMP_FORM,
    "TIMESTAMP_MS": TIMESTAMP_FORM,
    "TIMESTAMP_NS": TIMESTAMP_FORM,
    "TIMESTAMP WITH TIME ZONE": TIMESTAMPTZ_FORM,
    "TIMESTAMPTZ_NS": TIMESTAMPTZ_FORM,
    "INTERVAL": TextForm(av.raw_intervals, interval_text),
}


def form_of(type_: DuckType) -> TextForm:
    """The form of a type that is no array."""
    return FORMS.get(type_.name, WORDS)


def values_text(column: pa.Array, type_: DuckType, zone: str) -> list[str | None]:
    """The text of each value, one by one; for short columns, and right for every value."""
    if is_array(type_):
        return _arrays_text(column, type_.children[0], zone)
    form = form_of(type_)
    text = form.text
    if form.zoned:
        return [None if value is None else text(value, zone) for value in form.raw(column)]
    return [None if value is None else text(value) for value in form.raw(column)]


def _arrays_text(column: pa.Array, element: DuckType, zone: str) -> list[str | None]:
    plain = form_of(element).plain

    def elements(child: pa.Array) -> list[av.Raw]:
        texts = values_text(child, element, zone)
        return ["NULL" if t is None else t if plain else element_text(t) for t in texts]

    rows = av.raw_list(column, elements)
    return [None if row is None else f"{{{','.join(row)}}}" for row in rows]


def column_text(column: pa.Array, type_: DuckType, zone: str) -> pa.Array:
    """The texts of a whole column as an Arrow column of strings, NULL where it is NULL.

    Args:
        column: as DuckDB gives it (a wrapped query for the types of datarow.WRAPPED).
        type_: its DuckDB type.
        zone: the session's time zone, an IANA name.
    """
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), pa.string())
    if is_array(type_):
        return _array_column(column, type_.children[0], zone)
    form = form_of(type_)
    texts = form.vector(column, zone) if form.vector is not None and len(column) else None
    if texts is None:
        return pa.array(values_text(column, type_, zone), pa.string())
    return texts


def _array_column(column: pa.Array, element: DuckType, zone: str) -> pa.Array:
    bounds, child = av.list_parts(column)
    texts = column_text(child, element, zone)
    if texts.type != pa.string():
        texts = texts.cast(pa.string())
    if not form_of(element).plain:
        texts = _quoted(texts)
    texts = texts.fill_null("NULL")
    rows = pa.ListArray.from_arrays(pa.array(bounds.astype(np.int32)), texts)
    joined = pc.binary_join_element_wise("{", pc.binary_join(rows, ","), "}", "")
    return pc.if_else(pc.is_valid(column), joined, None) if column.null_count else joined


def _quoted(texts: pa.Array) -> pa.Array:
    odd = pc.match_substring_regex(texts, QUOTED_ELEMENT)
    if not pc.any(odd).as_py():
        return texts
    escaped = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    return pc.if_else(odd, pc.binary_join_element_wise('"', escaped, '"', ""), texts)
