"""kill -9 of a server with Kafka sinks: at least once in order, and exactly once with transactions.

The mock cluster shows the records of transactions that were not committed. A cluster would abort those when
the next producer begins: they are the ones beyond the last position after a kill, as a position is written
last in its transaction. The reader here leaves them out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from amounts import amount
from kafka_cluster import KafkaCluster, Kept, records
from server_process import ServerProcess
from webhook_receiver import until

EVENTS = amount("DUCKTAIL_KAFKA_EVENTS", 2_000, 100_000)
KILLS = amount("DUCKTAIL_KAFKA_KILLS", 3, 10)
WRITES = 20
OPTIONS = ("--port", "0", "--allow-network", "127.0.0.1")


@pytest.fixture
def cluster() -> Iterator[KafkaCluster]:
    made = KafkaCluster()
    made.create("orders")
    made.create("positions", 1)
    yield made
    made.close()


def _positions(cluster: KafkaCluster) -> dict[int, int]:
    """The LSN by partition of the stream up to which the events are committed."""
    found: dict[int, int] = {}
    for record in records(cluster.servers, "positions"):
        assert record.key is not None
        found[int(record.key.decode().rpartition("/")[2])] = record.value["lsn"]
    return found


def _lag(server: ServerProcess) -> int:
    with server.connect() as connection:
        [(lag,)] = connection.execute("select lag_events from ducktail.sinks").fetchall()
    return int(lag)


def _delivered(server: ServerProcess, cluster: KafkaCluster, options: str, after_kill: Any) -> list[Kept]:
    """The records of a run with kills; brokers go down meanwhile, one at a time."""
    with server.connect() as connection:
        connection.execute("create table t (id int primary key, v text)")
        connection.execute("create stream s on t with (partitions = 4)")
        connection.execute(
            f"create sink k on s to kafka '{cluster.servers}' topic 'orders' with (batch = 25, "
            f"backoff = '10 ms', backoff_max = '100 ms', session_timeout = '3 s', {options})".encode()
        )
        for first in range(0, EVENTS, EVENTS // WRITES):
            last = min(EVENTS, first + EVENTS // WRITES)
            connection.execute(f"insert into t select i, 'x' from range({first}, {last}) r(i)".encode())
    for kill in range(1, KILLS + 1):
        goal = EVENTS * (KILLS + 1 - kill) // (KILLS + 1)
        until(lambda goal=goal: _lag(server) <= goal, 600)  # type: ignore[misc]
        server.kill()
        after_kill()
        broker = 1 + kill % 3
        cluster.down(broker)
        server.start()
        cluster.up(broker)
    until(lambda: _lag(server) == 0, 600)
    return records(cluster.servers, "orders")


def test_each_event_arrives_in_order(tmp_path: Path, cluster: KafkaCluster) -> None:
    with ServerProcess(tmp_path / "shop.duckdb", OPTIONS) as server:
        found = _delivered(server, cluster, "timeout = '5 s'", lambda: None)
    assert {record.value["after"]["id"] for record in found} == set(range(EVENTS))
    for partition in range(4):
        for place in range(3):
            lsns = [
                record.value["lsn"]
                for record in found
                if record.value["partition"] == partition and record.partition == place
            ]
            first_times = list(dict.fromkeys(lsns))
            assert first_times == sorted(first_times)


def test_each_event_arrives_once(tmp_path: Path, cluster: KafkaCluster) -> None:
    aborted: set[tuple[int, int]] = set()

    def abort() -> None:
        committed = _positions(cluster)
        for record in records(cluster.servers, "orders"):
            if record.value["lsn"] > committed.get(record.value["partition"], 0):
                aborted.add((record.partition, record.offset))

    options = "timeout = '5 s', transactional = 'true', positions = 'positions'"
    with ServerProcess(tmp_path / "shop.duckdb", OPTIONS) as server:
        found = _delivered(server, cluster, options, abort)
    kept = [record for record in found if (record.partition, record.offset) not in aborted]
    ids = [record.value["after"]["id"] for record in kept]
    assert len(ids) == len(set(ids)), "an event is committed twice"
    assert set(ids) == set(range(EVENTS))
    for partition in range(4):
        for place in range(3):
            lsns = [
                record.value["lsn"]
                for record in kept
                if record.value["partition"] == partition and record.partition == place
            ]
            assert lsns == sorted(lsns)
