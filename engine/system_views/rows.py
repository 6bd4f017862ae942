"""The rows of the system views whose contents live in memory, as JSON for `ducktail_live(kind)`.

They show the present state, not a transaction's snapshot (like PostgreSQL's pg_stat views). They run on a
DuckDB thread inside a user's query, so they take only short locks; counts that are only in the log are read
on a cursor of their own. group_rows.py has the views about consumer groups.

ducktail.schema_versions has the columns of a stream's events by their schema_version: a captured table has
a version for each change of its columns, from the oldest one that its log still has. Source:
docs/schema_changes.md.

ducktail.checkpoints has the places from which consumers resume: the newest checkpoint of each consumer and
job (`checkpoint_states`), the committed position of each consumer group (`offset_log`), and what pipelines
report of theirs (`pipeline_reports`). Source: docs/checkpoints.md, "SHOW CHECKPOINTS".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from ..catalog.captured_tables import Captured
from ..catalog.rights import Rights, bookmark_item, group_item, pipeline_item, relation
from ..catalog.streams import OPERATIONS, Stream
from ..checkpoints.duckdb_backend import TABLE
from ..checkpoints.positions import PartitionLsns
from ..errors import WrongState
from ..log.log import columns_told, shown_table
from ..log.queries import EventQuery, query_over
from ..parts import Parts
from ..placement.membership import FAILED, OWN_COUNTS, PEER_COUNTS
from ..placement.placement import Node, Placement, ranges_text
from ..quoting import shown_name
from ..settings import ShownSetting, told_everybody
from ..values.dates_times import SECOND_US, duration_text
from . import pipelines as reported
from .feed_rows import sources
from .group_rows import (
    Row,
    bookmarks,
    buffered_streams,
    consumer_groups,
    copies,
    delivery_counts,
    members,
    offsets,
    parked,
    time_text,
)
from .sink_rows import deliveries, sinks

# The type of a pipeline's reported position: a text of its own.
PIPELINE = "pipeline"

_NEWEST = (
    "SELECT stream_id, group_id, key, position_type, position, sequence, watermark_ns, event_count, "
    f"epoch_us(created_at) FROM {TABLE} "
    "QUALIFY row_number() OVER (PARTITION BY stream_id, group_id, key ORDER BY sequence DESC) = 1 "
    "ORDER BY stream_id, group_id, key"
)


def checkpoints(database: Parts) -> Iterator[Row]:
    """The rows of ducktail.checkpoints."""
    now_us = database.clock.now_us()
    cursor = database.cursor(utc=True)
    try:
        states = cursor.execute(_NEWEST).fetchall()
        reports = reported.rows(cursor, history=False)
    finally:
        cursor.close()
    with database.catalog.mutex:
        streams = {stream.stream_id: stream for stream in database.catalog.streams.values()}
        groups = {group.group_id: group for group in database.catalog.groups.values()}
    for stream_id, group_id, key, *state in states:
        stream, group = streams.get(stream_id), groups.get(group_id)
        # Objects dropped since they were read are not shown.
        if (stream is not None or not stream_id) and (group is not None or not group_id):
            yield _checkpoint(now_us, stream, key, None if group is None else group.name, *state)
    for group in sorted(groups.values(), key=lambda one: one.group_id):
        stream = streams.get(group.stream_id)
        positions = database.offsets.positions(group.group_id)
        if stream is not None and positions:
            at_us = max(place.committed_at_us for place in positions.values())
            lsns = PartitionLsns({partition: place.lsn for partition, place in positions.items()})
            yield _checkpoint(now_us, stream, None, group.name, lsns.kind, str(lsns), None, None, None, at_us)
    for report in reports:
        yield _of_pipeline(now_us, report)


def _checkpoint(
    now_us: int,
    stream: Stream | None,
    consumer: str | None,
    group: str | None,
    position_type: str | None,
    position: str | None,
    sequence: int | None,
    watermark_ns: int | None,
    event_count: int | None,
    created_us: int,
) -> Row:
    return {
        "schema_name": None if stream is None else stream.schema,
        "stream_name": None if stream is None else stream.name,
        "consumer_name": consumer,
        "group_name": group,
        "position_type": position_type,
        "position": position,
        "sequence": sequence,
        "watermark": None if watermark_ns is None else _time(watermark_ns // 1000),
        "event_count": event_count,
        "created_at": _time(created_us) if created_us else None,
        "age_seconds": max(0.0, (now_us - created_us) / SECOND_US) if created_us else None,
    }


def _of_pipeline(now_us: int, report: Row) -> Row:
    at_us = round(datetime.fromisoformat(report["reported_at"]).timestamp() * SECOND_US)
    offsets = report["offsets"]
    shown = _checkpoint(
        now_us,
        None,
        report["pipeline_name"],
        None,
        PIPELINE,
        None if offsets is None else json.dumps(json.loads(offsets)),
        report["batch_id"],
        None,
        report["events"],
        at_us,
    )
    return shown | {"watermark": report["watermark"]}


def _time(us: int) -> str | None:
    """A time in the form of the views; None for a time that Python does not support."""
    try:
        return datetime.fromtimestamp(us / SECOND_US, UTC).isoformat()
    except (OverflowError, ValueError, OSError):
        return None


def live_rows(database: Parts, kind: str, account: str | None) -> str:
    """The rows of one view as a JSON array.

    Args:
        account: the asking user, who sees objects that the user has a right on; None for the database's
            owner.
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
    """True if a user without superuser rights may see a row."""
    if row.get("position_type") == PIPELINE and row["stream_name"] is None:
        return rights.owners.get(pipeline_item(row["consumer_name"])) == user
    if "consumer_name" in row and row["stream_name"] is None:
        return False  # A job on another source: it belongs to no user.
    if "stream_name" in row:
        stream = relation(row["schema_name"], row["stream_name"])
        if "bookmark_name" in row:
            item = bookmark_item(row["schema_name"], row["stream_name"], row["bookmark_name"])
            return rights.owners.get(stream) == user or (
                rights.owners.get(item) == user and rights.has(user, "consume", stream)
            )
        group_name = row.get("group_name", row.get("sink_name"))
        if group_name is None:
            # A consumer without a group is visible like a bookmark.
            return rights.owners.get(stream) == user if "consumer_name" in row else rights.sees(user, stream)
        group = group_item(row["schema_name"], row["stream_name"], group_name)
        mine = rights.sees(user, group) and rights.has(user, "consume", stream)
        return mine or rights.owners.get(stream) == user
    if "pipeline_name" in row:
        return rights.owners.get(pipeline_item(row["pipeline_name"])) == user
    # Only superusers see the addresses of nodes and the directories of copies.
    return "user_name" in row and str(row["user_name"]).lower() == user


def _names_text(names: tuple[str, ...]) -> str:
    return ", ".join(map(shown_name, names))


def streams(database: Parts) -> Iterator[Row]:
    """The rows of ducktail.streams."""
    unpublished = _unpublished(database)
    for stream, buffer in buffered_streams(database):
        with database.catalog.mutex:
            if database.catalog.present(stream) is None:
                continue  # It was dropped meanwhile.
            there = database.catalog.tables_of(stream)
        tables = [shown_table(captured.shape) for captured in there if not captured.ours]
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
            "columns": _names_text(stream.columns) or None,
            "filter": stream.filter,
            "partitions": stream.partitions,
            "partition_by": _names_text(stream.partition_by) or None,
            "snapshot": None if stream.topic else stream.snapshot,
            "before": None if stream.topic else stream.before,
            "minimal_changes": None if stream.topic else stream.minimal_changes,
            "compaction": stream.compaction,
            "compaction_lag": duration_text(stream.compaction_lag_us),
            "tombstone_retention": duration_text(stream.tombstone_retention_us),
            "buffer_bytes": stream.buffer_bytes,
            "retention": None if stream.retention_us is None else duration_text(stream.retention_us),
            "retention_bytes": stream.retention_bytes,
            "created_at": time_text(stream.created_at_us),
            "events": events,
            "bytes": size,
            "end_lsn": end_lsn or None,
            "last_event_at": time_text(last_us),
            "unpublished_events": waiting,
            "unpublished_seconds": database.commit_times.age_us(since_us) / SECOND_US if waiting else 0.0,
            "comment": stream.comment,
            "identity": database.identities.of(stream.stream_id),
            "tables": None if stream.topic else tables,
        }


def _unpublished(database: Parts) -> dict[int, tuple[int, int]]:
    """Table id -> number of its committed events that are not readable yet, and the first commit time."""
    found: dict[int, tuple[int, int]] = {}
    for note in database.publisher.unpublished():
        for table_id, (first_lsn, last_lsn) in note.tables.items():
            events, since_us = found.get(table_id, (0, note.commit_us))
            found[table_id] = (events + last_lsn - first_lsn + 1, since_us)
    return found


def partitions(database: Parts) -> Iterator[Row]:
    """The rows of ducktail.partitions."""
    placement = database.cluster.placement
    for stream, buffer in buffered_streams(database):
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
                    "last_event_at": time_text(partition.last_commit_us),
                    "owner": None if owner is None else owner.name,
                    "owner_host": None if owner is None else owner.host or None,
                    "owner_port": None if owner is None else owner.port or None,
                    "owner_local": None if owner is None else owner.name == placement.local.name,
                    "epoch": placement.epoch,
                    "log": _log(database, stream, number, None if owner is None else owner.name),
                }


def _log(database: Parts, stream: Stream, partition: int, owner: str | None) -> str:
    """The state of a partition's log: if this node has it, and if it should have it."""
    placement = database.cluster.placement
    held = database.holds.of(stream.stream_id, partition).here
    if not stream.topic or not placement.epoch:
        return "here"
    if owner == placement.local.name:
        return "here" if held else "coming"
    return "leaving" if held else "elsewhere"


def _owner(placement: Placement, stream: Stream, partition: int) -> Node | None:
    """The node that owns a partition, or None; a stream on a table is on the table's node."""
    if not stream.topic:
        return placement.local
    try:
        return placement.owner(stream.schema, stream.name, partition)
    except WrongState:
        return None


def pipelines(database: Parts) -> Iterator[Row]:
    """The rows of ducktail.pipelines."""
    yield from _reported(database, history=False)


def pipeline_history(database: Parts) -> Iterator[Row]:
    """The rows of ducktail.pipeline_history."""
    yield from _reported(database, history=True)


def _reported(database: Parts, *, history: bool) -> list[Row]:
    cursor = database.cursor(utc=True)
    try:
        return reported.rows(cursor, history=history)
    finally:
        cursor.close()


def sessions(database: Parts) -> Iterator[Row]:
    """The rows of ducktail.sessions."""
    writer_lock = database.transactions.writer_lock
    holder, waiting = writer_lock.holder(), writer_lock.waiting() | database.group_commit.waiting()
    polling = database.polls.sessions()
    for entry in database.sessions.entries():
        lock = "holds" if entry.session_id == holder else None
        yield {
            "session_id": entry.session_id,
            "user_name": entry.user_name,
            "application_name": entry.application_name,
            "state": entry.state,
            "transaction_started_at": time_text(entry.transaction_us),
            "state_changed_at": time_text(entry.since_us),
            "writer_lock": "waits" if entry.session_id in waiting else lock,
            "waits_for": "events" if entry.session_id in polling else None,
            "node": entry.node,
            "trace": entry.trace or None,
        }


def settings(database: Parts) -> Iterator[Row]:
    """The rows of ducktail.settings."""
    yield from map(_setting, database.shown_settings)


def _setting(item: ShownSetting) -> Row:
    return {
        "name": item.name,
        "setting": item.setting,
        "source": item.source,
        "place": item.place,
        "description": item.about,
    }


def nodes(database: Parts) -> Iterator[Row]:
    """The rows of ducktail.nodes: one for each node, with this node's own counters and those by peer."""
    cluster = database.cluster
    placement, counts = cluster.placement, cluster.counts()
    here = placement.local
    shown = placement.nodes if here in placement.nodes else (*placement.nodes, here)
    for node in shown:
        local = node.name == here.name
        connections = cluster.connections(node.name)
        own = {what: counts[what, "", ""] if local else None for what in OWN_COUNTS}
        of_peer = {what: None if local else counts[what, node.name, ""] for what in PEER_COUNTS}
        failed = {
            cause: count
            for (what, peer, cause), count in sorted(counts.items())
            if what == FAILED and peer == node.name
        }
        yield {
            "node": node.name,
            "host": node.host or None,
            "port": node.port or None,
            "local": local,
            "epoch": placement.epoch if local else cluster.heard_from(node.name),
            "connected": None if local else connections > 0,
            **own,
            **of_peer,
            "failed": None if local else json.dumps(failed),
        }


def placement(database: Parts) -> Iterator[Row]:
    """The rows of ducktail.placement: one for each rule and each node of its partitions."""
    found = database.cluster.placement
    for number, rule in enumerate(found.rules, 1):
        for name in sorted(set(rule.owners)):
            yield {
                "cluster": found.cluster or None,
                "epoch": found.epoch,
                "rule": number,
                "topics": rule.name,
                "node": name,
                "local": name == found.local.name,
                "partitions": ranges_text(rule.partitions_of(name)),
                "places": len(rule.owners),
            }


def schema_versions(database: Parts) -> Iterator[Row]:
    """The rows of ducktail.schema_versions: one for each version of a stream; topics have none."""
    with database.catalog.mutex:
        found: Sequence[tuple[Captured, Stream]] = [
            (captured, stream)
            for captured in database.catalog.tables.values()
            for stream in captured.streams
            if captured.was_dropped or not captured.ours
        ]
    for captured, stream in sorted(found, key=lambda item: item[1].key):
        for part in query_over(captured, stream).parts:
            assert isinstance(part, EventQuery)
            yield _row(part.captured, part.stream)


def continuous_copies(database: Parts) -> Iterator[Row]:
    """The rows of ducktail.continuous_copies: one for each target of copies of the whole database."""
    copies = database.continuous_copies
    for report in () if copies is None else copies.reports():
        status, done = report.status, report.verification
        yield {
            "target": report.target,
            "state": status.state,
            "generation": status.generation,
            "generations": status.generations,
            "checkpoint": status.iteration,
            "log_offset": status.offset,
            "copied_txid": status.txid,
            "copied_lsn": status.lsn,
            "copied_at": None if status.copied_us is None else _time(status.copied_us),
            "lag_seconds": report.lag_s,
            "lag_bytes": report.lag_bytes,
            "lag_transactions": report.lag_transactions,
            "copied_bytes": status.copied_bytes,
            "errors": status.errors,
            "error": status.error,
            "error_at": None if status.error_us is None else _time(status.error_us),
            "retry_at": None if status.retry_us is None else _time(status.retry_us),
            "verified_at": None if done is None else _time(done.at_us),
            "verified_generation": None if done is None else done.generation,
            "verification": None if done is None else done.result,
        }


def _row(captured: Captured, stream: Stream) -> Row:
    """The row of one schema version that the events of a stream have, or may have."""
    shape = captured.shape
    # It belongs to the stream from the time at which both existed.
    newer = captured.first_lsn > stream.created_lsn
    since_us = captured.since_us if newer else stream.created_at_us
    return {
        "schema_name": stream.schema,
        "stream_name": stream.name,
        "table_name": shown_table(shape),
        "schema_version": captured.version,
        "since_lsn": captured.first_lsn if newer else stream.created_lsn + 1,
        "since": datetime.fromtimestamp(since_us / 1_000_000, UTC).isoformat(),
        "primary_key": ", ".join(map(shown_name, shape.primary_key)) or None,
        "columns": json.dumps(columns_told(shape, stream.columns), ensure_ascii=False),
    }


KINDS: dict[str, Callable[[Parts], Iterator[Row]]] = {
    "streams": streams,
    "partitions": partitions,
    "consumer_groups": consumer_groups,
    "offsets": offsets,
    "members": members,
    "copies": copies,
    "parked": parked,
    "sinks": sinks,
    "sources": sources,
    "deliveries": deliveries,
    "delivery_counts": delivery_counts,
    "bookmarks": bookmarks,
    "checkpoints": checkpoints,
    "pipelines": pipelines,
    "pipeline_history": pipeline_history,
    "sessions": sessions,
    "schema_versions": schema_versions,
    "settings": settings,
    "nodes": nodes,
    "placement": placement,
    "continuous_copies": continuous_copies,
}
