"""Sequences of serial columns in DuckDB's log: a file that was not closed opens again."""

from __future__ import annotations

import shutil
from pathlib import Path

import ducktail

STATEMENTS = (
    "CREATE TABLE dropped (id SERIAL, n INT)",
    "INSERT INTO dropped (n) VALUES (1)",
    "DROP TABLE dropped",
    "CREATE TABLE t (id SERIAL PRIMARY KEY, a INT, b TEXT UNIQUE)",
    "INSERT INTO t (a, b) VALUES (1, 'x'), (2, 'y')",
    "CREATE INDEX i ON t (b)",
    "ALTER TABLE t DROP COLUMN a",
    "ALTER TABLE t ADD CHECK (id < 100)",
    "CREATE OR REPLACE TABLE r (id SERIAL)",
    "CREATE OR REPLACE TABLE r (id BIGSERIAL, v INT)",
    "CREATE TABLE c (id SERIAL PRIMARY KEY, v INT)",
    "CREATE STREAM s ON c",
    "INSERT INTO c (v) VALUES (1)",
    "BEGIN",
    "DROP TABLE c",
    "CREATE TABLE c (id SERIAL PRIMARY KEY, v INT)",
    "INSERT INTO c (v) VALUES (5), (6)",
    "COMMIT",
    "CREATE SCHEMA app",
    "CREATE TABLE app.t (id SERIAL)",
    "DROP SCHEMA app CASCADE",
    "CREATE TABLE d (id SERIAL PRIMARY KEY)",
    "CREATE STREAM ds ON d",
    "DROP TABLE d CASCADE",
)


def test_a_log_with_dropped_sequences_is_replayed(tmp_path: Path) -> None:
    path, copy = tmp_path / "a.duckdb", tmp_path / "b.duckdb"
    with ducktail.connect(path, autocommit=True) as connection:
        for statement in STATEMENTS:
            connection.execute(statement)
        for ending in ("", ".wal"):
            shutil.copy(f"{path}{ending}", f"{copy}{ending}")
    with ducktail.connect(copy, autocommit=True) as connection:
        names = "SELECT sequence_name FROM duckdb_sequences() WHERE schema_name = 'main' ORDER BY ALL"
        assert connection.execute(names).fetchall() == [("c_id_seq1",), ("r_id_seq1",), ("t_id_seq",)]
        assert connection.execute("INSERT INTO t (b) VALUES ('z') RETURNING id").fetchall() == [(3,)]
        assert connection.execute("INSERT INTO c (v) VALUES (7) RETURNING id").fetchall() == [(3,)]
        for table in ("t", "r"):
            connection.execute(f"DROP TABLE {table}")
        connection.execute("DROP TABLE c CASCADE")
        assert connection.execute(names).fetchall() == []
