"""The source of a follower's events: statements of docs/sql.md in a session of its own.

So rights, gaps, waits, cancels, the reopening of an invalidated database, and the rows of `ducktail.sessions`
are the same as for any read. A feed reads, and waits until there are events; the driver of the generator can
end the wait.

- Without a group (`StreamFeed`) a read continues after the last one: it may run ahead of the program.
- With a group (`GroupFeed`) the consumer is the group's member of that name, and a read begins at the
  group's committed LSNs. It does not run ahead of commits, so that a partition that changes its owner
  continues at the next owner where this one stopped.

A stream is followed by its number: a rename has no effect, and a dropped stream raises 42704, even if another
stream has its name by now.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

import pyarrow as pa

from ...engine.catalog.streams import Group, Stream
from ...engine.checkpoints.backend import Backend
from ...engine.checkpoints.positions import PartitionLsns
from ...engine.checkpoints.state import Checkpoint, CheckpointState
from ...engine.clock import Clock
from ...engine.database import Database
from ...engine.errors import NotSupported, UndefinedObject
from ...engine.log.events import Event, arrow_of, events_of
from ...engine.quoting import fold, ident
from ...engine.waiting import Waiting, drive
from ..results.notices import Notice
from ..results.results import EventBatch, LogBatch
from ..session import Session


@dataclass(frozen=True, slots=True)
class Batch:
    """Some events of a stream, at least one, in reading order.

    Args:
        stream: the stream's name.
        events: the events, as tuples with names.
        position: partition -> the LSN up to which this batch completes the partition. `follow(after=...)`
            continues from such a map.
        number: the number of the batch in this follow, from 1.
        event_count: the number of events delivered to the consumer up to this batch, over all its follows.
    """

    stream: str
    events: tuple[Event, ...]
    position: Mapping[int, int]
    number: int
    event_count: int

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    @property
    def first_lsn(self) -> int:
        """LSN of the first event."""
        return self.events[0].lsn

    @property
    def last_lsn(self) -> int:
        """LSN of the last event."""
        return self.events[-1].lsn

    def position_text(self) -> str:
        """The position as JSON object, the form of AFTER and COMMIT OFFSETS AT."""
        return json.dumps({str(partition): lsn for partition, lsn in sorted(self.position.items())})

    def arrow(self) -> pa.RecordBatch:
        """The events as Arrow, with all columns of docs/sql.md, "Reading"."""
        return arrow_of(self.events)


# The interval of each WAIT of a read: the longest one allowed.
WAIT = "24 hours"

# The size of an event beside its texts: a tuple of thirteen, numbers, a time.
EVENT_BYTES = 400
NS_A_US = 1000
# Events of the first read that returns released ones; each later one has up to so many times as many.
RELEASED_EVENTS, GROWTH = 16, 4

Positions = dict[int, int]
T = TypeVar("T")


class Feed(Protocol):
    """The source of a follower's events.

    Attributes:
        ahead: True if it may be read before delivered events are checkpointed.
        position: partition -> LSN at which it begins, where known.
    """

    ahead: bool
    position: Positions

    def read(self, count: int, bytes_max: int) -> Waiting[list[Event]]:
        """Wait for events and return them: at least one and at most `count`.

        Args:
            bytes_max: the approximate maximum of their bytes; the last one may exceed it. A group's read that
                returns released events takes all rows of its statement (`ReleasedReads`).

        Raises:
            Gap: the next event has been trimmed.
            UndefinedObject: the stream or the group does not exist any more.
        """

    def advance(self, position: Mapping[int, int], events: Sequence[Event]) -> Positions:
        """The position after these events, which follow `position`."""

    def commit(self, position: Mapping[int, int], event_count: int, watermark_us: int) -> bool:
        """Store durably that all events up to a position are done; False if that must wait.

        Args:
            event_count: the number of events delivered to the consumer by then.
            watermark_us: commit time of the last of them, microseconds since 1970.
        """

    def cancel(self) -> None:
        """End the running read; from any thread."""

    def close(self) -> None:
        """Free the resources; no read is in progress."""


class Reads:
    """The session in which a feed reads one stream.

    Args:
        tell: receives notices beside the answers, such as the WARNING of a skipped gap.
        account: the user whose rights it has; None for all rights.
    """

    def __init__(
        self,
        database: Database,
        stream: Stream,
        user: str,
        application_name: str,
        tell: Callable[[Iterable[Notice]], None],
        account: str | None = None,
    ) -> None:
        self.database = database
        self._tell = tell
        self.stream_id = stream.stream_id
        self._name = stream.name
        self.session = Session(database, user=user, application_name=application_name, account=account)

    def stream(self) -> Stream:
        """The stream in its present state.

        Raises:
            UndefinedObject: the stream has been dropped.
        """
        found = self.database.catalog.stream_by_id(self.stream_id)
        if found is None:
            raise UndefinedObject(f'stream "{self._name}" does not exist', detail="It was dropped.")
        return found

    def stream_sql(self) -> str:
        """The stream's name in a statement."""
        stream = self.stream()
        return f"{ident(stream.schema)}.{ident(stream.name)}"

    def events(
        self,
        text: Callable[[str], str],
        parameters: Sequence[object],
        bytes_max: int | None = None,
        given: Collection[int] = (),
    ) -> Waiting[list[Event]]:
        """The events that a plain read returns.

        Args:
            text: returns the statement for a stream's name.
            bytes_max: reading stops once the events have this size; the rest remains unread.
            given: LSNs of events to skip.
        """
        while True:
            name = self.stream_sql()
            try:
                found = yield from self._read(text(name), parameters, bytes_max, given)
            except UndefinedObject:
                if self.stream_sql() == name:
                    raise
                continue  # It was renamed in the meantime.
            if self.stream_sql() == name:
                return found
            # Another stream may have had the name when the statement ran.

    def _read(
        self, text: str, parameters: Sequence[object], bytes_max: int | None, given: Collection[int]
    ) -> Waiting[list[Event]]:
        statement = yield from self.session.parse(text)
        result = yield from self.session.execute(statement, parameters)
        found: list[Event] = []
        try:
            while (bytes_max is None or bytes_max > 0) and (batch := result.fetch(None)) is not None:
                if isinstance(batch, LogBatch):
                    batch = batch.ready()
                assert isinstance(batch, EventBatch), "a plain read gives events"
                rows: Sequence[bytes] = batch.rows
                if given:
                    # Before the rows are parsed: a program that commits late has many of them.
                    rows = [row for row, lsn in zip(rows, batch.lsns, strict=True) if lsn not in given]
                if bytes_max is not None:
                    rows, bytes_max = _fitting(rows, bytes_max)
                found += events_of(rows)
        finally:
            result.close()
        self._tell(self.session.take_notices())
        return found

    def command(self, text: str, parameters: Sequence[object] = ()) -> None:
        """Run a statement that returns no rows."""
        drive(self.running(text, parameters))

    def running(self, text: str, parameters: Sequence[object] = ()) -> Waiting[None]:
        """Run a statement that returns no rows; it may wait."""
        statement = yield from self.session.parse(text)
        result = yield from self.session.execute(statement, parameters)
        while result.fetch(None) is not None:
            pass

    def close(self) -> None:
        """End the session."""
        drive(self.session.close())


class ReleasedReads:
    """The number of events of a group's reads while it has released events.

    Such a read is taken as a whole, whatever its bytes, because a commit also covers released events that
    were read and not delivered. The first one is short; later ones have as many events as fit, if they are no
    larger than the largest of the read before.
    """

    def __init__(self) -> None:
        self._events = RELEASED_EVENTS

    def count(self, most: int) -> int:
        """The number of events of the next read."""
        return min(most, self._events)

    def found(self, sizes: Iterable[int], bytes_max: int) -> None:
        """Note the sizes of the events of a read, and the bytes that one may have."""
        self._events = max(RELEASED_EVENTS, min(GROWTH * self._events, bytes_max // max(sizes)))

    def ended(self) -> None:
        """Begin anew: the group has no released events any more."""
        self._events = RELEASED_EVENTS


def within(session: Session, work: Callable[[], T]) -> T:
    """Do something in the engine as a call of a session.

    So the database does not close its file meanwhile, and errors are translated as for a statement.
    """

    def called() -> Waiting[T]:
        return work()
        yield

    return drive(session.calls.run(called))


@dataclass(slots=True)
class ConsumerStore:
    """The checkpoints of one consumer of a stream; for one thread at a time.

    Raises:
        InvalidParameterValue: the consumer's name cannot be a key.
    """

    backend: Backend
    clock: Clock
    consumer_id: str
    latest: CheckpointState | None = field(init=False)

    def __post_init__(self) -> None:
        self.latest = self.backend.latest(self.consumer_id)

    def save(
        self, position: Mapping[int, int], event_count: int, watermark_us: int, *, rewind: bool = False
    ) -> None:
        """Store a position durably; it goes back only with `rewind`."""
        now_us = self.clock.now_us()
        state = CheckpointState(
            self.consumer_id,
            0 if self.latest is None else self.latest.sequence + 1,
            now_us,
            watermark_ns=watermark_us * NS_A_US if watermark_us else None,
            event_count=event_count,
            checkpoint=Checkpoint("ducktail", PartitionLsns(dict(position)), now_us),
        )
        self.backend.save(state, rewind=rewind)
        self.latest = state

    def clear(self) -> None:
        """Remove all checkpoints of the consumer."""
        self.backend.clear(self.consumer_id)
        self.latest = None


class StreamFeed:
    """The events of a stream, in LSN order, after a position.

    Args:
        position: partition -> LSN, for each partition.
        commits: the session in which checkpoints are stored, also while a read waits.
        store: the store of its checkpoints.
        asked: the program has chosen the beginning: the first checkpoint may be before the last one.
    """

    ahead = True

    def __init__(
        self, reads: Reads, commits: Reads, position: Positions, store: ConsumerStore, *, asked: bool
    ) -> None:
        self.position = position
        self._reads = reads
        self._commits = commits
        self._store = store
        self._asked = asked
        self._after = dict(position)

    def read(self, count: int, bytes_max: int) -> Waiting[list[Event]]:
        """Read on after the last read; see `Feed.read`."""
        while True:
            found = yield from self._reads.events(_after, (position_text(self._after), count), bytes_max)
            if found:
                self._after = self.advance(self._after, found)
                return found

    def advance(self, position: Mapping[int, int], events: Sequence[Event]) -> Positions:
        """The position after these events in LSN order over all partitions: none is behind the last event."""
        last_lsn = events[-1].lsn
        return {partition: max(lsn, last_lsn) for partition, lsn in position.items()}

    def commit(self, position: Mapping[int, int], event_count: int, watermark_us: int) -> bool:
        """Store a checkpoint; see `Feed.commit`."""
        save = partial(self._store.save, position, event_count, watermark_us, rewind=self._asked)
        within(self._commits.session, save)
        self._asked = False
        return True

    def cancel(self) -> None:
        """End the running read; from any thread."""
        self._reads.session.cancel()

    def close(self) -> None:
        """End the sessions."""
        try:
            self._reads.close()
        finally:
            self._commits.close()


class GroupFeed:
    """The events of a member of a consumer group, after the group's committed LSNs.

    Args:
        commits: the session that commits, also while a read waits.
    """

    ahead = False

    def __init__(self, reads: Reads, commits: Reads, group: Group, member: str) -> None:
        self.position: Positions = {}
        self._reads = reads
        self._commits = commits
        self._group_id = group.group_id
        self._group = group.name
        self._member = member
        self._given: dict[int, int] = {}  # LSN -> partition of delivered events that are not committed
        self._again = False  # True if some of them are at or before the committed LSN: released events
        self._released_reads = ReleasedReads()

    def read(self, count: int, bytes_max: int) -> Waiting[list[Event]]:
        """Read on; delivered events that are not committed are returned again by the statement, and
        skipped."""
        while True:
            self._check_uncounted()
            self._forget_lost()
            left = len(self._given)
            releases = self._releases
            if not releases:
                self._released_reads.ended()
            more = self._released_reads.count(count) if releases else count
            found = yield from self._reads.events(
                self._behind,
                (self._member, left + 1, left + more),
                None if releases else bytes_max,
                self._given,
            )
            if found and not releases and self._releases:
                continue  # Events were released meanwhile, and the read may have left some of them out.
            if found:
                if releases:
                    self._released_reads.found(map(bytes_of, found), bytes_max)
                standing = self._standing()
                self._again = self._again or any(event.lsn <= standing[event.partition] for event in found)
                self._given.update((event.lsn, event.partition) for event in found)
                return found

    @property
    def _releases(self) -> bool:
        return self._group_id in self._reads.database.parked.released

    def _behind(self, stream: str) -> str:
        return (
            f"SELECT * FROM STREAM {stream} CONSUMER GROUP {ident(self._group)} "
            f"MEMBER $1 WAIT '{WAIT}' FOR $2 LIMIT $3"
        )

    def advance(self, position: Mapping[int, int], events: Sequence[Event]) -> Positions:
        """The position after these events: each partition continues at its own committed LSN."""
        moved = dict(position)
        for event in events:
            moved[event.partition] = max(moved.get(event.partition, 0), event.lsn)
        return moved

    def commit(self, position: Mapping[int, int], event_count: int, watermark_us: int) -> bool:
        """Commit a position; a commit by LSN covers all released events that were read, so they are done
        together."""
        done = {lsn for lsn, partition in self._given.items() if lsn <= position.get(partition, 0)}
        if self._again and len(done) < len(self._given):
            return False
        standing = self._standing()
        lsns = {self._given[lsn]: 0 for lsn in done}
        moved = {partition: max(position[partition], standing[partition]) for partition in lsns}
        if moved:
            text = (
                f"COMMIT OFFSETS AT $1 ON {self._commits.stream_sql()} "
                f"CONSUMER GROUP {ident(self._group)} MEMBER $2"
            )
            self._commits.command(text, (position_text(moved), self._member))
        for lsn in done:
            del self._given[lsn]
        self._again = self._again and bool(self._given)
        return True

    def _check_uncounted(self) -> None:
        """Refuse a group that counts deliveries: each read here repeats the events that are not committed."""
        group = self._reads.database.catalog.groups.get((self._reads.stream().stream_id, fold(self._group)))
        if group is None or group.max_deliveries is None:
            return
        raise NotSupported(
            f'consumer group "{self._group}" has max_deliveries, and cannot be followed by a program',
            detail="The program reads ahead of its commits, so that the deliveries would not be its own.",
            hint="SET (max_deliveries = 'none'), or read the group by SELECT ... FROM STREAM.",
        )

    def _forget_lost(self) -> None:
        """Forget delivered events that this member does not receive again; a read must not count them.

        A partition may have become another member's; SEEK or a whole copy may have moved the group; trimmed
        events are in a gap.
        """
        if not self._given:
            return
        database, stream = self._reads.database, self._reads.stream()
        group = next((g for g in database.catalog.groups.values() if g.group_id == self._group_id), None)
        if group is None:
            return
        owners, standing, buffer = (
            database.members.owners(group, stream.partitions), self._standing(), database.buffers.of(stream)
        )  # fmt: skip
        edges = buffer.edges(standing)
        mine = {number for number in standing if owners[number] == self._member}
        if group.on_gap == "snapshot" and any(standing[number] < edges[number] for number in mine):
            mine = set()  # The next read returns a copy, in all partitions.
        # Some of the released events are before the committed LSN.
        begins = {number: 0 if self._again else max(standing[number], edges[number]) for number in mine}
        self._given = {lsn: p for lsn, p in self._given.items() if p in mine and lsn > begins[p]}

    def _standing(self) -> dict[int, int]:
        """Partition -> the group's committed LSN."""
        positions = self._reads.database.offsets.positions(self._group_id)
        if not positions:
            raise UndefinedObject(f'consumer group "{self._group}" does not exist', detail="It was dropped.")
        return {partition: place.lsn for partition, place in positions.items()}

    def cancel(self) -> None:
        """End the running read; from any thread."""
        self._reads.session.cancel()

    def close(self) -> None:
        """End the sessions; the member leaves, so that others need not wait for it."""
        self._reads.close()
        try:
            self._commits.command(
                f"LEAVE CONSUMER GROUP {ident(self._group)} ON {self._commits.stream_sql()} MEMBER $1",
                (self._member,),
            )
        except UndefinedObject:
            pass  # Nothing is left to leave.
        finally:
            self._commits.close()


def bytes_of(event: Event) -> int:
    """The approximate size of an event in bytes."""
    texts = (event.key, event.before, event.after, event.headers)
    return EVENT_BYTES + sum(len(text) for text in texts if text is not None)


def _fitting(rows: Sequence[bytes], bytes_max: int) -> tuple[Sequence[bytes], int]:
    """The first rows, up to the one that fills a bound, and the rest of the bound."""
    for place, row in enumerate(rows):
        bytes_max -= len(row) + EVENT_BYTES
        if bytes_max <= 0:
            return rows[: place + 1], 0
    return rows, bytes_max


def _after(stream: str) -> str:
    return f"SELECT * FROM STREAM {stream} AFTER $1 WAIT '{WAIT}' LIMIT $2"


def position_text(position: Mapping[int, int]) -> str:
    """A position in the form of AFTER and AT."""
    return json.dumps({str(partition): lsn for partition, lsn in position.items()})
