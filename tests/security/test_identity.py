"""Whose a session is: a user stays who he is under another name, and nobody becomes another by a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from server_process import ServerProcess

Serve = Callable[..., ServerProcess]


@pytest.fixture
def ann(server: ServerProcess) -> psycopg.Connection[Any]:
    """A superuser, with bob beside her, who has a table, a stream and a right."""
    first = server.connect()
    for statement in (
        "CREATE USER ann PASSWORD 'x' SUPERUSER", "CREATE USER bob PASSWORD 'y'", "CREATE SCHEMA bobs",
        "GRANT CREATE ON SCHEMA bobs TO bob", "CREATE TABLE given (id INT)", "GRANT SELECT ON given TO bob",
    ):  # fmt: skip
        first.execute(statement)
    first.close()
    with server.connect(user="bob", password="y") as bob:
        bob.execute("CREATE TABLE bobs.own (id INT PRIMARY KEY)")
        bob.execute("CREATE STREAM bobs.s ON bobs.own")
        bob.execute("CREATE CONSUMER GROUP g ON bobs.s")
    return server.connect(user="ann", password="x")


def test_a_renamed_user_keeps_all_that_hangs_on_his_name(
    server: ServerProcess, ann: psycopg.Connection[Any]
) -> None:
    with ann, server.connect(user="bob", password="y") as bob:
        ann.execute("ALTER USER bob RENAME TO Robert")
        # His open session goes on, and what it makes now is Robert's.
        assert bob.execute("SELECT stream_name FROM ducktail.streams").fetchall() == [("s",)]
        bob.execute("CREATE TABLE bobs.later (id INT)")
        with server.connect(user="robert", password="y") as robert:
            robert.execute("INSERT INTO bobs.own VALUES (1)")
            robert.execute("DROP TABLE bobs.later")
            assert robert.execute("SELECT * FROM given").fetchall() == []
            found = robert.execute("SELECT count(*) FROM STREAM bobs.s CONSUMER GROUP g").fetchall()
            assert found == [(1,)]
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            server.connect(user="bob", password="y")
        # Another bob is another: nothing is his.
        ann.execute("CREATE USER bob PASSWORD 'z'")
        with server.connect(user="bob", password="z") as other:
            for query in ("SELECT * FROM given", "SELECT * FROM bobs.own", "SELECT * FROM STREAM bobs.s"):
                with pytest.raises(psycopg.Error) as told:
                    other.execute(query)
                assert told.value.diag.sqlstate in ("42P01", "42704")
            assert other.execute(f"SELECT pg_cancel_backend({bob.info.backend_pid})").fetchall() == [(False,)]
        with pytest.raises(psycopg.errors.ObjectInUse):
            ann.execute("ALTER USER ann RENAME TO anna")
        with pytest.raises(psycopg.errors.DuplicateObject):
            ann.execute("ALTER USER robert RENAME TO BOB")


def test_a_renaming_lasts(server: ServerProcess, ann: psycopg.Connection[Any]) -> None:
    with ann:
        ann.execute("ALTER USER bob RENAME TO robert")
    server.stop()
    server.start()
    with server.connect(user="robert", password="y") as robert:
        robert.execute("INSERT INTO bobs.own VALUES (1)")
        assert robert.execute("SELECT * FROM given").fetchall() == []


def test_an_open_session_of_a_dropped_user_is_not_the_next_ones(
    server: ServerProcess, ann: psycopg.Connection[Any]
) -> None:
    with ann:
        ann.execute("CREATE USER eve PASSWORD 'x'")
        with server.connect(user="eve", password="x") as eve:
            ann.execute("DROP USER eve")
            ann.execute("CREATE USER eve PASSWORD 'y' SUPERUSER")
            for _ in range(2):
                with pytest.raises(psycopg.errors.InvalidAuthorizationSpecification):
                    eve.execute("SELECT * FROM given")


def test_a_new_password_is_the_same_user(server: ServerProcess, ann: psycopg.Connection[Any]) -> None:
    with ann, server.connect(user="bob", password="y") as bob:
        ann.execute("ALTER USER bob PASSWORD 'z'")
        assert bob.execute("SELECT * FROM given").fetchall() == []
