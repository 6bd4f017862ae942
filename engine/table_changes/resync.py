"""Holding streams against their tables, and mending them: CHECK STREAM and ALTER STREAM ... RESYNC.

RESYNC puts the difference between what the log says and the table into the log, as events of all streams of
the table, in one transaction under the writer lock. What the log says is the old side:

- of a key with retained events, the row that the last of them left. A row that is another becomes an
  update, one that is gone a delete, one that should not be there an insert.
- of the other keys nothing is known but what their rows add up to. Where that does not fit, each of their
  rows that the table has is given again, as `op` = snapshot to all streams of the table: whoever keeps a copy
  puts them in place of his own. A row that is gone cannot be named, and so keeps standing in such a copy; a
  stream that retains an event of each key (snapshot = 'initial' and retention = 'none') has no such rows.

The table's sum is taken anew in the same transaction. Source: docs/checks.md.
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
    """The events that RESYNC has put into the log.

    Args:
        events: of rows that are known to differ.
        again: rows without retained events that were given again.
        gone: so many of those, at least, are gone and cannot be named.
    """

    events: int
    again: int
    gone: int

    def __add__(self, other: Mended) -> Mended:
        return Mended(self.events + other.events, self.again + other.again, self.gone + other.gone)


def check_stream(
    database: Database, session_id: int, cursor: duckdb.DuckDBPyConnection, stream: Stream, timeout_ms: int
) -> Waiting[list[Look]]:
    """Hold a stream's tables against their logs; what is found is kept, and told to who reads.

    Returns:
        A look at each of them, in their order, and at those that have come past ducktail into its schema.

    Raises:
        LockNotAvailable: it was found and cannot be kept now. UndefinedObject: it was dropped.
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
        pass  # The table was altered since; or the look under the lock says it again.
    except duckdb.Error as error:
        raise translated(error) from error
    if found is not None and found.agrees:
        return found
    yield from database.transactions.lock_writer(session_id, timeout_ms)
    try:
        present = database.catalog.table_by_id(captured.table_id)
        if found is None or present.version != captured.version:
            # ALTER TABLE is shown after it is committed: the look took the columns from before it.
            found = _look_again(database, cursor, present, stream)
        if not found.agrees:
            _keep(database, session_id, cursor, present, found)
        return found
    finally:
        database.transactions.writer_lock.release(session_id)


def _look_again(
    database: Database, cursor: duckdb.DuckDBPyConnection, captured: Captured, stream: Stream
) -> Look:
    """Look under the writer lock, so that nobody alters the table meanwhile."""
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
    """Under the writer lock: keep what was found, unless it was mended meanwhile."""
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
    """Put what differs between a stream's tables and their logs into the logs; the session is in no
    transaction. Each table is mended in a transaction of its own.

    Raises:
        NotSupported: the table has no primary key. LockNotAvailable. UndefinedObject:
        somebody else has dropped the stream.
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
                continue  # As far as is known nothing of it is to be mended.
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
    """Write the events of what differs, and then the rows that are given again.

    An event is of all streams of the table. What the others say of a row may be another than what this one
    says, as each has a snapshot of its own: so each is held against the table, with the events before it.
    """
    others = [one for one in captured.streams if one.stream_id != stream.stream_id]
    events = _write_difference(cursor, captured, stream, base_lsn, txid)
    left, own_lsn = found.unknown, base_lsn + events
    for other in others:
        events += _write_difference(cursor, captured, other, base_lsn + events, txid)
    if left is None or left == NOTHING:
        return Mended(events, 0, 0)
    left = left - row_sums.change(cursor, captured, own_lsn)  # What others knew of.
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
    """Write the events that take a stream's rows to the table's; gives their number."""
    sql = difference(captured, stream).log_sql(captured.table)
    return int(ask(cursor, sql, numbers(after_lsn, txid))[0])


def drop_temporary(cursor: duckdb.DuckDBPyConnection) -> None:
    """The temporary tables of a look go before its transaction is committed."""
    for name in ("found", "broken"):
        cursor.execute(f"DROP TABLE IF EXISTS temp.main.__ducktail_{name}").fetchall()
