"""WAIT '5 s' [FOR n]: a statement waits for events of its stream scans before it begins.

A wait stands before everything else that a statement does: it has no snapshot, no lock and no thread
then, only a poll (engine/polls.py) and a future. Scans that wait do so one after the other, each up to
its own interval from the statement's beginning. When the wait is over the statement runs as it would
without it; its rights are looked at again, and its scans begin at the places that hold then.

A member that waits looks now and then, which is its heartbeat, and holds none of its partitions meanwhile:
they may be handed over, which ends the wait. With those that it gets it goes on.

What is waited for are events of the scan: those of its partitions, after its group's committed LSN or
its AFTER, and within what WHERE says of partition, lsn and commit_time. Source: docs/sql.md, "WAIT".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta

from ..engine.buffer import PartitionBuffer
from ..engine.errors import ActiveTransaction, InvalidParameterValue
from ..engine.live import position_of
from ..engine.parking import passed_over
from ..engine.polls import Poll
from ..engine.scan import gone
from ..engine.streams import Group, Stream
from ..engine.waiting import Wait, Waiting
from .context import Context
from .language import statements as st
from .language.parse import Query
from .narrowing import pruning, within_times
from .opening import Beginning, Pruning, aside_of, beginning, group_of, partitions_of
from .scans import bound_shapes, stream_of
from .shape.shape import Shape
from .statement import Statement
from .stream_statements import Values, number, text, value_of
from .text.units import parse_interval_ms

# A reader that hears nothing for longer does not know whether anybody is there: it asks again.
WAIT_MS_MAX = 24 * 3600 * 1000
# A member that waits is heard from so often within its group's session_timeout.
HEARTBEATS = 3
# Who looks after members whose time is out looks no oftener.
LOOK_S_MIN = 0.01


@dataclass(slots=True)
class Waiter:
    """One scan that waits.

    Args:
        ms, events: of WAIT and FOR.
        narrowed: what WHERE says of it.
        places: (partition, LSN) -> how many of the partition's events are at or before it.
    """

    shape: Shape
    stream: Stream
    ms: int
    events: int
    narrowed: Pruning
    places: dict[tuple[int, int], int] = field(default_factory=dict)


def wait(session: Context, statement: Statement, parameters: Values) -> Waiting[int | None]:
    """Wait for the events that a statement's scans ask for.

    Returns:
        Up to where everything is readable now; None where nothing had to be waited for.

    Raises:
        InvalidParameterValue: 22023, no interval, or one that is too long.
        ActiveTransaction: 25001, the transaction has its snapshot, or a lock.
        Gap: 72000, the next event has been trimmed: there is nothing to wait for.
        UndefinedObject: 42704, there is no such stream or group, or it was dropped meanwhile.
        ProgramLimitExceeded: 54000, too many wait already.
    """
    query = statement.node
    assert isinstance(query, Query)
    database = session.database
    waiters = list(_waiters(session, statement, query, parameters))
    if not waiters:
        return None
    _check_first(session)
    began_s = database.clock.monotonic_s()
    # What is committed is there to be read; it is not waited for.
    yield from database.publisher.wait_published(database.commits.last_lsn)
    for waiter in waiters:
        yield from _wait(session, waiter, parameters, began_s + waiter.ms / 1000)
    return database.publisher.published_lsn


def _waiters(session: Context, statement: Statement, query: Query, parameters: Values) -> Iterator[Waiter]:
    """The scans that wait: neither those that read nothing, nor those with an interval of 0."""
    for shape in bound_shapes(session, statement, query, parameters):
        scan = shape.scan
        if scan.wait is None:
            continue
        ms = interval_ms(scan.wait, parameters)
        events = 1 if scan.wait_for is None else number(scan.wait_for, parameters, "FOR")
        if not events:
            raise InvalidParameterValue("FOR must be at least 1")
        if shape.empty or shape.transactions == 0 or not ms:
            continue
        stream = stream_of(session, shape)
        narrowed = pruning(shape.facts, stream.partitions, parameters) or Pruning()
        narrowed = within_times(session, shape.facts, narrowed, parameters)
        yield Waiter(shape, stream, ms, events, narrowed)


def interval_ms(wait: st.Text, parameters: Values) -> int:
    """How long WAIT says, in milliseconds.

    Raises:
        InvalidParameterValue: 22023.
    """
    value = value_of(wait, parameters)
    if isinstance(value, timedelta):
        ms = value // timedelta(milliseconds=1)
    elif isinstance(value, str):
        ms = parse_interval_ms(value)
    else:
        raise InvalidParameterValue(
            f"WAIT takes an interval, not a number: {value}", hint="Give a unit, such as '5 s'."
        )
    if not 0 <= ms <= WAIT_MS_MAX:
        raise InvalidParameterValue(
            f'WAIT takes an interval of at most {WAIT_MS_MAX // 3_600_000} hours, not "{value}"'
        )
    return ms


def _check_first(session: Context) -> None:
    """Refuse to wait with a snapshot, which would not see what comes, or with a lock that others want.

    Raises:
        ActiveTransaction: 25001.
    """
    transaction = session.block.transaction
    if transaction is None or not (
        transaction.snapshot_counter is not None or transaction.has_writer_lock or transaction.locked_groups
    ):
        return
    raise ActiveTransaction(
        "WAIT must be the first statement of a transaction that touches the database",
        hint="Poll in autocommit, or wait in the transaction's first statement: its snapshot is taken then.",
    )


def _wait(session: Context, waiter: Waiter, parameters: Values, until_s: float) -> Waiting[None]:
    """Wait until enough events of one scan are there, or the time is up."""
    database, scan = session.database, waiter.shape.scan
    member = None if scan.member is None else text(scan.member, parameters)
    poll = Poll(session.id, waiter.stream, member=member, events=waiter.events)
    mine: frozenset[int] = frozenset()
    try:
        while True:
            group = group_of(session, waiter.stream, scan, parameters)
            poll.group_id = None if group is None else group.group_id
            partitions = partitions_of(waiter.stream, scan, parameters, waiter.narrowed)
            # Before the look: what comes after it wakes the poll.
            database.polls.arm(poll, partitions)
            if group is not None and member is not None:
                partitions = _of_member(session, waiter, group, member, partitions)
                if not mine.issubset(partitions):
                    return  # Something has been taken from it: it is told by an answer.
                mine = frozenset(partitions)
            elif not partitions:
                return  # There is nothing that events could come in.
            if (yield from _is_there(session, waiter, parameters, group, partitions, poll)):
                return
            left_s = until_s - database.clock.monotonic_s()
            if left_s <= 0:
                return
            if (yield Wait(poll.future, min(left_s, _look_s(session, group, member)))):
                poll.future.result()
    finally:
        database.polls.leave(poll)


def _of_member(
    session: Context, waiter: Waiter, group: Group, member: str, partitions: list[int]
) -> list[int]:
    """Those of the partitions that are the member's now; a look of its is a heartbeat, and holds nothing."""
    members = session.database.members
    hold = members.begin_read(group, waiter.stream.partitions, member, session.user, partitions, gives=True)
    members.end(hold)
    return [partition for partition in partitions if partition in hold.epochs]


def _look_s(session: Context, group: Group | None, member: str | None) -> float:
    """After how long it looks again unasked: a member is to be heard from, and others may have gone."""
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
    poll: Poll,
) -> Waiting[bool]:
    """Whether there is nothing to wait for any more; else the poll knows from where to count.

    Raises:
        Gap: 72000.
    """
    database, stream, narrowed = session.database, waiter.stream, waiter.narrowed
    buffer = database.buffers.of(stream)
    readable_lsn = database.publisher.published_lsn
    if buffer.failure is not None or (narrowed.to_lsn is not None and narrowed.to_lsn <= readable_lsn):
        return True  # The read tells why; or what is still to come is outside.
    begins = beginning(
        session, stream, waiter.shape.scan, parameters, narrowed, group, partitions, readable_lsn
    )
    found, after = 0, {}
    for place in begins.bounds.after:
        with buffer.mutex:
            partition = buffer.partitions[place]
            start = _start(waiter, begins, place, partition)
            before, upto = partition.position_after(start), partition.position_after(readable_lsn)
            last_lsn, cold_lsn = partition.last_lsn, partition.unbuffered_through_lsn
        if upto is None or (before is None and cold_lsn > readable_lsn):
            # A round is being published: soon all of it is readable.
            yield from database.publisher.wait_published(last_lsn)
            return (yield from _is_there(session, waiter, parameters, group, partitions, poll))
        skipped = _aside(session, waiter, group, (place, start, readable_lsn))
        if before is None and waiter.events == 1 and skipped is None:
            return True  # The last event that is only in the log is one.
        if before is None:
            before = waiter.places.get((place, start))
        if before is None:
            before = position_of(database, stream, place, buffer, start)
            waiter.places[place, start] = before
        before += skipped or 0
        after[place] = before
        found += max(0, upto - before)
    database.polls.narrow(poll, after)
    return found >= waiter.events


def _aside(
    session: Context, waiter: Waiter, group: Group | None, window: tuple[int, int, int]
) -> int | None:
    """How many of a partition's events a read passes over as parked, less those that it gives again.

    Args:
        window: the partition, and the LSNs after which and up to which it is looked at.

    Returns:
        None where nothing is parked.
    """
    place, low, high = window
    if group is None or waiter.shape.scan.after is not None:
        return None
    aside = aside_of(session, group, {place: low})
    if aside is None:
        return None
    again = sum(lsn >= waiter.narrowed.from_lsn for lsn in aside.released)
    return passed_over(session.database, waiter.stream, aside, place, (low, high)) - again


def _start(waiter: Waiter, begins: Beginning, place: int, partition: PartitionBuffer) -> int:
    """The LSN after which a partition's events count.

    Raises:
        Gap: 72000.
    """
    bounds = begins.bounds
    lsn, edge_lsn = bounds.after[place], partition.trimmed_through_lsn
    if lsn < edge_lsn and place not in bounds.from_start and not begins.past_gaps:
        raise gone(waiter.stream, partition, place, lsn, bounds).error()
    return max(lsn, edge_lsn, waiter.narrowed.from_lsn - 1)
