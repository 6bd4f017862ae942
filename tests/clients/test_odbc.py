"""psqlODBC through pyodbc: server-side and client-side parameters, and the catalog functions."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyodbc
import pytest
from server_process import ServerProcess
from shop import ANN, FIFTH, FIFTH_QUERY, ORDERS

pytestmark = pytest.mark.odbc


@pytest.fixture(params=["", "UseServerSidePrepare=0;"], ids=["server", "client"])
def connection(request: pytest.FixtureRequest, shop: ServerProcess) -> Iterator[Any]:
    """A connection whose parameters are bound by the server or written into the text by the driver."""
    connection = pyodbc.connect(
        f"Driver={{PostgreSQL Unicode}};Server={shop.host};Port={shop.port};Database=shop;Uid=ducktail;"
        f"BoolsAsChar=0;ByteaAsLongVarBinary=1;Protocol=7.4-1;{request.param}"
    )
    yield connection
    connection.close()


def rows(cursor: Any) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in cursor.fetchall()]


def test_rows_of_all_types(connection: Any) -> None:
    [row] = rows(connection.execute("SELECT * FROM app.customers WHERE id = 1"))
    assert row == (
        *ANN[:3], ANN[3].replace(tzinfo=None), ANN[4], '{"a": [1, null]}', '{x,"y z",NULL,"\\"q\\""}',
        str(ANN[7]).upper(), ANN[8], True,
    )  # fmt: skip
    [fifth] = rows(connection.execute(FIFTH_QUERY))
    assert fifth == FIFTH
    assert len(connection.execute("SELECT * FROM app.orders").fetchall()) == ORDERS


def test_parameters_and_many_rows(connection: Any, table: str) -> None:
    cursor = connection.cursor()
    assert cursor.execute(f"INSERT INTO {table} VALUES (?, ?)", 1, "a'b \\").rowcount == 1
    cursor.executemany(f"INSERT INTO {table} VALUES (?, ?)", [(at, f"v{at}") for at in range(2, 50)])
    cursor.fast_executemany = True
    cursor.executemany(f"INSERT INTO {table} VALUES (?, ?)", [(at, None) for at in range(50, 100)])
    connection.commit()
    found = cursor.execute(f"SELECT txt FROM {table} WHERE i IN (?, ?, ?) ORDER BY i", 1, 49, 99)
    assert rows(found) == [("a'b \\",), ("v49",), (None,)]
    day = datetime.date(2026, 1, 6)
    query = "SELECT count(*) FROM app.orders WHERE placed = ? AND amount <= ?"
    assert rows(cursor.execute(query, day, Decimal("6.25"))) == [(1,)]


def test_transactions_and_errors(connection: Any, table: str) -> None:
    cursor = connection.cursor()
    cursor.execute(f"INSERT INTO {table} VALUES (1, 'a')")
    connection.rollback()
    with pytest.raises(pyodbc.Error) as caught:
        cursor.execute("SELECT nowhere FROM app.orders")
    assert caught.value.args[0] == "42703" or "nowhere" in str(caught.value)
    connection.rollback()
    connection.autocommit = True
    assert rows(cursor.execute(f"SELECT count(*) FROM {table}")) == [(0,)]


def test_catalog_functions(connection: Any) -> None:
    cursor = connection.cursor()
    assert sorted(row[1:4] for row in rows(cursor.tables(schema="app"))) == [
        ("app", "customers", "TABLE"), ("app", "names", "VIEW"), ("app", "orders", "TABLE"),
    ]  # fmt: skip
    columns = {row[3]: (row[5], row[6]) for row in rows(cursor.columns(table="orders", schema="app"))}
    assert columns == {
        "id": ("int8", 19), "customer_id": ("int8", 19), "st": ("status", 255), "amount": ("numeric", 10),
        "placed": ("date", 10), "t": ("time", 8), "iv": ("interval", 32), "d": ("float8", 17),
        "s": ("int2", 5), "r": ("float4", 9),
    }  # fmt: skip
    assert [row[3:5] for row in rows(cursor.primaryKeys(table="orders", schema="app"))] == [("id", 1)]
    keys = rows(cursor.foreignKeys(foreignTable="orders", foreignSchema="app"))
    assert [(row[2], row[3], row[6], row[7]) for row in keys] == [
        ("customers", "id", "orders", "customer_id")
    ]
    found = rows(cursor.statistics(table="orders", schema="app"))
    assert [(row[5], row[3], row[8]) for row in found] == [
        ("orders_pkey", 0, "id"), ("orders_customer", 1, "customer_id"),
    ]  # fmt: skip
    assert [row[2] for row in rows(cursor.procedures(schema="app"))] == ["twice"]
    assert connection.getinfo(pyodbc.SQL_DBMS_NAME) == "PostgreSQL"


def test_a_stream(connection: Any, group: str) -> None:
    connection.autocommit = True
    seen = []
    for _ in range(2):
        seen += rows(
            connection.execute(f"SELECT key FROM STREAM orders_stream CONSUMER GROUP {group} LIMIT 2")
        )
        connection.execute(f"COMMIT OFFSETS ON orders_stream CONSUMER GROUP {group}")
    assert seen == [('{"id":1}',), ('{"id":2}',), ('{"id":3}',), ('{"id":4}',)]


@pytest.mark.parametrize("protocol", ["7.4-0", "7.4-1", "7.4-2"])
def test_rows_in_parts_with_other_statements_between(shop: ServerProcess, table: str, protocol: str) -> None:
    """UseDeclareFetch=1: the driver declares a cursor and fetches 100 rows at a time.

    `7.4-2`, the driver's own way, sets a savepoint before each statement; `7.4-0` fails the transaction.
    """
    connection = pyodbc.connect(
        f"Driver={{PostgreSQL Unicode}};Server={shop.host};Port={shop.port};Database=shop;Uid=ducktail;"
        f"UseDeclareFetch=1;Fetch=100;Protocol={protocol}"
    )
    try:
        cursor, other = connection.cursor(), connection.cursor()
        cursor.execute("SELECT i, 'row ' || i FROM range(20000) r(i)")
        for start in range(0, 20_000, 5000):
            assert [row[0] for row in cursor.fetchmany(5000)] == list(range(start, start + 5000))
            other.execute(f"INSERT INTO {table} VALUES (?, ?)", start, "between")
        assert cursor.fetchone() is None
        connection.commit()
        assert rows(other.execute(f"SELECT count(*) FROM {table}")) == [(4,)]
        with pytest.raises(pyodbc.Error):
            other.execute(f"INSERT INTO {table} VALUES (0, 'again')")
        connection.rollback()
        assert rows(other.execute(f"SELECT count(*) FROM {table}")) == [(4,)]
    finally:
        connection.close()
