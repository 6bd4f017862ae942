"""Promises 1 and 5 for topics: a producer that repeats what it heard nothing of, and a server that is killed.

Each sequence is in the topic exactly once, in order, with all its events or none; what was acknowledged
is where it was said to be; and the rows of a table that go with the events are there with them.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
import pytest
from killed_load import kill_under_load
from server_process import ServerProcess

KILLS = 5
PRODUCERS = 3


class Producer:
    """One producer: publishes 1, 2, 3, ... in turn, and the same again until it is acknowledged."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sequence = 1
        self.acknowledged: dict[int, list[tuple[int, int]]] = {}

    def publish(self, server: ServerProcess, started: threading.Barrier) -> None:
        """Until the server is gone."""
        with server.connect() as connection:
            started.wait(30)
            try:
                while True:
                    self._publish_once(connection)
            except psycopg.OperationalError:
                return

    def _publish_once(self, connection: psycopg.Connection[Any]) -> None:
        n, count = self.sequence, self.sequence % 3 + 1
        with connection.transaction():
            rows = connection.execute(
                "publish to s key %(p)s select json_object('n', %(n)s::int, 'part', i) "
                "from range(%(count)s::int) r(i) with (producer = %(p)s, sequence = %(n)s)",
                {"p": self.name, "n": n, "count": count},
            ).fetchall()
            connection.execute("insert into done values (%s, %s) on conflict do nothing", (self.name, n))
        self.acknowledged[n] = [(partition, lsn) for partition, lsn, *_ in rows]
        self.sequence += 1


def check(server: ServerProcess, producers: list[Producer]) -> None:
    """Hold the topic against what was acknowledged."""
    with server.connect() as connection:
        events = connection.execute(
            "select key ->> '$', (after ->> 'n')::int, (after ->> 'part')::int, partition, lsn "
            "from topic s after 0"
        ).fetchall()
        view = connection.execute("select count(*) from s").fetchone()
        done = set(connection.execute("select p, n from done").fetchall())
        assert view == (len(events),)
    for producer in producers:
        mine = [(n, part, partition, lsn) for p, n, part, partition, lsn in events if p == producer.name]
        numbers = [(n, part) for n, part, *_ in mine]
        stored = max((n for n, _ in numbers), default=0)
        assert numbers == [(n, part) for n in range(1, stored + 1) for part in range(n % 3 + 1)]
        assert stored in (producer.sequence - 1, producer.sequence), "more than what was under way is there"
        for n, places in producer.acknowledged.items():
            assert [(partition, lsn) for m, _, partition, lsn in mine if m == n] == places
        assert {n for p, n in done if p == producer.name} == set(range(1, stored + 1))


@pytest.mark.slow
def test_each_sequence_is_there_once(serve: Callable[..., ServerProcess]) -> None:
    server = serve("published.duckdb")
    with server.connect() as connection:
        connection.execute("create topic s with (partitions = 4)")
        connection.execute("create table done (p text, n int, primary key (p, n))")
    producers, rng = [Producer(f"p{number}") for number in range(PRODUCERS)], random.Random(7)
    for _ in range(KILLS):
        clients = [partial(producer.publish, server) for producer in producers]
        kill_under_load(server, clients, lambda: sum(one.sequence for one in producers), rng.randint(1, 40))
        check(server, producers)
    assert all(len(producer.acknowledged) > KILLS for producer in producers)
