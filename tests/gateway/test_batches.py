"""executemany and pipelines of one INSERT: run together, and told as if each had been run alone."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg.types.json import Json
from server_process import ServerProcess

COLUMNS = (
    "id BIGINT PRIMARY KEY, i INTEGER, d DECIMAL(12, 3), f DOUBLE, s VARCHAR, b BOOLEAN, day DATE, "
    "moment TIMESTAMP, tz TIMESTAMPTZ, j JSON, bin BLOB, u UUID, n INTEGER[]"
)
INSERT = f"INSERT INTO {{}} VALUES ({', '.join(['%s'] * 13)})"


@pytest.fixture
def client(server: ServerProcess) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        yield connection


def rows(count: int) -> list[tuple[object, ...]]:
    """Rows whose parameters come in several Python types, widths and formats."""
    day = datetime.date(2026, 1, 1)
    moment = datetime.datetime(2026, 1, 1, 10, 0, 0, 120)
    found: list[tuple[object, ...]] = []
    for n in range(count):
        found.append(
            (
                n * 40_000,
                n if n % 7 else None,
                Decimal(n) / 8 if n % 3 else n,
                n / 3 if n % 5 else None,
                ("x" * (n % 11), None, "é'\"\\", "")[n % 4],
                n % 2 == 0,
                day + datetime.timedelta(n) if n % 9 else "infinity",
                moment + datetime.timedelta(seconds=n) if n % 10 else None,
                (moment + datetime.timedelta(hours=n)).replace(tzinfo=datetime.UTC),
                Json({"n": n, "é": [None]}) if n % 6 else None,
                bytes([n % 256, 0, 255]),
                f"00000000-0000-0000-0000-{n:012}",
                [n, None] if n % 8 else [],
            )
        )
    return found


def test_a_batch_stores_what_single_statements_store(client: psycopg.Connection[Any]) -> None:
    for name in ("one", "many"):
        client.execute(f"CREATE TABLE {name} ({COLUMNS})")
        client.execute(f"CREATE STREAM {name}_stream ON {name} WITH (partitions = 1)")
    count = 300
    for row in rows(count):
        client.execute(INSERT.format("one"), row)
    with client.cursor() as cursor:
        cursor.executemany(INSERT.format("many"), rows(count))
        assert cursor.rowcount == count
    difference = "(SELECT * FROM {} EXCEPT ALL SELECT * FROM {})"
    assert client.execute("SELECT count(*) FROM many").fetchone() == (count,)
    for a, b in [("one", "many"), ("many", "one")]:
        assert client.execute(f"SELECT * FROM {difference.format(a, b)} t").fetchall() == []
    images = "SELECT op, key, after FROM STREAM {}_stream LIMIT 1000"
    assert client.execute(images.format("one")).fetchall() == client.execute(images.format("many")).fetchall()


@pytest.mark.parametrize("captured", [True, False])
def test_a_wrong_row_undoes_the_batch(client: psycopg.Connection[Any], captured: bool) -> None:
    client.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, price INTEGER CHECK (price > 0))")
    if captured:
        client.execute("CREATE STREAM s ON t")
    insert = "INSERT INTO t VALUES (%s, %s)"
    wrong: list[tuple[list[tuple[object, ...]], str]] = [
        ([(n, 1) for n in [*range(50), 25]], "23505"),
        ([(n, 30 - n) for n in range(50)], "23514"),
        ([(n, 1 if n < 40 else "x") for n in range(50)], "22P02"),
        ([(n, 1 if n < 40 else 2**40) for n in range(50)], "22003"),
        ([(n if n < 40 else None, 1) for n in range(50)], "23502"),
    ]
    for batch, sqlstate in wrong:
        with client.cursor() as cursor, pytest.raises(psycopg.Error) as caught:
            cursor.executemany(insert, batch)
        assert caught.value.sqlstate == sqlstate
        assert client.execute("SELECT count(*) FROM t").fetchone() == (0,)
        with pytest.raises(psycopg.Error) as caught, client.transaction():
            client.execute(insert, (1, 1))
            client.cursor().executemany(insert, batch)
        assert caught.value.sqlstate in (sqlstate, "23505")
        assert client.execute("SELECT count(*) FROM t").fetchone() == (0,)
    with client.cursor() as cursor:
        cursor.executemany(insert, [(n, 1) for n in range(50)])
    assert client.execute("SELECT count(*), sum(id) FROM t").fetchone() == (50, 1225)


def test_what_is_no_plain_insert_runs_one_by_one(client: psycopg.Connection[Any]) -> None:
    client.execute("CREATE SEQUENCE numbers")
    client.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER DEFAULT 7, s VARCHAR)")
    client.execute("CREATE STREAM s ON t WITH (partitions = 1)")
    with client.cursor() as cursor:
        # Each meets what the one before it has written.
        upsert = "INSERT INTO t (id, n) VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET n = t.n + excluded.n"
        cursor.executemany(upsert, [(n % 3, 1) for n in range(30)])
        assert client.execute("SELECT id, n FROM t ORDER BY id").fetchall() == [(0, 10), (1, 10), (2, 10)]
        cursor.executemany("INSERT INTO t (id, n) VALUES (%s, DEFAULT)", [(n,) for n in range(10, 15)])
        cursor.executemany("INSERT INTO t (id, n) VALUES (%s, (SELECT max(n) + 1 FROM t))", [(20,), (21,)])
        found = client.execute("SELECT id, n FROM t WHERE id >= 10 ORDER BY id").fetchall()
        assert found == [(10, 7), (11, 7), (12, 7), (13, 7), (14, 7), (20, 11), (21, 12)]
        told = "INSERT INTO t (id, s) VALUES (%s, %s) RETURNING id"
        cursor.executemany(told, [(30, "a"), (31, "b")], returning=True)
        assert [cursor.fetchall(), cursor.nextset(), cursor.fetchall()] == [[(30,)], True, [(31,)]]
        cursor.executemany("UPDATE t SET n = n * %s WHERE id = %s", [(2, 30), (3, 30)])
        assert client.execute("SELECT n FROM t WHERE id = 30").fetchone() == (42,)
        # Text is the text of each alone.
        values = [Decimal("1.5"), Decimal("2.25"), 3, "x", None]
        cursor.executemany("INSERT INTO t (id, s) VALUES (%s, %s::text)", list(enumerate(values, 40)))
        found = client.execute("SELECT s FROM t WHERE id >= 40 ORDER BY id").fetchall()
        assert found == [("1.5",), ("2.25",), ("3",), ("x",), (None,)]


def test_a_pipeline_between(client: psycopg.Connection[Any]) -> None:
    client.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, s VARCHAR)")
    client.execute("CREATE STREAM s ON t WITH (partitions = 1)")
    insert = "INSERT INTO t VALUES (%s, %s)"
    with client.pipeline() as pipeline:
        counts = []
        for n in range(200):
            client.execute(insert, (n, f"row {n}"), prepare=True)
            if n % 50 == 49:
                counts.append(client.execute("SELECT count(*) FROM t"))
            if n == 120:
                pipeline.sync()
    assert [cursor.fetchone() for cursor in counts] == [(50,), (100,), (150,), (200,)]
    keys = client.execute("SELECT key FROM STREAM s LIMIT 1000").fetchall()
    assert keys == [({"id": n},) for n in range(200)]


def test_asyncpg(server: ServerProcess) -> None:
    async def work() -> None:
        client = await asyncpg.connect(host=server.host, port=server.port, user="ann", database="ducktail")
        await client.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, moment TIMESTAMP, s VARCHAR)")
        moment = datetime.datetime(2026, 1, 1)
        batch = [(n, moment + datetime.timedelta(n), f"row {n}" if n % 3 else None) for n in range(2000)]
        await client.executemany("INSERT INTO t VALUES ($1, $2, $3)", batch)
        assert [tuple(row) for row in await client.fetch("SELECT * FROM t ORDER BY id")] == batch
        with pytest.raises(asyncpg.UniqueViolationError):
            await client.executemany("INSERT INTO t VALUES ($1, $2, $3)", [(n, None, "") for n in (5000, 1)])
        assert await client.fetchval("SELECT count(*) FROM t") == 2000
        await client.close()

    asyncio.run(work())
