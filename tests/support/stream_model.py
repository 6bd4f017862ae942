"""What the model of test_stateful knows of sessions and streams, and how events are read back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any

import duckdb
from local_client import Client
from model_sessions import Program
from table_model import Column, Columns, Effect, Row, Rows, Table, X, cast

from ducktail.engine.values.json_images import value_sql

Change = tuple[str, Row | None, Row | None]  # op, old, new
Values = dict[int, tuple[Any, str]]  # number of a column -> value, type
# The option that leaves out least counts for all streams of a table.
MINIMAL = ("none", "replace", "all")


@dataclass(frozen=True)
class Done:
    """A statement that a transaction has made, with the events that it has by itself.

    Args:
        alters: it is ALTER TABLE, which gives each row these values.
        called: what it has the table told by, if it alters it.
    """

    table: Table
    version: int
    effects: list[Effect]
    changes: list[Change]
    deletes: bool = False
    alters: Callable[[Row], Row] | None = None
    called: str = ""

    def after(self, rows: Rows) -> Rows:
        """The table's rows behind it."""
        if self.alters is None:
            return self.table.after(rows, self.effects)
        return Counter([self.alters(row) for row in rows.elements()])


@dataclass(frozen=True)
class Part:
    """Events of a transaction that is not seen yet, all of one table: one for each LSN.

    Args:
        called: what they call the table.
    """

    table: Table
    version: int
    changes: list[Change]
    called: str


@dataclass(repr=False)
class Session:
    """A session, and what its open transaction has seen and done.

    Args:
        tables, view: the tables as the transaction sees them, and their rows; None before it has looked.
        snapshot: commits and changes of streams when it did.
    """

    client: Client | Program
    in_block: bool = False
    failed: bool = False
    tables: dict[str, Table] = field(default_factory=dict)
    view: dict[str, Rows] | None = None
    snapshot: int = 0
    done: list[Done] = field(default_factory=list)
    holds_lock: bool = False

    def reset(self) -> None:
        self.in_block = self.failed = self.holds_lock = False
        self.tables, self.view, self.done = {}, None, []


@dataclass(frozen=True)
class Told:
    """An event as a stream has told it: the old row, the new one, the key.

    Args:
        names: the key as its JSON text.
    """

    lsn: int
    partition: int
    op: str
    version: int
    txid: int
    commit_time: datetime
    names: str | None
    old: Values | None = None
    new: Values | None = None
    key: Values | None = None

    @classmethod
    def of(cls, event: dict[str, Any], *values: Values | None) -> Told:
        """An event with the columns of ENVELOPE JSON; its rows and its key, where they are known."""
        place = event["lsn"], event["partition"], event["op"], event["schema_version"]
        return cls(*place, event["txid"], event["commit_time"], event["key"], *values)

    def rows(self, before: str) -> list[tuple[str, Values]]:
        """What ENVELOPE CHANGES makes of it."""
        if self.op == "schema":
            return []
        if self.op == "update":
            assert self.new is not None
            post = ("update_postimage", self.new)
            return [post] if before == "none" else [("update_preimage", self.old or {}), post]
        values = self.new if self.op != "delete" else self.key if before == "none" else self.old
        return [(self.op, values or {})]


@dataclass(repr=False)
class Stream:
    """A stream as the model knows it, with every event that it has had.

    Args:
        listed: the numbers of the columns that it carries; None is what the table has.
        filter: its WHERE, which `where` is in Python.
        tombstones: tombstone_retention, where it is compacted.
    """

    name: str
    table: Table
    where: Any = None
    filter: str = ""
    ops: frozenset[str] = frozenset({"insert", "update", "delete"})
    listed: frozenset[int] | None = None
    before: str = "full"
    minimal: str = "replace"
    tombstones: str | None = None
    partition_by: tuple[str, ...] | None = None
    count: int = 1  # of its partitions
    events: list[Told] = field(default_factory=list)
    lasts: dict[int, int] = field(default_factory=dict)  # of each partition, where compaction took events
    seen_lsn: int = 0
    edge_lsn: int = 0
    partitions: dict[object, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return self.name

    @property
    def has_all(self) -> bool:
        """Whether it is the stream of its table that has every event."""
        return self.name.startswith("all")

    @property
    def retained(self) -> list[Told]:
        return [event for event in self.events if event.lsn > self.edge_lsn]

    @property
    def positions(self) -> list[tuple[int, int]]:
        """LSN and partition of each retained event."""
        return [(event.lsn, event.partition) for event in self.retained]

    @property
    def compaction(self) -> list[str]:
        """The options that make it compacted, all but the newest events of its keys at once."""
        if self.tombstones is None:
            return []
        kept = f"tombstone_retention = '{self.tombstones}'"
        return ["compaction = 'key'", "compaction_lag = '0 s'", kept]

    def compacted_to(self, rows: list[tuple[int, int]]) -> int:
        """Compaction has left these events; gives how many have gone, of which none may be needed."""
        left, retained = set(rows), self.retained
        assert rows == [place for place in self.positions if place in left]
        # The last event of each key in each partition stays.
        lasts = {(e.partition, str(e.key)): e for e in retained}
        gone = [e for e in retained if (e.lsn, e.partition) not in left]
        for event in gone:
            last = lasts[event.partition, str(event.key)]
            assert event.op != "schema" and self.tombstones is not None
            assert event is not last or (event.op == "delete" and self.tombstones == "0 s")
        lsns = {event.lsn for event in gone}
        for event in gone:
            self.lasts[event.partition] = max(event.lsn, self.lasts.get(event.partition, 0))
        self.events = [e for e in self.events if e.lsn not in lsns]
        return len(gone)

    def edge(self, partition: int) -> int:
        """The last event of a partition that has been trimmed."""
        mine = (event.lsn for event in self.events if event.partition == partition)
        return max((lsn for lsn in mine if lsn <= self.edge_lsn), default=0)

    def last(self, partition: int) -> int:
        """The last event that a partition has ever had."""
        mine = (event.lsn for event in self.events if event.partition == partition)
        return max([*mine, self.lasts.get(partition, 0)])

    def places(self, columns: Columns) -> tuple[int, ...]:
        """The places of what it carries, among a version's columns."""
        return tuple(i for i, c in enumerate(columns) if self.listed is None or c.number in self.listed)

    def old_places(self, columns: Columns) -> tuple[int, ...]:
        """The same of an old row."""
        return {"full": self.places(columns), "key": self.table.key, "none": ()}[self.before]

    def shows(self, change: Change) -> Change | None:
        """The change as this stream has it."""
        op, old, new = change
        if op == "schema":
            return change
        if op == "snapshot":
            return change if self.where is None or self.where(new) else None
        if self.where is not None:
            after = new is not None and self.where(new)
            before = old is not None and self.where(old)
            if op == "update":
                op = {(True, True): "update", (True, False): "insert", (False, True): "delete"}.get(
                    (after, before), ""
                )
            elif not (after or before):
                op = ""
        if op not in self.ops:
            return None
        return op, old if op != "insert" else None, new if op != "delete" else None

    def carried(self, change: Change, columns: Columns) -> Change:
        """A change with the parts of its rows that the stream's events have."""
        op, old, new = change
        told = None if old is None or self.before == "none" else part(old, self.old_places(columns))
        return op, told, None if new is None else part(new, self.places(columns))

    def changes(self, events: Iterable[Told]) -> list[tuple[Any, ...]]:
        """Events' rows of ENVELOPE CHANGES: the present columns, then type, LSN and partition."""
        columns = [self.table.columns[i] for i in self.places(self.table.columns)]
        return [
            (*(_now(values, column) for column in columns), type_, event.lsn, event.partition)
            for event in events
            for type_, values in event.rows(self.before)
        ]

    @property
    def changes_names(self) -> str:
        """SQL: what ENVELOPE CHANGES is asked for."""
        columns = [self.table.columns[i] for i in self.places(self.table.columns)]
        names = [self.table.x_place() if c.number == X else c.name for c in columns]
        return ", ".join([*names, "_change_type", "_lsn", "_partition"])


def _now(values: Values, column: Column) -> Any:
    """A value of an older version as a column of now has it."""
    value, kind = values.get(column.number, (None, column.kind))
    return value if kind == column.kind else cast(value, column.kind)


class Images:
    """Reads rows from the JSON of a table's events."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._x = [_canonical_of(literal, table.kind) for literal in table.literals]

    def row(self, text: str | None, columns: Sequence[Column]) -> Row | None:
        """A row, or a part of one, which has these columns."""
        if text is None:
            return None
        members = json.loads(text)
        assert list(members) == [column.name for column in columns], text
        values = list(members.values())
        for place, column in enumerate(columns):
            if column.number == X and values[place] is not None:
                values[place] = self._x.index(_canonical(values[place]))
        return tuple(values)

    def told(self, stream: Stream, event: dict[str, Any]) -> Told:
        """An event of a stream."""
        columns = self._table.versions[event["schema_version"]]
        if event["op"] == "schema":
            return Told.of(event)
        new = [columns[i] for i in stream.places(columns)]
        # What the reader of an old row gets depends on `before`; a snapshot has none.
        old = [columns[i] for i in stream.old_places(columns)]
        key = [columns[i] for i in self._table.key]
        return Told.of(
            event,
            self._values(event["before"], old),
            self._values(event["after"], new),
            self._values(event["key"], key),
        )

    def _values(self, text: str | None, columns: list[Column]) -> Values | None:
        row = self.row(text, columns)
        if row is None:
            return None
        return {c.number: (value, c.kind) for c, value in zip(columns, row, strict=True)}


@cache
def _canonical_of(literal: str, kind: str) -> str:
    """The canonical JSON of a literal as the column's type stores it."""
    with duckdb.connect() as connection:
        connection.execute(f"create table one as select ({literal})::{kind} as x")
        columns = "select data_type from duckdb_columns() where table_name = 'one'"
        type_ = connection.execute(columns).fetchall()[0][0]
        text = connection.execute(f"select ({value_sql('x', type_)})::varchar from one").fetchall()[0][0]
    return _canonical(json.loads(text))


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def part(row: Row, places: Sequence[int]) -> Row:
    """The values at these places."""
    return tuple(row[i] for i in places)
