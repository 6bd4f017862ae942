"""Reading a stream: from the buffers where they reach, from the log where they do not.

A scan starts in each partition after an LSN of its own, gives events in LSN order over all of its
partitions, and ends at an LSN fixed when it begins. It never moves anything. What is asked for and
no longer retained is a gap (72000), told before a later event is given.

A cold read runs on a cursor of the engine, never on the user's (an old MVCC snapshot would skip
what the buffer has meanwhile dropped); each batch is one transaction that reads the stream's edge
and the events in the same MVCC snapshot. Source: docs/design/engine.md, "Reading".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from . import datarow
from .asking import ask_maybe
from .buffer import Hot, StreamBuffer
from .duckdb_errors import translated
from .errors import Gap, UndefinedObject
from .log import EVENT_TYPES, EventQuery
from .publishing import BATCH_ROWS, LSN, PARTITION, TEXT_FORMATS, read_edges
from .schema import SCHEMA

# Fewest log rows that one query of a cold read looks at: a smaller window saves nothing.
WINDOW_ROWS_MIN = 1024


@dataclass(frozen=True, slots=True)
class ScanRange:
    """What a scan reads.

    Args:
        after: partition -> the LSN after which it is read; the partitions that are scanned.
        through_lsn: last LSN that may be given.
        from_start: partitions that are read from what is retained, whatever their LSN in `after`
            says (a read without a group and without AFTER, or AFTER 0): never at a gap.
        from_lsn, to_lsn: bounds that a filter sets, both inclusive: events outside are passed over.
    """

    after: dict[int, int]
    through_lsn: int
    from_start: frozenset[int] = frozenset()
    from_lsn: int = 0
    to_lsn: int | None = None


class Scan:
    """One scan under way; see the head of the file. Not for several threads at once."""

    def __init__(
        self,
        query: EventQuery,
        buffer: StreamBuffer,
        bounds: ScanRange,
        new_cursor: Callable[[], duckdb.DuckDBPyConnection],
        alive: Callable[[], bool],
    ) -> None:
        self._query = query
        self._buffer = buffer
        self._new_cursor = new_cursor
        self._alive = alive
        self._cursor: duckdb.DuckDBPyConnection | None = None
        self._from_start = bounds.from_start
        self._after = dict(bounds.after)
        self._floor = bounds.from_lsn - 1
        self._snapshot_lsn = self.through_lsn = bounds.through_lsn
        if bounds.to_lsn is not None:
            self.through_lsn = min(self.through_lsn, bounds.to_lsn)
        self.exhausted = not self._after
        self.ends = self._start()

    def _start(self) -> dict[int, int]:
        """Hold each partition's start against what is retained.

        Returns:
            partition -> LSN of its last event within the scan's end, whatever a filter passes over.
        """
        ends: dict[int, int] = {}
        with self._buffer.mutex:
            for number, lsn in self._after.items():
                partition = self._buffer.partitions[number]
                ends[number] = max(lsn, partition.last_at(self._snapshot_lsn))
                if lsn >= partition.trimmed_through_lsn:
                    continue
                if number not in self._from_start:
                    raise self._gap(number, lsn)
                self._after[number] = partition.trimmed_through_lsn
        if self._floor > 0:
            self._after = {number: max(lsn, self._floor) for number, lsn in self._after.items()}
        return ends

    def _gap(self, number: int, lsn: int) -> Gap:
        """72000 with the facts: which partition, what was asked for, what there is."""
        partition = self._buffer.partitions[number]
        stream = self._query.stream
        gone = partition.trimmed_events
        first = partition.first_lsn
        there = f"The first available one is {first}." if first else "It holds no events now."
        return Gap(
            f'stream "{stream.name}" partition {number} has been trimmed past LSN {lsn}',
            detail=f"Events up to LSN {partition.trimmed_through_lsn} are gone ({gone} since the "
            f"stream began), trimmed by retention. {there}",
            hint=f"Read what is left with AFTER {partition.trimmed_through_lsn}, or from the start "
            "of what is retained with AFTER 0.",
        )

    @property
    def hot(self) -> bool:
        """Whether the next events are in the buffers, as far as can be told without the log."""
        return self._buffer.holds(self._after)

    def read(self, limit: int) -> Hot:
        """The next events, at most `limit` rows (fewer do not mean the end: see `exhausted`).

        Raises:
            Gap: 72000, an event that was to come has been trimmed.
            UndefinedObject: 42704, the stream has been dropped.
        """
        if not self._alive():
            raise UndefinedObject(f'stream "{self._query.stream.name}" does not exist')
        found = self._buffer.read(self._after, self.through_lsn, limit)
        if found is None:
            self._buffer.log_reads += 1
            batch, exhausted = self._cold(min(limit, BATCH_ROWS))
            found = Hot(
                batch.column(LSN).to_pylist(),
                batch.column(PARTITION).to_pylist(),
                datarow.rows(batch, EVENT_TYPES, TEXT_FORMATS),
                exhausted,
            )
        self._given(found.lsns, found.exhausted)
        return found

    def batches(self, limit: int | None = None) -> Iterator[pa.RecordBatch]:
        """All remaining events (at most `limit`) as Arrow batches, typed, from the log.

        Raises:
            Gap, UndefinedObject: as `read`.
        """
        while not self.exhausted and limit != 0:
            if not self._alive():
                raise UndefinedObject(f'stream "{self._query.stream.name}" does not exist')
            size = BATCH_ROWS if limit is None else min(limit, BATCH_ROWS)
            batch, exhausted = self._cold(size)
            if limit is not None:
                limit -= batch.num_rows
            self._given(batch.column(LSN).to_pylist(), exhausted)
            if batch.num_rows:
                yield batch

    def _given(self, lsns: Sequence[int], exhausted: bool) -> None:
        """Everything up to the last LSN given has been given, in every partition."""
        self.exhausted = exhausted
        done = self.through_lsn if exhausted else lsns[-1] if lsns else 0
        for number, lsn in self._after.items():
            if done > lsn:
                self._after[number] = done

    def _cold(self, limit: int) -> tuple[pa.RecordBatch, bool]:
        """The next events from the log: at most `limit`, and whether that was all."""
        if self._cursor is None:
            self._cursor = self._new_cursor()
        try:
            self._cursor.execute("BEGIN")
            try:
                self._check_edges(self._cursor)
                return self._log_batch(self._cursor, limit)
            finally:
                self._cursor.execute("COMMIT")
        except duckdb.Error as error:
            if not self._alive():
                raise UndefinedObject(f'stream "{self._query.stream.name}" does not exist') from error
            raise translated(error) from error

    def _check_edges(self, cursor: duckdb.DuckDBPyConnection) -> None:
        edges = read_edges(cursor, self._query.stream.stream_id)
        for number, (trimmed, _) in edges.items():
            if number in self._after and self._after[number] < trimmed:
                raise self._gap(number, self._after[number])

    def _log_batch(self, cursor: duckdb.DuckDBPyConnection, limit: int) -> tuple[pa.RecordBatch, bool]:
        """Events of a window of log rows; windows without an event of ours are passed over."""
        low = min(self._after.values())
        rows = min(max(2 * limit, WINDOW_ROWS_MIN), BATCH_ROWS)
        while True:
            window = f"lsn > {low} AND lsn <= {self.through_lsn}"
            row = ask_maybe(
                cursor,
                f"SELECT lsn FROM {self._query.captured.table.log} WHERE {window} "
                f"ORDER BY lsn LIMIT 1 OFFSET {rows - 1}",
            )
            high = self.through_lsn if row is None else int(row[0])
            table = cursor.sql(self._window_sql(low, high, limit + 1)).to_arrow_table()
            more = table.num_rows > limit
            if table.num_rows or high >= self.through_lsn:
                batch = as_batch(table.slice(0, limit))
                return batch, not more and high >= self.through_lsn
            low = high

    def _window_sql(self, low: int, high: int, limit: int) -> str:
        where = f"lsn > {low} AND lsn <= {high}"
        # tx_last wants the window's last transaction whole.
        whole = (
            f"lsn > {low} AND lsn <= coalesce((SELECT max(last_lsn) FROM {SCHEMA}.commits "
            f"WHERE first_lsn <= {high}), {high})"
        )
        sql = self._query.sql(where, self._query.last_of_transaction(whole))
        partitions = len(self._buffer.partitions)
        starts = [self._after.get(number, self.through_lsn) for number in range(partitions)]
        if len(set(starts)) == 1:
            after = f"lsn > {starts[0]}"
        else:
            after = f"lsn > [{', '.join(map(str, starts))}][partition + 1]"
        return f"SELECT * FROM ({sql}) WHERE {after} ORDER BY lsn LIMIT {limit}"

    def interrupt(self) -> None:
        """End a query of the scan that is under way; from any thread."""
        cursor = self._cursor
        if cursor is not None:
            cursor.interrupt()

    def close(self) -> None:
        """Free the scan's cursor."""
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None


def as_batch(table: pa.Table) -> pa.RecordBatch:
    """A table as one batch."""
    chunks = table.combine_chunks().to_batches()
    if chunks:
        return chunks[0]
    return pa.RecordBatch.from_pylist([], schema=table.schema)
