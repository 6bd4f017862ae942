"""DO: runs the statements of a block, each of them through the one pipeline.

A block whose errors are caught is undone before its handler runs, as PostgreSQL's subtransaction is: outside
a transaction it is a transaction of its own, and inside one a savepoint, to which DuckDB can return as far as
`session_state/block.py` says. The texts of EXECUTE are run in the same way. Source: docs/sql.md, "DO".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from ...engine.errors import (
    ActiveTransaction,
    CardinalityViolation,
    DucktailError,
    NotSupported,
    NullValueNotAllowed,
    RaisedException,
    SyntaxError_,
)
from ...engine.quoting import literal
from ...engine.values import datarow
from ...engine.waiting import Waiting
from ..language.do_block import EXCEPTION, LEVELS, DoBlock, Execute, If, Raise, RaiseAgain, Step, code_of
from ..results.results import Result
from ..rights.hidden_names import as_told, without_hidden_names
from ..session_state.context import Context
from ..session_state.run_text import Values, atomically
from ..session_state.statement import ParsedStatement
from ..text.classified import Kind
from ..text.spans import Replacement, cut
from ..text.tokens import split_statements, tokenize

SAVEPOINT = "__ducktail_do"
_KINDS = frozenset(
    {Kind.READ, Kind.DML, Kind.DDL, Kind.EXPANDED, Kind.OURS, Kind.SETTING, Kind.CALL, Kind.REFUSED}
)


def run_do(session: Context, statement: ParsedStatement, parameters: Values) -> Waiting[Result]:
    """Run the block of a DO.

    Raises:
        DucktailError: a statement fails with an error that no handler catches.
        NotSupported: an error is caught, but the transaction around the DO cannot return to its beginning.
    """
    block = statement.node
    assert isinstance(block, DoBlock)
    try:
        yield from _block(session, block, None)
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


def _block(session: Context, block: DoBlock, caught: DucktailError | None) -> Waiting[None]:
    """Run a block.

    Args:
        caught: the error whose handler is running.
    """
    if not session.block.begun:
        yield from _apart(session, block)
    elif block.handlers:
        yield from _within(session, block, caught)
    else:
        yield from _steps(session, block.steps, caught)


def _apart(session: Context, block: DoBlock) -> Waiting[None]:
    """Run the outermost block as a transaction, and a handler as another one."""
    try:
        yield from atomically(session, partial(_whole, session, block.steps, None))
    except DucktailError as error:
        handler = block.handler_of(error)
        if handler is None:
            raise
        yield from atomically(session, partial(_whole, session, handler.steps, error))


def _within(session: Context, block: DoBlock, caught: DucktailError | None) -> Waiting[None]:
    """Run a block in the open transaction."""
    session.block.make_savepoint(SAVEPOINT, frozenset())
    try:
        yield from _steps(session, block.steps, caught)
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
        yield from _steps(session, handler.steps, error)
        return
    session.block.release_savepoint(SAVEPOINT)


def _whole(session: Context, steps: Sequence[Step], caught: DucktailError | None) -> Waiting[Result]:
    yield from _steps(session, steps, caught)
    return Result.command("DO")


def _steps(session: Context, steps: Sequence[Step], caught: DucktailError | None) -> Waiting[None]:
    for step in steps:
        if isinstance(step, DoBlock):
            yield from _block(session, step, caught)
        elif isinstance(step, If):
            for condition, inner in step.branches:
                if condition is None or (yield from _holds(session, condition, caught)):
                    yield from _steps(session, inner, caught)
                    break
        elif isinstance(step, Raise):
            yield from _raise(session, step, caught)
        elif isinstance(step, RaiseAgain):
            assert caught is not None  # The parser has refused it elsewhere.
            raise caught
        elif isinstance(step, Execute):
            yield from _execute(session, step, caught)
        else:
            yield from _finish(session, step.text)


def _holds(session: Context, condition: str, caught: DucktailError | None) -> Waiting[bool]:
    text = f"SELECT CAST(({_filled(session, condition, caught)}) AS BOOLEAN)"
    result = yield from _run(session, text)
    batch = result.take(None)
    holds = batch is not None and batch.record_batch().column(0)[0].as_py() is True
    result.close()
    return holds


def _raise(session: Context, step: Raise, caught: DucktailError | None) -> Waiting[None]:
    message = None
    if step.texts is not None:
        message = step.texts[0]
        for expression, text in zip(step.arguments, step.texts[1:], strict=True):
            value = yield from _text(session, expression, caught)
            message += ("<NULL>" if value is None else value) + text
    options: dict[str, str] = {}
    for name, expression in step.options.items():
        value = yield from _text(session, expression, caught)
        if value is None:
            raise NullValueNotAllowed("RAISE statement option cannot be null")
        options[name] = value
    condition, sqlstate = step.condition or ("", LEVELS[step.level])
    if "ERRCODE" in options and (given := code_of(options["ERRCODE"])) != "00000":
        sqlstate = given
    message = options.get("MESSAGE", condition or sqlstate) if message is None else message
    detail, hint = options.get("DETAIL"), options.get("HINT")
    if step.level != EXCEPTION:
        session.notices.add(message, severity=step.level, sqlstate=sqlstate, detail=detail, hint=hint)
        return
    error = RaisedException(message, detail=detail, hint=hint)
    error.sqlstate = sqlstate
    raise error


def _execute(session: Context, step: Execute, caught: DucktailError | None) -> Waiting[None]:
    text = yield from _text(session, step.expression, caught)
    if text is None:
        raise NullValueNotAllowed("query string argument of EXECUTE is null")
    for statement in split_statements(text):
        yield from _finish(session, statement)


def _text(session: Context, expression: str, caught: DucktailError | None) -> Waiting[str | None]:
    """The value of an expression as a client would see it."""
    result = yield from _run(session, f"SELECT {_filled(session, expression, caught)}")
    assert result.columns is not None
    batch = result.take(2)
    result.close()
    if len(result.columns) != 1:
        raise SyntaxError_(f"query returned {len(result.columns)} columns")
    if batch is None or not batch.row_count:
        return None
    if batch.row_count > 1:
        raise CardinalityViolation("query returned more than one row")
    row = bytes(batch.datarows((result.columns[0].type,), (0,), session.variables["TimeZone"]))
    value = datarow.field(row, 0)
    return None if value is None else value.decode()


def _filled(session: Context, text: str, caught: DucktailError | None) -> str:
    """An expression of a handler, with the error in the place of the variables SQLERRM and SQLSTATE."""
    if caught is None:
        return text
    shown = without_hidden_names(session.access, session.database, as_told(session.access, caught))
    values = {"SQLERRM": literal(shown.message), "SQLSTATE": literal(shown.sqlstate)}
    found = [
        Replacement(token.start, token.end, values[token.kind])
        for before, token in pairwise((None, *tokenize(text)))
        if token is not None and token.kind in values and (before is None or before.kind != ".")
    ]
    return cut(text, found)


def _finish(session: Context, text: str) -> Waiting[None]:
    """Run a statement to its end, and drop its rows."""
    result = yield from _run(session, text)
    while result.take(None) is not None:
        pass


def _run(session: Context, text: str) -> Waiting[Result]:
    parsed = yield from session.parse(session.spell(text).rewritten, told=False)
    classified = parsed.classified
    if classified.kind not in _KINDS:
        raise NotSupported(f"{classified.verb} is not supported in DO")
    if classified.setting is not None and classified.setting.name.startswith("transaction_"):
        raise ActiveTransaction(f'"{classified.setting.name}" must be set before any query')
    return (yield from session.execute_within(parsed.declared(()), ()))
