"""Committed LSNs: cached in memory, written to DuckDB before they are acknowledged.

DuckDB syncs once per commit and refuses two transactions that touch one row. Commits are therefore appended,
one row each, and commits that arrive together are written in one transaction: by a session if no other is
writing, else by the committer thread. Rows overtaken by later ones are deleted from time to time. A commit of
offsets inside a user's transaction is written by that transaction instead, under the group's lock; requests
for such a group are left for the committer's next batch.

The cache is only changed after DuckDB's COMMIT has returned. Source: docs/design/engine.md,
"Offsets".
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache

import duckdb

from ..clock import Clock
from ..duck.cursors import with_memory
from ..duck.duckdb_errors import translated
from ..errors import (
    AdminShutdown,
    DucktailError,
    InvalidParameterValue,
    IoError,
    SerializationFailure,
    UndefinedObject,
    WrongState,
)
from ..quoting import literal
from ..schema import SCHEMA

logger = logging.getLogger(__name__)

# Requests that wait for the committer; a session has at most one, so sessions bound it as well.
REQUESTS_MAX = 100_000
# The longest time that the first request of a batch waits for others: as long as writing one takes.
GATHER_S = 0.001
# Overtaken rows in offset_log before they are folded away: some 10 MB.
FOLD_ROWS = 100_000
# The group id of the row that a drop leaves: the numbers of offset commits must not go back when the rows of
# a group are deleted. Ids of groups count from 1.
DROPPED = 0
# The committer's own number among the sessions that hold groups: sessions count from 1.
COMMITTER = 0


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """A group's position in one partition: the last LSN that it has processed, the time and the user.

    `seq` is the number of its row of offset_log.
    """

    lsn: int
    committed_at_us: int
    committed_by: str
    seq: int


# A user's name in JSON, cached: the same few users commit all the time.
_quoted = lru_cache(1024)(json.dumps)


@dataclass(frozen=True, slots=True)
class Move:
    """One commit of one group, a row of offset_log: partition -> LSN for the partitions that move.

    A row has few columns, with its facts as JSON, because DuckDB's cost of a small INSERT grows with the
    columns.
    """

    seq: int
    group_id: int
    lsns: Mapping[int, int]
    committed_at_us: int
    committed_by: str

    @property
    def entry(self) -> str:
        """The row's JSON: positions, time (microseconds since 1970) and user."""
        # Formatted here, as each commit is a row: an encoder takes three times as long.
        lsns = ", ".join([f'"{partition}": {lsn}' for partition, lsn in self.lsns.items()])
        return f'{{"lsns": {{{lsns}}}, "at": {self.committed_at_us}, "by": {_quoted(self.committed_by)}}}'

    @classmethod
    def read(cls, seq: int, group_id: int, entry: str) -> Move:
        """The move in a row of offset_log."""
        facts = json.loads(entry)
        lsns = {int(partition): lsn for partition, lsn in facts["lsns"].items()}
        return cls(seq, group_id, lsns, facts["at"], facts["by"])


@dataclass(frozen=True, slots=True)
class Request:
    """Offsets to be committed outside a transaction.

    Args:
        seeks: for a read position: the number of SEEKs of the group when it was read; None for a position
            given by number.
    """

    group_id: int
    group_name: str
    lsns: Mapping[int, int]
    committed_by: str
    done: Future[None]
    seeks: int | None = None


def going_back(group_name: str, partition: int, lsn: int, committed: int) -> InvalidParameterValue:
    """The error for a commit behind the committed LSN."""
    return InvalidParameterValue(
        f'offset {lsn} of partition {partition} is behind what consumer group "{group_name}" '
        f"has committed, {committed}",
        hint="A committed LSN never goes back by COMMIT OFFSET.",
    )


def moved_by_seek(group_name: str) -> WrongState:
    """The error for a commit of a read position from before a SEEK."""
    return WrongState(
        f'consumer group "{group_name}" has no read position: SEEK has moved the group',
        hint="Read again, or give the positions: COMMIT OFFSETS AT '{...}'.",
    )


def insert_sql(moves: Sequence[Move]) -> str:
    """The INSERT of moves; the caller holds their groups."""
    rows = ", ".join(f"({move.seq}, {move.group_id}, {literal(move.entry)})" for move in moves)
    return f"INSERT INTO {SCHEMA}.offset_log VALUES {rows}"


class Offsets:
    """All groups' positions, and the committer thread.

    Args:
        check: called before a batch is written; raises IoError if the batch could not be acknowledged.
        written: called with the number of the last offset commit of a batch, once it is durable and before
            it is acknowledged.
        seeks: `all_seeks` of the previous Offsets, if the file was reopened.
    """

    def __init__(
        self,
        cursor: duckdb.DuckDBPyConnection,
        clock: Clock,
        check: Callable[[], None],
        written: Callable[[int], None],
        seeks: Mapping[int, int],
    ) -> None:
        self._cursor = cursor
        self._check = check
        self._written = written
        self._clock = clock
        self._writing = threading.Lock()  # guards the cursor
        self._condition = threading.Condition()  # guards all below
        self._queue: deque[Request] = deque()
        self._passed: dict[tuple[int, int], tuple[int, int]] = {}  # see `passed`
        self._seeks = dict(seeks)  # group id -> number of SEEKs since the open
        self._positions: dict[int, dict[int, GroupPosition]] = {DROPPED: {}}
        self._holders: dict[int, int] = {}  # group id -> session id, or COMMITTER
        self._waiters: dict[int, deque[tuple[int, Future[None]]]] = {}
        self._away: set[tuple[int, int]] = set()  # see `seal`
        self._closing = False
        self._together = 1  # requests of the last batch
        self._wanted = 1  # requests with which the committer goes on
        self._rows = 0
        self._kept = 0
        self._seq = 0
        self._load()
        self._appender = self._new_appender()
        self._thread = threading.Thread(target=self._run, name="ducktail-committer", daemon=True)
        self._thread.start()

    def _load(self) -> None:
        rows = self._cursor.execute(
            f"SELECT seq, group_id, entry FROM {SCHEMA}.offset_log ORDER BY seq"
        ).fetchall()
        for row in rows:
            move = Move.read(*row)
            self._positions.setdefault(move.group_id, {})
            self._apply(move)
            self._seq = move.seq
        for group_id, partition, lsn, position in self._cursor.execute(
            f"SELECT group_id, partition, lsn, position FROM {SCHEMA}.passed_positions"
        ).fetchall():
            self._passed[group_id, partition] = (lsn, position)

    def positions(self, group_id: int) -> dict[int, GroupPosition]:
        """A copy of a group's positions, by partition."""
        with self._condition:
            return dict(self._positions.get(group_id, {}))

    def glimpse(self, group_id: int) -> dict[int, GroupPosition]:
        """A copy of a group's positions, without waiting for the committer."""
        return dict(self._positions.get(group_id, {}))

    def seeks(self, group_id: int) -> int:
        """The number of SEEKs of a group since the database was opened."""
        with self._condition:
            return self._seeks.get(group_id, 0)

    def all_seeks(self) -> dict[int, int]:
        """Group id -> number of its SEEKs, for the groups that have any."""
        with self._condition:
            return dict(self._seeks)

    def seeked(self, group_id: int) -> int:
        """Count a SEEK of a group; returns the new number."""
        with self._condition:
            self._seeks[group_id] = self._seeks.get(group_id, 0) + 1
            return self._seeks[group_id]

    def passed(self, group_id: int, partition: int, lsn: int, position: int) -> None:
        """Note a committed LSN that retention has passed.

        Args:
            position: number of the partition's events at or before the LSN.
        """
        with self._condition:
            self._passed[group_id, partition] = (lsn, position)

    def passed_positions(self, group_id: int, lsns: Mapping[int, int]) -> dict[int, int]:
        """Partition -> number of its events at or before its committed LSN, where retention has passed it."""
        if not self._passed:
            return {}
        with self._condition:
            found = {partition: self._passed.get((group_id, partition)) for partition in lsns}
        return {p: place[1] for p, place in found.items() if place is not None and place[0] == lsns[p]}

    def seal(self, group_ids: Iterable[int], partitions: Iterable[int]) -> None:
        """Refuse further moves of these groups in these partitions: another node has them.

        Commits that are being written have been written when this returns.
        """
        with self._writing, self._condition:
            self._away |= {(group_id, partition) for partition in partitions for group_id in group_ids}

    def unseal(self, partitions: Iterable[int], group_ids: Iterable[int]) -> None:
        """Allow moves in partitions that belong to this node again."""
        with self._condition:
            self._away -= {(group_id, partition) for partition in partitions for group_id in group_ids}

    def check_sealed(self, group_id: int, partitions: Iterable[int]) -> None:
        """Refuse to move a group in a partition that another node has.

        Raises:
            SerializationFailure: another node has one of the partitions.
        """
        for partition in partitions:
            if (group_id, partition) in self._away:
                raise SerializationFailure(
                    f"partition {partition} has moved to another node", hint="Try again: its owner answers."
                )

    def move(self, group_id: int, lsns: Mapping[int, int], by: str) -> Move:
        """A commit with the next number; the caller holds the group until it is written."""
        with self._condition:
            self._seq += 1
            return Move(self._seq, group_id, lsns, self._clock.now_us(), by)

    def tombstone(self) -> Move:
        """The row that a drop leaves; the caller writes it with the drop."""
        return self.move(DROPPED, {0: 0}, "")

    def writing(self) -> AbstractContextManager[object]:
        """A context that excludes other writers of offset commits, so that numbers commit in order."""
        return self._writing

    # Commits outside a transaction.

    def submit(self, request: Request) -> None:
        """Commit offsets: at once if no other session is writing, else with the committer's next batch.

        `request.done` is done when they are durable. It fails with InvalidParameterValue if an LSN goes back,
        and with UndefinedObject if the group was dropped. Runs DuckDB.
        """
        if self._writing.acquire(blocking=False):
            try:
                with self._condition:
                    batch = [] if self._queue or not self._free(request) else [request]
                    self._hold(batch)
                if batch:
                    self._write(batch)
                    return
            finally:
                self._writing.release()
        self.enqueue(request)

    def enqueue(self, request: Request) -> None:
        """Commit offsets with the committer's next batch, as in `submit`; does not run DuckDB."""
        with self._condition:
            assert len(self._queue) < REQUESTS_MAX, "a session has one commit under way"
            if self._closing:
                self._answer(request, AdminShutdown("the database is being closed"))
                return
            self._queue.append(request)
            if len(self._queue) >= self._wanted:
                self._condition.notify_all()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not (self._closing or any(map(self._free, self._queue)) or self._many_rows()):
                    self._condition.wait()
                self._gather()
                closing = self._closing
            with self._writing:
                with self._condition:
                    batch = [request for request in self._queue if self._free(request)]
                    self._queue = deque(r for r in self._queue if not self._free(r))
                    self._hold(batch)
                    self._together = len(batch)
                if batch:
                    self._write(batch)
            if self._many_rows():
                try:
                    self.fold()
                except duckdb.Error:
                    logger.exception("folding committed offsets")
                    self._kept = self._rows
            if closing and not batch:
                break
        for request in self._queue:
            self._answer(request, AdminShutdown("the database is being closed"))

    def _gather(self) -> None:
        """Wait a little for requests: sessions that have committed together tend to do so again.

        A batch costs the same at any size, so sessions that come while the first of them is being written
        would wait for two batches.
        """
        self._wanted = self._together
        self._condition.wait_for(lambda: self._closing or len(self._queue) >= self._wanted, GATHER_S)
        self._wanted = 1

    def _free(self, request: Request) -> bool:
        return request.group_id not in self._holders

    def _hold(self, batch: Sequence[Request]) -> None:
        for request in batch:
            self._holders[request.group_id] = COMMITTER

    def _write(self, batch: Sequence[Request]) -> None:
        """Append a batch's valid requests in one transaction, change the cache, complete the requests."""
        moves: dict[int, dict[int, int]] = {}
        good: list[Request] = []
        for request in batch:
            try:
                new = self._checked(request, moves.get(request.group_id, {}))
            except DucktailError as refused:
                self._answer(request, refused)
                continue
            if new:
                moves.setdefault(request.group_id, {}).update(new)
            good.append(request)
        by = {request.group_id: request.committed_by for request in good}
        rows = [self.move(group_id, lsns, by[group_id]) for group_id, lsns in moves.items()]
        error = self._insert(rows) if rows else None
        if rows and error is None:
            self._written(rows[-1].seq)
        with self._condition:
            if error is None:
                for row in rows:
                    self._apply(row)
            for group_id in {request.group_id for request in batch}:
                self._pass_on(group_id)
        for request in good:
            self._answer(request, error)

    def _checked(self, request: Request, moves: Mapping[int, int]) -> dict[int, int]:
        """The LSNs of a request that move a position; an equal LSN is accepted without effect."""
        with self._condition:
            known = self._positions.get(request.group_id)
            if known is None:
                raise UndefinedObject(f'consumer group "{request.group_name}" does not exist')
            self.check_sealed(request.group_id, request.lsns)
            if request.seeks is not None and request.seeks != self._seeks.get(request.group_id, 0):
                raise moved_by_seek(request.group_name)
            standing = {
                partition: moves[partition] if partition in moves else known[partition].lsn
                for partition in request.lsns
            }
        new: dict[int, int] = {}
        for partition, lsn in request.lsns.items():
            if lsn < standing[partition]:
                raise going_back(request.group_name, partition, lsn, standing[partition])
            if lsn > standing[partition]:
                new[partition] = lsn
        return new

    def _insert(self, rows: Sequence[Move]) -> DucktailError | None:
        try:
            self._check()
        except IoError as error:
            return error
        try:
            with_memory(lambda: self._append(rows))
        except duckdb.Error as error:
            return translated(error)
        return None

    def _append(self, rows: Sequence[Move]) -> None:
        try:
            for row in rows:
                self._appender.append_row(row.seq, row.group_id, row.entry)
            # A flush outside a transaction is one of its own: durable when it returns.
            self._appender.flush()
        except duckdb.Error:
            try:
                self._appender.clear()
                self._appender = self._new_appender()
            except duckdb.Error:
                logger.exception("the committer cannot write")
            raise

    def _new_appender(self) -> duckdb.Appender:
        """An appender skips parsing and planning, a third of what a small INSERT costs."""
        return self._cursor.appender(f"{SCHEMA}.offset_log")

    @staticmethod
    def _answer(request: Request, error: DucktailError | None) -> None:
        if not request.done.set_running_or_notify_cancel():
            return
        if error is None:
            request.done.set_result(None)
        else:
            request.done.set_exception(error)

    def _apply(self, move: Move) -> None:
        group = self._positions.get(move.group_id)
        if group is not None:
            for partition, lsn in move.lsns.items():
                known = group.get(partition)
                if known is None or known.seq < move.seq:
                    group[partition] = GroupPosition(lsn, move.committed_at_us, move.committed_by, move.seq)
        self._rows += 1

    def _many_rows(self) -> bool:
        return self._rows > self._kept + FOLD_ROWS

    def fold(self) -> None:
        """Delete the rows whose every position a later one has overtaken."""
        with self._condition:
            # Only groups that nobody holds: a transaction that has committed in DuckDB and has not yet called
            # `applied` has rows that look overtaken. Later rows have later numbers.
            through = self._seq
            groups = {g: p for g, p in self._positions.items() if g not in self._holders}
            live = {position.seq for positions in groups.values() for position in positions.values()}
            # A drop may have committed and not yet called `drop_groups`: its row, the latest, has to stay.
            dropped = max((position.seq for position in groups.pop(DROPPED).values()), default=0)
        known, kept = (", ".join(map(str, sorted(numbers))) or "NULL" for numbers in (groups, live))
        with self._writing:
            try:
                self._cursor.execute(
                    f"DELETE FROM {SCHEMA}.offset_log WHERE seq <= {through} "
                    f"AND group_id IN ({known}) AND seq NOT IN ({kept}) "
                    f"OR group_id = {DROPPED} AND seq < {dropped}"
                ).fetchall()
            except duckdb.TransactionException:
                pass  # A transaction that drops a group deletes the same rows: the next fold gets them.
        with self._condition:
            # Rows that could not be folded count as kept too: the next fold comes with new rows.
            self._rows = self._kept = len(live)

    # Commits inside a transaction.

    def lock(self, group_id: int, session_id: int) -> Future[None] | None:
        """Hold a group for a committing transaction.

        Returns:
            None if the group is held now; else a future that is done once it is.
        """
        with self._condition:
            holder = self._holders.get(group_id)
            if holder is None or holder == session_id:
                self._holders[group_id] = session_id
                return None
            future: Future[None] = Future()
            self._waiters.setdefault(group_id, deque()).append((session_id, future))
            return future

    def unlock(self, group_ids: Iterable[int], session_id: int) -> None:
        """Release groups, and places in the queue for them."""
        with self._condition:
            for group_id in group_ids:
                waiters = self._waiters.get(group_id)
                if waiters:
                    self._waiters[group_id] = deque(w for w in waiters if w[0] != session_id)
                if self._holders.get(group_id) == session_id:
                    self._pass_on(group_id)

    def _pass_on(self, group_id: int) -> None:
        """Give a group to its first waiter; the committer's queue comes after transactions."""
        waiters = self._waiters.pop(group_id, deque())
        while waiters:
            session_id, future = waiters.popleft()
            if future.set_running_or_notify_cancel():
                self._holders[group_id] = session_id
                if waiters:
                    self._waiters[group_id] = waiters
                future.set_result(None)
                return
        self._holders.pop(group_id, None)
        if self._queue or self._many_rows():
            self._condition.notify_all()

    def applied(self, moves: Iterable[Move]) -> None:
        """Apply the moves of a transaction that has committed."""
        with self._condition:
            for move in moves:
                self._apply(move)

    def add_group(self, move: Move) -> None:
        """Add a new group, at the positions of its first move."""
        with self._condition:
            self._positions[move.group_id] = {}
            self._apply(move)

    def drop_groups(self, group_ids: Iterable[int], tombstone: Move) -> None:
        """Remove dropped groups; `tombstone` is the row that their drop has written."""
        with self._condition:
            self._apply(tombstone)
            for group_id in group_ids:
                self._positions.pop(group_id, None)
                self._seeks.pop(group_id, None)
                for key in [key for key in self._passed if key[0] == group_id]:
                    del self._passed[key]

    def close(self) -> None:
        """Write the submitted requests and end the committer."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        self._thread.join()
