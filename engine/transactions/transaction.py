"""An open transaction of a session, as the engine sees it.

It collects the facts for COMMIT: the captured writes (which need the writer lock, LSNs and a row in
`commits`), the committed LSNs that move, and the changes of memory that follow DuckDB's COMMIT. Only the
thread that runs its session touches it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import duckdb

from ..buffers.ready import Ready
from ..capture.difference import Refresh
from ..catalog.captured_tables import Captured
from ..catalog.catalog import Catalog
from ..catalog.copies import Copy
from ..catalog.rights import Rights
from ..catalog.sinks import Sink
from ..catalog.streams import Bookmark, Group
from ..duck.objects import Objects
from ..errors import WrongState
from ..groups.member import Claim, MemberHold, Pin
from ..groups.parked import ParkedOfGroup

Reading = tuple[int, str]  # group id, member
TableKey = tuple[str, ...]


class CommitStep(Enum):
    """The steps of a commit to which statements add work, in the order in which they run.

    `Transactions.commit` lists all steps. Work of NAMES, TABLES and CHECKS raises if the transaction cannot
    be committed; work of MEMORY and WAKE runs after DuckDB's COMMIT and cannot fail.
    """

    NAMES = "each captured table that was altered or renamed gets its next version"
    TABLES = "tables that are new in a schema whose tables all have streams get theirs"
    CHECKS = "what the statements rested on must still hold"
    MEMORY = "memory follows, under the catalog's mutex"
    WAKE = "readers are woken, once memory has all of it"


@dataclass(slots=True)
class TableWrites:
    """A transaction's captured writes of one table: their LSNs and keys (None: too many).

    Args:
        inserts: True if all of them insert rows.
    """

    first_lsn: int
    last_lsn: int
    keys: frozenset[int] | None
    inserts: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """One of the transactions of users, or of a feed's source, that a transaction of DuckDB consists of.

    Args:
        events: the number of its events.
        tables: the captured tables or topics of its events -> the places of the first and the last of them
            within the part, from 0.
        inserts: those of the tables of which all events are rows that were inserted.
        annotation: its annotation, a JSON object as text.
    """

    events: int
    tables: Mapping[int, tuple[int, int]]
    inserts: frozenset[int]
    annotation: str | None

    @classmethod
    def of_event(cls, table_id: int, annotation: str | None, *, inserts: bool) -> Part:
        """The part of one event."""
        return cls(1, {table_id: (0, 0)}, frozenset({table_id} if inserts else ()), annotation)


@dataclass(frozen=True, slots=True)
class Altered:
    """A captured table that a transaction has altered.

    Args:
        before: the table visible to other transactions.
        now: the table in this transaction, with its name there.
        told: the table's name in its newest version.
    """

    before: Captured
    now: Captured
    told: str


@dataclass(slots=True)
class PendingOffset:
    """A committed LSN that moves at COMMIT, if it is still at `expected` then.

    Args:
        claim: the right to the commit; None for a SEEK.
    """

    expected: int
    lsn: int
    claim: Claim | None = None


@dataclass(slots=True)
class Transaction:
    """One open transaction.

    Args:
        session_id: its session, the owner of every lock that it takes.
        snapshot_counter: the engine's commit counter noted before DuckDB took the transaction's MVCC
            snapshot; None before the snapshot.
        catalog_version: version of the engine's catalog, noted with `snapshot_counter`.
        generation: generation of DuckDB's catalog, noted with `snapshot_counter`; None if a change of the
            catalog was in progress.
        objects: DuckDB's objects in its snapshot, once they have been read.
        assumes: True if its snapshot is assumed to have the catalog of `generation`; its commit must check
            that no change of the catalog came between.
        base: `objects` before the transaction itself changed the catalog.
        ddl: True if it may have changed DuckDB's catalog.
        plain_ends: the gate's count of ended transactions, noted with `snapshot_counter`.
        bookmarks: the bookmarks that it has created; None for one that it has dropped.
        sinks: group id -> a sink that it has created or changed; None for one that it has dropped.
        parked: group id -> parked events, for the groups whose parked events it changes.
        copies: group id -> whole copy, for the groups whose copy it changes.
        defines: True if it creates or drops a group or a bookmark, under the writer lock.
        rights_changes: its changes of users and rights, visible only to it so far.
        annotation: the annotation of its events, a JSON object as text.
        producers: (stream id, producer) -> the last sequence number that it has published.
        epochs: group id and member -> partition -> the epoch under which it first read the partition.
        holds: group id and member -> the partitions that stay with the member until the transaction ends.
        pins: the pins of the commits that are being written.
        leaving: group ids and members that leave when it commits.
        steps: the work that statements have added to the steps of its commit.
        indexes_changed: True if it has created or dropped an index, visible only to it so far.
        altered: table id -> captured table that it has altered.
        makes: names of tables that it may have created and that get streams.
        made: those of the tables that got streams.
        marks: names of tables that no other transaction may write until it ends.
        renamed: the new name of a table without a stream -> its earlier names.
        ready: stream id -> its encoded events, if they were made before COMMIT.
        refresh: deletes and inserts that may become a smaller change, if no other table is captured before
            it ends.
        txid, base_lsn: set with the writer lock; its events are base_lsn + 1, + 2, ...
        parts: the transactions that it consists of, if they are several (group_commit.py, feeding.py), in the
            order of their events; their numbers are txid, txid + 1, ...
    """

    session_id: int
    cursor: duckdb.DuckDBPyConnection
    committed_by: str = ""
    snapshot_counter: int | None = None
    catalog_version: int = 0
    generation: int | None = None
    objects: Objects | None = None
    assumes: bool = False
    base: Objects | None = None
    ddl: bool = False
    plain_ends: int = 0
    has_writer_lock: bool = False
    txid: int = 0
    base_lsn: int = 0
    events: int = 0
    tables: dict[int, TableWrites] = field(default_factory=dict)
    offsets: dict[int, dict[int, PendingOffset]] = field(default_factory=dict)
    first_reads: dict[int, dict[int, int]] = field(default_factory=dict)
    epochs: dict[Reading, dict[int, int]] = field(default_factory=dict)
    holds: dict[Reading, MemberHold] = field(default_factory=dict)
    pins: list[Pin] = field(default_factory=list)
    leaving: list[Reading] = field(default_factory=list)
    new_groups: dict[tuple[int, str], Group] = field(default_factory=dict)
    new_positions: dict[int, dict[int, int]] = field(default_factory=dict)
    dropped_groups: set[int] = field(default_factory=set)
    bookmarks: dict[tuple[int, str], Bookmark | None] = field(default_factory=dict)
    sinks: dict[int, Sink | None] = field(default_factory=dict)
    parked: dict[int, ParkedOfGroup] = field(default_factory=dict)
    copies: dict[int, Copy] = field(default_factory=dict)
    locked_groups: set[int] = field(default_factory=set)
    producers: dict[tuple[int, str], int] = field(default_factory=dict)
    steps: dict[CommitStep, dict[Hashable, Callable[[], None]]] = field(default_factory=dict)
    altered: dict[int, Altered] = field(default_factory=dict)
    makes: set[TableKey] = field(default_factory=set)
    made: list[Captured] = field(default_factory=list)
    marks: set[TableKey] = field(default_factory=set)
    renamed: dict[TableKey, set[TableKey]] = field(default_factory=dict)
    ready: Mapping[int, Ready] = field(default_factory=dict)
    rights_changes: list[Callable[[Rights], Rights]] = field(default_factory=list)
    annotation: str | None = None
    defines: bool = False
    indexes_changed: bool = False
    refresh: Refresh | None = None
    parts: Sequence[Part] = ()

    @property
    def last_txid(self) -> int:
        """The last of its numbers."""
        return self.txid + max(len(self.parts) - 1, 0)

    @property
    def next_txid(self) -> int:
        """The number of its next event's transaction: its own, or that of its next part."""
        return self.txid + len(self.parts)

    @property
    def numbered(self) -> bool:
        """True if it has a row in `commits`: it has events, or creates, changes or drops an object."""
        return bool(self.events) or self.defines

    @property
    def written(self) -> dict[int, TableWrites]:
        """The captured writes that have events, by table; a refresh may have been folded to none."""
        return {table_id: w for table_id, w in self.tables.items() if w.last_lsn >= w.first_lsn}

    def at(
        self, step: CommitStep, work: Callable[[], None], *, about: Hashable = None, first: bool = False
    ) -> None:
        """Add work to a step of the commit.

        Args:
            about: the subject of the work, which later work on it replaces. None for a subject of its own.
            first: True to keep earlier work on the same subject and not add this.
        """
        present, about = self.steps.setdefault(step, {}), object() if about is None else about
        if not (first and about in present):
            present[about] = work

    def run(self, step: CommitStep) -> None:
        """Run the work of a step, in the order in which it was added."""
        for work in self.steps.get(step, {}).values():
            work()

    @property
    def next_lsn(self) -> int:
        """The LSN before its next event."""
        return self.base_lsn + self.events

    def captured_tables(self, catalog: Catalog) -> Mapping[TableKey, Captured]:
        """The captured tables by their names in this transaction."""
        if not self.altered:
            return catalog.tables
        others = {k: table for k, table in catalog.tables.items() if table.table_id not in self.altered}
        return {**others, **{altered.now.key: altered.now for altered in self.altered.values()}}

    def alter(self, before: Captured, now: Captured, told: str) -> None:
        """Note an altered captured table, as an `Altered`."""
        known = self.altered.get(now.table_id)
        self.altered[now.table_id] = Altered(before if known is None else known.before, now, told)

    def annotate(self, annotation: str | None) -> None:
        """Set the annotation of its events; called before it writes any.

        Raises:
            WrongState: the transaction has events with another annotation.
        """
        if self.events and annotation != self.annotation:
            raise WrongState(
                "a transaction's events have one annotation",
                detail="This transaction has written events with another one.",
                hint="SET ducktail.annotation before its first write, or write in two transactions.",
            )
        self.annotation = annotation

    def folded(self, refresh: Refresh, events: int) -> None:
        """Set the number of events of a refresh, the last captured writes, after it was folded.

        The keys of a refresh without events are kept, because its rows were written.
        """
        writes = self.tables[refresh.table_id]
        writes.first_lsn = min(writes.first_lsn, refresh.after_lsn + 1)
        writes.last_lsn = refresh.after_lsn + events
        writes.inserts = False
        self.events = refresh.after_lsn + events - self.base_lsn

    def fed(self, events: int, tables: Mapping[int, TableWrites]) -> None:
        """Count `events` rows that a feed has written, in all of these tables."""
        self.events += events
        for table_id, added in tables.items():
            writes = self.tables.setdefault(table_id, added)
            writes.last_lsn = added.last_lsn
            writes.inserts = writes.inserts and added.inserts

    def captured(
        self, table_id: int, events: int, keys: frozenset[int] | None, *, inserts: bool = False
    ) -> None:
        """Count `events` rows that a statement has written to a table's log."""
        if not events:
            return
        first = self.next_lsn + 1
        self.events += events
        writes = self.tables.get(table_id)
        if writes is None:
            self.tables[table_id] = TableWrites(first, self.next_lsn, keys, inserts)
            return
        writes.last_lsn = self.next_lsn
        writes.inserts = writes.inserts and inserts
        writes.keys = None if keys is None or writes.keys is None else writes.keys | keys
