"""A stream from a real MariaDB under random transactions, kills of ducktail and restarts of the source."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from functools import partial
from pathlib import Path

import psycopg
import pymysql
import pytest
from amounts import amount, seed_of
from mariadb_process import MariadbServer
from pymysql.constants import ER
from server_process import ServerProcess
from source_load import Load, Row, check_events, check_folded, run_between_kills, state_of, until

pytestmark = pytest.mark.slow

SECONDS = amount("DUCKTAIL_SOURCE_SECONDS", 10, 120)
KILLS = amount("DUCKTAIL_SOURCE_KILLS", 3, 10)
LARGE = amount("DUCKTAIL_SOURCE_LARGE", 20_000, 200_000)
NAMES = ("accounts", "moves", "scratch")
TABLES = (
    "CREATE TABLE accounts (id INT PRIMARY KEY, name VARCHAR(40), note LONGTEXT, amount DECIMAL(12,2), "
    "kind ENUM('a', 'b', 'c'), at DATETIME(6) DEFAULT CURRENT_TIMESTAMP(6))",
    "CREATE TABLE moves (a INT, b VARCHAR(9), amount DOUBLE, PRIMARY KEY (a, b))",
    "CREATE TABLE scratch (id BIGINT UNSIGNED, v VARBINARY(20))",
)


def statement(chance: random.Random) -> str:
    account = chance.randrange(200)
    match chance.randrange(10):
        case 0 | 1 | 2:
            return (
                f"INSERT INTO accounts (id, name, note, amount, kind) VALUES ({account}, 'n{account}', "
                f"REPEAT('{chance.choice('xyz')}', {chance.choice((3, 4000))}), {chance.randrange(9999)}.25, "
                f"'{chance.choice('abc')}') ON DUPLICATE KEY UPDATE amount = amount + 1"
            )
        case 3:
            return f"UPDATE accounts SET amount = amount + 1 WHERE id MOD 20 = {account % 20}"
        case 4:
            return f"UPDATE IGNORE accounts SET id = id + 200 WHERE id = {account}"
        case 5:
            return f"DELETE FROM accounts WHERE id IN ({account}, {account + 200})"
        case 6 | 7:
            move = f"{chance.randrange(40)}, '{chance.choice('pqr')}'"
            return f"REPLACE INTO moves VALUES ({move}, {chance.random()})"
        case 8:
            return (
                f"INSERT INTO scratch VALUES ({chance.randrange(5)}, UNHEX('{chance.randrange(16):02x}ff'))"
            )
        case _:
            return f"DELETE FROM scratch WHERE id = {chance.randrange(5)} LIMIT 1"


def transaction(connection: pymysql.Connection, chance: random.Random) -> None:
    """One random transaction; one of ten is rolled back."""
    with contextlib.suppress(pymysql.err.IntegrityError), connection.cursor() as cursor:
        cursor.execute("BEGIN")
        for _ in range(chance.choice((1, 1, 3, 12))):
            cursor.execute(statement(chance))
        cursor.execute("ROLLBACK" if chance.random() < 0.1 else "COMMIT")


def ask(source: MariadbServer, *statements: str) -> None:
    """Run statements beside the load, each again while a deadlock ends it."""
    for text in statements:
        while True:
            try:
                source.ask(text)
                break
            except pymysql.err.OperationalError as error:
                if error.args[0] != ER.LOCK_DEADLOCK:
                    raise


def rows_there(source: MariadbServer, name: str) -> Counter[Row]:
    names = [row[0] for row in source.ask(f"SHOW COLUMNS FROM {name}")]
    rows = source.ask(f"SELECT {', '.join(sorted(map(str, names)))} FROM {name}")
    return Counter(tuple(row) for row in rows)


def rows_here(connection: psycopg.Connection[Row], name: str) -> Counter[Row]:
    cursor = connection.execute(f"SELECT * FROM {name}".encode())
    assert cursor.description is not None
    order = sorted(range(len(cursor.description)), key=lambda at: cursor.description[at].name)  # type: ignore[index]
    return Counter(tuple(row[at] for at in order) for row in cursor.fetchall())


def test_what_is_here_is_what_is_there(tmp_path: Path) -> None:
    chance = random.Random(seed_of("DUCKTAIL_SOURCE_SEED"))
    with (
        MariadbServer(tmp_path / "source", {"binlog-row-metadata": "FULL"}) as source,
        ServerProcess(tmp_path / "shop.duckdb", ("--port", "0")) as server,
    ):
        source.ask(*TABLES)
        connect = partial(source.connect, "shop")
        load = Load(connect, pymysql.Error, transaction, 4, chance.randrange(1 << 30))
        until(lambda: load.committed > 100)
        with server.connect(autocommit=True) as connection:
            connection.execute(
                f"CREATE STREAM shop FROM MYSQL '{source.url}' TABLE shop.accounts, moves, scratch "
                "WITH (retention = 'none')".encode()
            )
            for name in NAMES:
                connection.execute(f"CREATE TABLE {name} MIRROR OF STREAM shop TABLE {name}".encode())
        others = (
            (0.3, lambda: ask(source, "ALTER TABLE accounts ADD COLUMN extra INT DEFAULT 7 AFTER name")),
            (0.45, source.restart),
            (
                0.5,
                lambda: ask(
                    source,
                    f"INSERT INTO moves SELECT seq + 1000, 'large', seq FROM seq_1_to_{LARGE}",
                    "UPDATE moves SET amount = amount + 1 WHERE b = 'large'",
                ),
            ),
            (0.6, lambda: ask(source, "ALTER TABLE accounts RENAME COLUMN at TO created")),
            (0.7, lambda: ask(source, "TRUNCATE scratch")),
            (0.75, source.restart),
            (0.8, lambda: ask(source, "ALTER TABLE accounts DROP COLUMN extra")),
        )
        run_between_kills(server, chance, KILLS, SECONDS, others)
        load.stop()
        source.ask("INSERT INTO moves VALUES (-1, 'mark', 0)")
        with server.connect(autocommit=True) as connection:

            def is_here() -> bool:
                state, *_, reason = state_of(connection)
                assert state == "running", reason
                return bool(connection.execute("SELECT 1 FROM moves WHERE a = -1").fetchall())

            until(is_here)
            for name in NAMES:
                assert rows_here(connection, name) == rows_there(source, name), name
            assert connection.execute("CHECK STREAM shop").fetchall() == []
            events = check_events(connection, "shop")
            for name in ("moves", "scratch"):
                assert events[f"shop.{name}"].total() == rows_here(connection, name).total(), name
            check_folded(connection, "shop", "shop.accounts", "accounts")
            connection.execute("DROP STREAM shop CASCADE")
