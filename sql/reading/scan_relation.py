"""A stream scan as a relation that DuckDB can read inside a larger query.

DuckDB pulls Arrow batches from a dataset while the query runs, so a LIMIT above stops the scan and memory
stays bounded. The dataset learns the columns that DuckDB's plan needs and the predicates that it pushes down:
no other column of an event is computed. A query that reads the relation more than once (a scan under a CTE
that is used twice) gets the same events each time, because the scan's bounds are fixed when it opens. One
hidden column, `__ducktail_lsn`, has the LSN of each row, for the read position.

To bind or to explain a query, empty relations or views take the place of its scans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from ...engine.buffers.scan import Scan
from ...engine.errors import DucktailError, NotSupported
from ...engine.log.envelope_changes import view_name
from ...engine.log.log import EVENT_COLUMNS
from ...engine.quoting import ident
from ..cluster import fetching
from ..cluster.gathering import GatheredScan
from ..language import statements as st
from ..language.parse import Query
from ..read_shape.shape import shapes_of
from ..session_state.context import Context
from ..text.spans import Replacement, cut
from .envelope_changes import changes_of

HIDDEN_LSN = "__ducktail_lsn"

JSON = pa.json_(pa.string())
_ARROW = {
    "BIGINT": pa.int64(),
    "INTEGER": pa.int32(),
    "BOOLEAN": pa.bool_(),
    "VARCHAR": pa.string(),
    "JSON": JSON,
    "TIMESTAMP WITH TIME ZONE": pa.timestamp("us", "UTC"),
}
SCHEMA = pa.schema([(name, _ARROW[type_]) for name, type_ in EVENT_COLUMNS])
HIDDEN_SCHEMA = SCHEMA.append(pa.field(HIDDEN_LSN, pa.int64()))

EMPTY = (
    "(SELECT " + ", ".join(f'NULL::{type_} AS "{name}"' for name, type_ in EVENT_COLUMNS) + " WHERE false)"
)


class EventRelation(pa.dataset.Dataset):  # type: ignore[misc]
    """The relation that is registered on a session's cursor for one scan of one execution.

    DuckDB reads it as it reads every dataset of Arrow's: it names the columns that the plan needs, and the
    filters on them that it leaves to the relation.

    Args:
        new_scan: begins the scan anew, with the same bounds.
        hidden: True if it has the hidden column.
        changes: True if it has the rows of ENVELOPE CHANGES, as `ChangesQuery.relation_sql` reads them
            (always with the hidden column).
    """

    def __init__(
        self, new_scan: Callable[[], Scan | GatheredScan], *, hidden: bool, changes: bool = False
    ) -> None:
        # Not the constructor of Arrow's class, which wraps a dataset of its own.
        self._new_scan = new_scan
        self._changes = changes
        self._known: pa.Schema | None = HIDDEN_SCHEMA if hidden else SCHEMA
        if changes:
            self._known = None
        self._scans: list[Scan | GatheredScan] = []
        self.error: DucktailError | None = None

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        if self._known is None:
            scan = self._begun()
            self._known = scan.schema()
            scan.close()
        return self._known

    def _begun(self) -> Scan | GatheredScan:
        scan = self._new_scan()
        self._scans.append(scan)
        return scan

    def scanner(
        self, columns: list[str] | None = None, filter: pc.Expression | None = None, **_: object
    ) -> EventScanner:
        """The events from the scan's beginning.

        Args:
            columns: names of the columns to read; None for all.
            filter: a predicate that the rows must satisfy.
        """
        names = self.schema.names if columns is None else columns
        shown = pa.schema([self.schema.field(name) for name in names])
        return EventScanner(pa.RecordBatchReader.from_batches(shown, self._batches(shown, filter)))

    def _batches(self, shown: pa.Schema, filter: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        read = shown
        if filter is not None:
            # Arrow does not tell the columns of an expression; a name in a text is one column too many.
            text = str(filter)
            more = [field for field in self.schema if field.name in text and field.name not in shown.names]
            read = pa.schema([*shown, *more])
        scan = self._begun()
        try:
            for batch in scan.batches(self._names(read)):
                if not self._changes:
                    batch = shaped(batch, read)
                if filter is not None:
                    batch = _filtered(batch, filter).select(shown.names)
                yield batch
        except DucktailError as error:
            # DuckDB would wrap it in its own message: the runner raises this error instead.
            self.error = error
            raise
        finally:
            scan.close()

    def _names(self, read: pa.Schema) -> list[str]:
        """The select list of the columns that are read."""
        if self._changes:
            return list(read.names)
        return [f"lsn AS {HIDDEN_LSN}" if name == HIDDEN_LSN else name for name in read.names]

    def interrupt(self) -> None:
        """End the scan's own queries; from any thread."""
        for scan in list(self._scans):
            scan.interrupt()

    def close(self) -> None:
        """Free the scans."""
        for scan in self._scans:
            scan.close()


@dataclass(frozen=True, slots=True)
class EventScanner:
    """One read of a relation, as DuckDB asks a dataset's scanner for it."""

    reader: pa.RecordBatchReader

    @property
    def projected_schema(self) -> pa.Schema:
        """The columns of the rows."""
        return self.reader.schema

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows."""
        return self.reader


def _filtered(batch: pa.RecordBatch, filter: pc.Expression) -> pa.RecordBatch:
    """The rows that satisfy a predicate of Arrow's, which does not compare values of extension types."""
    plain = [c.storage if isinstance(c, pa.ExtensionArray) else c for c in batch.columns]
    names = pa.table([*plain, pa.array(range(batch.num_rows))], names=[*batch.schema.names, ""])
    return batch.take(names.filter(filter).column("").combine_chunks())


def shaped(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert events to a schema: JSON has its own type, and other columns are omitted."""
    arrays = []
    for field in schema:
        name = field.name
        if batch.schema.get_field_index(name) < 0:
            # Events gathered from several nodes have a number in a last column.
            name = batch.schema.names[-1]
        column = batch.column(name)
        if isinstance(field.type, pa.BaseExtensionType):
            if isinstance(column, pa.ExtensionArray):
                column = column.storage
            column = pa.ExtensionArray.from_storage(field.type, column.cast(pa.string()))
        elif column.type != field.type:
            column = column.cast(field.type)
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def relation_of(scan: st.Scan, relation: str) -> Replacement:
    """The replacement of a scan: a relation under the scan's own alias and column names."""
    columns = f"({', '.join(map(ident, scan.columns))})" if scan.columns else ""
    return Replacement(scan.start, scan.end, f"{relation} AS {ident(scan.visible_name)}{columns}")


def bindable(session: Context, query: Query) -> str:
    """The text for DuckDB's binder: each scan an empty relation of its columns."""
    return cut(query.text, empty_scans(session, query))


def explainable(session: Context, query: Query) -> str:
    """The text for EXPLAIN: each scan the stream's view, which reads the log as a cold scan does."""
    pieces = []
    for scan in query.scans:
        if scan.away is not None:
            pieces.append(relation_of(scan, fetching.empty_sql(scan)))
            continue
        stream = session.names.scanned(scan.stream.parts, scan.stream.position, scan.kind)
        if isinstance(scan.group, str):
            session.access.group(stream, scan.group, session.block.transaction)
        view = stream.name if changes_of(session, scan) is None else view_name(stream)
        pieces.append(relation_of(scan, f"{ident(stream.schema)}.{ident(view)}"))
    return cut(query.text, pieces + unlimited(query))


def empty_scans(session: Context, query: Query) -> list[Replacement]:
    """The replacement of each scan by an empty relation, and of clauses that DuckDB does not know."""
    return [relation_of(scan, _empty(session, scan)) for scan in query.scans] + unlimited(query)


def _empty(session: Context, scan: st.Scan) -> str:
    if scan.away is not None:
        return fetching.empty_sql(scan)
    changes = changes_of(session, scan)
    return EMPTY if changes is None else changes.empty_sql()


def unlimited(query: Query) -> list[Replacement]:
    """The removal of the clause LIMIT n TRANSACTIONS: it ends the scan, not the rows.

    Raises:
        NotSupported: the clause is at a place where it cannot end the scan.
    """
    clause = query.transactions
    if clause is None:
        return []
    misplaced = shapes_of(query)[0].misplaced
    if misplaced:
        raise NotSupported(
            f"LIMIT ... TRANSACTIONS is not supported here: {misplaced}",
            hint="It is the LIMIT of the query that reads the stream, or of one around it.",
            position=clause.start + 1,
        )
    return [Replacement(clause.start, clause.end, "")]
