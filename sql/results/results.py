"""The result of a statement: its columns, its rows batch by batch, and its command tag.

The session's driver fetches a result a bounded number of rows at a time, so that the first row is available
before the last one is computed and memory stays bounded. `fetch` runs DuckDB work: the gateway calls it on a
worker thread. Fetching past the end returns the result's tag and informs the session that the answer is
complete, which sets the read position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import duckdb
import pyarrow as pa

from ...engine.buffers.read_ahead import EncodedPage
from ...engine.duck.duckdb_errors import translated
from ...engine.errors import DucktailError
from ...engine.log import events
from ...engine.log.events import event_batch, rows_in_formats
from ...engine.log.log import EVENT_COLUMNS, EVENT_NAMES, EVENT_TYPES
from ...engine.values import copy_rows, datarow
from ...engine.values.copy_rows import CopyForm
from ...engine.waiting import Waiting
from ..text.spans import Replacement, user_position

# Rows in one batch from DuckDB. They are encoded in two halves, each of the best size for the encoder.
BATCH_ROWS = 16_384
# More rows than the first need a thread to encode them; halves of at least the second have one each.
INLINE_ROWS_MAX, PART_ROWS_MIN = 1024, 4096
# Complete results of up to this many rows stay in memory and are never spooled.
READY_ROWS_MAX = 256


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """A column of a result.

    Args:
        type: its DuckDB type text.
        table_oid, number: OID of the table and number of the column whose values it has, for a client of the
            wire; 0 if it is no column of a table.
    """

    name: str
    type: str
    table_oid: int = 0
    number: int = 0


ALL_COLUMNS = tuple(range(len(EVENT_NAMES)))
EVENT_RESULT = tuple(ResultColumn(name, type_) for name, type_ in EVENT_COLUMNS)


class ResultBatch(Protocol):
    """Some rows of a result."""

    @property
    def row_count(self) -> int:
        """The number of rows."""

    @property
    def size(self) -> int:
        """The size of the rows in bytes."""

    def cut(self, start: int, count: int | None) -> ResultBatch:
        """A slice of the rows: `count` rows from `start`, or all from there if None."""

    def turned(self) -> ResultBatch:
        """The rows in reverse order."""

    def record_batch(self) -> pa.RecordBatch:
        """The rows as Arrow, in the result's columns."""

    def stored(self) -> tuple[pa.RecordBatch, Callable[[pa.RecordBatch], ResultBatch]]:
        """The batch as Arrow, and the function that restores it."""

    def parts(self) -> Sequence[ResultBatch]:
        """The rows in parts for encoding threads; empty if a thread is not worth its cost."""

    def datarows(self, types: Sequence[str], formats: Sequence[int], timezone: str) -> bytes | memoryview:
        """The rows as PostgreSQL DataRow messages; `formats` has one entry a column: 0 text, 1 binary."""

    def copy_rows(self, types: Sequence[str], form: CopyForm, timezone: str) -> bytes | memoryview:
        """The rows as the CopyData messages of a COPY ... TO STDOUT."""


@dataclass(frozen=True, slots=True)
class ArrowBatch:
    """Rows that DuckDB has returned."""

    rows: pa.RecordBatch

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return int(self.rows.num_rows)

    @property
    def size(self) -> int:
        """The size of the rows in bytes."""
        return int(self.rows.nbytes)

    def cut(self, start: int, count: int | None) -> ResultBatch:
        """A slice of the rows."""
        return ArrowBatch(self.rows.slice(start, count))

    def turned(self) -> ResultBatch:
        """The rows in reverse order."""
        return ArrowBatch(turned_rows(self.rows))

    def record_batch(self) -> pa.RecordBatch:
        """The rows as Arrow."""
        return self.rows

    def stored(self) -> tuple[pa.RecordBatch, Callable[[pa.RecordBatch], ResultBatch]]:
        """The rows, and the function that restores a batch from them."""
        return self.rows, ArrowBatch

    def parts(self) -> Sequence[ResultBatch]:
        """Two parts if there are enough rows: the encoder then releases Python's lock in between."""
        half = self.row_count // 2
        if half < PART_ROWS_MIN:
            return (self,) if self.row_count > INLINE_ROWS_MAX else ()
        return self.cut(0, half), self.cut(half, None)

    def datarows(self, types: Sequence[str], formats: Sequence[int], timezone: str) -> bytes | memoryview:
        """The rows as DataRow messages."""
        return datarow.encode(self.rows, types, formats, timezone)

    def copy_rows(self, types: Sequence[str], form: CopyForm, timezone: str) -> bytes | memoryview:
        """The rows as CopyData messages."""
        return copy_rows.encode(self.rows, types, form, timezone)


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events in the form of the buffers: DataRows in text format, in UTC.

    Args:
        rows: whole events; in ENVELOPE CHANGES, an update is two rows with one LSN.
        lsns, partitions: LSN and partition of each row.
        columns: indexes of the event's columns that the result has; None for all.
        types: the types of all columns of the rows.
        parted: the last row's event continues in the next batch.
    """

    rows: list[bytes]
    lsns: list[int]
    partitions: list[int]
    columns: tuple[int, ...] | None = None
    types: tuple[str, ...] = EVENT_TYPES
    parted: bool = False

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return len(self.rows)

    @property
    def size(self) -> int:
        """The size of the rows in bytes."""
        return sum(map(len, self.rows))

    def cut(self, start: int, count: int | None) -> ResultBatch:
        """A slice of the rows."""
        end = len(self.rows) if count is None else min(start + count, len(self.rows))
        parted = self.parted
        if start < end < len(self.rows):
            parted = self.lsns[end - 1] == self.lsns[end]
        part = slice(start, end)
        return EventBatch(
            self.rows[part], self.lsns[part], self.partitions[part], self.columns, self.types, parted
        )

    def turned(self) -> ResultBatch:
        """The rows in reverse order; a backward move does not affect a read position."""
        rows, lsns, partitions = self.rows[::-1], self.lsns[::-1], self.partitions[::-1]
        return EventBatch(rows, lsns, partitions, self.columns, self.types)

    @property
    def whole(self) -> slice:
        """The rows up to the last complete event."""
        return slice(0, len(self.rows) - self.parted)

    def record_batch(self) -> pa.RecordBatch:
        """The rows as Arrow; with an event's own columns only."""
        # In process, ENVELOPE CHANGES is read from the log as Arrow, so no text is parsed again.
        assert self.types is EVENT_TYPES
        batch = event_batch(self.rows)
        return batch if self.columns is None else batch.select(list(self.columns))

    def stored(self) -> tuple[pa.RecordBatch, Callable[[pa.RecordBatch], ResultBatch]]:
        """The ready bytes with their positions, and the function that restores a batch from them."""
        arrays = [
            pa.array(self.rows, pa.binary()),
            pa.array(self.lsns, pa.int64()),
            pa.array(self.partitions, pa.int32()),
        ]
        columns, types, parted = self.columns, self.types, self.parted

        def made_again(stored: pa.RecordBatch) -> ResultBatch:
            rows, lsns, partitions = (column.to_pylist() for column in stored.columns)
            return EventBatch(rows, lsns, partitions, columns, types, parted)

        return pa.RecordBatch.from_arrays(arrays, ["row", "lsn", "partition"]), made_again

    def parts(self) -> Sequence[ResultBatch]:
        """None: ready rows are only joined."""
        return ()

    def datarows(self, types: Sequence[str], formats: Sequence[int], timezone: str) -> bytes | memoryview:
        """The rows as DataRow messages: the ready bytes themselves if the client asks for that format."""
        return rows_in_formats(self.rows, types, self.columns, formats, timezone)

    def copy_rows(self, types: Sequence[str], form: CopyForm, timezone: str) -> bytes | memoryview:
        """The rows as CopyData messages."""
        return events.copy_rows(self.rows, types, self.columns, form, timezone)


# The Arrow types of an event's columns that are no texts.
_NULLS = {
    "BIGINT": pa.int64(),
    "INTEGER": pa.int32(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP WITH TIME ZONE": pa.timestamp("us", "UTC"),
}


@dataclass(frozen=True, slots=True)
class LogBatch:
    """Events from the log as Arrow; JSON is text.

    Args:
        page: the rows among which they are.
        part: their places.
        columns: the places of the result's columns.
        lsns, partitions: LSN and partition of each row of the batch.
    """

    page: EncodedPage
    part: slice
    columns: tuple[int, ...]
    lsns: list[int]
    partitions: list[int]

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return len(self.lsns)

    @property
    def size(self) -> int:
        """The size of the rows in bytes."""
        return int(self.record_batch().nbytes)

    @property
    def whole(self) -> slice:
        """All rows: each is an event."""
        return slice(None)

    def cut(self, start: int, count: int | None) -> ResultBatch:
        """A slice of the rows."""
        end = self.row_count if count is None else min(start + count, self.row_count)
        part = slice(self.part.start + start, self.part.start + end)
        return LogBatch(self.page, part, self.columns, self.lsns[start:end], self.partitions[start:end])

    def turned(self) -> ResultBatch:
        """The rows in reverse order."""
        return _log_batch(turned_rows(self.record_batch()), self.lsns[::-1], self.partitions[::-1])

    def record_batch(self) -> pa.RecordBatch:
        """The rows."""
        return self.page.rows.slice(self.part.start, self.row_count).select(list(self.columns))

    def ready(self) -> EventBatch:
        """The events in the form that the buffers hold; columns that were not read are NULL."""
        rows = self.page.rows.slice(self.part.start, self.row_count)
        there = rows.schema.names
        places = [there.index(name) if name in there else None for name in EVENT_NAMES]
        arrays = [
            pa.nulls(rows.num_rows, _NULLS.get(type_, pa.string())) if place is None else rows.column(place)
            for place, type_ in zip(places, EVENT_TYPES, strict=True)
        ]
        columns = tuple(EVENT_NAMES.index(there[place]) for place in self.columns)
        ready = datarow.messages(pa.RecordBatch.from_arrays(arrays, names=list(EVENT_NAMES)), EVENT_TYPES)
        return EventBatch(
            ready, self.lsns, self.partitions, None if columns == ALL_COLUMNS else columns, EVENT_TYPES
        )

    def stored(self) -> tuple[pa.RecordBatch, Callable[[pa.RecordBatch], ResultBatch]]:
        """The rows, and the function that restores a batch from them."""
        lsns, partitions = self.lsns, self.partitions
        return self.record_batch(), lambda rows: _log_batch(rows, lsns, partitions)

    def parts(self) -> Sequence[ResultBatch]:
        """The rows in parts for encoding threads: in one, if the whole page is to be encoded with them."""
        if self._is_page:
            return ArrowBatch(self.record_batch()).parts()
        return () if self.page.is_encoded or self.page.rows.num_rows <= INLINE_ROWS_MAX else (self,)

    @property
    def _is_page(self) -> bool:
        return self.row_count == self.page.rows.num_rows and not self.page.is_encoded

    def datarows(self, types: Sequence[str], formats: Sequence[int], timezone: str) -> bytes | memoryview:
        """The rows as DataRow messages."""
        return self.page.datarows(self.part, self.columns, types, formats, timezone)

    def copy_rows(self, types: Sequence[str], form: CopyForm, timezone: str) -> bytes | memoryview:
        """The rows as CopyData messages."""
        return copy_rows.encode(self.record_batch(), types, form, timezone)


def _log_batch(rows: pa.RecordBatch, lsns: list[int], partitions: list[int]) -> LogBatch:
    """A batch of rows that are a page of their own."""
    columns = tuple(range(rows.num_columns))
    return LogBatch(EncodedPage(rows), slice(0, rows.num_rows), columns, lsns, partitions)


class CopyIn(Protocol):
    """A running COPY FROM STDIN."""

    @property
    def column_count(self) -> int:
        """The number of columns in a row."""

    @property
    def binary(self) -> bool:
        """True if the rows are in the binary format."""

    def write(self, data: bytes) -> Waiting[None]:
        """Accept a piece of the client's data."""

    def finish(self) -> Waiting[Result]:
        """Complete the COPY after the client's last piece."""


@dataclass(frozen=True, slots=True)
class CopyOut:
    """The format in which the rows of a COPY ... TO STDOUT are sent.

    Args:
        header: the first line has the column names.
    """

    form: CopyForm
    header: bool


class Source(Protocol):
    """The source of a result's rows."""

    def next(self, limit: int | None) -> ResultBatch | None:
        """Up to `limit` more rows; None at the end."""

    def close(self) -> None:
        """Free the resources; may be called twice."""


class Rest(Source, Protocol):
    """Storage for the rest of a result, and the source of its rows from then on."""

    def fill(self, first: ResultBatch | None, source: Source) -> None:
        """Store a batch and all remaining rows of a source, and close the source."""


Guard = Callable[[Callable[[], "ResultBatch | None"]], "ResultBatch | None"]


class NoRows:
    """The source of a statement that returns no rows."""

    def next(self, limit: int | None) -> ResultBatch | None:
        """Return None."""
        return None

    def close(self) -> None:
        """Nothing to free."""


class ArrowSource:
    """Rows of Arrow batches.

    Args:
        batches: the rows; raises duckdb.Error if DuckDB fails in the middle.
        text: the user's own text if DuckDB ran it, for the position of an error.

    Attributes:
        pieces: the insertions into the user's text for DuckDB.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch], text: str | None = None) -> None:
        self._batches = batches
        self._text = text
        self.pieces: Sequence[Replacement] = ()

    def next(self, limit: int | None) -> ResultBatch | None:
        """The next batch, of any size: the result cuts it to the limit."""
        try:
            for batch in self._batches:
                if batch.num_rows:
                    return ArrowBatch(batch)
        except (duckdb.Error, OSError) as error:
            told = translated(error, self._text)
            if told.position is not None:
                told.position = user_position(told.position, self.pieces)
            raise told from error
        return None

    def close(self) -> None:
        """Discard the batches."""
        self._batches = iter(())


class ReadySource:
    """Few rows, all in memory."""

    detached = inline = True

    def __init__(self, batches: Sequence[ResultBatch]) -> None:
        self._batches = list(reversed(batches))

    def next(self, limit: int | None) -> ResultBatch | None:
        """The next batch."""
        return self._batches.pop() if self._batches else None

    def close(self) -> None:
        """Discard the batches."""
        self._batches.clear()


class Result:
    """The answer to one statement.

    Args:
        columns: the columns of its rows; None if it returns no rows.
        source: the rows.
        tag: returns PostgreSQL's command tag for the number of returned rows ("SELECT 3").
        on_end: called once, when all rows are fetched (True) or it is closed before that (False).
        on_rows: called after each fetch with rows, before they are returned.
        on_fail: called when it fails in the middle.
        on_suspend: called when the rows returned so far are an answer by themselves.
    """

    def __init__(
        self,
        columns: tuple[ResultColumn, ...] | None,
        source: Source,
        tag: Callable[[int], str],
        on_end: Callable[[bool], None] | None = None,
        on_rows: Callable[[ResultBatch], None] | None = None,
        on_fail: Callable[[], None] | None = None,
        on_suspend: Callable[[], None] | None = None,
    ) -> None:
        self.columns = columns
        self.tag: str | None = None
        self.row_count = 0
        self.source = source
        self._tag = tag
        self._on_end = on_end
        self._on_rows = on_rows
        self._on_fail = on_fail
        self._on_suspend = on_suspend
        # The statement has written and is committed: no cancel may answer it as failed.
        self.committed = False
        # Rows of an incomplete answer have been returned: its client may not receive them.
        self._midway = False
        # The receiver of the rows of a COPY FROM STDIN, whose answer follows later.
        self.copy_in: CopyIn | None = None
        # The format of its rows in a COPY ... TO STDOUT; None otherwise.
        self.copy_out: CopyOut | None = None
        # The Arrow schema of its rows, if DuckDB returns them as Arrow.
        self.arrow_schema: pa.Schema | None = None
        # Column formats that the statement itself asks for, as in Bind: FETCH of a BINARY cursor.
        self.formats: Sequence[int] = ()
        self._guard: Guard | None = None
        # The wait for its next rows, if they come from another node.
        self._arrive: Callable[[int | None], Waiting[None]] | None = None
        # The wait after its end, before its client learns of the end.
        self._settle: Callable[[], Waiting[None]] | None = None
        self._rest: ResultBatch | None = None
        self._ended = False
        self._lost: DucktailError | None = None

    @classmethod
    def command(cls, tag: str) -> Result:
        """The answer of a statement without rows."""
        result = cls(None, NoRows(), lambda _: tag)
        result.tag, result._ended = tag, True
        return result

    @classmethod
    def without_rows(cls, columns: tuple[ResultColumn, ...]) -> Result:
        """The complete answer of a query that returns no row."""
        result = cls(columns, NoRows(), select_tag)
        result._end(complete=True)
        return result

    @property
    def holds_cursor(self) -> bool:
        """True if its rows still come from the session's own DuckDB cursor."""
        return not (self._ended or getattr(self.source, "detached", False))

    @property
    def inline(self) -> bool:
        """True if the next fetch needs no DuckDB work, so that an event loop may do it itself."""
        return self._ended or bool(getattr(self.source, "inline", False))

    def is_ready(self, rows: int | None) -> bool:
        """True if fetching so many rows, None for all, needs no DuckDB work; see `inline`."""
        has_ready: Callable[[int], bool] | None = getattr(self.source, "has_ready", None)
        return self.inline or (rows is not None and has_ready is not None and has_ready(rows))

    @property
    def elsewhere(self) -> bool:
        """True if its rows come from another node: wait with `arrive` before each fetch."""
        return self._arrive is not None

    def arrive(self, max_rows: int | None) -> Waiting[None]:
        """Wait until the next rows, at most `max_rows`, have arrived, or there are no more.

        Raises:
            DucktailError: the statement failed at the other node, or the node is lost.
        """
        if self._arrive is not None and self._rest is None and not self.inline:
            yield from self._arrive(max_rows)

    def bind_arrival(self, arrive: Callable[[int | None], Waiting[None]]) -> None:
        """Bind the arrival of rows from another node."""
        self._arrive = arrive

    @property
    def settles(self) -> bool:
        """True if `settled` must be waited for after the last row."""
        return self._settle is not None

    def settled(self) -> Waiting[None]:
        """Wait until the other places that need it know of the result's end."""
        if self._settle is not None:
            yield from self._settle()

    def bind_settling(self, settle: Callable[[], Waiting[None]]) -> None:
        """Bind the report of its end to another place, which must precede the client's."""
        self._settle = settle

    def guard_settling(self, run: Callable[[Callable[[], Waiting[None]]], Waiting[None]]) -> None:
        """Run the wait of `settled` within a call of the session."""
        settle = self._settle
        if settle is not None:
            self._settle = lambda: run(settle)

    def fetch(self, max_rows: int | None) -> ResultBatch | None:
        """The next rows, at most `max_rows` (and at most a batch); None when there are no more.

        Raises:
            DucktailError: the statement failed in the middle; the rows fetched before do not count.
        """
        if self._lost is not None:
            raise self._lost
        if self._ended:
            return None
        if self._guard is None:
            return self._next(max_rows)
        return self._guard(lambda: self._next(max_rows))

    def take(self, max_rows: int | None) -> ResultBatch | None:
        """The next rows, within a call of the session, which is guarded already."""
        if self._lost is not None:
            raise self._lost
        return None if self._ended else self._next(max_rows)

    def suspend(self) -> None:
        """Note that the client has been answered with the rows so far, and may ask for more."""
        midway, self._midway = self._midway, False
        if midway and self._on_suspend is not None:
            self._on_suspend()

    def _next(self, max_rows: int | None) -> ResultBatch | None:
        batch, self._rest = self._rest, None
        if batch is None:
            batch = self.source.next(max_rows)
        if batch is None:
            self._end(complete=True)
            return None
        if max_rows is not None and batch.row_count > max_rows:
            self._rest = batch.cut(max_rows, None)
            batch = batch.cut(0, max_rows)
        self.row_count += batch.row_count
        self._midway = True
        if self._on_rows is not None:
            self._on_rows(batch)
        return batch

    def when_ended(self, tell: Callable[[bool], None]) -> None:
        """Call a function at the end, as `on_end`, for a result without another observer."""
        assert self._on_end is None, "somebody is told of its end"
        self._on_end = tell

    def bind_guard(self, guard: Guard) -> None:
        """Run each fetch within `guard`: the session's own, for errors and cancels."""
        self._guard = guard

    def keep_rest(self, rest: Rest) -> None:
        """Move all remaining rows to `rest`, so that the source is free.

        Raises:
            DucktailError: there is no room for them, or the statement failed in the middle; the result is
                void then.
        """
        try:
            first, self._rest = self._rest, None
            rest.fill(first, self.source)
        except BaseException:
            rest.close()
            self.close()
            raise
        self.source = rest

    def copy_to(self, copy_out: CopyOut) -> None:
        """Send the rows as those of a COPY ... TO STDOUT: to their end, or not at all."""
        self.copy_out = copy_out
        self._tag = lambda rows: f"COPY {rows}"
        if self._ended:
            self.tag = self._tag(self.row_count)

    def close(self) -> None:
        """Discard the remaining rows; in the middle of an answer this is a failure."""
        if self.copy_out is not None or self._midway:
            self.fail()
        elif not self._ended:
            if self._on_suspend is not None and not self.row_count:
                self._on_suspend()  # An answer without rows.
            self._end(complete=False)

    def fail(self, lost: DucktailError | None = None) -> None:
        """Fail the statement or cancel it: the delivered rows do not count.

        With `lost`, it failed between two fetches: the next fetch raises that error.
        """
        if not self._ended:
            self._lost = lost
            self._end(complete=False)
            if self._on_fail is not None:
                self._on_fail()

    def _end(self, *, complete: bool) -> None:
        self._ended, self._midway = True, False
        self.source.close()
        if complete:
            self.tag = self._tag(self.row_count)
        if self._on_end is not None:
            self._on_end(complete)

    @property
    def ended(self) -> bool:
        """True if all rows are fetched or discarded."""
        return self._ended


def turned_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Arrow rows in reverse order."""
    return rows.take(pa.array(range(rows.num_rows - 1, -1, -1), pa.int64()))


def table_result(columns: Sequence[ResultColumn], table: pa.Table, tag: Callable[[int], str]) -> Result:
    """A result whose rows are all in memory."""
    batches = table.to_batches(BATCH_ROWS)
    # Many rows move to the session's spool when another statement runs.
    few = table.num_rows <= READY_ROWS_MAX
    source: Source = (
        ReadySource([ArrowBatch(batch) for batch in batches if batch.num_rows])
        if few
        else ArrowSource(iter(batches))
    )
    return Result(tuple(columns), source, tag)


def select_tag(rows: int) -> str:
    """The command tag of a query."""
    return f"SELECT {rows}"
