"""The relation of a stream scan, which DuckDB reads inside a larger query.

DuckDB pulls Arrow batches from a dataset while the query runs, so a LIMIT above stops the scan and memory
stays bounded. The dataset learns the columns that DuckDB's plan needs and the predicates that it pushes down:
no other column of an event is computed. A query that reads the relation more than once (a scan under a CTE
that is used twice) gets the same events each time, because the scan's bounds are fixed when it opens.

It is imported by the first read that needs it: Arrow's datasets take time and memory, and import pandas where
it is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from ...engine.buffers.scan import Scan
from ...engine.errors import DucktailError
from ...engine.groups.deliveries import Delivery
from ...engine.log.envelope_changes import ChangesQuery
from ...engine.log.log import DELIVERIES, EVENT_COLUMNS
from ..cluster.gathering import GatheredScan
from .scan_relation import HIDDEN_LSN

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
COUNTED_SCHEMA = SCHEMA.append(pa.field(DELIVERIES[0], _ARROW[DELIVERIES[1]]))
Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]
_HIDDEN = pa.field(HIDDEN_LSN, pa.int64())
# The schema without and with the hidden column, by WITH DELIVERIES.
_SCHEMAS = {False: (SCHEMA, SCHEMA.append(_HIDDEN)), True: (COUNTED_SCHEMA, COUNTED_SCHEMA.append(_HIDDEN))}


class EventPlaces:
    """The partitions of the events that a relation has returned, by their LSNs."""

    def __init__(self) -> None:
        self._lsns, self._partitions = np.empty(0, np.int64), np.empty(0, np.int64)
        self._new: list[tuple[Numbers, Numbers]] = []
        self._last_lsn = 0

    def note(self, lsns: Numbers, partitions: Numbers) -> None:
        """Note events, in LSN order; those of a scan that is repeated are known."""
        new = lsns > self._last_lsn
        if new.any():
            self._new.append((lsns[new], partitions[new]))
            self._last_lsn = int(lsns[-1])

    def partitions_of(self, lsns: Sequence[int]) -> list[int]:
        """The partition of each of these events, in LSN order; earlier ones are forgotten."""
        new, self._new = self._new, []
        start = int(np.searchsorted(self._lsns, lsns[0]))
        self._lsns = np.concatenate([self._lsns[start:], *(part[0] for part in new)])
        self._partitions = np.concatenate([self._partitions[start:], *(part[1] for part in new)])
        places = np.searchsorted(self._lsns, lsns)
        assert (self._lsns[places] == lsns).all(), "an answer has events of its scan"
        found: list[int] = self._partitions[places].tolist()
        return found


class EventRelation(pa.dataset.Dataset):  # type: ignore[misc]
    """The relation that is registered on a session's cursor for one scan of one execution.

    DuckDB reads it as it reads every dataset of Arrow's: it names the columns that the plan needs, and the
    filters on them that it leaves to the relation.

    Args:
        new_scan: begins the scan anew, with the same bounds.
        hidden: True if it has the hidden column.
        changes: the query of the rows of ENVELOPE CHANGES, as `ChangesQuery.relation_sql` reads them (always
            with the hidden column); None for events.
        delivery: the counting of its events; None if they are not counted.
        deliveries: True if it has the column of WITH DELIVERIES.

    Attributes:
        places: the partitions of the events that it has returned, if they are counted.
    """

    def __init__(
        self,
        new_scan: Callable[[], Scan | GatheredScan],
        *,
        hidden: bool,
        changes: ChangesQuery | None = None,
        delivery: Delivery | None = None,
        deliveries: bool = False,
    ) -> None:
        # Not the constructor of Arrow's class, which wraps a dataset of its own.
        self._new_scan = new_scan
        self._changes = changes is not None
        self._place = ("lsn", "partition")
        if changes is not None:
            self._place = changes.names[changes.layout.lsn], changes.names[changes.layout.partition]
        self._delivery = delivery
        self._deliveries = deliveries
        self.places = EventPlaces()
        self._known: pa.Schema | None = _SCHEMAS[deliveries][hidden]
        if changes is not None:
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
        names = self._names(read)
        if self._delivery is not None or self._deliveries:
            names += [name for name in self._place if name not in names]
        try:
            for batch in scan.batches(names):
                if self._delivery is not None:
                    batch = self._counted(batch, read)
                elif self._deliveries and DELIVERIES[0] in read.names:
                    batch = batch.add_column(0, DELIVERIES[0], pa.nulls(batch.num_rows, pa.int32()))
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
        names = []
        for name in read.names:
            if name == HIDDEN_LSN:
                names.append(f"lsn AS {HIDDEN_LSN}")
            elif not self._deliveries or name != DELIVERIES[0]:
                names.append(name)
        return names

    def _counted(self, batch: pa.RecordBatch, read: pa.Schema) -> pa.RecordBatch:
        """The columns that are read of events that are counted."""
        assert self._delivery is not None
        lsns, partitions = (batch.column(name).to_numpy() for name in self._place)
        if len(lsns):
            self.places.note(lsns, partitions.astype(np.int64))
        if self._deliveries and DELIVERIES[0] in read.names:
            counts = self._delivery.of(lsns.tolist(), partitions.tolist())
            batch = batch.append_column(DELIVERIES[0], pa.array(counts, pa.int32()))
        return batch.select(read.names)

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
