"""Measures of an open database, for metrics: read without its locks and without DuckDB.

A monitor must not wait for the monitored database: each number is one attribute, or a copy that the
interpreter makes atomically, so the numbers are of about the same instant. Only the lag of a group behind the
buffers needs the log: a thread of its own counts it, for which a scrape waits a little (`LogPositions`), and
otherwise reports the upper bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import duckdb

from .buffers.buffer import PartitionBuffer, StreamBuffer
from .catalog.streams import Stream
from .database import Database
from .errors import DucktailError
from .groups.feed_activity import FeedStatus
from .groups.sink_activity import Counts
from .replication.continuous_copies import CopyReport
from .replication.synchronous_copies import CommitWaits
from .sessions import DiskSpace
from .system_views.feed_rows import lag_seconds
from .system_views.group_rows import first_unread_us, position_of
from .transactions.commit_times import SECOND_US

# The longest that a scrape waits for positions which only the log knows.
COUNTING_S = 1.0


@dataclass(frozen=True, slots=True)
class StreamMeasure:
    """The measures of a stream: events since the opening of the database, and the present state."""

    schema: str
    name: str
    captured: int
    read: int
    log_reads: int
    retained: int
    buffer_bytes: int


@dataclass(frozen=True, slots=True)
class GroupMeasure:
    """The measures of a group: numbers of unprocessed events and of members, and the distance from retention.

    Args:
        lag_s: the age of the oldest unprocessed event, or of an earlier one while the log is being asked;
            None if no event's age is known yet.
        headroom_s: the time until retention removes an unprocessed event; None if there is none, or if the
            stream does not go by time.
        gaps: the number of partitions whose next event has been removed.
    """

    schema: str
    stream: str
    name: str
    lag_events: int
    members: int
    lag_s: float | None
    headroom_s: float | None
    gaps: int


@dataclass(frozen=True, slots=True)
class SinkMeasure:
    """The measures of a sink: its state, and the counts of its deliveries."""

    schema: str
    stream: str
    name: str
    state: str
    counts: Counts


@dataclass(frozen=True, slots=True)
class SourceMeasure:
    """The measures of a stream's source: its state, what its runner has done, and the lag in seconds."""

    schema: str
    stream: str
    state: str
    status: FeedStatus
    lag_s: float | None


@dataclass(frozen=True, slots=True)
class Measures:
    """The measures of a database."""

    standing: bool
    sessions: Counter[str]
    oldest_transaction_s: float
    streams: tuple[StreamMeasure, ...]
    groups: tuple[GroupMeasure, ...]
    sinks: tuple[SinkMeasure, ...]
    sources: tuple[SourceMeasure, ...]
    events_captured: int
    events_released: int
    rows_compacted: int
    last_lsn: int
    commit_time_ahead_s: float
    retention_time_behind_s: float
    lock_waits: int
    lock_waiting: int
    long_polls: int
    long_polls_woken: int
    long_polls_max: int
    buffer_bytes: int
    buffer_bytes_max: int
    wal_bytes: int
    wal_bytes_max: int
    disk: DiskSpace | None
    side_file_errors: int
    placement_epoch: int
    cluster: Counter[tuple[str, str, str]]
    copies: tuple[CopyReport, ...]
    commit_waits: CommitWaits | None


# Group and partition -> committed LSN, the compactions of the stream by then, and the position there.
_Known = tuple[int, int, int]
_Place = tuple[int, int]


class LogPositions:
    """The positions of groups' committed LSNs that only the log knows, as `ducktail.offsets` counts them, and
    the commit times of the events after them.

    The position of an LSN changes by compaction only, so each is counted once.
    """

    def __init__(self) -> None:
        self._known: dict[_Place, _Known] = {}
        # The committed LSN, the partition's edge of retention, and the commit time of the next event.
        self._times: dict[_Place, tuple[tuple[int, int], float]] = {}
        self._counter = ThreadPoolExecutor(1, thread_name_prefix="ducktail-lag")
        self._counting: Future[None] | None = None

    def learn(self, database: Database) -> None:
        """Ask for what is not known; after a second the answers are for the next scrape."""
        if self._counting is None or self._counting.done():
            unknown = [
                (stream, buffer, (group_id, number), lsn)
                for stream, buffer, group_id, number, lsn in _committed(database)
                if self._lacks(buffer, (group_id, number), lsn)
            ]
            if not unknown:
                return
            self._counting = self._counter.submit(self._count, database, unknown)
        wait([self._counting], COUNTING_S)

    def find(self, buffer: StreamBuffer, place: _Place, lsn: int) -> int | None:
        """The position of a group's committed LSN; None if it has not been counted."""
        at_lsn, renumbered, position = self._known.get(place, (-1, 0, 0))
        return position if (at_lsn, renumbered) == (lsn, buffer.renumbered) else None

    def committed_us(self, place: _Place) -> float | None:
        """The commit time of the event after a committed LSN, or of an earlier one; None if unknown."""
        known = self._times.get(place)
        return None if known is None else known[1]

    def _lacks(self, buffer: StreamBuffer, place: _Place, lsn: int) -> bool:
        """True if the log, or the buffers, have to be asked for a position or a time."""
        partition = buffer.partitions[place[1]]
        if partition.position_after(lsn) is None and self.find(buffer, place, lsn) is None:
            return True
        edge = (lsn, partition.trimmed_through_lsn)
        return lsn < partition.last_lsn and self._times.get(place, (None, 0.0))[0] != edge

    def _count(self, database: Database, unknown: list[tuple[Stream, StreamBuffer, _Place, int]]) -> None:
        for stream, buffer, place, lsn in unknown:
            renumbered, partition = buffer.renumbered, buffer.partitions[place[1]]
            edge = (lsn, partition.trimmed_through_lsn)
            try:
                position = position_of(database, stream, place[1], buffer, lsn)
                committed_us = first_unread_us(database, stream, place[1], partition, lsn)
            except (duckdb.Error, DucktailError):
                continue  # It was dropped, or DuckDB has fallen: the upper bound is reported.
            self._known[place] = (lsn, renumbered, position)
            if committed_us:
                self._times[place] = (edge, committed_us)


def measure(database: Database, positions: LogPositions) -> Measures:
    """All measures at this moment."""
    positions.learn(database)
    streams = tuple(_streams(database))
    lock = database.transactions.writer_lock
    sessions = database.sessions.glimpse()
    now_us = database.clock.now_us()
    begun_us = min((at for entry in sessions if (at := entry.transaction_us) is not None), default=now_us)
    return Measures(
        standing=database.fallen is None,
        sessions=Counter(entry.state for entry in sessions),
        oldest_transaction_s=max(0, now_us - begun_us) / SECOND_US,
        streams=streams,
        groups=tuple(_groups(database, positions)),
        sinks=tuple(_sinks(database)),
        sources=tuple(_sources(database)),
        events_captured=database.commits.captured,
        events_released=database.retention.cuts.released.value,
        rows_compacted=database.retention.compaction.removed.value,
        last_lsn=database.commits.last_lsn,
        commit_time_ahead_s=database.commits.times.glimpse_ahead_us() / SECOND_US,
        retention_time_behind_s=database.commits.times.glimpse_held_us() / SECOND_US,
        lock_waits=lock.waits + database.group_commit.waits,
        lock_waiting=lock.waiting_count + database.group_commit.waiting_count,
        long_polls=database.polls.count,
        long_polls_woken=database.polls.woken.value,
        long_polls_max=database.settings.long_polls_max,
        buffer_bytes=sum(stream.buffer_bytes for stream in streams),
        buffer_bytes_max=database.settings.buffer_bytes_total,
        wal_bytes=database.watchdog.wal_bytes,
        copies=() if database.continuous_copies is None else tuple(database.continuous_copies.reports()),
        commit_waits=None if (waits := database.synchronous_copies) is None else waits.commit_waits(),
        wal_bytes_max=database.settings.wal_bytes_max,
        disk=database.watchdog.disk,
        side_file_errors=0 if database.side is None else database.side.errors.value,
        placement_epoch=database.cluster.placement.epoch,
        cluster=database.cluster.glimpse(),
    )


def _streams(database: Database) -> Iterator[StreamMeasure]:
    for stream in list(database.catalog.streams.values()):
        buffer = database.buffers.get(stream.stream_id)
        if buffer is not None:
            yield StreamMeasure(
                stream.schema,
                stream.name,
                sum(partition.events for partition in buffer.partitions) - buffer.events_at_opening,
                buffer.given.value,
                buffer.log_reads,
                sum(partition.retained for partition in buffer.partitions),
                _bytes(buffer),
            )


def _bytes(buffer: StreamBuffer) -> int:
    changes = buffer.changes
    return buffer.bytes + (0 if changes is None else changes.bytes)


def _committed(database: Database) -> Iterator[tuple[Stream, StreamBuffer, int, int, int]]:
    """Stream, buffers, group, partition and committed LSN of all groups."""
    streams = {stream.stream_id: stream for stream in list(database.catalog.streams.values())}
    for group in list(database.catalog.groups.values()):
        stream, buffer = streams.get(group.stream_id), database.buffers.get(group.stream_id)
        if stream is not None and buffer is not None:
            for number, at in database.offsets.glimpse(group.group_id).items():
                yield stream, buffer, group.group_id, number, at.lsn


def _groups(database: Database, positions: LogPositions) -> Iterator[GroupMeasure]:
    streams = {stream.stream_id: stream for stream in list(database.catalog.streams.values())}
    for group in list(database.catalog.groups.values()):
        stream, buffer = streams.get(group.stream_id), database.buffers.get(group.stream_id)
        if stream is not None and buffer is not None:
            copy = database.catalog.copies.get(group.group_id)
            lag, gaps, unread, ages_s = 0, 0, False, list[float]()
            for n, at in database.offsets.glimpse(group.group_id).items():
                partition, place = buffer.partitions[n], (group.group_id, n)
                behind = lag_of(partition, at.lsn, positions.find(buffer, place, at.lsn))
                lag += behind + (0 if copy is None else copy.left(n, at.lsn))
                gaps += at.lsn < partition.trimmed_through_lsn
                if behind:
                    unread, committed_us = True, positions.committed_us(place)
                    if committed_us is not None:
                        ages_s.append(max(0.0, database.clock.now_us() - committed_us) / SECOND_US)
            lag_s = max(ages_s, default=None if unread else 0.0)
            headroom_s = None
            if ages_s and stream.retention_us is not None:
                headroom_s = max(0.0, stream.retention_us / SECOND_US - max(ages_s))
            members = database.members.glimpse(group.group_id)
            yield GroupMeasure(stream.schema, stream.name, group.name, lag, members, lag_s, headroom_s, gaps)


def _sinks(database: Database) -> Iterator[SinkMeasure]:
    streams = {stream.stream_id: stream for stream in list(database.catalog.streams.values())}
    for group in list(database.catalog.groups.values()):
        stream, sink = streams.get(group.stream_id), database.catalog.sinks.get(group.group_id)
        if stream is not None and sink is not None:
            counts = database.sink_activity.counts(group.group_id)
            yield SinkMeasure(stream.schema, stream.name, group.name, sink.state, counts)


def _sources(database: Database) -> Iterator[SourceMeasure]:
    for stream in list(database.catalog.streams.values()):
        feed = database.catalog.feeds.get(stream.stream_id)
        if feed is None:
            continue
        status = database.feed_activity.status(stream.stream_id) or FeedStatus()
        lag_s = lag_seconds(database, feed, status)
        yield SourceMeasure(stream.schema, stream.name, feed.state, status, lag_s)


def lag_of(partition: PartitionBuffer, lsn: int, counted: int | None) -> int:
    """The number of readable events after `lsn`; an upper bound if neither buffers nor log have counted them.

    Args:
        counted: the position of the LSN by the log.
    """
    before = partition.position_after(lsn)
    if before is None:
        before = counted
    if before is None:
        # Each event has an LSN of its own.
        return max(0, min(partition.retained, partition.last_lsn - lsn))
    return max(0, partition.events - before)
