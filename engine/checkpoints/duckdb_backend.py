"""Checkpoints in the database itself: table `ducktail.checkpoint_states`, the default.

A row has the state's binary form, and beside it what is told to people. Rows belong to a scope: a stream of
the database, under its number, so that RENAME keeps them, DROP takes them along in its own transaction, and a
stream that is made again under the same name does not find them; with a group's number they go with the
group as well. Scope 0 is of nothing in the database: for jobs on other sources.

Outside a transaction each call is one of its own on a cursor of the engine's, and durable once it returns.
`within` binds it to a transaction that is under way: what it saves and takes away is then part of that.

Source: docs/design/checkpoints.md, "In DuckDB".
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import duckdb

from ..duckdb_errors import translated
from ..errors import DataCorrupted, InternalError, IoError, UndefinedObject
from ..quoting import literal
from ..storage.schema import SCHEMA
from ..whole import whole
from .backend import KEEP, Report, report_to_log
from .binary_form import from_bytes, to_bytes
from .kept import KeptBackend, Place, check_place, damaged_at
from .state import CheckpointState

TABLE = f"{SCHEMA}.checkpoint_states"

Cursors = Callable[[], duckdb.DuckDBPyConnection]


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose checkpoints they are.

    Args:
        stream_id: of the stream whose they are; 0 for no stream of the database.
        group_id: of the consumer group that the consumer is of; 0 for none.
    """

    stream_id: int = 0
    group_id: int = 0

    @property
    def sql(self) -> str:
        """What its rows have in common."""
        return f"stream_id = {self.stream_id} AND group_id = {self.group_id}"


class DuckdbBackend(KeptBackend):
    """See the head of the file, and `Backend`.

    Args:
        cursors: makes a cursor on which nothing is under way; it is closed after each call.
        mutex: one for the database: two transactions that touch one row fail in DuckDB.
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
        mutex: threading.Lock,
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
        self._mutex = mutex
        self._scope = scope
        self._stands = stands
        self._has_fallen = has_fallen
        self._transaction = transaction

    def within(self, cursor: duckdb.DuckDBPyConnection) -> DuckdbBackend:
        """The same within the transaction that is open on a cursor; used by that transaction's thread."""
        return DuckdbBackend(
            self._cursors,
            self._mutex,
            self._scope,
            keep=self._keep,
            report=self._report,
            stands=self._stands,
            has_fallen=self._has_fallen,
            transaction=cursor,
        )

    @contextmanager
    def _reading(self) -> Iterator[Place]:
        with self._cursor() as cursor:
            yield _Rows(cursor, self._scope)

    @contextmanager
    def _writing(self) -> Iterator[Place]:
        if self._transaction is not None:
            with self._reading() as place:
                yield place
            return
        with self._mutex, self._cursor() as cursor:
            if not self._stands():
                raise UndefinedObject("the stream or the group of these checkpoints has been dropped")
            with whole(cursor):
                yield _Rows(cursor, self._scope)

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


class _Rows:
    """A scope's rows, as a cursor sees them."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, scope: Scope) -> None:
        self._cursor = cursor
        self._scope = scope

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
        form = to_bytes(state)
        self.remove(state.stream, [state.sequence, *gone])
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
