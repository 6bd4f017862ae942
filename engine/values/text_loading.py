"""Columns of PostgreSQL texts as Arrow, and what DuckDB casts them to: for COPY FROM STDIN.

A text is read by the same decoder as a parameter of Bind; what DuckDB's Arrow has no exact form of
goes on as a text that DuckDB casts. Source: docs/design/values.md, "Parameters".
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa
from duckdb import Value

from ..errors import DucktailError
from .duckdb_types import DuckType, read_type
from .parameters import INTEGER_RANGES, text_reader

# Types whose decoded values Arrow carries as they are, and DuckDB takes without a cast of ours.
_ARROW = {
    "VARCHAR": pa.string(),
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "UTINYINT": pa.uint8(),
    "USMALLINT": pa.uint16(),
    "UINTEGER": pa.uint32(),
    "UBIGINT": pa.uint64(),
    "DOUBLE": pa.float64(),
    "BLOB": pa.binary(),
}
_JSON_FIRST = frozenset({"STRUCT", "MAP", "UNION", "VARIANT"})


class BadValue(Exception):
    """A text of a column that is no value of its type.

    Args:
        place: which one it is, from 0.
        error: what is wrong with it.
    """

    def __init__(self, place: int, error: DucktailError) -> None:
        super().__init__(error.message)
        self.place = place
        self.error = error


@dataclass(frozen=True, slots=True)
class ColumnLoader:
    """Turns texts of one column into an Arrow column.

    Args:
        type: what DuckDB casts it to, None where Arrow carries the value itself.
        through: a cast before that: `::JSON`, or ''.
        is_number: an integer or a DECIMAL, whose plainest spelling needs no decoder.
    """

    arrow: pa.DataType
    read: Callable[[str], object]
    type: str | None = None
    through: str = ""
    is_number: bool = False

    def cast(self, name: str) -> str:
        """The SQL of a value, from the name of its column in a relation."""
        return f"{name}{self.through}::{self.type}" if self.type else name

    def is_refused(self, name: str) -> str:
        """The SQL of whether DuckDB refuses to cast a value."""
        if self.type is None:
            return "false"
        through = f"TRY_CAST({name} AS JSON)" if self.through else name
        return f"{name} IS NOT NULL AND TRY_CAST({through} AS {self.type}) IS NULL"

    def load(self, texts: Sequence[str | None]) -> pa.Array:
        """The column.

        Raises:
            BadValue: a text is no value of the type.
        """
        if self.read is str:
            return pa.array(texts, self.arrow)
        if self.is_number and (quick := self._quick(texts)) is not None:
            return quick
        values: list[object] = []
        read = self.read
        try:
            for text in texts:
                values.append(None if text is None else read(text))
        except DucktailError as error:
            raise BadValue(len(values), error) from error
        return pa.array(values, self.arrow)


    def _quick(self, texts: Sequence[str | None]) -> pa.Array | None:
        """The column where all its texts are of digits, signs and points; else None.

        A tenth of the decoder's time. What is still no number (1-2) is left to whoever says so.
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


def column_loader(duckdb_type: str, timezone: str | None) -> ColumnLoader:
    """The loader of a column of this DuckDB type.

    Args:
        timezone: the session's, for a timestamptz without an offset.
    """
    type_ = read_type(duckdb_type)
    read = text_reader(duckdb_type, timezone)
    arrow = _ARROW.get(type_.name)
    if type_.name == "VARCHAR":
        return ColumnLoader(pa.string(), str)
    if arrow is not None:
        return ColumnLoader(arrow, read, is_number=type_.name in INTEGER_RANGES)
    if type_.name in ("LIST", "ARRAY"):
        return _list_loader(type_, read)
    first = "::JSON" if type_.name in _JSON_FIRST else ""
    number = type_.name == "DECIMAL"
    return ColumnLoader(pa.string(), lambda text: _text(read(text)), duckdb_type, first, number)


def _list_loader(type_: DuckType, read: Callable[[str], object]) -> ColumnLoader:
    """Lists go as JSON texts where they are of what is JSON to a client, else as lists of texts."""
    element, depth = type_, 0
    while element.name in ("LIST", "ARRAY"):
        element, depth = element.children[0], depth + 1
    if element.name in _JSON_FIRST or depth > 1:
        return ColumnLoader(pa.string(), lambda text: _json_text(read(text)), type_.text, "::JSON")
    return ColumnLoader(pa.list_(pa.string()), lambda text: _texts(read(text)), type_.text)


def _texts(value: object) -> object:
    return [None if item is None else _text(item) for item in value] if isinstance(value, list) else value


def _json_text(value: object) -> str:
    return json.dumps(_leaves(value)) if isinstance(value, list) else _text(value)


def _leaves(value: object) -> object:
    if isinstance(value, list):
        return [_leaves(item) for item in value]
    return None if value is None else _text(value)


def _text(value: object) -> str:
    """A decoded value as a text that DuckDB casts to the same value."""
    if isinstance(value, Value):
        value = value.object
    if isinstance(value, bytes):
        return "".join(f"\\x{byte:02X}" for byte in value)
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ")
    return str(value)
