"""A stream scan as a relation that DuckDB can read inside a larger query.

The relation itself is in event_relation.py. One hidden column, `__ducktail_lsn`, has the LSN of each row, for
the read position.

To bind or to explain a query, empty relations or views take the place of its scans.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...engine.errors import NotSupported
from ...engine.log.envelope_changes import view_name
from ...engine.log.log import DELIVERIES, EVENT_COLUMNS
from ...engine.quoting import ident
from ..cluster import fetching
from ..language import statements as st
from ..language.parse import Query
from ..read_shape.shape import shapes_of
from ..session_state.context import Context
from ..text.spans import Replacement, cut
from .envelope_changes import changes_of

HIDDEN_LSN = "__ducktail_lsn"


def empty_sql(columns: Sequence[tuple[str, str]]) -> str:
    """A relation with some columns, by name and type, and no rows."""
    return "(SELECT " + ", ".join(f'NULL::{type_} AS "{name}"' for name, type_ in columns) + " WHERE false)"


EMPTY, EMPTY_COUNTED = empty_sql(EVENT_COLUMNS), empty_sql((*EVENT_COLUMNS, DELIVERIES))


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
        relation = f"{ident(stream.schema)}.{ident(view)}"
        if scan.deliveries:
            name, type_ = DELIVERIES
            relation = f"(SELECT *, NULL::{type_} AS {name} FROM {relation})"
        pieces.append(relation_of(scan, relation))
    return cut(query.text, pieces + unlimited(query))


def empty_scans(session: Context, query: Query) -> list[Replacement]:
    """The replacement of each scan by an empty relation, and of clauses that DuckDB does not know."""
    return [relation_of(scan, _empty(session, scan)) for scan in query.scans] + unlimited(query)


def _empty(session: Context, scan: st.Scan) -> str:
    if scan.away is not None:
        return fetching.empty_sql(scan)
    changes = changes_of(session, scan)
    if changes is not None:
        return changes.empty_sql()
    return EMPTY_COUNTED if scan.deliveries else EMPTY


def unlimited(query: Query) -> list[Replacement]:
    """The removal of the clause LIMIT n TRANSACTIONS: it ends the scan, not the rows.

    Raises:
        NotSupported: the clause stands where it cannot end the scan.
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
