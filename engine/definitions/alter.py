"""Changes of an existing stream: its options, its comment, its name.

Each change is a transaction of its own under the writer lock; the catalog in memory is updated after DuckDB's
COMMIT. Open scans continue: they refer to the stream by its number, which does not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import duckdb

from ..catalog.rights import Item
from ..catalog.streams import Stream
from ..database import Database
from ..errors import UndefinedObject
from ..log.envelope_changes import comment_sql, view_statements
from ..log.queries import TopicQuery, query_over_all
from ..quoting import fold, ident, literal
from ..rights_changes import Rename
from ..waiting import Waiting
from .catalog_rows import run_numbered
from .stream_spec import check_compacted, check_names, check_no_stream


def set_stream(
    database: Database,
    session_id: int,
    cursor: duckdb.DuckDBPyConnection,
    stream: Stream,
    values: Mapping[str, int | str | None],
    timeout_ms: int,
) -> Waiting[None]:
    """Change options of a stream; retention applies them from its next pass on.

    Args:
        values: the changed options among 'retention_us', 'retention_bytes', 'buffer_bytes', 'compaction',
            'compaction_lag_us' and 'tombstone_retention_us', within their bounds.

    Raises:
        LockNotAvailable: the writer lock was not free in time.
        UndefinedObject: the stream was dropped meanwhile.
        InvalidParameterValue: the stream cannot be compacted.
    """
    yield from database.transactions.lock_writer(session_id, timeout_ms)
    try:
        present = _present(database, stream)
        changed = replace(present, **values)  # type: ignore[arg-type]
        if changed.compaction == "key" and not changed.topic:
            check_compacted(changed, database.catalog.tables_of(changed)[0].shape)
        assignments = ", ".join(f"{name} = {_value(value)}" for name, value in values.items())
        update = f"UPDATE ducktail.stream_catalog SET {assignments} WHERE stream_id = {stream.stream_id}"

        def show() -> None:
            _show(database, present, changed)
            if changed.buffer_bytes != present.buffer_bytes:
                database.buffers.resize(changed)

        run_numbered(database, session_id, cursor, [update], show)
    finally:
        database.transactions.writer_lock.release(session_id)


def comment_on_stream(
    database: Database,
    session_id: int,
    cursor: duckdb.DuckDBPyConnection,
    stream: Stream,
    comment: str | None,
    timeout_ms: int,
) -> Waiting[None]:
    """Set the comment of a stream and of the view of its events; None removes it.

    Raises:
        LockNotAvailable: the writer lock was not free in time.
        UndefinedObject: the stream was dropped meanwhile.
    """
    yield from database.transactions.lock_writer(session_id, timeout_ms)
    try:
        present = _present(database, stream)
        text = "NULL" if comment is None else literal(comment)
        statements = [
            f"UPDATE ducktail.stream_catalog SET comment = {text} WHERE stream_id = {stream.stream_id}",
            comment_sql(present, comment),
        ]
        show = partial(_show, database, present, replace(present, comment=comment))
        run_numbered(database, session_id, cursor, statements, show)
    finally:
        database.transactions.writer_lock.release(session_id)


def rename_stream(
    database: Database,
    session_id: int,
    cursor: duckdb.DuckDBPyConnection,
    stream: Stream,
    name: str,
    timeout_ms: int,
) -> Waiting[None]:
    """Rename a stream and its views within their schema.

    Raises:
        DuplicateObject: the name is taken.
        LockNotAvailable: the writer lock was not free in time.
        UndefinedObject: the stream was dropped meanwhile.
    """
    yield from database.transactions.lock_writer(session_id, timeout_ms)
    try:
        present = _present(database, stream)
        database.refuse_lost(present)
        renamed = replace(present, name=name)
        tables = database.catalog.tables_of(renamed)
        events = TopicQuery(renamed) if renamed.topic else query_over_all(renamed, tables)
        if renamed.key != present.key:
            check_no_stream(database, present.schema, name)
        check_names(database, cursor, renamed, present.views)
        statements = [
            f"UPDATE ducktail.stream_catalog SET stream_name = {literal(name)} "
            f"WHERE stream_id = {stream.stream_id}",
            *(f"DROP VIEW IF EXISTS {ident(present.schema)}.{ident(view)}" for view in present.views),
            *view_statements(events),
        ]
        changes = [
            Rename(item, Item(item.kind, item.schema, fold(name), item.group))
            for item in database.rights.of_stream(present.schema, present.name)
        ]
        if renamed.topic:
            # Events of a topic contain the topic's name, also in the buffers. Committed events are published
            # under the old name first, so that none of them follow the change.
            yield from database.commits.wait_readable()

        def show() -> None:
            _show(database, present, renamed)
            if renamed.topic:
                database.buffers.remake(renamed, database.commits.last_lsn)

        run_numbered(database, session_id, cursor, statements, show, changes)
    finally:
        database.transactions.writer_lock.release(session_id)


def _value(value: int | str | None) -> str:
    if value is None:
        return "NULL"
    return literal(value) if isinstance(value, str) else str(value)


def _present(database: Database, stream: Stream) -> Stream:
    """The present state of a stream; the caller holds the writer lock."""
    present = database.catalog.stream_by_id(stream.stream_id)
    if present is None:
        raise UndefinedObject(f'{stream.kind} "{stream.name}" does not exist')
    return present


def _show(database: Database, before: Stream, after: Stream) -> None:
    with database.catalog.mutex:
        database.catalog.replace_stream(before, after)
        database.catalog.version += 1
