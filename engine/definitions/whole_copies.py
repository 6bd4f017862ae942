"""Making a whole copy of a table for a consumer group while writers continue.

1. Briefly under the writer lock: an MVCC snapshot is fixed, with all commits up to the last LSN and none
   after it; as many LSNs as the table has rows are reserved durably in `commits`.
2. Without any lock: the rows are copied in that snapshot into a table of their own, in one transaction.
3. Under the writer lock again: the copy is assigned to its group, whose positions are set before its first
   LSN.

An interruption leaves reserved LSNs that no log has, recorded in `group_copies`, and possibly an unused
table, which retention's next pass or the next open drops. Source: docs/design/copies.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import replace

import duckdb

from ..buffers.publisher import Note
from ..catalog.captured_tables import Captured
from ..catalog.copies import CHUNK_ROWS, NOBODY, Copy, forget_sql
from ..catalog.streams import Group, Stream
from ..database import Database
from ..duck.cursors import ask, rolled_back_on_error
from ..duck.duckdb_errors import translated
from ..errors import SerializationFailure, UndefinedObject
from ..log.log import HIDDEN
from ..log.queries import EventQuery, copied_rows
from ..partitioning import hash_sql
from ..quoting import ident
from ..schema import COMMIT_COLUMNS
from ..transactions.transaction import CommitStep, Transaction
from ..waiting import Waiting
from .catalog_rows import new_id

# A context in which a call on a cursor ends if the session's statement is cancelled.
Interruptible = Callable[[duckdb.DuckDBPyConnection], AbstractContextManager[None]]


def take_copy(
    database: Database, session_id: int, stream: Stream, timeout_ms: int, interruptible: Interruptible
) -> Waiting[Copy]:
    """Copy the rows that a stream shows of its table now; the copy has no group yet (`give_copy`).

    Raises:
        LockNotAvailable: the writer lock was not free in time.
        UndefinedObject: the stream was dropped meanwhile.
        WrongState: its table was written without ducktail.
        DucktailError: a translated error of DuckDB.
    """
    with closing(database.cursor(utc=True)) as reader:
        try:
            copy_id = new_id(reader)
            yield from database.transactions.lock_writer(session_id, timeout_ms)
            try:
                yield from database.commits.wait_readable()
                present = present_stream(database, stream)
                # RESYNC's events would follow rows that already include them.
                database.buffers.check_served(present)
                captured = database.catalog.table_by_id(present.table_id)
                copy = _reserve(database, session_id, reader, captured, present, copy_id)
            finally:
                database.transactions.writer_lock.release(session_id)
            try:
                with interruptible(reader):
                    return _fill(reader, captured, present, copy)
            except BaseException:
                discard(database, copy)
                raise
        except duckdb.Error as error:
            raise translated(error) from error


def present_stream(database: Database, stream: Stream) -> Stream:
    """The present state of a stream; the caller holds the writer lock.

    Raises:
        UndefinedObject: the stream was dropped meanwhile.
    """
    present = database.catalog.present(stream)
    if present is None:
        raise UndefinedObject(f'stream "{stream.name}" does not exist')
    return present


def _reserve(
    database: Database,
    session_id: int,
    reader: duckdb.DuckDBPyConnection,
    captured: Captured,
    stream: Stream,
    copy_id: int,
) -> Copy:
    """Fix the reader's MVCC snapshot and reserve LSNs for its rows; the caller holds the writer lock."""
    commits, catalog = database.commits, database.catalog
    first_lsn, first_txid, now_us = commits.last_lsn + 1, commits.last_txid + 1, commits.now_us()
    reader.execute("BEGIN")
    # The number of rows that a filter excludes is not known yet: their LSNs are the last ones, and stay
    # unused.
    (rows,) = ask(reader, f"SELECT count(*) FROM {captured.shape.qualified}")
    last_lsn = first_lsn + int(rows) - 1
    version = captured.version
    copy = Copy(copy_id, NOBODY, stream.stream_id, version, first_lsn, last_lsn, first_txid, now_us)
    with catalog.mutex:
        catalog.copying[copy_id] = copy
    if not rows:
        return copy
    try:
        with closing(database.cursor()) as writer, rolled_back_on_error(writer):
            writer.execute("BEGIN")
            writer.execute(f"INSERT INTO ducktail.commits {COMMIT_COLUMNS} {copy.lines_sql}").fetchall()
            writer.execute(copy.insert_sql()).fetchall()
            numbers = (copy.last_txid, last_lsn, now_us)
            note = Note(copy.last_txid, first_lsn, last_lsn, now_us, {})
            shield = database.sessions.shield(session_id)
            commits.commit_own(writer, shield, numbers, lambda: database.publisher.put(note))
    except BaseException:
        discard(database, copy)
        raise
    return copy


def _fill(reader: duckdb.DuckDBPyConnection, captured: Captured, stream: Stream, copy: Copy) -> Copy:
    """Copy the rows, in the fixed MVCC snapshot.

    Args:
        captured, stream: in their state at the snapshot.
    """
    reader.execute(fill_sql(captured, stream, copy)).fetchall()
    spans, rows = {}, 0
    query = copied_rows(stream, captured, copy)
    for number, first, last, count in reader.execute(_spans_sql(query)).fetchall():
        assert last - first + 1 == count, "rows of a partition stand together"
        spans[int(number)] = (int(first), int(last))
        rows += int(count)
    assert rows <= copy.last_lsn - copy.base_lsn, "each has an LSN"
    reader.execute("COMMIT")
    return replace(copy, rows=rows, spans=spans)


def fill_sql(captured: Captured, stream: Stream, copy: Copy) -> str:
    """Make the table of a copy's rows from the table's: by partition, numbered from `copy.first_lsn` on.

    Args:
        captured: in the copy's version.
    """
    shape = captured.shape
    types = {column.name: column.type for column in shape.stored}

    def hashed(names: Sequence[str]) -> str:
        return hash_sql([(ident(name), types[name]) for name in names])

    key = hashed(shape.primary_key) if shape.primary_key else "NULL"
    if stream.partitions == 1:
        partition = "0"
    elif stream.partition_by == shape.primary_key:
        partition = f"{HIDDEN}hash % {stream.partitions}"
    else:
        partition = f"{hashed(stream.partition_by)} % {stream.partitions}"
    places = range(1, len(shape.stored) + 1)
    values = ", ".join(f"{ident(c.name)} AS {HIDDEN}n{p}" for p, c in zip(places, shape.stored, strict=True))
    head = f"{key}::UINTEGER AS {HIDDEN}hash, {values}, {partition} AS {HIDDEN}partition"
    rows = f"SELECT {head} FROM {shape.qualified}"
    if stream.filter is not None:
        # As the stream takes it: a row on which it fails does not match.
        rows += f" WHERE coalesce(TRY(({stream.filter})::BOOLEAN), false)"
    if stream.partitions > 1:
        rows += f" ORDER BY {HIDDEN}partition"
    old = ", ".join(f"NULL::{c.type} AS o{p}" for p, c in zip(places, shape.stored, strict=True))
    new = ", ".join(f"{HIDDEN}n{p} AS n{p}" for p in places)
    return (
        f"CREATE TABLE {copy.table} AS SELECT ({copy.base_lsn} + place)::BIGINT AS lsn, "
        f"({copy.first_txid} + (place - 1) // {CHUNK_ROWS})::BIGINT AS txid, 's' AS op, "
        f"{stream.stream_id}::INTEGER AS stream_id, NULL::BIGINT AS rid, {HIDDEN}hash AS key_hash, "
        f"NULL::INTEGER AS key_change, {old}, {new} "
        f"FROM (SELECT *, row_number() OVER () AS place FROM ({rows}))"
    )


def _spans_sql(query: EventQuery) -> str:
    """Each partition's number, first and last LSN, and how many rows it has."""
    return (
        f"SELECT {query.partition_sql()} AS p, min(lsn), max(lsn), count(*) "
        f"FROM (SELECT * FROM {query.log}) AS l GROUP BY p ORDER BY p"
    )


def give_copy(database: Database, transaction: Transaction, copy: Copy, group: Group) -> Copy:
    """Assign the copy to its group at COMMIT, and end the group's previous copy.

    The transaction holds the writer lock, and the group if it is not new. The caller moves the group's
    positions, each to `copy.base_lsn`.
    """
    assert transaction.has_writer_lock, "which copy is whose has one order"
    mine = replace(copy, group_id=group.group_id)
    for statement in (forget_sql(str(group.group_id)), copy.delete_sql(), mine.insert_sql()):
        transaction.cursor.execute(statement).fetchall()
    transaction.defines = True
    transaction.copies[group.group_id] = mine
    transaction.at(CommitStep.MEMORY, lambda: _show(database, mine))
    return mine


def _show(database: Database, copy: Copy) -> None:
    database.catalog.copies[copy.group_id] = copy
    database.catalog.copying.pop(copy.copy_id, None)


def discard(database: Database, copy: Copy) -> None:
    """Drop an unused copy; if this is not possible now, retention drops it later."""
    with database.catalog.mutex:
        database.catalog.copying.pop(copy.copy_id, None)
    with suppress(duckdb.Error), closing(database.cursor()) as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {copy.table}")


def copy_of(database: Database, transaction: Transaction | None, group: Group) -> Copy | None:
    """A group's copy, as visible in a transaction."""
    if transaction is not None and group.group_id in transaction.copies:
        return transaction.copies[group.group_id]
    return database.catalog.copies.get(group.group_id)


def leave_copy(database: Database, transaction: Transaction, group: Group, partitions: set[int]) -> None:
    """End a group's copy in the partitions that SEEK moves elsewhere, at COMMIT.

    The transaction holds the group.

    Raises:
        SerializationFailure: the transaction's snapshot is older than the copy.
    """
    copy = copy_of(database, transaction, group)
    if copy is None or not partitions & copy.spans.keys():
        return
    left = copy.without(partitions)
    (count,) = ask(transaction.cursor, left.update_sql())
    if not count:
        raise SerializationFailure(
            f'the whole copy of consumer group "{group.name}" was made after this transaction began to read',
            hint="Roll back and try again.",
        )
    transaction.copies[group.group_id] = left
    transaction.at(CommitStep.MEMORY, lambda: _show(database, left))
