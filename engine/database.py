"""An open database: the DuckDB file, and everything of the engine around it.

The rules that it keeps:

- One transaction at a time writes captured tables: it holds the writer lock from its first such
  write to its end. LSNs and txids are handed out under it and counted up only once DuckDB's COMMIT
  has returned, so they are dense and in commit order.
- `counter` numbers the commits that a conflict could be with. A transaction notes it before the
  first statement that lets DuckDB take its MVCC snapshot: what commits later has a larger number.
- Memory (catalog, buffers, committed LSNs) changes only after DuckDB's COMMIT.
- No DuckDB call is made under `mutex`.
- What is made from the file is made in `_stand`: at the open, and again where DuckDB has given its
  instance up (`reopening.py`).

Source: docs/design/engine.md.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import duckdb

from .asking import ask_maybe
from .budget import hold
from .buffer import StreamBuffer
from .capture import capture
from .capture.conflicts import Conflicts
from .changes import ChangesQuery
from .clock import Clock, SystemClock
from .duckdb_errors import translated
from .errors import (
    DucktailError,
    InvalidParameterValue,
    IoError,
    LockNotAvailable,
    SerializationFailure,
    UndefinedObject,
)
from .gate import Gate, TableKey
from .live import live_rows
from .log import EventQuery
from .offsets import Move, Offsets, going_back, insert_sql
from .publisher import Note, Publisher
from .publishing import publish, refill
from .quoting import ident
from .retention import Retention
from .scan import Scan, ScanRange
from .sessions import SessionEntry, Watchdog
from .settings import Settings
from .storage import opening, schema
from .storage.file import MEMORY, DuckdbFile, lock_down
from .storage.loading import make_changes_views, read_catalog
from .storage.reopening import Reopener
from .storage.side_file import SideFile
from .streams import Captured, Catalog, Group, Stream
from .table import read_shape
from .transaction import PendingOffset, Transaction
from .waiting import Wait, Waiting
from .writer_lock import WriterLock

logger = logging.getLogger(__name__)

# Rows of ENVELOPE CHANGES are kept ready for so long after the last hot read of them, in seconds: a
# poll loop rests less, and each event costs twice while they are kept.
CHANGES_IDLE_S = 60.0

# What a COMMIT says that DuckDB neither did nor refused, as far as can be told.
UNKNOWN = "the outcome of a COMMIT is unknown"

# How long a system view waits for the publisher before it shows what there is.
LIVE_WAIT_S = 10.0


class Database:
    """See the head of the file. Made by `Database.open`; safe to use from several threads."""

    def __init__(
        self, file: DuckdbFile, settings: Settings, clock: Clock, *, accept_loss: bool = False
    ) -> None:
        self.path = file.path
        self.name = "memory" if file.path == MEMORY else Path(file.path).stem
        self.catalog_name = file.catalog_name
        self.settings = settings
        self.clock = clock
        self.mutex = threading.RLock()
        self.catalog = Catalog()
        self.buffers: dict[int, StreamBuffer] = {}
        self.conflicts: dict[int, Conflicts] = {}
        self.writer_lock = WriterLock()
        self.edges_lock = threading.Lock()
        self.gate = Gate()
        self.indexes_changed = False
        self.shields: dict[int, Callable[[], AbstractContextManager[None]]] = {}
        self.last_reads: dict[tuple[int, int], int] = {}  # (group id, partition) -> microseconds
        self.sessions: dict[int, SessionEntry] = {}
        self.counter = 0
        self.catalog_version = 0
        self.generation = 0
        self.last_lsn = 0
        self.last_txid = 0
        self.last_commit_us = 0
        self.side: SideFile | None = None
        self._stands = False
        self._openers: list[Callable[[Database], None]] = []
        self._reopener = Reopener(self._let_go, self._come_back, clock, has_file=file.path != MEMORY)
        self._snapshots: dict[int, int] = {}  # session id -> counter noted for its open snapshot
        self._next_session_id = 0
        self._closed = False
        self._claimed: tuple[int, int] | None = None
        self._doubt: tuple[Transaction, Sequence[Move], int] | None = None
        self._stand(file, {}, accept_loss=accept_loss)

    # Opening and closing.

    @classmethod
    def open(
        cls,
        path: str,
        settings: Settings | None = None,
        clock: Clock | None = None,
        *,
        accept_loss: bool = False,
    ) -> Database:
        """Open the database file at `path`, or make it; ":memory:" is one without a file.

        Args:
            accept_loss: serve it although commits that were acknowledged are missing.

        Raises:
            ObjectInUse: 55006, this process has it open.
            IoError: 58030, the file cannot be opened, is no database, or another process has it.
            DataCorrupted: XX001, the file holds what this version cannot read, or lacks commits that
                were acknowledged.
        """
        settings = settings or Settings()
        claimed = opening.claim(path)
        try:
            if claimed is not None:
                opening.check_logs(path, accept_loss=accept_loss)
            file = opening.connect(path, settings, accept_loss=accept_loss)
            try:
                claimed = claimed or opening.claim_new(path)
                database = cls(file, settings, clock or SystemClock(), accept_loss=accept_loss)
            except BaseException as error:
                file.abandon()
                if isinstance(error, duckdb.Error):
                    raise translated(error) from error
                raise
        except BaseException:
            opening.release(claimed)
            raise
        database._claimed = claimed
        return database

    def close(self) -> None:
        """Publish and write what is under way, and close the file. Sessions must have ended."""
        if self._closed:
            return
        self._closed = True
        self._reopener.close()
        self._end_threads()
        self._file.close()
        if self.side is not None:
            self.side.close()
        opening.release(self._claimed)

    def _stand(self, file: DuckdbFile, seeks: Mapping[int, int], *, accept_loss: bool) -> None:
        """Make everything that is made from the file; the threads last, when nothing can fail any more."""
        self._file = file
        file.connection.create_function(
            schema.LIVE_FUNCTION, self._live, ["VARCHAR"], "VARCHAR", side_effects=True
        )
        self._load(accept_loss=accept_loss)
        for opener in self._openers:
            opener(self)
        self._publish_cursor = self.cursor(utc=True)
        self._refill_all()
        clock, settings = self.clock, self.settings
        interval_ms = settings.retention_interval_ms
        retention = Retention(self, self.cursor(utc=True), self.new_session_id(), interval_ms)
        self.offsets = Offsets(self.cursor(utc=True), clock, self._offsets_written, seeks)
        self.publisher = Publisher(self._publish, self.last_lsn)
        bound = settings.wal_bytes_max
        self._watchdog = Watchdog(self.sessions, clock, file.wal_path, bound, self.checkpoint)
        self.retention = retention
        self._watchdog.start()
        self.retention.start()
        self._stands = True

    def _end_threads(self) -> None:
        """Publish and write what is under way, and end the engine's threads."""
        if self._stands:
            self._stands = False
            self._watchdog.close()
            self.retention.close()
            self.offsets.close()
            self.publisher.close()

    # Falling, and coming back: see reopening.py.

    def at_opening(self, opener: Callable[[Database], None]) -> None:
        """Have something made beside the database: now, and whenever its file has been opened again."""
        opener(self)
        if opener not in self._openers:
            self._openers.append(opener)

    @property
    def fallen(self) -> DucktailError | None:
        """What statements are answered while the database is not open: DuckDB has given it up."""
        return self._reopener.error

    def has_fallen(self) -> bool:
        """Whether DuckDB has given the database up; it is then opened again. Asks DuckDB.

        To be asked by whoever met an I/O error, or one that DuckDB has no word for.
        """
        if self.fallen is None and not self._closed:
            reason = self._file.why_invalidated()
            if reason is not None:
                self._reopener.fell(reason)
        return self.fallen is not None

    def standing(self) -> Waiting[None]:
        """Wait while the file is being opened again.

        Raises:
            IoError: 58030, it cannot be opened yet. DataCorrupted: XX001, it lacks what was acknowledged.
        """
        yield from self._reopener.standing()

    def _let_go(self, error: DucktailError) -> None:
        """Nobody has a cursor on the old instance any more, and it is closed.

        Raises:
            IoError: 58030, a session is still at work on it.
        """
        with self.mutex:
            entries = list(self.sessions.values())
        for entry in entries:
            entry.warn(error)
        late = [entry.session_id for entry in entries if not entry.let_go(error)]
        if late:
            raise IoError(f"sessions {late} are still at work on what has been given up")
        self._end_threads()
        self._file.abandon()
        if self.side is not None:
            self.side.close()

    def _come_back(self) -> None:
        """Open the file again, with all that is held against it at a start.

        Raises:
            IoError: 58030, DuckDB does not open it. DataCorrupted: XX001, it lacks what was acknowledged.
        """
        if not opening.lock_is_free(self.path):
            raise IoError(f'database file "{self.path}" is in use by another process')
        opening.check_logs(self.path, accept_loss=False)
        file = opening.connect(self.path, self.settings, accept_loss=False)
        with self.mutex:
            self._snapshots.clear()
            self._doubt = None
            self.indexes_changed = False
            self.buffers = {}
        try:
            self._stand(file, self.offsets.all_seeks(), accept_loss=False)
        except BaseException:
            file.abandon()
            if self.side is not None:
                self.side.close()
            raise
        self.generation += 1
        self.catalog_version += 1

    def cursor(self, *, utc: bool = False) -> duckdb.DuckDBPyConnection:
        """A new DuckDB cursor on this database; with `utc`, in that time zone."""
        return self._file.cursor(utc=utc)

    def checkpoint(self) -> None:
        """Ask DuckDB to fold its log into the file; nothing happens while a snapshot is in the way."""
        cursor = self.cursor()
        try:
            cursor.execute("CHECKPOINT")
        except duckdb.TransactionException:
            return
        except duckdb.FatalException:
            self.has_fallen()
            raise
        finally:
            cursor.close()

    def _load(self, *, accept_loss: bool) -> None:
        """Look at the file, install or migrate our schema, read the counters and the catalog."""
        cursor = self.cursor(utc=True)
        looked = opening.look(cursor, self.path, accept_loss=accept_loss)
        try:
            settled = opening.settle(cursor, self.path, looked)
        except BaseException:
            if looked.side is not None:
                looked.side.close()
            raise
        lock_down(cursor, self.path, self.settings.allowed_directories)
        self.side, self.holes = settled.side, settled.holes
        counters = settled.counters
        self.last_txid, self.last_lsn = counters.txid, counters.lsn
        self.last_commit_us = counters.commit_us
        self.catalog = read_catalog(cursor)
        if make_changes_views(cursor, self.catalog):
            self.catalog = read_catalog(cursor)
        self.conflicts = {captured.table_id: Conflicts() for captured in self.catalog.tables.values()}
        self.damage = opening.find_damage(cursor, self.catalog, self.last_lsn, accept_loss=accept_loss)
        cursor.close()

    def _refill_all(self) -> None:
        cursor = self.cursor(utc=True)
        streams = self.catalog.streams.values()
        share = self.settings.buffer_bytes_total // max(len(streams), 1)
        for stream in streams:
            self.buffers[stream.stream_id] = self._refilled(cursor, stream, self.last_lsn, share)
        cursor.close()

    def new_buffer(self, stream: Stream) -> StreamBuffer:
        """Empty buffers for a stream, with its byte bound."""
        return StreamBuffer(stream.partitions, min(stream.buffer_bytes, self.settings.buffer_bytes_total))

    def hold_buffers(self) -> None:
        """Keep all buffers together within their bound."""
        with self.mutex:
            buffers = list(self.buffers.values())
        changes = [buffer.changes for buffer in buffers]
        hold([*buffers, *filter(None, changes)], self.settings.buffer_bytes_total)

    def _refilled(
        self, cursor: duckdb.DuckDBPyConnection, stream: Stream, through_lsn: int, bytes_max: int
    ) -> StreamBuffer:
        """A stream's buffers made from its log, up to so many bytes; where that fails, empty ones that
        say why."""
        buffer = self.new_buffer(stream)
        buffer.failure = self.damage.get(stream.stream_id)
        if buffer.failure is not None:
            return buffer
        try:
            refill(cursor, self.event_query(stream), buffer, through_lsn, min(bytes_max, buffer.bytes_max))
        except Exception as error:  # Whatever it is, its readers must be told, and nobody else's.
            buffer = self.new_buffer(stream)
            buffer.failure = translated(error)
            logger.error('stream "%s" cannot be read from its log: %s', stream.name, error)
        return buffer

    # Sessions.

    def register(self, entry: SessionEntry) -> None:
        """Make a session known, before it has a cursor; its id comes from `new_session_id`.

        Raises:
            IoError: 58030, DuckDB has given the database up, and its file is not open again yet.
        """
        with self.mutex:
            fallen = self.fallen
            if fallen is not None:
                raise fallen
            self.sessions[entry.session_id] = entry

    def new_session_id(self) -> int:
        """A number for a session, from 1, not used again while the database is open."""
        with self.mutex:
            self._next_session_id += 1
            return self._next_session_id

    def unregister(self, session_id: int) -> None:
        """A session has ended."""
        with self.mutex:
            self.sessions.pop(session_id, None)

    def _live(self, kind: str) -> str:
        """Rows of a live view; what was committed before it was asked is in them."""
        future = self.publisher.wait_for(self.last_lsn)
        if future is not None:
            with suppress(TimeoutError):
                future.result(LIVE_WAIT_S)
        return live_rows(self, kind)

    # Finding things.

    def captured(self, key: TableKey) -> Captured | None:
        """The captured table under (schema, name) in small letters, if it is one."""
        return self.catalog.tables.get(key)

    def buffer(self, stream: Stream) -> StreamBuffer:
        """A stream's buffers.

        Raises:
            UndefinedObject: 42704, it has been dropped.
        """
        found = self.buffers.get(stream.stream_id)
        if found is None:
            raise UndefinedObject(f'stream "{stream.name}" does not exist')
        return found

    def event_query(self, stream: Stream) -> EventQuery:
        """The SELECT of a stream's events."""
        with self.mutex:
            return EventQuery(stream, self.catalog.table_by_id(stream.table_id))

    def group(self, stream: Stream, name: str, transaction: Transaction | None) -> Group:
        """A stream's group by name, one made in this transaction included.

        Raises:
            UndefinedObject: 42704, there is none.
        """
        key = (stream.stream_id, name.lower())
        group = self.catalog.groups.get(key)
        if transaction is not None:
            group = transaction.new_groups.get(key, group)
            if group is not None and group.group_id in transaction.dropped_groups:
                group = None
        if group is None:
            raise UndefinedObject(
                f'consumer group "{name}" of stream "{stream.name}" does not exist',
                hint=f"CREATE CONSUMER GROUP {ident(name)} ON {ident(stream.name)} makes it.",
            )
        return group

    # Transactions.

    def begin(self, session_id: int, cursor: duckdb.DuckDBPyConnection, by: str) -> Transaction:
        """Begin a DuckDB transaction on a session's cursor."""
        try:
            cursor.execute("BEGIN")
        except BaseException:
            # A cancel may hit it once it has taken effect.
            with suppress(duckdb.Error):
                cursor.execute("ROLLBACK")
            raise
        return Transaction(session_id, cursor, by)

    def touch(self, transaction: Transaction) -> None:
        """Note the commit counter: the next statement may fix the transaction's MVCC snapshot."""
        if transaction.snapshot_counter is None:
            with self.mutex:
                transaction.snapshot_counter = self.counter
                transaction.catalog_version = self.catalog_version
                self._snapshots[transaction.session_id] = self.counter

    def lock_writer(self, session_id: int, timeout_ms: int) -> Waiting[None]:
        """Wait for the writer lock.

        Raises:
            LockNotAvailable: 55P03, not within `timeout_ms`. IoError: 58030, DuckDB has given the
            database up: what the next LSN is must be read first.
        """
        held = self.writer_lock.holder() == session_id
        future = self.writer_lock.acquire(session_id)
        if future is not None:
            yield from self._wait_for_writer(session_id, future, timeout_ms)
        fallen = self.fallen
        if fallen is not None:
            if not held:
                self.writer_lock.release(session_id)
            raise fallen
        self._settle_doubt(session_id)

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

    def unlock_writer(self, session_id: int) -> None:
        """Let go of the writer lock."""
        self.writer_lock.release(session_id)

    def enter_plain(self, transaction_of: int, table: TableKey, timeout_ms: int) -> Waiting[bool]:
        """Before a session writes a table that has no stream; True when it still has none.

        Raises:
            LockNotAvailable: 55P03, a CREATE STREAM on the table did not end within `timeout_ms`.
        """
        # Who holds the writer lock commits before a CREATE STREAM takes its snapshot: were it to wait
        # for that statement, each would wait for the other.
        holds = self.writer_lock.holder() == transaction_of
        while (future := self.gate.enter(transaction_of, table, past_mark=holds)) is not None:
            if not (yield Wait(future, timeout_ms / 1000)):
                raise LockNotAvailable(
                    f'table "{table[-1]}" is getting a stream for longer than {timeout_ms} ms'
                )
            if table in self.catalog.tables:
                return False
        return table not in self.catalog.tables

    def lock_for(self, transaction: Transaction, timeout_ms: int) -> Waiting[None]:
        """Give a transaction the writer lock, with its txid and first LSN, until it ends.

        Raises:
            LockNotAvailable: 55P03.
        """
        if not transaction.has_writer_lock:
            yield from self.lock_writer(transaction.session_id, timeout_ms)
            transaction.has_writer_lock = True
            transaction.base_lsn, transaction.txid = self.last_lsn, self.last_txid + 1
        self.touch(transaction)

    def lock_group(self, transaction: Transaction, group: Group, timeout_ms: int) -> Waiting[None]:
        """Keep others from committing a group's offsets until the transaction ends.

        Raises:
            LockNotAvailable: 55P03.
        """
        transaction.locked_groups.add(group.group_id)
        future = self.offsets.lock(group.group_id, transaction.session_id)
        if future is not None and not (yield Wait(future, timeout_ms / 1000)):
            raise LockNotAvailable(
                f'consumer group "{group.name}" is being committed for longer than {timeout_ms} ms'
            )

    def enter_captured(
        self, transaction: Transaction, key: TableKey, timeout_ms: int
    ) -> Waiting[Captured | None]:
        """Before a transaction writes a captured table: it gets the writer lock and its numbers.

        Returns:
            The table as it is under the lock; None where it is no longer captured.

        Raises:
            LockNotAvailable: 55P03.
            SerializationFailure: 40001, the transaction's snapshot is older than a stream.
        """
        yield from self.lock_for(transaction, timeout_ms)
        if self.indexes_changed:
            self._read_shapes()
        captured = self.catalog.tables.get(key)
        assert transaction.snapshot_counter is not None
        if captured is not None:
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

    def _read_shapes(self) -> None:
        """An index has come or gone: what is unique in captured tables may be other now."""
        self.indexes_changed = False
        cursor = self.cursor()
        try:
            for captured in list(self.catalog.tables.values()):
                shape = read_shape(cursor, captured.shape.schema, captured.shape.name)
                if shape != captured.shape:
                    table = replace(captured.table, shape=shape)
                    with self.mutex:
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
            explain: the words of EXPLAIN ANALYZE, whose plan then takes the place of RETURNING's rows.

        Raises:
            SerializationFailure: 40001, it meets what was committed since its snapshot.
            duckdb.Error: the statement's own.
        """
        snapshot = transaction.snapshot_counter
        assert snapshot is not None and transaction.has_writer_lock
        conflicts = self.conflicts[captured.table_id]
        try:
            outcome = capture.execute(
                transaction.cursor,
                plan,
                parameters,
                transaction.next_lsn,
                transaction.txid,
                None if explain is None else capture.Explain(explain, captured.table.log),
            )
        except duckdb.ConstraintException as error:
            if conflicts.newer_than(snapshot) and "uplicate key" in str(error):
                raise _stale(captured) from error
            raise
        with self.mutex:
            hit = conflicts.hit(snapshot, outcome.keys if outcome.events else frozenset())
        if hit:
            raise _stale(captured)
        transaction.captured(captured.table_id, outcome.events, outcome.keys)
        return outcome

    def commit(self, transaction: Transaction, timeout_ms: int) -> Waiting[None]:
        """Commit: events, table, committed LSNs and all else of the transaction, or nothing.

        Raises:
            SerializationFailure: 40001, an offset moved meanwhile, or DuckDB found a conflict.
            DucktailError: what DuckDB's COMMIT said; the transaction is rolled back.
        """
        try:
            pending = yield from self._lock_offsets(transaction, timeout_ms)
        except BaseException:
            self.rollback(transaction)
            raise
        # Offset commits are numbered in the order in which DuckDB commits them.
        with self.offsets.writing() if pending else nullcontext():
            moves = [self.offsets.move(*move, transaction.committed_by) for move in pending]
            commit_us = self._commit_now(transaction, moves)
        self._committed(transaction, moves, commit_us)
        self._release(transaction)

    def _commit_now(self, transaction: Transaction, moves: Sequence[Move]) -> int:
        """Write the last rows and commit in DuckDB; a transaction that fails is rolled back."""
        try:
            commit_us = self._write_commit(transaction, moves)
        except duckdb.Error as error:
            self.rollback(transaction)
            raise translated(error) from error
        except BaseException:
            self.rollback(transaction)
            raise
        with self.shield(transaction.session_id):
            try:
                transaction.cursor.execute("COMMIT")
            except BaseException as error:
                try:
                    done = self._took_effect(transaction, moves)
                except BaseException:
                    self._outcome_unknown(transaction, moves, commit_us)
                    self.rollback(transaction)
                    raise
                if not done:
                    self.rollback(transaction)
                    raise translated(error) if isinstance(error, duckdb.Error) else error from error
        return commit_us

    def _outcome_unknown(self, transaction: Transaction, moves: Sequence[Move], commit_us: int) -> None:
        """Nobody writes before it is known: from the file that is opened again, or by asking again."""
        if self.has_fallen():
            # A SEEK may have been in it: read positions from before are not to be committed.
            for group_id in transaction.offsets:
                self.offsets.seeked(group_id)
        elif transaction.numbered:
            self._doubt = (transaction, moves, commit_us)

    def _settle_doubt(self, session_id: int) -> None:
        """Under the writer lock: a COMMIT whose outcome was not known stands, or it does not.

        Raises:
            IoError: 58030, it is still not known; the writer lock is free again.
        """
        if self._doubt is None:
            return
        transaction, moves, commit_us = self._doubt
        try:
            stands = self._took_effect(transaction, moves)
        except BaseException:
            self.writer_lock.release(session_id)
            raise
        self._doubt = None
        if stands:
            self._committed(transaction, moves, commit_us)

    def _lock_offsets(
        self, transaction: Transaction, timeout_ms: int
    ) -> Waiting[list[tuple[int, dict[int, int]]]]:
        """Take the groups' locks, in one order, and hold the moves against what is committed.

        Returns:
            Group id and partition -> LSN for each group that moves.
        """
        moves: list[tuple[int, dict[int, int]]] = []
        for group_id in sorted(transaction.offsets):
            transaction.locked_groups.add(group_id)
            future = self.offsets.lock(group_id, transaction.session_id)
            if future is not None and not (yield Wait(future, timeout_ms / 1000)):
                raise LockNotAvailable(f"could not lock a consumer group within {timeout_ms} ms")
            pending = transaction.offsets[group_id]
            self._compare(transaction, group_id, pending)
            if pending:
                lsns = {partition: moved.lsn for partition, moved in pending.items()}
                moves.append((group_id, lsns))
        return moves

    def _compare(self, transaction: Transaction, group_id: int, pending: Mapping[int, PendingOffset]) -> None:
        """Each position must still be where the transaction found it.

        Raises:
            SerializationFailure: 40001.
        """
        standing = self.offsets.positions(group_id)
        if not standing and not self._is_new(transaction, group_id):
            raise SerializationFailure("the consumer group was dropped meanwhile")
        for partition, moved in pending.items():
            present = standing.get(partition)
            if present is not None and present.lsn != moved.expected:
                raise SerializationFailure(
                    f"the committed LSN of partition {partition} moved from {moved.expected} "
                    f"to {present.lsn} meanwhile",
                    hint="Roll back, read again and retry.",
                )

    def _took_effect(self, transaction: Transaction, moves: Sequence[Move]) -> bool:
        """Whether a COMMIT that raised took effect all the same: another cursor sees its last rows.

        Raises:
            IoError: 58030, that cannot be told.
        """
        cursor: duckdb.DuckDBPyConnection | None = None
        try:
            cursor = self.cursor()
            if transaction.numbered:
                sql = f"SELECT count(*) FROM ducktail.commits WHERE txid = {transaction.txid}"
            elif moves:
                sql = f"SELECT count(*) FROM ducktail.offset_log WHERE seq = {moves[0].seq}"
            else:
                return False
            row = ask_maybe(cursor, sql)
            return row is not None and bool(row[0])
        except duckdb.Error as error:
            raise IoError(
                UNKNOWN,
                detail=str(translated(error)),
                hint="Look whether it stands before it is tried again: it does, or does not, as a whole.",
            ) from error
        finally:
            if cursor is not None:
                cursor.close()

    def shield(self, session_id: int) -> AbstractContextManager[None]:
        """Within, a cancel of the session does not interrupt DuckDB: a COMMIT is all or nothing."""
        return self.shields.get(session_id, nullcontext)()

    @staticmethod
    def _is_new(transaction: Transaction, group_id: int) -> bool:
        return any(group.group_id == group_id for group in transaction.new_groups.values())

    def _write_commit(self, transaction: Transaction, moves: Sequence[Move]) -> int:
        """The last rows of a transaction: its line in `commits`, the offsets that it moves."""
        commit_us = max(self.clock.now_us(), self.last_commit_us)
        if transaction.numbered:
            transaction.cursor.execute(
                f"INSERT INTO ducktail.commits VALUES ({transaction.txid}, "
                f"{transaction.base_lsn + 1}, {transaction.next_lsn}, make_timestamptz({commit_us}))"
            )
        if moves:
            transaction.cursor.execute(insert_sql(moves))
        return commit_us

    def announce(self, address: str) -> None:
        """Say in the side file where this database is served; "" when it no longer is."""
        if self.side is not None:
            self.side.announce(address)

    def note_commit(self, txid: int, last_lsn: int, commit_us: int) -> None:
        """DuckDB has committed a numbered transaction of the engine's own, under the writer lock."""
        if self.side is not None:
            self.side.acknowledge(txid=txid, lsn=last_lsn)
        with self.mutex:
            self.last_lsn, self.last_txid, self.last_commit_us = last_lsn, txid, commit_us

    def _offsets_written(self, seq: int) -> None:
        """The committer has written offset commits up to this number."""
        if self.side is not None:
            self.side.acknowledge(seq=seq)

    def _committed(self, transaction: Transaction, moves: Sequence[Move], commit_us: int) -> None:
        """DuckDB has committed: now memory follows."""
        if self.side is not None:
            numbers = (transaction.txid, transaction.next_lsn) if transaction.numbered else (0, 0)
            seq = moves[-1].seq if moves else 0
            self.side.acknowledge(txid=numbers[0], lsn=numbers[1], seq=seq)
        with self.mutex:
            if transaction.numbered:
                self.last_lsn, self.last_txid = transaction.next_lsn, transaction.txid
                self.last_commit_us = commit_us
            if transaction.events:
                self.counter += 1
                oldest = min(
                    (c for sid, c in self._snapshots.items() if sid != transaction.session_id),
                    default=self.counter,
                )
                for table_id, writes in transaction.tables.items():
                    self.conflicts[table_id].record(self.counter, writes.keys)
                    self.conflicts[table_id].forget_through(oldest)
            for act in transaction.on_commit:
                act()
        if moves:
            self.offsets.applied(moves)
        if transaction.events:
            tables = {t: (w.first_lsn, w.last_lsn) for t, w in transaction.tables.items()}
            first = transaction.base_lsn + 1
            self.publisher.put(Note(transaction.txid, first, transaction.next_lsn, commit_us, tables))

    def rollback(self, transaction: Transaction) -> None:
        """Roll back and let go of everything; never fails."""
        try:
            transaction.cursor.execute("ROLLBACK")
        except duckdb.Error:
            pass  # DuckDB has no transaction any more: it ended with the error that is answered.
        self._release(transaction)

    def _release(self, transaction: Transaction) -> None:
        with self.mutex:
            self._snapshots.pop(transaction.session_id, None)
        self.offsets.unlock(list(transaction.locked_groups), transaction.session_id)
        if transaction.has_writer_lock:
            transaction.has_writer_lock = False
            self.writer_lock.release(transaction.session_id)
        self.gate.leave(transaction.session_id)

    # Publishing and reading.

    def _publish(self, notes: list[Note]) -> list[Callable[[], None]]:
        """Make these transactions readable in every stream that they touched; gives what is left to do."""
        left: list[Callable[[], None]] = []
        touched = {table_id for note in notes for table_id in note.tables}
        with self.mutex:
            streams = [s for s in self.catalog.streams.values() if s.table_id in touched]
            queries = [EventQuery(s, self.catalog.table_by_id(s.table_id)) for s in streams]
        for query in queries:
            stream = query.stream
            later = [n for n in notes if n.last_lsn > stream.created_lsn and stream.table_id in n.tables]
            buffer = self.buffers.get(stream.stream_id)
            if later and buffer is not None:
                fill = self._publish_stream(query, buffer, later, notes[-1].last_lsn)
                left += [fill, self.hold_buffers] if fill else []
                self.hold_buffers()
        return left

    def _publish_stream(
        self, query: EventQuery, buffer: StreamBuffer, notes: Sequence[Note], through_lsn: int
    ) -> Callable[[], None] | None:
        stream = query.stream
        try:
            if buffer.failure is None:
                if self.clock.monotonic_s() - buffer.read_s > CHANGES_IDLE_S:
                    buffer.drop_changes()
                return publish(self._publish_cursor, query, buffer, notes)
        except Exception:
            # Where the database has fallen that says it all; the buffers get the error all the same.
            if not self.has_fallen():
                logger.exception('publishing stream "%s" failed: its log is read again', stream.name)
        if self.catalog.stream_by_id(stream.stream_id) is not None:
            with self.edges_lock:
                self.buffers[stream.stream_id] = self._refilled(
                    self._publish_cursor, stream, through_lsn, stream.buffer_bytes
                )
        return None

    def wait_published(self, lsn: int) -> Waiting[None]:
        """Wait until every event up to `lsn` is readable."""
        future = self.publisher.wait_for(lsn)
        if future is not None:
            yield Wait(future)

    def scan(self, stream: Stream, bounds: ScanRange, *, changes: bool = False) -> Scan:
        """Begin a scan of a stream; with `changes`, of its events as ENVELOPE CHANGES has them.

        Raises:
            Gap: 72000, what it begins with has been trimmed.
        """
        query = self.event_query(stream)
        if changes:
            self.hold_buffers()  # The last such scan may have made rows.
        return Scan(
            ChangesQuery(query) if changes else query,
            self.buffer(stream),
            bounds,
            lambda: self.cursor(utc=True),
            lambda: self.catalog.stream_by_id(stream.stream_id) is not None,
            self.clock,
        )

    def check_no_hole(self, lsn: int) -> None:
        """Refuse a position of events that a restore or an accepted loss has taken away.

        Raises:
            InvalidParameterValue: 22023.
        """
        for hole in self.holes:
            if hole.has(lsn):
                raise InvalidParameterValue(
                    f"LSN {lsn} is of events that the database has lost",
                    detail=f"It was restored, or opened without them: LSN {hole.after} is the last one "
                    f"before that, and what came afterwards begins at {hole.through + 1}.",
                    hint=f"Go on AFTER {hole.after}.",
                )

    def check_lsns(self, stream: Stream, lsns: Mapping[int, int]) -> None:
        """Refuse partitions that a stream has not, and LSNs past its end.

        Raises:
            InvalidParameterValue: 22023.
        """
        end_lsn = self.buffer(stream).end_lsn
        for partition, lsn in lsns.items():
            self.check_no_hole(lsn)
            if not 0 <= partition < stream.partitions:
                raise InvalidParameterValue(
                    f'stream "{stream.name}" has no partition {partition}',
                    detail=f"Its partitions are 0 to {stream.partitions - 1}.",
                )
            if lsn > end_lsn:
                raise InvalidParameterValue(
                    f"offset {lsn} of partition {partition} is past the end of stream "
                    f'"{stream.name}", {end_lsn}'
                )

    def check_commit(self, stream: Stream, group: Group, lsns: dict[int, int]) -> None:
        """Hold an offset commit against what can be known at once.

        Raises:
            InvalidParameterValue: 22023, a partition that is not there, an LSN past the end or back.
        """
        standing = self.offsets.positions(group.group_id)
        self.check_lsns(stream, lsns)
        for partition, lsn in lsns.items():
            present = standing.get(partition)
            if present is not None and lsn < present.lsn:
                raise going_back(group.name, partition, lsn, present.lsn)


def _stale(captured: Captured) -> SerializationFailure:
    return SerializationFailure(
        f'could not serialize access to table "{captured.shape.name}" due to a concurrent change',
        detail="A row that this transaction writes was changed by a transaction that committed after "
        "this one began to read.",
        hint="Roll back and try again.",
    )
