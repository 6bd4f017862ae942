"""The producer of a Kafka sink, on confluent-kafka (librdkafka).

It keeps these rules:

- The producer is idempotent with acks=all, so its own repetitions leave neither a gap nor a repeat in a
  partition of Kafka. A request's events are accepted once each of their records has its delivery report.
- A record never gives up by itself (`message.timeout.ms` is 0): one that did would let later ones of the same
  key pass. A request that has no reports in the sink's `timeout` discards the producer with all that it
  holds, and its events are sent again, in order, by a new one.
- Records of one key go to one partition, by the hash that Kafka's Java client uses. Records without a key go
  to the partition that has the number of the stream's, modulo their number.
- What the cluster refuses for good (a record that is too large, a missing right, an unknown topic) is told as
  refused; all other errors as not reached, so that a cluster that is down parks nothing.

librdkafka connects by itself, to brokers that the cluster names: their addresses are judged before each new
producer sends (`_check_addresses`), not at each connection. Source: docs/sinks.md, "Kafka".
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from confluent_kafka import KafkaError, KafkaException, Producer

from ...engine.catalog.brokers import KAFKA_PORT, parsed_brokers
from ...engine.catalog.sinks import TOPIC, Sink
from ...engine.catalog.streams import Stream
from ...engine.errors import CannotConnect
from ...engine.log.events import Event
from ...engine.networks import Network, refusal
from .payloads import Record, records_of
from .target import Answer, Moment

# Records that librdkafka holds, and their kilobytes: those of all requests of a sink, two for an update.
RECORDS_MAX, RECORDS_KB_MAX = 30_000, 128 << 10
# Larger records are refused here; a topic has a smaller limit as a rule (1 MB).
RECORD_BYTES_MAX = 64 << 20
# How long the thread of a producer waits for reports before it looks whether it should end.
POLL_S = 0.2
# The pause before a full queue, or a cluster that does not know the topic yet, is tried again.
AGAIN_S = 0.05
# The time in which a discarded producer ends its connections.
CLOSE_S = 2.0
# The time for one question after the cluster's metadata.
METADATA_S = 5.0
# One thread asks for metadata, one hands records over.
THREADS = 2
# The number that lets librdkafka choose the partition by the key.
PARTITION_BY_KEY = -1

# Errors of which another attempt would end in the same way.
_REFUSED = frozenset({
    KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG,
    KafkaError.INVALID_RECORD, KafkaError.INVALID_MSG_SIZE, KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError.TOPIC_EXCEPTION, KafkaError.POLICY_VIOLATION,
    KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
})  # fmt: skip
_PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
_UNKNOWN = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})

# librdkafka's log is dropped: the errors in it come as answers, and it names users and hosts.
SILENT = logging.Logger("librdkafka", logging.CRITICAL + 1)

if TYPE_CHECKING:
    from confluent_kafka.admin._metadata import TopicMetadata

T = TypeVar("T")


Config = dict[str, str | int | float | bool]


def client_config(sink: Sink) -> Config:
    """The settings of librdkafka with which a client connects to the cluster of a sink."""
    config: Config = {
        "bootstrap.servers": sink.target,
        "client.id": f"ducktail-{sink.uid}",
        "security.protocol": sink.text("security_protocol"),
        "log_level": 2,
    }
    if sink.text("security_protocol").startswith("sasl"):
        config["sasl.mechanism"] = sink.text("sasl_mechanism").upper()
        config["sasl.username"] = sink.text_or_none("sasl_username") or ""
        config["sasl.password"] = sink.secrets.get("sasl_password", "")
    pems = {
        "ssl.ca.pem": sink.text_or_none("ssl_ca"),
        "ssl.certificate.pem": sink.text_or_none("ssl_certificate"),
        "ssl.key.pem": sink.secrets.get("ssl_key"),
    }
    return config | {name: text for name, text in pems.items() if text}


class Request:
    """The records of one request, and their reports; the reports arrive on the producer's thread.

    Attributes:
        done: set on the loop once all records have a report.
    """

    def __init__(self, events: Sequence[Event], loop: asyncio.AbstractEventLoop) -> None:
        self.done: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._mutex = threading.Lock()
        self._left = {event.lsn: 0 for event in events}  # LSN -> its records without a report
        self._sealed = False
        self._errors: dict[int, KafkaError] = {}

    def add(self, lsn: int) -> Callable[[KafkaError | None, object], None]:
        """The function that takes the report of one more record of an event."""
        with self._mutex:
            self._left[lsn] += 1
        return lambda error, _: self._reported(lsn, error)

    def seal(self) -> None:
        """All records are handed over."""
        with self._mutex:
            self._sealed = True
            ended = not any(self._left.values())
        if ended:
            self._wake()

    def _reported(self, lsn: int, error: KafkaError | None) -> None:
        with self._mutex:
            self._left[lsn] -= 1
            if error is not None:
                self._errors.setdefault(lsn, error)
            ended = self._sealed and not any(self._left.values())
        if ended:
            self._wake()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # The loop is closed: nobody waits.
            self._loop.call_soon_threadsafe(lambda: None if self.done.done() else self.done.set_result(None))

    def refusal(self) -> KafkaError | None:
        """An error of which another attempt would end in the same way; None without one."""
        with self._mutex:
            return next((error for error in self._errors.values() if is_refused(error)), None)

    def answer(self, late: str | None = None) -> Answer:
        """The end of the request.

        Args:
            late: the error for records that have no report, or were discarded with their producer.
        """
        with self._mutex:
            assert self._sealed or late is not None, "it has ended"
            open_lsns: set[int] = set()
            if late is not None:
                # Until all records are handed over, an event without open reports has some to come.
                open_lsns = {lsn for lsn, count in self._left.items() if count or not self._sealed}
            kept = frozenset(self._left.keys() - self._errors.keys() - open_lsns)
            errors = list(self._errors.values())
        if not errors and not open_lsns:
            return Answer(0, "", accepted=True)
        again = [error for error in errors if not is_refused(error)]
        if open_lsns or again:
            purged = bool(open_lsns) or any(error.code() in _PURGED for error in again)
            detail = late if late is not None and purged else text_of(again[0])
            assert detail is not None
            return Answer(None, detail, reached=False, kept=kept)
        return Answer(errors[0].code(), text_of(errors[0]), refused=True, kept=kept)


def is_refused(error: KafkaError) -> bool:
    """True if another attempt would end in the same way."""
    return error.code() in _REFUSED and not error.fatal()


def text_of(error: KafkaError) -> str:
    """An error with its name in Kafka's protocol, or in librdkafka."""
    return f"{error.name()}: {error.str()}"


class Connection:
    """A producer with the thread on which its reports arrive.

    Attributes:
        fault: the last error that librdkafka has told beside the reports.
        discarded: the reason for which it was closed with records that had no report.

    Raises:
        CannotConnect: librdkafka does not accept the settings.
    """

    def __init__(self, config: Config, name: str) -> None:
        self.fault: str | None = None
        self.discarded: str | None = None
        try:
            self.producer = Producer({**config, "error_cb": self._noted, "logger": SILENT})
        except KafkaException as error:
            raise CannotConnect(f"the settings of the sink are refused: {error.args[0].str()}") from error
        self._ending = False
        self._mutex = threading.Lock()
        self._thread = threading.Thread(target=self._poll, name=name)
        self._thread.start()

    def _noted(self, error: KafkaError) -> None:
        self.fault = text_of(error)

    def _poll(self) -> None:
        while not self._ending:
            self.producer.poll(POLL_S)

    def produce(self, topic: str, record: Record, partition: int, report: Callable[..., None]) -> None:
        """Hand a record over.

        Raises:
            BufferError: the queue is full.
            KafkaException: the record is refused at once.
        """
        with self._mutex:
            if self._ending:
                raise KafkaException(KafkaError(KafkaError._PURGE_QUEUE))
            self.producer.produce(
                topic, record.value, record.key, partition, report, headers=dict(record.headers)
            )

    def close(self) -> None:
        """Discard what is not reported, and end the thread."""
        with self._mutex:
            if self._ending:
                return
            self._ending = True
            self.producer.purge()
        self.producer.flush(CLOSE_S)
        self._thread.join()
        self.producer.close()


class KafkaTarget:
    """The producer of one sink, in a running event loop.

    Args:
        allowed: networks to which it may connect although they are not public.
    """

    keeps_positions = False

    def __init__(self, sink: Sink, allowed: Sequence[Network], loop: asyncio.AbstractEventLoop) -> None:
        self._sink = sink
        self._config = self._producer_config(sink)
        self._topic = sink.text(TOPIC)
        self._allowed = allowed
        self._loop = loop
        # Of its own, because calls of librdkafka wait for the cluster.
        self._threads = ThreadPoolExecutor(THREADS, f"kafka sink {sink.uid}")
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._partitions = 0
        self._unknown_until_s: float | None = None  # the topic is not known; from then on that is refused

    def _producer_config(self, sink: Sink) -> Config:
        """The settings of the producer of a sink."""
        return client_config(sink) | {
            "enable.idempotence": True,
            "acks": sink.text("acks"),
            "compression.type": sink.text("compression"),
            "partitioner": "murmur2",
            "linger.ms": 1,
            "message.timeout.ms": 0,
            "message.max.bytes": RECORD_BYTES_MAX,
            "queue.buffering.max.messages": RECORDS_MAX,
            "queue.buffering.max.kbytes": RECORDS_KB_MAX,
            "retry.backoff.ms": min(1_000, sink.integer("backoff")),
            "retry.backoff.max.ms": min(60_000, sink.integer("backoff_max")),
        }

    def fits(self, sink: Sink) -> bool:
        """True if the sink has the same cluster, topic and settings of the producer."""
        return self._topic == sink.text(TOPIC) and self._config == self._producer_config(sink)

    async def open(self, committed: Mapping[int, int], seeks: int) -> Mapping[int, int]:
        """Nothing: the producer is made with the first request."""
        return {}

    async def deliver(self, sink: Sink, stream: Stream, events: Sequence[Event], at: Moment) -> Answer:
        """Send events, and wait for their delivery reports."""
        timeout_s = sink.integer("timeout") / 1000
        request = Request(events, self._loop)
        connection: Connection | None = None
        late = f"no delivery report in {sink.integer('timeout')} ms"
        try:
            async with asyncio.timeout(timeout_s):
                async with self._connecting:
                    connection = made = await self._connected()
                await self._call(lambda: self._hand_over(made, sink, stream, events, request))
                await request.done
        except TimeoutError:
            asked = self._connection if connection is None else connection
            if asked is not None and asked.fault is not None:
                late = f"{late} ({asked.fault})"
            await self._discard(connection, late)
            return request.answer(late)
        except KafkaException as error:
            found = error.args[0]
            if is_refused(found):
                return Answer(found.code(), text_of(found), refused=True)
            return Answer(None, text_of(found), reached=False)
        except CannotConnect as error:
            return Answer(None, error.message, reached=False)
        answer = request.answer(connection.discarded)
        if not answer.accepted and not answer.refused:
            await self._discard(connection, answer.detail)
        return answer

    async def close(self) -> None:
        """Discard what has no report yet, and end the connections."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await asyncio.to_thread(connection.close)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _call(self, work: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._threads, work)

    async def _connected(self) -> Connection:
        """The producer, once the addresses of the brokers are judged and the topic is known."""
        if self._connection is None:
            # Resolved before anything is sent, and in the metadata before any record is.
            brokers = parsed_brokers(self._sink.target, KAFKA_PORT)
            assert brokers is not None, "the statement has accepted them"
            await self._call(lambda: self._check_addresses(brokers))
            self._partitions = 0
            self._connection = Connection(self._config, f"kafka sink {self._sink.uid}")
        connection = self._connection
        while not self._partitions:
            topic = await self._call(lambda: self._metadata(connection))
            if topic.error is None:
                self._partitions, self._unknown_until_s = len(topic.partitions), None
                break
            if not is_unknown(topic.error):
                raise KafkaException(topic.error)
            # It may be about to be created, by the cluster itself too.
            now_s = self._loop.time()
            if self._unknown_until_s is None:
                self._unknown_until_s = now_s + self._sink.integer("timeout") / 2000
            if now_s >= self._unknown_until_s:
                raise KafkaException(topic.error)
            await asyncio.sleep(AGAIN_S)
        return connection

    def _metadata(self, connection: Connection) -> TopicMetadata:
        try:
            found = connection.producer.list_topics(self._topic, METADATA_S)
        except KafkaException as error:
            told = connection.fault or text_of(error.args[0])
            raise CannotConnect(f"cannot connect: {told}") from error
        self._check_addresses((broker.host, broker.port) for broker in found.brokers.values())
        topic: TopicMetadata = found.topics[self._topic]
        return topic

    def _check_addresses(self, brokers: Iterable[tuple[str, int]]) -> None:
        """Refuse brokers to which no sink may connect."""
        secure = self._sink.text("security_protocol") in ("ssl", "sasl_ssl")
        for host, port in brokers:
            try:
                found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except OSError as error:
                raise CannotConnect(f"cannot connect: {host}: {error.strerror or error}") from None
            for *_, place in found:
                refused = refusal(str(place[0]), self._allowed, encrypted=secure)
                if refused is not None:
                    raise CannotConnect(f"cannot connect: {refused}")

    def _hand_over(
        self, connection: Connection, sink: Sink, stream: Stream, events: Sequence[Event], request: Request
    ) -> None:
        for event in events:
            for record in records_of(sink, stream, event):
                partition = event.partition % self._partitions if record.key is None else PARTITION_BY_KEY
                report = request.add(event.lsn)
                while True:
                    try:
                        connection.produce(self._topic, record, partition, report)
                        break
                    except BufferError:
                        time.sleep(AGAIN_S)
                    except KafkaException as error:
                        report(error.args[0], None)
                        break
        request.seal()

    async def _discard(self, connection: Connection | None, reason: str) -> None:
        """Close a producer whose records must not be sent any more."""
        if connection is not None and connection is self._connection:
            self._connection, connection.discarded = None, reason
            await asyncio.to_thread(connection.close)


def is_unknown(error: KafkaError) -> bool:
    """True if the cluster does not know a topic."""
    return error.code() in _UNKNOWN
