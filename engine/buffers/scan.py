"""Scans: events of a stream from the buffers as far as they reach, and otherwise from the log.

A scan starts in each partition after an LSN of its own, returns events in LSN order over all of its
partitions, and ends at an LSN that is fixed when it begins. It never moves an offset. Requested events that
are no longer retained are a gap (72000), an error before a later event is returned.

A cold read runs on a cursor of the engine, never on the user's (an old MVCC snapshot would miss events that
the buffer has dropped meanwhile). It reads the log window by window (`read_ahead.py`): a window is one
transaction that reads the stream's edge and the events in the same MVCC snapshot, with one query for the
columns, partitions and LSNs of the scan. Its rows are returned page by page, however few a client takes.

LIMIT n TRANSACTIONS ends a scan at the end of its n-th transaction. Events of a transaction are adjacent in
the order of LSNs, and txids rise with it. In the buffers the ends are found among ready rows by bisection, so
that only a few rows of each page of a large transaction are examined. In the log they are found by a grouped
query over ranges of whole transactions, which computes no events and holds no rows. Source:
docs/design/engine.md, "Reading".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import duckdb
import numpy as np
import pyarrow as pa

from ..catalog.copies import Copy
from ..catalog.streams import Stream
from ..clock import Clock
from ..duck.cursors import arrow_table, ask, ask_maybe
from ..duck.duckdb_errors import translated
from ..errors import DataCorrupted, DucktailError, QueryCanceled, SerializationFailure, UndefinedObject
from ..groups.parked import Aside, behind_sql
from ..log.deleted_ranges import Edge, read_edges
from ..log.envelope_changes import HIDDEN_PLACE, ChangesQuery
from ..log.events import EVENT_SCHEMA
from ..log.log import EVENT_LAYOUT, EVENT_NAMES, EVENT_TYPES, Layout, end_of_transaction
from ..log.queries import Again, CopiedEvents, Events, unread_sql
from ..schema import SCHEMA
from ..values import datarow
from .buffer import Hot, PartitionBuffer, StreamBuffer
from .gaps import Gone
from .publishing import refill_changes
from .read_ahead import (
    AHEAD_ROWS,
    FIRST_ROWS,
    GROWTH,
    ROWS_MAX,
    WINDOW_BYTES_MAX,
    Cold,
    Held,
    LogWindow,
    Page,
    Pages,
    ReadAhead,
)

# LSNs in which the rows of a window are searched first, times their number.
REACH = 16
# LSNs of a window without keys, images and headers, times the number of rows of other windows.
NARROW_REACH = 64
# LSNs whose rows are measured together.
BLOCK_LSNS = 1024
# Columns of an event without a bound of their size.
WIDE = frozenset({"key", "before", "after", "headers"})
# Limit of table versions that begin within one query of a cold read: twice as many cost more than two
# queries.
VERSIONS_AT_ONCE = 8
TXID = EVENT_NAMES.index("txid")
Read = TypeVar("Read")
# Ready rows that are examined together, at first and at most: each time costs a slice in each partition.
STEP_ROWS, STEP_ROWS_MAX = 256, 8192
# Fewest transactions whose events are searched together in the log.
WINDOW_TRANSACTIONS = 1024


@dataclass(frozen=True, slots=True)
class ScanRange:
    """The bounds of a scan.

    Args:
        after: partition -> the LSN after which it is read, for the scanned partitions.
        through_lsn: last LSN that may be returned.
        from_start: partitions that are read from the first retained event, whatever their LSN in `after` (a
            read without a group and without AFTER, or AFTER 0): they never have a gap.
        positions: partition -> number of its events at or before its LSN in `after`, if known although
            retention has passed the LSN.
        group: name of the consumer group that reads, for errors.
        from_lsn, to_lsn: bounds of a filter, both inclusive: events outside are skipped.
        aside: the group's parked events, if they affect the scan, which then reads the log.
        copy: the group's whole copy, with the partitions in which the scan begins within it.
        seen_lsn: the stream's end for the reader, if `through_lsn` is less.
    """

    after: dict[int, int]
    through_lsn: int
    from_start: frozenset[int] = frozenset()
    from_lsn: int = 0
    to_lsn: int | None = None
    positions: Mapping[int, int] = field(default_factory=dict)
    group: str | None = None
    aside: Aside | None = None
    copy: Copy | None = None
    seen_lsn: int = 0


class Scan:
    """One scan of a stream; not for several threads at once.

    With a `ChangesQuery` the rows are those of ENVELOPE CHANGES: both rows of an update are returned
    together.
    """

    def __init__(
        self,
        query: Events | ChangesQuery,
        buffer: StreamBuffer,
        bounds: ScanRange,
        new_cursor: Callable[[], duckdb.DuckDBPyConnection],
        alive: Callable[[], bool],
        clock: Clock,
        ahead: ReadAhead,
    ) -> None:
        self._query = query
        self._ahead = ahead
        self._columns = query.names
        self._copy = bounds.copy
        self._buffer = buffer
        self._clock = clock
        self._new_cursor = new_cursor
        self._alive = alive
        self._cursor: duckdb.DuckDBPyConnection | None = None
        self._from_start = bounds.from_start
        self._bounds = bounds
        self._began: dict[int, int] = {}  # partition -> number of its events before the scan's start
        self._has_given = False
        self._given_lsn = bounds.from_lsn - 1
        self._aside = bounds.aside
        self._reach = REACH  # LSNs that a window covers, times its rows
        self._target = FIRST_ROWS  # log rows of the next window
        # Last LSN, number and bytes of the rows of each block of LSNs up to `_sized_lsn`.
        self._blocks: deque[tuple[int, int, int]] = deque()
        self._sized_lsn = 0
        self._held = Held()
        self._interrupted: Future[None] | None = None  # set while it waits for a window
        self._place = 0  # the first row of the window that has not been returned
        self._has_read_on = False  # it has returned a window to its end
        self._continues = False  # it has begun in the window of an earlier scan
        self._renumbered = buffer.renumbered
        self._after = dict(bounds.after)
        self._behind_lsns = self._after  # the position behind which the log is being read
        self._floor = bounds.from_lsn - 1
        self._snapshot_lsn = self.through_lsn = bounds.through_lsn
        self.begun_us, self.seen_lsn = clock.now_us(), max(bounds.through_lsn, bounds.seen_lsn)
        self._closed = False
        # The end of what may be read ahead, for a later scan.
        self._ahead_lsn = self.seen_lsn
        if bounds.to_lsn is not None:
            self._ahead_lsn = self.through_lsn = min(self.through_lsn, bounds.to_lsn)
        self.exhausted = not self._after
        self.ends = self._start()

    def _start(self) -> dict[int, int]:
        """Check each partition's start against its retained events.

        Returns:
            partition -> LSN of its last event within the scan's end, including events that a filter skips.
        """
        ends: dict[int, int] = {}
        with self._buffer.mutex:
            for number, lsn in list(self._after.items()):
                partition = self._buffer.partitions[number]
                ends[number] = max(lsn, partition.last_at(self._snapshot_lsn))
                if self._copy is not None:
                    ends[number] = max(ends[number], self._copy.last_at(number, self._snapshot_lsn))
                    self._after[number] = self._copy.start(number, lsn)
                if lsn >= partition.trimmed_through_lsn:
                    position = partition.position_after(lsn)
                    if position is not None:
                        self._began[number] = position
                    continue
                if number not in self._from_start:
                    raise gone(self._query.stream, partition, number, lsn, self._bounds).error()
                self._after[number] = partition.trimmed_through_lsn
        if self._floor > 0:
            for number, lsn in self._after.items():
                self._after[number] = max(lsn, self._floor)
        return ends

    @property
    def _events(self) -> Events:
        return self._query.events if isinstance(self._query, ChangesQuery) else self._query

    @property
    def stream_id(self) -> int:
        """The number of the scanned stream."""
        return self._query.stream.stream_id

    @property
    def over(self) -> bool:
        """True once the scan has no more events."""
        return self.exhausted or self._closed

    def _within_copy(self) -> Copy | None:
        """The group's whole copy while some of its rows may be unread; None afterwards."""
        if self._copy is not None and min(self._after.values(), default=0) >= self._copy.last_lsn:
            self._query, self._copy = _plain(self._query), None
        return self._copy

    @property
    def hot(self) -> bool:
        """True if the next events are in the buffers, as far as known without the log."""
        buffer = self._buffer
        if self._held.part is not None or self._aside is not None or self._within_copy() is not None:
            return False
        if isinstance(self._query, ChangesQuery):
            changes = buffer.changes
            if changes is None or changes.table_version != self._query.captured.version:
                return False
            buffer = changes
        return buffer.holds(self._after)

    @property
    def ready(self) -> bool:
        """True if the next events are in memory in the form in which they are sent, as far as known.

        That is in the buffers, or in a window whose rows have been encoded for a client before.
        """
        if self.hot:
            return True
        window = None if isinstance(self._query, ChangesQuery) else self._find_window()
        if window is None:
            return False
        # Behind a window without rows for the scan, the read would go on in the log.
        has_rows = self._place < len(window.lsns)
        return has_rows and window.pages.is_encoded(window.first + self._place)

    def narrow(self, columns: Collection[str]) -> None:
        """Read only these columns of an event from the log; before the first read."""
        self._columns = tuple(
            name for name in self._query.names if name in columns or name in ("lsn", "partition")
        )

    def read(self, limit: int) -> Page:
        """The next events, at most `limit` rows; only `exhausted` marks the end.

        The rows of an update in ENVELOPE CHANGES stay together: one more row is returned if necessary.

        Raises:
            Gap: an event of the scan has been trimmed.
            UndefinedObject: the stream has been dropped.
        """
        if not self._alive():
            raise UndefinedObject(f'stream "{self._query.stream.name}" does not exist')
        found: Page | None = self._buffered(limit) if self._held.part is None else None
        if found is None:
            return self._from_window(limit)
        self._buffer.given.add(len(found.lsns))
        self._given(found.lsns, found.exhausted)
        return found

    def _from_window(self, limit: int) -> Page:
        """The next events from the log, of one window."""
        window = self._find_window() or self._arrived() or self._hold(self._cold(self._after))
        start = self._place
        end = self._place = window.stop(start, limit)
        lsns, partitions = window.lsns[start:end].tolist(), window.partitions[start:end].tolist()
        at_end = end == len(window.lsns)
        exhausted = at_end and window.high >= self.through_lsn
        query = self._query
        self._buffer.given.add(len(lsns))
        self._given(lsns, exhausted, window.high if at_end else 0)
        if at_end:
            self._held.part, self._has_read_on = None, True
        if isinstance(query, ChangesQuery):
            batch = window.pages.rows.slice(window.first + start, end - start)
            return Hot(lsns, partitions, datarow.messages(batch, query.layout.types), exhausted)
        page, part = window.pages.at(window.first + start, window.first + end)
        return Cold(lsns, partitions, page, part, _layout(self._columns), exhausted)

    def _find_window(self) -> LogWindow | None:
        """The window with the scan's next events: its own, or one that an earlier scan has left."""
        if self._held.taken:
            # The others need the memory: the next window begins at the scan's position, and is small.
            self._held.taken = False
            self._target, self._reach = FIRST_ROWS, REACH
            self._blocks.clear()
            self._sized_lsn = 0
        part = self._held.part
        if part is not None:
            self._ahead.use(self._held)
            return part
        if self._source is not None and not self.over:
            found = self._ahead.find(self._source, self._after)
            if found is not None and self._retains(found):
                self._continues = True
                return self._hold(found)
        return None

    def _arrived(self) -> LogWindow | None:
        """The window that was read ahead for this scan, or is being read for it since an earlier one."""
        window = self._next_ahead()
        if window is not None:
            return self._hold(window)
        if self._source is not None:
            arriving = self._ahead.arriving(self._source, self._after)
            if arriving is not None:
                interrupted = self._interrupted = Future()
                wait([arriving, interrupted], return_when=FIRST_COMPLETED)
                self._interrupted = None
                if interrupted.done():
                    raise QueryCanceled("canceling statement due to user request")
                return self._find_window()
        return None

    def _next_ahead(self) -> LogWindow | None:
        """The window that was read while the last one was given; None without any."""
        try:
            window = self._held.arrival()
        except QueryCanceled:
            raise
        except DucktailError:
            return None  # What is wrong now is what a read of now finds.
        if window is None or window.source != self._source or not window.covers(self._after):
            return None
        return window if self._retains(window) else None

    def _read_ahead(self, window: LogWindow) -> None:
        """Begin to read the window behind this one, while this one is encoded and sent."""
        # A scan that has not read a window to its end may need no other.
        if self._has_read_on and window.high < self.through_lsn:
            after = self._behind_window(window)
            if after is not None:
                self._ahead.begin(self._held, window, after, partial(self._cold, after))

    def _behind_window(self, window: LogWindow) -> dict[int, int] | None:
        """The position behind a window; None if it is small, or the next one is there."""
        after = {number: max(lsn, window.high) for number, lsn in self._after.items()}
        assert self._source is not None
        is_there = window.target < AHEAD_ROWS or self._ahead.find(self._source, after) is not None
        return None if is_there else after

    def _retains(self, window: LogWindow) -> bool:
        """True if all events of a window behind the scan's position are retained."""
        with self._buffer.mutex:
            partitions = self._buffer.partitions
            return all(lsn >= partitions[number].trimmed_through_lsn for number, lsn in self._after.items())

    def _hold(self, window: LogWindow) -> LogWindow:
        """Return the rows of a window next; the part of it that the scan needs."""
        self._place = 0
        self._target = min(GROWTH * window.target, ROWS_MAX)
        is_shared = self._source is not None
        part = window.within(self._after, self.through_lsn) if is_shared else window
        self._ahead.hold(self._held, window, part, may_be_taken=is_shared)
        if is_shared:
            self._read_ahead(window)
        return part

    @property
    def _source(self) -> tuple[object, ...] | None:
        """Identifies the windows that have this scan's events; None if they are those of a group only."""
        query, buffer = self._query, self._buffer
        if self._aside is not None or self._copy is not None:
            return None
        version = query.captured.version if isinstance(query, ChangesQuery) else 0
        # Compaction sets the first before it removes events, and counts the second behind it.
        compacted = buffer.compacted_lsn, buffer.renumbered
        return buffer.identity, *compacted, query.stream, version, self._columns

    def end_of_transactions(self, count: int) -> int:
        """The LSN at the end of the scan's `count`-th transaction; the scan's end if it has fewer.

        It must be called before the first read. A transaction counts if the scan returns events of it: in its
        partitions and within its filter's bounds.

        Raises:
            UndefinedObject: as `read`.
        """
        if not count or not self._after:
            return 0 if not count else self._snapshot_lsn
        end = None
        is_buffered = self._aside is None and self._within_copy() is None
        if is_buffered and min(self._after.values()) < self.through_lsn:
            end = end_in_buffer(self._buffer, self._after, self.through_lsn, count)
        if end is None:
            try:
                aside = None if self._aside is None else (self._excluded, self._again)
                end = self._from_logs(
                    lambda: end_in_log(
                        self._ready(), self._events, self._starts(), self.through_lsn, count, aside
                    )
                )
            except duckdb.Error as error:
                raise self._told(error) from error
        return end if end < self.through_lsn else self._snapshot_lsn

    def _buffered(self, limit: int) -> Hot | None:
        """The next rows from the buffers; None if they are only in the log."""
        if self._aside is not None or self._within_copy() is not None:
            return None
        if not isinstance(self._query, ChangesQuery):
            return self._buffer.read(self._after, self.through_lsn, limit)
        version = self._query.captured.version
        changes = self._buffer.changes
        if changes is not None and changes.table_version < version:
            # They have the columns from before a schema change.
            self._buffer.drop_changes()
        if self._buffer.changes is None and self._buffer.holds(self._after):
            self._make_changes()
        changes = self._buffer.changes
        if changes is None or changes.table_version != version:
            return None
        self._buffer.read_s = self._clock.monotonic_s()
        return changes.read(self._after, self.through_lsn, limit)

    def _make_changes(self) -> None:
        """Keep rows of ENVELOPE CHANGES ready, from the first hot read of them on."""
        self._buffer.read_s = self._clock.monotonic_s()
        self._held.settle()  # The cursor serves one read at a time.

        def work() -> None:
            assert isinstance(self._query, ChangesQuery)
            refill_changes(self._ready(), self._query, self._buffer, min(self._after.values()))

        try:
            self._from_logs(work)
        except (duckdb.Error, OSError) as error:
            raise self._told(error) from error

    def _told(self, error: Exception) -> Exception:
        """A translated error of DuckDB; for a dropped stream, that it does not exist."""
        if not self._alive():
            return UndefinedObject(f'stream "{self._query.stream.name}" does not exist')
        if self._copy is not None and isinstance(error, duckdb.CatalogException):
            return SerializationFailure(
                f'the whole copy of consumer group "{self._bounds.group}" has been read to its end meanwhile',
                hint="Read again: the group goes on behind it.",
            )
        return translated(error)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """These columns of all remaining events as Arrow batches, typed, from the log.

        Raises:
            Gap, UndefinedObject: as in `read`.
        """
        while not self.exhausted:
            if not self._alive():
                raise UndefinedObject(f'stream "{self._query.stream.name}" does not exist')
            rows, high = self._in_transaction(columns, self._after, typed=True)
            self._target = min(GROWTH * self._target, ROWS_MAX)
            self._given([], high >= self.through_lsn, high)
            if rows.num_rows:
                self._given_lsn, self._has_given = max(self._given_lsn, high), True
                self._buffer.given.add(rows.num_rows)
                yield from rows.to_batches()

    def _given(self, lsns: Sequence[int], exhausted: bool, through_lsn: int = 0) -> None:
        """Record that everything up to the last LSN, or a later one, has been returned in every partition."""
        self.exhausted = exhausted
        if lsns:
            self._given_lsn = lsns[-1]
        self._has_given = self._has_given or bool(lsns)
        done = self.through_lsn if exhausted else max(through_lsn, lsns[-1] if lsns else 0)
        for number, lsn in self._after.items():
            if done > lsn:
                self._after[number] = done

    def schema(self) -> pa.Schema:
        """The Arrow schema of `batches`.

        Raises:
            UndefinedObject: as `read`.
        """
        cursor = self._ready(typed=True)
        try:
            # At the scan's end, and not at LSN 0: retention may be deleting the log of an old version.
            end = self.through_lsn
            names = [*self._query.names, HIDDEN_PLACE]
            return self._from_logs(
                lambda: cursor.sql(self._window_sql(cursor, end - 1, end, names, typed=True)).to_arrow_table()
            ).schema
        except duckdb.Error as error:
            raise self._told(error) from error

    def _ready(self, *, typed: bool = False) -> duckdb.DuckDBPyConnection:
        """The scan's cursor; with `typed`, Arrow carries values for DuckDB without loss."""
        if self._cursor is None:
            self._cursor = self._new_cursor()
            if typed and isinstance(self._query, ChangesQuery):
                self._cursor.execute("SET SESSION arrow_lossless_conversion = true")
        return self._cursor

    def _cold(self, after: dict[int, int]) -> LogWindow:
        """The window of the log behind a position; `after` becomes that of the edges."""
        self._buffer.log_reads += 1
        source, target = self._source, self._target
        table, high = self._in_transaction(self._columns, after, typed=False)
        starts = dict(after)  # Not before the edges that the transaction has found.
        rows = as_batch(table)
        if isinstance(self._query, ChangesQuery):
            layout = self._query.layout
        else:
            layout, rows = _layout(self._columns), _as_events(rows, self._columns)
        lsns, partitions = rows.column(layout.lsn), rows.column(layout.partition)
        numbers = lsns.to_numpy(), partitions.to_numpy()
        return LogWindow(source or (), starts, high, Pages(rows), 0, *numbers, target)

    def _in_transaction(
        self, columns: Sequence[str], after: dict[int, int], *, typed: bool
    ) -> tuple[pa.Table, int]:
        """The window behind a position, read in one MVCC snapshot."""
        cursor = self._ready(typed=typed)
        self._behind_lsns = after

        def work() -> tuple[pa.Table, int]:
            cursor.execute("BEGIN")
            try:
                return self._next_window(cursor, columns, after, typed=typed)
            finally:
                cursor.execute("COMMIT")

        try:
            return self._from_logs(work)
        except duckdb.Error as error:
            raise self._told(error) from error

    def _from_logs(self, work: Callable[[], Read]) -> Read:
        """Read logs; once more if retention has dropped the empty log of an old version meanwhile."""
        try:
            return work()
        except duckdb.CatalogException:
            tables = f"SELECT table_name FROM system.main.duckdb_tables() WHERE schema_name = '{SCHEMA}'"
            logs = {name for (name,) in self._ready().execute(tables).fetchall()}
            standing = self._query.standing(logs)
            if standing == self._query:
                raise
            self._query = standing
            return work()

    def _check_edges(self, cursor: duckdb.DuckDBPyConnection, after: dict[int, int]) -> int:
        """Check that no event behind a position is behind an edge.

        A read from the start that has returned nothing yet begins at the edge instead.

        Returns:
            The stream's own edge: no partition has unread events up to there.
        """
        edges = read_edges(cursor, self._query.stream.stream_id)
        for number, edge in edges.partitions.items():
            if number not in after or after[number] >= edge.through_lsn:
                continue
            if self._has_given or number not in self._from_start:
                raise self._passed(number, edge).error()
            after[number] = edge.through_lsn
        return edges.through_lsn

    def _passed(self, number: int, edge: Edge) -> Gone:
        """The gap of a scan overtaken by the edge: its start is known, not its progress."""
        partition = self._buffer.partitions[number]
        first = partition.first_lsn
        # Compaction may have changed the counts since.
        began = self._began.get(number) if self._renumbered == self._buffer.renumbered else None
        return Gone(
            self._query.stream,
            number,
            self._after[number],
            edge,
            first if first is not None and first > edge.through_lsn else None,
            began,
            exact=not self._has_given and began is not None,
            group=self._bounds.group,
        )

    def _next_window(
        self, cursor: duckdb.DuckDBPyConnection, columns: Sequence[str], after: dict[int, int], *, typed: bool
    ) -> tuple[pa.Table, int]:
        """Events of the next window with events of the stream, and the LSN up to which they are complete."""
        # The log of a version behind the edge may be deleted; a copy's rows are not in a log.
        least = min(self._check_edges(cursor, after), self.through_lsn)
        if (copy := self._within_copy()) is not None:
            least = min(least, copy.base_lsn)
        low = max(min(after.values()), least)
        last_lsn = min(low, self.through_lsn)
        again = self._again(self._given_lsn, last_lsn, FIRST_ROWS)
        if again is not None:
            # Released events before all others: the log need not be searched for them.
            sql = self._window_sql(cursor, 0, 0, columns, typed=typed, again=again)
            table = arrow_table(cursor.execute(sql))
            if not table.num_rows:
                raise DataCorrupted(
                    f'copies of released events of stream "{self._query.stream.name}" are not there',
                    hint="If a commit has just covered them, read again; SHOW PARKED lists them.",
                )
            return table, self._released(self._given_lsn, last_lsn, FIRST_ROWS)[-1]
        through_lsn = self._ahead_lsn if self._source is not None and not typed else self.through_lsn
        while True:
            high = self._end_of_window(cursor, low, through_lsn, columns)
            table = arrow_table(cursor.execute(self._window_sql(cursor, low, high, columns, typed=typed)))
            if table.num_rows or high >= self.through_lsn:
                return table, high
            # LSNs without events may be many: an incarnation skips a trillion of them.
            log = self._events.between(high + 1, through_lsn).lsns
            (first,) = ask(cursor, f"SELECT min(lsn) FROM {log} WHERE lsn > {high}")
            low = through_lsn if first is None else min(int(first) - 1, through_lsn)

    def _end_of_window(
        self, cursor: duckdb.DuckDBPyConnection, low: int, through_lsn: int, columns: Sequence[str]
    ) -> int:
        """The LSN at which the window behind another LSN ends, by the rows and bytes of its partitions."""
        if isinstance(self._query, Events) and WIDE.isdisjoint(columns):
            return self._reached(low, min(low + NARROW_REACH * self._target, through_lsn))[0]
        while self._blocks and self._blocks[0][0] <= low:
            self._blocks.popleft()
        if not self._blocks:
            self._size_blocks(cursor, low, through_lsn)
        rows = bytes_ = 0
        for place, (last_lsn, count, size) in enumerate(self._blocks):
            rows, bytes_ = rows + count, bytes_ + size
            if bytes_ > WINDOW_BYTES_MAX and not place:
                return self._within_block(cursor, low, last_lsn)
            if bytes_ > WINDOW_BYTES_MAX or (rows > self._target and place):
                return self._blocks[place - 1][0]
        return self._sized_lsn

    def _reached(self, low: int, reach: int) -> tuple[int, Events]:
        """A reach that few versions of the tables have, and the query of their logs."""
        found = self._events.between(low + 1, reach)
        later = sorted(part.first_lsn for part in found.parts if part.first_lsn > low + 1)
        if len(later) < VERSIONS_AT_ONCE:
            return reach, found
        reach = min(reach, later[VERSIONS_AT_ONCE - 1] - 1)
        return reach, found.between(low + 1, reach)

    def _size_blocks(self, cursor: duckdb.DuckDBPyConnection, low: int, through_lsn: int) -> None:
        """Measure the next log rows block by block: to order single rows costs as much as a window."""
        self._sized_lsn, found = self._reached(low, min(low + self._reach * self._target, through_lsn))
        rows = found.sized_sql(f"lsn > {low} AND lsn <= {self._sized_lsn}", self._behind())
        blocks = cursor.execute(
            f"SELECT max(lsn), count(*), sum(bytes)::BIGINT FROM ({rows}) "
            f"GROUP BY lsn // {BLOCK_LSNS} ORDER BY 1"
        ).fetchall()
        self._blocks.extend(blocks)
        # If compaction has left few rows, or most are in other partitions, the reach becomes wider.
        if sum(count for _, count, _ in blocks) < self._target:
            self._reach *= 2
        else:
            self._reach = max(REACH, self._reach // 2)

    def _within_block(self, cursor: duckdb.DuckDBPyConnection, low: int, high: int) -> int:
        """The end of a window of large events, which are measured one by one; it has at least one."""
        where = f"lsn > {low} AND lsn <= {high}"
        rows = self._events.between(low + 1, high).sized_sql(where, self._behind())
        lsns, sizes = arrow_table(cursor.execute(f"{rows} ORDER BY lsn")).columns
        if not len(lsns):
            return high  # Compaction has removed them meanwhile.
        fitting = int(np.searchsorted(np.cumsum(sizes.to_numpy()), WINDOW_BYTES_MAX, "right"))
        return int(lsns[max(0, fitting - 1)].as_py())

    def _behind(self, lsn: str = "lsn", partition: str = "partition") -> str:
        return unread_sql(self._behind_lsns, len(self._buffer.partitions), lsn, partition)

    def _excluded(self, low: int, high: int) -> str:
        """SQL predicate on the log's rows that skips events parked in a window, and events behind them."""
        aside = self._aside
        if aside is None:
            return ""
        parts = []
        inside = [str(lsn) for lsn in aside.lsns if low < lsn <= high]
        if inside:
            parts.append(f" AND lsn NOT IN ({', '.join(inside)})")
        behind = behind_sql(key for key in aside.keys if key[1] < high)
        if behind:
            window = self._events.between(low + 1, high).sql(f"lsn > {low} AND lsn <= {high}", "false")
            parts.append(f" AND lsn NOT IN (SELECT lsn FROM ({window}) WHERE {behind})")
        return "".join(parts)

    def _again(self, low: int, high: int, limit: int | None = None) -> Again | None:
        """The released events of a range of LSNs, at most `limit`."""
        aside, lsns = self._aside, self._released(low, high, limit)
        if aside is None or not lsns:
            return None
        last = [str(lsn) for lsn in lsns if aside.released[lsn].tx_last]
        ends = f"(l.lsn IN ({', '.join(last)}))" if last else "false"
        copies = self._events.holding(lsns).parked()
        return Again(copies, f"lsn IN ({', '.join(map(str, lsns))})", ends)

    def _released(self, low: int, high: int, limit: int | None = None) -> list[int]:
        """The LSNs of the released events of a range, at most `limit`."""
        aside = self._aside
        return [] if aside is None else [lsn for lsn in aside.released if low < lsn <= high][:limit]

    def _window_sql(
        self,
        cursor: duckdb.DuckDBPyConnection,
        low: int,
        high: int,
        columns: Sequence[str],
        *,
        typed: bool,
        again: Again | None = None,
    ) -> str:
        where = f"lsn > {low} AND lsn <= {high}{self._excluded(low, high)}"
        again = again or self._again(max(low, self._given_lsn), high)
        # tx_last needs the window's last transaction entirely.
        whole = f"lsn > {low} AND lsn <= {end_of_transaction(high)}"
        chunk_end = None if self._copy is None else self._copy.chunk_end(high)
        if chunk_end is not None:
            # Their rows of `commits` may be deleted.
            whole = f"lsn > {low} AND lsn <= {chunk_end}"
        query = self._query
        if isinstance(query, ChangesQuery):
            rows = query.between(low + 1, high)
            layout, names = query.layout, query.names
            behind = self._behind(names[layout.lsn], names[layout.partition])
            if typed:
                return rows.typed_sql(columns, where, behind, again)
            return rows.page_sql(columns, where, whole, behind, again)
        return query.window(cursor, low, high).page_sql(columns, where, whole, self._behind(), again)

    def _starts(self) -> list[int]:
        """The LSN after which each partition is read; the scan's end for partitions that are not."""
        partitions = len(self._buffer.partitions)
        return [self._after.get(number, self.through_lsn) for number in range(partitions)]

    def interrupt(self) -> None:
        """Interrupt a running query of the scan, or its wait for a window; callable from any thread."""
        interrupted = self._interrupted
        if interrupted is not None:
            with suppress(InvalidStateError):
                interrupted.set_result(None)
        cursor = self._cursor
        if cursor is not None:
            with suppress(duckdb.ConnectionException):  # It has been closed meanwhile.
                cursor.interrupt()

    def leave(self) -> None:
        """Mark the scan as unused; callable from any thread, even while another runs its last query."""
        self._closed = True

    def close(self) -> None:
        """Free the scan's cursor, once no window is being read; its window remains for the next scan."""
        self.leave()
        window = self._held.window
        if window is not None and self._source == window.source:
            self._ahead.put(window)
            if self._continues and self._held.coming is None and window.high < self._ahead_lsn:
                after = self._behind_window(window)
                if after is not None:
                    self._ahead.follow(self._held, window, after, partial(self._cold, after))
        self._ahead.release(self._held)
        self._held.when_settled(self._free)

    def _free(self) -> None:
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            cursor.close()


def lost_events(
    stream: Stream, buffer: StreamBuffer, bounds: ScanRange, partitions: Collection[int]
) -> list[Gone]:
    """The gaps of a read: one for each of these partitions whose next event is no longer retained."""
    with buffer.mutex:
        return [
            gone(stream, partition, number, bounds.after[number], bounds)
            for number in partitions
            if bounds.after[number] < (partition := buffer.partitions[number]).trimmed_through_lsn
        ]


def gone(stream: Stream, partition: PartitionBuffer, number: int, lsn: int, bounds: ScanRange) -> Gone:
    """The lost events of a read that continues after `lsn`, which retention has passed."""
    position = bounds.positions.get(number)
    edge = Edge(partition.trimmed_through_lsn, partition.trimmed_events, partition.trimmed_by)
    exact = position is not None
    return Gone(stream, number, lsn, edge, partition.first_lsn, position, exact=exact, group=bounds.group)


def _plain(query: Events | ChangesQuery) -> Events | ChangesQuery:
    """A query without the rows of a whole copy."""
    if isinstance(query, ChangesQuery):
        return replace(query, events=query.events.events) if isinstance(query.events, CopiedEvents) else query
    return query.events if isinstance(query, CopiedEvents) else query


def _layout(columns: tuple[str, ...]) -> Layout:
    """The layout of events with these columns only."""
    if columns is EVENT_NAMES:
        return EVENT_LAYOUT
    types = tuple(EVENT_TYPES[EVENT_NAMES.index(name)] for name in columns)
    return Layout(types, columns.index("lsn"), columns.index("partition"))


def _as_events(rows: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Events of a query with the Arrow types that events have elsewhere: JSON is text."""
    schema = pa.schema([EVENT_SCHEMA.field(name) for name in columns])
    arrays = []
    for column, field_ in zip(rows.columns, schema, strict=True):
        array = column.storage if isinstance(column, pa.ExtensionArray) else column
        arrays.append(array if array.type == field_.type else array.cast(field_.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def as_batch(table: pa.Table) -> pa.RecordBatch:
    """A table as one batch."""
    batches = table.to_batches()
    if len(batches) == 1:
        return batches[0]
    if batches:
        return table.combine_chunks().to_batches()[0]
    # From an empty list pyarrow builds neither unions nor nested extension types.
    columns = [pa.nulls(0, type_) for type_ in table.schema.types]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)


def end_in_buffer(buffer: StreamBuffer, after: Mapping[int, int], through_lsn: int, count: int) -> int | None:
    """LSN of the last buffered event of the `count`-th transaction after a position.

    Args:
        after: partition -> LSN, for the scanned partitions.

    Returns:
        The LSN; `through_lsn` if there are at most `count`; None if the buffers do not reach that far.
    """
    after = dict(after)
    size, seen, txid, end = STEP_ROWS, 0, 0, 0
    while True:
        page = buffer.read(after, through_lsn, size)
        if page is None:
            return None
        place = 0
        while place < len(page.rows):
            found = txid_of(page.rows[place])
            if found != txid:
                seen, txid = seen + 1, found
                if seen > count:
                    return end
            place = _end_of(page.rows, place, txid)
            end = page.lsns[place - 1]
        if page.exhausted:
            return through_lsn
        if page.lsns:
            after = {number: max(lsn, page.lsns[-1]) for number, lsn in after.items()}
        size = min(2 * size, STEP_ROWS_MAX)


def txid_of(row: bytes) -> int:
    """The transaction number of a ready event."""
    value = datarow.field(row, TXID)
    assert value is not None
    return int(value)


def _end_of(rows: Sequence[bytes], place: int, txid: int) -> int:
    """The first index behind a transaction's rows, one of which is at index `place`."""
    low, step = place, 1
    while low + step < len(rows) and txid_of(rows[low + step]) == txid:
        low, step = low + step, 2 * step
    high = min(low + step, len(rows))
    while high - low > 1:
        middle = (low + high) // 2
        if txid_of(rows[middle]) == txid:
            low = middle
        else:
            high = middle
    return high


def end_in_log(
    cursor: duckdb.DuckDBPyConnection,
    query: Events,
    starts: Sequence[int],
    through_lsn: int,
    count: int,
    aside: tuple[Callable[[int, int], str], Callable[[int, int], Again | None]] | None = None,
) -> int:
    """LSN of the last event in the log of the `count`-th transaction after a position.

    Args:
        starts: the LSN after which each partition is read, partition 0 first; `through_lsn` for partitions
            that are not read.
        aside: for a group with parked events: functions of a range of LSNs that return the predicate which
            excludes them, and the released events.

    Returns:
        The LSN; `through_lsn` if there are at most `count`.
    """
    first = True
    low, width = min(starts), max(WINDOW_TRANSACTIONS, count + 1)
    while low < through_lsn or (first and aside is not None):
        high = _end_of_window(cursor, low, through_lsn, width)
        after = f"[{', '.join(map(str, starts))}][partition + 1]"
        window = f"lsn > {low} AND lsn <= {high}" + ("" if aside is None else aside[0](low, high))
        events = query.window(cursor, low, high).sql(window, "false")
        events = f"SELECT lsn, txid FROM ({events}) WHERE lsn > {after}"
        again = None if aside is None else aside[1](-1 if first else low, high)
        if again is not None:
            events += f" UNION ALL SELECT lsn, txid FROM ({again.events.sql(again.where, 'false')})"
        first = False
        row = ask_maybe(
            cursor,
            f"WITH ends AS (SELECT txid, max(lsn) AS lsn FROM ({events}) GROUP BY txid) "
            f"SELECT count(*), (SELECT lsn FROM ends ORDER BY txid LIMIT 1 OFFSET {count - 1}) FROM ends",
        )
        assert row is not None
        if row[1] is not None:
            return int(row[1])
        low, width, count = high, 2 * width, count - int(row[0])
    return through_lsn


def _end_of_window(cursor: duckdb.DuckDBPyConnection, low: int, through_lsn: int, transactions: int) -> int:
    """The last LSN of the first `transactions` transactions behind an LSN."""
    row = ask_maybe(
        cursor,
        f"SELECT last_lsn FROM {SCHEMA}.commits WHERE last_lsn > {low} AND last_lsn >= first_lsn "
        f"ORDER BY txid LIMIT 1 OFFSET {transactions - 1}",
    )
    return through_lsn if row is None else min(through_lsn, int(row[0]))
