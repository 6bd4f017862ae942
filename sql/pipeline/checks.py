"""The checks of a statement besides rights: READ ONLY transactions, and partial views of topics.

READ ONLY transactions permit the same statements as PostgreSQL. For ducktail's statements the row states
their changes. DuckDB's statements are checked by its binder, which detects a write in a view, a macro or a
common table expression, and nextval; DuckDB's own transaction is read-only as well, if the block began so. A
temporary table may be written, not created. A read of a group moves the session's read position, which is
only in memory; committing it is a write.

The view of a topic, `SELECT * FROM t` without TOPIC, reads only this node's log, which may be a part of the
topic. A query that names it is therefore refused, also if partitions have come from other nodes with their
events. A text is examined by DuckDB's parser only if such a topic's name is in it more often than its own
clauses and its target require.

DuckDB's error in a running statement ends its transaction, so that ROLLBACK TO cannot return to a savepoint
after a change. After a savepoint, errors that can be found before a statement runs are therefore found then:
a CREATE of something that exists, and a write that DuckDB's binder refuses.

Source: docs/sql.md, "Transactions"; PostgreSQL documentation, "SET TRANSACTION"; docs/cluster.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ...engine.catalog.streams import Stream
from ...engine.duck.binding import KEPT_CHARS_MAX
from ...engine.duck.objects import SCHEMA, SEQUENCE, TABLE, TEMPORARY, TYPE
from ...engine.errors import (
    DucktailError,
    DuplicateObject,
    DuplicateSchema,
    DuplicateTable,
    NotSupported,
    ReadOnlyTransaction,
    WrongState,
)
from ...engine.quoting import fold
from ..cluster.shares import owners_of
from ..dml import topic_writes, writes
from ..language import statements as st
from ..language.parse import Query
from ..language.postgres_ddl import Expansion
from ..reading.scan_relation import bindable
from ..rights.analysis import NotAnalysed, Table, parts_of
from ..session_state.context import Context
from ..session_state.queries import cte_targets
from ..session_state.run_text import begun_read_only, bound
from ..session_state.statement import ParsedStatement
from ..statements import session_calls
from ..text.classified import Classified, CopyFacts, Kind
from ..text.tokens import Token

_SEQUENCE_CALLS = frozenset({"nextval", "setval"})


# Kinds that change nothing which the end of a transaction decides about, or have another statement inside.
_UNCHANGING = frozenset(
    {Kind.EMPTY, Kind.TRANSACTION, Kind.PREPARE, Kind.EXECUTE, Kind.DEALLOCATE, Kind.REFUSED, Kind.DO}
)


def may_change(session: Context, statement: ParsedStatement) -> bool:
    """True if a statement may change something that ROLLBACK must undo, or takes locks; True in doubt.

    A savepoint restores settings by itself; a read of a group moves the session's read position.
    """
    classified = statement.classified
    kind = classified.kind
    if kind is Kind.READ:
        return classified.may_write or bool(classified.locking) or isinstance(statement.node, Query)
    if kind is Kind.SETTING:
        return classified.verb in ("SET VARIABLE", "DISCARD")
    if kind is Kind.EXPLAIN:
        return classified.explain is None or classified.explain.analyze
    if kind is Kind.EXPANDED:
        return isinstance(statement.node, Expansion) and bool(statement.node.steps)
    if kind is Kind.CALL:
        return session_calls.notifies(statement)
    if kind is Kind.CURSOR and classified.cursor is not None:
        portal = session.portals.get(classified.cursor.name or "")
        return portal is not None and isinstance(portal.statement.node, Query)
    if kind is Kind.OURS:
        row = st.row_of(statement.node)
        return row is None or row.effect is not st.Effect.READS
    return kind not in _UNCHANGING


# Kinds that commit nothing of the database.
_UNCOMMITTING = frozenset({Kind.EMPTY, Kind.PREPARE, Kind.DEALLOCATE, Kind.CALL, Kind.REFUSED})
# Functions that change a sequence, outside of any transaction.
_NUMBERING = frozenset({"nextval", "setval"})


def may_commit(session: Context, statement: ParsedStatement) -> bool:
    """True if a statement that has ended may have committed something; True in doubt.

    The rows of a COPY FROM STDIN are still to come then. A number that a view or a macro takes of a sequence
    is not seen.
    """
    classified, node = statement.classified, statement.node
    kind = classified.kind
    if kind is Kind.TRANSACTION:
        return classified.verb == "COMMIT"
    if session.block.begun or kind in _UNCOMMITTING:
        return False
    if kind is Kind.COPY and classified.copy is not None and classified.copy.reads:
        return not classified.copy.client
    if kind in (Kind.READ, Kind.COPY, Kind.CURSOR, Kind.SETTING):
        commits = isinstance(node, Query) and node.commits is not None
        return classified.may_write or commits or _takes_numbers(classified)
    if kind is Kind.EXPLAIN:
        return classified.explain is None or classified.explain.analyze
    if kind is Kind.EXECUTE and classified.execute is not None:
        prepared = session.prepared.get(classified.execute.name)
        return prepared is None or may_commit(session, prepared.statement)
    if kind is Kind.OURS:
        row = st.row_of(node)
        return row is None or row.effect is st.Effect.WRITES
    return True


def _takes_numbers(classified: Classified) -> bool:
    return any(token.is_name and fold(token.name) in _NUMBERING for token in classified.tokens)


_CREATED = {"TABLE": TABLE, "VIEW": TABLE, "SEQUENCE": SEQUENCE, "TYPE": TYPE, "SCHEMA": SCHEMA}
# The error of a name in use, if it is not that of a relation.
_IN_USE: dict[str, type[DucktailError]] = {TYPE: DuplicateObject, SCHEMA: DuplicateSchema}


def check_before_change(session: Context, statement: ParsedStatement, parameters: tuple[object, ...]) -> None:
    """Find errors of a statement before it runs, in a block with a savepoint.

    Raises:
        DucktailError: it would fail, and has changed nothing.
    """
    classified = statement.classified
    _check_new(session, statement)
    # The types of parameters are known when a client has had the statement described, or by their values.
    binds = classified.kind is Kind.DML and statement.node is None and not parameters
    # The client's parser holds Python's lock for a long text. Publishing is no INSERT of DuckDB's.
    if binds and not classified.cte_writes and len(classified.text) <= KEPT_CHARS_MAX:
        writes.refuse_target(session, statement)
        if topic_writes.target(session, classified) is None:
            bound(session, classified.text)


def _check_new(session: Context, statement: ParsedStatement) -> None:
    """Refuse a CREATE of something that exists."""
    facts = statement.classified.ddl
    kind = None if facts is None or facts.verb != "CREATE" else _CREATED.get(facts.object_type)
    if facts is None or kind is None or facts.or_replace or facts.if_not_exists or facts.temporary:
        return
    if session.access.limited:
        return  # Others may not be told what there is.
    name = facts.names[0]
    place = (fold(name[-1]), fold(name[-1])) if kind == SCHEMA else session.names.made_key(name)
    if session.names.objects().get(kind, *place) is not None:
        raise _IN_USE.get(kind, DuplicateTable)(f'{fold(facts.object_type)} "{name[-1]}" already exists')


def check_read_only(session: Context, statement: ParsedStatement) -> None:
    """Refuse writes in a read-only transaction.

    Raises:
        ReadOnlyTransaction: the statement writes.
    """
    if not begun_read_only(session):
        return
    classified = statement.classified
    kind = classified.kind
    if kind is Kind.OURS:
        row = st.row_of(statement.node)
        if row is None or row.effect is st.Effect.WRITES:
            raise _cannot(classified.verb)
    if kind is Kind.DDL:
        raise _cannot(classified.verb)
    if kind is Kind.DML:
        assert classified.dml is not None
        if classified.verb == "TRUNCATE" or not _is_temporary(session, classified.dml.target):
            raise _cannot(classified.verb)
        if _calls_sequence(classified.tokens):
            raise _cannot("nextval()")
    if kind is Kind.COPY and classified.copy is not None and classified.copy.reads:
        assert classified.copy.table is not None
        if not _is_temporary(session, classified.copy.table):
            raise _cannot("COPY FROM")
    if classified.locking:
        raise _cannot(f"SELECT FOR {classified.locking[0].strength}")
    if kind is Kind.READ and isinstance(statement.node, Query) and statement.node.commits is not None:
        raise _cannot("COMMIT OFFSETS")
    if kind is Kind.READ and not statement.inline:
        _check_query(session, statement, classified)


def _check_query(session: Context, statement: ParsedStatement, classified: Classified) -> None:
    """Refuse a query that writes: in a common table expression, or by taking a sequence's next number."""
    text = classified.text
    try:
        if isinstance(statement.node, Query):
            text = bindable(session, statement.node)
        if not bound(session, text).writes:
            return
    except DucktailError:
        return  # It does not bind, or only with its parameters' values: DuckDB's own transaction refuses it.
    if _calls_sequence(classified.tokens) or not classified.cte_writes:
        raise _cannot("nextval()")
    if not all(_is_temporary(session, target) for target in cte_targets(text)):
        raise _cannot("a query that writes")


def _calls_sequence(tokens: tuple[Token, ...]) -> bool:
    return any(token.is_name and fold(token.name) in _SEQUENCE_CALLS for token in tokens)


def _is_temporary(session: Context, name: tuple[str, ...]) -> bool:
    return session.names.table_key(name)[0] == TEMPORARY


def _cannot(what: str) -> ReadOnlyTransaction:
    return ReadOnlyTransaction(f"cannot execute {what} in a read-only transaction")


def check_views(session: Context, statement: ParsedStatement) -> None:
    """Refuse a statement that reads the view of a topic with partitions on other nodes.

    Raises:
        NotSupported: the statement reads such a view.
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
    """Refuse COPY t TO STDOUT of such a view; a copied query is a statement of its own."""
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
        return True  # No node has some of its partitions.


def _read(session: Context, statement: ParsedStatement) -> Iterator[Table]:
    """The relations that a statement reads."""
    try:
        parts = parts_of(session, statement)
    except DucktailError:
        return  # A MERGE that cannot be divided into its queries: DuckDB reports its error.
    for part in parts:
        try:
            named = part.named(session.names.cursor())
        except NotAnalysed:
            continue  # The text is no query: DuckDB reports its error.
        yield from (table for table in named.tables if "select" in table.privileges)


def _refused(stream: Stream) -> NotSupported:
    return NotSupported(
        f'the view of topic "{stream.name}" has only what this node has stored itself: its partitions are on '
        "several nodes, or have moved",
        hint=f"SELECT ... FROM TOPIC {stream.name} reads all of it.",
    )
