"""The rows of the system views that live in memory, as JSON for `ducktail_live(kind)`.

They show the present state, not a transaction's snapshot (as PostgreSQL's pg_stat views do). They
run on a DuckDB thread inside somebody's query, so they take only short locks; where a count is
only in the log they ask it on a cursor of their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import duckdb

from . import pipelines as reported
from .asking import ask_maybe
from .buffers.buffer import PartitionBuffer, StreamBuffer
from .buffers.buffers import Buffers
from .buffers.publisher import Publisher
from .checkpoints.shown import PIPELINE, checkpoints
from .clock import Clock
from .errors import WrongState
from .log.log import EVENT_NAMES, event_query
from .log.schema_json import shown_table
from .log.schema_versions import schema_versions
from .members.assigned import Assigned
from .offsets.offsets import Offsets, Position
from .offsets.parked import BEHIND, NOTHING, PARKED, RELEASED, Parked, ParkedEvent
from .offsets.polls import Polls
from .placement import rows as cluster_rows
from .placement.holds import Holds
from .placement.identities import Identities
from .placement.membership import Membership
from .placement.node import Node
from .placement.placement import Placement
from .quoting import shown_name
from .rights.rights import Rights, bookmark_item, group_item, pipeline_item, relation
from .sessions import Sessions
from .settings import ShownSetting, told_everybody
from .streams import segments
from .streams.copies import Copy
from .streams.streams import OPERATIONS, Bookmark, Catalog, Group, Stream
from .transactions.transactions import Transactions
from .values import datarow
from .values.durations import SECOND_US, interval_text

Row = dict[str, Any]
COMMIT_TIME = EVENT_NAMES.index("commit_time")


@dataclass(frozen=True, slots=True)
class LastRead:
    """When a group last read a partition (microseconds since 1970), for whom, and as which member."""

    at_us: int
    user: str
    member: str | None


class LiveSource(Protocol):
    """What the views need of an open database (`database.Database`)."""

    catalog: Catalog
    rights: Rights
    buffers: Buffers
    offsets: Offsets
    last_reads: dict[tuple[int, int], LastRead]
    members: Assigned
    parked: Parked
    sessions: Sessions
    polls: Polls
    transactions: Transactions
    publisher: Publisher
    shown_settings: tuple[ShownSetting, ...]
    clock: Clock
    cluster: Membership
    holds: Holds
    identities: Identities

    def cursor(self, *, utc: bool = False) -> duckdb.DuckDBPyConnection:
        """A cursor of the engine's own."""


def live_rows(database: LiveSource, kind: str, account: str | None) -> str:
    """The rows of one view as a JSON array.

    Args:
        account: who asks: he is told of what he has a right on; None is the owner of the database.
    """
    rows = KINDS.get(kind)
    if rows is None:
        return "[]"
    if account is None:
        return json.dumps(list(rows(database)))
    user = database.rights.users.get(account)
    if user is None:
        return "[]"
    told = user.superuser
    if rows is settings and not told:
        return json.dumps([_setting(item) for item in told_everybody(database.shown_settings)])
    return json.dumps([row for row in rows(database) if told or _is_told(database.rights, account, row)])


def _is_told(rights: Rights, user: str, row: Row) -> bool:
    """Whether a user who is no superuser may know of what a row is about."""
    if row.get("position_type") == PIPELINE:
        return rights.owners.get(pipeline_item(row["consumer_name"])) == user
    if "consumer_name" in row and row["stream_name"] is None:
        return False  # Of a job on something else: nobody's in particular.
    if "stream_name" in row:
        stream = relation(row["schema_name"], row["stream_name"])
        if "bookmark_name" in row:
            item = bookmark_item(row["schema_name"], row["stream_name"], row["bookmark_name"])
            return rights.owners.get(stream) == user or (
                rights.owners.get(item) == user and rights.has(user, "consume", stream)
            )
        if row.get("group_name") is None:
            # A consumer without a group is as nobody else's as a bookmark.
            return rights.owners.get(stream) == user if "consumer_name" in row else rights.sees(user, stream)
        group = group_item(row["schema_name"], row["stream_name"], row["group_name"])
        return rights.sees(user, group) or rights.owners.get(stream) == user
    if "pipeline_name" in row:
        return rights.owners.get(pipeline_item(row["pipeline_name"])) == user
    # Where nodes are is the superusers' business.
    return "user_name" in row and str(row["user_name"]).lower() == user


def _time(us: int | None) -> str | None:
    return None if not us else datetime.fromtimestamp(us / 1_000_000, UTC).isoformat()


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(map(shown_name, names))


def _streams(database: LiveSource) -> list[tuple[Stream, StreamBuffer]]:
    with database.catalog.mutex:
        streams = sorted(database.catalog.streams.values(), key=lambda s: s.key)
        return [(s, database.buffers[s.stream_id]) for s in streams]


def streams(database: LiveSource) -> Iterator[Row]:
    """ducktail.streams."""
    unpublished = _unpublished(database)
    for stream, buffer in _streams(database):
        tables = [shown_table(captured.shape) for captured in database.catalog.tables_of(stream)]
        late = [unpublished[table_id] for table_id in stream.tables if table_id in unpublished]
        waiting = sum(events for events, _ in late)
        since_us = min((us for _, us in late), default=0)
        with buffer.mutex:
            events = sum(p.retained for p in buffer.partitions)
            size = buffer.retained_bytes.total
            end_lsn = buffer.end_lsn
            last_us = max(p.last_commit_us for p in buffer.partitions)
        yield {
            "schema_name": stream.schema,
            "stream_name": stream.name,
            "table_name": None if stream.topic else ", ".join(tables),
            "operations": ", ".join(op for op in (*OPERATIONS, "publish") if op in stream.operations),
            "columns": _names(stream.columns) or None,
            "filter": stream.filter,
            "partitions": stream.partitions,
            "partition_by": _names(stream.partition_by) or None,
            "snapshot": None if stream.topic else stream.snapshot,
            "before": None if stream.topic else stream.before,
            "minimal_changes": None if stream.topic else stream.minimal_changes,
            "compaction": stream.compaction,
            "compaction_lag": interval_text(stream.compaction_lag_us),
            "tombstone_retention": interval_text(stream.tombstone_retention_us),
            "buffer_bytes": stream.buffer_bytes,
            "retention": None if stream.retention_us is None else interval_text(stream.retention_us),
            "retention_bytes": stream.retention_bytes,
            "created_at": _time(stream.created_at_us),
            "events": events,
            "bytes": size,
            "end_lsn": end_lsn or None,
            "last_event_at": _time(last_us),
            "unpublished_events": waiting,
            "unpublished_seconds": max(0.0, (database.clock.now_us() - since_us) / SECOND_US)
            if waiting
            else 0.0,
            "comment": stream.comment,
            "identity": database.identities.of(stream.stream_id),
            "tables": None if stream.topic else tables,
        }


def _unpublished(database: LiveSource) -> dict[int, tuple[int, int]]:
    """Table id -> how many of its events are committed and not readable yet, and since when the first is."""
    found: dict[int, tuple[int, int]] = {}
    for note in database.publisher.unpublished():
        for table_id, (first_lsn, last_lsn) in note.tables.items():
            events, since_us = found.get(table_id, (0, note.commit_us))
            found[table_id] = (events + last_lsn - first_lsn + 1, since_us)
    return found


def partitions(database: LiveSource) -> Iterator[Row]:
    """ducktail.partitions."""
    placement = database.cluster.placement
    for stream, buffer in _streams(database):
        with buffer.mutex:
            for number, partition in enumerate(buffer.partitions):
                owner = _owner(placement, stream, number)
                yield {
                    "schema_name": stream.schema,
                    "stream_name": stream.name,
                    "partition": number,
                    "first_lsn": partition.first_lsn,
                    "last_lsn": partition.last_lsn or None,
                    "events": partition.retained,
                    "bytes": partition.buffered_bytes,
                    "buffered_from_lsn": partition.buffered_from_lsn,
                    "trimmed_events": partition.trimmed_events,
                    "trimmed_through_lsn": partition.trimmed_through_lsn or None,
                    "compacted_through_lsn": buffer.compacted_lsn or None,
                    "last_event_at": _time(partition.last_commit_us),
                    "owner": None if owner is None else owner.name,
                    "owner_host": None if owner is None else owner.host or None,
                    "owner_port": None if owner is None else owner.port or None,
                    "owner_local": None if owner is None else owner.name == placement.local.name,
                    "epoch": placement.epoch,
                    "log": _log(database, stream, number, None if owner is None else owner.name),
                }


def _log(database: LiveSource, stream: Stream, partition: int, owner: str | None) -> str:
    """Whether this node has a partition's log, and whether it is to have it."""
    placement = database.cluster.placement
    held = database.holds.of(stream.stream_id, partition).here
    if not stream.topic or not placement.epoch:
        return "here"
    if owner == placement.local.name:
        return "here" if held else "coming"
    return "leaving" if held else "elsewhere"


def _owner(placement: Placement, stream: Stream, partition: int) -> Node | None:
    """The node that owns a partition, None where no node does; a stream on a table is where the table is."""
    if not stream.topic:
        return placement.local
    try:
        return placement.owner(stream.schema, stream.name, partition)
    except WrongState:
        return None


def _groups(database: LiveSource) -> Iterator[tuple[Stream, StreamBuffer, Group]]:
    for stream, buffer in _streams(database):
        with database.catalog.mutex:
            groups = database.catalog.groups_of(stream.stream_id)
        for group in groups:
            yield stream, buffer, group


def lag_events(
    database: LiveSource, stream: Stream, number: int, partition: PartitionBuffer, lsn: int
) -> int:
    """Readable events after `lsn` in a partition: exact, from the log where it must be."""
    before = partition.position_after(lsn)
    if before is not None:
        return partition.events - before
    return _count_after(database, stream, number, lsn, partition.last_lsn)


def rows_left(copy: Copy | None, number: int, lsn: int) -> int:
    """How many rows of a group's whole copy its reader is still to get in a partition, behind `lsn`."""
    return 0 if copy is None else copy.left(number, lsn)


def position_of(database: LiveSource, stream: Stream, number: int, buffer: StreamBuffer, lsn: int) -> int:
    """How many of a partition's events are at or before `lsn`: exact, from the log where it must be."""
    partition = buffer.partitions[number]
    with buffer.mutex:
        before, events, last_lsn = partition.position_after(lsn), partition.events, partition.last_lsn
    if before is not None:
        return before
    return events - _count_after(database, stream, number, lsn, last_lsn)


def _count_after(database: LiveSource, stream: Stream, number: int, lsn: int, last_lsn: int) -> int:
    """How many of a partition's events are after an LSN, up to the last one."""
    moved, lsn = _moved_after(database, stream, number, lsn, segments.count_after)
    return (moved or 0) + int(_ask_log(database, stream, number, lsn, last_lsn, "count(*)"))


def _moved_after(
    database: LiveSource,
    stream: Stream,
    number: int,
    lsn: int,
    ask: Callable[[duckdb.DuckDBPyConnection, int, int, int], int | None],
) -> tuple[int | None, int]:
    """What the events after an LSN say that have moved here with their partition; where its own begin.

    Args:
        ask: of a cursor, the stream's id, the partition and the LSN.
    """
    segment = database.catalog.segments.of(stream.stream_id).get(number)
    if segment is None or lsn >= segment.base_lsn:
        return None, lsn
    cursor = database.cursor()
    try:
        return ask(cursor, stream.stream_id, number, lsn), segment.base_lsn
    finally:
        cursor.close()


def _oldest_unread_s(
    database: LiveSource, stream: Stream, number: int, partition: PartitionBuffer, lsn: int
) -> float:
    """How long ago the first event after `lsn` was committed, in seconds."""
    moved_us, lsn = _moved_after(database, stream, number, lsn, segments.first_us)
    if moved_us is not None:
        return max(0.0, (database.clock.now_us() - moved_us) / 1_000_000)
    place = partition.after(lsn)
    if partition.complete_after(lsn) and place < len(partition.rows):
        text = datarow.fields(partition.rows[place])[COMMIT_TIME]
        assert text is not None
        committed_us = datetime.fromisoformat(text.decode()).timestamp() * 1_000_000
    else:
        oldest = "epoch_us(min(commit_time))"
        committed_us = float(_ask_log(database, stream, number, lsn, partition.last_lsn, oldest))
    return max(0.0, (database.clock.now_us() - committed_us) / 1_000_000)


def _ask_log(
    database: LiveSource,
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
    finally:
        cursor.close()
    assert row is not None
    return int(row[0] or 0)


def consumer_groups(database: LiveSource) -> Iterator[Row]:
    """ducktail.consumer_groups."""
    for stream, buffer, group in _groups(database):
        lag = sum(
            lag_events(database, stream, number, buffer.partitions[number], position.lsn)
            + rows_left(database.catalog.copies.get(group.group_id), number, position.lsn)
            for number, position in database.offsets.positions(group.group_id).items()
        )
        yield {
            "schema_name": stream.schema,
            "stream_name": stream.name,
            "group_name": group.name,
            "start": group.start,
            "on_gap": group.on_gap,
            "session_timeout": interval_text(group.session_timeout_ms * 1000),
            "on_park": group.on_park,
            "created_at": _time(group.created_at_us),
            "lag_events": lag,
            "members": len(database.members.shown(group, stream.partitions)),
            **_set_aside(database, group),
        }


def offsets(database: LiveSource) -> Iterator[Row]:
    """ducktail.offsets."""
    for stream, buffer, group in _groups(database):
        positions = database.offsets.positions(group.group_id)
        owners = database.members.owners(group, stream.partitions)
        for number in sorted(positions):
            yield _offset(database, stream, buffer, group, number, positions[number], owners[number])


def _offset(
    database: LiveSource,
    stream: Stream,
    buffer: StreamBuffer,
    group: Group,
    number: int,
    at: Position,
    owner: str | None,
) -> Row:
    partition = buffer.partitions[number]
    events = lag = lag_events(database, stream, number, partition, at.lsn)
    lag_s = _oldest_unread_s(database, stream, number, partition, at.lsn) if lag else 0.0
    copy = database.catalog.copies.get(group.group_id)
    if copy is not None and copy.left(number, at.lsn):
        lag += copy.left(number, at.lsn)
        lag_s = max(0.0, (database.clock.now_us() - copy.made_us) / SECOND_US)
    read = database.last_reads.get((group.group_id, number))
    left_s = None
    if lag and stream.retention_us is not None:
        # Retention takes nothing of a copy: events behind it are as old as it at the most.
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
        "committed_at": _time(at.committed_at_us),
        "committed_by": at.committed_by or None,
        "last_read_at": None if read is None else _time(read.at_us),
        "last_read_by": None if read is None else read.user,
        "member": owner,
    }


def members(database: LiveSource) -> Iterator[Row]:
    """ducktail.members."""
    for stream, buffer, group in _groups(database):
        positions = database.offsets.positions(group.group_id)
        for member in database.members.shown(group, stream.partitions):
            yield {
                "schema_name": stream.schema,
                "stream_name": stream.name,
                "group_name": group.name,
                "member_name": member.name,
                "epoch": member.epoch,
                "partitions": member.partitions,
                "state": member.state,
                "lag_events": sum(
                    lag_events(database, stream, number, buffer.partitions[number], positions[number].lsn)
                    + rows_left(database.catalog.copies.get(group.group_id), number, positions[number].lsn)
                    for number in member.partitions
                    if number in positions  # A group that is being dropped has none.
                ),
                "joined_at": _time(member.joined_us),
                "last_heartbeat": _time(member.heard_us),
                "last_read_at": _time(member.last_read_us),
                "last_commit_at": _time(member.last_commit_us),
                "user_name": member.user,
            }


def _lag_bytes(buffer: StreamBuffer, lag: int) -> int:
    """About how many bytes so many events are: as the stream's retained events are on average."""
    with buffer.mutex:
        events = sum(partition.retained for partition in buffer.partitions)
        return round(lag * buffer.retained_bytes.total / events) if events else 0


def _trimmed_unread(
    database: LiveSource, group: Group, number: int, partition: PartitionBuffer, lsn: int
) -> int:
    """How many events behind a group's committed LSN are gone; where that is not known, the most."""
    if lsn >= partition.trimmed_through_lsn:
        return 0
    place = database.offsets.passed_position(group.group_id, number, lsn)
    return partition.trimmed_events - (place or 0)


def _set_aside(database: LiveSource, group: Group, partition: int | None = None) -> Row:
    """How many events a group has parked, and released and not read again."""
    found = database.parked.get(group.group_id) or NOTHING
    counts = (("parked_events", PARKED), ("released_events", RELEASED))
    return {name: len(found.of(state, partition)) for name, state in counts}


def copies(database: LiveSource) -> Iterator[Row]:
    """ducktail.copies."""
    for stream, _, group in _groups(database):
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
            "made_at": _time(copy.made_us),
        }


def parked(database: LiveSource) -> Iterator[Row]:
    """ducktail.parked."""
    for stream, _, group in _groups(database):
        found = database.parked.get(group.group_id)
        if found is None:
            continue
        cursor = database.cursor(utc=True)
        try:
            yield from _parked(database, cursor, stream, group, list(found.events.values()))
        finally:
            cursor.close()


def _parked(
    database: LiveSource,
    cursor: duckdb.DuckDBPyConnection,
    stream: Stream,
    group: Group,
    events: list[ParkedEvent],
) -> Iterator[Row]:
    """A group's rows of ducktail.parked, with what the copies of the events say."""
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
            "parked_at": _time(event.parked_at_us),
            "parked_by": event.parked_by or None,
            "op": op,
            "before": before,
            "after": after,
            "commit_time": _time(commit_us),
            "txid": txid,
        }


def _behind(
    database: LiveSource,
    cursor: duckdb.DuckDBPyConnection,
    stream: Stream,
    group: Group,
    event: ParkedEvent,
) -> int:
    """How many events stand behind a parked one, up to the next parked one of its key."""
    if event.state != PARKED or not event.by_key or event.key is None:
        return 0
    found = database.parked.get(group.group_id) or NOTHING
    heads = [e.lsn for e in found.of(PARKED, event.partition) if e.by_key and e.key == event.key]
    until = min((lsn for lsn in heads if lsn > event.lsn), default=None)
    behind = f"partition = {event.partition} AND lsn > {event.lsn}"
    if until is not None:
        behind += f" AND lsn < {until}"
    buffer = database.buffers.of(stream)
    low = max(event.lsn, buffer.partitions[event.partition].trimmed_through_lsn)
    window = f"lsn > {low} AND lsn <= {buffer.end_lsn}"
    events = event_query(database.catalog, stream).between(low + 1, buffer.end_lsn).sql(window, "false")
    row = cursor.execute(
        f"SELECT (SELECT count(*) FROM ({events}) WHERE {behind} AND key::VARCHAR = $1) + "
        f"(SELECT count(*) FROM ducktail.parked_events WHERE group_id = {group.group_id} "
        f"AND state = '{BEHIND}' AND {behind} AND lsn <= {low} AND key = $1)",
        [event.key],
    ).fetchone()
    assert row is not None
    return int(row[0])


def bookmarks(database: LiveSource) -> Iterator[Row]:
    """ducktail.bookmarks."""
    for stream, buffer in _streams(database):
        with database.catalog.mutex:
            found = database.catalog.bookmarks_of(stream.stream_id)
        for bookmark in found:
            owner = database.rights.owners.get(bookmark_item(stream.schema, stream.name, bookmark.name))
            yield _bookmark(database, stream, buffer, bookmark, owner)


def _bookmark(
    database: LiveSource, stream: Stream, buffer: StreamBuffer, bookmark: Bookmark, owner: str | None
) -> Row:
    events, trimmed = 0, {}
    for number, lsn in sorted(bookmark.lsns.items()):
        partition = buffer.partitions[number]
        position = bookmark.positions.get(number)
        # Where it is not known, retention had passed the LSN before the bookmark was made.
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
        "created_at": _time(bookmark.created_at_us),
        "created_by": owner,
    }


def pipelines(database: LiveSource) -> Iterator[Row]:
    """ducktail.pipelines."""
    yield from _reported(database, history=False)


def pipeline_history(database: LiveSource) -> Iterator[Row]:
    """ducktail.pipeline_history."""
    yield from _reported(database, history=True)


def _reported(database: LiveSource, *, history: bool) -> list[Row]:
    cursor = database.cursor(utc=True)
    try:
        return reported.rows(cursor, history=history)
    finally:
        cursor.close()


def sessions(database: LiveSource) -> Iterator[Row]:
    """ducktail.sessions."""
    writer_lock = database.transactions.writer_lock
    holder, waiting = writer_lock.holder(), writer_lock.waiting()
    polling = database.polls.sessions()
    for entry in database.sessions.entries():
        lock = "holds" if entry.session_id == holder else None
        yield {
            "session_id": entry.session_id,
            "user_name": entry.user_name,
            "application_name": entry.application_name,
            "state": entry.state,
            "transaction_started_at": _time(entry.transaction_us),
            "state_changed_at": _time(entry.since_us),
            "writer_lock": "waits" if entry.session_id in waiting else lock,
            "waits_for": "events" if entry.session_id in polling else None,
            "node": entry.node,
            "trace": entry.trace or None,
        }


def settings(database: LiveSource) -> Iterator[Row]:
    """ducktail.settings."""
    yield from map(_setting, database.shown_settings)


def _setting(item: ShownSetting) -> Row:
    return {
        "name": item.name,
        "setting": item.setting,
        "source": item.source,
        "place": item.place,
        "description": item.about,
    }


def nodes(database: LiveSource) -> Iterator[Row]:
    """ducktail.nodes."""
    return cluster_rows.nodes(database.cluster)


def placement(database: LiveSource) -> Iterator[Row]:
    """ducktail.placement."""
    return cluster_rows.placement(database.cluster)


KINDS: dict[str, Callable[[LiveSource], Iterator[Row]]] = {
    "streams": streams,
    "partitions": partitions,
    "consumer_groups": consumer_groups,
    "offsets": offsets,
    "members": members,
    "copies": copies,
    "parked": parked,
    "bookmarks": bookmarks,
    "checkpoints": checkpoints,
    "pipelines": pipelines,
    "pipeline_history": pipeline_history,
    "sessions": sessions,
    "schema_versions": schema_versions,
    "settings": settings,
    "nodes": nodes,
    "placement": placement,
}
