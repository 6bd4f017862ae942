"""Opening a stream scan: its group and member, its partitions, its start and its end.

A scan's end is fixed when it opens. Outside a transaction it is the last LSN committed by then (and the scan
waits until that is readable), or the last readable LSN when a WAIT ended. Inside a transaction it is the last
LSN in the transaction's own MVCC snapshot, read from `commits` on the session's cursor, so that the stream
agrees with the tables.
Source: docs/sql.md, "Reading".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from ...engine import stream_reads
from ...engine.buffers.scan import Scan, ScanRange, lost_events
from ...engine.catalog.streams import Group, Stream
from ...engine.errors import SerializationFailure
from ...engine.groups.coordination import epoch_told
from ...engine.groups.member import MemberHold
from ...engine.log.queries import Events
from ...engine.stream_reads import Delivers, ReadRequest, StreamRead
from ...engine.waiting import Wait, Waiting, in_thread
from ..cluster import gathering, membership
from ..cluster.gathering import GatheredScan
from ..cluster.membership import Home
from ..cluster.shares import check_owned, own_share, remote_owners
from ..language import statements as st
from ..peers.owners import Owners
from ..peers.requests import Part
from ..session_state.context import Context
from ..session_state.positions import MemberRead, Reader
from ..session_state.run_text import Values, text
from . import whole_copies
from .automatic_parking import check_one_owner, park_before
from .read_requests import Pruning, group_of, narrowed_here, parsed_after, partitions_of, request_of
from .tracking import OpenedScan, Tracker


def open_scan(
    session: Context,
    stream: Stream,
    wanted: st.Scan,
    parameters: Values,
    pruning: Pruning,
    *,
    gives: bool,
    transactions: int | None = None,
    limit: int | None = None,
    delivers: Delivers = Delivers.NOTHING,
    request: ReadRequest | None = None,
) -> Waiting[OpenedScan]:
    """Open a scan: fix its events.

    Args:
        gives: True if the query can return events of the scan.
        transactions: the largest number of transactions to return; None means no bound.
        limit: the largest number of events to return, from the first; None means all.
        delivers: the events that the query delivers to its reader.
        request: the read of the scan, if it has just been made.

    Raises:
        UndefinedObject: the group does not exist.
        InvalidParameterValue: the partition does not exist.
        Gap: the scan's first events have been trimmed.
    """
    owners = remote_owners(session, stream)
    if owners is not None and not _is_own(stream, wanted, parameters, pruning, owners):
        asked = _Asked(wanted, parameters, pruning, gives, limit, transactions)
        return (yield from _gathered(session, stream, owners, asked))
    if request is None:
        request = request_of(session, stream, wanted, parameters, narrowed_here(session, stream, pruning))
    check_one_owner(session, stream, None if request.group is None else request.group.max_deliveries)
    request.gives, request.transactions = gives, transactions
    request.delivers, request.limit = delivers, limit
    stream_reads.check_countable(request)
    copied_lsn = 0
    if request.group is not None and request.after is None and gives:
        copied_lsn = yield from whole_copies.pass_gaps(session, stream, request.group, request.partitions)
    through_lsn = yield from _end_lsn(session)
    if not session.block.begun:
        through_lsn = max(through_lsn, copied_lsn)  # The statement may have waited before.
    check_owned(session, stream, request.partitions)
    request.transaction, request.through_lsn = session.block.transaction, through_lsn
    hold = None
    if request.group is not None and request.member is not None:
        if session.part is None:
            joins = _joins(session, request.group, request.member)
            hold = stream_reads.begin_member_read(session.database, request, joins=joins)
        else:
            group, member = request.group, request.member
            hold = yield from membership.begin_read(session, session.part, stream, group, member)
        session.positions.holding(hold)
    try:
        if request.is_counted and stream_reads.is_delivery(session.database, request):
            assert request.group is not None
            own = request.partitions if hold is None else list(hold.epochs)
            yield from park_before(session, stream, request.group, own)
        read = stream_reads.read(session.database, request, hold, session.guard.interrupts)
        for gap in read.gaps:
            session.notices.add(gap.message, severity="WARNING", sqlstate="72000", detail=gap.detail)
        reader = _reader(session, read, hold)
        if read.scan is None:
            return _with_segments(session, read, reader, hold, limit)
        return OpenedScan(
            stream,
            read.bounds,
            read.committed,
            read.scan.ends,
            read.scan,
            reader,
            hold,
            request.changes,
            delivery=read.delivery,
        )
    except BaseException:
        session.positions.ended(hold)
        raise


def _is_own(stream: Stream, wanted: st.Scan, parameters: Values, pruning: Pruning, owners: Owners) -> bool:
    """True for a scan without a group of this node's own partitions only; it is read without gathering."""
    if wanted.group is not None:
        return False
    own = owners.partitions.get(owners.local, ())
    return all(partition in own for partition in partitions_of(stream, wanted, parameters, pruning))


@dataclass(frozen=True, slots=True)
class _Asked:
    """The arguments of `open_scan`."""

    wanted: st.Scan
    parameters: Values
    pruning: Pruning
    gives: bool
    limit: int | None
    transactions: int | None


def _gathered(session: Context, stream: Stream, owners: Owners, asked: _Asked) -> Waiting[OpenedScan]:
    """Open a scan of partitions of several nodes: gather the present events of their owners."""
    group = group_of(session, stream, asked.wanted, asked.parameters)
    check_one_owner(session, stream, None if group is None else group.max_deliveries)
    partitions = partitions_of(stream, asked.wanted, asked.parameters, asked.pruning)
    if group is None or asked.wanted.member is None:
        return (yield from _gather(session, stream, owners, asked, group, partitions, None))
    member = text(asked.wanted.member, asked.parameters)
    home, joins = Home(session, stream, group, owners), _joins(session, group, member)
    for last in (False, True):
        read = yield from home.read(member, partitions, gives=asked.gives, joins=joins)
        session.positions.holding(read)
        if session.block.begun:
            session.positions.keep(read)
        try:
            own = [partition for partition in partitions if partition in read.epochs]
            return (yield from _gather(session, stream, owners, asked, group, own, read))
        except BaseException as error:
            read.void("the latest read failed or was cancelled")
            session.positions.ended(read)
            later = epoch_told(error) if isinstance(error, SerializationFailure) else None
            if later is None or last:
                raise
            yield from home.passed(later)
    raise AssertionError("the last one returns or raises")


def _gather(
    session: Context,
    stream: Stream,
    owners: Owners,
    asked: _Asked,
    group: Group | None,
    partitions: list[int],
    read: MemberRead | None,
) -> Waiting[OpenedScan]:
    wanted = asked.wanted
    parsed = None if wanted.after is None else parsed_after(stream, wanted.after, asked.parameters)
    after = gathering.after_of(stream.name, owners, partitions, parsed)
    whole = replace(
        wanted,
        stream=st.Name((stream.schema, stream.name)),
        topic=True,
        group=None if group is None else group.name,
        member=None if read is None else read.name,
    )
    shares = gathering.by_owner(owners, partitions) if asked.limit != 0 else {}
    asks: dict[str, gathering.AskOwner] = {}
    # Only their owners use the committed LSNs of other nodes' partitions.
    committed = dict.fromkeys(partitions, 0)
    again: dict[int, frozenset[int]] = {}
    for node, own in shares.items():
        share = gathering.share_of(whole, own, after)
        epochs = None if read is None else {partition: read.epochs[partition] for partition in own}
        # A group's read counts to its end, including events that WHERE has rejected.
        part = Part(owners.epoch, epochs=epochs, within=asked.pruning.within if group is None else None)
        if node == owners.local:
            asks[node] = partial(
                _own_part, session, stream, share, part, asked.transactions, committed, again
            )
        else:
            asks[node] = gathering.asks_there(session, part, node, share, asked.transactions)
    estimate = session.owner_cache.of(stream.stream_id)
    found = yield from gathering.gather(
        session, stream.name, shares, asks, gathering.Bound(asked.limit, asked.transactions), estimate
    )
    reader = None
    if group is not None:
        key = (stream.stream_id, group.group_id)
        seeks = session.database.offsets.seeks(group.group_id)
        reader = session.positions.reader(key, read, committed, seeks, transaction=session.block.begun)
        if wanted.after is not None:
            session.positions.void(reader, "the latest read of the group began elsewhere, with AFTER")
            reader = None
    scan = gathering.GatheredScan(found)
    # Events that are returned again are at or before the committed LSN, which does not go back.
    ends = {partition: max(lsn, committed[partition]) for partition, lsn in found.ends().items()}
    return OpenedScan(
        stream, ScanRange({}, 0), committed, ends, scan, reader, read, gathered=found, again=again
    )


def _own_part(
    session: Context,
    stream: Stream,
    share: st.Scan,
    part: Part,
    transactions: int | None,
    committed: dict[int, int],
    again: dict[int, frozenset[int]],
    limit: int | None,
) -> Waiting[gathering.OwnerEvents]:
    """Read this node's own partitions for a gathering scan.

    Args:
        committed, again: filled with the entries of these partitions, as in `OpenedScan`.
    """
    with own_share(session, part):
        opened = yield from open_scan(
            session, stream, share, (), Pruning(), gives=True, transactions=transactions, limit=limit
        )
    committed.update(opened.committed)
    if share.member is None:
        again.update(opened.released)
    # A member has a read position here as at other owners; without a member only the gathering scan has one.
    tracker, scan = Tracker(session, opened, moves=share.member is not None), opened.first
    session.guard.interrupts.add(scan.interrupt)
    try:
        if scan.hot:
            events = gathering.read_here(scan, limit, tracker.given)
        else:
            # From the log, on a thread of its own: the present thread may be the event loop's.
            reading = in_thread(lambda: gathering.read_here(scan, limit, tracker.given))
            try:
                yield Wait(reading)
            except BaseException:
                scan.interrupt()
                raise
            events = reading.result()
        if scan.exhausted:
            tracker.complete()
        else:
            tracker.stopped()
        return events
    finally:
        session.guard.interrupts.discard(scan.interrupt)
        tracker.ended()


def _joins(session: Context, group: Group, member: str) -> bool:
    """True if a read makes its name a member; not if the member has left while the read waited."""
    return session.waited is None or (group.group_id, member) not in session.waited.left


def _reader(session: Context, read: StreamRead, hold: MemberHold | None) -> Reader | None:
    """The reader whose position a scan sets; None if it sets none."""
    request = read.request
    if request.group is None:
        return None
    key, in_block = (request.stream.stream_id, request.group.group_id), session.block.begun
    share = session.part is not None
    reader = session.positions.reader(
        key, hold, read.committed, read.seeks, transaction=in_block, share=share
    )
    if request.after is None:
        return reader
    # A read at other LSNs, apart from the group's own progress.
    session.positions.void(reader, "the latest read of the group began elsewhere, with AFTER")
    return None


def _with_segments(
    session: Context, read: StreamRead, reader: Reader | None, hold: MemberHold | None, limit: int | None
) -> OpenedScan:
    """Open a scan in which some partitions begin in their segment from another node.

    LSNs of two nodes have no common order, so the scan is gathered, like one of several nodes' partitions.
    """
    stream, bounds, segments = read.request.stream, read.bounds, read.segments
    for gap in lost_events(
        stream, session.database.buffers.of(stream), bounds, segments.keys() - bounds.from_start
    ):
        raise gap.error()
    behind = {number: max(lsn, segments.get(number, 0)) for number, lsn in bounds.after.items()}
    scan = session.database.buffers.scan(stream, replace(bounds, after=behind))
    session.guard.interrupts.add(scan.interrupt)
    try:
        # Events count when they are given, not when they are gathered.
        here = gathering.read_here(scan, limit, lambda lsns, partitions: None)
    finally:
        session.guard.interrupts.discard(scan.interrupt)
    parts = {"": gathering.read_segments(session, stream, bounds, segments, limit), "here": here}
    found = gathering.merged(parts, limit, read.request.transactions)
    gathered, committed = gathering.GatheredScan(found), read.committed
    ends = {partition: max(lsn, committed.get(partition, 0)) for partition, lsn in found.ends().items()}
    made = OpenedScan(stream, bounds, committed, ends, gathered, reader, hold, gathered=found)
    return replace(made, bounds=ScanRange({}, 0), again=made.released)


def new_scan(session: Context, opened: OpenedScan, planned: Events | None) -> Scan | GatheredScan:
    """Begin to read an opened scan.

    Args:
        planned: the query of events with the columns of ENVELOPE CHANGES; None for another envelope.
    """
    if opened.gathered is not None:
        return GatheredScan(opened.gathered)
    return session.database.buffers.scan(
        opened.stream, opened.bounds, changes=opened.changes, planned=planned
    )


def _end_lsn(session: Context) -> Waiting[int]:
    if session.block.begun:
        return (yield from stream_reads.end_lsn(session.database, session.block.touched()))
    if session.waited is not None:
        # The awaited events are readable; later commits may not be yet.
        return session.waited.through_lsn
    return (yield from stream_reads.end_lsn(session.database, None))
