"""Numbered commits: what they write last, what they were numbered, and what memory makes of them.

The rules that it keeps:

- LSNs and txids are handed out under the writer lock and counted up only once DuckDB's COMMIT has
  returned, so they are dense and in commit order.
- Memory (catalog, buffers, committed LSNs) changes only after DuckDB's COMMIT.
- Where a COMMIT raised it is found out whether it took effect. Where that cannot be told nobody gets
  numbers until it can: from the file that is opened again, or by asking again (`settle_doubt`).

Source: docs/design/engine.md, "One writer" and "Coming back".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass
from functools import partial

import duckdb

from ..buffers.publisher import Note, Publisher
from ..catalog.catalog import Catalog
from ..duck.binding import Parsed
from ..duck.cursors import ask_maybe, with_memory
from ..duck.duckdb_errors import translated
from ..errors import IoError
from ..groups.offsets import Move, Offsets, insert_sql
from ..schema import COMMIT_COLUMNS
from ..storage.loading import read_objects
from ..storage.side_file import SideFile
from ..waiting import Waiting
from .commit_times import CommitTimes
from .snapshots import Snapshots
from .transaction import CommitStep, Transaction

# What a COMMIT says that DuckDB neither did nor refused, as far as can be told.
UNKNOWN = "the outcome of a COMMIT is unknown"

# Each commit's line.
_LINE = Parsed(
    f"INSERT INTO ducktail.commits {COMMIT_COLUMNS} "
    "VALUES ($1::BIGINT, $2::BIGINT, $3::BIGINT, make_timestamptz($4::BIGINT), $5::VARCHAR)"
)


@dataclass(slots=True)
class Commits:
    """See the head of the file.

    Args:
        side: where commits are acknowledged; None for a database in memory.
        cursor: makes a cursor of the engine's own.
        has_fallen: whether DuckDB has given the database up; asks it.
        last_txid, last_lsn: of the last commit that was numbered.
    """

    catalog: Catalog
    snapshots: Snapshots
    offsets: Offsets
    publisher: Publisher
    side: SideFile | None
    times: CommitTimes
    cursor: Callable[[], duckdb.DuckDBPyConnection]
    has_fallen: Callable[[], bool]
    last_txid: int
    last_lsn: int
    _doubt: tuple[str, Callable[[], None]] | None = None  # what asks whether it stands, and what follows then
    captured: int = 0  # events of the commits since the database was opened

    def now_us(self) -> int:
        """The time of a commit that is made now: commit times never go back."""
        return self.times.now_us()

    def last_lsn_if_past(self, at_us: int) -> int | None:
        """The last LSN, where a time (microseconds since 1970) is one to come; None where it has passed."""
        with self.catalog.mutex:  # LSN and time of the last commit are of the same one.
            return self.last_lsn if at_us > self.now_us() else None

    def write(self, transaction: Transaction, moves: Sequence[Move]) -> int:
        """Write the last rows of a transaction: its line in `commits`, the offsets that it moves.

        Returns:
            The time of its commit, in microseconds since 1970.
        """
        commit_us = self.now_us()
        if transaction.numbered:
            numbers = (transaction.txid, transaction.base_lsn + 1, transaction.next_lsn, commit_us)
            _LINE.run(transaction.cursor, (*numbers, transaction.annotation)).fetchall()
        if moves:
            transaction.cursor.execute(insert_sql(moves))
        return commit_us

    def committed(self, transaction: Transaction, moves: Sequence[Move], commit_us: int) -> None:
        """DuckDB has committed: now memory follows."""
        if self.side is not None:
            numbers = (transaction.txid, transaction.next_lsn) if transaction.numbered else (0, 0)
            seq = moves[-1].seq if moves else 0
            self.side.acknowledge(txid=numbers[0], lsn=numbers[1], seq=seq, defines=transaction.defines)
        with self.catalog.mutex:
            if transaction.numbered:
                self.captured += transaction.next_lsn - transaction.base_lsn
                self.last_lsn, self.last_txid = transaction.next_lsn, transaction.txid
                self.times.given(commit_us)
            if transaction.tables:
                self.snapshots.committed(transaction)
            transaction.run(CommitStep.MEMORY)
        if moves:
            self.offsets.applied(moves)
        if transaction.events:
            tables = {t: (w.first_lsn, w.last_lsn) for t, w in transaction.written.items()}
            first = transaction.base_lsn + 1
            last, annotation = transaction.next_lsn, transaction.annotation
            inserts = frozenset(t for t, w in transaction.written.items() if w.inserts)
            ready = transaction.ready
            note = Note(transaction.txid, first, last, commit_us, tables, annotation, inserts, ready)
            self.publisher.put(note)
        transaction.run(CommitStep.WAKE)

    def count_objects(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """Say in the side file what streams and groups there are, behind a commit that may have changed that.

        Under the writer lock, and once memory has followed. Where they cannot be counted an opening compares
        none, up to the next such commit.
        """
        if self.side is not None:
            with suppress(duckdb.Error):
                self.side.tell(read_objects(cursor))

    def wait_readable(self) -> Waiting[None]:
        """Wait until all that is committed is readable in its streams."""
        yield from self.publisher.wait_published(self.last_lsn)

    def _note(self, txid: int, last_lsn: int, commit_us: int) -> None:
        if self.side is not None:
            self.side.acknowledge(txid=txid, lsn=last_lsn, defines=True)
        with self.catalog.mutex:
            self.last_lsn, self.last_txid = last_lsn, txid
            self.times.given(commit_us)

    # A COMMIT that raised.

    def took_effect(self, transaction: Transaction, moves: Sequence[Move], commit_us: int) -> bool:
        """Whether a COMMIT that raised took effect all the same.

        Raises:
            IoError: 58030, that cannot be told: nobody writes before it is known.
        """
        if transaction.numbered:
            sql = _numbered_sql(transaction.txid)
        elif moves:
            sql = f"SELECT count(*) FROM ducktail.offset_log WHERE seq = {moves[0].seq}"
        else:
            return False
        try:
            return self._stands(sql)
        except BaseException:
            if self.has_fallen():
                # A SEEK may have been in it: read positions from before are not to be committed.
                for group_id in transaction.offsets:
                    self.offsets.seeked(group_id)
            elif transaction.numbered:
                self._doubt = (sql, partial(self.committed, transaction, moves, commit_us))
            raise

    def check_side(self) -> None:
        """Before DuckDB commits what is numbered, or moves offsets.

        Raises:
            IoError: 58030, the side file cannot be written: it could not be acknowledged.
        """
        if self.side is not None:
            self.side.check()

    def commit_own(
        self,
        cursor: duckdb.DuckDBPyConnection,
        shield: AbstractContextManager[None],
        numbers: tuple[int, int, int],
        show: Callable[[], None],
    ) -> None:
        """COMMIT a numbered transaction of the engine's own, under the writer lock.

        Args:
            shield: within it no cancel comes.
            numbers: its txid, the last LSN with it, and its commit time.
            show: what memory makes of it, once DuckDB has committed.

        Raises:
            duckdb.Error: it has not. IoError: 58030, that cannot be told: nobody writes before it is known;
            or the side file cannot be written.
        """
        self.check_side()

        def follow() -> None:
            self._note(*numbers)
            show()

        with self.catalog.changes.changing():
            with shield:
                try:
                    cursor.execute("COMMIT")
                except BaseException:
                    sql = _numbered_sql(numbers[0])
                    try:
                        stands = self._stands(sql)
                    except BaseException:
                        if not self.has_fallen():
                            self._doubt = (sql, follow)
                        raise
                    if not stands:
                        raise
            follow()
        self.count_objects(cursor)

    def settle_doubt(self) -> None:
        """Under the writer lock: a COMMIT whose outcome was not known stands, or it does not.

        Raises:
            IoError: 58030, it is still not known.
        """
        if self._doubt is None:
            return
        sql, follow = self._doubt
        stands = self._stands(sql)
        self._doubt = None
        if stands:
            follow()

    def _stands(self, sql: str) -> bool:
        """Another cursor sees the last rows of a transaction that stands: what asks for them counts some.

        Raises:
            IoError: 58030, that cannot be told.
        """
        try:
            with closing(with_memory(self.cursor)) as cursor:
                row = with_memory(lambda: ask_maybe(cursor, sql))
            return row is not None and bool(row[0])
        except duckdb.Error as error:
            raise IoError(
                UNKNOWN,
                detail=str(translated(error)),
                hint="Look whether it stands before it is tried again: it does, or does not, as a whole.",
            ) from error


def _numbered_sql(txid: int) -> str:
    return f"SELECT count(*) FROM ducktail.commits WHERE txid = {txid}"
