"""kill -9 of a server with a webhook, and of its receiver, which answers at random.

Each event is accepted at least once, unless the receiver refuses it, and exactly those are parked. In each
partition no event is accepted for the first time after a later one: a receiver may see 1, 2, 3, 2, 3, 4, and
never 1, 3, 2.
"""

from __future__ import annotations

import random
from pathlib import Path

import psycopg
from amounts import amount, seed_of
from server_process import ServerProcess
from webhook_receiver import ReceiverProcess, until

EVENTS = amount("DUCKTAIL_SINK_EVENTS", 600, 100_000)
KILLS = amount("DUCKTAIL_SINK_KILLS", 2, 10)
WRITES = 20
OPTIONS = ("--port", "0", "--allow-network", "127.0.0.1")


def test_every_event_is_delivered_in_order(tmp_path: Path) -> None:
    seed = seed_of("DUCKTAIL_SINK_SEED")
    chance = random.Random(seed)
    bad = set(chance.sample(range(EVENTS), max(3, min(900, EVENTS // 100))))
    with (
        ReceiverProcess(tmp_path / "received", "random", seed) as receiver,
        ServerProcess(tmp_path / "shop.duckdb", OPTIONS) as server,
    ):
        with server.connect() as connection:
            connection.execute("create table t (id int primary key, v text)")
            connection.execute("create stream s on t with (partitions = 4)")
            connection.execute(
                f"create sink hook on s to webhook '{receiver.url}' with (batch = 25, attempts = 100, "
                "backoff = '10 ms', backoff_max = '100 ms', timeout = '300 ms', session_timeout = '3 s')"
            )
            for first in range(0, EVENTS, EVENTS // WRITES):
                ids = range(first, min(EVENTS, first + EVENTS // WRITES))
                rows = ", ".join(f"({i}, '{'bad' if i in bad else 'good'}')" for i in ids)
                connection.execute(f"insert into t values {rows}".encode())
        for kill in range(1, 2 * KILLS + 1):
            goal = EVENTS * kill // (2 * KILLS + 2)
            until(lambda goal=goal: len(receiver.accepted()) >= goal, 600)  # type: ignore[misc]
            if kill % 2:
                server.kill()
                server.start()
            else:
                receiver.restart("random")
        connection = server.connect()
        until(lambda: _lag(connection) == 0, 600)
        parked = {row[3]["id"] for row in connection.execute("show parked on s consumer group hook")}
        connection.close()
        assert parked == bad
        events = receiver.accepted()
    assert {event["after"]["id"] for event in events} == set(range(EVENTS)) - bad
    for partition in range(4):
        first_times = list(dict.fromkeys(e["lsn"] for e in events if e["partition"] == partition))
        assert first_times == sorted(first_times), f"partition {partition}, seed {seed}"


def _lag(connection: psycopg.Connection[tuple[int]]) -> int:
    [(lag,)] = connection.execute("select lag_events from ducktail.sinks").fetchall()
    return lag
