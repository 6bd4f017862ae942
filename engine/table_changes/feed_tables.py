"""Changes of the tables of a stream with a source: ADD TABLE, DROP TABLE, and SNAPSHOT.

Each is a transaction of its own under the writer lock. ADD TABLE and SNAPSHOT only store that a copy is asked
for; the feed's runner takes it with its next attempt (`feeding.py`, `repeated_copies.py`). Until then nothing
of an added table is stored.

A dropped table leaves its log, over a table of ours without rows, until retention has emptied it, as a table
that was dropped in a schema whose tables all have streams (`schema_tables.py`). There are no deletes of its
rows, because they were not deleted at the source.

A stream on one table becomes one on several with its first ADD TABLE. It keeps its events, partitions and
groups; its view of typed changes goes, because the tables have different columns.
Source: docs/sources.md, "Other tables"; docs/design/sources.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import duckdb

from ..catalog.captured_tables import Captured, fed_place
from ..catalog.feeds import TABLES, AskedCopy, Feed, FeedTable, Selection, asked_copy_sql
from ..catalog.filters import check_filter, plain_division
from ..catalog.source_tables import SourceTable
from ..catalog.streams import OPERATIONS, TABLES_MAX, Stream
from ..checks import row_sums
from ..database import Database
from ..definitions.catalog_rows import insert_tables_sql, names_sql
from ..definitions.create import new_log
from ..definitions.feeds import feed_of
from ..definitions.stream_spec import create_sql, fed_shape, part_on
from ..duck.duckdb_errors import translated
from ..duck.table_shape import read_shape
from ..errors import (
    DependentObjects,
    DuplicateObject,
    NotSupported,
    ObjectInUse,
    ProgramLimitExceeded,
    UndefinedObject,
    WrongState,
)
from ..log.envelope_changes import view_statements
from ..log.log import shown_table
from ..log.queries import query_over_all
from ..quoting import ident, shown_name
from ..schema import SCHEMA
from ..transactions.transaction import CommitStep, Transaction
from ..waiting import Waiting
from .schema_tables import put_remains


def add_tables(
    database: Database,
    session_id: int,
    cursor: duckdb.DuckDBPyConnection,
    stream: Stream,
    tables: Sequence[SourceTable],
    timeout_ms: int,
    judge: Callable[[], None],
) -> Waiting[None]:
    """Add tables of its source to a stream; the session must not be in a transaction.

    Args:
        judge: checks the session's rights, under the writer lock.

    Raises:
        LockNotAvailable: the writer lock was not free in time.
        UndefinedObject: the stream was dropped meanwhile.
        NotSupported: the stream selects its tables otherwise, or can have no second table.
        DuplicateObject: the stream has one of the tables.
        ProgramLimitExceeded: the stream would have too many tables.
        InvalidParameterValue, UndefinedColumn: a table does not fit the stream's options.
    """
    transaction = database.transactions.begin(session_id, cursor, "")
    with _rolled_back_on_error(database, transaction):
        yield from database.transactions.lock_for(transaction, timeout_ms)
        judge()
        whole, feed = _present(database, stream, "ADD TABLE")
        known = {table.table.key_in_source for table in feed.tables}
        for table in tables:
            if table.key_in_source in known:
                raise DuplicateObject(f'stream "{whole.name}" has table {table.shown} already')
            known.add(table.key_in_source)
        there = database.catalog.tables_of(whole)
        if len(there) + len(tables) > TABLES_MAX:
            raise ProgramLimitExceeded(
                f"a stream is on {TABLES_MAX} tables at most, not on {len(there) + len(tables)}",
                detail="Tables that were dropped count as long as events of them are retained.",
                hint="Make another stream.",
            )
        if whole.several is None:
            whole, there = _of_several(database, transaction, whole, there[0])
        with plain_division(cursor):
            first = 1 + max(fed_place(captured.shape) for captured in there)
            asked = AskedCopy(transaction.txid, joins=True)
            made = []
            for place, table in enumerate(tables, first):
                captured = _made(database, transaction, whole, place, table)
                feed = replace(feed, tables=(*feed.tables, FeedTable(captured.table_id, table, asked=asked)))
                for statement in (
                    feed.insert_table_sql(feed.tables[-1], captured.table_id),
                    *asked_copy_sql(feed.stream_id, captured.table_id, asked),
                ):
                    cursor.execute(statement).fetchall()
                made.append(captured)
            whole = replace(whole, several=(*whole.tables, *(one.table_id for one in made)))
            for view in whole.views:
                cursor.execute(f"DROP VIEW IF EXISTS {ident(whole.schema)}.{ident(view)}").fetchall()
            for statement in view_statements(query_over_all(whole, [*there, *made])):
                cursor.execute(statement).fetchall()

        def follow() -> None:
            for captured in made:
                database.catalog.put_new_table(captured)
                database.snapshots.stream_made(captured.table_id)
            database.catalog.version += 1

        transaction.at(CommitStep.MEMORY, follow)
        _show(database, transaction, _selecting(transaction, feed))
    yield from database.transactions.commit(transaction, timeout_ms)


def drop_tables(
    database: Database,
    session_id: int,
    cursor: duckdb.DuckDBPyConnection,
    stream: Stream,
    table_ids: Sequence[int],
    timeout_ms: int,
) -> Waiting[None]:
    """Let a stream have no more changes of some of its tables; what is stored remains until retention.

    The session must not be in a transaction.

    Raises:
        LockNotAvailable: the writer lock was not free in time.
        UndefinedObject: the stream, or a table of it, was dropped meanwhile.
        NotSupported: the stream selects its tables otherwise.
        DependentObjects: a mirror follows one of the tables.
        WrongState: no table would remain.
    """
    transaction = database.transactions.begin(session_id, cursor, "")
    with _rolled_back_on_error(database, transaction):
        yield from database.transactions.lock_for(transaction, timeout_ms)
        whole, feed = _present(database, stream, "DROP TABLE")
        gone = [_table(whole, feed, table_id) for table_id in table_ids]
        for table in gone:
            mirrors = [one for one in database.catalog.mirrors.values() if one.table_id == table.table_id]
            if mirrors:
                name = f"{shown_name(mirrors[0].schema)}.{shown_name(mirrors[0].name)}"
                raise DependentObjects(
                    f'cannot drop table {table.table.shown} of stream "{whole.name}" because other objects '
                    "depend on it",
                    detail=f"Table {name} mirrors it.",
                    hint=f"DROP TABLE {name} first.",
                )
        rest = tuple(table for table in feed.tables if table not in gone)
        if not rest:
            raise WrongState(
                f'the last table of stream "{whole.name}" cannot be dropped',
                hint="ADD TABLE first, or DROP STREAM.",
            )
        yield from database.commits.wait_readable()
        with plain_division(cursor):
            for table in gone:
                _leave(database, transaction, whole, table)
        _show(database, transaction, _selecting(transaction, replace(feed, tables=rest)))
    yield from database.transactions.commit(transaction, timeout_ms)


def ask_copies(
    database: Database,
    session_id: int,
    cursor: duckdb.DuckDBPyConnection,
    stream: Stream,
    table_id: int | None,
    condition: str | None,
    timeout_ms: int,
) -> Waiting[None]:
    """Ask for another copy of the present rows of a table, or of all tables of a stream.

    The session must not be in a transaction.

    Args:
        table_id: None for all tables.
        condition: a predicate on the rows to copy; None for all.

    Raises:
        LockNotAvailable: the writer lock was not free in time.
        UndefinedObject: the stream, or the table, was dropped meanwhile.
        NotSupported: the condition is not allowed in a filter, or the table has no key.
        ObjectInUse: a copy with another condition has not been taken yet.
    """
    transaction = database.transactions.begin(session_id, cursor, "")
    with _rolled_back_on_error(database, transaction):
        yield from database.transactions.lock_for(transaction, timeout_ms)
        whole = _stream_now(database, stream)
        feed = feed_of(database, whole)
        for table in feed.tables if table_id is None else (_table(whole, feed, table_id),):
            asked = AskedCopy(transaction.txid, condition)
            if condition is not None:
                _check_condition(database, cursor, table, condition)
            if table.asked is not None:
                if table.joins or table.asked.condition is None:
                    continue  # All rows are going to be copied.
                if condition not in (None, table.asked.condition):
                    raise ObjectInUse(
                        f"another part of table {table.table.shown} is going to be copied",
                        hint="SHOW SOURCES: wait until its phase is streaming.",
                    )
            for statement in asked_copy_sql(feed.stream_id, table.table_id, asked):
                cursor.execute(statement).fetchall()
            feed = feed.with_table(replace(table, asked=asked))
        _show(database, transaction, feed)
    yield from database.transactions.commit(transaction, timeout_ms)


def _check_condition(
    database: Database, cursor: duckdb.DuckDBPyConnection, table: FeedTable, condition: str
) -> None:
    shape = database.catalog.table_by_id(table.table_id).shape
    if not shape.primary_key:
        raise NotSupported(
            f"a part of table {table.table.shown} cannot be copied again: it has no key",
            detail="Which rows here the copied ones replace could not be told.",
            hint="Copy all of it, without WHERE.",
        )
    check_filter(cursor, replace(shape, name=table.table.name), condition)


@contextmanager
def _rolled_back_on_error(database: Database, transaction: Transaction) -> Iterator[None]:
    try:
        yield
    except duckdb.Error as error:
        database.transactions.rollback(transaction)
        raise translated(error) from error
    except BaseException:
        database.transactions.rollback(transaction)
        raise


def _stream_now(database: Database, stream: Stream) -> Stream:
    present = database.catalog.stream_by_id(stream.stream_id)
    if present is None:
        raise UndefinedObject(f'stream "{stream.name}" does not exist')
    return present


def _present(database: Database, stream: Stream, what: str) -> tuple[Stream, Feed]:
    """The stream and its feed, whose tables are named one by one."""
    whole = _stream_now(database, stream)
    feed = feed_of(database, whole)
    if feed.selection.kind != "tables":
        name = feed.selection.names[0][1]
        raise NotSupported(
            f'{what} is not supported for stream "{whole.name}": it has the tables of {feed.selection.kind} '
            f'"{name}" of its source',
            hint="They are those of the moment of CREATE STREAM. A stream FROM ... TABLE can be altered.",
        )
    return whole, feed


def _table(stream: Stream, feed: Feed, table_id: int) -> FeedTable:
    found = feed.table_of(table_id)
    if found is None:
        raise UndefinedObject(f'a table of stream "{stream.name}" was dropped meanwhile')
    return found


def _selecting(transaction: Transaction, feed: Feed) -> Feed:
    """The feed with exactly its tables selected, by their full names; its row follows."""
    names = tuple(table.table.key_in_source for table in feed.tables)
    feed = replace(feed, selection=Selection("tables", names))
    transaction.cursor.execute(feed.set_selection_sql()).fetchall()
    return feed


def _show(database: Database, transaction: Transaction, feed: Feed) -> None:
    """Show the feed's tables in memory after COMMIT; its runner follows."""
    transaction.defines = True

    def follow() -> None:
        # Nobody else changes it meanwhile: the transaction has the writer lock.
        database.catalog.feeds[feed.stream_id] = feed

    transaction.at(CommitStep.MEMORY, follow)
    transaction.at(CommitStep.WAKE, database.feed_activity.changed, about="feeds")


def _made(
    database: Database, transaction: Transaction, stream: Stream, place: int, table: SourceTable
) -> Captured:
    """Make our own table with the rows of a table outside, and the stream's part on it."""
    cursor, base_lsn = transaction.cursor, transaction.next_lsn
    shape = fed_shape(stream.stream_id, place, table)
    cursor.execute(create_sql(shape)).fetchall()
    captured = new_log(cursor, read_shape(cursor, shape.schema, shape.name))
    part = replace(
        part_on(stream, captured.shape, captured.table_id),
        created_lsn=base_lsn,
        created_counter=database.snapshots.next_counter,
    )
    # Behind all others, some of which may be removed: numbers only grow.
    cursor.execute(insert_tables_sql([part], captured.table_id)).fetchall()
    captured = captured.with_streams((part,))
    for statement in row_sums.take_statements(captured, base_lsn, row_sums.CREATED):
        cursor.execute(statement).fetchall()
    return captured


def _of_several(
    database: Database, transaction: Transaction, stream: Stream, captured: Captured
) -> tuple[Stream, tuple[Captured, ...]]:
    """Let a stream on one table be one on several, so far with this table; refuse what only one can have."""
    groups = database.catalog.groups_of(stream.stream_id)
    sinks = [group for group in groups if group.group_id in database.catalog.sinks]
    only_one = {
        "a list of columns": not stream.all_columns,
        "a filter": stream.filter is not None,
        "OPERATIONS": stream.operations != frozenset(OPERATIONS),
        "compaction": stream.compaction == "key",
        "a group with on_park = 'key'": any(group.on_park == "key" for group in groups),
        "a group with on_gap = 'snapshot'": any(group.on_gap == "snapshot" for group in groups),
        "a sink": bool(sinks),
    }
    found = next((what for what, there in only_one.items() if there), None)
    if found is not None:
        raise NotSupported(
            f'ADD TABLE is not supported for stream "{stream.name}": it has {found}',
            detail="Only a stream on one table can have that.",
            hint="Make another stream for the table.",
        )
    asked = () if stream.partition_by == captured.shape.primary_key else stream.partition_by
    part = replace(stream, several=(captured.table_id,), changes_view=False)
    whole = replace(part, table_id=stream.stream_id, columns=(), partition_by=asked)
    for statement in (
        *(f"DROP VIEW IF EXISTS {ident(stream.schema)}.{ident(view)}" for view in stream.views),
        f"UPDATE {SCHEMA}.stream_catalog SET table_id = stream_id, columns = {names_sql(())}, "
        f"partition_by = {names_sql(asked)}, changes_view = false WHERE stream_id = {stream.stream_id}",
        insert_tables_sql([part]),
    ):
        transaction.cursor.execute(statement).fetchall()
    captured = captured.with_streams((part,))

    def follow() -> None:
        database.catalog.tables[captured.key] = captured
        database.catalog.streams[whole.key] = whole

    transaction.at(CommitStep.MEMORY, follow)
    return whole, (captured,)


def _leave(database: Database, transaction: Transaction, stream: Stream, table: FeedTable) -> None:
    """Take a table out of a stream: a schema event says so, and its log remains."""
    cursor = transaction.cursor
    captured = database.catalog.table_by_id(table.table_id)
    name, shape = captured.shape.qualified, captured.shape
    put_remains(database, transaction, captured, shown_table(shape), [f"DROP TABLE {name}"])
    remains = transaction.altered[captured.table_id].now
    for statement in (
        # Without rows there is nothing to compare with the log any more.
        *row_sums.take_statements(remains, transaction.next_lsn, row_sums.CREATED),
        f"DELETE FROM {TABLES} WHERE stream_id = {stream.stream_id} AND table_id = {table.table_id}",
        *asked_copy_sql(stream.stream_id, table.table_id, None),
    ):
        cursor.execute(statement).fetchall()

    def follow() -> None:
        database.unlike.pop(table.table_id, None)

    transaction.at(CommitStep.MEMORY, follow)
