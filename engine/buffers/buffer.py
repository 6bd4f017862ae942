"""The in-process buffers of one stream: the tail of its log, as rows in the form in which they are sent.

Each partition keeps its newest events: their LSNs, and each event encoded once as the PostgreSQL DataRow in
which it is sent. A read of hot events is a search in the LSNs and a join of bytes. The buffers are only a
cache of the log: an event dropped at the byte bound is still in the log. A limit never separates rows that
share an LSN (the two of an update in ENVELOPE CHANGES).

All partitions of a stream are appended to at once, under the stream's mutex, so that a reader of several
partitions never sees a transaction's events in only some of them. Positions are dense per partition (0, 1, 2
.. over all events it ever had, except those that compaction has removed), so that lag and loss are exact
counts.

`RetainedBytes` counts the bytes of the events that a stream retains, and finds the LSN up to which they must
be removed to fit a bound. It measures the encoded events: each is encoded once when it is published, and its
length is counted then. Events that were in the log before the database was opened are estimated from those
that the opening encodes. The sums are kept at some LSNs only (marks), never more than `MARKS_MAX`: so a
stream may remove slightly more than necessary (a few thousandths of what it retains), never less. Source:
docs/design/engine.md, "Buffers".
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, repeat
from operator import itemgetter

from ..catalog.segments import Segment
from ..counter import ThreadSafeCounter
from ..errors import DucktailError
from ..log.deleted_ranges import Edge, Edges

# Cost of a buffered event besides its bytes: the object's head (33 bytes), its LSN (32), and its entries in
# five lists.
ROW_OVERHEAD_BYTES = 105
# Approximate bytes of the rows of one read; one event may be larger. Rows being sent to a slow client no
# longer belong to the buffer, and exist twice: singly and joined.
READ_BYTES_MAX = 4 << 20
# Rows are dropped from the front in steps, so that the cost of moving the rest is shared.
DROP_STEP_ROWS = 1024
# A mark is two numbers; this many give the bytes to within a few thousandths.
MARKS_MAX = 4096


def bytes_of(rows: Sequence[bytes]) -> int:
    """The bytes that ready rows take in a buffer."""
    return sum(map(len, rows)) + ROW_OVERHEAD_BYTES * len(rows)


@dataclass(slots=True)
class Addition:
    """New events of one partition, in rising order: the newest of them ready, the others only counted.

    Args:
        lsns, rows: the ready events.
        total: the number of all events.
        first_lsn, last_lsn: the first and last LSN of all events.
        skipped_through_lsn: last LSN of the events that are not ready, 0 if all are.
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

    `first` is the index in `lsns` and `rows` at which the buffer begins: earlier entries have been dropped,
    and are deleted from time to time.
    """

    lsns: list[int] = field(default_factory=list)
    rows: list[bytes] = field(default_factory=list)
    first: int = 0
    events: int = 0  # ever appended: the position after the last event
    first_lsn: int | None = None  # first retained event; None: there is none, or only the log knows
    last_lsn: int = 0  # last readable event, 0 before the first
    last_commit_us: int = 0
    trimmed_events: int = 0
    trimmed_through_lsn: int = 0
    trimmed_by: str = ""  # reason for the last trim
    unbuffered_through_lsn: int = 0  # last event that is only in the log, or trimmed
    buffered_bytes: int = 0

    @property
    def retained(self) -> int:
        """The number of retained events."""
        return self.events - self.trimmed_events

    @property
    def buffered_from_position(self) -> int:
        """The position of the first buffered event."""
        return self.events - (len(self.lsns) - self.first)

    @property
    def buffered_from_lsn(self) -> int | None:
        """The LSN of the first buffered event, None if the buffer is empty."""
        return self.lsns[self.first] if self.first < len(self.lsns) else None

    def complete_after(self, lsn: int) -> bool:
        """True if every retained event after `lsn` is in the buffer."""
        return lsn >= self.unbuffered_through_lsn

    def append(self, added: Addition) -> None:
        """Add events behind the last one, in rising order."""
        if not added.total:
            return
        assert added.first_lsn > self.last_lsn, "LSNs rise within a partition"
        if added.skipped_through_lsn:
            self.unbuffered_through_lsn = added.skipped_through_lsn
        if not self.retained:
            self.first_lsn = added.first_lsn
        self.lsns.extend(added.lsns)
        self.rows.extend(added.rows)
        self.events += added.total
        self.buffered_bytes += bytes_of(added.rows)
        self.last_lsn = added.last_lsn

    def came(self, segment: Segment, first_lsn: int | None) -> None:
        """Record that the partition came from another node; its earlier events are in its segment.

        Args:
            first_lsn: the first retained LSN of the segment.
        """
        if self.trimmed_through_lsn >= segment.base_lsn:
            return  # Retention has removed all of it, and perhaps later events.
        self.events, self.last_lsn = segment.events, segment.base_lsn
        self.unbuffered_through_lsn = segment.base_lsn
        self.first_lsn = first_lsn

    def fill(self, added: Addition) -> None:
        """Put the newest events, which are already counted, into the empty buffer."""
        self.lsns, self.rows, self.first = list(added.lsns), list(added.rows), 0
        self.unbuffered_through_lsn = added.skipped_through_lsn or added.first_lsn - 1
        self.buffered_bytes = bytes_of(added.rows)

    def clear(self) -> None:
        """Drop every buffered event; the counts stay."""
        self.lsns, self.rows, self.first, self.buffered_bytes = [], [], 0, 0
        self.unbuffered_through_lsn = max(self.unbuffered_through_lsn, self.last_lsn)

    def drop_first(self) -> int:
        """Drop the oldest buffered event; returns the freed bytes."""
        self.unbuffered_through_lsn = self.lsns[self.first]
        freed = len(self.rows[self.first]) + ROW_OVERHEAD_BYTES
        self.rows[self.first] = b""
        self.first += 1
        self.buffered_bytes -= freed
        if self.first >= DROP_STEP_ROWS and self.first * 2 >= len(self.lsns):
            del self.lsns[: self.first]
            del self.rows[: self.first]
            self.first = 0
        return freed

    def drop_through(self, lsn: int) -> int:
        """Drop the buffered events up to an LSN; returns the freed bytes."""
        place = self.after(lsn)
        freed = bytes_of(self.rows[self.first : place])
        if place > self.first:
            self.unbuffered_through_lsn = self.lsns[place - 1]
            self.buffered_bytes -= freed
            del self.lsns[:place]
            del self.rows[:place]
            self.first = 0
        return freed

    def after(self, lsn: int) -> int:
        """The index in `lsns` of the first buffered event after `lsn`."""
        return bisect_right(self.lsns, lsn, self.first)

    def position_after(self, lsn: int) -> int | None:
        """The number of events at or before `lsn`; None if only the log has the answer."""
        if lsn >= self.last_lsn:
            return self.events
        if lsn <= self.trimmed_through_lsn:
            return self.trimmed_events
        if not self.complete_after(lsn):
            return None
        return self.buffered_from_position + self.after(lsn) - self.first

    def count_between(self, after_lsn: int, through_lsn: int) -> int:
        """The number of events after one LSN and up to another; an estimate where only the log knows it."""
        ends = []
        for lsn in (after_lsn, max(after_lsn, through_lsn)):
            position = self.position_after(lsn)
            if position is None:
                # The events that are only in the log, as if they had even distances.
                first, last = self.trimmed_through_lsn, self.unbuffered_through_lsn
                count = self.buffered_from_position - self.trimmed_events
                position = self.trimmed_events + count * (lsn - first) // max(1, last - first)
            ends.append(position)
        return max(0, ends[1] - ends[0])

    def last_at(self, lsn: int) -> int:
        """The LSN of the last event at or before `lsn`; `lsn` itself if only the log has the answer."""
        if lsn >= self.last_lsn:
            return self.last_lsn
        place = self.after(lsn)
        if place > self.first:
            return self.lsns[place - 1]
        whole = self.unbuffered_through_lsn <= self.trimmed_through_lsn
        return self.trimmed_through_lsn if whole else lsn

    def trim(self, edge: Edge) -> None:
        """Record that events up to an edge are no longer retained."""
        self.trimmed_events = edge.events
        self.trimmed_through_lsn = edge.through_lsn
        self.trimmed_by = edge.reason
        self.unbuffered_through_lsn = max(self.unbuffered_through_lsn, edge.through_lsn)
        if not self.retained:
            self.first_lsn = None
        elif self.first_lsn is None or self.first_lsn <= edge.through_lsn:
            self.first_lsn = self.buffered_from_lsn if self.complete_after(edge.through_lsn) else None


@dataclass(frozen=True, slots=True)
class Hot:
    """The events of a read, in LSN order, each row complete.

    Args:
        lsns, partitions: LSN and partition of each row.
        rows: text-format DataRows.
        exhausted: True if no more events are readable now within the read's bounds.
    """

    lsns: list[int]
    partitions: list[int]
    rows: list[bytes]
    exhausted: bool

    def bounded(self) -> Hot:
        """The first of these events that fit READ_BYTES_MAX, keeping rows of one LSN together."""
        left = READ_BYTES_MAX
        for stop, row in enumerate(self.rows, 1):
            left -= len(row)
            if left <= 0 and stop < len(self.rows) and self.lsns[stop - 1] != self.lsns[stop]:
                return Hot(self.lsns[:stop], self.partitions[:stop], self.rows[:stop], exhausted=False)
        return self


@dataclass(frozen=True, slots=True)
class Span:
    """The events of a partition between two LSNs, counted by their positions in its log.

    Attributes:
        start_lsn: the LSN after which it begins: not before the edge of the retained events.
        start, end: positions of the events behind both LSNs; None if only the log can count them.
        last_lsn: the partition's last LSN.
        unbuffered_through_lsn: the LSN up to which its events are only in the log.
    """

    edge_lsn: int
    start_lsn: int
    start: int | None
    end: int | None
    last_lsn: int
    unbuffered_through_lsn: int


class StreamBuffer:
    """The partition buffers of one stream, under one mutex and one byte bound.

    While ENVELOPE CHANGES is read from hot events, `changes` holds their rows in that form; both share the
    stream's bytes, half each. Additions to either require the lock `feeding`.

    Besides the partitions' lists it keeps all buffered events in LSN order: a read of all partitions that
    continues a previous one is one slice of it, and the oldest event is dropped first.
    """

    def __init__(self, partitions: int, bytes_max: int) -> None:
        self.identity = object()  # distinguishes windows of this buffer's log from those of an earlier one's
        self.mutex = threading.Lock()
        self.feeding = threading.Lock()
        self.making_changes = threading.Lock()
        self.changes: StreamBuffer | None = None
        self.table_version = 1  # of `changes`: the version of the table that has their columns
        self.read_s = 0.0  # time of the last read of `changes`, in seconds of a monotonic clock
        self.partitions = [PartitionBuffer() for _ in range(partitions)]
        self.bytes_max = bytes_max
        self.bytes = 0
        self.given = ThreadSafeCounter()  # number of rows read
        self.events_at_opening = 0
        self.log_reads = 0  # number of reads from the log
        self.edge_lsn = 0  # the stream's pointer into the log
        self.retained_bytes = RetainedBytes()
        self.compacted_lsn = 0  # LSN up to which the log has been compacted; none of these events is buffered
        self.renumbered = 0  # number of times that compaction has changed the partitions' counts
        self.failure: DucktailError | None = None  # error of the last attempt to read the log
        self.failed_through_lsn = 0  # LSN up to which it was to be read then
        self.row_bytes_max = 0  # largest row ever buffered
        self._lsns: list[int] = []
        self._numbers: list[int] = []
        self._rows: list[bytes] = []
        self._first = 0

    @property
    def event_bytes(self) -> int:
        """The mean size of a buffered event in bytes; 0 if the buffer is empty."""
        return self.bytes // max(1, len(self._lsns) - self._first)

    @property
    def end_lsn(self) -> int:
        """LSN of the stream's last readable event, 0 before the first."""
        return max([partition.last_lsn for partition in self.partitions])

    def ends_at(self, lsns: Mapping[int, int]) -> bool:
        """True if no partition has a readable event after its LSN, retained or not."""
        with self.mutex:
            for number, lsn in lsns.items():
                partition = self.partitions[number]
                if lsn < partition.last_lsn or lsn < partition.trimmed_through_lsn:
                    return False
        return True

    def append(self, additions: Mapping[int, Addition], commit_us: int, size: int) -> None:
        """Add the events of whole transactions at once.

        Args:
            additions: partition -> its new events.
            commit_us: commit time of the last of these transactions.
            size: bytes of all of these events in encoded form.
        """
        with self.mutex:
            if additions:
                self.retained_bytes.add(max(added.last_lsn for added in additions.values()), size)
            if any(added.skipped_through_lsn for added in additions.values()):
                self._clear()
            for number, added in additions.items():
                partition = self.partitions[number]
                before = partition.buffered_bytes
                partition.append(added)
                partition.last_commit_us = commit_us
                self.bytes += partition.buffered_bytes - before
            self._extend(additions)
            self._fit(self.bytes_max)

    def fill(self, additions: Mapping[int, Addition]) -> None:
        """Put the newest events, which were counted when they were appended, into the buffer.

        Events trimmed meanwhile are omitted; a buffer that has later events is not changed.
        """
        with self.mutex:
            last_lsn = max((added.last_lsn for added in additions.values()), default=0)
            if self._lsns or last_lsn != self.end_lsn:
                return
            for number, added in additions.items():
                partition = self.partitions[number]
                if max(partition.trimmed_through_lsn, self.compacted_lsn) < added.first_lsn:
                    partition.fill(added)
                    self.bytes += partition.buffered_bytes
            self._extend({n: a for n, a in additions.items() if self.partitions[n].lsns})
            self._fit(self.bytes_max)

    def _extend(self, additions: Mapping[int, Addition]) -> None:
        """Add new events, which are later than all present ones, in LSN order."""
        for added in additions.values():
            self.row_bytes_max = max(self.row_bytes_max, max(map(len, added.rows), default=0))
        merged = [
            entry
            for number, added in additions.items()
            for entry in zip(added.lsns, repeat(number), added.rows)
        ]
        if not merged:
            return
        if len(additions) > 1:
            merged.sort(key=itemgetter(0))
        lsns, numbers, rows = zip(*merged, strict=True)
        self._lsns.extend(lsns)
        self._numbers.extend(numbers)
        self._rows.extend(rows)

    def add_changes(self, changes: StreamBuffer) -> None:
        """Share the bytes with the rows of ENVELOPE CHANGES, unless these have become too many.

        Events trimmed since the rows were requested are a gap in them as well.
        """
        with self.mutex:
            if changes.bytes_max > self.bytes_max // 2:
                return
            for mine, theirs in zip(self.partitions, changes.partitions, strict=True):
                theirs.trimmed_through_lsn = mine.trimmed_through_lsn
            changes.compact(self.compacted_lsn)
            self.bytes_max -= changes.bytes_max
            self.changes = changes
            self._fit(self.bytes_max)

    def drop_changes(self) -> None:
        """Drop the rows of ENVELOPE CHANGES and reclaim their bytes."""
        with self.mutex:
            if self.changes is not None:
                self.bytes_max += self.changes.bytes_max
                self.changes = None

    @property
    def oldest_lsn(self) -> int | None:
        """The LSN of the oldest buffered event, None if the buffer is empty."""
        with self.mutex:
            return self._lsns[self._first] if self._first < len(self._lsns) else None

    def drop(self, bytes_: int, until_lsn: int | None, events: int) -> int:
        """Drop the oldest events until a number of bytes is free; returns the freed bytes.

        Args:
            until_lsn: events from this LSN on stay, except for the first `events`; None for no such limit.
        """
        freed = 0
        with self.mutex:
            while freed < bytes_ and self._first < len(self._lsns):
                if events <= 0 and until_lsn is not None and self._lsns[self._first] >= until_lsn:
                    break
                before = self.bytes
                self._drop_oldest()
                freed += before - self.bytes
                events -= 1
        return freed

    def make_room(self, bytes_: int) -> None:
        """Drop the oldest events to make room for a number of bytes about to be added."""
        with self.mutex:
            self._fit(self.bytes_max - bytes_)

    def _fit(self, bytes_max: int) -> None:
        """Drop the oldest events until the rest fit."""
        while self.bytes > bytes_max and self._first < len(self._lsns):
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        number = self._numbers[self._first]
        self._rows[self._first] = b""
        self._first += 1
        self.bytes -= self.partitions[number].drop_first()
        if self._first >= DROP_STEP_ROWS and self._first * 2 >= len(self._lsns):
            del self._lsns[: self._first]
            del self._numbers[: self._first]
            del self._rows[: self._first]
            self._first = 0

    def _clear(self) -> None:
        for partition in self.partitions:
            partition.clear()
        self._lsns, self._numbers, self._rows, self._first, self.bytes = [], [], [], 0, 0

    def trim(self, edges: Edges) -> None:
        """Record that events up to these edges are no longer retained."""
        with self.mutex:
            changes = self.changes
            self._drop_through(edges.through_lsn)
            for number, edge in edges.partitions.items():
                self.partitions[number].trim(edge)
            self.edge_lsn = edges.through_lsn
            self.retained_bytes.trim(edges.through_lsn)
        if changes is not None:
            changes.trim(edges)

    def _drop_through(self, lsn: int) -> None:
        """Drop the events up to an LSN all at once: dropping row by row would delay writers."""
        place = bisect_right(self._lsns, lsn, self._first)
        if place == self._first:
            return
        self.bytes -= sum(partition.drop_through(lsn) for partition in self.partitions)
        del self._lsns[:place]
        del self._numbers[:place]
        del self._rows[:place]
        self._first = 0

    def compact(self, through_lsn: int) -> None:
        """Drop the events up to an LSN before compaction: from now on only the log knows which remain."""
        with self.mutex:
            self.compacted_lsn = through_lsn
            self._drop_through(through_lsn)
            changes = self.changes
        if changes is not None:
            changes.compact(through_lsn)

    def compacted(self, counts: Mapping[int, int]) -> None:
        """Subtract the events removed from the compacted log (partition -> events) from the counts.

        The partitions count the remaining and the trimmed events.
        """
        with self.mutex:
            for number, count in counts.items():
                partition = self.partitions[number]
                partition.events -= count
                self.events_at_opening -= count
                if partition.first_lsn is not None and partition.first_lsn <= self.compacted_lsn:
                    partition.first_lsn = None
            self.renumbered += 1

    def thinned(self, left: float) -> None:
        """Record the end of a compaction, and the fraction of events that remain in its range."""
        with self.mutex:
            self.retained_bytes.thin(self.compacted_lsn, left)

    def resize(self, bytes_max: int) -> None:
        """Set another byte bound; events beyond it are dropped at once."""
        with self.mutex:
            self.changes, self.bytes_max = None, bytes_max
            self._fit(self.bytes_max)

    def last_lsns_at(self, lsn: int, partitions: Iterable[int]) -> dict[int, int]:
        """The LSN of each partition's last event at or before `lsn`."""
        with self.mutex:
            return {number: min(self.partitions[number].last_at(lsn), lsn) for number in partitions}

    def edges(self, partitions: Iterable[int]) -> dict[int, int]:
        """The LSN of each partition up to which its events have been removed."""
        with self.mutex:
            return {number: self.partitions[number].trimmed_through_lsn for number in partitions}

    def span(self, number: int, after_lsn: int, through_lsn: int) -> Span:
        """The events of a partition after one LSN and up to another."""
        with self.mutex:
            partition = self.partitions[number]
            edge_lsn = partition.trimmed_through_lsn
            start_lsn = max(after_lsn, edge_lsn)
            return Span(
                edge_lsn,
                start_lsn,
                partition.position_after(start_lsn),
                partition.position_after(through_lsn),
                partition.last_lsn,
                partition.unbuffered_through_lsn,
            )

    def holds(self, after: Mapping[int, int]) -> bool:
        """True if every retained event after these LSNs (partition -> LSN) is buffered."""
        with self.mutex:
            return self._holds(after)

    def _holds(self, after: Mapping[int, int]) -> bool:
        return all(
            lsn >= self.partitions[number].trimmed_through_lsn and self.partitions[number].complete_after(lsn)
            for number, lsn in after.items()
        )

    def read(self, after: Mapping[int, int], through_lsn: int, limit: int) -> Hot | None:
        """The next events after a position, at most `limit` (and READ_BYTES_MAX), in LSN order.

        Args:
            after: partition -> LSN; exactly these partitions are read.
            through_lsn: the last LSN that may be returned.
            limit: the maximum number of rows, at least 1; one more is returned to keep rows of one LSN
                together.

        Returns:
            The events, or None if a requested event is no longer buffered: the log has it.
        """
        if self.failure is not None:
            raise self.failure
        with self.mutex:
            if not self._holds(after):
                return None
            latest = max(after.values())
            if len(after) == len(self.partitions) and self._goes_on(after, latest):
                rows = (self._lsns, self._numbers, self._rows)
                parts = [_slice(*rows, self._first, latest, through_lsn, limit)]
            else:
                parts = [self._next_of(number, lsn, through_lsn, limit) for number, lsn in after.items()]
        found = parts[0] if len(parts) == 1 else _merged(parts, limit)
        return found if len(found.rows) * self.row_bytes_max <= READ_BYTES_MAX else found.bounded()

    def _goes_on(self, after: Mapping[int, int], latest: int) -> bool:
        """True if everything up to `latest` has been read in every partition."""
        return all(
            lsn == latest or self.partitions[number].after(lsn) == self.partitions[number].after(latest)
            for number, lsn in after.items()
        )

    def _next_of(self, number: int, after_lsn: int, through_lsn: int, limit: int) -> Hot:
        """The next events of one partition."""
        partition = self.partitions[number]
        return _slice(
            partition.lsns, repeat(number), partition.rows, partition.first, after_lsn, through_lsn, limit
        )


def _merged(parts: Sequence[Hot], limit: int) -> Hot:
    """The next events of several partitions in the order of their LSNs, at most `limit` as in `read`."""
    entries = [entry for part in parts for entry in zip(part.lsns, part.partitions, part.rows, strict=True)]
    entries.sort(key=itemgetter(0))
    exhausted = all(part.exhausted for part in parts)
    if len(entries) > limit:
        stop = limit + (entries[limit - 1][0] == entries[limit][0])
        exhausted = exhausted and stop == len(entries)
        entries = entries[:stop]
    return Hot(
        [lsn for lsn, _, _ in entries],
        [number for _, number, _ in entries],
        [row for _, _, row in entries],
        exhausted,
    )


def _slice(
    lsns: list[int],
    numbers: list[int] | repeat[int],
    rows: list[bytes],
    first: int,
    after: int,
    through_lsn: int,
    limit: int,
) -> Hot:
    """Events of parallel lists after one LSN and up to another, at most `limit`, keeping LSNs together."""
    start = bisect_right(lsns, after, first)
    end = len(lsns)
    if lsns and lsns[-1] > through_lsn:
        end = bisect_right(lsns, through_lsn, start)
    stop = min(end, start + limit)
    if start < stop < end and lsns[stop - 1] == lsns[stop]:
        stop += 1
    picked = numbers[start:stop] if isinstance(numbers, list) else list(islice(numbers, stop - start))
    return Hot(lsns[start:stop], picked, rows[start:stop], stop == end)


class RetainedBytes:
    """Cumulative bytes of one stream's events by LSN; guarded by its owner's lock."""

    def __init__(self) -> None:
        self._lsns: list[int] = []
        self._sums: list[int] = []  # bytes of all events up to the LSN of the same index, since creation
        self._sum = 0
        self._trimmed = 0
        self._step = 0  # least bytes between two marks

    @property
    def total(self) -> int:
        """The bytes of the retained events."""
        return self._sum - self._trimmed

    def add(self, last_lsn: int, size: int) -> None:
        """Add `size` bytes of new events, the last of them at `last_lsn`."""
        self._sum += size
        before = self._sums[-2] if len(self._sums) > 1 else self._trimmed
        if self._lsns and self._sum - before <= self._step:
            self._lsns[-1], self._sums[-1] = last_lsn, self._sum
            return
        self._lsns.append(last_lsn)
        self._sums.append(self._sum)
        if len(self._lsns) > MARKS_MAX:
            self._step = max(self._step, 4 * self.total // MARKS_MAX)
            # The newest mark stays: the bytes after the previous mark are counted up to it.
            keep = len(self._lsns) % 2 == 0
            self._lsns, self._sums = self._lsns[keep::2], self._sums[keep::2]

    def trim(self, through_lsn: int) -> None:
        """Remove the events up to `through_lsn`."""
        gone = bisect_right(self._lsns, through_lsn)
        if gone:
            self._trimmed = self._sums[gone - 1]
            del self._lsns[:gone]
            del self._sums[:gone]

    def thin(self, through_lsn: int, left: float) -> None:
        """Reduce the bytes of the events up to `through_lsn` to a fraction, evenly distributed."""
        place = bisect_right(self._lsns, through_lsn)
        gone = 0
        for number in range(place):
            gone = round((self._sums[number] - self._trimmed) * (1 - left))
            self._sums[number] -= gone
        self._sums[place:] = [total - gone for total in self._sums[place:]]
        self._sum -= gone

    def excess_through(self, bound: int) -> int | None:
        """The LSN up to which events must be removed to fit `bound` bytes; None if they fit."""
        if self.total <= bound:
            return None
        return self._lsns[min(bisect_left(self._sums, self._sum - bound), len(self._lsns) - 1)]
