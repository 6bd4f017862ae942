"""Large reads of a stream, from log and buffer, beside its view and PostgreSQL: `make bench`.

One table with three streams of eight partitions: one whose buffer is as small as possible, so that it is read
from the log, one whose buffer has about half of the events, and one that is wholly in its buffer. PostgreSQL
has the rows of the events in a table with an index on (partition, lsn). The same client asks all of them in
turns; times are medians of the repeats, and the bars are ratios within this run.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import postgres
import psycopg
from stream_read import connect, ducktail_server

HERE = Path(__file__).resolve().parent
PARTITIONS = 8
# Seconds in which SELECT 1 is asked beside large reads.
ANSWERS_S = 6.0
COLUMNS = "lsn, partition, op, key, after, commit_time"
# Least bytes of a stream's buffer, and bytes that certainly hold all events.
LEAST, ALL = 64 << 10, 1 << 30
# About the bytes of a buffered event of the narrow and of the wide table.
EVENT_BYTES = {"narrow": 400, "wide": 1500}
TABLES = {
    "narrow": "id BIGINT PRIMARY KEY, quantity INTEGER, item VARCHAR, price DOUBLE",
    "wide": "id BIGINT PRIMARY KEY, quantity INTEGER, item VARCHAR, price DECIMAL(12, 2), placed TIMESTAMP, "
    "tags VARCHAR[], place STRUCT(city VARCHAR, zip INTEGER), "
    + ", ".join(f"c{n} {'VARCHAR' if n % 2 else 'BIGINT'}" for n in range(13)),
}
VALUES = {
    "narrow": "i, i % 1000, 'item ' || i, i / 7.0",
    "wide": "i, i % 1000, 'item ' || i, (i % 10000) / 100.0, TIMESTAMP '2024-01-01' + to_seconds(i), "
    "['a', 'tag ' || i % 7], {'city': 'city ' || i % 211, 'zip': i % 9999}, "
    + ", ".join(f"'text ' || i % {n + 50}" if n % 2 else f"i * {n + 1}" for n in range(13)),
}
PEER = """
    CREATE TABLE events (
        lsn BIGINT, partition INTEGER, op TEXT, table_name TEXT, key JSON, before JSON, after JSON,
        commit_time TIMESTAMPTZ, txid BIGINT, tx_seq INTEGER, tx_last BOOLEAN, schema_version INTEGER,
        headers JSON
    );
    CREATE TABLE offsets (reader TEXT PRIMARY KEY, committed_lsn BIGINT NOT NULL)
"""


@dataclass(slots=True)
class Findings:
    """The seconds of each work, by name, a turn each."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    def time(self, name: str, work: Callable[[], object]) -> None:
        """Do a piece of work and note its time."""
        start = time.perf_counter()
        work()
        self.seconds.setdefault(name, []).append(time.perf_counter() - start)

    def median(self, name: str) -> float:
        """The median of a work's seconds."""
        return statistics.median(self.seconds[name])


def copied(connection: psycopg.Connection, query: str) -> int:
    """Take all rows of a query with COPY; the bytes."""
    size = 0
    with connection.cursor().copy(f"COPY ({query}) TO STDOUT") as copy:
        while data := copy.read():
            size += len(data)
    return size


def fetched(connection: psycopg.Connection, query: str, rows: int) -> int:
    """Take all rows of a query through a named cursor; how many there were."""
    count = 0
    with connection.transaction(), connection.cursor(name="named") as cursor:
        cursor.execute(query)
        while found := cursor.fetchmany(rows):
            count += len(found)
    return count


def at_once(conninfo: str, query: Callable[[int], str]) -> None:
    """COPY each partition on a connection of its own, all at the same time."""
    connections = [connect(conninfo) for _ in range(PARTITIONS)]
    threads = [
        threading.Thread(target=copied, args=(connection, query(number)))
        for number, connection in enumerate(connections)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for connection in connections:
        connection.close()


def answer_times(conninfo: str, query: str) -> list[float]:
    """Seconds of each `SELECT 1` beside eight psqls that copy the query's rows, again and again."""
    text = f"COPY ({query}) TO STDOUT"
    loop = 'while psql -X "$1" -c "$2" > "$3"; do :; done'
    readers = [
        subprocess.Popen(["sh", "-c", loop, "sh", conninfo, text, os.devnull], start_new_session=True)
        for _ in range(PARTITIONS)
    ]
    times: list[float] = []
    try:
        with connect(conninfo) as own:
            while sum(times) < ANSWERS_S:
                start = time.perf_counter()
                own.execute("SELECT 1").fetchall()
                times.append(time.perf_counter() - start)
    finally:
        for reader in readers:
            os.killpg(reader.pid, signal.SIGKILL)
            reader.wait()
    return times


def backlog(connection: psycopg.Connection, stream: str, group: str, rows: int) -> int:
    """Read and commit all that a group has to read; how many events there were."""
    read = f"SELECT * FROM STREAM {stream} CONSUMER GROUP {group} LIMIT {rows}"
    count = 0
    while found := connection.execute(read).fetchall():
        count += len(found)
        connection.execute(f"COMMIT OFFSETS ON {stream} CONSUMER GROUP {group}")
    return count


def peer_backlog(connection: psycopg.Connection, reader: str, rows: int) -> int:
    """The same of PostgreSQL's table, with an UPDATE of an offset row."""
    count = lsn = 0
    read = f"SELECT * FROM events WHERE lsn > %s ORDER BY lsn LIMIT {rows}"
    while found := connection.execute(read, [lsn]).fetchall():
        count += len(found)
        lsn = found[-1][0]
        connection.execute("UPDATE offsets SET committed_lsn = %s WHERE reader = %s", [lsn, reader])
    return count


def fill(own: psycopg.Connection, peer: psycopg.Connection, kind: str, events: int, step: int) -> None:
    """Make the events, `step` rows a transaction, and copy their rows into PostgreSQL."""
    half = events * EVENT_BYTES[kind] // 2
    own.execute(f"CREATE TABLE facts ({TABLES[kind]})")
    for stream, size in (("log", LEAST), ("half", max(LEAST, half)), ("buffer", ALL)):
        options = f"partitions = {PARTITIONS}, buffer_bytes = {size}, retention = 'none'"
        own.execute(f"CREATE STREAM in_{stream} ON facts WITH ({options})")
    for first in range(0, events, step):
        own.execute(f"INSERT INTO facts SELECT {VALUES[kind]} FROM range({first}, {first + step}) r(i)")
    peer.execute(PEER)
    with (
        own.cursor().copy("COPY (SELECT * FROM in_log) TO STDOUT") as rows,
        peer.cursor().copy("COPY events FROM STDIN") as copy,
    ):
        while data := rows.read():
            copy.write(data)
    peer.execute("CREATE INDEX ON events (partition, lsn); CREATE INDEX ON events (lsn)")
    peer.execute("ANALYZE events")
    peer.execute("CHECKPOINT")
    own.execute("CHECKPOINT")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the events are read: a stream, its view, or PostgreSQL's table.

    Args:
        source: what stands behind FROM.
        order: the clause that puts the rows in the order of the stream.
    """

    name: str
    source: str
    conninfo: str
    connection: psycopg.Connection
    order: str = ""

    def query(self, partition: int | None = None) -> str:
        """The query of some columns of all events, or of those of a partition."""
        where = "" if partition is None else f" WHERE partition = {partition}"
        return f"SELECT {COLUMNS} FROM {self.source}{where}{self.order}"

    def ask(self, value: str) -> object:
        """One value over all events."""
        return self.connection.execute(f"SELECT {value} FROM {self.source}").fetchone()

    def works(self) -> dict[str, Callable[[], object]]:
        """The reads without progress, by name."""
        own = self.connection
        works: dict[str, Callable[[], object]] = {
            "COPY": partial(copied, own, self.query()),
            "COPY of a partition": partial(copied, own, self.query(3)),
            "count": partial(self.ask, "count(*)"),
            "max": partial(self.ask, "max(lsn)"),
            "partitions at once": partial(at_once, self.conninfo, self.query),
        }
        for rows in (1000, 10_000):
            works[f"cursor of {rows}, partition"] = partial(fetched, own, self.query(3), rows)
            works[f"cursor of {rows}, all"] = partial(fetched, own, self.query(), rows)
        return works


def turn(found: Findings, conninfo: str, peer_conninfo: str, number: int, kinds: Sequence[str]) -> None:
    """Do every piece of work once."""
    with connect(conninfo) as own, connect(peer_conninfo) as peer:
        places = [Place(f"in_{kind}", f"STREAM in_{kind}", conninfo, own) for kind in kinds]
        places.append(Place("view", "in_log", conninfo, own))
        places.append(Place("PostgreSQL", "events", peer_conninfo, peer, " ORDER BY lsn"))
        for place in places:
            for name, work in place.works().items():
                found.time(f"{name}, {place.name}", work)
        for rows in (1000, 10_000):
            group = f"of_{rows}_{number}"
            peer.execute("INSERT INTO offsets VALUES (%s, 0)", [group])
            found.time(f"backlog of {rows}, PostgreSQL", partial(peer_backlog, peer, group, rows))
            for kind in kinds:
                own.execute(f"CREATE CONSUMER GROUP {group} ON in_{kind} START EARLIEST")
                found.time(f"backlog of {rows}, in_{kind}", partial(backlog, own, f"in_{kind}", group, rows))


def bars(found: Findings, place: str) -> list[tuple[str, float, float, bool]]:
    """Measure, ratio, bar, and whether less is better, of a stream."""

    def seconds(name: str, where: str = place) -> float:
        return found.median(f"{name}, {where}")

    peer = "PostgreSQL"
    return [
        ("COPY of all: time, of the view's", seconds("COPY") / seconds("COPY", "view"), 1.15, True),
        ("COPY of all: rate, of PostgreSQL's", seconds("COPY", peer) / seconds("COPY"), 1.2, False),
        ("one partition of eight: time, of all", seconds("COPY of a partition") / seconds("COPY"), 0.2, True),
        ("count(*): time, of the view's", seconds("count") / seconds("count", "view"), 3, True),
        ("max(lsn): time, of the view's", seconds("max") / seconds("max", "view"), 3, True),
        *(
            (
                f"named cursor, {what}: time of 1,000 rows a fetch, of 10,000",
                seconds(f"cursor of 1000, {what}") / seconds(f"cursor of 10000, {what}"),
                1.15,
                True,
            )
            for what in ("partition", "all")
        ),
        *(
            (
                f"a group's backlog, LIMIT {rows}: rate, of PostgreSQL's",
                seconds(f"backlog of {rows}", peer) / seconds(f"backlog of {rows}"),
                bar,
                False,
            )
            for rows, bar in ((1000, 1.0), (10_000, 1.2))
        ),
        (
            "eight partitions on eight connections: rate, of PostgreSQL's",
            seconds("partitions at once", peer) / seconds("partitions at once"),
            0.9,
            False,
        ),
    ]


def run(kind: str, events: int, step: int, repeats: int, kinds: Sequence[str], directory: Path) -> str:
    """The whole benchmark of one table; the result as a Markdown table."""
    found = Findings()
    with postgres.server() as peer_conninfo, ducktail_server(directory) as conninfo:
        print(f"{kind}: filling both with the same {events:,} events ...", flush=True)
        with connect(conninfo) as own, connect(peer_conninfo) as peer:
            fill(own, peer, kind, events, step)
        for number in range(repeats):
            turn(found, conninfo, peer_conninfo, number, kinds)
            print(f"turn {number + 1} of {repeats}", flush=True)
        beside = [
            ("eight COPYs of the log", answer_times(conninfo, f"SELECT {COLUMNS} FROM STREAM in_{kinds[0]}")),
            ("eight COPYs of PostgreSQL's", answer_times(peer_conninfo, f"SELECT {COLUMNS} FROM events")),
        ]
    places = [f"in_{one}" for one in kinds]
    lines = [
        f"## {kind.capitalize()} table, {step:,} rows a transaction",
        "",
        f"{events:,} events in {PARTITIONS} partitions, {repeats} turns; Python {platform.python_version()}, "
        f"{os.cpu_count()} cores.",
        "",
        f"| measure | bar | {' | '.join(place.replace('_', ' the ') for place in places)} |",
        f"|---|---:|{'---:|' * len(places)}",
    ]
    tables = [bars(found, place) for place in places]
    for rows in zip(*tables, strict=True):
        name, _, bar, less = rows[0]
        lines.append(
            f"| {name} | {'at most' if less else 'at least'} {bar} | "
            f"{' | '.join(f'{ratio:.2f}' for _, ratio, _, _ in rows)} |"
        )
    works = list(dict.fromkeys(name.rpartition(", ")[0] for name in found.seconds))
    columns = [*places, "view", "PostgreSQL"]
    lines += ["", f"| seconds | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
    for work in works:
        cells = (f"{work}, {column}" for column in columns)
        shown = [f"{found.median(cell):.3f}" if cell in found.seconds else "" for cell in cells]
        lines.append(f"| {work} | {' | '.join(shown)} |")
    lines += ["", "| SELECT 1 beside | median, ms | 99 of 100, ms |", "|---|---:|---:|"]
    for name, times in beside:
        middle, most = statistics.median(times), statistics.quantiles(times, n=100)[98]
        lines.append(f"| {name} | {middle * 1000:.1f} | {most * 1000:.1f} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--events", type=int, default=500_000)
    parser.add_argument(
        "--steps", nargs="+", type=int, default=[200, 500_000], help="rows of one transaction"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tables", nargs="+", choices=tuple(TABLES), default=list(TABLES))
    parser.add_argument("--streams", nargs="+", default=["log", "half", "buffer"])
    parser.add_argument("--output", type=Path, default=HERE / "results" / "log_reads.md")
    arguments = parser.parse_args()
    pages = []
    for kind, step in itertools.product(arguments.tables, arguments.steps):
        with tempfile.TemporaryDirectory() as directory:
            pages.append(
                run(
                    kind,
                    arguments.events,
                    step,
                    arguments.repeats,
                    arguments.streams,
                    Path(directory),
                )
            )
    page = "\n".join(["# Large reads of a stream", "", *pages])
    arguments.output.parent.mkdir(exist_ok=True)
    arguments.output.write_text(page)
    print(f"\n{page}\nwritten to {arguments.output}")


if __name__ == "__main__":
    main()
