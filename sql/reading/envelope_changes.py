"""ENVELOPE CHANGES in a query: the columns of a scan, and LIMITs that do not part an update.

An update is two rows under one LSN. Where ready rows answer, the buffers return both. Where DuckDB runs the
query, each LIMIT above the scan asks for one more row, and this module cuts the rows at the user's LIMIT or
one row after it: the hidden column `HIDDEN_PLACE` identifies the rows of one update.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from ...engine.errors import NotSupported
from ...engine.log.envelope_changes import ChangesQuery, clashing
from ...engine.log.queries import event_query
from ..language import statements as st
from ..results.results import ResultBatch, Source
from ..session_state.context import Context
from .tracking import TrackedBatch


def changes_of(session: Context, scan: st.Scan) -> ChangesQuery | None:
    """The query of a scan in ENVELOPE CHANGES; None if it has another envelope.

    Raises:
        UndefinedObject: the stream does not exist.
        NotSupported: the stream is a topic or over several tables, or a column has a name of the envelope's.
    """
    if scan.envelope == "json":
        return None
    stream = session.names.scanned(scan.stream.parts, scan.stream.position, scan.kind)
    if stream.topic:
        raise NotSupported(
            f'topic "{stream.name}" has no ENVELOPE CHANGES',
            hint="What is published has no columns of a table: read after ->> 'name'.",
            position=scan.stream.position,
        )
    if stream.several is not None:
        raise NotSupported(
            f'stream "{stream.name}" is over several tables and has no ENVELOPE CHANGES',
            hint="Read after ->> 'column', by table_name; or make a stream on each table.",
            position=scan.stream.position,
        )
    taken = clashing(stream.columns)
    if taken is not None:
        raise NotSupported(
            f'stream "{stream.name}" has no ENVELOPE CHANGES: its column "{taken}" has the name of one of '
            "the envelope's own",
            hint="Make a stream that carries other columns: CREATE STREAM "
            f"{session.names.free_name(stream.schema, f'{stream.name}_typed')} ON t (column, ...).",
            position=scan.stream.position,
        )
    return ChangesQuery(event_query(session.database.catalog, stream))


def columns_of(session: Context, scans: Sequence[st.Scan]) -> tuple[tuple[str, ...] | None, ...]:
    """The column names of each scan in ENVELOPE CHANGES; () without one."""
    if all(scan.envelope == "json" for scan in scans):
        return ()
    return tuple(_names(session, scan) for scan in scans)


def _names(session: Context, scan: st.Scan) -> tuple[str, ...] | None:
    if scan.away is not None and scan.envelope != "json":
        return tuple(name for name, _ in scan.typed)
    query = changes_of(session, scan)
    return None if query is None else tuple(name for name, _ in query.columns)


def whole_rows(hidden: pa.Array | pa.ChunkedArray, limit: int) -> int:
    """The number of rows that a LIMIT returns: the limit, or one more to keep an update whole.

    Args:
        hidden: the hidden column of the rows; it has one more row than `limit` if there are more rows.
    """
    if not 0 < limit < len(hidden):
        return min(limit, len(hidden))
    return limit + int(hidden[limit - 1].as_py() // 2 == hidden[limit].as_py() // 2)


class PairSource:
    """The rows of a query that asks DuckDB for one more row than its LIMIT.

    Attributes:
        ran_out: True if the query had no more rows than the LIMIT allows.
        last_lsn: LSN of the last returned row.
    """

    def __init__(self, inner: Source, hidden: int, limit: int) -> None:
        self._inner = inner
        self._hidden = hidden
        self._left = limit
        self._done = False
        self.ran_out = False
        self.last_lsn = 0

    def next(self, limit: int | None) -> ResultBatch | None:
        """The next batch, cut where the LIMIT is reached."""
        if self._done:
            return None
        batch = self._inner.next(limit)
        if batch is None:
            self.ran_out = self._done = True
            return None
        tracked = TrackedBatch(batch.record_batch(), self._hidden, pairs=True)
        lsns = tracked.rows.column(self._hidden)
        if self._left == 0:
            count = int(lsns[0].as_py() // 2 == self.last_lsn)
        else:
            count = whole_rows(lsns, self._left)
        self._done = count < tracked.row_count or count > self._left
        self._left = max(0, self._left - count)
        if not count:
            return None
        self.last_lsn = lsns[count - 1].as_py() // 2
        return tracked.cut(0, count)

    def close(self) -> None:
        """Free the query."""
        self._inner.close()
