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
from functools import partial

import duckdb

from ..duckdb_errors import translated
from ..errors import DataCorrupted, UndefinedObject
from ..quoting import literal
from ..storage.schema import SCHEMA
from ..whole import whole
from .backend import KEEP, Report, check_forward, check_keep, report_to_log
from .binary_form import damaged, from_bytes, to_bytes
from .bounds import check_key
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


class DuckdbBackend:
    """See the head of the file, and `Backend`.

    Args:
        cursors: makes a cursor in UTC on which nothing is under way; it is closed after each call.
        mutex: one for the database: two transactions that touch one row fail in DuckDB.
        stands: whether the scope's stream and group are there; asked under the mutex before a state is
            written, but not within a transaction, which may have made them itself.

    Further errors of all calls:
        SerializationFailure: 40001, within a transaction: another one has changed the same.
        UndefinedObject: 42704, the stream has been dropped.
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
    ) -> None:
        self._cursors = cursors
        self._mutex = mutex
        self._scope = scope
        self._keep = check_keep(keep)
        self._report = report
        self._stands = stands
        self._transaction: duckdb.DuckDBPyConnection | None = None

    def within(self, cursor: duckdb.DuckDBPyConnection) -> DuckdbBackend:
        """The same within the transaction that is open on a cursor; used by that transaction's thread."""
        bound = DuckdbBackend(
            self._cursors,
            self._mutex,
            self._scope,
            keep=self._keep,
            report=self._report,
            stands=self._stands,
        )
        bound._transaction = cursor
        return bound

    def save(self, state: CheckpointState, *, rewind: bool = False) -> None:
        """Keep a state, in one transaction with what it replaces and pushes out."""
        form = to_bytes(state)
        of = self._of(state.stream)
        with self._writing() as cursor:
            if rewind:
                cursor.execute(f"DELETE FROM {TABLE} WHERE {of} AND sequence > {state.sequence}").fetchall()
            else:
                present = partial(self._read, cursor, state.stream)
                stored = self._sequences(cursor, state.stream)
                found = next(present(state.sequence), None) if state.sequence in stored else None
                check_forward(state, stored, next(present(), None), found)
            cursor.execute(f"DELETE FROM {TABLE} WHERE {of} AND sequence = {state.sequence}").fetchall()
            position = state.checkpoint and state.checkpoint.position
            cursor.execute(
                f"INSERT INTO {TABLE} (stream_id, group_id, key, sequence, created_at, position_type, "
                "position, watermark_ns, event_count, state) "
                f"VALUES ({self._scope.stream_id}, {self._scope.group_id}, $1, $2, make_timestamptz($3), $4, "
                "$5, $6, $7, $8)",
                [
                    state.stream,
                    state.sequence,
                    state.created_us,
                    position and position.kind,
                    position and str(position),
                    state.watermark_ns,
                    state.event_count,
                    form,
                ],
            ).fetchall()
            cursor.execute(
                f"DELETE FROM {TABLE} WHERE {of} AND sequence <= (SELECT sequence FROM {TABLE} WHERE {of} "
                f"ORDER BY sequence DESC LIMIT 1 OFFSET {self._keep})"
            ).fetchall()

    def load(self, stream: str, sequence: int) -> CheckpointState | None:
        """One state."""
        sql = f"SELECT state FROM {TABLE} WHERE {self._of(stream)} AND sequence = $1"
        with self._reading() as cursor:
            rows = cursor.execute(sql, [sequence]).fetchall()
        return _state_of(stream, sequence, rows[0][0]) if rows else None

    def latest(self, stream: str) -> CheckpointState | None:
        """The newest that is intact."""
        with self._reading() as cursor:
            return next(self._read(cursor, stream), None)

    def list(self, stream: str) -> Sequence[int]:
        """The sequences that are there."""
        with self._reading() as cursor:
            return self._sequences(cursor, stream)

    def all(self, stream: str) -> Sequence[CheckpointState]:
        """All that are intact."""
        with self._reading() as cursor:
            return [*self._read(cursor, stream)][::-1]

    def streams(self) -> Sequence[str]:
        """The keys of which there are checkpoints in the scope."""
        with self._reading() as cursor:
            sql = f"SELECT DISTINCT key FROM {TABLE} WHERE {self._scope.sql}"
            return sorted(key for (key,) in cursor.execute(sql).fetchall())

    def count(self, stream: str | None = None) -> int:
        """How many there are."""
        of = self._scope.sql if stream is None else self._of(stream)
        with self._reading() as cursor:
            [(count,)] = cursor.execute(f"SELECT count(*) FROM {TABLE} WHERE {of}").fetchall()
        return int(count)

    def delete(self, stream: str, sequence: int) -> bool:
        """Take one away."""
        return bool(self._delete(stream, "sequence = $1", sequence))

    def delete_before(self, stream: str, sequence: int) -> int:
        """Take away those with a lower sequence."""
        return self._delete(stream, "sequence < $1", sequence)

    def clear(self, stream: str) -> int:
        """Take away all of a stream."""
        return self._delete(stream, "sequence >= $1", 0)

    def _delete(self, stream: str, which: str, sequence: int) -> int:
        of = self._of(stream)
        with self._writing() as cursor:
            [(count,)] = cursor.execute(f"DELETE FROM {TABLE} WHERE {of} AND {which}", [sequence]).fetchall()
        return int(count)

    def _of(self, stream: str) -> str:
        return f"{self._scope.sql} AND key = {literal(check_key(stream))}"

    def _sequences(self, cursor: duckdb.DuckDBPyConnection, stream: str) -> Sequence[int]:
        sql = f"SELECT sequence FROM {TABLE} WHERE {self._of(stream)} ORDER BY sequence"
        return [sequence for (sequence,) in cursor.execute(sql).fetchall()]

    def _read(
        self, cursor: duckdb.DuckDBPyConnection, stream: str, only: int | None = None
    ) -> Iterator[CheckpointState]:
        """What is intact, newest first; what is not is reported. One state in memory at a time."""
        sequences = self._sequences(cursor, stream)[::-1] if only is None else [only]
        for sequence in sequences:
            sql = f"SELECT state FROM {TABLE} WHERE {self._of(stream)} AND sequence = {sequence}"
            for (form,) in cursor.execute(sql).fetchall():
                try:
                    state = _state_of(stream, sequence, form)
                except DataCorrupted as damage:
                    self._report(damage)
                else:
                    yield state

    @contextmanager
    def _reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        cursor = self._transaction or self._cursors()
        try:
            yield cursor
        except duckdb.Error as error:
            raise translated(error) from error
        finally:
            if self._transaction is None:
                cursor.close()

    @contextmanager
    def _writing(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A transaction of its own, or the one that is under way, with the scope's stream still there."""
        if self._transaction is not None:
            with self._reading() as cursor:
                yield cursor
            return
        with self._mutex, self._reading() as cursor:
            if not self._stands():
                raise UndefinedObject("the stream or the group of these checkpoints has been dropped")
            with whole(cursor):
                yield cursor


def _state_of(stream: str, sequence: int, form: bytes) -> CheckpointState:
    """A row's state, which must be of that row.

    Raises:
        DataCorrupted: XX001.
    """
    try:
        state = from_bytes(form)
        if (state.stream, state.sequence) != (stream, sequence):
            raise damaged(f'It says that it is number {state.sequence} of "{state.stream}".')
    except DataCorrupted as error:
        raise DataCorrupted(
            f'checkpoint {sequence} of "{stream}" is damaged', detail=error.detail
        ) from error
    return state
