"""A stream from a real PostgreSQL under random transactions, kills of ducktail and restarts of the source."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import psycopg
import pytest
from amounts import amount, seed_of
from postgres_source import PostgresSource, running_source
from server_process import ServerProcess
from source_load import (
    Load,
    Row,
    check_events,
    check_folded,
    rows_of,
    run_between_kills,
    state_of,
    until,
)

pytestmark = pytest.mark.slow

SECONDS = amount("DUCKTAIL_SOURCE_SECONDS", 12, 120)
KILLS = amount("DUCKTAIL_SOURCE_KILLS", 3, 10)
LARGE = amount("DUCKTAIL_SOURCE_LARGE", 20_000, 200_000)
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


def transaction(connection: psycopg.Connection[Row], chance: random.Random) -> None:
    """One random transaction, some of whose statements are in savepoints; one of ten is rolled back."""
    statements = [statement(chance) for _ in range(chance.choice((1, 1, 2, 5, 15)))]
    if chance.random() < 0.01:
        statements.append("TRUNCATE scratch")
    refused = (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation)
    with contextlib.suppress(*refused), connection.transaction(force_rollback=chance.random() < 0.1):
        for text in statements:
            if chance.random() < 0.2:
                with contextlib.suppress(psycopg.errors.UniqueViolation), connection.transaction():
                    connection.execute(text.encode())
            else:
                connection.execute(text.encode())


def caught_up(source: PostgresSource, connection: psycopg.Connection[Row]) -> None:
    """Wait until a change that is made now is here."""
    source.run("INSERT INTO moves VALUES (-1, 'mark', 0)", "DELETE FROM moves WHERE a = -1")
    [(end,)] = source.run("SELECT pg_current_wal_lsn()::text")

    def is_here() -> bool:
        state, _, position, fault, reason = state_of(connection)
        assert state == "running", reason
        if position is None or fault is not None:
            return False
        here, there = (tuple(int(part, 16) for part in lsn.split("/")) for lsn in (position, end))
        return here >= there

    until(is_here)


def test_what_is_here_is_what_is_there(tmp_path: Path) -> None:
    chance = random.Random(seed_of("DUCKTAIL_SOURCE_SEED"))
    with (
        running_source("logical_decoding_work_mem=64kB") as source,
        ServerProcess(tmp_path / "shop.duckdb", ("--port", "0")) as server,
    ):
        source.run(*TABLES)
        load = Load(source.connect, psycopg.Error, transaction, 4, chance.randrange(1 << 30))
        until(lambda: load.committed > 100)
        with server.connect(autocommit=True) as connection:
            connection.execute(
                f"CREATE STREAM shop FROM POSTGRES '{source.conninfo}' TABLE {', '.join(NAMES)} "
                "WITH (retention = 'none')".encode()
            )
            for name in NAMES:
                connection.execute(f"CREATE TABLE {name} MIRROR OF STREAM shop TABLE {name}".encode())
        others = (
            (0.3, lambda: source.run("ALTER TABLE accounts ADD COLUMN extra int DEFAULT 7")),
            (0.45, lambda: source.stop("immediate") or source.start()),
            (
                0.5,
                lambda: source.run(
                    f"INSERT INTO moves SELECT i + 1000, 'large', i FROM generate_series(1, {LARGE}) i",
                    "UPDATE moves SET amount = amount + 1 WHERE b = 'large'",
                ),
            ),
            (0.6, lambda: source.run("ALTER TABLE accounts RENAME COLUMN at TO created")),
            (0.7, lambda: source.stop() or source.start()),
            (0.8, lambda: source.run("ALTER TABLE accounts DROP COLUMN extra")),
        )
        run_between_kills(server, chance, KILLS, SECONDS, others)
        load.stop()
        # The source tells a definition with the next change of the table.
        source.run("INSERT INTO accounts (id) VALUES (-1)")
        with server.connect(autocommit=True) as connection:
            caught_up(source, connection)
            with source.connect() as there:
                for name in NAMES:
                    assert rows_of(connection, name) == rows_of(there, name), name
            assert connection.execute("CHECK STREAM shop").fetchall() == []
            events = check_events(connection, "shop")
            for name in ("moves", "remarks", "scratch"):
                assert events[f"public.{name}"].total() == rows_of(connection, name).total(), name
            check_folded(connection, "shop", "public.accounts", "accounts")
            connection.execute("DROP STREAM shop CASCADE")
        assert source.run("SELECT slot_name FROM pg_replication_slots") == []
        assert source.run("SELECT pubname FROM pg_publication") == []
