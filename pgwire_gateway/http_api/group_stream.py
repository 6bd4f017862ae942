"""GET /v1/streams/{s}/events?group=g: events as a consumer group reads them.

The group's next events are sent, `limit` at most; the next ones follow once all of these are committed, by
POST .../commit or any other commit of the group. A connection that ends before that changes nothing: the
events come again, to whichever member then has their partitions. Last-Event-ID has no effect, because a
group's position is what it has committed.

While events are awaited or uncommitted, the member sends heartbeats as a member of the wire does: by the WAIT
of its read, or by reads of LIMIT 0, which release nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

from ...engine.catalog.streams import Group
from ...engine.definitions.groups import find_group
from ...engine.errors import DucktailError, ProgramLimitExceeded
from ...engine.stream_waits import HEARTBEATS
from ...sql.language.clauses import name_sql
from ...sql.language.position_text import format_positions
from .event_messages import (
    BEAT,
    EVENTS_MAX,
    HEARTBEAT_S,
    READ_BYTES_MAX,
    Connection,
    chunk_of,
    messages_of,
)
from .failures import failure
from .positions import Position
from .reads import Read, Target, places_of, renamed, target_of
from .requests import number_in
from .sessions import Answer, HttpSession

if TYPE_CHECKING:
    from .http_port import HttpPort
    from .sessions import Client

EVENTS_DEFAULT = 100
# The interval at which the group's commits are looked at; those of this API are known at once.
LOOK_S = 1.0
# The session_timeout of a group on another node: the default.
SESSION_TIMEOUT_MS = 30_000

Place = tuple[int, int]


async def stream_group(
    port: HttpPort, request: web.Request, client: Client, read: Read
) -> web.StreamResponse:
    """Follow a stream as a consumer group."""
    limit = number_in(request, "limit", EVENTS_DEFAULT, 1, EVENTS_MAX)
    connection = Connection(request)
    async with port.sessions.borrowed(client) as session:
        try:
            target = await target_of(session, read)
            reader = GroupReader(port, session, target, connection, limit)
            first = await reader.read(0)
        except ProgramLimitExceeded as error:
            return failure(error, 429)
        response = await connection.begin()
        looking = asyncio.Event()
        port.lookers.add(looking)
        try:
            await reader.follow(first, looking)
        except DucktailError as error:
            await connection.fail(error, format_positions(reader.sent.ahead))
        finally:
            port.lookers.discard(looking)
    return response


class GroupReader:
    """A client that follows a stream as a consumer group.

    Args:
        session: the session that reads; no other request uses it meanwhile.
        limit: the maximum number of events that are sent and not committed.

    Attributes:
        sent: the position after the events that were sent.
    """

    def __init__(
        self, port: HttpPort, session: HttpSession, target: Target, connection: Connection, limit: int
    ) -> None:
        self.sent = Position()
        self._port = port
        self._session = session
        self._target = target
        self._connection = connection
        self._limit = limit

    async def read(self, wait_ms: int, limit: int | None = None) -> Answer:
        """The group's next events."""
        read = renamed(self._session, self._target)
        text, values = read.statement(self._limit if limit is None else limit, wait_ms=wait_ms)
        return await self._session.statement(text, values, bytes_max=READ_BYTES_MAX, suspends=True)

    async def follow(self, answer: Answer, looking: asyncio.Event) -> None:
        """Send the group's events, each batch after the commit of the one before.

        Args:
            answer: the first batch.
            looking: set when a group may have committed.

        Raises:
            DucktailError: a gap, a dropped stream or group, a revoked right, the end of the server.
            ConnectionError: the client has left.
        """
        while True:
            places = places_of(self._target.read, answer)
            if places:
                self._send(answer, places)
                await self._connection.taken()
                await self._committed(set(places), looking)
            else:
                self._connection.send(chunk_of(BEAT))
            await self._connection.taken()
            reading = asyncio.ensure_future(self.read(round(HEARTBEAT_S * 1000)))
            await self._port.until_ending(reading)
            answer = await reading

    def _send(self, answer: Answer, places: list[Place]) -> None:
        """Send a batch; the id of an event is a position that commits it and all that were sent before."""
        ids: list[str | None] = []
        for at, (lsn, partition) in enumerate(places):
            self.sent.reach_in(partition, lsn)
            ends = at + 1 == len(places) or places[at + 1] != (lsn, partition)
            ids.append(format_positions(self.sent.ahead) if ends else None)
        self._connection.send(chunk_of(b"".join(messages_of(answer, ids))))

    async def _committed(self, sent: set[Place], looking: asyncio.Event) -> None:
        """Wait until all these events are committed, or the group has been moved by a SEEK."""
        loop = asyncio.get_running_loop()
        state = await self._state()
        beat_s = self._beat_s()
        left = {place for place in sent if not state.has(place)}
        # Released events are at or before the committed LSN: a commit of theirs ends their release.
        again, seeks, beaten_s = sent - left, state.seeks, loop.time()
        while True:
            left = {place for place in left if not state.has(place)}
            if again and not left:
                again &= await self._released()
            if (not left and not again) or state.seeks != seeks:
                return
            looking.clear()
            waiting = asyncio.ensure_future(looking.wait())
            try:
                await asyncio.wait(
                    (waiting, self._port.ending_future),
                    timeout=min(LOOK_S, beat_s),
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                waiting.cancel()
            if (error := self._port.ended_by) is not None:
                raise error
            if loop.time() - beaten_s >= beat_s:
                await self.read(0, 0)
                beaten_s = loop.time()
            if loop.time() - self._connection.last_s >= HEARTBEAT_S:
                self._connection.send(chunk_of(BEAT))
            state = await self._state()

    def _group(self) -> Group | None:
        """The group; None for one of a stream of other nodes."""
        stream, name = self._target.stream, self._target.read.group
        assert name is not None, "a group reads"
        return (
            None if stream is None else find_group(self._session.session.database.catalog, stream, name, None)
        )

    async def _state(self) -> GroupState:
        """The committed LSNs of the group, and the number of its SEEKs."""
        offsets, group = self._session.session.database.offsets, self._group()
        if group is not None:
            lsns = {
                partition: position.lsn for partition, position in offsets.glimpse(group.group_id).items()
            }
            return GroupState(lsns, offsets.seeks(group.group_id))
        read = self._target.read
        shown = await self._session.statement(
            f"SHOW OFFSETS ON {name_sql(read.stream)} CONSUMER GROUP $1", (read.group,)
        )
        lsns = {int(row["partition"] or 0): int(row["committed_lsn"] or 0) for row in shown.texts()}
        return GroupState(lsns, 0)

    def _beat_s(self) -> float:
        """The interval of the member's heartbeats, in seconds."""
        group = self._group()
        return (SESSION_TIMEOUT_MS if group is None else group.session_timeout_ms) / 1000 / HEARTBEATS

    async def _released(self) -> set[Place]:
        """The events that are released and not committed yet."""
        group, read = self._group(), renamed(self._session, self._target)
        if group is None:
            return set()
        found = await self._session.statement(
            "SELECT lsn, partition FROM ducktail.parked WHERE schema_name = $1 AND stream_name = $2 "
            "AND group_name = $3 AND state = 'released'",
            (*read.stream.parts, group.name),
        )
        return {(int(row["lsn"] or 0), int(row["partition"] or 0)) for row in found.texts()}


class GroupState:
    """The committed LSNs of a group, and the number of its SEEKs."""

    def __init__(self, lsns: dict[int, int], seeks: int) -> None:
        self.lsns = lsns
        self.seeks = seeks

    def has(self, place: Place) -> bool:
        """True if an event is committed."""
        lsn, partition = place
        return lsn <= self.lsns.get(partition, 0)
