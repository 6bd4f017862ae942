"""Opening a stream scan: its group and member, its partitions, its start and its end.

A scan's end is fixed when it opens. Outside a transaction it is the last LSN committed by then (and the scan
waits until that is readable), or the last readable LSN when a WAIT ended. Inside a transaction it is the last
LSN in the transaction's own MVCC snapshot, read from `commits` on the session's cursor, so that the stream
agrees with the tables.
Source: docs/sql.md, "Reading".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ...engine import stream_reads
from ...engine.buffers.scan import Scan, ScanRange, lost_events
from ...engine.catalog.streams import Group, Stream
from ...engine.duck.cursors import ask
from ...engine.errors import SerializationFailure
from ...engine.groups.coordination import epoch_told
from ...engine.groups.member import MemberHold
from ...engine.log.queries import Events
from ...engine.offset_commits import hold_in_transaction
from ...engine.parts import LastRead
from ...engine.stream_reads import Beginning
from ...engine.waiting import Wait, Waiting, in_thread
from ..cluster import gathering, membership
from ..cluster.gathering import GatheredScan
from ..cluster.membership import Home, MemberRead
from ..cluster.shares import check_owned, own_share, remote_owners
from ..language import statements as st
from ..peers.owners import Owners
from ..peers.requests import Part
from ..session_state.context import Context
from ..session_state.positions import Reader
from ..session_state.run_text import Values, text
from . import whole_copies
from .narrowing import Pruning, narrowed_here
from .start_positions import beginning, group_of, parsed_after, partitions_of
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
) -> Waiting[OpenedScan]:
    """Fix the events of a scan.

    Args:
        gives: True if the query can give events of it.
        transactions: the largest number of transactions that it gives; None without that bound.
        limit: the largest number of events that are wanted, the first ones; None for all.

    Raises:
        UndefinedObject: no such group.
        InvalidParameterValue: no such partition.
        Gap: its first events have been trimmed.
    """
    owners = remote_owners(session, stream)
    if owners is not None and not _is_own(stream, wanted, parameters, pruning, owners):
        asked = _Asked(wanted, parameters, pruning, gives, limit, transactions)
        return (yield from _gathered(session, stream, owners, asked))
    pruning = narrowed_here(session, stream, pruning)
    group = group_of(session, stream, wanted, parameters)
    partitions = partitions_of(stream, wanted, parameters, pruning)
    copied_lsn = 0
    if group is not None and wanted.after is None and gives:
        copied_lsn = yield from whole_copies.pass_gaps(session, stream, group, partitions)
    through_lsn = yield from _end_lsn(session)
    if not session.block.begun:
        through_lsn = max(through_lsn, copied_lsn)  # It may have waited before.
    check_owned(session, stream, partitions)
    hold = None
    if group is not None and wanted.member is not None:
        member, part = text(wanted.member, parameters), session.part
        if part is None:
            hold = _member_reads(session, stream, group, member, partitions, gives=gives)
        else:
            hold = yield from membership.begin_read(session, part, stream, group, member)
        session.positions.holding(hold)
        if session.block.begun:
            hold_in_transaction(session.database, session.block.opened(), hold)
        # Earlier owners of the member's partitions have committed all that they could.
        partitions = [partition for partition in partitions if partition in hold.epochs]
    begun = _Begun(group, hold, partitions, through_lsn, gives, transactions, limit)
    try:
        return _opened(session, stream, wanted, parameters, pruning, begun)
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
    # Events that are given again stand at or before the committed LSN, which does not go back.
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


@dataclass(frozen=True, slots=True)
class _Begun:
    """The reader, the partitions and the end of a scan that is about to be opened."""

    group: Group | None
    hold: MemberHold | None
    partitions: list[int]
    through_lsn: int
    gives: bool
    transactions: int | None
    limit: int | None


def _member_reads(
    session: Context, stream: Stream, group: Group, member: str, partitions: Sequence[int], *, gives: bool
) -> MemberHold:
    """Begin a member's read; a transaction that reads keeps the member's present partitions."""
    joins = _joins(session, group, member)
    return session.database.members.begin_read(
        group, stream.partitions, member, session.user, partitions, gives=gives, joins=joins
    )


def _joins(session: Context, group: Group, member: str) -> bool:
    """True if a read makes its name a member; not if the member has left while the read waited."""
    return session.waited is None or (group.group_id, member) not in session.waited.left


def _opened(
    session: Context, stream: Stream, wanted: st.Scan, parameters: Values, pruning: Pruning, begun: _Begun
) -> OpenedScan:
    """Open the scan of these partitions."""
    group, hold = begun.group, begun.hold
    begins = beginning(
        session, stream, wanted, parameters, pruning, group, begun.partitions, begun.through_lsn
    )
    bounds, committed = begins.bounds, begins.committed
    if begins.past_gaps or (committed and not begun.gives):  # A read of the columns loses nothing.
        bounds, gaps = stream_reads.past_gaps(session.database, stream, bounds)
        for gap in gaps:
            session.notices.add(gap.message, severity="WARNING", sqlstate="72000", detail=gap.detail)
    if group is not None and wanted.after is None:
        # Includes events behind a gap, so it follows the place from which the read goes on.
        aside = stream_reads.aside_of(session.database, session.block.transaction, group, bounds.after)
        if aside is not None:
            bounds = replace(bounds, aside=aside)
    changes = wanted.envelope != "json"
    moved = stream_reads.moved_parts(session.database, stream, bounds)
    if moved:
        return _with_segments(session, stream, wanted, begun, replace(begins, bounds=bounds), moved)
    first = session.database.buffers.scan(stream, bounds, changes=changes)
    if begun.transactions is not None:
        session.guard.interrupts.add(first.interrupt)
        try:
            end_lsn = first.end_of_transactions(begun.transactions)
            bounds = replace(bounds, through_lsn=end_lsn, seen_lsn=bounds.through_lsn)
        finally:
            session.guard.interrupts.discard(first.interrupt)
            first.close()
        first = session.database.buffers.scan(stream, bounds, changes=changes)
    reader = _reader(session, stream, wanted, begun, begins)
    return OpenedScan(stream, bounds, committed, first.ends, first, reader, hold, changes)


def _reader(
    session: Context, stream: Stream, wanted: st.Scan, begun: _Begun, begins: Beginning
) -> Reader | None:
    """The reader whose position a scan sets; None where it sets none."""
    if begun.group is None:
        return None
    key, in_block = (stream.stream_id, begun.group.group_id), session.block.begun
    reader = session.positions.reader(key, begun.hold, begins.committed, begins.seeks, transaction=in_block)
    if wanted.after is None:
        _note_read(session, begun.group, begun.hold, begins.committed)
        return reader
    # A read at other LSNs, apart from the group's own progress.
    session.positions.void(reader, "the latest read of the group began elsewhere, with AFTER")
    return None


def _with_segments(
    session: Context,
    stream: Stream,
    wanted: st.Scan,
    begun: _Begun,
    begins: Beginning,
    moved: Mapping[int, int],
) -> OpenedScan:
    """Open a scan in which some partitions begin in their segment from another node.

    LSNs of two nodes have no common order, so the scan is gathered, like one of several nodes' partitions.
    """
    bounds, buffer = begins.bounds, session.database.buffers.of(stream)
    for gap in lost_events(stream, buffer, bounds, moved.keys() - bounds.from_start):
        raise gap.error()
    behind = {number: max(lsn, moved.get(number, 0)) for number, lsn in bounds.after.items()}
    scan = session.database.buffers.scan(stream, replace(bounds, after=behind))
    session.guard.interrupts.add(scan.interrupt)
    try:
        # Events count when they are given, not when they are gathered.
        here = gathering.read_here(scan, begun.limit, lambda lsns, partitions: None)
    finally:
        session.guard.interrupts.discard(scan.interrupt)
    parts = {"": gathering.read_segments(session, stream, bounds, moved, begun.limit), "here": here}
    found = gathering.merged(parts, begun.limit, begun.transactions)
    reader = _reader(session, stream, wanted, begun, begins)
    gathered, committed = gathering.GatheredScan(found), begins.committed
    ends = {partition: max(lsn, committed.get(partition, 0)) for partition, lsn in found.ends().items()}
    made = OpenedScan(stream, bounds, committed, ends, gathered, reader, begun.hold, gathered=found)
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
        transaction = session.block.touched()
        row = ask(transaction.cursor, "SELECT coalesce(max(last_lsn), 0) FROM ducktail.commits")
        through_lsn = int(row[0])
    elif session.waited is not None:
        # The awaited events are readable; later commits may not be yet.
        return session.waited.through_lsn
    else:
        through_lsn = session.database.commits.last_lsn
    yield from session.database.publisher.wait_published(through_lsn)
    return through_lsn


def _note_read(session: Context, group: Group, hold: MemberHold | None, committed: Mapping[int, int]) -> None:
    """Note the LSNs from which this transaction first read the group; its commit is compared with them."""
    member = None if hold is None else hold.member.name
    read = LastRead(session.database.clock.now_us(), session.user, member)
    for partition in committed:
        session.database.last_reads[group.group_id, partition] = read
    if session.block.begun:
        first = session.block.opened().first_reads.setdefault(group.group_id, {})
        for partition, lsn in committed.items():
            first.setdefault(partition, lsn)
