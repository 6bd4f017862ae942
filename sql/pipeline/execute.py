"""The one pipeline of statements: locate, resolve, authorize, commit, wait, run.

Rights are checked for objects, in the state of the catalog in which the statement runs. A statement of a
transaction has the transaction's snapshot. In autocommit a query is checked and begun, and begun again if a
change of the catalog was committed meanwhile; a write is checked and run in one transaction.

Source: docs/design/sql.md, "Names", and docs/security.md, "Enforcement".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...engine.errors import NotSupported, SerializationFailure
from ...engine.waiting import Waiting
from ..cluster import relay
from ..cluster.shares import in_cluster
from ..copy import copying, files
from ..ddl.expanded import run_expanded
from ..dml import cte_writes, group_writes, topic_writes, writes
from ..language import statements as st
from ..language.parse import Query
from ..peer_requests import serving
from ..peer_requests.learning import with_groups
from ..peer_requests.partition_moves import wait_for_partitions
from ..reading import commit_offsets, scans, wait_for_events
from ..results.results import ArrowSource, Result
from ..rights import permission
from ..rights.ddl_permission import with_owners
from ..session_state import queries
from ..session_state.context import Context, Runner
from ..session_state.names import CatalogChanged
from ..session_state.run_text import atomically
from ..session_state.statement import ParsedStatement, check_described
from ..statements import (
    cursor_statements,
    do,
    runners,
    session_calls,
    set_and_show,
    show,
    transactions,
    utilities,
)
from ..text.classified import Kind
from ..text.spans import original_positions
from . import checks, column_origins, placed_literals, prepared, row_locks
from .resolve import in_full

# The maximum number of restarts of a query, before it gets its own transaction, or fails.
TRIES, SCAN_TRIES = 2, 20
# Kinds that are checked and run in one transaction. Definitions have their own (rights/ddl_permission.py);
# ducktail's statements are checked under the writer lock; other kinds use no part of DuckDB's catalog.
_WRITING = frozenset({"SET VARIABLE", "EXPLAIN"})
# Verbs answered from the session's own state; the ends of a transaction in which nothing was done.
INLINE_VERBS = frozenset({"BEGIN", "SAVEPOINT", "RELEASE"})
INLINE_ENDS = frozenset({"COMMIT", "ROLLBACK"})
# Kinds that name no object, read no events and need no right: only their runner concerns them.
_OF_SESSION = frozenset({Kind.EMPTY, Kind.TRANSACTION})

Values = tuple[object, ...]


def execute(
    session: Context, statement: ParsedStatement, parameters: Values, run: Runner | None = None
) -> Waiting[Result]:
    """Locate, resolve, authorize and run one statement.

    Args:
        run: runs it on this node, in place of the runner of its kind.

    Raises:
        DucktailError: the statement fails; the error's position is in the given text.
    """
    if run is None:
        statement = yield from located(session, statement)
        if statement.away is not None:
            return (yield from relay.execute(session, statement, parameters))
    return (yield from execute_here(session, statement, parameters, run))


def located(session: Context, statement: ParsedStatement) -> Waiting[ParsedStatement]:
    """The statement with its streams where they are now; `away` is set if another node runs it."""
    if relay.is_remote(session, statement):
        statement = yield from relay.as_now(session, statement)
    return statement


def execute_here(
    session: Context, statement: ParsedStatement, parameters: Values, run: Runner | None = None
) -> Waiting[Result]:
    """Resolve, authorize and run one statement on this node; see `execute`."""
    if run is None and _is_of_session(session, statement):
        return (yield from KINDS[statement.classified.kind].run(session, statement, parameters))

    def checked() -> Waiting[Result]:
        full = in_full(session, statement)
        with original_positions(full.pieces):
            permission.check(session, full, parameters, permission.CheckMode(runs=not full.waits))
            checks.check_read_only(session, full)
            result = yield from with_groups(session, lambda: _run_authorized(session, full, parameters, run))
        if isinstance(result.source, ArrowSource):
            result.source.pieces = full.pieces
        return result

    is_write = run is None and statement.classified.kind is Kind.DML
    if not is_write or session.block.begun or not session.access.limited:
        return (yield from _in_state(session, statement, checked))
    offered = yield from _offered(session, statement, parameters)
    if offered is not None:
        return offered
    result = yield from _in_state(session, statement, checked)
    writes.learn(session, in_full(session, statement))
    return result


def _is_of_session(session: Context, statement: ParsedStatement) -> bool:
    """True if a statement concerns the session alone: a transaction, or a setting of no user's session."""
    kind = statement.classified.kind
    if kind is Kind.SETTING:
        return session.access.account is None and set_and_show.is_inline(statement)
    return kind in _OF_SESSION


def _offered(session: Context, statement: ParsedStatement, parameters: Values) -> Waiting[Result | None]:
    """Check a limited user's small write, and run it together with others; None if it is to run alone."""
    changes = session.database.catalog.changes
    generation = changes.settle()
    full = in_full(session, statement)
    if group_writes.plan_of(session, full, generation) is None:
        return None
    with original_positions(full.pieces):
        permission.check(session, full, parameters)
        checks.check_read_only(session, full)
        return (yield from writes.offer(session, full, parameters, generation))


def _run_authorized(
    session: Context, statement: ParsedStatement, parameters: Values, run: Runner | None
) -> Waiting[Result]:
    """Run a statement whose names are resolved and whose rights are checked."""
    if session.block.begun and checks.may_change(session, statement):
        if session.block.has_savepoints:
            checks.check_before_change(session, statement, parameters)
        session.block.changing()
    if statement.classified.locking:
        return (
            yield from row_locks.run(
                session, statement, lambda: _run_here(session, statement, parameters, run)
            )
        )
    return (yield from _run_here(session, statement, parameters, run))


def _run_here(
    session: Context, statement: ParsedStatement, parameters: Values, run: Runner | None
) -> Waiting[Result]:
    """Run a statement whose locks are held."""
    yield from wait_for_partitions(session, statement.classified, statement.node)
    if commit_offsets.commits_before(statement):
        yield from commit_offsets.commit_before(session, statement, parameters)
    if run is not None:
        checks.check_views(session, statement)
        return (yield from run(session, statement, parameters))
    if statement.classified.kind is Kind.DDL:
        return (yield from with_owners(session, statement, lambda: _run(session, statement, parameters)))
    return (yield from _run(session, statement, parameters))


def _run(session: Context, statement: ParsedStatement, parameters: Values) -> Waiting[Result]:
    """Run a statement by the row of its kind."""
    row = KINDS[statement.classified.kind]
    if row.names_files and parameters:
        files.check_given(session, statement.classified, parameters)
    if row.reads_views:
        checks.check_views(session, statement)
    # Before it runs: looking up names would otherwise take the rest of its rows from the cursor.
    origins = column_origins.origins(session, statement)
    scanning = row.scanning if isinstance(statement.node, Query) else None
    copy = statement.classified.copy
    if scanning is None or (copy is not None and copy.client and not copy.reads):
        result = yield from row.run(session, statement, parameters)
    elif statement.waits:
        result = yield from _run_after_wait(session, statement, parameters, scanning)
    else:
        result = yield from scanning(session, statement, parameters)
    if result.columns is not None:
        result.columns = column_origins.marked(session, statement, result.columns, origins)
    if row.described:
        check_described(statement, result)
    return result


def _run_after_wait(
    session: Context, statement: ParsedStatement, parameters: Values, run: Runner
) -> Waiting[Result]:
    """Run a statement after the wait for events in its text."""
    session.waited = yield from wait_for_events.wait(session, statement, parameters)
    session.names.waited = {} if session.waited is None else session.waited.streams
    try:
        # A right may have been revoked meanwhile.
        permission.check(session, statement, parameters)
        return (yield from run(session, statement, parameters))
    finally:
        session.waited, session.names.waited = None, {}


# The state of the catalog.


def _in_state(
    session: Context, statement: ParsedStatement, checked: Callable[[], Waiting[Result]]
) -> Waiting[Result]:
    """Check and run a statement in one state of the catalog."""
    if not session.access.limited or session.block.begun:
        return (yield from checked())
    kind, verb = statement.classified.kind, statement.classified.verb
    if kind is Kind.READ or verb == "SHOW":
        return (yield from _in_one_state(session, statement, checked))
    if (
        kind is Kind.DML
        and in_cluster(session)
        and topic_writes.target(session, statement.classified) is not None
    ):
        return (yield from checked())  # Its events go to several nodes, outside a transaction.
    if kind is Kind.DML or verb in _WRITING:
        return (yield from _in_one_transaction(session, checked))
    return (yield from checked())


def _in_one_transaction(session: Context, checked: Callable[[], Waiting[Result]]) -> Waiting[Result]:
    """Run a write in a transaction whose snapshot has the catalog by which it was checked.

    The absence of other changes is checked before COMMIT, which costs nothing; after a change the write is
    rolled back and runs in a transaction whose snapshot is fixed first.
    """

    def assumed() -> Waiting[Result]:
        transaction = session.block.opened()
        transaction.assumes = True
        result = yield from checked()
        if session.database.catalog.changes.stable != transaction.generation:
            raise CatalogChanged
        return _outliving(session, result)

    try:
        return (yield from atomically(session, assumed))
    except CatalogChanged:
        return (yield from atomically(session, lambda: _kept(session, checked)))


def _kept(session: Context, checked: Callable[[], Waiting[Result]]) -> Waiting[Result]:
    return _outliving(session, (yield from checked()))


def _outliving(session: Context, result: Result) -> Result:
    """The result, whose rows outlive the transaction."""
    if not result.ended and result.holds_cursor:
        session.cursors.keep_rest(result)
    return result


def _in_one_state(
    session: Context, statement: ParsedStatement, checked: Callable[[], Waiting[Result]]
) -> Waiting[Result]:
    """Run a query in autocommit so that it begins with the catalog by which it was checked."""
    if statement.classified.may_write:
        return (yield from _in_one_transaction(session, checked))
    if statement.inline:
        return (yield from checked())  # It is answered from ducktail's own data only.
    changes = session.database.catalog.changes
    scans = isinstance(statement.node, Query)
    for _ in range(SCAN_TRIES if scans else TRIES):
        before = changes.settle()
        result = yield from checked()
        if changes.stable == before:
            return result
        result.close()
    if scans:
        raise SerializationFailure(
            "could not serialize access due to concurrent changes of the catalog", hint="Try again."
        )

    return (yield from atomically(session, lambda: _kept(session, checked)))


# The runners.


def is_inline(session: Context, statement: ParsedStatement) -> bool:
    """True if running the statement now needs no DuckDB work: BEGIN, SHOW, a plain read, a commit."""
    classified = statement.classified
    if session.cursors.has_open_result:
        return False  # The rest of its result must be taken first.
    if statement.away is not None:
        return True
    if classified.kind is Kind.TRANSACTION:
        return classified.verb in INLINE_VERBS or (
            classified.verb in INLINE_ENDS and session.block.transaction is None
        )
    if classified.kind is Kind.EMPTY:
        return True
    if session.access.limited:
        return False  # Its rights are checked first.
    if classified.kind is Kind.SETTING:
        return set_and_show.is_inline(statement)
    if classified.kind is Kind.CURSOR:
        return cursor_statements.is_inline(session, statement)
    if classified.kind is Kind.DML:
        return (
            group_writes.is_ready(session, statement)
            # The binder is asked for the places of such literals.
            and not placed_literals.placed_literals(session, statement)
        )
    if classified.kind is Kind.OURS:
        return commit_offsets.is_inline(session, statement.node)
    if classified.kind is not Kind.READ or classified.locking:
        return False
    if isinstance(statement.node, Query):
        if not commit_offsets.is_inline_before(session, statement.node):
            return False
        return scans.is_inline(session, statement, statement.node)
    return queries.is_ready(statement) and not session.block.begun


def _run_ours(
    session: Context, statement: ParsedStatement, parameters: tuple[object, ...]
) -> Waiting[Result]:
    if st.row_of(statement.node) is None:
        raise NotSupported(f"{statement.classified.verb} is not supported yet")
    assert isinstance(statement.node, st.Statement)
    return (yield from handle(session, statement.node, parameters))


def handle(session: Context, node: st.Statement, parameters: tuple[object, ...]) -> Waiting[Result]:
    """Run one of ducktail's statements."""
    row = st.row_of(node)
    assert row is not None
    found = runners.RUNNERS.get(row.node) or show.runner(row)
    return (yield from found.start(session, node, parameters))


def _refused(session: Context, statement: ParsedStatement, parameters: tuple[object, ...]) -> Waiting[Result]:
    assert statement.classified.error is not None
    raise statement.classified.error
    yield


def _empty(session: Context, statement: ParsedStatement, parameters: tuple[object, ...]) -> Waiting[Result]:
    return Result.command("")
    yield


@dataclass(frozen=True, slots=True)
class KindRow:
    """The way in which statements of a kind run.

    Args:
        scanning: runs statements with stream scans, after their WAIT.
        names_files: True if parameters may name files, which are checked then.
        reads_views: True if statements may read the view of a topic, which must not be partial.
        described: True if the rows must have the described columns.
    """

    run: Runner
    scanning: Runner | None = None
    names_files: bool = False
    reads_views: bool = False
    described: bool = False


def _rows(run: Runner, scanning: Runner, *, described: bool = False) -> KindRow:
    """The row of a kind that reads."""
    return KindRow(run, scanning, names_files=True, reads_views=True, described=described)


# A kind without a row cannot run.
KINDS: dict[Kind, KindRow] = {
    Kind.EMPTY: KindRow(_empty),
    Kind.OURS: KindRow(_run_ours),
    Kind.READ: _rows(cte_writes.run_read, scans.run_query, described=True),
    Kind.DML: _rows(cte_writes.run_write, scans.run_write),
    Kind.DDL: _rows(cte_writes.run_definition, scans.run_definition),
    Kind.EXPANDED: KindRow(run_expanded),
    Kind.COPY: _rows(copying.run_copy, scans.run_copy),
    Kind.DO: KindRow(do.run_do),
    Kind.EXPLAIN: KindRow(prepared.explain, names_files=True),
    Kind.TRANSACTION: KindRow(transactions.run_transaction_statement),
    Kind.SETTING: KindRow(set_and_show.run_setting),
    Kind.PREPARE: KindRow(prepared.prepare),
    Kind.EXECUTE: KindRow(prepared.execute_prepared),
    Kind.DEALLOCATE: KindRow(prepared.deallocate),
    Kind.CURSOR: KindRow(cursor_statements.run_cursor_statement),
    Kind.UTILITY: KindRow(utilities.run_utility),
    Kind.CALL: KindRow(session_calls.run_call),
    Kind.FORWARD: KindRow(serving.run_forward),
    Kind.REFUSED: KindRow(_refused),
}
