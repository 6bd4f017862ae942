"""The runner of one feed: a thread that reads its source and stores what comes.

A source that is away, or an error that may pass, is tried again after a pause; any other error stops the feed
with its reason, because another attempt would meet it again: a user mends the cause and says RESUME STREAM.
Nothing is skipped in either case.

An attempt reads until the tables of the feed, or the copies that are asked for, change; then the next one
begins. Copies are taken at its beginning, while no changes are read: the rows are staged, the changes up to
exactly the position of the copy are stored, and then the rows over them. So there are no changes in the copy
that are not stored, and none after it that are. Source: docs/sources.md, "Faults"; docs/design/sources.md.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress

import duckdb

from ...engine.catalog.feeds import STOPPED, Feed
from ...engine.catalog.source_tables import Piece, SourceTable
from ...engine.database import Database
from ...engine.definitions import feeds
from ...engine.duck.duckdb_errors import translated
from ...engine.errors import (
    DucktailError,
    SerializationFailure,
    SourceUnavailable,
    UndefinedObject,
    UndefinedTable,
)
from ...engine.groups.feed_activity import CONNECTING, COPYING, STREAMING, WAITING
from ...engine.table_changes.feeding import PASSING, Feeder
from ...engine.waiting import drive
from .connector import Changes, Connector, Copy
from .registry import connector_of

# Changes and bytes that are stored in one transaction of DuckDB; a larger one of the source is alone.
BATCH_ROWS, BATCH_BYTES = 20_000, 16 << 20
# Pauses between attempts: the first, and the longest.
PAUSE_S, PAUSE_MAX_S = 1.0, 60.0
# How often the source is asked where it is.
LOOK_S = 1.0
# How long a piece is waited for at once; and the rest of a large transaction, which holds the writer lock.
NEXT_S, STALLED_S = 0.5, 10.0
STOP_LOCK_MS = 5_000
REASON_CHARS_MAX = 1000

log = logging.getLogger("ducktail.sources")


class FeedRunner(threading.Thread):
    """The runner of one feed.

    Args:
        on_end: called on its thread when it has ended.
    """

    def __init__(self, database: Database, feed: Feed, on_end: Callable[[FeedRunner], None]) -> None:
        super().__init__(name=f"source {feed.uid}", daemon=True)
        self.stream_id = feed.stream_id
        self.changed_us = feed.changed_us
        self._database = database
        self._session_id = database.sessions.new_id()
        self._on_end = on_end
        self._ending = threading.Event()
        self._resumed = threading.Event()
        self._mutex = threading.Lock()
        self._connector: Connector | None = None
        self._pause_s = PAUSE_S

    def stop(self) -> None:
        """End it: a transaction that is being stored may end; from any thread."""
        self._ending.set()
        self._resumed.set()
        with self._mutex:
            if self._connector is not None:
                self._connector.close()

    def run(self) -> None:
        """Read the source until it is stopped."""
        try:
            while not self._ending.is_set():
                self._attempt()
        finally:
            self._on_end(self)

    def _attempt(self) -> None:
        """Read until a fault, and judge it."""
        try:
            with closing(self._database.cursor(utc=True)) as cursor:
                ending = self._ending.is_set
                self._read(Feeder(self._database, self.stream_id, self._session_id, cursor, ending))
        except Exception as error:
            if self._ending.is_set() or self.stream_id not in self._database.catalog.feeds:
                return
            if isinstance(error, duckdb.Error):
                error = translated(error)
            if isinstance(error, PASSING):
                self._wait(error)
                return
            if not isinstance(error, DucktailError):
                log.exception("the source of stream %s", self.stream_id)
            self._stop_for(error)

    def resume(self) -> None:
        """Make the next attempt at once, if one is waited for; from any thread."""
        self._pause_s = PAUSE_S
        self._resumed.set()

    def _wait(self, error: DucktailError) -> None:
        """Wait before the next attempt, longer each time."""
        now_us = self._database.clock.now_us()
        pause_s = self._pause_s * random.uniform(0.75, 1.25)
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
        log.warning(
            "the source of stream %s: %s; the next attempt is in %.1f s", self.stream_id, error, pause_s
        )
        self._database.feed_activity.set(
            self.stream_id,
            phase=WAITING,
            fault=str(error),
            fault_us=now_us,
            retry_us=now_us + int(pause_s * 1_000_000),
        )
        self._resumed.clear()
        if not self._ending.is_set():
            self._resumed.wait(pause_s)

    def _stop_for(self, error: Exception) -> None:
        """Stop the feed for a reason that needs a user; it is stored: a restart does not try again."""
        reason = str(error) or type(error).__name__
        if isinstance(error, DucktailError):
            reason = " ".join(
                part for part in (f"{error.sqlstate}: {error.message}.", error.detail, error.hint) if part
            )
        log.error("the source of stream %s stops: %s", self.stream_id, reason)
        while not self._ending.is_set():
            try:
                with closing(self._database.cursor(utc=True)) as cursor:
                    self._set_stopped(cursor, reason[:REASON_CHARS_MAX])
                self._ending.set()
            except SerializationFailure:
                return  # It was dropped.
            except (DucktailError, duckdb.Error) as failed:
                # It could not be stored: the source is not asked again meanwhile.
                self._wait(failed if isinstance(failed, DucktailError) else translated(failed))

    def _set_stopped(self, cursor: duckdb.DuckDBPyConnection, reason: str) -> None:
        database, transactions = self._database, self._database.transactions
        transaction = transactions.begin(self._session_id, cursor, "")
        try:
            drive(transactions.lock_for(transaction, STOP_LOCK_MS))
            feeds.set_state(database, transaction, self.stream_id, STOPPED, reason)
        except BaseException:
            transactions.rollback(transaction)
            raise
        drive(transactions.commit(transaction, STOP_LOCK_MS))

    # One attempt.

    def _read(self, feeder: Feeder) -> None:
        activity = self._database.feed_activity
        feed = feeder.begin()
        activity.set(self.stream_id, phase=CONNECTING)
        connector = connector_of(feed)
        with self._mutex:
            self._connector = connector
        try:
            if self._ending.is_set():
                return
            if feed.position is None:
                self._copy(feeder, connector, feed)
            elif any(table.asked is not None for table in feed.tables):
                self._copy_again(feeder, connector, feed)
            else:
                with self._changes(connector, feed) as changes:
                    self._follow(feeder, changes, feed, STREAMING)
        finally:
            feeder.abandon()
            with self._mutex:
                self._connector = None
            connector.close()

    @staticmethod
    @contextmanager
    def _changes(connector: Connector, feed: Feed, until: str | None = None) -> Iterator[Changes]:
        """The changes after what is stored, of the tables whose changes are stored."""
        assert feed.position is not None, "the initial copy is stored"
        tables = [table.table for table in feed.tables if not table.joins]
        changes = connector.changes(tables, feed.position, until)
        try:
            yield changes
        finally:
            with suppress(DucktailError):
                changes.close()

    def _copy(self, feeder: Feeder, connector: Connector, feed: Feed) -> None:
        """Begin at the source, and copy the rows that are there; anew after a fault."""
        with connector.begin() as copy:
            # The copy keeps the tables from being altered: these are their definitions as of its position.
            tables = connector.describe()
            feed = feeder.redefine(tables)
            if feed.copies:
                log.info("the initial copy of stream %s begins", self.stream_id)
                first = [table.table for table in feed.tables if not table.joins]
                self._stage(feeder, connector, copy, tables, first)
            feeder.copied(copy.position)
        self._database.feed_activity.set(self.stream_id, copied_rows=0)

    def _copy_again(self, feeder: Feeder, connector: Connector, feed: Feed) -> None:
        """Take the copies that are asked for, as of a position up to which everything else is stored."""
        connector.describe()
        if any(table.joins for table in feed.tables):
            # Before the copy: all changes after its position are sent then.
            connector.publish()
        log.info("a copy of tables of stream %s begins", self.stream_id)
        with connector.copy() as copy:
            tables = connector.describe()
            known = {table.key_in_source: table for table in tables}
            full: list[SourceTable] = []
            for table in feed.tables:
                if table.asked is None:
                    continue
                found = known.get(table.table.key_in_source)
                if found is None:
                    raise UndefinedTable(f"table {table.table.shown} is no longer at the source")
                if table.joins and not feed.copies:
                    feeder.stage(found, (), first=True)
                else:
                    full.append(found)
            self._stage(feeder, connector, copy, tables, full)
            position = copy.position
        with self._changes(connector, feed, position) as changes:
            self._follow(feeder, changes, feed, COPYING)
            if not changes.ended:
                return
        feeder.copied(position)
        self._database.feed_activity.set(self.stream_id, copied_rows=0)
        log.info("the copy of tables of stream %s is stored, as of %s", self.stream_id, position)

    def _stage(
        self,
        feeder: Feeder,
        connector: Connector,
        copy: Copy,
        described: Sequence[SourceTable],
        tables: Sequence[SourceTable],
    ) -> None:
        """Read the rows of tables of a copy.

        Args:
            described: the definitions as of the copy.
        """
        activity, rows = self._database.feed_activity, 0
        activity.set(self.stream_id, phase=COPYING, copied_rows=0)
        for table in tables:
            feeder.stage(table, (), first=True)
            for block in self._rows(connector, copy, described, table):
                if self._ending.is_set():
                    raise UndefinedObject("the source is being ended")
                feeder.stage(table, block, first=False)
                rows += len(block)
                activity.set(self.stream_id, copied_rows=rows)

    @staticmethod
    def _rows(
        connector: Connector, copy: Copy, described: Sequence[SourceTable], table: SourceTable
    ) -> Iterator[Sequence[tuple[object, ...]]]:
        """The rows of a table; an error because it was altered in the meantime is worth another attempt."""
        try:
            yield from copy.rows(table)
        except SourceUnavailable:
            raise
        except DucktailError as error:
            if list(connector.describe()) == list(described):
                raise
            raise SourceUnavailable(
                f"table {table.shown} was altered while it was copied", detail=error.message
            ) from error

    def _follow(self, feeder: Feeder, changes: Changes, feed: Feed, phase: str) -> None:
        """Store the changes as they come, until the feed is altered or they end."""
        activity, looked_s = self._database.feed_activity, 0.0
        events = transactions = 0
        known = activity.status(self.stream_id)
        if known is not None:
            events, transactions = known.events, known.transactions
        activity.set(self.stream_id, phase=phase)
        came_s = time.monotonic()
        while not self._ending.is_set() and not changes.ended:
            if phase == STREAMING and not feeder.is_open and feeder.feed.agenda != feed.agenda:
                return
            piece = changes.next(NEXT_S)
            if piece is None and feeder.is_open and time.monotonic() > came_s + STALLED_S:
                raise SourceUnavailable(
                    f"the rest of a transaction of the source has not come within {STALLED_S:.0f} s"
                )
            if piece is not None:
                came_s = time.monotonic()
                pieces = _gathered(changes, piece)
                events += feeder.write(pieces)
                ended = [one.commit for one in pieces if one.commit is not None]
                transactions += sum(1 for one in pieces if one.commit is not None and one.changes)
                if ended:
                    if not feeder.is_open:
                        changes.confirm(ended[-1].position)
                    self._pause_s = PAUSE_S
                    activity.set(
                        self.stream_id,
                        commit_us=ended[-1].commit_us,
                        events=events,
                        transactions=transactions,
                        fault=None,
                        fault_us=0,
                        retry_us=0,
                    )
            if time.monotonic() >= looked_s + LOOK_S:
                behind, end = changes.behind()
                facts: dict[str, object] = {"behind_bytes": behind, "source_end": end}
                if phase == STREAMING and piece is None and not feeder.is_open:
                    # Nothing is on the way: the rest of the source's log has no changes of the tables.
                    facts |= {"behind_bytes": 0, "level_us": self._database.clock.now_us(), "fault": None}
                    self._pause_s = PAUSE_S
                activity.set(self.stream_id, **facts)
                looked_s = time.monotonic()


def _gathered(changes: Changes, first: Piece) -> list[Piece]:
    """A piece, and those that are there without waiting, up to a bound."""
    pieces, rows, size = [first], len(first.changes), first.bytes
    while rows < BATCH_ROWS and size < BATCH_BYTES:
        piece = changes.next(0)
        if piece is None:
            break
        pieces.append(piece)
        rows += len(piece.changes)
        size += piece.bytes
    return pieces
