"""The partition of a row: a stable hash of its partition columns' values.

    key text  = the JSON array of the values in order, without blanks:  [5,"a\\"b",null]
    hash      = int(sha1(key text in UTF-8).hex()[:8], 16)              0 .. 2^32-1
    partition = hash % partitions

A value has one text, independent of the session's settings, the machine and the version of DuckDB. It does
not include the width of an integer or the scale of a decimal (5 is `5` as TINYINT and as HUGEINT, 1.50 is
`"1.5"`), nor names: RENAME COLUMN must not move keys. Texts that depend on a session setting (timestamps with
a zone) or on DuckDB's version (floats) would break the rule; such values are hashed as numbers and as IEEE
754 bytes. Values that are equal in SQL have one text: -0.0 is 0.0, every NaN is one NaN, a timestamp with a
zone is its instant. A type whose equal values have several texts (INTERVAL) or that has no stable text
(nested ones) is refused.

Source: docs/design/values.md, "Partition hash", with the test vectors.
"""

from __future__ import annotations

import datetime
import decimal
import hashlib
import json
import struct
import uuid
from collections.abc import Callable, Sequence

from .errors import InvalidParameterValue, NotSupported
from .values.duckdb_types import INTEGERS, DuckType, read_type

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
EPOCH_DATE = datetime.date(1970, 1, 1)
DAY_US = 86_400_000_000
MICROSECOND = datetime.timedelta(microseconds=1)
NAN_HEX = "7FF8000000000000"
ZERO_HEX = "0000000000000000"

# Most digits of a DECIMAL that DuckDB has are 38; a Python context must not round them.
EXACT = decimal.Context(prec=100, traps=[decimal.Inexact, decimal.InvalidOperation])


def hash_sql(columns: Sequence[tuple[str, str]]) -> str:
    """SQL expression of the partition hash, type UINTEGER; never NULL.

    Args:
        columns: (SQL expression, DuckDB type) of each partition column, in order; at least one. An expression
            is a name, a call or in parentheses.

    Raises:
        NotSupported: a type cannot be a partition column.
    """
    forms = [_form(type_) for _, type_ in columns]
    # json_array knows NULL and escapes strings, and is the shortest text to plan.
    values = ", ".join(form[0].format(x=x) for (x, _), form in zip(columns, forms, strict=True))
    return f"('0x' || left(sha1(json_array({values})), 8))::UINTEGER"


def has_form(type_: str) -> bool:
    """True if values of a type have one text, so that they can be hashed."""
    return read_type(type_).name in FORMS


def check_type(type_: str) -> None:
    """Raise NotSupported (0A000) if the type cannot be a partition column."""
    _form(type_)


def hash_of(values: Sequence[object], types: Sequence[str]) -> int:
    """The partition hash of Python values, 0 .. 2^32-1; equal to that of `hash_sql`.

    Args:
        values: the values in order, as returned by DuckDB's Python client; None is NULL. Timestamps
            and dates outside Python's range may be the integers of the key text.
        types: their DuckDB types.

    Raises:
        NotSupported: a type cannot be a partition column.
        InvalidParameterValue: a value is invalid for its type.
    """
    text = key_text(values, types)
    return int(hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:8], 16)


def partition_of(values: Sequence[object], types: Sequence[str], partitions: int) -> int:
    """The partition of a row with these partition-column values, 0 .. partitions-1."""
    return hash_of(values, types) % partitions


def key_text(values: Sequence[object], types: Sequence[str]) -> str:
    """The JSON array that is hashed.

    >>> key_text([5, "a", None], ["INTEGER", "VARCHAR", "DATE"])
    '[5,"a",null]'
    """
    texts = []
    for value, type_ in zip(values, types, strict=True):
        form = _form(type_)
        if value is None:
            texts.append("null")
            continue
        try:
            texts.append(form[1](value))
        except (ValueError, TypeError, AttributeError, OverflowError, decimal.DecimalException) as error:
            raise InvalidParameterValue(f"not a value of type {type_}: {str(value)[:100]}") from error
    return f"[{','.join(texts)}]"


def _form(type_: str) -> tuple[str, Callable[[object], str]]:
    read = read_type(type_)
    try:
        sql, text = FORMS[read.name]
        return (_decimal_sql(read) if read.name == "DECIMAL" else sql), text
    except KeyError:
        raise NotSupported(
            f"type {type_[:100]} cannot be a partition column",
            hint="Partition by a number, text, date, timestamp, UUID, BOOLEAN, ENUM, BLOB or BIT column.",
        ) from None


def _decimal_sql(read: DuckType) -> str:
    precision, scale = read.numbers
    if not scale:  # no point: its own zeros must stay
        return "{x}::VARCHAR"
    text = "{x}::VARCHAR"
    if precision == scale:  # DuckDB prints no zero before the point
        text = "CASE WHEN {x} < 0 THEN '-0' ELSE '0' END || ltrim({x}::VARCHAR, '-')"
    return f"rtrim(rtrim({text}, '0'), '.')"


# The texts in Python, one function a row of FORMS.


def _integer(value: object) -> str:
    return str(int(value)) if isinstance(value, (int, str)) else str(_exact_integer(value))


def _exact_integer(value: object) -> int:
    number = decimal.Decimal(value)  # type: ignore[arg-type]
    if number != number.to_integral_value():
        raise ValueError("not an integer")
    return int(number)


def _decimal(value: object) -> str:
    if isinstance(value, float):
        raise ValueError("a float is not exact")
    number = decimal.Decimal(value)  # type: ignore[arg-type]
    if number.is_zero():
        return '"0"'
    if not number.is_finite():
        raise ValueError("not finite")
    return f'"{number.normalize(EXACT):f}"'


def _float(value: object) -> str:
    number = float(value)  # type: ignore[arg-type]
    if number != number:
        return f'"{NAN_HEX}"'
    if number == 0:
        return f'"{ZERO_HEX}"'
    return f'"{struct.pack(">d", number).hex().upper()}"'


CONTROL = {chr(code): f"\\u00{code:02X}" for code in range(0x20)}
ESCAPES = str.maketrans(
    {**CONTROL, "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}
)


def _string(value: object) -> str:
    text = value if isinstance(value, str) else str(value)
    return f'"{text.translate(ESCAPES)}"'


def _json(value: object) -> str:
    return _string(value if isinstance(value, str) else json.dumps(value))


def _blob(value: object) -> str:
    return f'"{bytes(value).hex().upper()}"'  # type: ignore[call-overload]


def _uuid(value: object) -> str:
    return f'"{value if isinstance(value, uuid.UUID) else uuid.UUID(str(value))}"'


def _boolean(value: object) -> str:
    return "true" if value else "false"


# DuckDB's own numbers for the infinities of its dates and timestamps.
DATE_INFINITY = 2**31 - 1
TIMESTAMP_INFINITY = 2**63 - 1


def _infinity(value: object, infinity: int) -> int | None:
    return {"infinity": infinity, "-infinity": -infinity}.get(value) if isinstance(value, str) else None


def _date(value: object) -> str:
    if isinstance(value, int):
        return str(value)
    infinite = _infinity(value, DATE_INFINITY)
    if infinite is not None:
        return str(infinite)
    return str((value - EPOCH_DATE).days)  # type: ignore[operator]


def _timestamp(value: object) -> str:
    if isinstance(value, int):
        return str(value)
    infinite = _infinity(value, TIMESTAMP_INFINITY)
    if infinite is not None:
        return str(infinite)
    moment: datetime.datetime = value  # type: ignore[assignment]
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
    return str((aware - EPOCH) // MICROSECOND)


def _timestamp_ns(value: object) -> str:
    text = _timestamp(value)
    return text if isinstance(value, (int, str)) else str(int(text) * 1000)


def _time(value: object) -> str:
    if isinstance(value, int):
        return str(value)
    if value == "24:00:00":  # DuckDB's client gives it as text: Python has no such time
        return str(DAY_US)
    time: datetime.time = value  # type: ignore[assignment]
    return str(((time.hour * 60 + time.minute) * 60 + time.second) * 1_000_000 + time.microsecond)


def _time_ns(value: object) -> str:
    return str(value) if isinstance(value, int) else str(int(_time(value)) * 1000)


FLOAT_SQL = (
    f"CASE WHEN isnan({{x}}) THEN '{NAN_HEX}' WHEN {{x}} = 0 THEN '{ZERO_HEX}' "
    "ELSE hex({x}::DOUBLE::BIT::BLOB) END"
)
# epoch_us and epoch_ns are NULL for an infinite value, which must not be taken for NULL.
INFINITE_SQL = (
    f"CASE {{x}} WHEN 'infinity' THEN {TIMESTAMP_INFINITY} WHEN '-infinity' THEN {-TIMESTAMP_INFINITY} END"
)
MICROSECONDS = (f"coalesce(epoch_us({{x}}), {INFINITE_SQL})", _timestamp)
NANOSECONDS = (f"coalesce(epoch_ns({{x}}), {INFINITE_SQL})", _timestamp_ns)

# DuckDB type -> (SQL value for json_array, text of a Python value).
FORMS: dict[str, tuple[str, Callable[[object], str]]] = {
    **dict.fromkeys(INTEGERS, ("{x}", _integer)),
    "BOOLEAN": ("{x}", _boolean),
    "DECIMAL": ("", _decimal),  # by precision and scale: _decimal_sql
    "FLOAT": (FLOAT_SQL, _float),
    "DOUBLE": (FLOAT_SQL, _float),
    "VARCHAR": ("{x}", _string),
    "ENUM": ("{x}::VARCHAR", _string),
    "JSON": ("{x}::VARCHAR", _json),
    "UUID": ("{x}::VARCHAR", _uuid),
    "BIT": ("{x}::VARCHAR", _string),
    "BLOB": ("hex({x})", _blob),
    "DATE": ("{x} - DATE '1970-01-01'", _date),
    "TIME": ("epoch_us({x})", _time),
    "TIME_NS": ("epoch_ns({x})", _time_ns),
    "TIMESTAMP": MICROSECONDS,
    "TIMESTAMP_S": MICROSECONDS,
    "TIMESTAMP_MS": MICROSECONDS,
    "TIMESTAMP WITH TIME ZONE": MICROSECONDS,
    "TIMESTAMP_NS": NANOSECONDS,
    "TIMESTAMPTZ_NS": NANOSECONDS,
}
