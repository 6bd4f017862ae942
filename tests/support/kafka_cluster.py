"""librdkafka's own mock cluster: brokers on loopback, in threads of the test's process.

It is a Kafka that keeps records in memory and speaks the protocol; brokers go down and come up, and answer
with errors, as a test asks. It does not isolate transactions: a record is visible as soon as it is written,
also in a transaction that is aborted, transactional offsets are not stored, and an older producer of the same
transactional.id is not fenced.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

# Numbers of requests in Kafka's protocol.
PRODUCE, INIT_PRODUCER_ID, END_TXN = 0, 22, 26
_PRODUCER = 0


def _library() -> ctypes.CDLL:
    [path] = (Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs").glob("librdkafka*")
    found = ctypes.CDLL(str(path))
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
        getattr(found, name).restype = ctypes.c_void_p
    found.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    return found


class KafkaCluster:
    """A mock cluster.

    Args:
        brokers: the number of its brokers, which are called 1, 2, ...
    """

    def __init__(self, brokers: int = 3) -> None:
        self._library = _library()
        problem = ctypes.create_string_buffer(512)
        conf = self._library.rd_kafka_conf_new()
        self._client = ctypes.c_void_p(
            self._library.rd_kafka_new(_PRODUCER, ctypes.c_void_p(conf), problem, len(problem))
        )
        assert self._client.value, problem.value
        self._cluster = ctypes.c_void_p(self._library.rd_kafka_mock_cluster_new(self._client, brokers))
        self.servers = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def create(self, topic: str, partitions: int = 3) -> None:
        """Create a topic with three replicas."""
        self._ask("topic_create", topic.encode(), partitions, 3)

    def down(self, broker: int) -> None:
        """Close a broker's connections, and accept none."""
        self._ask("broker_set_down", broker)

    def up(self, broker: int) -> None:
        """Accept connections again."""
        self._ask("broker_set_up", broker)

    def answer(self, request: int, *errors: int) -> None:
        """Answer the next requests of a kind with these errors, whichever broker gets them."""
        codes = (ctypes.c_int * len(errors))(*errors)
        self._library.rd_kafka_mock_push_request_errors_array(
            self._cluster, ctypes.c_int16(request), ctypes.c_size_t(len(errors)), codes
        )

    def fail_topic(self, topic: str, error: int) -> None:
        """Answer questions about a topic with an error; 0 ends that."""
        self._library.rd_kafka_mock_topic_set_error(self._cluster, topic.encode(), error)

    def advertise(self, broker: int, host: str, port: int) -> None:
        """Name another address of a broker in the cluster's metadata."""
        self._library.rd_kafka_mock_broker_set_host_port(self._cluster, broker, host.encode(), port)

    def _ask(self, name: str, *arguments: Any) -> None:
        error = getattr(self._library, f"rd_kafka_mock_{name}")(self._cluster, *arguments)
        assert not error, KafkaError(error).str()

    def close(self) -> None:
        """End the cluster."""
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._client)


class Kept(NamedTuple):
    """A record with its place; its value is the JSON value."""

    partition: int
    key: bytes | None
    headers: dict[str, bytes]
    value: Any
    offset: int


def records(servers: str, topic: str) -> list[Kept]:
    """All records of a topic that a read-committed consumer sees, by partition in their order."""
    return list(_records(servers, topic))


def _records(servers: str, topic: str) -> Iterator[Kept]:
    consumer = Consumer({
        "bootstrap.servers": servers,
        "group.id": "reader",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "log_level": 2,
    })  # fmt: skip
    try:
        partitions = consumer.list_topics(topic, 10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        left = set(partitions)
        while left:
            message = consumer.poll(30)
            assert message is not None, "the topic is not read to its end"
            error = message.error()
            if error is None:
                yield _kept(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition())
            else:
                raise AssertionError(error.str())
    finally:
        consumer.close()


def _kept(message: Message) -> Kept:
    partition, value, offset = message.partition(), message.value(), message.offset()
    assert partition is not None and value is not None and offset is not None
    headers = {n: text for n, text in dict(message.headers() or []).items() if isinstance(text, bytes)}
    return Kept(partition, message.key(), headers, json.loads(value), offset)
