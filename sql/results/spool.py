"""The stored rest of a session's unfinished results: in memory to a bound, then in a file of its own.

DuckDB's cursor has one open result, so another statement, or a commit that a cursor outlives, takes the
rest of a result from it. The rest of all results of a session together uses `spool_memory_bytes_max` of
memory; further batches are in the session's file (engine/storage/spill.py), each as an Arrow IPC stream,
and are read back one by one: one batch of a session's file is in memory at a time. Source:
docs/design/sql.md, "Cursors".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from ...engine.storage.spill import Extent, SpillFile, SpillSpace
from .results import ResultBatch, Source


@dataclass(slots=True, eq=False)
class Kept:
    """A batch that a spool keeps.

    Args:
        batch: the rows where they are in memory.
        extent: their place in the file where they are there.
        made_again: makes the batch of the rows that were stored.
    """

    row_count: int
    size: int
    batch: ResultBatch | None
    extent: Extent | None = None
    made_again: Callable[[pa.RecordBatch], ResultBatch] | None = None


class Spool:
    """See the head of the file.

    Args:
        space: where the file lies.
        memory_max: bytes that the session keeps in memory.
    """

    def __init__(self, space: SpillSpace, memory_max: int) -> None:
        self._file = SpillFile(space)
        self._memory_max = memory_max
        self._memory = 0
        self._last: tuple[Kept, ResultBatch] | None = None

    @property
    def memory_bytes(self) -> int:
        """The bytes that it holds in memory."""
        return self._memory

    @property
    def file_bytes(self) -> int:
        """The bytes that it holds in its file."""
        return self._file.size

    def keep(self, batch: ResultBatch) -> Kept:
        """Keep a batch.

        Raises:
            OutOfMemory: all files together hold too much. IoError: it cannot be written.
        """
        size = batch.size
        if self._memory + size <= self._memory_max:
            self._memory += size
            return Kept(batch.row_count, size, batch)
        rows, made_again = batch.stored()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_batch(rows)
        extent = self._file.write(memoryview(sink.getvalue()))
        return Kept(batch.row_count, 0, None, extent, made_again)

    def batch(self, kept: Kept) -> ResultBatch:
        """A batch that is kept.

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

    def free(self, kept: Kept) -> None:
        """A batch is not wanted any more; once only."""
        if self._last is not None and self._last[0] is kept:
            self._last = None
        if kept.extent is not None:
            self._file.free(kept.extent)
        self._memory -= kept.size

    def close(self) -> None:
        """Free all."""
        self._last = None
        self._file.close()


class KeptSource:
    """The rest of a result, freed as it is taken."""

    detached = True

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._kept: deque[Kept] = deque()
        self._taken = 0  # rows of the first batch

    def add(self, batch: ResultBatch) -> None:
        """Keep the next rows.

        Raises:
            OutOfMemory. IoError.
        """
        self._kept.append(self._spool.keep(batch))

    def fill(self, first: ResultBatch | None, source: Source) -> None:
        """Keep some rows, and all that a source has left.

        Raises:
            DucktailError: there is no room for them, or the source fails under way.
        """
        if first is not None:
            self.add(first)
        while (batch := source.next(None)) is not None:
            self.add(batch)
        source.close()

    def next(self, limit: int | None) -> ResultBatch | None:
        """The next rows, at most `limit`: the rest of a batch stays where it is."""
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
        """Free the rest."""
        while self._kept:
            self._spool.free(self._kept.popleft())
