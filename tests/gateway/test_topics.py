"""PUBLISH and INSERT into topics over the wire: parameters of all types, batches, COPY, both formats."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from uuid import UUID

import asyncpg
import psycopg
import pytest
from psycopg.types.json import Json, Jsonb
from server_process import ServerProcess

Connection = psycopg.Connection[Any]


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Connection]:
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        yield connection


PAYLOADS: list[object] = [
    "text", '{"a": 1}', "", None, 7, 2**40, 1.5, Decimal("1.50"), True, b"\x00\xff", Json({"a": [1, None]}),
    Jsonb([1]), datetime.date(2026, 1, 2), UUID(int=5), [1, 2], "é\\'\"",
]  # fmt: skip
KEYS: list[object] = ["k", 7, 2**40, None, True, Decimal("1.50"), UUID(int=5), b"\x01", Json("k")]


def events(client: Connection, topic: str) -> list[tuple[Any, ...]]:
    return client.execute(
        f"SELECT key::text, after::text, headers::text FROM TOPIC {topic} ORDER BY lsn"
    ).fetchall()


def test_publish_and_insert_store_the_same_of_each_type(client: Connection) -> None:
    for name in ("published", "inserted", "in_binary", "many"):
        client.execute(f"CREATE TOPIC {name} WITH (partitions = 3)")
    rows = [(payload, "k") for payload in PAYLOADS] + [("p", key) for key in KEYS]
    for payload, key in rows:
        client.execute("PUBLISH TO published KEY %s %s", (key, payload))
        client.execute("INSERT INTO inserted (payload, key) VALUES (%s, %s)", (payload, key))
        client.execute("INSERT INTO in_binary (payload, key) VALUES (%b, %b)", (payload, key))
    client.cursor().executemany("INSERT INTO many (payload, key) VALUES (%s, %s)", rows)
    found = events(client, "published")
    assert len(found) == len(rows)
    for name in ("inserted", "in_binary", "many"):
        assert events(client, name) == found, name
    assert [after for _, after, _ in found[:5]] == ['"text"', '{"a": 1}', '""', None, "7"]
    assert found[9] == ('"k"', '"AP8="', '{"payload_encoding":"base64"}')


def test_a_batch_of_publish_answers_each_with_its_place(client: Connection) -> None:
    client.execute("CREATE TOPIC batched WITH (partitions = 5)")
    first = client.execute("PUBLISH TO batched 'first'").fetchone()
    assert first is not None
    cursor = client.cursor()
    rows = [(f"k{n % 13}" if n % 4 else None, f'{{"n": {n}}}') for n in range(3000)]
    cursor.executemany("PUBLISH TO batched KEY %s %s", rows, returning=True)
    places = [cursor.fetchall()]
    assert cursor.statusmessage == "PUBLISH 1"
    while cursor.nextset():
        places.append(cursor.fetchall())
    assert all(len(each) == 1 and each[0][2:] == ("local", True) for each in places)
    read = client.execute("SELECT partition, lsn FROM TOPIC batched AFTER %s", (first[1],)).fetchall()
    assert [each[0][:2] for each in places] == read
    keyed = "SELECT count(DISTINCT partition) FROM TOPIC batched WHERE key IS NOT NULL GROUP BY key"
    assert {count for (count,) in client.execute(keyed).fetchall()} == {1}


def test_a_batch_with_an_error_stores_nothing(client: Connection) -> None:
    client.execute("CREATE TOPIC whole")
    rows = [("x", Json({})), ("y", Json([])), ("z", Json({}))]
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        client.cursor().executemany("PUBLISH TO whole HEADERS %s %s", [(h, p) for p, h in rows])
    assert events(client, "whole") == []


def test_a_batch_of_named_publications_repeats_none(client: Connection) -> None:
    client.execute("CREATE TOPIC named WITH (partitions = 1)")
    rows = [(f"{n}", "p", n) for n in range(20)]
    for _ in range(2):
        cursor = client.cursor()
        cursor.executemany("PUBLISH TO named %s WITH (producer = %s, sequence = %s)", rows, returning=True)
        lsns = [cursor.fetchall()]
        while cursor.nextset():
            lsns.append(cursor.fetchall())
        assert len(lsns) == 20
    assert [after for _, after, _ in events(client, "named")] == [f"{n}" for n in range(20)]


def test_copy_fills_a_topic(client: Connection) -> None:
    client.execute("CREATE TOPIC copied WITH (partitions = 1)")
    with client.cursor().copy("COPY copied (payload, key) FROM STDIN") as copy:
        copy.write_row(("hello", "k"))
        copy.write_row((None, "k"))
        copy.write_row(('{"a": 1}', None))
    with client.cursor().copy("COPY copied FROM STDIN (FORMAT csv)") as copy:
        copy.write(b'x,y,"{""h"": 1}"\n')
    assert events(client, "copied") == [
        ('"k"', '"hello"', None), ('"k"', None, None), (None, '{"a": 1}', None), ('"y"', '"x"', '{"h": 1}'),
    ]  # fmt: skip
    with (
        pytest.raises(psycopg.errors.InvalidParameterValue),
        client.cursor().copy("COPY copied (payload, headers) FROM STDIN") as copy,
    ):
        copy.write_row(("x", "[]"))
    assert len(events(client, "copied")) == 4


def test_a_driver_of_binary_formats(server: ServerProcess) -> None:
    async def run() -> None:
        where = {"host": server.host, "port": server.port, "user": "ann", "database": "ducktail"}
        connection = await asyncpg.connect(**where)
        await connection.execute("CREATE TOPIC drivers WITH (partitions = 1)")
        prepared = await connection.prepare("PUBLISH TO drivers KEY $1 HEADERS $2 $3")
        assert [a.name for a in prepared.get_attributes()] == ["partition", "lsn", "node", "local"]
        first = await prepared.fetchrow("k", '{"h": 1}', "payload")
        assert (first["partition"], first["node"], first["local"]) == (0, "local", True)
        await connection.executemany("PUBLISH TO drivers $1", [("a",), ("b",)])
        rows = [("c", "k"), ("d", None)]
        await connection.executemany("INSERT INTO drivers VALUES ($1, $2)", rows)
        read = await connection.fetch("SELECT after FROM TOPIC drivers ORDER BY lsn")
        assert [row["after"] for row in read] == ['"payload"', '"a"', '"b"', '"c"', '"d"']
        await connection.close()

    asyncio.run(run())
