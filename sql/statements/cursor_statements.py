"""DECLARE, FETCH, MOVE and CLOSE of cursors, which may be a driver's named portals too.

A cursor's query begins with its DECLARE, whose snapshot it reads, and returns rows as they are fetched:
forward only, or with SCROLL in any direction (scrolling.py). Source: docs/sql.md, "Cursors".
"""

from __future__ import annotations

from collections.abc import Iterator

from ...engine.errors import DucktailError, NoActiveTransaction, NotSupported, SyntaxError_, WrongState
from ...engine.waiting import Waiting
from ..language.parse import Query
from ..results.results import Result, ResultBatch
from ..results.spool import Scroll, ScrollSource
from ..session_state.context import Context, Runner
from ..session_state.portals import Portal
from ..session_state.statement import ParsedStatement, check_described
from ..text.classified import CursorFacts, Kind
from ..text.tokens import Token

Values = tuple[object, ...]
UNDER_WAY = "A FETCH of it failed, or was given up, before its client had all of its rows."
SCROLL_HINT = "DECLARE it with SCROLL to go back."


def _facts(statement: ParsedStatement) -> CursorFacts:
    facts = statement.classified.cursor
    assert facts is not None
    return facts


def named(session: Context, statement: ParsedStatement) -> Portal | None:
    """The portal that a FETCH, MOVE or CLOSE names, or None."""
    facts = _facts(statement)
    return None if facts.name is None or facts.inner else session.portals.get(facts.name)


def _start(session: Context, portal: Portal) -> Waiting[Result]:
    # FETCH takes its rows: none are requested from another node before that.
    session.first_rows = 0
    try:
        result = yield from session.execute_within(portal.statement, tuple(portal.parameters))
    finally:
        session.first_rows = None
    portal.result = result
    if portal.scroll:
        source = result.source = ScrollSource(result.source, session.cursors.spool)
        portal.scrolled = Scroll(result, source)
        portal.free = source.free
    session.kept(result)
    return result


def _declare(session: Context, statement: ParsedStatement, parameters: Values) -> Waiting[Result]:
    facts = _facts(statement)
    assert facts.name is not None
    if not facts.hold and (not session.block.begun or session.block.piped):
        raise NoActiveTransaction("DECLARE CURSOR can only be used in transaction blocks")
    spelling = session.spell(facts.inner)
    try:
        inner = yield from session.parse(spelling.rewritten)
        if inner.classified.error is not None:
            raise inner.classified.error
        if inner.classified.kind is not Kind.READ:
            raise _no_query(inner.classified.tokens[0])
        if isinstance(inner.node, Query) and (scan := inner.node.commits) is not None:
            raise NotSupported(
                "COMMIT of a stream scan is not supported in DECLARE CURSOR",
                hint="Run COMMIT OFFSETS before DECLARE.",
                position=scan.start + 1,
            )
        inner = inner.declared(statement.parameter_types_given)
        if parameters:
            _ = inner.description  # Binding finds the casts of the parameters.
        text = statement.text
        portal = Portal(inner, parameters, facts.binary, facts.hold, scroll=facts.scroll, text=text)
        portal.spelling = spelling
        session.portals.add(facts.name, portal)
        try:
            result = yield from _start(session, portal)
            if not session.block.begun:
                # The statement is its own transaction, which the cursor outlives.
                portal.ours = False
                session.portals.keep_held(session.cursors.keep_rest)
        except BaseException:
            session.portals.remove(facts.name)
            raise
    except DucktailError as error:
        error.position = spelling.position(error.position)
        if error.position is not None:
            error.position += facts.offset
        raise
    assert result.columns is not None
    return Result.command("DECLARE CURSOR")


def _no_query(first: Token) -> DucktailError:
    """The error for a cursor over another statement than a query, by its first word."""
    message = f'syntax error at or near "{first.text}"'
    hint = "A cursor is over a query: run a statement that writes by itself."
    return SyntaxError_(message, hint=hint, position=first.start + 1)


def _fetch(session: Context, statement: ParsedStatement, parameters: Values) -> Waiting[Result]:
    facts = _facts(statement)
    assert facts.name is not None
    portal = session.portals.find(facts.name)
    if portal.result is None and portal.statement.columns is not None:
        yield from _start(session, portal)
    if portal.result is None or portal.result.columns is None:
        raise WrongState(f'portal "{facts.name}" cannot be run')
    rows = _rows(portal, facts)
    if statement.classified.verb == "MOVE":
        moved = _passed(rows)
        portal.result.suspend()
        return Result.command(f"MOVE {moved}")
    result = _fetched(portal, portal.result, rows)
    result.formats = (1,) if portal.binary else ()
    check_described(statement, result)
    return result


def _close(session: Context, statement: ParsedStatement, parameters: Values) -> Waiting[Result]:
    name = _facts(statement).name
    if name is None:
        session.portals.clear()
        return Result.command("CLOSE CURSOR ALL")
    session.portals.find(name)
    session.portals.remove(name)
    return Result.command("CLOSE CURSOR")
    yield


_VERBS: dict[str, Runner] = {
    "DECLARE CURSOR": _declare,
    "FETCH": _fetch,
    "MOVE": _fetch,
    "CLOSE CURSOR": _close,
}


def run_cursor_statement(session: Context, statement: ParsedStatement, parameters: Values) -> Waiting[Result]:
    """Run DECLARE, FETCH, MOVE or CLOSE."""
    return (yield from _VERBS[statement.classified.verb](session, statement, parameters))


def is_inline(session: Context, statement: ParsedStatement) -> bool:
    """True if a FETCH needs no DuckDB work: it takes few rows, which are in memory."""
    facts, portal = _facts(statement), named(session, statement)
    if statement.classified.verb != "FETCH" or portal is None or portal.result is None or portal.scroll:
        return False
    return facts.way == "FORWARD" and facts.count != 0 and portal.result.is_ready(facts.count)


def _rows(portal: Portal, facts: CursorFacts) -> _Forward | _Scrolled:
    """The rows that a FETCH or MOVE takes."""
    if portal.scrolled is not None:
        return _Scrolled(portal.scrolled.rows(facts.way, facts.count))
    skipped, count = _way(portal, facts)
    _passed(_Forward(portal, skipped))
    return _Forward(portal, count)


def _passed(rows: _Forward | _Scrolled) -> int:
    """Take all rows and return their number."""
    return sum(batch.row_count for batch in iter(lambda: rows.next(None), None))


def _way(portal: Portal, facts: CursorFacts) -> tuple[int, int | None]:
    """The number of rows to skip, and the number of rows to return then (None: all remaining ones)."""
    count = facts.count
    if facts.way == "FORWARD" and (count is None or count > 0):
        return 0, count
    if facts.way == "RELATIVE" and count is not None and count > 0:
        return count - 1, 1
    if facts.way == "ABSOLUTE" and count is not None and count > portal.given:
        return count - portal.given - 1, 1
    raise WrongState("cursor can only scan forward", hint=SCROLL_HINT)


def _fetched(portal: Portal, taken: Result, rows: _Forward | _Scrolled) -> Result:
    """The answer of a FETCH; if its client does not receive all of it, the portal's query has failed."""

    def ended(complete: bool) -> None:
        if complete:
            taken.suspend()

    return Result(
        tuple(portal.columns),
        rows,
        lambda rows: f"FETCH {rows}",
        on_end=ended,
        on_fail=lambda: taken.fail(WrongState("the cursor cannot be run", detail=UNDER_WAY)),
        on_suspend=taken.suspend,
    )


class _Forward:
    """The next rows of a portal, at most `left`; None for all. The portal keeps the rows behind them."""

    def __init__(self, portal: Portal, left: int | None) -> None:
        self._portal, self._left = portal, left

    @property
    def inline(self) -> bool:
        """True if they are few, and in memory."""
        result = self._portal.result
        return self._left == 0 or (result is not None and result.is_ready(self._left))

    def next(self, limit: int | None) -> ResultBatch | None:
        """The next rows."""
        batch = None if self._left == 0 else self._portal.take(self._left)
        if batch is None:
            self._left = 0
        elif self._left is not None:
            self._left -= batch.row_count
        return batch

    def close(self) -> None:
        """Take no more rows."""
        self._left = 0


class _Scrolled:
    """The rows of one FETCH of a cursor that moves in any direction."""

    def __init__(self, rows: Iterator[ResultBatch]) -> None:
        self._rows = rows

    def next(self, limit: int | None) -> ResultBatch | None:
        """The next rows."""
        return next(self._rows, None)

    def close(self) -> None:
        """Do nothing: the portal keeps the remaining rows."""
        self._rows = iter(())
