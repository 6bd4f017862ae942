"""CREATE STREAM and CREATE TOPIC: first the rows in DuckDB, then the catalog in memory.

CREATE STREAM on a table without streams must not lose rows of open transactions. It marks the table (new
writers wait), waits for present writers, takes the writer lock, and only then begins the transaction whose
snapshot separates the rows before the stream from the rows in it.

CREATE TOPIC makes a log and the stream over it. A new topic has no writers, so it waits for the writer lock
only. Source: docs/design/engine.md, "CREATE STREAM".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from secrets import token_hex

import duckdb

from .. import rights_changes
from ..buffers.publisher import Note
from ..capture import capture
from ..catalog import rights
from ..catalog.captured_tables import Captured
from ..catalog.feeds import Feed, FeedTable
from ..catalog.filters import check_filter, plain_division
from ..catalog.source_tables import SourceTable
from ..catalog.streams import DEFAULT_PARTITIONS_WITH_KEY, PUBLISHED, Stream, key_of
from ..catalog.triggers import read_triggers
from ..checks import row_sums
from ..database import Database
from ..duck.cursors import ask_maybe, rolled_back_on_error
from ..duck.determinism import built_in_functions
from ..duck.duckdb_errors import translated
from ..duck.table_shape import TableShape, read_shape, tables_in
from ..errors import LockNotAvailable, NotSupported, ProgramLimitExceeded
from ..log.envelope_changes import view_statements
from ..log.log import create_log_sql, log_name, snapshot_sql
from ..log.queries import TopicQuery, query_over_all
from ..log.topic_rows import create_topic_log_sql
from ..placement import holds
from ..placement.holds import HELD, NONE, Hold
from ..quoting import literal
from ..transactions.transaction import TableKey
from ..waiting import Waiting
from . import stream_spec
from .catalog_rows import (
    commit_sql,
    insert_stream_sql,
    insert_tables_sql,
    leave_name_sql,
    new_id,
    run_numbered,
)
from .name_locks import anywhere, mark, refuse_missed, wait_for_writers
from .stream_spec import (
    DEFAULT_KEEPING,
    FeedSpec,
    Keeping,
    StreamSpec,
    check_names,
    check_no_stream,
    streams_of,
)

# The part of the names of slots and publications that no other feed has.
FEED_UID_BYTES = 8
DROP_TRIGGER = "SELECT * FROM duckdb_triggers() lists them; DROP TRIGGER first."


def create_stream(
    database: Database,
    session_id: int,
    cursor: duckdb.DuckDBPyConnection,
    spec: StreamSpec,
    timeout_ms: int,
    owner: str | None = None,
    judge: Callable[[], None] = lambda: None,
) -> Waiting[Stream]:
    """Create a stream; the session must not be in a transaction.

    Args:
        owner: the owning user, in lower case; None for the superusers only.
        judge: checks the session's rights; called when the tables can no longer be altered, dropped or
            renamed.

    Raises:
        UndefinedTable: a table does not exist.
        NotSupported: the relation is a view or a temporary or attached table, or has triggers.
        DuplicateObject: the name is taken.
        InvalidParameterValue: an option does not fit the table.
        UndefinedColumn: a column of the options does not exist.
        LockNotAvailable: a transaction that wrote the table did not end in time.
    """
    gate = database.transactions.gate
    marked: list[tuple[str, ...]] = []
    try:
        fresh: list[tuple[str, ...]] | None = None
        # A schema may get tables until they are marked. The shapes are read again under the writer lock.
        while fresh is None or (fresh and spec.of_schema is not None):
            shapes = _shapes(database, cursor, spec)
            _check_new(database, cursor, spec, shapes)
            # In a fixed order, because other sessions may be marking some of them.
            keys = [] if spec.feed else [key_of(shape.schema, shape.name) for shape in shapes]
            wanted = sorted([*keys, *{anywhere(key[-1]) for key in keys}])
            if spec.of_schema is not None:
                # From here on no session creates, drops or renames a table there, except those already doing
                # so.
                wanted.insert(0, stream_spec.all_of(spec.of_schema))
            fresh = [key for key in wanted if key not in marked]
            for key in fresh:
                yield from mark(database, session_id, key, marked, timeout_ms, several=len(wanted) > 1)
            for key in fresh:
                yield from wait_for_writers(database, session_id, key, timeout_ms)
        yield from database.transactions.lock_writer(session_id, timeout_ms)
        try:
            judge()
            with plain_division(cursor):
                return _create_locked(database, session_id, cursor, spec, owner, marked)
        finally:
            database.transactions.writer_lock.release(session_id)
    finally:
        for key in marked:
            gate.unmark(key)


def _shapes(database: Database, cursor: duckdb.DuckDBPyConnection, spec: StreamSpec) -> list[TableShape]:
    """The shapes of the stream's tables; the first is our own table if it is over a whole schema, and all of
    them are if it has a feed."""
    if spec.feed is not None:
        return [stream_spec.fed_shape(0, place, table) for place, table in enumerate(spec.feed.tables)]
    if spec.of_schema is None:
        return [read_shape(cursor, *table) for table in spec.tables]
    is_aside = database.catalog.is_aside
    tables = [name for name in tables_in(cursor, spec.of_schema) if not is_aside(key_of(*name))]
    stream_spec.check_bound(len(tables))
    first = stream_spec.first_shape(0, spec.partition_by)
    return [first, *(read_shape(cursor, *table) for table in tables)]


def _check_new(
    database: Database, cursor: duckdb.DuckDBPyConnection, spec: StreamSpec, shapes: Sequence[TableShape]
) -> None:
    check_no_stream(database, spec.schema, spec.name)
    for shape in shapes:
        refuse_missed(database.catalog, key_of(shape.schema, shape.name))
    stream, _ = streams_of(spec, shapes, range(1, len(shapes) + 1), 0)
    check_names(database, cursor, stream)
    if spec.filter is not None:
        check_filter(cursor, shapes[0], spec.filter)


def _check_surroundings(
    database: Database, cursor: duckdb.DuckDBPyConnection, keys: Collection[TableKey]
) -> None:
    """Refuse triggers that write the tables, and objects that change the meaning of our SQL."""
    triggers = read_triggers(cursor)
    for key in sorted(keys):
        if triggers.on(key):
            text = f'table "{key[-1]}" has a trigger, and cannot have a stream'
            raise NotSupported(text, hint=DROP_TRIGGER)
    if any(triggers.that_write(keys)):
        raise NotSupported(
            "a trigger may write a table that is to have a stream",
            detail="What a trigger writes is not captured. A table that it names without its schema may be "
            "one of that name in any schema.",
            hint=DROP_TRIGGER,
        )
    # The session's own cursor would list its temporary macros for everybody.
    with closing(database.cursor()) as other:
        macros = database.macros.latest(other)
    own = {macro.name for macro in macros if macro.catalog == database.catalog_name}
    for name in sorted(built_in_functions() & own):
        raise NotSupported(
            f'a database with a macro under the name of built-in function "{name}" cannot have streams',
            hint="DROP MACRO first.",
        )


def _create_locked(
    database: Database,
    session_id: int,
    cursor: duckdb.DuckDBPyConnection,
    spec: StreamSpec,
    owner: str | None,
    marked: Sequence[tuple[str, ...]],
) -> Stream:
    """Write the rows of the stream and its owner, then publish it; the caller holds marks and writer lock."""
    shapes = _shapes(database, cursor, spec)
    fresh = {key_of(shape.schema, shape.name) for shape in shapes} - {*marked, *database.catalog.tables}
    if fresh and spec.feed is None:  # It was created by a transaction that held the writer lock.
        raise LockNotAvailable(f'table "{min(fresh)[-1]}" has just been made', hint="Try again.")
    most = database.settings.sources_max
    if spec.feed is not None and len(database.catalog.feeds) >= most:
        raise ProgramLimitExceeded(
            f"there are {most} streams with a source, and there can be no more",
            hint="The setting sources_max is the bound.",
        )
    _check_new(database, cursor, spec, shapes)
    _check_surroundings(database, cursor, {key_of(shape.schema, shape.name) for shape in shapes})
    base_lsn, txid = database.commits.last_lsn, database.commits.last_txid + 1
    now_us = database.commits.now_us()
    item = rights.relation(spec.schema, spec.name)
    # Rights left by an older stream of this name must not apply to the new one.
    changes = [rights_changes.Forget(item) if owner is None else rights_changes.PutOwner(item, owner)]
    made_now = {
        "created_lsn": base_lsn,
        "created_counter": database.snapshots.next_counter,
        "created_at_us": now_us,
    }
    # It is on all existing tables, except those that are excluded from all other streams over the schema.
    anew = spec.of_schema is not None and not database.catalog.over_schema(spec.of_schema)
    try:
        with rolled_back_on_error(cursor):
            cursor.execute("BEGIN")
            stream_id = new_id(cursor)
            if spec.of_schema is not None:
                shapes[0] = stream_spec.first_shape(stream_id, spec.partition_by)
                cursor.execute(stream_spec.create_sql(shapes[0]))
                if anew:
                    cursor.execute(stream_spec.none_aside_sql(spec.of_schema))
            if spec.feed is not None:
                fed = enumerate(spec.feed.tables)
                shapes = [_fed_table(cursor, stream_id, place, table) for place, table in fed]
            known = (database.catalog.tables.get(key_of(shape.schema, shape.name)) for shape in shapes)
            tables = [
                captured or _new_table(cursor, shape, base_lsn)
                for captured, shape in zip(known, shapes, strict=True)
            ]
            ids = [captured.table_id for captured in tables]
            made, on_each = streams_of(spec, [captured.shape for captured in tables], ids, stream_id)
            stream = replace(made, **made_now)  # type: ignore[arg-type]
            parts = [
                (captured, replace(part, **made_now))  # type: ignore[arg-type]
                for captured, part in zip(tables, on_each, strict=True)
            ]
            feed = None if spec.feed is None else _feed_of(spec.feed, stream_id, ids, now_us)
            for statement in () if feed is None else feed.insert_sql():
                cursor.execute(statement)
            cursor.execute(insert_stream_sql(stream))
            if stream.several is not None:
                cursor.execute(insert_tables_sql([part for _, part in parts]))
            with_it = [captured.with_streams((*captured.streams, part)) for captured, part in parts]
            for statement in view_statements(query_over_all(stream, with_it)):
                cursor.execute(statement)
            for statement in rights_changes.statements_of(changes):
                cursor.execute(statement)
            events, written = 0, {}
            # The rows of tables outside are copied when the feed begins.
            for captured in tables if stream.snapshot == "initial" and feed is None else ():
                sql = snapshot_sql(captured, stream.stream_id, base_lsn + events, txid)
                rows = int((ask_maybe(cursor, sql) or (0,))[0])
                if rows:
                    written[captured.table_id] = (base_lsn + events + 1, base_lsn + events + rows)
                events += rows
            cursor.execute(commit_sql(txid, base_lsn, events, now_us))

            def show() -> None:
                database.rights = rights_changes.after(database.rights, changes)
                if anew:
                    database.catalog.none_aside(spec.of_schema or "")
                show_stream(database, stream, parts)
                if feed is not None:
                    database.catalog.feeds[stream_id] = feed
                    database.feed_activity.changed()
                if events:
                    lsns = (base_lsn + 1, base_lsn + events)
                    database.publisher.put(Note(txid, *lsns, now_us, written))

            shield = database.sessions.shield(session_id)
            database.commits.commit_own(cursor, shield, (txid, base_lsn + events, now_us), show)
    except duckdb.Error as error:
        raise translated(error) from error
    return stream


def _fed_table(
    cursor: duckdb.DuckDBPyConnection, stream_id: int, place: int, table: SourceTable
) -> TableShape:
    """Create our own table with the rows of a table outside."""
    shape = stream_spec.fed_shape(stream_id, place, table)
    cursor.execute(stream_spec.create_sql(shape))
    return read_shape(cursor, shape.schema, shape.name)


def _feed_of(spec: FeedSpec, stream_id: int, table_ids: Sequence[int], now_us: int) -> Feed:
    tables = tuple(FeedTable(number, table) for number, table in zip(table_ids, spec.tables, strict=True))
    return Feed(
        stream_id,
        token_hex(FEED_UID_BYTES),
        spec.kind,
        spec.address,
        spec.shown,
        spec.selection,
        spec.options,
        tables,
        changed_us=now_us,
        identity=spec.identity,
    )


def _new_table(cursor: duckdb.DuckDBPyConnection, shape: TableShape, base_lsn: int) -> Captured:
    captured = new_log(cursor, shape)
    for statement in row_sums.take_statements(captured, base_lsn, row_sums.CREATED):
        cursor.execute(statement).fetchall()
    return captured


def new_log(cursor: duckdb.DuckDBPyConnection, shape: TableShape) -> Captured:
    """Make a table captured, with an empty log; its row-hash sum is not computed yet."""
    table_id, version = new_id(cursor), 1
    log = log_name(table_id, version)
    cursor.execute(create_log_sql(log, shape))
    cursor.execute(
        f"INSERT INTO ducktail.table_catalog VALUES ({table_id}, {literal(shape.schema)}, "
        f"{literal(shape.name)}, {version})"
    )
    cursor.execute(leave_name_sql(shape, table_id))
    table = capture.CapturedTable(shape, log, frozenset(shape.primary_key))
    return Captured(table_id, version, table)


def show_stream(database: Database, stream: Stream, parts: Sequence[tuple[Captured, Stream]] = ()) -> None:
    """Add a committed stream or topic to the catalog in memory.

    Args:
        parts: its tables with the part of the stream on each; empty for a topic.
    """
    with database.catalog.mutex:
        database.catalog.put_stream(stream, parts)
        database.catalog.version += 1
        database.buffers.add(stream)
        for table_id in stream.tables:
            database.snapshots.stream_made(table_id)


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """The options of CREATE TOPIC.

    Args:
        uid: the identity of its definition in the cluster, if another node created it first.
        fresh: True if it is new in the cluster; False if other nodes already have it and its events.
    """

    schema: str
    name: str
    partitions: int = DEFAULT_PARTITIONS_WITH_KEY
    keeping: Keeping = DEFAULT_KEEPING
    uid: str | None = None
    fresh: bool = False


def create_topic(
    database: Database,
    session_id: int,
    cursor: duckdb.DuckDBPyConnection,
    spec: TopicSpec,
    timeout_ms: int,
    owner: str | None = None,
) -> Waiting[Stream]:
    """Create a topic; the session must not be in a transaction.

    Args:
        owner: the owning user, in lower case; None for the superusers only.

    Raises:
        DuplicateObject: the name is taken.
        LockNotAvailable: the writer lock was not free in time.
    """
    yield from database.transactions.lock_writer(session_id, timeout_ms)
    try:
        check_no_stream(database, spec.schema, spec.name)
        topic_id = new_id(cursor)
        topic = Stream(
            stream_id=topic_id,
            schema=spec.schema,
            name=spec.name,
            table_id=topic_id,
            operations=PUBLISHED,
            columns=(),
            filter=None,
            partitions=spec.partitions,
            partition_by=(),
            snapshot="none",
            before="none",
            buffer_bytes=spec.keeping.buffer_bytes,
            created_lsn=database.commits.last_lsn,
            created_counter=database.snapshots.next_counter,
            created_at_us=database.commits.now_us(),
            retention_us=spec.keeping.retention_us,
            retention_bytes=spec.keeping.retention_bytes,
            compaction=spec.keeping.compaction,
            compaction_lag_us=spec.keeping.compaction_lag_us,
            tombstone_retention_us=spec.keeping.tombstone_retention_us,
        )
        check_names(database, cursor, topic)
        statements = [
            create_topic_log_sql(topic),
            insert_stream_sql(topic),
            *view_statements(TopicQuery(topic)),
        ]
        item = rights.relation(spec.schema, spec.name)
        # Rights left by an older stream of this name must not apply to the new one.
        changes = [rights_changes.Forget(item) if owner is None else rights_changes.PutOwner(item, owner)]
        if spec.uid is not None:
            statements.append(holds.insert_sql(topic_id, spec.uid))

        rows = _holds(database, topic, fresh=spec.fresh) if spec.uid is not None else {}
        statements += holds.rows_sql(topic_id, rows)

        def show() -> None:
            if rows:
                database.holds.put(topic_id, rows)
            if spec.uid is not None:
                database.identities.told(topic_id, spec.uid)
            show_stream(database, topic)
            database.arrivals.hurry()

        run_numbered(database, session_id, cursor, statements, show, changes)
        return topic
    finally:
        database.transactions.writer_lock.release(session_id)


def _holds(database: Database, topic: Stream, *, fresh: bool) -> dict[int, Hold]:
    """The hold of each partition of a topic in a cluster: HELD for a new topic's partitions on this node,
    else NONE."""
    placement = database.cluster.placement
    own = holds.owned(placement, topic) if fresh else []
    held = Hold(HELD, placement.local.name, placement.epoch)
    return {**holds.all_partitions(topic, Hold(NONE)), **dict.fromkeys(own, held)}
