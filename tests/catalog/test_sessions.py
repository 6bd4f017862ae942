"""The catalog's relations and functions within DECLARE, PREPARE and CREATE VIEW, and those about sessions."""

from __future__ import annotations

import enum
import socket
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.types.enum import EnumInfo, register_enum
from server_process import ServerProcess
from sqlalchemy import create_engine, text

Connection = psycopg.Connection[Any]
Rows = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("sessions") / "ducktail.duckdb") as started:
        with started.connect() as connection:
            connection.execute("CREATE TABLE p (id INTEGER PRIMARY KEY, u VARCHAR DEFAULT current_user)")
            connection.execute("INSERT INTO p (id) VALUES (1)")
        yield started


@pytest.fixture
def connection(server: ServerProcess) -> Iterator[Connection]:
    with server.connect(prepare_threshold=None) as connected:
        yield connected


def names(cursor: psycopg.Cursor[Any]) -> list[tuple[str, int]]:
    return [(column.name, column.type_code) for column in cursor.description or ()]


def test_cursor(connection: Connection) -> None:
    connection.execute("BEGIN")
    connection.execute("DECLARE a CURSOR FOR SELECT pg_catalog.version(), now(), count(*) FROM p")
    fetched = connection.execute("FETCH 1 FROM a")
    assert names(fetched) == [("version", 25), ("now", 1184), ("count", 20)]
    assert (fetched.fetchone() or ("",))[0].startswith("PostgreSQL 15")
    connection.execute(
        "DECLARE b SCROLL CURSOR FOR "
        "SELECT relname, oid::regclass FROM pg_catalog.pg_class WHERE relname = 'p'"
    )
    fetched = connection.execute("FETCH ALL FROM b")
    assert (names(fetched), fetched.fetchall()) == ([("relname", 19), ("oid", 2205)], [("p", "p")])
    connection.execute("ROLLBACK")
    with connection.transaction(), connection.cursor("named") as cursor:
        cursor.execute("SELECT count(*), max(relname) FROM pg_class WHERE relname = %s", ["p"])
        assert (names(cursor), cursor.fetchall()) == ([("count", 20), ("max", 25)], [(1, "p")])


def test_position_of_an_error(connection: Connection) -> None:
    with pytest.raises(psycopg.errors.UndefinedColumn) as error:
        connection.execute("PREPARE wrong AS SELECT missing FROM p")
    assert error.value.diag.statement_position == "25"


def test_prepared_statement(connection: Connection) -> None:
    connection.execute(
        "PREPARE q AS SELECT oid::regclass, count(*)::text FROM pg_class WHERE relname = $1 GROUP BY 1"
    )
    answer = connection.execute("EXECUTE q('p')")
    assert names(answer) == [("oid", 2205), ("count", 25)]
    assert (answer.fetchone() or ())[0] == "p"


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_server_side_cursors_of_sqlalchemy(server: ServerProcess, driver: str) -> None:
    url = f"postgresql+{driver}://ducktail@{server.host}:{server.port}/ducktail"
    engine = create_engine(url, execution_options={"stream_results": True})
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM p")).all() == [(1,)]
    engine.dispose()


def test_view(connection: Connection) -> None:
    connection.execute("CREATE VIEW v AS SELECT pg_catalog.upper(u) AS name FROM p WHERE u = current_user")
    assert connection.execute("SELECT * FROM v").fetchall() == [("DUCKTAIL",)]


class Mood(enum.Enum):
    sad = "sad"
    ok = "ok"


def test_enum(connection: Connection) -> None:
    connection.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    connection.execute("CREATE TABLE moods (m mood, l mood[])")
    info = EnumInfo.fetch(connection, "mood")
    assert info is not None and info.array_oid
    assert connection.execute("SELECT %s::regtype::text", [info.array_oid]).fetchone() == ("mood[]",)
    register_enum(info, connection, Mood)
    for mark in ("%b", "%t"):
        answer = connection.execute(
            f"INSERT INTO moods VALUES ({mark}, {mark}) RETURNING m, l", [Mood.ok, [Mood.sad, None]]
        )
        assert answer.fetchall() == [(Mood.ok, [Mood.sad, None])]


def test_user_of_the_session(server: ServerProcess, connection: Connection) -> None:
    connection.execute("CREATE TABLE written (who VARCHAR)")
    connection.execute("CREATE STREAM writes ON written")
    with server.connect(user="ann") as ann:
        ann.execute("INSERT INTO written VALUES (current_user)")
        ann.execute("UPDATE written SET who = who || session_user")
        answer = ann.execute("SELECT user, current_role, session_user, user = current_user")
        assert [name for name, _ in names(answer)] == ["user", "current_role", "session_user", "?column?"]
        assert answer.fetchall() == [("ann", "ann", "ann", True)]
    assert connection.execute("SELECT who FROM written").fetchall() == [("annann",)]
    # In DuckDB, user may be a column's name.
    assert connection.execute("SELECT user FROM (SELECT 1 AS user)").fetchall() == [(1,)]


def test_pg_prepared_statements(server: ServerProcess) -> None:
    with server.connect(prepare_threshold=0) as connection:
        connection.execute("PREPARE named (text) AS SELECT $1")
        connection.execute("SELECT %s::int", [5])
        found = connection.execute(
            "SELECT statement, parameter_types::text[], from_sql, prepare_time < now() "
            "FROM pg_prepared_statements WHERE statement NOT LIKE '%pg_prepared%' ORDER BY from_sql"
        ).fetchall()
    assert (found[-1], found[-2]) == (
        ("PREPARE named (text) AS SELECT $1", ["text"], True, True),
        ("SELECT $1::int", ["smallint"], False, True),
    )


def test_termination_of_the_own_session(server: ServerProcess) -> None:
    for _ in range(5):
        connection = server.connect()
        with pytest.raises(psycopg.errors.AdminShutdown):
            connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        connection.close()


def test_pg_stat_activity(server: ServerProcess, connection: Connection) -> None:
    """The last test on this server: from now on its clients need passwords."""
    connection.execute("CREATE USER root PASSWORD 'x' SUPERUSER")
    with server.connect(user="root", password="x") as root:
        root.execute("CREATE USER eve PASSWORD 'y'")
        with server.connect(user="eve", password="y") as eve:
            eve.execute("BEGIN")
            eve.execute("SELECT 'of eve'")
            root.execute("SELECT 'of root'")
            query = (
                "SELECT usename, state, query, xact_start IS NULL FROM pg_stat_activity "
                "WHERE usename IN ('eve', 'root') ORDER BY 1"
            )
            assert root.execute(query).fetchall() == [
                ("eve", "idle in transaction", "SELECT 'of eve'", False), ("root", "active", query, True),
            ]  # fmt: skip
            eve.execute("COMMIT")
            assert eve.execute(query).fetchall() == [
                ("eve", "active", query, False), ("root", None, "<insufficient privilege>", True),
            ]  # fmt: skip
            eve.execute("SET search_path = main")
        root.execute("ALTER USER root PASSWORD 'secret'")
        kept = "SELECT query FROM pg_stat_activity WHERE query LIKE '%secret%' AND pid <> pg_backend_pid()"
        assert connection.execute(kept).fetchall() == []


def test_no_message_before_a_startup_packet(tmp_path_factory: pytest.TempPathFactory) -> None:
    with ServerProcess(tmp_path_factory.mktemp("silent") / "ducktail.duckdb") as server:
        silent = socket.create_connection((server.host, server.port), 20)
        with server.connect():
            pass
        server.stop()
        assert silent.recv(100) == b""
        silent.close()
        assert not [line for line in server.lines if "connection refused" in line]
