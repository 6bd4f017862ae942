"""Checkpoints in the database itself: table `ducktail.checkpoint_states`, the default backend.

A row has the state's binary form, and beside it columns for people to read. Rows belong to a scope: a
stream of the database, under its number, so that RENAME keeps them, DROP removes them in its own
transaction, and a stream that is made again under the same name does not find them; with a group's number
they go with the group as well. Scope 0 is of nothing in the database: for jobs on other sources.

Outside a transaction each call is a transaction of its own on a cursor of the engine's, and durable once it
returns. `within` binds the backend to a transaction that is open: its saves and removals are then part of
that.

`Saved` knows the newest checkpoint of each key that this process has saved. A process opens a database
alone, and a save outside a user's transaction holds `mutex`. So the last state need not be read again to
check that the next one goes forward, and that save can be a single INSERT. Uncertain knowledge is dropped:
a key that a user's transaction has touched is never known again (the transaction may be rolled back, and
does not commit under the mutex), and a removal of checkpoints forgets all keys. Source:
docs/design/checkpoints.md, "In DuckDB".
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
# So many rows may stand beyond those that are kept until a save takes them all away.
UNPRUNED_MAX = 16
# Larger ones are read again, and what is too old goes with each save: neither memory nor the file grows.
KNOWN_BYTES_MAX = 32 << 10
KNOWN_MAX = 1000


@dataclass(frozen=True, slots=True)
class Scope:
    """The owner of checkpoints: a stream, a group of it, or nothing in the database.

    Args:
        stream_id: of the stream whose they are; 0 for no stream of the database.
        group_id: of the consumer group that the consumer is of; 0 for none.
    """

    stream_id: int = 0
    group_id: int = 0

    @property
    def sql(self) -> str:
        """The SQL condition that its rows have in common."""
        return f"stream_id = {self.stream_id} AND group_id = {self.group_id}"


class DuckdbBackend(Backend):
    """See the head of the file, and `Backend`.

    Args:
        cursors: makes a cursor on which nothing is under way; it is closed after each call.
        saved: one for the database.
        stands: whether the scope's stream and group are there; asked under the mutex before a state is
            written, but not within a transaction, which may have made them itself.

        has_fallen: asked where DuckDB has met an I/O error: whether it has given the database up.

    Further errors of all calls:
        SerializationFailure: 40001, within a transaction: another one has changed the same.
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
        """The same within the transaction that is open on a cursor; used by that transaction's thread."""
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
        # Within a transaction `_change` has seen to it that no other one changes the same.
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
        """A cursor while nobody else of the process saves."""
        with self._saved.mutex, self._cursor() as cursor:
            if not self._stands():
                raise UndefinedObject("the stream or the group of these checkpoints has been dropped")
            yield cursor

    def save(self, state: CheckpointState, *, rewind: bool = False) -> None:
        """Keep a state; one INSERT where it goes forward from what this process has saved last."""
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
        """Take one away; False where it was not there."""
        self._change(stream)
        return super().delete(stream, sequence)

    def _remove(self, stream: str, before: int | None) -> int:
        self._change(stream)
        return super()._remove(stream, before)

    def _change(self, stream: str) -> None:
        """Within a transaction, meet others that change this key's: two new rows would not."""
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
    """The row that is touched for a key. Two keys of one row count as one; another attempt mends that."""
    return zlib.crc32(repr(key).encode()) % CHECKPOINT_SLOTS


class _Rows(CheckpointStore):
    """A scope's rows, as a cursor sees them."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, scope: Scope) -> None:
        self._cursor = cursor
        self._scope = scope
        self.added_bytes = 0  # the form of the state that was written last

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
        """A row more."""
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
    """The newest of a key.

    Args:
        newest: it, without its operator states and metadata.
        unpruned: rows that may stand beyond those that are kept.
    """

    newest: CheckpointState
    unpruned: int


class Saved:
    """See the head of the file; what is known is asked and told under `mutex`."""

    def __init__(self) -> None:
        self.mutex = threading.Lock()  # two transactions that touch one row fail in DuckDB
        self._known: OrderedDict[Key, Known] = OrderedDict()
        self._touched: set[Key] = set()

    def take(self, key: Key) -> Known | None:
        """The knowledge of a key, which is forgotten until it is put back."""
        return None if key in self._touched else self._known.pop(key, None)

    def put(self, key: Key, state: CheckpointState, size: int, unpruned: int) -> None:
        """A state of so many bytes was saved, and is the newest of its key."""
        if size <= KNOWN_BYTES_MAX:
            self._known[key] = Known(replace(state, operator_states={}, metadata={}), unpruned)
            if len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)

    def forget(self) -> None:
        """Something was taken away."""
        self._known.clear()

    def touched(self, key: Key) -> None:
        """A transaction of its own changes a key; without the mutex, which whom it waits for may hold."""
        self._touched.add(key)
