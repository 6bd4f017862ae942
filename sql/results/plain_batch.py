"""A batch of few rows as raw Python values, without Arrow until somebody asks for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ...engine.values import copy_rows, plain_rows
from ...engine.values.copy_rows import CopyForm
from ...engine.values.plain_rows import Row
from .results import ArrowBatch, Batch


@dataclass(frozen=True, slots=True)
class PlainBatch:
    """Rows as raw values.

    Args:
        types: the DuckDB types of their columns.
        schema: Arrow's for the same query.
    """

    rows: Sequence[Row]
    types: tuple[str, ...]
    schema: pa.Schema

    @property
    def row_count(self) -> int:
        """How many rows."""
        return len(self.rows)

    @property
    def size(self) -> int:
        """Bytes that they hold, as Arrow."""
        return int(self.record_batch().nbytes)

    def cut(self, start: int, count: int | None) -> Batch:
        """Some of the rows."""
        rows = self.rows[start : None if count is None else start + count]
        return PlainBatch(rows, self.types, self.schema)

    def turned(self) -> Batch:
        """The rows from the last to the first."""
        return PlainBatch(self.rows[::-1], self.types, self.schema)

    def record_batch(self) -> pa.RecordBatch:
        """The rows as Arrow."""
        columns = zip(*self.rows, strict=True) if self.rows else [()] * len(self.types)
        arrays = [pa.array(list(c), field.type) for c, field in zip(columns, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def stored(self) -> tuple[pa.RecordBatch, Callable[[pa.RecordBatch], Batch]]:
        """The rows as Arrow, as which they come back."""
        return self.record_batch(), ArrowBatch

    def parts(self) -> Sequence[Batch]:
        """None: they are few."""
        return ()

    def datarows(self, types: Sequence[str], formats: Sequence[int], timezone: str) -> bytes | memoryview:
        """The rows as DataRow messages."""
        return plain_rows.encode(self.rows, types, formats, timezone)

    def copy_rows(self, types: Sequence[str], form: CopyForm, timezone: str) -> bytes | memoryview:
        """The rows as CopyData messages."""
        return copy_rows.encode(self.record_batch(), types, form, timezone)
