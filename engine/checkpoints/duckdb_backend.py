"""Checkpoints in the database itself: table `ducktail.checkpoint_states`, the default backend.

A row has the state's binary form, and columns for people to read. Rows belong to a scope: a stream of the
database by its number, so that RENAME keeps them, DROP removes them in its own transaction, and a new stream
of the same name does not find them; rows with a group's number are also removed with the group. Scope 0 is
for jobs on sources outside the database.

Outside a transaction each call is a transaction of its own on a cursor of the engine, and durable once it
returns. `within` binds the backend to an open transaction, which then includes its saves and removals.

`Saved` caches the newest checkpoint of each key that this process has saved. Only one process has a database
open, and a save outside a user's transaction holds `mutex`. So the last state need not be read again to check
that the next one goes forward, and the save can be a single INSERT. Uncertain entries are dropped: a key
touched by a user's transaction is never cached again (the transaction may be rolled back, and does not commit
under the mutex), and a removal of checkpoints clears the cache. Source: docs/design/checkpoints.md, "In
DuckDB".
"""

from __future__ import annotations

import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import duckdb

from ..duck.cursors import in_one_transaction
from ..duck.duckdb_errors import translated
from ..errors import DataCorrupted, InternalError, IoError, UndefinedObject
from ..quoting import literal
from ..schema import CHECKPOINT_SLOTS, SCHEMA
from .backend import (
    KEEP,
    Backend,
    CheckpointStore,
    Report,
    check_forward,
    check_place,
    damaged_at,
    report_to_log,
)
from .encodings import from_bytes, to_bytes
from .state import CheckpointState, check_key

TABLE = f"{SCHEMA}.checkpoint_states"

Cursors = Callable[[], duckdb.DuckDBPyConnection]
# Stream's number, group's number, key.
Key = tuple[int, int, str]
# Number of rows beyond the kept ones at which a save removes them all.
UNPRUNED_MAX = 16
# Larger states are read again, and old ones are removed with each save: neither memory nor the file grows.
KNOWN_BYTES_MAX = 32 << 10
KNOWN_MAX = 1000


@dataclass(frozen=True, slots=True)
class Scope:
    """The owner of checkpoints: a stream, a group of it, or nothing in the database.

    Args:
        stream_id: the number of the stream; 0 for no stream of the database.
        group_id: the number of the consumer's group; 0 for none.
    """

    stream_id: int = 0
    group_id: int = 0

    @property
    def sql(self) -> str:
        """The SQL condition that selects its rows."""
        return f"stream_id = {self.stream_id} AND group_id = {self.group_id}"


class DuckdbBackend(Backend):
    """Checkpoints in a table of the database; implements `Backend`.

    Args:
        cursors: returns a new cursor, which is closed after each call.
        saved: the cache, shared by the whole database.
        stands: returns True if the scope's stream and group exist; called under the mutex before a state is
            written, but not within a transaction, which may have created them itself.
        has_fallen: asks DuckDB, after an I/O error, if it has invalidated the database.

    Further errors of all calls:
        SerializationFailure: 40001, within a transaction: another one has changed the same key.
        UndefinedObject: 42704, the stream or the group has been dropped.
    """

    def __init__(
        self,
        cursors: Cursors,
        saved: Saved,
        scope: Scope = Scope(),
        *,
        keep: int = KEEP,
        report: Report = report_to_log,
        stands: Callable[[], bool] = lambda: True,
        has_fallen: Callable[[], bool] = lambda: False,
        transaction: duckdb.DuckDBPyConnection | None = None,
    ) -> None:
        super().__init__(keep, report)
        self._cursors = cursors
        self._saved = saved
        self._scope = scope
        self._stands = stands
        self._has_fallen = has_fallen
        self._transaction = transaction

    def within(self, cursor: duckdb.DuckDBPyConnection) -> DuckdbBackend:
        """The backend bound to the open transaction of a cursor; to be used by that transaction's thread."""
        return DuckdbBackend(
            self._cursors,
            self._saved,
            self._scope,
            keep=self._keep,
            report=self._report,
            stands=self._stands,
            has_fallen=self._has_fallen,
            transaction=cursor,
        )

    @contextmanager
    def _reading(self) -> Iterator[CheckpointStore]:
        with self._cursor() as cursor:
            yield _Rows(cursor, self._scope)

    @contextmanager
    def _writing(self) -> Iterator[CheckpointStore]:
        # Within a transaction `_change` excludes other changes of the same key.
        if self._transaction is not None:
            with self._reading() as place:
                yield place
            return
        with self._alone() as cursor:
            self._saved.forget()
            with in_one_transaction(cursor):
                yield _Rows(cursor, self._scope)

    @contextmanager
    def _alone(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor, while no other thread of the process saves."""
        with self._saved.mutex, self._cursor() as cursor:
            if not self._stands():
                raise UndefinedObject("the stream or the group of these checkpoints has been dropped")
            yield cursor

    def save(self, state: CheckpointState, *, rewind: bool = False) -> None:
        """Save a state; a single INSERT if it goes forward from this process's last save."""
        key = self._key(state.stream)
        self._change(state.stream)
        if self._transaction is not None:
            super().save(state, rewind=rewind)
            return
        with self._alone() as cursor:
            place, known, unpruned = _Rows(cursor, self._scope), self._saved.take(key), 0
            if (
                known is not None
                and not rewind
                and known.unpruned < UNPRUNED_MAX
                and state.sequence > known.newest.sequence
            ):
                check_forward(state, [known.newest.sequence], known.newest, None)
                place.add(state)
                is_newest, unpruned = True, known.unpruned + 1
            else:
                with in_one_transaction(cursor):
                    is_newest = self._save(place, state, rewind=rewind)
            if is_newest:
                self._saved.put(key, state, place.added_bytes, unpruned)

    def delete(self, stream: str, sequence: int) -> bool:
        """Remove a state; returns False if it did not exist."""
        self._change(stream)
        return super().delete(stream, sequence)

    def _remove(self, stream: str, before: int | None) -> int:
        self._change(stream)
        return super()._remove(stream, before)

    def _change(self, stream: str) -> None:
        """Provoke a conflict with other transactions that change this key: new rows alone would not."""
        if self._transaction is None:
            return
        check_key(stream)
        self._saved.touched(self._key(stream))
        with self._cursor() as cursor:
            cursor.execute(
                f"UPDATE {SCHEMA}.checkpoint_turns SET turn = turn + 1 "
                f"WHERE slot = {slot_of(self._key(stream))}"
            ).fetchall()

    def _key(self, stream: str) -> Key:
        return self._scope.stream_id, self._scope.group_id, stream

    @contextmanager
    def _cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        own: duckdb.DuckDBPyConnection | None = None
        try:
            if self._transaction is None:
                own = self._cursors()
                yield own
            else:
                yield self._transaction
        except duckdb.Error as error:
            told = translated(error)
            if isinstance(told, IoError | InternalError):
                self._has_fallen()
            raise told from error
        finally:
            if own is not None:
                own.close()


def slot_of(key: Key) -> int:
    """The row that is touched for a key. Two keys may share a row, which costs a needless retry."""
    return zlib.crc32(repr(key).encode()) % CHECKPOINT_SLOTS


class _Rows(CheckpointStore):
    """A scope's rows, visible to a cursor."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, scope: Scope) -> None:
        self._cursor = cursor
        self._scope = scope
        self.added_bytes = 0  # size of the last written form

    def streams(self) -> Sequence[str]:
        sql = f"SELECT DISTINCT key FROM {TABLE} WHERE {self._scope.sql}"
        return sorted(key for (key,) in self._cursor.execute(sql).fetchall())

    def sequences(self, stream: str) -> Sequence[int]:
        sql = f"SELECT sequence FROM {TABLE} WHERE {self._of(stream)} ORDER BY sequence"
        return [sequence for (sequence,) in self._cursor.execute(sql).fetchall()]

    def read(self, stream: str, sequence: int) -> CheckpointState | None:
        sql = f"SELECT state FROM {TABLE} WHERE {self._of(stream)} AND sequence = {int(sequence)}"
        rows = self._cursor.execute(sql).fetchall()
        if not rows:
            return None
        try:
            return check_place(from_bytes(rows[0][0] or b""), stream, sequence)
        except DataCorrupted as damage:
            raise damaged_at(stream, sequence, damage) from damage

    def put(self, state: CheckpointState, gone: Sequence[int]) -> None:
        self.remove(state.stream, [state.sequence, *gone])
        self.add(state)

    def add(self, state: CheckpointState) -> None:
        """Insert a row."""
        form = to_bytes(state)
        self.added_bytes = len(form)
        position = None if state.checkpoint is None else state.checkpoint.position
        self._cursor.execute(
            f"INSERT INTO {TABLE} (stream_id, group_id, key, sequence, created_at, position_type, position, "
            f"watermark_ns, event_count, state) VALUES ({self._scope.stream_id}, {self._scope.group_id}, "
            "$1, $2, make_timestamptz($3), $4, $5, $6, $7, $8)",
            [
                state.stream,
                state.sequence,
                state.created_us,
                None if position is None else position.kind,
                None if position is None else str(position),
                state.watermark_ns,
                state.event_count,
                form,
            ],
        ).fetchall()

    def remove(self, stream: str, sequences: Sequence[int]) -> int:
        listed = ", ".join(str(int(sequence)) for sequence in sequences)
        sql = f"DELETE FROM {TABLE} WHERE {self._of(stream)} AND sequence IN ({listed})"
        [(count,)] = self._cursor.execute(sql).fetchall()
        return int(count)

    def _of(self, stream: str) -> str:
        return f"{self._scope.sql} AND key = {literal(stream)}"


@dataclass(frozen=True, slots=True)
class Known:
    """The newest cached checkpoint of a key.

    Args:
        newest: the checkpoint, without its operator states and metadata.
        unpruned: the largest possible number of rows beyond the kept ones.
    """

    newest: CheckpointState
    unpruned: int


class Saved:
    """The cache of the newest checkpoints; accessed under `mutex`."""

    def __init__(self) -> None:
        self.mutex = threading.Lock()  # two transactions that touch one row fail in DuckDB
        self._known: OrderedDict[Key, Known] = OrderedDict()
        self._touched: set[Key] = set()

    def take(self, key: Key) -> Known | None:
        """The entry of a key, which is removed until it is put back."""
        return None if key in self._touched else self._known.pop(key, None)

    def put(self, key: Key, state: CheckpointState, size: int, unpruned: int) -> None:
        """Cache a saved state of `size` bytes as the newest of its key."""
        if size <= KNOWN_BYTES_MAX:
            self._known[key] = Known(replace(state, operator_states={}, metadata={}), unpruned)
            if len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)

    def forget(self) -> None:
        """Clear the cache after a removal."""
        self._known.clear()

    def touched(self, key: Key) -> None:
        """Record that a user's transaction changes a key.

        It does not take the mutex, which may be held by a session that it waits for.
        """
        self._touched.add(key)
