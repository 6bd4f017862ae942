"""Queries without a stream: DuckDB gets the user's own text."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import duckdb

from ...engine.errors import LockNotAvailable, NotSupported, ProgramLimitExceeded
from ...engine.quoting import fold
from ...engine.waiting import Waiting
from ..results.results import Result, select_tag
from ..text.classified import TokenReader
from ..text.spans import without_lists
from ..text.tokens import tokenize
from . import short_results
from .context import Context
from .names import Key
from .run_text import bound, lossless, query_result, rows_of, rows_result, undone, with_casts
from .statement import ParsedStatement

# DuckDB tells the names with Python's lock held: half a second for so many tokens. In fewer characters there
# are not so many.
NAMES_TOKENS_MAX, NAMES_CHARS_MAX = 64 * 1024, 64 * 1024
CTE_VERBS = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE"})


def run_query(
    session: Context, statement: ParsedStatement, parameters: tuple[object, ...]
) -> Waiting[Result]:
    """Run a query; one that hides a write is a write."""
    text = statement.text
    if statement.classified.may_write and bound(session, text).writes:
        return (yield from _run_writing(session, text, parameters))
    if session.block.begun:
        session.block.touched()
    few = None if statement.arrow else short_results.kept(statement)
    result = None if few is None else few.run(session, parameters)
    return _query(session, statement, parameters) if result is None else result


def _query(session: Context, statement: ParsedStatement, parameters: tuple[object, ...]) -> Result:
    text: str = statement.text
    user_text: str | None = text
    casts, whole = statement.casts, True
    if casts is not None and parameters:
        types = casts.of(parameters)
        whole = types is casts.always
        text, user_text = with_casts(text, types), None
    # In process the rows are wanted as Arrow. What is cast in this execution alone is no text for others.
    learn = None
    if session.wire and not statement.arrow and whole:
        learn = partial(short_results.learn, statement, text, user_text)
    return query_result(session, text, parameters, user_text, learn, arrow=statement.arrow, again=True)


def tables_named(session: Context, text: str) -> Iterator[Key]:
    """The tables that a text names, according to DuckDB."""
    text = without_lists(text)
    if len(text) > NAMES_CHARS_MAX and len(tokenize(text)) > NAMES_TOKENS_MAX:
        raise ProgramLimitExceeded(
            "the statement is too large to be told what it writes",
            hint="Write it as an INSERT, UPDATE or DELETE of its own.",
        )
    try:
        names = session.meta.get_table_names(text, qualified=True)
    except duckdb.Error:
        return  # It binds to stand-ins for tables, which cannot be written: the tokens tell the rest.
    for name in names:
        parts = tuple(token.name for token in tokenize(name) if token.kind != ".")
        yield session.names.table_key(parts)


def cte_targets(text: str) -> Iterator[tuple[str, ...]]:
    """The tables that data-modifying common table expressions write; DuckDB does not report them."""
    for name, _ in cte_target_places(text):
        yield name


def cte_target_places(text: str) -> Iterator[tuple[tuple[str, ...], int]]:
    """The same, each with where it begins in the text."""
    tokens = tokenize(text)
    for at in range(1, len(tokens)):
        if tokens[at].kind in CTE_VERBS and tokens[at - 1].kind == "(":
            reader = TokenReader(text, tokens, at + 1)
            if reader.accept("OR"):
                reader.take()
            reader.accept_one("INTO", "FROM")
            place = reader.place
            yield reader.qualified(), place


def _named_anywhere(session: Context, text: str) -> Iterator[Key]:
    """Captured tables whose name is a word of the text, at any position."""
    words = {fold(token.name) for token in tokenize(text) if token.is_name}
    for key in session.block.tables:
        if key[-1] in words:
            yield key


def refuse_captured(session: Context, text: str) -> list[Key]:
    """Safety net of the rewriting: refuse other writing statements that name a captured table.

    Raises:
        NotSupported.
    """
    keys = list(tables_named(session, text))
    keys += [session.names.table_key(name) for name in cte_targets(text)]
    # A net under the net, as DuckDB does not tell what such an expression writes.
    for key in (*keys, *_named_anywhere(session, text)):
        if key in session.block.tables:
            raise NotSupported(
                f'table "{key[-1]}" has a stream, and this statement cannot be captured',
                hint="Write it as an INSERT, UPDATE or DELETE of its own.",
            )
    return keys


def _run_writing(session: Context, text: str, parameters: tuple[object, ...]) -> Waiting[Result]:
    """A data-modifying common table expression: only on tables without a stream."""
    keys = refuse_captured(session, text)
    if session.block.begun:
        session.block.touched()
    transactions = session.database.transactions
    try:
        for key in keys:
            free = yield from session.block.enter_plain_write(key)
            if not free:
                raise LockNotAvailable(f'table "{key[-1]}" has just got a stream', hint="Try again.")
        return (yield from run_whole(session, text, parameters))
    finally:
        if not session.block.begun:
            transactions.gate.leave(session.id)


def run_whole(session: Context, text: str, parameters: tuple[object, ...]) -> Waiting[Result]:
    """Run a query and take all its rows."""
    if session.block.begun:
        session.block.touched()
    types = bound(session, text).types
    with lossless(session, types), undone(session, types):
        columns, table = rows_of(session, text, parameters)
    return rows_result(session, columns, table, select_tag)
    yield
