"""Feeds: the databases outside whose changes streams carry, as frozen values of the catalog.

A stream with a feed is a stream on tables of ducktail's own, one for each table outside, which nobody but the
feed writes. A feed adds where the changes come from, the definitions of the tables there, and how far their
changes are stored here. The address contains secrets, and is shown nowhere. Source: docs/sources.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..quoting import ident, literal
from ..schema import FEEDS, SCHEMA
from .source_tables import SourceTable, source_table_of
from .streams import key_of

POSTGRES, MYSQL = "postgres", "mysql"
# A feed runs, was paused by a user, or has stopped by itself, for a reason that needs a user.
RUNNING, PAUSED, STOPPED = "running", "paused", "stopped"

TABLES = f"{SCHEMA}.feed_tables"
POSITIONS = f"{SCHEMA}.feed_positions"
COPIES = f"{SCHEMA}.feed_copies"
MIRRORS = f"{SCHEMA}.mirrors"


@dataclass(frozen=True, slots=True)
class Selection:
    """The tables of a feed, as CREATE STREAM names them.

    Args:
        kind: 'tables', 'schema' or 'publication'.
        names: the tables' names, each by schema (or None) and name; the name of the schema or publication.
    """

    kind: str
    names: tuple[tuple[str | None, str], ...]

    def text(self) -> str:
        """The selection as JSON."""
        return json.dumps([self.kind, [list(name) for name in self.names]])


@dataclass(frozen=True, slots=True)
class AskedCopy:
    """A copy of a table's present rows that was asked for, and is not stored yet.

    Args:
        number: the transaction that has asked.
        condition: a predicate on the rows that are copied; None for all.
        joins: True if the table was added to the stream: its changes are stored from the copy's position on.
    """

    number: int
    condition: str | None = None
    joins: bool = False


@dataclass(frozen=True, slots=True)
class FeedTable:
    """A table outside and its copy here.

    Args:
        table_id: the number of the captured table that has its rows.
        table: its definition there, as of the feed's position.
        copied_at: the position as of which its rows were copied; None before that.
        rows: the number of copied rows; None before that.
        asked: the copy that is to be taken next.
    """

    table_id: int
    table: SourceTable
    copied_at: str | None = None
    rows: int | None = None
    asked: AskedCopy | None = None

    @property
    def joins(self) -> bool:
        """True if it was added and is not copied yet: its changes are not stored so far."""
        return self.asked is not None and self.asked.joins


@dataclass(frozen=True, slots=True)
class Mirror:
    """A table of the user's that follows one of a feed.

    Args:
        table_id: the number of the captured table that has the same rows.
        schema, name: its name.
    """

    stream_id: int
    table_id: int
    schema: str
    name: str

    @property
    def key(self) -> tuple[str, ...]:
        """Schema and name, folded."""
        return key_of(self.schema, self.name)

    @property
    def qualified(self) -> str:
        """The name as SQL."""
        return f"{ident(self.schema)}.{ident(self.name)}"

    def qualified_in(self, database: str) -> str:
        """The name as SQL with DuckDB's name of the database: a temporary table may have the name too."""
        return f"{ident(database)}.{self.qualified}"

    def delete_sql(self) -> str:
        """The DELETE of its row."""
        return (
            f"DELETE FROM {MIRRORS} WHERE schema_name = {literal(self.schema)} "
            f"AND table_name = {literal(self.name)}"
        )


@dataclass(frozen=True, slots=True)
class Feed:
    """The feed of a stream.

    Args:
        stream_id: its stream.
        uid: names what it makes at the source.
        kind: POSTGRES or MYSQL.
        address: where the source is: a conninfo or a URL, which may contain a password.
        shown: the address without secrets.
        options: its options; an absent one has its default.
        tables: its tables, in the stream's order.
        state: RUNNING, PAUSED or STOPPED.
        reason: the reason of a stop; None otherwise.
        changed_us: the time of the last change of its state, microseconds since 1970.
        position: everything before it is stored here; None before the initial copy has begun.
        identity: identifies the source, where the connector can tell.
    """

    stream_id: int
    uid: str
    kind: str
    address: str = field(repr=False)
    shown: str
    selection: Selection
    options: Mapping[str, str | int | None]
    tables: tuple[FeedTable, ...]
    state: str = RUNNING
    reason: str | None = None
    changed_us: int = 0
    position: str | None = None
    identity: str | None = None

    @property
    def slot(self) -> str:
        """The name of what it makes at the source: a replication slot, a publication."""
        return str(self.options.get("slot") or f"ducktail_{self.uid}")

    @property
    def copies(self) -> bool:
        """True if the present rows of the tables are copied first."""
        return self.options.get("snapshot") == "initial"

    @property
    def agenda(self) -> tuple[tuple[int, AskedCopy | None], ...]:
        """Its tables and the copies that were asked for: what statements change while it is read."""
        return tuple((table.table_id, table.asked) for table in self.tables)

    def table_of(self, table_id: int) -> FeedTable | None:
        """Its table with this number."""
        return next((table for table in self.tables if table.table_id == table_id), None)

    def with_table(self, changed: FeedTable) -> Feed:
        """The feed with another state of one of its tables."""
        tables = (changed if t.table_id == changed.table_id else t for t in self.tables)
        return replace(self, tables=tuple(tables))

    # Rows in the database.

    def insert_sql(self) -> list[str]:
        """The INSERTs of its rows."""
        values = (
            str(self.stream_id),
            *map(literal, (self.uid, self.kind, self.address, self.shown, self.selection.text())),
            literal(json.dumps(dict(self.options))),
            literal(self.state),
            "NULL" if self.reason is None else literal(self.reason),
            f"make_timestamptz({self.changed_us})",
        )
        return [
            f"INSERT INTO {SCHEMA}.{FEEDS} VALUES ({', '.join(values)})",
            f"INSERT INTO {POSITIONS} VALUES ({self.stream_id}, NULL, "
            f"{'NULL' if self.identity is None else literal(self.identity)})",
            *(self.insert_table_sql(table, place) for place, table in enumerate(self.tables)),
        ]

    def insert_table_sql(self, table: FeedTable, place: int) -> str:
        """The INSERT of the row of one of its tables."""
        copied = "NULL" if table.copied_at is None else literal(table.copied_at)
        rows = "NULL" if table.rows is None else str(table.rows)
        return (
            f"INSERT INTO {TABLES} VALUES ({self.stream_id}, {table.table_id}, {place}, "
            f"{literal(table.table.text())}, {copied}, {rows})"
        )

    def set_selection_sql(self) -> str:
        """The UPDATE of its selection."""
        return (
            f"UPDATE {SCHEMA}.{FEEDS} SET selection = {literal(self.selection.text())} "
            f"WHERE stream_id = {self.stream_id}"
        )

    def set_state_sql(self) -> str:
        """The UPDATE of its state, and of everything that ALTER may change."""
        reason = "NULL" if self.reason is None else literal(self.reason)
        return (
            f"UPDATE {SCHEMA}.{FEEDS} SET state = {literal(self.state)}, reason = {reason}, "
            f"address = {literal(self.address)}, options = {literal(json.dumps(dict(self.options)))}, "
            f"changed_at = make_timestamptz({self.changed_us}) WHERE stream_id = {self.stream_id}"
        )


def set_position_sql(stream_id: int, position: str, identity: str | None) -> str:
    """The UPDATE of a feed's position."""
    told = "NULL" if identity is None else literal(identity)
    return (
        f"UPDATE {POSITIONS} SET position = {literal(position)}, identity = {told} "
        f"WHERE stream_id = {stream_id}"
    )


def set_table_sql(stream_id: int, table: FeedTable) -> str:
    """The UPDATE of the row of a feed's table."""
    copied = "NULL" if table.copied_at is None else literal(table.copied_at)
    rows = "NULL" if table.rows is None else str(table.rows)
    return (
        f"UPDATE {TABLES} SET definition = {literal(table.table.text())}, copied_at = {copied}, "
        f"copied_rows = {rows} WHERE stream_id = {stream_id} AND table_id = {table.table_id}"
    )


def asked_copy_sql(stream_id: int, table_id: int, asked: AskedCopy | None) -> list[str]:
    """The statements that store the copy that is asked for of a table; None if there is none any more."""
    gone = f"DELETE FROM {COPIES} WHERE stream_id = {stream_id} AND table_id = {table_id}"
    if asked is None:
        return [gone]
    condition = "NULL" if asked.condition is None else literal(asked.condition)
    values = f"{stream_id}, {table_id}, {asked.number}, {condition}, {asked.joins}"
    return [gone, f"INSERT INTO {COPIES} VALUES ({values})"]


SELECT = (
    "SELECT stream_id, uid, kind, address, shown, selection, options, state, reason, epoch_us(changed_at), "
    f"position, identity FROM {SCHEMA}.{FEEDS} JOIN {POSITIONS} USING (stream_id) ORDER BY stream_id"
)
SELECT_MIRRORS = f"SELECT stream_id, table_id, schema_name, table_name FROM {MIRRORS}"
SELECT_TABLES = (
    "SELECT t.stream_id, t.table_id, definition, copied_at, copied_rows, number, condition, joins "
    f"FROM {TABLES} AS t LEFT JOIN {COPIES} AS c ON c.stream_id = t.stream_id AND c.table_id = t.table_id "
    "ORDER BY t.stream_id, place"
)


def feeds_of(rows: list[tuple[Any, ...]], table_rows: list[tuple[Any, ...]]) -> dict[int, Feed]:
    """The feeds of the rows of SELECT and SELECT_TABLES, by the numbers of their streams."""
    found = {}
    for row in rows:
        stream_id, uid, kind, address, shown, selection, options, state, reason, changed_us, position, who = (
            row
        )
        tables = tuple(
            FeedTable(
                table_id,
                source_table_of(text),
                copied_at,
                copied,
                None if number is None else AskedCopy(number, condition, joins),
            )
            for of, table_id, text, copied_at, copied, number, condition, joins in table_rows
            if of == stream_id
        )
        selected_by, names = json.loads(selection)
        found[stream_id] = Feed(
            stream_id,
            uid,
            kind,
            address,
            shown,
            Selection(selected_by, tuple((schema, name) for schema, name in names)),
            json.loads(options),
            tables,
            state,
            reason,
            changed_us,
            position,
            who,
        )
    return found
