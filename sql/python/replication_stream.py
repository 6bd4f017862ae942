"""A stream that a program follows in process, beside the DB-API.

    with ducktail.connect("shop.duckdb") as con:
        orders = con.streams.open("orders_stream")
        for batch in orders.follow("mirror"):
            for event in batch:
                apply(event)

Each follow has sessions of its own: the connection is free meanwhile, and what its transaction does is its
own. `stop`, `pause`, `resume` and `checkpoint` may come from any thread.
Source: docs/checkpoints.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Protocol

from ...engine.catalog.streams import Stream
from ...engine.errors import ObjectInUse, WrongState
from .errors import translated
from .feed import Batch
from .follower import BATCH_SIZE, BUFFER_BYTES, BUFFER_SIZE, CHECKPOINT_EVERY, Bounds, Follower

# Behind what a follow begins: an LSN for each partition, or one for all.
After = Mapping[int, int] | int


class Begin(Protocol):
    """The factory of a stream's follower; `StreamManager.begin`."""

    def __call__(
        self,
        followed: ReplicationStream,
        stream: Stream,
        consumer_id: str,
        group: str | None,
        after: After | None,
        bounds: Bounds,
    ) -> tuple[Follower, Callable[[], None]]:
        """A follow begins: its follower, and what is to be called when it is over."""


class ReplicationStream:
    """A stream that a program follows in process; made by `StreamManager.open`.

    One follow at a time; several consumers each have a ReplicationStream of their own.
    """

    def __init__(self, begin: Begin, stream: Stream) -> None:
        self._begin = begin
        self._stream = stream
        self._mutex = threading.Lock()
        self._follower: Follower | None = None
        self._stopped = object()  # another one after each `stop`

    @property
    def name(self) -> str:
        """The stream's name, as it was when it was opened."""
        return self._stream.name

    @property
    def active(self) -> bool:
        """True while the stream is being followed."""
        return self._follower is not None

    def follow(
        self,
        consumer_id: str,
        group: str | None = None,
        *,
        after: After | None = None,
        batch_size: int = BATCH_SIZE,
        buffer_size: int = BUFFER_SIZE,
        buffer_bytes: int = BUFFER_BYTES,
        checkpoint_every: int | None = CHECKPOINT_EVERY,
    ) -> Generator[Batch]:
        """Follow the stream: its events in batches, as they come, until `stop`.

        It begins behind the consumer's checkpoint; without one, at what is retained. A batch is done once
        the next one is asked for. What is done is stored before more than `checkpoint_every` events
        would come again, when nothing has come for a second, and when the follow ends.

        Args:
            consumer_id: under which the checkpoint is kept; with a group, the member's name.
            group: the consumer group as whose member it reads: the checkpoint is its committed position.
            after: begin behind this position instead: an LSN for each partition, or one LSN for all. Where it
                is behind the checkpoint, the checkpoint goes back with the first one that is stored.
            batch_size: most events of a batch; never more than `checkpoint_every`.
            buffer_size: most events that are read before they are asked for.
            buffer_bytes: most bytes of these, about.
            checkpoint_every: most events that come again after a crash; None: `checkpoint` alone stores.

        Raises:
            OperationalError: 72000, the next event has been trimmed; 57P01, the database is being closed;
                40001, a partition was taken from the group's member; 55006, the consumer follows already.
            ProgrammingError: 42704, there is no such group, or the stream has been dropped.
            DataError: 22023, a bad argument, or a position that is no longer one of the stream's.
        """
        with translated():
            bounds = Bounds(batch_size, buffer_size, buffer_bytes, checkpoint_every)
            begin = partial(self._begin, self, self._stream, consumer_id, group, after, bounds)
        return self._batches(begin, self._stopped)

    def _batches(
        self, begin: Callable[[], tuple[Follower, Callable[[], None]]], stopped: object
    ) -> Generator[Batch]:
        if self._stopped is not stopped:
            return
        with translated():
            with self._mutex:
                if self._follower is not None:
                    raise ObjectInUse(
                        f'stream "{self.name}" is being followed through this object already',
                        hint="Open it once more for another consumer.",
                    )
                follower, ended = begin()
                self._follower = follower
            try:
                if self._stopped is not stopped:
                    follower.stop(None)
                yield from follower.batches()
            finally:
                self._follower = None
                ended()

    def checkpoint(self, batch: Batch | None = None) -> None:
        """Store what is done now; with a batch of this follow, that one and all before it are done.

        Raises:
            OperationalError: 55000, nothing is being followed; 40001, as `follow`.
        """
        with translated():
            self._followed().checkpoint(batch)

    def pause(self) -> None:
        """Give no more batches until `resume`: the program that asks for one waits."""
        with translated():
            self._followed().pause()

    def resume(self) -> None:
        """Go on after `pause`."""
        with translated():
            self._followed().resume()

    def stop(self) -> None:
        """End the follow: a program that waits for a batch gets the end of its loop, at once.

        So does one that has called `follow` and has not asked for its first batch yet.
        """
        self._stopped = object()
        follower = self._follower
        if follower is not None:
            follower.stop(None)

    def _followed(self) -> Follower:
        follower = self._follower
        if follower is None:
            raise WrongState(f'stream "{self.name}" is not being followed')
        return follower
