"""Small statements and batches, where Python over DuckDB is slowest: `make bench`.

    small       statements a second through a client that looks at nothing, on 1 and on 16 connections,
                beside PostgreSQL; a point query beside the same on a DuckDB cursor in process
    polls       reads of a stream: one with nothing new, one of ten hot events, the latter beside a server
                that answers the same bytes to whatever comes (echo.py)
    batches     executemany (psycopg) and executeBatch (pgjdbc) of 10,000 rows into a captured table,
                beside PostgreSQL with a trigger outbox

All in one run and in turns; the figure is the median of the turns.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import selectors
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from pathlib import Path

import capture_cost
import duckdb
import memory
import postgres
import psycopg
from psycopg.conninfo import conninfo_to_dict
from result_readers import READY, Raw, message, query

HERE = Path(__file__).resolve().parent
DRIVER = Path("/usr/share/java/postgresql.jar")
OURS, THEIRS, IN_PROCESS, ECHO = "ducktail", "PostgreSQL", "DuckDB in process", "echo"
CONNECTIONS = 16
ROWS = 100_000
EVENTS = 1000
TABLE = "CREATE TABLE items (id BIGINT PRIMARY KEY, name TEXT, price DECIMAL(12, 2), made TIMESTAMP)"
FILL = (
    "INSERT INTO items SELECT i, 'item ' || i, (i % 10000) / 100.0, "
    "TIMESTAMP '2026-01-01' + i * INTERVAL '1 second' FROM {series} AS numbers (i)"
)
POINT = "SELECT * FROM items WHERE id = $1"
BATCHED = "CREATE TABLE batched (id BIGINT PRIMARY KEY, customer INTEGER, item TEXT, price DECIMAL(12, 2))"
INSERT = "INSERT INTO batched (id, customer, item, price) VALUES (%s, %s, %s, %s)"
POINT_NAME = b"point\0"
INT8 = 20

POLL = "SELECT * FROM STREAM orders_stream PARTITION 0 AFTER {} LIMIT {}"

POINT_BAR, POLL_BAR, HOT_BAR, BATCH_BAR = 0.5, 5000, 0.6, 3.0

Requests = Iterator[bytes]


@dataclass(slots=True)
class Findings:
    """What was measured, by (work, who), a turn each: statements a second, or seconds."""

    found: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def add(self, work: str, who: str, figure: float) -> None:
        """Keep a figure."""
        self.found.setdefault((work, who), []).append(figure)
        print(f"{work:<44} {who:<18} {figure:>12,.2f}", flush=True)

    def median(self, work: str, who: str) -> float | None:
        """The median of its turns."""
        figures = self.found.get((work, who))
        return statistics.median(figures) if figures else None


# Small statements.


def prepare(name: bytes, sql: str, oid: int) -> bytes:
    """Parse and Sync."""
    parse = message(b"P", name + sql.encode() + b"\0" + struct.pack("!hi", 1, oid))
    return parse + message(b"S", b"")


def point(number: int) -> bytes:
    """Bind, Describe, Execute and Sync of the prepared point query, as drivers send them."""
    value = struct.pack("!q", number)
    body = b"\0" + POINT_NAME + struct.pack("!hhhi", 1, 1, 1, len(value)) + value + struct.pack("!h", 0)
    bind = message(b"B", body)
    return bind + message(b"D", b"P\0") + message(b"E", b"\0" + struct.pack("!i", 0)) + message(b"S", b"")


def small() -> dict[str, Callable[[], Requests]]:
    """The requests of each kind of work, each answered with one ReadyForQuery."""
    numbers = partial(itertools.count, 1)
    return {
        "SELECT 1": lambda: itertools.repeat(query("SELECT 1")),
        "SET": lambda: itertools.repeat(query("SET application_name = 'bench'")),
        "SHOW": lambda: itertools.repeat(query("SHOW TimeZone")),
        "BEGIN, ROLLBACK": lambda: itertools.cycle([query("BEGIN"), query("ROLLBACK")]),
        "point query, prepared": lambda: (point(n * 7919 % ROWS) for n in numbers()),
        "point query, text": lambda: (query(POINT.replace("$1", str(n * 7919 % ROWS))) for n in numbers()),
    }


def rate(conninfo: str, make: Callable[[], Requests], count: int, seconds: float) -> float:
    """Requests a second on so many connections, each with one request at a time."""
    connections = [Raw.connect(conninfo) for _ in range(count)]
    requests = [make() for _ in connections]
    for connection in connections:
        exchange(connection.socket, prepare(POINT_NAME, POINT, INT8))
    if count == 1:
        return _alone(connections[0].socket, requests[0], seconds)
    answered = 0
    with selectors.DefaultSelector() as selector:
        for connection, more in zip(connections, requests, strict=True):
            selector.register(connection.socket, selectors.EVENT_READ, (connection, more))
            connection.ask(next(more))
        began = time.perf_counter()
        while (now := time.perf_counter()) - began < seconds:
            for key, _ in selector.select():
                connection, more = key.data
                connection.take()
                if connection.tail[-6:-1] == READY[:-1]:
                    answered += 1
                    connection.ask(next(more))
        figure = answered / (now - began)
    for connection in connections:
        connection.socket.close()
    return figure


def _alone(client: socket.socket, requests: Requests, seconds: float) -> float:
    for request in itertools.islice(requests, 50):
        exchange(client, request)
    answered, began = 0, time.perf_counter()
    while (now := time.perf_counter()) - began < seconds:
        exchange(client, next(requests))
        answered += 1
    client.close()
    return answered / (now - began)


def exchange(client: socket.socket, request: bytes) -> bytes:
    """Send a request and take its answer, up to ReadyForQuery."""
    client.sendall(request)
    answer = client.recv(1 << 20)
    while answer[-6:-1] != READY[:-1]:
        piece = client.recv(1 << 20)
        assert piece, "the server has closed the connection"
        answer += piece
    return answer


def in_process(seconds: float, cursor: duckdb.DuckDBPyConnection) -> float:
    """The point query on a cursor of DuckDB's, a second."""
    answered, began = 0, time.perf_counter()
    while (now := time.perf_counter()) - began < seconds:
        assert len(cursor.execute(POINT, [answered * 7919 % ROWS]).fetchall()) == 1
        answered += 1
    return answered / (now - began)


@contextmanager
def echo(answer: bytes, directory: Path) -> Iterator[int]:
    """A server that gives one answer; its port."""
    path = directory / "answer"
    path.write_bytes(answer)
    command = [sys.executable, str(HERE / "echo.py"), str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.communicate()


# Batches.


def executemany(conninfo: str, rows: int, first: int) -> float:
    """Seconds of psycopg's executemany, with its commit."""
    batch = [(first + n, n % 10007, f"item {n % 997}", Decimal(n % 100000) / 100) for n in range(rows)]
    with psycopg.connect(conninfo) as connection:
        began = time.perf_counter()
        connection.cursor().executemany(INSERT, batch)
        connection.commit()
        return time.perf_counter() - began


def execute_batch(conninfo: str, rows: int, first: int) -> float:
    """Seconds of pgjdbc's executeBatch with its commit, the second one of a program."""
    words = conninfo_to_dict(conninfo)
    url = f"jdbc:postgresql://{words['host']}:{words['port']}/{words['dbname']}?user={words['user']}"
    command = ["java", "-cp", str(DRIVER), str(HERE / "java" / "Batch.java"), url, str(rows), "2", str(first)]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    return float(told.stdout.split()[-1])


# All of it.


def run(seconds: float, turns: int, rows: int, directory: Path) -> str:
    """The whole benchmark; the result as a Markdown page."""
    findings = Findings()
    own = memory.Server(directory / "bench.duckdb", *memory.QUIET)
    with ExitStack() as stack:
        stack.callback(own.close)
        theirs = stack.enter_context(postgres.server())
        peer = stack.enter_context(psycopg.connect(theirs, autocommit=True))
        local = duckdb.connect(str(directory / "local.duckdb"))
        stack.callback(local.close)
        fill(own.connection, peer, local)
        hot = exchange(Raw.connect(own.conninfo).socket, query(hot_poll(own.connection)))
        port = stack.enter_context(echo(hot, directory))
        for turn in range(turns):
            for count in (1, CONNECTIONS):
                for work, make in small().items():
                    for who, conninfo in ((OURS, own.conninfo), (THEIRS, theirs)):
                        figure = rate(conninfo, make, count, seconds)
                        findings.add(f"{work}, {_on(count)}", who, figure)
            work = f"point query, prepared, {_on(1)}"
            findings.add(work, IN_PROCESS, in_process(seconds, local.cursor()))
            for work, sql in polls(own.connection).items():
                polled = partial(itertools.repeat, query(sql))
                findings.add(work, OURS, rate(own.conninfo, polled, 1, seconds))
            client = socket.create_connection(("127.0.0.1", port))
            polled = partial(itertools.repeat, query(hot_poll(own.connection)))
            findings.add("poll, 10 hot events", ECHO, _alone(client, polled(), seconds))
            for number, (work, write) in enumerate(writers().items()):
                for who, conninfo in ((OURS, own.conninfo), (THEIRS, theirs)):
                    first = 1 + (turn * 10 + number * 3) * rows
                    findings.add(f"{work}, {rows:,} rows, s", who, write(conninfo, rows, first))
        version = peer.info.parameter_status("server_version")
    return page(findings, turns, f"PostgreSQL {version}")


def _on(count: int) -> str:
    return f"{count} connection{'s' if count > 1 else ''}"


def fill(own: psycopg.Connection, peer: psycopg.Connection, local: duckdb.DuckDBPyConnection) -> None:
    """The same tables in all of them."""
    series = f"range({ROWS})"
    for execute, numbers in ((own.execute, series), (local.execute, series)):
        execute(TABLE)
        execute(FILL.format(series=numbers))
    peer.execute(TABLE)
    peer.execute(FILL.format(series=f"generate_series(0, {ROWS - 1})"))
    peer.execute("VACUUM ANALYZE items")
    own.execute(f"CREATE TABLE orders ({capture_cost.COLUMNS})")
    own.execute("CREATE STREAM orders_stream ON orders WITH (partitions = 1)")
    own.execute(f"INSERT INTO orders {capture_cost.ROWS.format(series=f'range({EVENTS}) AS r (i)')}")
    own.execute(BATCHED)
    own.execute("CREATE STREAM batched_stream ON batched")
    peer.execute(BATCHED)
    peer.execute(capture_cost.OUTBOX.replace("ON orders", "ON batched"))


def last_lsn(own: psycopg.Connection) -> int:
    """The stream's newest event."""
    found = own.execute("SELECT max(last_lsn) FROM ducktail.partitions WHERE stream_name = 'orders_stream'")
    (last,) = found.fetchone() or (0,)
    return int(last)


def hot_poll(own: psycopg.Connection) -> str:
    """A poll that finds ten events."""
    return POLL.format(last_lsn(own) - 10, 10)


def polls(own: psycopg.Connection) -> dict[str, str]:
    """The polls, by name."""
    return {"poll, nothing new": POLL.format(last_lsn(own), 100), "poll, 10 hot events": hot_poll(own)}


def writers() -> dict[str, Callable[[str, int, int], float]]:
    """Who writes a batch; JDBC where its driver is there."""
    found: dict[str, Callable[[str, int, int], float]] = {"executemany": executemany}
    return found | ({"pgjdbc batch": execute_batch} if DRIVER.exists() else {})


def page(findings: Findings, turns: int, peer: str) -> str:
    """The result as Markdown."""
    lines = [
        "# Small statements",
        "",
        f"Median of {turns} turns; DuckDB {duckdb.__version__}, psycopg {psycopg.__version__}, "
        f"Python {platform.python_version()}, {os.cpu_count()} cores. "
        "Statements a second; of batches, seconds.",
        "",
        f"| work | ducktail | {peer} | ratio | in process, or the echo | ratio to it | bar |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for work in dict.fromkeys(work for work, _ in findings.found):
        own = findings.median(work, OURS)
        assert own is not None
        theirs, other = findings.median(work, THEIRS), None
        for who in (IN_PROCESS, ECHO):
            other = other or findings.median(work, who)
        seconds = work.endswith(", s")
        shown = "{:,.2f}" if seconds else "{:,.0f}"
        ratio = "" if theirs is None else f"{own / theirs:.2f}"
        beside = ("", "") if other is None else (shown.format(other), f"{own / other:.2f}")
        peer_figure = "" if theirs is None else shown.format(theirs)
        wanted = bar(work, is_process=other is not None)
        cells = [work.removesuffix(", s"), shown.format(own), peer_figure, ratio, *beside, wanted]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def bar(work: str, *, is_process: bool) -> str:
    """What was promised of a piece of work."""
    if work.endswith(", s"):
        return f"≤ {BATCH_BAR:g} times PostgreSQL"
    if work == "poll, nothing new":
        return f"≥ {POLL_BAR:,} a second"
    if work == "poll, 10 hot events":
        return f"≥ {HOT_BAR} of the echo"
    return f"≥ {POINT_BAR} of in process" if is_process else ""


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each rate")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rows", type=int, default=10_000, help="of a batch")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "small_statements.md")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        text = run(arguments.seconds, arguments.turns, arguments.rows, Path(directory))
    arguments.output.parent.mkdir(exist_ok=True)
    arguments.output.write_text(text)
    print(f"\n{text}\nwritten to {arguments.output}")


if __name__ == "__main__":
    main()
