"""READ ONLY transactions: the permitted statements, as in PostgreSQL.

For ducktail's statements the row states what they change. DuckDB's statements are checked by its binder,
which detects a write in a view, a macro or a common table expression, and nextval; DuckDB's own transaction
is read-only as well, if the block began so. A temporary table may be written, not created. A read of a
group moves the session's read position, which is in its memory alone; committing it is a write. Source:
docs/sql.md, "Transactions"; PostgreSQL's "SET TRANSACTION".
"""

from __future__ import annotations

from ...engine.duck.objects import TEMPORARY
from ...engine.errors import DucktailError, ReadOnlyTransaction
from ...engine.quoting import fold
from ..language import statements as st
from ..language.parse import Query
from ..reading.scan_relation import bindable
from ..session_state.context import Context
from ..session_state.queries import cte_targets
from ..session_state.run_text import begun_read_only, bound
from ..session_state.statement import ParsedStatement
from ..text.classified import Classified, Kind
from ..text.tokens import Token

_SEQUENCE_CALLS = frozenset({"nextval", "setval"})


def check(session: Context, statement: ParsedStatement) -> None:
    """Refuse writes in a read-only transaction.

    Raises:
        ReadOnlyTransaction.
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
    if kind is Kind.READ and not statement.inline:
        _check_query(session, statement, classified)


def _check_query(session: Context, statement: ParsedStatement, classified: Classified) -> None:
    """A query that writes: by a common table expression, or by taking a sequence's next number."""
    text = classified.text
    try:
        if isinstance(statement.node, Query):
            text = bindable(session, statement.node)
        if not bound(session, text).writes:
            return
    except DucktailError:
        return  # It does not bind, or only with what its parameters are: DuckDB's own transaction tells.
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
