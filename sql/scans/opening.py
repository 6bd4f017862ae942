"""Opening a stream scan: whose events, from where in each partition, up to where.

A scan's end is fixed when it opens. Outside a transaction it is the last LSN committed by then (and
the scan waits until that is readable), or what was readable when a WAIT ended; inside, it is the last
one in the transaction's own MVCC snapshot, read from `commits` on the session's cursor, so that the
stream agrees with the tables.
Source: docs/sql.md, "Reading".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ...engine.asking import ask
from ...engine.buffers.scan import Scan, ScanRange, gone
from ...engine.errors import InvalidParameterValue, SerializationFailure
from ...engine.groups.copying import copy_of
from ...engine.groups.parking import parked_of
from ...engine.groups.places import check_no_hole, last_lsn_before
from ...engine.live_source import LastRead
from ...engine.log.queries import Events
from ...engine.members.assigned import epoch_told
from ...engine.members.member import Hold
from ...engine.offsets.parked import RELEASED, Aside
from ...engine.streams.streams import Group, Stream
from ...engine.waiting import Wait, Waiting, in_thread
from ..arguments import Values, number, text, value_of
from ..context import Context
from ..language import statements as st
from ..language.position_text import parse_after
from ..peers.owners import Owners
from ..peers.part import Part
from ..positions import Reader
from ..runners import whole_copies
from ..runners.offset_statements import committed_lsns, keep_in_transaction
from ..spread import fencing, gathering
from ..spread.gathering import GatheredScan
from ..spread.membership import Home, MemberRead
from ..spread.shares import check_owned, own_share, spread
from .opened import Opened
from .tracking import Tracker


@dataclass(frozen=True, slots=True)
class Pruning:
    """What a query's WHERE says of a scan beyond its own clauses.

    Args:
        partitions: the only ones that can pass, None for all.
        from_lsn, to_lsn: bounds of the LSNs that can pass, both inclusive.
        from_us, to_us: bounds of the commit times, both inclusive, in microseconds since 1970; each owner
            makes LSNs of them, as they rise together.
    """

    partitions: frozenset[int] | None = None
    from_lsn: int = 0
    to_lsn: int | None = None
    from_us: int | None = None
    to_us: int | None = None

    @property
    def within(self) -> tuple[int | None, ...] | None:
        """The bounds as a share has them; None where there are none."""
        bounds = (self.from_lsn or None, self.to_lsn, self.from_us, self.to_us)
        return None if bounds == (None,) * len(bounds) else bounds


def lsn_before(session: Context, at_us: int) -> int:
    """The last LSN that was committed before a time; of one to come, the last one so far."""
    commits = session.database.commits
    with session.database.catalog.mutex:  # LSN and time of the last commit are of the same one.
        if at_us > commits.now_us():
            return commits.last_lsn
    return last_lsn_before(session.database, at_us)


def in_lsns(session: Context, pruning: Pruning) -> Pruning:
    """Bounds of commit times as bounds of this database's LSNs."""
    low, high = pruning.from_lsn, pruning.to_lsn
    if pruning.from_us is not None:
        low = max(low, lsn_before(session, pruning.from_us) + 1)
    # What is still to come may pass.
    if pruning.to_us is not None and pruning.to_us < session.database.commits.now_us():
        bound = last_lsn_before(session.database, pruning.to_us + 1)
        high = bound if high is None else min(high, bound)
    return Pruning(pruning.partitions, low, high)


def _here(session: Context, stream: Stream, pruning: Pruning) -> Pruning:
    """What a WHERE says of this node's own partitions: that of a query here, or of one whose share it is."""
    part = session.part
    if part is not None and part.within is not None:
        low, high, from_us, to_us = part.within
        pruning = Pruning(pruning.partitions, low or 0, high, from_us, to_us)
    if session.database.catalog.segments.of(stream.stream_id):
        # Of events that came from another node nobody knows here which LSN was committed when.
        return replace(pruning, from_us=None, to_us=None)
    return in_lsns(session, pruning)


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
) -> Waiting[Opened]:
    """Fix what a scan gives.

    Args:
        gives: whether the query can give events of it.
        transactions: how many it gives at most; None without that bound.
        limit: how many of its events are wanted at most, the first ones; None for all.

    Raises:
        UndefinedObject: 42704, no such group. InvalidParameterValue: 22023, no such
        partition. Gap: 72000, what it begins with has been trimmed.
    """
    owners = spread(session, stream)
    if owners is not None and not _is_own(stream, wanted, parameters, pruning, owners):
        asked = _Asked(wanted, parameters, pruning, gives, limit, transactions)
        return (yield from _gathered(session, stream, owners, asked))
    pruning = _here(session, stream, pruning)
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
            hold = yield from fencing.begin_read(session, part, stream, group, member)
        session.positions.holding(hold)
        if session.block.begun:
            keep_in_transaction(session, session.block.opened(), hold)
        # In those that are its own, whoever had them before has committed what he could.
        partitions = [partition for partition in partitions if partition in hold.epochs]
    begun = _Begun(group, hold, partitions, through_lsn, transactions, limit)
    try:
        return _opened(session, stream, wanted, parameters, pruning, begun)
    except BaseException:
        session.positions.ended(hold)
        raise


def _is_own(stream: Stream, wanted: st.Scan, parameters: Values, pruning: Pruning, owners: Owners) -> bool:
    """Whether a scan without a group is of this node's own partitions only: it is read as any other is."""
    if wanted.group is not None:
        return False
    own = owners.partitions.get(owners.local, ())
    return all(partition in own for partition in partitions_of(stream, wanted, parameters, pruning))


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is asked of a scan: see `open_scan`."""

    wanted: st.Scan
    parameters: Values
    pruning: Pruning
    gives: bool
    limit: int | None
    transactions: int | None


def _gathered(session: Context, stream: Stream, owners: Owners, asked: _Asked) -> Waiting[Opened]:
    """A scan of partitions of several nodes: what their owners give now."""
    group = group_of(session, stream, asked.wanted, asked.parameters)
    partitions = partitions_of(stream, asked.wanted, asked.parameters, asked.pruning)
    if group is None or asked.wanted.member is None:
        return (yield from _gather(session, stream, owners, asked, group, partitions, None))
    member = text(asked.wanted.member, asked.parameters)
    home, waited = Home(session, stream, group, owners), session.waited
    joins = waited is None or (group.group_id, member) not in waited.left
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
) -> Waiting[Opened]:
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
    asks: dict[str, gathering.Ask] = {}
    # Where other nodes' partitions began is asked by none but their owners.
    committed = dict.fromkeys(partitions, 0)
    again: dict[int, frozenset[int]] = {}
    for node, own in shares.items():
        share = gathering.share_of(whole, own, after)
        epochs = None if read is None else {str(partition): read.epochs[partition] for partition in own}
        # What a group has read counts to its end, whatever WHERE has rejected.
        part = Part(owners.epoch, epochs=epochs, within=asked.pruning.within if group is None else None)
        if node == owners.local:
            asks[node] = partial(
                _own_part, session, stream, share, part, asked.transactions, committed, again
            )
        else:
            asks[node] = gathering.asks_there(session, part, node, share, asked.transactions)
    habit = session.habits.of(stream.stream_id)
    found = yield from gathering.gather(
        session, stream.name, shares, asks, gathering.Bound(asked.limit, asked.transactions), habit
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
    # What is given again stands at or before the committed LSN, which does not go back.
    ends = {partition: max(lsn, committed[partition]) for partition, lsn in found.ends().items()}
    return Opened(stream, ScanRange({}, 0), committed, ends, scan, reader, read, gathered=found, again=again)


def _own_part(
    session: Context,
    stream: Stream,
    share: st.Scan,
    part: Part,
    transactions: int | None,
    committed: dict[int, int],
    again: dict[int, frozenset[int]],
    limit: int | None,
) -> Waiting[gathering.Taking]:
    """What this node's own partitions give to a gathering scan.

    Args:
        committed, again: get those of these partitions, as in Opened.
    """
    with own_share(session, part):
        opened = yield from open_scan(
            session, stream, share, (), Pruning(), gives=True, transactions=transactions, limit=limit
        )
    committed.update(opened.committed)
    if share.member is None:
        again.update(opened.released)
    # A member has a read position here as it has at other owners; without one the gathering scan's is all.
    tracker, scan = Tracker(session, opened, moves=share.member is not None), opened.first
    session.guard.interrupts.add(scan.interrupt)
    try:
        if scan.hot:
            taking = gathering.read_here(scan, limit, tracker.given)
        else:
            # From the log, on a thread of its own: this one may be the event loop's.
            reading = in_thread(lambda: gathering.read_here(scan, limit, tracker.given))
            try:
                yield Wait(reading)
            except BaseException:
                scan.interrupt()
                raise
            taking = reading.result()
        if scan.exhausted:
            tracker.complete()
        else:
            tracker.stopped()
        return taking
    finally:
        session.guard.interrupts.discard(scan.interrupt)
        tracker.ended()


@dataclass(frozen=True, slots=True)
class _Begun:
    """What is known of a scan before it is opened: who reads which partitions, and up to where."""

    group: Group | None
    hold: Hold | None
    partitions: list[int]
    through_lsn: int
    transactions: int | None
    limit: int | None


def _member_reads(
    session: Context, stream: Stream, group: Group, member: str, partitions: Sequence[int], *, gives: bool
) -> Hold:
    """A member's read begins; a transaction that reads keeps what is the member's now."""
    members = session.database.members
    waited = session.waited
    joins = waited is None or (group.group_id, member) not in waited.left
    return members.begin_read(
        group, stream.partitions, member, session.user, partitions, gives=gives, joins=joins
    )


def _opened(
    session: Context, stream: Stream, wanted: st.Scan, parameters: Values, pruning: Pruning, begun: _Begun
) -> Opened:
    """The scan of these partitions."""
    group, hold = begun.group, begun.hold
    begins = beginning(
        session, stream, wanted, parameters, pruning, group, begun.partitions, begun.through_lsn
    )
    bounds, committed = begins.bounds, begins.committed
    if begins.past_gaps:
        bounds = _over_gaps(session, stream, bounds)
    if group is not None and wanted.after is None:
        # Of what is behind a gap as well, so not before it is known where the read goes on.
        aside = aside_of(session, group, bounds.after)
        if aside is not None:
            bounds = replace(bounds, aside=aside)
    changes = wanted.envelope != "json"
    moved = moved_parts(session, stream, bounds)
    if moved:
        return _with_segments(session, stream, wanted, begun, replace(begins, bounds=bounds), moved)
    first = session.database.buffers.scan(stream, bounds, changes=changes)
    if begun.transactions is not None:
        session.guard.interrupts.add(first.interrupt)
        try:
            bounds = replace(bounds, through_lsn=first.end_of_transactions(begun.transactions))
        finally:
            session.guard.interrupts.discard(first.interrupt)
            first.close()
        first = session.database.buffers.scan(stream, bounds, changes=changes)
    reader = _reader(session, stream, wanted, begun, begins)
    return Opened(stream, bounds, committed, first.ends, first, reader, hold, changes)


def _reader(
    session: Context, stream: Stream, wanted: st.Scan, begun: _Begun, begins: Beginning
) -> Reader | None:
    """Whose read position a scan sets, if it does."""
    if begun.group is None:
        return None
    key, in_block = (stream.stream_id, begun.group.group_id), session.block.begun
    reader = session.positions.reader(key, begun.hold, begins.committed, begins.seeks, transaction=in_block)
    if wanted.after is None:
        _note_read(session, begun.group, begun.hold, begins.committed)
        return reader
    # A look elsewhere, not the group's own way.
    session.positions.void(reader, "the latest read of the group began elsewhere, with AFTER")
    return None


def _with_segments(
    session: Context,
    stream: Stream,
    wanted: st.Scan,
    begun: _Begun,
    begins: Beginning,
    moved: Mapping[int, int],
) -> Opened:
    """A scan of partitions of which some begin in what they brought from another node.

    LSNs of two nodes have no common order: it is gathered, as of partitions of several nodes.
    """
    bounds, buffer = begins.bounds, session.database.buffers.of(stream)
    with buffer.mutex:
        for number in moved.keys() - bounds.from_start:
            partition, lsn = buffer.partitions[number], bounds.after[number]
            if lsn < partition.trimmed_through_lsn:
                raise gone(stream, partition, number, lsn, bounds).error()
    behind = {number: max(lsn, moved.get(number, 0)) for number, lsn in bounds.after.items()}
    scan = session.database.buffers.scan(stream, replace(bounds, after=behind))
    session.guard.interrupts.add(scan.interrupt)
    try:
        # What of it is given counts, and not what is gathered.
        here = gathering.read_here(scan, begun.limit, lambda lsns, partitions: None)
    finally:
        session.guard.interrupts.discard(scan.interrupt)
    parts = {"": gathering.read_segments(session, stream, bounds, moved, begun.limit), "here": here}
    found = gathering.merged(parts, begun.limit, begun.transactions)
    reader = _reader(session, stream, wanted, begun, begins)
    gathered, committed = gathering.GatheredScan(found), begins.committed
    ends = {partition: max(lsn, committed.get(partition, 0)) for partition, lsn in found.ends().items()}
    made = Opened(stream, bounds, committed, ends, gathered, reader, begun.hold, gathered=found)
    return replace(made, bounds=ScanRange({}, 0), again=made.released)


def moved_parts(session: Context, stream: Stream, bounds: ScanRange) -> dict[int, int]:
    """Of the partitions whose scan begins in their segment: the LSN up to which that goes."""
    segments = session.database.catalog.segments.of(stream.stream_id)
    buffer = session.database.buffers.of(stream)
    return {
        number: segments[number].base_lsn
        for number, lsn in bounds.after.items()
        if number in segments
        and max(lsn, buffer.partitions[number].trimmed_through_lsn) < segments[number].base_lsn
    }


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where a scan begins; nothing is noted of it yet.

    Args:
        committed: as of Opened.
        seeks: how often SEEK has moved the group.
        past_gaps: it goes on behind what has been trimmed, instead of failing.
    """

    bounds: ScanRange
    committed: Mapping[int, int]
    seeks: int
    past_gaps: bool


def beginning(
    session: Context,
    stream: Stream,
    wanted: st.Scan,
    parameters: Values,
    pruning: Pruning,
    group: Group | None,
    partitions: list[int],
    through_lsn: int,
) -> Beginning:
    """Where a scan of these partitions begins now, by its group's committed LSNs or its AFTER."""
    committed: dict[int, int] = {}
    # Before the committed LSNs are looked up: a SEEK in between makes the position void, not wrong.
    seeks = 0 if group is None else session.database.offsets.seeks(group.group_id)
    from_start: frozenset[int] = frozenset()
    if wanted.after is not None:
        after = _after(stream, wanted.after, parameters, partitions)
        for partition, lsn in after.items():
            check_no_hole(session.database, stream, partition, lsn)
        # AFTER 0 is what is retained; a map is exact in each partition that it names.
        from_start = frozenset(partition for partition, lsn in after.items() if lsn == 0)
    elif group is not None:
        standing = committed_lsns(session, stream, group)
        after = committed = {partition: standing[partition] for partition in partitions}
    else:
        after, from_start = dict.fromkeys(partitions, 0), frozenset(partitions)
    copy = None if group is None else copy_of(session.database, session.block.transaction, group)
    bounds = ScanRange(
        after,
        through_lsn,
        from_start,
        pruning.from_lsn,
        pruning.to_lsn,
        _passed(session, group, committed),
        None if group is None else group.name,
        copy=None if copy is None else copy.at(after),
    )
    past_gaps = group is not None and wanted.after is None and group.on_gap == "earliest"
    return Beginning(bounds, committed, seeks, past_gaps)


def aside_of(session: Context, group: Group, after: Mapping[int, int]) -> Aside | None:
    """What of a group's parked events a read from these LSNs has to know.

    What a transaction has released itself is given once it is committed: nobody sees the copies before.
    """
    committed = session.database.parked.get(group.group_id)
    transaction = session.block.transaction
    if committed is None and (transaction is None or not transaction.parked):
        return None
    parked = parked_of(session.database, transaction, group)
    there = committed.events if committed is not None else {}
    released = [lsn for lsn, event in there.items() if event.state == RELEASED]
    return parked.aside(after, released, copy_of(session.database, transaction, group))


def _passed(session: Context, group: Group | None, committed: Mapping[int, int]) -> dict[int, int]:
    """Exact places of the committed LSNs that retention has passed."""
    if group is None:
        return {}
    offsets = session.database.offsets
    places = {p: offsets.passed_position(group.group_id, p, lsn) for p, lsn in committed.items()}
    return {partition: place for partition, place in places.items() if place is not None}


def _over_gaps(session: Context, stream: Stream, bounds: ScanRange) -> ScanRange:
    """The same read, from the first retained event where the next one is gone; told as a WARNING."""
    buffer = session.database.buffers.of(stream)
    with buffer.mutex:
        lost = [
            gone(stream, partition, number, lsn, bounds)
            for number, lsn in bounds.after.items()
            if lsn < (partition := buffer.partitions[number]).trimmed_through_lsn
        ]
    for gap in lost:
        session.notices.add(gap.message, severity="WARNING", sqlstate="72000", detail=gap.detail)
    return replace(bounds, after=bounds.after | {gap.partition: gap.edge.through_lsn for gap in lost})


def new_scan(session: Context, opened: Opened, planned: Events | None) -> Scan | GatheredScan:
    """Begin to read an opened scan.

    Args:
        planned: the events by whose columns it is read, where it is of ENVELOPE CHANGES.
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
        # What it waited for is there; what was committed since may still be on its way.
        return session.waited.through_lsn
    else:
        through_lsn = session.database.commits.last_lsn
    yield from session.database.publisher.wait_published(through_lsn)
    return through_lsn


def group_of(session: Context, stream: Stream, wanted: st.Scan, parameters: Values) -> Group | None:
    """The group as which a scan reads, if it does.

    Raises:
        UndefinedObject: 42704, there is none.
    """
    if wanted.group is None:
        return None
    return session.access.group(stream, text(wanted.group, parameters), session.block.transaction)


def partitions_of(stream: Stream, wanted: st.Scan, parameters: Values, pruning: Pruning) -> list[int]:
    """The partitions that a scan names, and WHERE leaves.

    Raises:
        InvalidParameterValue: 22023, there is no such one.
    """
    if wanted.partitions is None:
        chosen = set(range(stream.partitions))
    else:
        chosen = {number(item, parameters, "PARTITION") for item in wanted.partitions}
    for partition in sorted(chosen):
        if partition >= stream.partitions:
            raise InvalidParameterValue(
                f'stream "{stream.name}" has no partition {partition}',
                detail=f"Its partitions are 0 to {stream.partitions - 1}.",
            )
    if pruning.partitions is not None:
        chosen &= pruning.partitions
    return sorted(chosen)


def _after(stream: Stream, after: st.Scalar, parameters: Values, partitions: list[int]) -> dict[int, int]:
    parsed = parsed_after(stream, after, parameters)
    if isinstance(parsed, int):
        return dict.fromkeys(partitions, parsed)
    # A partition that the map does not name is read from what is retained.
    return {partition: parsed.get(partition, 0) for partition in partitions}


def parsed_after(stream: Stream, after: st.Scalar, parameters: Values) -> int | dict[int, int]:
    """The value of AFTER.

    Raises:
        InvalidParameterValue: 22023, it names a partition that is not there.
    """
    value = value_of(after, parameters)
    parsed = parse_after(value if isinstance(value, int) else str(value))
    for partition in () if isinstance(parsed, int) else parsed:
        if partition >= stream.partitions:
            raise InvalidParameterValue(f'stream "{stream.name}" has no partition {partition}')
    return parsed


def _note_read(session: Context, group: Group, hold: Hold | None, committed: Mapping[int, int]) -> None:
    """Remember from where this transaction first read the group: its commit is held against that."""
    member = None if hold is None else hold.member.name
    read = LastRead(session.database.clock.now_us(), session.user, member)
    for partition in committed:
        session.database.last_reads[group.group_id, partition] = read
    if session.block.begun:
        first = session.block.opened().first_reads.setdefault(group.group_id, {})
        for partition, lsn in committed.items():
            first.setdefault(partition, lsn)
