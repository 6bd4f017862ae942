"""What DuckDB is given in place of a stream scan, to bind or to explain it."""

from __future__ import annotations

from ...engine.errors import (
    NotSupported,
)
from ...engine.log.envelope_changes import view_name
from ...engine.quoting import ident
from ..context import Context
from ..forwarding import fetching
from ..language import statements as st
from ..language.parse import Query
from ..shape.shape import shapes_of
from ..text.replacing import Piece, cut
from .changes import changes_of
from .scan_relation import EMPTY


def relation_of(scan: st.Scan, relation: str) -> Piece:
    """What stands for a scan: a relation under the scan's own alias and column names."""
    columns = f"({', '.join(map(ident, scan.columns))})" if scan.columns else ""
    return Piece(scan.start, scan.end, f"{relation} AS {ident(scan.visible_name)}{columns}")


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


def empty_scans(session: Context, query: Query) -> list[Piece]:
    """Each scan as an empty relation, and what else DuckDB is not to see."""
    return [relation_of(scan, _empty(session, scan)) for scan in query.scans] + unlimited(query)


def _empty(session: Context, scan: st.Scan) -> str:
    if scan.away is not None:
        return fetching.empty_sql(scan)
    changes = changes_of(session, scan)
    return EMPTY if changes is None else changes.empty_sql()


def unlimited(query: Query) -> list[Piece]:
    """The clause LIMIT n TRANSACTIONS left out: it is the end of the scan, not of the rows.

    Raises:
        NotSupported: 0A000, it stands where it cannot be that.
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
    return [Piece(clause.start, clause.end, "")]
