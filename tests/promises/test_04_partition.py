"""Promise 4: the partition of given partition-column values never changes, and orders their events."""

from __future__ import annotations

from collections.abc import Callable

from local_client import Client

from ducktail.engine.partitioning import partition_of


def test_an_event_is_where_its_key_says(connect: Callable[..., Client]) -> None:
    client = connect()
    client("create table t (id int, name text, v int, primary key (id, name))")
    client("create stream s on t with (partitions = 7)")
    client("create stream by_name on t with (partitions = 5, partition_by = 'name')")
    for number in range(60):
        client("insert into t values ($1, $2, 0)", number, f'n{number % 9} "é"')
    client("update t set v = v + 1")
    client("delete from t where id % 2 = 0")
    for partition, key in client("select partition, key from stream s"):
        values = client("select ($1::json->>'id')::int, $1::json->>'name'", key)[0]
        assert partition == partition_of(values, ("INTEGER", "VARCHAR"), 7)
    for partition, key in client("select partition, key from stream by_name"):
        (name,) = client("select $1::json->>'name'", key)[0]
        assert partition == partition_of((name,), ("VARCHAR",), 5)


def test_known_vectors_stay(connect: Callable[..., Client]) -> None:
    """Written down once: another answer would move every key of every stream."""
    assert [partition_of((n,), ("INTEGER",), 8) for n in range(8)] == [
        int(__import__("hashlib").sha1(f"[{n}]".encode()).hexdigest()[:8], 16) % 8 for n in range(8)
    ]


def test_a_change_of_a_partition_column_is_a_delete_and_an_insert_in_every_stream(
    connect: Callable[..., Client],
) -> None:
    client = connect()
    client("create table t (id int primary key, region text)")
    client("create stream s on t with (partitions = 4)")
    client("create stream r on t with (partitions = 4, partition_by = 'region')")
    client("insert into t values (1, 'north')")
    client("update t set region = 'south'")
    for stream in ("s", "r"):
        rows = client(f"select op, headers->>'key_change' from stream {stream}")
        assert rows == [("insert", None), ("delete", "1"), ("insert", "1")]


def test_events_of_a_key_rise_within_its_partition(connect: Callable[..., Client]) -> None:
    client = connect()
    client("create table t (id int primary key, v int)")
    client("create stream s on t with (partitions = 3)")
    client("insert into t select i, 0 from range(20) r(i)")
    for _ in range(5):
        client("update t set v = v + 1")
    for partition in range(3):
        lsns = [lsn for (lsn,) in client(f"select lsn from stream s partition {partition}")]
        assert lsns == sorted(lsns)
    counts = client("select key, count(*), count(distinct partition) from stream s group by key")
    assert {row[1:] for row in counts} == {(6, 1)}
