"""Long polls: readers that wait for events to come.

A poll names a stream, a position in each partition, and the number of events that ends it. Its reader waits
for its future and holds no thread, no cursor and no lock. The publisher reports partitions with new events
once these are readable. Only the polls of those partitions are checked, by counts in memory: a waiting poll
costs no query.

A poll is armed (`arm`) before its reader reads the available events, so that an event is either read or wakes
the poll. An error that ends a poll (its stream or group is dropped, the database closes) is kept in it,
because the poll may have been woken for another reason just before.
Source: docs/design/engine.md, "Long polls".
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import TypeVar

from ..catalog.streams import Group, Stream
from ..clock import Clock
from ..counter import ThreadSafeCounter
from ..errors import AdminShutdown, DucktailError, ProgramLimitExceeded, UndefinedObject

Key = TypeVar("Key", bound=Hashable)

# A reader processes and commits its events and waits again: meanwhile its table counts as awaited.
LATELY_S = 1.0


@dataclass(slots=True, eq=False)
class Poll:
    """A waiting reader.

    Args:
        session_id: the reader's session.
        stream: the stream that it reads.
        member: the name under which it reads as a member of the group.
        events: number of events that ends the wait.
        after: partition -> number of its events, over its whole life, before those that count.
        group_id: the group for which it reads.
        future: done when the reader must look again.
        ended: the error that ends the wait; the future is done then, too.
        left: True once LEAVE has removed its member from the group: it neither waits nor joins again.
    """

    session_id: int
    stream: Stream
    member: str | None = None
    events: int = 1
    after: Mapping[int, int] = field(default_factory=dict)
    group_id: int | None = None
    future: Future[None] = field(default_factory=Future)
    ended: DucktailError | None = None
    left: bool = False

    def is_met(self, counts: Sequence[int]) -> bool:
        """True if enough events exist; `counts` are the events of each partition of the stream."""
        found = 0
        for partition, before in self.after.items():
            found += max(0, counts[partition] - before)
            if found >= self.events:
                return True
        return False


class Polls:
    """The polls of a database; safe to use from several threads.

    Args:
        polls_max: the largest number of polls at once.
        clock: measures how long ago a poll ended.

    Attributes:
        hurry: called with a table's number when a reader begins to wait for its events.
        woken: number of polls that have been woken.
    """

    def __init__(self, polls_max: int, clock: Clock) -> None:
        self._polls_max = polls_max
        self._clock = clock
        self._mutex = threading.Lock()
        self._polls: set[Poll] = set()
        self._of_stream: dict[int, set[Poll]] = {}
        self._of_member: dict[tuple[int, str], set[Poll]] = {}
        self._of_partition: dict[tuple[int, int], set[Poll]] = {}
        self._of_table: Counter[int] = Counter()
        self._left_s: dict[int, float] = {}  # table -> time at which the last of its polls left
        self._closed: DucktailError | None = None
        self.hurry: Callable[[int], None] = lambda table_id: None
        self.woken = ThreadSafeCounter()

    @property
    def count(self) -> int:
        """The number of polls that wait now."""
        return len(self._polls)

    def is_awaited(self, table_id: int) -> bool:
        """True if a poll waits for events of a table. Takes no lock: each commit calls it."""
        return table_id in self._of_table

    def is_awaited_lately(self, table_id: int) -> bool:
        """True if a poll waits for a table's events, or has waited recently and is likely to wait again."""
        left_s = self._left_s.get(table_id)
        if left_s is not None and self._clock.monotonic_s() - left_s < LATELY_S:
            return True
        return table_id in self._of_table

    def sessions(self) -> frozenset[int]:
        """The ids of the sessions that wait."""
        with self._mutex:
            return frozenset(poll.session_id for poll in self._polls)

    # The reader.

    def arm(self, poll: Poll, partitions: Collection[int], group_id: int | None = None) -> None:
        """Let these partitions' events wake a poll from now on; it may have been armed before.

        Args:
            partitions: empty if only changes of its stream, group and member wake it.
            group_id: the group for which it reads.

        Raises:
            ProgramLimitExceeded: too many polls wait already.
            AdminShutdown: the database is being closed.
            UndefinedObject: the stream or group was dropped since it was armed before.
        """
        with self._mutex:
            if self._closed is not None:
                raise self._closed
            if poll.ended is not None:
                raise poll.ended
            if poll not in self._polls and len(self._polls) >= self._polls_max:
                raise ProgramLimitExceeded(
                    f"too many long polls: {self._polls_max} wait already",
                    hint="Ask again later, without WAIT, or raise long_polls_max.",
                )
            self._forget(poll)
            poll.future, poll.after, poll.group_id = Future(), dict.fromkeys(partitions, 0), group_id
            self._polls.add(poll)
            for table_id in poll.stream.tables:
                self._of_table[table_id] += 1
            _add(self._of_stream, poll.stream.stream_id, poll)
            if group_id is not None and poll.member is not None:
                _add(self._of_member, (group_id, poll.member), poll)
            for partition in partitions:
                _add(self._of_partition, (poll.stream.stream_id, partition), poll)
        for table_id in poll.stream.tables:
            self.hurry(table_id)

    def narrow(self, poll: Poll, after: Mapping[int, int]) -> None:
        """Restrict a poll to some of its partitions, and set the counts from which their events count."""
        with self._mutex:
            if poll in self._polls:
                for partition in poll.after.keys() - after.keys():
                    _discard(self._of_partition, (poll.stream.stream_id, partition), poll)
            poll.after = after

    def leave(self, poll: Poll) -> None:
        """Remove a poll whose reader no longer waits."""
        with self._mutex:
            self._forget(poll)

    def _forget(self, poll: Poll) -> None:
        if poll not in self._polls:
            return
        self._polls.discard(poll)
        for table_id in poll.stream.tables:
            self._of_table[table_id] -= 1
            if not self._of_table[table_id]:
                del self._of_table[table_id]
                self._left_s[table_id] = self._clock.monotonic_s()
        _discard(self._of_stream, poll.stream.stream_id, poll)
        if poll.group_id is not None and poll.member is not None:
            _discard(self._of_member, (poll.group_id, poll.member), poll)
        for partition in poll.after:
            _discard(self._of_partition, (poll.stream.stream_id, partition), poll)

    # Events and changes that wake polls.

    def published(self, stream_id: int, counts: Sequence[int], changed: Iterable[int]) -> None:
        """Wake the polls that are ended by newly readable events.

        Args:
            counts: number of events in each partition of the stream over its life.
            changed: the partitions with new events.
        """
        if not self._polls:
            return
        with self._mutex:
            near = {poll for number in changed for poll in self._of_partition.get((stream_id, number), ())}
            met = [poll for poll in near if poll.is_met(counts)]
        self._wake(met)

    def look_again(self, stream_id: int, group_id: int | None = None) -> None:
        """Wake the polls of a stream, or of one group, whose start positions have changed."""
        self._wake(self._found(stream_id, group_id))

    def member_changed(self, group_id: int, member: str) -> None:
        """Wake the polls of a member whose partitions have changed or are about to."""
        if not self._polls:
            return
        with self._mutex:
            found = list(self._of_member.get((group_id, member), ()))
        self._wake(found)

    def member_left(self, group_id: int, member: str) -> None:
        """Mark and wake the polls of a member that leaves.

        Called before it is removed, so that its polls do not take that for a time-out.
        """
        with self._mutex:
            found = list(self._of_member.get((group_id, member), ()))
            for poll in found:
                poll.left = True
        self._wake(found)

    def stream_dropped(self, stream: Stream) -> None:
        """End the polls of a dropped stream; called before its groups are removed, to give this reason."""
        self._end(self._found(stream.stream_id), lambda: _gone(f'stream "{stream.name}"'))

    def group_dropped(self, group: Group) -> None:
        """End the polls of a dropped group; called before its members are removed."""
        polls = self._found(group.stream_id, group.group_id)
        self._end(polls, lambda: _gone(f'consumer group "{group.name}"'))

    def close(self) -> None:
        """End all polls: the database is being closed."""
        with self._mutex:
            self._closed = AdminShutdown("the database is being closed")
            polls = list(self._polls)
        self._end(polls, lambda: AdminShutdown("the database is being closed"))

    def _found(self, stream_id: int, group_id: int | None = None) -> list[Poll]:
        with self._mutex:
            found = list(self._of_stream.get(stream_id, ()))
        return found if group_id is None else [poll for poll in found if poll.group_id == group_id]

    def _wake(self, polls: Sequence[Poll]) -> None:
        # A future that is done already, or that another thread has just settled, is left alone.
        self.woken.add(sum(_settle(poll.future) for poll in polls))

    def _end(self, polls: Sequence[Poll], error: Callable[[], DucktailError]) -> None:
        with self._mutex:
            for poll in polls:
                poll.ended = poll.ended or error()
        for poll in polls:
            _settle(poll.future)


def _add(index: dict[Key, set[Poll]], key: Key, poll: Poll) -> None:
    index.setdefault(key, set()).add(poll)


def _discard(index: dict[Key, set[Poll]], key: Key, poll: Poll) -> None:
    polls = index[key]
    polls.discard(poll)
    if not polls:
        del index[key]


def _settle(future: Future[None]) -> bool:
    """Make a future done; True if it was not done before."""
    try:
        future.set_result(None)
    except InvalidStateError:
        return False
    return True


def _gone(what: str) -> UndefinedObject:
    return UndefinedObject(f"{what} does not exist", detail="It was dropped while the read waited.")
