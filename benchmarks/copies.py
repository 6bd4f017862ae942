"""The cost of continuous copies for writers, their lag, and the time of a restore: `make bench`.

Three servers, one without copies, one with `--copy-to` a directory on the same disk, and one whose commits
wait for that copy, take turns with the same writers: one-row captured INSERTs of one client and of several,
each its own transaction. The figures are the medians of the turns' ratios. Then a writer commits 100
transactions of 100 rows a second on the copied server: the lag of each is the time from its answer until the
view says that it is copied. The bytes that are shipped are compared with those that DuckDB itself wrote. At
last a database of some hundred megabytes is copied and restored.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import memory
import psycopg
from small_writes import cpu_s
from stream_read import HERE

TABLE = (
    "CREATE TABLE orders (id BIGINT PRIMARY KEY, customer INTEGER, item VARCHAR, price DOUBLE PRECISION)",
    "CREATE STREAM orders_stream ON orders",
)
INSERT = "INSERT INTO orders VALUES (%s, %s, %s, %s)"
BATCH = (
    "INSERT INTO orders SELECT {0} + i, i % 10007, 'item ' || i % 997, i / 100.0 "
    "FROM generate_series(0, {1}) AS numbers (i)"
)
FILL = (
    "CREATE TABLE filled AS SELECT i, hash(i) AS h, random() AS r, md5(i::VARCHAR) AS m "
    "FROM range({}) AS n (i)"
)
BATCH_ROWS, BATCHES_S = 100, 100
WAYS = ("without copies", "with a copy", "with a synchronous copy")
COPIED = "SELECT copied_txid, copied_lsn, copied_bytes, lag_bytes, state FROM ducktail.continuous_copies"


@dataclass(frozen=True, slots=True)
class Lag:
    """The lags of a paced writer, in seconds, and what was written meanwhile."""

    seconds: list[float]
    rows_s: float
    shipped: int
    written: int

    def quantile(self, share: float) -> float:
        """The lag below which a share of the transactions are."""
        return sorted(self.seconds)[min(len(self.seconds) - 1, int(share * len(self.seconds)))]


@dataclass(frozen=True, slots=True)
class Rate:
    """Transactions a second, and the server's processor time for each in milliseconds."""

    transactions_s: float
    cpu_ms: float


def rate(server: memory.Server, clients: int, first: int, seconds: float) -> Rate:
    """The rate of so many clients."""
    counts = [0] * clients
    ends = time.perf_counter() + seconds

    def write(place: int) -> None:
        number = first + place * 10_000_000
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            while time.perf_counter() < ends:
                connection.execute(INSERT, (number + counts[place], number % 10007, "item 7", 1.5))
                counts[place] += 1

    threads = [threading.Thread(target=write, args=(place,)) for place in range(clients)]
    began, spent_s = time.perf_counter(), cpu_s(server)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_s = time.perf_counter() - began
    return Rate(sum(counts) / took_s, 1000 * (cpu_s(server) - spent_s) / max(1, sum(counts)))


def written_bytes(server: memory.Server) -> int:
    """The bytes that the server has written to files and sockets."""
    lines = Path(f"/proc/{server.process.pid}/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["wchar"])


def paced(server: memory.Server, seconds: float) -> Lag:
    """Commit at 10,000 rows a second, and watch until when each commit is copied."""
    answered: list[tuple[int, float]] = []
    lags: list[float] = []
    stop = threading.Event()

    def watch() -> None:
        place = 0
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            while not stop.is_set() or place < len(answered):
                row = connection.execute(COPIED).fetchone()
                assert row is not None
                now = time.perf_counter()
                while place < len(answered) and row[1] is not None and answered[place][0] <= row[1]:
                    lags.append(now - answered[place][1])
                    place += 1
                time.sleep(0.01)

    connection = server.connection
    ask = "SELECT max(last_lsn) FROM ducktail.commits"
    begun = connection.execute(ask).fetchone()
    assert begun is not None
    lsn, first = begun[0] or 0, 1 << 40
    row = connection.execute(COPIED).fetchone()
    assert row is not None
    shipped, written = row[2], written_bytes(server)
    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    number = 0
    while (late := time.perf_counter() - began) < seconds:
        if (wait := number / BATCHES_S - late) > 0:
            time.sleep(wait)
        connection.execute(BATCH.format(first + number * BATCH_ROWS, BATCH_ROWS - 1))
        lsn += BATCH_ROWS
        answered.append((lsn, time.perf_counter()))
        number += 1
    took = time.perf_counter() - began
    stop.set()
    watcher.join()
    row = connection.execute(COPIED).fetchone()
    assert row is not None
    shipped, written = row[2] - shipped, written_bytes(server) - written
    return Lag(lags, number * BATCH_ROWS / took, shipped, written - shipped)


def restore(directory: Path, rows: int) -> tuple[int, float, float]:
    """The bytes of a database, and the seconds of its first copy and of its restore."""
    target = directory / "big"
    target.mkdir()
    source = memory.Server(directory / "big.duckdb")
    source.connection.execute(FILL.format(rows))
    source.connection.execute("CHECKPOINT")
    source.close()
    began = time.perf_counter()
    server = memory.Server(directory / "big.duckdb", "--copy-to", str(target))
    while (row := server.connection.execute(COPIED).fetchone()) is None or row[4] != "following":
        time.sleep(0.05)
    copied_s = time.perf_counter() - began - server.start_s
    server.close()
    size = (directory / "big.duckdb").stat().st_size
    command = [
        str(Path(sys.executable).with_name("ducktail")),
        "restore",
        str(target),
        str(directory / "new.duckdb"),
    ]
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return size, copied_s, time.perf_counter() - began


def page(
    rates: dict[int, list[tuple[Rate, ...]]], lag: Lag, big: tuple[int, float, float], seconds: float
) -> str:
    """The page of results."""
    lines = [
        "# Continuous copies",
        "",
        f"`python benchmarks/copies.py` on {os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}; turns of "
        f"{seconds:g} s. The copy is on the disk of the database.",
        "",
        "## One-row captured INSERTs, transactions a second",
        "",
        "| clients | | a second | ratio, median of the turns | CPU of the server, ms |",
        "|---:|---|---:|---:|---:|",
    ]
    for clients, turns in rates.items():
        for place, name in enumerate(WAYS):
            ratio = statistics.median(one[place].transactions_s / one[0].transactions_s for one in turns)
            row = statistics.median(one[place].transactions_s for one in turns)
            cpu = statistics.median(one[place].cpu_ms for one in turns)
            lines.append(f"| {clients} | {name} | {row:,.0f} | {ratio:.2f} | {cpu:.2f} |")
    size, copied_s, restored_s = big
    lines += [
        "",
        f"## Transactions of {BATCH_ROWS} rows, {BATCHES_S} a second wanted",
        "",
        "| rows a second | lag p50, s | p99, s | longest, s | shipped, MB | DuckDB wrote, MB | ratio |",
        "|---:|---:|---:|---:|---:|---:|---:|",
        f"| {lag.rows_s:,.0f} | {lag.quantile(0.5):.2f} | {lag.quantile(0.99):.2f} | "
        f"{max(lag.seconds):.2f} | "
        f"{lag.shipped / 1e6:.1f} | {lag.written / 1e6:.1f} | {lag.shipped / lag.written:.2f} |",
        "",
        "The lag is from the answer of a COMMIT to the moment at which the view says that it is copied.",
        "",
        f"## A database of {size / 1e6:,.0f} MB",
        "",
        "| | s | s for a GB |",
        "|---|---:|---:|",
        f"| first copy, beside an idle server | {copied_s:.1f} | {copied_s / size * 1e9:.1f} |",
        f"| `ducktail restore`, which reads every row | {restored_s:.1f} | {restored_s / size * 1e9:.1f} |",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run it and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 16])
    parser.add_argument("--rows", type=int, default=15_000_000, help="rows of the database that is restored")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "copies.md")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ducktail-copies-") as place:
        directory = Path(place)
        targets = [directory / "copy", directory / "synchronous"]
        for target in targets:
            target.mkdir()
        plain = memory.Server(directory / "plain.duckdb")
        copied = memory.Server(directory / "copied.duckdb", "--copy-to", str(targets[0]))
        waiting = memory.Server(
            directory / "waiting.duckdb", "--copy-to", str(targets[1]), "--synchronous-copies", "1"
        )
        servers = (plain, copied, waiting)
        for server in servers:
            for text in TABLE:
                server.connection.execute(text)
        rates: dict[int, list[tuple[Rate, ...]]] = {clients: [] for clients in given.clients}
        first = 0
        for turn in range(given.turns):
            for clients in given.clients:
                order = servers if turn % 2 else servers[::-1]
                found = {server: rate(server, clients, first, given.seconds) for server in order}
                rates[clients].append(tuple(found[server] for server in servers))
                first += 1_000_000_000
        plain.close()
        waiting.close()
        lag = paced(copied, given.seconds * 4)
        copied.close()
        big = restore(directory, given.rows)
    text = page(rates, lag, big, given.seconds)
    given.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
