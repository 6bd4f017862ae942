"""psycopg 3: sync and async, the pool, binary results, COPY, and the loop that reads a stream."""

from __future__ import annotations

import asyncio
import datetime
from decimal import Decimal
from typing import Any

import psycopg
import psycopg_pool
import pytest
from psycopg.types import TypeInfo
from psycopg.types.enum import EnumInfo
from psycopg.types.json import Json, Jsonb
from psycopg.types.range import RangeInfo
from server_process import ServerProcess
from shop import ANN, BOB, FIFTH, FIFTH_QUERY, ORDERS

Connection = psycopg.Connection[Any]


@pytest.fixture
def conninfo(shop: ServerProcess) -> str:
    """How to connect to the shop."""
    return f"{shop.conninfo} dbname=shop"


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_rows_of_all_types(look: Connection, binary: bool) -> None:
    customers = look.execute("SELECT * FROM app.customers ORDER BY id", binary=binary)
    assert customers.fetchall() == [ANN, BOB]
    # In binary form psycopg leaves the bytes of an enum that is not registered.
    fifth = (*FIFTH[:2], b"paid", *FIFTH[3:]) if binary else FIFTH
    assert look.execute(FIFTH_QUERY, binary=binary).fetchall() == [fifth]
    found = look.execute("SELECT iv FROM app.orders WHERE id = 5", binary=binary).fetchone()
    assert found == (datetime.timedelta(days=32, hours=3),)


def test_columns_are_described(look: Connection) -> None:
    described = look.execute("SELECT * FROM app.customers LIMIT 0").description or []
    shown = [
        "int8",
        "text",
        "text",
        "timestamptz",
        "numeric(12,2)",
        "jsonb",
        "text[]",
        "uuid",
        "bytea",
        "bool",
    ]
    assert [column.type_display for column in described] == shown
    assert [column.type_code for column in described] == [20, 25, 25, 1184, 1700, 3802, 1009, 2950, 17, 16]


def test_parameters_of_all_types(look: Connection, table: str) -> None:
    look.execute(f"CREATE OR REPLACE TABLE {table} AS SELECT * FROM app.customers LIMIT 0")
    row = [*ANN[:5], Json(ANN[5]), *ANN[6:]]
    marks = ", ".join(["%s"] * len(row))
    look.execute(f"INSERT INTO {table} VALUES ({marks})", row)
    row[0], row[5] = 2, Jsonb(ANN[5])
    look.execute(f"INSERT INTO {table} VALUES ({marks.replace('%s', '%b')})", row)
    assert look.execute(f"SELECT * FROM {table} ORDER BY id").fetchall() == [ANN, (2, *ANN[1:])]


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_json_is_jsonb(look: Connection, table: str, binary: bool) -> None:
    look.execute(f"CREATE OR REPLACE TABLE {table} (i INTEGER, j JSON, js JSONB[])")
    mark = "%b" if binary else "%t"
    for at, kind in enumerate((Json, Jsonb)):
        row = [at, kind({"a": at}), [kind([1]), kind(None)]]
        look.execute(f"INSERT INTO {table} VALUES (%s, {mark}, {mark})", row)
        with look.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(["int4", kind.__name__.lower(), f"{kind.__name__.lower()}[]"])
            copy.write_row(row)
        equal = f"SELECT count(*) FROM {table} WHERE j = {mark}"
        assert look.execute(equal, [Jsonb({"a": at})]).fetchone() == (2,)
    cursor = look.execute(f"SELECT j, js, {{'s': j}} FROM {table} ORDER BY i", binary=binary)
    assert [column.type_code for column in cursor.description or []] == [3802, 3807, 114]
    assert cursor.fetchall() == [
        ({"a": at}, [[1], None], {"s": {"a": at}}) for at in (0, 1) for _ in range(2)
    ]
    with look.cursor() as cursor, cursor.copy(f"COPY {table} TO STDOUT (FORMAT BINARY)") as copy:
        copy.set_types(["int4", "jsonb", "jsonb[]"])
        assert list(copy.rows()) == [(at, {"a": at}, [[1], None]) for at in (0, 0, 1, 1)]
    named = "SELECT pg_typeof(j)::text, format_type(3802, -1) FROM " + table
    assert look.execute(named).fetchone() == ("jsonb", "jsonb")


def test_types_are_found_by_name(look: Connection) -> None:
    status = EnumInfo.fetch(look, "app.status")
    assert status is not None and list(status.labels) == ["new", "paid", "shipped"]
    json = TypeInfo.fetch(look, "json")
    assert json is not None and (json.oid, json.array_oid) == (114, 199)
    assert TypeInfo.fetch(look, "nowhere") is None
    assert RangeInfo.fetch(look, "int4range") is None


def test_a_poll_loop_reads_every_event_once(look: Connection, group: str) -> None:
    seen: list[int] = []
    while events := look.execute(
        "SELECT lsn, op, key, after FROM STREAM orders_stream CONSUMER GROUP " + group + " LIMIT %s", [300]
    ).fetchall():
        seen += [key["id"] for _, _, key, _ in events]
        assert {op for _, op, _, _ in events} == {"insert"}
        assert events[0][3]["amount"] == events[0][2]["id"] * 1.25
        look.execute(f"COMMIT OFFSETS ON orders_stream CONSUMER GROUP {group}")
    assert seen == list(range(1, ORDERS + 1))


def test_copy_in_and_a_transaction(look: Connection, table: str) -> None:
    cursor = look.cursor()
    with look.transaction(), cursor.copy(f"COPY {table} FROM STDIN") as copy:
        for at in range(500):
            copy.write_row((at, f"a\tb\\{at}" if at else None))
    assert cursor.rowcount == 500
    assert look.execute(f"SELECT count(*), min(txt) FROM {table}").fetchone() == (500, "a\tb\\1")


def test_a_server_side_cursor_and_copy_out(look: Connection) -> None:
    with look.transaction(), look.cursor("orders") as cursor:
        cursor.itersize = 100
        cursor.execute("SELECT id FROM app.orders ORDER BY id")
        assert cursor.fetchmany(3) == [(1,), (2,), (3,)]
        cursor.scroll(5)
        assert [number for (number,) in cursor] == list(range(9, ORDERS + 1))
    query = "COPY (SELECT id, name, tags FROM app.customers ORDER BY id) TO STDOUT"
    with look.cursor() as cursor, cursor.copy(query) as copy:
        assert list(copy.rows()) == [("1", "Ann ☃", '{x,"y z",NULL,"\\"q\\""}'), ("2", "Bob", None)]
    with look.cursor() as cursor, cursor.copy(f"{query} (FORMAT BINARY)") as copy:
        copy.set_types(["int8", "text", "text[]"])
        assert list(copy.rows()) == [(1, "Ann ☃", ANN[6]), (2, "Bob", None)]


def test_copy_in_binary(look: Connection, table: str) -> None:
    with look.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN (FORMAT BINARY)") as copy:
        copy.set_types(["int4", "text"])
        copy.write_row((1, "a"))
        copy.write_row((2, None))
    assert look.execute(f"SELECT * FROM {table} ORDER BY i").fetchall() == [(1, "a"), (2, None)]


def test_executemany_with_returning(look: Connection, table: str) -> None:
    with look.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO {table} VALUES (%s, %s) RETURNING i, txt", [(1, "a"), (2, None)], returning=True
        )
        assert [found.fetchall() for found in cursor.results()] == [[(1, "a")], [(2, None)]]


def test_a_client_side_cursor(look: Connection) -> None:
    cursor = psycopg.ClientCursor(look)
    cursor.execute("SELECT %s, %s::date, %s", ["it's \\", datetime.date(2026, 1, 2), Decimal("1.50")])
    assert cursor.fetchone() == ("it's \\", datetime.date(2026, 1, 2), Decimal("1.50"))


def test_async(conninfo: str, group: str) -> None:
    async def run() -> list[Any]:
        async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
            async with connection.pipeline():
                one = await connection.execute("SELECT 1")
                fifth = await connection.execute(FIFTH_QUERY)
            found = [await one.fetchone(), await fifth.fetchone()]
            query = f"SELECT key FROM STREAM orders_stream CONSUMER GROUP {group}"
            found.append([row async for row in connection.cursor().stream(query)])
            return found

    one, fifth, events = asyncio.run(run())
    assert (one, fifth) == ((1,), FIFTH)
    assert events == [({"id": number},) for number in range(1, ORDERS + 1)]


def test_pools(conninfo: str, table: str) -> None:
    with psycopg_pool.ConnectionPool(conninfo, min_size=1, max_size=2) as pool:
        with pool.connection() as connection:
            connection.execute(f"INSERT INTO {table} VALUES (1, 'a')")
            assert connection.execute(f"SELECT * FROM {table}").fetchall() == [(1, "a")]
        with pool.connection() as one, pool.connection() as other:
            assert (
                other.execute("SELECT pg_backend_pid()").fetchone()
                != one.execute("SELECT pg_backend_pid()").fetchone()
            )
        pool.check()

    async def run() -> Any:
        pool = psycopg_pool.AsyncConnectionPool(conninfo, min_size=1, open=False)
        async with pool, pool.connection() as connection:
            return await (await connection.execute(f"SELECT count(*) FROM {table}")).fetchone()

    assert asyncio.run(run()) == (1,)
