"""A mixed load on a server whose database is copied, and the comparison of a restored database with its
history.

The server itself keeps the history: streams without retention have every event, so that the state of a
table at an LSN is the fold of the events up to it. A table `carried` gets the position of a group in the
transaction that commits it, so that the offsets at an LSN are known as well. Plain tables are made whole,
in one transaction.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from local_client import Client
from server_process import ServerProcess

from ducktail.engine.database import Database

PLAIN_ROWS, BULK_ROWS = 200_000, 130_000
SETUP = (
    "create table t (id int primary key, v bigint)",
    "create table bulk (id int primary key, v bigint)",
    "create table brief (id int primary key, v bigint)",
    "create table carried (lsn bigint)",
    "create stream s on t with (partitions = 1, retention = 'none', before = 'full')",
    "create stream s_bulk on bulk with (partitions = 1, retention = 'none')",
    "create stream s_brief on brief with (retention = '1 s')",
    "create stream s_carried on carried with (partitions = 1, retention = 'none')",
    "create topic news with (partitions = 2, retention = 'none')",
    "create consumer group g on s",
)
# Small bounds: checkpoints, generations and retention often, so that they are killed as well.
OPTIONS = ("--port", "0", "--wal-bytes-max", str(4 << 20), "--retention-interval-ms", "200",
           "--copy-interval-ms", "100")  # fmt: skip

Row = tuple[Any, ...]


@dataclass(frozen=True)
class CopiedServer:
    """A server that still runs, without writers, and its copy."""

    server: ServerProcess
    target: Path


class Load:
    """Threads that write until they are stopped, or their server is killed."""

    def __init__(self, server: ServerProcess, seed: int) -> None:
        self._server = server
        self._stop = threading.Event()
        self.errors: list[Exception] = []
        works = (self._write, self._publish, self._carry, self._define)
        self._threads = [
            threading.Thread(target=self._run, args=(work, random.Random(seed * 10 + place)), daemon=True)
            for place, work in enumerate(works)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(
        self, work: Callable[[psycopg.Connection[Any], random.Random], None], chance: random.Random
    ) -> None:
        try:
            while not self._stop.is_set():
                # A session that keeps the log from being checkpointed is ended, and comes again.
                with suppress(psycopg.errors.IdleInTransactionSessionTimeout):
                    self._work(work, chance)
        except psycopg.OperationalError:
            pass  # The server was killed.
        except Exception as error:
            self.errors.append(error)

    def _work(
        self, work: Callable[[psycopg.Connection[Any], random.Random], None], chance: random.Random
    ) -> None:
        with self._server.connect() as connection:
            while not self._stop.is_set():
                with suppress(psycopg.errors.SerializationFailure, psycopg.errors.ObjectInUse):
                    work(connection, chance)

    def _write(self, connection: psycopg.Connection[Any], chance: random.Random) -> None:
        key, value, kind = chance.randrange(200), chance.randrange(1 << 40), chance.random()
        upsert = "insert into {0} (id, v) values ({1}, {2}) on conflict (id) do update set v = excluded.v"
        if kind < 0.5:
            connection.execute(upsert.format("t", key, value))
        elif kind < 0.7:
            with connection.transaction():
                connection.execute(upsert.format("t", key, value))
                connection.execute(upsert.format("brief", key, value))
                connection.execute(f"update t set v = v + 1 where id % 7 = {key % 7}")
        elif kind < 0.85:
            connection.execute(f"delete from t where id in ({key}, {key + 1})")
        elif kind < 0.98:
            connection.execute(upsert.format("brief", key, value))
        elif chance.random() < 0.5:
            connection.execute(f"insert into bulk select i, {value} from range({BULK_ROWS}) as r(i) "
                               "on conflict do nothing")  # fmt: skip
        else:
            connection.execute("delete from bulk where id % 2 = 0")

    def _publish(self, connection: psycopg.Connection[Any], chance: random.Random) -> None:
        connection.execute(f"publish to news key '{chance.randrange(9)}' '{chance.randrange(1 << 40)}'")

    def _carry(self, connection: psycopg.Connection[Any], chance: random.Random) -> None:
        with connection.transaction():
            rows = connection.execute("select lsn from stream s consumer group g limit 20").fetchall()
            if rows:
                connection.execute(f"insert into carried values ({rows[-1][0]})")
                connection.execute("commit offsets on s consumer group g")
        if not rows:
            self._stop.wait(0.02)

    def _define(self, connection: psycopg.Connection[Any], chance: random.Random) -> None:
        kind, name = chance.random(), f"plain_{chance.randrange(3)}"
        if kind < 0.3:
            connection.execute("checkpoint")
        elif kind < 0.6:
            connection.execute(f"drop table if exists {name}")
            connection.execute(
                f"create table {name} as select i, hash(i) as h from range({PLAIN_ROWS}) as r(i)"
            )
        elif kind < 0.8:
            connection.execute(
                f"create table if not exists {name} as select 0 as i, hash(0) as h where false"
            )
            with connection.transaction():
                connection.execute(f"delete from {name}")
                connection.execute(f"insert into {name} select i, hash(i) from range({PLAIN_ROWS}) as r(i)")
        else:
            connection.execute("alter table brief add column if not exists more int default 7")
            connection.execute("alter table brief drop column more")
        self._stop.wait(chance.random() / 5)


@dataclass(frozen=True)
class Seen:
    """What a database has of the history up to an LSN."""

    rows: dict[int, int]
    bulk_rows: list[Row]
    events: list[Row]
    news: list[Row]
    carried: list[int]


def history(execute: Callable[[str], list[Row]], through: int) -> Seen:
    """The history of a database up to an LSN, from its streams."""
    events = execute(
        "select lsn, op, coalesce((after ->> 'id')::int, (before ->> 'id')::int), (after ->> 'v')::bigint "
        f"from stream s after 0 where lsn <= {through} order by lsn"
    )
    rows: dict[int, int] = {}
    for _, op, key, value in events:
        if op == "delete":
            rows.pop(key, None)
        else:
            rows[key] = value
    bulk = execute(f"select count(*), max(lsn) from stream s_bulk after 0 where lsn <= {through}")
    news = execute(
        f"select lsn, partition, after::varchar from stream news after 0 where lsn <= {through} order by lsn"
    )
    carried = execute(
        f"select (after ->> 'lsn')::bigint from stream s_carried after 0 where lsn <= {through} order by lsn"
    )
    return Seen(rows, bulk, events, news, [lsn for (lsn,) in carried])


def compare(path: Path, primary: Callable[[str], list[Row]], lsn: int) -> None:
    """Assert that a restored database is its primary as of an LSN."""
    database = Database.open(str(path))
    try:
        client = Client(database)
        assert database.damage == {} and database.unlike == {}
        assert client.one("select max(last_lsn) from ducktail.commits") == lsn
        wanted, found = history(primary, lsn), history(client, lsn)
        assert found == wanted
        assert dict(client("select id, v from t")) == wanted.rows
        assert client("select count(*) from stream s after 0") == [(len(wanted.events),)]
        assert [one for (one,) in client("select lsn from carried order by lsn")] == wanted.carried
        offset = client.one("select committed_lsn from ducktail.offsets where group_name = 'g'")
        assert offset == max(wanted.carried, default=0)
        for stream in ("s", "s_bulk", "s_brief", "s_carried"):
            assert client(f"check stream {stream}") == []
        for (name,) in client("select table_name from duckdb_tables() where table_name like 'plain_%'"):
            count, good = client(f"select count(*), count(*) filter (where h = hash(i)) from {name}")[0]
            assert count == good and count in (0, PLAIN_ROWS), name
        client.close()
    finally:
        database.close()


def asker(connection: psycopg.Connection[Any]) -> Callable[[str], list[Row]]:
    """Ask a server as a session of this process is asked."""

    def ask(text: str) -> list[Row]:
        return connection.execute(text).fetchall()

    return ask


def await_copy(
    connection: psycopg.Connection[Any], condition: str = "lag_bytes = 0", timeout_s: float = 60
) -> None:
    """Wait until all copies meet a condition on `ducktail.continuous_copies`."""
    ends = time.monotonic() + timeout_s
    text = f"select count(*) from ducktail.continuous_copies where not coalesce({condition}, false)"
    while connection.execute(text).fetchone() != (0,):
        shown = connection.execute("select * from ducktail.continuous_copies").fetchall()
        assert time.monotonic() < ends, shown
        time.sleep(0.05)
