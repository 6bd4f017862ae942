"""The way of every statement: its names are resolved, its session's rights asked for, and then it runs.

What a user may do with a statement is judged for objects, in the state of the catalog in which it runs. A
statement of a transaction has the transaction's snapshot. In autocommit a query is judged and begun, and
begun again where a change of the catalog was committed meanwhile; what writes is judged and run in one
transaction.

Source: docs/design/sql.md, "Names", and docs/security.md, "Enforcement".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from operator import is_

from ...engine.errors import DucktailError, SerializationFailure
from ...engine.waiting import Waiting
from ..cluster.shares import in_cluster
from ..dml import topic_writes
from ..language.parse import Query
from ..peer_requests.learning import with_groups
from ..results.results import ArrowSource, Result
from ..rights import permission
from ..session_state.context import Context
from ..session_state.names import CatalogChanged
from ..session_state.run_text import atomically
from ..session_state.statement import ParsedStatement
from ..text.classified import Kind
from ..text.spans import Replacement, user_position
from . import read_only
from .resolve import may_be_in_full, pieces_in_full, text_in_full

# How often a query is begun again, before it gets a transaction of its own, or is given up.
TRIES, SCAN_TRIES = 2, 20
# What is judged and run in one transaction. Definitions have their own (rights/ddl_permission.py); ours are
# judged under the writer lock; everything else takes no part of DuckDB's catalog.
_WRITING = frozenset({"SET VARIABLE", "EXPLAIN"})
# Under which a statement keeps itself with its names in full, and for which state of the catalog.
_FULL = "in full"

Values = tuple[object, ...]
# Makes a statement of a text: its names in full.
Again = Callable[[Context, str, ParsedStatement], ParsedStatement]
Run = Callable[[ParsedStatement], Waiting[Result]]


def execute(
    session: Context, statement: ParsedStatement, parameters: Values, again: Again, work: Run
) -> Waiting[Result]:
    """Resolve, authorize and run one statement.

    Args:
        again: see `Again`.
        work: runs it.

    Raises:
        DucktailError: any; with its place in the statement as it was given.
    """
    plain = not session.access.limited or session.block.begun

    def judged() -> Waiting[Result]:
        full = in_full(session, statement, again)
        with places_of(full):
            permission.check(session, full, parameters, permission.CheckMode(runs=not full.waits))
            read_only.check(session, full)
            result = yield from with_groups(session, partial(work, full))
        if isinstance(result.source, ArrowSource):
            result.source.pieces = full.pieces
        return result

    kind, verb = statement.classified.kind, statement.classified.verb
    if plain or statement.away is not None:
        return (yield from judged())
    if kind is Kind.READ or verb == "SHOW":
        return (yield from _in_one_state(session, statement, judged))
    if (
        kind is Kind.DML
        and in_cluster(session)
        and topic_writes.target(session, statement.classified) is not None
    ):
        return (yield from judged())  # Its events go to several nodes, which is not done in a transaction.
    if kind is Kind.DML or verb in _WRITING:
        return (yield from _in_one_transaction(session, judged))
    return (yield from judged())


def _in_one_transaction(session: Context, judged: Callable[[], Waiting[Result]]) -> Waiting[Result]:
    """Run a write in a transaction whose snapshot has the catalog by which it was checked.

    That no change of it was committed meanwhile is seen before COMMIT, which costs nothing; else it is
    rolled back and run in a transaction whose snapshot is fixed first.
    """

    def assumed() -> Waiting[Result]:
        transaction = session.block.opened()
        transaction.assumes = True
        result = yield from judged()
        if session.database.catalog.changes.stable != transaction.generation:
            raise CatalogChanged
        return result

    try:
        return (yield from atomically(session, assumed))
    except CatalogChanged:
        return (yield from atomically(session, judged))


def _in_one_state(
    session: Context, statement: ParsedStatement, judged: Callable[[], Waiting[Result]]
) -> Waiting[Result]:
    """A query in autocommit: the catalog that it was judged by is the one that it has begun with."""
    if statement.classified.may_write:
        return (yield from _in_one_transaction(session, judged))
    if statement.inline:
        return (yield from judged())  # It is answered from what is ours alone.
    changes = session.database.catalog.changes
    scans = isinstance(statement.node, Query)
    for _ in range(SCAN_TRIES if scans else TRIES):
        before = changes.settle()
        result = yield from judged()
        if changes.stable == before:
            return result
        result.close()
    if scans:
        raise SerializationFailure(
            "could not serialize access due to concurrent changes of the catalog", hint="Try again."
        )

    def whole() -> Waiting[Result]:
        result = yield from judged()
        # Its rows outlive the transaction.
        if not result.ended and result.holds_cursor:
            session.cursors.keep_rest(result)
        return result

    return (yield from atomically(session, whole))


# Names in full.


@dataclass(frozen=True, slots=True)
class _Kept:
    """A statement with its names in full, and the state of catalog and rights to which it belongs.

    Args:
        full: None where the statement has them so itself.
    """

    full: ParsedStatement | None
    same: tuple[object, ...]


def in_full(session: Context, statement: ParsedStatement, again: Again) -> ParsedStatement:
    """The statement with its names in full; the statement itself where they are."""
    access, names = session.access, session.names
    if session.block.whole and access.limited and not statement.waits:
        session.block.touched()
    if not may_be_in_full(session, statement):
        return statement
    # Each is another value after each change: whether it is the same one is all that is asked.
    same = (names.objects(), names.temporary_objects(), access.rights, names.path)
    kept = statement.plans.get(_FULL)
    if isinstance(kept, _Kept) and all(map(is_, kept.same, same)):
        return kept.full or statement
    pieces = pieces_in_full(session, statement)
    full = kept.full if isinstance(kept, _Kept) else None
    text = text_in_full(statement, pieces)
    if not pieces:
        full = None
    elif full is None or full.text != text:
        full = again(session, text, statement)
        full.pieces = pieces
    statement.plans[_FULL] = _Kept(full, same)
    return full or statement


def places_of(statement: ParsedStatement) -> AbstractContextManager[None]:
    """Context in which error positions refer to the statement as it was given."""
    return told_by(statement.pieces)


def told_by(pieces: Sequence[Replacement]) -> AbstractContextManager[None]:
    """Context in which error positions refer to the text before these replacements."""
    return _told_by(pieces) if pieces else _AS_IT_IS


_AS_IT_IS = nullcontext()


@contextmanager
def _told_by(pieces: Sequence[Replacement]) -> Iterator[None]:
    try:
        yield
    except DucktailError as error:
        if error.position is not None:
            error.position = user_position(error.position, pieces)
        raise
