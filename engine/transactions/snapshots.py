"""Commits by number, and the conflicts of open MVCC snapshots with them: the first committer wins.

The number counts the commits that can conflict with a transaction. A transaction notes it before the first
statement that lets DuckDB take its snapshot: a later commit has a larger number.

DuckDB itself does not notice these conflicts: a transaction that has read before it wrote works on an older
MVCC snapshot than the writer lock would allow. So the keys that each captured commit wrote are stored here,
and a later write from an older snapshot is compared with them. A key is DuckDB's 64-bit hash of the primary
key (without one, of the whole old row): two keys with the same hash cause a needless SerializationFailure,
never a lost update. Keys that no open transaction can meet are dropped: `forget_through` drops every commit
that the oldest open snapshot contains. The catalog's mutex guards all of it.
Source: docs/design/engine.md, "Conflicts".
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ..catalog.captured_tables import Captured
from ..catalog.catalog import Catalog
from .locks import TableWriters
from .transaction import Transaction

# A commit with more keys than this counts as "every key": 100,000 hashes are some 8 MB.
COMMIT_KEYS_MAX = 100_000
# Keys kept over all commits of a table, in case a snapshot stays open for long; beyond it the oldest commits
# fold into "every key".
TABLE_KEYS_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class SnapshotState:
    """The state of the database in a snapshot, by the counts of commits."""

    counter: int
    plain_ends: int
    generation: int | None


class Snapshots:
    """The commit counter, the open snapshots, and the keys that commits wrote in captured tables."""

    def __init__(self, catalog: Catalog, gate: TableWriters) -> None:
        self._catalog = catalog
        self._gate = gate
        self._counter = 0
        self._open: dict[int, int] = {}  # session id -> counter noted for its open snapshot
        self._conflicts = {source.table_id: Conflicts() for source in catalog.sources}

    @property
    def next_counter(self) -> int:
        """The number of the next commit; it does not change under the writer lock."""
        return self._counter + 1

    def touch(self, transaction: Transaction) -> None:
        """Note the commit counter: the next statement may fix the transaction's MVCC snapshot."""
        if transaction.snapshot_counter is None:
            with self._catalog.mutex:
                transaction.snapshot_counter = self._counter
                transaction.catalog_version = self._catalog.version
                transaction.generation = self._catalog.changes.stable
                transaction.plain_ends = self._gate.ends
                self._open[transaction.session_id] = self._counter

    def seen(self, transaction: Transaction) -> SnapshotState | None:
        """The state that a transaction has noted with its snapshot; None before the snapshot."""
        if transaction.snapshot_counter is None:
            return None
        return SnapshotState(transaction.snapshot_counter, transaction.plain_ends, transaction.generation)

    def now(self) -> SnapshotState:
        """The present state."""
        with self._catalog.mutex:
            return SnapshotState(self._counter, self._gate.ends, self._catalog.changes.stable)

    def ended(self, session_id: int) -> None:
        """Forget the snapshot of a session whose transaction has ended."""
        with self._catalog.mutex:
            self._open.pop(session_id, None)

    def has_newer(self, transaction: Transaction, captured: Captured) -> bool:
        """True if a commit that the transaction's snapshot does not contain wrote the table."""
        assert transaction.snapshot_counter is not None
        return self._conflicts[captured.table_id].newer_than(transaction.snapshot_counter)

    def hit(self, transaction: Transaction, captured: Captured, keys: frozenset[int] | None) -> bool:
        """True if a commit that the snapshot does not contain wrote one of these keys (None: any key)."""
        assert transaction.snapshot_counter is not None
        with self._catalog.mutex:
            return self._conflicts[captured.table_id].hit(transaction.snapshot_counter, keys)

    def committed(self, transaction: Transaction) -> None:
        """Store the keys of a committed transaction with events, for transactions that began earlier."""
        with self._catalog.mutex:
            self._counter += 1
            oldest = min(
                (noted for session_id, noted in self._open.items() if session_id != transaction.session_id),
                default=self._counter,
            )
            for table_id, writes in transaction.tables.items():
                # The transaction may have created the table.
                conflicts = self._conflicts.setdefault(table_id, Conflicts())
                conflicts.record(self._counter, writes.keys)
                conflicts.forget_through(oldest)

    def stream_made(self, table_id: int) -> None:
        """Add the captured table of a stream or a topic, whose creation has been committed."""
        with self._catalog.mutex:
            self._conflicts.setdefault(table_id, Conflicts())
            self._counter += 1

    def stream_dropped(self, table_id: int, *, last: bool) -> None:
        """Count the committed drop of a stream; after its last one the table is no longer captured."""
        with self._catalog.mutex:
            self._counter += 1
            if last:
                self._conflicts.pop(table_id, None)


@dataclass(frozen=True, slots=True)
class WrittenKeys:
    """The keys that one commit wrote in one table; None if they were too many to keep."""

    counter: int
    keys: frozenset[int] | None


class Conflicts:
    """The keys that recent commits wrote in one captured table. The catalog's mutex guards it."""

    def __init__(self) -> None:
        self._commits: deque[WrittenKeys] = deque()
        self._count = 0
        self._every_key_counter = 0  # newest commit that counts as every key
        self._newest_counter = 0

    def record(self, counter: int, keys: frozenset[int] | None) -> None:
        """Keep the keys of the commit with number `counter`; counters only rise."""
        assert counter >= self._newest_counter, "commits come in order"
        self._newest_counter = counter
        if keys is None or len(keys) > COMMIT_KEYS_MAX:
            self._commits.clear()
            self._count = 0
            self._every_key_counter = counter
            return
        self._commits.append(WrittenKeys(counter, keys))
        self._count += len(keys)
        while self._count > TABLE_KEYS_MAX:
            self._every_key_counter = self._drop_oldest()

    def hit(self, snapshot_counter: int, keys: frozenset[int] | None) -> bool:
        """True if a commit after `snapshot_counter` wrote one of `keys` (None: any key)."""
        if self._newest_counter <= snapshot_counter:
            return False
        if keys is None or self._every_key_counter > snapshot_counter:
            return keys is None or bool(keys)
        for commit in reversed(self._commits):
            if commit.counter <= snapshot_counter:
                return False
            assert commit.keys is not None
            if not commit.keys.isdisjoint(keys):
                return True
        return False

    def newer_than(self, snapshot_counter: int) -> bool:
        """True if any commit after `snapshot_counter` wrote the table."""
        return self._newest_counter > snapshot_counter

    def forget_through(self, counter: int) -> None:
        """Drop the keys of commits through `counter`: every open snapshot contains these commits."""
        while self._commits and self._commits[0].counter <= counter:
            self._drop_oldest()

    def _drop_oldest(self) -> int:
        oldest = self._commits.popleft()
        assert oldest.keys is not None
        self._count -= len(oldest.keys)
        return oldest.counter
