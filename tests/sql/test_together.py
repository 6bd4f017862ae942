"""Which INSERTs many executions of are one statement, and which."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal

import pytest
from local_client import Client

from ducktail.engine.database import Database
from ducktail.engine.waiting import drive
from ducktail.sql.dml.batch_insert import agree, kinds


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    database = Database.open(str(tmp_path_factory.mktemp("together") / "shop.duckdb"))
    client = Client(database, wire=True)
    client("CREATE TABLE t (id BIGINT PRIMARY KEY, s VARCHAR, d DECIMAL(12, 2))")
    client("CREATE STREAM s ON t WITH (partitions = 1)")
    yield client
    client.close()
    database.close()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "INSERT INTO t VALUES ($1, $2, $3)",
            "INSERT INTO t SELECT batch.p1, batch.p2, batch.p3 FROM (SELECT unnest($1::BIGINT[]) AS p1, "
            "unnest($2::VARCHAR[]) AS p2, unnest($3::DECIMAL(12,2)[]) AS p3) AS batch",
        ),
        (
            "INSERT INTO t (s, id) VALUES ($2::text, $1) ;",
            "INSERT INTO t (s, id) SELECT batch.p2::text, batch.p1 FROM (SELECT unnest($1::BIGINT[]) AS p1, "
            "unnest($2::VARCHAR[]) AS p2) AS batch",
        ),
        (
            "INSERT INTO main.t AS o (id, d, s) VALUES ($1, CAST($2 AS DECIMAL(10, 1)), 'x, (y')",
            "INSERT INTO main.t AS o (id, d, s) SELECT batch.p1, CAST(batch.p2 AS DECIMAL(10, 1)), 'x, (y' "
            "FROM (SELECT unnest($1::BIGINT[]) AS p1, unnest($2::DECIMAL(10,1)[]) AS p2) AS batch",
        ),
    ],
)
def test_the_text(client: Client, text: str, wanted: str) -> None:
    many = drive(client.session.many(drive(client.session.parse(text))))
    assert many is not None
    assert many.statement.text == wanted


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO t (id) VALUES (1)",
        "INSERT INTO t (id) VALUES ($1), ($2)",
        "INSERT INTO t (id) VALUES ($2)",
        "INSERT INTO t (id) VALUES ($1) RETURNING id",
        "INSERT INTO t (id) VALUES ($1) ON CONFLICT DO NOTHING",
        "INSERT OR REPLACE INTO t (id) VALUES ($1)",
        "INSERT INTO t (id, s) VALUES ($1, DEFAULT)",
        "INSERT INTO t (id) VALUES ((SELECT max(id) + $1 FROM t))",
        "INSERT INTO t (id) VALUES (abs($1))",
        "INSERT INTO t (id) VALUES (-$1)",
        "INSERT INTO t (id) VALUES (CAST((SELECT $1) AS INTEGER))",
        "INSERT INTO t (id, s) VALUES ($1, (SELECT 'x'))",
        "INSERT INTO t (id) VALUES ($1::INTEGER + abs(2))",
        "INSERT INTO t (id) VALUES ($1::INTEGER + (SELECT 1))",
        "INSERT INTO t (id) SELECT $1",
        "WITH x AS (SELECT 1) INSERT INTO t (id) VALUES ($1)",
        "UPDATE t SET s = $1",
        "SELECT $1",
    ],
)
def test_what_is_run_one_by_one(client: Client, text: str) -> None:
    assert drive(client.session.many(drive(client.session.parse(text)))) is None


def test_it_is_run(client: Client) -> None:
    statement = drive(client.session.parse("INSERT INTO t VALUES ($1, $2, $3)"))
    many = drive(client.session.many(statement))
    assert many is not None
    lists = [[3, 1, 2], ["a", None, "c"], [Decimal("1.5"), Decimal("10"), None]]
    result = drive(client.session.execute(many.statement, lists))
    assert result.tag == "INSERT 0 3"
    assert client("SELECT * FROM t ORDER BY rowid") == [
        (3, "a", Decimal("1.50")), (1, None, Decimal("10.00")), (2, "c", None)
    ]  # fmt: skip
    # The events come in the order of the executions.
    assert [lsn_key[1] for lsn_key in client("SELECT lsn, key FROM STREAM s LIMIT 9")] == [
        '{"id":3}', '{"id":1}', '{"id":2}'
    ]  # fmt: skip


def test_what_goes_into_one_list() -> None:
    day = datetime.date(2026, 1, 1)
    types = ("BIGINT", "VARCHAR", "DATE")
    one = kinds((1, None, None), types)
    assert one is not None
    assert agree(one, kinds((None, "x", day), types) or [])
    assert one == [int, str, datetime.date]
    assert not agree(one, kinds((1.5, "x", day), types) or [])
    assert not agree(one, kinds((True, "x", day), types) or [])
    assert kinds((1, 5, day), types) is None
    assert kinds((1, Decimal(1), day), types) is None
    assert kinds(([1], "x", day), types) is None
