"""Writers that note every commit that was acknowledged, a reader that notes what it has seen, and the check
of a database that must have all of it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from local_client import Client
from server_process import ServerProcess

from ducktail.engine.database import Database

TABLES = (
    "create table t (id int primary key, v bigint)",
    "create table plain (id int)",
    "create stream s on t with (partitions = 1, retention = 'none')",
    "create topic news with (partitions = 1, retention = 'none')",
    "create consumer group g on s",
)
BULK_ROWS = 130_000


class Acknowledged:
    """Writers of all kinds of commits, and a reader; each notes what it was answered."""

    def __init__(self, server: ServerProcess, first: int, seed: int) -> None:
        self._server = server
        self._stop = threading.Event()
        self._first = first
        self.kept: dict[str, list[int]] = {}
        self.seen = 0
        self.errors: list[Exception] = []
        works = (
            self._insert,
            self._insert,
            self._block,
            self._plain,
            self._publish,
            self._follow,
            self._define,
        )
        self._threads = [
            threading.Thread(target=self._run, args=(work, place, random.Random(seed * 10 + place)))
            for place, work in enumerate(works)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def count(self) -> int:
        """The number of acknowledged commits."""
        return sum(len(several) for several in list(self.kept.values()))

    def stop(self) -> None:
        """End the threads."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, work: Callable[..., None], place: int, chance: random.Random) -> None:
        try:
            with self._server.connect() as connection:
                number = self._first + place * 1_000_000
                while not self._stop.is_set():
                    work(connection, number, chance)
                    number += 1
        except psycopg.OperationalError as error:
            if error.sqlstate is not None and error.sqlstate != "57P01":
                self.errors.append(error)
        except Exception as error:
            self.errors.append(error)

    def _note(self, kind: str, number: int) -> None:
        self.kept.setdefault(kind, []).append(number)

    def _insert(self, connection: psycopg.Connection[Any], number: int, chance: random.Random) -> None:
        connection.execute("insert into t values (%s, 0)", (number,))
        self._note("t", number)

    def _block(self, connection: psycopg.Connection[Any], number: int, chance: random.Random) -> None:
        with connection.transaction():
            connection.execute("insert into t values (%s, 1)", (number,))
            connection.execute("insert into plain values (%s)", (number,))
        self._note("t", number)
        self._note("plain", number)

    def _plain(self, connection: psycopg.Connection[Any], number: int, chance: random.Random) -> None:
        if chance.random() < 0.02:
            # Rows in blocks of the file, not in its log.
            connection.execute(f"insert into plain select {number} from range({BULK_ROWS})")
        else:
            connection.execute("insert into plain values (%s)", (number,))
        self._note("plain", number)

    def _publish(self, connection: psycopg.Connection[Any], number: int, chance: random.Random) -> None:
        connection.execute(f"publish to news '{number}'")
        self._note("news", number)

    def _follow(self, connection: psycopg.Connection[Any], number: int, chance: random.Random) -> None:
        rows = connection.execute("select lsn from stream s consumer group g wait '1 s' limit 50").fetchall()
        if rows:
            self.seen = max(self.seen, rows[-1][0])
            connection.execute("commit offsets on s consumer group g")
            self._note("offsets", rows[-1][0])

    def _define(self, connection: psycopg.Connection[Any], number: int, chance: random.Random) -> None:
        if chance.random() < 0.1:
            connection.execute("checkpoint")
        connection.execute(f"create table made_{number} (i int)")
        self._note("made", number)
        self._stop.wait(0.1)


def has_everything(path: Path, kept: dict[str, list[int]]) -> None:
    """Assert that a restored database has all that was acknowledged."""
    database = Database.open(str(path))
    try:
        client = Client(database)
        assert database.damage == {} and database.unlike == {}
        found = {
            "t": {one for (one,) in client("select id from t")},
            "plain": {one for (one,) in client("select distinct id from plain")},
            "news": {
                int(one) for (one,) in client("select (after ->> '$')::bigint from stream news after 0")
            },
            "made": {
                int(one.removeprefix("made_"))
                for (one,) in client("select table_name from duckdb_tables() where table_name like 'made_%'")
            },
        }
        for kind, numbers in found.items():
            assert set(kept.get(kind, ())) <= numbers, kind
        offset = client.one("select committed_lsn from ducktail.offsets where group_name = 'g'")
        assert offset >= max(kept.get("offsets", ()), default=0)
        assert client("check stream s") == []
        client.close()
    finally:
        database.close()
