"""The read of a stream: from the request to a scan, with the gaps that it passes and the events given again.

A read of a group begins behind its committed LSNs, including those of an open transaction; any other read
begins at the LSNs that it names. Parked events of a group are left out, and released ones are given again.
The events of a group with `max_deliveries` are counted as they are delivered: where each row of an answer is
an event, by the answer; where a query computes from all events of the scan, here, before it runs.
A partition that came from another node begins in its segment there.
Source: docs/sql.md, "Reading"; docs/groups.md.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .buffers.gaps import Gone
from .buffers.scan import Scan, ScanRange, lost_events
from .catalog.streams import Group, Stream
from .database import Database
from .definitions.parking import parked_of
from .definitions.start_positions import check_no_holes
from .definitions.whole_copies import copy_of
from .duck.cursors import ask
from .errors import NotSupported
from .groups.deliveries import Delivery, live_ranges
from .groups.member import MemberHold
from .groups.parked import NOTHING, RELEASED, Aside
from .offset_commits import committed_lsns, hold_in_transaction
from .parts import LastRead
from .transactions.transaction import Transaction
from .waiting import Waiting

# Events whose number is taken at once, where an answer's first events are counted.
COUNTED_ROWS = 8192


class Delivers(enum.Enum):
    """The events that a read delivers to its reader."""

    NOTHING = "nothing"
    ROWS = "rows"  # those of the rows that it returns
    ALL = "all"  # all events of the scan, up to a limit


# Plain dataclasses: a frozen one costs a hot read 10 us.
@dataclass(slots=True, kw_only=True)
class ReadRequest:
    """A read of a stream: its reader, its partitions and its bounds.

    Args:
        user: the user who reads.
        transaction: the reader's open transaction, whose commits of offsets count.
        group: the consumer group for which it reads; None for a reader without progress.
        member: the member of the group.
        after: partition -> the LSN behind which to begin, 0 for all retained events; None for the group's
            committed LSNs, or for all retained events without a group.
        lsns: bounds that the reader's filter sets, the first and the last LSN.
        through_lsn: the last LSN of the read.
        gives: True if the reader can get events and not only their columns.
        transactions: the maximum number of transactions; None for no limit.
        changes: True for the rows of ENVELOPE CHANGES.
        delivers: the events that it delivers.
        limit: the largest number of events that it delivers, if it delivers all of the scan.
    """

    user: str
    transaction: Transaction | None
    stream: Stream
    partitions: Sequence[int]
    group: Group | None = None
    member: str | None = None
    after: Mapping[int, int] | None = None
    lsns: tuple[int, int | None] = (0, None)
    through_lsn: int = 0
    gives: bool = True
    transactions: int | None = None
    changes: bool = False
    delivers: Delivers = Delivers.NOTHING
    limit: int | None = None

    @property
    def is_counted(self) -> bool:
        """True if the read delivers events of a group that counts deliveries."""
        counts = self.group is not None and self.group.max_deliveries is not None and self.after is None
        return counts and self.gives and self.delivers is not Delivers.NOTHING

    @property
    def passes_gaps(self) -> bool:
        """True if the read continues behind trimmed events, instead of failing."""
        return self.group is not None and self.after is None and self.group.on_gap == "earliest"


@dataclass(slots=True)
class StreamRead:
    """A read that has begun.

    Args:
        committed: partition -> committed LSN of its group; empty for a read with AFTER.
        seeks: number of SEEKs of the group.
        gaps: the gaps that it has passed.
        segments: partition -> end of the segment from another node, for each segment in which the read
            begins.
        scan: the scan of its events; None if it begins in segments, whose LSNs have no order with the others.
        delivery: the counting of its events; None if they are not counted.
    """

    request: ReadRequest
    bounds: ScanRange
    committed: Mapping[int, int]
    seeks: int
    gaps: Sequence[Gone] = ()
    segments: Mapping[int, int] = field(default_factory=dict)
    scan: Scan | None = None
    delivery: Delivery | None = None


def end_lsn(database: Database, transaction: Transaction | None) -> Waiting[int]:
    """The end of a read that begins now, once it is readable.

    Outside a transaction it is the last committed LSN that readers may have. In a transaction it is the last
    LSN of its MVCC snapshot, so that the stream agrees with the tables.
    """
    if transaction is None:
        through_lsn = database.commits.readable_lsn
    else:
        row = ask(transaction.cursor, "SELECT coalesce(max(last_lsn), 0) FROM ducktail.commits")
        through_lsn = int(row[0])
    yield from database.publisher.wait_published(through_lsn)
    return through_lsn


def begin_member_read(database: Database, request: ReadRequest, *, joins: bool) -> MemberHold:
    """Begin the read of a member; a transaction that reads keeps the member's present partitions.

    Args:
        joins: True if the read makes its name a member.
    """
    assert request.group is not None and request.member is not None
    return database.members.begin_read(
        request.group,
        request.stream.partitions,
        request.member,
        request.user,
        request.partitions,
        gives=request.gives,
        joins=joins,
    )


def read(
    database: Database,
    request: ReadRequest,
    hold: MemberHold | None,
    interrupts: set[Callable[[], None]],
) -> StreamRead:
    """Begin a read.

    Args:
        hold: the member's hold for this read, if any.
        interrupts: functions that cancel the reader's work; the scan's is among them while it is queried.

    Raises:
        Gap: the first events of the read have been trimmed.
        InvalidParameterValue: an LSN of `after` belongs to lost events.
    """
    if hold is not None:
        if request.transaction is not None:
            hold_in_transaction(database, request.transaction, hold)
        # Earlier owners of the member's partitions have committed all that they could.
        own = [partition for partition in request.partitions if partition in hold.epochs]
        request = replace(request, partitions=own)
    begun = start(database, request)
    bounds, gaps = begun.bounds, begun.gaps
    if request.passes_gaps or (begun.committed and not request.gives):  # Columns alone lose nothing.
        bounds, gaps = _past_gaps(database, request.stream, bounds)
    if request.group is not None and request.after is None:
        # Includes events behind a gap, so it follows the place from which the read goes on.
        aside = aside_of(database, request, bounds.after)
        if aside is not None:
            bounds = replace(bounds, aside=aside)
    begun.segments = _segments(database, request.stream, bounds)
    if begun.segments and request.is_counted:
        raise NotSupported(
            f'events of topic "{request.stream.name}" that came from another node have no delivery counts',
            hint="Read them with max_deliveries = 'none'.",
        )
    scan = None
    if not begun.segments:
        scan = database.buffers.scan(request.stream, bounds, changes=request.changes)
    if scan is not None and request.transactions is not None:
        bounds = _of_transactions(scan, bounds, request.transactions, interrupts)
        scan = database.buffers.scan(request.stream, bounds, changes=request.changes)
    if request.is_counted and scan is not None:
        begun.delivery = _delivery(database, request)
        if request.delivers is Delivers.ALL:
            bounds = _delivered(scan, bounds, begun.delivery, request.limit, interrupts)
            scan.close()
            scan = database.buffers.scan(request.stream, bounds, changes=request.changes)
    _note(database, request, begun.committed)
    begun.bounds, begun.gaps, begun.scan = bounds, gaps, scan
    return begun


def at_end(database: Database, request: ReadRequest) -> StreamRead | None:
    """A read outside a transaction, if it has no events; None if it may have some.

    This is the look of a poll, of a group or with AFTER: it needs no scan, and decides by what is in memory.

    Raises:
        DucktailError: the stream cannot be read, as for any read.
    """
    stream, group = request.stream, request.group
    assert request.member is None and request.transaction is None
    last_lsn, catalog = database.commits.readable_lsn, database.catalog
    if database.publisher.published_lsn < last_lsn or catalog.segments.of(stream.stream_id):
        return None  # Events may be about to become readable.
    if group is not None and (
        database.parked.get(group.group_id) is not None or group.group_id in catalog.copies
    ):
        return None  # Events at or before the committed LSNs may be read again.
    database.buffers.check_served(stream)
    committed: dict[int, int] = {}
    seeks = 0 if group is None else database.offsets.seeks(group.group_id)
    if group is not None:
        standing = committed_lsns(database, None, group)
        after = committed = {partition: standing[partition] for partition in request.partitions}
    else:
        assert request.after is not None
        after = {partition: request.after[partition] for partition in request.partitions}
    if not database.buffers.of(stream).ends_at(after):
        return None
    if group is None:
        check_no_holes(database, stream, after)
    _note(database, request, committed)
    return StreamRead(request, ScanRange(after, last_lsn), committed, seeks)


def start(database: Database, request: ReadRequest) -> StreamRead:
    """The start of a read now, without a scan; it changes no state."""
    stream, group, partitions = request.stream, request.group, request.partitions
    committed: dict[int, int] = {}
    # Before the committed LSNs are looked up: a SEEK in between makes the position void, not wrong.
    seeks = 0 if group is None else database.offsets.seeks(group.group_id)
    from_start: frozenset[int] = frozenset()
    if request.after is not None:
        after = {partition: request.after[partition] for partition in partitions}
        check_no_holes(database, stream, after)
        from_start = frozenset(partition for partition, lsn in after.items() if lsn == 0)
    elif group is not None:
        standing = committed_lsns(database, request.transaction, group)
        after = committed = {partition: standing[partition] for partition in partitions}
    else:
        after, from_start = dict.fromkeys(partitions, 0), frozenset(partitions)
    copy = None if group is None else copy_of(database, request.transaction, group)
    bounds = ScanRange(
        after,
        request.through_lsn,
        from_start,
        *request.lsns,
        _passed_positions(database, group, committed),
        None if group is None else group.name,
        copy=None if copy is None else copy.at(after),
    )
    return StreamRead(request, bounds, committed, seeks)


def _of_transactions(
    scan: Scan, bounds: ScanRange, count: int, interrupts: set[Callable[[], None]]
) -> ScanRange:
    """The bounds of a scan that gives so many transactions; the scan that looks for their end is closed."""
    interrupt = scan.interrupt
    interrupts.add(interrupt)
    try:
        end = scan.end_of_transactions(count)
    finally:
        interrupts.discard(interrupt)
        scan.close()
    return replace(bounds, through_lsn=end, seen_lsn=bounds.through_lsn)


def is_delivery(database: Database, request: ReadRequest) -> bool:
    """True if a read is a delivery to a consumer, and not an inspection.

    A read without MEMBER of a group that has members is an inspection: only members commit.
    """
    assert request.group is not None
    return request.member is not None or not database.members.glimpse(request.group.group_id)


def check_countable(request: ReadRequest) -> None:
    """Refuse a counted read of whole transactions, which cannot be narrowed to one event.

    Raises:
        NotSupported: its group has `max_deliveries`.
    """
    if request.is_counted and request.transactions is not None:
        assert request.group is not None
        raise NotSupported(
            f'LIMIT ... TRANSACTIONS is not supported for consumer group "{request.group.name}", which has '
            "max_deliveries",
            detail="An event that is to be found among others is delivered alone, without its transaction.",
            hint="Read with LIMIT n; or ALTER CONSUMER GROUP ... SET (max_deliveries = 'none').",
        )


def _delivery(database: Database, request: ReadRequest) -> Delivery:
    """The counting of a read's events."""
    group = request.group
    assert group is not None
    began = database.deliveries.beginning(group.group_id)
    standing = database.offsets.positions(group.group_id)
    committed = {p: standing[p].lsn for p in request.partitions if p in standing}
    parked = database.parked.get(group.group_id) or NOTHING
    ranges = live_ranges(database.deliveries.get(group.group_id), committed, parked)
    counts = is_delivery(database, request)
    return Delivery(database.deliveries, group, ranges, request.member, began, counts=counts)


def _delivered(
    scan: Scan,
    bounds: ScanRange,
    delivery: Delivery,
    limit: int | None,
    interrupts: set[Callable[[], None]],
) -> ScanRange:
    """Count the events of a scan whose reader computes from all of them, before it does.

    Returns:
        The bounds of the scan, which end earlier where the events are delivered in smaller parts.
    """
    if not delivery.counts:
        return bounds
    if limit is None and not delivery.is_narrow and bounds.aside is None:
        spans = {p: (bounds.after[p] + 1, last) for p, last in scan.ends.items() if last > bounds.after[p]}
        # The LSNs of other partitions are among them: an upper bound of the number of events.
        delivery.span(spans, sum(last - first + 1 for first, last in spans.values()))
        return bounds
    interrupt = scan.interrupt
    interrupts.add(interrupt)
    count, end = 0, 0
    try:
        while not scan.exhausted and not delivery.ended and (limit is None or count < limit):
            page = scan.read(COUNTED_ROWS if limit is None else min(COUNTED_ROWS, limit - count))
            taken = delivery.take(page.lsns, page.partitions)
            count += taken
            end = page.lsns[taken - 1] if taken else end
    finally:
        interrupts.discard(interrupt)
    return replace(bounds, through_lsn=end, seen_lsn=bounds.through_lsn) if delivery.ended else bounds


def _note(database: Database, request: ReadRequest, committed: Mapping[int, int]) -> None:
    """Record a group's last read, and the LSNs from which the transaction first read it.

    The transaction's commit is compared with these LSNs.
    """
    group = request.group
    if group is None or request.after is not None:
        return
    read = LastRead(database.clock.now_us(), request.user, request.member)
    for partition in committed:
        database.last_reads[group.group_id, partition] = read
    if request.transaction is not None:
        first = request.transaction.first_reads.setdefault(group.group_id, {})
        for partition, lsn in committed.items():
            first.setdefault(partition, lsn)


def _passed_positions(database: Database, group: Group | None, lsns: Mapping[int, int]) -> dict[int, int]:
    """Exact positions of the committed LSNs that retention has passed."""
    return {} if group is None else database.offsets.passed_positions(group.group_id, lsns)


def aside_of(database: Database, request: ReadRequest, after: Mapping[int, int]) -> Aside | None:
    """The parked and released events of a group that a read behind these LSNs meets.

    Events that the transaction itself has released are given once it is committed: until then no other
    session sees their copies.
    """
    group, transaction = request.group, request.transaction
    assert group is not None
    committed = database.parked.get(group.group_id)
    if committed is None and (transaction is None or not transaction.parked):
        return None
    parked = parked_of(database, transaction, group)
    there = committed.events if committed is not None else {}
    released = [lsn for lsn, event in there.items() if event.state == RELEASED]
    return parked.aside(after, released, copy_of(database, transaction, group))


def _past_gaps(database: Database, stream: Stream, bounds: ScanRange) -> tuple[ScanRange, list[Gone]]:
    """The bounds of a read moved to the first retained events where the next ones are gone; and the gaps."""
    lost = lost_events(stream, database.buffers.of(stream), bounds, bounds.after)
    return replace(bounds, after=bounds.after | {gap.partition: gap.edge.through_lsn for gap in lost}), lost


def group_gaps(
    database: Database,
    transaction: Transaction | None,
    stream: Stream,
    group: Group,
    partitions: Collection[int],
) -> list[Gone]:
    """The gaps of a group: the next events of these partitions that are no longer retained."""
    standing, buffer = committed_lsns(database, transaction, group), database.buffers.of(stream)
    edges = buffer.edges(partitions)
    behind = {number: standing[number] for number, edge in edges.items() if standing[number] < edge}
    known = _passed_positions(database, group, behind)
    return lost_events(stream, buffer, ScanRange(behind, 0, positions=known, group=group.name), behind)


def _segments(database: Database, stream: Stream, bounds: ScanRange) -> dict[int, int]:
    """Partition -> end of its segment from another node, for partitions whose scan begins in the segment."""
    segments = database.catalog.segments.of(stream.stream_id)
    buffer = database.buffers.of(stream)
    return {
        number: segments[number].base_lsn
        for number, lsn in bounds.after.items()
        if number in segments
        and max(lsn, buffer.partitions[number].trimmed_through_lsn) < segments[number].base_lsn
    }
