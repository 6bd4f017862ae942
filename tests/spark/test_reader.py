"""The source's readers as Spark calls them, without Spark: against a real gateway."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from server_process import ServerProcess

pytest.importorskip("pyspark.sql", reason="pyspark is not installed")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import DecimalType, LongType, StructType

from ducktail.spark_connector.data_source import DucktailSource
from ducktail.spark_connector.errors import ConnectorError, OptionError
from ducktail.spark_connector.source import task_rows
from ducktail.spark_connector.source.relation import Relation, Task
from ducktail.spark_connector.source.stream_reader import StreamReader

Connection = psycopg.Connection[Any]
Made = Callable[..., StreamReader]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server for these tests, which looks after retention often."""
    path = tmp_path_factory.mktemp("gateway") / "ducktail.duckdb"
    with ServerProcess(path, ("--port", "0", "--retention-interval-ms", "100")) as server:
        yield server


@pytest.fixture
def db(gateway: ServerProcess) -> Iterator[Connection]:
    """A new table with a stream of two partitions: orders, orders_stream."""
    with gateway.connect() as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, amount DECIMAL(10, 2))")
        connection.execute("CREATE STREAM orders_stream ON orders WITH (partitions = 2)")
        yield connection
        connection.execute("DROP STREAM IF EXISTS orders_stream CASCADE")
        connection.execute("DROP TABLE IF EXISTS orders")


@pytest.fixture
def source(gateway: ServerProcess) -> Callable[..., DucktailSource]:
    """`source(stream="orders_stream")` is the data source with these options."""

    def make(**options: object) -> DucktailSource:
        given = {"host": gateway.host, "port": gateway.port, "pollTimeout": "0 s", "retryTimeout": "0 s"}
        return DucktailSource({name: str(value) for name, value in {**given, **options}.items()})

    return make


@pytest.fixture
def reader(source: Callable[..., DucktailSource]) -> Iterator[Made]:
    """A stream reader of orders_stream, or of what the options say."""
    made: list[StreamReader] = []

    def make(**options: object) -> StreamReader:
        chosen = source(**{"stream": "orders_stream", **options})
        schema = DucktailSource({n: v for n, v in chosen.options.items() if n != "pollTimeout"}).schema()
        made.append(chosen.streamReader(schema))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.stop()


def insert(db: Connection, first: int, last: int) -> None:
    """One transaction with so many rows."""
    db.execute("INSERT INTO orders SELECT i, i * 1.25 FROM range(%s, %s) AS r (i)", (first, last))


def rows(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
    """A batch, as its tasks read it: in copies of the reader."""
    copy = pickle.loads(pickle.dumps(reader))
    tasks = pickle.loads(pickle.dumps(reader.partitions(start, end)))
    return [row for task in tasks for batch in copy.read(task) for row in batch.to_pylist()]


def lsns(offset: dict[str, Any]) -> dict[str, int]:
    return {key: value for key, value in offset.items() if key != "stream"}


def test_batches_follow_each_other_without_a_hole(db: Connection, reader: Made) -> None:
    one = reader()
    insert(db, 0, 100)
    start = one.initialOffset()
    assert start == one.initialOffset() and list(start) == ["0", "1", "stream"]
    seen = []
    for step in range(3):
        end = one.latestOffset(start, ReadAllAvailable())
        found = rows(one, start, end)
        assert rows(one, start, end) == found
        seen += found
        start = end
        db.execute("UPDATE orders SET amount = 0 WHERE id = %s", (step,))
    assert [row["_change_type"] for row in seen].count("insert") == 100
    assert len(seen) == 104 and {row["_partition"] for row in seen} == {0, 1}
    pair = [row for row in seen if row["id"] == 0][1:]
    assert [row["_change_type"] for row in pair] == ["update_preimage", "update_postimage"]
    assert [row["amount"] for row in seen if row["id"] == 1] == [Decimal("1.25"), Decimal("1.25"), Decimal(0)]


def test_nothing_new_is_the_same_offset_as_text(db: Connection, reader: Made) -> None:
    insert(db, 0, 10)
    one = reader()
    end = one.latestOffset(one.initialOffset(), ReadAllAvailable())
    assert json.dumps(one.latestOffset(end, ReadAllAvailable())) == json.dumps(end)
    assert one.partitions(end, end) == []


def test_a_limit_counts_events_over_all_partitions(db: Connection, reader: Made) -> None:
    for first in range(0, 100, 10):
        insert(db, first, first + 10)
    one = reader(maxEventsPerTrigger=7)
    assert one.getDefaultReadLimit() == ReadMaxRows(7)
    start, counts = one.initialOffset(), []
    while (end := one.latestOffset(start, ReadMaxRows(7))) != start:
        counts.append(len(rows(one, start, end)))
        start = end
    assert counts == [7] * 14 + [2]


def test_whole_transactions(db: Connection, reader: Made) -> None:
    for first in range(0, 50, 10):
        insert(db, first, first + 10)
    one = reader(wholeTransactions="true")
    start, batches = one.initialOffset(), []
    while (end := one.latestOffset(start, ReadMaxRows(25))) != start:
        batches.append(sorted(row["id"] for row in rows(one, start, end)))
        start = end
    assert batches == [list(range(20)), list(range(20, 40)), list(range(40, 50))]
    start = one.initialOffset()
    assert len(rows(one, start, one.latestOffset(start, ReadMaxRows(3)))) == 10


def test_available_now_reads_what_is_there_now(db: Connection, reader: Made) -> None:
    insert(db, 0, 10)
    one = reader()
    start = one.initialOffset()
    one.prepareForTriggerAvailableNow()
    insert(db, 10, 20)
    end = one.latestOffset(start, ReadAllAvailable())
    assert len(rows(one, start, end)) == 10 and one.latestOffset(end, ReadAllAvailable()) == end


def test_a_poll_ends_with_an_event(db: Connection, reader: Made, gateway: ServerProcess) -> None:
    """It is answered as soon as the event is there: pytest's own time-out is shorter than the poll's."""
    one = reader(pollTimeout="1 h")
    start = one.initialOffset()
    waits = threading.Thread(target=_insert_once_waited, args=(gateway,))
    waits.start()
    end = one.latestOffset(start, ReadAllAvailable())
    waits.join()
    assert len(rows(one, start, end)) == 1


def _insert_once_waited(gateway: ServerProcess) -> None:
    with gateway.connect() as connection:
        query = "SELECT count(*) FROM ducktail.sessions WHERE waits_for = 'events'"
        while connection.execute(query).fetchone() == (0,):
            pass
        insert(connection, 0, 1)


def test_the_group_follows_the_checkpoint(db: Connection, reader: Made) -> None:
    insert(db, 0, 10)
    one = reader(consumerGroup="spark")
    start = one.initialOffset()
    committed = "SELECT partition::VARCHAR, committed_lsn FROM ducktail.offsets WHERE group_name = 'spark'"
    assert dict(db.execute(committed).fetchall()) == lsns(start) == {"0": 0, "1": 0}
    end = one.latestOffset(start, ReadAllAvailable())
    one.commit(end)
    assert dict(db.execute(committed).fetchall()) == lsns(start)
    one.latestOffset(end, ReadAllAvailable())
    assert dict(db.execute(committed).fetchall()) == lsns(end)
    assert reader(consumerGroup="spark").initialOffset() == end
    assert reader(consumerGroup="spark", startingOffsets="group").initialOffset() == end
    behind = reader(consumerGroup="spark", startingOffsets="earliest")
    with pytest.raises(ConnectorError, match='option consumerGroup: group "spark" has committed LSN'):
        behind.latestOffset(behind.initialOffset(), ReadAllAvailable())


def test_latest_is_where_the_group_was_made(db: Connection, reader: Made) -> None:
    insert(db, 0, 10)
    start = reader(consumerGroup="late", startingOffsets="latest").initialOffset()
    insert(db, 10, 15)
    one = reader(consumerGroup="late", startingOffsets="latest")
    assert one.initialOffset() == start
    assert len(rows(one, start, one.latestOffset(start, ReadAllAvailable()))) == 5


def test_a_map_begins_behind_its_lsns(db: Connection, reader: Made) -> None:
    insert(db, 0, 20)
    first = reader()
    end = first.latestOffset(first.initialOffset(), ReadAllAvailable())
    one = reader(startingOffsets=json.dumps({"1": end["1"]}))
    found = rows(one, one.initialOffset(), end)
    assert {row["_partition"] for row in found} == {0}


def test_a_gap_fails_unless_the_group_follows(db: Connection, reader: Made) -> None:
    insert(db, 0, 50)
    one, group = reader(), reader(consumerGroup="over")
    start = one.initialOffset()
    group.initialOffset()
    end = one.latestOffset(start, ReadAllAvailable())
    tasks = one.partitions(start, end)
    insert(db, 50, 60)
    _trim(db)
    for call in (
        lambda: one.latestOffset(start, ReadAllAvailable()),
        lambda: one.partitions(start, end),
        lambda: [list(one.read(task)) for task in tasks],
    ):
        with pytest.raises(ConnectorError) as caught:
            call()
        assert caught.value.sqlstate == "72000", caught.value
    with pytest.raises(ConnectorError):
        group.latestOffset(start, ReadAllAvailable())
    db.execute("ALTER CONSUMER GROUP over ON orders_stream SET (on_gap = 'earliest')")
    assert len(rows(group, start, group.latestOffset(start, ReadAllAvailable()))) < 60


def _trim(db: Connection) -> None:
    """Events go until few are left."""
    db.execute("ALTER STREAM orders_stream SET (retention_bytes = '1 kB')")
    while db.execute("SELECT max(trimmed_events) FROM ducktail.partitions").fetchone() == (0,):
        pass


def test_offsets_of_another_stream(db: Connection, reader: Made) -> None:
    insert(db, 0, 10)
    one = reader()
    start = one.initialOffset()
    end = one.latestOffset(start, ReadAllAvailable())
    db.execute("CREATE STREAM other ON orders")
    with pytest.raises(ConnectorError, match=r'the checkpoint is of stream "main\.orders_stream"'):
        reader(stream="other").latestOffset(end, ReadAllAvailable())
    db.execute("DROP STREAM other")
    db.execute("DROP STREAM orders_stream")
    with pytest.raises(ConnectorError, match='option stream: stream "orders_stream" does not exist'):
        one.latestOffset(end, ReadAllAvailable())
    db.execute("CREATE STREAM orders_stream ON orders WITH (partitions = 2)")
    task = one.partitions(start, end)[0]  # Planned by what latestOffset has seen: the task finds it out.
    with pytest.raises(ConnectorError, match="dropped and made again"):
        list(one.read(task))
    for call in (lambda: one.latestOffset(end, ReadAllAvailable()), lambda: one.partitions(start, end)):
        with pytest.raises(ConnectorError, match="dropped and made again"):
            call()


def test_offsets_that_cannot_be(db: Connection, reader: Made) -> None:
    insert(db, 0, 10)
    one = reader()
    start = one.initialOffset()
    end = one.latestOffset(start, ReadAllAvailable())
    with pytest.raises(ConnectorError, match="offsets go backwards in partition 0"):
        one.partitions(end, start)
    with pytest.raises(OptionError, match="past the end of stream"):
        one.partitions(start, {**end, "0": end["0"] + 10**6})
    for given, said in [('{"0": 1000000}', "past the end"), ('{"7": 1}', "has no partition 7")]:
        with pytest.raises(OptionError, match=said):
            reader(startingOffsets=given).initialOffset()
    refused = reader(startingOffsets="latest")
    for call in (refused.initialOffset, lambda: refused.latestOffset(end, ReadAllAvailable())):
        with pytest.raises(OptionError, match="wants option consumerGroup"):
            call()
    with pytest.raises(ConnectorError, match='group "nobody" on stream "orders_stream" does not'):
        reader(startingOffsets="group", consumerGroup="nobody").initialOffset()


def test_columns_that_are_others_now(db: Connection, source: Callable[..., DucktailSource]) -> None:
    """Also when they have become others since the plan, which a task finds."""
    insert(db, 0, 10)
    names = StructType().add("_lsn", LongType()).add("AMOUNT", DecimalType(10, 2))
    one = source(stream="orders_stream").streamReader(names)
    start = one.initialOffset()
    tasks = one.partitions(start, one.latestOffset(start, ReadAllAvailable()))
    [batch] = list(one.read(tasks[0]))
    assert batch.schema.names == ["_lsn", "AMOUNT"]
    db.execute("ALTER TABLE orders ALTER amount TYPE VARCHAR")
    with pytest.raises(
        ConnectorError, match=r'"AMOUNT" of stream "orders_stream" is string.* start the query'
    ):
        list(one.read(tasks[0]))
    db.execute("ALTER TABLE orders DROP COLUMN amount")
    with pytest.raises(ConnectorError, match=r"(?i)amount"):
        list(one.read(tasks[0]))
    one.stop()


def test_a_topic_and_the_json_envelope(db: Connection, reader: Made) -> None:
    db.execute("CREATE TOPIC news WITH (partitions = 1)")
    db.execute("""PUBLISH TO news VALUES ('{"a": 1}'), ('two')""")
    one = reader(stream="news")
    start = one.initialOffset()
    found = rows(one, start, one.latestOffset(start, ReadAllAvailable()))
    assert [json.loads(row["after"]) for row in found] == [{"a": 1}, "two"]
    db.execute("DROP TOPIC news")
    insert(db, 0, 3)
    events = reader(envelope="json")
    start = events.initialOffset()
    found = rows(events, start, events.latestOffset(start, ReadAllAvailable()))
    assert sorted(json.loads(row["key"])["id"] for row in found) == [0, 1, 2]
    with pytest.raises(ConnectorError, match="option envelope cannot be changes"):
        db.execute("CREATE TOPIC news WITH (partitions = 1)")
        try:
            reader(stream="news", envelope="changes")
        finally:
            db.execute("DROP TOPIC news")


def test_a_stream_over_several_tables_is_read_as_json(db: Connection, reader: Made) -> None:
    db.execute("CREATE TABLE one (id INTEGER PRIMARY KEY)")
    db.execute("CREATE TABLE two (v INTEGER)")
    db.execute("CREATE STREAM pair ON one, two")
    db.execute("BEGIN; INSERT INTO one VALUES (1); INSERT INTO two VALUES (2); COMMIT")
    events = reader(stream="pair", consumerGroup="g")
    start = events.initialOffset()
    found = rows(events, start, events.latestOffset(start, ReadAllAvailable()))
    assert sorted((row["table_name"], json.loads(row["after"])) for row in found) == [
        ("main.one", {"id": 1}),
        ("main.two", {"v": 2}),
    ]
    with pytest.raises(ConnectorError, match='cannot be changes: "pair" is over several tables'):
        reader(stream="pair", envelope="changes")
    db.execute("DROP TABLE one CASCADE")
    db.execute("DROP TABLE two")


def test_names_that_want_quotes(db: Connection, reader: Made) -> None:
    db.execute('CREATE SCHEMA "my app"; CREATE TABLE "my app"."a.b" (id INTEGER PRIMARY KEY)')
    db.execute('CREATE STREAM "my app"."of a.b" ON "my app"."a.b"')
    db.execute('INSERT INTO "my app"."a.b" VALUES (1)')
    one = reader(stream='my app."of a.b"', consumerGroup='the "g. g"', maxEventsPerTrigger=5)
    start = one.initialOffset()
    end = one.latestOffset(start, ReadMaxRows(5))
    assert [row["id"] for row in rows(one, start, end)] == [1]
    assert one.latestOffset(end, ReadMaxRows(5)) == end
    groups = "SELECT group_name, sum(lag_events) FROM ducktail.offsets WHERE schema_name = %s GROUP BY ALL"
    assert db.execute(groups, ("my app",)).fetchall() == [('the "g. g"', 0)]
    with pytest.raises(ConnectorError, match=r'option stream: stream "my app\.nope" does not exist'):
        reader(stream="my app.nope")
    for wrong in ("a.b.c", '"open', " blank", "a,b", 'a"b'):
        with pytest.raises(OptionError, match="option stream cannot be"):
            reader(stream=wrong)
    db.execute('DROP STREAM "my app"."of a.b" CASCADE')


def test_a_table_whose_columns_are_called_like_ours(db: Connection, reader: Made) -> None:
    db.execute("CREATE TABLE odd (id INTEGER PRIMARY KEY, _lsn INTEGER)")
    db.execute("CREATE STREAM odd_stream ON odd")
    with pytest.raises(ConnectorError, match=r'has no typed changes .*no view "odd_stream_changes"'):
        reader(stream="odd_stream")
    one = reader(stream="odd_stream", envelope="json")
    assert one.initialOffset()["0"] == 0
    db.execute("DROP STREAM odd_stream")


def test_more_tasks_than_partitions(db: Connection, reader: Made) -> None:
    insert(db, 0, 100)
    one = reader(minPartitions=7)
    start = one.initialOffset()
    end = one.latestOffset(start, ReadAllAvailable())
    assert len(one.partitions(start, end)) >= 7
    assert sorted(row["id"] for row in rows(one, start, end)) == list(range(100))


def test_a_gateway_that_comes_back(serve: Callable[..., ServerProcess]) -> None:
    """A query's first call, its next one, and a task go on once the gateway is there again."""
    server = serve()
    with server.connect() as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, amount DECIMAL(10, 2))")
        connection.execute("CREATE STREAM orders_stream ON orders WITH (partitions = 1)")
        insert(connection, 0, 1000)
    options = {"host": server.host, "port": str(server.port), "stream": "orders_stream"}
    options["retryTimeout"] = "60 s"
    schema = DucktailSource(options).schema()
    one = DucktailSource(options).streamReader(schema)
    start = one.initialOffset()
    server.kill()
    server._options = ("--port", str(server.port))
    again = threading.Thread(target=server.start)
    again.start()
    first = DucktailSource(options).streamReader(schema)
    assert first.initialOffset() == start
    first.stop()
    end = one.latestOffset(start, ReadAllAvailable())
    again.join()
    [task] = one.partitions(start, end)
    assert sum(batch.num_rows for batch in one.read(task)) == 1000
    one.stop()


def test_a_task_goes_on_behind_what_it_has_given(db: Connection, reader: Made) -> None:
    insert(db, 0, 300000)
    one = reader(retryTimeout="30 s")
    start = one.initialOffset()
    end = one.latestOffset(start, ReadAllAvailable())
    task = one.partitions(start, end)[0]
    whole = [row for batch in one.read(task) for row in batch.column("_lsn").to_pylist()]
    source_ = one.read(task)
    found = next(source_).column("_lsn").to_pylist()
    theirs = "SELECT session_id FROM ducktail.sessions WHERE application_name = 'ducktail-spark'"
    for (session,) in db.execute(theirs).fetchall():
        db.execute("SELECT pg_terminate_backend(%s)", (session,))
    for batch in source_:
        found += batch.column("_lsn").to_pylist()
    assert found == whole


def test_windows_of_a_range() -> None:
    """They follow each other through all of it; the first is small, none is large, and there are few."""
    relation = Relation(("main", "s"), 'stream "s"', "stream", "lsn", "partition")
    for after, through in ((0, 1), (7, 16_391), (7, 16_392), (10, 10**6), (5, 10**9)):
        found = list(task_rows.windows(Task(relation, after=after, through=through)))
        assert [low for low, _ in found] == [after, *(high for _, high in found[:-1])]
        assert found[-1][1] == through and all(low < high for low, high in found)
        sizes = [high - low for low, high in found]
        assert sizes[0] == min(through - after, 16_384) and len(sizes) < 16
        assert max(sizes) <= max(16_384, (through - after) // 4)
    one = replace(relation, scanned=True)
    assert list(task_rows.windows(Task(one, after=0, through=10**6))) == [(0, 10**6)]


def test_windows_give_each_row_once(db: Connection, reader: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of one query, an update's two rows together; trimmed rows of a later one are an error."""
    monkeypatch.setattr(task_rows, "FIRST_LSNS", 3)
    insert(db, 0, 500)
    db.execute("UPDATE orders SET amount = 0")
    for envelope in ("changes", "json"):
        one = reader(envelope=envelope)
        start = one.initialOffset()
        end = one.latestOffset(start, ReadAllAvailable())
        tasks = one.partitions(start, end)
        assert len(list(task_rows.windows(tasks[0]))) > 5
        found = rows(one, start, end)
        monkeypatch.setattr(task_rows, "FIRST_LSNS", 10**9)
        assert found == rows(one, start, end) and len(found) == (1500 if envelope == "changes" else 1000)
        monkeypatch.setattr(task_rows, "FIRST_LSNS", 3)
    rest = one.read(tasks[0])
    next(rest)
    _trim(db)
    with pytest.raises(ConnectorError, match="72000"):
        list(rest)


def test_an_abandoned_task_ends(db: Connection, reader: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread waits for Spark, or for the gateway."""
    monkeypatch.setattr(task_rows, "FIRST_LSNS", 3)
    insert(db, 0, 20000)
    for bytes_max in (1, 1 << 30):
        monkeypatch.setattr(task_rows, "AHEAD_BYTES_MAX", bytes_max)
        one = reader(retryTimeout="10 min")
        start = one.initialOffset()
        [task, _] = one.partitions(start, one.latestOffset(start, ReadAllAvailable()))
        taken = one.read(task)
        next(taken)
        taken.close()  # type: ignore[attr-defined]
        assert "ducktail-fetch" not in {thread.name for thread in threading.enumerate()}


def batch(source: DucktailSource) -> list[list[dict[str, Any]]]:
    """The rows of a batch read, a list a task: Spark pickles the reader before it plans."""
    reader = source.reader(source.schema())  # type: ignore[arg-type]
    copy = pickle.loads(pickle.dumps(reader))
    tasks = pickle.loads(pickle.dumps(reader.partitions()))
    return [[row for part in copy.read(task) for row in part.to_pylist()] for task in tasks]


@pytest.fixture
def taken(gateway: ServerProcess) -> Callable[..., list[dict[str, Any]]]:
    """`taken(startingLsn=3)` are the rows of orders_stream, or of what the options say."""
    way = {"host": gateway.host, "port": str(gateway.port)}

    def take(**options: object) -> list[dict[str, Any]]:
        given = {"stream": "orders_stream"} if "table" not in options else {}
        source = DucktailSource({**way, **given, **{n: str(v) for n, v in options.items()}})
        return [row for rows in batch(source) for row in rows]

    return take


def test_ranges_of_a_batch_read(db: Connection, taken: Callable[..., list[dict[str, Any]]]) -> None:
    insert(db, 0, 50)
    insert(db, 50, 100)
    (first,) = db.execute("SELECT min(lsn) FROM orders_stream").fetchone() or (0,)
    assert len(taken()) == len(taken(minPartitions=9)) == len(taken(table="orders")) == 100
    assert [row["_lsn"] for row in taken(startingLsn=first + 99)] == [first + 99]
    assert len(taken(startingLsn=first + 10, endingLsn=first + 19)) == 10
    (at,) = db.execute("SELECT max(commit_time)::VARCHAR FROM orders_stream").fetchone() or ("",)
    assert sorted(row["id"] for row in taken(startingTimestamp=at)) == list(range(50, 100))
    assert len(taken(endingTimestamp=at)) == 100
    assert taken(endingTimestamp="2020-01-01 00:00:00+00") == []
    for options, said in [
        ({"startingLsn": first + 100}, "option startingLsn cannot be"),
        ({"endingLsn": first + 100}, "option endingLsn cannot be"),
        ({"startingLsn": first + 5, "endingLsn": first + 4}, "endingLsn is before startingLsn"),
        ({"startingLsn": first, "startingTimestamp": at}, "cannot both be given"),
        ({"table": "orders", "endingLsn": 3}, "option table names a table"),
    ]:
        with pytest.raises(OptionError, match=said):
            taken(**options)
    _trim(db)
    with pytest.raises(ConnectorError, match="72000"):
        taken(startingLsn=first + 1)
    while db.execute("SELECT max(events) FROM ducktail.partitions").fetchone() != (0,):
        pass
    assert taken() == []


def test_what_a_user_needs(serve: Callable[..., ServerProcess]) -> None:
    """SELECT on the stream for its rows, CONSUME for a group; without a right the stream is not there."""
    server = serve()
    with server.connect() as admin:
        admin.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, amount DECIMAL(10, 2))")
        admin.execute("CREATE STREAM orders_stream ON orders WITH (partitions = 2)")
        insert(admin, 0, 10)
        admin.execute("CREATE USER root PASSWORD 'root' SUPERUSER")
    with server.connect(user="root", password="root") as admin:
        admin.execute("CREATE USER ann PASSWORD 'secret'")
        way = {"host": server.host, "port": str(server.port), "user": "ann", "password": "secret"}
        way |= {"stream": "orders_stream", "retryTimeout": "0 s"}
        with pytest.raises(ConnectorError, match='does not exist, or user "ann" has no right') as caught:
            DucktailSource(way).schema()
        assert "secret" not in str(caught.value)
        admin.execute("GRANT SELECT ON orders_stream TO ann")
        assert sum(map(len, batch(DucktailSource(way)))) == 10
        stream = DucktailSource({**way, "consumerGroup": "anns", "pollTimeout": "0 s"})
        one = stream.streamReader(DucktailSource(way).schema())  # type: ignore[arg-type]
        with pytest.raises(ConnectorError, match=r"option.* consumerGroup|option.* user"):
            one.initialOffset()
        admin.execute("GRANT CONSUME ON orders_stream TO ann")
        start = one.initialOffset()
        end = one.latestOffset(start, ReadAllAvailable())
        assert len(rows(one, start, end)) == 10
        one.latestOffset(end, ReadAllAvailable())
        committed = "SELECT partition::VARCHAR, committed_lsn FROM ducktail.offsets WHERE group_name = 'anns'"
        assert dict(admin.execute(committed).fetchall()) == lsns(end)
        one.stop()
        with pytest.raises(ConnectorError, match=r'reading table "orders" failed \(option table\)'):
            DucktailSource({n: v for n, v in way.items() if n != "stream"} | {"table": "orders"}).schema()


def test_a_query_begins_with_a_whole_copy(db: Connection, reader: Made) -> None:
    insert(db, 0, 500)
    db.execute("ALTER STREAM orders_stream SET (retention_bytes = 1)")
    while db.execute("SELECT sum(trimmed_events) FROM ducktail.partitions").fetchone() != (500,):
        pass
    db.execute("ALTER STREAM orders_stream SET (retention_bytes = '1 GB')")
    one = reader(consumerGroup="late", startingOffsets="snapshot", maxEventsPerTrigger=200)
    start = one.initialOffset()
    assert start == one.initialOffset()
    db.execute("UPDATE orders SET amount = 0 WHERE id < 10")
    once = reader(consumerGroup="once", startingOffsets="snapshot")
    once.prepareForTriggerAvailableNow()
    first = once.initialOffset()
    assert len(rows(once, first, once.latestOffset(first, ReadAllAvailable()))) == 500
    db.execute("DROP CONSUMER GROUP once ON orders_stream")
    seen, beginning = [], start
    while (end := one.latestOffset(start, ReadMaxRows(200))) != start:
        found = rows(one, start, end)
        assert rows(reader(consumerGroup="late", startingOffsets="snapshot"), start, end) == found
        seen += found
        start = end
    kinds = [row["_change_type"] for row in sorted(seen, key=lambda row: row["_lsn"])]
    assert kinds[:500] == ["snapshot"] * 500 and len(kinds) == 520
    seen.sort(key=lambda row: (row["_lsn"], row["_change_type"] != "update_preimage"))
    assert {row["id"]: row["amount"] for row in seen} == dict(
        db.execute("SELECT id, amount FROM orders").fetchall()
    )
    assert db.execute("SELECT rows_left FROM ducktail.copies").fetchall() == [(0,)]
    # Once its table is dropped the query goes on all the same, and nobody begins with it.
    tables = "SELECT count(*) FROM duckdb_tables() WHERE starts_with(table_name, 'copy_')"
    while db.execute(tables).fetchone() != (0,):
        pass
    insert(db, 1000, 1010)
    assert len(rows(one, start, one.latestOffset(start, ReadAllAvailable()))) == 10
    with pytest.raises(ConnectorError, match="not at the beginning of a whole copy"):
        reader(consumerGroup="late", startingOffsets="snapshot").initialOffset()
    # Without its copy it would go on behind that.
    two = {"consumerGroup": "two", "startingOffsets": "snapshot"}
    start = reader(**two).initialOffset()
    end = reader(**two).latestOffset(start, ReadMaxRows(100))
    assert len(rows(reader(**two), start, end)) == 100
    for lose in (
        "ALTER CONSUMER GROUP two ON orders_stream SEEK TO LATEST",
        "DROP CONSUMER GROUP two ON orders_stream",
    ):
        db.execute(lose)
        with pytest.raises(ConnectorError, match=r"the whole copy of stream .* is gone") as caught:
            reader(**two).latestOffset(end, ReadAllAvailable())
        assert caught.value.sqlstate == "72000"
        with pytest.raises(ConnectorError, match=r"the whole copy of stream .* is gone"):
            reader(**two).partitions(start, end)
    refused = reader(startingOffsets="snapshot")
    with pytest.raises(OptionError, match="wants option consumerGroup"):
        refused.initialOffset()
    assert beginning["stream"] == start["stream"]
