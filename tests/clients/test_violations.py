"""The fields of errors of class 23: table, column, constraint and DETAIL, as drivers and ORMs read them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import asyncpg
import psycopg
import pytest
from server_process import ServerProcess
from sqlalchemy import create_engine, text
from sqlalchemy.exc import IntegrityError

Connection = psycopg.Connection[Any]

# The `kept` tables have streams.
SETUP = """
CREATE TABLE {0}parent (
    id INTEGER PRIMARY KEY, n INTEGER NOT NULL, b VARCHAR UNIQUE, c INTEGER CHECK (c > 0)
);
CREATE UNIQUE INDEX {0}pair ON {0}parent (n, c);
CREATE TABLE {0}child (id INTEGER PRIMARY KEY, parent INTEGER REFERENCES {0}parent (id));
CREATE TABLE {0}two (a INTEGER REFERENCES {0}parent (id), b INTEGER REFERENCES {0}child (id));
INSERT INTO {0}parent VALUES (1, 1, 'x', 1), (2, 2, 'y', 2);
INSERT INTO {0}child VALUES (1, 1);
"""
STREAMS = "CREATE STREAM parents ON keptparent; CREATE STREAM children ON keptchild"
# Statement -> SQLSTATE, table, column, constraint, DETAIL; {0} is the tables' prefix.
CASES = {
    "INSERT INTO {0}parent VALUES (1, 9, 'z', 9)":
        ("23505", "{0}parent", None, "{0}parent_pkey", "Key (id)=(1) already exists."),
    "INSERT INTO {0}parent VALUES (9, 9, 'x', 9)":
        ("23505", "{0}parent", None, "{0}parent_b_key", "Key (b)=(x) already exists."),
    "INSERT INTO {0}parent VALUES (9, 1, 'z', 1)":
        ("23505", "{0}parent", None, "{0}pair", "Key (n, c)=(1, 1) already exists."),
    "UPDATE {0}child SET id = NULL":
        ("23502", "{0}child", "id", None, None),
    "INSERT INTO {0}parent (id, b, c) VALUES (9, 'z', 9)":
        ("23502", "{0}parent", "n", None, None),
    "INSERT INTO {0}parent VALUES (9, 9, 'z', -1)":
        ("23514", "{0}parent", None, "{0}parent_c_check", "The condition is (c > 0)."),
    "INSERT INTO {0}child VALUES (9, 77)":
        ("23503", "{0}child", None, "{0}child_parent_fkey",
         'Key (parent)=(77) is not present in table "{0}parent".'),
    "DELETE FROM {0}parent WHERE id = 1":
        ("23503", "{0}child", None, "{0}child_parent_fkey",
         'Key (id)=(1) is still referenced from table "{0}child".'),
}  # fmt: skip

MESSAGES = {
    "INSERT INTO {0}parent VALUES (1, 9, 'z', 9)":
        'duplicate key value violates unique constraint "{0}parent_pkey"',
    "INSERT INTO {0}parent VALUES (9, 1, 'z', 1)":
        'duplicate key value violates unique constraint "{0}pair"',
    "UPDATE {0}child SET id = NULL":
        'null value in column "id" of relation "{0}child" violates not-null constraint',
    "INSERT INTO {0}parent VALUES (9, 9, 'z', -1)":
        'new row for relation "{0}parent" violates check constraint "{0}parent_c_check"',
    "INSERT INTO {0}child VALUES (9, 77)":
        'insert or update on table "{0}child" violates foreign key constraint "{0}child_parent_fkey"',
    "DELETE FROM {0}parent WHERE id = 1":
        'update or delete on table "{0}parent" violates foreign key constraint "{0}child_parent_fkey" '
        'on table "{0}child"',
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("violations") / "ducktail.duckdb") as started:
        with started.connect() as connection:
            for prefix in ("plain", "kept"):
                run(connection, SETUP.format(prefix))
            run(connection, STREAMS)
        yield started


@pytest.fixture
def connection(server: ServerProcess) -> Iterator[Connection]:
    with server.connect() as connected:
        yield connected


def run(connection: Connection, statements: str) -> None:
    for statement in filter(str.strip, statements.split(";")):
        connection.execute(statement)


def told(error: psycopg.Error) -> tuple[str | None, ...]:
    diag = error.diag
    assert diag.schema_name in ("main", "pg_temp")
    return diag.sqlstate, diag.table_name, diag.column_name, diag.constraint_name, diag.message_detail


@pytest.mark.parametrize("prefix", ["plain", "kept"])
@pytest.mark.parametrize("statement", CASES, ids=str)
def test_of_a_statement(connection: Connection, prefix: str, statement: str) -> None:
    expected = tuple(part and part.format(prefix) for part in CASES[statement])
    with pytest.raises(psycopg.IntegrityError) as error:
        connection.execute(statement.format(prefix))
    assert told(error.value) == expected
    if (message := MESSAGES.get(statement)) is not None:
        assert error.value.diag.message_primary == message.format(prefix)
    with pytest.raises(psycopg.IntegrityError) as error, connection.transaction():
        connection.execute(statement.format(prefix))
    assert told(error.value) == expected


def test_after_a_rename_of_the_key(connection: Connection) -> None:
    """DuckDB's message has the old name of the column until the file is opened again."""
    setup = """CREATE TABLE renamed (a INT, b TEXT, c INT UNIQUE, CONSTRAINT rk PRIMARY KEY (a, b));
    INSERT INTO renamed VALUES (1, 'x: 1, y', 5); ALTER TABLE renamed RENAME a TO a2;
    ALTER TABLE renamed RENAME c TO c2"""
    run(connection, setup)
    cases = {
        "INSERT INTO renamed VALUES (1, 'x: 1, y', 6)": ("rk", "Key (a2, b)=(1, x: 1, y) already exists."),
        "INSERT INTO renamed VALUES (2, 'x', 5)": ("renamed_c2_key", "Key (c2)=(5) already exists."),
    }
    for statement, expected in cases.items():
        with pytest.raises(psycopg.errors.UniqueViolation) as error:
            connection.execute(statement)
        assert told(error.value) == ("23505", "renamed", None, *expected)


@pytest.mark.parametrize("prefix", ["plain", "kept"])
def test_of_copy(connection: Connection, prefix: str) -> None:
    with (
        pytest.raises(psycopg.errors.UniqueViolation) as error,
        connection.cursor() as cursor,
        cursor.copy(f"COPY {prefix}parent FROM STDIN") as copy,
    ):
        copy.write_row((1, 9, "z", 9))
    assert told(error.value)[1:] == (
        f"{prefix}parent", None, f"{prefix}parent_pkey", "Key (id)=(1) already exists."
    )  # fmt: skip


def test_of_a_temporary_table(connection: Connection) -> None:
    connection.execute("CREATE TEMP TABLE passing (id INTEGER PRIMARY KEY)")
    connection.execute("INSERT INTO passing VALUES (1)")
    with pytest.raises(psycopg.errors.UniqueViolation) as error:
        connection.execute("INSERT INTO passing VALUES (1)")
    assert error.value.diag.schema_name == "pg_temp"
    assert error.value.diag.constraint_name == "passing_pkey"


@pytest.mark.parametrize("temporary", ["", "TEMP"])
def test_of_a_check_of_a_new_table(connection: Connection, temporary: str) -> None:
    with pytest.raises(psycopg.errors.CheckViolation) as error, connection.transaction():
        connection.execute(f'CREATE {temporary} TABLE "New" (id INTEGER CONSTRAINT "in" CHECK (id > 0))')
        connection.execute('INSERT INTO "New" VALUES (0)')
    assert told(error.value) == ("23514", "New", None, "in", None)


def test_without_a_name_where_several_fit(connection: Connection) -> None:
    """DuckDB names only the referenced column, which both foreign keys refer to."""
    with pytest.raises(psycopg.errors.ForeignKeyViolation) as error:
        connection.execute("INSERT INTO plaintwo VALUES (77, NULL)")
    assert told(error.value) == ("23503", "plaintwo", None, None, None)


def test_of_asyncpg(server: ServerProcess) -> None:
    async def read() -> None:
        connection = await asyncpg.connect(host=server.host, port=server.port, user="ducktail")
        try:
            with pytest.raises(asyncpg.UniqueViolationError) as error:
                await connection.execute("INSERT INTO keptparent VALUES ($1, 9, 'z', 9)", 1)
        finally:
            await connection.close()
        found = error.value
        assert (found.schema_name, found.table_name, found.constraint_name, found.detail) == (
            "main", "keptparent", "keptparent_pkey", "Key (id)=(1) already exists."
        )  # fmt: skip

    asyncio.run(read())


def test_of_sqlalchemy(server: ServerProcess) -> None:
    engine = create_engine(f"postgresql+psycopg://ducktail@{server.host}:{server.port}/ducktail")
    with engine.connect() as connection, pytest.raises(IntegrityError) as error:
        connection.execute(text("INSERT INTO plainparent VALUES (1, 9, 'z', 9)"))
    assert isinstance(error.value.orig, psycopg.errors.UniqueViolation)
    assert error.value.orig.diag.constraint_name == "plainparent_pkey"
    engine.dispose()


def test_of_a_limited_user(server: ServerProcess, connection: Connection) -> None:
    """A table that the user does not see is named neither in the fields nor in DETAIL."""
    run(
        connection,
        "CREATE USER root PASSWORD 'x' SUPERUSER; CREATE USER eve PASSWORD 'x';"
        "CREATE TABLE secret (id INTEGER PRIMARY KEY);"
        "CREATE TABLE shown (id INTEGER PRIMARY KEY, s INTEGER REFERENCES secret (id));"
        "CREATE TABLE hidden (s INTEGER REFERENCES shown (id));"
        "INSERT INTO secret VALUES (1); INSERT INTO shown VALUES (1, 1); INSERT INTO hidden VALUES (1);"
        "GRANT SELECT, INSERT, DELETE ON shown TO eve",
    )
    with server.connect(user="eve", password="x") as eve:
        with pytest.raises(psycopg.errors.ForeignKeyViolation) as error:
            eve.execute("INSERT INTO shown VALUES (9, 9)")
        assert told(error.value) == ("23503", "shown", None, "shown_s_fkey", None)
        with pytest.raises(psycopg.errors.ForeignKeyViolation) as error:
            eve.execute("DELETE FROM shown")
        assert told(error.value) == ("23503", "shown", None, None, None)
        with pytest.raises(psycopg.errors.UniqueViolation) as error:
            eve.execute("INSERT INTO shown VALUES (1, 1)")
        assert told(error.value)[-2:] == ("shown_pkey", "Key (id)=(1) already exists.")
