"""psycopg2, which sends nothing but simple queries with the values written into them."""

from __future__ import annotations

import datetime
import io
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg2
import psycopg2.errors
import psycopg2.extras
import pytest
from shop import ANN, BOB, FIFTH, FIFTH_QUERY, ORDERS

Connection = Any


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    """A connection, not autocommit, as psycopg2 begins."""
    psycopg2.extras.register_uuid()
    connection = psycopg2.connect(url)
    yield connection
    connection.close()


def ask(connection: Connection, query: str, values: Any = None) -> list[Any]:
    """The rows of a query."""
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        found: list[Any] = cursor.fetchall()
        return found


def plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(bytes(value) if isinstance(value, memoryview) else value for value in row)


def test_rows_of_all_types(connection: Connection) -> None:
    rows = ask(connection, "SELECT * FROM app.customers ORDER BY id")
    assert [plain(row) for row in rows] == [ANN, BOB]
    assert ask(connection, FIFTH_QUERY) == [FIFTH]
    assert ask(connection, "SELECT iv FROM app.orders WHERE id = 5") == [
        (datetime.timedelta(days=32, hours=3),)
    ]


def test_values_of_all_types(connection: Connection, table: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TEMP TABLE {table}_c AS SELECT * FROM app.customers LIMIT 0")
        row = [*ANN[:5], psycopg2.extras.Json(ANN[5]), *ANN[6:]]
        cursor.execute(f"INSERT INTO {table}_c VALUES ({', '.join(['%s'] * len(row))})", row)
        assert cursor.rowcount == 1
    assert [plain(row) for row in ask(connection, f"SELECT * FROM {table}_c")] == [ANN]
    assert ask(connection, "SELECT %s, %s, %s", ("it's \\ %", Decimal("1.50"), datetime.timedelta(1, 2))) == [
        ("it's \\ %", Decimal("1.50"), datetime.timedelta(1, 2))
    ]
    listed = "SELECT id FROM app.orders WHERE id = ANY(%s) AND id IN %s ORDER BY id"
    assert ask(connection, listed, ([1, 2, 3], (2, 3, 4))) == [(2,), (3,)]


def test_transactions_and_errors(connection: Connection, table: str) -> None:
    with connection, connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {table} VALUES (1, 'a') RETURNING i, txt")
        assert cursor.fetchone() == (1, "a")
    with pytest.raises(psycopg2.errors.UniqueViolation), connection, connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {table} VALUES (2, 'b')")
        cursor.execute(f"INSERT INTO {table} VALUES (1, 'c')")
    assert ask(connection, f"SELECT * FROM {table}") == [(1, "a")]
    with pytest.raises(psycopg2.errors.UndefinedColumn) as caught:
        ask(connection, "SELECT nowhere FROM app.orders")
    assert caught.value.diag.statement_position == "8"
    connection.rollback()
    connection.set_session(isolation_level="REPEATABLE READ")
    assert ask(connection, "SHOW transaction_isolation") == [("repeatable read",)]


def test_many_rows_at_once(connection: Connection, table: str) -> None:
    with connection.cursor() as cursor:
        psycopg2.extras.execute_values(
            cursor, f"INSERT INTO {table} VALUES %s", [(at, f"v{at}") for at in range(250)]
        )
        psycopg2.extras.execute_batch(
            cursor, f"UPDATE {table} SET txt = %s WHERE i = %s", [(f"w{at}", at) for at in range(250)]
        )
        cursor.copy_expert(f"COPY {table} FROM STDIN WITH CSV", io.StringIO('250,"a,b"\n251,\n'))
        cursor.copy_from(io.StringIO("252\ta\n253\t\\N\n"), table)
    found = ask(connection, f"SELECT count(*), min(txt) FILTER (i < 250) FROM {table}")
    assert found == [(254, "w0")]
    assert ask(connection, f"SELECT txt FROM {table} WHERE i >= 250 ORDER BY i") == [
        ("a,b",), (None,), ("a",), (None,),
    ]  # fmt: skip


def test_a_named_cursor_reads_in_parts(connection: Connection) -> None:
    with connection.cursor("orders") as cursor:
        cursor.itersize = 100
        cursor.execute("SELECT id FROM app.orders ORDER BY id")
        assert [number for (number,) in cursor] == list(range(1, ORDERS + 1))


def test_rows_as_dictionaries_and_named_tuples(connection: Connection) -> None:
    with connection.cursor(cursor_factory=psycopg2.extras.RealDictCursor) as cursor:
        cursor.execute("SELECT id, name FROM app.customers ORDER BY id")
        assert cursor.fetchone() == {"id": 1, "name": "Ann ☃"}
    with connection.cursor(cursor_factory=psycopg2.extras.NamedTupleCursor) as cursor:
        cursor.execute("SELECT id, name FROM app.customers ORDER BY id")
        assert cursor.fetchone().name == "Ann ☃"


def test_a_stream_and_its_notices(connection: Connection, group: str) -> None:
    read = f"SELECT lsn, key FROM STREAM orders_stream CONSUMER GROUP {group} LIMIT 2"
    first = ask(connection, read)
    with connection.cursor() as cursor:
        cursor.execute(f"COMMIT OFFSETS ON orders_stream CONSUMER GROUP {group}")
    assert "committed when the transaction is" in connection.notices[-1]
    connection.commit()
    second = ask(connection, read)
    assert [key for _, key in first + second] == [{"id": number} for number in (1, 2, 3, 4)]
    psycopg2.extras.register_default_jsonb(connection, loads=lambda text: text)
    assert json.loads(ask(connection, read)[0][1]) == {"id": 3}


def test_a_serial_is_told_of_at_debug1(connection: Connection) -> None:
    connection.rollback()
    with connection.cursor() as cursor:
        cursor.execute("CREATE TEMP TABLE quiet (id SERIAL)")
        assert not connection.notices
        cursor.execute("SET client_min_messages = debug1")
        cursor.execute('CREATE TEMP TABLE "Odd t" (n SERIAL)')
    told = 'CREATE TABLE will create implicit sequence "Odd t_n_seq" for serial column "Odd t.n"'
    assert connection.notices == [f"DEBUG:  {told}\n"]
    connection.rollback()
