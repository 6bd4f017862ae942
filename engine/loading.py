"""What memory knows at the start, read from the file: the counters, and the catalog of streams.

Source: docs/design/engine.md, "Opening".
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import duckdb

from .asking import ask
from .capture import CapturedTable
from .errors import DucktailError
from .log import log_name
from .streams import Captured, Catalog, Group, Stream
from .table import read_shape

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Counters:
    """The last captured commit: its number, its last LSN, its time (microseconds since 1970)."""

    txid: int
    lsn: int
    commit_us: int


def read_counters(cursor: duckdb.DuckDBPyConnection) -> Counters:
    """The counters as the file has them; zeros where nothing was captured yet."""
    row = ask(
        cursor,
        "SELECT coalesce(max(txid), 0), coalesce(max(last_lsn), 0), "
        "coalesce(max(epoch_us(commit_time)), 0) FROM ducktail.commits",
    )
    return Counters(*row)


def read_catalog(cursor: duckdb.DuckDBPyConnection) -> Catalog:
    """Captured tables, streams and groups, as the file has them.

    Raises:
        duckdb.Error: the catalog's own tables cannot be read.
    """
    catalog = Catalog()
    tables = cursor.execute(
        "SELECT table_id, schema_name, table_name, version FROM ducktail.table_catalog ORDER BY 1"
    ).fetchall()
    for table_id, schema_name, table_name, version in tables:
        try:
            shape = read_shape(cursor, schema_name, table_name)
        except DucktailError as error:
            # It was dropped while no ducktail had the file open: the others are served all the same.
            logger.error('streams of table "%s.%s" are not served: %s', schema_name, table_name, error)
            continue
        table = CapturedTable(shape, log_name(table_id, version), frozenset(shape.primary_key))
        captured = Captured(table_id, version, table)
        for stream in _read_streams(cursor, table_id):
            catalog.put_stream(captured, stream)
    for row in cursor.execute(
        "SELECT group_id, stream_id, group_name, start, epoch_us(created_at), on_gap "
        "FROM ducktail.group_catalog ORDER BY group_id"
    ).fetchall():
        group = Group(*row)
        catalog.groups[group.key] = group
    return catalog


def _read_streams(cursor: duckdb.DuckDBPyConnection, table_id: int) -> list[Stream]:
    rows = cursor.execute(
        "SELECT stream_id, schema_name, stream_name, operations, columns, filter, partitions, "
        "partition_by, snapshot, before, buffer_bytes, created_lsn, epoch_us(created_at), "
        "retention_us, retention_bytes "
        f"FROM ducktail.stream_catalog WHERE table_id = {table_id} ORDER BY stream_id"
    ).fetchall()
    return [
        Stream(
            stream_id=row[0],
            schema=row[1],
            name=row[2],
            table_id=table_id,
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
        )
        for row in rows
    ]
