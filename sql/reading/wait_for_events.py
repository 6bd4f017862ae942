"""WAIT '5 s' [FOR n]: a statement waits for events of its stream scans before it begins.

A wait comes before all other work of a statement: the statement then has no snapshot, no lock and no thread,
only polls (engine/groups/polls.py) and a future. Scans wait together: when one of them is woken all are
checked, and the wait is over when each has its events or has waited its own interval from the statement's
beginning. Then the statement runs as it would without a wait; its rights are checked again, and its scans
begin at the positions of that time.

A member that waits looks at intervals, which is its heartbeat. It holds none of its partitions meanwhile:
they may be handed over, which ends the wait. Partitions that it gets join the wait. LEAVE CONSUMER GROUP ends
the wait as well, and the statement reads without joining again. A member whose scan has its events, or does
not wait, sends heartbeats in the same way while another scan of the statement waits.

The awaited events are those of the scan: events of its partitions, after its group's committed LSN or its
AFTER, and within the bounds of WHERE on partition, lsn and commit_time. Bounds on commit_time are converted
at each look, as a time that is still to come has no LSN yet.
Source: docs/sql.md, "WAIT".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from numbers import Number

from ...engine.buffers.buffer import StreamBuffer
from ...engine.buffers.scan import lost_events
from ...engine.catalog.streams import Group, Stream
from ...engine.definitions.parking import passed_over
from ...engine.errors import ActiveTransaction, InvalidParameterValue, NotSupported
from ...engine.groups.polls import Poll
from ...engine.stream_reads import Beginning, aside_of, group_gaps
from ...engine.system_views.group_rows import position_of
from ...engine.values.temporal_input import interval_parts
from ...engine.waiting import Wait, Waiting, first_of, first_true
from ..cluster import gathering
from ..cluster.awaiting import Heartbeat, OwnersWait, send_heartbeats
from ..cluster.membership import Home
from ..cluster.shares import remote_owners
from ..language import statements as st
from ..language.parse import Query
from ..read_shape.shape import Shape
from ..session_state.context import Context, Waited
from ..session_state.run_text import Values, number, text, value_of
from ..session_state.statement import ParsedStatement
from ..text.units import parse_interval_ms
from .narrowing import Pruning, in_lsns, pruning, within_times
from .open_scan import open_scan
from .scans import bound_shapes, stream_of
from .start_positions import beginning, group_of, parsed_after, partitions_of

# A reader without an answer for longer cannot tell a wait from a dead server: it has to ask again.
WAIT_MS_MAX = 24 * 3600 * 1000
# The number of heartbeats of a waiting member within its group's session_timeout.
HEARTBEATS = 3
# The shortest time between two looks for members that have timed out.
LOOK_S_MIN = 0.01


@dataclass(slots=True)
class Waiter:
    """One scan that waits.

    Args:
        ms: interval of WAIT, in milliseconds.
        poll: the poll on which it waits.
        pruned: the bounds of WHERE on partition and lsn.
        owned: the partitions that its member owned at the last look.
        joined: True once its member has joined: a member that is gone then may have been taken out by LEAVE.
        over: True once it waits no more; its member still sends heartbeats.
        places: partition -> ((LSN, the buffer's count of renumberings), number of events at or before the
            LSN), where the log was queried.
    """

    shape: Shape
    ms: int
    poll: Poll
    pruned: Pruning
    owned: frozenset[int] = frozenset()
    joined: bool = False
    over: bool = False
    places: dict[int, tuple[tuple[int, int], int]] = field(default_factory=dict)

    @property
    def stream(self) -> Stream:
        """The stream that it reads."""
        return self.poll.stream


def wait(session: Context, statement: ParsedStatement, parameters: Values) -> Waiting[Waited | None]:
    """Wait for the events that a statement's scans ask for.

    Returns:
        The outcome; None where no scan had to wait.

    Raises:
        InvalidParameterValue: the value is no interval, or too long.
        NotSupported: several scans wait, and one of them is of another node's stream.
        ActiveTransaction: the transaction has its snapshot, or a lock.
        Gap: the next event has been trimmed, so there is nothing to wait for.
        UndefinedObject: no such stream or group, or it was dropped meanwhile.
        ProgramLimitExceeded: too many readers wait already.
    """
    query = statement.node
    assert isinstance(query, Query)
    database = session.database
    away = [scan for scan in query.scans if scan.wait is not None and scan.away is not None]
    waiters = list(_waiters(session, statement, query, parameters))
    if away and (waiters or len(away) > 1):
        raise NotSupported(
            "WAIT of several scans is not supported where one of them is of another node's stream",
            hint="Wait for one of them, and read with the others in a statement of its own.",
            position=away[0].stream.position or None,
        )
    if waiters or away:
        _check_first(session)
    if not waiters:
        return None  # A scan of another node's stream waits at its owner.
    waiters += _beside(session, statement, query, parameters)
    began_s = database.clock.monotonic_s()
    try:
        left = yield from _wait_all(session, waiters, parameters, began_s)
    finally:
        for waiter in waiters:
            database.polls.leave(waiter.poll)
    return Waited(
        database.publisher.published_lsn,
        {waiter.shape.scan.stream.parts: waiter.stream.stream_id for waiter in waiters},
        left,
    )


def _wait_all(
    session: Context, waiters: list[Waiter], parameters: Values, began_s: float
) -> Waiting[frozenset[tuple[int, str]]]:
    """Wait until each scan has enough events, or its time is up.

    Returns:
        Group ids and members that have been taken out meanwhile.
    """
    database = session.database
    gathers = [waiter for waiter in waiters if remote_owners(session, waiter.stream)]
    own = [waiter for waiter in waiters if waiter not in gathers]
    left: set[tuple[int, str]] = set()
    # Committed events are already there: the wait is for later ones.
    yield from database.publisher.wait_published(database.commits.last_lsn)
    heartbeats = {
        waiter.poll: _heartbeat(session, waiter, parameters)
        for waiter in gathers
        if waiter.poll.member is not None
    }
    if own and heartbeats:
        works = [
            _wait_here_only(session, own, parameters, began_s),
            send_heartbeats(list(heartbeats.values())),
        ]
        yield from first_true(works, database.clock.monotonic_s)
    elif own:
        yield from _wait(session, own, parameters, began_s)
    polls = [waiter.poll for waiter in own if waiter.poll.left]
    left |= {(p.group_id, p.member) for p in polls if p.group_id is not None and p.member is not None}
    # One after the other takes as long as all at once, as each has an end time of its own.
    for waiter in sorted(gathers, key=lambda waiter: waiter.poll.member is not None):
        if not waiter.over:
            yield from _wait_everywhere(session, waiter, parameters, began_s, heartbeats)
    left |= {
        (heartbeat.home.group.group_id, heartbeat.member)
        for heartbeat in heartbeats.values()
        if heartbeat.left
    }
    return frozenset(left)


def _wait_here_only(
    session: Context, waiters: list[Waiter], parameters: Values, began_s: float
) -> Waiting[bool]:
    yield from _wait(session, waiters, parameters, began_s)
    return True


def _heartbeat(session: Context, waiter: Waiter, parameters: Values) -> Heartbeat:
    """The heartbeat of the member of a scan with partitions on other nodes."""
    stream, scan = waiter.stream, waiter.shape.scan
    owners, group = remote_owners(session, stream), group_of(session, stream, scan, parameters)
    assert owners is not None and group is not None and waiter.poll.member is not None
    partitions = partitions_of(stream, scan, parameters, waiter.pruned)
    return Heartbeat(Home(session, stream, group, owners), waiter.poll.member, partitions)


def _wait_everywhere(
    session: Context, waiter: Waiter, parameters: Values, began_s: float, heartbeats: Mapping[Poll, Heartbeat]
) -> Waiting[None]:
    """Wait for events of a topic with partitions on other nodes: at all owners at once.

    Args:
        heartbeats: the heartbeats of the statement's members on such topics.
    """
    stream, scan = waiter.stream, waiter.shape.scan
    owners = remote_owners(session, stream)
    assert owners is not None
    group = group_of(session, stream, scan, parameters)
    partitions = partitions_of(stream, scan, parameters, waiter.pruned)
    parsed = None if scan.after is None else parsed_after(stream, scan.after, parameters)
    after = gathering.after_of(stream.name, owners, partitions, parsed)
    name = st.Name((stream.schema, stream.name))
    group_name = None if group is None else group.name
    whole = replace(scan, stream=name, topic=True, group=group_name, member=None)

    def here(share: st.Scan, ms: int, events: int) -> Waiting[int]:
        return _wait_here(session, waiter, share, ms, events)

    awaited = OwnersWait(session, stream, owners, whole, after, waiter.poll.events, here)
    ends_s = began_s + waiter.ms / 1000
    heartbeat, others = (
        heartbeats.get(waiter.poll),
        [one for poll, one in heartbeats.items() if poll is not waiter.poll],
    )
    if heartbeat is None:
        yield from awaited.wait_beside(partitions, ends_s, others)
    else:
        yield from awaited.wait_as(heartbeat, ends_s, others)


def _wait_here(session: Context, waiter: Waiter, share: st.Scan, ms: int, events: int) -> Waiting[int]:
    """Wait for events of this node's own partitions.

    Args:
        events: number of events that ends the wait.

    Returns:
        The number of readable events, at most `events`.
    """
    database = session.database
    poll = Poll(session.id, waiter.stream, None, events)
    here = Waiter(replace(waiter.shape, scan=share, facts=()), ms, poll, Pruning())
    yield from database.publisher.wait_published(database.commits.last_lsn)
    try:
        if ms:
            yield from _wait(session, [here], (), database.clock.monotonic_s())
    finally:
        database.polls.leave(poll)
    opened = yield from open_scan(session, waiter.stream, share, (), Pruning(), gives=True)
    return gathering.read_here(opened.first, events, lambda lsns, partitions: None).count


def _waiters(
    session: Context, statement: ParsedStatement, query: Query, parameters: Values
) -> Iterator[Waiter]:
    """The scans that wait; a scan that reads nothing, or has an interval of 0, does not."""
    for shape in bound_shapes(session, statement, query, parameters):
        scan = shape.scan
        if scan.wait is None or scan.away is not None:
            continue
        ms = interval_ms(scan.wait, parameters)
        events = 1 if scan.wait_for is None else number(scan.wait_for, parameters, "FOR")
        if not events:
            raise InvalidParameterValue("FOR must be at least 1")
        if shape.empty or shape.transactions == 0 or not ms:
            continue
        stream = stream_of(session, shape)
        member = None if scan.member is None else text(scan.member, parameters)
        pruned = pruning(shape.facts, stream.partitions, parameters) or Pruning()
        yield Waiter(shape, ms, Poll(session.id, stream, member, events), pruned)


def _beside(
    session: Context, statement: ParsedStatement, query: Query, parameters: Values
) -> Iterator[Waiter]:
    """Members' scans that do not wait in a statement that does; heartbeats keep their members meanwhile."""
    for shape in bound_shapes(session, statement, query, parameters):
        scan = shape.scan
        if scan.wait is not None or scan.member is None or scan.away is not None:
            continue
        stream = stream_of(session, shape)
        if shape.empty or shape.transactions == 0:
            continue
        poll = Poll(session.id, stream, text(scan.member, parameters))
        yield Waiter(shape, 0, poll, Pruning(), over=True)


def interval_ms(wait: st.Text, parameters: Values) -> int:
    """The interval of WAIT, in milliseconds.

    Raises:
        InvalidParameterValue: the value is no interval of days or less, or out of range.
    """
    value = value_of(wait, parameters)
    if isinstance(value, str):
        ms = parse_interval_ms(value)
    elif isinstance(value, timedelta):
        ms = value // timedelta(milliseconds=1)
    elif (parts := interval_parts(value)) is not None:
        months, days, us = parts
        if months:
            raise InvalidParameterValue("WAIT takes an interval of days and less, not one of months")
        value = timedelta(days=days, microseconds=us)
        ms = value // timedelta(milliseconds=1)
    else:
        is_number = isinstance(value, Number) and not isinstance(value, bool)
        what = "a number" if is_number else "a value of another type"
        raise InvalidParameterValue(
            f"WAIT takes an interval, not {what}: {value}", hint="Give a unit, such as '5 s'."
        )
    if not 0 <= ms <= WAIT_MS_MAX:
        raise InvalidParameterValue(
            f'WAIT takes an interval of at most {WAIT_MS_MAX // 3_600_000} hours, not "{value}"'
        )
    return ms


def _check_first(session: Context) -> None:
    """Refuse to wait with a snapshot, which would not see new events, or with a lock that others need."""
    transaction = session.block.transaction
    if transaction is None or not (
        transaction.snapshot_counter is not None or transaction.has_writer_lock or transaction.locked_groups
    ):
        return
    raise ActiveTransaction(
        "WAIT must be the first statement of a transaction that touches the database",
        hint="Poll in autocommit, or wait in the transaction's first statement: its snapshot is taken then.",
    )


def _wait(session: Context, waiters: list[Waiter], parameters: Values, began_s: float) -> Waiting[None]:
    """Wait until each scan has enough events, or its time is up."""
    clock = session.database.clock
    while True:
        looks_s = []
        for waiter in waiters:
            looks_s.append((yield from _look(session, waiter, parameters)))
        waited_s = clock.monotonic_s() - began_s
        for waiter in waiters:
            waiter.over = waiter.over or waiter.ms / 1000 <= waited_s
            if waiter.over:
                session.database.polls.narrow(waiter.poll, {})
        left_s = [waiter.ms / 1000 - waited_s for waiter in waiters if not waiter.over]
        if not left_s:
            return
        yield Wait(first_of([waiter.poll.future for waiter in waiters]), min(*left_s, *looks_s))


def _look(session: Context, waiter: Waiter, parameters: Values) -> Waiting[float]:
    """Check a scan for events, and end its wait if it has enough; the look is its member's heartbeat.

    Returns:
        Seconds until the next look, if nothing wakes the scan before.
    """
    if waiter.poll.ended is not None:
        raise waiter.poll.ended
    database, scan, member = session.database, waiter.shape.scan, waiter.poll.member
    # The stream may have got another name, or other options, since.
    waiter.poll.stream = database.catalog.present(waiter.stream) or waiter.stream
    narrowed = in_lsns(session, within_times(session, waiter.shape.facts, waiter.pruned, parameters))
    group = group_of(session, waiter.stream, scan, parameters)
    partitions = partitions_of(waiter.stream, scan, parameters, narrowed)
    # The poll is armed before the look: later events wake it.
    awaited = () if waiter.over else partitions
    database.polls.arm(waiter.poll, awaited, None if group is None else group.group_id)
    if waiter.poll.left:
        waiter.over = True
        return WAIT_MS_MAX / 1000
    if group is not None and member is not None:
        partitions = _of_member(session, waiter, group, member, partitions)
        # A member that has lost a partition gets an answer, without events of the partition.
        waiter.over = waiter.over or not waiter.owned.issubset(partitions)
        waiter.owned = frozenset(partitions)
    elif not partitions:
        waiter.over = True  # There is no partition in which events could come.
    if not waiter.over:
        waiter.over = yield from _is_there(session, waiter, parameters, group, partitions, narrowed)
    return _look_s(session, group, member)


def _of_member(
    session: Context, waiter: Waiter, group: Group, member: str, partitions: list[int]
) -> list[int]:
    """The partitions that the member owns now; a look is a heartbeat, and leaves no hold."""
    members = session.database.members
    count, user, joins = waiter.stream.partitions, session.user, not waiter.joined
    hold = members.begin_read(group, count, member, user, partitions, gives=True, joins=joins)
    if hold.ended and not waiter.poll.left:
        # The member has timed out, for instance while the server stood still: it joins again.
        hold = members.begin_read(group, count, member, user, partitions, gives=True)
    waiter.joined = True
    members.end(hold)
    return [partition for partition in partitions if partition in hold.epochs]


def _look_s(session: Context, group: Group | None, member: str | None) -> float:
    """Seconds until the next look of itself: for a member's heartbeat, and for the time-out of others."""
    if group is None or member is None:
        return WAIT_MS_MAX / 1000
    next_s = session.database.members.next_expiry_s(group.group_id)
    own_s = group.session_timeout_ms / 1000 / HEARTBEATS
    return own_s if next_s is None else min(own_s, max(next_s, LOOK_S_MIN))


def _is_there(
    session: Context,
    waiter: Waiter,
    parameters: Values,
    group: Group | None,
    partitions: list[int],
    narrowed: Pruning,
) -> Waiting[bool]:
    """True if the wait is over; else the poll has the places from which it counts.

    A gap in the scan's events is an error.
    """
    database, stream, poll = session.database, waiter.stream, waiter.poll
    buffer = database.buffers.of(stream)
    while True:
        readable_lsn = database.publisher.published_lsn
        if buffer.failure is not None or database.buffers.is_unlike(stream):
            return True  # The read reports the error.
        if narrowed.to_lsn is not None and narrowed.to_lsn <= readable_lsn:
            return True  # Events to come are outside the bounds.
        begins = beginning(
            session, stream, waiter.shape.scan, parameters, narrowed, group, partitions, readable_lsn
        )
        copies = group is not None and group.on_gap == "snapshot" and waiter.shape.scan.after is None
        if (
            copies
            and group is not None
            and group_gaps(session.database, session.block.transaction, stream, group, partitions)
        ):
            return True  # The read gets a whole copy instead.
        counted = _counted(session, waiter, group, begins, narrowed)
        if isinstance(counted, _Publishing):
            # All events of the round are readable soon.
            yield from database.publisher.wait_published(counted.through_lsn)
            continue
        if counted is None:
            return True
        database.polls.narrow(poll, counted.after)
        return counted.found >= poll.events


@dataclass(frozen=True, slots=True)
class _Publishing:
    """A round is being published, up to this LSN: events in the buffers cannot be counted now."""

    through_lsn: int


@dataclass(frozen=True, slots=True)
class _Counted:
    """The events that a look has found.

    Args:
        found: number of readable events of the scan.
        after: partition -> number of its events before those.
    """

    found: int
    after: dict[int, int]


def _counted(
    session: Context, waiter: Waiter, group: Group | None, begins: Beginning, narrowed: Pruning
) -> _Counted | _Publishing | None:
    """Count the readable events of a scan; None where there is one, and one is enough."""
    database, stream = session.database, waiter.stream
    buffer, readable_lsn = database.buffers.of(stream), begins.bounds.through_lsn
    found, after = 0, {}
    for place in begins.bounds.after:
        span = buffer.span(place, max(begins.bounds.after[place], narrowed.from_lsn - 1), readable_lsn)
        _check_gap(stream, buffer, begins, place, span.edge_lsn)
        start, before, upto = span.start_lsn, span.start, span.end
        if upto is None or (before is None and span.unbuffered_through_lsn > readable_lsn):
            return _Publishing(span.last_lsn)
        skipped = _aside(session, waiter, group, narrowed, (place, start, readable_lsn))
        if before is None and waiter.poll.events == 1 and skipped is None:
            return None  # The last event that is only in the log counts.
        if before is None:
            counted_from = start, buffer.renumbered
            if waiter.places.get(place, ((-1, 0), 0))[0] != counted_from:
                waiter.places[place] = counted_from, position_of(database, stream, place, buffer, start)
            before = waiter.places[place][1]
        copy = begins.bounds.copy
        before += skipped or 0
        if copy is not None:
            before -= copy.left(place, max(begins.bounds.after[place], narrowed.from_lsn - 1))
        after[place] = before
        found += max(0, upto - before)
    return _Counted(found, after)


def _aside(
    session: Context, waiter: Waiter, group: Group | None, narrowed: Pruning, window: tuple[int, int, int]
) -> int | None:
    """The number of a partition's events that a read passes over as parked, less those that it gives again.

    Args:
        window: the partition, and the LSNs after which and up to which events count.

    Returns:
        None without parked or released events.
    """
    place, low, high = window
    if group is None or waiter.shape.scan.after is not None:
        return None
    aside = aside_of(session.database, session.block.transaction, group, {place: low})
    if aside is None:
        return None
    again = sum(lsn >= narrowed.from_lsn for lsn in aside.released)
    return passed_over(session.database, waiter.stream, aside, place, (low, high)) - again


def _check_gap(stream: Stream, buffer: StreamBuffer, begins: Beginning, place: int, edge_lsn: int) -> None:
    """Refuse a read whose next event of a partition is no longer retained."""
    bounds = begins.bounds
    if bounds.after[place] < edge_lsn and place not in bounds.from_start and not begins.past_gaps:
        raise lost_events(stream, buffer, bounds, [place])[0].error()
