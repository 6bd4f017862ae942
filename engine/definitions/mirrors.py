"""Mirrors: ordinary tables that follow a table of a stream's source, written by the feed only.

A mirror is filled from our own table with the source's rows, and from then on changed in the transactions in
which the stream's events are stored: what a group has read and what the table contains never disagree.
Source: docs/sources.md, "Mirrors".
"""

from __future__ import annotations

from functools import partial

import duckdb

from .. import rights_changes
from ..catalog import rights
from ..catalog.catalog import Catalog
from ..catalog.feeds import MIRRORS, Feed, Mirror
from ..catalog.streams import Stream, key_of
from ..database import Database
from ..errors import DuplicateTable, LockNotAvailable, NotSupported, UndefinedTable, WrongState
from ..log.log import shown_table
from ..quoting import fold, literal
from ..transactions.transaction import TableKey
from ..waiting import Waiting
from .catalog_rows import run_numbered
from .feeds import feed_of
from .name_locks import mark, wait_for_writers
from .stream_spec import create_sql, taken_names


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
            if stream.filter is not None or not stream.all_columns:
                raise NotSupported(
                    f'a mirror of stream "{stream.name}" is not supported',
                    detail="It carries some of the rows or columns only, and a mirror has all.",
                )
            if database.catalog.over_schema(name[0]):
                raise NotSupported(
                    f'a mirror in schema "{name[0]}" is not supported',
                    detail="A stream is on all of its tables.",
                    hint="Make it in another schema.",
                )
            if fold(name[1]) in taken_names(cursor, database.catalog_name, name[0]):
                raise DuplicateTable(f'relation "{name[1]}" already exists')
            mirror = Mirror(feed.stream_id, table_of_source(feed, stream, source_name), *name)
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


def table_of_source(feed: Feed, stream: Stream, name: tuple[str | None, str]) -> int:
    """The number of the captured table with the rows of a table of a stream's source.

    Args:
        name: its schema there, None if only one has the name, and its name.

    Raises:
        UndefinedTable: the stream has no such table, or several.
    """
    schema, table = name
    found = [
        one.table_id
        for one in feed.tables
        if fold(one.table.name) == fold(table) and schema in (None, one.table.schema)
    ]
    exact = [one.table_id for one in feed.tables if one.table.name == table and one.table_id in found]
    found = exact if len(exact) == 1 else found
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
    told, name = f"Mirror of {shown_table(shape)}.", mirror.qualified_in(database.catalog_name)
    return [
        create_sql(shape, name),
        f"INSERT INTO {name} SELECT * FROM {shape.qualified}",
        f"COMMENT ON TABLE {name} IS {literal(told)}",
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
            detail="It follows the source, whose changes are made there. DROP TABLE drops it.",
            hint="CREATE TABLE ... AS SELECT makes a table of its rows that can be changed.",
        )


def drop_mirror(
    database: Database,
    session_id: int,
    cursor: duckdb.DuckDBPyConnection,
    key: TableKey,
    timeout_ms: int,
) -> Waiting[None]:
    """Drop a mirror; the session must not be in a transaction. The feed writes none meanwhile.

    Raises:
        LockNotAvailable: the writer lock was not free in time, or the mirror was dropped meanwhile.
        DependentObjects: another object depends on the table.
    """
    yield from database.transactions.lock_writer(session_id, timeout_ms)
    try:
        mirror = database.catalog.mirrors.get(key)
        if mirror is None:
            raise LockNotAvailable(f'table "{key[-1]}" has just ceased to be a mirror', hint="Try again.")
        changes = [rights_changes.Forget(rights.relation(mirror.schema, mirror.name))]
        statements = [f"DROP TABLE {mirror.qualified_in(database.catalog_name)}", mirror.delete_sql()]
        run_numbered(database, session_id, cursor, statements, partial(_forget, database, key), changes)
    finally:
        database.transactions.writer_lock.release(session_id)


def _forget(database: Database, key: TableKey) -> None:
    with database.catalog.mutex:
        database.catalog.mirrors.pop(key, None)
        database.catalog.version += 1
