"""Spark's `read.jdbc` and `write.jdbc`, in one Spark session."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from server_process import ServerProcess
from shop import ANN, BOB, FIFTH, ORDERS

pytestmark = [pytest.mark.jdbc, pytest.mark.slow]

PROPERTIES = {"user": "ducktail", "driver": "org.postgresql.Driver"}


@pytest.fixture
def jdbc(spark: Any, shop: ServerProcess) -> Any:
    """`jdbc(dbtable="app.orders")` is a data frame of the shop."""

    def read(**options: object) -> Any:
        address = f"jdbc:postgresql://{shop.host}:{shop.port}/shop?user=ducktail"
        reader = spark.read.format("jdbc").option("url", address).option("driver", "org.postgresql.Driver")
        for name, value in options.items():
            reader = reader.option(name, str(value))
        return reader.load()

    return read


def test_a_table_of_all_types(jdbc: Any) -> None:
    frame = jdbc(dbtable="app.customers")
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
        ("id", "bigint"), ("name", "string"), ("email", "string"), ("created", "timestamp"),
        ("balance", "decimal(12,2)"), ("meta", "string"), ("tags", "array<string>"), ("uid", "string"),
        ("photo", "binary"), ("active", "boolean"),
    ]  # fmt: skip
    ann, bob = (tuple(row) for row in frame.orderBy("id").collect())
    assert ann[:3] == ANN[:3] and ann[3].timestamp() == ANN[3].timestamp()
    assert ann[4:] == (ANN[4], '{"a": [1, null]}', ANN[6], str(ANN[7]), bytearray(ANN[8]), True)
    assert bob == BOB
    columns = ["id", "customer_id", "st", "amount", "placed", "t", "d", "s", "r"]
    fifth = tuple(jdbc(dbtable="app.orders").where("id = 5").select(*columns).collect()[0])
    assert fifth[:5] == FIFTH[:5] and fifth[6:] == FIFTH[6:]


def test_what_is_pushed_down(jdbc: Any) -> None:
    orders = jdbc(dbtable="app.orders")
    narrowed = orders.where("id > 10 AND customer_id = 1 AND st LIKE 'pa%' AND placed IS NOT NULL")
    assert narrowed.where("amount < 100").select("id").orderBy("id").collect()[:2] == [(12,), (14,)]
    plan = narrowed._jdf.queryExecution().executedPlan().toString()
    assert "GreaterThan(id,10)" in plan and "EqualTo(customer_id,1)" in plan
    table = jdbc(dbtable="app.orders", pushDownAggregate=True, pushDownLimit=True)
    grouped = table.groupBy("customer_id").agg({"amount": "sum", "id": "count"}).orderBy("customer_id")
    assert [tuple(row) for row in grouped.collect()] == [
        (1, Decimal(sum(range(2, 1001, 2))) * Decimal("1.25"), 500),
        (2, Decimal(sum(range(1, 1001, 2))) * Decimal("1.25"), 500),
    ]
    assert len(table.limit(7).collect()) == 7
    assert table.where(table.placed == datetime.date(2026, 1, 6)).count() == len(range(5, 1001, 28))


def test_partitioned_reads(jdbc: Any, spark: Any, shop: ServerProcess) -> None:
    parts = jdbc(
        dbtable="app.orders",
        partitionColumn="id",
        lowerBound=1,
        upperBound=ORDERS,
        numPartitions=4,
        fetchsize=50,
    )
    assert parts.rdd.getNumPartitions() == 4
    assert parts.agg({"id": "sum"}).collect()[0][0] == sum(range(1, ORDERS + 1))
    days = jdbc(
        dbtable="app.orders", partitionColumn="placed", lowerBound="2026-01-01", upperBound="2026-01-28",
        numPartitions=3,
    )  # fmt: skip
    assert (days.rdd.getNumPartitions(), days.count()) == (3, ORDERS)
    listed = spark.read.jdbc(
        f"jdbc:postgresql://{shop.host}:{shop.port}/shop", "app.orders",
        predicates=["id <= 100", "id > 900"], properties=PROPERTIES,
    )  # fmt: skip
    assert (listed.rdd.getNumPartitions(), listed.count()) == (2, 200)


def test_a_stream_as_a_table_a_subquery_and_a_query(jdbc: Any, group: str) -> None:
    view = jdbc(dbtable="orders_stream")
    assert [(field.name, field.dataType.simpleString()) for field in view.schema][:4] == [
        ("lsn", "bigint"), ("partition", "int"), ("op", "string"), ("table_name", "string"),
    ]  # fmt: skip
    assert view.where("op = 'insert'").count() == ORDERS
    read = f"SELECT * FROM STREAM orders_stream CONSUMER GROUP {group}"
    lsns = [row.lsn for row in jdbc(dbtable=f"({read}) t").orderBy("lsn").collect()]
    assert len(lsns) == ORDERS and lsns == sorted(set(lsns))
    parts = jdbc(
        dbtable=f"({read}) t", partitionColumn="partition", lowerBound=0, upperBound=8, numPartitions=4
    )
    assert parts.count() == ORDERS
    keys = [row.key for row in jdbc(query=f"{read} LIMIT 3").collect()]
    assert keys == ['{"id":1}', '{"id":2}', '{"id":3}']
    typed = jdbc(query="SELECT id, amount, _change_type FROM STREAM orders_stream ENVELOPE CHANGES")
    assert typed.where("id = 5").collect() == [(5, Decimal("6.25"), "insert")]


def test_parts_by_lsn_with_a_fixed_end(jdbc: Any, look: psycopg.Connection[Any]) -> None:
    """As docs/clients.md recommends it."""
    edges = jdbc(query="SELECT min(_lsn) AS low, max(_lsn) AS high FROM orders_stream_changes")
    low, high = edges.first()
    parts = jdbc(
        dbtable=f"(SELECT * FROM orders_stream_changes WHERE _lsn <= {high}) t", partitionColumn="_lsn",
        lowerBound=low, upperBound=high + 1, numPartitions=4, fetchsize=100,
    )  # fmt: skip
    assert parts.rdd.getNumPartitions() == 4
    assert sorted(row._lsn for row in parts.collect()) == list(range(low, high + 1))
    found = look.execute("SELECT partitions FROM ducktail.streams WHERE stream_name = 'orders_stream'")
    assert found.fetchone() == (8,)


def test_writes(spark: Any, shop: ServerProcess, look: psycopg.Connection[Any], table: str) -> None:
    address = f"jdbc:postgresql://{shop.host}:{shop.port}/shop"
    rows = [(at, f"v{at}" if at else None, at / 4, datetime.date(2026, 1, 2)) for at in range(100)]
    frame = spark.createDataFrame(rows, "i int, txt string, d double, day date")
    frame.write.jdbc(address, f"{table}_made", mode="overwrite", properties=PROPERTIES)
    frame.write.jdbc(address, f"{table}_made", mode="append", properties=PROPERTIES)
    found = look.execute(f"SELECT count(*), sum(d), count(txt), min(day) FROM {table}_made").fetchone()
    assert found == (200, 2475.0, 198, datetime.date(2026, 1, 2))
    frame.write.option("truncate", "true").jdbc(
        address, f"{table}_made", mode="overwrite", properties=PROPERTIES
    )
    assert look.execute(f"SELECT count(*) FROM {table}_made").fetchone() == (100,)
    look.execute(f"DROP TABLE {table}_made")
