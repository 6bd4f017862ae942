"""Compaction: of what is older than `compaction_lag`, a stream keeps the last event of each key.

It works on the log of a table or a topic, as retention does, and takes the rows that no stream over it needs
(`superseded.py` has what they need). Up to where it goes, its horizon, is the least of what the
streams allow: of a compacted stream what was committed `compaction_lag` ago, of another one its edge, as that
shows all that it retains; and of what all open transactions and reads see, which end there.

A pass first works out what goes, without any lock. Then, each in a transaction under the writer lock: the
row-hash sum is carried over the range; the range is recorded; rows go, `STEP_ROWS` at a time, the oldest
first, so that no delete goes before what it deletes; the range is finished. Killed between any two, the next
pass takes away what is left, and the counts of what is gone are right. Nothing that was compacted stays in
the buffers.
Source: docs/design/compaction.md.
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ..asking import ask, ask_maybe
from ..buffers.buffers import Buffers
from ..buffers.publisher import Publisher
from ..checks.row_sums import fold_statement
from ..clock import Clock
from ..errors import DataCorrupted
from ..log import compacted
from ..log.compacted import Range
from ..log.logs import facts
from ..offsets.parked import Parked, ParkedEvent
from ..offsets.polls import Polls
from ..placement.membership import Membership
from ..quoting import literal
from ..schema import SCHEMA
from ..sessions import Sessions
from ..streams.captured import Source, TopicLog
from ..streams.catalog import Catalog
from ..streams.streams import Bookmark, Stream
from ..tally import Tally
from ..transactions.commits import Commits
from ..waiting import run
from ..whole import whole
from .steps import Steps
from .superseded import GOING, GONE, Pass, Superseded

logger = logging.getLogger(__name__)

# Rows of the log that one step deletes, and LSNs over which one carries the row-hash sum.
STEP_ROWS, STEP_LSNS = 20_000, 100_000
# Bookmarks of one UPDATE: its text is parsed as a whole.
BOOKMARKS_AT_ONCE = 100
# From when a commit is given its time until a snapshot has it, at the most; microseconds.
COMMIT_US = 1_000_000
# A pass looks at all that is older than its horizon: it is worth that once what has come since the last one
# is such a part of the rest, and else not more often than once in a `compaction_lag`.
DIRTY_SHARE = 4
# Nor than so many times as long as the last one took: a log of many keys, of which few are new, costs a pass
# as many looks as any, and a `compaction_lag` may be a second.
REST = 50


class Compacting(Protocol):
    """What compaction needs of an open database (`database.Database`)."""

    catalog: Catalog
    buffers: Buffers
    parked: Parked
    polls: Polls
    publisher: Publisher
    commits: Commits
    sessions: Sessions
    clock: Clock
    cluster: Membership
    unlike: dict[int, str]


class Compaction:
    """The passes of one database; see the head of the file.

    Args:
        find_first: looks for the first retained events of a stream's partitions.
    """

    def __init__(self, database: Compacting, steps: Steps, find_first: Callable[[Stream], None]) -> None:
        self._database = database
        self._steps = steps
        self._find_first = find_first
        self._done: dict[int, dict[int, int]] = {}  # table id -> `Pass.expired` of the last whole pass
        self._rests: dict[int, float] = {}  # table id -> up to when little that is new is no reason for one
        self.removed = Tally()  # rows of logs

    def look(self, source: Source) -> None:
        """Compact the log of a table, or of a topic, where that is due.

        Raises:
            LockNotAvailable: 55P03, a transaction holds the writer lock for too long. duckdb.Error: what
            DuckDB said.
        """
        found = self._due(source)
        if found is None:
            return
        # The buffers count what is published, and what goes must be counted there before.
        run(self._database.publisher.wait_published(found.through_lsn))
        begun_s = self._database.clock.monotonic_s()
        superseded = Superseded(self._steps.cursor, self._database.catalog, found)
        try:
            superseded.work_out()
            first = superseded.first_delete()
            if first is not None:
                found = replace(
                    found,
                    ranges=compacted.begun_again(found.ranges, first),
                    expired={number: min(lsn, first - 1) for number, lsn in found.expired.items()},
                )
            if self._remove(found, superseded):
                self._done[source.table_id] = dict(found.expired)
        finally:
            superseded.close()
            now_s = self._database.clock.monotonic_s()
            self._rests[source.table_id] = now_s + REST * (now_s - begun_s)
        for stream in found.streams:
            present = self._database.catalog.stream_by_id(stream.stream_id)
            if present is not None:
                self._find_first(present)

    # What is to be done.

    def _due(self, source: Source) -> Pass | None:
        """What a pass would be about; None where none is due."""
        streams = [stream for stream in source.streams if stream.compaction == "key"]
        database, cursor, table_id = self._database, self._steps.cursor, source.table_id
        buffers = [database.buffers.get(stream.stream_id) for stream in source.streams]
        # What is damaged, or differs from its table, stays as it is until that is mended.
        if not streams or table_id in database.unlike:
            return None
        if any(buffer is None or buffer.failure is not None for buffer in buffers):
            return None
        if isinstance(source, TopicLog) and database.cluster.placement.epoch:
            return None  # Its partitions may move, and their events with them.
        ranges, times = compacted.read_ranges(cursor, table_id), database.commits.times
        now_us = times.steady_us()
        done = compacted.through(ranges)
        lag_us = max(stream.compaction_lag_us for stream in streams)
        begun = (entry.transaction_us for entry in database.sessions.glimpse())
        # A transaction reads up to its snapshot: what supersedes an event must be in that as well.
        snapshots_us = (us - COMMIT_US for us in begun if us is not None)
        before_us = min([times.expired_before_us(lag_us), *snapshots_us])
        # So does a read of a stream. Who is further behind may miss deletes as well.
        since_us = {s.stream_id: now_us - s.tombstone_retention_us - s.compaction_lag_us for s in streams}
        end_lsn = database.buffers.under_way.least_end(since_us)
        (through_lsn,) = ask(
            cursor,
            f"SELECT coalesce(max(last_lsn), 0) FROM {SCHEMA}.commits WHERE last_lsn > {done} "
            f"AND commit_time <= make_timestamptz({max(0, before_us)})"
            + ("" if end_lsn is None else f" AND last_lsn <= {end_lsn}"),
        )
        through_lsn = max(done, through_lsn)
        for stream in source.streams:
            if stream.compaction != "key":
                through_lsn = min(through_lsn, self._start(stream))
        if through_lsn < done:
            return None  # What one that is compacted no more has left of the ranges is not to go.
        if not through_lsn or through_lsn > database.commits.last_lsn:
            return None  # A COMMIT has not returned yet: the next pass sees.
        expired = {
            stream.stream_id: compacted.expired_through(ranges, now_us - stream.tombstone_retention_us)
            for stream in streams
        }
        if not self._is_worth(source, ranges, through_lsn, now_us - lag_us, expired):
            return None
        return Pass(
            source,
            through_lsn,
            compacted.extended(ranges, through_lsn),
            {stream.stream_id: self._start(stream) for stream in streams},
            expired,
            {stream.stream_id: self._aside(stream) for stream in streams},
        )

    def _is_worth(
        self,
        source: Source,
        ranges: Sequence[Range],
        through_lsn: int,
        lately_us: int,
        expired: Mapping[int, int],
    ) -> bool:
        done, dirty, clean = compacted.through(ranges), 0, 0
        for log in source.logs:
            sql = f"SELECT count(*) FILTER (lsn > {done}), count(*) FILTER (lsn <= {done}) FROM {log}"
            more, rest = ask(self._steps.cursor, f"{sql} WHERE lsn <= {through_lsn}")
            dirty, clean = dirty + more, clean + rest
        before, last_us = self._done.get(source.table_id), ranges[-1].compacted_us if ranges else None
        # The last one did not come to its end, or nobody knows; or there are deletes that may go.
        if before is None or last_us is None:
            return bool(dirty or clean)
        if dirty * DIRTY_SHARE >= max(clean, 1):
            return True
        if self._database.clock.monotonic_s() < self._rests.get(source.table_id, 0):
            return False
        if any(lsn > before.get(number, 0) for number, lsn in expired.items()):
            return bool(clean)
        return bool(dirty) and last_us <= lately_us

    def _start(self, stream: Stream) -> int:
        """The LSN after which a stream retains its events."""
        return max(stream.created_lsn, self._database.buffers[stream.stream_id].edge_lsn)

    def _aside(self, stream: Stream) -> frozenset[ParkedEvent]:
        """What the groups of a stream have parked, and released."""
        with self._database.catalog.mutex:
            groups = self._database.catalog.groups_of(stream.stream_id)
        parked = [self._database.parked.get(group.group_id) for group in groups]
        return frozenset(event for found in parked if found is not None for event in found.events.values())

    def _stands(self, found: Pass) -> bool:
        """Under the writer lock: whether table and streams are as they were, and nothing more is parked."""
        table_id = found.source.table_id
        present = self._database.catalog.source_by_id(table_id)
        if present != found.source or table_id in self._database.unlike:
            return False
        return all(self._aside(stream) <= found.aside[stream.stream_id] for stream in found.streams)

    # Taking it away.

    def _remove(self, found: Pass, superseded: Superseded) -> bool:
        """Delete what goes, step by step; whether all of it has gone."""
        ends, left = superseded.ends(STEP_ROWS), superseded.left()
        is_new = found.ranges[-1].compacted_us is None
        ranges = self._record(found) if ends or is_new else found.ranges
        low, rows = 0, 0
        for high in ends if ranges else ():
            if self._steps.stop.is_set():
                return False
            counted = self._step(found, ranges, low, high)
            if counted is None:
                return False
            rows += sum(after.removed - before.removed for before, after in zip(ranges, counted, strict=True))
            ranges, low = counted, high
        return bool(ranges) and self._finish(found, ranges, left, rows)

    def _record(self, found: Pass) -> tuple[Range, ...]:
        """Say that the pass's range is being compacted; gives the ranges, none if the pass stands no more."""
        if not self._carry_sum(found):
            return ()
        statements = compacted.rows_sql(found.source.table_id, found.ranges)
        with self._steps.locked():
            if not self._stands(found):
                return ()
            # Who makes buffers anew from the log must know of it.
            with self._database.buffers.edges_lock:
                self._steps.transaction(statements)
                for stream in found.streams:
                    self._database.buffers[stream.stream_id].compact(found.through_lsn)
        return found.ranges

    def _carry_sum(self, found: Pass) -> bool:
        """Add what goes to the table's row-hash sum, while all of it is there; whether the pass stands."""
        captured, cursor = found.source, self._steps.cursor
        if isinstance(captured, TopicLog):
            return True
        kept = f"SELECT lsn FROM {SCHEMA}.row_sums WHERE table_id = {captured.table_id}"
        while (row := ask_maybe(cursor, kept)) is not None and row[0] < found.through_lsn:
            after = f"WHERE lsn > {row[0]}"
            lsns = " UNION ALL ".join(f"SELECT min(lsn) AS lsn FROM {log} {after}" for log in captured.logs)
            (first,) = ask(cursor, f"SELECT min(lsn) FROM ({lsns})")
            last = found.through_lsn if first is None else min(first + STEP_LSNS - 1, found.through_lsn)
            with self._steps.locked():
                if not self._stands(found):
                    return False
                self._steps.transaction([fold_statement(captured, last)])
        return True

    def _step(self, found: Pass, ranges: Sequence[Range], low: int, high: int) -> tuple[Range, ...] | None:
        """Delete what goes of one range of LSNs, the first one excluded; None if the pass stands no more."""
        window = f"lsn > {low} AND lsn <= {high}"
        going = f"lsn IN (SELECT lsn FROM {GOING} WHERE {window})"
        removed = [
            ask(
                self._steps.cursor,
                f"SELECT count(*) FROM {GOING} WHERE {window} AND lsn BETWEEN {r.first_lsn} AND {r.last_lsn}",
            )[0]
            for r in ranges
        ]
        # Fetched before the lock is held: of each stream and partition the LSNs of its events that go.
        gone: dict[int, dict[int, list[int]]] = {}
        for stream_id, partition, lsns in self._execute(
            f"SELECT stream_id, partition, list(lsn ORDER BY lsn) FROM {GONE} WHERE {window} GROUP BY ALL"
        ):
            gone.setdefault(stream_id, {})[partition] = lsns
        after = compacted.counted(ranges, removed)
        with self._steps.locked():
            if not self._stands(found):
                return None
            bookmarks = list(self._bookmarks(gone))
            with self._database.buffers.edges_lock:
                with whole(self._steps.cursor):
                    deleted = 0
                    for log in found.source.logs:
                        deleted += ask(self._steps.cursor, f"DELETE FROM {log} WHERE {window} AND {going}")[0]
                    if deleted != sum(removed):
                        raise DataCorrupted(
                            f"compacting the log of {found.source.shown_name}: {deleted} rows are there of "
                            f"{sum(removed)} that go"
                        )
                    for sql in (*compacted.rows_sql(found.source.table_id, after), *_put_sql(bookmarks)):
                        self._execute(sql)
                for stream_id, going_lsns in gone.items():
                    counts = {partition: len(lsns) for partition, lsns in going_lsns.items()}
                    self._database.buffers[stream_id].compacted(counts)
            with self._database.catalog.mutex:
                self._database.catalog.bookmarks.update({mark.key: mark for mark in bookmarks})
        self.removed.add(deleted)
        for stream_id in gone:
            # Who waits for events has counted them as they were numbered before.
            self._database.polls.look_again(stream_id)
        return after

    def _bookmarks(self, gone: Mapping[int, Mapping[int, Sequence[int]]]) -> Iterator[Bookmark]:
        """Under the writer lock: the bookmarks behind which events go, with the counts they have then."""
        for stream_id, partitions in gone.items():
            with self._database.catalog.mutex:
                bookmarks = self._database.catalog.bookmarks_of(stream_id)
            for bookmark in bookmarks:
                positions = {
                    p: count - bisect_right(partitions.get(p, ()), bookmark.lsns[p])
                    for p, count in bookmark.positions.items()
                }
                if positions != bookmark.positions:
                    yield replace(bookmark, positions=positions)

    def _finish(self, found: Pass, ranges: Sequence[Range], left: Mapping[int, float], rows: int) -> bool:
        """Say since when the ranges are compacted; whether the pass stood to its end."""
        table_id = found.source.table_id
        keep_us = max(s.tombstone_retention_us for s in found.source.streams if s.compaction == "key")
        after = compacted.finished(ranges, self._database.commits.times.steady_us(), keep_us)
        if list(after) != list(compacted.read_ranges(self._steps.cursor, table_id)):
            with self._steps.locked():
                if not self._stands(found):
                    return False
                self._steps.transaction(compacted.rows_sql(table_id, after))
        for stream in found.streams:
            self._database.buffers[stream.stream_id].thinned(left[stream.stream_id])
        if rows:
            about = facts(table=found.source.shown_name, rows=rows, through_lsn=found.through_lsn)
            logger.info("the log is compacted", extra=about)
        return True

    def _execute(self, sql: str) -> list[tuple[Any, ...]]:
        return self._steps.cursor.execute(sql).fetchall()


def _put_sql(bookmarks: Sequence[Bookmark]) -> list[str]:
    rows = [f"({mark.bookmark_id}, {literal(json.dumps(dict(mark.positions)))})" for mark in bookmarks]
    return [
        f"UPDATE {SCHEMA}.bookmark_catalog SET positions = found.positions "
        f"FROM (VALUES {', '.join(rows[first : first + BOOKMARKS_AT_ONCE])}) AS found (id, positions) "
        "WHERE bookmark_id = found.id"
        for first in range(0, len(rows), BOOKMARKS_AT_ONCE)
    ]
