"""The options of CREATE STREAM, the stream that they describe on given table shapes, and free names.

Tables, views, streams and topics of a schema share one name space; a stream also uses the names of its views.

A stream over all tables of a schema is a stream over several tables. The first of them is our own, without
rows: it has the columns by which all others are partitioned, so that the stream has a table even if the
schema has none. The list of tables is read under the writer lock; transactions that create, rename or drop
one are registered at the gate under `all_of` the schema, so that CREATE STREAM can wait for them.
table_changes/schema_tables.py handles later tables.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count

import duckdb

from ..catalog.captured_tables import fed_name
from ..catalog.feeds import Selection
from ..catalog.source_tables import SourceTable
from ..catalog.streams import (
    BUFFER_BYTES_MAX,
    BUFFER_BYTES_MIN,
    CHANGES_SUFFIX,
    DEFAULT_BUFFER_BYTES,
    DEFAULT_COMPACTION_LAG_US,
    DEFAULT_PARTITIONS_WITH_KEY,
    DEFAULT_RETENTION_US,
    DEFAULT_TOMBSTONE_RETENTION_US,
    OPERATIONS,
    PARTITIONS_MAX,
    TABLES_MAX,
    Stream,
    key_of,
)
from ..database import Database
from ..duck.binding import Parsed
from ..duck.table_shape import RELATIONS, Column, TableShape
from ..errors import (
    DuplicateObject,
    InvalidParameterValue,
    NotSupported,
    ProgramLimitExceeded,
    UndefinedColumn,
)
from ..log.envelope_changes import clashing
from ..partitioning import check_type
from ..quoting import fold, folded_sql, ident, literal
from ..schema import SCHEMA
from ..transactions.transaction import TableKey

# Stands for all tables of a schema; a table's name is never empty.
ALL = ""
# The only column of the first table of a stream partitioned by each table's own key.
NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Keeping:
    """The retention of a stream or topic: the size and age of the events kept."""

    buffer_bytes: int = DEFAULT_BUFFER_BYTES
    retention_us: int | None = DEFAULT_RETENTION_US
    retention_bytes: int | None = None
    compaction: str = "none"
    compaction_lag_us: int = DEFAULT_COMPACTION_LAG_US
    tombstone_retention_us: int = DEFAULT_TOMBSTONE_RETENTION_US


DEFAULT_KEEPING = Keeping()


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """The options of CREATE STREAM; None stands for a default.

    Args:
        schema, name: schema and name of the stream.
        tables: its tables, each by schema and name; a stream over several has all columns and changes.
        columns: its columns, None for all.
        of_schema: the schema whose present and future tables it covers; `tables` is then empty.
        feed: where it is fed from; `tables` is then empty, and its tables are made with it.
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
    keeping: Keeping = DEFAULT_KEEPING
    of_schema: str | None = None
    feed: FeedSpec | None = None


@dataclass(frozen=True, slots=True)
class FeedSpec:
    """The source of a new stream with a feed; fields as of `Feed`.

    Args:
        tables: the definitions of the tables there.
    """

    kind: str
    address: str
    shown: str
    selection: Selection
    options: Mapping[str, str | int | None]
    tables: tuple[SourceTable, ...]
    identity: str | None


def _resolved(names: tuple[str, ...], shape: TableShape, what: str) -> tuple[str, ...]:
    """Column names in the table's spelling."""
    known = {fold(column.name): column.name for column in shape.stored}
    found = []
    for name in names:
        if fold(name) not in known:
            raise UndefinedColumn(
                f'{what} "{name}" is not a stored column of table "{shape.name}"',
                hint=f"Its columns are {', '.join(c.name for c in shape.stored)}.",
            )
        found.append(known[fold(name)])
    if len(set(found)) < len(found):
        raise InvalidParameterValue(f"{what} named twice")
    return tuple(found)


def _stream_of(
    spec: StreamSpec, shape: TableShape, table_id: int, stream_id: int, several: tuple[int, ...] | None = None
) -> Stream:
    """The stream that a spec describes on a table of this shape.

    Args:
        several: for a stream over several tables: their numbers; the result is its part on this table. All
            events of a table without a key are in partition 0.
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
    for column in shape.stored:
        if column.name in partition_by:
            check_type(column.type)
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
    if not BUFFER_BYTES_MIN <= spec.keeping.buffer_bytes <= BUFFER_BYTES_MAX:
        raise InvalidParameterValue(
            f'option "buffer_bytes" wants {BUFFER_BYTES_MIN} to {BUFFER_BYTES_MAX} bytes, '
            f"not {spec.keeping.buffer_bytes}"
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
        buffer_bytes=spec.keeping.buffer_bytes,
        created_lsn=0,
        retention_us=spec.keeping.retention_us,
        retention_bytes=spec.keeping.retention_bytes,
        compaction=spec.keeping.compaction,
        compaction_lag_us=spec.keeping.compaction_lag_us,
        tombstone_retention_us=spec.keeping.tombstone_retention_us,
        changes_view=several is None and clashing(columns) is None,
        all_columns=spec.columns is None,
        several=several,
        of_schema=spec.of_schema,
    )
    if stream.compaction == "key":
        check_compacted(stream, shape)
    return stream


def check_compacted(stream: Stream, shape: TableShape) -> None:
    """Check that a stream on a table of this shape can be compacted.

    Raises:
        InvalidParameterValue: the table has no primary key.
        NotSupported: the stream is over several tables.
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


def streams_of(
    spec: StreamSpec, shapes: Sequence[TableShape], ids: Sequence[int], stream_id: int
) -> tuple[Stream, list[Stream]]:
    """The stream that a spec describes on tables of these shapes, and its part on each of them.

    Args:
        ids: the tables' numbers.

    Raises:
        InvalidParameterValue: an option does not fit a table.
        UndefinedColumn: a column does not exist.
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
    """The stream over all tables of a schema, and its parts; the first shape is that of our own table."""
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
    """The part of a stream over all tables of a schema on a new table.

    Raises:
        InvalidParameterValue, UndefinedColumn: the table does not fit the stream's options.
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


def taken_names(cursor: duckdb.DuckDBPyConnection, catalog: str, schema: str) -> dict[str, str]:
    """The names used in a schema: name in lower case -> kind of relation, 'table' or 'view'.

    Each stream and topic has a view of its name.

    Args:
        catalog: the database's name in DuckDB.
    """
    return dict(_TAKEN.run(cursor, [catalog, fold(schema)]).fetchall())


_TAKEN = Parsed(
    f"SELECT {folded_sql('table_name')}, kind FROM {RELATIONS} WHERE database_name = $1 "
    f"AND {folded_sql('schema_name')} = $2"
)


def free_name(first: str, taken: Container[str]) -> str:
    """A free name for a stream and its view of typed changes.

    Args:
        first: the preferred name; if it is taken a number is appended.
        taken: the used names, in lower case.
    """
    for name in chain([first], (f"{first}_{number}" for number in count(2))):
        if fold(name) not in taken and fold(f"{name}{CHANGES_SUFFIX}") not in taken:
            return name
    raise AssertionError("numbers have no end")


def check_no_stream(database: Database, schema: str, name: str) -> None:
    """Raise DuplicateObject (42710) if a stream or topic has the name."""
    known = database.catalog.streams.get(key_of(schema, name))
    if known is not None:
        raise DuplicateObject(f'{known.kind} "{name}" already exists')


def check_names(
    database: Database, cursor: duckdb.DuckDBPyConnection, stream: Stream, own: Collection[str] = ()
) -> None:
    """Check that no other object has the names of the stream's views.

    Args:
        own: its present views, which are replaced.

    Raises:
        DuplicateObject: a name is taken.
    """
    free = {fold(name) for name in own}
    named = taken_names(cursor, database.catalog_name, stream.schema)
    taken = {name: kind for name, kind in named.items() if name not in free}
    for name in stream.views:
        if fold(name) not in taken:
            continue
        kind = taken[fold(name)]
        other = ident(free_name(f"{stream.name}_{stream.kind}", taken))
        raise DuplicateObject(
            f'the name "{name}" is taken by a {kind}',
            hint=f"Tables, views, streams and topics share their names: try {other}."
            if name == stream.name
            else f"It would be the stream's view of typed changes: name the stream otherwise, as {other}.",
        )


def all_of(schema: str) -> TableKey:
    """The gate's key for transactions that create, drop or rename tables in a schema."""
    return key_of(schema, ALL)


def check_bound(tables: int) -> None:
    """Check the number of tables of a stream.

    Raises:
        ProgramLimitExceeded: a stream cannot read that many tables.
    """
    if tables > TABLES_MAX:
        raise ProgramLimitExceeded(
            f"a stream on all tables of a schema is on {TABLES_MAX} tables at most, not on {tables}",
            detail="Tables that were dropped count as long as events of them are retained.",
            hint="Make the table in another schema; or DROP STREAM, and make several, on lists of tables.",
        )


def first_shape(stream_id: int, partition_by: Sequence[str] | None) -> TableShape:
    """The shape of our own table, the first of a stream over all tables of a schema."""
    stored = tuple(Column(name, "VARCHAR", None, False) for name in partition_by or (NOTHING,))
    names = tuple(column.name for column in stored)
    return TableShape(SCHEMA, f"{stream_id} of all tables", stored, (), names, (), ())


def fed_shape(stream_id: int, place: int, table: SourceTable) -> TableShape:
    """The shape of our own table with the rows of a table outside.

    Columns other than the key's may be NULL, because the source may not send all of them.
    """
    stored = tuple(Column(c.name, c.type, None, c.name in table.key) for c in table.columns)
    names, unique = tuple(column.name for column in stored), (table.key,) if table.key else ()
    return TableShape(SCHEMA, fed_name(stream_id, place, table.shown), stored, (), names, table.key, unique)


def create_sql(shape: TableShape, name: str | None = None) -> str:
    """The DDL of our own table, or of one with its columns and key under another name, given as SQL."""
    columns = [f"{ident(column.name)} {column.type}" for column in shape.stored]
    if shape.primary_key:
        columns.append(f"PRIMARY KEY ({_names(shape.primary_key)})")
    return f"CREATE TABLE {name or shape.qualified} ({', '.join(columns)})"


def none_aside_sql(schema: str) -> str:
    """SQL that marks no table of a schema as excluded from its streams any more."""
    return f"DELETE FROM {SCHEMA}.replaced_tables WHERE schema_name = {literal(fold(schema))}"


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(ident, names))
