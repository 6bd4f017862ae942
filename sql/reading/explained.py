"""EXPLAIN of a query that reads streams: DuckDB's plan over the scans, and the events that each scan will
read.

The plan is that of the query over the scans' own relations: its scans show the columns that are read and the
predicates that are pushed down. Lines behind it describe each scan: from where it reads, its partitions, its
LSNs, and about how many events. Nothing is read and no position moves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

import duckdb

from ...engine import stream_reads
from ...engine.buffers.buffer import StreamBuffer
from ...engine.buffers.scan import ScanRange
from ...engine.catalog.streams import Stream
from ...engine.quoting import ident, shown_name
from ..cluster.shares import is_placed
from ..language.parse import Query
from ..read_shape.shape import Shape
from ..session_state.context import Context
from ..session_state.run_text import Values
from ..session_state.statement import ParsedStatement
from ..text.spans import cut
from .envelope_changes import changes_of
from .query_scan import NUMBERS
from .read_requests import Pruning, narrowed_here, pruning, request_of, within_times
from .scan_relation import explainable, relation_of, unlimited
from .scans import bound_shapes, stream_of


@dataclass(frozen=True, slots=True)
class Explained:
    """The contents of an EXPLAIN.

    Args:
        text: the query for DuckDB's EXPLAIN.
        lines: the description of its scans.
    """

    text: str
    lines: list[str]


@contextmanager
def explained(
    session: Context, statement: ParsedStatement, query: Query, parameters: Values, *, runs: bool
) -> Iterator[Explained]:
    """The query over relations of its scans, which exist within the context.

    Args:
        runs: the query is run, by EXPLAIN ANALYZE: over the streams' views.
    """
    described = len(parameters) >= query.parameters_count
    if runs or not described or any(scan.away is not None for scan in query.scans):
        yield Explained(explainable(session, query), [])
        return
    shapes = bound_shapes(session, statement, query, parameters)
    streams = [stream_of(session, found) for found in shapes]
    if any(is_placed(session, stream) for stream in streams):
        yield Explained(explainable(session, query), [])
        return
    pieces, lines, names = unlimited(query), [], []
    try:
        for found, stream in zip(shapes, streams, strict=True):
            bounds = _bounds(session, found, stream, parameters)
            changes = changes_of(session, found.scan)
            begin = partial(session.database.buffers.scan, stream, bounds, changes=changes is not None)
            name = f"__ducktail_scan_{next(NUMBERS)}"
            from .event_relation import EventRelation

            made = EventRelation(begin, hidden=False, changes=changes, deliveries=found.scan.deliveries)
            session.cursor.register(name, made)
            names.append(name)
            relation = ident(name) if changes is None else changes.relation_sql(ident(name), hidden=False)
            pieces.append(relation_of(found.scan, relation))
            lines += _lines(stream, session.database.buffers.of(stream), bounds)
        yield Explained(cut(query.text, pieces), lines)
    finally:
        for name in names:
            with suppress(duckdb.Error):  # In a failed transaction DuckDB has already unregistered it.
                session.cursor.unregister(name)


def _bounds(session: Context, found: Shape, stream: Stream, parameters: Values) -> ScanRange:
    """The bounds of a scan that would begin now."""
    chosen = pruning(found.facts, stream.partitions, parameters) or Pruning()
    narrowed = narrowed_here(session, stream, within_times(session, found.facts, chosen, parameters))
    request = request_of(session, stream, found.scan, parameters, narrowed)
    request.through_lsn = session.database.commits.last_lsn
    return stream_reads.start(session.database, request).bounds


def _lines(stream: Stream, buffer: StreamBuffer, bounds: ScanRange) -> list[str]:
    """The description of a scan."""
    after, last = bounds.after, bounds.through_lsn
    if bounds.to_lsn is not None:
        last = min(last, bounds.to_lsn)
    with buffer.mutex:
        partitions = {number: buffer.partitions[number] for number in after}
        starts = {
            number: max(lsn, bounds.from_lsn - 1, partitions[number].trimmed_through_lsn)
            for number, lsn in after.items()
        }
        unbuffered = max((partitions[n].unbuffered_through_lsn for n in after), default=0)
        counts = [partitions[number].count_between(lsn, last) for number, lsn in starts.items()]
    first = min(starts.values(), default=last) + 1
    if first > unbuffered:
        place = "the buffer"
    elif last <= unbuffered:
        place = "the log"
    else:
        place = f"the log up to LSN {unbuffered}, then the buffer"
    numbers = ", ".join(map(str, after)) or "none"
    return [
        f"Stream {shown_name(stream.schema)}.{shown_name(stream.name)}",
        f"  Plain reads: from {place}; other queries: from the log",
        f"  Partitions: {numbers} of {stream.partitions}",
        f"  LSNs: {first} to {last}" if first <= last else "  LSNs: none",
        f"  Estimated events: {sum(counts)}",
    ]
