"""Mirrors: ordinary tables that follow a table of a stream's source, written by the feed only.

A mirror is filled from our own table with the source's rows, and from then on changed in the transactions in
which the stream's events are stored: what a group has read and what the table contains never disagree.
Source: docs/sources.md, "Mirrors".
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import duckdb

from .. import rights_changes
from ..catalog import rights
from ..catalog.catalog import Catalog
from ..catalog.feeds import MIRRORS, Feed, Mirror
from ..catalog.streams import Stream, key_of
from ..database import Database
from ..errors import DuplicateTable, NotSupported, UndefinedTable, WrongState
from ..log.log import shown_table
from ..quoting import fold, ident, literal
from ..transactions.transaction import CommitStep, TableKey, Transaction
from ..waiting import Waiting
from .catalog_rows import run_numbered
from .feeds import feed_of
from .name_locks import mark, wait_for_writers
from .stream_spec import taken_names


def create_mirror(
    database: Database,
    session_id: int,
    cursor: duckdb.DuckDBPyConnection,
    name: tuple[str, str],
    stream: Stream,
    source_name: tuple[str | None, str],
    timeout_ms: int,
    owner: str | None,
) -> Waiting[None]:
    """Create a table that mirrors one of a stream's source; the session must not be in a transaction.

    Args:
        name: schema and name of the new table.
        source_name: schema (None if only one has the name) and name of the table at the source.
        owner: the owning user, in lower case; None for the superusers only.

    Raises:
        WrongObjectType: the stream has no source.
        UndefinedTable: the source's stream has no such table.
        WrongState: the stream does not know all rows, because they were not copied.
        DuplicateTable: the name is taken.
        NotSupported: a stream covers all tables of the schema.
        LockNotAvailable: a lock was not free in time.
    """
    key, marked = key_of(*name), list[TableKey]()
    try:
        yield from mark(database, session_id, key, marked, timeout_ms, several=False)
        yield from wait_for_writers(database, session_id, key, timeout_ms)
        yield from database.transactions.lock_writer(session_id, timeout_ms)
        try:
            feed = feed_of(database, stream)
            if not feed.copies:
                raise WrongState(
                    f'stream "{stream.name}" does not know all rows of its source',
                    detail="It was made with snapshot = 'none'.",
                    hint="Make the stream with snapshot = 'initial'.",
                )
            if database.catalog.over_schema(name[0]):
                raise NotSupported(
                    f'a mirror in schema "{name[0]}" is not supported',
                    detail="A stream is on all of its tables.",
                    hint="Make it in another schema.",
                )
            if fold(name[1]) in taken_names(cursor, database.catalog_name, name[0]):
                raise DuplicateTable(f'relation "{name[1]}" already exists')
            mirror = Mirror(feed.stream_id, _table_id(feed, stream, source_name), *name)
            item = rights.relation(*name)
            changes = [rights_changes.Forget(item) if owner is None else rights_changes.PutOwner(item, owner)]
            run_numbered(
                database,
                session_id,
                cursor,
                _statements(database, mirror),
                partial(_show, database, mirror),
                changes,
            )
        finally:
            database.transactions.writer_lock.release(session_id)
    finally:
        for one in marked:
            database.transactions.gate.unmark(one)


def _table_id(feed: Feed, stream: Stream, name: tuple[str | None, str]) -> int:
    schema, table = name
    found = [
        one.table_id
        for one in feed.tables
        if fold(one.table.name) == fold(table) and schema in (None, one.table.schema)
    ]
    if len(found) != 1:
        shown = table if schema is None else f"{schema}.{table}"
        raise UndefinedTable(
            f'stream "{stream.name}" has no table "{shown}"'
            if not found
            else f'stream "{stream.name}" has several tables "{shown}"',
            hint=f"It has {', '.join(one.table.shown for one in feed.tables)}.",
        )
    return found[0]


def _statements(database: Database, mirror: Mirror) -> list[str]:
    shape = database.catalog.table_by_id(mirror.table_id).shape
    columns = [f"{ident(column.name)} {column.type}" for column in shape.stored]
    if shape.primary_key:
        columns.append(f"PRIMARY KEY ({', '.join(map(ident, shape.primary_key))})")
    told = f"Mirror of {shown_table(shape)}."
    return [
        f"CREATE TABLE {mirror.qualified} ({', '.join(columns)})",
        f"INSERT INTO {mirror.qualified} SELECT * FROM {shape.qualified}",
        f"COMMENT ON TABLE {mirror.qualified} IS {literal(told)}",
        f"INSERT INTO {MIRRORS} VALUES ({mirror.stream_id}, {mirror.table_id}, "
        f"{literal(mirror.schema)}, {literal(mirror.name)})",
    ]


def _show(database: Database, mirror: Mirror) -> None:
    with database.catalog.mutex:
        database.catalog.mirrors[mirror.key] = mirror
        database.catalog.version += 1


def refuse_mirror(catalog: Catalog, key: TableKey, what: str) -> None:
    """Refuse an operation on a mirror, which its feed alone changes.

    Args:
        what: the refused operation, for the message.

    Raises:
        WrongState: the table is a mirror.
    """
    if key in catalog.mirrors:
        raise WrongState(
            f'table "{key[-1]}" cannot {what}: it mirrors a table of a source',
            detail="It follows the source, whose changes are made there.",
            hint="CREATE TABLE ... AS SELECT makes a table of its rows that can be changed.",
        )


def forget_mirrors(
    database: Database,
    cursor: duckdb.DuckDBPyConnection,
    keys: Iterable[TableKey],
    transaction: Transaction | None,
) -> None:
    """Forget dropped mirrors.

    Args:
        keys: schema and name of each dropped table, in lower case.
        transaction: the transaction of the drop; None for a committed one in autocommit.
    """
    for key in keys:
        mirror = database.catalog.mirrors.get(key)
        if mirror is None:
            continue
        cursor.execute(mirror.delete_sql()).fetchall()
        if transaction is not None:
            transaction.at(CommitStep.MEMORY, partial(_forget, database, key))
        else:
            _forget(database, key)


def _forget(database: Database, key: TableKey) -> None:
    database.catalog.mirrors.pop(key, None)
