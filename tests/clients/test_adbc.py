"""ADBC's PostgreSQL driver: what it asks of the catalog, and Arrow parameters and results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import adbc_driver_postgresql.dbapi as adbc
import psycopg
import pyarrow as pa
import pytest
from shop import ANN, ORDERS


@pytest.fixture
def connection(url: str) -> Iterator[Any]:
    """A connection; ADBC's are not autocommit."""
    with adbc.connect(url) as connection:
        yield connection


def test_objects(connection: Any) -> None:
    [catalog] = connection.adbc_get_objects(depth="all", db_schema_filter="app").read_all().to_pylist()
    assert catalog["catalog_name"] == "shop"
    [schema] = catalog["catalog_db_schemas"]
    tables = {found["table_name"]: found for found in schema["db_schema_tables"]}
    kinds = {name: found["table_type"] for name, found in tables.items()}
    assert kinds == {"customers": "table", "orders": "table", "names": "view"}
    columns = [(found["column_name"], found["xdbc_type_name"]) for found in tables["orders"]["table_columns"]]
    assert columns[:5] == [
        ("id", "int8"), ("customer_id", "int8"), ("st", "status"), ("amount", "numeric"), ("placed", "date"),
    ]  # fmt: skip
    [key] = [c for c in tables["orders"]["table_constraints"] if c["constraint_type"] == "FOREIGN KEY"]
    assert key["constraint_column_names"] == ["customer_id"]
    assert key["constraint_column_usage"][0]["fk_table"] == "customers"


def test_the_schema_of_a_table(connection: Any) -> None:
    schema = connection.adbc_get_table_schema("customers", db_schema_filter="app")
    kinds = [pa.int64(), pa.string(), pa.string(), pa.timestamp("us", "UTC")]
    assert schema.names[:4] == ["id", "name", "email", "created"]
    assert [schema.field(name).type for name in schema.names[:4]] == kinds
    assert schema.field("tags").type == pa.list_(pa.string())
    with pytest.raises(adbc.Error):
        connection.adbc_get_table_schema("nowhere", db_schema_filter="app")


def test_a_query_with_parameters(connection: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT id, name FROM app.customers WHERE id = $1 OR name = $2", (1, "Bob"))
        assert cursor.fetch_arrow_table().to_pydict() == {"id": [1, 2], "name": ["Ann ☃", "Bob"]}


def test_arrow_out(connection: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT id, name, created, tags, photo, active, meta FROM app.customers ORDER BY id")
        found = cursor.fetch_arrow_table()
        columns = (ANN[0], ANN[1], ANN[3], ANN[6], ANN[8], ANN[9])
        *rows, metas = zip(*(row.values() for row in found.to_pylist()), strict=True)
        assert list(zip(*rows, strict=True)) == [columns, (2, "Bob", *[None] * 4)]
        assert (json.loads(metas[0]), metas[1]) == (ANN[5], None)
        cursor.execute("SELECT id, d, placed FROM app.orders")
        assert sum(cursor.fetch_arrow_table()["d"].to_pylist()) == sum(range(ORDERS + 1)) / 8


def test_arrow_in(connection: Any, look: psycopg.Connection[Any], table: str) -> None:
    rows = pa.table({"i": pa.array([1, 2], pa.int32()), "txt": ["a", None]})
    with connection.cursor() as cursor:
        assert cursor.adbc_ingest(table, rows, mode="append") == 2
        made = pa.table({"a": [1, 2, 3], "b": ["x", None, "z"], "c": [0.5, 1.5, None]})
        assert cursor.adbc_ingest(f"{table}_made", made, mode="create") == 3
        connection.commit()
        cursor.execute(f"SELECT * FROM {table}_made ORDER BY a")
        assert cursor.fetch_arrow_table().to_pydict() == made.to_pydict()
        connection.commit()
    assert look.execute(f"SELECT * FROM {table} ORDER BY i").fetchall() == [(1, "a"), (2, None)]
    look.execute(f"DROP TABLE {table}_made")


def test_writes_and_errors(connection: Any, look: psycopg.Connection[Any], table: str) -> None:
    with connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO {table} VALUES ($1, $2)", [(1, "a"), (2, None)])
        connection.commit()
        assert look.execute(f"SELECT * FROM {table} ORDER BY i").fetchall() == [(1, "a"), (2, None)]
        with pytest.raises(adbc.Error) as caught:
            cursor.execute(f"INSERT INTO {table} VALUES ($1, $2)", (1, "again"))
        assert caught.value.sqlstate == "23505"
        connection.rollback()
