"""Streams, consumer groups and bookmarks: frozen values of the catalog."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from .. import quoting

PARTITIONS_MAX = 1024
DEFAULT_PARTITIONS_WITH_KEY = 8
DEFAULT_BUFFER_BYTES = 64 << 20
BUFFER_BYTES_MIN = 64 << 10
BUFFER_BYTES_MAX = 1 << 40
# Limit of tables of one stream: a read of all of it queries each log, which is planned each time.
TABLES_MAX = 64
DEFAULT_RETENTION_US = 7 * 86_400_000_000
DEFAULT_SESSION_TIMEOUT_MS = 30_000
DEFAULT_COMPACTION_LAG_US = 3_600_000_000
DEFAULT_TOMBSTONE_RETENTION_US = 86_400_000_000

OPERATIONS = ("insert", "update", "delete")
# From the smallest to the largest omission.
MINIMAL_CHANGES = ("none", "replace", "all")
# Number of names whose keys are cached: statements use the same few.
NAMES_KEPT = 4096
# The operation of a topic's events, and of no others.
PUBLISHED = frozenset({"publish"})
# Suffix of a stream's name: its view over ENVELOPE CHANGES.
CHANGES_SUFFIX = "_changes"


@lru_cache(maxsize=NAMES_KEPT)
def key_of(*parts: str) -> tuple[str, ...]:
    """The key of a name: names keep their case, but are compared like DuckDB's."""
    return tuple(map(quoting.fold, parts))


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream: a view of one log as events in partitions.

    The log is that of a captured table, or a topic's own log, written by PUBLISH. A stream over several
    tables has a part for each of them (in `Captured.streams`), a cursor over the table's log, and a whole (in
    the catalog), which has the number, options, partitions and events of all parts together.

    Args:
        stream_id: its number in the database, never reused.
        table_id: the number of the captured table; for a topic, and for the whole of a stream over several
            tables, its own `stream_id`.
        operations: the kinds of change it carries.
        columns: the table's columns that it carries, in table order, always including the key.
        filter: the predicate's text on the table's columns, or None.
        partitions: 1 to 1024.
        partition_by: the columns that choose the partition; empty without any.
        before: the shown part of the old row: 'full', 'key' or 'none'.
        buffer_bytes: limit of the in-process buffer, bytes.
        created_lsn: the database's last LSN at its creation; its events are later.
        created_counter: the commit counter of its creation.
        retention_us: the time for which an event is kept after its commit, microseconds; None for the life of
            the stream.
        retention_bytes: limit of the retained events in encoded form, bytes; None for no limit.
        changes_view: True if it has the view over ENVELOPE CHANGES: not if one of its columns has a name
            reserved by the envelope, or if an older database had another object with the view's name.
        comment: the text of COMMENT ON, also set on its view of events.
        all_columns: True if it was created without a list of columns: it carries all columns of the table.
        minimal_changes: the refreshes of its table that may be logged as a difference: 'replace', 'all',
            'none'.
        compaction: 'key' to keep the last of its older events of each key, or 'none'.
        compaction_lag_us: the age from which events are compacted, microseconds.
        tombstone_retention_us: the time for which a delete is then kept, microseconds.
        several: for a stream over several tables, whole or part: their numbers in the order of its
            definition; None for any other. The whole has no columns, and only an explicit `partition_by`.
        of_schema: the schema whose present and future tables it covers. Its first table is our own, without
            rows, so that it has a table even if the schema has none.
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
        """The stream's key in the catalog."""
        return key_of(self.schema, self.name)

    @property
    def topic(self) -> bool:
        """True if it is a topic: written by PUBLISH, without a table."""
        return self.operations == PUBLISHED

    @property
    def is_part(self) -> bool:
        """True if it is the part of a stream over several tables on one of them."""
        return self.several is not None and self.table_id != self.stream_id

    @property
    def tables(self) -> tuple[int, ...]:
        """The numbers of the owners of its logs."""
        return (self.table_id,) if self.several is None or self.is_part else self.several

    def is_on(self, tables: Container[int]) -> bool:
        """True if one of these tables has a log of the stream."""
        if self.several is None:
            return self.table_id in tables
        return any(table_id in tables for table_id in self.tables)

    @property
    def kind(self) -> str:
        """The word for it in messages: stream or topic."""
        return "topic" if self.topic else "stream"

    def as_on(self, part: Stream) -> Stream:
        """The stream's present state on a table; `part` is its state before a change of options or name."""
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
        """True if each row of the log is an event of the stream."""
        return self.topic or (self.filter is None and self.operations == frozenset(OPERATIONS))


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group: a name with positions in one stream.

    Args:
        on_gap: the reaction of a read whose next event is no longer retained: 'error' or 'earliest'.
        session_timeout_ms: the time without a heartbeat after which a member is removed.
        on_park: the events parked with an event: 'event' for it alone, 'key' for later ones of its key too.
        max_deliveries: the number of deliveries without a commit after which an event is parked; None for any
            number, which is not counted.
    """

    group_id: int
    stream_id: int
    name: str
    start: str
    created_at_us: int
    on_gap: str = "error"
    session_timeout_ms: int = DEFAULT_SESSION_TIMEOUT_MS
    on_park: str = "event"
    max_deliveries: int | None = None

    @property
    def reads_may_write(self) -> bool:
        """True if a read may have to take a whole copy, or counts its deliveries."""
        return self.on_gap == "snapshot" or self.max_deliveries is not None

    @property
    def key(self) -> tuple[int, str]:
        """The group's key in the catalog."""
        return (self.stream_id, quoting.fold(self.name))


@dataclass(frozen=True, slots=True)
class Bookmark:
    """A named position of a whole stream.

    Args:
        lsns: partition -> the LSN after which a reader continues, for every partition.
        positions: partition -> number of its events at or before the LSN, if known: not if retention had
            passed the LSN when the bookmark was created.
    """

    bookmark_id: int
    stream_id: int
    name: str
    lsns: Mapping[int, int]
    positions: Mapping[int, int]
    created_at_us: int

    @property
    def key(self) -> tuple[int, str]:
        """The bookmark's key in the catalog."""
        return (self.stream_id, quoting.fold(self.name))
