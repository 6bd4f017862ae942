"""INSERT, UPDATE, DELETE and TRUNCATE: captured where the table has a stream, plain where not.

A captured statement runs in an explicit transaction, under the writer lock, in the shape that the
engine chooses; a plain one is DuckDB's own, after a look at the gate (a CREATE STREAM on the table
may be under way). Source: docs/design/sql.md, "Writing".
"""

from __future__ import annotations

from collections.abc import Callable

import duckdb

from ..engine import capture
from ..engine.binding import Bound, bind
from ..engine.capture import Outcome, read_macros
from ..engine.duckdb_errors import translated
from ..engine.errors import InsufficientPrivilege, NotSupported
from ..engine.quoting import ident
from ..engine.streams import Captured
from ..engine.transaction import Transaction
from ..engine.waiting import Waiting
from .classified import Classified, DmlFacts
from .classify import classify
from .context import Context
from .dml import slice_dml
from .names import OURS, TEMPORARY, Key
from .reads import refuse_captured
from .results import Result
from .running import bound, count_of, lossless, placed, result_columns, rows_of, rows_result
from .statement import Statement

TAGS: dict[str, Callable[[int], str]] = {
    "INSERT": "INSERT 0 {}".format,
    "UPDATE": "UPDATE {}".format,
    "DELETE": "DELETE {}".format,
    "MERGE": "MERGE {}".format,
    "TRUNCATE": lambda _: "TRUNCATE TABLE",
}


def run(session: Context, statement: Statement, parameters: tuple[object, ...]) -> Waiting[Result]:
    """Run a DML statement that reads no stream."""
    return (yield from write(session, statement, statement.classified, parameters))


def write(
    session: Context, statement: Statement, classified: Classified, parameters: tuple[object, ...]
) -> Waiting[Result]:
    """Run a DML text.

    Args:
        statement: whose plans are kept.
        classified: the text that DuckDB is to run: the statement's own, or the same with its
            stream scans replaced.
    """
    facts = classified.dml
    assert facts is not None
    key = session.names.table_key(facts.target)
    _refuse_ours(session, key, facts)
    if classified.cte_writes:
        refuse_captured(session, classified.text)
    while True:
        if session.database.captured(key) is None:
            result = yield from _plain(session, classified, parameters, key)
        else:
            session.names.refuse_hidden(key)
            result = yield from _captured(session, statement, classified, parameters, key)
        if result is not None:
            return result


def refuse_target(session: Context, classified: Classified) -> None:
    """Refuse to write what is ours, before DuckDB says so in its own words.

    Raises:
        NotSupported: 0A000, the target is a stream. InsufficientPrivilege: 42501, it is in our schema.
    """
    assert classified.dml is not None
    _refuse_ours(session, session.names.table_key(classified.dml.target), classified.dml)


def _refuse_ours(session: Context, key: Key, facts: DmlFacts) -> None:
    position = facts.target_position + 1
    if key[0] == OURS:
        raise InsufficientPrivilege(
            f'schema "{OURS}" cannot be written',
            hint="Streams, groups and offsets are changed by their own statements.",
            position=position,
        )
    stream = session.database.catalog.streams.get(key)
    if stream is not None:
        raise NotSupported(
            f'stream "{stream.name}" cannot be written',
            hint="Write its table: each change becomes an event.",
            position=position,
        )


def _plain(
    session: Context, classified: Classified, parameters: tuple[object, ...], key: Key
) -> Waiting[Result | None]:
    """A write of a table without a stream; None where it has just got one."""
    facts = classified.dml
    assert facts is not None
    if session.in_block:
        session.touched()
    try:
        free = yield from session.database.enter_plain(session.id, key, session.lock_timeout_ms)
        if not free:
            return None
        classified = _named_whole(session, classified, key)
        tag = TAGS[classified.verb]
        try:
            if facts.has_returning:
                with lossless(session, bound(session, classified.text).types):
                    columns, table = rows_of(session, classified.text, parameters)
                return rows_result(session, columns, table, tag)
            return Result.command(tag(count_of(session, classified.text, parameters)))
        except duckdb.Error as error:
            raise placed(session, error, classified.text) from error
    finally:
        if not session.in_block:
            session.database.gate.leave(session.id)


def _named_whole(session: Context, classified: Classified, key: Key) -> Classified:
    """The statement with its target's schema told, where DuckDB could find another table than we did.

    Between our look and DuckDB's a table of the name may come or go in a schema before it.
    """
    facts = classified.dml
    assert facts is not None
    if len(session.names.path) == 1 or len(facts.target) != 1 or key[0] == TEMPORARY:
        return classified
    text, start = classified.text, facts.target_position
    return classify(f"{text[:start]}{ident(key[0])}.{text[start:]}")


def _captured(
    session: Context,
    statement: Statement,
    classified: Classified,
    parameters: tuple[object, ...],
    key: Key,
) -> Waiting[Result | None]:
    """A write of a captured table; None where its last stream has just been dropped."""

    def work(transaction: Transaction) -> Waiting[tuple[Outcome, Bound] | None]:
        captured = yield from session.database.enter_captured(transaction, key, session.lock_timeout_ms)
        if captured is None:
            return None
        plan, shape = _plan(session, statement, classified, captured)
        try:
            with lossless(session, shape.types):
                outcome = session.database.write_captured(transaction, captured, plan, parameters)
        except duckdb.Error as error:
            raise translated(error) from error
        return outcome, shape

    done = yield from session.unit(work)
    if done is None:
        return None
    outcome, shape = done
    tag = TAGS[classified.verb]
    if outcome.returning is None:
        return Result.command(tag(outcome.rows))
    rows = outcome.rows
    columns = result_columns(shape.names, shape.types)
    return rows_result(session, columns, outcome.returning, lambda _: tag(rows))


def _plan(
    session: Context, statement: Statement, classified: Classified, captured: Captured
) -> tuple[capture.Plan, Bound]:
    """The statement's plan for the table as it is, kept with the statement.

    The user's own text is bound first, on the session's cursor: a wrong name is told with its place
    in what the user wrote.
    """
    version = session.database.catalog_version
    kept = statement.plans.get(classified.text)
    if isinstance(kept, tuple) and kept[0] is captured.table and kept[1] == version:
        return kept[2], kept[3]
    try:
        shape = bind(session.cursor, classified.text)
    except duckdb.Error as error:
        raise placed(session, error, classified.text) from error
    dml = slice_dml(classified, captured.shape.schema)
    plan = capture.plan(dml, captured.table, lambda: read_macros(session.cursor))
    if classified.text == statement.text:
        statement.plans[classified.text] = (captured.table, version, plan, shape)
    return plan, shape
