"""The catalog beside a real PostgreSQL: the same columns, types and oids, and the same answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import postgres_process
import psycopg
import pytest

from ducktail.pgwire_gateway.catalog.system_catalogs import SHAPES, TYPES

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

# What both are given; PostgreSQL names constraints otherwise, so they have names that agree.
OBJECTS = """
    CREATE SCHEMA store;
    CREATE TABLE store.customers (id BIGINT, name TEXT NOT NULL, balance NUMERIC(12,2), tags TEXT[],
        born DATE);
    CREATE TABLE store.orders (id INTEGER, customer BIGINT, placed TIMESTAMPTZ, d DOUBLE PRECISION,
        ok BOOLEAN);
    CREATE INDEX orders_customer ON store.orders (customer);
    CREATE VIEW store.names AS SELECT id, name FROM store.customers;
    CREATE SEQUENCE store.numbers START 7;
    COMMENT ON TABLE store.orders IS 'what was bought'
"""

QUERIES = [
    "SELECT c.relname, c.relkind, c.relhasindex, c.relpersistence, c.relnatts, n.nspname FROM pg_class c "
    "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'store' ORDER BY 1",
    "SELECT c.oid::regclass::text, a.attname, a.attnum, a.attnotnull, format_type(a.atttypid, a.atttypmod), "
    "a.attlen, a.attstorage, a.attndims, t.typname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid "
    "JOIN pg_type t ON t.oid = a.atttypid WHERE c.relnamespace = 'store'::regnamespace AND c.relkind IN "
    "('r', 'v') AND a.attnum > 0 ORDER BY 1, 3",
    "SELECT obj_description('store.orders'::regclass, 'pg_class'), to_regclass('store.nowhere')",
    "SELECT s.seqstart, s.seqincrement, s.seqmax, format_type(s.seqtypid, NULL) FROM pg_sequence s",
    "SELECT i.indexrelid::regclass::text, i.indisunique, i.indkey, i.indnatts FROM pg_index i "
    "WHERE i.indrelid = 'store.orders'::regclass",
    "SELECT table_name, table_type, is_insertable_into FROM information_schema.tables "
    "WHERE table_schema = 'store' AND table_type = 'BASE TABLE' ORDER BY 1",
    "SELECT table_name, column_name, ordinal_position, is_nullable, data_type, udt_name, numeric_precision, "
    "numeric_precision_radix, numeric_scale, datetime_precision, character_octet_length "
    "FROM information_schema.columns WHERE table_schema = 'store' ORDER BY 1, 3",
    "SELECT sequence_name, data_type, start_value FROM information_schema.sequences",
    "SELECT typname, format_type(oid, NULL), typcategory, typelem, typarray, typinput, typlen FROM pg_type "
    "WHERE oid IN (16, 20, 23, 25, 114, 1009, 1184, 1700, 3802) ORDER BY oid",
    "SELECT lower('STORE')::regnamespace::text, replace('pg_clasz', 'z', 's')::regclass::text, "
    "pg_typeof(1)::regtype::text, relname FROM pg_class WHERE relnamespace = lower('STORE')::regnamespace "
    "AND relname = 'orders'",
    "SELECT quote_ident('a b'), quote_ident('select'), quote_ident('plain'), quote_literal('it''s')",
    "SELECT format_type(1700, 786438), format_type(1043, 24), format_type(23, -1), format_type(0, NULL), "
    "format_type(99999, NULL)",
    "SELECT pg_size_pretty(500::bigint), pg_size_pretty(20000::bigint), pg_size_pretty(20000000::bigint)",
    "SELECT array_to_string(ARRAY['a', NULL, 'b'], ','), array_upper(ARRAY[1, 2], 1), pg_encoding_to_char(6) "
    "FROM pg_am LIMIT 1",
]


@pytest.fixture(scope="module")
def postgres() -> Iterator[psycopg.Connection[Any]]:
    """A connection to a PostgreSQL of its own, with the same objects."""
    with (
        postgres_process.running() as conninfo,
        psycopg.connect(conninfo, autocommit=True) as connection,
    ):
        connection.execute(OBJECTS)
        yield connection


def test_relations_have_the_same_columns(postgres: psycopg.Connection[Any]) -> None:
    if postgres.info.server_version // 10000 != 15:
        pytest.skip("the catalog is that of PostgreSQL 15")
    for shape in SHAPES.values():
        told = postgres.execute(
            "SELECT attname, CASE WHEN t.typtype = 'd' THEN b.typname ELSE t.typname END, attnotnull "
            "FROM pg_attribute a JOIN pg_type t ON t.oid = atttypid "
            "LEFT JOIN pg_type b ON b.oid = t.typbasetype "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0 ORDER BY attnum",
            (f"{shape.schema}.{shape.name}",),
        ).fetchall()
        ours = [(column.name, column.pg_type, column.not_null) for column in shape.columns]
        assert (shape.name, ours) == (shape.name, told)


def test_types_are_the_same(postgres: psycopg.Connection[Any]) -> None:
    for type_ in TYPES:
        told = postgres.execute(
            "SELECT typname, typlen, typbyval, typtype::text, typcategory::text, typispreferred, "
            "typalign::text, typstorage::text, typcollation::int, typelem::int, typarray::int, "
            "format_type(oid, NULL), "
            "typinput::oid::int, typoutput::oid::int, typreceive::oid::int, typmodin::oid::int "
            "FROM pg_type WHERE oid = %s",
            (type_.oid,),
        ).fetchone()
        functions = [type_.functions.get(role, 0) for role in ("in", "out", "recv", "modin")]
        assert told == (
            type_.name, type_.length, type_.by_value, type_.kind, type_.category, type_.preferred,
            type_.align, type_.storage, type_.collation, type_.element, type_.array, type_.shown, *functions,
        )  # fmt: skip


def test_queries_have_the_same_rows(postgres: psycopg.Connection[Any], home: Any) -> None:
    for statement in OBJECTS.split(";"):
        home.cursor.execute(statement)
    home.cursor.execute("DROP SEQUENCE app.numbers")
    for query in QUERIES:
        told = postgres.execute(query)
        names = [column.name for column in told.description or ()]
        assert (query, names, home.ask(query)) == (query, home.names(query), told.fetchall())
