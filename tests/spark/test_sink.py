"""Writing from Spark: to tables and topics, batch and streaming, once and only once."""

from __future__ import annotations

import datetime
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from server_process import ServerProcess

pytestmark = pytest.mark.slow

TYPES = (
    "i INTEGER, l BIGINT, d DOUBLE, b BOOLEAN, s VARCHAR, day DATE, ts TIMESTAMPTZ, n TIMESTAMP, "
    "bin BLOB, dec DECIMAL(12,3), list INTEGER[], st STRUCT(a INTEGER, b VARCHAR), j JSON, f FLOAT"
)
SCHEMA = (
    "i int, l bigint, d double, b boolean, s string, day date, ts timestamp, n timestamp_ntz, "
    "bin binary, dec decimal(12,3), list array<int>, st struct<a: int, b: string>, j map<string, int>, "
    "f float"
)


@pytest.fixture
def look(gateway: ServerProcess) -> Any:
    with gateway.connect() as connection:
        yield connection


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name of the test's own."""
    return str(request.node.name).partition("[")[0].removeprefix("test_")[:40]


def writer(frame: Any, gateway: ServerProcess, **options: str) -> Any:
    made = frame.write.format("ducktail").option("host", gateway.host).option("port", str(gateway.port))
    for option, value in options.items():
        made = made.option(option, value)
    return made


def stages(look: psycopg.Connection[Any]) -> list[str]:
    query = "SELECT table_name FROM information_schema.tables WHERE table_name LIKE 'stage_%'"
    return [str(name) for (name,) in look.execute(query).fetchall()]


def test_a_table_gets_rows_of_all_types(spark: Any, gateway: ServerProcess, look: Any, name: str) -> None:
    look.execute(f"CREATE TABLE {name} ({TYPES})")
    noon = datetime.datetime(2026, 1, 2, 12, 0, 0, 123456)
    full = (
        1, 2**40, 0.1, True, 'a "quoted",\nline', datetime.date(2026, 1, 2), noon, noon, b"\x00\xff",
        Decimal("1234.500"), [1, None, 3], (5, "x, y"), {"k": 1}, 1.5,
    )  # fmt: skip
    odd = (
        2, -1, float("nan"), False, "", datetime.date(1, 1, 1), noon, noon, b"", Decimal("-0.001"),
        [], (None, None), {}, float("-inf"),
    )  # fmt: skip
    frame = spark.createDataFrame([full, odd, (3, *[None] * 13)], SCHEMA)
    writer(frame, gateway, table=name).mode("append").save()
    found = look.execute(f"SELECT * EXCLUDE (st), st::VARCHAR FROM {name} ORDER BY i").fetchall()
    assert found[0][:6] == full[:6]
    assert found[0][6:8] == (noon.replace(tzinfo=datetime.UTC), noon)
    assert found[0][8:11] == (b"\x00\xff", Decimal("1234.500"), [1, None, 3])
    assert found[0][11:] == ({"k": 1}, 1.5, "{'a': 5, 'b': 'x, y'}")
    assert found[1][2] != found[1][2] and found[1][4] == "" and found[1][8:11] == (b"", Decimal("-0.001"), [])
    assert found[2] == (3, *[None] * 13)
    assert stages(look) == []


def test_upsert_and_overwrite(spark: Any, gateway: ServerProcess, look: Any, name: str) -> None:
    look.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, v VARCHAR, version INTEGER)")
    look.execute(f"CREATE STREAM {name}_stream ON {name}")
    look.execute(f"INSERT INTO {name} VALUES (1, 'old', 0), (9, 'stays', 0)")
    rows = [(1, "newer", 2), (1, "newest", 3), (2, "two", 1), (1, "new", 1)]
    frame = spark.createDataFrame(rows, "id int, v string, version int").repartition(2)
    writer(frame, gateway, table=name, writeMode="upsert", orderBy="version").mode("append").save()
    found = look.execute(f"SELECT * FROM {name} ORDER BY id").fetchall()
    assert found == [(1, "newest", 3), (2, "two", 1), (9, "stays", 0)]
    ops = look.execute(f"SELECT op, count(*) FROM STREAM {name}_stream GROUP BY op ORDER BY op").fetchall()
    assert ops == [("insert", 3), ("update", 1)]
    with pytest.raises(Exception, match="orderBy"):
        writer(frame, gateway, table=name, writeMode="upsert").mode("append").save()
    other = spark.createDataFrame([(7, "seven", 0)], "id int, v string, version int")
    writer(other, gateway, table=name).mode("overwrite").save()
    assert look.execute(f"SELECT * FROM {name}").fetchall() == [(7, "seven", 0)]
    assert stages(look) == []


def test_a_topic(spark: Any, gateway: ServerProcess, look: Any, name: str) -> None:
    look.execute(f"CREATE TOPIC {name} WITH (partitions = 4)")
    frame = spark.range(100).selectExpr(
        "concat('k', id % 5) AS key", "to_json(struct(id)) AS value", "map('job', 'test') AS headers"
    )
    writer(frame, gateway, topic=name).mode("append").save()
    home = f"ducktail.partition_of('{name}', key ->> '$')"
    query = f"SELECT key, after, headers, partition = {home} FROM TOPIC {name}"
    events = look.execute(query).fetchall()
    assert sorted(event[1]["id"] for event in events) == list(range(100))
    assert {event[0] for event in events} == {f"k{n}" for n in range(5)}
    assert all(event[2] == {"job": "test"} and event[3] for event in events)
    for key in range(5):
        of_key = [event[1]["id"] for event in events if event[0] == f"k{key}"]
        assert len(of_key) == 20
    raw = spark.createDataFrame([(bytearray(b"\x00\x01"),)], "payload binary")
    writer(raw, gateway, topic=name).mode("append").save()
    last = look.execute(f"SELECT after, headers FROM TOPIC {name} ORDER BY lsn DESC LIMIT 1").fetchone()
    assert last == ("AAE=", {"payload_encoding": "base64"})


def wrong(frame: Any, gateway: ServerProcess, mode: str = "append", **options: str) -> str:
    with pytest.raises(Exception) as caught:
        writer(frame, gateway, **options).mode(mode).save()
    return str(caught.value)


def test_what_is_wrong_names_its_option(spark: Any, gateway: ServerProcess, look: Any, name: str) -> None:
    look.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, v SMALLINT NOT NULL)")
    look.execute(f"CREATE TABLE {name}_plain (id INTEGER)")
    look.execute(f"CREATE TOPIC {name}_topic")
    ids = spark.range(3)
    assert "options topic and table" in wrong(ids, gateway)
    assert "options topic and table" in wrong(ids, gateway, topic="a", table="b")
    assert "option table" in wrong(ids, gateway, table="nowhere", retryTimeout="0 s")
    assert "option topic" in wrong(ids.selectExpr("'x' AS value"), gateway, topic="nowhere")
    assert 'not "id" (option topic)' in wrong(ids, gateway, topic=f"{name}_topic")
    assert "of a topic" in wrong(ids, gateway, "overwrite", topic=f"{name}_topic")
    assert "primary key" in wrong(ids, gateway, table=f"{name}_plain", writeMode="upsert")
    assert "orderBy" in wrong(ids, gateway, table=name, writeMode="upsert", orderBy="nope")
    assert '"other"' in wrong(ids.selectExpr("id AS other"), gateway, table=name)
    assert "null" in wrong(ids.selectExpr("int(id) AS id"), gateway, table=name).lower()
    assert "cast it" in wrong(ids.selectExpr("interval '1' day AS id"), gateway, table=name)
    too_big = wrong(ids.selectExpr("int(id) AS id", "100000 AS v"), gateway, table=name)
    assert "column v" in too_big or '"v"' in too_big or "smallint" in too_big.lower()
    assert look.execute(f"SELECT count(*) FROM {name}").fetchone() == (0,)
    # What failed left nothing, or what the next write takes away.
    assert len(stages(look)) < 40


def test_a_thread_of_ones_own(spark: Any, gateway: ServerProcess, look: Any, name: str) -> None:
    """Spark looks for what writes in the thread's active session, which a new thread has not: register()."""
    from ducktail.spark_connector.data_source import register

    look.execute(f"CREATE TABLE {name} (id BIGINT)")
    save = writer(spark.range(3), gateway, table=name).mode("append").save
    with ThreadPoolExecutor(1) as one:
        with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
            one.submit(save).result()
        one.submit(register, spark).result()
        one.submit(save).result()
    assert look.execute(f"SELECT count(*) FROM {name}").fetchone() == (3,)


def test_a_stream_is_written_once(
    spark: Any, gateway: ServerProcess, look: Any, name: str, tmp_path: Path
) -> None:
    look.execute(f"CREATE TOPIC {name}")
    look.execute(f"CREATE TABLE {name}_t (value BIGINT)")
    source = tmp_path / "in"
    for at in range(3):
        spark.range(at * 10, at * 10 + 10).coalesce(1).write.mode("append").json(str(source))
    for target, columns in (("topic", "string(id) AS key, string(id) AS value"), ("table", "id AS value")):
        checkpoint = tmp_path / target

        def run(target: str = target, columns: str = columns, checkpoint: Path = checkpoint) -> None:
            frame = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", "1").json(str(source))
            query = (
                frame.selectExpr(*columns.split(", ")).writeStream.format("ducktail")
                .option("host", gateway.host).option("port", str(gateway.port))
                .option(target, name if target == "topic" else f"{name}_t")
                .option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
            )  # fmt: skip
            assert query.awaitTermination(60)

        run()
        counted = f"SELECT count(*) FROM {f'TOPIC {name}' if target == 'topic' else f'{name}_t'}"
        assert look.execute(counted).fetchone() == (30,)
        # As if Spark had died between its sink's commit and its own: the last batches come again.
        for number in (1, 2):
            for file in (checkpoint / "commits").glob(f"*{number}*"):
                file.unlink()
        run()
        assert look.execute(counted).fetchone() == (30,)
    marks = look.execute("SELECT target, batch, rows FROM ducktail_spark.sinks ORDER BY 1").fetchall()
    assert (f'topic "{name}"', 2, 10) in marks and (f'table "{name}_t"', 2, 10) in marks
    assert stages(look) == []
