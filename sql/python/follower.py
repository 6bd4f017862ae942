"""A consumer that follows a stream: its buffer, its completed work, and the stored part of that.

It keeps these rules:

- A batch is done once the program requests the next one, or calls `checkpoint(batch)`. Only completed work is
  ever stored, so that a program that is killed receives the rest again.
- Completed work is stored before a batch would make more than `checkpoint_every` events delivered and not
  stored. Batches have at most `checkpoint_every` events, so no more than that many are delivered again.
- Completed work is also stored when the program has waited for `REST_S`, and when the follow ends.
- Events that are read and not delivered yet stay within the bounds of the buffer: the reader waits, and the
  events stay in the database. One event may exceed the bound of bytes; for a group with parked events, one
  read may.
- Every end of a follow other than `stop` and the program itself is an error, raised after the events that
  precede it.

The reader is a thread if the feed may run ahead of completed work; otherwise the program's thread reads.
Waiting is a wait on a future or on the condition here, without polling. `Following` registers which
consumers follow which streams in one open database.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

import duckdb

from ...engine.duck.duckdb_errors import translated
from ...engine.errors import (
    AdminShutdown,
    DucktailError,
    InvalidParameterValue,
    ObjectInUse,
    UndefinedObject,
    WrongState,
)
from ...engine.log.events import Event
from ...engine.waiting import Wait, Waiting, block_on
from .feed import Batch, Feed, bytes_of

T = TypeVar("T")

BATCH_SIZE, BUFFER_SIZE, CHECKPOINT_EVERY = 100, 1000, 100
# Python values of as many events as a large part of a default stream's own buffer holds.
BUFFER_BYTES = 16 << 20
# A larger number would be no bound: a million events take about a gigabyte.
EVENTS_MAX = 1_000_000
BYTES_MAX = 1 << 40
# How long completed work may remain unstored while no event arrives: others look at it.
REST_S = 1.0
# The count of a first read, before the size of events is known.
FIRST_READ = 100


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of a follow.

    Args:
        batch_size: the maximum number of events in a batch.
        buffer_size: the maximum number of events read and not delivered yet.
        buffer_bytes: the approximate maximum of their bytes.
        checkpoint_every: the maximum number of events delivered and not stored; None: only `checkpoint`
            stores.

    Raises:
        InvalidParameterValue: a value is outside its bounds.
    """

    batch_size: int = BATCH_SIZE
    buffer_size: int = BUFFER_SIZE
    buffer_bytes: int = BUFFER_BYTES
    checkpoint_every: int | None = CHECKPOINT_EVERY

    def __post_init__(self) -> None:
        _within("batch_size", self.batch_size, EVENTS_MAX)
        _within("buffer_size", self.buffer_size, EVENTS_MAX)
        _within("buffer_bytes", self.buffer_bytes, BYTES_MAX)
        if self.checkpoint_every is not None:
            _within("checkpoint_every", self.checkpoint_every, EVENTS_MAX)

    @property
    def batch_events(self) -> int:
        """The maximum number of events in a batch, so that a batch can be stored as a whole."""
        return min(self.batch_size, self.checkpoint_every or self.batch_size)


def _within(name: str, value: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise InvalidParameterValue(f"{name} must be a whole number from 1 to {most}, not {value!r}")


@dataclass(frozen=True, slots=True)
class DoneEvents:
    """The progress of a consumer: the end of a batch.

    Args:
        number: the batch's number, 0 before the first.
        watermark_us: commit time of its last event, in microseconds since 1970.
    """

    number: int
    position: Mapping[int, int]
    event_count: int
    watermark_us: int


class Follower:
    """A consumer that follows a stream; `batches` is for the program's thread, all else for any thread."""

    def __init__(self, stream: str, feed: Feed, bounds: Bounds, event_count: int) -> None:
        self._stream = stream
        self._feed = feed
        self._bounds = bounds
        self._process = os.getpid()
        self._condition = threading.Condition()  # guards all below
        self._events: deque[Event] = deque()
        self._bytes = 0
        self._paused = False
        self._ending = False
        self._error: DucktailError | None = None  # the error to raise after the events
        self._waiting: Future[None] | None = None  # the reader's present wait
        self._thread: threading.Thread | None = None
        self._storing = threading.RLock()  # guards the attributes below, and the feed's commits; taken first
        self._done = self._stored = self._given = DoneEvents(0, dict(feed.position), event_count, 0)
        self._freed = False
        self._read_max = FIRST_READ

    # The program.

    def batches(self) -> Generator[Batch]:
        """The batches, until `stop`.

        Raises:
            DucktailError: the error that ended the follow.
        """
        try:
            with self._condition:
                if self._feed.ahead and not self._ending:
                    thread = threading.Thread(target=self._run, name="ducktail-follower", daemon=True)
                    thread.start()
                    self._thread = thread
            while (events := self._next()) is not None:
                yield self._batch(events)
                self._is_done(self._given)
        finally:
            self.end(None)

    def _next(self) -> tuple[Event, ...] | None:
        """The events of the next batch; None at the end."""
        if self._process != os.getpid():
            raise WrongState("a follow is of the process that began it, and not of one that it has forked")
        while True:
            with self._condition:
                self._condition.wait_for(self._may_give, self._rest_s())
                if self._feed.ahead and not self._paused:
                    self._condition.wait_for(self._is_ready, self._rest_s())
                ready = not self._paused
                if self._ending and self._error is None:
                    return None
                if ready and self._events:
                    break
                if self._error is not None:
                    raise self._error
            if self._bounds.checkpoint_every is not None:
                self.store()
            if ready and not self._feed.ahead:
                self._read_here()
        with self._condition:
            count = min(len(self._events), self._bounds.batch_events)
            self._bytes -= self._bytes * count // len(self._events)
            taken = tuple(self._events.popleft() for _ in range(count))
            self._condition.notify_all()
        every = self._bounds.checkpoint_every
        if every is not None and self._given.event_count - self._stored.event_count + count > every:
            self.store()
        return taken

    def _rest_s(self) -> float | None:
        """The time to wait before completed work is stored."""
        unstored = self._done.number > self._stored.number
        return REST_S if unstored and self._bounds.checkpoint_every is not None else None

    def _may_give(self) -> bool:
        return not self._paused or (self._ending and not self._events)

    def _is_ready(self) -> bool:
        return bool(self._events) or self._paused or self._ending

    def _batch(self, events: tuple[Event, ...]) -> Batch:
        given = self._given
        position = self._feed.advance(given.position, events)
        count = given.event_count + len(events)
        watermark_us = round(events[-1].commit_time.timestamp() * 1_000_000)
        self._given = DoneEvents(given.number + 1, position, count, watermark_us)
        return Batch(self._stream, events, position, given.number + 1, count)

    def _is_done(self, done: DoneEvents) -> None:
        with self._storing:
            if done.number > self._done.number:
                self._done = done

    def checkpoint(self, batch: Batch | None) -> None:
        """Store completed work; with a batch of this follow, it and all batches before it count as done.

        Raises:
            DucktailError: the checkpoint cannot be stored.
        """
        with self._storing:
            if batch is not None:
                if batch.stream != self._stream or batch.number > self._given.number:
                    raise InvalidParameterValue("the batch is not one of this follow")
                watermark_us = round(batch.events[-1].commit_time.timestamp() * 1_000_000)
                self._is_done(DoneEvents(batch.number, batch.position, batch.event_count, watermark_us))
            self.store()

    def store(self) -> None:
        """Store completed work that is not stored yet."""
        with self._storing:
            done = self._done
            if done.number > self._stored.number and not self._freed:
                try:
                    if self._feed.commit(done.position, done.event_count, done.watermark_us):
                        self._stored = done
                except duckdb.Error as error:
                    raise translated(error) from error

    # Other threads.

    def pause(self) -> None:
        """Deliver no more batches until `resume`; the reader fills the buffer and then stops."""
        with self._condition:
            self._paused = True
            self._condition.notify_all()

    def resume(self) -> None:
        """Continue after `pause`."""
        with self._condition:
            self._paused = False
            self._condition.notify_all()

    def stop(self, error: DucktailError | None) -> None:
        """Deliver no more batches: a program that waits for one gets the end, or the error, at once.

        An error that the reader has met already remains, but is not raised after a `stop` without an error.
        """
        with self._condition:
            if error is None or not self._ending:
                self._ending, self._error = True, error
                self._events.clear()
            waiting = self._waiting
            self._condition.notify_all()
        if waiting is not None:
            _finish(waiting)

    def end(self, error: DucktailError | None) -> None:
        """Stop, store completed work, and free the feed; a second call does nothing.

        A call in a forked process does nothing either: the database is not its own.
        """
        if self._process != os.getpid():
            return
        self.stop(error)
        self._feed.cancel()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._storing:
            if self._freed:
                return
            try:
                if self._bounds.checkpoint_every is not None:
                    self.store()
            except UndefinedObject:
                pass  # The stream or group was dropped, and its checkpoints with it.
            finally:
                self._freed = True
                self._feed.close()

    # The reader.

    def _run(self) -> None:
        """The reader's thread."""
        while True:
            with self._condition:
                self._condition.wait_for(self._has_room)
                if self._ending:
                    return
                read = self._feed.read(*self._room())
            try:
                found = self._driven(read)
            except (DucktailError, duckdb.Error, OSError) as error:
                told = error if isinstance(error, DucktailError) else translated(error)
                self._fail(told)
                return
            if found is None:
                return
            self._put(found)

    def _read_here(self) -> None:
        """Read on the program's own thread, once delivered events are done."""
        found = self._driven(self._feed.read(*self._room()))
        if found is not None:
            self._put(found)

    def _has_room(self) -> bool:
        """True if a read is worthwhile: half of the buffer is free."""
        bounds = self._bounds
        free = 2 * len(self._events) <= bounds.buffer_size and 2 * self._bytes <= bounds.buffer_bytes
        return free or self._ending

    def _room(self) -> tuple[int, int]:
        """The free space: a number of events, and of bytes."""
        bounds = self._bounds
        count = max(1, min(bounds.buffer_size - len(self._events), self._read_max))
        return count, max(1, bounds.buffer_bytes - self._bytes)

    def _put(self, found: list[Event]) -> None:
        size = sum(map(bytes_of, found))
        with self._condition:
            self._events.extend(found)
            self._bytes += size
            # The next read's count is the number of events of this size that fit.
            self._read_max = max(1, self._bounds.buffer_bytes * len(found) // (2 * size))
            self._condition.notify_all()

    def _fail(self, error: DucktailError) -> None:
        with self._condition:
            if not self._ending:
                self._ending, self._error = True, error
            self._condition.notify_all()

    def _driven(self, work: Waiting[T]) -> T | None:
        """Drive a read to its end, or to `stop`; None then."""
        try:
            wait = next(work)
            while True:
                if not self._wait(wait):
                    work.close()
                    return None
                wait = work.send(wait.future.done())
        except StopIteration as stop:
            result: T = stop.value
            return result
        except DucktailError:
            if self._ending:
                return None  # It was cancelled because the follow is to end.
            raise
        except BaseException:
            work.close()
            raise

    def _wait(self, wait: Wait) -> bool:
        """Wait until a wait or the follow is over; False in the second case."""
        own: Future[None] = Future()
        with self._condition:
            if self._ending:
                return False
            self._waiting = own
        wait.future.add_done_callback(lambda _: _finish(own))
        block_on(Wait(own, wait.timeout_s))
        with self._condition:
            self._waiting = None
            return not self._ending


def end_all(followers: Iterable[Follower], error: DucktailError | None) -> None:
    """End several followers, each one even if the end of another raises.

    Raises:
        DucktailError: the completed work of one could not be stored.
    """
    with ExitStack() as each:
        for follower in followers:
            each.callback(follower.end, error)


def _finish(future: Future[None]) -> None:
    with suppress(InvalidStateError):
        future.set_result(None)


# A consumer: stream number, group number (0 without one), and name.
Key = tuple[int, int, str]


class Following:
    """The running follows of a database; one for each consumer, because two would overwrite each other's
    progress."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._followers: dict[Key, Follower | None] = {}
        self._closed = False

    def enter(self, key: Key, stream: str) -> None:
        """Begin a consumer's follow, or a change of its checkpoint.

        Raises:
            ObjectInUse: the consumer follows already.
            AdminShutdown: the database is being closed.
        """
        with self._mutex:
            if self._closed:
                raise AdminShutdown("the database is being closed")
            if key in self._followers:
                raise ObjectInUse(
                    f'consumer "{key[2]}" follows stream "{stream}" already',
                    hint="Stop it first, or give each its own consumer_id.",
                )
            self._followers[key] = None

    def began(self, key: Key, follower: Follower) -> None:
        """Register a consumer's running follow."""
        with self._mutex:
            self._followers[key] = follower

    def leave(self, key: Key) -> None:
        """Remove a consumer's follow."""
        with self._mutex:
            self._followers.pop(key, None)

    @contextmanager
    def alone(self, key: Key, stream: str) -> Iterator[None]:
        """Context in which the consumer does not follow; it raises as `enter` does."""
        self.enter(key, stream)
        try:
            yield
        finally:
            self.leave(key)

    def close(self) -> None:
        """End each follow with an error because the database is being closed; completed work is stored."""
        with self._mutex:
            self._closed = True
            followers = [follower for follower in self._followers.values() if follower is not None]
        end_all(followers, AdminShutdown("the database is being closed"))
