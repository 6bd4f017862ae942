"""What of a table's log has been superseded, and may go: the queries of a compaction pass.

What a stream needs is worked out from its own events, those that its operations and its filter let through:

- Of each key (in each partition) the last one at or before the pass's horizon; a delete only until
  `tombstone_retention` has passed since all that it deletes had gone.
- The last event of each partition, so that a stream's end never goes back.
- What a group has parked or released, and what stands behind a parked key.
- A schema event, always.

And of the log's rows, whatever the streams make of them, the last of each key stays while any row of the
key does: CHECK STREAM holds it against the table. What is left goes. All of it is in temporary tables of
the pass's cursor. Source: docs/design/compaction.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from .asking import ask
from .checking import keys_sql
from .compacted import Range
from .log import EventQuery, event_query
from .parked import PARKED, ParkedEvent, behind_sql
from .streams import Captured, Catalog, Stream
from .table import RESERVED_PREFIX, TableShape

# Values of one INSERT: its text is parsed as a whole.
LSNS_AT_ONCE = 1000
# The temporary tables of a pass: LSNs of rows that stay and of rows that go, and whose events the latter are.
KEPT = f"temp.main.{RESERVED_PREFIX}_kept"
GOING = f"temp.main.{RESERVED_PREFIX}_going"
GONE = f"temp.main.{RESERVED_PREFIX}_gone"
LASTS = f"temp.main.{RESERVED_PREFIX}_lasts"


@dataclass(frozen=True, slots=True)
class Pass:
    """What a pass over one table is about; it goes on while all of it stands.

    Args:
        through_lsn: its horizon.
        ranges: the table's, that of this pass among them.
        starts: stream id -> the LSN after which its events are looked at, of the compacted streams.
        expired: stream id -> the LSN up to which its deletes go.
        aside: stream id -> the events that its groups have parked or released.
    """

    captured: Captured
    through_lsn: int
    ranges: tuple[Range, ...]
    starts: Mapping[int, int]
    expired: Mapping[int, int]
    aside: Mapping[int, frozenset[ParkedEvent]]

    @property
    def streams(self) -> list[Stream]:
        """The compacted streams that have events there."""
        return [
            s
            for s in self.captured.streams
            if self.starts.get(s.stream_id, self.through_lsn) < self.through_lsn
        ]


class Superseded:
    """What a pass keeps and what it takes, once that is worked out; its tables are there until `close`."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, catalog: Catalog, found: Pass) -> None:
        self._cursor = cursor
        self._catalog = catalog
        self._pass = found

    def close(self) -> None:
        """Drop the tables."""
        for name in (KEPT, GOING, GONE, LASTS):
            self._execute(f"DROP TABLE IF EXISTS {name}")

    def work_out(self) -> None:
        """Fill GOING and GONE; under no lock, as events never change."""
        found = self._pass
        for name, columns in (
            (KEPT, "lsn BIGINT"),
            (GOING, "lsn BIGINT"),
            (GONE, "stream_id INTEGER, partition INTEGER, lsn BIGINT"),
        ):
            self._execute(f"CREATE OR REPLACE TEMP TABLE {_bare(name)} ({columns})")
        for stream in found.streams:
            for events, keys in self._events(stream):
                last = _last(events, f"partition, {keys}", "event_op = 'delete'")
                self._execute(
                    f"INSERT INTO {KEPT} SELECT lsn FROM ({last}) "
                    f"WHERE NOT gone OR lsn > {found.expired[stream.stream_id]} "
                    f"UNION ALL SELECT max(lsn) FROM ({events}) GROUP BY partition"
                )
            self._keep_aside(stream)
        self._keep_last_rows()
        rows = " UNION ALL ".join(
            f"SELECT lsn FROM {log} WHERE lsn <= {found.through_lsn} AND op <> 'x'"
            for log in found.captured.logs
        )
        self._execute(f"INSERT INTO {GOING} SELECT lsn FROM ({rows}) ANTI JOIN {KEPT} USING (lsn)")
        for stream in found.streams:
            for events, _ in self._events(stream):
                self._execute(
                    f"INSERT INTO {GONE} SELECT {stream.stream_id}, partition, lsn FROM ({events}) "
                    f"SEMI JOIN {GOING} USING (lsn)"
                )

    def ends(self, rows: int) -> list[int]:
        """The last LSN of each step that takes so many rows."""
        numbered = f"SELECT lsn, (row_number() OVER (ORDER BY lsn) - 1) // {rows} AS n FROM {GOING}"
        found = self._execute(f"SELECT max(lsn) FROM ({numbered}) GROUP BY n ORDER BY 1")
        return [lsn for (lsn,) in found]

    def left(self) -> dict[int, float]:
        """Stream id -> which part of its events up to the horizon stays."""
        parts = {}
        for stream in self._pass.streams:
            events = [f"SELECT count(*) AS n FROM ({events})" for events, _ in self._events(stream)]
            (total,) = ask(self._cursor, f"SELECT sum(n)::BIGINT FROM ({' UNION ALL '.join(events)})")
            (gone,) = ask(
                self._cursor, f"SELECT count(*) FROM {GONE} WHERE stream_id = {stream.stream_id}"
            )
            parts[stream.stream_id] = 1 - gone / max(1, total)
        return parts

    def _keep_aside(self, stream: Stream) -> None:
        """What is parked stays, with what stands behind it: it is given when it is released."""
        found = self._pass
        aside = found.aside[stream.stream_id]
        lsns = sorted(event.lsn for event in aside)
        for first in range(0, len(lsns), LSNS_AT_ONCE):
            some = lsns[first : first + LSNS_AT_ONCE]
            self._execute(f"INSERT INTO {KEPT} VALUES {', '.join(f'({lsn})' for lsn in some)}")
        heads = [
            (event.partition, event.lsn, event.key)
            for event in aside
            if event.state == PARKED and event.by_key and event.key is not None
        ]
        behind = behind_sql(heads)
        if not behind:
            return
        first = max(found.starts[stream.stream_id], min(lsn for _, lsn, _ in heads))
        query = event_query(self._catalog, stream).between(first + 1, found.through_lsn)
        events = query.sql(f"lsn > {first} AND lsn <= {found.through_lsn}", "false")
        self._execute(f"INSERT INTO {KEPT} SELECT lsn FROM ({events}) WHERE {behind}")

    def _keep_last_rows(self) -> None:
        """The last row of each key stays in the log, whatever streams show of it.

        Of the rows of a stream's snapshot each stream has its own alone: they are looked at with and without.
        """
        found = self._pass
        snapshots = [f" OR stream_id = {s.stream_id}" for s in found.streams if s.snapshot == "initial"]
        expired = min(found.expired.values())
        for mine in ("", *snapshots):
            for rows, keys in self._rows(f"(stream_id IS NULL{mine})"):
                last = _last(rows, keys, "op = 'd'")
                self._execute(f"CREATE OR REPLACE TEMP TABLE {_bare(LASTS)} AS {last}")
                self._execute(f"INSERT INTO {KEPT} SELECT lsn FROM {LASTS} WHERE NOT gone OR lsn > {expired}")
                if expired:
                    # A delete goes where nothing else of its key is kept.
                    kept = f"SELECT {keys} FROM ({rows}) SEMI JOIN {KEPT} USING (lsn)"
                    self._execute(
                        f"INSERT INTO {KEPT} SELECT lsn FROM {LASTS} SEMI JOIN ({kept}) USING ({keys}) "
                        f"WHERE gone AND lsn <= {expired}"
                    )

    def _events(self, stream: Stream) -> Iterator[tuple[str, str]]:
        """A stream's events in the pass but for schema events: lsn, event_op, partition, the key's columns.

        Keys of different types are never held against each other: one SELECT for each, and the names of those
        columns.
        """
        start, through_lsn = self._pass.starts[stream.stream_id], self._pass.through_lsn
        where = f"lsn > {start} AND lsn <= {through_lsn} AND op <> 'x'"
        by_types: dict[tuple[str, ...], list[str]] = {}
        for part in event_query(self._catalog, stream).between(start + 1, through_lsn).parts:
            assert isinstance(part, EventQuery), "only a table is compacted"
            shape = part.captured.shape
            by_types.setdefault(_key_types(shape), []).append(
                f"SELECT l.lsn, l.event_op, {part.partition_sql()} AS partition, {keys_sql(shape)} "
                f"FROM ({part.rows(where)}) AS l"
            )
        for types, queries in by_types.items():
            yield " UNION ALL ".join(queries), _key_names(types)

    def _rows(self, mine: str) -> Iterator[tuple[str, str]]:
        """The log's rows in the pass: lsn, op and the key's columns; see `_events`."""
        by_types: dict[tuple[str, ...], list[str]] = {}
        for version in self._pass.captured.versions:
            shape = version.table.shape
            by_types.setdefault(_key_types(shape), []).append(
                f"SELECT lsn, op, {keys_sql(shape)} FROM {version.table.log} "
                f"WHERE lsn <= {self._pass.through_lsn} AND op <> 'x' AND {mine}"
            )
        for types, queries in by_types.items():
            yield " UNION ALL ".join(queries), _key_names(types)

    def _execute(self, sql: str) -> list[tuple[Any, ...]]:
        return self._cursor.execute(sql).fetchall()


def _key_types(shape: TableShape) -> tuple[str, ...]:
    return tuple(shape.stored[shape.place(name)].type for name in shape.primary_key)


def _key_names(types: Sequence[str]) -> str:
    return ", ".join(f"k{number}" for number in range(1, len(types) + 1))


def _last(rows: str, by: str, deletes: str) -> str:
    """The last row of each group: its LSN, whether it deletes (`gone`), and `by`."""
    # One number for both: a third of the time of arg_max.
    both = f"max(2 * lsn + ({deletes})::INTEGER)"
    grouped = f"SELECT {both} AS m, {by} FROM ({rows}) GROUP BY {by}"
    return f"SELECT m // 2 AS lsn, m % 2 = 1 AS gone, {by} FROM ({grouped})"


def _bare(name: str) -> str:
    return name.rpartition(".")[2]
