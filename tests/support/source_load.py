"""Random transactions on a database that feeds a stream, and what its copies here must have."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

Row = tuple[Any, ...]

TABLES = (
    "CREATE TABLE accounts (id int PRIMARY KEY, name text, note text, amount numeric(12,2), tags text[], "
    "at timestamptz DEFAULT now())",
    "ALTER TABLE accounts ALTER COLUMN note SET STORAGE EXTERNAL",
    "CREATE TABLE moves (a int, b text, amount float8, PRIMARY KEY (a, b))",
    "CREATE TABLE remarks (who text, what text)",
    "ALTER TABLE remarks REPLICA IDENTITY FULL",
    "CREATE TABLE scratch (id int PRIMARY KEY, v jsonb)",
)
NAMES = ("accounts", "moves", "remarks", "scratch")
ACCOUNTS, MOVES = 300, 60


def statement(chance: random.Random) -> str:
    """One random change."""
    account = chance.randrange(ACCOUNTS)
    note = "NULL" if chance.random() < 0.3 else f"repeat(md5('{chance.random()}'), {chance.choice((1, 120))})"
    match chance.randrange(14):
        case 0 | 1 | 2:
            return (
                "INSERT INTO accounts (id, name, note, amount, tags) "
                f"VALUES ({account}, 'n{account}', {note}, {chance.randrange(10_000)}.25, "
                f"ARRAY['x', 'y{chance.randrange(9)}']) ON CONFLICT (id) "
                "DO UPDATE SET name = excluded.name || '.', amount = excluded.amount"
            )
        case 3 | 4:
            return (
                f"UPDATE accounts SET amount = amount + 1, tags = tags || NULL WHERE id % 50 = {account % 50}"
            )
        case 5:
            return f"UPDATE accounts SET note = {note} WHERE id = {account}"
        case 6:
            free = f"NOT EXISTS (SELECT FROM accounts WHERE id = {account + ACCOUNTS})"
            return f"UPDATE accounts SET id = id + {ACCOUNTS} WHERE id = {account} AND {free}"
        case 7:
            return f"DELETE FROM accounts WHERE id IN ({account}, {account + ACCOUNTS})"
        case 8 | 9:
            a, b = chance.randrange(MOVES), chance.choice("pqr")
            return (
                f"INSERT INTO moves VALUES ({a}, '{b}', {chance.random()}) ON CONFLICT (a, b) DO UPDATE "
                "SET amount = excluded.amount"
            )
        case 10:
            return f"DELETE FROM moves WHERE a = {chance.randrange(MOVES)}"
        case 11:
            return f"INSERT INTO remarks VALUES ('{chance.choice('abc')}', '{chance.choice('xyz')}')"
        case 12:
            who, what = chance.choice("abc"), chance.choice("xyz")
            one = f"SELECT ctid FROM remarks WHERE who = '{who}' LIMIT 1"
            if chance.random() < 0.5:
                return f"DELETE FROM remarks WHERE ctid IN ({one})"
            return f"UPDATE remarks SET what = '{what}' WHERE ctid IN ({one})"
        case _:
            number = chance.randrange(30)
            return (
                f"INSERT INTO scratch VALUES ({number}, '{{\"n\": {number}}}') ON CONFLICT (id) DO UPDATE "
                "SET v = scratch.v || '{\"again\": true}'"
            )


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


class Load:
    """Sessions that run random transactions until they are ended.

    Args:
        connect: makes a connection to the source; tried again while the source is away.
    """

    def __init__(self, connect: Callable[[], psycopg.Connection[Row]], sessions: int, seed: int) -> None:
        self._connect = connect
        self._ending = threading.Event()
        self.committed = 0
        self._mutex = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(f"{seed} {number}"),), daemon=True)
            for number in range(sessions)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, chance: random.Random) -> None:
        while not self._ending.is_set():
            with contextlib.suppress(psycopg.Error), self._connect() as connection:
                while not self._ending.is_set():
                    self._transaction(connection, chance)
            self._ending.wait(0.05)

    def _transaction(self, connection: psycopg.Connection[Row], chance: random.Random) -> None:
        statements = [statement(chance) for _ in range(chance.choice((1, 1, 2, 5, 15)))]
        if chance.random() < 0.01:
            statements.append("TRUNCATE scratch")
        try:
            with connection.transaction(force_rollback=chance.random() < 0.1):
                for text in statements:
                    if chance.random() < 0.2:
                        with contextlib.suppress(psycopg.errors.UniqueViolation), connection.transaction():
                            connection.execute(text.encode())
                    else:
                        connection.execute(text.encode())
            with self._mutex:
                self.committed += 1
        except (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
            pass

    def stop(self) -> None:
        """End the sessions."""
        self._ending.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()


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


def missing(events: dict[str, Counter[str]], table: str, rows: Sequence[str]) -> Counter[str]:
    """The rows that the folded events lack."""
    return Counter(rows) - events.get(table, Counter())
