"""`format("ducktail")` in a real Spark: batch and streaming reads, bad input, Spark's JDBC beside it."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from server_process import ServerProcess

pytest.importorskip("pyspark.sql", reason="pyspark is not installed")

pytestmark = pytest.mark.slow

Connection = psycopg.Connection[Any]
Read = Callable[..., Any]

TABLE = """
    CREATE TABLE orders (
        id INTEGER PRIMARY KEY, amount DECIMAL(12, 2), note VARCHAR, placed TIMESTAMP, seen TIMESTAMPTZ,
        day DATE, clock TIME, u UUID, big UBIGINT, huge HUGEINT, tiny UTINYINT, ok BOOLEAN, x DOUBLE,
        photo BLOB, doc JSON,
        tags VARCHAR[], spot STRUCT(lat DOUBLE, lon DOUBLE), names MAP(VARCHAR, INTEGER)
    )
"""
FULL = """
    INSERT INTO orders VALUES (1, 1.25, 'ä\tb', '2024-01-02 03:04:05.000006', '2024-01-02 03:04:05+00',
        '2024-01-02', '12:34:56.5', '00000000-0000-0000-0000-00000000002a', 18446744073709551615,
        170141183460469231731687303715884105727, 255, true, 1e300,
        '\\x00\\xff', '{"a": 1}', ['a', NULL], {'lat': 1.5, 'lon': NULL}, MAP {'k': 7})
"""
TYPES = [
    "int", "decimal(12,2)", "string", "timestamp_ntz", "timestamp", "date", "string", "string",
    "decimal(20,0)", "string", "smallint", "boolean", "double", "binary", "string", "array<string>",
    "struct<lat:double,lon:double>", "map<string,int>", "string", "bigint", "timestamp", "bigint", "int",
]  # fmt: skip


@pytest.fixture(scope="module")
def db(gateway: ServerProcess) -> Iterator[Connection]:
    """A shop: orders with every kind of column, and a small table with 200 rows and a stream, items."""
    with gateway.connect() as connection:
        connection.execute(TABLE)
        connection.execute("CREATE STREAM orders_stream ON orders WITH (partitions = 1)")
        connection.execute(FULL)
        connection.execute("INSERT INTO orders (id) VALUES (2)")
        connection.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, v INTEGER)")
        connection.execute("CREATE STREAM items_stream ON items WITH (partitions = 3)")
        for first in range(0, 200, 20):
            connection.execute("INSERT INTO items SELECT i, i FROM range(%s, %s) r(i)", (first, first + 20))
        yield connection


@pytest.fixture
def options(gateway: ServerProcess) -> dict[str, str]:
    """The way to the gateway, in a hurry."""
    return {"host": gateway.host, "port": str(gateway.port), "pollTimeout": "100 ms", "retryTimeout": "5 s"}


@pytest.fixture
def read(spark: Any, db: Connection, options: dict[str, str]) -> Read:
    """`read(stream="orders_stream")` is a batch data frame."""
    del options["pollTimeout"]
    return lambda **more: spark.read.format("ducktail").options(**options, **more).load()


@pytest.fixture
def stream(spark: Any, db: Connection, options: dict[str, str]) -> Read:
    """`stream(stream="orders_stream")` is a streaming data frame."""
    return lambda **more: spark.readStream.format("ducktail").options(**options, **more).load()


def run(frame: Any, checkpoint: Path, **trigger: Any) -> list[tuple[Any, ...]]:
    """All that a query reads until what is there now is read, in the batches' order."""
    found: list[tuple[Any, ...]] = []
    query = (
        frame.writeStream.option("checkpointLocation", str(checkpoint))
        .trigger(**(trigger or {"availableNow": True}))
        .foreachBatch(lambda batch, number: found.extend((number, *row) for row in batch.collect()))
        .start()
    )
    assert query.awaitTermination(60)
    return found


def failing(frame: Any, checkpoint: Path) -> str:
    """How a query fails; Spark's error, whose text has the Python exception's."""
    with pytest.raises(Exception) as caught:
        run(frame, checkpoint)
    return str(caught.value)


# Batch.


def test_every_type(read: Read) -> None:
    frame = read(stream="orders_stream")
    assert [field.dataType.simpleString() for field in frame.schema] == TYPES
    full, empty = (tuple(row)[:18] for row in frame.orderBy("id").collect())
    assert full[:4] == (1, Decimal("1.25"), "ä\tb", datetime.datetime(2024, 1, 2, 3, 4, 5, 6))
    assert full[5:9] == (
        datetime.date(2024, 1, 2), "12:34:56.5", "00000000-0000-0000-0000-00000000002a",
        Decimal(2**64 - 1),
    )  # fmt: skip
    assert full[9:15] == (str(2**127 - 1), 255, True, 1e300, bytearray(b"\x00\xff"), '{"a": 1}')
    assert full[15:] == (["a", None], (1.5, None), {"k": 7})
    assert empty == (2, *[None] * 17)


def test_ranges(read: Read, db: Connection) -> None:
    first, last, at = db.execute(
        "SELECT min(lsn), max(lsn), max(commit_time) FILTER (key ->> 'id' = '59') FROM items_stream"
    ).fetchone() or (0, 0, "")
    items = {"stream": "items_stream"}
    assert read(**items).count() == 200
    assert read(**items, startingLsn=first + 20, endingLsn=first + 29).count() == 10
    assert read(**items, endingTimestamp=at.isoformat()).count() == 60
    later = read(**items, startingTimestamp=at.isoformat())
    assert later.count() == 160 and later.rdd.getNumPartitions() == 3
    assert read(**items, minPartitions=7).rdd.getNumPartitions() >= 7
    assert read(**items, startingLsn=last, minPartitions=7).count() == 1


def test_the_same_frame_reads_the_same_range_again(read: Read, db: Connection) -> None:
    frame = read(stream="items_stream")
    before = frame.count()
    db.execute("UPDATE items SET v = v + 1 WHERE id = 5")
    assert frame.count() == before
    assert read(stream="items_stream").count() == before + 2


def test_a_table_and_columns_by_schema(read: Read, spark: Any, options: dict[str, str]) -> None:
    assert read(table="items").count() == 200
    assert read(table="main.items").agg({"id": "sum"}).collect()[0][0] == sum(range(200))
    frame = spark.read.format("ducktail").schema("_lsn long, id int").options(**options)
    assert frame.option("stream", "items_stream").load().where("id < 3 AND _lsn IS NOT NULL").count() >= 3


def test_filters_of_one_query_are_not_the_next_ones(read: Read, spark: Any, db: Connection) -> None:
    """Spark keeps the filters that a source has taken for all queries of a data frame; so none is taken."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = read(stream="items_stream", endingLsn=150)
        every = frame.count()
        assert frame.where("id = 3").count() == 1
        assert frame.count() == every
        assert frame.where("id = 3").union(frame.where("id = 4")).count() == 2
        assert frame.where("id = 3 OR v IS NULL").count() == 1
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


@pytest.mark.jdbc
def test_the_same_rows_as_spark_jdbc(read: Read, spark: Any, gateway: ServerProcess) -> None:
    columns = ["id", "v", "_change_type", "_commit_version", "_commit_timestamp", "_lsn", "_partition"]
    ours = read(stream="items_stream", startingLsn=30, endingLsn=120).select(*columns).collect()
    scan = "STREAM items_stream ENVELOPE CHANGES WHERE _lsn >= 30 AND _lsn <= 120"
    theirs = (
        spark.read.format("jdbc")
        .option("url", f"jdbc:postgresql://{gateway.host}:{gateway.port}/ducktail?user=ducktail")
        .option("driver", "org.postgresql.Driver")
        .option("query", f"SELECT {', '.join(columns)} FROM {scan}")
        .load()
        .collect()
    )
    assert sorted(map(tuple, ours)) == sorted(map(tuple, theirs)) and len(ours) == 91


# Streaming.


def test_a_query_its_checkpoint_and_its_group(
    stream: Read, db: Connection, tmp_path: Path, gateway: ServerProcess
) -> None:
    frame = stream(stream="items_stream", maxEventsPerTrigger=50, consumerGroup="spark")
    before = (db.execute("SELECT count(*) FROM items_stream").fetchone() or (0,))[0]
    rows = run(frame, tmp_path / "check")
    lsns = {row[-2] for row in rows}
    assert len(lsns) == before and {row[0] for row in rows} == set(range(-(-before // 50)))
    committed = "SELECT sum(lag_events) FROM ducktail.offsets WHERE group_name = 'spark'"
    assert db.execute(committed).fetchone() == (0,)
    db.execute("INSERT INTO items SELECT i, i FROM range(1000, 1030) r(i)")
    again = run(frame, tmp_path / "check")
    assert sorted(row[1] for row in again) == list(range(1000, 1030))
    assert run(frame, tmp_path / "check") == []
    assert db.execute(committed).fetchone() == (0,)
    last = sorted((tmp_path / "check" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))[-1]
    offset = json.loads(last.read_text().splitlines()[-1])
    assert list(offset) == ["0", "1", "2", "stream"] and offset["stream"].startswith("main.items_stream@")


def test_a_query_that_goes_on(stream: Read, db: Connection, tmp_path: Path) -> None:
    found: list[int] = []
    frame = stream(stream="items_stream", startingOffsets="latest", consumerGroup="live")
    query = (
        frame.writeStream.option("checkpointLocation", str(tmp_path / "check"))
        .foreachBatch(lambda batch, number: found.extend(row.id for row in batch.collect()))
        .start()
    )
    try:
        query.processAllAvailable()
        assert found == []
        for number in (2000, 2001):
            db.execute("INSERT INTO items VALUES (%s, 0)", (number,))
            query.processAllAvailable()
        assert found == [2000, 2001]
    finally:
        query.stop()
