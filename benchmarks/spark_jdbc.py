"""Spark's own JDBC source on a stream, its views and its table, and on PostgreSQL: `make bench`.

The table of log_reads.py with a stream of eight partitions, whose events are in the log, and PostgreSQL with
the same events, the same typed changes and the same rows in tables. Spark reads all of them in eight parts,
by `partition`, by LSN or by the table's key, with several fetch sizes, into a sink that does nothing. The
reads take turns; times are medians, and what counts is their ratio.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import log_reads
import postgres
import psycopg
import pyspark
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import DataFrame, SparkSession
from spark import DRIVER, session
from stream_read import connect, ducktail_server

HERE = Path(__file__).resolve().parent
PARTS = log_reads.PARTITIONS
# Rows that the driver asks for at a time; 0, its default, means all of them.
FETCHES = (0, 1000, 10_000)
BAR = 0.9


@dataclass(frozen=True, slots=True)
class Read:
    """One way to read the events or the rows.

    Args:
        dbtable: the source's option; the columns of all reads with one `peer` are the same.
        column: the column by which it is parted, with `lower` and `upper` the bounds.
        peer: the name of the PostgreSQL read with which it is compared; "" for PostgreSQL's own.
    """

    name: str
    conninfo: str
    dbtable: str
    column: str
    lower: int
    upper: int
    peer: str = ""

    def frame(self, spark: SparkSession, fetch: int) -> DataFrame:
        """The data frame, of as many parts as the stream has partitions."""
        where = conninfo_to_dict(self.conninfo)
        reader = spark.read.format("jdbc").options(
            url=f"jdbc:postgresql://{where['host']}:{where['port']}/{where['dbname']}?user={where['user']}",
            driver="org.postgresql.Driver",
            dbtable=self.dbtable,
            partitionColumn=self.column,
            lowerBound=str(self.lower),
            upperBound=str(self.upper),
            numPartitions=str(PARTS),
        )
        return (reader.option("fetchsize", str(fetch)) if fetch else reader).load()


def reads(own: str, peer: str, events: int) -> list[Read]:
    """All ways of reading; those of PostgreSQL come first."""
    by_partition, by_lsn = ("partition", 0, PARTS), ("lsn", 1, events + 1)
    changes, by_id = ("_partition", 0, PARTS), ("id", 0, events)
    one, two = "PostgreSQL, events by partition", "PostgreSQL, changes by partition"
    three = "PostgreSQL, table by id"
    stream = "(SELECT * FROM STREAM in_log) t"
    return [
        Read(one, peer, "events", *by_partition),
        Read(two, peer, "changes", *changes),
        Read(three, peer, "facts", *by_id),
        Read("stream by partition", own, stream, *by_partition, one),
        Read("stream by lsn", own, stream, *by_lsn, one),
        Read("view by partition", own, "in_log", *by_partition, one),
        Read("view by lsn", own, "in_log", *by_lsn, one),
        Read("typed view by partition", own, "in_log_changes", *changes, two),
        Read("typed view by lsn", own, "in_log_changes", "_lsn", 1, events + 1, two),
        Read("table by id", own, "facts", *by_id, three),
    ]


def copy_rows(own: psycopg.Connection, peer: psycopg.Connection, source: str, table: str) -> None:
    """Copy the rows of a relation into a table of PostgreSQL, their nested values as text."""
    columns = []
    for name, type_, *_ in own.execute(f"DESCRIBE {source}").fetchall():
        nested = type_.endswith("]") or type_.startswith("STRUCT")
        known = {"DOUBLE": "DOUBLE PRECISION", "VARCHAR": "TEXT"}
        columns.append(f"{name} {'TEXT' if nested else known.get(type_, type_)}")
    peer.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
    with (
        own.cursor().copy(f"COPY (SELECT * FROM {source}) TO STDOUT") as rows,
        peer.cursor().copy(f"COPY {table} FROM STDIN") as copy,
    ):
        while data := rows.read():
            copy.write(data)


def run(kind: str, events: int, turns: int, fetches: Sequence[int], only: str, directory: Path) -> str:
    """The benchmark of one table; the result as a Markdown table."""
    seconds: dict[tuple[str, int], list[float]] = {}
    with ExitStack() as stack:
        peer_conninfo = stack.enter_context(postgres.server())
        conninfo = stack.enter_context(ducktail_server(directory))
        print(f"{kind}: filling both with the same {events:,} events ...", flush=True)
        with connect(conninfo) as own, connect(peer_conninfo) as peer:
            log_reads.fill(own, peer, kind, events, 10_000)
            copy_rows(own, peer, "facts", "facts")
            copy_rows(own, peer, "in_log_changes", "changes")
            peer.execute("ALTER TABLE facts ADD PRIMARY KEY (id); CREATE INDEX ON changes (_partition, _lsn)")
            peer.execute("ANALYZE")
        spark = session(directory)
        stack.callback(spark.stop)
        every = [one for one in reads(conninfo, peer_conninfo, events) if only in one.name or not one.peer]
        for turn in range(turns + 1):
            for read in every:
                for fetch in fetches:
                    frame = read.frame(spark, fetch)
                    begun = time.perf_counter()
                    frame.write.format("noop").mode("overwrite").save()
                    taken = time.perf_counter() - begun
                    # The first turn warms everything up.
                    if turn or not turns:
                        seconds.setdefault((read.name, fetch), []).append(taken)
                        print(f"{kind:8} {read.name:32} {fetch or 'unset':>6} {taken:7.2f} s", flush=True)
    middle = {key: statistics.median(found) for key, found in seconds.items()}
    lines = [
        f"## {kind.capitalize()} table",
        "",
        f"{events:,} events in {PARTS} partitions, {turns} turns, seconds; in brackets PostgreSQL's time "
        f"with the same fetchsize divided by it (bar {BAR}).",
        "",
        f"| read | {' | '.join(f'fetchsize {fetch:,}' if fetch else 'unset' for fetch in fetches)} |",
        f"|---|{'---:|' * len(fetches)}",
    ]
    for read in every:
        cells = []
        for fetch in fetches:
            own_s = middle[read.name, fetch]
            ratio = f" ({middle[read.peer, fetch] / own_s:.2f})" if read.peer else ""
            cells.append(f"{own_s:.2f}{ratio}")
        lines.append(f"| {read.name} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--events", type=int, default=500_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument(
        "--tables", nargs="+", choices=tuple(log_reads.TABLES), default=list(log_reads.TABLES)
    )
    parser.add_argument("--fetches", nargs="+", type=int, default=list(FETCHES))
    parser.add_argument("--only", default="", help="reads whose name contains this")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "spark_jdbc.md")
    arguments = parser.parse_args()
    if not DRIVER.exists():
        raise SystemExit("The benchmark wants pgjdbc: make deps")
    pages = []
    for kind in arguments.tables:
        with tempfile.TemporaryDirectory() as directory:
            pages.append(
                run(
                    kind,
                    arguments.events,
                    arguments.turns,
                    arguments.fetches,
                    arguments.only,
                    Path(directory),
                )
            )
    about = (
        f"PySpark {pyspark.__version__}, local[2], pgjdbc; Python {platform.python_version()}, "
        f"{os.cpu_count()} cores; into no-op."
    )
    page = "\n".join(["# Spark over JDBC", "", about, "", *pages])
    arguments.output.parent.mkdir(exist_ok=True)
    arguments.output.write_text(page)
    print(f"\n{page}\nwritten to {arguments.output}")


if __name__ == "__main__":
    main()
