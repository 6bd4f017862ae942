"""A psycopg consumer that comes after retention has passed gets a whole and right copy under write load.

The consumer is docs/examples/workers/whole_copy.py, a process of its own. While a writer changes the table,
consumer and server are killed (SIGKILL), and retention takes what the consumer has not read. In the end its
table is equal to the stream's.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import psycopg
from preloaded import Forked
from server_process import ServerProcess

PROGRAM = Path(__file__).resolve().parents[2] / "docs" / "examples" / "workers" / "whole_copy.py"
ROWS = 4000
ROUNDS = 3
# How long the rest may take once nobody is hindered any more.
CATCH_UP_S = 60.0


def write(server: ServerProcess, stopped: threading.Event) -> None:
    """Changes of rows until it is stopped."""
    rng = random.Random(1)
    while not stopped.wait(0.02):
        try:
            with server.connect() as connection:
                while not stopped.wait(0.02):
                    key = rng.randrange(ROWS)
                    connection.execute(f"UPDATE t SET v = v + 1 WHERE id BETWEEN {key} AND {key + 20}")
                    connection.execute(f"DELETE FROM t WHERE id = {rng.randrange(ROWS)}")
                    connection.execute(f"INSERT INTO t VALUES ({key}, 0) ON CONFLICT DO NOTHING")
        except psycopg.Error:
            continue


def started(server: ServerProcess, mirror: Path) -> Forked:
    # What it prints grows no file.
    with open(os.devnull, "wb") as nowhere:
        words = [server.conninfo, "s", "late", str(mirror)]
        return Forked(words, program=PROGRAM, stdout=nowhere.fileno())


def mirrored(path: Path) -> list[tuple[int, int]]:
    """The consumer's table; nothing where it has none yet."""
    try:
        with sqlite3.connect(path) as look:
            rows = [json.loads(row) for (row,) in look.execute("SELECT row FROM mirror")]
    except sqlite3.OperationalError:
        return []
    return sorted((row["id"], row["v"]) for row in rows)


def reached(server: ServerProcess, mirror: Path, rows: int) -> None:
    """Wait until the consumer has so many rows."""
    until = time.monotonic() + CATCH_UP_S
    while len(mirrored(mirror)) < rows:
        assert time.monotonic() < until, f"{len(mirrored(mirror))} rows"


def lose(connection: psycopg.Connection[Any]) -> None:
    """Retention takes all that there is now."""
    connection.execute("ALTER STREAM s SET (retention_bytes = 1)")
    until = time.monotonic() + CATCH_UP_S
    while not connection.execute("SELECT sum(trimmed_unread) > 0 FROM ducktail.offsets").fetchone()[0]:  # type: ignore[index]
        assert time.monotonic() < until, "retention has not passed"
    connection.execute("ALTER STREAM s SET (retention_bytes = '1 GB')")


def test_a_late_consumer_is_equal_in_the_end(tmp_path: Path) -> None:
    mirror, stopped, rng = tmp_path / "mirror.sqlite", threading.Event(), random.Random(2)
    with ServerProcess(tmp_path / "shop.duckdb", ("--port", "0", "--retention-interval-ms", "100")) as server:
        with server.connect() as connection:
            connection.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
            connection.execute(f"INSERT INTO t SELECT i, 0 FROM range({ROWS}) AS r (i)")
            connection.execute("CREATE STREAM s ON t WITH (partitions = 3)")
        writer = threading.Thread(target=write, args=(server, stopped))
        writer.start()
        consumer = started(server, mirror)
        try:
            for turn in range(ROUNDS):
                # In the midst of the copy, mostly; then everything that it has not read goes.
                reached(server, mirror, rng.randrange(1, ROWS // 2))
                consumer.kill()
                consumer.wait()
                if turn == 1:
                    server.kill()
                    server.start()
                with server.connect() as connection:
                    if turn:
                        lose(connection)
                consumer = started(server, mirror)
            stopped.set()
            writer.join()
            with server.connect() as connection:
                rows = connection.execute("SELECT id, v FROM t ORDER BY id").fetchall()
                until = time.monotonic() + CATCH_UP_S
                while (found := mirrored(mirror)) != rows:
                    assert time.monotonic() < until, set(found) ^ set(rows)
                copies = connection.execute("SELECT rows_left FROM ducktail.copies").fetchall()
                assert copies == [(0,)]
        finally:
            stopped.set()
            writer.join()
            consumer.kill()
            consumer.wait()
