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

from ...engine.buffers.scan import Scan
from ...engine.duckdb_errors import translated
from ...engine.errors import (
    AmbiguousColumn,
    DatatypeMismatch,
    DucktailError,
    NotSupported,
    UndefinedColumn,
    UndefinedFunction,
    UndefinedTable,
)
from ...engine.log.changes import ChangesQuery, view_name
from ...engine.log.log import EVENT_TYPES, Events
from ...engine.quoting import ident
from ...engine.streams.streams import Stream
from ...engine.waiting import Waiting, all_of
from .. import staged
from ..arguments import Values, number
from ..context import Context, Runner
from ..copy import copying
from ..forwarding import fetching
from ..forwarding.fetching import Fetched, FetchedTracker
from ..language import statements as st
from ..language.parse import Query
from ..results.results import EVENT_RESULT, Batch, EventBatch, Result, ResultColumn, Source, select_tag
from ..running import bound, query_result, with_casts
from ..shape import shape
from ..shape.columns import outputs_of_scan
from ..shape.shape import Cut, Kind, Shape, Unit, shapes_of
from ..spread.gathering import GatheredScan
from ..spread.membership import MemberRead, settled
from ..spread.shares import spread
from ..statement import Statement, check_described
from ..text.classified import Classified
from ..text.classify import classify
from ..text.replacing import Piece, cut, numbered, user_position
from .changes import PairSource, changes_of, columns_of, whole_rows
from .narrowing import pruning, within_times
from .opened import Opened
from .opening import Pruning, new_scan, open_scan
from .scan_relation import EMPTY, HIDDEN_LSN, EventRelation
from .taken import taken_whole
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
    return cut(query.text, empty_scans(session, query))


def explainable(session: Context, query: Query) -> str:
    """The text for EXPLAIN: each scan the stream's view, which reads the log as a cold scan does."""
    pieces = []
    for scan in query.scans:
        if scan.away is not None:
            pieces.append(relation_of(scan, fetching.empty_sql(scan)))
            continue
        stream = session.names.scanned(scan.stream.parts, scan.stream.position, scan.kind)
        if isinstance(scan.group, str):
            session.access.group(stream, scan.group, session.block.transaction)
        view = stream.name if changes_of(session, scan) is None else view_name(stream)
        pieces.append(relation_of(scan, f"{ident(stream.schema)}.{ident(view)}"))
    return cut(query.text, pieces + unlimited(query))


def empty_scans(session: Context, query: Query) -> list[Piece]:
    """Each scan as an empty relation, and what else DuckDB is not to see."""
    return [relation_of(scan, _empty(session, scan)) for scan in query.scans] + unlimited(query)


def _empty(session: Context, scan: st.Scan) -> str:
    if scan.away is not None:
        return fetching.empty_sql(scan)
    changes = changes_of(session, scan)
    return EMPTY if changes is None else changes.empty_sql()


def unlimited(query: Query) -> list[Piece]:
    """The clause LIMIT n TRANSACTIONS left out: it is the end of the scan, not of the rows.

    Raises:
        NotSupported: 0A000, it stands where it cannot be that.
    """
    clause = query.transactions
    if clause is None:
        return []
    misplaced = shapes_of(query)[0].misplaced
    if misplaced:
        raise NotSupported(
            f"LIMIT ... TRANSACTIONS is not supported here: {misplaced}",
            hint="It is the LIMIT of the query that reads the stream, or of one around it.",
            position=clause.start + 1,
        )
    return [Piece(clause.start, clause.end, "")]


def _kept_shapes(session: Context, statement: Statement, query: Query) -> tuple[Shape, ...]:
    if any(scan.envelope != "json" for scan in query.scans):
        return shapes_of(query, columns_of(session, query.scans))
    kept = statement.plans.get("shapes")
    if not isinstance(kept, tuple):
        kept = statement.plans["shapes"] = shapes_of(query)
    return kept


def bound_shapes(session: Context, statement: Statement, query: Query, parameters: Values) -> list[Shape]:
    """The shape of each scan, with these parameters."""
    unlimited(query)
    return [shape.bound(found, parameters) for found in _kept_shapes(session, statement, query)]


def stream_of(session: Context, found: Shape) -> Stream:
    """The stream of this node that a shape's scan names."""
    scan = found.scan
    return session.names.scanned(scan.stream.parts, scan.stream.position, scan.kind)


def _open(
    session: Context,
    found: Shape,
    stream: Stream,
    narrowed: Pruning | None,
    parameters: Values,
    limit: int | None = None,
) -> Waiting[Opened]:
    """Open a shape's scan of a stream, within what its WHERE says (`pruning`)."""
    narrowed = within_times(session, found.facts, narrowed or Pruning(), parameters)
    gives = found.kind is not Kind.UNCHANGED
    transactions = limit_of(found.transactions, parameters)
    return (
        yield from open_scan(
            session,
            stream,
            found.scan,
            parameters,
            narrowed,
            gives=gives,
            transactions=transactions,
            limit=0 if found.empty else limit,
        )
    )


def _may_be_plain(session: Context, statement: Statement, found: Shape) -> bool:
    """Whether ready rows answer a query, unless its WHERE leaves something for DuckDB to judge."""
    if statement.arrow:
        return False
    if found.scan.away is not None:
        return False
    # In process typed rows come as Arrow: there is no text to read again.
    return found.plain is not None and (found.scan.envelope == "json" or session.wire)


def is_inline(session: Context, statement: Statement, query: Query) -> bool:
    """Whether a query is one plain read that needs no snapshot of DuckDB's to begin."""
    if session.block.begun or len(query.scans) != 1 or not _is_found_at_once(session, query.scans[0].stream):
        return False
    if query.scans[0].away is not None:
        return False
    if query.transactions is not None or (statement.part is not None and statement.part.within is not None):
        return False  # Where the last of them ends, or which LSNs are of a time, may have to be looked up.
    if query.scans[0].wait_for is not None:
        return False  # How many events there are already may have to be asked of the log.
    if query.scans[0].envelope != "json" and session.names.find_stream(query.scans[0].stream.parts) is None:
        return False
    plain = _kept_shapes(session, statement, query)[0].plain
    if plain is None:
        return False
    stream = session.names.find_stream(query.scans[0].stream.parts)
    if stream is not None and _may_take_copy(session, stream, query.scans[0].group):
        return False
    if stream is None or not session.database.cluster.placement.epoch:
        return True
    if _has_moved(session, stream):
        return False  # DuckDB has what partitions brought from another node.
    if spread(session, stream) is not None:
        # What is gathered is put in order: that is not for the event loop where it may be much.
        return isinstance(plain.limit, int) and plain.limit <= INLINE_ROWS_MAX
    return True


def _may_take_copy(session: Context, stream: Stream, group: object) -> bool:
    """Whether a read as a group may have to take a whole copy of the table first."""
    if group is None:
        return False
    with session.database.catalog.mutex:
        groups = session.database.catalog.groups_of(stream.stream_id)
    return any(one.on_gap == "snapshot" for one in groups)


def _is_found_at_once(session: Context, name: st.Name) -> bool:
    """Whether what a name is can be told without asking DuckDB."""
    if len(name.parts) == 1:
        return True
    return len(name.parts) == 2 and name.parts[0].lower() != session.database.catalog_name.lower()


def _has_moved(session: Context, stream: Stream) -> bool:
    """Whether partitions of a stream came from another node, or are to come."""
    database = session.database
    segments = database.catalog.segments.of(stream.stream_id)
    came = any(one.base_lsn for one in segments.values())
    return came or bool(database.holds.missing(database.placement, stream))


def run_query(session: Context, statement: Statement, parameters: Values) -> Waiting[Result]:
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
            plain = yield from _run_plain(session, shapes[0], stream, narrowed, parameters)
            try:
                check_described(statement, plain)
            except BaseException:
                plain.close()
                raise
            return plain
    reading = yield from _prepare(session, query, shapes, parameters)
    reading.casts = statement.casts
    try:
        reading.read_units(session)
        result = query_result(session, reading.text, reading.values, None, arrow=statement.arrow)
    except (DucktailError, duckdb.Error) as error:
        reading.failed(session)
        told = reading.told(error, query)
        if told.position is None and isinstance(told, NAMELESS):
            _ = statement.description  # The binder's own error has its place.
        raise told from error
    assert result.columns is not None
    rowwise = next((r for r in reading.reads if r.shape.kind is Kind.ROWWISE), None)
    hidden = next((i for i, c in enumerate(result.columns) if c.name == HIDDEN_LSN), None)
    cut_read = next((read for read in reading.reads if read.shape.cuts), None)
    inner = result.source
    if cut_read is not None and hidden is not None:
        limit = least([item.limit for item in cut_read.shape.cuts], parameters)
        if limit is not None:
            inner = reading.pairs = PairSource(inner, hidden, limit)
    pairs = rowwise is not None and rowwise.shape.scan.envelope != "json"
    source = _Pulled(session, inner, reading, query, hidden, pairs)
    columns = tuple(c for i, c in enumerate(result.columns) if i != hidden)

    def on_rows(batch: Batch) -> None:
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
    _settle(session, made, *(read.elsewhere for read in reading.reads))
    schema = result.arrow_schema
    made.arrow_schema = schema if schema is None or hidden is None else schema.remove(hidden)
    return made


# Plain reads.


class EventSource:
    """Ready rows of one scan."""

    detached = True  # It reads the buffers, or the log on a cursor of the engine's.

    def __init__(
        self,
        scan: Scan | GatheredScan,
        types: tuple[str, ...],
        columns: tuple[int, ...] | None,
        limit: int | None,
    ) -> None:
        self.scan = scan
        self._types = types
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
                # The LIMIT parts no update: the scan may have given one row more.
                self._left = max(0, self._left - len(found.rows))
            return EventBatch(found.rows, found.lsns, found.partitions, self._columns, self._types)
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


def _run_plain(
    session: Context, found: Shape, stream: Stream, narrowed: Pruning, parameters: Values
) -> Waiting[Result]:
    plain = found.plain
    assert plain is not None
    limit = limit_of(plain.limit, parameters)
    opened = yield from _open(session, found, stream, narrowed, parameters, limit)
    tracker = _tracker(session, opened, found)
    scan = opened.first
    places = None
    changes = changes_of(session, found.scan)
    columns = EVENT_RESULT
    if changes is not None:
        columns = tuple(ResultColumn(*column) for column in changes.columns)
    types = tuple(column.type for column in columns)
    if plain.columns is not None:
        base = outputs_of_scan(found.scan.envelope, [column.name for column in columns])
        events = [output.event for output in base or ()]
        places = tuple(events.index(event) for event, _ in plain.columns)
        columns = tuple(
            ResultColumn(name, types[place]) for place, (_, name) in zip(places, plain.columns, strict=True)
        )
    source = EventSource(scan, EVENT_TYPES if changes is None else types, places, limit)
    session.guard.interrupts.add(scan.interrupt)

    def on_end(complete: bool) -> None:
        session.guard.interrupts.discard(scan.interrupt)
        if complete and source.stopped:
            tracker.stopped()
        elif complete:
            tracker.complete()
        tracker.ended()

    def on_rows(batch: Batch) -> None:
        assert isinstance(batch, EventBatch)
        tracker.given(batch.lsns[batch.whole], batch.partitions[batch.whole])

    made = Result(
        columns,
        source,
        select_tag,
        on_end=on_end,
        on_rows=on_rows,
        on_fail=tracker.failed,
        on_suspend=tracker.stopped,
    )
    _settle(session, made, isinstance(opened.hold, MemberRead))
    return made


def _settle(session: Context, result: Result, *elsewhere: bool) -> None:
    """Where a member's read position is at another node, that knows it before the answer's end is told."""
    if any(elsewhere):
        result.bind_settling(lambda: settled(session))


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
    changes: ChangesQuery | None

    def given(self, session: Context, batch: TrackedBatch) -> None:
        """Rows of a row-wise answer are handed out."""
        if self.opened.gathered is not None:
            self.tracker.note_numbers(batch.numbers)
        else:
            self.given_through(session, batch.last_lsn)

    def given_through(self, session: Context, lsn: int) -> None:
        """The same, up to an LSN."""
        self.tracker.note_through(lsn, session.database.buffers.of(self.opened.stream))

    def readable(self) -> str:
        """What the scan's relation is read as."""
        if self.changes is None:
            return ident(self.name)
        return self.changes.relation_sql(ident(self.name), hidden=self.shape.hidden)

    @property
    def registered(self) -> object:
        """What DuckDB reads under the relation's name."""
        return self.relation

    @property
    def elsewhere(self) -> bool:
        """Whether it has a member's read position, which is at another node."""
        return isinstance(self.opened.hold, MemberRead)


@dataclass(slots=True)
class ReadAway:
    """One scan of a query under way whose rows have been fetched from another node."""

    shape: Shape
    tracker: FetchedTracker
    relation: Fetched
    name: str

    def given(self, session: Context, batch: TrackedBatch) -> None:
        """Rows of a row-wise answer are handed out."""
        self.given_through(session, batch.last_lsn)

    def given_through(self, session: Context, lsn: int) -> None:
        """The same, up to an LSN."""
        self.tracker.note_through(lsn, None)

    def readable(self) -> str:
        """What the fetched rows are read as."""
        return self.relation.relation_sql(ident(self.name), self.shape.scan, hidden=self.shape.hidden)

    @property
    def registered(self) -> object:
        """What DuckDB reads under the relation's name."""
        return self.relation.rows

    @property
    def elsewhere(self) -> bool:
        """Whether it has a member's read position, which is at another node."""
        return self.shape.scan.member is not None

    def piece(self, session: Context) -> Piece:
        """What stands in the user's text instead of what was sent."""
        unit = self.shape.unit
        if unit is None:
            return relation_of(self.shape.scan, self.readable())
        read = self.relation.relation_sql(ident(self.name), self.shape.scan, hidden=False)
        return Piece(unit.start, unit.end, f"SELECT * FROM {read}")


@dataclass(slots=True)
class Reading:
    """All scans of one execution: their relations, the text over them, and what becomes of them."""

    reads: list[Read | ReadAway]
    query: Query
    values: list[object] = field(default_factory=list)
    text: str = ""
    pieces: list[Piece] = field(default_factory=list)
    registered: list[str] = field(default_factory=list)
    parameters: Values = ()
    casts: dict[str, str] | None = None
    pairs: PairSource | None = None

    def read_units(self, session: Context) -> None:
        """Run the row-wise queries that stand inside, and put their rows in their places."""
        for read in self.reads:
            if read.shape.unit is not None and isinstance(read, Read):
                self._read_unit(session, read, read.shape.unit)
        text = cut(self.query.text, self.pieces)
        if self.casts:
            text = with_casts(text, self.casts)
        self.text, self.values = numbered(text, self.parameters)

    def _read_unit(self, session: Context, read: Read, unit: Unit) -> None:
        inside = [Piece(e.offset, e.offset, e.text) for e in unit.edits]
        inside.append(relation_of(read.shape.scan, read.readable()))
        inside += cut_pieces(unit.cuts, self.parameters)
        inside += [p for p in unlimited(self.query) if unit.start <= p.start < unit.end]
        shifted = [Piece(p.start - unit.start, p.end - unit.start, p.text) for p in inside]
        text, values = numbered(cut(self.query.text[unit.start : unit.end], shifted), self.parameters)
        taken = taken_whole(session, text, values)
        table = taken.table
        hidden = table.column(taken.names.index(HIDDEN_LSN))
        buffer = session.database.buffers.of(read.opened.stream)
        limit = least(unit.limits, self.parameters)
        if read.opened.changes:
            count = table.num_rows if limit is None else whole_rows(hidden, limit)
            if limit is None or table.num_rows <= limit:
                read.tracker.note_end()
            elif count:
                read.tracker.note_through(hidden[count - 1].as_py() // 2, buffer)
            table = table.slice(0, count)
        else:
            if read.opened.gathered is not None:
                read.tracker.note_numbers(hidden.to_pylist())
            elif table.num_rows:
                read.tracker.note_through(int(hidden[-1].as_py()), buffer)
            if limit is None or table.num_rows < limit:
                read.tracker.note_end()
        name = f"__ducktail_unit_{next(_numbers)}"
        session.cursor.register(name, table)
        self.registered.append(name)
        self.pieces = [p for p in self.pieces if not unit.start <= p.start < unit.end]
        self.pieces.append(Piece(unit.start, unit.end, taken.query(name, without=HIDDEN_LSN)))

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
                if self.pairs is not None and complete:
                    self._ended_with_pairs(session, read, self.pairs)
                elif complete and (limit is None or rows < limit):
                    read.tracker.complete()
                elif complete:
                    read.tracker.stopped()
            elif kind is Kind.WHOLE and complete:
                if read.shape.unit is None:
                    read.tracker.complete()
                else:
                    read.tracker.stopped()
            elif kind is Kind.WHOLE:
                read.tracker.void("the answer of the latest read was not taken to its end")
            elif kind is Kind.NONE:
                read.tracker.untold()
        self.close(session)

    def _ended_with_pairs(self, session: Context, read: Read | ReadAway, pairs: PairSource) -> None:
        """An answer in ENVELOPE CHANGES is complete: its LIMIT has parted no update."""
        if pairs.ran_out:
            read.tracker.complete()
        else:
            read.given_through(session, pairs.last_lsn)
            read.tracker.stopped()

    def failed(self, session: Context) -> None:
        """The query has failed: none of its reads counts."""
        for read in self.reads:
            if read.shape.kind in (Kind.ROWWISE, Kind.WHOLE):
                read.tracker.failed()
        self.close(session)

    def close(self, session: Context) -> None:
        """Take the relations away."""
        for read in self.reads:
            session.guard.interrupts.discard(read.relation.interrupt)
            read.relation.close()
            read.tracker.ended()
        for name in self.registered:
            # In a transaction that has failed DuckDB has already taken it away.
            with suppress(duckdb.Error):
                session.cursor.unregister(name)
        self.registered.clear()


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
    opened = yield from _open(session, found, stream, narrowed, parameters)
    name = f"__ducktail_scan_{next(_numbers)}"
    changes = changes_of(session, found.scan)
    scanner = _scanner(session, opened, None if changes is None else changes.events)
    relation = EventRelation(scanner, hidden=found.hidden, changes=opened.changes)
    tracker = _tracker(session, opened, found)
    read = Read(found, opened, tracker, relation, name, changes)
    reading.reads.append(read)
    reading.pieces.append(relation_of(found.scan, read.readable()))
    _edit(reading, found)


def _edit(reading: Reading, found: Shape) -> None:
    """What the scan's shape puts into the text besides."""
    reading.pieces += [Piece(e.offset, e.offset, e.text) for e in found.edits]
    reading.pieces += cut_pieces(found.cuts, reading.parameters)


def _fetch_all(session: Context, reading: Reading, shapes: Sequence[Shape]) -> Waiting[None]:
    """Fetch the scans that are away, from all owners at once."""
    works = [fetching.fetch(session, reading.query, found, reading.parameters) for found in shapes]
    outcomes = yield from all_of(works, session.database.clock.monotonic_s)
    for found, outcome in zip(shapes, outcomes, strict=True):
        if isinstance(outcome, fetching.Fetched):
            tracker = FetchedTracker(outcome, found)
            name = f"__ducktail_scan_{next(_numbers)}"
            reading.reads.append(ReadAway(found, tracker, outcome, name))
    failed = next((outcome for outcome in outcomes if isinstance(outcome, Exception)), None)
    if failed is not None:
        reading.failed(session)
        raise failed
    for read in reading.reads:
        assert isinstance(read, ReadAway), "what is here is opened after what is fetched"
        if (unit := read.shape.unit) is not None:
            # LIMIT n TRANSACTIONS may stand in it.
            reading.pieces = [p for p in reading.pieces if not unit.start <= p.start < unit.end]
        reading.pieces.append(read.piece(session))
        if unit is None:
            _edit(reading, read.shape)


def cut_pieces(cuts: Sequence[Cut], parameters: Values) -> list[Piece]:
    """LIMITs that ask for one row more."""
    limits = [(item, limit_of(item.limit, parameters)) for item in cuts]
    return [Piece(item.start, item.end, f"LIMIT {n + 1}") for item, n in limits if n is not None]


def _scanner(session: Context, opened: Opened, planned: Events | None) -> Callable[[], Scan | GatheredScan]:
    return lambda: new_scan(session, opened, planned)


class _Pulled:
    """The rows of a query over scans; ends with the scans."""

    def __init__(
        self,
        session: Context,
        inner: Source,
        reading: Reading,
        query: Query,
        hidden: int | None,
        pairs: bool,
    ) -> None:
        self._session = session
        self._inner = inner
        self._reading = reading
        self._query = query
        self._hidden = hidden
        self._pairs = pairs

    def next(self, limit: int | None) -> Batch | None:
        """The next batch."""
        try:
            batch = self._inner.next(limit)
        except DucktailError as error:
            raise self._reading.told(error, self._query) from error
        if batch is None or self._hidden is None:
            return batch
        if isinstance(batch, TrackedBatch):
            return batch
        return TrackedBatch(batch.record_batch(), self._hidden, self._pairs)

    def close(self) -> None:
        """Free the query."""
        self._inner.close()


Writer = Callable[[Context, Statement, Classified, Values], Waiting[Result]]


def _writing(write: Writer) -> Runner:
    """The runner of a statement that writes what it reads from streams."""

    def run(session: Context, statement: Statement, parameters: Values) -> Waiting[Result]:
        query = statement.node
        assert isinstance(query, Query)
        shapes = bound_shapes(session, statement, query, parameters)
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
        yield from settled(session)
        return result

    return run


run_write = _writing(staged.write)
run_definition = _writing(staged.define)
run_copy = _writing(copying.copy)
