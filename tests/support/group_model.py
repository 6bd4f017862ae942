"""What the model of test_stateful knows of consumer groups: what a read as one gives, and where it leaves it.

A group has its committed LSNs, perhaps rows of a whole copy, events that it has parked and released, and
members. From these and the stream's events follows what each form of read has to give.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import groupby

from stream_model import Stream, Told

Test = Callable[[Told], bool]


@dataclass(frozen=True)
class Read:
    """How a group is read.

    Args:
        changes: in ENVELOPE CHANGES.
        partitions: those that it scans; None is all of them.
        where: its WHERE, which `test` is in Python.
        limit: of its rows, with `whole` of its transactions.
        cold: from the log.
        says: the partitions by PARTITION, and not in its WHERE.
    """

    changes: bool = False
    partitions: frozenset[int] | None = None
    where: str = ""
    test: Test = lambda event: True
    limit: int | None = None
    whole: bool = False
    cold: bool = False
    says: bool = False

    def select(self, columns: str, source: str) -> str:
        """Its query."""
        listed = f"partition ({', '.join(map(str, self.partitions or ()))})" if self.says else ""
        envelope = "envelope changes" if self.changes else ""
        end = "" if self.limit is None else f"limit {self.limit} {'transactions' * self.whole}"
        return f"select {columns} from {source} {listed} {envelope} {self.where} {end}"


@dataclass(frozen=True)
class Given:
    """What a read gives.

    Args:
        events: those that are in the answer.
        lows, highs: partition -> between which LSNs its read position is: the same, but where events that
            are parked, or without a row, stand behind the last one that is given, or it comes from the log.
        covers: partition -> the LSNs of released events that a commit of it is through with.
    """

    events: list[Told]
    lows: dict[int, int]
    highs: dict[int, int]
    covers: dict[int, frozenset[int]]


@dataclass
class Parked:
    """A parked event; `by_key`: later ones of its key stand behind it."""

    event: Told
    by_key: bool


@dataclass
class Group:
    """A consumer group as the model knows it.

    Args:
        copy: the rows of its whole copy.
        parked, released: by LSN.
        behind: what stands behind a parked key and retention has taken.
        members: what the latest read of each has given and it has not committed; None is nothing.
        holding: the members whose latest read a whole copy has voided: until they read again they keep the
            partitions of which it gave events.
        read, covers: the read position of who reads without MEMBER, and what its commit covers.
        is_behind: some of that is not known, or before what is committed.
    """

    stream: Stream
    name: str
    on_gap: str
    on_park: str
    committed: dict[int, int]
    copy: list[Told] = field(default_factory=list)
    parked: dict[int, Parked] = field(default_factory=dict)
    behind: dict[int, Told] = field(default_factory=dict)
    released: dict[int, Told] = field(default_factory=dict)
    members: dict[str, Given | None] = field(default_factory=dict)
    holding: set[str] = field(default_factory=set)
    read: dict[int, int] = field(default_factory=dict)
    covers: dict[int, frozenset[int]] = field(default_factory=dict)
    is_behind: bool = False

    @property
    def source(self) -> str:
        """It in FROM."""
        return f"stream {self.stream.name} consumer group {self.name}"

    @property
    def on(self) -> str:
        """It in other statements."""
        return f"{self.stream.name} consumer group {self.name}"

    def all_partitions(self) -> frozenset[int]:
        """Those of its stream."""
        return frozenset(self.committed)

    def lost(self, partitions: Iterable[int]) -> bool:
        """Whether retention has taken what comes next in any of these."""
        return any(self.stream.edge(number) > self.committed[number] for number in partitions)

    def head(self, event: Told) -> Parked | None:
        """The parked event behind which one stands, if it does."""
        heads = (parked for parked in self.parked.values() if parked.by_key)
        return next((one for one in heads if _is_behind(event, one.event)), None)

    def next(self, partitions: Collection[int]) -> list[Told]:
        """What a read of these partitions comes by, in order."""
        starts = {number: max(self.committed[number], self.stream.edge(number)) for number in partitions}
        there = (*self.copy, *self.stream.retained)
        after = (e for e in there if e.partition in starts and e.lsn > starts[e.partition])
        found = {e.lsn: e for e in after if e.lsn not in self.parked and not self.head(e)}
        found |= {lsn: event for lsn, event in self.released.items() if event.partition in starts}
        return [found[lsn] for lsn in sorted(found)]

    def gives(self, read: Read, scanned: Collection[int] | None = None) -> Given:
        """What a read has to give.

        Args:
            scanned: its partitions, where that is not the read's own business.
        """
        partitions = read.partitions if read.partitions is not None else self.all_partitions()
        if scanned is not None:
            partitions = partitions & frozenset(scanned)
        wanted = [event for event in self.next(partitions) if read.test(event)]
        taken = _limited(wanted, read, self.stream.before)

        def has_rows(event: Told) -> bool:
            return not read.changes or bool(event.rows(self.stream.before))

        events = list(filter(has_rows, taken))
        last = taken[-1].lsn if taken else 0
        is_cut = any(event.lsn > last for event in wanted if has_rows(event))
        # Whether a read that has given all that there is has come to its end, a LIMIT does not say.
        may_be_cut = is_cut or _is_full(taken, read, self.stream.before)
        lows, highs = {}, {}
        for number in partitions:
            mine = (event.lsn for event in events if event.partition == number)
            lows[number] = max([self.committed[number], *mine]) if may_be_cut else self._at(number)
            # What comes last before it in a partition may be for the log alone to tell.
            ends = self._at(number, last) if is_cut else max(self._at(number), self.stream.last(number))
            highs[number] = max(ends, last)
        covers = {
            number: frozenset(
                lsn
                for lsn, event in self.released.items()
                if event.partition == number and not (is_cut and lsn > last)
            )
            for number in partitions
        }
        return Given(events, lows, highs, covers)

    def _at(self, partition: int, lsn: float = math.inf) -> int:
        """The last of a partition's events, that are still there, up to an LSN, or what is committed."""
        there = (e.lsn for e in (*self.copy, *self.stream.retained) if e.partition == partition)
        return max([self.committed[partition], *(one for one in there if one <= lsn)])

    def park(self, event: Told) -> None:
        """Set one aside."""
        by_key = self.on_park == "key" and event.names is not None
        self.released.pop(event.lsn, None)
        self.parked[event.lsn] = Parked(event, by_key)
        if by_key:
            later = [one for one in self.released.values() if _is_behind(one, event)]
            for one in later:
                self.behind[one.lsn] = self.released.pop(one.lsn)

    def release(self, heads: Iterable[Parked]) -> None:
        """Give parked events again, with what stands behind them."""
        for head in heads:
            del self.parked[head.event.lsn]
            self.released[head.event.lsn] = head.event
        for head in heads:
            if not head.by_key:
                continue
            found = {e.lsn: e for e in (*self.stream.retained, *self.behind.values())}
            for event in found.values():
                if _is_behind(event, head.event) and event.lsn not in self.parked and not self.head(event):
                    self.released[event.lsn] = event
                    self.behind.pop(event.lsn, None)

    def void(self) -> None:
        """Who reads without MEMBER has no position any more."""
        self.read, self.covers, self.is_behind = {}, {}, False

    def commit(self, place: dict[int, int], covers: dict[int, frozenset[int]]) -> None:
        """These LSNs are committed, by one to whom these released events were given."""
        self.committed |= place
        for number, lsns in covers.items():
            for lsn in lsns:
                if lsn <= place.get(number, -1):
                    self.released.pop(lsn, None)

    def trimmed(self, events: Iterable[Told]) -> None:
        """Retention takes these: what stands behind a parked key is kept."""
        self.behind |= {e.lsn: e for e in events if e.lsn not in self.parked and self.head(e)}


def _is_behind(event: Told, head: Told) -> bool:
    return event.partition == head.partition and event.names == head.names and event.lsn > head.lsn


def _limited(events: list[Told], read: Read, before: str) -> list[Told]:
    """What a LIMIT leaves; it parts no update."""
    if read.limit is None:
        return events
    if read.whole:
        each = [list(listed) for _, listed in groupby(events, key=lambda event: event.txid)]
        return [event for listed in each[: read.limit] for event in listed]
    found, rows = [], 0
    for event in events:
        if rows >= read.limit:
            break
        rows += len(event.rows(before)) if read.changes else 1
        found.append(event)
    return found


def _is_full(events: list[Told], read: Read, before: str) -> bool:
    """Whether so many are all that the read was to give."""
    if read.limit is None:
        return False
    if read.whole:
        return len({event.txid for event in events}) >= read.limit
    return sum(len(event.rows(before)) if read.changes else 1 for event in events) >= read.limit
