"""The buffers of all streams: made from the logs, filled by the publisher, kept within one byte bound.

If publishing of a stream fails, its buffers are rebuilt from its log; if that fails too, its readers get the
error, and the other streams continue. Each stream's buffers have their own bound (`buffer_bytes`). A second
bound limits the sum over all streams: the oldest events are dropped first, and stay in the log. Source:
docs/design/engine.md, "Publisher", "Memory".
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from weakref import WeakSet

import duckdb

from ..catalog.catalog import Catalog
from ..catalog.streams import Stream
from ..checks.check import unlike_error
from ..clock import Clock
from ..duck.duckdb_errors import translated
from ..errors import DucktailError, OutOfMemory, SerializationFailure, UndefinedObject
from ..groups.polls import Polls
from ..log.envelope_changes import ChangesQuery
from ..log.queries import Events, event_query, newest_query, with_copy
from ..notifications import Notifications
from ..server_log import without_values
from .buffer import StreamBuffer
from .publisher import Note
from .publishing import publish, ready_of, refill
from .read_ahead import ReadAhead
from .ready import ReadyQueries
from .scan import Scan, ScanRange

logger = logging.getLogger(__name__)

# Seconds for which rows of ENVELOPE CHANGES are kept ready after the last hot read of them: a poll loop
# pauses for less, and each event costs twice while they are kept.
CHANGES_IDLE_S = 60.0
# Number of long polls up to which a committing thread wakes the readers itself: some 10 us each.
LIGHT_POLLS_MAX = 16
# Above the bound a sixty-fourth of it more than necessary is dropped, so that the oldest events need not be
# found for each commit.
SLACK = 64
# Events that one stream drops at a time: if several streams are on one table, its events alternate between
# them.
STEP_EVENTS = 64


class Buffers:
    """The buffers of all streams of a database.

    Args:
        bytes_max: the byte bound of all buffers together.
        cursor: returns a new cursor of the engine, in UTC.
        damage: stream id -> the error because of which its log must not be read.
        unlike: table id -> the finding of CHECK STREAM for a table that differs from its log.
        has_fallen: asks DuckDB if it has invalidated the database.
        notifications, polls: informed of events that have become readable.
        queries: the prepared queries of the events of small rounds.

    Attributes:
        running_scans: the scans that have begun and not ended.
    """

    def __init__(
        self,
        catalog: Catalog,
        bytes_max: int,
        clock: Clock,
        cursor: Callable[[], duckdb.DuckDBPyConnection],
        damage: Mapping[int, DucktailError],
        unlike: Mapping[int, str],
        has_fallen: Callable[[], bool],
        notifications: Notifications,
        polls: Polls,
        queries: ReadyQueries,
    ) -> None:
        self.edges_lock = threading.Lock()  # held to move edges, or to read them for rebuilding buffers
        self._catalog = catalog
        self._bytes_max = bytes_max
        self._clock = clock
        self._new_cursor = cursor
        self._damage = damage
        self._unlike = unlike
        self._has_fallen = has_fallen
        self._notifications = notifications
        self._polls = polls
        self._queries = queries
        self._cursor = cursor()  # the publisher's
        self._by_stream: dict[int, StreamBuffer] = {}
        self._ahead = ReadAhead()
        self.running_scans = RunningScans()

    def close(self) -> None:
        """Wait for the windows that are being read ahead for scans."""
        self._ahead.close()

    def __getitem__(self, stream_id: int) -> StreamBuffer:
        return self._by_stream[stream_id]

    def __iter__(self) -> Iterator[StreamBuffer]:
        with self._catalog.mutex:
            return iter(list(self._by_stream.values()))

    def get(self, stream_id: int) -> StreamBuffer | None:
        """A stream's buffers by its number, or None if it was dropped."""
        return self._by_stream.get(stream_id)

    def of(self, stream: Stream) -> StreamBuffer:
        """A stream's buffers.

        Raises:
            UndefinedObject: the stream has been dropped.
        """
        found = self._by_stream.get(stream.stream_id)
        if found is None:
            raise UndefinedObject(f'stream "{stream.name}" does not exist')
        return found

    def add(self, stream: Stream) -> None:
        """Create empty buffers for a new stream."""
        self._by_stream[stream.stream_id] = self._new(stream)

    def drop(self, stream: Stream) -> None:
        """Remove the buffers of a dropped stream."""
        self._by_stream.pop(stream.stream_id, None)

    def resize(self, stream: Stream) -> None:
        """Apply the stream's present byte bound to its buffers."""
        self[stream.stream_id].resize(self._bound(stream))

    def refill(self, through_lsn: int) -> None:
        """Build the buffers of all streams from their logs, each up to its share of the bound."""
        streams = self._catalog.streams.values()
        share = self._bytes_max // max(len(streams), 1)
        for stream in streams:
            buffer = self._by_stream[stream.stream_id] = self._refilled(stream, through_lsn, share)
            buffer.events_at_opening = sum(partition.events for partition in buffer.partitions)

    def remake(self, stream: Stream, through_lsn: int) -> None:
        """Rebuild the buffers of a stream that got partitions, lost its beginning, or was renamed.

        No events may be published to it meanwhile.
        """
        with self.edges_lock, closing(self._new_cursor()) as cursor:
            self._renew(stream, self._by_stream[stream.stream_id], through_lsn, cursor)
        self.hold()

    def hold(self) -> None:
        """Keep all buffers together within their bound."""
        buffers = list(self)
        changes = [buffer.changes for buffer in buffers]
        hold([*buffers, *filter(None, changes)], self._bytes_max)

    def scan(
        self, stream: Stream, bounds: ScanRange, *, changes: bool = False, planned: Events | None = None
    ) -> Scan:
        """Begin a scan of a stream; with `changes`, of its events in the form of ENVELOPE CHANGES.

        Args:
            planned: the query from which the reader has taken the columns; None for the present one.

        Raises:
            Gap: the first events have been trimmed.
            WrongState: by CHECK STREAM the table was written without ducktail, or a table was created
                without it in the schema that the stream covers.
            SerializationFailure: the stream is on several tables now, and has no changes in that form.
        """
        query = event_query(self._catalog, stream) if planned is None else planned
        if bounds.copy is not None:
            query = with_copy(self._catalog, stream, query, bounds.copy)
        self.check_served(stream)
        if not changes:
            return self._scan(query, stream, bounds)
        present = self._catalog.present(stream)
        if present is not None and present.several is not None:
            raise SerializationFailure(
                f'stream "{stream.name}" has got another table since this statement began, and has no '
                "ENVELOPE CHANGES any more",
                hint="Read the columns of an event instead.",
            )
        self.hold()  # The last such scan may have created rows.
        return self._scan(ChangesQuery(query), stream, bounds)

    def _scan(self, query: Events | ChangesQuery, stream: Stream, bounds: ScanRange) -> Scan:
        scan = Scan(
            query,
            self.of(stream),
            bounds,
            self._new_cursor,
            lambda: self._catalog.present(stream) is not None,
            self._clock,
            self._ahead,
        )
        self.running_scans.begin(scan)
        return scan

    def check_served(self, stream: Stream) -> None:
        """Check that a stream's log is undamaged and agrees with its table; every read calls it.

        Raises:
            DataCorrupted: its log or `commits` is damaged.
            WrongState: one of its tables is gone, or by CHECK STREAM was written without ducktail, or a
                table was created without it in the schema that the stream covers.
        """
        self.check_log(stream)
        behind = self._catalog.behind.get(stream.stream_id)
        if behind is not None:
            raise behind
        differs = next((table_id for table_id in stream.tables if table_id in self._unlike), None)
        if differs is not None:
            raise unlike_error(stream, self._catalog.table_by_id(differs), self._unlike[differs])

    def check_log(self, stream: Stream) -> None:
        """Check that the log could be read into the buffers; after a shortage of memory, read it now.

        Raises:
            DataCorrupted: the log is damaged.
            OutOfMemory: memory is still short.
        """
        buffer = self.of(stream)
        if isinstance(buffer.failure, OutOfMemory):
            with self.edges_lock, closing(self._new_cursor()) as cursor:
                # Another session, or the publisher, may have read it meanwhile, and further.
                if self._by_stream.get(stream.stream_id) is buffer:
                    self._renew(stream, buffer, buffer.failed_through_lsn, cursor)
            buffer = self.of(stream)
        if buffer.failure is not None:
            raise buffer.failure

    def is_unlike(self, stream: Stream) -> bool:
        """True if reads of the stream fail until RESYNC has repaired it."""
        return stream.is_on(self._unlike) or stream.stream_id in self._catalog.behind

    # What the publisher runs.

    def is_light(self, note: Note) -> bool:
        """True if a commit's events are all ready, so that no query is needed, and it wakes few readers."""
        if not note.ready or self._polls.count > LIGHT_POLLS_MAX:
            return False
        with self._catalog.mutex:
            streams = [s for s in self._catalog.streams.values() if s.is_on(note.tables)]
            queries = [newest_query(self._catalog, stream) for stream in streams]
        for query in queries:
            buffer = self._by_stream.get(query.stream.stream_id)
            if buffer is None or buffer.failure is not None or buffer.changes is not None:
                return False
            if note.last_lsn > query.stream.created_lsn and ready_of(query, [note]) is None:
                return False
        return True

    def publish(self, notes: list[Note]) -> list[Callable[[], None]]:
        """Make these transactions readable in every stream that they touched; returns the remaining work."""
        left: list[Callable[[], None]] = []
        touched = {table_id for note in notes for table_id in note.tables}
        with self._catalog.mutex:
            streams = [s for s in self._catalog.streams.values() if s.is_on(touched)]
            queries = [event_query(self._catalog, stream) for stream in streams]
        before = {query.stream.stream_id: self._ends(query.stream.stream_id) for query in queries}
        for query in queries:
            stream = query.stream
            later = [n for n in notes if n.last_lsn > stream.created_lsn and stream.is_on(n.tables)]
            buffer = self._by_stream.get(stream.stream_id)
            if later and buffer is not None:
                fill = self._publish_stream(query, buffer, later, notes[-1].last_lsn)
                left += [partial(self._fill, stream, fill), self.hold] if fill else []
                self.hold()
        changed = {number: dict(self._ends(number).items() - ends.items()) for number, ends in before.items()}
        watched = self._notifications.watched()
        if any(changed[number] for number in watched & changed.keys()):
            # Before the round is reported as published: an immediate read waits for that.
            self._notifications.published(changed)
        return [partial(self._tell_polls, changed), *left]

    def _fill(self, stream: Stream, fill: Callable[[], None]) -> None:
        """Put events that are readable already into a stream's buffers, unless it was dropped meanwhile."""
        try:
            fill()
        except Exception:
            if self._has(stream):
                raise

    def _tell_polls(self, changed: Mapping[int, Mapping[int, int]]) -> None:
        """Wake the readers that wait for newly readable events: stream id -> partition -> newest LSN."""
        for stream_id, ends in changed.items():
            buffer = self._by_stream.get(stream_id)
            if buffer is None:
                continue
            if buffer.failure is not None:
                self._polls.look_again(stream_id)
            elif ends:
                self._polls.published(stream_id, [p.events for p in buffer.partitions], ends)

    def _ends(self, stream_id: int) -> dict[int, int]:
        """The newest LSN of each partition of a stream that has events."""
        buffer = self._by_stream.get(stream_id)
        if buffer is None:
            return {}
        with buffer.mutex:
            return {n: part.last_lsn for n, part in enumerate(buffer.partitions) if part.last_lsn}

    def _publish_stream(
        self, query: Events, buffer: StreamBuffer, notes: Sequence[Note], through_lsn: int
    ) -> Callable[[], None] | None:
        stream = query.stream
        try:
            if buffer.failure is None:
                if self._clock.monotonic_s() - buffer.read_s > CHANGES_IDLE_S:
                    buffer.drop_changes()
                return publish(self._cursor, query, buffer, notes, self._queries)
        except Exception:
            # An invalidated database explains the error; the buffers record it nevertheless.
            if self._has(stream) and not self._has_fallen():
                logger.exception('publishing stream "%s" failed: its log is read again', stream.name)
        if self._has(stream):
            with self.edges_lock:
                self._renew(stream, buffer, through_lsn, self._cursor)
        return None

    def _has(self, stream: Stream) -> bool:
        """True if a stream exists: it may be dropped, with its log, while its events are published."""
        return self._catalog.stream_by_id(stream.stream_id) is not None

    def _renew(
        self, stream: Stream, buffer: StreamBuffer, through_lsn: int, cursor: duckdb.DuckDBPyConnection
    ) -> None:
        """Replace a stream's buffers by ones from the log, keeping its counters. Under `edges_lock`."""
        made = self._refilled(stream, through_lsn, stream.buffer_bytes, cursor)
        made.given, made.events_at_opening = buffer.given, buffer.events_at_opening
        self._by_stream[stream.stream_id] = made

    def _refilled(
        self,
        stream: Stream,
        through_lsn: int,
        bytes_max: int,
        cursor: duckdb.DuckDBPyConnection | None = None,
    ) -> StreamBuffer:
        """A stream's buffers built from its log, up to a number of bytes; empty with the error on failure."""
        buffer = self._new(stream)
        buffer.failure = self._damage.get(stream.stream_id)
        if buffer.failure is not None:
            return buffer
        try:
            query = event_query(self._catalog, stream)
            segments = self._catalog.segments.of(stream.stream_id)
            size = min(bytes_max, buffer.bytes_max)
            refill(cursor or self._cursor, query, buffer, through_lsn, size, segments)
        except Exception as error:  # Any error concerns the readers of this stream only.
            buffer = self._new(stream)
            buffer.failure, buffer.failed_through_lsn = translated(error), through_lsn
            logger.error('stream "%s" cannot be read from its log: %s', stream.name, without_values(error))
        return buffer

    def _new(self, stream: Stream) -> StreamBuffer:
        """Empty buffers for a stream, with its byte bound."""
        return StreamBuffer(stream.partitions, self._bound(stream))

    def _bound(self, stream: Stream) -> int:
        return min(stream.buffer_bytes, self._bytes_max)


def hold(buffers: Iterable[StreamBuffer], bytes_max: int) -> None:
    """Drop the oldest events of all these buffers until they fit; called by one thread at a time."""
    buffers = list(buffers)
    total = sum(buffer.bytes for buffer in buffers)
    if total <= bytes_max:
        return
    excess = total - bytes_max + bytes_max // SLACK
    oldest = [(lsn, place) for place, buffer in enumerate(buffers) if (lsn := buffer.oldest_lsn) is not None]
    heapq.heapify(oldest)
    while excess > 0 and oldest:
        _, place = heapq.heappop(oldest)
        until = oldest[0][0] if oldest else None
        excess -= buffers[place].drop(excess, until, STEP_EVENTS)
        left = buffers[place].oldest_lsn
        if left is not None:
            heapq.heappush(oldest, (left, place))


class RunningScans:
    """The scans that have begun and not ended; compaction keeps the events that they have still to return.

    A scan ends at an LSN that was fixed when it began. Compaction beyond that LSN would remove events that
    are superseded only by events after the scan's end, so that the scan would return none for their keys. A
    scan leaves the set once it has ended, is closed, or is no longer referenced. Safe to use from several
    threads. Source: docs/design/compaction.md, "Rows that are removed".
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._scans: WeakSet[Scan] = WeakSet()

    def begin(self, scan: Scan) -> None:
        """Register a scan."""
        with self._mutex:
            self._scans.add(scan)

    def least_end(self, since_us: Mapping[int, int]) -> int | None:
        """The least LSN at which one of the scans ends; None without any.

        Args:
            since_us: stream id -> a time: scans of other streams, and scans that began earlier, do not count.
        """
        with self._mutex:
            scans = list(self._scans)
        ends = (
            scan.seen_lsn
            for scan in scans
            if not scan.over and scan.begun_us >= since_us.get(scan.stream_id, scan.begun_us + 1)
        )
        return min(ends, default=None)
