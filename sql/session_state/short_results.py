"""Queries with short answers: their rows are fetched as Python values, without Arrow.

An Arrow reader costs more than a query of one row. A statement whose answer was short once is therefore run
differently from then on: DuckDB parses it once, and its rows are fetched directly. An answer that turns out
to be long, or that has a value which Python's types cannot represent, is requested again as Arrow; nothing
of it has been sent by then. The answer of a query of literals alone (`SELECT 1`, with which pools test a
connection) never changes and is kept. Source: docs/design/sql.md, "Short answers".
"""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import pyarrow as pa

from ...engine.duck.binding import KEPT_CHARS_MAX, bind
from ...engine.values import datarow
from ...engine.values.arrow_values import AmbiguousValue
from ...engine.values.datarow import Row
from ..results.batches import PlainBatch
from ..results.results import ReadySource, Result, ResultColumn, select_tag
from ..text.tokens import NUMBER, STRING
from .context import Context
from .run_text import binding_cursor, result_columns, told_in
from .statement import ParsedStatement

# Where a statement keeps its FewRows.
KEPT = "few"
ROWS_MAX = 80
# What a query of literals alone is made of, beside them and the names that AS gives.
LITERALS = frozenset({STRING, NUMBER, "NULL", "TRUE", "FALSE", "-", ",", "AS"})
# So many answers of a statement may turn out long before it is left to Arrow.
MISSES_MAX = 3


class FewRows:
    """A query whose answer was short.

    Args:
        text: what DuckDB runs.
        user_text: the same text where it is the user's own, for the places of errors.
        columns: of its rows.
        schema: Arrow's for them.
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
        self._division = False  # how `/` was parsed
        self._description: object = None
        self._misses = 0
        self._constant = constant
        self._answer: PlainBatch | None = None

    @property
    def ready(self) -> bool:
        """True if it needs no DuckDB work."""
        return self._answer is not None

    def run(self, session: Context, parameters: Sequence[object]) -> Result | None:
        """Run it; None where it has to be run again for Arrow.

        Raises:
            DucktailError: DuckDB's error.
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
                # PIVOT is several statements; what calls nextval is not run a second time.
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
        """All rows, raw; None if there are many, or their columns have changed."""
        if self._description != cursor.description:
            # Of another table by the same name, or the first time.
            told = cursor.description or []
            if result_columns([item[0] for item in told], [item[1] for item in told]) != self._columns:
                return None
            self._description = told
        try:
            rows = cursor.fetchmany(ROWS_MAX + 1)
            return None if len(rows) > ROWS_MAX else datarow.raw_rows(rows, self._types)
        except (AmbiguousValue, OverflowError):
            # Overflow: a moment whose clock in the session's zone is in a year that Python has not.
            return None


def kept(statement: ParsedStatement) -> FewRows | None:
    """The short execution of a statement whose last answer was short."""
    found = statement.plans.get(KEPT)
    return found if isinstance(found, FewRows) else None


def learn(
    statement: ParsedStatement, text: str, user_text: str | None, result: Result, schema: pa.Schema
) -> None:
    """Once a result is complete: keep how to run its statement again, where it was short.

    Args:
        text: what DuckDB ran.
        user_text: the same text where it is the user's own.
        schema: Arrow's for its rows.
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
