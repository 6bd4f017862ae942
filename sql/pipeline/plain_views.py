"""The view of a topic, `SELECT * FROM t` without TOPIC, has what this node's log has: it may be a part.

So a query that names it is refused, also where partitions have come from other nodes with their events. A
text is looked through by DuckDB's parser only where such a topic's name stands in it once more than its own
clauses and its target say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ...engine.catalog.streams import Stream
from ...engine.errors import NotSupported, WrongState
from ...engine.quoting import fold
from ..cluster.shares import owners_of
from ..language.parse import Query
from ..rights.analysis import NotAnalysed, Table, parts_of
from ..session_state.context import Context
from ..session_state.statement import ParsedStatement
from ..text.classified import CopyFacts


def refuse(session: Context, statement: ParsedStatement) -> None:
    """Refuse a statement that reads the view of a topic with partitions on other nodes.

    Raises:
        NotSupported.
    """
    if not session.database.cluster.placement.epoch or session.part is not None or statement.inline:
        return
    classified, node = statement.classified, statement.node
    if classified.copy is not None:
        _refuse_copied(session, classified.copy)
        return
    named = Counter(fold(token.name) for token in classified.tokens)
    if isinstance(node, Query):
        named.subtract(fold(scan.stream.last) for scan in node.scans)
    if classified.dml is not None:
        named[fold(classified.dml.target[-1])] -= 1
    streams = session.database.catalog.streams.values()
    spread = [s for s in streams if s.topic and named[fold(s.name)] > 0 and _is_part(session, s)]
    if not spread:
        return
    keys = {stream.key: stream for stream in spread}
    for table in _read(session, statement):
        found = session.names.find_stream(table.path)
        if found is not None and found.key in keys:
            raise _refused(found)


def _refuse_copied(session: Context, facts: CopyFacts) -> None:
    """The same of COPY t TO STDOUT; a query that is copied is a statement of its own."""
    if facts.table is None or facts.reads:
        return
    stream = session.names.find_stream(facts.table)
    if stream is not None and stream.topic and _is_part(session, stream):
        raise _refused(stream)


def _is_part(session: Context, stream: Stream) -> bool:
    """True if the view of a topic lacks events, for example those that arrived with a partition."""
    if any(segment.base_lsn for segment in session.database.catalog.segments.of(stream.stream_id).values()):
        return True
    try:
        return bool(owners_of(session, stream.schema, stream.name, stream.partitions).remote)
    except WrongState:
        return True  # Some of its partitions are on no node.


def _read(session: Context, statement: ParsedStatement) -> Iterator[Table]:
    """The relations that a statement reads."""
    if statement.classified.verb == "MERGE":
        return
    for part in parts_of(session, statement):
        try:
            named = part.named(session.names.cursor())
        except NotAnalysed:
            continue  # It is no query: DuckDB says what is wrong with it.
        yield from (table for table in named.tables if "select" in table.privileges)


def _refused(stream: Stream) -> NotSupported:
    return NotSupported(
        f'the view of topic "{stream.name}" has only what this node has stored itself: its partitions are on '
        "several nodes, or have moved",
        hint=f"SELECT ... FROM TOPIC {stream.name} reads all of it.",
    )
