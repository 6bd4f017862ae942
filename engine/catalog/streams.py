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
def key_of(*parts: str) -> tuple[str, ...]:
    """The key under which a name is found: names keep their case, and are compared as DuckDB does."""
    return tuple(map(quoting.fold, parts))


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
        return key_of(self.schema, self.name)

    @property
    def topic(self) -> bool:
        """True if it is a topic: fed by PUBLISH, on no table."""
        return self.operations == PUBLISHED

    @property
    def is_part(self) -> bool:
        """True if it is a stream over several tables as it is on one of them."""
        return self.several is not None and self.table_id != self.stream_id

    @property
    def tables(self) -> tuple[int, ...]:
        """The numbers of what has its logs."""
        return (self.table_id,) if self.several is None or self.is_part else self.several

    def is_on(self, tables: Container[int]) -> bool:
        """True if one of these has a log of it."""
        if self.several is None:
            return self.table_id in tables
        return any(table_id in tables for table_id in self.tables)

    @property
    def kind(self) -> str:
        """Its kind, as messages name it."""
        return "topic" if self.topic else "stream"

    def as_on(self, part: Stream) -> Stream:
        """The stream on a table, as it is now: it was `part` there before its options or name changed."""
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
        return (self.stream_id, quoting.fold(self.name))


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
        return (self.stream_id, quoting.fold(self.name))
