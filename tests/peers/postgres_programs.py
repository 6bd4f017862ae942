"""pg_dump, psql and pgbench: a schema that is dumped and loaded again, pgbench -i and its own mixes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from postgres_server import programs

LIMIT_S = 120
SCHEMA = """
CREATE TABLE customers (id integer PRIMARY KEY, name text NOT NULL, email varchar(40) UNIQUE,
    made timestamptz DEFAULT now());
CREATE TABLE orders (id bigint PRIMARY KEY, customer integer REFERENCES customers (id),
    price numeric(10,2) CHECK (price >= 0),
    paid boolean DEFAULT false, tags text[], key uuid, note varchar(20),
    placed date, photo bytea, rate double precision);
CREATE INDEX orders_customer ON orders (customer);
CREATE VIEW paid AS SELECT o.id, c.name, o.price
    FROM orders o JOIN customers c ON c.id = o.customer WHERE o.paid;
INSERT INTO customers VALUES (1, 'Ann', 'ann@example.org');
INSERT INTO orders VALUES (1, 1, 2.50, true, '{a,b}',
    'b1d8e8d1-6d0b-4e7c-9f57-3a0c1b1c2d3e', 'x', '2026-01-02', '\\x00ff', 0.5);
"""
DUMP = Path("dump.sql")


def call(program: str, *words: str, text: str | None = None) -> str:
    """What a program prints.

    Raises:
        ValueError: it failed; with its last error.
    """
    run = subprocess.run(
        [str(programs() / program), *words],
        input=text,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if run.returncode:
        errors = [line for line in run.stderr.splitlines() if "rror" in line] or run.stderr.splitlines()
        raise ValueError(errors[0] if errors else f"exit code {run.returncode}")
    return run.stdout


def psql(text: str) -> str:
    """A script through psql, which ends at its first error."""
    return call("psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-f", "-", text=text)


def expect(found: object, wanted: object) -> None:
    """Compare.

    Raises:
        ValueError: they differ.
    """
    if found != wanted:
        raise ValueError(f"{found!r} instead of {wanted!r}")


def load(dump: str) -> None:
    """Load a dump into the emptied database."""
    psql("DROP VIEW paid; DROP TABLE orders; DROP TABLE customers;")
    psql(dump)


def schema_only() -> None:
    """Dump the schema."""
    dump = call("pg_dump", "--schema-only", "--no-owner")
    expect(len(re.findall(r"CREATE (?:TABLE|VIEW)", dump)), 3)
    DUMP.write_text(dump)


def schema_loaded() -> None:
    """Run the dumped script and look at what it has made."""
    load(DUMP.read_text())
    psql("SET search_path = public, main; INSERT INTO customers VALUES (2, 'Bob', 'bob@example.org');")
    expect(psql("SELECT count(*) FROM paid").strip(), "0")


def one_table() -> None:
    """Dump one table."""
    expect("CREATE TABLE" in call("pg_dump", "--schema-only", "--table=customers"), True)


def inserts() -> None:
    """Dump rows as statements."""
    expect("INSERT INTO" in call("pg_dump", "--data-only", "--inserts", "--table=customers"), True)


def copied() -> None:
    """Dump rows as COPY."""
    expect("COPY " in call("pg_dump", "--data-only", "--table=customers"), True)


def pgbench(*words: str) -> Callable[[], None]:
    """A run of pgbench, without failed transactions."""

    def run() -> None:
        found = call("pgbench", *words)
        failed = re.search(r"number of failed transactions: (\d+)", found)
        expect(failed[1] if failed else "0", "0")

    return run


STEPS: dict[str, Callable[[], object]] = {
    "psql: schema": lambda: psql(SCHEMA),
    "pg_dump --schema-only": schema_only,
    "pg_dump --schema-only: the script runs": schema_loaded,
    "pg_dump --schema-only --table": one_table,
    "pg_dump --data-only --inserts": inserts,
    "pg_dump --data-only (COPY)": copied,
    "pgbench -i": pgbench("-i", "-q", "-s", "1"),
    "pgbench -i with foreign keys": pgbench("-i", "-q", "-s", "1", "--foreign-keys"),
    "pgbench -i with steps dtGvp": pgbench("-i", "-q", "-I", "dtGvp"),
    "pgbench: tpcb-like": pgbench("-n", "-t", "20", "-c", "1"),
    "pgbench: tpcb-like, extended": pgbench("-n", "-t", "20", "-c", "1", "-M", "extended"),
    "pgbench: tpcb-like, prepared": pgbench("-n", "-t", "20", "-c", "1", "-M", "prepared"),
    "pgbench: simple-update": pgbench("-n", "-t", "20", "-b", "simple-update"),
    "pgbench: select-only, 4 clients": pgbench("-n", "-t", "50", "-c", "4", "-S"),
    "pgbench: select-only, prepared": pgbench("-n", "-t", "50", "-c", "4", "-S", "-M", "prepared"),
    "pgbench -v (VACUUM)": pgbench("-v", "-t", "5"),
}


def main(results: Path) -> None:
    """Run the steps in order and write an outcome for each."""
    os.chdir(results.parent)
    with results.open("w") as out:
        for name, step in STEPS.items():
            try:
                step()
                outcome = "passed"
            except (ValueError, OSError, subprocess.TimeoutExpired) as error:
                outcome = f"{type(error).__name__}: {error}"
            out.write(f"{name}\t{' '.join(outcome.split())}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
