"""A stream whose log is damaged, or whose table is gone, says so to every read, and stores nothing of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from local_client import Client, raises

from ducktail.engine.database import Database

DAMAGES = {
    "a row is missing": "DELETE FROM ducktail.log_2_1 WHERE n1 = 3",
    "a row is there twice": "INSERT INTO ducktail.log_2_1 FROM ducktail.log_2_1 WHERE n1 = 3",
    "a commit is missing": "DELETE FROM ducktail.commits WHERE last_lsn = 3",
    "a commit is there twice": "INSERT INTO ducktail.commits FROM ducktail.commits WHERE last_lsn = 3",
}
READS = [
    "SELECT * FROM {s}",
    "SELECT count(*) FROM {s}",
    "SELECT lsn FROM {s} WHERE op = 'insert'",
    "SELECT op, count(*) FROM {s} GROUP BY op",
    "SELECT max(lsn) FROM {s} WHERE partition = 0",
    "CREATE TABLE made AS SELECT lsn FROM {s}",
    "INSERT INTO sink SELECT lsn FROM {s}",
    "INSERT INTO sink SELECT lsn FROM {s} LIMIT 2",
    "WITH c AS (FROM {s}) SELECT a.lsn FROM c a JOIN sink USING (lsn)",
    "SELECT * FROM {s} LIMIT 3 TRANSACTIONS",
    "COPY (SELECT lsn FROM {s}) TO STDOUT",
    "SELECT (SELECT count(*) FROM {s})",
    "SELECT count(*) FROM {s} ENVELOPE CHANGES",
]
SOURCES = [
    "STREAM s",
    "STREAM s CONSUMER GROUP g",
    "STREAM s CONSUMER GROUP g MEMBER 'm'",
    "STREAM s AFTER 0",
]


def filled(path: Path) -> None:
    """A database with streams, groups and events."""
    database = Database.open(str(path))
    client = Client(database)
    client("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    client("CREATE STREAM s ON t WITH (partitions = 1)")
    client("CREATE CONSUMER GROUP g ON s")
    client("CREATE TABLE sink (lsn BIGINT)")
    for number in range(1, 6):
        client(f"INSERT INTO t VALUES ({number}, {number})")
    client("CREATE SCHEMA whole")
    client("CREATE TABLE whole.a (id INT PRIMARY KEY)")
    client("CREATE TABLE whole.b (id INT PRIMARY KEY)")
    client("CREATE STREAM w ON ALL TABLES IN SCHEMA whole")
    client("CREATE CONSUMER GROUP g ON w")
    client("INSERT INTO whole.a VALUES (1)")
    client.close()
    database.close()


def past_ducktail(path: Path, statement: str) -> None:
    with duckdb.connect(str(path)) as connection:
        connection.execute(statement)


@pytest.fixture(params=sorted(DAMAGES))
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    path = tmp_path / "damaged.duckdb"
    filled(path)
    past_ducktail(path, DAMAGES[request.param])
    database = Database.open(str(path))
    client = Client(database, wire=True)
    yield client
    client.close()
    database.close()


def test_every_read_of_a_damaged_log_says_so(damaged: Client) -> None:
    for read in READS:
        for source in SOURCES:
            if "AFTER" in source and "ENVELOPE" in read:
                continue
            with raises("XX001"):
                damaged(read.format(s=source))
            assert damaged("SELECT count(*) FROM sink") == [(0,)]
            if "GROUP" in source:
                with raises("55000"):
                    damaged(f"COMMIT OFFSETS ON s {source.removeprefix('STREAM s ')}")
    # Whoever reads something else is served.
    assert damaged.one("SELECT count(*) FROM t") == 5


def test_every_read_of_a_stream_over_a_table_that_is_gone_says_so(tmp_path: Path) -> None:
    path = tmp_path / "gone.duckdb"
    filled(path)
    past_ducktail(path, "DROP TABLE whole.a")
    database = Database.open(str(path))
    client = Client(database, wire=True)
    for read in READS:
        if "ENVELOPE" in read:
            continue
        for source in ("STREAM w", "STREAM w CONSUMER GROUP g", "STREAM w AFTER 0"):
            with raises("55000"):
                client(read.format(s=source))
    assert client.one("SELECT count(*) FROM STREAM s") == 5
    client.close()
    database.close()
