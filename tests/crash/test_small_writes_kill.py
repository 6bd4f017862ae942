"""Promises 1, 3 and 5 for small writes of many sessions, which share transactions of DuckDB: kill -9.

Sixteen writers insert, update, delete and publish, each statement a transaction of its own. After each kill
every acknowledged write is there, with an event in a transaction of its own; LSNs are dense; and the events
fold to the table.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import psycopg
import pytest
from amounts import amount, seed_of
from killed_load import kill_under_load
from local_client import check_stream
from psycopg.types.string import TextLoader
from server_process import ServerProcess

KILLS = amount("DUCKTAIL_SMALL_WRITES_KILLS", 2, 100)
WRITERS = 16
STATES = (psycopg.errors.UniqueViolation, psycopg.errors.CheckViolation, psycopg.errors.QueryCanceled)


class Load:
    """What was acknowledged to the writers of one server, over all its lives."""

    def __init__(self) -> None:
        self.keys = iter(range(1, 10**9))
        self.rows: dict[int, str | None] = {}
        self.published: set[int] = set()
        self.unsure: set[int] = set()
        self.count = 0
        self.failed = Counter[str]()

    def write(self, server: ServerProcess, seed: int, started: threading.Barrier) -> None:
        """Write until the server is gone."""
        rng, mine = random.Random(seed), []
        with server.connect() as connection:
            started.wait(30)
            try:
                while True:
                    self._once(connection, rng, mine)
            except psycopg.OperationalError as error:
                if isinstance(error, psycopg.errors.QueryCanceled):
                    raise

    def _once(self, connection: psycopg.Connection, rng: random.Random, mine: list[int]) -> None:
        kind = rng.choice(["insert"] * 4 + ["twice", "bad", "update", "update", "delete", "publish", "hasty"])
        key = (
            next(self.keys) if kind in ("insert", "publish", "bad", "hasty") or not mine else rng.choice(mine)
        )
        kind = "insert" if key not in mine and kind not in ("publish", "bad", "hasty") else kind
        text = f"v{rng.random()}"
        self.unsure.add(key)
        try:
            if kind == "publish":
                connection.execute("publish to p key %s %s", (str(key), str(key)))
                self.published.add(key)
            elif kind == "update":
                connection.execute("update t set v = %s where id = %s", (text, key))
                self.rows[key] = text
            elif kind == "delete":
                connection.execute("delete from t where id = %s", (key,))
                mine.remove(key)
                self.rows[key] = None
            else:
                if kind == "hasty":
                    connection.execute("set statement_timeout = '1ms'")
                text = "bad" if kind == "bad" else text
                row = connection.execute(
                    "insert into t (v, id) values (%s, %s) returning id, v", (text, key)
                ).fetchone()
                assert row == (key, text)
                mine.append(key)
                self.rows[key] = text
        except STATES as error:
            self.failed[type(error).__name__] += 1
            assert kind in ("twice", "bad", "hasty"), error
            if kind != "twice":
                self.rows[key] = None
        self.unsure.discard(key)
        if kind == "hasty":
            connection.execute("set statement_timeout = 0")
        self.count += 1


def check(server: ServerProcess, load: Load) -> None:
    """Compare what the restarted server has with what was acknowledged."""
    with server.connect() as connection:
        connection.adapters.register_loader("jsonb", TextLoader)

        def ask(text: str) -> list[tuple[object, ...]]:
            return connection.execute(text).fetchall()

        table = dict(connection.execute("select id, v from t").fetchall())
        for key, text in load.rows.items():
            if key not in load.unsure:
                assert table.get(key) == text, f"the acknowledged write of {key} is lost"
        published = connection.execute("select (key ->> '$')::int from topic p after 0").fetchall()
        counted = Counter(key for (key,) in published)
        assert load.published <= counted.keys() <= load.published | load.unsure
        assert set(counted.values()) <= {1}
        commits = connection.execute(
            "select txid, first_lsn, last_lsn from ducktail.commits where last_lsn >= first_lsn order by txid"
        ).fetchall()
        assert all(row[1] == row[2] for row in commits), "two writes in one transaction"
        assert all(later[1] == row[2] + 1 for row, later in pairwise(commits)), "LSNs are not dense"
        lsns = connection.execute(
            "select lsn, txid, tx_seq, tx_last from stream s after 0 union all "
            "select lsn, txid, tx_seq, tx_last from topic p after 0 order by lsn"
        ).fetchall()
        assert [row[:2] for row in lsns] == [(first, txid) for txid, first, _ in commits]
        assert {row[2:] for row in lsns} == {(0, True)}
        check_stream(ask, "s", "t")


@pytest.mark.slow
def test_no_acknowledged_small_write_is_lost(serve: Callable[..., ServerProcess]) -> None:
    server = serve("small_writes.duckdb")
    with server.connect() as connection:
        connection.execute("create table t (id int primary key, v text check (v <> 'bad'))")
        connection.execute("create stream s on t")
        connection.execute("create topic p with (partitions = 4)")
    load, rng = Load(), random.Random(seed_of("DUCKTAIL_SMALL_WRITES_SEED"))
    for _ in range(KILLS):
        clients = [partial(load.write, server, rng.randrange(2**31)) for _ in range(WRITERS)]
        kill_under_load(server, clients, lambda: load.count, rng.randint(100, 200))
        check(server, load)
    assert load.failed["UniqueViolation"] and load.failed["CheckViolation"]
