"""Values as PostgreSQL's text: how the in-process way of a .slt file shows what a cursor fetched."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

# float8out: fifteen digits before it takes an exponent (Python's repr takes sixteen).
FLOAT_PLAIN_DIGITS = 15


def text(value: Any) -> str | None:
    """The text that a PostgreSQL server would send for `value`; None for NULL."""
    if value is None:
        return None
    for kind, show in FORMS.items():
        if isinstance(value, kind):
            return show(value)
    raise TypeError(f"no text form for {type(value).__name__} {value!r}")


def _float(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    shown = repr(value)
    if "e" not in shown and abs(value) >= 10**FLOAT_PLAIN_DIGITS:
        digits = shown.removesuffix(".0").lstrip("-")
        tail = digits[1:].rstrip("0")
        sign = "-" if value < 0 else ""
        return f"{sign}{digits[0]}{'.' if tail else ''}{tail}e+{len(digits) - 1}"
    return shown.removesuffix(".0")


def _datetime(value: datetime) -> str:
    shown = value.replace(tzinfo=None).isoformat(" ", "seconds") + _micros(value.microsecond)
    offset = value.utcoffset()
    return shown if offset is None else shown + _offset(offset)


def _time(value: time) -> str:
    offset = value.utcoffset()
    shown = f"{value:%H:%M:%S}" + _micros(value.microsecond)
    return shown if offset is None else shown + _offset(offset)


def _micros(count: int) -> str:
    return f".{count:06d}".rstrip("0") if count else ""


def _offset(offset: timedelta) -> str:
    minutes = int(offset.total_seconds()) // 60
    hours, rest = divmod(abs(minutes), 60)
    return f"{'-' if minutes < 0 else '+'}{hours:02d}" + (f":{rest:02d}" if rest else "")


def _interval(value: timedelta) -> str:
    micros = round(value / timedelta(microseconds=1))
    days, rest = divmod(abs(micros), 86_400_000_000)
    if micros < 0:
        days, rest = -days, -rest
    parts = [f"{days} day{'' if days == 1 else 's'}"] if days else []
    if rest or not parts:
        seconds, fraction = divmod(abs(rest), 1_000_000)
        clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{_micros(fraction)}"
        parts.append(("-" if rest < 0 else "") + clock)
    return " ".join(parts)


def _array(value: list[Any]) -> str:
    return "{" + ",".join(_element(item) for item in value) + "}"


def _element(value: Any) -> str:
    if isinstance(value, list):
        return _array(value)
    shown = text(value)
    if shown is None:
        return "NULL"
    special = shown == "" or shown.upper() == "NULL" or any(c in ' \t\n",{}\\' for c in shown)
    return '"' + shown.replace("\\", "\\\\").replace('"', '\\"') + '"' if special else shown


# In this order: bool is an int and datetime is a date to Python.
FORMS: dict[type, Callable[[Any], str]] = {
    bool: lambda value: "t" if value else "f",
    int: str,
    float: _float,
    Decimal: lambda value: f"{value:f}",
    str: str,
    bytes: lambda value: "\\x" + value.hex(),
    datetime: _datetime,
    date: date.isoformat,
    time: _time,
    timedelta: _interval,
    UUID: str,
    list: _array,
    dict: lambda value: json.dumps(value, separators=(",", ":"), default=text),
}
