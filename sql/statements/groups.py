"""Statements about consumer groups and their members.

CREATE, ALTER and DROP are part of their transaction: others see them at COMMIT. The home of a topic with
several owners knows its members (cluster/membership.py). Source: docs/groups.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, replace

import duckdb

from ...engine import rights_changes
from ...engine.catalog import rights
from ...engine.catalog.copies import Copy
from ...engine.catalog.sinks import RABBITMQ
from ...engine.catalog.streams import DEFAULT_SESSION_TIMEOUT_MS, Group, Stream
from ...engine.definitions import groups, parking
from ...engine.definitions.sinks import find_sink
from ...engine.definitions.start_positions import StartPosition, check_partitions, lsns_at
from ...engine.definitions.whole_copies import copy_of, leave_copy, present_stream
from ...engine.duck.cursors import ask, ask_maybe
from ...engine.duck.duckdb_errors import translated
from ...engine.errors import (
    DependentObjects,
    DuplicateObject,
    InvalidParameterValue,
    InvalidTextRepresentation,
    NotSupported,
    UndefinedObject,
)
from ...engine.offset_commits import committed_lsns
from ...engine.quoting import ident, literal
from ...engine.schema import LIVE_VIEWS
from ...engine.transactions.offset_moves import lock_group
from ...engine.transactions.transaction import Transaction
from ...engine.waiting import Waiting
from ..cluster import definitions, membership, topic_statements
from ..cluster.shares import check_held, check_owned, is_placed, own_partitions
from ..language import statements as st
from ..language.position_text import format_positions, parse_after, require_one_lsn
from ..reading.automatic_parking import check_one_owner
from ..reading.whole_copies import check_copies, create_with_copy
from ..results.results import Result
from ..session_state.context import Context
from ..session_state.run_text import Values, number, text, value_of
from .runners import answer, runs
from .show import DESCRIBE_COLUMNS, show
from .streams import owner_of_made

SEEK_COLUMNS = (
    ("partition", "INTEGER"),
    ("from_lsn", "BIGINT"),
    ("to_lsn", "BIGINT"),
    ("events_again", "BIGINT"),
    ("events_skipped", "BIGINT"),
)


@runs(st.CreateGroup, in_cluster=definitions.create_group)
def create_group(session: Context, made: st.CreateGroup, parameters: Values) -> Waiting[Result]:
    """CREATE CONSUMER GROUP."""
    stream = session.names.stream(made.stream.parts, made.stream.position)
    name = text(made.group, parameters)
    if not name:
        raise InvalidParameterValue("a consumer group's name must not be empty")
    with_copy = made.start.kind == "snapshot"
    on_gap = made.options.text("on_gap") or "error"
    on_park = made.options.text("on_park") or "event"
    check_on_park(stream, on_park)
    timeout_ms = made.options.integer("session_timeout") or DEFAULT_SESSION_TIMEOUT_MS
    max_deliveries = made.options.integer("max_deliveries")
    check_one_owner(session, stream, max_deliveries)
    check_on_gap(session, stream, on_gap, on_park)

    def make(transaction: Transaction, present: Stream, start: StartPosition, copy: Copy | None) -> None:
        uid = None if session.part is None else session.part.uid
        groups.create_group(
            session.database,
            transaction,
            present,
            name,
            start,
            on_gap,
            timeout_ms,
            on_park,
            max_deliveries,
            uid,
            copy,
        )
        own_group(session, transaction, present, name)

    def work(transaction: Transaction) -> Waiting[None]:
        present = yield from with_writer_lock(session, transaction, stream)
        make(transaction, present, start, None)

    try:
        if with_copy:
            check_copies(session, stream, "START SNAPSHOT")
            session.block.refuse_within("CREATE CONSUMER GROUP ... START SNAPSHOT")
            groups.check_new(session.database, None, stream, name)
            yield from create_with_copy(session, stream, make)
        else:
            start = start_position(session, stream, made.start, parameters)
            yield from session.block.unit(work)
    except DuplicateObject:
        if not made.if_not_exists or session.block.begun:
            raise
        session.notices.add(f'consumer group "{name}" already exists, skipping', sqlstate="42710")
    return Result.command(st.tag_of(made))


def check_on_gap(session: Context, stream: Stream, on_gap: str, on_park: str) -> None:
    """Refuse the options of a group that exclude each other."""
    if on_gap != "snapshot":
        return
    check_copies(session, stream, "on_gap = 'snapshot'")
    if on_park == "key":
        raise NotSupported(
            "on_gap = 'snapshot' is not supported with on_park = 'key'",
            detail="What stands behind a parked key would be missing from the copy.",
            hint="Take on_park = 'event'.",
        )


def own_group(session: Context, transaction: Transaction, stream: Stream, name: str) -> None:
    """Make the session's user the owner of a group."""
    item, owner = rights.group_item(stream.schema, stream.name, name), owner_of_made(session)
    if owner is not None:
        rights_changes.add(session.database, transaction, rights_changes.PutOwner(item, owner))


def start_position(session: Context, stream: Stream, place: st.Place, parameters: Values) -> StartPosition:
    """The position in START; an LSN after it holds for all partitions."""
    if place.kind == "after":
        assert place.value is not None
        lsn = number(place.value, parameters, "AFTER")
        return StartPosition("after", dict.fromkeys(range(stream.partitions), lsn))
    return _place(session, place, parameters, range(stream.partitions))


def _place(
    session: Context, place: st.Place, parameters: Values, partitions: Sequence[int], one: bool = False
) -> StartPosition:
    """A position with its values; an LSN holds for all of these partitions, and with `one` a map is
    refused."""
    if place.kind == "timestamp":
        assert place.value is not None
        return StartPosition("timestamp", at_us=timestamp_us(session, text(place.value, parameters)))
    if place.kind != "after":
        return StartPosition(place.kind)
    assert place.value is not None
    value = value_of(place.value, parameters)
    after = parse_after(value if isinstance(value, int) else str(value))
    if one:
        require_one_lsn(after)
    if isinstance(after, int):
        return StartPosition("after", dict.fromkeys(partitions, after))
    return StartPosition("after", after)


def _seek_place(
    session: Context, stream: Stream, asked: st.SeekGroup, parameters: Values, partitions: Sequence[int]
) -> StartPosition:
    """The position in SEEK, which may be a bookmark's."""
    if asked.to.kind != "bookmark":
        return _place(session, asked.to, parameters, partitions, asked.partition is not None)
    name = str(asked.to.value)
    lsns = session.access.bookmark(stream, name, session.block.transaction).lsns
    if session.part is not None:
        # Nothing is known here about other nodes' partitions.
        lsns = {partition: lsns[partition] for partition in partitions}
    return StartPosition("after", lsns)


def timestamp_us(session: Context, literal: str) -> int:
    """A timestamp's text in the session's time zone, as microseconds since 1970 UTC.

    Raises:
        InvalidTextRepresentation: the text is no timestamp, or no point in time.
    """
    try:
        row = ask(session.meta, "SELECT epoch_us($1::TIMESTAMPTZ)", [literal])
    except duckdb.Error as error:
        raise InvalidTextRepresentation(
            f'invalid timestamp: "{literal}"', detail=translated(error).message
        ) from error
    if row[0] is None:
        raise InvalidTextRepresentation(f'invalid timestamp: "{literal}"')
    return int(row[0])


def with_writer_lock(session: Context, transaction: Transaction, stream: Stream) -> Waiting[Stream]:
    """Begin or end a group at one place of the commit order, before which all events are readable.

    Returns:
        The present stream, which may have been renamed during the wait.
    """
    yield from session.database.transactions.lock_for(transaction, session.block.lock_timeout_ms)
    yield from session.database.commits.wait_readable()
    return present_stream(session.database, stream)


@runs(st.DropGroup, in_cluster=definitions.drop_group)
def drop_group(session: Context, dropped: st.DropGroup, parameters: Values) -> Waiting[Result]:
    """DROP CONSUMER GROUP."""
    stream = session.names.stream(dropped.stream.parts, dropped.stream.position)
    name = text(dropped.group, parameters)

    def drop(transaction: Transaction, present: Stream, group: Group) -> None:
        if find_sink(session.database.catalog, group, transaction) is not None:
            raise DependentObjects(
                f'consumer group "{group.name}" is that of a sink',
                hint=f"DROP SINK {ident(group.name)} ON {ident(present.name)} drops both.",
            )
        groups.drop_group(session.database, transaction, group)
        if session.database.rights.users:
            item = rights.group_item(present.schema, present.name, group.name)
            rights_changes.add(session.database, transaction, rights_changes.Forget(item))

    if dropped.if_exists and not _there_is(session, stream, name):
        session.notices.add(f'consumer group "{name}" does not exist, skipping')
        return Result.command(st.tag_of(dropped))
    yield from _on_locked_group(session, stream, name, drop)
    return Result.command(st.tag_of(dropped))


def _there_is(session: Context, stream: Stream, name: str) -> bool:
    try:
        session.access.group(stream, name, session.block.transaction, use=False)
    except UndefinedObject:
        return False
    return True


def check_on_park(stream: Stream, on_park: str | None) -> None:
    """Refuse a parking of one table's events that would affect another table's events with an equal key."""
    if on_park == "key" and stream.several is not None:
        raise NotSupported(
            f"on_park = 'key' is not supported for stream \"{stream.name}\": it is over several tables",
            detail="Rows of two tables may have the same key.",
            hint="Take on_park = 'event'; or make a stream on each table.",
        )


@runs(st.SetGroup, in_cluster=definitions.set_group)
def set_group(session: Context, asked: st.SetGroup, parameters: Values) -> Waiting[Result]:
    """ALTER CONSUMER GROUP ... SET (option = value)."""
    stream = session.names.stream(asked.stream.parts, asked.stream.position)
    name = text(asked.group, parameters)
    on_gap, timeout_ms = asked.options.text("on_gap"), asked.options.integer("session_timeout")
    on_park = asked.options.text("on_park")
    check_on_park(stream, on_park)
    max_deliveries = asked.options.integer("max_deliveries")
    check_one_owner(session, stream, max_deliveries)

    def work(transaction: Transaction) -> Waiting[None]:
        # Every write of group_catalog takes the writer lock: DuckDB fails two that conflict.
        yield from session.database.transactions.lock_for(transaction, session.block.lock_timeout_ms)
        present = present_stream(session.database, stream)
        group = session.access.group(present, name, transaction)
        yield from lock_group(session.database.offsets, transaction, group, session.block.lock_timeout_ms)
        changed = replace(
            group,
            on_gap=on_gap or group.on_gap,
            session_timeout_ms=timeout_ms or group.session_timeout_ms,
            on_park=on_park or group.on_park,
            max_deliveries=max_deliveries if "max_deliveries" in asked.options else group.max_deliveries,
        )
        if on_gap is not None or on_park is not None:
            check_on_gap(session, present, changed.on_gap, changed.on_park)
        if max_deliveries is not None and find_sink(session.database.catalog, group, transaction) is not None:
            raise NotSupported(
                f'max_deliveries is not supported for consumer group "{group.name}", which is that of a sink',
                detail="A restart of the sink would count, although the receiver has seen no event.",
                hint="ALTER SINK ... SET (attempts = n) limits its attempts.",
            )
        groups.set_group(session.database, transaction, group, changed)

    yield from session.block.unit(work)
    return Result.command(st.tag_of(asked))


@runs(st.SeekGroup, SEEK_COLUMNS, at_owners=topic_statements.seek_group)
def seek_group(session: Context, asked: st.SeekGroup, parameters: Values) -> Waiting[Result]:
    """ALTER CONSUMER GROUP ... SEEK; answers with the moved partitions, also for DRY RUN, which moves
    none."""
    stream = session.names.stream(asked.stream.parts, asked.stream.position)
    name = text(asked.group, parameters)
    partitions = list(range(stream.partitions))
    if asked.partition is not None:
        partitions = [number(asked.partition, parameters, "PARTITION")]
        check_partitions(stream, partitions)
    if session.part is not None:
        partitions = own_partitions(session, stream, partitions)
    place = _seek_place(session, stream, asked, parameters, partitions)

    def plan(transaction: Transaction | None, group: Group) -> list[groups.Shift]:
        copy = copy_of(session.database, transaction, group)
        to = lsns_at(session.database, transaction, stream, place, copy)
        chosen = {partition: lsn for partition, lsn in to.items() if partition in partitions}
        within = copy if place.kind == "after" else None
        present = committed_lsns(session.database, session.block.transaction, group)
        shifts = groups.shifts(session.database, stream, present, chosen, (copy, within))
        _check_receiver(session, transaction, group, shifts)
        return shifts

    # Events committed before this statement are readable, so that they may be skipped.
    yield from session.database.commits.wait_readable()
    if asked.dry_run:
        group = session.access.group(stream, name, session.block.transaction)
        return _moved(asked, plan(session.block.transaction, group))

    def work(transaction: Transaction) -> Waiting[list[groups.Shift]]:
        group = session.access.group(stream, name, transaction)
        yield from lock_group(session.database.offsets, transaction, group, session.block.lock_timeout_ms)
        moved = plan(transaction, group)
        key = (stream.stream_id, group.group_id)
        session.positions.seeking(key, transaction=session.block.begun)
        groups.seek(session.database, transaction, group, moved, _restamp(session, key))
        leave_copy(session.database, transaction, group, _left(session, transaction, group, place, moved))
        return moved

    return _moved(asked, (yield from session.block.unit(work)))


def _check_receiver(
    session: Context, transaction: Transaction | None, group: Group, shifts: Sequence[groups.Shift]
) -> None:
    """Refuse a SEEK back of a sink whose receiver would drop the events as delivered before."""
    sink = find_sink(session.database.catalog, group, transaction)
    if sink is not None and sink.kind == RABBITMQ and any(s.to_lsn < s.from_lsn for s in shifts):
        raise NotSupported(
            "SEEK back is not supported for a rabbitmq sink",
            detail="The broker drops events that it has had from the sink, although it confirms them.",
            hint="CREATE SINK makes another sink, which sends them again.",
        )


def _left(
    session: Context,
    transaction: Transaction,
    group: Group,
    place: StartPosition,
    moved: Sequence[groups.Shift],
) -> set[int]:
    """The partitions in which a SEEK leaves the group's whole copy; only an LSN of the copy is within it."""
    copy = copy_of(session.database, transaction, group)
    if copy is None:
        return set()
    return {s.partition for s in moved if place.kind != "after" or not copy.left(s.partition, s.to_lsn)}


def _restamp(session: Context, key: tuple[int, int]) -> Callable[[int], None]:
    return lambda seeks: session.positions.seeked(key, seeks)


def _moved(asked: st.SeekGroup, shifts: list[groups.Shift]) -> Result:
    return answer(asked, [astuple(shift) for shift in shifts])


@runs(st.Park, at_owners=topic_statements.park_event)
def park_event(session: Context, asked: st.Park, parameters: Values) -> Waiting[Result]:
    """ALTER CONSUMER GROUP ... PARK."""
    reason = None if asked.reason is None else text(asked.reason, parameters)
    place = number(asked.partition, parameters, "PARTITION"), number(asked.lsn, parameters, "AT")

    stream = session.names.stream(asked.stream.parts, asked.stream.position)

    def park(transaction: Transaction, present: Stream, group: Group) -> None:
        if 0 <= place[0] < present.partitions:
            # It may have been delivered since the statement began; a copy here would be lost then.
            check_owned(session, present, [place[0]])
        committed = committed_lsns(session.database, session.block.transaction, group)
        parking.park(session.database, transaction, present, group, place, reason, committed)
        session.positions.set_aside((stream.stream_id, group.group_id), place[1])

    yield from _on_locked_group(session, stream, text(asked.group, parameters), park)
    return Result.command(st.tag_of(asked))


@runs(st.Release, at_owners=topic_statements.end_parking)
def release_events(session: Context, asked: st.Release, parameters: Values) -> Waiting[Result]:
    """ALTER CONSUMER GROUP ... RELEASE."""
    return (yield from _end_parking(session, asked, parameters))


@runs(st.Discard, at_owners=topic_statements.end_parking)
def discard_events(session: Context, asked: st.Discard, parameters: Values) -> Waiting[Result]:
    """ALTER CONSUMER GROUP ... DISCARD."""
    return (yield from _end_parking(session, asked, parameters))


def _end_parking(session: Context, asked: st.Release | st.Discard, parameters: Values) -> Waiting[Result]:
    """Release or discard one parked event, or all of a partition."""
    lsn = None if asked.lsn is None else number(asked.lsn, parameters, "AT")
    place = number(asked.partition, parameters, "PARTITION"), lsn

    stream = session.names.stream(asked.stream.parts, asked.stream.position)

    def end(transaction: Transaction, present: Stream, group: Group) -> None:
        if isinstance(asked, st.Release):
            ended = parking.release(session.database, transaction, present, group, place)
        else:
            committed = committed_lsns(session.database, session.block.transaction, group)
            committed_lsn = committed.get(place[0], 0)
            ended = parking.discard(session.database, transaction, present, group, place, committed_lsn)
        if not ended:
            session.notices.add(
                f'consumer group "{group.name}" has no parked events in partition {place[0]}, skipping'
            )

    yield from _on_locked_group(session, stream, text(asked.group, parameters), end)
    return Result.command(st.tag_of(asked))


def _on_locked_group(
    session: Context, stream: Stream, name: str, do: Callable[[Transaction, Stream, Group], None]
) -> Waiting[None]:
    """Change a group in a transaction that holds it and the writer lock."""

    def work(transaction: Transaction) -> Waiting[None]:
        session.database.topics.keep_epoch(transaction)
        present = yield from with_writer_lock(session, transaction, stream)
        check_held(session, present)
        group = session.access.group(present, name, transaction)
        yield from lock_group(session.database.offsets, transaction, group, session.block.lock_timeout_ms)
        do(transaction, present, group)

    yield from session.block.unit(work)


@runs(st.DescribeGroup, DESCRIBE_COLUMNS)
def describe_group(session: Context, asked: st.DescribeGroup, parameters: Values) -> Waiting[Result]:
    """DESCRIBE CONSUMER GROUP: its definition and progress, one property in each row."""
    stream = session.names.stream(asked.stream.parts, asked.stream.position)
    group = session.access.group(stream, text(asked.group, parameters), None, use=False)
    yield from session.database.commits.wait_readable()
    names = [name for name, _ in LIVE_VIEWS["consumer_groups"]]
    row = ask_maybe(
        session.meta,
        f"SELECT {', '.join(f'{name}::VARCHAR' for name in names)}, "
        "(SELECT sum(trimmed_unread)::BIGINT::VARCHAR FROM ducktail.offsets AS o "
        "WHERE (o.schema_name, o.stream_name, o.group_name) = (g.schema_name, g.stream_name, g.group_name)) "
        "FROM ducktail.consumer_groups AS g "
        "WHERE schema_name = $1 AND stream_name = $2 AND group_name = $3",
        [stream.schema, stream.name, group.name],
    )
    assert row is not None
    rows = list(zip([*names, "trimmed_unread"], row, strict=True))
    copy = session.database.catalog.copies.get(group.group_id)
    if copy is not None:
        standing = session.database.offsets.positions(group.group_id)
        left = sum(copy.left(number, at.lsn) for number, at in standing.items())
        facts = {"first_lsn": copy.first_lsn, "last_lsn": copy.last_lsn, "rows": copy.rows, "rows_left": left}
        rows += [(f"copy_{name}", str(value)) for name, value in facts.items()]
    if session.part is not None:
        rows.append(("session_timeout_ms", str(group.session_timeout_ms)))
        item = rights.group_item(stream.schema, stream.name, group.name)
        rows.append(("owner", session.database.rights.owners.get(item)))
    if is_placed(session, stream):
        rows.append(("identity", session.database.identities.of(group.group_id)))
    return answer(asked, rows)


POSITION_COLUMNS = (("position", "JSON"),)


@runs(st.LeaveGroup, at_owners=topic_statements.leave_group)
def leave_group(session: Context, asked: st.LeaveGroup, parameters: Values) -> Waiting[Result]:
    """LEAVE CONSUMER GROUP: the member's partitions go to others, in a transaction at its COMMIT."""
    stream, group = _named(session, asked.stream, asked.group, parameters)
    name, members = text(asked.member, parameters), session.database.members
    there = members.has(group, stream.partitions, name)
    if there and session.block.begun:
        session.block.opened().leaving.append((group.group_id, name))
    elif there:
        members.remove(group.group_id, name)
    if not there:
        session.notices.add(f'{literal(name)} is not a member of consumer group "{group.name}", skipping')
    return Result.command(st.tag_of(asked))
    yield


@runs(st.ShowReadPosition, POSITION_COLUMNS, at_owners=topic_statements.show_read_position)
def show_read_position(session: Context, asked: st.ShowReadPosition, parameters: Values) -> Waiting[Result]:
    """SHOW READ POSITION: the LSNs that COMMIT OFFSETS would commit, as a map for its AT."""
    stream, group = _named(session, asked.stream, asked.group, parameters)
    seeks = session.database.offsets.seeks(group.group_id)
    member = None if asked.member is None else text(asked.member, parameters)
    if member is None:
        key = (stream.stream_id, group.group_id)
        lsns = session.positions.get(key, group.name, seeks).lsns
    else:
        lsns = session.database.members.position(group, stream.partitions, member, seeks).lsns
    return answer(asked, [[format_positions(lsns)]])
    yield


@runs(st.ShowMembers, at_owners=topic_statements.show_members)
def show_members(session: Context, asked: st.ShowMembers, parameters: Values) -> Waiting[Result]:
    """SHOW MEMBERS; as a share of the home, the answer to another node."""
    if session.part is not None and session.part.asked is not None:
        return membership.answer(session, *_named(session, asked.stream, asked.group, parameters))
    return (yield from show(session, asked, parameters))


def _named(
    session: Context, name: st.Name, group_name: st.Text, parameters: Values, *, use: bool = True
) -> tuple[Stream, Group]:
    stream = session.names.stream(name.parts, name.position)
    transaction = session.block.transaction if use else None
    return stream, session.access.group(stream, text(group_name, parameters), transaction, use=use)
