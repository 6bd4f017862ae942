"""The wait for events of streams: readers check for events, and sleep until they are woken.

Readers of one statement wait together: when one of them is woken all look, and the wait is over when each has
its events or has waited its own interval. A look asks for the read as it would begin now, because positions,
partitions and bounds of time may have changed since; it counts events without reading them.

A member that waits looks at intervals, which is its heartbeat. It holds none of its partitions meanwhile:
they may be handed over, which ends the wait. Partitions that it gets join the wait.
Source: docs/sql.md, "WAIT"; docs/design/engine.md, "Long polls".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from .buffers.scan import lost_events
from .catalog.streams import Group, Stream
from .database import Database
from .definitions.parking import passed_over
from .groups.polls import Poll
from .stream_reads import ReadRequest, StreamRead, aside_of, begin_member_read, group_gaps, start
from .system_views.group_rows import position_of
from .waiting import Wait, Waiting, first_of

# The number of heartbeats of a waiting member within its group's session_timeout.
HEARTBEATS = 3
# The shortest time between two looks for members that have timed out.
LOOK_S_MIN = 0.01


@dataclass(slots=True, eq=False)
class EventWait:
    """One waiting reader.

    Args:
        request: returns the read request for the present state of the stream.
        poll: the poll on which it waits.
        ms: the maximum wait in milliseconds.
        over: True once it no longer waits; its member still sends heartbeats.
        owned: the partitions that its member owned at the last look.
        joined: True once its member has joined: a missing member may then have been removed by LEAVE.
        places: partition -> ((LSN, the buffer's count of renumberings), number of events at or before the
            LSN), where the log was queried.
    """

    request: Callable[[Stream], ReadRequest]
    poll: Poll
    ms: int
    over: bool = False
    owned: frozenset[int] = frozenset()
    joined: bool = False
    places: dict[int, tuple[tuple[int, int], int]] = field(default_factory=dict)


def wait(database: Database, waits: Sequence[EventWait], began_s: float) -> Waiting[None]:
    """Wait until each reader has enough events, or its time is up.

    Args:
        began_s: when the intervals began, by the database's clock.

    Raises:
        DucktailError: a stream or group was dropped meanwhile.
        Gap: the next event of a reader has been trimmed.
    """
    while True:
        looks_s = []
        for one in waits:
            looks_s.append((yield from _look(database, one)))
        waited_s = database.clock.monotonic_s() - began_s
        for one in waits:
            one.over = one.over or one.ms / 1000 <= waited_s
            if one.over:
                database.polls.narrow(one.poll, {})
        left_s = [one.ms / 1000 - waited_s for one in waits if not one.over]
        if not left_s:
            return
        looks = [look_s for look_s in looks_s if look_s is not None]
        yield Wait(first_of([one.poll.future for one in waits]), min([*left_s, *looks]))


def _look(database: Database, wait: EventWait) -> Waiting[float | None]:
    """Check for events, and end a wait that has enough; the look is its member's heartbeat.

    Returns:
        Seconds until the next look, if nothing wakes the reader before; None for a reader without a member.
    """
    poll = wait.poll
    if poll.ended is not None:
        raise poll.ended
    # The stream may have got another name, or other options, since.
    poll.stream = database.catalog.present(poll.stream) or poll.stream
    request = wait.request(poll.stream)
    # The poll is armed before the look: later events wake it.
    group_id = None if request.group is None else request.group.group_id
    database.polls.arm(poll, () if wait.over else request.partitions, group_id)
    if poll.left:
        wait.over = True
        return None
    if request.group is not None and request.member is not None:
        own = _of_member(database, wait, request)
        request = replace(request, partitions=own)
        # A member that has lost a partition gets an answer, without events of the partition.
        wait.over = wait.over or not wait.owned.issubset(own)
        wait.owned = frozenset(own)
    elif not request.partitions:
        wait.over = True  # There is no partition in which events could come.
    if not wait.over:
        wait.over = yield from _has_events(database, wait, request)
    if request.group is None or request.member is None:
        return None
    return _look_s(database, request.group)


def _of_member(database: Database, wait: EventWait, request: ReadRequest) -> list[int]:
    """The partitions that the member owns now; a look is a heartbeat, and leaves no hold."""
    hold = begin_member_read(database, request, joins=not wait.joined)
    if hold.ended and not wait.poll.left:
        # The member has timed out, for instance while the server stood still: it joins again.
        hold = begin_member_read(database, request, joins=True)
    wait.joined = True
    database.members.end(hold)
    return [partition for partition in request.partitions if partition in hold.epochs]


def _look_s(database: Database, group: Group) -> float:
    """Seconds until a member's next look: for its heartbeat, and for the time-out of others."""
    next_s = database.members.next_expiry_s(group.group_id)
    own_s = group.session_timeout_ms / 1000 / HEARTBEATS
    return own_s if next_s is None else min(own_s, max(next_s, LOOK_S_MIN))


def _has_events(database: Database, wait: EventWait, request: ReadRequest) -> Waiting[bool]:
    """True if the wait is over; else the poll has the places from which it counts.

    A gap in the read's events is an error.
    """
    stream, group = request.stream, request.group
    buffer = database.buffers.of(stream)
    while True:
        readable_lsn = database.publisher.published_lsn
        if buffer.failure is not None or database.buffers.is_unlike(stream):
            return True  # The read reports the error.
        to_lsn = request.lsns[1]
        if to_lsn is not None and to_lsn <= readable_lsn:
            return True  # Events to come are outside the bounds.
        begun = start(database, replace(request, through_lsn=readable_lsn))
        if (
            group is not None
            and group.on_gap == "snapshot"
            and request.after is None
            and group_gaps(database, request.transaction, stream, group, request.partitions)
        ):
            return True  # The read gets a whole copy instead.
        counted = _counted(database, wait, begun)
        if isinstance(counted, _Publishing):
            # All events of the round are readable soon.
            yield from database.publisher.wait_published(counted.through_lsn)
            continue
        if counted is None:
            return True
        database.polls.narrow(wait.poll, counted.after)
        return counted.found >= wait.poll.events


@dataclass(frozen=True, slots=True)
class _Publishing:
    """A round is being published, up to this LSN: events in the buffers cannot be counted now."""

    through_lsn: int


@dataclass(frozen=True, slots=True)
class _FoundEvents:
    """The events that a look has found.

    Args:
        found: number of readable events of the read.
        after: partition -> number of its events before those.
    """

    found: int
    after: dict[int, int]


def _counted(database: Database, wait: EventWait, begun: StreamRead) -> _FoundEvents | _Publishing | None:
    """Count the readable events of a read; None if there is one, and one is enough."""
    stream, bounds = begun.request.stream, begun.bounds
    buffer, readable_lsn = database.buffers.of(stream), bounds.through_lsn
    found, after = 0, {}
    for place, lsn in bounds.after.items():
        low = max(lsn, bounds.from_lsn - 1)
        span = buffer.span(place, low, readable_lsn)
        if lsn < span.edge_lsn and place not in bounds.from_start and not begun.request.passes_gaps:
            raise lost_events(stream, buffer, bounds, [place])[0].error()
        start_lsn, before, upto = span.start_lsn, span.start, span.end
        if upto is None or (before is None and span.unbuffered_through_lsn > readable_lsn):
            return _Publishing(span.last_lsn)
        skipped = _aside(database, begun, (place, start_lsn, readable_lsn))
        if before is None and wait.poll.events == 1 and skipped is None:
            return None  # The last event that is only in the log counts.
        if before is None:
            counted_from = start_lsn, buffer.renumbered
            if wait.places.get(place, ((-1, 0), 0))[0] != counted_from:
                wait.places[place] = counted_from, position_of(database, stream, place, buffer, start_lsn)
            before = wait.places[place][1]
        before += skipped or 0
        if bounds.copy is not None:
            before -= bounds.copy.left(place, low)
        after[place] = before
        found += max(0, upto - before)
    return _FoundEvents(found, after)


def _aside(database: Database, begun: StreamRead, window: tuple[int, int, int]) -> int | None:
    """The number of a partition's events that a read passes over as parked, less those that it gives again.

    Args:
        window: the partition, and the LSNs after which and up to which events count.

    Returns:
        None without parked or released events.
    """
    request, (place, low, high) = begun.request, window
    if request.group is None or request.after is not None:
        return None
    aside = aside_of(database, request, {place: low})
    if aside is None:
        return None
    again = sum(lsn >= begun.bounds.from_lsn for lsn in aside.released)
    return passed_over(database, request.stream, aside, place, (low, high)) - again
