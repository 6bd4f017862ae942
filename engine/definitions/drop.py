"""DROP of streams, and of tables with streams."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import duckdb

from .. import rights_changes
from ..catalog.captured_tables import Captured
from ..catalog.copies import forget_sql
from ..catalog.streams import Group, Stream
from ..checks import row_sums
from ..database import Database
from ..duck.identities import drop_statements
from ..errors import DependentObjects, LockNotAvailable, UndefinedObject
from ..groups.offsets import insert_sql
from ..groups.parked import NOTHING
from ..log import deleted_ranges
from ..log.log import side_log
from ..quoting import ident
from ..schema import FEEDS, SINKS
from ..system_views.group_rows import lag_events, rows_left
from ..waiting import Wait, Waiting
from .catalog_rows import run_numbered
from .groups import TABLES_OF_GROUPS

# Tables with rows keyed by a topic's number, in a cluster.
OF_TOPICS = ("partition_holds", "segments", "segment_events", "segment_producers")


def drop_stream(
    database: Database,
    session_id: int,
    cursor: duckdb.DuckDBPyConnection,
    stream: Stream,
    cascade: bool,
    timeout_ms: int,
) -> Waiting[None]:
    """Drop a stream or topic with its groups and bookmarks; the last stream over a log drops the log.

    Raises:
        DependentObjects: a group has unread events and `cascade` is False.
        LockNotAvailable: a lock was not free in time.
        UndefinedObject: the stream was dropped meanwhile.
    """
    yield from database.transactions.lock_writer(session_id, timeout_ms)
    groups: list[Group] = []
    try:
        yield from database.commits.wait_readable()
        known = database.catalog.stream_by_id(stream.stream_id)
        if known is None:
            raise UndefinedObject(f'{stream.kind} "{stream.name}" does not exist')
        # It may have been altered during the wait.
        yield from _lock_groups(database, session_id, known, groups, timeout_ms)
        if not cascade:
            _check_all_read(database, known, groups)
        _drop_locked(database, session_id, cursor, [known], groups)
    finally:
        database.offsets.unlock([group.group_id for group in groups], session_id)
        database.transactions.writer_lock.release(session_id)


def drop_table(
    database: Database,
    session_id: int,
    cursor: duckdb.DuckDBPyConnection,
    key: tuple[str, ...],
    timeout_ms: int,
    judge: Callable[[], None],
) -> Waiting[tuple[Stream, ...]]:
    """Drop a captured table with its streams, their groups and bookmarks, in one transaction.

    Args:
        key: schema and name, folded.
        judge: checks the session's rights, for the table's state under the lock.

    Returns:
        The dropped streams.

    Raises:
        LockNotAvailable: a lock was not free in time, or the table's last stream was dropped meanwhile.
        DependentObjects: another object depends on the table.
    """
    yield from database.transactions.lock_writer(session_id, timeout_ms)
    groups: list[Group] = []
    try:
        yield from database.commits.wait_readable()
        captured = database.catalog.tables.get(key)
        if captured is None:
            raise LockNotAvailable(f'table "{key[-1]}" has just lost its streams', hint="Try again.")
        judge()
        streams = [database.catalog.streams[stream.key] for stream in captured.streams]
        for stream in streams:
            yield from _lock_groups(database, session_id, stream, groups, timeout_ms)
        _drop_locked(database, session_id, cursor, streams, groups, captured)
        return tuple(streams)
    finally:
        database.offsets.unlock([group.group_id for group in groups], session_id)
        database.transactions.writer_lock.release(session_id)


def _lock_groups(
    database: Database, session_id: int, stream: Stream, locked: list[Group], timeout_ms: int
) -> Waiting[None]:
    """Lock a stream's groups against commits; each is added to `locked` as soon as it is requested."""
    for group in database.catalog.groups_of(stream.stream_id):
        locked.append(group)
        future = database.offsets.lock(group.group_id, session_id)
        if future is not None and not (yield Wait(future, timeout_ms / 1000)):
            raise LockNotAvailable(f'consumer group "{group.name}" is committing')


def _check_all_read(database: Database, stream: Stream, groups: Sequence[Group]) -> None:
    buffer = database.buffers[stream.stream_id]
    for group in groups:
        unread = sum(
            lag_events(database, stream, number, buffer.partitions[number], position.lsn)
            + rows_left(database.catalog.copies.get(group.group_id), number, position.lsn)
            for number, position in database.offsets.positions(group.group_id).items()
        )
        # Parked and released events are not processed either.
        unread += len((database.parked.get(group.group_id) or NOTHING).events)
        if unread:
            raise DependentObjects(
                f'cannot drop {stream.kind} "{stream.name}" because consumer group "{group.name}" has '
                f"{unread} unread events",
                hint=f"DROP {stream.kind.upper()} ... CASCADE drops the groups with their offsets as well.",
            )


def _drop_locked(
    database: Database,
    session_id: int,
    cursor: duckdb.DuckDBPyConnection,
    streams: Sequence[Stream],
    groups: Sequence[Group],
    table: Captured | None = None,
) -> None:
    """Drop streams with their groups, logs without other streams, and optionally the table of all of them."""
    dropped = {stream.stream_id for stream in streams}
    under = {source.table_id: source for stream in streams for source in database.catalog.sources_of(stream)}
    ended = [source for source in under.values() if all(own.stream_id in dropped for own in source.streams)]
    assert table is None or table in ended
    group_ids = [group.group_id for group in groups]
    ids, numbers = ", ".join(map(str, group_ids)), ", ".join(str(stream.stream_id) for stream in streams)
    of_streams = (
        *("stream_catalog", "stream_tables", "stream_edges", "bookmark_catalog", "checkpoint_states"),
        *(FEEDS, "feed_tables", "feed_copies", "feed_positions", "mirrors"),
        *OF_TOPICS,
    )
    of_groups = ("group_catalog", *TABLES_OF_GROUPS, SINKS)
    statements = [
        *(f"DELETE FROM ducktail.{name} WHERE stream_id IN ({numbers})" for name in of_streams),
        *(
            f"DROP VIEW IF EXISTS {ident(stream.schema)}.{ident(view)}"
            for stream in streams
            for view in stream.views
        ),
    ]
    tombstone = database.offsets.tombstone() if groups else None
    if tombstone is not None:
        statements += [f"DELETE FROM ducktail.{name} WHERE group_id IN ({ids})" for name in of_groups]
        statements += [forget_sql(ids), insert_sql([tombstone])]
    statements += [
        "DELETE FROM ducktail.meta WHERE name = 'dropped'",
        f"INSERT INTO ducktail.meta VALUES ('dropped', '{database.commits.last_lsn}')",
    ]
    logs = {source.table_id: source.logs for source in ended} | _lost_logs(cursor, numbers, under)
    for table_id, its_logs in logs.items():
        statements += [
            f"DELETE FROM ducktail.table_catalog WHERE table_id = {table_id}",
            row_sums.drop_statement(table_id),
            deleted_ranges.drop_sql(table_id),
            f"DELETE FROM ducktail.schema_catalog WHERE table_id = {table_id}",
            *(f"DROP TABLE {log}" for log in its_logs),
            *(f"DROP TABLE IF EXISTS {side_log(log)}" for log in its_logs),
        ]
    statements += [
        f"DROP TABLE {source.shape.qualified}"
        for source in ended
        if isinstance(source, Captured) and (source.ours or source.is_fed)
    ]
    named = [(stream.schema, stream.name) for stream in streams]
    if table is not None:
        # Without CASCADE: DuckDB's CASCADE may drop other captured tables.
        statements += drop_statements(cursor, table.shape.schema, table.shape.name)
        named.append((table.shape.schema, table.shape.name))
    changes = [rights_changes.Forget(item) for name in named for item in database.rights.of_stream(*name)]

    def show() -> None:
        with database.catalog.mutex:
            for stream in streams:
                database.catalog.drop_stream(stream)
                database.buffers.drop(stream)
                database.topics.dropped(stream)
                database.catalog.segments.drop(stream.stream_id)
                database.holds.drop(stream.stream_id)
                if database.catalog.feeds.pop(stream.stream_id, None) is not None:
                    # Its mirrors remain, as tables of their owners.
                    mirrors = database.catalog.mirrors.items()
                    for key in [key for key, one in mirrors if one.stream_id == stream.stream_id]:
                        del database.catalog.mirrors[key]
                    database.feed_activity.forget(stream.stream_id)
            database.catalog.version += 1
            for table_id, source in under.items():
                database.snapshots.stream_dropped(table_id, last=source in ended)
                if source in ended:
                    database.unlike.pop(table_id, None)
        # Before its members are removed, which would wake their reads without the reason.
        for stream in streams:
            database.polls.stream_dropped(stream)
        if tombstone is not None:
            database.offsets.drop_groups(group_ids, tombstone)
            database.members.forget(group_ids)
            database.forget_reads(group_ids)
            database.sink_activity.forget(group_ids)
            database.sink_activity.changed()
        for group_id in group_ids:
            database.parked.put(group_id, NOTHING)
        database.deliveries.forget(group_ids)

    # No session saves a checkpoint meanwhile: it would remain, or both would write one row.
    with database.checkpoints.mutex:
        run_numbered(database, session_id, cursor, statements, show, changes)
    database.deliveries.sweep(group_ids)


def _lost_logs(
    cursor: duckdb.DuckDBPyConnection, numbers: str, there: Collection[int]
) -> dict[int, tuple[str, ...]]:
    """The logs of tables dropped without ducktail whose only streams are those being dropped: table id -> its
    logs."""
    of_streams = "SELECT table_id FROM ducktail.stream_tables WHERE stream_id"
    rows = cursor.execute(
        f"{of_streams} IN ({numbers}) AND table_id NOT IN ({of_streams} NOT IN ({numbers})) "
        "AND table_id NOT IN (SELECT table_id FROM ducktail.stream_catalog)"
    ).fetchall()
    lost = sorted({int(table_id) for (table_id,) in rows}.difference(there))
    tables = "SELECT table_name FROM system.main.duckdb_tables() WHERE database_name = current_database() "
    return {
        table_id: tuple(
            f"ducktail.{ident(name)}"
            for (name,) in cursor.execute(
                f"{tables} AND schema_name = 'ducktail' AND starts_with(table_name, 'log_{table_id}_')"
            ).fetchall()
        )
        for table_id in lost
    }
