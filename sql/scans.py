"""Queries with stream scans: ready rows straight from the buffers, or DuckDB over the scan.

A plain read (`SELECT * FROM STREAM s ... LIMIT n`) never touches DuckDB while its events are
buffered. Any other query is the user's own text with each scan's span replaced by a relation that
DuckDB pulls from; what the query does with the scan (shape.py) says how the read position moves.
Source: docs/design/sql.md, "Scans".
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import duckdb

from ..engine.binding import type_text
from ..engine.duckdb_errors import translated
from ..engine.errors import (
    AmbiguousColumn,
    DatatypeMismatch,
    DucktailError,
    NotSupported,
    UndefinedColumn,
    UndefinedFunction,
    UndefinedTable,
)
from ..engine.log import EVENT_NAMES
from ..engine.quoting import ident
from ..engine.scan import Scan
from ..engine.waiting import Waiting
from . import copying, shape, staged
from . import statements as st
from .classified import Classified
from .classify import classify
from .context import Context, Runner
from .opening import Opened, Pruning, new_scan, open_scan
from .parse import Query
from .pruning import Fact, chosen_partitions
from .replacing import Piece, cut, numbered, user_position
from .results import EVENT_RESULT, Batch, EventBatch, Result, ResultColumn, Source, select_tag
from .running import bound, query_result, with_casts
from .scan_relation import EMPTY, HIDDEN_LSN, EventRelation, as_json
from .shape import Kind, Shape, Unit, shapes_of
from .statement import Statement
from .stream_statements import Values, number
from .tracking import TrackedBatch, Tracker

# Ready rows handed out at a time.
EVENT_ROWS = 8192
# Rows of a LIMIT up to which an event loop may take them itself: about a millisecond of its time.
INLINE_ROWS_MAX = 2000
# Errors of names and types, which DuckDB's relation tells without their place.
NAMELESS = (UndefinedColumn, UndefinedTable, UndefinedFunction, AmbiguousColumn, DatatypeMismatch)
_numbers = itertools.count(1)


def relation_of(scan: st.Scan, relation: str) -> Piece:
    """What stands for a scan: a relation under the scan's own alias and column names."""
    columns = f"({', '.join(map(ident, scan.columns))})" if scan.columns else ""
    return Piece(scan.start, scan.end, f"{relation} AS {ident(scan.visible_name)}{columns}")


def bindable(session: Context, query: Query) -> str:
    """The text for DuckDB's binder: each scan an empty relation of its columns."""
    return cut(query.text, empty_scans(query))


def explainable(session: Context, query: Query) -> str:
    """The text for EXPLAIN: each scan the stream's view, which reads the log as a cold scan does."""
    pieces = []
    for scan in query.scans:
        stream = session.names.stream(scan.stream.parts, scan.stream.position)
        if isinstance(scan.group, str):
            session.database.group(stream, scan.group, session.transaction)
        pieces.append(relation_of(scan, f"{ident(stream.schema)}.{ident(stream.name)}"))
    return cut(query.text, pieces)


def empty_scans(query: Query) -> list[Piece]:
    """Each scan as an empty relation."""
    return [relation_of(scan, EMPTY) for scan in query.scans]


def pruning(facts: Sequence[Fact], partitions: int, parameters: Values) -> Pruning | None:
    """What WHERE says of a scan, with the parameters' values.

    Returns:
        None where a partition is compared with what is no whole number: DuckDB has to judge.
    """
    chosen = chosen_partitions(facts, range(partitions), lambda p: parameters[p.index - 1])
    if chosen is None:
        return None
    low, high = 0, None
    for fact in facts:
        if fact.column != "lsn" or fact.operator in ("in", "not in", "<>"):
            continue
        try:
            value = number(fact.values[0], parameters, "lsn")
        except DucktailError:
            continue  # Not a whole number: DuckDB's own filter decides.
        if fact.operator in ("=", ">", ">="):
            low = max(low, value + (fact.operator == ">"))
        if fact.operator in ("=", "<", "<="):
            bound = value - (fact.operator == "<")
            high = bound if high is None else min(high, bound)
    return Pruning(frozenset(chosen), low, high)


def _kept_shapes(statement: Statement, query: Query) -> tuple[Shape, ...]:
    kept = statement.plans.get("shapes")
    if not isinstance(kept, tuple):
        kept = statement.plans["shapes"] = shapes_of(query)
    return kept


def _shapes(statement: Statement, query: Query, parameters: Values) -> list[Shape]:
    return [shape.bound(found, parameters) for found in _kept_shapes(statement, query)]


def _open(session: Context, found: Shape, parameters: Values) -> Waiting[Opened]:
    stream = session.names.stream(found.scan.stream.parts, found.scan.stream.position)
    narrowed = pruning(found.facts, stream.partitions, parameters)
    return (yield from open_scan(session, found.scan, parameters, narrowed or Pruning()))


def _is_plain(session: Context, found: Shape, parameters: Values) -> bool:
    """Whether ready rows answer a query: nothing of its WHERE is left for DuckDB to judge."""
    if found.plain is None:
        return False
    stream = session.names.stream(found.scan.stream.parts, found.scan.stream.position)
    return pruning(found.facts, stream.partitions, parameters) is not None


def is_inline(session: Context, statement: Statement, query: Query) -> bool:
    """Whether a query is one plain read that needs no snapshot of DuckDB's to begin."""
    if session.in_block or len(query.scans) != 1 or len(query.scans[0].stream.parts) != 1:
        return False
    return _kept_shapes(statement, query)[0].plain is not None


def run_query(session: Context, statement: Statement, parameters: Values) -> Waiting[Result]:
    """Run a query that holds stream scans."""
    query = statement.node
    assert isinstance(query, Query)
    if statement.classified.may_write and bound(session, statement.bindable).writes:
        raise NotSupported(
            "a query that reads a stream cannot write in a common table expression",
            hint="Write the statements one after the other, in one transaction.",
        )
    shapes = _shapes(statement, query, parameters)
    if len(shapes) == 1 and _is_plain(session, shapes[0], parameters):
        return (yield from _run_plain(session, shapes[0], parameters))
    reading = yield from _prepare(session, query, shapes, parameters)
    reading.casts = statement.casts
    try:
        reading.read_units(session)
        result = query_result(session, reading.text, reading.values, None)
    except (DucktailError, duckdb.Error) as error:
        reading.failed(session)
        told = reading.told(error, query)
        if told.position is None and isinstance(told, NAMELESS):
            _ = statement.description  # The binder's own error has its place.
        raise told from error
    assert result.columns is not None
    rowwise = next((r for r in reading.reads if r.shape.kind is Kind.ROWWISE), None)
    hidden = next((i for i, c in enumerate(result.columns) if c.name == HIDDEN_LSN), None)
    source = _Pulled(session, result.source, reading, query, hidden)
    columns = tuple(c for i, c in enumerate(result.columns) if i != hidden)

    def on_rows(batch: Batch) -> None:
        if rowwise is not None and isinstance(batch, TrackedBatch):
            buffer = session.database.buffers[rowwise.opened.stream.stream_id]
            rowwise.tracker.given_through(batch.last_lsn, buffer)

    made = Result(
        columns,
        source,
        select_tag,
        on_end=lambda complete: reading.ended(session, complete=complete, rows=made.row_count),
        on_rows=on_rows,
        on_fail=lambda: reading.failed(session),
    )
    return made


# Plain reads.


class EventSource:
    """Ready rows of one scan."""

    detached = True  # It reads the buffers, or the log on a cursor of the engine's.

    def __init__(self, scan: Scan, columns: tuple[int, ...] | None, limit: int | None) -> None:
        self.scan = scan
        self._columns = columns
        self._left = limit

    @property
    def stopped(self) -> bool:
        """Whether the LIMIT has ended the read before the scan's end."""
        return self._left == 0 and not self.scan.exhausted

    @property
    def inline(self) -> bool:
        """Whether the next rows are few and in the buffers."""
        return self._left is not None and self._left <= INLINE_ROWS_MAX and self.scan.hot

    def next(self, limit: int | None) -> Batch | None:
        """The next events."""
        sizes = [size for size in (limit, self._left) if size is not None]
        size = min([EVENT_ROWS, *sizes])
        while size and not self.scan.exhausted:
            found = self.scan.read(size)
            if not found.rows:
                continue
            if self._left is not None:
                self._left -= len(found.rows)
            return EventBatch(found.rows, found.lsns, found.partitions, self._columns)
        return None

    def close(self) -> None:
        """Free the scan."""
        self.scan.close()


def limit_of(limit: st.Number | None, parameters: Values) -> int | None:
    """A LIMIT's value; None where there is none, or a parameter that is NULL, which DuckDB takes so."""
    if limit is None or (isinstance(limit, st.Parameter) and parameters[limit.index - 1] is None):
        return None
    return number(limit, parameters, "LIMIT")


def least(limits: Sequence[st.Number], parameters: Values) -> int | None:
    """The smallest of some LIMITs, None where none bounds."""
    values = [limit_of(limit, parameters) for limit in limits]
    return min((value for value in values if value is not None), default=None)


def _run_plain(session: Context, found: Shape, parameters: Values) -> Waiting[Result]:
    plain = found.plain
    assert plain is not None
    limit = limit_of(plain.limit, parameters)
    opened = yield from _open(session, found, parameters)
    tracker = _tracker(session, opened, found)
    scan = new_scan(session, opened)
    places = None
    columns = EVENT_RESULT
    if plain.columns is not None:
        places = tuple(EVENT_NAMES.index(event) for event, _ in plain.columns)
        columns = tuple(
            ResultColumn(name, EVENT_RESULT[place].type)
            for place, (_, name) in zip(places, plain.columns, strict=True)
        )
    source = EventSource(scan, places, limit)
    session.interrupts.add(scan.interrupt)

    def on_end(complete: bool) -> None:
        session.interrupts.discard(scan.interrupt)
        if complete and not source.stopped:
            tracker.complete()
        else:
            tracker.stopped()

    def on_rows(batch: Batch) -> None:
        assert isinstance(batch, EventBatch)
        tracker.given(batch.lsns, batch.partitions)

    return Result(columns, source, select_tag, on_end=on_end, on_rows=on_rows, on_fail=tracker.failed)


def _tracker(session: Context, opened: Opened, found: Shape) -> Tracker:
    """The tracker of a read; of one that sets no position, one that does nothing."""
    tracker = Tracker(session, opened, moves=found.kind in (Kind.ROWWISE, Kind.WHOLE))
    if found.kind is Kind.NONE:
        tracker.void(found.reason)
    return tracker


# Queries over scans.


@dataclass(slots=True)
class Read:
    """One scan of a query under way."""

    shape: Shape
    opened: Opened
    tracker: Tracker
    relation: EventRelation
    name: str


@dataclass(slots=True)
class Reading:
    """All scans of one execution: their relations, the text over them, and what becomes of them."""

    reads: list[Read]
    query: Query
    values: list[object] = field(default_factory=list)
    text: str = ""
    pieces: list[Piece] = field(default_factory=list)
    registered: list[str] = field(default_factory=list)
    parameters: Values = ()
    casts: dict[str, str] | None = None

    def read_units(self, session: Context) -> None:
        """Run the row-wise queries that stand inside, and put their rows in their places."""
        for read in self.reads:
            if read.shape.unit is not None:
                self._read_unit(session, read, read.shape.unit)
        text = cut(self.query.text, self.pieces)
        if self.casts:
            text = with_casts(text, self.casts)
        self.text, self.values = numbered(text, self.parameters)

    def _read_unit(self, session: Context, read: Read, unit: Unit) -> None:
        inside = [Piece(e.offset, e.offset, e.text) for e in unit.edits]
        inside.append(relation_of(read.shape.scan, ident(read.name)))
        shifted = [Piece(p.start - unit.start, p.end - unit.start, p.text) for p in inside]
        text, values = numbered(cut(self.query.text[unit.start : unit.end], shifted), self.parameters)
        relation = session.cursor.sql(text, params=values or None)
        types = [type_text(type_) for type_ in relation.types]
        table = as_json(relation.to_arrow_table(), types)
        hidden = table.column_names.index(HIDDEN_LSN)
        buffer = session.database.buffers[read.opened.stream.stream_id]
        limit = least(unit.limits, self.parameters)
        if table.num_rows:
            read.tracker.note_through(int(table.column(hidden)[-1].as_py()), buffer)
        if limit is None or table.num_rows < limit:
            read.tracker.note_end()
        name = f"__ducktail_unit_{next(_numbers)}"
        session.cursor.register(name, table.remove_column(hidden))
        self.registered.append(name)
        self.pieces = [p for p in self.pieces if not unit.start <= p.start < unit.end]
        self.pieces.append(Piece(unit.start, unit.end, f"SELECT * FROM {name}"))

    def told(self, error: BaseException, query: Query) -> DucktailError:
        """The error as it is told: a scan's own before DuckDB's words for it, at the user's place."""
        own = next((read.relation.error for read in self.reads if read.relation.error), None)
        if own is not None:
            return own
        found = translated(error)
        if found.position is not None:
            found.position = user_position(found.position, self.pieces)
        return found

    def ended(self, session: Context, *, complete: bool, rows: int) -> None:
        """The answer is over: positions, then everything that was made for it."""
        for read in self.reads:
            kind = read.shape.kind
            if kind is Kind.ROWWISE:
                limit = least(read.shape.limits, self.parameters)
                if complete and (limit is None or rows < limit):
                    read.tracker.complete()
                else:
                    read.tracker.stopped()
            elif kind is Kind.WHOLE and complete:
                if read.shape.unit is None:
                    read.tracker.complete()
                else:
                    read.tracker.stopped()
            elif kind is Kind.WHOLE:
                read.tracker.void("the answer of the latest read was not taken to its end")
        self.close(session)

    def failed(self, session: Context) -> None:
        """The query has failed: none of its reads counts."""
        for read in self.reads:
            if read.shape.kind in (Kind.ROWWISE, Kind.WHOLE):
                read.tracker.failed()
        self.close(session)

    def close(self, session: Context) -> None:
        """Take the relations away."""
        for read in self.reads:
            session.interrupts.discard(read.relation.interrupt)
            read.relation.close()
        for name in self.registered:
            # In a transaction that has failed DuckDB has already taken it away.
            with suppress(duckdb.Error):
                session.cursor.unregister(name)
        self.registered.clear()


def _prepare(session: Context, query: Query, shapes: Sequence[Shape], parameters: Values) -> Waiting[Reading]:
    """Open the scans of a query and register their relations on the session's cursor."""
    reading = Reading([], query, parameters=parameters)
    for found in shapes:
        opened = yield from _open(session, found, parameters)
        name = f"__ducktail_scan_{next(_numbers)}"
        relation = EventRelation(_scanner(session, opened), hidden=found.hidden)
        tracker = _tracker(session, opened, found)
        reading.reads.append(Read(found, opened, tracker, relation, name))
        reading.pieces.append(relation_of(found.scan, ident(name)))
        reading.pieces += [Piece(e.offset, e.offset, e.text) for e in found.edits]
    if session.in_block:
        session.touched()
    for read in reading.reads:
        session.cursor.register(read.name, read.relation)
        reading.registered.append(read.name)
        session.interrupts.add(read.relation.interrupt)
    return reading


def _scanner(session: Context, opened: Opened) -> Callable[[], Scan]:
    return lambda: new_scan(session, opened)


class _Pulled:
    """The rows of a query over scans; ends with the scans."""

    def __init__(
        self, session: Context, inner: Source, reading: Reading, query: Query, hidden: int | None
    ) -> None:
        self._session = session
        self._inner = inner
        self._reading = reading
        self._query = query
        self._hidden = hidden

    def next(self, limit: int | None) -> Batch | None:
        """The next batch."""
        try:
            batch = self._inner.next(limit)
        except DucktailError as error:
            raise self._reading.told(error, self._query) from error
        if batch is None or self._hidden is None:
            return batch
        return TrackedBatch(batch.record_batch(), self._hidden)

    def close(self) -> None:
        """Free the query."""
        self._inner.close()


Writer = Callable[[Context, Statement, Classified, Values], Waiting[Result]]


def _writing(write: Writer) -> Runner:
    """The runner of a statement that writes what it reads from streams."""

    def run(session: Context, statement: Statement, parameters: Values) -> Waiting[Result]:
        query = statement.node
        assert isinstance(query, Query)
        shapes = _shapes(statement, query, parameters)
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
        return result

    return run


run_write = _writing(staged.write)
run_definition = _writing(staged.define)
run_copy = _writing(copying.copy)
