"""Comparison and repair of streams and their tables: CHECK STREAM and ALTER STREAM ... RESYNC.

RESYNC writes the difference between the log's state and the table to the log, as events of all streams of the
table, in one transaction under the writer lock. The log's state is the old side:

- For a key with retained events: the row after the last of them. A changed row becomes an update, a missing
  one a delete, an unexpected one an insert.
- For the other keys: only the sum of their rows. If it does not match, each of their rows in the table is
  written again with `op` = snapshot to all streams of the table: readers replace the rows of their copies by
  them. A missing row cannot be named, and so remains in such copies; a stream that retains an event of each
  key (snapshot = 'initial' and retention = 'none') has no such rows.

The table's sum is recomputed in the same transaction. Source: docs/checks.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import duckdb

from ..buffers.publisher import Note
from ..capture.difference import table_rows
from ..capture.log_sql import images, partition_hash
from ..capture.plan import numbers
from ..catalog.captured_tables import Captured
from ..catalog.filters import plain_division
from ..catalog.streams import Stream
from ..checks import row_sums
from ..checks.check import (
    LAST,
    Look,
    Unlike,
    difference,
    last_images_sql,
    look,
    look_within,
    made_again,
    same_key,
)
from ..checks.row_sums import NOTHING
from ..database import Database
from ..definitions.catalog_rows import commit_sql, run_numbered
from ..duck.cursors import ask, rolled_back_on_error
from ..duck.duckdb_errors import translated
from ..errors import NotSupported, UndefinedObject
from ..quoting import shown_name
from ..storage.loading import came_past
from ..waiting import Waiting
from .schema_tables import take_in


@dataclass(frozen=True, slots=True)
class Mended:
    """The events that RESYNC has written to the log.

    Args:
        events: number of events of rows that are known to differ.
        again: number of rows without retained events that were written again.
        gone: the least number of such rows that are missing and cannot be named.
    """

    events: int
    again: int
    gone: int

    def __add__(self, other: Mended) -> Mended:
        return Mended(self.events + other.events, self.again + other.again, self.gone + other.gone)


def check_stream(
    database: Database, session_id: int, cursor: duckdb.DuckDBPyConnection, stream: Stream, timeout_ms: int
) -> Waiting[list[Look]]:
    """Compare a stream's tables with their logs; the findings are stored and reported to readers.

    Returns:
        The findings for each table, in order, and for tables created without ducktail in its schema.

    Raises:
        LockNotAvailable: a finding cannot be stored now.
        UndefinedObject: the stream was dropped.
    """
    found = []
    for captured in database.catalog.tables_of(stream):
        if not captured.ours:
            found.append(
                (yield from _check_table(database, session_id, cursor, captured, stream, timeout_ms))
            )
    if stream.stream_id in database.catalog.behind:
        for schema, table in came_past(cursor, database.catalog, stream.of_schema or ""):
            detail = "the table has come past ducktail: changes of it are not captured"
            name = f"{shown_name(schema)}.{shown_name(table)}"
            found.append(Look(name, (Unlike("table", detail=detail),), {"table": 1}))
    return found


def _check_table(
    database: Database,
    session_id: int,
    cursor: duckdb.DuckDBPyConnection,
    captured: Captured,
    stream: Stream,
    timeout_ms: int,
) -> Waiting[Look]:
    found: Look | None = None
    try:
        found = look(cursor, captured, stream)
    except (duckdb.CatalogException, duckdb.BinderException):
        pass  # The table was altered since, or the comparison under the lock finds it again.
    except duckdb.Error as error:
        raise translated(error) from error
    if found is not None and found.agrees:
        return found
    yield from database.transactions.lock_writer(session_id, timeout_ms)
    try:
        present = database.catalog.table_by_id(captured.table_id)
        if found is None or present.version != captured.version:
            # ALTER TABLE becomes visible after its commit: the comparison used the old columns.
            found = _look_again(database, cursor, present, stream)
        if not found.agrees:
            _keep(database, session_id, cursor, present, found)
        return found
    finally:
        database.transactions.writer_lock.release(session_id)


def _look_again(
    database: Database, cursor: duckdb.DuckDBPyConnection, captured: Captured, stream: Stream
) -> Look:
    """Compare again under the writer lock, so that the table is not altered meanwhile."""
    present = database.catalog.stream_by_id(stream.stream_id)
    if present is None:
        raise UndefinedObject(f'stream "{stream.name}" does not exist')
    try:
        return look(cursor, captured, present)
    except duckdb.Error as error:
        raise translated(error) from error


def _keep(
    database: Database,
    session_id: int,
    cursor: duckdb.DuckDBPyConnection,
    captured: Captured,
    found: Look,
) -> None:
    """Store the finding unless it was repaired meanwhile; the caller holds the writer lock."""
    kept = row_sums.read_kept(cursor, captured.table_id)
    if kept is None or found.kept is None or kept.taken_lsn != found.kept.taken_lsn:
        return

    def show() -> None:
        database.unlike[captured.table_id] = found.summary
        for one in captured.streams:
            database.polls.look_again(one.stream_id)

    mark = row_sums.mark_statement(captured.table_id, found.summary)
    run_numbered(database, session_id, cursor, [mark], show)


def resync_stream(
    database: Database, session_id: int, cursor: duckdb.DuckDBPyConnection, stream: Stream, timeout_ms: int
) -> Waiting[Mended]:
    """Write the differences of a stream's tables to their logs, each table in its own transaction.

    The session must not be in a transaction.

    Raises:
        NotSupported: a table has no primary key.
        LockNotAvailable: the writer lock was not free in time.
        UndefinedObject: the stream was dropped meanwhile.
    """
    came = 0
    if stream.stream_id in database.catalog.behind:
        came = yield from take_in(database, session_id, cursor, stream, timeout_ms)
    yield from database.transactions.lock_writer(session_id, timeout_ms)
    try:
        yield from database.commits.wait_readable()
        present = database.catalog.stream_by_id(stream.stream_id)
        if present is None:
            raise UndefinedObject(f'stream "{stream.name}" does not exist')
        tables = [captured for captured in database.catalog.tables_of(present) if not captured.ours]
        keyless = [captured for captured in tables if not captured.shape.primary_key]
        for captured in keyless:
            if present.several is not None and captured.table_id not in database.unlike:
                continue  # No known difference to repair.
            raise NotSupported(
                f'stream "{present.name}" cannot be mended: table "{captured.shape.name}" has no primary key',
                detail="Which of its rows differ cannot be told.",
                hint=made_again(captured),
            )
        mended = Mended(came, 0, 0)
        with plain_division(cursor):
            for captured in tables:
                if captured not in keyless:
                    own = captured.part_of(present)
                    mended = mended + _mend(database, session_id, cursor, captured, own)
        return mended
    finally:
        database.transactions.writer_lock.release(session_id)


def _mend(
    database: Database,
    session_id: int,
    cursor: duckdb.DuckDBPyConnection,
    captured: Captured,
    stream: Stream,
) -> Mended:
    commits = database.commits
    base_lsn, txid, now_us = commits.last_lsn, commits.last_txid + 1, commits.now_us()
    try:
        with rolled_back_on_error(cursor):
            cursor.execute("BEGIN")
            found = look_within(cursor, captured, stream)
            if "columns" in found.counts:
                raise NotSupported(
                    f'stream "{stream.name}" cannot be mended: its table has got other columns',
                    detail=f"As CHECK STREAM says, {found.told[0].detail}.",
                    hint=made_again(captured),
                )
            mended = _write_events(cursor, captured, stream, found, base_lsn, txid)
            events = mended.events + mended.again
            for statement in row_sums.take_statements(captured, base_lsn + events, row_sums.RESYNCED):
                cursor.execute(statement).fetchall()
            cursor.execute(commit_sql(txid, base_lsn, events, now_us)).fetchall()
            drop_temporary(cursor)
            numbers = (txid, base_lsn + events, now_us)
            lsns = (base_lsn + 1, base_lsn + events)

            def show() -> None:
                database.unlike.pop(captured.table_id, None)
                if events:
                    database.publisher.put(Note(txid, *lsns, now_us, {captured.table_id: lsns}))

            commits.commit_own(cursor, database.sessions.shield(session_id), numbers, show)
    except duckdb.Error as error:
        raise translated(error) from error
    return mended


def _write_events(
    cursor: duckdb.DuckDBPyConnection,
    captured: Captured,
    stream: Stream,
    found: Look,
    base_lsn: int,
    txid: int,
) -> Mended:
    """Write the events of the difference, and then the rows that are written again.

    An event belongs to all streams of the table. The other streams may have another state of a row, because
    each has its own snapshot: so each is compared with the table, including the events before it.
    """
    others = [one for one in captured.streams if one.stream_id != stream.stream_id]
    events = _write_difference(cursor, captured, stream, base_lsn, txid)
    left, own_lsn = found.unknown, base_lsn + events
    for other in others:
        events += _write_difference(cursor, captured, other, base_lsn + events, txid)
    if left is None or left == NOTHING:
        return Mended(events, 0, 0)
    left = left - row_sums.change(cursor, captured, own_lsn)  # The changes known to the others.
    if left == NOTHING:
        return Mended(events, 0, 0)
    shape = captured.shape
    columns = images("n", shape)
    again = (
        f"WITH {LAST} AS MATERIALIZED ({last_images_sql(captured, stream)}) "
        f"INSERT INTO {captured.log} (lsn,txid,op,key_hash,{columns}) "
        f"SELECT {base_lsn + events}+row_number() OVER (),{txid},'s',{partition_hash('n', shape)},{columns} "
        f"FROM (SELECT n.* FROM ({table_rows(shape)}) AS n "
        f"ANTI JOIN {LAST} AS l ON {same_key('n', 'l', shape)})"
    )
    return Mended(events, int(ask(cursor, again)[0]), max(0, -left.rows))


def _write_difference(
    cursor: duckdb.DuckDBPyConnection, captured: Captured, stream: Stream, after_lsn: int, txid: int
) -> int:
    """Write the events that change a stream's rows to the table's; returns their number."""
    sql = difference(captured, stream).log_sql(captured.table)
    return int(ask(cursor, sql, numbers(after_lsn, txid))[0])


def drop_temporary(cursor: duckdb.DuckDBPyConnection) -> None:
    """Drop the temporary tables of a comparison before its transaction is committed."""
    for name in ("found", "broken"):
        cursor.execute(f"DROP TABLE IF EXISTS temp.main.__ducktail_{name}").fetchall()
