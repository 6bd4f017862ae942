"""Promises 1, 3 and 5 for small writes of many sessions, which share transactions of DuckDB: kill -9.

Sixteen writers insert, update, delete and publish, each statement a transaction of its own; they break
constraints, time out, are cancelled, roll back, and write the rows of others. After each kill every
acknowledged write is there, with an event in a transaction of its own, and none that failed; LSNs are dense;
and the events fold to the table.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
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
INSERT = "insert into t (v, id) values (%s, %s) returning id, v"
UPDATE = "update t set v = %s where id = %s"
DELETE = "delete from t where id = %s"
PUBLISH = "publish to p key %s %s"
# A writer's rows are its own, but for these, which all of them insert, update and delete.
SHARED = range(-8, 0)
OF_A_ROW = ["update", "update", "delete", "twice"]
OF_A_NEW_ROW = ["insert"] * 4 + ["publish", "bad", "hasty", "cancelled", "rolled back"]
KINDS = [*OF_A_ROW, *OF_A_NEW_ROW, "shared", "shared"]
# The errors that a write may end with.
UNIQUE, CHECK, CANCELED = "UniqueViolation", "CheckViolation", "QueryCanceled"
ERRORS = {"twice": UNIQUE, "shared": UNIQUE, "bad": CHECK, "hasty": CANCELED, "cancelled": CANCELED}
# A client's deadline and cancel come at about the time that a write takes.
HASTE_S = 0.02


class Load:
    """The outcomes that the writers of one server know, over all its lives."""

    def __init__(self) -> None:
        self.keys = iter(range(1, 10**9))
        # The rows that have one writer, by key.
        self.rows: dict[int, str | None] = {}
        self.unsure: set[int] = set()
        # The values of the writes that were acknowledged, and of those that failed or were rolled back.
        self.written: set[str] = set()
        self.refused: set[str] = set()
        self.count = 0
        self.failed = Counter[str]()

    def write(self, server: ServerProcess, seed: int, started: threading.Barrier) -> None:
        """Write until the server is gone."""
        with server.connect() as connection:
            writer = Writer(self, connection, random.Random(seed))
            started.wait(30)
            try:
                while True:
                    writer.once()
            except psycopg.OperationalError as error:
                if isinstance(error, psycopg.errors.QueryCanceled):
                    raise


class Writer:
    """One of the writers; the keys of its rows are `mine`."""

    def __init__(self, load: Load, connection: psycopg.Connection, rng: random.Random) -> None:
        self.load, self.connection, self.rng = load, connection, rng
        self.mine: list[int] = []

    def once(self) -> None:
        """Write once, and note the outcome."""
        load, kind = self.load, self.rng.choice(KINDS if self.mine else OF_A_NEW_ROW)
        key = self.rng.choice(self.mine if kind in OF_A_ROW else SHARED)
        if kind in OF_A_NEW_ROW:
            key = next(load.keys)
        value = "bad" if kind == "bad" else f"v{self.rng.random()}"
        load.unsure.add(key)
        try:
            written = self._send(kind, key, value)
        except (psycopg.errors.IntegrityError, psycopg.errors.QueryCanceled) as error:
            name = type(error).__name__
            assert name == ERRORS.get(kind), (kind, error)
            load.failed[name] += 1
            written = False
        (load.written if written else load.refused).add(value)
        if kind in OF_A_NEW_ROW and kind != "publish":
            load.rows[key] = value if written else None
            self.mine += [key] * written
        elif kind == "update":
            load.rows[key] = value
        elif kind == "delete":
            load.rows[key] = None
            self.mine.remove(key)
        load.unsure.discard(key)
        load.count += 1

    def _send(self, kind: str, key: int, value: str) -> bool:
        """Run a write; returns whether its value is stored."""
        execute = self.connection.execute
        if kind == "shared":
            kind = self.rng.choice(["update", "update", "insert", "delete"])
        if kind == "publish":
            return execute(PUBLISH, (str(key), value)).rowcount == 1
        if kind == "update":
            return execute(UPDATE, (value, key)).rowcount == 1
        if kind == "delete":
            execute(DELETE, (key,))
            return False
        if kind == "hasty":
            execute(f"set statement_timeout = '{1 + int(HASTE_S * 1000 * self.rng.random())}ms'")
        if kind == "rolled back":
            execute("begin")
        cancel = threading.Timer(self.rng.random() * HASTE_S, self._cancel)
        if kind == "cancelled":
            cancel.start()
        try:
            assert execute(INSERT, (value, key)).fetchall() == [(key, value)]
        finally:
            if kind == "cancelled":
                cancel.join()
            if kind == "rolled back":
                execute("rollback")
            while kind == "hasty":
                with suppress(psycopg.errors.QueryCanceled):  # Its own time is limited, too.
                    execute("set statement_timeout = 0")
                    break
        return kind != "rolled back"

    def _cancel(self) -> None:
        with suppress(psycopg.Error):  # The server is gone.
            self.connection.cancel_safe()


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
        commits = connection.execute(
            "select txid, first_lsn, last_lsn from ducktail.commits where last_lsn >= first_lsn order by txid"
        ).fetchall()
        assert all(row[1] == row[2] for row in commits), "two writes in one transaction"
        assert all(later[1] == row[2] + 1 for row, later in pairwise(commits)), "LSNs are not dense"
        events = connection.execute(
            "select lsn, txid, tx_seq, tx_last, after ->> 'v' from stream s after 0 union all "
            "select lsn, txid, tx_seq, tx_last, after ->> '$' from topic p after 0 order by lsn"
        ).fetchall()
        assert [row[:2] for row in events] == [(first, txid) for txid, first, _ in commits]
        assert {row[2:4] for row in events} == {(0, True)}
        values = Counter(row[4] for row in events if row[4] is not None)
        assert load.written <= values.keys(), "an acknowledged write has no event"
        assert not load.refused & values.keys(), "a write that failed has an event"
        assert set(values.values()) <= {1}
        check_stream(ask, "s", "t")


@pytest.mark.slow
@pytest.mark.timeout(3600)
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
    assert load.failed.keys() == set(ERRORS.values())
    with server.connect() as connection:
        shared = "select count(*) - count(distinct commit_time) from ducktail.commits"
        assert connection.execute(shared).fetchone() > (0,), "no writes were committed together"
