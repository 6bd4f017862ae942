"""LIMIT n TRANSACTIONS gives whole transactions, over random histories, from the buffers and from the log.

So do tx_seq and tx_last: the same hot, cold and in the view, with filters, snapshots and split updates.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from amounts import seeds
from local_client import Client, Row

from ducktail.engine.database import Database

# Fat rows and a small buffer: the newest some thirty events are hot, the rest is in the log.
STREAMS = {
    "hot": "ON t WITH (partitions = 3)",
    "cold": "ON t WITH (partitions = 3, buffer_bytes = '64 KiB')",
    "partly": "ON t OPERATIONS INSERT, UPDATE WHERE v < 60 WITH (partitions = 2, buffer_bytes = '64 KiB')",
    "seeded": "ON t WITH (partitions = 4, snapshot = 'initial', before = 'key')",
}
ENVELOPES = (("lsn", "partition", "txid", ""), ("_lsn", "_partition", "_commit_version", "envelope changes"))


def history(client: Client, chance: random.Random) -> None:
    """Some transactions over two captured tables; each of one to six statements."""
    fat = "repeat('x', 2000)"
    for number in range(1, chance.randrange(13, 25)):
        client("begin")
        for statement in range(chance.randrange(1, 7)):
            low = chance.randrange(80)
            some = f"where id between {low} and {low + chance.randrange(12)}"
            client(
                chance.choice(
                    (
                        f"insert into t select i, i % 100, {fat} from range({low}, {low + 9}) r(i) "
                        "on conflict do nothing",
                        f"update t set v = v + {chance.randrange(1, 40)} {some}",
                        f"update t set id = id + {number * 10_000 + statement * 1000} {some}",
                        f"delete from t {some}",
                        f"insert into other values ({chance.randrange(10**9)})",
                    )
                )
            )
        client("rollback" if chance.random() < 0.2 else "commit")


def check_numbers(client: Client, stream: str) -> None:
    """tx_seq and tx_last, by the scan and by the view, against what they say they are."""
    columns = "lsn, txid, tx_seq, tx_last"
    rows = client(f"select {columns} from stream {stream}")
    assert rows == client(f"select {columns} from {stream} order by lsn")
    first = dict(client("select txid, first_lsn from ducktail.commits"))
    last = {txid: lsn for lsn, txid, *_ in rows}
    assert [(lsn - first[txid], last[txid] == lsn) for lsn, txid, *_ in rows] == [r[2:] for r in rows]
    # A scan that begins in the middle of a transaction tells the same.
    for lsn, *_ in rows[:: max(1, len(rows) // 7)]:
        assert client(f"select {columns} from stream {stream} after {lsn}") == [r for r in rows if r[0] > lsn]


def whole(rows: list[Row], count: int) -> list[Row]:
    """The rows of the first transactions."""
    numbers = list(dict.fromkeys(txid for _, _, txid in rows))[:count]
    return [row for row in rows if row[2] in numbers]


@pytest.mark.parametrize("seed", seeds("DUCKTAIL_TRANSACTIONS_SEED", 1, 40))
def test_the_answer_is_whole_transactions(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    database = Database.open(str(tmp_path / "test.duckdb"))
    client = Client(database)
    client("create table t (id int primary key, v int, fat text)")
    client("create table other (id int primary key)")
    client("insert into t select i, i, 'seed' from range(20) r(i)")
    client("create stream others on other")
    for name, what in STREAMS.items():
        client(f"create stream {name} {what}")
        client(f"create consumer group g on {name}")
    history(client, chance)
    for name in STREAMS:
        check_numbers(client, name)
        for lsn, partition, txid, envelope in ENVELOPES:
            client(f"alter consumer group g on {name} seek to earliest")
            given: list[Row] = []
            columns, scan = f"{lsn}, {partition}, {txid}", f"stream {name} consumer group g {envelope}"
            everything = client(f"select {columns} from {scan}")
            while left := client(f"select {columns} from {scan}"):
                count = chance.randrange(1, 6)
                read = client(f"select {columns} from {scan} limit $1 transactions", count)
                assert read == whole(left, count)
                chosen = chance.randrange(2)
                wanted = whole([row for row in left if row[1] == chosen], count)
                where = f"where {partition} = {chosen}"
                assert client(f"select {columns} from {scan} {where} limit {count} transactions") == wanted
                # What is committed is what was given: by rows, by an aggregate, of one partition alone.
                way = chance.randrange(3)
                if way == 0:
                    read = client(f"select {columns} from {scan} limit {count} transactions")
                elif way == 1:
                    assert client.one(f"select count(*) from {scan} limit {count} transactions") == len(read)
                else:
                    # Partitions that a read does not scan keep their read position.
                    read = [row for row in read if row[1] != chosen] + wanted
                client(f"commit offsets on {name} consumer group g")
                given += read
            assert sorted(given) == sorted(everything)
    client.close()
    database.close()
