"""Small writers, consumer groups and BI queries on one server at once: `make bench`.

64 writers insert, update and delete rows of their own and publish, each statement a transaction; 8 groups
wait for the events of the table, read and commit them; 2 connections run queries over the table, the views of
the streams and the system views, one after the other. All run without a pause, as fast as they are answered;
the table keeps its size, and retention that of the log. Errors are counted, and each group has to read every
event once, in order. Stated are the rates, the time from sending a write to its answer and to a reader's
receipt, and the server's resident memory every ten seconds. `--seconds 600` is the long run.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import random
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import memory
import psycopg
from psycopg.types.string import TextLoader
from stream_read import HERE

WRITERS, GROUPS, QUERIES = 64, 8, 2
# The clients' processes.
PROCESSES = 4
ROWS = 50_000
# Rows of one writer, which it inserts and deletes, begin here; it keeps about this many.
OWN, OWN_MAX = 1_000_000, 50
SAMPLE_S = 10.0
# Times of one kind that a process of clients keeps.
SAMPLES_MAX = 100_000
WAIT = "SELECT lsn, after ->> 'sent' FROM STREAM orders_stream CONSUMER GROUP {} WAIT '1 s' COMMIT LIMIT 1000"
SETUP = (
    "CREATE TABLE orders (id BIGINT PRIMARY KEY, customer INTEGER, item VARCHAR, sent DOUBLE)",
    f"INSERT INTO orders SELECT -i, i % 10007, 'item ' || i % 997, 0 FROM range(1, {ROWS + 1}) r(i)",
    "CREATE STREAM orders_stream ON orders WITH (retention = '30 s')",
    "CREATE TOPIC clicks WITH (retention = '30 s')",
)
INSERT = "INSERT INTO orders VALUES (%s, %s, %s, %s)"
UPDATE = "UPDATE orders SET customer = %s, sent = %s WHERE id = %s"
DELETE = "DELETE FROM orders WHERE id = %s"
PUBLISH = "PUBLISH TO clicks KEY %s %s"
ASKED = (
    "SELECT customer % 100, count(*), avg(id) FROM orders GROUP BY 1 ORDER BY 2 DESC LIMIT 10",
    "SELECT o.item, count(*) FROM orders o JOIN orders p ON p.id = o.id - 1 GROUP BY 1 ORDER BY 2 LIMIT 5",
    "SELECT op, count(*), max(lsn) FROM orders_stream GROUP BY 1",
    "SELECT partition, count(*) FROM clicks GROUP BY 1 ORDER BY 1",
    "SELECT group_name, sum(lag_events) FROM ducktail.offsets GROUP BY 1",
    "SELECT customer, item, rank() OVER (PARTITION BY customer % 10 ORDER BY id) FROM orders LIMIT 1000",
)
CONTEXT = multiprocessing.get_context("spawn")


@dataclass
class Found:
    """The figures of one process of clients, or of all.

    Args:
        counts: writes by verb, events read, and queries.
        times: milliseconds, by their name; a sample of them.
        errors: messages of errors.
    """

    counts: Counter[str] = field(default_factory=Counter)
    times: dict[str, list[float]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def add(self, other: Found) -> None:
        """Add the figures of others."""
        self.counts += other.counts
        self.errors += other.errors
        for name, times in other.times.items():
            self.times.setdefault(name, []).extend(times)


class Client:
    """One connection of the load; all times are CLOCK_MONOTONIC's, one for all processes."""

    def __init__(self, address: str, number: int, stop: Any) -> None:
        self.number, self.stop, self.found = number, stop, Found()
        self.rng = random.Random(number)
        self.connection = psycopg.connect(address, autocommit=True)
        self.connection.adapters.register_loader("jsonb", TextLoader)

    def write(self) -> None:
        """Write until the end."""
        execute, times = self.connection.execute, self.found.times.setdefault("answer", [])
        first = last = (self.number + 1) * OWN
        while not self.stop.is_set():
            sent, kind = time.monotonic(), self.rng.random()
            if kind < 0.15:
                verb = "publish"
                execute(PUBLISH, (f"user {self.rng.randrange(997)}", f'{{"page": "/", "sent": {sent}}}'))
            elif kind < 0.6:
                verb = "update"
                # The rows that it updates are its own, too: two writers of one row do not run together.
                place = self.rng.randrange(ROWS // WRITERS) * WRITERS + self.number % WRITERS + 1
                execute(UPDATE, (self.rng.randrange(10007), sent, -place))
            elif kind < 0.8 or last == first:
                verb = "insert"
                execute(INSERT, (last, self.rng.randrange(10007), f"item {last % 997}", sent))
                last += 1
            else:
                verb = "delete"
                execute(DELETE, (first,))
                first += 1
            times.append((time.monotonic() - sent) * 1000)
            self.found.counts[verb] += 1

    def read(self) -> None:
        """Read as a group until the end, and then what is left."""
        read, times, last_lsn = WAIT.format(f"g{self.number}"), self.found.times.setdefault("reader", []), 0
        while (rows := self.connection.execute(read).fetchall()) or not self.stop.is_set():
            now = time.monotonic()
            lsns = [row[0] for row in rows]
            assert all(a < b for a, b in zip([last_lsn, *lsns], lsns, strict=False)), "not in order"
            last_lsn = lsns[-1] if lsns else last_lsn
            self.found.counts[f"read by g{self.number}"] += len(rows)
            times += [(now - float(row[1])) * 1000 for row in rows if row[1] is not None]

    def ask(self) -> None:
        """Run queries until the end."""
        times = self.found.times.setdefault("query", [])
        while not self.stop.is_set():
            begun = time.monotonic()
            self.connection.execute(self.rng.choice(ASKED)).fetchall()
            times.append((time.monotonic() - begun) * 1000)
            self.found.counts["query"] += 1


def _run(address: str, what: str, numbers: Sequence[int], stop: Any, out: Any) -> None:
    """The clients of one process, each on a thread."""
    clients = [Client(address, number, stop) for number in numbers]

    def run(client: Client) -> None:
        try:
            getattr(client, what)()
        except Exception as error:
            client.found.errors.append(f"{what} {client.number}: {error!r}")

    threads = [threading.Thread(target=run, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = Found()
    for client in clients:
        total.add(client.found)
        client.connection.close()
    for name, times in total.times.items():
        total.times[name] = random.Random(0).sample(times, min(len(times), SAMPLES_MAX))
    out.put(total)


def resident_mib(server: memory.Server) -> float:
    """The resident memory of a server."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def measure(seconds: float, directory: Path) -> tuple[Found, list[float]]:
    """The figures of all clients, and the server's resident memory in MiB every SAMPLE_S."""
    server = memory.Server(directory / "bench.duckdb")
    execute = server.connection.execute
    for text in (
        *SETUP,
        *(f"CREATE CONSUMER GROUP g{n} ON orders_stream START LATEST" for n in range(GROUPS)),
    ):
        execute(text)
    stop, out = CONTEXT.Event(), CONTEXT.Queue()
    parts = [("write", range(WRITERS)[number::PROCESSES]) for number in range(PROCESSES)]
    parts += [("read", range(GROUPS)[number::2]) for number in range(2)]
    parts += [("ask", range(QUERIES))]
    children = [
        CONTEXT.Process(target=_run, args=(server.conninfo, what, part, stop, out)) for what, part in parts
    ]
    for child in children:
        child.start()
    resident: list[float] = []
    begun = time.monotonic()
    while (left := begun + seconds - time.monotonic()) > 0:
        time.sleep(min(SAMPLE_S, left))
        resident.append(resident_mib(server))
        print(f"{time.monotonic() - begun:6.0f} s {resident[-1]:8.0f} MiB", flush=True)
    stop.set()
    found = Found()
    for _ in parts:
        found.add(out.get())
    for child in children:
        child.join()
    events = sum(found.counts[verb] for verb in ("insert", "update", "delete"))
    for number in range(GROUPS):
        if (read := found.counts[f"read by g{number}"]) != events:
            found.errors.append(f"group g{number} has read {read} events of {events}")
    found.errors += [str(row) for row in execute("CHECK STREAM orders_stream").fetchall()]
    server.close()
    return found, resident


def page(found: Found, resident: Sequence[float], seconds: float) -> str:
    """The result as a Markdown page."""
    writes = sum(found.counts[verb] for verb in ("insert", "update", "delete", "publish"))
    rates: list[tuple[str, float, str]] = [
        ("writes, to their answer", writes, "answer"),
        ("events read by each group, from sending the write", found.counts["read by g0"], "reader"),
        ("queries", found.counts["query"], "query"),
    ]
    lines = [
        "# Mixed load",
        "",
        f"{WRITERS} writers, {GROUPS} groups and {QUERIES} connections with BI queries at once, for "
        f"{seconds:.0f} s; psycopg {psycopg.__version__}, clients and server on {os.cpu_count()} cores; "
        f"Python {platform.python_version()}.",
        "",
        "| work | a second | p50, ms | p99, ms |",
        "|---|---:|---:|---:|",
    ]
    for what, count, name in rates:
        cuts = statistics.quantiles(found.times[name], n=100)
        lines.append(f"| {what} | {count / seconds:,.0f} | {cuts[49]:,.1f} | {cuts[98]:,.1f} |")
    minutes = [resident[place : place + 6] for place in range(0, len(resident), 6)]
    lines += [
        "",
        f"Errors: {len(found.errors)}.",
        "",
        "Resident memory of the server, MiB; least and most of the six samples of each minute: "
        + ", ".join(f"{min(part):.0f} to {max(part):.0f}" for part in minutes)
        + ".",
    ]
    return "\n".join(lines + [f"- {error}" for error in found.errors[:20]]) + "\n"


def main() -> None:
    """Run it and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "mixed_load.md")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ducktail-mixed-load-") as directory:
        found, resident = measure(given.seconds, Path(directory))
    text = page(found, resident, given.seconds)
    given.out.write_text(text)
    print(text)
    if found.errors:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
