"""A shop's database that clients browse, read and write: one of each kind of object, and a stream."""

from __future__ import annotations

import datetime
import uuid
from decimal import Decimal
from typing import Any

from server_process import ServerProcess

SCHEMA = """
    CREATE SCHEMA app;
    CREATE TYPE app.status AS ENUM ('new', 'paid', 'shipped');
    CREATE TABLE app.customers (
        id BIGINT PRIMARY KEY, name VARCHAR NOT NULL, email VARCHAR UNIQUE, created TIMESTAMPTZ DEFAULT now(),
        balance DECIMAL(12, 2) DEFAULT 0, meta JSON, tags VARCHAR[], uid UUID, photo BLOB,
        active BOOLEAN DEFAULT true);
    CREATE TABLE app.orders (
        id BIGINT PRIMARY KEY, customer_id BIGINT REFERENCES app.customers (id), st app.status,
        amount DECIMAL(10, 2) CHECK (amount >= 0), placed DATE, t TIME, iv INTERVAL, d DOUBLE, s SMALLINT,
        r REAL);
    CREATE INDEX orders_customer ON app.orders (customer_id);
    CREATE VIEW app.names AS
        SELECT o.id, c.name FROM app.orders o JOIN app.customers c ON c.id = o.customer_id;
    CREATE SEQUENCE app.numbers;
    CREATE MACRO app.twice(a) AS a * 2;
    COMMENT ON TABLE app.orders IS 'what was bought';
    COMMENT ON COLUMN app.orders.amount IS 'with tax';
    CREATE STREAM orders_stream ON app.orders;
    INSERT INTO app.customers VALUES
        (1, 'Ann ☃', 'ann@example.org', '2026-01-02 03:04:05.678901+00', 12345.67, '{"a": [1, null]}',
         ['x', 'y z', NULL, '"q"'], 'b1d8e8d1-6d0b-4e7c-9f57-3a0c1b1c2d3e', '\\x00\\xFF\\x5C'::BLOB, true),
        (2, 'Bob', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
    INSERT INTO app.orders
        SELECT i, 1 + i % 2, 'paid', i * 1.25, DATE '2026-01-01' + (i % 28)::INTEGER, TIME '10:11:12.5',
               INTERVAL '1 month 2 days 3 hours', i / 8, i, i / 4
        FROM range(1, 1001) r(i);
"""
ORDERS = 1000

Row = tuple[Any, ...]

ANN: Row = (
    1, "Ann ☃", "ann@example.org", datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, datetime.UTC),
    Decimal("12345.67"), {"a": [1, None]}, ["x", "y z", None, '"q"'],
    uuid.UUID("b1d8e8d1-6d0b-4e7c-9f57-3a0c1b1c2d3e"), b"\0\xff\\", True,
)  # fmt: skip
BOB: Row = (2, "Bob", *[None] * 8)
# The order of number 5, without its interval, which each client has a type of its own for.
FIFTH: Row = (5, 2, "paid", Decimal("6.25"), datetime.date(2026, 1, 6), datetime.time(10, 11, 12, 500000),
              0.625, 5, 1.25)  # fmt: skip
FIFTH_QUERY = "SELECT id, customer_id, st, amount, placed, t, d, s, r FROM app.orders WHERE id = 5"


def fill(server: ServerProcess) -> None:
    """Make it all in a server's empty database."""
    with server.connect() as connection:
        for statement in SCHEMA.split(";"):
            if statement.strip():
                connection.execute(statement)
