"""What a stream and a consumer group are: frozen values, and the catalog that holds them in memory.

The tables behind the catalog are in `schema.py`; the catalog itself is a cache of them that only
the engine's commits change (under its mutex), so that finding a stream costs no query.
"""

from __future__ import annotations

import threading
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import takewhile

from ..capture.capture import CapturedTable
from ..errors import UndefinedObject, WrongState
from ..quoting import ident
from ..schema import SCHEMA
from ..table import TableShape
from .copies import Copy
from .segments import Segments

PARTITIONS_MAX = 1024
DEFAULT_PARTITIONS_WITH_KEY = 8
DEFAULT_BUFFER_BYTES = 64 << 20
BUFFER_BYTES_MIN = 64 << 10
BUFFER_BYTES_MAX = 1 << 40
# Tables of one stream: what reads all of it asks each of their logs, and is planned anew for it.
TABLES_MAX = 64
DEFAULT_RETENTION_US = 7 * 86_400_000_000
DEFAULT_SESSION_TIMEOUT_MS = 30_000
DEFAULT_COMPACTION_LAG_US = 3_600_000_000
DEFAULT_TOMBSTONE_RETENTION_US = 86_400_000_000

OPERATIONS = ("insert", "update", "delete")
# From the least to the most that is left out.
MINIMAL_CHANGES = ("none", "replace", "all")
# Names whose keys are kept: each statement looks for the same few.
NAMES_KEPT = 4096
# What a topic's events are, and nothing else is.
PUBLISHED = frozenset({"publish"})
# Behind a stream's name: its view over ENVELOPE CHANGES.
CHANGES_SUFFIX = "_changes"


@lru_cache(maxsize=NAMES_KEPT)
def fold(*parts: str) -> tuple[str, ...]:
    """The key under which a name is found: names keep their case and ignore it."""
    return tuple(part.lower() for part in parts)


@dataclass(frozen=True, slots=True)
class Stream:
    """A cursor over one log: what of it is shown, and in which partition.

    The log is a captured table's, or, of a topic, its own: what PUBLISH has put there. A stream over several
    tables is a cursor over each of their logs (its parts, which `Captured.streams` has), and a whole, which
    stands in the catalog, and whose number, options, partitions and events are those of all parts together.

    Args:
        stream_id: its number in the database, never used again.
        table_id: the captured table's; a topic's is its own `stream_id`, and so is that of the whole of a
            stream over several tables.
        operations: the kinds of change it carries.
        columns: the table's columns that it carries, in table order, the key always among them.
        filter: the predicate's text on the table's columns, or None.
        partitions: 1 to 1024.
        partition_by: the columns that choose the partition; empty without any.
        before: 'full', 'key' or 'none': how much of the old row is shown.
        buffer_bytes: bound of the in-process buffer, bytes.
        created_lsn: the database's last LSN when it was made; its events come after it.
        created_counter: the commit counter of its creation.
        retention_us: how long an event is kept after its commit, microseconds; None is until the
            stream is dropped.
        retention_bytes: bound of the retained events, as they are sent, bytes; None is none.
        changes_view: whether the view over ENVELOPE CHANGES is there: not for a stream that carries a
            column of one of the envelope's own names, nor where an older database had something else
            under the view's name.
        comment: of COMMENT ON; its view of events has the same.
        all_columns: it was made without a list of columns: it carries what the table has.
        minimal_changes: which refreshes of its table may be told as what differs: 'replace', 'all', 'none'.
        compaction: 'key': of its older events the last of each key is kept; or 'none'.
        compaction_lag_us: how old an event is before that, microseconds.
        tombstone_retention_us: how long a delete is kept then, microseconds.
        several: of a stream over several tables, whole or part, their numbers in the order in which they were
            named; None of any other. The whole has no columns, and of `partition_by` only what was asked for.
        of_schema: it is over all tables of this schema, those to come included. Its first table is one of
            ours without rows, so that it is over one where the schema has none.
    """

    stream_id: int
    schema: str
    name: str
    table_id: int
    operations: frozenset[str]
    columns: tuple[str, ...]
    filter: str | None
    partitions: int
    partition_by: tuple[str, ...]
    snapshot: str
    before: str
    buffer_bytes: int
    created_lsn: int
    created_counter: int = 0
    created_at_us: int = 0
    retention_us: int | None = None
    retention_bytes: int | None = None
    changes_view: bool = False
    comment: str | None = None
    all_columns: bool = True
    minimal_changes: str = "replace"
    compaction: str = "none"
    compaction_lag_us: int = DEFAULT_COMPACTION_LAG_US
    tombstone_retention_us: int = DEFAULT_TOMBSTONE_RETENTION_US
    several: tuple[int, ...] | None = None
    of_schema: str | None = None

    def __post_init__(self) -> None:
        assert 1 <= self.partitions <= PARTITIONS_MAX
        assert self.topic or (self.operations and self.operations <= frozenset(OPERATIONS))
        assert not self.topic or self.table_id == self.stream_id
        assert self.before in ("full", "key", "none")
        assert self.snapshot in ("none", "initial")
        assert self.minimal_changes in MINIMAL_CHANGES
        assert self.compaction in ("none", "key")
        assert BUFFER_BYTES_MIN <= self.buffer_bytes <= BUFFER_BYTES_MAX

    @property
    def key(self) -> tuple[str, ...]:
        """Under which the catalog finds it."""
        return fold(self.schema, self.name)

    @property
    def topic(self) -> bool:
        """Whether it is a topic: fed by PUBLISH, on no table."""
        return self.operations == PUBLISHED

    @property
    def is_part(self) -> bool:
        """Whether it is a stream over several tables as it is on one of them."""
        return self.several is not None and self.table_id != self.stream_id

    @property
    def tables(self) -> tuple[int, ...]:
        """The numbers of what has its logs."""
        return (self.table_id,) if self.several is None or self.is_part else self.several

    def is_on(self, tables: Container[int]) -> bool:
        """Whether one of these has a log of it."""
        if self.several is None:
            return self.table_id in tables
        return any(table_id in tables for table_id in self.tables)

    @property
    def kind(self) -> str:
        """What it is called in messages."""
        return "topic" if self.topic else "stream"

    def as_on(self, part: Stream) -> Stream:
        """What it is on a table, as it is now: it was `part` there before its options or name were others."""
        if self.several is None:
            return self
        return replace(
            self,
            table_id=part.table_id,
            columns=part.columns,
            partition_by=part.partition_by,
            created_lsn=part.created_lsn,
            created_counter=part.created_counter,
        )

    @property
    def views(self) -> tuple[str, ...]:
        """Names of its views, in its schema."""
        return (self.name, self.name + CHANGES_SUFFIX) if self.changes_view else (self.name,)

    @property
    def shows_all(self) -> bool:
        """Whether each row of the log is an event of the stream."""
        return self.topic or (self.filter is None and self.operations == frozenset(OPERATIONS))


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group: a name under which positions of one stream are kept.

    Args:
        on_gap: what a read does whose next event is no longer retained: 'error' or 'earliest'.
        session_timeout_ms: for how long a member may be silent.
        on_park: what is set aside with a parked event: 'event' is it alone, 'key' later ones of its key too.
    """

    group_id: int
    stream_id: int
    name: str
    start: str
    created_at_us: int
    on_gap: str = "error"
    session_timeout_ms: int = DEFAULT_SESSION_TIMEOUT_MS
    on_park: str = "event"

    @property
    def key(self) -> tuple[int, str]:
        """Under which the catalog finds it."""
        return (self.stream_id, self.name.lower())


@dataclass(frozen=True, slots=True)
class Bookmark:
    """A position of a whole stream under a name.

    Args:
        lsns: partition -> the LSN behind which a reader goes on, for every partition.
        positions: partition -> how many of its events are at or before that, where it is known: not where
            retention had passed it when the bookmark was made.
    """

    bookmark_id: int
    stream_id: int
    name: str
    lsns: Mapping[int, int]
    positions: Mapping[int, int]
    created_at_us: int

    @property
    def key(self) -> tuple[int, str]:
        """Under which the catalog finds it."""
        return (self.stream_id, self.name.lower())


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
        """What can be selected from for log rows that are of rows of the table: a log, or a query.

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
            UndefinedObject: 42704, it has been dropped.
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
        return fold(self.shape.schema, self.shape.name)

    @property
    def ours(self) -> bool:
        """Whether it is a table of ours: what is left of one that was dropped, or the first of a stream over
        all tables of a schema. It never has rows."""
        return self.shape.schema == SCHEMA

    @property
    def was_dropped(self) -> bool:
        """Whether it is what is left of a dropped table: its log."""
        return self.ours and self.version > 1

    @property
    def may_go(self) -> bool:
        """Whether its streams go on without it: each is over all tables of its schema."""
        return all(stream.of_schema is not None for stream in self.streams)

    @property
    def minimal_changes(self) -> str:
        """Which refreshes are told as what differs: of all streams' wishes, the one that leaves out least."""
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


@dataclass(slots=True)
class Catalog:
    """All streams, groups, bookmarks and captured tables of the database.

    Args:
        copies: group id -> its whole copy, the latest one that it has had.
        copying: number -> the copies that are being made.
        behind: stream id -> what its readers are told where tables have come into its schema past ducktail.
        aside: names of tables that are in none of the streams over all of their schema, as others have taken
            their places; see `is_aside`.
        version: counts up where what a name means may have changed, in DuckDB's catalog as well.
        mutex: guards changes of it, and of what follows it in memory; no DuckDB call is made under it.
    """

    tables: dict[tuple[str, ...], Captured] = field(default_factory=dict)
    streams: dict[tuple[str, ...], Stream] = field(default_factory=dict)
    groups: dict[tuple[int, str], Group] = field(default_factory=dict)
    bookmarks: dict[tuple[int, str], Bookmark] = field(default_factory=dict)
    copies: dict[int, Copy] = field(default_factory=dict)
    copying: dict[int, Copy] = field(default_factory=dict)
    behind: dict[int, WrongState] = field(default_factory=dict)
    aside: set[tuple[str, ...]] = field(default_factory=set)
    version: int = 0
    segments: Segments = field(default_factory=Segments, compare=False, repr=False)
    mutex: threading.RLock = field(default_factory=threading.RLock, compare=False, repr=False)

    def table_by_id(self, table_id: int) -> Captured:
        """The captured table with this number."""
        # Of a list, as in the others below: who does not hold the mutex may meet who changes it.
        found = next((table for table in list(self.tables.values()) if table.table_id == table_id), None)
        if found is None:
            raise UndefinedObject("the stream does not exist any more")
        return found

    def sources_of(self, stream: Stream) -> tuple[Source, ...]:
        """What has the logs that a stream is over: one, or the tables of a stream over several."""
        return (TopicLog(stream),) if stream.topic else self.tables_of(stream)

    def tables_of(self, stream: Stream) -> tuple[Captured, ...]:
        """The captured tables that a stream is on, in the order in which they were named; of a topic none."""
        if stream.of_schema is not None and not stream.is_part:
            stream = self.present(stream) or stream  # Tables have come since somebody got hold of it.
        return () if stream.topic else tuple(self.table_by_id(table_id) for table_id in stream.tables)

    def over_schema(self, schema: str) -> tuple[Stream, ...]:
        """The streams over all tables of a schema, by any case of its name."""
        found = (stream for stream in list(self.streams.values()) if stream.of_schema is not None)
        return tuple(stream for stream in found if fold(stream.of_schema or "") == fold(schema))

    def is_aside(self, key: tuple[str, ...]) -> bool:
        """Whether a table without a stream has had to leave the streams over all of its schema to another."""
        return key in self.aside and key not in self.tables and bool(self.over_schema(key[0]))

    def none_aside(self, schema: str) -> None:
        """The first stream over all tables of a schema is made, on all that are there."""
        self.aside -= {key for key in self.aside if key[0] == schema.lower()}

    @property
    def sources(self) -> list[Source]:
        """All that have a log: the captured tables and the topics."""
        topics = (TopicLog(stream) for stream in self.streams.values() if stream.topic)
        return [*self.tables.values(), *topics]

    def stream_by_id(self, stream_id: int) -> Stream | None:
        """The stream with this number, if it still is."""
        return next((s for s in list(self.streams.values()) if s.stream_id == stream_id), None)

    def present(self, stream: Stream) -> Stream | None:
        """A stream as it is now, by whatever name; None where it is no more."""
        found = self.streams.get(stream.key)
        return found if found and found.stream_id == stream.stream_id else self.stream_by_id(stream.stream_id)

    def stream_of_view(self, key: tuple[str, ...]) -> Stream | None:
        """The stream that has a view of this name, if one has."""
        found = self.streams.get(key)
        if found is None and key[-1].endswith(CHANGES_SUFFIX):
            base = self.streams.get((*key[:-1], key[-1].removesuffix(CHANGES_SUFFIX)))
            found = base if base is not None and base.changes_view else None
        return found

    def groups_of(self, stream_id: int) -> tuple[Group, ...]:
        """A stream's groups, oldest first."""
        return tuple(group for group in self.groups.values() if group.stream_id == stream_id)

    def copied_versions(self, source: Source) -> set[int]:
        """The versions of a table that copies are of which are read, or are being made."""
        streams = {stream.stream_id for stream in source.streams}
        read = [copy for copy in self.copies.values() if copy.spans]
        return {copy.version for copy in (*read, *self.copying.values()) if copy.stream_id in streams}

    def bookmarks_of(self, stream_id: int) -> tuple[Bookmark, ...]:
        """A stream's bookmarks, oldest first."""
        found = [mark for mark in self.bookmarks.values() if mark.stream_id == stream_id]
        return tuple(sorted(found, key=lambda mark: mark.bookmark_id))

    def put_part(self, captured: Captured, part: Stream) -> None:
        """Add a stream to its table, or a part of one, and the table when it is the first one there."""
        known = self.tables.get(captured.key, captured)
        self.tables[captured.key] = known.with_streams((*known.streams, part))

    def put_stream(self, stream: Stream, parts: Sequence[tuple[Captured, Stream]] = ()) -> None:
        """Add a stream, or a topic.

        Args:
            parts: the tables that it is on, and what it is on each; none of a topic.
        """
        for captured, part in parts:
            self.put_part(captured, part)
        self.streams[stream.key] = stream

    def put_table(self, before: Captured, after: Captured) -> None:
        """Show a captured table as it is now, with its streams: another version, or another name."""
        assert before.table_id == after.table_id
        known = self.tables[before.key]
        self.tables[after.key] = after  # First, so that it is never missing to who does not hold the mutex.
        if before.key != after.key and known.table_id == before.table_id:  # Else another has it.
            del self.tables[before.key]
        for stream in after.streams:
            if not stream.is_part:
                self.streams[stream.key] = stream
                continue
            whole = self.streams[stream.key]
            if whole.of_schema is None and whole.partition_by and whole.tables[0] == after.table_id:
                # They may be called otherwise now; the whole goes by its first table's names.
                self.streams[stream.key] = replace(whole, partition_by=stream.partition_by)

    def put_new_table(self, captured: Captured) -> None:
        """A table has come into a schema of which streams are over all tables: they are over it too."""
        self.tables[captured.key] = captured
        for part in captured.streams:
            whole = self.streams[part.key]
            self.streams[part.key] = replace(whole, several=(*whole.tables, captured.table_id))

    def take_table(self, captured: Captured) -> None:
        """What was left of a dropped table is gone: its streams, over all of a schema, go on without it."""
        del self.tables[captured.key]
        for part in captured.streams:
            whole = self.streams[part.key]
            rest = tuple(table_id for table_id in whole.tables if table_id != captured.table_id)
            self.streams[part.key] = replace(whole, several=rest)

    def replace_stream(self, before: Stream, after: Stream) -> None:
        """Show a stream as it is now: other options, or another name."""
        assert before.stream_id == after.stream_id
        for captured in self.tables_of(before):
            own = captured.part_of(before)
            streams = tuple(after.as_on(own) if s is own else s for s in captured.streams)
            self.tables[captured.key] = captured.with_streams(streams)
        del self.streams[before.key]
        self.streams[after.key] = after

    def drop_stream(self, stream: Stream) -> None:
        """Take a stream away with all that is its; with its last stream the table is no longer captured."""
        del self.streams[stream.key]
        for group in self.groups_of(stream.stream_id):
            del self.groups[group.key]
            self.copies.pop(group.group_id, None)
        for bookmark in self.bookmarks_of(stream.stream_id):
            del self.bookmarks[bookmark.key]
        for captured in self.tables_of(stream):
            rest = tuple(s for s in captured.streams if s.stream_id != stream.stream_id)
            if rest:
                self.tables[captured.key] = captured.with_streams(rest)
            else:
                del self.tables[captured.key]
