"""Random transactions on a database that feeds a stream, and what its copies here must have."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from operator import itemgetter
from typing import Any, Generic, TypeVar

import psycopg
from server_process import ServerProcess

Row = tuple[Any, ...]
Connected = TypeVar("Connected")


def until(condition: Callable[[], bool], seconds: float = 120) -> None:
    """Wait for a condition."""
    ends_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends_s, "it did not come to it"
        time.sleep(0.02)


def state_of(connection: psycopg.Connection[Row]) -> Row:
    """State, phase, position, fault and reason of the only source."""
    return connection.execute(
        "SELECT state, phase, position, fault, reason FROM ducktail.sources"
    ).fetchall()[0]


class Load(Generic[Connected]):
    """Sessions that run random transactions until they are ended.

    Args:
        connect: makes a connection to the source; tried again while the source is away.
        away: the error that says so.
        transaction: runs one transaction.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractContextManager[Connected]],
        away: type[Exception],
        transaction: Callable[[Connected, random.Random], None],
        sessions: int,
        seed: int,
    ) -> None:
        self._connect = connect
        self._away = away
        self._transaction = transaction
        self._ending = threading.Event()
        self._mutex = threading.Lock()
        self.committed = 0
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(f"{seed} {number}"),), daemon=True)
            for number in range(sessions)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, chance: random.Random) -> None:
        while not self._ending.is_set():
            with contextlib.suppress(self._away), self._connect() as connection:
                while not self._ending.is_set():
                    self._transaction(connection, chance)
                    with self._mutex:
                        self.committed += 1
            self._ending.wait(0.05)

    def stop(self) -> None:
        """End the sessions."""
        self._ending.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()


def run_between_kills(
    server: ServerProcess,
    chance: random.Random,
    kills: int,
    seconds: float,
    others: Sequence[tuple[float, Callable[[], object]]],
) -> None:
    """Kill ducktail and start it again at random moments, while other things happen.

    Args:
        seconds: how long all of it takes.
        others: other steps, and the part of the time after which each begins.
    """

    def killed() -> None:
        server.kill()
        server.start()

    moments = [(chance.random(), killed) for _ in range(kills)]
    began_s = time.monotonic()
    for at, step in sorted([*moments, *others], key=itemgetter(0)):
        time.sleep(max(0.0, began_s + at * seconds - time.monotonic()))
        step()
    time.sleep(max(0.0, began_s + seconds - time.monotonic()))


def rows_of(connection: psycopg.Connection[Row], name: str) -> Counter[Row]:
    """The rows of a table, whose columns may stand in another order elsewhere."""
    cursor = connection.execute(f"SELECT * FROM {name}".encode())
    assert cursor.description is not None
    order = sorted(range(len(cursor.description)), key=lambda at: cursor.description[at].name)  # type: ignore[index]
    return Counter(tuple(_hashable(row[at]) for at in order) for row in cursor.fetchall())


def _hashable(value: object) -> object:
    return repr(value) if isinstance(value, list | dict) else value


def check_events(connection: psycopg.Connection[Row], stream: str) -> dict[str, Counter[str]]:
    """Fold the events of a stream; each must fit what came before, and each transaction be whole.

    Returns:
        Table -> the rows that a consumer has, as texts.
    """
    rows: dict[str, Counter[str]] = {}
    last: tuple[int, str] = (0, "")
    positions: set[str] = set()
    ended = True
    with connection.transaction(), connection.cursor("events") as cursor:
        cursor.execute(
            "SELECT op, table_name, before::text, after::text, txid, tx_last, headers->'source'->>'position' "
            f"FROM STREAM {stream}".encode()
        )
        for op, table, before, after, txid, tx_last, position in cursor:
            if op != "snapshot":
                assert (txid == last[0]) == (position == last[1]) or op == "schema", (txid, position, last)
                if txid != last[0]:
                    assert ended, f"transaction {last[0]} has no end"
                    assert position not in positions, f"{position} came twice"
                    positions.add(position)
                last, ended = (txid, position), tx_last
            there = rows.setdefault(table, Counter())
            if op == "schema":
                # The rows here have the old columns: a consumer alters its table.
                continue
            if op in ("update", "delete"):
                there[before] -= 1
            if op in ("update", "insert", "snapshot"):
                there[after] += 1
    return {table: +there for table, there in rows.items()}


def check_folded(connection: psycopg.Connection[Row], stream: str, table: str, mirror: str) -> None:
    """Fold the events of a table with the key `id`, whose columns change on the way, and compare its mirror.

    Rows are compared in the columns that both have under one name; a time is another text in JSON here and
    there, so that it is compared among the events only.
    """
    rows: dict[str, dict[str, object]] = {}
    with connection.transaction(), connection.cursor("folded") as cursor:
        cursor.execute(
            f"SELECT op, key::text, before::text, after::text FROM STREAM {stream} "
            f"WHERE table_name = '{table}' AND op <> 'schema'".encode()
        )
        for op, key, before, after in cursor:
            if op in ("update", "delete"):
                _check_same(rows.pop(key), json.loads(before))
            if op in ("update", "insert", "snapshot"):
                assert key not in rows, key
                rows[key] = json.loads(after)
    image = f"SELECT to_json(m)::text FROM (SELECT * EXCLUDE created FROM {mirror}) AS m"
    for (text,) in connection.execute(image.encode()).fetchall():
        row = json.loads(text)
        _check_same(rows.pop(f'{{"id":{row["id"]}}}'), row)
    assert rows == {}


def _check_same(one: dict[str, object], other: dict[str, object]) -> None:
    for name in one.keys() & other.keys():
        assert one[name] == other[name], name
