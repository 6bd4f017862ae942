"""Dates, timestamps and intervals in the text forms of DateStyle and IntervalStyle that are not the defaults.

A style is the suffix of a type's name: values of a column `DATE` are written by the row `DATE GERMAN` of the
table of types (value_types.py) in a session with DateStyle German. The defaults, ISO and postgres, have no
suffix, and their functions are in dates_times.py. Only the text format has styles; binary values, JSON and
casts to text inside a query do not. Source: PostgreSQL's documentation, sections 8.5.2 and 8.5.5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import InvalidParameterValue
from . import arrow_values as av
from .dates_times import (
    DAY_US,
    SECOND_US,
    civil_day,
    date_text,
    offset_text,
    time_text,
    timestamp_text,
    zone_moment,
)

# The date in each style; DMY is its own style where the order matters.
DATES = {
    "SQL": "{month}/{day}/{year}",
    "SQL DMY": "{day}/{month}/{year}",
    "POSTGRES": "{month}-{day}-{year}",
    "POSTGRES DMY": "{day}-{month}-{year}",
    "GERMAN": "{day}.{month}.{year}",
}
# The date and the time in the styles that begin with the day of the week.
_WITH_WEEKDAY = {
    "POSTGRES": "{weekday} {name} {day} {time} {year}",
    "POSTGRES DMY": "{weekday} {day} {name} {time} {year}",
}
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
# 1970-01-01 was a Thursday.
_WEEKDAYS = ("Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed")
# The words of DateStyle with what each means; PostgreSQL accepts some as prefixes.
_STYLES = {"iso": "ISO", "sql": "SQL", "postgres": "Postgres", "german": "German"}
_ORDERS = {
    "ymd": "YMD", "dmy": "DMY", "mdy": "MDY", "us": "MDY", "euro": "DMY", "european": "DMY", "noneuro": "MDY",
    "noneuropean": "MDY",
}  # fmt: skip
DATESTYLE_DEFAULT = "ISO, MDY"


# The settings.


def read_datestyle(values: Sequence[str], present: str) -> str:
    """The value of DateStyle as it is shown: a style and an order.

    Args:
        values: the words of SET.
        present: the value before, from which a part that is not given is taken.

    Raises:
        InvalidParameterValue: a word is unknown, or two contradict each other.

    >>> read_datestyle(["German"], "ISO, MDY"), read_datestyle(["dmy"], "SQL, MDY")
    ('German, DMY', 'SQL, DMY')
    """
    styles: set[str] = set()
    orders: set[str] = set()
    for word in ",".join(values).split(","):
        key = word.strip().strip("\"'").lower()
        if key == "default":
            style, order = DATESTYLE_DEFAULT.split(", ")
            styles, orders = styles or {style}, orders or {order}
        elif key in _ORDERS:
            orders.add(_ORDERS[key])
        elif key in _STYLES:
            styles.add(_STYLES[key])
        else:
            raise InvalidParameterValue(
                f'invalid value for parameter "DateStyle": "{", ".join(values)}"',
                detail=f'Unrecognized key word: "{key[:100]}".',
            )
    if len(styles) > 1 or len(orders) > 1:
        raise InvalidParameterValue(
            f'invalid value for parameter "DateStyle": "{", ".join(values)}"',
            detail='Conflicting "datestyle" specifications.',
        )
    style, order = present.split(", ")
    if styles == {"German"}:
        order = "DMY"
    return f"{next(iter(styles), style)}, {next(iter(orders), order)}"


def suffix_of_dates(datestyle: str) -> str | None:
    """The suffix of types of dates with a value of DateStyle; None for ISO."""
    style, order = datestyle.upper().split(", ")
    return next((name for name in (f"{style} {order}", style) if name in DATES), None)


def suffix_of_intervals(intervalstyle: str) -> str | None:
    """The suffix of INTERVAL with a value of IntervalStyle; None for postgres."""
    name = intervalstyle.upper()
    return name if name in INTERVALS else None


# Dates and timestamps.


def date_writer(style: str) -> Callable[[av.Raw], str]:
    """The function that writes a date in a style."""

    def text(days: av.Raw) -> str:
        if abs(days) >= av.DATE_INFINITY:
            return date_text(days)
        day, before_christ = civil_day(days)
        year, month, number = day.split("-")
        shown = DATES[style].format(year=year, month=month, day=number)
        return f"{shown} BC" if before_christ else shown

    return text


def timestamp_writer(style: str) -> Callable[[av.Raw], str]:
    """The function that writes a timestamp in a style."""

    def text(us: av.Raw) -> str:
        return timestamp_text(us) if abs(us) >= av.TIMESTAMP_INFINITY else _moment(us, style, "")

    return text


def timestamptz_writer(style: str) -> Callable[[av.Raw, str], str]:
    """The function that writes a timestamp in a style and a zone, with the zone's abbreviation."""

    def text(us: av.Raw, zone: str) -> str:
        if abs(us) >= av.TIMESTAMP_INFINITY:
            return timestamp_text(us)
        here = zone_moment(us, zone)
        offset = here.utcoffset()
        seconds = int(offset.total_seconds()) if offset is not None else 0
        name = "GMT" if zone.upper() == "GMT" else here.tzname() or offset_text(seconds)
        return _moment(us + seconds * SECOND_US, style, f" {name}")

    return text


def _moment(us: int, style: str, zone: str) -> str:
    days, clock = divmod(us, DAY_US)
    date, before_christ = civil_day(days)
    year, month, day = date.split("-")
    time = time_text(clock)
    if style in _WITH_WEEKDAY:
        weekday, name = _WEEKDAYS[days % 7], _MONTHS[int(month) - 1]
        shown = _WITH_WEEKDAY[style].format(weekday=weekday, name=name, day=day, time=time, year=year)
    else:
        shown = f"{DATES[style].format(year=year, month=month, day=day)} {time}"
    return f"{shown}{zone}{' BC' if before_christ else ''}"


# Intervals.


def _split(value: av.Interval) -> tuple[int, int, int, int, int, int]:
    """Years, months, days, hours, minutes and microseconds, each with its sign."""
    months, days, us = value
    years, rest = divmod(abs(months), 12)
    sign, side = (-1 if months < 0 else 1), (-1 if us < 0 else 1)
    minutes, part = divmod(abs(us), 60 * SECOND_US)
    return sign * years, sign * rest, days, side * (minutes // 60), side * (minutes % 60), side * part


def _seconds(us: int, width: int = 1) -> str:
    seconds, fraction = divmod(abs(us), SECOND_US)
    return f"{seconds:0{width}}" + (f".{fraction:06}".rstrip("0") if fraction else "")


def sql_standard_text(value: av.Raw) -> str:
    """An interval in IntervalStyle sql_standard: each part has a sign if the standard has no form for it."""
    years, months, days, hours, minutes, us = map(abs, _split(value))
    date, clock = f"{years}-{months}", f"{hours}:{minutes:02}:{_seconds(us, 2)}"
    negative = min(value) < 0
    if (negative and max(value) > 0) or (value[0] and any(value[1:])):
        signs = ["-" if part < 0 else "+" for part in value]
        return f"{signs[0]}{date} {signs[1]}{days} {signs[2]}{clock}"
    shown = date if value[0] else f"{days} {clock}" if days else clock if us or minutes or hours else "0"
    return f"-{shown}" if negative else shown


def iso_8601_text(value: av.Raw) -> str:
    """An interval in IntervalStyle iso_8601: `P1Y2M3DT4H5M6S`."""
    *parts, us = _split(value)
    years, months, days, hours, minutes = (
        f"{number}{unit}" if number else "" for number, unit in zip(parts, "YMDHM", strict=True)
    )
    seconds = f"{'-' if us < 0 else ''}{_seconds(us)}S" if us else ""
    clock = f"{hours}{minutes}{seconds}"
    if not any(value):
        return "PT0S"
    return f"P{years}{months}{days}{'T' if clock else ''}{clock}"


def postgres_verbose_text(value: av.Raw) -> str:
    """An interval in IntervalStyle postgres_verbose; `ago` turns all signs if the first part is negative."""
    *parts, us = _split(value)
    found = [(number, unit) for number, unit in zip(parts, _UNITS, strict=True) if number]
    ago = next((number < 0 for number in (*parts, us) if number), False)
    turn = -1 if ago else 1
    texts = [f"{turn * number} {unit}{'' if turn * number == 1 else 's'}" for number, unit in found]
    if us:
        plural = "" if abs(us) == SECOND_US else "s"
        texts.append(f"{'-' if turn * us < 0 else ''}{_seconds(us)} sec{plural}")
    return " ".join(["@", *(texts or ["0"]), *(["ago"] if ago else [])])


_UNITS = ("year", "mon", "day", "hour", "min")
INTERVALS: dict[str, Callable[[av.Raw], str]] = {
    "SQL_STANDARD": sql_standard_text,
    "ISO_8601": iso_8601_text,
    "POSTGRES_VERBOSE": postgres_verbose_text,
}
