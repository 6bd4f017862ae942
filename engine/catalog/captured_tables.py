"""Owners of logs: a captured table with the versions that it has had, or a topic. Frozen values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import takewhile

from ..capture.capture import CapturedTable
from ..duck.table_shape import TableShape
from ..errors import UndefinedObject
from ..quoting import ident
from ..schema import SCHEMA
from .streams import MINIMAL_CHANGES, Stream, key_of

# The beginning of the names of our own tables with the rows of tables outside.
_FED = "source "


def fed_name(stream_id: int, place: int, shown: str) -> str:
    """The name, in our schema, of the table with the rows of a table outside, which is shown by that name.

    Args:
        place: its place in the stream: names of the source may differ in the case of letters only.
    """
    return f"{_FED}{stream_id}.{place} {shown}"


def fed_place(shape: TableShape) -> int:
    """The place in a name of `fed_name`; -1 for another table."""
    return int(shape.name.split(" ", 2)[1].partition(".")[2]) if is_fed(shape) else -1


def is_fed(shape: TableShape) -> bool:
    """True for the table of a name of `fed_name`."""
    return shape.schema == SCHEMA and shape.name.startswith(_FED)


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A version of a captured table; some of an earlier version's events may be retained.

    Args:
        version: its number, from 1.
        first_lsn: the first of its LSNs, which end before the next version's first; 0 for version 1.
        since_us: the time of the change that made it, microseconds since 1970; 0 for version 1.
        table: the table in this version, with its own log.
        ids: the number of each stored column, by position; a column keeps its number when renamed.
        carried: for an earlier version: the streams with a list of columns, and the numbers of those columns.
        txid: the transaction that made it, which may also have events in the previous version; 0 without one.
        renamed_from: the table's previous name, as a user would write it, if it was renamed.
    """

    version: int
    first_lsn: int
    since_us: int
    table: CapturedTable
    ids: tuple[int, ...]
    carried: tuple[tuple[int, tuple[int, ...]], ...] = ()
    txid: int = 0
    renamed_from: str | None = None

    @property
    def names(self) -> dict[int, str]:
        """The stored columns by their numbers."""
        return dict(zip(self.ids, (column.name for column in self.table.shape.stored), strict=True))

    @property
    def stored(self) -> tuple[tuple[int, str], ...]:
        """Number and type of each position in the log's images."""
        types = (column.type for column in self.table.shape.stored)
        return tuple(zip(self.ids, types, strict=True))


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured table with its log and the streams over it.

    Args:
        version, first_lsn, since_us, table, txid, renamed_from: those of its present version, the only one
            written.
        older: its earlier versions whose logs still exist, oldest first.
        changed_counter: the commit counter of the change that made the present version.
        column_ids: the numbers of the present version's columns; () for a table that was never altered, whose
            numbers are the positions.
    """

    table_id: int
    version: int
    table: CapturedTable
    streams: tuple[Stream, ...] = ()
    first_lsn: int = 0
    since_us: int = 0
    older: tuple[TableVersion, ...] = ()
    changed_counter: int = 0
    column_ids: tuple[int, ...] = ()
    txid: int = 0
    renamed_from: str | None = None

    @property
    def shape(self) -> TableShape:
        """The table's columns and keys."""
        return self.table.shape

    @property
    def log(self) -> str:
        """The qualified, quoted name of the present version's log."""
        return self.table.log

    @property
    def logs(self) -> tuple[str, ...]:
        """The logs of all versions, oldest first."""
        return (*(version.table.log for version in self.older), self.log)

    @property
    def logged(self) -> str:
        """The log, or a query, of the log rows in the table's present columns.

        These are the rows since the table has had its present columns, under any names.
        """
        if self.version == 1:
            return self.log
        versions = self.versions
        same = takewhile(lambda version: version.stored == versions[-1].stored, reversed(versions))
        rows = [f"SELECT * FROM {version.table.log} WHERE op <> 'x'" for version in same]
        return f"({' UNION ALL '.join(rows)})"

    @property
    def versions(self) -> tuple[TableVersion, ...]:
        """All versions, oldest first, the present one last."""
        return (*self.older, self.present)

    @property
    def present(self) -> TableVersion:
        """The present version, the only one written."""
        ids = self.column_ids or tuple(range(1, len(self.shape.stored) + 1))
        return TableVersion(
            self.version,
            self.first_lsn,
            self.since_us,
            self.table,
            ids,
            txid=self.txid,
            renamed_from=self.renamed_from,
        )

    def only(self, version: TableVersion) -> Captured:
        """The table in one of its versions, with that version's log only."""
        return replace(
            self,
            version=version.version,
            first_lsn=version.first_lsn,
            since_us=version.since_us,
            table=version.table,
            older=(),
            column_ids=version.ids,
            txid=version.txid,
            renamed_from=version.renamed_from,
        )

    def stream_in(self, stream: Stream, version: TableVersion) -> Stream:
        """A stream over the table, with the names that its columns had in one of its versions.

        A stream without a list of columns has all columns of the version.
        """
        now, then = self.present.names, version.names
        if list(now.items()) == list(then.items()):  # Another order makes other columns.
            return stream
        ids = {name: number for number, name in now.items()}
        if not ids.keys() >= {*stream.columns, *stream.partition_by}:
            return stream  # It has lost columns without ducktail, an error for its readers only.
        listed = dict(version.carried).get(stream.stream_id) or [ids[name] for name in stream.columns]
        carried = then if stream.all_columns else set(listed)
        return replace(
            stream,
            columns=tuple(name for number, name in then.items() if number in carried),
            partition_by=tuple(then[ids[name]] for name in stream.partition_by),
        )

    def part_of(self, stream: Stream) -> Stream:
        """The part of a stream on this table: the stream itself, or one of its parts.

        Raises:
            UndefinedObject: the stream has been dropped.
        """
        found = next((own for own in self.streams if own.stream_id == stream.stream_id), None)
        if found is None:
            raise UndefinedObject(f'stream "{stream.name}" does not exist')
        return found

    @property
    def shown_name(self) -> str:
        """The table's name in messages."""
        return f"table {self.shape.qualified}"

    @property
    def key(self) -> tuple[str, ...]:
        """The table's key in the catalog."""
        return key_of(self.shape.schema, self.shape.name)

    @property
    def ours(self) -> bool:
        """True if it is our own empty table: the rest of a dropped one, or a schema stream's first table."""
        return self.shape.schema == SCHEMA and not self.is_fed

    @property
    def is_fed(self) -> bool:
        """True if it is a table of ducktail's own with the rows of one outside."""
        return is_fed(self.shape)

    @property
    def was_dropped(self) -> bool:
        """True if it is the remains of a dropped table: its log."""
        return self.ours and self.version > 1

    @property
    def may_go(self) -> bool:
        """True if its streams continue without it: each covers all tables of its schema."""
        return all(stream.of_schema is not None for stream in self.streams)

    @property
    def minimal_changes(self) -> str:
        """The refreshes that are logged as a difference: the least strict of all streams' options."""
        return min((stream.minimal_changes for stream in self.streams), key=MINIMAL_CHANGES.index)

    def with_streams(self, streams: tuple[Stream, ...]) -> Captured:
        """The table with other streams, and the columns that split an update derived from them."""
        split = frozenset(self.shape.primary_key).union(*(stream.partition_by for stream in streams))
        return replace(self, streams=streams, table=replace(self.table, split_on=split))


@dataclass(frozen=True, slots=True)
class TopicLog:
    """A topic's own log; the topic is the only stream over it."""

    topic: Stream

    @property
    def table_id(self) -> int:
        """The log's number."""
        return self.topic.table_id

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The only stream over it."""
        return (self.topic,)

    @property
    def log(self) -> str:
        """The log's qualified, quoted name."""
        return f"ducktail.topic_{self.topic.table_id}"

    @property
    def logs(self) -> tuple[str, ...]:
        """The log, as a tuple: a captured table may have several."""
        return (self.log,)

    @property
    def shown_name(self) -> str:
        """The topic's name in messages."""
        return f"topic {ident(self.topic.schema)}.{ident(self.topic.name)}"


# The owner of a log.
Source = Captured | TopicLog
