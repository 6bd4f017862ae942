"""Result batches: rows of any size in Arrow batches, and few rows as raw Python values.

The size of rows is not known in advance. Small batches that are joined later made ordinary results a tenth
more expensive, so DuckDB fills a batch of many rows as usual; a large batch is divided, so that only a part
is encoded at once. A column of one batch has at most 2 GiB of text, because Arrow counts it in 32 bits: if
the very first batch has more, nothing of the answer has been sent, and the query runs again with few rows in
each batch.

A batch of few rows stays raw Python values until Arrow is requested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ...engine.errors import ProgramLimitExceeded
from ...engine.values import copy_rows, datarow
from ...engine.values.copy_rows import CopyForm
from ...engine.values.datarow import Row
from .results import ArrowBatch, ResultBatch

# About the number of bytes to encode at once; a single row may be larger.
PART_BYTES_MAX = 32 << 20
# Rows of a batch after a batch of many rows had too much text: rows of 16 MiB on average still fit.
FEW_ROWS = 128
# DuckDB's message for a column with too much text in one batch.
TOO_MUCH = "Arrow Appender: The maximum total string size"


def in_parts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Divide batches so that none is too large to be encoded at once, unless it is one row."""
    for batch in batches:
        yield from _parts(batch)


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    # The buffers' size is quickly known, and is at least the size of the rows in them.
    small = batch.get_total_buffer_size() <= PART_BYTES_MAX or batch.nbytes <= PART_BYTES_MAX
    if small or batch.num_rows <= 1:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _parts(batch.slice(0, half))
    yield from _parts(batch.slice(half))


def taken(
    batches: Iterable[pa.RecordBatch], again: Callable[[], Iterable[pa.RecordBatch]] | None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a query, batch by batch.

    Args:
        again: runs the query again with few rows in a batch; None if it cannot run again.

    Raises:
        ProgramLimitExceeded: the rows of one batch have too much text.
        OSError: DuckDB failed.
    """
    begun = False
    try:
        for batch in in_parts(batches):
            begun = True
            yield batch
        return
    except OSError as error:
        if TOO_MUCH not in str(error):
            raise
        if begun or again is None:
            raise ProgramLimitExceeded(
                "the rows of the answer have more text than can be sent",
                detail="A column has more than 2 GiB in some thousands of rows.",
                hint="Ask for fewer rows at a time, with LIMIT or WHERE; or outside of a transaction block.",
            ) from error
    yield from in_parts(again())


@dataclass(frozen=True, slots=True)
class PlainBatch:
    """Rows as raw Python values.

    Args:
        types: the DuckDB types of their columns.
        schema: the Arrow schema of the same query.
    """

    rows: Sequence[Row]
    types: tuple[str, ...]
    schema: pa.Schema

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return len(self.rows)

    @property
    def size(self) -> int:
        """The size of the rows as Arrow, in bytes."""
        return int(self.record_batch().nbytes)

    def cut(self, start: int, count: int | None) -> ResultBatch:
        """A slice of the rows."""
        rows = self.rows[start : None if count is None else start + count]
        return PlainBatch(rows, self.types, self.schema)

    def turned(self) -> ResultBatch:
        """The rows in reverse order."""
        return PlainBatch(self.rows[::-1], self.types, self.schema)

    def record_batch(self) -> pa.RecordBatch:
        """The rows as Arrow."""
        columns = zip(*self.rows, strict=True) if self.rows else [()] * len(self.types)
        arrays = [pa.array(list(c), field.type) for c, field in zip(columns, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def stored(self) -> tuple[pa.RecordBatch, Callable[[pa.RecordBatch], ResultBatch]]:
        """The rows as Arrow, and the function that restores a batch from them."""
        return self.record_batch(), ArrowBatch

    def parts(self) -> Sequence[ResultBatch]:
        """None: there are too few rows to divide."""
        return ()

    def datarows(self, types: Sequence[str], formats: Sequence[int], timezone: str) -> bytes | memoryview:
        """The rows as DataRow messages."""
        return datarow.encode_raw(self.rows, types, formats, timezone)

    def copy_rows(self, types: Sequence[str], form: CopyForm, timezone: str) -> bytes | memoryview:
        """The rows as CopyData messages."""
        return copy_rows.encode(self.record_batch(), types, form, timezone)
