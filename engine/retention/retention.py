"""Retention: the removal of the oldest events and of unneeded copies, so that the log stays bounded.

One thread runs a pass every `retention_interval_ms`. For each stream the pass finds the LSN up to which
events must be removed (by time, by bytes), always the end of a transaction, and then does three things, each
in transactions of its own:

1. The edges move (`edges.py`). Events are counted first, without any lock; under the writer lock only the few
   rows of the edges are written, and the buffers follow.
2. Rows of the log behind the edges of all of its table's streams are deleted in steps (`deleted_prefix.py`),
   and compaction deletes superseded rows (`compaction.py`). The empty log of an earlier version of the table
   is dropped.
3. Rows of `commits` that no log needs are deleted, except the last one (the source of counters).

A pass killed at any point leaves correct edges, and unread rows behind them, which the next pass removes. The
log is only deleted behind durable edges. The writer lock is released after each step, so a writer waits for
one step at most.

A pass also removes whole copies: a copy's table is dropped once its group has committed all of it in each
partition, has left it, or was dropped; so is a table without a copy after a crash. The LSNs in `group_copies`
that no log has stay until their rows of `commits` are deleted. Source: docs/design/engine.md, "Retention";
docs/design/copies.md.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import duckdb

from ..catalog.captured_tables import Source
from ..catalog.catalog import Catalog
from ..catalog.copies import NOBODY, TABLE, Copy, copy_tables
from ..catalog.streams import Stream
from ..duck.cursors import ask
from ..duck.duckdb_errors import translated
from ..errors import LockNotAvailable
from ..groups.offsets import Offsets
from ..log.deleted_ranges import BY_BYTES, BY_TIME
from ..parts import Parts
from ..schema import SCHEMA
from ..waiting import drive
from .compaction import Compaction
from .deleted_prefix import RowsBehind
from .edges import Cuts, Goal
from .steps import Steps

logger = logging.getLogger(__name__)
# Rows of the catalog whose LSNs are no longer in `commits`.
_FORGOTTEN = (
    f"FROM {TABLE} WHERE group_id = {NOBODY} "
    f"AND last_lsn < (SELECT coalesce(min(first_lsn), 0) FROM {SCHEMA}.commits)"
)


class Retention:
    """The retention thread and the steps of its passes.

    Args:
        owner: its number as an owner of the writer lock, like a session's.
    """

    def __init__(
        self, database: Parts, cursor: duckdb.DuckDBPyConnection, owner: int, interval_ms: int
    ) -> None:
        self._database = database
        self.steps = Steps(cursor, database.transactions, owner)
        self._interval_s = interval_ms / 1000
        self.cuts = Cuts(database, self.steps)
        self._rows_behind = RowsBehind(database, self.steps)
        self.compaction = Compaction(database, self.steps, self.cuts.find_first)
        self.copies_over = CopiesOver(database.catalog, database.offsets, self.steps)
        self._passing = threading.Lock()  # one pass at a time has the cursor
        self._thread = threading.Thread(target=self._run, name="ducktail-retention", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread after its current step."""
        self.steps.stop.set()
        self.steps.cursor.interrupt()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self.steps.stop.wait(self._interval_s):
            try:
                self.look()
            except LockNotAvailable as busy:
                logger.info("retention waits for the next pass: %s", busy)
            except Exception:  # After any error the next pass tries again; no step is done by half.
                if not self.steps.stop.is_set() and not self._database.has_fallen():
                    logger.exception("letting go of old events")

    def look(self) -> None:
        """Run one pass over all streams.

        Raises:
            LockNotAvailable: a transaction holds the writer lock for too long.
            DucktailError: a translated error of DuckDB.
        """
        with self._passing:
            try:
                # Notices a jump of the clock even without writers.
                self._database.commits.times.now_us()
                # Bytes are counted when events are published.
                drive(self._database.commits.wait_readable())
                failure: duckdb.Error | None = None
                for source in self._sources():
                    if self.steps.stop.is_set():
                        return
                    try:
                        self._look_at(source)
                    except duckdb.Error as error:
                        failure = failure or error  # A damaged log does not stop the deletion of others.
                self._rows_behind.cut_commits()
                self._rows_behind.drop_copies()
                self.copies_over.look()
                for source in self._sources():
                    self._rows_behind.drop_emptied(source.table_id)
                if failure is not None:
                    raise failure
            except duckdb.Error as error:
                raise translated(error) from error

    def _look_at(self, source: Source) -> None:
        streams = self._database.catalog.streams_over(source.table_id)
        goals = {stream.stream_id: self._goal(stream) for stream in streams}
        for stream in streams:
            # After the goals: events older than a removed event are removed as well.
            self.cuts.cut_segments(stream)
        self.cuts.move(source.table_id, goals)
        self._rows_behind.cut_log(source.table_id)
        present = self._database.catalog.source_by_id(source.table_id)
        if present is not None:
            self.compaction.look(present)

    def trim(self, stream: Stream, through_lsn: int, reason: str = BY_TIME) -> None:
        """Remove one stream's events up to the end of the transaction that contains `through_lsn`.

        Raises:
            LockNotAvailable: a transaction holds the writer lock for too long.
            DucktailError: a translated error of DuckDB.
        """
        with self._passing:
            try:
                for table_id in stream.tables:
                    # A stream over several tables has a single edge, which moves with the first of them.
                    self.cuts.move(table_id, {stream.stream_id: Goal(through_lsn, reason)})
                    self._rows_behind.cut_log(table_id)
                    self._rows_behind.drop_emptied(table_id)
                self._rows_behind.cut_commits()
            except duckdb.Error as error:
                raise translated(error) from error

    def _sources(self) -> list[Source]:
        with self._database.catalog.mutex:
            return self._database.catalog.sources

    # Goals.

    def _goal(self, stream: Stream) -> Goal | None:
        """The LSN up to which a stream's events are removed now, with the reason."""
        goals = []
        if stream.retention_us is not None:
            before_us = self._database.commits.times.expired_before_us(stream.retention_us)
            row = ask(
                self.steps.cursor,
                f"SELECT coalesce(max(last_lsn), 0) FROM {SCHEMA}.commits "
                f"WHERE commit_time < make_timestamptz({max(0, before_us)})",
            )
            goals.append(Goal(int(row[0]), BY_TIME))
        buffer = self._database.buffers.get(stream.stream_id)
        if stream.retention_bytes is not None and buffer is not None:
            with buffer.mutex:
                excess = buffer.retained_bytes.excess_through(stream.retention_bytes)
            if excess is not None:
                goals.append(Goal(excess, BY_BYTES))
        return max(goals, key=lambda goal: goal.through_lsn, default=None)


class CopiesOver:
    """The removal of whole copies that are no longer needed."""

    def __init__(self, catalog: Catalog, offsets: Offsets, steps: Steps) -> None:
        self._catalog = catalog
        self._offsets = offsets
        self._steps = steps

    def look(self) -> None:
        """Drop the tables of copies that are no longer needed.

        Raises:
            LockNotAvailable: a transaction holds the writer lock for too long.
            duckdb.Error: DuckDB failed; the step has no effect.
        """
        with self._catalog.mutex:
            copies = [copy for copy in self._catalog.copies.values() if copy.spans]
        for copy in copies:
            if self._is_read(copy):
                with self._steps.locked():
                    self._drop(copy)
        if self._unused() or ask(self._steps.cursor, f"SELECT count(*) {_FORGOTTEN}")[0]:
            with self._steps.locked():
                drops = [f"DROP TABLE {table}" for table in self._unused()]
                self._steps.transaction([*drops, f"DELETE {_FORGOTTEN}"])

    def _drop(self, copy: Copy) -> None:
        """Drop the table of a fully read copy, under the writer lock.

        If a SEEK or a commit holds the group, the next pass does it.
        """
        try:
            held = self._offsets.lock(copy.group_id, self._steps.owner) is None
            if held and self._catalog.copies.get(copy.group_id) is copy and self._is_read(copy):
                over = replace(copy, spans={})
                self._steps.transaction([over.update_sql(), f"DROP TABLE {copy.table}"])
                with self._catalog.mutex:
                    self._catalog.copies[copy.group_id] = over
        finally:
            self._offsets.unlock([copy.group_id], self._steps.owner)

    def _is_read(self, copy: Copy) -> bool:
        """True if its group has committed all of its rows."""
        positions = self._offsets.positions(copy.group_id)
        return not any(copy.left(number, at.lsn) for number, at in positions.items())

    def _unused(self) -> list[str]:
        """The tables of copies that are neither read nor being created."""
        tables = copy_tables(self._steps.cursor)
        with self._catalog.mutex:
            used = {copy.copy_id for copy in self._catalog.copies.values() if copy.spans}
            used |= self._catalog.copying.keys()
        return [table for number, table in tables if number not in used]
