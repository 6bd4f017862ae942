"""Loading of memory from the file at the start: the counters, and the catalog of streams.

Source: docs/design/engine.md, "Opening".
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

import duckdb

from ..capture.capture import CapturedTable
from ..catalog import feeds
from ..catalog.captured_tables import Captured, TableVersion
from ..catalog.catalog import Catalog
from ..catalog.copies import read_copies
from ..catalog.sinks import select_sql, sink_of
from ..catalog.streams import Bookmark, Group, Stream, key_of
from ..catalog.triggers import read_triggers
from ..duck.cursors import ask, in_one_transaction
from ..duck.table_shape import RELATIONS, read_shape, tables_in
from ..errors import DucktailError, UndefinedTable, WrongState
from ..log.envelope_changes import ChangesQuery, clashing, view_name
from ..log.log import log_name, version_of
from ..log.queries import EventQuery, event_query
from ..quoting import folded_sql, ident, shown_name
from ..schema import DROPPED, SCHEMA
from .side_file import CatalogCounts

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Counters:
    """The last captured commit: its number, its last LSN, its time (microseconds since 1970)."""

    txid: int
    lsn: int
    commit_us: int


def read_counters(cursor: duckdb.DuckDBPyConnection) -> Counters:
    """The counters stored in the file; zeros if nothing was captured yet."""
    txid, lsn, commit_us = ask(
        cursor,
        "SELECT coalesce(max(txid), 0), coalesce(max(last_lsn), 0), "
        "coalesce(max(epoch_us(commit_time)), 0) FROM ducktail.commits",
    )
    return Counters(txid, lsn, commit_us)


def read_objects(cursor: duckdb.DuckDBPyConnection) -> CatalogCounts:
    """The number of streams and groups in the file, including those of dropped tables."""
    counts = [
        ask(cursor, f"SELECT count(*), coalesce(sum({number}), 0)::BIGINT FROM {SCHEMA}.{table}")
        for number, table in (("stream_id", "stream_catalog"), ("group_id", "group_catalog"))
    ]
    (streams, stream_ids), (groups, group_ids) = counts
    return CatalogCounts(streams, groups, stream_ids + group_ids)


def read_catalog(cursor: duckdb.DuckDBPyConnection) -> Catalog:
    """Captured tables, streams, groups and bookmarks from the file.

    Raises:
        duckdb.Error: the catalog's own tables cannot be read.
    """
    catalog = Catalog()
    tables = cursor.execute(
        "SELECT table_id, schema_name, table_name, version FROM ducktail.table_catalog ORDER BY 1"
    ).fetchall()
    served: dict[int, Captured] = {}
    # The name of a table dropped without ducktail is used by a newer table: older versions allow both.
    newest = {key_of(schema_name, table_name): table_id for table_id, schema_name, table_name, _ in tables}
    for table_id, schema_name, table_name, version in tables:
        try:
            if newest[key_of(schema_name, table_name)] != table_id:
                raise UndefinedTable(f'another table is called "{table_name}" now')
            shape = read_shape(cursor, schema_name, table_name, is_captured=True)
        except DucktailError as error:
            # It was dropped while no ducktail had the file open; the other tables are served.
            logger.error('streams of table "%s.%s" are not served: %s', schema_name, table_name, error)
            shown = f"{shown_name(schema_name)}.{shown_name(table_name.removesuffix(DROPPED))}"
            for stream in _read_streams(cursor, f"table_id = {table_id}"):
                catalog.unserved[stream.key] = shown
            continue
        table = CapturedTable(shape, log_name(table_id, version), frozenset(shape.primary_key))
        *older, present = _read_versions(cursor, table_id, _unaltered(version, table))
        captured = Captured(
            table_id,
            version,
            table,
            first_lsn=present.first_lsn,
            since_us=present.since_us,
            older=tuple(older),
            column_ids=present.ids,
            txid=present.txid,
            renamed_from=present.renamed_from,
        )
        stored = tuple(column.name for column in shape.stored)
        for stream in _read_streams(cursor, f"table_id = {table_id}", stored):
            catalog.put_stream(stream, [(captured, stream)])
        served[table_id] = captured
    _put_several(cursor, catalog, served)
    aside = cursor.execute(f"SELECT schema_name, table_name FROM {SCHEMA}.replaced_tables").fetchall()
    catalog.aside = {key_of(*name) for name in aside}
    catalog.triggers = read_triggers(cursor)
    for stream in catalog.streams.values():
        _look_behind(cursor, catalog, stream)
    for topic in _read_streams(cursor, "operations = ['publish']"):
        catalog.put_stream(topic)
    for row in cursor.execute(
        "SELECT group_id, stream_id, group_name, start, epoch_us(created_at), on_gap, session_timeout_ms, "
        "on_park, max_deliveries "
        "FROM ducktail.group_catalog LEFT JOIN ducktail.delivery_limits USING (group_id) ORDER BY group_id"
    ).fetchall():
        group = Group(*row)
        catalog.groups[group.key] = group
    there = {group.group_id for group in catalog.groups.values()}
    catalog.copies = {number: copy for number, copy in read_copies(cursor).items() if number in there}
    sinks = map(sink_of, cursor.execute(select_sql()).fetchall())
    catalog.sinks = {sink.group_id: sink for sink in sinks if sink.group_id in there}
    rows, tables = cursor.execute(feeds.SELECT).fetchall(), cursor.execute(feeds.SELECT_TABLES).fetchall()
    catalog.feeds = feeds.feeds_of(rows, tables)
    mirrors = (feeds.Mirror(*row) for row in cursor.execute(feeds.SELECT_MIRRORS).fetchall())
    catalog.mirrors = {mirror.key: mirror for mirror in mirrors if _is_there(cursor, mirror)}
    for bookmark in _read_bookmarks(cursor):
        catalog.bookmarks[bookmark.key] = bookmark
    return catalog


def _is_there(cursor: duckdb.DuckDBPyConnection, mirror: feeds.Mirror) -> bool:
    """True if the table of a mirror exists: it may have been dropped while no ducktail had the file open."""
    try:
        read_shape(cursor, mirror.schema, mirror.name, is_captured=True)
    except DucktailError as error:
        logger.error('table "%s.%s" mirrors no source any more: %s', mirror.schema, mirror.name, error)
        return False
    return True


def _put_several(cursor: duckdb.DuckDBPyConnection, catalog: Catalog, served: Mapping[int, Captured]) -> None:
    """Add the streams over several tables to the catalog, each on those of its tables that exist."""
    rows = cursor.execute(
        "SELECT stream_id, table_id, created_lsn, partition_by, columns FROM ducktail.stream_tables "
        "ORDER BY place"
    ).fetchall()
    for stream in _read_streams(cursor, "stream_id IN (SELECT stream_id FROM ducktail.stream_tables)"):
        mine = [row for row in rows if row[0] == stream.stream_id and row[1] in served]
        several = tuple(row[1] for row in mine)
        parts = []
        for _, table_id, created_lsn, partition_by, columns in mine:
            part = replace(
                stream,
                table_id=table_id,
                columns=tuple(columns),
                partition_by=tuple(partition_by),
                created_lsn=created_lsn,
                several=several,
            )
            parts.append((served[table_id], part))
        asked = parts[0][1].partition_by if parts and stream.partition_by else ()
        catalog.put_stream(replace(stream, several=several, partition_by=asked), parts)


def _look_behind(cursor: duckdb.DuckDBPyConnection, catalog: Catalog, stream: Stream) -> None:
    """Find tables created without ducktail in the schema that a stream covers."""
    if stream.of_schema is None:
        return
    came = came_past(cursor, catalog, stream.of_schema)
    if came:
        named = ", ".join(".".join(map(shown_name, name)) for name in came)
        catalog.behind[stream.stream_id] = WrongState(
            f'tables have come past ducktail into the schema that stream "{stream.name}" is on: {named}',
            detail="Changes of them are not captured; those of the other tables are.",
            hint=f"ALTER STREAM {ident(stream.name)} RESYNC: their rows are told as inserts.",
        )


def came_past(cursor: duckdb.DuckDBPyConnection, catalog: Catalog, schema: str) -> list[tuple[str, str]]:
    """Schema and name of the tables in a schema that streams over the schema should cover and do not."""
    there = tables_in(cursor, schema)
    keys = {name: key_of(*name) for name in there}
    return [name for name, key in keys.items() if key not in catalog.tables and not catalog.is_aside(key)]


def lost_tables(cursor: duckdb.DuckDBPyConnection, catalog: Catalog) -> dict[int, WrongState]:
    """The errors of streams over several tables of which one was dropped without ducktail: stream id
    -> the error for its readers.
    """
    rows = cursor.execute(
        "SELECT s.stream_id, t.schema_name, t.table_name, s.table_id FROM ducktail.stream_tables AS s "
        "JOIN ducktail.table_catalog AS t USING (table_id) ORDER BY s.place DESC"
    ).fetchall()
    found: dict[int, WrongState] = {}
    for stream_id, schema_name, table_name, table_id in rows:
        stream = catalog.stream_by_id(stream_id)
        if stream is not None and table_id not in stream.tables:
            table_name = table_name.removesuffix(DROPPED)
            found[stream_id] = WrongState(
                f'table "{table_name}" of stream "{stream.name}" does not exist any more',
                detail=f"{shown_name(schema_name)}.{shown_name(table_name)} was dropped past ducktail. All "
                "changes of the other tables are captured.",
                hint="DROP STREAM, and make it again on the tables that are there.",
            )
    return found


def _read_versions(
    cursor: duckdb.DuckDBPyConnection, table_id: int, present: TableVersion
) -> list[TableVersion]:
    """The versions of a captured table, oldest first; the present one, read from the table, is last."""
    rows = cursor.execute(
        "SELECT version, first_lsn, epoch_us(since), shape FROM ducktail.schema_catalog "
        f"WHERE table_id = {table_id} ORDER BY version"
    ).fetchall()
    found = []
    for version, first_lsn, since_us, text in rows:
        kept = version_of(text)
        shape, ids = kept.shape, kept.ids
        if version == present.version:
            # It may have got further columns without ducktail, which have no number: CHECK STREAM reports
            # them.
            known = dict(zip((column.name for column in shape.stored), ids, strict=True))
            stored = enumerate(present.table.shape.stored, 1)
            ids = tuple(known.get(column.name, -place) for place, column in stored)
            present = replace(
                present,
                first_lsn=first_lsn,
                since_us=since_us,
                ids=ids,
                txid=kept.txid,
                renamed_from=kept.renamed_from,
            )
            continue
        table = CapturedTable(shape, log_name(table_id, version), frozenset(shape.primary_key))
        found.append(TableVersion(version, first_lsn, since_us, table, ids, *kept[2:]))
    return [*found, present]


def _unaltered(version: int, table: CapturedTable) -> TableVersion:
    return TableVersion(version, 0, 0, table, tuple(range(1, len(table.shape.stored) + 1)))


def _read_bookmarks(cursor: duckdb.DuckDBPyConnection) -> list[Bookmark]:
    rows = cursor.execute(
        "SELECT bookmark_id, stream_id, bookmark_name, lsns, positions, epoch_us(created_at) "
        "FROM ducktail.bookmark_catalog ORDER BY bookmark_id"
    ).fetchall()
    return [
        Bookmark(number, stream_id, name, _by_partition(lsns), _by_partition(positions), created_us)
        for number, stream_id, name, lsns, positions, created_us in rows
    ]


def _by_partition(text: str) -> dict[int, int]:
    return {int(partition): value for partition, value in json.loads(text).items()}


def refresh_views(cursor: duckdb.DuckDBPyConnection, catalog: Catalog) -> None:
    """Recreate the views of streams from an older format, which lack annotations."""
    if not catalog.streams:
        return  # Reading the texts of all views takes a tenth of the time of an opening.
    rows = cursor.execute(
        "SELECT schema_name, view_name FROM system.main.duckdb_views() "
        "WHERE database_name = current_database() AND NOT contains(sql, 'annotation')"
    ).fetchall()
    found = {key_of(*name) for name in rows}
    older = [stream for stream in catalog.streams.values() if stream.key in found]
    with in_one_transaction(cursor):
        for stream in older:
            name = f"{ident(stream.schema)}.{ident(stream.name)}"
            cursor.execute(event_query(catalog, stream).view_sql(name, replaces=True))


def make_changes_views(cursor: duckdb.DuckDBPyConnection, catalog: Catalog) -> bool:
    """Create the views of typed changes for streams of an older format, in one transaction.

    A stream gets none if the view's name is taken, or if a column has a name reserved by the envelope.

    Returns:
        True if there were such streams; the catalog must then be read again.
    """
    sql = "SELECT stream_id FROM ducktail.stream_catalog WHERE changes_view IS NULL"
    found = [catalog.stream_by_id(row[0]) for row in cursor.execute(sql).fetchall()]
    streams = [stream for stream in found if stream is not None]
    if not streams:
        return False
    with in_one_transaction(cursor):
        for stream in streams:
            name = view_name(stream)
            taken = ask(
                cursor,
                f"SELECT count(*) FROM {RELATIONS} WHERE database_name = current_database() "
                f"AND {folded_sql('schema_name')} = $1 AND {folded_sql('table_name')} = $2",
                list(key_of(stream.schema, name)),
            )
            made = not taken[0] and clashing(stream.columns) is None
            if made:
                query = ChangesQuery(EventQuery(stream, catalog.table_by_id(stream.table_id)))
                cursor.execute(query.view_sql(f"{ident(stream.schema)}.{ident(name)}"))
            else:
                logger.warning('stream "%s" gets no view "%s": the name is taken', stream.name, name)
            cursor.execute(
                f"UPDATE ducktail.stream_catalog SET changes_view = {made} "
                f"WHERE stream_id = {stream.stream_id}"
            )
    return True


def _read_streams(
    cursor: duckdb.DuckDBPyConnection, where: str, stored: tuple[str, ...] = ()
) -> list[Stream]:
    """Streams from the catalog's tables; `stored` are the names of their table's columns."""
    rows = cursor.execute(
        "SELECT stream_id, schema_name, stream_name, operations, columns, filter, partitions, "
        "partition_by, snapshot, before, buffer_bytes, created_lsn, epoch_us(created_at), "
        "retention_us, retention_bytes, coalesce(changes_view, false), table_id, comment, all_columns, "
        "minimal_changes, compaction, compaction_lag_us, tombstone_retention_us, of_schema "
        f"FROM ducktail.stream_catalog WHERE {where} ORDER BY stream_id"
    ).fetchall()
    return [
        Stream(
            stream_id=row[0],
            schema=row[1],
            name=row[2],
            table_id=row[16],
            operations=frozenset(row[3]),
            columns=tuple(row[4]),
            filter=row[5],
            partitions=row[6],
            partition_by=tuple(row[7]),
            snapshot=row[8],
            before=row[9],
            buffer_bytes=row[10],
            created_lsn=row[11],
            created_at_us=row[12],
            retention_us=row[13],
            retention_bytes=row[14],
            changes_view=row[15],
            comment=row[17],
            all_columns=tuple(row[4]) == stored if row[18] is None else row[18],
            minimal_changes=row[19],
            compaction=row[20],
            compaction_lag_us=row[21],
            tombstone_retention_us=row[22],
            of_schema=row[23],
        )
        for row in rows
    ]
