"""A connector: the client of one database outside; its tables, a copy of their rows, and changes after it.

A connector is the client of one database outside: PostgreSQL or MySQL. All calls block and are made on the
source's own thread; `close` may be called from any thread, and ends a call in progress with an error.

Values are given as text or as plain Python values; a column says which (`SourceColumn.arrow`), and how SQL
turns them into its type (`SourceColumn.value`). Source: docs/design/sources.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

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
    fill: str = ""

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
            its own; it is kept with the definition.
    """

    schema: str
    name: str
    columns: tuple[SourceColumn, ...]
    key: tuple[str, ...]
    identity: tuple[bool, ...]
    native: str = ""

    @property
    def shown(self) -> str:
        return f"{self.schema}.{self.name}"


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


class Copy(ABC):
    """A consistent view of the tables as of one position; a context."""

    position: str

    @abstractmethod
    def rows(self, table: SourceTable) -> Iterator[Sequence[tuple[object, ...]]]:
        """The rows of a table in blocks of at most PIECE_ROWS, in the order of its columns."""

    @abstractmethod
    def close(self) -> None:
        """End the view."""

    def __enter__(self) -> Copy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Changes(ABC):
    """The changes after a position."""

    @abstractmethod
    def next(self, timeout_s: float) -> Piece | None:
        """The next piece; None if there is none within the time."""

    @abstractmethod
    def confirm(self, position: str) -> None:
        """Everything up to a position is durable here; sent to the source now or with the next message."""

    @abstractmethod
    def behind(self) -> tuple[int | None, str]:
        """The bytes of the source's log that are not read yet (None if unknown), and the source's own end."""

    @abstractmethod
    def close(self) -> None:
        """End reading; from any thread."""


class Connector(ABC):
    """The client of one source.

    Errors of all calls are `DucktailError`s with a SQLSTATE of their own and a hint; a message never contains
    a password. `SourceUnavailable` (08006) is worth another attempt; every other error wants a user.
    """

    @abstractmethod
    def describe(self) -> Sequence[SourceTable]:
        """The selected tables; checks that the source can be read: settings, rights, keys, types."""

    @abstractmethod
    def begin(self) -> Copy:
        """Make what the source needs (slot, publication), afresh, and a copy as of its first position."""

    @abstractmethod
    def copy(self) -> Copy:
        """Another copy, as of now, while what `begin` made goes on."""

    @abstractmethod
    def changes(self, tables: Sequence[SourceTable], position: str) -> Changes:
        """The changes after a position, of tables whose definitions are known as of it.

        Raises:
            SourceLost: the source no longer has them.
        """

    @abstractmethod
    def remove(self) -> None:
        """Remove what `begin` made; nothing to remove is no error."""

    @abstractmethod
    def close(self) -> None:
        """Close all connections; from any thread."""
