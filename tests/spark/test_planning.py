"""The calls of Spark's driver, without Spark: mistakes end there; a gateway that comes later is awaited."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from server_process import ServerProcess

pytest.importorskip("pyspark.sql", reason="pyspark is not installed")

from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from ducktail.spark_connector import connection
from ducktail.spark_connector.data_source import DucktailSource
from ducktail.spark_connector.errors import ConnectorError

Source = Callable[..., DucktailSource]
COLUMNS = "id int, amount decimal(10,2), `the note` string"
CHANGES = (
    "_change_type string, _commit_version bigint, _commit_timestamp timestamp, _lsn bigint, _partition int"
)


@pytest.fixture(scope="module")
def shop(gateway: ServerProcess) -> Iterator[ServerProcess]:
    """Table orders with stream orders_stream, and a topic, a view and a user ann without rights."""
    with gateway.connect() as db:
        db.execute('CREATE TABLE orders (id INTEGER, amount DECIMAL(10, 2), "the note" VARCHAR)')
        db.execute("CREATE STREAM orders_stream ON orders WITH (partitions = 2, partition_by = 'id')")
        db.execute("INSERT INTO orders SELECT i, i, i FROM range(100) r(i)")
        db.execute("CREATE VIEW few AS SELECT * FROM orders LIMIT 1")
        db.execute("CREATE TOPIC news")
        db.execute("CREATE USER root PASSWORD 'root' SUPERUSER")
    with gateway.connect(user="root", password="root") as db:
        db.execute("CREATE USER ann PASSWORD 'ann'")
    yield gateway


@pytest.fixture
def source(shop: ServerProcess) -> Source:
    """`source(stream="orders_stream")` is the data source with these options."""
    return lambda **options: source_of(shop, **{"user": "root", "password": "root", **options})


def source_of(server: ServerProcess, **options: object) -> DucktailSource:
    given = {"host": server.host, "port": server.port, "retryTimeout": "0 s", **options}
    return DucktailSource({name: str(value) for name, value in given.items()})


def schema(text: str) -> StructType:
    """A schema of columns like `id integer, _lsn long`; Spark reads DDL with Java only."""
    made = StructType()
    for column in re.split(r", (?![0-9])", text):
        name, _, type_ = column.rpartition(" ")
        made.add(name, type_)
    return made


def reads(source: Source, ddl: str, **options: object) -> Iterator[Callable[[], object]]:
    """The first call of each kind of query over a source with a schema of the user's."""
    wanted = schema(ddl)
    yield lambda: source(**options).reader(wanted).partitions()
    if "table" in options:
        return

    def first(call: Callable[[Any], object], columns: StructType | None = None) -> Any:
        reader: Any = source(**options).streamReader(columns or wanted)
        try:
            return call(reader)
        finally:
            reader.stop()

    start = first(lambda reader: reader.initialOffset(), source(**options).schema())
    yield lambda: first(lambda reader: reader.initialOffset())
    yield lambda: first(lambda reader: reader.prepareForTriggerAvailableNow())
    yield lambda: first(lambda reader: reader.latestOffset(start, ReadAllAvailable()))
    yield lambda: first(lambda reader: reader.partitions(start, start))


def test_columns_of_schema_are_checked_by_the_driver(source: Source) -> None:
    stream, table = {"stream": "orders_stream"}, {"table": "orders"}
    for given, ddl, said in [
        (
            stream,
            "id integer, amuont string",
            'stream "orders_stream" has no column "amuont", perhaps "amount"',
        ),
        (stream, "nope integer", 'stream "orders_stream" has no column "nope" (schema() or option stream)'),
        (
            stream,
            "amount string",
            'column "amount" of stream "orders_stream" is decimal(10,2), and the query',
        ),
        (
            stream,
            "_lsn integer",
            'column "_lsn" of stream "orders_stream" is bigint, and the query has it as int',
        ),
        (table, "nope integer", 'table "orders" has no column "nope" (schema() or option table)'),
        (table, "id long", 'column "id" of table "orders" is int, and the query has it as bigint'),
        (table, "_lsn long", 'table "orders" has no column "_lsn"'),
    ]:
        for call in reads(source, ddl, **given):
            with pytest.raises(ConnectorError) as caught:
                call()
            told = str(caught.value)
            assert told.startswith(said) and not caught.value.retryable, told
            assert COLUMNS + (f", {CHANGES}" if given is stream else "") in told
    with pytest.raises(ConnectorError, match=r'stream "news" has no column "payload".* after string'):
        source(stream="news").reader(schema("payload string")).partitions()


def test_columns_of_schema_that_are_there(source: Source) -> None:
    """Any of them, in any order and case."""
    for call in reads(source, "_LSN long, AMOUNT decimal(10,2), id integer", stream="orders_stream"):
        call()
    source(table="orders").reader(schema("the note string, id integer")).partitions()


def test_a_stream_of_a_similar_name_is_shown(shop: ServerProcess, source: Source) -> None:
    with shop.connect(user="root", password="root") as db:
        db.execute("CREATE SCHEMA app; CREATE TABLE app.bills (id INTEGER PRIMARY KEY)")
        db.execute("CREATE STREAM app.bills_stream ON app.bills")
    for given, said in [
        ("order_stream", 'or user "root" has no right on it, perhaps "orders_stream" is meant (42704)'),
        ("bills_stream", 'has no right on it, perhaps "app.bills_stream" is meant (42704)'),
        ("x", 'option stream: stream "x" does not exist, or user "root" has no right on it (42704)'),
        (
            "orders",
            'failed (option stream): "main.orders" is not a stream. Its changes are in "orders_stream".',
        ),
    ]:
        with pytest.raises(ConnectorError) as caught:
            source(stream=given).schema()
        assert said in str(caught.value)


def test_a_long_list_of_columns_is_cut(shop: ServerProcess, source: Source) -> None:
    with shop.connect(user="root", password="root") as db:
        columns = ", ".join(f"c{number} INTEGER" for number in range(100))
        db.execute(f"CREATE TABLE wide ({columns})")
    with pytest.raises(ConnectorError, match=r"c59 int and 40 more "):
        source(table="wide").reader(schema("nope integer")).partitions()


def writers(source: Source, ddl: str, **options: object) -> Iterator[Callable[[], object]]:
    """The planning of a write, batch and streaming."""
    yield lambda: source(**options).writer(schema(ddl), False)
    yield lambda: source(**options).streamWriter(schema(ddl), False)


def test_a_target_is_checked_by_the_driver(source: Source) -> None:
    for given, ddl, said in [
        (
            {"table": "nope"},
            "id integer",
            'table "nope" does not exist, or user "root" has no right on it (option',
        ),
        ({"table": "app.t"}, "id integer", 'table "app.t" does not exist'),
        ({"table": "order"}, "id integer", 'Did you mean "orders"?'),
        ({"table": "news"}, "id integer", 'option table: "news" is a topic: name it with option topic'),
        ({"table": "few"}, "id integer", 'option table: "few" is a view: name the table behind it'),
        (
            {"table": "orders_stream"},
            "lsn integer",
            'option table: "orders_stream" is a stream: name the table',
        ),
        (
            {"table": "orders"},
            "ID integer, nope integer",
            'table "orders" has no column "nope" of the data frame',
        ),
        ({"table": "orders"}, "nope integer", "columns are id integer, amount numeric, the note text"),
        ({"table": "orders", "writeMode": "upsert"}, "id integer", 'table "orders" has no primary key'),
        ({"topic": "nope"}, "value string", 'topic "nope" does not exist, or user "root" has no right on it'),
        ({"topic": "orders"}, "value string", 'option topic: "orders" is a table: name it with option table'),
    ]:
        for call in writers(source, ddl, **given):
            with pytest.raises(ConnectorError) as caught:
                call()
            assert said in str(caught.value) and not caught.value.retryable, caught.value
    for call in (
        *writers(source, "the note string, id integer", table="orders"),
        *writers(source, "value string, key long", topic="news"),
    ):
        call()
    for given, ddl in (({"table": "orders"}, "id integer"), ({"topic": "news"}, "value string")):
        for call in writers(source, ddl, user="ann", password="ann", **given):
            with pytest.raises(ConnectorError, match='or user "ann" has no right on it'):
                call()


def test_the_target_of_a_query_is_checked_once(shop: ServerProcess, source: Source) -> None:
    """By each process; that of a batch job each time."""
    with shop.connect(user="root", password="root") as db:
        db.execute("CREATE TABLE gone (id INTEGER)")
        batch, query = writers(source, "id integer", table="gone")
        batch()
        query()
        db.execute("DROP TABLE gone")
    query()
    with pytest.raises(ConnectorError, match='table "gone" does not exist'):
        batch()


def test_a_driver_that_starts_before_its_gateway(
    serve: Callable[..., ServerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call fails once, and when it is repeated it finds the gateway, which has started meanwhile."""
    server = serve()
    with server.connect() as db:
        db.execute("CREATE TABLE orders (id INTEGER)")
        db.execute("CREATE STREAM orders_stream ON orders WITH (partitions = 1)")
        db.execute("INSERT INTO orders VALUES (1)")
    server._options = ("--port", str(server.port))

    def source(**options: object) -> DucktailSource:
        return source_of(server, retryTimeout="60 s", **options)

    waits: list[float] = []

    def start(wait: float) -> None:
        waits.append(wait)
        server.start()

    calls = [
        lambda: source(stream="orders_stream").schema(),
        *list(reads(source, "id integer", stream="orders_stream"))[:3],
        next(writers(source, "id integer", table="orders")),
    ]
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=start)
    monkeypatch.setattr(connection, "time", clock)
    for call in calls:
        server.stop()
        waits.clear()
        call()
        assert len(waits) == 1
    server.stop()
    monkeypatch.undo()
    with pytest.raises(ConnectorError, match=r"nobody answers.*; tried for 0.1 s \(option retryTimeout\)"):
        source_of(server, stream="orders_stream", retryTimeout="100 ms").schema()
