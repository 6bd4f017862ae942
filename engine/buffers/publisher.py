"""The publisher: takes committed transactions in commit order and fills the partition buffers.

One thread and one DuckDB cursor a database. A commit is acknowledged without waiting for it; it
only leaves a note here. All notes that have come since the last time are taken at once: one query
a stream gives their events, each row is encoded once, and the buffers get them together. A read
waits until what was committed before it began is published (`wait_for`). While nobody waits, small
commits are left to gather for a moment: a round costs some milliseconds of DuckDB's planning,
whatever is in it, and a writer of single rows would share its cores with a round a row. What touches
a table whose events a long poll waits for is published at once; where all of its events are ready (ready.py)
the committing thread does that itself, as it is an append and a wake-up in memory.

A publish that fails loses nothing: the stream's buffers are made again from the log, and where
that fails too its readers get the error until it works. Source: docs/design/engine.md.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from ..waiting import Wait, Waiting
from .ready import Ready

logger = logging.getLogger(__name__)

# Notes waiting to be published; beyond it a commit waits for the publisher (it holds a few bytes
# a transaction, so this bounds only a publisher that has stopped).
NOTES_MAX = 1_000_000
# Notes taken at once: bounds the events that one round holds encoded in memory.
NOTES_A_ROUND = 4096
# How long a round waits for more commits while no reader waits for it, and the LSNs that end the wait.
LINGER_S = 0.1
LINGER_LSNS = 1000


@dataclass(frozen=True, slots=True)
class Note:
    """A committed transaction, as the publisher needs it.

    Args:
        txid, first_lsn, last_lsn, commit_us, annotation: of the transaction.
        tables: table id -> (first LSN, last LSN) of its rows in that table's log.
        inserts: the tables among them of which it has nothing but inserted rows.
        ready: stream id -> its events, where they were made before COMMIT.
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
        """The first and the last LSN of its rows in the logs of these tables, of which it has written one."""
        spans = [self.tables[table_id] for table_id in tables if table_id in self.tables]
        return min(first for first, _ in spans), max(last for _, last in spans)


class Publisher:
    """Runs `publish(notes)` on its own thread for each round of notes, in commit order.

    What `publish` returns is run when the round has become readable.

    Args:
        is_awaited: whether somebody waits for the events of a table.
        is_light: whether a commit can be published without a query, and soon: its own thread then does it.
    """

    def __init__(
        self,
        publish: Callable[[list[Note]], Sequence[Callable[[], None]]],
        last_lsn: int,
        is_awaited: Callable[[int], bool],
        is_light: Callable[[Note], bool],
    ) -> None:
        self._publish = publish
        self._is_awaited = is_awaited
        self._is_light = is_light
        self._busy = False  # a round is under way, on whichever thread
        self._hurried = False  # one of the notes is of a table that is awaited
        self._condition = threading.Condition()
        self._notes: deque[Note] = deque()
        self._round: Sequence[Note] = ()  # what is being published
        self._waiters: deque[tuple[int, Future[None]]] = deque()
        self._published_lsn = last_lsn
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="ducktail-publisher", daemon=True)
        self._thread.start()

    def put(self, note: Note) -> None:
        """Hand over a commit; called in commit order, by one thread at a time."""
        # In the main thread a signal's handler may raise, in the middle of a round.
        light = threading.current_thread() is not threading.main_thread() and self._is_light(note)
        with self._condition:
            if light and self.is_idle:
                self._begin([note])
            else:
                light = False
                self._queue(note)
        if light:
            self._carry_out([note])

    @property
    def is_idle(self) -> bool:
        """True if all that was handed over is published."""
        return not (self._busy or self._notes or self._closing)

    def _queue(self, note: Note) -> None:
        """Leave a commit to the publisher's thread. Under the condition."""
        while len(self._notes) >= NOTES_MAX and not self._closing:
            self._condition.wait()
        self._notes.append(note)
        self._hurried = self._hurried or any(map(self._is_awaited, note.tables))
        if len(self._notes) == 1 or self._is_wanted():
            self._condition.notify_all()

    @property
    def published_lsn(self) -> int:
        """Every event up to here is readable."""
        with self._condition:
            return self._published_lsn

    def hurry(self, table_id: int) -> None:
        """Somebody waits for the events of a table: what there is of it is published now."""
        with self._condition:
            if not self._hurried and any(table_id in note.tables for note in self._notes):
                self._hurried = True
                self._condition.notify_all()

    def wait_for(self, lsn: int) -> Future[None] | None:
        """None when everything up to `lsn` is published, else a future that tells it."""
        with self._condition:
            if self._published_lsn >= lsn:
                return None
            future: Future[None] = Future()
            self._waiters.append((lsn, future))
            self._condition.notify_all()
            return future

    def wait_published(self, lsn: int) -> Waiting[None]:
        """Wait until every event up to `lsn` is readable."""
        future = self.wait_for(lsn)
        if future is not None:
            yield Wait(future)

    def unpublished(self) -> list[Note]:
        """The commits that are not readable yet, in their order."""
        with self._condition:
            return [note for note in (*self._round, *self._notes) if note.last_lsn > self._published_lsn]

    def close(self) -> None:
        """Publish what is there and end the thread."""
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
            self._carry_out(notes)

    def _begin(self, notes: list[Note]) -> None:
        """A round of these begins. Under the condition."""
        self._busy, self._round = True, notes

    def _carry_out(self, notes: list[Note]) -> None:
        """Publish a round that has begun, and do what is left when it is readable."""
        later: Sequence[Callable[[], None]] = ()
        try:
            later = self._publish(notes)
        except Exception:  # A stream's own failure is kept in its buffers; the thread goes on.
            logger.exception("publishing LSN %d to %d", notes[0].first_lsn, notes[-1].last_lsn)
        self._done(notes[-1].last_lsn)
        for work in later:
            self._afterwards(work)
        with self._condition:
            self._busy = False
            if self._notes or self._closing:
                self._condition.notify_all()

    def _is_wanted(self) -> bool:
        """True if the round is not to wait for more commits. Under the condition."""
        if self._waiters or self._closing or self._hurried:
            return True
        return self._notes[-1].last_lsn - self._published_lsn >= LINGER_LSNS

    @staticmethod
    def _afterwards(work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:  # The events are readable from the log, whatever became of this.
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
