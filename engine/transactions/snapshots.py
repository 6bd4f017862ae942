"""Commits by number, and what an open MVCC snapshot could meet of them.

The number counts the commits that a conflict could be with. A transaction notes it before the first
statement that lets DuckDB take its snapshot: what commits later has a larger number. What each such
commit wrote is kept until no open snapshot could meet it (`capture/conflicts.py`).

The catalog's mutex guards all of it. Source: docs/design/engine.md, "Conflicts".
"""

from __future__ import annotations

from ..capture.conflicts import Conflicts
from ..streams.captured import Captured
from ..streams.catalog import Catalog
from .gate import Gate
from .transaction import Transaction


class Snapshots:
    """The commit counter, the open snapshots, and the keys that commits wrote in captured tables."""

    def __init__(self, catalog: Catalog, gate: Gate) -> None:
        self._catalog = catalog
        self._gate = gate
        self._counter = 0
        self._open: dict[int, int] = {}  # session id -> counter noted for its open snapshot
        self._conflicts = {source.table_id: Conflicts() for source in catalog.sources}

    @property
    def next_counter(self) -> int:
        """The number of the next commit; under the writer lock it stays."""
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

    def ended(self, session_id: int) -> None:
        """The session's transaction is over."""
        with self._catalog.mutex:
            self._open.pop(session_id, None)

    def has_newer(self, transaction: Transaction, captured: Captured) -> bool:
        """Whether the table was written by a commit that the transaction's snapshot has not."""
        assert transaction.snapshot_counter is not None
        return self._conflicts[captured.table_id].newer_than(transaction.snapshot_counter)

    def hit(self, transaction: Transaction, captured: Captured, keys: frozenset[int] | None) -> bool:
        """Whether such a commit wrote one of these keys of the table (None: every key)."""
        assert transaction.snapshot_counter is not None
        with self._catalog.mutex:
            return self._conflicts[captured.table_id].hit(transaction.snapshot_counter, keys)

    def committed(self, transaction: Transaction) -> None:
        """A transaction with events has committed: keep what it wrote for those that began before."""
        with self._catalog.mutex:
            self._counter += 1
            oldest = min(
                (noted for session_id, noted in self._open.items() if session_id != transaction.session_id),
                default=self._counter,
            )
            for table_id, writes in transaction.tables.items():
                # It may be one that the transaction has made.
                conflicts = self._conflicts.setdefault(table_id, Conflicts())
                conflicts.record(self._counter, writes.keys)
                conflicts.forget_through(oldest)

    def stream_made(self, table_id: int) -> None:
        """A stream on a table, or a topic, has been committed; its table is a captured one from now on."""
        with self._catalog.mutex:
            self._conflicts.setdefault(table_id, Conflicts())
            self._counter += 1

    def stream_dropped(self, table_id: int, *, last: bool) -> None:
        """The drop of a stream has been committed; with its last one the table is no longer captured."""
        with self._catalog.mutex:
            self._counter += 1
            if last:
                self._conflicts.pop(table_id, None)
