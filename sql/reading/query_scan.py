"""Scans within a query of DuckDB: their relations, the text over them, and their read positions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import duckdb

from ...engine.buffers.scan import Scan
from ...engine.duck.duckdb_errors import translated
from ...engine.errors import DucktailError
from ...engine.log.envelope_changes import ChangesQuery
from ...engine.log.queries import Events
from ...engine.quoting import ident
from ..cluster.fetching import Fetched, FetchedTracker
from ..cluster.gathering import GatheredScan
from ..language.parse import Query
from ..read_shape.shape import Edit, ReadKind, RowCut, Shape, Unit
from ..read_shape.walk import UNNESTED
from ..results.results import ResultBatch, Source
from ..session_state.context import Context
from ..session_state.positions import MemberRead
from ..session_state.run_text import Values, with_casts
from ..session_state.statement import Casts
from ..text.spans import Replacement, cut, numbered, user_position
from . import row_order
from .envelope_changes import PairSource, whole_rows
from .open_scan import new_scan
from .plain_scan import least, limit_of
from .row_order import Rising, taken_whole
from .scan_relation import HIDDEN_LSN, relation_of, unlimited
from .tracking import OpenedScan, TrackedBatch, Tracker

if TYPE_CHECKING:
    from .event_relation import EventRelation

NUMBERS = itertools.count(1)


@dataclass(slots=True)
class Read:
    """One scan of a running query.

    Args:
        kind: the shape's kind, or NONE where DuckDB's plan hides the events that were read.
        rising: the check of the order of the returned rows.
    """

    shape: Shape
    opened: OpenedScan
    tracker: Tracker
    relation: EventRelation
    name: str
    changes: ChangesQuery | None
    kind: ReadKind
    rising: Rising

    @property
    def is_cut(self) -> bool:
        """True if the answer has fewer rows than it could have, to deliver few events at once."""
        return self.opened.delivery is not None and self.opened.delivery.ended

    def fitting(self, batch: TrackedBatch) -> int:
        """Count the events of the next rows of a row-wise answer; returns the number of rows that it may
        have."""
        if self.opened.delivery is None:
            return batch.row_count
        lsns = [number // 2 for number in batch.numbers] if batch.pairs else batch.numbers
        return self.opened.delivery.take(lsns, self.relation.places.partitions_of(lsns))

    def given(self, session: Context, batch: TrackedBatch) -> None:
        """Note rows of a row-wise answer that are handed out."""
        if self.opened.gathered is not None:
            self.tracker.note_numbers(batch.numbers)
        else:
            self.given_through(session, batch.last_lsn)

    def given_through(self, session: Context, lsn: int) -> None:
        """Note rows of a row-wise answer that are handed out, up to an LSN."""
        self.tracker.note_through(lsn, session.database.buffers.of(self.opened.stream))

    def readable(self) -> str:
        """The SQL that reads the scan's relation."""
        if self.changes is None:
            return ident(self.name)
        return self.changes.relation_sql(ident(self.name), hidden=self.shape.hidden)

    @property
    def registered(self) -> object:
        """The object that DuckDB reads under the relation's name."""
        return self.relation

    @property
    def elsewhere(self) -> bool:
        """True if it has a member's read position, at another node."""
        return isinstance(self.opened.hold, MemberRead)


@dataclass(slots=True)
class ReadAway:
    """One scan of a running query, with rows fetched from another node; otherwise like `Read`."""

    shape: Shape
    tracker: FetchedTracker
    relation: Fetched
    name: str
    kind: ReadKind
    rising: Rising
    is_cut = False  # The owner has counted its events.

    def fitting(self, batch: TrackedBatch) -> int:
        """The number of rows that the answer may have: all that were fetched."""
        return batch.row_count

    def given(self, session: Context, batch: TrackedBatch) -> None:
        """Note rows of a row-wise answer that are handed out."""
        self.given_through(session, batch.last_lsn)

    def given_through(self, session: Context, lsn: int) -> None:
        """Note rows of a row-wise answer that are handed out, up to an LSN."""
        self.tracker.note_through(lsn, None)

    def readable(self) -> str:
        """The SQL that reads the fetched rows."""
        return self.relation.relation_sql(ident(self.name), self.shape.scan, hidden=self.shape.hidden)

    @property
    def registered(self) -> object:
        """The object that DuckDB reads under the relation's name."""
        return self.relation.rows

    @property
    def elsewhere(self) -> bool:
        """True if it has a member's read position, at another node."""
        return self.shape.scan.member is not None

    def piece(self, session: Context) -> Replacement:
        """The replacement, in the user's text, of the part that was sent to the other node."""
        unit = self.shape.unit
        if unit is None:
            return relation_of(self.shape.scan, self.readable())
        read = self.relation.relation_sql(ident(self.name), self.shape.scan, hidden=False)
        return Replacement(unit.start, unit.end, f"SELECT * FROM {read}")


@dataclass(slots=True)
class Reading:
    """All scans of one execution: their relations, the text over them, and their outcome."""

    reads: list[Read | ReadAway]
    query: Query
    values: list[object] = field(default_factory=list)
    text: str = ""
    pieces: list[Replacement] = field(default_factory=list)
    registered: list[str] = field(default_factory=list)
    parameters: Values = ()
    casts: Casts | None = None
    pairs: PairSource | None = None
    # The pieces that restore the order of the LSNs, if DuckDB's plan does not keep it.
    sorting: list[Replacement] = field(default_factory=list)

    def edit(self, shape: Shape) -> None:
        """Add the edits of a scan's shape to the text."""
        self.pieces += edit_pieces(shape.edits, sorts=False) + cut_pieces(shape.cuts, self.parameters)
        self.sorting += edit_pieces(shape.edits, sorts=True)

    def read_units(self, session: Context) -> None:
        """Run the inner row-wise queries, put their rows in their places, and build the text."""
        for read in self.reads:
            if read.shape.unit is not None and isinstance(read, Read):
                self._read_unit(session, read, read.shape.unit)

        def made(more: Sequence[Replacement]) -> tuple[str, list[object]]:
            text = cut(self.query.text, [*self.pieces, *more])
            if self.casts is not None:
                text = with_casts(text, self.casts.of(self.parameters))
            return numbered(text, self.parameters)

        self.text, self.values = self._in_order(session, self.reads, made, self.sorting)

    def _in_order(
        self,
        session: Context,
        reads: Sequence[Read | ReadAway],
        made: Callable[[Sequence[Replacement]], tuple[str, list[object]]],
        sorting: Sequence[Replacement],
    ) -> tuple[str, list[object]]:
        """The text that returns the rows in the order of the scan, with its parameters.

        Args:
            made: builds the text with further replacements.
            sorting: the pieces that restore the order.
        """
        text, values = made(())
        if not sorting:
            return text, values
        found = row_order.order_of(session, text, values)
        if found is row_order.Order.LOST:
            return made(sorting)
        if found is row_order.Order.MULTIPLIED:
            for read in reads:
                if read.kind in (ReadKind.ROWWISE, ReadKind.WHOLE):
                    read.kind = ReadKind.NONE
                    read.tracker.void(UNNESTED)
        return text, values

    def _read_unit(self, session: Context, read: Read, unit: Unit) -> None:
        inside = edit_pieces(unit.edits, sorts=False)
        inside.append(relation_of(read.shape.scan, read.readable()))
        inside += cut_pieces(unit.cuts, self.parameters)
        inside += [p for p in unlimited(self.query) if unit.start <= p.start < unit.end]

        def made(more: Sequence[Replacement]) -> tuple[str, list[object]]:
            shifted = [
                Replacement(p.start - unit.start, p.end - unit.start, p.text) for p in (*inside, *more)
            ]
            return numbered(cut(self.query.text[unit.start : unit.end], shifted), self.parameters)

        text, values = self._in_order(session, [read], made, edit_pieces(unit.edits, sorts=True))
        taken = taken_whole(session, text, values)
        table = taken.table
        hidden = table.column(taken.names.index(HIDDEN_LSN))
        if read.kind is ReadKind.WHOLE:
            read.rising.check(hidden.to_numpy())
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
        name = f"__ducktail_unit_{next(NUMBERS)}"
        session.cursor.register(name, table)
        self.registered.append(name)
        self.pieces = [p for p in self.pieces if not unit.start <= p.start < unit.end]
        self.pieces.append(Replacement(unit.start, unit.end, taken.query(name, without=HIDDEN_LSN)))

    def told(self, error: BaseException, query: Query) -> DucktailError:
        """The error to report: a scan's own error, else DuckDB's, at the place in the user's text."""
        own = next((read.relation.error for read in self.reads if read.relation.error), None)
        if own is not None:
            return own
        found = translated(error)
        if found.position is not None:
            found.position = user_position(found.position, self.pieces)
        return found

    def ended(self, session: Context, *, complete: bool, rows: int) -> None:
        """End an answer: set the read positions, then free its relations."""
        for read in self.reads:
            kind = read.kind
            if kind is ReadKind.ROWWISE:
                limit = least(read.shape.limits, self.parameters)
                if complete and read.is_cut:
                    read.tracker.stopped()
                elif self.pairs is not None and complete:
                    self._ended_with_pairs(session, read, self.pairs)
                elif complete and (limit is None or rows < limit):
                    read.tracker.complete()
                elif complete:
                    read.tracker.stopped()
            elif kind is ReadKind.WHOLE and complete:
                if read.shape.unit is None:
                    read.tracker.complete()
                else:
                    read.tracker.stopped()
            elif kind is ReadKind.WHOLE:
                read.tracker.void("the answer of the latest read was not taken to its end")
            elif kind is ReadKind.NONE:
                read.tracker.untold()
        self.close(session)

    def _ended_with_pairs(self, session: Context, read: Read | ReadAway, pairs: PairSource) -> None:
        """End a complete answer in ENVELOPE CHANGES, whose LIMIT has not parted an update."""
        if pairs.ran_out:
            read.tracker.complete()
        else:
            read.given_through(session, pairs.last_lsn)
            read.tracker.stopped()

    def failed(self, session: Context) -> None:
        """End a failed query: none of its reads counts."""
        for read in self.reads:
            if read.kind in (ReadKind.ROWWISE, ReadKind.WHOLE):
                read.tracker.failed()
        self.close(session)

    def close(self, session: Context) -> None:
        """Unregister and free the relations."""
        for read in self.reads:
            session.guard.interrupts.discard(read.relation.interrupt)
            read.relation.close()
            read.tracker.ended()
        for name in self.registered:
            # In a failed transaction DuckDB has already unregistered it.
            with suppress(duckdb.Error):
                session.cursor.unregister(name)
        self.registered.clear()


def edit_pieces(edits: Sequence[Edit], *, sorts: bool) -> list[Replacement]:
    """The edits that sort, or the edits that do not."""
    return [Replacement(edit.offset, edit.offset, edit.text) for edit in edits if edit.sorts is sorts]


def cut_pieces(cuts: Sequence[RowCut], parameters: Values) -> list[Replacement]:
    """Replacements of LIMITs, to ask for one more row."""
    limits = [(item, limit_of(item.limit, parameters)) for item in cuts]
    return [Replacement(item.start, item.end, f"LIMIT {n + 1}") for item, n in limits if n is not None]


def scanner_of(
    session: Context, opened: OpenedScan, planned: Events | None
) -> Callable[[], Scan | GatheredScan]:
    return lambda: new_scan(session, opened, planned)


class Pulled:
    """The rows of a query over scans."""

    def __init__(
        self,
        session: Context,
        inner: Source,
        reading: Reading,
        query: Query,
        hidden: int | None,
        rowwise: Read | ReadAway | None,
    ) -> None:
        self._session = session
        self._inner = inner
        self._reading = reading
        self._query = query
        self._hidden = hidden
        self._rowwise = rowwise

    def next(self, limit: int | None) -> ResultBatch | None:
        """The next batch."""
        if self._rowwise is not None and self._rowwise.is_cut:
            return None
        try:
            batch = self._inner.next(limit)
        except DucktailError as error:
            raise self._reading.told(error, self._query) from error
        if batch is None or self._hidden is None:
            return batch
        rowwise = self._rowwise
        if not isinstance(batch, TrackedBatch):
            pairs = rowwise is not None and rowwise.shape.scan.envelope != "json"
            batch = TrackedBatch(batch.record_batch(), self._hidden, pairs)
        if rowwise is not None:
            rowwise.rising.check(batch.rows.column(self._hidden).to_numpy())
            count = rowwise.fitting(batch) if batch.row_count else 0
            if count < batch.row_count:
                return batch.cut(0, count) if count else None
        return batch

    def close(self) -> None:
        """Free the query."""
        self._inner.close()
