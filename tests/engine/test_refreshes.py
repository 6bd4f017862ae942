"""Transactions that delete and insert again, at random: what is told of them is the smallest change."""

from __future__ import annotations

import json
import random
from typing import Any

from local_client import Client

from ducktail.engine.database import Database

TRANSACTIONS = 25
KEYS = 6
WORDS = ("a", "b", None)

Rows = dict[int, tuple[str | None, str | None]]


def rows_of(client: Client) -> Rows:
    """The table."""
    return {key: (v, p) for key, v, p in client("select id, v, p from t")}


def statement(chance: random.Random, client: Client) -> None:
    """One of those that a refresh may be made of, beside one of another table."""
    key = chance.randrange(KEYS)
    v, p = (json.dumps(chance.choice(WORDS)).replace('"', "'") for _ in range(2))
    texts = [
        "truncate t",
        f"delete from t where id <= {key}",
        *[f"insert into t select i, {v}, {p} from range({key}, {KEYS}) r(i) on conflict do nothing"] * 2,
        f"insert or replace into t values ({key}, {v}, {p})",
        f"update t set v = {v} where id >= {key}",
        f"update t set p = {p} where id = {key}",
        "insert into other values (1)",
    ]
    client(chance.choices(texts, weights=[3, 3, 4, 4, 2, 1, 1, 1])[0])


def test_what_differs_is_told_once() -> None:
    chance = random.Random(9)
    database = Database.open(":memory:")
    client = Client(database)
    client("create table t (id int primary key, v text, p text)")
    client("create table other (i int)")
    client("create stream o on other")
    client("create stream s on t with (minimal_changes = 'all', partition_by = 'p', partitions = 4)")
    position, folded = 0, 0
    for _ in range(TRANSACTIONS):
        before, others = rows_of(client), client.one("select count(*) from other")
        client("begin")
        client("truncate t")
        for _ in range(chance.randrange(1, 7)):
            statement(chance, client)
        interleaved = client.one("select count(*) from other") != others
        if chance.random() < 0.1:
            client("rollback")
            assert rows_of(client) == before
            assert client(f"select * from stream s after {position}") == []
            continue
        client("commit")
        after = rows_of(client)
        events = client(f"select lsn, op, key, before, after, headers from stream s after {position}")
        beside = client(f"select lsn from stream o after {position}")
        both = sorted(event[0] for event in [*events, *beside])
        assert both == list(range(position + 1, position + 1 + len(both)))
        position += len(both)
        assert applied(before, events) == after
        if not interleaved:
            folded += 1
            differing = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
            told = [json.loads(str(event[2]))["id"] for event in events]
            moved = {
                key for key in differing & before.keys() & after.keys() if before[key][1] != after[key][1]
            }
            assert sorted(told) == sorted([*differing, *moved])
        assert client("check stream s") == []
    assert folded > TRANSACTIONS // 2
    client.close()
    database.close()


def applied(rows: Rows, events: list[tuple[Any, ...]]) -> Rows:
    """The rows with the events applied, each of which must fit."""
    rows = dict(rows)
    for _, _, key, old, new, _ in events:
        number = json.loads(key)["id"]
        if old is None:
            assert number not in rows
        else:
            assert rows.pop(number) == image(old)
        if new is not None:
            rows[number] = image(new)
    return rows


def image(text: str) -> tuple[str | None, str | None]:
    """A row of the table as an event has it."""
    row = json.loads(text)
    return row["v"], row["p"]
