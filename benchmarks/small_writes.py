"""One-row writes of many clients, each statement its own transaction: `make bench`.

Captured INSERT, captured UPDATE by primary key, PUBLISH to a topic, and transaction blocks of two captured
INSERTs (BLOCK), of 1 to 64 clients (psycopg in processes of their own, parameters of the wire). Beside it, in
the same run and by the same clients, the same writes of a PostgreSQL table with a trigger outbox, and an
INSERT into the outbox for PUBLISH. Both servers make each commit durable. The two take turns; the figure is
the median of the turns. So does `bare_writes.py`, a server in Python that does nothing but write the batches
into DuckDB: its rate is the most that such a server could have. The processor time of ducktail's server is
stated for each transaction. A captured INSERT of one row in process is beside plain DuckDB's. The page has a
table, and a plot of transactions a second against clients.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import duckdb
import memory
import postgres
import psycopg
from capture_cost import COLUMNS, VALUES, ducktail_runner, plain_runner, timed
from stream_read import HERE

CLIENTS = (1, 2, 4, 8, 16, 32, 64)
# The clients' processes: one alone could not send as much as a server can take.
PROCESSES = 4
ROWS = 20_000
WARM = 8
# The numbers of one client's writes: the clients begin at rows that are far from one another.
NUMBERS = 1_000_625

TABLE = "CREATE TABLE orders (id BIGINT PRIMARY KEY, customer INTEGER, item VARCHAR, price DOUBLE PRECISION)"
OURS = ("CREATE STREAM orders_stream ON orders", "CREATE TOPIC clicks")
OUTBOX = """
    CREATE TABLE outbox (
        id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, op TEXT, key TEXT, before JSONB, after JSONB,
        at TIMESTAMPTZ DEFAULT now(), txid BIGINT DEFAULT txid_current());
    CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO outbox (op, key, before, after) VALUES (
            lower(TG_OP), NEW.id, CASE WHEN TG_OP = 'UPDATE' THEN to_jsonb(OLD) END, to_jsonb(NEW));
        RETURN NULL; END $$;
    CREATE TRIGGER noted AFTER INSERT OR UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION noted();
"""
FILL = (
    "INSERT INTO orders SELECT -i, i % 10007, 'item ' || i % 997, i / 100.0 "
    "FROM generate_series(1, {}) AS numbers (i)"
)
INSERT, UPDATE, PUBLISH, BLOCK = WORKS = ("INSERT", "UPDATE", "PUBLISH", "BLOCK")
TEXTS = {
    INSERT: "INSERT INTO orders VALUES (%s, %s, %s, %s)",
    UPDATE: "UPDATE orders SET customer = %s, item = %s WHERE id = %s",
}
TEXTS[BLOCK] = TEXTS[INSERT]
PUBLISHED = {
    "ducktail": "PUBLISH TO clicks KEY %s %s",
    "bare": "PUBLISH TO clicks KEY %s %s",
    "PostgreSQL": "INSERT INTO outbox (op, key, after) VALUES ('publish', %s, %s)",
}
# Ratio to PostgreSQL's rate, for some numbers of clients.
BARS = {
    INSERT: {1: 0.18, 8: 0.35, 32: 0.7},
    UPDATE: {1: 0.13, 8: 0.25, 32: 0.5},
    PUBLISH: {1: 0.3, 8: 0.5, 32: 1.0},
    BLOCK: {},
}
# Times plain DuckDB's, of one row in process, and the rows of a turn.
IN_PROCESS_BAR, IN_PROCESS_ROWS = 2.0, 200
CONTEXT = multiprocessing.get_context("spawn")


def values(work: str, number: int) -> tuple[object, ...]:
    """The parameters of the write with a number of its own."""
    if work in (INSERT, BLOCK):
        return number, number % 10007, f"item {number}", number / 8 + 0.1
    if work == UPDATE:
        return number % 10007, f"item {number}", -(number % ROWS) - 1
    return f"user {number % 997}", f'{{"page": "/start", "n": {number}}}'


def _write(
    name: str,
    address: str,
    work: str,
    first: int,
    places: Sequence[int],
    seconds: float,
    barrier: Any,
    out: Any,
) -> None:
    """The clients of one process: warm up, write for so many seconds at once, report the number of writes."""
    text, counts = TEXTS.get(work) or PUBLISHED[name], [0] * len(places)
    ready = threading.Barrier(len(places), barrier.wait)

    def commit(connection: psycopg.Connection[Any], numbers: Iterator[int]) -> None:
        """One transaction."""
        if work != BLOCK:
            connection.execute(text, values(work, next(numbers)))
            return
        with connection.transaction():
            for _ in range(2):
                connection.execute(text, values(work, next(numbers)))

    def client(at: int, place: int) -> None:
        numbers = itertools.count(first + place * NUMBERS)
        with psycopg.connect(address, autocommit=True) as connection:
            for _ in range(WARM):
                commit(connection, numbers)
            ready.wait()
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                commit(connection, numbers)
                counts[at] += 1

    threads = [threading.Thread(target=client, args=pair) for pair in enumerate(places)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    out.put(sum(counts))


def rate(name: str, address: str, work: str, clients: int, first: int, seconds: float) -> float:
    """Writes a second of so many clients."""
    processes = min(clients, PROCESSES)
    barrier, out = CONTEXT.Barrier(processes), CONTEXT.Queue()
    parts = [range(clients)[number::processes] for number in range(processes)]
    children = [
        CONTEXT.Process(target=_write, args=(name, address, work, first, part, seconds, barrier, out))
        for part in parts
    ]
    for child in children:
        child.start()
    total = sum(out.get() for _ in parts)
    for child in children:
        child.join()
    return float(total / seconds)


@contextmanager
def bare_server(directory: Path) -> Iterator[str]:
    """The server that only writes; gives its conninfo."""
    command = [sys.executable, str(HERE / "bare_writes.py"), str(directory / "bare.duckdb"), str(ROWS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield f"host=127.0.0.1 port={process.stdout.readline().strip()} user=bench dbname=bare"
        finally:
            process.terminate()


def cpu_s(server: memory.Server) -> float:
    """The processor time that a server has used, in seconds."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


Figures = dict[tuple[str, int], dict[str, list[float]]]


def measure(
    seconds: float, turns: int, works: Sequence[str], clients: Sequence[int], directory: Path
) -> Figures:
    """All figures: work and clients -> server -> the rate of each turn; CPU milliseconds under `CPU`."""
    found: Figures = {}
    own = memory.Server(directory / "bench.duckdb")
    with ExitStack() as stack:
        stack.callback(own.close)
        theirs = stack.enter_context(postgres.server())
        bare = stack.enter_context(bare_server(directory))
        peer = stack.enter_context(psycopg.connect(theirs, autocommit=True))
        for connection, rest in ((own.connection, OURS), (peer, (OUTBOX,))):
            connection.execute(TABLE)
            connection.execute(FILL.format(ROWS))
            for text in rest:
                connection.execute(text)
        first = 1
        for turn in range(turns):
            for work in works:
                for count in clients:
                    figures = found.setdefault((work, count), {})
                    for name, address in (
                        ("ducktail", own.conninfo), ("PostgreSQL", theirs), ("bare", bare)
                    ):  # fmt: skip
                        if name == "bare" and work == BLOCK:
                            continue
                        used = cpu_s(own)
                        figure = rate(name, address, work, count, first, seconds)
                        figures.setdefault(name, []).append(figure)
                        if name == "ducktail":
                            spent = (cpu_s(own) - used) * 1000
                            figures.setdefault(CPU, []).append(spent / (figure * seconds + WARM * count))
                        first += NUMBERS * max(clients)
                    print(turn, work, count, {k: round(v[-1], 2) for k, v in figures.items()}, flush=True)
    return found


CPU = "CPU"


def in_process(turns: int, directory: Path) -> list[tuple[float, float]]:
    """Seconds of a captured INSERT of one row, until it is readable, and of plain DuckDB's; of each turn."""
    found, texts = [], (f"CREATE TABLE orders ({COLUMNS})", "CREATE STREAM orders_stream ON orders")
    with (
        ducktail_runner(directory / "captured.duckdb") as (own, readable),
        duckdb.connect(str(directory / "plain.duckdb")) as connection,
    ):
        plain = plain_runner(connection)
        own(texts[0], ())
        own(texts[1], ())
        plain(texts[0], ())
        for turn in range(turns + 1):
            rows = [(turn * IN_PROCESS_ROWS + number,) for number in range(IN_PROCESS_ROWS)]
            times = timed(own, VALUES, rows, readable), timed(plain, VALUES, rows, None)
            found.append((times[0] / IN_PROCESS_ROWS, times[1] / IN_PROCESS_ROWS))
    return found[1:]


def plot(found: Figures, file: Path) -> None:
    """Transactions a second against clients: a panel for each work, a line for each server."""
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.6), layout="constrained")
    works = list(dict.fromkeys(work for work, _ in found))
    for axes, work in zip(figure.subplots(1, len(works), sharey=True, squeeze=False)[0], works, strict=True):
        counts = [count for name, count in found if name == work]
        for server in ("ducktail", "PostgreSQL", "bare"):
            if server not in found[work, counts[0]]:
                continue
            rates = [statistics.median(found[work, count][server]) for count in counts]
            axes.plot(
                counts, rates, marker="o", markersize=3, label="bare server" if server == "bare" else server
            )
        axes.set_title(work)
        axes.set_xlabel("clients")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("transactions a second")
    figure.axes[0].legend(frameon=False)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "ducktail"}):
        figure.savefig(file, metadata={"Date": None})


def _ratio(figures: dict[str, list[float]], name: str) -> float:
    """To PostgreSQL, the median of the turns."""
    return statistics.median(a / b for a, b in zip(figures[name], figures["PostgreSQL"], strict=True))


def page(
    found: Figures, alone: Sequence[tuple[float, float]], seconds: float, turns: int, plotted: str
) -> str:
    """The result as a Markdown page."""
    lines = [
        "# Small writes",
        "",
        "One-row writes, each its own transaction (BLOCK: a block of two); clients of psycopg "
        f"{psycopg.__version__} in up to {PROCESSES} processes; transactions a second, medians of {turns} "
        f"turns of {seconds:g} s; Python {platform.python_version()}, {os.cpu_count()} cores. PostgreSQL 15 "
        "with a trigger outbox. The bare server only writes batches into DuckDB, from Python "
        "([bare_writes.py](../bare_writes.py)); CPU is of ducktail's server.",
        "",
        "| work | clients | ducktail | PostgreSQL | ratio | bar | held | bare server | its ratio "
        "| CPU, ms each |",
        "|---|---:|---:|---:|---:|---:|---|---:|---:|---:|",
    ]
    for (work, count), figures in found.items():
        own, theirs, cpu = (statistics.median(figures[name]) for name in ("ducktail", "PostgreSQL", CPU))
        ratio = _ratio(figures, "ducktail")
        bar = BARS[work].get(count)
        held = "" if bar is None else "yes" if ratio >= bar else "no"
        rates = f"{own:,.0f} | {theirs:,.0f} | {ratio:.2f}"
        least = " | "
        if "bare" in figures:
            least = f"{statistics.median(figures['bare']):,.0f} | {_ratio(figures, 'bare'):.2f}"
        lines.append(f"| {work} | {count} | {rates} | {bar or ''} | {held} | {least} | {cpu:.2f} |")
    own, plain = (statistics.median(times) * 1000 for times in zip(*alone, strict=True))
    ratio = statistics.median(a / b for a, b in alone)
    lines += [
        "",
        f"![Transactions a second against clients]({plotted})",
        "",
        f"In process, a captured INSERT of one row takes {own:.2f} ms until it is readable, plain DuckDB's "
        f"{plain:.2f} ms: {ratio:.2f} times as long (bar: {IN_PROCESS_BAR:g}; "
        f"{'held' if ratio <= IN_PROCESS_BAR else 'not held'}). Offset commits, consumers and latencies have "
        "their bars in [groups.md](groups.md).",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run it and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--clients", type=int, nargs="*", default=list(CLIENTS))
    parser.add_argument("--only", nargs="*", default=list(WORKS), choices=WORKS)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "small_writes.md")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ducktail-small-writes-") as directory:
        found = measure(given.seconds, given.turns, given.only, given.clients, Path(directory))
        alone = in_process(given.turns, Path(directory))
    picture = given.out.with_suffix(".svg")
    plot(found, picture)
    text = page(found, alone, given.seconds, given.turns, picture.name)
    given.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
