"""WAIT '5 s' [FOR n]: a statement waits for events of its stream scans before it begins.

A wait comes before all other work of a statement: the statement then has no snapshot, no lock and no thread,
only polls (engine/stream_waits.py) and a future. Then the statement runs as it would without a wait; its
rights are checked again, and its scans begin at the positions of that time.

LEAVE CONSUMER GROUP ends the wait of its member, and the statement reads without joining again. A member
whose scan has its events, or does not wait, sends heartbeats in the same way while another scan of the
statement waits.

The awaited events are those of the scan: events of its partitions, after its group's committed LSN or its
AFTER, and within the bounds of WHERE on partition, lsn and commit_time. Bounds on commit_time are converted
at each look, as a time that is still to come has no LSN yet.
Source: docs/sql.md, "WAIT".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from numbers import Number

from ...engine import stream_waits
from ...engine.catalog.streams import Stream
from ...engine.errors import ActiveTransaction, InvalidParameterValue, NotSupported
from ...engine.groups.polls import Poll
from ...engine.stream_reads import ReadRequest
from ...engine.stream_waits import EventWait
from ...engine.values.temporal_input import interval_parts
from ...engine.waiting import Waiting, first_true
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
from .open_scan import open_scan
from .read_requests import (
    Pruning,
    group_of,
    in_lsns,
    parsed_after,
    partitions_of,
    pruning,
    request_of,
    within_times,
)
from .scans import bound_shapes, stream_of

# The maximum wait: after a longer silence a reader cannot distinguish a wait from a dead server.
WAIT_MS_MAX = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True, eq=False)
class Waiter:
    """One waiting scan of a statement.

    Args:
        pruned: the bounds of WHERE on partition and lsn.
        wait: its wait for this node's events.
    """

    shape: Shape
    pruned: Pruning
    wait: EventWait

    @property
    def poll(self) -> Poll:
        """The poll that ends the wait."""
        return self.wait.poll

    @property
    def stream(self) -> Stream:
        """The stream that it reads."""
        return self.poll.stream


def _waiter(
    session: Context,
    shape: Shape,
    parameters: Values,
    ms: int,
    poll: Poll,
    pruned: Pruning,
    *,
    over: bool = False,
) -> Waiter:
    def request(stream: Stream) -> ReadRequest:
        narrowed = in_lsns(session, within_times(session, shape.facts, pruned, parameters))
        return request_of(session, stream, shape.scan, parameters, narrowed)

    return Waiter(shape, pruned, EventWait(request, poll, ms, over))


def wait(session: Context, statement: ParsedStatement, parameters: Values) -> Waiting[Waited | None]:
    """Wait for the events that a statement's scans ask for.

    Returns:
        The outcome; None if no scan had to wait.

    Raises:
        InvalidParameterValue: the value is no interval, or too long.
        NotSupported: several scans wait, and one of them is of another node's stream.
        ActiveTransaction: the transaction has its snapshot, or a lock.
        Gap: the next event has been trimmed, so there is nothing to wait for.
        UndefinedObject: the stream or group does not exist, or was dropped meanwhile.
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
    """Wait until each scan has enough events, or its time has passed.

    Returns:
        Group ids and members that LEAVE CONSUMER GROUP has removed meanwhile.
    """
    database = session.database
    gathers = [waiter for waiter in waiters if remote_owners(session, waiter.stream)]
    own = [waiter for waiter in waiters if waiter not in gathers]
    left: set[tuple[int, str]] = set()
    # Committed events can be read already: the wait is for later ones.
    yield from database.commits.wait_readable_now()
    heartbeats = {
        waiter.poll: _heartbeat(session, waiter, parameters)
        for waiter in gathers
        if waiter.poll.member is not None
    }
    if own and heartbeats:
        works = [_wait_here_only(session, own, began_s), send_heartbeats(list(heartbeats.values()))]
        yield from first_true(works, database.clock.monotonic_s)
    elif own:
        yield from stream_waits.wait(database, [waiter.wait for waiter in own], began_s)
    polls = [waiter.poll for waiter in own if waiter.poll.left]
    left |= {(p.group_id, p.member) for p in polls if p.group_id is not None and p.member is not None}
    # Waiting for one after the other takes as long as for all at once: each has its own end time.
    for waiter in sorted(gathers, key=lambda waiter: waiter.poll.member is not None):
        if not waiter.wait.over:
            yield from _wait_everywhere(session, waiter, parameters, began_s, heartbeats)
    left |= {
        (heartbeat.home.group.group_id, heartbeat.member)
        for heartbeat in heartbeats.values()
        if heartbeat.left
    }
    return frozenset(left)


def _wait_here_only(session: Context, waiters: list[Waiter], began_s: float) -> Waiting[bool]:
    yield from stream_waits.wait(session.database, [waiter.wait for waiter in waiters], began_s)
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
    others = [one for poll, one in heartbeats.items() if poll is not waiter.poll]
    ends_s = began_s + waiter.wait.ms / 1000
    yield from awaited.wait_among(partitions, ends_s, heartbeats.get(waiter.poll), others)


def _wait_here(session: Context, waiter: Waiter, share: st.Scan, ms: int, events: int) -> Waiting[int]:
    """Wait for events of this node's own partitions.

    Args:
        events: the number of events that ends the wait.

    Returns:
        The number of readable events, at most `events`.
    """
    database = session.database
    poll = Poll(session.id, waiter.stream, None, events)
    shape = replace(waiter.shape, scan=share, facts=())
    here = _waiter(session, shape, (), ms, poll, Pruning())
    yield from database.commits.wait_readable_now()
    try:
        if ms:
            yield from stream_waits.wait(database, [here.wait], database.clock.monotonic_s())
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
        yield _waiter(session, shape, parameters, ms, Poll(session.id, stream, member, events), pruned)


def _beside(
    session: Context, statement: ParsedStatement, query: Query, parameters: Values
) -> Iterator[Waiter]:
    """Members' scans that do not wait, in a statement that does; heartbeats keep their members."""
    for shape in bound_shapes(session, statement, query, parameters):
        scan = shape.scan
        if scan.wait is not None or scan.member is None or scan.away is not None:
            continue
        stream = stream_of(session, shape)
        if shape.empty or shape.transactions == 0:
            continue
        poll = Poll(session.id, stream, text(scan.member, parameters))
        yield _waiter(session, shape, parameters, 0, poll, Pruning(), over=True)


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
