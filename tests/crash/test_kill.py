"""Promise 5: kill -9 of a real server in the middle of a mixed load loses nothing acknowledged.

Writers insert, upsert, merge and delete; one reader commits offsets, another moves rows and offsets in one
transaction; a second stream retains a second of events only. The checker knows only what was acknowledged
to its clients: each acknowledged row is in the table and has its event, no event is without its row,
events are dense and fold to the table (promises 1 and 3), each acknowledged offset stands (5, 7), and what
the transactions have moved is there once (8).
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
import pytest
from amounts import amount
from killed_load import kill_under_load
from local_client import fold
from server_process import ServerProcess

KILLS = amount("DUCKTAIL_KILLS", 3, 50)
WRITERS = 3
CHANGES = (
    "insert into t values (%s, %s) on conflict (id) do update set v = excluded.v",
    "merge into t using (select %s::int as id, %s as v) as n on t.id = n.id "
    "when matched then update set v = n.v when not matched then insert values (n.id, n.v)",
)


class Load:
    """Writers and a committing reader on one server, until it dies; what was acknowledged to them."""

    def __init__(self) -> None:
        self.inserted: dict[int, str] = {}
        self.deleted: set[int] = set()
        self.unsure: set[int] = set()
        self.committed: dict[int, int] = {}
        self._mutex = threading.Lock()
        self._next = 0

    def key(self) -> int:
        """A key that was never used."""
        with self._mutex:
            self._next += 1
            return self._next

    def write(self, server: ServerProcess, seed: int, started: threading.Barrier) -> None:
        """Insert, update and delete own keys until the server is gone."""
        rng, mine = random.Random(seed), []
        with server.connect() as connection:
            started.wait(30)
            try:
                while True:
                    self._write_once(connection, rng, mine)
            except psycopg.OperationalError:
                return

    def _write_once(self, connection: psycopg.Connection[Any], rng: random.Random, mine: list[int]) -> None:
        keys = [self.key() for _ in range(rng.randint(1, 3))]
        text = f"v{rng.random()}"
        self.unsure |= set(keys)
        with connection.transaction():
            for key in keys:
                connection.execute("insert into t values (%s, %s)", (key, text))
        self.inserted |= dict.fromkeys(keys, text)
        self.unsure -= set(keys)
        mine += keys
        if len(mine) > 20:
            gone = mine.pop(rng.randrange(len(mine)))
            self.unsure.add(gone)
            connection.execute("delete from t where id = %s", (gone,))
            self.deleted.add(gone)
            self.unsure.discard(gone)
        changed, text = rng.choice(mine), f"w{rng.random()}"
        self.unsure.add(changed)
        connection.execute(rng.choice(CHANGES), (changed, text))
        self.inserted[changed] = text
        self.unsure.discard(changed)

    def read(self, server: ServerProcess, started: threading.Barrier) -> None:
        """Read and commit offsets until the server is gone."""
        with server.connect() as connection:
            started.wait(30)
            try:
                while True:
                    rows = connection.execute(
                        "select partition, lsn from stream s consumer group g limit 50"
                    ).fetchall()
                    if rows:
                        connection.execute("commit offsets on s consumer group g")
                        self.committed |= dict(rows)
            except psycopg.OperationalError:
                return

    def move(self, server: ServerProcess, started: threading.Barrier) -> None:
        """Move events to a table of their own with their offsets, until the server is gone."""
        with server.connect() as connection:
            started.wait(30)
            try:
                while True:
                    with connection.transaction():
                        connection.execute(
                            "insert into moved select lsn from stream s consumer group mover limit 20"
                        )
                        connection.execute("commit offsets on s consumer group mover")
            except psycopg.OperationalError:
                return


def check(server: ServerProcess, load: Load) -> None:
    """Hold what the restarted server has against what was acknowledged."""
    with server.connect() as connection:
        table = dict(connection.execute("select id, v from t").fetchall())
        for key, text in load.inserted.items():
            if key not in load.deleted | load.unsure:
                assert table.get(key) == text, f"acknowledged row {key} is lost"
        for key in load.deleted - load.unsure:
            assert key not in table, f"acknowledged delete of {key} is lost"
        lsns = [lsn for (lsn,) in connection.execute("select lsn from stream s after 0").fetchall()]
        assert lsns == list(range(1, len(lsns) + 1))
        events = connection.execute(
            "select op, key::text, before::text, after::text from stream s after 0"
        ).fetchall()
        images = connection.execute(
            "select json_object('id', id)::text, json_object('id', id, 'v', v)::text from t"
        ).fetchall()
        assert fold(events) == dict(images)
        offsets = dict(
            connection.execute(
                "select partition, committed_lsn from ducktail.offsets where group_name = 'g'"
            ).fetchall()
        )
        for partition, lsn in load.committed.items():
            assert offsets[partition] >= lsn, f"acknowledged offset of partition {partition} is lost"
        moved = [lsn for (lsn,) in connection.execute("select lsn from moved order by lsn").fetchall()]
        passed = connection.execute(
            "select e.lsn from stream s after 0 as e join ducktail.offsets as o on o.group_name = 'mover' "
            "and o.partition = e.partition and e.lsn <= o.committed_lsn order by e.lsn"
        ).fetchall()
        assert moved == [lsn for (lsn,) in passed], "moved rows and their offsets part"
        recent = [lsn for (lsn,) in connection.execute("select lsn from stream recent").fetchall()]
        assert recent == lsns[len(lsns) - len(recent) :], "retention took an event from the middle"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kill_in_the_middle_of_the_load(serve: Callable[..., ServerProcess]) -> None:
    server = serve("killed.duckdb", options=("--port", "0", "--retention-interval-ms", "100"))
    with server.connect() as connection:
        connection.execute("create table t (id int primary key, v text)")
        connection.execute("create stream s on t with (partitions = 4)")
        connection.execute("create stream recent on t with (partitions = 1, retention = '1 s')")
        connection.execute("create consumer group g on s")
        connection.execute("create consumer group mover on s")
        connection.execute("create table moved (lsn bigint)")
    load, rng = Load(), random.Random(5)
    for number in range(KILLS):
        writers = [partial(load.write, server, 100 * number + w) for w in range(WRITERS)]
        clients = [*writers, partial(load.read, server), partial(load.move, server)]
        kill_under_load(server, clients, lambda: len(load.inserted), rng.randint(1, 60))
        check(server, load)
    assert len(load.inserted) >= KILLS and load.committed
