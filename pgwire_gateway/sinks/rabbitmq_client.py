"""A publisher of RabbitMQ streams, on rstream.

A broker keeps, for each stream and reference of a publisher, the last publishing id that it has stored, and
drops a message whose id is not above it, although it confirms it. A reference is made of the sink, the
incarnation and the partition, and the publishing id of an event is its LSN: so it is stored once, however
often it is sent. These rules keep that true:

- One batch of a partition is under way at a time, and the next one follows its last confirm. So a broker
  never meets an id above one that it has lost.
- Any error ends the connection, and the batch is sent again on a new one. The last publishing id of the
  broker ends no wait for a confirm: it may belong to a message that no other replica has.
- Events with an LSN below the last publishing id go through a publisher without reference, whose ids the
  broker does not compare.
- The broker's last publishing id is compared with the last LSN of the log: a higher one is of another copy of
  the database, whose events would hide those of this one.

rstream's own producer opens one connection for each reference, and reports no error of a connection before a
timeout; this module uses its client. Only a server with such a sink imports this module.
Source: docs/sinks.md, "RabbitMQ streams"; the protocol of RabbitMQ streams, "Publish".
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from rstream import exceptions, schema
from rstream.client import Client
from rstream.connection import Connection

from ...engine.catalog.rabbitmq_url import RabbitmqUrl
from ...engine.errors import CannotConnect

# The size of a frame that is asked for; a broker has 1 MiB unless it is configured otherwise.
FRAME_BYTES_MAX = 16 << 20
# Of a frame with one message: key, version, publisher and count; publishing id and size of each message.
FRAME_BYTES, MESSAGE_BYTES = 9, 12
# Seconds between heartbeats; a connection that is dead without a sign ends with the timeout of a confirm.
HEARTBEAT_S = 60
# Seconds for a connection to one broker, and its greeting.
CONNECT_S = 3.0
# The protocol has one byte for the number of a publisher.
PUBLISHERS_MAX = 256
# Events whose publisher has no reference.
WITHOUT_REFERENCE = None

# Errors of the broker by their code, in words.
_REASONS: Mapping[int, str] = {
    2: "the stream does not exist",
    6: "the stream is not available",
    8: "the broker refuses the user or the password",
    11: "the broker refuses the user from this address",
    12: "the broker refuses the virtual host",
    14: "the frame is too large",
    15: "internal error of the broker",
    16: "the broker refuses access to the stream",
    17: "precondition failed",
    18: "the publisher does not exist any more",
}


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """One message.

    Args:
        lsn: the LSN of its event, which is its publishing id.
        data: the message in AMQP 1.0.
    """

    lsn: int
    data: bytes


class NotConfirmed(Exception):
    """The messages may or may not be stored: they are sent again."""


class TooLarge(Exception):
    """A message is larger than the broker accepts."""


class AnotherCopy(Exception):
    """The broker has events of this sink that the database does not have."""


@dataclass(slots=True)
class _Publisher:
    """A publisher of one connection, with the ids of its messages that are not confirmed.

    Args:
        last: the broker's last publishing id when it was declared.
    """

    number: int
    last: int = 0
    waiting: dict[int, asyncio.Future[None]] = field(default_factory=dict)
    left: dict[asyncio.Future[None], int] = field(default_factory=dict)

    def expect(self, ids: Sequence[int], done: asyncio.Future[None]) -> None:
        """Complete a future once all these ids are confirmed."""
        self.left[done] = len(ids)
        self.waiting.update(dict.fromkeys(ids, done))

    def confirmed(self, ids: Sequence[int]) -> None:
        """Note confirmed messages."""
        for publishing_id in ids:
            done = self.waiting.pop(publishing_id, None)
            if done is None:
                continue
            self.left[done] -= 1
            if not self.left[done]:
                del self.left[done]
                if not done.done():
                    done.set_result(None)


class _JudgedConnection(Connection):
    """A connection whose address is judged where its socket is made."""

    def __init__(
        self, host: str, port: int, tls: ssl.SSLContext | None, judge: Callable[[tuple[object, ...]], None]
    ) -> None:
        super().__init__(host, port, tls)
        self._judge = judge

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        error: OSError = OSError(f"{self.host} has no address")
        for family, kind, protocol, _, place in found:
            try:
                self._judge(place)
                wire = socket.socket(family, kind, protocol)
                try:
                    wire.setblocking(False)
                    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    await loop.sock_connect(wire, place)
                    self._reader, self._writer = await asyncio.open_connection(
                        sock=wire,
                        ssl=self._ssl_context,
                        server_hostname=None if self._ssl_context is None else self.host,
                    )
                    return
                except BaseException:
                    wire.close()
                    raise
            except OSError as reason:
                error = reason
        raise error

    def abort(self) -> None:
        """Close it at once."""
        if self._writer is not None:
            self._writer.transport.abort()


class _StreamClient(Client):
    """A connection to one broker that reports its end.

    Attributes:
        lost: completed with the reason once the connection has ended.
    """

    def __init__(self, connection: _JudgedConnection) -> None:
        super().__init__(
            connection.host,
            connection.port,
            frame_max=FRAME_BYTES_MAX,
            heartbeat=HEARTBEAT_S,
            connection_name="ducktail",
            # With a handler, a lost connection is not logged as an unexpected error.
            connection_closed_handler=lambda _: None,
        )
        self._judged = connection
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        await self._judged.open()
        self._conn = self._judged
        self.start_task("listener", self._listener())
        self.add_handler(schema.Heartbeat, self._on_heartbeat)
        self.add_handler(schema.Close, self._on_close)

    async def _listener(self) -> None:
        reason = "the connection was closed"
        try:
            await super()._listener()
        except (ValueError, KeyError) as error:
            reason = f"not a frame of RabbitMQ streams: {error}"
        finally:
            self.lose(reason)

    def _on_close(self, close: schema.Close) -> None:
        self.lose(f"the broker has closed the connection: {close.reason}")

    def lose(self, reason: str) -> None:
        """End the connection: requests under way fail."""
        self._is_not_closed = False
        if not self.lost.done():
            self.lost.set_result(reason)
        for waiting in list(self._waiters.values()):
            if not waiting.done():
                waiting.set_exception(ConnectionError(self.lost.result()))
                waiting.exception()  # Nobody may wait for it any more.
        self._judged.abort()

    async def end(self) -> None:
        """End the connection and its tasks."""
        self.lose("the connection was closed")
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def last_publishing_id(self, stream: str, reference: str) -> int:
        """The last publishing id of a reference that the broker has; 0 for none."""
        asked = schema.QueryPublisherSequence(
            self._corr_id_seq.next(), publisher_ref=reference, stream=stream
        )
        answer = await self.sync_request(asked, schema.QueryPublisherSequenceResponse)
        return answer.sequence


@dataclass(slots=True)
class _Use:
    """The connection that a request has used."""

    client: _StreamClient | None = None

    def lose(self, reason: str) -> None:
        """End the connection."""
        if self.client is not None:
            self.client.lose(reason)


class RabbitmqStream:
    """The publishers of one sink, on a connection to the broker that leads the stream.

    Args:
        url: the brokers, one of which names the leader.
        stream: the name of the stream.
        reference: the beginning of the publishers' references.
        judge: raises OSError for an address to which no sink may connect.
        last_lsn: the last LSN of the log.
        authorities: the certificates of the trusted authorities, as PEM text; None for those of the system.

    Raises:
        CannotConnect: the certificates are invalid.
    """

    def __init__(
        self,
        url: RabbitmqUrl,
        credentials: tuple[str, str],
        stream: str,
        reference: str,
        judge: Callable[[tuple[object, ...]], None],
        last_lsn: Callable[[], int],
        authorities: str | None = None,
    ) -> None:
        self._url = url
        self._credentials = credentials
        self._stream = stream
        self._reference = reference
        self._judge = judge
        self._last_lsn = last_lsn
        try:
            self._tls = ssl.create_default_context(cadata=authorities) if url.tls else None
        except ssl.SSLError as error:
            raise CannotConnect(f"the certificates of ssl_ca are invalid: {error.reason}") from error
        self._client: _StreamClient | None = None
        self._publishers: dict[str | None, _Publisher] = {}
        self._by_number: dict[int, _Publisher] = {}
        self._opening = asyncio.Lock()
        self._frame_bytes = FRAME_BYTES_MAX  # as agreed with the last broker
        self._first = 0  # the broker that is asked first
        self._unreferenced = 0  # the last publishing id without reference

    def check_sizes(self, messages: Iterable[StreamMessage]) -> None:
        """Refuse messages that the broker does not accept, before any is sent.

        Raises:
            TooLarge: a message is larger than a frame may be, as far as the broker has told it.
        """
        most = self._frame_bytes
        for message in messages:
            if FRAME_BYTES + MESSAGE_BYTES + len(message.data) > most:
                raise TooLarge(
                    f"the message has {len(message.data)} bytes, and the broker accepts {most} in a frame"
                )

    async def last_id(self, incarnation: int, partition: int, timeout_s: float) -> int:
        """The last publishing id of a partition that the broker had when its publisher was declared.

        Raises:
            NotConfirmed: there is no connection.
            AnotherCopy: another copy of the database delivers to the stream.
        """
        async with self._request(timeout_s) as use:
            publisher = await self._publisher(self._reference_of(incarnation, partition), use)
        return publisher.last

    async def publish(
        self, incarnation: int, partition: int, messages: Sequence[StreamMessage], timeout_s: float
    ) -> None:
        """Store messages of one partition, in rising order of their LSNs; no other call for it may run.

        Raises:
            NotConfirmed: not all were confirmed in the time.
            TooLarge: a message is larger than the broker accepts, and none was sent.
            AnotherCopy: another copy of the database delivers to the stream.
        """
        ids = [message.lsn for message in messages]
        assert all(low < high for low, high in itertools.pairwise(ids)), "publishing ids rise"
        await self._published(self._reference_of(incarnation, partition), ids, messages, timeout_s)

    def _reference_of(self, incarnation: int, partition: int) -> str:
        return f"{self._reference}-{incarnation}-{partition}"

    async def publish_released(self, messages: Sequence[StreamMessage], timeout_s: float) -> None:
        """Store messages of released events, which the broker does not compare with earlier ones.

        Raises:
            As `publish`.
        """
        first = self._unreferenced + 1
        self._unreferenced += len(messages)
        ids = range(first, first + len(messages))
        await self._published(WITHOUT_REFERENCE, ids, messages, timeout_s)

    async def _published(
        self, reference: str | None, ids: Sequence[int], messages: Sequence[StreamMessage], timeout_s: float
    ) -> None:
        async with self._request(timeout_s) as use:
            publisher = await self._publisher(reference, use)
            client = use.client
            assert client is not None, "a publisher has a connection"
            self._frame_bytes = client.frame_max or FRAME_BYTES_MAX
            self.check_sizes(messages)
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            publisher.expect(ids, done)
            for frame in _frames(publisher.number, ids, messages, self._frame_bytes):
                await client.send_publish_frame(frame)
            ends: list[asyncio.Future[Any]] = [done, client.lost]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not done.done():
                raise ConnectionError(client.lost.result())

    @asynccontextmanager
    async def _request(self, timeout_s: float) -> AsyncIterator[_Use]:
        """A request within its time: after an error or a cancellation the connection is not used again, as
        what was sent may yet be stored.
        """
        use = _Use()
        try:
            async with asyncio.timeout(timeout_s):
                yield use
        except (TooLarge, AnotherCopy):
            raise
        except TimeoutError:
            reason = f"no confirm in {round(timeout_s * 1000)} ms"
            use.lose(reason)
            raise NotConfirmed(reason) from None
        except (OSError, exceptions.ServerError, exceptions.ClientError) as error:
            reason = _reason(error)
            use.lose(reason)
            raise NotConfirmed(reason) from error
        except BaseException:
            use.lose("a request was cancelled")
            raise

    async def _publisher(self, reference: str | None, use: _Use) -> _Publisher:
        """The publisher with a reference, on a connection to the leader."""
        async with self._opening:
            client = self._client
            if client is None or client.lost.done() or len(self._publishers) == PUBLISHERS_MAX:
                await self._close()
                client = self._client = await self._leader()
                client.add_handler(schema.PublishConfirm, self._on_confirm)
                client.add_handler(schema.PublishError, self._on_error)
                client.add_handler(schema.MetadataUpdate, self._on_metadata)
            use.client = client
            if reference not in self._publishers:
                made = _Publisher(len(self._publishers))
                await client.declare_publisher(self._stream, reference, made.number)
                if reference is not None:
                    made.last = await self._checked_last(client, reference)
                self._publishers[reference] = made
                self._by_number[made.number] = made
            return self._publishers[reference]

    async def _checked_last(self, client: _StreamClient, reference: str) -> int:
        last = await client.last_publishing_id(self._stream, reference)
        known = self._last_lsn()
        if last > known:
            raise AnotherCopy(
                f"stream {self._stream} has an event of this sink with LSN {last}, and the last LSN of "
                f"this database is {known}: another copy of the database delivers to it"
            )
        return last

    async def _leader(self) -> _StreamClient:
        """A connection to the broker that leads the stream: one of the URL's brokers names it."""
        failed: Exception = ConnectionError("no broker")
        for _ in self._url.brokers:
            place = self._first % len(self._url.brokers)
            # The next attempt begins with another broker, also if the time of this one ends here.
            self._first = place + 1
            host, port = self._url.brokers[place]
            try:
                client = await self._connected(host, port)
            except (OSError, exceptions.ServerError, AssertionError) as error:
                failed = error
                continue
            try:
                leader, _ = await client.query_leader_and_replicas(self._stream)
                if (leader.host, leader.port) == (host, port):
                    self._first = place
                    return client
            except BaseException as error:
                await client.end()
                if not isinstance(error, OSError | exceptions.ServerError | exceptions.ClientError):
                    raise
                failed = error
                continue
            await client.end()
            try:
                found = await self._connected(leader.host, leader.port)
                self._first = place
                return found
            except (OSError, exceptions.ServerError) as error:
                failed = error
        raise failed

    async def _connected(self, host: str, port: int) -> _StreamClient:
        client = _StreamClient(_JudgedConnection(host, port, self._tls, self._judge))
        username, password = self._credentials
        try:
            async with asyncio.timeout(CONNECT_S):
                await client.start()
                await client.authenticate(self._url.vhost, username, password)
        except BaseException:
            await client.end()
            raise
        return client

    def _on_confirm(self, frame: schema.PublishConfirm) -> None:
        publisher = self._by_number.get(frame.publisher_id)
        if publisher is not None:
            publisher.confirmed(frame.publishing_ids)

    def _on_error(self, frame: schema.PublishError) -> None:
        if self._client is not None:
            code = frame.errors[0].response_code if frame.errors else 0
            self._client.lose(_REASONS.get(code, f"error {code} of the broker"))

    def _on_metadata(self, frame: schema.MetadataUpdate) -> None:
        """The stream has another leader, or is deleted: its publishers are gone."""
        if self._client is not None and frame.metadata_info.stream == self._stream:
            code = frame.metadata_info.code
            self._client.lose(_REASONS.get(code, f"error {code} of the broker"))

    async def _close(self) -> None:
        client, self._client = self._client, None
        self._publishers, self._by_number = {}, {}
        if client is not None:
            await client.end()

    async def close(self) -> None:
        """End the connection."""
        async with self._opening:
            await self._close()


def _frames(
    number: int, ids: Sequence[int], messages: Sequence[StreamMessage], bytes_max: int
) -> list[schema.Publish]:
    """The frames for messages, each of which fits."""
    frames: list[schema.Publish] = []
    size = bytes_max
    for publishing_id, message in zip(ids, messages, strict=True):
        more = MESSAGE_BYTES + len(message.data)
        if size + more > bytes_max:
            frames.append(schema.Publish(number, []))
            size = FRAME_BYTES
        frames[-1].messages.append(schema.Message(publishing_id, None, message.data))
        size += more
    return frames


def _reason(error: Exception) -> str:
    """An error in words."""
    if isinstance(error, exceptions.ServerError):
        return _REASONS.get(error.code, f"error {error.code} of the broker")
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of the broker is refused: {error.verify_message}"
    if isinstance(error, exceptions.LeaderNotAvailable):
        return "the stream has no leader now"
    return f"{type(error).__name__}: {error}".rstrip(": ")
