"""Queries without a stream, which DuckDB runs as the user's own text; short answers bypass Arrow.

An Arrow reader costs more than a query of one row. A statement whose answer was short once is therefore run
differently from then on: DuckDB parses it once, and its rows are fetched directly, as Python values. An
answer that turns out to be long, or that has a value which Python's types cannot represent, is requested
again as Arrow; nothing of it has been sent by then. The answer of a query of literals alone (`SELECT 1`,
with which pools test a connection) never changes and is kept. Source: docs/design/sql.md, "Short answers".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import duckdb
import pyarrow as pa

from ...engine.duck.binding import KEPT_CHARS_MAX, bind
from ...engine.errors import LockNotAvailable, NotSupported, ProgramLimitExceeded
from ...engine.quoting import fold
from ...engine.values import datarow
from ...engine.values.arrow_values import AmbiguousValue
from ...engine.values.datarow import Row
from ...engine.waiting import Waiting
from ..results.batches import PlainBatch
from ..results.results import ReadySource, Result, ResultColumn, select_tag
from ..text.classified import TokenReader
from ..text.spans import without_lists
from ..text.tokens import NUMBER, STRING, tokenize
from .context import Context
from .names import Key
from .run_text import (
    binding_cursor,
    bound,
    lossless,
    query_result,
    result_columns,
    rows_of,
    rows_result,
    told_in,
    undone,
    with_casts,
)
from .statement import ParsedStatement

# The key under which a statement keeps its FewRows.
KEPT = "few"
ROWS_MAX = 80
# The tokens of a query of literals alone, beside the literals and the names after AS.
LITERALS = frozenset({STRING, NUMBER, "NULL", "TRUE", "FALSE", "-", ",", "AS"})
# After this many long answers a statement is left to Arrow.
MISSES_MAX = 3


class FewRows:
    """A query whose answer was short.

    Args:
        text: the text that DuckDB runs.
        user_text: the same text if it is the user's own, for the positions of errors.
        columns: the columns of its rows.
        schema: the Arrow schema of its rows.
        constant: the answer is always the same.
    """

    def __init__(
        self,
        text: str,
        user_text: str | None,
        columns: tuple[ResultColumn, ...],
        schema: pa.Schema,
        *,
        constant: bool,
    ) -> None:
        self._text = text
        self._user_text = user_text
        self._columns = columns
        self._types = tuple(column.type for column in columns)
        self._schema = schema
        self._statement: duckdb.Statement | None = None
        self._division = False  # the parsed meaning of `/`
        self._description: object = None
        self._misses = 0
        self._constant = constant
        self._answer: PlainBatch | None = None

    @property
    def ready(self) -> bool:
        """True if the answer needs no DuckDB work."""
        return self._answer is not None

    def run(self, session: Context, parameters: Sequence[object]) -> Result | None:
        """Run the query; None if it must run again with Arrow.

        Raises:
            DucktailError: the translated error of DuckDB.
        """
        if self._answer is not None:
            return self._result(self._answer)
        if self._misses >= MISSES_MAX:
            return None
        cursor = session.cursor
        with told_in(session, self._user_text):
            division = session.variables.integer_division
            if self._statement is None or self._division is not division:
                parsed = cursor.extract_statements(self._text)
                # PIVOT is several statements; a query that calls nextval must not run twice.
                if len(parsed) != 1 or bind(binding_cursor(session), self._text).writes:
                    self._misses = MISSES_MAX
                    return None
                (self._statement,), self._division = parsed, division
            cursor.execute(self._statement, list(parameters) or None)
            rows = self._taken(cursor)
            if rows is None:
                cursor.abort()
                self._misses += 1
                return None
        batch = PlainBatch(rows, self._types, self._schema)
        if self._constant:
            self._answer = batch
        return self._result(batch)

    def _result(self, batch: PlainBatch) -> Result:
        return Result(self._columns, ReadySource([batch]), select_tag)

    def _taken(self, cursor: duckdb.DuckDBPyConnection) -> list[Row] | None:
        """All rows, as DuckDB returns them; None if there are many, or their columns have changed."""
        if self._description != cursor.description:
            # The name is another table's now, or this is the first time.
            told = cursor.description or []
            if result_columns([item[0] for item in told], [item[1] for item in told]) != self._columns:
                return None
            self._description = told
        try:
            rows = cursor.fetchmany(ROWS_MAX + 1)
            return None if len(rows) > ROWS_MAX else datarow.raw_rows(rows, self._types)
        except (AmbiguousValue, OverflowError):
            # Overflow: the time in the session's zone is in a year that Python cannot represent.
            return None


def kept(statement: ParsedStatement) -> FewRows | None:
    """The short execution of a statement whose last answer was short."""
    found = statement.plans.get(KEPT)
    return found if isinstance(found, FewRows) else None


def learn(
    statement: ParsedStatement, text: str, user_text: str | None, result: Result, schema: pa.Schema
) -> None:
    """Keep the short execution of a statement, once its complete result was short.

    Args:
        text: the text that DuckDB ran.
        user_text: the same text if it is the user's own.
        schema: the Arrow schema of its rows.
    """
    if KEPT in statement.plans or len(text) > KEPT_CHARS_MAX:
        return
    columns = result.columns or ()
    if not datarow.has_raw_values([column.type for column in columns]):
        return

    def ended(complete: bool) -> None:
        if complete and result.row_count <= ROWS_MAX:
            statement.plans[KEPT] = FewRows(
                text, user_text, columns, schema, constant=_is_constant(statement)
            )

    result.when_ended(ended)


def is_ready(statement: ParsedStatement) -> bool:
    """True if a query's answer is kept."""
    found = kept(statement)
    return found is not None and found.ready


def _is_constant(statement: ParsedStatement) -> bool:
    """True if a query consists of literals alone."""
    first, *others = statement.classified.tokens
    before = first
    for token in others:
        if token.kind not in LITERALS and not (before.kind == "AS" and token.is_name):
            return False
        before = token
    return first.kind == "SELECT"


# DuckDB lists the names in a text while it holds Python's lock: half a second for this many tokens. A shorter
# text has fewer tokens.
NAMES_TOKENS_MAX, NAMES_CHARS_MAX = 64 * 1024, 64 * 1024
CTE_VERBS = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE"})


def run_query(
    session: Context, statement: ParsedStatement, parameters: tuple[object, ...]
) -> Waiting[Result]:
    """Run a query; a query that contains a write is treated as a write."""
    text = statement.text
    if statement.classified.may_write and bound(session, text).writes:
        return (yield from _run_writing(session, text, parameters))
    if session.block.begun:
        session.block.touched()
    few = None if statement.arrow else kept(statement)
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
    # In-process clients take the rows as Arrow. A text with casts for this execution alone is not kept for
    # others.
    learned = None
    if session.wire and not statement.arrow and whole:
        learned = partial(learn, statement, text, user_text)
    return query_result(session, text, parameters, user_text, learned, arrow=statement.arrow, again=True)


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
        return  # Binds stand-ins for tables, which cannot be written: the tokens give the rest.
    for name in names:
        parts = tuple(token.name for token in tokenize(name) if token.kind != ".")
        yield session.names.table_key(parts)


def cte_targets(text: str) -> Iterator[tuple[str, ...]]:
    """The tables that data-modifying common table expressions write; DuckDB does not report them."""
    for name, _ in cte_target_places(text):
        yield name


def cte_target_places(text: str) -> Iterator[tuple[tuple[str, ...], int]]:
    """The written tables, each with the position in the text at which its name begins."""
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
    """Refuse any other writing statement that names a captured table, as a safety net of the rewriting.

    Raises:
        NotSupported: the text names a captured table.
    """
    keys = list(tables_named(session, text))
    keys += [session.names.table_key(name) for name in cte_targets(text)]
    # A second net: DuckDB does not report the tables that such an expression writes.
    for key in (*keys, *_named_anywhere(session, text)):
        if key in session.block.tables:
            raise NotSupported(
                f'table "{key[-1]}" has a stream, and this statement cannot be captured',
                hint="Write it as an INSERT, UPDATE or DELETE of its own.",
            )
    return keys


def _run_writing(session: Context, text: str, parameters: tuple[object, ...]) -> Waiting[Result]:
    """Run a data-modifying common table expression, which may write only tables without a stream."""
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
