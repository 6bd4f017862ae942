"""Kafka sinks of a served database, against librdkafka's mock cluster."""

from __future__ import annotations

import itertools
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from certificates import Files, make
from confluent_kafka import KafkaError
from kafka_cluster import END_TXN, PRODUCE, KafkaCluster, Kept, records
from server_process import ServerProcess
from sink_streams import SinkStream
from tls_proxies import TlsProxies
from webhook_receiver import until

import ducktail

OPTIONS = ("--port", "0", "--allow-network", "127.0.0.0/8")
QUICK = "backoff = '10 ms', backoff_max = '50 ms'"
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("sinks") / "shop.duckdb", OPTIONS) as process:
        yield process


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    made = KafkaCluster()
    yield made
    made.close()


class KafkaSink(SinkStream):
    """A stream with a Kafka sink, which is called k, and its topic."""

    def __init__(self, server: ServerProcess, cluster: KafkaCluster, number: int) -> None:
        super().__init__(server, number)
        self.cluster, self.topic = cluster, f"topic-{number}"

    def make(self, options: str = QUICK, create: bool = True) -> None:
        """The sink, and its topic."""
        if create:
            self.cluster.create(self.topic)
            self.cluster.create(self.positions, 1)
        self.sql(
            f"create sink k on {self.stream} to kafka '{self.cluster.servers}' topic '{self.topic}' "
            f"with ({options})"
        )

    @property
    def positions(self) -> str:
        """The topic of its positions."""
        return f"{self.topic}.positions"

    def positions_found(self) -> dict[int, Any]:
        """The last position of each partition."""
        found = records(self.cluster.servers, self.positions)
        return {int((key or b"").decode().rpartition("/")[2]): value for _, key, _, value, _ in found}

    def records(self) -> list[Kept]:
        """The records of the topic."""
        return records(self.cluster.servers, self.topic)


@pytest.fixture
def sink(server: ServerProcess, cluster: KafkaCluster) -> Iterator[KafkaSink]:
    made = KafkaSink(server, cluster, next(NUMBERS))
    yield made
    made.drop()


def test_events_arrive_in_order_of_their_keys(sink: KafkaSink) -> None:
    sink.make()
    sink.insert(1, 200)
    sink.sql(f"update {sink.table} set v = 'y'")
    sink.sql(f"delete from {sink.table} where id <= 100")
    sink.drained()
    found = sink.records()
    assert len(found) == 500
    by_key: dict[bytes, list[str]] = {}
    places: dict[bytes, set[int]] = {}
    for partition, key, headers, event, _ in found:
        assert key is not None
        assert headers["content-type"] == b"application/json"
        assert headers["ducktail-id"].endswith(f"-{event['lsn']}".encode())
        by_key.setdefault(key, []).append(event["op"])
        places.setdefault(key, set()).add(partition)
    assert len(by_key) == 200
    assert by_key[b'{"id":7}'] == ["insert", "update", "delete"]
    assert by_key[b'{"id":107}'] == ["insert", "update"]
    assert all(len(found) == 1 for found in places.values())
    assert set().union(*places.values()) == {0, 1, 2}
    assert sink.state("delivered_events") == 500
    assert sink.state("target") == f"{sink.cluster.servers}/{sink.topic}"


def test_a_transactional_sink_sends_each_event_once(sink: KafkaSink) -> None:
    sink.make(f"transactional = 'true', positions = '{sink.positions}', batch = 20, {QUICK}")
    sink.insert(1, 200)
    sink.sql(f"update {sink.table} set v = 'y' where id <= 50")
    sink.drained()
    lsns = [event["lsn"] for _, _, _, event, _ in sink.records()]
    assert len(lsns) == len(set(lsns)) == 250
    positions = sink.positions_found()
    ends = sink.sql(
        f"select partition, committed_lsn from ducktail.offsets where stream_name = '{sink.stream}'"
    )
    assert {number: found["lsn"] for number, found in positions.items()} == dict(ends)


def test_a_refused_record_of_a_transaction_is_parked(sink: KafkaSink) -> None:
    sink.make(f"transactional = 'true', positions = '{sink.positions}', {QUICK}")
    sink.insert(1, 1)
    sink.drained()
    sink.cluster.answer(PRODUCE, KafkaError.MSG_SIZE_TOO_LARGE)
    sink.sql(f"alter sink k on {sink.stream} set (batch = 1)")
    sink.insert(2, 2)
    sink.drained()
    [parked] = sink.sql(f"show parked on {sink.stream} consumer group k")
    assert parked[5].startswith("MSG_SIZE_TOO_LARGE")
    sink.insert(3, 9)
    sink.drained()
    sink.sql(f"alter consumer group k on {sink.stream} release partition {parked[0]}")
    until(lambda: sorted(event["after"]["id"] for _, _, _, event, _ in sink.records()) == list(range(1, 10)))


def test_a_fenced_producer_stops_its_sink(sink: KafkaSink) -> None:
    sink.make(f"transactional = 'true', positions = '{sink.positions}', {QUICK}")
    sink.insert(1, 1)
    sink.drained()
    sink.cluster.answer(END_TXN, KafkaError.PRODUCER_FENCED)
    sink.insert(2, 2)
    until(lambda: sink.state("state") == "stopped")
    assert "the cluster refuses the producer" in sink.state("reason")
    sink.sql(f"resume sink k on {sink.stream}")
    sink.drained()


def test_seek_sends_again_what_is_in_kafka(sink: KafkaSink) -> None:
    sink.make(f"transactional = 'true', positions = '{sink.positions}', {QUICK}")
    sink.insert(1, 20)
    sink.drained()
    sink.sql(f"pause sink k on {sink.stream}")
    sink.sql(f"alter consumer group k on {sink.stream} seek to earliest")
    sink.sql(f"resume sink k on {sink.stream}")
    until(lambda: len(sink.records()) == 40)
    sink.drained()


def test_records_without_a_key_keep_the_order_of_the_partition(sink: KafkaSink) -> None:
    sink.make(f"key = 'none', {QUICK}")
    sink.insert(1, 90)
    sink.drained()
    found = sink.records()
    assert [key for _, key, _, _, _ in found] == [None] * 90
    assert all(partition == event["partition"] for partition, _, _, event, _ in found)
    for number in range(3):
        lsns = [event["lsn"] for partition, _, _, event, _ in found if partition == number]
        assert lsns == sorted(lsns)


def test_brokers_that_go_down_delay_and_lose_nothing(sink: KafkaSink) -> None:
    sink.make(f"timeout = '500 ms', {QUICK}")
    sink.insert(1, 10)
    sink.drained()
    for broker in (1, 2, 3):
        sink.cluster.down(broker)
    try:
        sink.insert(11, 200)
        fault = until(lambda: sink.state("fault"))
        assert fault.startswith(("cannot connect", "no delivery report"))
        assert sink.state("lag_events") == 190
    finally:
        for broker in (1, 2, 3):
            sink.cluster.up(broker)
    sink.drained()
    assert sink.state("fault") is None
    assert sink.state("parked_events") == 0
    assert {event["after"]["id"] for _, _, _, event, _ in sink.records()} == set(range(1, 201))


def test_a_refused_record_is_parked(sink: KafkaSink) -> None:
    sink.make(f"batch = 1, max_in_flight = 1, {QUICK}")
    sink.insert(1, 1)
    sink.drained()
    sink.cluster.answer(PRODUCE, KafkaError.MSG_SIZE_TOO_LARGE)
    sink.insert(2, 5)
    sink.drained()
    [parked] = sink.sql(f"show parked on {sink.stream} consumer group k")
    assert parked[5].startswith("MSG_SIZE_TOO_LARGE")
    assert len(sink.records()) == 4


def test_an_unknown_topic_is_refused_after_the_timeout(sink: KafkaSink) -> None:
    sink.cluster.fail_topic(sink.topic, KafkaError.UNKNOWN_TOPIC_OR_PART)
    sink.make(f"timeout = '500 ms', on_failure = 'stop', {QUICK}", create=False)
    sink.insert(1, 1)
    until(lambda: sink.state("state") == "stopped")
    assert "UNKNOWN_TOPIC" in sink.state("reason")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with ducktail.connect() as connection:
        connection.execute("create table t (id int primary key)")
        connection.execute("create stream s on t")
        monkeypatch.setitem(sys.modules, "confluent_kafka", None)
        with pytest.raises(ducktail.NotSupportedError, match="needs the package confluent_kafka") as error:
            connection.execute("create sink k on s to kafka 'kafka.invalid' topic 't'")
        assert "ducktail[kafka]" in str(error.value.hint)


def test_an_address_that_is_not_allowed(sink: KafkaSink) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        sink.sql(f"create sink k on {sink.stream} to kafka 'kafka.invalid:1,[::1]:9092' topic 't'")


def test_a_broker_that_says_nothing_delays_the_sink(sink: KafkaSink) -> None:
    """The time for the reports ends before a record could be handed over."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        sink.sql(
            f"create sink k on {sink.stream} to kafka '{place}' topic '{sink.topic}' "
            f"with ({QUICK}, timeout = '500 ms')"
        )
        sink.insert(1, 20)
        until(lambda: sink.state("fault"))
        assert sink.state("lag_events") == 20 and sink.state("delivered_events") == 0
        assert sink.state("fault").startswith("no delivery report in 500 ms")
        sink.cluster.create(sink.topic)
        sink.sql(f"alter sink k on {sink.stream} to kafka '{sink.cluster.servers}' topic '{sink.topic}'")
        sink.drained()
    assert sorted(event["after"]["id"] for *_, event, _ in sink.records()) == list(range(1, 21))


@pytest.fixture
def encrypted(tmp_path: Path) -> Iterator[tuple[KafkaCluster, str, Files]]:
    """A cluster behind listeners with TLS, their addresses, and their certificate."""
    files, cluster = make(tmp_path), KafkaCluster(2)
    ports = [int(place.rpartition(":")[2]) for place in cluster.servers.split(",")]
    with TlsProxies(ports, files) as proxies:
        for broker, port in enumerate(proxies.ports, 1):
            cluster.advertise(broker, "localhost", port)
        yield cluster, ",".join(f"localhost:{port}" for port in proxies.ports), files
        cluster.close()


def test_brokers_with_tls(
    sink: KafkaSink, encrypted: tuple[KafkaCluster, str, Files], tmp_path: Path
) -> None:
    """The mock cluster has no TLS of its own, but names the addresses of listeners that have."""
    cluster, servers, files = encrypted
    cluster.create(sink.topic)
    own, other = (found.certificate.read_text() for found in (files, make(tmp_path, "other")))
    sink.sql(
        f"create sink k on {sink.stream} to kafka '{servers}' topic '{sink.topic}' "
        f"with ({QUICK}, security_protocol = 'ssl', timeout = '2 s', ssl_ca = '{other}')"
    )
    sink.insert(1, 20)
    until(lambda: sink.state("fault"))
    assert "certificate verify failed" in sink.state("fault")
    assert sink.state("state") == "running" and sink.state("lag_events") == 20
    sink.sql(f"alter sink k on {sink.stream} set (ssl_ca = '{own}')")
    sink.drained()
    assert sink.state("delivered_events") == 20
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="needs an encrypted connection"):
        sink.sql(f"alter sink k on {sink.stream} set (security_protocol = 'plaintext')")
    sink.sql(f"drop sink k on {sink.stream}")
