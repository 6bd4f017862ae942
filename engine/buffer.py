"""The in-process buffers of one stream: the tail of its log, as rows that are ready to be sent.

Each partition keeps its newest events: their LSNs, and each event encoded once as the PostgreSQL
DataRow it will be sent as. A read of hot events is a search in the LSNs and a join of bytes. The
buffers are a cache of the log and nothing else: what falls out at the byte bound is still there.

All partitions of a stream are appended to at once, under the stream's mutex, so that a reader of
several partitions never sees one transaction's events in one of them and not in another.
Positions are dense per partition (0, 1, 2 .. over all events it ever had), so that lag and loss
are exact counts. Source: docs/design/engine.md, "Buffers".
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .errors import DucktailError

# What a buffered event costs beside its bytes: the object's head, its place in two lists.
ROW_OVERHEAD_BYTES = 56
# Rows are dropped from the front in steps, so that the cost of moving the rest is shared.
DROP_STEP_ROWS = 1024


@dataclass(slots=True)
class Addition:
    """New events of one partition, rising: the newest of them ready, the others only counted.

    Args:
        lsns, rows: the ready ones.
        total: all of them.
        first_lsn, last_lsn: of all of them.
        skipped_through_lsn: last LSN of those that are not ready, 0 where all are.
    """

    lsns: list[int] = field(default_factory=list)
    rows: list[bytes] = field(default_factory=list)
    total: int = 0
    first_lsn: int = 0
    last_lsn: int = 0
    skipped_through_lsn: int = 0


@dataclass(slots=True)
class PartitionBuffer:
    """One partition: counts over its whole life, and its newest events.

    `first` is the place in `lsns` and `rows` where the buffer begins: what is before it has been
    dropped and is cut off now and then.
    """

    lsns: list[int] = field(default_factory=list)
    rows: list[bytes] = field(default_factory=list)
    binary: dict[int, bytes] = field(default_factory=dict)
    first: int = 0
    events: int = 0  # ever appended: the position after the last event
    first_lsn: int | None = None  # first retained event
    last_lsn: int = 0  # last readable event, 0 before the first
    last_commit_us: int = 0
    trimmed_events: int = 0
    trimmed_through_lsn: int = 0
    unbuffered_through_lsn: int = 0  # last event that is only in the log, or trimmed
    buffered_bytes: int = 0

    @property
    def buffered_from_position(self) -> int:
        """The position of the first buffered event."""
        return self.events - (len(self.lsns) - self.first)

    @property
    def buffered_from_lsn(self) -> int | None:
        """The LSN of the first buffered event, None where nothing is buffered."""
        return self.lsns[self.first] if self.first < len(self.lsns) else None

    def complete_after(self, lsn: int) -> bool:
        """Whether every retained event after `lsn` is in the buffer."""
        return lsn >= self.unbuffered_through_lsn

    def append(self, added: Addition) -> None:
        """Add events that rise from the last one."""
        if not added.total:
            return
        assert added.first_lsn > self.last_lsn, "LSNs rise within a partition"
        if added.skipped_through_lsn:
            self.clear()
            self.unbuffered_through_lsn = added.skipped_through_lsn
        if self.first_lsn is None:
            self.first_lsn = added.first_lsn
        self.lsns.extend(added.lsns)
        self.rows.extend(added.rows)
        self.events += added.total
        self.buffered_bytes += sum(map(len, added.rows)) + ROW_OVERHEAD_BYTES * len(added.rows)
        self.last_lsn = added.last_lsn

    def clear(self) -> None:
        """Drop every buffered event; the counts stay."""
        self.lsns, self.rows, self.first, self.buffered_bytes = [], [], 0, 0
        self.binary.clear()

    def drop_first(self) -> int:
        """Drop the oldest buffered event; its bytes."""
        lsn, row = self.lsns[self.first], self.rows[self.first]
        self.unbuffered_through_lsn = lsn
        self.rows[self.first] = b""
        self.first += 1
        freed = len(row) + ROW_OVERHEAD_BYTES
        if (twin := self.binary.pop(lsn, None)) is not None:
            freed += len(twin) + ROW_OVERHEAD_BYTES
        self.buffered_bytes -= freed
        if self.first >= DROP_STEP_ROWS and self.first * 2 >= len(self.lsns):
            del self.lsns[: self.first]
            del self.rows[: self.first]
            self.first = 0
        return freed

    def after(self, lsn: int) -> int:
        """The place in `lsns` of the first buffered event after `lsn`."""
        return bisect_right(self.lsns, lsn, self.first)

    def position_after(self, lsn: int) -> int | None:
        """How many events are at or before `lsn`; None where only the log can tell."""
        if lsn >= self.last_lsn:
            return self.events
        if lsn <= self.trimmed_through_lsn:
            return self.trimmed_events
        if not self.complete_after(lsn):
            return None
        return self.buffered_from_position + self.after(lsn) - self.first

    def last_at(self, lsn: int) -> int:
        """LSN of the last event at or before `lsn`; where only the log could tell, `lsn` itself."""
        if lsn >= self.last_lsn:
            return self.last_lsn
        place = self.after(lsn)
        if place > self.first:
            return self.lsns[place - 1]
        whole = self.unbuffered_through_lsn <= self.trimmed_through_lsn
        return self.trimmed_through_lsn if whole else lsn

    def trim(self, through_lsn: int, events: int) -> None:
        """Events up to `through_lsn`, `events` in all since the stream began, are no longer retained."""
        while (start := self.buffered_from_lsn) is not None and start <= through_lsn:
            self.drop_first()
        self.trimmed_events = events
        self.trimmed_through_lsn = through_lsn
        self.unbuffered_through_lsn = max(self.unbuffered_through_lsn, through_lsn)


@dataclass(frozen=True, slots=True)
class Hot:
    """Hot events that a read has got: in LSN order, each row whole.

    Args:
        lsns, partitions: of each row.
        rows: text-format DataRows.
        exhausted: nothing more is readable now within the read's bounds.
    """

    lsns: npt.NDArray[np.int64]
    partitions: npt.NDArray[np.int32]
    rows: list[bytes]
    exhausted: bool


class StreamBuffer:
    """The partition buffers of one stream, under one mutex and one byte bound."""

    def __init__(self, partitions: int, bytes_max: int) -> None:
        self.mutex = threading.Lock()
        self.partitions = [PartitionBuffer() for _ in range(partitions)]
        self.bytes_max = bytes_max
        self.bytes = 0
        self.log_reads = 0  # reads that had to go to the log
        self.failure: DucktailError | None = None  # why the log could not be read

    @property
    def end_lsn(self) -> int:
        """LSN of the stream's last readable event, 0 before the first."""
        return max(partition.last_lsn for partition in self.partitions)

    def append(self, additions: Mapping[int, Addition], commit_us: int) -> None:
        """Add the events of whole transactions at once.

        Args:
            additions: partition -> its new events.
            commit_us: commit time of the last of these transactions.
        """
        with self.mutex:
            for number, added in additions.items():
                partition = self.partitions[number]
                before = partition.buffered_bytes
                partition.append(added)
                partition.last_commit_us = commit_us
                self.bytes += partition.buffered_bytes - before
            self._shrink()

    def _shrink(self) -> None:
        """Drop the oldest events, over all partitions, until the byte bound holds."""
        while self.bytes > self.bytes_max:
            oldest = min(
                (p for p in self.partitions if p.buffered_from_lsn is not None),
                key=lambda p: p.buffered_from_lsn or 0,
            )
            for _ in range(min(DROP_STEP_ROWS, len(oldest.lsns) - oldest.first)):
                self.bytes -= oldest.drop_first()
                if self.bytes <= self.bytes_max:
                    return

    def holds(self, after: Mapping[int, int]) -> bool:
        """Whether every retained event after these LSNs (partition -> LSN) is buffered."""
        with self.mutex:
            return all(
                lsn >= self.partitions[number].trimmed_through_lsn
                and self.partitions[number].complete_after(lsn)
                for number, lsn in after.items()
            )

    def read(self, after: Mapping[int, int], through_lsn: int | None, limit: int) -> Hot | None:
        """The next events after a position, at most `limit`, in LSN order over the partitions.

        Args:
            after: partition -> LSN; exactly these partitions are read.
            through_lsn: the last LSN that may be given, None for all that is readable.
            limit: most rows, at least 1.

        Returns:
            None where an event that is asked for is no longer buffered: the log has it.
        """
        if self.failure is not None:
            raise self.failure
        with self.mutex:
            found: list[tuple[int, int, int]] = []  # partition, from, to
            exhausted = True
            for number, lsn in after.items():
                partition = self.partitions[number]
                if lsn < partition.trimmed_through_lsn or not partition.complete_after(lsn):
                    return None
                start = partition.after(lsn)
                end = len(partition.lsns)
                if through_lsn is not None and partition.last_lsn > through_lsn:
                    end = bisect_right(partition.lsns, through_lsn, start)
                if end - start > limit:
                    end, exhausted = start + limit, False
                if end > start:
                    found.append((number, start, end))
            return self._merged(found, limit, exhausted)

    def _merged(self, found: list[tuple[int, int, int]], limit: int, exhausted: bool) -> Hot:
        if len(found) == 1:
            number, start, end = found[0]
            partition = self.partitions[number]
            lsns = np.array(partition.lsns[start:end], dtype=np.int64)
            numbers = np.full(end - start, number, dtype=np.int32)
            return Hot(lsns, numbers, partition.rows[start:end], exhausted)
        if not found:
            return Hot(np.empty(0, np.int64), np.empty(0, np.int32), [], exhausted)
        rows: list[bytes] = []
        numbers_parts, lsn_parts = [], []
        for number, start, end in found:
            partition = self.partitions[number]
            rows += partition.rows[start:end]
            lsn_parts.append(np.array(partition.lsns[start:end], dtype=np.int64))
            numbers_parts.append(np.full(end - start, number, dtype=np.int32))
        lsns, numbers = np.concatenate(lsn_parts), np.concatenate(numbers_parts)
        order = np.argsort(lsns, kind="stable")
        if len(order) > limit:
            order, exhausted = order[:limit], False
        return Hot(lsns[order], numbers[order], [rows[i] for i in order.tolist()], exhausted)
