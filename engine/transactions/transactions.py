"""Transactions: from their first statement through the writer lock to COMMIT or ROLLBACK.

One transaction at a time writes captured tables: it holds the writer lock from its first such write to its
end, and gets its numbers under it (`commits.py`). Before that, the commit counter of its snapshot is noted
(`snapshots.py`). A transaction that writes a table without a stream registers it at the gate (`locks.py`).

Source: docs/design/engine.md, "One writer", "Conflicts" and "CREATE STREAM".
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import duckdb

from ..buffers.ready import ReadyMaker, Written
from ..capture import capture
from ..capture.difference import Refresh, fold
from ..catalog.captured_tables import Captured
from ..catalog.catalog import Catalog
from ..catalog.triggers import read_triggers
from ..duck.cursors import rolled_back_on_error
from ..duck.duckdb_errors import translated
from ..duck.table_shape import read_shape
from ..errors import DucktailError, LockNotAvailable, SerializationFailure
from ..groups.members import Members
from ..groups.offsets import Move, Offsets
from ..log.log import Commit
from ..sessions import Sessions
from ..waiting import Wait, Waiting, drive
from .commits import Commits
from .locks import TableKey, TableWriters, WriterLock, shown_table
from .offset_moves import check_standing, lock_moves
from .snapshots import Snapshots, SnapshotState
from .transaction import CommitStep, Transaction


@dataclass(slots=True)
class Transactions:
    """The transactions of a database: their writes, COMMIT and ROLLBACK.

    Args:
        fallen: returns the error for statements after DuckDB has invalidated the database, else None.
        cursor: returns a new cursor of the engine.
        ready: makes events ready before COMMIT while readers wait for them.
        indexes_changed: True if an index has been created or dropped since the tables' shapes were read.
    """

    catalog: Catalog
    snapshots: Snapshots
    commits: Commits
    offsets: Offsets
    members: Members
    sessions: Sessions
    fallen: Callable[[], DucktailError | None]
    cursor: Callable[[], duckdb.DuckDBPyConnection]
    ready: ReadyMaker
    writer_lock: WriterLock = field(default_factory=WriterLock)
    gate: TableWriters = field(default_factory=TableWriters)
    indexes_changed: bool = False
    _triggers: threading.Lock = field(default_factory=threading.Lock)

    def begin(
        self, session_id: int, cursor: duckdb.DuckDBPyConnection, by: str, *, read_only: bool = False
    ) -> Transaction:
        """Begin a DuckDB transaction on a session's cursor."""
        # A cancel may arrive after BEGIN has taken effect.
        with rolled_back_on_error(cursor):
            cursor.execute("BEGIN TRANSACTION READ ONLY" if read_only else "BEGIN")
        return Transaction(session_id, cursor, by)

    # The right to write.

    def lock_writer(self, session_id: int, timeout_ms: int) -> Waiting[None]:
        """Wait for the writer lock.

        Raises:
            LockNotAvailable: the lock is not free within `timeout_ms`.
            IoError: DuckDB has invalidated the database, and the next LSN must be read first.
        """
        held = self.writer_lock.holder() == session_id
        future = self.writer_lock.acquire(session_id)
        if future is not None:
            yield from self._wait_for_writer(session_id, future, timeout_ms)
        fallen = self.fallen()
        if fallen is not None:
            if not held:
                self.writer_lock.release(session_id)
            raise fallen
        try:
            self.commits.settle_doubt()
        except BaseException:
            self.writer_lock.release(session_id)
            raise

    @contextmanager
    def hold_writer(self, session_id: int, timeout_ms: int) -> Iterator[None]:
        """Hold the writer lock, from a thread of the engine.

        Raises:
            LockNotAvailable: the lock is not free within `timeout_ms`.
            IoError: DuckDB has invalidated the database.
        """
        drive(self.lock_writer(session_id, timeout_ms))
        try:
            yield
        finally:
            self.writer_lock.release(session_id)

    def _wait_for_writer(self, session_id: int, future: Future[None], timeout_ms: int) -> Waiting[None]:
        granted = False
        try:
            granted = yield Wait(future, timeout_ms / 1000)
        finally:
            if not granted:
                self.writer_lock.give_up(session_id)
        if not granted:
            holder = self.writer_lock.holder()
            raise LockNotAvailable(
                f"could not obtain the writer lock within {timeout_ms} ms",
                detail=f"Session {holder} holds it." if holder else None,
                hint="SELECT * FROM ducktail.sessions shows who holds it; lock_timeout is how long "
                "a writer waits.",
            )

    def lock_for(self, transaction: Transaction, timeout_ms: int) -> Waiting[None]:
        """Give a transaction the writer lock, with its txid and first LSN, until it ends.

        Raises:
            LockNotAvailable: the lock is not free within `timeout_ms`.
        """
        yield from self._take_writer_lock(transaction, timeout_ms)
        self.snapshots.touch(transaction)

    def _take_writer_lock(self, transaction: Transaction, timeout_ms: int) -> Waiting[None]:
        if not transaction.has_writer_lock:
            yield from self.lock_writer(transaction.session_id, timeout_ms)
            transaction.has_writer_lock = True
            transaction.base_lsn, transaction.txid = self.commits.last_lsn, self.commits.last_txid + 1

    def are_locked(self, session_id: int, tables: Collection[TableKey]) -> bool:
        """True if `lock_tables` would have to wait now."""
        if self.writer_lock.holder() not in (None, session_id):
            return True
        for table in tables:
            if self.gate.mark_of(table) not in (None, session_id):
                return True
            if any(other != session_id for other, _ in self.gate.writers(table)):
                return True
        return False

    def lock_tables(
        self, transaction: Transaction, tables: Collection[TableKey], timeout_ms: int
    ) -> Waiting[None]:
        """Keep other transactions from writing tables, and from locking any, until this one ends.

        Captured tables are locked by the writer lock. Tables without a stream are marked as well, as by a
        CREATE STREAM: new writers wait, and this transaction waits for the present ones. A transaction
        without a snapshot takes it afterwards, and so reads what the others have committed.

        Raises:
            LockNotAvailable: the tables are not free within `timeout_ms`.
            SerializationFailure: one of them was changed after this transaction began to read.
        """
        yield from self._take_writer_lock(transaction, timeout_ms)
        plain = sorted(table for table in tables if table not in self.tables(transaction))
        for table in plain:
            while table not in transaction.marks:
                future = self.gate.mark(transaction.session_id, table)
                if future is None:
                    transaction.marks.add(table)
                else:
                    yield from _wait_for_table(future, table, timeout_ms)
            for session_id, ended in self.gate.writers(table):
                if session_id != transaction.session_id:
                    yield from _wait_for_table(ended, table, timeout_ms)
        self.snapshots.touch(transaction)
        for table in tables:
            if self._changed_since(transaction, table):
                raise SerializationFailure(
                    f'could not serialize access to table "{table[-1]}" due to a concurrent change',
                    detail="It was changed after this transaction began to read.",
                    hint="Roll back and try again; lock the rows with the first query of the transaction.",
                )

    def _changed_since(self, transaction: Transaction, table: TableKey) -> bool:
        """True if a commit that a transaction's snapshot does not contain has changed a table."""
        assert transaction.snapshot_counter is not None
        captured = self.tables(transaction).get(table)
        if captured is None:
            return self.gate.written_since(table, transaction.plain_ends)
        if captured.table_id in transaction.altered or captured.table_id in transaction.tables:
            return False  # Its own writes were compared, row by row.
        newest = max((stream.created_counter for stream in captured.streams), default=0)
        if transaction.snapshot_counter < max(captured.changed_counter, newest):
            return True
        return self.snapshots.has_newer(transaction, captured)

    def still_sees(self, transaction: Transaction, seen: SnapshotState) -> bool:
        """True if a new snapshot has the state of an earlier one: nothing was committed in between."""
        own = transaction.session_id
        if self.writer_lock.holder() not in (None, own) or self.gate.is_written(own):
            return False  # A commit may be under way.
        return seen.generation is not None and seen == self.snapshots.now()

    def enter_plain(
        self,
        transaction_of: int,
        table: TableKey,
        timeout_ms: int,
        within: Transaction | None,
        *,
        drops: bool = False,
    ) -> Waiting[bool]:
        """Enter a table without a stream at the gate before a write.

        Args:
            transaction_of: the session's id.
            within: the session's open transaction, if it has one.
            drops: as in `TableWriters.enter`.

        Returns:
            True if the table still has no stream.

        Raises:
            LockNotAvailable: a CREATE STREAM on the table, or a transaction that gives a table its name, did
                not end within `timeout_ms`.
        """
        # The holder of the writer lock commits before a CREATE STREAM takes its snapshot: if it waited for
        # that statement, each would wait for the other.
        holds = self.writer_lock.holder() == transaction_of
        while (future := self.gate.enter(transaction_of, table, past_mark=holds, drops=drops)) is not None:
            if not (yield Wait(future, timeout_ms / 1000)):
                raise LockNotAvailable(
                    f"{shown_table(table)} is getting a stream, its name is being taken, or its rows are "
                    f"locked, for longer than {timeout_ms} ms"
                )
            if table in self.tables(within):
                return False
        return table not in self.tables(within)

    def tables(self, within: Transaction | None) -> Mapping[TableKey, Captured]:
        """The captured tables by name, in an open transaction or outside of one."""
        return self.catalog.tables if within is None else within.captured_tables(self.catalog)

    def enter_captured(
        self, transaction: Transaction, key: TableKey, timeout_ms: int
    ) -> Waiting[Captured | None]:
        """Give a transaction the writer lock and its numbers before it writes a captured table.

        Returns:
            The table's state under the lock; None if it is no longer captured.

        Raises:
            LockNotAvailable: the lock is not free within `timeout_ms`.
            NotSupported: the table has a trigger.
            SerializationFailure: the transaction's snapshot is older than a stream or a change of the table.
        """
        self.catalog.refuse_triggered(key, transaction.captured_tables(self.catalog))
        yield from self.lock_for(transaction, timeout_ms)
        if self.indexes_changed:
            self._read_shapes()
        captured = transaction.captured_tables(self.catalog).get(key)
        assert transaction.snapshot_counter is not None
        if captured is not None and captured.table_id not in transaction.altered:
            if transaction.snapshot_counter < captured.changed_counter:
                raise SerializationFailure(
                    f'table "{captured.shape.name}" was altered after this transaction began to read',
                    hint="Roll back and try again.",
                )
            newest = max(stream.created_counter for stream in captured.streams)
            if transaction.snapshot_counter < newest:
                raise SerializationFailure(
                    f'table "{captured.shape.name}" got a stream after this transaction began to read',
                    hint="Roll back and try again.",
                )
        if captured is not None and transaction.indexes_changed:
            shape = read_shape(transaction.cursor, captured.shape.schema, captured.shape.name)
            return replace(captured, table=replace(captured.table, shape=shape))
        return captured

    def enter_still_captured(
        self, transaction: Transaction, key: TableKey, timeout_ms: int
    ) -> Waiting[Captured]:
        """Do `enter_captured` for a statement that can only run on a captured table.

        Raises:
            LockNotAvailable: the lock is not free within `timeout_ms`, or the table's last stream was dropped
                meanwhile.
            NotSupported: the table has a trigger.
            SerializationFailure: the transaction's snapshot is older than a stream or a change of the table.
        """
        captured = yield from self.enter_captured(transaction, key, timeout_ms)
        if captured is None:
            raise LockNotAvailable(f'table "{key[-1]}" has just lost its streams', hint="Try again.")
        return captured

    def look_for_triggers(self) -> None:
        """Read the triggers again; called after each commit that has changed them."""
        with self._triggers, closing(self.cursor()) as cursor:
            self.catalog.triggers = read_triggers(cursor)

    def _read_shapes(self) -> None:
        """Read the shapes of captured tables again: a new or dropped index may have changed UNIQUE."""
        self.indexes_changed = False
        cursor = self.cursor()
        try:
            for captured in list(self.catalog.tables.values()):
                shape = read_shape(cursor, captured.shape.schema, captured.shape.name)
                if shape != captured.shape:
                    table = replace(captured.table, shape=shape)
                    with self.catalog.mutex:
                        self.catalog.tables[captured.key] = replace(captured, table=table)
        finally:
            cursor.close()

    def write_captured(
        self,
        transaction: Transaction,
        captured: Captured,
        plan: capture.Plan,
        parameters: Sequence[object],
        explain: str | None = None,
    ) -> capture.Outcome:
        """Run a captured statement: its log rows and its change of the table.

        Args:
            explain: the words of EXPLAIN ANALYZE, whose plan then replaces the rows of RETURNING.

        Raises:
            SerializationFailure: the statement writes a row that was changed since its snapshot.
            duckdb.Error: the statement's own error.
        """
        assert transaction.has_writer_lock
        if transaction.refresh is not None and transaction.refresh.table_id != captured.table_id:
            self.settle(transaction)
        after_lsn = transaction.next_lsn
        try:
            outcome = capture.execute(
                transaction.cursor,
                plan,
                parameters,
                transaction.next_lsn,
                transaction.next_txid,
                None if explain is None else capture.Explain(explain, captured.table.log),
            )
        except duckdb.ConstraintException as error:
            if "uplicate key" in str(error) and self.snapshots.has_newer(transaction, captured):
                raise stale(captured) from error
            raise
        if self.snapshots.hit(transaction, captured, outcome.keys if outcome.events else frozenset()):
            raise stale(captured)
        transaction.captured(captured.table_id, outcome.events, outcome.keys, inserts=plan.inserts)
        if outcome.events and captured.minimal_changes == "all" and captured.shape.primary_key:
            if transaction.refresh is None:
                transaction.refresh = Refresh(captured.table_id, captured.table, after_lsn)
            transaction.refresh.went_on(deletes=plan.deletes, inserts=plan.inserts)
        return outcome

    def settle(self, transaction: Transaction) -> None:
        """Fold rows that were deleted and inserted again into the smallest change.

        Afterwards writes of other tables may be captured.

        Raises:
            DucktailError: DuckDB's error; the transaction must be rolled back.
        """
        refresh, transaction.refresh = transaction.refresh, None
        if refresh is None or not refresh.may_shrink:
            return
        try:
            events = fold(transaction.cursor, refresh, transaction.next_lsn, transaction.txid)
        except duckdb.Error as error:
            raise translated(error) from error
        transaction.folded(refresh, events)

    # The end.

    def commit(self, transaction: Transaction, timeout_ms: int) -> Waiting[None]:
        """Commit the events, tables, committed LSNs and all other changes of the transaction, or none of
        them.

        The steps:

        1. Lock the groups whose offsets move, and compare their positions (`lock_moves`).
        2. Fold rows that were deleted and inserted again (`settle`).
        3. NAMES, TABLES, CHECKS: the work that statements have added (`CommitStep`).
        4. Write the row in `commits` and the offsets (`Commits.write`); make the events of a small commit
           ready while readers wait (`ReadyMaker`).
        5. COMMIT in DuckDB. An error up to here rolls back; later steps cannot fail.
        6. Acknowledge in the side file; MEMORY under the catalog's mutex; offsets; the publisher's note; WAKE
           (`Commits.committed`).
        7. Count streams and groups for the side file, if the commit may have changed them.
        8. Release pins, holds, group locks, writer lock and marks; members leave.

        Raises:
            SerializationFailure: an offset moved meanwhile, or DuckDB found a conflict.
            DucktailError: the error of DuckDB's COMMIT; the transaction is rolled back.
        """
        try:
            pending = yield from lock_moves(self.offsets, self.members, transaction, timeout_ms)
        except BaseException:
            self.rollback(transaction)
            raise
        with ExitStack() as until_shown:
            self._commit(transaction, pending, until_shown)
        self._release(transaction, committed=dict(pending))
        for group_id, name in transaction.leaving:
            self.members.remove(group_id, name)

    def _commit(
        self, transaction: Transaction, pending: Sequence[tuple[int, dict[int, int]]], until_shown: ExitStack
    ) -> None:
        """Commit in DuckDB and show it in memory.

        Args:
            until_shown: contexts that end after both.
        """
        # Offset commits are numbered in the order in which DuckDB commits them.
        with self.offsets.writing() if pending else nullcontext():
            for group_id, lsns in pending:
                check = partial(check_standing, self.offsets, transaction, group_id, lsns)
                transaction.at(CommitStep.CHECKS, check, about=("group", group_id))
            moves = [self.offsets.move(*move, transaction.committed_by) for move in pending]
            commit_us = self._commit_now(transaction, moves, until_shown)
        self.commits.committed(transaction, moves, commit_us)
        if transaction.defines:
            self.commits.count_objects(transaction.cursor)

    def _commit_now(self, transaction: Transaction, moves: Sequence[Move], until_shown: ExitStack) -> int:
        """Write the last rows and commit in DuckDB; a transaction that fails is rolled back."""
        try:
            self.settle(transaction)
            transaction.run(CommitStep.NAMES)
            transaction.run(CommitStep.TABLES)
            transaction.run(CommitStep.CHECKS)
            if transaction.numbered or moves:
                self.commits.check_side()
            commit_us = self.commits.write(transaction, moves)
            plain = not (transaction.altered or transaction.made or transaction.parts)
            if transaction.events and plain:
                tables = transaction.written.items()
                written = {t: Written(w.first_lsn, w.last_lsn, w.inserts) for t, w in tables}
                commit = Commit(transaction.base_lsn + 1, commit_us, transaction.annotation)
                transaction.ready = self.ready.made(transaction.cursor, written, commit)
        except duckdb.Error as error:
            self.rollback(transaction)
            raise translated(error) from error
        except BaseException:
            self.rollback(transaction)
            raise
        if transaction.ddl or transaction.rights_changes:
            until_shown.enter_context(self.catalog.changes.changing(macros=transaction.ddl))
        with self.sessions.shield(transaction.session_id):
            try:
                transaction.cursor.execute("COMMIT")
            except BaseException as error:
                try:
                    done = self.commits.took_effect(transaction, moves, commit_us)
                except BaseException:
                    self.rollback(transaction)
                    raise
                if not done:
                    self.rollback(transaction)
                    raise translated(error) if isinstance(error, duckdb.Error) else error from error
        return commit_us

    def rollback(self, transaction: Transaction) -> None:
        """Roll back and release all locks and holds; never fails."""
        try:
            transaction.cursor.execute("ROLLBACK")
        except duckdb.Error:
            pass  # DuckDB has no transaction: the statement's error has ended it.
        self._release(transaction, committed={}, undone=True)
        # Members that have read a group that was never created.
        self.members.forget(transaction.new_positions)

    def _release(
        self, transaction: Transaction, committed: Mapping[int, Mapping[int, int]], *, undone: bool = False
    ) -> None:
        for pin in transaction.pins:
            self.members.unpin(pin, committed.get(pin.group_id))
        for hold in transaction.holds.values():
            self.members.end(hold)
        transaction.pins.clear()
        transaction.holds.clear()
        self.snapshots.ended(transaction.session_id)
        self.offsets.unlock(list(transaction.locked_groups), transaction.session_id)
        if transaction.has_writer_lock:
            transaction.has_writer_lock = False
            self.writer_lock.release(transaction.session_id)
        for key in transaction.marks:
            self.gate.unmark(key)
        transaction.marks.clear()
        self.gate.leave(transaction.session_id, undone=undone)


def _wait_for_table(future: Future[None], table: TableKey, timeout_ms: int) -> Waiting[None]:
    if not (yield Wait(future, timeout_ms / 1000)):
        raise LockNotAvailable(f"could not lock {shown_table(table)} within {timeout_ms} ms")


def stale(captured: Captured) -> SerializationFailure:
    """The error for a write of a row that was changed since the transaction began to read."""
    return SerializationFailure(
        f'could not serialize access to table "{captured.shape.name}" due to a concurrent change',
        detail="A row that this transaction writes was changed by a transaction that committed after "
        "this one began to read.",
        hint="Roll back and try again.",
    )
