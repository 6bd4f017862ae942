"""Queries with stream scans: ready rows straight from the buffers, or DuckDB over the scan.

A plain read (`SELECT * FROM STREAM s ... LIMIT n`) never touches DuckDB while its events are buffered. Any
other query is the user's own text with each scan's span replaced by a relation that DuckDB pulls from. The
query's use of the scan (shape.py) decides how the read position moves.
Source: docs/design/sql.md, "Scans".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import duckdb
from sqlglot import exp

from ...engine.catalog.streams import Stream
from ...engine.duck.objects import TEMPORARY
from ...engine.errors import (
    AmbiguousColumn,
    ConnectionLost,
    DatatypeMismatch,
    DucktailError,
    NotSupported,
    UndefinedColumn,
    UndefinedFunction,
    UndefinedTable,
)
from ...engine.quoting import fold
from ...engine.waiting import Waiting, all_of
from ..cluster import fetching
from ..cluster.fetching import FetchedTracker
from ..cluster.membership import settled
from ..cluster.shares import is_placed, remote_owners
from ..copy import copying
from ..dml import cte_writes
from ..language import statements as st
from ..language.classify import classify
from ..language.parse import Query
from ..read_shape import shape
from ..read_shape.shape import ReadKind, Shape, shapes_of
from ..results.results import Result, ResultBatch, select_tag
from ..session_state.context import Context, Runner
from ..session_state.run_text import Values, bound, check_given, query_result
from ..session_state.statement import ParsedStatement
from ..text.classified import Classified
from .envelope_changes import PairSource, changes_of, columns_of
from .plain_scan import INLINE_ROWS_MAX, least, open_shape, run_plain, settle, tracker_of
from .query_scan import NUMBERS, Pulled, Read, ReadAway, Reading, scanner_of
from .read_requests import pruning
from .row_order import Rising
from .scan_relation import HIDDEN_LSN, bindable, relation_of, unlimited
from .tracking import TrackedBatch

# Errors of names and types, which DuckDB's relation reports without their place.
NAMELESS = (UndefinedColumn, UndefinedTable, UndefinedFunction, AmbiguousColumn, DatatypeMismatch)


def _kept_shapes(session: Context, statement: ParsedStatement, query: Query) -> tuple[Shape, ...]:
    if any(scan.envelope != "json" for scan in query.scans):
        return shapes_of(query, columns_of(session, query.scans))
    kept = statement.plans.get("shapes")
    if not isinstance(kept, tuple):
        kept = statement.plans["shapes"] = shapes_of(query)
    return kept


def bound_shapes(
    session: Context, statement: ParsedStatement, query: Query, parameters: Values
) -> tuple[Shape, ...]:
    """The shape of each scan, with these parameters."""
    unlimited(query)
    check_given(query.parameters_count, parameters)
    return shape.bound(_kept_shapes(session, statement, query), parameters)


def stream_of(session: Context, found: Shape) -> Stream:
    """The stream of this node that a shape's scan names."""
    scan = found.scan
    return session.names.scanned(scan.stream.parts, scan.stream.position, scan.kind)


def _may_be_plain(session: Context, statement: ParsedStatement, found: Shape) -> bool:
    """True if ready rows answer a query, unless DuckDB has to evaluate its WHERE."""
    if statement.arrow:
        return False
    if found.scan.away is not None:
        return False
    # In process typed rows, and counts, come as Arrow: there is no text to read again.
    of_events = found.scan.envelope == "json" and not found.scan.deliveries
    return found.plain is not None and (of_events or session.wire)


def is_inline(session: Context, statement: ParsedStatement, query: Query) -> bool:
    """True if a query is one plain read that needs no snapshot of DuckDB's to begin."""
    if session.block.begun or len(query.scans) != 1 or not _is_found_at_once(session, query.scans[0].stream):
        return False
    if query.scans[0].away is not None:
        return False
    if query.transactions is not None or (statement.part is not None and statement.part.within is not None):
        return False  # The end of the last transaction, or the LSNs of a time, may need a query.
    if query.scans[0].wait_for is not None:
        return False  # The number of present events may need a query of the log.
    if query.scans[0].envelope != "json" and session.names.find_stream(query.scans[0].stream.parts) is None:
        return False
    plain = _kept_shapes(session, statement, query)[0].plain
    if plain is None:
        return False
    stream = session.names.find_stream(query.scans[0].stream.parts)
    if stream is not None and _may_write(session, stream, query.scans[0].group):
        return False
    if stream is None or not is_placed(session, stream):
        return True
    if _has_moved(session, stream):
        return False  # Only DuckDB has the events that partitions brought from another node.
    if remote_owners(session, stream) is not None:
        # Gathered events are sorted; many of them would take too long on an event loop.
        return isinstance(plain.limit, int) and plain.limit <= INLINE_ROWS_MAX
    return True


def _may_write(session: Context, stream: Stream, group: object) -> bool:
    """True if a read as a group may have to take a whole copy of the table, or to store its deliveries."""
    if group is None:
        return False
    # The group that a parameter names is not known yet.
    name = group if isinstance(group, str) else None
    return session.database.catalog.reads_may_write(stream.stream_id, name)


def _is_found_at_once(session: Context, name: st.Name) -> bool:
    """True if a name can be resolved without a query of DuckDB."""
    if len(name.parts) == 1:
        return True
    return len(name.parts) == 2 and fold(name.parts[0]) != fold(session.database.catalog_name)


def _has_moved(session: Context, stream: Stream) -> bool:
    """True if partitions of a stream came from another node, or are about to."""
    database = session.database
    segments = database.catalog.segments.of(stream.stream_id)
    came = any(one.base_lsn for one in segments.values())
    return came or bool(database.holds.missing(database.placement, stream))


def run_query(session: Context, statement: ParsedStatement, parameters: Values) -> Waiting[Result]:
    """Run a query that holds stream scans."""
    query = statement.node
    assert isinstance(query, Query)
    if statement.classified.may_write and bound(session, bindable(session, query)).writes:
        raise NotSupported(
            "a query that reads a stream cannot write in a common table expression",
            hint="Write the statements one after the other, in one transaction.",
        )
    shapes = bound_shapes(session, statement, query, parameters)
    if len(shapes) == 1 and _may_be_plain(session, statement, shapes[0]):
        stream = stream_of(session, shapes[0])
        narrowed = pruning(shapes[0].facts, stream.partitions, parameters)
        if narrowed is not None:
            return (yield from run_plain(session, shapes[0], stream, narrowed, parameters))
    reading = yield from _prepare(session, query, shapes, parameters)
    reading.casts = statement.casts
    try:
        reading.read_units(session)
        result = query_result(session, reading.text, reading.values, None, arrow=statement.arrow)
    except (DucktailError, duckdb.Error) as error:
        reading.failed(session)
        told = reading.told(error, query)
        if told.position is None and isinstance(told, NAMELESS):
            _ = statement.description  # The binder's own error has a place.
        raise told from error
    assert result.columns is not None
    rowwise = next((r for r in reading.reads if r.kind is ReadKind.ROWWISE), None)
    hidden = next((i for i, c in enumerate(result.columns) if c.name == HIDDEN_LSN), None)
    cut_read = next((read for read in reading.reads if read.shape.cuts), None)
    inner = result.source
    if cut_read is not None and hidden is not None:
        limit = least([item.limit for item in cut_read.shape.cuts], parameters)
        if limit is not None:
            inner = reading.pairs = PairSource(inner, hidden, limit)
    source = Pulled(session, inner, reading, query, hidden, rowwise)
    columns = tuple(c for i, c in enumerate(result.columns) if i != hidden)

    def on_rows(batch: ResultBatch) -> None:
        if rowwise is not None and isinstance(batch, TrackedBatch):
            rowwise.given(session, batch)

    made = Result(
        columns,
        source,
        select_tag,
        on_end=lambda complete: reading.ended(session, complete=complete, rows=made.row_count),
        on_rows=on_rows,
        on_fail=lambda: reading.failed(session),
        on_suspend=None if rowwise is None else rowwise.tracker.stopped,
    )
    settle(session, made, *(read.elsewhere for read in reading.reads))
    schema = result.arrow_schema
    made.arrow_schema = schema if schema is None or hidden is None else schema.remove(hidden)
    return made


# Queries over scans.


def _prepare(session: Context, query: Query, shapes: Sequence[Shape], parameters: Values) -> Waiting[Reading]:
    """Open the scans of a query and register their relations on the session's cursor."""
    reading = Reading([], query, parameters=parameters, pieces=unlimited(query))
    try:
        yield from _open_all(session, reading, shapes)
    except BaseException:
        reading.close(session)
        raise
    return reading


def _open_all(session: Context, reading: Reading, shapes: Sequence[Shape]) -> Waiting[None]:
    yield from _fetch_all(session, reading, [found for found in shapes if found.scan.away is not None])
    for found in shapes:
        if found.scan.away is None:
            yield from _open_one(session, reading, found)
    if session.block.begun:
        session.block.touched()
    for read in reading.reads:
        session.cursor.register(read.name, read.registered)
        reading.registered.append(read.name)
        session.guard.interrupts.add(read.relation.interrupt)


def _open_one(session: Context, reading: Reading, found: Shape) -> Waiting[None]:
    parameters = reading.parameters
    stream = stream_of(session, found)
    narrowed = pruning(found.facts, stream.partitions, parameters)
    opened = yield from open_shape(session, found, stream, narrowed, parameters)
    name = f"__ducktail_scan_{next(NUMBERS)}"
    changes = changes_of(session, found.scan)
    scanner = scanner_of(session, opened, None if changes is None else changes.events)
    from .event_relation import EventRelation

    relation = EventRelation(
        scanner,
        hidden=found.hidden,
        changes=changes,
        delivery=opened.delivery,
        deliveries=found.scan.deliveries,
    )
    tracker = tracker_of(session, opened, found)
    rising = Rising(opened.gathered)
    read = Read(found, opened, tracker, relation, name, changes, found.kind, rising)
    reading.reads.append(read)
    reading.pieces.append(relation_of(found.scan, read.readable()))
    reading.edit(found)


def _fetch_all(session: Context, reading: Reading, shapes: Sequence[Shape]) -> Waiting[None]:
    """Fetch the scans of other nodes' streams, from all owners at once."""
    works = [fetching.fetch(session, reading.query, found, reading.parameters) for found in shapes]
    outcomes = yield from all_of(works, session.database.clock.monotonic_s)
    for found, outcome in zip(shapes, outcomes, strict=True):
        if isinstance(outcome, fetching.Fetched):
            tracker = FetchedTracker(outcome, found)
            name = f"__ducktail_scan_{next(NUMBERS)}"
            reading.reads.append(ReadAway(found, tracker, outcome, name, found.kind, Rising()))
    failed = next((outcome for outcome in outcomes if isinstance(outcome, Exception)), None)
    if failed is not None:
        reading.failed(session)
        raise failed
    for read in reading.reads:
        assert isinstance(read, ReadAway), "what is here is opened after what is fetched"
        if (unit := read.shape.unit) is not None:
            # The replaced part may contain LIMIT n TRANSACTIONS.
            reading.pieces = [p for p in reading.pieces if not unit.start <= p.start < unit.end]
        reading.pieces.append(read.piece(session))
        if unit is None:
            reading.edit(read.shape)


Writer = Callable[[Context, ParsedStatement, Classified, Values], Waiting[Result]]


def _writing(write: Writer) -> Runner:
    """The runner of a statement that writes the rows that it reads from streams."""

    def run(session: Context, statement: ParsedStatement, parameters: Values) -> Waiting[Result]:
        query = statement.node
        assert isinstance(query, Query)
        shapes = bound_shapes(session, statement, query, parameters)
        if _stores_nothing(session, statement, query):
            for found in shapes:
                _ = found.scan.away or stream_of(session, found)
            return (yield from write(session, statement, classify(bindable(session, query)), parameters))
        reading = yield from _prepare(session, query, shapes, parameters)
        try:
            reading.read_units(session)
            classified = classify(reading.text)
            result = yield from write(session, statement, classified, tuple(reading.values))
        except (DucktailError, duckdb.Error) as error:
            reading.failed(session)
            raise reading.told(error, query) from error
        except BaseException:
            reading.failed(session)
            raise
        reading.ended(session, complete=True, rows=0)
        with suppress(ConnectionLost):  # The written rows remain.
            yield from settled(session)
        return result

    return run


def _stores_nothing(session: Context, statement: ParsedStatement, query: Query) -> bool:
    """True if CREATE TABLE ... AS stores no row: WITH NO DATA, or IF NOT EXISTS with an existing table."""
    facts = statement.classified.ddl
    if facts is None or not facts.as_select:
        return False
    schema, name = session.names.made_key(facts.names[0])
    key = (TEMPORARY if facts.temporary else schema, name)
    if facts.if_not_exists and session.names.kind_of(key) is not None:
        return True
    properties = query.tree.find_all(exp.WithDataProperty) if query.tree is not None else ()
    return any(found.args.get("no") for found in properties)


run_write = _writing(cte_writes.write)
run_definition = _writing(cte_writes.define)
run_copy = _writing(copying.copy)
