"""A stream from a real PostgreSQL under random transactions, kills of ducktail and restarts of the source."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import psycopg
import pytest
from amounts import amount, seed_of
from postgres_source import PostgresSource, running_source
from server_process import ServerProcess
from source_load import NAMES, TABLES, Load, Row, check_events, rows_of, state_of, until

pytestmark = pytest.mark.slow

SECONDS = amount("DUCKTAIL_SOURCE_SECONDS", 12, 120)
KILLS = amount("DUCKTAIL_SOURCE_KILLS", 3, 10)
LARGE = amount("DUCKTAIL_SOURCE_LARGE", 20_000, 200_000)


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
        load = Load(source.connect, 4, chance.randrange(1 << 30))
        until(lambda: load.committed > 100)
        with server.connect(autocommit=True) as connection:
            connection.execute(
                f"CREATE STREAM shop FROM POSTGRES '{source.conninfo}' TABLE {', '.join(NAMES)} "
                "WITH (retention = 'none')".encode()
            )
            for name in NAMES:
                connection.execute(f"CREATE TABLE {name} MIRROR OF STREAM shop TABLE {name}".encode())
        moments = sorted(chance.uniform(0.5, SECONDS) for _ in range(KILLS))
        others = [
            (SECONDS * 0.3, lambda: source.run("ALTER TABLE accounts ADD COLUMN extra int DEFAULT 7")),
            (SECONDS * 0.45, lambda: source.stop("immediate") or source.start()),
            (
                SECONDS * 0.5,
                lambda: source.run(
                    f"INSERT INTO moves SELECT i + 1000, 'large', i FROM generate_series(1, {LARGE}) i",
                    "UPDATE moves SET amount = amount + 1 WHERE b = 'large'",
                ),
            ),
            (SECONDS * 0.6, lambda: source.run("ALTER TABLE accounts RENAME COLUMN at TO created")),
            (SECONDS * 0.7, lambda: source.stop() or source.start()),
            (SECONDS * 0.8, lambda: source.run("ALTER TABLE accounts DROP COLUMN extra")),
        ]
        plan = sorted([*((at, server.kill) for at in moments), *others], key=lambda step: step[0])
        began_s = time.monotonic()
        for at, step in plan:
            time.sleep(max(0.0, began_s + at - time.monotonic()))
            step()
            if step == server.kill:
                server.start()
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
            assert all(count > 0 for counts in events.values() for count in Counter(counts).values())
            connection.execute("DROP STREAM shop CASCADE")
        assert source.run("SELECT slot_name FROM pg_replication_slots") == []
        assert source.run("SELECT pubname FROM pg_publication") == []
