"""COPY ... TO STDOUT: the rows of a table or of a query, as a client takes a file.

What stands in the brackets is a statement of its own (a query, one over stream scans, a DML with
RETURNING) and is run as one; a table is read with the query that lists its columns. The answer's rows
are then written in another form, batch by batch. Source: docs/sql.md, "COPY".
"""

from __future__ import annotations

from ...engine.errors import DucktailError, NotSupported
from ...engine.quoting import ident
from ...engine.waiting import Waiting
from ..results.results import CopyOut, Result
from ..session_state.context import Context
from ..session_state.statement import ParsedStatement
from ..text.classified import CopyFacts, Kind
from .copy_options import ARROW, read_options
from .stdin import columns_of, target_text

ANSWERING = (Kind.READ, Kind.DML)


def begin(session: Context, statement: ParsedStatement) -> Waiting[Result]:
    """Run the copied query; its result has the output format of the rows.

    Raises:
        NotSupported: the session has no client that takes them, or there are no rows to take.
    """
    facts = statement.classified.copy
    assert facts is not None
    if not session.wire:
        raise NotSupported(
            "COPY TO STDOUT wants a connection over the wire",
            hint="In process a SELECT gives its rows as Arrow or as Python values.",
        )
    options = read_options(statement.classified)
    try:
        inner = yield from session.parse(_source(session, facts))
        if options.format == ARROW:
            inner = _as_arrow(inner)
        result = yield from _run(session, inner)
    except DucktailError as error:
        if error.position is not None:
            # A table's query is ours: its places mean nothing to the user.
            error.position = None if facts.query_offset is None else error.position + facts.query_offset
        raise
    assert result.columns is not None
    names = [column.name for column in result.columns]
    try:
        result.copy_to(CopyOut(options.form(names), bool(options.header)))
    except DucktailError:
        result.fail()
        raise
    return result


def _as_arrow(inner: ParsedStatement) -> ParsedStatement:
    """The query, to be answered in Arrow."""
    if inner.classified.kind is not Kind.READ or inner.classified.cte_writes:
        raise NotSupported("COPY of what writes cannot be in FORMAT arrow", hint="Take csv or binary.")
    return inner.as_arrow()


def _source(session: Context, facts: CopyFacts) -> str:
    """The text of the statement whose rows are copied."""
    if facts.query is not None:
        return facts.query
    listed = ",".join(map(ident, columns_of(session, facts)))
    return f"SELECT {listed or '*'} FROM {target_text(facts)}"


def _run(session: Context, inner: ParsedStatement) -> Waiting[Result]:
    classified = inner.classified
    if classified.error is not None:
        raise classified.error
    if classified.kind not in ANSWERING:
        raise NotSupported(
            f"{classified.verb} cannot be copied" if classified.verb else "there is nothing to copy"
        )
    if classified.dml is not None and not classified.dml.has_returning:
        raise NotSupported("COPY query must have a RETURNING clause")
    return (yield from session.execute_within(inner, ()))
