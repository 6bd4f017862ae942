"""ENVELOPE CHANGES for every type: ready rows, the log's rows and the table's values are the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress

import pytest
from amounts import seeds
from local_client import Client, Row

from ducktail.engine.buffers.buffers import CHANGES_IDLE_S
from ducktail.engine.buffers.scan import Scan, ScanRange
from ducktail.engine.database import Database
from ducktail.engine.errors import DucktailError
from ducktail.engine.log.envelope_changes import ChangesQuery
from ducktail.engine.log.events import rows_in_formats
from ducktail.engine.values import datarow

# Half a minute in all: left out of `make quick`.
pytestmark = pytest.mark.slow

# Each type with values that something on the way could change; NULL is added to all.
TYPES: dict[str, list[str]] = {
    "BOOLEAN": ["true", "false"],
    "TINYINT": ["'-128'", "127"],
    "SMALLINT": ["'-32768'"],
    "INTEGER": ["'-2147483648'"],
    "BIGINT": ["'-9223372036854775808'", "9007199254740993"],
    "HUGEINT": ["'-170141183460469231731687303715884105728'"],
    "UTINYINT": ["255"],
    "USMALLINT": ["65535"],
    "UINTEGER": ["4294967295"],
    "UBIGINT": ["18446744073709551615"],
    "UHUGEINT": ["340282366920938463463374607431768211455"],
    "BIGNUM": ["-123456789012345678901234567890123456789012345"],
    "DECIMAL(38,10)": ["1234567890123456789012345678.0123456789", "-0.0000000001", "0"],
    "FLOAT": ["'nan'", "'-inf'", "'-0.0'", "'0.1'", "'3.4028235e38'"],
    "DOUBLE": ["'nan'", "'inf'", "'-0.0'", "'0.1'", "'1e300'", "'5e-324'"],
    "VARCHAR": ["''", "'a\"b\\\\c,{}'", "'ünïcode 🦆'", "'NULL'"],
    "BLOB": ["'\\x00\\xff\\x5C'", "''"],
    "BIT": ["'1'", "'0101010101'"],
    "UUID": ["'6f1c2f0e-1111-2222-3333-000000000001'"],
    "DATE": ["'2024-02-29'", "'infinity'", "'-infinity'", "'0044-03-15 (BC)'", "'290000-12-31'"],
    "TIME": ["'23:59:59.999999'", "'00:00:00'", "'24:00:00'"],
    "TIMETZ": ["'12:00:00.5+02:30'", "'00:00:00-15:59:59'"],
    "TIMESTAMP": ["'2024-02-29 12:00:00.000001'", "'infinity'", "'-infinity'", "'0044-03-15 (BC) 01:02:03'"],
    "TIMESTAMP_S": ["'2024-02-29 12:00:00'", "'infinity'"],
    "TIMESTAMP_MS": ["'2024-02-29 12:00:00.001'", "'1969-12-31 23:59:59.999'"],
    "TIMESTAMP_NS": ["'2024-02-29 12:00:00.123456789'", "'1969-12-31 23:59:59.999999999'"],
    "TIMESTAMPTZ": ["'2024-02-29 12:00:00.5+00'", "'infinity'", "'-infinity'", "'1890-01-01 00:00:00+00'"],
    "INTERVAL": ["'-14 months 3 days -04:05:06.5'", "to_microseconds(9223372036854775807)", "'0 days'"],
    "ENUM('a', 'b,c')": ["'b,c'"],
    "INTEGER[]": ["[1, NULL, 3]", "[]"],
    "VARCHAR[]": ["['a', NULL, '', 'NULL', 'x\"y', '\\\\', '{}']"],
    "TIMESTAMPTZ[]": ["['2024-02-29 12:00:00+00', NULL]"],
    "INTERVAL[]": ["[INTERVAL 1 MONTH, to_microseconds(9223372036854775807)]"],
    "ENUM('a', 'b')[]": ["['a', NULL]"],
    "BLOB[]": ["['\\x00'::BLOB, NULL]"],
    "DECIMAL(9,2)[]": ["[1.25, -1]"],
    "DOUBLE[2]": ["['-0.0'::DOUBLE, 'nan'::DOUBLE]"],
    "INTEGER[][]": ["[[1], [], NULL]"],
    'STRUCT(a INTEGER, "b c" INTERVAL)': ["{'a': 1, 'b c': to_microseconds(9223372036854775807)}"],
    "STRUCT(e ENUM('a', 'b'), t TIMETZ)[]": ["[{'e': 'a', 't': '12:00:00+02'}, NULL]"],
    "MAP(VARCHAR, UHUGEINT)": ["MAP {'k': 340282366920938463463374607431768211455}"],
    "UNION(num INTEGER, str VARCHAR, odd INTERVAL)": [
        "union_value(num := 5)",
        "union_value(odd := INTERVAL 1 MONTH)",
    ],
    "UUID[]": ["['00000000-0000-0000-0000-000000000001']"],
    "MAP(VARCHAR, UUID)": ["MAP {'k': '00000000-0000-0000-0000-000000000001'}"],
    "STRUCT(a HUGEINT[], b BIT)": ["{'a': [1, NULL], 'b': '0101'}"],
    "JSON[]": ["['[1]', NULL]"],
    "BIT[2]": ["['01', '1']"],
    "JSON": ['\'{"b": 1.0, "a": [1e400]}\'', "'null'"],
    "VARIANT": ["{'a': 1::UTINYINT, 'd': DATE '2020-01-01'}::VARIANT", "5::VARIANT"],
}
ZONES = ("UTC", "Asia/Kathmandu", "America/New_York")


@pytest.fixture
def database() -> Iterator[Database]:
    opened = Database.open(":memory:")
    yield opened
    opened.close()


def scan(database: Database, name: str = "s") -> Scan:
    """A scan of all of a stream's changes, published to the last."""
    future = database.publisher.wait_for(database.commits.last_lsn)
    if future is not None:
        future.result(60)
    stream = database.catalog.streams["main", name]
    every = range(stream.partitions)
    return database.buffers.scan(
        stream, ScanRange(dict.fromkeys(every, 0), database.commits.last_lsn, frozenset(every)), changes=True
    )


def changed(database: Database, type_: str) -> Client:
    """A client of a database with a table of this type, and a stream of inserts, updates and a delete."""
    client = Client(database)
    values = [*(f"{value}::{type_}" for value in TYPES[type_]), "NULL"]
    client(f"create table t (id integer primary key, v {type_}, w {type_})")
    client("create stream s on t with (partitions = 1)")
    for place, value in enumerate(values):
        client(f"insert into t values ({place}, {value}, NULL)")
    client("update t set w = v")
    client("delete from t where id = 0")
    return client


@pytest.mark.parametrize("type_", TYPES)
def test_values_are_the_same_ready_from_the_log_and_read_again(database: Database, type_: str) -> None:
    client = changed(database, type_)
    warm = scan(database)
    ready = warm.read(1000)
    assert warm.exhausted and warm.hot and warm._buffer.log_reads == 0
    cold = scan(database)
    window = cold._cold(cold._after)
    batch, query = window.pages.rows, warm._query
    assert isinstance(query, ChangesQuery) and window.high == warm.through_lsn
    types = query.layout.types
    assert ready.rows == datarow.messages(batch, types)
    # Every column in binary, and in other zones: from the ready text as from DuckDB's values.
    for zone in ZONES:
        for format_ in (0, 1):
            formats = [format_] * len(types)
            made = rows_in_formats(ready.rows, types, None, formats, zone)
            assert made == bytes(datarow.encode(batch, types, formats, zone)), (zone, format_)
    typed_rows_are_the_tables_values(client)
    a_read_of_no_events_has_the_same_columns(client)
    client.close()


def a_read_of_no_events_has_the_same_columns(client: Client) -> None:
    """As of a mirror that has caught up."""
    source = "stream s consumer group g envelope changes"
    client("create consumer group g on s")
    client(f"create table mirror as select id, v, w from {source}")
    client("commit offsets on s consumer group g")
    rows = client.one("select count(*) from mirror")
    for read in ("select * from {}", "select id + 1, v, w from {}", "select v from {} where id > 0"):
        assert client(read.format(source)) == []
    client(f"insert into mirror select id, v, w from {source}")
    assert client.one("select count(*) from mirror") == rows > 0


def typed_rows_are_the_tables_values(client: Client) -> None:
    client("create table history as select * from stream s envelope changes")
    types = [row[:2] for row in client("describe t")]
    assert [row[:2] for row in client("describe history")[:3]] == types
    where = "where _change_type = 'update_postimage' and id > 0 order by id"
    last = f"select id, v::varchar, w::varchar from {{}} {where}"
    table = client("select id, v::varchar, w::varchar from t order by id")
    assert client(last.format("history")) == table
    assert client(last.format("s_changes")) == table
    # An aggregate over a LIMIT takes its rows aside: they stay what they were.
    assert client(last.format("(select * from stream s envelope changes limit 1000) q")) == table


def test_ready_rows_follow_commits_and_share_the_bytes(database: Database) -> None:
    client = Client(database)
    client("create table t (id integer primary key, v varchar)")
    client("create stream s on t with (partitions = 2, buffer_bytes = '128 KiB')")
    client("insert into t select i, repeat('x', 50) from range(200) r (i)")
    buffer = database.buffers[database.catalog.streams["main", "s"].stream_id]
    assert buffer.changes is None and buffer.bytes_max == 128 << 10
    assert len(scan(database).read(1000).rows) == 200
    changes = buffer.changes
    assert changes is not None
    assert changes.bytes_max + buffer.bytes_max == 128 << 10
    for round_ in range(20):
        client(f"update t set v = repeat('y', {round_}) where id < 100")
        # Waits until it is published: of several at once only the newest would be made ready, and
        # only after readers have been woken.
        client("select lsn from stream s limit 1")
        assert changes.bytes <= changes.bytes_max and buffer.bytes <= buffer.bytes_max
    reads = buffer.log_reads
    tail = scan(database)
    tail._after = dict.fromkeys(tail._after, database.commits.last_lsn - 50)
    assert len(tail.read(1000).rows) == 100 and buffer.log_reads == reads
    client.close()


def test_ready_rows_go_when_nobody_reads_them(database: Database) -> None:
    client = Client(database)
    client("create table t (id integer primary key)")
    client("create stream s on t")
    client("insert into t values (1)")
    assert len(scan(database).read(10).rows) == 1
    buffer = database.buffers[database.catalog.streams["main", "s"].stream_id]
    client("insert into t values (2)")
    assert len(scan(database).read(10).rows) == 2 and buffer.changes is not None
    buffer.read_s -= CHANGES_IDLE_S + 1
    client("insert into t values (3)")
    assert client.one("select count(*) from stream s") == 3  # published
    assert buffer.changes is None and buffer.bytes_max == 64 << 20
    assert len(scan(database).read(10).rows) == 3
    client.close()


STATEMENTS = (
    "insert into t select i, {n} from range({k}, {k} + 3) r (i) on conflict do nothing",
    "insert into t values ({k}, {n}) on conflict do update set v = excluded.v + t.v",
    "update t set v = v + {n} where id % 3 = {k} % 3",
    "update t set id = id + 100 where id = {k}",
    "update t set id = -id where id between {k} and {k} + 2 and -id not in (select id from t)",
    "delete from t where id % 7 = {k} % 7",
)


@pytest.mark.parametrize("seed", seeds("DUCKTAIL_CHANGES_SEED", 1, 40))
def test_changes_fold_to_the_table(database: Database, seed: int) -> None:
    chance = random.Random(seed)
    client = Client(database)
    client("create table t (id integer primary key, v integer)")
    client("insert into t select i, i from range(5) r (i)")
    client("create stream s on t with (partitions = 3, snapshot = 'initial', buffer_bytes = '64 KiB')")
    client("create stream large on t where v % 2 = 0 with (partitions = 1, snapshot = 'initial')")
    client("create consumer group g on s")
    rows: dict[int, int] = {}
    for _ in range(40):
        text = chance.choice(STATEMENTS).format(k=chance.randrange(12), n=chance.randrange(9))
        with suppress(DucktailError):
            client(text)
        if chance.random() < 0.3:
            limit = chance.randrange(1, 9)
            star = chance.choice(["id, v", "id + 0, v"])
            scanned = f"stream s consumer group g envelope changes limit {limit}"
            fold(client(f"select {star}, _change_type from {scanned}"), rows)
            client("commit offsets on s consumer group g")
    fold(client("select id, v, _change_type from stream s consumer group g envelope changes"), rows)
    table = dict(client("select id, v from t"))
    assert rows == table
    large: dict[int, int] = {}
    fold(client("select id, v, _change_type from stream large envelope changes"), large)
    assert large == {key: value for key, value in table.items() if value % 2 == 0}
    client.close()


def fold(changes: list[Row], rows: dict[int, int]) -> None:
    """Take changes, in order, into the rows of a table; each must fit what is there."""
    for key, value, change in changes:
        if change in ("insert", "snapshot"):
            assert key not in rows
        else:
            assert change == "update_postimage" or rows[key] == value
        if change == "delete":
            del rows[key]
        elif change != "update_preimage":
            rows[key] = value


@pytest.mark.parametrize("limit", range(1, 8))
def test_no_limit_parts_an_update_hot_or_cold(database: Database, limit: int) -> None:
    client = Client(database)
    client("create table t (id integer primary key, v integer)")
    client("create stream s on t with (partitions = 3)")
    client("insert into t select i, i from range(5) r (i)")
    client("update t set v = v + 1")
    client("delete from t where id = 0")
    client("update t set v = v + 1 where id % 2 = 0")
    whole = scan(database).read(1000)
    cold = scan(database)
    cold._buffered = lambda limit: None  # type: ignore[method-assign]
    for reading in (scan(database), cold):
        lsns: list[int] = []
        rows: list[bytes] = []
        while not reading.exhausted:
            found = reading.read(limit)
            assert len(found.rows) <= limit + 1
            assert not found.lsns or found.lsns[-1] not in whole.lsns[len(lsns) + len(found.lsns) :]
            lsns += found.lsns
            rows += found.rows
        assert rows == whole.rows and lsns == whole.lsns
    client.close()
