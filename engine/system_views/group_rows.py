"""The rows of live views about consumer groups: offsets, members, copies, parked events, bookmarks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import duckdb

from ..buffers.buffer import PartitionBuffer, StreamBuffer
from ..catalog import segments
from ..catalog.copies import Copy
from ..catalog.rights import bookmark_item
from ..catalog.streams import Bookmark, Group, Stream
from ..duck.cursors import ask, ask_maybe
from ..errors import UndefinedObject
from ..groups.deliveries import live_ranges
from ..groups.offsets import GroupPosition
from ..groups.parked import BEHIND, NOTHING, PARKED, RELEASED, ParkedEvent, same_key, same_key_sql
from ..log.log import EVENT_NAMES
from ..log.queries import event_query
from ..parts import Parts
from ..values import datarow
from ..values.dates_times import SECOND_US, duration_text

# A stream dropped while a view is read is not an error for its reader.
WHERE_DROPPED = suppress(UndefinedObject)
COMMIT_TIME = EVENT_NAMES.index("commit_time")

Row = dict[str, Any]


def time_text(us: int | None) -> str | None:
    """A time in microseconds since 1970 as ISO 8601; None for 0 or None."""
    return None if not us else datetime.fromtimestamp(us / 1_000_000, UTC).isoformat()


def buffered_streams(database: Parts) -> list[tuple[Stream, StreamBuffer]]:
    """All streams with their buffers, in the order of their names."""
    with database.catalog.mutex:
        streams = sorted(database.catalog.streams.values(), key=lambda s: s.key)
        return [(s, database.buffers[s.stream_id]) for s in streams]


def groups_of_streams(database: Parts) -> Iterator[tuple[Stream, StreamBuffer, Group]]:
    for stream, buffer in buffered_streams(database):
        with database.catalog.mutex:
            groups = database.catalog.groups_of(stream.stream_id)
        for group in groups:
            yield stream, buffer, group


def lag_events(database: Parts, stream: Stream, number: int, partition: PartitionBuffer, lsn: int) -> int:
    """The number of readable events after `lsn` in a partition: exact, from the log if necessary."""
    before = partition.position_after(lsn)
    if before is not None:
        return partition.events - before
    return _count_after(database, stream, number, lsn, partition.last_lsn)


def rows_left(copy: Copy | None, number: int, lsn: int) -> int:
    """The number of a whole copy's unread rows for a reader at `lsn` of a partition."""
    return 0 if copy is None else copy.left(number, lsn)


def position_of(database: Parts, stream: Stream, number: int, buffer: StreamBuffer, lsn: int) -> int:
    """The number of a partition's events at or before `lsn`: exact, from the log if necessary."""
    partition = buffer.partitions[number]
    with buffer.mutex:
        before, events, last_lsn = partition.position_after(lsn), partition.events, partition.last_lsn
    if before is not None:
        return before
    return events - _count_after(database, stream, number, lsn, last_lsn)


def _count_after(database: Parts, stream: Stream, number: int, lsn: int, last_lsn: int) -> int:
    """The number of a partition's events after an LSN, up to the last one."""
    moved, lsn = _moved_after(database, stream, number, lsn, segments.count_after)
    return (moved or 0) + int(_ask_log(database, stream, number, lsn, last_lsn, "count(*)"))


def _moved_after(
    database: Parts,
    stream: Stream,
    number: int,
    lsn: int,
    ask: Callable[[duckdb.DuckDBPyConnection, int, int, int], int | None],
) -> tuple[int | None, int]:
    """The result of `ask` for moved events of a partition after an LSN, and where its own events begin.

    Args:
        ask: a function of a cursor, the stream's id, the partition and the LSN.
    """
    segment = database.catalog.segments.of(stream.stream_id).get(number)
    if segment is None or lsn >= segment.base_lsn:
        return None, lsn
    cursor = database.cursor()
    try:
        return ask(cursor, stream.stream_id, number, lsn), segment.base_lsn
    finally:
        cursor.close()


def first_unread_us(
    database: Parts, stream: Stream, number: int, partition: PartitionBuffer, lsn: int
) -> float:
    """The commit time of the first event after `lsn`, microseconds since 1970; 0 if the log has none."""
    moved_us, lsn = _moved_after(database, stream, number, lsn, segments.first_us)
    if moved_us is not None:
        return moved_us
    place = partition.after(lsn)
    if partition.complete_after(lsn) and place < len(partition.rows):
        text = datarow.fields(partition.rows[place])[COMMIT_TIME]
        assert text is not None
        return datetime.fromisoformat(text.decode()).timestamp() * 1_000_000
    oldest = "epoch_us(min(commit_time))"
    return float(_ask_log(database, stream, number, lsn, partition.last_lsn, oldest))


def _ask_log(
    database: Parts,
    stream: Stream,
    number: int,
    lsn: int,
    last_lsn: int,
    aggregate: str,
) -> int:
    """One aggregate over a partition's events after `lsn`, up to the last one, from the log."""
    where = f"lsn > {lsn} AND lsn <= {last_lsn}"
    sql = event_query(database.catalog, stream).between(lsn + 1, last_lsn).sql(where, "false")
    cursor = database.cursor(utc=True)
    try:
        row = ask_maybe(cursor, f"SELECT {aggregate} FROM ({sql}) WHERE partition = {number}")
    except duckdb.CatalogException:
        # DuckDB knows of the drop before memory does.
        there = f"SELECT count(*) FROM ducktail.stream_catalog WHERE stream_id = {stream.stream_id}"
        if ask(cursor, there)[0]:
            raise
        raise UndefinedObject(f'{stream.kind} "{stream.name}" does not exist') from None
    finally:
        cursor.close()
    assert row is not None
    return int(row[0] or 0)


def consumer_groups(database: Parts) -> Iterator[Row]:
    """The rows of ducktail.consumer_groups."""
    for stream, buffer, group in groups_of_streams(database):
        with WHERE_DROPPED:
            yield _consumer_group(database, stream, buffer, group)


def _consumer_group(database: Parts, stream: Stream, buffer: StreamBuffer, group: Group) -> Row:
    lag = sum(
        lag_events(database, stream, number, buffer.partitions[number], position.lsn)
        + rows_left(database.catalog.copies.get(group.group_id), number, position.lsn)
        for number, position in database.offsets.positions(group.group_id).items()
    )
    return {
        "schema_name": stream.schema,
        "stream_name": stream.name,
        "group_name": group.name,
        "start": group.start,
        "on_gap": group.on_gap,
        "session_timeout": duration_text(group.session_timeout_ms * 1000),
        "on_park": group.on_park,
        "created_at": time_text(group.created_at_us),
        "lag_events": lag,
        "members": len(database.members.shown(group, stream.partitions)),
        **_set_aside(database, group),
        "max_deliveries": group.max_deliveries,
    }


def offsets(database: Parts) -> Iterator[Row]:
    """The rows of ducktail.offsets."""
    for stream, buffer, group in groups_of_streams(database):
        positions = database.offsets.positions(group.group_id)
        owners = database.members.owners(group, stream.partitions)
        for number in sorted(positions):
            with WHERE_DROPPED:
                yield _offset(database, stream, buffer, group, number, positions[number], owners[number])


def _offset(
    database: Parts,
    stream: Stream,
    buffer: StreamBuffer,
    group: Group,
    number: int,
    at: GroupPosition,
    owner: str | None,
) -> Row:
    partition = buffer.partitions[number]
    events = lag = lag_events(database, stream, number, partition, at.lsn)
    lag_s = 0.0
    if lag:
        unread_us = first_unread_us(database, stream, number, partition, at.lsn)
        lag_s = database.commit_times.age_us(unread_us) / SECOND_US
    copy = database.catalog.copies.get(group.group_id)
    if copy is not None and copy.left(number, at.lsn):
        lag += copy.left(number, at.lsn)
        lag_s = database.commit_times.age_us(copy.made_us) / SECOND_US
    read = database.last_reads.get((group.group_id, number))
    left_s = None
    if lag and stream.retention_us is not None:
        # Retention does not remove rows of a copy: events behind it are at most as old as the copy.
        left_s = max(0.0, stream.retention_us / SECOND_US - lag_s)
    return {
        "schema_name": stream.schema,
        "stream_name": stream.name,
        "group_name": group.name,
        "partition": number,
        "committed_lsn": at.lsn,
        "end_lsn": max(partition.last_lsn, 0 if copy is None else copy.last_at(number, copy.last_lsn)),
        "lag_events": lag,
        "lag_seconds": lag_s,
        "lag_bytes": _lag_bytes(buffer, lag),
        "headroom_events": partition.retained - events,
        "headroom_seconds": left_s,
        "trimmed_unread": _trimmed_unread(database, group, number, partition, at.lsn),
        **_set_aside(database, group, number),
        "committed_at": time_text(at.committed_at_us),
        "committed_by": at.committed_by or None,
        "last_read_at": None if read is None else time_text(read.at_us),
        "last_read_by": None if read is None else read.user,
        "member": owner,
    }


def members(database: Parts) -> Iterator[Row]:
    """The rows of ducktail.members."""
    for stream, buffer, group in groups_of_streams(database):
        positions = database.offsets.positions(group.group_id)
        for member in database.members.shown(group, stream.partitions):
            with WHERE_DROPPED:
                lag = sum(
                    lag_events(database, stream, number, buffer.partitions[number], positions[number].lsn)
                    + rows_left(database.catalog.copies.get(group.group_id), number, positions[number].lsn)
                    for number in member.partitions
                    if number in positions  # A group being dropped has none.
                )
                yield {
                    "schema_name": stream.schema,
                    "stream_name": stream.name,
                    "group_name": group.name,
                    "member_name": member.name,
                    "epoch": member.epoch,
                    "partitions": member.partitions,
                    "state": member.state,
                    "lag_events": lag,
                    "joined_at": time_text(member.joined_us),
                    "last_heartbeat": time_text(member.heard_us),
                    "last_read_at": time_text(member.last_read_us),
                    "last_commit_at": time_text(member.last_commit_us),
                    "user_name": member.user,
                }


def _lag_bytes(buffer: StreamBuffer, lag: int) -> int:
    """The approximate size of `lag` events, from the mean of the stream's retained events."""
    with buffer.mutex:
        events = sum(partition.retained for partition in buffer.partitions)
        return round(lag * buffer.retained_bytes.total / events) if events else 0


def _trimmed_unread(database: Parts, group: Group, number: int, partition: PartitionBuffer, lsn: int) -> int:
    """The number of removed events after a group's committed LSN; if unknown, the maximum."""
    if lsn >= partition.trimmed_through_lsn:
        return 0
    places = database.offsets.passed_positions(group.group_id, {number: lsn})
    return partition.trimmed_events - places.get(number, 0)


def _set_aside(database: Parts, group: Group, partition: int | None = None) -> Row:
    """The number of events that a group has parked, and of those released and not yet read again."""
    found = database.parked.get(group.group_id) or NOTHING
    counts = (("parked_events", PARKED), ("released_events", RELEASED))
    return {name: len(found.of(state, partition)) for name, state in counts}


def copies(database: Parts) -> Iterator[Row]:
    """The rows of ducktail.copies."""
    for stream, _, group in groups_of_streams(database):
        copy = database.catalog.copies.get(group.group_id)
        if copy is None:
            continue
        positions = database.offsets.positions(group.group_id)
        yield {
            "schema_name": stream.schema,
            "stream_name": stream.name,
            "group_name": group.name,
            "first_lsn": copy.first_lsn,
            "last_lsn": copy.last_lsn,
            "rows": copy.rows,
            "rows_left": sum(copy.left(number, at.lsn) for number, at in positions.items()),
            "partitions": json.dumps({str(number): last for number, (_, last) in copy.spans.items()}),
            "schema_version": copy.version,
            "made_at": time_text(copy.made_us),
        }


def parked(database: Parts) -> Iterator[Row]:
    """The rows of ducktail.parked."""
    for stream, _, group in groups_of_streams(database):
        found = database.parked.get(group.group_id)
        if found is None:
            continue
        cursor = database.cursor(utc=True)
        try:
            yield from _parked(database, cursor, stream, group, list(found.events.values()))
        finally:
            cursor.close()


def _parked(
    database: Parts,
    cursor: duckdb.DuckDBPyConnection,
    stream: Stream,
    group: Group,
    events: list[ParkedEvent],
) -> Iterator[Row]:
    """A group's rows of ducktail.parked, with the contents of the events' copies."""
    query = event_query(database.catalog, stream).holding([event.lsn for event in events])
    lsns = ", ".join(str(event.lsn) for event in events)
    columns = "lsn, op, before::VARCHAR, after::VARCHAR, epoch_us(commit_time), txid"
    copies = query.parked().sql(f"lsn IN ({lsns})", "false")
    rows = {row[0]: row[1:] for row in cursor.execute(f"SELECT {columns} FROM ({copies})").fetchall()}
    for event in events:
        op, before, after, commit_us, txid = rows.get(event.lsn, (None,) * 5)
        yield {
            "schema_name": stream.schema,
            "stream_name": stream.name,
            "group_name": group.name,
            "partition": event.partition,
            "lsn": event.lsn,
            "state": event.state,
            "key": event.key,
            "behind": _behind(database, cursor, stream, group, event),
            "reason": event.reason,
            "parked_at": time_text(event.parked_at_us),
            "parked_by": event.parked_by or None,
            "op": op,
            "before": before,
            "after": after,
            "commit_time": time_text(commit_us),
            "txid": txid,
            "deliveries": event.deliveries,
            "members": None if event.deliveries is None else list(event.members),
        }


def _behind(
    database: Parts,
    cursor: duckdb.DuckDBPyConnection,
    stream: Stream,
    group: Group,
    event: ParkedEvent,
) -> int:
    """The number of events behind a parked one, up to the key's next parked event."""
    if event.state != PARKED or not event.by_key or event.key is None:
        return 0
    found = database.parked.get(group.group_id) or NOTHING
    heads = [e.lsn for e in found.of(PARKED, event.partition) if e.by_key and same_key(e.key, event.key)]
    until = min((lsn for lsn in heads if lsn > event.lsn), default=None)
    behind = f"partition = {event.partition} AND lsn > {event.lsn}"
    if until is not None:
        behind += f" AND lsn < {until}"
    buffer = database.buffers.of(stream)
    low = max(event.lsn, buffer.partitions[event.partition].trimmed_through_lsn)
    window = f"lsn > {low} AND lsn <= {buffer.end_lsn}"
    events = event_query(database.catalog, stream).between(low + 1, buffer.end_lsn).sql(window, "false")
    of_key = same_key_sql("key::VARCHAR", event.key)
    row = cursor.execute(
        f"SELECT (SELECT count(*) FROM ({events}) WHERE {behind} AND {of_key}) + "
        f"(SELECT count(*) FROM ducktail.parked_events WHERE group_id = {group.group_id} "
        f"AND state = '{BEHIND}' AND {behind} AND lsn <= {low} AND {of_key})"
    ).fetchone()
    assert row is not None
    return int(row[0])


def delivery_counts(database: Parts) -> Iterator[Row]:
    """The rows of ducktail.delivery_counts: events that were delivered and are not committed."""
    for stream, _, group in groups_of_streams(database):
        found = database.deliveries.get(group.group_id)
        committed = {p: at.lsn for p, at in database.offsets.positions(group.group_id).items()}
        live = live_ranges(found, committed, database.parked.get(group.group_id) or NOTHING)
        for partition, ranges in sorted(live.items()):
            for one in ranges:
                yield {
                    "schema_name": stream.schema,
                    "stream_name": stream.name,
                    "group_name": group.name,
                    "partition": partition,
                    "first_lsn": one.first_lsn,
                    "last_lsn": one.last_lsn,
                    "deliveries": one.deliveries,
                    "together": one.together,
                    "members": list(one.members),
                }


def bookmarks(database: Parts) -> Iterator[Row]:
    """The rows of ducktail.bookmarks."""
    for stream, buffer in buffered_streams(database):
        with database.catalog.mutex:
            found = database.catalog.bookmarks_of(stream.stream_id)
        for bookmark in found:
            owner = database.rights.owners.get(bookmark_item(stream.schema, stream.name, bookmark.name))
            yield _bookmark(stream, buffer, bookmark, owner)


def _bookmark(stream: Stream, buffer: StreamBuffer, bookmark: Bookmark, owner: str | None) -> Row:
    events, trimmed = 0, {}
    for number, lsn in sorted(bookmark.lsns.items()):
        partition = buffer.partitions[number]
        position = bookmark.positions.get(number)
        # Unknown if retention had passed the LSN before the bookmark was created.
        gone = partition.trimmed_events - (position or 0)
        if gone > 0 and lsn < partition.trimmed_through_lsn:
            trimmed[number] = gone
        events += min(partition.retained, partition.events - (position or 0))
    return {
        "schema_name": stream.schema,
        "stream_name": stream.name,
        "bookmark_name": bookmark.name,
        "position": json.dumps(dict(sorted(bookmark.lsns.items()))),
        "whole": not trimmed,
        "events": events,
        "trimmed_events": sum(trimmed.values()),
        "trimmed": json.dumps(trimmed) if trimmed else None,
        "created_at": time_text(bookmark.created_at_us),
        "created_by": owner,
    }
