"""Exactly once to Kafka: a transactional producer that writes the position with the events.

A transaction has the events of all requests that wait, each of another partition, and for each a record in
the topic of positions: the LSN up to which the partition's events are in Kafka. Positions are handed over
once the events have their reports, and both become visible at the commit, or neither. The group's own LSN is
committed after that. A process that ends in between finds out by reading the positions back: before,
`init_transactions` fences an older process of the same transactional.id and ends its transaction, so the
positions that a read-committed consumer sees are final.

A position is valid for a crash only. It holds the committed LSN at the begin of its read (`from`), and moves
the group if the group's committed LSN is still between that and the position (`lsn`): outside of it SEEK has
moved the group, or the commit has arrived. SEEKs since the database was opened are counted, so that one into
this range is noticed too (`opening`, `seeks`). Released events may be below the committed LSN: those that the
transaction has are listed (`released`), and are not sent again while the group still has them as released.

Why not `send_offsets_to_transaction`: an offset is one number for a partition of the topic, with 4 KB text;
the stream may have more partitions, released events are no number, and brokers forget offsets after a
week. Source: docs/sinks.md, "Exactly once".
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from ...engine.catalog.sinks import Sink
from ...engine.catalog.streams import Stream
from ...engine.errors import CannotConnect, DucktailError, InsufficientPrivilege, UndefinedObject
from ...engine.log.events import Event
from ...engine.networks import Network
from .kafka import (
    SILENT,
    Config,
    Connection,
    KafkaTarget,
    Request,
    client_config,
    is_refused,
    is_unknown,
    text_of,
)
from .payloads import Record
from .target import Answer, Moment

# The topic of positions is compacted in small segments, because it is read from its beginning.
POSITIONS_CONFIG = {"cleanup.policy": "compact", "segment.bytes": str(16 << 20), "segment.ms": "600000"}
# The positions of a topic are in one partition.
POSITIONS_PARTITION = 0
# The longest transaction that brokers accept unless they are told otherwise, and the shortest in use here.
TRANSACTION_MS_MAX, TRANSACTION_MS_MIN = 900_000, 60_000
# The time for a transaction that is under way to be ended before the producer is discarded.
ABORT_S = 2.0


@dataclass(frozen=True, slots=True)
class Position:
    """The position of one partition, as it is in the topic of positions.

    Args:
        begin: the group's committed LSN when the events were read.
        lsn: the LSN up to which the events are in Kafka.
        released: LSNs of released events that the transactions since `begin` have.
        opening: identifies the opening of the database.
        seeks: the group's number of SEEKs in this opening.
    """

    begin: int
    lsn: int
    released: tuple[int, ...]
    opening: str
    seeks: int

    def text(self) -> bytes:
        """The value of its record."""
        found = {
            "from": self.begin,
            "lsn": self.lsn,
            "released": self.released,
            "opening": self.opening,
            "seeks": self.seeks,
        }
        return json.dumps(found).encode()

    @classmethod
    def of_text(cls, text: bytes) -> Position:
        """The position of a record's value."""
        found = json.loads(text)
        return cls(
            int(found["from"]),
            int(found["lsn"]),
            tuple(map(int, found["released"])),
            str(found["opening"]),
            int(found["seeks"]),
        )

    def is_sought(self, opening: str, seeks: int) -> bool:
        """True if SEEK has moved the group since."""
        return self.seeks != seeks if self.opening == opening else seeks > 0

    def moves(self, committed_lsn: int) -> bool:
        """True if the group has not committed what is in Kafka."""
        return self.begin <= committed_lsn < self.lsn


@dataclass(slots=True)
class _Waiting:
    """A request that waits for its transaction."""

    sink: Sink
    stream: Stream
    events: Sequence[Event]
    at: Moment
    answer: asyncio.Future[Answer] = field(repr=False)


class TransactionalKafkaTarget(KafkaTarget):
    """The transactional producer of one sink.

    Args:
        incarnation: the database's; a restored copy is another producer.
        opening: identifies the opening of the database.
    """

    keeps_positions = True

    def __init__(
        self,
        sink: Sink,
        allowed: Sequence[Network],
        loop: asyncio.AbstractEventLoop,
        incarnation: int,
        opening: str,
    ) -> None:
        self._id = f"ducktail-{incarnation}-{sink.uid}"
        self._opening = opening
        super().__init__(sink, allowed, loop)
        self._positions = sink.text("positions")
        self._released: dict[int, frozenset[int]] = {}  # partition -> released events that are in Kafka
        self._written: dict[int, Position] = {}
        self._waiting: list[_Waiting] = []
        self._worker: asyncio.Task[None] | None = None
        self._fault: Exception | None = None

    def _producer_config(self, sink: Sink) -> Config:
        config = super()._producer_config(sink)
        del config["message.timeout.ms"]  # Of a transaction it is the transaction's.
        longest_ms = min(TRANSACTION_MS_MAX, max(TRANSACTION_MS_MIN, 2 * sink.integer("timeout")))
        return config | {"transactional.id": self._id, "transaction.timeout.ms": longest_ms}

    def fits(self, sink: Sink) -> bool:
        """True if the sink has the same cluster, topics and settings of the producer."""
        return super().fits(sink) and self._positions == sink.text("positions")

    async def open(self, committed: Mapping[int, int], seeks: int) -> Mapping[int, int]:
        """Fence an older process, and read the positions back."""
        timeout_s = self._sink.integer("timeout") / 1000
        try:
            connection = await self._connected()
            await self._call(lambda: connection.producer.init_transactions(timeout_s))
            found = await self._call(lambda: self._read_positions(timeout_s))
        except KafkaException as error:
            raise self._failure(error.args[0]) from error
        moves = {}
        reset = []
        for number, position in found.items():
            lsn = committed.get(number)
            if lsn is None:
                continue
            if position.is_sought(self._opening, seeks):
                reset.append((number, Position(lsn, lsn, (), self._opening, seeks)))
                continue
            self._released[number] = frozenset(position.released)
            if position.moves(lsn):
                moves[number] = position.lsn
        if reset:
            try:
                await self._call(lambda: self._write(connection, reset, timeout_s))
            except KafkaException as error:
                raise self._failure(error.args[0]) from error
        return moves

    async def deliver(self, sink: Sink, stream: Stream, events: Sequence[Event], at: Moment) -> Answer:
        """Send events in the next transaction, with their position."""
        number = events[0].partition
        there = self._released.get(number, frozenset()) & at.released
        left = [event for event in events if event.lsn not in there]
        if not left:
            return Answer(0, "", accepted=True)
        if self._fault is not None:
            raise self._fault
        waiting = _Waiting(sink, stream, left, at, self._loop.create_future())
        self._waiting.append(waiting)
        if self._worker is None or self._worker.done():
            self._worker = self._loop.create_task(self._work())
        return await waiting.answer

    async def close(self) -> None:
        """End the transaction that is under way, and the connections."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
        await super().close()

    async def _work(self) -> None:
        """Send what waits, one transaction after the other."""
        while self._waiting:
            taken, self._waiting = self._waiting, []
            taken = [one for one in taken if not one.answer.done()]  # A cancelled request is not sent.
            if not taken:
                continue
            try:
                await self._transaction(taken)
            except Exception as error:
                # Only the positions tell how it ended: all requests end, and the runner opens anew.
                self._fault = self._lost(error)
                for one in (*taken, *self._waiting):
                    if not one.answer.done():
                        one.answer.set_exception(self._fault)
                self._waiting = []

    async def _transaction(self, taken: Sequence[_Waiting]) -> None:
        timeout_s = max(one.sink.integer("timeout") for one in taken) / 1000
        connection = await self._connected()
        requests = [Request(one.events, self._loop) for one in taken]
        begun = False
        try:
            async with asyncio.timeout(timeout_s):
                connection.producer.begin_transaction()
                begun = True
                for one, request in zip(taken, requests, strict=True):
                    await self._call(
                        partial(self._hand_over, connection, one.sink, one.stream, one.events, request)
                    )
                for request in requests:
                    await request.done
            answers = [request.answer() for request in requests]
            refusals = [request.refusal() for request in requests]
            if any(refusals):
                await self._call(lambda: connection.producer.abort_transaction(timeout_s))
                self._refuse(taken, refusals)
                return
            lost = next((answer for answer in answers if not answer.accepted), None)
            if lost is not None:
                raise CannotConnect(lost.detail)
            positions = [(one.events[0].partition, self._position(one)) for one in taken]
            await self._uninterrupted(lambda: self._commit(connection, positions, timeout_s))
            self._written.update(positions)
        except asyncio.CancelledError:
            if begun:
                await self._give_up(connection)
            raise
        for one in taken:
            if not one.answer.done():
                one.answer.set_result(Answer(0, "", accepted=True))

    def _refuse(self, taken: Sequence[_Waiting], refusals: Sequence[KafkaError | None]) -> None:
        """Answer the requests with refused records; the others go into the next transaction."""
        again = []
        for one, error in zip(taken, refusals, strict=True):
            if error is None:
                again.append(one)
            elif not one.answer.done():
                one.answer.set_result(Answer(error.code(), text_of(error), refused=True))
        self._waiting = [*again, *self._waiting]

    def _position(self, one: _Waiting) -> Position:
        """The position after a request."""
        number, at = one.events[0].partition, one.at
        before = None if at.begins else self._written.get(number)
        released = {event.lsn for event in one.events if event.lsn in at.released}
        begin = at.committed_lsn
        if before is not None:
            released |= set(before.released)
            begin = before.begin
        lsn = max(begin, *(event.lsn for event in one.events), 0 if before is None else before.lsn)
        return Position(begin, lsn, tuple(sorted(released)), self._opening, at.seeks)

    def _commit(
        self, connection: Connection, positions: Iterable[tuple[int, Position]], timeout_s: float
    ) -> None:
        """Write positions in the open transaction, and commit it."""
        for number, position in positions:
            record = Record(f"{self._id}/{number}".encode(), position.text(), {})
            # A failed record fails the commit.
            connection.produce(self._positions, record, POSITIONS_PARTITION, _no_report)
        ends_s = time.monotonic() + timeout_s
        while True:
            try:
                return connection.producer.commit_transaction(max(0.1, ends_s - time.monotonic()))
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() >= ends_s:
                    raise

    def _write(
        self, connection: Connection, positions: Iterable[tuple[int, Position]], timeout_s: float
    ) -> None:
        """Write positions in a transaction of their own."""
        connection.producer.begin_transaction()
        self._commit(connection, positions, timeout_s)

    async def _uninterrupted(self, work: Callable[[], None]) -> None:
        """Run work whose end must be known, also if the caller is cancelled."""
        step = asyncio.ensure_future(self._call(work))
        try:
            await asyncio.shield(step)
        except asyncio.CancelledError:
            await asyncio.wait([step])
            raise

    async def _give_up(self, connection: Connection) -> None:
        """Abort a transaction; one that cannot be aborted is ended by the next `init_transactions`."""

        def abort() -> None:
            try:
                connection.producer.purge()
                connection.producer.abort_transaction(ABORT_S)
            except KafkaException:
                return

        await self._call(abort)

    def _read_positions(self, timeout_s: float) -> dict[int, Position]:
        """The committed positions of this producer; creates their topic if it is missing."""
        ends_s = time.monotonic() + timeout_s
        config = client_config(self._sink) | {
            "group.id": self._id,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
        consumer = Consumer(config, logger=SILENT)
        try:
            topic = consumer.list_topics(self._positions, timeout_s).topics[self._positions]
            if topic.error is not None:
                if not is_unknown(topic.error):
                    raise KafkaException(topic.error)
                self._create_positions(timeout_s)
            consumer.assign([TopicPartition(self._positions, POSITIONS_PARTITION, 0)])
            return self._positions_in(consumer, ends_s)
        finally:
            consumer.close()

    def _positions_in(self, consumer: Consumer, ends_s: float) -> dict[int, Position]:
        prefix = f"{self._id}/".encode()
        found: dict[int, Position] = {}
        while True:
            left_s = ends_s - time.monotonic()
            if left_s <= 0:
                raise CannotConnect(f"the positions in topic {self._positions} were not read in time")
            for message in consumer.consume(500, min(left_s, 1.0)):
                error, key, value = message.error(), message.key(), message.value()
                if error is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        return found
                    if is_unknown(error):
                        continue  # It has just been created.
                    raise KafkaException(error)
                if key is not None and value is not None and key.startswith(prefix):
                    found[int(key.removeprefix(prefix))] = Position.of_text(value)

    def _create_positions(self, timeout_s: float) -> None:
        made = AdminClient(client_config(self._sink), logger=SILENT).create_topics(
            [NewTopic(self._positions, 1, config=POSITIONS_CONFIG)], operation_timeout=timeout_s
        )
        try:
            made[self._positions].result(timeout_s)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def _failure(self, error: KafkaError) -> DucktailError:
        """The error of a cluster that does not let the sink work; a missing right or topic needs a user."""
        told = text_of(error)
        if is_unknown(error):
            return UndefinedObject(f"the cluster does not know the topic: {told}")
        if is_refused(error) or error.code() in _FENCED:
            return InsufficientPrivilege(f"the cluster refuses the producer: {told}")
        return CannotConnect(f"cannot connect: {told}")

    def _lost(self, error: Exception) -> Exception:
        if isinstance(error, KafkaException):
            return self._failure(error.args[0])
        if not isinstance(error, TimeoutError):
            return error
        connection = self._connection
        fault = f" ({connection.fault})" if connection is not None and connection.fault else ""
        return CannotConnect(f"the transaction was not committed in time{fault}")


# A younger process has the transactional.id.
_FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})


def _no_report(error: KafkaError | None, message: object) -> None:
    """Nothing: the commit of a transaction fails with its records."""
