"""Shared reads at the end of streams: one session reads, each message is encoded once, all clients get it.

A tail belongs to a user, a stream, and a form of its events (partitions, predicate, envelope). It keeps the
newest messages in a ring. A client joins once its position is within the ring: it gets the messages of the
ring behind its position, and then those of each read, without a task of its own waking up. A client that does
not take its output leaves the tail, with its position, before more than one read is added to that.

A tail without clients waits for new ones for a while: browsers connect again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...engine.errors import DucktailError, InternalError
from ...sql.language.clauses import Name
from .event_messages import (
    BEAT,
    HEARTBEAT_S,
    UNSENT_MAX,
    chunk_of,
    ids_of,
    is_full,
    messages_of,
    read_after,
)
from .json_rows import RowObjects
from .positions import Position
from .reads import Read, Target, moved, places_of

if TYPE_CHECKING:
    from .event_stream import StreamReader
    from .http_port import HttpPort
    from .sessions import Answer, Client

# The messages that a tail keeps for clients that join.
RING_MESSAGES_MAX, RING_BYTES_MAX = 2_000, 1 << 20
# The time for which a tail without clients stays.
LINGER_S = 5.0

log = logging.getLogger("ducktail.gateway")


@dataclass(frozen=True, slots=True)
class Kept:
    """A message in the ring, and the LSN of its event."""

    lsn: int
    message: bytes


class Tail:
    """One shared read.

    Args:
        start: the position after which it reads.
    """

    def __init__(self, port: HttpPort, client: Client, target: Target, start: Position) -> None:
        self._port = port
        self._client = client
        self._target = target
        self._start = start.copy()
        self._position = start.copy()
        self._ring: deque[Kept] = deque()
        self._ring_bytes = 0
        self._followers: dict[StreamReader, asyncio.Future[None]] = {}
        self._empty_s = asyncio.get_running_loop().time()
        self._objects: tuple[list[str], RowObjects] | None = None
        self.task = asyncio.get_running_loop().create_task(self._live())

    def holds(self, position: Position) -> bool:
        """True if a reader at this position can join without a gap."""
        return not self.task.done() and position.base >= self._start.base

    async def followed_by(self, reader: StreamReader) -> None:
        """Send a reader the events after its position, until it becomes slow.

        Raises:
            DucktailError: the read has failed.
            ConnectionError: the reader's client has left.
        """
        missed = [kept.message for kept in self._ring if kept.lsn > reader.position.base]
        if missed:
            reader.connection.send(chunk_of(b"".join(missed)))
        reader.position.reach(self._position.base)
        done = self._followers[reader] = asyncio.get_running_loop().create_future()
        try:
            await done
        finally:
            self._leave(reader)

    def _leave(self, reader: StreamReader) -> None:
        self._followers.pop(reader, None)
        if not self._followers:
            self._empty_s = asyncio.get_running_loop().time()

    async def _live(self) -> None:
        """Read until nobody has followed for a while, or an error ends the tail for all."""
        try:
            await self._read_on()
            error: DucktailError | None = None
        except DucktailError as ended_by:
            error = ended_by
        except asyncio.CancelledError:
            raise
        except Exception as unexpected:
            log.exception("a shared read has failed")
            error = InternalError(f"unexpected error: {type(unexpected).__name__}")
        finally:
            self._port.tails.ended(self)
        for reader, done in list(self._followers.items()):
            if not done.done():
                # Without an error it joined as the tail was about to end.
                done.set_result(None) if error is None else done.set_exception(error)
            self._followers.pop(reader, None)

    async def _read_on(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._port.sessions.borrowed(self._client) as session:
            while self._followers or loop.time() - self._empty_s < LINGER_S:
                # Events that come while nobody follows end the wait; otherwise it ends soon.
                wait_s = HEARTBEAT_S if self._followers else LINGER_S
                before = self._position
                reading = asyncio.ensure_future(
                    read_after(session, self._target, before, round(wait_s * 1000))
                )
                await self._port.until_ending(reading)
                answer, end = await reading
                self._give(answer, end)

    def _give(self, answer: Answer, end: Position) -> None:
        """Send the rows of a read to all followers, and keep their messages."""
        target = self._target
        places = places_of(target.read, answer)
        after = self._position.copy()
        ids = ids_of(target, places, after)
        if self._objects is None or self._objects[0] != answer.names:
            self._objects = answer.names, RowObjects(answer.names, answer.types)
        messages = messages_of(answer, ids, self._objects[1])
        after = moved(after, target, answer, Position() if is_full(answer) else end)
        kept = [Kept(lsn, message) for (lsn, _), message in zip(places, messages, strict=True)]
        self._position = after
        self._keep(kept)
        chunk = chunk_of(b"".join(messages)) if messages else b""
        beat = chunk_of(b"id: %d\n\n" % after.base) if target.read.where is not None else chunk_of(BEAT)
        loop_s = asyncio.get_running_loop().time()
        for reader, done in list(self._followers.items()):
            if done.done():
                continue
            connection, position = reader.connection, reader.position
            if messages and position.base < places[0][0]:
                connection.send(chunk)
            elif messages:
                own = [one.message for one in kept if one.lsn > position.base]
                if own:
                    connection.send(chunk_of(b"".join(own)))
            elif loop_s - connection.last_s >= HEARTBEAT_S - 1 and position.base <= after.base:
                connection.send(beat)
            position.reach(after.base)
            if connection.unsent > UNSENT_MAX or connection.gone:
                done.set_result(None)

    def _keep(self, kept: list[Kept]) -> None:
        for one in kept:
            self._ring.append(one)
            self._ring_bytes += len(one.message)
        while len(self._ring) > RING_MESSAGES_MAX or self._ring_bytes > RING_BYTES_MAX:
            oldest = self._ring.popleft()
            self._ring_bytes -= len(oldest.message)
            self._start.reach(oldest.lsn)


# In keys: a stream is known by its number.
NOWHERE = Name(("stream",))
Key = tuple[str | None, int, Read]


class Tails:
    """The shared reads of a port."""

    def __init__(self, port: HttpPort) -> None:
        self._port = port
        self._tails: dict[Key, Tail] = {}

    def tail(self, client: Client, target: Target, position: Position, *, make: bool) -> Tail | None:
        """The tail that a reader at this position can join; None if it must read for itself.

        Args:
            make: the position is at the stream's end, and a tail that begins there is made.
        """
        assert target.stream is not None, "events in LSN order are those of a stream of this node"
        # The name may change while it is read; the number is the stream's.
        key = client.key, target.stream.stream_id, replace(target.read, stream=NOWHERE)
        found = self._tails.get(key)
        if found is not None and found.holds(position):
            return found
        if not make or (found is not None and not found.task.done()):
            return None
        made = self._tails[key] = Tail(self._port, client, target, position)
        return made

    def ended(self, tail: Tail) -> None:
        """Forget a tail."""
        for key, found in list(self._tails.items()):
            if found is tail:
                del self._tails[key]

    async def close(self) -> None:
        """End all tails."""
        tasks = [tail.task for tail in self._tails.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
