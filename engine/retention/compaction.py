"""Compaction: of the events older than `compaction_lag`, a stream keeps the last one of each key.

It works on the log of a table or a topic, as retention does, and removes the rows that no stream over it
needs. Its horizon, the last LSN that it processes, is the least of: for each compacted stream, the last event
committed `compaction_lag` ago; for each other stream, its edge, because it shows all retained events; and the
ends of all open transactions and reads.

The rows that a stream needs are found from its own events, those that pass its operations and filter:

- The last event of each key (in each partition) at or before the pass's horizon; a delete only until
  `tombstone_retention` has passed since the events that it deletes were removed.
- The last event of each partition, so that a stream's end never goes back.
- The events that a group has parked or released, and those behind a parked key.
- All schema events; in a topic, events without a key and the last event of each producer.

In any case the last row of each key stays in the log while any row of the key does, because CHECK STREAM
compares it with the table. All other rows are removed.

A pass first collects the rows to remove, without any lock, in temporary tables of its cursor. Then, each in a
transaction under the writer lock: the row-hash sum is carried over the range; the range is recorded; rows are
deleted, `STEP_ROWS` at a time, the oldest first, so that no delete is removed before the rows that it
deletes; the range is finished. After a kill between two steps, the next pass removes the rest, and the counts
of removed rows are right. No compacted event stays in the buffers. Source: docs/design/compaction.md.
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import duckdb

from ..catalog.captured_tables import Source, TopicLog
from ..catalog.catalog import Catalog
from ..catalog.streams import Bookmark, Stream
from ..checks.check import keys_sql
from ..checks.row_sums import fold_statement
from ..counter import ThreadSafeCounter
from ..duck.cursors import ask, ask_maybe, in_one_transaction
from ..duck.table_shape import RESERVED_PREFIX, TableShape
from ..errors import DataCorrupted
from ..groups.parked import PARKED, ParkedEvent, behind_sql
from ..log import deleted_ranges
from ..log.deleted_ranges import Range
from ..log.queries import EventQuery, event_query
from ..parts import Parts
from ..quoting import literal
from ..schema import SCHEMA
from ..server_log import facts
from ..waiting import drive
from .steps import Steps

logger = logging.getLogger(__name__)

# Rows of the log that one step deletes, and LSNs over which one step carries the row-hash sum.
STEP_ROWS, STEP_LSNS = 20_000, 100_000
# Bookmarks of one UPDATE: its text is parsed as a whole.
BOOKMARKS_AT_ONCE = 100
# The longest time from the assignment of a commit's time to its visibility in a snapshot, in microseconds.
COMMIT_US = 1_000_000
# A pass examines all events older than its horizon. It is worth the cost once the events since the last pass
# are this fraction of the rest, and otherwise at most once in a `compaction_lag`.
DIRTY_SHARE = 4
# Least interval of passes, in durations of the last one: a log of many keys with few new events is as
# expensive as any other, and a `compaction_lag` may be a second.
REST = 50
# Values of one INSERT: its text is parsed as a whole.
LSNS_AT_ONCE = 1000
# The temporary tables of a pass: LSNs of rows that stay, LSNs of rows that are removed, the streams whose
# events the latter are, and the last rows of each view.
PREFIX = f"{RESERVED_PREFIX}_pass"
KEPT, GOING = f"temp.main.{PREFIX}_kept", f"temp.main.{PREFIX}_going"
GONE, LASTS = f"temp.main.{PREFIX}_gone", f"temp.main.{PREFIX}_lasts"


class Compaction:
    """The compaction passes of one database.

    Args:
        find_first: finds the first retained events of a stream's partitions.
    """

    def __init__(self, database: Parts, steps: Steps, find_first: Callable[[Stream], None]) -> None:
        self._database = database
        self._steps = steps
        self._find_first = find_first
        self._done: dict[int, dict[int, int]] = {}  # table id -> `Pass.expired` of the last complete pass
        self._rests: dict[int, float] = {}  # table id -> time before which few new events do not cause a pass
        self.removed = ThreadSafeCounter()  # rows of logs

    def look(self, source: Source) -> None:
        """Compact the log of a table or a topic, if a pass is due.

        Raises:
            LockNotAvailable: a transaction holds the writer lock for too long.
            duckdb.Error: DuckDB failed.
        """
        found = self._due(source)
        if found is None:
            return
        # The buffers count published events, and removed events must be counted there first.
        drive(self._database.publisher.wait_published(found.through_lsn))
        begun_s = self._database.clock.monotonic_s()
        superseded = Superseded(self._steps.cursor, self._database.catalog, found)
        try:
            superseded.work_out()
            first = superseded.first_delete()
            if first is not None:
                found = replace(
                    found,
                    ranges=deleted_ranges.begun_again(found.ranges, first),
                    expired={number: min(lsn, first - 1) for number, lsn in found.expired.items()},
                )
            if self._remove(found, superseded):
                self._done[source.table_id] = dict(found.expired)
        finally:
            superseded.close()
            now_s = self._database.clock.monotonic_s()
            self._rests[source.table_id] = now_s + REST * (now_s - begun_s)
        for stream in found.streams:
            present = self._database.catalog.stream_by_id(stream.stream_id)
            if present is not None:
                self._find_first(present)

    # Planning a pass.

    def _due(self, source: Source) -> Pass | None:
        """The subject of a pass; None if no pass is due."""
        streams = [stream for stream in source.streams if stream.compaction == "key"]
        database, cursor, table_id = self._database, self._steps.cursor, source.table_id
        buffers = [database.buffers.get(stream.stream_id) for stream in source.streams]
        # A log that is damaged, or differs from its table, is not compacted until it is repaired.
        if not streams or table_id in database.unlike:
            return None
        if any(buffer is None or buffer.failure is not None for buffer in buffers):
            return None
        if isinstance(source, TopicLog) and database.cluster.placement.epoch:
            return None  # Its partitions may move with their events.
        ranges, times = deleted_ranges.read_ranges(cursor, table_id), database.commits.times
        now_us = times.steady_us()
        done = deleted_ranges.through(ranges)
        lag_us = max(stream.compaction_lag_us for stream in streams)
        begun = (entry.transaction_us for entry in database.sessions.glimpse())
        # A transaction reads up to its snapshot, which must include the event that supersedes another.
        snapshots_us = (us - COMMIT_US for us in begun if us is not None)
        before_us = min([times.expired_before_us(lag_us), *snapshots_us])
        # So does a read of a stream. A reader further behind may miss deletes as well.
        since_us = {s.stream_id: now_us - s.tombstone_retention_us - s.compaction_lag_us for s in streams}
        end_lsn = database.buffers.running_scans.least_end(since_us)
        (through_lsn,) = ask(
            cursor,
            f"SELECT coalesce(max(last_lsn), 0) FROM {SCHEMA}.commits WHERE last_lsn > {done} "
            f"AND commit_time <= make_timestamptz({max(0, before_us)})"
            + ("" if end_lsn is None else f" AND last_lsn <= {end_lsn}"),
        )
        through_lsn = max(done, through_lsn)
        for stream in source.streams:
            if stream.compaction != "key":
                through_lsn = min(through_lsn, self._start(stream))
        if through_lsn < done:
            return None  # A stream that is no longer compacted needs the remaining rows of the ranges.
        if not through_lsn or through_lsn > database.commits.last_lsn:
            return None  # A COMMIT has not returned yet: the next pass decides.
        expired = {
            stream.stream_id: deleted_ranges.expired_through(ranges, now_us - stream.tombstone_retention_us)
            for stream in streams
        }
        if not self._is_worth(source, ranges, through_lsn, now_us - lag_us, expired):
            return None
        return Pass(
            source,
            through_lsn,
            deleted_ranges.extended(ranges, through_lsn),
            {stream.stream_id: self._start(stream) for stream in streams},
            expired,
            {stream.stream_id: self._aside(stream) for stream in streams},
        )

    def _is_worth(
        self,
        source: Source,
        ranges: Sequence[Range],
        through_lsn: int,
        lately_us: int,
        expired: Mapping[int, int],
    ) -> bool:
        done, dirty, clean = deleted_ranges.through(ranges), 0, 0
        for log in source.logs:
            sql = f"SELECT count(*) FILTER (lsn > {done}), count(*) FILTER (lsn <= {done}) FROM {log}"
            more, rest = ask(self._steps.cursor, f"{sql} WHERE lsn <= {through_lsn}")
            dirty, clean = dirty + more, clean + rest
        before, last_us = self._done.get(source.table_id), ranges[-1].compacted_us if ranges else None
        # The last pass was incomplete or its end is unknown, or there are expired deletes.
        if before is None or last_us is None:
            return bool(dirty or clean)
        if dirty * DIRTY_SHARE >= max(clean, 1):
            return True
        if self._database.clock.monotonic_s() < self._rests.get(source.table_id, 0):
            return False
        if any(lsn > before.get(number, 0) for number, lsn in expired.items()):
            return bool(clean)
        return bool(dirty) and last_us <= lately_us

    def _start(self, stream: Stream) -> int:
        """The LSN after which a stream retains its events."""
        return max(stream.created_lsn, self._database.buffers[stream.stream_id].edge_lsn)

    def _aside(self, stream: Stream) -> frozenset[ParkedEvent]:
        """The events that the groups of a stream have parked or released."""
        with self._database.catalog.mutex:
            groups = self._database.catalog.groups_of(stream.stream_id)
        parked = [self._database.parked.get(group.group_id) for group in groups]
        return frozenset(event for found in parked if found is not None for event in found.events.values())

    def _stands(self, found: Pass) -> bool:
        """True if table and streams are unchanged and no further event is parked; under the writer lock."""
        table_id = found.source.table_id
        present = self._database.catalog.source_by_id(table_id)
        if present != found.source or table_id in self._database.unlike:
            return False
        return all(self._aside(stream) <= found.aside[stream.stream_id] for stream in found.streams)

    # Removing rows.

    def _remove(self, found: Pass, superseded: Superseded) -> bool:
        """Delete the superseded rows step by step; returns True if all are deleted."""
        ends, left = superseded.ends(STEP_ROWS), superseded.left()
        is_new = found.ranges[-1].compacted_us is None
        ranges = self._record(found) if ends or is_new else found.ranges
        low, rows = 0, 0
        for high in ends if ranges else ():
            if self._steps.stop.is_set():
                return False
            counted = self._step(found, ranges, low, high)
            if counted is None:
                return False
            rows += sum(after.removed - before.removed for before, after in zip(ranges, counted, strict=True))
            ranges, low = counted, high
        return bool(ranges) and self._finish(found, ranges, left, rows)

    def _record(self, found: Pass) -> tuple[Range, ...]:
        """Record that the pass's range is being compacted; returns the ranges, () if the pass is void."""
        if not self._carry_sum(found):
            return ()
        statements = deleted_ranges.rows_sql(found.source.table_id, found.ranges)
        with self._steps.locked():
            if not self._stands(found):
                return ()
            # A rebuild of the buffers from the log must take it into account.
            with self._database.buffers.edges_lock:
                self._steps.transaction(statements)
                for stream in found.streams:
                    self._database.buffers[stream.stream_id].compact(found.through_lsn)
        return found.ranges

    def _carry_sum(self, found: Pass) -> bool:
        """Add the rows to the table's row-hash sum before their deletion; False if the pass is void."""
        captured, cursor = found.source, self._steps.cursor
        if isinstance(captured, TopicLog):
            return True
        kept = f"SELECT lsn FROM {SCHEMA}.row_sums WHERE table_id = {captured.table_id}"
        while (row := ask_maybe(cursor, kept)) is not None and row[0] < found.through_lsn:
            after = f"WHERE lsn > {row[0]}"
            lsns = " UNION ALL ".join(f"SELECT min(lsn) AS lsn FROM {log} {after}" for log in captured.logs)
            (first,) = ask(cursor, f"SELECT min(lsn) FROM ({lsns})")
            last = found.through_lsn if first is None else min(first + STEP_LSNS - 1, found.through_lsn)
            with self._steps.locked():
                if not self._stands(found):
                    return False
                self._steps.transaction([fold_statement(captured, last)])
        return True

    def _step(self, found: Pass, ranges: Sequence[Range], low: int, high: int) -> tuple[Range, ...] | None:
        """Delete superseded rows of a range of LSNs, whose first is excluded; None if the pass is void."""
        window = f"lsn > {low} AND lsn <= {high}"
        going = f"lsn IN (SELECT lsn FROM {GOING} WHERE {window})"
        removed = [
            ask(
                self._steps.cursor,
                f"SELECT count(*) FROM {GOING} WHERE {window} AND lsn BETWEEN {r.first_lsn} AND {r.last_lsn}",
            )[0]
            for r in ranges
        ]
        # Fetched before the lock is taken: for each stream and partition, the LSNs of its removed events.
        gone: dict[int, dict[int, list[int]]] = {}
        for stream_id, partition, lsns in self._execute(
            f"SELECT stream_id, partition, list(lsn ORDER BY lsn) FROM {GONE} WHERE {window} GROUP BY ALL"
        ):
            gone.setdefault(stream_id, {})[partition] = lsns
        after = deleted_ranges.counted(ranges, removed)
        with self._steps.locked():
            if not self._stands(found):
                return None
            bookmarks = list(self._bookmarks(gone))
            with self._database.buffers.edges_lock:
                with in_one_transaction(self._steps.cursor):
                    deleted = 0
                    for log in found.source.logs:
                        deleted += ask(self._steps.cursor, f"DELETE FROM {log} WHERE {window} AND {going}")[0]
                    if deleted != sum(removed):
                        raise DataCorrupted(
                            f"compacting the log of {found.source.shown_name}: {deleted} rows are there of "
                            f"{sum(removed)} that go"
                        )
                    for sql in (*deleted_ranges.rows_sql(found.source.table_id, after), *_put_sql(bookmarks)):
                        self._execute(sql)
                for stream_id, going_lsns in gone.items():
                    counts = {partition: len(lsns) for partition, lsns in going_lsns.items()}
                    self._database.buffers[stream_id].compacted(counts)
            with self._database.catalog.mutex:
                self._database.catalog.bookmarks.update({mark.key: mark for mark in bookmarks})
        self.removed.add(deleted)
        for stream_id in gone:
            # Waiting readers have counted events by their former numbers.
            self._database.polls.look_again(stream_id)
        return after

    def _bookmarks(self, gone: Mapping[int, Mapping[int, Sequence[int]]]) -> Iterator[Bookmark]:
        """The bookmarks behind which events are removed, with their new counts; under the writer lock."""
        for stream_id, partitions in gone.items():
            with self._database.catalog.mutex:
                bookmarks = self._database.catalog.bookmarks_of(stream_id)
            for bookmark in bookmarks:
                positions = {
                    p: count - bisect_right(partitions.get(p, ()), bookmark.lsns[p])
                    for p, count in bookmark.positions.items()
                }
                if positions != bookmark.positions:
                    yield replace(bookmark, positions=positions)

    def _finish(self, found: Pass, ranges: Sequence[Range], left: Mapping[int, float], rows: int) -> bool:
        """Record the time at which the ranges were compacted; returns False if the pass is void."""
        table_id = found.source.table_id
        keep_us = max(s.tombstone_retention_us for s in found.source.streams if s.compaction == "key")
        after = deleted_ranges.finished(ranges, self._database.commits.times.steady_us(), keep_us)
        if list(after) != list(deleted_ranges.read_ranges(self._steps.cursor, table_id)):
            with self._steps.locked():
                if not self._stands(found):
                    return False
                self._steps.transaction(deleted_ranges.rows_sql(table_id, after))
        for stream in found.streams:
            self._database.buffers[stream.stream_id].thinned(left[stream.stream_id])
        if rows:
            about = facts(table=found.source.shown_name, rows=rows, through_lsn=found.through_lsn)
            logger.info("the log is compacted", extra=about)
        return True

    def _execute(self, sql: str) -> list[tuple[Any, ...]]:
        return self._steps.cursor.execute(sql).fetchall()


def _put_sql(bookmarks: Sequence[Bookmark]) -> list[str]:
    rows = [f"({mark.bookmark_id}, {literal(json.dumps(dict(mark.positions)))})" for mark in bookmarks]
    return [
        f"UPDATE {SCHEMA}.bookmark_catalog SET positions = found.positions "
        f"FROM (VALUES {', '.join(rows[first : first + BOOKMARKS_AT_ONCE])}) AS found (id, positions) "
        "WHERE bookmark_id = found.id"
        for first in range(0, len(rows), BOOKMARKS_AT_ONCE)
    ]


@dataclass(frozen=True, slots=True)
class View:
    """Rows by key, of which the last of each key stays.

    Args:
        rows: a SELECT of the rows, with their LSN.
        by: the columns of the key.
        deletes: SQL boolean on a row: it is a delete.
        expired: the LSN up to which a last row that is a delete is removed, if no other row of its key stays.
    """

    rows: str
    by: str
    deletes: str
    expired: int

    def lasts_sql(self) -> str:
        """A SELECT of the last row of each key: its LSN, a flag for deletes (`gone`), and the key."""
        # One number for both: a third of the time of arg_max.
        both = f"max(2 * lsn + ({self.deletes})::INTEGER)"
        grouped = f"SELECT {both} AS m, {self.by} FROM ({self.rows}) GROUP BY {self.by}"
        return f"SELECT m // 2 AS lsn, m % 2 = 1 AS gone, {self.by} FROM ({grouped})"


@dataclass(frozen=True, slots=True)
class Pass:
    """The subject of a pass over one table; the pass is void once any of it has changed.

    Args:
        through_lsn: its horizon.
        ranges: the table's ranges, including that of this pass.
        starts: stream id -> the LSN after which its events are examined, for the compacted streams.
        expired: stream id -> the LSN up to which its deletes are removed.
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
        """The compacted streams that have events in the pass."""
        return [
            s
            for s in self.source.streams
            if self.starts.get(s.stream_id, self.through_lsn) < self.through_lsn
        ]


class Superseded:
    """The rows that a pass keeps and removes; their temporary tables exist until `close`."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, catalog: Catalog, found: Pass) -> None:
        self._cursor = cursor
        self._catalog = catalog
        self._pass = found
        self._views: list[View] = []

    def close(self) -> None:
        """Drop the temporary tables."""
        names = self._execute(
            "SELECT table_name FROM system.main.duckdb_tables() "
            f"WHERE temporary AND starts_with(table_name, '{PREFIX}')"
        )
        for (name,) in names:
            self._execute(f"DROP TABLE temp.main.{name}")

    def work_out(self) -> None:
        """Fill GOING and GONE without a lock, because events never change."""
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
        """Keep each delete while another row of its key stays.

        Another stream or a group may have kept that row, and its readers must also get the delete.
        """
        for place, view in enumerate(views):
            if view.expired:
                others = f"SELECT {view.by} FROM ({view.rows}) ANTI JOIN {LASTS}{place} USING (lsn)"
                self._execute(f"INSERT INTO {KEPT} {self._expired_sql(place, view, others)}")

    def first_delete(self) -> int | None:
        """The first delete whose time starts again: it had expired, but its older rows go only now."""
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
        """A SELECT of the expired deletes among some keys."""
        return (
            f"SELECT lsn FROM {LASTS}{place} SEMI JOIN ({keys}) USING ({view.by}) "
            f"WHERE gone AND lsn <= {view.expired}"
        )

    def ends(self, rows: int) -> list[int]:
        """The last LSN of each step that deletes `rows` rows."""
        numbered = f"SELECT lsn, (row_number() OVER (ORDER BY lsn) - 1) // {rows} AS n FROM {GOING}"
        found = self._execute(f"SELECT max(lsn) FROM ({numbered}) GROUP BY n ORDER BY 1")
        return [lsn for (lsn,) in found]

    def left(self) -> dict[int, float]:
        """Stream id -> the fraction of its events up to the horizon that stays."""
        parts = {}
        for stream in self._pass.streams:
            events = [f"SELECT count(*) AS n FROM ({view.rows})" for view in self._events(stream)]
            (total,) = ask(self._cursor, f"SELECT sum(n)::BIGINT FROM ({' UNION ALL '.join(events)})")
            (gone,) = ask(self._cursor, f"SELECT count(*) FROM {GONE} WHERE stream_id = {stream.stream_id}")
            parts[stream.stream_id] = 1 - gone / max(1, total)
        return parts

    def _keep_aside(self, stream: Stream) -> None:
        """Keep parked events and the events behind them: they are returned after a release."""
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
        """Keep a topic's events without a key, and each producer's last event, which has its sequence."""
        log, where = topic.log, f"lsn <= {self._pass.through_lsn}"
        self._execute(f"INSERT INTO {KEPT} SELECT lsn FROM {log} WHERE {where} AND key IS NULL")
        self._execute(
            f"INSERT INTO {KEPT} SELECT max(lsn) FROM {log} WHERE {where} AND producer IS NOT NULL "
            "GROUP BY producer"
        )

    def _last_rows(self) -> Iterator[View]:
        """The log's rows for CHECK STREAM, which compares the last row of each key.

        Each stream has the rows of its own snapshot only, so the rows are examined with and without them.
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
        """A stream's events in the pass without schema events; `rows` includes their partition.

        Keys of different types are never compared: each type has its own view.
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
