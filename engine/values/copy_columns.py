"""Columns of COPY ... FROM STDIN: PostgreSQL's texts or binary values as Arrow, and the cast in DuckDB.

A value is read like a parameter of Bind. Types without an exact Arrow form are passed on as texts, which
DuckDB casts. Source: docs/design/values.md, "Parameters".
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from duckdb import Value

from ..errors import DucktailError
from ..quoting import blob_text
from .duckdb_types import DuckType, read_type
from .parameters import binary_reader, text_reader
from .strings import utf8
from .value_types import value_type

_JSON_FIRST = frozenset({"STRUCT", "MAP", "UNION", "VARIANT"})
# Binary values of one width that equal Arrow's with their bytes reversed.
_FIXED = {"SMALLINT": ">i2", "INTEGER": ">i4", "BIGINT": ">i8", "DOUBLE": ">f8"}
_DAY = r"\A(?:000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-9]\d{3})-\d\d-\d\d"
_CLOCK = r"[ T]\d\d:\d\d:\d\d(?:\.\d{1,6})?"


class BadValue(Exception):
    """The error for a value of a column that is invalid for its type.

    Args:
        place: the position of the value, from 0.
        error: the error of its decoder.
    """

    def __init__(self, place: int, error: DucktailError) -> None:
        super().__init__(error.message)
        self.place = place
        self.error = error


@dataclass(frozen=True, slots=True)
class IsoMoment:
    """A date or timestamp type whose ISO 8601 texts Arrow reads by itself.

    Args:
        plain: the pattern of these texts; years from 0001.
    """

    arrow: pa.DataType
    plain: str

    def load(self, texts: Sequence[Any]) -> pa.Array | None:
        """The column if all its texts match; else None, and a decoder reads them."""
        try:
            column = pa.array(texts, pa.string())
            if not pc.all(pc.match_substring_regex(column, self.plain)).as_py():
                return None
            return column.cast(self.arrow)
        except pa.ArrowInvalid:
            return None


_MOMENTS = {
    "DATE": IsoMoment(pa.date32(), rf"{_DAY}\z"),
    "TIMESTAMP": IsoMoment(pa.timestamp("us"), rf"{_DAY}{_CLOCK}\z"),
    "TIMESTAMP WITH TIME ZONE": IsoMoment(
        pa.timestamp("us", "UTC"), rf"{_DAY}{_CLOCK}(?:Z|[+-]\d\d(?::?\d\d)?)\z"
    ),
}


@dataclass(frozen=True, slots=True)
class ColumnLoader:
    """Converts texts, or binary values, of one column to an Arrow column.

    Args:
        read: the decoder of one value.
        type: the type that DuckDB casts the value to, None where Arrow carries the value itself.
        through: a cast before it, of a text that does not begin with a blank: `::JSON`, or ''.
        is_number: True for an integer or DECIMAL, whose plain spelling needs no decoder.
        fixed: the numpy type of binary values that need no decoder.
        moment: for a date or timestamp: the type, whose ISO spelling needs no decoder.
    """

    arrow: pa.DataType
    read: Callable[[Any], object]
    type: str | None = None
    through: str = ""
    is_number: bool = False
    fixed: str | None = None
    moment: IsoMoment | None = None

    def cast(self, name: str) -> str:
        """The SQL of a value, from the name of its column in a relation."""
        if not self.through:
            return f"{name}::{self.type}" if self.type else name
        return (
            f"CASE WHEN {_is_own(name)} THEN {name}::{self.type} ELSE {name}{self.through}::{self.type} END"
        )

    def is_refused(self, name: str) -> str:
        """The SQL boolean that is true where DuckDB refuses to cast a value."""
        if self.type is None:
            return "false"
        cast = f"TRY_CAST({name} AS {self.type})"
        if self.through:
            through = f"TRY_CAST(TRY_CAST({name} AS JSON) AS {self.type})"
            cast = f"CASE WHEN {_is_own(name)} THEN {cast} ELSE {through} END"
        return f"{name} IS NOT NULL AND {cast} IS NULL"

    def load(self, texts: Sequence[Any]) -> pa.Array:
        """The Arrow column of these values.

        Raises:
            BadValue: a text or binary value is invalid for the type.
        """
        if self.read is str:
            return pa.array(texts, self.arrow)
        if self.fixed is not None and (whole := self._whole(texts, self.fixed)) is not None:
            return whole
        if self.is_number and (quick := self._quick(texts)) is not None:
            return quick
        if self.moment is not None and (known := self.moment.load(texts)) is not None:
            return known
        values: list[object] = []
        read = self.read
        try:
            for text in texts:
                values.append(None if text is None else read(text))
        except DucktailError as error:
            raise BadValue(len(values), error) from error
        return pa.array(values, self.arrow)

    def _whole(self, values: Sequence[bytes | None], fixed: str) -> pa.Array | None:
        """The column if all its values have their fixed width; else None."""
        width = int(fixed[-1])
        empty = bytes(width)
        nulls = np.fromiter((value is None for value in values), np.bool_, len(values))
        if any(value is not None and len(value) != width for value in values):
            return None
        data = b"".join(empty if value is None else value for value in values)
        numbers = np.frombuffer(data, fixed).astype(fixed.replace(">", "="))
        return pa.array(numbers, self.arrow, mask=nulls)

    def _quick(self, texts: Sequence[str | None]) -> pa.Array | None:
        """The column if all its texts consist of digits, signs and points; else None.

        It takes a tenth of the decoder's time. A text that is not a number all the same (1-2) is left to the
        decoder.
        """
        marks = "".join(text for text in texts if text)
        plain = marks.replace("-", "")
        if self.type is not None:
            plain = plain.replace(".", "")
        if not (plain.isascii() and plain.isdigit()):
            return None
        try:
            if self.type is not None:
                return pa.array(texts, self.arrow)
            return pa.array([None if text is None else int(text) for text in texts], self.arrow)
        except (ValueError, OverflowError):
            return None


def _is_own(name: str) -> str:
    """SQL that is true for a text in DuckDB's own form."""
    return f"starts_with({name}, ' ')"


def column_loader(duckdb_type: str, timezone: str | None, *, binary: bool = False) -> ColumnLoader:
    """The loader of a column of a DuckDB type.

    Args:
        timezone: the session's time zone, for a timestamptz without an offset.
        binary: values come in their binary form, not as texts.
    """
    type_ = read_type(duckdb_type)
    read: Callable[[Any], object]
    read = binary_reader(duckdb_type) if binary else text_reader(duckdb_type, timezone)
    row = value_type(type_)
    if type_.name == "VARCHAR":
        return ColumnLoader(pa.string(), utf8 if binary else str)
    if row.arrow is not None:
        number = row.bounds is not None and not binary
        return ColumnLoader(
            row.arrow, read, is_number=number, fixed=_FIXED.get(type_.name) if binary else None
        )
    if type_.name in ("LIST", "ARRAY"):
        return _list_loader(type_, read)
    if type_.name in _JSON_FIRST:
        return ColumnLoader(pa.string(), lambda text: _nested_text(read(text)), duckdb_type, "::JSON")
    number = type_.name == "DECIMAL" and not binary
    moment = None if binary else _MOMENTS.get(type_.name)
    return ColumnLoader(pa.string(), lambda text: _text(read(text)), duckdb_type, "", number, moment=moment)


def _list_loader(type_: DuckType, read: Callable[[Any], object]) -> ColumnLoader:
    """The loader of lists: as texts where the elements are nested, else as lists of texts."""
    element, depth = type_, 0
    while element.name in ("LIST", "ARRAY"):
        element, depth = element.children[0], depth + 1
    if element.name in _JSON_FIRST or depth > 1:
        return ColumnLoader(pa.string(), lambda text: _nested_text(read(text)), type_.text, "::JSON")
    return ColumnLoader(pa.list_(pa.string()), lambda text: _texts(read(text)), type_.text)


def _texts(value: object) -> object:
    return [None if item is None else _text(item) for item in value] if isinstance(value, list) else value


def _nested_text(value: object) -> str:
    """The text of a nested value: JSON, or DuckDB's own form of a record or list, behind a blank."""
    return f" {_own_form(value)}" if isinstance(value, list | dict) else _text(value).lstrip()


def _own_form(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_own_form, value))}]"
    if isinstance(value, dict):
        return f"({', '.join(map(_own_form, value.values()))})"
    if value is None:
        return "NULL"
    escaped = _text(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _text(value: object) -> str:
    """A decoded value as a text that DuckDB casts to the same value."""
    if isinstance(value, Value):
        value = value.object
    if isinstance(value, bytes):
        return blob_text(value)
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ")
    return str(value)
