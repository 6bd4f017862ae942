"""A session's transaction block: PostgreSQL's over DuckDB's transaction.

BEGIN is answered without DuckDB and takes no snapshot; DuckDB's transaction begins with the first
statement that needs it. An error makes the block fail until it ends, and DuckDB's transaction is rolled
back at once, so that a failed block holds no lock. Source: docs/design/sql.md, "Session".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

import duckdb

from ...engine.catalog.captured_tables import Captured
from ...engine.database import Database
from ...engine.definitions.mirrors import refuse_mirror
from ...engine.definitions.name_locks import anywhere, refuse_aside
from ...engine.duck.cursors import MEMORY_AGAIN_S
from ...engine.duck.duckdb_errors import recognized
from ...engine.errors import (
    ActiveTransaction,
    DucktailError,
    InFailedTransaction,
    InvalidSavepoint,
    NotSupported,
    OutOfMemory,
    SerializationFailure,
)
from ...engine.sessions import FAILED, IDLE, IN_TRANSACTION, SessionEntry
from ...engine.transactions.locks import TableKey
from ...engine.transactions.snapshots import SnapshotState
from ...engine.transactions.transaction import Transaction
from ...engine.waiting import Wait, Waiting
from ..results.cursors import Cursors
from ..settings import READ_ONLY, SavedSettings, Variables

T = TypeVar("T")

NONE, OPEN, BROKEN = "none", "open", "failed"
# The engine's words for a session's state between calls, with PostgreSQL's status byte.
RESTING = {NONE: IDLE, OPEN: IN_TRANSACTION, BROKEN: FAILED}
STATUS = {NONE: "I", OPEN: "T", BROKEN: "E"}


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A savepoint of a block.

    DuckDB has none. The block can return to it if nothing was changed since. If nothing was changed before,
    DuckDB's transaction is rolled back, and another one begins in the same state of the database.

    Args:
        changes: the block's count of changes when it was made.
        seen: the state of the database that the block had read; None if it had read nothing.
        kept: the values of the settings.
        portals: the names of the cursors that were open.
    """

    name: str
    changes: int
    seen: SnapshotState | None
    kept: SavedSettings
    portals: frozenset[str]


class Block:
    """A session's transaction block, which maps PostgreSQL's states onto DuckDB's transactions.

    Args:
        committing: called before a commit; an error that it raises fails the commit.
        transaction_ended: called when a transaction has ended, with the outcome: committed or not.
        restore: restores the settings that a block has changed for itself.

    Attributes:
        implicit: the block holds several statements of one message; no BEGIN opened it.
        piped: the block holds the statements up to a Sync, which do not count as in a block.
        transaction: DuckDB's transaction, once it has begun.
        ddl: names may have another meaning in this block than outside.
    """

    def __init__(
        self,
        database: Database,
        entry: SessionEntry,
        cursors: Cursors,
        variables: Variables,
        committing: Callable[[], None],
        transaction_ended: Callable[[bool], None],
        restore: Callable[[dict[str, str]], None],
    ) -> None:
        self._database = database
        self._entry = entry
        self._cursors = cursors
        self._variables = variables
        self._committing = committing
        self._transaction_ended = transaction_ended
        self._restore = restore
        self._state = NONE
        self._lost: DucktailError | None = None  # the error that failed the block between two statements
        self.implicit = False
        self._piped = False
        self.transaction: Transaction | None = None
        self._ddl = False
        self._savepoints: list[Savepoint] = []
        self._changes = 0  # statements that may have changed something ROLLBACK must undo

    @property
    def ddl(self) -> bool:
        """True if names may have another meaning in this block than outside."""
        return self._ddl

    def defined(self) -> None:
        """Note that a statement has changed DuckDB's catalog; in an open block only the block sees the
        change."""
        self._database.catalog.version += 1
        self._ddl = self.begun
        if self.transaction is not None:
            self.transaction.ddl, self.transaction.objects = True, None

    @property
    def begun(self) -> bool:
        """True if statements now belong to a block, including an implicit or a failed one."""
        return self._state != NONE

    @property
    def whole(self) -> bool:
        """True if a block is open and has not failed."""
        return self._state == OPEN

    @property
    def broken(self) -> bool:
        """True if a block is open and has failed."""
        return self._state == BROKEN

    @property
    def status(self) -> str:
        """PostgreSQL's byte: 'I' outside a block, 'T' in one, 'E' in a failed one."""
        return STATUS[NONE if self.implicit else self._state]

    @property
    def resting(self) -> str:
        """The state of the session while no call is running, in the engine's words."""
        return RESTING[self._state]

    @property
    def lock_timeout_ms(self) -> int:
        """The session's timeout for locks."""
        return self._variables.milliseconds("lock_timeout") or self._database.settings.lock_timeout_ms

    @property
    def tables(self) -> Mapping[TableKey, Captured]:
        """The captured tables by their present names in this session: the block may have renamed some."""
        return self._database.transactions.tables(self.transaction)

    def enter_plain(self, key: TableKey, *, drops: bool = False) -> Waiting[bool]:
        """Prepare a write of a table without a stream; True if the table still has none.

        Args:
            drops: the statement drops the table, see `Gate.enter`.

        Raises:
            LockNotAvailable: the table's lock was not granted in time.
        """
        transactions = self._database.transactions
        session_id, timeout_ms = self._entry.session_id, self.lock_timeout_ms
        return transactions.enter_plain(session_id, key, timeout_ms, self.transaction, drops=drops)

    def enter_plain_write(self, key: TableKey) -> Waiting[bool]:
        """`enter_plain` for a statement that writes rows.

        Raises:
            LockNotAvailable: the table's lock was not granted in time.
            WrongState: the table is missing from the streams over all tables of its schema, which must not
                miss its changes.
            NotSupported: a trigger that the statement fires may write a captured table.
        """
        if self._database.catalog.triggers.all:
            yield from self._enter_fired(key)
        free = yield from self.enter_plain(key)
        if free:
            refuse_aside(self._database.catalog, key, "be written")
            refuse_mirror(self._database.catalog, key, "be written")
        return free

    def _enter_fired(self, key: TableKey) -> Waiting[None]:
        """Register tables that triggers write, so that a CREATE STREAM waits for this transaction."""
        catalog, made = self._database.catalog, () if self.transaction is None else self.transaction.makes
        catalog.refuse_triggered(key, {*self.tables, *made, *catalog.mirrors})
        for trigger in catalog.triggers.fired_by(key):
            schema, name = trigger.target.schema, trigger.target.name or ""
            yield from self.enter_plain(anywhere(name) if schema is None else (schema, name))
        catalog.refuse_triggered(key, {*self.tables, *made, *catalog.mirrors})

    @property
    def piped(self) -> bool:
        """True if the block holds the statements up to a Sync, which do not count as in a block."""
        return self.implicit and self._piped

    def begin(self, *, implicit: bool = False, piped: bool = False) -> None:
        """Begin a block; DuckDB's transaction begins with the first statement that needs it."""
        self._state, self._lost = OPEN, None
        self._savepoints, self._changes = [], 0
        self.implicit, self._piped = implicit, piped
        self._variables.block_begins()
        self._entry.transaction_us = self._database.clock.now_us()

    def opened(self) -> Transaction:
        """The block's DuckDB transaction, begun if it was not."""
        assert self._state == OPEN
        if self.transaction is None:
            self.transaction = self._begun()
        return self.transaction

    def touched(self) -> Transaction:
        """The block's transaction, which is about to take an MVCC snapshot."""
        transaction = self.opened()
        self._database.snapshots.touch(transaction)
        self._entry.has_snapshot = True
        return transaction

    # Savepoints.

    def changing(self) -> None:
        """Count a statement that is about to run, and may change something that ROLLBACK must undo."""
        self._changes += 1

    @property
    def has_savepoints(self) -> bool:
        """True if the block may return to a savepoint."""
        return bool(self._savepoints)

    def make_savepoint(self, name: str, portals: frozenset[str]) -> None:
        """Make a savepoint; an earlier one of the name is hidden by it."""
        transaction = self.transaction
        seen = None if transaction is None else self._database.snapshots.seen(transaction)
        self._savepoints.append(Savepoint(name, self._changes, seen, self._variables.kept(), portals))

    def release_savepoint(self, name: str) -> None:
        """Remove a savepoint and those made after it.

        Raises:
            InvalidSavepoint: there is none of this name.
        """
        del self._savepoints[self._place_of(name) :]

    def _place_of(self, name: str) -> int:
        places = (at for at in range(len(self._savepoints) - 1, -1, -1) if self._savepoints[at].name == name)
        found = next(places, None)
        if found is None:
            raise InvalidSavepoint(f'savepoint "{name}" does not exist')
        return found

    def return_to(self, name: str) -> Savepoint:
        """Return to a savepoint, which remains; those made after it are removed.

        Raises:
            InvalidSavepoint: there is none of this name.
            NotSupported: the block has changed something before the savepoint, and since.
            SerializationFailure: other transactions have committed since the block began to read.
        """
        place = self._place_of(name)
        found = self._savepoints[place]
        lost = self._state == BROKEN and self.transaction is None
        if lost or self._changes != found.changes:
            self._begin_again(found)
        self._state, self._lost = OPEN, None
        self._changes = found.changes
        del self._savepoints[place + 1 :]
        self._restore(self._variables.return_to(found.kept))
        return found

    def _begin_again(self, savepoint: Savepoint) -> None:
        """Replace DuckDB's transaction by one in the state of the savepoint, before which nothing changed."""
        if savepoint.changes or savepoint.portals:
            before = "changed something" if savepoint.changes else "opened a cursor"
            raise NotSupported(
                f'ROLLBACK TO SAVEPOINT "{savepoint.name}" is not possible: the transaction cannot continue',
                detail="DuckDB can undo a transaction as a whole only, and ends it at most errors. This "
                f"transaction has {before} before the savepoint.",
                hint="ROLLBACK; do the work that may fail first, or in a transaction of its own.",
            )
        self._cursors.drop_result()
        transaction, self.transaction = self.transaction, None
        if transaction is not None:
            self._database.transactions.rollback(transaction)
            self._transaction_ended(False)
        if self._ddl:
            self._ddl = False
            self._database.catalog.version += 1
        self._entry.has_snapshot = False
        self._state, self._lost = OPEN, None
        if savepoint.seen is None:
            return
        again = self.touched()
        # DuckDB takes its snapshot of the file with the first query that reads it.
        again.cursor.execute("SELECT count(*) FROM system.main.duckdb_schemas()").fetchall()
        if not self._database.transactions.still_sees(again, savepoint.seen):
            raise SerializationFailure(
                f'could not return to savepoint "{savepoint.name}" due to concurrent changes',
                detail="DuckDB has ended the transaction, and others have committed since it began to read.",
                hint="Roll back and try again.",
            )

    def _can_continue(self) -> bool:
        """True if an error has left DuckDB's transaction as it was at the latest savepoint."""
        if not self._savepoints or self._changes != self._savepoints[-1].changes:
            return False
        if self.transaction is None:
            return True
        try:
            self.transaction.cursor.execute("SELECT 1").fetchall()
        except duckdb.Error:
            return False
        return True

    # The end.

    def commit(self) -> Waiting[None]:
        """COMMIT of an open block; the block ends, whatever the outcome."""
        try:
            self._committing()
        except BaseException:
            self.rollback()
            raise
        transaction, self.transaction = self.transaction, None
        committed = False
        try:
            if transaction is not None:
                yield from self._database.transactions.commit(transaction, self.lock_timeout_ms)
            committed = True
        finally:
            self._ended(committed=committed)

    def rollback(self) -> None:
        """ROLLBACK of a block."""
        self._cursors.drop_result()
        transaction, self.transaction = self.transaction, None
        if transaction is not None:
            self._database.transactions.rollback(transaction)
        self._ended(committed=False)

    def _ended(self, *, committed: bool) -> None:
        self._state, self.implicit = NONE, False
        self._savepoints = []
        if self._ddl:
            self._ddl = False
            self._database.catalog.version += 1
        self._transaction_ended(committed)
        self._entry.transaction_us, self._entry.has_snapshot = None, False
        self._restore(self._variables.block_ends(committed=committed))

    def failed(self, *, lost: bool = False) -> None:
        """Note an error: the open result is void; the block is rolled back at once and fails until its end.

        A transaction to which ROLLBACK TO can return is kept.

        Args:
            lost: DuckDB has invalidated the database.
        """
        self._cursors.fail_result()
        if self._state != OPEN:
            return
        if not lost and self._can_continue():
            self._state = BROKEN
            return
        transaction, self.transaction = self.transaction, None
        if transaction is not None:
            self._database.transactions.rollback(transaction)
        self._transaction_ended(False)
        self._entry.has_snapshot = False
        self._state = BROKEN

    def lose(self, error: DucktailError) -> None:
        """Fail the open block, because DuckDB has invalidated the database between two statements."""
        self._cursors.fail_result(error)
        if self._state == OPEN:
            self._lost = error
            self.failed(lost=True)

    def refuse_within(self, what: str) -> None:
        """Refuse a statement with its own transaction inside a block, whose rollback could not undo it.

        Raises:
            ActiveTransaction: a block is open.
        """
        if self.begun:
            raise ActiveTransaction(
                f"{what} cannot run inside a transaction block",
                hint="Run it by itself, in autocommit.",
            )

    def check_sound(self) -> None:
        """Refuse a statement that reads or changes something in a failed block.

        Raises:
            InFailedTransaction: the block has failed.
        """
        if self._state == BROKEN:
            raise InFailedTransaction(
                "current transaction is aborted, commands ignored until end of transaction block"
            )

    def check_whole(self) -> None:
        """Check that the block in which an operation began has not failed meanwhile.

        Raises:
            IoError: the block failed because DuckDB invalidated the database.
            InFailedTransaction: the block failed for another reason.
        """
        if self._state == BROKEN:
            raise self._lost or InFailedTransaction("the transaction has failed")

    def unit(self, work: Callable[[Transaction], Waiting[T]]) -> Waiting[T]:
        """Do `work` in the block's transaction, or in one of its own that commits with it."""
        if self.begun:
            return (yield from work(self.opened()))
        transaction = self._begun()
        try:
            result = yield from work(transaction)
        except BaseException:
            self._database.transactions.rollback(transaction)
            raise
        yield from self._database.transactions.commit(transaction, self.lock_timeout_ms)
        return result

    def unit_with_memory(self, work: Callable[[Transaction], Waiting[T]], *, again: bool) -> Waiting[T]:
        """Run `unit`; while other sessions hold DuckDB's memory, wait as for a lock and run it once more.

        Within a block it is not repeated: the error has rolled back the earlier work of the transaction.

        Args:
            again: `work` may run a second time.
        """
        clock = self._database.clock
        until = clock.monotonic_s() + self.lock_timeout_ms / 1000
        while True:
            try:
                return (yield from self.unit(work))
            except Exception as error:
                # Python's own commit error may follow DuckDB's COMMIT.
                short = isinstance(recognized(error), OutOfMemory) and not isinstance(error, MemoryError)
                if not (short and again) or self.begun or clock.monotonic_s() >= until:
                    raise
            yield Wait(Future(), MEMORY_AGAIN_S)

    def _begun(self) -> Transaction:
        entry = self._entry
        read_only = self._variables[READ_ONLY] == "on"
        begin = self._database.transactions.begin
        return begin(entry.session_id, self._cursors.main, entry.user_name, read_only=read_only)
