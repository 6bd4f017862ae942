"""Spark reads and writes typed events: the connector beside Spark's own JDBC, and what a micro-batch costs.

reads: the same events stand in a stream of ducktail's, with one partition, and in a table of a PostgreSQL
server with the same typed columns. Each way of reading them takes its turn in one Spark session, local[2],
into a sink that does nothing and into Parquet. The floors are the same rows, typed and as JSON, as Arrow
batches that a Python data source has in memory: what Spark costs by itself. Cold is the first read after a
restart of the server.

writes: the same rows, cached in Spark, into tables and a topic by the connector, and into a PostgreSQL table
by Spark's JDBC.

batches: a micro-batch of one event, and a trigger that finds nothing, beside Spark's own rate source and a
source in Python that has its row in memory.

Each part can be run alone; what it found is kept in a file, and the page is made of all that is there.
"""

from __future__ import annotations

import argparse
import json
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
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
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
CONNECTOR, JSON, PEER_WAY = "connector, changes", "connector, json", "Spark JDBC on PostgreSQL"
FLOOR, JSON_FLOOR = "changes from memory (floor)", "json from memory (floor)"
COLD = "connector, changes, cold"
PEER_SINK = "Spark JDBC, a PostgreSQL table"
# Rows that the JDBC source asks for at a time: the fastest of those that were tried.
FETCH = 10_000
# Rows of an INSERT of Spark's JDBC sink: likewise.
INSERTED = 10_000
# The outermost parts of the benchmark.
CHOICES = ("reads", "writes", "batches")
# The same rows for every way of writing them.
ROWS = (
    "id",
    "CAST(id % 1000 AS INT) AS customer",
    "concat('item ', id % 50) AS item",
    "CAST(id % 7 AS INT) AS quantity",
    "CAST(id % 1000 / 100 AS DECIMAL(12, 2)) AS price",
    "'EUR' AS currency",
    "TIMESTAMP_NTZ '2024-01-01 00:00:00' AS placed",
    "id % 2 = 0 AS shipped",
    "concat('city ', id % 97) AS city",
    "concat('note of order ', id) AS note",
)
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


class Ticks(DataSource):
    """A row whenever a file grows, from Python's memory: what Spark's Python sources cost by themselves."""

    @classmethod
    def name(cls) -> str:
        """For format()."""
        return "ticks"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """Of the file."""
        return TicksReader(self.options["file"])


class TicksReader(DataSourceStreamReader):
    """One task, one row, whatever there is."""

    def __init__(self, file: str) -> None:
        self._file = file

    def initialOffset(self) -> dict[str, int]:
        """The file's beginning."""
        return {"bytes": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        """None."""
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """The file's end."""
        return {"bytes": Path(self._file).stat().st_size}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """One."""
        return [InputPartition(end["bytes"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One row."""
        yield pa.record_batch({"id": pa.array([partition.value], pa.int64())})


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
        .config("spark.sql.streaming.noDataProgressEventInterval", "0")
        .config("spark.sql.streaming.numRecentProgressUpdates", "10000")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("ERROR")
    register(made)
    made.dataSource.register(Floor)
    made.dataSource.register(Ticks)
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


def ways(spark: SparkSession, conninfo: str, peer: str, directory: Path) -> dict[str, DataFrame]:
    """Every way of reading the events."""
    where = conninfo_to_dict(conninfo)
    reader = spark.read.format("ducktail").options(
        host=str(where["host"]), port=str(where["port"]), stream="orders_stream"
    )
    connector, events = reader.load(), reader.option("envelope", "json").load()

    def memory(of: DataFrame, name: str) -> DataFrame:
        return spark.read.format("floor").schema(of.schema).option("file", str(directory / name)).load()

    return {
        CONNECTOR: connector,
        JSON: events,
        "Spark JDBC on the gateway, changes": jdbc(
            spark, conninfo, "SELECT * FROM STREAM orders_stream ENVELOPE CHANGES"
        ),
        PEER_WAY: jdbc(spark, peer, "SELECT * FROM events"),
        FLOOR: memory(connector, "changes.arrow"),
        JSON_FLOOR: memory(events, "json.arrow"),
    }


def write_floor(conninfo: str, query: str, path: Path) -> None:
    """The rows as the connector hands them to Spark, in a file."""
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


def micro_batches(
    frame: DataFrame, count: int, push: Callable[[], object]
) -> dict[str, list[dict[str, int]]]:
    """Milliseconds by what Spark did, after the first few: micro-batches with a row, triggers without.

    Args:
        push: makes a row.
    """
    found: dict[str, dict[str, dict[str, int]]] = {"one": {}, "empty": {}}
    with tempfile.TemporaryDirectory() as checkpoint:
        query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        while min(map(len, found.values())) < count + 3:
            push()
            query.processAllAvailable()
            for progress in query.recentProgress:
                kind = "one" if progress["numInputRows"] else "empty"
                # A trigger that ran no batch has no addBatch.
                if kind == "one" or "addBatch" not in progress["durationMs"]:
                    found[kind][progress["timestamp"]] = progress["durationMs"]
        query.stop()
    return {kind: list(durations.values())[3 : count + 3] for kind, durations in found.items()}


def spread(rates: list[float]) -> dict[str, float]:
    """The median, and the slowest and the fastest turn."""
    return {"median": statistics.median(rates), "low": min(rates), "high": max(rates)}


def reads(stack: ExitStack, directory: Path, events: int, turns: int) -> dict[str, Any]:
    """Events a second of every way of reading, by way and sink."""
    peer = stack.enter_context(postgres.server())
    with ducktail_server(directory) as conninfo:
        print(f"filling both with the same {events:,} events ...", flush=True)
        fill(conninfo, peer, events)
        write_floor(
            conninfo, "SELECT * FROM orders_stream_changes ORDER BY _lsn", directory / "changes.arrow"
        )
        write_floor(conninfo, "SELECT * FROM orders_stream ORDER BY lsn", directory / "json.arrow")
        spark = session(directory)
        stack.callback(spark.stop)
        rates: dict[str, dict[str, list[float]]] = {}
        frames = ways(spark, conninfo, peer, directory)
        for turn in range(turns + 1):
            for name, frame in frames.items():
                for sink, work in sinks(frame, directory / "out").items():
                    seconds = timed(work)
                    # The first turn warms everything up.
                    if turn:
                        rates.setdefault(name, {}).setdefault(sink, []).append(events / seconds)
                        print(f"{name:36} {sink:8} {events / seconds:>10,.0f}/s", flush=True)
    for _ in range(turns):
        for sink in ("no-op", "Parquet"):
            with ducktail_server(directory) as conninfo:
                frame = ways(spark, conninfo, peer, directory)[CONNECTOR]
                seconds = timed(sinks(frame, directory / "out")[sink])
            rates.setdefault(COLD, {}).setdefault(sink, []).append(events / seconds)
            print(f"{COLD:36} {sink:8} {events / seconds:>10,.0f}/s", flush=True)
    found = {name: {sink: spread(rate) for sink, rate in of_way.items()} for name, of_way in rates.items()}
    version = psycopg.connect(peer).info.parameter_status("server_version")
    return {"events": events, "turns": turns, "peer": f"PostgreSQL {version}", "rates": found}


def sinks(frame: DataFrame, target: Path) -> dict[str, Callable[[], object]]:
    """What reads all of a frame."""
    shutil.rmtree(target, ignore_errors=True)
    return {
        "no-op": partial(frame.write.format("noop").mode("overwrite").save),
        "Parquet": partial(frame.write.mode("overwrite").parquet, str(target)),
    }


def writes(stack: ExitStack, directory: Path, rows: int, turns: int) -> dict[str, Any]:
    """Rows a second of every way of writing."""
    peer = stack.enter_context(postgres.server())
    conninfo = stack.enter_context(ducktail_server(directory))
    spark = session(directory)
    stack.callback(spark.stop)
    frame = spark.range(0, rows, 1, 2).selectExpr(*ROWS).cache()
    events = frame.selectExpr("CAST(customer AS STRING) AS key", "to_json(struct(*)) AS value").cache()
    frame.count()
    events.count()
    rates: dict[str, list[float]] = {}
    for turn in range(turns + 1):
        for name, (made, writer) in writers(frame, events, conninfo, peer).items():
            where, text = (peer, made) if name == PEER_SINK else (conninfo, made)
            with psycopg.connect(where, autocommit=True) as connection:
                for statement in text:
                    connection.execute(statement)
            seconds = timed(writer.mode("append").save)
            if turn:
                rates.setdefault(name, []).append(rows / seconds)
                print(f"{name:36} {rows / seconds:>10,.0f}/s", flush=True)
    return {"rows": rows, "turns": turns, "rates": {name: spread(rate) for name, rate in rates.items()}}


def writers(
    frame: DataFrame, events: DataFrame, conninfo: str, peer: str
) -> dict[str, tuple[list[str], Any]]:
    """Every way of writing: what makes an empty target, and the writer."""
    where = conninfo_to_dict(conninfo)
    gateway = {"host": str(where["host"]), "port": str(where["port"])}

    def own(rows: DataFrame, **options: str) -> Any:
        return rows.write.format("ducktail").options(**gateway, **options)

    there = conninfo_to_dict(peer)
    url = f"jdbc:postgresql://{there['host']}:{there['port']}/{there['dbname']}?user={there['user']}"
    jdbc_options = {
        "url": url + "&reWriteBatchedInserts=true", "driver": "org.postgresql.Driver", "dbtable": "plain",
        "batchsize": str(INSERTED),
    }  # fmt: skip
    plain = ["DROP TABLE IF EXISTS plain", TABLE.replace("orders", "plain")]
    captured = [
        "DROP STREAM IF EXISTS captured_stream", "DROP TABLE IF EXISTS captured",
        TABLE.replace("orders", "captured"),
        "CREATE STREAM captured_stream ON captured WITH (partitions = 1)",
    ]  # fmt: skip
    topic = ["DROP TOPIC IF EXISTS written", "CREATE TOPIC written WITH (partitions = 1)"]
    return {
        "connector, a table": (plain, own(frame, table="plain")),
        "connector, a table with a stream": (captured, own(frame, table="captured")),
        "connector, upsert into it": ([], own(frame, table="captured", writeMode="upsert")),
        "connector, a topic": (topic, own(events, topic="written")),
        PEER_SINK: (plain, frame.write.format("jdbc").options(**jdbc_options)),
    }


def batches(stack: ExitStack, directory: Path, count: int) -> dict[str, Any]:
    """What a micro-batch of one row costs, and a trigger that finds none."""
    conninfo = stack.enter_context(ducktail_server(directory))
    spark = session(directory)
    stack.callback(spark.stop)
    where = conninfo_to_dict(conninfo)
    connection = stack.enter_context(psycopg.connect(conninfo, autocommit=True))
    connection.execute("CREATE TABLE ticks (id BIGINT PRIMARY KEY)")
    connection.execute("CREATE STREAM ticks_stream ON ticks WITH (partitions = 1)")
    file = directory / "ticks"
    file.touch()
    number = 0

    def push() -> None:
        nonlocal number
        number += 1
        connection.execute("INSERT INTO ticks VALUES (%s)", (number,))

    def add() -> None:
        with file.open("ab") as ticks:
            ticks.write(b".")

    # A poll's wait would count as the trigger's time.
    options = {"host": where["host"], "port": where["port"], "pollTimeout": "0 s"}
    reader = spark.readStream
    costs = {
        "connector": micro_batches(
            reader.format("ducktail").options(**options, stream="ticks_stream").load(), count, push
        ),
        "Python source, a row from memory": micro_batches(
            reader.schema("id BIGINT").format("ticks").option("file", str(file)).load(), count, add
        ),
        "rate source": micro_batches(
            spark.readStream.format("rate").options(rowsPerSecond="1").load(), count, lambda: None
        ),
    }
    middle = {
        name: {
            kind: {part: statistics.median(batch.get(part, 0) for batch in found) for part in PARTS}
            for kind, found in kinds.items()
        }
        for name, kinds in costs.items()
    }
    return {"count": count, "costs": middle}


def page(found: dict[str, Any]) -> str:
    """The result."""
    lines = [
        "# Spark reads and writes",
        "",
        f"PySpark {pyspark.__version__}, local[2]; Python {platform.python_version()}, {os.cpu_count()} "
        "cores. Medians of turns, in brackets the slowest and the fastest.",
        "",
    ]
    if "reads" in found:
        lines += reads_page(found["reads"])
    if "writes" in found:
        lines += writes_page(found["writes"])
    if "batches" in found:
        lines += batches_page(found["batches"])
    return "\n".join(lines)


def shown(rate: dict[str, float]) -> str:
    """A rate as a cell."""
    if rate["low"] == rate["high"]:
        return f"{rate['median']:,.0f}"
    return f"{rate['median']:,.0f} ({rate['low']:,.0f}-{rate['high']:,.0f})"


def reads_page(found: dict[str, Any]) -> list[str]:
    """Of the reads."""
    rates = found["rates"]
    own = rates[CONNECTOR]["no-op"]["median"]
    ratio = own / rates[PEER_WAY]["no-op"]["median"]

    def of_floor(way: str, floor: str) -> str:
        return f"{rates[way]['no-op']['median'] / rates[floor]['no-op']['median']:.2f}"

    return [
        "## Reads",
        "",
        f"{found['events']:,} events of ten typed columns in one partition, events a second, "
        f"{found['turns']} turns; {found['peer']}, fetchsize {FETCH:,}. "
        "Cold is the first read after a restart of the server.",
        "",
        "| way | into no-op | into Parquet |",
        "|---|---:|---:|",
        *(f"| {name} | {shown(of['no-op'])} | {shown(of['Parquet'])} |" for name, of in rates.items()),
        "",
        f"connector : Spark JDBC on PostgreSQL = **{ratio:.2f}**; of the floors: changes "
        f"{of_floor(CONNECTOR, FLOOR)}, cold {of_floor(COLD, FLOOR)}, json {of_floor(JSON, JSON_FLOOR)}",
        "",
    ]


def writes_page(found: dict[str, Any]) -> list[str]:
    """Of the writes."""
    rates = found["rates"]
    peer = rates[PEER_SINK]["median"]
    return [
        "## Writes",
        "",
        f"{found['rows']:,} rows of ten typed columns from two tasks, rows a second, {found['turns']} turns; "
        f"for the topic their JSON. JDBC with batchsize {INSERTED:,} and reWriteBatchedInserts.",
        "",
        "| way | rows a second | : JDBC on PostgreSQL |",
        "|---|---:|---:|",
        *(f"| {name} | {shown(rate)} | {rate['median'] / peer:.2f} |" for name, rate in rates.items()),
        "",
    ]


def batches_page(found: dict[str, Any]) -> list[str]:
    """Of the micro-batches."""
    costs = found["costs"]
    lines = ["## Micro-batches", "", f"Milliseconds, median of {found['count']}, into no-op."]
    for kind, title in (("one", "of one event"), ("empty", "a trigger that finds nothing")):
        lines += [
            "",
            f"| {title} | {' | '.join(PARTS)} |",
            f"|---|{'---:|' * len(PARTS)}",
            *(
                f"| {name} | {' | '.join(f'{kinds[kind][part]:.0f}' for part in PARTS)} |"
                for name, kinds in costs.items()
            ),
        ]
    whole = {
        (name, kind): times["triggerExecution"]
        for name, kinds in costs.items()
        for kind, times in kinds.items()
    }
    one, memory, rate = (whole[name, "one"] for name in costs)
    empty = whole["connector", "empty"] - whole["rate source", "empty"]
    return [
        *lines,
        "",
        f"connector - rate source: nothing found **{empty:+.0f} ms**, one event **{one - rate:+.0f} ms**; "
        f"of these any source in Python {memory - rate:+.0f} ms, the connector {one - memory:+.0f} ms",
        "",
    ]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("part", nargs="*", help=f"{', '.join(CHOICES)}; all where none is named")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "spark.md")
    parser.add_argument("--kept", type=Path, help="a file with what parts that ran before have found")
    arguments = parser.parse_args()
    wrong = [part for part in arguments.part if part not in CHOICES]
    if wrong:
        parser.error(f"there is no part {wrong[0]}: {', '.join(CHOICES)}")
    if not DRIVER.exists():
        raise SystemExit("The benchmark wants pgjdbc: make deps")
    found: dict[str, Any] = {}
    if arguments.kept is not None and arguments.kept.exists():
        found = json.loads(arguments.kept.read_text())
    for part in arguments.part or CHOICES:
        with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
            where = Path(directory)
            if part == "reads":
                found[part] = reads(stack, where, arguments.events, arguments.turns)
            elif part == "writes":
                found[part] = writes(stack, where, arguments.rows, arguments.turns)
            else:
                found[part] = batches(stack, where, arguments.batches)
        if arguments.kept is not None:
            arguments.kept.write_text(json.dumps(found))
    text = page(found)
    arguments.output.parent.mkdir(exist_ok=True)
    arguments.output.write_text(text)
    print(f"\n{text}\nwritten to {arguments.output}")


if __name__ == "__main__":
    main()
