"""Reads by way of other nodes: three servers, each figure local and forwarded in turns.

    batches     rows a second of one consumer that reads all events of the stream, 1,000 at a time, from where
                the last batch ended: through a client that looks at nothing, and through psycopg
    hop         a read of one event, a commit of one offset: milliseconds, p50 and p99
    gathered    rows a second of one consumer group that reads and commits all events of a topic, 1,000 at a
                time, on a node that has all 12 partitions, and on one that has a third of them; published by
                bulk and event by event. And a read of one event.

All in one run on the same two cores: a forwarded read has three processes on them, a local one two, a
gathered one four.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from result_readers import Raw, query
from small_statements import exchange

HERE = Path(__file__).resolve().parent
COMMAND = Path(sys.executable).with_name("ducktail")
NODES = ("n1", "n2", "n3")
LOCAL, FORWARDED = "local", "forwarded"
# Topics of 12 partitions, on the first node and spread over all; and how many events one statement publishes.
WHOLE, SPREAD = "whole", "spread"
BULKS = {"bulk": 10_000, "small": 20}
BATCH = 1000
FILLED = 50_000
READ = "SELECT * FROM STREAM s PARTITION 0 AFTER {} LIMIT {}"
TYPED = "SELECT * FROM STREAM s PARTITION 0 AFTER %s LIMIT 1000"
RATE_BAR, HOP_BAR_MS = 0.6, 1.0
GATHERED = "rows/s, psycopg, a topic of 12 partitions"


@dataclass(slots=True)
class Findings:
    """What was measured, by (figure, way), a turn each."""

    found: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def add(self, figure: str, way: str, value: float) -> None:
        """Keep one."""
        self.found.setdefault((figure, way), []).append(value)
        print(f"{figure:<40} {way:<10} {value:>14,.3f}", flush=True)

    def median(self, figure: str, way: str) -> float:
        """The median of its turns."""
        return statistics.median(self.found[figure, way])

    def ratio(self, figure: str) -> float:
        """Forwarded to local: the median of the turns' own ratios."""
        pairs = zip(self.found[figure, FORWARDED], self.found[figure, LOCAL], strict=True)
        return statistics.median(forwarded / local for forwarded, local in pairs)


@contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Two nodes; where to connect, by way."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in NODES]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    lines = ['cluster = "bench"', "epoch = 1"]
    for name, port in zip(NODES, ports, strict=True):
        lines += [f"[nodes.{name}]", 'host = "127.0.0.1"', f"port = {port}"]
    lines += ["[[topics]]", f'name = "{SPREAD}*"', 'partitions = { n1 = "0-3", n2 = "4-7", n3 = "8-11" }']
    lines += ["[[topics]]", 'name = "*"', 'partitions = { n1 = "0-1023" }']
    file = folder / "cluster.toml"
    file.write_text("\n".join(lines) + "\n")
    processes = []
    try:
        for name in NODES:
            command = [str(COMMAND), "serve", str(folder / f"{name}.duckdb")]
            command += ["--node", name, "--cluster", str(file), "--log-level", "warning"]
            processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        words = [f"host=127.0.0.1 port={port} user=ducktail dbname=ducktail" for port in ports]
        yield dict(zip((LOCAL, FORWARDED), words, strict=False))
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.communicate()


def fill(conninfo: str, events: int) -> None:
    """A stream of one partition with so many events, and a group."""
    with psycopg.connect(conninfo, autocommit=True) as owner:
        columns = "id BIGINT PRIMARY KEY, customer INTEGER, item TEXT, price DECIMAL(12, 2)"
        owner.execute(f"CREATE TABLE t ({columns})")
        owner.execute("CREATE STREAM s ON t WITH (partitions = 1, buffer_bytes = '1 GB')")
        owner.execute("CREATE CONSUMER GROUP g ON s START EARLIEST")
        for first in range(0, events, FILLED):
            owner.execute(
                "INSERT INTO t SELECT i, i % 10007, 'item ' || i % 997, (i % 100000) / 100.0 "
                f"FROM range({first}, {min(first + FILLED, events)}) AS numbers (i)"
            )


def publish(conninfo: str, events: int) -> None:
    """Topics with so many events, and a group on each."""
    payload = """'{"customer": ' || i % 10007 || ', "item": "item ' || i % 997 || '", "price": 12.5}'"""
    with psycopg.connect(conninfo, autocommit=True) as node:
        for name, size in BULKS.items():
            for place in (WHOLE, SPREAD):
                topic = f"{place}_{name}"
                node.execute(f"CREATE TOPIC {topic} WITH (partitions = 12, buffer_bytes = '1 GB')")
                node.execute(f"CREATE CONSUMER GROUP g ON {topic}")
                for first in range(0, events, size):
                    numbers = f"range({first}, {min(first + size, events)}) AS numbers (i)"
                    node.execute(f"INSERT INTO {topic} (key, payload) SELECT i, {payload} FROM {numbers}")


def gathered_rate(conninfo: str, topic: str, events: int) -> float:
    """Rows a second of the reads of a group, with psycopg; its commits are not counted."""
    with psycopg.connect(conninfo, autocommit=True) as client:
        for name in ("json", "jsonb"):
            client.adapters.register_loader(name, psycopg.types.string.TextLoader)
        client.execute(f"ALTER CONSUMER GROUP g ON {topic} SEEK TO EARLIEST")
        read, took, text = 0, 0.0, f"SELECT * FROM TOPIC {topic} CONSUMER GROUP g LIMIT {BATCH}"
        client.execute(text, prepare=True).fetchall()
        while True:
            began = time.perf_counter()
            rows = client.execute(text, prepare=True).fetchall()
            took += time.perf_counter() - began
            if not rows:
                break
            read += len(rows)
            client.execute(f"COMMIT OFFSETS ON {topic} CONSUMER GROUP g", prepare=True)
        assert read == events
        return events / took


def gathered_hops(conninfo: str, topic: str, count: int) -> list[float]:
    """Milliseconds of each read of one event."""
    client = Raw.connect(conninfo).socket
    found = []
    for _ in range(count):
        began = time.perf_counter()
        exchange(client, query(f"SELECT * FROM TOPIC {topic} LIMIT 1"))
        found.append((time.perf_counter() - began) * 1000)
    client.close()
    return sorted(found[count // 10 :])


def measure_gathered(conninfo: str, found: Findings, events: int, turns: int, count: int) -> None:
    """What is read from several owners, beside the same from one, in turns."""
    for turn in range(turns):
        order = [(LOCAL, WHOLE), (FORWARDED, SPREAD)][:: 1 if turn % 2 else -1]
        for name, size in BULKS.items():
            for way, place in order:
                rate = gathered_rate(conninfo, f"{place}_{name}", events)
                found.add(f"{GATHERED}, published {size:,} at a time", way, rate)
        for way, place in order:
            took = gathered_hops(conninfo, f"{place}_bulk", count)
            found.add("read of one event of a topic, p50 ms", way, took[len(took) // 2])


def raw_rate(conninfo: str, events: int) -> float:
    """Rows a second of a client that looks at nothing."""
    client = Raw.connect(conninfo).socket
    exchange(client, query(READ.format(0, BATCH)))
    began = time.perf_counter()
    for first in range(0, events, BATCH):
        exchange(client, query(READ.format(first, BATCH)))
    figure = events / (time.perf_counter() - began)
    client.close()
    return figure


def psycopg_rate(conninfo: str, events: int) -> float:
    """Rows a second of psycopg, with the JSON columns as text."""
    with psycopg.connect(conninfo, autocommit=True) as client:
        for name in ("json", "jsonb"):
            client.adapters.register_loader(name, psycopg.types.string.TextLoader)
        client.execute(TYPED, [0], prepare=True).fetchall()
        began, read, last = time.perf_counter(), 0, 0
        while rows := client.execute(TYPED, [last]).fetchall():
            read, last = read + len(rows), rows[-1][0]
        assert read == events
        return events / (time.perf_counter() - began)


def hops(conninfo: str, requests: Callable[[], Iterator[bytes]], count: int) -> list[float]:
    """Milliseconds of each request."""
    client = Raw.connect(conninfo).socket
    found = []
    for request in itertools.islice(requests(), count):
        began = time.perf_counter()
        exchange(client, request)
        found.append((time.perf_counter() - began) * 1000)
    client.close()
    return found[count // 10 :]


def reads() -> Iterator[bytes]:
    """The same read of one event."""
    return itertools.repeat(query(READ.format(17, 1)))


def commits() -> Iterator[bytes]:
    """Commits of one place, again and again: each is a statement whole, and a transaction at the owner."""
    return itertools.repeat(query("COMMIT OFFSET PARTITION 0 AT 17 ON s CONSUMER GROUP g"))


def measure(ways: dict[str, str], events: int, turns: int, count: int) -> Findings:
    """Everything, in turns."""
    found = Findings()
    for turn in range(turns):
        order = list(ways.items())[:: 1 if turn % 2 else -1]
        for way, conninfo in order:
            found.add("rows/s, a client that looks at nothing", way, raw_rate(conninfo, events))
        for way, conninfo in order:
            found.add("rows/s, psycopg", way, psycopg_rate(conninfo, events))
        for name, requests in (("read of one event", reads), ("commit of one offset", commits)):
            for way, conninfo in order:
                took = sorted(hops(conninfo, requests, count))
                found.add(f"{name}, p50 ms", way, took[len(took) // 2])
                found.add(f"{name}, p99 ms", way, took[len(took) * 99 // 100])
    return found


def page(found: Findings, events: int, turns: int, count: int) -> str:
    """The result page."""
    figures = list(dict.fromkeys(figure for figure, _ in found.found))
    lines = [
        "# Forwarding",
        "",
        f"{events:,} hot events of one partition on one node, read there and by way of a second one, "
        f"{BATCH:,} at a time; hops of {count:,} requests. Medians of {turns} turns, the ratio that of each "
        f"turn's own; Python {platform.python_version()}, {os.cpu_count()} cores.",
        "",
        "| figure | local | forwarded | ratio |",
        "|---|---:|---:|---:|",
    ]
    for figure in figures:
        local, forwarded = (found.median(figure, way) for way in (LOCAL, FORWARDED))
        digits = 0 if "rows/s" in figure else 3
        both = f"{local:,.{digits}f} | {forwarded:,.{digits}f}"
        lines.append(f"| {figure} | {both} | {found.ratio(figure):.2f} |")
    rows = found.ratio("rows/s, psycopg")
    one = "read of one event, p50 ms"
    hop = found.median(one, FORWARDED) - found.median(one, LOCAL)
    gathered = found.ratio(f"{GATHERED}, published {BULKS['bulk']:,} at a time")
    lines += [
        "",
        "The rows of topics are those of a group that reads and commits on a node: of a topic that the node "
        "has, and of one that three nodes share (under forwarded).",
        "",
        "| bar | measured | held |",
        "|---|---:|---|",
        f"| rows/s of psycopg: at least {RATE_BAR} x local | {rows:.2f} | {_held(rows >= RATE_BAR)} |",
        f"| rows/s of a topic of three owners: at least {RATE_BAR} x of one | {gathered:.2f} "
        f"| {_held(gathered >= RATE_BAR)} |",
        f"| an added hop, p50: at most {HOP_BAR_MS:.0f} ms | {hop:.2f} | {_held(hop <= HOP_BAR_MS)} |",
    ]
    return "\n".join(lines) + "\n"


def _held(held: bool) -> str:
    return "yes" if held else "no"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--hops", type=int, default=1000)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "forwarding.md")
    given: Any = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, cluster(Path(folder)) as ways:
        fill(ways[LOCAL], given.events)
        found = measure(ways, given.events, given.turns, given.hops)
        publish(ways[LOCAL], given.events // 4)
        measure_gathered(ways[LOCAL], found, given.events // 4, given.turns, given.hops)
    text = page(found, given.events, given.turns, given.hops)
    given.output.parent.mkdir(exist_ok=True)
    given.output.write_text(text)
    print(f"\n{text}\nwritten to {given.output}")


if __name__ == "__main__":
    main()
