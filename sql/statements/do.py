"""DO: runs the statements of a block, each of them through the one pipeline.

A block whose errors are caught is undone before its handler runs, as PostgreSQL's subtransaction is: outside
a transaction it is a transaction of its own, and inside one a savepoint, to which DuckDB can return as far as
`session_state/block.py` says. An object that exists already is noticed before its CREATE runs, so that it
does not end the transaction. Source: docs/sql.md, "DO".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...engine.duck.objects import SCHEMA, SEQUENCE, TABLE, TYPE
from ...engine.errors import (
    ActiveTransaction,
    DucktailError,
    DuplicateObject,
    DuplicateSchema,
    DuplicateTable,
    NotSupported,
)
from ...engine.quoting import fold
from ...engine.waiting import Waiting
from ..language.do_block import Block, If, Sql, Step
from ..results.results import Result
from ..session_state.context import Context
from ..session_state.run_text import Values, atomically
from ..session_state.statement import ParsedStatement
from ..text.classified import Classified, Kind

SAVEPOINT = "__ducktail_do"
_CREATED = {"TABLE": TABLE, "VIEW": TABLE, "SEQUENCE": SEQUENCE, "TYPE": TYPE, "SCHEMA": SCHEMA}
_KINDS = frozenset(
    {Kind.READ, Kind.DML, Kind.DDL, Kind.EXPANDED, Kind.OURS, Kind.SETTING, Kind.CALL, Kind.REFUSED}
)
# The error of a name in use, if it is not that of a relation.
_ERRORS: dict[str, type[DucktailError]] = {TYPE: DuplicateObject, SCHEMA: DuplicateSchema}


def run_do(session: Context, statement: ParsedStatement, parameters: Values) -> Waiting[Result]:
    """Run the block of a DO.

    Raises:
        DucktailError: a statement fails with an error that no handler catches.
        NotSupported: an error is caught, but the transaction around the DO cannot return to its beginning.
    """
    block = statement.node
    assert isinstance(block, Block)
    try:
        yield from _block(session, block)
    except _Lost as lost:
        raise lost.error from None
    except DucktailError as error:
        error.position = None  # It is a position in a statement of the code.
        raise
    return Result.command("DO")


class _Lost(Exception):
    """A caught error after which the transaction cannot continue; no handler catches it."""

    def __init__(self, error: DucktailError) -> None:
        super().__init__(str(error))
        self.error = error


def _block(session: Context, block: Block) -> Waiting[None]:
    if not session.block.begun:
        yield from _apart(session, block)
    elif block.handlers:
        yield from _within(session, block)
    else:
        yield from _steps(session, block.steps)


def _apart(session: Context, block: Block) -> Waiting[None]:
    """Run a block as a transaction, and a handler as another one."""
    try:
        yield from atomically(session, partial(_whole, session, block.steps))
    except DucktailError as error:
        handler = block.handler_of(error)
        if handler is None:
            raise
        yield from atomically(session, partial(_whole, session, handler.steps))


def _within(session: Context, block: Block) -> Waiting[None]:
    """Run a block in the open transaction."""
    session.block.make_savepoint(SAVEPOINT, frozenset())
    try:
        yield from _steps(session, block.steps)
    except DucktailError as error:
        handler = block.handler_of(error)
        if handler is None:
            raise
        # The error may have ended DuckDB's transaction, with everything that was done before the block.
        session.block.failed()
        try:
            session.block.return_to(SAVEPOINT)
        except NotSupported as lost:
            message = "an error in DO cannot be caught here: the transaction cannot continue"
            hint = "ROLLBACK; run the DO first, or in a transaction of its own."
            raise _Lost(NotSupported(message, detail=lost.detail, hint=hint)) from None
        except DucktailError as lost:
            raise _Lost(lost) from None
        session.block.release_savepoint(SAVEPOINT)
        yield from _steps(session, handler.steps)
        return
    session.block.release_savepoint(SAVEPOINT)


def _whole(session: Context, steps: Sequence[Step]) -> Waiting[Result]:
    yield from _steps(session, steps)
    return Result.command("DO")


def _steps(session: Context, steps: Sequence[Step]) -> Waiting[None]:
    for step in steps:
        if isinstance(step, Block):
            yield from _block(session, step)
        elif isinstance(step, If):
            for condition, inner in step.branches:
                if condition is None or (yield from _holds(session, condition)):
                    yield from _steps(session, inner)
                    break
        else:
            result = yield from _run(session, step)
            while result.take(None) is not None:
                pass


def _holds(session: Context, condition: str) -> Waiting[bool]:
    result = yield from _run(session, Sql(f"SELECT CAST(({condition}) AS BOOLEAN)"))
    batch = result.take(None)
    holds = batch is not None and batch.record_batch().column(0)[0].as_py() is True
    result.close()
    return holds


def _run(session: Context, sql: Sql) -> Waiting[Result]:
    parsed = yield from session.parse(session.spell(sql.text).rewritten, told=False)
    classified = parsed.classified
    if classified.kind not in _KINDS:
        raise NotSupported(f"{classified.verb} is not supported in DO")
    if classified.setting is not None and classified.setting.name.startswith("transaction_"):
        raise ActiveTransaction(f'"{classified.setting.name}" must be set before any query')
    if not session.access.limited:  # Others may not be told what there is.
        _refuse_existing(session, classified)
    return (yield from session.execute_within(parsed.declared(()), ()))


def _refuse_existing(session: Context, classified: Classified) -> None:
    facts = classified.ddl
    kind = None if facts is None or facts.verb != "CREATE" else _CREATED.get(facts.object_type)
    if facts is None or kind is None or facts.or_replace or facts.if_not_exists or facts.temporary:
        return
    name = facts.names[0]
    place = (fold(name[-1]), fold(name[-1])) if kind == SCHEMA else session.names.made_key(name)
    if session.names.objects().get(kind, *place) is not None:
        raise _ERRORS.get(kind, DuplicateTable)(f'{fold(facts.object_type)} "{name[-1]}" already exists')
