"""Delivery counts: how often reads of a group have returned events that it has not committed.

Groups with `max_deliveries` have them. A count covers a range of LSNs of one partition, because reads return
runs of events: the first and the last event that an answer has of a partition, and all between. One row of
`delivery_log` for each answer has the ranges of the partitions that the answer has touched. It is durable
before the rows are handed out, so that a count survives any kill, also of the server; a row that later ones
have overtaken is deleted from time to time. Ranges at or before the committed LSN are dropped by the next
count, except around released events.

An answer that failed is repeated in smaller parts, so that the event at fault is found. A range therefore
has the number of events of the answer that returned it last. With n deliveries allowed and d done, the next
answer has at most s ** ((n - d - 1) / (n - d)) events, s being that number: each of the remaining attempts is
smaller by the same factor, and the last one has one event. An answer is the longest run of events that keeps
this bound for each of its events. So no event is delivered a last time together with another, and only an
event that was delivered alone is `exhausted`, to be parked.
Source: docs/groups.md, "Delivery counts"; docs/design/deliveries.md.
"""

from __future__ import annotations

import json
import logging
import math
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import duckdb

from ..catalog.streams import Group
from ..duck.cursors import with_memory
from ..duck.duckdb_errors import translated
from ..errors import DucktailError
from ..schema import SCHEMA
from .parked import PARKED, RELEASED, ParkedOfGroup

logger = logging.getLogger(__name__)

# Ranges of a partition. Each failed answer adds two at most, so more come only from reads of scattered LSNs.
RANGES_MAX = 256
# Names in a range: those of the latest deliveries.
MEMBERS_MAX = 16
# Overtaken rows in delivery_log before they are deleted: some megabytes.
FOLD_ROWS = 20_000
TABLE = f"{SCHEMA}.delivery_log"


@dataclass(frozen=True, slots=True)
class DeliveryRange:
    """A range of LSNs of one partition whose events have been delivered equally often.

    Args:
        deliveries: how often reads have returned its events.
        together: the number of events in the answer that returned them last.
        members: the names of the members that received them, without repetition, the latest last.
    """

    first_lsn: int
    last_lsn: int
    deliveries: int
    together: int
    members: tuple[str, ...] = ()

    @property
    def is_alone(self) -> bool:
        """True if its latest delivery was of one event."""
        return self.together == 1 and self.first_lsn == self.last_lsn

    def again(self, together: int, member: str | None) -> DeliveryRange:
        """The range after one more delivery."""
        members = self.members
        if member is not None:
            members = (*(name for name in members if name != member), member)[-MEMBERS_MAX:]
        return replace(self, deliveries=self.deliveries + 1, together=together, members=members)


# Ranges of one partition, ascending, without overlaps.
Ranges = tuple[DeliveryRange, ...]
_NONE: Mapping[int, Ranges] = {}


def delivered(ranges: Ranges, first: int, last: int, together: int, member: str | None) -> Ranges:
    """The ranges of a partition after a delivery of the events from one LSN to another."""
    found = [replace(one, last_lsn=min(one.last_lsn, first - 1)) for one in ranges if one.first_lsn < first]
    place = first
    for one in ranges:
        low, high = max(one.first_lsn, first), min(one.last_lsn, last)
        if low > high:
            continue
        if place < low:
            found.append(DeliveryRange(place, low - 1, 0, 0).again(together, member))
        found.append(replace(one, first_lsn=low, last_lsn=high).again(together, member))
        place = high + 1
    if place <= last:
        found.append(DeliveryRange(place, last, 0, 0).again(together, member))
    found += [replace(one, first_lsn=max(one.first_lsn, last + 1)) for one in ranges if one.last_lsn > last]
    return _few(_joined(found))


def without(ranges: Ranges, lsns: Collection[int]) -> Ranges:
    """The ranges without the events at these LSNs."""
    found = list(ranges)
    for lsn in lsns:
        parts = []
        for one in found:
            if one.first_lsn <= lsn <= one.last_lsn:
                parts += [replace(one, last_lsn=lsn - 1), replace(one, first_lsn=lsn + 1)]
            else:
                parts.append(one)
        found = [one for one in parts if one.first_lsn <= one.last_lsn]
    return tuple(found)


def _joined(ranges: Iterable[DeliveryRange]) -> list[DeliveryRange]:
    """Adjacent ranges with equal counts, joined."""
    found: list[DeliveryRange] = []
    for one in ranges:
        last = found[-1] if found else None
        if last is not None and replace(last, first_lsn=one.first_lsn, last_lsn=one.last_lsn) == one:
            if last.last_lsn + 1 == one.first_lsn:
                found[-1] = replace(last, last_lsn=one.last_lsn)
                continue
        found.append(one)
    return found


def _few(ranges: list[DeliveryRange]) -> Ranges:
    """At most RANGES_MAX ranges: the earliest pair becomes one, with the lower count, which parks nothing."""
    while len(ranges) > RANGES_MAX:
        one, other = ranges[0], ranges[1]
        least = min(one, other, key=lambda found: found.deliveries)
        joined = replace(
            least,
            first_lsn=one.first_lsn,
            last_lsn=other.last_lsn,
            together=max(2, one.together, other.together),
        )
        ranges = [joined, *ranges[2:]]
    return tuple(ranges)


def live_ranges(
    ranges: Mapping[int, Ranges], committed: Mapping[int, int], parked: ParkedOfGroup
) -> dict[int, Ranges]:
    """Partition -> its ranges of events that are still to be committed, and not parked.

    Args:
        committed: partition -> committed LSN, for the partitions that are wanted.
        parked: the group's parked events, and its released ones, which may be at or before the committed LSN.
    """
    found = {}
    for partition, lsn in committed.items():
        of_partition = ranges.get(partition, ())
        if of_partition and parked.events:
            of_partition = without(of_partition, [event.lsn for event in parked.of(PARKED, partition)])
        released = [event.lsn for event in parked.of(RELEASED, partition)] if parked.events else []
        live = tuple(
            one
            for one in of_partition
            if one.last_lsn > lsn or any(one.first_lsn <= again <= one.last_lsn for again in released)
        )
        if live:
            found[partition] = live
    return found


def events_at_once(found: DeliveryRange | None, max_deliveries: int) -> int | None:
    """The largest number of events of an answer that has an event of this range; None for any number.

    Args:
        found: None for an event that has not been delivered.
    """
    left = max_deliveries - (0 if found is None else found.deliveries)
    if left <= 1:
        return 1
    if found is None:
        return None
    # Without the tolerance, a power that is a whole number would be rounded up to the next one.
    share: float = found.together ** ((left - 1) / left)
    return max(1, math.ceil(share - 1e-9))


def _range_of(ranges: Ranges, lsn: int) -> DeliveryRange | None:
    low, high = 0, len(ranges)
    while low < high:
        middle = (low + high) // 2
        if ranges[middle].last_lsn < lsn:
            low = middle + 1
        else:
            high = middle
    found = ranges[low] if low < len(ranges) else None
    return found if found is not None and found.first_lsn <= lsn else None


class Delivery:
    """The delivery of one answer: it bounds the answer's events, and counts them.

    Args:
        ranges: partition -> its ranges before the answer.
        member: the name of the member that reads; None without one.
        began: `Deliveries.beginning` of the group, as it was before the ranges were read.
        counts: False for a read that is no delivery, which only shows the counts.

    Attributes:
        ended: True if the answer has fewer events than it could have.
    """

    def __init__(
        self,
        deliveries: Deliveries,
        group: Group,
        ranges: Mapping[int, Ranges],
        member: str | None,
        began: int,
        *,
        counts: bool,
    ) -> None:
        assert group.max_deliveries is not None
        self._deliveries = deliveries
        self._group = group
        self._max = group.max_deliveries
        self._ranges = {partition: found for partition, found in ranges.items() if found}
        self._member = member
        self._began = began
        self.counts = counts
        self.ended = False
        self._bound: int | None = None
        self._events = 0
        self._last_lsn: int | None = None
        self._spans: dict[int, tuple[int, int]] = {}

    @property
    def is_narrow(self) -> bool:
        """True if the answer may have fewer events than were asked for."""
        return self.counts and (bool(self._ranges) or self._max == 1)

    def take(self, lsns: Sequence[int], partitions: Sequence[int]) -> int:
        """Count the next events of the answer, durably.

        Args:
            lsns: their LSNs in the order of the answer; an update in ENVELOPE CHANGES has one twice.

        Returns:
            The number of rows that the answer may have of them; it ends there if that is not all.

        Raises:
            DucktailError: the count cannot be stored.
        """
        if not self.counts:
            return len(lsns)
        count = 0 if self.ended else self._fitting(lsns, partitions)
        self.ended = self.ended or count < len(lsns)
        if count:
            self._count(lsns[:count], partitions[:count])
        return count

    def span(self, spans: Mapping[int, tuple[int, int]], events: int) -> None:
        """Count the events between two LSNs of each partition, durably.

        Args:
            spans: partition -> first and last LSN.
            events: their number, or an upper bound of it.
        """
        if self.counts and spans:
            self._spans.update(spans)
            self._events += events
            self._store()

    def of(self, lsns: Sequence[int], partitions: Sequence[int]) -> list[int]:
        """The deliveries of events, this one included if it counts."""
        now = 1 if self.counts else 0
        if not self._ranges:
            return [now] * len(lsns)
        found = (_range_of(self._ranges.get(p, ()), lsn) for lsn, p in zip(lsns, partitions, strict=True))
        return [now if one is None else one.deliveries + now for one in found]

    def _fitting(self, lsns: Sequence[int], partitions: Sequence[int]) -> int:
        """The number of next rows with which the answer keeps the bound of each of its events."""
        if not self.is_narrow:
            self._events += len(lsns)
            return len(lsns)
        for place, (lsn, partition) in enumerate(zip(lsns, partitions, strict=True)):
            if lsn == self._last_lsn:
                continue
            own = events_at_once(_range_of(self._ranges.get(partition, ()), lsn), self._max)
            bound = min((b for b in (self._bound, own) if b is not None), default=None)
            if bound is not None and self._events >= bound:
                return place
            self._bound, self._last_lsn = bound, lsn
            self._events += 1
        return len(lsns)

    def _count(self, lsns: Sequence[int], partitions: Sequence[int]) -> None:
        for lsn, partition in zip(lsns, partitions, strict=True):
            first, last = self._spans.get(partition, (lsn, lsn))
            self._spans[partition] = min(first, lsn), max(last, lsn)
        self._store()

    def _store(self) -> None:
        """Store the counts of the whole answer so far, whose parts were delivered together."""
        self._deliveries.store(
            self._group.group_id,
            {
                partition: delivered(self._ranges.get(partition, ()), first, last, self._events, self._member)
                for partition, (first, last) in self._spans.items()
            },
            self._began,
        )


@dataclass(slots=True, eq=False)
class _Row:
    """A row of delivery_log that is to be written: partition -> all its ranges."""

    seq: int
    group_id: int
    ranges: Mapping[int, Ranges]
    is_done: bool = False
    error: DucktailError | None = None


class Deliveries:
    """The delivery counts of all groups: a cache of `delivery_log`. Safe to use from several threads.

    Args:
        cursor: a cursor of the engine's own, used here only.
    """

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        self._cursor = cursor
        self._writing = threading.Lock()  # guards the cursor; taken before the mutex
        self._mutex = threading.Lock()  # guards all below
        self._queue: list[_Row] = []
        self._groups: dict[int, dict[int, Ranges]] = {}
        self._live: dict[tuple[int, int], int] = {}  # group and partition -> number of its latest row
        # Group id -> number of the row behind which its counts began anew.
        self._beginnings: dict[int, int] = {}
        self._seq = 0
        counted = f"SELECT group_id FROM {SCHEMA}.delivery_limits"
        if cursor.execute(f"SELECT 1 FROM {TABLE} WHERE group_id NOT IN ({counted}) LIMIT 1").fetchall():
            # A kill has come between the drop of a group and `sweep`.
            cursor.execute(f"DELETE FROM {TABLE} WHERE group_id NOT IN ({counted})").fetchall()
        for seq, group_id, entry in cursor.execute(
            f"SELECT seq, group_id, entry FROM {TABLE} ORDER BY seq"
        ).fetchall():
            self._apply(_Row(seq, group_id, _read(entry)))
            self._seq = seq
        for group_id, partition, lsn in cursor.execute(
            f"SELECT group_id, partition, lsn FROM {SCHEMA}.parked_events WHERE state = '{PARKED}'"
        ).fetchall():
            # A kill may have come between the parking and `clear`.
            self.drop(group_id, partition, [lsn])
        self._rows = self._kept = len(self._live)
        self._appender: duckdb.Appender | None = None

    def get(self, group_id: int) -> Mapping[int, Ranges]:
        """Partition -> the ranges of a group's delivered events, also of those committed since."""
        with self._mutex:
            return dict(self._groups.get(group_id, _NONE))

    def beginning(self, group_id: int) -> int:
        """A number that changes when the group's counts begin anew."""
        with self._mutex:
            return self._beginnings.get(group_id, 0)

    def store(self, group_id: int, ranges: Mapping[int, Ranges], began: int | None = None) -> None:
        """Replace the ranges of some partitions; they are durable when this returns. Runs DuckDB.

        Calls that come while another writes are written together by the first of them.

        Args:
            began: `beginning` before the read. If the counts have begun anew since, the answer is one of
                before: it is not counted.

        Raises:
            DucktailError: DuckDB cannot write them.
        """
        with self._mutex:
            if began is not None and began != self._beginnings.get(group_id, 0):
                return
            self._seq += 1
            row = _Row(self._seq, group_id, ranges)
            self._queue.append(row)
        with self._writing:
            if not row.is_done:
                self._write()
        if row.error is not None:
            raise row.error

    def clear(self, group_id: int, lsns: Mapping[int, Collection[int]]) -> None:
        """Remove the counts of some events durably; a release then begins with none. Runs DuckDB.

        Args:
            lsns: partition -> LSNs.

        Raises:
            DucktailError: DuckDB cannot write the remaining ranges.
        """
        present = self.get(group_id)
        self.store(group_id, {p: without(present.get(p, ()), found) for p, found in lsns.items()})

    def drop(self, group_id: int, partition: int, lsns: Collection[int]) -> None:
        """Remove the counts of released events from memory; their next delivery stores what is left."""
        with self._mutex:
            of_group = self._groups.get(group_id, {})
            if partition in of_group:
                of_group[partition] = without(of_group[partition], lsns)

    def forget(self, group_ids: Iterable[int]) -> None:
        """Remove the counts of groups whose rows of `delivery_log` a transaction has deleted; `sweep`
        follows."""
        with self._mutex:
            for group_id in group_ids:
                if self._groups.pop(group_id, None) is None:
                    continue
                self._seq += 1
                self._beginnings[group_id] = self._seq
                for key in [key for key in self._live if key[0] == group_id]:
                    del self._live[key]

    def sweep(self, group_ids: Iterable[int]) -> None:
        """Delete rows that were written after the MVCC snapshot of the transaction that deleted its groups'
        rows, once it is committed. Runs DuckDB."""
        with self._writing:
            with self._mutex:
                ends = [
                    (number, self._beginnings[number]) for number in group_ids if number in self._beginnings
                ]
            if not ends:
                return
            stale = " OR ".join(f"(group_id = {number} AND seq < {end})" for number, end in ends)
            try:
                self._cursor.execute(f"DELETE FROM {TABLE} WHERE {stale}").fetchall()
            except duckdb.Error:
                logger.exception("deleting delivery counts")

    def _is_stale(self, row: _Row) -> bool:
        return row.seq < self._beginnings.get(row.group_id, 0)

    def _apply(self, row: _Row) -> None:
        if self._is_stale(row):
            return
        of_group = self._groups.setdefault(row.group_id, {})
        for partition, ranges in row.ranges.items():
            if self._live.get((row.group_id, partition), 0) < row.seq:
                of_group[partition] = ranges
                self._live[row.group_id, partition] = row.seq

    def _write(self) -> None:
        with self._mutex:
            batch, self._queue = self._queue, []
            rows = [row for row in batch if not self._is_stale(row)]
        error: DucktailError | None = None
        try:
            with_memory(lambda: self._append(rows))
        except duckdb.Error as found:
            error = translated(found)
        with self._mutex:
            for row in batch:
                row.is_done, row.error = True, error
                if error is None:
                    self._apply(row)
            self._rows += len(rows)
            many = self._rows > self._kept + FOLD_ROWS
        if many and error is None:
            self._fold()

    def _append(self, rows: Sequence[_Row]) -> None:
        if self._appender is None:
            self._appender = self._cursor.appender(TABLE)
        try:
            for row in rows:
                self._appender.append_row(row.seq, row.group_id, _entry(row.ranges))
            # A flush outside a transaction is one of its own: durable when it returns.
            self._appender.flush()
        except duckdb.Error:
            self._appender = None
            raise

    def _fold(self) -> None:
        """Delete the rows that later ones have overtaken in each of their partitions."""
        with self._mutex:
            through, live = self._seq, sorted(set(self._live.values()))
            groups = ", ".join(map(str, self._groups)) or "NULL"
        try:
            self._cursor.execute(
                f"DELETE FROM {TABLE} WHERE seq <= {through} AND group_id IN ({groups}) "
                "AND seq NOT IN (SELECT unnest($1::BIGINT[]))",
                [live],
            ).fetchall()
        except duckdb.TransactionException:
            pass  # A transaction that drops a group deletes the same rows: the next fold gets them.
        except duckdb.Error:
            logger.exception("folding delivery counts")
        with self._mutex:
            self._rows = self._kept = len(live)


def _entry(ranges: Mapping[int, Ranges]) -> str:
    """The JSON of a row: partition -> its ranges as lists."""
    return json.dumps(
        {
            str(partition): [
                [one.first_lsn, one.last_lsn, one.deliveries, one.together, *one.members] for one in found
            ]
            for partition, found in ranges.items()
        },
        separators=(",", ":"),
    )


def _read(entry: str) -> dict[int, Ranges]:
    return {
        int(partition): tuple(
            DeliveryRange(first, last, deliveries, together, tuple(members))
            for first, last, deliveries, together, *members in found
        )
        for partition, found in json.loads(entry).items()
    }


def exhausted(ranges: Mapping[int, Ranges], max_deliveries: int) -> list[tuple[int, DeliveryRange]]:
    """The partition and range of each event that has been delivered too often, the last time alone."""
    return [
        (partition, one)
        for partition, found in sorted(ranges.items())
        for one in found
        if one.is_alone and one.deliveries >= max_deliveries
    ]
