"""What of a table's log has been superseded, and may go: the queries of a compaction pass.

What a stream needs is worked out from its own events, those that its operations and its filter let through:

- Of each key (in each partition) the last one at or before the pass's horizon; a delete only until
  `tombstone_retention` has passed since all that it deletes had gone.
- The last event of each partition, so that a stream's end never goes back.
- What a group has parked or released, and what stands behind a parked key.
- A schema event, always; of a topic an event without a key, and the last one of each producer.

And of the log's rows, whatever the streams make of them, the last of each key stays while any row of the
key does: CHECK STREAM holds it against the table. What is left goes. All of it is in temporary tables of
the pass's cursor. Source: docs/design/compaction.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from ..asking import ask
from ..checks.checking import keys_sql
from ..log.compacted import Range
from ..log.several_logs import event_query
from ..log.table_query import EventQuery
from ..offsets.parked import PARKED, ParkedEvent, behind_sql
from ..streams.captured import Source, TopicLog
from ..streams.catalog import Catalog
from ..streams.streams import Stream
from ..table import RESERVED_PREFIX, TableShape

# Values of one INSERT: its text is parsed as a whole.
LSNS_AT_ONCE = 1000
# The temporary tables of a pass: LSNs of rows that stay and of rows that go, whose events the latter are, and
# the last rows of each view.
PREFIX = f"{RESERVED_PREFIX}_pass"
KEPT, GOING = f"temp.main.{PREFIX}_kept", f"temp.main.{PREFIX}_going"
GONE, LASTS = f"temp.main.{PREFIX}_gone", f"temp.main.{PREFIX}_lasts"


@dataclass(frozen=True, slots=True)
class View:
    """Rows by key, of which the last one stays.

    Args:
        rows: a SELECT of them, with their LSN.
        by: the columns of its key.
        deletes: SQL boolean on a row: it deletes.
        expired: up to which LSN such a last row goes, if nothing else of its key stays.
    """

    rows: str
    by: str
    deletes: str
    expired: int

    def lasts_sql(self) -> str:
        """A SELECT of the last row of each key: its LSN, whether it deletes (`gone`), and the key."""
        # One number for both: a third of the time of arg_max.
        both = f"max(2 * lsn + ({self.deletes})::INTEGER)"
        grouped = f"SELECT {both} AS m, {self.by} FROM ({self.rows}) GROUP BY {self.by}"
        return f"SELECT m // 2 AS lsn, m % 2 = 1 AS gone, {self.by} FROM ({grouped})"


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

    source: Source
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
            for s in self.source.streams
            if self.starts.get(s.stream_id, self.through_lsn) < self.through_lsn
        ]


class Superseded:
    """What a pass keeps and what it takes, once that is worked out; its tables are there until `close`."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, catalog: Catalog, found: Pass) -> None:
        self._cursor = cursor
        self._catalog = catalog
        self._pass = found
        self._views: list[View] = []

    def close(self) -> None:
        """Drop the tables."""
        names = self._execute(
            "SELECT table_name FROM system.main.duckdb_tables() "
            f"WHERE temporary AND starts_with(table_name, '{PREFIX}')"
        )
        for (name,) in names:
            self._execute(f"DROP TABLE temp.main.{name}")

    def work_out(self) -> None:
        """Fill GOING and GONE; under no lock, as events never change."""
        found = self._pass
        for name, columns in (
            (KEPT, "lsn BIGINT"),
            (GOING, "lsn BIGINT"),
            (GONE, "stream_id INTEGER, partition INTEGER, lsn BIGINT"),
        ):
            self._execute(f"CREATE OR REPLACE TEMP TABLE {_bare(name)} ({columns})")
        views = [view for stream in found.streams for view in self._events(stream)]
        for view in views:
            self._execute(f"INSERT INTO {KEPT} SELECT max(lsn) FROM ({view.rows}) GROUP BY partition")
        for stream in found.streams:
            self._keep_aside(stream)
        views += self._last_rows()
        if isinstance(found.source, TopicLog):
            self._keep_published(found.source)
        self._views = views
        for place, view in enumerate(views):
            self._execute(f"CREATE OR REPLACE TEMP TABLE {_bare(LASTS)}{place} AS {view.lasts_sql()}")
            self._execute(
                f"INSERT INTO {KEPT} SELECT lsn FROM {LASTS}{place} WHERE NOT gone OR lsn > {view.expired}"
            )
        self._keep_deletes(views)
        schema = "" if isinstance(found.source, TopicLog) else " AND op <> 'x'"
        rows = " UNION ALL ".join(
            f"SELECT lsn FROM {log} WHERE lsn <= {found.through_lsn}{schema}" for log in found.source.logs
        )
        self._execute(f"INSERT INTO {GOING} SELECT lsn FROM ({rows}) ANTI JOIN {KEPT} USING (lsn)")
        for stream in found.streams:
            for view in self._events(stream):
                self._execute(
                    f"INSERT INTO {GONE} SELECT {stream.stream_id}, partition, lsn FROM ({view.rows}) "
                    f"SEMI JOIN {GOING} USING (lsn)"
                )

    def _keep_deletes(self, views: Sequence[View]) -> None:
        """A delete stays as long as anything else of its key is there: another stream may have kept that, or
        a group, and who was given it is to be given the delete too."""
        for place, view in enumerate(views):
            if view.expired:
                others = f"SELECT {view.by} FROM ({view.rows}) ANTI JOIN {LASTS}{place} USING (lsn)"
                self._execute(f"INSERT INTO {KEPT} {self._expired_sql(place, view, others)}")

    def first_delete(self) -> int | None:
        """The first delete whose time begins anew: it had expired, and what it deletes goes only now."""
        deletes = []
        for place, view in enumerate(self._views):
            going = f"SELECT {view.by} FROM ({view.rows}) SEMI JOIN {GOING} USING (lsn) "
            going += f"ANTI JOIN {LASTS}{place} USING (lsn)"
            if view.expired:
                deletes.append(self._expired_sql(place, view, going))
        if not deletes:
            return None
        (first,) = ask(self._cursor, f"SELECT min(lsn) FROM ({' UNION ALL '.join(deletes)})")
        return None if first is None else int(first)

    def _expired_sql(self, place: int, view: View, keys: str) -> str:
        """A SELECT of the deletes of some keys that have expired."""
        return (
            f"SELECT lsn FROM {LASTS}{place} SEMI JOIN ({keys}) USING ({view.by}) "
            f"WHERE gone AND lsn <= {view.expired}"
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
            events = [f"SELECT count(*) AS n FROM ({view.rows})" for view in self._events(stream)]
            (total,) = ask(self._cursor, f"SELECT sum(n)::BIGINT FROM ({' UNION ALL '.join(events)})")
            (gone,) = ask(self._cursor, f"SELECT count(*) FROM {GONE} WHERE stream_id = {stream.stream_id}")
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

    def _keep_published(self, topic: TopicLog) -> None:
        """Of a topic's log events without a key stay, and each producer's last: it tells his sequence."""
        log, where = topic.log, f"lsn <= {self._pass.through_lsn}"
        self._execute(f"INSERT INTO {KEPT} SELECT lsn FROM {log} WHERE {where} AND key IS NULL")
        self._execute(
            f"INSERT INTO {KEPT} SELECT max(lsn) FROM {log} WHERE {where} AND producer IS NOT NULL "
            "GROUP BY producer"
        )

    def _last_rows(self) -> Iterator[View]:
        """The log's rows, whatever streams make of them: CHECK STREAM looks at the last of each key.

        Of the rows of a stream's snapshot each stream has its own alone: they are looked at with and without.
        """
        found, captured = self._pass, self._pass.source
        if isinstance(captured, TopicLog):
            return
        snapshots = [f" OR stream_id = {s.stream_id}" for s in found.streams if s.snapshot == "initial"]
        expired = min(found.expired.values())
        for mine in ("", *snapshots):
            where = f"lsn <= {found.through_lsn} AND op <> 'x' AND (stream_id IS NULL{mine})"
            by_types: dict[tuple[str, ...], list[str]] = {}
            for version in captured.versions:
                shape = version.table.shape
                by_types.setdefault(_key_types(shape), []).append(
                    f"SELECT lsn, op, {keys_sql(shape)} FROM {version.table.log} WHERE {where}"
                )
            for types, queries in by_types.items():
                yield View(" UNION ALL ".join(queries), _key_names(types), "op = 'd'", expired)

    def _events(self, stream: Stream) -> Iterator[View]:
        """A stream's events in the pass but for schema events; `rows` has their partition as well.

        Keys of different types are never held against each other: a view for each.
        """
        start, through_lsn = self._pass.starts[stream.stream_id], self._pass.through_lsn
        expired = self._pass.expired[stream.stream_id]
        if isinstance(self._pass.source, TopicLog):
            rows = (
                "SELECT lsn, payload IS NULL AS gone_by, partition, key::VARCHAR AS k1 "
                f"FROM {self._pass.source.log} "
                f"WHERE lsn > {start} AND lsn <= {through_lsn} AND key IS NOT NULL"
            )
            yield View(rows, "partition, k1", "gone_by", expired)
            return
        where = f"lsn > {start} AND lsn <= {through_lsn} AND op <> 'x'"
        by_types: dict[tuple[str, ...], list[str]] = {}
        for part in event_query(self._catalog, stream).between(start + 1, through_lsn).parts:
            assert isinstance(part, EventQuery), "of a table"
            shape = part.captured.shape
            by_types.setdefault(_key_types(shape), []).append(
                f"SELECT l.lsn, l.event_op, {part.partition_sql()} AS partition, {keys_sql(shape)} "
                f"FROM ({part.rows(where)}) AS l"
            )
        for types, queries in by_types.items():
            by = f"partition, {_key_names(types)}"
            yield View(" UNION ALL ".join(queries), by, "event_op = 'delete'", expired)

    def _execute(self, sql: str) -> list[tuple[Any, ...]]:
        return self._cursor.execute(sql).fetchall()


def _key_types(shape: TableShape) -> tuple[str, ...]:
    return tuple(shape.stored[shape.place(name)].type for name in shape.primary_key)


def _key_names(types: Sequence[str]) -> str:
    return ", ".join(f"k{number}" for number in range(1, len(types) + 1))


def _bare(name: str) -> str:
    return name.rpartition(".")[2]
