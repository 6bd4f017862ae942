"""Stages and marks behind the sink, without Spark: rights, restarts, repeats, and what is left behind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from server_process import ServerProcess

from ducktail.spark_connector.errors import ConnectorError, OptionError
from ducktail.spark_connector.options import Options, Use, parse
from ducktail.spark_connector.sink import staging
from ducktail.spark_connector.sink.target import target_of


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "shop.duckdb") as started:
        with started.connect() as connection:
            connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR)")
            connection.execute("CREATE TOPIC events")
        # It comes back under the same port.
        started._options = ("--port", str(started.port))
        yield started


def options(server: ServerProcess, **given: str) -> Options:
    return parse({"host": server.host, "port": str(server.port), "table": "t", **given}, Use.WRITE_STREAM)


def batch(*ids: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"id": pa.array(ids, pa.int32()), "v": pa.array([f"v{number}" for number in ids])}
    )


def names(connection: psycopg.Connection[Any]) -> list[str]:
    query = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'ducktail_spark'"
    return sorted(str(name) for (name,) in connection.execute(query).fetchall())


def test_a_batch_that_comes_again_is_passed_over(server: ServerProcess) -> None:
    given = options(server)
    target = target_of(given, batch(1).schema, overwrite=False)
    for number, again in ((0, False), (0, True), (1, False), (0, True)):
        mark = staging.Batch("query-1", number)
        ids = (number * 10, number * 10 + 1)
        stages = [staging.stage(given, target, iter([batch(one)]), staging.owner_of(mark)) for one in ids] + [
            staging.stage(given, target, iter([]), staging.owner_of(mark))
        ]
        assert [staged.rows for staged in stages] == [1, 1, 0]
        assert staging.publish(given, target, stages, mark) is not again
    # Another query's batch 0 is not the same.
    other = staging.Batch("query-2", 0)
    staging.publish(given, target, [staging.stage(given, target, iter([batch(7)]), "")], other)
    with server.connect() as look:
        assert look.execute("SELECT id FROM t ORDER BY id").fetchall() == [(0,), (1,), (7,), (10,), (11,)]
        marks = "SELECT query, target, batch, rows FROM ducktail_spark.sinks ORDER BY query"
        assert look.execute(marks).fetchall() == [
            ("query-1", 'table "t"', 1, 2), ("query-2", 'table "t"', 0, 1),
        ]  # fmt: skip
        assert names(look) == ["sinks"]


def test_an_empty_first_batch_is_marked(server: ServerProcess) -> None:
    given = options(server)
    target = target_of(given, batch(1).schema, overwrite=False)
    assert staging.publish(given, target, [staging.Stage(None)], staging.Batch("q", 0))
    assert not staging.publish(given, target, [staging.Stage(None)], staging.Batch("q", 0))


def test_what_was_left_behind_is_dropped(server: ServerProcess) -> None:
    given = options(server)
    target = target_of(given, batch(1).schema, overwrite=False)
    killed = staging.Batch("q-1", 3)
    staging.stage(given, target, iter([batch(1)]), staging.owner_of(killed))
    staging.stage(given, target, iter([batch(1)]), "")
    old = f"stage_{int(time.time()) - staging.STAGE_KEPT_S - 60}_abc"
    with server.connect() as look:
        look.execute(f"CREATE TABLE ducktail_spark.{old} AS SELECT 1 AS id")
        look.execute("CREATE TABLE ducktail_spark.stage_notes AS SELECT 1 AS id")
        stages = [staging.stage(given, target, iter([batch(5)]), staging.owner_of(killed))]
        staging.publish(given, target, stages, killed)
        left = names(look)
    # That of a batch job which may still be running, and what is not ours.
    assert "stage_notes" in left and len(left) == 3 and old not in left


def test_a_gateway_that_restarts_is_waited_for(server: ServerProcess) -> None:
    given = options(server, retryTimeout="30 s")
    target = target_of(given, batch(1).schema, overwrite=False)

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch(*range(1000))
        server.kill()
        server.start()
        yield batch(*range(1000, 2000))

    staged = staging.stage(given, target, batches())
    assert staged.rows == 2000
    server.kill()
    server.start()
    staging.publish(given, target, [staged])
    with server.connect() as look:
        assert look.execute("SELECT count(*), sum(id) FROM t").fetchone() == (2000, 1999000)
        assert names(look) == ["sinks"]


@pytest.fixture
def plain(server: ServerProcess) -> Options:
    """A table without a key, in which a row that is written twice is there twice."""
    with server.connect() as connection:
        connection.execute("CREATE TABLE plain (id INTEGER, v VARCHAR)")
    return options(server, table="plain")


def test_a_job_whose_answer_was_lost_is_there_once(
    server: ServerProcess, plain: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = target_of(plain, batch(1).schema, overwrite=False)
    publish, calls = staging._publish, []

    def lost(connection: psycopg.Connection[Any], *words: Any) -> bool:
        calls.append(words)
        done = publish(connection, *words)
        if len(calls) == 1:
            server.kill()
            server.start()
            connection.execute("SELECT 1")
        return done

    staged = [staging.stage(plain, target, iter([batch(1, 2)]))]
    with monkeypatch.context() as patched:
        patched.setattr(staging, "_publish", lost)
        assert not staging.publish(plain, target, staged)
    assert len(calls) == 2
    with server.connect() as look:
        assert look.execute("SELECT id FROM plain ORDER BY id").fetchall() == [(1,), (2,)]
        assert look.execute("SELECT count(*) FROM ducktail_spark.sinks").fetchone() == (0,)
        assert names(look) == ["sinks"]


def test_a_job_that_cannot_be_cleared_away_is_done(
    server: ServerProcess, plain: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = target_of(plain, batch(1).schema, overwrite=False)
    sweep = staging.sweep

    def killing(*words: Any) -> None:
        server.kill()
        server.start()
        sweep(*words)

    staged = [staging.stage(plain, target, iter([batch(1, 2)]))]
    with monkeypatch.context() as patched:
        patched.setattr(staging, "sweep", killing)
        assert staging.publish(plain, target, staged)
    with server.connect() as look:
        assert look.execute("SELECT id FROM plain ORDER BY id").fetchall() == [(1,), (2,)]


def test_what_was_too_much_to_keep_is_left_to_spark(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "KEPT_BYTES_MAX", 100)
    given = options(server)
    target = target_of(given, batch(1).schema, overwrite=False)

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch(*range(1000))
        server.kill()
        server.start()
        for start in range(1000, 200_000, 1000):
            yield batch(*range(start, start + 1000))

    with pytest.raises(ConnectorError):
        staging.stage(given, target, batches())
    with server.connect() as look:
        assert [name for name in names(look) if name.startswith("stage_")] == []


def test_a_user_with_no_more_rights_than_it_wants(server: ServerProcess) -> None:
    with server.connect() as root:
        root.execute("CREATE USER ann PASSWORD 'x' SUPERUSER")
    with server.connect(user="ann", password="x") as root:
        root.execute("CREATE USER bob PASSWORD 'x'")
        root.execute("CREATE SCHEMA ducktail_spark")
        root.execute("GRANT CREATE ON SCHEMA ducktail_spark TO bob")
        for privilege in ("SELECT", "INSERT", "UPDATE"):
            root.execute(f"GRANT {privilege} ON t TO bob")
        root.execute("GRANT PUBLISH ON events TO bob")
        bob = {"user": "bob", "password": "x"}
        upserting = options(server, **bob, writeMode="upsert")
        target = target_of(upserting, batch(1).schema, overwrite=False)
        for again in (1, 2):
            stages = [staging.stage(upserting, target, iter([batch(again, 3)]))]
            staging.publish(upserting, target, stages, staging.Batch("q", again))
        assert root.execute("SELECT id FROM t ORDER BY id").fetchall() == [(1,), (2,), (3,)]
        given = {"host": server.host, "port": str(server.port), "topic": "events", **bob}
        topic = parse(given, Use.WRITE)
        rows = pa.RecordBatch.from_pydict({"key": ["a", None], "value": ['{"n": 1}', "x"]})
        target = target_of(topic, rows.schema, overwrite=False)
        staging.publish(topic, target, [staging.stage(topic, target, iter([rows]))])
        assert root.execute("SELECT key, after FROM TOPIC events ORDER BY lsn").fetchall() == [
            ("a", {"n": 1}), (None, "x"),
        ]  # fmt: skip
        # Another user finds bob's marks, of which nobody may tell him.
        root.execute("CREATE USER eve PASSWORD 'x'")
        root.execute("GRANT CREATE ON SCHEMA ducktail_spark TO eve")
        for privilege in ("SELECT", "INSERT"):
            root.execute(f"GRANT {privilege} ON t TO eve")
        eves = options(server, user="eve", password="x")
        target = target_of(eves, batch(1).schema, overwrite=False)
        said = 'option stagingSchema: user "eve" has no right on table "ducktail_spark[.]sinks"'
        with pytest.raises(ConnectorError, match=said) as no:
            staging.publish(eves, target, [staging.stage(eves, target, iter([batch(8)]))])
        root.execute(str(no.value).partition("or ")[2].partition(" (")[0])
        staging.publish(eves, target, [staging.stage(eves, target, iter([batch(8)]))])
        root.execute("REVOKE INSERT ON t FROM bob")
        target = target_of(upserting, batch(1).schema, overwrite=False)
        with pytest.raises(ConnectorError, match="option user"):
            staging.publish(upserting, target, [staging.stage(upserting, target, iter([batch(9)]))])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"table": "t", "topic": "events"}, "options topic and table"),
        ({"table": "t", "orderBy": "id"}, "orderBy goes with writeMode upsert"),
        ({"table": "t", "writeMode": "upsert", "orderBy": "nope"}, 'orderBy names "nope"'),
        ({"topic": "events"}, 'not "id" (option topic)'),
        ({"topic": "events", "writeMode": "upsert"}, "cannot be of a topic"),
    ],
)
def test_options_that_do_not_go_together(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as caught:
        target_of(parse(given, Use.WRITE), batch(1).schema, overwrite=False)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "type_",
    [
        pa.list_(pa.binary()), pa.map_(pa.binary(), pa.int32()), pa.map_(pa.string(), pa.binary()),
        pa.struct([("a", pa.int32()), ("b", pa.list_(pa.struct([("c", pa.binary())])))]),
    ],
)  # fmt: skip
def test_bytes_in_nested_values_are_refused_of_a_table(type_: pa.DataType) -> None:
    schema = pa.schema([("id", pa.int32()), ("v", type_)])
    with pytest.raises(OptionError, match=r'column "v" .*binary'):
        target_of(parse({"table": "t"}, Use.WRITE), schema, overwrite=False)
    # A topic's payload is JSON, where they are base64.
    topic = pa.schema([("value", type_)])
    target_of(parse({"topic": "t"}, Use.WRITE), topic, overwrite=False)


def test_a_mirror_whose_table_is_gone_is_not_begun_anew(server: ServerProcess) -> None:
    pytest.importorskip("pyspark.sql", reason="pyspark is not installed")
    from ducktail.spark_connector.pipelines.mirror import Change
    from ducktail.spark_connector.pipelines.targets import SqlTarget

    place = SqlTarget(options(server), "mirror")
    rows: Any = None  # It is refused before they are asked for.
    with pytest.raises(ConnectorError, match='table "mirror" is not there, and the checkpoint has batches'):
        place.apply(Change(rows, ("id",), ("id",), 1, staging.Batch("query-1", 3)))
    with server.connect() as look:
        assert look.execute("SELECT to_regclass('mirror')").fetchone() == (None,)


def test_names_that_want_quotes(server: ServerProcess) -> None:
    """A schema with a blank, a table with a dot, a topic with a quote; append, upsert and what is marked."""
    with server.connect() as connection:
        connection.execute('CREATE SCHEMA "my app"')
        connection.execute('CREATE TABLE "my app"."a.b" (id INTEGER PRIMARY KEY, v VARCHAR)')
        connection.execute('CREATE TOPIC "say ""hi"""')
        for mode in ("append", "upsert"):
            given = options(server, table='my app."a.b"', writeMode=mode, stagingSchema="my stages.x")
            target = target_of(given, batch(1).schema, overwrite=False)
            number = 1 if mode == "append" else 2
            staging.publish(given, target, [staging.stage(given, target, iter([batch(number)]))])
        assert connection.execute('SELECT id FROM "my app"."a.b" ORDER BY id').fetchall() == [(1,), (2,)]
        schemas = (
            "SELECT DISTINCT table_schema FROM information_schema.tables "
            "WHERE table_name = 'sinks' AND table_schema <> 'ducktail'"
        )
        assert connection.execute(schemas).fetchall() == [("my stages.x",)]
        given = parse(
            {"host": server.host, "port": str(server.port), "topic": '"say ""hi"""'}, Use.WRITE_STREAM
        )
        rows = pa.RecordBatch.from_pydict({"value": ["x"]})
        target = target_of(given, rows.schema, overwrite=False)
        for again in (False, True):
            mark = staging.Batch("q", 0)
            staged = [staging.stage(given, target, iter([rows]), staging.owner_of(mark))]
            assert staging.publish(given, target, staged, mark) is not again
        assert connection.execute('SELECT after FROM TOPIC "say ""hi"""').fetchall() == [("x",)]
