"""Tables and changes of a database outside, as a connector gives them and `feeding.py` stores them.

Values are given as text or as plain Python values; a column says which (`SourceColumn.arrow`), and how SQL
turns them into its type (`SourceColumn.value`). Source: docs/design/sources.md.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from ..quoting import shown_name

# The Arrow types in which connectors give values, and lists of them, with DuckDB's names.
_ARROW_TYPES: dict[pa.DataType, str] = {
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.bool_(): "BOOLEAN",
    pa.int64(): "BIGINT",
    pa.uint64(): "UBIGINT",
    pa.float64(): "DOUBLE",
}
# The same by their names in stored definitions.
_BY_NAME = {str(type_): type_ for type_ in _ARROW_TYPES}
_LIST = "[]"


def _arrow_name(type_: pa.DataType) -> str:
    return _arrow_name(type_.value_type) + _LIST if pa.types.is_list(type_) else str(type_)


def _arrow_type(name: str) -> pa.DataType:
    return pa.list_(_arrow_type(name.removesuffix(_LIST))) if name.endswith(_LIST) else _BY_NAME[name]


def duckdb_type(type_: pa.DataType) -> str:
    """DuckDB's name of an Arrow type in which values are given."""
    return duckdb_type(type_.value_type) + _LIST if pa.types.is_list(type_) else _ARROW_TYPES[type_]


# Changes of a transaction that are given at once, at most.
PIECE_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column of a table outside.

    Args:
        name: its name there.
        type: the DuckDB type in which it is kept here.
        not_null: True if it cannot be NULL there.
        arrow: the Arrow type of the values that are given.
        value: SQL of the value in `type`, with `{}` for the given value; "" for a cast.
        number: its number there, which a rename keeps; 0 if it is not known.
        fill: SQL of the value of rows that were there before the column was added; "" for NULL.
    """

    name: str
    type: str
    not_null: bool = False
    arrow: pa.DataType = pa.string()
    value: str = ""
    number: int = 0
    fill: str = field(default="", compare=False)

    def sql(self, given: str) -> str:
        """SQL of the column's value, from SQL of the given one."""
        return self.value.format(given) if self.value else f"CAST({given} AS {self.type})"


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table outside, as it is at one moment.

    Args:
        schema, name: its name there; for MySQL the schema is the database.
        columns: its columns in order, without generated ones that the source does not send.
        key: the names of its primary key's columns (or of the index that identifies its rows); () if none.
        identity: for each column, True if the old value is sent with each UPDATE and DELETE; a key's columns
            always are.
        native: what the connector must know of the table to read its changes, beyond the above, in a form of
            its own.
    """

    schema: str
    name: str
    columns: tuple[SourceColumn, ...]
    key: tuple[str, ...]
    identity: tuple[bool, ...]
    native: str = ""

    @property
    def key_in_source(self) -> tuple[str, str]:
        """Schema and name, by which changes name the table."""
        return self.schema, self.name

    @property
    def shown(self) -> str:
        """The name in messages and events."""
        return f"{shown_name(self.schema)}.{shown_name(self.name)}"

    def text(self) -> str:
        """The definition as JSON, read by `source_table_of`."""
        columns = [
            {
                "name": c.name,
                "type": c.type,
                "not_null": c.not_null,
                "arrow": _arrow_name(c.arrow),
                "value": c.value,
                "number": c.number,
            }
            for c in self.columns
        ]
        whole = {
            "schema": self.schema,
            "name": self.name,
            "columns": columns,
            "key": list(self.key),
            "identity": list(self.identity),
            "native": self.native,
        }
        return json.dumps(whole, ensure_ascii=False)


def source_table_of(text: str) -> SourceTable:
    """The definition of a text of `SourceTable.text`."""
    found = json.loads(text)
    columns = tuple(
        SourceColumn(c["name"], c["type"], c["not_null"], _arrow_type(c["arrow"]), c["value"], c["number"])
        for c in found["columns"]
    )
    key, identity = tuple(found["key"]), tuple(found["identity"])
    return SourceTable(found["schema"], found["name"], columns, key, identity, found["native"])


class Unchanged:
    """A value that the source did not send: in a new row it is that of the old one; in an old row unknown."""

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED = Unchanged()

INSERT, UPDATE, DELETE, TRUNCATE, DEFINE = "i", "u", "d", "t", "x"


class Change(NamedTuple):
    """One change; rows are tuples in the order of the table's columns.

    Args:
        op: INSERT, UPDATE, DELETE; TRUNCATE (of one table, no rows); DEFINE: from here on the table has the
            definition `new` (a `SourceTable`), which is given before the first row in it.
        table: the table's schema and name, as in `SourceTable`.
        old: the old row: None for INSERT; for UPDATE None if the source sent none, which means that the key
            is unchanged.
        new: the new row; None for DELETE.
    """

    op: str
    table: tuple[str, str]
    old: tuple[object, ...] | None
    new: object


class Commit(NamedTuple):
    """The end of a transaction outside.

    Args:
        position: the position behind it, as text: where reading goes on after it.
        commit_us: its commit time there, microseconds since 1970.
        txid: its number or GTID there.
    """

    position: str
    commit_us: int
    txid: str


class Piece(NamedTuple):
    """The changes of a transaction, or some of them.

    Args:
        commit: the end of the transaction; None if it goes on in the next piece. Transactions are never
            mixed, and come in commit order. A piece without changes says that the position has moved.
        bytes: the approximate size of the values.
    """

    changes: Sequence[Change]
    commit: Commit | None
    bytes: int = 0
