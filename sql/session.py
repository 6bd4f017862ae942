"""A session: one client's cursor, transaction, settings and read positions.

A statement is parsed (`parse`), perhaps described, and executed (`execute`); both are generators
that yield what they wait for (engine/waiting.py), so the same session runs under the gateway's event
loop and under the calling thread of the DB-API. One call at a time: a driver owns its session.

Transactions are PostgreSQL's over DuckDB's: BEGIN is answered without DuckDB and takes no snapshot,
an error makes the block fail until it ends (DuckDB's own transaction is rolled back at once, so a
failed block holds no lock), and several statements of one message are an implicit block.

Where DuckDB gives its database up, a session lets go of its cursors and makes new ones at its next
statement: an open block has failed then, temporary tables are gone, settings, registered frames,
prepared statements and read positions stay.
Source: docs/design/sql.md, "Session".
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

import duckdb

from ..engine.asking import ask_maybe
from ..engine.commits import UNKNOWN
from ..engine.database import Database
from ..engine.duckdb_errors import translated
from ..engine.errors import (
    AdminShutdown,
    DucktailError,
    InFailedTransaction,
    InternalError,
    IoError,
    QueryCanceled,
)
from ..engine.sessions import ACTIVE, FAILED, IDLE, IN_TRANSACTION, SessionEntry
from ..engine.transaction import Transaction
from ..engine.waiting import Wait, Waiting
from .execution import RUNNERS, prepare
from .frames import Frames
from .names import Names
from .positions import ReadPositions
from .results import Batch, CopyIn, Result
from .statement import Statement
from .text.classified import Kind
from .variables import Variables

T = TypeVar("T")

# Statements kept parsed in a session, by text: drivers repeat theirs. A parsed statement is a few
# kilobytes.
STATEMENTS_KEPT = 256
# How long a session that is told to let go of its cursors may take.
LET_GO_S = 30.0
# Notices kept for a driver that does not ask for them.
NOTICES_MAX = 100

NONE, OPEN, BROKEN = "none", "open", "failed"


@dataclass(frozen=True, slots=True)
class Notice:
    """What a client is told beside its answer."""

    severity: str
    sqlstate: str
    message: str
    detail: str | None = None
    hint: str | None = None


class Session:
    """See the head of the file.

    Args:
        database: the open database.
        user: the user's name, as the client gave it.
        application_name: what the client calls itself.
        settings: session settings by PostgreSQL's names, as texts.
        wire: rows are for PostgreSQL's wire: types that Arrow does not carry whole come as text.

    Raises:
        UndefinedObject: 42704, an unknown setting. InvalidParameterValue: 22023, a bad value.
        IoError: 58030, DuckDB has given the database up, and its file is not open again yet.
    """

    def __init__(
        self,
        database: Database,
        *,
        user: str = "ducktail",
        application_name: str = "",
        settings: Mapping[str, str] | None = None,
        wire: bool = False,
    ) -> None:
        self.database = database
        self.wire = wire
        self.user = user
        self.id = database.sessions.new_id()
        bounds = database.settings
        self.variables = Variables(
            {
                "session_authorization": user,
                "application_name": application_name,
                "lock_timeout": str(bounds.lock_timeout_ms),
                "idle_in_transaction_session_timeout": str(bounds.idle_in_transaction_session_timeout_ms),
            }
        )
        self.positions = ReadPositions()
        self.prepared: dict[str, Statement] = {}
        self.transaction: Transaction | None = None
        self.block = NONE
        self.implicit = False
        self.on_ended: Callable[[DucktailError], None] | None = None
        self.interrupts: set[Callable[[], None]] = set()
        self._at_begin: dict[str, str] | None = None
        self._local: dict[str, str] = {}
        self._busy = threading.Lock()
        # Cursors are made and closed by who has it; what is looked up without `_busy` has it too.
        self._looking = threading.RLock()
        self._dresses: list[Callable[[Session], None]] = []
        self._warned: DucktailError | None = None
        self._cancel_lock = threading.Lock()
        self._running = False
        self._cancelled = False
        self._waiting: Future[None] | None = None
        self._ended: DucktailError | None = None
        self._lost: DucktailError | None = None  # why the open block failed between two statements
        self._closed = False
        self._open_result: Result | None = None
        self._notices: list[Notice] = []
        self._changes: dict[str, str] = {}
        self._statements: dict[tuple[str, tuple[int, ...], int], Statement] = {}
        self.ddl_in_block = False
        self._pending_settings: list[str] = []
        self.entry = SessionEntry(
            self.id,
            user,
            application_name,
            self._end_idle,
            self._warn,
            self._let_go,
            self._shield,
            bounds.idle_in_transaction_session_timeout_ms,
        )
        self._mark(IDLE)
        with self._busy:
            database.sessions.register(self.entry)
            try:
                self.generation = database.generation
                self.cursor, self.meta = database.cursor(), database.cursor()
                self.names = Names(database, self._looking_cursor)
                self.names.is_temporary = self._is_temporary
                self.frames = Frames(self.cursor, self.names, self._forget_plans)
                self._apply_at_start(settings or {})
            except BaseException:
                database.sessions.unregister(self.id)
                raise

    # What the driver asks.

    @property
    def transaction_status(self) -> str:
        """PostgreSQL's byte: 'I' outside a block, 'T' in one, 'E' in a failed one."""
        if self.implicit or self.block == NONE:
            return "I"
        return "T" if self.block == OPEN else "E"

    @property
    def in_block(self) -> bool:
        """Whether statements now belong to a transaction block, implicit ones included."""
        return self.block != NONE

    @property
    def lock_timeout_ms(self) -> int:
        """How long this session waits for a lock."""
        return self.variables.milliseconds("lock_timeout") or self.database.settings.lock_timeout_ms

    def parse(self, text: str, oids: Sequence[int] = ()) -> Waiting[Statement]:
        """Parse one statement.

        Args:
            text: the statement; empty is allowed.
            oids: PostgreSQL type OIDs of its parameters, 0 where the client leaves one open.

        Raises:
            SyntaxError_: 42601, with the position.
        """
        if not self._running:
            yield from self.database.standing()
        key = (text, tuple(oids), self.database.catalog.version)
        found = self._statements.pop(key, None)
        if found is None or self.ddl_in_block:
            with self.looking():
                found = prepare(self, text, tuple(oids))
            if self.ddl_in_block:
                # What this transaction has changed is nobody else's yet, and may never be.
                return found
            while len(self._statements) >= STATEMENTS_KEPT:
                self._statements.pop(next(iter(self._statements)))
        self._statements[key] = found
        return found

    def execute(self, statement: Statement, parameters: Sequence[object] = ()) -> Waiting[Result]:
        """Run a statement.

        Raises:
            DucktailError: any; inside a block the block has failed then.
        """
        return (yield from self._guarded(lambda: self._execute(statement, parameters)))

    def _execute(self, statement: Statement, parameters: Sequence[object]) -> Waiting[Result]:
        kind = statement.classified.kind
        if self.block == BROKEN and kind is not Kind.TRANSACTION:
            raise InFailedTransaction(
                "current transaction is aborted, commands ignored until end of transaction block"
            )
        self.settle()
        self._catch_up()
        result: Result = yield from RUNNERS[kind](self, statement, tuple(parameters))
        if not result.ended and result.columns is not None:
            self._open_result = result
            result.bind_guard(self._fetch_guard)
        return result

    def with_frames(self, work: Callable[[Frames], None]) -> Waiting[None]:
        """Register or unregister objects of this process.

        Raises:
            DucktailError: any; inside a block the block has failed then.
        """

        def changed() -> Waiting[None]:
            self.settle()
            self._catch_up()
            if self.transaction is not None:
                self.touched()
            work(self.frames)
            if self.transaction is None:
                self.frames.transaction_ended(committed=True)
            return
            yield

        yield from self._guarded(changed)

    def dress(self, work: Callable[[Session], None]) -> None:
        """Do something to the session's cursors: now, and to others that take their place."""
        with self._busy, self._looking:
            work(self)
            self._dresses.append(work)

    def _forget_plans(self) -> None:
        """A name that texts may hold has come to mean something else."""
        for statement in (*self._statements.values(), *self.prepared.values()):
            statement.forget()
        self._statements.clear()

    def copy_data(self, copy: CopyIn, data: bytes) -> Waiting[None]:
        """Give a COPY FROM STDIN a piece of what its client sends.

        Raises:
            DucktailError: a row that is wrong, with its line; nothing of the COPY is kept.
        """
        yield from self._guarded(lambda: self._in_whole_block(lambda: copy.write(data)))

    def copy_done(self, copy: CopyIn) -> Waiting[Result]:
        """End a COPY FROM STDIN: all its rows are there."""
        return (yield from self._guarded(lambda: self._in_whole_block(copy.finish)))

    def _in_whole_block(self, work: Callable[[], Waiting[T]]) -> Waiting[T]:
        """Go on with what was begun in the open block, unless the block failed meanwhile.

        Raises:
            IoError: 58030, it did: DuckDB gave the database up.
        """
        if self.block == BROKEN:
            raise self._lost or InFailedTransaction("the transaction has failed")
        return (yield from work())

    def begin_implicit(self) -> Waiting[None]:
        """What follows, up to `commit_implicit`, is one transaction (unless it says BEGIN itself)."""
        if self.block == NONE:
            self.begin_block()
            self.implicit = True
        return
        yield

    def commit_implicit(self) -> Waiting[None]:
        """End an implicit block that is still one.

        Raises:
            DucktailError: the commit failed; everything of the block is rolled back.
        """
        if self.implicit:
            yield from self._guarded(lambda: self._in_whole_block(self.commit_block))

    def abort_implicit(self) -> Waiting[None]:
        """Roll an implicit block back, if it is still one."""
        if self.implicit:
            self.rollback_block()
        return
        yield

    def fail(self) -> None:
        """A protocol error came inside a block: the block has failed."""
        self.failed()

    def _looking_cursor(self) -> duckdb.DuckDBPyConnection:
        """The cursor on which names are looked up: what the open snapshot sees, where there is one."""
        transaction = self.transaction
        if transaction is not None and transaction.snapshot_counter is not None:
            self.settle()
            return self.cursor
        return self.meta

    @contextmanager
    def _shield(self) -> Iterator[None]:
        """A cancel waits: what DuckDB does within is done whole, or not begun."""
        with self._cancel_lock:
            yield

    @property
    def has_open_result(self) -> bool:
        """Whether the session's cursor still has rows to give."""
        return self._open_result is not None and self._open_result.holds_cursor

    def later(self, sql: str) -> None:
        """Run a setting of the cursor's before the next statement: the failed transaction takes none."""
        self._pending_settings.append(sql)

    def cancel(self) -> None:
        """End what the session is doing now with 57014; from any thread, at any time."""
        with self._cancel_lock:
            if not self._running:
                return
            self._cancelled = True
            waiting = self._interrupt()
        if waiting is not None:
            _finish(waiting)

    def _interrupt(self) -> Future[None] | None:
        """End the call that is under way; the wait that is to be ended as well."""
        with suppress(duckdb.ConnectionException):  # Its cursor has been closed, and not yet renewed.
            self.cursor.interrupt()
        for interrupt in list(self.interrupts):
            interrupt()
        return self._waiting

    def close(self) -> Waiting[None]:
        """Roll back what is open and free everything; may be called twice."""
        if not self._closed:
            self._closed = True
            # The watchdog may be at it just now: two threads must not share a cursor.
            with self._busy:
                self._drop_result()
                if self.in_block:
                    self.rollback_block()
            self.database.sessions.unregister(self.id)
            self._free()
        return
        yield

    def take_notices(self) -> list[Notice]:
        """What has to be told since the last time."""
        notices, self._notices = self._notices, []
        return notices

    def take_parameter_changes(self) -> dict[str, str]:
        """Reported settings that have changed since the last time."""
        changes, self._changes = self._changes, {}
        return changes

    def parameter_status(self) -> dict[str, str]:
        """Reported settings as they are."""
        return self.variables.reported()

    def notice(
        self,
        message: str,
        *,
        severity: str = "NOTICE",
        sqlstate: str = "00000",
        detail: str | None = None,
        hint: str | None = None,
    ) -> None:
        """Tell the client something beside the answer."""
        if len(self._notices) < NOTICES_MAX:
            self._notices.append(Notice(severity, sqlstate, message, detail, hint))

    # Transaction blocks.

    def begin_block(self) -> None:
        """Begin a block; DuckDB's transaction begins with the first statement that needs it."""
        self.block, self._lost = OPEN, None
        self._at_begin = dict(self.variables.values)
        self.entry.transaction_us = self.database.clock.now_us()

    def opened(self) -> Transaction:
        """The block's DuckDB transaction, begun if it was not."""
        assert self.block == OPEN
        if self.transaction is None:
            self.transaction = self.database.transactions.begin(self.id, self.cursor, self.user)
        return self.transaction

    def touched(self) -> Transaction:
        """The block's transaction, about to have an MVCC snapshot."""
        transaction = self.opened()
        self.database.snapshots.touch(transaction)
        self.entry.has_snapshot = True
        return transaction

    def commit_block(self) -> Waiting[None]:
        """COMMIT of an open block; the block is over, whatever comes of it."""
        transaction, self.transaction = self.transaction, None
        committed = False
        try:
            if transaction is not None:
                yield from self.database.transactions.commit(transaction, self.lock_timeout_ms)
            committed = True
        finally:
            self._block_ended(committed=committed)

    def rollback_block(self) -> None:
        """ROLLBACK of a block."""
        self._drop_result()
        transaction, self.transaction = self.transaction, None
        if transaction is not None:
            self.database.transactions.rollback(transaction)
        self._block_ended(committed=False)

    def _block_ended(self, *, committed: bool) -> None:
        self.block, self.implicit = NONE, False
        if self.ddl_in_block:
            self.ddl_in_block = False
            self.database.catalog.version += 1
        self.positions.transaction_ended(committed=committed)
        self.frames.transaction_ended(committed=committed)
        self.entry.transaction_us, self.entry.has_snapshot = None, False
        before, self._at_begin = self._at_begin, None
        if not committed and before is not None:
            self._restore(before)
        elif self._local:
            self._restore({**self.variables.values, **self._local})
        self._local.clear()

    def failed(self) -> None:
        """An error: the open result is void; a block is rolled back at once and fails until its end."""
        result, self._open_result = self._open_result, None
        if result is not None:
            result.fail()
        if self.block != OPEN:
            return
        transaction, self.transaction = self.transaction, None
        if transaction is not None:
            self.database.transactions.rollback(transaction)
        self.positions.transaction_ended(committed=False)
        self.frames.transaction_ended(committed=False)
        self.entry.has_snapshot = False
        self.block = BROKEN

    def unit(self, work: Callable[[Transaction], Waiting[T]]) -> Waiting[T]:
        """Do `work` in the block's transaction, or in one of its own that commits with it."""
        if self.in_block:
            return (yield from work(self.opened()))
        transaction = self.database.transactions.begin(self.id, self.cursor, self.user)
        try:
            result = yield from work(transaction)
        except BaseException:
            self.database.transactions.rollback(transaction)
            raise
        yield from self.database.transactions.commit(transaction, self.lock_timeout_ms)
        return result

    def _is_temporary(self, name: str) -> bool:
        """Whether the session has a temporary table of this name now."""
        if self.in_block:
            self.touched()
        row = ask_maybe(
            self.cursor,
            "SELECT count(*) FROM information_schema.tables WHERE table_catalog = 'temp' "
            "AND lower(table_name) = $1",
            [name],
        )
        return row is not None and bool(row[0])

    # Settings.

    def _apply_at_start(self, settings: Mapping[str, str]) -> None:
        from .settings_statements import set_variable

        for name, value in settings.items():
            set_variable(self, name, (value,), local=False)
        self.variables.defaults = dict(self.variables.values)
        self._changes.clear()

    def changed(self, key: str, shown: str, value: str, *, report: bool, local: bool) -> None:
        """A setting has a new value."""
        if local and key not in self._local:
            self._local[key] = self.variables.values[key]
        self.variables.values[key] = value
        if report:
            self._changes[shown] = value
        if key == "application_name":
            self.entry.application_name = value
        if key == "idle_in_transaction_session_timeout":
            self.entry.idle_timeout_ms = int(value)

    def _restore(self, values: Mapping[str, str]) -> None:
        """Put settings back to what they were."""
        from .settings_statements import apply_value

        for key, value in values.items():
            if self.variables.values.get(key) != value:
                # A schema of an older search path may be gone.
                with suppress(DucktailError):
                    apply_value(self, key, value, local=False)

    # One call at a time, cancelled, timed, and never beside the watchdog.

    def _guarded(self, work: Callable[[], Waiting[T]]) -> Waiting[T]:
        """Run a piece of work: busy, cancellable, with its errors as ours."""
        yield from self.database.standing()
        self._enter()
        try:
            self._renew()
            return (yield from self._cancellable(work()))
        except duckdb.Error as error:
            found = self._as_ours(error)
            self.failed()
            raise found from error
        except DucktailError as error:
            told = self._told(error)
            self.failed()
            if isinstance(error, QueryCanceled) and self._cancelled:
                raise self._cancel_error() from error
            if told is not error:
                raise told from error
            raise
        except BaseException:
            # A closed driver, an interrupt of the thread, a fault of ours: nothing of it may stand.
            self.failed()
            raise
        finally:
            self._leave()

    def _fetch_guard(self, step: Callable[[], Batch | None]) -> Batch | None:
        """Run a fetch the same way; it waits for nothing."""
        self._enter()
        try:
            self._renew()
            batch = step()
            if self._cancelled:
                raise self._cancel_error()
            return batch
        except duckdb.Error as error:
            found = self._as_ours(error)
            self.failed()
            raise found from error
        except DucktailError as error:
            told = self._told(error)
            self.failed()
            if isinstance(told, QueryCanceled):
                raise self._cancel_error() from error
            if told is not error:
                raise told from error
            raise
        except BaseException:
            self.failed()
            raise
        finally:
            self._leave()

    def _enter(self) -> None:
        if not self._busy.acquire(timeout=60):
            raise AdminShutdown("the session is being ended")
        if self._ended is not None or self._closed:
            self._busy.release()
            raise self._ended or AdminShutdown("the session is closed")
        with self._cancel_lock:
            self._running, self._cancelled, self._warned = True, False, None
        self._mark(ACTIVE)

    def _catch_up(self) -> None:
        """Run the settings that a failed transaction did not take, and mend what its rollback undid."""
        while self._pending_settings and self.transaction is None:
            self.cursor.execute(self._pending_settings[-1])
            self._pending_settings.pop()
        if self.frames.stale and self.transaction is None:
            self.frames.mend()

    def _leave(self) -> None:
        with self._cancel_lock:
            self._running = False
        states = {NONE: IDLE, OPEN: IN_TRANSACTION, BROKEN: FAILED}
        if self.block == NONE:
            self.entry.has_snapshot = self.has_open_result
        self._mark(states[self.block])
        self._busy.release()

    def _mark(self, state: str) -> None:
        entry, clock = self.entry, self.database.clock
        entry.state, entry.since_us, entry.since_s = state, clock.now_us(), clock.monotonic_s()

    def _cancellable(self, work: Waiting[T]) -> Generator[Wait, bool, T]:
        """Pass on what `work` waits for, so that a cancel or the statement's time-out ends the wait."""
        clock = self.database.clock
        limit_ms = self.variables.milliseconds("statement_timeout")
        deadline = clock.monotonic_s() + limit_ms / 1000 if limit_ms else None
        try:
            wait = next(work)
            while True:
                yield from self._one_wait(wait, deadline)
                if self._warned is not None:
                    wait = work.throw(self._warned)
                elif self._cancelled:
                    wait = work.throw(self._cancel_error())
                elif deadline is not None and clock.monotonic_s() >= deadline and not wait.future.done():
                    wait = work.throw(QueryCanceled("canceling statement due to statement timeout"))
                else:
                    wait = work.send(wait.future.done())
        except StopIteration as stop:
            result: T = stop.value
            return result
        except GeneratorExit:
            work.close()
            raise

    def _one_wait(self, wait: Wait, deadline: float | None) -> Generator[Wait, bool, None]:
        """Wait on a future of the session's own: it ends with the other, or with a cancel."""
        own: Future[None] = Future()
        with self._cancel_lock:
            if self._cancelled or self._warned is not None:
                return
            self._waiting = own
        wait.future.add_done_callback(lambda _: _finish(own))
        times = [] if wait.timeout_s is None else [wait.timeout_s]
        if deadline is not None:
            times.append(max(0.0, deadline - self.database.clock.monotonic_s()))
        yield Wait(own, min(times) if times else None)
        self._waiting = None

    def _as_ours(self, error: duckdb.Error) -> DucktailError:
        found = self._told(translated(error))
        return self._cancel_error() if isinstance(found, QueryCanceled) else found

    def _cancel_error(self) -> QueryCanceled:
        if self._cancelled:
            return QueryCanceled("canceling statement due to user request")
        return QueryCanceled("canceling statement due to statement timeout")

    def _end_idle(self, error: DucktailError) -> bool:
        """The watchdog ends the session, unless it is at work or no longer in a transaction."""
        if not self._busy.acquire(blocking=False):
            return False
        try:
            if self._ended is not None:
                return False
            if not self.in_block:
                # An unfinished result outside a transaction: its rest is kept, its snapshot let go.
                if not self.has_open_result:
                    return False
                self.settle()
                self.entry.has_snapshot = False
                return True
            self.rollback_block()
            self._mark(IDLE)
            self._ended = error
        finally:
            self._busy.release()
        if self.on_ended is not None:
            self.on_ended(error)
        return True

    # When DuckDB has given the database up.

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Names are looked up and texts bound, outside or inside a statement that runs.

        Raises:
            DucktailError: what the work within says.
        """
        with self._looking:
            try:
                self._renew()
                yield
            except DucktailError as error:
                told = self._told(error)
                if told is not error:
                    raise told from error
                raise

    def _told(self, error: DucktailError) -> DucktailError:
        """An error as it is told: where DuckDB has given the database up, that is what it is of."""
        if isinstance(error, IoError) and error.message.startswith(UNKNOWN):
            return error
        if self._warned is not None:
            return self._warned
        if not isinstance(error, (IoError, InternalError)) or not self.database.has_fallen():
            return error
        fallen = self.database.fallen
        if fallen is None or not self._running or self.in_block:
            return fallen or error
        # It may have been its own COMMIT that DuckDB could not end.
        told = " Where the statement wrote, its outcome is unknown."
        return type(fallen)(fallen.message, detail=f"{fallen.detail}.{told}", hint=fallen.hint)

    def _warn(self, error: DucktailError) -> None:
        """End what the session is doing: the database has fallen."""
        with self._cancel_lock:
            if not self._running or self._warned is not None:
                return
            self._warned = error
            waiting = self._interrupt()
        if waiting is not None:
            _finish(waiting)

    def _let_go(self, error: DucktailError) -> bool:
        """Close the cursors, once no statement runs; False where one still does."""
        if not self._busy.acquire(timeout=LET_GO_S):
            return False
        try:
            with self._looking:
                result, self._open_result = self._open_result, None
                if result is not None:
                    result.fail(error)
                if self.block == OPEN:
                    self._lost = error
                    self.failed()
                self._close_cursors()
        finally:
            self._busy.release()
        return True

    def _renew(self) -> None:
        """New cursors, where the file has been opened again since the last ones were made.

        Raises:
            IoError: 58030, it is not open.
        """
        fallen = self.database.fallen
        if fallen is not None:
            raise fallen
        if self.generation == self.database.generation:
            return
        from .settings_statements import renew_values

        with self._looking:
            self.generation = self.database.generation
            self.cursor, self.meta = self.database.cursor(), self.database.cursor()
            self.frames.renew(self.cursor)
            self._forget_plans()
            renew_values(self)
            for work in self._dresses:
                work(self)

    # Results under way.

    def settle(self) -> None:
        """DuckDB has one open result a cursor: keep the rest of the present one before the next.

        Raises:
            OutOfMemory: 53200, the rest is larger than `spool_bytes_max`.
        """
        result, self._open_result = self._open_result, None
        if result is not None and result.holds_cursor:
            result.spool(self.database.settings.spool_bytes_max)

    def _drop_result(self) -> None:
        result, self._open_result = self._open_result, None
        if result is not None:
            result.close()

    def _free(self) -> None:
        self.frames.close()
        self._close_cursors()

    def _close_cursors(self) -> None:
        for cursor in (self.cursor, self.meta):
            with suppress(duckdb.Error):
                cursor.close()


def _finish(future: Future[None]) -> None:
    """Make a future done, once; from any thread."""
    with suppress(Exception):
        future.set_result(None)
