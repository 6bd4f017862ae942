"""Parked events: whatever is parked, released, trimmed and read in which order, nothing is lost.

A consumer reads with random limits and commits; between, events are parked and released, and retention
takes what is committed. In the end all is released and read: each event has been processed once, with
on_park = 'key' in the order of its key.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from amounts import seeds
from local_client import Client
from reopening import QUIET

from ducktail.engine.database import Database
from ducktail.engine.errors import DucktailError


class Consumer:
    """A group's reader, which remembers what it has processed."""

    def __init__(self, client: Client, chance: random.Random) -> None:
        self.client, self.chance = client, chance
        self.processed: list[tuple[int, int]] = []  # LSN, key
        self.rows: list[tuple[int, int, int]] = []  # LSN, partition, key: what the latest read gave
        self.set_aside: set[int] = set()

    def read(self, limit: str) -> None:
        """Read, in one envelope or the other, plain or through DuckDB."""
        source, where = "stream s consumer group g", self.chance.choice(("", "where 1 = 1"))
        if self.chance.random() < 0.5:
            sql = f"select lsn, partition, key->>'id' from {source} {where} {limit}"
        else:
            sql = f"select _lsn, _partition, id from {source} envelope changes {where} {limit}"
        rows = [(lsn, partition, int(key)) for lsn, partition, key in self.client(sql)]
        assert [row[0] for row in rows] == sorted(row[0] for row in rows)
        self.rows = list(dict.fromkeys(rows))

    def commit(self) -> None:
        """Commit the read position, in one of the ways that there are."""
        way = self.chance.random()
        if way < 0.2 and self.rows:
            shown = self.client.one("show read position on s consumer group g")
            self.client(f"commit offsets at '{shown}' on s consumer group g")
        elif way < 0.4:
            self.client("begin")
            self.client("commit offsets on s consumer group g")
            # The same transaction reads on from there, and a rollback takes all of it back.
            done = {lsn for lsn, *_ in self.rows}
            assert not done & {row[0] for row in self.client("select lsn from stream s consumer group g")}
            self.client("rollback")
            return
        else:
            self.client("commit offsets on s consumer group g")
        self.processed += [(lsn, key) for lsn, _, key in self.rows]
        self.rows = []


def park(consumer: Consumer, by_key: bool) -> None:
    """Set one of the rows of the latest read aside; what it gave is then read anew."""
    lsn, partition, key = consumer.chance.choice(consumer.rows)
    consumer.client(f"alter consumer group g on s park partition {partition} at {lsn}")
    consumer.set_aside |= {lsn}
    before = consumer.rows
    consumer.read("")
    given = {row[0] for row in consumer.rows}
    assert lsn not in given
    behind = {row[0] for row in before if by_key and row[2] == key and row[0] > lsn}
    assert not behind & given


def release(consumer: Consumer) -> None:
    """Give one parked event again, or all of a partition."""
    parked = consumer.client("select partition, lsn from ducktail.parked where state = 'parked'")
    if not parked:
        return
    partition, lsn = consumer.chance.choice(parked)
    at = consumer.chance.choice(("", f"at {lsn}"))
    try:
        consumer.client(f"alter consumer group g on s release partition {partition} {at}")
    except DucktailError as error:
        assert error.sqlstate == "55000" and at  # An earlier one of its key is parked.


@pytest.mark.parametrize("on_park", ["event", "key"])
@pytest.mark.parametrize("seed", seeds("DUCKTAIL_PARKED_SEED", 1, 40))
def test_nothing_is_lost(tmp_path: Path, on_park: str, seed: int) -> None:
    chance = random.Random(seed)
    database = Database.open(str(tmp_path / "test.duckdb"), QUIET)
    client = Client(database)
    client("create table t (id int primary key, v int)")
    client("create stream s on t with (partitions = 2)")
    client(f"create consumer group g on s with (on_park = '{on_park}')")
    consumer = Consumer(client, chance)
    expected: dict[int, int] = {}
    for step in range(50):
        if step % 3 == 0:
            values = f"({chance.randrange(8)}, {step})"
            client(f"insert into t values {values} on conflict (id) do update set v = {step}")
            client(f"update t set v = {step} where id < {chance.randrange(8)}")
        consumer.read(chance.choice(("", "limit 1", "limit 3", "limit 1 transactions", "limit 4")))
        what = chance.random()
        if what < 0.25 and consumer.rows:
            park(consumer, on_park == "key")
        elif what < 0.35:
            release(consumer)
            continue  # What was read before the release is committed by nobody.
        if chance.random() < 0.8:
            consumer.commit()
        if chance.random() < 0.2:
            [stream] = database.catalog.streams.values()
            events = client("select lsn, (key->>'id')::int from s")
            expected |= dict(events)
            # To the end of a transaction that all partitions are through with: else it would be a gap.
            through = client.one(
                "select coalesce(max(last_lsn), 0) from ducktail.commits where last_lsn <= "
                "(select min(committed_lsn) from ducktail.offsets)"
            )
            database.retention.trim(stream, through)
            database.retention.look()
    expected |= dict(client("select lsn, (key->>'id')::int from s"))
    for partition in range(2):
        client(f"alter consumer group g on s release partition {partition}")
    for _ in range(1000):
        consumer.read(chance.choice(("", "limit 2", "limit 1 transactions")))
        if not consumer.rows:
            break
        client("commit offsets on s consumer group g")
        consumer.processed += [(lsn, key) for lsn, _, key in consumer.rows]
    assert dict(consumer.processed) == expected
    if on_park == "key":
        for key in set(expected.values()):
            mine = list(dict.fromkeys(lsn for lsn, of in consumer.processed if of == key))
            assert mine == sorted(mine)
    assert len(consumer.processed) == len(set(consumer.processed))
    assert client("select * from ducktail.parked") == []
    # What nobody has parked any more is not kept.
    database.retention.look()
    cursor = database.cursor()
    for (name,) in cursor.execute(
        "select table_name from duckdb_tables() where regexp_matches(table_name, '^parked_')"
    ).fetchall():
        assert cursor.execute(f"select count(*) from ducktail.{name}").fetchone() == (0,), name
    cursor.close()
    client.close()
    database.close()
