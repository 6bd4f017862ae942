"""pg_dump: a script of it makes the same database again."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_server import programs
from server_process import ServerProcess

pytestmark = pytest.mark.postgres

SCHEMA = """
CREATE TABLE customers (id integer PRIMARY KEY, name text NOT NULL, made timestamptz DEFAULT now());
CREATE TABLE orders (id bigint PRIMARY KEY, customer integer REFERENCES customers (id),
    price numeric(10,2) CHECK (price >= 0), paid boolean DEFAULT false, tags text[], photo bytea);
CREATE INDEX orders_customer ON orders (customer);
CREATE VIEW paid AS SELECT o.id, c.name FROM main.orders o JOIN main.customers c ON c.id = o.customer;
CREATE TABLE items (n serial PRIMARY KEY, k bigint GENERATED ALWAYS AS IDENTITY, x integer DEFAULT 5);
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE SEQUENCE numbers START 5 INCREMENT 2;
COMMENT ON TABLE items IS 'it''s items';
COMMENT ON COLUMN items.x IS 'x';
COMMENT ON CONSTRAINT orders_price_check ON orders IS 'no debts';
COMMENT ON CONSTRAINT orders_pkey ON orders IS 'the key';
CREATE TABLE feelings (id integer, m mood DEFAULT 'ok', others mood[]);
CREATE SCHEMA other;
CREATE TABLE other.t (a integer, "B c" text);
CREATE STREAM s ON orders;
INSERT INTO customers VALUES (1, 'Ann', '2026-01-02 03:04:05+00');
INSERT INTO orders VALUES (1, 1, 2.50, true, '{a,"b c"}', '\\x00ff');
INSERT INTO items (x) VALUES (7), (8);
INSERT INTO other.t VALUES (1, E'tab\\t nl\\n'), (2, NULL);
"""


# The objects and rows that a dump has to make again.
LOOK = """
SELECT relname, relkind, relhasindex FROM pg_class
    WHERE relnamespace = 2200 AND relname NOT LIKE 's%' ORDER BY 1;
SELECT conname, contype, pg_get_constraintdef(oid) FROM pg_constraint ORDER BY 1;
SELECT description FROM pg_description WHERE objoid = 'items'::regclass ORDER BY 1;
SELECT conname, description FROM pg_description JOIN pg_constraint ON oid = objoid ORDER BY 1;
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
    WHERE attrelid = 'feelings'::regclass ORDER BY 1;
SELECT enumlabel FROM pg_enum ORDER BY enumsortorder;
FROM customers; FROM orders; FROM items; FROM other.t;
"""


def call(program: str, server: ServerProcess, *words: str, text: str | None = None) -> str:
    """What a program prints."""
    command = [str(programs() / program), "-d", server.conninfo, *words]
    run = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=120)
    assert not run.returncode, run.stderr
    return run.stdout


def psql(server: ServerProcess, text: str) -> str:
    """What a script prints; it ends at its first error."""
    return call("psql", server, "-XqAt", "-v", "ON_ERROR_STOP=1", "-f", "-", text=text)


def dumped(server: ServerProcess, *words: str) -> list[str]:
    """A dump, without comments and its random key."""
    lines = call("pg_dump", server, *words).splitlines()
    return [line for line in lines if line and not line.startswith(("--", "\\restrict", "\\unrestrict"))]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    home: Path = tmp_path_factory.mktemp("dumps")
    with ServerProcess(home / "one.duckdb") as one, ServerProcess(home / "another.duckdb") as other:
        psql(one, SCHEMA)
        yield one, other


def test_a_dump_makes_the_same_database(servers: tuple[ServerProcess, ServerProcess]) -> None:
    one, other = servers
    first = dumped(one)
    text = "\n".join(first)
    assert "CREATE SCHEMA main" not in text and "ducktail." not in text and "CREATE VIEW main.s " not in text
    assert "FOREIGN KEY (customer) REFERENCES" in text and "\\\\x00ff" in text
    assert "m mood DEFAULT" in text and "others mood[]" in text
    psql(other, text)
    assert psql(one, LOOK) == psql(other, LOOK)
    assert psql(other, "SELECT id, name FROM paid; SELECT last_value FROM items_n_seq;") == "1|Ann\n2\n"
