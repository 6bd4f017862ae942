"""The publisher: takes committed transactions in commit order and fills the partition buffers.

A database has one publisher thread with one DuckDB cursor. A commit is acknowledged without waiting for it;
it only leaves a note here. All notes since the last round are processed together: one query for each stream
reads their events, each row is encoded once, and the buffers get them together. A read waits until all
commits before it are published (`wait_for`). If no reader waits, small commits are gathered for a moment: a
round costs some milliseconds of DuckDB's planning, whatever its size, and a writer of single rows would share
its cores with a round for each row. A commit to a table whose events a long poll waits for is published at
once; if all of its events are ready (ready.py) the committing thread does that itself, as it is an append and
a wake-up in memory.

A failed publish loses no events: the stream's buffers are rebuilt from the log, and if that fails too its
readers get the error until it succeeds.

With synchronous copies a round waits until they have its commits: an event that a reader has seen is not lost
with this server. Source: docs/design/engine.md; docs/design/replication.md, "Synchronous copies".
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from ..replication.synchronous_copies import SynchronousCopies
from ..waiting import Wait, Waiting
from .ready import Ready

logger = logging.getLogger(__name__)

# Limit of notes waiting to be published; beyond it a commit waits for the publisher (a note takes a few
# bytes, so this bounds only a publisher that has stopped).
NOTES_MAX = 1_000_000
# Most notes of a round: bounds the encoded events that one round holds in memory.
NOTES_A_ROUND = 4096
# Time for which a round waits for more commits if no reader waits for it, and the LSNs that end the wait.
LINGER_S = 0.1
LINGER_LSNS = 1000
# A round that waits for synchronous copies looks this often if the publisher must end.
LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Note:
    """A committed transaction in the form that the publisher needs.

    Args:
        txid, first_lsn, last_lsn, commit_us, annotation: the transaction's values in `commits`.
        tables: table id -> (first LSN, last LSN) of its rows in that table's log.
        inserts: those of the tables in which it has only inserted rows.
        ready: stream id -> its events, if they were made before COMMIT.
    """

    txid: int
    first_lsn: int
    last_lsn: int
    commit_us: int
    tables: Mapping[int, tuple[int, int]]
    annotation: str | None = None
    inserts: frozenset[int] = frozenset()
    ready: Mapping[int, Ready] = field(default_factory=dict)

    def span(self, tables: Iterable[int]) -> tuple[int, int]:
        """The first and last LSN of its rows in the logs of these tables, at least one of which it wrote."""
        spans = [self.tables[table_id] for table_id in tables if table_id in self.tables]
        return min(first for first, _ in spans), max(last for _, last in spans)


class Publisher:
    """Runs `publish(notes)` on its own thread for each round of notes, in commit order.

    The functions that `publish` returns are called once the round is readable.

    Args:
        is_awaited: returns True if a reader waits for the events of a table.
        is_light: returns True if a commit can be published quickly and without a query; its own thread then
            does it.
        copies: returns the synchronous copies; None if no commit waits for copies.
    """

    def __init__(
        self,
        publish: Callable[[list[Note]], Sequence[Callable[[], None]]],
        last_lsn: int,
        is_awaited: Callable[[int], bool],
        is_light: Callable[[Note], bool],
        copies: Callable[[], SynchronousCopies | None],
    ) -> None:
        self._publish = publish
        self._is_awaited = is_awaited
        self._is_light = is_light
        self._copies = copies
        self._busy = False  # a round is running, on any thread
        self._hurried = False  # one of the notes is of an awaited table
        self._condition = threading.Condition()
        self._notes: deque[Note] = deque()
        self._round: Sequence[Note] = ()  # the notes being published
        self._waiters: deque[tuple[int, Future[None]]] = deque()
        self._published_lsn = last_lsn
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="ducktail-publisher", daemon=True)
        self._thread.start()

    def put(self, note: Note) -> None:
        """Hand over a commit; called in commit order, by one thread at a time."""
        # In the main thread a signal handler may raise in the middle of a round.
        light = (
            threading.current_thread() is not threading.main_thread()
            and self._copies() is None
            and self._is_light(note)
        )
        with self._condition:
            if light and self.is_idle:
                self._begin([note])
            else:
                light = False
                self._queue(note)
        if light:
            self._carry_out([note])

    def put_all(self, notes: Sequence[Note]) -> None:
        """Hand over several commits, which are left to the publisher's thread; called as `put`."""
        with self._condition:
            for note in notes:
                self._queue(note)

    @property
    def is_idle(self) -> bool:
        """True if every commit handed over is published."""
        return not (self._busy or self._notes or self._closing)

    def _queue(self, note: Note) -> None:
        """Leave a commit to the publisher's thread; the caller holds the condition."""
        while len(self._notes) >= NOTES_MAX and not self._closing:
            self._condition.wait()
        self._notes.append(note)
        self._hurried = self._hurried or any(map(self._is_awaited, note.tables))
        if len(self._notes) == 1 or self._is_wanted():
            self._condition.notify_all()

    @property
    def published_lsn(self) -> int:
        """The LSN up to which every event is readable."""
        with self._condition:
            return self._published_lsn

    def hurry(self, table_id: int) -> None:
        """Publish the gathered commits of a table at once, because a reader waits for its events."""
        with self._condition:
            if not self._hurried and any(table_id in note.tables for note in self._notes):
                self._hurried = True
                self._condition.notify_all()

    def wait_for(self, lsn: int) -> Future[None] | None:
        """A future that is done once everything up to `lsn` is published; None if it already is."""
        with self._condition:
            if self._published_lsn >= lsn:
                return None
            future: Future[None] = Future()
            self._waiters.append((lsn, future))
            self._condition.notify_all()
            return future

    def wait_published(self, lsn: int) -> Waiting[None]:
        """Wait until every event up to `lsn` is readable.

        Raises:
            CopiesUnavailable: the synchronous copies do not have it within their time.
        """
        future = self.wait_for(lsn)
        if future is None:
            return
        copies = self._copies()
        if (yield Wait(future, None if copies is None else copies.timeout_s)) or copies is None:
            return
        with self._condition:
            self._waiters = deque(item for item in self._waiters if item[1] is not future)
        raise copies.not_readable()

    def readable(self, lsn: int) -> int:
        """The last LSN up to `lsn` that is readable, or will be without waiting for copies."""
        copies = self._copies()
        return lsn if copies is None else min(lsn, max(copies.confirmed_lsn, self.published_lsn))

    def unpublished(self) -> list[Note]:
        """The commits that are not readable yet, in order."""
        with self._condition:
            return [note for note in (*self._round, *self._notes) if note.last_lsn > self._published_lsn]

    def close(self) -> None:
        """Publish the remaining commits and end the thread."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._condition:
                while self._busy or not (self._notes or self._closing):
                    self._condition.wait()
                if not self._notes:
                    return
                self._condition.wait_for(self._is_wanted, LINGER_S)
                size = min(NOTES_A_ROUND, len(self._notes))
                notes = [self._notes.popleft() for _ in range(size)]
                self._hurried = self._hurried and bool(self._notes)
                self._begin(notes)
                self._condition.notify_all()
            self._await_copies(notes[-1].last_lsn)
            self._carry_out(notes)

    def _await_copies(self, lsn: int) -> None:
        """Wait until the synchronous copies have everything up to an LSN."""
        while (copies := self._copies()) is not None and not self._closing:
            if copies.confirmed_lsn >= lsn or copies.confirm_within(LOOK_S):
                return

    def _begin(self, notes: list[Note]) -> None:
        """Begin a round of these notes; the caller holds the condition."""
        self._busy, self._round = True, notes

    def _carry_out(self, notes: list[Note]) -> None:
        """Publish a round that has begun, then run its remaining work."""
        later: Sequence[Callable[[], None]] = ()
        try:
            later = self._publish(notes)
        except Exception:  # A stream's failure is kept in its buffers; the thread continues.
            logger.exception("publishing LSN %d to %d", notes[0].first_lsn, notes[-1].last_lsn)
        self._done(notes[-1].last_lsn)
        for work in later:
            self._afterwards(work)
        with self._condition:
            self._busy = False
            if self._notes or self._closing:
                self._condition.notify_all()

    def _is_wanted(self) -> bool:
        """True if the round must not wait for more commits; the caller holds the condition."""
        if self._waiters or self._closing or self._hurried:
            return True
        return self._notes[-1].last_lsn - self._published_lsn >= LINGER_LSNS

    @staticmethod
    def _afterwards(work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:  # The events are readable from the log in any case.
            logger.exception("filling the buffers with events that are readable already")

    def _done(self, lsn: int) -> None:
        with self._condition:
            self._published_lsn = lsn
            waiters, self._waiters = self._waiters, deque()
            ready = [future for wanted, future in waiters if wanted <= lsn]
            self._waiters.extend(item for item in waiters if item[0] > lsn)
        for future in ready:
            if future.set_running_or_notify_cancel():
                future.set_result(None)
