"""The changes of a database outside, stored as events: the log, our table of its rows, and the position.

A feed writes like any session: under the writer lock, with LSNs from the one counter and a row in `commits`
for each transaction of the source. What one call stores is one transaction of DuckDB: several transactions of
the source, or one that is large, truncates or defines a table. The position is written in it, so that after
any crash reading continues exactly behind the last stored transaction.

The source may not send the old row, or not all of the new one (PostgreSQL's REPLICA IDENTITY and TOAST): the
rest comes from our table of its rows, joined by the key. Within a batch the last row of each key is known in
memory, and may itself consist of values that only the table has (`UNCHANGED`).

The table gets the last row of each key: a DELETE and an INSERT, because DuckDB's UPDATE writes whole vectors
to its write-ahead log, ten times as much. Source: docs/design/sources.md, "Storing".
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from operator import itemgetter
from typing import NamedTuple

import duckdb
import pyarrow as pa

from ..capture.log_sql import images, partition_hash, stored_names
from ..catalog.captured_tables import Captured
from ..catalog.feeds import (
    POSITIONS,
    POSTGRES,
    Feed,
    FeedTable,
    asked_copy_sql,
    set_position_sql,
    set_table_sql,
)
from ..catalog.source_tables import (
    DEFINE,
    DELETE,
    INSERT,
    TRUNCATE,
    UNCHANGED,
    Change,
    Commit,
    Piece,
    SourceColumn,
    SourceTable,
    duckdb_type,
)
from ..database import Database
from ..duck.binding import Parsed
from ..duck.cursors import ask
from ..duck.duckdb_errors import translated
from ..errors import (
    CommitNotConfirmed,
    CopiesUnavailable,
    DucktailError,
    IoError,
    LockNotAvailable,
    ObjectInUse,
    OutOfMemory,
    SerializationFailure,
    SourceUnavailable,
    UndefinedObject,
    WrongState,
)
from ..log.log import dropped_sql
from ..quoting import fold, ident
from ..transactions.transaction import CommitStep, Part, TableWrites, Transaction
from ..waiting import Waiting, drive
from .alter_table import Alteration, alter_table
from .repeated_copies import CopyOfTable, Stage

# A feed waits so long for the writer lock, and looks in this interval if it is being ended.
LOCK_MS, LOCK_STEP_MS = 60_000, 500
# Errors that may pass by themselves: another attempt may succeed.
PASSING = (
    SourceUnavailable,
    CommitNotConfirmed,
    CopiesUnavailable,
    LockNotAvailable,
    SerializationFailure,
    IoError,
    OutOfMemory,
    ObjectInUse,
)
# The rows of a batch, the rows that it deletes from our table, and those of the log, in its statements.
_BATCH, _GONE, _LOGGED = "__ducktail_fed", "__ducktail_gone", "__ducktail_logged"
# A batch of so many rows and bytes is given as lists, and a larger one as Arrow: a list saves a millisecond,
# and a row in it costs three times as much.
FEW_ROWS, FEW_BYTES = 100, 256 << 10

_ENCODE = json.JSONEncoder(separators=(",", ":")).encode

Row = tuple[object, ...]


class _Statement(NamedTuple):
    """One of the statements that store a batch.

    Args:
        batch: True if it reads the batch, whose lists are its parameters if it is small.
        bounds: True if its parameters are the first and the last LSN of the batch.
    """

    parsed: Parsed
    batch: bool
    bounds: bool


Statements = tuple[_Statement, ...]


class _Column(NamedTuple):
    """A column of a batch, and its values."""

    name: str
    arrow: pa.DataType
    values: Sequence[object]


@dataclass(frozen=True, slots=True)
class _Form:
    """The properties of a batch on which its statements depend.

    Args:
        log: the log of its table's version.
        few: True if its columns are given as lists, False for an Arrow table.
        masks: the names of columns of which some values are only in our table.
        inserts: True if all of its rows are inserted.
        once: True if no key is in two of its rows.
    """

    log: str
    few: bool
    masks: frozenset[str]
    inserts: bool
    once: bool
    relations: tuple[str, ...]


@dataclass(slots=True, eq=False)
class _Target:
    """A table of the feed, and its rows of the log that are gathered.

    Args:
        key_of: the key of a row: its value, or a tuple of several; None without a key.
        keys: the places of the key's columns.
        moves_on: the places of columns whose change splits an update: of the key, or a partition's.
        stored: the place in our table of each column of a given row.
        relations: our table, and its mirrors, as SQL.
        known: key -> the place of its last gathered row of the log.
        first_lsn, last_lsn, inserts: of the present transaction of the source.
    """

    feed_table: FeedTable
    captured: Captured
    key_of: Callable[[Row], object] | None
    keys: tuple[int, ...]
    moves_on: tuple[int, ...]
    none: Row
    stored: tuple[int, ...]
    relations: tuple[str, ...]
    lsns: list[int] = field(default_factory=list)
    txids: list[int] = field(default_factory=list)
    ops: list[str] = field(default_factory=list)
    pairs: list[int | None] = field(default_factory=list)
    old: list[Row] = field(default_factory=list)
    new: list[Row] = field(default_factory=list)
    known: dict[object, int] = field(default_factory=dict)
    has_gaps: bool = False
    first_lsn: int = 0
    last_lsn: int = 0
    inserts: bool = True

    @property
    def table(self) -> SourceTable:
        return self.feed_table.table

    def last_of(self, row: Row) -> Row | None:
        """The last gathered row of a row's key, if there is one."""
        if self.key_of is None:
            return None
        place = self.known.get(self.key_of(row))
        return None if place is None else self.new[place]

    def now(self, row: Row) -> None:
        """The row of the log that was gathered last is the last one of a row's key."""
        if self.key_of is not None:
            self.known[self.key_of(row)] = len(self.lsns) - 1

    def columns(self) -> list[_Column]:
        """The gathered rows by column, in the order of their LSNs.

        `last` is true for the last row of a key; a batch in which all rows are lacks it. A column of which
        some values are only in our table, such as n2, has another one that tells which: un2. A batch of
        inserts lacks the old rows.
        """
        found = [
            _Column("lsn", pa.int64(), self.lsns),
            _Column("txid", pa.int64(), self.txids),
            _Column("op", pa.string(), self.ops),
            _Column("pair", pa.int64(), self.pairs),
        ]
        if self.known and len(self.known) < len(self.lsns):
            last = [False] * len(self.lsns)
            for place in self.known.values():
                last[place] = True
            found.append(_Column("last", pa.bool_(), last))
        inserts = "u" not in self.ops and "d" not in self.ops
        for side, rows in (("n", self.new),) if inserts else (("o", self.old), ("n", self.new)):
            for place, values in enumerate(zip(*rows, strict=True)):
                name = f"{side}{self.stored[place] + 1}"
                given: Sequence[object] = values
                if self.has_gaps and UNCHANGED in values:
                    found.append(_Column(f"u{name}", pa.bool_(), [value is UNCHANGED for value in values]))
                    given = [None if value is UNCHANGED else value for value in values]
                found.append(_Column(name, self.table.columns[place].arrow, given))
        return found

    def form(self, columns: Sequence[_Column], *, few: bool) -> _Form:
        """The form of a batch of these columns, which is given as lists or not."""
        names = {column.name for column in columns}
        masks = frozenset(name[1:] for name in names if name[0] == "u")
        return _Form(self.captured.log, few, masks, "o1" not in names, "last" not in names, self.relations)

    def clear(self) -> None:
        """Forget the gathered rows, which are stored."""
        for rows in (self.lsns, self.txids, self.ops, self.pairs, self.old, self.new):
            rows.clear()
        self.known.clear()
        self.has_gaps = False


@dataclass(slots=True)
class _Work:
    """An open transaction of DuckDB, and what it will consist of."""

    transaction: Transaction
    targets: dict[tuple[str, str], _Target]
    lsn: int
    parts: list[Part] = field(default_factory=list)
    written: dict[int, TableWrites] = field(default_factory=dict)
    touched: list[_Target] = field(default_factory=list)
    base_lsn: int = 0  # before the first event of the present transaction of the source
    alone: bool = False  # it is one transaction of the source
    bytes: int = 0  # of the values that were gathered, approximately
    pairs: int = 0
    last: Commit | None = None
    defined: dict[int, FeedTable] = field(default_factory=dict)


class Feeder:
    """Stores the changes of one feed. Used by one thread.

    Args:
        session_id: the owner of its locks.
        cursor: its own cursor.
        ending: returns True once the feed is being ended.
    """

    def __init__(
        self,
        database: Database,
        stream_id: int,
        session_id: int,
        cursor: duckdb.DuckDBPyConnection,
        ending: Callable[[], bool] = lambda: False,
    ) -> None:
        self._ending = ending
        self._database = database
        self._stream_id = stream_id
        self._session_id = session_id
        self._cursor = cursor
        self._work: _Work | None = None
        self._sql: dict[object, Statements] = {}
        # The staged copies, by the numbers of the tables, and the tables as they were when they were taken.
        self._staged: dict[int, tuple[FeedTable, Stage]] = {}

    @property
    def feed(self) -> Feed:
        """The present definition.

        Raises:
            UndefinedObject: the stream was dropped.
        """
        found = self._database.catalog.feeds.get(self._stream_id)
        if found is None:
            raise UndefinedObject("the stream of this source was dropped")
        return found

    def begin(self) -> Feed:
        """The present definition, with the position up to which everything is stored.

        A COMMIT whose outcome was unknown is settled before.

        Raises:
            LockNotAvailable: the writer lock is not free.
            IoError: the outcome is still unknown.
            CommitNotConfirmed: synchronous copies do not have that position, which the source is told.
        """
        drive(self._database.confirm_commits())
        transactions = self._database.transactions
        self._locked(lambda: transactions.lock_writer(self._session_id, LOCK_STEP_MS))
        try:
            sql = f"SELECT position FROM {POSITIONS} WHERE stream_id = {self._stream_id}"
            found = self._cursor.execute(sql).fetchall()
            feed = self.feed
            if found and found[0][0] != feed.position:
                # A COMMIT of the position alone has raised, and stands.
                feed = replace(feed, position=found[0][0])
                self._database.catalog.feeds[self._stream_id] = feed
        finally:
            transactions.writer_lock.release(self._session_id)
        return feed

    def _locked(self, lock: Callable[[], Waiting[None]]) -> None:
        """Wait for the writer lock, as long as the feed is not being ended."""
        ends_s = time.monotonic() + LOCK_MS / 1000
        while True:
            try:
                drive(lock())
                return
            except LockNotAvailable:
                if self._ending() or time.monotonic() > ends_s:
                    raise

    @property
    def is_open(self) -> bool:
        """True if a large transaction has not been given to its end."""
        return self._work is not None

    def write(self, pieces: Sequence[Piece]) -> int:
        """Store pieces, in order; those of an unfinished transaction stay in an open transaction of DuckDB.

        Returns:
            The number of events.

        Raises:
            DucktailError: nothing since the last stored position is stored.
        """
        events = 0
        with self._all_or_nothing():
            for piece in pieces:
                events += self._add(piece)
            if self._work is not None and not (self._work.alone and self._work.last is None):
                events += self._commit()
        return events

    def abandon(self) -> None:
        """Roll back what is not stored yet."""
        work, self._work = self._work, None
        if work is not None:
            with suppress(duckdb.Error):
                self._cursor.unregister(_BATCH)
            self._database.transactions.rollback(work.transaction)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Roll back what is not stored yet when the block fails; DuckDB's errors become ours."""
        try:
            yield
        except duckdb.Error as error:
            self.abandon()
            raise translated(error) from error
        except BaseException:
            self.abandon()
            raise

    def _add(self, piece: Piece) -> int:
        """Gather a piece; returns the events of what had to be stored before it."""
        events = 0
        alone = piece.commit is None or any(change[0] in "tx" for change in piece.changes)
        work = self._work
        if work is not None and alone and not work.alone:
            events = self._commit()
            work = None
        if work is None:
            work = self._work = self._begin()
            work.alone = alone
        work.bytes += piece.bytes
        self._gather(work, piece.changes)
        if piece.commit is None:
            self._store(work)  # A large transaction is not held in memory.
            return events
        work.last = piece.commit
        if work.alone:
            return events + self._commit()
        self._end_part(work, piece.commit)
        return events

    def _begin(self) -> _Work:
        transactions = self._database.transactions
        transaction = transactions.begin(self._session_id, self._cursor, "")
        try:
            self._locked(lambda: transactions.lock_for(transaction, LOCK_STEP_MS))
            targets = {t.table.key_in_source: self._target(t) for t in self.feed.tables if not t.joins}
        except BaseException:
            transactions.rollback(transaction)
            raise
        return _Work(transaction, targets, transaction.base_lsn, base_lsn=transaction.base_lsn)

    def _target(self, table: FeedTable, captured: Captured | None = None) -> _Target:
        captured = captured or self._database.catalog.table_by_id(table.table_id)
        given = {fold(column.name): place for place, column in enumerate(table.table.columns)}
        places = [given[fold(name)] for name in captured.shape.primary_key]
        moves_on = sorted(given[fold(name)] for name in captured.table.split_on)
        key_of = itemgetter(*places) if places else None
        stored = tuple(captured.shape.place(column.name) for column in table.table.columns)
        mirrors = self._database.catalog.mirrors.values()
        name = self._database.catalog_name
        copies = (one.qualified_in(name) for one in mirrors if one.table_id == table.table_id)
        relations = (captured.shape.qualified, *copies)
        none = (None,) * len(stored)
        return _Target(table, captured, key_of, tuple(places), tuple(moves_on), none, stored, relations)

    # Gathering: from changes to rows of the log.

    def _gather(self, work: _Work, changes: Sequence[Change]) -> None:
        txid = work.transaction.txid + len(work.parts)
        for op, name, old, new in changes:
            target = work.targets.get(name)
            if target is None:
                continue  # A table that is not in the stream.
            if op == INSERT:
                if UNCHANGED in new:  # type: ignore[operator]
                    raise _unsent(target, new)  # type: ignore[arg-type]
                self._row(work, target, txid, "i", target.none, new)  # type: ignore[arg-type]
                target.now(new)  # type: ignore[arg-type]
            elif op == DELETE:
                assert old is not None
                known = target.last_of(old)
                self._row(work, target, txid, "d", known or old, target.none)
                target.now(old)
            elif op == TRUNCATE:
                self._truncate(work, target, txid)
            elif op == DEFINE:
                assert isinstance(new, SourceTable)
                self._define(work, target, new)
            else:
                self._update(work, target, txid, old, new)  # type: ignore[arg-type]

    def _update(self, work: _Work, target: _Target, txid: int, old: Row | None, new: Row) -> None:
        known, moves = target.last_of(new if old is None else old), False
        if old is not None:
            moves = any(
                old[i] != new[i] and new[i] is not UNCHANGED and old[i] is not UNCHANGED
                for i in target.moves_on
            )
        gone = old
        if known is not None:
            old = known
        elif old is None:
            old = tuple(value if i in target.keys else UNCHANGED for i, value in enumerate(new))
        if UNCHANGED in new:
            # Their old value, if it is known here; else that of the table.
            new = tuple(past if value is UNCHANGED else value for value, past in zip(new, old, strict=True))
        if not moves:
            self._row(work, target, txid, "u", old, new)
            target.now(new)
            return
        assert gone is not None
        work.pairs += 1
        self._row(work, target, txid, "d", old, new, work.pairs)
        target.now(gone)
        self._row(work, target, txid, "i", old, new, work.pairs)
        target.now(new)
        if UNCHANGED in new:
            # It has a value that the table has under the old key only.
            self._store_table(work, target)

    def _row(
        self, work: _Work, target: _Target, txid: int, op: str, old: Row, new: Row, pair: int | None = None
    ) -> None:
        lsn = work.lsn = work.lsn + 1
        if not target.first_lsn:
            target.first_lsn = lsn
            work.touched.append(target)
        target.last_lsn = lsn
        if op != "i" or pair is not None:
            target.inserts = False
            if UNCHANGED in old:
                target.has_gaps = True
        target.lsns.append(lsn)
        target.txids.append(txid)
        target.ops.append(op)
        target.pairs.append(pair)
        target.old.append(old)
        target.new.append(new)

    def _end_part(self, work: _Work, commit: Commit) -> None:
        """End a transaction of the source that shares the transaction of DuckDB."""
        events = work.lsn - work.base_lsn
        if events:
            first = work.base_lsn + 1
            tables = {t.captured.table_id: (t.first_lsn - first, t.last_lsn - first) for t in work.touched}
            inserts = frozenset(t.captured.table_id for t in work.touched if t.inserts)
            work.parts.append(Part(events, tables, inserts, _annotation(commit)))
        self._count(work)
        work.base_lsn = work.lsn
        work.pairs = 0

    @staticmethod
    def _count(work: _Work) -> None:
        for target in work.touched:
            writes = TableWrites(target.first_lsn, target.last_lsn, None, target.inserts)
            known = work.written.setdefault(target.captured.table_id, writes)
            known.last_lsn, known.inserts = target.last_lsn, known.inserts and target.inserts
            target.first_lsn, target.inserts = 0, True
        work.touched.clear()

    # Storing.

    def _commit(self) -> int:
        """Store everything gathered, with the position; returns the number of events."""
        work = self._work
        assert work is not None and work.last is not None
        transaction, commit = work.transaction, work.last
        self._store(work)
        if work.alone or len(work.parts) == 1:
            parts: Sequence[Part] = ()
            transaction.annotation = _annotation(commit) if work.alone else work.parts[0].annotation
        else:
            parts = work.parts
        transaction.parts = parts
        return self._finish(work, commit.position)

    def _finish(self, work: _Work, position: str | None) -> int:
        """Write what the transaction has changed of the feed, and commit; returns the number of events.

        Args:
            position: the position up to which everything is stored now; None if it has not moved.
        """
        transaction = work.transaction
        self._settle(work)
        if position is not None:
            sql = set_position_sql(self._stream_id, position, self.feed.identity)
            self._cursor.execute(sql).fetchall()
        for table in work.defined.values():
            self._cursor.execute(set_table_sql(self._stream_id, table)).fetchall()
        transaction.at(CommitStep.MEMORY, partial(self._show, position, dict(work.defined)))
        events = transaction.events
        self._work = None
        self._commit_confirmed(transaction)
        return events

    def _commit_confirmed(self, transaction: Transaction) -> None:
        """Commit, and wait for synchronous copies: the source is then told that it may forget the changes."""
        drive(self._database.transactions.commit(transaction, LOCK_MS))
        drive(self._database.confirm_commits())

    def _settle(self, work: _Work) -> None:
        """Tell the transaction of the events that are in the log."""
        self._count(work)
        events = work.lsn - work.transaction.next_lsn
        if events or work.written:
            work.transaction.fed(events, work.written)
        work.written = {}

    def _show(self, position: str | None, defined: dict[int, FeedTable]) -> None:
        feeds = self._database.catalog.feeds
        feed = feeds.get(self._stream_id)
        if feed is not None:
            for table in defined.values():
                feed = feed.with_table(table)
            feeds[self._stream_id] = replace(feed, position=position or feed.position)

    def _store(self, work: _Work) -> None:
        for target in work.targets.values():
            self._store_table(work, target)
        work.bytes = 0

    def _store_table(self, work: _Work, target: _Target) -> None:
        """Write the gathered rows of a table to its log, and their last state to our table."""
        if not target.lsns:
            return
        cursor, columns = self._cursor, target.columns()
        few = len(target.lsns) <= FEW_ROWS and work.bytes <= FEW_BYTES
        form = target.form(columns, few=few)
        statements = self._sql.get(form)
        if statements is None:
            if len(self._sql) > 256:
                self._sql.clear()
            make = _keyed_sql if target.keys else _keyless_sql
            statements = self._sql[form] = tuple(make(target, form, _lists_sql(columns) if few else ()))
        lists: list[object] = [column.values for column in columns] if few else []
        bounds = [target.lsns[0], target.lsns[-1]]
        if not few:
            arrays = [pa.array(column.values, column.arrow) for column in columns]
            names = [column.name for column in columns]
            cursor.register(_BATCH, pa.Table.from_arrays(arrays, names=names))
        try:
            for parsed, has_batch, has_bounds in statements:
                values = lists if has_batch else bounds if has_bounds else ()
                parsed.run(cursor, values).fetchall()
        except (
            duckdb.ConversionException,
            duckdb.OutOfRangeException,
            duckdb.InvalidInputException,
        ) as error:
            told = translated(error)
            told.message = f"a value of table {target.table.shown} cannot be stored: {told.message}"
            raise told from error
        if not few:
            cursor.unregister(_BATCH)
        target.clear()

    def _truncate(self, work: _Work, target: _Target, txid: int) -> None:
        """A TRUNCATE is a delete of each row."""
        self._store_table(work, target)
        shape = target.captured.shape
        count = int(ask(self._cursor, f"SELECT count(*) FROM {shape.qualified}")[0])
        if not count:
            return
        self._cursor.execute(dropped_sql(target.captured, work.lsn, txid)).fetchall()
        for relation in target.relations:
            self._cursor.execute(f"DELETE FROM {relation}").fetchall()
        if not target.first_lsn:
            target.first_lsn = work.lsn + 1
            work.touched.append(target)
        work.lsn += count
        target.last_lsn, target.inserts = work.lsn, False

    # Definitions.

    def _define(self, work: _Work, target: _Target, table: SourceTable) -> None:
        """Alter our table as the one outside was: each step is an ALTER TABLE, with its schema events."""
        if table == target.table:
            return
        by = {fold(name) for stream in target.captured.streams for name in stream.partition_by}
        for column, sent in zip(table.columns, table.identity, strict=True):
            if fold(column.name) in by and not sent:
                raise WrongState(
                    f'the old value of column "{column.name}" of table {table.shown} is not sent any more',
                    detail="A stream is partitioned by it.",
                    hint=f"ALTER TABLE {table.shown} REPLICA IDENTITY FULL at the source, and RESUME STREAM.",
                )
        self._sql.clear()
        self._store(work)
        self._settle(work)
        assert work.alone, "a definition is stored with its own transaction only"
        captured = target.captured
        try:
            for step, retypes in _alterations(target.table, table):
                for mirror in target.relations[1:]:
                    self._cursor.execute(f"ALTER TABLE {mirror} {step}").fetchall()
                text = f"ALTER TABLE {captured.shape.qualified} {step}"
                asked = Alteration(text, None, None, retypes=retypes)
                drive(alter_table(self._database, work.transaction, captured.key, asked, LOCK_MS))
                captured = work.transaction.captured_tables(self._database.catalog)[captured.key]
        except (duckdb.Error, DucktailError) as error:
            told = translated(error) if isinstance(error, duckdb.Error) else error
            if isinstance(told, PASSING):
                raise told from error
            raise WrongState(
                f"table {table.shown} was altered at the source in a way that cannot be followed",
                detail=f"Here it is: {told.message}.",
                hint="DROP STREAM, and create it again.",
            ) from error
        work.lsn = work.transaction.next_lsn
        shown = replace(target.feed_table, table=table)
        work.defined[shown.table_id] = shown
        work.targets[table.key_in_source] = self._target(shown, captured)

    def redefine(self, tables: Sequence[SourceTable]) -> Feed:
        """Let our tables have these definitions, before anything is copied.

        Raises:
            WrongState: a table is missing among them, or has another key.
        """
        given = {table.key_in_source: table for table in tables}
        first = [known for known in self.feed.tables if not known.joins]
        for known in first:
            if known.table.key_in_source not in given:
                raise WrongState(f"table {known.table.shown} is no longer among those that are selected")
        if all(given[known.table.key_in_source] == known.table for known in first):
            return self.feed
        work = self._work = self._begin()
        work.alone = True
        with self._all_or_nothing():
            for target in list(work.targets.values()):
                self._define(work, target, given[target.table.key_in_source])
            self._finish(work, None)
        return self.feed

    # Copies.

    def stage(self, table: SourceTable, rows: Sequence[Row], *, first: bool) -> None:
        """Put rows of a table's copy into a temporary table, without a lock.

        Args:
            table: its definition as of the copy.
            first: True for the first rows of the table.

        Raises:
            SourceUnavailable: the table was dropped from the stream meanwhile.
        """
        found = (t for t in self.feed.tables if t.table.key_in_source == table.key_in_source)
        known = next(found, None)
        if known is None:
            raise SourceUnavailable(f"table {table.shown} was dropped from the stream while it was copied")
        if first:
            # The first copy has all rows.
            again = self.feed.position is not None and known.asked is not None
            condition = known.asked.condition if again and known.asked else None
            self._staged[known.table_id] = known, Stage(self._cursor, known.table_id, table, condition)
        self._staged[known.table_id][1].add(rows)

    def copied(self, position: str) -> int:
        """Store the staged rows as snapshot events, and the position as of which they are.

        Rows of a table that has rows here replace these. Everything up to the position is stored before.

        Returns:
            The number of rows.

        Raises:
            WrongState: a table was altered in a way that cannot be followed.
            SourceUnavailable: a table was altered meanwhile; another attempt may succeed.
        """
        work = self._work = self._begin()
        work.alone = True
        with self._all_or_nothing():
            rows = 0
            for asked, stage in self._staged.values():
                # It may have been dropped meanwhile.
                if (table := self.feed.table_of(asked.table_id)) is not None:
                    rows += self._merge(work, table, asked, stage, position)
                stage.drop()
            self._staged.clear()
            work.transaction.annotation = json.dumps({"position": position})
            self._finish(work, position)
        return rows

    def _merge(self, work: _Work, table: FeedTable, asked: FeedTable, stage: Stage, position: str) -> int:
        """Store the staged rows of a table; returns their number."""
        key, copies, transaction = table.table.key_in_source, self.feed.copies, work.transaction
        if table.joins:
            work.targets[key] = self._target(table)
        self._define_copied(work, work.targets[key], stage.table, anew=table.joins)
        target = work.targets[key]
        copy = CopyOfTable(self._cursor, stage, target.captured, target.relations, work.lsn, transaction.txid)
        if table.copied_at is None and (copies or table.joins):
            events = rows = copy.store_first(self._stream_id)
        else:
            events, rows = copy.store_again(whole=copies)
        if events:
            work.written[table.table_id] = TableWrites(work.lsn + 1, work.lsn + events, None)
            work.lsn += events
        done = replace(work.defined.get(table.table_id, table), copied_at=position)
        if stage.condition is None:
            done = replace(done, rows=rows)
            transaction.at(CommitStep.MEMORY, partial(self._agrees, table.table_id))
        if table.asked == asked.asked:  # Else another copy was asked for since.
            done = replace(done, asked=None)
            for statement in asked_copy_sql(self._stream_id, table.table_id, None):
                self._cursor.execute(statement).fetchall()
        work.defined[table.table_id] = done
        return rows

    def _agrees(self, table_id: int) -> None:
        """Our table is that of its log again, whatever CHECK STREAM has found before."""
        self._database.unlike.pop(table_id, None)

    def _define_copied(self, work: _Work, target: _Target, table: SourceTable, *, anew: bool) -> None:
        """Let our table have the definition of a copy.

        PostgreSQL tells of an ALTER TABLE with the next change of the table only, which may come later. In a
        log of MySQL it comes in its place, and the numbers of columns are our own.
        """

        def columns(of: SourceTable) -> set[tuple[str, str, int]]:
            numbered = self.feed.kind == POSTGRES
            return {(c.name, c.type, c.number if numbered else 0) for c in of.columns}

        if not anew and (columns(table), table.key) == (columns(target.table), target.table.key):
            return
        if not anew and self.feed.kind != POSTGRES:
            raise SourceUnavailable(f"table {table.shown} was altered while it was copied")
        self._define(work, target, table)


def _unsent(target: _Target, row: Row) -> WrongState:
    """The error for a new row of which the source has not sent a value."""
    column = target.table.columns[row.index(UNCHANGED)].name
    return WrongState(
        f'the source has not sent column "{column}" of a new row of table {target.table.shown}',
        hint=f"ALTER TABLE {target.table.shown} REPLICA IDENTITY FULL at the source.",
    )


def _annotation(commit: Commit) -> str:
    """The member `source` of the headers of a transaction's events."""
    committed = datetime.fromtimestamp(commit.commit_us / 1_000_000, UTC).isoformat()
    return _ENCODE({"position": commit.position, "txid": commit.txid, "commit_time": committed})


def _side(target: _Target, side: str, masks: frozenset[str]) -> list[str]:
    """SQL of each column of an image, from the batch `b` and our table's old row `t`."""
    parts = []
    for column, place in zip(target.table.columns, target.stored, strict=True):
        name = f"{side}{place + 1}"
        given = column.sql(f"b.{name}")
        if name in masks:
            kept = ident(target.captured.shape.stored[place].name)
            given = f"CASE WHEN b.u{name} THEN t.{kept} ELSE {given} END"
        parts.append(f"{given} AS {name}")
    return parts


def _keys(target: _Target, given: str) -> list[tuple[str, str]]:
    """The key's columns in our table, and SQL of each from the batch `b`.

    Args:
        given: SQL of the batch's value, with `{}` for the column's number.
    """
    shape, found = target.captured.shape, []
    for name in shape.primary_key:
        place = shape.place(name)
        column = target.table.columns[target.stored.index(place)]
        found.append((ident(name), column.sql(given.replace("{}", str(place + 1)))))
    return found


def _log_sql(target: _Target, form: _Form) -> str:
    """The INSERT of the batch into the log."""
    shape, joined = target.captured.shape, ""
    if form.masks:
        on = " AND ".join(f"t.{name} = {given}" for name, given in _keys(target, "b.o{}"))
        joined = f" LEFT JOIN {_GONE} AS t ON {on}"
    new = ", ".join(_side(target, "n", form.masks))
    if form.inserts:
        old = ", ".join(f"NULL AS o{place}" for place in range(1, len(shape.stored) + 1))
        hashed = partition_hash("n", shape)
    else:
        old = ", ".join(_side(target, "o", form.masks))
        hashed = f"CASE WHEN op = 'd' THEN {partition_hash('o', shape)} ELSE {partition_hash('n', shape)} END"
    columns = f"{images('o', shape)}, {images('n', shape)}"
    return (
        f"INSERT INTO {target.captured.log} (lsn, txid, op, key_hash, key_change, {columns}) "
        f"SELECT lsn, txid, op, {hashed}, pair, {columns} FROM "
        f"(SELECT b.lsn, b.txid, b.op, b.pair, {old}, {new} FROM {_BATCH} AS b{joined})"
    )


def _lists_sql(columns: Sequence[_Column]) -> Sequence[str]:
    """The common table expression of a batch whose columns are parameters."""
    lists = (
        f"unnest(${at}::{duckdb_type(column.arrow)}[]) AS {column.name}"
        for at, column in enumerate(columns, 1)
    )
    return (f"{_BATCH} AS (SELECT {', '.join(lists)})",)


def _with_batch(statement: str, *others: str) -> _Statement:
    """A statement that reads the batch, behind common table expressions."""
    text = f"WITH {', '.join(others)} {statement}" if others else statement
    return _Statement(Parsed(text), batch=True, bounds=False)


def _keyed_sql(target: _Target, form: _Form, lists: Sequence[str]) -> Iterator[_Statement]:
    """The statements that store a batch of a table with a key, or only with inserts.

    Each relation loses the rows of the batch's keys and then gets the last row of each. Values that only our
    table has come from the rows that it loses: the DELETE is part of the statement that reads them.

    Args:
        lists: the common table expression of a batch that is given as lists.
    """
    shape = target.captured.shape
    keys = _keys(target, "CASE WHEN b.op = 'd' THEN b.o{} ELSE b.n{} END")
    given = ", ".join(f"{value} AS k{place}" for place, (_, value) in enumerate(keys))
    on = " AND ".join(f"t.{name} = s.k{place}" for place, (name, _) in enumerate(keys))
    of_keys = f"(SELECT {given} FROM {_BATCH} AS b{'' if form.once else ' WHERE b.last'}) AS s WHERE {on}"
    others = [*lists]
    for relation in target.relations if not form.inserts else ():
        delete = f"DELETE FROM {relation} AS t USING {of_keys}"
        if form.masks and relation == shape.qualified:
            kept = (shape.stored[place].name for place in sorted({int(name[1:]) - 1 for name in form.masks}))
            returned = dict.fromkeys((*shape.primary_key, *kept))
            others.append(
                f"{_GONE} AS ({delete} RETURNING {', '.join(f't.{ident(name)}' for name in returned)})"
            )
        else:
            yield _with_batch(delete, *lists)
    others.append(f"{_LOGGED} AS ({_log_sql(target, form)} RETURNING lsn, op, {images('n', shape)})")
    last = ""
    if not form.once:
        last = f" AS l SEMI JOIN (SELECT lsn FROM {_BATCH} WHERE last AND op <> 'd') AS f ON l.lsn = f.lsn"
    elif not form.inserts:
        last = " WHERE op <> 'd'"
    inserts = [
        f"INSERT INTO {relation} ({stored_names(shape)}) SELECT {images('n', shape)} FROM {_LOGGED}{last}"
        for relation in target.relations
    ]
    others += (f"{_LOGGED}_{at} AS ({insert})" for at, insert in enumerate(inserts[1:], 1))
    yield _with_batch(inserts[0], *others)


def _keyless_sql(target: _Target, form: _Form, lists: Sequence[str]) -> Iterator[_Statement]:
    """The statements that store a batch of a table without a key, whose rows are found by all columns."""
    if form.inserts:
        yield from _keyed_sql(target, form, lists)
        return
    shape = target.captured.shape
    places = range(1, len(shape.stored) + 1)
    bounds = "lsn BETWEEN $1 AND $2"
    yield _with_batch(_log_sql(target, form), *lists)
    names = ", ".join(f"c{place}" for place in places)
    sides = " UNION ALL ".join(
        f"SELECT {', '.join(f'{side}{place} AS c{place}' for place in places)}, {sign} AS sign "
        f"FROM {target.captured.log} WHERE {bounds} AND {which}"
        for side, sign, which in (("o", -1, "op <> 'i'"), ("n", 1, "op <> 'd'"))
    )
    net = (
        f"CREATE OR REPLACE TEMP TABLE {_BATCH}_net AS SELECT {names}, sum(sign) AS count FROM ({sides}) "
        f"GROUP BY {names} HAVING sum(sign) <> 0"
    )
    yield _Statement(Parsed(net), batch=False, bounds=True)
    same = " AND ".join(
        f"t.{ident(column.name)} IS NOT DISTINCT FROM s.c{place}"
        for place, column in enumerate(shape.stored, 1)
    )
    row = ", ".join(f"s.c{place}" for place in places)
    for relation in target.relations:
        delete = (
            f"DELETE FROM {relation} WHERE rowid IN (SELECT found FROM "
            f"(SELECT t.rowid AS found, -s.count AS most, row_number() OVER (PARTITION BY {row}) AS nth "
            f"FROM {relation} AS t JOIN temp.main.{_BATCH}_net AS s ON {same} AND s.count < 0) "
            "WHERE nth <= most)"
        )
        insert = (
            f"INSERT INTO {relation} ({stored_names(shape)}) SELECT {names} FROM temp.main.{_BATCH}_net, "
            "range(count::BIGINT) WHERE count > 0"
        )
        for text in (delete, insert):
            yield _Statement(Parsed(text), batch=False, bounds=False)


def _alterations(was: SourceTable, now: SourceTable) -> list[tuple[str, bool]]:
    """The actions of ALTER TABLE that make a definition of another one; True for those that retype.

    A column whose number is known keeps its values under a new name. A type that has changed converts the
    values here, which are those there unless the source converted them otherwise.

    A key that differs is an error: rows here could not follow those there.
    """
    by_number = {column.number: column for column in now.columns if column.number}
    names = {fold(column.name) for column in now.columns}
    follows: dict[str, SourceColumn] = {}  # a present column of our table -> its new definition
    for column in was.columns:
        same = by_number.get(column.number) if column.number else None
        if same is None and not column.number and fold(column.name) in names:
            same = next(new for new in now.columns if fold(new.name) == fold(column.name))
        if same is not None:
            follows[column.name] = same
    if tuple(follows[name].name if name in follows else "" for name in was.key) != now.key:
        raise WrongState(
            f"the key of table {now.shown} has changed at the source",
            hint="DROP STREAM, and create it again.",
        )
    steps: list[tuple[str, bool]] = []
    for column in was.columns:
        if column.name not in follows:
            steps.append((f"DROP COLUMN {ident(column.name)}", False))
    taken = {fold(name) for name in follows}
    late: list[tuple[str, bool]] = []
    for name, column in follows.items():
        if name != column.name:
            to = column.name
            if fold(to) in taken and fold(to) != fold(name):
                # Another column has the name still: columns may exchange their names.
                to = f"renamed {name}"
                late.append((f"RENAME COLUMN {ident(to)} TO {ident(column.name)}", False))
            steps.append((f"RENAME COLUMN {ident(name)} TO {ident(to)}", False))
    steps += late
    for name, column in follows.items():
        before = next(old for old in was.columns if old.name == name)
        if before.type != column.type:
            changed = f"ALTER COLUMN {ident(column.name)} TYPE {column.type}"
            steps.append((changed, True))
    kept = {fold(column.name) for column in follows.values()}
    for column in now.columns:
        if fold(column.name) not in kept:
            fill = f" DEFAULT {column.fill}" if column.fill else ""
            steps.append((f"ADD COLUMN {ident(column.name)} {column.type}{fill}", False))
            if fill:
                # Rows to come have their own values; the default would be told to readers as the table's.
                steps.append((f"ALTER COLUMN {ident(column.name)} DROP DEFAULT", False))
    return steps
