"""Letting go of a stream's oldest events: its edge moves, and the log loses what nobody retains.

Source: docs/design/engine.md, "Retention".
"""

from __future__ import annotations

import duckdb

from .database import Database
from .definitions import run_in_transaction
from .duckdb_errors import translated
from .errors import InvalidParameterValue
from .streams import Stream
from .waiting import Waiting


def trim(
    database: Database,
    session_id: int,
    cursor: duckdb.DuckDBPyConnection,
    stream: Stream,
    through_lsn: int,
    timeout_ms: int,
) -> Waiting[None]:
    """Retain only what of a stream comes after `through_lsn`; the log loses what no stream retains.

    Raises:
        LockNotAvailable: 55P03. InvalidParameterValue: 22023, past the stream's end.
    """
    yield from database.lock_writer(session_id, timeout_ms)
    try:
        yield from database.wait_published(database.last_lsn)
        buffer = database.buffers[stream.stream_id]
        if through_lsn > buffer.end_lsn:
            raise InvalidParameterValue(f"LSN {through_lsn} is past the stream's end")
        edge = max(partition.trimmed_through_lsn for partition in buffer.partitions)
        if through_lsn <= edge:
            return
        query = database.event_query(stream)
        gone = query.sql(f"lsn > {edge} AND lsn <= {through_lsn}", "false")
        cut = cursor.execute(
            f"SELECT partition, max(lsn), count(*) FROM ({gone}) GROUP BY partition"
        ).fetchall()
        _trim_locked(database, session_id, cursor, stream, through_lsn, cut)
    except duckdb.Error as error:
        raise translated(error) from error
    finally:
        database.writer_lock.release(session_id)


def _trim_locked(
    database: Database,
    session_id: int,
    cursor: duckdb.DuckDBPyConnection,
    stream: Stream,
    through_lsn: int,
    cut: list[tuple[int, int, int]],
) -> None:
    """Write the new edges and cut the log; then the buffers follow."""
    buffer = database.buffers[stream.stream_id]
    captured = database.catalog.table_by_id(stream.table_id)
    edges: dict[int, tuple[int, int]] = {
        number: (partition.trimmed_through_lsn, partition.trimmed_events)
        for number, partition in enumerate(buffer.partitions)
        if partition.trimmed_events
    }
    for number, lsn, events in cut:
        edges[number] = (lsn, buffer.partitions[number].trimmed_events + events)
    statements = [f"DELETE FROM ducktail.stream_edges WHERE stream_id = {stream.stream_id}"]
    statements += [
        f"INSERT INTO ducktail.stream_edges VALUES ({stream.stream_id}, {number}, {lsn}, {events})"
        for number, (lsn, events) in edges.items()
    ]
    others = [
        max(
            other.created_lsn,
            max(p.trimmed_through_lsn for p in database.buffers[other.stream_id].partitions),
        )
        for other in captured.streams
        if other is not stream
    ]
    cut_lsn = min([through_lsn, *others])
    statements.append(f"DELETE FROM {captured.table.log} WHERE lsn <= {cut_lsn}")
    run_in_transaction(database, session_id, cursor, statements)
    left = database.event_query(stream).sql(f"lsn > {through_lsn}", "false")
    first = dict(cursor.execute(f"SELECT partition, min(lsn) FROM ({left}) GROUP BY partition").fetchall())
    buffer.trim(edges, first)
