"""SELECT ... FOR UPDATE and FOR SHARE, which lock tables here.

DuckDB locks no rows, so the tables of the query are locked as a whole until the transaction ends: a captured
table by the writer lock, and a table without a stream also at its gate (`Transactions.lock_tables`). All
strengths of the clause are the strongest one. NOWAIT is 55P03 if one of the tables is locked by others; SKIP
LOCKED skips all rows then. Source: docs/sql.md, "Locking rows".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...engine.duck.objects import TABLE, TEMPORARY, VIEW, Object
from ...engine.errors import (
    DucktailError,
    InsufficientPrivilege,
    LockNotAvailable,
    NotSupported,
    UndefinedTable,
)
from ...engine.quoting import fold
from ...engine.waiting import Waiting
from ..language.classify import classify
from ..results.results import ReadySource, Result, select_tag
from ..rights.analysis import NotAnalysed, Table, named_in_query, parts_of
from ..session_state.access import Key
from ..session_state.context import Context
from ..session_state.run_text import atomically
from ..session_state.statement import ParsedStatement
from ..text.classified import Kind, LockingFacts
from ..text.spans import defining_query_span

# The maximum number of views upon each other.
DEPTH_MAX = 32


def run(session: Context, statement: ParsedStatement, work: Callable[[], Waiting[Result]]) -> Waiting[Result]:
    """Lock the tables of a statement with locking clauses, and run it.

    Raises:
        LockNotAvailable: a table is locked by others, and the clause or the timeout ends the wait.
        SerializationFailure: a table was changed after the transaction began to read.
        UndefinedTable: a table after OF is not in the query.
        NotSupported: it reads a stream, whose events cannot be locked.
        InsufficientPrivilege: the session may not update a table.
    """

    def locked() -> Waiting[Result]:
        skipped = yield from _lock(session, statement)
        if skipped:
            return Result(statement.columns, ReadySource([]), select_tag)
        return (yield from work())

    def whole() -> Waiting[Result]:
        result = yield from locked()
        # Its rows outlive the transaction.
        if not result.ended and result.holds_cursor:
            session.cursors.keep_rest(result)
        return result

    return (yield from locked() if session.block.begun else atomically(session, whole))


def _lock(session: Context, statement: ParsedStatement) -> Waiting[bool]:
    """Lock the tables; True if the statement has to skip all rows."""
    clauses = statement.classified.locking
    keys = {key for clause in clauses for key in _tables(session, statement, clause)}
    if not keys:
        return False
    transactions = session.database.transactions
    waits = {clause.wait for clause in clauses if clause.wait}
    if waits and transactions.are_locked(session.id, keys):
        if "NOWAIT" in waits:
            name = min(keys)[-1]
            raise LockNotAvailable(
                f'could not obtain lock on row in relation "{name}"',
                detail="Rows are locked together with their table.",
            )
        # Rows of a query inside another one decide about more than themselves: that statement waits.
        if statement.classified.kind is Kind.READ and any(c.outermost and c.wait for c in clauses):
            return True
    yield from transactions.lock_tables(session.block.opened(), keys, session.block.lock_timeout_ms)
    session.block.touched()
    return False


def _tables(session: Context, statement: ParsedStatement, clause: LockingFacts) -> Iterator[Key]:
    """The keys of the tables that a clause locks."""
    named = list(_read(session, statement))
    chosen = (
        named if not clause.of else [t for name in clause.of for t in _of(statement, named, name, clause)]
    )
    for table in chosen:
        found = session.names.resolver.find(TABLE, table.path)
        if found is None:
            continue  # A relation of the catalog, or one that DuckDB reports as missing.
        if session.access.limited and not session.access.may("update", found.key):
            raise InsufficientPrivilege(
                f'permission denied for table "{found.name}"',
                detail=f"FOR {clause.strength} wants UPDATE on it.",
            )
        yield from _under(session, found, clause, 0)


def _read(session: Context, statement: ParsedStatement) -> Iterator[Table]:
    for part in parts_of(session, statement):
        try:
            yield from part.named(session.names.cursor()).tables
        except NotAnalysed:
            continue  # The text is no query: DuckDB reports its error.


def _of(statement: ParsedStatement, named: list[Table], name: str, clause: LockingFacts) -> list[Table]:
    """The tables that a name after OF means: all of them, if it is the alias of a query."""
    found = [table for table in named if fold(table.path[-1]) == name]
    tokens = statement.classified.tokens
    for at, token in enumerate(tokens[1:], 1):
        if not token.is_name or fold(token.name) != name or tokens[at - 1].kind in (".", ","):
            continue
        before = at - 2 if tokens[at - 1].kind == "AS" else at - 1
        aliased = [t for t in named if tokens[before].is_name and tokens[before].name == t.path[-1]]
        if aliased or tokens[before].kind == ")":
            return aliased or named
    if not found:
        raise UndefinedTable(
            f'relation "{name}" in FOR {clause.strength} clause not found in FROM clause',
            position=clause.position + 1,
        )
    return found


def _under(session: Context, found: Object, clause: LockingFacts, depth: int) -> Iterator[Key]:
    """The tables of a relation: itself, or those under a view."""
    if session.names.find_stream(found.key) is not None:
        raise NotSupported(
            f'FOR {clause.strength} is not supported with stream "{found.name}"',
            detail="Events never change.",
            position=clause.position + 1,
        )
    if found.catalog == TEMPORARY and found.kind != VIEW:
        return
    if found.kind != VIEW:
        yield found.key
        return
    if depth > DEPTH_MAX:
        return
    classified = classify(found.definition)
    span = defining_query_span(classified)
    try:
        assert span is not None, "a view is defined by a query"
        named = named_in_query(session.names.cursor(), classified.text[slice(*span)])
    except (NotAnalysed, DucktailError) as error:
        raise NotSupported(f'the tables of view "{found.name}" cannot be locked') from error
    for table in named.tables:
        below = session.names.resolver.find(TABLE, table.path)
        if below is not None:
            yield from _under(session, below, clause, depth + 1)
