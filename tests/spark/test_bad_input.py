"""Bad input in a real Spark: one clear error in the driver that names the option, within seconds, no hang.

What wants no Spark for it is in test_connection.py (a connection), test_reader.py (offsets, gaps, columns)
and test_options.py.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from server_process import ServerProcess

pytest.importorskip("pyspark.sql", reason="pyspark is not installed")

pytestmark = pytest.mark.slow

Connection = psycopg.Connection[Any]
Read = Callable[..., Any]
# An error that comes later than this is a retry too many.
SOON_S = 60.0


@pytest.fixture(scope="module")
def db(gateway: ServerProcess) -> Iterator[Connection]:
    """A table with a stream and one row: items; and a user ann, whom a password lets in."""
    with gateway.connect() as connection:
        connection.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, v INTEGER)")
        connection.execute("CREATE STREAM items_stream ON items")
        connection.execute("INSERT INTO items VALUES (1, 1)")
        connection.execute("CREATE USER ann PASSWORD 'right' SUPERUSER")
    with gateway.connect(user="ann", password="right") as connection:
        yield connection


@pytest.fixture
def options(gateway: ServerProcess, db: Connection) -> dict[str, str]:
    """The way to the gateway; retries would last longer than a test may."""
    return {
        "host": gateway.host, "port": str(gateway.port), "user": "ann", "password": "right",
        "pollTimeout": "100 ms", "retryTimeout": "10 min",
    }  # fmt: skip


@pytest.fixture
def read(spark: Any, options: dict[str, str]) -> Read:
    """`read(stream="items_stream")` is a batch data frame."""
    del options["pollTimeout"]
    return lambda **more: spark.read.format("ducktail").options(**{**options, **more}).load()


@pytest.fixture
def stream(spark: Any, options: dict[str, str]) -> Read:
    """`stream(stream="items_stream")` is a streaming data frame."""
    return lambda **more: spark.readStream.format("ducktail").options(**{**options, **more}).load()


def started(frame: Any, checkpoint: Path) -> Any:
    """A query that runs, to nowhere."""
    return frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()


def failing(query: Any) -> str:
    """How a query fails, soon; Spark's error, whose text has the Python exception's."""
    began = time.monotonic()
    try:
        with pytest.raises(Exception) as caught:
            assert not query.awaitTermination(SOON_S), "it ended well"
            pytest.fail(f"it still runs after {SOON_S} s")
    finally:
        query.stop()
    assert time.monotonic() - began < SOON_S
    return str(caught.value)


def wrong(do: Callable[[], object]) -> str:
    """How a call fails, soon."""
    began = time.monotonic()
    with pytest.raises(Exception) as caught:
        do()
    assert time.monotonic() - began < SOON_S, str(caught.value)
    return str(caught.value)


def test_at_load(read: Read, silent: tuple[str, int]) -> None:
    host, port = silent
    for given, said in [
        ({"stream": "nope"}, 'option stream: stream "nope" does not exist'),
        ({"stream": "items_stream", "host": "no-such-host.invalid"}, "option host: no such host"),
        (
            {"stream": "items_stream", "port": "1", "retryTimeout": "1 s"},
            "options host, port: nobody answers",
        ),
        (
            {
                "stream": "items_stream",
                "host": host,
                "port": str(port),
                "connectTimeout": "2 s",
                "retryTimeout": "0 s",
            },
            f"at {host}:{port} .options host, port, connectTimeout: no answer in time",
        ),
        ({"stream": "items_stream", "database": "other"}, "option database.*3D000"),
        ({"stream": "items_stream", "password": "no"}, "options user, password: not let in.*28P01"),
        ({"stream": "items_stream", "maxEvents": "1"}, "unknown option maxEvents"),
        ({"table": "nope"}, 'reading table "nope" failed \\(option table\\)'),
        ({}, "option stream or table is missing"),
        ({"stream": "items_stream", "startingOffsets": "earliest"}, "startingOffsets does not apply to read"),
    ]:
        error = wrong(lambda given=given: read(**given).count())
        assert re.search(said, error, re.IGNORECASE), (given, error[-600:])
    error = wrong(lambda: read(stream="items_stream", endingLsn=10**9).count())
    assert "option endingLsn cannot be 1000000000" in error


def test_a_wrong_password_in_a_job(spark: Any, options: dict[str, str], tmp_path: Path) -> None:
    """Where load() asks nobody, as the schema is given: a read, a query, a write and a query's write."""
    bad = {**options, "password": "wrong"}
    del bad["pollTimeout"]
    told = ("options user, password: not let in", 'password authentication failed for user "ann"', "(28P01)")
    known = spark.read.format("ducktail").schema("id int").options(**bad, stream="items_stream").load()
    rows = spark.range(3).selectExpr("int(id) AS id", "0 AS v")
    save = rows.write.format("ducktail").options(**bad, table="items").mode("append").save
    for error in (wrong(known.count), wrong(save)):
        assert all(words in error for words in told) and "wrong" not in error, error
    reading = spark.readStream.format("ducktail").schema("id int").options(**bad, stream="items_stream")
    rate = spark.readStream.format("rate").load().selectExpr("int(value) AS id", "0 AS v")
    sink = rate.writeStream.format("ducktail").options(**bad, table="items")
    for query in (
        started(reading.load(), tmp_path / "read"),
        sink.option("checkpointLocation", str(tmp_path / "write")).start(),
    ):
        error = failing(query)
        assert all(words in error for words in told) and "wrong" not in error, error


def test_a_query_that_cannot_be(stream: Read, db: Connection, tmp_path: Path) -> None:
    db.execute("CREATE STREAM other_stream ON items")
    query = started(stream(stream="other_stream"), tmp_path / "check")
    query.processAllAvailable()
    query.stop()
    error = failing(started(stream(stream="items_stream"), tmp_path / "check"))
    assert 'the checkpoint is of stream "main.other_stream"' in error
    error = failing(started(stream(stream="items_stream", startingOffsets="latest"), tmp_path / "latest"))
    assert "wants option consumerGroup" in error and "UnboundLocalError" not in error
    past = stream(stream="items_stream", startingOffsets='{"0": 1000000000}')
    assert "past the end of stream" in failing(started(past, tmp_path / "past"))


def test_wrong_columns_and_targets_run_no_task(spark: Any, options: dict[str, str], tmp_path: Path) -> None:
    """They fail while Spark plans."""
    del options["pollTimeout"]

    def known(reader: Any, **more: str) -> Any:
        return reader.format("ducktail").schema("id int, w int").options(**options, **more).load()

    rows = spark.range(3).selectExpr("int(id) AS id", "0 AS w")

    def save(table: str) -> Callable[[], object]:
        return rows.write.format("ducktail").options(**options, table=table).mode("append").save

    group = "planned"
    spark.sparkContext.setJobGroup(group, "")
    try:
        for call, said in (
            (known(spark.read, stream="items_stream").count, 'stream "items_stream" has no column "w"'),
            (known(spark.read, table="items").count, 'table "items" has no column "w".* id int, v int'),
            (save("items"), 'table "items" has no column "w" of the data frame'),
            (save("nope"), 'table "nope" does not exist'),
        ):
            assert re.search(said, wrong(call))
        assert not spark.sparkContext.statusTracker().getJobIdsForGroup(group)
    finally:
        spark.sparkContext._jsc.clearJobGroup()
    query = started(known(spark.readStream, stream="items_stream"), tmp_path / "read")
    assert 'stream "items_stream" has no column "w"' in failing(query)
    rate = spark.readStream.format("rate").load().selectExpr("int(value) AS id")
    sink = rate.writeStream.format("ducktail").options(**options, table="nope")
    error = failing(sink.option("checkpointLocation", str(tmp_path / "write")).start())
    assert 'table "nope" does not exist' in error


@pytest.fixture
def short(db: Connection) -> Iterator[Connection]:
    """A table with a stream and a row, short_stream."""
    db.execute("CREATE TABLE short (id INTEGER PRIMARY KEY, v INTEGER)")
    db.execute("CREATE STREAM short_stream ON short")
    db.execute("INSERT INTO short VALUES (1, 1)")
    yield db
    db.execute("DROP STREAM IF EXISTS short_stream CASCADE")
    db.execute("DROP TABLE short")


def test_a_stream_dropped_under_a_query(stream: Read, short: Connection, tmp_path: Path) -> None:
    """Also while the query waits for an event, for longer than this test lasts."""
    options = {"stream": "short_stream", "consumerGroup": "under", "pollTimeout": "10 min"}
    query = started(stream(**options), tmp_path / "check")
    waits = "SELECT count(*) FROM ducktail.sessions WHERE waits_for = 'events'"
    while short.execute(waits).fetchone() == (0,):
        assert query.isActive
    short.execute("DROP STREAM short_stream CASCADE")
    error = failing(query)
    assert "option stream" in error and "does not exist" in error and "42704" in error, error


def test_a_stream_made_again_under_a_query(stream: Read, short: Connection, tmp_path: Path) -> None:
    """And between two runs of a checkpoint: never does a query go on at old offsets, nor does its group."""
    options = {"stream": "short_stream", "consumerGroup": "again"}
    query = started(stream(**options), tmp_path / "check")
    query.processAllAvailable()
    assert short.execute("SELECT count(*) FROM ducktail.consumer_groups").fetchone() == (1,)
    # The query sees the new one, if it does not look in between.
    short.execute("DROP STREAM short_stream CASCADE")
    short.execute("CREATE STREAM short_stream ON short")
    short.execute("INSERT INTO short SELECT i, i FROM range(2, 50) r(i)")
    assert re.search("dropped and made again since|does not exist", failing(query))
    query = started(stream(**options), tmp_path / "check")
    assert "dropped and made again since" in failing(query)
    # A group of the new stream is not made, let alone moved.
    assert short.execute("SELECT count(*) FROM ducktail.consumer_groups").fetchone() == (0,)
    # With other columns.
    short.execute("DROP STREAM short_stream")
    short.execute("ALTER TABLE short ADD COLUMN w VARCHAR")
    short.execute("CREATE STREAM short_stream ON short")
    assert "dropped and made again since" in failing(started(stream(**options), tmp_path / "check"))
