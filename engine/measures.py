"""Measures of an open database, for metrics: read without its locks and without DuckDB.

A monitor must not wait for the monitored database: each number is one attribute, or a copy that the
interpreter makes atomically, so the numbers are of about the same instant. A lag that only the log knows is
reported as its upper bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from .buffers.buffer import PartitionBuffer, StreamBuffer
from .database import Database
from .transactions.commit_times import SECOND_US


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
    """The measures of a group: the numbers of unprocessed events and of members."""

    schema: str
    stream: str
    name: str
    lag_events: int
    members: int


@dataclass(frozen=True, slots=True)
class Measures:
    """The measures of a database."""

    standing: bool
    sessions: Counter[str]
    streams: tuple[StreamMeasure, ...]
    groups: tuple[GroupMeasure, ...]
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
    buffer_bytes: int
    buffer_bytes_max: int
    wal_bytes: int
    side_file_errors: int
    placement_epoch: int
    cluster: Counter[tuple[str, str, str]]


def measure(database: Database) -> Measures:
    """All measures at this moment."""
    streams = tuple(_streams(database))
    lock = database.transactions.writer_lock
    return Measures(
        standing=database.fallen is None,
        sessions=Counter(entry.state for entry in database.sessions.glimpse()),
        streams=streams,
        groups=tuple(_groups(database)),
        events_captured=database.commits.captured,
        events_released=database.retention.cuts.released.value,
        rows_compacted=database.retention.compaction.removed.value,
        last_lsn=database.commits.last_lsn,
        commit_time_ahead_s=database.commits.times.glimpse_ahead_us() / SECOND_US,
        retention_time_behind_s=database.commits.times.glimpse_held_us() / SECOND_US,
        lock_waits=lock.waits,
        lock_waiting=lock.waiting_count,
        long_polls=database.polls.count,
        long_polls_woken=database.polls.woken.value,
        buffer_bytes=sum(stream.buffer_bytes for stream in streams),
        buffer_bytes_max=database.settings.buffer_bytes_total,
        wal_bytes=database.watchdog.wal_bytes,
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


def _groups(database: Database) -> Iterator[GroupMeasure]:
    streams = {stream.stream_id: stream for stream in list(database.catalog.streams.values())}
    for group in list(database.catalog.groups.values()):
        stream, buffer = streams.get(group.stream_id), database.buffers.get(group.stream_id)
        if stream is not None and buffer is not None:
            positions = database.offsets.glimpse(group.group_id)
            copy = database.catalog.copies.get(group.group_id)
            lag = sum(
                lag_at_most(buffer.partitions[n], at.lsn) + (0 if copy is None else copy.left(n, at.lsn))
                for n, at in positions.items()
            )
            members = database.members.glimpse(group.group_id)
            yield GroupMeasure(stream.schema, stream.name, group.name, lag, members)


def lag_at_most(partition: PartitionBuffer, lsn: int) -> int:
    """The number of readable events after `lsn`: exact if the buffers know it, else an upper bound."""
    before = partition.position_after(lsn)
    if before is None:
        # Each event has an LSN of its own.
        return max(0, min(partition.retained, partition.last_lsn - lsn))
    return max(0, partition.events - before)
