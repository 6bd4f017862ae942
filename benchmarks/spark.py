"""Spark reads a stream of typed events: the connector beside Spark's own JDBC, and what a micro-batch costs.

The same events stand in a stream of ducktail's, with one partition, and in a table of a PostgreSQL server
with the same typed columns. Each way of reading them takes its turn in one Spark session, local[2], into a
sink that does nothing and into Parquet. The floor is the same rows as Arrow batches that a Python data
source has in memory: what Spark costs by itself. A micro-batch holds one event; beside it Spark's own rate
source.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import postgres
import psycopg
import pyarrow as pa
import pyspark
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from stream_read import FILL, LOAD, TABLE, ducktail_server

from ducktail.spark_connector.data_source import register

HERE = Path(__file__).resolve().parent
DRIVER = Path("/usr/share/java/postgresql.jar")
COLUMNS = "id, customer, item, quantity, price, currency, placed, shipped, city, note"
PEER = f"""
    CREATE TABLE events AS SELECT {COLUMNS}, 'insert' AS _change_type, id / {LOAD} AS _commit_version,
        now() AS _commit_timestamp, id + 1 AS _lsn, 0 AS _partition FROM orders;
    ALTER TABLE events ADD PRIMARY KEY (_lsn);
    ANALYZE events
"""
# Rows that the JDBC source asks for at a time: the fastest of those that were tried.
FETCH = 10_000
# What Spark tells of a micro-batch's time.
PARTS = ("triggerExecution", "latestOffset", "queryPlanning", "addBatch", "walCommit", "commitOffsets")


class Floor(DataSource):
    """The rows of an Arrow file, all read before the first is given."""

    @classmethod
    def name(cls) -> str:
        """For format()."""
        return "floor"

    def reader(self, schema: Any) -> DataSourceReader:
        """Of the file."""
        return FloorReader(self.options["file"])


class FloorReader(DataSourceReader):
    """One task."""

    def __init__(self, file: str) -> None:
        self._file = file

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches, which are mapped into memory."""
        with pa.memory_map(self._file) as source, pa.ipc.open_stream(source) as reader:
            yield from list(reader)


def session(directory: Path) -> SparkSession:
    """One Spark for all."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    made: SparkSession = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", str(DRIVER))
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("ERROR")
    register(made)
    made.dataSource.register(Floor)
    return made


def fill(conninfo: str, peer: str, events: int) -> None:
    """The same events in both."""
    with (
        psycopg.connect(conninfo, autocommit=True) as ducktail,
        psycopg.connect(peer, autocommit=True) as other,
    ):
        ducktail.execute(TABLE)
        ducktail.execute("CREATE STREAM orders_stream ON orders WITH (partitions = 1, buffer_bytes = '1 GB')")
        other.execute(TABLE)
        for first in range(0, events, LOAD):
            last = min(first + LOAD, events)
            text = FILL.format(first=first, last=last)
            ducktail.execute(text)
            # The same rows in PostgreSQL's words.
            text = text.replace(f"range({first}, {last})", f"generate_series({first}, {last - 1})")
            other.execute(text.replace("to_seconds(i)", "make_interval(secs => i)"))
        other.execute(PEER)


def jdbc(spark: SparkSession, conninfo: str, query: str) -> DataFrame:
    """Spark's own JDBC source over a query."""
    where = conninfo_to_dict(conninfo)
    url = f"jdbc:postgresql://{where['host']}:{where['port']}/{where['dbname']}?user={where['user']}"
    options = {"url": url, "driver": "org.postgresql.Driver", "query": query, "fetchsize": str(FETCH)}
    return spark.read.format("jdbc").options(**options).load()


def ways(spark: SparkSession, conninfo: str, peer: str, floor: Path) -> dict[str, DataFrame]:
    """Every way of reading the events."""
    where = conninfo_to_dict(conninfo)
    reader = spark.read.format("ducktail").options(
        host=str(where["host"]), port=str(where["port"]), stream="orders_stream"
    )
    connector = reader.load()
    memory = spark.read.format("floor").schema(connector.schema).option("file", str(floor))
    return {
        "connector, changes": connector,
        "connector, json": reader.option("envelope", "json").load(),
        "Spark JDBC on the gateway, changes": jdbc(
            spark, conninfo, "SELECT * FROM STREAM orders_stream ENVELOPE CHANGES"
        ),
        "Spark JDBC on PostgreSQL": jdbc(spark, peer, "SELECT * FROM events"),
        "Arrow batches from memory (floor)": memory.load(),
    }


def write_floor(conninfo: str, path: Path) -> None:
    """The rows as the connector hands them to Spark, in a file."""
    query = "SELECT * FROM orders_stream_changes ORDER BY _lsn"
    with psycopg.connect(conninfo) as connection, path.open("wb") as file:
        connection.execute("SET TimeZone = 'UTC'")
        with connection.cursor().copy(f"COPY ({query}) TO STDOUT (FORMAT arrow)") as copy:
            for piece in copy:
                file.write(piece)


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def micro_batches(frame: DataFrame, count: int, push: Callable[[], object]) -> list[dict[str, int]]:
    """Milliseconds of each micro-batch that had rows, by what Spark did, after the first few."""
    with tempfile.TemporaryDirectory() as checkpoint:
        query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        found: list[dict[str, int]] = []
        seen: set[int] = set()
        while len(found) < count + 3:
            push()
            query.processAllAvailable()
            for progress in query.recentProgress:
                if progress["numInputRows"] and progress["batchId"] not in seen:
                    seen.add(progress["batchId"])
                    found.append(progress["durationMs"])
        query.stop()
    return found[3 : count + 3]


def run(events: int, turns: int, batches: int, directory: Path) -> str:
    """The whole benchmark; the result as a Markdown page."""
    with ExitStack() as stack:
        peer = stack.enter_context(postgres.server())
        conninfo = stack.enter_context(ducktail_server(directory))
        print(f"filling both with the same {events:,} events ...", flush=True)
        fill(conninfo, peer, events)
        write_floor(conninfo, directory / "floor.arrow")
        spark = session(directory)
        stack.callback(spark.stop)
        rates: dict[tuple[str, str], list[float]] = {}
        frames = ways(spark, conninfo, peer, directory / "floor.arrow")
        for turn in range(turns + 1):
            for name, frame in frames.items():
                target = directory / "out"
                sinks = {
                    "no-op": partial(frame.write.format("noop").mode("overwrite").save),
                    "Parquet": partial(frame.write.mode("overwrite").parquet, str(target)),
                }
                for sink, work in sinks.items():
                    seconds = timed(work)
                    # The first turn warms everything up.
                    if turn:
                        rates.setdefault((name, sink), []).append(events / seconds)
                        print(f"{name:36} {sink:8} {events / seconds:>10,.0f}/s", flush=True)
                    shutil.rmtree(target, ignore_errors=True)
        medians = {key: statistics.median(found) for key, found in rates.items()}
        costs = stream_costs(spark, conninfo, batches)
        version = psycopg.connect(peer).info.parameter_status("server_version")
    return page(medians, costs, events, turns, f"PostgreSQL {version}", list(frames))


def stream_costs(spark: SparkSession, conninfo: str, batches: int) -> dict[str, list[dict[str, int]]]:
    """What a micro-batch of one row costs."""
    where = conninfo_to_dict(conninfo)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("CREATE TABLE ticks (id BIGINT PRIMARY KEY)")
        connection.execute("CREATE STREAM ticks_stream ON ticks WITH (partitions = 1)")
        number = 0

        def push() -> None:
            nonlocal number
            number += 1
            connection.execute("INSERT INTO ticks VALUES (%s)", (number,))

        # A poll's wait would count as the trigger's time.
        options = {"host": where["host"], "port": where["port"], "pollTimeout": "0 s"}
        ticks = spark.readStream.format("ducktail").options(**options, stream="ticks_stream").load()
        rate = spark.readStream.format("rate").options(rowsPerSecond="1").load()
        found = {"connector": micro_batches(ticks, batches, push)}
        found["rate source"] = micro_batches(rate, batches, lambda: None)
    return found


def page(
    medians: dict[tuple[str, str], float],
    costs: dict[str, list[dict[str, int]]],
    events: int,
    turns: int,
    peer: str,
    names: list[str],
) -> str:
    """The result."""
    lines = [
        "# Spark reads a stream",
        "",
        f"{events:,} events of ten typed columns in one partition, {turns} turns, medians, events a second; "
        f"PySpark {pyspark.__version__}, local[2], {peer}, fetchsize {FETCH:,}; Python "
        f"{platform.python_version()}, {os.cpu_count()} cores.",
        "",
        "| way | into no-op | into Parquet |",
        "|---|---:|---:|",
    ]
    for name in names:
        lines.append(f"| {name} | {medians[name, 'no-op']:,.0f} | {medians[name, 'Parquet']:,.0f} |")
    ratio = medians["connector, changes", "no-op"] / medians["Spark JDBC on PostgreSQL", "no-op"]
    of_floor = medians["connector, changes", "no-op"] / medians["Arrow batches from memory (floor)", "no-op"]
    middle = {
        name: {part: statistics.median(batch.get(part, 0) for batch in found) for part in PARTS}
        for name, found in costs.items()
    }
    whole = {name: found["triggerExecution"] for name, found in middle.items()}
    lines += [
        "",
        f"connector : Spark JDBC on PostgreSQL = **{ratio:.2f}**; of the floor {of_floor:.2f}",
        "",
        f"A micro-batch of one event into no-op, median of {len(costs['connector'])}, milliseconds:",
        "",
        f"| source | {' | '.join(PARTS)} |",
        f"|---|{'---:|' * len(PARTS)}",
        *(
            f"| {name} | {' | '.join(f'{found[part]:.0f}' for part in PARTS)} |"
            for name, found in middle.items()
        ),
        "",
        f"connector - rate source = **{whole['connector'] - whole['rate source']:+.0f} ms**",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "spark.md")
    arguments = parser.parse_args()
    if not DRIVER.exists():
        raise SystemExit("The benchmark wants pgjdbc: make deps")
    with tempfile.TemporaryDirectory() as directory:
        text = run(arguments.events, arguments.turns, arguments.batches, Path(directory))
    arguments.output.parent.mkdir(exist_ok=True)
    arguments.output.write_text(text)
    print(f"\n{text}\nwritten to {arguments.output}")


if __name__ == "__main__":
    main()
