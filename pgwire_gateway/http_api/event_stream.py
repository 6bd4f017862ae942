"""GET /v1/streams/{s}/events: a stream's events as Server-Sent Events.

A message is

    id: 17                              the position after the event, for `after` and Last-Event-ID
    data: {"lsn": 17, "op": ...}        the event

and a blank line. A message with an id and no data moves the position past events that `where` has rejected; a
comment keeps a quiet connection alive. An error ends the stream with a message `event: failure`.

Clients of one user that read the same events at the end of a stream share one read, and the encoded messages
(`tails.py`). A client that is behind reads for itself until it has reached that place: when it begins, and
after it has been slow. A client that takes nothing is not written to beyond `UNSENT_MAX`, and is ended after
`SLOW_S` with its position; nothing is kept for it meanwhile but that number.
Source: docs/http.md, "Events"; HTML Living Standard, "Server-sent events".
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.http import HttpVersion11

from ...engine.errors import DucktailError, NotSupported, ProgramLimitExceeded
from .event_messages import (
    BEAT,
    HEARTBEAT_S,
    Connection,
    chunk_of,
    ids_of,
    is_full,
    messages_of,
    read_after,
)
from .failures import failure
from .group_stream import stream_group
from .positions import Position
from .reads import PARAMETERS, Target, moved, places_of, read_of, target_of
from .requests import check_known, text_in

if TYPE_CHECKING:
    from .http_port import HttpPort
    from .sessions import Client, HttpSession

# Clients that read for themselves at once: after a restart all of them do.
CATCHING_UP_MAX = 8


async def stream_events(port: HttpPort, request: web.Request) -> web.StreamResponse:
    """GET /v1/streams/{s}/events: events from a position on, or those of a consumer group."""
    check_known(request, (*PARAMETERS, "limit"))
    client = await port.client(request)
    if request.version < HttpVersion11:
        raise NotSupported("event streams want HTTP/1.1")
    read = read_of(request)
    if read.group is not None:
        return await stream_group(port, request, client, read)
    # A browser that connects again names the last message; the address still has the first position.
    text = request.headers.get("Last-Event-ID") or text_in(request, "after") or "0"
    position = Position.parse(text)
    try:
        async with port.catching_up, port.sessions.borrowed(client) as session:
            target = await target_of(session, read)
            position.check(target.partitions)
            # Errors of the first read, such as a gap, are an answer with a status.
            statement, values = read.statement(1, after=position.text(target.partitions))
            await session.statement(statement, values)
    except ProgramLimitExceeded as error:
        return failure(error, 429)
    connection = Connection(request)
    response = await connection.begin()
    reader = StreamReader(port, client, target, connection, position)
    try:
        await reader.follow()
    except DucktailError as error:
        await connection.fail(error, reader.position.text(target.partitions))
    return response


class StreamReader:
    """A client that follows a stream.

    Args:
        position: the position after which it begins; it moves with the events that are sent.
    """

    def __init__(
        self, port: HttpPort, client: Client, target: Target, connection: Connection, position: Position
    ) -> None:
        self.connection = connection
        self.position = position
        self._port = port
        self._client = client
        self._target = target

    async def follow(self) -> None:
        """Send events until an error ends it.

        Raises:
            DucktailError: a gap, a dropped stream, a revoked right, the end of the server, a client that
                takes nothing.
            ConnectionError: the client has left.
        """
        caught_up = False
        while True:
            await self.connection.taken()
            if (error := self._port.ended_by) is not None:
                raise error
            if self._target.ordered and not self.position.ahead:
                tail = self._port.tails.tail(self._client, self._target, self.position, make=caught_up)
                if tail is not None:
                    await tail.followed_by(self)
                    caught_up = False
                    continue
            caught_up = await self._catch_up(wait=caught_up)

    async def _catch_up(self, *, wait: bool) -> bool:
        """Read and send the next events; True if there are no more for now.

        Args:
            wait: wait for events that nobody else waits for.
        """
        if wait:
            async with self._port.sessions.borrowed(self._client) as session:
                return await self._read(session, round(HEARTBEAT_S * 1000))
        async with self._port.catching_up, self._port.sessions.borrowed(self._client) as session:
            return await self._read(session, 0)

    async def _read(self, session: HttpSession, wait_ms: int) -> bool:
        target, position = self._target, self.position
        reading = asyncio.ensure_future(read_after(session, target, position, wait_ms))
        await self._port.until_ending(reading)
        answer, end = await reading
        places = places_of(target.read, answer)
        after = position.copy()
        ids = ids_of(target, places, after)
        messages = await self._port.encoded(lambda: messages_of(answer, ids), len(places))
        full = is_full(answer)
        after = moved(after, target, answer, Position() if full else end)
        if not full and after.text(target.partitions) != (ids[-1] if ids else ""):
            messages.append(b"id: %b\n\n" % after.text(target.partitions).encode())
        self.connection.send(chunk_of(b"".join(messages) or BEAT))
        self.position = after
        return not full
