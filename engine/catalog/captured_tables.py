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


@dataclass(frozen=True, slots=True)
class TableVersion:
    """An earlier version of a captured table, of whose events some may be retained.

    Args:
        version: from 1 on.
        first_lsn: the LSNs from here to the next version's first one are its; 0 of version 1.
        since_us: when the table became so, microseconds since 1970; 0 of version 1.
        table: as it was, with its own log.
        ids: the number of each stored column, by its place: it stays the column's whatever that is called.
        carried: of an earlier version, each stream with a list of columns and the numbers of what it carried.
        txid: the transaction that made it, which may have events in the version before too; 0 where none has.
        renamed_from: the table's name before, as a user would write it, where it had another.
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
        """Number and type of each place of the log's images."""
        types = (column.type for column in self.table.shape.stored)
        return tuple(zip(self.ids, types, strict=True))


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured table with its log and the streams over it.

    Args:
        version, first_lsn, since_us, table, txid, renamed_from: of its present version, the only one that is
            written.
        older: its earlier versions, oldest first: those whose logs are still there.
        changed_counter: the commit counter of the change that made the present version.
        column_ids: the numbers of the present version's columns; () of a table that was never altered, where
            they are its places.
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
        """The qualified, quoted name of the log that is written."""
        return self.table.log

    @property
    def logs(self) -> tuple[str, ...]:
        """The logs of all versions, oldest first."""
        return (*(version.table.log for version in self.older), self.log)

    @property
    def logged(self) -> str:
        """The log, or a query, from which log rows that are of rows of the table can be selected.

        Those since the table has had its present columns, whatever they were called.
        """
        if self.version == 1:
            return self.log
        versions = self.versions
        same = takewhile(lambda version: version.stored == versions[-1].stored, reversed(versions))
        rows = [f"SELECT * FROM {version.table.log} WHERE op <> 'x'" for version in same]
        return f"({' UNION ALL '.join(rows)})"

    @property
    def versions(self) -> tuple[TableVersion, ...]:
        """All versions, oldest first; the last one is the present one."""
        return (*self.older, self.present)

    @property
    def present(self) -> TableVersion:
        """The version that is written."""
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
        """The table as it was, or is, in one of its versions, with that one's log alone."""
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
        """A stream over the table, by the names that its columns had in one of its versions.

        A stream without a list of columns has all that were there.
        """
        now, then = self.present.names, version.names
        if list(now.items()) == list(then.items()):  # In another order they are others.
            return stream
        ids = {name: number for number, name in now.items()}
        if not ids.keys() >= {*stream.columns, *stream.partition_by}:
            return stream  # It has lost columns past ducktail: whoever reads it is told, others are not hit.
        listed = dict(version.carried).get(stream.stream_id) or [ids[name] for name in stream.columns]
        carried = then if stream.all_columns else set(listed)
        return replace(
            stream,
            columns=tuple(name for number, name in then.items() if number in carried),
            partition_by=tuple(then[ids[name]] for name in stream.partition_by),
        )

    def part_of(self, stream: Stream) -> Stream:
        """A stream as it is on this table: itself, or its part here.

        Raises:
            UndefinedObject: it has been dropped.
        """
        found = next((own for own in self.streams if own.stream_id == stream.stream_id), None)
        if found is None:
            raise UndefinedObject(f'stream "{stream.name}" does not exist')
        return found

    @property
    def shown_name(self) -> str:
        """Its name, for messages."""
        return f"table {self.shape.qualified}"

    @property
    def key(self) -> tuple[str, ...]:
        """Under which the catalog finds it."""
        return key_of(self.shape.schema, self.shape.name)

    @property
    def ours(self) -> bool:
        """True if it is a table of ours: what is left of one that was dropped, or the first of a stream over
        all tables of a schema. It never has rows."""
        return self.shape.schema == SCHEMA

    @property
    def was_dropped(self) -> bool:
        """True if it is what is left of a dropped table: its log."""
        return self.ours and self.version > 1

    @property
    def may_go(self) -> bool:
        """True if its streams go on without it: each is over all tables of its schema."""
        return all(stream.of_schema is not None for stream in self.streams)

    @property
    def minimal_changes(self) -> str:
        """The refreshes that are logged as their difference: of all streams' options the least strict."""
        return min((stream.minimal_changes for stream in self.streams), key=MINIMAL_CHANGES.index)

    def with_streams(self, streams: tuple[Stream, ...]) -> Captured:
        """The same table with other streams; what splits an update follows from them."""
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
        """Those over it."""
        return (self.topic,)

    @property
    def log(self) -> str:
        """The log's qualified, quoted name."""
        return f"ducktail.topic_{self.topic.table_id}"

    @property
    def logs(self) -> tuple[str, ...]:
        """The same, as a captured table has several."""
        return (self.log,)

    @property
    def shown_name(self) -> str:
        """Its name, for messages."""
        return f"topic {ident(self.topic.schema)}.{ident(self.topic.name)}"


# What has a log.
Source = Captured | TopicLog
