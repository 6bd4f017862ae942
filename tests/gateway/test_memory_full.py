"""A server whose memory for DuckDB is full: statements are 53200, and nothing is worse than that."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import psycopg
import pytest
from server_process import ServerProcess

pytestmark = pytest.mark.slow

OUT_OF_MEMORY = "53200"
MEMORY = ("--port", "0", "--memory-limit-bytes", str(64 << 20), "--temp-bytes-max", "0")
END_TIMEOUT_S = 20.0
# Rows that are added until there is room for none of this many.
ROWS = (100_000, 10_000, 1000, 100)

STATEMENTS = """
SELECT * FROM t
SELECT * FROM other.t
SELECT count(*) FROM pg_class
SELECT * FROM information_schema.tables
SELECT * FROM ducktail.streams
SELECT * FROM STREAM s LIMIT 3
SELECT * FROM STREAM s CONSUMER GROUP g LIMIT 3
INSERT INTO t SELECT max(i) + 1, 'x' FROM t
INSERT INTO t VALUES ({n}, 'x')
UPDATE t SET v = 'y' WHERE i < 100
INSERT INTO other.t (i) VALUES ({n})
CREATE TABLE other.made_{n} (i INT PRIMARY KEY)
CREATE VIEW other.seen_{n} AS SELECT * FROM other.t
CREATE STREAM made_{n} ON other.t
CREATE TABLE copy_{n} AS SELECT * FROM t
ALTER TABLE other.t ADD COLUMN c{n} INT
PREPARE p{n} AS SELECT * FROM t WHERE i = $1
SHOW STREAMS
CHECK STREAM s
DESCRIBE t
EXPLAIN SELECT * FROM t
SET search_path = 'other, main'
SET search_path = 'main'
DROP VIEW IF EXISTS other.seen_{n}
""".strip().splitlines()


def fill(hog: psycopg.Connection) -> None:
    """Take all memory that temporary tables can have."""
    numbers = itertools.count()
    for rows in ROWS:
        values = f"SELECT hash(i), 'x' || hash(i + 1) FROM range({rows}) AS r(i)"
        while True:
            try:
                hog.execute(f"CREATE TEMP TABLE big_{next(numbers)} AS {values}")
            except psycopg.errors.OutOfMemory:
                break


def when_there_is_memory(client: psycopg.Connection, statement: str) -> list[tuple[object, ...]]:
    """The rows of a statement, once the session that had taken the memory has ended."""
    until = time.monotonic() + END_TIMEOUT_S
    while True:
        try:
            return client.execute(statement).fetchall()
        except psycopg.errors.OutOfMemory:
            assert time.monotonic() < until, "the memory of a session that has ended is still taken"


def test_every_error_is_that_memory_is_full(serve: Callable[..., ServerProcess]) -> None:
    server = serve(options=MEMORY)
    with server.connect() as client, server.connect() as hog:
        for statement in (
            "CREATE SCHEMA other",
            "CREATE TABLE t (i INT PRIMARY KEY, v VARCHAR)",
            "CREATE TABLE other.t (i INT)",
            "CREATE STREAM s ON t",
            "CREATE CONSUMER GROUP g ON s",
            "INSERT INTO t SELECT i, 'x' FROM range(10000) AS r(i)",
        ):
            client.execute(statement)
        fill(hog)
        client.execute("SET lock_timeout = 1")
        told = []
        for n in range(100_000, 100_004):
            for statement in STATEMENTS:
                try:
                    client.execute(statement.format(n=n))
                except psycopg.Error as error:
                    told.append((error.sqlstate, statement, error.diag.message_primary))
            try:
                server.connect().close()
            except psycopg.Error as error:
                told.append((OUT_OF_MEMORY if "memory" in str(error).lower() else None, "", str(error)))
        assert told, "memory was not full"
        assert [each for each in told if each[0] != OUT_OF_MEMORY] == []
        hog.close()
        # Without a further write, which would have the log read again.
        logged = when_there_is_memory(client, "SELECT count(*) FROM s")
        assert when_there_is_memory(client, "SELECT count(*) FROM STREAM s") == logged


WRITES = {
    "s": "INSERT INTO t VALUES (1, repeat('x', 4000000))",
    "e": "PUBLISH TO e SELECT repeat('x', 4000000)",
}


@pytest.mark.parametrize("stream", WRITES)
def test_a_write_waits_for_memory_as_for_a_lock(serve: Callable[..., ServerProcess], stream: str) -> None:
    server = serve(options=MEMORY)
    with server.connect() as client, server.connect() as other, server.connect() as hog:
        client.execute("CREATE TABLE t (i INT PRIMARY KEY, v VARCHAR)")
        client.execute("CREATE STREAM s ON t")
        client.execute("CREATE TOPIC e")
        fill(hog)
        statement = WRITES[stream]
        client.execute("SET lock_timeout = 1")
        with pytest.raises(psycopg.errors.OutOfMemory):
            client.execute(statement)
        client.execute(f"SET lock_timeout = {int(END_TIMEOUT_S * 1000)}")
        client.execute("BEGIN")
        with pytest.raises(psycopg.errors.OutOfMemory):  # What it ran before is gone: at once.
            client.execute(statement)
        client.execute("ROLLBACK")
        client.pgconn.send_query(statement.encode())
        other.execute("SET lock_timeout = 1000")
        for _ in range(3):  # Who holds the writer lock now has had it behind the first try of that one.
            with pytest.raises(psycopg.errors.OutOfMemory):
                other.execute(statement)
        hog.close()
        while (result := client.pgconn.get_result()) is not None:
            assert result.status != psycopg.pq.ExecStatus.FATAL_ERROR, result.error_message
        assert when_there_is_memory(other, f"SELECT count(*) FROM STREAM {stream}") == [(1,)]
