"""COPY ... FROM STDIN (FORMAT arrow): the batches of an Arrow IPC stream, written as they arrive.

Columns are matched by name. A batch is written whole or in parts of some megabytes; small batches are
combined. Source: docs/sql.md, "COPY".
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from ...engine.errors import BadCopyFileFormat, CharacterNotInRepertoire, DatatypeMismatch, DuplicateColumn
from ...engine.quoting import fold
from ...engine.values.arrow_stream import ArrowStreamReader
from ...engine.values.arrow_types import arrow_loader, first_nul
from ...engine.values.copy_columns import BadValue, ColumnLoader
from ...engine.waiting import Waiting
from ..results.results import Result
from .inserting import CopyTarget, Inserting, Refused

NUL = 'invalid byte sequence for encoding "UTF8": 0x00'
# Bytes from the client for each INSERT: Arrow's values have the same size as on the wire.
BATCH_BYTES = 8 << 20
# A longer piece is divided into parts of this size.
PIECE_BYTES_MAX = 1 << 20


class ArrowCopyIn:
    """One running COPY FROM STDIN (FORMAT arrow)."""

    binary = True

    def __init__(self, target: CopyTarget) -> None:
        self._target = target
        self._session = target.session
        self._names = target.columns
        self._context = f"COPY {target.name}"
        self._reader = ArrowStreamReader(self._context)
        self._order: list[int] = []
        self._loaders: list[ColumnLoader] = []
        self._inserting: Inserting | None = None
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0

    @property
    def column_count(self) -> int:
        """The number of columns in a row."""
        return len(self._names)

    def write(self, data: bytes) -> Waiting[None]:
        """Accept a piece of the client's data.

        Raises:
            DucktailError: the stream is broken, or does not match the table's columns, or the INSERT fails.
        """
        for start in range(0, len(data), PIECE_BYTES_MAX):
            for batch in self._reader.feed(data[start : start + PIECE_BYTES_MAX]):
                self._match()
                self._batches.append(batch)
                self._bytes += batch.nbytes
                if self._bytes >= BATCH_BYTES:
                    yield from self._flush()

    def finish(self) -> Waiting[Result]:
        """End the COPY: write the rest, and commit its own transaction."""
        self._reader.finish()
        self._match()
        yield from self._flush()
        if self._target.own:
            yield from self._session.block.commit()
            if self._inserting is not None:
                yield from self._inserting.send()
        count = 0 if self._inserting is None else self._inserting.count
        return Result.command(f"COPY {count}")

    def _match(self) -> None:
        """Match the columns, once the stream's schema has arrived."""
        schema = self._reader.schema
        if self._inserting is not None or schema is None:
            return
        given: dict[str, int] = {}
        for place, name in enumerate(schema.names):
            if fold(name) in given:
                raise DuplicateColumn(
                    f'column "{name}" stands twice in the Arrow stream', context=self._context
                )
            given[fold(name)] = place
        wanted = {fold(name) for name in self._names}
        for name in self._names:
            if fold(name) not in given:
                raise BadCopyFileFormat(
                    f'missing data for column "{name}"',
                    hint="COPY t (column, ...) names the columns that come; others get their defaults.",
                    context=self._context,
                )
        other = next((name for name in schema.names if fold(name) not in wanted), None)
        if other is not None:
            raise BadCopyFileFormat(
                f'column "{other}" of the Arrow stream is none that COPY fills', context=self._context
            )
        self._order = [given[fold(name)] for name in self._names]
        self._loaders = [self._loader(schema, place) for place in range(len(self._names))]
        self._inserting = Inserting(self._target, self._loaders)

    def _loader(self, schema: pa.Schema, place: int) -> ColumnLoader:
        """The loader of a column's values into the table's column."""
        source = schema.field(self._order[place]).type
        types = self._target.types
        target = None if types is None else types[place]
        loader = arrow_loader(source, target, self._session.variables.values["timezone"])
        if loader is None:
            raise DatatypeMismatch(
                f'column "{self._names[place]}" is of type {target} but the Arrow stream has {source}',
                hint="Cast it to a type whose values all have a place in the column's, or to text.",
                context=self._context,
            )
        return loader

    def _flush(self) -> Waiting[None]:
        """Write the complete batches."""
        batches, self._batches = self._batches, []
        size, self._bytes = self._bytes, 0
        rows = sum(batch.num_rows for batch in batches)
        if not rows:
            return
        assert self._inserting is not None
        table = pa.Table.from_batches(batches)
        step = max(1, rows * BATCH_BYTES // max(size, BATCH_BYTES))
        for first in range(0, rows, step):
            before = self._inserting.count
            part = table.slice(first, step)
            try:
                yield from self._inserting.put(list(self._columns(part, before)))
            except Refused as refused:
                error = refused.error
                error.context = f"{self._context}, rows {before + 1} to {before + part.num_rows}"
                if refused.at is not None:
                    error.context = self._place(before + refused.at[0], refused.at[1])
                raise error from refused

    def _columns(self, table: pa.Table, before: int) -> Iterator[pa.ChunkedArray | pa.Array]:
        """The columns in the order of the COPY; text for a column of another type is parsed here.

        Args:
            before: the number of rows before these.
        """
        for place, loader in enumerate(self._loaders):
            column = table.column(self._order[place])
            nul = first_nul(column)
            if nul is not None:
                where = self._place(before + nul, place)
                raise CharacterNotInRepertoire(NUL, context=where)
            if loader.read is str:
                yield column
                continue
            try:
                yield loader.load(column.to_pylist())
            except BadValue as bad:
                bad.error.context = self._place(before + bad.place, place)
                raise bad.error from bad

    def _place(self, row: int, column: int) -> str:
        """The position of a value, for an error's context; `row` counts from 0."""
        return f"{self._context}, row {row + 1}, column {self._names[column]}"
