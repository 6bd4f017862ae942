"""The stored rows of a session's results: the rest of unfinished results, and all rows of SCROLL cursors.

DuckDB's cursor has one open result, so another statement, or a commit that a cursor outlives, takes the rest
of a result from it. The rests of all results of a session together use `spool_memory_bytes_max` of memory;
further batches are in the session's file (engine/storage/spill.py), each as an Arrow IPC stream, and are read
back one by one: one batch of a session's file is in memory at a time.

DuckDB's results go forward only. Each batch of a SCROLL cursor's query is therefore stored here until the
cursor is closed; the cursor's position moves over the stored rows, and the query returns more rows when it
moves beyond them. Only new rows move a read position, which goes only forward.

Source: docs/design/sql.md, "Cursors"; PostgreSQL documentation, "FETCH".
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from ...engine.storage.spill import Extent, SpillFile, SpillSpace
from .results import Result, ResultBatch, Source


@dataclass(slots=True, eq=False)
class SpooledBatch:
    """A batch in a spool.

    Args:
        batch: the rows, if they are in memory.
        extent: their place in the file, if they are there.
        made_again: restores the batch from the stored rows.
    """

    row_count: int
    size: int
    batch: ResultBatch | None
    extent: Extent | None = None
    made_again: Callable[[pa.RecordBatch], ResultBatch] | None = None


class Spool:
    """The spool of one session.

    Args:
        space: the space for its file.
        memory_max: the maximum number of bytes in memory.
    """

    def __init__(self, space: SpillSpace, memory_max: int) -> None:
        self._file = SpillFile(space)
        self._memory_max = memory_max
        self._memory = 0
        self._last: tuple[SpooledBatch, ResultBatch] | None = None

    @property
    def memory_bytes(self) -> int:
        """The number of bytes in memory."""
        return self._memory

    @property
    def file_bytes(self) -> int:
        """The number of bytes in the file."""
        return self._file.size

    def keep(self, batch: ResultBatch) -> SpooledBatch:
        """Store a batch.

        Raises:
            OutOfMemory: all files together exceed their limit.
            IoError: the batch cannot be written.
        """
        size = batch.size
        if self._memory + size <= self._memory_max:
            self._memory += size
            return SpooledBatch(batch.row_count, size, batch)
        rows, made_again = batch.stored()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_batch(rows)
        extent = self._file.write(memoryview(sink.getvalue()))
        return SpooledBatch(batch.row_count, 0, None, extent, made_again)

    def batch(self, kept: SpooledBatch) -> ResultBatch:
        """Return a stored batch.

        Raises:
            IoError: the file cannot be read.
        """
        if kept.batch is not None:
            return kept.batch
        if self._last is None or self._last[0] is not kept:
            assert kept.extent is not None and kept.made_again is not None
            data = pa.py_buffer(self._file.read(kept.extent))
            with pa.ipc.open_stream(data) as reader:
                self._last = kept, kept.made_again(reader.read_next_batch())
        return self._last[1]

    def free(self, kept: SpooledBatch) -> None:
        """Free a batch, once only."""
        if self._last is not None and self._last[0] is kept:
            self._last = None
        if kept.extent is not None:
            self._file.free(kept.extent)
        self._memory -= kept.size

    def close(self) -> None:
        """Free all batches."""
        self._last = None
        self._file.close()


class KeptSource:
    """The rest of a result, freed as it is taken."""

    detached = True

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._kept: deque[SpooledBatch] = deque()
        self._taken = 0  # rows taken of the first batch

    def add(self, batch: ResultBatch) -> None:
        """Store the next rows.

        Raises:
            OutOfMemory: all files together exceed their limit.
            IoError: the batch cannot be written.
        """
        self._kept.append(self._spool.keep(batch))

    def fill(self, first: ResultBatch | None, source: Source) -> None:
        """Store a batch and all remaining rows of a source.

        Raises:
            DucktailError: there is no room for them, or the source fails in the middle.
        """
        if first is not None:
            self.add(first)
        while (batch := source.next(None)) is not None:
            self.add(batch)
        source.close()

    def next(self, limit: int | None) -> ResultBatch | None:
        """The next rows, at most `limit`: the rest of a batch remains stored."""
        if not self._kept:
            return None
        first, start = self._kept[0], self._taken
        batch = self._spool.batch(first)
        left = first.row_count - start
        if limit is not None and limit < left:
            self._taken += limit
            return batch.cut(start, limit)
        self._spool.free(self._kept.popleft())
        self._taken = 0
        return batch.cut(start, None) if start else batch

    def close(self) -> None:
        """Free the remaining rows."""
        while self._kept:
            self._spool.free(self._kept.popleft())


class ScrollSource:
    """The rows of a query, stored as they are computed.

    Attributes:
        given: the number of rows returned at least once; the next new row follows them.
    """

    def __init__(self, inner: Source, spool: Spool) -> None:
        self._inner = inner
        self._counts_asked = bool(getattr(inner, "counts_asked", False))
        self._spool = spool
        self._kept: list[SpooledBatch] = []
        self._starts: list[int] = []  # the number of each batch's first row, from 0
        self._count = 0
        self._ran_out = False
        self.given = 0

    @property
    def detached(self) -> bool:
        """True if it no longer uses DuckDB's cursor."""
        return self._ran_out or bool(getattr(self._inner, "detached", False))

    def next(self, limit: int | None) -> ResultBatch | None:
        """The next new rows, at most `limit`."""
        if self.given == self._count and not self._pull(limit if self._counts_asked else None):
            return None
        batch = self.between(self.given, limit)
        self.given += batch.row_count
        return batch

    def between(self, start: int, limit: int | None) -> ResultBatch:
        """Stored rows from the row number `start` on: at most `limit`, of one batch."""
        place = bisect_right(self._starts, start) - 1
        return self._spool.batch(self._kept[place]).cut(start - self._starts[place], limit)

    def start_of(self, row: int) -> int:
        """The number of the first row of the batch that contains a row."""
        return self._starts[bisect_right(self._starts, row) - 1]

    def fill(self, first: ResultBatch | None, source: Source) -> None:
        """Take all remaining rows from the query, so that DuckDB's cursor is free.

        Raises:
            DucktailError: there is no room for them, or the query fails in the middle.
        """
        assert source is self and first is None, "it gives no more rows than it is asked for"
        while self._pull():
            pass

    def close(self) -> None:
        """Close the query; stored rows are kept."""
        self._ran_out = True
        self._inner.close()

    def free(self) -> None:
        """Discard the kept rows; may be called twice."""
        kept, self._kept, self._starts, self._count = self._kept, [], [], 0
        for item in kept:
            self._spool.free(item)

    def _pull(self, limit: int | None = None) -> bool:
        """Store one more batch, of at most `limit` rows; False at the end."""
        batch = None if self._ran_out else self._inner.next(limit)
        if batch is None:
            self.close()
            return False
        self._kept.append(self._spool.keep(batch))
        self._starts.append(self._count)
        self._count += batch.row_count
        return True


class Scroll:
    """The position of a SCROLL cursor: a row (from 1), before the first (0), or after the last.

    Args:
        result: the query's result, over `source`.
    """

    def __init__(self, result: Result, source: ScrollSource) -> None:
        self._result = result
        self._source = source
        self.position = 0

    def rows(self, way: str, count: int | None) -> Iterator[ResultBatch]:
        """The rows of one FETCH, in its order; the position moves as they are taken.

        Args:
            way: FORWARD, BACKWARD, ABSOLUTE or RELATIVE.
            count: the number of rows or the row number; None means up to the end in that direction.
        """
        if way == "BACKWARD":
            way, count = "FORWARD", -(self.position if count is None else count)
        if way == "FORWARD" and count is None:
            return self._forward(None)
        assert count is not None, "only ways to an end have no count"
        if way == "ABSOLUTE":
            return self._at(count if count >= 0 else max(0, self._all() + 1 + count))
        if way == "RELATIVE" or not count:
            return self._at(max(0, self.position + count))
        return self._forward(count) if count > 0 else self._backward(-count)

    def _see(self, row: int | None) -> bool:
        """Make sure that the rows up to this number have been returned; False if there are fewer rows."""
        while row is None or self._source.given < row:
            if self._result.take(None if row is None else row - self._source.given) is None:
                return False
        return True

    def _all(self) -> int:
        self._see(None)
        return self._source.given

    def _at(self, row: int) -> Iterator[ResultBatch]:
        """Move to one row and return it."""
        if row and self._see(row):
            self.position = row
            yield self._source.between(row - 1, 1)
        else:
            self.position = self._source.given + 1 if row else 0

    def _forward(self, count: int | None) -> Iterator[ResultBatch]:
        left = count
        while left is None or left:
            if self.position < self._source.given:
                known = self._source.given - self.position
                batch = self._source.between(self.position, known if left is None else min(left, known))
            else:
                new = self._result.take(left)
                if new is None:
                    self.position = self._source.given + 1
                    return
                batch = new
            self.position += batch.row_count
            left = None if left is None else left - batch.row_count
            yield batch

    def _backward(self, count: int) -> Iterator[ResultBatch]:
        left = count
        while left and self.position > 1:
            last = self.position - 1  # the number of the row before this one, from 1
            start = max(self._source.start_of(last - 1), last - left)
            batch = self._source.between(start, last - start).turned()
            self.position = start + 1
            left -= batch.row_count
            yield batch
        if left:
            self.position = 0
