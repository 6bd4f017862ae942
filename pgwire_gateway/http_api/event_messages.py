"""The connection of a client that receives events, and the messages of events: Server-Sent Events.

Output is written to the connection's transport as chunks of a chunked answer, so that one chunk can be made
once for many clients. A client that takes nothing is not written to beyond `UNSENT_MAX` and one read.
Source: HTML Living Standard, "Server-sent events"; RFC 9112, section 7.1.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence

from aiohttp import web

from ...engine.errors import DucktailError, QueryCanceled
from .failures import described
from .json_rows import RowObjects
from .positions import Position
from .reads import Target, end_of, renamed
from .sessions import Answer, HttpSession

CONTENT_TYPE = "text/event-stream"
# The time after which a browser connects again, in milliseconds.
RETRY_MS = 1000
# A quiet connection gets a comment after this time, so that proxies keep it.
HEARTBEAT_S = 15.0
# Events of one read, and the size at which it stops: what a client's connection may hold unsent.
EVENTS_MAX, READ_BYTES_MAX = 500, 256 << 10
# The size of unsent output at which a client counts as slow.
UNSENT_MAX = 64 << 10
# A slow client must take something within this time.
SLOW_S = 60.0
# The interval at which a slow client's unsent output is looked at.
LOOK_S = 0.1
# The time for the last message of an ended connection.
LAST_S = 10.0
BEAT = b":\n\n"


class Connection:
    """The connection of one client that receives events."""

    def __init__(self, request: web.Request) -> None:
        self.request = request
        self.last_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE, "X-Accel-Buffering": "no"})

    async def begin(self) -> web.StreamResponse:
        """Send the head of the answer."""
        self._response.enable_chunked_encoding()
        await self._response.prepare(self.request)
        await self._response.write(b"retry: %d\n\n" % RETRY_MS)
        self.last_s = self._loop.time()
        return self._response

    @property
    def gone(self) -> bool:
        """True if the client has left."""
        transport = self.request.transport
        return transport is None or transport.is_closing()

    @property
    def unsent(self) -> int:
        """The size of the output that the client has not taken."""
        transport = self.request.transport
        return 0 if transport is None else transport.get_write_buffer_size()

    def send(self, chunk: bytes) -> None:
        """Send a chunk of the answer (`chunk_of`); it is not waited for the client to take it."""
        transport = self.request.transport
        if transport is not None and not transport.is_closing():
            transport.write(chunk)
            self.last_s = self._loop.time()

    async def taken(self) -> None:
        """Wait until the client has taken most of its output.

        Raises:
            QueryCanceled: it takes nothing.
            ConnectionError: it has left.
        """
        least, since_s = self.unsent, self._loop.time()
        while self.unsent > UNSENT_MAX // 2:
            await asyncio.sleep(LOOK_S)
            if self.unsent < least:
                least, since_s = self.unsent, self._loop.time()
            elif self._loop.time() - since_s > SLOW_S:
                raise QueryCanceled(
                    f"the client has taken no event for {SLOW_S:.0f} s",
                    hint="Connect again: events continue after the position.",
                )
        if self.gone:
            raise ConnectionResetError("the client has left")

    async def fail(self, error: DucktailError, position: str) -> None:
        """Send the last message: an error, and the position after which the client continues."""
        told = {"error": described(error), "position": position}
        data = json.dumps(told, ensure_ascii=False)
        self.send(chunk_of(f"event: failure\nid: {position}\ndata: {data}\n\n".encode()))
        if self.unsent <= UNSENT_MAX:
            await self._response.write_eof()
            return
        # The client does not read: what is unsent has some time to leave.
        transport = self.request.transport
        assert transport is not None, "unsent output is that of a transport"
        transport.close()
        self._loop.call_later(LAST_S, transport.abort)


def chunk_of(data: bytes) -> bytes:
    """Bytes as a chunk of a chunked answer."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def messages_of(answer: Answer, ids: Iterable[str | None], objects: RowObjects | None = None) -> list[bytes]:
    """The messages of an answer's rows.

    Args:
        ids: the id of each row's message; None for a row whose event continues with the next one.
    """
    objects = objects or RowObjects(answer.names, answer.types)
    return [
        b"data: %b\n\n" % objects.of(row)
        if id_ is None
        else b"id: %b\ndata: %b\n\n" % (id_.encode(), objects.of(row))
        for row, id_ in zip(answer.rows(), ids, strict=True)
    ]


def ids_of(target: Target, places: Sequence[tuple[int, int]], position: Position) -> list[str | None]:
    """The ids of the messages of some rows, which follow `position`; it moves past them.

    An update in the envelope `changes` is two rows with one LSN: only the second one has an id.
    """
    ids: list[str | None] = []
    for at, (lsn, partition) in enumerate(places):
        if at + 1 < len(places) and places[at + 1] == (lsn, partition):
            ids.append(None)
            continue
        if target.ordered:
            position.reach(lsn)
        else:
            position.reach_in(partition, lsn)
        ids.append(position.text(target.partitions))
    return ids


def is_full(answer: Answer) -> bool:
    """True if more events may follow those of an answer."""
    return answer.truncated or answer.row_count >= EVENTS_MAX


async def read_after(
    session: HttpSession, target: Target, position: Position, wait_ms: int
) -> tuple[Answer, Position]:
    """The events after a position, and an end of the stream that the read has seen if it is not full.

    Raises:
        UndefinedObject: the stream has been dropped.
    """
    while True:
        read = renamed(session, target)
        end = await end_of(session, target)
        text, values = read.statement(EVENTS_MAX, after=position.text(target.partitions), wait_ms=wait_ms)
        answer = await session.statement(text, values, bytes_max=READ_BYTES_MAX, suspends=True)
        # Another stream may have had the name when the statement ran.
        if renamed(session, target) == read:
            return answer, end
