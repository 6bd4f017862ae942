"""Changes brought in from PostgreSQL and MariaDB: `make bench`.

changes     single-row changes (half inserts, four of ten updates, a tenth deletes) in transactions of
            ten, made while the stream pauses; from RESUME until all are readable. Beside pg_recvlogical
            on another slot, to /dev/null
copy        the initial copy, from CREATE STREAM until its rows are readable. Beside psql's COPY to a file
latency     100 transactions of one row a second; from the answer to COMMIT there to the row at a reader
            that waits here
memory      the most that the server has taken, after one transaction of many rows
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import memory
import postgres
import psycopg
from stream_read import HERE

sys.path.insert(0, str(HERE.parent / "tests" / "support"))
from mariadb_process import MariadbServer

Connection = psycopg.Connection[Any]
ROWS_A_TRANSACTION = 10
LOAD = """
CREATE PROCEDURE load(first int, number int) LANGUAGE plpgsql AS $$ BEGIN
    FOR i IN first..first + number - 1 LOOP
        IF i % 10 < 5 THEN INSERT INTO small VALUES (i, 'item ' || i, i / 4.0, now());
        ELSIF i % 10 < 9 THEN UPDATE small SET price = price + 1 WHERE id = i - 5;
        ELSE DELETE FROM small WHERE id = i - 9; END IF;
        IF i % 10 = 9 THEN COMMIT; END IF;
    END LOOP;
END $$
"""
MARIADB_LOAD = """
CREATE PROCEDURE fill(first int, number int) BEGIN
    DECLARE i INT DEFAULT first;
    WHILE i < first + number DO
        START TRANSACTION;
        INSERT INTO small VALUES (i, 'item', i / 4, NOW()), (i + 1, 'item', i / 4, NOW()),
            (i + 2, 'item', i / 4, NOW()), (i + 3, 'item', i / 4, NOW()), (i + 4, 'item', i / 4, NOW());
        UPDATE small SET price = price + 1 WHERE id BETWEEN i AND i + 3;
        DELETE FROM small WHERE id = i;
        COMMIT;
        SET i = i + 10;
    END WHILE;
END
"""


def until(condition: Callable[[], bool], seconds: float = 300) -> None:
    """Wait for a condition."""
    ends_s = time.perf_counter() + seconds
    while not condition():
        assert time.perf_counter() < ends_s, "it does not come to the end"
        time.sleep(0.005)


def streaming(here: Connection) -> None:
    """Wait until the source is read."""

    def is_streaming() -> bool:
        [(state, phase, reason)] = here.execute(
            "SELECT state, phase, reason FROM ducktail.sources"
        ).fetchall()
        assert state == "running", reason
        return bool(phase == "streaming")

    until(is_streaming)


def count(here: Connection) -> int:
    """The readable events of the stream."""
    [(events,)] = here.execute("SELECT sum(events)::bigint FROM ducktail.partitions").fetchall()
    return int(events)


def replayed(here: Connection, changes: int) -> float:
    """Changes a second from RESUME until all are readable."""
    before = count(here)
    began_s = time.perf_counter()
    here.execute("RESUME STREAM s")
    until(lambda: count(here) == before + changes)
    return changes / (time.perf_counter() - began_s)


def paused(here: Connection, there: Callable[[], bool]) -> None:
    """Pause the stream, until the source knows."""
    here.execute("PAUSE STREAM s")
    until(there)


def received(conninfo: str, slot: str, changes: int, end: str) -> float:
    """Changes a second of pg_recvlogical."""
    command = [
        str(postgres.programs() / "pg_recvlogical"), "-d", conninfo, "--slot", slot, "--start",
        "-f", "/dev/null", "-o", "proto_version=2", "-o", "publication_names=peer", "--endpos", end,
        "--no-loop",
    ]  # fmt: skip
    began_s = time.perf_counter()
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return changes / (time.perf_counter() - began_s)


def latencies(conninfo: str, server: memory.Server, seconds: float) -> list[float]:
    """Milliseconds of each transaction."""
    sent: dict[int, float] = {}
    found: list[float] = []
    total = int(seconds * 100)
    [(last,)] = server.connection.execute("SELECT max(lsn) FROM STREAM s").fetchall()
    ready = threading.Event()

    def read(after: int) -> None:
        with psycopg.connect(server.conninfo, autocommit=True) as reader:
            ready.set()
            while len(found) < total:
                sql = f"SELECT lsn, (after->>'id')::int FROM STREAM s AFTER {after} WAIT '10 s' LIMIT 1000"
                rows = reader.execute(sql.encode()).fetchall()
                now_s = time.perf_counter()
                after = rows[-1][0]
                for _, number in rows:
                    while number not in sent:
                        time.sleep(0.0001)  # The answer to COMMIT is on its way to the writer.
                    found.append(1000 * (now_s - sent[number]))

    thread = threading.Thread(target=read, args=(last,))
    thread.start()
    ready.wait()
    with psycopg.connect(conninfo, autocommit=True) as writer:
        begun_s = time.perf_counter()
        for number in range(total):
            time.sleep(max(0.0, begun_s + number / 100 - time.perf_counter()))
            writer.execute("INSERT INTO small VALUES (%s, 'now', 1, now())", [-1 - number])
            sent[-1 - number] = time.perf_counter()
    thread.join(60)
    assert len(found) == total
    return sorted(found)


@contextlib.contextmanager
def ducktail() -> Iterator[memory.Server]:
    """A server on a new file."""
    with tempfile.TemporaryDirectory() as folder:
        server = memory.Server(Path(folder) / "bench.duckdb")
        try:
            yield server
        finally:
            server.close()


def from_postgres(changes: int, rows: int, seconds: float, turns: int) -> Iterator[tuple[str, str]]:
    """The figures of PostgreSQL."""
    settings = ("wal_level=logical", "max_wal_size=4GB")
    with postgres.server(*settings) as conninfo, psycopg.connect(conninfo, autocommit=True) as there:
        there.execute(
            "CREATE TABLE small (id int PRIMARY KEY, item text, price numeric(12,2), at timestamptz)"
        )
        there.execute(LOAD)
        there.execute("CREATE PUBLICATION peer FOR TABLE small")
        there.execute(
            f"INSERT INTO small SELECT i, 'item', 1, now() FROM generate_series(-{rows}, -1) i".encode()
        )
        copies, copied = [], []
        for _ in range(turns):
            with ducktail() as server:
                began_s = time.perf_counter()
                server.connection.execute(f"CREATE STREAM s FROM POSTGRES '{conninfo}' TABLE small".encode())
                until(lambda server=server: count(server.connection) == rows)  # type: ignore[misc]
                copies.append(rows / (time.perf_counter() - began_s))
                server.connection.execute("DROP STREAM s CASCADE")
            with tempfile.NamedTemporaryFile() as file:
                began_s = time.perf_counter()
                copy = ["psql", conninfo, "-c", f"\\copy small TO '{file.name}'"]
                subprocess.run(copy, check=True, stdout=subprocess.DEVNULL)
                copied.append(rows / (time.perf_counter() - began_s))
        yield from _beside("initial copy, rows/s", copies, "psql's COPY", copied, 0.5)
        there.execute("TRUNCATE small")
        with ducktail() as server:
            here = server.connection
            here.execute(f"CREATE STREAM s FROM POSTGRES '{conninfo}' TABLE small".encode())
            streaming(here)
            rates, peers = [], []
            inactive = "SELECT count(*) FROM pg_replication_slots WHERE active"
            for turn in range(turns):
                paused(here, lambda: there.execute(inactive).fetchall() == [(0,)])
                there.execute("SELECT pg_create_logical_replication_slot('peer', 'pgoutput')")
                there.execute(f"CALL load({turn * changes}, {changes})".encode())
                [(end,)] = there.execute("SELECT pg_current_wal_lsn()::text").fetchall()
                rates.append(replayed(here, changes))
                peers.append(received(conninfo, "peer", changes, end))
                there.execute("SELECT pg_drop_replication_slot('peer')")
            yield from _beside("changes/s", rates, "pg_recvlogical", peers, None)
            found = latencies(conninfo, server, seconds)
            middle, late = found[len(found) // 2], found[int(len(found) * 0.99)]
            yield "latency at 100 transactions/s, p50", f"{middle:.1f} ms"
            yield "the same, p99", f"{late:.1f} ms"
            before = server.peak_mib()
            numbers = f"generate_series(10000000, {9999999 + rows})"
            there.execute(f"INSERT INTO small SELECT i, 'item', 1, now() FROM {numbers} i".encode())
            events = count(here) + rows
            until(lambda: count(here) >= events)
            yield (
                f"memory before and with a transaction of {rows:,} rows",
                f"{before:.0f}, {server.peak_mib():.0f} MiB",
            )


def from_mariadb(changes: int, turns: int) -> Iterator[tuple[str, str]]:
    """The figures of MariaDB."""
    with (
        tempfile.TemporaryDirectory() as folder,
        MariadbServer(Path(folder) / "mariadb") as source,
        ducktail() as server,
    ):
        source.ask(
            "CREATE TABLE small (id INT PRIMARY KEY, item VARCHAR(20), price DECIMAL(12,2), at DATETIME)"
        )
        source.ask(MARIADB_LOAD)
        here = server.connection
        here.execute(f"CREATE STREAM s FROM MYSQL '{source.url}' TABLE small".encode())
        streaming(here)
        rates = []
        for turn in range(turns):
            here.execute("PAUSE STREAM s")
            source.ask(f"CALL fill({turn * changes}, {changes})")
            rates.append(replayed(here, changes))
        yield (
            "MariaDB, changes/s",
            f"{statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})",
        )


def _beside(
    what: str, own: list[float], peer: str, others: list[float], least: float | None
) -> Iterator[tuple[str, str]]:
    ratio = statistics.median(a / b for a, b in zip(own, others, strict=True))
    yield f"PostgreSQL, {what}", f"{statistics.median(own):,.0f} ({min(own):,.0f} to {max(own):,.0f})"
    bar = "" if least is None else f" (at least {least})"
    yield f"the same by {peer}; ratio{bar}", f"{statistics.median(others):,.0f}; {ratio:.2f}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--changes", type=int, default=200_000, help="a multiple of ten")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "sources_in.md")
    given = parser.parse_args()
    lines = [
        "# Changes brought in",
        "",
        f"{given.changes:,} changes in transactions of {ROWS_A_TRANSACTION}, {given.rows:,} rows; medians of "
        f"{given.turns} turns, with the lowest and the highest; Python {platform.python_version()}, "
        f"{os.cpu_count()} cores, which the source shares.",
        "",
        "| figure | |",
        "|---|---:|",
    ]
    figures = from_postgres(given.changes, given.rows, given.seconds, given.turns)
    for name, value in figures:
        print(f"{name:<60} {value}", flush=True)
        lines.append(f"| {name} | {value} |")
    for name, value in from_mariadb(given.changes, given.turns):
        print(f"{name:<60} {value}", flush=True)
        lines.append(f"| {name} | {value} |")
    given.output.parent.mkdir(exist_ok=True)
    given.output.write_text("\n".join([*lines, ""]))
    print(f"\nwritten to {given.output}")


if __name__ == "__main__":
    main()
