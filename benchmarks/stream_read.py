"""One consumer reads a stream in batches of 1,000 events and commits each batch: `make bench`.

Beside it, in the same run and by the same client, the same events from a PostgreSQL table with the
same columns and types: keyset reads of 1,000 rows, and an UPDATE of an offset row after each. Both
servers make each commit durable. The client leaves JSON as text on both sides. The two take turns,
and the figure is the median of the repeats.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import postgres
import psycopg
from psycopg.types.string import TextLoader

HERE = Path(__file__).resolve().parent
BATCH = 1000
# Rows of one INSERT while the stream is filled.
LOAD = 50_000

TABLE = """
    CREATE TABLE orders (
        id BIGINT PRIMARY KEY, customer INTEGER, item VARCHAR, quantity INTEGER, price DECIMAL(12, 2),
        currency VARCHAR, placed TIMESTAMP, shipped BOOLEAN, city VARCHAR, note VARCHAR
    )
"""
FILL = """
    INSERT INTO orders SELECT i, i % 10007, 'item ' || i % 997, i % 9 + 1, (i % 100000) / 100.0, 'EUR',
        TIMESTAMP '2024-01-01' + to_seconds(i), i % 3 = 0, 'city ' || i % 211,
        repeat('n', (i % 80) :: INTEGER)
    FROM range({first}, {last}) AS numbers (i)
"""
STREAM = "CREATE STREAM orders_stream ON orders WITH (buffer_bytes = '1 GB')"
HOT = """
    SELECT count(*), coalesce(sum((buffered_from_lsn IS DISTINCT FROM first_lsn) :: INTEGER), 0)
    FROM ducktail.partitions WHERE stream_name = 'orders_stream' AND first_lsn IS NOT NULL
"""
PEER = """
    CREATE TABLE events (
        lsn BIGINT PRIMARY KEY, partition INTEGER, op TEXT, table_name TEXT, key JSON, before JSON,
        after JSON, commit_time TIMESTAMPTZ, txid BIGINT, tx_seq INTEGER, tx_last BOOLEAN,
        schema_version INTEGER, headers JSON
    );
    CREATE TABLE offsets (reader TEXT PRIMARY KEY, committed_lsn BIGINT NOT NULL)
"""


@contextmanager
def ducktail_server(directory: Path) -> Iterator[str]:
    """A `ducktail serve` process on a new file; gives its conninfo."""
    command = [Path(sys.executable).with_name("ducktail"), "serve", directory / "bench.duckdb", "--port", "0"]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        line = next(line for line in process.stdout if line.startswith("listening on "))
        port = line.partition(",")[0].rpartition(":")[2]
        yield f"host=127.0.0.1 port={port} user=bench dbname=ducktail"
    finally:
        process.terminate()
        process.communicate()


def connect(conninfo: str) -> psycopg.Connection:
    """A connection that leaves JSON as text, as docs/clients.md says."""
    connection = psycopg.connect(conninfo, autocommit=True)
    # ducktail's JSON is jsonb, that of PostgreSQL's tables here is json.
    for name in ("json", "jsonb"):
        connection.adapters.register_loader(name, TextLoader)
    return connection


def read_ducktail(connection: psycopg.Connection, group: str) -> int:
    """Read and commit the whole stream; how many events there were."""
    read = f"SELECT * FROM STREAM orders_stream CONSUMER GROUP {group} LIMIT {BATCH}"
    commit = f"COMMIT OFFSETS ON orders_stream CONSUMER GROUP {group}"
    count = 0
    while events := connection.execute(read).fetchall():
        count += len(events)
        connection.execute(commit)
    return count


def read_postgres(connection: psycopg.Connection, reader: str) -> int:
    """Read and commit the whole table; how many rows there were."""
    read = f"SELECT * FROM events WHERE lsn > %s ORDER BY lsn LIMIT {BATCH}"
    commit = "UPDATE offsets SET committed_lsn = %s WHERE reader = %s"
    count = lsn = 0
    while events := connection.execute(read, [lsn]).fetchall():
        count += len(events)
        lsn = events[-1][0]
        connection.execute(commit, [lsn, reader])
    return count


def fill(ducktail: psycopg.Connection, peer: psycopg.Connection, events: int) -> None:
    """Make the events in ducktail and copy the very same rows into PostgreSQL."""
    ducktail.execute(TABLE)
    ducktail.execute(STREAM)
    for first in range(0, events, LOAD):
        ducktail.execute(FILL.format(first=first, last=min(first + LOAD, events)))
    peer.execute(PEER)
    read, lsn = "SELECT * FROM STREAM orders_stream AFTER {} LIMIT 10000", 0
    with peer.cursor().copy("COPY events FROM STDIN") as copy:
        while rows := ducktail.execute(read.format(lsn)).fetchall():
            lsn = rows[-1][0]
            for row in rows:
                copy.write_row(row)
    peer.execute("ANALYZE events")
    peer.execute("CHECKPOINT")


def timed(work: Callable[[], int], events: int) -> float:
    """Events a second; the count must be right."""
    start = time.perf_counter()
    count = work()
    seconds = time.perf_counter() - start
    assert count == events, f"{count} events of {events}"
    return count / seconds


def run(events: int, repeats: int, directory: Path) -> str:
    """The whole benchmark; the result as a Markdown table."""
    with (
        postgres.server() as peer_conninfo,
        ducktail_server(directory) as conninfo,
        connect(conninfo) as ducktail,
        connect(peer_conninfo) as peer,
    ):
        print(f"filling both with the same {events:,} events ...", flush=True)
        fill(ducktail, peer, events)
        assert ducktail.execute(HOT).fetchone() == (8, 0), "not all events are buffered"
        rates: dict[str, list[float]] = {"ducktail": [], "PostgreSQL": []}
        for turn in range(repeats):
            group = f"turn_{turn}"
            ducktail.execute(f"CREATE CONSUMER GROUP {group} ON orders_stream")
            peer.execute("INSERT INTO offsets VALUES (%s, 0)", [group])
            rates["ducktail"].append(timed(partial(read_ducktail, ducktail, group), events))
            rates["PostgreSQL"].append(timed(partial(read_postgres, peer, group), events))
            print("  ".join(f"{name} {found[-1]:>9,.0f}/s" for name, found in rates.items()), flush=True)
        partitions, cold = ducktail.execute(HOT).fetchone() or (0, 0)
        version = peer.info.parameter_status("server_version")
    return table(rates, events, f"PostgreSQL {version}", partitions, cold)


def table(rates: dict[str, list[float]], events: int, peer: str, partitions: int, cold: int) -> str:
    """The result as a small Markdown page."""
    medians = {name: statistics.median(found) for name, found in rates.items()}
    lines = [
        "# A consumer with a commit per batch",
        "",
        f"{events:,} hot events, batches of {BATCH:,}, one psycopg {psycopg.__version__} consumer, "
        f"{len(rates['ducktail'])} turns each; Python {platform.python_version()}, {os.cpu_count()} cores. "
        f"Partitions with events outside the buffer: {cold} of {partitions}.",
        "",
        "| server | events/s, median | lowest | highest |",
        "|---|---:|---:|---:|",
    ]
    for name, label in (("ducktail", "ducktail"), ("PostgreSQL", peer)):
        found = rates[name]
        lines.append(f"| {label} | {medians[name]:,.0f} | {min(found):,.0f} | {max(found):,.0f} |")
    ratio = medians["ducktail"] / medians["PostgreSQL"]
    return "\n".join([*lines, "", f"ducktail : {peer} = **{ratio:.2f}**", ""])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "stream_read.md")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        page = run(arguments.events, arguments.repeats, Path(directory))
    arguments.output.parent.mkdir(exist_ok=True)
    arguments.output.write_text(page)
    print(f"\n{page}\nwritten to {arguments.output}")


if __name__ == "__main__":
    main()
