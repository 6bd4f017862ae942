"""INSERT, UPDATE, DELETE and TRUNCATE: captured if the table has a stream, plain otherwise.

A captured statement runs in an explicit transaction, under the writer lock, in the shape that the engine
chooses; a plain one is DuckDB's own, after a check of the gate (a CREATE STREAM on the table may be running).
Source: docs/design/sql.md, "Writing".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import duckdb
import pyarrow as pa

from ...engine.capture import capture
from ...engine.capture.capture import read_macros, read_views
from ...engine.capture.plan import USER_PARAMETERS_MAX
from ...engine.catalog.captured_tables import Captured
from ...engine.definitions.mirrors import refuse_mirror
from ...engine.duck.binding import Bound, Parsed, bind
from ...engine.duck.cursors import ask
from ...engine.duck.duckdb_errors import translated
from ...engine.duck.objects import TEMPORARY
from ...engine.duck.table_shape import is_plain_table
from ...engine.errors import (
    InsufficientPrivilege,
    IntegrityViolation,
    NotSupported,
    UndefinedObject,
    UndefinedParameter,
    WrongObjectType,
)
from ...engine.topics import PLACE_COLUMNS
from ...engine.transactions.transaction import Transaction
from ...engine.waiting import Waiting
from ..results.batches import PlainBatch
from ..results.results import ReadySource, Result
from ..session_state.context import Context
from ..session_state.names import OURS, Key
from ..session_state.queries import cte_targets, refuse_captured
from ..session_state.run_text import (
    UNTOLD,
    bound,
    count_of,
    lossless,
    placed,
    result_columns,
    rows_of,
    rows_result,
    undone,
    with_nulls,
)
from ..session_state.statement import ParsedStatement, check_columns
from ..text.classified import Classified
from . import group_writes, topic_writes, violations
from .dml import slice_dml
from .identity_columns import refuse_given_values

# Context in which rows of these types leave the session's cursor without loss.
Keeping = Callable[[Context, Sequence[str]], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class WriteMode:
    """The mode in which a DML text runs.

    Args:
        keeping: the context in which the rows of RETURNING are fetched from DuckDB.
        explain: the words of EXPLAIN ANALYZE; the answer is then only the plan.
    """

    keeping: Keeping = lossless
    explain: str | None = None


_ALONE = WriteMode()

TAGS: dict[str, Callable[[int], str]] = {
    "INSERT": "INSERT 0 {}".format,
    "UPDATE": "UPDATE {}".format,
    "DELETE": "DELETE {}".format,
    "MERGE": "MERGE {}".format,
    "PUBLISH": "PUBLISH {}".format,
    "TRUNCATE": lambda _: "TRUNCATE TABLE",
}

# The key under which a statement keeps its parsed text for a table without a stream.
_PLAIN = "plain"
# The verbs that append to a topic.
APPENDING = frozenset({"INSERT", "PUBLISH", "COPY"})


@dataclass(frozen=True, slots=True)
class Rows:
    """The result of a DML text: its row count, and the rows of RETURNING (None without RETURNING).

    Args:
        place: the only row of a PUBLISH, in place of a table.
    """

    count: int
    names: tuple[str, ...] = ()
    types: tuple[object, ...] = ()
    table: pa.Table | None = None
    place: tuple[object, ...] | None = None


PLACE_TYPES = tuple(type_ for _, type_ in PLACE_COLUMNS)
PLACE_SCHEMA = pa.schema(
    zip((name for name, _ in PLACE_COLUMNS), (pa.int32(), pa.int64(), pa.string(), pa.bool_()), strict=True)
)


def write(
    session: Context, statement: ParsedStatement, classified: Classified, parameters: tuple[object, ...]
) -> Waiting[Result]:
    """Run a DML text.

    Args:
        statement: the statement that keeps the plans.
        classified: the text for DuckDB: the statement's own, or the same with its stream scans replaced.
    """
    rows = yield from write_rows(session, statement, classified, parameters)
    return _result(session, statement, classified, rows)


def offer(
    session: Context, statement: ParsedStatement, parameters: tuple[object, ...], generation: int
) -> Waiting[Result | None]:
    """Write together with other sessions for a user whose rights have been checked; None to write alone.

    Args:
        generation: the state of the catalog in which they were: it must be the same when the batch commits.
    """
    plan = group_writes.plan_of(session, statement, generation)
    if isinstance(plan, group_writes.GroupWrite):
        rows = yield from _together(session, statement, plan, parameters, generation)
    elif plan is not None and session.access.may("insert", plan.topic.key):
        done = yield from topic_writes.together(session, statement, parameters, generation)
        rows = None if done is None else Rows(done.count, place=done.place)
    else:
        return None
    return None if rows is None else _result(session, statement, statement.classified, rows)


def learn(session: Context, statement: ParsedStatement) -> None:
    """Plan a write that has just run with the check of its rights, in a transaction of its own."""
    facts = statement.classified.dml
    assert facts is not None
    topic = topic_writes.target(session, statement.classified)
    if topic is None:
        group_writes.learn(session, statement, session.names.table_key(facts.target))
    else:
        topic_writes.learn(session, statement, topic)


def _result(session: Context, statement: ParsedStatement, classified: Classified, rows: Rows) -> Result:
    tag = TAGS[_verb(statement, classified)]
    if rows.place is not None:
        batch = PlainBatch([rows.place], PLACE_TYPES, PLACE_SCHEMA)
        result = Result(topic_writes.PLACES, ReadySource([batch]), lambda _: tag(rows.count))
    elif rows.table is None:
        return Result.command(tag(rows.count))
    else:
        columns = result_columns(rows.names, rows.types)
        result = rows_result(session, columns, rows.table, lambda _: tag(rows.count))
    result.committed = not session.block.begun
    return result


def write_rows(
    session: Context,
    statement: ParsedStatement,
    classified: Classified,
    parameters: tuple[object, ...],
    how: WriteMode = _ALONE,
) -> Waiting[Rows]:
    """Run a DML text and keep its rows.

    Args:
        statement, classified: see `write`.
        how: the mode: how rows are taken, and whether the text is explained instead.
    """
    facts = classified.dml
    assert facts is not None
    key = session.names.table_key(facts.target)
    refuse_ours(session, _verb(statement, classified), key, facts.target_position)
    topic = topic_writes.target(session, classified)
    if topic is not None:
        if not session.access.may("insert", topic.key):  # The name may be new.
            raise InsufficientPrivilege(f'permission denied for topic "{topic.name}"')
        if how.explain is not None:
            raise topic_writes.refuse_explained(topic)
        done = yield from topic_writes.write_topic(session, statement, classified, parameters, topic)
        return Rows(done.count, done.names, done.types, done.table, done.place)
    if classified.cte_writes:
        refuse_captured(session, classified.text)
        for name in cte_targets(classified.text):
            refuse_mirror(session.database.catalog, session.names.table_key(name), "be written")
    together = None
    if how is _ALONE and classified is statement.classified:
        together = group_writes.plan_of(session, statement)
    if together is None and session.database.catalog.has_identities and statement.classified.copy is None:
        refuse_given_values(session, classified)
    if isinstance(together, group_writes.GroupWrite):
        rows = yield from _together(session, statement, together, parameters)
        if rows is not None:
            return rows
    while True:
        try:
            if key not in session.block.tables:
                rows = yield from _plain(session, statement, classified, parameters, key, how)
            else:
                session.names.refuse_hidden(key)
                rows = yield from _captured(session, statement, classified, parameters, key, how)
                if how is _ALONE and classified is statement.classified:
                    group_writes.learn(session, statement, key)
        except IntegrityViolation as error:
            violations.complete(session, key, error)
            raise
        if rows is not None:
            return rows


def _together(
    session: Context,
    statement: ParsedStatement,
    plan: group_writes.GroupWrite,
    parameters: tuple[object, ...],
    generation: int | None = None,
) -> Waiting[Rows | None]:
    """Write one row together with those of other sessions; None if it must be written alone.

    Args:
        generation: see `offer`.
    """
    shape = plan.returned
    if shape is not None:
        _check_returned(statement, statement.classified, shape)
    values = group_writes.suitable(plan, statement, parameters)
    written = yield from group_writes.write(session, statement, plan, values, generation)
    if written is None:
        return None
    if shape is None:
        return Rows(1)
    assert isinstance(written.answer, pa.Table)
    return Rows(1, shape.names, shape.types, written.answer)


def refuse_target(session: Context, statement: ParsedStatement) -> None:
    """Refuse a write to internal objects, before DuckDB does so with its own message.

    Raises:
        NotSupported: the target is a stream.
        InsufficientPrivilege: the target is in the reserved schema.
        WrongObjectType: the target of a PUBLISH is not a topic.
    """
    facts = statement.classified.dml
    assert facts is not None
    verb = _verb(statement, statement.classified)
    refuse_ours(session, verb, session.names.table_key(facts.target), facts.target_position)


def _verb(statement: ParsedStatement, classified: Classified) -> str:
    """The verb in the user's text."""
    return classified.verb if statement.published is None else "PUBLISH"


def refuse_ours(session: Context, verb: str, key: Key, start: int) -> None:
    """Refuse a write to internal objects.

    Args:
        verb: INSERT, PUBLISH, COPY and so on.
        start: the position of the name, from 0.

    Raises:
        NotSupported: the target is a stream.
        InsufficientPrivilege: the target is in the reserved schema.
        WrongObjectType: the target of a PUBLISH is not a topic.
    """
    position = start + 1
    if key[0] == OURS:
        raise InsufficientPrivilege(
            f'schema "{OURS}" cannot be written',
            hint="Streams, groups and offsets are changed by their own statements.",
            position=position,
        )
    stream = session.database.catalog.stream_of_view(key)
    if stream is None or not session.names.sees(key):
        if verb == "PUBLISH":
            raise _no_topic(session, key, position)
        return
    if stream.topic:
        if verb not in APPENDING:
            raise NotSupported(
                f'{verb} on topic "{stream.name}" is not supported',
                hint="What is published stays as it is: publish another event with the same key.",
                position=position,
            )
        return
    view = "" if key == stream.key else f'view "{key[-1]}" of '
    raise NotSupported(
        f'{view}stream "{stream.name}" cannot be written',
        hint="Write its table: each change becomes an event.",
        position=position,
    )


def _no_topic(session: Context, key: Key, position: int) -> UndefinedObject | WrongObjectType:
    """The error for a PUBLISH to something that is not a topic."""
    there_is = key[0] == TEMPORARY or (session.names.kind_of(key) is not None and session.names.sees(key))
    catalog = session.database.catalog
    if there_is:
        # It may be the view of a topic that was created after the statement began.
        catalog.changes.settle()
    if there_is and catalog.stream_of_view(key) is None:
        return WrongObjectType(
            f'"{key[-1]}" is not a topic',
            hint="INSERT writes a table; a stream on it has an event for each row.",
            position=position,
        )
    return UndefinedObject(
        f'topic "{key[-1]}" does not exist', hint="SHOW TOPICS lists them.", position=position
    )


def _plain(
    session: Context,
    statement: ParsedStatement,
    classified: Classified,
    parameters: tuple[object, ...],
    key: Key,
    how: WriteMode,
) -> Waiting[Rows | None]:
    """Write a table without a stream; None if the table has just got one."""
    facts = classified.dml
    assert facts is not None
    if session.block.begun:
        session.block.touched()
    transactions = session.database.transactions
    try:
        free = yield from session.block.enter_plain_write(key)
        if not free:
            return None
        text = classified.text
        try:
            if how.explain is not None:
                columns, table = rows_of(session, f"{how.explain} {text}", parameters)
                return Rows(0, table=table)
            if not facts.has_returning:
                return Rows(count_of(session, _parsed(session, statement, text), parameters))
            shape = bound(session, text)
            if shape.names == UNTOLD:
                shape = _shape_with(session, text, parameters)
            _check_returned(statement, classified, shape)
            with how.keeping(session, shape.types), undone(session, shape.types):
                columns, table = rows_of(session, text, parameters)
            names, types = zip(*((column.name, column.type) for column in columns), strict=True)
            return Rows(table.num_rows, names, types, table)
        except duckdb.Error as error:
            raise placed(session, error, text) from error
    finally:
        if not session.block.begun:
            transactions.gate.leave(session.id)


def _check_returned(statement: ParsedStatement, classified: Classified, shape: Bound) -> None:
    """Check that the described columns of RETURNING are still valid, before anything is written.

    Args:
        classified: the write; a part of the statement has no columns that the client knows.
    """
    if classified.text == statement.text:
        check_columns(statement, result_columns(shape.names, shape.types))


def _shape_with(session: Context, text: str, parameters: tuple[object, ...]) -> Bound:
    """The columns of a query, or of RETURNING, for these parameter values, on which their types depend."""
    names = [str(place) for place, _ in enumerate(parameters, 1)]
    asked = ", ".join(f"typeof(${name})" for name in names)
    types = dict(zip(names, ask(session.meta, f"SELECT {asked}", parameters), strict=True))
    return bind(session.cursor, with_nulls(text, types))


def _parsed(session: Context, statement: ParsedStatement, text: str) -> Parsed:
    """A text of a statement, parsed by DuckDB once for each meaning of `/`."""
    division = session.variables.integer_division
    kept = statement.plans.get(_PLAIN)
    if not isinstance(kept, tuple) or kept[0].text != text or kept[1] is not division:
        kept = statement.plans[_PLAIN] = (Parsed(text), division)
    parsed: Parsed = kept[0]
    return parsed


def _captured(
    session: Context,
    statement: ParsedStatement,
    classified: Classified,
    parameters: tuple[object, ...],
    key: Key,
    how: WriteMode,
) -> Waiting[Rows | None]:
    """Write a captured table; None if its last stream has just been dropped."""

    transactions = session.database.transactions

    def work(transaction: Transaction) -> Waiting[Rows | None]:
        captured = yield from transactions.enter_captured(transaction, key, session.block.lock_timeout_ms)
        if captured is None:
            return None
        transaction.annotate(session.variables.annotation)
        division = session.variables.integer_division
        version = (transaction.catalog_version, session.names.path, division)
        plan, shape = _plan(session, statement, classified, captured, version, parameters)
        if classified.dml is not None and classified.dml.has_returning:
            if shape.names == UNTOLD:
                shape = _shape_with(session, classified.text, parameters)
            _check_returned(statement, classified, shape)
        try:
            with how.keeping(session, shape.types):
                outcome = transactions.write_captured(transaction, captured, plan, parameters, how.explain)
        except duckdb.Error as error:
            raise translated(error) from error
        if outcome.returning is None:
            return Rows(outcome.rows)
        return Rows(outcome.rows, shape.names, shape.types, outcome.returning)

    # A statement that reads a stream or a frame of this process may have consumed it.
    again = classified.text == statement.text and not session.frames.registered
    return (yield from session.block.unit_with_memory(work, again=again))


def _plan(
    session: Context,
    statement: ParsedStatement,
    classified: Classified,
    captured: Captured,
    version: tuple[int, tuple[str, ...], bool],
    parameters: tuple[object, ...],
) -> tuple[capture.Plan, Bound]:
    """The statement's plan for the present table, kept with the statement.

    Names are resolved in the transaction's own MVCC snapshot: `version` is the catalog's version there, the
    search path, and the meaning of `/`. With other names a plan may take a view for a table, so none is kept
    after DDL of the block itself.

    The user's own text is bound first, on the session's cursor, so that the error for an unknown name has its
    position there.
    """
    kept = statement.plans.get(classified.text) if not session.block.ddl else None
    if isinstance(kept, tuple) and kept[0] is captured.table and kept[1] == version:
        return kept[2], kept[3]
    try:
        shape = bind(session.cursor, classified.text)
    except duckdb.Error as error:
        raise placed(session, error, classified.text) from error
    last = max((int(name) for name in shape.parameters if name.isdecimal()), default=0)
    if last > USER_PARAMETERS_MAX:
        raise UndefinedParameter(f"there is no parameter ${last}")

    def names_of(query: str) -> tuple[str, ...]:
        found = bind(session.cursor, query)
        return (_shape_with(session, query, parameters) if found.names == UNTOLD else found).names

    dml = slice_dml(classified, captured.shape.schema, names_of)
    if dml.query_from and _is_plain_table(session, dml.query_from):
        dml = replace(dml, repeatable=True)
    plan = capture.plan(
        dml, captured.table, lambda: read_macros(session.cursor), lambda: read_views(session.cursor)
    )
    if classified.text == statement.text and not session.block.ddl:
        statement.plans[classified.text] = (captured.table, version, plan, shape)
    return plan, shape


def _is_plain_table(session: Context, name: tuple[str, ...]) -> bool:
    """True if a name is a table of the database, whose rows are the same in a second read."""
    schema, table = session.names.table_key(name)
    return schema not in (OURS, TEMPORARY) and is_plain_table(session.cursor, schema, table)
