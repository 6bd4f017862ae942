"""RabbitMQ sinks of a served database, against real nodes: one in the gate, three in a soak."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from amounts import amount, seed_of
from certificates import Files, make
from rabbitmq_process import FRAME_BYTES_MAX, PASSWORD, QUOTED, RabbitmqCluster
from rstream import AMQPMessage, schema
from server_process import ServerProcess
from sink_streams import SinkStream
from webhook_receiver import until

from ducktail.engine.catalog.rabbitmq_url import RabbitmqUrl, parsed

OPTIONS = ("--port", "0", "--allow-network", "127.0.0.0/8")
QUICK = "backoff = '10 ms', backoff_max = '100 ms', timeout = '5 s'"
NODES = amount("DUCKTAIL_RABBITMQ_NODES", 1, 3)
EVENTS = amount("DUCKTAIL_RABBITMQ_EVENTS", 2_000, 100_000)
KILLS = amount("DUCKTAIL_RABBITMQ_KILLS", 2, 20)
# The kill with which a node loses its disk; those with odd numbers are of nodes.
DISK_LOST_AT = KILLS // 2 | 1
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("sinks") / "shop.duckdb", OPTIONS) as process:
        yield process


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return make(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, certificate: Files) -> Iterator[RabbitmqCluster]:
    with RabbitmqCluster(tmp_path_factory.mktemp("rabbitmq"), NODES, certificate) as made:
        yield made


class RabbitmqSink(SinkStream):
    """A stream with a sink, which is called r, and its stream of RabbitMQ."""

    def __init__(self, server: ServerProcess, cluster: RabbitmqCluster, number: int) -> None:
        super().__init__(server, number, partitions=4)
        self.cluster, self.queue = cluster, f"queue-{number}"

    def make(self, options: str = QUICK, *, url: str = "", create: bool = True) -> None:
        """The sink, and its stream of RabbitMQ."""
        if create:
            self.cluster.create_stream(self.queue)
        self.sql(
            f"create sink r on {self.stream} to rabbitmq '{url or self.cluster.url}' "
            f"stream '{self.queue}' with ({options})"
        )

    def messages(self) -> list[AMQPMessage]:
        """The messages of the stream."""
        return self.cluster.messages(self.queue)

    def ids(self) -> list[int]:
        """The ids of the rows in the messages, in the order of the stream."""
        return [json.loads(message.body)["after"]["id"] for message in self.messages()]


@pytest.fixture
def sink(server: ServerProcess, cluster: RabbitmqCluster) -> Iterator[RabbitmqSink]:
    made = RabbitmqSink(server, cluster, next(NUMBERS))
    yield made
    made.drop()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("rabbitmq-stream://h", (RabbitmqUrl(False, (("h", 5552),), "/"), None)),
        ("rabbitmq-stream+tls://h/", (RabbitmqUrl(True, (("h", 5551),), "/"), None)),
        (
            "rabbitmq-stream://u%40:p%2F%25@h1:1,[::1]:2,h3/a%2Fb",
            (RabbitmqUrl(False, (("h1", 1), ("::1", 2), ("h3", 5552)), "a/b"), ("u@", "p/%")),
        ),
        ("rabbitmq-stream://u:@h", (RabbitmqUrl(False, (("h", 5552),), "/"), ("u", ""))),
        ("amqp://h", None),
        ("rabbitmq-stream://h:0", None),
        ("rabbitmq-stream://h:65536", None),
        ("rabbitmq-stream://u@h", None),
        ("rabbitmq-stream://u:p@h,", None),
        ("rabbitmq-stream://u:%ff@h", None),
        ("rabbitmq-stream://h/a/b", None),
        ("rabbitmq-stream://h?x", None),
        (f"rabbitmq-stream://{','.join(['h'] * 17)}", None),
    ],
)
def test_urls(text: str, found: object) -> None:
    assert parsed(text) == found
    if found is not None:
        url = parsed(text)
        assert url is not None and parsed(url[0].text()) == (url[0], None)


def test_messages(sink: RabbitmqSink) -> None:
    sink.make()
    sink.insert(1, 3, "é")
    sink.sql(f"update {sink.table} set v = 'y' where id = 2")
    sink.drained()
    found = sink.messages()
    bodies = [json.loads(message.body) for message in found]
    assert sorted((b["op"], b["after"]["id"], b["after"]["v"]) for b in bodies) == [
        ("insert", 1, "é"), ("insert", 2, "é"), ("insert", 3, "é"), ("update", 2, "y"),
    ]  # fmt: skip
    for message, body in zip(found, bodies, strict=True):
        assert message.properties.content_type == b"application/json"
        assert message.properties.message_id.endswith(f"-{body['lsn']}".encode())
        assert message.application_properties == {
            b"lsn": body["lsn"], b"partition": body["partition"], b"op": body["op"].encode(),
        }  # fmt: skip
    sink.sql(f"alter sink r on {sink.stream} set (envelope = 'changes')")
    sink.sql(f"update {sink.table} set v = 'z' where id = 2")
    sink.drained()
    sink.sql(f"alter sink r on {sink.stream} set (envelope = 'cloudevents_binary')")
    sink.sql(f"delete from {sink.table} where id = 2")
    sink.drained()
    *_, change, binary = sink.messages()
    assert [row["_change_type"] for row in json.loads(change.body)] == ["update_preimage", "update_postimage"]
    assert binary.application_properties[b"cloudEvents:type"] == b"ducktail.delete"
    assert json.loads(binary.body)["op"] == "delete"


def test_events_that_are_too_large(sink: RabbitmqSink) -> None:
    sink.make()
    large = "x" * FRAME_BYTES_MAX
    sink.sql(f"insert into {sink.table} values (1, 'a'), (2, '{large}'), (3, 'b')")
    sink.drained()
    [parked] = sink.sql(f"show parked on {sink.stream} consumer group r")
    assert {"id": 2} in parked and "the broker accepts 1048576 in a frame" in str(parked)
    assert sorted(sink.ids()) == [1, 3]
    sink.sql(f"alter sink r on {sink.stream} set (on_failure = 'stop')")
    sink.sql(f"insert into {sink.table} values (4, '{large}')")
    until(lambda: sink.state("state") == "stopped")
    assert "the broker accepts" in sink.state("reason")


def test_released_events_are_delivered_after_later_ones(sink: RabbitmqSink) -> None:
    sink.make()
    sink.sql(f"pause sink r on {sink.stream}")
    sink.sql(f"create consumer group look on {sink.stream}")
    sink.insert(1, 20)
    rows = sink.sql(f"select lsn, partition from stream {sink.stream} consumer group look limit 20")
    lsn, partition = rows[0]
    sink.sql(f"alter consumer group r on {sink.stream} park partition {partition} at {lsn}")
    sink.sql(f"resume sink r on {sink.stream}")
    sink.drained()
    delivered = sink.ids()
    assert len(delivered) == 19
    sink.sql(f"alter consumer group r on {sink.stream} release partition {partition} at {lsn}")
    until(lambda: len(sink.messages()) == 20)
    assert sorted(sink.ids()) == list(range(1, 21)) and sink.ids()[:19] == delivered
    sink.insert(21, 22)
    sink.drained()
    assert sorted(sink.ids()) == list(range(1, 23))


def test_seek_goes_forward_only(sink: RabbitmqSink) -> None:
    sink.make()
    sink.insert(1, 5)
    sink.drained()
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="SEEK back"):
        sink.sql(f"alter consumer group r on {sink.stream} seek to earliest")
    sink.sql(f"pause sink r on {sink.stream}")
    sink.insert(6, 9)
    sink.sql(f"alter consumer group r on {sink.stream} seek to latest")
    sink.sql(f"resume sink r on {sink.stream}")
    sink.insert(10, 10)
    until(lambda: len(sink.messages()) == 6)
    assert sorted(sink.ids()) == [1, 2, 3, 4, 5, 10]


def test_what_is_wrong_outside_delays_the_sink(sink: RabbitmqSink) -> None:
    places = sink.cluster.url.partition("@")[2]
    sink.make(url=f"rabbitmq-stream://shop:{QUOTED}x@{places}", create=False)
    sink.insert(1, 3)
    until(lambda: sink.state("fault"))
    assert sink.state("fault") == "the broker refuses the user or the password"
    sink.sql(f"alter sink r on {sink.stream} set (password = '{PASSWORD}')")
    until(lambda: sink.state("fault") == "the stream does not exist")
    sink.cluster.create_stream(sink.queue)
    sink.drained()
    assert sorted(sink.ids()) == [1, 2, 3]
    shown = [
        sink.sql(text)
        for text in (
            "show sinks", "select * from ducktail.sinks", "select * from ducktail.deliveries",
            "select query from pg_stat_activity",
        )
    ]  # fmt: skip
    assert sink.state("target") == f"rabbitmq-stream://{places}/{sink.queue}"
    assert sink.state("options")["secrets"] == ["password", "username"]
    for text in (PASSWORD, QUOTED):
        assert text not in str(shown) and not [line for line in sink.server.lines if text in line]


def test_a_broker_with_tls(sink: RabbitmqSink, certificate: Files, tmp_path: Path) -> None:
    other = make(tmp_path, "other").certificate.read_text()
    url = sink.cluster.tls_url
    sink.make(f"{QUICK}, ssl_ca = '{certificate.certificate.read_text()}'", url=url)
    sink.insert(1, 3)
    sink.drained()
    assert sorted(sink.ids()) == [1, 2, 3] and sink.state("fault") is None
    for options in (f"ssl_ca = '{other}'", "ssl_ca = NULL"):
        sink.sql(f"alter sink r on {sink.stream} set ({options})")
        sink.sql(f"update {sink.table} set v = 'y' where id = 2")
        until(lambda: sink.state("fault"))
        assert sink.state("fault") == "the certificate of the broker is refused: self-signed certificate"
        assert sink.state("state") == "running" and sink.state("lag_events") > 0
    sink.sql(f"alter sink r on {sink.stream} set (ssl_ca = '-----BEGIN CERTIFICATE-----x')")
    until(lambda: "the certificates of ssl_ca are invalid" in (sink.state("fault") or ""))
    sink.sql(f"alter sink r on {sink.stream} set (ssl_ca = '{certificate.certificate.read_text()}')")
    sink.drained()
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="needs an encrypted connection"):
        sink.sql(f"alter sink r on {sink.stream} to rabbitmq '{sink.cluster.url}' stream '{sink.queue}'")


def test_refused_statements(sink: RabbitmqSink) -> None:
    head = f"create sink x on {sink.stream} to rabbitmq"
    for text, sqlstate in (
        (f"{head} 'rabbitmq-stream://u:{QUOTED}@h?' stream 'x'", "22023"),
        (f"{head} 'rabbitmq-stream://h' stream ''", "22023"),
        (f"{head} 'rabbitmq-stream://h' stream 'x' with (acks = 'all')", "22023"),
        (f"{head} 'rabbitmq-stream://h' stream 'x' with (attempts = 3)", "22023"),
        (f"{head} 'rabbitmq-stream://h' stream 'x' with (ssl_ca = '-----BEGIN CERTIFICATE-----')", "22023"),
        (f"{head} 'rabbitmq-stream://10.0.0.1' stream 'x'", "42501"),
        (f"{head} 'rabbitmq-stream://h'", "42601"),
    ):
        with pytest.raises(psycopg.Error) as error:
            sink.sql(text)
        assert error.value.sqlstate == sqlstate, text
        assert QUOTED not in str(error.value)


def test_another_copy_of_the_database_stops_the_sink(sink: RabbitmqSink) -> None:
    sink.make()
    sink.insert(1, 1)
    sink.drained()
    [message] = sink.messages()
    uid = message.properties.message_id.decode().partition("-")[0]
    partition = message.application_properties[b"partition"]

    async def publish(client: Any) -> None:
        await client.declare_publisher(sink.queue, f"{uid}-0-{partition}", 1)
        confirmed = client.wait_frame(schema.PublishConfirm)
        await client.publish([schema.Message(1 << 30, None, bytes(AMQPMessage(body=b"{}")))], 1)
        await confirmed

    sink.cluster.asked(publish)
    sink.sql(f"pause sink r on {sink.stream}")
    sink.sql(f"resume sink r on {sink.stream}")
    sink.sql(f"update {sink.table} set v = 'y'")
    until(lambda: sink.state("state") == "stopped")
    assert "another copy of the database delivers to it" in sink.state("reason")


def test_every_event_is_stored_once_and_in_order(cluster: RabbitmqCluster, tmp_path: Any) -> None:
    """Kills of ducktail and of nodes in turn, during deliveries; of three nodes one loses its disk too."""
    seed = seed_of("DUCKTAIL_RABBITMQ_SEED")
    chance = random.Random(seed)
    with ServerProcess(tmp_path / "shop.duckdb", OPTIONS) as server:
        sink = RabbitmqSink(server, cluster, next(NUMBERS))
        sink.make(f"{QUICK}, batch = 25, session_timeout = '3 s'")
        cluster.sync()
        for kill in range(KILLS):
            first = EVENTS * kill // KILLS
            sink.sql(f"pause sink r on {sink.stream}")
            sink.insert(first, first + EVENTS // KILLS - 1)
            sink.sql(f"resume sink r on {sink.stream}")
            rest = EVENTS // KILLS * 2 // 3
            until(lambda rest=rest: sink.state("lag_events") <= rest, 120)  # type: ignore[misc]
            if kill % 2 == 0:
                sink.restarted()
            elif len(cluster.nodes) > 1 and kill == DISK_LOST_AT:
                cluster.replace(chance.choice(cluster.nodes), sink.queue)
            else:
                chance.choice(cluster.nodes).restart()
        sink.drained(300)
        messages = sink.messages()
        sink.connection.close()
    counts = Counter(json.loads(message.body)["after"]["id"] for message in messages)
    assert counts == Counter(range(EVENTS)), f"seed {seed}"
    by_partition: dict[int, list[int]] = {}
    for message in messages:
        told = message.application_properties
        by_partition.setdefault(told[b"partition"], []).append(told[b"lsn"])
    assert len(by_partition) == 4
    for partition, lsns in by_partition.items():
        assert lsns == sorted(lsns), f"partition {partition}, seed {seed}"


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    import ducktail

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "rstream" else find(name))
    con = ducktail.connect(":memory:")
    con.execute("create table t (id int primary key)")
    con.execute("create stream s on t")
    with pytest.raises(Exception, match="needs the package rstream") as error:
        con.execute("create sink r on s to rabbitmq 'rabbitmq-stream://h' stream 'x'")
    assert "ducktail[rabbitmq]" in str(error.value) or "ducktail[rabbitmq]" in str(error.value.__dict__)
    con.close()
