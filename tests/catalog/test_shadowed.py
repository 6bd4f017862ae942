"""No object of a user's changes what we answer, whatever it is called: ours are named in full.

Objects are made under every name that our own SQL has for something, and under those of DuckDB's and
PostgreSQL's catalogs; then all is as it is without them.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pytest
from local_client import Client
from sql_texts import is_sql, names_in, sources, texts

from ducktail.engine.database import Database
from ducktail.engine.errors import DucktailError
from ducktail.engine.quoting import ident
from ducktail.pgwire_gateway import catalog
from ducktail.pgwire_gateway.catalog.system_catalogs import SHAPES

ROOT = Path(__file__).resolve().parents[2]

# A table of this name is meant by `FROM stream s`.
MEANT = {"stream", "topic"}
# Rows of DESCRIBE that no two databases have alike.
VARYING = {"created_at", "last_event_at", "identity", "bytes", "unpublished_seconds"}

TABLES = """
    CREATE TABLE shop_orders (id INTEGER PRIMARY KEY, item VARCHAR UNIQUE, price DECIMAL(9,2) DEFAULT 1,
        half AS (price / 2), CHECK (price > 0));
    CREATE INDEX shop_index ON shop_orders (price);
    CREATE TABLE shop_parts (id INTEGER REFERENCES shop_orders (id), n INTEGER);
    CREATE TABLE shop_plain (id INTEGER PRIMARY KEY, v VARCHAR);
    CREATE VIEW shop_view AS SELECT id FROM shop_plain;
    CREATE SEQUENCE shop_numbers;
    CREATE TYPE shop_mood AS ENUM ('sad', 'glad')
"""

STATEMENTS = """
    CREATE STREAM shop_events ON shop_plain;
    CREATE STREAM shop_kept ON shop_orders WITH (partition_by = (item), retention = '1 day');
    CREATE STREAM shop_some ON shop_plain WHERE length(v) > 1 AND lower(v) <> 'no';
    CREATE TOPIC shop_topic;
    CREATE CONSUMER GROUP shop_group ON shop_events;
    INSERT INTO shop_plain VALUES (1, 'one'), (2, 'two'), (3, 'three');
    INSERT INTO shop_orders (id, item) VALUES (1, 'tea'), (2, 'cups');
    UPDATE shop_plain SET v = v || '!' WHERE id < 3;
    DELETE FROM shop_plain WHERE id = 2;
    INSERT INTO shop_plain VALUES (1, 'uno') ON CONFLICT (id) DO UPDATE SET v = excluded.v;
    MERGE INTO shop_plain USING (SELECT 3 AS id, 'drei' AS v) AS m ON m.id = shop_plain.id
        WHEN MATCHED THEN UPDATE SET v = m.v WHEN NOT MATCHED THEN INSERT VALUES (m.id, m.v);
    INSERT INTO shop_plain SELECT id + 10, item FROM shop_orders;
    BEGIN;
    INSERT INTO shop_plain VALUES (20, 'twenty');
    UPDATE shop_plain SET v = 'XX' WHERE id = 20;
    COMMIT;
    UPDATE shop_orders SET price = price + 1 RETURNING id, price;
    PUBLISH TO shop_topic 'hello';
    ALTER TABLE shop_plain ADD COLUMN w INTEGER DEFAULT 5;
    INSERT INTO shop_plain VALUES (30, 'thirty', 6);
    SELECT op, key, before, after, partition FROM STREAM shop_events ORDER BY lsn;
    SELECT op, key, before, after, partition FROM STREAM shop_kept ORDER BY lsn;
    SELECT op, key, after FROM STREAM shop_some ORDER BY lsn;
    SELECT op, key, after FROM STREAM shop_topic ORDER BY lsn;
    SELECT op, key FROM shop_events ORDER BY lsn;
    SELECT id, v, _change_type FROM STREAM shop_events ENVELOPE CHANGES ORDER BY ALL;
    SELECT op, key FROM STREAM shop_events CONSUMER GROUP shop_group ORDER BY lsn;
    COMMIT OFFSETS ON shop_events CONSUMER GROUP shop_group;
    SELECT op, key FROM STREAM shop_events CONSUMER GROUP shop_group ORDER BY lsn;
    SHOW STREAMS;
    SHOW TOPICS;
    DESCRIBE STREAM shop_events;
    DESCRIBE CONSUMER GROUP shop_group ON shop_events;
    CHECK STREAM shop_events;
    CHECK STREAM shop_kept;
    SELECT stream_name, table_name, columns, partitions, filter FROM ducktail.streams ORDER BY 1;
    SELECT schema_name, stream_name, group_name, on_gap FROM ducktail.consumer_groups;
    ALTER STREAM shop_some RENAME TO shop_other;
    CREATE TABLE shop_more (id INTEGER PRIMARY KEY);
    CREATE STREAM shop_more_events ON shop_more;
    ALTER TABLE shop_more RENAME TO shop_less;
    INSERT INTO shop_less VALUES (1);
    SELECT op, key FROM STREAM shop_more_events;
    TRUNCATE shop_plain;
    CREATE OR REPLACE TABLE shop_plain AS SELECT 1 AS id, 'again' AS v, 2 AS w;
    CHECK STREAM shop_events;
    SELECT op, key FROM STREAM shop_events ORDER BY lsn;
    DROP STREAM shop_other;
    DROP TOPIC shop_topic;
    SHOW STREAMS
"""

# As psql and other clients ask. `{}` is one of our objects' names.
QUERIES = [
    "SELECT c.oid, c.relname, c.relkind, n.nspname, c.relchecks, c.relhasindex, c.relnatts FROM pg_class c "
    "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relname LIKE 'shop%' ORDER BY 1",
    "SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, "
    "(SELECT pg_catalog.pg_get_expr(d.adbin, d.adrelid) FROM pg_catalog.pg_attrdef d "
    "WHERE d.adrelid = a.attrelid AND d.adnum = a.attnum AND a.atthasdef) FROM pg_catalog.pg_attribute a "
    "WHERE a.attrelid = 'shop_orders'::regclass AND a.attnum > 0 ORDER BY a.attnum",
    "SELECT c2.relname, i.indisprimary, i.indisunique, pg_catalog.pg_get_indexdef(i.indexrelid, 0, true), "
    "pg_catalog.pg_get_constraintdef(con.oid, true) FROM pg_catalog.pg_class c, pg_catalog.pg_class c2, "
    "pg_catalog.pg_index i LEFT JOIN pg_catalog.pg_constraint con ON conrelid = i.indrelid "
    "AND conindid = i.indexrelid WHERE c.oid = 'shop_orders'::regclass AND c.oid = i.indrelid "
    "AND i.indexrelid = c2.oid ORDER BY 1",
    "SELECT conname, contype FROM pg_constraint WHERE conrelid = 'shop_parts'::regclass ORDER BY 1",
    "SELECT typname, enumlabel FROM pg_type JOIN pg_enum ON enumtypid = pg_type.oid ORDER BY enumsortorder",
    "SELECT sequencename, start_value, increment_by FROM pg_sequences",
    "SELECT viewname FROM pg_views WHERE viewname LIKE 'shop%' ORDER BY 1",
    "SELECT tablename FROM pg_tables WHERE tablename LIKE 'shop%' ORDER BY 1",
    "SELECT nspname FROM pg_namespace ORDER BY 1",
    "SELECT datname FROM pg_database",
    "SELECT count(*) FROM pg_proc",
    "SELECT count(*) FROM pg_type WHERE typtype <> 'e' AND typnamespace = 11",
    "SELECT table_schema, table_name, table_type FROM information_schema.tables "
    "WHERE table_name LIKE 'shop%' ORDER BY 1, 2",
    "SELECT column_name, ordinal_position, column_default, is_nullable, data_type, udt_name "
    "FROM information_schema.columns WHERE table_name = 'shop_orders' ORDER BY 2",
    "SELECT constraint_name, constraint_type FROM information_schema.table_constraints "
    "WHERE table_name LIKE 'shop%' ORDER BY 1",
    "SELECT table_name, column_name FROM information_schema.key_column_usage "
    "WHERE table_name LIKE 'shop%' ORDER BY 1, 2",
    "SELECT 'shop_orders'::regclass, to_regclass('shop_nothing'), 'shop_mood'::regtype",
    "SELECT word FROM pg_get_keywords() ORDER BY 1 LIMIT 5",
]


@cache
def _names() -> list[str]:
    """What our texts name, and what DuckDB and PostgreSQL have of their own."""
    ours = {
        name
        for package in ("engine", "sql", "pgwire_gateway")
        for path in sources(ROOT / package)
        for _, text in texts(path)
        if is_sql(text)
        for name in names_in(text)
    }
    duckdb_s = {"sqlite_master", "sqlite_schema", "pragma_database_list", "duckdb_logs", "duckdb_settings"}
    clients = {shape.name for shape in SHAPES.values()}
    names = {name.lower() for name in ours | duckdb_s | clients}
    return sorted(name for name in names if not name.startswith("__") and name not in MEANT)


def _rows(client: Client, text: str) -> Any:
    try:
        rows = [row for row in client(text) if row[0] not in VARYING]
        # `bytes` has the text of a commit's time in it, which is shorter where that ends in zeros.
        return [(*row[:5], *row[6:]) for row in rows] if text.strip() == "SHOW TOPICS" else rows
    except DucktailError as error:
        return error.sqlstate, error.message


def _answers(path: Path, made: str) -> dict[str, Any]:
    """All answers, in a database with objects of all the names; `made` makes one, '' none."""
    database = Database.open(str(path))
    catalog.install(database)
    client = Client(database)
    for statement in TABLES.split(";"):
        client(statement)
    count = 0
    for name in _names() if made else ():
        try:
            client(made.format(ident(name)))
            count += 1
        except DucktailError as error:
            # There is one of this name, or it is taken for a function that reads files.
            assert error.sqlstate in ("42P07", "0A000"), (name, error)
    assert count > 200 or not made
    found: dict[str, Any] = {}
    for number, statement in enumerate(filter(str.strip, STATEMENTS.split(";"))):
        found[f"{number} {statement.strip()}"] = _rows(client, statement)
    for query in QUERIES:
        try:
            found[query] = client.session.cursor.execute(catalog.rewrite(query)).fetchall()
        except duckdb.Error as error:
            found[query] = "error", str(error)
    client.close()
    database.close()
    again = Client(Database.open(str(path)))
    for statement in ("SHOW STREAMS", "CHECK STREAM shop_events", "SELECT op, key FROM STREAM shop_kept"):
        found[f"again {statement}"] = _rows(again, statement)
    database = again.session.database
    again.close()
    database.close()
    return found


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The answers where no such object is."""
    found = _answers(tmp_path_factory.mktemp("without") / "shop.duckdb", "")
    assert [text for text, rows in found.items() if isinstance(rows, tuple)] == []
    return found


@pytest.mark.parametrize(
    "made",
    [
        "CREATE TEMP TABLE {} (a INTEGER)",
        "CREATE TEMP VIEW {} AS SELECT 1 AS a",
        pytest.param("CREATE TABLE {} (a INTEGER)"),
        pytest.param("CREATE VIEW {} AS SELECT 1 AS a"),
    ],
)
def test_no_object_stands_before_ours(tmp_path: Path, without: dict[str, Any], made: str) -> None:
    found = _answers(tmp_path / "shop.duckdb", made)
    assert {text: rows for text, rows in found.items() if rows != without[text]} == {}
