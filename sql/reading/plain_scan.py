"""Plain scans, whose rows go from the buffers to the client without DuckDB."""

from __future__ import annotations

from collections.abc import Sequence

from ...engine import stream_reads
from ...engine.buffers.read_ahead import Cold, Page
from ...engine.buffers.scan import Scan
from ...engine.catalog.streams import Stream
from ...engine.groups.deliveries import Delivery
from ...engine.log.log import DELIVERIES, EVENT_NAMES, EVENT_TYPES
from ...engine.stream_reads import Delivers, ReadRequest
from ...engine.values import datarow
from ...engine.waiting import Waiting
from ..cluster.gathering import GatheredScan
from ..cluster.membership import settled
from ..cluster.shares import is_placed
from ..language import statements as st
from ..read_shape.columns import outputs_of_scan
from ..read_shape.shape import ReadKind, Shape
from ..read_shape.shape_types import Plain
from ..results.results import (
    BATCH_ROWS,
    EVENT_RESULT,
    EventBatch,
    LogBatch,
    Result,
    ResultBatch,
    ResultColumn,
    select_tag,
)
from ..session_state.context import Context
from ..session_state.positions import MemberRead
from ..session_state.run_text import Values, number
from .envelope_changes import changes_of
from .open_scan import open_scan
from .read_requests import Pruning, narrowed_here, request_of, within_times
from .tracking import OpenedScan, Tracker

# The most events in one batch.
EVENT_ROWS = BATCH_ROWS


# What reads deliver: a query without a read position is an inspection, as its events cannot be committed.
_DELIVERS = {ReadKind.ROWWISE: Delivers.ROWS, ReadKind.WHOLE: Delivers.ALL}

# The largest LIMIT whose rows an event loop may read itself: about a millisecond of its time.
INLINE_ROWS_MAX = 2000


def open_shape(
    session: Context,
    found: Shape,
    stream: Stream,
    narrowed: Pruning | None,
    parameters: Values,
    limit: int | None = None,
    request: ReadRequest | None = None,
) -> Waiting[OpenedScan]:
    """Open a shape's scan of a stream, within the bounds of its WHERE (`pruning`).

    Args:
        request: the read of the scan, if it has just been made.
    """
    narrowed = within_times(session, found.facts, narrowed or Pruning(), parameters)
    gives = found.kind is not ReadKind.UNCHANGED
    transactions = limit_of(found.transactions, parameters)
    if found.unit is not None:
        limit = least(found.unit.limits, parameters)
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
            delivers=_DELIVERS.get(found.kind, Delivers.NOTHING),
            request=request,
        )
    )


class EventSource:
    """Ready rows of one scan."""

    detached = True  # It reads the buffers, or the log on a cursor of the engine's.

    def __init__(
        self,
        scan: Scan | GatheredScan,
        types: tuple[str, ...],
        columns: tuple[int, ...] | None,
        limit: int | None,
        delivery: Delivery | None = None,
        *,
        shows_deliveries: bool = False,
    ) -> None:
        self.scan = scan
        self._types = types
        self._delivery = delivery
        self._shows_deliveries = shows_deliveries
        if columns is not None and types is EVENT_TYPES and isinstance(scan, Scan):
            scan.narrow([EVENT_NAMES[place] for place in columns])
        self._columns = columns
        self._left = limit

    @property
    def stopped(self) -> bool:
        """True if the LIMIT, or a bound of deliveries, has ended the read before the scan's end."""
        return (self._left == 0 and not self.scan.exhausted) or self._is_cut

    @property
    def inline(self) -> bool:
        """True if all remaining rows are few, and in memory in the form in which they are sent."""
        return self._left is not None and self.has_ready(self._left)

    @property
    def _is_cut(self) -> bool:
        return self._delivery is not None and self._delivery.ended

    def has_ready(self, rows: int) -> bool:
        """True if so many rows are few, and the next ones in memory in the form in which they are sent."""
        # Deliveries are stored before their rows are sent.
        return rows <= INLINE_ROWS_MAX and self.scan.ready and self._delivery is None

    def next(self, limit: int | None) -> ResultBatch | None:
        """The next events, at most `limit`: rows that a client has not asked for stay with the scan."""
        left = EVENT_ROWS if self._left is None else min(self._left, EVENT_ROWS)
        asked = left if limit is None else min(limit, left)
        while left and not self.scan.exhausted and not self._is_cut:
            found = self.scan.read(asked)
            if not found.lsns:
                continue
            count = len(found.lsns)
            if self._delivery is not None:
                count = self._delivery.take(found.lsns, found.partitions)
            if self._left is not None:
                # The LIMIT parts no update: the scan may have returned one row more.
                self._left = max(0, self._left - count)
            if count:
                batch = self._batch(found)
                return batch if count == len(found.lsns) else batch.cut(0, count)
        return None

    def _batch(self, found: Page) -> ResultBatch:
        if self._shows_deliveries:
            texts: list[bytes | None] = [None] * len(found.lsns)
            if self._delivery is not None:
                texts = [b"%d" % count for count in self._delivery.of(found.lsns, found.partitions)]
            rows = datarow.appended(found.rows, texts)
            return EventBatch(rows, found.lsns, found.partitions, self._columns, self._types)
        if isinstance(found, Cold):
            names = EVENT_NAMES if self._columns is None else [EVENT_NAMES[n] for n in self._columns]
            places = tuple(map(found.page.rows.schema.get_field_index, names))
            return LogBatch(found.page, found.part, places, found.lsns, found.partitions)
        return EventBatch(found.rows, found.lsns, found.partitions, self._columns, self._types)

    def close(self) -> None:
        """Free the scan."""
        self.scan.close()


def limit_of(limit: st.Number | None, parameters: Values) -> int | None:
    """A LIMIT's value; None without one, and for a parameter that is NULL, as in DuckDB."""
    if limit is None or (isinstance(limit, st.Parameter) and parameters[limit.index - 1] is None):
        return None
    return number(limit, parameters, "LIMIT")


def least(limits: Sequence[st.Number], parameters: Values) -> int | None:
    """The smallest of some LIMITs; None if none of them has a value."""
    values = [limit_of(limit, parameters) for limit in limits]
    return min((value for value in values if value is not None), default=None)


def _columns(
    session: Context, found: Shape, plain: Plain
) -> tuple[tuple[ResultColumn, ...], tuple[str, ...], tuple[int, ...] | None]:
    """The columns of a plain read, the types of all columns of its scan, and the places of those it shows."""
    changes = changes_of(session, found.scan)
    columns, types = EVENT_RESULT, EVENT_TYPES
    if found.scan.deliveries:
        columns = (*EVENT_RESULT, ResultColumn(*DELIVERIES))
        types = tuple(column.type for column in columns)
    if changes is not None:
        columns = tuple(ResultColumn(*column) for column in changes.columns)
        types = tuple(column.type for column in columns)
    if plain.columns is None:
        return columns, types, None
    base = outputs_of_scan(found.scan, [column.name for column in columns])
    events = [output.event for output in base or ()]
    places = tuple(events.index(event) for event, _ in plain.columns)
    shown = tuple(
        ResultColumn(name, types[place]) for place, (_, name) in zip(places, plain.columns, strict=True)
    )
    return shown, types, places


def run_plain(
    session: Context, found: Shape, stream: Stream, narrowed: Pruning, parameters: Values
) -> Waiting[Result]:
    plain = found.plain
    assert plain is not None
    limit = limit_of(plain.limit, parameters)
    columns, types, places = _columns(session, found, plain)
    request = _poll_request(session, found, stream, narrowed, parameters)
    if request is not None and _is_at_end(session, request):
        return Result.without_rows(columns)
    opened = yield from open_shape(session, found, stream, narrowed, parameters, limit, request)
    if types is not EVENT_TYPES:
        # The table may have been altered while the scan was being opened.
        columns, types, places = _columns(session, found, plain)
    tracker = tracker_of(session, opened, found)
    scan = opened.first
    source = EventSource(scan, types, places, limit, opened.delivery, shows_deliveries=found.scan.deliveries)
    session.guard.interrupts.add(scan.interrupt)

    def on_end(complete: bool) -> None:
        session.guard.interrupts.discard(scan.interrupt)
        if complete and source.stopped:
            tracker.stopped()
        elif complete:
            tracker.complete()
        tracker.ended()

    def on_rows(batch: ResultBatch) -> None:
        assert isinstance(batch, EventBatch | LogBatch)
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
    settle(session, made, isinstance(opened.hold, MemberRead))
    return made


def _poll_request(
    session: Context, found: Shape, stream: Stream, narrowed: Pruning, parameters: Values
) -> ReadRequest | None:
    """The request of a read of a group, or with AFTER, that may have nothing to return; None for others."""
    scan = found.scan
    if (scan.group is None) == (scan.after is None) or scan.member is not None or found.facts or found.empty:
        return None
    if session.block.begun or session.waited is not None or session.part is not None:
        return None
    if is_placed(session, stream) or (scan.group is not None and found.kind is not ReadKind.ROWWISE):
        return None
    return request_of(session, stream, scan, parameters, narrowed_here(session, stream, narrowed))


def _is_at_end(session: Context, request: ReadRequest) -> bool:
    """True if a read has nothing to return; a read position is set then."""
    read = stream_reads.at_end(session.database, request)
    if read is not None and request.group is not None:
        key = (request.stream.stream_id, request.group.group_id)
        reader = session.positions.reader(key, None, read.committed, read.seeks, transaction=False)
        session.positions.set(reader, read.committed, {})
    return read is not None


def settle(session: Context, result: Result, *elsewhere: bool) -> None:
    """Delay the end of an answer until another node that keeps a member's read position has it.

    Args:
        elsewhere: for each read, True if its member's read position is at another node.
    """
    if any(elsewhere):
        result.bind_settling(lambda: settled(session))


def tracker_of(session: Context, opened: OpenedScan, found: Shape) -> Tracker:
    """The tracker of a read; it does nothing for a read that sets no position."""
    tracker = Tracker(session, opened, moves=found.kind in (ReadKind.ROWWISE, ReadKind.WHOLE))
    if found.kind is ReadKind.NONE:
        tracker.void(found.reason)
    return tracker
