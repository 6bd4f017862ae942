"""Numbered commits: their last rows, their numbers, and the changes of memory that follow them.

The rules:

- LSNs and txids are assigned under the writer lock, and the counters advance only after DuckDB's COMMIT has
  returned, so they are dense and in commit order.
- Memory (catalog, buffers, committed LSNs) changes only after DuckDB's COMMIT.
- After a COMMIT that raised, a query finds out if it took effect. While the outcome is unknown no transaction
  gets numbers; it becomes known when the file is opened again, or by a later query (`settle_doubt`).

Source: docs/design/engine.md, "One writer" and "Coming back".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

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

# The message for a COMMIT with an unknown outcome in DuckDB.
UNKNOWN = "the outcome of a COMMIT is unknown"

# The row of a commit in `commits`.
_LINE = Parsed(
    f"INSERT INTO ducktail.commits {COMMIT_COLUMNS} "
    "VALUES ($1::BIGINT, $2::BIGINT, $3::BIGINT, make_timestamptz($4::BIGINT), $5::VARCHAR)"
)

# The rows of several transactions: the first txid, the first and the last LSN of each, their common time and
# their annotations.
_LINES = Parsed(
    f"INSERT INTO ducktail.commits {COMMIT_COLUMNS} "
    "SELECT $1::BIGINT + i, first, last, make_timestamptz($4::BIGINT), annotation "
    "FROM (SELECT unnest(range(len($2::BIGINT[]))) AS i, unnest($2::BIGINT[]) AS first, "
    "unnest($3::BIGINT[]) AS last, unnest($5::VARCHAR[]) AS annotation)"
)


@dataclass(slots=True)
class Commits:
    """The numbered commits of a database.

    Args:
        side: the side file, in which commits are acknowledged; None for a database in memory.
        cursor: returns a new cursor of the engine.
        has_fallen: asks DuckDB if it has invalidated the database.
        last_txid, last_lsn: numbers of the last numbered commit.
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
    _doubt: tuple[str, Callable[[], None]] | None = None  # query of the outcome, and work if it stands
    captured: int = 0  # events of the commits since the database was opened

    def now_us(self) -> int:
        """The time for a commit at this moment; commit times never go back."""
        return self.times.now_us()

    def last_lsn_if_past(self, at_us: int) -> int | None:
        """The last LSN if a time (microseconds since 1970) is in the future; None if it has passed."""
        with self.catalog.mutex:  # LSN and time belong to the same commit.
            return self.last_lsn if at_us > self.now_us() else None

    def write(self, transaction: Transaction, moves: Sequence[Move]) -> int:
        """Write the last rows of a transaction: its row in `commits`, and the offsets that it moves.

        Returns:
            The time of its commit, in microseconds since 1970.
        """
        commit_us = self.now_us()
        if transaction.parts:
            lasts = list(accumulate((p.events for p in transaction.parts), initial=transaction.base_lsn))
            assert lasts.pop(0) == transaction.base_lsn and lasts[-1] == transaction.next_lsn
            firsts = [last - part.events + 1 for last, part in zip(lasts, transaction.parts, strict=True)]
            annotations = [part.annotation for part in transaction.parts]
            _LINES.run(
                transaction.cursor, (transaction.txid, firsts, lasts, commit_us, annotations)
            ).fetchall()
        elif transaction.numbered:
            numbers = (transaction.txid, transaction.base_lsn + 1, transaction.next_lsn, commit_us)
            _LINE.run(transaction.cursor, (*numbers, transaction.annotation)).fetchall()
        if moves:
            transaction.cursor.execute(insert_sql(moves))
        return commit_us

    def committed(self, transaction: Transaction, moves: Sequence[Move], commit_us: int) -> None:
        """Acknowledge a transaction that DuckDB has committed, and change memory."""
        if self.side is not None:
            numbers = (transaction.last_txid, transaction.next_lsn) if transaction.numbered else (0, 0)
            seq = moves[-1].seq if moves else 0
            self.side.acknowledge(txid=numbers[0], lsn=numbers[1], seq=seq, defines=transaction.defines)
        with self.catalog.mutex:
            if transaction.numbered:
                self.captured += transaction.next_lsn - transaction.base_lsn
                self.last_lsn, self.last_txid = transaction.next_lsn, transaction.last_txid
                self.times.given(commit_us)
            if transaction.tables:
                self.snapshots.committed(transaction)
            transaction.run(CommitStep.MEMORY)
        if moves:
            self.offsets.applied(moves)
        if transaction.parts:
            self.publisher.put_all(_notes(transaction, commit_us))
        elif transaction.events:
            tables = {t: (w.first_lsn, w.last_lsn) for t, w in transaction.written.items()}
            first = transaction.base_lsn + 1
            last, annotation = transaction.next_lsn, transaction.annotation
            inserts = frozenset(t for t, w in transaction.written.items() if w.inserts)
            ready = transaction.ready
            note = Note(transaction.txid, first, last, commit_us, tables, annotation, inserts, ready)
            self.publisher.put(note)
        transaction.run(CommitStep.WAKE)

    def count_objects(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """Write the streams and groups to the side file, after a commit that may have changed them.

        Called under the writer lock, after memory has changed. If they cannot be read, an opening compares
        none, until the next such commit.
        """
        if self.side is not None:
            with suppress(duckdb.Error):
                self.side.tell(read_objects(cursor))

    @property
    def readable_lsn(self) -> int:
        """The last committed LSN; with synchronous copies the last one that they have."""
        return self.publisher.readable(self.last_lsn)

    def wait_readable(self) -> Waiting[None]:
        """Wait until all committed events are readable in their streams.

        Raises:
            CopiesUnavailable: the synchronous copies do not have them within their time.
        """
        yield from self.publisher.wait_published(self.last_lsn)

    def wait_readable_now(self) -> Waiting[None]:
        """Wait until all events are readable that need not wait for copies."""
        yield from self.publisher.wait_published(self.readable_lsn)

    def _note(self, txid: int, last_lsn: int, commit_us: int) -> None:
        if self.side is not None:
            self.side.acknowledge(txid=txid, lsn=last_lsn, defines=True)
        with self.catalog.mutex:
            self.last_lsn, self.last_txid = last_lsn, txid
            self.times.given(commit_us)

    # A COMMIT that raised.

    def took_effect(self, transaction: Transaction, moves: Sequence[Move], commit_us: int) -> bool:
        """True if a COMMIT that raised nevertheless took effect.

        Raises:
            IoError: the outcome is unknown; no transaction writes before it is known.
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
                # The transaction may have a SEEK: read positions from before must not be committed.
                for group_id in transaction.offsets:
                    self.offsets.seeked(group_id)
            elif transaction.numbered:
                self._doubt = (sql, partial(self.committed, transaction, moves, commit_us))
            raise

    def check_side(self) -> None:
        """Check the side file before DuckDB commits a transaction with numbers or offsets.

        Raises:
            IoError: the side file cannot be written, so the commit could not be acknowledged.
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
        """COMMIT a numbered transaction of the engine itself, under the writer lock.

        Args:
            shield: a context that blocks cancels.
            numbers: its txid, its last LSN, and its commit time.
            show: changes memory, once DuckDB has committed.

        Raises:
            duckdb.Error: DuckDB has not committed.
            IoError: the outcome is unknown, so that no transaction writes until it is known; or the side file
                cannot be written.
        """
        self.check_side()

        def follow() -> None:
            self._note(*numbers)
            show()

        with self.catalog.changes.changing(macros=False):
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
        """Find out the outcome of a COMMIT that was unknown; called under the writer lock.

        Raises:
            IoError: the outcome is still unknown.
        """
        if self._doubt is None:
            return
        sql, follow = self._doubt
        stands = self._stands(sql)
        self._doubt = None
        if stands:
            follow()

    def _stands(self, sql: str) -> bool:
        """True if another cursor sees the last rows of a transaction.

        Args:
            sql: a query that counts the rows. If it fails, the outcome is unknown, an IoError.
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


def _notes(transaction: Transaction, commit_us: int) -> list[Note]:
    """The note of each of the transactions that a transaction consists of."""
    notes, lsn = [], transaction.base_lsn + 1
    for place, part in enumerate(transaction.parts):
        tables = {table_id: (lsn + first, lsn + last) for table_id, (first, last) in part.tables.items()}
        txid, last_lsn = transaction.txid + place, lsn + part.events - 1
        notes.append(Note(txid, lsn, last_lsn, commit_us, tables, part.annotation, part.inserts))
        lsn = last_lsn + 1
    return notes


def _numbered_sql(txid: int) -> str:
    return f"SELECT count(*) FROM ducktail.commits WHERE txid = {txid}"
