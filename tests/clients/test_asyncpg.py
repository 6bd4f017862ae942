"""asyncpg, which sends and wants everything in binary and looks up types that it does not know."""

from __future__ import annotations

import asyncio
import datetime
import io
import json
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any

import asyncpg
import pytest
from shop import ANN, BOB, FIFTH, FIFTH_QUERY, ORDERS

Run = Callable[[Callable[[asyncpg.Connection], Awaitable[Any]]], Any]


@pytest.fixture
def run(url: str) -> Run:
    """`run(f)` is what `await f(connection)` gives on a new connection."""

    def start(work: Callable[[asyncpg.Connection], Awaitable[Any]]) -> Any:
        async def whole() -> Any:
            connection = await asyncpg.connect(url)
            try:
                return await work(connection)
            finally:
                await connection.close()

        return asyncio.run(whole())

    return start


def decoded(record: asyncpg.Record) -> tuple[Any, ...]:
    """A customer with the JSON column, which asyncpg leaves as text, read."""
    return tuple(json.loads(value) if at == 5 and value else value for at, value in enumerate(record))


def test_rows_of_all_types(run: Run) -> None:
    rows = run(lambda connection: connection.fetch("SELECT * FROM app.customers ORDER BY id"))
    assert [decoded(row) for row in rows] == [ANN, BOB]
    assert tuple(run(lambda connection: connection.fetchrow(FIFTH_QUERY))) == FIFTH
    query = "SELECT iv FROM app.orders WHERE id = 5"
    assert run(lambda connection: connection.fetchval(query)) == datetime.timedelta(days=32, hours=3)


def test_parameters_of_all_types(run: Run, table: str) -> None:
    async def work(connection: asyncpg.Connection) -> Any:
        await connection.execute(f"CREATE OR REPLACE TABLE {table} AS SELECT * FROM app.customers LIMIT 0")
        row = [*ANN[:5], json.dumps(ANN[5]), *ANN[6:]]
        marks = ", ".join(f"${at}" for at in range(1, len(row) + 1))
        assert await connection.execute(f"INSERT INTO {table} VALUES ({marks})", *row) == "INSERT 0 1"
        return await connection.fetchrow(f"SELECT * FROM {table} WHERE id = ANY($1::bigint[])", [1, 2])

    assert decoded(run(work)) == ANN
    cast = "SELECT $1::int, $2::numeric(10, 2), $3::interval, $4::int8[], $5::date, $6::text"
    values = (
        7,
        Decimal("1.50"),
        datetime.timedelta(days=1, seconds=2),
        [1, None],
        datetime.date(2026, 1, 2),
        "x",
    )
    assert tuple(run(lambda connection: connection.fetchrow(cast, *values))) == values


def test_a_prepared_statement_tells_its_types(run: Run) -> None:
    async def work(connection: asyncpg.Connection) -> Any:
        statement = await connection.prepare("SELECT id, name, tags FROM app.customers WHERE id = $1")
        told = [found.name for found in statement.get_parameters()]
        told += [f"{found.name} {found.type.name}" for found in statement.get_attributes()]
        return told, [tuple(await statement.fetchrow(number)) for number in (1, 2)]

    told, rows = run(work)
    assert told == ["int8", "id int8", "name text", "tags text[]"]
    assert rows == [(1, ANN[1], ANN[6]), (2, "Bob", None)]


def test_transactions_errors_and_many(run: Run, table: str) -> None:
    async def work(connection: asyncpg.Connection) -> Any:
        await connection.executemany(
            f"INSERT INTO {table} VALUES ($1, $2)", [(at, str(at)) for at in range(300)]
        )
        with pytest.raises(asyncpg.UniqueViolationError):
            async with connection.transaction():
                await connection.execute(f"DELETE FROM {table} WHERE i > 0")
                await connection.execute(f"INSERT INTO {table} VALUES (0, 'again')")
        async with connection.transaction(isolation="repeatable_read"):
            await connection.execute(f"UPDATE {table} SET txt = 'x' WHERE i < 10")
        with pytest.raises(asyncpg.UndefinedTableError):
            await connection.fetch("SELECT * FROM nowhere")
        found = await connection.fetchmany(
            f"INSERT INTO {table} VALUES ($1, 'y') RETURNING i", [(300,), (301,)]
        )
        counted = await connection.fetchrow(f"SELECT count(*), count(*) FILTER (txt = 'x') FROM {table}")
        return [tuple(row) for row in found], tuple(counted)

    assert run(work) == ([(300,), (301,)], (302, 10))


def test_a_cursor_takes_its_rows_in_parts(run: Run) -> None:
    async def work(connection: asyncpg.Connection) -> Any:
        async with connection.transaction():
            query = "SELECT id FROM app.orders WHERE id > $1 ORDER BY id"
            each = [row["id"] async for row in connection.cursor(query, 10, prefetch=50)]
            cursor = await connection.cursor(query, 10)
            return each, [row["id"] for row in await cursor.fetch(3)], (await cursor.fetchrow())["id"]

    assert run(work) == (list(range(11, ORDERS + 1)), [11, 12, 13], 14)


def test_copy_in(run: Run, table: str) -> None:
    async def work(connection: asyncpg.Connection) -> Any:
        source = io.BytesIO(b"1\ta\n2\t\\N\n")
        tag = await connection.copy_to_table(table, source=source, format="text")
        return tag, [tuple(row) for row in await connection.fetch(f"SELECT * FROM {table} ORDER BY i")]

    assert run(work) == ("COPY 2", [(1, "a"), (2, None)])


def test_copy_out_a_cursor_s_move_and_records(run: Run, table: str) -> None:
    async def work(connection: asyncpg.Connection) -> Any:
        tag = await connection.copy_records_to_table(table, records=[(1, "a"), (2, None), (3, "c")])
        out = io.BytesIO()
        await connection.copy_from_query(f"SELECT * FROM {table} ORDER BY i", output=out, format="csv")
        async with connection.transaction():
            cursor = await connection.cursor(f"SELECT i FROM {table} ORDER BY i")
            moved = await cursor.forward(2)
            return tag, out.getvalue(), moved, (await cursor.fetchrow())["i"]

    assert run(work) == ("COPY 3", b"1,a\n2,\n3,c\n", 2, 3)


def test_a_pool_resets_its_connections(url: str) -> None:
    async def work() -> Any:
        async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool:
            async with pool.acquire() as connection:
                await connection.execute("SET statement_timeout = '5 s'")
                one = await connection.fetchval("SELECT pg_backend_pid()")
            async with pool.acquire() as connection:
                other = await connection.fetchval("SELECT pg_backend_pid()")
                return one == other, await connection.fetchval("SHOW statement_timeout")

    assert asyncio.run(work()) == (True, "0")


def test_codecs_are_set_by_type(run: Run) -> None:
    async def work(connection: asyncpg.Connection) -> Any:
        for name in ("json", "jsonb"):
            await connection.set_type_codec(name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        both = "SELECT $1::json, $1::jsonb, [$1::json], {'b': 2}"
        assert tuple(await connection.fetchrow(both, ANN[5])) == (ANN[5], ANN[5], [ANN[5]], {"b": 2})
        kinds = "SELECT oid, typname, typnamespace::regnamespace FROM pg_type WHERE typname = 'status'"
        row = await connection.fetchrow(kinds)
        return await connection.fetchval("SELECT meta FROM app.customers WHERE id = 1"), tuple(row)[1:]

    assert run(work) == (ANN[5], ("status", "app"))


def test_a_slow_query_is_cut_by_its_timeout(run: Run) -> None:
    async def work(connection: asyncpg.Connection) -> Any:
        with pytest.raises(TimeoutError):
            await connection.fetch(
                "SELECT count(*) FROM range(10000000000) a WHERE a.range % 7 = 8", timeout=0.2
            )
        return await connection.fetchval("SELECT 1")

    assert run(work) == 1


def test_a_stream(run: Run, group: str) -> None:
    async def work(connection: asyncpg.Connection) -> Any:
        read = f"SELECT lsn, key, commit_time FROM STREAM orders_stream CONSUMER GROUP {group} LIMIT $1"
        keys = []
        for _ in range(2):
            keys += [row["key"] for row in await connection.fetch(read, 2)]
            await connection.execute(f"COMMIT OFFSETS ON orders_stream CONSUMER GROUP {group}")
        return keys

    assert run(work) == ['{"id":1}', '{"id":2}', '{"id":3}', '{"id":4}']


def test_a_cursor_of_a_failed_transaction(run: Run) -> None:
    async def work(connection: asyncpg.Connection) -> None:
        with pytest.raises(asyncpg.InFailedSQLTransactionError):
            async with connection.transaction(isolation="read_committed"):
                assert await connection.fetchval("SHOW transaction_isolation") == "read committed"
                cursor = await connection.cursor("SELECT generate_series(1, 3)")
                assert await cursor.fetch(1) == [(1,)]
                with pytest.raises(asyncpg.UndefinedTableError):
                    await connection.execute("SELECT * FROM nowhere")
                await cursor.fetch(1)
        assert await connection.fetchval("SHOW transaction_isolation") == "repeatable read"

    run(work)


def test_codecs_of_enums(run: Run) -> None:
    async def work(connection: asyncpg.Connection) -> Any:
        await connection.set_type_codec("status", schema="app", encoder=str.lower, decoder=str.upper)
        query = "SELECT st, array[st] FROM app.orders WHERE st = $1 AND id = 5"
        found = await connection.fetchrow(query, "PAID")
        prepared = await connection.prepare(query)
        return tuple(found), [kind.name for kind in prepared.get_parameters()]

    assert run(work) == (("PAID", ["PAID"]), ["status"])
