"""PEP 249's type objects and constructors: what `description`'s type_code compares equal to.

The type_code of a column is DuckDB's own name of its type, such as "BIGINT" or "DECIMAL(18,3)".
"""

from __future__ import annotations

from datetime import date, datetime, time


class TypeObject:
    """A family of types: equal to the name of each type in it."""

    def __init__(self, *names: str) -> None:
        self._names = frozenset(names)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return other.partition("(")[0] in self._names
        return self is other

    def __hash__(self) -> int:
        return hash(self._names)


STRING = TypeObject("VARCHAR", "JSON", "UUID", "ENUM", "BIT")
BINARY = TypeObject("BLOB")
NUMBER = TypeObject(
    *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "BIGNUM", "FLOAT", "DOUBLE", "DECIMAL"),
    *("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT"),
)
DATETIME = TypeObject(
    *("DATE", "TIME", "TIME WITH TIME ZONE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE"),
    *("TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "INTERVAL"),
)
# DuckDB has no type of its own for a row's id: rowid is a BIGINT.
ROWID = TypeObject()

Date = date
Time = time
Timestamp = datetime
Binary = bytes


def DateFromTicks(ticks: float) -> date:
    """The local date at `ticks` seconds since 1970-01-01 UTC."""
    return date.fromtimestamp(ticks)


def TimeFromTicks(ticks: float) -> time:
    """The local time of day at `ticks` seconds since 1970-01-01 UTC."""
    return datetime.fromtimestamp(ticks).time()


def TimestampFromTicks(ticks: float) -> datetime:
    """The local date and time at `ticks` seconds since 1970-01-01 UTC."""
    return datetime.fromtimestamp(ticks)
