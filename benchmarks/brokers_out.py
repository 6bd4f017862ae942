"""How fast sinks that have fallen behind reach Kafka, Kafka with transactions, and RabbitMQ, in turns.

    backlog     events a second from CREATE SINK to the group's last commit: 100,000 events of three columns
                in four partitions. Afterwards the broker is read, and must have each event once

Kafka is librdkafka's own mock cluster of three brokers, in threads of this process; it keeps records in
memory only. RabbitMQ is one node of Debian's package, with its disk. All share one machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psycopg
from http_server import served

HERE = Path(__file__).resolve().parent
# The brokers of the tests.
sys.path.append(str(HERE.parent / "tests" / "support"))

from kafka_cluster import KafkaCluster, records  # noqa: E402  # found by the path above
from rabbitmq_process import RabbitmqCluster  # noqa: E402

PARTITIONS = 4
# The mock cluster keeps 5 MB of a partition, and all records are to be read.
TOPIC_PARTITIONS = 16
TIMEOUT_S = 300
# The name of a place -> the receiver of a sink, and what reads the LSNs that it has.
Turn = Callable[[str], tuple[str, Callable[[], list[int]]]]


def kafka(cluster: KafkaCluster, options: str) -> Turn:
    """A sink to a new topic."""

    def turn(name: str) -> tuple[str, Callable[[], list[int]]]:
        cluster.create(name, TOPIC_PARTITIONS)
        cluster.create(f"{name}.positions", 1)
        more = options.format(name=name)
        receiver = f"KAFKA '{cluster.servers}' TOPIC '{name}' {more}"
        return receiver, lambda: [record.value["lsn"] for record in records(cluster.servers, name)]

    return turn


def rabbitmq(cluster: RabbitmqCluster) -> Turn:
    """A sink to a new stream of RabbitMQ."""

    def turn(name: str) -> tuple[str, Callable[[], list[int]]]:
        cluster.create_stream(name)
        return f"RABBITMQ '{cluster.url}' STREAM '{name}'", lambda: [
            m.application_properties[b"lsn"] for m in cluster.messages(name)
        ]

    return turn


def backlog(admin: psycopg.Connection, receiver: str, events: int) -> float:
    """Events a second of a sink that begins with the first event."""
    began_s = time.perf_counter()
    admin.execute(f"CREATE SINK behind ON s TO {receiver}".encode())
    lag = -1
    while lag:
        assert time.perf_counter() - began_s < TIMEOUT_S, "the sink does not come to the end"
        [(lag, fault)] = admin.execute("SELECT lag_events, fault FROM ducktail.sinks").fetchall()
        assert fault is None, fault
        time.sleep(0.01)
    took_s = time.perf_counter() - began_s
    admin.execute("DROP SINK behind ON s")
    return events / took_s


def page(rates: dict[str, list[float]], events: int, took: str) -> str:
    """The result as a Markdown page."""
    lines = [
        "# Backlogs to brokers",
        "",
        f"{events:,} events in {PARTITIONS} partitions, {took}; Python {platform.python_version()}, "
        f"{os.cpu_count()} cores, which the brokers share. Kafka is librdkafka's mock cluster of three "
        "brokers in memory, RabbitMQ one node of Debian's package. Each event was there once.",
        "",
        "| receiver | events/s, median | lowest | highest |",
        "|---|---:|---:|---:|",
    ]
    for name, found in rates.items():
        lines.append(f"| {name} | {statistics.median(found):,.0f} | {min(found):,.0f} | {max(found):,.0f} |")
    return "\n".join([*lines, ""])


def measured(events: int, turns: int) -> dict[str, list[float]]:
    """The rates of each receiver."""
    with ExitStack() as stack:
        mock = KafkaCluster()
        stack.callback(mock.close)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        node = stack.enter_context(RabbitmqCluster(folder / "rabbitmq"))
        receivers = {
            "Kafka": kafka(mock, ""),
            "Kafka, transactional": kafka(
                mock, "WITH (transactional = 'true', positions = '{name}.positions')"
            ),
            "RabbitMQ": rabbitmq(node),
        }
        rates: dict[str, list[float]] = {name: [] for name in receivers}
        server = stack.enter_context(served("--allow-network", "127.0.0.0/8"))
        admin = stack.enter_context(psycopg.connect(server.conninfo, autocommit=True))
        admin.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, item TEXT, price DECIMAL(12, 2))")
        admin.execute(f"CREATE STREAM s ON t WITH (partitions = {PARTITIONS})".encode())
        admin.execute(
            f"INSERT INTO t SELECT i, 'item ' || i, (i % 1000) / 4 FROM range({events}) r(i)".encode()
        )
        for turn in range(turns):
            for number, (name, begin) in enumerate(receivers.items()):
                receiver, lsns = begin(f"bench-{turn}-{number}")
                rates[name].append(backlog(admin, receiver, events))
                found = lsns()
                assert len(found) == len(set(found)) == events, f"{len(found)} of {events} are in {name}"
                print(f"{name:<22} {rates[name][-1]:>10,.0f} events/s", flush=True)
        return rates


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "brokers_out.md")
    arguments = parser.parse_args()
    rates = measured(arguments.events, arguments.turns)
    text = page(rates, arguments.events, f"{arguments.turns} turns")
    arguments.output.parent.mkdir(exist_ok=True)
    arguments.output.write_text(text)
    print(f"\n{text}\nwritten to {arguments.output}")


if __name__ == "__main__":
    main()
