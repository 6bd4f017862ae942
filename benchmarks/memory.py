"""How much memory the log and large statements take: `python benchmarks/memory.py`.

`log`: many events in the log, few of them buffered, and one reader that goes through all of them over
the wire; then the server is started anew. `bulk`: single statements that write millions of rows of a
captured table under a small memory limit. Each line says the time and the most resident memory of
the server process since the last one (Linux only).
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
from psycopg.types.string import TextLoader

MIB = 1 << 20
QUIET = ("--log-level", "warning")
# Rows of the table, and of one statement, while the log is filled.
ROWS_MAX = 1_000_000
LOAD = 100_000
FETCH = 10_000

TABLE = """
    CREATE TABLE orders (
        id BIGINT PRIMARY KEY, customer INTEGER, item VARCHAR, quantity INTEGER,
        price DECIMAL(12, 2), placed TIMESTAMP, shipped BOOLEAN, note VARCHAR
    )
"""
ROWS = """
    SELECT i, (i % 10007)::INTEGER, 'item ' || i % 997, (i % 9 + 1)::INTEGER, (i % 100000) / 100.0,
        TIMESTAMP '2024-01-01' + to_seconds(i), i % 3 = 0, repeat('n', (i % 40)::INTEGER)
    FROM range({first}, {last}) AS numbers (i)
"""


class Server:
    """A `ducktail serve` process on a file, and how much memory it takes."""

    def __init__(self, path: Path, *flags: str) -> None:
        command = [Path(sys.executable).with_name("ducktail"), "serve", path, "--port", "0", *QUIET, *flags]
        began = time.perf_counter()
        self.process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        line = next(line for line in self.process.stdout if line.startswith("listening on "))
        self.start_s = time.perf_counter() - began
        port = line.partition(",")[0].rpartition(":")[2].strip()
        self.conninfo = f"host=127.0.0.1 port={port} user=bench dbname=ducktail"
        self.connection = psycopg.connect(self.conninfo, autocommit=True)
        self.connection.adapters.register_loader("jsonb", TextLoader)

    def peak_mib(self) -> float:
        """Most resident memory since the last time it was asked."""
        process = Path("/proc") / str(self.process.pid)
        found = re.search(r"VmHWM:\s+(\d+) kB", (process / "status").read_text())
        assert found
        (process / "clear_refs").write_text("5")
        return int(found[1]) / 1024

    def report(self, what: str, work: Callable[[], int]) -> None:
        """Do some work and say what it took."""
        began = time.perf_counter()
        count = work()
        spent = time.perf_counter() - began
        print(f"{what:<44} {count:>11,} {spent:8.1f} s {self.peak_mib():8.0f} MiB", flush=True)

    def rows(self, statement: str) -> int:
        """Run a statement that writes; how many rows."""
        return self.connection.execute(statement).rowcount

    def close(self) -> None:
        """Stop it."""
        self.connection.close()
        self.process.terminate()
        self.process.communicate()


def fill(server: Server, events: int) -> int:
    """Make so many events: first inserts, then updates of the same rows."""
    for first in range(0, events, LOAD):
        place, rows = first % ROWS_MAX, min(LOAD, events - first)
        if first < ROWS_MAX:
            text = "INSERT INTO orders " + ROWS.format(first=place, last=place + rows)
        else:
            text = f"UPDATE orders SET quantity = {first} WHERE id BETWEEN {place} AND {place + rows - 1}"
        assert server.rows(text) == rows
    return events


def read_all(server: Server) -> int:
    """Read the stream from its start in batches, each checked to go on where the last ended."""
    lsn = count = 0
    while rows := server.connection.execute(
        f"SELECT * FROM STREAM orders_stream AFTER {lsn} LIMIT {FETCH}"
    ).fetchall():
        assert rows[0][0] == lsn + 1 and rows[-1][0] == lsn + len(rows), "events are missing"
        lsn, count = rows[-1][0], count + len(rows)
    return count


def stream_all(server: Server) -> int:
    """Read the stream in one answer, row by row."""
    with server.connection.cursor() as cursor:
        return sum(1 for _ in cursor.stream("SELECT * FROM STREAM orders_stream", size=FETCH))


def log(path: Path, events: int) -> None:
    """Many events, 64 MiB of buffers, little memory."""
    flags = ("--memory-limit-bytes", str(256 * MIB), "--buffer-bytes-total", str(64 * MIB))
    server = Server(path, *flags)
    server.connection.execute(TABLE)
    server.connection.execute("CREATE STREAM orders_stream ON orders WITH (partitions = 4)")
    server.report("log: written", lambda: fill(server, events))
    server.report("log: read in batches of 10,000", lambda: read_all(server))
    server.report("log: read in one answer", lambda: stream_all(server))
    server.close()
    server = Server(path, *flags)
    print(f"log: opened again in {server.start_s:.1f} s, {server.peak_mib():.0f} MiB", flush=True)
    server.report("log: read in batches of 10,000", lambda: read_all(server))
    server.close()


STATEMENTS = {
    "INSERT ... SELECT": "INSERT INTO orders SELECT * FROM source",
    "UPDATE (log first)": "UPDATE orders SET quantity = quantity + 1, note = 'changed'",
    "UPDATE ... FROM (staged)": "UPDATE orders SET quantity = s.quantity + 2 FROM source AS s "
    "WHERE s.id = orders.id",
    "upsert (staged)": "INSERT INTO orders SELECT * FROM source ON CONFLICT (id) DO UPDATE "
    "SET quantity = EXCLUDED.quantity + 3",
    "DELETE": "DELETE FROM orders",
    "INSERT ... SELECT again": "INSERT INTO orders SELECT * FROM source",
    "TRUNCATE": "TRUNCATE orders",
}


def bulk(path: Path, rows: int, limit: int) -> None:
    """Single statements of many rows."""
    server = Server(path, "--memory-limit-bytes", str(limit), "--buffer-bytes-total", str(64 * MIB))
    server.connection.execute(TABLE)
    server.connection.execute(TABLE.replace("orders", "source"))
    server.connection.execute("INSERT INTO source " + ROWS.format(first=0, last=rows))
    server.connection.execute("CREATE STREAM orders_stream ON orders WITH (partitions = 4)")
    print(f"bulk: memory limit {limit / MIB:,.0f} MiB, {server.peak_mib():.0f} MiB before", flush=True)
    for name, statement in STATEMENTS.items():
        server.report(f"bulk: {name}", lambda statement=statement: server.rows(statement))  # type: ignore[misc]
        server.report("bulk: its events published", lambda: published(server))
    server.close()


def published(server: Server) -> int:
    """Wait until every event is readable; how many there are."""
    found = server.connection.execute(
        "SELECT sum(events)::BIGINT FROM ducktail.partitions WHERE stream_name = 'orders_stream'"
    ).fetchone()
    assert found
    return int(found[0])


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("part", choices=("log", "bulk", "all"), nargs="?", default="all")
    parser.add_argument("--events", type=int, default=10_000_000, help="events in the log")
    parser.add_argument("--rows", type=int, default=5_000_000, help="rows of one statement")
    parser.add_argument("--memory-limit-mib", type=int, default=1000, help="for the large statements")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        if chosen.part in ("log", "all"):
            log(Path(directory) / "log.duckdb", chosen.events)
        if chosen.part in ("bulk", "all"):
            bulk(Path(directory) / "bulk.duckdb", chosen.rows, chosen.memory_limit_mib * MIB)


if __name__ == "__main__":
    main()
