"""Opened stream scans, and the tracking of their reads: a read of a group moves its read position.

The position moves row by row or as a whole. Rows that are handed out are only noted; they become the position
when their answer is complete (`Result.suspend`, `on_end`). An answer that its client does not take to its end
sets no position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from ...engine.buffers.buffer import StreamBuffer
from ...engine.buffers.scan import Scan, ScanRange
from ...engine.catalog.streams import Stream
from ...engine.groups.deliveries import Delivery
from ...engine.groups.member import MemberHold
from ...engine.values.copy_rows import CopyForm
from ..cluster.gathering import Gathered, GatheredScan
from ..results.results import ArrowBatch, ResultBatch, turned_rows
from ..session_state.context import Context
from ..session_state.positions import MemberRead, Reader

_NONE: Mapping[int, frozenset[int]] = {}


class Tracker:
    """The read position that one read of a group sets.

    Args:
        moves: True if the read sets a position; else, or without a group, nothing is tracked.
    """

    def __init__(self, session: Context, opened: OpenedScan, *, moves: bool) -> None:
        self._session = session
        self._opened = opened
        self._reader = opened.reader if moves else None
        self._lsns = dict(opened.committed)
        self._aside = opened.bounds.aside
        self._through = 0  # LSN up to which all events have been returned
        # For gathered events: partition -> last returned event, including events that are returned again.
        self._last: dict[int, int] = {}
        self._all = False
        self._given = False

    def given(self, lsns: Sequence[int], partitions: Sequence[int]) -> None:
        """Note returned events, in LSN order; `stopped` makes them the position."""
        if self._reader is None:
            return
        self._given = True
        if self._aside is not None and lsns:
            # Events that are returned again are at or before the committed LSN, which does not go back.
            self._through = max(self._through, lsns[-1])
            started = self._opened.committed
            lsns = [max(started[n], lsn) for n, lsn in zip(partitions, lsns, strict=True)]
        elif self._opened.again:
            self._last.update(zip(partitions, lsns, strict=True))
            started = self._opened.committed
            lsns = [max(started[n], lsn) for n, lsn in zip(partitions, lsns, strict=True)]
        # The last LSN of each partition: dict keeps the later one.
        self._lsns.update(zip(partitions, lsns, strict=True))

    def note_through(self, lsn: int, buffer: StreamBuffer) -> None:
        """Note returned rows up to `lsn`, in LSN order; earlier events count as seen."""
        self._given = True
        self._through = max(self._through, lsn)
        started, copy = self._opened.committed, self._opened.bounds.copy
        for number, last in buffer.last_lsns_at(lsn, started).items():
            if copy is not None:
                last = max(last, copy.last_at(number, lsn))
            self._lsns[number] = max(started[number], last)

    def note_numbers(self, numbers: Sequence[int]) -> None:
        """Note returned rows by the numbers under which they were gathered.

        Their LSNs rise within each partition; the order over the partitions is free.
        """
        gathered = self._opened.gathered
        assert gathered is not None
        self._given = True
        lsns, partitions = gathered.places(numbers)
        for partition, lsn in zip(partitions, lsns, strict=True):
            self._lsns[partition] = max(lsn, self._lsns.get(partition, 0))
            if self._opened.again:
                self._last[partition] = max(lsn, self._last.get(partition, 0))

    def note_end(self) -> None:
        """Note that the read has reached the scan's end; `stopped` makes it the position."""
        self._through, self._all, self._given = self._opened.bounds.through_lsn, True, True
        self._lsns.update(self._opened.ends)

    def complete(self) -> None:
        """Set the position to the scan's end: all its events count, including rejected ones."""
        if self._reader is not None:
            self._through, self._all = self._opened.bounds.through_lsn, True
            self._set({**self._lsns, **self._opened.ends})

    def stopped(self) -> None:
        """Set the position to the last returned row: the answer is complete before the scan's end."""
        if self._reader is None:
            return
        if not self._given and self._session.positions.has(self._reader):
            return  # No row was returned: a later read's position remains.
        self._set(self._lsns)

    def void(self, reason: str) -> None:
        """Leave the group without a position."""
        if self._opened.reader is not None:
            self._session.positions.void(self._opened.reader, reason)

    def untold(self) -> None:
        """Note the end of a read that sets no position; it may have returned all events of the scan."""
        if self._opened.reader is not None:
            self._session.positions.gave(self._opened.reader, self._opened.ends)

    def failed(self) -> None:
        """Leave the group without a position: the read has failed or was cancelled."""
        self.void("the latest read failed or was cancelled")

    def ended(self) -> None:
        """End the read, with any outcome, and its hold."""
        self._opened.first.leave()
        self._session.positions.ended(self._opened.hold)

    def _set(self, lsns: Mapping[int, int]) -> None:
        assert self._reader is not None
        self._session.positions.set(self._reader, lsns, self._given_again())

    def _given_again(self) -> Mapping[int, frozenset[int]]:
        """Partition -> the released events that the read has returned again."""
        if again := self._opened.again:
            # Within a partition all events come by LSN, including those that are returned again.
            last = self._last
            return {
                p: frozenset(one for one in lsns if self._all or one <= last.get(p, 0))
                for p, lsns in again.items()
            }
        if self._aside is None:
            return _NONE
        lists: dict[int, list[int]] = {number: [] for number in self._opened.committed}
        for lsn, number in self._aside.partitions.items():
            if lsn <= self._through:
                lists[number].append(lsn)
        return {number: frozenset(lsns) for number, lsns in lists.items()}


@dataclass(frozen=True, slots=True)
class TrackedBatch:
    """Rows with the hidden column, which is not sent to the client.

    Args:
        rows: the rows, with the hidden column.
        hidden: index of the hidden column. It holds the LSN, or the place in ENVELOPE CHANGES
            (`HIDDEN_PLACE`).
        pairs: True if it is the hidden column of ENVELOPE CHANGES.
    """

    rows: pa.RecordBatch
    hidden: int
    pairs: bool = False

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return int(self.rows.num_rows)

    @property
    def size(self) -> int:
        """The size of the rows in bytes."""
        return int(self.rows.nbytes)

    @property
    def last_lsn(self) -> int:
        """The LSN up to which every event is complete with these rows."""
        last = int(self.rows.column(self.hidden)[-1].as_py())
        if not self.pairs:
            return last
        # The new row of an update may still follow its old one.
        return last // 2 - (last % 2 == 0)

    @property
    def numbers(self) -> list[int]:
        """The values of the hidden column."""
        found: list[int] = self.rows.column(self.hidden).to_pylist()
        return found

    def cut(self, start: int, count: int | None) -> ResultBatch:
        """A slice of the rows."""
        return TrackedBatch(self.rows.slice(start, count), self.hidden, self.pairs)

    def turned(self) -> ResultBatch:
        """The rows in reverse order."""
        return TrackedBatch(turned_rows(self.rows), self.hidden, self.pairs)

    def record_batch(self) -> pa.RecordBatch:
        """The rows as Arrow, without the hidden column."""
        places = [place for place in range(self.rows.num_columns) if place != self.hidden]
        return self.rows.select(places)

    def stored(self) -> tuple[pa.RecordBatch, Callable[[pa.RecordBatch], ResultBatch]]:
        """The rows with the hidden column, and a function that builds a batch from such rows."""
        hidden, pairs = self.hidden, self.pairs
        return self.rows, lambda rows: TrackedBatch(rows, hidden, pairs)

    def parts(self) -> Sequence[ResultBatch]:
        """The parts of the rows, as an Arrow batch has them."""
        return ArrowBatch(self.record_batch()).parts()

    def datarows(self, types: Sequence[str], formats: Sequence[int], timezone: str) -> bytes | memoryview:
        """The rows as DataRow messages."""
        return ArrowBatch(self.record_batch()).datarows(types, formats, timezone)

    def copy_rows(self, types: Sequence[str], form: CopyForm, timezone: str) -> bytes | memoryview:
        """The rows as CopyData messages."""
        return ArrowBatch(self.record_batch()).copy_rows(types, form, timezone)


@dataclass(frozen=True, slots=True)
class OpenedScan:
    """A scan that is ready to be read, any number of times.

    Args:
        committed: partition -> committed LSN at which a group's read begins; empty without a group.
        ends: partition -> LSN of its last event within the scan's end.
        first: an unread scan, for the first reader.
        reader: the reader whose position a read of the scan sets; None if it sets none.
        hold: the member's hold during the read.
        changes: True if the scan is read in ENVELOPE CHANGES.
        gathered: the events, if they are from several nodes; there are no bounds then.
        again: partition -> the released events among those gathered here.
        delivery: the counting of its events; None if they are not counted.
    """

    stream: Stream
    bounds: ScanRange
    committed: Mapping[int, int]
    ends: Mapping[int, int]
    first: Scan | GatheredScan
    reader: Reader | None = None
    hold: MemberHold | MemberRead | None = None
    changes: bool = False
    gathered: Gathered | None = None
    again: Mapping[int, frozenset[int]] = field(default_factory=dict)
    delivery: Delivery | None = None

    @property
    def released(self) -> Mapping[int, frozenset[int]]:
        """Partition -> the released events of this node that the scan returns."""
        aside = self.bounds.aside
        if aside is None:
            return self.again
        found: dict[int, set[int]] = {}
        for lsn, partition in aside.partitions.items():
            found.setdefault(partition, set()).add(lsn)
        return {partition: frozenset(lsns) for partition, lsns in found.items()}
