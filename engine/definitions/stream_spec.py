"""What CREATE STREAM asks for, and the stream that it describes on tables of given shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..errors import InvalidParameterValue, NotSupported, UndefinedColumn
from ..log.changes import clashing
from ..partitioning import check_type
from ..quoting import fold
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
)
from ..table import TableShape


@dataclass(frozen=True, slots=True)
class Keeping:
    """How much of its events a stream or topic keeps, and for how long."""

    buffer_bytes: int = DEFAULT_BUFFER_BYTES
    retention_us: int | None = DEFAULT_RETENTION_US
    retention_bytes: int | None = None
    compaction: str = "none"
    compaction_lag_us: int = DEFAULT_COMPACTION_LAG_US
    tombstone_retention_us: int = DEFAULT_TOMBSTONE_RETENTION_US


DEFAULT_KEEPING = Keeping()


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
    keeping: Keeping = DEFAULT_KEEPING
    of_schema: str | None = None


def _resolved(names: tuple[str, ...], shape: TableShape, what: str) -> tuple[str, ...]:
    """Column names as the table spells them.

    Raises:
        UndefinedColumn: 42703. InvalidParameterValue: 22023, one named twice.
    """
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


def streams_of(
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
