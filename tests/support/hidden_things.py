"""A server with things that are hidden from its users bob and eve, and what these are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from server_process import ServerProcess

Connection = psycopg.Connection[Any]

SETUP = """
CREATE USER ann PASSWORD 'x' SUPERUSER;
CREATE USER bob PASSWORD 'x';
CREATE USER eve PASSWORD 'x';
CREATE TABLE hidden (id INT PRIMARY KEY, hidden_column TEXT, CHECK (id > 0));
INSERT INTO hidden VALUES (1, 'hidden value'), (2, 'other hidden value');
CREATE INDEX hidden_index ON hidden (hidden_column);
COMMENT ON TABLE hidden IS 'hidden comment';
CREATE STREAM hidden_stream ON hidden;
CREATE CONSUMER GROUP hidden_group ON hidden_stream START SNAPSHOT;
CREATE BOOKMARK hidden_bookmark ON hidden_stream;
CREATE SCHEMA hidden_schema;
CREATE TABLE hidden_schema.hidden_table (hidden_id INT);
CREATE TYPE hidden_schema.hidden_type AS ENUM ('hidden label');
CREATE SEQUENCE hidden_sequence;
CREATE VIEW hidden_view AS SELECT * FROM hidden;
CREATE MACRO one_of_hidden() AS (SELECT max(hidden_column) FROM hidden);
CREATE MACRO all_of_hidden() AS TABLE SELECT * FROM hidden;
CREATE MACRO twice(n) AS (2 * n);
CREATE TABLE open (id INT PRIMARY KEY, v TEXT);
INSERT INTO open VALUES (1, 'one'), (2, 'two');
CREATE STREAM open_stream ON open WITH (partitions = 1);
INSERT INTO open VALUES (3, 'three');
CREATE BOOKMARK hidden_bookmark ON open_stream;
REPORT PIPELINE 'hidden_pipeline' AS '{"status": "hidden"}';
CREATE VIEW window_on_hidden AS SELECT id AS n FROM hidden;
GRANT SELECT ON open TO bob;
GRANT SELECT ON open_stream TO bob;
GRANT SELECT ON window_on_hidden TO bob;
CREATE SCHEMA bobs;
GRANT CREATE ON SCHEMA bobs TO bob;
CREATE SCHEMA eves;
GRANT CREATE ON SCHEMA eves TO eve;
"""


def connect(server: ServerProcess, user: str, **more: Any) -> Connection:
    return server.connect(user=user, password="x", **more)


@contextmanager
def serving_hidden_things(directory: Path, *options: str) -> Iterator[ServerProcess]:
    """A server with what SETUP makes."""
    with ServerProcess(directory / "ducktail.duckdb", ("--port", "0", *options)) as started:
        with started.connect() as first:
            for statement in filter(str.strip, SETUP.split(";")):
                first.execute(statement)
        with connect(started, "bob") as bob:
            bob.execute("CREATE TABLE bobs.mine (id INT PRIMARY KEY, v TEXT)")
            bob.execute("INSERT INTO bobs.mine VALUES (1, 'a'), (2, 'b')")
        yield started


def told(connection: Connection, statement: str, **more: Any) -> tuple[str | None, ...]:
    """The error that a statement gets, whole."""
    with pytest.raises(psycopg.Error) as error:
        cursor = connection.execute(statement, **more)
        raise AssertionError(f"{statement}: {cursor.fetchall() if cursor.description else 'done'}")
    diag = error.value.diag
    return (
        diag.sqlstate, diag.message_primary, diag.message_detail, diag.message_hint,
        diag.statement_position, diag.context,
    )  # fmt: skip
