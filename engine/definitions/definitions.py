"""Making and dropping streams and consumer groups: DuckDB's rows first, then the catalog in memory.

CREATE STREAM on a table without one must not lose what open transactions are writing there: it
marks the table (new writers wait), waits for the writers it finds, takes the writer lock, and only
then begins the transaction whose snapshot divides what is before the stream from what is in it.
Source: docs/design/engine.md, "CREATE STREAM".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import duckdb

from .. import rights_changes
from ..asking import ask_maybe
from ..buffers.publisher import Note
from ..capture import capture
from ..capture.determinism import built_in_functions, read_macros
from ..checks import row_sums
from ..database import Database
from ..duckdb_errors import translated
from ..errors import (
    DuplicateObject,
    InvalidParameterValue,
    LockNotAvailable,
    NotSupported,
    UndefinedColumn,
)
from ..log.changes import clashing, view_statements
from ..log.log import create_log_sql, log_name, snapshot_sql
from ..log.several_logs import query_over_all
from ..quoting import ident, literal
from ..rights import rights
from ..schema import COMMIT_COLUMNS, DROPPED
from ..streams.captured import Captured
from ..streams.filters import check_filter, plain_division
from ..streams.streams import (
    BUFFER_BYTES_MAX,
    BUFFER_BYTES_MIN,
    DEFAULT_BUFFER_BYTES,
    DEFAULT_COMPACTION_LAG_US,
    DEFAULT_PARTITIONS_WITH_KEY,
    DEFAULT_RETENTION_US,
    DEFAULT_TOMBSTONE_RETENTION_US,
    OPERATIONS,
    PARTITIONS_MAX,
    Stream,
    fold,
)
from ..table import TableShape, read_shape, tables_in
from ..waiting import Waiting
from ..whole import undone
from . import whole_schemas
from .claims import mark, refuse_missed, wait_for_writers
from .free_names import free_name, taken_names

# Tables with rows of a topic by its number, in a cluster.
OF_TOPICS = ("partition_holds", "segments", "segment_events", "segment_producers")


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """What CREATE STREAM asks for; None is the default.

    Args:
        schema, name: of the stream.
        tables: what it is on, each by its schema and name; of several it carries all columns and changes.
        columns: which it carries, None for all.
        of_schema: it is on all tables of this schema, those to come included; `tables` is empty then.
    """

    schema: str
    name: str
    tables: tuple[tuple[str, ...], ...]
    columns: tuple[str, ...] | None = None
    operations: frozenset[str] = frozenset(OPERATIONS)
    filter: str | None = None
    partitions: int | None = None
    partition_by: tuple[str, ...] | None = None
    snapshot: str = "none"
    before: str = "full"
    minimal_changes: str = "replace"
    buffer_bytes: int = DEFAULT_BUFFER_BYTES
    retention_us: int | None = DEFAULT_RETENTION_US
    retention_bytes: int | None = None
    compaction: str = "none"
    compaction_lag_us: int = DEFAULT_COMPACTION_LAG_US
    tombstone_retention_us: int = DEFAULT_TOMBSTONE_RETENTION_US
    of_schema: str | None = None


def _resolved(names: tuple[str, ...], shape: TableShape, what: str) -> tuple[str, ...]:
    """Column names as the table spells them.

    Raises:
        UndefinedColumn: 42703. InvalidParameterValue: 22023, one named twice.
    """
    known = {column.name.lower(): column.name for column in shape.stored}
    found = []
    for name in names:
        if name.lower() not in known:
            raise UndefinedColumn(
                f'{what} "{name}" is not a stored column of table "{shape.name}"',
                hint=f"Its columns are {', '.join(c.name for c in shape.stored)}.",
            )
        found.append(known[name.lower()])
    if len(set(found)) < len(found):
        raise InvalidParameterValue(f"{what} named twice")
    return tuple(found)


def _stream_of(
    spec: StreamSpec, shape: TableShape, table_id: int, stream_id: int, several: tuple[int, ...] | None = None
) -> Stream:
    """The stream that a spec describes on a table of this shape.

    Args:
        several: of a stream over several tables, their numbers: it is this one's part of it. Without a key
            all of the table's events are in partition 0.

    Raises:
        InvalidParameterValue: 22023, options that do not fit the table.
        UndefinedColumn: 42703.
    """
    key = shape.primary_key
    if spec.columns is None:
        columns = tuple(column.name for column in shape.stored)
    else:
        asked = set(_resolved(spec.columns, shape, "column")) | set(key)
        columns = tuple(column.name for column in shape.stored if column.name in asked)
    partition_by = (
        key if spec.partition_by is None else _resolved(spec.partition_by, shape, "partition column")
    )
    partitions = spec.partitions
    if partitions is None:
        partitions = DEFAULT_PARTITIONS_WITH_KEY if partition_by else 1
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidParameterValue(
            f'option "partitions" wants a whole number from 1 to {PARTITIONS_MAX}, not {partitions}'
        )
    if partitions > 1 and not partition_by and several is None:
        raise InvalidParameterValue(
            f'table "{shape.name}" has no primary key to partition by',
            hint="Name the columns: WITH (partitions = 4, partition_by = '...').",
        )
    if spec.before != "full" and not key:
        raise InvalidParameterValue(f"option \"before\" = '{spec.before}' wants a primary key")
    if not BUFFER_BYTES_MIN <= spec.buffer_bytes <= BUFFER_BYTES_MAX:
        raise InvalidParameterValue(
            f'option "buffer_bytes" wants {BUFFER_BYTES_MIN} to {BUFFER_BYTES_MAX} bytes, '
            f"not {spec.buffer_bytes}"
        )
    stream = Stream(
        stream_id=stream_id,
        schema=spec.schema,
        name=spec.name,
        table_id=table_id,
        operations=spec.operations,
        columns=columns,
        filter=spec.filter,
        partitions=partitions,
        partition_by=partition_by,
        snapshot=spec.snapshot,
        before=spec.before,
        minimal_changes=spec.minimal_changes,
        buffer_bytes=spec.buffer_bytes,
        created_lsn=0,
        retention_us=spec.retention_us,
        retention_bytes=spec.retention_bytes,
        compaction=spec.compaction,
        compaction_lag_us=spec.compaction_lag_us,
        tombstone_retention_us=spec.tombstone_retention_us,
        changes_view=several is None and clashing(columns) is None,
        all_columns=spec.columns is None,
        several=several,
        of_schema=spec.of_schema,
    )
    if stream.compaction == "key":
        check_compacted(stream, shape)
    return stream


def check_compacted(stream: Stream, shape: TableShape) -> None:
    """Whether a stream on a table of this shape can be compacted.

    Raises:
        InvalidParameterValue: 22023, it has no primary key. NotSupported: 0A000, it is over several tables.
    """
    if stream.several is not None:
        raise NotSupported(
            f'option "compaction" is not supported for stream "{stream.name}": it is over several tables',
            hint="Make a compacted stream on each table.",
        )
    if not shape.primary_key:
        raise InvalidParameterValue(
            "option \"compaction\" = 'key' wants a primary key", detail=f'Table "{shape.name}" has none.'
        )


def _streams_of(
    spec: StreamSpec, shapes: Sequence[TableShape], ids: Sequence[int], stream_id: int
) -> tuple[Stream, list[Stream]]:
    """The stream that a spec describes on tables of these shapes, and what it is on each of them.

    Args:
        ids: the tables' numbers.

    Raises:
        InvalidParameterValue: 22023. UndefinedColumn: 42703.
    """
    if spec.of_schema is not None:
        return _over_schema(spec, shapes, ids, stream_id)
    if len(shapes) == 1:
        stream = _stream_of(spec, shapes[0], ids[0], stream_id)
        return stream, [stream]
    keyed = spec.partition_by is not None or any(shape.primary_key for shape in shapes)
    if spec.partitions is None:
        spec = replace(spec, partitions=DEFAULT_PARTITIONS_WITH_KEY if keyed else 1)
    elif spec.partitions > 1 and not keyed:
        raise InvalidParameterValue(
            f'no table of stream "{spec.name}" has a primary key to partition by',
            hint="Name columns that all have: WITH (partitions = 4, partition_by = '...').",
        )
    several = tuple(ids)
    parts = [_stream_of(spec, shape, i, stream_id, several) for shape, i in zip(shapes, ids, strict=True)]
    asked = () if spec.partition_by is None else parts[0].partition_by
    return replace(parts[0], table_id=stream_id, columns=(), partition_by=asked), parts


def _over_schema(
    spec: StreamSpec, shapes: Sequence[TableShape], ids: Sequence[int], stream_id: int
) -> tuple[Stream, list[Stream]]:
    """The same of all tables of a schema; the first shape is of the table of ours."""
    if spec.partitions is None:
        spec = replace(spec, partitions=DEFAULT_PARTITIONS_WITH_KEY)
    several = tuple(ids)
    first = _stream_of(replace(spec, before="full"), shapes[0], ids[0], stream_id, several)
    rest = [
        _stream_of(spec, shape, i, stream_id, several) for shape, i in zip(shapes[1:], ids[1:], strict=True)
    ]
    parts = [replace(first, before=spec.before), *rest]
    return replace(parts[0], table_id=stream_id, columns=()), parts


def part_on(stream: Stream, shape: TableShape, table_id: int) -> Stream:
    """What a stream over all tables of a schema is on one that has come.

    Raises:
        InvalidParameterValue: 22023, UndefinedColumn: 42703: the table does not fit its options.
    """
    spec = StreamSpec(
        stream.schema,
        stream.name,
        (),
        before=stream.before,
        partitions=stream.partitions,
        partition_by=stream.partition_by or None,
        of_schema=stream.of_schema,
    )
    part = _stream_of(spec, shape, table_id, stream.stream_id, stream.tables)
    return stream.as_on(part)


def create_stream(
    database: Database,
    session_id: int,
    cursor: duckdb.DuckDBPyConnection,
    spec: StreamSpec,
    timeout_ms: int,
    owner: str | None = None,
) -> Waiting[Stream]:
    """Make a stream; the session is in no transaction.

    Args:
        owner: the user whose it is, in small letters; None leaves it to the superusers.

    Raises:
        UndefinedTable: 42P01. NotSupported: 0A000, a view, temporary or attached table, triggers.
        DuplicateObject: 42710, the name is taken. InvalidParameterValue: 22023. UndefinedColumn:
        42703. LockNotAvailable: 55P03, a transaction that wrote the table did not end in time.
    """
    gate = database.transactions.gate
    marked: list[tuple[str, ...]] = []
    try:
        fresh: list[tuple[str, ...]] | None = None
        while fresh is None or fresh:
            shapes = _shapes(database, cursor, spec)
            _check_new(database, cursor, spec, shapes)
            # In one order, as others may be marking some of them.
            wanted = sorted(fold(shape.schema, shape.name) for shape in shapes)
            if spec.of_schema is not None:
                # Nobody makes, drops or renames a table there from here on, but for those who are at it.
                wanted.insert(0, whole_schemas.all_of(spec.of_schema))
            fresh = [key for key in wanted if key not in marked]
            for key in fresh:
                yield from mark(database, session_id, key, marked, timeout_ms, several=len(wanted) > 1)
            for key in fresh:
                yield from wait_for_writers(database, session_id, key, timeout_ms)
        yield from database.transactions.lock_writer(session_id, timeout_ms)
        try:
            with plain_division(cursor):
                return _create_locked(database, session_id, cursor, spec, owner, marked)
        finally:
            database.transactions.writer_lock.release(session_id)
    finally:
        for key in marked:
            gate.unmark(key)


def _shapes(database: Database, cursor: duckdb.DuckDBPyConnection, spec: StreamSpec) -> list[TableShape]:
    """The shapes of the tables that a stream is to be on; the first is ours where it is on all of some."""
    if spec.of_schema is None:
        return [read_shape(cursor, *table) for table in spec.tables]
    is_aside = database.catalog.is_aside
    tables = [name for name in tables_in(cursor, spec.of_schema) if not is_aside(fold(*name))]
    whole_schemas.check_bound(len(tables))
    first = whole_schemas.first_shape(0, spec.partition_by)
    return [first, *(read_shape(cursor, *table) for table in tables)]


def _check_new(
    database: Database, cursor: duckdb.DuckDBPyConnection, spec: StreamSpec, shapes: Sequence[TableShape]
) -> None:
    check_no_stream(database, spec.schema, spec.name)
    for shape in shapes:
        refuse_missed(database.catalog, fold(shape.schema, shape.name))
    stream, _ = _streams_of(spec, shapes, range(1, len(shapes) + 1), 0)
    check_names(database, cursor, stream)
    if spec.filter is not None:
        check_filter(cursor, shapes[0], spec.filter)


def _check_surroundings(database: Database, cursor: duckdb.DuckDBPyConnection) -> None:
    """Nothing in the database writes by itself, or says otherwise what our own SQL means."""
    triggers = ask_maybe(cursor, "SELECT count(*) FROM duckdb_triggers()")
    if triggers is not None and triggers[0]:
        raise NotSupported(
            "a database with triggers cannot have streams",
            hint="DROP TRIGGER first: what a trigger writes would go past the stream.",
        )
    for name in sorted(built_in_functions() & read_macros(cursor, database.catalog_name)):
        raise NotSupported(
            f'a database with a macro under the name of built-in function "{name}" cannot have streams',
            hint="DROP MACRO first.",
        )


def check_no_stream(database: Database, schema: str, name: str) -> None:
    """Raise DuplicateObject (42710) where a stream or a topic has the name."""
    known = database.catalog.streams.get(fold(schema, name))
    if known is not None:
        raise DuplicateObject(f'{known.kind} "{name}" already exists')


def check_names(database: Database, cursor: duckdb.DuckDBPyConnection, stream: Stream) -> None:
    """Nothing else may have the names of the stream's views.

    Raises:
        DuplicateObject: 42710.
    """
    taken = taken_names(cursor, database.catalog_name, stream.schema)
    for name in stream.views:
        if name.lower() not in taken:
            continue
        kind = "view" if taken[name.lower()] == "VIEW" else "table"
        other = ident(free_name(f"{stream.name}_{stream.kind}", taken))
        raise DuplicateObject(
            f'the name "{name}" is taken by a {kind}',
            hint=f"Tables, views, streams and topics share their names: try {other}."
            if name == stream.name
            else f"It would be the stream's view of typed changes: name the stream otherwise, as {other}.",
        )


def _create_locked(
    database: Database,
    session_id: int,
    cursor: duckdb.DuckDBPyConnection,
    spec: StreamSpec,
    owner: str | None,
    marked: Sequence[tuple[str, ...]],
) -> Stream:
    """Under the marks and the writer lock: write the stream's rows and its owner's, then show it."""
    shapes = _shapes(database, cursor, spec)
    fresh = {fold(shape.schema, shape.name) for shape in shapes} - {*marked, *database.catalog.tables}
    if fresh:  # It was made by a transaction that has held the writer lock.
        raise LockNotAvailable(f'table "{min(fresh)[-1]}" has just been made', hint="Try again.")
    _check_new(database, cursor, spec, shapes)
    _check_surroundings(database, cursor)
    base_lsn, txid = database.commits.last_lsn, database.commits.last_txid + 1
    now_us = database.commits.now_us()
    item = rights.relation(spec.schema, spec.name)
    # What an older stream of this name left behind is nobody's either way.
    changes = [rights_changes.Forget(item) if owner is None else rights_changes.PutOwner(item, owner)]
    made_now = {
        "created_lsn": base_lsn,
        "created_counter": database.snapshots.next_counter,
        "created_at_us": now_us,
    }
    # It is on all tables that are there, but for those that are in none of the others of its kind.
    anew = spec.of_schema is not None and not database.catalog.over_schema(spec.of_schema)
    try:
        with undone(cursor):
            cursor.execute("BEGIN")
            stream_id = new_id(cursor)
            if spec.of_schema is not None:
                shapes[0] = whole_schemas.first_shape(stream_id, spec.partition_by)
                cursor.execute(whole_schemas.create_sql(shapes[0]))
                if anew:
                    cursor.execute(whole_schemas.none_aside_sql(spec.of_schema))
            known = (database.catalog.tables.get(fold(shape.schema, shape.name)) for shape in shapes)
            tables = [
                captured or _new_table(cursor, shape, base_lsn)
                for captured, shape in zip(known, shapes, strict=True)
            ]
            ids = [captured.table_id for captured in tables]
            made, on_each = _streams_of(spec, [captured.shape for captured in tables], ids, stream_id)
            stream = replace(made, **made_now)  # type: ignore[arg-type]
            parts = [
                (captured, replace(part, **made_now))  # type: ignore[arg-type]
                for captured, part in zip(tables, on_each, strict=True)
            ]
            cursor.execute(insert_stream_sql(stream))
            if stream.several is not None:
                cursor.execute(insert_tables_sql([part for _, part in parts]))
            with_it = [captured.with_streams((*captured.streams, part)) for captured, part in parts]
            for statement in view_statements(query_over_all(stream, with_it)):
                cursor.execute(statement)
            for statement in rights_changes.statements_of(changes):
                cursor.execute(statement)
            events, written = 0, {}
            for captured in tables if stream.snapshot == "initial" else ():
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
                if events:
                    lsns = (base_lsn + 1, base_lsn + events)
                    database.publisher.put(Note(txid, *lsns, now_us, written))

            shield = database.sessions.shield(session_id)
            database.commits.commit_own(cursor, shield, (txid, base_lsn + events, now_us), show)
    except duckdb.Error as error:
        raise translated(error) from error
    return stream


def new_id(cursor: duckdb.DuckDBPyConnection) -> int:
    """A number for a table, stream, group or bookmark, never used again."""
    row = ask_maybe(cursor, "SELECT nextval('ducktail.object_id')")
    assert row is not None
    return int(row[0])


def _new_table(cursor: duckdb.DuckDBPyConnection, shape: TableShape, base_lsn: int) -> Captured:
    captured = new_log(cursor, shape)
    for statement in row_sums.take_statements(captured, base_lsn, row_sums.CREATED):
        cursor.execute(statement).fetchall()
    return captured


def new_log(cursor: duckdb.DuckDBPyConnection, shape: TableShape) -> Captured:
    """Make a table a captured one, with an empty log; its row-hash sum is still to be taken."""
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


def leave_name_sql(shape: TableShape, table_id: int) -> str:
    """What was dropped past ducktail, and was called as this table is now, gives the name up."""
    return (
        f"UPDATE ducktail.table_catalog SET table_name = table_name || {literal(DROPPED)} "
        f"WHERE lower(schema_name) = lower({literal(shape.schema)}) "
        f"AND lower(table_name) = lower({literal(shape.name)}) AND table_id <> {table_id}"
    )


def names_sql(names: tuple[str, ...] | list[str]) -> str:
    """A list of names as SQL."""
    return f"[{', '.join(map(literal, names))}]::VARCHAR[]"


def insert_stream_sql(stream: Stream) -> str:
    """Write a stream's or a topic's row of the catalog."""
    values = (
        str(stream.stream_id),
        literal(stream.schema),
        literal(stream.name),
        str(stream.table_id),
        names_sql(sorted(stream.operations)),
        names_sql(stream.columns),
        "NULL" if stream.filter is None else literal(stream.filter),
        str(stream.partitions),
        names_sql(stream.partition_by),
        literal(stream.snapshot),
        literal(stream.before),
        str(stream.buffer_bytes),
        str(stream.created_lsn),
        f"make_timestamptz({stream.created_at_us})",
        _or_null(stream.retention_us),
        _or_null(stream.retention_bytes),
        str(stream.changes_view),
        str(stream.all_columns),
        literal(stream.minimal_changes),
        literal(stream.compaction),
        str(stream.compaction_lag_us),
        str(stream.tombstone_retention_us),
        "NULL" if stream.of_schema is None else literal(stream.of_schema),
    )
    return (
        "INSERT INTO ducktail.stream_catalog (stream_id, schema_name, stream_name, table_id, operations, "
        "columns, filter, partitions, partition_by, snapshot, before, buffer_bytes, created_lsn, "
        "created_at, retention_us, retention_bytes, changes_view, all_columns, minimal_changes, "
        "compaction, compaction_lag_us, tombstone_retention_us, of_schema) "
        f"VALUES ({', '.join(values)})"
    )


def insert_tables_sql(parts: Sequence[Stream], first: int = 0) -> str:
    """Write which tables a stream over several is on.

    Args:
        first: the place of the first of these.
    """
    rows = ", ".join(
        f"({part.stream_id}, {part.table_id}, {place}, {part.created_lsn}, {names_sql(part.partition_by)}, "
        f"{names_sql(part.columns)})"
        for place, part in enumerate(parts, first)
    )
    columns = "(stream_id, table_id, place, created_lsn, partition_by, columns)"
    return f"INSERT INTO ducktail.stream_tables {columns} VALUES {rows}"


def _or_null(value: int | None) -> str:
    return "NULL" if value is None else str(value)


def show_stream(database: Database, stream: Stream, parts: Sequence[tuple[Captured, Stream]] = ()) -> None:
    """A stream, or a topic, has been committed.

    Args:
        parts: the tables that it is on, and what it is on each; none of a topic.
    """
    with database.catalog.mutex:
        database.catalog.put_stream(stream, parts)
        database.catalog.version += 1
        database.buffers.add(stream)
        for table_id in stream.tables:
            database.snapshots.stream_made(table_id)


def commit_sql(txid: int, base_lsn: int, events: int, commit_us: int, annotation: str | None = None) -> str:
    """A transaction's line in `commits`; one without events, as a definition is, takes no LSN."""
    return (
        f"INSERT INTO ducktail.commits {COMMIT_COLUMNS} VALUES ({txid}, {base_lsn + 1}, "
        f"{base_lsn + events}, make_timestamptz({commit_us}), "
        f"{'NULL' if annotation is None else literal(annotation)})"
    )


def run_numbered(
    database: Database,
    session_id: int,
    cursor: duckdb.DuckDBPyConnection,
    statements: list[str],
    show: Callable[[], None],
    changes: Sequence[rights_changes.Change] = (),
) -> None:
    """All of these statements or none, under the writer lock, as a numbered transaction without events.

    So an opening notices when the log lacks it.

    Args:
        show: what memory makes of it, once DuckDB has committed.
        changes: of users' rights that go with it.

    Raises:
        DucktailError: what DuckDB said, translated.
    """
    commits = database.commits
    txid, now_us = commits.last_txid + 1, commits.now_us()
    commit = commit_sql(txid, commits.last_lsn, 0, now_us)

    def show_all() -> None:
        database.rights = rights_changes.after(database.rights, changes)
        show()

    with plain_division(cursor):
        try:
            with undone(cursor):
                cursor.execute("BEGIN")
                for statement in [*statements, *rights_changes.statements_of(changes), commit]:
                    cursor.execute(statement).fetchall()
                shield = database.sessions.shield(session_id)
                commits.commit_own(cursor, shield, (txid, commits.last_lsn, now_us), show_all)
        except duckdb.Error as error:
            raise translated(error) from error
