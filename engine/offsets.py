"""Committed LSNs: cached in memory, written to DuckDB before they are acknowledged.

DuckDB syncs once a commit and refuses two transactions that touch one row, so one thread, the
committer, appends all that has arrived in one transaction; rows that a later one overtakes are
folded away now and then. A commit of offsets inside a user's transaction is written by that
transaction instead, under the group's lock; the committer leaves such a group for its next batch.

The cache is only changed after DuckDB's COMMIT has returned. Source: docs/design/engine.md,
"Offsets".
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import duckdb

from .clock import Clock
from .duckdb_errors import translated
from .errors import DucktailError, InvalidParameterValue, UndefinedObject
from .quoting import literal
from .schema import SCHEMA

# Requests that wait for the committer; a session has at most one, so sessions bound it as well.
REQUESTS_MAX = 100_000
# Overtaken rows in offset_log before the committer folds them: some 5 MB.
FOLD_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class Position:
    """A group's place in one partition: the last LSN that it has processed, and who said so when."""

    lsn: int
    committed_at_us: int
    committed_by: str


@dataclass(frozen=True, slots=True)
class Request:
    """Offsets to be committed outside a transaction."""

    group_id: int
    group_name: str
    lsns: Mapping[int, int]
    committed_by: str
    done: Future[None]


def going_back(group_name: str, partition: int, lsn: int, committed: int) -> InvalidParameterValue:
    """The error of a commit behind what is committed."""
    return InvalidParameterValue(
        f'offset {lsn} of partition {partition} is behind what consumer group "{group_name}" '
        f"has committed, {committed}",
        hint="A committed LSN never goes back by COMMIT OFFSET.",
    )


class Offsets:
    """All groups' positions, and the committer thread that writes them."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, clock: Clock) -> None:
        self._cursor = cursor
        self._clock = clock
        self._condition = threading.Condition()
        self._queue: deque[Request] = deque()
        self._positions: dict[int, dict[int, Position]] = {}
        self._locked: dict[int, int] = {}  # group id -> session id
        self._lock_waiters: dict[int, deque[tuple[int, Future[None]]]] = {}
        self._closing = False
        self._rows = 0
        self._live_rows = 0
        self.seq = 0
        self._load()
        self._thread = threading.Thread(target=self._run, name="ducktail-committer", daemon=True)
        self._thread.start()

    def _load(self) -> None:
        rows = self._cursor.execute(
            f"SELECT seq, group_id, partition, committed_lsn, epoch_us(committed_at), committed_by "
            f"FROM {SCHEMA}.offset_log ORDER BY seq"
        ).fetchall()
        for seq, group_id, partition, lsn, at_us, by in rows:
            self._positions.setdefault(group_id, {})[partition] = Position(lsn, at_us, by)
            self.seq = seq
        self._rows = len(rows)

    def positions(self, group_id: int) -> dict[int, Position]:
        """A copy of a group's positions, by partition."""
        with self._condition:
            return dict(self._positions.get(group_id, {}))

    # Commits outside a transaction.

    def submit(self, request: Request) -> None:
        """Queue offsets for the committer; `request.done` tells when they are durable.

        The future fails with 22023 where an LSN goes back, 42704 where the group is gone.
        """
        with self._condition:
            assert len(self._queue) < REQUESTS_MAX, "a session has one commit under way"
            self._queue.append(request)
            self._condition.notify_all()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not (self._closing or any(self._free(r) for r in self._queue)):
                    self._condition.wait()
                batch = self._take()
                if not batch and self._closing:
                    return
            self._write(batch)
            if self._rows > FOLD_ROWS + self._count():
                self.fold()

    def _free(self, request: Request) -> bool:
        return request.group_id not in self._locked

    def _take(self) -> list[Request]:
        """The requests whose groups no transaction holds; these groups are the committer's now."""
        batch = [request for request in self._queue if self._free(request)]
        self._queue = deque(request for request in self._queue if not self._free(request))
        for request in batch:
            self._locked[request.group_id] = 0
        return batch

    def _write(self, batch: list[Request]) -> None:
        """Append what holds of a batch, in one transaction; then the cache, then the answers."""
        moves: dict[tuple[int, int], Position] = {}
        good: list[Request] = []
        now_us = self._clock.now_us()
        for request in batch:
            try:
                new = self._checked(request, moves)
            except DucktailError as refused:
                self._answer(request, refused)
                continue
            for partition, lsn in new.items():
                moves[request.group_id, partition] = Position(lsn, now_us, request.committed_by)
            good.append(request)
        error = self._append_and_commit(moves)
        with self._condition:
            if error is None:
                self._apply(moves)
            for group_id in {request.group_id for request in batch}:
                self._unlock(group_id)
        for request in good:
            self._answer(request, error)

    def _checked(self, request: Request, moves: Mapping[tuple[int, int], Position]) -> dict[int, int]:
        """What of a request moves a position; equal is accepted and moves nothing."""
        known = self._positions.get(request.group_id)
        if known is None:
            raise UndefinedObject(f'consumer group "{request.group_name}" does not exist')
        new: dict[int, int] = {}
        for partition, lsn in request.lsns.items():
            standing = moves.get((request.group_id, partition)) or known[partition]
            if lsn < standing.lsn:
                raise going_back(request.group_name, partition, lsn, standing.lsn)
            if lsn > standing.lsn:
                new[partition] = lsn
        return new

    def _append_and_commit(self, moves: Mapping[tuple[int, int], Position]) -> DucktailError | None:
        if not moves:
            return None
        try:
            self._cursor.execute("BEGIN")
            self._cursor.execute(self.append_sql(moves))
            self._cursor.execute("COMMIT")
        except duckdb.Error as error:
            try:
                self._cursor.execute("ROLLBACK")
            except duckdb.Error:
                pass  # The transaction ended with the error that is answered.
            return translated(error)
        return None

    @staticmethod
    def _answer(request: Request, error: DucktailError | None) -> None:
        if not request.done.set_running_or_notify_cancel():
            return
        if error is None:
            request.done.set_result(None)
        else:
            request.done.set_exception(error)

    def append_sql(self, moves: Mapping[tuple[int, int], Position]) -> str:
        """INSERT of moved positions; the caller holds their groups' locks."""
        with self._condition:
            first = self.seq + 1
            self.seq += len(moves)
        rows = ", ".join(
            f"({seq}, {group_id}, {partition}, {new.lsn}, "
            f"make_timestamptz({new.committed_at_us}), {literal(new.committed_by)})"
            for seq, ((group_id, partition), new) in enumerate(moves.items(), first)
        )
        return f"INSERT INTO {SCHEMA}.offset_log VALUES {rows}"

    def _apply(self, moves: Mapping[tuple[int, int], Position]) -> None:
        for (group_id, partition), position in moves.items():
            self._positions[group_id][partition] = position
        self._rows += len(moves)

    def _count(self) -> int:
        return sum(map(len, self._positions.values()))

    def fold(self) -> None:
        """Delete the rows that a later one of the same group and partition has overtaken."""
        try:
            self._cursor.execute(
                f"DELETE FROM {SCHEMA}.offset_log WHERE seq NOT IN (SELECT max(seq) FROM "
                f"{SCHEMA}.offset_log GROUP BY group_id, partition)"
            ).fetchall()
        except duckdb.TransactionException:
            return  # A transaction that drops a group deletes the same rows: the next time will do.
        self._rows = self._count()

    # Commits inside a transaction.

    def lock(self, group_id: int, session_id: int) -> Future[None] | None:
        """Hold a group for a committing transaction; None when it is held now."""
        with self._condition:
            holder = self._locked.get(group_id)
            if holder is None or holder == session_id:
                self._locked[group_id] = session_id
                return None
            future: Future[None] = Future()
            self._lock_waiters.setdefault(group_id, deque()).append((session_id, future))
            return future

    def unlock(self, group_ids: Iterable[int], session_id: int) -> None:
        """Let go of groups, and of places in the queue for them."""
        with self._condition:
            for group_id in group_ids:
                waiters = self._lock_waiters.get(group_id)
                if waiters:
                    kept = deque(item for item in waiters if item[0] != session_id)
                    self._lock_waiters[group_id] = kept
                if self._locked.get(group_id) == session_id:
                    self._unlock(group_id)
            self._condition.notify_all()

    def _unlock(self, group_id: int) -> None:
        waiters = self._lock_waiters.get(group_id)
        while waiters:
            session_id, future = waiters.popleft()
            if future.set_running_or_notify_cancel():
                self._locked[group_id] = session_id
                future.set_result(None)
                return
        self._lock_waiters.pop(group_id, None)
        self._locked.pop(group_id, None)
        self._condition.notify_all()

    def applied(self, moves: Mapping[tuple[int, int], Position]) -> None:
        """A transaction that wrote these positions has committed."""
        with self._condition:
            self._apply(moves)

    def add_group(self, group_id: int, positions: Mapping[int, Position]) -> None:
        """A group has been made, at these positions."""
        with self._condition:
            self._positions[group_id] = dict(positions)
            self._rows += len(positions)

    def drop_groups(self, group_ids: Sequence[int]) -> None:
        """Groups are gone."""
        with self._condition:
            for group_id in group_ids:
                self._positions.pop(group_id, None)

    def close(self) -> None:
        """Write what has been submitted and end the committer."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        self._thread.join()
